//! Models of [`Dcache::get_by_ino`]. This function finds a child by its name and by the inode
//! number of its directory, without a lookup of the directory.
//!
//! In each model, the reader is the spawned thread. If it were the main thread, loom would skip
//! some schedules, because of a bug of loom (see `tally` in `corewalk_base`).

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use super::*;
use crate::dcache::change::Mounted;
use crate::dentry::Line;

const ROOT_INO: u64 = 1;

fn count(dcache: &Dcache) -> Option<u64> {
    dcache.get_by_ino(ROOT_INO, A).map(|inode| dcache.inodes.ino(inode))
}

fn count_with(
    dcache: &Dcache,
    is_parent: fn(&Dcache, ParentKey) -> bool,
    is_unchanged: fn(&Line<'_>, Seq) -> bool,
) -> Option<u64> {
    let lookup_key = lookup_key_a(dcache);
    let hash = lookup_key.hash.child(directory_id(0, ROOT_INO)) as u32;
    let (dentry, seen) = dcache.table.find(hash, |slot| {
        let dentry = dcache.dentries.line(slot);
        let seen = dentry.snapshot_now();
        let is_it =
            dentry.is_named(seen, &lookup_key, &dcache.dentries) && is_parent(dcache, seen.key);
        is_it.then_some((dentry, seen))
    })?;
    let inode = seen.body.inode();
    if inode.is_none() || !dcache.inodes.lockref(inode).get_not_dead() {
        return None;
    }
    let ino = dcache.inodes.ino(inode);
    let counted =
        if is_unchanged(&dentry, seen.seq) { Some(inode) } else { dcache.undo_count(inode) };
    counted.map(|_| ino)
}

fn is_child_of_root(dcache: &Dcache, key: ParentKey) -> bool {
    dcache.is_parent(key, ROOT_INO)
}

fn invalidate_against_count(count: fn(&Dcache) -> Option<u64>) -> [usize; 3] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (_, first) = file(&dcache, key, A, 7);
        // The first file is in use, so its dentry stays.
        dcache.inodes.lockref(first.inode).get();
        let second = enter(&dcache, 8, mode::S_IFREG | 0o600);
        let shared = Arc::new((dcache, AtomicU64::new(0)));
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (dcache, told) = &*shared;
                // ORDERING: Acquire. The main thread stores 1 to `told` with Release after the
                // invalidation. Without Acquire, the lookup could miss the invalidation although
                // `told` is 1.
                let is_told = told.load(Ordering::Acquire) == 1;
                let found = count(dcache);
                assert!(!(is_told && found == Some(7)), "T25: an invalidated answer");
                assert!([None, Some(7), Some(8)].contains(&found), "T55: {found:?}");
                tally.hit(found.map_or(0, |ino| ino as usize - 6));
            }
        });
        let (dcache, told) = &*shared;
        dcache.invalidate_directory(key.parent());
        // ORDERING: Release. The reader loads `told` with Acquire. Without Release, its lookup
        // could miss the invalidation although `told` is 1.
        told.store(1, Ordering::Release);
        let now = dcache.directory(key.parent()).unwrap().key;
        let in_lookup = lock_name_a(dcache, now);
        dcache.publish(now, &lookup_key_a(dcache), Some(second), &in_lookup).unwrap();
        reader.join().unwrap();
    })
}

/// A lookup that starts after an invalidation must not return an older answer. Trap T25 in
/// `traps.md`.
#[test]
fn count_beside_an_invalidation_is_not_stale() {
    assert_all_reached(&invalidate_against_count(count));
    assert_all_reached(&invalidate_against_count(|dcache| {
        count_with(dcache, is_child_of_root, |line, seq| line.is_unchanged(seq))
    }));
}

/// Control (a variant with the bug must fail): the lookup does not check the child generation of
/// the parent directory, which the invalidation has incremented. So it returns a stale answer. Trap
/// T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an invalidated answer")]
fn control_count_without_a_look_at_the_parent_is_caught() {
    invalidate_against_count(|dcache| {
        count_with(dcache, |_, _| true, |line, seq| line.is_unchanged(seq))
    });
}

#[derive(Clone, Copy, PartialEq)]
enum Reuse {
    Inode,
    Dentry,
}

fn reuse_against_count(count: fn(&Dcache) -> Option<u64>, reuse: Reuse) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (slot, first) = file(&dcache, key, A, 7);
        let second = (reuse == Reuse::Dentry).then(|| enter(&dcache, 8, mode::S_IFREG | 0o600));
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let found = count(&dcache);
                assert!([None, Some(7)].contains(&found), "T55: counted another inode");
                found.is_some()
            }
        });
        let is_evicted = dcache.evict_entry(slot) == 1;
        let inode = match second {
            _ if !is_evicted => first.inode,
            None => enter(&dcache, 8, mode::S_IFREG | 0o600).inode,
            Some(second) => {
                enter_name(&dcache, key, B, second);
                dcache.put_inode(second.inode, 1);
                second.inode
            }
        };
        let is_counted = reader.join().unwrap();
        assert!(!(is_evicted && is_counted), "an inode in use lost its only name");
        let count = dcache.inodes.lockref(inode).count();
        assert_eq!(count, 1 + u64::from(is_counted), "P5: a count was left behind");
        tally.hit(usize::from(is_counted));
    })
}

