//! Checks of `readdir`.
//!
//! Kernels, NFS clients and programs with telldir(3) may use a cookie long after they have got it.
//! So each cookie must lead to the position behind its entry, even if that entry or others were
//! removed in the meantime. Otherwise a listing skips or repeats entries (traps T48 and P13 in
//! `traps.md`).

use std::collections::BTreeMap;

use corewalk::attr::mode::S_IFREG;
use corewalk::{InodeRef, RenameMode};

use super::tree::{collect_dirs, populate};
use crate::answer::{Answer, Checked, Stop, ensure, ensure_eq, ensure_names, is_unsupported};
use crate::bench::{Bench, Entry};

const ENTRIES: usize = 300;
const COOKIES_MAX: usize = 40;

/// Makes files in the tree, among them a directory with [`ENTRIES`] files. Makes none in a
/// read-only back end, which is checked with the files that it has.
fn populate_large(bench: &Bench) -> Checked {
    populate(bench)?;
    let made = || -> Checked {
        let dir = bench.dir(&bench.root(), "many")?;
        (0..ENTRIES).try_for_each(|number| bench.file(&dir, &format!("n{number}"), b"").map(drop))
    };
    match made() {
        Err(Stop::Skipped(_)) => Ok(()),
        made => made,
    }
}

fn names(entries: &[Entry]) -> Vec<String> {
    entries.iter().map(Entry::text).collect()
}

fn list_behind(bench: &Bench, dir: &InodeRef<'_>, cookie: u64) -> Checked<Vec<Entry>> {
    bench.list_from(dir, cookie, 64, &mut |_| Ok(()))
}

pub(super) fn cookies(bench: &Bench) -> Checked {
    populate_large(bench)?;
    let mut entries = 0;
    for dir in collect_dirs(bench)? {
        let all = bench.list(&dir)?;
        entries += all.len();
        let mut unique = names(&all);
        unique.sort_unstable();
        unique.dedup();
        ensure_eq("the number of different names", unique.len(), all.len())?;
        let step = all.len().div_ceil(COOKIES_MAX).max(1);
        for (at, entry) in all.iter().enumerate().step_by(step) {
            let rest = list_behind(bench, &dir, entry.cookie)?;
            let what = format!("the listing behind {:?}", entry.text());
            ensure_names(&what, &names(&rest), &names(&all[at + 1..]))?;
        }
    }
    if entries == 0 { Stop::skipped("there is no entry") } else { Ok(()) }
}

pub(super) fn pages(bench: &Bench) -> Checked {
    populate_large(bench)?;
    for dir in collect_dirs(bench)? {
        let all = bench.list(&dir)?;
        for page in [1, 2, 3, 7, 50, ENTRIES] {
            let found = bench.list_from(&dir, 0, page, &mut |_| Ok(()))?;
            ensure_names(&format!("the listing in pages of {page}"), &names(&found), &names(&all))?;
        }
    }
    Ok(())
}

const STAY: usize = 60;

pub(super) fn changes(bench: &Bench) -> Checked {
    for page in [1, 3, 16] {
        let dir = bench.dir(&bench.root(), &format!("d{page}"))?;
        for number in 0..STAY {
            bench.file(&dir, &format!("stay{number}"), b"")?;
            bench.file(&dir, &format!("go{number}"), b"")?;
        }
        let before = bench.list(&dir)?;
        changes_of(bench, &dir, page).map_err(|stop| stop.at(&format!("pages of {page}")))?;
        order_is_kept(bench, &dir, &before)?;
    }
    Ok(())
}

fn changes_of(bench: &Bench, dir: &InodeRef<'_>, page: usize) -> Checked {
    let mut turn = 0;
    let mut goes: Vec<String> = (0..STAY).map(|number| format!("go{number}")).collect();
    let mut change = |listed: &[Entry]| -> Checked {
        // Change nothing more once all these files are removed. A listing may include new files, so
        // it would never end if each page were followed by a new file.
        if goes.is_empty() {
            return Ok(());
        }
        let is_listed = |name: &&String| listed.iter().any(|entry| entry.text() == **name);
        let behind = goes.iter().find(is_listed).cloned();
        let before = goes.iter().find(|name| !is_listed(name)).cloned();
        let new = format!("new{turn}");
        match (turn % 4, behind, before) {
            (0, Some(gone), _) | (1, _, Some(gone)) => {
                bench.unlink(dir, &gone).must("remove")?;
                goes.retain(|name| *name != gone);
            }
            (2, Some(gone), _) => {
                let moved = bench.rename((dir, &gone), (dir, &new), RenameMode::Replace);
                if !moved.is_err_and(is_unsupported) {
                    moved.must("rename")?;
                    goes.retain(|name| *name != gone);
                }
            }
            _ => drop(bench.make(dir, &new, bench.new_file(S_IFREG | 0o644)).must("make")?),
        }
        turn += 1;
        ensure(turn < 50 * STAY, || "the listing does not end".to_owned())
    };
    let entries = bench.list_from(dir, 0, page, &mut change)?;
    let mut counts = BTreeMap::new();
    for entry in &entries {
        *counts.entry(entry.text()).or_insert(0_u32) += 1;
    }
    for number in 0..STAY {
        let text = format!("stay{number}");
        let count = counts.get(&text).copied().unwrap_or(0);
        ensure(count == 1, || format!("the entry {text:?} was listed {count} times"))?;
    }
    Ok(())
}

/// Checks listings that continue from every fifth old cookie. Each must have the unchanged entries
/// behind the cookie, in the same order as before.
fn order_is_kept(bench: &Bench, dir: &InodeRef<'_>, before: &[Entry]) -> Checked {
    let staying = |entries: &[Entry]| -> Vec<String> {
        names(entries).into_iter().filter(|name| name.starts_with("stay")).collect()
    };
    for (at, entry) in before.iter().enumerate().step_by(5) {
        let rest = list_behind(bench, dir, entry.cookie)?;
        let what = format!("the listing behind an old cookie of {:?}", entry.text());
        ensure_names(&what, &staying(&rest), &staying(&before[at + 1..]))?;
    }
    Ok(())
}
