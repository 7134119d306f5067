//! A queue: its words and its lock.
//!
//! Each slot of the id table has two cache lines for a queue. The queue's lock protects:
//! - the words of these lines;
//! - the links of the queue's messages and wait nodes;
//! - the state of these messages and nodes while they belong to the queue.
//!
//! The word `LIVE` identifies the queue that occupies the slot. The queue may be removed between a
//! lookup and the lock. So each call that has taken the lock compares `LIVE` with the queue that
//! its lookup found (trap I3 in `traps.md`).

use corewalk_base::Line;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::io::Errno;

use super::message::{Message, Truth};
use super::node::{Node, Role, Wakes};
use crate::field::{get, high, low, pair, put};
use crate::handle::MsgId;
use crate::ids::{self, INDEX_BITS, Object, SLOTS_MAX};
use crate::layout::QUEUE_LINES;
use crate::list::List;
use crate::lock::{Held, Owner};
use crate::perm::Perm;
use crate::pool::Pool;
use crate::shared::Shared;

// Words of a queue's first line.
pub(super) const LOCK: usize = 0;
/// The payload of the existing queue, or 0.
pub(super) const LIVE: usize = 1;
const MESSAGES: usize = 2;
const RECEIVERS: usize = 3;
const SENDERS: usize = 4;
const CBYTES: usize = 5;
const QNUM: usize = 6;
const QBYTES: usize = 7;

// Words of its second line.
/// The last ticket of a message or node.
const TICKET: usize = 0;
/// `lspid` and `lrpid`.
const PIDS: usize = 1;
const STIME: usize = 2;
const RTIME: usize = 3;
/// The tag of the last queue of this slot.
const TAG: usize = 4;

/// The new `QBYTES` of an `IPC_SET` that is under way.
const NEXT_QBYTES: usize = 5;
/// During an `IPC_SET`: the state word before the change.
const SETTING: usize = 6;

const IS_SETTING: u64 = 1 << 63;

/// The bits of a tag: 20.
const TAG_MASK: u32 = (1 << 20) - 1;

const LINKS: usize = 1;

/// A bit that is set in every payload, so that no payload is 0.
const PAYLOAD: u64 = 1 << 63;

/// The identity of a queue: the index of its slot, and a tag that differs from the tags of earlier
/// queues in that slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct QueueName {
    pub(super) index: u32,
    pub(super) tag: u32,
}

impl QueueName {
    /// Returns the identity as 35 bits.
    #[inline]
    pub(super) fn to_bits(self) -> u64 {
        u64::from(self.index) | u64::from(self.tag) << INDEX_BITS
    }

    #[inline]
    pub(super) fn from_bits(bits: u64) -> Self {
        let index = bits as u32 & (SLOTS_MAX - 1);
        Self { index, tag: (bits >> INDEX_BITS) as u32 & TAG_MASK }
    }

    #[inline]
    pub(super) fn payload(self) -> u64 {
        PAYLOAD | u64::from(self.tag)
    }
}

/// A queue that was found by a lookup without a lock. It may have been removed since.
#[derive(Clone, Copy)]
pub(super) struct Queue<'s> {
    pub(super) shared: &'s Shared,
    pub(super) name: QueueName,
}

/// A queue whose lock the caller holds.
pub(super) struct QueueGuard<'s> {
    pub(super) queue: Queue<'s>,
    pub(super) owner: Owner,
    /// The held lock. None while the queue is being repaired or created, since the caller then
    /// holds the lock by another value.
    pub(super) _held: Option<Held<'s>>,
}

