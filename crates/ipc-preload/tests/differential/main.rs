//! Compares the preload library with the host kernel, by the scripts of
//! `crates/ipc/tests/differential`. A program must get the same answers from both.
//!
//! Each operation runs twice: with the library, and on the host kernel. Both times, a child process
//! of the test reads the operation from a pipe, and calls the function of libc. The processes with
//! the library get a namespace in their environment, as `corewalk ipc exec` starts a command. The
//! test process applies the undo of killed processes.
//!
//! The test compares everything that a caller sees: results, errnos, and the structures of `*_STAT`
//! and `*_INFO`. Pids are translated before the comparison. A time counts as equal if it is set on
//! both sides or on neither. Ids must be equal on both sides.
//!
//! `COREWALK_DIFFERENTIAL_OPS` sets the number of steps. Where the kernel does not permit an IPC
//! namespace of its own, this program skips all tests.
//!
//! This program does not use Rust's test runner (`harness = false`), because the runner adds a
//! second thread to each process. A process that ends applies its own undo only if it has one
//! thread (guarantee P.4 of the preload library).
//!
//! Source: `docs/developing/testing.md`.

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

/// How long the random run lasts: `steps` steps, or until the time limit, but at least `least`
/// steps.
const EXTENT: Extent = Extent { steps: 20_000, least: 2_000, limit: Duration::from_secs(40) };

const CONTROL: Extent = Extent { steps: 4_000, least: 4_000, limit: Duration::MAX };

type Kinds = fn(&mut Rng) -> &'static [Kind];

fn main() {
    // In a child process that `Pairing` has started, `serve` carries out operations and does not
    // return.
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

/// Control test: injects the bug `change` into the answers of the library. The comparison must find
/// a difference.
fn control(change: Change, kinds: Kinds) {
    let mut pairing = Pairing::new(mapped::starter(Some(change))).expect("it was tried");
    let run = || pairing.fuzz(Seed(1), CONTROL, kinds);
    // A control is meant to fail, so its panic prints nothing.
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
