//! A tmpfs with a hook around its calls.
//!
//! [`HookedTmpfs`] passes every call to a tmpfs. Before and after some calls it runs a [`Hook`],
//! often a closure. The hook may wait, panic, return an error, change the tmpfs, or replace inode
//! numbers. The shuttle models use this file too.

use std::ops::ControlFlow;

use corewalk::acl::Acl;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    AclKind, Attr, DirEntry, DirSink, Errno, Fallocate, FileSystem, Make, Name, Node, RenameMode,
    Seek, SetAttr, StatFs, XattrMode,
};

/// A point at which a [`HookedTmpfs`] runs its hook: before a call of the tmpfs, or after the call
/// (`..Done`). The inode numbers are those that the namespace sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Call<'a> {
    Root,
    Lookup(&'a [u8]),
    /// After `lookup`, before its answer is returned.
    LookupDone(&'a [u8]),
    Make(&'a [u8]),
    MakeDone(&'a [u8]),
    Remove(&'a [u8]),
    RemoveDone(&'a [u8]),
    /// Before `rename`, with the old name.
    Rename(&'a [u8]),
    RenameDone(&'a [u8]),
    Getattr(u64),
    Setattr(u64),
    /// Before `write` or `append`.
    Write(u64),
    GetAcl(u64),
    SetAcl(u64),
    Forget(u64),
    ForgetDone(u64),
}

pub(crate) trait Hook: Send + Sync + 'static {
    /// Runs the hook at the point `call`. If the hook returns an error, the call fails with this
    /// error.
    fn at(&self, fs: &Tmpfs, call: Call<'_>) -> Result<(), Errno>;

    fn inside(&self, ino: u64) -> u64 {
        ino
    }

    /// Translates the attributes `attr` of the tmpfs to those that the namespace gets.
    fn outside(&self, attr: Attr) -> Attr {
        attr
    }
}

impl<F: Fn(&Tmpfs, Call<'_>) -> Result<(), Errno> + Send + Sync + 'static> Hook for F {
    fn at(&self, fs: &Tmpfs, call: Call<'_>) -> Result<(), Errno> {
        self(fs, call)
    }
}

pub(crate) struct HookedTmpfs<M> {
    pub(crate) inner: Tmpfs,
    hook: M,
}

impl<F: Fn(&Tmpfs, Call<'_>) -> Result<(), Errno> + Send + Sync + 'static> HookedTmpfs<F> {
    pub(crate) fn new(hook: F) -> HookedTmpfs<F> {
        HookedTmpfs::over(Tmpfs::new(TmpfsOptions::default()), hook)
    }
}

impl<M: Hook> HookedTmpfs<M> {
    pub(crate) fn over(inner: Tmpfs, hook: M) -> HookedTmpfs<M> {
        HookedTmpfs { inner, hook }
    }

    fn at(&self, call: Call<'_>) -> Result<(), Errno> {
        self.hook.at(&self.inner, call)
    }

    fn inside(&self, node: Node<'_>) -> Node<'static> {
        Node::detached(self.hook.inside(node.ino()), node.kind())
    }

    fn outside(&self, answer: Result<Attr, Errno>) -> Result<Attr, Errno> {
        answer.map(|attr| self.hook.outside(attr))
    }
}

impl<M: Hook> FileSystem for HookedTmpfs<M> {
    fn root(&self) -> Result<Attr, Errno> {
        self.at(Call::Root)?;
        self.outside(self.inner.root())
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.at(Call::Lookup(name.as_bytes()))?;
        let answer = self.outside(self.inner.lookup(self.inside(dir), name));
        self.at(Call::LookupDone(name.as_bytes()))?;
        answer
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.at(Call::Getattr(node.ino()))?;
        self.outside(self.inner.getattr(self.inside(node)))
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.at(Call::Setattr(node.ino()))?;
        self.outside(self.inner.setattr(self.inside(node), set))
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.at(Call::Make(name.as_bytes()))?;
        let answer = self.outside(self.inner.make(self.inside(dir), name, what));
        self.at(Call::MakeDone(name.as_bytes()))?;
        answer
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.at(Call::Remove(name.as_bytes()))?;
        let answer = self.inner.remove(self.inside(dir), name, self.inside(node));
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
        let (old, new) = ((self.inside(from.0), from.1), (self.inside(to.0), to.1));
        let answer = self.inner.rename(old, new, mode);
        self.at(Call::RenameDone(from.1.as_bytes()))?;
        answer
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.inner.readdir(self.inside(dir), cookie, &mut |entry| {
            let attr = self.inner.getattr(Node::detached(entry.ino, entry.kind));
            // An entry that was just removed has no attributes to show.
            match self.outside(attr) {
                Ok(attr) => sink(DirEntry::from_attr(entry.name, attr, entry.cookie)),
                Err(_) => ControlFlow::Continue(()),
            }
        })
    }

    fn read(&self, node: Node<'_>, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.inner.read(self.inside(node).with_handle(node.handle()), at, buf)
    }

    fn write(&self, node: Node<'_>, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.at(Call::Write(node.ino()))?;
        self.inner.write(self.inside(node).with_handle(node.handle()), at, bytes)
    }

    fn append(&self, node: Node<'_>, end: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.at(Call::Write(node.ino()))?;
        self.inner.append(self.inside(node).with_handle(node.handle()), end, bytes)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.outside(self.inner.link(self.inside(node), self.inside(dir), name))
    }

    fn readlink(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.inner.readlink(self.inside(node))
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.outside(self.inner.tmpfile(self.inside(dir), what))
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.inner.statfs()
    }

    fn fallocate(&self, node: Node<'_>, at: u64, len: u64, how: Fallocate) -> Result<(), Errno> {
        self.inner.fallocate(self.inside(node).with_handle(node.handle()), at, len, how)
    }

    fn seek(&self, node: Node<'_>, at: u64, what: Seek) -> Result<u64, Errno> {
        self.inner.seek(self.inside(node).with_handle(node.handle()), at, what)
    }

    fn getxattr(&self, node: Node<'_>, name: &[u8]) -> Result<Vec<u8>, Errno> {
        self.inner.getxattr(self.inside(node), name)
    }

    fn setxattr(
        &self,
        node: Node<'_>,
        name: &[u8],
        value: &[u8],
        mode: XattrMode,
    ) -> Result<(), Errno> {
        self.inner.setxattr(self.inside(node), name, value, mode)
    }

    fn listxattr(&self, node: Node<'_>) -> Result<Vec<u8>, Errno> {
        self.inner.listxattr(self.inside(node))
    }

    fn removexattr(&self, node: Node<'_>, name: &[u8]) -> Result<(), Errno> {
        self.inner.removexattr(self.inside(node), name)
    }

    fn get_acl(&self, node: Node<'_>, kind: AclKind) -> Result<Option<Acl>, Errno> {
        self.at(Call::GetAcl(node.ino()))?;
        self.inner.get_acl(self.inside(node), kind)
    }

    fn set_acl(
        &self,
        node: Node<'_>,
        kind: AclKind,
        acl: Option<&Acl>,
        mode: Option<u32>,
    ) -> Result<(), Errno> {
        self.at(Call::SetAcl(node.ino()))?;
        self.inner.set_acl(self.inside(node), kind, acl, mode)
    }

    fn forget(&self, ino: u64, _: u64) {
        let _ = self.at(Call::Forget(ino));
        self.inner.forget(self.hook.inside(ino), 0);
        let _ = self.at(Call::ForgetDone(ino));
    }
}
