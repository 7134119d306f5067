//! Tests of path translations while one name of the path after another is renamed. A translation
//! then collects the names of the path again.
//!
//! An attempt to collect the names must use no state of an earlier attempt (trap T8 in `traps.md`).
//! A translation must not retry for ever (trap T9).

use std::sync::Arc;

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;

use super::*;
use crate::attr::mode::{S_IFDIR, S_IFREG};
use crate::dcache::Mounted;
use crate::tmpfs::{Tmpfs, TmpfsOptions};
use crate::{
    Cred, FsStruct, InodeRef, Make, Name, PathRef, RenameMode, Vfs, VfsOptions, WalkFlags,
};

const DEPTH: usize = 8;

fn chain() -> Arc<Vfs> {
    let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default());
    let vfs = vfs.unwrap();
    let mut dir = vfs.root();
    for i in 0..DEPTH {
        make(&vfs, &dir, &format!("neighbour{i}"), S_IFREG);
        dir = make(&vfs, &dir, &format!("d{i}"), S_IFDIR);
    }
    make(&vfs, &dir, "f", S_IFREG);
    drop(dir);
    vfs
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, name: &str, mode: u32) -> InodeRef<'v> {
    let name = Name::new(name.as_bytes()).unwrap();
    vfs.make(&Cred::root(), dir, name, Make::new(mode | 0o755, 0, 0)).unwrap().0
}

fn place(vfs: &Vfs, depth: usize) -> PathRef<'_> {
    let mut path = String::from("/.");
    (0..depth.min(DEPTH)).for_each(|i| path.push_str(&format!("/d{i}")));
    if depth > DEPTH {
        path.push_str("/f");
    }
    let at = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
    vfs.walk(&Cred::root(), &at, path.as_bytes(), WalkFlags::FOLLOW).unwrap()
}

fn rename(vfs: &Vfs, dir: &PathRef<'_>, from: &str, to: &str) {
    let (from, to) = (Name::new(from.as_bytes()).unwrap(), Name::new(to.as_bytes()).unwrap());
    let dir = dir.inode();
    vfs.rename(&Cred::root(), (&dir, from), (&dir, to), RenameMode::NoReplace).unwrap();
}

fn result_of(buffer: &PathBuffer<'_>) -> (Vec<u8>, PathKind, DentrySlot, usize) {
    (buffer.path().to_vec(), buffer.kind, buffer.top, buffer.steps())
}

/// A translation makes several passes over the dentries of a path if they change meanwhile. A pass
/// must not use state of an earlier pass. Trap T8 in `traps.md`.
#[test]
fn pass_that_was_disturbed_at_any_step_starts_afresh() {
    let vfs = chain();
    let (dcache, leaf) = (&vfs.dcache, place(&vfs, DEPTH + 1));
    for depth in 0..DEPTH {
        let dir = place(&vfs, depth);
        let (name, neighbour) = (format!("d{depth}"), format!("neighbour{depth}"));
        let mut buffer = PathBuffer::new();
        buffer.prepend(dcache, leaf.dentry, DentrySlot::NONE, Pass::Optimistic);
        rename(&vfs, &dir, &neighbour, "aside");
        assert!(buffer.is_unchanged(dcache), "a name beside the route");
        rename(&vfs, &dir, &name, "renamed");
        assert!(!buffer.is_unchanged(dcache), "a name on the route, at depth {depth}");
        buffer.collect(dcache, Route::Names(leaf.dentry));
        let mut fresh = PathBuffer::new();
        fresh.collect(dcache, Route::Names(leaf.dentry));
        assert_eq!(result_of(&buffer), result_of(&fresh));
        rename(&vfs, &dir, "renamed", &name);
    }
}

