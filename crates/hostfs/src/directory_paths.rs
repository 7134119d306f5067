//! A cache of directories by path, for reading attributes by name.
//!
//! The attributes of a file can be read without a descriptor of the file, by its name and a
//! descriptor of its directory. That descriptor serves all files in the directory.
//!
//! The dentry cache gives the path of the file, and so the path of its directory. This module maps
//! the path of the directory to its inode number, under which `Descriptors` may have kept a
//! descriptor.
//!
//! A rename or removal of a directory does not update this cache. So the caller checks the inode
//! number of each file that it finds in the directory. If the number is wrong, the caller drops the
//! directory from this cache.
//!
//! # Locks
//! One mutex protects the cache. No other lock is taken under it.

use std::collections::HashMap;

use corewalk_base::Mutex;
use foldhash::fast::RandomState;

/// Maximum number of directories in the cache. An insertion into the full cache first drops all of
/// them.
const DIRECTORIES_MAX: usize = 256;

#[derive(Default)]
pub(crate) struct DirectoryPaths {
    by_path: Mutex<HashMap<Vec<u8>, u64, RandomState>>,
}

impl DirectoryPaths {
    /// Returns the inode number of the directory at `path`, as passed to `note`. The directory may
    /// have moved since then.
    pub(crate) fn get(&self, path: &[u8]) -> Option<u64> {
        self.by_path.lock().get(path).copied()
    }

    pub(crate) fn note(&self, path: &[u8], ino: u64) {
        let mut by_path = self.by_path.lock();
        if by_path.len() == DIRECTORIES_MAX {
            by_path.clear();
        }
        by_path.insert(path.to_vec(), ino);
    }

    pub(crate) fn forget(&self, path: &[u8]) {
        self.by_path.lock().remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_is_cached_until_it_is_forgotten_or_the_cache_is_full() {
        let paths = DirectoryPaths::default();
        paths.note(b"/a", 1);
        paths.note(b"/a", 2);
        assert_eq!((paths.get(b"/a"), paths.get(b"/b")), (Some(2), None));
        paths.forget(b"/a");
        assert_eq!(paths.get(b"/a"), None);
        for ino in 0..=DIRECTORIES_MAX as u64 {
            paths.note(format!("/{ino}").as_bytes(), ino);
        }
        assert_eq!((paths.get(b"/0"), paths.get(b"/256")), (None, Some(256)));
    }
}
