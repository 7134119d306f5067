//! A back end in memory that implements `PathFileSystem`, as a user of the library would: without
//! inode numbers, hard links and extended attributes.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use corewalk::attr::mode::{S_IFDIR, S_IFMT, S_IFREG};
use corewalk::{
    Attr, Errno, FileKind, Make, PathEntry, PathFileSystem, RenameMode, SetAttr, SetTime, Timespec,
};
use corewalk_base::Mutex;

const SIZE_MAX: u64 = 1 << 30;

pub(crate) struct Memory {
    /// All files and directories by path, protected by its own mutex. The root has the empty path.
    files: Mutex<BTreeMap<PathBuf, File>>,
}

struct File {
    attr: Attr,
    bytes: Vec<u8>,
}

impl File {
    fn new(attr: Attr, bytes: &[u8]) -> File {
        File { attr: attr.with_times(Timespec::now()), bytes: bytes.to_vec() }
    }

    fn attr(&self) -> Attr {
        self.attr.with_size(self.bytes.len() as u64)
    }

    fn touch(&mut self) {
        let now = Timespec::now();
        self.attr = self.attr.with_mtime(now).with_ctime(now);
    }
}

type Files = BTreeMap<PathBuf, File>;

fn find<'f>(files: &'f mut Files, path: &Path) -> Result<&'f mut File, Errno> {
    files.get_mut(path).ok_or(Errno::NOENT)
}

fn touch_parent(files: &mut Files, path: &Path) -> Result<(), Errno> {
    find(files, path.parent().unwrap_or(Path::new(""))).map(File::touch)
}

fn has_children(files: &Files, path: &Path) -> bool {
    files.keys().any(|file| file.parent() == Some(path))
}

/// Removes a file, or a directory with everything in it. The returned paths are relative to `path`.
fn take(files: &mut Files, path: &Path) -> Vec<(PathBuf, File)> {
    let below: Vec<PathBuf> = files.keys().filter(|at| at.starts_with(path)).cloned().collect();
    let take = |at: PathBuf| {
        let file = files.remove(&at).unwrap();
        (at.strip_prefix(path).unwrap().to_owned(), file)
    };
    below.into_iter().map(take).collect()
}

fn put(files: &mut Files, path: &Path, taken: Vec<(PathBuf, File)>) {
    for (below, file) in taken {
        // A join with the empty path would add a slash.
        let at = if below.as_os_str().is_empty() { path.to_owned() } else { path.join(below) };
        files.insert(at, file);
    }
}

impl Memory {
    pub(crate) fn new() -> Memory {
        let root = File::new(Attr::dir(0), b"");
        Memory { files: Mutex::new(BTreeMap::from([(PathBuf::new(), root)])) }
    }
}

fn time(set: Option<SetTime>, old: Timespec) -> Timespec {
    match set {
        None => old,
        Some(SetTime::Now) => Timespec::now(),
        Some(SetTime::At(time)) => time,
    }
}

impl PathFileSystem for Memory {
    type File = ();

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        find(&mut self.files.lock(), path).map(|file| file.attr())
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        let files = self.files.lock();
        for (at, file) in files.iter().filter(|(at, _)| at.parent() == Some(path)) {
            sink(PathEntry::new(at.file_name().unwrap(), file.attr.kind()));
        }
        Ok(())
    }

    fn open(&self, path: &Path, _flags: u32) -> Result<(), Errno> {
        find(&mut self.files.lock(), path).map(drop)
    }

    fn read(&self, path: &Path, _: &(), at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let mut files = self.files.lock();
        let rest = find(&mut files, path)?.bytes.get(at as usize..).unwrap_or_default();
        let count = rest.len().min(buf.len());
        buf[..count].copy_from_slice(&rest[..count]);
        Ok(count)
    }

    fn write(&self, path: &Path, _: &(), at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        let end = at + bytes.len() as u64;
        if end > SIZE_MAX {
            return Err(Errno::FBIG);
        }
        let mut files = self.files.lock();
        let file = find(&mut files, path)?;
        file.bytes.resize(file.bytes.len().max(end as usize), 0);
        file.bytes[at as usize..end as usize].copy_from_slice(bytes);
        file.touch();
        Ok(bytes.len())
    }

    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        let mut files = self.files.lock();
        let file = find(&mut files, path)?;
        if let Some(size) = set.size {
            if size > SIZE_MAX {
                return Err(Errno::FBIG);
            }
            file.bytes.resize(size as usize, 0);
            file.touch();
        }
        let old = file.attr;
        let mode = set.mode.map_or(old.mode, |mode| old.mode & S_IFMT | mode & !S_IFMT);
        file.attr = old
            .with_mode(mode)
            .with_uid(set.uid.unwrap_or(old.uid))
            .with_gid(set.gid.unwrap_or(old.gid))
            .with_atime(time(set.atime, old.atime))
            .with_mtime(time(set.mtime, old.mtime))
            .with_ctime(set.ctime.unwrap_or_else(Timespec::now));
        Ok(file.attr())
    }

    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        let mut files = self.files.lock();
        if files.contains_key(path) {
            return Err(Errno::EXIST);
        }
        touch_parent(&mut files, path)?;
        let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
        let nlink = if mode & S_IFMT == S_IFDIR { 2 } else { 1 };
        let attr = Attr::new(0, mode).with_nlink(nlink).with_uid(what.uid).with_gid(what.gid);
        let file = File::new(attr.with_rdev(what.rdev), what.target);
        let attr = file.attr();
        files.insert(path.to_owned(), file);
        Ok(attr)
    }

    fn unlink(&self, path: &Path) -> Result<(), Errno> {
        let mut files = self.files.lock();
        files.remove(path).ok_or(Errno::NOENT)?;
        touch_parent(&mut files, path)
    }

    fn rmdir(&self, path: &Path) -> Result<(), Errno> {
        if has_children(&self.files.lock(), path) {
            return Err(Errno::NOTEMPTY);
        }
        self.unlink(path)
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        let mut files = self.files.lock();
        let is_taken = files.contains_key(to);
        match mode {
            _ if !files.contains_key(from) => return Err(Errno::NOENT),
            RenameMode::NoReplace if is_taken => return Err(Errno::EXIST),
            RenameMode::Exchange if !is_taken => return Err(Errno::NOENT),
            RenameMode::Replace if has_children(&files, to) => return Err(Errno::NOTEMPTY),
            _ => {}
        }
        touch_parent(&mut files, from)?;
        touch_parent(&mut files, to)?;
        let (moved, replaced) = (take(&mut files, from), take(&mut files, to));
        put(&mut files, to, moved);
        if mode == RenameMode::Exchange {
            put(&mut files, from, replaced);
        }
        Ok(())
    }

    fn readlink(&self, path: &Path) -> Result<PathBuf, Errno> {
        use std::os::unix::ffi::OsStringExt;

        let mut files = self.files.lock();
        let file = find(&mut files, path)?;
        match file.attr.kind() {
            FileKind::Symlink => Ok(std::ffi::OsString::from_vec(file.bytes.clone()).into()),
            _ => Err(Errno::INVAL),
        }
    }
}
