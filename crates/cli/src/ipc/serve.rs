//! `corewalk ipc serve`: looks after a namespace that has a name, until SIGINT or SIGTERM.
//!
//! It also ends once the file is gone, or another has its place, and no process is left that was in it: nobody can
//! join such a namespace.
//!
//! Source: see `watch`.

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
pub(crate) struct Arguments {
    /// The namespace, which is made if need be: its name, or with a slash in it the path of its file.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: String,
}

/// Serves.
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
    // ORDERING: Relaxed. The flag is all that is told.
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

/// Which file lies at a path.
#[derive(Debug, PartialEq, Eq)]
enum At {
    File {
        dev: u64,
        ino: u64,
    },
    Nothing,
    /// It cannot be told, which is no reason to end.
    Unknown,
}

fn file_at(path: &Path) -> At {
    match fs::metadata(path) {
        Ok(status) => At::File { dev: status.dev(), ino: status.ino() },
        Err(error) if error.kind() == ErrorKind::NotFound => At::Nothing,
        Err(_) => At::Unknown,
    }
}
