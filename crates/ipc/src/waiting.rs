//! The calls of a task that wait, for who wants to end them.
//!
//! A signal handler may interrupt a call at any instruction, and itself make a call that waits. A lock here would then be its own
//! thread's: so a call is entered by one exchange in a slot of its own, and leaves by another. Only where more calls wait
//! than there are slots there is a lock.
//!
//! # Slots
//!
//! | word | means |
//! |---|---|
//! | 0 | free |
//! | a line | the node of a call that waits, or has just been woken |
//! | a line, with `LOOKED_AT` | likewise, and somebody looks at the node: it stays until that is over |
//!
//! # Model checker
//!
//! Loom orders an access with the last one to the same word only. A load before an exchange would hide
//! the load of another thread from it, and with it the run in which they meet. So a model leaves out
//! the loads that only save an exchange.
//!
//! # Guarantees
//!
//! - W.1: a node that `each` gives to its closure is one of this task until the closure returns.
//!
//! Source: signal-safety(7).

use corewalk_base::Mutex;
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU32, Ordering};
use corewalk_base::primitives::thread;

/// Calls that wait without a lock. A crowd that waits beyond them pays for it at each wait.
const SLOTS: usize = if IS_MODEL { 2 } else { 512 };

/// In a slot: somebody looks at the node. Lines are fewer.
const LOOKED_AT: u32 = 1 << 31;

/// Nodes of calls that wait.
pub(crate) struct Waiting {
    slots: [AtomicU32; SLOTS],
    /// Those that found no slot.
    more: Mutex<Vec<u32>>,
}

impl Default for Waiting {
    fn default() -> Self {
        Self { slots: std::array::from_fn(|_| AtomicU32::new(0)), more: Mutex::new(Vec::new()) }
    }
}

impl Waiting {
    /// Enters a node.
    pub(crate) fn enter(&self, node: u32) {
        let is_taken = |slot: &AtomicU32| {
            // ORDERING: Relaxed. A guess for the exchange, which a slot in use would fail.
            (IS_MODEL || slot.load(Ordering::Relaxed) == 0)
                // ORDERING(ipc-waiting): Release. The node is made before it is looked at.
                && slot.compare_exchange(0, node, Ordering::Release, Ordering::Relaxed).is_ok()
        };
        if !self.slots_from(node).any(is_taken) {
            self.more.lock().push(node);
        }
    }

    /// Takes a node out. Nobody looks at it any more.
    pub(crate) fn leave(&self, node: u32) {
        if !self.slots_from(node).any(|slot| is_left(slot, node)) {
            self.more.lock().retain(|other| *other != node);
        }
    }

    /// Calls a function for every node.
    pub(crate) fn each(&self, mut look: impl FnMut(u32)) {
        for slot in &self.slots {
            // ORDERING: Relaxed. What is seen is looked at again.
            let node = slot.load(Ordering::Relaxed) & !LOOKED_AT;
            if node == 0 {
                continue;
            }
            // ORDERING(ipc-waiting): Acquire. See `enter`.
            let held = || {
                slot.compare_exchange(node, node | LOOKED_AT, Ordering::Acquire, Ordering::Relaxed)
            };
            let is_held = loop {
                match held() {
                    Ok(_) => break true,
                    // Another looks at it.
                    Err(seen) if seen == node | LOOKED_AT => thread::yield_now(),
                    Err(_) => break false,
                }
            };
            if is_held {
                look(node);
                // ORDERING(ipc-waiting): Release. What was done to the node happens before it is another's.
                slot.store(node, Ordering::Release);
            }
        }
        self.more.lock().iter().for_each(|node| look(*node));
    }

    /// Returns all slots. A node of the usual two lines has the first to itself, also in a crowd.
    fn slots_from(&self, node: u32) -> impl Iterator<Item = &AtomicU32> {
        let first = node as usize / 2;
        (0..SLOTS).map(move |step| &self.slots[first.wrapping_add(step) % SLOTS])
    }
}

/// Takes a node out of a slot; returns false if it is not there.
fn is_left(slot: &AtomicU32, node: u32) -> bool {
    // ORDERING: Relaxed. A node stays in its slot until its own thread takes it out.
    while IS_MODEL || slot.load(Ordering::Relaxed) & !LOOKED_AT == node {
        // ORDERING(ipc-waiting): Acquire. See `each`.
        match slot.compare_exchange(node, 0, Ordering::Acquire, Ordering::Relaxed) {
            Ok(_) => return true,
            Err(seen) if seen == node | LOOKED_AT => thread::yield_now(),
            Err(_) => return false,
        }
    }
    false
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::unmodelled;

    fn nodes(waiting: &Waiting) -> Vec<u32> {
        let mut nodes = Vec::new();
        waiting.each(|node| nodes.push(node));
        nodes.sort_unstable();
        nodes
    }

    #[test]
    fn calls_that_wait_are_met_once_however_many_they_are() {
        let waiting = Waiting::default();
        let all: Vec<u32> = (1..=3 * SLOTS as u32).collect();
        all.iter().for_each(|node| waiting.enter(*node));
        assert_eq!(nodes(&waiting), all);
        let (gone, left): (Vec<u32>, Vec<u32>) = all.into_iter().partition(|node| node % 3 == 0);
        gone.iter().for_each(|node| waiting.leave(*node));
        assert_eq!(nodes(&waiting), left);
        // One that is not there takes nobody out.
        waiting.leave(gone[0]);
        assert_eq!(nodes(&waiting), left);
    }

    /// A handler that interrupts who looks at the calls of the task may itself wait.
    #[test]
    fn call_is_entered_and_left_while_another_is_looked_at() {
        let waiting = Waiting::default();
        waiting.enter(7);
        let mut met = Vec::new();
        waiting.each(|node| {
            waiting.enter(8 + node);
            waiting.leave(8 + node);
            met.push(node);
        });
        assert_eq!((met, nodes(&waiting)), (vec![7], vec![7]));
    }

    /// W.1: who leaves waits for who looks.
    #[test]
    fn node_is_not_left_while_it_is_looked_at() {
        const ROUNDS: u32 = 20_000;
        let (waiting, there) = (Waiting::default(), unmodelled::AtomicU64::new(0));
        // ORDERING: Relaxed. What goes with it is what is tested.
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
                waiting.each(|_| assert_eq!(there.load(order), 1, "it has gone"));
            }
        });
    }
}
