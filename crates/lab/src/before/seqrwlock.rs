//! `before-seqrwlock`: translations that share the rename lock, as document 000 proposed.
//!
//! The rename lock became a sequence lock with a second class of readers, which exclude renames and
//! not each other; `d_path` takes that side, so many translations proceed together, and names no
//! longer need the dentry's lock. Every translation still writes the word of one lock, and waits for
//! every rename anywhere.
//!
//! Source: document 000, patches 2 to 4; `corewalk_sync::SeqRwLock`.

use corewalk_sync::SeqRwLock;

use super::paths::Prepended;
use super::rcu_walk::{Protocol, RcuWalk, get_lockless};
use super::timed::timed;
use super::tree::Dentry;

/// The design.
pub(crate) type RenameSeqRwLock = RcuWalk<Shared>;

/// Translations that share a lock.
pub(crate) struct Shared;

impl Protocol for Shared {
    const VARIANT: &'static str = "before-seqrwlock";

    type Rename = SeqRwLock;

    #[inline]
    fn get(dentry: &Dentry) -> bool {
        get_lockless(dentry)
    }

    #[inline]
    fn translate(dentries: &RcuWalk<Self>, number: u32, out: &mut Prepended) -> bool {
        let _shared = timed(|| dentries.rename_lock.read_shared());
        dentries.tree.climb(number, out, Dentry::copy_name)
    }
}
