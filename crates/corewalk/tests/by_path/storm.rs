//! A stress test of back ends that find files by path. The content of each file tells which file it
//! is, so a call that reached another file is noticed.

use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFDIR;
use corewalk::{Cred, FileSystem, InodeRef, Make, May, Name, Removal, RenameMode, Vfs, VfsOptions};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_testkit::race::{self, OnPanic, Watchdog};
use corewalk_testkit::rng::Seed;

use crate::memory::Memory;
use crate::tree::{Links, PathTree};

/// Number of calls of a stress test with a fast back end, unless `COREWALK_STORM_CALLS` is set. The
/// step `storm` of `cargo xtask ci` makes 400,000. Tests with a slow back end make fewer calls
/// from more threads.
const CALLS: u64 = 60_000;
const THREADS: usize = 5;
/// Number of threads of a stress test with a slow back end. There are so many that calls are
/// running when a rename begins.
const THREADS_MANY: usize = 24;
const HELD: &[u8] = b"the file that stays";

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).expect("a name")
}

struct Storm<'v> {
    vfs: &'v Vfs,
    cred: Cred,
    /// The directory made as `/a/d/e`, wherever renames have moved it.
    dir: InodeRef<'v>,
    held: InodeRef<'v>,
    calls: AtomicU64,
    calls_max: u64,
    threads: usize,
    links: Links,
    published: AtomicU64,
}

impl<'v> Storm<'v> {
    fn new(vfs: &'v Vfs, links: Links, threads: usize, calls_max: u64) -> Storm<'v> {
        let cred = Cred::root();
        let make_dir = |at: &InodeRef<'_>, text| {
            vfs.make(&cred, at, name(text), Make::new(S_IFDIR | 0o755, 0, 0)).unwrap().0.ino()
        };
        let root = vfs.root();
        make_dir(&root, "a");
        make_dir(&root, "s");
        let a = vfs.lookup(&cred, &root, name("a")).unwrap();
        make_dir(&a, "d");
        let d = vfs.lookup(&cred, &a, name("d")).unwrap();
        make_dir(&d, "e");
        let dir = vfs.lookup(&cred, &d, name("e")).unwrap();
        let held = vfs.make(&cred, &dir, name("held"), Make::new(0o644, 0, 0)).unwrap().0;
        vfs.write(&cred, &held, 0, 0, HELD).unwrap();
        let storm = Storm {
            vfs,
            cred,
            dir,
            held,
            calls: AtomicU64::new(0),
            calls_max,
            threads,
            links,
            published: AtomicU64::new(0),
        };
        storm.publish(1);
        storm
    }

    fn goes_on(&self, calls: u64) -> bool {
        // ORDERING: Relaxed. The count of calls only ends the stress test, and publishes no other
        // memory.
        self.calls.fetch_add(calls, Ordering::Relaxed) < self.calls_max
    }

