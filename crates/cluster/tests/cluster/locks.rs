//! Tests of locks of fcntl(2) and flock(2): a comparison with the kernel, locks of several mounts,
//! and locks that are lost.

use std::collections::HashMap;
use std::fs::File;
use std::time::{Duration, Instant};

use corewalk::{Errno, Fallocate, FileLock, FileSystem as _, LockKind, Node, SetAttr};
use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, Unreachable, Url};
use corewalk_testkit::proxy::Proxy;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use nix::fcntl::{FcntlArg, fcntl};
use nix::libc;
use rustix::fs::{FlockOperation, flock};

use crate::fixtures::{ROOT, Site, create, file, options, overwrite, pattern, read, write_new};
use crate::outage::{break_store, mend_store};

const POSITIONS: u64 = 12;

const STEPS: usize = 1000;

fn opened(fs: &ClusterFs, ino: u64) -> Node<'static> {
    file(ino).with_handle(fs.open(file(ino), 2).unwrap().handle)
}

fn whole(owner: u64, kind: LockKind) -> FileLock {
    FileLock { is_flock: true, ..FileLock::new(owner, kind) }
}

fn wait_for(fs: &ClusterFs, node: Node<'_>, lock: &FileLock) {
    let start = Instant::now();
    while fs.set_lock(node, lock) == Err(Errno::AGAIN) {
        assert!(start.elapsed() < Duration::from_secs(60), "the lock is not dropped");
        thread::sleep(Duration::from_millis(1));
    }
}

/// An open file of this host. The kernel's answers to its lock calls are the expected results.
struct Oracle(File);

impl Oracle {
    fn host(lock: &FileLock) -> libc::flock {
        let kind = match lock.kind {
            LockKind::Read => libc::F_RDLCK,
            LockKind::Write => libc::F_WRLCK,
            LockKind::Unlock => libc::F_UNLCK,
        };
        let len = if lock.end == FileLock::END_MAX { 0 } else { lock.end - lock.start + 1 };
        libc::flock {
            l_type: kind as libc::c_short,
            l_whence: libc::SEEK_SET as libc::c_short,
            l_start: lock.start as libc::off_t,
            l_len: len as libc::off_t,
            l_pid: 0,
        }
    }

    fn set(&self, lock: &FileLock) -> Result<(), Errno> {
        if lock.is_flock {
            return flock(
                &self.0,
                match lock.kind {
                    LockKind::Read => FlockOperation::NonBlockingLockShared,
                    LockKind::Write => FlockOperation::NonBlockingLockExclusive,
                    LockKind::Unlock => FlockOperation::Unlock,
                },
            );
        }
        match fcntl(&self.0, FcntlArg::F_OFD_SETLK(&Oracle::host(lock))) {
            Ok(_) => Ok(()),
            Err(error) => Err(Errno::from_raw_os_error(error as i32)),
        }
    }

    fn is_refused(&self, lock: &FileLock) -> bool {
        let mut found = Oracle::host(lock);
        fcntl(&self.0, FcntlArg::F_OFD_GETLK(&mut found)).unwrap();
        i32::from(found.l_type) != libc::F_UNLCK
    }
}

fn random_lock(rng: &mut Rng, owner: u64) -> FileLock {
    let kind = [LockKind::Read, LockKind::Write, LockKind::Unlock][rng.index(3)];
    if rng.below(4) == 0 {
        return whole(owner, kind);
    }
    let start = rng.below(POSITIONS);
    let end = match (kind, rng.below(6)) {
        // Half of the unlocks are of all bytes. Otherwise one owner would soon keep a lock of all
        // bytes for ever.
        (LockKind::Unlock, 0..3) => return FileLock::new(owner, kind),
        (_, 5) => FileLock::END_MAX,
        _ => start + rng.below(3),
    };
    FileLock::new(owner, kind).with_range(start, end)
}

