//! Tests of the mount options: read-only, access times, `dirsync`, and others.

use std::ops::ControlFlow;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Atime, AtimePolicy, Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, RenameMode,
    SetAttr, SetTime, Timespec, XattrMode,
};
use corewalk_store::{OpenError, Store, StoreOptions, fsck_devices};

use crate::differential::tree;
use crate::memory::{Disks, quiet};

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn root(fs: &dyn FileSystem) -> Node<'static> {
    Node::detached(fs.root().unwrap().ino, FileKind::Directory)
}

fn make(fs: &dyn FileSystem, text: &str, kind: FileKind) -> Node<'static> {
    let made = fs.make(root(fs), name(text), &Make::new(kind.to_mode() | 0o755, 0, 0));
    Node::detached(made.unwrap().ino, kind)
}

fn is_noted(fs: &dyn FileSystem, atime: i64) -> [bool; 2] {
    let file = fs.lookup(root(fs), name("file")).unwrap().ino;
    let nodes = [Node::detached(file, FileKind::Regular), root(fs)];
    let at = Timespec { secs: atime, nanos: 0 };
    nodes.map(|node| {
        let set = SetAttr::default().with_atime(SetTime::At(at));
        fs.setattr(node, &set).unwrap();
        match node.ino() == file {
            true => drop(fs.read(node, 0, &mut [0; 4]).unwrap()),
            false => fs.readdir(node, 0, &mut |_| ControlFlow::Continue(())).unwrap(),
        }
        fs.getattr(node).unwrap().atime != at
    })
}

#[test]
fn times_of_access_are_as_the_policy_says() {
    let (old, ahead) = (5, 1 << 33);
    let policy = |directories, others| AtimePolicy { directories, others };
    for (atime, expected_old, expected_ahead) in [
        (AtimePolicy::default(), [true; 2], [false; 2]),
        (AtimePolicy::NEVER, [false; 2], [false; 2]),
        (policy(Atime::Strict, Atime::Strict), [true; 2], [true; 2]),
        (policy(Atime::Never, Atime::Relative), [true, false], [false; 2]),
    ] {
        let disks = Disks::new();
        let store = disks.open(&quiet().with_atime(atime));
        let tmpfs = Tmpfs::new(TmpfsOptions::default().with_atime(atime));
        let all: [(&dyn FileSystem, &str); 2] = [(&store, "store"), (&tmpfs, "tmpfs")];
        for (fs, what) in all {
            let file = make(fs, "file", FileKind::Regular);
            fs.write(file, 0, b"bytes").unwrap();
            assert_eq!(is_noted(fs, old), expected_old, "{what} {atime:?}");
            assert_eq!(is_noted(fs, ahead), expected_ahead, "{what} {atime:?}");
        }
    }
}

/// With `dirsync`, a change of a directory must survive a kill of the server. Without `dirsync`,
/// the kill must lose it (control).
#[test]
fn names_are_durable_at_once_with_dirsync() {
    for is_dirsync in [true, false] {
        let disks = Disks::new();
        let store = disks.open(&quiet().with_dirsync(is_dirsync));
        let root = root(&store);
        let file = make(&store, "file", FileKind::Regular);
        store.sync().unwrap();
        let steps: [&dyn Fn(); 5] = [
            &|| assert_ne!(make(&store, "dir", FileKind::Directory).ino(), 0),
            &|| assert_eq!(store.link(file, root, name("other")).unwrap().nlink, 2),
            &|| {
                store
                    .rename((root, name("file")), (root, name("new")), RenameMode::Replace)
                    .unwrap()
            },
            &|| {
                store
                    .rename((root, name("new")), (root, name("dir")), RenameMode::Exchange)
                    .unwrap()
            },
            &|| store.remove(root, name("other"), file).unwrap(),
        ];
        for (nth, step) in steps.into_iter().enumerate() {
            step();
            let now = tree(&store);
            let killed = disks.killed();
            let is_durable = tree(&killed.open(&quiet())) == now;
            assert_eq!(is_durable, is_dirsync, "step {nth}");
        }
    }
}

