//! Benchmark table `fuse-metadata`: metadata operations on a FUSE mount, compared with other mounts
//! on the same machine.
//!
//! Each client process makes, stats, lists, renames and removes empty files in its own directory,
//! and sets an attribute of 1 KiB (`setxattr`). Then it writes a few files of 4 KiB with one
//! fsync(2) each, new ones (`create+fsync`) and existing ones (`write+fsync`). Units: operations
//! per second of wall time, and nanoseconds of processor time (clients and server) per operation.
//!
//! | variant | server | files are in |
//! |---|---|---|
//! | `corewalk` | `corewalk mount tmpfs` with the default, `-o transport=auto` | its own memory |
//! | `corewalk-dev` | the same with `-o transport=dev` | its own memory |
//! | `corewalk-fuser` | the same with `-o transport=fuser` | its own memory |
//! | `corewalk-hostfs` | `corewalk mount DIRECTORY` | the host's tmpfs |
//! | `corewalk-store` | `corewalk mount store:DIRECTORY` | a directory of the disk |
//! | `trivial` | a map under a lock (`peer/trivial`), transport of `corewalk` | its own memory |
//! | `bindfs` | bindfs | the host's tmpfs |
//! | `passthrough_ll` | the low-level example of libfuse | the host's tmpfs |
//! | `linux` | none: shows what a server costs | the host's tmpfs |
//! | `linux-ext4` | none | the disk of the store, if it has an ext4 |
//!
//! Without io_uring (`peer/programs`), the variant `corewalk` is the same as `corewalk-dev`, and
//! there is no variant `trivial`.
//!
//! # Conditions of all mounts
//! - All timeouts are 0, and the kernel checks permissions (`peer/programs`). A mount without
//!   permission checks is not measured.
//! - Every server is mounted twice: with one thread for a single client, and with several threads
//!   for several clients. A single client runs on the server's processor, since the wake-up of an
//!   idle processor would cost more than the request.
//!
//! # Which variants to compare
//! - `corewalk` over `trivial` shows the cost of everything above the transport.
//! - Compare bindfs and passthrough_ll with `corewalk-hostfs`: all make system calls to the host.
//!   bindfs resolves a path for each request and lists without attributes (no READDIRPLUS).
//! - Only on a disk does fsync(2) have work to do. Compare `corewalk-store` with `linux-ext4`.
//!
//! Source: mdtest (<https://github.com/hpc/ior>) for the phases, except for renames and attributes.

use super::prelude::*;
use crate::client::{self, Client, PHASES, is_sync};
use crate::machine::cores;
use crate::peer::{self, Mounted, check_interrupt};
use std::ffi::OsString;
use std::ops::RangeInclusive;
use std::path::Path;

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "bindfs";
/// The variant that must work.
const OURS: &str = "corewalk";
/// Variants of [`OURS`] with a fixed transport, each with the mount option that sets it.
const TRANSPORTS: [(&str, &str); 2] =
    [("corewalk-dev", "transport=dev"), ("corewalk-fuser", "transport=fuser")];
const TRIVIAL: &str = "trivial";
const PASSTHROUGH_LL: &str = "passthrough_ll";
/// The servers, in the order in which they are mounted.
const SERVERS: [&str; 8] = [
    OURS,
    TRANSPORTS[0].0,
    TRANSPORTS[1].0,
    "corewalk-hostfs",
    STORE,
    TRIVIAL,
    PASSTHROUGH_LL,
    BASELINE,
];
/// The variant that keeps its files on a disk.
const STORE: &str = "corewalk-store";
/// The assumed operations per second on a mount, from which the number of files is computed.
const EXPECTED_OPS_PER_S: f64 = 10_000.0;
/// The measuring time per row, as a fraction of the usual time. It is below 1, because there are
/// many rows.
const SHARE: f64 = 0.6;
/// Minimum and maximum number of files of one process.
const FILES: [usize; 2] = [50, 20_000];
/// `MOUNTS` is the number of mounts. Each server has two mounts, one for a single client and one
/// for several clients, and two mounts have no server. `SERVING` is the number of mounts that are
/// used for a given number of clients.
const MOUNTS: usize = 2 * SERVERS.len() + 2;
const SERVING: usize = SERVERS.len() + 2;

/// The numbers of clients for which a mount is used.
type Serves = RangeInclusive<usize>;

