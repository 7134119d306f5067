//! Tests of [`ByPath`], the adapter for back ends that know files only by path and have no inode
//! numbers.

use std::collections::HashSet;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{
    Attr, ByPath, Cred, DirEntry, Errno, FileKind, FileLock, FileSystem as _, Fsync, InodeFlags,
    InodeRef, LockKind, Make, May, Name, OpenFlags, PathEntry, PathFileSystem, PollEvents, Removal,
    RenameMode, Vfs, VfsOptions,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

use rustix::fs::OFlags;

use crate::memory::Memory;

fn new() -> (Arc<ByPath<Memory>>, Arc<Vfs>) {
    let fs = Arc::new(Memory::new(Duration::ZERO, Duration::ZERO));
    let vfs = Vfs::new(fs.clone(), VfsOptions::default()).unwrap();
    (fs, vfs)
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, text: &str, mode: u32) -> InodeRef<'v> {
    vfs.make(&Cred::root(), dir, name(text), Make::new(mode, 0, 0)).unwrap().0
}

fn lookup<'v>(vfs: &'v Vfs, text: &str) -> InodeRef<'v> {
    vfs.lookup(&Cred::root(), &vfs.root(), name(text)).unwrap()
}

fn rename(vfs: &Vfs, from: &str, to: &str, mode: RenameMode) {
    let root = vfs.root();
    vfs.rename(&Cred::root(), (&root, name(from)), (&root, name(to)), mode).unwrap();
}

fn list(vfs: &Vfs, page: usize, mut between: impl FnMut(usize)) -> Vec<(String, u64)> {
    let (mut entries, mut cookie, mut pages) = (vec![], 0, 0);
    loop {
        let (start, from, mut full) = (entries.len(), cookie, false);
        let mut sink = |entry: DirEntry<'_>| {
            full = entries.len() == start + page;
            if full {
                return ControlFlow::Break(());
            }
            assert!(entry.cookie > cookie, "the cookies do not grow");
            cookie = entry.cookie;
            entries.push((String::from_utf8_lossy(entry.name.as_bytes()).into_owned(), entry.ino));
            ControlFlow::Continue(())
        };
        vfs.readdir(&vfs.root(), from, &mut sink).unwrap();
        if entries.len() == start {
            return entries;
        }
        pages += 1;
        between(pages);
    }
}

#[test]
fn file_keeps_its_number_while_the_cache_has_it() {
    let (_, vfs) = new();
    let root = vfs.root();
    let [a, b] = ["a", "b"].map(|text| make(&vfs, &root, text, 0o644));
    let d = make(&vfs, &root, "d", S_IFDIR | 0o755);
    assert_eq!(HashSet::from([root.ino(), a.ino(), b.ino(), d.ino()]).len(), 4);
    assert_eq!(vfs.getattr(&a).unwrap().ino, a.ino());
    rename(&vfs, "a", "moved", RenameMode::NoReplace);
    assert_eq!(lookup(&vfs, "moved").ino(), a.ino());
    rename(&vfs, "moved", "b", RenameMode::Exchange);
    assert_eq!([lookup(&vfs, "b").ino(), lookup(&vfs, "moved").ino()], [a.ino(), b.ino()]);
    // `revalidate` and `lookup_fresh` ask the back end again. It reports the same file, so the
    // inode number must stay the same.
    vfs.revalidate(&root, name("b")).unwrap();
    assert_eq!(lookup(&vfs, "b").ino(), a.ino());
    let fresh = vfs.lookup_fresh(&Cred::root(), &root, name("b")).unwrap();
    assert_eq!((fresh.inode.ino(), fresh.attr().unwrap().ino), (a.ino(), a.ino()));
    let seen = [root.ino(), a.ino(), b.ino(), d.ino()];
    drop((a, b, d, fresh));
    vfs.prune();
    let again = lookup(&vfs, "b").ino();
    assert!(!seen.contains(&again), "a number was given out twice");
}

#[test]
fn name_with_another_kind_of_file_is_another_file() {
    let (fs, vfs) = new();
    let file = make(&vfs, &vfs.root(), "f", 0o644);
    fs.get_ref().make_outside("f", S_IFDIR | 0o755);
    for _ in 0..2 {
        vfs.revalidate(&vfs.root(), name("f")).unwrap();
        let found = lookup(&vfs, "f");
        assert_ne!(found.ino(), file.ino());
        assert_eq!((found.kind(), found.ino()), (FileKind::Directory, lookup(&vfs, "f").ino()));
    }
    assert_eq!(vfs.read(&file, 0, 0, &mut [0; 4]), Err(Errno::ISDIR));
}

