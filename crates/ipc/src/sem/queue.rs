//! The queues of waiting calls, and the order in which calls are completed.
//!
//! A call that has to wait leaves a wait node in shared memory (module `node`). A call that makes
//! waiting calls possible also completes them, in the same transaction (module `txn`), and then
//! wakes their tasks.
//!
//! # Rules, as in Linux
//!
//! - Waiting calls are tried in the order of their arrival, except those that a signal has
//!   interrupted. A new call that is possible does not queue behind the waiting ones.
//! - A waiting call with one decrement is in two queues: that of its semaphore and that of the set.
//!   A change scans the queue of the set while a call with several operations waits, and otherwise
//!   that of the changed semaphore.
//! - Waits for zero are tried before all other calls. Among them, calls with one operation come
//!   before calls with several.
//! - `GETNCNT` and `GETZCNT` count a call at the operation that blocked it in the last try.
//!
//! The wait nodes are authoritative, not the queues. If a task dies while it changes the queues,
//! [`rebuild`] builds them anew from the nodes.
//!
//! Source: Linux `ipc/sem.c` (`do_smart_update`, `update_queue`, `wake_const_ops`, `count_semcnt`).

use rustix::io::Errno;

use super::SemBuf;
use super::node::{Completed, Node, SEM_LINKS, SET_LINKS, nodes_of};
use super::set::{ALTER_LIST, COMPLEX_COUNT, CONST_LIST, Set, SetGuard, TICKET, TICKET_MASK};
use super::txn::{Txn, Verdict};
use super::word::{ALTER, COMPLEX, Word, ZERO};
use crate::field::{get, put};
use crate::list::List;

/// Returns [`ALTER_LIST`] or [`CONST_LIST`] of semaphore `num`, or of the set if `num` is none.
fn queue(set: Set<'_>, num: Option<u16>, list: usize) -> List<'_> {
    let (line, links) = num.map_or((set.line(), SET_LINKS), |num| (set.sem(num), SEM_LINKS));
    let (region, max) = (&set.shared.region, set.shared.layout.waits.lines);
    List { region, ends: &line[list], links, max }
}

/// Returns the queues in which a node must be.
fn lists_of<'s>(set: Set<'s>, node: Node<'_>) -> impl Iterator<Item = List<'s>> + use<'s> {
    let (is_alter, is_complex) = (node.is_alter(), node.is_complex());
    let list = if is_alter { ALTER_LIST } else { CONST_LIST };
    let of_sem = (!is_complex).then(|| queue(set, Some(node.sop(0).sem_num), list));
    let of_set = (is_alter || is_complex).then(|| queue(set, None, list));
    of_sem.into_iter().chain(of_set)
}

/// Marks a call as waiting, and puts its node into the queues. The transaction has found that the
/// call must wait, and has kept the semaphores' words frozen (locked) since. So no wake-up is lost.
pub(super) fn enqueue(txn: &mut Txn<'_, '_>, node: Node<'_>, sops: &[SemBuf]) -> Result<(), Errno> {
    for sop in sops {
        txn.frozen(sop.sem_num)?.waiters |= bit_of(sops, *sop);
    }
    let guard = txn.guard;
    let ticket = get(guard.field(TICKET));
    put(guard.field(TICKET), ticket & !TICKET_MASK | ticket.wrapping_add(1) & TICKET_MASK);
    node.begin(guard.set, ticket & TICKET_MASK);
    link(guard, node);
    Ok(())
}

/// Returns the bit that a waiting call sets in the semaphore's word: `ALTER` or `ZERO` for a single
/// operation, otherwise `COMPLEX`.
pub(super) fn bit_of(sops: &[SemBuf], sop: SemBuf) -> u64 {
    match (sops.len(), sop.sem_op) {
        (1, 0) => ZERO,
        (1, _) => ALTER,
        _ => COMPLEX,
    }
}

/// Puts a node at the end of its queues.
fn link(guard: &SetGuard<'_>, node: Node<'_>) {
    lists_of(guard.set, node).for_each(|list| list.push(node.line));
    let count = guard.field(COMPLEX_COUNT);
    put(count, get(count).wrapping_add(node.is_complex().into()));
}

/// Removes a node from its queues, and marks it as not waiting. The call gets no outcome here.
pub(super) fn withdraw(guard: &SetGuard<'_>, node: Node<'_>) {
    dequeue(guard, node);
    node.end();
}

/// Takes a node out of its queues.
fn dequeue(guard: &SetGuard<'_>, node: Node<'_>) {
    lists_of(guard.set, node).for_each(|list| list.unlink(node.line));
    let count = guard.field(COMPLEX_COUNT);
    put(count, get(count).saturating_sub(node.is_complex().into()));
}

