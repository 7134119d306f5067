//! Tests of the life of objects, from their record in the database to their removal. Also of
//! written bytes that are not flushed when their session ends.

use std::time::Duration;

use corewalk::{Errno, FileSystem as _};
use corewalk_cluster::{ClusterFs, fsck, record_strays};

use crate::fixtures::{
    ROOT, Site, collect, create, dirty_bytes, file, options, overwrite, pattern, read, write_new,
};

/// Ends all sessions, as other mounts do with a session that is not renewed in time.
fn end_sessions(site: &Site) {
    site.sql("UPDATE corewalk.session SET dead = true, until = now() - interval '1 second'");
}

#[test]
fn object_of_a_file_survives_a_late_record_of_it() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let bytes = pattern(1, 100_000);
    let made = write_new(&fs, ROOT, "f", &bytes);
    site.sql(
        "INSERT INTO corewalk.pending_object
            SELECT object, s.id FROM corewalk.slice, corewalk.session s",
    );
    drop(fs);
    let findings = fsck(&site.parsed(), &[]).unwrap().findings;
    assert!(findings.len() == 1 && findings[0].to_string().contains("removed"), "{findings:?}");
    let fs = site.open();
    collect(&site, &fs);
    drop(fs);
    let fs = site.open();
    assert!(read(&fs, made.ino) == bytes);
}

#[test]
fn record_of_objects_is_made_once() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let record = "SET search_path = corewalk;
        SELECT code FROM session s, cw_pending(s.id, 99, 1, ARRAY['x'], '{}')";
    assert_eq!(site.sql(record), "0");
    assert_eq!(site.sql("DELETE FROM corewalk.pending_object RETURNING object"), "x");
    assert_eq!(site.sql(record), "0");
    assert_eq!(site.sql("SELECT count(*) FROM corewalk.pending_object"), "0");
    drop(fs);
}

/// While a flush writes objects, their session may end, and another mount removes them. The flush
/// must then write them again.
#[test]
fn object_that_became_unused_before_its_file_named_it_is_written_again() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    site.sql(
        "SET search_path = corewalk;
        CREATE SEQUENCE turns;
        CREATE FUNCTION outlive() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            IF nextval('turns') = 1 THEN
                INSERT INTO dead_object SELECT object, now() - interval '1 hour'
                    FROM pending_object;
                DELETE FROM pending_object;
            END IF;
            RETURN NULL;
        END $$;
        CREATE TRIGGER outlive AFTER INSERT ON pending_object EXECUTE FUNCTION outlive()",
    );
    let bytes = pattern(2, 5 << 20);
    let made = write_new(&fs, ROOT, "f", &bytes);
    assert_ne!(site.sql("SELECT last_value FROM corewalk.turns"), "0");
    collect(&site, &fs);
    drop(fs);
    let fs = site.open();
    assert!(read(&fs, made.ino) == bytes);
    drop(fs);
    let report = fsck(&site.parsed(), &[]).unwrap();
    assert_eq!((report.findings, report.unused_objects), (Vec::new(), 0));
}

/// An object that arrives in the store after the removal of its record is a stray. `fsck` must
/// report strays, but not the objects that have a record.
#[test]
fn object_that_the_database_does_not_know_is_found_and_removed() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let bytes = pattern(1, 100_000);
    let made = write_new(&fs, ROOT, "f", &bytes);
    site.sql("INSERT INTO pending_object SELECT 'abc/0/1', id FROM session");
    let objects = std::fs::read_dir(site.objects.path()).unwrap().next().unwrap().unwrap().path();
    std::fs::create_dir_all(objects.join("abc/0")).unwrap();
    for key in ["abc/0/1", "abc/0/2"] {
        std::fs::write(objects.join(key), "late").unwrap();
    }
    let mut report = fsck(&site.parsed(), &[]).unwrap();
    assert_eq!((&report.findings, report.unused_objects), (&Vec::new(), 2));
    assert_eq!(report.strays, ["abc/0/2"]);
    // If `fsck` reads an outdated standby, it may take a used object for a stray. Such an object
    // must not be removed.
    report.strays.push(site.sql("SELECT object FROM slice"));
    record_strays(&site.parsed(), &report).unwrap();
    let report = fsck(&site.parsed(), &[]).unwrap();
    assert_eq!((report.strays.len(), report.unused_objects), (0, 2));
    collect(&site, &fs);
    assert!(objects.join("abc/0/1").exists() && !objects.join("abc/0/2").exists());
    assert!(read(&fs, made.ino) == bytes);
    drop(fs);
    site.assert_clean();
}

#[test]
fn bytes_are_written_under_the_next_session_if_theirs_has_ended() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let bytes = pattern(3, 100_000);
    let made = create(&fs, ROOT, "f");
    fs.write(file(made.ino), 0, &bytes).unwrap();
    end_sessions(&site);
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    assert!(read(&fs, made.ino) == bytes);
    drop(fs);
    site.assert_clean();
}

#[test]
fn bytes_of_an_ended_session_do_not_replace_newer_ones() {
    let Some(site) = Site::new() else { return };
    let open = || {
        let short = options().with_lease(Duration::from_secs(1));
        ClusterFs::open(&site.parsed(), &short).unwrap()
    };
    for size in [100, 100_000] {
        let name = format!("f{size}");
        let old = open();
        let made = write_new(&old, ROOT, &name, &pattern(4, size));
        old.open(file(made.ino), 1).unwrap();
        old.write(file(made.ino), 10, b"of the ended session").unwrap();
        end_sessions(&site);
        let new = open();
        overwrite(&new, made.ino, 0, &pattern(5, size)).unwrap();
        assert_eq!(old.fsync(file(made.ino), false), Err(Errno::STALE));
        for fs in [&old, &new] {
            assert!(read(fs, made.ino) == pattern(5, size), "{size} bytes");
        }
        overwrite(&old, made.ino, 0, b"later").unwrap();
        assert_eq!(read(&new, made.ino)[..5], *b"later");
    }
    site.assert_clean();
}

#[test]
fn bytes_of_a_removed_file_are_given_up() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = create(&fs, ROOT, "f");
    fs.open(file(made.ino), 1).unwrap();
    fs.write(file(made.ino), 0, &pattern(6, 100_000)).unwrap();
    // The file is removed, as if by another mount.
    site.sql(
        "SET search_path = corewalk;
        DELETE FROM edge WHERE name = 'f';
        DELETE FROM node WHERE ino <> 1;
        UPDATE slot SET inodes = 0, bytes = 0",
    );
    assert_eq!(fs.fsync(file(made.ino), false), Err(Errno::STALE));
    assert_eq!(fs.fsync(file(made.ino), false), Ok(()));
    assert_eq!(dirty_bytes(&fs), 0);
}
