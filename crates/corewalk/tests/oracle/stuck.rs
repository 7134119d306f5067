//! Tests of readers while a rename hangs in its back end, before or after the change. The readers
//! must get the old state without waiting.
//!
//! While a rename hangs, an operation waits only if it must ask the back end about the old or the
//! new name. Two kinds of operations must ask: other changes of these names, and lookups of the new
//! name without a cached answer.

use std::sync::Arc;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{
    Cred, Errno, FsStruct, Make, PathKind, PathRef, Removal, RenameMode, Vfs, WalkFlags,
};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{Watchdog, until_asleep};

use crate::backends::Call;
use crate::fixtures::{at, name, remove, rename, tree, walk};
use crate::pauses::{Stop, stopping};

const PATIENCE: Duration = Duration::from_secs(30);

const TREE: [&str; 14] = [
    "a/",
    "a/f",
    "a/d/",
    "a/d/sub/",
    "a/d/sub/x",
    "a/other",
    "b/",
    "b/full",
    "b/e/",
    "b/e/y",
    "b/other",
    "c/",
    "c/u/",
    "c/u/v",
];

#[derive(Clone, Copy)]
struct Hanging {
    from: &'static str,
    to: &'static str,
    mode: RenameMode,
}

const HANGING: [Hanging; 4] = [
    Hanging { from: "a/f", to: "b/g", mode: RenameMode::NoReplace },
    Hanging { from: "a/f", to: "b/full", mode: RenameMode::Replace },
    Hanging { from: "a/d", to: "b/g", mode: RenameMode::Replace },
    Hanging { from: "a/d", to: "b/e", mode: RenameMode::Exchange },
];

impl Hanging {
    fn namespaces(self) -> [(Arc<Vfs>, Stop); 2] {
        let last = self.from.as_bytes().last_chunk::<1>().expect("a name of one byte");
        let spaces = [
            stopping(move |call| call == Call::Rename(last)),
            stopping(move |call| call == Call::RenameDone(last)),
        ];
        spaces.iter().for_each(|(vfs, _)| tree(vfs, &TREE));
        spaces
    }
}

fn place<'v>(vfs: &'v Vfs, path: &str) -> PathRef<'v> {
    vfs.walk(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::FOLLOW)
        .expect("the tree has this path")
}

fn number(vfs: &Vfs, path: &str) -> Result<u64, Errno> {
    walk(vfs, path).map(|found| found.ino())
}

fn read_beside<T: Send>(
    vfs: &Vfs,
    stop: &Stop,
    hanging: Hanging,
    read: impl FnOnce() -> T + Send,
) -> Option<T> {
    thread::scope(|scope| {
        let renamer = scope.spawn(|| rename(vfs, hanging.from, hanging.to, hanging.mode));
        stop.arrived.recv().expect("the renamer asks the back end");
        let (say, said) = channel();
        scope.spawn(move || say.send(read()));
        let read = match said.recv_timeout(PATIENCE) {
            Ok(read) => Some(read),
            Err(RecvTimeoutError::Timeout) => None,
            Err(RecvTimeoutError::Disconnected) => panic!("the reader failed"),
        };
        assert!(!renamer.is_finished(), "the rename did not hang");
        stop.go_on.send(Ok(())).expect("the back end waits");
        assert_eq!(renamer.join().expect("no panic"), Ok(()));
        read
    })
}

fn paths(vfs: &Vfs) -> Vec<(String, u64)> {
    let paths = TREE.map(|path| path.trim_end_matches('/').to_owned());
    paths.map(|path| (path.clone(), number(vfs, &path).expect("the tree has this path"))).to_vec()
}

/// While a rename hangs in the back end, lookups and path translations must give the same results
/// as before it. Traps T13 and P7 in `traps.md`.
#[test]
fn readers_during_a_hanging_rename_get_the_old_state() {
    let _watchdog = Watchdog::start("readers beside a hanging rename", Duration::from_secs(300));
    for hanging in HANGING {
        for (vfs, stop) in hanging.namespaces() {
            let before = paths(&vfs);
            let held: Vec<_> = before.iter().map(|(path, _)| place(&vfs, path)).collect();
            // These lookups make negative dentries of three missing names. The cache has no dentry
            // of `b/unknown`.
            let missing = ["b/g", "a/g", "c/nothing"].map(|path| (path, number(&vfs, path)));
            let answers = read_beside(&vfs, &stop, hanging, || {
                let root = vfs.root_path();
                let found: Vec<_> = before.iter().map(|(path, _)| number(&vfs, path)).collect();
                let named: Vec<_> = held.iter().map(|place| place.path_of(&root)).collect();
                let numbered: Vec<_> =
                    before.iter().map(|(_, ino)| vfs.path_of_ino(*ino)).collect();
                let missed = missing.map(|(path, _)| number(&vfs, path)).map(|found| found.err());
                (found, named, numbered, missed, number(&vfs, "b/unknown"))
            });
            let what = format!("{} to {}", hanging.from, hanging.to);
            let (found, named, numbered, missed, unknown) = answers.expect(&what);
            for (i, (path, ino)) in before.iter().enumerate() {
                let path = format!("/{path}").into_bytes();
                assert_eq!(found[i], Ok(*ino), "{what}");
                assert_eq!(named[i], (path.clone(), PathKind::Linked), "{what}");
                assert_eq!(numbered[i], Ok(path), "{what}");
            }
            assert_eq!((missed, unknown), ([Some(Errno::NOENT); 3], Err(Errno::NOENT)));
            let moved = before
                .iter()
                .find(|(path, _)| path == hanging.from)
                .expect("the moved path existed before");
            assert_eq!(number(&vfs, hanging.to), Ok(moved.1), "{what}");
        }
    }
}

