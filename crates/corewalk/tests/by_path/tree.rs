//! A back end that finds files by path only. Each call gets its path, pauses, and only then
//! resolves the path.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use corewalk::attr::mode::{S_IFDIR, S_IFMT, S_IFREG};
use corewalk::{
    Addressing, Attr, DirEntry, DirSink, Errno, FileSystem, Make, Name, Node, Opened, RenameMode,
    SetAttr, StatFs, Vfs,
};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;

const ROOT: u64 = 1;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Yes,
    No,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum At {
    /// The back end has got the path of the call's file from the namespace, but has not used the
    /// path yet.
    Call,
    /// The rename has got its paths and has not begun.
    BeforeRename,
    AfterRename,
}

type Pause = dyn Fn(At, &[u8]) + Send + Sync;

pub(crate) struct PathTree {
    state: Mutex<State>,
    links: Links,
    pause: Box<Pause>,
    /// For control tests. If this is set, a call asks this namespace for the path of its file,
    /// instead of using the path that it was given. No path lock protects that path, so a rename
    /// during the call can make it invalid.
    pub(crate) snapshots: OnceLock<Weak<Vfs>>,
    /// Number of calls of the back end whose path led to another file than the namespace meant.
    pub(crate) strays: AtomicU64,
    pub(crate) calls: AtomicU64,
}

struct State {
    files: HashMap<u64, File>,
    last: u64,
}

struct File {
    mode: u32,
    nlink: u32,
    bytes: Vec<u8>,
    names: BTreeMap<Vec<u8>, u64>,
}

impl File {
    fn new(mode: u32) -> File {
        File { mode, nlink: 1, bytes: Vec::new(), names: BTreeMap::new() }
    }
}

impl PathTree {
    pub(crate) fn new(
        links: Links,
        pause: impl Fn(At, &[u8]) + Send + Sync + 'static,
    ) -> Arc<PathTree> {
        let files = HashMap::from([(ROOT, File::new(S_IFDIR | 0o755))]);
        Arc::new(PathTree {
            state: Mutex::new(State { files, last: ROOT }),
            links,
            pause: Box::new(pause),
            snapshots: OnceLock::new(),
            strays: AtomicU64::new(0),
            calls: AtomicU64::new(0),
        })
    }

    pub(crate) fn slow(links: Links, call: Duration, rename: Duration) -> Arc<PathTree> {
        PathTree::new(links, move |at, _| match at {
            At::Call if !call.is_zero() => thread::sleep(call),
            At::BeforeRename | At::AfterRename if !rename.is_zero() => thread::sleep(rename / 2),
            _ => thread::yield_now(),
        })
    }

    pub(crate) fn content(&self, path: &str) -> Option<Vec<u8>> {
        let state = self.state.lock();
        let ino = state.resolve(path.as_bytes()).ok()?;
        Some(state.files[&ino].bytes.clone())
    }

    pub(crate) fn names(&self, path: &str) -> Vec<String> {
        let state = self.state.lock();
        let ino = state.resolve(path.as_bytes()).expect("a directory");
        let text = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        state.files[&ino].names.keys().map(text).collect()
    }

    pub(crate) fn remove_outside(&self, dir: &str, name: &str) {
        let mut state = self.state.lock();
        let dir = state.resolve(dir.as_bytes()).expect("a directory");
        state.unlink(dir, name.as_bytes()).expect("a name");
    }

    fn path(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        match self.snapshots.get().and_then(Weak::upgrade) {
            None => node.path(),
            Some(vfs) => vfs.inode(node.ino())?.path(),
        }
    }

    fn at(&self, node: Node<'_>) -> Result<u64, Errno> {
        let path = self.path(node)?;
        (self.pause)(At::Call, &path);
        self.meant(node, &path)
    }

    fn meant(&self, node: Node<'_>, path: &[u8]) -> Result<u64, Errno> {
        // ORDERING: Relaxed. Statistic.
        self.calls.fetch_add(1, Ordering::Relaxed);
        let found = self.state.lock().resolve(path)?;
        if found != node.ino() {
            // ORDERING: Relaxed. The count is read after all threads have been joined.
            self.strays.fetch_add(1, Ordering::Relaxed);
        }
        Ok(found)
    }

    fn with<T>(
        &self,
        node: Node<'_>,
        work: impl FnOnce(&mut File) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let ino = self.at(node)?;
        work(self.state.lock().files.get_mut(&ino).ok_or(Errno::NOENT)?)
    }
}

impl State {
    fn resolve(&self, path: &[u8]) -> Result<u64, Errno> {
        let names = path.split(|&b| b == b'/').filter(|name| !name.is_empty());
        names.into_iter().try_fold(ROOT, |at, name| self.child(at, name))
    }

    fn child(&self, dir: u64, name: &[u8]) -> Result<u64, Errno> {
        self.files.get(&dir).and_then(|dir| dir.names.get(name)).copied().ok_or(Errno::NOENT)
    }

    fn dir(&mut self, ino: u64) -> Result<&mut BTreeMap<Vec<u8>, u64>, Errno> {
        Ok(&mut self.files.get_mut(&ino).ok_or(Errno::NOENT)?.names)
    }

