//! Tests of a database that is older than the last commit, because a page is damaged or the file
//! was replaced.
//!
//! An older database lacks the changes of later commits. Neither a mount nor a reopening may
//! overlook that, since the newer log does not fit the older database.

use corewalk::{Errno, FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_store::{Finding, OpenError, Store, fsck_devices};

use crate::differential::{Tree, tree};
use crate::log_fails::add;
use crate::memory::{Disks, Step, quiet};

const META: usize = 0;
const DATA: usize = 1;
const LOG: usize = 3;
const PAGE: usize = 4096;

/// Adds a file with so many attributes that its records do not fit into the log. So the commit goes
/// to the database.
fn add_to_database(store: &Store, name: &str) {
    let before = store.stats();
    let (root, this) =
        (Node::detached(1, FileKind::Directory), Name::new(name.as_bytes()).unwrap());
    let made = store.make(root, this, &Make::new(0o644, 0, 0)).unwrap();
    let file = Node::detached(made.ino, FileKind::Regular);
    for attribute in ["user.a", "user.b", "user.c", "user.d", "user.e"] {
        let value = name.as_bytes().repeat(60_000 / name.len());
        store.setxattr(file, attribute.as_bytes(), &value, XattrMode::Set).unwrap();
    }
    store.fsync(file, false).unwrap();
    let after = store.stats();
    assert_eq!((after.commits, after.logged_commits), (before.commits + 1, before.logged_commits));
}

/// A killed store: the content of its devices, and its tree. `older` is the content of the database
/// before the last commit to it.
struct Killed {
    contents: [Vec<u8>; 4],
    tree: Tree,
    older: Vec<u8>,
}

/// Makes a killed store. If `is_log_used` is true, its log had entries before the last commit to
/// the database.
fn killed(is_log_used: bool) -> Killed {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    add(&store, "first").unwrap();
    for number in 0..3 {
        add_to_database(&store, &format!("{number:0200}"));
    }
    if is_log_used {
        add(&store, "logged").unwrap();
    }
    let older = disks.contents()[META].clone();
    add_to_database(&store, "newer");
    for name in ["one", "two"] {
        add(&store, name).unwrap();
    }
    assert_eq!(store.stats().logged_commits, 3 + u64::from(is_log_used));
    Killed { contents: disks.contents(), tree: tree(&store), older }
}

#[test]
fn older_database_beside_a_newer_log_is_refused() {
    for is_log_used in [false, true] {
        let Killed { mut contents, older, .. } = killed(is_log_used);
        contents[META] = older;
        let disks = Disks::with(contents.clone());
        let (database, log) = match Store::open_devices(disks.devices(), &quiet()).map(drop) {
            Err(error @ OpenError::DatabaseBehind { database, log, at: 0 }) => {
                let text = error.to_string();
                assert!(
                    text.contains("older than its log") && !text.contains("truncate"),
                    "{text}"
                );
                (database, log)
            }
            other => panic!("{is_log_used}: {other:?}"),
        };
        assert_eq!(log, database + 1);
        let report = fsck_devices(&disks.devices()).unwrap();
        assert_eq!(report.findings, [Finding::DatabaseBehind(database, log)]);
        assert!(report.findings[0].to_string().contains("lost"));
        let after = disks.contents();
        assert!(after[LOG] == contents[LOG] && after[DATA] == contents[DATA], "changed");
    }
}

/// A later entry of the log still shows that the database is older, even if the first entries are
/// damaged.
#[test]
fn older_database_is_refused_though_the_first_entries_are_damaged() {
    let Killed { mut contents, older, .. } = killed(false);
    contents[META] = older;
    contents[LOG][..PAGE].fill(0);
    let opened = Store::open_devices(Disks::with(contents).devices(), &quiet()).map(drop);
    assert!(
        matches!(opened, Err(OpenError::DatabaseBehind { at, .. }) if at == 2 * PAGE as u64),
        "{opened:?}"
    );
}

/// Each commit to the database writes an end mark to the log. It is not synced but survives a kill
/// of the process, and shows that the database is older than the log.
#[test]
fn older_database_of_a_killed_store_that_has_logged_nothing_since_is_refused() {
    for is_log_used in [false, true] {
        let disks = Disks::new();
        let store = disks.open(&quiet());
        for number in 0..3 {
            add_to_database(&store, &format!("{number:0200}"));
        }
        if is_log_used {
            add(&store, "logged").unwrap();
        }
        let older = disks.contents()[META].clone();
        disks.shared.lock().log = Some(Vec::new());
        add_to_database(&store, "newer");
        let steps = disks.shared.lock().log.take().unwrap();
        let is_sync = |step: &&Step| matches!(step, Step::Sync { device: LOG });
        assert_eq!(steps.iter().filter(is_sync).count(), 0, "the end mark is not synced");
        let expected = tree(&store);
        let mut contents = disks.killed().contents();
        for killed in [disks.killed(), disks.without_power()] {
            assert_eq!(tree(&killed.open(&quiet())), expected, "{is_log_used}");
        }
        contents[META] = older;
        for is_first_lost in [false, true] {
            let mut contents = contents.clone();
            contents[LOG][..PAGE * usize::from(is_first_lost)].fill(0);
            let disks = Disks::with(contents);
            match Store::open_devices(disks.devices(), &quiet()).map(drop) {
                Err(OpenError::DatabaseBehind { database, log, .. }) => {
                    assert_eq!(log, database + 1);
                }
                other => panic!("{is_log_used}, {is_first_lost}: {other:?}"),
            }
            let found = fsck_devices(&disks.devices()).unwrap().findings;
            assert!(matches!(found[..], [Finding::DatabaseBehind(..)]), "{found:?}");
        }
    }
}

/// A mount is killed after the replay, which leaves the log unchanged. If the database is then
/// replaced by the one from before the replay, the log is replayed again.
#[test]
fn database_from_before_the_replay_is_mounted_with_the_log() {
    let Killed { contents, tree: expected, .. } = killed(false);
    let older = contents[META].clone();
    let disks = Disks::with(contents);
    let store = disks.open(&quiet());
    assert_eq!(tree(&store), expected);
    let mut contents = disks.killed().contents();
    assert!(contents[META] != older);
    contents[META] = older;
    assert_eq!(tree(&Disks::with(contents).open(&quiet())), expected);
}

/// Control: a killed store whose database has the last commit is mounted, and its log replayed.
#[test]
fn control_database_that_fits_its_log_is_mounted() {
    for is_log_used in [false, true] {
        let Killed { contents, tree: expected, .. } = killed(is_log_used);
        let disks = Disks::with(contents);
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
        assert!(tree(&disks.open(&quiet())) == expected);
    }
}

/// A mount of a damaged database must show all confirmed changes or be refused.
#[test]
fn damaged_page_of_the_database_loses_nothing_in_silence() {
    for is_log_used in [false, true] {
        let Killed { contents, tree: expected, .. } = killed(is_log_used);
        let (mut behind, mut mounted) = (0, 0);
        let meta = &contents[META];
        let is_used = |at: &usize| meta[at / PAGE * PAGE..][..PAGE].iter().any(|&byte| byte != 0);
        // Damage many bytes of the first page: it is the header that refers to the last commits.
        let others = (1..meta.len() / PAGE).step_by(4).map(|page| page * PAGE + page * 97 % PAGE);
        let places = (0..320).step_by(5).chain(others).filter(is_used);
        for at in places {
            let mut damaged = contents.clone();
            damaged[META][at] ^= 4;
            let disks = Disks::with(damaged);
            match Store::open_devices(disks.devices(), &quiet()) {
                Ok(store) => {
                    assert!(tree(&store) == expected, "byte {at}");
                    mounted += 1;
                }
                Err(OpenError::DatabaseBehind { .. }) => behind += 1,
                // If the damaged byte belongs to both of the last two commits, redb cannot fall
                // back, and the mount must report damage.
                Err(OpenError::Foreign | OpenError::Damaged) => {
                    if let Ok(store) = Store::open_devices(disks.devices(), &quiet()) {
                        assert!(tree(&store) == expected, "byte {at}, tried again");
                    }
                }
                Err(other) => panic!("byte {at}: {other:?}"),
            }
        }
        println!("{behind} refused, {mounted} mounted");
        assert!(behind > 0 && mounted > 0);
    }
}

/// If a database that is reopened after a failed read lacks the last commit, the store must not
/// show its content.
#[test]
fn database_that_goes_back_while_it_is_mounted_is_not_used() {
    let disks = Disks::new();
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    let names: Vec<_> = (0..1_500).map(|number| format!("{number:0100}")).collect();
    for name in &names {
        store.make(root, Name::new(name.as_bytes()).unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    }
    drop(store);
    for goes_back in [true, false] {
        let store = disks.open(&quiet().with_cache_bytes(0));
        let older = disks.contents()[META].clone();
        add_to_database(&store, if goes_back { "newer" } else { "newest" });
        disks.shared.lock().is_read_failing = true;
        let failed = names.iter().filter(|name| {
            let found = store.lookup(root, Name::new(name.as_bytes()).unwrap());
            assert!(found.is_ok() || found == Err(Errno::IO));
            found.is_err()
        });
        assert!(failed.count() > 0);
        disks.shared.lock().is_read_failing = false;
        let newer = disks.contents()[META].clone();
        if goes_back {
            disks.replace(META, older);
        }
        let expected = if goes_back { Err(Errno::IO) } else { Ok(()) };
        // A sync that has failed must fail again.
        assert_eq!([store.sync(), store.sync()], [expected; 2]);
        let changed = add(&store, "more");
        assert_eq!(changed, if goes_back { Err(Errno::ROFS) } else { Ok(()) });
        assert_eq!(store.stats().is_read_only, goes_back);
        drop(store);
        if goes_back {
            disks.replace(META, newer);
        }
        assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, []);
    }
}
