//! Races of calls on several mounts in the kernel. Each history must be linearizable, with and
//! without disturbances. `COREWALK_COHERENT_CALLS` sets the number of calls of each history test,
//! and `COREWALK_COHERENT_STOP` how many seconds a disturbance lasts.
//!
//! A mount has several protections against outdated entries in the kernel's cache. For each there
//! is a control, a run without this protection, in which the check must find an error.

use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::require::{has_fuse, has_root};
use corewalk_testkit::rng::{ReportSeed, Seed};
use rustix::process::Signal;

use crate::fixtures::Site;
use crate::mounted::Mounted;
use crate::network::{ADDRESS, Network};
use crate::run::{CALLS, Run};
use corewalk_testkit::proxy::Proxy;

pub(crate) const LEASE: Duration = Duration::from_secs(2);
/// A run that takes longer hangs.
const LIMIT: Duration = Duration::from_secs(3 * 3600);

pub(crate) fn site() -> Option<Site> {
    if has_fuse() && has_root() { Site::new() } else { None }
}

pub(crate) fn mount<const N: usize>(site: &Site, flaws: [&str; N]) -> [Mounted; N] {
    flaws.map(|flaw| Mounted::new(&site.url, LEASE, flaw))
}

/// Waits until each mount knows of the other mounts. A mount learns of another one at its next
/// renewal.
pub(crate) fn wait_for_company() {
    thread::sleep(LEASE);
}

fn race<const N: usize>(flaws: [&str; N], rounds: usize) -> Option<Result<usize, String>> {
    let site = site()?;
    let _watchdog = Watchdog::start("a race of mounts", LIMIT);
    let seed = ReportSeed::new(Seed::choose());
    let mut mounts = mount(&site, flaws);
    wait_for_company();
    let run = Run::new(rounds, Duration::from_micros(300), seed.seed());
    let done = run.race(&mut mounts, |_, _| {}, |_| {});
    drop(mounts);
    site.assert_clean();
    Some(done)
}

/// Returns true if a race shows the planted `flaw`, or if the machine cannot mount. Runs up to four
/// races, since on a busy machine one may not show the flaw.
fn is_caught(flaw: &str) -> bool {
    (0..4).any(|_| race(["none", flaw], 300).is_none_or(|done| done.is_err()))
}

/// `COREWALK_COHERENT_CALLS` overrides `calls`.
fn rounds(calls: usize) -> usize {
    let calls = match std::env::var("COREWALK_COHERENT_CALLS") {
        Ok(text) => text.parse().expect("COREWALK_COHERENT_CALLS is a number"),
        Err(_) => calls,
    };
    calls.div_ceil(3 * 2 * CALLS)
}

#[test]
fn histories_of_three_mounts_are_linearizable() {
    let Some(done) = race(["none", "none", "busy"], rounds(20_000)) else { return };
    println!("{} calls", done.unwrap_or_else(|text| panic!("{text}")));
}

#[test]
fn control_names_that_stay_after_an_intent_are_caught() {
    assert!(is_caught("keeps_names"));
}

#[test]
fn control_attributes_that_stay_after_an_intent_are_caught() {
    assert!(is_caught("keeps_attributes"));
}

fn finds_after_other_mount(flaw: &str) -> Option<bool> {
    let site = site()?;
    let proxy = Proxy::new(&site.url);
    let [other] = mount(&site, ["none"]);
    let slow = Mounted::new(proxy.url(), LEASE, flaw);
    std::fs::create_dir(other.path().join("e")).expect("the directory is made");
    wait_for_company();
    let (made, seen) = (slow.path().join("e/x"), other.path().join("e/x"));
    (0..2).for_each(|_| assert!(!made.exists()));
    proxy.delay(LEASE / 40);
    let _watchdog = Watchdog::start("a change over a slow connection", LEASE * 20);
    Some(thread::scope(|scope| {
        scope.spawn(|| std::fs::write(&made, "").expect("the file is made"));
        while !seen.exists() {
            thread::sleep(Duration::from_millis(2));
        }
        made.exists()
    }))
}