    fn unlink(&mut self, dir: u64, name: &[u8]) -> Result<(), Errno> {
        let ino = self.child(dir, name)?;
        if !self.files[&ino].names.is_empty() {
            return Err(Errno::NOTEMPTY);
        }
        self.dir(dir)?.remove(name);
        let file = self.files.get_mut(&ino).expect("a name leads to a file");
        file.nlink -= 1;
        if file.nlink == 0 {
            self.files.remove(&ino);
        }
        Ok(())
    }

    fn attr(&self, ino: u64) -> Result<Attr, Errno> {
        let file = self.files.get(&ino).ok_or(Errno::NOENT)?;
        Ok(Attr::new(ino, file.mode).with_nlink(file.nlink).with_size(file.bytes.len() as u64))
    }
}

impl FileSystem for PathTree {
    fn addressing(&self) -> Addressing {
        Addressing::PathOnly
    }

    fn root(&self) -> Result<Attr, Errno> {
        self.state.lock().attr(ROOT)
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        let dir = self.at(dir)?;
        let state = self.state.lock();
        state.attr(state.child(dir, name.as_bytes())?)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        let ino = self.at(node)?;
        self.state.lock().attr(ino)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let ino = self.at(node)?;
        let mut state = self.state.lock();
        let file = state.files.get_mut(&ino).ok_or(Errno::NOENT)?;
        file.mode = set.mode.map_or(file.mode, |mode| file.mode & S_IFMT | mode & !S_IFMT);
        if let Some(size) = set.size {
            file.bytes.resize(size as usize, 0);
        }
        state.attr(ino)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        let dir = self.at(dir)?;
        let mut state = self.state.lock();
        if state.child(dir, name.as_bytes()).is_ok() {
            return Err(Errno::EXIST);
        }
        state.last += 1;
        let ino = state.last;
        state.dir(dir)?.insert(name.as_bytes().to_vec(), ino);
        let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
        state.files.insert(ino, File::new(mode));
        state.attr(ino)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        if self.links == Links::No {
            return Err(Errno::PERM);
        }
        let (file, parent) = (self.path(node)?, self.path(dir)?);
        (self.pause)(At::Call, &file);
        let (ino, dir) = (self.meant(node, &file)?, self.meant(dir, &parent)?);
        let mut state = self.state.lock();
        if state.child(dir, name.as_bytes()).is_ok() {
            return Err(Errno::EXIST);
        }
        state.dir(dir)?.insert(name.as_bytes().to_vec(), ino);
        state.files.get_mut(&ino).ok_or(Errno::NOENT)?.nlink += 1;
        state.attr(ino)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, _node: Node<'_>) -> Result<(), Errno> {
        let dir = self.at(dir)?;
        self.state.lock().unlink(dir, name.as_bytes())
    }

    fn rename(
        &self,
        (from_dir, from): (Node<'_>, Name<'_>),
        (to_dir, to): (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (old, new) = (self.path(from_dir)?, self.path(to_dir)?);
        (self.pause)(At::BeforeRename, &old);
        let (a, b) = (self.meant(from_dir, &old)?, self.meant(to_dir, &new)?);
        let (from, to) = (from.as_bytes(), to.as_bytes());
        {
            let mut state = self.state.lock();
            let moved = state.child(a, from)?;
            let other = state.child(b, to).ok();
            match (mode, other) {
                (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
                (RenameMode::Exchange, None) => return Err(Errno::NOENT),
                (RenameMode::Exchange, Some(other)) => {
                    state.dir(a)?.insert(from.to_vec(), other);
                }
                (_, Some(_)) => {
                    state.unlink(b, to)?;
                    state.dir(a)?.remove(from);
                }
                (_, None) => {
                    state.dir(a)?.remove(from);
                }
            }
            state.dir(b)?.insert(to.to_vec(), moved);
        }
        (self.pause)(At::AfterRename, &old);
        Ok(())
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let dir = self.at(dir)?;
        let state = self.state.lock();
        let names = &state.files.get(&dir).ok_or(Errno::NOENT)?.names;
        for (i, (name, &ino)) in names.iter().enumerate().skip(cookie as usize) {
            let (name, kind) = (Name::new(name)?, state.attr(ino)?.kind());
            if let ControlFlow::Break(()) = sink(DirEntry::new(name, ino, kind, i as u64 + 1)) {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.with(node, |file| {
            let rest = file.bytes.get(offset as usize..).unwrap_or_default();
            let count = rest.len().min(buf.len());
            buf[..count].copy_from_slice(&rest[..count]);
            Ok(count)
        })
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.with(node, |file| {
            let end = offset as usize + bytes.len();
            file.bytes.resize(file.bytes.len().max(end), 0);
            file.bytes[offset as usize..end].copy_from_slice(bytes);
            Ok(bytes.len())
        })
    }

    fn open(&self, node: Node<'_>, _flags: u32) -> Result<Opened, Errno> {
        self.with(node, |_| Ok(Opened::new(7)))
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Err(Errno::NOSYS)
    }
}
