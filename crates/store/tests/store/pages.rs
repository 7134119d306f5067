//! Tests of a database whose pages are damaged while the store is not mounted.
//!
//! By default, redb does not verify the checksums of a closed database. On a damaged page, it
//! panics or misses records. The blocks of a missed extent look free, so a new file overwrites an
//! old one.
//!
//! A mount must refuse every store for which `fsck` reports damage, with the same reason. If a
//! store is mounted, all its files must be unchanged.
//!
//! Each test run damages the database in many ways, chosen at random.
//! `COREWALK_META_MUTATIONS=5000` sets how many damaged databases are tried. `COREWALK_SEED` sets
//! the seed of the random numbers.

use corewalk::attr::mode;
use corewalk::{
    AclKind, Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, RenameMode, Seek, SetAttr,
    XattrMode,
};
use corewalk_store::{Finding, OpenError, Report, Store, fsck_devices};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

use crate::differential::{Tree, tree, tree_of};
use crate::memory::{Disks, quiet};

const META: usize = 0;
const DATA: usize = 1;
const PAGE: usize = 4096;
const HEADER_BYTES: usize = 320;
const MUTATIONS: u64 = 500;
const KINDS: usize = 6;
const ROUNDS: usize = 4;
const FILES: usize = 110;

struct Victim {
    contents: [Vec<u8>; 4],
    older: Vec<Vec<u8>>,
    tree: Tree,
}

fn name(number: usize) -> String {
    format!("{number:060}")
}

fn add_files(store: &Store, round: usize) {
    let root = Node::detached(1, FileKind::Directory);
    let dir = format!("dir{round}");
    let make = Make::new(mode::S_IFDIR | 0o755, 0, 0);
    let dir = store.make(root, Name::new(dir.as_bytes()).unwrap(), &make).unwrap();
    let dir = Node::detached(dir.ino, FileKind::Directory);
    for number in 0..FILES {
        let name = name(number);
        let make = Make::new(0o644, 0, 0);
        let ino = store.make(dir, Name::new(name.as_bytes()).unwrap(), &make).unwrap().ino;
        let file = Node::detached(ino, FileKind::Regular);
        if number % 8 == 0 {
            let value = vec![(round * FILES + number) as u8; 300];
            store.setxattr(file, b"user.label", &value, XattrMode::Set).unwrap();
        }
        if number % 4 == 0 {
            let bytes = format!("file {number} of {round} ").repeat(150);
            store.write(file, 0, bytes.as_bytes()).unwrap();
        }
    }
}

