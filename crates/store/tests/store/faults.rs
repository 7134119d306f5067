//! Tests with devices that are full, or whose reads or writes fail. Calls must fail with `ENOSPC`,
//! `EIO` or `EROFS`, and with no other errno.

use corewalk::acl::{Acl, Entry, Tag};
use corewalk::{
    AclKind, Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, RenameMode, SetAttr,
    XattrMode,
};
use corewalk_store::{Store, fsck_devices};
use corewalk_testkit::rng::{Rng, Seed};

use crate::differential::tree;
use crate::memory::{Disks, quiet};

fn root() -> Node<'static> {
    Node::detached(1, FileKind::Directory)
}

fn make(store: &Store, name: &str) -> Result<Node<'static>, Errno> {
    let name = Name::new(name.as_bytes()).unwrap();
    let attr = store.make(root(), name, &Make::new(0o644, 0, 0))?;
    Ok(Node::detached(attr.ino, FileKind::Regular))
}

/// Makes and writes files until the host is full. Returns the errnos of the failed calls.
fn fill(store: &Store, rng: &mut Rng) -> Vec<Errno> {
    let (mut errnos, mut number) = (Vec::new(), 0);
    for step in 0..4_000 {
        let done = make(store, &format!("f{number}")).and_then(|file| {
            number += 1;
            let value = rng.next_u64().to_le_bytes().repeat(60);
            store.setxattr(file, b"user.a", &value, XattrMode::Set)?;
            store.write(file, 0, &vec![7; 1 + rng.index(60_000)]).map(drop)
        });
        errnos.extend(done.err());
        if step % 50 == 49 {
            errnos.extend(store.sync().err());
        }
        if errnos.len() > 20 {
            break;
        }
    }
    errnos
}

#[test]
fn full_host_is_enospc_and_loses_nothing() {
    for (seed, room) in [(1, 24 << 20), (2, 9 << 20), (3, 13 << 20), (4, 17 << 20)] {
        let disks = Disks::new();
        let store = disks.open(&quiet());
        disks.shared.lock().room = Some(room);
        let errnos = fill(&store, &mut Rng::new(Seed(seed)));
        assert!(!errnos.is_empty(), "{room} bytes were enough");
        assert!(errnos.iter().all(|&errno| errno == Errno::NOSPC), "{room}: {errnos:?}");
        // Calls that need no space must succeed and become durable.
        let name = Name::new(b"f0").unwrap();
        let first = store.lookup(root(), name).unwrap();
        let first = Node::detached(first.ino, FileKind::Regular);
        store.remove(root(), name, first).unwrap();
        store.forget(first.ino(), 0);
        assert_eq!(store.fsync(root(), false), Ok(()), "{room}");
        let before = tree(&store);
        // The host is still full when the killed store is mounted again.
        let killed = disks.killed();
        assert_eq!(fsck_devices(&killed.devices()).unwrap().findings, [], "{room}");
        assert_eq!(tree(&killed.open(&quiet())), before, "{room}");
        drop(store);
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, [], "{room}");
        let store = disks.open(&quiet());
        assert_eq!(tree(&store), before, "{room}");
        disks.shared.lock().room = None;
        let file = make(&store, "again").unwrap();
        assert_eq!(store.write(file, 0, b"x"), Ok(1));
        assert_eq!(store.sync(), Ok(()));
    }
}

/// `fsck` must keep the reserve (space for commits on a full host).
#[test]
fn fsck_after_a_kill_keeps_the_reserve() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    make(&store, "a").unwrap();
    store.sync().unwrap();
    assert!(store.stats().logged_commits > 0 && store.stats().has_reserve);
    let killed = disks.killed();
    assert_eq!(fsck_devices(&killed.devices()).unwrap().findings, []);
    killed.shared.lock().room = Some(killed.used());
    assert!(killed.open(&quiet()).stats().has_reserve);
}

/// Control: without the reserve, a commit on a full host fails and makes the store read-only.
#[test]
fn control_full_host_without_reserve_is_read_only() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    for number in 0..3_000 {
        let file = make(&store, &format!("{number:0200}")).unwrap();
        store.setxattr(file, b"user.a", &[number as u8; 900], XattrMode::Set).unwrap();
    }
    disks.shared.lock().room = Some(1);
    assert_eq!(store.sync(), Err(Errno::IO));
    assert_eq!(make(&store, "more").err(), Some(Errno::ROFS));
}

