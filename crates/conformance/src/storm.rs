//! The storm: several threads change the files of one directory, while the directories above it are
//! renamed.
//!
//! The content of a file tells the file's name and version. So a thread notices if a call has
//! reached another file, lost a file or returned old bytes. At the end, the tree must have exactly
//! the files that the threads have kept.
//!
//! | role | each turn |
//! |---|---|
//! | mover | renames or exchanges the directories above |
//! | publisher | writes a new file and renames it over the previous version |
//! | maker | makes a file, and removes it while it is open, renames it, or links it |
//! | writer | writes, cuts and reads a file of its own |
//! | reader | reads published versions and files that stay, and lists the directory |
//!
//! Each thread changes only names of its own, so each call has exactly one right answer. The
//! threads end after a fixed number of calls.
//!
//! A storm runs on a [`Tree`]. It calls a `Vfs` over a back end (the check `storm` of a `Suite`),
//! or makes system calls in a directory (`Mounted`).
//!
//! The storm finds, for example, a back end that uses a path after a rename has made it invalid
//! (trap X1 in `traps.md`).

mod roles;

use std::sync::Barrier;

use corewalk::{Errno, RenameMode};
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;

use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, is_unsupported, is_without_mode};
use crate::checks::tree::pattern;
use crate::plan::{Settings, message};
use roles::{Kept, Worker};

pub(crate) const DIRS: [&str; 4] = ["a", "a/d", "a/d/e", "s"];
pub(crate) const WORK_DIR: &str = "a/d/e";

const ROLES: usize = 5;
/// Number of files that no thread changes. Each listing must have all of them.
const FIXED: u64 = 32;
/// Each thread makes at least one turn (one step of its role) per this number of calls of the
/// storm. So slow threads do their part, too.
const CALLS_PER_TURN: u64 = 200;
const TURNS_MIN: u64 = 4;
const LIST_PAGE: usize = 128;
/// The failure of a thread that only stopped because another thread failed. The report leaves it
/// out.
const STOPPED: &str = "another thread has stopped the storm";

/// A tree with the directories [`DIRS`], and the calls that a storm makes on it.
///
/// Names without a path are in [`WORK_DIR`]. The tree holds that directory open, so it finds the
/// directory while the threads rename its parents.
pub(crate) trait Tree: Sync {
    type File<'t>: TreeFile
    where
        Self: 't;

    /// True if a removed file that is open has 0 links.
    const HAS_NO_LINKS_WHEN_REMOVED: bool;

    fn move_dir(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno>;

    fn rename(&self, from: &str, to: &str, mode: RenameMode) -> Result<(), Errno>;

    fn create(&self, name: &str) -> Checked<Self::File<'_>>;

    fn open(&self, name: &str) -> Checked<Self::File<'_>>;

    fn unlink(&self, name: &str) -> Result<(), Errno>;

    fn link(&self, name: &str, new: &str) -> Result<(), Errno>;

    fn list(&self, page: usize) -> Checked<Vec<String>>;

    /// Evicts unused entries from the cache, if the tree can.
    fn cool(&self);

    fn check_dirs(&self) -> Checked;
}

pub(crate) trait TreeFile {
    fn read_all(&self) -> Checked<Vec<u8>>;

    fn write(&self, at: u64, bytes: &[u8]) -> Checked;

    fn truncate(&self, size: u64) -> Checked;

    fn stat(&self) -> Checked<FileStat>;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct FileStat {
    pub(crate) ino: u64,
    pub(crate) nlink: u64,
    pub(crate) size: u64,
}

struct Storm<'t, T> {
    tree: &'t T,
    settings: Settings,
    has_exchange: bool,
    has_links: bool,
    /// The mode of renames to unused names: `NoReplace` if the file system has it, else `Replace`.
    to_free_name: RenameMode,
    calls: AtomicU64,
    unfinished: AtomicU64,
    is_stopped: AtomicBool,
    /// The last version that each publisher has published, or 0.
    published: Vec<AtomicU64>,
}

fn fixed(number: u64) -> Vec<u8> {
    pattern(number, 10 + 97 * number as usize)
}

fn is_without_links(error: Errno) -> bool {
    error == Errno::PERM || is_unsupported(error)
}

pub(crate) fn run(tree: &impl Tree, settings: Settings) -> Checked {
    let threads = settings.threads.max(ROLES);
    let storm = Storm::new(tree, settings, threads)?;
    // With a fast back end, the first thread could otherwise end before the last one starts.
    let start = Barrier::new(threads);
    let outcomes: Vec<Checked<Kept>> = thread::scope(|scope| {
        let workers: Vec<_> = (0..threads)
            .map(|number| {
                let (storm, start) = (&storm, &start);
                scope.spawn(move || {
                    let _end = StopOnPanic(storm);
                    start.wait();
                    let kept = storm.work(number);
                    if kept.is_err() {
                        storm.stop();
                    }
                    kept
                })
            })
            .collect();
        let join = |worker: thread::ScopedJoinHandle<'_, Checked<Kept>>| {
            worker
                .join()
                .unwrap_or_else(|payload| Stop::failed(format!("a panic: {}", message(&*payload))))
        };
        workers.into_iter().map(join).collect()
    });
    let mut kept = Kept::new();
    for outcome in outcomes {
        match outcome {
            Ok(files) => kept.extend(files),
            // The file system has supported each of these calls before. So a refusal as unsupported
            // is a failure.
            Err(Stop::Failed(why) | Stop::Skipped(why)) if why != STOPPED => {
                return Stop::failed(why);
            }
            Err(_) => {}
        }
    }
    storm.check_end(&kept).map_err(|stop| stop.at("after the storm"))
}

