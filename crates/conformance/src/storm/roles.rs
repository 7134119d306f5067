//! The turns of the threads of a storm.

use std::collections::BTreeMap;

use corewalk::RenameMode;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_base::primitives::thread;

use super::{FIXED, ROLES, Storm, Tree, TreeFile, fixed};
use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, ensure_eq, ensure_names};
use crate::checks::tree::pattern;

/// The files of one thread that must exist at the end, with their contents.
pub(super) type Kept = BTreeMap<String, Vec<u8>>;

const VERSION_BYTES: u64 = 9_000;
const WRITER_BYTES: usize = 100_000;
const MADE_PER_KEPT: u64 = 8;
/// Each maker keeps at most this number of files, so that a long storm does not fill the directory.
const KEPT_MAX: u64 = 64;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Role {
    Mover,
    Publisher,
    Maker,
    Writer,
    Reader,
}

pub(super) struct Worker<'s, 't, T: Tree> {
    storm: &'s Storm<'t, T>,
    number: usize,
    role: Role,
    rng: fastrand::Rng,
    kept: Kept,
    /// The file `fixed0`, which a reader holds open all the time.
    held: Option<T::File<'t>>,
}

/// Returns the content of a published file: the version number and some bytes. They depend on the
/// version and on the publisher, so that a reader notices wrong bytes.
fn version_content(publisher: usize, version: u64) -> Vec<u8> {
    let len = (version * 977 + 13 * publisher as u64) % VERSION_BYTES;
    let body = pattern(version << 8 | publisher as u64, len as usize);
    [&version.to_le_bytes(), body.as_slice()].concat()
}

impl<'s, 't, T: Tree> Worker<'s, 't, T> {
    pub(super) fn new(storm: &'s Storm<'t, T>, number: usize) -> Worker<'s, 't, T> {
        // Only one thread renames the parent directories. A second one could fail, because the
        // first has just moved its source away.
        let role = match number {
            0 => Role::Mover,
            _ => [Role::Publisher, Role::Maker, Role::Writer, Role::Reader]
                [(number - 1) % (ROLES - 1)],
        };
        let rng = storm.settings.rng(1_000 + number as u64);
        Worker { storm, number, role, rng, kept: Kept::new(), held: None }
    }

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
        // With few processors, one thread would otherwise make hundreds of turns before the next
        // one runs.
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

    fn move_dir(&self, from: &str, to: &str, mode: RenameMode) -> Checked {
        let moved = self.storm.tree.move_dir(from, to, mode);
        moved.must(&format!("rename of {from:?} to {to:?}"))
    }

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Checked {
        let renamed = self.storm.tree.rename(from, to, mode);
        renamed.must(&format!("rename of {from:?} to {to:?}"))
    }

    fn unlink(&self, name: &str) -> Checked {
        self.storm.tree.unlink(name).must(&format!("remove of {name:?}"))
    }

    fn free_mode(&mut self) -> RenameMode {
        if self.rng.bool() { RenameMode::Replace } else { self.storm.to_free_name }
    }

    fn move_above(&mut self) -> Checked {
        let (from, to) = match self.rng.u32(..4) {
            0 => ("a", "b"),
            1 => ("a/d", "x"),
            2 => ("a", "s/a"),
            _ if self.storm.has_exchange => {
                self.move_dir("a", "s", RenameMode::Exchange)?;
                return self.move_dir("a", "s", RenameMode::Exchange);
            }
            _ => return Ok(()),
        };
        let mode = self.free_mode();
        self.move_dir(from, to, mode)?;
        self.move_dir(to, from, mode)
    }

