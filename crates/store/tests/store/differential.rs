//! Compares the store with tmpfs: random operations must have equal results, including the errno.
//!
//! Inode numbers differ, so a test keeps both numbers of each inode. After a run, and again after a
//! remount, it compares whole trees: names, attributes, data and extended attributes.

use std::collections::{BTreeMap, HashMap};
use std::ops::ControlFlow;

use corewalk::acl::{Acl, Entry, Tag};
use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    AclKind, Attr, Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, RenameMode, Seek,
    SetAttr, SetTime, Timespec, XattrMode,
};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

use crate::memory::{Disks, quiet};

#[derive(Clone, Copy, Debug)]
struct Both {
    store: u64,
    tmpfs: u64,
    kind: FileKind,
}

impl Both {
    fn in_store(self) -> Node<'static> {
        Node::detached(self.store, self.kind)
    }

    fn in_tmpfs(self) -> Node<'static> {
        Node::detached(self.tmpfs, self.kind)
    }
}

fn shown(attr: &Attr) -> (u32, u32, u32, u32, u64, u64, u64, bool) {
    let Attr { mode, nlink, uid, gid, rdev, size, blocks, has_acl, .. } = *attr;
    (mode, nlink, uid, gid, rdev, size, blocks, has_acl)
}

pub(crate) type Tree = BTreeMap<Vec<u8>, Leaf>;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Leaf {
    shown: (u32, u32, u32, u32, u64, u64, u64, bool),
    pub(crate) bytes: Vec<u8>,
    data: Vec<(u64, u64)>,
    pub(crate) xattrs: Vec<(Vec<u8>, Vec<u8>)>,
    acls: [Option<Acl>; 2],
}

impl Leaf {
    pub(crate) fn with_bytes(&self, bytes: &[u8]) -> Leaf {
        Leaf { bytes: bytes.to_vec(), ..self.clone() }
    }
}

pub(crate) fn tree(fs: &dyn FileSystem) -> Tree {
    let mut tree = Tree::new();
    collect(fs, fs.root().unwrap(), Vec::new(), &mut tree);
    tree
}

pub(crate) fn tree_of(fs: &dyn FileSystem, dir: Node<'_>) -> Tree {
    let mut tree = Tree::new();
    collect(fs, fs.getattr(dir).unwrap(), Vec::new(), &mut tree);
    tree
}

fn collect(fs: &dyn FileSystem, attr: Attr, path: Vec<u8>, tree: &mut Tree) {
    let node = Node::detached(attr.ino, attr.kind());
    let bytes = match attr.kind() {
        FileKind::Regular => {
            let mut bytes = vec![0xee; attr.size as usize];
            assert_eq!(fs.read(node, 0, &mut bytes), Ok(bytes.len()));
            bytes
        }
        FileKind::Symlink => fs.readlink(node).unwrap(),
        _ => Vec::new(),
    };
    let names = fs.listxattr(node).unwrap();
    let names = names.split(|&byte| byte == 0).filter(|name| !name.is_empty());
    let xattrs = names.map(|n| (n.to_vec(), fs.getxattr(node, n).unwrap())).collect();
    let acls = [AclKind::Access, AclKind::Default].map(|kind| fs.get_acl(node, kind).unwrap());
    let data = if attr.kind() == FileKind::Regular { data_of(fs, node) } else { Vec::new() };
    let leaf = Leaf { shown: shown(&attr), bytes, data, xattrs, acls };
    tree.insert(path.clone(), leaf);
    if attr.is_dir() {
        for (name, _) in listing(fs, node, 3) {
            let child = fs.lookup(node, Name::new(&name).unwrap()).unwrap();
            let path = [&path[..], b"/", &name].concat();
            collect(fs, child, path, tree);
        }
    }
}

fn data_of(fs: &dyn FileSystem, node: Node<'_>) -> Vec<(u64, u64)> {
    let (mut all, mut at) = (Vec::new(), 0);
    while let Ok(from) = fs.seek(node, at, Seek::Data) {
        at = fs.seek(node, from, Seek::Hole).unwrap();
        all.push((from, at));
    }
    all
}

