//! Sessions: mkfs, death, and files without a name.

use std::time::{Duration, Instant};

use corewalk::{Errno, FileSystem as _, Make, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, MakeError, mkfs};

use crate::fixtures::{ROOT, Site, counter, create, dir, file, list, name, options, write_new};
use crate::races::UNTIL_ONE_WAITS;

#[test]
fn file_system_in_use_is_not_made_anew() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    assert!(matches!(mkfs(&site.parsed(), (0, 0), true), Err(MakeError::Busy(_))));
    assert!(matches!(mkfs(&site.parsed(), (0, 0), false), Err(MakeError::Exists)));
    drop(fs);
    mkfs(&site.parsed(), (0, 0), true).unwrap();
}

#[test]
fn dead_session_drops_its_cache_and_goes_on_as_a_new_one() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let kept = create(&fs, ROOT, "kept");
    let orphan = write_new(&fs, ROOT, "orphan", b"text");
    fs.remove(dir(ROOT), name("orphan"), file(orphan.ino)).unwrap();
    site.sql("UPDATE corewalk.session SET until = now() - interval '1 second'");
    // The session dies, and another mount changes the file system.
    site.sql("UPDATE corewalk.session SET dead = true");
    site.sql("UPDATE corewalk.edge SET name = 'other' WHERE name = 'kept'");
    create(&fs, ROOT, "new");
    let names: Vec<String> = list(&fs, ROOT).into_iter().map(|(text, _)| text).collect();
    assert_eq!(names, ["other", "new"]);
    assert_eq!(fs.lookup(dir(ROOT), name("kept")), Err(Errno::NOENT));
    assert_eq!(fs.getattr(file(kept.ino)).unwrap().ino, kept.ino);
    drop(fs);
    // The dead session had a file without a name, which the next mount must purge.
    drop(site.open());
    assert_eq!(site.sql("SELECT count(*) FROM corewalk.orphan"), "0");
    site.assert_clean();
}

#[test]
fn file_without_a_name_is_usable_until_it_is_forgotten() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", b"text");
    fs.remove(dir(ROOT), name("f"), file(made.ino)).unwrap();
    let mut buf = [0; 10];
    assert_eq!(fs.read(file(made.ino), 0, &mut buf), Ok(4));
    assert_eq!(fs.getattr(file(made.ino)).unwrap().nlink, 0);
    assert_eq!(fs.by_number(made.ino, None), Err(Errno::STALE));
    let unnamed = fs.tmpfile(dir(ROOT), &Make::new(0o600, 0, 0)).unwrap();
    fs.write(file(unnamed.ino), 0, b"linked").unwrap();
    let linked = fs.link(file(unnamed.ino), dir(ROOT), name("g")).unwrap();
    assert_eq!((linked.nlink, linked.size), (1, 6));
    fs.forget(made.ino, 0);
    fs.maintain();
    assert_eq!(site.sql("SELECT count(*) FROM corewalk.orphan"), "0");
    assert_eq!(fs.getattr(file(made.ino)), Err(Errno::STALE));
    drop(fs);
    site.assert_clean();
}

#[test]
fn mount_of_a_replaced_file_system_does_not_join_the_new_one() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = create(&fs, ROOT, "f");
    site.sql("UPDATE session SET dead = true, until = now() - interval '1 second'");
    mkfs(&site.parsed(), (0, 0), true).unwrap();
    let refused = fs.make(dir(ROOT), name("g"), &Make::new(0o644, 0, 0));
    assert_eq!(refused, Err(Errno::IO));
    assert_eq!(fs.getattr(file(made.ino)), Err(Errno::IO));
    drop(fs);
    assert_eq!(site.sql("SELECT count(*) FROM session"), "0");
    assert_eq!(list(&site.open(), ROOT), []);
    site.assert_clean();
}

#[test]
fn session_that_is_opened_twice_is_one_session() {
    let Some(site) = Site::new() else { return };
    let open =
        "SELECT ino > 0 FROM cw_open_session(7, (SELECT id::text FROM format), 'h', 1, 10, 5)";
    assert_eq!((site.sql(open), site.sql(open)), ("t".to_owned(), "t".to_owned()));
    assert_eq!(site.sql("SELECT count(*) FROM session"), "1");
}

#[test]
fn schema_with_tables_of_another_program_is_left_alone() {
    let Some(site) = Site::new() else { return };
    site.sql("CREATE TABLE other (a int)");
    let refused = mkfs(&site.parsed(), (0, 0), true);
    assert!(matches!(refused, Err(MakeError::Foreign(ref table)) if table == "other"));
    site.sql("DROP TABLE other");
    mkfs(&site.parsed(), (0, 0), true).unwrap();
}

#[test]
fn no_session_is_opened_after_the_end_of_a_mount() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    fs.close().unwrap();
    let refused = fs.make(dir(ROOT), name("f"), &Make::new(0o644, 0, 0));
    assert_eq!(refused.map(drop), Err(Errno::IO));
    assert_eq!(site.sql("SELECT count(*) FROM session"), "0");
}

/// Each of two sessions looks for expired sessions, and one of them is expired itself. The two
/// statements must not deadlock.
#[test]
fn renewals_do_not_deadlock() {
    let Some(site) = Site::new() else { return };
    let open = |id: i32| {
        site.sql(&format!(
            "SELECT ino FROM cw_open_session({id}, (SELECT id::text FROM format), 'h', 1, 60, 9)"
        ))
    };
    open(7);
    open(8);
    site.sql(&format!(
        "UPDATE session SET until = now() - interval '1 second' WHERE id = 8;
        CREATE FUNCTION dies() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN
            {UNTIL_ONE_WAITS} RETURN NEW; END $$;
        CREATE TRIGGER dies BEFORE UPDATE ON session FOR EACH ROW WHEN (NEW.dead AND NEW.id = 8)
            EXECUTE FUNCTION dies()"
    ));
    thread::scope(|scope| {
        let renewal = scope.spawn(|| site.sql("SELECT code FROM cw_renew(7, '')"));
        site.wait_for(
            "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
                AND wait_event = 'PgSleep' AND query LIKE '%cw_renew(7%')",
        );
        site.sql(
            "UPDATE session SET until = now() - interval '1 second' WHERE id = 7;
            SELECT cw_judge(ARRAY[7, 8])",
        );
        assert_eq!(renewal.join().unwrap(), "0");
    });
}