    fn move_above(&self, turn: u64) {
        let (vfs, cred, root) = (self.vfs, &self.cred, self.vfs.root());
        let rename = |dir: &InodeRef<'_>, from, to, mode| {
            vfs.rename(cred, (dir, name(from)), (dir, name(to)), mode).unwrap();
        };
        match turn % 5 {
            0 => rename(&root, "a", "b", RenameMode::Replace),
            1 => {
                let b = vfs.lookup(cred, &root, name("b")).unwrap();
                rename(&b, "d", "x", RenameMode::NoReplace);
            }
            2 => {
                let b = vfs.lookup(cred, &root, name("b")).unwrap();
                let to = (&root, name("d"));
                vfs.rename(cred, (&b, name("x")), to, RenameMode::Replace).unwrap();
                vfs.rename(cred, to, (&b, name("d")), RenameMode::Replace).unwrap();
            }
            3 => rename(&root, "b", "a", RenameMode::Replace),
            _ => {
                rename(&root, "a", "s", RenameMode::Exchange);
                rename(&root, "a", "s", RenameMode::Exchange);
            }
        }
    }

    fn publish(&self, version: u64) {
        let (vfs, cred, dir) = (self.vfs, &self.cred, &self.dir);
        let (file, _) = vfs.make(cred, dir, name("new"), Make::new(0o644, 0, 0)).unwrap();
        let handle = vfs.open(cred, &file, 1, May::WRITE).unwrap().handle;
        let text = format!("version {version} of it");
        assert_eq!(vfs.write(cred, &file, handle, 0, text.as_bytes()), Ok(text.len()));
        vfs.release(&file, handle);
        let (from, to) = ((dir, name("new")), (dir, name("current")));
        vfs.rename(cred, from, to, RenameMode::Replace).unwrap();
        // ORDERING: Relaxed. A reader that loads an older version number only checks less.
        self.published.store(version, Ordering::Relaxed);
    }

    fn read_published(&self) {
        let (vfs, cred) = (self.vfs, &self.cred);
        // ORDERING: Relaxed. An older version number only makes the check weaker.
        let before = self.published.load(Ordering::Relaxed);
        let file = vfs.lookup(cred, &self.dir, name("current")).unwrap();
        assert_eq!(vfs.getattr(&file).unwrap().ino, file.ino());
        let handle = vfs.open(cred, &file, 0, May::READ).unwrap().handle;
        let text = self.read(&file, handle);
        vfs.release(&file, handle);
        let version = text.strip_prefix("version ").and_then(|rest| rest.strip_suffix(" of it"));
        let version: u64 = version.and_then(|v| v.parse().ok()).expect(&text);
        assert!(version >= before, "{version} after {before}");
        let nlink = vfs.getattr(&file).unwrap().nlink;
        assert!(nlink <= 1, "{nlink} links");
    }

    fn read(&self, file: &InodeRef<'_>, handle: u64) -> String {
        let mut buf = [0; 64];
        let count = self.vfs.read(file, handle, 0, &mut buf).unwrap();
        String::from_utf8_lossy(&buf[..count]).into_owned()
    }

    fn make(&self, turn: u64) {
        let (vfs, cred, dir) = (self.vfs, &self.cred, &self.dir);
        let text = format!("made{turn}");
        let (file, _) = vfs.make(cred, dir, name(&text), Make::new(0o644, 0, 0)).unwrap();
        let handle = vfs.open(cred, &file, 2, May::READ | May::WRITE).unwrap().handle;
        assert_eq!(vfs.write(cred, &file, handle, 0, text.as_bytes()), Ok(text.len()));
        assert_eq!(vfs.lookup(cred, dir, name(&text)).unwrap().ino(), file.ino());
        if !turn.is_multiple_of(16) {
            vfs.remove(cred, dir, name(&text), Removal::Unlink).unwrap();
            assert_eq!(vfs.getattr(&file).unwrap().nlink, 0);
        } else if self.links == Links::Yes {
            let other = format!("link{turn}");
            assert_eq!(vfs.link(cred, &file, dir, name(&other)).unwrap().nlink, 2);
            vfs.remove(cred, dir, name(&text), Removal::Unlink).unwrap();
            assert_eq!(vfs.getattr(&file).unwrap().nlink, 1);
            vfs.rename(cred, (dir, name(&other)), (dir, name(&text)), RenameMode::NoReplace)
                .unwrap();
        }
        assert_eq!(self.read(&file, handle), text);
        vfs.release(&file, handle);
    }
}

const TURNS_MIN: u64 = 4;

fn run(storm: &Storm<'_>) -> [u64; 2] {
    let unfinished = AtomicU64::new(storm.threads as u64);
    let turns = race::run(storm.threads, Seed::choose(), |racer| {
        let mut turn = 0;
        let _end = OnPanic(|| {
            // ORDERING: Relaxed. The counts only end the storm.
            storm.calls.store(u64::MAX / 2, Ordering::Relaxed);
            // ORDERING: Relaxed. As above.
            unfinished.store(0, Ordering::Relaxed);
        });
        let calls = [1, 5, 7].get(racer.thread).copied().unwrap_or(6);
        // ORDERING: Relaxed. The counts only end the stress test, and publish no other memory.
        while storm.goes_on(calls) || unfinished.load(Ordering::Relaxed) > 0 {
            match racer.thread {
                0 => storm.move_above(turn),
                1 => storm.publish(turn + 2),
                2 => storm.make(turn),
                _ => {
                    storm.read_published();
                    assert_eq!(storm.read(&storm.held, 0).as_bytes(), HELD);
                }
            }
            turn += 1;
            if turn == TURNS_MIN {
                // ORDERING: Relaxed. As above.
                let less = |left: u64| Some(left.saturating_sub(1));
                let _ = unfinished.fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
            }
        }
        turn
    });
    [turns[2], turns[0]]
}

