//! Tests with objects that cannot be written, because the store fails, cannot be reached, or is
//! full.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use corewalk::{Errno, FileSystem as _};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Unreachable, Url, fsck, mkfs};
use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::s3::S3Server;

use crate::fixtures::{ROOT, Site, create, dirty_bytes, file, options, pattern, read, write_new};
use crate::front::Front;

const FILE_DIRTY_MAX: u64 = 16 << 20;
const STEP: usize = 128 << 10;

fn append(fs: &ClusterFs, ino: u64, count: u8) -> (Vec<u8>, Vec<Errno>) {
    let (mut accepted, mut errors) = (Vec::new(), Vec::new());
    for step in 0..count {
        let bytes = pattern(step, STEP);
        match fs.append(file(ino), 0, &bytes) {
            Ok(len) => accepted.extend_from_slice(&bytes[..len]),
            Err(errno) => errors.push(errno),
        }
    }
    (accepted, errors)
}

pub(crate) fn break_store(site: &Site) -> PathBuf {
    let folder = fs::read_dir(site.objects.path()).unwrap().next().unwrap().unwrap().path();
    fs::rename(&folder, folder.with_extension("away")).unwrap();
    fs::write(&folder, "").unwrap();
    folder
}

pub(crate) fn mend_store(folder: PathBuf) {
    fs::remove_file(&folder).unwrap();
    fs::rename(folder.with_extension("away"), &folder).unwrap();
}

#[test]
fn write_that_failed_is_not_in_the_file_and_what_was_accepted_is_there_once() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = create(&fs, ROOT, "f");
    fs.open(file(made.ino), 1).unwrap();
    let mut model = append(&fs, made.ino, 200).0;
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    let folder = break_store(&site);
    let (accepted, errors) = append(&fs, made.ino, 160);
    model.extend(accepted);
    assert!(!errors.is_empty() && errors.iter().all(|errno| *errno == Errno::IO), "{errors:?}");
    assert!(dirty_bytes(&fs) <= FILE_DIRTY_MAX);
    assert_eq!(fs.fsync(file(made.ino), false), Err(Errno::IO));
    assert_eq!(fs.flush(file(made.ino)), Err(Errno::IO));
    mend_store(folder);
    let (accepted, errors) = append(&fs, made.ino, 10);
    model.extend(accepted);
    assert_eq!(errors, []);
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    assert_eq!(dirty_bytes(&fs), 0);
    // After a successful flush, the database must have no records of the objects that could not be
    // written before.
    assert_eq!(site.sql("SELECT count(*) FROM corewalk.pending_object"), "0");
    drop(fs);
    let fs = site.open();
    assert!(read(&fs, made.ino) == model);
    drop(fs);
    site.assert_clean();
}

#[test]
fn bytes_of_many_files_are_bounded_while_none_can_be_written() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let first = write_new(&fs, ROOT, "first", &pattern(1, 1 << 20));
    let folder = break_store(&site);
    let (bytes, mut accepted) = (pattern(2, 1 << 20), Vec::new());
    for number in 0..200 {
        let made = create(&fs, ROOT, &format!("f{number}"));
        match fs.write(file(made.ino), 0, &bytes) {
            Ok(_) => accepted.push(made.ino),
            Err(errno) => assert_eq!(errno, Errno::IO),
        }
    }
    assert!(dirty_bytes(&fs) <= 129 << 20, "{} bytes", dirty_bytes(&fs));
    assert!((100..200).contains(&accepted.len()), "{} files", accepted.len());
    mend_store(folder);
    fs.close().unwrap();
    drop(fs);
    let fs = site.open();
    assert!(read(&fs, first.ino) == pattern(1, 1 << 20));
    for ino in accepted {
        assert!(read(&fs, ino) == bytes);
    }
    drop(fs);
    site.assert_clean();
}

/// The S3 server is behind a proxy.
fn behind_front(site: &Site) -> Option<(Url, S3Server, Front)> {
    let server = S3Server::start("bucket")?;
    let front = Front::of(&server);
    let (address, _) = site.url.split_once('?').unwrap();
    let url = Url::parse(&format!("{address}?data=s3://bucket")).unwrap();
    mkfs(&url, (0, 0), true).unwrap();
    Some((url, server, front))
}