/// A renewal is answered after the mount has dropped its caches at its end, and before the session
/// has ended. Checks that nothing is cached from then on.
#[test]
fn late_renewal_does_not_bring_a_mount_back_to_its_caches() {
    let Some(site) = Site::new() else { return };
    site.sql(
        "CREATE TABLE may_renew (); CREATE TABLE may_end (); CREATE SEQUENCE renewals;
        CREATE SEQUENCE ends;
        ALTER FUNCTION cw_renew RENAME TO renew;
        CREATE FUNCTION cw_renew(p_id bigint, p_boot text) RETURNS TABLE
            (code int, boot text, waits bool, sessions bigint, junctions bigint)
        LANGUAGE plpgsql AS $$ BEGIN
            RETURN QUERY SELECT * FROM renew(p_id, p_boot);
            IF nextval('renewals') > 1 THEN FOR i IN 1..100 LOOP
                EXIT WHEN EXISTS (SELECT FROM may_renew); PERFORM pg_sleep(0.01); END LOOP; END IF;
        END $$;
        ALTER FUNCTION cw_end_session RENAME TO end_session;
        CREATE FUNCTION cw_end_session(p_session bigint) RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            PERFORM nextval('ends');
            FOR i IN 1..100 LOOP EXIT WHEN EXISTS (SELECT FROM may_end); PERFORM pg_sleep(0.01);
            END LOOP;
            PERFORM end_session(p_session);
        END $$",
    );
    let fs = site.open();
    create(&fs, ROOT, "f");
    list(&fs, ROOT);
    site.wait_for("SELECT last_value = 2 FROM renewals");
    thread::scope(|scope| {
        let end = scope.spawn(|| fs.close());
        let start = Instant::now();
        while counter(&fs, "cluster_cached_entries") > 0 {
            assert!(start.elapsed() < Duration::from_secs(10), "the caches are not dropped");
            thread::sleep(Duration::from_millis(1));
        }
        site.sql("INSERT INTO may_renew DEFAULT VALUES");
        site.wait_for("SELECT is_called FROM ends");
        for _ in 0..10 {
            let _ = fs.lookup(dir(ROOT), name("f"));
        }
        site.sql("INSERT INTO may_end DEFAULT VALUES");
        assert_eq!(end.join().unwrap(), Ok(()));
    });
    assert_eq!(fs.lookup(dir(ROOT), name("f")).map(drop), Err(Errno::IO));
}

#[test]
fn mount_learns_of_a_second_one_before_its_next_renewal() {
    let Some(site) = Site::new() else { return };
    let options = options().with_lease(Duration::from_secs(60));
    let fs = ClusterFs::open(&site.parsed(), &options).unwrap();
    assert_eq!(counter(&fs, "cluster_sessions"), 1);
    // Wait until the listener has asked for intents, because from then on it receives
    // notifications.
    site.wait_for(
        "SELECT EXISTS (SELECT FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND state = 'idle' AND query LIKE '%cw_waiting%')",
    );
    let _second = site.open();
    let start = Instant::now();
    while counter(&fs, "cluster_sessions") == 1 {
        assert!(start.elapsed() < Duration::from_secs(10), "the second mount is unknown");
        thread::sleep(Duration::from_millis(1));
    }
}

/// A call waits for the database to give out inode numbers, while the session of the mount dies.
/// Checks that another call can open a new session meanwhile.
#[test]
fn session_is_replaced_while_a_call_waits_for_inode_numbers() {
    let Some(site) = Site::new() else { return };
    site.sql(
        "CREATE TABLE go (); CREATE SEQUENCE turns;
        CREATE OR REPLACE FUNCTION cw_inos() RETURNS bigint LANGUAGE plpgsql AS $$ BEGIN
            PERFORM nextval('turns');
            FOR i IN 1..6000 LOOP EXIT WHEN EXISTS (SELECT FROM go); PERFORM pg_sleep(0.01);
            END LOOP;
            RETURN nextval('ino_seq');
        END $$",
    );
    let fs = site.open();
    let made = create(&fs, ROOT, "f").ino;
    let make = |text| fs.make(dir(ROOT), name(text), &Make::new(0o644, 0, 0)).map(drop);
    // Use up the first range of inode numbers, so that the next call asks the database for numbers.
    for _ in 1..4096 {
        assert_eq!(make("f"), Err(Errno::EXIST));
    }
    thread::scope(|scope| {
        let making = scope.spawn(|| make("g"));
        site.wait_for("SELECT is_called FROM turns");
        site.sql("UPDATE session SET dead = true");
        let changing =
            scope.spawn(|| fs.setattr(file(made), &SetAttr::default().with_mode(0o600)).map(drop));
        let start = Instant::now();
        while !changing.is_finished() && start.elapsed() < Duration::from_secs(10) {
            thread::sleep(Duration::from_millis(1));
        }
        let has_finished = changing.is_finished();
        site.sql("INSERT INTO go DEFAULT VALUES");
        assert_eq!([making, changing].map(|call| call.join().unwrap()), [Ok(()), Ok(())]);
        assert!(has_finished, "no new session is opened");
    });
}
