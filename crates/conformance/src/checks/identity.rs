//! Checks of the life of an inode: its inode number, its use after its last name was removed, and
//! the call `forget`.

use std::collections::HashSet;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::{Addressing, Errno, InodeRef, RenameMode};

use super::tree::pattern;
use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, ensure_eq};
use crate::bench::Bench;

const FILES: u64 = 300;

/// A stale file handle must not reach a new file (trap P11 in `traps.md`).
pub(super) fn numbers(bench: &Bench) -> Checked {
    let root = bench.root();
    let mut seen = HashSet::new();
    let mut new = |inode: &InodeRef<'_>, round: u64| {
        let pair = (inode.ino(), inode.generation());
        ensure(seen.insert(pair), || {
            format!("inode {} with generation {} is a new file in round {round}", pair.0, pair.1)
        })
    };
    new(&root, 0)?;
    for round in 0..FILES {
        let is_dir = round % 5 == 3;
        let mode = if is_dir { S_IFDIR | 0o755 } else { S_IFREG | 0o644 };
        let made = bench.make(&root, "f", bench.new_file(mode)).needs("make")?;
        new(&made, round)?;
        if bench.has_numbers()? && round % 4 == 0 {
            let pair = (made.ino(), made.generation());
            drop(made);
            bench.cool();
            let found = bench.find(&root, "f")?;
            ensure_eq(
                "inode and generation of a file found again",
                (found.ino(), found.generation()),
                pair,
            )?;
        } else {
            drop(made);
        }
        if is_dir {
            bench.rmdir(&root, "f").must("remove")?;
        } else if round % 5 == 1
            && bench.rename((&root, "f"), (&root, "g"), RenameMode::Replace) == Ok(())
        {
            bench.unlink(&root, "g").must("remove")?;
        } else {
            bench.unlink(&root, "f").must("remove")?;
        }
        // Evict only rarely, so that the cache forgets several inodes together.
        if round % 3 == 0 {
            bench.cool();
        }
    }
    Ok(())
}

pub(super) fn unlinked(bench: &Bench) -> Checked {
    let (root, content) = (bench.root(), pattern(1, 10_000));
    let file = bench.file(&root, "f", &content)?;
    // A back end by path keeps a removed file only while the file is open.
    let open = bench.open(&file)?;
    bench.unlink(&root, "f").needs("remove")?;
    bench.is_absent(&root, "f")?;
    stays_usable(bench, &file, &open, &content)?;
    let again = bench.file(&root, "f", b"another file")?;
    ensure(again.ino() != file.ino(), || "the new file is the removed one".to_owned())?;
    ensure_bytes(
        "the removed file",
        &open.read(0, 100)?,
        &[content[..50].to_vec(), vec![0; 50]].concat(),
    )?;
    drop((open, file, again));
    bench.has_content(&root, "f", b"another file")?;
    if bench.fs.addressing() == Addressing::PathOnly {
        return Ok(());
    }
    let closed = bench.file(&root, "closed", &content)?;
    bench.unlink(&root, "closed").must("remove")?;
    bench.cool();
    let open = bench.open(&closed).map_err(|stop| stop.at("a removed file that was not open"))?;
    stays_usable(bench, &closed, &open, &content)
}

/// Checks that an unlinked file can still be read, written and truncated. Leaves the first 50 bytes
/// of `content` in the file, and then 50 zeros.
fn stays_usable(
    bench: &Bench,
    file: &InodeRef<'_>,
    open: &crate::bench::OpenFile<'_>,
    content: &[u8],
) -> Checked {
    let uses = || -> Checked {
        ensure_eq("the number of links", bench.attr(file)?.nlink, 0)?;
        ensure_bytes("the content", &open.read_all()?, content)?;
        open.write(content.len() as u64, b"more")?;
        ensure_eq("the size after a write", bench.attr(file)?.size, content.len() as u64 + 4)?;
        bench.truncate(file, 50)?;
        bench.truncate(file, 100)?;
        ensure_bytes("the bytes that are left", &open.read(0, 50)?, &content[..50])
    };
    uses().map_err(|stop| stop.at("a file without a name"))
}

pub(super) fn replaced(bench: &Bench) -> Checked {
    let (root, content) = (bench.root(), pattern(2, 10_000));
    let old = bench.file(&root, "current", &content)?;
    bench.file(&root, "new", b"the new version")?;
    let open = bench.open(&old)?;
    bench.rename((&root, "new"), (&root, "current"), RenameMode::Replace).needs("rename")?;
    stays_usable(bench, &old, &open, &content)?;
    drop((open, old));
    bench.has_content(&root, "current", b"the new version")?;
    ensure_eq("the entries of the root", bench.list(&root)?.len(), 1)
}

pub(super) fn forget(bench: &Bench) -> Checked {
    let root = bench.root();
    for round in 0..3 {
        for number in 0..40 {
            let text = format!("f{round}-{number}");
            bench.file(&root, &text, text.as_bytes())?;
        }
        bench.cool();
        for number in (0..40).step_by(2) {
            let text = format!("f{round}-{number}");
            let held = bench.find(&root, &text)?;
            bench.cool();
            bench.unlink(&root, &text).must("remove")?;
            bench.cool();
            drop(held);
        }
        bench.cool();
    }
    for (round, number) in (0..3).flat_map(|round| (0..20).map(move |it| (round, 2 * it + 1))) {
        let text = format!("f{round}-{number}");
        bench.has_content(&root, &text, text.as_bytes())?;
    }
    ensure_eq("the entries that are left", bench.list(&root)?.len(), 60)
}

pub(super) fn by_number(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    let file = bench.file(&dir, "file", b"by number")?;
    let [(d, d_gen), (f, f_gen)] = [&dir, &file].map(|it| (it.ino(), it.generation()));
    drop((dir, file));
    bench.cool();
    let found = match bench.vfs.by_number(f, Some(f_gen)) {
        Err(Errno::STALE) => return Stop::skipped("the back end has no lookup by number"),
        found => found.must("by_number of a file")?.inode,
    };
    ensure_bytes("the content", &bench.open(&found)?.read_all()?, b"by number")?;
    drop(found);
    bench.cool();
    let found = bench.vfs.by_number(d, Some(d_gen)).must("by_number of a directory")?.inode;
    ensure_eq("the path of the directory", found.path().must("path")?, b"/dir".to_vec())?;
    drop(found);
    bench.cool();
    let stale = &[Errno::STALE];
    let other = bench.vfs.by_number(f, Some(f_gen.wrapping_add(1)));
    other.map(drop).must_fail("by_number with another generation", stale)?;
    let dir = bench.find(&root, "dir")?;
    bench.unlink(&dir, "file").must("remove")?;
    bench.cool();
    bench.vfs.by_number(f, Some(f_gen)).map(drop).must_fail("by_number of a removed file", stale)
}
