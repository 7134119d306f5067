//! The storage is cut off at every write: what is left must be a store at a commit boundary.
//!
//! A bounded load runs on devices that note every write and sync. Then, for each of many cuts, the
//! devices are made anew as a crash could leave them: what a device was asked to write before its last
//! sync is there; of what came after, each write is there, or not, or in part, by chance. The store is
//! checked and mounted on that, and its tree must be that of the last fsync that had returned, or of the
//! one that was under way. Each write has a byte of its own, so it is told whose bytes a file has: those of the
//! last sync, or in their place those of a later write to the same file, or zeros if one has cut or punched it
//! since; not older ones, and never those of another file. The load writes little and much, so that commits are the
//! log's and the database's by turns, cuts, lengthens, reserves, punches, and moves blocks; it is closed and mounted again in between.
//!
//! The same with a block that cannot be read in the first mount after the cut: it is refused with `EIO`, or has what
//! can be read; and once the block can be read all is there that was confirmed.
//!
//! Controls leave out what the order of syncs is for, and must be caught: data that is not synced
//! before a commit, a log and a database whose syncs do nothing, and blocks that are written anew
//! before it is durable that somebody let go of them (J.4).

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use corewalk::{
    Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, RenameMode, SetAttr, XattrMode,
};
use corewalk_store::{NoSharing, Store, fsck_devices};
use corewalk_testkit::rng::{Rng, Seed};

use crate::differential::{Leaf, Tree, tree};
use crate::log_fails::add;
use crate::memory::{Disks, Step, quiet};

/// Syncs of the load.
const EPOCHS: usize = 60;
/// Mounts that these are in, one after the other.
const MOUNTS: usize = 3;
/// Operations between two syncs.
const STEPS: u64 = 12;
/// Cuts that are tried of a load, or as many as it has writes and syncs if those are more.
const CUTS: usize = 400;
/// From one place that is cut to the next one; a prime number.
const STRIDE: usize = 7919;
/// The numbers of devices in the log: database, data, the log of the store.
const META: usize = 0;
const DATA: usize = 1;
const LOG: usize = 3;

/// What is confirmed from a place in the log on.
struct Confirmed {
    /// Length of the log when the sync returned.
    at: usize,
    tree: Tree,
    /// The numbers of its files, by their paths.
    numbers: Numbers,
    /// What happened to files until the next sync.
    since: Written,
}

/// The numbers of files by their paths.
pub(crate) type Numbers = BTreeMap<Vec<u8>, u64>;

/// What was written to files, by their numbers: the bytes of writes, and 0 where bytes were zeroed.
#[derive(Default)]
struct Written(BTreeSet<(u64, u8)>);

/// The byte of the next write: none has that of the 254 before it.
struct Tags(u8);

impl Tags {
    fn next(&mut self) -> u8 {
        self.0 = self.0 % 255 + 1;
        self.0
    }
}

/// Returns the numbers of what is in the tree below `dir`.
pub(crate) fn numbers(store: &Store, dir: Node<'_>, tree: &Tree) -> Numbers {
    let number = |path: &[u8]| {
        let names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
        let mut node = Node::detached(dir.ino(), FileKind::Directory);
        for name in names {
            let found = store.lookup(node, Name::new(name).unwrap()).unwrap();
            node = Node::detached(found.ino, found.kind());
        }
        node.ino()
    };
    tree.keys().map(|path| (path.clone(), number(path))).collect()
}

impl Confirmed {
    fn now(store: &Store, at: usize) -> Confirmed {
        let tree = tree(store);
        let numbers = numbers(store, Node::detached(1, FileKind::Directory), &tree);
        Confirmed { at, tree, numbers, since: Written::default() }
    }
}

fn name(n: u64) -> Vec<u8> {
    format!("f{n}").into_bytes()
}

