//! msgsnd(2).
//!
//! Source: msgop(2); Linux `ipc/msg.c` (`do_msgsnd`, `pipelined_send`).

use corewalk_base::futex::{self, Deadline, Ended};
use corewalk_base::primitives::IS_MODEL;
use rustix::io::Errno;

use super::WRITE;
use super::filter::Filter;
use super::handover::pipelined_send;
use super::message::Message;
use super::node::{Node, Role, Status};
use super::queue::{Queue, QueueGuard};
use crate::flags::MsgFlags;
use crate::handle::MsgId;
use crate::ids::Object;
use crate::namespace::now_s;
use crate::recover;
use crate::task::Task;
use crate::watch::{self, Turn};

impl Task {
    /// Sends a message of type `mtype` with `text`. Waits until it fits the queue.
    ///
    /// Of `msgflg` only [`MsgFlags::NOWAIT`] has an effect.
    ///
    /// # Errors
    ///
    /// - `EACCES`: no write permission, and no `CAP_IPC_OWNER`. Also if the permission is removed
    ///   during the wait.
    /// - `EAGAIN`: the message does not fit, and `IPC_NOWAIT` is given.
    /// - `EIDRM`: the queue was removed during the call.
    /// - `EINTR`: the wait was interrupted, by a signal or by [`Task::interrupt`].
    /// - `EIO`: the namespace is shared, and another process does not release the queue's lock.
    /// - `EINVAL`: there is no such queue, `mtype` is below 1, or `text` is longer than `MSGMAX`.
    /// - `ENOMEM`: there are too few free lines for the message, or no free node for the waiting
    ///   call.
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
    #[doc(alias = "ipc_obtain_object_check")]
    #[inline]
    pub fn msgsnd(
        &self,
        msqid: MsgId,
        mtype: i64,
        text: &[u8],
        msgflg: MsgFlags,
    ) -> Result<(), Errno> {
        if text.len() > self.shared.limits.msgmax as usize || mtype < 1 {
            return Err(Errno::INVAL);
        }
        let object = self.msg_ids().obtain_object_check(msqid.raw())?;
        self.may_send(&object, msgflg)?;
        let queue = Queue::new(&self.shared, &object);
        let message = Message::alloc(self, mtype, text)?;
        let send = || self.send(queue, message, msgflg);
        let sent = recover::with_room(&self.shared, self.owner, send);
        // In a forked child the message belongs to the parent.
        if sent.is_err() && !self.is_copy() {
            message.let_go(self);
        }
        sent
    }

    #[inline]
    fn may_send(&self, object: &Object, msgflg: MsgFlags) -> Result<(), Errno> {
        self.permission(object, WRITE)?;
        match &self.shared.hook {
            None => Ok(()),
            Some(hook) => hook.msg_msgsnd(&self.cred.whole(), &object.perm(), msgflg),
        }
    }

    /// Sends a private message. If this fails, the message stays private.
    #[inline]
    fn send(&self, queue: Queue<'_>, message: Message<'_>, msgflg: MsgFlags) -> Result<(), Errno> {
        let guard = queue.lock(self.owner)?;
        if guard.fits(message.size()) {
            self.hand_in(guard, message);
            return Ok(());
        }
        if msgflg.contains(MsgFlags::NOWAIT) {
            return Err(Errno::AGAIN);
        }
        self.send_waiting(guard, message, msgflg)
    }

    /// Sends a message that fits.
    #[inline]
    fn hand_in(&self, guard: QueueGuard<'_>, message: Message<'_>) {
        let shared = guard.queue.shared;
        let now_s = now_s();
        guard.note_send(self.pid, now_s);
        if guard.receivers().is_empty() {
            guard.append(message);
            return;
        }
        let sent = pipelined_send(&guard, message, now_s);
        if !sent.is_handed() {
            guard.append(message);
        }
        drop(guard);
        let absent = sent.wake(shared);
        if !absent.is_empty() {
            recover::reap_absent(shared, self.owner, absent);
        }
    }