fn load() -> [Victim; 2] {
    let disks = Disks::new();
    let mut older = Vec::new();
    for round in 0..ROUNDS {
        let store = disks.open(&quiet());
        add_files(&store, round);
        store.sync().unwrap();
        older.push(disks.contents()[META].clone());
        drop(store);
        older.push(disks.contents()[META].clone());
    }
    let contents = disks.contents();
    let store = disks.open(&quiet());
    let closed = Victim { contents, older: older.clone(), tree: tree(&store) };
    add_files(&store, ROUNDS);
    store.sync().unwrap();
    let root = Node::detached(1, FileKind::Directory);
    store.make(root, Name::new(b"logged").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
    store.fsync(root, false).unwrap();
    assert!(store.stats().logged_commits > 0);
    let killed = Victim { contents: disks.contents(), older, tree: tree(&store) };
    [closed, killed]
}

fn used_pages(meta: &[u8]) -> Vec<usize> {
    (0..meta.len() / PAGE)
        .filter(|page| meta[page * PAGE..][..PAGE].iter().any(|&byte| byte != 0))
        .collect()
}

fn mutate(victim: &Victim, meta: &mut Vec<u8>, rng: &mut Rng) -> (usize, String) {
    let pages = used_pages(meta);
    let (page, other) = (*rng.pick(&pages), *rng.pick(&pages));
    let (at, from) = (page * PAGE, other * PAGE);
    let kind = rng.index(KINDS);
    let how = match kind {
        0 => {
            // A uniform choice would seldom hit the small header of redb, so hit it in half of the
            // cases.
            let byte =
                if rng.chance(1, 2) { rng.index(HEADER_BYTES) } else { at + rng.index(PAGE) };
            let bit = rng.below(8);
            meta[byte] ^= 1 << bit;
            format!("bit {bit} of byte {byte}")
        }
        1 => {
            meta[at..at + PAGE].fill(0);
            format!("page {page} is zeros")
        }
        2 => {
            let first = meta[at..at + PAGE].to_vec();
            meta.copy_within(from..from + PAGE, at);
            meta[from..from + PAGE].copy_from_slice(&first);
            format!("pages {page} and {other} are exchanged")
        }
        3 => {
            meta.copy_within(from..from + PAGE, at);
            format!("page {other} was written to {page}")
        }
        4 => {
            let len = rng.index(meta.len());
            let len = if rng.chance(1, 2) { len } else { len - len % PAGE };
            meta.truncate(len);
            format!("it has {len} bytes")
        }
        _ => {
            let nth = rng.index(victim.older.len());
            let older = &victim.older[nth];
            let is_other = |page: &&usize| {
                let range = **page * PAGE..(**page + 1) * PAGE;
                older.get(range.clone()).is_some_and(|older| older != &meta[range])
            };
            let changed: Vec<usize> = pages.iter().filter(is_other).copied().collect();
            if changed.is_empty() {
                return (kind, "no change".into());
            }
            let page = *rng.pick(&changed);
            let range = page * PAGE..(page + 1) * PAGE;
            meta[range.clone()].copy_from_slice(&older[range]);
            format!("page {page} is that of time {nth}")
        }
    };
    (kind, how)
}

fn call_everything(store: &Store) -> Vec<(&'static str, Errno)> {
    let mut failed = Vec::new();
    let root = Node::detached(1, FileKind::Directory);
    let made =
        store.make(root, Name::new(b"new").unwrap(), &Make::new(mode::S_IFDIR | 0o755, 0, 0));
    let dir = match made {
        Ok(attr) => Node::detached(attr.ino, FileKind::Directory),
        Err(errno) => return vec![("mkdir", errno)],
    };
    call_for_files(store, dir, &mut failed);
    let mut note = |what, result: Result<(), Errno>| failed.extend(result.err().map(|e| (what, e)));
    for kind in [mode::S_IFLNK, mode::S_IFIFO, mode::S_IFSOCK, mode::S_IFDIR] {
        let mut what = Make::new(kind | 0o600, 1, 2);
        if kind == mode::S_IFLNK {
            what.target = b"a target";
        }
        let name = format!("kind{kind:o}");
        let name = Name::new(name.as_bytes()).unwrap();
        match store.make(dir, name, &what) {
            Ok(attr) => {
                let node = Node::detached(attr.ino, attr.kind());
                if attr.kind() == FileKind::Symlink {
                    note("readlink", store.readlink(node).map(drop));
                }
                note("remove", store.remove(dir, name, node));
                store.forget(attr.ino, attr.generation);
            }
            Err(errno) => note("make", Err(errno)),
        }
    }
    note("statfs", store.statfs().map(drop));
    note("fsync", store.fsync(dir, false));
    note("sync", store.sync());
    store.maintain();
    store.counters(&mut |_, _| ());
    failed
}

fn call_for_files(store: &Store, dir: Node<'_>, failed: &mut Vec<(&'static str, Errno)>) {
    let mut note = |what, result: Result<(), Errno>| failed.extend(result.err().map(|e| (what, e)));
    let [a, b, c] = [b"a", b"b", b"c"].map(|name| Name::new(name).unwrap());
    let make = Make::new(0o644, 3, 4);
    note("tmpfile", store.tmpfile(dir, &make).map(|attr| store.forget(attr.ino, attr.generation)));
    for name in [a, b] {
        let file = match store.make(dir, name, &make) {
            Ok(attr) => Node::detached(attr.ino, FileKind::Regular),
            Err(errno) => return note("create", Err(errno)),
        };
        note("write", store.write(file, 0, &[0xab; 70_000]).map(drop));
        note("append", store.append(file, 70_000, b"more").map(drop));
        note("read", store.read(file, 9, &mut [0; 5_000]).map(drop));
        note("seek", store.seek(file, 0, Seek::Hole).map(drop));
        note("fallocate", store.fallocate(file, 200_000, 9_000, Fallocate::from_bits_retain(1)));
        let set = SetAttr::default().with_size(50_000).with_mode(0o600);
        note("setattr", store.setattr(file, &set).map(drop));
        note("setxattr", store.setxattr(file, b"user.a", &[7; 300], XattrMode::Set));
        note("setxattr", store.setxattr(file, b"user.b", b"1", XattrMode::Create));
        note("removexattr", store.removexattr(file, b"user.b"));
        note("getxattr", store.getxattr(file, b"user.a").map(drop));
        note("listxattr", store.listxattr(file).map(drop));
        note("get_acl", store.get_acl(file, AclKind::Access).map(drop));
        let acl = corewalk::acl::Acl::from_mode(0o640);
        note("set_acl", store.set_acl(file, AclKind::Access, Some(&acl), Some(0o640)));
        note("open", store.open(file, 0).map(|_| store.release(file)));
        note("fsync", store.fsync(file, true));
        note("link", store.link(file, dir, c).map(drop));
        note("remove", store.remove(dir, c, file));
    }
    note("rename", store.rename((dir, a), (dir, c), RenameMode::NoReplace));
    note("rename", store.rename((dir, b), (dir, c), RenameMode::Exchange));
    note("rename", store.rename((dir, b), (dir, c), RenameMode::Replace));
    note("lookup", store.lookup(dir, c).map(drop));
    note("readdir", store.readdir(dir, 0, &mut |_| std::ops::ControlFlow::Continue(())));
}

