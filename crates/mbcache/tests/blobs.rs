//! Tests of a store that shares equal blobs through the cache, as a file system shares attribute
//! blocks.
//!
//! The store follows the protocol in the crate's documentation. A freed block is used again
//! immediately for another content, so the test notices if a thread wrongly finds a freed block.

use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_mbcache::{CreateError, Mbcache, MbcacheOptions};
use corewalk_testkit::{
    race::{self, Watchdog},
    rng::{ReportSeed, Rng, Seed},
};
use std::{
    sync::{Mutex, MutexGuard},
    time::Duration,
};

const LIMIT: Duration = Duration::from_secs(120);
const BLOCKS: usize = 4_000;
const KEYS: u64 = 7;

#[derive(Clone, Copy, Debug, Default)]
struct Block {
    content: u64,
    users: u32,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    Users,
    Nothing,
}

struct Store {
    cache: Mbcache,
    cap: u32,
    tell: Tell,
    blocks: Vec<Mutex<Block>>,
    free: Mutex<Vec<u64>>,
    looks: AtomicU64,
    hits: AtomicU64,
}

fn key(content: u64) -> u64 {
    content % KEYS
}

impl Store {
    fn new(cap: u32, tell: Tell) -> Store {
        let options = MbcacheOptions::default().with_users_max(cap);
        Store {
            cache: Mbcache::new(options).unwrap(),
            cap,
            tell,
            blocks: (0..BLOCKS).map(|_| Mutex::default()).collect(),
            free: Mutex::new((0..BLOCKS as u64).collect()),
            looks: AtomicU64::new(0),
            hits: AtomicU64::new(0),
        }
    }

    fn block(&self, number: u64) -> MutexGuard<'_, Block> {
        self.blocks[number as usize].lock().unwrap()
    }

    fn in_use(&self) -> usize {
        BLOCKS - self.free.lock().unwrap().len()
    }

    fn looks_and_hits(&self) -> (u64, u64) {
        // ORDERING: Relaxed. The join of the other threads orders the loads.
        (self.looks.load(Ordering::Relaxed), self.hits.load(Ordering::Relaxed))
    }

    fn share(&self, content: u64) -> Option<u64> {
        let mut found = self.cache.find_first(key(content));
        while let Some(entry) = found {
            let mut block = self.block(entry.value());
            assert!(block.users > 0, "T34: a freed block was handed out");
            assert_eq!(key(block.content), entry.key(), "T34: a block was handed out and reused");
            // ORDERING: Relaxed. A statistic.
            self.looks.fetch_add(1, Ordering::Relaxed);
            if block.content == content && block.users < self.cap {
                block.users += 1;
                if self.tell == Tell::Users {
                    entry.note_users(block.users);
                }
                entry.touch();
                // ORDERING: Relaxed. A statistic.
                self.hits.fetch_add(1, Ordering::Relaxed);
                return Some(entry.value());
            }
            drop(block);
            found = self.cache.find_next(&entry);
        }
        None
    }

    fn put(&self, content: u64) -> u64 {
        self.share(content).unwrap_or_else(|| {
            let number = self.free.lock().unwrap().pop().expect("there are enough blocks");
            *self.block(number) = Block { content, users: 1 };
            self.enter(content, number);
            number
        })
    }

    fn enter(&self, content: u64, number: u64) {
        match self.cache.create(key(content), number) {
            Ok(()) | Err(CreateError::Full) => {}
            Err(error) => panic!("{error}"),
        }
    }

    fn release(&self, number: u64) {
        loop {
            let mut block = self.block(number);
            if block.users > 1 {
                block.users -= 1;
                if self.tell == Tell::Users {
                    self.cache.note_users(key(block.content), number, block.users);
                }
                return;
            }
            match self.cache.delete_or_get(key(block.content), number) {
                None => return self.free_block(block, number),
                Some(busy) => {
                    drop(block);
                    busy.wait();
                }
            }
        }
    }

    fn free_block(&self, mut block: MutexGuard<'_, Block>, number: u64) {
        *block = Block { content: u64::MAX, users: 0 };
        drop(block);
        self.free.lock().unwrap().push(number);
    }

    /// Changes the content of a block that has one user. Returns the number of the block that has
    /// the new content, which may be another block.
    fn change_in_place(&self, number: u64, content: u64) -> u64 {
        let mut block = self.block(number);
        assert_eq!(block.users, 1);
        let old = key(block.content);
        assert!(self.cache.delete_or_get(old, number).is_none(), "there is no other thread");
        block.content = content;
        drop(block);
        match self.share(content) {
            Some(other) => {
                self.free_block(self.block(number), number);
                other
            }
            None => {
                self.enter(content, number);
                number
            }
        }
    }
}

