//! The list of the waiting calls of a task. Other threads of the task use it to find calls that
//! they want to end.
//!
//! A call adds itself by one compare-exchange in a slot of the task's list, and removes itself by
//! another. Only calls that find no free slot use a lock.
//!
//! A signal handler may interrupt a call at any instruction and itself make a waiting call. If the
//! interrupted thread held a lock of the list of waiting calls, the handler would wait for that
//! lock for ever.
//!
//! # Slots
//!
//! | word | meaning |
//! |---|---|
//! | 0 | free |
//! | a line | the node of a call that waits, or was just woken |
//! | a line, with `LOOKED_AT` | such a node, used by another thread: the call must not leave |
//!
//! # Model checker
//!
//! Under loom, `enter` and `leave` try the exchange without a load before it. Such a load, which
//! only saves a futile exchange, would keep loom from exploring some schedules.
//!
//! # Guarantees
//!
//! - W.1: while `collect` calls its closure with a wait node, that node belongs to a call of this
//!   task.
//!
//! Source: signal-safety(7).

use corewalk_base::Mutex;
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU32, Ordering};
use corewalk_base::primitives::thread;

/// The number of waiting calls that need no lock.
const SLOTS: usize = if IS_MODEL { 2 } else { 512 };

/// A bit of a slot: another thread uses the wait node in it. The bits below are the number of the
/// node's first cache line.
const LOOKED_AT: u32 = 1 << 31;

/// The nodes of waiting calls.
pub(crate) struct Waiting {
    slots: [AtomicU32; SLOTS],
    /// The nodes that found no slot.
    more: Mutex<Vec<u32>>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| AtomicU32::new(0)), more: Mutex::new(Vec::new()) }
    }
}

impl Waiting {
    /// Adds a node.
    pub(crate) fn enter(&self, node: u32) {
        let is_taken = |slot: &AtomicU32| {
            // ORDERING: Relaxed. The value is a guess: if this slot of the list is in use, the
            // compare-exchange fails.
            (IS_MODEL || slot.load(Ordering::Relaxed) == 0)
                // ORDERING(ipc-waiting): Release. `collect` exchanges the slot with Acquire.
                // Without this order, it could find an incomplete wait node.
                && slot.compare_exchange(0, node, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !self.slots_from(node).any(is_taken) {
            self.more.lock().push(node);
        }
    }

    /// Removes the node of a call from the list. After `leave` has returned, no other thread uses
    /// the node.
    pub(crate) fn leave(&self, node: u32) {
        let is_left = |slot: &AtomicU32| {
            // ORDERING: Relaxed. Only this thread removes the wait node from its slot, so the value
            // is up to date.
            (IS_MODEL || slot.load(Ordering::Relaxed) & !LOOKED_AT == node)
                && exchange(slot, node, 0)
        };
        if !self.slots_from(node).any(is_left) {
            self.more.lock().retain(|other| *other != node);
        }
    }

    pub(crate) fn collect(&self, mut look: impl FnMut(u32) -> bool) -> Vec<u32> {
        let mut found = Vec::new();
        for slot in &self.slots {
            // ORDERING: Relaxed. Only a guess, which `exchange` checks.
            let node = slot.load(Ordering::Relaxed) & !LOOKED_AT;
            if node != 0 && exchange(slot, node, node | LOOKED_AT) {
                found.extend(look(node).then_some(node));
                // ORDERING(ipc-waiting): Release. The owner removes the node by `exchange`, with
                // Acquire. Without this order, it could free the node while this thread still uses
                // it.
                slot.store(node, Ordering::Release);
            }
        }
        found.extend(self.more.lock().iter().filter(|node| look(**node)));
        found
    }

    /// Returns all slots of the list, in the order in which a call with this node tries them. The
    /// first one depends on `node`, so that calls of several threads try different slots first.
    fn slots_from(&self, node: u32) -> impl Iterator<Item = &AtomicU32> {
        let first = node as usize / 2;
        (0..SLOTS).map(move |step| &self.slots[first.wrapping_add(step) % SLOTS])
    }
}

/// Replaces `node` in a slot by `next`. First waits while another thread uses the wait node.
/// Returns false if the slot does not contain the node.
fn exchange(slot: &AtomicU32, node: u32, next: u32) -> bool {
    loop {
        // ORDERING(ipc-waiting): Acquire. `enter` and `collect` store the slot with Release.
        // Without this order, this thread could find an incomplete wait node, or free it while
        // another thread still uses it.
        match slot.compare_exchange(node, next, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(seen) if seen == node | LOOKED_AT => thread::yield_now(),
            Err(_) => return false,
        }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::unmodelled;

    fn nodes(waiting: &Waiting) -> Vec<u32> {
        let mut nodes = waiting.collect(|_| true);
        nodes.sort_unstable();
        nodes
    }

    #[test]
    fn each_visits_every_call_once_with_and_without_slots() {
        let waiting = Waiting::default();
        let all: Vec<u32> = (1..=3 * SLOTS as u32).collect();
        all.iter().for_each(|node| waiting.enter(*node));
        assert_eq!(nodes(&waiting), all);
        let (gone, left): (Vec<u32>, Vec<u32>) = all.into_iter().partition(|node| node % 3 == 0);
        gone.iter().for_each(|node| waiting.leave(*node));
        assert_eq!(nodes(&waiting), left);
        // The removal of a node that is not in the list must change nothing.
        waiting.leave(gone[0]);
        assert_eq!(nodes(&waiting), left);
    }

    /// A signal handler may interrupt a thread inside `collect`, and make a waiting call. That call
    /// must not deadlock at the list of waiting calls.
    #[test]
    fn call_enters_and_leaves_while_each_visits_another() {
        let waiting = Waiting::default();
        waiting.enter(7);
        let met = waiting.collect(|node| {
            waiting.enter(8 + node);
            waiting.leave(8 + node);
            true
        });
        assert_eq!((met, nodes(&waiting)), (vec![7], vec![7]));
    }

    /// W.1: checks that `leave` waits for `collect`.
    #[test]
    fn node_does_not_leave_while_each_uses_it() {
        const ROUNDS: u32 = 20_000;
        let (waiting, there) = (Waiting::default(), unmodelled::AtomicU64::new(0));
        // ORDERING: Relaxed. The test checks that `enter` and `leave` alone order the stores and
        // loads of the variable `there`.
        let order = Ordering::Relaxed;
        thread::scope(|scope| {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    there.store(1, order);
                    waiting.enter(5);
                    waiting.leave(5);
                    there.store(0, order);
                }
                there.store(2, order);
            });
            while there.load(order) != 2 {
                waiting.collect(|_| {
                    assert_eq!(there.load(order), 1, "the node has left");
                    true
                });
            }
        });
    }
}