#[test]
fn soft_mount_fails_while_s3_is_away_and_then_goes_on() {
    let Some(site) = Site::new() else { return };
    let Some((url, _server, front)) = behind_front(&site) else { return };
    let soft = options().with_unreachable(Unreachable::FailAfter(Duration::from_secs(2)));
    let fs = ClusterFs::open(&url, &soft.with_settings(front.settings())).unwrap();
    let kept = write_new(&fs, ROOT, "kept", &pattern(1, 100_000));
    let made = create(&fs, ROOT, "f");
    fs.write(file(made.ino), 0, &pattern(2, 100_000)).unwrap();
    front.fail(true);
    let begin = Instant::now();
    assert_eq!(fs.fsync(file(made.ino), false), Err(Errno::IO));
    // An object that is not cached cannot be read.
    assert_eq!(fs.read(file(kept.ino), 50_000, &mut [0; 10]), Err(Errno::IO));
    assert!(begin.elapsed() < Duration::from_secs(10), "{:?}", begin.elapsed());
    front.fail(false);
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    drop(fs);
    let fs = ClusterFs::open(&url, &options().with_settings(front.settings())).unwrap();
    assert!(read(&fs, kept.ino) == pattern(1, 100_000));
    assert!(read(&fs, made.ino) == pattern(2, 100_000));
}

#[test]
fn end_of_a_hard_mount_waits_ten_seconds_for_s3() {
    let Some(site) = Site::new() else { return };
    let Some((url, _server, front)) = behind_front(&site) else { return };
    let hard = options().with_unreachable(Unreachable::Wait).with_settings(front.settings());
    let fs = ClusterFs::open(&url, &hard).unwrap();
    front.fail(true);
    for number in 0..8 {
        let made = create(&fs, ROOT, &format!("f{number}"));
        fs.write(file(made.ino), 0, &pattern(1, 100_000)).unwrap();
    }
    let begin = Instant::now();
    assert_eq!(fs.close(), Err(Errno::IO));
    assert!(begin.elapsed() < Duration::from_secs(15), "{:?}", begin.elapsed());
}

#[test]
fn hard_mount_waits_while_s3_is_away() {
    let Some(site) = Site::new() else { return };
    let Some((url, _server, front)) = behind_front(&site) else { return };
    let hard = options().with_unreachable(Unreachable::Wait).with_settings(front.settings());
    let fs = ClusterFs::open(&url, &hard).unwrap();
    let made = create(&fs, ROOT, "f");
    fs.write(file(made.ino), 0, &pattern(2, 100_000)).unwrap();
    front.fail(true);
    let before = front.connections();
    thread::scope(|scope| {
        let waiter = scope.spawn(|| fs.fsync(file(made.ino), false));
        let begin = Instant::now();
        while front.connections() < before + 5 {
            assert!(begin.elapsed() < Duration::from_secs(60), "the request is not repeated");
            assert!(!waiter.is_finished());
            thread::sleep(Duration::from_millis(20));
        }
        front.fail(false);
        assert_eq!(waiter.join().unwrap(), Ok(()));
    });
    assert!(read(&fs, made.ino) == pattern(2, 100_000));
}

#[test]
fn scattered_writes_are_flushed_by_their_number_and_put_a_few_at_a_time() {
    let Some(site) = Site::new() else { return };
    let Some((url, server, front)) = behind_front(&site) else { return };
    let fs = ClusterFs::open(&url, &options().with_settings(front.settings())).unwrap();
    let made = create(&fs, ROOT, "f");
    for at in 0..1030 {
        fs.write(file(made.ino), at * 32768, b"x").unwrap();
    }
    assert_ne!(site.sql("SELECT count(*) FROM corewalk.slice"), "0");
    fs.fsync(file(made.ino), false).unwrap();
    assert!(front.most_open() <= 32, "{} connections", front.most_open());
    drop(fs);
    let report = fsck(&url, &server.settings()).unwrap();
    assert_eq!((report.findings, report.objects), (Vec::new(), 1030));
}