    /// Waits until the message fits, and sends it.
    #[cold]
    fn send_waiting(
        &self,
        guard: QueueGuard<'_>,
        message: Message<'_>,
        msgflg: MsgFlags,
    ) -> Result<(), Errno> {
        let queue = guard.queue;
        // The caller found in this same section of the lock that the message does not fit (trap
        // I5).
        let who = (Role::Sender, queue.name, guard.next_ticket());
        let node = Node::alloc(self, who, message.size(), Filter::Any)?;
        guard.senders().push(node.line);
        let begun = self.begin_wait(node.line);
        drop(guard);
        let sent = self.wait_for_room(queue, node, message, msgflg);
        if !self.end_wait(begun) {
            return Err(Errno::INTR);
        }
        let (sent, is_ours) = node.leave(sent.map(|()| 0));
        if is_ours {
            node.free(self.owner);
        }
        sent.map(drop)
    }

    fn wait_for_room(
        &self,
        queue: Queue<'_>,
        node: Node<'_>,
        message: Message<'_>,
        msgflg: MsgFlags,
    ) -> Result<(), Errno> {
        let mut turn = Turn::first();
        loop {
            match node.status() {
                _ if self.is_copy() => return Err(Errno::INTR),
                Status::Done(outcome) => return outcome.map(drop),
                Status::Interrupted => return self.give_up_sending(queue, node, Errno::INTR),
                Status::Called => {
                    let permitted =
                        self.permitted_still(queue, |object| self.may_send(object, msgflg));
                    if let Err(errno) = permitted {
                        return self.give_up_sending(queue, node, errno);
                    }
                    // A removal stores the outcome in the node before it releases the lock, and
                    // `Node::leave` reads it first. So the call ends after any error.
                    let guard = queue.lock(self.owner)?;
                    guard.senders().unlink(node.line);
                    if guard.fits(message.size()) {
                        node.forget();
                        self.hand_in(guard, message);
                        return Ok(());
                    }
                    // Another message has taken the space. Wait again, as the last one.
                    node.set_ticket(guard.next_ticket());
                    guard.senders().push(node.line);
                    node.answer_call();
                }
                Status::Waits => {
                    if self.sleep(queue, node, &mut turn)? == Ended::Interrupted {
                        return self.give_up_sending(queue, node, Errno::INTR);
                    }
                }
            }
        }
    }

    /// Sleeps until the node's status changes or the call's turn ends. The watcher then looks for
    /// dead tasks.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the queue is gone: it was removed, or overwritten.
    pub(super) fn sleep(
        &self,
        queue: Queue<'_>,
        node: Node<'_>,
        turn: &mut Turn,
    ) -> Result<Ended, Errno> {
        let scope = self.shared.scope;
        let end = turn.end(scope, Deadline::NEVER);
        let ended = futex::wait(node.word(), node.asleep(), end, scope);
        if self.is_copy() {
            return Ok(Ended::Woken);
        }
        if ended == Ended::TimedOut && turn.is_watcher(&self.shared) {
            watch::look(&self.shared, self.owner);
        }
        // A watcher wakes a call whose queue is gone. If the lock cannot be acquired, the wait goes
        // on.
        let may_be_gone = !IS_MODEL && queue.live() != queue.name.payload();
        if may_be_gone && queue.lock(self.owner).err() == Some(Errno::IDRM) {
            return Err(Errno::IDRM);
        }
        Ok(ended)
    }

    /// Unlinks the node and returns `errno`, unless the queue is gone.
    fn give_up_sending(&self, queue: Queue<'_>, node: Node<'_>, errno: Errno) -> Result<(), Errno> {
        let guard = queue.lock(self.owner)?;
        guard.senders().unlink(node.line);
        // Do this under the lock, so that a rebuild does not link the node again.
        node.forget();
        Err(errno)
    }

    /// Checks permission again, for a call that has waited at `queue`.
    ///
    /// # Errors
    ///
    /// `EIDRM` if the queue is gone; the errors of `may`.
    pub(super) fn permitted_still(
        &self,
        queue: Queue<'_>,
        may: impl FnOnce(&Object) -> Result<(), Errno>,
    ) -> Result<(), Errno> {
        let object = self.msg_ids().obtain_object(queue.name.index);
        let object = object.map_err(|_| Errno::IDRM)?;
        if object.payload != queue.name.payload() {
            return Err(Errno::IDRM);
        }
        may(&object)
    }
}