/// Six owners on two mounts take and drop random locks. Each call must have the result that it has
/// in the kernel of this host.
#[test]
fn locks_are_given_as_by_the_kernel() {
    let Some(site) = Site::new() else { return };
    let report = ReportSeed::new(Seed::choose());
    let mut rng = Rng::new(report.seed());
    let mounts = [site.open(), site.open()];
    let host = tempfile::NamedTempFile::new().unwrap();
    let open = || Oracle(File::options().read(true).write(true).open(host.path()).unwrap());
    let oracles: Vec<Oracle> = (0..6).map(|_| open()).collect();
    let ino = create(&mounts[0], ROOT, "f").ino;
    let nodes = [0, 1].map(|at| opened(&mounts[at], ino));
    let mut counts = HashMap::new();
    for step in 0..STEPS {
        let owner = rng.index(6);
        let (fs, node) = (&mounts[owner % 2], nodes[owner % 2]);
        let lock = random_lock(&mut rng, owner as u64);
        if step % 100 == 99 {
            // A close in the mount drops the owner's locks. On the host, unlock all bytes instead.
            fs.unlock_owner(node, owner as u64, false).unwrap();
            oracles[owner].set(&FileLock::new(0, LockKind::Unlock)).unwrap();
        }
        if !lock.is_flock && lock.kind != LockKind::Unlock {
            let found = fs.get_lock(node, &lock).unwrap();
            assert_eq!(found.is_some(), oracles[owner].is_refused(&lock), "{step}: {lock:?}");
            if let Some(found) = found {
                assert!(FileLock { owner: 99, ..found }.conflicts(&lock), "{step}: {found:?}");
            }
        }
        let expected = oracles[owner].set(&lock);
        assert_eq!(fs.set_lock(node, &lock), expected, "step {step}: {lock:?}");
        *counts.entry((lock.is_flock, lock.kind as u8, expected.is_ok())).or_insert(0) += 1;
    }
    // Unlocks are never refused.
    assert_eq!(counts.len(), 10, "{counts:?}");
    // The table of locks must not have two overlapping ranges of an owner, nor two adjacent ranges
    // of one kind.
    let split = site.sql(
        "SELECT count(*) FROM corewalk.flock a JOIN corewalk.flock b USING (ino, session, owner, \
         is_flock) WHERE a.first < b.first AND (a.last >= b.first OR a.last = b.first - 1 AND \
         a.writes = b.writes)",
    );
    assert_eq!(split, "0");
    drop(mounts);
    assert_eq!(site.sql("SELECT count(*) FROM corewalk.flock"), "0");
}

/// Adds 1 to the number in a file, `count` times. Without a lock, an addition may be lost, because
/// other threads run between its read and its write.
fn add(fs: &ClusterFs, ino: u64, owner: u64, count: usize, has_locks: bool) {
    let node = opened(fs, ino);
    for _ in 0..count {
        if has_locks {
            wait_for(fs, node, &whole(owner, LockKind::Write));
        }
        let mut text = [0; 8];
        assert_eq!(fs.read(node, 0, &mut text), Ok(8));
        thread::yield_now();
        fs.write(node, 0, &(u64::from_le_bytes(text) + 1).to_le_bytes()).unwrap();
        if has_locks {
            fs.set_lock(node, &whole(owner, LockKind::Unlock)).unwrap();
        } else {
            fs.flush(node).unwrap();
        }
    }
    fs.release(node);
}

fn race(has_locks: bool, count: usize) -> Option<u64> {
    let site = Site::new()?;
    let mounts = [site.open(), site.open(), site.open()];
    let ino = write_new(&mounts[0], ROOT, "f", &0_u64.to_le_bytes()).ino;
    thread::scope(|scope| {
        for owner in 0..6 {
            let fs = &mounts[owner % 3];
            scope.spawn(move || add(fs, ino, owner as u64, count, has_locks));
        }
    });
    Some(u64::from_le_bytes(read(&mounts[0], ino).try_into().unwrap()))
}

#[test]
fn no_addition_under_a_lock_is_lost() {
    let Some(sum) = race(true, 50) else { return };
    assert_eq!(sum, 300);
}

#[test]
fn control_additions_without_locks_are_lost() {
    let Some(sum) = race(false, 50) else { return };
    assert!(sum < 300, "{sum}");
}