struct Backend<'a> {
    content: &'a dyn Fn(&str) -> Option<Vec<u8>>,
    names: &'a dyn Fn(&str) -> Vec<String>,
}

/// In a storm of calls and renames, no call may fail, reach another file or lose a file. Trap X1 in
/// `traps.md`.
fn storm(fs: Arc<dyn FileSystem>, backend: &Backend<'_>, links: Links, threads: usize, calls: u64) {
    let _watchdog = Watchdog::start("a storm over a back end by path", Duration::from_secs(900));
    let vfs = Vfs::new(fs, VfsOptions::default()).unwrap();
    let (made, moved) = {
        let storm = Storm::new(&vfs, links, threads, calls);
        let [made, moved] = run(&storm);
        let path = String::from_utf8(storm.dir.path().unwrap()).unwrap();
        for turn in (0..made).step_by(16) {
            let text = format!("made{turn}");
            let content = (backend.content)(&format!("{path}/{text}"));
            assert_eq!(content, Some(text.into_bytes()), "lost");
        }
        let left = made.div_ceil(16) as usize;
        assert_eq!((backend.names)(&path).len(), left + 2, "files are missing or left over");
        (made, moved)
    };
    println!("{made} files made, directories moved {moved} times");
    vfs.prune();
    let names = (backend.names)("/").into_iter();
    let hidden: Vec<String> = names.filter(|name| name.len() > 1).collect();
    assert!(hidden.is_empty(), "hidden names are left: {hidden:?}");
}

fn storm_with_numbers(links: Links, [call, rename]: [Duration; 2], threads: usize, calls: u64) {
    let fs = PathTree::slow(links, call, rename);
    let backend = Backend { content: &|path| fs.content(path), names: &|path| fs.names(path) };
    storm(fs.clone(), &backend, links, threads, calls);
    // ORDERING: Relaxed. All threads have been joined.
    let [strays, calls] = [&fs.strays, &fs.calls].map(|count| count.load(Ordering::Relaxed));
    assert_eq!(strays, 0, "a path led to the wrong file");
    println!("{calls} calls of the back end");
}

fn storm_without_numbers([call, rename]: [Duration; 2], threads: usize, calls: u64) {
    let fs = Arc::new(Memory::new(call, rename));
    let memory = fs.get_ref();
    let backend =
        Backend { content: &|path| memory.content(path), names: &|path| memory.names(path) };
    storm(fs.clone(), &backend, Links::No, threads, calls);
    // ORDERING: Relaxed. All threads have been joined.
    assert_eq!(memory.open.load(Ordering::Relaxed), 0, "files are left open");
}

fn calls() -> u64 {
    let given = std::env::var("COREWALK_STORM_CALLS").ok();
    given.map_or(CALLS, |calls| calls.parse().expect("COREWALK_STORM_CALLS is a number"))
}

#[test]
fn storm_without_pauses_has_no_false_error() {
    storm_with_numbers(Links::Yes, [Duration::ZERO; 2], THREADS, calls());
    storm_without_numbers([Duration::ZERO; 2], THREADS, calls().min(100_000));
}

#[test]
fn storm_without_links_has_no_false_error() {
    storm_with_numbers(Links::No, [Duration::ZERO; 2], THREADS, calls() / 4);
}

#[test]
fn storm_with_calls_of_a_millisecond_has_no_false_error() {
    let slow = Duration::from_millis(1);
    storm_with_numbers(Links::Yes, [slow; 2], THREADS_MANY, (calls() / 20).min(20_000));
    storm_without_numbers([slow; 2], THREADS_MANY, (calls() / 20).min(20_000));
}

const SLOW_RENAME: Duration = Duration::from_millis(300);

fn calls_beside_slow_renames() -> u64 {
    (calls() / 200).min(2_000)
}

#[test]
fn storm_with_renames_of_300_milliseconds_has_no_false_error() {
    let times = [Duration::ZERO, SLOW_RENAME];
    storm_with_numbers(Links::Yes, times, THREADS_MANY, calls_beside_slow_renames());
}

#[test]
fn storm_without_numbers_with_renames_of_300_milliseconds_has_no_false_error() {
    let times = [Duration::ZERO, SLOW_RENAME];
    storm_without_numbers(times, THREADS_MANY, calls_beside_slow_renames());
}