fn translate_in_turn(clear: fn(&mut PathBuffer<'static>)) {
    let vfs = chain();
    let removed = place(&vfs, DEPTH + 1);
    let file = Name::new(b"f").unwrap();
    let dir = place(&vfs, DEPTH).inode();
    vfs.remove(&Cred::root(), &dir, file, crate::Removal::Unlink).unwrap();
    let mut buffer = PathBuffer::new();
    for depth in [DEPTH, 0, 3, 1, DEPTH] {
        for dentry in [place(&vfs, depth).dentry, removed.dentry, place(&vfs, 1).dentry] {
            clear(&mut buffer);
            buffer.prepend(&vfs.dcache, dentry, DentrySlot::NONE, Pass::Optimistic);
            let mut fresh = PathBuffer::new();
            fresh.prepend(&vfs.dcache, dentry, DentrySlot::NONE, Pass::Optimistic);
            assert_eq!(
                result_of(&buffer),
                result_of(&fresh),
                "T8: something is left of the pass before"
            );
        }
    }
}

/// `PathBuffer::clear` must reset all state of an earlier translation. Trap T8 in `traps.md`.
#[test]
fn path_buffer_that_is_cleared_keeps_nothing() {
    translate_in_turn(PathBuffer::clear);
}

/// Control (a variant with the bug must fail): the variant of `PathBuffer::clear` keeps the
/// `PathKind` of the last path. So the next pass over a path's dentries returns a wrong kind. Trap
/// T8 in `traps.md`.
#[test]
#[should_panic(expected = "T8: something is left")]
fn control_path_buffer_that_keeps_its_kind_is_caught() {
    translate_in_turn(|buffer| {
        let kind = buffer.kind;
        buffer.clear();
        buffer.kind = kind;
    });
}

/// `PathBuffer::clear` must also reset the error of a path that was too long for the buffer. Trap
/// T8 in `traps.md`.
#[test]
fn path_buffer_that_was_too_long_fits_after_it_is_cleared() {
    let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default());
    let vfs = vfs.unwrap();
    let mut slots = [vfs.root(), vfs.root()].map(|root| vfs.dcache.inodes.alias(root.slot));
    let mut dir = vfs.root();
    for (letter, slot) in ["a", "b"].iter().zip(&mut slots) {
        dir = make(&vfs, &dir, &letter.repeat(250), S_IFDIR);
        *slot = vfs.dcache.inodes.alias(dir.slot);
    }
    let mut buf = [0; 300];
    let mut buffer = PathBuffer::<STEPS>::lent(&mut buf);
    buffer.prepend(&vfs.dcache, slots[1], DentrySlot::NONE, Pass::Optimistic);
    assert_eq!(buffer.steps(), 2, "it was left where it did not fit");
    buffer.clear();
    buffer.prepend(&vfs.dcache, slots[0], DentrySlot::NONE, Pass::Optimistic);
    assert_eq!(buffer.into_buffer(), Ok(300 - 251));
}

fn waits_for<L>(leaf: &PathRef<'_>, held: L) -> bool {
    let dcache = &leaf.vfs.dcache;
    thread::scope(|scope| {
        let (say, said) = std::sync::mpsc::channel();
        let before = leaf.vfs.stats().fallbacks;
        scope.spawn(move || {
            let mut buf = [0; 4 * DEEP];
            say.send(path_into(dcache, Route::Names(leaf.dentry), &mut buf)).unwrap();
        });
        let early = said.recv_timeout(std::time::Duration::from_millis(300));
        drop(held);
        let (_, kind) = early.unwrap_or_else(|_| said.recv().unwrap()).unwrap();
        assert_eq!(kind, PathKind::Linked);
        assert_eq!(leaf.vfs.stats().fallbacks, before + 1, "it took the locks");
        early.is_err()
    })
}

/// After several failed attempts, a path translation takes locks. They must exclude moves of
/// directories and changes of the last dentry, but no other translations. Trap T9 in `traps.md`.
#[test]
fn locked_pass_excludes_moves_and_changes_of_the_leaf() {
    let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default());
    let vfs = vfs.unwrap();
    let mut leaf = vfs.root_path();
    for _ in 0..=DEEP {
        make(&vfs, &leaf.inode(), "d", S_IFDIR);
        let at = FsStruct { root: vfs.root_path(), cwd: leaf };
        leaf = vfs.walk(&Cred::root(), &at, b"d", WalkFlags::FOLLOW).unwrap();
    }
    let dcache = &vfs.dcache;
    assert!(waits_for(&leaf, dcache.topology.write()));
    assert!(waits_for(&leaf, dcache.dentries.lockref(leaf.dentry).lock()));
    assert!(!waits_for(&leaf, dcache.topology.read_shared()));
}

