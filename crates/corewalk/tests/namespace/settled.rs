//! What others hear of a change that a back end has made and not yet returned from.
//!
//! Between the two the back end is a step ahead of the cache. An error that says that a directory is
//! gone would give that away: whoever gets it and looks at the directory's name afterwards must not
//! find it.
//!
//! A [`Dawdler`] holds each test at that point: it makes a change, says so, and returns when it is
//! told to. No test depends on who is faster: the one that has to wait is seen asleep, or has ended,
//! before the change is let go on.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Attr, Cred, DirSink, Errno, FileSystem, InodeRef, Make, Name, Node, Removal, RenameMode,
    SetAttr, StatFs, Vfs,
};
use corewalk_sync::primitives::thread;
use corewalk_testkit::race::Watchdog;

use crate::fixtures::{name, over, remove, rename, tree, walk};
use crate::pauses::until_asleep;

/// A tmpfs whose first removal or rename of the name `slow` takes long to return.
struct Dawdler {
    inner: Tmpfs,
    slow: &'static [u8],
    once: Mutex<Option<(Sender<()>, Receiver<()>)>>,
}

impl Dawdler {
    fn dawdle(&self, name: Name<'_>) {
        if name.as_bytes() != self.slow {
            return;
        }
        let first = self.once.lock().unwrap_or_else(PoisonError::into_inner).take();
        let Some((said, told)) = first else { return };
        said.send(()).expect("the test waits for it");
        told.recv().expect("the test answers");
    }
}

impl FileSystem for Dawdler {
    fn root(&self) -> Result<Attr, Errno> {
        self.inner.root()
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.inner.lookup(dir, name)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.inner.getattr(node)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.inner.setattr(node, set)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inner.make(dir, name, what)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        let answer = self.inner.remove(dir, name, node);
        self.dawdle(name);
        answer
    }

