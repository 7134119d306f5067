//! The reference model: a map of names, which gives the expected answer of each operation.
//!
//! The checker of recorded histories uses the model as the sequential specification. Property tests
//! compare random operations on the model and on a namespace.

use std::collections::BTreeMap;

use corewalk::{
    Cred, Errno, FsStruct, InodeRef, Make, Name, Removal, RenameMode, Vfs, WalkFlags, attr::mode,
};
use corewalk_testkit::linearize::Spec;

/// All directories of the model: the root, and two directories that exist at the start. These two
/// may be renamed, moved and removed.
pub(crate) const DIRS: [u32; 3] = [0, 1, 2];
pub(crate) const NAMES: [&str; 4] =
    ["a", "b", "p", "a-name-of-more-than-forty-bytes-so-that-it-is-long"];

/// An operation on the model's tree. Each file and directory has a number (`dir` or `tag`), which
/// is also the user ID of its owner. No operation makes a removed directory again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Op {
    Lookup { dir: u32, name: usize },
    Walk { names: [usize; 2] },
    Create { dir: u32, name: usize, tag: u32 },
    Unlink { dir: u32, name: usize },
    Rmdir { dir: u32, name: usize },
    Rename { from: (u32, usize), to: (u32, usize), mode: RenameMode },
    Path { dir: u32 },
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Answer {
    Done,
    Tag(u32),
    Path(Vec<u8>),
    Error(Errno),
}

#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Model {
    names: BTreeMap<(u32, usize), u32>,
}

impl Model {
    pub(crate) fn new() -> Model {
        Model { names: BTreeMap::from([((0, 2), 1), ((0, 3), 2)]) }
    }

    fn place(&self, tag: u32) -> Option<(u32, usize)> {
        self.names.iter().find(|(_, at)| **at == tag).map(|(place, _)| *place)
    }

    fn is_dir(tag: u32) -> bool {
        DIRS.contains(&tag)
    }

    fn is_below(&self, tag: u32, ancestor: u32) -> bool {
        let mut at = tag;
        loop {
            if at == ancestor {
                return true;
            }
            match self.place(at) {
                Some((parent, _)) => at = parent,
                None => return false,
            }
        }
    }

    fn is_empty(&self, dir: u32) -> bool {
        self.names.range((dir, 0)..(dir + 1, 0)).next().is_none()
    }

    fn lookup(&self, dir: u32, name: usize) -> Result<u32, Errno> {
        if !Self::is_dir(dir) {
            return Err(Errno::NOTDIR);
        }
        self.names.get(&(dir, name)).copied().ok_or(Errno::NOENT)
    }

    fn rename(
        &mut self,
        from: (u32, usize),
        to: (u32, usize),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let source = self.lookup(from.0, from.1)?;
        let target = self.names.get(&to).copied();
        match (mode, target) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EXIST),
            (RenameMode::Exchange, None) => return Err(Errno::NOENT),
            _ if target == Some(source) => return Ok(()),
            _ => {}
        }
        if Self::is_dir(source) && self.is_below(to.0, source) {
            return Err(Errno::INVAL);
        }
        if let Some(target) = target {
            if mode == RenameMode::Exchange {
                if Self::is_dir(target) && self.is_below(from.0, target) {
                    return Err(Errno::INVAL);
                }
                self.names.insert(from, target);
                self.names.insert(to, source);
                return Ok(());
            }
            if Self::is_dir(target) && self.is_below(from.0, target) {
                return Err(Errno::NOTEMPTY);
            }
            match (Self::is_dir(source), Self::is_dir(target)) {
                (true, false) => return Err(Errno::NOTDIR),
                (false, true) => return Err(Errno::ISDIR),
                (true, true) if !self.is_empty(target) => return Err(Errno::NOTEMPTY),
                _ => {}
            }
        }
        self.names.remove(&from);
        self.names.insert(to, source);
        Ok(())
    }

    fn path(&self, dir: u32) -> Result<Vec<u8>, Errno> {
        let mut parts = Vec::new();
        let mut at = dir;
        while at != 0 {
            let (parent, name) = self.place(at).ok_or(Errno::NOENT)?;
            parts.push(NAMES[name]);
            at = parent;
        }
        parts.reverse();
        Ok(format!("/{}", parts.join("/")).into_bytes())
    }

    fn run(&mut self, op: &Op) -> Result<Answer, Errno> {
        match *op {
            Op::Lookup { dir, name } => {
                self.must_exist(dir)?;
                self.lookup(dir, name).map(Answer::Tag)
            }
            Op::Walk { names } => {
                let dir = self.lookup(0, names[0])?;
                self.lookup(dir, names[1]).map(Answer::Tag)
            }
            Op::Create { dir, name, tag } => {
                self.must_exist(dir)?;
                if self.names.contains_key(&(dir, name)) {
                    return Err(Errno::EXIST);
                }
                self.names.insert((dir, name), tag);
                Ok(Answer::Done)
            }
            Op::Unlink { dir, name } => {
                self.must_exist(dir)?;
                if Self::is_dir(self.lookup(dir, name)?) {
                    return Err(Errno::ISDIR);
                }
                self.names.remove(&(dir, name));
                Ok(Answer::Done)
            }
            Op::Rmdir { dir, name } => {
                self.must_exist(dir)?;
                let found = self.lookup(dir, name)?;
                if !Self::is_dir(found) {
                    return Err(Errno::NOTDIR);
                }
                if !self.is_empty(found) {
                    return Err(Errno::NOTEMPTY);
                }
                self.names.remove(&(dir, name));
                Ok(Answer::Done)
            }
            Op::Rename { from, to, mode } => {
                self.must_exist(from.0)?;
                self.must_exist(to.0)?;
                self.rename(from, to, mode).map(|()| Answer::Done)
            }
            Op::Path { dir } => self.path(dir).map(Answer::Path),
        }
    }

    fn must_exist(&self, dir: u32) -> Result<(), Errno> {
        if dir == 0 || self.place(dir).is_some() { Ok(()) } else { Err(Errno::NOENT) }
    }
}

