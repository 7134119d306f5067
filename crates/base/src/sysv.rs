//! Safe functions for the System V IPC of the host kernel.
//!
//! A benchmark compares user-space semaphores and messages with those of the kernel, in one
//! program. No maintained crate wraps these system calls, and only this crate may have unsafe code
//! for them.
//!
//! Dropping a [`SemSet`] or [`MsgQueue`] removes the object, unless it came from `attach`. The
//! object of a killed process stays in the kernel, unless it was in an IPC namespace of its own
//! ([`unshare_ipc`]). The kernel removes such a namespace when its last thread ends.
//!
//! # Limits
//!
//! This module does only what measurements need: objects without IPC keys (`IPC_PRIVATE`) for their
//! owner alone, and a few commands of semctl(2) and msgctl(2). The crate `corewalk-ipc` has keys
//! and all commands.
//!
//! Source: semget(2), semop(2), semctl(2), msgop(2), unshare(2).
#![expect(unsafe_code, reason = "libc declares these system calls as unsafe")]

use rustix::io::Errno;
use std::io;

/// Size of the type of a message in bytes. The type comes before the text.
const TYPE_BYTES: usize = size_of::<libc::c_long>();

/// One operation of semop(2). Laid out like `struct sembuf`.
#[doc(alias = "sembuf")]
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sop {
    /// Index of the semaphore in its set.
    pub num: u16,
    /// Amount to add to the semaphore. If it is 0, the operation waits until the semaphore is zero.
    pub op: i16,
    /// `IPC_NOWAIT` and `SEM_UNDO`.
    pub flags: i16,
}

/// A semaphore set of the kernel.
///
/// # Examples
///
/// ```
/// use corewalk_base::sysv::{SemSet, Sop};
///
/// let set = SemSet::private(2)?;
/// set.op(&[Sop { num: 1, op: 3, flags: 0 }])?;
/// assert_eq!(set.values(2)?, [0, 3]);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct SemSet {
    id: i32,
    is_owner: bool,
}

/// A message queue of the kernel.
///
/// # Examples
///
/// ```
/// use corewalk_base::sysv::MsgQueue;
///
/// let queue = MsgQueue::private()?;
/// let mut message = [7, 11, 0];
/// queue.send(&message, 5)?;
/// message = [0; 3];
/// assert_eq!(queue.receive(&mut message, 16, 7)?, 5);
/// assert_eq!(message[..2], [7, 11]);
/// # Ok::<(), rustix::io::Errno>(())
/// ```
#[derive(Debug)]
pub struct MsgQueue {
    id: i32,
    is_owner: bool,
}

/// Moves the calling thread, and every thread that it starts later, to a new IPC namespace.
///
/// # Errors
///
/// The errors of unshare(2): `EPERM` without the privilege.
pub fn unshare_ipc() -> Result<(), Errno> {
    // SAFETY: the argument is a number. The call changes which IPC objects this thread can reach,
    // and changes no memory.
    check(unsafe { libc::unshare(libc::CLONE_NEWIPC) }).map(drop)
}

impl SemSet {
    /// Creates a set of `count` semaphores without a key, all zero.
    ///
    /// # Errors
    ///
    /// The errors of semget(2).
    pub fn private(count: u16) -> Result<Self, Errno> {
        // SAFETY: the call takes numbers.
        let id = check(unsafe { libc::semget(libc::IPC_PRIVATE, i32::from(count), 0o600) })?;
        Ok(Self { id, is_owner: true })
    }

    /// Returns the semaphore set with the number `id`, which another process created. Dropping the
    /// result does not remove the set.
    #[must_use]
    pub fn attach(id: i32) -> Self {
        Self { id, is_owner: false }
    }

    /// Returns the identifier, for [`SemSet::attach`].
    #[must_use]
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Performs all operations atomically, as semop(2) does. If they are not possible yet, waits
    /// until they are.
    ///
    /// # Errors
    ///
    /// The errors of semop(2).
    #[inline]
    pub fn op(&self, sops: &[Sop]) -> Result<(), Errno> {
        let first = sops.as_ptr().cast::<libc::sembuf>().cast_mut();
        // SAFETY: the operations live during the call, and the passed length is their number. `Sop`
        // has the layout of `struct sembuf`, which the kernel only reads.
        check(unsafe { libc::semop(self.id, first, sops.len()) }).map(drop)
    }

