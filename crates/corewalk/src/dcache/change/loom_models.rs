//! Models of names that were invalidated and are put back, and of names that are exchanged.
//!
//! The reader is the spawned thread: see `tally` in the sync crate.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::super::loom_models::{A, B, PREEMPTIONS, cache, claim_a, enter, file, lookup, needle_a};
use super::*;
use crate::attr::mode;
use crate::name::Name;

/// Puts a name that was invalidated with its directory back with `publish`, for the file that the
/// back end `says`, beside one who looks it up with `look`; returns how often that (missed, found)
/// it. Before, the name was file 7, which somebody uses.
fn put_back_against_lookup(
    says: u64,
    look: fn(&Dcache, Key) -> Option<u64>,
    publish: fn(&Dcache, Key, Node),
) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (_, first) = file(&dcache, key, A, 7);
        dcache.inodes.lockref(first.inode).get();
        let node = if says == 7 { first } else { enter(&dcache, says, first.kind.to_mode()) };
        dcache.invalidate_directory(key.parent());
        let key = dcache.directory(key.parent()).unwrap().key;
        let shared = Arc::new((dcache, AtomicU64::new(0)));
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (dcache, over) = &*shared;
                // ORDERING: Acquire. What was published happens before the lookup then.
                let is_over = over.load(Ordering::Acquire) == 1;
                let found = look(dcache, key);
                assert!(found.is_none_or(|ino| ino == says), "T25: an invalidated answer");
                assert!(found.is_some() || !is_over, "T.1: the name was missed");
                tally.hit(usize::from(found.is_some()));
            }
        });
        let (dcache, over) = &*shared;
        publish(dcache, key, node);
        // ORDERING: Release. As above.
        over.store(1, Ordering::Release);
        reader.join().unwrap();
    })
}

fn publish_node(dcache: &Dcache, key: Key, node: Node) {
    let slot = dcache.publish(key, &needle_a(dcache), Some(node), &claim_a(dcache, key)).unwrap();
    // The dentry of each lies beside it: the one of a file in use, and the new one of another.
    assert_eq!(slot, node.inode, "a file in use keeps its dentry, and another has its own");
}

fn look(dcache: &Dcache, key: Key) -> Option<u64> {
    lookup(dcache, key, A)
}

fn count(dcache: &Dcache, _key: Key) -> Option<u64> {
    let ino = dcache.count_by_number(1, A, 1)?;
    let inode = dcache.inodes.get(0, ino, |_| ()).expect("it is counted");
    dcache.put_inode(inode, 2);
    Some(ino)
}

/// Trap T25: the dentry of the same file is found when it is back, and not before.
#[test]
fn name_that_is_taken_back_is_found_whole_or_not() {
    assert_all_reached(&put_back_against_lookup(7, look, publish_node));
    assert_all_reached(&put_back_against_lookup(7, count, publish_node));
}

/// Trap T25: the dentry of another file is not taken back.
#[test]
fn name_that_became_another_file_is_not_taken_back() {
    assert_all_reached(&put_back_against_lookup(8, look, publish_node));
    assert_all_reached(&put_back_against_lookup(8, count, publish_node));
}

/// Trap T25: the dentry is put back first, and then gets the inode that it should have.
#[test]
#[should_panic(expected = "T25: an invalidated answer")]
fn control_dentry_that_is_put_back_for_another_file_is_caught() {
    put_back_against_lookup(8, look, |dcache, key, node| {
        let hash = dcache.hash(key.parent(), needle_a(dcache).hash);
        let slot = dcache.table.find(hash, Some).unwrap();
        let guard = dcache.dentries.lockref(slot).lock();
        let body = dcache.dentries.image(slot).body.with_inode(node.inode);
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_key(slot, key));
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, body));
    });
}

/// Invalidates the directory that `key` is of, and returns its children's key then.
fn invalidate(dcache: &Dcache, key: Key) -> Key {
    dcache.invalidate_directory(key.parent());
    dcache.directory(key.parent()).unwrap().key
}

