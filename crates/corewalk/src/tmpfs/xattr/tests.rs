//! Tests of sets of extended attributes that several inodes share: against a model, with counts of
//! their users, and in several threads.

use std::collections::{BTreeMap, HashMap};
use std::time::Duration;

use corewalk_base::primitives::atomic::{AtomicU32, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::{ReportSeed, Seed};
use proptest::prelude::*;

use super::super::{Tmpfs, TmpfsOptions};
use super::blocks::{FindResult, USERS_MAX};
use super::set::ATTR_BYTES;
use super::*;
use crate::FileKind;
use crate::acl::{Acl, Entry, Tag};
use crate::fs::{AclKind, FileSystem, Make, Node, XattrMode};
use crate::name::Name;

const NAMES: [&[u8]; 3] = [b"user.a", b"user.b", b"security.label"];

fn root(fs: &Tmpfs) -> Node<'static> {
    Node::detached(fs.root().unwrap().ino, FileKind::Directory)
}

fn file(ino: u64) -> Node<'static> {
    Node::detached(ino, FileKind::Regular)
}

fn make(fs: &Tmpfs, name: &str) -> u64 {
    fs.make(root(fs), Name::new(name.as_bytes()).unwrap(), &Make::new(0o644, 0, 0)).unwrap().ino
}

fn unlink(fs: &Tmpfs, name: &str, ino: u64) {
    fs.remove(root(fs), Name::new(name.as_bytes()).unwrap(), file(ino)).unwrap();
    fs.forget(ino, 0);
}

fn set(fs: &Tmpfs, ino: u64, name: &[u8], value: &[u8]) -> Result<(), Errno> {
    fs.setxattr(file(ino), name, value, XattrMode::Set)
}

fn rest(fs: &Tmpfs, ino: u64) {
    let set = crate::SetAttr { ctime: Some(Timespec { secs: 1, nanos: 0 }), ..Default::default() };
    fs.setattr(file(ino), &set).unwrap();
}

fn tmpfs(size_bytes: Option<u64>) -> Tmpfs {
    Tmpfs::new(TmpfsOptions { size_bytes, ..TmpfsOptions::default() })
}

fn acl(uid: u32) -> Acl {
    let entry = |tag, perm, id| Entry::new(tag, perm, id);
    Acl::new([
        entry(Tag::UserObj, 6, 0),
        entry(Tag::User, 4, uid),
        entry(Tag::GroupObj, 4, 0),
        entry(Tag::Mask, 4, 0),
        entry(Tag::Other, 4, 0),
    ])
    .unwrap()
}

/// Checks the invariants K.1, K.2 and X.2. `inos` are all inodes with attributes. No file may have
/// content, because the budget must be charged for attributes alone.
fn audit(fs: &Tmpfs, inos: impl IntoIterator<Item = u64>) {
    let (mut pointers, mut bytes) = (BTreeMap::<u32, u32>::new(), 0);
    for ino in inos {
        let table = fs.table.enter();
        let inode = table.read(ino).unwrap();
        let Some(block) = &inode.attributes.xattrs else { continue };
        assert!(!block.set().is_empty(), "X.3");
        let number = Blocks::number_of(block);
        let is_first = number.is_none_or(|number| {
            let count = pointers.entry(number).or_default();
            *count += 1;
            *count == 1
        });
        bytes += if is_first { block.set().bytes() } else { 0 };
    }
    let users: BTreeMap<u32, u32> = match fs.xattrs.blocks() {
        Some(blocks) => {
            assert!(blocks.entries() <= blocks.len(), "K.2: an entry leads nowhere");
            assert_eq!(
                blocks.len(),
                blocks.collect_users().len() as u64,
                "a block number is not in use"
            );
            blocks.collect_users().into_iter().collect()
        }
        None => BTreeMap::new(),
    };
    assert_eq!(users, pointers, "K.1: users of blocks, and inodes that point at them");
    assert_eq!(fs.space.used(), bytes, "X.2");
}

