//! Table `path`: inodes to paths.
//!
//! Source: the inode tables of libfuse, SeaweedFS, fuse_mt, easy_fuser and mountpoint-s3, which
//! find the path of a file for a FUSE server. Long's patches of 2013 (documents 000 and 001 in
//! `documents.md`) made such path translations cheap in Linux.
//!
//! Units: operations per second of wall time, all threads together, and nanoseconds of processor
//! time per operation. `op=path` goes from an inode number to the full path, in memory of the
//! caller.
//!
//! The rows have these parameters:
//! - `renamer=0` (no thread renames): the paths of any of 100,000 real entries, seven names deep on
//!   average. The baseline is `rwlock-ahash`.
//! - `targets=hot`: the path of one directory, eight names deep. The baseline is the host kernel
//!   (`linux`). In rows with `net_of=syscall` the cost of a system call is subtracted.
//! - `over_threads=1`: path translations by several threads, compared with one thread of the same
//!   variant.
//!
//! The variant `linux` is getcwd(2) of the host kernel.
//!
//! # Claims
//! - For the paths of any of the 100,000 entries (`renamer=0`), corewalk with one thread is no
//!   slower than `rwlock-ahash`. With two threads it is 1.8 times as fast as `rwlock-ahash` with
//!   two, and three times as fast as `libfuse-node` with two.
//! - The inode table alone (`corewalk-table`) is no slower than `rwlock-ahash` with one thread, and
//!   1.6 times as fast with two.
//! - For the path of one directory (`targets=hot`), corewalk takes at most a quarter of the time of
//!   getcwd(2) less an empty system call.
//!
//! # Checks
//! Each path is compared with the tree of names (`names`). The table `path-under-rename` measures
//! path translations while another thread renames.

use super::names::{self, Forest};
use super::prelude::*;

/// The table.
pub(super) const TABLE: Table = Table { name: "path", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    vec![names::tree_sweep(Op::Path, settings), names::hot_sweep(settings)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let forest = Forest::load(run.table, run.settings)?;
    names::over_tree(run, &run.sweeps[0], Op::Path, &forest, samples)?;
    names::hot(run, &run.sweeps[1], Op::Path, &forest, samples)?;
    samples.add_scaling(|_, params| params["op"] == "path");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::names::VARIANTS;
    use super::*;
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_variant_hot_and_over_the_tree() {
        let cells: Vec<_> = [("renamer", Value::from(0)), ("targets", Value::from("hot"))]
            .into_iter()
            .flat_map(|row| {
                [1, 2].map(|n| vec![("op", "path".into()), row.clone(), ("threads", n.into())])
            })
            .collect();
        let rows = quick::check(&TABLE, &VARIANTS, &cells);
        let hot = quick::row(&rows, "linux", "ns_per_op", &cells[2]);
        assert!(hot.is_some_and(|row| row.median > 0.0));
        let claims = quick::claims(&TABLE, &rows);
        assert!(claims[..3].iter().all(|claim| claim.contains("held (x")), "{claims:?}");
    }
}