/// A directory in use, of which `before` says how well it is known, is entered again with `publish`
/// while something is mounted on it; returns how often the mark came (before, after) that.
fn publish_against_mount(
    before: fn(&Dcache, Key) -> Key,
    publish: fn(&Dcache, Key, Node) -> u32,
) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let node = enter(&dcache, 7, mode::S_IFDIR | 0o700);
        let slot =
            dcache.publish(key, &needle_a(&dcache), Some(node), &claim_a(&dcache, key)).unwrap();
        let key = before(&dcache, key);
        let count = dcache.dentries.lockref(slot).count();
        let dcache = Arc::new(dcache);
        let mounter = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                dcache.set_mounted(slot, Mounted::Yes);
                dcache.dentries.lockref(slot).count() > count
            }
        });
        let now = publish(&dcache, key, node);
        let is_after = mounter.join().unwrap();
        assert_eq!(now, slot, "a directory in use has a second dentry");
        let seen = dcache.dentries.glimpse(now);
        assert!(seen.key == key && seen.body.flags().contains(Flags::MOUNTED), "a mark is lost");
        tally.hit(usize::from(is_after));
    })
}

fn publish_directory(dcache: &Dcache, key: Key, node: Node) -> u32 {
    dcache.publish(key, &needle_a(dcache), Some(node), &claim_a(dcache, key)).unwrap()
}

/// Trap T55: a dentry that changes while it is taken back is looked at again.
#[test]
fn directory_that_is_taken_back_beside_a_mount_keeps_its_dentry() {
    assert_all_reached(&publish_against_mount(invalidate, publish_directory));
}

/// Trap T55: it is looked at once, and another made in its place.
#[test]
#[should_panic(expected = "a directory in use has a second dentry")]
fn control_take_back_that_looks_once_is_caught() {
    publish_against_mount(invalidate, |dcache, key, _| {
        let hash = dcache.hash(key.parent(), needle_a(dcache).hash);
        let stale = dcache.collect_stale(hash, key, &needle_a(dcache));
        let claim = claim_a(dcache, key);
        let back = stale.iter().find(|(slot, seen)| dcache.set_key(*slot, seen.seq, key, &claim));
        back.map_or(0, |(slot, _)| *slot)
    });
}

/// Trap T55: the same where it was never invalidated.
#[test]
fn directory_that_is_entered_twice_beside_a_mount_keeps_its_dentry() {
    assert_all_reached(&publish_against_mount(|_, key| key, publish_directory));
}

/// Trap T55: it is looked for once, and another made in its place.
#[test]
#[should_panic(expected = "a directory in use has a second dentry")]
fn control_publish_that_looks_once_is_caught() {
    publish_against_mount(
        |_, key| key,
        |dcache, key, _| {
            let found = dcache.find_exact(key, &needle_a(dcache));
            found.filter(|(slot, seen)| dcache.get(*slot, seen.seq)).map_or(0, |(slot, _)| slot)
        },
    );
}

/// The names `A` and `B` are exchanged with `exchange` beside one who looks for the one and then for
/// the other; returns how often that was (before, meanwhile, after).
fn exchange_against_lookups(exchange: fn(&Dcache, u32, u32)) -> [usize; 3] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (a, _) = file(&dcache, key, A, 7);
        let (b, _) = file(&dcache, key, B, 8);
        for slot in [a, b] {
            assert!(dcache.dentries.lockref(slot).get_not_dead());
        }
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let found = [A, B].map(|name| {
                    let needle = dcache.needle(Name::new(name).unwrap());
                    dcache.find_exact(key, &needle).map(|(slot, _)| slot)
                });
                let [Some(first), Some(second)] = found else { panic!("T13: a name was missing") };
                assert!(first == a || second == a, "T12: the first file has no name");
                tally.hit(usize::from(first == b) + usize::from(second == a));
            }
        });
        exchange(&dcache, a, b);
        reader.join().unwrap();
    })
}

/// Traps T12, T13: who finds the new file under one name does not find it under the other.
#[test]
fn names_beside_an_exchange_are_always_there() {
    assert_all_reached(&exchange_against_lookups(|dcache, a, b| {
        let claim = claim_a(dcache, Key::new(dcache.parent(a).0, 1));
        assert_eq!(dcache.exchange(a, b, &claim), Ok(()));
    }));
}

