//! Models of the two halves of a slot, which live and die separately, and of long names.
//!
//! The thread that checks the outcome is the spawned one. Otherwise loom, because of a known bug,
//! skips schedules (see `tally` in the base crate).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::cold::GENERATION_SHIFT;
use super::*;
use crate::name::padded;

/// Returns dentries with one slot in which both halves are in use. Also returns that slot.
fn one_slot() -> (Arc<Dentries>, u32) {
    let dentries = Dentries::new(4).unwrap();
    let slot = dentries.alloc_inode(DentrySlot::NONE, Group::Many).unwrap();
    let dentry = dentries.alloc(slot, Group::Many);
    assert_eq!(dentry, Some(slot.dentry_half()), "the dentry lies beside its inode");
    (Arc::new(dentries), slot.get())
}

/// Returns the word of the slot that stands for the content of one half.
fn word_of(dentries: &Dentries, slot: u32, half: Half) -> &AtomicU64 {
    &dentries.hot.get(slot)[match half {
        Half::Dentry => 1,
        Half::Inode => 2,
    }]
}

/// Two threads each store a word in one half of the same slot, free this half with `free`, and then
/// allocate a half of the same type again. Returns how often the thread of the dentry half got the
/// slot again, and how often the thread of the inode half did.
fn free_against_free(free: fn(&Dentries, Half, u32)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let (dentries, slot) = one_slot();
        let end = move |dentries: &Dentries, half| {
            // ORDERING: Relaxed. The model checks that the free of the half orders this store
            // before the next use of the half.
            word_of(dentries, slot, half).store(7, Ordering::Relaxed);
            free(dentries, half, slot);
            let next = dentries.alloc_half(half, 0, Group::Many).expect("there are more slots");
            if next == slot {
                for half in [Half::Dentry, Half::Inode] {
                    // ORDERING: Relaxed. As above.
                    let seen = word_of(dentries, slot, half).load(Ordering::Relaxed);
                    assert_eq!(seen, 7, "the last word of the {half:?} half was not seen");
                }
            }
            next
        };
        let inode = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || end(&dentries, Half::Inode)
        });
        let next = [end(&dentries, Half::Dentry), inode.join().unwrap()];
        assert_ne!(next[0], next[1], "the slot was given back twice");
        let last = next.iter().position(|&next| next == slot);
        tally.hit(last.expect("the slot was not given back"));
    })
}

/// Traps T7, T59: the last of two threads that free the halves must free the slot, once. The next
/// owner of the slot must see the stores of both threads.
#[test]
fn slot_whose_halves_die_at_once_is_given_back_once() {
    assert_all_reached(&free_against_free(|dentries, half, slot| {
        if let Half::Dentry = half {
            assert!(dentries.cold_of(slot).next_generation());
        }
        dentries.free_half(half, slot);
    }));
}

/// Trap T33, control (a variant with the bug must fail): a half is freed with a load and a store.
/// So the other thread's change of the word is lost.
#[test]
#[should_panic(expected = "the slot was not given back")]
fn control_half_in_two_steps_is_caught() {
    free_against_free(|dentries, half, slot| {
        let word = dentries.cold_of(slot).0;
        // ORDERING: Acquire. Strong enough: this control fails because the load and the store are
        // two steps.
        let before = word.load(Ordering::Acquire);
        // ORDERING: Release. Strong enough: this control fails because the load and the store are
        // two steps.
        word.store(before & !(half as u64), Ordering::Release);
        if before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64 {
            dentries.hot.free(slot);
        }
    });
}

/// Trap T33, control (a variant with the bug must fail): the store of the next generation also
/// stores an old value of the inode half's bit. So another thread's change of that bit is lost.
#[test]
#[should_panic(expected = "the slot was not given back")]
fn control_generation_that_is_stored_is_caught() {
    free_against_free(|dentries, half, slot| {
        if let Half::Dentry = half {
            let word = dentries.cold_of(slot).0;
            // ORDERING: Acquire. Strong enough: this control fails because the load and the store
            // are two steps.
            let before = word.load(Ordering::Acquire);
            // ORDERING: Release. Strong enough: this control fails because the load and the store
            // are two steps.
            word.store(before.wrapping_add(1 << GENERATION_SHIFT), Ordering::Release);
        }
        dentries.free_half(half, slot);
    });
}

/// Trap T7, control (a variant with the bug must fail): the free of a half does not order the
/// stores before it. So the slot is reused while a last user still stores to it.
#[test]
#[should_panic(expected = "half was not seen")]
fn control_relaxed_release_of_a_half_is_caught() {
    free_against_free(|dentries, half, slot| {
        // ORDERING: Relaxed. Wrong on purpose.
        let before = dentries.cold_of(slot).0.fetch_and(!(half as u64), Ordering::Relaxed);
        if before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64 {
            dentries.hot.free(slot);
        }
    });
}

