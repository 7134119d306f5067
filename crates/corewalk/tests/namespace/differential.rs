//! A test of the order of errors: an unprivileged user makes the same calls in a namespace and on
//! the host.
//!
//! Each round makes one random tree in the namespace and on the host, where owners and modes of
//! some files make calls fail. The same random calls are made on both, until one succeeds and may
//! have changed the tree. If several errors apply to a call, both must report the same one.
//!
//! On the host, a thread without privileges makes the calls. If the tests do not run as root, the
//! user that runs them makes the calls and owns all files.
//!
//! Source: path_resolution(7), unlink(2), link(2), mknod(2), rename(2); Linux `may_delete`.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};

use corewalk::attr::mode::{S_IFBLK, S_IFDIR, S_IFREG};
use corewalk::{Cred, Errno, Make, Removal, RenameMode, SetAttr, Vfs};
use corewalk_base::primitives::thread;
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, RenameFlags, linkat, mknodat, renameat_with, statat,
};
use rustix::fs::{mkdirat, unlinkat};
use rustix::process::{Gid, Uid, getegid, geteuid};
use rustix::thread::{set_thread_groups, set_thread_res_gid, set_thread_res_uid};

use crate::fixtures::{name, new, walk};

const USER: u32 = 65534;
const ROUNDS: u32 = 600;
const CALLS: u32 = 24;

/// The directories in which calls are made, and one file (`p`). The caller may search `t`, because
/// the path `t/d` leads through it.
const PLACES: [&str; 5] = [".", "a", "t", "t/d", "p"];
const TOP: [&str; 6] = ["a", "t", "p", "own", "own-d", "none"];
const BELOW: [&str; 4] = ["f", "d", "full", "none"];
const MODES: [u32; 10] = [0o755, 0o777, 0o1777, 0o711, 0o700, 0o600, 0o644, 0o555, 0o333, 0o000];

struct Entry {
    path: &'static str,
    mode: u32,
    owner: u32,
}

type At = (&'static str, &'static str);

#[derive(Clone, Copy, Debug)]
enum Op {
    Lookup(At),
    Make(At, u32),
    Link(&'static str, At),
    Remove(At, Removal),
    Rename(At, At, RenameMode),
}

struct Caller {
    cred: Cred,
    owners: Vec<(u32, u32)>,
}

fn caller() -> Caller {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    match uid {
        0 => Caller { cred: Cred::user(USER, USER, &[]), owners: vec![(0, 0), (USER, USER)] },
        _ => Caller { cred: Cred::user(uid, gid, &[]), owners: vec![(uid, gid); 2] },
    }
}

/// The user owns each file that a test links, because the host's setting `protected_hardlinks`
/// forbids links to other files.
fn random_tree(rng: &mut Rng) -> Vec<Entry> {
    let dir = |path, mode, owner| Entry { path, mode: S_IFDIR | mode, owner };
    let file = |path, mode, owner| Entry { path, mode: S_IFREG | mode, owner };
    let mut random = || (*rng.pick(&MODES), rng.index(2) as u32);
    let mut tree = vec![file("own", 0o600, 1), dir("own-d", 0o700, 1)];
    tree.push(file("p", random().0, random().1));
    tree.push(dir("t", [0o755, 0o777, 0o711, 0o1777][random().0 as usize % 4], random().1));
    for at in ["a", "t/d"] {
        tree.push(dir(at, random().0, random().1));
    }
    for [f, d, full, inside] in [
        ["a/f", "a/d", "a/full", "a/full/x"],
        ["t/f", "t/e", "t/full", "t/full/x"],
        ["t/d/f", "t/d/d", "t/d/full", "t/d/full/x"],
    ] {
        tree.push(file(f, random().0, random().1));
        tree.push(dir(d, random().0, random().1));
        tree.push(dir(full, random().0, random().1));
        tree.push(file(inside, 0o644, 0));
    }
    tree.push(dir(".", [0o755, 0o777, 0o1777, 0o555][random().0 as usize % 4], random().1));
    tree
}

fn random_op(rng: &mut Rng) -> Op {
    let mut place = || {
        let at = *rng.pick(&PLACES);
        (at, *rng.pick(if at == "." { &TOP[..] } else { &BELOW[..] }))
    };
    let (a, b) = (place(), place());
    match rng.below(10) {
        0 => Op::Lookup(a),
        1 | 2 => Op::Make(a, *rng.pick(&[S_IFREG | 0o600, S_IFDIR | 0o700, S_IFBLK | 0o600])),
        3 => Op::Link(["own", "own-d"][rng.index(2)], a),
        4 | 5 => Op::Remove(a, *rng.pick(&[Removal::Unlink, Removal::Rmdir])),
        _ => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Op::Rename(a, b, *rng.pick(&modes))
        }
    }
}

