//! `before-seqlock`: translations that check the rename sequence, as Linux does since 3.12.
//!
//! Document 001 translates without a lock and begins again if anything was renamed meanwhile,
//! anywhere. The review asked for a bound: after a pass that was disturbed, the second one holds the
//! rename lock, which leaves the sequence as it is and excludes renames and other such translations.
//! That is what was merged, and what Linux has today: one pass without the lock, one with it.
//!
//! Nobody writes anything shared as long as nothing is renamed; under a steady stream of renames
//! every translation ends up at the global lock.
//!
//! Source: document 001 and its review; Linux `fs/d_path.c` (`prepend_path`), `read_seqbegin_or_lock`.

use corewalk_sync::SeqLock;

use super::paths::Prepended;
use super::rcu_walk::{Protocol, RcuWalk, get_lockless};
use super::timed::timed;
use super::tree::Dentry;

/// The design.
pub(crate) type RenameSeqLock = RcuWalk<Retried>;

/// Translations that begin again.
pub(crate) struct Retried;

impl Protocol for Retried {
    const VARIANT: &'static str = "before-seqlock";

    type Rename = SeqLock;

    #[inline]
    fn get(dentry: &Dentry) -> bool {
        get_lockless(dentry)
    }

    #[inline]
    fn translate(dentries: &RcuWalk<Self>, number: u32, out: &mut Prepended) -> bool {
        let start = dentries.rename_lock.read_begin();
        let is_linked = dentries.tree.climb(number, out, Dentry::copy_name);
        if !dentries.rename_lock.read_retry(start) {
            return is_linked;
        }
        locked(dentries, number, out)
    }
}

/// Translates once more, with renames locked out.
#[cold]
fn locked(dentries: &RenameSeqLock, number: u32, out: &mut Prepended) -> bool {
    dentries.retries.add(1);
    dentries.fallbacks.add(1);
    let _excl = timed(|| dentries.rename_lock.read_excl());
    out.clear();
    dentries.tree.climb(number, out, Dentry::copy_name)
}
