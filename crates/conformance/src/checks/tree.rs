//! Checks of the whole tree. They also run over a read-only back end.

use corewalk::{Attr, Errno, FileKind, InodeRef, Name};

use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, ensure_eq};
use crate::bench::{Bench, Entry};

const ABSENT: &str = "corewalk-conformance-absent";
const DIRS_MAX: usize = 200;
const FILES_MAX: usize = 2_000;
const FILE_BYTES: usize = 1_300_000;

/// Returns `len` bytes other than 0. They depend on `number` and on the offset, so that a check
/// notices bytes of another file or of another offset.
pub(crate) fn pattern(number: u64, len: usize) -> Vec<u8> {
    let byte = |at: usize| {
        let mixed = (at as u64 / 7 + 1 + number).wrapping_mul(0x9e37_79b9_7f4a_7c15);
        (mixed >> 56) as u8 | 1
    };
    (0..len).map(byte).collect()
}

pub(super) fn populate(bench: &Bench) -> Checked {
    let made = || -> Checked {
        let root = bench.root();
        let a = bench.dir(&root, "a")?;
        let b = bench.dir(&a, "b")?;
        bench.dir(&a, "empty")?;
        for (number, len) in [0, 1, 511, 4096, 70_000].into_iter().enumerate() {
            bench.file(&b, &format!("f{len}"), &pattern(number as u64, len))?;
        }
        bench.file(&root, "large", &pattern(9, FILE_BYTES))?;
        let _ = bench.symlink(&root, "link", b"a/b");
        Ok(())
    };
    match made() {
        Err(Stop::Skipped(_)) => Ok(()),
        made => made,
    }
}

pub(super) fn collect_dirs(bench: &Bench) -> Checked<Vec<InodeRef<'_>>> {
    let (mut dirs, mut next) = (vec![bench.root()], 0);
    while next < dirs.len() && dirs.len() < DIRS_MAX {
        let dir = dirs[next].clone();
        for entry in bench.list(&dir)? {
            if entry.kind == FileKind::Directory && dirs.len() < DIRS_MAX {
                dirs.push(find(bench, &dir, &entry)?);
            }
        }
        next += 1;
    }
    Ok(dirs)
}

fn find<'b>(bench: &'b Bench, dir: &InodeRef<'_>, entry: &Entry) -> Checked<InodeRef<'b>> {
    let name = Name::new(&entry.name).must("a reported name")?;
    let found = bench.vfs.lookup(&bench.cred, dir, name);
    found.must(&format!("lookup of the entry {:?}", entry.text()))
}

pub(super) fn root(bench: &Bench) -> Checked {
    let [first, second] = [bench.fs.root().must("root")?, bench.fs.root().must("root")?];
    ensure(first.is_dir(), || format!("the mode {:o} is not that of a directory", first.mode))?;
    ensure(first.nlink > 0, || "the root has no links".to_owned())?;
    let number = |attr: &Attr| (attr.ino, attr.generation);
    ensure_eq("inode and generation of the root, asked again,", number(&second), number(&first))?;
    let known = bench.attr(&bench.root())?;
    ensure(known.is_dir(), || format!("getattr of the root has the mode {:o}", known.mode))?;
    bench.is_absent(&bench.root(), ABSENT)
}

pub(super) fn statfs(bench: &Bench) -> Checked {
    let now = bench.vfs.statfs(&bench.root()).must("statfs")?;
    ensure(now.bsize > 0, || "the block size is 0".to_owned())?;
    ensure(now.namelen > 0, || "the longest name has 0 bytes".to_owned())?;
    ensure(now.bfree <= now.blocks, || format!("{} of {} blocks free", now.bfree, now.blocks))?;
    ensure(now.bavail <= now.bfree, || {
        format!("{} blocks available of {} free ones", now.bavail, now.bfree)
    })?;
    ensure(now.ffree <= now.files, || format!("{} of {} inodes free", now.ffree, now.files))
}

pub(super) fn agreement(bench: &Bench) -> Checked {
    populate(bench)?;
    let mut visited = 0;
    for dir in collect_dirs(bench)? {
        bench.is_absent(&dir, ABSENT)?;
        for entry in bench.list(&dir)? {
            visited += 1;
            if visited > FILES_MAX {
                return Ok(());
            }
            agrees(bench, &dir, &entry).map_err(|stop| stop.at(&format!("{:?}", entry.text())))?;
        }
    }
    Ok(())
}

