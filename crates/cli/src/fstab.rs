//! `mount.corewalk`: the program as a helper of mount(8), for lines of fstab(5).
//!
//! For a type TYPE that the kernel does not know, mount(8) starts `/sbin/mount.TYPE SPEC DIR [-sfnv] [-o OPTIONS]
//! [-t TYPE]`. With a link `/sbin/mount.corewalk` to this program, `mount -t corewalk store:/srv/s /mnt` and a line of
//! fstab with that type do what `corewalk mount --daemon` does. Nothing is printed but what is wrong, as mount(8)
//! does it; `-v` asks for the line that it works. `-f` only looks whether the command line can be meant.
//!
//! # Exit status
//!
//! That of mount(8), which passes it on: 1 for a mistake on the command line, 32 if the mount failed.
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

/// What the name of a helper begins with.
const NAME: &[u8] = b"mount.";
/// A mistake on the command line.
const USAGE: u8 = 1;
/// The mount failed.
const FAILED: u8 = 32;

/// Mounts a file system of corewalk for mount(8), in the background.
#[derive(Parser, Debug)]
#[command(name = "mount.corewalk", version)]
struct Arguments {
    /// What to mount, as `corewalk mount` has it.
    source: OsString,
    /// Where to mount it.
    mountpoint: PathBuf,
    /// Options, separated by commas, as `corewalk mount` has them.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// The type that mount(8) was asked for.
    #[arg(short = 't', value_name = "TYPE")]
    kind: Option<OsString>,
    /// Be sloppy about options: changes nothing.
    #[arg(short = 's')]
    is_sloppy: bool,
    /// Mount nothing.
    #[arg(short = 'f')]
    is_fake: bool,
    /// Write no mtab: there is none.
    #[arg(short = 'n')]
    is_without_mtab: bool,
    /// Print a line once it works.
    #[arg(short = 'v')]
    is_verbose: bool,
}

/// Returns true if this process was called as a helper is.
pub(crate) fn is_called() -> bool {
    let name = std::env::args_os().next().unwrap_or_default();
    Path::new(&name).file_name().is_some_and(|name| name.as_bytes().starts_with(NAME))
}

/// Does what a helper does.
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
        // It is mounted, whether anybody reads of it or not.
        let _ = std::io::stdout().write_all(&line);
    }
    Ok(())
}

/// Returns the same failure with the exit status that mount(8) has for it.
fn with_status_of_mount(failure: Failure) -> Failure {
    match failure {
        Failure::Usage(line) => Failure::Command(USAGE, line),
        Failure::Failed(line) | Failure::Command(_, line) => Failure::Command(FAILED, line),
        // Of the process in the background.
        Failure::Said(2) => Failure::Said(USAGE),
        Failure::Said(_) => Failure::Said(FAILED),
    }
}
