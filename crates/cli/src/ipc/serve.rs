//! `corewalk ipc serve`: cleans up after killed processes of a namespace, until SIGINT or SIGTERM.
//!
//! If the file of the namespace was removed or replaced, no process can join the namespace any
//! more. `serve` then ends as soon as the last process has left the namespace.
//!
//! Source: as for the module `watch`.

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::path::Path;

use corewalk_base::primitives::unmodelled::{Arc, AtomicBool, Ordering};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::place::{self, Place};
use super::watch::Watch;
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
A call on an object that a killed process has left cleans up as well, and so does each waiting call
within a tenth of a second. With serve, the cleanup happens at once, also while no call is made.

serve ends on SIGINT or SIGTERM, or when the namespace was removed and no process is left in it.")]
pub(crate) struct Arguments {
    /// The namespace: a name, or the path of its file (with a / in it). It is created if it does
    /// not exist.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: String,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    place::remove_orphans();
    let place = Place::open(&arguments.namespace)?;
    place.remove_marks();
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))
            .map_err(|error| Failure::of("signals", error))?;
    }
    println!("serving {}", place.path.display());
    let file = file_at(&place.path);
    let mut watch = Watch::default();
    // ORDERING: Relaxed. A stop flag: the signal handler passes no other data.
    while !is_over.load(Ordering::Relaxed) {
        watch.turn(&place.namespace, None);
        let now = file_at(&place.path);
        let is_removed = now != file && now != At::Unknown;
        if is_removed && place.namespace.pids().is_empty() {
            println!("{} was removed", place.path.display());
            break;
        }
    }
    place.remove_marks();
    Ok(())
}

#[derive(Debug, PartialEq, Eq)]
enum At {
    File {
        dev: u64,
        ino: u64,
    },
    Nothing,
    /// stat(2) has failed with another error than `ENOENT`, so the file may still exist.
    Unknown,
}

fn file_at(path: &Path) -> At {
    match fs::metadata(path) {
        Ok(status) => At::File { dev: status.dev(), ino: status.ino() },
        Err(error) if error.kind() == ErrorKind::NotFound => At::Nothing,
        Err(_) => At::Unknown,
    }
}