/// The table.
pub(super) const TABLE: Table = Table { name: "fuse-metadata", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let phases = PHASES.iter().filter(|phase| !is_sync(phase)).count();
    let seconds = phases as f64 * files(settings) as f64 / EXPECTED_OPS_PER_S;
    let processes: usize = settings.threads.iter().sum();
    let serving = SERVING as f64 / MOUNTS as f64;
    let slice = seconds * processes as f64 * serving / settings.threads.len().max(1) as f64;
    let cells = cells(&[("processes", values(&settings.threads))]);
    let sweep = Sweep::new(cells, MOUNTS, BASELINE, 1.0);
    let share = slice / sweep.slice(settings).as_secs_f64().max(1e-9);
    vec![Sweep { share, ..sweep }]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let program = run.program()?;
    let source = Scratch::new(Path::new(peer::TMPFS), "source")?;
    let scratch = Scratch::new(&std::env::temp_dir(), "mounts")?;
    let disk = Scratch::new(&std::env::temp_dir(), "disk")?;
    let mounts = mounts(&scratch, &source, &disk)?;
    run.each(&run.sweeps[0], mounts.len(), |visit| {
        let (serves, mount) = &mounts[visit.at];
        let clients = visit.cell.number("processes");
        if !serves.contains(&clients) {
            return Ok(());
        }
        let slices = session(run, program, mount, clients)?;
        for (phase, slice) in PHASES.into_iter().zip(slices) {
            let params = visit.cell.with("op", phase).0;
            slice.add_to(samples, visit.round, mount.variant, &params, BASELINE, &params)?;
        }
        Ok(())
    })
}

/// Runs all phases on a mount with `processes` clients, and returns the slice (counts and times) of
/// each. A single client shares a processor with the server.
fn session(
    run: &Run<'_>,
    program: &Path,
    mount: &Mounted,
    processes: usize,
) -> anyhow::Result<Vec<Slice>> {
    let first = cpus::each()[0];
    let is_alone = processes == 1;
    // A server for several clients is not pinned, since it places its threads itself: each ring of
    // io_uring, with its thread, belongs to a processor.
    if is_alone {
        mount.pin(&cpus::one(first));
    }
    let files = files(run.settings).to_string();
    let start = |n: usize| {
        let directory = mount.directory.join(format!("client-{n}"));
        let mut args = vec!["client".into(), directory.into(), (&files).into()];
        args.extend(is_alone.then(|| first.to_string().into()));
        Client::spawn(program, args, &[])
    };
    let mut clients = (0..processes).map(start).collect::<anyhow::Result<Vec<Client>>>()?;
    let mut slices = vec![];
    for phase in PHASES {
        check_interrupt()?;
        let server_ns = mount.cpu_ns();
        let slice = client::run_all(&mut clients, "go");
        let mut slice = slice.with_context(|| format!("{}: {phase}", mount.variant))?;
        // If threads of the server have ended, the sum of its processor time is lower than before.
        // The difference then counts as 0.
        slice.cpu_ns += mount.cpu_ns().saturating_sub(server_ns);
        slices.push(slice);
    }
    clients.into_iter().try_for_each(Client::finish)?;
    Ok(slices)
}

/// Mounts all file systems that are measured. Prints the name of a server that is not installed,
/// and skips it.
fn mounts(
    scratch: &Scratch,
    source: &Scratch,
    disk: &Scratch,
) -> anyhow::Result<Vec<(Serves, Mounted)>> {
    let mut mounts = vec![];
    for variant in SERVERS {
        let transport = TRANSPORTS.iter().find(|(name, _)| *name == variant);
        for (serves, threads) in [(1..=1, 1), (2..=usize::MAX, cores().max(2))] {
            let folder = format!("{variant}-{threads}");
            let point = scratch.folder(&folder)?;
            let below: OsString = match variant {
                _ if variant == OURS || transport.is_some() => "tmpfs".into(),
                STORE => format!("store:{}", disk.folder(&folder)?.display()).into(),
                _ => source.folder(&folder)?.into(),
            };
            let found = match variant {
                TRIVIAL => peer::trivial(threads, &point),
                _ => peer::server(variant, Some(threads), &below, &point, scratch.path()),
            };
            let program = found.map(|mut program| {
                program.args(transport.iter().flat_map(|(_, option)| ["-o", option]));
                program
            });
            let Some(mounted) = Mounted::start_or_skip(TABLE.name, variant, program, point)? else {
                break;
            };
            mounts.push((serves, mounted));
        }
    }
    let without_server = Mounted::without_server(TABLE.name, source, disk)?;
    mounts.extend(without_server.into_iter().map(|mount| (1..=usize::MAX, mount)));
    Ok(mounts)
}

/// Returns how many files each process makes.
fn files(settings: &Settings) -> usize {
    let seconds = SHARE * settings.time_per_row.as_secs_f64() / settings.rounds as f64;
    let files = ((seconds * EXPECTED_OPS_PER_S) as usize).clamp(FILES[0], FILES[1]);
    sized(settings.size, (FILES[0], files))
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
            program: None,
        };
        assert_eq!(files(&settings(1.0)), 1_200);
        assert_eq!(files(&settings(0.001)), FILES[0]);
        assert_eq!(files(&settings(1e6)), FILES[1]);
    }
}
