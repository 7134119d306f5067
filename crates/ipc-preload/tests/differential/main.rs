//! The scripts of `crates/ipc/tests/differential`, with the preload library on one side: every answer that
//! a program gets through the library is the kernel's.
//!
//! Both sides are processes of this one program, which reads operations from a pipe and makes the calls of
//! libc. Half of them run with the library and a namespace in their environment, as `corewalk ipc exec`
//! starts a command; this process is what looks after the namespace there. What is compared is all that a
//! caller sees: results, errnos, the structures of `*_STAT` and `*_INFO`. Pids are mapped; of times it is compared
//! whether there is one. Ids have to be the same on both sides.
//!
//! `COREWALK_DIFFERENTIAL_OPS` sets the number of steps. Where the kernel does not permit an IPC
//! namespace of its own, this program skips.
//!
//! The controls are a program whose answers are changed on purpose, each in one way.
//!
//! This has no test runner (`harness = false`): a process with one thread is what undoes its operations
//! before it ends (guarantee P.4), and a process of the runner has two.
//!
//! Source: `docs/testing.md`.

#[path = "../../../ipc/tests/differential/corners.rs"]
mod corners;
mod mapped;
#[path = "../../../ipc/tests/differential/msg.rs"]
mod msg;
#[path = "../../../ipc/tests/differential/msg_corners.rs"]
mod msg_corners;
#[path = "../../../ipc/tests/differential/op.rs"]
mod op;
#[path = "../../../ipc/tests/differential/pairing.rs"]
mod pairing;
#[path = "../../../ipc/tests/differential/process.rs"]
mod process;
#[path = "../../../ipc/tests/differential/shm.rs"]
mod shm;
#[path = "../../../ipc/tests/differential/shm_corners.rs"]
mod shm_corners;

use std::panic::{self, AssertUnwindSafe, catch_unwind};
use std::time::Duration;

use corewalk_testkit::rng::{Rng, Seed};

use mapped::Change;
use op::Kind;
use pairing::{Extent, Pairing};

/// A run that is not told otherwise: on a slow machine it takes longer for the least, and then comes to its end.
const EXTENT: Extent = Extent { steps: 20_000, least: 2_000, limit: Duration::from_secs(40) };

/// Steps within which each change has to be found out.
const CONTROL: Extent = Extent { steps: 4_000, least: 4_000, limit: Duration::MAX };

type Kinds = fn(&mut Rng) -> &'static [Kind];

fn main() {
    // In a process that the driver has started this does not return.
    process::serve();
    let Some(pairing) = Pairing::new(mapped::starter(None)) else { return };
    corner_cases(pairing);
    let mut pairing = Pairing::new(mapped::starter(None)).expect("it was tried");
    pairing.fuzz(Seed::choose(), EXTENT.or_asked(), kinds);
    let (sem, msg, shm): (Kinds, Kinds, Kinds) =
        (|_| &[Kind::Sem], |_| &[Kind::Msg], |_| &[Kind::Shm]);
    for (change, kinds) in [
        (Change::Errno, sem),
        (Change::NoUndo, sem),
        (Change::Count, sem),
        (Change::Mode, msg),
        (Change::Type, msg),
        (Change::Attaches, shm),
    ] {
        control(change, kinds);
    }
}

/// Returns what a script is about.
fn kinds(rng: &mut Rng) -> &'static [Kind] {
    match rng.below(5) {
        0 => &[Kind::Sem],
        1 => &[Kind::Msg],
        2 => &[Kind::Shm],
        3 => &[Kind::Sem, Kind::Msg],
        _ => &[Kind::Sem, Kind::Msg, Kind::Shm],
    }
}

fn corner_cases(mut pairing: Pairing) {
    let scripts = corners::SCRIPTS.into_iter().chain(msg_corners::SCRIPTS);
    for (name, script) in scripts.chain(shm_corners::SCRIPTS) {
        script(&mut pairing);
        pairing.clean();
        println!("{name}: the same answers");
    }
}

/// A changed answer has to be found out, or the comparison says nothing.
fn control(change: Change, kinds: Kinds) {
    let mut pairing = Pairing::new(mapped::starter(Some(change))).expect("it was tried");
    let run = || pairing.fuzz(Seed(1), CONTROL, kinds);
    // What is meant to fail need not say so at length.
    let hook = panic::take_hook();
    panic::set_hook(Box::new(|_| {}));
    let fuzzed = catch_unwind(AssertUnwindSafe(run));
    panic::set_hook(hook);
    let found = fuzzed.expect_err("a change was not found out");
    let text = found.downcast_ref::<String>().expect("a message");
    let is_comparison = text.contains("linux") && text.contains("ours");
    assert!(is_comparison, "{change:?} was found out otherwise: {text}");
    let line = text.lines().next().unwrap_or_default();
    println!("control {change:?}: found out, {line}");
}
