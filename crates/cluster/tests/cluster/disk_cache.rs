//! The cache of objects on disk.

use std::fs;
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corewalk::FileSystem as _;
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, OpenError, fsck};
use tempfile::TempDir;

use crate::fixtures::{ROOT, Site, counter, file, options, pattern, read, write_new};
use crate::outage::Small;

/// The size of a large file: two whole objects and a shorter one.
const LARGE: usize = 9_000_000;

fn open(site: &Site, folder: &Path, limit: u64) -> ClusterFs {
    let options = options().with_disk_cache(Some(folder.to_owned())).with_disk_cache_bytes(limit);
    ClusterFs::open(&site.parsed(), &options).unwrap()
}

/// Returns the cached files of objects. The cache directory `folder` must have the folder of
/// exactly one file system.
fn files(folder: &Path) -> Vec<PathBuf> {
    let folder = fs::read_dir(folder).unwrap().next().unwrap().unwrap().path();
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<PathBuf> = files.filter(|path| !path.ends_with("lock")).collect();
    files.sort();
    files
}

/// Waits until the cache has a number of files and writes none.
fn wait_for_files(folder: &Path, count: usize) {
    let begin = Instant::now();
    let is_there = || {
        let files = files(folder);
        let is_new = |path: &PathBuf| path.to_string_lossy().contains("tmp-");
        files.len() == count && !files.iter().any(is_new)
    };
    while !is_there() {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", files(folder));
        thread::sleep(Duration::from_millis(5));
    }
}

/// Makes the store lose all objects. Returns the folder that has them now.
fn lose_objects(site: &Site) -> PathBuf {
    let place = fs::read_dir(site.objects.path()).unwrap().next().unwrap().unwrap().path();
    let lost = site.objects.path().with_extension("lost");
    fs::rename(place, &lost).unwrap();
    lost
}

#[test]
fn second_mount_reads_objects_from_the_disk() {
    let Some(site) = Site::new() else { return };
    let folder = TempDir::new().unwrap();
    let bytes = pattern(1, LARGE);
    let mount = open(&site, folder.path(), 1 << 30);
    let made = write_new(&mount, ROOT, "f", &bytes);
    assert_eq!(files(folder.path()).len(), 0);
    assert!(read(&mount, made.ino) == bytes);
    wait_for_files(folder.path(), 3);
    assert_eq!(counter(&mount, "cluster_disk_hits"), 0);
    let mode = fs::metadata(files(folder.path())[0].parent().unwrap()).unwrap().permissions();
    assert_eq!(mode.mode() & 0o777, 0o700);
    drop(mount);

    let lost = lose_objects(&site);
    let mount = open(&site, folder.path(), 1 << 30);
    assert!(read(&mount, made.ino) == bytes);
    assert_eq!(counter(&mount, "cluster_disk_hits"), 3);
    assert_eq!(counter(&mount, "cluster_disk_misses"), 0);
    let space = |path: &PathBuf| fs::metadata(path).unwrap().len().next_multiple_of(4096) + 512;
    let on_disk: u64 = files(folder.path()).iter().map(space).sum();
    assert_eq!(counter(&mount, "cluster_disk_bytes"), on_disk);
    drop(mount);

    // A reader at random offsets gets its bytes from the disk, too.
    let mount = open(&site, folder.path(), 1 << 30);
    mount.open(file(made.ino), 0).unwrap();
    for (at, len) in [(5_000_000, 100), (8_300_000, 200_000), (65_530, 10), (8_999_990, 10)] {
        let mut found = vec![0; len];
        assert_eq!(mount.read(file(made.ino), at as u64, &mut found), Ok(len));
        assert!(found == bytes[at..at + len], "{at}");
    }
    drop(mount);
    fs::remove_dir_all(lost).unwrap();
}

/// Damages one of the files.
type Damage<'a> = &'a dyn Fn(&[PathBuf]);

