//! Implements grace periods in place of `crossbeam-epoch`, for the model checkers and Miri. It
//! frees garbage as soon as no read section is open.
//!
//! `crossbeam-epoch` keeps its state outside of a model's run, where loom and shuttle neither see
//! nor reset it. Miri's stacked borrows reject its list of threads.
//!
//! This module begins with a new state in each run. A mutex protects the number of open read
//! sections and the deferred closures. The thread that brings the number to zero runs the closures.
//! A use after free thus shows as early as possible.
//!
//! # Limits
//!
//! The mutex of this module orders each call of `defer` before every read section that is opened
//! later. So such a section sees all earlier writes, even if a value was published with too weak an
//! ordering.
//!
//! The models can detect too weak an ordering only in a read section that was opened before the
//! call of `defer`. Control tests with a weakened ordering prove that the models detect it.
//!
//! # Rules
//!
//! - This module unlocks its mutex before it runs deferred closures, because a closure may call
//!   `defer` again.
//!
//! Source: the specification of RCU in McKenney, "Is Parallel Programming Hard", chapter 9.

use corewalk_base::{Mutex, primitives::thread};

type Reclaim = Box<dyn FnOnce() + Send>;

/// The state of the domain, protected by the mutex of `DOMAIN`.
#[derive(Default)]
struct Domain {
    /// Number of open sections.
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

/// Runs `reclaim` once, when no section is open.
pub(super) fn defer(reclaim: impl FnOnce() + Send + 'static) {
    DOMAIN.lock().deferred.push(Box::new(reclaim));
    reclaim_if_quiet(0);
}

/// Waits until no read section is open. If the caller itself is in a read section, the call never
/// returns.
pub(super) fn synchronize() {
    while DOMAIN.lock().open != 0 {
        thread::yield_now();
    }
}

/// If no read section is left open, runs the deferred closures.
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
