//! The same random calls are made through the `Vfs` in one directory, and directly in another one.
//! Each call must have the same result, including the errno, and at the end both directories must
//! be equal.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

use corewalk::{Errno, Removal, RenameMode, Vfs};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::fixtures::{TempDir, link, make, over, remove, rename, symlink, walk};

const PATHS: [&str; 12] = [
    "a",
    "b",
    "d",
    "d/a",
    "d/b",
    "d/e",
    "d/e/a",
    "d/e/f",
    "none/a",
    "a/under-a-file",
    "d/e/f/g",
    "l",
];

#[derive(Clone, Copy, Debug)]
enum Op {
    Create(usize),
    Mkdir(usize),
    Symlink(usize),
    Unlink(usize),
    Rmdir(usize),
    Link(usize, usize),
    Rename(usize, usize, RenameMode),
    Stat(usize),
}

fn random_op(rng: &mut Rng) -> Op {
    let (a, b) = (rng.index(PATHS.len()), rng.index(PATHS.len()));
    match rng.below(10) {
        0 | 1 => Op::Create(a),
        2 | 3 => Op::Mkdir(a),
        4 => Op::Symlink(a),
        5 => Op::Unlink(a),
        6 => Op::Rmdir(a),
        7 => Op::Link(a, b),
        8 => Op::Stat(a),
        _ => {
            let modes = [RenameMode::Replace, RenameMode::NoReplace, RenameMode::Exchange];
            Op::Rename(a, b, *rng.pick(&modes))
        }
    }
}

fn through_namespace(vfs: &Vfs, op: Op) -> Result<(), Errno> {
    match op {
        Op::Create(a) => make(vfs, PATHS[a]).map(drop),
        Op::Mkdir(a) => make(vfs, &format!("{}/", PATHS[a])).map(drop),
        Op::Symlink(a) => symlink(vfs, PATHS[a], "target"),
        Op::Unlink(a) => remove(vfs, PATHS[a], Removal::Unlink),
        Op::Rmdir(a) => remove(vfs, PATHS[a], Removal::Rmdir),
        Op::Link(a, b) => link(vfs, PATHS[a], PATHS[b]),
        Op::Rename(a, b, mode) => rename(vfs, PATHS[a], PATHS[b], mode),
        Op::Stat(a) => walk(vfs, PATHS[a]).map(drop),
    }
}

fn directly(root: &Path, op: Op) -> Result<(), Errno> {
    let at = |a: usize| root.join(PATHS[a]);
    let result = match op {
        Op::Create(a) => fs::File::create_new(at(a)).map(drop),
        Op::Mkdir(a) => fs::create_dir(at(a)),
        Op::Symlink(a) => std::os::unix::fs::symlink("target", at(a)),
        Op::Unlink(a) => fs::remove_file(at(a)),
        Op::Rmdir(a) => fs::remove_dir(at(a)),
        Op::Link(a, b) => fs::hard_link(at(a), at(b)),
        Op::Stat(a) => fs::symlink_metadata(at(a)).map(drop),
        Op::Rename(a, b, mode) => {
            let flags = match mode {
                RenameMode::Replace => RenameFlags::empty(),
                RenameMode::NoReplace => RenameFlags::NOREPLACE,
                RenameMode::Exchange => RenameFlags::EXCHANGE,
            };
            return renameat_with(CWD, at(a), CWD, at(b), flags);
        }
    };
    result.map_err(|error: io::Error| Errno::from_io_error(&error).expect("the error has an errno"))
}

/// Returns true if the two results differ only because the `Vfs` checks the arguments in another
/// order than the host. In a mount the kernel makes these checks first.
fn is_order_of_checks(op: Op, mine: Result<(), Errno>, right: Result<(), Errno>) -> bool {
    let both = (mine.err(), right.err());
    match op {
        Op::Link(..) => both == (Some(Errno::PERM), Some(Errno::EXIST)),
        _ => false,
    }
}

fn collect_tree(root: &Path) -> BTreeMap<String, (u32, u64, u64)> {
    let (mut found, mut left) = (BTreeMap::new(), vec![root.to_path_buf()]);
    while let Some(dir) = left.pop() {
        for entry in fs::read_dir(dir).unwrap() {
            let path = entry.unwrap().path();
            let status = fs::symlink_metadata(&path).unwrap();
            if status.is_dir() {
                left.push(path.clone());
            }
            let short = path.strip_prefix(root).unwrap().to_str().unwrap().to_owned();
            let size = if status.is_dir() { 0 } else { status.size() };
            found.insert(short, (status.mode() & 0o170_000, status.nlink(), size));
        }
    }
    found
}

#[test]
fn random_calls_have_the_results_of_the_host() {
    let seed = Seed::choose();
    let _report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let mut errors: BTreeMap<i32, u32> = BTreeMap::new();
    for round in 0..300 {
        let (ours, theirs) = (TempDir::new(), TempDir::new());
        let vfs = over(ours.path());
        for step in 0..120 {
            let op = random_op(&mut rng);
            let (mine, right) = (through_namespace(&vfs, op), directly(theirs.path(), op));
            let is_same = mine == right || is_order_of_checks(op, mine, right);
            assert!(is_same, "round {round}, step {step}: {op:?}: {mine:?}, host: {right:?}");
            if let Err(error) = right {
                *errors.entry(error.raw_os_error()).or_default() += 1;
            }
            if rng.chance(1, 10) {
                vfs.prune();
            }
        }
        assert_eq!(collect_tree(ours.path()), collect_tree(theirs.path()), "round {round}");
    }
    assert!(errors.len() >= 6, "too few different errors occurred: {errors:?}");
}