/// A path translation must end even if other threads rename directories all the time. Each attempt
/// without locks fails, because the test renames an ancestor during it. An attempt with locks then
/// succeeds. Trap T9 in `traps.md`.
#[test]
fn optimistic_passes_alone_never_end_under_a_storm() {
    let vfs = chain();
    let (dcache, leaf, root) = (&vfs.dcache, place(&vfs, DEPTH + 1), place(&vfs, 0));
    for pass in 0..1000 {
        let (from, to) = if pass % 2 == 0 { ("d0", "D0") } else { ("D0", "d0") };
        let mut buffer = PathBuffer::new();
        buffer.prepend(dcache, leaf.dentry, DentrySlot::NONE, Pass::Optimistic);
        rename(&vfs, &root, from, to);
        assert!(!buffer.is_unchanged(dcache));
    }
    let still = dcache.topology.read_shared();
    let mut buffer = PathBuffer::new();
    buffer.prepend(dcache, leaf.dentry, DentrySlot::NONE, Pass::Locked);
    assert!(buffer.is_unchanged(dcache));
    drop(still);
}

#[test]
fn passes_of_translations_are_counted() {
    const TRANSLATIONS: usize = 5_000_000;
    let vfs = chain();
    let (dcache, leaf, root) = (&vfs.dcache, place(&vfs, DEPTH + 1), place(&vfs, 0));
    let counts = || (vfs.stats().retries, vfs.stats().fallbacks);
    let (before, ino) = (counts(), leaf.inode().ino());
    vfs.path_of_ino(ino).unwrap();
    PathBuffer::new().collect(dcache, Route::Names(leaf.dentry));
    assert_eq!(counts(), before, "nothing has changed");
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // ORDERING: Relaxed. A flag; nothing is published through it.
            while !done.load(Ordering::Relaxed) {
                rename(&vfs, &root, "d0", "D0");
                rename(&vfs, &root, "D0", "d0");
            }
        });
        let is_counted = |translate: &dyn Fn()| {
            let before = counts().0;
            (0..TRANSLATIONS).any(|_| {
                translate();
                counts().0 > before
            })
        };
        let by_number = is_counted(&|| drop(vfs.path_of_ino(ino)));
        let by_place = is_counted(&|| PathBuffer::new().collect(dcache, Route::Names(leaf.dentry)));
        // ORDERING: Relaxed. As above.
        done.store(true, Ordering::Relaxed);
        assert!(by_number && by_place, "by number: {by_number}, by place: {by_place}");
    });
    let (retries, fallbacks) = counts();
    assert!(fallbacks <= retries / u64::from(OPTIMISTIC_PASSES), "{retries} and {fallbacks}");
}

/// A path translation under locks reads a name again if the flags of its dentry have changed. The
/// second copy must replace the first.
#[test]
fn locked_pass_beside_marks_grows_and_stays_whole() {
    const PASSES: usize = 2000;
    let vfs = Vfs::new(Arc::new(Tmpfs::new(TmpfsOptions::default())), VfsOptions::default());
    let vfs = vfs.unwrap();
    let (mut dir, mut expected, mut slots) = (vfs.root(), String::new(), vec![]);
    for i in 0..8 {
        let name = format!("{i}{}", "n".repeat(60));
        dir = make(&vfs, &dir, &name, S_IFDIR);
        expected += &format!("/{name}");
        slots.push(vfs.dcache.inodes.alias(dir.slot));
    }
    let leaf = slots.pop().unwrap();
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            // ORDERING: Relaxed. A flag; nothing is published through it.
            while !done.load(Ordering::Relaxed) {
                for &slot in &slots {
                    vfs.dcache.set_mounted(slot, Mounted::Yes);
                    vfs.dcache.set_mounted(slot, Mounted::No);
                }
            }
        });
        let wrong = (0..PASSES).find_map(|_| {
            let mut buffer = PathBuffer::new();
            let _still = vfs.dcache.topology.read_shared();
            buffer.prepend(&vfs.dcache, leaf, DentrySlot::NONE, Pass::Locked);
            (buffer.path() != expected.as_bytes()).then(|| buffer.path().len())
        });
        // ORDERING: Relaxed. As above.
        done.store(true, Ordering::Relaxed);
        assert_eq!(wrong, None, "expected {} bytes", expected.len());
    });
}
