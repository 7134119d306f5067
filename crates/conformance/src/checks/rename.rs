//! Checks of `rename`.
//!
//! The cache may refuse a rename by itself, so the checks evict all names before a rename. They
//! evict them afterwards too, to read the result from the back end.

use corewalk::{Errno, FileKind, RenameMode};

use super::tree::pattern;
use crate::answer::{Answer, Checked, Stop, ensure_eq, is_without_mode};
use crate::bench::{Bench, Place};

fn rename(bench: &Bench, from: Place<'_>, to: Place<'_>, mode: RenameMode) -> Checked {
    bench.cool();
    let call = format!("rename of {:?} to {:?} ({mode:?})", from.1, to.1);
    match bench.rename(from, to, mode) {
        Err(error) if mode == RenameMode::Exchange && is_without_mode(error) => {
            Stop::skipped("the back end has no Exchange")
        }
        answer => answer.needs(&call),
    }?;
    bench.cool();
    Ok(())
}

pub(super) fn moves(bench: &Bench) -> Checked {
    let root = bench.root();
    let (a, b) = (bench.dir(&root, "a")?, bench.dir(&root, "b")?);
    let content = pattern(1, 9_000);
    let file = bench.file(&a, "old", &content)?;
    let number = file.ino();
    rename(bench, (&a, "old"), (&a, "new"), RenameMode::Replace)?;
    bench.is_absent(&a, "old")?;
    ensure_eq("the inode under the new name", bench.find(&a, "new")?.ino(), number)?;
    rename(bench, (&a, "new"), (&b, "moved"), RenameMode::Replace)?;
    bench.is_absent(&a, "new")?;
    ensure_eq("the inode in the new directory", bench.find(&b, "moved")?.ino(), number)?;
    bench.has_content(&b, "moved", &content)?;
    ensure_eq("the entries left in the old directory", bench.list(&a)?.len(), 0)?;
    rename(bench, (&root, "b"), (&a, "sub"), RenameMode::Replace)?;
    drop(b);
    let sub = bench.find(&a, "sub")?;
    bench.has_content(&sub, "moved", &content)?;
    bench.is_absent(&root, "b")?;
    ensure_eq("the inode in the moved directory", bench.find(&sub, "moved")?.ino(), number)?;
    let absent = || bench.rename((&root, "none"), (&root, "other"), RenameMode::Replace);
    bench.fails("rename of an absent name", &[Errno::NOENT], absent)
}

pub(super) fn replaces(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    bench.file(&root, "new", b"new content")?;
    bench.file(&dir, "current", b"old content")?;
    rename(bench, (&root, "new"), (&dir, "current"), RenameMode::Replace)?;
    bench.has_content(&dir, "current", b"new content")?;
    bench.is_absent(&root, "new")?;
    ensure_eq("the entries after a replacement", bench.list(&dir)?.len(), 1)?;
    let full = bench.dir(&root, "full")?;
    bench.file(&full, "child", b"child")?;
    drop((full, bench.dir(&root, "empty")?));
    rename(bench, (&root, "full"), (&root, "empty"), RenameMode::Replace)?;
    bench.is_absent(&root, "full")?;
    bench.has_content(&bench.find(&root, "empty")?, "child", b"child")?;
    let over_file = || bench.rename((&root, "empty"), (&dir, "current"), RenameMode::Replace);
    bench.fails("rename of a directory over a file", &[Errno::NOTDIR], over_file)?;
    let over_dir = || bench.rename((&dir, "current"), (&root, "empty"), RenameMode::Replace);
    bench.fails("rename of a file over a directory", &[Errno::ISDIR], over_dir)
}

pub(super) fn full_directory(bench: &Bench) -> Checked {
    let root = bench.root();
    for text in ["from", "to"] {
        let dir = bench.dir(&root, text)?;
        bench.file(&dir, text, text.as_bytes())?;
    }
    bench.dir(&root, "empty")?;
    rename(bench, (&root, "empty"), (&root, "moved"), RenameMode::Replace)?;
    for from in ["from", "moved"] {
        let call = || bench.rename((&root, from), (&root, "to"), RenameMode::Replace);
        bench.fails("rename over a directory with a file", &[Errno::NOTEMPTY], call)?;
    }
    bench.has_content(&bench.find(&root, "to")?, "to", b"to")
}

pub(super) fn no_replace(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    bench.file(&root, "from", b"from")?;
    bench.file(&dir, "file", b"file")?;
    bench.dir(&dir, "sub")?;
    bench.cool();
    match bench.rename((&root, "from"), (&dir, "new"), RenameMode::NoReplace) {
        Err(error) if is_without_mode(error) => {
            return Stop::skipped("the back end has no NoReplace");
        }
        answer => answer.must("rename to a free name (NoReplace)")?,
    }
    bench.has_content(&dir, "new", b"from")?;
    bench.is_absent(&root, "from")?;
    for taken in ["file", "sub"] {
        let call = || bench.rename((&dir, "new"), (&dir, taken), RenameMode::NoReplace);
        bench.fails("rename to a taken name (NoReplace)", &[Errno::EXIST], call)?;
    }
    bench.has_content(&dir, "file", b"file")?;
    bench.has_content(&dir, "new", b"from")
}

pub(super) fn exchange(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    bench.file(&root, "a", b"content of a")?;
    bench.file(&dir, "b", b"content of b")?;
    rename(bench, (&root, "a"), (&dir, "b"), RenameMode::Exchange)?;
    bench.has_content(&root, "a", b"content of b")?;
    bench.has_content(&dir, "b", b"content of a")?;
    let full = bench.dir(&root, "full")?;
    bench.file(&full, "child", b"child")?;
    drop(full);
    rename(bench, (&root, "full"), (&dir, "b"), RenameMode::Exchange)?;
    bench.has_content(&root, "full", b"content of a")?;
    let moved = bench.find(&dir, "b")?;
    ensure_eq("the kind under the other name", moved.kind(), FileKind::Directory)?;
    bench.has_content(&moved, "child", b"child")?;
    let absent = || bench.rename((&root, "a"), (&root, "none"), RenameMode::Exchange);
    bench.fails("exchange with an absent name", &[Errno::NOENT], absent)
}