/// If two mounts write different parts of a file under locks of these parts, both parts must stay.
#[test]
fn parts_of_a_file_are_merged() {
    for len in [24, 40_000] {
        let Some(site) = Site::new() else { return };
        let (a, b) = (site.open(), site.open());
        let ino = write_new(&a, ROOT, "f", &vec![b'-'; len]).ino;
        let mounts = [(&a, opened(&a, ino), 0), (&b, opened(&b, ino), 8)];
        let lock = |at, kind| FileLock::new(1, kind).with_range(at, at + 7);
        for (fs, node, at) in mounts {
            fs.set_lock(node, &lock(at, LockKind::Write)).unwrap();
            let mut bytes = vec![0; len];
            fs.read(node, 0, &mut bytes).unwrap();
            fs.write(node, at, format!("{at:08}").as_bytes()).unwrap();
        }
        let mut times = Vec::new();
        for (fs, node, at) in mounts {
            fs.set_lock(node, &lock(at, LockKind::Unlock)).unwrap();
            times.push(a.getattr(node).unwrap().mtime);
        }
        // A flush must set a newer time of the file, so that kernels drop their cached pages.
        assert!(times[0] < times[1]);
        let bytes = read(&b, ino);
        assert_eq!((&bytes[..17], bytes.len()), (&b"0000000000000008-"[..], len));
    }
}

/// A mount that has reported new attributes must also read the new contents. Otherwise its kernel
/// would keep old pages under the new time.
#[test]
fn contents_are_not_older_than_attributes() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"old").ino;
    let node = opened(&a, ino);
    let mut text = [0; 3];
    assert_eq!((a.read(node, 0, &mut text), &text), (Ok(3), b"old"));
    overwrite(&b, ino, 0, b"new").unwrap();
    a.getattr(node).unwrap();
    assert_eq!((a.read(node, 0, &mut text), &text), (Ok(3), b"new"));
}

/// A mount loses its session while it has a lock and unflushed bytes, and another mount gets the
/// lock. The bytes must not be written, and the program must get an error (guarantee K.8 in
/// `lib.rs`).
#[test]
fn change_under_a_lost_lock_is_not_made() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"old").ino;
    let other = write_new(&a, ROOT, "other", b"old").ino;
    let (here, there) = (opened(&a, ino), opened(&b, ino));
    let lock = FileLock::new(1, LockKind::Write);
    let unlock = FileLock::new(1, LockKind::Unlock);
    a.set_lock(here, &lock).unwrap();
    a.write(here, 0, b"aaa").unwrap();
    assert_eq!(b.set_lock(there, &lock), Err(Errno::AGAIN));
    // End the session of the first mount, which is the only session with a lock.
    site.sql(
        "UPDATE corewalk.session SET until = now() - interval '1 second' WHERE id IN \
         (SELECT session FROM corewalk.flock)",
    );
    b.set_lock(there, &lock).unwrap();
    b.write(there, 0, b"bbb").unwrap();
    b.set_lock(there, &unlock).unwrap();
    assert_eq!(a.fsync(here, true), Err(Errno::IO));
    assert_eq!(a.write(here, 0, b"ccc"), Err(Errno::IO));
    assert_eq!(a.read(here, 0, &mut [0; 3]), Err(Errno::IO));
    assert_eq!(a.set_lock(here, &FileLock { owner: 2, ..lock }), Err(Errno::IO));
    // Other files can still be changed.
    overwrite(&a, other, 0, b"new").unwrap();
    a.maintain();
    // The next unlock and the next close must report a lost lock. After both, the file must be
    // usable again.
    assert_eq!(a.set_lock(here, &unlock), Err(Errno::IO));
    assert_eq!(a.flush(here), Err(Errno::IO));
    a.set_lock(here, &lock).unwrap();
    let mut text = [0; 3];
    assert_eq!((a.read(here, 0, &mut text), &text), (Ok(3), b"bbb"));
    a.write(here, 0, b"ddd").unwrap();
    a.unlock_owner(here, 1, false).unwrap();
    assert_eq!((read(&b, ino), read(&b, other)), (b"ddd".to_vec(), b"new".to_vec()));
    site.assert_clean();
}

