//! A stress test through the kernel. The content of each file shows which file it is, so a call
//! that reached another file is noticed.
//!
//! One thread moves the directories above the files, and one publishes versions by renames. One
//! makes files and removes them while they are open. One makes the kernel and the server drop
//! cached names, and the others read. No call may fail, no file may be lost, and each read must
//! return the content of its file.

use std::fs::{self, File};
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::path::Path;
use std::time::Duration;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_fuse::Options;
use corewalk_testkit::race::{self, OnPanic, Watchdog};
use corewalk_testkit::rng::Seed;
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, linkat, openat, renameat_with, unlinkat,
};

use crate::site::Site;

/// The number of system calls of a storm whose back end does not wait, unless
/// `COREWALK_STORM_CALLS` is set. `cargo xtask nightly` makes two million.
const CALLS: u64 = 20_000;
/// The content of the file that never changes.
const HELD: &[u8] = b"the file that stays";
/// The number of calls for which each thread must make at least one round.
const CALLS_PER_TURN: u64 = 200;
/// Minimum number of rounds of each thread.
const TURNS_MIN: u64 = 4;

/// Whether the back end has hard links.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Links {
    Yes,
    No,
}

/// The state of a storm.
struct Storm<'a> {
    root: OwnedFd,
    /// The directory made as `/a/d/e`, wherever renames have moved it.
    dir: OwnedFd,
    held: File,
    links: Links,
    invalidate: &'a (dyn Fn(&str) + Sync),
    calls: AtomicU64,
    calls_max: u64,
    /// The last published version.
    published: AtomicU64,
}

/// Returns the number of calls of a storm whose back end does not wait.
pub(crate) fn calls() -> u64 {
    let given = std::env::var("COREWALK_STORM_CALLS").ok();
    given.map_or(CALLS, |calls| calls.parse().expect("COREWALK_STORM_CALLS is a number"))
}

/// Runs a storm of `calls` system calls from `threads` threads on the mount at `path`. `invalidate`
/// drops the entry at a path from the caches.
pub(crate) fn run(
    path: &Path,
    links: Links,
    threads: usize,
    calls: u64,
    invalidate: &(dyn Fn(&str) + Sync),
) {
    let _watchdog = Watchdog::start("a storm on a mount", Duration::from_secs(600));
    for dir in ["a", "a/d", "a/d/e", "s"] {
        fs::create_dir(path.join(dir)).expect("make a directory");
    }
    fs::write(path.join("a/d/e/held"), HELD).expect("write the file that stays");
    let open = |at: &str| {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        openat(CWD, path.join(at), flags, Mode::empty()).expect("open a directory")
    };
    let storm = Storm {
        root: open(""),
        dir: open("a/d/e"),
        held: File::open(path.join("a/d/e/held")).expect("open the file that stays"),
        links,
        invalidate,
        calls: AtomicU64::new(0),
        calls_max: calls,
        published: AtomicU64::new(0),
    };
    storm.publish(1);
    let made = storm.run(threads);
    storm.check_the_end(made);
}

