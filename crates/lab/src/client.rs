//! The client of a mount: a process that works in a directory of its own, phase by phase.
//!
//! Clients are processes, since threads of one process share a table of descriptors and would
//! measure that. The table that starts them lets them go into each phase together: a client waits
//! for a line, does the phase, and answers with a line of what it took.
//!
//! ```text
//! table: go               client: 2000 41234567 31234567   (operations, wall ns, processor ns)
//! ```
//!
//! # Checks
//! Every call must succeed, every file must be what was made, a listing must have all files and no
//! other, and at the end the directory is empty. The first wrong answer ends the client.
//!
//! Source: mdtest (<https://github.com/hpc/ior>), for what is done in a phase; renames are added.

use std::ffi::OsString;
use std::io::{BufRead, BufReader, Write, stdin, stdout};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::Instant;

use anyhow::{Context as _, ensure};
use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, XattrFlags, fsync, mkdirat, openat, renameat,
    setxattr, statat, unlinkat,
};
use rustix::io::pwrite;
use rustix::thread::{CpuSet, sched_setaffinity};

use crate::machine::thread_cpu_ns;

/// One file in so many is made durable, and no more than this of one client: that takes
/// milliseconds.
const SYNC_SHARE: usize = 40;
const SYNC_FILES_MAX: usize = 25;
/// Bytes that are written before fsync(2).
const BLOCK: [u8; 4096] = [0x5a; 4096];
/// Bytes of an attribute.
const XATTR_BYTES: usize = 1024;

/// The measured phases, in order.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// open(2) with `O_CREAT|O_EXCL`, and close(2).
    Create,
    /// lstat(2) of each file.
    Stat,
    /// A listing, and lstat(2) of each file it has.
    ReaddirStat,
    /// setxattr(2) of each file: a value of 1 KiB.
    SetXattr,
    /// rename(2) of each file within the directory.
    Rename,
    /// unlink(2) of each file.
    Unlink,
    /// A few new files, one after the other: open(2) with `O_CREAT|O_EXCL`, write(2) of 4 KiB,
    /// fsync(2), close(2).
    CreateSync,
    /// In each of those files: write(2) over the 4 KiB, fsync(2), close(2).
    WriteSync,
}

impl Lap {
    /// Returns operations per second of wall time.
    pub(crate) fn ops_per_s(&self) -> f64 {
        self.ops as f64 * 1e9 / self.wall_ns.max(1) as f64
    }
}

impl Phase {
    /// All of them, in order.
    pub(crate) const ALL: [Phase; 8] = [
        Phase::Create,
        Phase::Stat,
        Phase::ReaddirStat,
        Phase::SetXattr,
        Phase::Rename,
        Phase::Unlink,
        Phase::CreateSync,
        Phase::WriteSync,
    ];

    /// Returns the name in the rows.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Phase::Create => "create",
            Phase::Stat => "stat",
            Phase::ReaddirStat => "readdir+stat",
            Phase::SetXattr => "setxattr",
            Phase::Rename => "rename",
            Phase::Unlink => "unlink",
            Phase::CreateSync => "create+fsync",
            Phase::WriteSync => "write+fsync",
        }
    }

    /// Returns true if each operation waits for a disk, where there is one.
    pub(crate) fn is_sync(self) -> bool {
        matches!(self, Phase::CreateSync | Phase::WriteSync)
    }

    /// Returns how many operations a client of so many files does.
    fn operations(self, files: usize) -> usize {
        if self.is_sync() { (files / SYNC_SHARE).clamp(1, SYNC_FILES_MAX) } else { files }
    }
}

/// The report of one client about one phase.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lap {
    pub(crate) ops: u64,
    pub(crate) wall_ns: u64,
    pub(crate) cpu_ns: u64,
}

/// A running client, as the table sees it.
pub(crate) struct Client {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    /// Starts a client for `files` files in the new directory `directory`, on the processor `cpu`
    /// if there is one. `program` is the lab.
    ///
    /// # Errors
    /// If this program cannot be started again.
    pub(crate) fn start(
        program: &Path,
        directory: &Path,
        files: usize,
        cpu: Option<usize>,
    ) -> anyhow::Result<Client> {
        let mut args = vec!["client".into(), directory.into(), files.to_string().into()];
        args.extend(cpu.map(|cpu| cpu.to_string().into()));
        Client::spawn(program, args)
    }

    /// Starts this program as a client that understands these arguments.
    ///
    /// # Errors
    /// If it cannot be started again.
    pub(crate) fn spawn(program: &Path, args: Vec<OsString>) -> anyhow::Result<Client> {
        Client::spawn_with(program, args, &[])
    }

    /// As [`Client::spawn`], with this in its environment.
    ///
    /// # Errors
    /// If it cannot be started again.
    pub(crate) fn spawn_with(
        program: &Path,
        args: Vec<OsString>,
        environment: &[(&str, &Path)],
    ) -> anyhow::Result<Client> {
        let mut command = Command::new(program);
        let mut child = command
            .args(args)
            .envs(environment.iter().copied())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .context("the program cannot start itself")?;
        let commands = child.stdin.take().context("the client has no input")?;
        let answers = BufReader::new(child.stdout.take().context("the client has no output")?);
        Ok(Client { child, commands, answers })
    }

