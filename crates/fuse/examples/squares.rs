//! An example of a small file system: a directory with the files 1 to 1000. The content of each
//! file is the square of its name.
//!
//! ```console
//! mkdir /tmp/squares
//! cargo run -p corewalk-fuse --example squares -- /tmp/squares
//! cat /tmp/squares/12
//! ```
//!
//! A [`FileSystem`] that is read-only has six methods. The library does the rest: names,
//! permissions, lookups and forgets.

use std::path::PathBuf;
use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::{Attr, DirEntry, DirSink, Errno, FileSystem, Name, Node, StatFs, Timespec};
use corewalk_fuse::{MountOptions, Options, serve};

/// The inode number of the root. The file `N` has the inode number `N` + 1.
const ROOT_INO: u64 = 1;
const FILES: u64 = 1000;

struct Squares {
    since: Timespec,
}

fn content(ino: u64) -> String {
    format!("{}\n", (ino - ROOT_INO).pow(2))
}

impl Squares {
    fn attr(&self, ino: u64) -> Attr {
        let attr = match ino {
            ROOT_INO => Attr::dir(ino).with_mode(S_IFDIR | 0o555),
            ino => Attr::file(ino, content(ino).len() as u64).with_mode(S_IFREG | 0o444),
        };
        attr.with_times(self.since)
    }
}

impl FileSystem for Squares {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(self.attr(ROOT_INO))
    }

    fn lookup(&self, _: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let text = std::str::from_utf8(name.as_bytes()).map_err(|_| Errno::NOENT)?;
        let number: u64 = text.parse().map_err(|_| Errno::NOENT)?;
        // Accept only the usual form of a number: "007" is not another name of the file 7.
        let is_known = (1..=FILES).contains(&number) && number.to_string() == text;
        if is_known { Ok(self.attr(ROOT_INO + number)) } else { Err(Errno::NOENT) }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(self.attr(node.ino()))
    }

    fn readdir(&self, _: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        for number in cookie + 1..=FILES {
            let text = number.to_string();
            let name = Name::new(text.as_bytes())?;
            if sink(DirEntry::from_attr(name, self.attr(ROOT_INO + number), number)).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: Node<'_>, _: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let content = content(node.ino());
        let rest = content.as_bytes().get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default().with_files(FILES + 1))
    }
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let point: PathBuf = std::env::args_os().nth(1).ok_or("usage: squares DIRECTORY")?.into();
    let fs = Arc::new(Squares { since: Timespec::now() });
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    serve(fs, &point, Options::exclusive(), &MountOptions::default())?;
    Ok(())
}
