//! Models of the dentry cache: names are added, renamed and replaced while a reader looks them up.
//!
//! Each model runs the real functions of the cache, on a cache with three slots. Each control test
//! does the same with one wrong step, and must fail.
//!
//! The spawned thread is the reader. If it were the main thread, loom would skip some schedules,
//! because of a bug of loom (see `tally` in `corewalk_base`). At most [`PREEMPTIONS`] preemptions
//! suffice for every control test to fail, except for one in `count`. `cargo xtask nightly` runs
//! the models with one preemption more.

mod count;

use corewalk_base::primitives::{Arc, thread};
use corewalk_base::tally::{Tally, assert_all_reached};

use super::*;
use crate::attr::{Attr, FileKind, mode};
use crate::dentry::{DirectoryWords, kind_flags};
use crate::key_lock::KeyGuard;

/// The maximum number of preemptions in each schedule that loom tries. A switch to another thread
/// at a wait does not count.
pub(super) const PREEMPTIONS: usize = 1;
/// The names in the models have two machine words each, so that a torn read could combine two
/// names.
pub(super) const A: &[u8] = b"aaaaaaaaaaaa";
pub(super) const B: &[u8] = b"bbbbbbbbbbbbbb";

struct SilentHost;

impl Host for SilentHost {
    fn forget(&self, _superblock: u32, _ino: u64, _generation: u64, _slot: InodeSlot) {}

    fn ask_to_forget(&self, _superblock: u32, _parent: u64, _name: Name<'_>) {}
}

pub(super) fn attr(ino: u64, mode: u32) -> Attr {
    let time = crate::attr::Timespec::default();
    Attr {
        ino,
        generation: 0,
        mode,
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

pub(super) fn cache() -> (Dcache, ParentKey) {
    let dcache = Dcache::new(4, Some(1), Box::new(SilentHost)).unwrap();
    let root = enter(&dcache, 1, mode::S_IFDIR | 0o700);
    let slot = dcache.publish_root(root.inode).unwrap();
    let key = dcache.directory(slot).unwrap().key;
    (dcache, key)
}

pub(super) fn enter(dcache: &Dcache, ino: u64, mode: u32) -> DentryInode {
    let attr = attr(ino, mode);
    let entered = dcache
        .inodes
        .get_or_insert(&dcache.dentries, 0, DentrySlot::NONE, &attr, false, 0)
        .unwrap();
    DentryInode { inode: entered.slot, kind: attr.kind() }
}

pub(super) fn file(
    dcache: &Dcache,
    key: ParentKey,
    name: &[u8],
    ino: u64,
) -> (DentrySlot, DentryInode) {
    let node = enter(dcache, ino, mode::S_IFREG | 0o600);
    let slot = enter_name(dcache, key, name, node);
    dcache.put_inode(node.inode, 1);
    (slot, node)
}

pub(super) fn enter_name(
    dcache: &Dcache,
    key: ParentKey,
    name: &[u8],
    node: DentryInode,
) -> DentrySlot {
    let lookup_key = dcache.lookup_key(Name::new(name).unwrap());
    let in_lookup = dcache.in_lookup.lock(dcache.in_lookup_key(key.parent(), &lookup_key));
    let slot = dcache.publish(key, &lookup_key, Some(node), &in_lookup).unwrap();
    drop(in_lookup);
    dcache.put(slot);
    slot
}

pub(super) fn lookup(dcache: &Dcache, key: ParentKey, name: &[u8]) -> Option<u64> {
    let (slot, seen) = dcache.find(key, &dcache.lookup_key(Name::new(name).unwrap()))?;
    let inode = seen.body.inode();
    if seen.body.is_negative() || !dcache.get_inode(slot, seen.seq, inode) {
        return None;
    }
    let ino = dcache.inodes.ino(inode);
    dcache.put_inode(inode, 1);
    Some(ino)
}

fn publish_against_find(
    prepare: fn(&Dcache, ParentKey),
    publish: fn(&Dcache, ParentKey),
) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        prepare(&dcache, key);
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let found = lookup(&dcache, key, A);
                assert!([None, Some(7)].contains(&found), "half-born: {found:?}");
                tally.hit(usize::from(found.is_some()));
            }
        });
        publish(&dcache, key);
        reader.join().unwrap();
    })
}

