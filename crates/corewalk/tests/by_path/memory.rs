//! A back end in memory that knows its files only by path. It has neither inode numbers nor hard
//! links. Each call pauses before it uses a path.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::{S_IFDIR, S_IFMT, S_IFREG};
use corewalk::{
    Attr, ByPath, Errno, FileKind, FileLock, InodeFlags, IoctlReply, Make, OpenFlags, PathEntry,
    PathFileSystem, PollEvents, PollWaker, RenameMode, SetAttr,
};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use rustix::fs::OFlags;

pub(crate) struct Memory {
    root: Mutex<File>,
    call: Duration,
    rename: Duration,
    pub(crate) open: Arc<AtomicU64>,
    pub(crate) listings: AtomicU64,
    pub(crate) flushes: AtomicU64,
    lock: Mutex<Option<FileLock>>,
    inode_flags: Mutex<InodeFlags>,
    pub(crate) getattrs_open: AtomicU64,
    pub(crate) open_at_sync: AtomicU64,
}

struct File {
    mode: u32,
    bytes: Vec<u8>,
    names: BTreeMap<OsString, File>,
}

pub(crate) struct Open {
    access: u32,
    /// The path with which the file was opened. `copy_file_range` uses it, because it gets no
    /// paths.
    path: PathBuf,
    count: Arc<AtomicU64>,
}

impl Memory {
    pub(crate) fn new(call: Duration, rename: Duration) -> ByPath<Memory> {
        ByPath::new(Memory {
            root: Mutex::new(File::new(S_IFDIR | 0o755)),
            call,
            rename,
            open: Arc::default(),
            listings: AtomicU64::new(0),
            flushes: AtomicU64::new(0),
            lock: Mutex::default(),
            inode_flags: Mutex::default(),
            getattrs_open: AtomicU64::new(0),
            open_at_sync: AtomicU64::new(u64::MAX),
        })
    }

    pub(crate) fn content(&self, path: &str) -> Option<Vec<u8>> {
        let path = Path::new(path.trim_start_matches('/'));
        self.root.lock().find(path).map(|file| file.bytes.clone())
    }

    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let path = Path::new(path.trim_start_matches('/'));
        let mut root = self.root.lock();
        let names = root.find(path).expect("a directory").names.keys();
        names.map(|name| name.to_string_lossy().into_owned()).collect()
    }

    /// Makes an empty file or directory at `path` as another program does: without a call of the
    /// namespace. Replaces an existing file.
    pub(crate) fn make_outside(&self, name: &str, mode: u32) {
        self.root.lock().names.insert(name.into(), File::new(mode));
    }

    fn pause(&self, time: Duration) {
        if time.is_zero() { thread::yield_now() } else { thread::sleep(time) }
    }

    fn with<T>(
        &self,
        path: &Path,
        work: impl FnOnce(&mut File) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        self.pause(self.call);
        work(self.root.lock().find(path).ok_or(Errno::NOENT)?)
    }
}

impl File {
    fn new(mode: u32) -> File {
        File { mode, bytes: Vec::new(), names: BTreeMap::new() }
    }

    fn attr(&self) -> Attr {
        Attr::new(0, self.mode).with_size(self.bytes.len() as u64)
    }

    fn find(&mut self, path: &Path) -> Option<&mut File> {
        path.iter().try_fold(self, |at, name| at.names.get_mut(name))
    }

    fn place<'p>(
        &mut self,
        path: &'p Path,
    ) -> Result<(&mut BTreeMap<OsString, File>, &'p OsStr), Errno> {
        let (Some(parent), Some(name)) = (path.parent(), path.file_name()) else {
            return Err(Errno::BUSY);
        };
        Ok((&mut self.find(parent).ok_or(Errno::NOENT)?.names, name))
    }
}

impl Drop for Open {
    fn drop(&mut self) {
        // ORDERING: Relaxed. Statistic.
        self.count.fetch_sub(1, Ordering::Relaxed);
    }
}