#[test]
fn damaged_file_is_found_and_its_object_is_read_again() {
    let Some(site) = Site::new() else { return };
    let folder = TempDir::new().unwrap();
    let bytes = pattern(1, LARGE);
    let mount = open(&site, folder.path(), 1 << 30);
    let made = write_new(&mount, ROOT, "f", &bytes);
    read(&mount, made.ino);
    wait_for_files(folder.path(), 3);
    drop(mount);
    let flip = |path: &Path, at: u64| {
        let file = fs::File::options().read(true).write(true).open(path).unwrap();
        let mut byte = [0];
        file.read_exact_at(&mut byte, at).unwrap();
        file.write_all_at(&[byte[0] ^ 1], at).unwrap();
    };
    let cut = |path: &Path, len| {
        fs::File::options().write(true).open(path).unwrap().set_len(len).unwrap();
    };
    let whole = fs::metadata(&files(folder.path())[0]).unwrap().len();
    let damages: [Damage<'_>; 7] = [
        &|files| flip(&files[0], whole - 1),
        &|files| flip(&files[0], 2_000_000),
        &|files| flip(&files[0], 3),
        &|files| flip(&files[0], 20),
        &|files| cut(&files[0], 0),
        &|files| cut(&files[0], whole - 1),
        &|files| fs::copy(&files[1], &files[0]).map(drop).unwrap(),
    ];
    for (number, damage) in damages.iter().enumerate() {
        damage(&files(folder.path()));
        let mount = open(&site, folder.path(), 1 << 30);
        assert!(read(&mount, made.ino) == bytes, "damage {number}");
        assert_eq!(counter(&mount, "cluster_disk_hits"), 2, "damage {number}");
        assert_eq!(counter(&mount, "cluster_disk_misses"), 1, "damage {number}");
        wait_for_files(folder.path(), 3);
        drop(mount);
    }
    // A file that was being written during a power cut must be removed.
    let torn = files(folder.path())[0].with_file_name("tmp-1");
    fs::write(&torn, "torn").unwrap();
    let mount = open(&site, folder.path(), 1 << 30);
    assert!(!torn.exists());
    assert!(read(&mount, made.ino) == bytes);
    assert_eq!(counter(&mount, "cluster_disk_hits"), 3);
}

#[test]
fn least_recently_used_objects_go_when_the_cache_is_full() {
    let Some(site) = Site::new() else { return };
    let folder = TempDir::new().unwrap();
    let fs = site.open();
    let names = ["a", "b", "c"];
    let inos = names.map(|name| write_new(&fs, ROOT, name, &pattern(1, 1_000_000)).ino);
    drop(fs);
    let limit = 2_500_000;
    let fs = open(&site, folder.path(), limit);
    read(&fs, inos[0]);
    wait_for_files(folder.path(), 1);
    read(&fs, inos[1]);
    wait_for_files(folder.path(), 2);
    drop(fs);
    // The next mount must know the order of use. It uses the first file last, so the third file
    // replaces the second one.
    let fs = open(&site, folder.path(), limit);
    read(&fs, inos[0]);
    let old = files(folder.path());
    read(&fs, inos[2]);
    let begin = Instant::now();
    while files(folder.path()) == old || files(folder.path()).len() < 2 {
        assert!(begin.elapsed() < Duration::from_secs(20), "no object is added");
    }
    wait_for_files(folder.path(), 2);
    assert!(counter(&fs, "cluster_disk_bytes") <= limit);
    drop(fs);
    let lost = lose_objects(&site);
    let fs = open(&site, folder.path(), limit);
    for ino in [inos[0], inos[2]] {
        assert!(read(&fs, ino) == pattern(1, 1_000_000));
    }
    assert_eq!(counter(&fs, "cluster_disk_hits"), 2);
    drop(fs);
    // A smaller limit holds at once.
    let fs = open(&site, folder.path(), 1_500_000);
    assert_eq!(files(folder.path()).len(), 1);
    assert!(read(&fs, inos[2]) == pattern(1, 1_000_000));
    drop(fs);
    std::fs::remove_dir_all(lost).unwrap();
}

