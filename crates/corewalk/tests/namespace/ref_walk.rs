//! What happens under a walk that holds a reference at each step.

use std::sync::{Arc, OnceLock, Weak};

use corewalk::{
    Blocking, Cred, Errno, May, Removal, RenameMode, Security, Subject, Verdict, Vfs, WalkFlags,
};
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

use crate::fixtures::{at, new, remove, rename, tree, walk};

/// What is done when the walk stands on `p/d` and has taken references.
type Change = fn(&Vfs);

/// Disturbs a walk of user 7 where it searches one directory: until it gives up rcu-walk, and then in
/// another way, once.
struct Disturber {
    vfs: OnceLock<Weak<Vfs>>,
    directory: OnceLock<u64>,
    change: Change,
    is_done: AtomicBool,
}

struct Hook(Arc<Disturber>);

impl Security for Hook {
    fn inode_permission(&self, cred: &Cred, subject: Subject, _: May, _: Blocking) -> Verdict {
        let at = &self.0;
        if cred.uid == 7
            && let Some(vfs) = at.vfs.get().and_then(Weak::upgrade)
            && at.directory.get() == Some(&subject.ino)
        {
            if vfs.stats().fallbacks == 0 {
                rename(&vfs, "p", "P", RenameMode::Replace).unwrap();
                rename(&vfs, "P", "p", RenameMode::Replace).unwrap();
            // ORDERING: Relaxed. One thread.
            } else if !at.is_done.swap(true, Ordering::Relaxed) {
                (at.change)(&vfs);
            }
        }
        Verdict::Allow
    }
}

/// Returns a namespace with `p/d` and `q`, in which a walk of user 7 through `p/d` meets `change`.
fn disturbed(change: Change) -> (Arc<Vfs>, Arc<Disturber>) {
    let vfs = new();
    let disturber = Arc::new(Disturber {
        vfs: OnceLock::new(),
        directory: OnceLock::new(),
        change,
        is_done: AtomicBool::new(false),
    });
    vfs.set_security(Box::new(Hook(Arc::clone(&disturber)))).unwrap();
    tree(&vfs, &["p/", "p/d/", "q/"]);
    disturber.directory.set(walk(&vfs, "p/d").unwrap().ino()).unwrap();
    disturber.vfs.set(Arc::downgrade(&vfs)).unwrap();
    (vfs, disturber)
}

fn slot_of(vfs: &Vfs, path: &str) -> u32 {
    let found = vfs.resolve_path(&Cred::root(), &at(vfs), path.as_bytes(), WalkFlags::empty());
    found.unwrap().dentry.0
}

/// Returns where user 7 gets to.
fn resolve(vfs: &Vfs, path: &str) -> Result<u64, Errno> {
    let cred = Cred::user(7, 7, &[]);
    let found = vfs.resolve_path(&cred, &at(vfs), path.as_bytes(), WalkFlags::empty());
    assert_eq!(vfs.stats().fallbacks, 1, "it is a ref-walk");
    found.map(|found| found.ino)
}

/// Traps T17, T19: the walk holds `p/d` and no longer `p`, so the slot of `p` may be that of another
/// directory when it goes up.
#[test]
fn parent_whose_slot_serves_another_directory_is_not_walked_to() {
    let (vfs, disturber) = disturbed(|vfs| {
        let slot = slot_of(vfs, "p");
        rename(vfs, "p/d", "q/d", RenameMode::Replace).unwrap();
        remove(vfs, "p", Removal::Rmdir).unwrap();
        let reused = (0..10_000).find(|i| {
            tree(vfs, &[&format!("other{i}/")]);
            slot_of(vfs, &format!("other{i}")) == slot
        });
        assert!(reused.is_some(), "the slot is used again");
    });
    assert_eq!(resolve(&vfs, "p/d/.."), Err(Errno::NOENT), "there is no p any more");
    // ORDERING: Relaxed. One thread.
    assert!(disturber.is_done.load(Ordering::Relaxed));
    assert_eq!(resolve(&vfs, "q/d/.."), Ok(walk(&vfs, "q").unwrap().ino()));
}

/// A directory that is moved while a ref-walk stands on it is no longer below the parent it had.
#[test]
fn directory_that_was_moved_does_not_lead_up_to_where_it_was() {
    let (vfs, _) = disturbed(|vfs| rename(vfs, "p/d", "q/d", RenameMode::Replace).unwrap());
    assert_eq!(resolve(&vfs, "p/d/.."), Err(Errno::NOENT));
}

/// A directory that was removed has no inode: a ref-walk that goes up to it ends, and takes nothing.
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
