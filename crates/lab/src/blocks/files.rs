//! The files of the stores in a tmpfs and on disk, each with one extended attribute.
//!
//! Source: setxattr(2).

use corewalk::{FileKind, FileSystem, Make, Name, Node, XattrMode};

/// The attribute.
const NAME: &[u8] = b"user.bench";
/// The number of the root directory.
const ROOT_INO: u64 = 1;

/// The inode numbers of all files, by worker. Each worker has its own directory.
pub(super) struct AttrFiles(Vec<Vec<u64>>);

impl AttrFiles {
    /// Makes `workers` directories with `files` files each in the empty file system `fs`.
    ///
    /// # Errors
    /// If a file cannot be made.
    pub(super) fn make(fs: &impl FileSystem, size: (usize, usize)) -> anyhow::Result<AttrFiles> {
        let (workers, files) = size;
        let make = |dir: u64, name: String, mode| {
            let dir = Node::detached(dir, FileKind::Directory);
            let made = fs.make(dir, Name::new(name.as_bytes())?, &Make::new(mode, 0, 0))?;
            anyhow::Ok(made.ino)
        };
        let of_worker = |worker: usize| {
            let dir = make(ROOT_INO, format!("worker-{worker}"), 0o040_755)?;
            (0..files).map(|file| make(dir, format!("file-{file:06}"), 0o100_644)).collect()
        };
        Ok(AttrFiles((0..workers).map(of_worker).collect::<anyhow::Result<_>>()?))
    }

    /// Sets the attribute of a file of a worker.
    pub(super) fn set(&self, fs: &impl FileSystem, file: (usize, usize), value: &[u8]) {
        fs.setxattr(self.node(file), NAME, value, XattrMode::Set).expect("there is room");
    }

    /// Returns the attribute of a file.
    pub(super) fn get(&self, fs: &impl FileSystem, file: (usize, usize)) -> Option<Vec<u8>> {
        fs.getxattr(self.node(file), NAME).ok()
    }

    /// Removes the attribute of each file of one worker that has one.
    pub(super) fn clear(&self, fs: &impl FileSystem, worker: usize) {
        for file in 0..self.0[worker].len() {
            let _ = fs.removexattr(self.node((worker, file)), NAME);
        }
    }

    /// Returns how many files have the attribute.
    pub(super) fn users(&self, fs: &impl FileSystem) -> u64 {
        let all = self.0.iter().enumerate();
        let all = all.flat_map(|(worker, files)| (0..files.len()).map(move |file| (worker, file)));
        all.filter(|file| self.get(fs, *file).is_some()).count() as u64
    }

    fn node(&self, file: (usize, usize)) -> Node<'static> {
        Node::detached(self.0[file.0][file.1], FileKind::Regular)
    }
}
