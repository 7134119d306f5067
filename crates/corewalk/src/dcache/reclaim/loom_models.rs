//! Models of eviction: a dentry dies and its slot is reused, while another thread takes a
//! reference.
//!
//! In each model, the reader is the spawned thread. If it were the main thread, loom would skip
//! some schedules, because of a bug of loom (see `tally` in `corewalk_base`).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::super::loom_models::{PREEMPTIONS, cache, file};
use super::*;
use crate::dentry::Body;
use crate::slot::Seq;

fn evict(dcache: &Dcache, slot: DentrySlot) -> bool {
    matches!(dcache.evict(slot, Chance::None), Outcome::Evicted(_))
}

fn evict_against_get(get: fn(&Dcache, DentrySlot, Seq) -> bool) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (slot, _) = file(&dcache, key, b"old", 7);
        let seq = dcache.dentries.snapshot(slot).seq;
        let dcache = Arc::new(dcache);
        let getter = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let has_got = get(&dcache, slot, seq);
                if has_got {
                    let (_, name) = dcache.name_of(slot);
                    assert_eq!(name.as_bytes(), b"old", "T55: a reference on another dentry");
                }
                has_got
            }
        });
        let is_evicted = evict(&dcache, slot);
        if is_evicted {
            let (reused, _) = file(&dcache, key, b"new", 8);
            assert_eq!(reused, slot, "the slot is used again");
        }
        let has_got = getter.join().unwrap();
        assert!(has_got != is_evicted, "T18: both or neither of them won");
        tally.hit(usize::from(has_got));
    })
}

/// A reader must never get a reference on the next dentry in the slot of an evicted dentry. Traps
/// T5, T7, T17, T18 and T55 in `traps.md`.
#[test]
fn get_beside_eviction_and_reuse_has_one_winner() {
    assert_all_reached(&evict_against_get(Dcache::get));
}

/// Control (a variant with the bug must fail): the reader validates the dentry's sequence before it
/// takes the reference, and not afterwards. So the reference may be on the next dentry in the slot.
/// Trap T55 in `traps.md`.
#[test]
#[should_panic(expected = "T55: a reference on another dentry")]
fn control_get_that_validates_first_is_caught() {
    evict_against_get(|dcache, slot, seq| {
        dcache.dentries.is_unchanged(slot, seq) && dcache.dentries.lockref(slot).get_not_dead()
    });
}

fn evict_against_get_inode(evict: fn(&Dcache, DentrySlot) -> bool) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (slot, node) = file(&dcache, key, b"old", 7);
        let seq = dcache.dentries.snapshot(slot).seq;
        let dcache = Arc::new(dcache);
        let finder = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || dcache.get_inode(slot, seq, node.inode)
        });
        let is_evicted = evict(&dcache, slot);
        let is_in_use = finder.join().unwrap();
        assert!(!(is_evicted && is_in_use), "an inode in use lost its only name");
        // Both threads may fail: the eviction sees the reader's reference and is undone, and the
        // reader sees a changed sequence and drops its reference.
        tally.hit(usize::from(is_in_use));
    })
}

/// An eviction must spare the only name of an inode in use. The eviction changes the dentry and
/// then reads the inode's reference count. The reader increments that count and then reads the
/// dentry. Both use the inode's lockref. So the eviction sees the reference, or the reader sees the
/// changed dentry.
#[test]
fn eviction_beside_a_finder_spares_the_name_in_use() {
    assert_all_reached(&evict_against_get_inode(evict));
}

/// Control (a variant with the bug must fail): the eviction reads the reference count without the
/// inode's lock. So it may miss a reference and evict the only name of an inode in use.
#[test]
#[should_panic(expected = "an inode in use lost its only name")]
fn control_eviction_that_only_looks_at_the_count_is_caught() {
    evict_against_get_inode(|dcache, slot| {
        let body = dcache.dentries.snapshot(slot).body;
        let guard = dcache.dentries.lockref(slot).lock();
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, unhashed(body)));
        let is_in_use = dcache.inodes.lockref(body.inode()).count() > 1;
        let next = if is_in_use { body } else { Body(0) };
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, next));
        !is_in_use
    });
}

fn evict_both_names(evict: fn(&Dcache, DentrySlot) -> bool) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (first, node) = file(&dcache, key, b"one", 7);
        // Take a reference, so that the inode is in use.
        dcache.inodes.lockref(node.inode).get();
        let lookup_key = dcache.lookup_key(Name::new(b"two").unwrap());
        let in_lookup = dcache.in_lookup.lock(dcache.in_lookup_key(key.parent(), &lookup_key));
        let second = dcache.publish(key, &lookup_key, Some(node), &in_lookup).unwrap();
        drop(in_lookup);
        dcache.put(second);
        let dcache = Arc::new(dcache);
        let other = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || evict(&dcache, first)
        });
        evict(&dcache, second);
        let is_evicted = other.join().unwrap();
        assert!(!dcache.inodes.alias(node.inode).is_none(), "an inode in use lost both names");
        tally.hit(usize::from(is_evicted));
    })
}

#[test]
fn evictions_of_two_names_leave_one_to_an_inode_in_use() {
    assert_all_reached(&evict_both_names(evict));
}

/// Control (a variant with the bug must fail): the eviction checks in one step whether the inode
/// has another name. In a second step it removes the dentry. So two threads may evict both names of
/// an inode in use.
#[test]
#[should_panic(expected = "an inode in use lost both names")]
fn control_eviction_that_looks_before_it_removes_is_caught() {
    evict_both_names(|dcache, slot| {
        let inode = dcache.dentries.snapshot(slot).body.inode();
        let is_free = !dcache.inodes.is_only_alias_in_use(inode, slot, &dcache.dentries);
        if is_free {
            dcache.inodes.remove_alias(inode, slot, &dcache.dentries);
        }
        is_free
    });
}
