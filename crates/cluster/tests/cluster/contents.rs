//! Contents of files: inline, in objects, and after a new mount.

use corewalk::{Errno, Fallocate, FileSystem as _, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Place, Url, mkfs};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use corewalk_testkit::s3::S3Server;

use crate::fixtures::{
    ROOT, Site, create, dir, file, name, options, overwrite, pattern, read, write_new,
};

#[test]
fn closed_file_is_there_after_the_mount_is_gone_without_end() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let sizes = [0, 1, 16 << 10, (16 << 10) + 1, 5 << 20, (20 << 20) + 7];
    let files: Vec<u64> = sizes
        .iter()
        .enumerate()
        .map(|(at, size)| write_new(&fs, ROOT, &format!("f{at}"), &pattern(at as u8, *size)).ino)
        .collect();
    // Leak the mount, so that it writes nothing more, as if it had been killed.
    std::mem::forget(fs);
    site.sql("UPDATE corewalk.session SET until = now() - interval '1 second'");
    let fs = site.open();
    for (at, size) in sizes.iter().enumerate() {
        let found = fs.lookup(dir(ROOT), name(&format!("f{at}"))).unwrap();
        assert_eq!((found.ino, found.size), (files[at], *size as u64));
        assert!(read(&fs, found.ino) == pattern(at as u8, *size), "{size} bytes");
    }
    drop(fs);
    site.assert_clean();
}

#[test]
fn random_changes_of_a_file_are_read_back() {
    let Some(site) = Site::new() else { return };
    let seed = Seed::choose();
    let report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let fs = site.open();
    let made = create(&fs, ROOT, "f");
    let mut model: Vec<u8> = Vec::new();
    const MAX: u64 = 9 << 20;
    for round in 0..120_u8 {
        // Small files have their contents in the database, and large ones in objects. So the first
        // half of the rounds keeps the file small.
        let max = if round < 60 { 40 << 10 } else { MAX };
        let at = rng.below(max);
        let longest = if rng.below(4) == 0 { max } else { 20 << 10 };
        let len = rng.below(longest) as usize;
        match rng.below(6) {
            0 => {
                let size = rng.below(max);
                fs.setattr(file(made.ino), &SetAttr::default().with_size(size)).unwrap();
                model.resize(size as usize, 0);
            }
            1 => {
                let how = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
                fs.fallocate(file(made.ino), at, len as u64 + 1, how).unwrap();
                let end = (at as usize + len + 1).min(model.len());
                model.get_mut(at as usize..end).unwrap_or_default().fill(0);
            }
            _ => {
                let bytes = pattern(round, len);
                overwrite(&fs, made.ino, at, &bytes).unwrap();
                if len > 0 {
                    let end = at as usize + len;
                    model.resize(model.len().max(end), 0);
                    model[at as usize..end].copy_from_slice(&bytes);
                }
            }
        }
        assert_eq!(fs.getattr(file(made.ino)).unwrap().size, model.len() as u64, "{round}");
        if rng.below(3) == 0 {
            assert!(read(&fs, made.ino) == model, "round {round}");
        }
    }
    drop(fs);
    let fs = site.open();
    assert!(read(&fs, made.ino) == model);
    drop(fs);
    site.assert_clean();
    drop(report);
}

#[test]
fn lost_object_is_an_error_and_a_finding() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", &pattern(1, 100_000));
    drop(fs);
    let folder = std::fs::read_dir(site.objects.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::remove_dir_all(&folder).unwrap();
    let fs = site.open();
    let mut buf = [0; 100];
    assert_eq!(fs.read(file(made.ino), 0, &mut buf), Err(Errno::IO));
    drop(fs);
    let findings = corewalk_cluster::fsck(&site.parsed(), &[]).unwrap().findings;
    assert_eq!(findings.len(), 1);
    assert!(findings[0].to_string().contains(&format!("inode {}: the object", made.ino)));
}

#[test]
fn contents_in_s3_are_read_back() {
    let (Some(site), Some(server)) = (Site::new(), S3Server::start("bucket")) else { return };
    let (address, _) = site.url.split_once('?').unwrap();
    let url = Url::parse(&format!("{address}?data=s3://bucket/some/prefix")).unwrap();
    assert!(matches!(url.data(), Some(Place::S3 { .. })));
    mkfs(&url, (0, 0), true).unwrap();
    let options = options().with_settings(server.settings());
    let fs = ClusterFs::open(&url, &options).unwrap();
    let bytes = pattern(3, 9 << 20);
    let made = write_new(&fs, ROOT, "f", &bytes);
    drop(fs);
    let fs = ClusterFs::open(&url, &options).unwrap();
    assert!(read(&fs, made.ino) == bytes);
    drop(fs);
    let report = corewalk_cluster::fsck(&url, &server.settings()).unwrap();
    assert_eq!((report.findings.len(), report.objects), (0, 3));
}

