//! Tests of lookups and changes of a name. During each, another thread changes the name, or the
//! call of the back end fails (traps T21, T24, T25, T28 and P12 in `traps.md`).

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::Tmpfs;
use corewalk::{Cred, Errno, FileKind, FileSystem, Make, Node, RenameMode, Vfs};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{Watchdog, until_asleep};
use corewalk_testkit::reexec::{self, Reexec};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, over, rename, tree, walk};
use crate::pauses::{Stop, stopping};

fn is_lookup_of_f(call: Call<'_>) -> bool {
    call == Call::Lookup(b"f")
}

fn uncached_f(vfs: &Vfs) -> u64 {
    tree(vfs, &["f"]);
    let ino = walk(vfs, "f").unwrap().ino();
    vfs.prune();
    ino
}

fn load_and_wait(
    vfs: &Vfs,
    stop: &Stop,
    answer: Result<(), Errno>,
    meanwhile: impl FnOnce(),
) -> [Result<u64, Errno>; 2] {
    let lookup = || vfs.lookup(&Cred::root(), &vfs.root(), name("f")).map(|found| found.ino());
    thread::scope(|scope| {
        let loader = scope.spawn(lookup);
        stop.arrived.recv().expect("the loader asks the back end");
        let builder = thread::Builder::new().name("waiter".to_owned());
        let waiter = builder.spawn_scoped(scope, lookup).expect("the system gives a thread");
        until_asleep("waiter", &waiter);
        meanwhile();
        stop.go_on.send(answer).expect("the back end waits");
        [loader.join().unwrap(), waiter.join().unwrap()]
    })
}

/// A thread that has waited for another lookup of the same name must search the cache again. If the
/// name was invalidated meanwhile, it must not return the first answer, which is stale. Trap T21 in
/// `traps.md`.
#[test]
fn waiter_after_an_invalidation_asks_again() {
    let _watchdog = Watchdog::start("a waiter after an invalidation", Duration::from_secs(60));
    let (vfs, stop) = stopping(is_lookup_of_f);
    let ino = uncached_f(&vfs);
    let before = vfs.stats();
    let found =
        load_and_wait(&vfs, &stop, Ok(()), || vfs.invalidate(&vfs.root(), name("f")).unwrap());
    assert_eq!(found, [Ok(ino); 2]);
    let after = vfs.stats();
    assert_eq!(after.refused_fills - before.refused_fills, 1);
    assert_eq!(after.misses - before.misses, 2, "the waiter did not ask the back end");
}

/// Of two threads that look up the same name, the second waits for the first. Without an
/// invalidation, one call of the back end must answer both. Trap T21 in `traps.md`.
#[test]
fn waiter_gets_the_answer_of_the_loader() {
    let _watchdog = Watchdog::start("a waiter", Duration::from_secs(60));
    let (vfs, stop) = stopping(is_lookup_of_f);
    let ino = uncached_f(&vfs);
    let before = vfs.stats().misses;
    assert_eq!(load_and_wait(&vfs, &stop, Ok(()), || ()), [Ok(ino); 2]);
    assert_eq!(vfs.stats().misses - before, 1);
}

/// A lookup that waits for another lookup must be answered for its own directory. This holds even
/// if that directory is renamed meanwhile and another takes its name. Trap T21 in `traps.md`.
#[test]
fn waiter_in_a_renamed_directory_is_answered_for_that_directory() {
    let _watchdog = Watchdog::start("a waiter in a renamed directory", Duration::from_secs(60));
    let (vfs, stop) = stopping(is_lookup_of_f);
    tree(&vfs, &["d/", "d/f", "e/", "e/f"]);
    let right = walk(&vfs, "d/f").unwrap().ino();
    vfs.prune();
    let d = walk(&vfs, "d").unwrap();
    let lookup = || vfs.lookup(&Cred::root(), &d, name("f")).map(|found| found.ino());
    thread::scope(|scope| {
        let loader = scope.spawn(lookup);
        stop.arrived.recv().unwrap();
        let builder = thread::Builder::new().name("waiter".to_owned());
        let waiter = builder.spawn_scoped(scope, lookup).unwrap();
        until_asleep("waiter", &waiter);
        rename(&vfs, "d", "e", RenameMode::Exchange).unwrap();
        stop.go_on.send(Ok(())).unwrap();
        assert_eq!([loader.join().unwrap(), waiter.join().unwrap()], [Ok(right); 2]);
    });
    assert_eq!(walk(&vfs, "e/f").unwrap().ino(), right);
}

/// Of two threads that look up the same name, the second waits for the first. If the back end
/// fails, only the first must get the error, and the second must ask again. Trap T24 in `traps.md`.
#[test]
fn waiter_of_a_failing_loader_asks_again() {
    let _watchdog = Watchdog::start("a waiter of a failing loader", Duration::from_secs(60));
    let (vfs, stop) = stopping(is_lookup_of_f);
    let ino = uncached_f(&vfs);
    let found = load_and_wait(&vfs, &stop, Err(Errno::IO), || ());
    assert_eq!(found, [Err(Errno::IO), Ok(ino)]);
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Panics,
    Never,
}

