//! The interface between attribute blocks and the index that finds blocks with equal contents.
//!
//! A [`ShareIndex`] maps the hash of an attribute set to the blocks that may contain it. The store
//! uses `corewalk-mbcache` ([`MbcacheIndex`]). With [`NoSharing`], every inode has its own block.
//! Other implementations must follow the rules of [`ShareIndex`].
//!
//! Source: `corewalk-mbcache`, "The protocol".

use std::io;

use corewalk_mbcache::{Mbcache, MbcacheOptions, Stats};

/// The result of [`ShareIndex::remove`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Removal {
    /// The pair of key and block is no longer in the index, and no thread that has found it is
    /// about to use the block.
    Done,
    /// Another thread has found the pair of key and block, and is about to use the block. The
    /// caller must wait for that thread, and then decide again whether to free the block.
    Busy,
}

/// An index that finds attribute blocks with equal contents. It maps the hash of an attribute set
/// to the blocks that may contain this set.
///
/// # Rules
/// - H.1: while `find` is inside its closure `take`, it holds no lock that `insert`, `note_users`
///   or `remove` needs.
/// - H.2: while `find` is inside `take` for a pair of key and block, `remove` of that pair returns
///   [`Removal::Busy`]. After `remove` has returned [`Removal::Done`], `take` is not called for the
///   pair until it is inserted again. Otherwise `find` could return a block that another thread is
///   freeing (trap T34 in `traps.md`).
/// - H.3: an index may drop pairs. A dropped pair only costs a second block with the same content.
/// - H.4: before a thread removes a user from a block, it announces this with `leave`, and then
///   locks the block. Until `remove` returns [`Removal::Done`] or the thread calls `left`, it calls
///   neither `find` nor `insert`. So an index may let `find` wait until all announcements have
///   ended, as Linux's mbcache did before 4.6. `corewalk-mbcache` does not wait.
/// - H.5: `note_users` is called only for a block that was inserted since the mount.
///
/// # Examples
/// An index that counts the lookups:
/// ```
/// use std::sync::Arc;
/// use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
/// use corewalk::{FileSystem, FileKind, Node, XattrMode};
/// use corewalk_store::{MbcacheIndex, Removal, ShareIndex, Store, StoreOptions};
///
/// struct Counted {
///     index: MbcacheIndex,
///     finds: AtomicU64,
/// }
///
/// impl ShareIndex for Counted {
///     fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
///         self.finds.fetch_add(1, Relaxed);
///         self.index.find(key, take)
///     }
///     fn insert(&self, key: u64, block: u64, users: u32) {
///         self.index.insert(key, block, users);
///     }
///     fn note_users(&self, key: u64, block: u64, users: u32) {
///         self.index.note_users(key, block, users);
///     }
///     fn remove(&self, key: u64, block: u64) -> Removal {
///         self.index.remove(key, block)
///     }
///     fn wait(&self, key: u64, block: u64) {
///         self.index.wait(key, block);
///     }
///     fn users_max(&self) -> u32 {
///         self.index.users_max()
///     }
/// }
///
/// # let dir = std::env::temp_dir().join(format!("store-doc6-{}", std::process::id()));
/// let index = MbcacheIndex::new(Default::default())?;
/// let counted = Arc::new(Counted { index, finds: AtomicU64::new(0) });
/// let options = StoreOptions::default().with_share(Some(counted.clone()));
/// let store = Store::open(&dir, &options)?;
/// let root = Node::detached(store.root()?.ino, FileKind::Directory);
/// store.setxattr(root, b"user.label", b"public", XattrMode::Set)?;
/// store.share_xattrs();
/// assert_eq!((counted.finds.load(Relaxed), counted.index.stats().entries), (1, 1));
/// # drop(store);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub trait ShareIndex: Send + Sync + 'static {
    /// Calls `take` with each block stored under `key`, until `take` returns true. Returns that
    /// block. `take` may also return true only to stop the search.
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64>;

    /// Inserts the pair of `key` and `block`. `users` is the number of inodes that use the block.
    /// Does nothing if the index already has the pair.
    fn insert(&self, key: u64, block: u64, users: u32);

    /// Tells the index the new number of users (inodes) of a block. The caller holds the lock of
    /// the block.
    fn note_users(&self, key: u64, block: u64, users: u32);

    /// Announces that the caller is about to remove a user (an inode) from an attribute block (rule
    /// H.4). The caller holds no lock of any block.
    fn leave(&self, _block: u64) {}

    /// Ends the announcement of [`ShareIndex::leave`], whether or not the caller has removed its
    /// user from the block. The caller holds no lock of any block.
    fn left(&self, _block: u64) {}

    /// Removes the pair of `key` and `block`, if the index has it. The caller has called
    /// [`ShareIndex::leave`] for the block and then locked it.
    fn remove(&self, key: u64, block: u64) -> Removal;

    /// Waits until no thread that has found the pair of `key` and `block` is about to use the
    /// block. The caller holds no lock of any block.
    fn wait(&self, key: u64, block: u64);

    /// Returns the maximum number of users that a block may have.
    fn users_max(&self) -> u32;

    /// Returns the number of entries, and the number of entries that were dropped to make room. An
    /// index that does not count returns 0.
    fn stats(&self) -> Stats {
        Stats::default()
    }
}

