//! Directories that are no store, or no more.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use corewalk_store::{OpenError, Store, StoreOptions};

/// A directory that goes with the test.
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
        let quiet = StoreOptions { commit_every: None, log_bytes, ..StoreOptions::default() };
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
    assert!(matches!(folder.open(), Err(OpenError::Foreign)), "an empty one");
    fs::remove_file(&meta).unwrap();
    assert!(matches!(folder.open(), Err(OpenError::Foreign)), "none");
    assert!(!meta.exists());
    fs::write(&meta, whole).unwrap();
    assert!(folder.open().is_ok());
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