pub(super) fn lookup_key_a(dcache: &Dcache) -> LookupKey<'static> {
    dcache.lookup_key(Name::new(A).unwrap())
}

pub(super) fn lock_name_a(dcache: &Dcache, key: ParentKey) -> KeyGuard<'_> {
    dcache.in_lookup.lock(dcache.in_lookup_key(key.parent(), &lookup_key_a(dcache)))
}

fn publish_a(dcache: &Dcache, key: ParentKey) {
    file(dcache, key, A, 7);
}

fn publish_negative_a(dcache: &Dcache, key: ParentKey) {
    let slot = dcache.publish(key, &lookup_key_a(dcache), None, &lock_name_a(dcache, key)).unwrap();
    dcache.put(slot);
}

/// A dentry that was just added must already refer to its inode when a reader finds it, and the
/// inode must have its number. Traps T3, T14 and T23 in `traps.md`.
#[test]
fn name_that_is_entered_is_found_whole_or_not() {
    assert_all_reached(&publish_against_find(|_, _| (), publish_a));
}

/// A reader must not see an inode in a dentry before the inode is initialized. Here a negative
/// dentry turns positive in its slot. Traps T3 and T16 in `traps.md`.
#[test]
fn name_that_turns_positive_is_found_whole_or_not() {
    assert_all_reached(&publish_against_find(publish_negative_a, publish_a));
}

fn publish_directory_a(dcache: &Dcache, key: ParentKey) {
    let node = enter(dcache, 7, mode::S_IFDIR | 0o700);
    let slot =
        dcache.publish(key, &lookup_key_a(dcache), Some(node), &lock_name_a(dcache, key)).unwrap();
    dcache.put(slot);
    dcache.put_inode(node.inode, 1);
}

/// A reader must not see an inode in a dentry before the inode is initialized. A name with a
/// negative dentry gets a directory here, whose dentry is in another slot. Traps T3 and T16 in
/// `traps.md`.
#[test]
fn directory_in_place_of_a_negative_is_found_whole_or_not() {
    assert_all_reached(&publish_against_find(publish_negative_a, publish_directory_a));
}

/// Control (a variant with the bug must fail): the dentry gets its inode outside of a write
/// section. So a reader may find the inode before its number is stored. Trap T23 in `traps.md`.
#[test]
#[should_panic(expected = "half-born")]
fn control_inode_before_its_number_is_caught() {
    publish_against_find(publish_negative_a, |dcache, key| {
        let (slot, seen) = dcache.find_exact(key, &lookup_key_a(dcache)).unwrap();
        // Slot 3 is the next one that a new inode gets. Its inode is not marked dead, but has no
        // number yet.
        dcache.dentries.store_body(slot, seen.body.with_inode(InodeSlot::new(3)));
        let node = enter(dcache, 7, mode::S_IFREG | 0o600);
        assert_eq!(node.inode, InodeSlot::new(3));
        dcache.inodes.lockref(node.inode).get();
    });
}

fn rename_against_name(rename: fn(&Dcache, DentrySlot, ParentKey)) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (slot, _) = file(&dcache, key, A, 7);
        assert!(dcache.dentries.lockref(slot).get_not_dead());
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let (_, name) = dcache.name_of(slot);
                let name = name.as_bytes();
                assert!([A, B].contains(&name), "T1: a torn name: {}", name.escape_ascii());
                tally.hit(usize::from(name == B));
            }
        });
        rename(&dcache, slot, key);
        reader.join().unwrap();
    })
}