/// If an unlock finds that the session is dead, it must fail, and unflushed bytes must not be
/// written.
#[test]
fn unlock_after_the_death_of_the_session_writes_nothing() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"old").ino;
    let (here, there) = (opened(&a, ino), opened(&b, ino));
    a.set_lock(here, &whole(1, LockKind::Write)).unwrap();
    a.write(here, 0, b"aaa").unwrap();
    site.sql(
        "UPDATE corewalk.session SET until = now() - interval '1 second' WHERE id IN \
         (SELECT session FROM corewalk.flock)",
    );
    b.set_lock(there, &whole(1, LockKind::Write)).unwrap();
    assert_eq!(a.set_lock(here, &whole(1, LockKind::Unlock)), Err(Errno::IO));
    assert_eq!(a.flush(here), Err(Errno::IO));
    assert_eq!(read(&a, ino), b"old");
}

/// Ends the sessions that have locks.
fn lose_locks(site: &Site) {
    site.sql(
        "UPDATE session SET until = now() - interval '1 second' WHERE id IN \
         (SELECT session FROM flock)",
    );
}

/// A reader loses its lock while a program writes the same file without a lock. The writer must not
/// lose bytes because of that.
#[test]
fn lost_lock_of_a_reader_does_not_disturb_a_writer() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"old").ino;
    let writer = opened(&a, ino);
    let reader = file(ino).with_handle(a.open(file(ino), 0).unwrap().handle);
    a.set_lock(reader, &whole(1, LockKind::Write)).unwrap();
    a.write(writer, 0, b"aaa").unwrap();
    lose_locks(&site);
    assert_eq!(a.fsync(writer, true), Ok(()));
    assert_eq!(read(&b, ino), b"aaa");
    assert_eq!(a.write(writer, 0, b"bbb"), Ok(3));
    // The reader itself must get errors until it has dropped its lost lock.
    assert_eq!(a.read(reader, 0, &mut [0; 3]), Err(Errno::IO));
    assert_eq!(a.set_lock(reader, &whole(1, LockKind::Unlock)), Err(Errno::IO));
    assert_eq!(a.read(reader, 0, &mut [0; 3]), Ok(3));
    assert_eq!(a.fsync(writer, true), Ok(()));
    assert_eq!(read(&b, ino), b"bbb");
}

/// After the loss of locks, files that were open before give `EIO`, but newly opened ones work.
#[test]
fn file_with_lost_locks_can_be_opened_again() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"old").ino;
    let (owner, other, there) = (opened(&a, ino), opened(&a, ino), opened(&b, ino));
    let lock = |owner| FileLock::new(owner, LockKind::Write);
    let unlock = |owner| FileLock::new(owner, LockKind::Unlock);
    a.set_lock(owner, &lock(1)).unwrap();
    a.write(owner, 0, b"aaa").unwrap();
    lose_locks(&site);
    b.set_lock(there, &lock(1)).unwrap();
    b.write(there, 0, b"bbb").unwrap();
    b.set_lock(there, &unlock(1)).unwrap();
    assert_eq!(a.fsync(owner, true), Err(Errno::IO));
    let new = opened(&a, ino);
    let mut text = [0; 3];
    assert_eq!((a.read(new, 0, &mut text), &text), (Ok(3), b"bbb"));
    a.write(new, 0, b"ccc").unwrap();
    assert_eq!((a.fsync(new, true), read(&b, ino)), (Ok(()), b"ccc".to_vec()));
    for old in [owner, other] {
        assert_eq!(a.read(old, 0, &mut text), Err(Errno::IO));
        assert_eq!(a.write(old, 0, b"ddd"), Err(Errno::IO));
        let set = SetAttr::default().with_size(1);
        assert_eq!(a.setattr(old, &set).map(drop), Err(Errno::IO));
        assert_eq!(a.fallocate(old, 0, 9, Fallocate::empty()), Err(Errno::IO));
        assert_eq!(a.set_lock(old, &lock(2)), Err(Errno::IO));
    }
    // An owner that has lost locks gets no new lock until it has dropped them. Other owners get
    // one.
    assert_eq!(a.set_lock(new, &lock(1)), Err(Errno::IO));
    a.set_lock(new, &lock(3)).unwrap();
    a.write(new, 0, b"eee").unwrap();
    // The loss is reported to files that were open before it.
    assert_eq!(a.set_lock(owner, &unlock(1)), Err(Errno::IO));
    assert_eq!((a.fsync(new, true), a.flush(owner)), (Ok(()), Err(Errno::IO)));
    a.set_lock(new, &unlock(3)).unwrap();
    assert_eq!(read(&b, ino), b"eee");
    a.set_lock(owner, &lock(1)).unwrap();
    assert_eq!(a.write(other, 0, b"fff"), Ok(3));
    a.unlock_owner(owner, 1, false).unwrap();
    assert_eq!(read(&b, ino), b"fff");
}