/// The answer to `IPC_STAT`.
#[doc(alias = "msqid_ds")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MsgStat {
    /// The queue's id.
    pub id: MsgId,
    /// The permissions.
    pub perm: Perm,
    /// The time of the last msgsnd(2), in seconds since 1970, or 0.
    pub stime_s: u64,
    /// The time of the last msgrcv(2), in seconds since 1970, or 0.
    pub rtime_s: u64,
    /// The time of the creation or of the last `IPC_SET`, in seconds since 1970.
    pub ctime_s: u64,
    /// The sum of the bytes of all messages in the queue.
    pub cbytes: u64,
    /// The number of messages in the queue.
    pub qnum: u64,
    /// The maximum number of bytes in the queue, and also the maximum number of its messages.
    pub qbytes: u64,
    /// The pid of the last sender, or 0.
    pub lspid: u32,
    /// The pid of the last receiver, or 0.
    pub lrpid: u32,
}

impl<'s> Queue<'s> {
    #[inline]
    pub(super) fn new(shared: &'s Shared, object: &Object) -> Self {
        let tag = object.payload as u32 & TAG_MASK;
        Self { shared, name: QueueName { index: object.index, tag } }
    }

    /// Returns a handle for whichever queue the slot has. The handle contains 0 in place of the
    /// queue's tag (version number), so use it only for functions that do not compare the tag.
    pub(super) fn of_slot(shared: &'s Shared, index: u32) -> Self {
        Self { shared, name: QueueName { index, tag: 0 } }
    }

    /// Returns the newest queue of this slot, which may have been removed.
    pub(super) fn last_of_slot(self) -> Self {
        let tag = get(&self.second()[TAG]) as u32 & TAG_MASK;
        Self { shared: self.shared, name: QueueName { index: self.name.index, tag } }
    }

    /// Creates an empty queue with a new tag in the slot. The caller holds the lock of the slot's
    /// queue.
    pub(super) fn init(self, qbytes: u64) -> Self {
        let last = self.last_of_slot().name.tag;
        let name = QueueName { tag: last.wrapping_add(1) & TAG_MASK, ..self.name };
        let queue = Self { name, ..self };
        for word in [MESSAGES, RECEIVERS, SENDERS, CBYTES, QNUM] {
            put(&queue.line()[word], 0);
        }
        for word in [TICKET, PIDS, STIME, RTIME, SETTING] {
            put(&queue.second()[word], 0);
        }
        put(&queue.second()[TAG], u64::from(name.tag));
        put(&queue.line()[QBYTES], qbytes);
        put(&queue.line()[LIVE], name.payload());
        queue
    }

    pub(super) fn is_published(self) -> bool {
        let payload = ids::payload(self.shared, self.shared.layout.msg_ids, self.name.index);
        self.live() != 0 && payload == Some(self.live())
    }

    /// Returns the payload of the queue in the slot, or 0 if there is none. Without the queue's
    /// lock, the result is a hint.
    #[inline]
    pub(super) fn live(self) -> u64 {
        get(&self.line()[LIVE])
    }

    /// Returns the newest ticket. Without the queue's lock, the result is a hint: if it changes, a
    /// message was probably sent.
    #[inline]
    pub(super) fn last_ticket(self) -> u64 {
        get(&self.second()[TICKET])
    }

    /// Returns the number of messages and their bytes. Without the queue's lock, the two may not
    /// belong together.
    pub(super) fn glimpse(self) -> (u64, u64) {
        (get(&self.line()[QNUM]), get(&self.line()[CBYTES]))
    }

    #[inline]
    pub(super) fn line(&self) -> &'s Line {
        self.shared.region.line(self.shared.layout.queues + QUEUE_LINES * self.name.index)
    }

    #[inline]
    fn second(&self) -> &'s Line {
        self.shared.region.line(self.shared.layout.queues + QUEUE_LINES * self.name.index + 1)
    }
}

