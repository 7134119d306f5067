//! Statements that run at the same time, late, or twice.

use corewalk::{Errno, FileLock, FileSystem as _, LockKind, RenameMode, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Unreachable, Url};
use corewalk_testkit::proxy::Proxy;
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

use crate::fixtures::{
    ROOT, Site, create, dir, file, list, mkdir, name, options, overwrite, read, write_new,
};

const SLOT: i32 = 1000;
pub(crate) const UNTIL_ONE_WAITS: &str = "FOR i IN 1..6000 LOOP
    EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE NOT granted
        AND pg_backend_pid() = ANY (pg_blocking_pids(pid)));
    PERFORM pg_sleep(0.01); END LOOP;";

/// Runs `call` while another transaction has the lock of the directory `ino`, and returns its
/// result. That transaction runs `before`, takes the lock, and then runs `after`.
pub(crate) fn beside<T: Send>(
    site: &Site,
    ino: u64,
    before: &str,
    after: &str,
    call: impl FnOnce() -> T + Send,
) -> T {
    thread::scope(|scope| {
        let text =
            format!("DO $$ BEGIN {before} PERFORM pg_advisory_xact_lock({ino}); {after} END $$");
        let other = scope.spawn(move || site.sql(&text));
        site.wait_for(&format!(
            "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                WHERE datname = current_database() AND locktype = 'advisory' AND granted
                AND mode = 'ExclusiveLock' AND objid = {ino})"
        ));
        let done = call();
        other.join().unwrap();
        done
    })
}

#[test]
fn rename_over_a_name_that_is_removed_meanwhile_takes_one_link() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let parent = mkdir(&fs, ROOT, "d").ino;
    let (a, b) = (create(&fs, parent, "a").ino, create(&fs, parent, "b").ino);
    fs.link(file(b), dir(ROOT), name("l")).unwrap();
    list(&fs, parent);
    let session = site.session();
    let program = format!(
        "{UNTIL_ONE_WAITS} PERFORM cw_remove({session}, {SLOT}, 1, {parent}, 'b', {b}, 0);"
    );
    let (from, to) = ((dir(parent), name("a")), (dir(parent), name("b")));
    let renamed = beside(&site, parent, "", &program, || fs.rename(from, to, RenameMode::Replace));
    assert_eq!(renamed, Ok(()));
    assert_eq!(site.sql(&format!("SELECT nlink FROM node WHERE ino = {b}")), "1");
    assert_eq!(site.sql(&format!("SELECT nlink FROM node WHERE ino = {a}")), "1");
    drop(fs);
    site.assert_clean();
}

#[test]
fn failed_change_fails_again_when_a_late_copy_of_it_arrives() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = create(&fs, ROOT, "f").ino;
    let session = site.session();
    let again = || {
        site.sql(&format!(
            "SELECT code FROM cw_make({session}, {SLOT}, 1, 1, 'f', {}, 33188, 0, 0, 0, NULL, NULL,
                NULL, 0)",
            made + 1000
        ))
    };
    assert_eq!(again(), "17");
    fs.remove(dir(ROOT), name("f"), file(made)).unwrap();
    assert_eq!(again(), "17");
    assert_eq!(list(&fs, ROOT), []);
    drop(fs);
    site.assert_clean();
}

/// Stops the PostgreSQL processes whose last statement contains `text` by SIGSTOP. Returns these
/// processes.
pub(crate) fn stop_processes(site: &Site, text: &str) -> Vec<Pid> {
    let pids = site.sql(&format!(
        "SELECT pid FROM pg_stat_activity WHERE datname = current_database()
            AND pid <> pg_backend_pid() AND query LIKE '%{text}%'"
    ));
    let pids: Vec<Pid> =
        pids.lines().map(|pid| Pid::from_raw(pid.parse().unwrap()).unwrap()).collect();
    for pid in &pids {
        kill_process(*pid, Signal::STOP).unwrap();
    }
    pids
}

