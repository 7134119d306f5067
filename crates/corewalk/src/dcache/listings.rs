//! Directory listings in progress. This module tells whether a name may have changed since a
//! listing of its directory began.
//!
//! A listing may report entries with attributes, which are added to the cache. The names are not
//! known beforehand, so no in-lookup lock is held while the back end reads the entries.
//!
//! A rename or removal may change a name during a listing. The entry that the listing has read is
//! then out of date, and must not enter the cache (trap T25 in `traps.md`).
//!
//! # How it works
//! Each directory uses one of a few atomic words, so several directories may share a word. The word
//! has two counts: one of listings in progress, and one of changes of names. A listing increments
//! the first count before it calls the back end. A thread that changes a name calls the back end,
//! and then loads the word. If a listing is in progress, that thread increments the second count.
//!
//! A listing adds a name to the cache under the name's in-lookup lock. It does so only if the count
//! of changes is still that of the listing's start.
//!
//! # Invariants
//! - L.1: a thread that changes names increments the directory's count of changes before it
//!   releases the in-lookup locks of these names.
//! - L.2: an invalidation of a name first increments the directory's count of changes. Then it
//!   cancels the fill: the holder of the name's in-lookup lock may not cache the back end's answer.
//!
//! If a name changes during a listing, the listing must not cache its old entry for the name.
//!
//! - If the listing reads the entry after the change in the back end, the entry is up to date.
//! - If the listing reads the entry before the change, the changing thread sees a listing in
//!   progress, and increments the count of changes. Under the name's in-lookup lock, the listing
//!   sees the new count (invariant L.1), and skips the entry.
//!
//! A back end without locks does not order its calls and the accesses to the atomic word. So the
//! listing and the changing thread have a fence each.
//!
//! An invalidation increments the count of changes, and then cancels the fill (invariant L.2).
//! Suppose that a listing compares the count before the increment. Then the cancellation is still
//! to come. Either the listing sees the cancellation and does not add its entry, or the
//! invalidation finds that entry in the cache (invariant K.2 of `key_lock`).

use corewalk_base::OwnLine;
use corewalk_base::primitives::IS_MODEL;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};

use super::Dcache;
use crate::dentry::LookupKey;
use crate::slot::DentrySlot;

const WORDS: usize = if IS_MODEL { 1 } else { 64 };
/// The layout of a directory's atomic word is `changes << 32 | listings`. `listings` is the number
/// of listings in progress. `changes` is the number of changes of names, which wraps around.
const CHANGE: u64 = 1 << 32;
const LISTINGS_MASK: u64 = CHANGE - 1;

pub(crate) struct Listings {
    words: Box<[OwnLine<AtomicU64>]>,
}

#[must_use]
pub(crate) struct ListingMark<'a> {
    word: &'a AtomicU64,
    changes: u64,
}

/// A change of one or two names in a directory. The back end makes the change while this value
/// exists. When the value is dropped, also after a panic, it counts the change if a listing is in
/// progress.
#[must_use]
pub(crate) struct NameChange<'a> {
    word: &'a AtomicU64,
}

impl Listings {
    pub(crate) fn new() -> Listings {
        Listings { words: (0..WORDS).map(|_| OwnLine::new(AtomicU64::new(0))).collect() }
    }

    pub(crate) fn begin(&self, directory: DentrySlot) -> ListingMark<'_> {
        let word = self.word(directory);
        // ORDERING: Relaxed. The fence below orders this store before the read of the back end's
        // answer.
        let before = word.fetch_add(1, Ordering::Relaxed);
        // ORDERING(listing): SeqCst fence. A listing stores to the directory's word and then reads
        // from the back end. A changing thread stores in the back end, has a fence in the drop of
        // `NameChange`, and then reads the word. Without fences, the listing could miss the change
        // and the changing thread the listing.
        fence(Ordering::SeqCst);
        ListingMark { word, changes: before / CHANGE }
    }

    /// Begins a change of names in `directory`. The caller holds the in-lookup locks of the changed
    /// names until it has dropped the returned value.
    #[inline]
    pub(crate) fn change(&self, directory: DentrySlot) -> NameChange<'_> {
        NameChange { word: self.word(directory) }
    }

    fn word(&self, directory: DentrySlot) -> &AtomicU64 {
        &self.words[directory.get() as usize % WORDS]
    }
}

impl ListingMark<'_> {
    /// Returns true if the name that the caller is about to add has not changed since the listing
    /// began. The caller holds the in-lookup lock of that name.
    pub(crate) fn is_unchanged(&self) -> bool {
        // ORDERING: Relaxed. Changes of this name increment the count under the name's in-lookup
        // lock, which the caller holds (invariant L.1).
        self.word.load(Ordering::Relaxed) / CHANGE == self.changes
    }
}

impl Drop for ListingMark<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. This listing has ended, and adds no more names. If a thread still sees
        // it in progress, the thread counts its change needlessly, which is harmless.
        self.word.fetch_sub(1, Ordering::Relaxed);
    }
}

impl Drop for NameChange<'_> {
    #[inline]
    fn drop(&mut self) {
        // ORDERING(listing): SeqCst fence. `Listings::begin` counts the listing, has a fence, and
        // then reads the name. So the load below sees the listing, or the listing reads the name
        // after this change. Without a fence, the listing could add the old file.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed. The fence above orders this load after the change in the back end.
        if self.word.load(Ordering::Relaxed) & LISTINGS_MASK != 0 {
            // ORDERING: Relaxed. The release of the in-lookup lock publishes the count.
            self.word.fetch_add(CHANGE, Ordering::Relaxed);
        }
    }
}

impl Dcache {
    /// Makes the fills of a name that are running discard their answers. Another thread may have
    /// cached an answer before this call. The caller's next lookup finds that answer, so the caller
    /// can remove it.
    pub(crate) fn cancel_fills(&self, directory: DentrySlot, lookup_key: &LookupKey<'_>) {
        // The order matters (invariant L.2): increment the count of changes, then cancel the fill.
        // A listing that compares the count before the increment is cancelled afterwards.
        drop(self.listings.change(directory));
        self.in_lookup.cancel_fill(self.in_lookup_key(directory, lookup_key));
    }
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;