#[test]
fn open_files_reach_the_back_end_until_they_are_closed() {
    let (fs, vfs) = new();
    let (cred, root) = (Cred::root(), vfs.root());
    // ORDERING: Relaxed. One thread.
    let open = || fs.get_ref().open.load(Ordering::Relaxed);
    let file = make(&vfs, &root, "f", 0o644);
    // A client that creates and then opens a file passes `O_CREAT` and `O_EXCL` with the open.
    // `ByPath` must not pass them on, because open(2) would fail with `EEXIST`.
    let creation = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY;
    let writer = vfs.open(&cred, &file, creation.bits(), May::WRITE).unwrap().handle;
    let reader = vfs.open(&cred, &file, 0, May::READ).unwrap().handle;
    assert_ne!(writer, reader);
    assert_eq!((open(), vfs.write(&cred, &file, writer, 0, b"text")), (2, Ok(4)));
    vfs.remove(&cred, &root, name("f"), Removal::Unlink).unwrap();
    let mut buf = [0; 8];
    // A read or write may have no handle, or one that was opened with the wrong access mode. Then
    // `ByPath` opens the file for that read or write only.
    for handle in [reader, writer, 0] {
        assert_eq!(vfs.read(&file, handle, 1, &mut buf), Ok(3));
        assert_eq!(&buf[..3], b"ext");
        assert_eq!(vfs.write(&cred, &file, handle, 0, b"text"), Ok(4));
        assert_eq!(open(), 2, "a file that was opened for a call stays open");
    }
    assert_eq!(vfs.getattr(&file).unwrap().nlink, 0);
    vfs.release(&file, writer);
    vfs.release(&file, reader);
    assert_eq!(open(), 0);
    drop(file);
    assert_eq!(fs.get_ref().names("/"), [""; 0]);
}

#[test]
fn calls_on_an_open_file_get_the_value_of_its_open() {
    let (fs, vfs) = new();
    let (cred, root) = (Cred::root(), vfs.root());
    let [a, b] = ["a", "b"].map(|text| make(&vfs, &root, text, 0o644));
    let reader = vfs.open(&cred, &a, 0, May::READ).unwrap();
    let writer = vfs.open(&cred, &b, OFlags::WRONLY.bits(), May::WRITE).unwrap();
    assert_eq!([reader.flags, writer.flags], [OpenFlags::KEEP_CACHE, OpenFlags::DIRECT_IO]);
    // ORDERING: Relaxed. One thread.
    let load = |count: &AtomicU64| count.load(Ordering::Relaxed);
    let before = load(&fs.get_ref().getattrs_open);
    vfs.getattr(&a).unwrap();
    assert_eq!(load(&fs.get_ref().getattrs_open), before);
    vfs.getattr_through(&a, reader.handle).unwrap();
    assert_eq!(load(&fs.get_ref().getattrs_open), before + 1);
    // `ByPath` passes a flush to the back end only if the call has the handle of an open file.
    assert_eq!(vfs.flush(&a, 0), Ok(()));
    assert_eq!(load(&fs.get_ref().flushes), 0);
    assert_eq!(vfs.flush(&a, reader.handle), Err(Errno::NOSPC));
    assert_eq!(load(&fs.get_ref().flushes), 1);
    assert_eq!(vfs.write(&cred, &a, 0, 0, b"content"), Ok(7));
    let copy = |from, to| vfs.copy_file_range(&cred, (&a, from, 2), (&b, to, 1), 100);
    assert_eq!(copy(reader.handle, writer.handle), Ok(5));
    assert_eq!(fs.get_ref().content("b").unwrap(), b"\0ntent");
    assert_eq!(copy(0, writer.handle), Err(Errno::OPNOTSUPP));
    assert!(fs.has_locks());
    let lock = FileLock::new(1, LockKind::Write);
    assert_eq!(vfs.set_lock(&a, 0, &lock), Err(Errno::BADF));
    vfs.set_lock(&a, reader.handle, &lock).unwrap();
    assert_eq!(vfs.get_lock(&a, reader.handle, &FileLock { owner: 2, ..lock }), Ok(Some(lock)));
    vfs.unlock_owner(&a, reader.handle, 1, false).unwrap();
    assert_eq!(vfs.get_lock(&a, reader.handle, &FileLock { owner: 2, ..lock }), Ok(None));
    assert_eq!(vfs.poll(&a, 0, PollEvents::IN, None), Err(Errno::BADF));
    assert_eq!(vfs.poll(&a, reader.handle, PollEvents::all(), None), Ok(PollEvents::IN));
    let says = |handle| vfs.ioctl(&a, handle, 7, b"").map(|reply| reply.output);
    assert_eq!([says(0), says(reader.handle)], [Ok(b"a:false".to_vec()), Ok(b"a:true".to_vec())]);
    vfs.set_inode_flags(&a, 0, InodeFlags::NODUMP).unwrap();
    assert_eq!(vfs.inode_flags(&a, 0), Ok(InodeFlags::NODUMP));
    vfs.release(&a, reader.handle);
    vfs.release(&b, writer.handle);
}

