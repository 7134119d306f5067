//! Regression tests for races of path locks and hidden names.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{Cred, Errno, InodeRef, May, Removal, Vfs, VfsOptions};
use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{Watchdog, until_asleep};

use crate::contract::{A_WHILE, gated, make, name, rename};
use crate::tree::{At, Links, PathTree};

const LIMIT: Duration = Duration::from_secs(60);

fn content(vfs: &Vfs, file: &InodeRef<'_>) -> Result<String, Errno> {
    let mut buf = [0; 16];
    let count = vfs.read(file, 0, 0, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..count]).into_owned())
}

fn open(vfs: &Vfs, file: &InodeRef<'_>) -> Result<u64, Errno> {
    let opened = vfs.open(&Cred::root(), file, 2, May::READ | May::WRITE)?;
    Ok(opened.handle)
}

fn remove(vfs: &Vfs, text: &str) {
    vfs.remove(&Cred::root(), &vfs.root(), name(text), Removal::Unlink).unwrap();
}

fn make_linked(vfs: &Vfs) -> InodeRef<'_> {
    let file = make(vfs, &vfs.root(), "f", 0o644);
    vfs.write(&Cred::root(), &file, 0, 0, b"x").unwrap();
    vfs.link(&Cred::root(), &file, &vfs.root(), name("g")).unwrap();
    file
}

/// If a rename replaces the last name of an open file, the file gets a hidden name. A last close
/// during the rename must not remove this hidden name.
#[test]
fn close_during_a_rename_over_the_last_name_keeps_the_file() {
    let _watchdog = Watchdog::start("a close beside a rename", LIMIT);
    let (gate, fs, vfs) = gated();
    let file = make_linked(&vfs);
    make(&vfs, &vfs.root(), "n", 0o644);
    let handle = open(&vfs, &file).unwrap();
    remove(&vfs, "f");
    gate.shut(At::AfterRename, "/");
    thread::scope(|scope| {
        scope.spawn(|| rename(&vfs, "n", "g"));
        gate.wait_for_stop();
        let closer = scope.spawn(|| vfs.release(&file, handle));
        thread::sleep(A_WHILE);
        gate.open();
        closer.join().unwrap();
    });
    assert_eq!(content(&vfs, &file).as_deref(), Ok("x"), "{:?}", fs.names("/"));
}

/// A file that is opened again while its last close waits for a removal must stay. The close must
/// check for the new open under the path lock.
#[test]
fn file_opened_while_it_is_closed_and_removed_stays() {
    let _watchdog = Watchdog::start("a close and an open beside a removal", LIMIT);
    let (gate, fs, vfs) = gated();
    let file = make_linked(&vfs);
    let handle = open(&vfs, &file).unwrap();
    remove(&vfs, "f");
    gate.shut(At::AfterRename, "/");
    let opened = thread::scope(|scope| {
        scope.spawn(|| remove(&vfs, "g"));
        gate.wait_for_stop();
        let closer = scope.spawn(|| vfs.release(&file, handle));
        thread::sleep(A_WHILE);
        let opener = scope.spawn(|| open(&vfs, &file));
        thread::sleep(A_WHILE);
        gate.open();
        closer.join().unwrap();
        opener.join().unwrap()
    });
    assert_eq!(opened, Ok(7), "{:?}", fs.names("/"));
    assert_eq!(content(&vfs, &file).as_deref(), Ok("x"));
}

/// The names on a path must not be evicted while a call of the back end uses the path. Otherwise an
/// evicted directory could be loaded again as another inode, on which the call has no path lock.
#[test]
fn name_in_use_by_a_call_is_not_evicted() {
    let _watchdog = Watchdog::start("an eviction beside a call", LIMIT);
    let (gate, _fs, vfs) = gated();
    let dir = make(&vfs, &vfs.root(), "x", S_IFDIR | 0o755);
    let file = make(&vfs, &dir, "f", 0o644);
    vfs.link(&Cred::root(), &file, &vfs.root(), name("g")).unwrap();
    vfs.revalidate(&dir, name("f")).unwrap();
    drop(dir);
    assert_eq!(file.path().unwrap(), b"/x/f");
    gate.shut(At::Call, "/x/f");
    thread::scope(|scope| {
        let reader = scope.spawn(|| vfs.getattr(&file).map(|attr| attr.ino));
        gate.wait_for_stop();
        vfs.prune();
        // The stopped call still uses the path of `f`, so `prune` must not evict `x` or `f`.
        // Otherwise `other` would get the slot of one of them.
        let _other = make(&vfs, &vfs.root(), "other", S_IFDIR | 0o755);
        gate.take_passed();
        let mover = scope.spawn(|| rename(&vfs, "x", "z"));
        thread::sleep(A_WHILE);
        let has_moved = gate.has_passed(At::AfterRename);
        gate.open();
        mover.join().unwrap();
        assert_eq!(reader.join().unwrap(), Ok(file.ino()));
        assert!(!has_moved, "the directory was renamed while a call used its path");
    });
}