/// The object store fails, so bytes cannot be flushed. An owner whose lock protects such bytes must
/// keep the lock, and others must be able to unlock.
#[test]
fn unlock_whose_flush_fails_gives_up_no_bytes() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", &pattern(1, 100_000)).ino;
    let (writer, there) = (opened(&a, ino), opened(&b, ino));
    let reader = file(ino).with_handle(a.open(file(ino), 0).unwrap().handle);
    let lock = FileLock::new(1, LockKind::Write);
    a.set_lock(reader, &whole(1, LockKind::Write)).unwrap();
    a.set_lock(writer, &lock).unwrap();
    a.write(writer, 0, &pattern(2, 100_000)).unwrap();
    let folder = break_store(&site);
    assert_eq!(a.unlock_owner(reader, 1, true), Ok(()));
    assert_eq!(b.set_lock(there, &whole(1, LockKind::Write)), Ok(()));
    assert_eq!(a.unlock_owner(writer, 1, false), Err(Errno::IO));
    assert_eq!(b.set_lock(there, &lock), Err(Errno::AGAIN));
    mend_store(folder);
    a.maintain();
    b.set_lock(there, &lock).unwrap();
    assert!(read(&b, ino) == pattern(2, 100_000));
}

/// Adds a function that fails each deletion of a lock, while its trigger is enabled.
fn refuse_unlocks(site: &Site) {
    site.sql(
        "CREATE FUNCTION refuse() RETURNS trigger LANGUAGE plpgsql AS \
         $$ BEGIN RAISE EXCEPTION 'refused'; END $$; \
         CREATE TRIGGER refuse BEFORE DELETE ON flock EXECUTE FUNCTION refuse(); \
         ALTER TABLE flock DISABLE TRIGGER refuse",
    );
}

/// Tries to drop the locks of an owner while the database refuses that.
fn fails_to_unlock(site: &Site, fs: &ClusterFs, node: Node<'_>, owner: u64) {
    site.sql("ALTER TABLE flock ENABLE TRIGGER refuse");
    assert_eq!(fs.unlock_owner(node, owner, false), Err(Errno::IO));
    site.sql("ALTER TABLE flock DISABLE TRIGGER refuse");
}

#[test]
fn unlock_that_failed_is_sent_again() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"text").ino;
    let (here, there) = (opened(&a, ino), opened(&b, ino));
    let lock = |owner| FileLock::new(owner, LockKind::Write);
    refuse_unlocks(&site);
    let fails_to_unlock = |owner| fails_to_unlock(&site, &a, here, owner);
    a.set_lock(here, &lock(1)).unwrap();
    fails_to_unlock(1);
    assert_eq!(b.set_lock(there, &lock(1)), Err(Errno::AGAIN));
    a.maintain();
    b.set_lock(there, &lock(1)).unwrap();
    b.unlock_owner(there, 1, false).unwrap();
    // The next lock call on the file repeats the failed unlock.
    a.set_lock(here, &lock(1)).unwrap();
    fails_to_unlock(1);
    a.set_lock(here, &lock(2)).unwrap();
    // A failed unlock is repeated later. It must not drop the lock of a new owner with the same
    // number.
    fails_to_unlock(2);
    a.set_lock(here, &lock(2)).unwrap();
    a.maintain();
    assert_eq!(b.set_lock(there, &lock(1)), Err(Errno::AGAIN));
}

/// A late copy of an answered lock request must take no lock, and drop none.
#[test]
fn late_copy_of_a_request_changes_no_lock() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = create(&a, ROOT, "f").ino;
    let ids = site.sql("SELECT string_agg(id::text, ' ' ORDER BY id) FROM corewalk.session");
    let (one, two) = ids.split_once(' ').unwrap();
    let call = |session: &str, seq: u32, kind: u32| {
        site.sql(&format!(
            "SET search_path = corewalk; SELECT code FROM \
             cw_lock({session}, 100, {seq}, {ino}, 1, false, {kind}, 0, 9, 0)"
        ))
    };
    let count = || site.sql("SELECT count(*) FROM corewalk.flock");
    assert_eq!((call(one, 1, 2), call(one, 1, 2), count()), ("0".into(), "0".into(), "1".into()));
    assert_eq!((call(two, 1, 2), call(one, 2, 0), count()), ("11".into(), "0".into(), "0".into()));
    // The lock is free now, but both requests were answered before.
    assert_eq!((call(two, 1, 2), call(one, 1, 2), count()), ("11".into(), "5".into(), "0".into()));
    drop((a, b));
}

