//! Differential tests: the same scripts run on the host's kernel and on this crate, and each answer
//! must be the same.
//!
//! A script is a sequence of steps of one to four tasks. One task makes a step at a time. The same
//! step is made on the kernel and on corewalk. A call that blocks stays blocked until a later step
//! completes it.
//!
//! After each step the test finds out which calls still wait on each side. It compares the results
//! of the other calls: values, errno, ids, counts, pids and permissions. For a time, it only
//! compares whether the time is set.
//!
//! `COREWALK_DIFFERENTIAL_OPS` sets the number of steps. A million steps take some minutes. The
//! kernel's side runs in a new IPC namespace. If the test may not create one, it skips.
//!
//! The tests in `crates/ipc-preload/tests/differential` run these scripts too. They compare the
//! kernel with worker processes that run with the preload library.
//!
//! Source: the semantics of Linux 6.18; `docs/developing/testing.md`.

mod corners;
mod msg;
mod msg_corners;
mod op;
mod ours;
mod pairing;
mod process;
mod shm;
mod shm_corners;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use corewalk_ipc::{Namespace, NamespaceOptions};
use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::rng::{Rng, Seed};
use corewalk_testkit::sysv;

use op::Kind;
use ours::Mutation;
use pairing::{Extent, Pairing};

/// The length of a run. Even on a machine that is too slow for `steps` steps within `limit`, the
/// test makes at least `least` steps.
const EXTENT: Extent = Extent { steps: 4_000, least: 1_000, limit: Duration::from_secs(60) };

fn pairing(mutation: Mutation) -> Option<Pairing> {
    let namespace = Namespace::new(NamespaceOptions::default()).expect("memory");
    Pairing::new(Box::new(move |pid| Box::new(ours::Worker::start(&namespace, pid, mutation))))
}

fn kinds(rng: &mut Rng) -> &'static [Kind] {
    match rng.below(8) {
        0..3 => &[Kind::Sem],
        3..6 => &[Kind::Msg],
        6 => &[Kind::Shm],
        _ => &[Kind::Sem, Kind::Msg, Kind::Shm],
    }
}

#[test]
fn random_scripts_have_the_same_answers() {
    let Some(mut pairing) = pairing(Mutation::None) else { return };
    pairing.fuzz(Seed::choose(), EXTENT.or_asked(), kinds);
}

#[test]
fn corner_cases_have_the_same_answers() {
    let Some(mut pairing) = pairing(Mutation::None) else { return };
    let scripts = corners::SCRIPTS.into_iter().chain(msg_corners::SCRIPTS);
    for (name, script) in scripts.chain(shm_corners::SCRIPTS) {
        println!("{name}");
        script(&mut pairing);
        pairing.clean();
    }
}

#[test]
fn control_mutated_semantics_are_noticed() {
    if sysv::unshare_ipc().is_err() {
        skip(Need::Kernel, "no IPC namespace can be made");
        return;
    }
    let (sem, msg, shm): (Kinds, Kinds, Kinds) =
        (|_| &[Kind::Sem], |_| &[Kind::Msg], |_| &[Kind::Shm]);
    let mutations = [
        (Mutation::NoUndo, sem),
        (Mutation::NotAtomic, sem),
        (Mutation::NoCounts, sem),
        (Mutation::NoLowest, msg),
        (Mutation::NoDest, shm),
    ];
    for (mutation, kinds) in mutations {
        let mut pairing = pairing(mutation).expect("an IPC namespace, as above");
        let extent = Extent { limit: Duration::MAX, ..EXTENT };
        let run = || pairing.fuzz(Seed(1), extent, kinds);
        let fuzzed = catch_unwind(AssertUnwindSafe(run));
        let panic = fuzzed.expect_err("a mutation was not noticed");
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains("linux"), "{mutation:?}: {text}");
    }
}

type Kinds = fn(&mut Rng) -> &'static [Kind];

/// The entry point of the worker processes. In other processes it returns immediately.
#[test]
fn worker_answers_until_its_driver_ends() {
    process::serve();
}
