//! The plain part of a walk: cached names of files and of directories that may be searched.
//!
//! Nearly all components of nearly all paths are of this kind, and need no decision. What is not (a
//! name that is not cached, a link, a mount point, `..`, permissions that have to be asked for) is
//! left to [`Walk::step`], which starts where this ends. Nothing is validated here but noted: the
//! trail is checked where the walk ends, or where it does something else.

use super::{Mode, Walk, split};
use crate::cred::Caps;
use crate::dentry::{Flags, Key};
use crate::name::{NAME_MAX, Name};

impl Walk<'_, '_> {
    /// Goes along `path` as far as it is plain and returns the rest.
    #[inline]
    pub(super) fn glide<'p>(&mut self, path: &'p [u8]) -> &'p [u8] {
        if self.mode != Mode::Rcu || self.hold.is_some() || self.vfs.security().is_some() {
            return path;
        }
        let dcache = &self.vfs.dcache;
        let is_privileged = self.cred.has(Caps::DAC_READ_SEARCH);
        let mut rest = path;
        loop {
            let flags = self.seen.body.flags();
            if !flags.contains(Flags::DIRECTORY)
                || !(is_privileged || flags.contains(Flags::SEARCHABLE))
            {
                return rest;
            }
            let (component, tail) = split(rest);
            if matches!(component, b"" | b"." | b"..") || component.len() > NAME_MAX {
                return rest;
            }
            let words = dcache.dentries.directory_words(self.dentry);
            let key = Key::new(self.dentry, words.child_generation);
            let needle = dcache.needle(Name::unchecked(component));
            let id = (self.seen.body.superblock(), words.ino);
            let Some((slot, seen)) = dcache.find_unchecked(id, key, &needle) else { return rest };
            let is_special = seen.body.flags().intersects(Flags::SYMLINK | Flags::MOUNTED);
            if seen.body.is_negative() || is_special {
                return rest;
            }
            (self.dentry, self.seen) = (slot, seen);
            self.trail.push(slot, seen.seq);
            rest = tail;
        }
    }
}
