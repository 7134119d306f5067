//! `corewalk ipc serve`: looks after a namespace that has a name, until SIGINT or SIGTERM.
//!
//! Source: see `watch`.

use corewalk_sync::primitives::unmodelled::{Arc, AtomicBool, Ordering};
use signal_hook::consts::{SIGINT, SIGTERM};

use super::place::Place;
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
    let place = Place::open(&arguments.namespace)?;
    let is_over = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        signal_hook::flag::register(signal, Arc::clone(&is_over))
            .map_err(|error| Failure::of("signals", error))?;
    }
    println!("serving {}", place.path.display());
    let mut watch = Watch::default();
    // ORDERING: Relaxed. The flag is all that is told.
    while !is_over.load(Ordering::Relaxed) {
        watch.turn(&place.namespace, None);
    }
    Ok(())
}
