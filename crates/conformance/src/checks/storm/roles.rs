//! The turns of the threads of a storm.

use std::collections::BTreeMap;

use corewalk::attr::mode::S_IFREG;
use corewalk::{InodeRef, RenameMode};
use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::thread;

use super::{FIXED, ROLES, Storm, fixed};
use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, ensure_eq, ensure_names};
use crate::bench::{Bench, name};
use crate::checks::tree::pattern;

/// The names and contents of the files that must exist when the threads of the stress test have
/// ended.
pub(super) type Kept = BTreeMap<String, Vec<u8>>;

/// Limits in bytes. A file of a publisher thread has less than `VERSION_BYTES` bytes after its
/// version number. A writer thread writes at offsets below `WRITER_BYTES`.
const VERSION_BYTES: u64 = 9_000;
const WRITER_BYTES: usize = 100_000;
/// Of this many files of a maker, one is kept.
const MADE_PER_KEPT: u64 = 8;

/// The work of a thread.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Mover,
    Publisher,
    Maker,
    Writer,
    Reader,
}

/// A thread of a storm.
pub(super) struct Worker<'s, 'b> {
    storm: &'s Storm<'b>,
    number: usize,
    role: Role,
    rng: fastrand::Rng,
    kept: Kept,
}

/// Returns the content of a version of a publisher's file: the version number, and bytes that
/// depend on the version and on the publisher (a thread).
fn version_content(publisher: usize, version: u64) -> Vec<u8> {
    let len = (version * 977 + 13 * publisher as u64) % VERSION_BYTES;
    let body = pattern(version << 8 | publisher as u64, len as usize);
    [&version.to_le_bytes(), body.as_slice()].concat()
}

impl<'s, 'b> Worker<'s, 'b> {
    pub(super) fn new(storm: &'s Storm<'b>, number: usize) -> Worker<'s, 'b> {
        // All threads work in one directory. Only thread 0 renames the directories above it. If a
        // second thread renamed them too, a rename could fail, because the other thread has just
        // moved its source away.
        let role = match number {
            0 => Role::Mover,
            _ => [Role::Publisher, Role::Maker, Role::Writer, Role::Reader]
                [(number - 1) % (ROLES - 1)],
        };
        let rng = storm.bench.rng(1_000 + number as u64);
        Worker { storm, number, role, rng, kept: Kept::new() }
    }

    /// Returns about how many calls of the back end this thread makes in one round of its loop. The
    /// number depends on the thread's role, such as writer or reader.
    pub(super) fn calls_per_turn(&self) -> u64 {
        match self.role {
            Role::Mover => 2,
            Role::Publisher => 5,
            Role::Maker | Role::Reader => 7,
            Role::Writer => 4,
        }
    }

    pub(super) fn into_kept(self) -> Kept {
        self.kept
    }

    pub(super) fn turn(&mut self, turn: u64) -> Checked {
        // Let other threads run. Otherwise, on a machine with few processors, one thread would run
        // hundreds of rounds of its loop before the next thread runs.
        thread::yield_now();
        let done = match self.role {
            Role::Mover => self.move_above(),
            Role::Publisher => self.publish(turn + 1),
            Role::Maker => self.make(turn),
            Role::Writer => self.write(turn),
            Role::Reader => self.read(turn),
        };
        done.map_err(|stop| stop.at(&format!("{:?}", self.role)))
    }