/// A lookup must never take a reference on another inode. Here `A` is evicted during its lookup,
/// and another file gets the slot of its inode. Traps T5, T55 and P5 in `traps.md`.
#[test]
fn count_beside_eviction_and_reuse_is_of_that_inode_or_none() {
    assert_all_reached(&reuse_against_count(count, Reuse::Inode));
}

/// A lookup must never take a reference on another inode. Here another name gets the slot of the
/// dentry during the lookup. Traps T5, T55 and P5 in `traps.md`.
#[test]
fn count_beside_reuse_of_the_dentry_is_of_that_inode_or_none() {
    assert_all_reached(&reuse_against_count(count, Reuse::Dentry));
}

/// Control (a variant with the bug must fail): the lookup does not validate the dentry after it has
/// taken the reference. So the reference may be on the inode of the file that uses the slot next.
/// Trap T55 in `traps.md`.
#[test]
#[should_panic(expected = "T55: counted another inode")]
fn control_count_without_a_last_look_is_caught() {
    let count = |dcache: &Dcache| count_with(dcache, is_child_of_root, |_, _| true);
    reuse_against_count(count, Reuse::Inode);
}

/// The weight of one client lookup (a unit of FUSE's `nlookup`) in an inode's reference count.
const LOOKUP: u64 = 8;

fn count_for_client(dcache: &Dcache) -> Option<u64> {
    let inode = dcache.get_by_ino(ROOT_INO, A)?;
    dcache.inodes.lockref(inode).get_many(LOOKUP - 1);
    Some(dcache.inodes.ino(inode))
}

fn count_at_once(dcache: &Dcache) -> Option<u64> {
    let lookup_key = lookup_key_a(dcache);
    let hash = lookup_key.hash.child(directory_id(0, ROOT_INO)) as u32;
    let (dentry, seen) = dcache.table.find(hash, |slot| {
        let dentry = dcache.dentries.line(slot);
        let seen = dentry.snapshot_now();
        let is_it = dentry.is_named(seen, &lookup_key, &dcache.dentries)
            && dcache.is_parent(seen.key, ROOT_INO);
        is_it.then_some((dentry, seen))
    })?;
    let inode = seen.body.inode();
    if inode.is_none() || !dcache.inodes.lockref(inode).get_not_dead() {
        return None;
    }
    dcache.inodes.lockref(inode).get_many(LOOKUP - 1);
    let ino = dcache.inodes.ino(inode);
    if dentry.is_unchanged(seen.seq) {
        return Some(ino);
    }
    dcache.put_inode(inode, LOOKUP);
    None
}

/// Drops a client lookup that was never counted, as a faulty client could do. Returns false if the
/// inode has no client lookup.
fn forget_too_much(dcache: &Dcache, inode: InodeSlot) -> bool {
    let mut guard = dcache.inodes.lockref(inode).lock();
    let is_there = guard.count() >= LOOKUP;
    if is_there {
        guard.sub(LOOKUP);
    }
    is_there
}

/// With one preemption, the control test would not fail.
fn forget_against_count(count: fn(&Dcache) -> Option<u64>) -> [usize; 3] {
    Tally::of_bounded(2, move |tally| {
        let (dcache, key) = cache();
        let (slot, first) = file(&dcache, key, A, 7);
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || count(&dcache).is_some()
        });
        dcache.set_mounted(slot, Mounted::Yes);
        let is_taken = forget_too_much(&dcache, first.inode);
        let is_counted = reader.join().unwrap();
        let left = dcache.inodes.lockref(first.inode).count();
        let expected = 1 + if is_counted && !is_taken { LOOKUP } else { 0 };
        assert_eq!(left, expected, "P5: references of others were taken");
        tally.hit(match (is_counted, is_taken) {
            (false, false) => 0,
            (true, false) => 1,
            (true, true) => 2,
            (false, true) => panic!("P5: a lookup that nobody had was forgotten"),
        });
    })
}

/// A faulty client that forgets too often must not take away references of other users. Trap P5 in
/// `traps.md`.
#[test]
fn count_beside_a_wrong_forget_keeps_the_references_of_others() {
    assert_all_reached(&forget_against_count(count_for_client));
}

/// Control (a variant with the bug must fail): the lookup counts the client's reference
/// ([`LOOKUP`]) before it validates the dentry. A faulty client can then drop this reference too
/// early. Trap P5 in `traps.md`.
#[test]
#[should_panic(expected = "lockref put without a reference")]
fn control_count_in_one_step_is_caught() {
    forget_against_count(count_at_once);
}
