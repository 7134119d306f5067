//! Measures the space of equal attributes on disk, by the store's statistics and by the size of its
//! database.
//!
//! The benchmark makes a store with files, closes it, and reads the size of its database. Then it
//! opens the store again, with or without sharing of equal attribute blocks. It sets an attribute
//! of each file, closes the store and reads the size again.
//!
//! The attribute values are given to the files in turn, so each value has equally many. With
//! sharing there must be one block per 1024 files with the same value. The growth of the database
//! includes records of changed inodes.
//!
//! One set of parameters has 1000 files with 10 attribute values, as in the claims about space in
//! memory. The other has 4000 files with one value, which needs several
//! blocks of at most 1024 users.
//!
//! Source: document 004 in `documents.md`; stat(2), `st_blocks`.

use super::{BASELINE, BLOCK_BYTES, DISK, Pool, bytes_per_file, cell};
use crate::blocks::{AttrStore as _, Design, DiskStore, designs};
use crate::table::prelude::*;
use corewalk_base::primitives::Arc;
use corewalk_store::NoSharing;

/// Files and values.
type Sizes = &'static [(usize, usize)];
const SIZES: (Sizes, Sizes) = (&[(100, 10), (1100, 1)], &[(1000, 10), (4000, 1)]);
/// The measured variants. The other designs are left out, because other rows show that they take as
/// many blocks as corewalk.
const WHO: [&str; 2] = ["corewalk", BASELINE];
/// The name of the parameter that says how bytes were counted.
const COUNTED: &str = "counted";
/// The two values of `counted`. With `statistics` the size of the attributes is computed from the
/// store's number of blocks. With `database` it is the growth of the database.
const BY_STATISTICS: &str = "statistics";
const ON_DISK: &str = "database";

/// Measures the disk space that attributes take.
///
/// # Errors
/// If a store fails, or `fsck` finds something.
pub(super) fn run(settings: &Settings, pool: &Pool, samples: &mut Samples) -> anyhow::Result<()> {
    for &(files, values) in sized(settings.size, SIZES) {
        let cell = cell(DISK, [1, files, values]);
        for variant in WHO {
            let (blocks, bytes) = measure(variant, pool, &cell)?;
            let by_blocks = blocks * BLOCK_BYTES as u64;
            for (counted, bytes) in [(BY_STATISTICS, by_blocks), (ON_DISK, bytes)] {
                let params = cell.with(COUNTED, counted).0;
                samples.add(0, variant, &params, bytes_per_file(&cell, bytes), BASELINE);
            }
        }
    }
    Ok(())
}

/// Returns the number of blocks by the store's statistics, and the growth of its database in bytes.
fn measure(variant: &str, pool: &Pool, cell: &Cell) -> anyhow::Result<(u64, u64)> {
    let scratch = Scratch::in_memory("xattr-space")?;
    let path = scratch.path().join(variant);
    let (files, values) = (cell.number("files"), cell.number("values"));
    let none = || -> Design { (BASELINE, Arc::new(NoSharing)) };
    let mut store = Box::new(DiskStore::new(none(), &path, (1, files))?);
    let before = store.close_and_measure()?;
    let design = designs(2 * files)?.into_iter().find(|design| design.0 == variant);
    store.reopen(design.unwrap_or_else(none))?;
    for file in 0..files {
        store.set(0, file, pool.value(file % values));
    }
    let blocks = store.audit()?;
    let after = store.close_and_measure()?;
    store.check(blocks)?;
    Ok((blocks, after.saturating_sub(before)))
}
