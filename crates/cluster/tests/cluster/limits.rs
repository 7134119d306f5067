//! Limits of a file system: the most bytes and inodes.

use std::time::Duration;

use corewalk::attr::mode::{S_IFDIR, S_IFIFO, S_IFLNK};
use corewalk::{Errno, Fallocate, FileSystem as _, Make, SetAttr, StatFs};
use corewalk_cluster::{ClusterFs, limits};

use crate::fixtures::{
    ROOT, Site, counter, create, dir, file, mkdir, name, options, overwrite, pattern, read,
    write_new,
};

const MIB: u64 = 1 << 20;

fn set(site: &Site, bytes: u64, inodes: u64) {
    let usage = limits(&site.parsed(), Some(bytes), Some(inodes)).unwrap();
    let limit = |value| Some(value).filter(|value| *value > 0);
    assert_eq!((usage.max_bytes, usage.max_inodes), (limit(bytes), limit(inodes)));
}

/// Removes a file, as a program and then the kernel do.
fn remove(fs: &ClusterFs, text: &str, ino: u64) {
    fs.remove(dir(ROOT), name(text), file(ino)).unwrap();
    fs.forget(ino, 1);
}

fn blocks(stat: &StatFs) -> (u64, u64, u64) {
    (stat.blocks, stat.bfree, stat.bavail)
}

#[test]
fn file_system_has_no_limit_by_default() {
    let Some(site) = Site::new() else { return };
    let usage = limits(&site.parsed(), None, None).unwrap();
    assert_eq!((usage.inodes, usage.bytes), (1, 4096));
    assert_eq!((usage.max_bytes, usage.max_inodes), (None, None));
    let fs = site.open();
    write_new(&fs, ROOT, "f", &pattern(1, 100_000));
    let free = 1 << 38;
    let stat = fs.statfs().unwrap();
    assert_eq!(blocks(&stat), (free + 1 + 25, free, free));
    assert_eq!((stat.files, stat.ffree), (free + 2, free));
}

#[test]
fn full_file_system_refuses_each_growth_and_recovers() {
    let Some(site) = Site::new() else { return };
    set(&site, MIB, 0);
    let fs = site.open();
    let kept = write_new(&fs, ROOT, "kept", &pattern(1, 600_000));
    let made = create(&fs, ROOT, "f");
    fs.open(file(made.ino), 1).unwrap();
    assert_eq!(fs.write(file(made.ino), 0, &pattern(2, 400_000)), Ok(400_000));
    // The first write is in the buffer only. Its bytes count all the same.
    assert_eq!(fs.write(file(made.ino), 400_000, &[7; 100_000]), Err(Errno::NOSPC));
    let stat = fs.statfs().unwrap();
    assert_eq!(blocks(&stat), (256, 256 - 246, 256 - 246));
    let resize = |size| fs.setattr(file(kept.ino), &SetAttr::default().with_size(size));
    assert_eq!(resize(700_000).map(drop), Err(Errno::NOSPC));
    let grow = |len| fs.fallocate(file(made.ino), 0, len, Fallocate::empty());
    assert_eq!(grow(500_000), Err(Errno::NOSPC));
    assert_eq!(fs.write(file(made.ino), 400_000, &[7; 44_000]), Ok(44_000));
    for make in [
        Make::new(S_IFDIR | 0o755, 0, 0),
        Make::new(S_IFLNK | 0o777, 0, 0).with_target(&[b'x'; 4000]),
    ] {
        assert_eq!(fs.make(dir(ROOT), name("x"), &make).map(drop), Err(Errno::NOSPC));
    }
    // A file without contents needs only an inode, and a write that does not change the size needs
    // nothing.
    create(&fs, ROOT, "empty");
    assert_eq!(overwrite(&fs, kept.ino, 0, &pattern(3, 600_000)), Ok(()));
    // Accepted bytes are written.
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    assert!(read(&fs, made.ino)[..400_000] == pattern(2, 400_000));

    assert_eq!(resize(500_000).map(|attr| attr.size), Ok(500_000));
    assert_eq!(fs.write(file(made.ino), 444_000, &[7; 100_000]), Ok(100_000));
    assert_eq!(fs.write(file(made.ino), 544_000, &[7; 100_000]), Err(Errno::NOSPC));
    remove(&fs, "kept", kept.ino);
    assert_eq!(fs.write(file(made.ino), 544_000, &[7; 500_000]), Ok(500_000));
    assert_eq!(fs.write(file(made.ino), 1_044_000, &[7; 100_000]), Err(Errno::NOSPC));
    drop(fs);
    site.assert_clean();
}

