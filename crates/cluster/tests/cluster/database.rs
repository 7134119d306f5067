//! A database that goes away and comes back.

use std::time::{Duration, Instant};

use corewalk::{Errno, FileSystem as _, RenameMode};
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, AtomicU64, Ordering};
use corewalk_cluster::{ClusterFs, Unreachable};
use corewalk_testkit::postgres::Postgres;

use crate::fixtures::{ROOT, Site, create, dir, file, list, mkdir, name, options, read, write_new};

const WRITERS: u64 = 3;
const KILLS: u64 = 3;

/// Makes, renames and removes files until `stop` is set. Returns the files that remain. A change
/// that is applied twice would fail: the second make finds the name, and the second rename or
/// removal does not find it.
fn change(
    fs: &ClusterFs,
    parent: u64,
    stop: &AtomicBool,
    done: &AtomicU64,
) -> Vec<(String, Vec<u8>)> {
    let mut kept = Vec::new();
    // ORDERING: Relaxed. The flag only ends the loop, and `survive` only waits for the count to
    // grow.
    while !stop.load(Ordering::Relaxed) {
        let number = done.fetch_add(1, Ordering::Relaxed);
        let (first, last) = (format!("a{number}"), format!("b{number}"));
        let bytes = number.to_string().into_bytes();
        let made = write_new(fs, parent, &first, &bytes);
        let (from, to) = ((dir(parent), name(&first)), (dir(parent), name(&last)));
        fs.rename(from, to, RenameMode::NoReplace).unwrap();
        if number.is_multiple_of(3) {
            fs.remove(dir(parent), name(&last), file(made.ino)).unwrap();
        } else {
            kept.push((last, bytes));
        }
    }
    kept
}

/// Checks that writers go on although `kill` takes the database away and brings it back. All
/// confirmed changes must survive, and none may be applied twice. Returns the longest time until
/// the writers went on.
pub(crate) fn survive(site: &Site, kills: u64, mut kill: impl FnMut()) -> Duration {
    let fs = site.open();
    let parents: Vec<u64> =
        (0..WRITERS).map(|number| mkdir(&fs, ROOT, &format!("d{number}")).ino).collect();
    let (stop, done) = (AtomicBool::new(false), AtomicU64::new(0));
    let mut longest = Duration::ZERO;
    let kept = thread::scope(|scope| {
        let start = |parent: &u64| {
            let (fs, stop, done, parent) = (&fs, &stop, &done, *parent);
            scope.spawn(move || change(fs, parent, stop, done))
        };
        let writers: Vec<_> = parents.iter().map(start).collect();
        // ORDERING: Relaxed. `survive` only waits for the count to grow.
        let count = || done.load(Ordering::Relaxed);
        let mut begin = Instant::now();
        for number in 0..=kills {
            let before = count();
            while count() < before + 30 {
                assert!(begin.elapsed() < Duration::from_secs(60), "the writers do not go on");
                assert!(!writers.iter().any(|writer| writer.is_finished()), "a writer failed");
                thread::sleep(Duration::from_millis(5));
            }
            longest = longest.max(begin.elapsed());
            if number < kills {
                begin = Instant::now();
                kill();
            }
        }
        // ORDERING: Relaxed. The flag only ends the loops in `change`.
        stop.store(true, Ordering::Relaxed);
        writers.into_iter().map(|writer| writer.join().unwrap()).collect::<Vec<_>>()
    });
    drop(fs);
    let fs = site.open();
    for (parent, kept) in parents.iter().zip(kept) {
        let found = list(&fs, *parent);
        let names: Vec<&String> = found.iter().map(|(text, _)| text).collect();
        assert_eq!(names, kept.iter().map(|(text, _)| text).collect::<Vec<_>>());
        for ((_, attr), (_, bytes)) in found.iter().zip(&kept) {
            assert_eq!(read(&fs, attr.ino), *bytes);
        }
    }
    drop(fs);
    site.assert_clean();
    longest
}

#[test]
fn killed_database_loses_nothing_that_was_confirmed_and_repeats_nothing() {
    let Some(mut postgres) = Postgres::start() else { return };
    let site = Site::on(&postgres);
    survive(&site, KILLS, || {
        postgres.kill();
        postgres.restart();
    });
}

#[test]
fn soft_mount_fails_while_the_database_is_away_and_then_goes_on() {
    let Some(mut postgres) = Postgres::start() else { return };
    let site = Site::on(&postgres);
    let soft = options().with_unreachable(Unreachable::FailAfter(Duration::from_millis(300)));
    let fs = ClusterFs::open(&site.parsed(), &soft).unwrap();
    let made = write_new(&fs, ROOT, "f", b"text");
    list(&fs, ROOT);
    postgres.kill();
    let refused = fs.make(dir(ROOT), name("g"), &corewalk::Make::new(0o644, 0, 0));
    assert_eq!(refused, Err(Errno::IO));
    // The cache must still answer, because the lease has time left.
    assert_eq!(fs.lookup(dir(ROOT), name("f")).unwrap().ino, made.ino);
    postgres.restart();
    let begin = Instant::now();
    while fs.statfs().is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the mount does not come back");
    }
    create(&fs, ROOT, "h");
    assert_eq!(read(&fs, made.ino), b"text");
    drop(fs);
    site.assert_clean();
}
