//! Bytes per entry, measured in a process of its own.
//!
//! A process that has freed memory gives it to the next who asks, so what a table takes cannot be
//! seen in a process that has done other things. The program starts itself again for each variant,
//! which loads the table twice and reports by how much its resident memory grew the second time:
//! the first load has used up what was free. The names of the tree itself were there before, and
//! so was all that both tables share.
//!
//! # Why resident memory
//! It is what the variants have in common. One lives in a mapping of its own and asks malloc for
//! next to nothing, the others ask malloc for everything; a number from malloc would be short of
//! the first, and one from the mapping would leave out the others. Resident pages are what the
//! kernel really gave to all of them, malloc's headers, rounding and fragments included, so it is
//! never less than what an allocator says. A test loads every variant under an allocator that
//! counts, and checks that the two agree: bytes asked of malloc and bytes of slots handed out on
//! one side, resident memory on the other.
//!
//! # No huge pages
//! The process first tells the kernel to give it small pages only. A huge page makes 2 MiB resident
//! for the first byte of them, once per mapping, and a variant with ten mappings is then charged
//! for 20 MiB that it has no entries in. That rounding is a property of a process and not of an
//! entry; a test in `corewalk-sync` bounds it.
//!
//! # Rows
//! Every variant has a row of resident bytes. Those in type-stable memory have one more, with the
//! parameter `of` = `arenas`: the bytes of slots, as the variant itself counts them.
//!
//! # What it refuses
//! Measuring in the process that runs the table: without a command to start there are no rows.
//!
//! Source: proc_pid_statm(5); `PR_SET_THP_DISABLE` in prctl(2).

use std::fs;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};
use rustix::thread::disable_transparent_huge_pages;

use crate::baseline::{LibfuseNode, Namespace, RwLockAhash, dashmap_path, papaya_path, scc_path};
use crate::corpus::Corpus;
use crate::ours::Ours;

/// Returns the table called `variant`, loaded; None for a variant without a table of its own.
///
/// # Errors
/// An error of loading.
pub(crate) fn load(variant: &str, corpus: &Corpus) -> anyhow::Result<Option<Box<dyn Namespace>>> {
    Ok(Some(match variant {
        "corewalk" => Box::new(Ours::load(corpus)?),
        "rwlock-ahash" => Box::new(RwLockAhash::load(corpus)),
        "libfuse-node" => Box::new(LibfuseNode::load(corpus)),
        "dashmap-path" => Box::new(dashmap_path(corpus)),
        "papaya-path" => Box::new(papaya_path(corpus)),
        "scc-path" => Box::new(scc_path(corpus)),
        _ => return Ok(None),
    }))
}

/// The memory of one table.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Bytes {
    /// Growth of resident memory.
    pub(crate) resident: u64,
    /// Bytes of slots that were handed out; 0 for a variant without type-stable memory.
    pub(crate) arenas: u64,
}

/// Returns what `variant` takes for `entries` entries, by loading it in this process, which has
/// small pages only from here on.
///
/// # Errors
/// If the variant has no table, `/proc` cannot be read, or the kernel does not know huge pages at
/// all (before Linux 3.15).
pub(crate) fn measure(variant: &str, entries: usize) -> anyhow::Result<Bytes> {
    disable_transparent_huge_pages(true).context("switching huge pages off")?;
    let corpus = Corpus::collect(entries);
    let _first = load(variant, &corpus)?.context("no such table")?;
    let before = resident_bytes()?;
    let second = load(variant, &corpus)?.context("no such table")?;
    let resident = resident_bytes()?.saturating_sub(before);
    Ok(Bytes { resident, arenas: second.arena_bytes() })
}

/// Returns the result of [`measure`] in a new process: `program memory VARIANT ENTRIES`.
///
/// # Errors
/// If the process does not start, fails, or prints something else.
pub(crate) fn measure_apart(
    program: &Path,
    variant: &str,
    entries: usize,
) -> anyhow::Result<Bytes> {
    let output = Command::new(program)
        .args(["memory", variant, &entries.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("the program cannot start itself")?;
    ensure!(output.status.success(), "measuring the memory of {variant} failed");
    let text = String::from_utf8_lossy(&output.stdout);
    let bytes = text.trim().split_once(' ').and_then(|(resident, arenas)| {
        Some(Bytes { resident: resident.parse().ok()?, arenas: arenas.parse().ok()? })
    });
    bytes.with_context(|| format!("not two numbers of bytes: {text:?}"))
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

    /// Entries of the trees; enough for what a table takes once and for all to be little.
    const ENTRIES: usize = 40_000;

    /// Checks one variant in a process of its own.
    fn check_against_the_allocator(variant: &str) {
        let corpus = Corpus::collect(ENTRIES);
        let resident = measure(variant, ENTRIES).unwrap().resident;
        assert!(transparent_huge_pages_are_disabled().unwrap());
        let before = ALLOC.live().bytes;
        let table = load(variant, &corpus).unwrap().expect("it is a table");
        let asked = ALLOC.live().bytes - before + table.arena_bytes();
        // Allocated bytes are resident, but for slots of batches that are not yet in use. malloc
        // adds headers, rounding and the leftovers of a growing table.
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
            None => ["corewalk", "rwlock-ahash", "libfuse-node"]
                .into_iter()
                .for_each(|variant| Reexec::test(NAME).role(variant).run().assert_success()),
        }
    }
}