/// Continues stopped processes, and waits until they have ended.
pub(crate) fn continue_to_the_end(site: &Site, pids: &[Pid]) {
    for pid in pids {
        kill_process(*pid, Signal::CONT).unwrap();
    }
    for pid in pids {
        let pid = pid.as_raw_nonzero();
        site.wait_for(&format!(
            "SELECT NOT EXISTS (SELECT FROM pg_stat_activity WHERE pid = {pid})"
        ));
    }
}

#[test]
fn change_that_a_soft_mount_gave_up_undoes_no_later_change() {
    let Some(site) = Site::new() else { return };
    let soft = options()
        .with_unreachable(Unreachable::FailAfter(Duration::from_millis(500)))
        .with_connections(1);
    let fs = ClusterFs::open(&site.parsed(), &soft).unwrap();
    let made = [create(&fs, ROOT, "f").ino, create(&fs, ROOT, "g").ino];
    let chmod = |ino, mode| fs.setattr(file(ino), &SetAttr::default().with_mode(mode)).map(drop);
    chmod(made[0], 0o600).unwrap();
    let stopped = stop_processes(&site, "cw_setattr");
    assert_eq!(stopped.len(), 1);
    // Both changes wait in the only connection of the mount. Each has a request slot of its own.
    let given_up = thread::scope(|scope| {
        let calls = made.map(|ino| scope.spawn(move || chmod(ino, 0o700)));
        calls.map(|call| call.join().unwrap())
    });
    assert_eq!(given_up, [Err(Errno::IO); 2]);
    for ino in made {
        chmod(ino, 0o640).unwrap();
    }
    continue_to_the_end(&site, &stopped);
    assert_eq!(site.sql("SELECT DISTINCT mode & 511 FROM node WHERE ino <> 1"), "416");
    for ino in made {
        assert_eq!(fs.getattr(file(ino)).unwrap().mode & 0o777, 0o640);
    }
    drop(fs);
    site.assert_clean();
}

#[test]
fn file_that_is_purged_gets_no_name() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", b"text").ino;
    fs.remove(dir(ROOT), name("f"), file(made)).unwrap();
    let session = site.session();
    let purge = format!("PERFORM cw_purge({session}, {SLOT}, 1, ARRAY[{made}]::bigint[]);");
    let linked = beside(&site, 77_777, &purge, UNTIL_ONE_WAITS, || {
        fs.link(file(made), dir(ROOT), name("g"))
    });
    assert_eq!(linked, Err(Errno::STALE));
    fs.forget(made, 0);
    drop(fs);
    site.assert_clean();
}

#[test]
fn session_that_ends_during_a_change_counts_it() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let ino = create(&fs, ROOT, "f").ino + 1000;
    let session = site.session();
    let make = format!(
        "PERFORM cw_make({session}, {SLOT}, 1, 1, 'g', {ino}, 33188, 0, 0, 0, NULL, NULL, NULL, 0);"
    );
    beside(&site, 77_777, &make, UNTIL_ONE_WAITS, || fs.close()).unwrap();
    assert_eq!(site.sql("SELECT inodes FROM cw_statfs(true)"), "3");
    assert_eq!(site.sql("SELECT count(*) FROM slot"), "0");
    drop(fs);
    site.assert_clean();
}

#[test]
fn change_of_an_unknown_session_leaves_no_slot() {
    let Some(site) = Site::new() else { return };
    let code = site.sql("SELECT code FROM cw_remove(99, 0, 1, 1, 'f', 5000, 0)");
    assert_eq!((code.as_str(), site.sql("SELECT count(*) FROM slot").as_str()), ("-7", "0"));
}

#[test]
fn intent_tells_hundreds_of_holders() {
    let Some(site) = Site::new() else { return };
    site.sql("INSERT INTO lease SELECT 1, 4000000000000000000 + i FROM generate_series(1, 900) i");
    assert_eq!(site.sql(&format!("SELECT cw_intend(1, {SLOT}, ARRAY[1::bigint]) > 0")), "t");
}