pub(super) fn rebuild(guard: &SetGuard<'_>) {
    clear(guard);
    let next = get(guard.field(TICKET));
    let mut waiting: Vec<_> = waiting(guard.set).map(|node| (node.turn(next), node.line)).collect();
    waiting.sort_unstable();
    for (_, line) in waiting {
        link(guard, Node { shared: guard.set.shared, line });
    }
}

/// After a task has died, makes the bits in the semaphores' words match the queues of waiting
/// calls.
pub(super) fn restore_bits(guard: &SetGuard<'_>) -> Result<(), Errno> {
    for node in waiting(guard.set) {
        let sops = node.sops(guard.set.place.nsems);
        for sop in &sops {
            let add = |word: Word| word.with_waiters(word.waiters() | bit_of(&sops, *sop));
            match guard.change(sop.sem_num, add) {
                Ok(_) | Err(Errno::IDRM) => {}
                Err(errno) => return Err(errno),
            }
        }
    }
    Ok(())
}

fn waiting<'s>(set: Set<'s>) -> impl Iterator<Item = Node<'s>> {
    let nodes = nodes_of(set).map(|(node, _)| node);
    nodes.filter(move |node| node.outcome().is_none() && node.is_within(set.place.nsems))
}

/// Empties the queues of a set.
fn clear(guard: &SetGuard<'_>) {
    let set = guard.set;
    [ALTER_LIST, CONST_LIST, COMPLEX_COUNT].into_iter().for_each(|list| put(guard.field(list), 0));
    for num in 0..set.place.nsems as u16 {
        let line = set.sem(num);
        for list in [ALTER_LIST, CONST_LIST] {
            if get(&line[list]) != 0 {
                put(&line[list], 0);
            }
        }
    }
}

