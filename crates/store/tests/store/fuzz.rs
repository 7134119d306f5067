//! Tests with invalid records and log entries whose checksums are right.
//!
//! Checksums find random damage. So these tests change records through redb itself, and give
//! changed log entries a new hash. That way they reach the checks of every field.
//!
//! An input is a list of edits of 16 bytes: the position of a byte, a kind of change, and a number.
//! So inputs are short, and still make the same change if the store becomes larger.
//!
//! Neither `fsck` nor a mount may panic or hang, and a mounted store must answer every call. If
//! `fsck` finds nothing, the mount must succeed, and no read may return `EIO`.

use std::io;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_store::{Device, OpenError, Store, fsck_devices};
use corewalk_testkit::fuzz::Fuzz;
use corewalk_testkit::race::Watchdog;
use redb::{ReadableDatabase as _, ReadableTable as _, TableDefinition};

use crate::memory::{Disks, quiet};

/// The hash function of the store. The store does not export this module, so the test includes its
/// source.
#[path = "../../src/hash.rs"]
mod hash;

const LOG: usize = 3;
const BLOCK: usize = 4096;
const HEADER: usize = 32;
const EDIT: usize = 16;
const TABLE: TableDefinition<'_, &[u8; 17], &[u8]> = TableDefinition::new("corewalk");
const SEED: std::ops::Range<usize> = 12..20;
const ENTRIES_MAX: usize = 1_000;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Answer {
    /// `fsck` finds nothing.
    Whole,
    /// `fsck` finds damage.
    Mounted,
    Damaged,
    LogDamaged,
    Refused,
}

struct Edit {
    place: usize,
    at: usize,
    how: u8,
    number: u64,
}

impl Edit {
    fn parse(bytes: &[u8; EDIT]) -> Edit {
        let [a, b, c, d, e, f, how, _, number @ ..] = *bytes;
        let place = u32::from_le_bytes([a, b, c, d]) as usize;
        let at = usize::from(u16::from_le_bytes([e, f]));
        Edit { place, at, how, number: u64::from_le_bytes(number) }
    }

    fn apply(&self, bytes: &mut Vec<u8>, may_resize: bool) {
        let at = self.at % bytes.len().max(1);
        let width = 1 << (self.how % 4);
        let end = (at + width).min(bytes.len());
        match self.how / 4 % 4 {
            0 => bytes[at..end].copy_from_slice(&self.number.to_le_bytes()[..end - at]),
            1 if at < bytes.len() => bytes[at] ^= 1 << (self.number % 8),
            2 if may_resize => bytes.truncate(at),
            3 if may_resize => bytes.extend_from_slice(&self.number.to_le_bytes()[..width]),
            _ => {}
        }
    }
}

fn edits(input: &[u8]) -> impl Iterator<Item = Edit> {
    input.as_chunks::<EDIT>().0.iter().take(64).map(Edit::parse)
}

fn load() -> [Vec<u8>; 4] {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    let make = |dir, name: &str, mode| {
        let what = Make::new(mode, 1, 2).with_target(b"the/target");
        let attr = store.make(dir, Name::new(name.as_bytes()).unwrap(), &what).unwrap();
        Node::detached(attr.ino, attr.kind())
    };
    let dir = make(root, "dir", 0o40_755);
    for number in 0..20 {
        let file = make(dir, &format!("file{number}"), 0o100_644);
        store.setxattr(file, b"user.label", &[number / 8; 200], XattrMode::Set).unwrap();
        store.write(file, 5_000, &[number; 9_000]).unwrap();
    }
    make(dir, "link", 0o120_777);
    store.sync().unwrap();
    for number in 0..5 {
        let file = make(root, &format!("logged{number}"), 0o100_600);
        store.write(file, 0, &vec![number; 1 << (3 * number)]).unwrap();
        store.fsync(file, false).unwrap();
    }
    let (contents, logged) = (disks.contents(), store.stats().logged_commits);
    drop(store);
    assert!(logged >= 4, "{logged} commits in the log");
    contents
}

