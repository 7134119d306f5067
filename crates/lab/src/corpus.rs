//! A tree of real file names. All variants of a benchmark table hold the same tree.
//!
//! Random names are short, alike and evenly spread, which makes some designs look better than they
//! are. So the tree consists of the names below `/usr` on this machine, up to a given number. If
//! these are too few, the lab adds random ones, and the run reports how many.
//!
//! On a Debian with compilers `/usr` has more than 100,000 entries. In a tree of 100,000 entries
//! the mean depth is 7 levels, and the mean length of a name is 21 bytes.
//!
//! The random names form a tree like `/usr`, with names of the same lengths ([`LENGTHS`]). A
//! directory has 16 names, of which 5 are directories. So a tree of 100,000 random names has 7
//! levels, and one of a million has 8.
//!
//! # How it works
//! Entries have numbers. The root has number 1. The children of a directory have successive numbers
//! in the order of their names, larger than that of the directory. So a range of numbers lists the
//! children, and a single pass from the end computes the sizes of all subtrees.
//!
//! Every tree has the directory `/synthetic`, as the target of renames.
//!
//! # Limits
//! The collection of names follows no symbolic links, and enters no file system below `/usr`.
//!
//! Source: hier(7), for the contents of `/usr`.

use std::collections::VecDeque;
use std::fs;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use corewalk::FileKind;
use fastrand::Rng;
use itertools::Itertools as _;

use crate::baseline::join;

/// The inode number of the root.
pub(crate) const ROOT: u64 = 1;
/// The directory from which the real names are collected.
const SOURCE: &str = "/usr";
/// The inode number of the directory of made-up names.
pub(crate) const SYNTHETIC: u64 = 2;
/// Number of random names in each directory that the lab makes up.
const NAMES_PER_DIRECTORY: usize = 16;
/// Number of directories among these names.
const DIRECTORIES_PER_DIRECTORY: usize = 5;
/// The lengths of random names in bytes: quantiles of the 152,000 names below `/usr` on a Debian
/// with compilers.
const LENGTHS: [usize; 20] =
    [4, 6, 7, 8, 9, 10, 11, 11, 12, 13, 15, 17, 19, 21, 24, 25, 30, 37, 44, 56];

/// A tree of names.
pub(crate) struct Corpus {
    entries: Vec<Entry>,
    pub(crate) made_up: usize,
}

/// One name and what it refers to.
struct Entry {
    parent: u32,
    children: Range<u32>,
    name: Box<[u8]>,
    is_directory: bool,
}

impl Corpus {
    /// Returns a tree of `wanted` entries, with the root, `/synthetic` and `/usr`.
    pub(crate) fn collect(wanted: usize) -> Corpus {
        let root = Entry { parent: 0, children: 0..0, name: Box::default(), is_directory: true };
        let mut corpus = Corpus { entries: Vec::with_capacity(wanted), made_up: 0 };
        corpus.entries.push(root);
        corpus.push_children(0, &[(b"synthetic".to_vec(), true), (b"usr".to_vec(), true)]);
        corpus.read_real(wanted);
        corpus.make_up(wanted);
        corpus.entries.shrink_to_fit();
        corpus
    }

    /// Returns the number of entries.
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns the inode numbers of all entries, parents before children.
    pub(crate) fn inodes(&self) -> impl Iterator<Item = u64> + use<> {
        1..=self.entries.len() as u64
    }

    /// Returns the inode number of the parent of an entry. The root is its own parent.
    pub(crate) fn parent(&self, ino: u64) -> u64 {
        u64::from(self.entry(ino).parent) + 1
    }

    /// Returns the name, empty for the root.
    pub(crate) fn name(&self, ino: u64) -> &[u8] {
        &self.entry(ino).name
    }

    pub(crate) fn is_directory(&self, ino: u64) -> bool {
        self.entry(ino).is_directory
    }

    pub(crate) fn kind(&self, ino: u64) -> FileKind {
        if self.is_directory(ino) { FileKind::Directory } else { FileKind::Regular }
    }

    /// Returns the inode numbers of the entries of a directory, sorted by name.
    pub(crate) fn children(&self, parent: u64) -> impl Iterator<Item = u64> + use<> {
        self.entry(parent).children.clone().map(|index| u64::from(index) + 1)
    }

