//! Checks that a server does not grow with the number of requests that it has served.
//!
//! Two threads make random changes in a small tree, and remove the tree. They do this several
//! times. At the end the server must not have more memory, descriptors and cache entries than after
//! the first rounds. `COREWALK_GROWTH_REQUESTS` sets the number of requests.

use std::fs::{self, File};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

use crate::fixtures::{Folder, LIMIT, Server, can_mount, counter};

const REQUESTS: u64 = 60_000;
const ROUNDS: u64 = 10;
/// The number of rounds whose growth does not count. In these rounds, the server uses parts of its
/// memory for the first time, and fills its caches.
const WARM_UP: u64 = 4;
const CALLS: u32 = 500;
const NAMES: u64 = 24;
/// The growth of memory that the test permits, since the allocator keeps freed memory for a while.
const SLACK_KIB: u64 = 4096;

#[derive(Clone, Copy, Debug)]
struct Sizes {
    resident_kib: u64,
    descriptors: usize,
    entries: u64,
    inodes: u64,
}

impl Sizes {
    fn of(server: &Server, mount: &Path) -> Sizes {
        let proc = Path::new("/proc").join(server.pid().to_string());
        Sizes {
            resident_kib: server.resident_kib(),
            descriptors: fs::read_dir(proc.join("fd")).expect("the folder is read").count(),
            entries: counter(mount, "entries"),
            inodes: counter(mount, "inodes"),
        }
    }

    fn is_within(&self, before: &Sizes) -> bool {
        self.resident_kib <= before.resident_kib + SLACK_KIB
            && self.descriptors <= before.descriptors
            && self.entries <= before.entries
            && self.inodes <= before.inodes
    }
}

/// Names are random, so most calls may fail.
fn call(rng: &mut Rng, dir: &Path) {
    let name = |rng: &mut Rng| dir.join(format!("n{}", rng.below(NAMES)));
    let (one, two) = (name(rng), name(rng));
    match rng.below(14) {
        0 | 1 => drop(fs::write(&one, vec![7; rng.below(9000) as usize])),
        2 => drop(fs::read(&one)),
        3 => drop(fs::rename(&one, &two)),
        4 => drop(fs::hard_link(&one, &two)),
        5 => drop(symlink(&one, &two)),
        6 => drop(fs::create_dir(&one)),
        7 => drop(fs::remove_dir_all(&one)),
        8 => drop(fs::remove_file(&one)),
        9 => drop(fs::symlink_metadata(&one)),
        10 => drop(fs::set_permissions(&one, fs::Permissions::from_mode(0o640))),
        11 => drop(fs::read_dir(dir).map(Iterator::count)),
        12 => drop(rustix::fs::setxattr(&one, "user.x", b"y", rustix::fs::XattrFlags::empty())),
        // Remove a file while it is open, and write to it.
        _ => {
            if let Ok(file) = File::create(&one) {
                drop((fs::remove_file(&one), file.write_at(b"removed", 4000)));
            }
        }
    }
}

fn round(mount: &Path, seed: Seed, requests: u64) {
    let threads: Vec<_> = (0..2)
        .map(|at| {
            let (mount, dir) = (mount.to_owned(), mount.join(format!("d{at}")));
            let mut rng = Rng::new(seed).fork(at);
            fs::create_dir(&dir).expect("the directory is made");
            thread::spawn(move || {
                while counter(&mount, "requests") < requests {
                    (0..CALLS).for_each(|_| call(&mut rng, &dir));
                }
                fs::remove_dir_all(&dir).expect("the tree is removed");
            })
        })
        .collect();
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
}

fn check(source: &str, total: u64) {
    let folder = Folder::new();
    let (seed, mount) = (Seed::choose(), folder.path("m"));
    let _report = ReportSeed::new(seed);
    let server = Server::of(source, &[], &mount);
    let mut warm = None;
    for at in 1..=ROUNDS {
        round(&mount, Seed(seed.0.wrapping_add(at)), total * at / ROUNDS);
        // Wait until the kernel has told the server that it has forgotten all inodes.
        let begin = Instant::now();
        while counter(&mount, "lookups") > 0 {
            assert!(begin.elapsed() < LIMIT, "the kernel holds files of the removed tree");
            thread::sleep(Duration::from_millis(50));
        }
        let now = Sizes::of(&server, &mount);
        println!("{source}, {} requests: {now:?}", total * at / ROUNDS);
        match &warm {
            Some(warm) => assert!(now.is_within(warm), "{source}: {now:?} after {warm:?}"),
            None if at == WARM_UP => warm = Some(now),
            None => {}
        }
    }
}

#[test]
fn server_does_not_grow_with_the_number_of_requests() {
    if !can_mount() {
        return;
    }
    let total = std::env::var("COREWALK_GROWTH_REQUESTS");
    let total = total.map_or(REQUESTS, |text| text.parse().expect("a number of requests"));
    check("tmpfs", total);
    let folder = Folder::new();
    fs::create_dir(folder.path("s")).expect("the directory is made");
    let store = format!("store:{}", folder.path("s").display());
    check(&store, total);
    let host = folder.path("h");
    fs::create_dir(&host).expect("the directory is made");
    check(host.to_str().expect("the path is UTF-8"), total);
}