/// Makes an empty file, or removes it.
fn change_below(store: &Store, dir: Node<'_>, child: &[u8]) {
    let child = Name::new(child).unwrap();
    if store.make(dir, child, &Make::new(0o644, 0, 0)).is_err() {
        let found = store.lookup(dir, child).unwrap();
        store.remove(dir, child, Node::detached(found.ino, found.kind())).unwrap();
        store.forget(found.ino);
    }
}

/// Does something to a file or a directory.
fn change(store: &Store, rng: &mut Rng, tags: &mut Tags, since: &mut Written) {
    let root = Node::detached(1, FileKind::Directory);
    let n = rng.below(24);
    let (bytes, names) = (name(n), name(rng.below(24)));
    let (this, other) = (Name::new(&bytes).unwrap(), Name::new(&names).unwrap());
    let Ok(attr) = store.lookup(root, this) else {
        let mode = if n < 3 { 0o040_755 } else { 0o100_644 };
        store.make(root, this, &Make::new(mode, 0, 0)).unwrap();
        return;
    };
    let node = Node::detached(attr.ino, attr.kind());
    let mut write = |offset: u64, len: usize| {
        let tag = tags.next();
        since.0.insert((attr.ino, tag));
        store.write(node, 0, offset, &vec![tag; len]).unwrap();
    };
    match rng.below(12) {
        _ if attr.is_dir() => change_below(store, node, &name(100 + rng.below(6))),
        0..3 => {
            // Small ones go to the log; a few are too large for it.
            let len = if rng.chance(1, 12) { 70_000 } else { 1 + rng.index(12_000) };
            write(rng.below(20_000), len);
        }
        3 => {
            let size = Some(rng.below(20_000));
            since.0.insert((attr.ino, 0));
            store.setattr(node, &SetAttr { size, ..SetAttr::default() }).unwrap();
        }
        4 => {
            let target = store.lookup(root, other);
            if target.is_ok_and(|target| target.is_dir()) {
                return;
            }
            store.rename((root, this), (root, other), RenameMode::Replace).unwrap();
            if let Ok(target) = target {
                store.forget(target.ino);
            }
        }
        5 => {
            store.remove(root, this, node).unwrap();
            // Some stay open, and are orphans for a while.
            if rng.chance(2, 3) {
                store.forget(attr.ino);
            }
        }
        6 => {
            // What it had is free after the next commit, and soon written for another file.
            let empty = SetAttr { size: Some(0), ..SetAttr::default() };
            store.setattr(node, &empty).unwrap();
            let len = if rng.chance(1, 3) { 70_000 } else { 1 + rng.index(50_000) };
            write(0, len);
        }
        7 | 8 => {
            let bits = [0, 1, 3, 8, 0x10, 0x11, 0x20];
            let how = Fallocate::from_bits_retain(*rng.pick(&bits));
            let is_moved = how.bits() & 0x28 != 0;
            let unit = if is_moved { 4096 } else { 1 };
            let (at, len) =
                (rng.below(24_000) / unit * unit, (1 + rng.below(9_000)).div_ceil(unit) * unit);
            if how.intersects(Fallocate::PUNCH_HOLE | Fallocate::ZERO_RANGE) {
                since.0.insert((attr.ino, 0));
            }
            // To take out or to insert behind the end is refused.
            let done = store.fallocate(node, 0, at, len, how);
            assert!(done.is_ok() || is_moved, "{done:?}");
        }
        _ => {
            let value = vec![rng.below(4) as u8; 700];
            store.setxattr(node, b"user.shared", &value, XattrMode::Set).unwrap();
        }
    }
}

