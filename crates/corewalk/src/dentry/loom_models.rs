//! Models of a slot whose two halves, for a dentry and an inode, are allocated and freed by
//! different threads. Also models of long names.
//!
//! In each model, the spawned thread checks the result. If the main thread did, loom would skip
//! some schedules, because of a bug of loom (see `tally` in `corewalk_base`).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::cold::GENERATION_SHIFT;
use super::*;
use crate::name::padded;

fn one_slot() -> (Arc<Dentries>, u32) {
    let dentries = Dentries::new(4).unwrap();
    let slot = dentries.alloc_inode(DentrySlot::NONE, Group::Many).unwrap();
    let dentry = dentries.alloc(slot, Group::Many);
    assert_eq!(dentry, Some(slot.dentry_half()), "the dentry lies beside its inode");
    (Arc::new(dentries), slot.get())
}

fn word_of(dentries: &Dentries, slot: u32, half: Half) -> &AtomicU64 {
    &dentries.hot.get(slot)[match half {
        Half::Dentry => 1,
        Half::Inode => 2,
    }]
}

fn free_against_free(free: fn(&Dentries, Half, u32)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let (dentries, slot) = one_slot();
        let end = move |dentries: &Dentries, half| {
            // ORDERING: Relaxed. This thread stores a word in its half of the slot, and then frees
            // the half. The model checks that the next owner of the half sees this store.
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

/// A slot whose two halves are freed by two threads at the same time must be freed exactly once.
/// Its next owner must see the stores of both. Traps T7 and T59 in `traps.md`.
#[test]
fn slot_whose_halves_die_at_once_is_given_back_once() {
    assert_all_reached(&free_against_free(|dentries, half, slot| {
        if let Half::Dentry = half {
            assert!(dentries.cold_of(slot).next_generation());
        }
        dentries.free_half(half, slot);
    }));
}

/// Control (a variant with the bug must fail): one half of a slot is freed with a load and a store.
/// The word that they access has a bit for each half. A concurrent change of the other half's bit
/// is lost. Trap T33 in `traps.md`.
#[test]
#[should_panic(expected = "the slot was not given back")]
fn control_half_in_two_steps_is_caught() {
    free_against_free(|dentries, half, slot| {
        let word = dentries.cold_of(slot).0;
        // ORDERING: Acquire, as in the original. The bug is that the load and the store are two
        // steps.
        let before = word.load(Ordering::Acquire);
        // ORDERING: Release, as in the original. The bug is that the load and the store are two
        // steps.
        word.store(before & !(half as u64), Ordering::Release);
        if before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64 {
            dentries.hot.free(slot);
        }
    });
}

/// Control (a variant with the bug must fail): a load and a store increment the generation in a
/// slot's cold word. If another thread clears the bit of the inode half in between, the store sets
/// that bit again. Trap T33 in `traps.md`.
#[test]
#[should_panic(expected = "the slot was not given back")]
fn control_generation_that_is_stored_is_caught() {
    free_against_free(|dentries, half, slot| {
        if let Half::Dentry = half {
            let word = dentries.cold_of(slot).0;
            // ORDERING: Acquire, as in the original. The bug is that the load and the store are two
            // steps.
            let before = word.load(Ordering::Acquire);
            // ORDERING: Release, as in the original. The bug is that the load and the store are two
            // steps.
            word.store(before.wrapping_add(1 << GENERATION_SHIFT), Ordering::Release);
        }
        dentries.free_half(half, slot);
    });
}

/// Control (a variant with the bug must fail): a slot's dentry half or inode half is freed with
/// Relaxed instead of AcqRel. So the next owner may not see the last stores of the earlier one.
/// Trap T7 in `traps.md`.
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

fn free_against_take(take: fn(&Dentries, u32) -> bool) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let (dentries, slot) = one_slot();
        let taker = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || {
                let has_taken = take(&dentries, slot);
                if has_taken {
                    // ORDERING: Relaxed. This thread now owns the dentry half of the slot. The
                    // model checks that this load sees the last store of the half's earlier owner.
                    let seen = word_of(&dentries, slot, Half::Dentry).load(Ordering::Relaxed);
                    assert_eq!(seen, 7, "the last word of the half was not seen");
                }
                tally.hit(usize::from(has_taken));
            }
        });
        // ORDERING: Relaxed. This is the last store of this thread to the dentry half of the slot.
        // The model checks that the next owner of the half sees it.
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

/// One thread frees the dentry half of a slot, whose inode half stays in use. Another thread
/// allocates the dentry half. It must see the last stores of the old owner. Trap T7 in `traps.md`.
#[test]
fn half_that_dies_beside_a_taker_is_taken_whole_or_not() {
    assert_all_reached(&free_against_take(|dentries, slot| {
        dentries.alloc(InodeSlot::new(slot), Group::Many) == Some(DentrySlot::new(slot))
    }));
}

/// Control (a variant with the bug must fail): the variant allocates one half of a slot with a
/// relaxed operation. So the new owner may not see the last stores of the earlier owner. Trap T7 in
/// `traps.md`.
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

/// Names of 30 and 29 bytes. In loom models a dentry has three name words, so the rest of these
/// names is in a slot for long names.
const OLD: &[u8] = &[b'o'; 30];
const NEW: &[u8] = &[b'n'; 29];

fn image(dentries: &Dentries, name: &[u8]) -> Image {
    let (key, words) = (ParentKey::new(DentrySlot::new(1), 1), DirectoryWords::default());
    dentries.new_image(key, 0, InodeSlot::NONE, name, Flags::HASHED, words).unwrap()
}

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
        // The main thread reuses the slot. If the renaming thread did, the order of its own stores
        // would hide the bug of the control test.
        renamer.join().unwrap();
        reuse(&dentries);
        reader.join().unwrap();
    })
}

/// A reader of a long name whose slot is reused must not take words of the next name for words of
/// the old one. Traps T2, T5 and T6 in `traps.md`.
#[test]
fn long_name_beside_reuse_of_its_slot_is_whole() {
    assert_all_reached(&reuse_against_name(|dentries| {
        let reference = dentries.store_long(&[b'x'; 14], 0).unwrap();
        assert_eq!(reference, 1 | (2 << LONG_SIZE_SHIFT), "the slot is used again");
    }));
}

/// Control (a variant with the bug must fail): the slot of an old long name is reused, but no fence
/// precedes the stores to it. A reader of the old name may read new words without seeing the
/// dentry's new sequence, and accept the mixed name. Trap T5 in `traps.md`.
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