fn listing(fs: &dyn FileSystem, node: Node<'_>, step: usize) -> Vec<(Vec<u8>, FileKind)> {
    let (mut all, mut cookie) = (Vec::new(), 0);
    loop {
        let mut room = step;
        let before = all.len();
        fs.readdir(node, cookie, &mut |entry| {
            if room == 0 {
                return ControlFlow::Break(());
            }
            room -= 1;
            all.push((entry.name.as_bytes().to_vec(), entry.kind));
            assert!(entry.cookie > cookie && entry.cookie < 1 << 62, "cookies ascend");
            cookie = entry.cookie;
            ControlFlow::Continue(())
        })
        .unwrap();
        if all.len() == before {
            all.sort_by(|a, b| a.0.cmp(&b.0));
            assert!(all.windows(2).all(|w| w[0].0 != w[1].0), "duplicate entry");
            return all;
        }
    }
}

struct Run<'a> {
    store: &'a dyn FileSystem,
    tmpfs: &'a Tmpfs,
    rng: Rng,
    dirs: Vec<Both>,
    files: Vec<Both>,
    seen: HashMap<String, u32>,
}

impl Run<'_> {
    fn same<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: &str,
        store: Result<T, Errno>,
        tmpfs: Result<T, Errno>,
    ) -> Option<T> {
        assert_eq!(store, tmpfs, "{what}: store, then tmpfs");
        let result = store.as_ref().err().map_or("ok".to_owned(), |errno| format!("{errno:?}"));
        *self.seen.entry(format!("{what} {result}")).or_default() += 1;
        store.ok()
    }

    fn same_attr(
        &mut self,
        what: &str,
        store: Result<Attr, Errno>,
        tmpfs: Result<Attr, Errno>,
    ) -> Option<Both> {
        let both = store.ok().zip(tmpfs.ok());
        let both = both.map(|(s, t)| Both { store: s.ino, tmpfs: t.ino, kind: s.kind() });
        self.same(what, store.map(|a| shown(&a)), tmpfs.map(|a| shown(&a)))?;
        both
    }

    fn dir(&mut self) -> Both {
        *self.rng.pick(&self.dirs)
    }

    fn file(&mut self) -> Option<Both> {
        (!self.files.is_empty()).then(|| *self.rng.pick(&self.files))
    }

    fn name(&mut self) -> Vec<u8> {
        match self.rng.below(20) {
            0 => vec![b'n'; 255],
            n => format!("name{}", n % 9).into_bytes(),
        }
    }

    fn step(&mut self) {
        match self.rng.below(100) {
            0..20 => self.make(),
            20..30 => self.remove(),
            30..40 => self.rename(),
            40..45 => self.link(),
            45..50 => self.attributes(),
            50..70 => self.content(),
            70..90 => self.xattrs(),
            _ => self.acls(),
        }
    }

    fn make(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let kinds = [mode::S_IFREG, mode::S_IFREG, mode::S_IFDIR, mode::S_IFLNK, mode::S_IFIFO];
        let kind = *self.rng.pick(&kinds);
        let mut what = Make::new(kind | 0o640, 3, 4);
        if kind == mode::S_IFLNK {
            what.target = b"some/target";
        }
        if self.rng.chance(1, 8) {
            what.access_acl = Some(self.acl());
        }
        let name = Name::new(&name).unwrap();
        let (store, tmpfs) = (self.store, self.tmpfs);
        if self.rng.chance(1, 10) {
            let store = store.tmpfile(dir.in_store(), &what);
            let made = self.same_attr("tmpfile", store, tmpfs.tmpfile(dir.in_tmpfs(), &what));
            self.files.extend(made);
            return;
        }
        let store = store.make(dir.in_store(), name, &what);
        let made = self.same_attr("make", store, tmpfs.make(dir.in_tmpfs(), name, &what));
        if let Some(made) = made {
            let is_dir = made.kind == FileKind::Directory;
            if is_dir { &mut self.dirs } else { &mut self.files }.push(made);
        }
    }

    fn lookup(&mut self, dir: Both, name: Name<'_>) -> Option<Both> {
        let store = self.store.lookup(dir.in_store(), name);
        let tmpfs = self.tmpfs.lookup(dir.in_tmpfs(), name);
        self.same_attr("lookup", store, tmpfs)
    }

    fn remove(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let name = Name::new(&name).unwrap();
        let Some(found) = self.lookup(dir, name) else { return };
        let store = self.store.remove(dir.in_store(), name, found.in_store());
        let tmpfs = self.tmpfs.remove(dir.in_tmpfs(), name, found.in_tmpfs());
        if self.same("remove", store, tmpfs).is_some() && self.rng.chance(2, 3) {
            self.forget(found);
        }
    }

    fn forget(&mut self, found: Both) {
        self.store.forget(found.store, 0);
        self.tmpfs.forget(found.tmpfs, 0);
        let store = self.store.getattr(found.in_store());
        if self.same_attr("forget", store, self.tmpfs.getattr(found.in_tmpfs())).is_none() {
            self.dirs.retain(|dir| dir.store != found.store);
            self.files.retain(|file| file.store != found.store);
        }
    }

    fn rename(&mut self) {
        let (from, to) = (self.dir(), self.dir());
        let (old, new) = (self.name(), self.name());
        let (old, new) = (Name::new(&old).unwrap(), Name::new(&new).unwrap());
        // A `FileSystem` need not refuse to move a directory into itself, because its caller does.
        let Some(moved) = self.lookup(from, old) else { return };
        let target = self.lookup(to, new);
        let has_directory = [Some(moved), target].into_iter().flatten();
        if from.store != to.store && has_directory.clone().any(|b| b.kind == FileKind::Directory) {
            return;
        }
        let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
        let mode = *self.rng.pick(&modes);
        let store = self.store.rename((from.in_store(), old), (to.in_store(), new), mode);
        let tmpfs = self.tmpfs.rename((from.in_tmpfs(), old), (to.in_tmpfs(), new), mode);
        self.same(&format!("rename {mode:?}"), store, tmpfs);
        if let Some(target) = target {
            self.forget(target);
        }
    }

    fn link(&mut self) {
        let (Some(file), dir, name) = (self.file(), self.dir(), self.name()) else { return };
        let name = Name::new(&name).unwrap();
        let store = self.store.link(file.in_store(), dir.in_store(), name);
        let tmpfs = self.tmpfs.link(file.in_tmpfs(), dir.in_tmpfs(), name);
        self.same_attr("link", store, tmpfs);
    }

    fn attributes(&mut self) {
        let node =
            if self.rng.chance(1, 3) { self.dir() } else { self.file().unwrap_or(self.dirs[0]) };
        let time = SetTime::At(Timespec { secs: -5, nanos: 7 });
        let set = match self.rng.below(3) {
            0 => SetAttr::default().with_mode(self.rng.below(0o10000) as u32),
            1 => SetAttr::default().with_uid(9).with_gid(8),
            _ => SetAttr::default().with_mtime(time).with_atime(time),
        };
        let store = self.store.setattr(node.in_store(), &set);
        self.same_attr("setattr", store, self.tmpfs.setattr(node.in_tmpfs(), &set));
    }

    fn content(&mut self) {
        let Some(file) = self.file() else { return };
        let (store, tmpfs) = (self.store, self.tmpfs);
        let (s, t) = (file.in_store(), file.in_tmpfs());
        let edge = 4096 * self.rng.below(20);
        let offset = if self.rng.chance(1, 2) { edge } else { self.rng.below(90_000) };
        let len = if self.rng.chance(1, 2) { 4096 } else { 1 + self.rng.below(20_000) };
        match self.rng.below(10) {
            0..4 => {
                let bytes = vec![self.rng.below(256) as u8; len as usize];
                let got = store.write(s, offset, &bytes);
                self.same("write", got, tmpfs.write(t, offset, &bytes));
            }
            4 => {
                let now = tmpfs.getattr(t).map_or(offset, |attr| attr.size);
                let size = if self.rng.chance(1, 3) { now } else { offset };
                let set = SetAttr::default().with_size(size);
                self.same_attr("truncate", store.setattr(s, &set), tmpfs.setattr(t, &set));
            }
            5 => {
                let (mut a, mut b) = (vec![1; len as usize], vec![2; len as usize]);
                let got = store.read(s, offset, &mut a);
                if let Some(n) = self.same("read", got, tmpfs.read(t, offset, &mut b)) {
                    assert_eq!(a[..n], b[..n], "bytes at {offset} of {file:?}");
                }
            }
            6 => {
                let what = if self.rng.chance(1, 2) { Seek::Data } else { Seek::Hole };
                let got = store.seek(s, offset, what);
                self.same("seek", got, tmpfs.seek(t, offset, what));
            }
            _ => {
                let bits = [0, 1, 3, 8, 0x10, 0x11, 0x20, 0x40];
                let how = Fallocate::from_bits_retain(*self.rng.pick(&bits));
                let got = store.fallocate(s, offset, len, how);
                self.same("fallocate", got, tmpfs.fallocate(t, offset, len, how));
            }
        }
        let got = store.getattr(s);
        self.same_attr("getattr", got, tmpfs.getattr(t));
    }

    fn xattrs(&mut self) {
        let node =
            if self.rng.chance(1, 3) { self.dir() } else { self.file().unwrap_or(self.dirs[0]) };
        let (s, t) = (node.in_store(), node.in_tmpfs());
        let names =
            [&b"user.a"[..], b"user.b", b"trusted.c", b"security.d", b"user.", b"other", b""];
        let name = *self.rng.pick(&names);
        let got = self.store.getxattr(s, name);
        self.same("getxattr", got, self.tmpfs.getxattr(t, name));
        match self.rng.below(4) {
            0 => {
                let got = self.store.removexattr(s, name);
                self.same("removexattr", got, self.tmpfs.removexattr(t, name));
            }
            _ => {
                let value = vec![self.rng.below(5) as u8; 10 + self.rng.index(2) * 300];
                let mode = [XattrMode::Set, XattrMode::Set, XattrMode::Create, XattrMode::Replace];
                let mode = *self.rng.pick(&mode);
                let got = self.store.setxattr(s, name, &value, mode);
                self.same("setxattr", got, self.tmpfs.setxattr(t, name, &value, mode));
            }
        }
        let got = self.store.listxattr(s);
        self.same("listxattr", got, self.tmpfs.listxattr(t));
    }

    fn acl(&mut self) -> Acl {
        let perm = self.rng.below(8) as u8;
        let base = [(Tag::UserObj, 6, 0), (Tag::GroupObj, 4, 0), (Tag::Other, perm & 4, 0)];
        let more = [(Tag::User, perm, 7), (Tag::Mask, 6, 0)];
        let entries = base.iter().chain(more.iter().filter(|_| perm > 2));
        Acl::new(entries.map(|&(tag, perm, id)| Entry::new(tag, perm, id))).unwrap()
    }

    fn acls(&mut self) {
        let node =
            if self.rng.chance(1, 3) { self.dir() } else { self.file().unwrap_or(self.dirs[0]) };
        let kind = if self.rng.chance(1, 2) { AclKind::Access } else { AclKind::Default };
        let acl = if self.rng.chance(1, 4) { None } else { Some(self.acl()) };
        let mode = acl.as_ref().filter(|_| kind == AclKind::Access).map(Acl::mode);
        let store = self.store.set_acl(node.in_store(), kind, acl.as_ref(), mode);
        let tmpfs = self.tmpfs.set_acl(node.in_tmpfs(), kind, acl.as_ref(), mode);
        self.same("set_acl", store, tmpfs);
        let store = self.store.getattr(node.in_store());
        self.same_attr("getattr", store, self.tmpfs.getattr(node.in_tmpfs()));
    }
}