#[test]
fn size_and_inodes_are_limits() {
    let options = quiet().with_size_bytes(3 * 4096).with_inodes_max(3);
    let disks = Disks::new();
    let store = disks.open(&options);
    let (a, b) = (make(&store, "a").unwrap(), make(&store, "b").unwrap());
    assert_eq!(make(&store, "c").err(), Some(Errno::NOSPC));
    assert_eq!(store.write(a, 0, &[1; 9000]), Ok(9000));
    assert_eq!(store.write(b, 0, b"x"), Err(Errno::NOSPC));
    assert_eq!(store.setxattr(b, b"user.a", b"x", XattrMode::Set), Err(Errno::NOSPC));
    drop(store);
    let store = disks.open(&options);
    assert_eq!(store.statfs().map(|stat| (stat.bfree, stat.ffree)), Ok((0, 0)));
    let cut = SetAttr::default().with_size(1);
    store.setattr(a, &cut).unwrap();
    assert_eq!(store.write(b, 0, &[2; 9000]), Ok(8192));
    assert_eq!(make(&store, "c").err(), Some(Errno::NOSPC));
    store.remove(root(), Name::new(b"b").unwrap(), b).unwrap();
    store.forget(b.ino(), 0);
    assert!(make(&store, "c").is_ok());
}

#[test]
fn failing_reads_are_eio_while_they_last() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let names: Vec<String> = (0..1_500).map(|number| format!("{number:0100}")).collect();
    for name in &names {
        let file = make(&store, name).unwrap();
        store.write(file, 0, &[5; 100]).unwrap();
        store.setxattr(file, b"user.a", name.as_bytes(), XattrMode::Set).unwrap();
    }
    let before = tree(&store);
    drop(store);
    // Use no page cache, which would return records although reads of the device fail.
    let store = disks.open(&quiet().with_cache_bytes(0));
    disks.shared.lock().is_read_failing = true;
    let mut failed = 0;
    for (number, name) in names.iter().enumerate() {
        let file = Node::detached(number as u64 + 2, FileKind::Regular);
        let name = Name::new(name.as_bytes()).unwrap();
        let results = [
            store.lookup(root(), name).map(drop),
            store.read(file, 0, &mut [0; 10]).map(drop),
            store.getxattr(file, b"user.a").map(drop),
            store.readdir(root(), 0, &mut |_| std::ops::ControlFlow::Continue(())),
            store.remove(root(), name, file),
            make(&store, &format!("x{number}")).map(drop),
        ];
        assert!(results[1].is_err(), "the data cannot be read");
        assert!(results.iter().flat_map(|result| result.err()).all(|errno| errno == Errno::IO));
        failed += results.iter().filter(|result| result.is_err()).count();
        if results[4].is_ok() {
            store.link(file, root(), name).unwrap();
        }
        if results[5].is_ok() {
            let made = format!("x{number}");
            let made = Name::new(made.as_bytes()).unwrap();
            let attr = store.lookup(root(), made).unwrap();
            store.remove(root(), made, Node::detached(attr.ino, attr.kind())).unwrap();
        }
    }
    assert!(failed > 3 * names.len(), "{failed} calls failed");
    disks.shared.lock().is_read_failing = false;
    assert_eq!(store.sync(), Ok(()), "no write failed");
    drop(store);
    let store = disks.open(&quiet());
    let after = tree(&store);
    assert!(after.keys().eq(before.keys()));
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
}

#[test]
fn failing_writes_are_eio_then_read_only() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let file = make(&store, "a").unwrap();
    store.write(file, 0, &[5; 5000]).unwrap();
    store.sync().unwrap();
    let before = tree(&store);
    disks.shared.lock().is_write_failing = true;
    assert_eq!(store.write(file, 9000, b"x"), Err(Errno::IO));
    make(&store, "b").unwrap();
    assert_eq!(store.fsync(file, false), Err(Errno::IO));
    assert_eq!(store.fsync(root(), false), Err(Errno::IO));
    assert_eq!(make(&store, "c").err(), Some(Errno::ROFS));
    assert_eq!(store.write(file, 0, b"x"), Err(Errno::ROFS));
    let mut bytes = [0; 5000];
    assert_eq!(store.read(file, 0, &mut bytes), Ok(5000), "reads go on");
    disks.shared.lock().is_write_failing = false;
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    assert_eq!(tree(&disks.open(&quiet())), before);
}