#[test]
fn store_that_is_read_only_changes_nothing() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let (file, gone) =
        (make(&store, "file", FileKind::Regular), make(&store, "gone", FileKind::Regular));
    store.write(file, 0, b"bytes").unwrap();
    store.remove(root(&store), name("gone"), gone).unwrap();
    store.sync().unwrap();
    let before = tree(&store);
    let disks = disks.killed();
    drop(store);
    let options = quiet().with_read_only(true).with_atime(AtimePolicy::NEVER);
    let store = disks.open(&options);
    let root = root(&store);
    let value = XattrMode::Set;
    for result in [
        store.make(root, name("new"), &Make::new(0o644, 0, 0)).map(drop),
        store.write(file, 0, b"other").map(drop),
        store.setattr(file, &SetAttr::default().with_mode(0o600)).map(drop),
        store.setxattr(file, b"user.a", b"", value),
        store.removexattr(file, b"user.a"),
        store.remove(root, name("file"), file),
        store.rename((root, name("file")), (root, name("new")), RenameMode::Replace),
        store.link(file, root, name("new")).map(drop),
        store.fallocate(file, 0, 4096, Fallocate::empty()),
    ] {
        assert_eq!(result, Err(Errno::ROFS));
    }
    assert_eq!(tree(&store), before);
    assert_eq!((store.sync(), store.fsync(file, false)), (Ok(()), Ok(())));
    assert!(store.stats().is_read_only);
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().orphans, 1, "kept");
    drop(disks.open(&quiet()));
    assert_eq!(fsck_devices(&disks.devices()).unwrap().orphans, 0, "control");
}

#[test]
fn missing_store_is_not_made_read_only_or_with_no_create() {
    let path = std::env::temp_dir().join(format!("corewalk-store-missing-{}", std::process::id()));
    let all = StoreOptions::default();
    let read_only = all.clone().with_read_only(true);
    let not_made = all.clone().with_made(false);
    for options in [&read_only, &not_made] {
        let is_missing = || match Store::open(&path, options).map(drop) {
            Err(error @ OpenError::Missing) => error.errno() == Errno::NOENT,
            other => panic!("{other:?}"),
        };
        assert!(is_missing() && !path.exists());
        std::fs::create_dir(&path).unwrap();
        assert!(is_missing());
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 0, "no file is made");
        std::fs::remove_dir(&path).unwrap();
        let disks = Disks::new();
        assert!(matches!(Store::open_devices(disks.devices(), options), Err(OpenError::Missing)));
        assert_eq!(disks.used(), 0);
    }
    drop(Store::open(&path, &all).unwrap());
    drop(Store::open(&path, &not_made).unwrap());
    std::fs::remove_dir_all(&path).unwrap();
}

/// Collapsing a range only frees blocks, so it must succeed on a full host.
#[test]
fn range_is_collapsed_on_a_full_host() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let file = make(&store, "file", FileKind::Regular);
    store.write(file, 0, &[7; 5 * 4096]).unwrap();
    drop(store);
    // Give the host less free space than the reserve (space for commits) needs. Such a host counts
    // as full.
    let room = disks.used();
    let disks = Disks::with(disks.contents());
    disks.shared.lock().room = Some(room.min(disks.used()));
    let store = disks.open(&quiet());
    assert_eq!(store.write(file, 0, b"x"), Err(Errno::NOSPC), "full host");
    assert_eq!(store.fallocate(file, 4096, 8192, Fallocate::COLLAPSE_RANGE), Ok(()));
    assert_eq!(store.getattr(file).unwrap().size, 3 * 4096);
}

#[test]
fn range_that_needs_no_room_is_of_any_length() {
    let path = std::env::temp_dir().join(format!("corewalk-store-ranges-{}", std::process::id()));
    let store = Store::open(&path, &quiet().with_log_bytes(64 << 10)).unwrap();
    let host = store.statfs().unwrap();
    let file = make(&store, "file", FileKind::Regular);
    let len = (host.blocks + 16) * 4096;
    store.write(file, 3 * len, b"behind").unwrap();
    let how = [Fallocate::COLLAPSE_RANGE, Fallocate::INSERT_RANGE];
    assert_eq!(how.map(|how| store.fallocate(file, 0, len, how)), [Ok(()); 2]);
    let punch = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
    assert_eq!(store.fallocate(file, 0, len, punch), Ok(()));
    let taking = [Fallocate::empty(), Fallocate::KEEP_SIZE, Fallocate::ZERO_RANGE];
    assert_eq!(taking.map(|how| store.fallocate(file, 0, len, how)), [Err(Errno::NOSPC); 3]);
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}