#[derive(Clone, Debug)]
enum Step {
    Set(usize, usize, u8, usize),
    Remove(usize, usize),
    Acl(usize, Option<u32>),
    Chmod(usize, u32),
    Copy(usize, usize),
    Unlink(usize),
    Rest(usize),
    Share,
}

fn step() -> impl Strategy<Value = Step> {
    let (inode, name) = (0..6_usize, 0..NAMES.len());
    prop_oneof![
        6 => (inode.clone(), name.clone(), 0..3_u8, prop_oneof![Just(0_usize), Just(5), Just(400)])
            .prop_map(|(i, n, v, len)| Step::Set(i, n, v, len)),
        2 => (inode.clone(), name).prop_map(|(i, n)| Step::Remove(i, n)),
        2 => (inode.clone(), proptest::option::of(1..3_u32)).prop_map(|(i, a)| Step::Acl(i, a)),
        1 => (inode.clone(), prop_oneof![Just(0o644), Just(0o600)])
            .prop_map(|(i, mode)| Step::Chmod(i, mode)),
        2 => (inode.clone(), inode.clone()).prop_map(|(a, b)| Step::Copy(a, b)),
        1 => inode.clone().prop_map(Step::Unlink),
        4 => inode.prop_map(Step::Rest),
        2 => Just(Step::Share),
    ]
}

#[derive(Clone, Debug, Default, PartialEq)]
struct Expected {
    values: BTreeMap<Vec<u8>, Vec<u8>>,
    acl: Option<Acl>,
}

fn seen(fs: &Tmpfs, ino: u64) -> Expected {
    let list = fs.listxattr(file(ino)).unwrap();
    let names = list.split(|&b| b == 0).filter(|name| !name.is_empty());
    let values = names.map(|name| (name.to_vec(), fs.getxattr(file(ino), name).unwrap())).collect();
    Expected { values, acl: fs.get_acl(file(ino), AclKind::Access).unwrap() }
}

