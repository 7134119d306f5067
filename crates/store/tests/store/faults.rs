//! Devices that run full, or fail to read or write: `ENOSPC`, `EIO` and `EROFS`, and nothing else.

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, SetAttr, XattrMode};
use corewalk_store::{Store, StoreOptions, fsck_devices};
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

/// Fills a host that has `room` bytes, with syncs between, and returns the errnos that came up.
fn fill(store: &Store, rng: &mut Rng) -> Vec<Errno> {
    let (mut errnos, mut number) = (Vec::new(), 0);
    for step in 0..4_000 {
        let done = make(store, &format!("f{number}")).and_then(|file| {
            number += 1;
            let value = rng.next_u64().to_le_bytes().repeat(60);
            store.setxattr(file, b"user.a", &value, XattrMode::Set)?;
            store.write(file, 0, 0, &vec![7; 1 + rng.index(60_000)]).map(drop)
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
        // What takes no room goes on, and is durable.
        let name = Name::new(b"f0").unwrap();
        let first = store.lookup(root(), name).unwrap();
        let first = Node::detached(first.ino, FileKind::Regular);
        store.remove(root(), name, first).unwrap();
        store.forget(first.ino());
        assert_eq!(store.fsync(root(), 0, false), Ok(()), "{room}");
        let before = tree(&store);
        drop(store);
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, [], "{room}");
        let store = disks.open(&quiet());
        assert_eq!(tree(&store), before, "{room}");
        // With room again, everything works again.
        disks.shared.lock().room = None;
        let file = make(&store, "again").unwrap();
        assert_eq!(store.write(file, 0, 0, b"x"), Ok(1));
        assert_eq!(store.sync(), Ok(()));
    }
}

/// The reserve was needed: without it a commit on a full host fails, and the store is read-only.
#[test]
fn control_full_host_without_reserve_is_read_only() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    for number in 0..3_000 {
        let file = make(&store, &format!("{number:0200}")).unwrap();
        store.setxattr(file, b"user.a", &[number as u8; 900], XattrMode::Set).unwrap();
    }
    // Less than it has already, the reserve included.
    disks.shared.lock().room = Some(1);
    assert_eq!(store.sync(), Err(Errno::IO));
    assert_eq!(make(&store, "more").err(), Some(Errno::ROFS));
}

#[test]
fn size_and_inodes_are_limits() {
    let options = StoreOptions { size_bytes: Some(3 * 4096), inodes_max: Some(3), ..quiet() };
    let disks = Disks::new();
    let store = disks.open(&options);
    let (a, b) = (make(&store, "a").unwrap(), make(&store, "b").unwrap());
    assert_eq!(make(&store, "c").err(), Some(Errno::NOSPC));
    assert_eq!(store.write(a, 0, 0, &[1; 9000]), Ok(9000));
    assert_eq!(store.write(b, 0, 0, b"x"), Err(Errno::NOSPC));
    assert_eq!(store.setxattr(b, b"user.a", b"x", XattrMode::Set), Err(Errno::NOSPC));
    drop(store);
    let store = disks.open(&options);
    assert_eq!(store.statfs().map(|stat| (stat.bfree, stat.ffree)), Ok((0, 0)));
    let cut = SetAttr { size: Some(1), ..SetAttr::default() };
    store.setattr(a, &cut).unwrap();
    assert_eq!(store.write(b, 0, 0, &[2; 9000]), Ok(8192));
    assert_eq!(make(&store, "c").err(), Some(Errno::NOSPC));
    store.remove(root(), Name::new(b"b").unwrap(), b).unwrap();
    store.forget(b.ino());
    assert!(make(&store, "c").is_ok());
}

#[test]
fn failing_reads_are_eio_and_pass() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let names: Vec<String> = (0..1_500).map(|number| format!("{number:0100}")).collect();
    for name in &names {
        let file = make(&store, name).unwrap();
        store.write(file, 0, 0, &[5; 100]).unwrap();
        store.setxattr(file, b"user.a", name.as_bytes(), XattrMode::Set).unwrap();
    }
    let before = tree(&store);
    drop(store);
    // What the database has in memory it can still tell.
    let store = disks.open(&StoreOptions { cache_bytes: 0, ..quiet() });
    disks.shared.lock().is_read_failing = true;
    let mut failed = 0;
    for (number, name) in names.iter().enumerate() {
        let file = Node::detached(number as u64 + 2, FileKind::Regular);
        let name = Name::new(name.as_bytes()).unwrap();
        let results = [
            store.lookup(root(), name).map(drop),
            store.read(file, 0, 0, &mut [0; 10]).map(drop),
            store.getxattr(file, b"user.a").map(drop),
            store.readdir(root(), 0, &mut |_| std::ops::ControlFlow::Continue(())),
            store.remove(root(), name, file),
            make(&store, &format!("x{number}")).map(drop),
        ];
        assert!(results[1].is_err(), "the data cannot be read");
        assert!(results.iter().flat_map(|result| result.err()).all(|errno| errno == Errno::IO));
        failed += results.iter().filter(|result| result.is_err()).count();
        // Some can be done, and are taken back, so that nothing has changed.
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
    assert_eq!(store.sync(), Ok(()), "no write has failed");
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
    store.write(file, 0, 0, &[5; 5000]).unwrap();
    store.sync().unwrap();
    let before = tree(&store);
    disks.shared.lock().is_write_failing = true;
    assert_eq!(store.write(file, 0, 9000, b"x"), Err(Errno::IO));
    make(&store, "b").unwrap();
    assert_eq!(store.fsync(file, 0, false), Err(Errno::IO));
    assert_eq!(store.fsync(root(), 0, false), Err(Errno::IO));
    assert_eq!(make(&store, "c").err(), Some(Errno::ROFS));
    assert_eq!(store.write(file, 0, 0, b"x"), Err(Errno::ROFS));
    let mut bytes = [0; 5000];
    assert_eq!(store.read(file, 0, 0, &mut bytes), Ok(5000), "reads go on");
    disks.shared.lock().is_write_failing = false;
    drop(store);
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    assert_eq!(tree(&disks.open(&quiet())), before);
}

/// An fsync that found nothing to do costs no sync of the host.
#[test]
fn fsync_of_what_is_durable_costs_nothing() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let file = make(&store, "a").unwrap();
    store.write(file, 0, 0, &[5; 5000]).unwrap();
    let syncs = || disks.shared.lock().syncs;
    let (start, commits) = (syncs(), store.stats().commits);
    store.fsync(file, 0, false).unwrap();
    let first = syncs() - start;
    println!("{first} syncs");
    assert_eq!((store.stats().commits - commits, first <= 3), (1, true), "{first} syncs");
    store.fsync(file, 0, false).unwrap();
    assert_eq!(syncs() - start, first);
    // In place, only data is to be made durable.
    store.write(file, 0, 100, b"abc").unwrap();
    store.fsync(file, 0, true).unwrap();
    assert_eq!((syncs() - start, store.stats().commits - commits), (first + 1, 1));
}
