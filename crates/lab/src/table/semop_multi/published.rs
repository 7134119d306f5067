//! Figures that others have published about semop, beside the rows.
//!
//! None of them is a measurement of ours. Document 002's machine had 4 processors, and its kernel
//! audited each call and had a security module. gVisor's figures are of its engine alone, without
//! the trap of a system call. The compared figure is that of sets of 128 semaphores: the engine
//! copies all values in each call. With a set of one its call takes 128 to 217 ns.
//!
//! Source: document 002 (Bueso, March 2013); gVisor's Go module of September 2026, `FindByID` and
//! `ExecuteOps`, on a machine like this one.

use std::fmt::Write as _;

use super::{OURS, is, is_plain};
use crate::samples::Row;
use crate::table::{Claim, Published};

/// Operations per second of document 002, before and after.
const PUBLISHED: [f64; 2] = [5_048_409.0, 9_105_213.0];
/// Nanoseconds of a call with 128 semaphores in gVisor's engine: half of the cheapest pair, 1,376
/// ns.
const GVISOR_NS: f64 = 688.0;
/// The same with one semaphore, lowest and highest: half of a pair of 256 to 435 ns.
const GVISOR_ONE_NS: [f64; 2] = [128.0, 217.0];
/// How far ahead of that we want to be.
const OVER_GVISOR_MIN: f64 = 15.0;

/// Returns the document's figures as points: it has one number of threads.
pub(super) fn curves() -> Published {
    let [before, after] = PUBLISHED.map(|rate| vec![(256.0, rate)]);
    Published {
        x: "threads, 4 cpus",
        unit: "operations per second",
        curves: vec![("before", before), ("after", after)],
    }
}

/// Returns the document's figures, with those of the most threads that were measured here.
pub(super) fn footer(rows: &[Row]) -> String {
    let mut out = format!(
        "document 002, 256 threads, 128 semaphores, 4 cpus, operations per second:\n  before {}, after {} \
         (x{:.2})\n",
        PUBLISHED[0],
        PUBLISHED[1],
        PUBLISHED[1] / PUBLISHED[0]
    );
    let Some(threads) = most_threads(rows) else { return out };
    let rate = |variant| row(rows, variant, "ops_per_s", threads).map(|row| row.median);
    let designs = [rate("before-ipc-lock"), rate("before-ipc-rcu"), rate(OURS), rate("linux")];
    if let [Some(before), Some(after), Some(ours), Some(linux)] = designs {
        let _ = writeln!(
            out,
            "here, {threads} threads, 128 semaphores, own, operations per second:\n  before-ipc-lock \
             {before:.0}, before-ipc-rcu {after:.0} (x{:.2}), corewalk {ours:.0} (x{:.2}); linux {linux:.0}",
            after / before,
            ours / before
        );
    }
    let [least, most] = GVISOR_ONE_NS;
    let _ = writeln!(
        out,
        "gVisor's engine alone, one thread (cited, not measured here), ns per call:\n  128 semaphores \
         {GVISOR_NS}, one semaphore {least} to {most}"
    );
    let here = |is_meant: &dyn Fn(&Row) -> bool| {
        let is_ns = |row: &&Row| row.variant == OURS && row.metric == "ns_per_op" && is_meant(row);
        rows.iter().filter(|row| is(&row.params, "threads", 1)).find(is_ns).map(|row| row.median)
    };
    if let (Some(many), Some(one)) = (here(&is_of_document), here(&is_of_one)) {
        let _ = writeln!(out, "here, corewalk: 128 semaphores {many:.2}, one semaphore {one:.2}");
    }
    out
}

/// Returns the claim about gVisor's engine, for one thread on its own semaphore of 128.
pub(super) fn over_gvisor(rows: &[Row]) -> Claim {
    let ns = row(rows, OURS, "ns_per_op", 1).map(|row| row.median);
    let words = "one thread in this process, over the figure that is cited for gVisor's engine";
    Claim::at_least(words, ns.map(|ns| GVISOR_NS / ns), OVER_GVISOR_MIN)
}

fn most_threads(rows: &[Row]) -> Option<u64> {
    let ours = rows.iter().filter(|row| row.variant == OURS && is_of_document(row));
    ours.filter_map(|row| row.params.get("threads")?.as_u64()).max()
}

/// Returns true for own semaphores of 128.
fn is_of_document(row: &Row) -> bool {
    is_in_threads(row) && is(&row.params, "sems", 128) && is(&row.params, "pattern", "own")
}

/// Returns true for a set of one semaphore.
fn is_of_one(row: &Row) -> bool {
    is_in_threads(row) && is(&row.params, "sems", 1)
}

fn is_in_threads(row: &Row) -> bool {
    let is_of_rows = row.baseline == super::BASELINE;
    is_of_rows && is_plain(&row.params) && is(&row.params, "workers", "threads")
}

fn row<'a>(rows: &'a [Row], variant: &str, metric: &str, threads: u64) -> Option<&'a Row> {
    rows.iter().find(|row| {
        row.variant == variant
            && row.metric == metric
            && is_of_document(row)
            && is(&row.params, "threads", threads)
    })
}
