//! Bytes per entry, measured in a process of its own.
//!
//! A process that has freed memory gives it to the next who asks, so what a table takes cannot be
//! seen in a process that has done other things. The program starts itself again for each variant,
//! which loads the table twice and reports by how much its resident memory grew the second time:
//! the first load has used up what was free. Resident memory counts what the kernel really gave,
//! rounding of malloc and huge pages included, alike for all.
//!
//! A variant that says itself what it takes is reported with the larger of the two numbers.
//!
//! # What it refuses
//! Measuring in the process that runs the table: without a command to start there are no rows.
//!
//! Source: proc_pid_statm(5).

use std::fs;
use std::process::{Command, Stdio};

use anyhow::Context as _;
use corewalk_sync::primitives::Arc;

use crate::baseline::{DashmapPath, LibfuseNode, Namespace, Papaya, RwLockAhash};
use crate::corpus::Corpus;
use crate::layout::{Links, LinksHeld, Slots};
use crate::ours::Ours;

/// Returns the table called `variant`, loaded; None for a variant without a table of its own.
///
/// # Errors
/// What loading says.
pub(crate) fn load(
    variant: &str,
    corpus: &Arc<Corpus>,
) -> anyhow::Result<Option<Box<dyn Namespace>>> {
    Ok(Some(match variant {
        "corewalk" => Box::new(Ours::load(corpus)?),
        "rwlock-ahash" => Box::new(RwLockAhash::load(corpus)),
        "dashmap-path" => Box::new(DashmapPath::load(corpus)),
        "papaya" => Box::new(Papaya::load(corpus)),
        "libfuse-node" => Box::new(LibfuseNode::load(corpus)),
        "slots" => Box::new(Slots::load(corpus)?),
        "links" => Box::new(Links::load(corpus)?),
        "links-held" => Box::new(LinksHeld(Links::load(corpus)?)),
        _ => return Ok(None),
    }))
}

/// Returns the bytes that `variant` takes for `entries` entries, by loading it in this process.
///
/// # Errors
/// If the variant has no table, or `/proc` cannot be read.
pub(crate) fn measure(variant: &str, entries: usize) -> anyhow::Result<u64> {
    let corpus = Arc::new(Corpus::collect(entries));
    let first = load(variant, &corpus)?.context("no such table")?;
    let before = resident_bytes()?;
    let second = load(variant, &corpus)?.context("no such table")?;
    let grown = resident_bytes()?.saturating_sub(before);
    let claimed = second.claimed_bytes().max(first.claimed_bytes());
    Ok(grown.max(claimed))
}

/// Returns what [`measure`] returns in a process started for it; `command` is put before the
/// arguments `memory VARIANT ENTRIES`.
///
/// # Errors
/// If the process does not start, fails, or prints no number.
pub(crate) fn measure_apart(
    command: &[String],
    variant: &str,
    entries: usize,
) -> anyhow::Result<u64> {
    let program = std::env::current_exe().context("the program does not know its file")?;
    let output = Command::new(program)
        .args(command)
        .args(["memory", variant, &entries.to_string()])
        .stdin(Stdio::null())
        .stderr(Stdio::inherit())
        .output()
        .context("the program cannot start itself")?;
    anyhow::ensure!(output.status.success(), "measuring the memory of {variant} failed");
    let text = String::from_utf8_lossy(&output.stdout);
    text.trim().parse().with_context(|| format!("not a number of bytes: {text:?}"))
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

    #[test]
    fn memory_of_a_table_is_at_least_that_of_its_names() {
        let corpus = Corpus::collect(20_000);
        let names: u64 = corpus.inodes().map(|ino| corpus.name(ino).len() as u64).sum();
        for variant in ["corewalk", "rwlock-ahash"] {
            let bytes = measure(variant, 20_000).unwrap();
            assert!(bytes > names, "{variant} takes {bytes} bytes for {names} bytes of names");
        }
        assert!(measure("linux", 100).is_err());
    }
}
