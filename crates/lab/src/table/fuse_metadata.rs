//! Table `fuse-metadata`: what a mount costs, beside other mounts on the same machine.
//!
//! Source: section 2 of the study of FUSE servers. Machine of the study: 2 virtual processors; here:
//! whatever this is run on. Units: operations per second of wall time (all processes together), and
//! nanoseconds of processor time per operation, of the clients and the server.
//!
//! Each process makes, stats, lists with stat, renames and removes empty files in a directory of its
//! own. All timeouts are 0, so that the kernel asks the server each time. `corewalk` serves its
//! tmpfs; the peers pass a directory on the host's tmpfs through; `linux` is that tmpfs without a
//! server, for the distance that remains. With one process client and server share one processor,
//! since waking an idle one costs more than the request and makes the result bimodal.
//!
//! What cannot be reproduced: a FUSE request costs 5 to 50 microseconds and a lookup in memory 0.05
//! to 0.3, so this table cannot show what lookups gain; it shows that nothing is lost.
//!
//! # Checks
//! Each client checks what it gets (`client`). All mounts are up at once and go at the end, also
//! after an error or a signal.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_sync::primitives::thread;

use super::{Settings, Size, Table, progress, rotated};
use crate::client::{Client, Lap, Phase};
use crate::machine::Disturbance;
use crate::peer::{self, Interrupt, Mounted, Program, Scratch};
use crate::samples::{Metric, Params, Samples};

/// The variant that all are compared with.
const BASELINE: &str = "bindfs";
/// Where the host has a tmpfs.
const TMPFS: &str = "/dev/shm";
/// Operations per second that a mount is expected to reach, to choose how many files there are.
const EXPECTED_OPS_PER_S: f64 = 10_000.0;
/// The least and the most files of one process.
const FILES: [usize; 2] = [50, 20_000];
/// For how long the machine is watched before the run, to see who else works.
const WATCH: Duration = Duration::from_millis(300);

/// The table.
pub(super) struct FuseMetadata;

/// How a peer is found.
type Find = dyn Fn(&Path, &Path) -> anyhow::Result<Program>;

impl Table for FuseMetadata {
    fn name(&self) -> &'static str {
        "fuse-metadata"
    }

    fn source(&self) -> &'static str {
        "study of FUSE servers, section 2: metadata operations on mounts, timeouts 0"
    }

    fn about(&self) -> &'static str {
        "create, stat, readdir+stat, rename, unlink on a corewalk tmpfs mount and on peers"
    }

    fn run(&self, settings: &Settings) -> anyhow::Result<Samples> {
        let again = settings.again.as_ref().context("there is no program to start again")?;
        let interrupt = Interrupt::watch()?;
        let source = Scratch::new(Path::new(TMPFS), "source")?;
        let scratch = Scratch::new(&std::env::temp_dir(), "mounts")?;
        let mounts = mounts(&scratch, &source)?;
        let disturbance = Disturbance::start();
        thread::sleep(WATCH);
        eprintln!(
            "fuse-metadata: other processes used {:.0} % of the machine before the run",
            100.0 * disturbance.share()
        );
        let mut samples = Samples::default();
        let bar = progress(settings.rounds * settings.threads.len() * mounts.len());
        for round in 0..settings.rounds {
            for &processes in &settings.threads {
                for at in rotated(mounts.len(), round) {
                    interrupt.check()?;
                    bar.set_message(format!("{} x{processes}", mounts[at].variant()));
                    let session = Session { again, mount: &mounts[at], processes, round };
                    session.run(files(settings), &interrupt, &mut samples)?;
                    bar.inc(1);
                }
            }
        }
        bar.finish_and_clear();
        Ok(samples)
    }
}

/// One mount, one number of processes, one round.
struct Session<'a> {
    again: &'a [String],
    mount: &'a Mounted,
    processes: usize,
    round: usize,
}

