//! How long a change waits for other mounts.

use std::time::{Duration, Instant};

use corewalk::{FileSystem as _, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::ClusterFs;

use crate::fixtures::{ROOT, Site, create, file, list, options};
use crate::proxy::Proxy;

const LEASE: Duration = Duration::from_secs(2);

#[test]
fn contended_change_needs_few_statements() {
    let Some(site) = Site::new() else { return };
    let open = || ClusterFs::open(&site.parsed(), &options().with_lease(LEASE)).unwrap();
    let mounts = [open(), open()];
    let made = create(&mounts[0], ROOT, "f").ino;
    thread::sleep(LEASE);
    let mut counts: Vec<u64> = (0..300_u32)
        .map(|turn| {
            // The other mount takes the lease.
            let [writer, other] = [0, 1].map(|it| &mounts[(turn as usize + it) % 2]);
            list(other, ROOT);
            other.getattr(file(made)).unwrap();
            writer.getattr(file(made)).unwrap();
            let before = writer.statements() + other.statements();
            let set = SetAttr::default().with_mode(turn & 0o777);
            writer.setattr(file(made), &set).unwrap();
            writer.statements() + other.statements() - before
        })
        .collect();
    counts.sort_unstable();
    // The change, the acknowledgement, the change again, and two notifications without an answer.
    assert!(counts[counts.len() / 2] == 3, "{counts:?}");
    assert!(counts[counts.len() * 99 / 100] <= 5, "{counts:?}");
}

#[test]
fn silent_holder_delays_others_once_until_its_lease_ends() {
    let Some(site) = Site::new() else { return };
    let proxy = Proxy::new(&site.url);
    let short = options().with_lease(LEASE);
    let fs = ClusterFs::open(&site.parsed(), &short).unwrap();
    let silent = ClusterFs::open(&proxy.url(), &short).unwrap();
    let made = create(&fs, ROOT, "f").ino;
    thread::sleep(LEASE);
    list(&silent, ROOT);
    silent.getattr(file(made)).unwrap();
    proxy.pause(true);
    let mut took = [0, 1, 2].map(|mode| {
        let begin = Instant::now();
        fs.setattr(file(made), &SetAttr::default().with_mode(mode)).unwrap();
        begin.elapsed()
    });
    assert!(took[0] < LEASE + Duration::from_secs(1), "{took:?}");
    took[1..].sort_unstable();
    assert!(took[2] < Duration::from_millis(500), "{took:?}");
    proxy.pause(false);
    assert_eq!(silent.getattr(file(made)).unwrap().mode & 0o777, 2);
}