fn take_step(fs: &Tmpfs, inos: &mut [u64], model: &mut [Expected], step: Step) {
    match step {
        Step::Set(i, n, byte, len) => {
            set(fs, inos[i], NAMES[n], &vec![byte; len]).unwrap();
            model[i].values.insert(NAMES[n].to_vec(), vec![byte; len]);
        }
        Step::Remove(i, n) => {
            let was_there = model[i].values.remove(NAMES[n]).is_some();
            let expected = if was_there { Ok(()) } else { Err(Errno::NODATA) };
            assert_eq!(fs.removexattr(file(inos[i]), NAMES[n]), expected);
        }
        Step::Acl(i, uid) => {
            model[i].acl = uid.map(acl);
            fs.set_acl(file(inos[i]), AclKind::Access, model[i].acl.as_ref(), None).unwrap();
        }
        Step::Chmod(i, mode) => {
            let set = crate::SetAttr { mode: Some(mode), ..crate::SetAttr::default() };
            fs.setattr(file(inos[i]), &set).unwrap();
            if let Some(acl) = &mut model[i].acl {
                acl.chmod(mode);
            }
        }
        Step::Copy(a, b) => {
            for (name, value) in model[a].values.clone() {
                set(fs, inos[b], &name, &value).unwrap();
                model[b].values.insert(name, value);
            }
        }
        Step::Unlink(i) => {
            unlink(fs, &i.to_string(), inos[i]);
            (inos[i], model[i]) = (make(fs, &i.to_string()), Expected::default());
        }
        Step::Rest(i) => rest(fs, inos[i]),
        Step::Share => {
            fs.share_xattrs();
            let sets: HashMap<String, ()> = model
                .iter()
                .filter(|expected| **expected != Expected::default())
                .map(|expected| (format!("{expected:?}"), ()))
                .collect();
            assert_eq!(
                fs.xattr_stats().shared_sets,
                sets.len() as u64,
                "a set is stored more than once"
            );
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn sets_and_users_are_those_of_the_model(steps in proptest::collection::vec(step(), 1..60)) {
        let fs = tmpfs(None);
        let mut inos: Vec<u64> = (0..6).map(|i| make(&fs, &i.to_string())).collect();
        let mut model = vec![Expected::default(); 6];
        for step in steps {
            take_step(&fs, &mut inos, &mut model, step);
            for (&ino, expected) in inos.iter().zip(&model) {
                assert_eq!(&seen(&fs, ino), expected);
            }
            audit(&fs, inos.iter().copied());
        }
        for (i, &ino) in inos.iter().enumerate() {
            unlink(&fs, &i.to_string(), ino);
        }
        audit(&fs, []);
        assert_eq!((fs.space.used(), fs.xattr_stats().shared_sets), (0, 0));
    }
}

#[test]
#[should_panic(expected = "K.1: users of blocks")]
fn control_leaked_user_is_caught() {
    let fs = tmpfs(None);
    let ino = make(&fs, "file");
    set(&fs, ino, b"user.a", b"value").unwrap();
    audit(&fs, [ino]);
    let mut wanted =
        fs.table.enter().read(ino).unwrap().attributes.xattrs.as_ref().unwrap().set().clone();
    let key = wanted.key(&fs.xattrs.secret);
    let blocks = fs.xattrs.blocks().unwrap();
    assert!(matches!(blocks.find(key, &wanted), FindResult::Block(_)), "the set is not shared");
    audit(&fs, [ino]);
}

#[test]
#[should_panic(expected = "X.2")]
fn control_uncharged_set_is_caught() {
    let fs = tmpfs(None);
    let ino = make(&fs, "file");
    set(&fs, ino, b"user.a", b"value").unwrap();
    fs.space.give_back(1);
    audit(&fs, [ino]);
}

/// Searches must skip a full block (a shared set with 1024 users), and find it again when it loses
/// a user. Trap T39 in `traps.md`.
#[test]
fn block_has_at_most_1024_users() {
    let fs = tmpfs(None);
    let inos: Vec<u64> = (0..2 * USERS_MAX + 10).map(|i| make(&fs, &i.to_string())).collect();
    for &ino in &inos {
        set(&fs, ino, b"security.label", b"one for all").unwrap();
    }
    audit(&fs, inos.iter().copied());
    let users = || fs.xattrs.blocks().unwrap().collect_users();
    let mut counts: Vec<u32> = users().into_iter().map(|(_, users)| users).collect();
    counts.sort_unstable();
    assert_eq!(counts, [10, USERS_MAX, USERS_MAX]);
    // Two blocks are full, and one has 10 users. The test removes these 10 files, and one file of a
    // full block.
    for (i, &ino) in inos.iter().enumerate().skip(2 * USERS_MAX as usize) {
        unlink(&fs, &i.to_string(), ino);
    }
    unlink(&fs, "0", inos[0]);
    let new = make(&fs, "new");
    set(&fs, new, b"security.label", b"one for all").unwrap();
    assert_eq!(users().into_iter().map(|(_, users)| users).collect::<Vec<_>>(), [USERS_MAX; 2]);
    audit(&fs, inos[1..2 * USERS_MAX as usize].iter().copied().chain([new]));
}

/// An inode changes a set that only it uses, so that the set equals another. The search for an
/// equal set must not find the changed set itself. Trap T38 in `traps.md`.
#[test]
fn set_changed_by_its_only_user_is_shared_with_its_equal() {
    let fs = tmpfs(None);
    let [a, b] = ["a", "b"].map(|name| make(&fs, name));
    set(&fs, a, b"user.a", b"one").unwrap();
    set(&fs, b, b"user.a", b"two").unwrap();
    set(&fs, b, b"user.a", b"one").unwrap();
    fs.share_xattrs();
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 1, waiting: 0 });
    // Other inodes can find a changed set that has no equal.
    set(&fs, b, b"user.a", b"three").unwrap();
    fs.share_xattrs();
    set(&fs, a, b"user.a", b"three").unwrap();
    fs.share_xattrs();
    assert_eq!(fs.xattr_stats().shared_sets, 1);
    audit(&fs, [a, b]);
}