fn says_the_same(error: &OpenError, checked: &Result<Report, OpenError>) -> bool {
    let first = checked.as_ref().ok().and_then(|report| report.findings.first());
    match (error, checked) {
        (OpenError::Damaged, _) => first == Some(&Finding::Database),
        (OpenError::DatabaseBehind { .. }, _) => {
            matches!(first, Some(Finding::DatabaseBehind(..)))
        }
        (OpenError::Foreign, Err(OpenError::Foreign)) => true,
        _ => false,
    }
}

#[derive(Debug, Default)]
struct Outcomes {
    refused: u32,
    /// Number of damaged stores that the mount accepted, because no damaged page is in use.
    mounted: u32,
    wrong: Vec<String>,
}

fn examine(victim: &Victim, damaged: &[Vec<u8>; 4], outcomes: &mut Outcomes) -> Result<(), String> {
    let disks = Disks::with(damaged.clone());
    let checked = fsck_devices(&disks.devices());
    if disks.contents() != *damaged {
        return Err("the check has changed something".into());
    }
    let is_warned = checked.as_ref().map_or(true, |report| !report.findings.is_empty());
    let store = match Store::open_devices(disks.devices(), &quiet()) {
        Ok(store) => store,
        Err(error) => {
            outcomes.refused += 1;
            if !says_the_same(&error, &checked) {
                return Err(format!("the mount says {error:?}, the check {checked:?}"));
            }
            let read_only = quiet().with_read_only(true);
            if Store::open_devices(disks.devices(), &read_only).is_ok() {
                return Err("it is mounted for reading".into());
            }
            let is_same = disks.contents() == *damaged;
            return if is_same { Ok(()) } else { Err("a refused mount changed something".into()) };
        }
    };
    outcomes.mounted += 1;
    if !is_warned && tree(&store) != victim.tree {
        return Err("files are missing or changed, and nothing warns of it".into());
    }
    let failed = call_everything(&store);
    let is_synced = store.sync().is_ok();
    drop(store);
    let data = &disks.contents()[DATA];
    let blocks = victim.contents[DATA].chunks(PAGE).zip(data.chunks(PAGE));
    let overwritten = blocks.filter(|(was, is)| was.iter().any(|&byte| byte != 0) && was != is);
    let overwritten = overwritten.count();
    if is_warned || overwritten > 0 || !failed.is_empty() {
        return Err(format!(
            "mounted: warned {is_warned}, synced {is_synced}, {overwritten} blocks overwritten, failed {failed:?}"
        ));
    }
    check_again(victim, &disks)
}