/// Trap T13: each dentry gets its name in a section of its own.
#[test]
#[should_panic(expected = "T13: a name was missing")]
fn control_exchange_in_two_sections_is_caught() {
    exchange_against_lookups(|dcache, a, b| {
        let hashes = [a, b].map(|slot| dcache.hash_now(slot));
        dcache.table.insert(hashes[1], a);
        dcache.table.insert(hashes[0], b);
        for (slot, name) in [(a, B), (b, A)] {
            let guard = dcache.dentries.lockref(slot).lock();
            let Image { key, body, .. } = dcache.dentries.image(slot);
            let (place, words) = ((0, body.inode()), DirectoryWords::default());
            let image = dcache.dentries.new_image(key, place, name, body.flags(), words).unwrap();
            dcache.write(slot, &guard, |dcache| {
                dcache.dentries.store(slot, &image);
            });
        }
    });
}

/// What the back end said before an invalidation is entered with `enter` beside it; the invalidator looks
/// the name up afterwards. Returns how often `enter` was told that (the answer counts, it does not).
fn enter_against_invalidation(
    prepare: fn(&Dcache, Key, Node),
    enter_as: fn(&Dcache, Key, Node, &Claim<'_>),
) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let node = enter(&dcache, 7, mode::S_IFREG | 0o600);
        prepare(&dcache, key, node);
        let dcache = Arc::new(dcache);
        let claim = claim_a(&dcache, key);
        let invalidator = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                dcache.invalidate_name(key.parent(), &needle_a(&dcache));
                assert_eq!(lookup(&dcache, key, A), None, "T25: an invalidated answer");
            }
        });
        enter_as(&dcache, key, node, &claim);
        tally.hit(usize::from(claim.is_doomed()));
        invalidator.join().unwrap();
    })
}

fn publish_claimed(dcache: &Dcache, key: Key, node: Node, claim: &Claim<'_>) {
    dcache.publish(key, &needle_a(dcache), Some(node), claim).unwrap();
}

/// Enters the name, and invalidates it with its directory.
fn publish_invalidated(dcache: &Dcache, key: Key, node: Node) {
    publish_node(dcache, key, node);
    dcache.make_name_stale(key, &needle_a(dcache));
}

/// Trap T25: an answer that is older than an invalidation is not found once that is over, whether the
/// name is entered, put back or given to another file.
#[test]
fn answer_from_before_an_invalidation_is_not_found() {
    let nothing = |_: &Dcache, _: Key, _: Node| ();
    assert_all_reached(&enter_against_invalidation(nothing, publish_claimed));
    assert_all_reached(&enter_against_invalidation(publish_invalidated, publish_claimed));
    let other = |dcache: &Dcache, key: Key, _: Node| {
        file(dcache, key, B, 8);
    };
    assert_all_reached(&enter_against_invalidation(other, |dcache, key, _, claim| {
        let needle = dcache.needle(Name::new(B).unwrap());
        let (slot, seen) = dcache.find(key, &needle).unwrap();
        assert!(dcache.get(slot, seen.seq));
        let done = dcache.d_move((slot, &needle), key, &needle_a(dcache), None, claim);
        assert_eq!(done, Ok(0));
    }));
}

/// Trap T25: the claim is asked before the name is entered, and not while its stripe is locked.
#[test]
#[should_panic(expected = "T25: an invalidated answer")]
fn control_claim_that_is_asked_too_early_is_caught() {
    enter_against_invalidation(
        |dcache, key, node| {
            publish_node(dcache, key, node);
            dcache.make_name_stale(key, &needle_a(dcache));
        },
        |dcache, key, _, claim| {
            let hash = dcache.hash(key.parent(), needle_a(dcache).hash);
            let slot = dcache.table.find(hash, Some).unwrap();
            let key = key.unless_doomed(claim);
            let guard = dcache.dentries.lockref(slot).lock();
            dcache.write(slot, &guard, |dcache| dcache.dentries.store_key(slot, key));
        },
    );
}
