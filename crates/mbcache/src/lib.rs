//! A de-duplication index. It maps the hash of a blob, the *key*, to the places where such a blob
//! is stored, the *values*. With it, a store finds equal blobs, and keeps one copy for all users.
//! The index may forget a blob to stay within its memory budget. Then the store merely keeps a
//! second copy.
//!
//! | call | purpose | lock |
//! |---|---|---|
//! | [`Mbcache::find_first`], [`Mbcache::find_next`] | find values to share | none |
//! | [`Mbcache::get`] | check that a pair exists, and mark it as used | none |
//! | [`Mbcache::create`] | add the pair of a new blob | that of the home line |
//! | [`Mbcache::delete_or_get`], [`Busy::wait`] | delete the pair of an unused blob | none |
//! | [`Mbcache::note_users`], [`Entry::note_users`] | report the users | none, or as `create` |
//! | [`Mbcache::scan`] | free memory, as a shrinker | none |
//!
//! # The protocol
//! The store counts the users of each blob under its own lock; [`Mbcache`] has an example.
//! - To store: for each entry found, compare the content and lock the blob. If the blob has users,
//!   and fewer than [`Mbcache::users_max`], add one, call [`Entry::note_users`] and drop the entry.
//!   If no blob fits, store a new one and call `create`.
//! - To release: lock the blob. If there are other users, subtract one and call `note_users`. The
//!   last user calls `delete_or_get` *before* it frees the blob. If the result is [`Busy`], it
//!   unlocks the blob, waits, and begins again, since another thread may have become a user.
//! - To change a blob in place, as its only user: delete its entry. Create an entry again only if a
//!   search for the new content finds nothing (traps T34 and T38 in `traps.md`).
//!
//! # Guarantees
//! - G.1: a search finds each pair that exists during the whole search. While a thread waits to
//!   delete a pair, no search returns a handle of it (exception: `Busy::wait`).
//! - G.2: a pair stays in the cache while an [`Entry`] of it exists. All work of a thread while it
//!   has an `Entry` happens before the deletion of the pair.
//! - G.3: a loop with `find_next` ends. It meets a pair twice only if the pair was created anew.
//! - G.4: a cache with at most [`Mbcache::entries_max`] entries drops an entry only if many hashes
//!   collide, or if one key has hundreds of values. Used entries stay longer (trap T37 in
//!   `traps.md`).
//! - G.5: after `new`, only the first sleep of a thread allocates (trap T41).
//! - G.6: `get` of a used pair stores nothing.
//! - G.7: the hash of each key selects a cache line, its home line. Operations on keys with
//!   different home lines write no common cache line, as long as their entries are there.
//!
//! Source: Kara, "ext\[24\]: MBCache rewrite", December 2015; Linux `fs/mbcache.c`.

#![forbid(unsafe_code)]

mod cache;
mod deferral;
mod handle;
mod hash;
mod index;
mod order;
mod slots;

pub use cache::{CreateError, Mbcache, MbcacheOptions, Stats};
pub use deferral::{Change, Deferral};
pub use handle::{Busy, Entry};

#[cfg(all(test, corewalk_loom))]
mod loom_models;
