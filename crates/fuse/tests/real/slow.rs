//! Tests of a back end that is slow or panics.

use std::fs;
use std::os::fd::AsFd as _;
use std::sync::Arc;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_fuse::{Options, Transport};
use corewalk_fuse_ring::device::possible_cpus;

use crate::hooked::Hooked;
use crate::site::{Site, transport};

/// 16 threads look up names, and each lookup takes 20 ms. They must take at most 10 % longer than
/// one thread alone. The best of up to 10 runs counts, since the machine may be busy. Trap P6.
#[test]
fn slow_lookups_run_side_by_side() {
    const LOOKUPS: u32 = 40;
    const EACH: Duration = Duration::from_millis(20);
    let fs = Hooked::new(|what, name| {
        if what == "lookup" && name.starts_with(b"missing") {
            thread::sleep(EACH);
        }
    });
    // Over io_uring, each thread serves the requests of one processor. All 16 clients may run on
    // the same processor, so each processor needs 16 threads.
    let cpus = possible_cpus().map_or(1, usize::from);
    let threads = if transport() == Transport::Uring { 16 * cpus } else { 16 };
    let mounted = Site::with_threads(Arc::new(fs), Options::exclusive(), threads);
    let Some(site) = mounted else { return };
    for dir in 0..16 {
        fs::create_dir(site.path(&format!("d{dir}"))).expect("make the folder");
    }
    let time = |attempt: u32, threads: u32| {
        let begin = Instant::now();
        thread::scope(|scope| {
            for dir in 0..threads {
                let dir = site.path(&format!("d{dir}"));
                scope.spawn(move || {
                    for at in 0..LOOKUPS {
                        assert!(!dir.join(format!("missing{attempt}-{at}")).exists());
                    }
                });
            }
        });
        begin.elapsed()
    };
    // An idle virtual processor may take long to wake up, which makes each lookup longer.
    let (alone, mut best) = (time(0, 1), Duration::MAX);
    for attempt in 1..11 {
        best = best.min(time(attempt, 16));
        if best < alone * 20 / 19 {
            break;
        }
    }
    assert!(alone.as_secs_f64() / best.as_secs_f64() >= 0.9, "{best:?}, alone {alone:?}");
}

/// A rename of a directory takes 3 s, and must not delay calls on files below the directory. The
/// best of three runs counts, since the machine may be busy. Trap P7.
#[test]
fn slow_rename_of_a_directory_delays_nothing_below_it() {
    let (began, has_begun) = channel();
    let fs = Hooked::new(move |what, name| {
        if what == "rename" && name.starts_with(b"dir") {
            began.send(()).expect("the other thread receives");
            thread::sleep(Duration::from_secs(3));
        }
    });
    let mut options = Options::exclusive();
    // Without an attribute timeout, each fstat is a request.
    options.attr_timeout = Duration::ZERO;
    let Some(site) = Site::new(Arc::new(fs), options) else { return };
    let mut best = Duration::MAX;
    for attempt in 0..3 {
        let from = format!("dir{attempt}");
        let to = format!("renamed{attempt}");
        best = best.min(longest_below_a_rename(&site, &from, &to, || {
            has_begun.recv().expect("the rename starts");
        }));
        let moved = fs::read_to_string(site.path(&to).join("below/file"));
        assert_eq!(moved.expect("the file moved with its folder"), "x");
        if best < Duration::from_millis(50) {
            return;
        }
    }
    panic!("a request below took {best:?}");
}

fn longest_below_a_rename(
    site: &Site,
    from: &str,
    to: &str,
    wait_for_begin: impl FnOnce(),
) -> Duration {
    fs::create_dir_all(site.path(from).join("below")).expect("make the folders");
    fs::write(site.path(from).join("below/file"), "x").expect("write the file");
    let file = fs::File::open(site.path(from).join("below/file")).expect("open the file");
    let below = fs::File::open(site.path(from).join("below")).expect("open the file");
    let (from, to) = (site.path(from), site.path(to));
    let renaming = thread::spawn(move || fs::rename(from, to));
    wait_for_begin();
    let mut longest = Duration::ZERO;
    let mut answers = Vec::new();
    for at in 0..100 {
        let begin = Instant::now();
        let length = file.metadata().map(|metadata| metadata.len());
        let missing = format!("missing{at}");
        let stat = rustix::fs::statat(below.as_fd(), missing, rustix::fs::AtFlags::empty());
        longest = longest.max(begin.elapsed());
        answers.push((length.ok(), stat.err()));
    }
    // A panic of the test while the renaming thread waits for the server would make the test hang.
    // So make the assertions after that thread has ended.
    let was_quick = renaming.is_finished();
    renaming.join().expect("the thread ends without a panic").expect("rename the folder");
    assert!(!was_quick, "the rename ended before the requests");
    assert!(answers.iter().all(|answer| *answer == (Some(1), Some(Errno::NOENT))));
    longest
}

