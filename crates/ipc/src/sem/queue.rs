//! The queues of waiting calls, and the order in which calls are completed.
//!
//! A call that has to wait leaves a *node* in the region: its operations, its task, and a status
//! word on which the task sleeps. A call that changes a semaphore also carries out the waiting
//! calls that have become possible, in the same transaction (`txn`). Then it wakes their tasks. A
//! task that wakes reads only the status of its node, since the set may be gone.
//!
//! # Rules, as in Linux
//!
//! - Waiting calls are tried in the order of their arrival, without those that a signal has
//!   interrupted. A new call that is possible does not queue behind them.
//! - A single decrement is in the queue of its semaphore and in the queue of the set. While a call
//!   of several operations waits, a change scans the queue of the set. Otherwise it scans the queue
//!   of the semaphore.
//! - Waits for zero are tried first, calls of one operation before calls of several.
//! - `GETNCNT` and `GETZCNT` count a call at the operation that blocked it at the last try.
//!
//! # Spinning before a sleep
//!
//! A task may spin on its status before it sleeps ([`Node::watch`]). Until then `AWAKE` is set in
//! the status. The waker completes the call with one exchange of the status. If that returns
//! `AWAKE`, the task sees the outcome by itself. Otherwise the waker wakes it. If no thread sleeps
//! there, the task may have died. The death of a spinning task is not noticed in this way.
//!
//! # Grants without acknowledgement
//!
//! A task acknowledges the outcome of its call by freeing its node. The commit of a grant sets
//! `OWED` in the set's line: granted calls may be unacknowledged. A call that is refused, or reads
//! a value, then first checks whether a task of such a call has died (`reap`). This needs no system
//! call of the waker, and it works even if the waker dies.
//!
//! # Memory
//!
//! A freed node keeps its type. After its store of the status, the waker reads nothing from the
//! node (trap I13). So a wake-up may reach the next user of the node, as a spurious wake-up.
//!
//! Source: Linux `ipc/sem.c` (`do_smart_update`, `update_queue`, `wake_const_ops`, `count_semcnt`).

use corewalk_base::futex::{self, Deadline};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{IS_MODEL, thread};
use corewalk_base::{Line, Region};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::SemBuf;
use super::set::{
    ALTER_LIST, COMPLEX_COUNT, CONST_LIST, SEM_ALTER_LIST, SEM_CONST_LIST, Set, SetGuard, TICKET,
    TICKET_BITS, TICKET_MASK,
};
use super::txn::{Call, Txn, Verdict};
use super::word::{ALTER, COMPLEX, ZERO};
use crate::field::{errno_of, get, high, low, pair, put};
use crate::flags::SemFlags;
use crate::ids::SLOTS_MAX;
use crate::lock::Owner;
use crate::namespace::Shared;

// Words of a node's first line. Words 6 and 7 belong to the pool. The next line begins with the
// payload of the set. The operations follow it, one per word.
/// 0 while the call waits, or [`DONE`] with an errno, or [`INTERRUPTED`].
pub(crate) const STATUS: usize = 0;
/// The neighbours in a queue of the set.
const SET_LINKS: usize = 1;
/// The neighbours in a queue of a semaphore.
const SEM_LINKS: usize = 2;
/// The pid and the undo record.
const TASK: usize = 3;
/// The number of operations, the index of the blocking one, [`ALTERS`], the logged outcome.
const SHAPE: usize = 4;
/// The set for which the node waits, and its ticket. 0 if the node is in no queue.
const PLACE: usize = 5;

const DONE: u64 = 1;
const ERRNO_SHIFT: u32 = 8;
/// The bits of [`DONE`] and the errno.
const DONE_BITS: u64 = DONE | 0xffff << ERRNO_SHIFT;
/// Asks a waiting task to give up with `EINTR`.
pub(crate) const INTERRUPTED: u64 = 1 << 31;
/// The task spins and does not sleep yet. See [`Node::watch`].
const AWAKE: u64 = 1 << 30;

const ALTERS: u64 = 1 << 32;

// The outcome that a commit has logged, in `SHAPE`.
const PENDING: u64 = 1 << 33;
const PENDING_SHIFT: u32 = 48;
/// The bits between them hold [`SetGuard::settings`] after that commit.
const SETTINGS_SHIFT: u32 = 34;
/// The outcome of a grant that is taken back, see `reap`.
const TAKEN_BACK: i32 = 0xffff;

