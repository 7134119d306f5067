//! Tests of a log that is damaged while the store is not mounted.
//!
//! Damage of the log must never silently lose a confirmed change. Only the last entry may be lost,
//! since a crash may tear it before an fsync confirms it.

use corewalk::{FileKind, FileSystem, Make, Name, Node};
use corewalk_store::{Finding, OpenError, Store, fsck_devices};
use corewalk_testkit::rng::{Rng, Seed};

use crate::differential::{Tree, tree};
use crate::memory::{Disks, quiet};

const BLOCK: usize = 4096;
const LOG: usize = 3;

/// An entry of the log: its offset in bytes and its length in blocks.
struct Entry {
    at: usize,
    blocks: usize,
}

/// Leaves a store unclosed, like a killed process. Returns its devices, the entries in its log, and
/// the tree after each entry.
fn load() -> ([Vec<u8>; 4], Vec<Entry>, Vec<Tree>) {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let mut trees = vec![tree(&store)];
    let root = Node::detached(1, FileKind::Directory);
    for (number, len) in [0, 8_192, 4_096, 20_480, 0, 12_288].into_iter().enumerate() {
        let name = format!("f{number}");
        let name = Name::new(name.as_bytes()).unwrap();
        let made = store.make(root, name, &Make::new(0o644, 0, 0)).unwrap();
        let file = Node::detached(made.ino, FileKind::Regular);
        if len > 0 {
            store.write(file, 0, &vec![number as u8 + 1; len]).unwrap();
        }
        store.fsync(file, false).unwrap();
        trees.push(tree(&store));
    }
    assert_eq!(store.stats().logged_commits, 6);
    let contents = disks.contents();
    let (mut entries, mut at) = (Vec::new(), 0);
    for number in 0..6 {
        let word = |nth: usize| {
            let bytes = contents[LOG][at + 8 * nth..].first_chunk().unwrap();
            u64::from_le_bytes(*bytes)
        };
        assert_eq!(word(2), number, "the number of the entry");
        let blocks = (32 + word(3) as usize).div_ceil(BLOCK);
        entries.push(Entry { at, blocks });
        at += blocks * BLOCK;
    }
    assert!(entries.iter().any(|entry| entry.blocks == 1));
    (contents, entries, trees)
}

fn open(contents: &[Vec<u8>; 4]) -> (Disks, Result<Store, OpenError>) {
    let disks = Disks::with(contents.clone());
    let opened = Store::open_devices(disks.devices(), &quiet());
    (disks, opened)
}

fn assert_is_refused(contents: &[Vec<u8>; 4], at: usize, what: &str) {
    let (disks, opened) = open(contents);
    match opened.map(drop) {
        Err(error @ OpenError::LogDamaged { at: said, .. }) => {
            assert_eq!(said, at as u64, "{what}");
            let text = error.to_string();
            assert!(text.contains(&format!("truncate --size={at} log")), "{text}");
            let len = contents[LOG].len();
            assert!(text.contains(&format!("truncate --size={len} log")), "{text}");
        }
        other => panic!("{what}: {other:?}"),
    }
    let report = fsck_devices(&disks.devices()).unwrap();
    assert_eq!(report.findings, [Finding::Log(at as u64)], "{what}");
    let after = disks.contents();
    assert!(after[LOG] == contents[LOG] && after[1] == contents[1], "{what}: changed");
}

#[test]
fn damage_amid_the_log_is_refused_and_a_torn_end_is_not() {
    let (contents, entries, trees) = load();
    let last = entries.len() - 1;
    for (number, entry) in entries.iter().enumerate() {
        for block in 0..entry.blocks {
            for how in 0..3 {
                let what = format!("block {block} of entry {number}, damage {how}");
                let mut damaged = contents.clone();
                let start = entry.at + block * BLOCK;
                match how {
                    0 => damaged[LOG][start..start + BLOCK].fill(0),
                    1 => damaged[LOG].copy_within(100..BLOCK / 2, start),
                    _ => damaged[LOG][start + 9] ^= 4,
                }
                assert!(damaged[LOG] != contents[LOG], "{what}");
                if number < last {
                    assert_is_refused(&damaged, entry.at, &what);
                } else {
                    let (_, opened) = open(&damaged);
                    assert_eq!(tree(&opened.expect(&what)), trees[last], "{what}");
                }
            }
        }
    }
}

