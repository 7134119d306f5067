//! The wait node of a waiting semop(2) call. The node is in shared memory. Another call stores the
//! outcome of the waiting call in it.
//!
//! A wait node contains the operations of the call, its task, and a status word on which the task
//! sleeps (`status`). A task that wakes up reads only the status of its node, since the set may be
//! gone by then.
//!
//! # Polling before a sleep
//!
//! A task may poll its status before it sleeps ([`Node::watch`]). Meanwhile the status has the bit
//! `AWAKE`. The waking task completes the call with one exchange of the status:
//! - If the old status had `AWAKE`, the polling task sees the outcome by itself.
//! - Otherwise the waking task calls futex(2). If that finds no sleeping thread, the waiting task
//!   may have died.
//!
//! # Grants without acknowledgement
//!
//! A *grant* is the completion of another task's waiting call by a call that changes a semaphore.
//! The other task acknowledges the grant by freeing its wait node. That task may have died, but the
//! granting call makes no system call to find out.
//!
//! The commit of the granting call sets `OWED` in the set's record: some grants may be
//! unacknowledged. A later call that would fail, or that reads a value, then checks whether the
//! tasks of such grants have died (`reap`). `OWED` stays set even if the granting task dies.
//!
//! # Memory
//!
//! The memory of a freed node is used only for other wait nodes. A task that has stored the status
//! reads nothing more from the node, which may be freed (trap I13 in `traps.md`). Its futex(2) call
//! may then reach the task of the next node in this memory, as a spurious wake-up.
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

// Word 0 of the first cache line is the status. Words 6 and 7 belong to the memory pool.
//
// The second cache line begins with a copy of the set's payload, which identifies the set. The
// operations of the waiting call follow, one per word.
/// The neighbours in a queue of the set.
pub(super) const SET_LINKS: usize = 1;
/// The neighbours in a queue of a semaphore.
pub(super) const SEM_LINKS: usize = 2;
/// The pid and the undo record.
const TASK: usize = 3;
/// The word with the number of operations, the index of the operation that has to wait, the bit
/// [`ALTERS`], and the logged outcome.
pub(super) const SHAPE: usize = 4;
/// The set at which the call waits, and the node's ticket (number in the order of arrival). 0 if
/// the node is in no queue.
const PLACE: usize = 5;

const ALTERS: u64 = 1 << 32;

// The outcome that a commit has logged, in `SHAPE`.
const PENDING: u64 = 1 << 33;
const PENDING_SHIFT: u32 = 48;
/// The shift of a field of `SHAPE`: the value of `set::SETTINGS` when the call was completed.
const SETTINGS_SHIFT: u32 = 34;
/// The logged outcome of a completed call that is being reverted, because its task has died or is
/// ending (`reap`).
pub(super) const TAKEN_BACK: i32 = 0xffff;

// Fields of `PLACE`: the slot and the tag of the set, and the call's ticket.
//
// A later set in the same slot may have the same tag. The set's payload (the place of its
// semaphores, and its tag) tells the two sets apart. The second cache line of the wait node
// contains a copy of the payload.
const PLACE_SET: u64 = 1;
const PLACE_TAG_SHIFT: u32 = 16;
const TICKET_SHIFT: u32 = u64::BITS - TICKET_BITS;

/// The maximum number of operations that are read from a node. Only a hostile process can have
/// written more.
const SOPS_MAX: usize = 1 << 15;

/// A copy of the operations of a node.
pub(super) type Sops = SmallVec<[SemBuf; 4]>;

/// A call to be carried out.
#[derive(Clone, Copy)]
pub(super) struct Call<'a> {
    pub(super) sops: &'a [SemBuf],
    /// The task's undo record for the set of the call, or 0 if no operation has `SEM_UNDO`.
    pub(super) undo: u32,
    pub(super) pid: u32,
}

/// Wait node of each completed call, and its errno.
pub(super) type Completed = SmallVec<[(u32, i32); 4]>;

/// The tasks that the caller must wake after it has released the set's lock: pairs of a wait node
/// and its task.
pub(crate) type Wakes = SmallVec<[(u32, u32); 4]>;

/// A waiting call.
#[derive(Clone, Copy)]
pub(super) struct Node<'s> {
    pub(super) shared: &'s Shared,
    pub(super) line: u32,
}

impl<'s> Node<'s> {
    /// Allocates a wait node and fills it with the call. `blocking` is the index of the operation
    /// that has to wait.
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

