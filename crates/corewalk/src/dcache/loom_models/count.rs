//! Models of the lookup by number, which counts an inode without a look at the directory's dentry
//! but for one word.
//!
//! The reader is the spawned thread: see `tally` in the sync crate.

use corewalk_base::primitives::atomic::AtomicU64;

use super::*;
use crate::dcache::change::Mounted;
use crate::dentry::Line;

/// The number of the root in [`cache`].
const ROOT_INO: u64 = 1;

/// Looks `A` up by number.
fn count(dcache: &Dcache) -> Option<u64> {
    dcache.count_by_number(ROOT_INO, A, 1)
}

/// Takes the steps of [`Dcache::count_by_number`], with looks at the parent and, in the end, at the
/// dentry as the control has them.
fn count_with(
    dcache: &Dcache,
    is_parent: fn(&Dcache, Key) -> bool,
    is_unchanged: fn(&Line<'_>, u64) -> bool,
) -> Option<u64> {
    let needle = needle_a(dcache);
    let hash = needle.hash.child(directory_id(0, ROOT_INO)) as u32;
    let (dentry, seen) = dcache.table.find(hash, |slot| {
        let dentry = dcache.dentries.line(slot);
        let seen = dentry.glimpse_now();
        let is_it = dentry.is_named(seen, &needle, &dcache.dentries) && is_parent(dcache, seen.key);
        is_it.then_some((dentry, seen))
    })?;
    let inode = seen.body.inode();
    if inode == 0 || !dcache.inodes.lockref(inode).get_not_dead() {
        return None;
    }
    let ino = dcache.inodes.ino(inode);
    if is_unchanged(&dentry, seen.seq) { Some(ino) } else { dcache.uncount(inode) }
}

fn is_child_of_root(dcache: &Dcache, key: Key) -> bool {
    dcache.is_parent(key, ROOT_INO)
}

/// The directory of `A` is invalidated, and then `A` is another file, beside one who looks it up with
/// `count`; returns how often that (missed it, counted the first, counted the second).
fn invalidate_against_count(count: fn(&Dcache) -> Option<u64>) -> [usize; 3] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (_, first) = file(&dcache, key, A, 7);
        // Somebody uses the first file, so its dentry stays.
        dcache.inodes.lockref(first.inode).get();
        let second = enter(&dcache, 8, mode::S_IFREG | 0o600);
        let shared = Arc::new((dcache, AtomicU64::new(0)));
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (dcache, told) = &*shared;
                // ORDERING: Acquire. The invalidation happens before the lookup then.
                let is_told = told.load(Ordering::Acquire) == 1;
                let found = count(dcache);
                assert!(!(is_told && found == Some(7)), "T25: an invalidated answer");
                assert!([None, Some(7), Some(8)].contains(&found), "T55: {found:?}");
                tally.hit(found.map_or(0, |ino| ino as usize - 6));
            }
        });
        let (dcache, told) = &*shared;
        dcache.invalidate_directory(key.parent());
        // ORDERING: Release. As above.
        told.store(1, Ordering::Release);
        let now = dcache.directory(key.parent()).unwrap().key;
        let claim = claim_a(dcache, now);
        dcache.publish(now, &needle_a(dcache), Some(second), &claim).unwrap();
        reader.join().unwrap();
    })
}

/// Trap T25: the look at the parent's generation is the instant of the answer.
#[test]
fn count_beside_an_invalidation_is_not_stale() {
    assert_all_reached(&invalidate_against_count(count));
    assert_all_reached(&invalidate_against_count(|dcache| {
        count_with(dcache, is_child_of_root, |line, seq| line.is_unchanged(seq))
    }));
}

/// Trap T25: the parent is not looked at.
#[test]
#[should_panic(expected = "T25: an invalidated answer")]
fn control_count_without_a_look_at_the_parent_is_caught() {
    invalidate_against_count(|dcache| {
        count_with(dcache, |_, _| true, |line, seq| line.is_unchanged(seq))
    });
}

/// `A` is evicted and another name entered in its place, beside one who looks it up with `count`;
/// returns how often that (missed, counted) it.
fn reuse_against_count(count: fn(&Dcache) -> Option<u64>) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS - 1, move |tally| {
        let (dcache, key) = cache();
        let (slot, first) = file(&dcache, key, A, 7);
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
        let inode = if is_evicted { file(&dcache, key, B, 8).1.inode } else { first.inode };
        let is_counted = reader.join().unwrap();
        assert!(!(is_evicted && is_counted), "an inode in use lost its only name");
        let count = dcache.inodes.lockref(inode).count();
        assert_eq!(count, 1 + u64::from(is_counted), "P5: a count was left behind");
        tally.hit(usize::from(is_counted));
    })
}

/// Traps T5, T55, P5: the dentry is looked at again once the inode is counted.
#[test]
fn count_beside_eviction_and_reuse_is_of_that_inode_or_none() {
    assert_all_reached(&reuse_against_count(count));
}

/// Trap T55: the dentry is not looked at again.
#[test]
#[should_panic(expected = "T55: counted another inode")]
fn control_count_without_a_last_look_is_caught() {
    reuse_against_count(|dcache| count_with(dcache, is_child_of_root, |_, _| true));
}

/// What a lookup counts, so that it can be told from other references.
const LOOKUP: u64 = 8;

/// Looks `A` up by number, in the steps of [`Dcache::count_by_number`] but for the one that makes two
/// of the count.
fn count_at_once(dcache: &Dcache) -> Option<u64> {
    let needle = needle_a(dcache);
    let hash = needle.hash.child(directory_id(0, ROOT_INO)) as u32;
    let (dentry, seen) = dcache.table.find(hash, |slot| {
        let dentry = dcache.dentries.line(slot);
        let seen = dentry.glimpse_now();
        let is_it = dentry.is_named(seen, &needle, &dcache.dentries)
            && dcache.is_parent(seen.key, ROOT_INO);
        is_it.then_some((dentry, seen))
    })?;
    let inode = seen.body.inode();
    if inode == 0 || !dcache.inodes.lockref(inode).get_many_below(LOOKUP, LOOKUP << 32) {
        return None;
    }
    let ino = dcache.inodes.ino(inode);
    if dentry.is_unchanged(seen.seq) {
        return Some(ino);
    }
    dcache.put_inode(inode, LOOKUP);
    None
}

/// Drops a lookup of an inode if there is one, as a client does that has none.
fn forget_too_much(dcache: &Dcache, inode: u32) -> bool {
    let mut guard = dcache.inodes.lockref(inode).lock();
    let is_there = guard.count() >= LOOKUP;
    if is_there {
        guard.sub(LOOKUP);
    }
    is_there
}

/// The dentry of `A` changes and its inode is forgotten once too often, beside one who looks it up with
/// `count`; returns how often (the lookup missed, it was not forgotten, what it gave out was).
fn forget_against_count(count: fn(&Dcache) -> Option<u64>) -> [usize; 3] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
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

/// Trap P5: who forgets more than it has takes nothing that is not given out.
#[test]
fn count_beside_a_wrong_forget_keeps_the_references_of_others() {
    assert_all_reached(&forget_against_count(|dcache| dcache.count_by_number(ROOT_INO, A, LOOKUP)));
}

/// Trap P5: all of the count is there to be taken before it is known whether it is right.
#[test]
#[should_panic(expected = "lockref put without a reference")]
fn control_count_in_one_step_is_caught() {
    forget_against_count(count_at_once);
}
