//! The plain part of a walk: cached names of files and of directories that may be searched.
//!
//! Nearly all components of nearly all paths are of this kind, and need no decision. What is not (a
//! name that is not cached, a link, a mount point, `..`, permissions that have to be asked for) is
//! left to [`Walk::step`], which starts where this ends. Nothing is validated here but noted: the
//! trail is checked where the walk ends, or where it does something else.

use super::{Mode, Walk};
use crate::cred::Caps;
use crate::dentry::{Flags, Key};
use crate::name::{NAME_MAX, Slashes};

impl Walk<'_, '_> {
    /// Goes along `path` as far as it is plain and returns the rest.
    #[inline(never)]
    pub(super) fn glide<'p>(&mut self, path: &'p [u8]) -> &'p [u8] {
        if self.mode != Mode::Rcu || self.hold.is_some() || self.vfs.security().is_some() {
            return path;
        }
        let dcache = &self.vfs.dcache;
        let needed = match self.cred.has(Caps::DAC_READ_SEARCH) {
            true => Flags::DIRECTORY,
            false => Flags::DIRECTORY | Flags::SEARCHABLE,
        };
        let (mut dentry, mut seen) = (self.dentry, self.seen);
        let mut line = dcache.dentries.line(dentry);
        let mut slashes = Slashes::of(path);
        let mut at = 0;
        // Where a component may begin: behind the slash that ended the one before.
        let mut start = 0;
        if path.first() == Some(&b'/') {
            slashes.next();
            start = 1;
        }
        while seen.body.flags().contains(needed) {
            let end = slashes.next();
            let Some(component) = path.get(start..end) else { break };
            if component.len() > NAME_MAX || is_special(component) {
                break;
            }
            let words = line.directory_words();
            let key = Key::new(dentry, words.child_generation);
            let needle = dcache.component(&path[..end], start);
            let id = (seen.body.superblock(), words.ino);
            // Where the path ends, the number of the inode will be asked for.
            let before = |slot| {
                if end == path.len() {
                    dcache.inodes.prefetch(slot);
                }
            };
            let Some(child) = dcache.find_unchecked(id, key, &needle, before) else { break };
            let child_flags = child.seen.body.flags();
            if child.seen.body.is_negative()
                || child_flags.intersects(Flags::SYMLINK | Flags::MOUNTED)
            {
                break;
            }
            (dentry, seen, line, at, start) = (child.slot, child.seen, child.line, end, end + 1);
            self.trail.push(dentry, seen.seq);
        }
        (self.dentry, self.seen) = (dentry, seen);
        &path[at..]
    }
}

/// Returns true if a component is no name.
#[inline(always)]
fn is_special(component: &[u8]) -> bool {
    match component {
        [] => true,
        [b'.', rest @ ..] => matches!(rest, b"" | b"."),
        _ => false,
    }
}
