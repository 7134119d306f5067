//! Flags of the calls, one type for each family. Their bits are those of the system calls.
//!
//! The code that receives a program's call makes a value with `from_bits_retain`, which keeps
//! unknown bits. So a [`SecurityHook`](crate::SecurityHook) sees unknown bits too. The calls
//! themselves ignore them, as in Linux.

use bitflags::bitflags;

pub(crate) const MODE_MASK: u16 = 0o777;

bitflags! {
    /// Flags of semget(2), msgget(2) and shmget(2). Without a flag, a call finds an existing
    /// object.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct GetFlags: i32 {
        /// `IPC_CREAT`: make the object if there is none with the key.
        #[doc(alias = "IPC_CREAT")]
        const CREATE = 0o1000;
        /// `IPC_EXCL`: with `CREATE`, fail with `EEXIST` if there is an object with the key.
        #[doc(alias = "IPC_EXCL")]
        const EXCLUSIVE = 0o2000;
        /// `SHM_HUGETLB`: a new segment of huge pages, which shmget refuses with `EINVAL`. The
        /// other calls ignore it.
        #[doc(alias = "SHM_HUGETLB")]
        const HUGETLB = 0o4000;
    }

    /// Flags of an operation of semop(2), as they are in [`SemBuf`](crate::SemBuf).
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct SemFlags: i16 {
        /// `IPC_NOWAIT`: fail with `EAGAIN` and do not wait.
        #[doc(alias = "IPC_NOWAIT")]
        const NOWAIT = 0o4000;
        /// `SEM_UNDO`: take the operation back when the task ends.
        #[doc(alias = "SEM_UNDO")]
        const UNDO = 0x1000;
    }

    /// Flags of msgsnd(2) and msgrcv(2). For msgsnd only `NOWAIT` has an effect.
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct MsgFlags: i32 {
        /// `IPC_NOWAIT`: do not wait. msgsnd fails with `EAGAIN`, msgrcv with `ENOMSG`.
        #[doc(alias = "IPC_NOWAIT")]
        const NOWAIT = 0o4000;
        /// `MSG_NOERROR`: cut a message that is too long for the receiver's buffer.
        #[doc(alias = "MSG_NOERROR")]
        const NOERROR = 0o10_000;
        /// `MSG_EXCEPT`: receive the first message of another type than the given one.
        #[doc(alias = "MSG_EXCEPT")]
        const EXCEPT = 0o20_000;
        /// `MSG_COPY`: copy the message with the given number in the queue, and leave it there.
        #[doc(alias = "MSG_COPY")]
        const COPY = 0o40_000;
    }

    /// Flags of shmat(2).
    #[repr(transparent)]
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
    pub struct ShmFlags: i32 {
        /// `SHM_RDONLY`: attach for reading only.
        #[doc(alias = "SHM_RDONLY")]
        const RDONLY = 0o10_000;
        /// `SHM_RND`: round the address down to a multiple of the page size.
        #[doc(alias = "SHM_RND")]
        const ROUND = 0o20_000;
        /// `SHM_REMAP`: replace the mappings that are at the address.
        #[doc(alias = "SHM_REMAP")]
        const REMAP = 0o40_000;
        /// `SHM_EXEC`: allow execution of the memory.
        #[doc(alias = "SHM_EXEC")]
        const EXEC = 0o100_000;
    }
}
