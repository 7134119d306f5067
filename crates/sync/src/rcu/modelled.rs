//! Grace periods for the model checkers: freed as soon as no section is open.
//!
//! `crossbeam-epoch` keeps its state outside of a model's run, where loom and shuttle neither see
//! it nor reset it, and its list of threads is rejected by Miri's stacked borrows (tree borrows
//! accept it). This stand-in lives and dies with the run. A mutex counts the open sections; what
//! is deferred waits until the count is zero and is then run by whoever brought it there. That is
//! the shortest grace period this interface can have without knowing who reads what, so a use
//! that comes too late is met early.
//!
//! # What it hides
//!
//! The mutex orders a `defer` before a section that is opened later. A reader that enters before
//! the writer defers gets no help from it, and that is the case in which a publication with too
//! weak an ordering shows; the control twin of the model proves that it does.
//!
//! # Rules
//!
//! - Deferred closures run outside of the mutex: they may defer again.
//! - `synchronize` polls and yields; inside a section it waits for ever, as nothing tells it whose
//!   section is open.
//!
//! Source: the specification of RCU in McKenney, "Is Parallel Programming Hard", chapter 9.

use super::Stats;
use crate::{locks::Mutex, primitives::thread};

type Reclaim = Box<dyn FnOnce() + Send>;

/// The state of the domain.
#[derive(Default)]
struct Domain {
    open: usize,
    deferred: Vec<Reclaim>,
}

#[cfg(corewalk_loom)]
loom::lazy_static! {
    static ref DOMAIN: Mutex<Domain> = Mutex::new(Domain::default());
}

#[cfg(all(corewalk_shuttle, not(corewalk_loom)))]
shuttle::lazy_static! {
    static ref DOMAIN: Mutex<Domain> = Mutex::new(Domain::default());
}

#[cfg(all(miri, not(any(corewalk_loom, corewalk_shuttle))))]
static DOMAIN: Mutex<Domain> = Mutex::new(Domain { open: 0, deferred: Vec::new() });

/// An open section.
pub(super) struct Section;

pub(super) fn enter() -> Section {
    DOMAIN.lock().open += 1;
    Section
}

pub(super) fn defer(reclaim: impl FnOnce() + Send + 'static) {
    DOMAIN.lock().deferred.push(Box::new(reclaim));
    reclaim_if_quiet(0);
}

pub(super) fn synchronize() {
    while DOMAIN.lock().open != 0 {
        thread::yield_now();
    }
}

pub(super) fn stats() -> Stats {
    let domain = DOMAIN.lock();
    Stats {
        garbage: domain.deferred.len() as u64,
        readers: domain.open as u64,
        oldest_section_age: std::time::Duration::ZERO,
    }
}

/// Ends `ended` sections, and runs what waits if none is open any more.
fn reclaim_if_quiet(ended: usize) {
    let due = {
        let mut domain = DOMAIN.lock();
        domain.open -= ended;
        if domain.open == 0 { std::mem::take(&mut domain.deferred) } else { Vec::new() }
    };
    for reclaim in due {
        reclaim();
    }
}

impl Drop for Section {
    fn drop(&mut self) {
        reclaim_if_quiet(1);
    }
}