impl Spec for Model {
    type Op = Op;
    type Ret = Answer;

    fn apply(&mut self, op: &Op) -> Answer {
        self.run(op).unwrap_or_else(Answer::Error)
    }
}

pub(crate) struct World<'v> {
    vfs: &'v Vfs,
    at: FsStruct<'v>,
    dirs: Vec<InodeRef<'v>>,
}

impl<'v> World<'v> {
    pub(crate) fn new(vfs: &'v Vfs) -> World<'v> {
        let root = vfs.root();
        let mut dirs = vec![root.clone()];
        for (tag, name) in [(1, 2), (2, 3)] {
            let what = Make::new(mode::S_IFDIR | 0o755, tag, 0);
            let name = Name::new(NAMES[name].as_bytes()).unwrap();
            dirs.push(vfs.make(&Cred::root(), &root, name, what).unwrap().0);
        }
        World { vfs, at: FsStruct { root: vfs.root_path(), cwd: vfs.root_path() }, dirs }
    }

    fn tag(&self, inode: &InodeRef<'_>) -> Result<Answer, Errno> {
        Ok(Answer::Tag(self.vfs.getattr(inode)?.uid))
    }

    pub(crate) fn apply(&self, op: &Op) -> Answer {
        let cred = Cred::root();
        let dir = |tag: u32| &self.dirs[tag as usize];
        let name = |index: usize| Name::new(NAMES[index].as_bytes()).unwrap();
        let result = match op {
            Op::Lookup { dir: at, name: of } => {
                self.vfs.lookup(&cred, dir(*at), name(*of)).and_then(|found| self.tag(&found))
            }
            Op::Walk { names } => {
                let path = format!("/{}/{}", NAMES[names[0]], NAMES[names[1]]);
                self.vfs
                    .walk(&cred, &self.at, path.as_bytes(), WalkFlags::FOLLOW)
                    .and_then(|found| self.tag(&found.inode()))
            }
            Op::Create { dir: at, name: of, tag } => {
                let what = Make::new(mode::S_IFREG | 0o644, *tag, 0);
                self.vfs.make(&cred, dir(*at), name(*of), what).map(|_| Answer::Done)
            }
            Op::Unlink { dir: at, name: of } => {
                self.vfs.remove(&cred, dir(*at), name(*of), Removal::Unlink).map(|()| Answer::Done)
            }
            Op::Rmdir { dir: at, name: of } => {
                self.vfs.remove(&cred, dir(*at), name(*of), Removal::Rmdir).map(|()| Answer::Done)
            }
            Op::Rename { from, to, mode } => self
                .vfs
                .rename(&cred, (dir(from.0), name(from.1)), (dir(to.0), name(to.1)), *mode)
                .map(|()| Answer::Done),
            Op::Path { dir: of } => dir(*of).path().map(Answer::Path),
        };
        result.unwrap_or_else(Answer::Error)
    }
}