    fn rename(
        &self,
        from: (Node<'_>, Name<'_>),
        to: (Node<'_>, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let answer = self.inner.rename(from, to, mode);
        self.dawdle(from.1);
        answer
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.inner.readdir(dir, cookie, sink)
    }

    fn read(&self, node: Node<'_>, handle: u64, at: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.inner.read(node, handle, at, buf)
    }

    fn write(&self, node: Node<'_>, handle: u64, at: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.inner.write(node, handle, at, bytes)
    }

    fn link(&self, node: Node<'_>, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.inner.link(node, dir, name)
    }

    fn tmpfile(&self, dir: Node<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inner.tmpfile(dir, what)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.inner.statfs()
    }

    fn forget(&self, ino: u64) {
        self.inner.forget(ino);
    }
}

/// Returns a namespace whose back end dawdles once, after a change of the name `slow`.
fn dawdling(slow: &'static [u8]) -> (Arc<Vfs>, Receiver<()>, Sender<()>) {
    let (said, arrived) = channel();
    let (go_on, told) = channel();
    let inner = Tmpfs::new(TmpfsOptions::default());
    (over(Dawdler { inner, slow, once: Mutex::new(Some((said, told))) }), arrived, go_on)
}

/// Runs `change`, which dawdles once the back end has made it, and meanwhile `act`; returns what
/// that returned. `act` may have to wait until the change is told.
fn amid<T: Send>(
    (vfs, arrived, go_on): &(Arc<Vfs>, Receiver<()>, Sender<()>),
    change: fn(&Vfs) -> Result<(), Errno>,
    act: impl FnOnce(&Vfs) -> T + Send,
) -> T {
    let _watchdog = Watchdog::start("beside a back end that dawdles", Duration::from_secs(60));
    thread::scope(|scope| {
        let changer = scope.spawn(|| change(vfs));
        arrived.recv().unwrap();
        let actor = thread::Builder::new().name("actor".into());
        let actor = actor.spawn_scoped(scope, || act(vfs)).unwrap();
        until_asleep("actor", &actor);
        go_on.send(()).unwrap();
        assert_eq!(changer.join().unwrap(), Ok(()));
        actor.join().unwrap()
    })
}

/// An operation that gives the file a name in the directory.
type Create = fn(&Vfs, &InodeRef<'_>, &InodeRef<'_>) -> Result<(), Errno>;

fn make(vfs: &Vfs, dir: &InodeRef<'_>, _: &InodeRef<'_>) -> Result<(), Errno> {
    vfs.make(&Cred::root(), dir, name("new"), Make::new(S_IFREG | 0o644, 0, 0)).map(drop)
}

fn tmpfile(vfs: &Vfs, dir: &InodeRef<'_>, _: &InodeRef<'_>) -> Result<(), Errno> {
    vfs.tmpfile(&Cred::root(), dir, Make::new(S_IFREG | 0o644, 0, 0)).map(drop)
}

fn link(vfs: &Vfs, dir: &InodeRef<'_>, file: &InodeRef<'_>) -> Result<(), Errno> {
    vfs.link(&Cred::root(), file, dir, name("new")).map(drop)
}

fn rename_into(vfs: &Vfs, dir: &InodeRef<'_>, _: &InodeRef<'_>) -> Result<(), Errno> {
    let root = vfs.root();
    vfs.rename(&Cred::root(), (&root, name("f")), (dir, name("new")), RenameMode::Replace)
}

const CREATES: [(&str, Create); 4] =
    [("make", make), ("tmpfile", tmpfile), ("link", link), ("rename", rename_into)];

/// Runs each operation that makes a name in `d` while `change` has taken `d` away: once it has said
/// ENOENT, the name does not lead to that directory any more.
fn creates_in_a_directory_that_goes(slow: &'static [u8], change: fn(&Vfs) -> Result<(), Errno>) {
    for (what, create) in CREATES {
        let namespace = dawdling(slow);
        let vfs = &*namespace.0;
        tree(vfs, &["d/", "e/", "f"]);
        let (dir, file) = (walk(vfs, "d").unwrap(), walk(vfs, "f").unwrap());
        let gone = dir.ino();
        let (made, found) = amid(&namespace, change, |vfs| {
            let made = create(vfs, &dir, &file);
            let found = vfs.lookup(&Cred::root(), &vfs.root(), name("d"));
            (made, found.map(|found| found.ino()))
        });
        assert_eq!(made, Err(Errno::NOENT), "{what}");
        assert_ne!(found, Ok(gone), "{what} said ENOENT, and then there was the directory");
    }
}

/// An operation has said that its directory is gone, and the name still led to it.
#[test]
fn create_in_a_directory_that_is_just_removed_says_so_once_the_name_is_gone() {
    creates_in_a_directory_that_goes(b"d", |vfs| remove(vfs, "d", Removal::Rmdir));
}

/// The same with a directory that another is renamed over.
#[test]
fn create_in_a_directory_that_is_just_replaced_says_so_once_the_name_is_another() {
    creates_in_a_directory_that_goes(b"e", |vfs| rename(vfs, "e", "d", RenameMode::Replace));
}

/// A file is moved out of a directory, which is then empty and removed: the file is where it went.
#[test]
fn file_moved_out_of_a_directory_that_was_then_removed_is_where_it_went() {
    let namespace = dawdling(b"x");
    let vfs = &*namespace.0;
    tree(vfs, &["d/", "d/x"]);
    let (removed, found) = amid(
        &namespace,
        |vfs| rename(vfs, "d/x", "a", RenameMode::Replace),
        |vfs| {
            let removed = remove(vfs, "d", Removal::Rmdir);
            (removed, walk(vfs, "a").map(|f| f.ino()))
        },
    );
    assert_eq!(removed, Ok(()));
    assert!(found.is_ok(), "the directory was empty, but the file is not where it went: {found:?}");
}

/// The same with a file that was moved in: the directory is not empty, so the file is not where it was.
#[test]
fn file_moved_into_a_directory_that_is_not_empty_then_is_not_where_it_was() {
    let namespace = dawdling(b"a");
    let vfs = &*namespace.0;
    tree(vfs, &["d/", "a"]);
    let (removed, found) = amid(
        &namespace,
        |vfs| rename(vfs, "a", "d/x", RenameMode::Replace),
        |vfs| {
            let removed = remove(vfs, "d", Removal::Rmdir);
            (removed, walk(vfs, "a").map(|f| f.ino()))
        },
    );
    assert_eq!(removed, Err(Errno::NOTEMPTY));
    assert_eq!(found, Err(Errno::NOENT), "d is not empty, but a is where it was");
}

/// A file without a name left cannot be linked, and is not found by the last one it had.
#[test]
fn link_of_a_file_that_is_just_removed_says_so_once_the_name_is_gone() {
    let namespace = dawdling(b"f");
    let vfs = &*namespace.0;
    tree(vfs, &["f", "d/"]);
    let (f, d) = (walk(vfs, "f").unwrap(), walk(vfs, "d").unwrap());
    let (linked, found) = amid(
        &namespace,
        |vfs| remove(vfs, "f", Removal::Unlink),
        |vfs| (link(vfs, &d, &f), walk(vfs, "f").map(|f| f.ino())),
    );
    assert_eq!(linked, Err(Errno::NOENT));
    assert_eq!(found, Err(Errno::NOENT), "f has no name left, but is found");
}