// Fields of `PLACE`. The payload tells sets with the same slot and tag apart.
const PLACE_SET: u64 = 1;
const PLACE_TAG_SHIFT: u32 = 16;
const TICKET_SHIFT: u32 = u64::BITS - TICKET_BITS;

/// The largest number of operations of a node, also if a hostile task writes more.
const SOPS_MAX: usize = 1 << 15;

/// A copy of the operations of a node.
pub(super) type Sops = SmallVec<[SemBuf; 4]>;

/// The tasks to wake after the lock is released.
pub(crate) type Wakes = SmallVec<[Wake; 4]>;

/// A completed call and its task.
#[derive(Clone, Copy)]
pub(crate) struct Wake {
    node: u32,
    task: u32,
    /// The task was spinning, not sleeping ([`Node::watch`]).
    was_awake: bool,
}

/// Tasks that neither slept nor spun when they were woken. They may have died.
pub(crate) type Absent = SmallVec<[u32; 4]>;

/// Returns true if the call of a node is neither completed nor asked to give up, nor, on a message
/// queue, asked to try again. Its task spins or sleeps.
pub(crate) fn is_waiting(status: &AtomicU64) -> bool {
    status_of(status) as u32 & !(AWAKE as u32) == 0
}

fn status_of(status: &AtomicU64) -> u64 {
    // ORDERING(ipc-status): Acquire. Work of the waker happens before the task goes on.
    status.load(Ordering::Acquire)
}

/// A waiting call.
#[derive(Clone, Copy)]
pub(super) struct Node<'s> {
    shared: &'s Shared,
    pub(super) line: u32,
}

impl<'s> Node<'s> {
    /// Returns a node for `call`, which operation `blocking` blocks.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if the pool of nodes has no free lines.
    pub(super) fn alloc(
        shared: &'s Shared,
        call: Call<'_>,
        blocking: usize,
        (owner, is_watched): (Owner, bool),
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
        put(&first[STATUS], if is_watched { AWAKE } else { 0 });
        Ok(node)
    }

    pub(super) fn free(self, owner: Owner) {
        // ORDERING(ipc-place): Release. The node waits for no set before it is free.
        self.first()[PLACE].store(0, Ordering::Release);
        self.shared.layout.waits.free(self.shared, self.line, owner);
    }

    /// Spins until the call is completed, at most until `end`. Returns true if spinning was of use.
    ///
    /// Each round yields the processor, for example to the task that will complete the call. If an
    /// unrelated thread got the processor instead, the yield returns late. Then spinning was of no
    /// use, whatever the outcome.
    pub(super) fn watch(&self, end: Deadline) -> bool {
        let mut is_late = IS_MODEL;
        // ORDERING: Relaxed. A guess; `outcome` reads the status again.
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

    /// Notes that the task is about to sleep.
    pub(super) fn stop_watching(&self) {
        // ORDERING(ipc-status): Relaxed. A later waker sees that it has to wake the task. An
        // earlier one has changed the word, and the sleep compares the word.
        self.status().fetch_and(DONE_BITS | INTERRUPTED, Ordering::Relaxed);
    }

    /// Returns the word that the task sleeps on.
    pub(super) fn status(&self) -> &'s AtomicU64 {
        &self.first()[STATUS]
    }

    /// Returns the outcome of the call, or none if it still waits. A grant taken back is an error.
    pub(super) fn outcome(&self) -> Option<Result<(), Errno>> {
        let status = status_of(self.status());
        let errno = (status >> ERRNO_SHIFT & 0xffff) as i32;
        (status & DONE != 0).then(|| if errno == 0 { Ok(()) } else { Err(errno_of(errno)) })
    }

    /// Returns true if the call was granted, also if its task has not returned yet.
    pub(super) fn is_granted(&self) -> bool {
        self.outcome() == Some(Ok(()))
    }

    /// Returns the low half of the status without the bits that end a sleep.
    pub(super) fn asleep(&self) -> u32 {
        low(get(self.status()) & !(DONE | INTERRUPTED))
    }

    pub(super) fn is_interrupted(&self) -> bool {
        status_of(self.status()) & INTERRUPTED != 0
    }

    /// Returns the node at a line, without a check of its content.
    pub(super) fn at(shared: &'s Shared, line: u32) -> Self {
        Self { shared, line }
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

    /// Returns the word with the payload of the set. It is valid while `PLACE` is not 0.
    fn payload(&self) -> &'s AtomicU64 {
        &self.shared.region.line(self.line.wrapping_add(1))[0]
    }

