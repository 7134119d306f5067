//! Table `path`: inodes to paths.
//!
//! Source: the questions that the inode tables of libfuse, SeaweedFS, fuse_mt, easy_fuser and
//! mountpoint-s3 answer when a server needs the path of a file. Documents 000 and 001 made these
//! answers cheap in Linux. Units: operations per second of wall time, all threads together, and
//! nanoseconds of processor time per operation. `op=path` goes from an inode number to the full
//! path, in memory of the caller.
//!
//! - `renamer=0` (no thread renames): the targets are any of 100,000 real entries, seven names deep
//!   in the mean. The baseline is `rwlock-ahash`.
//! - `targets=hot`: the target is one directory, eight names deep. The baseline is `linux`. Rows
//!   with `net_of=syscall` do not include the cost of a system call.
//! - `over_threads=1`: translations by several threads, and the baseline is one thread.
//!
//! `linux` works differently: it reads the link of the parent's descriptor, or with `targets=hot`
//! the working directory of the thread (getcwd(2)).
//!
//! # Claims
//! Over the tree (`renamer=0`) corewalk with one thread is no slower than `rwlock-ahash`. With two
//! threads it is 1.8 times as fast as `rwlock-ahash` with two, and three times as fast as
//! `libfuse-node` with two. The inode table alone (`corewalk-table`) is no slower than
//! `rwlock-ahash` with one thread, and 1.6 times as fast with two. A hot path takes at most a
//! quarter of the time of getcwd(2) net of the system call.
//!
//! # Checks
//! Those of `names`: every answer is compared with the tree. The table `path-under-rename` measures
//! translations beside a renamer.

use super::names::{self, Forest};
use super::prelude::*;

/// The table.
pub(super) const TABLE: Table = Table { name: "path", other_claims: STATED, sweeps, run };

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
        let rows = quick::check(&TABLE, &[&VARIANTS[..], &["linux"]].concat(), &cells);
        let claims: Vec<String> = TABLE.claims(&rows).iter().map(Claim::to_string).collect();
        assert!(claims[..3].iter().all(|claim| claim.contains("held (x")), "{claims:?}");
    }
}
