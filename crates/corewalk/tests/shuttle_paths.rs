//! Random schedules of programs over a back end that finds files by path. Its paths must stay valid
//! during calls, and no thread may wait for ever.
//!
//! See `shuttle.rs` for the two schedulers. Run with
//! `RUSTFLAGS="--cfg corewalk_shuttle" cargo test -p corewalk --release --test shuttle_paths`.
#![cfg(corewalk_shuttle)]

#[allow(dead_code)]
#[path = "by_path/tree.rs"]
mod tree;

#[path = "schedules/check.rs"]
mod check;

use std::sync::Arc;
use std::time::Duration;

use check::check;
use corewalk::attr::mode::S_IFDIR;
use corewalk::{Cred, Errno, InodeRef, Make, May, Name, Removal, RenameMode, Vfs, VfsOptions};
use corewalk_base::primitives::{atomic::Ordering, thread, unmodelled::AtomicUsize};
use tree::{Links, PathTree};

#[derive(Clone, Copy, PartialEq, Eq)]
enum From {
    Call,
    Snapshot,
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn new(from: From) -> (Arc<PathTree>, Arc<Vfs>) {
    let fs = PathTree::slow(Links::Yes, Duration::ZERO, Duration::ZERO);
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(16);
    let vfs = Vfs::new(fs.clone(), options).unwrap();
    if from == From::Snapshot {
        fs.snapshots.set(Arc::downgrade(&vfs)).unwrap();
    }
    for path in ["x", "x/d", "x/d/f", "y"] {
        let (dir, last) = path.rsplit_once('/').unwrap_or(("", path));
        let mode = if last == "f" { 0o644 } else { S_IFDIR | 0o755 };
        let make = Make::new(mode, 0, 0);
        vfs.make(&Cred::root(), &at(&vfs, dir), name(last), make).unwrap();
    }
    (fs, vfs)
}

fn at<'v>(vfs: &'v Vfs, path: &str) -> InodeRef<'v> {
    path.split('/')
        .filter(|part| !part.is_empty())
        .fold(vfs.root(), |dir, part| vfs.lookup(&Cred::root(), &dir, name(part)).unwrap())
}

fn rename(vfs: &Vfs, from: (&InodeRef<'_>, &str), to: (&InodeRef<'_>, &str)) -> Result<(), Errno> {
    let (from, to) = ((from.0, name(from.1)), (to.0, name(to.1)));
    vfs.rename(&Cred::root(), from, to, RenameMode::Replace)
}

type Body = Box<dyn FnOnce(&Vfs) + Send>;

