//! Tests of the results of calls by one thread, and of the size of the cache.

use super::*;
use crate::index::Line;
use crate::slots::Words;

fn cache(entries: u64) -> Mbcache {
    let budget_bytes = (entries * SLOTS_PER_ENTRY).div_ceil(u64::from(SLOTS)) * LINE_BYTES;
    let options = MbcacheOptions { budget_bytes, ..MbcacheOptions::default() };
    Mbcache::with_secret(options, Secret::new(1)).unwrap()
}

fn found(cache: &Mbcache, key: u64) -> Vec<u64> {
    let mut values = Vec::new();
    let mut found = cache.find_first(key);
    while let Some(entry) = found {
        assert_eq!(entry.key(), key);
        values.push(entry.value());
        found = cache.find_next(&entry);
    }
    values
}

fn values(cache: &Mbcache, key: u64) -> Vec<u64> {
    let mut values = found(cache, key);
    values.sort_unstable();
    values
}

fn looked_at(cache: &Mbcache, key: u64) -> usize {
    let (index, home, mut slots) = (&cache.index, cache.index.home(key), 0);
    let found = index.walk(home, index.reach(home), 0, |_| {
        slots += 1;
        None::<()>
    });
    assert_eq!(found, None);
    slots
}

fn handles(cache: &Mbcache, key: u64, value: u64) -> u64 {
    cache.delete_or_get(key, value).map_or(0, |busy| busy.state.count())
}

#[test]
fn entry_takes_four_words_with_its_share_of_a_line() {
    assert_eq!(size_of::<Words>(), 3 * size_of::<u64>());
    assert_eq!(size_of::<Line>(), SLOTS as usize * 4 * size_of::<u64>());
}

#[test]
fn budget_counts_twelve_words_for_an_entry() {
    for entries in [2, 1_000, 100_000] {
        assert_eq!(cache(entries).index.bytes(), entries * 12 * size_of::<u64>() as u64);
        assert_eq!(u64::from(cache(entries).entries_max()), entries);
    }
}

#[test]
fn handles_may_go_to_other_threads() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<Mbcache>();
    assert_send_and_sync::<Entry<'_>>();
    assert_send_and_sync::<Busy<'_>>();
}

#[test]
fn handles_of_one_entry_are_bounded() {
    const MOST: u64 = (1 << 18) - 1;
    let cache = cache(10);
    cache.create(1, 5).unwrap();
    let mut held: Vec<_> = (0..MOST).map(|_| cache.find_first(1).unwrap()).collect();
    assert!(cache.find_first(1).is_none());
    assert_eq!(handles(&cache, 1, 5), MOST);
    drop(held.pop());
    assert!(cache.find_first(1).is_some());
    drop(held);
    assert!(cache.delete_or_get(1, 5).is_none());
}

#[test]
fn cache_within_its_budget_has_room_for_what_it_says() {
    for budget_bytes in [700, 4_096, 1 << 20, 5_000_000, 16 << 20] {
        for values in [1, 2, 10] {
            let options = MbcacheOptions { budget_bytes, ..MbcacheOptions::default() };
            let cache = Mbcache::with_secret(options, Secret::new(3)).unwrap();
            let entries = u64::from(cache.entries_max());
            for value in 0..entries {
                cache.create(value / values, value).unwrap();
            }
            let stats = cache.stats();
            assert_eq!((stats.entries, stats.reclaimed), (entries, 0), "G.4: one was dropped");
            let bytes = cache.index.bytes();
            assert!(bytes <= budget_bytes, "{bytes} of {budget_bytes}");
            assert!(entries * 96 + 96 > bytes, "{entries} in {budget_bytes}");
        }
    }
}

