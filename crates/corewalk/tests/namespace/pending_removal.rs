//! Tests of the interval between a change in the back end and its appearance in the cache, for
//! instance of a removal.
//!
//! The back end has made a change, such as the removal of a directory, but the cache still has the
//! old names.
//!
//! While the cache shows the old names, no caller may get an error such as `ENOENT`, which tells
//! that the directory is gone. A later lookup would find the directory again. So the call that
//! meets this error waits until the cache shows the change.
//!
//! The back end of each test makes a change, reports it to the test, and returns only when the test
//! says so. Before that, the test waits until the other thread sleeps or has ended. So no test
//! depends on timing.

use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::{
    Cred, Errno, InodeRef, Make, May, Removal, RenameMode, SetAttr, Vfs, XattrMode, acl,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{Watchdog, until_asleep};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, over, remove, rename, tree, walk};
use crate::pauses::{Stop, once, stopping};

fn is_done(call: Call<'_>, slow: &[u8]) -> bool {
    call == Call::RemoveDone(slow) || call == Call::RenameDone(slow)
}

fn slow_back_end(slow: &'static [u8]) -> (Arc<Vfs>, Stop) {
    stopping(move |call| is_done(call, slow))
}

fn slow_with_stale_errors(slow: &'static [u8], gone: u64) -> (Arc<Vfs>, Stop) {
    let (pause, stop) = once();
    let now = AtomicU64::new(0);
    let vfs = over(HookedTmpfs::new(move |_, call| {
        if is_done(call, slow) {
            // ORDERING: SeqCst. `now` stands for the state of the back end. Every thread sees a
            // change of this state immediately.
            now.store(gone, Ordering::SeqCst);
            return pause();
        }
        // ORDERING: SeqCst. As above.
        let gone = now.load(Ordering::SeqCst);
        match call {
            Call::Getattr(ino) | Call::GetAcl(ino) if ino == gone => Err(Errno::STALE),
            Call::Lookup(b"new") if gone != 0 => Err(Errno::STALE),
            _ => Ok(()),
        }
    }));
    (vfs, stop)
}

fn amid<T: Send>(
    (vfs, stop): &(Arc<Vfs>, Stop),
    change: Change,
    act: impl FnOnce(&Vfs) -> T + Send,
) -> T {
    let _watchdog = Watchdog::start("during a slow call of the back end", Duration::from_secs(60));
    thread::scope(|scope| {
        let changer = scope.spawn(|| change(vfs));
        stop.arrived.recv().unwrap();
        let actor = thread::Builder::new().name("actor".into());
        let actor = actor.spawn_scoped(scope, || act(vfs)).unwrap();
        until_asleep("actor", &actor);
        stop.go_on.send(Ok(())).unwrap();
        assert_eq!(changer.join().unwrap(), Ok(()));
        actor.join().unwrap()
    })
}

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

fn check_creates_in_a_vanishing_directory(slow: &'static [u8], change: Change) {
    for (what, create) in CREATES {
        let namespace = slow_back_end(slow);
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
        assert_ne!(found, Ok(gone), "{what} returned ENOENT, but the directory was found");
    }
}

#[test]
fn create_in_a_removed_directory_fails_after_its_name_is_gone() {
    check_creates_in_a_vanishing_directory(b"d", |vfs| remove(vfs, "d", Removal::Rmdir));
}

#[test]
fn create_in_a_replaced_directory_fails_after_its_name_is_reused() {
    check_creates_in_a_vanishing_directory(b"e", |vfs| rename(vfs, "e", "d", RenameMode::Replace));
}

type Act = fn(&Vfs, &InodeRef<'_>, &InodeRef<'_>) -> Result<(), Errno>;

fn user() -> Cred {
    Cred::user(1000, 1000, &[])
}