/// Runs the load, and returns what the devices were asked and what was confirmed when.
fn load(disks: &Disks, seed: Seed, is_shared: bool) -> (Vec<Step>, Vec<Confirmed>) {
    disks.shared.lock().log = Some(Vec::new());
    let mut options = quiet();
    if !is_shared {
        options.share = Some(std::sync::Arc::new(NoSharing));
    }
    let log_len = || disks.shared.lock().log.as_ref().unwrap().len();
    let (mut rng, mut tags) = (Rng::new(seed), Tags(0));
    let (mut confirmed, mut logged, mut by_database) = (Vec::new(), 0, 0);
    for _ in 0..MOUNTS {
        let store = disks.open(&options);
        confirmed.push(Confirmed::now(&store, log_len()));
        for _ in 0..EPOCHS / MOUNTS {
            let since = &mut confirmed.last_mut().expect("the mount's").since;
            for _ in 0..1 + rng.below(STEPS) {
                change(&store, &mut rng, &mut tags, since);
            }
            // A file that was just changed is as good as the whole: it is in the same transaction.
            let root = Node::detached(1, FileKind::Directory);
            store.fsync(root, 0, false).unwrap();
            store.sync().unwrap();
            confirmed.push(Confirmed::now(&store, log_len()));
        }
        let stats = store.stats();
        logged += stats.logged_commits;
        by_database += stats.commits - stats.logged_commits;
        // To close it writes, too.
        drop(store);
    }
    assert!(
        logged > 5 && by_database > 2,
        "{logged} commits of the log, {by_database} of the database"
    );
    let log = disks.shared.lock().log.take().unwrap();
    (log, confirmed)
}

/// Returns the devices as a crash after these steps may leave them.
pub(crate) fn crash(log: &[Step], rng: &mut Rng) -> Disks {
    let mut contents: [Vec<u8>; 4] = Default::default();
    for (device, content) in contents.iter_mut().enumerate() {
        let is_sync = |step: &Step| matches!(step, Step::Sync { device: at } if *at == device);
        let durable = log.iter().rposition(is_sync).unwrap_or(0);
        // Cuts differ in how much the device has kept to itself.
        let kept = rng.below(5);
        for (at, step) in log.iter().enumerate() {
            let is_last = at + 1 == log.len();
            let is_there = at < durable || rng.chance(kept, 4);
            match step {
                Step::SetLen { device: of, len } if *of == device && is_there => {
                    content.resize(*len as usize, 0);
                }
                Step::Write { device: of, offset, bytes } if *of == device && is_there => {
                    let is_torn = at >= durable && (is_last || rng.chance(1, 4));
                    let sectors = bytes.len().div_ceil(512);
                    let len = if is_torn { rng.index(sectors + 1) * 512 } else { bytes.len() };
                    let bytes = &bytes[..len.min(bytes.len())];
                    let start = *offset as usize;
                    if content.len() < start + bytes.len() {
                        content.resize(start + bytes.len(), 0);
                    }
                    content[start..start + bytes.len()].copy_from_slice(bytes);
                }
                _ => {}
            }
        }
    }
    Disks::with(contents)
}

/// Says whether `got` is `expected`, but for bytes that a file may have by `may`, which gets its path.
pub(crate) fn is_like(got: &Tree, expected: &Tree, may: impl Fn(&[u8], u8) -> bool) -> bool {
    got.len() == expected.len()
        && got.iter().zip(expected).all(|((path, leaf), (wanted, old))| {
            path == wanted
                && leaf.with_bytes(&[]) == old.with_bytes(&[])
                && leaf.bytes.len() == old.bytes.len()
                && leaf
                    .bytes
                    .iter()
                    .zip(&old.bytes)
                    .all(|(&new, &old)| new == old || may(path, new))
        })
}

/// Tries a cut, and returns what is wrong with what is left, if anything is.
fn try_cut(
    steps: &[Step],
    confirmed: &[Confirmed],
    cut: usize,
    rng: &mut Rng,
) -> Result<(), String> {
    judge(&crash(steps, rng), confirmed, cut, None)
}

