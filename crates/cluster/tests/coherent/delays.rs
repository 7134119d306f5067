//! How long a change waits for other mounts.

use std::time::{Duration, Instant};

use corewalk::{FileSystem as _, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Flaws, Url};

use crate::fixtures::{ROOT, Site, counter, create, file, list, options};
use corewalk_testkit::proxy::Proxy;

const LEASE: Duration = Duration::from_secs(2);

fn statements(fs: &ClusterFs) -> u64 {
    counter(fs, "cluster_statements")
}

#[test]
fn contended_change_needs_few_statements() {
    let Some(site) = Site::new() else { return };
    let open = || ClusterFs::open(&site.parsed(), &options().with_lease(LEASE)).unwrap();
    let mounts = [open(), open()];
    let made = create(&mounts[0], ROOT, "f").ino;
    thread::sleep(LEASE);
    let mut counts: Vec<u64> = (0..300_u32)
        .map(|turn| {
            // List the directory, so that the other mount gets a lease on it.
            let [writer, other] = [0, 1].map(|it| &mounts[(turn as usize + it) % 2]);
            list(other, ROOT);
            other.getattr(file(made)).unwrap();
            writer.getattr(file(made)).unwrap();
            let before = statements(writer) + statements(other);
            let set = SetAttr::default().with_mode(turn & 0o777);
            writer.setattr(file(made), &set).unwrap();
            statements(writer) + statements(other) - before
        })
        .collect();
    counts.sort_unstable();
    // A change that waits for another mount costs three statements: the change, the
    // acknowledgement, and the change again. Notifications are no statements.
    assert!(counts[counts.len() / 2] == 3, "{counts:?}");
    assert!(counts[counts.len() * 99 / 100] <= 5, "{counts:?}");
}

fn change_beside_silent_mount(flaws: Flaws) -> Option<([Duration; 3], u32)> {
    let site = Site::new()?;
    let proxy = Proxy::new(&site.url);
    let short = options().with_lease(LEASE);
    let fs = ClusterFs::open(&site.parsed(), &short).unwrap();
    let silent =
        ClusterFs::open(&Url::parse(proxy.url()).unwrap(), &short.with_flaws(flaws)).unwrap();
    let made = create(&fs, ROOT, "f").ino;
    thread::sleep(LEASE);
    list(&silent, ROOT);
    silent.getattr(file(made)).unwrap();
    proxy.pause(true);
    let took = [1, 2, 3].map(|mode| {
        let begin = Instant::now();
        fs.setattr(file(made), &SetAttr::default().with_mode(mode)).unwrap();
        begin.elapsed()
    });
    let seen = thread::scope(|scope| {
        let reader = scope.spawn(|| silent.getattr(file(made)).unwrap().mode & 0o777);
        thread::sleep(Duration::from_millis(300));
        proxy.pause(false);
        reader.join().unwrap()
    });
    Some((took, seen))
}

#[test]
fn silent_holder_delays_others_once_until_its_lease_ends() {
    let Some((took, seen)) = change_beside_silent_mount(Flaws::default()) else { return };
    assert!(took[0] < LEASE + Duration::from_secs(1), "{took:?}");
    assert!(took[1..].iter().all(|time| *time < LEASE / 2), "{took:?}");
    assert_eq!(seen, 3);
}

#[test]
fn control_mount_that_ignores_the_clock_is_caught() {
    let flaws = Flaws { ignores_the_clock: true, ..Flaws::default() };
    let Some((_, seen)) = change_beside_silent_mount(flaws) else { return };
    assert_eq!(seen, 0o644);
}
