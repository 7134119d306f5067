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
//! - N.1: a wait that begins is the last, and when it ends so are all that have begun since.
//!
//! # What it refuses
//!
//! - To know more than [`DEPTH`] at once: the innermost takes the place of the last.
//!
//! Source: signal-safety(7), sigsetjmp(3).

use corewalk_sync::primitives::IS_MODEL;
use std::cell::Cell;

/// Waits that are known.
const DEPTH: usize = 16;

struct Waits {
    count: Cell<usize>,
    /// Where the task of each lies, and its node.
    entries: [Cell<(usize, u32)>; DEPTH],
}

thread_local! {
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
        waits.count.set(around + 1);
        around
    })
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
            return None;
        }
        waits.count.set(count - 1);
        Some(waits.entries[count - 1].get())
    })
}

/// Forgets all waits but the outermost `around`.
pub(crate) fn forget_beyond(around: usize) {
    WAITS.with(|waits| waits.count.set(waits.count.get().min(around)));
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
    fn wait_that_ends_ends_those_that_have_begun_since() {
        let (one, other) = (enter(1, 10), enter(2, 20));
        enter(1, 11);
        enter(1, 12);
        assert_eq!((one, other, count()), (0, 1, 4));
        assert_eq!((nodes_of(1), nodes_of(2)), (vec![10, 11, 12], vec![20]));
        let left = [(); 3].map(|()| take_beyond(other + 1));
        assert_eq!(left, [Some((1, 12)), Some((1, 11)), None]);
        forget_beyond(other);
        assert_eq!((count(), nodes_of(1), nodes_of(2)), (1, vec![10], vec![]));
        forget_beyond(one);
        assert_eq!((count(), take_beyond(0)), (0, None));
    }

    #[test]
    fn innermost_wait_is_known_however_many_there_are() {
        let entered: Vec<usize> = (1..=2 * DEPTH as u32).map(|node| enter(7, node)).collect();
        assert_eq!((count(), nodes_of(7).last()), (DEPTH, Some(&(2 * DEPTH as u32))));
        entered.into_iter().rev().for_each(forget_beyond);
        assert_eq!(count(), 0);
    }
}
