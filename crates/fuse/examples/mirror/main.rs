//! A back end that finds files only by their paths: it shows a directory of the host at a second
//! place. Run it with `cargo run -p corewalk-fuse --example mirror -- DIRECTORY MOUNTPOINT`.
//!
//! [`fs::Mirror`] has no table of inodes and no lock. The library keeps each path valid during its
//! call, and keeps a removed file until it is closed. `corewalk-hostfs` shows a directory of the
//! host with descriptors, and is safe against changes by other programs.

mod fs;

use std::path::PathBuf;
use std::sync::Arc;

use corewalk::ByPath;
use corewalk_fuse::{MountOptions, Options, serve};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(point)) = (words.next(), words.next()) else {
        return Err("usage: mirror DIRECTORY MOUNTPOINT".into());
    };
    let fs = Arc::new(ByPath::new(fs::Mirror::new(&from)));
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    serve(fs, &point, Options::shared(), &MountOptions::default())?;
    Ok(())
}