fn agrees(bench: &Bench, dir: &InodeRef<'_>, entry: &Entry) -> Checked {
    bench.cool();
    let found = bench.vfs.lookup_by_ino(&bench.cred, dir.ino(), &entry.name).must("lookup")?;
    let (looked_up, known) = (found.attr().must("getattr")?, bench.attr(&found.inode)?);
    ensure_eq("the kind of the entry", entry.kind, looked_up.kind())?;
    if entry.ino != 0 && bench.has_numbers()? {
        ensure_eq("the inode number of the entry", entry.ino, looked_up.ino)?;
    }
    let part = |attr: &Attr| (attr.ino, attr.mode, attr.nlink, attr.size, attr.rdev);
    let what = "(inode, mode, links, size, device) of getattr after lookup";
    ensure_eq(what, part(&known), part(&looked_up))?;
    let rest = |attr: &Attr| (attr.uid, attr.gid, attr.blksize);
    let what = "(user, group, block size) of getattr after lookup";
    ensure_eq(what, rest(&known), rest(&looked_up))?;
    let what = "mtime of getattr after lookup, without a change of the file";
    ensure_eq(what, known.mtime, looked_up.mtime)?;
    ensure_eq("btime of getattr after lookup", known.btime, looked_up.btime)?;
    ensure(known.nlink > 0, || "a file with a name has no links".to_owned())?;
    ensure(known.blksize > 0, || "the preferred block size is 0".to_owned())?;
    if let Some(listed) = entry.attr {
        let of_entry = listed.with_ino(looked_up.ino);
        ensure_eq("(inode, mode, links, size, device) of readdir", part(&of_entry), part(&known))?;
    }
    Ok(())
}

pub(super) fn read_ranges(bench: &Bench) -> Checked {
    populate(bench)?;
    let mut visited = 0;
    for dir in collect_dirs(bench)? {
        for entry in bench.list(&dir)? {
            if entry.kind != FileKind::Regular || visited == FILES_MAX / 10 {
                continue;
            }
            visited += 1;
            let file = find(bench, &dir, &entry)?;
            reads_agree(bench, &file).map_err(|stop| stop.at(&format!("{:?}", entry.text())))?;
        }
    }
    if visited == 0 { Stop::skipped("there is no regular file") } else { Ok(()) }
}

/// A read of a range must return the full range, and the same bytes as a read of the whole file.
fn reads_agree(bench: &Bench, file: &InodeRef<'_>) -> Checked {
    let size = usize::try_from(bench.attr(file)?.size).unwrap_or(usize::MAX);
    let open = match bench.open(file) {
        // A back end may refuse to open a file, as /proc does.
        Err(_)
            if bench.vfs.open(&bench.cred, file, 0, corewalk::May::READ) == Err(Errno::ACCESS) =>
        {
            return Ok(());
        }
        opened => opened?,
    };
    let len = size.min(FILE_BYTES);
    let mut whole = Vec::new();
    while whole.len() < len {
        let page = open.read(whole.len() as u64, (len - whole.len()).min(4096))?;
        ensure(!page.is_empty(), || format!("no bytes at {} of {size}", whole.len()))?;
        whole.extend_from_slice(&page);
    }
    for step in [1_usize, 7, 511, 4096, 65_536, 131_072, 1 << 20] {
        // At most about 64 ranges of each length are read, to save time.
        let stride = step.max(len / 64);
        for at in (0..len).step_by(stride.max(1)) {
            let want = step.min(len - at);
            let found = open.read(at as u64, want)?;
            ensure(found.len() == want, || {
                format!("a read of {want} bytes at {at} of {size} returned {}", found.len())
            })?;
            ensure_bytes(&format!("a read at {at}"), &found, &whole[at..at + want])?;
        }
    }
    if len == size {
        let tail = open.read(size.saturating_sub(3) as u64, 4096)?;
        ensure_bytes("a read over the end", &tail, &whole[size.saturating_sub(3)..])?;
        for behind in [0, 1, 4096, 1 << 40] {
            let found = open.read(size as u64 + behind, 4096)?;
            ensure(found.is_empty(), || {
                format!("a read {behind} bytes behind the end returned {} bytes", found.len())
            })?;
        }
    }
    Ok(())
}