/// Checks that the database waits for its disk after a refused lock call only if the call has
/// dropped a lock. flock(2) drops the old lock before it waits for the new one.
#[test]
fn refused_lock_commits_synchronously_only_if_it_drops_a_lock() {
    let Some(site) = Site::new() else { return };
    let ids: Vec<String> = (7..9)
        .map(|id| {
            let fs = "(SELECT id::text FROM format)";
            site.sql(&format!("SELECT ino FROM cw_open_session({id}, {fs}, 'h', 1, 60, 9)"));
            id.to_string()
        })
        .collect();
    let call = |id: &String, seq: u32, kind: u32| {
        site.sql(&format!(
            "SET synchronous_commit = on;
            SELECT code FROM cw_lock({id}, 0, {seq}, 1, 1, true, {kind}, 0, 9, 0);
            SHOW synchronous_commit"
        ))
    };
    for id in &ids {
        assert_eq!(call(id, 1, 1), "0\non");
    }
    assert_eq!(call(&ids[0], 2, 2), "11\non");
    assert_eq!(call(&ids[0], 3, 2), "11\noff");
}

/// Replaces `cw_lock` by a function that runs `before`, then the real one, and then `after`. To be
/// called before a mount uses `cw_lock`.
fn wrap_lock(site: &Site, before: &str, after: &str) {
    site.sql(&format!(
        "ALTER FUNCTION cw_lock RENAME TO lock;
        CREATE TABLE go ();
        CREATE SEQUENCE turns;
        CREATE FUNCTION until_told() RETURNS void LANGUAGE plpgsql AS $$ BEGIN
            FOR i IN 1..6000 LOOP EXIT WHEN EXISTS (SELECT FROM go); PERFORM pg_sleep(0.01);
            END LOOP; END $$;
        CREATE FUNCTION cw_lock(
            p_session bigint, p_slot int, p_seq bigint, p_ino bigint, p_owner bigint,
            p_is_flock bool, p_kind int, p_first bigint, p_last bigint, p_pid bigint
        ) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$ DECLARE v cw_row; BEGIN
            {before}
            SELECT * INTO v FROM lock(p_session, p_slot, p_seq, p_ino, p_owner, p_is_flock, p_kind,
                p_first, p_last, p_pid);
            {after}
            RETURN NEXT v;
        END $$"
    ));
}

/// The unlock that the mount sends again is slow. Meanwhile the owner closes the file, opens it and
/// takes the lock again. Checks that the slow unlock does not drop the new lock.
#[test]
fn unlock_that_is_sent_again_drops_no_newer_lock() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"text").ino;
    let (here, there) = (opened(&a, ino), opened(&b, ino));
    let lock = FileLock::new(1, LockKind::Write);
    let second_unlock = "IF p_kind = 0 AND nextval('turns') = 2 THEN PERFORM until_told(); END IF;";
    wrap_lock(&site, second_unlock, "");
    refuse_unlocks(&site);
    a.set_lock(here, &lock).unwrap();
    fails_to_unlock(&site, &a, here, 1);
    thread::scope(|scope| {
        let repeated = scope.spawn(|| a.maintain());
        site.wait_for("SELECT last_value = 2 FROM turns");
        let locked = scope.spawn(|| {
            a.unlock_owner(here, 1, false).unwrap();
            a.set_lock(here, &lock).unwrap();
        });
        let start = Instant::now();
        while !locked.is_finished() && start.elapsed() < Duration::from_millis(500) {
            thread::sleep(Duration::from_millis(1));
        }
        site.sql("INSERT INTO go DEFAULT VALUES");
        repeated.join().unwrap();
        locked.join().unwrap();
    });
    assert_eq!(b.set_lock(there, &lock), Err(Errno::AGAIN));
    a.unlock_owner(here, 1, false).unwrap();
    b.set_lock(there, &lock).unwrap();
}