impl<'t, T: Tree> Storm<'t, T> {
    fn new(tree: &'t T, settings: Settings, threads: usize) -> Checked<Storm<'t, T>> {
        for number in 0..FIXED {
            tree.create(&format!("fixed{number}"))?.write(0, &fixed(number))?;
        }
        tree.move_dir("a", "b", RenameMode::Replace).needs("rename")?;
        tree.move_dir("b", "a", RenameMode::Replace).must("rename")?;
        let has_exchange = is_supported("exchange", is_without_mode, || {
            tree.move_dir("a", "s", RenameMode::Exchange)?;
            tree.move_dir("a", "s", RenameMode::Exchange)
        })?;
        let has_no_replace = is_supported("rename to a free name", is_without_mode, || {
            tree.rename("fixed0", "free", RenameMode::NoReplace)?;
            tree.rename("free", "fixed0", RenameMode::NoReplace)
        })?;
        let has_links = is_supported("link", is_without_links, || {
            tree.link("fixed0", "link")?;
            tree.unlink("link")
        })?;
        Ok(Storm {
            tree,
            settings,
            has_exchange,
            has_links,
            to_free_name: match has_no_replace {
                true => RenameMode::NoReplace,
                false => RenameMode::Replace,
            },
            calls: AtomicU64::new(0),
            unfinished: AtomicU64::new(threads as u64),
            is_stopped: AtomicBool::new(false),
            published: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Runs one thread of the storm. Returns the files of the thread that must exist at the end.
    fn work(&self, number: usize) -> Checked<Kept> {
        let mut worker = Worker::new(self, number);
        let turns_min = (self.settings.operations / CALLS_PER_TURN).max(TURNS_MIN);
        let mut turn = 0;
        while self.goes_on(worker.calls_per_turn()) {
            if self.is_stopped() {
                return Stop::failed(STOPPED);
            }
            let place = |stop: Stop| stop.at(&format!("thread {number}, turn {turn}"));
            worker.turn(turn).map_err(place)?;
            turn += 1;
            if turn == turns_min {
                // ORDERING: Relaxed. The count only tells threads when to end.
                self.unfinished.fetch_sub(1, Ordering::Relaxed);
            }
        }
        Ok(worker.into_kept())
    }

    fn goes_on(&self, calls: u64) -> bool {
        // ORDERING: Relaxed. The counts only tell threads when to end.
        let before = self.calls.fetch_add(calls, Ordering::Relaxed);
        // ORDERING: Relaxed. The count only tells threads when to end.
        before < self.settings.operations || self.unfinished.load(Ordering::Relaxed) > 0
    }

    fn stop(&self) {
        // ORDERING: Relaxed. A stop flag.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        // ORDERING: Relaxed. A stop flag.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Checks that the tree has exactly the files in `kept` and the files that no thread changes.
    fn check_end(&self, kept: &Kept) -> Checked {
        let tree = self.tree;
        tree.cool();
        tree.check_dirs()?;
        let fixed_names = (0..FIXED).map(|number| format!("fixed{number}"));
        let wanted: Vec<String> = fixed_names.chain(kept.keys().cloned()).collect();
        let found = tree.list(LIST_PAGE)?;
        let lost: Vec<_> = wanted.iter().filter(|name| !found.contains(name)).collect();
        let extra: Vec<_> = found.iter().filter(|name| !wanted.contains(name)).collect();
        ensure(lost.is_empty(), || format!("the files {lost:?} are lost"))?;
        ensure(extra.is_empty(), || format!("the files {extra:?} were removed"))?;
        let has_content = |name: &str, content: &[u8]| {
            tree.cool();
            let found = tree.open(name)?.read_all()?;
            ensure_bytes(&format!("content of {name:?}"), &found, content)
        };
        for (name, content) in kept {
            has_content(name, content)?;
        }
        for number in 0..FIXED {
            has_content(&format!("fixed{number}"), &fixed(number))?;
        }
        Ok(())
    }
}

fn is_supported(
    what: &str,
    is_lacking: fn(Errno) -> bool,
    attempt: impl FnOnce() -> Result<(), Errno>,
) -> Checked<bool> {
    match attempt() {
        Err(error) if is_lacking(error) => Ok(false),
        answer => answer.must(what).map(|()| true),
    }
}

struct StopOnPanic<'s, 't, T: Tree>(&'s Storm<'t, T>);

impl<T: Tree> Drop for StopOnPanic<'_, '_, T> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}