/// Says what is wrong with what a cut has left, if anything is, but for a file that was made after it.
fn judge(
    disks: &Disks,
    confirmed: &[Confirmed],
    cut: usize,
    made: Option<&str>,
) -> Result<(), String> {
    let report = fsck_devices(&disks.devices()).map_err(|error| format!("fsck: {error}"))?;
    if !report.findings.is_empty() {
        return Err(format!("fsck: {:?}", report.findings));
    }
    let store =
        Store::open_devices(disks.devices(), &quiet()).map_err(|error| error.to_string())?;
    if let Some(made) = made {
        let (root, name) =
            (Node::detached(1, FileKind::Directory), Name::new(made.as_bytes()).unwrap());
        let found = store.lookup(root, name).map_err(|errno| format!("{made}: {errno}"))?;
        let node = Node::detached(found.ino, FileKind::Regular);
        let mut bytes = vec![0; made.len()];
        let read = store.read(node, 0, 0, &mut bytes);
        if read != Ok(made.len()) || bytes != made.as_bytes() {
            return Err(format!("{made}: {read:?}"));
        }
        store.remove(root, name, node).unwrap();
        store.forget(found.ino);
    }
    let got = tree(&store);
    let last = confirmed.iter().rposition(|state| state.at <= cut).unwrap_or(0);
    let Confirmed { tree: old, numbers, since, .. } = &confirmed[last];
    let is_last = is_like(&got, old, |path, byte| since.0.contains(&(numbers[path], byte)));
    let is_next = confirmed.get(last + 1).is_some_and(|next| next.tree == got);
    if !is_last && !is_next {
        return Err(format!("neither the tree of sync {last} nor of the next one"));
    }
    // What was freed at the mount is gone, and all that remains holds.
    store.sync().map_err(|error| error.to_string())?;
    let stats = store.stats();
    drop(store);
    let report = fsck_devices(&disks.devices()).map_err(|error| error.to_string())?;
    // What the mount has counted, with what was in the log; a set of attributes has a block here.
    let counted = (stats.inodes, stats.blocks, stats.xattr_blocks, stats.xattr_users);
    let blocks = report.blocks + report.xattr_blocks;
    let is_counted = counted == (report.inodes, blocks, report.xattr_blocks, report.xattr_users);
    if !is_counted {
        return Err(format!("{counted:?} were counted of {report:?}"));
    }
    match report.orphans == 0 && report.findings.is_empty() {
        true => Ok(()),
        false => Err(format!("after the mount: {report:?}")),
    }
}

/// Tries cuts all over the load, and returns the first that is wrong.
fn try_cuts(log: &[Step], confirmed: &[Confirmed], seed: u64, count: usize) -> Option<String> {
    try_cuts_of(&|cut| log[..cut].to_vec(), (confirmed, log.len()), seed, count)
}

/// As `try_cuts`; `steps` says what the devices were asked before a cut.
fn try_cuts_of(
    steps: &dyn Fn(usize) -> Vec<Step>,
    (confirmed, len): (&[Confirmed], usize),
    seed: u64,
    count: usize,
) -> Option<String> {
    let first = confirmed[0].at;
    for number in 0..count {
        // Every place once before one is tried again, far ones next to each other.
        let cut = first + number * STRIDE % (len + 1 - first);
        let mut rng = Rng::new(Seed(seed * 1_000_000 + number as u64));
        if let Err(wrong) = try_cut(&steps(cut), confirmed, cut, &mut rng) {
            return Some(format!("seed {seed}, number {number}, cut {cut}: {wrong}"));
        }
    }
    None
}

/// The storage is cut off behind every write and every sync of three loads, at least a thousand times.
#[test]
fn cut_at_any_write_leaves_what_was_confirmed() {
    let mut places = 0;
    for (seed, is_shared) in [(1, true), (2, true), (3, false)] {
        let (log, confirmed) = load(&Disks::new(), Seed(seed), is_shared);
        let cuts = log.len() + 1 - confirmed[0].at;
        // Else some places would be tried twice, and others never.
        assert!(!cuts.is_multiple_of(STRIDE), "seed {seed}: {cuts} places");
        println!("seed {seed}: {cuts} places to cut at, {} syncs", confirmed.len());
        assert_eq!(try_cuts(&log, &confirmed, seed, cuts.max(CUTS)), None);
        places += cuts;
    }
    assert!(places >= 1_000, "{places} places are fewer than a thousand");
}

