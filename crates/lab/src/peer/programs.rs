//! The FUSE servers that a benchmark can measure, and how the lab finds them.
//!
//! All timeouts are 0, so that the kernel asks the server each time. Otherwise a benchmark of
//! metadata would measure the kernel's cache. In all mounts the kernel checks permissions
//! (`default_permissions`), for which it also requests the attributes of directories. Without that,
//! a mount would get fewer requests and seem faster.
//!
//! # Threads
//! For one client, a server has one thread. On one processor, each further thread makes every
//! program slower by a fifth to a half, because the kernel wakes another thread for each request.
//! For several clients, a server has several threads, each with its own descriptor (`clone_fd`).
//!
//! The server of corewalk has its default: one thread per processor that reads requests, at least
//! two, and further threads for fsync. The other servers start up to ten threads as requests
//! arrive. A limit of two threads would make libfuse end and start threads all the time, which
//! halves the speed.
//!
//! bindfs of Debian 12 uses libfuse 2, which has no `clone_fd`.
//!
//! The only peer, bindfs, is installed as a package.
//!
//! Source: bindfs(1); mount.fuse3(8); `corewalk mount --help`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context as _, ensure};

/// Options that keep the kernel from caching.
const NO_TIMEOUTS: &str = "entry_timeout=0,attr_timeout=0,negative_timeout=0";

/// Returns the command that mounts `source` (`tmpfs`, a directory of the host, or a store) with
/// corewalk. The mount options are those of the other servers.
///
/// The program is the one that the variable `COREWALK_BIN` names, or `corewalk` in the directory of
/// the lab's own program.
///
/// # Errors
/// An error if that program does not exist.
pub(crate) fn ours(threads: usize, source: &OsStr, point: &Path) -> anyhow::Result<Command> {
    let me = std::env::current_exe().context("the lab does not know its own file")?;
    let named = std::env::var_os("COREWALK_BIN").map(PathBuf::from);
    let file = named.unwrap_or_else(|| me.with_file_name("corewalk"));
    ensure!(
        file.is_file(),
        "there is no {}: build it (cargo build --release -p corewalk-cli) or set COREWALK_BIN",
        file.display()
    );
    let options = format!("{NO_TIMEOUTS},default_permissions,threads={threads}");
    let mut program = Command::new(file);
    program.arg("mount").arg(source).arg(point).args(["-o", &options]);
    Ok(program)
}

/// Returns the command that mounts `source` with bindfs, which uses libfuse's high-level interface,
/// and sets `default_permissions` by itself.
///
/// # Errors
/// An error if bindfs is not installed.
pub(crate) fn bindfs(threads: usize, source: &OsStr, point: &Path) -> anyhow::Result<Command> {
    let mut program = find("bindfs")?;
    program.args(["-f", "-o", NO_TIMEOUTS]).arg(source).arg(point);
    if threads > 1 {
        program.arg("--multithreaded");
    }
    Ok(program)
}

/// Returns a program in the path.
fn find(name: &str) -> anyhow::Result<Command> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_file());
    file.map(Command::new).with_context(|| format!("{name} is not installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_not_installed_is_named() {
        let error = find("no-such-program").expect_err("it is not there");
        assert!(error.to_string().contains("no-such-program"));
        assert!(find("sh").is_ok());
    }
}
