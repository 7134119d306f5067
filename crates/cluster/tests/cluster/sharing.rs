//! Tests of files whose contents are changed by several mounts, or by several programs of one
//! mount.

use std::time::Duration;

use corewalk::{Errno, Fallocate, FileSystem as _, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Url};
use corewalk_testkit::proxy::Proxy;

use crate::fixtures::{
    ROOT, Site, collect, create, dirty_bytes, file, options, overwrite, pattern, read, write_new,
};

#[test]
fn truncation_by_another_mount_is_not_undone_by_a_flush() {
    let Some(site) = Site::new() else { return };
    let (fs, other) = (site.open(), site.open());
    for size in [10_000, 1 << 20] {
        let made = write_new(&fs, ROOT, &format!("f{size}"), &pattern(1, size));
        fs.open(file(made.ino), 1).unwrap();
        fs.read(file(made.ino), 0, &mut [0; 10]).unwrap();
        other.setattr(file(made.ino), &SetAttr::default().with_size(0)).unwrap();
        fs.write(file(made.ino), 0, b"0123456789").unwrap();
        assert_eq!(fs.getattr(file(made.ino)).unwrap().size, 10);
        fs.fsync(file(made.ino), false).unwrap();
        for fs in [&fs, &other] {
            assert_eq!(fs.getattr(file(made.ino)).unwrap().size, 10);
            assert_eq!(read(fs, made.ino), b"0123456789");
        }
    }
    drop((fs, other));
    site.assert_clean();
}

#[test]
fn open_beside_dirty_bytes_sees_what_another_mount_has_closed() {
    let Some(site) = Site::new() else { return };
    let (fs, other) = (site.open(), site.open());
    for size in [1000, 100_000] {
        let made = write_new(&fs, ROOT, &format!("f{size}"), &pattern(1, size));
        fs.open(file(made.ino), 1).unwrap();
        fs.write(file(made.ino), 0, b"dirty").unwrap();
        overwrite(&other, made.ino, 0, &pattern(2, size + 100)).unwrap();
        fs.open(file(made.ino), 0).unwrap();
        let mut found = vec![0; size + 200];
        assert_eq!(fs.read(file(made.ino), 0, &mut found), Ok(size + 100));
        let mut expected = pattern(2, size + 100);
        expected[..5].copy_from_slice(b"dirty");
        assert!(found[..size + 100] == expected, "{size} bytes");
        fs.fsync(file(made.ino), false).unwrap();
        for fs in [&fs, &other] {
            assert!(read(fs, made.ino) == expected, "{size} bytes");
        }
    }
    drop((fs, other));
    site.assert_clean();
}

/// A mount has unflushed writes and a new size, and another mount replaces the file's object. The
/// unflushed changes must stay.
#[test]
fn changes_that_are_not_flushed_stay_when_an_object_was_replaced() {
    let Some(site) = Site::new() else { return };
    let (fs, other) = (site.open(), site.open());
    for writes in [false, true] {
        let made = write_new(&fs, ROOT, &format!("f{writes}"), &pattern(1, 100_000));
        fs.open(file(made.ino), 1).unwrap();
        fs.fallocate(file(made.ino), 0, 200_000, Fallocate::empty()).unwrap();
        let mut expected = pattern(2, 100_000);
        if writes {
            fs.write(file(made.ino), 0, b"dirty").unwrap();
            expected[..5].copy_from_slice(b"dirty");
        }
        overwrite(&other, made.ino, 0, &pattern(2, 100_000)).unwrap();
        collect(&site, &other);
        let mut found = vec![1; 200_000];
        assert_eq!(fs.read(file(made.ino), 0, &mut found), Ok(200_000));
        expected.resize(200_000, 0);
        assert!(found == expected);
        fs.fsync(file(made.ino), false).unwrap();
        assert!(read(&other, made.ino) == expected);
    }
    drop((fs, other));
    site.assert_clean();
}

/// Nine files fill the memory for unflushed bytes, and only one of them can be flushed. A further
/// write must find room all the same.
#[test]
fn write_makes_room_although_other_files_cannot_be_flushed() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let bytes = pattern(1, 15 << 20);
    let files = std::array::from_fn::<_, 9, _>(|at| create(&fs, ROOT, &format!("f{at}")).ino);
    let last = create(&fs, ROOT, "last").ino;
    site.sql(&format!(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            RAISE EXCEPTION 'refused';
        END $$;
        CREATE TRIGGER refuse BEFORE UPDATE ON node FOR EACH ROW WHEN (NEW.ino IN ({}))
            EXECUTE FUNCTION refuse()",
        files[1..].iter().map(u64::to_string).collect::<Vec<_>>().join(",")
    ));
    for ino in files {
        assert_eq!(fs.write(file(ino), 0, &bytes), Ok(bytes.len()));
    }
    assert_eq!(fs.fsync(file(files[1]), false), Err(Errno::IO));
    assert_eq!(fs.write(file(last), 0, b"text"), Ok(4));
    assert_eq!(dirty_bytes(&fs), 8 * bytes.len() as u64 + 4);
    site.sql("DROP TRIGGER refuse ON node");
    for ino in files {
        fs.setattr(file(ino), &SetAttr::default().with_size(0)).unwrap();
    }
    drop(fs);
    site.assert_clean();
}

/// A session dies with unflushed bytes, and another mount then writes the file. The old bytes must
/// not replace the newer ones.
#[test]
fn dirty_bytes_of_a_dead_session_are_not_written_over_newer_ones() {
    const LEASE: Duration = Duration::from_secs(2);
    let Some(site) = Site::new() else { return };
    let proxy = Proxy::new(&site.url);
    let options = options().with_lease(LEASE);
    let fs = ClusterFs::open(&Url::parse(proxy.url()).unwrap(), &options).unwrap();
    let other = ClusterFs::open(&site.parsed(), &options).unwrap();
    let made = write_new(&other, ROOT, "f", &pattern(1, 1000)).ino;
    fs.open(file(made), 1).unwrap();
    fs.write(file(made), 0, b"dirty").unwrap();
    proxy.pause(true);
    thread::scope(|scope| {
        scope.spawn(|| {
            fs.open(file(made), 0).unwrap();
            fs.read(file(made), 0, &mut [0; 10]).unwrap();
        });
        thread::sleep(LEASE * 2);
        overwrite(&other, made, 0, &pattern(2, 1000)).unwrap();
        proxy.pause(false);
    });
    assert_eq!(fs.fsync(file(made), false), Err(Errno::STALE));
    assert!(read(&other, made) == pattern(2, 1000));
    drop((fs, other));
    site.assert_clean();
}
