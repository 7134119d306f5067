//! The fast path of a walk. It handles components that are cached names of files and of searchable
//! directories.
//!
//! Where the fast path ends, [`Walk::step`] continues. It handles names that are not cached,
//! symbolic links, mount points, `..`, and unknown permissions. The fast path only fills the read
//! set, and the walk validates it later.
//!
//! # How it works
//! The fast path ([`Cursor::fast_steps`]) is a loop over the components of the path. It handles
//! only the usual case, so that its state stays in registers. The name must be inline in its
//! dentry, and the dentry's entry the first in its bucket with its tag (16 bits of the hash).
//!
//! [`Cursor::slow_step`], which is not inlined, walks any other component again from its beginning.
//!
//! The last component of a path has its own copy of the loop's body, since it may be any kind of
//! file. This copy prefetches the cache line with the inode number.
//!
//! The lookup of one component takes about 120 instructions on x86-64, and its validation about 10.
//! Each lookup depends on the one before.
//!
//! Within a lookup, each load depends on the one before. The hash of the name contains the
//! directory's number, and selects a bucket. The bucket's entry contains a slot number. The dentry
//! in that slot contains the number of the next directory.

use super::{Mode, Walk};
use crate::cred::Caps;
use crate::dcache::{Dcache, LookupParent};
use crate::dentry::{Body, Component, Flags, Line, ParentKey, Snapshot, directory_id};
use crate::name::Slashes;
use crate::read_set::{InlineSteps, ReadSet};
use crate::slot::DentrySlot;
use crate::table::Extent;

impl Walk<'_, '_> {
    /// Walks along `path` as long as the components are cached and plain (neither symbolic links
    /// nor mount points). Returns the rest of the path.
    #[inline(never)]
    pub(super) fn fast_path<'p>(&mut self, path: &'p [u8]) -> &'p [u8] {
        if self.mode != Mode::Rcu || self.hold.is_some() {
            return path;
        }
        let dcache = &self.vfs.dcache;
        let needed = match self.cred.has(Caps::DAC_READ_SEARCH) {
            true => Flags::DIRECTORY,
            false => Flags::DIRECTORY | Flags::SEARCHABLE,
        };
        let mut at = Cursor { dentry: self.dentry, seen: self.seen, path, done: 0 };
        while at.done < path.len() && at.seen.body.flags().contains(needed) {
            if self.read_set.has_inline_room() {
                at.fast_steps(dcache, self.read_set, needed);
            }
            let is_over = at.done == path.len() || !at.seen.body.flags().contains(needed);
            // The slow path finds out why the fast path stopped.
            if is_over || !at.slow_step(dcache, self.read_set) {
                break;
            }
        }
        (self.dentry, self.seen) = (at.dentry, at.seen);
        &path[at.done..]
    }
}

struct FastCursor<'a> {
    dcache: &'a Dcache,
    extent: Extent,
    /// The part of the directories' numbers that depends on the file system. Adding a directory's
    /// inode number to it gives the number in the hashes of the directory's names.
    id: u64,
    dentry: DentrySlot,
    line: Line<'a>,
    body: Body,
    steps: InlineSteps<'a>,
}

impl FastCursor<'_> {
    /// Moves the cursor to the child called `component`. Calls `before` with the slot of the child
    /// before it loads the child's dentry.
    ///
    /// Returns false if the child lacks a flag in `needed`, if the name is invalid, or if the read
    /// set is full. Also returns false if an entry of another name is the first match in the hash
    /// table.
    #[inline(always)]
    fn to(&mut self, component: Component<'_>, needed: Flags, before: impl Fn(DentrySlot)) -> bool {
        if component.start >= component.path.len() {
            return false;
        }
        let words = self.line.directory_words();
        let key = ParentKey::new(self.dentry, words.child_generation);
        let parent = LookupParent { id: self.id.wrapping_add(words.ino), key };
        let found = self.dcache.find_at_once(self.extent, parent, component, needed, before);
        let Some(child) = found else { return false };
        if !self.steps.put(child.slot, child.seen.seq) {
            return false;
        }
        (self.dentry, self.line, self.body) = (child.slot, child.line, child.seen.body);
        true
    }
}

struct Cursor<'p> {
    dentry: DentrySlot,
    seen: Snapshot,
    path: &'p [u8],
    /// The number of bytes of the path that are already walked. The next byte is a slash, or the
    /// first byte of a name at the start of the path.
    done: usize,
}