impl PathFileSystem for Memory {
    type File = Open;

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        self.with(path, |file| Ok(file.attr()))
    }

    fn getattr_open(&self, path: &Path, _: &Open) -> Result<Attr, Errno> {
        // ORDERING: Relaxed. Statistic.
        self.getattrs_open.fetch_add(1, Ordering::Relaxed);
        self.getattr(path)
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        self.pause(self.call);
        // ORDERING: Relaxed. Statistic.
        self.listings.fetch_add(1, Ordering::Relaxed);
        sink(PathEntry::new(".", FileKind::Directory));
        let mut root = self.root.lock();
        for (name, file) in &root.find(path).ok_or(Errno::NOENT)?.names {
            sink(PathEntry::new(name, file.attr().kind()).with_attr(file.attr()));
        }
        Ok(())
    }

    fn open(&self, path: &Path, flags: u32) -> Result<Open, Errno> {
        self.with(path, |file| {
            if file.attr().is_dir() {
                return Err(Errno::ISDIR);
            }
            if flags & OFlags::CREATE.bits() != 0 {
                return Err(Errno::EXIST);
            }
            // ORDERING: Relaxed. Statistic.
            self.open.fetch_add(1, Ordering::Relaxed);
            Ok(Open { access: flags & 3, path: path.to_owned(), count: self.open.clone() })
        })
    }

    fn open_flags(&self, open: &Open) -> OpenFlags {
        match open.access {
            0 => OpenFlags::KEEP_CACHE,
            _ => OpenFlags::DIRECT_IO,
        }
    }

    fn flush(&self, _: &Path, _: &Open) -> Result<(), Errno> {
        // ORDERING: Relaxed. Statistic.
        self.flushes.fetch_add(1, Ordering::Relaxed);
        Err(Errno::NOSPC)
    }

    fn has_locks(&self) -> bool {
        true
    }

    fn get_lock(&self, _: &Path, _: &Open, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        Ok(self.lock.lock().filter(|other| lock.conflicts(other)))
    }

    fn set_lock(&self, _: &Path, _: &Open, lock: &FileLock) -> Result<(), Errno> {
        *self.lock.lock() = Some(*lock);
        Ok(())
    }

    fn unlock_owner(&self, _: &Path, _: &Open, owner: u64, _: bool) -> Result<(), Errno> {
        self.lock.lock().take_if(|lock| lock.owner == owner);
        Ok(())
    }

    fn inode_flags(&self, _: &Path) -> Result<InodeFlags, Errno> {
        Ok(*self.inode_flags.lock())
    }

    fn set_inode_flags(&self, _: &Path, flags: InodeFlags) -> Result<(), Errno> {
        *self.inode_flags.lock() = flags;
        Ok(())
    }

    fn ioctl(
        &self,
        path: &Path,
        open: Option<&Open>,
        _: u32,
        _: &[u8],
    ) -> Result<IoctlReply, Errno> {
        let text = format!("{}:{}", path.display(), open.is_some());
        Ok(IoctlReply::new(text.into_bytes()))
    }

    fn poll(
        &self,
        _: &Path,
        _: &Open,
        wanted: PollEvents,
        _: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        Ok(wanted & PollEvents::IN)
    }

    fn copy_file_range(
        &self,
        (source, at): (&Open, u64),
        (target, to): (&Open, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        let mut bytes = vec![0; len as usize];
        let count = self.read(&source.path, source, at, &mut bytes)?;
        Ok(self.write(&target.path, target, to, &bytes[..count])? as u64)
    }

    fn read(&self, path: &Path, open: &Open, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.with(path, |file| {
            if open.access == 1 {
                return Err(Errno::BADF);
            }
            let rest = file.bytes.get(at as usize..).unwrap_or_default();
            let count = rest.len().min(buf.len());
            buf[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    fn write(&self, path: &Path, open: &Open, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.with(path, |file| {
            if open.access == 0 {
                return Err(Errno::BADF);
            }
            let end = at as usize + bytes.len();
            file.bytes.resize(file.bytes.len().max(end), 0);
            file.bytes[at as usize..end].copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    fn fsync(&self, _: &Path, _: &Open, _: bool) -> Result<(), Errno> {
        // ORDERING: Relaxed. Statistic.
        self.open_at_sync.store(self.open.load(Ordering::Relaxed), Ordering::Relaxed);
        Ok(())
    }

    fn setattr(&self, path: &Path, set: &SetAttr) -> Result<Attr, Errno> {
        self.with(path, |file| {
            file.mode = set.mode.map_or(file.mode, |mode| file.mode & S_IFMT | mode & !S_IFMT);
            if let Some(size) = set.size {
                file.bytes.resize(size as usize, 0);
            }
            Ok(file.attr())
        })
    }

    fn make(&self, path: &Path, what: &Make<'_>) -> Result<Attr, Errno> {
        self.pause(self.call);
        let mut root = self.root.lock();
        let (names, name) = root.place(path)?;
        if names.contains_key(name) {
            return Err(Errno::EXIST);
        }
        let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
        let file = File::new(mode);
        let attr = file.attr();
        names.insert(name.to_owned(), file);
        Ok(attr)
    }

    fn unlink(&self, path: &Path) -> Result<(), Errno> {
        self.pause(self.call);
        let mut root = self.root.lock();
        let (names, name) = root.place(path)?;
        names.remove(name).map(drop).ok_or(Errno::NOENT)
    }

    fn rmdir(&self, path: &Path) -> Result<(), Errno> {
        self.pause(self.call);
        let mut root = self.root.lock();
        let (names, name) = root.place(path)?;
        if !names.get(name).ok_or(Errno::NOENT)?.names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        names.remove(name);
        Ok(())
    }

    fn rename(&self, from: &Path, to: &Path, mode: RenameMode) -> Result<(), Errno> {
        self.pause(self.rename / 2);
        {
            let mut root = self.root.lock();
            let exists = root.find(to).is_some();
            match mode {
                _ if root.find(from).is_none() => return Err(Errno::NOENT),
                RenameMode::NoReplace if exists => return Err(Errno::EXIST),
                RenameMode::Exchange if !exists => return Err(Errno::NOENT),
                _ => {}
            }
            let (names, name) = root.place(from)?;
            let moved = names.remove(name).expect("it exists");
            let (names, name) = root.place(to)?;
            let replaced = names.insert(name.to_owned(), moved);
            if mode == RenameMode::Exchange {
                let (names, name) = root.place(from)?;
                names.insert(name.to_owned(), replaced.expect("it exists"));
            }
        }
        self.pause(self.rename / 2);
        Ok(())
    }
}