/// An entry that exists during a whole listing must be reported exactly once. Traps T48 and P13 in
/// `traps.md`.
#[test]
fn large_directory_is_listed_once_beside_changes() {
    let (fs, vfs) = new();
    let root = vfs.root();
    for i in 0..2_000 {
        drop(make(&vfs, &root, &format!("stays{i}"), 0o644));
    }
    vfs.prune();
    for page in [1_usize, 7, 500, 5_000] {
        // ORDERING: Relaxed. One thread.
        let before = fs.get_ref().listings.load(Ordering::Relaxed);
        let entries = list(&vfs, page, |pages| {
            let (new, old) = (format!("p{page}x{pages}"), format!("p{page}x{}", pages - 1));
            drop(make(&vfs, &root, &new, 0o644));
            if pages > 1 {
                vfs.remove(&Cred::root(), &root, name(&old), Removal::Unlink).unwrap();
            }
        });
        let stays: Vec<&String> =
            entries.iter().map(|(name, _)| name).filter(|name| name.starts_with('s')).collect();
        assert_eq!(stays.len(), 2_000);
        assert_eq!(stays.iter().collect::<HashSet<_>>().len(), 2_000);
        // ORDERING: Relaxed. One thread.
        let listings = fs.get_ref().listings.load(Ordering::Relaxed) - before;
        assert!(listings <= 2, "the back end was asked {listings} times");
    }
}

#[test]
fn many_directories_are_listed_at_once() {
    let (_, vfs) = new();
    let root = vfs.root();
    let dirs: Vec<InodeRef<'_>> = (0..20)
        .map(|i| {
            let dir = make(&vfs, &root, &format!("d{i}"), S_IFDIR | 0o755);
            for j in 0..10 {
                drop(make(&vfs, &dir, &format!("f{j}"), 0o644));
            }
            dir
        })
        .collect();
    let mut passes = vec![(0, vec![]); dirs.len()];
    for _ in 0..11 {
        for (dir, (cookie, names)) in dirs.iter().zip(&mut passes) {
            let (from, mut is_taken) = (*cookie, false);
            let mut sink = |entry: DirEntry<'_>| {
                if std::mem::replace(&mut is_taken, true) {
                    return ControlFlow::Break(());
                }
                *cookie = entry.cookie;
                names.push(entry.name.as_bytes().to_vec());
                ControlFlow::Continue(())
            };
            vfs.readdir(dir, from, &mut sink).unwrap();
        }
    }
    for (_, mut names) in passes {
        names.sort_unstable();
        let all: Vec<Vec<u8>> = (0..10).map(|j| format!("f{j}").into_bytes()).collect();
        assert_eq!(names, all);
    }
}

#[test]
fn listed_entry_has_the_number_of_the_cached_file() {
    let (_, vfs) = new();
    let root = vfs.root();
    let held = make(&vfs, &root, "held", 0o644);
    drop(make(&vfs, &root, "unknown", 0o644));
    vfs.prune();
    let mut entries = list(&vfs, 10, |_| {});
    entries.sort();
    let expected = [("held".to_owned(), held.ino()), ("unknown".to_owned(), 0)];
    assert_eq!(entries, expected);
}