/// What came of a first mount.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum First {
    Refused,
    Mounted,
    /// Something could not be read later.
    Unread,
}

/// Mounts what a cut has left, of which a block of `device` cannot be read, uses it, and says what came of it; then
/// as `judge`, when the block can be read.
fn try_unreadable(
    steps: &[Step],
    confirmed: &[Confirmed],
    (cut, device): (usize, usize),
    rng: &mut Rng,
) -> Result<First, String> {
    const MADE: &str = "made with a bad block";
    let disks = crash(steps, rng);
    let before = disks.contents();
    let blocks = before[device].len().div_ceil(4096) as u64;
    disks.shared.lock().bad_block = Some((device, rng.below(blocks.max(1))));
    let (mut first, mut made) = (First::Mounted, None);
    match Store::open_devices(disks.devices(), &quiet()) {
        Ok(store) => {
            let unread = count_unread(&store, device == DATA)?;
            if unread > 0 && device == LOG {
                return Err(format!("{unread} files have bytes of the log"));
            }
            if unread > 0 {
                first = First::Unread;
            }
            match add(&store, MADE) {
                Ok(()) => made = Some(MADE),
                Err(Errno::IO | Errno::ROFS) if device == META => {}
                Err(errno) => return Err(format!("made: {errno}")),
            }
        }
        Err(error) if error.errno() != Errno::IO => return Err(error.to_string()),
        Err(_) if device == DATA => return Err("data that is not read".to_owned()),
        // Pages of the database that the log changes may be read later.
        Err(error) if device == LOG && disks.contents() != before => {
            return Err(format!("refused and changed: {error}"));
        }
        Err(_) => first = First::Refused,
    }
    disks.shared.lock().bad_block = None;
    judge(&disks, confirmed, cut, made).map(|()| first)
}

/// Reads all files, and returns in how many something could not be read; names and the rest can, if only `data` has
/// a bad block.
fn count_unread(store: &Store, is_data: bool) -> Result<u32, String> {
    let mut unread = 0;
    let mut open = vec![Node::detached(1, FileKind::Directory)];
    while let Some(dir) = open.pop() {
        let mut names = Vec::new();
        let listed = store.readdir(dir, 0, &mut |entry| {
            names.push(entry.name.as_bytes().to_vec());
            ControlFlow::Continue(())
        });
        let mut one = |name: &[u8]| -> Result<(), Errno> {
            let attr = store.lookup(dir, Name::new(name).unwrap())?;
            let node = Node::detached(attr.ino, attr.kind());
            if attr.is_dir() {
                open.push(node);
                return Ok(());
            }
            store.listxattr(node)?;
            let read = store.read(node, 0, 0, &mut vec![0; attr.size as usize]);
            unread += u32::from(read == Err(Errno::IO));
            if is_data { Ok(()) } else { read.map(drop) }
        };
        let seen = listed.and_then(|()| names.iter().try_for_each(|name| one(name)));
        match seen {
            Ok(()) => {}
            Err(Errno::IO) if !is_data => unread += 1,
            Err(errno) => return Err(format!("read: {errno}")),
        }
    }
    Ok(unread)
}

