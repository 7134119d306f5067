//! Tests of the store on disk, with the index of every design. It must keep the last value of each
//! attribute, share blocks, count them, and detect an index that gives wrong answers.

use super::*;
use crate::blocks::designs;
use crate::blocks::memory::tests::{FILES, Fault, Faulty, WORKERS, storm};
use crate::peer::Scratch;

/// Returns one store for each index, each in its own folder.
fn all(scratch: &Scratch, workers: usize, files: usize) -> Vec<DiskStore> {
    let designs = designs(2 * workers * (files + 1)).unwrap().into_iter();
    let store = |design: Design| {
        let path = scratch.path().join(design.0);
        DiskStore::new(design, &path, (workers, files)).unwrap()
    };
    designs.map(store).collect()
}

fn scratch(label: &str) -> Scratch {
    Scratch::new(&std::env::temp_dir(), &format!("disk-{label}")).unwrap()
}

#[test]
fn storm_leaves_each_file_what_was_set_last_and_counts_that_are_exact() {
    let scratch = scratch("storm");
    for store in all(&scratch, WORKERS, FILES) {
        storm(&store, 1_000, 2_000).unwrap();
        let blocks = storm(&store, 5, 2_000).unwrap();
        let is_off = store.variant() == "off";
        // Several workers that set the same new content at the same time may each make a block for
        // it.
        let most = if is_off { (WORKERS * FILES) as u64 } else { 5 + WORKERS as u64 };
        assert!(blocks >= 5 && blocks <= most, "{}: {blocks}", store.variant());
        assert_eq!(is_off, blocks == most, "{}", store.variant());
        Box::new(store).check(blocks).unwrap();
    }
}

#[test]
fn block_has_as_many_users_as_it_may_under_every_design() {
    let (scratch, files) = (scratch("users"), 2 * USERS_MAX as usize + 1);
    for store in all(&scratch, 1, files) {
        (0..files).for_each(|file| store.set(0, file, b"the same"));
        let blocks = if store.variant() == "off" { files as u64 } else { 3 };
        assert_eq!(store.audit().unwrap(), blocks, "{}", store.variant());
        Box::new(store).check(blocks).unwrap();
    }
}

#[test]
fn control_index_that_forgets_to_delete_is_found_out_and_harms_nothing() {
    let scratch = scratch("forgetful");
    let path = scratch.path().join("store");
    let design = ("forgetful", Faulty::new(Fault::NeverRemoves) as _);
    let mut store = DiskStore::new(design, &path, (WORKERS, FILES)).unwrap();
    let error = storm(&store, 1_000, 2_000).unwrap_err().to_string();
    assert!(error.contains("entries for"), "{error}");
    // The faulty index of this test never removes an entry (against rule H.2 of `ShareIndex`), so
    // its lookups find blocks that have changed. The store compares contents under the lock of the
    // block, so nothing is damaged.
    store.index = Arc::new(corewalk_store::NoSharing);
    let blocks = store.audit().unwrap();
    Box::new(store).check(blocks).unwrap();
}

#[test]
fn control_blocks_that_are_not_on_the_disk_are_found_out() {
    let scratch = scratch("count");
    for store in all(&scratch, 1, 3) {
        (0..3).for_each(|file| store.set(0, file, b"the same"));
        let blocks = store.audit().unwrap();
        let error = Box::new(store).check(blocks + 1).unwrap_err().to_string();
        assert!(error.contains("are on the disk"), "{error}");
    }
}