    /// Returns the absolute path.
    pub(crate) fn path(&self, ino: u64) -> Vec<u8> {
        let up = std::iter::successors(Some(ino), |&at| Some(self.parent(at)));
        let names: Vec<&[u8]> = up.take_while(|&at| at != ROOT).map(|at| self.name(at)).collect();
        join(&names)
    }

    /// Returns the depth of an entry: the number of names in its path.
    pub(crate) fn depth(&self, ino: u64) -> usize {
        std::iter::successors(Some(ino), |&at| (at != ROOT).then(|| self.parent(at))).count() - 1
    }

    fn entry(&self, ino: u64) -> &Entry {
        &self.entries[ino as usize - 1]
    }

    /// Reads directories below `/usr` until the tree has enough entries. Only the last one may be
    /// incomplete.
    fn read_real(&mut self, wanted: usize) {
        let Ok(device) = fs::symlink_metadata(SOURCE).map(|source| source.dev()) else { return };
        let mut stack: Vec<(u32, PathBuf)> = vec![(2, PathBuf::from(SOURCE))];
        while let Some((index, path)) = stack.pop() {
            let room = wanted.saturating_sub(self.entries.len());
            if room == 0 {
                return;
            }
            let mut children = read_directory(&path);
            children.truncate(room);
            let first = self.push_children(index, &children);
            for (at, (name, is_directory)) in children.iter().enumerate().rev() {
                let below = path.join(Path::new(std::ffi::OsStr::from_bytes(name)));
                let is_here = || fs::symlink_metadata(&below).is_ok_and(|m| m.dev() == device);
                if *is_directory && is_here() {
                    stack.push((first + at as u32, below));
                }
            }
        }
    }

    /// Adds random names, the same in each run, until the tree has enough entries.
    fn make_up(&mut self, wanted: usize) {
        self.made_up = wanted.saturating_sub(self.entries.len());
        let mut rng = Rng::with_seed(0x5eed_0401);
        let mut directories = VecDeque::from([SYNTHETIC as u32 - 1]);
        while let Some(directory) = directories.pop_front() {
            let room = wanted.saturating_sub(self.entries.len()).min(NAMES_PER_DIRECTORY);
            if room == 0 {
                return;
            }
            let mut names: Vec<(Vec<u8>, bool)> = (0..room)
                .map(|at| (made_up_name(at, &mut rng), at < DIRECTORIES_PER_DIRECTORY))
                .collect();
            names.sort();
            let first = self.push_children(directory, &names);
            let numbered = (first..).zip(&names);
            directories.extend(numbered.filter(|(_, (_, is_dir))| *is_dir).map(|(at, _)| at));
        }
    }

    /// Appends the sorted children of the directory with index `index`. Returns the index of the
    /// first one.
    fn push_children(&mut self, index: u32, children: &[(Vec<u8>, bool)]) -> u32 {
        let first = self.entries.len() as u32;
        for (name, is_directory) in children {
            let (name, is_directory) = (name[..].into(), *is_directory);
            self.entries.push(Entry { parent: index, children: 0..0, name, is_directory });
        }
        self.entries[index as usize].children = first..first + children.len() as u32;
        first
    }
}

/// Returns a random name that starts with `at`, its number in the directory, so that it is unique
/// there.
fn made_up_name(at: usize, rng: &mut Rng) -> Vec<u8> {
    let len = LENGTHS[rng.u64(..LENGTHS.len() as u64) as usize];
    let mut name = format!("{at:02}").into_bytes();
    name.extend((name.len()..len).map(|_| b'a' + rng.u64(..26) as u8));
    name
}

/// Returns the sorted names in a directory, each with a flag that is true for a directory. Returns
/// no names if the directory cannot be read.
fn read_directory(path: &Path) -> Vec<(Vec<u8>, bool)> {
    let Ok(entries) = fs::read_dir(path) else { return vec![] };
    let child = |entry: fs::DirEntry| {
        let is_directory = entry.file_type().is_ok_and(|kind| kind.is_dir());
        (entry.file_name().as_bytes().to_vec(), is_directory)
    };
    entries.flatten().map(child).sorted().collect()
}

#[cfg(test)]
pub(crate) mod tests;
