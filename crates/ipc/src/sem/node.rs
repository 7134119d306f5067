//! A waiting call: its node in the region, and the outcome that another call stores in the node.
//!
//! The node has the operations of the call, its task, and a status word on which the task sleeps
//! (`status`). A task that wakes reads only the status of its node, since the set may be gone by
//! then.
//!
//! # Polling before a sleep
//!
//! A task may poll its status before it sleeps ([`Node::watch`]). Until then the status has the bit
//! `AWAKE`. The waker completes the call with one exchange of the status. If the old status had
//! `AWAKE`, the task sees the outcome by itself. Otherwise the waker wakes it by futex(2). If
//! futex(2) finds no sleeping thread, the task may have died. The waker does not notice the death
//! of a polling task in this way.
//!
//! # Grants without acknowledgement
//!
//! A task acknowledges the outcome of its call by freeing its node. The commit of a grant sets
//! `OWED` in the set's line, which means that grants may be unacknowledged. A call that is refused,
//! or reads a value, then first checks whether the task of such a grant has died (`reap`). So the
//! waker needs no system call to find out whether the task lives. `OWED` stays set even if the
//! waker dies.
//!
//! # Memory
//!
//! A node belongs to its task, and a freed node keeps its type. After its store of the status, the
//! waker reads nothing from the node (trap I13). So the futex(2) wake-up of the waker may reach the
//! next user of the node. That user takes it for a spurious wake-up.
//!
//! Source: Linux `ipc/sem.c` (`struct sem_queue`, `wake_up_sem_queue_prepare`).

use corewalk_base::Line;
use corewalk_base::futex::{self, Deadline};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{IS_MODEL, thread};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::SemBuf;
use super::set::{Set, TICKET_BITS, TICKET_MASK};
use crate::field::{get, high, low, pair, put};
use crate::flags::SemFlags;
use crate::ids::SLOTS_MAX;
use crate::lock::Owner;
use crate::shared::Shared;
use crate::status::{self, AWAKE, DONE, DONE_BITS, INTERRUPTED, STATUS};
use crate::task_line::Absent;

// The indices of words in the first line of a node. Word 0 is the status, and words 6 and 7 belong
// to the pool. The second line begins with the set's payload (its lines and its tag). The
// operations follow the payload, one per word.
/// The neighbours in a queue of the set.
pub(super) const SET_LINKS: usize = 1;
/// The neighbours in a queue of a semaphore.
pub(super) const SEM_LINKS: usize = 2;
/// The pid and the undo record.
const TASK: usize = 3;
/// The word with the number of operations, the index of the blocking operation, the bit [`ALTERS`],
/// and the logged outcome.
pub(super) const SHAPE: usize = 4;
/// The word with the set for which the node waits, and with the node's ticket: its place in the
/// order of arrival. The word is 0 if the node is in no queue.
const PLACE: usize = 5;

const ALTERS: u64 = 1 << 32;

// The outcome that a commit has logged, in `SHAPE`.
const PENDING: u64 = 1 << 33;
const PENDING_SHIFT: u32 = 48;
/// The lowest bit of the field in `SHAPE` with a copy of `SETTINGS`, the count of `SETVAL` and
/// `SETALL` calls on the set. A commit stores the copy. The field ends below [`PENDING_SHIFT`].
const SETTINGS_SHIFT: u32 = 34;
/// The logged outcome of a call whose grant is taken back, because its task has died or is ending;
/// see `reap`.
pub(super) const TAKEN_BACK: i32 = 0xffff;

// Fields of the word `PLACE`: slot and tag of the set, and the ticket. A removed set and its
// successor may have the same slot and tag. The set's payload in the node's second line tells them
// apart.
const PLACE_SET: u64 = 1;
const PLACE_TAG_SHIFT: u32 = 16;
const TICKET_SHIFT: u32 = u64::BITS - TICKET_BITS;

/// The largest number of operations of a wait node. A larger number was written by a hostile
/// process.
const SOPS_MAX: usize = 1 << 15;

/// A copy of the operations of a node.
pub(super) type Sops = SmallVec<[SemBuf; 4]>;