fn run(seed: Seed, rounds: usize, steps: usize) -> HashMap<String, u32> {
    let report = ReportSeed::new(seed);
    // tmpfs counts attributes in bytes and the store in blocks, so a limit on space would give
    // different results.
    let tmpfs = Tmpfs::new(TmpfsOptions::default().with_root_mode(0o755));
    let options = quiet();
    let disks = Disks::new();
    let root = tmpfs.root().unwrap();
    let root = Both { store: 1, tmpfs: root.ino, kind: FileKind::Directory };
    let (mut dirs, mut files) = (vec![root], Vec::new());
    let (mut rng, mut seen) = (Rng::new(report.seed()), HashMap::new());
    for _ in 0..rounds {
        let store = disks.open(&options);
        let rng_of_round = rng.fork(rng.clone().next_u64());
        let mut run = Run { store: &store, tmpfs: &tmpfs, rng: rng_of_round, dirs, files, seen };
        for step in 0..steps {
            run.step();
            if step % 97 == 0 {
                store.sync().unwrap();
            }
        }
        rng.next_u64();
        // A remount of the store frees its inodes without links, so forget them in tmpfs too.
        let all: Vec<Both> = run.dirs.iter().chain(&run.files).copied().collect();
        all.into_iter().filter(|both| both.store != 1).for_each(|both| run.forget(both));
        Run { seen, .. } = run;
        (dirs, files) = (vec![root], Vec::new());
        assert_eq!(tree(&store), tree(&tmpfs), "before the remount");
        drop(store);
        let store = disks.open(&options);
        assert_eq!(tree(&store), tree(&tmpfs), "after the remount");
    }
    seen
}