#[test]
fn queued_inode_is_shared_by_maintain() {
    let fs = tmpfs(None);
    let inos: Vec<u64> = (0..20).map(|i| make(&fs, &i.to_string())).collect();
    for &ino in &inos {
        set(&fs, ino, b"user.a", b"one").unwrap();
        set(&fs, ino, b"user.b", b"two").unwrap();
    }
    assert_eq!(fs.xattr_stats().waiting, 20);
    fs.maintain();
    let mut counts = Vec::new();
    fs.counters(&mut |name, count| counts.push((name, count)));
    assert!(counts.contains(&("tmpfs_shared_sets", 1)) && counts.contains(&("tmpfs_inodes", 21)));
    assert!(counts.contains(&("tmpfs_waiting", 0)), "{counts:?}");
    // All 20 searches for `user.a` missed. At each search, the earlier inodes had made their sets
    // private again by setting `user.b`. Then `maintain` searched for the 20 sets of two
    // attributes: one miss, 19 hits.
    let index = [("hits", 19), ("misses", 20 + 1), ("entries", 1), ("reclaimed", 0)];
    for (name, expected) in index {
        let found = counts.iter().find(|(found, _)| found.ends_with(&format!("xattr_{name}")));
        assert_eq!(found.map(|found| found.1), Some(expected), "{name}: {counts:?}");
    }
    audit(&fs, inos);
}

/// If the queue of inodes that wait for de-duplication is full, further sets must be shared
/// immediately. Otherwise private sets could use unbounded memory.
#[test]
fn inodes_beyond_the_limit_share_at_once() {
    let fs = tmpfs(None);
    let (most, more) = (QUEUED_MAX, 20);
    let inos: Vec<u64> = (0..most + more).map(|i| make(&fs, &i.to_string())).collect();
    for value in [b"one", b"two", b"six"] {
        inos.iter().for_each(|&ino| set(&fs, ino, b"user.a", value).unwrap());
    }
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 1, waiting: most });
    let users = fs.xattrs.blocks().unwrap().collect_users();
    assert_eq!(users.iter().map(|(_, users)| u64::from(*users)).sum::<u64>(), more);
    audit(&fs, inos.iter().copied());
    assert_eq!(fs.share_xattrs(), most);
    let shared_sets = inos.len().div_ceil(USERS_MAX as usize) as u64;
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets, waiting: 0 });
    audit(&fs, inos);
}

/// If there is no space for a changed set beside the old one, the set must be changed in place.
/// Then it must be shared like any other.
#[test]
fn set_changed_in_place_for_lack_of_space_is_found_by_others() {
    let fs = tmpfs(Some(8192));
    let [a, b] = ["a", "b"].map(|name| make(&fs, name));
    set(&fs, a, b"user.a", &[1; 5000]).unwrap();
    rest(&fs, a);
    set(&fs, a, b"user.a", &[2; 5000]).unwrap();
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 1, waiting: 0 });
    // There is no space for a second set, so `b` must find and share the set of `a`.
    set(&fs, b, b"user.a", &[2; 5000]).unwrap();
    // A change that fails leaves the set shared.
    fs.removexattr(file(b), b"user.a").unwrap();
    rest(&fs, a);
    assert_eq!(set(&fs, a, b"user.b", &[3; 5000]), Err(Errno::NOSPC));
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 1, waiting: 0 });
    audit(&fs, [a, b]);
}

