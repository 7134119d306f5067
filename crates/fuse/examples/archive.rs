//! Shows an uncompressed tar archive as a read-only directory.
//!
//! ```console
//! tar -cf /tmp/docs.tar docs; mkdir /tmp/archive
//! cargo run -p corewalk-fuse --example archive -- /tmp/docs.tar /tmp/archive
//! ```
//!
//! At its start, the program reads all headers of the archive. It reads the content of a member
//! only when a client reads the file. If several members have the same name, the last of them is
//! shown. A hard link is shown as a separate file.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use anyhow::Context as _;
use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use corewalk::{Attr, ByPath, Errno, PathEntry, PathFileSystem, Timespec, errno_of};
use corewalk_fuse::{MountFlags, MountOptions, Options, serve};
use tar::{Archive, Entry, EntryType};

#[derive(Clone)]
struct Member {
    attr: Attr,
    content: u64,
    target: PathBuf,
}

pub(crate) struct Tar {
    archive: File,
    /// The members, sorted by directory and then by name: those of one directory are adjacent.
    members: BTreeMap<(PathBuf, OsString), Member>,
}

fn directory() -> Member {
    Member { attr: Attr::dir(0), content: 0, target: PathBuf::new() }
}

fn split(path: &Path) -> (PathBuf, OsString) {
    let dir = path.parent().unwrap_or(Path::new(""));
    (dir.to_owned(), path.file_name().unwrap_or_default().to_owned())
}

fn relative(path: &Path) -> Result<PathBuf, Errno> {
    let is_above = path.components().any(|part| part == Component::ParentDir);
    let names = path.components().filter(|part| matches!(part, Component::Normal(_)));
    if is_above { Err(Errno::INVAL) } else { Ok(names.collect()) }
}

impl Tar {
    pub(crate) fn open(path: &Path) -> io::Result<Tar> {
        let mut tar = Tar { archive: File::open(path)?, members: BTreeMap::new() };
        tar.insert(Path::new(""), directory());
        for entry in Archive::new(File::open(path)?).entries_with_seek()? {
            let entry = entry?;
            if let Err(why) = tar.add(&entry) {
                eprintln!("left out {}: {why}", entry.path()?.display());
            }
        }
        Ok(tar)
    }

    fn add(&mut self, entry: &Entry<'_, File>) -> io::Result<()> {
        let (path, header) = (relative(&entry.path()?)?, entry.header());
        let target = entry.link_name()?.unwrap_or_default();
        let (kind, size) = match header.entry_type() {
            EntryType::Regular | EntryType::Continuous => (S_IFREG, entry.size()),
            EntryType::Directory => (S_IFDIR, 0),
            EntryType::Symlink => (S_IFLNK, target.as_os_str().len() as u64),
            EntryType::Link => {
                let linked = self.get(&relative(&target)?)?.clone();
                self.insert(&path, linked);
                return Ok(());
            }
            EntryType::XGlobalHeader => return Ok(()),
            _ => return Err(Errno::OPNOTSUPP.into()),
        };
        let attr = Attr::file(0, size)
            .with_mode(kind | header.mode()? & !S_IFMT)
            .with_uid(header.uid()? as u32)
            .with_gid(header.gid()? as u32)
            .with_times(Timespec { secs: header.mtime()? as i64, nanos: 0 });
        let (content, target) = (entry.raw_file_position(), target.into_owned());
        self.insert(&path, Member { attr, content, target });
        Ok(())
    }

    fn insert(&mut self, path: &Path, member: Member) {
        for dir in path.ancestors().skip(1) {
            self.members.entry(split(dir)).or_insert_with(directory);
        }
        self.members.insert(split(path), member);
    }

    fn get(&self, path: &Path) -> Result<&Member, Errno> {
        self.members.get(&split(path)).ok_or(Errno::NOENT)
    }
}

impl PathFileSystem for Tar {
    type File = ();

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        Ok(self.get(path)?.attr)
    }

    fn readlink(&self, path: &Path) -> Result<PathBuf, Errno> {
        Ok(self.get(path)?.target.clone())
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        let members = self.members.range((path.to_owned(), OsString::new())..);
        let members = members.take_while(|((dir, _), _)| dir == path);
        for ((_, name), member) in members.filter(|((_, name), _)| !name.is_empty()) {
            sink(PathEntry::new(name, member.attr.kind()).with_attr(member.attr));
        }
        Ok(())
    }

    fn open(&self, _: &Path, _flags: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&self, path: &Path, _: &(), at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let Member { attr, content, .. } = self.get(path)?;
        let count = attr.size.saturating_sub(at).min(buf.len() as u64) as usize;
        self.archive.read_exact_at(&mut buf[..count], content + at).map_err(errno_of)?;
        Ok(count)
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<PathBuf> = std::env::args_os().skip(1).map(PathBuf::from).collect();
    let [archive, point] = &words[..] else { anyhow::bail!("usage: archive TARFILE MOUNTPOINT") };
    let tar = Tar::open(archive).context("no readable, uncompressed tar archive")?;
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    let mount = MountOptions::default();
    let mount = mount.clone().with_flags(mount.flags | MountFlags::RDONLY).with_source(archive);
    Ok(serve(Arc::new(ByPath::new(tar)), point, Options::exclusive(), &mount)?)
}