/// The semaphores that a change concerns.
#[derive(Clone, Copy)]
pub(super) enum Changed<'a> {
    /// The semaphores of these operations of semop(2).
    By(&'a [SemBuf]),
    /// The semaphores with these numbers, changed by semctl(2) or by the undo of an ended task.
    Nums(&'a [u16]),
}

/// Completes the waiting calls that have become possible. Analogous to Linux's `do_smart_update`.
///
/// # Errors
///
/// `EIO` if another task keeps a semaphore frozen (locked). The caller must not commit the
/// transaction then.
pub(super) fn update(txn: &mut Txn<'_, '_>, changed: Changed<'_>) -> Result<(), Errno> {
    let guard = txn.guard;
    // The caller discards the transaction, so calls that `update_all` has removed from the queues
    // still wait. Rebuild the queues from all wait nodes of the set.
    update_all(txn, changed).inspect_err(|_| rebuild(guard))
}

fn update_all(txn: &mut Txn<'_, '_>, changed: Changed<'_>) -> Result<(), Errno> {
    update_zero(txn, changed)?;
    if get(txn.guard.field(COMPLEX_COUNT)) != 0 {
        return scan(txn, None);
    }
    match changed {
        // Only an increment can make a waiting decrement possible.
        Changed::By(sops) => {
            let mut added = sops.iter().filter(|sop| sop.sem_op > 0);
            added.try_for_each(|sop| scan(txn, Some(sop.sem_num)))
        }
        Changed::Nums(nums) => nums.iter().try_for_each(|num| scan(txn, Some(*num))),
    }
}

/// Completes the calls that wait for zero and have become possible. Analogous to Linux's
/// `do_smart_wakeup_zero`.
fn update_zero(txn: &mut Txn<'_, '_>, changed: Changed<'_>) -> Result<(), Errno> {
    let mut has_zero = false;
    let mut check = |num| -> Result<(), Errno> {
        if txn.frozen(num)?.value == 0 {
            has_zero = true;
            scan_const(txn, Some(num));
        }
        Ok(())
    };
    match changed {
        Changed::By(sops) => sops.iter().try_for_each(|sop| check(sop.sem_num))?,
        Changed::Nums(nums) => nums.iter().try_for_each(|num| check(*num))?,
    }
    // If a semaphore is zero, try the calls that wait for several semaphores to be zero. Each try
    // records which operation blocks the call, and `GETZCNT` counts the call at that operation.
    let is_any_zero = has_zero
        || matches!(changed, Changed::Nums(_))
            && get(txn.guard.field(CONST_LIST)) != 0
            // Unless a semaphore is frozen, its value may change meanwhile.
            && (0..txn.set().place.nsems as u16).any(|num| txn.peek(num) == Some(0));
    if is_any_zero {
        scan_const(txn, None);
    }
    Ok(())
}

/// Tries the calls that wait for zero in the queue of semaphore `num`, or in that of the set if
/// `num` is none. Analogous to Linux's `wake_const_ops`.
fn scan_const(txn: &mut Txn<'_, '_>, num: Option<u16>) {
    let shared = txn.set().shared;
    let mut lines = queue(txn.set(), num, CONST_LIST).iter();
    let _is_whole = lines.all(|line| look_at(txn, Node { shared, line }).is_some());
}

/// Tries the calls that change a semaphore, in the queue of semaphore `num`, or in that of the set
/// if `num` is none. A semaphore's queue contains single decrements, so a walk over it ends at
/// value 0. Analogous to Linux's `update_queue`.
fn scan(txn: &mut Txn<'_, '_>, num: Option<u16>) -> Result<(), Errno> {
    let set = txn.set();
    let list = queue(set, num, ALTER_LIST);
    let mut lines = list.iter();
    while let Some(line) = lines.next() {
        if let Some(num) = num
            && txn.frozen(num)?.value == 0
        {
            break;
        }
        let node = Node { shared: set.shared, line };
        let is_complex = node.is_complex();
        let sops = node.sops(set.place.nsems);
        let Some(verdict) = look_at(txn, node) else { break };
        if verdict == Verdict::Done {
            update_zero(txn, Changed::By(&sops))?;
            // A call was completed, which may have made older waiting calls with several operations
            // possible. So start again at the oldest call. A single decrement that was impossible
            // before is still impossible.
            if is_complex || get(txn.guard.field(COMPLEX_COUNT)) != 0 {
                lines = list.iter();
            }
        }
    }
    Ok(())
}

/// Tries a waiting call. If it can go on or must fail, completes it. Otherwise records in its wait
/// node which operation blocks it.
///
/// Returns None if `txn` has already completed this call. The caller meets a call twice only if a
/// hostile process has linked the queue into a ring.
fn look_at(txn: &mut Txn<'_, '_>, node: Node<'_>) -> Option<Verdict> {
    // Do not complete an interrupted call: it ends with `EINTR`, or was left by siglongjmp(3).
    if node.is_interrupted() {
        return Some(Verdict::Blocks(0));
    }
    let sops = node.sops(txn.set().place.nsems);
    let verdict = txn.perform(node.call(&sops));
    let errno = match verdict {
        Verdict::Blocks(at) => {
            node.set_blocking(at);
            return Some(verdict);
        }
        Verdict::Done => 0,
        Verdict::Fails(errno) => errno.raw_os_error(),
    };
    let is_again = txn.completed.iter().any(|(line, _)| *line == node.line);
    txn.completed.push((node.line, errno));
    if is_again {
        return None;
    }
    dequeue(txn.guard, node);
    Some(verdict)
}

/// Returns the waiting calls, each with the outcome `EIDRM`.
pub(super) fn end_all(guard: &SetGuard<'_>) -> Completed {
    let set = guard.set;
    let zeroes = (0..set.place.nsems as u16).map(|num| queue(set, Some(num), CONST_LIST));
    let lists = [CONST_LIST, ALTER_LIST].map(|list| queue(set, None, list)).into_iter();
    // A hostile process may have linked a queue into a ring. So a walk visits at most as many nodes
    // as the pool has lines.
    let max = set.shared.layout.waits.lines as usize;
    let nodes = lists.chain(zeroes).flat_map(List::iter).take(max);
    let completed = nodes.map(|line| (line, Errno::IDRM.raw_os_error())).collect();
    clear(guard);
    completed
}

/// Returns the number of calls that wait at semaphore `num`. Analogous to Linux's `count_semcnt`.
pub(super) fn count(guard: &SetGuard<'_>, num: u16, list: usize) -> i32 {
    let set = guard.set;
    let singles = queue(set, Some(num), list).iter().count();
    let lists = [ALTER_LIST, CONST_LIST].map(|list| queue(set, None, list));
    let several = lists.into_iter().flat_map(List::iter).filter(|line| {
        let node = Node { shared: set.shared, line: *line };
        let sop = node.blocking();
        let is_awaited = (sop.sem_op == 0) == (list == CONST_LIST) && sop.sem_op <= 0;
        node.is_complex() && sop.sem_num == num && is_awaited
    });
    i32::try_from(singles + several.count()).unwrap_or(i32::MAX)
}

#[cfg(all(test, corewalk_crash))]
pub(super) mod audit;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle, corewalk_crash))))]
mod tests;
