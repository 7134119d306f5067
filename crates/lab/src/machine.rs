//! The machine of a run, and the share of its processors that other processes used.
//!
//! Times can be compared only on the same machine, and other processes make them wrong. So each
//! table records the processor, the number of cores, the kernel and the commit. The run also prints
//! how much processor time other processes used.
//!
//! Source: `/proc/cpuinfo`, `/proc/stat`, uname(2), clock_gettime(2).

use std::fmt::{self, Display};
use std::fs;
use std::process::Command;
use std::time::Instant;

use corewalk_base::primitives::thread;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};

/// Nanoseconds of a clock tick, the unit of `/proc/stat`.
const TICK_NS: u64 = 10_000_000;

/// Where a table was measured.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Machine {
    /// The processor's name.
    pub cpu: String,
    /// The number of processors that the process may use.
    pub cores: usize,
    /// The kernel's release.
    pub kernel: String,
    /// The commit of the lab's source tree, with `-dirty` if files were changed since. `unknown`
    /// outside of a repository.
    pub commit: String,
}

impl Machine {
    /// Returns the machine that the process runs on.
    pub(crate) fn here() -> Machine {
        let cpuinfo = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
        let model = cpuinfo.lines().find_map(|line| line.strip_prefix("model name\t: "));
        let cpu = model.unwrap_or("unknown").to_owned();
        let kernel = rustix::system::uname().release().to_string_lossy().into_owned();
        Machine { cpu, cores: cores(), kernel, commit: commit() }
    }
}

impl Display for Machine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Machine { cpu, cores, kernel, commit } = self;
        write!(f, "{cpu}, {cores} cores, Linux {kernel}, commit {commit}")
    }
}

/// Returns how many processors the process may use.
pub(crate) fn cores() -> usize {
    thread::available_parallelism().map_or(1, usize::from)
}

/// Returns the processor time of the calling thread in nanoseconds.
pub(crate) fn thread_cpu_ns() -> u64 {
    clock_ns(ClockId::ThreadCPUTime)
}

/// Returns a function that returns the share of processor time, from 0 to 1, that other processes
/// have used since this call. The kernel counts in steps of 10 ms.
pub(crate) fn watch_others() -> impl Fn() -> f64 {
    let (start, busy, own) = (Instant::now(), busy_ns(), clock_ns(ClockId::ProcessCPUTime));
    move || {
        let own = clock_ns(ClockId::ProcessCPUTime) - own;
        let others = (busy_ns() - busy).saturating_sub(own) as f64;
        let all = start.elapsed().as_nanos() as f64 * cores() as f64;
        if all > 0.0 { (others / all).clamp(0.0, 1.0) } else { 0.0 }
    }
}

/// Returns the sum of the busy times of all processors in nanoseconds, or 0 if that is unknown.
fn busy_ns() -> u64 {
    let stat = fs::read_to_string("/proc/stat").unwrap_or_default();
    // After its name, a line of `/proc/stat` has the fields user, nice, system, idle, iowait, irq,
    // softirq and steal. The times of later fields are part of user and nice.
    let fields = stat.lines().next().unwrap_or_default().split_whitespace().skip(1).take(8);
    let fields = fields.enumerate().filter(|(at, _)| !matches!(at, 3 | 4));
    fields.filter_map(|(_, ticks)| ticks.parse::<u64>().ok()).sum::<u64>() * TICK_NS
}

fn clock_ns(clock: ClockId) -> u64 {
    let now = clock_gettime(clock);
    now.tv_sec as u64 * 1_000_000_000 + now.tv_nsec as u64
}

fn commit() -> String {
    let output = Command::new("git")
        .args(["-C", env!("CARGO_MANIFEST_DIR"), "describe", "--always", "--abbrev=12"])
        .args(["--exclude=*", "--dirty"])
        .output();
    let output = output.ok().filter(|output| output.status.success());
    let commit = output.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    commit.unwrap_or_else(|| String::from("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn machine_has_a_kernel_and_at_least_one_core() {
        let machine = Machine::here();
        assert!(machine.cores >= 1);
        assert!(machine.kernel.chars().next().is_some_and(|c| c.is_ascii_digit()));
        assert!(!machine.commit.is_empty() && !machine.cpu.is_empty());
    }

    #[test]
    fn thread_clock_runs_while_the_thread_works() {
        let before = thread_cpu_ns();
        let mut sum = 0_u64;
        for n in 0..1_000_000_u64 {
            sum = std::hint::black_box(sum ^ n);
        }
        assert!(thread_cpu_ns() > before);
    }

    #[test]
    fn share_of_others_is_a_share() {
        assert!((0.0..=1.0).contains(&watch_others()()));
    }
}