#[test]
fn sequential_reader_reads_each_object_once_and_some_ahead() {
    let Some(site) = Site::new() else { return };
    let Some((url, server, front)) = behind_front(&site) else { return };
    let fs = ClusterFs::open(&url, &options().with_settings(server.settings())).unwrap();
    let bytes = pattern(1, 40 << 20);
    let made = write_new(&fs, ROOT, "f", &bytes);
    drop(fs);
    let fs = ClusterFs::open(&url, &options().with_settings(front.settings())).unwrap();
    fs.open(file(made.ino), 0).unwrap();
    let mut found = vec![0; STEP];
    for at in (0..bytes.len()).step_by(STEP) {
        assert_eq!(fs.read(file(made.ino), at as u64, &mut found), Ok(STEP));
        assert!(found == bytes[at..at + STEP], "at {at}");
        let object = at / (4 << 20);
        let ahead = if at % (4 << 20) == 0 {
            0
        } else if object == 0 {
            1
        } else {
            4
        };
        let begin = Instant::now();
        while front.connections() < (object as u64 + 1 + ahead).min(10) {
            assert!(begin.elapsed() < Duration::from_secs(30), "nothing is read ahead at {at}");
            thread::sleep(Duration::from_millis(1));
        }
    }
    assert_eq!(front.connections(), 10);
    // Random reads must cost one request each, and fetch only the bytes that the program asks for.
    let fs = ClusterFs::open(&url, &options().with_settings(front.settings())).unwrap();
    fs.open(file(made.ino), 0).unwrap();
    for at in [30 << 20, 10 << 20, 35 << 20, 20 << 20] {
        assert_eq!(fs.read(file(made.ino), at as u64, &mut found[..100]), Ok(100));
        assert_eq!(found[..100], bytes[at..at + 100]);
    }
    assert_eq!(front.connections(), 14);
}

/// A mounted tmpfs of one MiB. Dropping the value unmounts it.
pub(crate) struct Small(pub(crate) PathBuf);

impl Small {
    pub(crate) fn mount(at: PathBuf) -> Option<Small> {
        fs::create_dir(&at).unwrap();
        let mount = ["-t", "tmpfs", "-o", "size=1m", "corewalk-test"];
        let done = Command::new("mount").args(mount).arg(&at).output().unwrap();
        if !done.status.success() {
            skip(Need::Root, "no tmpfs can be mounted");
            return None;
        }
        Some(Small(at))
    }
}

impl Drop for Small {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(&self.0).status();
    }
}

#[test]
fn full_store_is_enospc_and_goes_on_when_there_is_room() {
    let Some(site) = Site::new() else { return };
    let Some(small) = Small::mount(site.objects.path().join("small")) else { return };
    let (address, _) = site.url.split_once('?').unwrap();
    let url = Url::parse(&format!("{address}?data=file:{}", small.0.display())).unwrap();
    mkfs(&url, (0, 0), true).unwrap();
    let fs = ClusterFs::open(&url, &options()).unwrap();
    let kept = write_new(&fs, ROOT, "kept", &pattern(1, 300_000));
    let ballast = small.0.join("ballast");
    fs::write(&ballast, vec![0; 500_000]).unwrap();
    let made = create(&fs, ROOT, "f");
    fs.write(file(made.ino), 0, &pattern(2, 600_000)).unwrap();
    assert_eq!(fs.fsync(file(made.ino), false), Err(Errno::NOSPC));
    assert_eq!(fs.flush(file(made.ino)), Err(Errno::NOSPC));
    assert!(read(&fs, kept.ino) == pattern(1, 300_000));
    fs::remove_file(&ballast).unwrap();
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    drop(fs);
    let fs = ClusterFs::open(&url, &options()).unwrap();
    assert!(read(&fs, made.ino) == pattern(2, 600_000));
    drop(fs);
    assert_eq!(fsck(&url, &[]).unwrap().findings, []);
}