fn first_call_ends(end: End) {
    let _watchdog = Watchdog::start("a call that panics or never ends", Duration::from_secs(10));
    for call in [Call::Lookup(b"f"), Call::Make(b"f"), Call::Remove(b"f"), Call::Rename(b"f")] {
        let is_first = Mutex::new(true);
        let vfs = over(HookedTmpfs::new(move |_, at| {
            let is_now = at == call
                && std::mem::take(&mut *is_first.lock().unwrap_or_else(PoisonError::into_inner));
            match end {
                End::Panics => assert!(!is_now, "on purpose"),
                End::Never if is_now => loop {
                    thread::park();
                },
                End::Never => {}
            }
            Ok(())
        }));
        if matches!(call, Call::Remove(_) | Call::Rename(_)) {
            tree(&vfs, &["f"]);
        }
        let act = || match call {
            Call::Lookup(_) => drop(walk(&vfs, "f")),
            Call::Make(_) => tree(&vfs, &["f"]),
            Call::Remove(_) => {
                crate::fixtures::remove(&vfs, "f", corewalk::Removal::Unlink).unwrap();
            }
            _ => rename(&vfs, "f", "g", RenameMode::Replace).unwrap(),
        };
        let panics = thread::scope(|scope| {
            let both = [(); 2].map(|()| scope.spawn(|| catch_unwind(AssertUnwindSafe(act))));
            both.map(|thread| usize::from(thread.join().unwrap().is_err()))
        });
        assert_eq!(panics.iter().sum::<usize>(), 1, "after {call:?}");
    }
}

/// A panic in any call must release the in-lookup lock. Trap T24 in `traps.md`.
#[test]
fn waiter_of_a_panicking_call_goes_on() {
    first_call_ends(End::Panics);
}

/// Control (a variant with the bug must fail): an in-lookup lock is never released, and the waiting
/// thread hangs.
#[test]
fn control_call_that_never_ends_is_caught() {
    const NAME: &str = "traps_lookup::fills::control_call_that_never_ends_is_caught";
    if reexec::role().is_some() {
        first_call_ends(End::Never);
        return;
    }
    let child = Reexec::test(NAME).role("hang").timeout(Duration::from_secs(60)).run();
    assert_eq!(child.signal(), Some(reexec::SIGABRT), "{child}");
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    Name,
    Directory,
    Nothing,
}

#[derive(Clone, Copy)]
struct Behind {
    at: Call<'static>,
    change: fn(&Tmpfs),
    tell: Tell,
}

fn root_node(fs: &Tmpfs) -> Node<'static> {
    Node::detached(fs.root().unwrap().ino, FileKind::Directory)
}

fn make_behind(fs: &Tmpfs, file: &str, mode: u32) {
    fs.make(root_node(fs), name(file), &Make::new(mode | 0o755, 0, 0)).unwrap();
}

fn remove_behind(fs: &Tmpfs, file: &str) {
    let ino = fs.lookup(root_node(fs), name(file)).unwrap().ino;
    fs.remove(root_node(fs), name(file), Node::detached(ino, FileKind::Regular)).unwrap();
}

fn changed_in_back_end(files: &[&str], behind: Behind) -> Arc<Vfs> {
    let place: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let (seen, is_first) = (Arc::clone(&place), Mutex::new(true));
    let vfs = over(HookedTmpfs::new(move |fs, call| {
        let Some(vfs) = seen.get().and_then(Weak::upgrade) else { return Ok(()) };
        if call != behind.at || !std::mem::take(&mut *is_first.lock().unwrap()) {
            return Ok(());
        }
        (behind.change)(fs);
        match behind.tell {
            Tell::Name => ["f", "g"].map(|file| vfs.invalidate(&vfs.root(), name(file)).unwrap()),
            Tell::Directory => [(), vfs.invalidate_dir(&vfs.root()).unwrap()],
            Tell::Nothing => [(), ()],
        };
        Ok(())
    }));
    tree(&vfs, files);
    vfs.prune();
    place.set(Arc::downgrade(&vfs)).unwrap();
    vfs
}

/// Another program changes a name between the back end's answer and the update of the cache. The
/// cache must agree with the back end afterwards.
fn check_late_answers(tell: Tell) {
    let done = Call::LookupDone(b"f");
    let rename_done = Call::RenameDone(b"f");
    // The back end finds a file, and then the file is removed.
    let vfs =
        changed_in_back_end(&["f"], Behind { at: done, change: |fs| remove_behind(fs, "f"), tell });
    drop(walk(&vfs, "f"));
    assert_eq!(walk(&vfs, "f").err(), Some(Errno::NOENT), "stale: f was removed");
    // The back end finds no file, and then a file is made.
    let made = |fs: &Tmpfs| make_behind(fs, "f", S_IFREG);
    let vfs = changed_in_back_end(&[], Behind { at: done, change: made, tell });
    drop(walk(&vfs, "f"));
    assert!(walk(&vfs, "f").is_ok(), "stale: f was made");
    // The back end finds a file, and then a directory replaces the file.
    let remade = |fs: &Tmpfs| {
        remove_behind(fs, "f");
        make_behind(fs, "f", S_IFDIR);
    };
    let vfs = changed_in_back_end(&["f"], Behind { at: done, change: remade, tell });
    drop(walk(&vfs, "f"));
    assert_eq!(walk(&vfs, "f").unwrap().kind(), FileKind::Directory, "stale: f is a directory");
    let moved = |fs: &Tmpfs| {
        remove_behind(fs, "g");
        make_behind(fs, "f", S_IFREG);
    };
    let vfs = changed_in_back_end(&["f"], Behind { at: rename_done, change: moved, tell });
    let ino = walk(&vfs, "f").unwrap().ino();
    rename(&vfs, "f", "g", RenameMode::Replace).unwrap();
    assert_eq!(walk(&vfs, "g").err(), Some(Errno::NOENT), "stale: g was removed");
    assert_ne!(walk(&vfs, "f").unwrap().ino(), ino, "stale: f is another");
}

