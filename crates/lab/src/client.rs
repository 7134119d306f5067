//! The clients of a benchmark on a mount: processes that work in their own directories, phase by
//! phase.
//!
//! Clients are processes, since the threads of one process would contend for the lock of their
//! descriptor table.
//!
//! The benchmark starts each phase in all clients at the same time, by a line on their input. A
//! client runs the phase, and writes a line with the number of operations and the time.
//!
//! ```text
//! table: go               client: 2000 41234567 31234567   (operations, wall ns, processor ns)
//! ```
//!
//! # Checks
//! Every call must succeed. Every file must have the size and the links that the client made. A
//! listing must have all files and no other. At the end the directory must be empty. The first
//! wrong answer ends the client.
//!
//! Source: mdtest (<https://github.com/hpc/ior>) for the phases, except for renames and attributes.

use std::ffi::OsString;
use std::fs::{self, File};
use std::io::{self, BufRead, BufReader, Write, stdin, stdout};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context as _, bail, ensure};
use rustix::fs::{AtFlags, CWD, FileType, XattrFlags, setxattr, statat};

use crate::cpus;
use crate::crew::Slice;
use crate::machine::thread_cpu_ns;

/// The phases `create+fsync` and `write+fsync` use one file of every 40, and at most 25 per client,
/// since an fsync takes milliseconds.
const SYNC_SHARE: usize = 40;
const SYNC_FILES_MAX: usize = 25;
/// Bytes that are written before fsync(2).
const BLOCK: [u8; 4096] = [0x5a; 4096];
/// Bytes of an attribute.
const XATTR_BYTES: usize = 1024;

/// The phases in their order. The last two use a few files, all others use all files.
pub(crate) const PHASES: [&str; 8] = [
    // open(2) with `O_CREAT|O_EXCL`, and close(2).
    "create",
    // lstat(2).
    "stat",
    // A listing, and lstat(2) of each file it has.
    "readdir+stat",
    // setxattr(2) of a value of 1 KiB.
    "setxattr",
    // rename(2) within the directory.
    "rename",
    // unlink(2).
    "unlink",
    // This phase makes new files: open(2) with `O_CREAT|O_EXCL`, write(2) of 4 KiB, fsync(2),
    // close(2).
    "create+fsync",
    // This phase overwrites the 4 KiB of each file that the phase `create+fsync` made: write(2),
    // fsync(2).
    "write+fsync",
];

/// Returns true if a phase calls fsync(2), and so waits for a disk.
pub(crate) fn is_sync(phase: &str) -> bool {
    phase.ends_with("fsync")
}

fn operations(phase: &str, files: usize) -> usize {
    if is_sync(phase) { (files / SYNC_SHARE).clamp(1, SYNC_FILES_MAX) } else { files }
}

