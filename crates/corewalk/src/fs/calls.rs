//! The arguments and answers of ioctl(2) and poll(2).

use std::fmt;
use std::sync::Arc;

use bitflags::bitflags;

bitflags! {
    /// The flags of an inode that chattr(1) sets and lsattr(1) shows. Unknown bits are kept.
    ///
    /// Source: ioctl_iflags(2).
    ///
    /// # Examples
    /// ```
    /// use corewalk::InodeFlags;
    ///
    /// let flags = InodeFlags::IMMUTABLE | InodeFlags::NODUMP;
    /// assert_eq!(flags.bits(), 0x50);
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct InodeFlags: u32 {
        /// The file is stored compressed (`FS_COMPR_FL`).
        const COMPR = 0x4;
        /// Each write is durable when it returns (`FS_SYNC_FL`).
        const SYNC = 0x8;
        /// The file cannot be changed, renamed or removed (`FS_IMMUTABLE_FL`).
        const IMMUTABLE = 0x10;
        /// The file can only be appended to (`FS_APPEND_FL`).
        const APPEND = 0x20;
        /// dump(8) leaves the file out (`FS_NODUMP_FL`).
        const NODUMP = 0x40;
        /// Reads do not set the access time (`FS_NOATIME_FL`).
        const NOATIME = 0x80;
        /// Each change of a name in the directory is durable when the call that makes it returns
        /// (`FS_DIRSYNC_FL`).
        const DIRSYNC = 0x1_0000;
        /// Blocks are overwritten in place, without copy on write (`FS_NOCOW_FL`).
        const NOCOW = 0x80_0000;

        const _ = !0;
    }
}

/// The answer to an ioctl(2).
///
/// # Examples
/// ```
/// use corewalk::IoctlReply;
///
/// let reply = IoctlReply::new(7_u32.to_ne_bytes().to_vec()).with_result(1);
/// assert_eq!((reply.result, reply.output.len()), (1, 4));
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct IoctlReply {
    /// The result of the system call, which is not negative.
    pub result: i32,
    /// The bytes that the kernel copies to the memory to which the client's argument points.
    pub output: Vec<u8>,
}

impl IoctlReply {
    /// Returns an answer with the result 0.
    pub fn new(output: Vec<u8>) -> IoctlReply {
        IoctlReply { result: 0, output }
    }

    corewalk_base::setters! {
        with_result: result = i32;
    }
}

bitflags! {
    /// The events of poll(2), with Linux's numbers.
    ///
    /// # Examples
    /// ```
    /// use corewalk::PollEvents;
    ///
    /// let ready = PollEvents::IN | PollEvents::OUT;
    /// assert!(ready.contains(PollEvents::OUT));
    /// ```
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct PollEvents: u32 {
        /// A read does not wait (`POLLIN`).
        const IN = 0x1;
        /// There is an exceptional condition, as poll(2) describes it (`POLLPRI`).
        const PRI = 0x2;
        /// A write does not wait (`POLLOUT`).
        const OUT = 0x4;
        /// An error has occurred (`POLLERR`).
        const ERR = 0x8;
        /// The other end of a channel, such as a pipe, was closed (`POLLHUP`).
        const HUP = 0x10;

        const _ = !0;
    }
}

/// Wakes the processes that wait for a file in poll(2). Any thread may use it.
///
/// # Examples
/// ```
/// # use std::sync::{Mutex, mpsc::channel};
/// # use corewalk::{Errno, PollEvents, PollWaker};
/// /// A file from which clients read messages.
/// #[derive(Default)]
/// struct Messages(Mutex<(Vec<String>, Vec<PollWaker>)>);
///
/// # impl Messages {
/// fn poll(&self, wanted: PollEvents, waker: Option<PollWaker>) -> Result<PollEvents, Errno> {
///     let (messages, wakers) = &mut *self.0.lock().unwrap();
///     wakers.extend(waker);
///     let events = if messages.is_empty() { PollEvents::empty() } else { PollEvents::IN };
///     Ok(events & wanted)
/// }
///
/// fn add(&self, message: String) {
///     let (messages, wakers) = &mut *self.0.lock().unwrap();
///     messages.push(message);
///     wakers.drain(..).for_each(|waker| waker.wake());
/// }
/// # }
/// # let ((sender, receiver), file) = (channel(), Messages::default());
/// # let waker = PollWaker::new(move || sender.send(()).expect("the receiver exists"));
/// # assert_eq!(file.poll(PollEvents::IN, Some(waker)), Ok(PollEvents::empty()));
/// # file.add("text".into());
/// # assert_eq!(receiver.try_recv(), Ok(()));
/// # assert_eq!(file.poll(PollEvents::IN, None), Ok(PollEvents::IN));
/// ```
#[derive(Clone)]
pub struct PollWaker(Arc<dyn Fn() + Send + Sync>);

impl PollWaker {
    /// Returns a waker that calls `wake`.
    ///
    /// # Examples
    /// ```
    /// use std::sync::mpsc::channel;
    /// use corewalk::PollWaker;
    ///
    /// let (sender, woken) = channel();
    /// // A server passes the waker to `FileSystem::poll`.
    /// let waker = PollWaker::new(move || drop(sender.send("file 7")));
    /// // The back end calls it when the file has new events.
    /// waker.wake();
    /// assert_eq!(woken.try_recv(), Ok("file 7"));
    /// ```
    pub fn new(wake: impl Fn() + Send + Sync + 'static) -> PollWaker {
        PollWaker(Arc::new(wake))
    }

    /// Makes the kernel poll the file again. The client then sees the new events. Waking a file
    /// without new events, or a file that was closed, does no harm.
    pub fn wake(&self) {
        (self.0)();
    }
}

impl fmt::Debug for PollWaker {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PollWaker").finish_non_exhaustive()
    }
}