/// An answer that the back end gave before its name was invalidated must not be cached. Traps T25
/// and P12 in `traps.md`.
#[test]
fn late_answer_after_an_invalidation_of_the_name_is_refused() {
    check_late_answers(Tell::Name);
}

/// An answer that the back end gave before its whole directory was invalidated must not be cached.
/// Traps T25 and P12 in `traps.md`.
#[test]
fn late_answer_after_an_invalidation_of_the_directory_is_refused() {
    check_late_answers(Tell::Directory);
}

/// Control (a variant with the bug must fail): the back end changes a name, and the name is not
/// invalidated. So the old answer stays in the cache, and `check_late_answers` must detect that.
#[test]
#[should_panic(expected = "stale: f was removed")]
fn control_change_without_an_invalidation_is_caught() {
    check_late_answers(Tell::Nothing);
}

fn moved_in_back_end() -> (Arc<Vfs>, Stop) {
    let (said, arrived) = channel();
    let (go_on, told) = channel::<Result<(), Errno>>();
    let once = Mutex::new(Some((said, told)));
    let vfs = over(HookedTmpfs::new(move |fs, call| {
        if !is_lookup_of_f(call) || fs.lookup(root_node(fs), name("f")).is_err() {
            return Ok(());
        }
        let Some((said, told)) = once.lock().unwrap().take() else { return Ok(()) };
        let root = root_node(fs);
        fs.rename((root, name("f")), (root, name("g")), RenameMode::Replace).unwrap();
        said.send(()).unwrap();
        told.recv().unwrap()
    }));
    tree(&vfs, &["f/", "f/x"]);
    (vfs, Stop { arrived, go_on })
}

/// The back end has moved a directory, while another lookup holds the in-lookup lock of its old
/// name. A lookup of the new name must succeed immediately. It must leave the dentry at the old
/// name. A later lookup moves the dentry. Trap T28 in `traps.md`.
#[test]
fn directory_moved_in_the_back_end_is_found_at_once() {
    let _watchdog = Watchdog::start("a directory moved underneath", Duration::from_secs(60));
    let (vfs, stop) = moved_in_back_end();
    let held = walk(&vfs, "f").unwrap();
    vfs.invalidate(&vfs.root(), name("f")).unwrap();
    thread::scope(|scope| {
        let loader = scope.spawn(|| walk(&vfs, "f").map(|found| found.ino()));
        stop.arrived.recv().unwrap();
        let found = vfs.lookup(&Cred::root(), &vfs.root(), name("g")).map(|found| found.ino());
        stop.go_on.send(Ok(())).unwrap();
        assert_eq!(found, Ok(held.ino()), "the old name is in use");
        assert_eq!(loader.join().unwrap(), Err(Errno::NOENT));
    });
    assert_eq!(walk(&vfs, "g/x").unwrap().path().unwrap(), b"/g/x");
    assert_eq!(held.path().unwrap(), b"/g");
}

/// The back end has moved a directory, while another lookup holds the in-lookup lock of its old
/// name. A walk through the new name needs the directory's dentry, so it must wait for that lookup,
/// without an error and without spinning. Trap T28 in `traps.md`.
#[test]
fn walk_through_a_directory_moved_in_the_back_end_waits() {
    let _watchdog = Watchdog::start("a walk through a moved directory", Duration::from_secs(60));
    let (vfs, stop) = moved_in_back_end();
    let _held = walk(&vfs, "f").unwrap();
    vfs.invalidate(&vfs.root(), name("f")).unwrap();
    thread::scope(|scope| {
        let loader = scope.spawn(|| walk(&vfs, "f").map(|found| found.ino()));
        stop.arrived.recv().unwrap();
        let builder = thread::Builder::new().name("walker".to_owned());
        let path = || walk(&vfs, "g/x").map(|found| found.path().unwrap());
        let walker = builder.spawn_scoped(scope, path).unwrap();
        until_asleep("walker", &walker);
        stop.go_on.send(Ok(())).unwrap();
        assert_eq!(walker.join().unwrap().as_deref(), Ok(&b"/g/x"[..]));
        assert_eq!(loader.join().unwrap(), Err(Errno::NOENT));
    });
}
