//! Models of the two halves of a slot, which live and die on their own, and of long names.
//!
//! Who looks at the outcome is the spawned thread where there is one: see `tally` in the sync crate.

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::cold::GENERATION_SHIFT;
use super::*;
use crate::name::padded;

/// Returns slots of which one has both halves in use, and that.
fn one_slot() -> (Arc<Dentries>, u32) {
    let dentries = Dentries::new(4).unwrap();
    let slot = dentries.alloc_inode(0, Group::Many).unwrap();
    assert_eq!(dentries.alloc(slot, Group::Many), Some(slot), "the dentry lies beside its inode");
    (Arc::new(dentries), slot)
}

/// Returns the word of a slot that stands for what a half holds.
fn word_of(dentries: &Dentries, slot: u32, half: Half) -> &AtomicU64 {
    &dentries.hot.get(slot)[match half {
        Half::Dentry => 1,
        Half::Inode => 2,
    }]
}

/// Both halves of a slot are freed with `free` at once, each after a last word, and each thread then
/// takes a slot; returns how often the one who had the (dentry, inode) half got the slot again.
fn free_against_free(free: fn(&Dentries, Half, u32)) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let (dentries, slot) = one_slot();
        let end = move |dentries: &Dentries, half| {
            // ORDERING: Relaxed. The halves have to order it.
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

/// Traps T7, T59: whoever is last gives the slot back, and who has it next sees what both left.
#[test]
fn slot_whose_halves_die_at_once_is_given_back_once() {
    assert_all_reached(&free_against_free(|dentries, half, slot| {
        if let Half::Dentry = half {
            assert!(dentries.cold(slot).next_generation());
        }
        dentries.free_half(half, slot);
    }));
}

/// Trap T33: a half is given back with a load and a store.
#[test]
#[should_panic(expected = "the slot was not given back")]
fn control_half_in_two_steps_is_caught() {
    free_against_free(|dentries, half, slot| {
        let word = dentries.cold(slot).0;
        // ORDERING: Acquire. Strong enough; it is the two steps that are wrong.
        let before = word.load(Ordering::Acquire);
        // ORDERING: Release. As above.
        word.store(before & !(half as u64), Ordering::Release);
        if before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64 {
            dentries.hot.free(slot);
        }
    });
}

/// Trap T33: the next generation is stored, with the other half as it was before.
#[test]
#[should_panic(expected = "the slot was not given back")]
fn control_generation_that_is_stored_is_caught() {
    free_against_free(|dentries, half, slot| {
        if let Half::Dentry = half {
            let word = dentries.cold(slot).0;
            // ORDERING: Acquire. Strong enough; it is the two steps that are wrong.
            let before = word.load(Ordering::Acquire);
            // ORDERING: Release. As above.
            word.store(before.wrapping_add(1 << GENERATION_SHIFT), Ordering::Release);
        }
        dentries.free_half(half, slot);
    });
}

/// Trap T7: the halves do not order what was stored before.
#[test]
#[should_panic(expected = "half was not seen")]
fn control_relaxed_release_of_a_half_is_caught() {
    free_against_free(|dentries, half, slot| {
        // ORDERING: Relaxed. Wrong on purpose.
        let before = dentries.cold(slot).0.fetch_and(!(half as u64), Ordering::Relaxed);
        if before & (Half::Dentry as u64 | Half::Inode as u64) == half as u64 {
            dentries.hot.free(slot);
        }
    });
}

/// The dentry half of a slot is freed beside one who holds the inode there and looks with `take` for
/// room for its next dentry; returns how often that was (elsewhere, there).
fn free_against_take(take: fn(&Dentries, u32) -> bool) -> [usize; 2] {
    Tally::of_bounded(3, move |tally| {
        let (dentries, slot) = one_slot();
        let taker = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || {
                let has_taken = take(&dentries, slot);
                if has_taken {
                    // ORDERING: Relaxed. The half has to order it.
                    let seen = word_of(&dentries, slot, Half::Dentry).load(Ordering::Relaxed);
                    assert_eq!(seen, 7, "the last word of the half was not seen");
                }
                tally.hit(usize::from(has_taken));
            }
        });
        // ORDERING: Relaxed. As above.
        word_of(&dentries, slot, Half::Dentry).store(7, Ordering::Relaxed);
        dentries.free(slot);
        taker.join().unwrap();
        let before = dentries.hot.in_use();
        dentries.free_inode(slot);
        let is_given_back = dentries.hot.in_use() < before;
        // ORDERING: Relaxed. Both threads are done.
        let is_used = dentries.cold(slot).0.load(Ordering::Relaxed) & Half::Dentry as u64 != 0;
        assert_eq!(is_given_back, !is_used, "a slot is free when neither half is in use");
    })
}

