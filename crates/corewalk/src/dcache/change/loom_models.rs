//! Models of names that are added to the cache again after an invalidation, and of exchanged names.
//!
//! In each model, the reader is the spawned thread. If it were the main thread, loom would skip
//! some schedules, because of a bug of loom (see `tally` in `corewalk_base`).

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::super::loom_models::{
    A, B, PREEMPTIONS, cache, enter, file, lock_name_a, lookup, lookup_key_a,
};
use super::*;
use crate::attr::mode;
use crate::name::Name;

fn put_back_against_lookup(
    says: u64,
    look: fn(&Dcache, ParentKey) -> Option<u64>,
    publish: fn(&Dcache, ParentKey, DentryInode),
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
                // ORDERING: Acquire. The main thread stores 1 to `over` with Release after
                // `publish`. Without Acquire, the lookup could miss the published name although
                // `over` is 1.
                let is_over = over.load(Ordering::Acquire) == 1;
                let found = look(dcache, key);
                assert!(found.is_none_or(|ino| ino == says), "T25: an invalidated answer");
                assert!(found.is_some() || !is_over, "T.1: the name was missed");
                tally.hit(usize::from(found.is_some()));
            }
        });
        let (dcache, over) = &*shared;
        publish(dcache, key, node);
        // ORDERING: Release. The reader loads `over` with Acquire. Without Release, its lookup
        // could miss stores of `publish` although `over` is 1.
        over.store(1, Ordering::Release);
        reader.join().unwrap();
    })
}

fn publish_node(dcache: &Dcache, key: ParentKey, node: DentryInode) {
    let slot =
        dcache.publish(key, &lookup_key_a(dcache), Some(node), &lock_name_a(dcache, key)).unwrap();
    // The first dentry of a file has the same slot number as the inode. A second dentry, which
    // `publish` must not make, would have another slot number.
    assert_eq!(
        slot,
        node.inode.dentry_half(),
        "a file in use keeps its dentry, and another has its own"
    );
}

fn look(dcache: &Dcache, key: ParentKey) -> Option<u64> {
    lookup(dcache, key, A)
}

fn count(dcache: &Dcache, _key: ParentKey) -> Option<u64> {
    let inode = dcache.get_by_ino(1, A)?;
    let ino = dcache.inodes.ino(inode);
    dcache.put_inode(inode, 1);
    Some(ino)
}

/// A dentry that becomes valid again after an invalidation must refer to its file before a lookup
/// finds it. Trap T25 in `traps.md`.
#[test]
fn name_that_is_taken_back_is_found_whole_or_not() {
    assert_all_reached(&put_back_against_lookup(7, look, publish_node));
    assert_all_reached(&put_back_against_lookup(7, count, publish_node));
}

/// After an invalidation the name refers to another file, so no lookup may find the old dentry.
/// Trap T25 in `traps.md`.
#[test]
fn name_that_became_another_file_is_not_taken_back() {
    assert_all_reached(&put_back_against_lookup(8, look, publish_node));
    assert_all_reached(&put_back_against_lookup(8, count, publish_node));
}

/// Control (a variant with the bug must fail): the old dentry becomes valid again before it gets
/// the new inode. So a reader may find the old file. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an invalidated answer")]
fn control_dentry_that_is_put_back_for_another_file_is_caught() {
    put_back_against_lookup(8, look, |dcache, key, node| {
        let hash = dcache.hash(key.parent(), lookup_key_a(dcache).hash);
        let slot = dcache.table.find(hash, Some).unwrap();
        let guard = dcache.dentries.lockref(slot).lock();
        let body = dcache.dentries.image(slot).body.with_inode(node.inode);
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_key(slot, key));
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, body));
    });
}

fn invalidate(dcache: &Dcache, key: ParentKey) -> ParentKey {
    dcache.invalidate_directory(key.parent());
    dcache.directory(key.parent()).unwrap().key
}

fn publish_against_mount(
    before: fn(&Dcache, ParentKey) -> ParentKey,
    publish: fn(&Dcache, ParentKey, DentryInode) -> DentrySlot,
) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let node = enter(&dcache, 7, mode::S_IFDIR | 0o700);
        let slot = dcache
            .publish(key, &lookup_key_a(&dcache), Some(node), &lock_name_a(&dcache, key))
            .unwrap();
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
        let seen = dcache.dentries.snapshot(now);
        assert!(seen.key == key && seen.body.flags().contains(Flags::MOUNTED), "a mark is lost");
        tally.hit(usize::from(is_after));
    })
}

fn publish_directory(dcache: &Dcache, key: ParentKey, node: DentryInode) -> DentrySlot {
    dcache.publish(key, &lookup_key_a(dcache), Some(node), &lock_name_a(dcache, key)).unwrap()
}

/// A directory in use must keep its dentry when its name is added again after an invalidation.
/// Another thread may mark the dentry as a mount point meanwhile. Trap T55 in `traps.md`.
#[test]
fn directory_that_is_taken_back_beside_a_mount_keeps_its_dentry() {
    assert_all_reached(&publish_against_mount(invalidate, publish_directory));
}

/// Control (a variant with the bug must fail): `publish` looks for the old dentry only once. If
/// another thread then marks it as a mount point, `publish` makes a second dentry. Trap T55 in
/// `traps.md`.
#[test]
#[should_panic(expected = "a directory in use has a second dentry")]
fn control_take_back_that_looks_once_is_caught() {
    publish_against_mount(invalidate, |dcache, key, _| {
        let hash = dcache.hash(key.parent(), lookup_key_a(dcache).hash);
        let stale = dcache.collect_stale(hash, key, &lookup_key_a(dcache));
        let in_lookup = lock_name_a(dcache, key);
        let back =
            stale.iter().find(|(slot, seen)| dcache.set_key(*slot, seen.seq, key, &in_lookup));
        back.map_or(DentrySlot::NONE, |(slot, _)| *slot)
    });
}

