//! `mount.corewalk`: the program as an external helper of mount(8), for lines of fstab(5).
//!
//! For a file system type TYPE that the kernel does not know, mount(8) runs
//! `/sbin/mount.TYPE SPEC DIR [-sfnv] [-o OPTIONS] [-t TYPE]`. If `/sbin/mount.corewalk` is a link
//! to this program, `mount -t corewalk store:/srv/s /mnt` does the same as
//! `corewalk mount --daemon`. So does a line of fstab(5) with the type `corewalk`.
//!
//! Like mount(8), the helper prints only errors. With `-v` it also prints a line when the mount is
//! ready. With `-f` it only checks the command line.
//!
//! # Exit status
//!
//! The exit statuses are those of mount(8): 1 for an invalid command line, and 32 if the mount
//! failed.
//!
//! Source: mount(8) "External helpers" and "Exit status".

use std::ffi::OsString;
use std::io::Write as _;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Parser;

use crate::failure::Failure;
use crate::mount;

/// If the name of this program begins with this prefix, the program runs as a helper of mount(8).
const NAME_PREFIX: &[u8] = b"mount.";
/// Exit status for an invalid command line.
const USAGE: u8 = 1;
/// Exit status: the mount failed.
const FAILED: u8 = 32;

/// Mounts a file system in the background. mount(8) calls this program for the type "corewalk".
#[derive(Parser, Debug)]
#[command(name = "mount.corewalk", version)]
struct Arguments {
    /// The file system to mount; see `corewalk mount --help`.
    source: OsString,
    /// The directory to mount it on.
    mountpoint: PathBuf,
    /// Options, separated by commas; see `corewalk mount --help`.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// The file system type that mount(8) was given. Ignored.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
    /// Tolerate unknown options. Ignored: an unknown option is always an error.
    #[arg(short = 's')]
    is_sloppy: bool,
    /// Check the command line, and mount nothing.
    #[arg(short = 'f')]
    is_fake: bool,
    /// Do not write /etc/mtab. Ignored: it is never written.
    #[arg(short = 'n')]
    is_without_mtab: bool,
    /// Print a line when the mount is ready.
    #[arg(short = 'v')]
    is_verbose: bool,
}

/// Returns true if mount(8) has started this program, under a name such as `mount.corewalk`.
pub(crate) fn is_called() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name().is_some_and(|name| name.as_bytes().starts_with(NAME_PREFIX))
}

pub(crate) fn run() -> ExitCode {
    let arguments = match Arguments::try_parse() {
        Ok(arguments) => arguments,
        Err(error) => return crate::refuse(&error, USAGE),
    };
    match mount(arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(failure) => with_status_of_mount(failure).report(),
    }
}

fn mount(arguments: Arguments) -> Result<(), Failure> {
    let Arguments { source, mountpoint, options, .. } = arguments;
    let plain = mount::Arguments::new(source, mountpoint, options);
    if arguments.is_fake {
        return mount::check(&plain);
    }
    let line = mount::start(&plain)?;
    if arguments.is_verbose {
        // The mount is ready even if the message cannot be printed.
        let _ = std::io::stdout().write_all(&line);
    }
    Ok(())
}

/// Gives a failure the exit status that mount(8) has for it.
fn with_status_of_mount(failure: Failure) -> Failure {
    match failure {
        Failure::Usage(line) => Failure::Command(USAGE, line),
        Failure::Failed(line) | Failure::Command(_, line) => Failure::Command(FAILED, line),
        // The background process has already printed its error. Only its exit status must become
        // that of mount(8).
        Failure::Reported(2) => Failure::Reported(USAGE),
        Failure::Reported(_) => Failure::Reported(FAILED),
    }
}
