//! Tests of mounts and unmounts beside walks, removals and each other.

use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, Weak};
use std::time::Duration;

use corewalk::attr::mode::S_IFLNK;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileKind, FileSystem, Make, Node, PathRef, Removal, RenameMode, Vfs, VfsOptions,
    WalkFlags,
};
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{Watchdog, until_asleep};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{at, name, new, remove, rename, tree, walk};
use crate::pauses::stopping;

fn tmpfs() -> Arc<Tmpfs> {
    Arc::new(Tmpfs::new(TmpfsOptions::default()))
}

fn place<'v>(vfs: &'v Vfs, path: &str) -> PathRef<'v> {
    try_place(vfs, path).unwrap()
}

fn try_place<'v>(vfs: &'v Vfs, path: &str) -> Result<PathRef<'v>, Errno> {
    vfs.walk(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::FOLLOW)
}

#[test]
fn umount_while_an_old_table_waits_to_be_freed_succeeds() {
    let vfs = new();
    tree(&vfs, &["a/", "b/"]);
    let _section = corewalk_sync::rcu::read_lock();
    vfs.mount(tmpfs(), &place(&vfs, "a")).unwrap();
    vfs.mount(tmpfs(), &place(&vfs, "b")).unwrap();
    vfs.umount(place(&vfs, "b")).unwrap();
    vfs.umount(place(&vfs, "a")).unwrap();
    assert_eq!(vfs.umount(place(&vfs, "a")), Err(Errno::INVAL), "umount of a plain directory");
    vfs.umount(vfs.root_path()).unwrap_err();
}

/// A path into a mount must keep the file system mounted. A reference on an inode alone must not
/// prevent the unmount, but the inode must stay usable after it.
#[test]
fn umount_with_a_held_path_is_ebusy() {
    let vfs = new();
    tree(&vfs, &["m/"]);
    vfs.mount(tmpfs(), &place(&vfs, "m")).unwrap();
    tree(&vfs, &["m/d/", "m/d/f"]);
    let held = place(&vfs, "m/d/f");
    let clone = held.clone();
    drop(held);
    assert_eq!(vfs.umount(place(&vfs, "m")), Err(Errno::BUSY));
    let inode = clone.inode();
    drop(clone);
    vfs.mount(tmpfs(), &place(&vfs, "m/d")).unwrap();
    assert_eq!(
        vfs.umount(place(&vfs, "m")),
        Err(Errno::BUSY),
        "umount of a mount with a mount inside"
    );
    vfs.umount(place(&vfs, "m/d")).unwrap();
    vfs.umount(place(&vfs, "m")).unwrap();
    assert_eq!(vfs.getattr(&inode).map(|attr| attr.ino), Ok(inode.ino()));
    assert_eq!(inode.path().unwrap(), b"/d/f");
    assert_eq!(walk(&vfs, "m/d").unwrap_err(), Errno::NOENT);
    remove(&vfs, "m", Removal::Rmdir).unwrap();
}

/// A walk that waits for the back end of a mount must not prevent the unmount. Afterwards the walk
/// starts again, and finds the directory below the mount.
#[test]
fn walk_in_an_unmounted_file_system_starts_again() {
    let vfs = new();
    tree(&vfs, &["m/", "m/f"]);
    let below = walk(&vfs, "m/f").unwrap().ino();
    let up: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let seen = Arc::clone(&up);
    let mounted = HookedTmpfs::new(move |_, call| {
        if call == Call::Lookup(b"f") {
            let vfs = seen.get().and_then(Weak::upgrade).unwrap();
            vfs.umount(place(&vfs, "m")).unwrap();
        }
        Ok(())
    });
    up.set(Arc::downgrade(&vfs)).unwrap();
    mounted.inner.make(root_node(&mounted.inner), name("f"), &Make::new(0o644, 0, 0)).unwrap();
    vfs.mount(Arc::new(mounted), &place(&vfs, "m")).unwrap();
    assert_eq!(place(&vfs, "m/f").inode().ino(), below);
    assert_eq!(place(&vfs, "m/f").path_of(&vfs.root_path()).0, b"/m/f");
}

