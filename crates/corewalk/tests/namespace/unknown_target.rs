//! Tests of renames to names that the cache does not have. The namespace first asks for a rename
//! that replaces nothing, and looks the name up only if that fails.

use std::sync::{Arc, Mutex};

use corewalk::{Errno, RenameMode, Vfs};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, over, remove, rename, tree, walk};

#[derive(Clone, Debug, PartialEq, Eq)]
enum Seen {
    Lookup(String),
    Rename(String),
}

fn lookup(name: &str) -> Seen {
    Seen::Lookup(name.into())
}

fn renamed(name: &str) -> Seen {
    Seen::Rename(name.into())
}

#[derive(Clone, Default)]
struct Log(Arc<Mutex<Vec<Seen>>>);

impl Log {
    fn push(&self, seen: Seen) -> usize {
        let mut log = self.0.lock().unwrap();
        log.push(seen);
        log.len()
    }

    fn take(&self) -> Vec<Seen> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn watched(paths: &[&str], forgotten: &str, first: Result<(), Errno>) -> (Arc<Vfs>, Log) {
    let log = Log::default();
    let written = log.clone();
    let text = |name: &[u8]| String::from_utf8(name.to_vec()).unwrap();
    let vfs = over(HookedTmpfs::new(move |_, call| match call {
        Call::Lookup(name) => {
            written.push(Seen::Lookup(text(name)));
            Ok(())
        }
        Call::Rename(old) if written.push(Seen::Rename(text(old))) == 1 => first,
        _ => Ok(()),
    }));
    tree(&vfs, paths);
    vfs.invalidate(&vfs.root(), name(forgotten)).unwrap();
    log.take();
    (vfs, log)
}

#[test]
fn rename_to_a_free_name_is_one_call() {
    let (vfs, log) = watched(&["a"], "b", Ok(()));
    let ino = walk(&vfs, "a").unwrap().ino();
    for mode in [RenameMode::Replace, RenameMode::NoReplace] {
        rename(&vfs, "a", "b", mode).unwrap();
        assert_eq!(log.take(), [renamed("a")], "{mode:?}");
        assert_eq!(walk(&vfs, "b").unwrap().ino(), ino);
        rename(&vfs, "b", "a", RenameMode::Replace).unwrap();
        vfs.invalidate(&vfs.root(), name("b")).unwrap();
        log.take();
    }
}

#[test]
fn rename_over_an_uncached_name_replaces_it() {
    let (vfs, log) = watched(&["a", "b"], "b", Ok(()));
    let ino = walk(&vfs, "a").unwrap().ino();
    rename(&vfs, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!(log.take(), [renamed("a"), lookup("b"), renamed("a")]);
    assert_eq!(walk(&vfs, "b").unwrap().ino(), ino);
    assert_eq!(walk(&vfs, "a").unwrap_err(), Errno::NOENT);
}

#[test]
fn uncached_target_causes_the_errors_of_a_cached_one() {
    let (vfs, log) = watched(&["a", "b/", "b/c"], "b", Ok(()));
    assert_eq!(rename(&vfs, "a", "b", RenameMode::Replace), Err(Errno::ISDIR));
    assert_eq!(log.take(), [renamed("a"), lookup("b")]);
    vfs.invalidate(&vfs.root(), name("b")).unwrap();
    assert_eq!(rename(&vfs, "a", "b", RenameMode::NoReplace), Err(Errno::EXIST));
    assert_eq!(log.take(), [renamed("a"), lookup("b")]);
    tree(&vfs, &["d/"]);
    vfs.invalidate(&vfs.root(), name("b")).unwrap();
    assert_eq!(rename(&vfs, "d", "b", RenameMode::Replace), Err(Errno::NOTEMPTY));
    assert!(walk(&vfs, "a").is_ok() && walk(&vfs, "b/c").is_ok() && walk(&vfs, "d").is_ok());
}

#[test]
fn rename_onto_an_uncached_name_of_the_same_file_changes_nothing() {
    let (vfs, _log) = watched(&["a"], "b", Ok(()));
    let a = walk(&vfs, "a").unwrap();
    vfs.link(&corewalk::Cred::root(), &a, &vfs.root(), name("b")).unwrap();
    vfs.invalidate(&vfs.root(), name("b")).unwrap();
    rename(&vfs, "a", "b", RenameMode::Replace).unwrap();
    assert_eq!(walk(&vfs, "a").unwrap().ino(), walk(&vfs, "b").unwrap().ino());
    remove(&vfs, "a", corewalk::Removal::Unlink).unwrap();
}

/// A rename to an uncached name first uses a flag of renameat2(2) that forbids replacement. If the
/// back end does not support it, the rename must look up the name and then rename without it.
#[test]
fn back_end_without_no_replace_is_asked_for_the_name() {
    for refusal in [Errno::INVAL, Errno::NOSYS] {
        let (vfs, log) = watched(&["a"], "b", Err(refusal));
        let ino = walk(&vfs, "a").unwrap().ino();
        rename(&vfs, "a", "b", RenameMode::Replace).unwrap();
        assert_eq!(log.take(), [renamed("a"), lookup("b"), renamed("a")]);
        assert_eq!(walk(&vfs, "b").unwrap().ino(), ino);
        let (vfs, _log) = watched(&["a"], "b", Err(refusal));
        assert_eq!(rename(&vfs, "a", "b", RenameMode::NoReplace), Err(refusal));
    }
}

#[test]
fn error_of_the_back_end_is_returned_without_a_retry() {
    let (vfs, log) = watched(&["a"], "b", Err(Errno::IO));
    assert_eq!(rename(&vfs, "a", "b", RenameMode::Replace), Err(Errno::IO));
    assert_eq!(log.take(), [renamed("a"), lookup("b")]);
    assert!(walk(&vfs, "a").is_ok());
    assert_eq!(walk(&vfs, "b").unwrap_err(), Errno::NOENT);
}