#[derive(Debug)]
struct Backend(Arc<dyn Device>);

impl redb::StorageBackend for Backend {
    fn len(&self) -> io::Result<u64> {
        self.0.len()
    }
    fn read(&self, offset: u64, out: &mut [u8]) -> io::Result<()> {
        self.0.read_at(offset, out)
    }
    fn set_len(&self, len: u64) -> io::Result<()> {
        self.0.set_len(len)
    }
    fn sync_data(&self) -> io::Result<()> {
        self.0.sync()
    }
    fn write(&self, offset: u64, data: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, data)
    }
}

fn database(disks: &Disks) -> redb::Database {
    redb::Builder::new().create_with_backend(Backend(disks.devices().meta)).unwrap()
}

fn records(database: &redb::Database) -> Vec<([u8; 17], Vec<u8>)> {
    let read = database.begin_read().unwrap();
    let table = read.open_table(TABLE).unwrap();
    let record =
        |(key, value): (redb::AccessGuard<'_, &[u8; 17]>, redb::AccessGuard<'_, &[u8]>)| {
            (*key.value(), value.value().to_vec())
        };
    table.iter().unwrap().map(|entry| record(entry.unwrap())).collect()
}

fn with_records(contents: &[Vec<u8>; 4], input: &[u8]) -> [Vec<u8>; 4] {
    let disks = Disks::with(contents.clone());
    let database = database(&disks);
    let records = records(&database);
    let write = database.begin_write().unwrap();
    let mut table = write.open_table(TABLE).unwrap();
    for edit in edits(input) {
        let (mut key, old) = records[edit.place % records.len()].clone();
        let mut value = table.get(&key).unwrap().map_or(old, |value| value.value().to_vec());
        match edit.how >> 5 {
            7 => drop(table.remove(&key).unwrap()),
            6 => {
                let at = 1 + edit.at % 16;
                key[at] = edit.number as u8;
                table.insert(&key, value.as_slice()).unwrap();
            }
            _ => {
                edit.apply(&mut value, true);
                table.insert(&key, value.as_slice()).unwrap();
            }
        }
    }
    drop(table);
    write.commit().unwrap();
    drop(database);
    disks.contents()
}

/// Applies the edits `input` to the log. Then computes the hash of each changed entry again, or the
/// reader would reject the entry immediately.
fn with_log(contents: &[Vec<u8>; 4], secret: &hash::Secret, input: &[u8]) -> [Vec<u8>; 4] {
    let mut contents = contents.clone();
    let log = &mut contents[LOG];
    for edit in edits(input) {
        // Half of the edits change the header of a log block, or the checks of its fields would
        // seldom be reached.
        let at = edit.place % (16 * BLOCK);
        let len = if edit.how & 0x80 == 0 { HEADER } else { BLOCK };
        let mut piece = log[at / BLOCK * BLOCK..][..len].to_vec();
        edit.apply(&mut piece, false);
        log[at / BLOCK * BLOCK..][..len].copy_from_slice(&piece);
    }
    let mut at = 0;
    while at + HEADER <= 16 * BLOCK {
        let len = u64::from_le_bytes(*log[at + 24..].first_chunk().unwrap());
        if log[at..at + HEADER].iter().all(|byte| *byte == 0) {
            break;
        }
        let end = usize::try_from(len).ok().and_then(|len| (at + HEADER).checked_add(len));
        let Some(end) = end.filter(|end| *end <= log.len()) else { break };
        let hash = secret.hash_whole(&log[at + 8..end]);
        log[at..at + 8].copy_from_slice(&hash.to_le_bytes());
        at = end.next_multiple_of(BLOCK);
    }
    contents
}

