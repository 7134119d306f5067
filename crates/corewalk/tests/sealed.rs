//! A lookup stores nothing that another thread reads: proved, not argued (guarantee V.2).
//!
//! A namespace over tmpfs is built, 12 directories deep and 1000 names wide at the bottom, and every
//! name that will be asked for is looked up once, so that the cache knows it; of missing names it
//! keeps negative dentries. Then all of that memory, and the statics of the program, are made
//! read-only, and the missing names are looked up: the lookups that take no reference. One store to
//! anything shared would end the process.
//!
//! The controls are the smallest stores there are: a lookup that takes a reference on what it found,
//! and the creation of a name. Each must be killed, or the seal proves nothing.
//!
//! Source: `corewalk_testkit::seal`; Clements et al., "The scalable commutativity rule", 2013.
#![cfg(not(miri))]

use std::hint::black_box;

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Cred, Errno, InodeRef, Make, Name, Vfs, VfsOptions};
use corewalk_testkit::seal::{Seal, prove};

#[global_allocator]
static SEAL: Seal = Seal::new();

/// Directories on the way down.
const DEEP: usize = 12;
/// Names in the directory at the bottom, and as many that are missing from it.
const WIDE: usize = 1000;

/// A warm namespace, who asks, and for what. Names `f0` and so on are there, `missing0` and so on
/// are not.
struct Warm {
    vfs: &'static Vfs,
    creds: [Cred; 2],
    bottom: InodeRef<'static>,
    missing: Vec<String>,
}

fn make<'v>(vfs: &'v Vfs, dir: &InodeRef<'_>, name: &str, mode: u32) -> InodeRef<'v> {
    let name = Name::new(name.as_bytes()).unwrap();
    vfs.make(&Cred::root(), dir, name, Make::new(mode, 0, 0)).unwrap().0
}

/// Returns a namespace that knows all it will be asked for. It is leaked: it outlives the seal.
fn build() -> Warm {
    let fs = std::sync::Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let options = VfsOptions { hash_seed: Some(1), entries_max: 1 << 16, ..VfsOptions::default() };
    let vfs: &'static Vfs = Box::leak(Box::new(Vfs::new(fs, options).unwrap()));
    let mut bottom = vfs.root();
    for level in 0..DEEP {
        // Every other name is too long to lie in its dentry.
        let name = format!("level-{level}-{}", "x".repeat(level % 2 * 60));
        bottom = make(vfs, &bottom, &name, S_IFDIR | 0o755);
    }
    let creds = [Cred::root(), Cred::user(1000, 1000, &[])];
    let missing = (0..WIDE).map(|i| format!("missing{i}")).collect();
    let warm = Warm { vfs, creds, bottom, missing };
    for i in 0..WIDE {
        make(vfs, &warm.bottom, &format!("f{i}"), S_IFREG | 0o644);
    }
    look_missing_up(&warm);
    warm
}

fn look_missing_up(warm: &Warm) {
    for cred in &warm.creds {
        for name in &warm.missing {
            let found = warm.vfs.lookup(cred, &warm.bottom, Name::new(name.as_bytes()).unwrap());
            assert_eq!(black_box(found).err(), Some(Errno::NOENT));
        }
    }
}

#[test]
fn lookup_of_missing_names_stores_nothing_and_a_reference_is_caught() {
    prove(
        &SEAL,
        "lookup_of_missing_names_stores_nothing_and_a_reference_is_caught",
        build,
        look_missing_up,
        |warm| {
            let found = warm.vfs.lookup(&warm.creds[0], &warm.bottom, Name::new(b"f7").unwrap());
            black_box(found.is_ok());
        },
    );
}

#[test]
fn lookup_of_missing_names_stores_nothing_and_a_create_is_caught() {
    prove(
        &SEAL,
        "lookup_of_missing_names_stores_nothing_and_a_create_is_caught",
        build,
        look_missing_up,
        |warm| {
            make(warm.vfs, &warm.bottom, "new", S_IFREG | 0o644);
        },
    );
}