    /// Returns the node's position in the order of tickets, if `next` is the ticket of the next
    /// waiting call. The oldest node has the lowest position.
    pub(super) fn turn(&self, next: u64) -> u64 {
        (self.place() >> TICKET_SHIFT).wrapping_sub(next) & TICKET_MASK
    }

    fn place(&self) -> u64 {
        // ORDERING(ipc-place): Acquire. See `enqueue` and `free`.
        self.first()[PLACE].load(Ordering::Acquire)
    }

    /// Returns the outcome that a commit has logged.
    pub(super) fn pending(&self) -> Option<i32> {
        let shape = get(&self.first()[SHAPE]);
        (shape & PENDING != 0).then_some((shape >> PENDING_SHIFT) as i32)
    }

    /// Logs the outcome of a commit and its [`SetGuard::settings`], or clears the log.
    pub(super) fn set_pending(&self, pending: Option<(i32, u64)>) {
        let shape = &self.first()[SHAPE];
        let pending = pending.map_or(0, |(errno, settings)| {
            let errno = u64::from(errno.cast_unsigned() & 0xffff);
            PENDING | errno << PENDING_SHIFT | settings << SETTINGS_SHIFT
        });
        put(shape, get(shape) & !(PENDING | u64::MAX << SETTINGS_SHIFT) | pending);
    }

    /// Returns [`SetGuard::settings`] from the time when the call was completed.
    pub(super) fn settings(&self) -> u64 {
        (get(&self.first()[SHAPE]) & !(u64::MAX << PENDING_SHIFT)) >> SETTINGS_SHIFT
    }

    /// Returns true if a grant of a dead task was taken back, or is about to be.
    pub(super) fn is_taken_back(&self) -> bool {
        self.pending() == Some(TAKEN_BACK)
    }

    /// Returns the call of the node.
    pub(super) fn call<'a>(&self, sops: &'a [SemBuf]) -> Call<'a> {
        let task = get(&self.first()[TASK]);
        Call { sops, pid: low(task), undo: high(task) }
    }

    fn first(&self) -> &'s Line {
        self.shared.region.line(self.line)
    }

    fn sop_word(&self, at: usize) -> &'s AtomicU64 {
        let at = at + 1;
        &self.shared.region.line(self.line.wrapping_add(1 + at as u32 / 8))[at % 8]
    }

    fn count(&self) -> usize {
        (get(&self.first()[SHAPE]) as usize & 0xffff).min(SOPS_MAX)
    }

    fn is_complex(&self) -> bool {
        self.count() != 1
    }

    fn is_alter(&self) -> bool {
        get(&self.first()[SHAPE]) & ALTERS != 0
    }

    fn sop(&self, at: usize) -> SemBuf {
        let word = get(self.sop_word(at));
        let flags = SemFlags::from_bits_retain((word >> 32) as u16 as i16);
        SemBuf::new(word as u16, (word >> 16) as u16 as i16, flags)
    }

    /// Copies the operations, without those on semaphores that the set does not have.
    pub(super) fn sops(&self, nsems: u32) -> Sops {
        let sops = (0..self.count()).map(|at| self.sop(at));
        sops.filter(|sop| u32::from(sop.sem_num) < nsems).collect()
    }

    /// Returns true if all its operations are on one of `nsems` semaphores.
    pub(super) fn is_within(&self, nsems: u32) -> bool {
        (0..self.count()).all(|at| u32::from(self.sop(at).sem_num) < nsems)
    }

    fn blocking(&self) -> SemBuf {
        self.sop((get(&self.first()[SHAPE]) >> 16 & 0xffff) as usize % SOPS_MAX)
    }

    fn set_blocking(&self, at: usize) {
        let shape = &self.first()[SHAPE];
        put(shape, get(shape) & !0xffff_0000 | (at as u64) << 16);
    }
}

/// A queue: the word with its ends, and the word of a node with its links.
#[derive(Clone, Copy)]
struct Queue<'s> {
    region: &'s Region,
    ends: &'s AtomicU64,
    links: usize,
    /// The semaphore, if the queue belongs to one.
    of: Option<u16>,
    /// The number of lines for nodes. It limits each walk: a hostile task may make a ring.
    max: u32,
}

