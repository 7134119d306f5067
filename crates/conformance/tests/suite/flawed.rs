//! A tmpfs with one planted bug.

use std::collections::{HashMap, HashSet};
use std::ops::ControlFlow;
use std::time::Duration;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Attr, DirEntry, DirSink, Errno, FileKind, FileSystem, Make, Name, Node, RenameMode, SetAttr,
    StatFs, Timespec,
};
use corewalk_base::Mutex;
use corewalk_base::primitives::thread;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Flaw {
    None,
    /// A new file gets the inode number of a removed and forgotten file.
    ReusedNumber,
    /// The cookie of the first entry is 0.
    ZeroCookie,
    /// The cookie of an entry is its position, so it changes if an earlier entry is removed.
    MovingCookie,
    /// `readdir` reports a further entry after the sink has said that the page is full.
    DeafToBreak,
    /// A file that is truncated and then extended has its old bytes again.
    OldBytes,
    ExchangeReplaces,
    NoReplaceReplaces,
    /// A rename removes files that other threads make in the target directory meanwhile.
    LostUpdate,
    VanishesUnlinked,
    ShortRead,
    HalfSetattr,
    RemovesFull,
    /// A file with a name loses its content when the cache forgets it.
    ForgetLosesContent,
    /// The modification time of a file is the time of the call.
    TimeOfCall,
    Panics,
    Hangs,
}

#[derive(Default)]
struct Numbers {
    /// For each inode number of the tmpfs, the number that clients see. `inner` is the reverse map.
    shown: HashMap<u64, u64>,
    inner: HashMap<u64, u64>,
    removed: HashSet<u64>,
    free: Vec<u64>,
    last: u64,
}

#[derive(Default)]
struct Renames {
    running: u32,
    made: Vec<(u64, Vec<u8>, u64)>,
}

pub(crate) struct Flawed {
    fs: Tmpfs,
    flaw: Flaw,
    /// Each field is protected by its own mutex.
    numbers: Mutex<Numbers>,
    renames: Mutex<Renames>,
    cut: Mutex<HashMap<u64, Vec<u8>>>,
    unlinked: Mutex<HashSet<u64>>,
}

impl Flawed {
    pub(crate) fn new(flaw: Flaw) -> Flawed {
        Flawed {
            fs: Tmpfs::new(TmpfsOptions::default()),
            flaw,
            numbers: Mutex::default(),
            renames: Mutex::default(),
            cut: Mutex::default(),
            unlinked: Mutex::default(),
        }
    }

    fn has(&self, flaw: Flaw) -> bool {
        self.flaw == flaw
    }

    fn shown(&self, attr: Attr) -> Attr {
        if self.has(Flaw::TimeOfCall) {
            return attr.with_mtime(Timespec::now());
        }
        if !self.has(Flaw::ReusedNumber) {
            return attr;
        }
        let mut numbers = self.numbers.lock();
        let shown = match numbers.shown.get(&attr.ino) {
            Some(shown) => *shown,
            None => {
                numbers.last += 1;
                let shown = numbers.free.pop().unwrap_or(numbers.last);
                numbers.shown.insert(attr.ino, shown);
                numbers.inner.insert(shown, attr.ino);
                shown
            }
        };
        attr.with_ino(shown).with_generation(0)
    }

    fn inner(&self, ino: u64) -> u64 {
        if !self.has(Flaw::ReusedNumber) {
            return ino;
        }
        self.numbers.lock().inner.get(&ino).copied().unwrap_or(ino)
    }