/// A call to be carried out.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) sops: &'a [SemBuf],
    /// The task's undo record for this set, or 0 if no operation has `SEM_UNDO`.
    pub(super) undo: u32,
    pub(super) pid: u32,
}

/// The waiting calls that were completed. Each has the line of its node, and the errno of its
/// outcome (0 for success).
pub(super) type Completed = SmallVec<[(u32, i32); 4]>;

/// The tasks to wake after the release of the set's lock, each as the line of its wait node and its
/// task number.
pub(crate) type Wakes = SmallVec<[(u32, u32); 4]>;

/// A waiting call.
#[derive(Clone, Copy)]
pub(super) struct Node<'s> {
    pub(super) shared: &'s Shared,
    pub(super) line: u32,
}

impl<'s> Node<'s> {
    /// Allocates a wait node for `call`. The operation with the index `blocking` is the one that
    /// has to wait.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the pool of nodes has no free lines.
    pub(super) fn alloc(
        shared: &'s Shared,
        owner: Owner,
        call: Call<'_>,
        blocking: usize,
    ) -> Result<Self, Errno> {
        let count = u32::try_from(call.sops.len()).map_err(|_| Errno::TOOBIG)?;
        let lines = 1 + (1 + count).div_ceil(8);
        let line = shared.layout.waits.alloc(shared, lines, owner, owner.index)?;
        let node = Self { shared, line };
        for (at, sop) in call.sops.iter().enumerate() {
            let [num, op, flg] = [sop.sem_num, sop.sem_op as u16, sop.sem_flg.bits() as u16];
            put(node.sop_word(at), u64::from(num) | u64::from(op) << 16 | u64::from(flg) << 32);
        }
        let first = node.first();
        put(&first[TASK], pair(call.pid, call.undo));
        let alters = if call.sops.iter().any(|sop| sop.sem_op != 0) { ALTERS } else { 0 };
        put(&first[SHAPE], u64::from(count) | (blocking as u64) << 16 | alters);
        put(&first[PLACE], 0);
        put(&first[STATUS], 0);
        Ok(node)
    }

    pub(super) fn free(self, owner: Owner) {
        self.end();
        self.shared.layout.waits.free(self.shared, self.line, owner);
    }

    /// Polls until the call is completed, at most until `end`. Returns true if polling was useful.
    ///
    /// Polling yields the processor after each read of the status, for example to the task that
    /// will complete the call. If an unrelated thread gets the processor instead, the yield returns
    /// after `end`. Then polling was not useful, even if the call was completed.
    pub(super) fn watch(&self, end: Deadline) -> bool {
        let mut is_late = IS_MODEL;
        // ORDERING: Relaxed. Only a guess: `outcome` reads the status again.
        while self.status().load(Ordering::Relaxed) & (DONE | INTERRUPTED) == 0 {
            if is_late {
                self.stop_watching();
                return false;
            }
            thread::yield_now();
            is_late = futex::now() >= end;
        }
        !is_late
    }

    /// Clears `AWAKE`, since the task is about to sleep.
    pub(super) fn stop_watching(&self) {
        // ORDERING(ipc-status): Relaxed. A later waker sees that it has to wake the task. An
        // earlier waker has changed the word, so the futex call does not sleep.
        self.status().fetch_and(DONE_BITS | INTERRUPTED, Ordering::Relaxed);
    }

