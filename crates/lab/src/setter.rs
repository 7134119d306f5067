//! The client of the table `xattr` on a mount: a process that sets attributes of its own files.
//!
//! It speaks with the table as the client of `fuse-metadata` does (`client`): it waits for a line, does
//! a phase, and answers with a line of what that took.
//!
//! # Checks
//! Every call must succeed, at the end every file has the value that it was given last, and the
//! directory is removed. The first wrong answer ends the client.
//!
//! Source: document 004, for what is done; setxattr(2), getxattr(2).

use std::ffi::OsString;
use std::io::{Write, stdin, stdout};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use clap::Args;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, XattrFlags, getxattr, mkdirat, openat, setxattr, unlinkat,
};
use rustix::process::chdir;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::machine::thread_cpu_ns;
use crate::table::{Draws, Pool, VALUE_BYTES};

/// The attribute.
const NAME: &str = "user.bench";
/// Sets between two looks at the clock.
const CHUNK: u64 = 16;

/// What a client does.
#[derive(Args, Clone, Debug)]
pub(crate) struct Job {
    /// The directory it makes and works in.
    pub(crate) directory: PathBuf,
    /// Files it makes.
    pub(crate) files: usize,
    /// Values it chooses from.
    pub(crate) values: usize,
    /// Its number.
    pub(crate) worker: usize,
    /// Milliseconds for which it works.
    pub(crate) slice_ms: u64,
    /// The processor it stays on.
    pub(crate) cpu: Option<usize>,
}

/// What is done, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Files are made.
    Make,
    /// Each is given an attribute.
    Fill,
    /// Attributes are set at random for a time: what is measured.
    Work,
    /// All are read.
    Check,
    /// Everything is removed.
    Remove,
}

impl Phase {
    /// All of them, in order.
    pub(crate) const ALL: [Phase; 5] =
        [Phase::Make, Phase::Fill, Phase::Work, Phase::Check, Phase::Remove];

    /// Returns what clients do.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Make => "make files",
            Phase::Fill => "set each attribute",
            Phase::Work => "set attributes",
            Phase::Check => "read attributes",
            Phase::Remove => "remove files",
        }
    }
}

impl Job {
    /// Returns the arguments that start a client for this.
    pub(crate) fn args(&self) -> Vec<OsString> {
        let numbers = [self.files, self.values, self.worker];
        let mut args = vec![OsString::from("setter"), self.directory.clone().into()];
        args.extend(numbers.iter().map(|number| number.to_string().into()));
        args.push(self.slice_ms.to_string().into());
        args.extend(self.cpu.map(|cpu| cpu.to_string().into()));
        args
    }
}

/// Works as a client.
///
/// # Errors
/// The first call that fails or answer that is wrong.
pub(crate) fn work(job: &Job) -> anyhow::Result<()> {
    if let Some(cpu) = job.cpu {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).context("sched_setaffinity")?;
    }
    let names: Vec<String> = (0..job.files).map(|file| format!("file-{file:06}")).collect();
    let pool = Pool::draw(job.values);
    let mut draws = Draws::new(&pool, (job.files, job.values), job.worker);
    let mut lines = stdin().lines();
    for phase in Phase::ALL {
        lines.next().context("the table has ended")??;
        let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
        let ops = run(phase, job, &names, &mut draws)
            .with_context(|| format!("{} in {}", phase.name(), job.directory.display()))?;
        let (wall_ns, cpu_ns) = (start.elapsed().as_nanos(), thread_cpu_ns() - cpu_start);
        writeln!(stdout(), "{ops} {wall_ns} {cpu_ns}")?;
    }
    Ok(())
}

/// Does a phase, and returns how many operations it was.
fn run(phase: Phase, job: &Job, names: &[String], draws: &mut Draws<'_>) -> anyhow::Result<u64> {
    let set = |file: usize, value: &[u8]| setxattr(&names[file], NAME, value, XattrFlags::empty());
    match phase {
        Phase::Make => {
            mkdirat(CWD, &job.directory, Mode::from_raw_mode(0o755)).context("mkdir")?;
            // Names without a way to them: the walk is not what is measured.
            chdir(&job.directory).context("chdir")?;
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            for name in names {
                drop(openat(CWD, name, flags, Mode::from_raw_mode(0o644))?);
            }
        }
        Phase::Fill => {
            for file in 0..names.len() {
                set(file, draws.of(file))?;
            }
        }
        Phase::Work => {
            let (start, slice, mut ops) = (Instant::now(), Duration::from_millis(job.slice_ms), 0);
            while ops == 0 || start.elapsed() < slice {
                for _ in 0..CHUNK {
                    let (file, value) = draws.next();
                    set(file, value)?;
                }
                ops += CHUNK;
            }
            return Ok(ops);
        }
        Phase::Check => {
            let mut read = vec![0; VALUE_BYTES + 1];
            for (file, value) in draws.given() {
                let len = getxattr(&names[file], NAME, &mut read[..])?;
                ensure!(&read[..len] == value, "{} has something else", names[file]);
            }
        }
        Phase::Remove => {
            for name in names {
                unlinkat(CWD, name, AtFlags::empty())?;
            }
            chdir("/").context("chdir")?;
            unlinkat(CWD, &job.directory, AtFlags::REMOVEDIR).context("rmdir")?;
        }
    }
    Ok(names.len() as u64)
}