fn run(vfs: &Arc<Vfs>, threads: Vec<Body>) {
    let threads: Vec<_> = threads
        .into_iter()
        .map(|body| {
            let vfs = Arc::clone(vfs);
            thread::spawn(move || body(&vfs))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn move_beside_calls(from: From) {
    let (fs, vfs) = new(from);
    let (d, f) = (at(&vfs, "x/d").into_lookups(), at(&vfs, "x/d/f").into_lookups());
    let mover: Body = Box::new(|vfs| {
        let (x, y) = (at(vfs, "x"), at(vfs, "y"));
        rename(vfs, (&x, "d"), (&y, "e")).unwrap();
        rename(vfs, (&vfs.root(), "y"), (&vfs.root(), "z")).unwrap();
    });
    let reader: Body = Box::new(move |vfs| {
        let file = vfs.inode(f).unwrap();
        assert_eq!(vfs.getattr(&file).map(|attr| attr.ino), Ok(f), "the path led to another file");
    });
    let maker: Body = Box::new(move |vfs| {
        let dir = vfs.inode(d).unwrap();
        let made = vfs.make(&Cred::root(), &dir, name("new"), Make::new(0o644, 0, 0));
        assert!(made.is_ok(), "the path led to another file");
    });
    run(&vfs, vec![mover, reader, maker]);
    assert_eq!(fs.content("/z/e/new"), Some(vec![]), "the path led to another file");
    // ORDERING: Relaxed. All threads have been joined.
    assert_eq!(fs.strays.load(Ordering::Relaxed), 0, "the path led to another file");
}

/// A path that a call of the back end has got must stay valid until the call ends. This holds even
/// if a directory above the file is renamed. Trap X1 in `traps.md`.
#[test]
fn path_of_a_call_is_valid_until_it_returns() {
    check(|| move_beside_calls(From::Call));
}

#[test]
#[should_panic(expected = "the path led to another file")]
fn control_path_snapshot_is_caught() {
    check(|| move_beside_calls(From::Snapshot));
}

/// Three operations must not block each other for ever. One rename moves `x` into `y`, another `y`
/// into `x`, and a link gives a file below `x` a name in `y`. Each needs the paths of both
/// directories. One rename must fail, because both together would make a loop.
#[test]
fn crossing_renames_and_a_link_end() {
    static REFUSED: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let (fs, vfs) = new(From::Call);
        let f = at(&vfs, "x/d/f").into_lookups();
        let [x, y] = ["x", "y"].map(|path| at(&vfs, path).into_lookups());
        let one: Body = Box::new(move |vfs| {
            let (root, y) = (vfs.root(), vfs.inode(y).unwrap());
            let moved = rename(vfs, (&root, "x"), (&y, "x"));
            // ORDERING: Relaxed. Statistic.
            REFUSED.fetch_add(usize::from(moved.is_err()), Ordering::Relaxed);
        });
        let other: Body = Box::new(move |vfs| {
            let (root, x) = (vfs.root(), vfs.inode(x).unwrap());
            let moved = rename(vfs, (&root, "y"), (&x, "y"));
            // ORDERING: Relaxed. Statistic.
            REFUSED.fetch_add(usize::from(moved.is_err()), Ordering::Relaxed);
        });
        let linker: Body = Box::new(move |vfs| {
            let (file, y) = (vfs.inode(f).unwrap(), vfs.inode(y).unwrap());
            vfs.link(&Cred::root(), &file, &y, name("l")).unwrap();
        });
        run(&vfs, vec![one, other, linker]);
        // ORDERING: Relaxed. All threads have been joined.
        assert_eq!(fs.strays.load(Ordering::Relaxed), 0);
    });
    // ORDERING: Relaxed. All threads have been joined.
    assert!(REFUSED.load(Ordering::Relaxed) > 0);
}

/// A file must be readable after an open during its removal or replacement.
#[test]
fn file_opened_during_its_removal_is_read_or_gone() {
    check(|| {
        let (fs, vfs) = new(From::Call);
        vfs.make(&Cred::root(), &at(&vfs, "x/d"), name("g"), Make::new(0o644, 0, 0)).unwrap();
        let f = at(&vfs, "x/d/f").into_lookups();
        let reader: Body = Box::new(move |vfs| {
            let file = vfs.inode(f).unwrap();
            match vfs.open(&Cred::root(), &file, 0, May::READ) {
                Err(error) => assert_eq!(error, Errno::STALE),
                Ok(opened) => {
                    assert_eq!(vfs.read(&file, opened.handle, 0, &mut [0; 8]), Ok(0));
                    vfs.release(&file, opened.handle);
                }
            }
            drop(file);
            assert!(vfs.forget(f, 1));
        });
        let replacer: Body = Box::new(|vfs| {
            let d = at(vfs, "x/d");
            rename(vfs, (&d, "g"), (&d, "f")).unwrap();
        });
        let remover: Body = Box::new(|vfs| {
            let d = at(vfs, "x/d");
            vfs.remove(&Cred::root(), &d, name("f"), Removal::Unlink).unwrap();
        });
        run(&vfs, vec![reader, replacer, remover]);
        vfs.prune();
        assert_eq!(fs.names("/"), ["x", "y"], "a hidden name is left");
    });
}

/// A file that is closed while a rename replaces it must stay usable until the client, which has
/// looked it up, forgets it.
#[test]
fn file_closed_during_its_replacement_stays_until_forget() {
    check(|| {
        let (_fs, vfs) = new(From::Call);
        vfs.make(&Cred::root(), &at(&vfs, "x/d"), name("g"), Make::new(0o644, 0, 0)).unwrap();
        let f = at(&vfs, "x/d/f").into_lookups();
        let closer: Body = Box::new(move |vfs| {
            let file = vfs.inode(f).unwrap();
            let handle = vfs.open(&Cred::root(), &file, 0, May::READ).unwrap().handle;
            vfs.release(&file, handle);
            assert_eq!(vfs.getattr(&file).map(|attr| attr.ino), Ok(f));
        });
        let replacer: Body = Box::new(|vfs| {
            let d = at(vfs, "x/d");
            rename(vfs, (&d, "g"), (&d, "f")).unwrap();
        });
        run(&vfs, vec![closer, replacer]);
    });
}
