//! Table `lookup`: names to inodes, and paths to inodes.
//!
//! Source: the inode tables of libfuse, SeaweedFS, fuse_mt, easy_fuser and mountpoint-s3, which
//! answer a kernel's questions for names. The names are 100,000 real ones. Units: operations per
//! second of wall time, all threads together, and nanoseconds of processor time per operation.
//!
//! `op=lookup` goes from the parent's inode number and a name to the inode number. It adds one
//! client lookup, as for a FUSE LOOKUP without its attributes. `op=walk` goes from an absolute path
//! to the inode number. The table `path` measures the way back.
//!
//! The rows have these parameters:
//! - `renamer=0` (no thread renames): names and paths of any entries of the tree. The baseline is
//!   `rwlock-ahash`.
//! - `targets=hot`: walks to 64 entries, eight names deep. The baseline is `linux`. In rows with
//!   `net_of=syscall` the cost of a system call is subtracted.
//! - `entries=1000000`: walks in a tree of a million entries. The baseline is the fastest map with
//!   whole paths as keys.
//! - `over_threads=1`: walks by several threads, compared with one thread of the same variant.
//!
//! The variant `corewalk-table` is the inode table of corewalk alone (`ours`), for a server that
//! finds its files itself. It has no call that resolves a path, so a walk looks up one name after
//! the other.
//!
//! A small machine cannot reproduce results of 16 processors and more, where shared cache lines
//! cost more. The table `path-under-rename` measures path translations while another thread
//! renames.
//!
//! # Claims
//! - A walk of eight names to one of the 64 hot entries takes at most a sixth of the host's time.
//!   The host's time is that of stat(2), less the cost of an empty system call.
//! - A walk in a tree of a million entries takes at most 1.3 times the time of the best hash map
//!   from whole paths.
//! - Two threads walk at least 1.9 times as fast as one.
//! - While no thread renames, a lookup by one thread in `corewalk-table` is no slower than one in
//!   `rwlock-ahash`. With two threads it is 1.6 times as fast.
//!
//! # Checks
//! Each answer is compared with the tree of names. corewalk must not call its file system.

use super::names::{self, BEST_MAP, Forest};
use super::prelude::*;

/// The kinds of questions.
const OPS: [Op; 2] = [Op::Lookup, Op::Walk];
/// The table.
pub(super) const TABLE: Table = Table { name: "lookup", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let mut sweeps = OPS.map(|op| names::tree_sweep(op, settings)).to_vec();
    sweeps.extend([names::hot_sweep(settings), names::cold_sweep(settings)]);
    sweeps
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let forest = Forest::load(run.table, run.settings)?;
    for (op, sweep) in OPS.into_iter().zip(&run.sweeps) {
        names::over_tree(run, sweep, op, &forest, samples)?;
    }
    names::hot(run, &run.sweeps[2], Op::Walk, &forest, samples)?;
    drop(forest);
    names::cold(run, &run.sweeps[3], samples)?;
    samples.add_scaling(|variant, params| variant != BEST_MAP && params["op"] == "walk");
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::names::{MAPS, MILLION, VARIANTS};
    use super::*;
    use crate::samples::{OVER_THREADS, Row};
    use crate::table::quick;

    #[test]
    fn quick_run_has_every_variant_and_kind_of_row() {
        let with = |params: &[(&'static str, Value)]| {
            [1, 2].map(|threads| [params, &[("threads", threads.into())]].concat())
        };
        let uniform =
            OPS.map(|op| with(&[("op", op.name().into()), ("renamer", 0.into())])).concat();
        let rows = quick::check(&TABLE, &VARIANTS, &uniform);
        let hot = [("op", "walk".into()), ("targets", "hot".into())];
        let cold = [("op", "walk".into()), ("entries", MILLION.0.into())];
        for (params, variants) in [
            (
                &hot[..],
                &["corewalk", "dashmap-path", "papaya-path", "scc-path", "libfuse-node"][..],
            ),
            (&cold, &[&["corewalk"][..], &MAPS, &[BEST_MAP]].concat()),
        ] {
            for (params, variant) in
                with(params).iter().flat_map(|p| variants.iter().map(move |v| (p, v)))
            {
                let row = quick::row(&rows, variant, "ns_per_op", params).expect(variant);
                assert!(row.rounds == 5 && row.ratio.is_some_and(|ratio| ratio > 0.0), "{row:?}");
            }
        }
        for params in [&hot[..], &cold, &[("op", "walk".into()), ("renamer", 0.into())]] {
            let params = [params, &[(OVER_THREADS, 1.into())]].concat();
            let row = quick::row(&rows, "corewalk", "ops_per_s", &params).expect("walks scale");
            assert!(row.baseline == "corewalk" && row.params["threads"] == 2);
        }
        let cost = |variant, is_net| {
            let hot = |row: &&Row| {
                row.variant == variant
                    && row.params.contains_key("net_of") == is_net
                    && row.params.get("targets") == Some(&"hot".into())
                    && row.metric == "ns_per_op"
            };
            rows.iter().find(hot).expect("one thread was measured first").median
        };
        assert!(cost("linux", true) < cost("linux", false));
        assert!((cost("corewalk", true) - cost("corewalk", false)).abs() < 1e-9);
        let claims = quick::claims(&TABLE, &rows);
        assert!(claims[1].contains("held (x") && claims[3].contains("held (x"), "{claims:?}");
    }
}