const ACTS: [(&str, Act); 17] = [
    ("make", make),
    ("tmpfile", tmpfile),
    ("link", link),
    ("rename into", rename_into),
    ("rename out of", |vfs, dir, _| {
        let (new, root) = (name("new"), vfs.root());
        vfs.rename(&Cred::root(), (dir, new), (&root, new), RenameMode::Replace)
    }),
    ("remove", |vfs, dir, _| vfs.remove(&Cred::root(), dir, name("new"), Removal::Unlink)),
    ("lookup", |vfs, dir, _| vfs.lookup(&Cred::root(), dir, name("new")).map(drop)),
    ("lookup by a user", |vfs, dir, _| vfs.lookup(&user(), dir, name("new")).map(drop)),
    ("walk", |vfs, _, _| walk(vfs, "d/new").map(drop)),
    ("walk by a user", |vfs, _, _| {
        let at = crate::fixtures::at(vfs);
        vfs.walk(&user(), &at, b"d/new", corewalk::WalkFlags::empty()).map(drop)
    }),
    ("access", |vfs, dir, _| vfs.access(&user(), dir, May::READ)),
    ("getattr", |vfs, dir, _| vfs.getattr(dir).map(drop)),
    ("setattr", |vfs, dir, _| {
        let set = SetAttr::default().with_mode(0o700);
        vfs.setattr(&Cred::root(), dir, &set).map(drop)
    }),
    ("open", |vfs, dir, _| vfs.open(&user(), dir, 0, May::READ).map(drop)),
    ("get an ACL", |vfs, dir, _| vfs.getxattr(&Cred::root(), dir, acl::XATTR_DEFAULT).map(drop)),
    ("set an ACL", |vfs, dir, _| {
        let value = acl::Acl::from_mode(0o700).to_xattr();
        vfs.setxattr(&Cred::root(), dir, acl::XATTR_ACCESS, &value, XattrMode::Set)
    }),
    ("set an attribute", |vfs, dir, _| vfs.setxattr(&user(), dir, b"user.x", b"1", XattrMode::Set)),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permissions {
    Known,
    Unknown,
}

fn check_errors_of_a_vanishing_directory(slow: &'static [u8], change: Change) {
    // The inode number of `d`, which is the first file that is made after the root.
    const GONE: u64 = 2;
    let mut early = Vec::new();
    for (what, act) in ACTS {
        for permissions in [Permissions::Known, Permissions::Unknown] {
            let namespace = slow_with_stale_errors(slow, GONE);
            let vfs = &*namespace.0;
            tree(vfs, &["d/", "e/", "f"]);
            let (dir, file) = (walk(vfs, "d").unwrap(), walk(vfs, "f").unwrap());
            assert_eq!(dir.ino(), GONE);
            if permissions == Permissions::Unknown {
                vfs.invalidate_attributes(&dir);
            }
            let (outcome, found) = amid(&namespace, change, |vfs| {
                let outcome = act(vfs, &dir, &file);
                let found = vfs.lookup(&Cred::root(), &vfs.root(), name("d"));
                (outcome, found.map(|found| found.ino()))
            });
            let is_told = matches!(outcome, Err(Errno::NOENT | Errno::STALE));
            assert!(is_told || permissions == Permissions::Known, "{what}: {outcome:?}");
            if is_told && found == Ok(GONE) {
                early.push((what, permissions, outcome));
            }
        }
    }
    assert!(early.is_empty(), "the directory was found after the error of: {early:?}");
}

/// No operation may report that a directory is gone while its name still leads to it. That includes
/// checks of permissions and of inherited ACLs.
#[test]
fn error_of_a_removed_directory_follows_its_name() {
    check_errors_of_a_vanishing_directory(b"d", |vfs| remove(vfs, "d", Removal::Rmdir));
}

#[test]
fn error_of_a_replaced_directory_follows_its_name() {
    check_errors_of_a_vanishing_directory(b"e", |vfs| rename(vfs, "e", "d", RenameMode::Replace));
}

/// One thread moves a file out of a directory, which becomes empty. Another removes it before the
/// rename returns. After that removal, the file must be found at its new name.
#[test]
fn file_moved_out_of_a_removed_directory_is_at_its_new_name() {
    let namespace = slow_back_end(b"x");
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
    assert!(
        found.is_ok(),
        "the directory was empty, but the file is not at its new name: {found:?}"
    );
}

/// A directory's removal fails because a file is moved into it. After that error, the file must not
/// be found at its old name.
#[test]
fn file_moved_into_a_nonempty_directory_is_not_at_its_old_name() {
    let namespace = slow_back_end(b"a");
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
    assert_eq!(found, Err(Errno::NOENT), "d is not empty, but the file is at its old name");
}

/// A link of a file fails while its last name `f` is being removed. After that failure, a lookup of
/// `f` must not find the file.
#[test]
fn link_of_a_removed_file_fails_after_its_name_is_gone() {
    let namespace = slow_back_end(b"f");
    let vfs = &*namespace.0;
    tree(vfs, &["f", "d/"]);
    let (f, d) = (walk(vfs, "f").unwrap(), walk(vfs, "d").unwrap());
    let (linked, found) = amid(
        &namespace,
        |vfs| remove(vfs, "f", Removal::Unlink),
        |vfs| (link(vfs, &d, &f), walk(vfs, "f").map(|f| f.ino())),
    );
    assert_eq!(linked, Err(Errno::NOENT));
    assert_eq!(found, Err(Errno::NOENT), "f has no name, but is found");
}

type Change = fn(&Vfs) -> Result<(), Errno>;

/// If a directory cannot be removed because another thread has just made a file in it, a later
/// lookup must find that file.
#[test]
fn directory_that_is_not_empty_shows_its_new_file() {
    let removals: [Change; 2] =
        [|vfs| remove(vfs, "d", Removal::Rmdir), |vfs| rename(vfs, "e", "d", RenameMode::Replace)];
    for removal in removals {
        let namespace = stopping(|call| call == Call::MakeDone(b"new"));
        let vfs = &*namespace.0;
        tree(vfs, &["d/", "e/"]);
        assert_eq!(
            walk(vfs, "d/new").err(),
            Some(Errno::NOENT),
            "the name is not known to be missing"
        );
        let (removed, found) = amid(
            &namespace,
            |vfs| make(vfs, &walk(vfs, "d")?, &vfs.root()),
            |vfs| (removal(vfs), walk(vfs, "d/new").map(|f| f.ino())),
        );
        assert_eq!(removed, Err(Errno::NOTEMPTY));
        assert!(found.is_ok(), "d is not empty, but the file is not found: {found:?}");
    }
}
