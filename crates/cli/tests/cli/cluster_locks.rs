//! Tests of locks of fcntl(2) and flock(2) through three mounts of a cluster file system.
//!
//! In some tests, threads add to numbers in a file. Each addition is made under a lock, so none may
//! be lost. `COREWALK_LOCK_ADDITIONS` sets the number of additions.

use std::fs::{self, File};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_testkit::postgres::Postgres;
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};
use rustix::process::Signal;

use crate::fixtures::{Folder, Server, can_mount, corewalk, run};

const BYTES: u64 = 8;

struct Site {
    paths: Vec<PathBuf>,
    servers: Vec<Server>,
    _folder: Folder,
    _postgres: Postgres,
}

impl Site {
    fn new(options: &[&str]) -> Option<Site> {
        if !can_mount() {
            return None;
        }
        let postgres = Postgres::start()?;
        let folder = Folder::new();
        let address = format!("pg://{}", postgres.new_database("files"));
        let url = format!("{address}?data=file:{}", folder.path("objects").display());
        assert_eq!(run(corewalk(&["mkfs", &url])).status.code(), Some(0));
        let paths: Vec<PathBuf> = ["m1", "m2", "m3"].iter().map(|name| folder.path(name)).collect();
        let servers = paths.iter().map(|path| Server::of(&address, options, path)).collect();
        fs::write(paths[0].join("f"), [0; 2 * BYTES as usize]).expect("the file is written");
        Some(Site { paths, servers, _folder: folder, _postgres: postgres })
    }
}

fn open(path: &Path) -> File {
    File::options().read(true).write(true).open(path.join("f")).expect("the file exists")
}

type Lock = fn(&File, at: u64, is_taken: bool);

fn flock_file(file: &File, _: u64, is_taken: bool) {
    let how = if is_taken { FlockOperation::LockExclusive } else { FlockOperation::Unlock };
    flock(file, how).expect("the lock is taken");
}

fn lock_range(file: &File, at: u64, is_taken: bool) {
    let kind = if is_taken { libc::F_WRLCK } else { libc::F_UNLCK };
    let lock = libc::flock {
        l_type: kind as libc::c_short,
        l_whence: libc::SEEK_SET as libc::c_short,
        l_start: at as libc::off_t,
        l_len: BYTES as libc::off_t,
        l_pid: 0,
    };
    fcntl(file, FcntlArg::F_OFD_SETLKW(&lock)).expect("the lock is taken");
}

fn no_lock(file: &File, _: u64, is_taken: bool) {
    if !is_taken {
        file.sync_all().expect("the file is synced");
    }
}

fn number(file: &File, at: u64) -> u64 {
    let mut bytes = [0; BYTES as usize];
    file.read_exact_at(&mut bytes, at).expect("the file has its numbers");
    u64::from_le_bytes(bytes)
}

fn add(path: &Path, at: u64, count: u64, lock: Lock) {
    let file = open(path);
    for _ in 0..count {
        lock(&file, at, true);
        let next = number(&file, at) + 1;
        file.write_all_at(&next.to_le_bytes(), at).expect("the number is written");
        lock(&file, at, false);
    }
}

fn race(site: &Site, total: u64, lock: Lock) -> u64 {
    let is_done = AtomicBool::new(false);
    let start = Instant::now();
    thread::scope(|scope| {
        for path in &site.paths {
            scope.spawn(|| {
                let file = open(path);
                // ORDERING: Relaxed. The flag only ends the loop.
                while !is_done.load(Ordering::Relaxed) {
                    file.metadata().expect("the file exists");
                    number(&file, 0);
                    number(&file, BYTES);
                    thread::sleep(Duration::from_millis(1));
                }
            });
        }
        let adders: Vec<_> = (0..6)
            .map(|thread| {
                let path = &site.paths[thread as usize % 3];
                scope.spawn(move || add(path, thread / 3 % 2 * BYTES, total / 6, lock))
            })
            .collect();
        let results: Vec<_> = adders.into_iter().map(|adder| adder.join()).collect();
        // ORDERING: Relaxed. The flag only ends the loops of the readers.
        is_done.store(true, Ordering::Relaxed);
        results.into_iter().for_each(|result| result.expect("the thread has added"));
    });
    let file = open(&site.paths[0]);
    let sum = number(&file, 0) + number(&file, BYTES);
    eprintln!("{sum} of {total} additions, {:.1?}", start.elapsed());
    sum
}

fn additions() -> u64 {
    let given = std::env::var("COREWALK_LOCK_ADDITIONS");
    given.map_or(300, |text| text.parse().expect("COREWALK_LOCK_ADDITIONS is a number")) / 6 * 6
}

#[test]
fn no_addition_under_flock_is_lost() {
    let Some(site) = Site::new(&[]) else { return };
    assert_eq!(race(&site, additions(), flock_file), additions());
}