    /// Returns the word on which the task sleeps.
    pub(super) fn status(&self) -> &'s AtomicU64 {
        &self.first()[STATUS]
    }

    /// Returns the outcome of the call, or none if it still waits. If its grant was taken back, the
    /// outcome is an error.
    pub(super) fn outcome(&self) -> Option<Result<(), Errno>> {
        status::outcome(status::load(self.status()))
    }

    /// Returns true if the call was granted, even if its task has not returned yet.
    pub(super) fn is_granted(&self) -> bool {
        self.outcome() == Some(Ok(()))
    }

    /// Returns the low half of the status word without the bits that end a sleep: the value to
    /// compare in futex(2). The task then sleeps even if a hostile process has set other bits.
    pub(super) fn asleep(&self) -> u32 {
        low(get(self.status()) & !(DONE | INTERRUPTED))
    }

    /// Marks a wait as interrupted, so that no task grants its call. The node stays in its queues,
    /// because the set's lock could not be taken. Returns the outcome of the call if it has one
    /// already.
    pub(super) fn leave(&self) -> Option<Result<(), Errno>> {
        // ORDERING(ipc-status): Acquire. As in `status::load`.
        status::outcome(self.status().fetch_or(INTERRUPTED, Ordering::Acquire))
    }

    pub(super) fn is_interrupted(&self) -> bool {
        status::load(self.status()) & INTERRUPTED != 0
    }

    /// Returns the set for which the node waits, if it still exists.
    pub(super) fn awaited(&self) -> Option<Set<'s>> {
        let place = self.place();
        let slot = (place >> 1) as u32 & (SLOTS_MAX - 1);
        let is_in_range = place != 0 && slot < self.shared.layout.sem_ids.slots;
        let set = is_in_range.then(|| Set::at(self.shared, slot))?;
        set.filter(|set| self.is_at(*set))
    }

    fn is_at(&self, set: Set<'_>) -> bool {
        let is_place = self.place() & ((1 << TICKET_SHIFT) - 1) == place_of(set);
        is_place && get(self.payload()) == set.place.payload()
    }

    /// Returns the word with the payload of the set. The word is valid while `PLACE` is not 0.
    fn payload(&self) -> &'s AtomicU64 {
        &self.shared.region.line(self.line.wrapping_add(1))[0]
    }

    /// Makes the node wait for a set. From now on `queue::rebuild` finds the node, and sorts it by
    /// `ticket`.
    pub(super) fn begin(&self, set: Set<'_>, ticket: u64) {
        put(self.payload(), set.place.payload());
        // ORDERING(ipc-place): Release. Pairs with `Node::place`: a thread that finds the node
        // waiting sees all fields of the node.
        self.first()[PLACE].store(place_of(set) | ticket << TICKET_SHIFT, Ordering::Release);
    }

    /// Records that the node's call has stopped waiting. The caller has removed the node from its
    /// queues.
    pub(super) fn end(&self) {
        // ORDERING(ipc-place): Release. Pairs with `Node::place`: a thread that reads 0 sees the
        // node in no queue.
        self.first()[PLACE].store(0, Ordering::Release);
    }

    /// Returns the node's position in the order of arrival. `next` is the ticket of the next
    /// waiting call. The oldest node has the lowest position.
    pub(super) fn turn(&self, next: u64) -> u64 {
        (self.place() >> TICKET_SHIFT).wrapping_sub(next) & TICKET_MASK
    }

    fn place(&self) -> u64 {
        // ORDERING(ipc-place): Acquire. See `begin` and `end`.
        self.first()[PLACE].load(Ordering::Acquire)
    }

    /// Returns the outcome that a commit has logged in the node, if there is one.
    pub(super) fn pending(&self) -> Option<i32> {
        let shape = get(&self.first()[SHAPE]);
        (shape & PENDING != 0).then_some((shape >> PENDING_SHIFT) as i32)
    }

    /// Logs in the node the outcome that a transaction gives its call, with the count `SETTINGS` of
    /// the set. If the outcome is none, clears the log.
    pub(super) fn set_pending(&self, pending: Option<(i32, u64)>) {
        let shape = &self.first()[SHAPE];
        let pending = pending.map_or(0, |(errno, settings)| {
            let errno = u64::from(errno.cast_unsigned() & 0xffff);
            PENDING | errno << PENDING_SHIFT | settings << SETTINGS_SHIFT
        });
        put(shape, get(shape) & !(PENDING | u64::MAX << SETTINGS_SHIFT) | pending);
    }

    /// Returns the count `SETTINGS` of the set at the time when the call was completed.
    pub(super) fn settings(&self) -> u64 {
        (get(&self.first()[SHAPE]) & !(u64::MAX << PENDING_SHIFT)) >> SETTINGS_SHIFT
    }

    /// Returns the call of the node.
    pub(super) fn call<'a>(&self, sops: &'a [SemBuf]) -> Call<'a> {
        let task = get(&self.first()[TASK]);
        Call { sops, pid: low(task), undo: high(task) }
    }

    pub(super) fn first(&self) -> &'s Line {
        self.shared.region.line(self.line)
    }

    fn sop_word(&self, at: usize) -> &'s AtomicU64 {
        let at = at + 1;
        &self.shared.region.line(self.line.wrapping_add(1 + at as u32 / 8))[at % 8]
    }

    fn count(&self) -> usize {
        (get(&self.first()[SHAPE]) as usize & 0xffff).min(SOPS_MAX)
    }

    pub(super) fn is_complex(&self) -> bool {
        self.count() != 1
    }

    pub(super) fn is_alter(&self) -> bool {
        get(&self.first()[SHAPE]) & ALTERS != 0
    }

    pub(super) fn sop(&self, at: usize) -> SemBuf {
        let word = get(self.sop_word(at));
        let flags = SemFlags::from_bits_retain((word >> 32) as u16 as i16);
        SemBuf::new(word as u16, (word >> 16) as u16 as i16, flags)
    }

    /// Copies the operations, except those on semaphores that the set does not have.
    pub(super) fn sops(&self, nsems: u32) -> Sops {
        let sops = (0..self.count()).map(|at| self.sop(at));
        sops.filter(|sop| u32::from(sop.sem_num) < nsems).collect()
    }

    /// Returns true if all operations of the node are on semaphores with numbers below `nsems`. A
    /// hostile process may have written larger numbers.
    pub(super) fn is_within(&self, nsems: u32) -> bool {
        (0..self.count()).all(|at| u32::from(self.sop(at).sem_num) < nsems)
    }

    pub(super) fn blocking(&self) -> SemBuf {
        self.sop((get(&self.first()[SHAPE]) >> 16 & 0xffff) as usize % SOPS_MAX)
    }

    pub(super) fn set_blocking(&self, at: usize) {
        let shape = &self.first()[SHAPE];
        put(shape, get(shape) & !0xffff_0000 | (at as u64) << 16);
    }
}