/// A hanging rename must not delay changes of other names in its directories, nor their readers.
/// That holds even while another directory is moved.
#[test]
fn changes_during_a_hanging_rename_succeed() {
    let _watchdog = Watchdog::start("changes beside a hanging rename", Duration::from_secs(300));
    for hanging in HANGING {
        for (vfs, stop) in hanging.namespaces() {
            let v = place(&vfs, "c/u/v");
            let done = read_beside(&vfs, &stop, hanging, || {
                tree(&vfs, &["a/made", "b/made/"]);
                rename(&vfs, "a/other", "b/another", RenameMode::NoReplace).expect("a rename");
                rename(&vfs, "c/u", "b/u", RenameMode::NoReplace).expect("a move");
                remove(&vfs, "a/made", Removal::Unlink).expect("a removal");
                remove(&vfs, "b/made", Removal::Rmdir).expect("a removal");
                v.d_path(&vfs.root_path())
            });
            assert_eq!(done.as_deref(), Some(&b"/b/u/v"[..]), "{} waited", hanging.from);
        }
    }
}

/// A path translation that has failed too often takes the lock that blocks moves of directories. A
/// move that hangs in the back end must not hold that lock.
#[test]
fn locked_translation_during_a_hanging_move_succeeds() {
    const DEEP: usize = 1100;
    let _watchdog = Watchdog::start("a locked translation", Duration::from_secs(300));
    for hanging in HANGING {
        for (vfs, stop) in hanging.namespaces() {
            let path: String = (0..DEEP).map(|_| "/q").collect();
            let mut at = place(&vfs, "a/d");
            for _ in 0..DEEP {
                let dir = at.inode();
                let what = Make::new(S_IFDIR | 0o755, 0, 0);
                let made = vfs.make(&Cred::root(), &dir, name("q"), what);
                drop(made.expect("the name is free"));
                let start = FsStruct { root: vfs.root_path(), cwd: at };
                at = vfs.walk(&Cred::root(), &start, b"q", WalkFlags::empty()).expect("just made");
            }
            let locked = vfs.stats().fallbacks;
            let found = read_beside(&vfs, &stop, hanging, || {
                let (root, mut buf) = (vfs.root_path(), [0; 4096]);
                at.path_of_in(&root, &mut buf).map(|(path, kind)| (path.to_vec(), kind))
            });
            let right = format!("/a/d{path}").into_bytes();
            assert_eq!(found, Some(Ok((right, PathKind::Linked))), "{}", hanging.from);
            assert_eq!(vfs.stats().fallbacks, locked + 1, "the translation did not take the lock");
        }
    }
}

/// Control (the tests must notice a reader that waits): a lookup of the new name has no cached
/// answer. So during a hanging rename it must wait, and then return the result of the rename.
#[test]
fn control_lookup_of_an_unknown_new_name_waits() {
    let _watchdog = Watchdog::start("a reader that waits", Duration::from_secs(60));
    let hanging = HANGING[0];
    for (vfs, stop) in hanging.namespaces() {
        let ino = number(&vfs, hanging.from);
        let b = walk(&vfs, "b").expect("the tree has this path");
        let lookup = || vfs.lookup(&Cred::root(), &b, name("g")).map(|found| found.ino());
        thread::scope(|scope| {
            let renamer = scope.spawn(|| rename(&vfs, hanging.from, hanging.to, hanging.mode));
            stop.arrived.recv().expect("the renamer asks the back end");
            let builder = thread::Builder::new().name("waiter".to_owned());
            let waiter = builder.spawn_scoped(scope, lookup).expect("the system gives a thread");
            until_asleep("waiter", &waiter);
            assert!(!waiter.is_finished(), "the lookup did not wait");
            stop.go_on.send(Ok(())).expect("the back end waits");
            assert_eq!(renamer.join().expect("no panic"), Ok(()));
            assert_eq!(waiter.join().expect("no panic"), ino);
        });
    }
}
