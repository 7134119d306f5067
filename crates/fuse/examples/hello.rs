//! The smallest file system: a directory with one read-only file, after fuser's example `hello`.
//!
//! ```console
//! mkdir /tmp/hello
//! cargo run -p corewalk-fuse --example hello -- /tmp/hello
//! ```
//!
//! The program serves until `umount /tmp/hello` or Ctrl-C. Read the file in a second terminal:
//!
//! ```console
//! cat /tmp/hello/hello.txt
//! ```
//!
//! A method of [`FileSystem`] returns the answer as its result. With fuser, the method calls a
//! reply object instead. `corewalk-fuse` counts lookups, opens files, lists `.` and `..`, and tells
//! the kernel how long it may cache.

use std::path::PathBuf;
use std::sync::Arc;

use anyhow::Context;
use corewalk::{Attr, DirEntry, DirSink, Errno, FileSystem, Name, Node, StatFs};
use corewalk_fuse::{MountOptions, Options, serve};

const ROOT_INO: u64 = 1;
const FILE_INO: u64 = 2;
const NAME: &[u8] = b"hello.txt";
const TEXT: &[u8] = b"Hello World!\n";

pub(crate) struct Hello;

impl FileSystem for Hello {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(ROOT_INO))
    }

    fn lookup(&self, _: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        match name.as_bytes() {
            NAME => Ok(Attr::file(FILE_INO, TEXT.len() as u64)),
            _ => Err(Errno::NOENT),
        }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        match node.ino() {
            ROOT_INO => self.root(),
            _ => Ok(Attr::file(FILE_INO, TEXT.len() as u64)),
        }
    }

    fn readdir(&self, _: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        // The cookie is the number of entries that the listing has already reported.
        if cookie == 0 {
            let attr = Attr::file(FILE_INO, TEXT.len() as u64);
            let _ = sink(DirEntry::from_attr(Name::new(NAME)?, attr, 1));
        }
        Ok(())
    }

    fn read(&self, _: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let rest = TEXT.get(offset as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }
}

fn main() -> anyhow::Result<()> {
    let point: PathBuf = std::env::args_os().nth(1).context("usage: hello MOUNTPOINT")?.into();
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    serve(Arc::new(Hello), &point, Options::exclusive(), &MountOptions::default())?;
    Ok(())
}
