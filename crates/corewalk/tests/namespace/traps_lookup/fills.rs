//! What happens while a back end is asked: traps T21, T24, T25, T28, P12.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex, OnceLock, PoisonError, Weak};
use std::time::Duration;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::Tmpfs;
use corewalk::{Cred, Errno, FileKind, FileSystem, Make, Node, RenameMode, Vfs};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::Watchdog;
use corewalk_testkit::reexec::{self, Reexec};

use crate::backends::{Call, Meddled};
use crate::fixtures::{name, over, rename, tree, walk};
use crate::pauses::{Stop, stopping, until_asleep};

fn is_lookup_of_f(call: Call<'_>) -> bool {
    call == Call::Lookup(b"f")
}

/// Makes `f` in the root and lets the cache forget it.
fn uncached_f(vfs: &Vfs) -> u64 {
    tree(vfs, &["f"]);
    let ino = walk(vfs, "f").unwrap().ino();
    vfs.prune();
    ino
}

/// Has one thread look `f` up until its back end stops, another wait for the first, runs `meanwhile`
/// and returns what the two found.
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

/// Trap T21: whoever waited for another's lookup looks for itself again: what the loader got is out
/// of date if the name was invalidated, and must not be handed on.
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
    assert_eq!(after.misses - before.misses, 2, "the waiter asked for itself");
}

/// Trap T21: without an invalidation one question answers both.
#[test]
fn waiter_is_answered_by_the_loader() {
    let _watchdog = Watchdog::start("a waiter", Duration::from_secs(60));
    let (vfs, stop) = stopping(is_lookup_of_f);
    let ino = uncached_f(&vfs);
    let before = vfs.stats().misses;
    assert_eq!(load_and_wait(&vfs, &stop, Ok(()), || ()), [Ok(ino); 2]);
    assert_eq!(vfs.stats().misses - before, 1);
}

/// Trap T21: the directory is renamed, and another takes its name, while a lookup in it is waited
/// for: both lookups are answered for the directory they were made in.
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

/// Trap T24: a loader that fails keeps the error to itself; who waited asks again.
#[test]
fn waiter_of_a_loader_that_fails_goes_on() {
    let _watchdog = Watchdog::start("a waiter of a failing loader", Duration::from_secs(60));
    let (vfs, stop) = stopping(is_lookup_of_f);
    let ino = uncached_f(&vfs);
    let found = load_and_wait(&vfs, &stop, Err(Errno::IO), || ());
    assert_eq!(found, [Err(Errno::IO), Ok(ino)]);
}

/// How the first loader of a name ends.
#[derive(Clone, Copy, PartialEq, Eq)]
enum End {
    Panics,
    Never,
}

