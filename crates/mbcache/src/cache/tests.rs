//! What one thread sees, and sizes.

use super::*;
use crate::index::Line;

fn cache(entries_max: u32) -> Mbcache {
    let options = MbcacheOptions { entries_max, hash_seed: Some(1), ..MbcacheOptions::default() };
    Mbcache::new(options).unwrap()
}

fn values(cache: &Mbcache, key: u64) -> Vec<u64> {
    let mut values = Vec::new();
    let mut found = cache.find_first(key);
    while let Some(entry) = found {
        assert_eq!(entry.key(), key);
        values.push(entry.value());
        found = cache.find_next(&entry);
    }
    values
}

/// An entry has three words of its own, and half of the two words that its line needs.
#[test]
fn entry_takes_four_words_with_its_share_of_a_line() {
    assert_eq!(size_of::<Words>(), 3 * size_of::<u64>());
    assert_eq!(size_of::<Line>(), SLOTS as usize * 4 * size_of::<u64>());
    let cache = cache(1_000);
    let empty = cache.stats().bytes;
    (0..1_000).for_each(|value| cache.create(1, value).unwrap());
    // The first two stand in a bucket that was there already.
    assert_eq!(cache.stats().bytes - empty, 998 * 4 * size_of::<u64>() as u64);
}

/// What is set aside for an entry: a bucket of one line, and half a line should all be in one bucket.
#[test]
fn budget_counts_twelve_words_for_an_entry() {
    for entries in [2, 1_000, 100_000] {
        let bytes = Sizes::for_entries(entries).bytes_max() - room::bytes();
        assert_eq!(bytes, u64::from(entries) * 12 * size_of::<u64>() as u64);
    }
}

#[test]
fn handles_may_go_to_other_threads() {
    fn assert_send_and_sync<T: Send + Sync>() {}
    assert_send_and_sync::<Mbcache>();
    assert_send_and_sync::<Entry<'_>>();
    assert_send_and_sync::<Busy<'_>>();
    assert_send_and_sync::<crate::Unused<'_>>();
}

#[test]
fn handles_of_one_entry_are_bounded() {
    const MOST: usize = (1 << 18) - 1;
    let cache = cache(10);
    cache.create(1, 5).unwrap();
    let mut held: Vec<_> = (0..MOST).map(|_| cache.find_first(1).unwrap()).collect();
    assert!(cache.find_first(1).is_none());
    assert_eq!(cache.delete_or_get(1, 5).unwrap().handles() as usize, MOST);
    drop(held.pop());
    assert!(cache.find_first(1).is_some());
    drop(held);
    assert!(cache.delete_or_get(1, 5).is_none());
}

#[test]
fn cache_within_its_budget_has_room_for_what_it_says() {
    for budget_bytes in [700, 1_000, 4_096, 1 << 20, 5_000_000, 16 << 20] {
        let options = MbcacheOptions { budget_bytes, ..MbcacheOptions::default() };
        let cache = Mbcache::new(options).unwrap();
        let entries = u64::from(cache.entries_max());
        for value in 0..entries {
            cache.create(value / 2, value).unwrap();
        }
        let stats = cache.stats();
        assert_eq!((stats.entries, stats.reclaimed), (entries, 0), "G.4: one was dropped");
        assert!(stats.bytes <= budget_bytes, "{stats:?} of {budget_bytes}");
        if budget_bytes >= 1 << 20 {
            assert!(entries * 96 > budget_bytes * 99 / 100, "{entries} in {budget_bytes}");
        }
    }
}

#[test]
fn budget_without_room_for_an_entry_is_refused() {
    for (budget_bytes, entries_max) in [(0, 10), (100, 10), (1 << 20, 0)] {
        let options = MbcacheOptions { budget_bytes, entries_max, ..MbcacheOptions::default() };
        let error = Mbcache::new(options).unwrap_err();
        assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    }
}

#[test]
fn full_cache_drops_what_was_not_used_and_never_more_than_it_must() {
    let cache = cache(1_000);
    let mut kept = 0;
    for value in 0..5_000 {
        cache.create(value, value).unwrap();
        // One pair is used again and again.
        assert!(cache.get(7, 7).is_some() || value < 7, "T37: what is used was dropped");
        let stats = cache.stats();
        assert!(stats.entries >= u64::from(cache.entries_max()) || stats.reclaimed == 0);
        kept = stats.entries;
    }
    // Not all lines have two entries.
    assert!((1_000..3_000).contains(&kept), "{kept}");
}