/// Returns the word `PLACE` of nodes that wait for `set`, without the ticket.
fn place_of(set: Set<'_>) -> u64 {
    PLACE_SET | u64::from(set.index) << 1 | set.place.tag << PLACE_TAG_SHIFT
}

/// Returns the nodes that wait for a set, or have just stopped waiting, with their tasks, in no
/// particular order.
pub(super) fn nodes_of<'s>(set: Set<'s>) -> impl Iterator<Item = (Node<'s>, u32)> {
    let shared = set.shared;
    let nodes = shared.layout.waits.used(&shared.region);
    let nodes = nodes.map(move |(line, task)| (Node { shared, line }, task));
    nodes.filter(move |(node, _)| node.is_at(set))
}

/// Stores the outcomes of completed calls in their nodes. From then on the tasks may return from
/// their calls. Returns the sleeping tasks, which the caller must wake. A polling task
/// ([`Node::watch`]) needs no wake-up.
pub(super) fn tell(shared: &Shared, completed: Completed) -> Wakes {
    let tell = |(node, errno)| {
        let task = shared.layout.waits.whose(&shared.region, node).unwrap_or(u32::MAX);
        // ORDERING(ipc-status): Release. Pairs with `status::load`: the task sees the work for its
        // call. After this store the task may free its node, so the node is not read any more (trap
        // I13).
        let before = shared.region.line(node)[STATUS].swap(status::done(errno), Ordering::Release);
        (before & AWAKE == 0).then_some((node, task))
    };
    completed.into_iter().filter_map(tell).collect()
}

/// Wakes the tasks of completed calls. The caller holds no lock. Returns the tasks that may have
/// died.
///
/// A polling task sees the outcome without a wake-up. If a polling task has died, a later call
/// finds that out because of `OWED`: a call that is refused, reads a value, or waits.
pub(crate) fn wake(shared: &Shared, wakes: &[(u32, u32)]) -> Absent {
    let is_absent =
        |wake: &&(u32, u32)| futex::wake(&shared.region.line(wake.0)[STATUS], 1, shared.scope) == 0;
    wakes.iter().filter(is_absent).map(|(_, task)| *task).collect()
}