/// Two threads look up, make, remove and rename where the back end's first call ends like `end`.
fn first_call_ends(end: End) {
    let _watchdog = Watchdog::start("a loader that ends badly", Duration::from_secs(10));
    for call in [Call::Lookup(b"f"), Call::Make(b"f"), Call::Remove(b"f"), Call::Rename(b"f")] {
        let is_first = Mutex::new(true);
        let vfs = over(Meddled::new(move |_, at| {
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

/// Trap T24: whoever waits for a call that panics goes on, whatever the call was.
#[test]
fn waiter_of_a_call_that_panics_goes_on() {
    first_call_ends(End::Panics);
}

/// Trap T24: a claim that is never released is a hang, and would be seen as one.
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

/// How the test says that something changed underneath.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Tell {
    Name,
    Directory,
    Nobody,
}

/// At which call, and how, the tree is changed underneath.
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

/// Returns a namespace with `files` in its root, none of them cached, whose back end is changed
/// underneath, once, as `behind` says.
fn changed_behind(files: &[&str], behind: Behind) -> Arc<Vfs> {
    let place: Arc<OnceLock<Weak<Vfs>>> = Arc::new(OnceLock::new());
    let (seen, is_first) = (Arc::clone(&place), Mutex::new(true));
    let vfs = over(Meddled::new(move |fs, call| {
        let Some(vfs) = seen.get().and_then(Weak::upgrade) else { return Ok(()) };
        if call != behind.at || !std::mem::take(&mut *is_first.lock().unwrap()) {
            return Ok(());
        }
        (behind.change)(fs);
        match behind.tell {
            Tell::Name => ["f", "g"].map(|file| vfs.invalidate(&vfs.root(), name(file)).unwrap()),
            Tell::Directory => [(), vfs.invalidate_dir(&vfs.root()).unwrap()],
            Tell::Nobody => [(), ()],
        };
        Ok(())
    }));
    tree(&vfs, files);
    vfs.prune();
    place.set(Arc::downgrade(&vfs)).unwrap();
    vfs
}

/// Runs each kind of call while its names are changed between the back end's answer and the cache's
/// commit, and checks that the cache then says what the back end says.
fn late_answers_are_not_cached(tell: Tell) {
    let done = Call::LookupDone(b"f");
    let rename_done = Call::RenameDone(b"f");
    // A file that was found goes.
    let vfs =
        changed_behind(&["f"], Behind { at: done, change: |fs| remove_behind(fs, "f"), tell });
    drop(walk(&vfs, "f"));
    assert_eq!(walk(&vfs, "f").err(), Some(Errno::NOENT), "stale: f was removed");
    // A file that was not found comes.
    let made = |fs: &Tmpfs| make_behind(fs, "f", S_IFREG);
    let vfs = changed_behind(&[], Behind { at: done, change: made, tell });
    drop(walk(&vfs, "f"));
    assert!(walk(&vfs, "f").is_ok(), "stale: f was made");
    // It comes back as something else.
    let remade = |fs: &Tmpfs| {
        remove_behind(fs, "f");
        make_behind(fs, "f", S_IFDIR);
    };
    let vfs = changed_behind(&["f"], Behind { at: done, change: remade, tell });
    drop(walk(&vfs, "f"));
    assert_eq!(walk(&vfs, "f").unwrap().kind(), FileKind::Directory, "stale: f is a directory");
    // What a rename moved goes from its new name, and comes at its old one.
    let moved = |fs: &Tmpfs| {
        remove_behind(fs, "g");
        make_behind(fs, "f", S_IFREG);
    };
    let vfs = changed_behind(&["f"], Behind { at: rename_done, change: moved, tell });
    let ino = walk(&vfs, "f").unwrap().ino();
    rename(&vfs, "f", "g", RenameMode::Replace).unwrap();
    assert_eq!(walk(&vfs, "g").err(), Some(Errno::NOENT), "stale: g was removed");
    assert_ne!(walk(&vfs, "f").unwrap().ino(), ino, "stale: f is another");
}

/// Traps T25, P12: what a back end answered before its name was invalidated is not cached after.
#[test]
fn late_answer_after_an_invalidation_of_the_name_is_refused() {
    late_answers_are_not_cached(Tell::Name);
}

/// Traps T25, P12: the same for the whole directory.
#[test]
fn late_answer_after_an_invalidation_of_the_directory_is_refused() {
    late_answers_are_not_cached(Tell::Directory);
}

/// Trap T25: the change alone, of which nobody tells the cache, leaves the old answer in it.
#[test]
#[should_panic(expected = "stale: f was removed")]
fn control_change_without_an_invalidation_is_caught() {
    late_answers_are_not_cached(Tell::Nobody);
}

/// Returns a namespace with a directory `f` that is held, whose back end moves it to `g` when it is
/// next asked for `f`, and then stops.
fn moved_underneath() -> (Arc<Vfs>, Stop) {
    let (said, arrived) = channel();
    let (go_on, told) = channel::<Result<(), Errno>>();
    let once = Mutex::new(Some((said, told)));
    let vfs = over(Meddled::new(move |fs, call| {
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

/// Trap T28: a directory that shows up under a new name while somebody works on its old one is
/// looked up at once, without an error, and its dentry follows when the old name is free.
#[test]
fn directory_that_was_moved_underneath_is_answered_at_once() {
    let _watchdog = Watchdog::start("a directory moved underneath", Duration::from_secs(60));
    let (vfs, stop) = moved_underneath();
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

/// Trap T28: a walk through it, which needs the dentry there, waits without failing or spinning.
#[test]
fn walk_through_a_directory_that_was_moved_underneath_waits() {
    let _watchdog = Watchdog::start("a walk through a moved directory", Duration::from_secs(60));
    let (vfs, stop) = moved_underneath();
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