#[test]
fn inode_without_recent_changes_is_shared_at_once() {
    let fs = tmpfs(Some(8192));
    let [a, b] = ["a", "b"].map(|name| make(&fs, name));
    for ino in [a, b] {
        set(&fs, ino, b"user.a", &[1; 5000]).unwrap();
        rest(&fs, ino);
    }
    // The inodes `a` and `b` share a set of attributes. A change of `a` needs a copy, for which
    // there is no space. When `b` has dropped the set, `a` may change it in place.
    assert_eq!(set(&fs, a, b"user.a", &[2; 5000]), Err(Errno::NOSPC));
    fs.removexattr(file(b), b"user.a").unwrap();
    set(&fs, a, b"user.a", &[2; 5000]).unwrap();
    fs.share_xattrs();
    for (nth, &ino) in [a, b].iter().enumerate() {
        rest(&fs, ino);
        set(&fs, ino, b"user.a", &[3; 10]).unwrap();
        assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 1, waiting: 0 }, "{nth}");
    }
    rest(&fs, b);
    set(&fs, b, b"user.a", &[4; 10]).unwrap();
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 2, waiting: 0 });
    audit(&fs, [a, b]);
}

#[test]
fn change_without_space_changes_nothing() {
    let fs = tmpfs(Some(8192));
    let [a, b, c] = ["a", "b", "c"].map(|name| make(&fs, name));
    let value = [1; 3900];
    for ino in [a, b] {
        set(&fs, ino, b"user.a", &value).unwrap();
        set(&fs, ino, b"user.b", b"1").unwrap();
    }
    fs.share_xattrs();
    assert_eq!(fs.space.used(), 3900 + 6 + 7 + 2 * ATTR_BYTES);
    set(&fs, c, b"user.c", &[2; 4000]).unwrap();
    let before = seen(&fs, a);
    assert_eq!(set(&fs, a, b"user.b", b"2"), Err(Errno::NOSPC));
    assert_eq!(fs.removexattr(file(a), b"user.b"), Err(Errno::NOSPC));
    assert_eq!(seen(&fs, a), before);
    audit(&fs, [a, b, c]);
    // Only `c` uses its set of attributes, which is therefore changed in place. That needs no space
    // if the set does not grow.
    set(&fs, c, b"user.c", &[3; 4000]).unwrap();
    assert_eq!(set(&fs, c, b"user.d", &[3; 100]), Err(Errno::NOSPC));
    let d = make(&fs, "d");
    set(&fs, c, b"user.c", &[]).unwrap();
    set(&fs, d, b"user.a", &[4; 4000]).unwrap();
    assert_eq!(set(&fs, d, b"user.b", &[4; 4000]), Err(Errno::NOSPC));
    audit(&fs, [a, b, c, d]);
}

/// A call that fails for lack of space de-duplicates the queued sets and tries again. That does not
/// help an inode with too many names, so then the sets must stay queued.
#[test]
fn full_list_of_names_shares_no_queued_sets() {
    let fs = tmpfs(Some(1 << 20));
    let [a, b, c] = ["a", "b", "c"].map(|name| make(&fs, name));
    let name = |nth: usize| format!("user.{nth:0200}").into_bytes();
    let full = (0..).find_map(|nth| set(&fs, c, &name(nth), b"").err());
    assert_eq!(full, Some(Errno::NOSPC));
    fs.share_xattrs();
    for ino in [a, b] {
        set(&fs, ino, b"user.a", &[1; 50]).unwrap();
        set(&fs, ino, b"user.a", &[2; 50]).unwrap();
    }
    let waiting = fs.xattr_stats().waiting;
    assert!(waiting >= 1, "no inode is queued");
    assert_eq!(set(&fs, c, &name(usize::MAX), b""), Err(Errno::NOSPC));
    assert_eq!(fs.xattr_stats().waiting, waiting, "a full list de-duplicated sets");
    // For comparison: a call that needs more space must de-duplicate the queued sets.
    assert_eq!(set(&fs, c, &name(0), &[1; 65536]), Ok(()));
    let refused = (0..30_u8)
        .find_map(|nth| set(&fs, make(&fs, &format!("f{nth}")), b"user.x", &[nth; 60_000]).err());
    assert_eq!(refused, Some(Errno::NOSPC));
    assert_eq!(fs.xattr_stats().waiting, 0, "control");
}

