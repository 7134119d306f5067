//! Tests of attempts to leave the root directory, and of changes that other programs make on the
//! host.

use std::fs;
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::PathBuf;
use std::time::Duration;

use corewalk::{AtimePolicy, Cred, Errno, May, RenameMode, WalkFlags};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use corewalk_hostfs::HostFsOptions;
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::Seed;

use crate::fixtures::{TempDir, at, make, name, over, rename, walk, with_options};

fn by_path() -> HostFsOptions {
    let options = HostFsOptions::default().with_reusable(0).with_orphans(0);
    options.with_atime(AtimePolicy::NEVER)
}

#[test]
fn symbolic_links_are_followed_in_the_namespace() {
    let dir = TempDir::new();
    symlink("/etc", dir.join("absolute")).unwrap();
    symlink("../../../../../../etc", dir.join("relative")).unwrap();
    fs::create_dir(dir.join("etc")).unwrap();
    fs::write(dir.join("etc/passwd"), b"inside").unwrap();
    let inside = fs::metadata(dir.join("etc/passwd")).unwrap().ino();
    let vfs = with_options(dir.path(), by_path());
    for path in ["absolute/passwd", "relative/passwd", "../etc/passwd"] {
        let found = vfs.walk(&Cred::root(), &at(&vfs), path.as_bytes(), WalkFlags::FOLLOW);
        assert_eq!(found.unwrap().inode().ino(), inside, "{path}");
    }
}

/// Another program replaces a directory by a symbolic link. The dentry cache still knows the
/// directory, so a call by its path must not follow the link.
#[test]
fn directory_replaced_by_a_link_leads_nowhere() {
    let (dir, outside) = (TempDir::new(), TempDir::new());
    fs::create_dir(dir.join("d")).unwrap();
    fs::write(dir.join("d/f"), b"inside").unwrap();
    fs::write(outside.join("f"), b"outside").unwrap();
    let vfs = with_options(dir.path(), by_path());
    let (d, f) = (walk(&vfs, "d").unwrap(), walk(&vfs, "d/f").unwrap());
    fs::rename(dir.join("d"), outside.join("d")).unwrap();
    symlink(outside.path(), dir.join("d")).unwrap();
    let cred = Cred::root();
    assert_eq!(vfs.write(&cred, &f, 0, 0, b"overwritten"), Err(Errno::STALE));
    assert_eq!(vfs.getattr(&f), Err(Errno::STALE));
    assert_eq!(vfs.open(&cred, &f, 1, May::WRITE), Err(Errno::STALE));
    let unseen = vfs.lookup(&cred, &d, name("new")).err();
    assert_eq!(unseen, Some(Errno::STALE));
    assert_eq!(make(&vfs, "d/made").err(), Some(Errno::STALE));
    assert_eq!(fs::read(outside.join("f")).unwrap(), b"outside");
    assert!(!outside.join("made").exists());
}

/// Guarantee H.1: a call never uses a wrong file.
#[test]
fn file_replaced_on_the_host_is_stale_and_then_found() {
    let dir = TempDir::new();
    fs::write(dir.join("f"), b"old").unwrap();
    let vfs = with_options(dir.path(), by_path());
    let f = walk(&vfs, "f").unwrap();
    fs::write(dir.join("g"), b"new").unwrap();
    fs::rename(dir.join("g"), dir.join("f")).unwrap();
    assert_eq!(vfs.getattr(&f), Err(Errno::STALE));
    assert_eq!(crate::fixtures::remove(&vfs, "f", corewalk::Removal::Unlink), Err(Errno::STALE));
    assert_eq!(fs::read(dir.join("f")).unwrap(), b"new");
    vfs.invalidate(&vfs.root(), name("f")).unwrap();
    let mut buf = [0; 3];
    assert_eq!(vfs.read(&walk(&vfs, "f").unwrap(), 0, 0, &mut buf), Ok(3));
    assert_eq!(&buf, b"new");
}

/// Another program removes the name under which the file was found. A remaining hard link must lead
/// to it.
#[test]
fn file_is_found_by_the_name_that_remains_on_the_host() {
    let dir = TempDir::new();
    fs::write(dir.join("a"), b"file").unwrap();
    let vfs = with_options(dir.path(), by_path());
    let (root, cred) = (vfs.root(), Cred::root());
    let look = |to: &str| {
        vfs.revalidate(&root, name(to)).unwrap();
        vfs.lookup(&cred, &root, name(to)).map(|inode| inode.ino())
    };
    let (a, held) = (look("a").unwrap(), walk(&vfs, "a").unwrap());
    fs::rename(dir.join("a"), dir.join("c")).unwrap();
    assert_eq!(look("c"), Ok(a));
    fs::rename(dir.join("c"), dir.join("a")).unwrap();
    assert_eq!(vfs.getattr(&held).map(|attr| attr.ino), Ok(a), "found by the older name");
    assert_eq!(look("a"), Ok(a));
    assert_eq!(vfs.path_of_ino(a), Ok(b"/a".to_vec()), "the older name is current again");
    fs::create_dir(dir.join("d")).unwrap();
    fs::hard_link(dir.join("a"), dir.join("d/f")).unwrap();
    assert_eq!(walk(&vfs, "d/f").map(|inode| inode.ino()), Ok(a));
    fs::remove_file(dir.join("d/f")).unwrap();
    crate::fixtures::remove(&vfs, "d", corewalk::Removal::Rmdir).unwrap();
    assert_eq!(
        vfs.getattr(&held).map(|attr| attr.ino),
        Ok(a),
        "the newer name's directory is gone"
    );
    fs::hard_link(dir.join("a"), dir.join("b")).unwrap();
    assert_eq!(look("b"), Ok(a));
    fs::remove_file(dir.join("b")).unwrap();
    assert_eq!(vfs.getattr(&held).map(|attr| attr.nlink), Ok(1));
    fs::remove_file(dir.join("a")).unwrap();
    assert_eq!(vfs.getattr(&held).err(), Some(Errno::STALE));
}