    /// Lets the client go into its next phase.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn go(&mut self) -> anyhow::Result<()> {
        self.say("go")
    }

    /// Gives the client a line.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        // In one piece: a client that is slow to read does not wait for the end of it.
        self.commands.write_all(format!("{line}\n").as_bytes()).context("a client has ended")
    }

    /// Returns what the phase took.
    ///
    /// # Errors
    /// If the client found something wrong, or has ended.
    pub(crate) fn lap(&mut self) -> anyhow::Result<Lap> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let mut numbers = line.split_whitespace().map(str::parse);
        let mut next = || numbers.next().context("a client found something wrong");
        Ok(Lap { ops: next()??, wall_ns: next()??, cpu_ns: next()?? })
    }

    /// Waits for the client's end.
    ///
    /// # Errors
    /// If it failed.
    pub(crate) fn finish(mut self) -> anyhow::Result<()> {
        ensure!(self.child.wait()?.success(), "a client failed");
        Ok(())
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // Nothing happens to one that has been waited for.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Works as a client: the other end of [`Client`].
///
/// # Errors
/// The first call that fails or answer that is wrong.
pub(crate) fn work(directory: &Path, files: usize, cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        let mut one = CpuSet::new();
        one.set(cpu);
        sched_setaffinity(None, &one).context("sched_setaffinity")?;
    }
    mkdirat(CWD, directory, Mode::from_raw_mode(0o755)).context("mkdir")?;
    let names = |prefix: &str| -> Vec<PathBuf> {
        (0..files).map(|n| directory.join(format!("{prefix}-{n:06}"))).collect()
    };
    let (names, renamed) = (names("file"), names("renamed"));
    let mut lines = stdin().lines();
    for phase in Phase::ALL {
        lines.next().context("the table has ended")??;
        let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
        run(phase, directory, &names, &renamed)
            .with_context(|| format!("{} in {}", phase.name(), directory.display()))?;
        let (wall_ns, cpu_ns) = (start.elapsed().as_nanos(), thread_cpu_ns() - cpu_start);
        writeln!(stdout(), "{} {wall_ns} {cpu_ns}", phase.operations(files))?;
    }
    remove_synced(&names)?;
    ensure!(list(directory)?.is_empty(), "{} is not empty", directory.display());
    unlinkat(CWD, directory, AtFlags::REMOVEDIR).context("rmdir")
}

fn run(
    phase: Phase,
    directory: &Path,
    names: &[PathBuf],
    renamed: &[PathBuf],
) -> anyhow::Result<()> {
    match phase {
        Phase::Create => {
            let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
            for name in names {
                drop(openat(CWD, name, flags, Mode::from_raw_mode(0o644))?);
            }
        }
        Phase::Stat => {
            for name in names {
                check(name)?;
            }
        }
        Phase::ReaddirStat => {
            let listed = list(directory)?;
            ensure!(listed.len() == names.len(), "{} files listed", listed.len());
            for name in &listed {
                check(name)?;
            }
        }
        Phase::SetXattr => {
            for name in names {
                setxattr(name, "user.bench", &BLOCK[..XATTR_BYTES], XattrFlags::empty())?;
            }
        }
        Phase::Rename => {
            for (old, new) in names.iter().zip(renamed) {
                renameat(CWD, old, CWD, new)?;
            }
            check(&renamed[0])?;
        }
        Phase::Unlink => {
            for name in renamed {
                unlinkat(CWD, name, AtFlags::empty())?;
            }
        }
        Phase::CreateSync | Phase::WriteSync => {
            let made = match phase {
                Phase::CreateSync => OFlags::CREATE | OFlags::EXCL,
                _ => OFlags::empty(),
            };
            for name in &names[..phase.operations(names.len())] {
                let flags = made | OFlags::WRONLY | OFlags::CLOEXEC;
                let file = openat(CWD, name, flags, Mode::from_raw_mode(0o644))?;
                ensure!(pwrite(&file, &BLOCK, 0)? == BLOCK.len(), "a short write");
                fsync(&file)?;
            }
        }
    }
    Ok(())
}

/// Removes the files that the last phases have made.
fn remove_synced(names: &[PathBuf]) -> anyhow::Result<()> {
    for name in &names[..Phase::CreateSync.operations(names.len())] {
        let size = statat(CWD, name, AtFlags::SYMLINK_NOFOLLOW)?.st_size;
        ensure!(size == BLOCK.len() as i64, "{} has {size} bytes", name.display());
        unlinkat(CWD, name, AtFlags::empty())?;
    }
    Ok(())
}

/// Checks that `file` is an empty regular file.
fn check(file: &Path) -> anyhow::Result<()> {
    let stat = statat(CWD, file, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    ensure!(is_file && stat.st_size == 0 && stat.st_nlink == 1, "{} is strange", file.display());
    Ok(())
}

/// Returns the files in `directory`.
fn list(directory: &Path) -> anyhow::Result<Vec<PathBuf>> {
    use std::os::unix::ffi::OsStrExt as _;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    let mut files = vec![];
    for entry in Dir::new(openat(CWD, directory, flags, Mode::empty())?)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            files.push(directory.join(std::ffi::OsStr::from_bytes(&name)));
        }
    }
    Ok(files)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::peer::Scratch;

    #[test]
    fn phases_in_order_leave_an_empty_directory_and_notice_what_is_missing() {
        let scratch = Scratch::new(&std::env::temp_dir(), "client").unwrap();
        let directory = scratch.folder("work").unwrap();
        let names = |prefix: &str| -> Vec<PathBuf> {
            (0..20).map(|n| directory.join(format!("{prefix}-{n}"))).collect()
        };
        let (names, renamed) = (names("a"), names("b"));
        for phase in Phase::ALL {
            run(phase, &directory, &names, &renamed).unwrap();
        }
        remove_synced(&names).unwrap();
        assert!(list(&directory).unwrap().is_empty());
        let all = Phase::ALL.into_iter();
        for phase in all.filter(|phase| !matches!(phase, Phase::Create | Phase::CreateSync)) {
            assert!(run(phase, &directory, &names, &renamed).is_err(), "{phase:?}");
        }
    }
}
