//! msgrcv(2).
//!
//! A received message is private to its receiver. So the receiver copies the text without the
//! queue's lock. Dropping the [`Arrived`] value frees the memory of the message.
//!
//! Source: msgop(2); Linux `ipc/msg.c` (`do_msgrcv`, "lockless receive").

use corewalk_base::futex::{self, Deadline, Ended};
use corewalk_base::primitives::thread;
use rustix::io::Errno;

use super::filter::Filter;
use super::message::Message;
use super::node::{self, Role, Status};
use super::queue::{Queue, QueueGuard};
use crate::field::refuse_if;
use crate::flags::MsgFlags;
use crate::handle::MsgId;
use crate::ids::Object;
use crate::perm::READ;
use crate::recover;
use crate::shared::now_s;
use crate::signals;
use crate::spin::Spin;
use crate::task::Task;

/// The type of a received message, and the length of its text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Received {
    /// The type of the message.
    pub mtype: i64,
    /// The number of copied bytes.
    pub size_bytes: usize,
}

/// A message that the receiver owns. Its drop frees the message.
#[derive(Debug)]
pub struct Arrived<'t> {
    from: From<'t>,
    mtype: i64,
    size_max: usize,
}

#[derive(Debug)]
enum From<'t> {
    /// The message itself, and the receiver's task, to which it belongs.
    Message(Message<'t>, &'t Task),
    /// A copy of a message that stays in the queue.
    Copy(Vec<u8>),
}

impl Arrived<'_> {
    /// Returns the type of the message.
    #[must_use]
    pub fn mtype(&self) -> i64 {
        self.mtype
    }

    /// Returns the length of the text in bytes, after truncation.
    #[must_use]
    pub fn size_bytes(&self) -> usize {
        let size = match &self.from {
            From::Message(message, _) => message.size(),
            From::Copy(text) => text.len(),
        };
        size.min(self.size_max)
    }

    /// Copies as much of the text as fits to `out`. Returns the number of copied bytes.
    #[inline]
    pub fn read(&self, out: &mut [u8]) -> usize {
        let size = self.size_max.min(out.len());
        match &self.from {
            From::Message(message, _) => message.read(&mut out[..size]),
            From::Copy(text) => {
                let size = size.min(text.len());
                out[..size].copy_from_slice(&text[..size]);
                size
            }
        }
    }
}

impl Drop for Arrived<'_> {
    #[inline]
    fn drop(&mut self) {
        if let From::Message(message, task) = &self.from {
            message.let_go(task);
        }
    }
}

impl Task {
    /// Receives a message into `text`. Waits until there is one.
    ///
    /// `msgtyp` selects the message:
    /// - 0: the first message.
    /// - Positive: the first message of this type, or with `MSG_EXCEPT` the first one of another
    ///   type.
    /// - Negative: the first message of the lowest type that is at most the absolute value.
    /// - With `MSG_COPY`: the message at position `msgtyp`, which is copied and stays in the queue.
    ///
    /// # Errors
    ///
    /// - `E2BIG`: the message is longer than `text`, and `MSG_NOERROR` is not given. The message
    ///   stays in the queue.
    /// - `EACCES`: the caller has no read permission, and lacks `CAP_IPC_OWNER`. The permission may
    ///   also have been removed during the wait.
    /// - `EIDRM`: the queue was removed during the call.
    /// - `EINTR`: the wait was interrupted, by a signal or by [`Task::interrupt`].
    /// - `EIO`: the namespace is shared, and another process does not release the queue's lock.
    /// - `EINVAL`: there is no such queue, or `MSG_COPY` is given without `IPC_NOWAIT`, with
    ///   `MSG_EXCEPT`, or with `MSG_NOERROR` and too short a `text`.
    /// - `ENOMEM`: there is no memory for the wait node of the call.
    /// - `ENOMSG`: there is no such message, and `IPC_NOWAIT` is given.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// task.msgsnd(id, 5, b"five", MsgFlags::empty())?;
    /// task.msgsnd(id, 2, b"second", MsgFlags::empty())?;
    /// let mut text = [0; 4];
    /// // Take the lowest type up to 9.
    /// assert_eq!(task.msgrcv(id, &mut text, -9, MsgFlags::empty()), Err(Errno::TOOBIG));
    /// let received = task.msgrcv(id, &mut text, -9, MsgFlags::NOERROR)?;
    /// assert_eq!((received.mtype, &text), (2, b"seco"));
    /// assert_eq!(task.msgrcv(id, &mut text, 2, MsgFlags::NOWAIT), Err(Errno::NOMSG));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "do_msgrcv")]
    #[inline]
    pub fn msgrcv(
        &self,
        msqid: MsgId,
        text: &mut [u8],
        msgtyp: i64,
        msgflg: MsgFlags,
    ) -> Result<Received, Errno> {
        let arrived = self.msgrcv_owned(msqid, text.len(), msgtyp, msgflg)?;
        Ok(Received { mtype: arrived.mtype(), size_bytes: arrived.read(text) })
    }

