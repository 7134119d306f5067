//! msgsnd(2).
//!
//! Source: msgop(2); Linux `ipc/msg.c` (`do_msgsnd`, `pipelined_send`).

use rustix::io::Errno;

use super::filter::Filter;
use super::handover::pipelined_send;
use super::message::Message;
use super::node::Role;
use super::queue::{Queue, QueueGuard};
use crate::field::refuse_if;
use crate::flags::MsgFlags;
use crate::handle::MsgId;
use crate::ids::Object;
use crate::perm::WRITE;
use crate::recover;
use crate::shared::now_s;
use crate::task::Task;

impl Task {
    /// Sends a message of type `mtype` with `text`. Waits until the message fits into the queue.
    ///
    /// Of the flags in `msgflg`, only [`MsgFlags::NOWAIT`] has an effect.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the caller has no write permission, and lacks `CAP_IPC_OWNER`. The permission
    ///   may also have been removed during the wait.
    /// - `EAGAIN`: the message does not fit, and `IPC_NOWAIT` is given.
    /// - `EIDRM`: the queue was removed during the call.
    /// - `EINTR`: the wait was interrupted, by a signal or by [`Task::interrupt`].
    /// - `EIO`: the namespace is shared, and another process does not release the queue's lock.
    /// - `EINVAL`: there is no such queue, `mtype` is below 1, or `text` is longer than `MSGMAX`.
    /// - `ENOMEM`: there is no memory for the message, or for the wait node of the call.
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
    /// assert_eq!(task.msgsnd(id, 0, b"text", MsgFlags::empty()), Err(Errno::INVAL));
    /// let mut text = [0; 16];
    /// let received = task.msgrcv(id, &mut text, 7, MsgFlags::empty())?;
    /// assert_eq!((received.mtype, &text[..received.size_bytes]), (7, &b"text"[..]));
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "do_msgsnd")]
    #[inline]
    pub fn msgsnd(
        &self,
        msqid: MsgId,
        mtype: i64,
        text: &[u8],
        msgflg: MsgFlags,
    ) -> Result<(), Errno> {
        refuse_if(text.len() > self.shared.limits.msgmax as usize || mtype < 1, Errno::INVAL)?;
        let object = self.msg_ids().obtain_object_check(msqid.raw())?;
        self.may_send(&object, msgflg)?;
        let queue = Queue::new(&self.shared, &object);
        let message = Message::alloc(self, mtype, text)?;
        let send = || self.send(queue, message, msgflg);
        let sent = recover::with_room(&self.shared, self.owner, send);
        // If a signal handler forks during this call, the child must not free the message, which
        // belongs to the parent.
        if sent.is_err() && !self.is_copy() {
            message.let_go(self);
        }
        sent
    }

    #[inline]
    fn may_send(&self, object: &Object, msgflg: MsgFlags) -> Result<(), Errno> {
        self.permission(object, WRITE)?;
        self.ask(|hook, cred| hook.msg_msgsnd(cred, &object.perm(), msgflg))
    }

    /// Sends a private message. If this fails, the message stays private.
    #[inline]
    fn send(&self, queue: Queue<'_>, message: Message<'_>, msgflg: MsgFlags) -> Result<(), Errno> {
        let guard = queue.lock(self.owner)?;
        if guard.fits(message.size()) {
            self.hand_in(guard, message);
            return Ok(());
        }
        refuse_if(msgflg.contains(MsgFlags::NOWAIT), Errno::AGAIN)?;
        self.send_waiting(guard, message, msgflg)
    }

    /// Sends a message that fits.
    #[inline]
    fn hand_in(&self, guard: QueueGuard<'_>, message: Message<'_>) {
        let shared = guard.queue.shared;
        let now_s = now_s();
        guard.note_send(self.pid, now_s);
        if guard.waiting(Role::Receiver).is_empty() {
            guard.append(message);
            return;
        }
        message.set_ticket(guard.next_ticket());
        let sent = pipelined_send(&guard, message, now_s);
        if sent.handed.is_none() {
            guard.append(message);
        }
        drop(guard);
        recover::reap_absent(shared, self.owner, sent.wake(shared));
    }

    /// Waits until the message fits into the queue, and sends it.
    #[cold]
    fn send_waiting(
        &self,
        guard: QueueGuard<'_>,
        message: Message<'_>,
        msgflg: MsgFlags,
    ) -> Result<(), Errno> {
        let may = |object: &Object| self.may_send(object, msgflg);
        let sent =
            self.wait_at(guard, Filter::ANY, message.size(), Role::Sender, may, |guard, node| {
                guard.waiting(Role::Sender).unlink(node.line);
                if guard.fits(message.size()) {
                    node.forget();
                    self.hand_in(guard, message);
                    return true;
                }
                // Space in the queue was freed, but another sender has taken it. So wait again, at
                // the end of the queue's list of senders.
                node.set_ticket(guard.next_ticket());
                guard.waiting(Role::Sender).push(node.line);
                node.answer_call();
                false
            });
        sent.map(drop)
    }
}
