//! Tests of listings whose entries have attributes, and are entered in the cache (traps T25, P12 in
//! `traps.md`).

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::Tmpfs;
use corewalk::{
    Attr, Cred, Errno, FileKind, FileSystem as _, InodeRef, Listing, Make, May, Name, Node,
    Removal, RenameMode, SetAttr, Vfs,
};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_testkit::race::{self, Tally, Watchdog};
use corewalk_testkit::rng::{Rng, Seed};

use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, over, remove, rename, tree, walk};
use crate::storms::Leaving;

const NAMES: usize = 5;
const CHANGERS: usize = 2;
const CHANGES: usize = 20_000;

fn name_of(file: &[u8]) -> Name<'_> {
    Name::new(file).unwrap()
}

fn read(listing: &Listing<'_>) -> Vec<(Vec<u8>, Attr)> {
    let mut entries = vec![];
    let read = listing.read(0, &mut |entry| {
        let attr = entry.attr.expect("the back end reports attributes");
        entries.push((entry.name.as_bytes().to_vec(), attr));
        ControlFlow::Continue(())
    });
    // The directory may have been removed.
    assert!(matches!(read, Ok(()) | Err(Errno::NOENT | Errno::STALE)), "{read:?}");
    entries
}

fn ino(vfs: &Vfs, dir: &InodeRef<'_>, file: &str) -> Result<u64, Errno> {
    vfs.lookup(&Cred::root(), dir, name(file)).map(|found| found.ino())
}

#[test]
fn entry_with_attributes_is_found_without_a_call() {
    let lookups = Arc::new(AtomicU64::new(0));
    let counted = Arc::clone(&lookups);
    let vfs = over(HookedTmpfs::new(move |_, call| {
        let is_counted = matches!(call, Call::Lookup(_) | Call::Getattr(_));
        // ORDERING: Relaxed. One thread.
        counted.fetch_add(u64::from(is_counted), Ordering::Relaxed);
        Ok(())
    }));
    tree(&vfs, &["d/", "d/f", "d/e/", "d/e/g"]);
    vfs.prune();
    let d = walk(&vfs, "d").unwrap();
    // ORDERING: Relaxed. As above.
    let before = lookups.load(Ordering::Relaxed);
    let listing = vfs.listing(&d);
    for (file, attr) in read(&listing) {
        let found = listing.enter(name_of(&file), &attr).expect("nothing has changed");
        assert_eq!((found.inode.ino(), found.attr), (attr.ino, Some(attr)));
        assert_eq!(found.inode.path().unwrap(), [b"/d/", &file[..]].concat());
    }
    assert_eq!(walk(&vfs, "d/f").unwrap().kind(), FileKind::Regular);
    let e = walk(&vfs, "d/e").unwrap();
    // ORDERING: Relaxed. As above.
    assert_eq!(lookups.load(Ordering::Relaxed), before, "the back end was asked");
    drop((e, listing));
    assert_eq!(walk(&vfs, "d/e/g").unwrap().path().unwrap(), b"/d/e/g");
}

const CHANGES_OF_F: [fn(&Vfs); 8] = [
    |vfs| remove(vfs, "f", Removal::Unlink).unwrap(),
    |vfs| rename(vfs, "f", "h", RenameMode::NoReplace).unwrap(),
    |vfs| rename(vfs, "g", "f", RenameMode::Replace).unwrap(),
    |vfs| rename(vfs, "f", "g", RenameMode::Exchange).unwrap(),
    |vfs| {
        remove(vfs, "f", Removal::Unlink).unwrap();
        tree(vfs, &["f"]);
    },
    |vfs| vfs.invalidate(&vfs.root(), name("f")).unwrap(),
    |vfs| vfs.invalidate_dir(&vfs.root()).unwrap(),
    |vfs| vfs.invalidate_all(&mut |_, _| ()),
];

/// A listing's entry must not enter the cache if its name has changed since the listing read it.
/// Trap T25 in `traps.md`.
#[test]
fn entry_from_before_a_change_is_refused() {
    for change in CHANGES_OF_F {
        let vfs = over(HookedTmpfs::new(|_, _| Ok(())));
        tree(&vfs, &["f", "g"]);
        let root = vfs.root();
        let listing = vfs.listing(&root);
        let entries = read(&listing);
        change(&vfs);
        vfs.prune();
        for (file, attr) in entries {
            let is_entered = listing.enter(name_of(&file), &attr).is_some();
            assert!(!is_entered, "{} was brought back", file.escape_ascii());
        }
        assert_eq!(vfs.stats().inodes, 1, "an inode entered the cache");
    }
}

fn change_behind(vfs: &Vfs) {
    assert_eq!(ino(vfs, &vfs.root(), "trigger"), Err(Errno::NOENT));
}

