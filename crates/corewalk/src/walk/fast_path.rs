//! The plain part of a walk: cached names of files and of directories that may be searched.
//!
//! Nearly all components of nearly all paths are of this kind, and need no decision. What is not (a
//! name that is not cached, a link, a mount point, `..`, permissions that have to be asked for) is
//! left to [`Walk::step`], which starts where this ends. Nothing is validated here but noted: the
//! trail is checked where the walk ends, or where it does something else.
//!
//! # How it works
//! What a step needs stays in registers only if there is nothing in the loop but what nearly always
//! happens: one look, at the first entry with the right tag, for a name that lies in its dentry. So
//! [`Cursor::fast_steps`] does that alone, and where it does not find what it wants [`Cursor::slow_step`], which is not
//! inlined, looks again, from the beginning. The last component is a copy of the loop's body: it may be
//! any file, and the line with the number of its inode is fetched before the dentry has arrived.
//!
//! A step is about 120 instructions on x86-64, and one more look at its sequence at the end of the walk
//! about 10. They depend on each other from the number of the directory over one product, the tags of a
//! bucket and the slot of an entry to the number of the next directory.

use super::{Mode, Walk};
use crate::cred::Caps;
use crate::dcache::Dcache;
use crate::dentry::{Body, Flags, Line, ParentKey, Snapshot, directory_id};
use crate::name::Slashes;
use crate::read_set::{InlineSteps, ReadSet};
use crate::table::Extent;

impl Walk<'_, '_> {
    /// Goes along `path` as far as it is plain and returns the rest.
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
            // Whatever it was that stopped it, a closer look tells.
            if is_over || !at.slow_step(dcache, self.read_set) {
                break;
            }
        }
        (self.dentry, self.seen) = (at.dentry, at.seen);
        &path[at.done..]
    }
}

/// A quick glide.
struct FastCursor<'a> {
    dcache: &'a Dcache,
    extent: Extent,
    /// What the directories are told apart by, besides their numbers.
    id: u64,
    dentry: u32,
    line: Line<'a>,
    body: Body,
    steps: InlineSteps<'a>,
}

impl FastCursor<'_> {
    /// Goes to the component that begins at `start` of a path and ends with it, if one look is enough for
    /// that, it has the flags in `needed`, and there is room. What is no name (nothing, a dot, too much)
    /// is not found. `before` is called with the slot that it may be in.
    #[inline(always)]
    fn to(&mut self, (path, start): (&[u8], usize), needed: Flags, before: impl Fn(u32)) -> bool {
        if start >= path.len() {
            return false;
        }
        let words = self.line.directory_words();
        let key = ParentKey::new(self.dentry, words.child_generation);
        let place = (self.id.wrapping_add(words.ino), key);
        let found = self.dcache.find_at_once(self.extent, place, (path, start), needed, before);
        let Some(child) = found else { return false };
        if !self.steps.put(child.slot, child.seen.seq) {
            return false;
        }
        (self.dentry, self.line, self.body) = (child.slot, child.line, child.seen.body);
        true
    }
}

/// How far a glide has come.
struct Cursor<'p> {
    dentry: u32,
    seen: Snapshot,
    path: &'p [u8],
    /// Bytes of the path that are behind it; what follows is nothing, or a slash (at the start, perhaps
    /// none).
    done: usize,
}

impl Cursor<'_> {
    /// Goes on as long as all is as it nearly always is: short names, each the first entry with its tag
    /// in the first line of its bucket, and room in the trail.
    #[inline(always)]
    fn fast_steps(&mut self, dcache: &Dcache, read_set: &mut ReadSet, needed: Flags) {
        let path = self.path;
        let mut fast = FastCursor {
            dcache,
            extent: dcache.extent(),
            // A child is of the file system of its parent.
            id: directory_id(self.seen.body.superblock(), 0),
            dentry: self.dentry,
            line: dcache.dentries.line(self.dentry),
            body: self.seen.body,
            steps: read_set.inline_steps(),
        };
        let first = fast.steps.at();
        // Where a component may begin: behind the slash that ended the one before.
        let mut start = self.done;
        let mut slashes = Slashes::from(path, self.done);
        if path.get(start) == Some(&b'/') {
            slashes.next();
            start += 1;
        }
        loop {
            let end = slashes.next();
            let Some(upto) = path.get(..end) else { break };
            if end == path.len() {
                // The number of the inode will be asked for.
                if fast.to((upto, start), Flags::empty(), |slot| dcache.inodes.prefetch(slot)) {
                    start = end + 1;
                }
                break;
            }
            if !fast.to((upto, start), needed, |_| {}) {
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

    /// Goes one component on if its name is cached and plain, however long it takes to see that. False
    /// if it is not.
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
        let Some((slot, seen)) = dcache.find_plain((id, key), (&self.path[..end], start)) else {
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

    /// Names of all lengths that are compared in different ways, of directories and of files, among others
    /// that differ in one byte, are found on a path that is longer than what a trail has room for.
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