    fn node(&self, node: Node<'_>) -> Node<'static> {
        Node::detached(self.inner(node.ino()), node.kind())
    }

    fn file(&self, node: Node<'_>) -> Result<Node<'static>, Errno> {
        let is_gone =
            self.has(Flaw::VanishesUnlinked) && self.unlinked.lock().contains(&node.ino());
        if is_gone { Err(Errno::STALE) } else { Ok(self.node(node)) }
    }

    fn entries(&self, dir: Node<'_>) -> Result<Vec<(Vec<u8>, u64, FileKind)>, Errno> {
        let mut entries = Vec::new();
        self.fs.readdir(dir, 0, &mut |entry| {
            entries.push((entry.name.as_bytes().to_vec(), entry.ino, entry.kind));
            ControlFlow::Continue(())
        })?;
        Ok(entries)
    }

    /// For [`Flaw::LostUpdate`]: removes the files that were made in `dir` during a rename.
    fn lose_made(&self, dir: u64) {
        // Give other threads the time to make files.
        thread::sleep(Duration::from_micros(50));
        let mut renames = self.renames.lock();
        renames.running -= 1;
        let (lost, other) =
            std::mem::take(&mut renames.made).into_iter().partition(|it| it.0 == dir);
        renames.made = if renames.running > 0 { other } else { Vec::new() };
        drop(renames);
        let lost: Vec<(u64, Vec<u8>, u64)> = lost;
        for (at, name, ino) in lost {
            let [parent, file] = [(at, FileKind::Directory), (ino, FileKind::Regular)]
                .map(|(ino, kind)| Node::detached(ino, kind));
            let _ = self.fs.remove(parent, Name::new(&name).unwrap(), file);
        }
    }
}

impl FileSystem for Flawed {
    fn root(&self) -> Result<Attr, Errno> {
        self.fs.root().map(|attr| self.shown(attr))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.fs.lookup(self.node(dir), name).map(|attr| self.shown(attr))
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.fs.getattr(self.file(node)?).map(|attr| self.shown(attr))
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        let node = self.file(node)?;
        if self.has(Flaw::HalfSetattr) && set.size.is_some() {
            let mode = SetAttr::default().with_mode(set.mode);
            self.fs.setattr(node, &mode)?;
        }
        let old = self.fs.getattr(node)?.size;
        if let (Flaw::OldBytes, Some(size)) = (self.flaw, set.size.filter(|size| *size < old)) {
            let mut bytes = vec![0; (old - size) as usize];
            self.fs.read(node, size, &mut bytes)?;
            self.cut.lock().insert(node.ino(), bytes);
        }
        let attr = self.fs.setattr(node, set)?;
        if let (Flaw::OldBytes, Some(size)) = (self.flaw, set.size.filter(|size| *size > old)) {
            let bytes = self.cut.lock().remove(&node.ino()).unwrap_or_default();
            let len = bytes.len().min((size - old) as usize);
            self.fs.write(node, old, &bytes[..len])?;
        }
        Ok(self.shown(attr))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        assert!(!self.has(Flaw::Panics), "a planted panic");
        while self.has(Flaw::Hangs) {
            thread::sleep(Duration::from_secs(1));
        }
        let attr = self.fs.make(self.node(dir), name, what)?;
        let mut renames = self.renames.lock();
        if renames.running > 0 {
            renames.made.push((dir.ino(), name.as_bytes().to_vec(), attr.ino));
        }
        drop(renames);
        Ok(self.shown(attr))
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        let inner = self.node(node);
        let removed = self.fs.remove(self.node(dir), name, inner);
        if self.has(Flaw::RemovesFull) && removed == Err(Errno::NOTEMPTY) {
            for (child, ino, kind) in self.entries(inner)? {
                self.remove(inner, Name::new(&child)?, Node::detached(ino, kind))?;
            }
            return self.fs.remove(self.node(dir), name, inner);
        }
        removed?;
        self.numbers.lock().removed.insert(node.ino());
        self.unlinked.lock().insert(node.ino());
        Ok(())
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let mode = match (self.flaw, mode) {
            (Flaw::ExchangeReplaces, RenameMode::Exchange) => RenameMode::Replace,
            (Flaw::NoReplaceReplaces, RenameMode::NoReplace) => RenameMode::Replace,
            (_, mode) => mode,
        };
        let loses = self.has(Flaw::LostUpdate);
        if loses {
            self.renames.lock().running += 1;
        }
        let renamed = self.fs.rename((self.node(from.0), from.1), (self.node(to.0), to.1), mode);
        if loses {
            self.lose_made(to.0.ino());
        }
        renamed
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        let dir = self.node(dir);
        match self.flaw {
            Flaw::MovingCookie | Flaw::ZeroCookie => {
                let shift = u64::from(self.has(Flaw::MovingCookie));
                let all = self.entries(dir)?;
                for (at, (name, ino, kind)) in all.iter().enumerate().skip(cookie as usize) {
                    let entry = DirEntry::new(Name::new(name)?, *ino, *kind, at as u64 + shift);
                    if sink(entry).is_break() {
                        break;
                    }
                }
                Ok(())
            }
            Flaw::DeafToBreak => self.fs.readdir(dir, cookie, &mut |entry| {
                let _ = sink(entry);
                ControlFlow::Continue(())
            }),
            Flaw::ReusedNumber => {
                self.fs.readdir(dir, cookie, &mut |entry| sink(entry.with_ino(0)))
            }
            _ => self.fs.readdir(dir, cookie, sink),
        }
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let len = if self.has(Flaw::ShortRead) { buf.len().min(4096) } else { buf.len() };
        self.fs.read(self.file(node)?, offset, &mut buf[..len])
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.fs.write(self.file(node)?, offset, bytes)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.fs.readlink(self.node(node))
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.fs.statfs()
    }

    fn forget(&self, ino: u64, generation: u64) {
        let inner = self.inner(ino);
        if self.has(Flaw::ForgetLosesContent) {
            let file = Node::detached(inner, FileKind::Regular);
            let _ = self.fs.setattr(file, &SetAttr::default().with_size(0));
        }
        self.fs.forget(inner, generation);
        let mut numbers = self.numbers.lock();
        if self.has(Flaw::ReusedNumber) && numbers.removed.remove(&ino) {
            numbers.shown.remove(&inner);
            numbers.inner.remove(&ino);
            numbers.free.push(ino);
        }
    }
}
