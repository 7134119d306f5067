//! `before-global-lock`: paths under the writers' side of the rename lock, as in Linux 3.8.
//!
//! A translation follows pointers to parents and names that a rename changes, so `d_path` took the
//! rename lock for writing: only one translation in the whole system at a time, and each of them
//! bumped the sequence that every lookup of a missing name checks. Around the copy of each name it
//! took the dentry's lock as well, and a reference was counted under that lock too. This is what
//! documents 000 and 001 start from.
//!
//! Source: Linux 3.8 `fs/dcache.c` (`d_path`, `prepend_path`, `prepend_name`).

use corewalk_sync::SeqLock;

use super::paths::Prepended;
use super::rcu_walk::{Protocol, RcuWalk};
use super::timed::timed;
use super::tree::Dentry;

/// The design.
pub(crate) type GlobalLock = RcuWalk<Exclusive>;

/// Translations that exclude each other.
pub(crate) struct Exclusive;

impl Protocol for Exclusive {
    const VARIANT: &'static str = "before-global-lock";

    type Rename = SeqLock;

    #[inline]
    fn get(dentry: &Dentry) -> bool {
        let mut d_lock = dentry.lockref.lock();
        if d_lock.is_dead() {
            return false;
        }
        d_lock.add(1);
        true
    }

    #[inline]
    fn translate(dentries: &RcuWalk<Self>, number: u32, out: &mut Prepended) -> bool {
        let _section = timed(|| dentries.rename_lock.write());
        dentries.tree.climb(number, out, |dentry, out| {
            let _d_lock = dentry.lockref.lock();
            dentry.copy_name(out);
        })
    }
}