impl<'s> Queue<'s> {
    fn of_set(set: Set<'s>, list: usize) -> Self {
        let (region, max) = (&set.shared.region, set.shared.layout.waits.lines);
        Self { region, ends: &set.line()[list], links: SET_LINKS, of: None, max }
    }

    fn of_sem(set: Set<'s>, num: u16, list: usize) -> Self {
        let (region, max) = (&set.shared.region, set.shared.layout.waits.lines);
        Self { region, ends: &set.sem(num)[list], links: SEM_LINKS, of: Some(num), max }
    }

    fn links(&self, node: u32) -> &'s AtomicU64 {
        &self.region.line(node)[self.links]
    }

    fn first(&self) -> Option<u32> {
        Some(low(get(self.ends))).filter(|node| *node != 0)
    }

    fn next(&self, node: u32) -> Option<u32> {
        Some(high(get(self.links(node)))).filter(|next| *next != 0)
    }

    fn push(&self, node: u32) {
        let (first, last) = (low(get(self.ends)), high(get(self.ends)));
        put(self.links(node), pair(last, 0));
        if last == 0 {
            put(self.ends, pair(node, node));
        } else {
            let before = self.links(last);
            put(before, pair(low(get(before)), node));
            put(self.ends, pair(first, node));
        }
    }

    fn unlink(&self, node: u32) {
        let links = get(self.links(node));
        let (before, after) = (low(links), high(links));
        let (mut first, mut last) = (low(get(self.ends)), high(get(self.ends)));
        if before == 0 {
            first = after;
        } else {
            let links = self.links(before);
            put(links, pair(low(get(links)), after));
        }
        if after == 0 {
            last = before;
        } else {
            let links = self.links(after);
            put(links, pair(before, high(get(links))));
        }
        put(self.ends, pair(first, last));
    }

    /// Returns the nodes in order, at most `max`.
    fn nodes(self) -> impl Iterator<Item = u32> {
        let walk = std::iter::successors(self.first(), move |node| self.next(*node));
        walk.take(self.max as usize)
    }
}

/// Puts a node at the end of its queues, as part of `txn`, which has tried its call.
pub(super) fn enqueue(txn: &mut Txn<'_, '_>, node: Node<'_>, sops: &[SemBuf]) -> Result<(), Errno> {
    for sop in sops {
        txn.set_waiters(sop.sem_num, bit_of(sops, *sop))?;
    }
    let guard = txn.guard();
    let ticket = get(guard.field(TICKET));
    put(guard.field(TICKET), ticket & !TICKET_MASK | ticket.wrapping_add(1) & TICKET_MASK);
    let place = place_of(guard.set) | (ticket & TICKET_MASK) << TICKET_SHIFT;
    put(node.payload(), guard.set.place.payload());
    // ORDERING(ipc-place): Release. The node is complete before it waits.
    node.first()[PLACE].store(place, Ordering::Release);
    link(guard, node);
    Ok(())
}

/// Returns the bit by which the word announces that a call with these operations waits.
pub(super) fn bit_of(sops: &[SemBuf], sop: SemBuf) -> u64 {
    match (sops.len(), sop.sem_op) {
        (1, 0) => ZERO,
        (1, _) => ALTER,
        _ => COMPLEX,
    }
}

/// Returns `PLACE` of the nodes that wait for a set, without their tickets.
fn place_of(set: Set<'_>) -> u64 {
    PLACE_SET | u64::from(set.index) << 1 | set.place.tag << PLACE_TAG_SHIFT
}

/// Puts a node at the end of its queues.
pub(super) fn link(guard: &SetGuard<'_>, node: Node<'_>) {
    let set = guard.set;
    if node.is_complex() {
        let count = guard.field(COMPLEX_COUNT);
        put(count, get(count).wrapping_add(1));
    } else {
        let sop = node.sop(0);
        let list = if sop.sem_op == 0 { SEM_CONST_LIST } else { SEM_ALTER_LIST };
        Queue::of_sem(set, sop.sem_num, list).push(node.line);
    }
    if node.is_alter() {
        Queue::of_set(set, ALTER_LIST).push(node.line);
    } else if node.is_complex() {
        Queue::of_set(set, CONST_LIST).push(node.line);
    }
}