#[test]
fn hard_mount_waits_for_leases_after_a_long_wait_for_a_lock() {
    let Some(site) = Site::new() else { return };
    let short = options().with_lease(Duration::from_secs(1));
    let holder = ClusterFs::open(&site.parsed(), &short).unwrap();
    let session = site.session();
    let hard = short.with_unreachable(Unreachable::Wait);
    let fs = ClusterFs::open(&site.parsed(), &hard).unwrap();
    let program = format!(
        "{UNTIL_ONE_WAITS} PERFORM pg_sleep(3.5); INSERT INTO lease VALUES (1, {session});"
    );
    beside(&site, ROOT, "", &program, || create(&fs, ROOT, "f"));
    assert_eq!(list(&holder, ROOT).len(), 1);
}

#[test]
fn sizes_may_exceed_a_bigint_together() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let session = site.session();
    for (slot, text) in [(SLOT, "f"), (SLOT + 1, "g")] {
        let made = create(&fs, ROOT, text).ino;
        let code = site.sql(&format!(
            "SELECT code FROM cw_setattr({session}, {slot}, 1, {made}, NULL, NULL, NULL,
                {}, NULL, NULL, 0, NULL, NULL)",
            7_u64 << 60
        ));
        assert_eq!(code, "0");
    }
    fs.statfs().unwrap();
    drop(fs);
    site.open().statfs().unwrap();
    site.assert_clean();
}

#[test]
fn file_over_2_gib_is_cut() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", &[1; 1000]).ino;
    fs.setattr(file(made), &SetAttr::default().with_size(5 << 30)).unwrap();
    let session = site.session();
    let code = site.sql(&format!(
        "SET plan_cache_mode = force_custom_plan;
        SELECT code FROM cw_setattr({session}, {SLOT}, 1, {made}, NULL, NULL, NULL, {}, NULL, NULL,
            0, NULL, NULL)",
        3_u64 << 30
    ));
    assert_eq!(code, "0");
    drop(fs);
    site.assert_clean();
}

#[test]
fn object_that_is_replaced_during_a_check_is_no_error() {
    let Some(site) = Site::new() else { return };
    let fs = site.open();
    let made = write_new(&fs, ROOT, "f", &[1; 20_000]).ino;
    drop(fs);
    std::fs::remove_dir_all(site.objects.path()).unwrap();
    // After the snapshot of `fsck`, the slice of the missing object is deleted, as if a mount had
    // replaced the object. `fsck` must not report it.
    let delete = format!("{UNTIL_ONE_WAITS} DELETE FROM slice WHERE ino = {made};");
    beside(&site, 77_777, "LOCK TABLE usage;", &delete, || site.assert_clean());
}

/// The answer of a flush is lost, and another mount writes before the flush is repeated. The
/// repetition must keep the bytes of the other mount.
#[test]
fn repeated_flush_replaces_no_bytes_that_came_between() {
    let Some(site) = Site::new() else { return };
    let short = options().with_lease(Duration::from_secs(2));
    let b = ClusterFs::open(&site.parsed(), &short).unwrap();
    let proxy = Proxy::new(&site.url);
    let a = ClusterFs::open(&Url::parse(proxy.url()).unwrap(), &options()).unwrap();
    let ino = write_new(&a, ROOT, "f", b"aaaaaa").ino;
    let node = file(ino).with_handle(a.open(file(ino), 1).unwrap().handle);
    a.write(node, 0, b"AA").unwrap();
    let version =
        site.sql(&format!("CREATE TABLE go (); SELECT version FROM node WHERE ino = {ino}"));
    let until_told = "FOR i IN 1..6000 LOOP EXIT WHEN EXISTS (SELECT FROM go);
        PERFORM pg_sleep(0.01); END LOOP;";
    beside(&site, ROOT, "", until_told, || {
        thread::scope(|scope| {
            let flush = scope.spawn(|| a.fsync(node, false));
            site.wait_for(
                "SELECT EXISTS (SELECT FROM pg_locks l JOIN pg_database d ON d.oid = l.database
                    WHERE datname = current_database() AND locktype = 'advisory' AND NOT granted)",
            );
            proxy.pause(true);
            site.sql("INSERT INTO go DEFAULT VALUES");
            site.wait_for(&format!("SELECT version > {version} FROM node WHERE ino = {ino}"));
            overwrite(&b, ino, 4, b"BB").unwrap();
            proxy.cut();
            assert_eq!(flush.join().unwrap(), Ok(()));
        });
    });
    a.write(node, 2, b"CC").unwrap();
    a.fsync(node, false).unwrap();
    assert_eq!(read(&b, ino), b"AACCBB");
}

