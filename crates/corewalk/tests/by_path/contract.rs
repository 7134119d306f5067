//! Tests of a back end that finds files by path. They check, one case at a time, which calls must
//! wait for each other.

use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileKind, FileSystem, InodeRef, Make, May, Name, Node, RenameMode, SetAttr, Vfs,
    VfsOptions,
};
use corewalk_base::primitives::thread;
use corewalk_base::{Condvar, Mutex};
use corewalk_testkit::race::Watchdog;

use crate::tree::{At, Links, PathTree};

#[derive(Clone, Default)]
pub(crate) struct Gate(Arc<(Mutex<Passing>, Condvar)>);

#[derive(Default)]
struct Passing {
    shut: Option<(At, &'static str)>,
    stopped: u32,
    passed: Vec<At>,
}

impl Gate {
    pub(crate) fn shut(&self, at: At, path: &'static str) {
        self.0.0.lock().shut = Some((at, path));
    }

    pub(crate) fn open(&self) {
        self.0.0.lock().shut = None;
        self.0.1.notify_all();
    }

    fn pass(&self, at: At, path: &[u8]) {
        let mut passing = self.0.0.lock();
        if passing.shut.is_some_and(|shut| shut.0 == at && shut.1.as_bytes() == path) {
            passing.stopped += 1;
            self.0.1.notify_all();
            while passing.shut.is_some() {
                self.0.1.wait(&mut passing);
            }
            passing.stopped -= 1;
        }
        passing.passed.push(at);
    }

    pub(crate) fn wait_for_stop(&self) {
        let mut passing = self.0.0.lock();
        while passing.stopped == 0 {
            self.0.1.wait(&mut passing);
        }
    }

    pub(crate) fn has_passed(&self, at: At) -> bool {
        self.take_passed().contains(&at)
    }

    pub(crate) fn take_passed(&self) -> Vec<At> {
        std::mem::take(&mut self.0.0.lock().passed)
    }
}

pub(crate) fn gated() -> (Gate, Arc<PathTree>, Arc<Vfs>) {
    let gate = Gate::default();
    let passing = gate.clone();
    let fs = PathTree::new(Links::Yes, move |at, path| passing.pass(at, path));
    let vfs = Vfs::new(fs.clone(), VfsOptions::default()).unwrap();
    (gate, fs, vfs)
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, text: &str, mode: u32) -> InodeRef<'v> {
    vfs.make(&Cred::root(), dir, name(text), Make::new(mode, 0, 0)).unwrap().0
}

pub(crate) fn rename(vfs: &Vfs, from: &str, to: &str) {
    let root = vfs.root();
    let (from, to) = ((&root, name(from)), (&root, name(to)));
    vfs.rename(&Cred::root(), from, to, RenameMode::Replace).unwrap();
}

/// Time after which a test concludes that an event does not happen.
pub(crate) const A_WHILE: Duration = Duration::from_millis(100);

/// A file that is made while a directory above it is renamed must be below the new name afterwards.
/// Trap X1 in `traps.md`.
#[test]
fn file_made_while_its_directory_is_renamed_is_under_the_new_name() {
    let _watchdog = Watchdog::start("a make beside a rename", Duration::from_secs(60));
    for stop in [At::BeforeRename, At::AfterRename] {
        let (gate, fs, vfs) = gated();
        let dir = make(&vfs, &vfs.root(), "old", S_IFDIR | 0o755);
        gate.shut(stop, "/");
        thread::scope(|scope| {
            scope.spawn(|| rename(&vfs, "old", "new"));
            gate.wait_for_stop();
            gate.has_passed(At::Call);
            let maker = scope.spawn(|| make(&vfs, &dir, "file", 0o644).ino());
            thread::sleep(A_WHILE);
            assert!(!gate.has_passed(At::Call), "the back end was called during a rename");
            gate.open();
            maker.join().unwrap();
        });
        assert_eq!(fs.content("/new/file"), Some(vec![]), "{stop:?}");
    }
}

#[test]
fn rename_waits_for_a_call_below_and_for_no_other() {
    let _watchdog = Watchdog::start("a rename beside a call", Duration::from_secs(60));
    let (gate, _fs, vfs) = gated();
    let (a, b) = (["a", "b"].map(|text| make(&vfs, &vfs.root(), text, S_IFDIR | 0o755))).into();
    let files: [InodeRef<'_>; 2] = [&a, &b].map(|dir: &InodeRef<'_>| make(&vfs, dir, "f", 0o644));
    gate.shut(At::Call, "/a/f");
    thread::scope(|scope| {
        let reader = scope.spawn(|| vfs.read(&files[0], 0, 0, &mut [0; 8]));
        gate.wait_for_stop();
        rename(&vfs, "b", "c");
        gate.has_passed(At::BeforeRename);
        let mover = scope.spawn(|| rename(&vfs, "a", "d"));
        thread::sleep(A_WHILE);
        assert!(
            !gate.has_passed(At::BeforeRename),
            "the back end got a rename during a call below"
        );
        gate.open();
        assert_eq!(reader.join().unwrap(), Ok(0));
        mover.join().unwrap();
    });
    assert_eq!(files[0].path().unwrap(), b"/d/f");
}