/// Returns the nodes that wait for a set, or have just stopped, and their tasks, in no order.
pub(super) fn nodes_of<'s>(set: Set<'s>) -> impl Iterator<Item = (Node<'s>, u32)> {
    let shared = set.shared;
    let nodes = shared.layout.waits.used(&shared.region);
    let nodes = nodes.map(move |(line, task)| (Node { shared, line }, task));
    nodes.filter(move |(node, _)| node.is_at(set))
}

/// Empties the queues of a set.
pub(super) fn clear(guard: &SetGuard<'_>) {
    let set = guard.set;
    [ALTER_LIST, CONST_LIST, COMPLEX_COUNT].into_iter().for_each(|list| put(guard.field(list), 0));
    for num in 0..set.place.nsems as u16 {
        let line = set.sem(num);
        for list in [SEM_ALTER_LIST, SEM_CONST_LIST] {
            if get(&line[list]) != 0 {
                put(&line[list], 0);
            }
        }
    }
}

/// Ends the wait of a node that is not completed.
pub(super) fn withdraw(guard: &SetGuard<'_>, node: Node<'_>) {
    dequeue(guard, node);
    // ORDERING(ipc-place): Release. The node is in no queue before `PLACE` is 0.
    node.first()[PLACE].store(0, Ordering::Release);
}

/// Takes a node out of its queues.
fn dequeue(guard: &SetGuard<'_>, node: Node<'_>) {
    let set = guard.set;
    if node.is_alter() {
        Queue::of_set(set, ALTER_LIST).unlink(node.line);
    } else if node.is_complex() {
        Queue::of_set(set, CONST_LIST).unlink(node.line);
    }
    if node.is_complex() {
        let count = guard.field(COMPLEX_COUNT);
        put(count, get(count).saturating_sub(1));
    } else {
        let sop = node.sop(0);
        let list = if node.is_alter() { SEM_ALTER_LIST } else { SEM_CONST_LIST };
        Queue::of_sem(set, sop.sem_num, list).unlink(node.line);
    }
}

