//! Guarantee G.6 of `lib.rs`: a `get` of a pair whose referenced bit is set must store nothing.
//!
//! The test makes the memory of a cache read-only, and calls `get` for existing and missing pairs.
//! Two controls must fail because they write: a `get` that sets a referenced bit, and a
//! `find_first` that counts a handle.
#![cfg(not(miri))]

use corewalk_mbcache::{Mbcache, MbcacheOptions};
use corewalk_testkit::seal::{Seal, prove};
use std::hint::black_box;

#[global_allocator]
static SEAL: Seal = Seal::new();

const PAIRS: u64 = 10_000;
const UNUSED: u64 = PAIRS;

/// The cache is leaked, because it must outlive the guard that makes its memory read-only.
fn build() -> &'static Mbcache {
    let options = MbcacheOptions::default();
    let cache: &'static Mbcache = Box::leak(Box::new(Mbcache::new(options).unwrap()));
    for value in 0..=PAIRS {
        cache.create(value / 2, value).unwrap();
    }
    get_all(cache);
    cache
}

fn get_all(cache: &Mbcache) {
    for value in 0..PAIRS {
        assert!(cache.get(value / 2, value), "the pair was created");
        assert!(black_box(!cache.get(value, value + PAIRS)));
    }
}

#[test]
fn get_of_used_pairs_stores_nothing_and_setting_the_bit_is_caught() {
    prove(
        &SEAL,
        "get_of_used_pairs_stores_nothing_and_setting_the_bit_is_caught",
        build,
        |cache| get_all(cache),
        |cache| {
            black_box(cache.get(UNUSED / 2, UNUSED));
        },
    );
}

#[test]
fn get_of_used_pairs_stores_nothing_and_a_handle_is_caught() {
    prove(
        &SEAL,
        "get_of_used_pairs_stores_nothing_and_a_handle_is_caught",
        build,
        |cache| get_all(cache),
        |cache| {
            black_box(cache.find_first(0));
        },
    );
}
