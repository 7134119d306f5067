//! A writable file system in memory, which finds its files by path and has no inode numbers. Mount
//! it with `mkdir /tmp/memory; cargo run -p corewalk-fuse --example memory -- /tmp/memory`.
//!
//! corewalk assigns inode numbers, checks permissions, and keeps a removed file until it is closed.

use std::collections::btree_map::{BTreeMap, Entry};
use std::path::{Path, PathBuf};
use std::{ffi::OsString, io::Read as _, os::unix::ffi::OsStringExt as _, sync::Arc};

use corewalk::{Attr, ByPath, Errno, Make, PathEntry, PathFileSystem, RenameMode, errno_of};
use corewalk::{SetAttr, SetTime, StatFs, Timespec, attr::mode::S_IFDIR};
use corewalk_fuse::{MountOptions, Options, serve};
use parking_lot::Mutex;

/// The limit of all files together, in bytes.
const CAPACITY: u64 = 1 << 30;
/// The attributes and the content of a file. The content of a symbolic link is its target.
type File = (Attr, Vec<u8>);
/// All files, sorted by path: the files below a directory follow directly after it.
type Files = BTreeMap<PathBuf, File>;

pub(crate) struct Memory(Mutex<Files>);

pub(crate) fn memory() -> Arc<ByPath<Memory>> {
    let root = (Attr::dir(0).with_mode(S_IFDIR | 0o1777).with_times(Timespec::now()), Vec::new());
    Arc::new(ByPath::new(Memory(Mutex::new(Files::from([(PathBuf::new(), root)])))))
}

fn subtree<'f>(files: &'f Files, path: &Path) -> impl Iterator<Item = (&'f PathBuf, &'f File)> {
    files.range(path.to_owned()..).take_while(move |(below, _)| below.starts_with(path))
}

fn free_bytes(files: &Files) -> u64 {
    CAPACITY.saturating_sub(files.values().map(|(attr, _)| attr.size).sum())
}

/// Changes the attributes of the file at `path` as `set` requests, and sets the file's change time.
fn change<'f>(files: &'f mut Files, path: &Path, set: &SetAttr) -> Result<&'f mut File, Errno> {
    let free = set.size.map_or(0, |_| free_bytes(files));
    let file = files.get_mut(path).ok_or(Errno::NOENT)?;
    let size = set.size.unwrap_or(file.0.size);
    if size > file.0.size + free {
        return Err(Errno::NOSPC);
    }
    file.1.resize(size as usize, 0);
    file.0.change(set, Timespec::now());
    Ok(file)
}

fn touch_parent(files: &mut Files, path: &Path) -> Result<(), Errno> {
    let parent = path.parent().ok_or(Errno::NOENT)?;
    change(files, parent, &SetAttr::default().with_mtime(SetTime::Now)).map(drop)
}

impl PathFileSystem for Memory {
    type File = ();

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        self.0.lock().get(path).map(|file| file.0).ok_or(Errno::NOENT)
    }

    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        change(&mut self.0.lock(), path, set).map(|file| file.0)
    }

    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        let mut files = self.0.lock();
        let Entry::Vacant(name) = files.entry(path.to_owned()) else { return Err(Errno::EXIST) };
        let attr = Attr::new(0, what.mode).with_uid(what.uid).with_gid(what.gid);
        let attr = attr.with_rdev(what.rdev).with_size(what.target.len() as u64);
        let attr = name.insert((attr.with_times(Timespec::now()), what.target.to_vec())).0;
        touch_parent(&mut files, path).map(|()| attr)
    }

    fn unlink(&self, path: &Path) -> Result<(), Errno> {
        let mut files = self.0.lock();
        let is_alone = subtree(&files, path).nth(1).is_none();
        is_alone.then(|| files.remove(path)).ok_or(Errno::NOTEMPTY)?.ok_or(Errno::NOENT)?;
        touch_parent(&mut files, path)
    }

    fn rmdir(&self, path: &Path) -> Result<(), Errno> {
        self.unlink(path)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        let mut files = self.0.lock();
        match mode {
            RenameMode::NoReplace if files.contains_key(to) => return Err(Errno::EXIST),
            RenameMode::Replace if subtree(&files, to).nth(1).is_some() => {
                return Err(Errno::NOTEMPTY);
            }
            _ => drop(change(&mut files, from, &SetAttr::default())?),
        }
        let exchanged = subtree(&files, to).filter(|_| mode == RenameMode::Exchange);
        let paths: Vec<_> = subtree(&files, from).chain(exchanged).map(|it| it.0.clone()).collect();
        let taken: Vec<_> = paths.iter().filter_map(|path| files.remove_entry(path)).collect();
        files.extend(taken.into_iter().map(|(path, file)| match path.strip_prefix(from) {
            Ok(below) => (to.iter().chain(below).collect(), file),
            Err(_) => (from.iter().chain(path.iter().skip(to.iter().count())).collect(), file),
        }));
        touch_parent(&mut files, from).and(touch_parent(&mut files, to))
    }

    fn readlink(&self, path: &Path) -> Result<PathBuf, Errno> {
        let target = self.0.lock().get(path).map(|(_, target)| target.clone());
        Ok(OsString::from_vec(target.ok_or(Errno::NOENT)?).into())
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        for (child, (attr, _)) in subtree(&self.0.lock(), path) {
            if let Some(name) = child.file_name().filter(|_| child.parent() == Some(path)) {
                sink(PathEntry::new(name, attr.kind()).with_attr(*attr));
            }
        }
        Ok(())
    }

    fn open(&self, _: &Path, _flags: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&self, path: &Path, _: &(), at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let files = self.0.lock();
        let (_, content) = files.get(path).ok_or(Errno::NOENT)?;
        content.get(at as usize..).unwrap_or_default().read(buf).map_err(errno_of)
    }

    fn write(&self, path: &Path, _: &(), at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let (mut files, end) = (self.0.lock(), at + bytes.len() as u64);
        let size = files.get(path).ok_or(Errno::NOENT)?.0.size.max(end);
        let file = change(&mut files, path, &SetAttr::default().with_size(size))?;
        file.1[at as usize..end as usize].copy_from_slice(bytes);
        Ok(bytes.len())
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        let free = free_bytes(&self.0.lock()) / 4096;
        Ok(StatFs::default().with_blocks(CAPACITY / 4096).with_bfree(free).with_bavail(free))
    }
}

fn main() -> anyhow::Result<()> {
    let point = std::env::args_os().nth(1).ok_or(anyhow::anyhow!("usage: memory MOUNTPOINT"))?;
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    Ok(serve(memory(), point.as_ref(), Options::exclusive(), &MountOptions::default())?)
}
