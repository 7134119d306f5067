//! Serves a tmpfs, which is a synchronous [`FileSystem`], through futures, and delays each call.
//! With a delay of 20 ms:
//! `mkdir /tmp/later; cargo run -p corewalk-fuse --example async_memory -- /tmp/later 20`.

use std::{ops::ControlFlow, path::Path, sync::Arc, time::Duration};

use bytes::Bytes;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, Errno, Fallocate, FileSystem, Make, Name, Node, Removal};
use corewalk::{RenameMode, SetAttr, StatFs};
use corewalk_fuse::{AllowedUsers, AsyncFileSystem, AsyncNode, MountOptions, Options};
use corewalk_fuse::{OwnedDirEntry, serve_async};

/// A tmpfs whose calls take longer. Before each call, `delay` returns the time to wait. Its
/// arguments are the name of the call and the name of the file, which is empty for some calls.
pub(crate) struct Later<D> {
    fs: Tmpfs,
    delay: D,
}

impl<D: Fn(&'static str, &[u8]) -> Duration + Send + Sync + 'static> Later<D> {
    pub(crate) fn new(delay: D) -> Arc<Later<D>> {
        let options = TmpfsOptions::default().with_root_mode(0o1777);
        Arc::new(Later { fs: Tmpfs::new(options), delay })
    }

    async fn wait(&self, call: &'static str, name: &[u8]) -> &Tmpfs {
        let delay = (self.delay)(call, name);
        if !delay.is_zero() {
            tokio::time::sleep(delay).await;
        }
        &self.fs
    }
}

fn node(node: &AsyncNode) -> Node<'static> {
    Node::detached(node.ino(), node.kind())
}

impl<D: Fn(&'static str, &[u8]) -> Duration + Send + Sync + 'static> AsyncFileSystem for Later<D> {
    async fn root(&self) -> Result<Attr, Errno> {
        self.fs.root()
    }

    async fn lookup(&self, dir: &AsyncNode, name: Name<'_>) -> Result<Attr, Errno> {
        self.wait("lookup", name.as_bytes()).await.lookup(node(dir), name)
    }

    async fn getattr(&self, file: &AsyncNode) -> Result<Attr, Errno> {
        self.wait("getattr", b"").await.getattr(node(file))
    }

    async fn setattr(&self, file: &AsyncNode, set: &SetAttr) -> Result<Attr, Errno> {
        self.wait("setattr", b"").await.setattr(node(file), set)
    }

    async fn readdir(&self, dir: &AsyncNode, cookie: u64) -> Result<Vec<OwnedDirEntry>, Errno> {
        let (fs, mut page) = (self.wait("readdir", b"").await, Vec::new());
        fs.readdir(node(dir), cookie, &mut |entry| {
            let (name, kind) = (entry.name.as_bytes(), entry.kind);
            // Return the attributes with each name, so that the kernel need not look the names up.
            page.push(match fs.getattr(Node::detached(entry.ino, kind)) {
                Ok(attr) => OwnedDirEntry::from_attr(name, attr, entry.cookie),
                Err(_) => OwnedDirEntry::new(name, entry.ino, kind, entry.cookie),
            });
            if page.len() < 1000 { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
        })?;
        Ok(page)
    }

    async fn read(&self, file: &AsyncNode, offset: u64, size: u32) -> Result<Bytes, Errno> {
        let mut data = vec![0; size as usize];
        let len = self.wait("read", b"").await.read(node(file), offset, &mut data)?;
        data.truncate(len);
        Ok(data.into())
    }

    async fn write(&self, file: &AsyncNode, offset: u64, data: Bytes) -> Result<usize, Errno> {
        self.wait("write", b"").await.write(node(file), offset, &data)
    }

    async fn make(&self, dir: &AsyncNode, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.wait("make", name.as_bytes()).await.make(node(dir), name, what)
    }

    async fn link(&self, file: &AsyncNode, dir: &AsyncNode, name: Name<'_>) -> Result<Attr, Errno> {
        self.wait("link", name.as_bytes()).await.link(node(file), node(dir), name)
    }

    async fn remove(&self, dir: &AsyncNode, name: Name<'_>, how: Removal) -> Result<(), Errno> {
        let fs = self.wait("remove", name.as_bytes()).await;
        let attr = fs.lookup(node(dir), name)?;
        match how {
            Removal::Rmdir if !attr.is_dir() => Err(Errno::NOTDIR),
            Removal::Unlink if attr.is_dir() => Err(Errno::ISDIR),
            _ => fs.remove(node(dir), name, Node::detached(attr.ino, attr.kind())),
        }
    }

    async fn rename(
        &self,
        from: (&AsyncNode, Name<'_>),
        to: (&AsyncNode, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let fs = self.wait("rename", from.1.as_bytes()).await;
        fs.rename((node(from.0), from.1), (node(to.0), to.1), mode)
    }

    async fn readlink(&self, file: &AsyncNode) -> Result<Bytes, Errno> {
        self.wait("readlink", b"").await.readlink(node(file)).map(Bytes::from)
    }

    async fn statfs(&self) -> Result<StatFs, Errno> {
        self.wait("statfs", b"").await.statfs()
    }

    async fn fallocate(
        &self,
        file: &AsyncNode,
        offset: u64,
        len: u64,
        how: Fallocate,
    ) -> Result<(), Errno> {
        self.wait("fallocate", b"").await.fallocate(node(file), offset, len, how)
    }

    fn forget(&self, ino: u64, generation: u64) {
        self.fs.forget(ino, generation);
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let mount = MountOptions::default();
    let (mount, words) = match &words[..] {
        ["--allow-other", words @ ..] => (mount.with_users(AllowedUsers::Everyone), words),
        words => (mount, words),
    };
    let (point, delay) = match words {
        [point] => (Path::new(point), Duration::ZERO),
        [point, delay] => (Path::new(point), Duration::from_millis(delay.parse()?)),
        _ => anyhow::bail!("usage: async_memory [--allow-other] MOUNTPOINT [MILLISECONDS]"),
    };
    println!("serving on {}; end it with umount or Ctrl-C", point.display());
    let runtime = tokio::runtime::Runtime::new()?;
    let handle = runtime.handle().clone();
    let spawn = move |future| drop(handle.spawn(future));
    Ok(serve_async(Later::new(move |_, _| delay), point, Options::exclusive(), &mount, spawn)?)
}