    /// Polls the status word until the call is completed or interrupted. Returns false if that has
    /// not happened by `end`.
    ///
    /// After each read the task yields the processor. The yield may return after `end`. Then the
    /// function returns false, even if the call was completed.
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
        // ORDERING(ipc-status): Relaxed. If another task stores the outcome after this change, it
        // finds `AWAKE` cleared, and wakes this task. If that task has stored the outcome earlier,
        // futex(2) finds it, and this task does not sleep.
        self.status().fetch_and(DONE_BITS | INTERRUPTED, Ordering::Relaxed);
    }

    /// Returns the word on which the task sleeps.
    pub(super) fn status(&self) -> &'s AtomicU64 {
        &self.first()[STATUS]
    }

    /// Returns an error for a call that was completed and later reverted (`reap`).
    pub(super) fn outcome(&self) -> Option<Result<(), Errno>> {
        status::outcome(status::load(self.status()))
    }

    /// Returns true if another task has completed the call successfully. The node's task may not
    /// have returned from the call yet.
    pub(super) fn is_granted(&self) -> bool {
        self.outcome() == Some(Ok(()))
    }

    /// Returns the value that futex(2) compares with the low half of the status. The task sleeps
    /// only if the two are equal. In this value, the bits that end a sleep are cleared. Other bits,
    /// which only a hostile process sets, do not prevent the sleep.
    pub(super) fn asleep(&self) -> u32 {
        low(get(self.status()) & !(DONE | INTERRUPTED))
    }

    /// Marks the call as interrupted, so that no other task completes it. Returns the call's
    /// outcome if it already has one. Used if the set's lock cannot be taken to remove the wait
    /// node.
    pub(super) fn leave(&self) -> Option<Result<(), Errno>> {
        // ORDERING(ipc-status): Acquire. As in `status::load`.
        status::outcome(self.status().fetch_or(INTERRUPTED, Ordering::Acquire))
    }

    pub(super) fn is_interrupted(&self) -> bool {
        status::load(self.status()) & INTERRUPTED != 0
    }

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

    /// Returns the word with the payload of the set at which the call waits. It is valid while the
    /// node's word `PLACE` is not 0.
    fn payload(&self) -> &'s AtomicU64 {
        &self.shared.region.line(self.line.wrapping_add(1))[0]
    }

    /// Marks the node as waiting at `set`. From now on, a rebuild of the queues finds the node, and
    /// sorts it by `ticket`, its number in the order of arrival.
    pub(super) fn begin(&self, set: Set<'_>, ticket: u64) {
        put(self.payload(), set.place.payload());
        // ORDERING(ipc-place): Release. `Node::place` loads the word with Acquire. Without this
        // order, a thread could find the node waiting, but miss its fields.
        self.first()[PLACE].store(place_of(set) | ticket << TICKET_SHIFT, Ordering::Release);
    }

    /// Marks the node as not waiting. The caller has removed the node from its queues.
    pub(super) fn end(&self) {
        // ORDERING(ipc-place): Release. `Node::place` loads the word with Acquire. Without this
        // order, a thread could read 0 before it sees that the node has left its queues.
        self.first()[PLACE].store(0, Ordering::Release);
    }

    /// Returns a number by which a rebuild sorts the nodes: the oldest node has the lowest number.
    /// `next` is the ticket that the next node will get.
    pub(super) fn turn(&self, next: u64) -> u64 {
        (self.place() >> TICKET_SHIFT).wrapping_sub(next) & TICKET_MASK
    }

    fn place(&self) -> u64 {
        // ORDERING(ipc-place): Acquire. See `begin` and `end`.
        self.first()[PLACE].load(Ordering::Acquire)
    }

    pub(super) fn pending(&self) -> Option<i32> {
        let shape = get(&self.first()[SHAPE]);
        (shape & PENDING != 0).then_some((shape >> PENDING_SHIFT) as i32)
    }

    /// Logs the outcome that a transaction is going to store for the waiting call. `None` clears
    /// the log.
    pub(super) fn set_pending(&self, pending: Option<(i32, u64)>) {
        let shape = &self.first()[SHAPE];
        let pending = pending.map_or(0, |(errno, settings)| {
            let errno = u64::from(errno.cast_unsigned() & 0xffff);
            PENDING | errno << PENDING_SHIFT | settings << SETTINGS_SHIFT
        });
        put(shape, get(shape) & !(PENDING | u64::MAX << SETTINGS_SHIFT) | pending);
    }

    /// Returns the value that `set::SETTINGS` had when the call was completed.
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

    /// Returns the operations of the call, without those on semaphores that the set does not have.
    pub(super) fn sops(&self, nsems: u32) -> Sops {
        let sops = (0..self.count()).map(|at| self.sop(at));
        sops.filter(|sop| u32::from(sop.sem_num) < nsems).collect()
    }

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

fn place_of(set: Set<'_>) -> u64 {
    PLACE_SET | u64::from(set.index) << 1 | set.place.tag << PLACE_TAG_SHIFT
}

/// Returns the wait nodes at a set, each with its task, in no particular order. Includes nodes that
/// have just stopped waiting.
pub(super) fn nodes_of<'s>(set: Set<'s>) -> impl Iterator<Item = (Node<'s>, u32)> {
    let shared = set.shared;
    let nodes = shared.layout.waits.used(&shared.region);
    let nodes = nodes.map(move |(line, task)| (Node { shared, line }, task));
    nodes.filter(move |(node, _)| node.is_at(set))
}

/// Stores the outcomes of completed calls in their wait nodes. Returns the sleeping tasks, which
/// the caller must wake. A polling task ([`Node::watch`]) needs no wake-up.
pub(super) fn tell(shared: &Shared, completed: Completed) -> Wakes {
    let tell = |(node, errno)| {
        let task = shared.layout.waits.whose(&shared.region, node).unwrap_or(u32::MAX);
        // ORDERING(ipc-status): Release. The waiting task reads the status by `status::load`.
        // Without this order, it could miss stores made for its call. It may then free its node, so
        // do not read the node any more.
        let before = shared.region.line(node)[STATUS].swap(status::done(errno), Ordering::Release);
        (before & AWAKE == 0).then_some((node, task))
    };
    completed.into_iter().filter_map(tell).collect()
}

/// Wakes the tasks. Returns those that were not asleep, and so may have died.
///
/// A task that was polling its status, and not asleep, is not in `wakes`. It may have died, too,
/// but then the bit `OWED` of the set makes a later call look for dead tasks.
pub(crate) fn wake(shared: &Shared, wakes: &[(u32, u32)]) -> Absent {
    let is_absent =
        |wake: &&(u32, u32)| futex::wake(&shared.region.line(wake.0)[STATUS], 1, shared.scope) == 0;
    wakes.iter().filter(is_absent).map(|(_, task)| *task).collect()
}