fn check_again(victim: &Victim, disks: &Disks) -> Result<(), String> {
    let report = fsck_devices(&disks.devices()).map_err(|error| error.to_string())?;
    if !report.findings.is_empty() {
        return Err(format!("after its use: {:?}", report.findings));
    }
    let store = disks.open(&quiet());
    let root = Node::detached(1, FileKind::Directory);
    for round in 0..ROUNDS {
        let dir = format!("dir{round}");
        let path = format!("/{dir}");
        let node = store.lookup(root, Name::new(dir.as_bytes()).unwrap()).unwrap().ino;
        let node = Node::detached(node, FileKind::Directory);
        let mut now = tree_of(&store, node);
        for (below, leaf) in victim.tree.iter().filter(|(at, _)| at.starts_with(path.as_bytes())) {
            if now.remove(&below[path.len()..]).as_ref() != Some(leaf) {
                return Err(format!("{} has changed", String::from_utf8_lossy(below)));
            }
        }
        let (old, new) = (name(0), name(1));
        let [old, new] = [&old, &new].map(|name| Name::new(name.as_bytes()).unwrap());
        store.rename((node, old), (node, new), RenameMode::Replace).unwrap();
        let moved = store.lookup(node, new).unwrap().ino;
        store.remove(node, new, Node::detached(moved, FileKind::Regular)).unwrap();
    }
    store.sync().map_err(|errno| errno.to_string())
}

/// Damaged pages of the database must neither make new files overwrite old ones (Trap X2) nor abort
/// the server (Trap X3).
#[test]
fn damaged_database_is_refused_with_what_the_check_says() {
    let asked = std::env::var("COREWALK_META_MUTATIONS").ok().and_then(|text| text.parse().ok());
    let report = ReportSeed::new(Seed::choose());
    let victims = load();
    let mut outcomes = Outcomes::default();
    let wanted = asked.unwrap_or(MUTATIONS);
    let mut counts = [0_u64; KINDS];
    for number in 0..2 * wanted {
        if counts.iter().sum::<u64>() == wanted {
            break;
        }
        let mut rng = Rng::new(report.seed()).fork(number);
        let victim = &victims[usize::from(rng.chance(1, 4))];
        let mut damaged = victim.contents.clone();
        let (kind, how) = mutate(victim, &mut damaged[META], &mut rng);
        if damaged[META] == victim.contents[META] {
            continue;
        }
        counts[kind] += 1;
        if let Err(wrong) = examine(victim, &damaged, &mut outcomes) {
            outcomes.wrong.push(format!("{number}, {how}: {wrong}"));
        }
    }
    let Outcomes { refused, mounted, wrong } = outcomes;
    println!("kinds {counts:?}: {refused} refused, {mounted} mounted, {} wrong", wrong.len());
    assert_eq!(counts.iter().sum::<u64>(), wanted, "kinds {counts:?}");
    assert!(counts.iter().all(|count| *count >= wanted / 20), "kinds {counts:?}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
    assert!(refused > 100 && mounted > 20, "{refused} refused, {mounted} mounted");
}

/// A file `meta` with wrong first bytes must be reported as foreign. A file with the right first
/// bytes and other damage must be reported as damaged.
#[test]
fn first_page_tells_a_store_from_a_foreign_file() {
    let [victim, _] = load();
    let mut foreign = victim.contents.clone();
    foreign[META][0] ^= 1;
    let disks = Disks::with(foreign);
    let opened = Store::open_devices(disks.devices(), &quiet()).map(drop);
    assert!(matches!(opened, Err(OpenError::Foreign)));
    assert!(matches!(fsck_devices(&disks.devices()), Err(OpenError::Foreign)));
    let mut damaged = victim.contents;
    damaged[META][9..PAGE].fill(0xa5);
    let disks = Disks::with(damaged);
    let opened = Store::open_devices(disks.devices(), &quiet()).map(drop);
    assert!(matches!(opened, Err(OpenError::Damaged)));
    assert_eq!(fsck_devices(&disks.devices()).unwrap().findings, [Finding::Database]);
}

#[test]
fn control_store_that_is_whole_is_mounted_and_used() {
    for victim in load() {
        let mut outcomes = Outcomes::default();
        let examined = examine(&victim, &victim.contents, &mut outcomes);
        assert_eq!((examined, outcomes.mounted), (Ok(()), 1));
    }
}