fn through_namespace(vfs: &Vfs, cred: &Cred, op: Op) -> Result<(), Errno> {
    let dir = |at: At| walk(vfs, at.0).expect("the directories stay until a call succeeds");
    match op {
        Op::Lookup(at) => vfs.lookup(cred, &dir(at), name(at.1)).map(drop),
        Op::Make(at, mode) => {
            let what = Make::new(mode, cred.uid, cred.gid);
            vfs.make(cred, &dir(at), name(at.1), what).map(drop)
        }
        Op::Link(file, at) => {
            vfs.link(cred, &walk(vfs, file).unwrap(), &dir(at), name(at.1)).map(drop)
        }
        Op::Remove(at, removal) => vfs.remove(cred, &dir(at), name(at.1), removal),
        Op::Rename(from, to, mode) => {
            vfs.rename(cred, (&dir(from), name(from.1)), (&dir(to), name(to.1)), mode)
        }
    }
}

fn directly(root: &Path, op: Op) -> Result<(), Errno> {
    let path = |at: At| root.join(at.0).join(at.1);
    match op {
        Op::Lookup(at) => statat(CWD, path(at), AtFlags::SYMLINK_NOFOLLOW).map(drop),
        Op::Make(at, mode) if mode & S_IFDIR == S_IFDIR && mode & S_IFBLK != S_IFBLK => {
            mkdirat(CWD, path(at), Mode::from_raw_mode(mode & 0o7777))
        }
        Op::Make(at, mode) => {
            let kind = FileType::from_raw_mode(mode);
            mknodat(CWD, path(at), kind, Mode::from_raw_mode(mode & 0o7777), 0)
        }
        Op::Link(file, at) => linkat(CWD, root.join(file), CWD, path(at), AtFlags::empty()),
        Op::Remove(at, Removal::Unlink) => unlinkat(CWD, path(at), AtFlags::empty()),
        Op::Remove(at, Removal::Rmdir) => unlinkat(CWD, path(at), AtFlags::REMOVEDIR),
        Op::Rename(from, to, mode) => {
            let flags = match mode {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
            };
            renameat_with(CWD, path(from), CWD, path(to), flags)
        }
    }
}

fn grow(tree: &[Entry], caller: &Caller) -> Arc<Vfs> {
    let vfs = new();
    for entry in tree {
        let (uid, gid) = caller.owners[entry.owner as usize];
        if entry.path == "." {
            let (mode, uid, gid) = (Some(entry.mode & 0o7777), Some(uid), Some(gid));
            let set = SetAttr::default().with_mode(mode).with_uid(uid).with_gid(gid);
            vfs.setattr(&Cred::root(), &vfs.root(), &set).unwrap();
            continue;
        }
        let (dir, last) = entry.path.rsplit_once('/').unwrap_or((".", entry.path));
        let dir = walk(&vfs, dir).unwrap();
        vfs.make(&Cred::root(), &dir, name(last), Make::new(entry.mode, uid, gid)).unwrap();
    }
    vfs
}

struct TempDir(PathBuf);