    /// Returns the values of the first `count` semaphores, with `GETALL`.
    ///
    /// # Errors
    ///
    /// The errors of semctl(2).
    pub fn values(&self, count: u16) -> Result<Vec<u16>, Errno> {
        // The buffer is long enough for the largest possible set.
        let mut values = vec![0_u16; 1 << 16];
        // SAFETY: `GETALL` writes one value per semaphore, and the buffer has space for the largest
        // set.
        check(unsafe { libc::semctl(self.id, 0, libc::GETALL, values.as_mut_ptr()) })?;
        values.truncate(usize::from(count));
        Ok(values)
    }

    /// Sets one semaphore: `SETVAL`.
    ///
    /// # Errors
    ///
    /// As semctl(2).
    pub fn set_value(&self, num: u16, value: u16) -> Result<(), Errno> {
        let value = libc::c_long::from(value);
        // SAFETY: the command takes a number.
        check(unsafe { libc::semctl(self.id, i32::from(num), libc::SETVAL, value) }).map(drop)
    }

    /// Returns the value of one semaphore: `GETVAL`.
    ///
    /// # Errors
    ///
    /// As semctl(2).
    pub fn value(&self, num: u16) -> Result<u16, Errno> {
        // SAFETY: the command takes no argument.
        let value = check(unsafe { libc::semctl(self.id, i32::from(num), libc::GETVAL) })?;
        Ok(value.unsigned_abs() as u16)
    }
}

impl Drop for SemSet {
    fn drop(&mut self) {
        if self.is_owner {
            // SAFETY: the command takes no argument.
            let _removed = check(unsafe { libc::semctl(self.id, 0, libc::IPC_RMID) });
        }
    }
}

impl MsgQueue {
    /// Creates an empty queue without a key.
    ///
    /// # Errors
    ///
    /// As msgget(2).
    pub fn private() -> Result<Self, Errno> {
        // SAFETY: the call takes numbers.
        let id = check(unsafe { libc::msgget(libc::IPC_PRIVATE, 0o600) })?;
        Ok(Self { id, is_owner: true })
    }

    /// Returns the message queue with the number `id`, which another process created. Dropping the
    /// result does not remove the queue.
    #[must_use]
    pub fn attach(id: i32) -> Self {
        Self { id, is_owner: false }
    }

    /// Returns the identifier, for [`MsgQueue::attach`].
    #[must_use]
    pub fn id(&self) -> i32 {
        self.id
    }

    /// Sends a message. Waits until the queue has room for it.
    ///
    /// The first word of `message` is the type. The next `bytes` bytes are the text.
    ///
    /// # Errors
    ///
    /// The errors of msgsnd(2).
    ///
    /// # Panics
    ///
    /// Panics if `message` is shorter than type and text.
    #[inline]
    pub fn send(&self, message: &[u64], bytes: usize) -> Result<(), Errno> {
        assert!(TYPE_BYTES + bytes <= size_of_val(message), "the text is longer than the buffer");
        // SAFETY: the buffer holds the message's type and `bytes` bytes of text. The kernel only
        // reads the buffer.
        check(unsafe { libc::msgsnd(self.id, message.as_ptr().cast(), bytes, 0) }).map(drop)
    }

    /// Receives the first message of type `kind`, or the first message of any type if `kind` is 0.
    /// Waits if there is no such message.
    ///
    /// Returns the length of its text, which is at most `bytes`.
    ///
    /// # Errors
    ///
    /// The errors of msgrcv(2).
    ///
    /// # Panics
    ///
    /// Panics if `message` has no room for the type and `bytes` bytes.
    #[inline]
    pub fn receive(&self, message: &mut [u64], bytes: usize, kind: i32) -> Result<usize, Errno> {
        assert!(TYPE_BYTES + bytes <= size_of_val(message), "there is no room for the text");
        let (buffer, kind) = (message.as_mut_ptr().cast(), libc::c_long::from(kind));
        // SAFETY: the buffer has room for the message's type and `bytes` bytes of text. Its words
        // are `u64`, so the kernel may store any bits in them.
        let got = unsafe { libc::msgrcv(self.id, buffer, bytes, kind, 0) };
        usize::try_from(got).map_err(|_| last_error())
    }