/// A lookup must still find the inode of an open file after an invalidation of the file's name. (A
/// failed removal of the directory invalidates the name, too.) If the lookup made a second inode, a
/// removal of the name would treat the file as closed, and lose its content.
#[test]
fn open_file_is_one_file_after_an_invalidation_of_its_name() {
    let (fs, vfs) = new();
    let (cred, root) = (Cred::root(), vfs.root());
    let dir = make(&vfs, &root, "d", S_IFDIR | 0o755);
    let file = make(&vfs, &dir, "f", 0o644);
    let below = make(&vfs, &dir, "below", S_IFDIR | 0o755);
    let handle = vfs.open(&cred, &file, 2, May::READ | May::WRITE).unwrap().handle;
    assert_eq!(vfs.write(&cred, &file, handle, 0, b"text"), Ok(4));
    let find = |dir: &InodeRef<'_>, text| vfs.lookup(&cred, dir, name(text)).map(|it| it.ino());
    assert_eq!(vfs.remove(&cred, &root, name("d"), Removal::Rmdir), Err(Errno::NOTEMPTY));
    assert_eq!(find(&dir, "f"), Ok(file.ino()));
    vfs.invalidate_dir(&dir).unwrap();
    assert_eq!(find(&dir, "below"), Ok(below.ino()));
    vfs.invalidate(&dir, name("f")).unwrap();
    let (from, to) = ((&dir, name("f")), (&dir, name("g")));
    vfs.rename(&cred, from, to, RenameMode::NoReplace).unwrap();
    let other = make(&vfs, &dir, "f", 0o644);
    assert_ne!(other.ino(), file.ino());
    assert_eq!(file.path().unwrap(), b"/d/g");
    vfs.invalidate(&dir, name("g")).unwrap();
    vfs.remove(&cred, &dir, name("g"), Removal::Unlink).unwrap();
    let mut buf = [0; 8];
    assert_eq!(vfs.read(&file, handle, 0, &mut buf), Ok(4));
    assert_eq!(&buf[..4], b"text");
    vfs.release(&file, handle);
    drop((file, other));
    assert_eq!(fs.get_ref().names("/").len(), 1, "a hidden name is left");
    let linked = vfs.link(&cred, &make(&vfs, &dir, "h", 0o644), &dir, name("i"));
    assert_eq!(linked.err(), Some(Errno::PERM), "no number tells that two names are one file");
}

/// An fsync must reach the open file through which the client has written, because the back end may
/// buffer unwritten bytes in that open file.
#[test]
fn fsync_gets_the_file_that_the_client_has_open() {
    let (fs, vfs) = new();
    let cred = Cred::root();
    let file = make(&vfs, &vfs.root(), "f", 0o644);
    for (access, may) in [(1, May::WRITE), (0, May::READ), (2, May::READ | May::WRITE)] {
        let handle = vfs.open(&cred, &file, access, may).unwrap().handle;
        vfs.fsync(&file, handle, Fsync::All).unwrap();
        // ORDERING: Relaxed. One thread.
        let open = fs.get_ref().open_at_sync.load(Ordering::Relaxed);
        assert_eq!(open, 1, "fsync got another file than that of the client");
        vfs.release(&file, handle);
    }
}

/// If two directories exchange their paths during a listing of each, each listing must continue
/// with the names of its own directory.
#[test]
fn listing_of_a_renamed_directory_goes_on_with_its_names() {
    let (_, vfs) = new();
    let dirs = ["a", "b"].map(|dir| make(&vfs, &vfs.root(), dir, S_IFDIR | 0o755));
    for (dir, prefix) in dirs.iter().zip(["in-a", "in-b"]) {
        (0..300).for_each(|i| drop(make(&vfs, dir, &format!("{prefix}-{i}"), 0o100_644)));
    }
    let page = |dir: &InodeRef<'_>, cookie: &mut u64, names: &mut HashSet<String>| {
        let (from, end) = (*cookie, names.len() + 200);
        let mut sink = |entry: DirEntry<'_>| {
            if names.len() == end {
                return ControlFlow::Break(());
            }
            *cookie = entry.cookie;
            names.insert(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
            ControlFlow::Continue(())
        };
        vfs.readdir(dir, from, &mut sink).unwrap();
    };
    let mut passes = [(0, HashSet::new()), (0, HashSet::new())];
    for round in 0..3 {
        for (dir, (cookie, names)) in dirs.iter().zip(&mut passes) {
            page(dir, cookie, names);
        }
        if round == 0 {
            rename(&vfs, "a", "b", RenameMode::Exchange);
        }
    }
    for ((_, names), prefix) in passes.iter().zip(["in-a", "in-b"]) {
        assert_eq!(names.len(), 300);
        assert!(names.iter().all(|name| name.starts_with(prefix)), "{prefix}");
    }
}

