//! What equal attributes take on a disk: by the store's statistics, and by the bytes of its database.
//!
//! A store with files is made and closed, and the bytes that the host gave its database are read; it is
//! opened with a design, each file gets an attribute, it is closed and read again. The values go round, so
//! that each is that of as many files: how many blocks there must be is known beforehand, one per value
//! and 1024 users. What the database took besides for changed inodes is in the figure.
//!
//! The cells: 1000 files of 10 values, as is claimed; 4000 files of one, which is more than a block may
//! have users.
//!
//! Source: document 004; stat(2), `st_blocks`.

use super::{BASELINE, BLOCK_BYTES, Cell, Pool, Store};
use crate::blocks::{AttrStore as _, DiskStore, designs, no_design};
use crate::peer::Scratch;
use crate::samples::{Metric, Params, Samples};
use crate::table::{Settings, sized};

/// Files and values.
type Sizes = &'static [(usize, usize)];
const SIZES: (Sizes, Sizes) = (&[(100, 10), (1100, 1)], &[(1000, 10), (4000, 1)]);
/// Who is measured: the others are found to take the same blocks in other rows.
const WHO: [&str; 2] = ["corewalk", BASELINE];
/// The parameter that says how it was counted.
pub(super) const COUNTED: &str = "counted";
/// Blocks by the store's statistics, and bytes that the database has of the host.
pub(super) const BY_STATISTICS: &str = "statistics";
pub(super) const ON_DISK: &str = "database";

/// Measures what attributes take.
///
/// # Errors
/// If a store fails, or `fsck` finds something.
pub(super) fn run(settings: &Settings, pool: &Pool, samples: &mut Samples) -> anyhow::Result<()> {
    for &(files, values) in sized(settings.size, SIZES) {
        let cell = Cell { store: Store::Disk, processes: 1, files, values };
        for variant in WHO {
            let (blocks, bytes) = measure(variant, pool, &cell)?;
            let by_blocks = blocks * BLOCK_BYTES as u64;
            for (counted, bytes) in [(BY_STATISTICS, by_blocks), (ON_DISK, bytes)] {
                let mut params = Params::from(cell.params());
                params.insert(COUNTED, counted.into());
                let value: (Metric, f64) = cell.bytes_per_file(bytes);
                samples.add(0, variant, &params, value, BASELINE);
            }
        }
    }
    Ok(())
}

/// Returns the blocks that the attributes take by the statistics, and the bytes by the database.
fn measure(variant: &str, pool: &Pool, cell: &Cell) -> anyhow::Result<(u64, u64)> {
    let scratch = Scratch::new(&super::disk::parent(), "xattr-space")?;
    let path = scratch.path().join(variant);
    let mut store = DiskStore::new(no_design(), &path, (1, cell.files))?;
    let before = store.close_and_measure()?;
    let design = designs(2 * cell.files)?.into_iter().find(|design| design.0 == variant);
    store.reopen(design.unwrap_or_else(no_design))?;
    for file in 0..cell.files {
        store.set(0, file, pool.value(file % cell.values));
    }
    let blocks = store.audit()?;
    let after = store.close_and_measure()?;
    store.check(blocks)?;
    Ok((blocks, after.saturating_sub(before)))
}