fn root_node(fs: &Tmpfs) -> Node<'static> {
    Node::detached(fs.root().unwrap().ino, FileKind::Directory)
}

fn numbered(number: u64) -> Arc<Tmpfs> {
    let (fs, target) = (tmpfs(), number.to_string());
    let what = Make::new(S_IFLNK | 0o777, 0, 0).with_target(target.as_bytes());
    fs.make(root_node(&fs), name("id"), &what).unwrap();
    fs
}

#[test]
fn path_into_a_mount_and_its_umount_exclude_each_other() {
    const ROUNDS: u64 = 150;
    let _watchdog = Watchdog::start("walks beside umount", Duration::from_secs(120));
    let vfs = new();
    tree(&vfs, &["m/"]);
    let (unmounted, visits) = (AtomicU64::new(0), AtomicU64::new(0));
    let done = AtomicBool::new(false);
    let visit = || {
        let Ok(link) = vfs.walk(&Cred::root(), &at(&vfs), b"m/../m/id", WalkFlags::empty()) else {
            return;
        };
        let target = vfs.readlink(&link.inode()).unwrap();
        let number: u64 = std::str::from_utf8(&target).unwrap().parse().unwrap();
        // ORDERING(unmounted): Acquire. The main thread stores the number with Release after each
        // umount, so each counted umount has returned. With Relaxed orderings, this check could
        // fail falsely.
        let gone = unmounted.load(Ordering::Acquire);
        assert!(gone <= number, "mount {number} is held, and {gone} have been unmounted");
        // ORDERING: Relaxed. A count.
        visits.fetch_add(1, Ordering::Relaxed);
    };
    thread::scope(|scope| {
        let _done = Done(&done);
        for _ in 0..2 {
            scope.spawn(|| {
                // ORDERING: Relaxed. A flag; nothing is published through it.
                while !done.load(Ordering::Relaxed) {
                    visit();
                }
            });
        }
        for number in 0..ROUNDS {
            vfs.mount(numbered(number), &place(&vfs, "m")).unwrap();
            // ORDERING: Relaxed. A count.
            let before = visits.load(Ordering::Relaxed);
            // ORDERING: Relaxed. The loop only waits until a walk has succeeded.
            while visits.load(Ordering::Relaxed) == before {
                thread::yield_now();
            }
            while vfs.umount(place(&vfs, "m")) == Err(Errno::BUSY) {
                thread::yield_now();
            }
            // ORDERING(unmounted): Release. The walking threads load the number with Acquire. If
            // they saw it before the umount is complete, their check could fail falsely.
            unmounted.store(number + 1, Ordering::Release);
            assert_eq!(
                try_place(&vfs, "m/id").err(),
                Some(Errno::NOENT),
                "the walk found an unmounted file system"
            );
        }
    });
}

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. A flag.
        self.0.store(true, Ordering::Relaxed);
    }
}