#[test]
fn full_cache_whose_entries_are_all_held_takes_no_more() {
    let cache = cache(100);
    let mut held = Vec::new();
    let full = loop {
        let value = held.len() as u64;
        if let Err(error) = cache.create(1, value) {
            break error;
        }
        held.push(cache.find_first(1).unwrap());
    };
    assert_eq!(full, CreateError::Full);
    assert!(held.len() >= 100);
    drop(held.pop());
    cache.create(1, 1_000).unwrap();
    assert_eq!(cache.stats().reclaimed, 1);
    assert_eq!(cache.create(1, 1_001), Ok(()), "the newest is not held");
}

/// Entries are dropped only where that brings a line, or a slot of the bucket that wants one.
#[test]
fn bucket_whose_further_lines_are_held_loses_no_entry_for_another() {
    let cache = cache(4);
    let other = |not: &[u64]| {
        let is_other = |key: &u64| not.iter().all(|&not| cache.bucket(*key) != cache.bucket(not));
        (1..).find(is_other).unwrap()
    };
    let one = other(&[]);
    let two = other(&[one]);
    let three = other(&[one, two]);
    for key in [one, two] {
        (0..4).for_each(|value| cache.create(key, value).unwrap());
    }
    // The newest stand in the second lines.
    let held: Vec<_> = [one, two].iter().map(|&key| cache.find_first(key).unwrap()).collect();
    assert!(held.iter().all(|entry| entry.value() == 3));
    (0..2).for_each(|value| cache.create(three, value).unwrap());
    assert_eq!(cache.create(three, 2), Ok(()), "its own bucket has room to make");
    assert_eq!(values(&cache, three).len(), 2);
    for key in [one, two] {
        assert_eq!(values(&cache, key), [3, 2, 1, 0], "dropped for nothing");
    }
    assert_eq!(cache.stats().reclaimed, 1);
    let _three: Vec<_> = (0..3)
        .filter_map(|value| cache.get(three, value))
        .map(|seen| cache.hold(seen).unwrap())
        .collect();
    assert_eq!(cache.create(three, 3), Err(CreateError::Full));
    assert_eq!(cache.stats().reclaimed, 1);
}

#[test]
fn pair_is_there_once_and_keeps_its_flag() {
    let cache = cache(10);
    cache.create(1, 5).unwrap();
    let held = cache.find_first(1).unwrap();
    held.note_users(cache.users_max());
    assert_eq!(cache.create(1, 5), Err(CreateError::Exists));
    assert!(cache.find_first(1).is_none());
    assert!(!cache.get(1, 5).unwrap().is_reusable());
    assert_eq!((cache.count(), cache.stats().duplicates), (1, 1));
    drop(held);
    assert_eq!((cache.count(), cache.stats().deleted), (0, 1));
}

#[test]
fn values_of_a_key_come_newest_first_without_those_of_others() {
    let cache = cache(12);
    let mut of_one_bucket = (1..).filter(|&key| cache.bucket(key) == cache.bucket(1));
    let [one, two, three, four] = std::array::from_fn(|_| of_one_bucket.next().unwrap());
    for key in [one, two, three] {
        cache.create(key, 10 * key).unwrap();
        cache.create(key, 10 * key + 1).unwrap();
    }
    assert_eq!(values(&cache, two), [10 * two + 1, 10 * two]);
    assert_eq!(values(&cache, four), []);
    assert!(cache.delete_or_get(two, 10 * two + 1).is_none());
    assert_eq!(values(&cache, two), [10 * two]);
    // It takes the place of the one that was deleted, and is newer than the other all the same.
    cache.create(two, 5).unwrap();
    assert_eq!(values(&cache, two), [5, 10 * two]);
    for key in [one, three] {
        assert_eq!(values(&cache, key), [10 * key + 1, 10 * key]);
    }
}

/// Of values in a row two have one home each, and are found there; whoever finds his taken stands elsewhere, and
/// is found as well.
#[test]
fn values_in_a_row_are_at_home_and_others_are_found_elsewhere() {
    let cache = cache(12);
    let bucket = cache.bucket(1);
    let is_at_home = |value| cache.index.at_home(bucket, (1, value)).is_some();
    for value in [6, 7, 8] {
        cache.create(1, value).unwrap();
    }
    assert_eq!([6, 7, 8, 9].map(is_at_home), [true, true, false, false]);
    assert!((6..9).all(|value| cache.get(1, value).is_some()));
    assert!(cache.delete_or_get(1, 6).is_none() && cache.delete_or_get(1, 8).is_none());
    // Also in a bucket of two lines.
    cache.create(1, 10).unwrap();
    assert_eq!([6, 7, 8, 10].map(is_at_home), [false, true, false, true]);
    assert_eq!(cache.create(1, 10), Err(CreateError::Exists));
    // Two of which both are even.
    let other = (2..).find(|&key| cache.bucket(key) != bucket).unwrap();
    for value in [6, 8] {
        cache.create(other, value).unwrap();
        assert_eq!(cache.create(other, value), Err(CreateError::Exists));
    }
    assert_eq!(values(&cache, other), [8, 6]);
    for value in [8, 6] {
        assert!(cache.delete_or_get(other, value).is_none() && cache.get(other, value).is_none());
    }
}