/// A directory whose name is added twice must keep its dentry, even if another thread marks it as a
/// mount point meanwhile. Trap T55 in `traps.md`.
#[test]
fn directory_that_is_entered_twice_beside_a_mount_keeps_its_dentry() {
    assert_all_reached(&publish_against_mount(|_, key| key, publish_directory));
}

/// Control (a variant with the bug must fail): `publish` looks the dentry up only once. If another
/// thread then marks it as a mount point, `publish` cannot take a reference on it, and makes a
/// second dentry. Trap T55 in `traps.md`.
#[test]
#[should_panic(expected = "a directory in use has a second dentry")]
fn control_publish_that_looks_once_is_caught() {
    publish_against_mount(
        |_, key| key,
        |dcache, key, _| {
            let found = dcache.find_exact(key, &lookup_key_a(dcache));
            found
                .filter(|(slot, seen)| dcache.get(*slot, seen.seq))
                .map_or(DentrySlot::NONE, |(slot, _)| slot)
        },
    );
}

fn exchange_against_lookups(exchange: fn(&Dcache, DentrySlot, DentrySlot)) -> [usize; 3] {
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
                    let lookup_key = dcache.lookup_key(Name::new(name).unwrap());
                    dcache.find_exact(key, &lookup_key).map(|(slot, _)| slot)
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

/// While two names are exchanged, each must have a file at every instant. A reader must not find
/// one file under both names. Traps T12 and T13 in `traps.md`.
#[test]
fn names_beside_an_exchange_are_always_there() {
    assert_all_reached(&exchange_against_lookups(|dcache, a, b| {
        let in_lookup = lock_name_a(dcache, ParentKey::new(dcache.parent(a).0, 1));
        assert_eq!(dcache.exchange(a, b, &in_lookup), Ok(()));
    }));
}

/// Control (a variant with the bug must fail): the two dentries are renamed in separate write
/// sections. So for a moment one of the names is missing. Trap T13 in `traps.md`.
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
            let (inode, words) = (body.inode(), DirectoryWords::default());
            let image =
                dcache.dentries.new_image(key, 0, inode, name, body.flags(), words).unwrap();
            dcache.write(slot, &guard, |dcache| {
                dcache.dentries.store(slot, &image);
            });
        }
    });
}

fn enter_against_invalidation(
    prepare: fn(&Dcache, ParentKey, DentryInode),
    enter_as: fn(&Dcache, ParentKey, DentryInode, &KeyGuard<'_>),
) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let node = enter(&dcache, 7, mode::S_IFREG | 0o600);
        prepare(&dcache, key, node);
        let dcache = Arc::new(dcache);
        let in_lookup = lock_name_a(&dcache, key);
        let invalidator = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                dcache.invalidate_name(key.parent(), &lookup_key_a(&dcache));
                assert_eq!(lookup(&dcache, key, A), None, "T25: an invalidated answer");
            }
        });
        enter_as(&dcache, key, node, &in_lookup);
        tally.hit(usize::from(in_lookup.is_fill_cancelled()));
        invalidator.join().unwrap();
    })
}

fn publish_claimed(dcache: &Dcache, key: ParentKey, node: DentryInode, in_lookup: &KeyGuard<'_>) {
    dcache.publish(key, &lookup_key_a(dcache), Some(node), in_lookup).unwrap();
}

fn publish_invalidated(dcache: &Dcache, key: ParentKey, node: DentryInode) {
    publish_node(dcache, key, node);
    dcache.make_name_stale(key, &lookup_key_a(dcache));
}

/// After an invalidation has returned, no lookup may find an older answer. Trap T25 in `traps.md`.
#[test]
fn answer_from_before_an_invalidation_is_not_found() {
    let nothing = |_: &Dcache, _: ParentKey, _: DentryInode| ();
    assert_all_reached(&enter_against_invalidation(nothing, publish_claimed));
    assert_all_reached(&enter_against_invalidation(publish_invalidated, publish_claimed));
    let other = |dcache: &Dcache, key: ParentKey, _: DentryInode| {
        file(dcache, key, B, 8);
    };
    assert_all_reached(&enter_against_invalidation(other, |dcache, key, _, in_lookup| {
        let lookup_key = dcache.lookup_key(Name::new(B).unwrap());
        let (slot, seen) = dcache.find(key, &lookup_key).unwrap();
        assert!(dcache.get(slot, seen.seq));
        let done = dcache.d_move(slot, &lookup_key, key, &lookup_key_a(dcache), None, in_lookup);
        assert_eq!(done, Ok(DentrySlot::NONE));
    }));
}

/// Control (a variant with the bug must fail): `publish` looks for an invalidation before its write
/// section, so it misses a later one. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an invalidated answer")]
fn control_claim_that_is_asked_too_early_is_caught() {
    enter_against_invalidation(
        |dcache, key, node| {
            publish_node(dcache, key, node);
            dcache.make_name_stale(key, &lookup_key_a(dcache));
        },
        |dcache, key, _, in_lookup| {
            let hash = dcache.hash(key.parent(), lookup_key_a(dcache).hash);
            let slot = dcache.table.find(hash, Some).unwrap();
            let key = key.unless_cancelled(in_lookup);
            let guard = dcache.dentries.lockref(slot).lock();
            dcache.write(slot, &guard, |dcache| dcache.dentries.store_key(slot, key));
        },
    );
}
