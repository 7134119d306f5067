//! A confined walk whose directory is moved away under it: trap T20.

use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use corewalk::{Cred, Errno, FsStruct, RenameMode, Vfs, WalkFlags};
use corewalk_testkit::race::Watchdog;

use crate::backends::{Call, Meddled};
use crate::fixtures::{name, over, rename, tree, walk};

/// Walks from `/jail` along `in/deep/../../f`. Whenever the back end is asked for `deep`, `in` is moved to
/// `/free` and back, until the walk has given up to do without references; then it is moved there and
/// stays. Returns which file was found.
fn walk_that_is_led_out(flags: WalkFlags) -> Result<&'static str, Errno> {
    let _watchdog = Watchdog::start("a walk that is led out", Duration::from_secs(60));
    let place: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let seen = Arc::clone(&place);
    let vfs = over(Meddled::new(move |_, call| {
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
    assert_eq!(vfs.stats().fallbacks, 1, "the walk took references");
    assert!(walk(&vfs, "free/in").is_ok(), "it was led out");
    let ino = found?.inode().ino();
    Ok(files.iter().find(|file| file.0 == ino).unwrap().1)
}

/// Trap T20: a walk that holds references, and so is no snapshot, is outside when it ends, and says so.
#[test]
fn confined_walk_that_is_led_out_is_refused() {
    assert_eq!(walk_that_is_led_out(WalkFlags::BENEATH), Err(Errno::XDEV));
    assert_eq!(walk_that_is_led_out(WalkFlags::IN_ROOT), Err(Errno::XDEV));
}

/// Trap T20: the trap is set: a walk that is not confined comes out there.
#[test]
fn control_walk_that_is_led_out_comes_out() {
    assert_eq!(walk_that_is_led_out(WalkFlags::empty()), Ok("free/f"));
}