#[test]
fn deduplication_of_queued_sets_frees_space() {
    let fs = tmpfs(Some(12288));
    let inos = ["a", "b"].map(|name| make(&fs, name));
    for (nth, &ino) in inos.iter().enumerate() {
        set(&fs, ino, b"user.a", &[nth as u8; 5000]).unwrap();
        set(&fs, ino, b"user.a", &[9; 5000]).unwrap();
    }
    assert_eq!(fs.space.used(), 2 * (5006 + ATTR_BYTES), "the sets are not private");
    let c = make(&fs, "c");
    set(&fs, c, b"user.c", &[1; 5000]).unwrap();
    assert_eq!(fs.space.used(), 2 * (5006 + ATTR_BYTES));
    audit(&fs, inos.into_iter().chain([c]));
}

#[test]
fn nothing_is_shared_when_it_is_off() {
    let options = TmpfsOptions { share_xattrs: false, ..TmpfsOptions::default() };
    let fs = Tmpfs::new(options);
    let inos = ["a", "b"].map(|name| make(&fs, name));
    for &ino in &inos {
        set(&fs, ino, b"user.a", b"one").unwrap();
        set(&fs, ino, b"user.a", b"two").unwrap();
    }
    assert_eq!((fs.share_xattrs(), fs.xattr_stats()), (0, XattrStats::default()));
    audit(&fs, inos);
}

/// Sets of attributes that an attacker has made with equal hashes must be compared with only a few
/// others, and then not be shared. Trap T54 in `traps.md`.
#[test]
fn contents_of_one_key_make_no_long_chain() {
    let fs = tmpfs(None);
    // The hash reads only some words in the middle of a long value. The values here differ in other
    // words, so their sets have equal hashes.
    let inos: Vec<u64> = (0..50).map(|i| make(&fs, &i.to_string())).collect();
    for (nth, &ino) in inos.iter().enumerate() {
        let mut value = vec![0; 4000];
        value[1001] = nth as u8;
        set(&fs, ino, b"user.a", &value).unwrap();
    }
    let shared = fs.xattr_stats().shared_sets;
    assert!((1..=5).contains(&shared), "{shared} of 50 sets with one key are shared");
    audit(&fs, inos);
}

/// A thread may find a block (a shared set of attributes) to share it, while the last user releases
/// the block. The block must then not be freed. Trap T34 in `traps.md`.
#[test]
fn blocks_found_while_they_are_released_are_never_lost() {
    const ROUNDS: u32 = 6_000;
    let _watchdog = Watchdog::start("sharing and release", Duration::from_secs(120));
    let report = ReportSeed::new(Seed::choose());
    let fs = tmpfs(None);
    let inos: Vec<Vec<u64>> =
        (0..3).map(|t| (0..3).map(|i| make(&fs, &format!("{t}-{i}"))).collect()).collect();
    let turn = corewalk_base::Mutex::new(0_usize);
    race::run(3, report.seed(), |mut racer| {
        let mine = {
            let mut turn = turn.lock();
            *turn += 1;
            &inos[*turn - 1]
        };
        for _ in 0..ROUNDS {
            let ino = mine[racer.rng.index(mine.len())];
            let value = [racer.rng.below(3) as u8; 40];
            match racer.rng.below(4) {
                0 => _ = fs.removexattr(file(ino), b"user.a"),
                1 => _ = fs.share_xattrs(),
                _ => {
                    set(&fs, ino, b"user.a", &value).unwrap();
                    assert_eq!(fs.getxattr(file(ino), b"user.a").unwrap(), value);
                }
            }
        }
    });
    fs.share_xattrs();
    audit(&fs, inos.iter().flatten().copied());
    // Allow a few duplicates: threads that store equal sets at the same time may miss each other's
    // set.
    assert!(fs.xattr_stats().shared_sets <= 9);
    for ino in inos.iter().flatten() {
        let _ = fs.removexattr(file(*ino), b"user.a");
    }
    audit(&fs, []);
}