/// A file that cannot be freed because reads fail must be freed later. Until then the store must
/// stay writable (guarantee S.3).
#[test]
fn forgets_while_reads_fail_are_done_later() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let names: Vec<String> = (0..600).map(|number| format!("{number:0100}")).collect();
    let mut files = Vec::new();
    for name in &names {
        let file = make(&store, name).unwrap();
        store.write(file, 0, &[5; 100]).unwrap();
        let value = format!("{name:0900}");
        store.setxattr(file, b"user.a", value.as_bytes(), XattrMode::Set).unwrap();
        files.push(file);
    }
    drop(store);
    let store = disks.open(&quiet().with_cache_bytes(0));
    for (name, &file) in names.iter().zip(&files) {
        store.remove(root(), Name::new(name.as_bytes()).unwrap(), file).unwrap();
        assert_eq!(store.read(file, 0, &mut [0; 10]), Ok(10));
    }
    disks.shared.lock().is_read_failing = true;
    files.iter().for_each(|file| store.forget(file.ino(), 0));
    let failed = files.iter().filter(|&&file| store.getattr(file).is_ok()).count();
    assert!(failed > files.len() / 2, "{failed} could not be freed");
    assert!(!store.stats().is_read_only);
    disks.shared.lock().is_read_failing = false;
    assert_eq!(store.sync(), Ok(()));
    drop(store);
    let report = fsck_devices(&disks.devices()).unwrap();
    assert_eq!((report.findings, report.orphans), (vec![], failed as u64));
    drop(disks.open(&quiet()));
    assert_eq!(fsck_devices(&disks.devices()).unwrap().inodes, 1);
}

#[test]
fn fsync_of_what_is_durable_costs_nothing() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let file = make(&store, "a").unwrap();
    store.write(file, 0, &[5; 5000]).unwrap();
    let syncs = || disks.shared.lock().syncs;
    let (start, commits) = (syncs(), store.stats().commits);
    store.fsync(file, false).unwrap();
    let first = syncs() - start;
    assert_eq!((store.stats().commits - commits, first), (1, 1));
    store.fsync(file, false).unwrap();
    store.sync().unwrap();
    assert_eq!((syncs() - start, store.stats().commits - commits), (1, 1));
    // A second fsync must not sync the data again.
    store.write(file, 100, b"abc").unwrap();
    store.fsync(file, true).unwrap();
    store.fsync(file, false).unwrap();
    assert_eq!((syncs() - start, store.stats().commits - commits), (2, 2));
    assert_eq!(store.stats().logged_commits, 2);
    // The log has older bytes of the blocks that this write changes, and the write is too large for
    // the log. So the commit must make the log void (guarantee J.6).
    store.write(file, 0, &[6; 200_000]).unwrap();
    store.fsync(file, false).unwrap();
    assert_eq!((syncs() - start, store.stats().logged_commits), (4, 2));
    // The log is void, so no replay can overwrite these blocks. The file data may be synced without
    // a commit.
    store.write(file, 0, &[7; 200_000]).unwrap();
    store.fsync(file, true).unwrap();
    assert_eq!((syncs() - start, store.stats().commits - commits), (5, 3));
    store.write(file, 200_000, &[7; 200_000]).unwrap();
    store.fsync(file, true).unwrap();
    assert_eq!((syncs() - start, store.stats().logged_commits), (7, 3));
    assert_eq!(store.stats().syncs, syncs() - start);
}

#[test]
fn rename_whose_read_fails_changes_nothing_and_succeeds_later() {
    for (is_across, mode, has_target) in [
        (true, RenameMode::Replace, false),
        (true, RenameMode::Replace, true),
        (true, RenameMode::Exchange, true),
        (false, RenameMode::Replace, false),
        (false, RenameMode::Exchange, true),
    ] {
        let mut failures = 0;
        while !try_rename(is_across, mode, has_target, failures) {
            failures += 1;
        }
        println!("{is_across}, {mode:?}, {has_target}: {failures} failures");
        assert!(failures > 2, "the names were in memory");
    }
}

fn try_rename(is_across: bool, mode: RenameMode, has_target: bool, reads: u64) -> bool {
    let options = quiet().with_cache_bytes(0);
    let names = ["a", "b", "c", "d"].map(|name| Name::new(name.as_bytes()).unwrap());
    let disks = Disks::new();
    let store = disks.open(&options);
    let file = |dir: Node<'_>, name: Name<'_>| {
        store.make(dir, name, &Make::new(0o644, 0, 0)).unwrap();
    };
    let dirs = [names[0], names[1]].map(|name| {
        let made = store.make(root(), name, &Make::new(0o040_755, 0, 0)).unwrap();
        Node::detached(made.ino, FileKind::Directory)
    });
    for number in 0..80 {
        let name = format!("{number:0200}");
        file(dirs[number % 2], Name::new(name.as_bytes()).unwrap());
    }
    let (from, to) = ((dirs[0], names[2]), (dirs[usize::from(is_across)], names[3]));
    file(from.0, from.1);
    if has_target {
        file(to.0, to.1);
    }
    drop(store);
    let store = disks.open(&options);
    let before = tree(&store);
    drop(store);
    let store = disks.open(&options);
    disks.shared.lock().reads_left = Some(reads);
    let renamed = store.rename(from, to, mode);
    disks.shared.lock().reads_left = None;
    assert!(!store.stats().is_read_only, "{reads}");
    if renamed.is_ok() {
        return true;
    }
    assert_eq!(renamed, Err(Errno::IO), "{reads}");
    store.sync().unwrap();
    assert_eq!(tree(&store), before, "{reads}");
    store.rename(from, to, mode).unwrap();
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    false
}

