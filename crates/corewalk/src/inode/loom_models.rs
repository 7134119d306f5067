//! Models of an inode's permission record, the cached copy of its mode and owner. While another
//! thread changes the permissions, a reader reads the record, or a thread stores a back end's
//! answer in it.
//!
//! In each model, the reader is the spawned thread. If it were the main thread, loom would skip
//! some schedules, because of a bug of loom (see `tally` in `corewalk_base`).

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;

const OLD: Perm = Perm { mode: mode::S_IFDIR | 0o711, uid: 1, gid: 1, has_acl: false };
const NEW: Perm = Perm { mode: mode::S_IFDIR | 0o722, uid: 2, gid: 2, has_acl: true };

const SLOT: InodeSlot = InodeSlot::new(1);

fn one_inode() -> Arc<Inodes> {
    let inodes = Inodes::new(2, HashKeys::new(Some(1))).unwrap();
    inodes.store_perm(SLOT, OLD, true);
    Arc::new(inodes)
}

fn change_against_perm(change: fn(&Inodes)) -> [usize; 3] {
    Tally::of_bounded(2, move |tally| {
        let inodes = one_inode();
        let reader = thread::spawn({
            let inodes = Arc::clone(&inodes);
            move || {
                let seen = inodes.perm(SLOT);
                assert!([None, Some(OLD), Some(NEW)].contains(&seen), "a torn record: {seen:?}");
                tally.hit(match seen {
                    None => 0,
                    Some(OLD) => 1,
                    Some(_) => 2,
                });
            }
        });
        change(&inodes);
        reader.join().unwrap();
    })
}

/// A reader must not combine the mode and the owner of different states. Trap T16 in `traps.md`.
#[test]
fn perm_beside_a_change_is_whole_or_unknown() {
    assert_all_reached(&change_against_perm(|inodes| {
        let ticket = inodes.begin_change(SLOT);
        inodes.end_change(SLOT, ticket, Some(NEW));
    }));
}

/// Control (a variant with the bug must fail): the permissions are not marked as unknown during a
/// change. So a reader may combine the old mode with the new owner. Trap T16 in `traps.md`.
#[test]
#[should_panic(expected = "a torn record")]
fn control_change_of_a_known_record_is_caught() {
    change_against_perm(|inodes| {
        let Ticket(version) = inodes.ticket(SLOT);
        inodes.store_perm_version(SLOT, NEW, version + 2);
    });
}

fn install_against_change(install: fn(&Inodes, Ticket, Perm)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let inodes = one_inode();
        let _ = inodes.mark_unknown(SLOT);
        // The permissions in the back end: 0 are the old ones, 1 the new ones.
        let store = Arc::new(AtomicU64::new(0));
        let asker = thread::spawn({
            let (inodes, store) = (Arc::clone(&inodes), Arc::clone(&store));
            move || {
                let ticket = inodes.ticket(SLOT);
                // ORDERING: SeqCst. The word `store` stands for a back end, whose calls a lock
                // orders. So this word must not be weaker.
                let answer = if store.load(Ordering::SeqCst) == 0 { OLD } else { NEW };
                install(&inodes, ticket, answer);
                usize::from(answer == NEW)
            }
        });
        let ticket = inodes.begin_change(SLOT);
        // ORDERING: SeqCst. The word `store` stands for a back end, whose calls a lock orders. So
        // this word must not be weaker.
        store.store(1, Ordering::SeqCst);
        inodes.end_change(SLOT, ticket, Some(NEW));
        let answer = asker.join().unwrap();
        assert_eq!(inodes.perm(SLOT), Some(NEW), "T25: an answer from before the change stayed");
        tally.hit(answer);
    })
}

/// An answer that the back end gave before a change must not be stored in the permission record
/// after the change. Trap T25 in `traps.md`.
#[test]
fn late_answer_beside_a_change_is_refused() {
    assert_all_reached(&install_against_change(|inodes, ticket, perm| {
        inodes.install(SLOT, ticket, perm);
    }));
}

/// Control (a variant with the bug must fail): the back end's answer is stored without a check. A
/// change of permissions may have begun since the back end was asked. So old permissions may stay
/// in the cache. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: an answer from before the change stayed")]
fn control_install_without_a_ticket_is_caught() {
    install_against_change(|inodes, _, perm| {
        let _guard = inodes.lockref(SLOT).lock();
        inodes.store_perm(SLOT, perm, true);
    });
}

