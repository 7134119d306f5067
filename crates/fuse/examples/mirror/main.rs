//! An example of a back end that finds files only by their paths. It shows a directory of the host
//! at a second place.
//!
//! ```console
//! mkdir /tmp/mirror
//! cargo run -p corewalk-fuse --example mirror -- /usr /tmp/mirror
//! ls /tmp/mirror
//! ```
//!
//! [`fs::Mirror`] keeps no descriptors, no table of inodes and no lock. The library guarantees that
//! a path stays valid during a call. If a file is removed while it is open, the library keeps it
//! until it is closed. `corewalk-hostfs` shows a directory of the host with descriptors, and is
//! safe against changes by other programs.

mod fs;

use std::path::PathBuf;
use std::sync::Arc;

use corewalk_fuse::{MountOptions, Options, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(point)) = (words.next(), words.next()) else {
        return Err("usage: mirror DIRECTORY MOUNTPOINT".into());
    };
    let fs = Arc::new(fs::Mirror::new(&from));
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    serve(fs, &point, Options::shared(), &MountOptions::default())?;
    Ok(())
}
