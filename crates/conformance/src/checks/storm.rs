//! The check `storm`: the storm makes its calls through a `Vfs`.

use corewalk::attr::mode::S_IFREG;
use corewalk::{Errno, InodeRef, RenameMode};

use crate::answer::{Answer, Checked, ensure, ensure_eq};
use crate::bench::{Bench, OpenFile, name};
use crate::storm::{self, DIRS, FileStat, Tree, TreeFile, WORK_DIR};

struct BenchTree<'b> {
    bench: &'b Bench,
    dir: InodeRef<'b>,
}

pub(super) fn run(bench: &Bench) -> Checked {
    for dir in DIRS {
        let (parent, text) = dir.rsplit_once('/').unwrap_or(("", dir));
        bench.dir(&find(bench, parent)?, text)?;
    }
    let tree = BenchTree { bench, dir: find(bench, WORK_DIR)? };
    storm::run(&tree, bench.settings)
}

fn find<'b>(bench: &'b Bench, path: &str) -> Checked<InodeRef<'b>> {
    let names = path.split('/').filter(|text| !text.is_empty());
    names.into_iter().try_fold(bench.root(), |dir, text| bench.find(&dir, text))
}

impl<'b> BenchTree<'b> {
    fn parent<'p>(&self, path: &'p str) -> Result<(InodeRef<'b>, &'p str), Errno> {
        let (parents, text) = path.rsplit_once('/').unwrap_or(("", path));
        let names = parents.split('/').filter(|text| !text.is_empty());
        let look = |dir: InodeRef<'b>, text| self.bench.lookup(&dir, text);
        Ok((names.into_iter().try_fold(self.bench.root(), look)?, text))
    }
}

impl<'b> Tree for BenchTree<'b> {
    type File<'t>
        = OpenFile<'b>
    where
        Self: 't;

    const HAS_NO_LINKS_WHEN_REMOVED: bool = true;

    fn move_dir(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
        let (from, to) = (self.parent(from)?, self.parent(to)?);
        self.bench.rename((&from.0, from.1), (&to.0, to.1), mode)
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno> {
        self.bench.rename((&self.dir, from), (&self.dir, to), mode)
    }

    fn create(&self, text: &str) -> Checked<OpenFile<'b>> {
        let made = self.bench.make(&self.dir, text, self.bench.new_file(S_IFREG | 0o644));
        self.bench.open(&made.needs(&format!("make of {text:?}"))?)
    }

    fn open(&self, text: &str) -> Checked<OpenFile<'b>> {
        self.bench.open(&self.bench.find(&self.dir, text)?)
    }

    fn unlink(&self, text: &str) -> Result<(), Errno> {
        self.bench.unlink(&self.dir, text)
    }

    fn link(&self, text: &str, new: &str) -> Result<(), Errno> {
        let file = self.bench.lookup(&self.dir, text)?;
        self.bench.vfs.link(&self.bench.cred, &file, &self.dir, name(new)).map(drop)
    }

    fn list(&self, page: usize) -> Checked<Vec<String>> {
        let entries = self.bench.list_from(&self.dir, 0, page, &mut |_| Ok(()))?;
        Ok(entries.iter().map(|entry| entry.text()).collect())
    }

    fn cool(&self) {
        self.bench.cool();
    }

    fn check_dirs(&self) -> Checked {
        let dir = find(self.bench, WORK_DIR)?;
        ensure(dir.ino() == self.dir.ino(), || format!("/{WORK_DIR} is another directory"))?;
        let entries = self.bench.list(&self.bench.root())?;
        let mut names: Vec<String> = entries.iter().map(|entry| entry.text()).collect();
        names.sort_unstable();
        ensure_eq("the entries of the root", names, vec!["a".to_owned(), "s".to_owned()])
    }
}

impl TreeFile for OpenFile<'_> {
    fn read_all(&self) -> Checked<Vec<u8>> {
        OpenFile::read_all(self)
    }

    fn write(&self, at: u64, bytes: &[u8]) -> Checked {
        OpenFile::write(self, at, bytes)
    }

    fn truncate(&self, size: u64) -> Checked {
        self.bench().truncate(self.inode(), size)
    }

    fn stat(&self) -> Checked<FileStat> {
        let attr = self.bench().attr(self.inode())?;
        Ok(FileStat { ino: self.inode().ino(), nlink: attr.nlink.into(), size: attr.size })
    }
}
