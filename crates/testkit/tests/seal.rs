//! Tests of the seal, the global allocator of this test binary. It must catch each store to sealed
//! memory.
#![cfg(not(miri))]

use corewalk_testkit::seal::{Seal, prove};
use std::{
    collections::HashMap,
    hint::black_box,
    sync::{Mutex, OnceLock, RwLock},
};

#[global_allocator]
static SEAL: Seal = Seal::new();

fn build_map() -> HashMap<u64, String> {
    (0..10_000).map(|number| (number, format!("name {number}"))).collect()
}

#[test]
fn lookup_in_a_map_stores_nothing_and_a_store_is_caught() {
    prove(
        &SEAL,
        "lookup_in_a_map_stores_nothing_and_a_store_is_caught",
        || build_map().into_iter().map(|(key, name)| (key, Mutex::new(name))).collect(),
        |map: &HashMap<u64, Mutex<String>>| {
            for key in 0..20_000 {
                black_box(map.get(&key));
            }
            // The operation may allocate: new memory is not sealed.
            black_box(map.keys().collect::<Vec<_>>().len());
        },
        |map| *map[&5].lock().expect("not poisoned") = String::new(),
    );
}

#[test]
fn read_lock_of_a_rwlock_is_a_shared_store() {
    // A read lock in sealed memory must be caught, because taking it is a store.
    prove(
        &SEAL,
        "read_lock_of_a_rwlock_is_a_shared_store",
        || RwLock::new(build_map()),
        |lock| assert!(lock.is_poisoned() == black_box(false)),
        |lock| {
            black_box(lock.read().expect("not poisoned").len());
        },
    );
}

#[test]
fn store_to_a_static_is_caught() {
    static ONCE: OnceLock<u64> = OnceLock::new();
    prove(
        &SEAL,
        "store_to_a_static_is_caught",
        || build_map().len(),
        |_| assert!(ONCE.get().is_none()),
        |_| {
            ONCE.get_or_init(|| 1);
        },
    );
}

#[test]
fn store_to_memory_mapped_in_the_phase_is_caught() {
    // `Page` needs a larger alignment than the region of the allocator has. A store to its own
    // mapping must be caught all the same.
    #[repr(align(8192))]
    struct Page(Mutex<[u8; 1 << 20]>);
    prove(
        &SEAL,
        "store_to_memory_mapped_in_the_phase_is_caught",
        || Box::new(Page(Mutex::new([0; 1 << 20]))),
        |page| assert!(!page.0.is_poisoned()),
        |page| page.0.lock().expect("not poisoned")[1 << 19] = 1,
    );
}
