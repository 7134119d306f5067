//! Tests that move a directory out of the root of a confined walk while the walk is in it (trap T20
//! in `traps.md`).

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use corewalk::{Cred, Errno, FsStruct, RenameMode, Vfs, WalkFlags};
use corewalk_testkit::race::Watchdog;

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, over, rename, tree, walk};

/// Each time the walk asks for `deep`, the test moves `in` to `/free` and back. Once the walk is a
/// ref-walk, `in` stays in `/free`.
fn moved_walk(flags: WalkFlags) -> Result<&'static str, Errno> {
    let _watchdog = Watchdog::start("a walk that is led out", Duration::from_secs(60));
    let place: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let seen = Arc::clone(&place);
    let vfs = over(HookedTmpfs::new(move |_, call| {
        let Some(vfs) = seen.get().and_then(Weak::upgrade) else { return Ok(()) };
        if call != Call::Lookup(b"deep") {
            return Ok(());
        }
        let dir = walk(&vfs, "jail/in").unwrap();
        vfs.invalidate(&dir, name("deep")).unwrap();
        rename(&vfs, "jail/in", "free/in", RenameMode::NoReplace).unwrap();
        if vfs.stats().fallbacks == 0 {
            rename(&vfs, "free/in", "jail/in", RenameMode::NoReplace).unwrap();
        }
        Ok(())
    }));
    tree(&vfs, &["jail/", "jail/in/", "jail/in/deep/", "jail/f", "free/", "free/f"]);
    let files = ["jail/f", "free/f"].map(|path| (walk(&vfs, path).unwrap().ino(), path));
    let start = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
    let jail = vfs.walk(&Cred::root(), &start, b"jail", WalkFlags::empty()).unwrap();
    let start = FsStruct { root: vfs.root_path(), cwd: jail };
    vfs.prune();
    place.set(Arc::downgrade(&vfs)).unwrap();
    let found = vfs.walk(&Cred::root(), &start, b"in/deep/../../f", flags);
    assert_eq!(vfs.stats().fallbacks, 1, "the walk did not become a ref-walk");
    assert!(walk(&vfs, "free/in").is_ok(), "the directory was not moved out");
    let ino = found?.inode().ino();
    Ok(files.iter().find(|file| file.0 == ino).unwrap().1)
}

/// A confined walk must fail if its directory was moved out of its root. A ref-walk looks up one
/// name after the other, so only a check at its end detects the move. Trap T20 in `traps.md`.
#[test]
fn confined_walk_moved_out_of_its_root_fails() {
    assert_eq!(moved_walk(WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(moved_walk(WalkFlags::IN_ROOT), Err(Errno::XDEV));
}

/// Control (a variant with the bug must fail): a walk that is not confined ends outside of the
/// directory in which it began.
#[test]
fn control_unconfined_walk_ends_outside() {
    assert_eq!(moved_walk(WalkFlags::empty()), Ok("free/f"));
}