impl Cursor<'_> {
    /// Walks along the path as long as each step is simple. Stops at a long name, and when the read
    /// set has no free element in its inline array. Also stops if an entry of another name is the
    /// first match in the hash table.
    #[inline(always)]
    fn fast_steps(&mut self, dcache: &Dcache, read_set: &mut ReadSet, needed: Flags) {
        let path = self.path;
        let mut fast = FastCursor {
            dcache,
            extent: dcache.extent(),
            // A child is in the file system of its parent.
            id: directory_id(self.seen.body.superblock(), 0),
            dentry: self.dentry,
            line: dcache.dentries.line(self.dentry),
            body: self.seen.body,
            steps: read_set.inline_steps(),
        };
        let first = fast.steps.at();
        // The position in the path at which the next component begins, after the slash.
        let mut start = self.done;
        let mut slashes = Slashes::from(path, self.done);
        if path.get(start) == Some(&b'/') {
            slashes.next();
            start += 1;
        }
        loop {
            let end = slashes.next();
            let Some(upto) = path.get(..end) else { break };
            let component = Component { path: upto, start };
            if end == path.len() {
                if fast
                    .to(component, Flags::empty(), |slot| dcache.inodes.prefetch(slot.inode_half()))
                {
                    start = end + 1;
                }
                break;
            }
            if !fast.to(component, needed, |_| {}) {
                break;
            }
            start = end + 1;
        }
        let FastCursor { dentry, line, body, steps, .. } = fast;
        if steps.at() > first {
            self.dentry = dentry;
            self.seen = Snapshot { seq: steps.last_seq(), key: line.key(), body };
            self.done = start - 1;
        }
    }

    /// Walks one component if its name is cached, and is neither a symbolic link nor a mount point.
    /// The name's entry may be in any cache line of its bucket. Returns false otherwise.
    #[inline(never)]
    fn slow_step(&mut self, dcache: &Dcache, read_set: &mut ReadSet) -> bool {
        let rest = &self.path[self.done..];
        let start = self.done + usize::from(rest.first() == Some(&b'/'));
        let len = self.path[start..].iter().position(|&byte| byte == b'/');
        let end = len.map_or(self.path.len(), |len| start + len);
        if start == end {
            return false;
        }
        let words = dcache.dentries.directory_words(self.dentry);
        let key = ParentKey::new(self.dentry, words.child_generation);
        let id = directory_id(self.seen.body.superblock(), words.ino);
        let component = Component { path: &self.path[..end], start };
        let found = dcache.find_plain(LookupParent { id, key }, component);
        let Some((slot, seen)) = found else {
            return false;
        };
        (self.dentry, self.seen, self.done) = (slot, seen, end);
        read_set.push(slot, seen.seq);
        true
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::sync::Arc;

    use crate::tmpfs::{Tmpfs, TmpfsOptions};
    use crate::{Cred, Errno, FsStruct, Make, Name, Vfs, VfsOptions, WalkFlags};

    /// The fast path must find directories and files with names of all lengths up to 48 bytes. Per
    /// length, a directory and a file have names that differ in one byte. The directories are
    /// nested, so the longest path exceeds the inline part of a read set.
    #[test]
    fn path_of_names_of_all_lengths_leads_to_its_end() {
        let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default());
        let vfs = vfs.unwrap();
        let (cred, root) = (Cred::root(), vfs.root_path());
        let at = FsStruct { cwd: root.clone(), root };
        let (mut dir, mut path) = (vfs.root(), Vec::new());
        let resolve = |path: &[u8]| {
            vfs.resolve_path(&cred, &at, path, WalkFlags::empty()).map(|found| found.ino)
        };
        for len in (1..=48_u8).rev() {
            let name: Vec<u8> = (0..len).map(|i| b'A' + i).collect();
            let mut other = name.clone();
            other[usize::from(len) / 2] = b'~';
            let make = |name: &[u8], mode| {
                let make = Make::new(mode, 0, 0);
                vfs.make(&cred, &dir, Name::new(name).unwrap(), make).unwrap().0
            };
            let file = make(&other, 0o100_644);
            path.push(b'/');
            assert_eq!(resolve(&[&path[..], &other[..]].concat()), Ok(file.ino()), "file of {len}");
            let missing = [&path[..], &name[..]].concat();
            assert_eq!(resolve(&missing), Err(Errno::NOENT), "none of {len}");
            assert_eq!(resolve(&missing), Err(Errno::NOENT), "none of {len}, which is cached");
            let through = [&path[..], &other[..], b"/x"].concat();
            assert_eq!(resolve(&through), Err(Errno::NOTDIR), "below a file of {len}");
            dir = make(&name, 0o040_755);
            path.extend_from_slice(&name);
            let twice = [&path[..], b"//."].concat();
            assert_eq!(resolve(&path), Ok(dir.ino()), "directory of {len}");
            assert_eq!(resolve(&twice), Ok(dir.ino()), "directory of {len}, by way of itself");
        }
        assert_eq!(vfs.stats().fallbacks, 0, "the cache stands still");
    }
}