fn rename_to_b(dcache: &Dcache, slot: DentrySlot, key: ParentKey) {
    let lookup_key = dcache.lookup_key(Name::new(B).unwrap());
    let (from, in_lookup) = (lookup_key_a(dcache), lock_name_a(dcache, key));
    let old_parent = dcache.d_move(slot, &from, key, &lookup_key, None, &in_lookup);
    assert_eq!(old_parent, Ok(DentrySlot::NONE));
}

fn image_b(dcache: &Dcache, slot: DentrySlot, key: ParentKey) -> Image {
    let (body, words) = (dcache.dentries.image(slot).body, DirectoryWords::default());
    dcache.dentries.new_image(key, 0, body.inode(), B, body.flags(), words).unwrap()
}

/// The length and the bytes of a name that a reader copies must all belong to one name. Traps T1
/// and T4 in `traps.md`.
#[test]
fn name_beside_a_rename_is_the_old_or_the_new() {
    assert_all_reached(&rename_against_name(rename_to_b));
}

/// Control (a variant with the bug must fail): the name is stored outside of a write section. So a
/// reader may combine the length of one name with the bytes of another. Trap T1 in `traps.md`.
#[test]
#[should_panic(expected = "T1: a torn name")]
fn control_rename_without_a_section_is_caught() {
    rename_against_name(|dcache, slot, key| {
        dcache.dentries.store(slot, &image_b(dcache, slot, key));
    });
}

fn rename_against_lookups(rename: fn(&Dcache, DentrySlot, ParentKey)) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (slot, _) = file(&dcache, key, A, 7);
        assert!(dcache.dentries.lockref(slot).get_not_dead());
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let is_there = |name| {
                    dcache.find_exact(key, &dcache.lookup_key(Name::new(name).unwrap())).is_some()
                };
                let is_a = is_there(A);
                assert!(is_a || is_there(B), "T13: neither name");
                tally.hit(usize::from(!is_a));
            }
        });
        rename(&dcache, slot, key);
        reader.join().unwrap();
    })
}

/// A reader that misses the old name of a renamed file must then find the new one. Trap T13 in
/// `traps.md`.
#[test]
fn file_that_is_renamed_has_one_name_or_the_other() {
    assert_all_reached(&rename_against_lookups(rename_to_b));
}

/// Control (a variant with the bug must fail): the old name is removed from the hash table before
/// the new one is inserted. So a reader may miss both. Trap T13 in `traps.md`.
#[test]
#[should_panic(expected = "T13: neither name")]
fn control_rename_that_takes_out_first_is_caught() {
    rename_against_lookups(|dcache, slot, key| {
        let old_hash = dcache.hash(key.parent(), lookup_key_a(dcache).hash);
        dcache.table.remove(old_hash, slot);
        let guard = dcache.dentries.lockref(slot).lock();
        let image = image_b(dcache, slot, key);
        dcache.write(slot, &guard, |dcache| dcache.dentries.store(slot, &image));
        drop(guard);
        let lookup_key = dcache.lookup_key(Name::new(B).unwrap());
        dcache.table.insert(dcache.hash(key.parent(), lookup_key.hash), slot);
    });
}

fn replace_against_lookup(rename: fn(&Dcache, DentrySlot, DentrySlot, ParentKey)) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (moved, _) = file(&dcache, key, A, 7);
        let (victim, _) = file(&dcache, key, B, 8);
        for slot in [moved, victim] {
            assert!(dcache.dentries.lockref(slot).get_not_dead());
        }
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let lookup_key = dcache.lookup_key(Name::new(B).unwrap());
                let found = dcache.find_exact(key, &lookup_key).map(|(slot, _)| slot);
                assert!(found.is_some(), "T13: the target was missing");
                tally.hit(usize::from(found == Some(moved)));
            }
        });
        rename(&dcache, moved, victim, key);
        reader.join().unwrap();
    })
}