#[test]
fn mount_on_a_directory_that_is_being_removed_is_enoent() {
    let _watchdog = Watchdog::start("a mount beside rmdir", Duration::from_secs(60));
    let (vfs, stop) = stopping(|call| call == Call::Remove(b"d"));
    tree(&vfs, &["d/"]);
    let d = place(&vfs, "d");
    let (removed, mounted) = thread::scope(|scope| {
        let remover = scope.spawn(|| remove(&vfs, "d", Removal::Rmdir));
        stop.arrived.recv().unwrap();
        let builder = thread::Builder::new().name("mounter-1".to_owned());
        let mounter = builder.spawn_scoped(scope, || vfs.mount(tmpfs(), &d)).unwrap();
        until_asleep("mounter-1", &mounter);
        stop.go_on.send(Ok(())).unwrap();
        (remover.join().unwrap(), mounter.join().unwrap())
    });
    assert_eq!((removed, mounted), (Ok(()), Err(Errno::NOENT)));
    assert_eq!(vfs.mount(tmpfs(), &d), Err(Errno::NOENT), "mounted on a removed directory");
    tree(&vfs, &["d", "e/"]);
    assert_eq!(vfs.mount(tmpfs(), &place(&vfs, "d")), Err(Errno::NOTDIR));
    vfs.mount(tmpfs(), &place(&vfs, "e")).unwrap();
    vfs.mount(tmpfs(), &place(&vfs, "e")).unwrap();
    assert_eq!(remove(&vfs, "e", Removal::Rmdir), Err(Errno::BUSY));
    assert_eq!(
        remove(&vfs, "e", Removal::Unlink),
        Err(Errno::ISDIR),
        "ISDIR must come before EBUSY"
    );
    for (from, to) in [("e", "g"), ("g", "e")] {
        tree(&vfs, &["g/"]);
        assert_eq!(rename(&vfs, from, to, RenameMode::Replace), Err(Errno::BUSY));
        remove(&vfs, "g", Removal::Rmdir).unwrap();
    }
}

#[test]
fn mount_of_a_slow_file_system_delays_no_other() {
    let _watchdog = Watchdog::start("a slow mount", Duration::from_secs(60));
    let vfs = new();
    tree(&vfs, &["slow/", "fast/"]);
    let ((said, arrived), (go_on, told)) = (channel(), channel::<()>());
    let ends = Mutex::new((said, told));
    let slow = HookedTmpfs::new(move |_, call| {
        if call == Call::Root {
            let ends = ends.lock().unwrap();
            ends.0.send(()).unwrap();
            ends.1.recv().unwrap();
        }
        Ok(())
    });
    let slow = Arc::new(slow);
    thread::scope(|scope| {
        let mounter = scope.spawn(|| vfs.mount(slow, &place(&vfs, "slow")));
        arrived.recv().unwrap();
        vfs.mount(tmpfs(), &place(&vfs, "fast")).unwrap();
        vfs.umount(place(&vfs, "fast")).unwrap();
        go_on.send(()).unwrap();
        mounter.join().unwrap().unwrap();
    });
    vfs.umount(place(&vfs, "slow")).unwrap();
}

#[test]
fn mount_in_a_full_cache_is_enomem_and_forgets_its_root() {
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(1024);
    let vfs = Vfs::new(tmpfs(), options).unwrap();
    tree(&vfs, &["m/", "f"]);
    let (m, f) = (place(&vfs, "m"), place(&vfs, "f"));
    let mut held = Vec::new();
    loop {
        let link = format!("link{}", held.len());
        vfs.link(&Cred::root(), &f.inode(), &vfs.root(), name(&link)).unwrap();
        match try_place(&vfs, &link) {
            Ok(path) => held.push(path),
            Err(error) => break assert_eq!(error, Errno::NOMEM),
        }
    }
    let before = vfs.stats().inodes;
    let forgotten = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&forgotten);
    let fs = Arc::new(HookedTmpfs::new(move |_, call| {
        if matches!(call, Call::Forget(_)) {
            // ORDERING: Relaxed. A count of one thread.
            counted.fetch_add(1, Ordering::Relaxed);
        }
        Ok(())
    }));
    assert_eq!(vfs.mount(fs, &m), Err(Errno::NOMEM));
    assert_eq!(vfs.stats().inodes, before);
    // ORDERING: Relaxed. As above.
    assert_eq!(forgotten.load(Ordering::Relaxed), 1);
    held.clear();
    vfs.mount(tmpfs(), &m).unwrap();
}

#[test]
fn mount_of_one_file_system_too_many_is_enfile() {
    let vfs = new();
    tree(&vfs, &["m/"]);
    for _ in 1..1024 {
        vfs.mount(tmpfs(), &place(&vfs, "m")).unwrap();
        vfs.umount(place(&vfs, "m")).unwrap();
    }
    assert_eq!(vfs.mount(tmpfs(), &place(&vfs, "m")), Err(Errno::NFILE));
    tree(&vfs, &["m/f"]);
}
