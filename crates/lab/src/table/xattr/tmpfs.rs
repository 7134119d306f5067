//! The rows of a tmpfs of the table `xattr`: sharing on against off, as a library (`blocks::tmpfs`).
//!
//! Units, checks and slices, but for their number, are those of the store in memory; threads are the document's processes.

use super::disk::REPEATED;
use super::{BASELINE, BLOCK_BYTES, Cell, Pool, SHARE_OF_TIME, Store, measure};
use crate::blocks::{AttrStore as _, TmpfsStore};
use crate::samples::{Params, Samples};
use crate::table::grid::Rounds;
use crate::table::{Grid, Settings, sized};

pub(super) fn cells(settings: &Settings) -> Vec<Cell> {
    let cells = super::disk::cells(settings).into_iter();
    cells.map(|cell| Cell { store: Store::Tmpfs, ..cell }).collect()
}

pub(super) fn grid(settings: &Settings) -> Grid {
    let grid = Grid::new(settings, cells(settings).len(), 2, SHARE_OF_TIME);
    grid.repeated(sized(settings.size, REPEATED))
}

/// Measures a tmpfs that shares attributes, and one that does not.
///
/// # Errors
/// As [`measure`].
pub(super) fn run(
    settings: &Settings,
    rounds: &Rounds<'_>,
    pool: &Pool,
    samples: &mut Samples,
) -> anyhow::Result<()> {
    let cells = cells(settings);
    let most = |each: fn(&Cell) -> usize| cells.iter().map(each).max().unwrap_or(1);
    let size = (most(|cell| cell.processes), most(|cell| cell.files));
    let stores = [TmpfsStore::new(true, size)?, TmpfsStore::new(false, size)?];
    let grid = grid(settings);
    rounds.each(&grid, (&cells, stores.len()), |visit| {
        let (store, cell) = (&stores[visit.at], visit.cell);
        let (slice, blocks) = measure(store, pool, cell, grid.slice)?;
        let params = Params::from(cell.params());
        slice.add_to(samples, visit.round, store.variant(), &params, BASELINE)?;
        let bytes = cell.bytes_per_file(blocks * BLOCK_BYTES as u64);
        samples.add(visit.round, store.variant(), &params, bytes, BASELINE);
        Ok(())
    })
}