/// The eviction of a file must drop the file's count of opens. Otherwise the next file in the slot
/// would inherit the count, and would not be deleted at its removal.
#[test]
fn open_count_is_dropped_with_its_file() {
    let (_gate, fs, vfs) = gated();
    let file = make(&vfs, &vfs.root(), "f", 0o644);
    open(&vfs, &file).unwrap();
    drop(file);
    vfs.prune();
    let next = make(&vfs, &vfs.root(), "g", 0o644);
    remove(&vfs, "g");
    assert_eq!(fs.names("/"), ["f"]);
    drop(next);
}

/// A call of the back end that waits for a rename must run before renames that begin later.
/// Otherwise one thread that renames back and forth would delay the call for ever.
#[test]
fn waiting_call_precedes_a_later_rename() {
    let _watchdog = Watchdog::start("a call between two renames", LIMIT);
    let (gate, _fs, vfs) = gated();
    let dir = make(&vfs, &vfs.root(), "a", S_IFDIR | 0o755);
    let file = make(&vfs, &dir, "f", 0o644);
    let sub = make(&vfs, &dir, "sub", S_IFDIR | 0o755);
    for _ in 0..20 {
        gate.shut(At::AfterRename, "/");
        thread::scope(|scope| {
            scope.spawn(|| rename(&vfs, "a", "b"));
            gate.wait_for_stop();
            gate.take_passed();
            let named = |name: &str| thread::Builder::new().name(name.to_owned());
            let call = || vfs.getattr(&file).map(|attr| attr.ino);
            let caller = named("caller").spawn_scoped(scope, call).unwrap();
            until_asleep("caller", &caller);
            // The first rename (`a` to `b`) hangs in the back end, and `getattr`, which needs the
            // path of `a/f`, waits for it. The later rename (`f` to `sub`) uses none of these
            // names, so it can wait only for `getattr`.
            let rename_later = || {
                let (from, to) = ((&dir, name("f")), (&sub, name("f")));
                vfs.rename(&Cred::root(), from, to, corewalk::RenameMode::Replace)
            };
            let later = named("later").spawn_scoped(scope, rename_later).unwrap();
            until_asleep("later", &later);
            gate.open();
            assert_eq!(caller.join().unwrap(), Ok(file.ino()));
            later.join().unwrap().unwrap();
        });
        let passed = gate.take_passed();
        let first = |at| passed.iter().position(|it| *it == at).unwrap();
        assert!(first(At::Call) < first(At::BeforeRename), "{passed:?}");
        let (from, to) = ((&sub, name("f")), (&dir, name("f")));
        vfs.rename(&Cred::root(), from, to, corewalk::RenameMode::Replace).unwrap();
        rename(&vfs, "b", "a");
    }
}

#[test]
fn path_locks_end_with_a_panic() {
    let _watchdog = Watchdog::start("a call after a panic", LIMIT);
    let panics_at = Arc::new(Mutex::new(None));
    let at_pause = Arc::clone(&panics_at);
    let fs = PathTree::new(Links::Yes, move |at, _| {
        let is_there = at_pause.lock().take_if(|there| *there == at).is_some();
        assert!(!is_there, "as asked for");
    });
    let vfs = Vfs::new(fs, VfsOptions::default()).unwrap();
    let dir = make(&vfs, &vfs.root(), "a", S_IFDIR | 0o755);
    let file = make(&vfs, &dir, "f", 0o644);
    for at in [At::Call, At::BeforeRename] {
        *panics_at.lock() = Some(at);
        let call = AssertUnwindSafe(|| match at {
            At::Call => drop(vfs.getattr(&file)),
            _ => rename(&vfs, "a", "b"),
        });
        assert!(catch_unwind(call).is_err(), "{at:?}");
        rename(&vfs, "a", "b");
        assert_eq!(vfs.getattr(&file).map(|attr| attr.ino), Ok(file.ino()));
        rename(&vfs, "b", "a");
    }
}