    /// Like [`Task::msgrcv`] with a buffer of `size_max` bytes, but the caller copies the text
    /// later.
    ///
    /// # Errors
    ///
    /// The errors of [`Task::msgrcv`].
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, IPC_PRIVATE, MsgFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)?;
    /// task.msgsnd(id, 7, b"text", MsgFlags::empty())?;
    /// let arrived = task.msgrcv_owned(id, 16, 7, MsgFlags::empty())?;
    /// assert_eq!((arrived.mtype(), arrived.size_bytes()), (7, 4));
    /// let mut text = [0; 4];
    /// assert_eq!((arrived.read(&mut text), &text), (4, b"text"));
    /// let again = task.msgrcv_owned(id, 16, 7, MsgFlags::NOWAIT);
    /// assert_eq!(again.err(), Some(Errno::NOMSG));
    /// # Ok::<(), Errno>(())
    /// ```
    #[inline]
    pub fn msgrcv_owned(
        &self,
        msqid: MsgId,
        size_max: usize,
        msgtyp: i64,
        msgflg: MsgFlags,
    ) -> Result<Arrived<'_>, Errno> {
        let filter = Filter::new(msgtyp, msgflg)?;
        let object = self.msg_ids().obtain_object_check(msqid.raw())?;
        self.may_receive(&object, msgtyp)?;
        let queue = Queue::new(&self.shared, &object);
        let mut watched = None;
        let guard = loop {
            let guard = queue.lock(self.owner)?;
            if let Some(message) = find(&guard, filter) {
                if message.size() > size_max && !msgflg.contains(MsgFlags::NOERROR) {
                    return Err(Errno::TOOBIG);
                }
                if msgflg.contains(MsgFlags::COPY) {
                    return copy(message, size_max);
                }
                return Ok(self.take(guard, message, size_max));
            }
            refuse_if(msgflg.contains(MsgFlags::NOWAIT), Errno::NOMSG)?;
            // A receiver polls for a while before it enters the list of waiting receivers. If other
            // receivers are in the list, it does not poll, since they get the next message.
            let may_watch = self.shared.spin_ns != 0 && guard.waiting(Role::Receiver).is_empty();
            match watched {
                Some(Ended::Interrupted) => return Err(Errno::INTR),
                None if !may_watch || !Spin::Arrival.is_worth_it() => break guard,
                Some(_) => break guard,
                None => {
                    let last_ticket = queue.last_ticket();
                    drop(guard);
                    watched = Some(self.watch(queue, last_ticket));
                    refuse_if(self.is_copy(), Errno::INTR)?;
                }
            }
        };
        match self.receive_waiting(guard, filter, size_max) {
            // If there is no memory for the wait node, reap dead tasks and repeat the call.
            Err(Errno::NOMEM) if recover::makes_room(&self.shared, self.owner) => {
                self.msgrcv_owned(msqid, size_max, msgtyp, msgflg)
            }
            line => Ok(self.arrived(Message { shared: &self.shared, line: line? }, size_max)),
        }
    }

    /// Polls until a message seems to have arrived, the queue is gone, or the polling has lasted
    /// for `spin_ns`.
    ///
    /// A polling receiver is in no list, so a sender makes no system call to wake it. Each round
    /// yields the processor, which the sender may need. If a signal handler calls
    /// [`Task::interrupt_own`], the polling call ends with `EINTR`.
    #[cold]
    fn watch(&self, queue: Queue<'_>, last_ticket: u64) -> Ended {
        let before = signals::count();
        let end = Deadline { monotonic_ns: futex::now().monotonic_ns + self.shared.spin_ns };
        let mut ended = Ended::Woken;
        while queue.last_ticket() == last_ticket && queue.live() == queue.name.payload() {
            if ended == Ended::TimedOut {
                break;
            }
            thread::yield_now();
            if signals::count() != before {
                return Ended::Interrupted;
            }
            if futex::now() >= end {
                ended = Ended::TimedOut;
            }
        }
        Spin::Arrival.tell(ended == Ended::Woken);
        ended
    }

    #[inline]
    fn may_receive(&self, object: &Object, msgtyp: i64) -> Result<(), Errno> {
        self.permission(object, READ)?;
        self.ask(|hook, cred| hook.msg_msgrcv(cred, &object.perm(), msgtyp))
    }

    /// Takes a message out of the queue. Then tells the waiting senders whose messages now fit.
    #[inline]
    fn take<'t>(
        &'t self,
        guard: QueueGuard<'t>,
        message: Message<'t>,
        size_max: usize,
    ) -> Arrived<'t> {
        guard.take(message, self.owner.index);
        guard.note_receive(self.pid, now_s());
        let wakes = guard.call(Role::Sender);
        drop(guard);
        node::wake(&self.shared, &wakes);
        self.arrived(message, size_max)
    }

    #[inline]
    fn arrived<'t>(&'t self, message: Message<'t>, size_max: usize) -> Arrived<'t> {
        let mtype = message.mtype();
        Arrived { from: From::Message(message, self), mtype, size_max }
    }

    /// Waits for a message. Returns its first line. The message then belongs to this task alone.
    #[cold]
    fn receive_waiting(
        &self,
        guard: QueueGuard<'_>,
        filter: Filter,
        size_max: usize,
    ) -> Result<u32, Errno> {
        let Filter { msgtyp, msgflg } = filter;
        let size_max = if msgflg.contains(MsgFlags::NOERROR) { usize::MAX } else { size_max };
        let may = |object: &Object| self.may_receive(object, msgtyp);
        self.wait_at(guard, filter, size_max, Role::Receiver, may, |_guard, node| {
            // A waiting receiver gets its message in its wait node, and need not look at the queue.
            if !matches!(node.status(), Status::Done(_)) {
                node.answer_call();
            }
            false
        })
    }
}

/// Returns the first message that the filter takes. Analogous to Linux's `find_msg`.
#[inline]
fn find<'s>(guard: &QueueGuard<'s>, filter: Filter) -> Option<Message<'s>> {
    let messages = guard.messages().iter().map(|line| guard.message(line));
    filter.find(messages.map(|message| (message.mtype(), message)))
}

/// Returns a copy of the message, for `MSG_COPY`. The caller holds the queue's lock.
fn copy<'t>(message: Message<'_>, size_max: usize) -> Result<Arrived<'t>, Errno> {
    refuse_if(message.size() > size_max, Errno::INVAL)?;
    let mut text = vec![0; message.size()];
    message.read(&mut text);
    Ok(Arrived { from: From::Copy(text), mtype: message.mtype(), size_max })
}