impl Session<'_> {
    fn run(
        &self,
        files: usize,
        interrupt: &Interrupt,
        samples: &mut Samples,
    ) -> anyhow::Result<()> {
        let all = peer::all_cpus()?;
        let (one, number) = peer::one_cpu(&all);
        let is_alone = self.processes == 1;
        self.mount.pin(if is_alone { &one } else { &all });
        let mut clients = vec![];
        for n in 0..self.processes {
            let directory = self.mount.directory().join(format!("client-{n}"));
            let cpu = is_alone.then_some(number);
            clients.push(Client::start(self.again, &directory, files, cpu)?);
        }
        for phase in Phase::ALL {
            interrupt.check()?;
            let server_ns = self.mount.cpu_ns();
            clients.iter_mut().try_for_each(Client::go)?;
            let laps: Vec<Lap> = clients
                .iter_mut()
                .map(Client::lap)
                .collect::<anyhow::Result<_>>()
                .with_context(|| format!("{}: {}", self.mount.variant(), phase.name()))?;
            // A server that has ended threads meanwhile has less than before: then it is unknown.
            let server_ns = self.mount.cpu_ns().saturating_sub(server_ns);
            self.record(phase, &laps, server_ns, samples);
        }
        clients.into_iter().try_for_each(Client::finish)
    }

    fn record(&self, phase: Phase, laps: &[Lap], server_ns: u64, samples: &mut Samples) {
        let params =
            Params::from([("op", phase.name().into()), ("processes", self.processes.into())]);
        let rate = |lap: &Lap| lap.ops as f64 * 1e9 / lap.wall_ns.max(1) as f64;
        let ops: u64 = laps.iter().map(|lap| lap.ops).sum();
        let cpu_ns = server_ns + laps.iter().map(|lap| lap.cpu_ns).sum::<u64>();
        let measured = [
            (Metric::OpsPerSecond, laps.iter().map(rate).sum()),
            (Metric::NsPerOp, cpu_ns as f64 / ops.max(1) as f64),
        ];
        for value in measured {
            samples.add(self.round, self.mount.variant(), &params, value, BASELINE);
        }
    }
}

/// Returns everything that is measured, mounted; a peer that is not there is named.
fn mounts(scratch: &Scratch, source: &Scratch) -> anyhow::Result<Vec<Mounted>> {
    let build = scratch.folder("build")?;
    let ll = move |source: &Path, mount: &Path| peer::passthrough_ll(source, mount, &build);
    let peers: [(&'static str, &Find); 4] = [
        ("corewalk", &peer::ours),
        ("bindfs", &peer::bindfs),
        ("passthrough_hp", &peer::passthrough_hp),
        ("passthrough_ll", &ll),
    ];
    let mut mounts = vec![];
    for (variant, find) in peers {
        let (below, point): (PathBuf, PathBuf) =
            (source.folder(variant)?, scratch.folder(variant)?);
        let mounted = find(&below, &point).and_then(|p| Mounted::start(variant, p, point.clone()));
        match mounted {
            Ok(mounted) => mounts.push(mounted),
            Err(error) => eprintln!("fuse-metadata: skipped {variant}: {error:#}"),
        }
    }
    ensure!(
        mounts.first().is_some_and(|first| first.variant() == "corewalk"),
        "corewalk's own mount does not work here"
    );
    mounts.push(Mounted::plain("linux", source.folder("linux")?));
    Ok(mounts)
}

/// Returns how many files each process makes.
fn files(settings: &Settings) -> usize {
    match settings.size {
        Size::Quick => FILES[0],
        Size::Full => {
            let seconds = settings.time_per_row.as_secs_f64() / settings.rounds as f64;
            ((seconds * EXPECTED_OPS_PER_S) as usize).clamp(FILES[0], FILES[1])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn number_of_files_follows_the_time_there_is() {
        let settings = |seconds| Settings {
            size: Size::Full,
            threads: vec![1],
            time_per_row: Duration::from_secs_f64(seconds),
            rounds: 5,
            again: None,
        };
        assert_eq!(files(&settings(1.0)), 2_000);
        assert_eq!(files(&settings(0.001)), FILES[0]);
        assert_eq!(files(&settings(1e6)), FILES[1]);
    }
}