    fn new_file(&self, name: &str, content: &[u8]) -> Checked<T::File<'t>> {
        let file = self.storm.tree.create(name)?;
        file.write(0, content)?;
        Ok(file)
    }

    fn publish(&mut self, version: u64) -> Checked {
        let (storm, number) = (self.storm, self.number);
        let content = version_content(number, version);
        let (new, current) = (format!("new{number}"), format!("current{number}"));
        drop(self.new_file(&new, &content)?);
        self.rename(&new, &current, RenameMode::Replace)?;
        // ORDERING: Relaxed. `read_version` expects the loaded version or a later one in the file.
        // With an outdated number it may miss a bug, but it never reports a false one.
        storm.published[number].store(version, Ordering::Relaxed);
        self.kept.insert(current, content);
        Ok(())
    }

    fn make(&mut self, turn: u64) -> Checked {
        let tree = self.storm.tree;
        let name = format!("made{}-{turn}", self.number);
        let content = [name.as_bytes(), &pattern(turn, self.rng.usize(..3_000))].concat();
        let made = self.new_file(&name, &content)?;
        let file = tree.open(&name)?;
        let is_same = made.stat()?.ino == file.stat()?.ino;
        ensure(is_same, || format!("lookup of {name:?} found another file"))?;
        drop(made);
        if !turn.is_multiple_of(MADE_PER_KEPT) {
            self.unlink(&name)?;
            if T::HAS_NO_LINKS_WHEN_REMOVED {
                ensure_eq("the links of a removed file", file.stat()?.nlink, 0)?;
            }
        } else {
            self.keep(turn, &name, &content, &file)?;
        }
        ensure_bytes(&format!("the open file {name:?}"), &file.read_all()?, &content)
    }

    /// Renames or links the new file `name` to the name under which it stays. Removes an old file,
    /// so that at most [`KEPT_MAX`] files stay.
    fn keep(&mut self, turn: u64, name: &str, content: &[u8], file: &T::File<'t>) -> Checked {
        let kept_name = |turn: u64| format!("kept{}-{turn}", self.number);
        let (other, old) = (kept_name(turn), turn.checked_sub(KEPT_MAX * MADE_PER_KEPT));
        let old = old.map(kept_name);
        if self.storm.has_links && self.rng.bool() {
            self.storm.tree.link(name, &other).must("link")?;
            ensure_eq("the links of a linked file", file.stat()?.nlink, 2)?;
            self.unlink(name)?;
        } else {
            let mode = self.free_mode();
            self.rename(name, &other, mode)?;
        }
        ensure_eq("the links of a kept file", file.stat()?.nlink, 1)?;
        self.kept.insert(other, content.to_vec());
        if let Some(old) = old {
            self.unlink(&old)?;
            self.kept.remove(&old);
        }
        Ok(())
    }

    fn write(&mut self, turn: u64) -> Checked {
        let name = format!("written{}", self.number);
        if turn == 0 {
            drop(self.new_file(&name, b"")?);
            self.kept.insert(name.clone(), Vec::new());
        }
        let file = self.storm.tree.open(&name)?;
        let model = self.kept.get_mut(&name).expect("the first turn has made the file");
        let at = self.rng.usize(..WRITER_BYTES);
        match self.rng.u32(..4) {
            0 => {
                file.truncate(at as u64)?;
                model.resize(at, 0);
            }
            1 => ensure_bytes(&format!("the file {name:?}"), &file.read_all()?, model)?,
            _ => {
                let bytes = pattern(turn, self.rng.usize(1..6_000));
                file.write(at as u64, &bytes)?;
                model.resize(model.len().max(at + bytes.len()), 0);
                model[at..at + bytes.len()].copy_from_slice(&bytes);
            }
        }
        ensure_eq(&format!("the size of {name:?}"), file.stat()?.size, model.len() as u64)
    }

    fn read(&mut self, turn: u64) -> Checked {
        let tree = self.storm.tree;
        if turn % 64 == 63 {
            tree.cool();
        }
        if turn % 8 == 7 {
            let page = self.rng.usize(1..40);
            self.lists_fixed(page)?;
        }
        if self.held.is_none() {
            self.held = Some(tree.open("fixed0")?);
        }
        if let Some(held) = &self.held {
            ensure_bytes("the file that was open before", &held.read_all()?, &fixed(0))?;
        }
        let number = self.rng.u64(..FIXED);
        let name = format!("fixed{number}");
        let found = tree.open(&name)?.read_all()?;
        ensure_bytes(&format!("the file {name:?}"), &found, &fixed(number))?;
        let publishers: Vec<usize> = (1..self.storm.published.len()).step_by(ROLES - 1).collect();
        let publisher = publishers[self.rng.usize(..publishers.len())];
        self.read_version(publisher)
    }

    /// Reads the published file of `publisher`, whose content must be complete. Its version must be
    /// at least the last one that was published before the lookup.
    fn read_version(&self, publisher: usize) -> Checked {
        // ORDERING: Relaxed. An older number than the one that `publish` stored last only makes the
        // check weaker.
        let before = self.storm.published[publisher].load(Ordering::Relaxed);
        if before == 0 {
            return Ok(());
        }
        let name = format!("current{publisher}");
        let found = self.storm.tree.open(&name)?.read_all()?;
        let Some((version, _)) = found.split_first_chunk() else {
            return Stop::failed(format!("{name:?} has {} bytes", found.len()));
        };
        let version = u64::from_le_bytes(*version);
        ensure(version >= before, || format!("{name:?} has version {version} after {before}"))?;
        let wanted = version_content(publisher, version);
        ensure_bytes(&format!("version {version} of {name:?}"), &found, &wanted)
    }

    /// Checks that a listing has each file that no thread changes exactly once.
    fn lists_fixed(&self, page: usize) -> Checked {
        let mut names = self.storm.tree.list(page)?;
        names.retain(|name| name.starts_with("fixed"));
        names.sort_unstable();
        let mut wanted: Vec<String> = (0..FIXED).map(|number| format!("fixed{number}")).collect();
        wanted.sort_unstable();
        ensure_names("the sorted listing of the files that stay", &names, &wanted)
    }
}
