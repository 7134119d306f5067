//! Tests with connections that hang, with sessions that die, and with database settings that would
//! end statements.

use std::time::{Duration, Instant};

use corewalk::{Errno, FileSystem as _, Make, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, OpenError, Unreachable, Url, limits};
use corewalk_testkit::postgres::Postgres;
use rustix::process::{Signal, kill_process};

use crate::fixtures::{ROOT, Site, create, dir, file, list, name, options, read, write_new};
use crate::races::{beside, stop_processes};

const LEASE: Duration = Duration::from_secs(2);

#[test]
fn session_outlives_a_connection_that_hangs() {
    let Some(site) = Site::new() else { return };
    let fs = ClusterFs::open(&site.parsed(), &options().with_lease(LEASE)).unwrap();
    let session = site.session();
    let stopped = stop_processes(&site, "cw_renew");
    assert_eq!(stopped.len(), 1);
    thread::sleep(LEASE * 2);
    let lives = "SELECT id FROM session WHERE NOT dead AND until > clock_timestamp()";
    assert_eq!(site.sql(lives), session.to_string());
    for pid in stopped {
        kill_process(pid, Signal::CONT).unwrap();
    }
    create(&fs, ROOT, "f");
    assert_eq!(site.session(), session);
}

#[test]
fn idle_mount_replaces_its_dead_session() {
    let Some(site) = Site::new() else { return };
    let _fs = ClusterFs::open(&site.parsed(), &options().with_lease(LEASE)).unwrap();
    let old = site.session();
    site.sql("UPDATE session SET dead = true");
    site.wait_for(&format!("SELECT EXISTS (SELECT FROM session WHERE NOT dead AND id <> {old})"));
}

#[test]
fn orphans_of_a_killed_mount_go_while_another_mount_lives() {
    let Some(site) = Site::new() else { return };
    let killed = site.open();
    let made = write_new(&killed, ROOT, "f", b"text").ino;
    killed.remove(dir(ROOT), name("f"), file(made)).unwrap();
    let session = site.session();
    let fs = site.open();
    site.sql(&format!(
        "UPDATE session SET dead = true, until = now() - interval '11 minutes' WHERE id = {session}"
    ));
    for _ in 0..30 {
        fs.maintain();
    }
    assert_eq!(site.sql("SELECT count(*) FROM orphan"), "0");
    drop((fs, killed));
    site.assert_clean();
}

#[test]
fn orphan_is_purged_though_the_session_has_died() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", b"text").ino;
    fs.remove(dir(ROOT), name("f"), file(made)).unwrap();
    site.sql("UPDATE session SET dead = true");
    fs.forget(made, 0);
    fs.maintain();
    assert_eq!(site.sql("SELECT count(*) FROM orphan"), "0");
    drop(fs);
    site.assert_clean();
}

#[test]
fn orphan_is_purged_though_contents_cannot_be_written() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let (kept, gone) = (create(&fs, ROOT, "kept").ino, create(&fs, ROOT, "gone").ino);
    fs.write(file(kept), 0, b"text").unwrap();
    fs.remove(dir(ROOT), name("gone"), file(gone)).unwrap();
    fs.forget(gone, 0);
    site.sql("ALTER FUNCTION cw_write RENAME TO cw_write_later");
    // Wait for the periodic flush, which writes contents that have been dirty for five seconds.
    thread::sleep(Duration::from_secs(6));
    fs.maintain();
    assert_eq!(site.sql("SELECT count(*) FROM orphan"), "0");
    site.sql("ALTER FUNCTION cw_write_later RENAME TO cw_write");
    fs.maintain();
    drop(fs);
    assert_eq!(read(&site.open(), kept), b"text");
}

#[test]
fn file_system_of_another_version_is_refused() {
    let Some(site) = Site::new() else { return };
    site.sql("UPDATE format SET version = 99");
    let refused = ClusterFs::open(&site.parsed(), &options()).unwrap_err();
    assert!(matches!(refused, OpenError::Version(99)), "{refused}");
    assert_eq!(site.sql("SELECT count(*) FROM session"), "0");
}

