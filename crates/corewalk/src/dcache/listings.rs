//! Listings that are in progress. They tell whether a name may have changed since a listing of its
//! directory began.
//!
//! A listing may report entries with attributes, which fill the cache. The back end reads the
//! entries without an in-lookup lock, because their names are not known before. Meanwhile a rename
//! or a removal may change a name in the back end and in the cache. The older entry of the listing
//! must not enter the cache afterwards (trap T25).
//!
//! # How it works
//!
//! Each directory has an atomic word, which it shares with other directories. The word counts the
//! listings in progress and the changes of names. A listing counts itself before it calls the back
//! end. A change of a name loads the word after its call of the back end. The change counts itself
//! only if a listing is in progress, so most changes do not store to the word. A listing enters a
//! name under the in-lookup lock of the name, and only if no change was counted since it began.
//!
//! # Invariants
//! - L.1: a change counts itself before it releases the in-lookup locks of its names.
//! - L.2: an invalidation takes no lock. It counts itself before it cancels the fill of the name.
//!
//! A listing cannot enter an entry that is older than a change of the name:
//!
//! - If the back end made the change first, the entry already shows the change.
//! - Otherwise the listing had counted itself before the back end made the change. So the change
//!   sees a listing in progress, and counts itself. A listing that takes the in-lookup lock after
//!   the change sees that count (L.1).
//!
//! A back end need not have locks: two fences order the word and the back end's answers.
//!
//! If a listing does not see the count of an invalidation, the invalidation has not yet cancelled
//! the fill (L.2). When it does so, it cancels the fill of the listing, or it finds the name that
//! the listing has entered (K.2 of `key_lock`).

use corewalk_base::OwnLine;
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};

use super::Dcache;
use crate::dentry::LookupKey;
use crate::slot::DentrySlot;

/// The number of words.
const WORDS: usize = if IS_MODEL { 1 } else { 64 };
/// The atomic word of a directory: `changes << 32 | listings`. The number of changes wraps around.
const CHANGE: u64 = 1 << 32;
const LISTINGS_MASK: u64 = CHANGE - 1;

/// The listings under way and the changes of names beside them.
pub(crate) struct Listings {
    words: Box<[OwnLine<AtomicU64>]>,
}

/// A listing under way.
#[must_use]
pub(crate) struct ListingMark<'a> {
    word: &'a AtomicU64,
    changes: u64,
}

/// A change of names in a directory. Dropping the value counts the change, even if the back end has
/// panicked.
#[must_use]
pub(crate) struct NameChange<'a> {
    word: &'a AtomicU64,
}

impl Listings {
    pub(crate) fn new() -> Listings {
        Listings { words: (0..WORDS).map(|_| OwnLine::new(AtomicU64::new(0))).collect() }
    }

    /// Begins a listing of the directory in the slot `directory`.
    pub(crate) fn begin(&self, directory: DentrySlot) -> ListingMark<'_> {
        let word = self.word(directory);
        // ORDERING: Relaxed. The fence below orders this store before the back end's answer.
        let before = word.fetch_add(1, Ordering::Relaxed);
        // ORDERING(listing): SeqCst fence. Pairs with the fence of `NameChange`. The listing stores
        // to the word and then reads from the back end. A change stores in the back end and then
        // reads the word. So the listing sees the change's store, or the change sees the listing's
        // store, even if the back end takes no lock.
        fence(Ordering::SeqCst);
        ListingMark { word, changes: before / CHANGE }
    }

    /// Begins a change of names in the directory in the slot `directory`. The caller holds the
    /// in-lookup locks of the names, and drops the returned value before it releases them.
    #[inline]
    pub(crate) fn change(&self, directory: DentrySlot) -> NameChange<'_> {
        NameChange { word: self.word(directory) }
    }

    fn word(&self, directory: DentrySlot) -> &AtomicU64 {
        &self.words[directory.get() as usize % WORDS]
    }
}

impl ListingMark<'_> {
    /// Returns true if no name in the directory has changed since the listing began. The caller
    /// holds the in-lookup lock of the name that it is about to enter.
    pub(crate) fn is_unchanged(&self) -> bool {
        // ORDERING: Relaxed. The caller holds the in-lookup lock of the name, so this load sees all
        // earlier changes of that name (L.1).
        self.word.load(Ordering::Relaxed) / CHANGE == self.changes
    }
}

impl Drop for ListingMark<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. The listing has ended. So a change that already sees the lower count
        // of listings need not count itself.
        self.word.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for NameChange<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(listing): SeqCst fence. Pairs with the fence of `Listings::begin`: this change
        // sees the count of the listing, or the answer of the listing contains this change.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed. The fence above orders this load after the change in the back end.
        if self.word.load(Ordering::Relaxed) & LISTINGS_MASK != 0 {
            // ORDERING: Relaxed. The release of the in-lookup lock publishes the count.
            self.word.fetch_add(CHANGE, Ordering::Relaxed);
        }
    }
}

impl Dcache {
    /// Cancels the fills of a name. An answer that the back end gave before this call does not
    /// enter the cache any more. If such an answer is already in the cache, a search after this
    /// call finds it.
    pub(crate) fn cancel_fills(&self, directory: DentrySlot, lookup_key: &LookupKey<'_>) {
        // Count the change before cancelling the fill, so that a listing sees the count or its fill
        // is cancelled (L.2).
        drop(self.listings.change(directory));
        self.in_lookup.cancel_fill(self.in_lookup_key(directory, lookup_key));
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