#[test]
fn random_operations_have_the_results_of_tmpfs() {
    for seed in 0..12 {
        run(Seed(seed), 3, 700);
    }
}

/// With only 24 blocks, some writes are cut short, and calls fail with `ENOSPC`. The results must
/// still be equal.
#[test]
fn random_contents_on_a_full_store_have_the_results_of_tmpfs() {
    for seed in 0..8 {
        let report = ReportSeed::new(Seed(seed));
        let size_bytes = Some(24 * 4096);
        let tmpfs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(size_bytes));
        let disks = Disks::new();
        let store = disks.open(&quiet().with_size_bytes(size_bytes));
        let (dirs, files) = (Vec::new(), Vec::new());
        let rng = Rng::new(report.seed());
        let mut run = Run { store: &store, tmpfs: &tmpfs, rng, dirs, files, seen: HashMap::new() };
        for name in ["a", "b", "c"] {
            let name = Name::new(name.as_bytes()).unwrap();
            let root =
                |fs: &dyn FileSystem| Node::detached(fs.root().unwrap().ino, FileKind::Directory);
            let what = Make::new(0o600, 0, 0);
            let made = store.make(root(&store), name, &what);
            let made = run.same_attr("make", made, tmpfs.make(root(&tmpfs), name, &what));
            run.files.extend(made);
        }
        for step in 0..1_500 {
            run.content();
            if step % 150 == 0 {
                store.sync().unwrap();
            }
        }
        let refused = |what| run.seen.get(&format!("{what} {:?}", Errno::NOSPC)).copied();
        assert!(refused("write").is_some() && refused("fallocate").is_some(), "{:?}", run.seen);
        let room = |fs: &dyn FileSystem| fs.statfs().unwrap().bfree;
        assert_eq!(room(&store), room(&tmpfs));
        drop(store);
        let report = corewalk_store::fsck_devices(&disks.devices()).unwrap();
        assert_eq!(report.findings, []);
    }
}
