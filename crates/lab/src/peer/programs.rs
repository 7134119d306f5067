//! The FUSE servers that a benchmark can measure, and how the lab finds them.
//!
//! For a benchmark of metadata, which sets the number of threads, all timeouts are 0. So the kernel
//! asks the server each time. Otherwise the benchmark would measure the kernel's cache. In all
//! mounts the kernel checks permissions (`default_permissions`), for which it also requests the
//! attributes of directories. Without that, a mount would get fewer requests and seem faster.
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
//! # io_uring
//! With its default `transport=auto`, corewalk uses io_uring only if the file [`ENABLE_URING`]
//! contains `Y`. By default it does not. So the lab writes `Y` to that file before it mounts, if it
//! has the permission, and leaves it so.
//!
//! # Where the peers come from
//! bindfs is a package. passthrough_ll is built from the examples in the package libfuse3-dev,
//! unless a directory of `PATH` has it. Some peers cannot be had this way. passthrough_hp,
//! libfuse's other example, is in no package, and FUSE over io_uring needs libfuse 3.18, where
//! Debian 12 has 3.14. The crate fuse-backend-rs has no program, and no release of it serves FUSE
//! over io_uring.
//!
//! s3fs and rclone are packages. A mount of rclone has no cache of contents by default
//! (`--vfs-cache-mode off`). So a close returns after the upload.
//!
//! Source: bindfs(1); mount.fuse3(8); libfuse `example/passthrough_ll.c`; `corewalk mount --help`.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// The file in which root allows FUSE over io_uring.
const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
/// The source of passthrough_ll in Debian's package libfuse3-dev.
const PASSTHROUGH_LL: &str = "/usr/share/doc/libfuse3-dev/examples/passthrough_ll.c";
/// Options that keep the kernel from caching.
const NO_TIMEOUTS: &str = "entry_timeout=0,attr_timeout=0,negative_timeout=0";

/// Returns the command that mounts `source` with corewalk. `source` is `tmpfs`, a directory of the
/// host, or a store. The mount options are the same as those of the other servers. If `threads` is
/// None, the command has no options, like that of most users.
///
/// # Errors
/// As [`corewalk()`].
pub(crate) fn ours(
    threads: Option<usize>,
    source: &OsStr,
    point: &Path,
) -> anyhow::Result<Command> {
    let mut program = corewalk()?;
    // Without the permission for this write, corewalk mounts without io_uring.
    let _ = std::fs::write(ENABLE_URING, "Y");
    program.arg("mount").arg(source).arg(point);
    if let Some(threads) = threads {
        program.args(["-o", &format!("{NO_TIMEOUTS},default_permissions,threads={threads}")]);
    }
    Ok(program)
}

/// Returns the program `corewalk`: the one that the variable `COREWALK_BIN` names, or that in the
/// directory of the lab's own program.
///
/// # Errors
/// An error if that program does not exist.
pub(crate) fn corewalk() -> anyhow::Result<Command> {
    let me = std::env::current_exe().context("the lab does not know its own file")?;
    let named = std::env::var_os("COREWALK_BIN").map(PathBuf::from);
    let file = named.unwrap_or_else(|| me.with_file_name("corewalk"));
    ensure!(
        file.is_file(),
        "there is no {}: build it (cargo build --release -p corewalk-cli) or set COREWALK_BIN",
        file.display()
    );
    Ok(Command::new(file))
}

/// Returns the command that mounts `BUCKET:/FOLDER` with s3fs. The caller adds the keys of the S3
/// server to its environment.
///
/// # Errors
/// An error if s3fs is not installed.
pub(crate) fn s3fs(folder: &str, endpoint: &str, point: &Path) -> anyhow::Result<Command> {
    let mut program = find("s3fs")?;
    let options = format!("url={endpoint},use_path_request_style,default_permissions");
    program.arg(folder).arg(point).args(["-f", "-o", &options]);
    Ok(program)
}

/// Returns the command that mounts `BUCKET/FOLDER` with rclone. The caller adds the keys of the S3
/// server to its environment.
///
/// # Errors
/// An error if rclone is not installed.
pub(crate) fn rclone(folder: &str, endpoint: &str, point: &Path) -> anyhow::Result<Command> {
    let mut program = find("rclone")?;
    program.arg("mount").arg(format!(":s3:{folder}")).arg(point);
    program.args(["--config", "/dev/null", "--s3-provider", "Other", "--s3-env-auth"]);
    program.args(["--s3-region", "us-east-1", "--s3-endpoint", endpoint, "--default-permissions"]);
    // rclone refuses to start if this variable is set.
    program.env_remove("AWS_CA_BUNDLE").stderr(Stdio::null());
    Ok(program)
}

/// Returns the command that mounts `source` with the server of the variant `variant`: `bindfs`,
/// `passthrough_ll`, or else corewalk. Without `threads`, each server has its default timeouts and
/// threads. `build` is as in [`passthrough_ll`].
///
/// # Errors
/// As [`bindfs`], [`passthrough_ll`] and [`ours`].
pub(crate) fn server(
    variant: &str,
    threads: Option<usize>,
    source: &OsStr,
    point: &Path,
    build: &Path,
) -> anyhow::Result<Command> {
    match variant {
        "bindfs" => bindfs(threads, source, point),
        "passthrough_ll" => passthrough_ll(threads, source, point, build),
        _ => ours(threads, source, point),
    }
}

/// Returns the command that mounts `source` with bindfs. bindfs uses the high-level interface of
/// libfuse, and sets `default_permissions` by itself. `threads` is as in [`ours`].
///
/// # Errors
/// An error if bindfs is not installed.
fn bindfs(threads: Option<usize>, source: &OsStr, point: &Path) -> anyhow::Result<Command> {
    let mut program = find("bindfs")?;
    program.arg("-f").arg(source).arg(point);
    if let Some(threads) = threads {
        program.args(["-o", NO_TIMEOUTS]).args((threads > 1).then_some("--multithreaded"));
    }
    Ok(program)
}

/// Returns the command that mounts `source` with libfuse's low-level example, which is built in the
/// folder `build` if it is not installed.
///
/// # Errors
/// An error if the example is not installed and cannot be built.
fn passthrough_ll(
    threads: Option<usize>,
    source: &OsStr,
    point: &Path,
    build: &Path,
) -> anyhow::Result<Command> {
    let mut program = find("passthrough_ll").or_else(|_| {
        let file = build.join("passthrough_ll");
        let mut cc = Command::new("cc");
        cc.args(["-O2", "-I/usr/include/fuse3", PASSTHROUGH_LL, "-lfuse3", "-o"]).arg(&file);
        let is_built = file.is_file() || cc.stderr(Stdio::null()).status()?.success();
        ensure!(is_built, "passthrough_ll is not installed, and {PASSTHROUGH_LL} cannot be built");
        Ok(Command::new(file))
    })?;
    let cache = if threads.is_some() { "cache=never,timeout=0," } else { "" };
    let options = format!("{cache}xattr,default_permissions,source=");
    let options = [OsStr::new(&options), source].join(OsStr::new(""));
    program.args(["-f", if threads == Some(1) { "-s" } else { "-oclone_fd" }, "-o"]);
    program.arg(options).arg(point);
    Ok(program)
}

/// Returns the command that mounts the server that only answers ([`trivial`](mod@super::trivial)).
///
/// # Errors
/// An error if this program does not know its own file.
pub(crate) fn trivial(threads: usize, point: &Path) -> anyhow::Result<Command> {
    let mut program = Command::new(std::env::current_exe()?);
    program.arg("trivial").arg(threads.to_string()).arg(point);
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