/// A lock call finds its session dead, gets the lock under a new session, and its answer is lost.
/// Checks that the unlock at close reaches the database.
#[test]
fn lock_whose_answer_is_lost_with_its_session_is_dropped() {
    let Some(site) = Site::new() else { return };
    let soft = options().with_unreachable(Unreachable::FailAfter(Duration::from_secs(1)));
    let a = ClusterFs::open(&site.parsed(), &soft).unwrap();
    let ino = write_new(&a, ROOT, "f", b"text").ino;
    let here = opened(&a, ino);
    wrap_lock(&site, "", "IF p_kind = 2 AND v.code = 0 THEN PERFORM until_told(); END IF;");
    site.sql("UPDATE session SET dead = true");
    assert_eq!(a.set_lock(here, &FileLock::new(1, LockKind::Write)), Err(Errno::IO));
    site.sql("INSERT INTO go DEFAULT VALUES");
    site.wait_for("SELECT count(*) = 1 FROM flock");
    // The mount cannot know that the new session has got the lock, so it reports a loss.
    assert_eq!(a.unlock_owner(here, 1, false), Err(Errno::IO));
    assert_eq!(site.sql("SELECT count(*) FROM flock"), "0");
}

/// Two threads have one owner of locks. One drops the lock of a byte while the other one takes the
/// lock of another byte. Checks that the unlock, which fails, is sent again.
#[test]
fn unlock_that_failed_beside_a_lock_of_other_bytes_is_sent_again() {
    let Some(site) = Site::new() else { return };
    let (a, b) = (site.open(), site.open());
    let ino = write_new(&a, ROOT, "f", b"text").ino;
    let (here, there) = (opened(&a, ino), opened(&b, ino));
    let lock = |kind, at| FileLock::new(1, kind).with_range(at, at);
    let first_unlock = "IF p_kind = 0 AND nextval('turns') = 1 THEN
        PERFORM until_told(); RAISE EXCEPTION 'refused'; END IF;";
    wrap_lock(&site, first_unlock, "");
    a.set_lock(here, &lock(LockKind::Write, 0)).unwrap();
    thread::scope(|scope| {
        let unlocked = scope.spawn(|| a.set_lock(here, &lock(LockKind::Unlock, 0)));
        site.wait_for("SELECT last_value = 1 AND is_called FROM turns");
        let locked = scope.spawn(|| a.set_lock(here, &lock(LockKind::Write, 9)));
        let start = Instant::now();
        while !locked.is_finished() && start.elapsed() < Duration::from_millis(500) {
            thread::sleep(Duration::from_millis(1));
        }
        site.sql("INSERT INTO go DEFAULT VALUES");
        assert_eq!(unlocked.join().unwrap(), Err(Errno::IO));
        locked.join().unwrap().unwrap();
    });
    a.maintain();
    b.set_lock(there, &lock(LockKind::Write, 0)).unwrap();
    assert_eq!(b.set_lock(there, &lock(LockKind::Write, 9)), Err(Errno::AGAIN));
}

/// Checks that many failed unlocks hold up the maintenance of a soft mount for one time limit, and
/// not for one each.
#[test]
fn failed_unlocks_wait_together_for_a_database_that_is_away() {
    const LIMIT: Duration = Duration::from_secs(1);
    let Some(site) = Site::new() else { return };
    let proxy = Proxy::new(&site.url);
    let soft = options().with_unreachable(Unreachable::FailAfter(LIMIT));
    let a = ClusterFs::open(&Url::parse(proxy.url()).unwrap(), &soft).unwrap();
    refuse_unlocks(&site);
    for number in 0..4 {
        let here = opened(&a, create(&a, ROOT, &format!("f{number}")).ino);
        a.set_lock(here, &FileLock::new(1, LockKind::Write)).unwrap();
        fails_to_unlock(&site, &a, here, 1);
    }
    proxy.pause(true);
    let start = Instant::now();
    a.maintain();
    assert!(start.elapsed() < LIMIT * 5 / 2, "{:?}", start.elapsed());
    proxy.pause(false);
    a.maintain();
    assert_eq!(site.sql("SELECT count(*) FROM flock"), "0");
}