/// One thread frees the dentry half of a slot. Meanwhile another thread, which holds the inode in
/// that slot, allocates a dentry beside it with `take`. Returns how often that dentry got another
/// slot, and how often the slot of the inode.
fn free_against_take(take: fn(&Dentries, u32) -> bool) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let (dentries, slot) = one_slot();
        let taker = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || {
                let has_taken = take(&dentries, slot);
                if has_taken {
                    // ORDERING: Relaxed. The model checks that the allocation of the half orders
                    // this load after the other thread's store.
                    let seen = word_of(&dentries, slot, Half::Dentry).load(Ordering::Relaxed);
                    assert_eq!(seen, 7, "the last word of the half was not seen");
                }
                tally.hit(usize::from(has_taken));
            }
        });
        // ORDERING: Relaxed. The model checks that the free of the half orders this store before
        // the next use of the half.
        word_of(&dentries, slot, Half::Dentry).store(7, Ordering::Relaxed);
        dentries.free(DentrySlot::new(slot));
        taker.join().unwrap();
        let before = dentries.hot.in_use();
        dentries.free_inode(InodeSlot::new(slot));
        let is_given_back = dentries.hot.in_use() < before;
        // ORDERING: Relaxed. Both threads are done.
        let is_used = dentries.cold_of(slot).0.load(Ordering::Relaxed) & Half::Dentry as u64 != 0;
        assert_eq!(is_given_back, !is_used, "a slot is free when neither half is in use");
    })
}

/// Trap T7: if a half is allocated beside an inode, its new owner must see the last stores of its
/// previous user.
#[test]
fn half_that_dies_beside_a_taker_is_taken_whole_or_not() {
    assert_all_reached(&free_against_take(|dentries, slot| {
        dentries.alloc(InodeSlot::new(slot), Group::Many) == Some(DentrySlot::new(slot))
    }));
}

/// Trap T7, control (a variant with the bug must fail): the half is allocated with `Relaxed`. So
/// its new owner may not see the last user's stores.
#[test]
#[should_panic(expected = "the last word of the half was not seen")]
fn control_relaxed_take_of_a_half_is_caught() {
    free_against_take(|dentries, slot| {
        // ORDERING: Relaxed. Wrong on purpose.
        dentries.cold_of(slot).0.fetch_or(Half::Dentry as u64, Ordering::Relaxed)
            & Half::Dentry as u64
            == 0
    });
}

/// Names of 30 and 29 bytes. A dentry of a model has three inline words, so these names continue in
/// a long slot.
const OLD: &[u8] = &[b'o'; 30];
const NEW: &[u8] = &[b'n'; 29];

fn image(dentries: &Dentries, name: &[u8]) -> Image {
    let (key, words) = (ParentKey::new(DentrySlot::new(1), 1), DirectoryWords::default());
    dentries.new_image(key, 0, InodeSlot::NONE, name, Flags::HASHED, words).unwrap()
}

/// A dentry gets another long name, and `reuse` reuses the long slot of the old name. Meanwhile a
/// reader reads the name. Returns how often the reader's validation failed, and how often it read
/// the old name and the new name.
fn reuse_against_name(reuse: fn(&Dentries)) -> [usize; 3] {
    Tally::of_bounded(2, move |tally| {
        let dentries = Arc::new(Dentries::new(4).unwrap());
        let slot = dentries.alloc(InodeSlot::NONE, Group::Many).unwrap();
        dentries.store(slot, &image(&dentries, OLD));
        let reader = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || {
                let seen = dentries.line(slot).snapshot_now();
                let mut copy = NameCopy::new();
                dentries.copy_name(slot, seen.body, &mut copy);
                if !dentries.is_unchanged(slot, seen.seq) {
                    return tally.hit(0);
                }
                let name = copy.as_bytes();
                assert!([OLD, NEW].contains(&name), "T5: torn: {}", name.escape_ascii());
                tally.hit(if name == OLD { 1 } else { 2 });
            }
        });
        let renamer = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || {
                let next = image(&dentries, NEW);
                let section = dentries.seq(slot).write();
                let before = dentries.store(slot, &next);
                drop(section);
                dentries.drop_image(&before);
            }
        });
        // The renamer itself does not reuse the slot. The order of one thread's stores would hide
        // the fault of the control test.
        renamer.join().unwrap();
        reuse(&dentries);
        reader.join().unwrap();
    })
}

/// Traps T2, T5, T6: a reader of a long slot that is reused meanwhile must not take the words of
/// the next name for the old name.
#[test]
fn long_name_beside_reuse_of_its_slot_is_whole() {
    assert_all_reached(&reuse_against_name(|dentries| {
        let reference = dentries.store_long(&[b'x'; 14], 0).unwrap();
        assert_eq!(reference, 1 | (2 << LONG_SIZE_SHIFT), "the slot is used again");
    }));
}

/// Trap T5, control (a variant with the bug must fail): no fence precedes the stores to the long
/// slot. So a store to the reused long slot may be visible before the change of the dentry that
/// used the slot.
#[test]
#[should_panic(expected = "T5: torn")]
fn control_long_name_without_a_fence_is_caught() {
    reuse_against_name(|dentries| {
        let slot = dentries.large.alloc().unwrap();
        assert_eq!(slot, 1, "the slot is used again");
        for word in dentries.large.get(slot) {
            // ORDERING: Relaxed. Wrong on purpose: no fence precedes the store.
            word.store(padded(&[b'x'; 8]), Ordering::Relaxed);
        }
    });
}
