//! Statements that run at the same time, late, or twice.

use corewalk::{Errno, FileSystem as _, RenameMode, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Unreachable};
use rustix::process::{Pid, Signal, kill_process};
use std::time::Duration;

use crate::fixtures::{ROOT, Site, create, dir, file, list, mkdir, name, options, write_new};

/// A request slot that no mount uses.
const SLOT: i32 = 1000;
/// PL/pgSQL that loops until another connection waits for a lock of this connection.
pub(crate) const UNTIL_ONE_WAITS: &str = "FOR i IN 1..6000 LOOP
    EXIT WHEN EXISTS (SELECT FROM pg_locks WHERE NOT granted
        AND pg_backend_pid() = ANY (pg_blocking_pids(pid)));
    PERFORM pg_sleep(0.01); END LOOP;";

/// Runs PL/pgSQL in a transaction: `before`, then the lock of a directory, then `after`. Calls
/// `call` as soon as the transaction has the lock.
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

/// Stops the server processes whose last statement contains `text` (SIGSTOP). Returns their ids.
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
    // Two changes wait in the one connection, each with a request slot of its own.
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
    assert_eq!(site.sql("SELECT inodes FROM cw_statfs()"), "3");
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
    // A custom plan sees the values of the parameters, as may happen in a connection of a mount.
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
    // `fsck` has its snapshot by the time it waits for the locked table.
    let delete = format!("{UNTIL_ONE_WAITS} DELETE FROM slice WHERE ino = {made};");
    beside(&site, 77_777, "LOCK TABLE usage;", &delete, || site.assert_clean());
}
