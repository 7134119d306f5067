//! Benchmark table `cluster-metadata`: a cluster file system, beside mounts of the same S3 server
//! and beside a tmpfs of corewalk.
//!
//! The lab starts a PostgreSQL and an S3 server (versitygw), and stops them at the end. Each round
//! does the operations in order ([`OPS`]), each on all variants. One process makes all calls.
//!
//! | variant | file system |
//! |---|---|
//! | `corewalk` | `corewalk mount pg://...` beside two idle mounts, with objects in the S3 server |
//! | `six-statements` | none: a client that makes files by six statements (`six_statements`) |
//! | `s3fs`, `rclone` | s3fs and `rclone mount` on the same S3 server |
//! | `better-peer` | the better of these two in each round |
//! | `corewalk-tmpfs` | `corewalk mount tmpfs` |
//!
//! `corewalk` has the option `kernel_names`, all other mounts have their default options. The
//! connections to the database go through a proxy. It counts bytes, and delays each message by
//! `delay_us` in each direction.
//!
//! # Units
//! `find`, `rename`, `write` and `read` are measured in `seconds`. The other operations are
//! repeated for a time, in `ops_per_s`. Counters are per operation. A directory of `find`, the
//! whole `rename`, and a MiB of `write` and `read` are one operation. Statements include the
//! renewals of the lease.
//!
//! With `--seconds 20`, `find` reads 1,000 directories of 100 files, and `write` writes 1 GiB. All
//! times and sizes are proportional to the seconds. Before `find` and `read` all mounts but that of
//! the tmpfs are mounted again, so that they have no caches.
//!
//! # Durability
//! PostgreSQL syncs its log at each commit. The S3 server does not sync. In all mounts of the S3
//! server, close(2) returns when the server has the bytes.
//!
//! # Checks
//! Every call must succeed. `find` must list all files, a renamed directory must have all names,
//! and each MiB that `read` finds must begin with its offset.
//!
//! Source: s3fs(1); rclone-mount(1); JuiceFS, whose SQL engine makes a file by several statements.

mod ops;
mod site;
mod six_statements;

use super::prelude::*;
use crate::peer::Mounted;
use ops::{Sizes, Work};
use site::Site;
use six_statements::SixStatements;

/// The variant that must work.
const OURS: &str = "corewalk";
const TMPFS: &str = "corewalk-tmpfs";
const SIX: &str = "six-statements";
const PEERS: [&str; 2] = ["s3fs", "rclone"];
const BETTER_PEER: &str = "better-peer";
/// The idle mounts beside ours.
const BESIDE: [&str; 2] = ["beside-1", "beside-2"];
/// The file systems, in the order in which they are mounted.
const MOUNTS: [&str; 4] = [OURS, PEERS[0], PEERS[1], TMPFS];
/// The operations of a round in their order, each with the baseline of its rows.
const OPS: [(&str, &str); 11] = [
    ("create", SIX),
    ("create delayed", SIX),
    ("unlink", BETTER_PEER),
    ("mkdir", BETTER_PEER),
    ("lookup", TMPFS),
    ("absent lookup", TMPFS),
    ("small file", BETTER_PEER),
    ("rename", BETTER_PEER),
    ("find", BETTER_PEER),
    ("write", BETTER_PEER),
    ("read", BETTER_PEER),
];
/// The delay of each message of `create delayed`.
const DELAY: Duration = Duration::from_micros(500);
/// Estimated seconds for one operation of one variant, over all rounds, per second of the setting
/// `time_per_row`. The duration of a run is computed from it.
const SHARE: f64 = 1.7;

/// The table.
pub(super) const TABLE: Table = Table { name: "cluster-metadata", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let sizes = Sizes::new(settings);
    let cell = |(op, _): &(&'static str, &str)| {
        let cell = Cell::default().with("op", *op);
        match *op {
            "create" => cell.with("delay_us", 0),
            "create delayed" => {
                cell.with("op", "create").with("delay_us", DELAY.as_micros() as u64)
            }
            "rename" => cell.with("names", sizes.names),
            "find" => cell.with("directories", sizes.directories),
            "write" | "read" => cell.with("mib", sizes.mib),
            _ => cell,
        }
    };
    let cells = OPS.iter().map(cell).collect();
    vec![Sweep::new(cells, MOUNTS.len() + 1, BETTER_PEER, SHARE)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let sizes = Sizes::new(run.settings);
    let limit = run.settings.time_per_row / run.settings.rounds as u32;
    let site = Site::start()?;
    let mut six = SixStatements::new(site.six.url())?;
    let _beside = [site.mount(BESIDE[0])?, site.mount(BESIDE[1])?];
    let mut mounts = vec![];
    for variant in MOUNTS {
        mounts.extend(site.first_mount(variant, &sizes)?);
    }
    run.each(&run.sweeps[0], mounts.len() + 1, |visit| {
        let (cell, round) = (visit.cell, visit.round);
        let delay = Duration::from_micros(cell.number("delay_us") as u64);
        let op = cell.word("op");
        let variant = mounts.get(visit.at).map_or(SIX, |mount: &Mounted| mount.variant);
        let is_wanted = match variant {
            OURS => true,
            SIX => op == "create",
            _ => delay.is_zero(),
        };
        if !is_wanted {
            return Ok(());
        }
        if ops::is_cold(op) && ![SIX, TMPFS].contains(&variant) {
            drop(mounts.remove(visit.at));
            mounts.insert(visit.at, site.mount(variant)?);
        }
        let mount = mounts.get(visit.at);
        let counters = || site.counters(mount);
        let work = Work { op, round, delay, limit, sizes, counters: &counters };
        site.delay(delay);
        let done = match mount {
            Some(mount) => work.run(&mount.directory),
            None => work.repeat(usize::MAX, |_| six.create()),
        };
        site.delay(Duration::ZERO);
        let done = done.with_context(|| format!("{variant}: {op}"))?;
        let (_, baseline) = OPS.iter().find(|(other, _)| *other == op).context("no such op")?;
        let mut add = |value| samples.add(round, variant, &cell.0, value, baseline);
        add(match ops::is_repeated(op) {
            true => (Metric::OPS_PER_SECOND, done.count as f64 / done.seconds),
            false => (Metric::SECONDS, done.seconds),
        });
        for (metric, counted) in done.counted {
            add((metric, counted as f64 / done.count as f64));
        }
        if variant == SIX {
            add((Metric::STATEMENTS_PER_OP, 6.0));
        }
        Ok(())
    })?;
    samples.add_best(BETTER_PEER, &PEERS);
    Ok(())
}
