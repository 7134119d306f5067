//! The check `storm`: several threads change the files of one directory, while the directories
//! above it are renamed.
//!
//! The content of a file tells the file's name and version. So a thread notices if its call has
//! reached another file, lost a file or returned old bytes. When all threads have ended, the tree
//! must have exactly the files that the threads have kept, with their content.
//!
//! | role | each turn |
//! |---|---|
//! | mover | renames or exchanges the directories above |
//! | publisher | writes a new file and renames it over the previous version |
//! | maker | makes a file, and removes it while it is open, renames it, or links it |
//! | writer | writes, cuts and reads a file of its own |
//! | reader | reads published versions and files that stay, and lists the directory |
//!
//! Each thread changes only names of its own. So each call has exactly one right answer. The
//! threads end after a fixed number of calls, and not after a fixed time.
//!
//! Trap X1: a back end that finds files by path uses a path that a rename has made invalid.

mod roles;

use std::sync::Barrier;

use corewalk::{Errno, InodeRef, RenameMode};
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;

use super::rename::is_without_mode;
use super::tree::pattern;
use crate::answer::{Answer, Checked, Stop, ensure, ensure_eq, is_unsupported};
use crate::bench::{Bench, name};
use crate::suite::message;
use roles::{Kept, Worker};

/// The number of roles, and so the least number of threads.
const ROLES: usize = 5;
/// The number of files that no thread changes. Each listing must have all of them.
const FIXED: u64 = 32;
/// Minimum number of turns of each thread.
const TURNS_MIN: u64 = 20;
/// The failure message of a thread that has ended only because another thread failed. The check
/// does not report this message, since the message of the other thread tells the cause.
const STOPPED: &str = "another thread has stopped the storm";

/// The state that the threads of a storm share.
struct Storm<'b> {
    bench: &'b Bench,
    /// The directory in which the threads of this stress test make their files. It was made as
    /// `/a/d/e`. It moves when the threads rename its parents.
    dir: InodeRef<'b>,
    has_exchange: bool,
    has_links: bool,
    calls: AtomicU64,
    is_stopped: AtomicBool,
    /// The last version that each publisher has published. 0 means none.
    published: Vec<AtomicU64>,
}

/// Returns the content of a file that stays.
fn fixed(number: u64) -> Vec<u8> {
    pattern(number, 10 + 97 * number as usize)
}

pub(super) fn run(bench: &Bench) -> Checked {
    let storm = Storm::new(bench)?;
    let threads = bench.settings.threads.max(ROLES);
    // Let all threads start together. Otherwise, with a fast back end, the first thread would end
    // before the last one starts.
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
            // Within the storm, no call may be refused as unsupported.
            Err(Stop::Failed(why) | Stop::Skipped(why)) if why != STOPPED => {
                return Stop::failed(why);
            }
            Err(_) => {}
        }
    }
    storm.check_end(&kept).map_err(|stop| stop.at("after the storm"))
}

