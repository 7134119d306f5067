//! Tests of directories with no store, or with a damaged one.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use corewalk::{FileKind, FileSystem, Make, Name, Node};
use corewalk_store::{OpenError, Store, StoreOptions, fsck};

struct Folder(PathBuf);

impl Folder {
    fn new(name: &str) -> Folder {
        let path =
            std::env::temp_dir().join(format!("corewalk-store-{}-{name}", std::process::id()));
        fs::create_dir(&path).unwrap();
        Folder(path)
    }

    fn open(&self) -> Result<Store, OpenError> {
        let log_bytes = 64 << 10;
        let quiet = StoreOptions::default().with_commit_every(None).with_log_bytes(log_bytes);
        Store::open(&self.0, &quiet)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn store_that_lost_its_database_is_not_made_anew() {
    let folder = Folder::new("lost");
    drop(folder.open().unwrap());
    fs::write(folder.0.join("data"), [1; 4096]).unwrap();
    let meta = folder.0.join("meta");
    let whole = fs::read(&meta).unwrap();
    fs::write(&meta, b"").unwrap();
    assert!(matches!(folder.open(), Err(OpenError::Foreign)), "empty");
    fs::remove_file(&meta).unwrap();
    assert!(matches!(folder.open(), Err(OpenError::Foreign)), "missing");
    assert!(!meta.exists());
    fs::write(&meta, whole).unwrap();
    assert!(folder.open().is_ok());
}

/// The log or the reserve shows that there was a store, so no new one may be made.
#[test]
fn store_without_bytes_that_lost_its_database_is_not_made_anew() {
    let folder = Folder::new("names");
    drop(folder.open().unwrap());
    assert_eq!(fs::metadata(folder.0.join("data")).unwrap().len(), 0);
    let meta = folder.0.join("meta");
    let whole = fs::read(&meta).unwrap();
    fs::remove_file(&meta).unwrap();
    for lost in ["reserve", "log"] {
        assert!(matches!(folder.open(), Err(OpenError::Foreign)));
        assert!(!meta.exists());
        fs::write(&meta, &whole).unwrap();
        fs::remove_file(folder.0.join(lost)).unwrap();
        assert!(folder.open().is_ok(), "missing log or reserve: {lost}");
        fs::remove_file(&meta).unwrap();
    }
}

#[test]
fn store_that_lost_bytes_of_files_is_refused() {
    let folder = Folder::new("short");
    let store = folder.open().unwrap();
    let root = Node::detached(1, FileKind::Directory);
    let file = store.make(root, Name::new(b"file").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    store.write(Node::detached(file.ino, file.kind()), 0, &[7; 10_000]).unwrap();
    drop(store);
    let data = folder.0.join("data");
    let whole = fs::read(&data).unwrap();
    fs::write(&data, &whole[..4096]).unwrap();
    assert!(matches!(folder.open(), Err(OpenError::DataShort { .. })), "truncated");
    fs::remove_file(&data).unwrap();
    assert!(matches!(folder.open(), Err(OpenError::DataShort { len: 0, .. })), "missing");
    assert!(!fsck(&folder.0).unwrap().findings.is_empty());
    fs::write(&data, whole).unwrap();
    assert!(folder.open().is_ok());
}

#[test]
fn check_of_a_directory_leaves_every_file_as_it_was() {
    let (folder, copy) = (Folder::new("checked"), Folder::new("copy"));
    let store = folder.open().unwrap();
    let root = Node::detached(1, FileKind::Directory);
    let file = store.make(root, Name::new(b"file").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    let file = Node::detached(file.ino, file.kind());
    store.write(file, 0, &[7; 10_000]).unwrap();
    store.fsync(file, false).unwrap();
    assert_eq!(store.stats().logged_commits, 1);
    let all = |folder: &Folder| -> BTreeMap<_, _> {
        let files = fs::read_dir(&folder.0).unwrap().map(|entry| entry.unwrap());
        files.map(|entry| (entry.file_name(), fs::read(entry.path()).unwrap())).collect()
    };
    for (name, bytes) in all(&folder).iter().filter(|(name, _)| *name != "reserve") {
        fs::write(copy.0.join(name), bytes).unwrap();
    }
    let before = all(&copy);
    assert_eq!(before.len(), 4);
    let report = fsck(&copy.0).unwrap();
    assert_eq!((report.findings, report.inodes), (vec![], 2));
    assert!(all(&copy) == before, "changed");
    drop(copy.open().unwrap());
    assert!(all(&copy) != before, "the control");
}

#[test]
fn links_out_of_the_directory_are_not_followed() {
    let (folder, other) = (Folder::new("links"), Folder::new("other"));
    let target = other.0.join("file");
    fs::write(&target, b"mine").unwrap();
    for name in ["reserve", "data", "lock", "log"] {
        drop(folder.open().unwrap());
        fs::remove_file(folder.0.join(name)).unwrap();
        symlink(&target, folder.0.join(name)).unwrap();
        assert!(folder.open().is_err(), "{name}");
        fs::remove_file(folder.0.join(name)).unwrap();
    }
    assert_eq!(fs::read(&target).unwrap(), b"mine");
}
