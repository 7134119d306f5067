//! Tests of the four dentry caches: lookups and path translations before, during and after renames.

use super::*;
use crate::corpus::tests::Move;
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use fastrand::Rng;

/// A flag that ends the threads of a test.
#[derive(Default)]
struct Stop(AtomicBool);

impl Stop {
    /// Tells the threads to stop.
    fn set(&self) {
        // ORDERING: Relaxed. A flag; the results come back by joining.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if the threads must end.
    fn is_set(&self) -> bool {
        // ORDERING: Relaxed. See `set`.
        self.0.load(Ordering::Relaxed)
    }
}

/// Returns every design, filled with `corpus`.
pub(crate) fn all(corpus: &Corpus) -> Vec<Box<dyn Dentries>> {
    let designs = [Design::GlobalLock, Design::SeqRwLock, Design::SeqLock, Design::DcacheLock];
    let new = |design| Before::new(design, corpus.len() + 1024);
    designs.map(|design| Box::new(filled(new(design), corpus)) as _).into()
}

#[test]
fn every_design_answers_every_question_about_the_tree() {
    let corpus = Corpus::collect(2000);
    for dentries in all(&corpus) {
        for ino in corpus.inodes().skip(1) {
            let (parent, name) = (corpus.parent(ino), corpus.name(ino));
            assert_eq!(dentries.lookup(parent, name), Some(ino), "{}", dentries.variant());
            let path = corpus.path(ino);
            assert_eq!(dentries.path(ino).as_deref(), Some(&path[..]), "{}", dentries.variant());
            assert_eq!(dentries.walk(&path), Some(ino), "{}", dentries.variant());
        }
        assert_eq!(dentries.lookup(1, b"no-such-name"), None, "{}", dentries.variant());
        assert_eq!(dentries.walk(b"/usr/no-such-name"), None, "{}", dentries.variant());
        assert_eq!(dentries.path(1 << 40), None, "{}", dentries.variant());
        assert_eq!(dentries.path(1).as_deref(), Some(&b"/"[..]), "{}", dentries.variant());
        assert_eq!(dentries.walk(b"/"), Some(1), "{}", dentries.variant());
        assert_eq!(dentries.stats().retries, 0, "{}", dentries.variant());
    }
}

#[test]
fn every_design_moves_a_directory_with_all_below_it() {
    let corpus = Corpus::collect(2000);
    let moved = corpus.movable();
    let below = corpus.inodes().find(|&ino| corpus.parent(ino) == moved.ino).expect("it has some");
    let home = corpus.path(below);
    let away = [b"/synthetic/moved-away", &home[corpus.path(moved.ino).len()..]].concat();
    for dentries in all(&corpus) {
        let variant = dentries.variant();
        let (old, new) = ((moved.home.0, &moved.home.1[..]), (moved.away.0, &moved.away.1[..]));
        assert!(dentries.rename(old, new), "{variant}");
        assert_eq!(dentries.path(below).as_deref(), Some(&away[..]), "{variant}");
        assert_eq!((dentries.walk(&away), dentries.walk(&home)), (Some(below), None), "{variant}");
        assert!(!dentries.rename(old, new), "{variant}: the name is gone");
        assert!(dentries.rename(new, old), "{variant}");
        assert!(!dentries.rename(old, (moved.ino, b"inside")), "{variant}: no loop");
        let taken = (corpus.parent(below), corpus.name(below));
        assert!(!dentries.rename(old, taken), "{variant}: no loop, and the name is taken");
        assert_eq!(dentries.walk(&home), Some(below), "{variant}");
    }
}

#[test]
fn every_design_makes_and_unlinks_a_name_once() {
    let corpus = Corpus::collect(50);
    for dentries in all(&corpus) {
        let variant = dentries.variant();
        // More names than the cache has dentries: freed dentries must be used again.
        for turn in 0..5000_u32 {
            let name = format!("file-{turn}-{}", "x".repeat(turn as usize % 60)).into_bytes();
            let made = dentries.create(2, &name, FileKind::Regular).expect(variant);
            assert_eq!(dentries.create(2, &name, FileKind::Regular), None, "{variant}");
            let path = [b"/synthetic/", &name[..]].concat();
            assert_eq!(dentries.path(made).as_deref(), Some(&path[..]), "{variant}");
            assert_eq!(dentries.walk(&path), Some(made), "{variant}");
            assert!(dentries.unlink(2, &name) && !dentries.unlink(2, &name), "{variant}");
            assert_eq!((dentries.walk(&path), dentries.path(made)), (None, None), "{variant}");
        }
        assert!(!dentries.unlink(1, b"usr"), "{variant}: a directory");
    }
}

/// Checks that a path translation during renames ends, and returns a path that existed at some
/// instant. A wrong translation mixes two names or two attempts, or never ends (traps T1, T8 and T9
/// in `traps.md`). A directory, and a file in it with a short and a long name, are renamed again
/// and again.
#[test]
fn path_of_every_design_existed_at_one_instant() {
    let corpus = Corpus::collect(500);
    for dentries in all(&corpus) {
        storm(&*dentries, &corpus.movable());
    }
}

fn storm(dentries: &dyn Dentries, moved: &Move) {
    const PATHS: u32 = 100_000;
    const LONG: &[u8] = &[b'l'; 200];
    let variant = dentries.variant();
    let file = dentries.create(moved.ino, b"file", FileKind::Regular).expect("there is room");
    let home = dentries.path(moved.ino).expect("it is linked");
    let at = |directory: &[u8], name: &[u8]| [directory, b"/", name].concat();
    let right = [
        at(&home, b"file"),
        at(b"/synthetic/moved-away", b"file"),
        at(b"/synthetic/moved-away", LONG),
    ];
    let done = Stop::default();
    thread::scope(|scope| {
        scope.spawn(|| {
            let (home, away) = ((moved.home.0, &moved.home.1[..]), (2, &b"moved-away"[..]));
            let (short, long) = ((moved.ino, &b"file"[..]), (moved.ino, LONG));
            while !done.is_set() {
                for (from, to) in [(home, away), (short, long), (long, short), (away, home)] {
                    assert!(dentries.rename(from, to), "{variant}");
                }
            }
        });
        let mut seen = [0_u32; 3];
        let mut wrong = None;
        for turn in 0..100 * PATHS {
            if wrong.is_some() || (turn >= PATHS && seen.iter().all(|&count| count > 0)) {
                break;
            }
            let path = dentries.path(file).unwrap_or_default();
            match right.iter().position(|right| *right == path) {
                Some(which) => seen[which] += 1,
                None => wrong = Some(path.escape_ascii().to_string()),
            }
        }
        done.set();
        assert_eq!(wrong, None, "{variant}: a path that never existed");
        assert!(seen.iter().all(|&count| count > 0), "{variant}: {seen:?}");
    });
    assert!(dentries.unlink(moved.ino, b"file"), "{variant}");
}

/// Checks that a walk to a name that never changes always succeeds (trap T12 in `traps.md`). Other
/// threads rename, make and unlink names whose dentries move between the same hash chains, and
/// reuse freed slots.
#[test]
fn stable_names_are_found_while_others_come_and_go() {
    let corpus = Corpus::collect(200);
    for dentries in all(&corpus) {
        let variant = dentries.variant();
        dentries.create(2, b"a", FileKind::Regular).expect("there is room");
        let stable: Vec<(u64, Vec<u8>)> =
            corpus.inodes().skip(1).map(|ino| (ino, corpus.path(ino))).collect();
        let done = Stop::default();
        thread::scope(|scope| {
            scope.spawn(|| {
                while !done.is_set() {
                    assert!(dentries.rename((2, b"a"), (2, b"b")), "{variant}");
                    assert!(dentries.rename((2, b"b"), (2, b"a")), "{variant}");
                }
            });
            scope.spawn(|| {
                let mut rng = Rng::with_seed(7);
                while !done.is_set() {
                    let name = format!("passing-{}", rng.u64(..1000)).into_bytes();
                    assert!(dentries.create(3, &name, FileKind::Regular).is_some(), "{variant}");
                    assert!(dentries.unlink(3, &name), "{variant}");
                }
            });
            let mut wrong = None;
            for turn in 0..50_000 {
                let (ino, path) = &stable[turn % stable.len()];
                if dentries.walk(path) != Some(*ino) {
                    wrong = Some(path.escape_ascii().to_string());
                }
            }
            done.set();
            assert_eq!(wrong, None, "{variant}");
        });
    }
}

/// Checks that a reader cannot see the effect of a rename before the rename begins (trap T13 in
/// `traps.md`). A writer renames a file from `step-0` to `step-1`, and so on. If the file is
/// missing under one name, the rename to the next name must have begun.
#[test]
fn file_that_is_renamed_is_never_under_neither_name() {
    let corpus = Corpus::collect(50);
    for dentries in all(&corpus) {
        let names: Vec<Vec<u8>> = (0..64).map(|at| format!("step-{at}").into_bytes()).collect();
        dentries.create(2, &names[0], FileKind::Regular).expect("there is room");
        let overtaken = follow(&*dentries, &names);
        assert_eq!(overtaken, None, "{}: neither name was there", dentries.variant());
    }
}

/// Looks a file up under one name after the other while a writer renames it. Returns the number of
/// a rename whose effect was seen before it began.
fn follow(dentries: &dyn Dentries, names: &[Vec<u8>]) -> Option<u64> {
    const STEPS: u64 = 200_000;
    let name = |at: u64| &names[(at % 64) as usize][..];
    let (begun, ended) = (AtomicU64::new(0), AtomicU64::new(0));
    thread::scope(|scope| {
        let writer = scope.spawn(|| {
            for at in 0..STEPS {
                // ORDERING(step): Release. A reader that sees the effect of the rename also sees
                // that the rename had begun.
                begun.store(at + 1, Ordering::Release);
                assert!(dentries.rename((2, name(at)), (2, name(at + 1))));
                // ORDERING(step): Release. The file has the name `at + 1` now. A reader that loads
                // `at + 1` from `ended` finds it under this name or a later one.
                ended.store(at + 1, Ordering::Release);
            }
        });
        let mut overtaken = None;
        while overtaken.is_none() && !writer.is_finished() {
            // ORDERING(step): Acquire. See the writer.
            let mut at = ended.load(Ordering::Acquire);
            while dentries.lookup(2, name(at)).is_none() {
                at += 1;
                // ORDERING(step): Acquire. See the writer.
                if at > begun.load(Ordering::Acquire) {
                    overtaken = Some(at);
                    break;
                }
            }
        }
        writer.join().expect("the writer panicked");
        overtaken
    })
}