/// Two directories with one inode number and different generations. The files in a directory have
/// its name as a prefix.
struct OneNumber;

impl PathFileSystem for OneNumber {
    type File = ();

    fn getattr(&self, path: &Path) -> Result<Attr, Errno> {
        match path.to_str() {
            Some("") => Ok(Attr::dir(1)),
            Some("a") => Ok(Attr::dir(7).with_generation(1)),
            Some("b") => Ok(Attr::dir(7).with_generation(2)),
            _ => Err(Errno::NOENT),
        }
    }

    fn readdir(&self, path: &Path, sink: &mut dyn FnMut(PathEntry<'_>)) -> Result<(), Errno> {
        for i in 0..300 {
            let name = format!("{}{i}", path.display());
            sink(PathEntry::new(&name, FileKind::Regular).with_ino(100 + i));
        }
        Ok(())
    }

    fn open(&self, _: &Path, _: u32) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&self, _: &Path, _: &(), _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }
}

#[test]
fn listing_goes_on_with_the_names_of_its_generation() {
    let vfs = Vfs::new(Arc::new(ByPath::new(OneNumber)), VfsOptions::default()).unwrap();
    let [a, b] = ["a", "b"].map(|text| lookup(&vfs, text));
    assert_eq!((a.ino(), a.generation(), b.generation()), (b.ino(), 1, 2));
    let mut cookie = 0;
    for dir in [&a, &b, &a] {
        let (from, mut names) = (if dir.generation() == 1 { cookie } else { 0 }, vec![]);
        let mut sink = |entry: DirEntry<'_>| {
            if names.len() == 100 {
                return ControlFlow::Break(());
            }
            cookie = if dir.generation() == 1 { entry.cookie } else { cookie };
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        };
        vfs.readdir(dir, from, &mut sink).unwrap();
        let prefix = [b"a", b"b"][dir.generation() as usize - 1];
        assert!(names.len() == 100 && names.iter().all(|name| name.starts_with(prefix)));
    }
}

/// Checks that only the first page of a listing reports attributes. A later page comes from a saved
/// listing, so its attributes could be out of date.
#[test]
fn later_pages_of_a_listing_have_no_attributes() {
    let (_, vfs) = new();
    let root = vfs.root();
    for i in 0..1_000 {
        drop(make(&vfs, &root, &format!("f{i}"), 0o644));
    }
    let mut cookie = 0;
    for is_first in [true, false] {
        let (from, mut count) = (cookie, 0);
        let mut sink = |entry: DirEntry<'_>| {
            count += 1;
            if count > 300 {
                return ControlFlow::Break(());
            }
            assert_eq!(entry.attr.is_some(), is_first);
            cookie = entry.cookie;
            ControlFlow::Continue(())
        };
        vfs.readdir(&root, from, &mut sink).unwrap();
    }
}

/// Several clients list a directory at the same time. A listing that began after a file was made
/// must report it, even if `ByPath` keeps older listings.
#[test]
fn pass_shows_every_file_that_was_made_before_it() {
    let (_, vfs) = new();
    let root = vfs.root();
    for i in 0..600 {
        drop(make(&vfs, &root, &format!("f{i}"), 0o644));
    }
    let page = |cookie: &mut u64, names: &mut Vec<Vec<u8>>| {
        let (from, mut count) = (*cookie, 0);
        let mut sink = |entry: DirEntry<'_>| {
            count += 1;
            if count > 100 {
                return ControlFlow::Break(());
            }
            *cookie = entry.cookie;
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        };
        vfs.readdir(&root, from, &mut sink).unwrap();
    };
    let (mut old, mut old_names) = (0, vec![]);
    page(&mut old, &mut old_names);
    for i in 0..20 {
        let made = format!("made{i}");
        drop(make(&vfs, &root, &made, 0o644));
        let (mut new, mut names) = (0, vec![]);
        for _ in 0..10 {
            page(&mut new, &mut names);
            page(&mut old, &mut old_names);
        }
        assert!(names.contains(&made.into_bytes()), "the pass misses a file");
        assert_eq!(names.len(), 600 + i + 1);
    }
}