#[test]
fn own_change_is_seen_here_when_it_is_seen_elsewhere() {
    assert_ne!(finds_after_other_mount("none"), Some(false));
}

#[test]
fn control_answers_that_stay_before_an_own_change_are_caught() {
    assert_ne!(finds_after_other_mount("keeps_before_change"), Some(true));
}

#[test]
fn mount_that_hears_nothing_is_late_but_not_wrong() {
    let Some(done) = race(["none", "hears_nothing"], 9) else { return };
    done.unwrap_or_else(|text| panic!("{text}"));
}

fn stop_time() -> Duration {
    let given = std::env::var("COREWALK_COHERENT_STOP").ok();
    let seconds = given.map(|text| text.parse().expect("COREWALK_COHERENT_STOP is a number"));
    seconds.map_or(LEASE * 2, Duration::from_secs)
}

/// The disturbances of a round. The third mount is stopped, killed or cut off, or the database
/// server crashes.
#[derive(Clone, Copy, Debug)]
enum Disturbance {
    /// SIGSTOP, and after [`stop_time`] SIGCONT.
    Stop,
    /// SIGKILL. After the round, a new process mounts.
    Kill,
    /// For [`stop_time`], all packets between the mount and the database are lost.
    Cut,
    /// The database server is killed, and starts again.
    Crash,
}

/// Runs races of three mounts. In every twentieth round a disturbance happens, and the calls of the
/// round are spread over the time of the disturbance.
#[test]
fn histories_of_disturbed_mounts_are_linearizable() {
    use Disturbance::{Crash, Cut, Kill, Stop};
    if !(has_fuse() && has_root()) {
        return;
    }
    let Some(network) = Network::new(3) else { return };
    let Some(mut postgres) = Postgres::start_on(ADDRESS) else { return };
    let site = Site::on(&postgres);
    let mount = |number| Mounted::in_network(&network.name(number), &site.url, LEASE);
    let mut mounts = [0, 1, 2].map(mount);
    let _watchdog = Watchdog::start("disturbed races of mounts", LIMIT);
    let seed = ReportSeed::new(Seed::choose());
    wait_for_company();
    let mut count = 0;
    let disturbances = [Stop, Kill, Cut, Crash].into_iter().cycle();
    for (block, disturbance) in (0..(rounds(24_000) / 20).max(1)).zip(disturbances) {
        let mut run = Run::new(19, Duration::from_micros(300), seed.seed());
        run.first = block * 20;
        let done = run.race(&mut mounts, |_, _| {}, |_| {});
        count += done.unwrap_or_else(|text| panic!("{text}"));
        run.rounds = 1;
        run.first = block * 20 + 19;
        run.pace = stop_time() / 20;
        run.changes = [30; 3];
        let disturb = |_, mounts: &[Mounted]| {
            thread::sleep(LEASE / 4);
            match disturbance {
                Stop => mounts[2].signal(Signal::STOP),
                Kill => mounts[2].signal(Signal::KILL),
                Cut => network.set_link(2, false),
                Crash => {
                    postgres.kill();
                    postgres.restart();
                }
            }
            thread::sleep(if matches!(disturbance, Stop | Cut) { stop_time() } else { LEASE / 4 });
            match disturbance {
                Stop => mounts[2].signal(Signal::CONT),
                Cut => network.set_link(2, true),
                Kill | Crash => {}
            }
        };
        let repair = |mounts: &mut [Mounted]| {
            if matches!(disturbance, Kill) {
                mounts[2] = mount(2);
                wait_for_company();
            }
        };
        let done = run.race(&mut mounts, disturb, repair);
        count += done.unwrap_or_else(|text| panic!("{disturbance:?}: {text}"));
    }
    println!("{count} calls");
    drop(mounts);
    site.assert_clean();
}