    fn rename(
        &self,
        from: (&InodeRef<'_>, &str),
        to: (&InodeRef<'_>, &str),
        mode: RenameMode,
    ) -> Checked {
        let bench = self.storm.bench;
        let (old, new) = ((from.0, name(from.1)), (to.0, name(to.1)));
        let renamed = bench.vfs.rename(&bench.cred, old, new, mode);
        renamed.must(&format!("rename of {:?} to {:?}", from.1, to.1))
    }

    /// Renames a directory above, and puts it back.
    fn move_above(&mut self) -> Checked {
        let (bench, root) = (self.storm.bench, self.storm.bench.root());
        let replace = RenameMode::Replace;
        match self.rng.u32(..4) {
            0 => {
                self.rename((&root, "a"), (&root, "b"), replace)?;
                self.rename((&root, "b"), (&root, "a"), replace)
            }
            1 => {
                let a = bench.find(&root, "a")?;
                self.rename((&a, "d"), (&root, "x"), replace)?;
                self.rename((&root, "x"), (&a, "d"), replace)
            }
            2 => {
                let s = bench.find(&root, "s")?;
                self.rename((&root, "a"), (&s, "a"), replace)?;
                self.rename((&s, "a"), (&root, "a"), replace)
            }
            _ if self.storm.has_exchange => {
                self.rename((&root, "a"), (&root, "s"), RenameMode::Exchange)?;
                self.rename((&root, "a"), (&root, "s"), RenameMode::Exchange)
            }
            _ => Ok(()),
        }
    }

    /// Makes a file in the directory in which all threads of the stress test work, and writes its
    /// content.
    fn new_file(&self, text: &str, content: &[u8]) -> Checked<InodeRef<'b>> {
        let (bench, dir) = (self.storm.bench, &self.storm.dir);
        let made = bench.make(dir, text, bench.new_file(S_IFREG | 0o644));
        let file = made.must(&format!("make of {text:?}"))?;
        bench.open(&file)?.write(0, content)?;
        Ok(file)
    }

    fn publish(&mut self, version: u64) -> Checked {
        let (storm, number) = (self.storm, self.number);
        let content = version_content(number, version);
        let (new, current) = (format!("new{number}"), format!("current{number}"));
        drop(self.new_file(&new, &content)?);
        self.rename((&storm.dir, &new), (&storm.dir, &current), RenameMode::Replace)?;
        // ORDERING: Relaxed. A reader loads this version number, and then expects to find this
        // version or a later one in the file. If it loads an older number, it also accepts older
        // versions, so it may miss a bug, but reports none in vain.
        storm.published[number].store(version, Ordering::Relaxed);
        self.kept.insert(current, content);
        Ok(())
    }

    fn make(&mut self, turn: u64) -> Checked {
        let (bench, dir) = (self.storm.bench, &self.storm.dir);
        let text = format!("made{}-{turn}", self.number);
        let content = [text.as_bytes(), &pattern(turn, self.rng.usize(..3_000))].concat();
        let file = self.new_file(&text, &content)?;
        let found = bench.find(dir, &text)?;
        ensure(found.ino() == file.ino(), || format!("lookup of {text:?} found another file"))?;
        let open = bench.open(&file)?;
        if !turn.is_multiple_of(MADE_PER_KEPT) {
            bench.unlink(dir, &text).must(&format!("remove of {text:?}"))?;
            ensure_eq("the links of a removed file", bench.attr(&file)?.nlink, 0)?;
        } else {
            let other = format!("kept{}-{turn}", self.number);
            if self.storm.has_links && self.rng.bool() {
                let linked = bench.vfs.link(&bench.cred, &file, dir, name(&other));
                ensure_eq("the links of a linked file", linked.must("link")?.nlink, 2)?;
                bench.unlink(dir, &text).must(&format!("remove of {text:?}"))?;
            } else {
                // Rename to the name `other`, which no file has. For such a free name the cache
                // first calls the back end with `NoReplace`. If the back end does not support that
                // mode, the cache calls it with `Replace`.
                self.rename((dir, &text), (dir, &other), RenameMode::Replace)?;
            }
            ensure_eq("the links of a kept file", bench.attr(&file)?.nlink, 1)?;
            self.kept.insert(other, content.clone());
        }
        ensure_bytes(&format!("the open file {text:?}"), &open.read_all()?, &content)
    }

    fn write(&mut self, turn: u64) -> Checked {
        let bench = self.storm.bench;
        let text = format!("written{}", self.number);
        if turn == 0 {
            drop(self.new_file(&text, b"")?);
            self.kept.insert(text.clone(), Vec::new());
        }
        let file = bench.find(&self.storm.dir, &text)?;
        let open = bench.open(&file)?;
        let model = self.kept.get_mut(&text).expect("the first turn has made the file");
        let at = self.rng.usize(..WRITER_BYTES);
        match self.rng.u32(..4) {
            0 => {
                bench.truncate(&file, at as u64)?;
                model.resize(at, 0);
            }
            1 => ensure_bytes(&format!("the file {text:?}"), &open.read_all()?, model)?,
            _ => {
                let bytes = pattern(turn, self.rng.usize(1..6_000));
                open.write(at as u64, &bytes)?;
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        ensure_eq(&format!("the size of {text:?}"), bench.attr(&file)?.size, model.len() as u64)
    }

    fn read(&mut self, turn: u64) -> Checked {
        let (bench, dir) = (self.storm.bench, &self.storm.dir);
        if turn % 64 == 63 {
            bench.cool();
        }
        if turn % 8 == 7 {
            let page = self.rng.usize(1..40);
            lists_fixed(bench, dir, page)?;
        }
        let number = self.rng.u64(..FIXED);
        let text = format!("fixed{number}");
        let file = bench.find(dir, &text)?;
        let found = bench.open(&file)?.read_all()?;
        ensure_bytes(&format!("the file {text:?}"), &found, &fixed(number))?;
        let publishers: Vec<usize> = (1..self.storm.published.len()).step_by(ROLES - 1).collect();
        let publisher = publishers[self.rng.usize(..publishers.len())];
        self.read_version(publisher)
    }

    /// Reads a file that a publisher thread replaces again and again by a new version. The content
    /// must be complete. The version must not be older than the last one that was published before
    /// this lookup.
    fn read_version(&self, publisher: usize) -> Checked {
        let (bench, dir) = (self.storm.bench, &self.storm.dir);
        // ORDERING: Relaxed. An older number only makes the check weaker.
        let before = self.storm.published[publisher].load(Ordering::Relaxed);
        if before == 0 {
            return Ok(());
        }
        let text = format!("current{publisher}");
        let found = bench.open(&bench.find(dir, &text)?)?.read_all()?;
        let Some((version, _)) = found.split_first_chunk() else {
            return Stop::failed(format!("{text:?} has {} bytes", found.len()));
        };
        let version = u64::from_le_bytes(*version);
        ensure(version >= before, || format!("{text:?} has version {version} after {before}"))?;
        let wanted = version_content(publisher, version);
        ensure_bytes(&format!("version {version} of {text:?}"), &found, &wanted)
    }
}

/// Lists the directory in which all threads of the stress test work. Each file that no thread
/// changes must be listed exactly once.
fn lists_fixed(bench: &Bench, dir: &InodeRef<'_>, page: usize) -> Checked {
    let entries = bench.list_from(dir, 0, page, &mut |_| Ok(()))?;
    let mut names: Vec<String> = entries.iter().map(|entry| entry.text()).collect();
    names.retain(|name| name.starts_with("fixed"));
    names.sort_unstable();
    let mut wanted: Vec<String> = (0..FIXED).map(|number| format!("fixed{number}")).collect();
    wanted.sort_unstable();
    ensure_names("the sorted listing of the files that stay", &names, &wanted)
}
