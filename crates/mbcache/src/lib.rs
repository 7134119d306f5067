//! The shared-content cache: from the hash of a blob to the places where such a blob is stored.
//!
//! Whoever stores many small blobs that are often equal (extended attributes, access control lists,
//! security labels, chunks) wants to store each once and let its users share it. That needs an index
//! from the content's hash, the *key*, to the places that may hold that content, the *values*: block
//! numbers, say. The index does not know the content and is no map: a key has any number of values, a
//! (key, value) pair is there once, and what is not found costs a second copy, no more. So it may
//! forget, and lives within a budget of bytes.
//!
//! | call | for | costs |
//! |---|---|---|
//! | [`Mbcache::find_first`], [`Mbcache::find_next`] | the values that may be shared, counted | no lock (1) |
//! | [`Mbcache::get`] | whether a pair is there; it was used | no lock (1); no store once the bit is set |
//! | [`Mbcache::create`] | a blob was stored | the lock of one bucket |
//! | [`Mbcache::delete_or_get`] | its last user is gone | no lock (1); one step on the entry |
//! | [`Mbcache::scan`] | memory is short | no lock; one step per entry that goes |
//! | [`Mbcache::stats`], [`Mbcache::count`] | somebody asks | a look at every line |
//!
//! (1) Unless its bucket changes. A find, and a look for a pair that is not in the slot that is its home, prove nothing
//! if entries were created in that bucket meanwhile, moved, or ended just then: they are repeated, and after 17 such
//! looks done once more with the lock of the bucket. So one who loses its processor while it moves entries, for want of
//! room, is waited for.
//!
//! # The protocol
//!
//! The caller keeps, with each blob, how many users it has: durable, under a lock of its own.
//!
//! - To store: hash the content; for each entry found, compare the content, lock the blob, and if it
//!   still has users, fewer than [`Mbcache::users_max`], add one and tell the new number
//!   ([`Entry::note_users`]). Then drop the entry. If none fits, store a new blob and, if it may have a second user,
//!   `create`.
//! - A blob with as many users as it may have is not in the index: its entry goes with its last handle, and
//!   comes back when a user leaves and the number is told. So full blobs make no find longer, of which a
//!   content may have any number (trap T39; Linux leaves them in the chain, with a flag).
//! - To release: lock the blob; if there are other users, take one off and tell the number. If it was
//!   the last, call `delete_or_get` *before* the blob is freed. If that says [`Busy`], somebody who
//!   found the blob is about to become a user: unlock the blob, wait, and begin again.
//! - To change a blob in place, as its only user: delete its entry as if to free it, look for the new
//!   content, and only if that is not there enter the blob again (trap T38: it would find itself).
//!
//! # Guarantees
//!
//! - G.1: a pair that was created before a look began, and is not taken out before it ends, is found;
//!   but no handle of it is given out from when somebody begins to wait to delete it until it has none, so
//!   that the wait is over when those are done who have one already; who takes one afterwards does not
//!   prolong it. If others begin to wait in between, it may be over only when they need not wait either.
//!   Who puts that last handle says so in a second step: if it loses its processor before that, finds go
//!   on to miss the pair until it has it back.
//! - G.2: while an [`Entry`] lives, its pair stays in the index: neither `delete_or_get` nor `scan` nor
//!   `note_users` takes it out (traps T34, T35). What is done under an `Entry` happens before a `delete_or_get`
//!   that says "deleted".
//! - G.3: `find_next` goes on from an entry that stays where it is, and meets older ones only: a loop
//!   over a key's values ends and meets none twice, whatever is created and deleted meanwhile
//!   (trap T40).
//! - G.4: while there are fewer entries than [`Mbcache::entries_max`], less two for each `create` that runs at
//!   that time (it may have a line in hand), nothing is dropped for want of room, as long as handles are
//!   short-lived (what is held cannot be moved together) and deletions do not come in between: after a
//!   search that found everything full, entries may be dropped in a quarter as many buckets as there are
//!   before the next such search. No more memory is used than the budget. Under its pressure what was used
//!   since somebody who makes room, or a `scan`, came by last stays (trap T37).
//! - G.5: after `new` nothing of this crate allocates but a wait of a task, and that with no lock held. But what
//!   threads sleep on is `parking_lot`'s, and has a table that it may make, or make larger, when a thread sleeps for
//!   the first time, or anybody is woken for the first time: for a handle, the turn, the list of tasks, or a list of
//!   lines, then with a bucket locked. So a global allocator must not call into a cache. No code of the caller is
//!   called with a lock of the cache held (trap T41); that code is the wakers of tasks only, which are woken in the
//!   drop of the last [`Entry`], under whatever locks its holder has.
//! - G.6: `get` of a pair whose referenced bit is set stores nothing, unless it takes the lock (1).
//! - G.7: operations on keys of different buckets write no common line, unless a bucket needs a third slot
//!   and takes a line: an entry, its state and the lock of its bucket are on lines of that bucket alone.
//!   `tests/conflicts.rs` records it, line by line. Except: what is refused (a pair that is there, an entry
//!   that is held) is counted on a line of the thread, which it shares if there are more threads than such
//!   lines, and so is what `scan` drops; scans share their hand, waits of tasks one list, and waits of
//!   threads the queues of `corewalk_base::park`.
//!
//! # Memory
//!
//! - An entry takes four words: key, value and state, and half of the two words that its line of two entries needs
//!   for a lock, a stamp and a link.
//! - The budget counts twelve (96 bytes) for each of [`Mbcache::entries_max`]: a bucket of one line, so that few keys
//!   share one, and half a line more, should all entries be of one bucket. So up to two thirds of what is set aside
//!   are free slots, in which there is room for entries beyond that number before any is dropped.
//! - Beside that there are 512 bytes of lists, which are counted, and the [`Mbcache`] itself, which is not.
//!
//! # What it refuses
//!
//! - To grow: the number of buckets follows from the budget. Pages of buckets that were never used take no
//!   memory; but buckets are used in no order, so few entries take a page each.
//! - To give memory back before it is dropped: what `scan` frees serves other entries.
//! - To be fast for very many values of one key: they stand in one bucket, two to a line, and each find
//!   looks at all of them for the newest: going over n values takes n * n / 2 looks at a line.
//! - More than 262,143 handles of one entry at a time: beyond, it is not found.
//!
//! # Lock order
//!
//! 1. The turn of the search for lines.
//! 2. A bucket of the index. Nobody holds two.
//! 3. A list of lines that are in no bucket.
//!
//! The list of waiting tasks is taken with none held. Builds with debug assertions check this
//! (trap T42).
//!
//! # Examples
//!
//! Blobs that are stored once:
//!
//! ```
//! use corewalk_mbcache::{CreateError, Mbcache, MbcacheOptions};
//! use std::hash::{DefaultHasher, Hash, Hasher};
//!
//! struct Blob {
//!     content: Vec<u8>,
//!     users: u32,
//! }
//!
//! struct Store {
//!     cache: Mbcache,
//!     blobs: Vec<Blob>,
//! }
//!
//! fn key(content: &[u8]) -> u64 {
//!     let mut hasher = DefaultHasher::new();
//!     content.hash(&mut hasher);
//!     hasher.finish()
//! }
//!
//! impl Store {
//!     fn put(&mut self, content: &[u8]) -> usize {
//!         let mut found = self.cache.find_first(key(content));
//!         while let Some(entry) = found {
//!             let blob = &mut self.blobs[entry.value() as usize];
//!             if blob.content == content {
//!                 blob.users += 1;
//!                 entry.note_users(blob.users);
//!                 entry.touch();
//!                 return entry.value() as usize;
//!             }
//!             found = self.cache.find_next(&entry);
//!         }
//!         let number = self.blobs.len();
//!         self.blobs.push(Blob { content: content.to_vec(), users: 1 });
//!         match self.cache.create(key(content), number as u64) {
//!             // Not entered means not shared.
//!             Ok(()) | Err(CreateError::Full | CreateError::Off) => {}
//!             Err(error) => panic!("{error}"),
//!         }
//!         number
//!     }
//!
//!     fn release(&mut self, number: usize) {
//!         let blob = &mut self.blobs[number];
//!         blob.users -= 1;
//!         if blob.users > 0 {
//!             self.cache.note_users(key(&blob.content), number as u64, blob.users);
//!         } else {
//!             // There is one thread here; with more, see "The protocol".
//!             assert!(self.cache.delete_or_get(key(&blob.content), number as u64).is_none());
//!             blob.content.clear();
//!         }
//!     }
//! }
//!
//! let cache = Mbcache::new(MbcacheOptions::default())?;
//! let mut store = Store { cache, blobs: Vec::new() };
//! let first = store.put(b"system_u:object_r:bin_t");
//! assert_eq!(store.put(b"system_u:object_r:bin_t"), first);
//! assert_ne!(store.put(b"system_u:object_r:etc_t"), first);
//! assert_eq!(store.blobs.len(), 2);
//! store.release(first);
//! store.release(first);
//! assert!(store.cache.find_first(key(b"system_u:object_r:bin_t")).is_none());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Source: Kara, "ext\[24\]: MBCache rewrite", December 2015; Linux `fs/mbcache.c`, `fs/ext4/xattr.c`.

#![forbid(unsafe_code)]

mod cache;
mod counts;
mod handle;
mod hash;
mod index;
mod order;
mod reclaim;
mod room;
mod sleepers;
mod slots;

pub use cache::{CreateError, Mbcache, MbcacheOptions, Stats};
pub use handle::{Busy, Entry, Seen, Unused};

#[cfg(all(test, corewalk_loom))]
mod loom_models;
