//! A walk stores nothing in memory that another thread reads (guarantee V.2).
//!
//! The test builds a namespace over tmpfs, 12 directories deep and 1000 names wide, and looks each
//! name up once. Then it makes the memory of the namespace and the statics of the program
//! read-only, and resolves thousands of paths. One store to shared memory would end the process.
//!
//! Two control processes make the smallest possible stores: one takes a reference on the result of
//! a walk, and one makes a name. Their stores must kill them, otherwise the test proves nothing.
//!
//! Source: `corewalk_testkit::seal`; Clements et al., "The scalable commutativity rule", 2013.
#![cfg(not(miri))]

use std::hint::black_box;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, Errno, FsStruct, InodeRef, Make, Name, Vfs, VfsOptions, WalkFlags};
use corewalk_testkit::seal::{Seal, prove};

#[global_allocator]
static SEAL: Seal = Seal::new();

const DEEP: usize = 12;
const WIDE: usize = 1000;

struct Warm {
    vfs: &'static Vfs,
    creds: [Cred; 2],
    at: FsStruct<'static>,
    bottom: InodeRef<'static>,
    hits: Vec<Vec<u8>>,
    misses: Vec<Vec<u8>>,
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, name: &str, mode: u32) -> InodeRef<'v> {
    let name = Name::new(name.as_bytes()).unwrap();
    vfs.make(&Cred::root(), dir, name, Make::new(mode, 0, 0)).unwrap().0
}

/// The result is leaked, because `prove` makes its memory read-only for a while.
fn build() -> Warm {
    let fs = std::sync::Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(1 << 16);
    let vfs: &'static Vfs = Box::leak(Box::new(Vfs::new(fs, options).unwrap()));
    let (mut bottom, mut path) = (vfs.root(), String::new());
    for level in 0..DEEP {
        let name = format!("level-{level}-{}", "x".repeat(level % 2 * 60));
        bottom = make(vfs, &bottom, &name, S_IFDIR | 0o755);
        path = format!("{path}/{name}");
    }
    let mut warm = Warm {
        vfs,
        creds: [Cred::root(), Cred::user(1000, 1000, &[])],
        at: FsStruct { root: vfs.root_path(), cwd: vfs.root_path() },
        bottom: bottom.clone(),
        hits: vec![b"/".to_vec(), path.clone().into_bytes()],
        misses: Vec::new(),
    };
    for i in 0..WIDE {
        make(vfs, &bottom, &format!("f{i}"), S_IFREG | 0o644);
        warm.hits.push(format!("{path}/f{i}").into_bytes());
        warm.hits.push(format!("{path}/../../{}/./f{i}", tail(&path)).into_bytes());
        warm.misses.push(format!("{path}/missing-{i}").into_bytes());
    }
    resolve_all(&warm);
    warm
}

fn tail(path: &str) -> &str {
    let last = path.rfind('/').unwrap();
    &path[path[..last].rfind('/').unwrap() + 1..]
}

fn resolve_all(warm: &Warm) {
    for cred in &warm.creds {
        for path in &warm.hits {
            let found = warm.vfs.resolve_path(cred, &warm.at, path, WalkFlags::FOLLOW);
            assert!(black_box(found).is_ok());
        }
        for path in &warm.misses {
            let found = warm.vfs.resolve_path(cred, &warm.at, path, WalkFlags::FOLLOW);
            assert_eq!(black_box(found), Err(Errno::NOENT));
        }
    }
}

#[test]
fn walk_of_cached_names_stores_nothing_and_a_reference_is_caught() {
    prove(
        &SEAL,
        "walk_of_cached_names_stores_nothing_and_a_reference_is_caught",
        build,
        resolve_all,
        |warm| {
            let path = &warm.hits[2];
            black_box(warm.vfs.walk(&warm.creds[0], &warm.at, path, WalkFlags::FOLLOW).is_ok());
        },
    );
}

#[test]
fn walk_of_cached_names_stores_nothing_and_a_create_is_caught() {
    prove(
        &SEAL,
        "walk_of_cached_names_stores_nothing_and_a_create_is_caught",
        build,
        resolve_all,
        |warm| {
            make(warm.vfs, &warm.bottom, "new", S_IFREG | 0o644);
        },
    );
}
