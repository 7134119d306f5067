//! A tmpfs into which a test can inject delays, failures, panics, other inode numbers, or handles.

use std::ops::ControlFlow;

use corewalk::acl::Acl;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    AclKind, Attr, DirEntry, DirSink, Errno, Fallocate, FileSystem, Make, Name, Node, Opened,
    RenameMode, Seek, SetAttr, StatFs, Ttl, XattrMode,
};
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};

type Hook = Box<dyn Fn(&str, &[u8]) + Send + Sync>;

pub(crate) struct Hooked {
    inner: Tmpfs,
    hook: Hook,
    exchanged: (u64, u64),
    full: AtomicU64,
    /// The handle that each open returns. Reads and writes must pass it. If it is 0, the back end
    /// keeps no state for open files.
    handle: u64,
    open: AtomicU64,
    hides_attributes: bool,
    /// Number of entries, with attributes, that one call of `readdir` reports. If it is 0, each
    /// call reports all entries without attributes.
    pub(crate) page_entries: usize,
    pub(crate) ttl: Ttl,
}

impl Hooked {
    pub(crate) fn new(hook: impl Fn(&str, &[u8]) + Send + Sync + 'static) -> Hooked {
        Hooked {
            inner: Tmpfs::new(TmpfsOptions::default()),
            hook: Box::new(hook),
            exchanged: (0, 0),
            full: AtomicU64::new(0),
            handle: 0,
            open: AtomicU64::new(0),
            hides_attributes: false,
            page_entries: 0,
            ttl: Ttl::default(),
        }
    }

    pub(crate) fn fill_for(&self, changes: u64) {
        // ORDERING: Relaxed. The serving thread loads the value for the next request of the test,
        // and the kernel orders the request after the store.
        self.full.store(changes, Ordering::Relaxed);
    }

    pub(crate) fn is_full_for(&self) -> u64 {
        // ORDERING: Relaxed. The test has got the answer to its last request. The answer orders the
        // server's stores of `full` before the load.
        self.full.load(Ordering::Relaxed)
    }

    pub(crate) fn with_root(root: u64) -> Hooked {
        let mut fs = Hooked::new(|_, _| {});
        fs.exchanged = (fs.inner.root().expect("read the root's attributes").ino, root);
        fs
    }

    pub(crate) fn with_handle(handle: u64) -> Hooked {
        Hooked { handle, ..Hooked::new(|_, _| {}) }
    }

    pub(crate) fn hiding_attributes() -> Hooked {
        Hooked { hides_attributes: true, ..Hooked::with_handle(7) }
    }

    pub(crate) fn open_files(&self) -> u64 {
        // ORDERING: Relaxed. The serving thread stores the value before it answers the open, and
        // the test loads it after the answer.
        self.open.load(Ordering::Relaxed)
    }

    pub(crate) fn inner(&self) -> &Tmpfs {
        &self.inner
    }

    fn number(&self, ino: u64) -> u64 {
        match ino {
            ino if ino == self.exchanged.0 => self.exchanged.1,
            ino if ino == self.exchanged.1 => self.exchanged.0,
            ino => ino,
        }
    }

    fn node(&self, node: Node<'_>) -> Node<'static> {
        Node::detached(self.number(node.ino()), node.kind())
    }

    fn attr(&self, attr: Attr) -> Attr {
        attr.with_ino(self.number(attr.ino)).with_ttl(self.ttl)
    }

    fn call(&self, what: &str, name: &[u8]) {
        (self.hook)(what, name);
    }

    fn check(&self, handle: u64) -> Result<(), Errno> {
        if handle == self.handle { Ok(()) } else { Err(Errno::BADF) }
    }

    fn check_full(&self) -> Result<(), Errno> {
        let less = |left: u64| left.checked_sub(1);
        // ORDERING: Relaxed. A count; no data is published through it.
        match self.full.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less) {
            Ok(_) => Err(Errno::NOSPC),
            Err(_) => Ok(()),
        }
    }
}