/// The default index of a store.
#[derive(Debug)]
pub struct MbcacheIndex(Mbcache);

impl MbcacheIndex {
    /// Returns an empty index. [`ShareIndex`] has an example.
    ///
    /// # Errors
    /// The errors of [`Mbcache::new`].
    pub fn new(options: MbcacheOptions) -> io::Result<MbcacheIndex> {
        Mbcache::new(options).map(MbcacheIndex)
    }
}

impl ShareIndex for MbcacheIndex {
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        let mut found = self.0.find_first(key);
        while let Some(entry) = found {
            let block = entry.value();
            if take(block) {
                entry.touch();
                return Some(block);
            }
            found = self.0.find_next(&entry);
        }
        None
    }

    fn insert(&self, key: u64, block: u64, users: u32) {
        if users < self.0.users_max() {
            // Ignore an error, because an index may forget pairs (H.3).
            let _ = self.0.create(key, block);
        }
    }

    fn note_users(&self, key: u64, block: u64, users: u32) {
        // `corewalk-mbcache` needs the number of users only if it is near the maximum.
        if users + 1 >= self.0.users_max() {
            self.0.note_users(key, block, users);
        }
    }

    fn remove(&self, key: u64, block: u64) -> Removal {
        self.0.delete_or_get(key, block).map_or(Removal::Done, |_| Removal::Busy)
    }

    fn wait(&self, key: u64, block: u64) {
        // If no thread uses the pair any more, `delete_or_get` removes it. A caller that keeps the
        // block inserts the pair again.
        if let Some(busy) = self.0.delete_or_get(key, block) {
            busy.wait();
        }
    }

    fn users_max(&self) -> u32 {
        self.0.users_max()
    }

    fn stats(&self) -> Stats {
        self.0.stats()
    }
}

/// The index of a store without sharing.
#[derive(Clone, Copy, Debug, Default)]
pub struct NoSharing;

impl ShareIndex for NoSharing {
    fn find(&self, _: u64, _: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        None
    }

    fn insert(&self, _: u64, _: u64, _: u32) {}

    fn note_users(&self, _: u64, _: u64, _: u32) {}

    fn remove(&self, _: u64, _: u64) -> Removal {
        Removal::Done
    }

    fn wait(&self, _: u64, _: u64) {}

    fn users_max(&self) -> u32 {
        1
    }
}

#[cfg(test)]
mod tests {
    use std::collections::{HashMap, HashSet};
    use std::path::PathBuf;
    use std::sync::Arc;
    use std::time::Duration;

    use corewalk::{FileKind, FileSystem as _, Make, Name, Node, XattrMode};
    use corewalk_base::Mutex;
    use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
    use corewalk_base::primitives::thread;
    use corewalk_testkit::race::Watchdog;

    use super::*;
    use crate::{Store, StoreOptions, fsck};

    /// The default index, which also checks that the store follows rules H.4 and H.5. Each mutex
    /// protects the value inside it.
    struct Watched {
        index: MbcacheIndex,
        looks: Mutex<u64>,
        leaving: Mutex<HashMap<thread::ThreadId, u64>>,
        known: Mutex<HashSet<u64>>,
        broken: Mutex<Vec<&'static str>>,
    }

    impl Watched {
        fn new() -> Arc<Watched> {
            let index = MbcacheIndex::new(MbcacheOptions::default()).unwrap();
            let (looks, leaving, broken) = (Mutex::new(0), Mutex::default(), Mutex::default());
            let known = Mutex::default();
            Arc::new(Watched { index, looks, leaving, known, broken })
        }

        fn leaving(&self) -> Option<u64> {
            self.leaving.lock().get(&thread::current().id()).copied()
        }

        fn expect(&self, is_right: bool, rule: &'static str) {
            if !is_right {
                self.broken.lock().push(rule);
            }
        }
    }

    impl ShareIndex for Watched {
        fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
            self.expect(self.leaving().is_none(), "H.4: find while leaving");
            self.index.find(key, &mut |block| {
                *self.looks.lock() += 1;
                take(block)
            })
        }

        fn insert(&self, key: u64, block: u64, users: u32) {
            self.expect(self.leaving().is_none(), "H.4: insert while leaving");
            self.known.lock().insert(block);
            self.index.insert(key, block, users);
        }

