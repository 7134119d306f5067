//! Bytes per entry, measured in a process of its own.
//!
//! A process that has freed memory uses it again, so the memory of a table cannot be measured in a
//! process that has done other work. So the lab starts itself again for each variant. The new
//! process loads the table twice, and reports the growth of its resident memory during the second
//! load. The first load uses up memory that was free before. The names of the tree are loaded
//! before both loads.
//!
//! # Why resident memory
//! All variants have resident memory in common. corewalk uses its own mapping and hardly calls
//! malloc, while the other variants allocate everything by malloc. So the bytes of malloc would
//! miss corewalk's, and the bytes of mappings would miss the others. Resident pages include
//! malloc's headers, rounding and fragments. A test loads every variant under a counting allocator,
//! and compares the allocated bytes and slots with the resident memory.
//!
//! # No huge pages
//! The process first disables huge pages for itself. A huge page makes 2 MiB resident for its first
//! used byte, once per mapping. So a variant with ten mappings would pay for 20 MiB without
//! entries. This rounding belongs to the process and not to an entry. A test in `corewalk-sync`
//! bounds it.
//!
//! # Rows
//! Every variant has a row of resident bytes. A variant in type-stable memory has one more row,
//! with `of=arenas`: the bytes of its slots, as the variant counts them.
//!
//! # What it refuses
//! A measurement in the process that runs the table: without a program to start there are no rows.
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
/// An error of loading, or if there is no such variant.
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

/// Returns the bytes that `variant` takes for `entries` entries: the growth of resident memory, and
/// the bytes of slots in use. A variant without type-stable memory has 0 bytes of slots. Loads the
/// table in this process, and disables huge pages for the process.
///
/// # Errors
/// If there is no such variant, `/proc` cannot be read, or the kernel is older than Linux 3.15 and
/// cannot disable huge pages.
pub(crate) fn measure(variant: &str, entries: usize) -> anyhow::Result<(u64, u64)> {
    disable_transparent_huge_pages(true).context("switching huge pages off")?;
    let corpus = Corpus::collect(entries);
    let _first = load(variant, &corpus)?;
    let before = resident_bytes()?;
    let second = load(variant, &corpus)?;
    let resident = resident_bytes()?.saturating_sub(before);
    Ok((resident, second.stats().bytes))
}

/// Returns the result of [`measure`] in a new process: `program memory VARIANT ENTRIES`.
///
/// # Errors
/// If the process does not start, fails, or prints something else.
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

    /// The number of entries of a tree. It is so large that the fixed cost of a table hardly
    /// counts.
    const ENTRIES: usize = 40_000;

    /// Checks one variant in a process of its own.
    fn check_against_the_allocator(variant: &str) {
        let corpus = Corpus::collect(ENTRIES);
        let resident = measure(variant, ENTRIES).unwrap().0;
        assert!(transparent_huge_pages_are_disabled().unwrap());
        let before = ALLOC.live().bytes;
        let table = load(variant, &corpus).unwrap();
        let asked = ALLOC.live().bytes - before + table.stats().bytes;
        // The lower bound allows for allocated slots that are not in use yet. The upper bound
        // allows for malloc's headers and rounding, and for the old arrays of a table that grew.
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