#[test]
fn bytes_of_a_buffer_that_is_truncated_still_count() {
    let Some(site) = Site::new() else { return };
    set(&site, MIB, 0);
    let fs = site.open();
    let [long, other] = ["long", "other"].map(|name| file(create(&fs, ROOT, name).ino));
    for node in [long, other] {
        fs.open(node, 1).unwrap();
    }
    assert_eq!(fs.write(long, 0, &pattern(1, 900_000)), Ok(900_000));
    fs.setattr(long, &SetAttr::default().with_size(800_000)).unwrap();
    assert_eq!(fs.write(other, 0, &pattern(2, 300_000)), Err(Errno::NOSPC));
    assert_eq!(fs.write(other, 0, &pattern(2, 200_000)), Ok(200_000));
    for node in [long, other] {
        fs.fsync(node, false).unwrap();
    }
    drop(fs);
    site.assert_clean();
}

#[test]
fn fallocate_without_room_zeroes_nothing() {
    let Some(site) = Site::new() else { return };
    set(&site, MIB, 0);
    let fs = site.open();
    let bytes = pattern(1, 600_000);
    let made = write_new(&fs, ROOT, "f", &bytes);
    let zero = |len| fs.fallocate(file(made.ino), 500_000, len, Fallocate::ZERO_RANGE);
    assert_eq!(zero(MIB), Err(Errno::NOSPC));
    assert!(read(&fs, made.ino) == bytes);
    assert_eq!(zero(200_000), Ok(()));
    assert!(read(&fs, made.ino) == [&bytes[..500_000], &[0; 200_000]].concat());
    drop(fs);
    site.assert_clean();
}

#[test]
fn full_file_system_refuses_each_new_inode() {
    let Some(site) = Site::new() else { return };
    set(&site, 0, 3);
    let fs = site.open();
    let first = create(&fs, ROOT, "a");
    mkdir(&fs, ROOT, "d");
    let stat = fs.statfs().unwrap();
    assert_eq!((stat.files, stat.ffree), (3, 0));
    let make = |mode| fs.make(dir(ROOT), name("x"), &Make::new(mode | 0o644, 0, 0)).map(drop);
    for mode in [0, S_IFDIR, S_IFLNK, S_IFIFO] {
        assert_eq!(make(mode), Err(Errno::NOSPC), "{mode:o}");
    }
    assert_eq!(fs.tmpfile(dir(ROOT), &Make::new(0o100_644, 0, 0)).map(drop), Err(Errno::NOSPC));
    fs.link(file(first.ino), dir(ROOT), name("b")).unwrap();
    remove(&fs, "a", first.ino);
    assert_eq!(make(0), Err(Errno::NOSPC));
    remove(&fs, "b", first.ino);
    assert_eq!(make(0), Ok(()));
    drop(fs);
    site.assert_clean();
}

#[test]
fn mount_learns_new_limits_and_the_use_of_others_when_it_renews() {
    let Some(site) = Site::new() else { return };
    let short = options().with_lease(Duration::from_secs(1));
    let open = || ClusterFs::open(&site.parsed(), &short).unwrap();
    let (fs, other) = (open(), open());
    let made = write_new(&fs, ROOT, "f", &pattern(1, 100_000));
    set(&site, MIB, 0);
    let node = file(made.ino);
    fs.open(node, 1).unwrap();
    let until_refused = |fs: &ClusterFs| {
        let begin = std::time::Instant::now();
        while fs.write(node, 2 * MIB, b"x").is_ok() {
            fs.setattr(node, &SetAttr::default().with_size(100_000)).unwrap();
            assert!(begin.elapsed() < Duration::from_secs(20), "the limit is never seen");
        }
    };
    until_refused(&fs);
    assert_eq!(fs.write(node, MIB - 4097, b"x"), Ok(1));
    fs.fsync(node, false).unwrap();
    // The other mount has changed nothing, and sees that the file system is full.
    let begin = std::time::Instant::now();
    while create_with_byte(&other).is_ok() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the use is never seen");
    }
    for fs in [&fs, &other] {
        assert_eq!(blocks(&fs.statfs().unwrap()).1, 0);
    }
    set(&site, 0, 0);
    let begin = std::time::Instant::now();
    while create_with_byte(&other).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the end of the limit is never seen");
    }
    drop((fs, other));
    site.assert_clean();
}

/// Makes a file with one byte and removes it again. Fails if a limit is reached.
fn create_with_byte(fs: &ClusterFs) -> Result<(), Errno> {
    let made = create(fs, ROOT, "byte");
    let done = overwrite(fs, made.ino, 0, b"x");
    remove(fs, "byte", made.ino);
    done
}

#[test]
fn limits_cost_no_statement_per_change() {
    let Some(site) = Site::new() else { return };
    set(&site, MIB, 100);
    let fs = site.open();
    fs.lookup(dir(ROOT), name("absent")).unwrap_err();
    let before = counter(&fs, "cluster_statements");
    for number in 0..10 {
        let made = write_new(&fs, ROOT, &number.to_string(), b"text");
        fs.setattr(file(made.ino), &SetAttr::default().with_size(100)).unwrap();
    }
    // A renewal may come in between.
    let used = counter(&fs, "cluster_statements") - before;
    assert!(used <= 31, "{used} statements");
}