fn over_changing(change: fn(&Tmpfs) -> Result<(), Errno>) -> Arc<Vfs> {
    let changed = AtomicU64::new(0);
    over(HookedTmpfs::new(move |fs, call| {
        // ORDERING: Relaxed. One thread.
        match call == Call::Lookup(b"trigger") && changed.swap(1, Ordering::Relaxed) == 0 {
            true => change(fs),
            false => Ok(()),
        }
    }))
}

fn directory(attr: Attr) -> Node<'static> {
    Node::detached(attr.ino, FileKind::Directory)
}

const TOLD_OF_F: [fn(&Vfs); 3] = [
    |vfs| vfs.invalidate(&vfs.root(), name("f")).unwrap(),
    |vfs| vfs.revalidate(&vfs.root(), name("f")).unwrap(),
    |vfs| {
        let found = vfs.lookup_fresh(&Cred::root(), &vfs.root(), name("f"));
        assert_eq!(found.map(|found| found.inode.ino()), Err(Errno::NOENT));
    },
];

/// A listing has read a file that another program then removes. After the namespace has learnt of
/// the removal, the listing must not bring the name back. That holds whether or not the name was
/// cached. Trap P12 in `traps.md`.
#[test]
fn entry_from_before_an_invalidation_is_refused() {
    for (tell, is_cached) in TOLD_OF_F.into_iter().flat_map(|tell| [(tell, true), (tell, false)]) {
        let vfs = over_changing(|fs| {
            let (root, f) = (directory(fs.root()?), name("f"));
            let ino = fs.lookup(root, f)?.ino;
            fs.remove(root, f, Node::detached(ino, FileKind::Regular))
        });
        tree(&vfs, &["f"]);
        if !is_cached {
            vfs.prune();
        }
        let root = vfs.root();
        let listing = vfs.listing(&root);
        let entries = read(&listing);
        change_behind(&vfs);
        tell(&vfs);
        vfs.prune();
        for (file, attr) in entries {
            assert!(listing.enter(name_of(&file), &attr).is_none(), "it was brought back");
        }
        assert_eq!(ino(&vfs, &root, "f"), Err(Errno::NOENT));
    }
}

/// After a listing has read a directory's entry, another program moves the directory, and a lookup
/// finds it in its new parent. The listing must not move it back. Trap P12 in `traps.md`.
#[test]
fn entry_from_before_a_move_behind_the_namespace_is_refused() {
    let vfs = over_changing(|fs| {
        let root = directory(fs.root()?);
        let (a, b) = (fs.lookup(root, name("a"))?, fs.lookup(root, name("b"))?);
        let (from, to) = ((directory(a), name("d")), (directory(b), name("d")));
        fs.rename(from, to, RenameMode::NoReplace)
    });
    tree(&vfs, &["a/", "a/d/", "b/"]);
    vfs.prune();
    let (a, b) = (walk(&vfs, "a").unwrap(), walk(&vfs, "b").unwrap());
    let listing = vfs.listing(&a);
    let entries = read(&listing);
    change_behind(&vfs);
    let d = vfs.lookup_fresh(&Cred::root(), &b, name("d")).unwrap().inode;
    assert_eq!(d.path().unwrap(), b"/b/d");
    let [(file, attr)]: [_; 1] = entries.try_into().expect("the directory has one entry");
    assert!(listing.enter(name_of(&file), &attr).is_none(), "it was moved back");
    assert_eq!(d.path().unwrap(), b"/b/d");
}

/// A listing has read the entry of a file, and then a chmod changes the mode of the file. The old
/// mode in the entry must not enter the cache. Trap T25 in `traps.md`.
#[test]
fn mode_from_before_a_chmod_is_not_used() {
    for is_cached in [true, false] {
        let vfs = over(HookedTmpfs::new(|_, _| Ok(())));
        tree(&vfs, &["f"]);
        let root = vfs.root();
        let listing = vfs.listing(&root);
        let entries = read(&listing);
        let f = vfs.lookup(&Cred::root(), &root, name("f")).unwrap();
        let chmod = SetAttr::default().with_mode(0o600);
        vfs.setattr(&Cred::root(), &f, &chmod).unwrap();
        drop(f);
        if !is_cached {
            vfs.prune();
        }
        let [(file, attr)]: [_; 1] = entries.try_into().expect("the root has one entry");
        assert_eq!(attr.mode & 0o777, 0o644);
        let found = listing.enter(name_of(&file), &attr).expect("no name has changed");
        let user = Cred::user(1000, 1000, &[]);
        assert_eq!(vfs.access(&user, &found.inode, May::READ), Err(Errno::ACCESS));
    }
}

