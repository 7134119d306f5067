//! Tests of names with several dentries in the hash table, of which a lookup must find only one.

use std::sync::Arc;

use super::*;
use crate::Vfs;
use crate::cred::Cred;
use crate::fs::Make;
use crate::name::Name;
use crate::tmpfs::{Tmpfs, TmpfsOptions};
use crate::vfs::VfsOptions;

fn inodes_after_rename(
    entered: &[Option<()>],
    target: Option<usize>,
) -> (Vec<InodeSlot>, InodeSlot) {
    let options = VfsOptions { entries_max: 1024, ..VfsOptions::default() };
    let vfs: Arc<Vfs> = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), options).unwrap();
    let (cred, root) = (Cred::root(), vfs.root());
    let [from, other, to] = [&b"from"[..], b"other", b"to"].map(|name| Name::new(name).unwrap());
    let make = |name| vfs.make(&cred, &root, name, Make::new(0o644, 0, 0)).unwrap().0;
    let (moved, stale) = (make(from), make(other));
    let (dcache, parent) = (&vfs.dcache, vfs.mounts.root());
    let (key, lookup_key) = (dcache.key_of_held(parent), dcache.lookup_key(to));
    let hash = dcache.hash(parent, lookup_key.hash);
    let in_lookup = dcache.in_lookup.lock(dcache.in_lookup_key(parent, &lookup_key));
    let slots: Vec<DentrySlot> = entered
        .iter()
        .map(|is_positive| {
            assert!(dcache.dentries.lockref(parent).get_not_dead());
            let node =
                is_positive.map(|()| DentryInode { inode: stale.slot, kind: FileKind::Regular });
            let entry = NewName { hash, key, lookup_key: &lookup_key, in_lookup: &in_lookup };
            dcache.publish_new(&entry, node).unwrap()
        })
        .collect();
    let target = target.map(|nth| slots[nth]);
    let from = dcache.lookup_key(from);
    let (slot, seen) = dcache.find_exact(key, &from).unwrap();
    assert!(dcache.get(slot, seen.seq));
    let moved_from = dcache.d_move(slot, &from, key, &lookup_key, target, &in_lookup);
    assert_eq!(moved_from, Ok(DentrySlot::NONE));
    slots.iter().chain([&slot]).for_each(|&slot| dcache.put(slot));
    assert!(dcache.find_exact(key, &from).is_none());
    let mut inodes = vec![];
    dcache.table.lock(hash).find(|slot| {
        inodes
            .extend(dcache.dentries.compare(slot, key, &lookup_key).map(|seen| seen.body.inode()));
        None::<()>
    });
    (inodes, moved.slot)
}

/// After a rename the target name must lead to the moved file only, whatever other dentries of that
/// name the cache has.
#[test]
fn name_that_is_renamed_to_has_the_moved_file_alone() {
    const FILE: Option<()> = Some(());
    let cases: [&[Option<()>]; 7] =
        [&[], &[None], &[FILE], &[None, FILE], &[FILE, None], &[None, None], &[None, FILE, None]];
    for entered in cases {
        for target in (0..entered.len()).map(Some).chain([None]) {
            let (inodes, moved) = inodes_after_rename(entered, target);
            assert_eq!(inodes, [moved], "{entered:?}, target {target:?}");
        }
    }
}