/// A block must not be freed while another thread finds it and becomes its user. Trap T34 in
/// `traps.md`.
#[test]
fn blocks_under_put_and_release_are_never_freed_in_use() {
    const ROUNDS: u64 = 20_000;
    let _watchdog = Watchdog::start("blocks under put and release", LIMIT);
    let report = ReportSeed::new(Seed::choose());
    let store = Store::new(8, Tell::Users);
    race::run(3, report.seed(), |mut racer| {
        let mut mine = Vec::new();
        for _ in 0..ROUNDS {
            if mine.len() < 4 && racer.rng.chance(1, 2) {
                mine.push(store.put(racer.rng.below(12)));
            } else if !mine.is_empty() {
                let number = mine.swap_remove(racer.rng.index(mine.len()));
                store.release(number);
            }
        }
        mine.into_iter().for_each(|number| store.release(number));
    });
    assert_eq!((store.in_use(), store.cache.stats().entries), (0, 0));
    let (looks, hits) = store.looks_and_hits();
    assert!(hits > ROUNDS / 10 && looks > hits, "{looks} {hits}");
    println!("{:?}", store.cache.stats());
}

/// Control test: the store ignores the result of `delete_or_get`, and frees a block that is in use.
#[test]
#[should_panic(expected = "T34: a freed block is in use")]
fn control_block_that_is_freed_while_it_is_found_is_caught() {
    let store = Store::new(8, Tell::Users);
    let number = store.put(1);
    let entry = store.cache.find_first(key(1)).unwrap();
    assert_eq!(entry.value(), number);
    let block = store.block(number);
    let _unheeded = store.cache.delete_or_get(key(1), number);
    store.free_block(block, number);
    assert!(store.block(entry.value()).users > 0, "T34: a freed block is in use");
}

/// If another block already has the new content of a block, a search must find that other block.
/// Trap T38 in `traps.md`.
#[test]
fn block_changed_in_place_is_shared_with_its_equal() {
    let store = Store::new(8, Tell::Users);
    let (one, other) = (store.put(1), store.put(2));
    assert_eq!(store.change_in_place(other, 1), one);
    assert_eq!((store.in_use(), store.cache.stats().entries), (1, 1));
    // No other block has the new content of the third one. A search for it must not find the third
    // block itself.
    let third = store.put(3);
    assert_eq!(store.change_in_place(third, 4), third);
    assert_eq!(store.put(4), third);
    assert_eq!(store.put(3), store.put(3));
}

/// Control test: a changed block enters the cache before the search for an equal one. So the search
/// wrongly finds the changed block itself.
#[test]
fn control_block_that_is_entered_first_finds_itself() {
    let store = Store::new(8, Tell::Users);
    let (_one, other) = (store.put(1), store.put(2));
    assert!(store.cache.delete_or_get(key(2), other).is_none());
    store.block(other).content = 1;
    store.enter(1, other);
    assert_eq!(store.share(1), Some(other), "the control found its equal");
    assert_eq!(store.in_use(), 2);
}

fn many_files(tell: Tell) -> Store {
    const FILES: usize = 20_000;
    let store = Store::new(1024, tell);
    let mut rng = Rng::new(Seed(39));
    let mut files: Vec<u64> = (0..FILES).map(|file| store.put(file as u64 % 5)).collect();
    for _ in 0..2 * FILES {
        let file = rng.index(FILES);
        store.release(files[file]);
        files[file] = store.put(rng.below(5));
    }
    // 5 contents have 4000 files each, and a block has at most 1024 users. So 20 blocks are needed,
    // and random changes may take a few more.
    assert!((20..=26).contains(&store.in_use()), "{} blocks", store.in_use());
    store
}

/// A search examines no full block, however many there are. Trap T39 in `traps.md`.
#[test]
fn finds_among_full_blocks_meet_none_of_them() {
    let (looks, hits) = many_files(Tell::Users).looks_and_hits();
    assert!(hits > 59_000, "{hits}");
    assert_eq!(looks, hits, "T39: a full block was looked at");
}

#[test]
fn control_finds_without_the_flag_meet_full_blocks() {
    let (looks, hits) = many_files(Tell::Nothing).looks_and_hits();
    assert!(looks > hits + hits / 4, "{looks} looks for {hits} hits");
}

/// Equal contents take one block for up to 1024 files.
#[test]
fn files_of_few_contents_take_a_block_per_content() {
    let store = Store::new(1024, Tell::Users);
    for file in 0..4_000 {
        store.put(file % 10);
    }
    assert_eq!((store.in_use(), store.cache.stats().entries), (10, 10));
    for file in 0..6_240 {
        store.put(file % 10);
    }
    assert_eq!(store.in_use(), 10, "1024 users each");
    store.put(0);
    assert_eq!(store.in_use(), 11);
}
