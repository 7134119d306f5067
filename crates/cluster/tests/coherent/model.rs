//! A small namespace as a sequential model, and the calls that racing threads make on it.
//!
//! There are four names in two directories. A call learns the inode number of a new inode only from
//! the answer. So the model identifies each inode by its owner (user ID), which the call chooses.

use std::collections::BTreeMap;

use corewalk::{Errno, FileSystem as _, Make, RenameMode, SetAttr};
use corewalk_base::Mutex;
use corewalk_cluster::ClusterFs;
use corewalk_testkit::linearize::Spec;

use crate::fixtures::{dir, file, name};

pub(crate) const NAMES: usize = 4;
const TEXTS: [&str; NAMES] = ["a", "a", "b", "b"];

#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub(crate) struct Space {
    names: [Option<u32>; NAMES],
    /// The mode and the number of links of each inode. The key is the owner of the inode.
    inodes: BTreeMap<u32, (u32, u32)>,
}

#[derive(Clone, Copy, Debug)]
pub(crate) enum Op {
    Create(usize, u32),
    Lookup(usize),
    Remove(usize, u32),
    /// Like `Remove`, but removes the name whichever inode it has. For mounts in the kernel only.
    Unlink(usize),
    /// Like `Rename`, but fails if the second name exists. For mounts in the kernel only. All
    /// failures look like `ENOENT`.
    Move(usize, usize),
    Rename(usize, usize),
    Exchange(usize, usize),
    Link(u32, usize),
    SetMode(u32, u32),
    Get(u32),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ret {
    Done,
    Found(Option<u32>),
    Attr(u32, u32),
    Failed(Errno),
}

impl Space {
    /// Returns a model with the inodes of `owners`. Each inode has one name, which is outside of
    /// the model.
    pub(crate) fn with_inodes(owners: impl Iterator<Item = u32>) -> Space {
        let inodes = owners.map(|owner| (owner, (0o600, 1))).collect();
        Space { inodes, ..Space::default() }
    }

    fn drop_link(&mut self, owner: u32) {
        if let Some(inode) = self.inodes.get_mut(&owner) {
            inode.1 -= 1;
        }
    }

    fn rename(&mut self, from: usize, to: usize) -> Ret {
        let Some(moved) = self.names[from] else { return Ret::Failed(Errno::NOENT) };
        if self.names[to] == Some(moved) {
            return Ret::Done;
        }
        if let Some(old) = self.names[to].replace(moved) {
            self.drop_link(old);
        }
        self.names[from] = None;
        Ret::Done
    }
}

impl Spec for Space {
    type Op = Op;
    type Ret = Ret;

    fn apply(&mut self, op: &Op) -> Ret {
        match *op {
            Op::Create(at, _) if self.names[at].is_some() => Ret::Failed(Errno::EXIST),
            Op::Create(at, owner) => {
                self.names[at] = Some(owner);
                self.inodes.insert(owner, (0o600, 1));
                Ret::Done
            }
            Op::Lookup(at) => Ret::Found(self.names[at]),
            Op::Remove(at, owner) => match self.names[at] {
                None => Ret::Failed(Errno::NOENT),
                Some(found) if found != owner => Ret::Failed(Errno::STALE),
                Some(_) => {
                    self.names[at] = None;
                    self.drop_link(owner);
                    Ret::Done
                }
            },
            Op::Unlink(at) => match self.names[at].take() {
                None => Ret::Failed(Errno::NOENT),
                Some(found) => {
                    self.drop_link(found);
                    Ret::Done
                }
            },
            Op::Rename(from, to) => self.rename(from, to),
            Op::Move(_, to) if self.names[to].is_some() => Ret::Failed(Errno::NOENT),
            Op::Move(from, to) => self.rename(from, to),
            Op::Exchange(one, two) => match (self.names[one], self.names[two]) {
                (Some(_), Some(_)) => {
                    self.names.swap(one, two);
                    Ret::Done
                }
                _ => Ret::Failed(Errno::NOENT),
            },
            Op::Link(_, at) if self.names[at].is_some() => Ret::Failed(Errno::EXIST),
            Op::Link(owner, at) => {
                self.names[at] = Some(owner);
                if let Some(inode) = self.inodes.get_mut(&owner) {
                    inode.1 += 1;
                }
                Ret::Done
            }
            Op::SetMode(owner, mode) => {
                if let Some(inode) = self.inodes.get_mut(&owner) {
                    inode.0 = mode;
                }
                Ret::Done
            }
            Op::Get(owner) => {
                let (mode, links) = self.inodes.get(&owner).copied().unwrap_or_default();
                Ret::Attr(mode, links)
            }
        }
    }
}

#[derive(Debug)]
pub(crate) struct Place {
    pub(crate) dirs: [u64; 2],
    pub(crate) known: Mutex<Vec<(u32, u64)>>,
}

impl Place {
    fn ino(&self, owner: u32) -> u64 {
        let known = self.known.lock();
        known.iter().find(|(it, _)| *it == owner).map_or(0, |(_, ino)| *ino)
    }

    pub(crate) fn call(&self, fs: &ClusterFs, op: Op) -> Ret {
        let at = |number: usize| (dir(self.dirs[number % 2]), name(TEXTS[number]));
        let done = match op {
            Op::Create(number, owner) => {
                let (parent, text) = at(number);
                let made = fs.make(parent, text, &Make::new(0o600, owner, 0));
                made.map(|attr| self.known.lock().push((owner, attr.ino)))
            }
            Op::Lookup(number) => {
                let (parent, text) = at(number);
                return match fs.lookup(parent, text) {
                    Ok(attr) => Ret::Found(Some(attr.uid)),
                    Err(Errno::NOENT) => Ret::Found(None),
                    Err(errno) => Ret::Failed(errno),
                };
            }
            Op::Remove(number, owner) => {
                let (parent, text) = at(number);
                fs.remove(parent, text, file(self.ino(owner)))
            }
            Op::Unlink(_) | Op::Move(..) => unreachable!("only through a mount in the kernel"),
            Op::Rename(from, to) => fs.rename(at(from), at(to), RenameMode::Replace),
            Op::Exchange(one, two) => fs.rename(at(one), at(two), RenameMode::Exchange),
            Op::Link(owner, number) => {
                let (parent, text) = at(number);
                fs.link(file(self.ino(owner)), parent, text).map(drop)
            }
            Op::SetMode(owner, mode) => {
                fs.setattr(file(self.ino(owner)), &SetAttr::default().with_mode(mode)).map(drop)
            }
            Op::Get(owner) => {
                return match fs.getattr(file(self.ino(owner))) {
                    Ok(attr) => Ret::Attr(attr.mode & 0o777, attr.nlink),
                    Err(errno) => Ret::Failed(errno),
                };
            }
        };
        done.map_or_else(Ret::Failed, |()| Ret::Done)
    }
}
