//! Bytes per entry, measured in a process of its own.
//!
//! A process uses freed memory again. So the memory of a variant cannot be measured in a process
//! that has done other work.
//!
//! The lab starts itself again for each variant. The new process loads the names of the tree. Then
//! it loads the variant twice, and reports the growth of its resident memory during the second
//! load. The first load uses up memory that was free before.
//!
//! # Why resident memory
//! Resident memory is the only measure that fits all variants. corewalk uses its own mapping, and
//! the other variants use malloc. So a count of malloc's bytes would miss corewalk's memory, and a
//! count of mapped bytes would miss the others'.
//!
//! Resident pages include malloc's headers, rounding and fragments. A test compares them with the
//! allocated bytes and slots of every variant, which a counting allocator counts.
//!
//! # No huge pages
//! The process first disables huge pages for itself. With huge pages, the first used byte of a
//! mapping makes 2 MiB resident. A table of ten mappings would seem to need 20 MiB even without
//! names.
//!
//! # Rows
//! Every variant has a result row with its resident bytes. A variant with type-stable memory has
//! one more row, with `of=arenas`, for the bytes of its slots.
//!
//! # Limits
//! Only a new process of the lab can measure. If the lab cannot start itself again, there are no
//! result rows.
//!
//! Source: proc_pid_statm(5); `PR_SET_THP_DISABLE` in prctl(2).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, bail, ensure};
use rustix::thread::disable_transparent_huge_pages;

use crate::baseline::{LibfuseNode, Namespace, RwLockAhash, dashmap_path, papaya_path, scc_path};
use crate::corpus::Corpus;
use crate::ours::{OurTable, Ours};

/// Returns the loaded table of `variant`.
///
/// # Errors
/// There is no such variant, or it cannot be loaded.
pub(crate) fn load(variant: &str, corpus: &Corpus) -> anyhow::Result<Box<dyn Namespace>> {
    Ok(match variant {
        "corewalk" => Box::new(Ours::load(corpus)?),
        "corewalk-table" => Box::new(OurTable::load(corpus)?),
        "rwlock-ahash" => Box::new(RwLockAhash::load(corpus)),
        "libfuse-node" => Box::new(LibfuseNode::load(corpus)),
        "dashmap-path" => dashmap_path(corpus),
        "papaya-path" => papaya_path(corpus),
        "scc-path" => scc_path(corpus),
        _ => bail!("no such variant"),
    })
}

/// Returns the bytes that `variant` needs for `entries` entries: the growth of resident memory, and
/// the bytes of slots in use, if it has any. Loads the variant in this process, and disables huge
/// pages for it.
///
/// # Errors
/// `variant` is unknown, `/proc` cannot be read, or huge pages cannot be disabled (Linux before
/// 3.15).
pub(crate) fn measure(variant: &str, entries: usize) -> anyhow::Result<(u64, u64)> {
    disable_transparent_huge_pages(true).context("switching huge pages off")?;
    let corpus = Corpus::collect(entries);
    let _first = load(variant, &corpus)?;
    let before = resident_bytes()?;
    let second = load(variant, &corpus)?;
    let resident = resident_bytes()?.saturating_sub(before);
    Ok((resident, second.stats().bytes))
}

/// Runs [`measure`] in a new process: `program memory VARIANT ENTRIES`.
///
/// # Errors
/// The process does not start, fails, or prints anything else than two numbers.
pub(crate) fn measure_apart(
    program: &Path,
    variant: &str,
    entries: usize,
) -> anyhow::Result<(u64, u64)> {
    let output = Command::new(program)
        .args(["memory", variant, &entries.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("the program cannot start itself")?;
    ensure!(output.status.success(), "measuring the memory of {variant} failed");
    serde_json::from_slice(&output.stdout).context("not two numbers of bytes")
}

fn resident_bytes() -> anyhow::Result<u64> {
    let statm = fs::read_to_string("/proc/self/statm").context("/proc/self/statm")?;
    let pages: u64 =
        statm.split_whitespace().nth(1).context("statm has no resident size")?.parse()?;
    Ok(pages * rustix::param::page_size() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_testkit::alloc::Counting;
    use corewalk_testkit::reexec::{Reexec, role};
    use rustix::thread::transparent_huge_pages_are_disabled;

    #[global_allocator]
    static ALLOC: Counting = Counting::new();

    /// The number of entries of a tree, so large that the fixed memory of a variant hardly counts.
    const ENTRIES: usize = 40_000;

    /// Checks one variant in a process of its own.
    fn check_against_the_allocator(variant: &str) {
        let corpus = Corpus::collect(ENTRIES);
        let resident = measure(variant, ENTRIES).unwrap().0;
        assert!(transparent_huge_pages_are_disabled().unwrap());
        let before = ALLOC.live().bytes;
        let table = load(variant, &corpus).unwrap();
        let asked = ALLOC.live().bytes - before + table.stats().bytes;
        // Bounds of the resident memory. The lower one allows for slots that are not in use yet.
        // The upper one allows for malloc's headers and rounding, and for the old arrays of a hash
        // table that grew.
        let least = asked - asked / 32;
        let most = asked + asked * 2 / 5;
        assert!(
            (least..=most).contains(&resident),
            "{variant}: {resident} bytes are resident, {asked} were asked for"
        );
    }

    #[test]
    fn resident_memory_of_every_table_is_what_allocators_handed_out() {
        const NAME: &str =
            "memory::tests::resident_memory_of_every_table_is_what_allocators_handed_out";
        match role() {
            Some(variant) => check_against_the_allocator(&variant),
            None => ["corewalk", "corewalk-table", "rwlock-ahash", "libfuse-node"]
                .into_iter()
                .for_each(|variant| Reexec::test(NAME).role(variant).run().assert_success()),
        }
    }
}