fn change_against_change(end: fn(&Inodes, Ticket, Perm)) -> [usize; 2] {
    Tally::of_bounded(2, move |tally| {
        let inodes = one_inode();
        // The number of changes that the back end has made. The next change stores this number as
        // the new owner.
        let store = Arc::new(AtomicU64::new(0));
        let changer = move |inodes: &Inodes, store: &AtomicU64| {
            let ticket = inodes.begin_change(SLOT);
            // ORDERING: SeqCst. This word plays a back end, whose own lock orders its calls.
            let uid = store.fetch_add(1, Ordering::SeqCst) as u32;
            end(inodes, ticket, Perm { uid, ..NEW });
        };
        let other = thread::spawn({
            let (inodes, store) = (Arc::clone(&inodes), Arc::clone(&store));
            move || changer(&inodes, &store)
        });
        changer(&inodes, &store);
        other.join().unwrap();
        let known = inodes.perm(SLOT);
        assert!(known.is_none_or(|perm| perm.uid == 1), "T25: the older change stayed");
        tally.hit(usize::from(known.is_some()));
    })
}

/// After two changes that overlap, the cached permissions must be those of the back end's last
/// change, or unknown. Trap T25 in `traps.md`.
#[test]
fn overlapping_changes_leave_the_last_or_nothing() {
    assert_all_reached(&change_against_change(|inodes, ticket, perm| {
        inodes.end_change(SLOT, ticket, Some(perm));
    }));
}

/// Control (a variant with the bug must fail): two threads change the permissions, and then store
/// them in the permission record without a check. The thread that stores last may have reached the
/// back end first. Trap T25 in `traps.md`.
#[test]
#[should_panic(expected = "T25: the older change stayed")]
fn control_change_that_ends_last_is_caught() {
    change_against_change(|inodes, _, perm| {
        let _guard = inodes.lockref(SLOT).lock();
        inodes.store_perm(SLOT, perm, true);
    });
}

fn reuse_against_get(get: fn(&Inodes, &Dentries) -> Option<InodeSlot>) -> [usize; 2] {
    Tally::of_bounded(1, move |tally| {
        let inodes = Inodes::new(2, HashKeys::new(Some(1))).unwrap();
        let shared = Arc::new((inodes, Dentries::new(2).unwrap()));
        let (inodes, dentries) = &*shared;
        let first =
            inodes.get_or_insert(dentries, 0, DentrySlot::NONE, &attr(7), false, 0).unwrap();
        let reader = thread::spawn({
            let shared = Arc::clone(&shared);
            move || {
                let (inodes, dentries) = &*shared;
                let found = get(inodes, dentries);
                if let Some(slot) = found {
                    assert_eq!(inodes.ino(slot), 7, "T55: a reference on another inode");
                    put(inodes, dentries, slot);
                }
                tally.hit(usize::from(found.is_some()));
            }
        });
        if inodes.put(first.slot, 1) {
            inodes.free(first.slot, dentries);
            let second =
                inodes.get_or_insert(dentries, 0, DentrySlot::NONE, &attr(8), false, 0).unwrap();
            assert_eq!(second.slot, first.slot, "the slot is used again");
            put(inodes, dentries, second.slot);
        }
        reader.join().unwrap();
    })
}

fn attr(ino: u64) -> Attr {
    let time = crate::attr::Timespec::default();
    Attr {
        ino,
        generation: 0,
        mode: OLD.mode,
        nlink: 1,
        uid: 0,
        gid: 0,
        rdev: 0,
        size: 0,
        blocks: 0,
        blksize: 4096,
        atime: time,
        mtime: time,
        ctime: time,
        btime: time,
        has_acl: false,
        ttl: crate::attr::Ttl::default(),
    }
}

fn put(inodes: &Inodes, dentries: &Dentries, slot: InodeSlot) {
    if inodes.put(slot, 1) {
        inodes.free(slot, dentries);
    }
}

/// A slot may be reused between the lookup of an inode and the reference on it. A lookup by number
/// must return the wanted inode or none. Trap T55 in `traps.md`.
#[test]
fn get_by_number_beside_reuse_gets_that_inode_or_none() {
    assert_all_reached(&reuse_against_get(|inodes, dentries| {
        inodes.get(0, 7, |stray| put(inodes, dentries, stray))
    }));
}

/// Control (a variant with the bug must fail): the inode number is checked only before the
/// reference is taken. By then, the slot may hold another inode. Trap T55 in `traps.md`.
#[test]
#[should_panic(expected = "T55: a reference on another inode")]
fn control_get_without_a_second_look_is_caught() {
    reuse_against_get(|inodes, _| {
        let hash = inodes.keys.inode(0, 7) as u32;
        inodes.table.find(hash, |slot| {
            (inodes.is(slot, 0, 7) && inodes.lockref(slot).get_not_dead()).then_some(slot)
        })
    });
}