#[test]
fn small_object_is_not_kept() {
    let Some(site) = Site::new() else { return };
    let folder = TempDir::new().unwrap();
    let fs = open(&site, folder.path(), 1 << 30);
    let small = write_new(&fs, ROOT, "small", &pattern(1, 65_535));
    let large = write_new(&fs, ROOT, "large", &pattern(1, 65_536));
    read(&fs, small.ino);
    read(&fs, large.ino);
    wait_for_files(folder.path(), 1);
    drop(fs);
    // The end of the mount has waited for the writes.
    assert_eq!(files(folder.path()).len(), 1);
    let fs = open(&site, folder.path(), 1 << 30);
    assert!(read(&fs, large.ino) == pattern(1, 65_536));
    assert_eq!(counter(&fs, "cluster_disk_hits"), 1);
}

#[test]
fn full_or_broken_disk_fails_no_read() {
    let Some(site) = Site::new() else { return };
    let folder = TempDir::new().unwrap();
    let Some(small) = Small::mount(folder.path().join("small")) else { return };
    let fs = open(&site, &small.0, 1 << 30);
    let bytes = pattern(1, 400_000);
    let inos = ["a", "b", "c", "d"].map(|name| write_new(&fs, ROOT, name, &bytes).ino);
    let read_all = |fs: &ClusterFs| {
        for ino in inos {
            assert!(read(fs, ino) == bytes);
        }
    };
    read_all(&fs);
    // The disk has only 1 MiB. Wait until the space of failed writes is not counted any more.
    let begin = Instant::now();
    while counter(&fs, "cluster_disk_bytes") > 1 << 20 {
        assert!(begin.elapsed() < Duration::from_secs(20));
    }
    drop(fs);
    let kept = files(&small.0);
    assert!((1..=2).contains(&kept.len()), "{kept:?}");
    let key = kept[0].file_name().unwrap().to_string_lossy().replace('-', "/");
    let ino = site.sql(&format!("SELECT ino FROM slice WHERE object = '{key}'"));
    let fs = open(&site, &small.0, 1 << 30);
    assert!(read(&fs, ino.parse().unwrap()) == bytes);
    assert_eq!(counter(&fs, "cluster_disk_hits"), 1);
    read_all(&fs);
    drop(fs);
    let fs = open(&site, &small.0, 1 << 30);
    std::fs::remove_dir_all(files(&small.0)[0].parent().unwrap()).unwrap();
    read_all(&fs);
    read_all(&fs);
    drop(fs);
    site.assert_clean();
}

#[test]
fn directory_is_for_one_mount_of_a_file_system() {
    let (Some(site), Some(other)) = (Site::new(), Site::new()) else { return };
    let folder = TempDir::new().unwrap();
    let first = open(&site, folder.path(), 1 << 30);
    let options = options().with_disk_cache(Some(folder.path().to_owned()));
    let refused = ClusterFs::open(&site.parsed(), &options).map(drop);
    assert!(matches!(refused, Err(OpenError::CacheDirectory(_))), "{refused:?}");
    open(&other, folder.path(), 1 << 30);
    drop(first);
    open(&site, folder.path(), 1 << 30);
}

#[test]
fn file_system_whose_identity_is_a_path_is_refused() {
    let Some(site) = Site::new() else { return };
    site.sql("ALTER TABLE format ALTER id DROP DEFAULT, ALTER id TYPE text");
    site.sql("UPDATE format SET id = '../other'");
    let folder = TempDir::new().unwrap();
    let options = options().with_disk_cache(Some(folder.path().join("cache")));
    let refused = ClusterFs::open(&site.parsed(), &options).map(drop);
    assert!(matches!(refused, Err(OpenError::UnknownIdentity(_))), "{refused:?}");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    let refused = fsck(&site.parsed(), &[]).map(drop);
    assert!(matches!(refused, Err(OpenError::UnknownIdentity(_))), "{refused:?}");
}
