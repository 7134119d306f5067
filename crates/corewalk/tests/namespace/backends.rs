//! Back ends that behave badly on purpose, in front of a tmpfs.

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    AclKind, Attr, DirSink, Errno, FileSystem, Make, Name, Node, RenameMode, SetAttr, StatFs,
    XattrMode, acl::Acl,
};

/// Which call a [`Meddled`] back end is about to pass on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    /// Before `root`.
    Root,
    /// Before `lookup`.
    Lookup(&'a [u8]),
    /// After `lookup`, with the answer in hand.
    LookupDone(&'a [u8]),
    /// Before `make`.
    Make(&'a [u8]),
    /// Before `remove`.
    Remove(&'a [u8]),
    /// After `remove`.
    RemoveDone(&'a [u8]),
    /// Before `rename`; the old name.
    Rename(&'a [u8]),
    /// After `rename`.
    RenameDone(&'a [u8]),
    /// Before `getattr`.
    Getattr(u64),
    /// Before `setattr`.
    Setattr(u64),
    /// Before `write`.
    Write(u64),
    /// Before `get_acl`.
    GetAcl(u64),
    /// Before `set_acl`.
    SetAcl(u64),
    /// Before `forget`.
    Forget(u64),
}

/// A tmpfs that runs a closure around its calls: to wait, to panic, to change things underneath.
/// An error that the closure returns is the answer of the call.
pub(crate) struct Meddled<F> {
    /// The file system itself.
    pub(crate) inner: Tmpfs,
    meddle: F,
}

impl<F: Fn(&Tmpfs, Call<'_>) -> Result<(), Errno> + Send + Sync + 'static> Meddled<F> {
    pub(crate) fn new(meddle: F) -> Meddled<F> {
        Meddled { inner: Tmpfs::new(TmpfsOptions::default()), meddle }
    }

    fn at(&self, call: Call<'_>) -> Result<(), Errno> {
        (self.meddle)(&self.inner, call)
    }
}

impl<F: Fn(&Tmpfs, Call<'_>) -> Result<(), Errno> + Send + Sync + 'static> FileSystem
    for Meddled<F>
{
    fn root(&self) -> Result<Attr, Errno> {
        self.at(Call::Root)?;
        self.inner.root()
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.at(Call::Lookup(name.as_bytes()))?;
        let answer = self.inner.lookup(dir, name);
        self.at(Call::LookupDone(name.as_bytes()))?;
        answer
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.at(Call::Getattr(node.ino()))?;
        self.inner.getattr(node)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.at(Call::Setattr(node.ino()))?;
        self.inner.setattr(node, set)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.at(Call::Make(name.as_bytes()))?;
        self.inner.make(dir, name, what)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.at(Call::Remove(name.as_bytes()))?;
        let answer = self.inner.remove(dir, name, node);
        self.at(Call::RemoveDone(name.as_bytes()))?;
        answer
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.at(Call::Rename(from.1.as_bytes()))?;
        let answer = self.inner.rename(from, to, mode);
        self.at(Call::RenameDone(from.1.as_bytes()))?;
        answer
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.inner.readdir(dir, cookie, sink)
    }

    fn read(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        buf: &mut [u8],
    ) -> Result<usize, Errno> {
        self.inner.read(node, handle, offset, buf)
    }

    fn write(
        &self,
        node: Node<'_>,
        handle: u64,
        offset: u64,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        self.at(Call::Write(node.ino()))?;
        self.inner.write(node, handle, offset, bytes)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.inner.link(node, dir, name)
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inner.tmpfile(dir, what)
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.inner.readlink(node)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.inner.statfs()
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.inner.getxattr(node, name)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.inner.setxattr(node, name, value, mode)
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        self.at(Call::GetAcl(node.ino()))?;
        self.inner.get_acl(node, kind)
    }

    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.at(Call::SetAcl(node.ino()))?;
        self.inner.set_acl(node, kind, acl, mode)
    }

    fn forget(&self, ino: u64) {
        let _ = self.at(Call::Forget(ino));
        self.inner.forget(ino);
    }
}