/// The semaphores that a change concerns.
#[derive(Clone, Copy)]
pub(super) enum Changed<'a> {
    /// Those of the call's operations.
    By(&'a [SemBuf]),
    /// These. The change is not an operation of semop(2).
    Nums(&'a [u16]),
}

/// Completed calls and their outcomes.
#[derive(Default)]
pub(super) struct Completed {
    nodes: SmallVec<[(u32, i32); 4]>,
}

impl Completed {
    /// Returns true if a call was carried out.
    pub(super) fn is_any(&self) -> bool {
        self.nodes.iter().any(|(_, errno)| *errno == 0)
    }

    /// Returns true if the list has the node `last`, its last entry, twice.
    fn has_twice(&self, last: u32) -> bool {
        let before = self.nodes.len().saturating_sub(1);
        self.nodes[..before].iter().any(|(node, _)| *node == last)
    }

    pub(super) fn is_empty(&self) -> bool {
        self.nodes.is_empty()
    }

    /// Adds a node and the outcome of its call.
    pub(super) fn push(&mut self, node: Node<'_>, errno: i32) {
        self.nodes.push((node.line, errno));
    }

    /// Adds a node whose grant is taken back. Its task has died, or its call failed with `EIO`.
    pub(super) fn push_taken_back(&mut self, node: Node<'_>) {
        self.push(node, TAKEN_BACK);
    }

    /// Logs in the nodes the outcomes that `tell` will store.
    pub(super) fn log(&self, shared: &Shared, settings: u64) {
        for (line, errno) in &self.nodes {
            Node { shared, line: *line }.set_pending(Some((*errno, settings)));
        }
    }

    /// Stores the outcomes. From then on the tasks may go on. Returns the tasks to wake.
    pub(super) fn tell(self, shared: &Shared) -> Wakes {
        let pool = shared.layout.waits;
        let tell = |(node, errno): (u32, i32)| {
            let task = pool.whose(&shared.region, node).unwrap_or(u32::MAX);
            let status = DONE | u64::from(errno.cast_unsigned()) << ERRNO_SHIFT;
            // ORDERING(ipc-status): Release. Work for the call happens before its task goes on. The
            // node is not read after this (trap I13).
            let before = shared.region.line(node)[STATUS].swap(status, Ordering::Release);
            Wake { node, task, was_awake: before & AWAKE != 0 }
        };
        self.nodes.into_iter().map(tell).collect()
    }
}

/// Wakes the tasks of completed calls. The caller holds no lock. Returns tasks that may have died.
///
/// A spinning task sees its status without a wake. If it has died meanwhile, a later call that is
/// refused, reads a value or waits finds out (`OWED`).
pub(crate) fn wake(shared: &Shared, wakes: &[Wake]) -> Absent {
    let asleep = wakes.iter().filter(|wake| !wake.was_awake);
    let is_absent =
        |wake: &&Wake| futex::wake(&shared.region.line(wake.node)[STATUS], 1, shared.scope) == 0;
    asleep.filter(is_absent).map(|wake| wake.task).collect()
}

#[cfg(all(test, corewalk_loom))]
impl Wake {
    /// Returns true if the task has to be woken.
    pub(super) fn is_asleep(self) -> bool {
        !self.was_awake
    }
}

/// Carries out the waiting calls that `txn` has made possible.
///
/// # Errors
///
/// `EIO` if another task does not thaw a semaphore. The caller must not commit then.
#[doc(alias = "do_smart_update")]
pub(super) fn update(txn: &mut Txn<'_, '_>, changed: Changed<'_>) -> Result<Completed, Errno> {
    let updated = update_all(txn, changed);
    if updated.is_err() {
        // Nodes that have left their queues still wait. So link all nodes again.
        super::recover::rebuild_queues(txn.guard());
    }
    updated
}

fn update_all(txn: &mut Txn<'_, '_>, changed: Changed<'_>) -> Result<Completed, Errno> {
    let mut completed = Completed::default();
    update_zero(txn, changed, &mut completed)?;
    let set = txn.set();
    if get(txn.guard().field(COMPLEX_COUNT)) != 0 {
        scan(txn, Queue::of_set(set, ALTER_LIST), &mut completed)?;
        return Ok(completed);
    }
    let mut scan_sem = |num| scan(txn, Queue::of_sem(set, num, SEM_ALTER_LIST), &mut completed);
    match changed {
        // Only an increment can make a decrement possible.
        Changed::By(sops) => {
            let mut added = sops.iter().filter(|sop| sop.sem_op > 0);
            added.try_for_each(|sop| scan_sem(sop.sem_num))?;
        }
        Changed::Nums(nums) => nums.iter().try_for_each(|num| scan_sem(*num))?,
    }
    Ok(completed)
}

/// Carries out waits for zero.
#[doc(alias = "do_smart_wakeup_zero")]
fn update_zero(
    txn: &mut Txn<'_, '_>,
    changed: Changed<'_>,
    completed: &mut Completed,
) -> Result<(), Errno> {
    let set = txn.set();
    let mut has_zero = false;
    let mut check = |txn: &mut Txn<'_, '_>, num: u16| -> Result<(), Errno> {
        if txn.value(num)? == 0 {
            has_zero = true;
            scan_const(txn, Queue::of_sem(set, num, SEM_CONST_LIST), completed)?;
        }
        Ok(())
    };
    match changed {
        Changed::By(sops) => sops.iter().try_for_each(|sop| check(txn, sop.sem_num))?,
        Changed::Nums(nums) => nums.iter().try_for_each(|num| check(txn, *num))?,
    }
    let list = Queue::of_set(set, CONST_LIST);
    // If a semaphore is zero, try these calls again, so that `GETZCNT` counts them correctly.
    if has_zero || (matches!(changed, Changed::Nums(_)) && list.first().is_some() && any_zero(txn))
    {
        scan_const(txn, list, completed)?;
    }
    Ok(())
}

/// Returns true if a semaphore of the set is zero. It may change meanwhile, unless it is frozen.
fn any_zero(txn: &Txn<'_, '_>) -> bool {
    (0..txn.set().place.nsems as u16).any(|num| txn.peek(num) == Some(0))
}

#[doc(alias = "wake_const_ops")]
fn scan_const(
    txn: &mut Txn<'_, '_>,
    queue: Queue<'_>,
    completed: &mut Completed,
) -> Result<(), Errno> {
    let mut next = queue.first();
    for _ in 0..queue.max {
        let Some(line) = next else { break };
        // Read before the node leaves the queue.
        next = queue.next(line);
        let node = Node { shared: txn.set().shared, line };
        if look_at(txn, node, completed) == Looked::Waits {
            continue;
        }
        if completed.has_twice(line) {
            break; // The walk met this node before, so the queue is a ring.
        }
        dequeue(txn.guard(), node);
    }
    Ok(())
}

/// Carries out the waiting calls of a queue in order, until none is possible. No single decrement
/// is possible once its semaphore is 0. So the walk ends there (trap X7).
#[doc(alias = "update_queue")]
fn scan(txn: &mut Txn<'_, '_>, queue: Queue<'_>, completed: &mut Completed) -> Result<(), Errno> {
    let mut next = queue.first();
    let mut left = queue.max;
    while let Some(line) = next {
        if left == 0 || queue.of.map(|num| txn.value(num)).transpose()? == Some(0) {
            break;
        }
        left -= 1;
        // Read before the node leaves the queue.
        next = queue.next(line);
        let node = Node { shared: txn.set().shared, line };
        let is_complex = node.is_complex();
        let sops = node.sops(txn.set().place.nsems);
        match look_at(txn, node, completed) {
            Looked::Waits => continue,
            // The walk met this node before.
            Looked::Done | Looked::Failed if completed.has_twice(line) => break,
            Looked::Failed => dequeue(txn.guard(), node),
            Looked::Done => {
                dequeue(txn.guard(), node);
                update_zero(txn, Changed::By(&sops), completed)?;
                // A decrement makes no older decrement possible. Other changes may.
                if is_complex || get(txn.guard().field(COMPLEX_COUNT)) != 0 {
                    next = queue.first();
                    left = queue.max;
                }
            }
        }
    }
    Ok(())
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Looked {
    Waits,
    Done,
    Failed,
}

fn look_at(txn: &mut Txn<'_, '_>, node: Node<'_>, completed: &mut Completed) -> Looked {
    // The call ends with `EINTR`, or a handler has left it.
    if node.is_interrupted() {
        return Looked::Waits;
    }
    let sops = node.sops(txn.set().place.nsems);
    match txn.perform(node.call(&sops)) {
        Verdict::Blocks(at) => {
            node.set_blocking(at);
            Looked::Waits
        }
        Verdict::Done => {
            completed.nodes.push((node.line, 0));
            Looked::Done
        }
        Verdict::Fails(errno) => {
            completed.nodes.push((node.line, errno.raw_os_error()));
            Looked::Failed
        }
    }
}

/// Ends all waits of a set with `EIDRM`. The caller holds the lock and removes the set.
pub(super) fn end_all(guard: &SetGuard<'_>) -> Completed {
    let set = guard.set;
    let mut nodes: SmallVec<[(u32, i32); 4]> = SmallVec::new();
    // All queues together have no more nodes than the pool.
    let nodes_max = set.shared.layout.waits.lines as usize;
    let mut end = |queue: Queue<'_>| {
        let left = nodes_max - nodes.len();
        nodes.extend(queue.nodes().take(left).map(|node| (node, Errno::IDRM.raw_os_error())));
        put(queue.ends, 0);
    };
    end(Queue::of_set(set, CONST_LIST));
    end(Queue::of_set(set, ALTER_LIST));
    for num in 0..set.place.nsems as u16 {
        end(Queue::of_sem(set, num, SEM_CONST_LIST));
        put(&set.sem(num)[SEM_ALTER_LIST], 0);
    }
    put(guard.field(COMPLEX_COUNT), 0);
    Completed { nodes }
}

/// The change that counted calls wait for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Awaited {
    /// `GETNCNT`: a larger value.
    Increase,
    /// `GETZCNT`: zero.
    Zero,
}

/// Returns how many calls wait for semaphore `num`.
#[doc(alias = "count_semcnt")]
pub(super) fn count(guard: &SetGuard<'_>, num: u16, awaited: Awaited) -> i32 {
    let set = guard.set;
    let single = match awaited {
        Awaited::Increase => SEM_ALTER_LIST,
        Awaited::Zero => SEM_CONST_LIST,
    };
    let singles = Queue::of_sem(set, num, single).nodes().count();
    let lists = [ALTER_LIST, CONST_LIST].into_iter().flat_map(|list| {
        let nodes = Queue::of_set(set, list).nodes();
        nodes.map(|line| Node { shared: set.shared, line }).filter(Node::is_complex)
    });
    let several = lists.filter(|node| {
        let sop = node.blocking();
        let is_zero = sop.sem_op == 0;
        sop.sem_num == num && is_zero == (awaited == Awaited::Zero) && sop.sem_op <= 0
    });
    i32::try_from(singles + several.count()).unwrap_or(i32::MAX)
}

#[cfg(all(test, corewalk_crash))]
pub(super) mod audit;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests;