impl FileSystem for Hooked {
    fn root(&self) -> Result<Attr, Errno> {
        self.inner.root().map(|attr| self.attr(attr))
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.call("lookup", name.as_bytes());
        self.inner.lookup(self.node(dir), name).map(|attr| self.attr(attr))
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.call("getattr", b"");
        if self.hides_attributes && self.open_files() > 0 {
            return Err(Errno::IO);
        }
        self.inner.getattr(self.node(node)).map(|attr| self.attr(attr))
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.check_full()?;
        self.inner.setattr(self.node(node), set).map(|attr| self.attr(attr))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.call("make", name.as_bytes());
        self.check_full()?;
        self.inner.make(self.node(dir), name, what).map(|attr| self.attr(attr))
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.call("remove", name.as_bytes());
        self.inner.remove(self.node(dir), name, self.node(node))
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.call("rename", from.1.as_bytes());
        self.check_full()?;
        self.inner.rename((self.node(from.0), from.1), (self.node(to.0), to.1), mode)
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.call("readdir", b"");
        let mut reported = 0;
        self.inner.readdir(self.node(dir), cookie, &mut |entry| {
            if self.page_entries == 0 {
                self.call("entry", entry.name.as_bytes());
                return sink(entry.with_ino(self.number(entry.ino)));
            }
            let attr = self.inner.getattr(Node::detached(entry.ino, entry.kind));
            let Ok(attr) = attr else { return ControlFlow::Continue(()) };
            if reported == self.page_entries {
                return ControlFlow::Break(());
            }
            reported += 1;
            self.call("entry", entry.name.as_bytes());
            sink(DirEntry::from_attr(entry.name, self.attr(attr), entry.cookie))
        })
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.call("read", b"");
        self.check(node.handle())?;
        self.inner.read(self.node(node), offset, buf)
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.check(node.handle())?;
        self.check_full()?;
        self.inner.write(self.node(node), offset, bytes)
    }

    fn append(&self, node: Node<'_>, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.check(node.handle())?;
        self.check_full()?;
        self.inner.append(self.node(node), end, bytes)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.check_full()?;
        self.inner.link(self.node(node), self.node(dir), name).map(|attr| self.attr(attr))
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.inner.readlink(self.node(node))
    }

    fn open(&self, _: Node<'_>, _: u32) -> Result<Opened, Errno> {
        // ORDERING: Relaxed. A count; no data is published through it.
        self.open.fetch_add(1, Ordering::Relaxed);
        Ok(Opened::new(self.handle))
    }

    fn release(&self, _: Node<'_>) {
        // ORDERING: Relaxed. A count; no data is published through it.
        self.open.fetch_sub(1, Ordering::Relaxed);
    }

    fn has_open_state(&self) -> bool {
        self.handle != 0
    }

    fn fsync_waits(&self) -> bool {
        true
    }

    fn fsync(&self, _: Node<'_>, _: bool) -> Result<(), Errno> {
        self.call("fsync", b"");
        Ok(())
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.inner.statfs()
    }

    fn fallocate(
        &self,
        node: Node<'_>,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.inner.fallocate(self.node(node), offset, len, how)
    }

    fn seek(&self, node: Node<'_>, offset: u64, what: Seek) -> Result<u64, Errno> {
        self.inner.seek(self.node(node), offset, what)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.call("getxattr", name);
        self.inner.getxattr(self.node(node), name)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.check_full()?;
        self.inner.setxattr(self.node(node), name, value, mode)
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.inner.listxattr(self.node(node))
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        self.check_full()?;
        self.inner.removexattr(self.node(node), name)
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        self.inner.get_acl(self.node(node), kind)
    }

    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.inner.set_acl(self.node(node), kind, acl, mode)
    }

    fn forget(&self, ino: u64, generation: u64) {
        self.inner.forget(self.number(ino), generation);
    }
}