/// What was created later is newer also after entries have moved, and lines that were in other buckets do
/// not bring their stamps along.
#[test]
fn values_stay_in_order_and_are_kept_when_lines_go_from_bucket_to_bucket() {
    let cache = cache(64);
    let mut expected = std::collections::BTreeMap::new();
    for turn in 0..40 {
        let key = turn % 4;
        let room = |cache: &Mbcache| u64::from(cache.entries_max()) - cache.count();
        let new = 1_000 * (turn + 1)..1_000 * (turn + 1) + room(&cache).min(50);
        for value in new.clone() {
            cache.create(key, value).unwrap();
        }
        let of_key: &mut Vec<u64> = expected.entry(key).or_default();
        of_key.splice(0..0, new.rev());
        for (&key, all) in &expected {
            assert_eq!(&values(&cache, key), all, "turn {turn}, key {key}");
        }
        let oldest = (turn + 2) % 4;
        if let Some(all) = expected.get_mut(&oldest) {
            let mut nth = 0;
            all.retain(|&value| {
                nth += 1;
                let stays = nth % 3 == 0;
                assert!(stays || cache.delete_or_get(oldest, value).is_none());
                stays
            });
        }
    }
    assert_eq!(cache.stats().reclaimed, 0, "G.4: there was room");
    assert!(cache.stats().created > 200, "lines were used again");
}

/// Trap T40: the entry that a loop stands at is held, so nobody takes it out.
#[test]
fn loop_that_deletes_what_it_meets_ends() {
    let cache = cache(100);
    (0..20).for_each(|value| cache.create(1, value).unwrap());
    let mut found = cache.find_first(1);
    let mut met = 0;
    while let Some(entry) = found {
        met += 1;
        let value = entry.value();
        assert!(cache.delete_or_get(1, value).is_some(), "it is held");
        found = cache.find_next(&entry);
        drop(entry);
        assert!(cache.delete_or_get(1, value).is_none());
        cache.create(1, value).unwrap();
        assert!(met <= 20, "T40: the loop goes round");
    }
    assert_eq!(met, 20);
}

/// Trap T40: who begins anew from the front after each deletion never comes to an end.
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

