//! What others hear of a change that a back end has made and not yet returned from.
//!
//! Between the two the back end is a step ahead of the cache. An error that says that a directory is
//! gone would give that away: whoever gets it and looks at the directory's name afterwards must not
//! find it.
//!
//! The back end of each test stops there: it makes a change, says so, and returns when it is told to. No
//! test depends on who is faster: the one that has to wait is seen asleep, or has ended, before the
//! change is let go on.

use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::{
    Cred, Errno, InodeRef, Make, May, Removal, RenameMode, SetAttr, Vfs, XattrMode, acl,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::Watchdog;

use crate::backends::{Call, Meddled};
use crate::fixtures::{name, over, remove, rename, tree, walk};
use crate::pauses::{Stop, once, stopping, until_asleep};

/// Returns true after a removal or a rename of `slow`.
fn is_done(call: Call<'_>, slow: &[u8]) -> bool {
    call == Call::RemoveDone(slow) || call == Call::RenameDone(slow)
}

/// Returns a namespace whose back end stops once, after it has removed or renamed `slow`.
fn dawdling(slow: &'static [u8]) -> (Arc<Vfs>, Stop) {
    stopping(move |call| is_done(call, slow))
}

/// As [`dawdling`]. From then on the back end says ESTALE of the attributes and the ACLs of the inode
/// numbered `gone`, and of the name `new`, which is looked up in that inode alone.
fn dawdling_over_what_is_gone(slow: &'static [u8], gone: u64) -> (Arc<Vfs>, Stop) {
    let (pause, stop) = once();
    let now = AtomicU64::new(0);
    let vfs = over(Meddled::new(move |_, call| {
        if is_done(call, slow) {
            // ORDERING: SeqCst. As if it were the change itself.
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

/// Runs `change`, which stops once the back end has made it, and meanwhile `act`; returns what that
/// returned. `act` may have to wait until the change is told.
fn amid<T: Send>(
    (vfs, stop): &(Arc<Vfs>, Stop),
    change: Change,
    act: impl FnOnce(&Vfs) -> T + Send,
) -> T {
    let _watchdog = Watchdog::start("beside a back end that dawdles", Duration::from_secs(60));
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
fn creates_in_a_directory_that_goes(slow: &'static [u8], change: Change) {
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

/// Something that is done with a directory, or with a file in it.
type Act = fn(&Vfs, &InodeRef<'_>, &InodeRef<'_>) -> Result<(), Errno>;

fn user() -> Cred {
    Cred::user(1000, 1000, &[])
}

/// Operations that ask the back end for something before they do what they are for: permissions, the
/// ACL that a new file inherits, a name. Those that ask for nothing else go along.
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
        let set = SetAttr { mode: Some(0o700), ..SetAttr::default() };
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

/// Whether the permissions of the directory have to be asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Permissions {
    Known,
    Unknown,
}

/// Whatever the back end is asked of a directory that is gone, and says ESTALE: once that is heard, the
/// name does not lead to the directory any more.
fn nobody_hears_of_it_early(slow: &'static [u8], change: Change) {
    // What is made first in a tmpfs has the number after that of the root.
    const GONE: u64 = 2;
    let mut early = Vec::new();
    for (what, act) in ACTS {
        for permissions in [Permissions::Known, Permissions::Unknown] {
            let namespace = dawdling_over_what_is_gone(slow, GONE);
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
    assert!(early.is_empty(), "they heard of it, and then there was the directory: {early:?}");
}

/// An operation has heard, of the permissions of its directory or of what a new file inherits from it,
/// that the directory is gone, and the name still led to it.
#[test]
fn error_from_a_directory_that_is_just_removed_is_heard_once_the_name_is_gone() {
    nobody_hears_of_it_early(b"d", |vfs| remove(vfs, "d", Removal::Rmdir));
}

/// The same with a directory that another is renamed over.
#[test]
fn error_from_a_directory_that_is_just_replaced_is_heard_once_the_name_is_another() {
    nobody_hears_of_it_early(b"e", |vfs| rename(vfs, "e", "d", RenameMode::Replace));
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

/// What a thread does to the tree.
type Change = fn(&Vfs) -> Result<(), Errno>;

/// A directory that a file has just been made in is not empty, so the file is found.
#[test]
fn directory_that_is_not_empty_since_just_now_is_not_found_empty() {
    let removals: [Change; 2] =
        [|vfs| remove(vfs, "d", Removal::Rmdir), |vfs| rename(vfs, "e", "d", RenameMode::Replace)];
    for removal in removals {
        let namespace = stopping(|call| call == Call::MakeDone(b"new"));
        let vfs = &*namespace.0;
        tree(vfs, &["d/", "e/"]);
        assert_eq!(walk(vfs, "d/new").err(), Some(Errno::NOENT), "known to be missing");
        let (removed, found) = amid(
            &namespace,
            |vfs| make(vfs, &walk(vfs, "d")?, &vfs.root()),
            |vfs| (removal(vfs), walk(vfs, "d/new").map(|f| f.ino())),
        );
        assert_eq!(removed, Err(Errno::NOTEMPTY));
        assert!(found.is_ok(), "d is not empty, but there is nothing in it: {found:?}");
    }
}
