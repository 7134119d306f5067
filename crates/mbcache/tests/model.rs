//! Runs random calls of the cache. Their results must be those of a model, a map of pairs.
//!
//! The model knows the pairs, which of them a search may find, their referenced bits and their
//! handles. The cache may drop pairs only in `scan`, and only pairs without a handle and without a
//! referenced bit.

use corewalk_mbcache::{CreateError, Entry, Mbcache, MbcacheOptions};
use proptest::prelude::*;
use std::collections::BTreeMap;

#[derive(Clone, Debug)]
enum Call {
    Create(u64, u64),
    Get(u64, u64),
    Find(u64, usize),
    Put(usize),
    Touch(usize),
    Note(u64, u64, u32),
    Delete(u64, u64),
    Scan(u64),
}

#[derive(Clone, Copy, Debug)]
struct Pair {
    is_reusable: bool,
    is_used: bool,
    handles: u32,
}

struct Held<'c> {
    entry: Entry<'c>,
    pair: (u64, u64),
}

const USERS_MAX: u32 = 3;

struct Run<'c> {
    cache: &'c Mbcache,
    model: BTreeMap<(u64, u64), Pair>,
    held: Vec<Held<'c>>,
}

impl Run<'_> {
    fn findable(&self, key: u64) -> Vec<u64> {
        let of_key = self.model.range((key, 0)..=(key, u64::MAX));
        of_key.filter(|(_, pair)| pair.is_reusable).map(|(at, _)| at.1).collect()
    }

    fn call(&mut self, call: &Call) {
        match *call {
            Call::Create(key, value) => self.create(key, value),
            Call::Get(key, value) => {
                let known = self.model.get_mut(&(key, value));
                assert_eq!(self.cache.get(key, value), known.is_some());
                if let Some(pair) = known {
                    pair.is_used = true;
                }
            }
            Call::Find(key, number) => self.find(key, number),
            Call::Put(number) => {
                if number < self.held.len() {
                    let held = self.held.swap_remove(number);
                    self.model.get_mut(&held.pair).unwrap().handles -= 1;
                    self.drop_if_full(held.pair);
                }
            }
            Call::Touch(number) => {
                if let Some(held) = self.held.get(number) {
                    held.entry.touch();
                    self.model.get_mut(&held.pair).unwrap().is_used = true;
                }
            }
            Call::Note(key, value, users) => {
                let is_reusable = users < USERS_MAX;
                assert_eq!(self.cache.note_users(key, value, users), is_reusable);
                match self.model.get_mut(&(key, value)) {
                    Some(pair) => pair.is_reusable = is_reusable,
                    None if is_reusable => self.insert(key, value),
                    None => {}
                }
                self.drop_if_full((key, value));
            }
            Call::Delete(key, value) => {
                let handles = self.model.get(&(key, value)).map_or(0, |pair| pair.handles);
                assert_eq!(self.cache.delete_or_get(key, value).is_some(), handles > 0);
                if handles == 0 {
                    self.model.remove(&(key, value));
                }
            }
            Call::Scan(entries) => self.scan(entries),
        }
        assert_eq!(self.cache.stats().entries, self.model.len() as u64);
    }

    fn drop_if_full(&mut self, pair: (u64, u64)) {
        if self.model.get(&pair).is_some_and(|pair| !pair.is_reusable && pair.handles == 0) {
            self.model.remove(&pair);
        }
    }

    fn create(&mut self, key: u64, value: u64) {
        let created = self.cache.create(key, value);
        if self.model.contains_key(&(key, value)) {
            return assert_eq!(created, Err(CreateError::Exists));
        }
        assert_eq!(created, Ok(()));
        self.insert(key, value);
    }

    fn insert(&mut self, key: u64, value: u64) {
        let pair = Pair { is_reusable: true, is_used: false, handles: 0 };
        self.model.insert((key, value), pair);
    }

    fn find(&mut self, key: u64, number: usize) {
        let expected = self.findable(key);
        let mut met = Vec::new();
        let mut found = self.cache.find_first(key);
        while let Some(entry) = found {
            let pair = (entry.key(), entry.value());
            found = self.cache.find_next(&entry);
            if met.len() == number {
                self.model.get_mut(&pair).unwrap().handles += 1;
                self.held.push(Held { entry, pair });
            }
            met.push(pair.1);
        }
        met.sort_unstable();
        assert_eq!(met, expected);
    }

    /// The model does not know where reclaim continues. So it predicts only a scan of all entries.
    fn scan(&mut self, entries: u64) {
        let dropped = self.cache.scan(entries);
        assert!(dropped <= entries);
        let mut gone = 0;
        self.model.retain(|&(key, value), pair| {
            let is_there = self.cache.get(key, value);
            assert!(is_there || (pair.handles == 0 && !pair.is_used), "{key} {value} {pair:?}");
            assert!(!is_there || entries < 1_000 || pair.handles > 0 || pair.is_used);
            pair.is_used = true;
            gone += u64::from(!is_there);
            is_there
        });
        assert_eq!(gone, dropped);
    }
}

fn call() -> impl Strategy<Value = Call> {
    let (key, value) = (0..3_u64, 0..6_u64);
    prop_oneof![
        4 => (key.clone(), value.clone()).prop_map(|(k, v)| Call::Create(k, v)),
        2 => (key.clone(), value.clone()).prop_map(|(k, v)| Call::Get(k, v)),
        2 => (key.clone(), 0..4_usize).prop_map(|(k, n)| Call::Find(k, n)),
        2 => (0..3_usize).prop_map(Call::Put),
        1 => (0..3_usize).prop_map(Call::Touch),
        2 => (key.clone(), value.clone(), 0..5_u32).prop_map(|(k, v, u)| Call::Note(k, v, u)),
        3 => (key, value).prop_map(|(k, v)| Call::Delete(k, v)),
        1 => prop_oneof![0..20_u64, Just(u64::MAX)].prop_map(Call::Scan),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn cache_answers_as_the_multimap(calls in prop::collection::vec(call(), 1..120), is_small in prop::bool::weighted(0.25)) {
        let lines = if is_small { 18 } else { 1_500 };
        let options = MbcacheOptions::default()
            .with_budget_bytes(lines * 64)
            .with_users_max(USERS_MAX);
        let cache = Mbcache::new(options).unwrap();
        let mut run = Run { cache: &cache, model: BTreeMap::new(), held: Vec::new() };
        for call in &calls {
            run.call(call);
        }
    }
}