/// Guarantee J.6: a replay must not write older data from the log over newer data.
#[test]
fn older_bytes_of_the_log_do_not_come_back() {
    for len in [10_000, 100_000] {
        let disks = Disks::new();
        let store = disks.open(&quiet());
        let file = make(&store, "a").unwrap();
        store.write(file, 0, &[1; 200_000]).unwrap();
        store.sync().unwrap();
        for byte in 2..9 {
            store.write(file, 0, &[byte; 9_000]).unwrap();
            store.fsync(file, true).unwrap();
            store.write(file, 5_000, &vec![byte + 100; len]).unwrap();
            store.fsync(file, true).unwrap();
            // Simulate a kill of the process. The host keeps the data that was not synced, and the
            // replay must not write older data over it.
            let again = Disks::with(disks.contents());
            let other = again.open(&quiet());
            let mut bytes = vec![0; 5_000 + len];
            assert_eq!(other.read(file, 0, &mut bytes), Ok(bytes.len()));
            assert!(bytes[..5_000].iter().all(|&got| got == byte), "{byte}, {len}");
            assert!(bytes[5_000..].iter().all(|&got| got == byte + 100), "{byte}, {len}");
        }
    }
}

/// Without `size=`, the free space of the host must limit fallocate(2).
#[test]
fn fallocate_takes_no_more_than_the_host_has() {
    let path = std::env::temp_dir().join(format!("corewalk-store-room-{}", std::process::id()));
    let options = quiet().with_log_bytes(64 << 10);
    let store = Store::open(&path, &options).unwrap();
    let file = make(&store, "a").unwrap();
    let host = store.statfs().unwrap();
    let len = host.bavail * 4096 + (64 << 30);
    let allocate = |len| store.fallocate(file, 0, len, Fallocate::empty());
    assert_eq!(allocate(len), Err(Errno::NOSPC));
    assert_eq!(store.getattr(file).unwrap().blocks, 0);
    assert_eq!(allocate(1 << 20), Ok(()));
    drop(store);
    std::fs::remove_dir_all(&path).unwrap();
}

/// One `setattr` changes the size and the mode. The new mode needs a new ACL, for which there is no
/// space. Then the size must not change either.
#[test]
fn size_and_mode_change_both_or_neither() {
    let options = quiet().with_size_bytes(3 * 4096);
    let disks = Disks::new();
    let store = disks.open(&options);
    let file = make(&store, "a").unwrap();
    let entry = |tag, perm, id| Entry::new(tag, perm, id);
    let acl = Acl::new([
        entry(Tag::UserObj, 6, 0),
        entry(Tag::User, 7, 5),
        entry(Tag::GroupObj, 4, 0),
        entry(Tag::Mask, 7, 0),
        entry(Tag::Other, 0, 0),
    ])
    .unwrap();
    let other = make(&store, "b").unwrap();
    for node in [file, other] {
        store.set_acl(node, AclKind::Access, Some(&acl), Some(acl.mode())).unwrap();
    }
    assert_eq!(store.write(file, 0, &[1; 9000]), Ok(8192), "no room is left");
    let set = SetAttr::default().with_size(10).with_mode(0o600);
    let before = store.getattr(file).unwrap();
    assert_eq!(store.setattr(file, &set), Err(Errno::NOSPC));
    assert_eq!(store.getattr(file), Ok(before));
    store.remove(root(), Name::new(b"b").unwrap(), other).unwrap();
    store.forget(other.ino(), 0);
    let after = store.setattr(file, &set).unwrap();
    assert_eq!((after.size, after.mode & 0o777), (10, 0o600));
}

/// If the size cannot be changed, the mode must not change either.
#[test]
fn size_that_cannot_change_leaves_the_mode() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let file = make(&store, "a").unwrap();
    store.write(file, 0, &[1; 100]).unwrap();
    let before = store.getattr(file).unwrap();
    // A longer file needs zeros behind its old end, whose write fails.
    let set = SetAttr::default().with_size(3000).with_mode(0o600);
    disks.shared.lock().is_write_failing = true;
    assert_eq!(store.setattr(file, &set), Err(Errno::IO));
    disks.shared.lock().is_write_failing = false;
    assert_eq!(store.getattr(file), Ok(before));
    let after = store.setattr(file, &set).unwrap();
    assert_eq!((after.size, after.mode & 0o777), (3000, 0o600));
}