/// A cut, and then a block of the log, of the data or of the database that the host does not read: `EIO`, and nothing
/// is lost by that.
#[test]
fn block_that_cannot_be_read_after_a_cut_is_eio_and_loses_nothing() {
    const TRIES: usize = 330;
    let mut seen = BTreeMap::new();
    for (seed, is_shared) in [(1, true), (2, false)] {
        let (log, confirmed) = load(&Disks::new(), Seed(seed), is_shared);
        let first = confirmed[0].at;
        for number in 0..TRIES {
            let device = [LOG, DATA, META][number % 3];
            let cut = first + number * STRIDE % (log.len() + 1 - first);
            let mut rng = Rng::new(Seed(seed * 1_000_000 + number as u64));
            let done = try_unreadable(&log[..cut], &confirmed, (cut, device), &mut rng);
            let done = done.unwrap_or_else(|wrong| {
                panic!("seed {seed}, number {number}, cut {cut}, device {device}: {wrong}")
            });
            *seen.entry((device, done)).or_insert(0) += 1;
        }
    }
    println!("{seen:?}");
    let all = [
        (META, First::Refused),
        (META, First::Mounted),
        (DATA, First::Mounted),
        (DATA, First::Unread),
        (LOG, First::Refused),
        (LOG, First::Mounted),
    ];
    for (device, first) in all {
        let count = seen.get(&(device, first)).copied().unwrap_or(0);
        assert!(count > 10, "device {device}, {first:?}: {count}");
    }
}

/// A byte that was confirmed and is lost, be it zero or what was there before, is no byte that may be there.
#[test]
fn control_byte_that_is_lost_is_told_from_one_that_was_written_since() {
    let (_, confirmed) = load(&Disks::new(), Seed(1), true);
    let mut told = [0; 2];
    for state in &confirmed {
        let may = |path: &[u8], byte| state.since.0.contains(&(state.numbers[path], byte));
        for (path, leaf) in &state.tree {
            let Some(&last) = leaf.bytes.last() else { continue };
            let one = |leaf: Leaf| Tree::from([(path.clone(), leaf)]);
            for byte in 0..=255 {
                let mut bytes = leaf.bytes.clone();
                *bytes.last_mut().expect("it has one") = byte;
                let is_legal = byte == last || may(path, byte);
                let is_taken = is_like(&one(leaf.with_bytes(&bytes)), &one(leaf.clone()), may);
                assert_eq!(is_taken, is_legal, "{path:?}, {byte}");
                told[usize::from(is_legal)] += 1;
            }
        }
    }
    // Few bytes may be there of 256.
    assert!(told[0] > 100 * told[1] && told[1] > 100, "{told:?}");
}

/// Returns what is wrong if syncs of some devices do nothing.
fn without_syncs(devices: &[usize]) -> String {
    let (mut log, confirmed) = load(&Disks::new(), Seed(1), true);
    let first = confirmed[0].at;
    for step in &mut log[first..] {
        // A step that does nothing keeps the places of the others.
        if matches!(step, Step::Sync { device } if devices.contains(device)) {
            *step = Step::Sync { device: 9 };
        }
    }
    try_cuts(&log, &confirmed, 1, 300).expect("it is caught")
}

/// Without the sync of data before the commit, extents lead to what was never written.
#[test]
fn control_data_that_is_not_synced_is_caught() {
    println!("{}", without_syncs(&[DATA]));
}

/// Without the syncs of the database, or of the log, what was confirmed is not there.
#[test]
fn control_database_and_log_that_are_not_synced_are_caught() {
    println!("{}", without_syncs(&[META]));
    println!("{}", without_syncs(&[LOG]));
}

/// J.4: if blocks were given out before it is durable that a file has let go of them, that file would
/// show bytes of another one. Here the writes to files of the time after a sync overtake that sync.
#[test]
fn control_blocks_that_are_given_out_early_are_caught() {
    let (log, confirmed) = load(&Disks::new(), Seed(1), true);
    let overtaken = |cut: usize| -> Vec<Step> {
        let next = confirmed.iter().position(|state| state.at > cut).unwrap_or(confirmed.len());
        let at = |number: usize| confirmed.get(number).map_or(log.len(), |state| state.at);
        let later = &log[at(next)..at(next + 1)];
        let is_data = |step: &&Step| matches!(step, Step::Write { device: DATA, .. });
        log[..cut].iter().chain(later.iter().filter(is_data)).cloned().collect()
    };
    // Four hundred cuts are not always enough.
    let wrong = (1..9)
        .find_map(|seed| try_cuts_of(&overtaken, (&confirmed, log.len()), seed, 400))
        .expect("it is caught");
    println!("{wrong}");
}