#[test]
fn budget_without_room_for_an_entry_is_refused() {
    for budget_bytes in [0, 100] {
        let options = MbcacheOptions { budget_bytes, ..MbcacheOptions::default() };
        let error = Mbcache::new(options).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn full_cache_drops_what_was_not_used_and_keeps_as_many_as_it_says() {
    let cache = cache(1_000);
    for value in 0..20_000 {
        cache.create(value, value).unwrap();
        assert!(cache.get(7, 7) || value < 7, "T37: a pair in use was dropped");
        if value % 50 == 0 {
            let stats = cache.stats();
            assert!(stats.entries >= u64::from(cache.entries_max()) || stats.reclaimed == 0);
        }
    }
    let most = cache.index.bytes() / LINE_BYTES * u64::from(SLOTS);
    let kept = cache.stats().entries;
    assert!((most / 2..most * 9 / 10).contains(&kept), "{kept} of {most}");
}

/// The cache must use three quarters of all slots, even if all values are even or all are odd. Even
/// and odd values prefer different slots of a line.
#[test]
fn full_cache_uses_three_quarters_of_its_slots_whatever_the_values_are() {
    for (factor, first) in [(1, 0), (2, 0), (2, 1)] {
        let cache = cache(10_000);
        (0..60_000).for_each(|n| cache.create(n, factor * n + first).unwrap());
        let slots = cache.index.bytes() / LINE_BYTES * u64::from(SLOTS);
        let percent = cache.stats().entries * 100 / slots;
        assert!((71..79).contains(&percent), "{percent} % with values {factor} n + {first}");
    }
}

#[test]
fn full_cache_whose_entries_are_all_held_takes_no_more() {
    let cache = cache(60);
    let mut held = Vec::new();
    let full = loop {
        let value = held.len() as u64;
        if let Err(error) = cache.create(value, value) {
            break error;
        }
        held.extend(cache.find_first(value));
    };
    assert_eq!((full, held.len()), (CreateError::Full, 180), "each slot has an entry");
    let before = cache.stats().reclaimed;
    drop(held.pop());
    cache.create(1_000, 1_000).unwrap();
    assert_eq!(cache.stats().reclaimed, before + 1);
    assert_eq!(cache.create(1_001, 1_001), Ok(()), "the newest is not held");
}

/// Only 128 lines can have the entries of one key. If these are full of used entries, `create` must
/// still drop one.
#[test]
fn key_with_too_many_values_loses_one_for_each_new_one() {
    let cache = cache(10_000);
    for value in 0..400 {
        cache.create(1, value).unwrap();
        assert!(cache.get(1, value));
    }
    assert_eq!((cache.stats().entries, cache.stats().reclaimed), (256, 144));
}

/// Keys with one home line share the 128 lines that begin there. A search must read no line beyond
/// them.
#[test]
fn keys_of_one_home_are_kept_to_one_window() {
    let cache = cache(1_000);
    let index = &cache.index;
    let home = index.home(1);
    let of_home = |home| (1..).filter(move |&key| index.home(key) == home);
    let keys: Vec<u64> = of_home(home).take(400).collect();
    keys.iter().for_each(|&key| cache.create(key, key).unwrap());
    assert_eq!((cache.stats().entries, cache.stats().reclaimed), (256, 144));
    assert_eq!(looked_at(&cache, 1), 256);
    let neighbour = of_home((home + 5) % 1_500).next().unwrap();
    cache.create(neighbour, 7).unwrap();
    assert_eq!(values(&cache, neighbour), [7]);
    let kept = keys.iter().filter(|&&key| values(&cache, key) == [key]).count() as u64;
    assert_eq!(kept + 1, cache.stats().entries, "each entry that was not dropped is found");
}

#[test]
fn pair_is_there_once_and_keeps_its_flag() {
    let cache = cache(10);
    cache.create(1, 5).unwrap();
    let held = cache.find_first(1).unwrap();
    held.note_users(cache.users_max());
    assert_eq!(cache.create(1, 5), Err(CreateError::Exists));
    assert!(cache.find_first(1).is_none());
    assert!(cache.get(1, 5) && cache.stats().entries == 1);
    drop(held);
    assert_eq!(cache.stats().entries, 0);
}

#[test]
fn values_of_a_key_come_without_those_of_others() {
    let cache = cache(12);
    let home = cache.index.home(1);
    let mut of_one_home = (1..).filter(|&key| cache.index.home(key) == home);
    let [one, two, three, four] = std::array::from_fn(|_| of_one_home.next().unwrap());
    for key in [one, two, three] {
        cache.create(key, 10 * key).unwrap();
        cache.create(key, 10 * key + 1).unwrap();
    }
    assert_eq!(values(&cache, two), [10 * two, 10 * two + 1]);
    assert_eq!(values(&cache, four), []);
    assert!(cache.delete_or_get(two, 10 * two + 1).is_none());
    assert_eq!(values(&cache, two), [10 * two]);
    cache.create(two, 5).unwrap();
    assert_eq!(values(&cache, two), [5, 10 * two]);
    for key in [one, three] {
        assert_eq!(values(&cache, key), [10 * key, 10 * key + 1]);
    }
}

/// Invariant I.1 of `index.rs`: the *reach* of a home line is the number of further lines that
/// searches read. It must grow with entries in later lines, and shrink after their deletion.
#[test]
fn home_reaches_as_far_as_its_entries_stand() {
    let cache = cache(30);
    let looked_at = || looked_at(&cache, 1);
    assert_eq!(looked_at(), 2);
    (0..20).for_each(|value| cache.create(1, value).unwrap());
    assert_eq!(looked_at(), 20);
    (0..18).for_each(|value| assert!(cache.delete_or_get(1, value).is_none()));
    assert_eq!((values(&cache, 1), looked_at()), (vec![18, 19], 20));
    (18..20).for_each(|value| assert!(cache.delete_or_get(1, value).is_none()));
    for _ in 0..9 {
        cache.create(1, 0).unwrap();
        assert!(cache.delete_or_get(1, 0).is_none());
    }
    assert_eq!(looked_at(), 2);
}

/// A loop with `find_next` must end even if it deletes entries. Trap T40 in `traps.md`.
#[test]
fn loop_that_deletes_what_it_meets_ends() {
    let cache = cache(100);
    (0..20).for_each(|value| cache.create(1, value).unwrap());
    let mut found = cache.find_first(1);
    let mut met = 0;
    while let Some(entry) = found {
        met += 1;
        let value = entry.value();
        assert!(cache.delete_or_get(1, value).is_some(), "the entry is held");
        found = cache.find_next(&entry);
        drop(entry);
        assert!(cache.delete_or_get(1, value).is_none());
        cache.create(1, value).unwrap();
        assert!(met <= 20, "T40: the loop goes round");
    }
    assert_eq!(met, 20);
}

/// Control test: a loop that searches from the start after each deletion does not end.
#[test]
fn control_loop_that_begins_anew_does_not_end() {
    let cache = cache(100);
    (0..20).for_each(|value| cache.create(1, value).unwrap());
    let mut met = 0;
    while let Some(entry) = cache.find_first(1) {
        met += 1;
        let value = entry.value();
        drop(entry);
        assert!(cache.delete_or_get(1, value).is_none());
        cache.create(1, value).unwrap();
        if met > 20 {
            return;
        }
    }
    panic!("the control ended after {met}");
}

/// Trap T37: a used entry must survive one scan.
#[test]
fn entries_that_were_used_survive_a_scan() {
    let cache = cache(1_000);
    for value in 0..100 {
        cache.create(value, value).unwrap();
        if value % 4 == 0 {
            assert!(cache.get(value, value));
        }
        if value % 4 == 1 {
            cache.find_first(value).unwrap().touch();
        }
    }
    assert_eq!(cache.scan(u64::MAX), 50, "T37: the referenced bit does not count");
    let left: Vec<u64> = (0..100).filter(|&value| cache.find_first(value).is_some()).collect();
    assert_eq!(left, (0..100).filter(|value| value % 4 < 2).collect::<Vec<_>>());
    assert_eq!(cache.scan(u64::MAX), 50);
}

/// Control test: `find_first` does not mark an entry as used, so a scan drops it.
#[test]
fn control_entries_that_were_only_looked_at_are_dropped() {
    let cache = cache(1_000);
    for value in 0..100 {
        cache.create(value, value).unwrap();
        assert!(cache.find_first(value).is_some());
    }
    assert_eq!(cache.scan(u64::MAX), 100);
}

#[test]
fn scan_looks_at_no_more_than_it_is_told() {
    let cache = cache(1_000);
    (0..100).for_each(|value| cache.create(value, value).unwrap());
    assert_eq!([cache.scan(0), cache.scan(30), cache.stats().entries], [0, 30, 70]);
    assert_eq!(cache.stats().reclaimed, 30);
}

#[test]
fn scans_look_at_each_entry_once_a_turn() {
    let cache = cache(100);
    for value in 0..40 {
        cache.create(value, value).unwrap();
        assert!(cache.get(value, value));
    }
    assert_eq!(cache.scan(20), 0);
    assert_eq!(cache.scan(20), 0, "one entry was looked at twice, and another not at all");
    assert_eq!(cache.scan(40), 40);
}

#[test]
fn held_entry_is_busy_and_stays_through_a_scan() {
    let cache = cache(100);
    cache.create(1, 5).unwrap();
    let (one, two) = (cache.find_first(1).unwrap(), cache.find_first(1).unwrap());
    assert_eq!(cache.scan(u64::MAX) + cache.scan(u64::MAX), 0);
    assert_eq!(handles(&cache, 1, 5), 2);
    drop(one);
    assert_eq!(handles(&cache, 1, 5), 1);
    drop(two);
    assert!(cache.delete_or_get(1, 5).is_none() && cache.delete_or_get(1, 5).is_none());
}

#[test]
fn value_at_its_cap_is_not_found_until_it_has_fewer_users() {
    let options = MbcacheOptions { users_max: 3, ..MbcacheOptions::default() };
    let cache = Mbcache::new(options).unwrap();
    cache.create(1, 5).unwrap();
    cache.find_first(1).unwrap().note_users(2);
    cache.find_first(1).unwrap().note_users(3);
    assert!(cache.find_first(1).is_none() && cache.stats().entries == 0);
    assert!(cache.note_users(1, 5, 2), "the pair is entered again");
    let held = cache.find_first(1).unwrap();
    assert!(!cache.note_users(1, 5, 3) && found(&cache, 1).is_empty());
    assert!(cache.note_users(1, 5, 2), "the pair was there all the time");
    drop(held);
    assert_eq!(values(&cache, 1), [5]);
    assert!(!cache.note_users(1, 5, 3), "there is no handle, so the entry goes at once");
    assert_eq!(cache.stats().entries, 0);
}

fn slots_looked_at<'c>(
    cache: &'c Mbcache,
    count: u64,
    mut each: impl FnMut(crate::Entry<'c>),
) -> usize {
    for value in 0..count {
        cache.create(1, value).unwrap();
        let entry = cache.find_first(1).unwrap();
        assert_eq!(entry.value(), value);
        entry.note_users(cache.users_max());
        each(entry);
    }
    looked_at(cache, 1)
}

/// However many full values (with the maximum number of users) a key has, a search must examine one
/// line. Trap T39 in `traps.md`.
#[test]
fn find_among_any_number_of_full_values_looks_at_one_line() {
    for count in [10, 1_000] {
        let cache = cache(2_000);
        assert_eq!(slots_looked_at(&cache, count, drop), 2, "{count} values");
        assert!(cache.find_first(1).is_none());
        assert!(cache.note_users(1, 7, cache.users_max() - 1));
        assert_eq!(values(&cache, 1), [7], "a value that has room again is found");
    }
}

/// Control test: an entry of a full value stays while it has a handle. So searches must examine it.
#[test]
fn control_find_looks_at_full_values_that_stay() {
    let cache = cache(2_000);
    let mut held = Vec::new();
    assert_eq!(slots_looked_at(&cache, 200, |entry| held.push(entry)), 200);
    drop(held);
    assert_eq!(cache.stats().entries, 0);
}

#[test]
fn cache_that_is_off_finds_nothing_and_takes_nothing() {
    let cache = Mbcache::off().unwrap();
    assert_eq!(cache.create(2, 7), Err(CreateError::Off));
    assert!(!cache.note_users(2, 7, 0), "no pair is added");
    assert!(!cache.note_users(2, 7, 1));
    assert!(cache.find_first(2).is_none() && !cache.get(2, 7));
    assert!(cache.delete_or_get(2, 7).is_none());
    assert_eq!((cache.stats().entries, cache.users_max()), (0, 1));
}

#[test]
fn entry_of_another_cache_leads_nowhere() {
    let (one, other) = (cache(10), cache(10));
    for cache in [&one, &other] {
        cache.create(1, 5).unwrap();
        cache.create(1, 6).unwrap();
    }
    let entry = one.find_first(1).unwrap();
    assert!(other.find_next(&entry).is_none());
    assert!(one.find_next(&entry).is_some());
}