/// Threads on different mounts add to two numbers in one page of a file. Each number has a lock of
/// its own. No addition may be lost.
#[test]
fn no_addition_under_locks_of_ranges_is_lost() {
    let Some(site) = Site::new(&[]) else { return };
    assert_eq!(race(&site, additions(), lock_range), additions());
}

#[test]
fn control_additions_under_local_locks_are_lost() {
    let Some(site) = Site::new(&["-o", "local_lock=all"]) else { return };
    assert!(race(&site, 300, flock_file) < 300);
}

#[test]
fn control_additions_without_locks_are_lost() {
    let Some(site) = Site::new(&[]) else { return };
    assert!(race(&site, 300, no_lock) < 300);
}

/// A program that waits for a lock must get it soon after an unlock on another mount. Its server
/// asks for the lock again and again until then.
#[test]
fn waiting_program_gets_the_lock_of_another_mount_soon() {
    let Some(site) = Site::new(&[]) else { return };
    let (held, waiting) = (open(&site.paths[0]), open(&site.paths[1]));
    let mut waits = Vec::new();
    for round in 0..20 {
        flock_file(&held, 0, true);
        thread::scope(|scope| {
            let waiter = scope.spawn(|| {
                flock_file(&waiting, 0, true);
                Instant::now()
            });
            thread::sleep(Duration::from_millis(500 + round));
            flock_file(&held, 0, false);
            let dropped = Instant::now();
            let taken = waiter.join().expect("the thread has the lock");
            waits.push(taken.saturating_duration_since(dropped));
        });
        flock_file(&waiting, 0, false);
    }
    waits.sort();
    eprintln!("waits: median {:.1?}, at most {:.1?}", waits[waits.len() / 2], waits.last());
    // The waiting server asks for the lock every 100 ms, but a busy machine may take longer.
    assert!(waits[waits.len() / 2] < Duration::from_secs(1), "{waits:?}");
}

/// A killed mount must lose its lock when its session is over.
#[test]
fn lock_of_a_killed_mount_ends() {
    let Some(site) = Site::new(&[]) else { return };
    let (held, waiting) = (open(&site.paths[0]), open(&site.paths[1]));
    flock_file(&held, 0, true);
    site.servers[0].signal(Signal::KILL);
    let start = Instant::now();
    flock_file(&waiting, 0, true);
    let waited = start.elapsed();
    assert!(waited < Duration::from_secs(15), "{waited:?}");
}

/// The server is stopped for longer than its lease time, and another mount gets the lock. Then the
/// old descriptor must fail with `EIO`, but the file can be opened again.
#[test]
fn file_with_a_lost_lock_can_be_opened_again() {
    let Some(site) = Site::new(&[]) else { return };
    let (held, other) = (open(&site.paths[0]), open(&site.paths[1]));
    let write = |file: &File, number: u64| file.write_all_at(&number.to_le_bytes(), 0);
    flock_file(&held, 0, true);
    write(&held, 1).expect("the number is written");
    site.servers[0].signal(Signal::STOP);
    flock_file(&other, 0, true);
    write(&other, 2).expect("the number is written");
    flock_file(&other, 0, false);
    site.servers[0].signal(Signal::CONT);
    let errno = |done: std::io::Result<()>| done.unwrap_err().raw_os_error();
    assert_eq!(errno(held.sync_all()), Some(libc::EIO));
    let new = open(&site.paths[0]);
    assert_eq!(number(&new, 0), 2);
    flock_file(&new, 0, true);
    write(&new, 3).expect("the number is written");
    flock_file(&new, 0, false);
    assert_eq!(number(&open(&site.paths[1]), 0), 3);
    assert_eq!(errno(write(&held, 4)), Some(libc::EIO));
}

/// A close of the file by another program must not end the lock. So each open file needs a handle
/// of its own: when the server closes a handle, it ends all locks of this handle.
#[test]
fn lock_of_fcntl_stays_when_another_program_closes_the_file() {
    let Some(site) = Site::new(&[]) else { return };
    let (held, other) = (open(&site.paths[0]), open(&site.paths[1]));
    let lock = |file: &File, kind: libc::c_int| {
        let range = libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: 0,
            l_len: 0,
            l_pid: 0,
        };
        fcntl(file, FcntlArg::F_SETLK(&range))
    };
    lock(&held, libc::F_WRLCK).expect("the lock is free");
    let read = std::process::Command::new("cat").arg(site.paths[0].join("f")).output();
    assert!(read.expect("cat is installed").status.success());
    // Wait until the server has received the kernel's release request for the file that cat(1) has
    // closed.
    thread::sleep(Duration::from_millis(300));
    assert_eq!(lock(&other, libc::F_WRLCK), Err(nix::errno::Errno::EAGAIN));
    lock(&held, libc::F_UNLCK).expect("the lock is dropped");
    lock(&other, libc::F_WRLCK).expect("the lock is free");
}