#[test]
fn waiting_fsync_delays_no_other_request() {
    let (began, has_begun) = channel();
    let (release, released) = channel::<()>();
    let (was_released, all_released) = channel();
    let released = corewalk_base::Mutex::new(released);
    let fs = Hooked::new(move |what, _| {
        if what == "fsync" {
            began.send(()).expect("the other thread receives");
            let release = released.lock().recv_timeout(Duration::from_secs(3));
            was_released.send(release.is_ok()).expect("the other thread receives");
        }
    });
    let Some(site) = Site::with_threads(Arc::new(fs), Options::exclusive(), 1) else { return };
    let file = fs::File::create(site.path("file")).expect("create the file");
    // Two fsyncs of one inode would run one after the other, so sync a file and a directory.
    fs::create_dir(site.path("dir")).expect("make the folder");
    let dir = fs::File::open(site.path("dir")).expect("open the file");
    let syncing = [file, dir].map(|file| {
        let syncing = thread::spawn(move || file.sync_all());
        has_begun.recv().expect("the fsync starts");
        syncing
    });
    let made = fs::write(site.path("other"), "x");
    let read = fs::read_to_string(site.path("other"));
    let _ = [release.send(()), release.send(())];
    let synced = syncing.map(|syncing| syncing.join().expect("the thread ends without a panic"));
    assert!(
        all_released.iter().take(2).all(|is_released| is_released),
        "a request waited for an fsync"
    );
    assert!(synced.iter().all(Result::is_ok), "{synced:?}");
    assert_eq!((made.is_ok(), read.ok().as_deref()), (true, Some("x")));
}

#[test]
fn fsync_that_panics_fails_and_the_next_one_does_not() {
    let is_first = AtomicBool::new(true);
    let fs = Hooked::new(move |what, _| {
        // ORDERING: Relaxed. The test makes one request after the other, and the kernel orders
        // them.
        if what == "fsync" && is_first.swap(false, Ordering::Relaxed) {
            panic!("the back end panics, as it should");
        }
    });
    let Some(site) = Site::new(Arc::new(fs), Options::exclusive()) else { return };
    let file = fs::File::create(site.path("file")).expect("create the file");
    assert_eq!(file.sync_all().map_err(|error| error.raw_os_error()), Err(Some(5)));
    file.sync_all().expect("sync the file after the panic");
    assert_eq!(site.counters().panics, 1);
}

#[test]
fn request_that_panics_fails_and_the_server_lives() {
    let fs = Hooked::new(|what, name| {
        assert!(!name.starts_with(b"panic"), "the back end panics in {what}, as it should");
    });
    let Some(site) = Site::new(Arc::new(fs), Options::exclusive()) else { return };
    let errno = |result: std::io::Result<()>| result.map_err(|error| error.raw_os_error());
    let eio = Err(Some(Errno::IO.raw_os_error()));
    for round in 0..40 {
        let name = format!("panic{round}");
        assert_eq!(errno(fs::write(site.path(&name), "")), eio);
        assert_eq!(errno(fs::metadata(site.path(&name)).map(drop)), eio);
    }
    assert_eq!(site.counters().panics, 80);
    fs::write(site.path("file"), "fine").expect("write the file");
    assert_eq!(fs::read_to_string(site.path("file")).expect("read the file"), "fine");
}

#[test]
fn listing_that_panics_half_way_returns_the_entries_before() {
    let fs = Hooked::new(|what, name| {
        assert!(what != "entry" || name != b"n13", "the listing panics, as it should");
    });
    let mut options = Options::exclusive();
    options.readdirplus = corewalk_fuse::ReaddirPlus::Always;
    let Some(site) = Site::new(Arc::new(fs), options) else { return };
    for at in 0..40 {
        fs::write(site.path(&format!("n{at}")), "").expect("write the file");
    }
    let listed: Vec<_> = fs::read_dir(site.root()).expect("list the folder").collect();
    assert!(listed.last().is_some_and(|last| last.is_err()), "the end is an error");
    assert!(site.counters().panics > 0);
    for at in 0..40 {
        fs::remove_file(site.path(&format!("n{at}"))).expect("remove the file");
    }
    site.wait_for("all is forgotten", |counters| counters.lookups == 0);
    assert_eq!(site.counters().refused_forgets, 0);
}