/// A file is removed on the host, and the host reuses its inode number. While ext4 makes the new
/// inode, it answers `ENOMEM` to a call with the old file handle. The client must get `ESTALE`.
/// The test can fail only if the directory for temporary files is on ext4.
#[test]
fn removed_file_is_stale_while_its_number_is_reused() {
    let _watchdog = Watchdog::start("reused number", Duration::from_secs(120));
    let dir = TempDir::new();
    let vfs = with_options(dir.path(), by_path());
    let is_over = AtomicBool::new(false);
    let make_others = |path: PathBuf| {
        // ORDERING: Relaxed. The flag only ends the loop.
        while !is_over.load(Ordering::Relaxed) {
            fs::write(&path, b"other").unwrap();
            fs::remove_file(&path).unwrap();
        }
    };
    thread::scope(|scope| {
        for other in ["g", "h"] {
            let path = dir.join(other);
            scope.spawn(|| make_others(path));
        }
        let found: Vec<Errno> = (0..100)
            .flat_map(|_| {
                fs::write(dir.join("f"), b"file").unwrap();
                let f = walk(&vfs, "f").unwrap();
                fs::remove_file(dir.join("f")).unwrap();
                let answers: Vec<_> = (0..100).filter_map(|_| vfs.getattr(&f).err()).collect();
                vfs.invalidate(&vfs.root(), name("f")).unwrap();
                answers
            })
            .collect();
        // ORDERING: Relaxed. The flag only ends the loops of the other threads.
        is_over.store(true, Ordering::Relaxed);
        assert!(found.len() > 5_000, "{} calls failed", found.len());
        let others: Vec<_> = found.iter().filter(|&&error| error != Errno::STALE).collect();
        assert!(others.is_empty(), "{others:?}");
    });
}

/// A write by path must never reach a file outside of the root, while a directory of the path moves
/// out and back. Trap T20.
#[test]
fn directory_moved_out_and_back_leads_to_no_file_outside() {
    let _watchdog = Watchdog::start("moved out and back", Duration::from_secs(120));
    let (dir, outside) = (TempDir::new(), TempDir::new());
    for base in [dir.path(), outside.path()] {
        fs::create_dir_all(base.join("d/e")).unwrap();
        fs::write(base.join("d/e/f"), b"12345678").unwrap();
    }
    let vfs = with_options(dir.path(), by_path());
    let f = walk(&vfs, "d/e/f").unwrap();
    let done = AtomicBool::new(false);
    let counts = race::run(2, Seed::choose(), |racer| {
        let (mut reached, mut stale) = (0, 0);
        if racer.thread == 0 {
            // ORDERING: Relaxed. The stop flag publishes no data.
            while !done.load(Ordering::Relaxed) {
                fs::rename(dir.join("d"), outside.join("gone")).unwrap();
                symlink(outside.join("d"), dir.join("d")).unwrap();
                fs::remove_file(dir.join("d")).unwrap();
                fs::rename(outside.join("gone"), dir.join("d")).unwrap();
            }
            return (1, 1);
        }
        while reached < 200 || stale < 20 {
            match vfs.write(&Cred::root(), &f, 0, 0, b"inside!!") {
                Ok(8) => reached += 1,
                Err(Errno::STALE) => stale += 1,
                other => panic!("{other:?}"),
            }
        }
        // ORDERING: Relaxed. The stop flag publishes no data.
        done.store(true, Ordering::Relaxed);
        (reached, stale)
    });
    assert!(counts[1].0 > 0, "no write succeeded");
    assert_eq!(fs::read(outside.join("d/e/f")).unwrap(), b"12345678");
}

/// A rename changes the host first, and then the dentry cache. In between, no call may use the old
/// path.
#[test]
fn renames_through_the_namespace_make_no_file_stale() {
    let _watchdog = Watchdog::start("renames through the namespace", Duration::from_secs(120));
    let dir = TempDir::new();
    let vfs = with_options(dir.path(), by_path());
    for path in ["a/", "a/b/", "z/"] {
        make(&vfs, path).unwrap();
    }
    let f = make(&vfs, "a/b/f").unwrap();
    let done = AtomicBool::new(false);
    race::run(3, Seed::choose(), |racer| {
        if racer.thread == 0 {
            let steps = [("a", "x"), ("x/b", "z/c"), ("z/c", "x/b"), ("x", "a")];
            // ORDERING: Relaxed. The stop flag publishes no data.
            for i in (0..).take_while(|_| !done.load(Ordering::Relaxed)) {
                let (from, to) = steps[i % 4];
                rename(&vfs, from, to, RenameMode::Replace).unwrap();
            }
            return;
        }
        for i in 0..3000 {
            let found = vfs.getattr(&f);
            assert_eq!(found.map(|attr| attr.ino), Ok(f.ino()), "read {i}");
        }
        // ORDERING: Relaxed. The stop flag publishes no data.
        done.store(true, Ordering::Relaxed);
    });
}

#[test]
fn other_file_systems_below_the_root_are_not_entered() {
    // The test needs another file system at `/proc`, as on every Linux host.
    let vfs = over("/".as_ref());
    assert_eq!(walk(&vfs, "proc").err(), Some(Errno::XDEV));
    assert!(walk(&vfs, "usr").is_ok());
}