#[test]
fn limits_of_the_database_do_not_break_a_mount() {
    let Some(site) = Site::new() else { return };
    site.sql(&format!(
        "ALTER DATABASE {0} SET statement_timeout = '200ms';
        ALTER DATABASE {0} SET lock_timeout = '200ms';
        ALTER DATABASE {0} SET idle_session_timeout = '200ms';
        ALTER DATABASE {0} SET default_transaction_read_only = on",
        site.database
    ));
    let fs = site.open();
    let program = "SET LOCAL statement_timeout = 0; PERFORM pg_sleep(1);";
    site.sql(&format!(
        "SET transaction_read_only = off; ALTER DATABASE {} RESET ALL",
        site.database
    ));
    beside(&site, ROOT, "", program, || create(&fs, ROOT, "f"));
    drop(fs);
    site.assert_clean();
}

#[test]
fn mount_ends_in_ten_seconds_without_the_database() {
    let Some(mut postgres) = Postgres::start() else { return };
    let site = Site::on(&postgres);
    let hard = options().with_unreachable(Unreachable::Wait);
    let fs = ClusterFs::open(&site.parsed(), &hard).unwrap();
    for text in ["f", "g"] {
        let made = create(&fs, ROOT, text).ino;
        fs.write(file(made), 0, b"text").unwrap();
    }
    let made = create(&fs, ROOT, "gone").ino;
    fs.remove(dir(ROOT), name("gone"), file(made)).unwrap();
    fs.forget(made, 0);
    postgres.kill();
    let begin = Instant::now();
    assert_eq!(fs.close(), Err(Errno::IO));
    drop(fs);
    assert!(begin.elapsed() < Duration::from_secs(12), "{:?}", begin.elapsed());
}

#[test]
fn role_with_few_privileges_can_mount() {
    let Some(site) = Site::new() else { return };
    let role = format!("mounter_{}", site.database);
    site.sql(&format!(
        "CREATE ROLE {role} LOGIN;
        GRANT USAGE ON SCHEMA corewalk TO {role};
        GRANT SELECT, INSERT, UPDATE, DELETE ON ALL TABLES IN SCHEMA corewalk TO {role};
        GRANT USAGE ON ALL SEQUENCES IN SCHEMA corewalk TO {role}"
    ));
    let url = Url::parse(&site.url.replace("corewalk@", &format!("{role}@"))).unwrap();
    let fs = ClusterFs::open(&url, &options()).unwrap();
    let made = write_new(&fs, ROOT, "f", &[1; 20_000]).ino;
    fs.setattr(file(made), &SetAttr::default().with_size(10)).unwrap();
    fs.remove(dir(ROOT), name("f"), file(made)).unwrap();
    fs.forget(made, 0);
    assert_eq!(list(&fs, ROOT), []);
    for _ in 0..30 {
        fs.maintain();
    }
    assert_eq!(site.sql("SELECT count(*) FROM orphan"), "0");
    drop(fs);
    site.assert_clean();
}

/// The database's disk is full, so a change fails. The request slot of the change must be free
/// again without a statement, or the next read would fail too.
#[test]
fn directory_can_be_read_while_the_disk_of_the_database_is_full() {
    let Some(site) = Site::new() else { return };
    // With limits, a call that fails with `ENOSPC` also asks the database how much is used.
    limits(&site.parsed(), Some(1 << 30), Some(1000)).unwrap();
    let fs = site.open();
    create(&fs, ROOT, "f");
    site.sql(
        "CREATE FUNCTION full_disk() RETURNS trigger LANGUAGE plpgsql AS
        $$ BEGIN RAISE EXCEPTION 'full' USING ERRCODE = '53100'; END $$;
        CREATE TRIGGER full_disk BEFORE UPDATE ON slot EXECUTE FUNCTION full_disk();
        CREATE TRIGGER full_disk BEFORE UPDATE ON session EXECUTE FUNCTION full_disk()",
    );
    let make = || fs.make(dir(ROOT), name("g"), &Make::new(0o644, 0, 0)).map(drop);
    assert_eq!(make(), Err(Errno::NOSPC));
    assert_eq!(list(&fs, ROOT).len(), 1);
    site.sql("DROP TRIGGER full_disk ON slot; DROP TRIGGER full_disk ON session");
    assert_eq!((make(), list(&fs, ROOT).len()), (Ok(()), 2));
    drop(fs);
    site.assert_clean();
}
