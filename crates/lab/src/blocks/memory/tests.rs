//! Tests of the store in memory: it must keep the last value of each attribute, share blocks, and
//! detect an index that gives wrong answers.

use corewalk_base::primitives::thread;
use corewalk_store::{MbcacheIndex, ShareIndex};
use fastrand::Rng;

use super::*;
use crate::blocks::designs;

pub(in crate::blocks) const WORKERS: usize = 3;
pub(in crate::blocks) const FILES: usize = 40;

/// A mistake of an index.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(in crate::blocks) enum Fault {
    /// The index uses one key for all contents. A store must accept that.
    OneKey,
    NeverRemoves,
    NeverInserts,
}

/// The index of a store with a planted bug.
pub(in crate::blocks) struct Faulty(MbcacheIndex, Fault);

impl Faulty {
    pub(in crate::blocks) fn new(fault: Fault) -> Arc<Faulty> {
        Arc::new(Faulty(MbcacheIndex::new(Default::default()).unwrap(), fault))
    }

    fn key(&self, key: u64) -> u64 {
        if self.1 == Fault::OneKey { 1 } else { key }
    }
}

impl ShareIndex for Faulty {
    fn find(&self, key: u64, take: &mut dyn FnMut(u64) -> bool) -> Option<u64> {
        self.0.find(self.key(key), take)
    }
    fn insert(&self, key: u64, block: u64, users: u32) {
        if self.1 != Fault::NeverInserts {
            self.0.insert(self.key(key), block, users);
        }
    }
    fn note_users(&self, key: u64, block: u64, users: u32) {
        self.0.note_users(self.key(key), block, users);
    }
    fn remove(&self, key: u64, block: u64) -> Removal {
        match self.1 {
            Fault::NeverRemoves => Removal::Done,
            _ => self.0.remove(self.key(key), block),
        }
    }
    fn wait(&self, key: u64, block: u64) {
        self.0.wait(self.key(key), block);
    }
    fn users_max(&self) -> u32 {
        self.0.users_max()
    }
    fn stats(&self) -> corewalk_mbcache::Stats {
        self.0.stats()
    }
}

/// Returns a store over each index.
fn all(workers: usize, files: usize) -> Vec<MemoryStore> {
    let designs = designs(2 * workers * (files + 1)).unwrap().into_iter();
    designs.map(|design| MemoryStore::new(design, (workers, files))).collect()
}

fn over(fault: Fault) -> MemoryStore {
    MemoryStore::new(("faulty", Faulty::new(fault)), (WORKERS, FILES))
}

/// Returns a store over the index of this project.
fn ours(workers: usize, files: usize) -> MemoryStore {
    all(workers, files).remove(3)
}

fn value(number: u64) -> Vec<u8> {
    [&number.to_le_bytes()[..], &[7; 300]].concat()
}

/// Several threads set random attributes of their own files. Then `storm` checks all attributes.
pub(in crate::blocks) fn storm(
    store: &dyn AttrStore,
    values: u64,
    sets: usize,
) -> anyhow::Result<u64> {
    let mut last = vec![vec![None; FILES]; WORKERS];
    thread::scope(|scope| {
        for (worker, last) in last.iter_mut().enumerate() {
            scope.spawn(move || {
                let mut rng = Rng::with_seed(worker as u64 + 1);
                for _ in 0..sets {
                    let (file, number) = (rng.u64(..FILES as u64) as usize, rng.u64(..values));
                    store.set(worker, file, &value(number));
                    last[file] = Some(number);
                }
            });
        }
    });
    for (worker, last) in last.iter().enumerate() {
        for (file, number) in last.iter().enumerate() {
            let has = number.is_some_and(|number| store.has(worker, file, &value(number)));
            ensure!(has, "{}: a file has something else", store.variant());
        }
    }
    store.audit()
}

#[test]
fn storm_leaves_each_file_what_was_set_last_and_no_block_too_many() {
    for store in all(WORKERS, FILES) {
        let blocks = storm(&store, 5, 4_000).unwrap();
        let is_off = store.variant() == "off";
        // Several workers that set the same new content at the same time may each make a block for
        // it.
        let most = if is_off { (WORKERS * FILES) as u64 } else { 5 + WORKERS as u64 };
        assert!(blocks >= 5 && blocks <= most, "{}: {blocks}", store.variant());
        assert_eq!(is_off, blocks == most, "{}", store.variant());
        storm(&store, 1_000, 4_000).unwrap();
        (0..WORKERS).for_each(|worker| store.clear(worker));
        assert_eq!(store.audit().unwrap(), 0, "{}", store.variant());
    }
}

#[test]
fn block_has_as_many_users_as_it_may_and_the_next_one_begins_another() {
    let files = 2 * USERS_MAX as usize + 1;
    for store in all(1, files) {
        if store.variant() == "off" {
            continue;
        }
        (0..files).for_each(|file| store.set(0, file, b"the same"));
        assert_eq!(store.audit().unwrap(), 3, "{}", store.variant());
        // One file leaves a full block, so this block can get one user again.
        store.set(0, 0, b"another");
        store.set(0, files - 1, b"another");
        assert_eq!(store.audit().unwrap(), 3, "{}", store.variant());
        store.set(0, 0, b"the same");
        assert_eq!(store.audit().unwrap(), 3, "{}", store.variant());
    }
}

#[test]
fn contents_with_one_hash_are_told_apart() {
    let store = over(Fault::OneKey);
    assert!(storm(&store, 5, 2_000).unwrap() >= 5);
}

#[test]
fn control_index_that_forgets_to_delete_is_found_out() {
    let store = over(Fault::NeverRemoves);
    let error = storm(&store, 1_000, 2_000).unwrap_err().to_string();
    assert!(error.contains("entries for"), "{error}");
}

#[test]
fn control_index_that_shares_nothing_is_found_out() {
    let store = over(Fault::NeverInserts);
    let error = storm(&store, 5, 2_000).unwrap_err().to_string();
    assert!(error.contains("0 entries for 120 blocks"), "{error}");
}

#[test]
fn control_block_with_a_wrong_count_or_content_is_found_out() {
    let store = ours(WORKERS, FILES);
    storm(&store, 5, 2_000).unwrap();
    let number = store.files[0][0].lock().unwrap();
    store.block(number).users += 1;
    let error = store.audit().unwrap_err().to_string();
    assert!(error.contains("users and has"), "{error}");
    store.block(number).users -= 1;
    store.audit().unwrap();
    let content = store.block(number).content.clone();
    let len = store.block(number).len as usize;
    assert!(store.has(0, 0, &content[..len]));
    store.block(number).content[20] ^= 1;
    assert!(!store.has(0, 0, &content[..len]));
}

#[test]
fn contents_that_differ_between_the_samples_are_told_apart() {
    let store = ours(1, 10);
    let value = |at: usize| {
        let mut value = vec![7; 3_900];
        value[at] ^= 1;
        value
    };
    // The first two contents differ only in bytes that are not hashed, so they have the same key.
    // The third differs in the first byte, which is hashed.
    let values = [value(100), value(200), value(0)];
    let keys = values.each_ref().map(|value| key_of(&store.hasher, value));
    assert!(keys[0] == keys[1] && keys[0] != keys[2], "{keys:?}");
    for file in 0..9 {
        store.set(0, file, &values[file % 3]);
    }
    assert_eq!(store.audit().unwrap(), 3);
    assert!((0..9).all(|file| store.has(0, file, &values[file % 3])));
}
