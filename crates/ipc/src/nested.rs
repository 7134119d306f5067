//! The waits that a thread is in.
//!
//! That is one at most, unless a signal handler has interrupted it and makes a call that waits as well: then there are as
//! many as handlers have interrupted each other. A handler may also leave its own wait and some of those around it by a
//! jump (siglongjmp(3)). What lay on the stack there is then overwritten, so the list of the waits is kept beside it: the innermost last.
//!
//! A forked child has a copy of the list of the thread that has forked it. An entry says where its task lies, and the
//! child's own task lies elsewhere.
//!
//! # Guarantees
//!
//! - N.1: a wait that begins is the last. One that ends is gone, and no other: that it has begun later does not say that
//!   one is over, since a handler may have gone over to a stack of the program's own (swapcontext(3)) and wait there. Which were left
//!   says whoever knows the stacks.
//!
//! # What it refuses
//!
//! - To know more than [`DEPTH`] at once: the innermost takes the place of the last.
//!
//! Source: signal-safety(7), sigsetjmp(3).

use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::unmodelled::{Ordering, compiler_fence};
use std::cell::Cell;

/// Waits that are known.
const DEPTH: usize = 16;

/// What a wait leaves that ends before later ones.
const GONE: (usize, u32) = (0, 0);

struct Waits {
    count: Cell<usize>,
    /// Where the task of each lies, and its node.
    entries: [Cell<(usize, u32)>; DEPTH],
}

thread_local! {
    /// Signal handlers that have run.
    static SIGNALS: Cell<u64> = const { Cell::new(0) };

    static WAITS: Waits = const {
        Waits { count: Cell::new(0), entries: [const { Cell::new((0, 0)) }; DEPTH] }
    };
}

/// Enters a wait; returns how many are around it.
///
/// The threads of a model share one list, and no handler interrupts them: there it stays empty.
pub(crate) fn enter(task: usize, node: u32) -> usize {
    if IS_MODEL {
        return 0;
    }
    WAITS.with(|waits| {
        let around = waits.count.get().min(DEPTH - 1);
        // A handler between these two finds the waits as they were, and leaves them so.
        waits.entries[around].set((task, node));
        // ORDERING: SeqCst. For handlers of this thread, see above.
        compiler_fence(Ordering::SeqCst);
        waits.count.set(around + 1);
        around
    })
}

/// Takes note that a signal handler runs.
pub(crate) fn note_signal() {
    SIGNALS.with(|signals| signals.set(signals.get().wrapping_add(1)));
}

/// Returns a number that is another once a signal handler has run in this thread.
pub(crate) fn signals() -> u64 {
    SIGNALS.with(Cell::get)
}

/// Returns how many waits there are.
pub(crate) fn count() -> usize {
    WAITS.with(|waits| waits.count.get())
}

/// Takes the innermost wait out, if there are more than `around`.
pub(crate) fn take_beyond(around: usize) -> Option<(usize, u32)> {
    WAITS.with(|waits| {
        let count = waits.count.get();
        if count <= around {
            waits.trim();
            return None;
        }
        // First: a handler that comes in between puts its own in that place.
        let taken = waits.entries[count - 1].replace(GONE);
        // ORDERING: SeqCst. As in `enter`.
        compiler_fence(Ordering::SeqCst);
        waits.count.set(count - 1);
        Some(taken)
    })
}

/// Leaves the wait that has entered when `around` were around it.
pub(crate) fn leave(around: usize) {
    if IS_MODEL {
        return;
    }
    WAITS.with(|waits| {
        waits.entries[around].set(GONE);
        waits.trim();
    });
}

impl Waits {
    /// Drops those from the end that are gone.
    fn trim(&self) {
        let count = self.count.get();
        let is_there = |entry: &Cell<(usize, u32)>| entry.get() != GONE;
        let last = self.entries[..count].iter().rposition(is_there);
        // ORDERING: SeqCst. As in `enter`.
        compiler_fence(Ordering::SeqCst);
        self.count.set(last.map_or(0, |last| last + 1));
    }
}

/// Calls a function for the node of every wait of a task.
pub(crate) fn each_of(task: usize, mut look: impl FnMut(u32)) {
    WAITS.with(|waits| {
        let entries = waits.entries.iter().take(waits.count.get()).map(Cell::get);
        entries.filter(|(of, _)| *of == task).for_each(|(_, node)| look(node));
    });
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    fn nodes_of(task: usize) -> Vec<u32> {
        let mut nodes = Vec::new();
        each_of(task, |node| nodes.push(node));
        nodes
    }

    /// N.1.
    #[test]
    fn wait_that_ends_leaves_later_ones_alone() {
        let (one, other) = (enter(1, 10), enter(2, 20));
        let (third, last) = (enter(1, 11), enter(1, 12));
        assert_eq!((one, other, count()), (0, 1, 4));
        assert_eq!((nodes_of(1), nodes_of(2)), (vec![10, 11, 12], vec![20]));
        leave(other);
        assert_eq!((count(), nodes_of(1), nodes_of(2)), (4, vec![10, 11, 12], vec![]));
        leave(last);
        assert_eq!((count(), nodes_of(1)), (3, vec![10, 11]));
        leave(third);
        assert_eq!((count(), nodes_of(1)), (1, vec![10]), "with what ended before");
        leave(one);
        assert_eq!((count(), take_beyond(0)), (0, None));
    }

    #[test]
    fn waits_that_were_left_are_taken_from_the_innermost_outwards() {
        let (one, other) = (enter(1, 10), enter(2, 20));
        enter(1, 11);
        enter(1, 12);
        leave(other);
        let left = [(); 4].map(|()| take_beyond(one + 1));
        assert_eq!(left, [Some((1, 12)), Some((1, 11)), Some(GONE), None]);
        assert_eq!((count(), nodes_of(1)), (1, vec![10]));
        leave(one);
        assert_eq!(count(), 0);
    }

    #[test]
    fn innermost_wait_is_known_however_many_there_are() {
        let entered: Vec<usize> = (1..=2 * DEPTH as u32).map(|node| enter(7, node)).collect();
        assert_eq!((count(), nodes_of(7).last()), (DEPTH, Some(&(2 * DEPTH as u32))));
        entered.into_iter().rev().for_each(leave);
        assert_eq!(count(), 0);
    }
}