/// A running client process. A table sends it commands, and reads its answers.
pub(crate) struct Client {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Client {
    /// Starts the lab again, from the path `program` and with the arguments `args`, as a client
    /// process. Adds `environment` to the client's environment.
    ///
    /// # Errors
    /// If the process does not start.
    pub(crate) fn spawn(
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

    /// Sends a line to the client.
    ///
    /// # Errors
    /// If it has ended.
    pub(crate) fn say(&mut self, line: &str) -> anyhow::Result<()> {
        // One call writes the whole line, so that the client never reads a part of it.
        self.commands.write_all(format!("{line}\n").as_bytes()).context("a client has ended")
    }

    /// Waits for the client's answer to the last command line. Returns it as a [`Slice`]: the
    /// number of operations, wall time and processor time.
    ///
    /// # Errors
    /// If the client found something wrong, or has ended.
    pub(crate) fn lap(&mut self) -> anyhow::Result<Slice> {
        let mut line = String::new();
        self.answers.read_line(&mut line)?;
        let lap = serde_json::from_str(&line).context("a client found something wrong");
        let (ops, wall_ns, cpu_ns) = lap?;
        Ok(Slice::timed(ops, Duration::from_nanos(wall_ns), cpu_ns))
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
        // If the process has already been waited for, these calls do nothing.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Sends a line to each client, waits until all have answered, and returns the sum of their
/// results.
///
/// # Errors
/// If a client has ended, or found something wrong.
pub(crate) fn run_all(clients: &mut [Client], line: &str) -> anyhow::Result<Slice> {
    clients.iter_mut().try_for_each(|client| client.say(line))?;
    let laps = clients.iter_mut().map(Client::lap).collect::<anyhow::Result<Vec<Slice>>>()?;
    Ok(Slice::together(laps.iter()))
}

/// Works as a client: the other end of [`Client`].
///
/// # Errors
/// If a call fails or an answer is wrong.
pub(crate) fn work(directory: &Path, files: usize, cpu: Option<usize>) -> anyhow::Result<()> {
    if let Some(cpu) = cpu {
        cpus::pin(cpu);
    }
    fs::create_dir(directory).context("mkdir")?;
    let names = |prefix: &str| -> Vec<PathBuf> {
        (0..files).map(|n| directory.join(format!("{prefix}-{n:06}"))).collect()
    };
    let (names, renamed) = (names("file"), names("renamed"));
    let mut lines = stdin().lines();
    for phase in PHASES {
        lines.next().context("the table has ended")??;
        let (start, cpu_start) = (Instant::now(), thread_cpu_ns());
        run(phase, directory, &names, &renamed)
            .with_context(|| format!("{phase} in {}", directory.display()))?;
        let (wall_ns, cpu_ns) = (start.elapsed().as_nanos(), thread_cpu_ns() - cpu_start);
        writeln!(stdout(), "[{}, {wall_ns}, {cpu_ns}]", operations(phase, files))?;
    }
    remove_synced(&names)?;
    ensure!(list(directory)?.is_empty(), "{} is not empty", directory.display());
    fs::remove_dir(directory).context("rmdir")
}

/// Does a phase.
fn run(phase: &str, folder: &Path, names: &[PathBuf], renamed: &[PathBuf]) -> anyhow::Result<()> {
    let synced = || &names[..operations(phase, names.len())];
    match phase {
        "create" => names.iter().try_for_each(|name| File::create_new(name).map(drop))?,
        "stat" => names.iter().try_for_each(|name| check(name))?,
        "readdir+stat" => {
            let listed = list(folder)?;
            ensure!(listed.len() == names.len(), "{} files listed", listed.len());
            listed.iter().try_for_each(|name| check(name))?;
        }
        "setxattr" => names.iter().try_for_each(|name| {
            setxattr(name, "user.bench", &BLOCK[..XATTR_BYTES], XattrFlags::empty())
        })?,
        "rename" => {
            names.iter().zip(renamed).try_for_each(|(old, new)| fs::rename(old, new))?;
            check(&renamed[0])?;
        }
        "unlink" => renamed.iter().try_for_each(fs::remove_file)?,
        "create+fsync" => {
            synced().iter().try_for_each(|name| write_block(&File::create_new(name)?))?;
        }
        "write+fsync" => {
            let open = |name: &PathBuf| File::options().write(true).open(name);
            synced().iter().try_for_each(|name| write_block(&open(name)?))?;
        }
        _ => bail!("there is no phase {phase}"),
    }
    Ok(())
}

/// Writes a block and makes it durable.
fn write_block(file: &File) -> io::Result<()> {
    file.write_all_at(&BLOCK, 0)?;
    file.sync_all()
}

/// Checks the size of the files that the phases `create+fsync` and `write+fsync` wrote, and removes
/// them.
fn remove_synced(names: &[PathBuf]) -> anyhow::Result<()> {
    for name in &names[..operations("create+fsync", names.len())] {
        let size = fs::symlink_metadata(name)?.len();
        ensure!(size == BLOCK.len() as u64, "{} has {size} bytes", name.display());
        fs::remove_file(name)?;
    }
    Ok(())
}

/// Checks that a file is as it was made.
fn check(file: &Path) -> anyhow::Result<()> {
    let stat = statat(CWD, file, AtFlags::SYMLINK_NOFOLLOW)?;
    let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
    ensure!(is_file && stat.st_size == 0 && stat.st_nlink == 1, "{} is strange", file.display());
    Ok(())
}

/// Returns the files in a directory.
fn list(directory: &Path) -> io::Result<Vec<PathBuf>> {
    fs::read_dir(directory)?.map(|entry| entry.map(|entry| entry.path())).collect()
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
        for phase in PHASES {
            run(phase, &directory, &names, &renamed).unwrap();
        }
        remove_synced(&names).unwrap();
        assert!(list(&directory).unwrap().is_empty());
        for phase in PHASES.into_iter().filter(|phase| !phase.starts_with("create")) {
            assert!(run(phase, &directory, &names, &renamed).is_err(), "{phase}");
        }
    }
}