impl<'s> QueueGuard<'s> {
    #[inline]
    pub(super) fn messages(&self) -> List<'s> {
        self.list(MESSAGES, self.queue.shared.layout.msgs)
    }

    pub(super) fn message(&self, line: u32) -> Message<'s> {
        Message { shared: self.queue.shared, line }
    }

    pub(super) fn node(&self, line: u32) -> Node<'s> {
        Node { shared: self.queue.shared, line }
    }

    /// Returns the list of the waiting calls that have this role.
    #[inline]
    pub(super) fn waiting(&self, role: Role) -> List<'s> {
        let ends = if role == Role::Receiver { RECEIVERS } else { SENDERS };
        self.list(ends, self.queue.shared.layout.msg_waits)
    }

    /// Returns the state of the queue for `IPC_STAT`. Its id, permissions and ctime keep default
    /// values.
    pub(super) fn numbers(&self) -> MsgStat {
        let (line, second) = (self.queue.line(), self.queue.second());
        let pids = get(&second[PIDS]);
        MsgStat {
            cbytes: get(&line[CBYTES]),
            qnum: get(&line[QNUM]),
            qbytes: get(&line[QBYTES]),
            stime_s: get(&second[STIME]),
            rtime_s: get(&second[RTIME]),
            lspid: low(pids),
            lrpid: high(pids),
            ..MsgStat::default()
        }
    }

    /// Returns a ticket larger than all before.
    #[inline]
    pub(super) fn next_ticket(&self) -> u64 {
        let ticket = &self.queue.second()[TICKET];
        let next = get(ticket).wrapping_add(1);
        put(ticket, next);
        next
    }

    pub(super) fn set_last_ticket(&self, ticket: u64) {
        put(&self.queue.second()[TICKET], ticket);
    }

    pub(super) fn set_qbytes(&self, qbytes: u64) {
        put(&self.queue.line()[QBYTES], qbytes);
    }

    /// Records an `IPC_SET` before it changes the slot: `qbytes`, and the present state word of the
    /// slot.
    ///
    /// If the caller dies, recovery compares the recorded state word with that of the slot. If they
    /// differ, recovery sets `qbytes` too. So the caller's store to the slot commits the whole
    /// `IPC_SET`.
    pub(super) fn begin_set(&self, qbytes: u64) {
        let second = self.queue.second();
        put(&second[NEXT_QBYTES], qbytes);
        // ORDERING(ipc-redo): Release. `redo_set` runs if this task dies. Without this order, it
        // could see this store but not the new `qbytes`.
        second[SETTING].store(self.setting(), Ordering::Release);
    }

    fn setting(&self) -> u64 {
        let shared = self.queue.shared;
        IS_SETTING | ids::state(shared, shared.layout.msg_ids, self.queue.name.index)
    }

    /// Completes an interrupted `IPC_SET`, if its dead task had already changed the slot. Then
    /// returns true.
    pub(super) fn redo_set(&self) -> bool {
        let second = self.queue.second();
        let setting = get(&second[SETTING]);
        let is_changed = setting & IS_SETTING != 0 && setting != self.setting();
        if is_changed {
            self.set_qbytes(get(&second[NEXT_QBYTES]));
        }
        is_changed
    }

    /// Erases the record of `begin_set`, since the whole `IPC_SET` is done.
    pub(super) fn end_set(&self) {
        // ORDERING(ipc-redo): Release. If recovery sees no record, it also sees the stored change.
        self.queue.second()[SETTING].store(0, Ordering::Release);
    }

    /// Returns true if a message of `size` bytes fits into the queue. Analogous to Linux's
    /// `msg_fits_inqueue`.
    #[inline]
    pub(super) fn fits(&self, size: usize) -> bool {
        let line = self.queue.line();
        let qbytes = get(&line[QBYTES]);
        get(&line[CBYTES]).saturating_add(size as u64) <= qbytes
            && get(&line[QNUM]).saturating_add(1) <= qbytes
    }

    /// Records pid and time of a send.
    #[inline]
    pub(super) fn note_send(&self, pid: u32, now_s: u64) {
        let second = self.queue.second();
        put(&second[PIDS], pair(pid, high(get(&second[PIDS]))));
        put(&second[STIME], now_s);
    }

    /// Records pid and time of a receive.
    #[inline]
    pub(super) fn note_receive(&self, pid: u32, now_s: u64) {
        let second = self.queue.second();
        put(&second[PIDS], pair(low(get(&second[PIDS])), pid));
        put(&second[RTIME], now_s);
    }

    /// Appends a private message.
    #[inline]
    pub(super) fn append(&self, message: Message<'s>) {
        message.set_ticket(self.next_ticket());
        message.set_truth(Truth::Queued(self.queue.name));
        self.messages().push(message.line);
        self.count_in(message);
    }

    /// Puts a message back into the queue, at the position of its ticket.
    #[cold]
    pub(super) fn put_back(&self, message: Message<'s>) {
        let mut lines: Vec<u32> = self.messages().iter().collect();
        let at = lines.partition_point(|line| self.message(*line).ticket() < message.ticket());
        lines.insert(at, message.line);
        message.set_truth(Truth::Queued(self.queue.name));
        self.messages().set(lines);
        self.count_in(message);
    }

    #[inline]
    fn count_in(&self, message: Message<'s>) {
        let size = message.size() as u64;
        self.set_counts(|cbytes, qnum| (cbytes.saturating_add(size), qnum.saturating_add(1)));
    }

    #[inline]
    pub(super) fn take(&self, message: Message<'s>, task: u32) {
        message.make_private(task);
        self.messages().unlink(message.line);
        let size = message.size() as u64;
        self.set_counts(|cbytes, qnum| (cbytes.saturating_sub(size), qnum.saturating_sub(1)));
    }

    #[inline]
    pub(super) fn set_counts(&self, next: impl FnOnce(u64, u64) -> (u64, u64)) {
        let line = self.queue.line();
        let (cbytes, qnum) = next(get(&line[CBYTES]), get(&line[QNUM]));
        put(&line[CBYTES], cbytes);
        put(&line[QNUM], qnum);
    }

    /// Tells all receivers to check the queue again, or only those senders whose messages now fit.
    /// Analogous to Linux's `expunge_all` and `ss_wakeup`.
    #[inline]
    pub(super) fn call(&self, role: Role) -> Wakes {
        if self.waiting(role).is_empty() {
            return Wakes::new();
        }
        let waiting = self.waiting(role).iter().map(|line| self.node(line));
        let ready = waiting.filter(|node| role == Role::Receiver || self.fits(node.size()));
        ready.filter(|node| node.call()).map(|node| node.line).collect()
    }

    /// Frees all messages, and ends all waits with `EIDRM`. Analogous to Linux's `freeque`.
    pub(super) fn end(&self) -> Wakes {
        let owner = self.owner;
        let lists = [Role::Receiver, Role::Sender].map(|role| self.waiting(role));
        let told: Wakes = lists.into_iter().flat_map(List::iter).collect();
        lists.iter().for_each(|list| list.set([]));
        told.iter().for_each(|line| self.node(*line).tell(Err(Errno::IDRM)));
        for message in self.messages().iter().map(|line| self.message(line)) {
            message.make_private(owner.index);
            message.free(owner);
        }
        self.messages().set([]);
        self.set_counts(|_, _| (0, 0));
        // Clear `LIVE` last. If this task dies earlier, recovery finds `LIVE` still set, and calls
        // this function again.
        put(&self.queue.line()[LIVE], 0);
        told
    }

    fn list(&self, ends: usize, members: Pool) -> List<'s> {
        let ends: &'s AtomicU64 = &self.queue.line()[ends];
        List { region: &self.queue.shared.region, ends, links: LINKS, max: members.lines }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn name_survives_its_bits() {
        for name in [QueueName { index: 32_767, tag: TAG_MASK }, QueueName { index: 0, tag: 1 }] {
            assert_eq!(QueueName::from_bits(name.to_bits()), name);
            assert!(name.to_bits() < 1 << 35 && name.payload() != 0);
        }
    }
}