/// The error message for a damaged log advises to cut the log at the damage. A mount of the cut log
/// must show the state of the last commit before the damage.
#[test]
fn log_that_is_cut_at_the_damage_is_mounted() {
    let (contents, entries, trees) = load();
    for (number, entry) in entries.iter().enumerate() {
        let mut cut = contents.clone();
        cut[LOG].truncate(entry.at);
        cut[LOG].resize(contents[LOG].len(), 0);
        let (disks, opened) = open(&cut);
        let store = opened.unwrap();
        assert_eq!(tree(&store), trees[number], "{number}");
        let root = Node::detached(1, FileKind::Directory);
        store.make(root, Name::new(b"more").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
        store.sync().unwrap();
        let now = tree(&store);
        let (_, again) = open(&disks.contents());
        assert_eq!(tree(&again.unwrap()), now);
        drop(store);
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    }
}

/// Control: damage that no valid entry follows looks like the end of the log.
#[test]
fn control_damage_before_nothing_is_an_end() {
    let (contents, entries, trees) = load();
    let mut damaged = contents;
    damaged[LOG][entries[3].at + 40] ^= 1;
    damaged[LOG][entries[4].at..].fill(0);
    let (_, opened) = open(&damaged);
    assert_eq!(tree(&opened.unwrap()), trees[3]);
}

/// Entries of an earlier generation are left behind the last valid entry if the newer generation
/// has fewer. They are no damage.
#[test]
fn entries_of_an_earlier_generation_behind_the_end_are_no_damage() {
    let (contents, ..) = load();
    let (disks, opened) = open(&contents);
    let store = opened.unwrap();
    let root = Node::detached(1, FileKind::Directory);
    store.make(root, Name::new(b"new").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    store.sync().unwrap();
    assert_eq!(store.stats().logged_commits, 1);
    let now = tree(&store);
    let (_, again) = open(&disks.contents());
    assert_eq!(tree(&again.unwrap()), now);
}

/// Even an unreadable block behind the last entry may have held a confirmed entry, so the mount
/// must be refused.
#[test]
fn block_of_the_log_that_cannot_be_read_is_refused() {
    let (contents, entries, trees) = load();
    let end = entries.last().map_or(0, |last| last.at + last.blocks * BLOCK);
    assert!(end + BLOCK < contents[LOG].len());
    let mut is_behind = 0;
    let behind = (end..contents[LOG].len()).step_by(5 * BLOCK);
    for at in (0..end).step_by(BLOCK).chain(behind) {
        let entry =
            entries.iter().find(|entry| (entry.at..entry.at + entry.blocks * BLOCK).contains(&at));
        let expected = entry.map_or(at, |entry| entry.at) as u64;
        is_behind += usize::from(entry.is_none());
        let disks = Disks::with(contents.clone());
        let byte = at as u64 + if entry.is_some() { 20 } else { 0 };
        disks.shared.lock().bad_byte = Some((LOG, byte));
        match Store::open_devices(disks.devices(), &quiet()).map(drop) {
            Err(error @ OpenError::LogRead { at: said, .. }) => {
                assert_eq!(said, expected);
                let text = error.to_string();
                assert!(text.contains(&format!("read at byte {expected}")), "{text}");
            }
            other => panic!("byte {byte}: {other:?}"),
        }
        let report = fsck_devices(&disks.devices()).unwrap();
        assert_eq!(report.findings, [Finding::LogRead(expected)]);
        // Once the block is readable again, all files must be there: the refused mount has changed
        // nothing.
        disks.shared.lock().bad_byte = None;
        assert_eq!(tree(&disks.open(&quiet())), trees[entries.len()]);
    }
    assert!(is_behind > 5);
}

#[test]
fn mount_of_a_log_that_is_changed_at_random_loses_nothing_that_is_there() {
    const MOUNTS: u64 = 200;
    let (contents, entries, trees) = load();
    let (mut mounted, mut refused) = (0, 0);
    for number in 0..MOUNTS {
        let mut rng = Rng::new(Seed(number));
        let mut log = contents[LOG].clone();
        let end = entries.last().map_or(0, |last| last.at + last.blocks * BLOCK);
        for _ in 0..1 + rng.below(3) {
            let at = rng.index(end);
            let block = at / BLOCK * BLOCK;
            match rng.below(4) {
                0 => log[at] ^= 1 << rng.below(8),
                1 => log[block + rng.index(32)] ^= 1 << rng.below(8),
                2 => log[block..block + BLOCK].fill(0),
                _ => {
                    let other = rng.index(end) / BLOCK * BLOCK;
                    log.copy_within(other..other + BLOCK, block);
                }
            }
        }
        let is_whole = |entry: &Entry| {
            let range = entry.at..entry.at + entry.blocks * BLOCK;
            log[range.clone()] == contents[LOG][range]
        };
        let last = entries.iter().rposition(is_whole).map_or(0, |last| last + 1);
        let [meta, data, reserve, _] = contents.clone();
        let (disks, opened) = open(&[meta, data, reserve, log]);
        match opened {
            Ok(store) => {
                // The hash of an entry does not cover the padding behind it. So an entry with
                // changed padding may still be valid.
                let got = tree(&store);
                assert!(trees[last..].contains(&got), "seed {number}");
                mounted += 1;
            }
            Err(OpenError::LogDamaged { .. }) => {
                assert_eq!(fsck_devices(&disks.devices()).unwrap().findings.len(), 1);
                refused += 1;
            }
            Err(other) => panic!("seed {number}: {other:?}"),
        }
    }
    println!("{mounted} mounted, {refused} refused");
    assert!(mounted > 20 && refused > 20);
}

/// The log of a killed store may have had confirmed entries, so a missing or short one must be
/// refused.
#[test]
fn log_of_a_killed_store_that_is_shortened_or_missing_is_refused() {
    let (contents, entries, trees) = load();
    let len = contents[LOG].len();
    let ends = entries.iter().map(|entry| entry.at).chain([1, 100, len / 2, len - BLOCK, len - 1]);
    for end in ends {
        let mut cut = contents.clone();
        cut[LOG].truncate(end);
        let (disks, opened) = open(&cut);
        let error = match opened.map(drop) {
            Err(error @ OpenError::LogShort { .. }) => error,
            other => panic!("{end}: {other:?}"),
        };
        assert_eq!(error.errno(), corewalk::Errno::UCLEAN);
        let said = format!("has {end} bytes, and had {len}");
        assert!(error.to_string().contains(&said), "{error}");
        let found = fsck_devices(&disks.devices()).unwrap().findings;
        assert_eq!(found, [Finding::LogShort(end as u64, len as u64)]);
        assert!(disks.contents() == cut, "{end}: changed");
        // The error message advises to extend the log with truncate(1). Then only the removed
        // entries may be missing.
        assert!(error.to_string().contains(&format!("truncate --size={len} log")), "{error}");
        cut[LOG].resize(len, 0);
        let (_, opened) = open(&cut);
        let kept = entries.iter().filter(|entry| entry.at + entry.blocks * BLOCK <= end).count();
        assert_eq!(tree(&opened.unwrap()), trees[kept], "{end}");
    }
    // Control: a log that is longer than the superblock says has lost nothing.
    let mut longer = contents;
    longer[LOG].resize(len + BLOCK, 0);
    let (_, opened) = open(&longer);
    assert_eq!(tree(&opened.unwrap()), trees[entries.len()]);
}

/// The log of a closed store is not needed, even if the store was mounted read-only since.
#[test]
fn log_of_a_closed_store_may_be_shortened_or_missing() {
    let (contents, _, trees) = load();
    let (disks, opened) = open(&contents);
    drop(opened.unwrap());
    let read_only = quiet().with_read_only(true);
    drop(disks.open(&read_only));
    for end in [0, 100, BLOCK, contents[LOG].len() - 1] {
        let mut cut = disks.contents();
        cut[LOG].truncate(end);
        let (disks, opened) = open(&cut);
        assert_eq!(fsck_devices(&Disks::with(cut).devices()).unwrap().findings, [], "{end}");
        let store = opened.unwrap();
        assert_eq!(tree(&store), trees[trees.len() - 1], "{end}");
        // The mount has begun to use the log again, so a short log must be refused.
        let mut killed = disks.contents();
        killed[LOG].clear();
        assert!(matches!(open(&killed).1.map(drop), Err(OpenError::LogShort { len: 0, .. })));
    }
}
