//! Snapshots of the whole tree, to see that a failed call has changed nothing.

use std::collections::BTreeMap;

use corewalk::{Errno, FileKind, InodeRef, Name};

use super::Bench;
use crate::answer::{Answer, Checked, Stop, ensure};

const FILES_MAX: usize = 2_000;

#[derive(Clone, Debug, PartialEq, Eq)]
struct State {
    ino: u64,
    mode: u32,
    nlink: u32,
    owner: (u32, u32),
    bytes: Vec<u8>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Snapshot(BTreeMap<String, State>);

impl Bench {
    /// Returns the state of each file in the tree. Evicts the cache first, so that the back end
    /// answers.
    pub(crate) fn snapshot(&self) -> Checked<Snapshot> {
        self.cool();
        let mut files = BTreeMap::new();
        let mut dirs = vec![(String::new(), self.root())];
        while let Some((path, dir)) = dirs.pop() {
            for entry in self.list(&dir)? {
                let path = format!("{path}/{}", entry.text());
                let found =
                    Name::new(&entry.name).and_then(|name| self.vfs.lookup(&self.cred, &dir, name));
                let inode = found.must(&format!("lookup of the entry {path}"))?;
                files.insert(path.clone(), self.state(&inode)?);
                ensure(files.len() <= FILES_MAX, || "the tree is too large".to_owned())?;
                if inode.kind() == FileKind::Directory {
                    dirs.push((path, inode));
                }
            }
        }
        Ok(Snapshot(files))
    }

    fn state(&self, inode: &InodeRef<'_>) -> Checked<State> {
        let attr = self.attr(inode)?;
        let bytes = match inode.kind() {
            FileKind::Regular => self.open(inode)?.read_all()?,
            FileKind::Symlink => self.vfs.readlink(inode).must("readlink")?,
            _ => Vec::new(),
        };
        let (ino, mode, nlink) = (attr.ino, attr.mode, attr.nlink);
        // If the back end has no inode numbers, the cache makes up new ones after each eviction.
        let ino = if self.has_numbers()? { ino } else { 0 };
        Ok(State { ino, mode, nlink, owner: (attr.uid, attr.gid), bytes })
    }

    pub(crate) fn has_numbers(&self) -> Checked<bool> {
        self.fs.root().must("root").map(|attr| attr.ino != 0)
    }

    /// Checks that `call` fails with an error of `wanted`, and leaves the whole tree unchanged.
    pub(crate) fn fails<T>(
        &self,
        what: &str,
        wanted: &[Errno],
        call: impl FnOnce() -> Result<T, Errno>,
    ) -> Checked {
        let before = self.snapshot()?;
        self.cool();
        let refused = call().map(drop).must_fail(what, wanted);
        let changed = before.difference(&self.snapshot()?);
        match (refused, changed) {
            (Ok(()), None) => Ok(()),
            (Ok(()), Some(change)) => Stop::failed(format!("the failed {what} changed {change}")),
            (Err(stop), None) => Err(stop),
            (Err(stop), Some(change)) => Err(stop.and(&format!("it changed {change}"))),
        }
    }
}

impl Snapshot {
    fn difference(&self, other: &Snapshot) -> Option<String> {
        let paths = self.0.keys().chain(other.0.keys());
        let differs = |path: &&String| self.0.get(*path) != other.0.get(*path);
        let path = paths.into_iter().find(differs)?;
        let text = |snapshot: &Snapshot| match snapshot.0.get(path) {
            Some(State { ino, mode, nlink, owner, bytes }) => {
                let (uid, gid, len) = (owner.0, owner.1, bytes.len());
                format!("inode {ino}, mode {mode:o}, links {nlink}, {uid}:{gid}, {len} bytes")
            }
            None => "absent".to_owned(),
        };
        Some(format!("{path}: ({}) became ({})", text(self), text(other)))
    }
}