impl TempDir {
    /// Makes the files of `tree` on the host. Sets all modes after that, because the mode of a
    /// directory could prevent the creation of files in it.
    fn new(round: u32, tree: &[Entry], caller: &Caller) -> TempDir {
        let name = format!("corewalk-differential-{}-{round}", std::process::id());
        let dir = TempDir(std::env::temp_dir().join(name));
        fs::create_dir(&dir.0).unwrap();
        let is_dir = |entry: &Entry| entry.mode & S_IFDIR == S_IFDIR;
        for entry in tree.iter().filter(|entry| entry.path != ".") {
            match is_dir(entry) {
                true => fs::create_dir(dir.0.join(entry.path)).unwrap(),
                false => drop(fs::File::create_new(dir.0.join(entry.path)).unwrap()),
            }
        }
        // Set the modes of children before those of their parents.
        let mut tree: Vec<&Entry> = tree.iter().collect();
        tree.sort_by_key(|entry| std::cmp::Reverse(entry.path.matches(['/']).count()));
        tree.sort_by_key(|entry| entry.path == ".");
        for entry in tree {
            let (uid, gid) = caller.owners[entry.owner as usize];
            let path = dir.0.join(entry.path);
            chown(&path, Some(uid), Some(gid)).unwrap();
            fs::set_permissions(&path, fs::Permissions::from_mode(entry.mode & 0o7777)).unwrap();
        }
        dir
    }
}

impl Drop for TempDir {
    fn drop(&mut self) {
        // Without root privileges, restore the permissions to remove the tree.
        let mut left = vec![self.0.clone()];
        while let Some(dir) = left.pop() {
            let _ = fs::set_permissions(&dir, fs::Permissions::from_mode(0o700));
            let Ok(entries) = fs::read_dir(&dir) else { continue };
            let dirs = entries.flatten().filter(|entry| entry.path().is_dir());
            left.extend(dirs.map(|entry| entry.path()));
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn serve(calls: &Receiver<(PathBuf, Op)>, answers: &Sender<Result<(), Errno>>) {
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(USER), Gid::from_raw(USER));
        set_thread_groups(&[]).unwrap();
        set_thread_res_gid(gid, gid, gid).unwrap();
        set_thread_res_uid(uid, uid, uid).unwrap();
    }
    for (root, op) in calls {
        answers.send(directly(&root, op)).unwrap();
    }
}

#[test]
fn order_of_errors_is_that_of_the_host() {
    let seed = Seed::choose();
    let _report = ReportSeed::new(seed);
    let (mut rng, caller) = (Rng::new(seed), caller());
    let (call, calls) = channel();
    let (answer, answers) = channel();
    let mut errors: BTreeMap<i32, u32> = BTreeMap::new();
    let mut differ: BTreeMap<String, u32> = BTreeMap::new();
    thread::scope(|scope| {
        scope.spawn(move || serve(&calls, &answer));
        // Move `call` into this closure, so that it is dropped at the closure's end, even after a
        // panic. The drop ends the serving thread.
        let call = call;
        for round in 0..ROUNDS {
            let tree = random_tree(&mut rng);
            let host = TempDir::new(round, &tree, &caller);
            let vfs = grow(&tree, &caller);
            for _ in 0..CALLS {
                let op = random_op(&mut rng);
                if rng.chance(1, 4) {
                    vfs.prune();
                }
                call.send((host.0.clone(), op)).unwrap();
                let (right, mine) =
                    (answers.recv().unwrap(), through_namespace(&vfs, &caller.cred, op));
                if mine != right {
                    let kind = format!("{op:?}");
                    let kind = kind.split('(').next().unwrap();
                    *differ.entry(format!("{kind}: {mine:?}, host {right:?}")).or_default() += 1;
                }
                let Err(error) = right else { break };
                *errors.entry(error.raw_os_error()).or_default() += 1;
            }
        }
    });
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(errors.len() >= 8, "too few kinds of errors occurred: {errors:?}");
}