fn examine(contents: [Vec<u8>; 4]) -> Answer {
    let disks = Disks::with(contents);
    let is_clean = fsck_devices(&disks.devices()).is_ok_and(|report| report.findings.is_empty());
    let store = match Store::open_devices(disks.devices(), &quiet()) {
        Ok(store) => store,
        Err(error) => {
            assert!(!is_clean, "no findings, but the mount fails: {error:?}");
            return match error {
                OpenError::Damaged => Answer::Damaged,
                OpenError::LogDamaged { .. } => Answer::LogDamaged,
                _ => Answer::Refused,
            };
        }
    };
    let read = read_all(&store, Node::detached(1, FileKind::Directory), 0);
    if is_clean {
        assert_ne!(read, Err(Errno::IO), "no findings, but a read fails");
    }
    change(&store);
    if is_clean { Answer::Whole } else { Answer::Mounted }
}

/// The depth is limited, since a damaged directory may contain itself.
fn read_all(store: &Store, dir: Node<'_>, depth: usize) -> Result<(), Errno> {
    let mut found = Vec::new();
    store.readdir(dir, 0, &mut |entry| {
        found.push((entry.ino, entry.name.as_bytes().to_vec()));
        if found.len() < ENTRIES_MAX { ControlFlow::Continue(()) } else { ControlFlow::Break(()) }
    })?;
    let mut first_error = Ok(());
    for (_, name) in found {
        let one = || -> Result<(), Errno> {
            let Ok(name) = Name::new(&name) else { return Ok(()) };
            let attr = store.lookup(dir, name)?;
            let node = Node::detached(attr.ino, attr.kind());
            for name in store.listxattr(node)?.split(|byte| *byte == 0).filter(|it| !it.is_empty())
            {
                store.getxattr(node, name)?;
            }
            match attr.kind() {
                FileKind::Directory if depth < 4 => read_all(store, node, depth + 1)?,
                FileKind::Regular => drop(store.read(node, 0, &mut [0; 20_000])?),
                FileKind::Symlink => drop(store.readlink(node)?),
                _ => {}
            }
            store.forget(attr.ino, attr.generation);
            Ok(())
        };
        first_error = first_error.and(one());
    }
    first_error
}

fn change(store: &Store) {
    let root = Node::detached(1, FileKind::Directory);
    let name = |text: &'static str| Name::new(text.as_bytes()).unwrap();
    let made = store.make(root, name("new"), &Make::new(0o100_644, 1, 1));
    if let Ok(attr) = made {
        let file = Node::detached(attr.ino, FileKind::Regular);
        let _ = store.write(file, 0, &[7; 10_000]);
        let _ = store.setxattr(file, b"user.label", &[1; 200], XattrMode::Set);
        let _ = store.remove(root, name("new"), file);
        store.forget(attr.ino, attr.generation);
    }
    if let Ok(attr) = store.lookup(root, name("logged1")) {
        let _ = store.remove(root, name("logged1"), Node::detached(attr.ino, attr.kind()));
        store.forget(attr.ino, attr.generation);
    }
    let _ = store.sync();
}

#[test]
fn fuzz_records_of_the_database() {
    let _watchdog = Watchdog::start("records", Duration::from_secs(900));
    let contents = load();
    assert_eq!(examine(contents.clone()), Answer::Whole, "control");
    let answers =
        Fuzz::of("store-records").runs(400).run(|input| examine(with_records(&contents, input)));
    assert!(answers.contains_key(&Answer::Whole), "{answers:?}");
    assert!(answers.len() > 1, "no change of a record was noticed: {answers:?}");
}

#[test]
fn fuzz_entries_of_the_log() {
    let _watchdog = Watchdog::start("the log", Duration::from_secs(900));
    let contents = load();
    let disks = Disks::with(contents.clone());
    let superblock = records(&database(&disks))[0].1.clone();
    let secret = hash::Secret::new(u64::from_le_bytes(superblock[SEED].try_into().unwrap()));
    let same = with_log(&contents, &secret, &[]);
    assert!(same == contents, "control: the new hashes equal those of the store");
    let answers =
        Fuzz::of("store-log").runs(400).run(|input| examine(with_log(&contents, &secret, input)));
    assert!(answers.contains_key(&Answer::Whole), "{answers:?}");
    assert!(answers.contains_key(&Answer::LogDamaged), "{answers:?}");
}