        fn note_users(&self, key: u64, block: u64, users: u32) {
            self.expect(self.known.lock().contains(&block), "H.5: users of an unknown block");
            self.index.note_users(key, block, users);
        }

        fn leave(&self, block: u64) {
            let before = self.leaving.lock().insert(thread::current().id(), block);
            self.expect(before.is_none(), "H.4: leave twice");
        }

        fn left(&self, block: u64) {
            let left = self.leaving.lock().remove(&thread::current().id());
            self.expect(left == Some(block), "H.4: left another block");
        }

        fn remove(&self, key: u64, block: u64) -> Removal {
            self.expect(self.leaving() == Some(block), "H.4: remove without leave");
            let removal = self.index.remove(key, block);
            if removal == Removal::Done {
                self.leaving.lock().remove(&thread::current().id());
            }
            removal
        }

        fn wait(&self, key: u64, block: u64) {
            self.expect(self.leaving().is_none(), "H.4: wait while leaving");
            self.index.wait(key, block);
        }

        fn users_max(&self) -> u32 {
            self.index.users_max()
        }
    }

    struct Folder(PathBuf);

    impl Folder {
        fn new(name: &str) -> Folder {
            Folder(std::env::temp_dir().join(format!("store-share-{}-{name}", std::process::id())))
        }

        fn open(&self, share: &Arc<Watched>) -> Store {
            let options = StoreOptions { share: Some(share.clone()), ..StoreOptions::default() };
            Store::open(&self.0, &options).unwrap()
        }
    }

    impl Drop for Folder {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn make(store: &Store, name: &str) -> Node<'static> {
        let root = Node::detached(1, FileKind::Directory);
        let name = Name::new(name.as_bytes()).unwrap();
        let made = store.make(root, name, &Make::new(0o100_644, 0, 0)).unwrap();
        Node::detached(made.ino, FileKind::Regular)
    }

    fn set(store: &Store, file: Node<'_>, value: &[u8]) {
        store.setxattr(file, b"user.a", value, XattrMode::Set).unwrap();
    }

    /// The values differ only in bytes that the hash does not sample, so all have the same hash.
    fn value(number: usize) -> Vec<u8> {
        let mut value = vec![7; 4000];
        value[200..208].copy_from_slice(&number.to_le_bytes());
        value
    }

    const CONTENTS: usize = 200;
    const LOOKS_MAX: u64 = 2 * 4;

    #[test]
    fn colliding_contents_are_shared_after_a_bounded_number_of_comparisons() {
        let (folder, share) = (Folder::new("chosen"), Watched::new());
        let store = folder.open(&share);
        let files: Vec<_> = (0..2 * CONTENTS).map(|n| make(&store, &n.to_string())).collect();
        for (number, file) in files.iter().enumerate() {
            *share.looks.lock() = 0;
            set(&store, *file, &value(number % CONTENTS));
            let looks = *share.looks.lock();
            assert!(looks <= LOOKS_MAX, "{looks} looks for file {number}");
        }
        let stats = store.stats();
        assert_eq!((stats.xattr_blocks, stats.xattr_users), (200, 400));
        drop(store);

        // After a remount, a block enters the index when it is first read.
        let share = Watched::new();
        let store = folder.open(&share);
        for (number, file) in files.iter().enumerate() {
            *share.looks.lock() = 0;
            assert_eq!(store.getxattr(*file, b"user.a"), Ok(value(number % CONTENTS)));
            let looks = *share.looks.lock();
            assert!(looks <= LOOKS_MAX, "{looks} looks for file {number}");
        }
        set(&store, make(&store, "one more"), &value(CONTENTS - 1));
        let stats = store.stats();
        assert_eq!((stats.xattr_blocks, stats.xattr_hits, stats.xattr_misses), (200, 1, 0));
        drop(store);
        assert_eq!(fsck(&folder.0).unwrap().findings, []);
        assert!(share.broken.lock().is_empty());
    }

    #[test]
    fn control_index_with_one_key_for_all_of_them_is_looked_through() {
        let share = Watched::new();
        for block in 0..CONTENTS as u64 {
            share.insert(1, block, 1);
        }
        assert_eq!(share.find(1, &mut |_| false), None);
        assert_eq!(*share.looks.lock(), 200, "the index alone sets no bound");
    }

    #[test]
    fn threads_that_share_and_leave_keep_the_rules_of_the_index() {
        let (folder, share) = (Folder::new("rules"), Watched::new());
        let store = folder.open(&share);
        let files: Vec<_> = (0..8).map(|n| make(&store, &n.to_string())).collect();
        thread::scope(|scope| {
            for worker in 0..3_usize {
                let (store, files) = (&store, &files);
                scope.spawn(move || {
                    for step in 0..2_000 {
                        let file = files[(step * (worker + 1)) % files.len()];
                        match step % 7 {
                            0 => drop(store.removexattr(file, b"user.a")),
                            _ => set(store, file, &[(step / 3 % 3) as u8; 300]),
                        }
                    }
                });
            }
        });
        store.share_xattrs();
        let stats = store.stats();
        assert_eq!(stats.xattr_waiting, 0);
        let users = files.iter().filter(|file| store.getxattr(**file, b"user.a").is_ok()).count();
        assert_eq!(stats.xattr_users, users as u64);
        assert_eq!(share.index.stats().entries, stats.xattr_blocks);
        assert!(share.leaving.lock().is_empty());
        let broken = share.broken.lock();
        assert!(broken.is_empty(), "{broken:?}");
    }

    /// Rule H.5: a thread that removes a user may meet a thread that reads the same block from
    /// disk. The index must have the block before its users are counted.
    #[test]
    fn blocks_that_are_read_are_entered_before_their_users_are_counted() {
        const PAIRS: usize = 300;
        let _watchdog = Watchdog::start("two threads meet", Duration::from_secs(120));
        let folder = Folder::new("entered");
        let store = folder.open(&Watched::new());
        let files: Vec<_> = (0..PAIRS)
            .map(|n| {
                let pair = [make(&store, &format!("a{n}")), make(&store, &format!("b{n}"))];
                pair.iter().for_each(|file| set(&store, *file, &n.to_le_bytes()));
                pair
            })
            .collect();
        assert_eq!(store.stats().xattr_blocks, PAIRS as u64);
        drop(store);
        let share = Watched::new();
        let store = folder.open(&share);
        let arrived = [(); PAIRS].map(|()| AtomicU64::new(0));
        let meet = |n: usize| {
            // ORDERING: Relaxed. The counter only makes both threads start at the same moment; no
            // data is published through it.
            arrived[n].fetch_add(1, Ordering::Relaxed);
            // ORDERING: Relaxed. The counter only makes both threads start at the same moment; no
            // data is published through it.
            while arrived[n].load(Ordering::Relaxed) < 2 {
                thread::yield_now();
            }
        };
        thread::scope(|scope| {
            scope.spawn(|| {
                files.iter().enumerate().for_each(|(n, [file, _])| {
                    meet(n);
                    store.getxattr(*file, b"user.a").unwrap();
                });
            });
            scope.spawn(|| {
                files.iter().enumerate().for_each(|(n, [_, file])| {
                    meet(n);
                    store.removexattr(*file, b"user.a").unwrap();
                });
            });
        });
        let stats = store.stats();
        assert_eq!((stats.xattr_blocks, stats.xattr_users), (PAIRS as u64, PAIRS as u64));
        let broken = share.broken.lock();
        assert!(broken.is_empty(), "{} times: {:?}", broken.len(), broken.first());
    }

    #[test]
    fn sets_of_more_than_128_kib_are_not_shared() {
        let folder = Folder::new("long");
        let store = folder.open(&Watched::new());
        let make_with = |name: &str, values: usize| {
            let file = make(&store, name);
            for number in 0..values {
                let name = format!("user.{number}");
                store.setxattr(file, name.as_bytes(), &[7; 60_000], XattrMode::Set).unwrap();
            }
            file
        };
        let two = [make_with("a", 2), make_with("b", 2)];
        assert_eq!((store.stats().xattr_blocks, store.stats().xattr_users), (1, 2));
        let three = [make_with("c", 3), make_with("d", 3)];
        assert_eq!((store.stats().xattr_blocks, store.stats().xattr_users), (3, 4));
        // A set that becomes short enough to be shared must be shared.
        store.removexattr(three[0], b"user.2").unwrap();
        store.setxattr(three[1], b"user.3", b"x", XattrMode::Set).unwrap();
        store.removexattr(three[1], b"user.3").unwrap();
        store.removexattr(three[1], b"user.2").unwrap();
        assert_eq!((store.stats().xattr_blocks, store.stats().xattr_users), (1, 4));
        store.removexattr(two[0], b"user.0").unwrap();
        assert_eq!(store.getxattr(three[0], b"user.1"), Ok(vec![7; 60_000]));
        drop(store);
        assert_eq!(fsck(&folder.0).unwrap().findings, []);
    }

    #[test]
    fn control_broken_rules_are_noticed() {
        let share = Watched::new();
        share.note_users(1, 9, 1);
        share.leave(1);
        share.leave(2);
        share.left(1);
        assert_eq!(share.remove(1, 1), Removal::Done);
        assert_eq!(
            *share.broken.lock(),
            [
                "H.5: users of an unknown block",
                "H.4: leave twice",
                "H.4: left another block",
                "H.4: remove without leave"
            ]
        );
    }
}