/// A session with a lock dies while a change of it is under way. Another mount must get the lock
/// only after the change has ended.
#[test]
fn lock_waits_for_a_change_of_the_session_before() {
    let changes = [
        (
            "cw_write(@s, 1000, 1, @ino, @s, (SELECT contents FROM node WHERE ino = @ino), 3,
                1, 'new', '{}', '{}', '{}')",
            "new",
        ),
        ("cw_setattr(@s, 1000, 1, @ino, NULL, NULL, NULL, 1, NULL, NULL, 0, NULL, NULL)", "o"),
    ];
    for (change, expected) in changes {
        let Some(site) = Site::new() else { return };
        let (a, b) = (site.open(), site.open());
        let ino = write_new(&a, ROOT, "f", b"old").ino;
        let lock = FileLock::new(1, LockKind::Write);
        a.set_lock(file(ino), &lock).unwrap();
        let session = site.sql("SELECT session FROM flock");
        let change = change.replace("@ino", &ino.to_string()).replace("@s", &session);
        beside(&site, 77_777, &format!("PERFORM {change};"), UNTIL_ONE_WAITS, || {
            site.sql(
                "UPDATE session SET until = now() - interval '1 second'
                WHERE id IN (SELECT session FROM flock)",
            );
            b.set_lock(file(ino), &lock).unwrap();
            assert_eq!(read(&b, ino), expected.as_bytes());
        });
    }
}

/// Two threads of a mount find its session dead. The first replaces the session, and the second
/// must not replace it again.
#[test]
fn session_that_two_threads_find_dead_is_replaced_once() {
    let Some(site) = Site::new() else { return };
    // Two functions of the database sleep, so that the late renewal is answered only after the
    // session was replaced.
    site.sql(
        "ALTER FUNCTION cw_renew RENAME TO renew;
        CREATE FUNCTION cw_renew(p_id bigint, p_boot text) RETURNS TABLE
            (code int, boot text, waits bool, sessions bigint, junctions bigint)
        LANGUAGE plpgsql AS $$ BEGIN
            RETURN QUERY SELECT * FROM renew(p_id, p_boot);
            PERFORM pg_sleep(0.3) FROM session s WHERE s.id = p_id AND s.dead;
        END $$;
        ALTER FUNCTION cw_open_session RENAME TO open_session;
        CREATE FUNCTION cw_open_session(
            p_id bigint, p_fs text, p_host text, p_pid int, p_lease float8, p_most int
        ) RETURNS TABLE (ino bigint, host text, pid int, since text) LANGUAGE plpgsql AS $$ BEGIN
            PERFORM pg_sleep(1.6) FROM session s WHERE s.dead;
            RETURN QUERY SELECT * FROM open_session(p_id, p_fs, p_host, p_pid, p_lease, p_most);
        END $$",
    );
    let lease = Duration::from_secs(12);
    let fs = ClusterFs::open(&site.parsed(), &options().with_lease(lease)).unwrap();
    // Stop shortly before the first renewal, which is sent after 4 seconds.
    thread::sleep(Duration::from_millis(3200));
    site.sql("UPDATE session SET dead = true");
    create(&fs, ROOT, "f");
    site.wait_for(
        "SELECT EXISTS (SELECT FROM session WHERE NOT dead AND until > since + lease + '1 second')",
    );
    assert_eq!(site.sql("SELECT count(*) FROM session"), "2");
}