/// Trap T37: what was used survives a look, once.
#[test]
fn entries_that_were_used_survive_a_scan() {
    let cache = cache(1_000);
    for value in 0..100 {
        cache.create(value, value).unwrap();
        if value % 4 == 0 {
            assert!(cache.get(value, value).is_some());
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

/// Trap T37: a find alone is no use, so these go.
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
    assert_eq!([cache.scan(0), cache.scan(30), cache.count()], [0, 30, 70]);
    assert_eq!(cache.stats().reclaimed, 30);
}

/// The hand goes on from where it is when there are more slots than before.
#[test]
fn scans_look_at_each_entry_once_a_turn_while_slots_are_added() {
    let cache = cache(100);
    let lines = cache.index.lines();
    for _ in 0..3 {
        assert_eq!(cache.scan(u64::MAX), 0);
    }
    for value in 0..40 {
        cache.create(value, value).unwrap();
        assert!(cache.get(value, value).is_some());
    }
    assert_eq!(cache.scan(20), 0);
    (0..20).for_each(|value| cache.create(1 << 40, value).unwrap());
    assert!((0..20).all(|value| cache.delete_or_get(1 << 40, value).is_none()));
    assert!(cache.index.lines() > lines, "slots were added");
    assert_eq!(cache.scan(20), 0, "one was looked at twice, and another one not at all");
    assert_eq!(cache.scan(40), 40);
}

#[test]
fn held_entry_is_busy_and_stays_through_a_scan() {
    let cache = cache(100);
    cache.create(1, 5).unwrap();
    let (one, two) = (cache.find_first(1).unwrap(), cache.get(1, 5).unwrap());
    let two = cache.hold(two).unwrap();
    assert_eq!(cache.scan(u64::MAX) + cache.scan(u64::MAX), 0);
    assert_eq!(cache.delete_or_get(1, 5).unwrap().handles(), 2);
    drop(one);
    assert_eq!(cache.delete_or_get(1, 5).unwrap().handles(), 1);
    drop(two);
    assert!(cache.delete_or_get(1, 5).is_none() && cache.delete_or_get(1, 5).is_none());
    assert_eq!((cache.stats().busy, cache.stats().deleted), (2, 1));
}

#[test]
fn glimpse_of_what_has_ended_is_not_held() {
    let cache = cache(100);
    cache.create(1, 5).unwrap();
    let seen = cache.get(1, 5).unwrap();
    assert!(cache.delete_or_get(1, 5).is_none());
    assert!(cache.hold(seen).is_none());
    cache.create(1, 5).unwrap();
    assert!(cache.hold(seen).is_none(), "the slot is the same, the entry is another");
    assert!(cache.hold(cache.get(1, 5).unwrap()).is_some());
}

#[test]
fn value_at_its_cap_is_not_found_until_it_has_fewer_users() {
    let options = MbcacheOptions { users_max: 3, ..MbcacheOptions::default() };
    let cache = Mbcache::new(options).unwrap();
    cache.create(1, 5).unwrap();
    cache.find_first(1).unwrap().note_users(2);
    cache.find_first(1).unwrap().note_users(3);
    assert!(cache.find_first(1).is_none() && cache.count() == 0);
    assert!(cache.note_users(1, 5, 2), "it is entered again");
    let held = cache.find_first(1).unwrap();
    assert!(held.is_reusable() && !cache.note_users(1, 5, 3) && !held.is_reusable());
    assert!(cache.note_users(1, 5, 2) && held.is_reusable(), "it was there all the time");
    drop(held);
    assert_eq!(values(&cache, 1), [5]);
    assert!(!cache.note_users(1, 5, 3), "nobody holds it, so it goes at once");
    assert_eq!((cache.count(), cache.stats().created), (0, 2));
}

/// Makes `count` values of one key full, one after the other, and does with each what `each` says; returns
/// the lines that a find of that key looks at then.
fn lines_with_full_values<'c>(
    cache: &'c Mbcache,
    count: u64,
    mut each: impl FnMut(crate::Entry<'c>),
) -> u32 {
    for value in 0..count {
        cache.create(1, value).unwrap();
        let entry = cache.find_first(1).unwrap();
        assert_eq!(entry.value(), value);
        entry.note_users(cache.users_max());
        each(entry);
    }
    let mut lines = 0;
    let walk = cache.index.walk_lines(cache.bucket(1), |_, _| {
        lines += 1;
        None::<()>
    });
    assert!(matches!(walk, Ok(None)));
    lines
}

/// Trap T39: how many blocks with a content are full makes no find of it longer.
#[test]
fn find_among_any_number_of_full_values_looks_at_one_line() {
    for count in [10, 1_000] {
        let cache = cache(2_000);
        assert_eq!(lines_with_full_values(&cache, count, drop), 1, "{count} values");
        assert!(cache.find_first(1).is_none());
        assert!(cache.note_users(1, 7, cache.users_max() - 1));
        assert_eq!(values(&cache, 1), [7], "a value that has room again is found");
    }
}

/// Trap T39: those that stay, since somebody holds them, are looked at.
#[test]
fn control_find_looks_at_full_values_that_stay() {
    let cache = cache(2_000);
    let mut held = Vec::new();
    assert_eq!(lines_with_full_values(&cache, 1_000, |entry| held.push(entry)), 500);
    drop(held);
    assert_eq!(cache.count(), 0);
}

#[test]
fn cache_that_is_off_finds_nothing_and_still_knows_what_is_held() {
    let cache = cache(100);
    cache.create(1, 5).unwrap();
    cache.create(1, 6).unwrap();
    assert!(cache.get(1, 5).is_some());
    let entry = cache.find_first(1).unwrap();
    cache.switch_off();
    assert!(cache.find_first(1).is_none() && cache.get(1, 6).is_none());
    assert_eq!(cache.create(2, 7), Err(CreateError::Off));
    assert_eq!(cache.count(), 1);
    assert!(cache.delete_or_get(1, 6).is_some() && cache.delete_or_get(1, 5).is_none());
    drop(entry);
    cache.switch_on();
    assert_eq!(values(&cache, 1), [6]);
}

#[test]
fn entry_of_another_cache_leads_nowhere() {
    let (one, other) = (cache(10), cache(10));
    one.create(1, 5).unwrap();
    one.create(1, 6).unwrap();
    let entry = one.find_first(1).unwrap();
    assert!(other.find_next(&entry).is_none());
    assert!(one.find_next(&entry).is_some());
    // In the same slot, and of the same age.
    other.create(1, 7).unwrap();
    let seen = one.get(1, 5).unwrap();
    assert_eq!((seen.slot, seen.state.count()), (other.get(1, 7).unwrap().slot, 0));
    assert!(other.hold(seen).is_none());
    assert!(one.hold(seen).is_some());
}