/// Trap T7: a half that is free beside an inode is taken with what its last user left.
#[test]
fn half_that_dies_beside_a_taker_is_taken_whole_or_not() {
    assert_all_reached(&free_against_take(|dentries, slot| {
        dentries.alloc(slot, Group::Many) == Some(slot)
    }));
}

/// Trap T7: the half is taken without an order.
#[test]
#[should_panic(expected = "the last word of the half was not seen")]
fn control_relaxed_take_of_a_half_is_caught() {
    free_against_take(|dentries, slot| {
        // ORDERING: Relaxed. Wrong on purpose.
        dentries.cold(slot).0.fetch_or(Half::Dentry as u64, Ordering::Relaxed) & Half::Dentry as u64
            == 0
    });
}

/// Names that go on in a slot of their own, as they have more than three words.
const OLD: &[u8] = &[b'o'; 30];
const NEW: &[u8] = &[b'n'; 29];

fn image(dentries: &Dentries, name: &[u8]) -> Image {
    let (key, words) = (Key::new(1, 1), DirectoryWords::default());
    dentries.new_image(key, (0, 0), name, Flags::HASHED, words).unwrap()
}

/// A dentry gets another long name, and where the rest of the first one was is used again with
/// `reuse`, beside a reader of the name; returns how often that saw (a change, the old, the new).
fn reuse_against_name(reuse: fn(&Dentries)) -> [usize; 3] {
    Tally::of_bounded(3, move |tally| {
        let dentries = Arc::new(Dentries::new(4).unwrap());
        let slot = dentries.alloc(0, Group::Many).unwrap();
        dentries.store(slot, &image(&dentries, OLD));
        let reader = thread::spawn({
            let dentries = Arc::clone(&dentries);
            move || {
                let seen = dentries.line(slot).glimpse_now();
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
        // Not the renamer uses it again: its own stores come after its section for all to see.
        renamer.join().unwrap();
        reuse(&dentries);
        reader.join().unwrap();
    })
}

/// Traps T2, T5, T6: a reader who is still in the rest of a name does not believe what comes there.
#[test]
fn long_name_beside_reuse_of_its_slot_is_whole() {
    assert_all_reached(&reuse_against_name(|dentries| {
        let reference = dentries.store_long(&[b'x'; 14], 0).unwrap();
        assert_eq!(reference, 1 | (2 << LONG_SIZE_SHIFT), "the slot is used again");
    }));
}

/// Trap T5: what is stored in the slot may be seen before the dentry that left it has changed.
#[test]
#[should_panic(expected = "T5: torn")]
fn control_long_name_without_a_fence_is_caught() {
    reuse_against_name(|dentries| {
        let slot = dentries.large.alloc().unwrap();
        assert_eq!(slot, 1, "the slot is used again");
        for word in dentries.large.get(slot) {
            // ORDERING: Relaxed. Wrong on purpose: nothing comes before it.
            word.store(padded(&[b'x'; 8]), Ordering::Relaxed);
        }
    });
}