/// Control (a variant with the bug must fail): entries that were read before a removal are entered
/// by a listing that began after it. So the removed name comes back.
#[test]
#[should_panic(expected = "a name was brought back")]
fn control_entry_of_an_older_listing_is_caught() {
    let vfs = over(HookedTmpfs::new(|_, _| Ok(())));
    tree(&vfs, &["f", "g"]);
    let root = vfs.root();
    let entries = read(&vfs.listing(&root));
    remove(&vfs, "f", Removal::Unlink).unwrap();
    vfs.prune();
    let listing = vfs.listing(&root);
    for (file, attr) in entries {
        drop(listing.enter(name_of(&file), &attr));
    }
    assert_eq!(ino(&vfs, &root, "f"), Err(Errno::NOENT), "a name was brought back");
}

struct Owned<'v> {
    vfs: &'v Vfs,
    dirs: [&'v InodeRef<'v>; 2],
    names: [String; NAMES],
    files: BTreeMap<(usize, usize), u64>,
}

impl Owned<'_> {
    fn place(&self, at: (usize, usize)) -> (&InodeRef<'_>, Name<'_>) {
        (self.dirs[at.0], name(&self.names[at.1]))
    }

    fn change(&mut self, rng: &mut Rng) {
        let (vfs, cred) = (self.vfs, Cred::root());
        let at = (rng.index(2), rng.index(NAMES));
        let to = (rng.index(2), rng.index(NAMES));
        let (dir, file) = self.place(at);
        match (rng.below(4), self.files.contains_key(&at)) {
            (0, _) => vfs.invalidate(dir, file).unwrap(),
            (_, false) => {
                let what = Make::new(S_IFREG | 0o644, 0, 0);
                let ino = vfs.make(&cred, dir, file, what).unwrap().0.ino();
                self.files.insert(at, ino);
            }
            (1, true) => {
                vfs.remove(&cred, dir, file, Removal::Unlink).unwrap();
                self.files.remove(&at);
            }
            (2, true) if self.files.contains_key(&to) => {
                vfs.rename(&cred, (dir, file), self.place(to), RenameMode::Exchange).unwrap();
                let (a, b) = (self.files[&at], self.files[&to]);
                self.files.extend([(at, b), (to, a)]);
            }
            (_, true) => {
                vfs.rename(&cred, (dir, file), self.place(to), RenameMode::Replace).unwrap();
                if at != to {
                    let ino = self.files.remove(&at).unwrap();
                    self.files.insert(to, ino);
                }
            }
        }
    }

    fn check(&self, at: (usize, usize)) {
        let (dir, file) = self.place(at);
        let found = self.vfs.lookup(&Cred::root(), dir, file).map(|found| found.ino());
        let expected = self.files.get(&at).copied().ok_or(Errno::NOENT);
        assert_eq!(found, expected, "{} was brought back or lost", file.as_bytes().escape_ascii());
    }
}

/// Several threads each make, move and remove names of their own in two directories. Each thread
/// must always find exactly the names that it has made. Meanwhile other threads list the
/// directories, enter the listed entries in the cache, and evict unused entries. Traps T25, T12 and
/// T13 in `traps.md`.
#[test]
fn storm_of_changes_beside_listings_brings_no_name_back() {
    let _watchdog = Watchdog::start("listings beside changes", Duration::from_secs(300));
    let vfs = over(HookedTmpfs::new(|_, _| Ok(())));
    tree(&vfs, &["a/", "b/"]);
    let (a, b) = (walk(&vfs, "a").unwrap(), walk(&vfs, "b").unwrap());
    let (left, tally) = (AtomicU64::new(CHANGERS as u64), Tally::new(["entered", "refused"]));
    let dirs = [&a, &b];
    race::run(CHANGERS + 2, Seed::choose(), |mut racer| {
        if racer.thread < CHANGERS {
            let _leaving = Leaving(&left);
            let names = std::array::from_fn(|at| format!("n{}-{at}", racer.thread));
            let mut owned = Owned { vfs: &vfs, dirs, names, files: BTreeMap::new() };
            for _ in 0..CHANGES {
                owned.change(&mut racer.rng);
                owned.check((racer.rng.index(2), racer.rng.index(NAMES)));
            }
            (0..2 * NAMES).for_each(|at| owned.check((at % 2, at / 2)));
            return;
        }
        // ORDERING: Relaxed. A flag that ends the listings.
        while left.load(Ordering::Relaxed) > 0 {
            let listing = vfs.listing(dirs[racer.rng.index(2)]);
            let entries = read(&listing);
            if racer.rng.chance(1, 2) {
                vfs.prune();
            }
            for (file, attr) in entries {
                match listing.enter(name_of(&file), &attr) {
                    Some(found) => {
                        assert_eq!(found.inode.ino(), attr.ino);
                        tally.hit("entered");
                    }
                    None => tally.hit("refused"),
                }
            }
        }
    });
    tally.assert_all_reached();
}