/// Lookups of cached names and calls in other directories must not wait for a rename that hangs in
/// the back end. Trap P7 in `traps.md`.
#[test]
fn cached_names_and_other_directories_do_not_wait_for_a_rename() {
    let _watchdog = Watchdog::start("lookups beside a rename", Duration::from_secs(60));
    let (gate, _fs, vfs) = gated();
    let cred = Cred::root();
    let (a, b) = (["a", "b"].map(|text| make(&vfs, &vfs.root(), text, S_IFDIR | 0o755))).into();
    let [f, g] = [&a, &b].map(|dir: &InodeRef<'_>| make(&vfs, dir, "f", 0o644));
    gate.shut(At::AfterRename, "/");
    thread::scope(|scope| {
        scope.spawn(|| rename(&vfs, "a", "d"));
        gate.wait_for_stop();
        assert_eq!(vfs.lookup(&cred, &a, name("f")).unwrap().ino(), f.ino());
        assert_eq!(f.path().unwrap(), b"/a/f");
        assert_eq!(vfs.getattr(&g).unwrap().ino, g.ino());
        make(&vfs, &b, "new", 0o644);
        gate.open();
    });
    assert_eq!(f.path().unwrap(), b"/d/f");
}

#[test]
fn file_removed_behind_the_cache_is_stale() {
    let (_, fs, vfs) = gated();
    let file = make(&vfs, &vfs.root(), "f", 0o644);
    fs.remove_outside("/", "f");
    let (stale, cred) = (Some(Errno::STALE), Cred::root());
    assert_eq!(vfs.getattr(&file).err(), stale);
    assert_eq!(vfs.read(&file, 0, 0, &mut [0; 8]).err(), stale);
    assert_eq!(vfs.write(&cred, &file, 0, 0, b"lost").err(), stale);
    assert_eq!(vfs.open(&cred, &file, 0, May::READ).err(), stale);
    let set = SetAttr::default().with_size(0);
    assert_eq!(vfs.setattr(&cred, &file, &set).err(), stale);
}

#[test]
fn open_file_removed_behind_the_cache_is_stale() {
    let (_, fs, vfs) = gated();
    let (file, cred) = (make(&vfs, &vfs.root(), "f", 0o644), Cred::root());
    let handle = vfs.open(&cred, &file, 2, May::READ | May::WRITE).unwrap().handle;
    fs.remove_outside("/", "f");
    assert_eq!(vfs.read(&file, handle, 0, &mut [0; 8]).err(), Some(Errno::STALE));
    assert_eq!(vfs.write(&cred, &file, handle, 0, b"lost").err(), Some(Errno::STALE));
    vfs.release(&file, handle);
}

/// A back end with a bug: it finds files by inode number, but asks for the path of a file. The back
/// end must get an error (`EOPNOTSUPP`) and no path.
struct Mistaken(Tmpfs);

impl FileSystem for Mistaken {
    fn getattr(&self, node: Node<'_>) -> Result<corewalk::Attr, Errno> {
        node.path().and_then(|_| self.0.getattr(node))
    }
    fn root(&self) -> Result<corewalk::Attr, Errno> {
        self.0.root()
    }
    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<corewalk::Attr, Errno> {
        self.0.lookup(dir, name)
    }
    fn setattr(&self, node: Node<'_>, set: &corewalk::SetAttr) -> Result<corewalk::Attr, Errno> {
        self.0.setattr(node, set)
    }
    fn make(
        &self,
        dir: Node<'_>,
        name: Name<'_>,
        what: &Make<'_>,
    ) -> Result<corewalk::Attr, Errno> {
        self.0.make(dir, name, what)
    }
    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.0.remove(dir, name, node)
    }
    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        self.0.rename(from, to, mode)
    }
    fn readdir(
        &self,
        dir: Node<'_>,
        cookie: u64,
        sink: &mut corewalk::DirSink<'_>,
    ) -> Result<(), Errno> {
        self.0.readdir(dir, cookie, sink)
    }
    fn read(&self, node: Node<'_>, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.0.read(node, at, buf)
    }
    fn write(&self, node: Node<'_>, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.0.write(node, at, bytes)
    }
    fn statfs(&self) -> Result<corewalk::StatFs, Errno> {
        self.0.statfs()
    }
}

#[test]
fn back_end_by_number_gets_no_path() {
    let fs = Mistaken(Tmpfs::new(TmpfsOptions::default()));
    let vfs = Vfs::new(Arc::new(fs), VfsOptions::default()).unwrap();
    assert_eq!(vfs.getattr(&vfs.root()).err(), Some(Errno::OPNOTSUPP));
    assert_eq!(Node::detached(1, FileKind::Regular).path(), Err(Errno::NOENT));
}