/// While one file is renamed over another, a lookup must always find the target name. Traps T12 and
/// T13 in `traps.md`.
#[test]
fn target_of_a_rename_is_always_there() {
    assert_all_reached(&replace_against_lookup(|dcache, moved, victim, key| {
        let lookup_key = dcache.lookup_key(Name::new(B).unwrap());
        let (from, in_lookup) = (lookup_key_a(dcache), lock_name_a(dcache, key));
        let old_parent = dcache.d_move(moved, &from, key, &lookup_key, Some(victim), &in_lookup);
        assert_eq!(old_parent, Ok(DentrySlot::NONE));
    }));
}

/// Control (a variant with the bug must fail): the replaced file is removed before the other file
/// is moved. So for a moment the target name does not exist. Trap T13 in `traps.md`.
#[test]
#[should_panic(expected = "T13: the target was missing")]
fn control_rename_in_two_sections_is_caught() {
    replace_against_lookup(|dcache, moved, victim, key| {
        let guard = dcache.dentries.lockref(victim).lock();
        let body = unhashed(dcache.dentries.image(victim).body);
        dcache.write(victim, &guard, |dcache| dcache.dentries.store_body(victim, body));
        drop(guard);
        let lookup_key = dcache.lookup_key(Name::new(B).unwrap());
        let (from, in_lookup) = (lookup_key_a(dcache), lock_name_a(dcache, key));
        let old_parent = dcache.d_move(moved, &from, key, &lookup_key, None, &in_lookup);
        assert_eq!(old_parent, Ok(DentrySlot::NONE));
    });
}

fn kind_against_lookup(change: fn(&Dcache, DentrySlot, InodeSlot)) -> [usize; 2] {
    Tally::of_bounded(PREEMPTIONS, move |tally| {
        let (dcache, key) = cache();
        let (slot, file) = file(&dcache, key, A, 7);
        let directory = enter(&dcache, 8, mode::S_IFDIR | 0o700);
        let dcache = Arc::new(dcache);
        let reader = thread::spawn({
            let dcache = Arc::clone(&dcache);
            move || {
                let seen = loop {
                    let seen = dcache.dentries.snapshot(slot);
                    if dcache.dentries.is_unchanged(slot, seen.seq) {
                        break seen;
                    }
                };
                let is_directory = seen.body.is_directory();
                let right = if is_directory { directory } else { file };
                assert_eq!(seen.body.inode(), right.inode, "T16: another's flag");
                assert_eq!(dcache.inodes.kind(right.inode), right.kind);
                tally.hit(usize::from(is_directory));
            }
        });
        change(&dcache, slot, directory.inode);
        reader.join().unwrap();
    })
}

/// A reader must see the type flag and the inode of a dentry change together. Both are in one word
/// for this reason. Trap T16 in `traps.md`.
#[test]
fn kind_and_inode_of_a_dentry_belong_together() {
    assert_all_reached(&kind_against_lookup(|dcache, slot, inode| {
        let guard = dcache.dentries.lockref(slot).lock();
        let body = Body::new(0, inode, A.len(), Flags::HASHED | kind_flags(FileKind::Directory));
        dcache.write(slot, &guard, |dcache| dcache.dentries.store_body(slot, body));
    }));
}

/// Control (a variant with the bug must fail): the type flag is stored before the inode. So a
/// reader may see the new flag with the old inode. Trap T16 in `traps.md`.
#[test]
#[should_panic(expected = "T16: another's flag")]
fn control_flag_and_inode_in_two_steps_is_caught() {
    kind_against_lookup(|dcache, slot, inode| {
        let body = dcache.dentries.image(slot).body;
        let flagged = body.with_flags(body.flags() | kind_flags(FileKind::Directory));
        dcache.dentries.store_body(slot, flagged);
        dcache.dentries.store_body(slot, flagged.with_inode(inode));
    });
}
