//! The same scripts on the host kernel and on ours: every answer is the same.
//!
//! A script is a sequence of steps of one to four tasks, one at a time; a call that blocks stays
//! blocked until a later step lets it go on. After each step it is known on both sides which calls
//! still wait, and what the others returned is compared: values, errno, ids, counts, pids,
//! permissions. Times are not, except whether there is one.
//!
//! `COREWALK_DIFFERENTIAL_OPS` sets the number of steps; a million takes some minutes. The kernel's side
//! runs in an IPC namespace of its own; where that is not permitted the tests skip.
//!
//! The scripts, and how they are compared, serve `crates/ipc-preload/tests/differential` as well, where the
//! other side is the same processes with the preload library.
//!
//! Source: research on the semantics of Linux 6.18; `docs/testing.md`.

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

/// A run that is not told otherwise: on a slow machine it takes longer for the least, and then comes to its end.
const EXTENT: Extent = Extent { steps: 4_000, least: 1_000, limit: Duration::from_secs(60) };

fn pairing(mutation: Mutation) -> Option<Pairing> {
    let namespace = Namespace::new(NamespaceOptions::default()).expect("memory");
    Pairing::new(Box::new(move |pid| Box::new(ours::Worker::start(&namespace, pid, mutation))))
}

/// Returns what a script is about: mostly one kind of object.
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
fn control_mutated_semantics_are_found_out() {
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
        let mut pairing = pairing(mutation).expect("it was tried");
        let extent = Extent { limit: Duration::MAX, ..EXTENT };
        let run = || pairing.fuzz(Seed(1), extent, kinds);
        let fuzzed = catch_unwind(AssertUnwindSafe(run));
        let panic = fuzzed.expect_err("a mutation was not found out");
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains("linux"), "{mutation:?}: {text}");
    }
}

type Kinds = fn(&mut Rng) -> &'static [Kind];

/// Not a test of its own: the processes that the kernel's side runs.
#[test]
fn worker_answers_until_its_driver_ends() {
    process::serve();
}