#[test]
fn hole_in_a_huge_file_makes_few_slices() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = create(&fs, ROOT, "f");
    let set = SetAttr::default().with_size(1 << 40);
    fs.setattr(file(made.ino), &set).unwrap();
    let (low, high) = (pattern(1, 100), pattern(2, 100_000));
    overwrite(&fs, made.ino, 0, &low).unwrap();
    overwrite(&fs, made.ino, 1 << 39, &high).unwrap();
    let how = Fallocate::PUNCH_HOLE | Fallocate::KEEP_SIZE;
    fs.fallocate(file(made.ino), 50, (1 << 40) - 50, how).unwrap();
    assert!(site.sql("SELECT count(*) FROM corewalk.slice").parse::<u64>().unwrap() <= 3);
    for fs in [&fs, &site.open()] {
        let mut found = [1; 100];
        assert_eq!(fs.read(file(made.ino), 0, &mut found), Ok(100));
        assert_eq!((&found[..50], &found[50..]), (&low[..50], &[0; 50][..]));
        assert_eq!(fs.read(file(made.ino), (1 << 39) + 5, &mut found), Ok(100));
        assert_eq!(found, [0; 100]);
    }
    drop(fs);
    site.assert_clean();
}

#[test]
fn file_ends_at_the_largest_size() {
    const SIZE_MAX: u64 = 1 << 50;
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = create(&fs, ROOT, "f");
    let resize = |size| {
        let set = SetAttr::default().with_size(size);
        fs.setattr(file(made.ino), &set).map(|attr| attr.size)
    };
    assert_eq!(resize(SIZE_MAX + 1), Err(Errno::FBIG));
    assert_eq!(resize(SIZE_MAX), Ok(SIZE_MAX));
    assert_eq!(fs.write(file(made.ino), SIZE_MAX, b"x"), Err(Errno::FBIG));
    assert_eq!(fs.append(file(made.ino), 0, b"x"), Err(Errno::FBIG));
    assert_eq!(fs.write(file(made.ino), SIZE_MAX - 2, b"xyz"), Ok(2));
    for how in [Fallocate::empty(), Fallocate::KEEP_SIZE, Fallocate::ZERO_RANGE] {
        assert_eq!(fs.fallocate(file(made.ino), SIZE_MAX - 2, 3, how), Err(Errno::FBIG));
        assert_eq!(fs.fallocate(file(made.ino), u64::MAX, 3, how), Err(Errno::FBIG));
        assert_eq!(fs.fallocate(file(made.ino), SIZE_MAX - 2, 2, how), Ok(()));
    }
    drop(fs);
    let fs = site.open();
    let mut found = [1; 4];
    assert_eq!(fs.read(file(made.ino), SIZE_MAX - 3, &mut found), Ok(3));
    assert_eq!(found[..3], [0, 0, 0]);
    drop(fs);
    site.assert_clean();
}

/// A program may open a file during a truncation. Once the truncation is done, this program must
/// read the new contents.
#[test]
fn truncation_is_seen_by_a_reader_who_came_meanwhile() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", &pattern(1, 100_000));
    site.sql(
        "SET search_path = corewalk;
        CREATE FUNCTION be_slow() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(1);
            RETURN NEW;
        END $$;
        CREATE TRIGGER be_slow BEFORE UPDATE ON node FOR EACH ROW WHEN (NEW.size = 0)
            EXECUTE FUNCTION be_slow()",
    );
    thread::scope(|scope| {
        let cut = scope.spawn(|| fs.setattr(file(made.ino), &SetAttr::default().with_size(0)));
        let sleeps = "SELECT count(*) FROM pg_stat_activity
            WHERE datname = current_database() AND wait_event = 'PgSleep'";
        while site.sql(sleeps) == "0" {
            assert!(!cut.is_finished());
        }
        fs.open(file(made.ino), 0).unwrap();
        fs.read(file(made.ino), 0, &mut [0; 10]).unwrap();
        assert_eq!(cut.join().unwrap().unwrap().size, 0);
    });
    assert_eq!(fs.read(file(made.ino), 0, &mut [0; 10]), Ok(0));
    drop(fs);
    site.assert_clean();
}
