//! Where directories were found, for files that are asked for by name.
//!
//! The attributes of a file need no descriptor of it: one of its directory and its name will do, and
//! a directory serves many files. The cache gives the path of the file, so what is kept here leads
//! from the path of its directory to the number of that, whose descriptor may be kept.
//!
//! Nothing is done when a directory is renamed or removed: the file found is checked by its number,
//! and where that is another one the entry is dropped. So an entry that is out of date costs a look
//! and nothing else.
//!
//! # Locks
//! One, a leaf.

use std::collections::HashMap;

use corewalk_base::Mutex;
use foldhash::fast::RandomState;

/// Directories that are remembered: the map is emptied beyond.
const PLACES_MAX: usize = 256;

/// The numbers of directories, by the paths that have led to them.
#[derive(Default)]
pub(crate) struct Places {
    by_path: Mutex<HashMap<Vec<u8>, u64, RandomState>>,
}

impl Places {
    /// Returns the number of the directory that `path` led to.
    pub(crate) fn get(&self, path: &[u8]) -> Option<u64> {
        self.by_path.lock().get(path).copied()
    }

    /// Notes that `path` has led to directory `ino`.
    pub(crate) fn note(&self, path: &[u8], ino: u64) {
        let mut by_path = self.by_path.lock();
        if by_path.len() == PLACES_MAX {
            by_path.clear();
        }
        by_path.insert(path.to_vec(), ino);
    }

    /// Drops what is known of `path`.
    pub(crate) fn forget(&self, path: &[u8]) {
        self.by_path.lock().remove(path);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn place_is_known_until_it_is_forgotten_or_there_are_too_many() {
        let places = Places::default();
        places.note(b"/a", 1);
        places.note(b"/a", 2);
        assert_eq!((places.get(b"/a"), places.get(b"/b")), (Some(2), None));
        places.forget(b"/a");
        assert_eq!(places.get(b"/a"), None);
        for ino in 0..=PLACES_MAX as u64 {
            places.note(format!("/{ino}").as_bytes(), ino);
        }
        assert_eq!((places.get(b"/0"), places.get(b"/256")), (None, Some(256)));
    }
}