impl Storm<'_> {
    fn run(&self, threads: usize) -> u64 {
        let unfinished = AtomicU64::new(threads as u64);
        let turns = race::run(threads, Seed::choose(), |racer| {
            let mut turn = 0;
            let _end = OnPanic(|| {
                // ORDERING: Relaxed. The counts only end the storm.
                self.calls.store(u64::MAX / 2, Ordering::Relaxed);
                // ORDERING: Relaxed. As above.
                unfinished.store(0, Ordering::Relaxed);
            });
            let calls = [1, 6, 8, 1].get(racer.thread).copied().unwrap_or(7);
            // ORDERING: Relaxed. The count only ends the storm.
            while self.goes_on(calls) || unfinished.load(Ordering::Relaxed) > 0 {
                match racer.thread {
                    0 => self.move_above(turn),
                    1 => self.publish(turn + 2),
                    2 => self.make(turn),
                    3 => self.invalidate(turn),
                    _ => self.read(),
                }
                turn += 1;
                if turn == (self.calls_max / CALLS_PER_TURN).max(TURNS_MIN) {
                    let less = |left: u64| Some(left.saturating_sub(1));
                    // ORDERING: Relaxed. As above.
                    let _ = unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
                }
            }
            turn
        });
        println!("moves, versions, files, invalidations and reads: {turns:?}");
        turns[2]
    }

    /// Counts `calls` more calls. Returns false once enough calls were made.
    fn goes_on(&self, calls: u64) -> bool {
        // ORDERING: Relaxed. The count only ends the storm.
        self.calls.fetch_add(calls, Ordering::Relaxed) < self.calls_max
    }

    /// Moves the directories on the paths back and forth.
    fn move_above(&self, turn: u64) {
        let rename = |from: &str, to: &str, flags| {
            renameat_with(&self.root, from, &self.root, to, flags).expect("move a directory");
        };
        match turn % 6 {
            0 => rename("a", "b", RenameFlags::empty()),
            1 => rename("b/d", "b/x", RenameFlags::NOREPLACE),
            2 => rename("b/x", "d", RenameFlags::empty()),
            3 => rename("d", "b/d", RenameFlags::empty()),
            4 => rename("b", "a", RenameFlags::empty()),
            _ => {
                rename("a", "s", RenameFlags::EXCHANGE);
                rename("a", "s", RenameFlags::EXCHANGE);
            }
        }
    }

    /// Publishes a version by a rename over the previous one.
    fn publish(&self, version: u64) {
        let mut file = self.create("new");
        write!(file, "version {version} of it").expect("write the version");
        drop(file);
        renameat_with(&self.dir, "new", &self.dir, "current", RenameFlags::empty())
            .expect("publish the version");
        // ORDERING: Relaxed. A reader that loads an older version only checks less.
        self.published.store(version, Ordering::Relaxed);
    }

    /// Makes a file. Then removes the file while it is open, or keeps it and sometimes gives it a
    /// second name.
    fn make(&self, turn: u64) {
        let name = format!("made{turn}");
        let mut file = self.create(&name);
        file.write_all(name.as_bytes()).expect("write the file");
        if !turn.is_multiple_of(16) {
            unlinkat(&self.dir, &name, AtFlags::empty()).expect("remove the open file");
        } else if self.links == Links::Yes {
            let other = format!("link{turn}");
            linkat(&self.dir, &name, &self.dir, &other, AtFlags::empty()).expect("link the file");
            unlinkat(&self.dir, &name, AtFlags::empty()).expect("remove the first name");
            renameat_with(&self.dir, &other, &self.dir, &name, RenameFlags::NOREPLACE)
                .expect("rename the second name");
        }
        assert_eq!(content(&file), name);
    }

    /// Drops names from the caches, some of which do not exist at the moment.
    fn invalidate(&self, turn: u64) {
        let path = ["a", "a/d/e/current", "a/d", "s", "b/d/e/held", "a/d/e"][turn as usize % 6];
        (self.invalidate)(path);
        thread::sleep(Duration::from_millis(1));
    }

    /// Reads the published version, which must be at least the version that was published before
    /// the read began, and the file that never changes.
    fn read(&self) {
        // ORDERING: Relaxed. A stale number only makes the check weaker.
        let before = self.published.load(Ordering::Relaxed);
        let text = content(&self.open("current"));
        let version = text.strip_prefix("version ").and_then(|rest| rest.strip_suffix(" of it"));
        let version: u64 = version.and_then(|v| v.parse().ok()).expect(&text);
        assert!(version >= before, "{version} after {before}");
        assert_eq!(content(&self.held).as_bytes(), HELD);
        assert_eq!(content(&self.open("held")).as_bytes(), HELD);
    }

    fn create(&self, name: &str) -> File {
        let flags = OFlags::RDWR | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
        File::from(openat(&self.dir, name, flags, Mode::from(0o644)).expect("create a file"))
    }

    fn open(&self, name: &str) -> File {
        let flags = OFlags::RDONLY | OFlags::CLOEXEC;
        File::from(openat(&self.dir, name, flags, Mode::empty()).expect("open a file"))
    }

    /// Checks that all files are there, and no others.
    fn check_the_end(&self, made: u64) {
        for turn in (0..made).step_by(16) {
            let name = format!("made{turn}");
            assert_eq!(content(&self.open(&name)), name, "lost");
        }
        let entries = rustix::fs::Dir::read_from(self.dir.as_fd()).expect("list the directory");
        let names: Vec<_> = entries
            .map(|entry| entry.expect("read an entry").file_name().to_owned())
            .filter(|name| !name.to_bytes().starts_with(b"."))
            .collect();
        let left = made.div_ceil(16) as usize;
        assert_eq!(names.len(), left + 2, "files are missing or left over: {names:?}");
    }
}

fn content(file: &File) -> String {
    use std::os::unix::fs::FileExt as _;
    let mut text = [0; 64];
    let len = file.read_at(&mut text, 0).expect("read the file");
    String::from_utf8_lossy(&text[..len]).into_owned()
}

#[test]
fn storm_over_a_back_end_by_number_has_no_false_error() {
    for options in [Options::exclusive(), Options::shared()] {
        let Some(site) = Site::tmpfs(options) else { return };
        let kernel = site.mount().kernel_cache().clone();
        run(site.root(), Links::Yes, 6, calls(), &|path| {
            kernel.invalidate_entry_at(Path::new(path)).expect("notify the kernel");
        });
    }
}

#[test]
fn storm_over_a_back_end_by_path_has_no_false_error() {
    for options in [Options::exclusive(), Options::shared()] {
        let Some(site) = Site::new(crate::examples::memory::memory(), options) else { return };
        let kernel = site.mount().kernel_cache().clone();
        run(site.root(), Links::No, 6, calls(), &|path| {
            kernel.invalidate_entry_at(Path::new(path)).expect("notify the kernel");
        });
    }
}