    /// Returns true if the queue has no message. Side effect: a first message without text is
    /// removed, and the result is false.
    ///
    /// # Errors
    ///
    /// The errors of msgrcv(2), except `ENOMSG` (the queue is empty) and `E2BIG` (the first message
    /// has a text).
    pub fn is_empty(&self) -> Result<bool, Errno> {
        let mut kind = [0_u64; 1];
        let buffer = kind.as_mut_ptr().cast();
        // SAFETY: the buffer has room for the message's type, and the call asks for no text.
        let got = unsafe { libc::msgrcv(self.id, buffer, 0, 0, libc::IPC_NOWAIT) };
        match usize::try_from(got).map_err(|_| last_error()) {
            Err(Errno::NOMSG) => Ok(true),
            Ok(_) | Err(Errno::TOOBIG) => Ok(false),
            Err(errno) => Err(errno),
        }
    }
}

impl Drop for MsgQueue {
    fn drop(&mut self) {
        if self.is_owner {
            let nothing = std::ptr::null_mut();
            // SAFETY: the command ignores its argument.
            let _removed = check(unsafe { libc::msgctl(self.id, libc::IPC_RMID, nothing) });
        }
    }
}

#[inline]
fn check(result: libc::c_int) -> Result<i32, Errno> {
    if result == -1 { Err(last_error()) } else { Ok(result) }
}

#[cold]
fn last_error() -> Errno {
    crate::errno_of(io::Error::last_os_error())
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::primitives::thread;

    const NOWAIT: i16 = 0o4000;

    #[test]
    fn set_is_gone_when_its_owner_is_dropped_and_not_before() {
        let set = SemSet::private(3).unwrap();
        let other = SemSet::attach(set.id());
        other.op(&[Sop { num: 2, op: 5, flags: 0 }, Sop { num: 0, op: 1, flags: 0 }]).unwrap();
        other.set_value(1, 9).unwrap();
        assert_eq!(other.value(1), Ok(9));
        drop(other);
        assert_eq!(set.values(3).unwrap(), [1, 9, 5]);
        let take = Sop { num: 0, op: -2, flags: NOWAIT };
        assert_eq!(set.op(&[take]), Err(Errno::AGAIN));
        let id = set.id();
        drop(set);
        assert!(SemSet::attach(id).values(3).is_err());
    }

    #[test]
    fn message_that_was_sent_is_received_and_a_long_one_is_refused() {
        let queue = MsgQueue::private().unwrap();
        queue.send(&[3, 0x0102], 2).unwrap();
        let mut message = [0_u64; 2];
        assert_eq!(queue.receive(&mut message, 1, 3), Err(Errno::TOOBIG));
        assert_eq!(queue.is_empty(), Ok(false));
        assert_eq!(queue.receive(&mut message, 8, 0), Ok(2));
        assert_eq!(message, [3, 0x0102]);
        assert_eq!(queue.is_empty(), Ok(true));
        assert_eq!(MsgQueue::attach(queue.id()).send(&[0, 0], 8), Err(Errno::INVAL));
        let id = queue.id();
        drop(queue);
        assert!(MsgQueue::attach(id).send(&[1, 0], 8).is_err());
    }

    #[test]
    fn namespace_of_its_own_does_not_have_the_sets_of_others() {
        let set = SemSet::private(1).unwrap();
        let id = set.id();
        let outside = thread::scope(|scope| {
            let inside = scope.spawn(|| unshare_ipc().is_ok().then(|| SemSet::attach(id).value(0)));
            inside.join().unwrap()
        });
        // Without the privilege, `unshare_ipc` fails and the thread returns `None`.
        assert!(outside.is_none_or(|value| value == Err(Errno::INVAL)), "{outside:?}");
        assert_eq!(set.value(0), Ok(0));
    }
}