impl<'b> Storm<'b> {
    fn new(bench: &'b Bench) -> Checked<Storm<'b>> {
        let root = bench.root();
        let a = bench.dir(&root, "a")?;
        let d = bench.dir(&a, "d")?;
        let dir = bench.dir(&d, "e")?;
        bench.dir(&root, "s")?;
        for number in 0..FIXED {
            bench.file(&dir, &format!("fixed{number}"), &fixed(number))?;
        }
        bench.rename((&root, "a"), (&root, "b"), RenameMode::Replace).needs("rename")?;
        bench.rename((&root, "b"), (&root, "a"), RenameMode::Replace).must("rename")?;
        let swap = || bench.rename((&root, "a"), (&root, "s"), RenameMode::Exchange);
        let has_exchange = match swap() {
            Err(error) if is_without_mode(error) => false,
            answer => answer.and_then(|()| swap()).must("exchange").map(|()| true)?,
        };
        let file = bench.find(&dir, "fixed0")?;
        let has_links = match bench.vfs.link(&bench.cred, &file, &dir, name("link")) {
            Err(error) if error == Errno::PERM || is_unsupported(error) => false,
            linked => {
                linked.and_then(|_| bench.unlink(&dir, "link")).must("link").map(|()| true)?
            }
        };
        let threads = bench.settings.threads.max(ROLES);
        Ok(Storm {
            bench,
            dir,
            has_exchange,
            has_links,
            calls: AtomicU64::new(0),
            is_stopped: AtomicBool::new(false),
            published: (0..threads).map(|_| AtomicU64::new(0)).collect(),
        })
    }

    /// Runs one thread of this stress test until all threads together have made enough calls.
    /// Returns the files of this thread that must exist at the end.
    fn work(&self, number: usize) -> Checked<Kept> {
        let mut worker = Worker::new(self, number);
        let mut turn = 0;
        while self.goes_on(worker.calls_per_turn()) || turn < TURNS_MIN {
            if self.is_stopped() {
                return Stop::failed(STOPPED);
            }
            let place = |stop: Stop| stop.at(&format!("thread {number}, turn {turn}"));
            worker.turn(turn).map_err(place)?;
            turn += 1;
        }
        Ok(worker.into_kept())
    }

    /// Counts `calls` more calls. Returns false once there were enough.
    fn goes_on(&self, calls: u64) -> bool {
        // ORDERING: Relaxed. The count only tells threads when to end. No other memory is published
        // with it.
        self.calls.fetch_add(calls, Ordering::Relaxed) < self.bench.settings.operations
    }

    fn stop(&self) {
        // ORDERING: Relaxed. The flag only tells threads to end. No other memory is published with
        // it.
        self.is_stopped.store(true, Ordering::Relaxed);
    }

    fn is_stopped(&self) -> bool {
        // ORDERING: Relaxed. See `stop`.
        self.is_stopped.load(Ordering::Relaxed)
    }

    /// Checks, after all threads of the stress test have ended, that the tree has the files that
    /// must exist, and no others.
    fn check_end(&self, kept: &Kept) -> Checked {
        let (bench, root) = (self.bench, self.bench.root());
        bench.cool();
        let mut dir = root.clone();
        for text in ["a", "d", "e"] {
            dir = bench.find(&dir, text)?;
        }
        ensure(dir.ino() == self.dir.ino(), || "/a/d/e is another directory".to_owned())?;
        let sorted = |dir: &InodeRef<'_>| -> Checked<Vec<String>> {
            let mut names: Vec<String> = bench.list(dir)?.iter().map(|it| it.text()).collect();
            names.sort_unstable();
            Ok(names)
        };
        let fixed_names = (0..FIXED).map(|number| format!("fixed{number}"));
        let mut wanted: Vec<String> = fixed_names.chain(kept.keys().cloned()).collect();
        wanted.sort_unstable();
        let found = sorted(&dir)?;
        let lost: Vec<_> = wanted.iter().filter(|name| !found.contains(name)).collect();
        let extra: Vec<_> = found.iter().filter(|name| !wanted.contains(name)).collect();
        ensure(lost.is_empty(), || format!("the files {lost:?} are lost"))?;
        ensure(extra.is_empty(), || format!("the files {extra:?} were removed"))?;
        for (text, content) in kept {
            bench.has_content(&dir, text, content)?;
        }
        for number in 0..FIXED {
            bench.has_content(&dir, &format!("fixed{number}"), &fixed(number))?;
        }
        ensure_eq("the entries of the root", sorted(&root)?, vec!["a".to_owned(), "s".to_owned()])
    }
}

/// Ends the storm if the thread that owns the value panics.
struct StopOnPanic<'a>(&'a Storm<'a>);

impl Drop for StopOnPanic<'_> {
    fn drop(&mut self) {
        if thread::panicking() {
            self.0.stop();
        }
    }
}
