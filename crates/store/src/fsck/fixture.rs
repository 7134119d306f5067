//! Makes small stores and damages single records in them, for the tests of `fsck`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::{FileKind, FileSystem as _, Make, Name, Node, XattrMode};

use super::{CACHE_BYTES, Finding, fsck};
use crate::database::{Database, Snapshot};
use crate::device::{Device, FileDevice};
use crate::directory::hash_of_name;
use crate::hash::Secret;
use crate::layer::Record;
use crate::mount::{each, read_super};
use crate::record::{BLOCKS_MAX, Entry, Extent, InodeRecord, Key, Kind};
use crate::store::{Store, StoreOptions};

pub(super) fn options() -> StoreOptions {
    StoreOptions { log_bytes: 64 << 10, ..StoreOptions::default() }
}

/// Makes a store in which a directory (inode 2) contains a file (inode 3). The file has data and
/// attribute block 1.
pub(super) fn store(name: &str) -> PathBuf {
    let path = std::env::temp_dir().join(format!("fsck-{}-{name}", std::process::id()));
    let store = Store::open(&path, &options()).unwrap();
    let make = |dir, name: &str, mode| {
        let name = Name::new(name.as_bytes()).unwrap();
        let attr = store.make(dir, name, &Make::new(mode, 0, 0)).unwrap();
        Node::detached(attr.ino, attr.kind())
    };
    let dir = make(Node::detached(1, FileKind::Directory), "dir", 0o040_755);
    let file = make(dir, "file", 0o644);
    store.write(file, 0, &[1; 5000]).unwrap();
    store.setxattr(file, b"user.a", b"1", XattrMode::Set).unwrap();
    path
}

pub(super) fn database_of(path: &Path) -> (Arc<dyn Device>, Database) {
    let file = std::fs::File::options().read(true).write(true).open(path.join("meta")).unwrap();
    let device: Arc<dyn Device> = Arc::new(FileDevice::new(file).unwrap());
    let database = Database::open(&device, CACHE_BYTES).unwrap();
    (device, database)
}

pub(super) fn write(path: &Path, change: impl FnOnce(&Snapshot, &Secret) -> Vec<(Key, Record)>) {
    let (_, database) = database_of(path);
    let snapshot = database.snapshot().unwrap();
    let secret = Secret::new(read_super(&snapshot).unwrap().seed);
    let records = change(&snapshot, &secret);
    drop(snapshot);
    database.write(&records).unwrap();
}

pub(super) fn found(
    name: &str,
    change: impl FnOnce(&Snapshot, &Secret) -> Vec<(Key, Record)>,
) -> Vec<Finding> {
    let path = store(name);
    assert_eq!(fsck(&path).unwrap().findings, []);
    write(&path, change);
    let findings = fsck(&path).map(|report| report.findings);
    std::fs::remove_dir_all(&path).unwrap();
    findings.unwrap()
}

pub(super) fn inode(
    ino: u64,
    change: impl FnOnce(&mut InodeRecord),
) -> impl FnOnce(&Snapshot, &Secret) -> Vec<(Key, Record)> {
    move |snapshot, _| {
        let key = Key::of(Kind::Inode, ino);
        let value = snapshot.get(&key).unwrap().unwrap();
        let (mut record, target) = InodeRecord::decode(&value).unwrap();
        change(&mut record);
        let mut out = Vec::new();
        record.encode(target, &mut out);
        vec![(key, Some(out.into()))]
    }
}

pub(super) fn extent(logical: u64, physical: u64, len: u64) -> (Key, Record) {
    let extent = Extent { physical, len, is_written: true };
    (Key::at(Kind::Extent, 3, logical), Some(extent.encode().into()))
}

pub(super) fn rekeyed(
    kind: Kind,
    to: Key,
) -> impl FnOnce(&Snapshot, &Secret) -> Vec<(Key, Record)> {
    move |snapshot, _| {
        let mut last = None;
        each(snapshot, kind, &mut |key, value| {
            last = Some((key, value.into()));
            Ok(())
        })
        .unwrap();
        let value =
            last.as_ref().map_or_else(|| [].into(), |(_, value): &(_, Arc<[u8]>)| value.clone());
        last.into_iter().map(|(key, _)| (key, None)).chain([(to, Some(value))]).collect()
    }
}

pub(super) fn named(
    dir: u64,
    name: &'static [u8],
    ino: u64,
    kind: FileKind,
) -> impl FnOnce(&Snapshot, &Secret) -> Vec<(Key, Record)> {
    move |_, secret| {
        let mut out = Vec::new();
        Entry { slot: 0, kind, ino, name }.encode(&mut out);
        let hash = hash_of_name(Name::new(name).unwrap(), secret);
        vec![(Key::at(Kind::Name, dir, hash), Some(out.into()))]
    }
}

pub(super) fn uncountable() -> Vec<(Key, Record)> {
    let extent = Extent { physical: 0, len: BLOCKS_MAX, is_written: false }.encode();
    let value: Arc<[u8]> = extent.into();
    let count = u64::MAX / BLOCKS_MAX + 2;
    (0..count).map(|at| (Key::at(Kind::Extent, 3, at), Some(value.clone()))).collect()
}
