//! Revalidation: compares a cached name with the back end, for back ends that other programs change
//! too.
//!
//! Source: Linux `d_revalidate` (`Documentation/filesystems/vfs.rst`).

use crate::Errno;
use crate::cred::Cred;
use crate::dentry::LookupKey;
use crate::key_lock::KeyGuard;
use crate::name::Name;

use super::held::{Dir, FoundName};
use super::names::{Answer, Cached};
use super::{InodeRef, LookedUp, Vfs};

impl Vfs {
    /// Compares a cached name with the back end, and invalidates it unless the back end has the
    /// same inode under it. For a back end that other programs also change: a server calls this
    /// before it uses a name. A name that is not cached needs no call of the back end.
    ///
    /// If the back end still has the same inode under the name, only its cached mode and owner are
    /// dropped. The entries below a directory stay cached.
    ///
    /// # Errors
    /// `ENOTDIR`; `ENOENT` if `dir` was removed.
    ///
    /// # Examples
    /// ```
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk::{Cred, Errno, FileKind, FileSystem, Make, Name, Node, Vfs, VfsOptions};
    /// use std::sync::Arc;
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let vfs = Vfs::new(fs.clone(), VfsOptions::default())?;
    /// let (cred, root, name) = (Cred::root(), vfs.root(), Name::new(b"late")?);
    /// assert_eq!(vfs.lookup(&cred, &root, name).err(), Some(Errno::NOENT));
    /// // The file is made in the back end alone. The cache still has the negative dentry.
    /// fs.make(Node::detached(root.ino(), FileKind::Directory), name, &Make::new(0o644, 0, 0))?;
    /// assert_eq!(vfs.lookup(&cred, &root, name).err(), Some(Errno::NOENT));
    /// vfs.revalidate(&root, name)?;
    /// assert!(vfs.lookup(&cred, &root, name).is_ok());
    /// # Ok::<(), Errno>(())
    /// ```
    #[doc(alias = "d_revalidate")]
    pub fn revalidate(&self, dir: &InodeRef<'_>, name: Name<'_>) -> Result<(), Errno> {
        let dir = self.dir(dir.slot)?;
        let lookup_key = self.dcache.lookup_key(name);
        // Cancel running lookups of the name. They may have an answer from before this call, which
        // must not enter the cache after it.
        self.dcache.cancel_fills(dir.now.slot, &lookup_key);
        if self.dcache.find(dir.key(), &lookup_key).is_none() {
            return Ok(());
        }
        // Under the in-lookup lock, no other operation of this namespace changes the name while the
        // back end is asked.
        let in_lookup =
            self.dcache.in_lookup.lock(self.dcache.in_lookup_key(dir.now.slot, &lookup_key));
        let is_so = match self.cached(&dir, &lookup_key) {
            Cached::Unknown => true,
            // The name has a negative dentry. Invalidate it without asking the back end: the next
            // operation on the name asks anyway.
            Cached::Known(None) => false,
            Cached::Known(Some(found)) => self.is_still(&dir, &lookup_key, &found),
        };
        if !is_so {
            self.invalidate_cached(&dir, &lookup_key);
        }
        drop(in_lookup);
        Ok(())
    }

    /// Looks up `name` in `dir` in the back end, even if the cache has it, and corrects the cache.
    /// This function is for a back end that other programs also change. A server calls it instead
    /// of [`Vfs::revalidate`], [`Vfs::lookup`] and [`Vfs::getattr`], and saves calls of the back
    /// end.
    ///
    /// If the back end still has the same directory under the name, the entries below it stay
    /// cached.
    ///
    /// # Errors
    /// The errors of [`Vfs::lookup`].
    pub fn lookup_fresh(
        &self,
        cred: &Cred,
        dir: &InodeRef<'_>,
        name: Name<'_>,
    ) -> Result<LookedUp<'_>, Errno> {
        self.may_search(cred, dir.slot)?;
        self.lookup_slow(dir.slot, &self.dcache.lookup_key(name), Vfs::resolve_again)
    }

    /// Looks up a name in the back end, and caches the answer if it differs from the cache. The
    /// caller holds the in-lookup lock of the name.
    fn resolve_again(
        &self,
        dir: &Dir<'_>,
        lookup_key: &LookupKey<'_>,
        in_lookup: &KeyGuard<'_>,
    ) -> Result<Option<LookedUp<'_>>, Errno> {
        let known = match self.cached(dir, lookup_key) {
            Cached::Known(found) => found,
            Cached::Unknown => None,
        };
        self.dcache.counters.fills.add(1);
        let answer = self.ask_for_name(dir, lookup_key);
        let before = known.as_ref().map(|known| known.inode);
        let answer = self.take_answer(dir, lookup_key, in_lookup, answer, known);
        if !matches!(&answer, Ok(Some((found, _))) if Some(found.inode) == before) {
            // Another program may have changed the name after a running listing read it. Count a
            // change of the directory, so that the listing does not cache its old entry (invariant
            // L.1 of `dcache::listings`).
            drop(self.dcache.listings.change(dir.now.slot));
        }
        Ok(answer?.map(|(found, attr)| LookedUp { inode: found.into_inode(), attr }))
    }

    fn is_still(&self, dir: &Dir<'_>, lookup_key: &LookupKey<'_>, found: &FoundName<'_>) -> bool {
        let Answer { attr, changes, .. } = self.ask_for_name(dir, lookup_key);
        let attr = attr.map(|attr| self.numbered(dir, lookup_key, attr));
        // Enter the reported inode in the cache, even if the cache had another for the name. The
        // back end may keep state for it until the cache sends a `forget`.
        let entered = attr.and_then(|attr| self.enter(dir.now.inode, &attr, changes, None));
        let is_same = entered.is_ok_and(|inode| inode.slot == found.inode);
        if is_same {
            self.prefer(found);
            self.invalidate_attributes(&found.inode_ref());
        }
        is_same
    }

    pub(super) fn invalidate_cached(&self, dir: &Dir<'_>, lookup_key: &LookupKey<'_>) {
        self.dcache.make_name_stale(dir.key(), lookup_key);
    }

    /// Makes the dentry, which the back end has confirmed, the one from which the inode's path is
    /// built.
    pub(super) fn prefer(&self, found: &FoundName<'_>) {
        if let Ok(slot) = found.dentry() {
            self.dcache.inodes.prefer_alias(found.inode, slot, &self.dcache.dentries);
        }
    }
}
