//! A database whose pages are damaged while the store is not mounted.
//!
//! After a clean end the database looks at no checksum when it reads, and panics at a page of a kind that
//! there is not. Each page is damaged in turn, in several ways: a mount either says so, or gives a store in
//! which what cannot be read is `EIO`; a check finds it. Neither panics, and neither says that there is
//! no store.

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_store::{Finding, OpenError, Store, fsck_devices};

use crate::differential::tree;
use crate::memory::{Disks, quiet};

const PAGE: usize = 4096;
const FILES: usize = 400;

fn name(number: usize) -> String {
    format!("{number:060}")
}

/// Returns the devices of a store that was closed, with a tree of pages.
fn load() -> [Vec<u8>; 4] {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    for number in 0..FILES {
        let name = name(number);
        let make = Make::new(0o644, 0, 0);
        let ino = store.make(root, Name::new(name.as_bytes()).unwrap(), &make).unwrap().ino;
        let file = Node::detached(ino, FileKind::Regular);
        if number % 8 == 0 {
            let value = vec![number as u8; 300];
            store.setxattr(file, b"user.label", &value, XattrMode::Set).unwrap();
        }
        if number % 16 == 0 {
            store.write(file, 0, 0, b"bytes").unwrap();
        }
    }
    drop(store);
    disks.contents()
}

/// Looks at all there is; returns whether all of it could be read.
fn look_at_all(store: &Store, what: &str) -> bool {
    let root = Node::detached(1, FileKind::Directory);
    let mut is_whole = true;
    let mut note = |result: Result<(), Errno>| is_whole &= result.is_ok();
    note(store.readdir(root, 0, &mut |_| std::ops::ControlFlow::Continue(())));
    for number in 0..FILES {
        match store.lookup(root, Name::new(name(number).as_bytes()).unwrap()) {
            Ok(attr) => {
                let file = Node::detached(attr.ino, FileKind::Regular);
                note(store.listxattr(file).map(drop));
                note(store.read(file, 0, 0, &mut [0; 16]).map(drop));
                store.forget(attr.ino);
            }
            Err(errno) => note(Err(errno)),
        }
    }
    // Whether this works is one thing, that it ends another.
    let made = store.make(root, Name::new(b"new").unwrap(), &Make::new(0o644, 0, 0));
    assert!(made.is_ok() || store.sync().is_err() || !is_whole, "{what}");
    is_whole
}

/// What became of damaged stores.
#[derive(Debug, Default)]
struct Outcomes {
    refused: u32,
    mounted: u32,
    found: u32,
    /// Pages that nothing leads to.
    unused: u32,
}

fn damage(contents: &[Vec<u8>; 4], what: &str, outcomes: &mut Outcomes) {
    let disks = Disks::with(contents.clone());
    let is_whole = match Store::open_devices(disks.devices(), &quiet()) {
        Err(OpenError::Damaged) => {
            outcomes.refused += 1;
            false
        }
        Err(other) => panic!("{what}: {other:?}"),
        Ok(store) => {
            outcomes.mounted += 1;
            look_at_all(&store, what)
        }
    };
    let disks = Disks::with(contents.clone());
    let report = fsck_devices(&disks.devices()).unwrap_or_else(|error| panic!("{what}: {error}"));
    if report.findings.is_empty() {
        assert!(is_whole, "{what}: nothing is found");
        outcomes.unused += 1;
    } else {
        assert_eq!(report.findings[0], Finding::Database, "{what}: {:?}", report.findings);
        outcomes.found += 1;
    }
}

#[test]
fn damage_of_any_page_is_said_and_panics_nowhere() {
    let contents = load();
    let meta = &contents[0];
    let pages: Vec<usize> = (1..meta.len() / PAGE)
        .filter(|page| meta[page * PAGE..][..PAGE].iter().any(|&byte| byte != 0))
        .collect();
    assert!(pages.len() > 30, "{} pages", pages.len());
    let mut outcomes = Outcomes::default();
    for (nth, &page) in pages.iter().enumerate() {
        let at = page * PAGE;
        // Lost; of no kind; a kind that is not this one's; another page; one bit amid it. Each page has two of
        // these, neighbours others.
        for how in [nth % 5, (nth + 2) % 5] {
            let mut damaged = contents.clone();
            let meta = &mut damaged[0];
            match how {
                0 => meta[at..at + PAGE].fill(0),
                1 => meta[at..at + PAGE].fill(0xee),
                2 => meta[at] ^= 3,
                3 => {
                    let from = pages[(nth + 7) % pages.len()] * PAGE;
                    meta.copy_within(from..from + PAGE, at);
                }
                _ => meta[at + PAGE / 3] ^= 0x10,
            }
            if damaged[0] != contents[0] {
                damage(&damaged, &format!("page {page}, damage {how}"), &mut outcomes);
            }
        }
    }
    println!("{} pages: {outcomes:?}", pages.len());
    let Outcomes { refused, mounted, found, .. } = outcomes;
    assert!(refused > 20 && mounted > 20 && found > 60, "{outcomes:?}");
}

/// What is no database is no store; what was one once is damaged.
#[test]
fn first_page_tells_a_store_from_a_foreign_file() {
    let contents = load();
    let mut foreign = contents.clone();
    foreign[0][0] ^= 1;
    let disks = Disks::with(foreign);
    assert!(matches!(
        Store::open_devices(disks.devices(), &quiet()).map(drop),
        Err(OpenError::Foreign)
    ));
    assert!(matches!(fsck_devices(&disks.devices()), Err(OpenError::Foreign)));
    let mut damaged = contents;
    damaged[0][9..PAGE].fill(0xa5);
    let disks = Disks::with(damaged);
    assert!(matches!(
        Store::open_devices(disks.devices(), &quiet()).map(drop),
        Err(OpenError::Damaged)
    ));
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, [Finding::Database]);
}

#[test]
fn control_store_that_is_whole_is_mounted() {
    let contents = load();
    let disks = Disks::with(contents.clone());
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    let disks = Disks::with(contents);
    let store = disks.open(&quiet());
    assert_eq!(tree(&store).len(), FILES + 1);
    assert!(look_at_all(&store, "whole"));
}
