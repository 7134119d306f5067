//! A server that finds files by path alone: it shows a directory of the host at another place.
//!
//! ```console
//! mkdir /tmp/mirror
//! cargo run -p corewalk-fuse --example mirror -- /usr /tmp/mirror
//! ls /tmp/mirror
//! ```
//!
//! [`fs::Mirror`] has no descriptors, no table of inodes and no lock. The paths that it is given stay
//! true during each call, and a file that is removed while it is open stays there until it is closed.
//! `corewalk-hostfs` does the same with kept descriptors, and checks what others do to the directory.

mod fs;

use std::path::PathBuf;
use std::sync::Arc;

use corewalk_fuse::{Mount, MountOptions, Options};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut words = std::env::args_os().skip(1).map(PathBuf::from);
    let (Some(from), Some(point)) = (words.next(), words.next()) else {
        return Err("usage: mirror DIRECTORY MOUNTPOINT".into());
    };
    let fs = Arc::new(fs::Mirror::new(&from));
    let mount = Mount::new(fs, &point, Options::shared(), &MountOptions::default())?;
    println!("mounted on {}; umount ends it", point.display());
    mount.wait()?;
    Ok(())
}
