//! The test bench of one check: a fresh back end below a cache, with short methods for the calls
//! that checks often make.

mod files;
mod listing;
mod snapshot;

use std::sync::Arc;

use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFREG};
use corewalk::{
    Addressing, Attr, Cred, Errno, FileKind, FileSystem, InodeRef, Make, Name, Removal, RenameMode,
    Vfs, VfsOptions,
};

use crate::answer::{Answer, Checked};
use crate::plan::Settings;

pub(crate) use files::OpenFile;
pub(crate) use listing::Entry;

pub(crate) struct Bench {
    pub(crate) vfs: Arc<Vfs>,
    pub(crate) fs: Arc<dyn FileSystem>,
    pub(crate) cred: Cred,
    pub(crate) settings: Settings,
    pub(crate) owner: (u32, u32),
}

pub(crate) type Place<'a> = (&'a InodeRef<'a>, &'a str);

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("the names of the checks are valid")
}

impl Bench {
    pub(crate) fn new(
        fs: Arc<dyn FileSystem>,
        settings: Settings,
        owner: (u32, u32),
    ) -> Checked<Bench> {
        let vfs = Vfs::new(fs.clone(), VfsOptions::default().with_hash_seed(settings.seed));
        let vfs = vfs.must("the root")?;
        let cred = Cred::prechecked(owner.0, owner.1);
        Ok(Bench { vfs, fs, cred, settings, owner })
    }

    pub(crate) fn is_by_number(&self) -> bool {
        self.fs.addressing() == Addressing::Number
    }

    /// Evicts all unused entries, so that the next calls reach the back end.
    pub(crate) fn cool(&self) {
        self.vfs.prune();
    }

    pub(crate) fn root(&self) -> InodeRef<'_> {
        self.vfs.root()
    }

    pub(crate) fn new_file(&self, mode: u32) -> Make<'static> {
        Make::new(mode, self.owner.0, self.owner.1)
    }

    pub(crate) fn make(
        &self,
        dir: &InodeRef<'_>,
        text: &str,
        what: Make<'_>,
    ) -> Result<InodeRef<'_>, Errno> {
        self.vfs.make(&self.cred, dir, name(text), what).map(|(inode, _)| inode)
    }

    pub(crate) fn dir(&self, parent: &InodeRef<'_>, text: &str) -> Checked<InodeRef<'_>> {
        self.make(parent, text, self.new_file(S_IFDIR | 0o755)).needs("make of a directory")
    }

    pub(crate) fn file(
        &self,
        dir: &InodeRef<'_>,
        text: &str,
        content: &[u8],
    ) -> Checked<InodeRef<'_>> {
        let file = self.make(dir, text, self.new_file(S_IFREG | 0o644)).needs("make of a file")?;
        if !content.is_empty() {
            let open = self.open(&file)?;
            open.write(0, content)?;
        }
        Ok(file)
    }

    pub(crate) fn symlink(
        &self,
        dir: &InodeRef<'_>,
        text: &str,
        target: &[u8],
    ) -> Result<InodeRef<'_>, Errno> {
        self.make(dir, text, self.new_file(S_IFLNK | 0o777).with_target(target))
    }

    pub(crate) fn lookup(&self, dir: &InodeRef<'_>, text: &str) -> Result<InodeRef<'_>, Errno> {
        self.vfs.lookup(&self.cred, dir, name(text))
    }

    pub(crate) fn find(&self, dir: &InodeRef<'_>, text: &str) -> Checked<InodeRef<'_>> {
        self.lookup(dir, text).must(&format!("lookup of {text:?}"))
    }

    pub(crate) fn is_absent(&self, dir: &InodeRef<'_>, text: &str) -> Checked {
        self.lookup(dir, text).must_fail(&format!("lookup of {text:?}"), &[Errno::NOENT])
    }

    pub(crate) fn unlink(&self, dir: &InodeRef<'_>, text: &str) -> Result<(), Errno> {
        self.vfs.remove(&self.cred, dir, name(text), Removal::Unlink)
    }

    pub(crate) fn rmdir(&self, dir: &InodeRef<'_>, text: &str) -> Result<(), Errno> {
        self.vfs.remove(&self.cred, dir, name(text), Removal::Rmdir)
    }

    pub(crate) fn rename(
        &self,
        from: Place<'_>,
        to: Place<'_>,
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.vfs.rename(&self.cred, (from.0, name(from.1)), (to.0, name(to.1)), mode)
    }

    pub(crate) fn attr(&self, inode: &InodeRef<'_>) -> Checked<Attr> {
        self.vfs.getattr(inode).must("getattr")
    }

    /// Checks that `text` in `dir` is a regular file with the content `wanted`. Evicts the cache
    /// first, so that the back end answers.
    pub(crate) fn has_content(&self, dir: &InodeRef<'_>, text: &str, wanted: &[u8]) -> Checked {
        self.cool();
        let file = self.find(dir, text)?;
        if file.kind() != FileKind::Regular {
            return crate::answer::Stop::failed(format!("{text:?} is a {:?}", file.kind()));
        }
        let found = self.open(&file)?.read_all()?;
        crate::answer::ensure_bytes(&format!("content of {text:?}"), &found, wanted)
    }
}