/// The last two users of a block (a shared set of attributes) may release it at the same time. The
/// last one takes the content out, which needs the only pointer to it. So the other must drop its
/// pointer before it unlocks the slot.
#[test]
fn last_two_users_release_a_block_at_the_same_time() {
    const ROUNDS: u32 = 200_000;
    // Minimum number of rounds. On a busy machine the two threads seldom run at the same time, and
    // rounds are slow.
    const ROUNDS_MIN: u32 = 2_000;
    const ENOUGH: Duration = Duration::from_secs(10);
    let _watchdog = Watchdog::start("two threads release a block", Duration::from_secs(600));
    let (start, is_over) = (std::time::Instant::now(), AtomicU32::new(0));
    let fs = tmpfs(Some(1 << 20));
    let (a, b) = (make(&fs, "a"), make(&fs, "b"));
    let used = fs.space.used();
    let arrived = AtomicU32::new(0);
    // Spin, so that both threads start at the same time.
    let meet = |round: u32| {
        // ORDERING: AcqRel and Acquire. The counter is a barrier.
        arrived.fetch_add(1, Ordering::AcqRel);
        while arrived.load(Ordering::Acquire) < 2 * round {
            thread::yield_now();
        }
    };
    race::run(2, Seed::choose(), |racer| {
        let ino = if racer.thread == 0 { a } else { b };
        for round in 0..ROUNDS {
            set(&fs, ino, b"user.a", b"label").unwrap();
            if racer.thread == 0 && round >= ROUNDS_MIN && start.elapsed() > ENOUGH {
                // ORDERING: Relaxed, here and below. The calls of `meet` order the loads.
                is_over.store(1, Ordering::Relaxed);
            }
            meet(2 * round + 1);
            // The removal of the only attribute releases the block.
            fs.removexattr(file(ino), b"user.a").unwrap();
            let is_last = is_over.load(Ordering::Relaxed) == 1;
            meet(2 * round + 2);
            if is_last {
                break;
            }
        }
    });
    audit(&fs, [a, b]);
    assert_eq!(fs.space.used(), used);
}

#[test]
fn time_ahead_of_the_clock_delays_no_inode() {
    let at = |secs| Timespec { secs, nanos: 0 };
    let fs = tmpfs(None);
    let (a, b) = (make(&fs, "a"), make(&fs, "b"));
    for (ino, secs) in [(a, i64::MAX), (b, 1)] {
        set(&fs, ino, b"user.a", b"1").unwrap();
        fs.setattr(file(ino), &crate::SetAttr { ctime: Some(at(secs)), ..Default::default() })
            .unwrap();
        set(&fs, ino, b"user.a", b"2").unwrap();
    }
    assert_eq!(fs.xattr_stats(), XattrStats { shared_sets: 1, waiting: 0 });
}

#[test]
fn size_and_mode_change_together_or_not_at_all() {
    let acls = |fs: &Tmpfs, ino| fs.set_acl(file(ino), AclKind::Access, Some(&acl(7)), Some(0o644));
    let whole = tmpfs(None);
    acls(&whole, make(&whole, "a")).unwrap();
    // There is space for one ACL, which the files share.
    let fs = tmpfs(Some(4096));
    let names: Vec<String> = (0..4096 / whole.space.used() + 2).map(|i| format!("{i}")).collect();
    let inos: Vec<u64> = names.iter().map(|name| make(&fs, name)).collect();
    inos.iter().for_each(|&ino| acls(&fs, ino).unwrap());
    while fs.space.take(1).is_ok() {}
    let before = fs.getattr(file(inos[0])).unwrap();
    let both = crate::SetAttr { size: Some(9), mode: Some(0o600), ..Default::default() };
    assert_eq!(fs.setattr(file(inos[0]), &both), Err(Errno::NOSPC));
    assert_eq!(fs.getattr(file(inos[0])).unwrap(), before);
    let too_large =
        crate::SetAttr { size: Some(u64::MAX), mode: Some(0o600), ..Default::default() };
    assert_eq!(fs.setattr(file(inos[0]), &too_large), Err(Errno::FBIG));
    assert_eq!(fs.getattr(file(inos[0])).unwrap(), before);
}
