//! Tests of ref-walk, the fallback of a path walk that holds references, during changes of the
//! tree.
//!
//! These tests walk through a directory with an ACL, so each walk asks the back end for the ACL.
//! When it is asked, the test changes the tree. A walk whose path changes in each lock-free attempt
//! falls back to ref-walk.

use std::sync::{Arc, OnceLock, Weak};

use corewalk::acl::{Acl, Entry, Tag, XATTR_ACCESS};
use corewalk::{Cred, Errno, Removal, RenameMode, Vfs, WalkFlags, XattrMode};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{at, over, remove, rename, tree, walk};

type Change = fn(&Vfs);

fn user() -> Cred {
    Cred::user(7, 7, &[])
}

/// Changes the tree while a walk searches `directory`. During an rcu-walk it renames the parent of
/// `directory` away and back. During the first ref-walk it calls `change`.
struct Disturber {
    vfs: OnceLock<Weak<Vfs>>,
    directory: OnceLock<u64>,
    change: Change,
    is_done: AtomicBool,
}

impl Disturber {
    fn acl_asked(&self, ino: u64) {
        if self.directory.get() != Some(&ino) {
            return;
        }
        let Some(vfs) = self.vfs.get().and_then(Weak::upgrade) else { return };
        if vfs.stats().fallbacks == 0 {
            rename(&vfs, "p", "P", RenameMode::Replace).unwrap();
            rename(&vfs, "P", "p", RenameMode::Replace).unwrap();
        // ORDERING: Relaxed. One thread.
        } else if !self.is_done.swap(true, Ordering::Relaxed) {
            (self.change)(&vfs);
        }
    }
}

fn disturbed(change: Change) -> (Arc<Vfs>, Arc<Disturber>) {
    let disturber = Arc::new(Disturber {
        vfs: OnceLock::new(),
        directory: OnceLock::new(),
        change,
        is_done: AtomicBool::new(false),
    });
    let vfs = over(HookedTmpfs::new({
        let disturber = Arc::clone(&disturber);
        move |_, call| {
            if let Call::GetAcl(ino) = call {
                disturber.acl_asked(ino);
            }
            Ok(())
        }
    }));
    tree(&vfs, &["p/", "p/d/", "q/"]);
    let acl = Acl::new([
        Entry::new(Tag::UserObj, 7, Entry::NO_ID),
        Entry::new(Tag::User, 5, user().uid),
        Entry::new(Tag::GroupObj, 5, Entry::NO_ID),
        Entry::new(Tag::Mask, 5, Entry::NO_ID),
        Entry::new(Tag::Other, 5, Entry::NO_ID),
    ]);
    let (acl, d) = (acl.unwrap().to_xattr(), walk(&vfs, "p/d").unwrap());
    vfs.setxattr(&Cred::root(), &d, XATTR_ACCESS, &acl, XattrMode::Set).unwrap();
    disturber.directory.set(d.ino()).unwrap();
    drop(d);
    disturber.vfs.set(Arc::downgrade(&vfs)).unwrap();
    (vfs, disturber)
}

fn slot_of(vfs: &Vfs, path: &str) -> u32 {
    let found = vfs.resolve_path(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::empty());
    found.unwrap().dentry.0
}

fn resolve(vfs: &Vfs, path: &str) -> Result<u64, Errno> {
    let found = vfs.resolve_path(&user(), &at(vfs), path.as_bytes(), WalkFlags::empty());
    assert_eq!(vfs.stats().fallbacks, 1, "the walk did not become a ref-walk");
    found.map(|found| found.ino)
}

/// If the path of a walk changes during each lock-free attempt, each failed attempt must be
/// counted, and the fallback to ref-walk once.
#[test]
fn fallback_to_ref_walk_is_counted_once() {
    let (vfs, _) = disturbed(|_| {});
    tree(&vfs, &["p/d/f"]);
    let f = walk(&vfs, "p/d/f").unwrap().ino();
    let go = |cred: &Cred| vfs.resolve_path(cred, &at(&vfs), b"p/d/f", WalkFlags::empty());
    let before = vfs.stats();
    assert_eq!(go(&Cred::root()).unwrap().ino, f);
    let quiet = vfs.stats();
    assert_eq!((quiet.retries, quiet.fallbacks), (before.retries, before.fallbacks));
    assert_eq!(resolve(&vfs, "p/d/f"), Ok(f));
    let after = vfs.stats();
    assert_eq!((after.retries - before.retries, after.fallbacks - before.fallbacks), (16, 1));
}

/// A ref-walk from `p/d` by `..` holds `p/d` but not `p`. So `p` may have been removed, and its
/// slot reused for another directory. The walk must not go there. Traps T17 and T19 in `traps.md`.
#[test]
fn walk_does_not_go_up_to_a_reused_slot() {
    let (vfs, disturber) = disturbed(|vfs| {
        let slot = slot_of(vfs, "p");
        rename(vfs, "p/d", "q/d", RenameMode::Replace).unwrap();
        remove(vfs, "p", Removal::Rmdir).unwrap();
        let reused = (0..10_000).find(|i| {
            tree(vfs, &[&format!("other{i}/")]);
            slot_of(vfs, &format!("other{i}")) == slot
        });
        assert!(reused.is_some(), "the slot is not reused");
    });
    assert_eq!(
        resolve(&vfs, "p/d/.."),
        Err(Errno::NOENT),
        "the walk found the removed directory p"
    );
    // ORDERING: Relaxed. One thread.
    assert!(disturber.is_done.load(Ordering::Relaxed));
    assert_eq!(resolve(&vfs, "q/d/.."), Ok(walk(&vfs, "q").unwrap().ino()));
}

#[test]
fn moved_directory_leads_up_to_its_new_parent() {
    let (vfs, _) = disturbed(|vfs| rename(vfs, "p/d", "q/d", RenameMode::Replace).unwrap());
    assert_eq!(resolve(&vfs, "p/d/.."), Err(Errno::NOENT));
}

/// A ref-walk up to a removed directory must take no reference, because such a directory has no
/// inode.
#[test]
fn removed_parent_is_enoent_and_nothing_is_counted() {
    let (vfs, disturber) = disturbed(|vfs| {
        remove(vfs, "p/d", Removal::Rmdir).unwrap();
        remove(vfs, "p", Removal::Rmdir).unwrap();
    });
    let before = vfs.stats().inodes;
    assert_eq!(resolve(&vfs, "p/d/.."), Err(Errno::NOENT));
    // ORDERING: Relaxed. One thread.
    assert!(disturber.is_done.load(Ordering::Relaxed));
    assert_eq!(vfs.stats().inodes, before - 2);
}
