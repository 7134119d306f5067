//! Random schedules of programs that use a whole namespace. They are too large for loom, but so
//! small that random schedules run all pairs of steps of two threads in both orders.
//!
//! Shuttle runs only sequentially consistent schedules, so it finds bugs in the order of steps.
//! Bugs of weak memory orderings are loom's task.
//!
//! Each program runs under two schedulers: PCT, which has a known probability of finding a bug that
//! needs few preemptions, and a random one. A failure prints the seed for `COREWALK_SEED`, and the
//! schedule. Run with `RUSTFLAGS="--cfg corewalk_shuttle" cargo test -p corewalk --release --test
//! shuttle`.
#![cfg(corewalk_shuttle)]

#[path = "namespace/backends.rs"]
mod backends;
#[path = "schedules/check.rs"]
mod check;

use backends::{Call, Hook, HookedTmpfs};
use check::check;
use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Attr, Cred, DirEntry, Errno, FileKind, FileSystem, FsStruct, Make, Name, Node, Removal,
    RenameMode, SetAttr, Vfs, VfsOptions, WalkFlags,
};
use corewalk_base::primitives::{
    atomic::{AtomicU64, Ordering},
    thread,
    unmodelled::AtomicUsize,
};
use std::ops::ControlFlow;
use std::sync::{Arc, OnceLock, Weak};

fn chmod() -> SetAttr {
    SetAttr::default().with_mode(0o4711)
}

fn over(fs: Arc<dyn FileSystem>) -> Arc<Vfs> {
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(16);
    Vfs::new(fs, options).unwrap()
}

fn new() -> Arc<Vfs> {
    over(Arc::new(Tmpfs::new(TmpfsOptions::default())))
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn make(vfs: &Vfs, dir: Option<&str>, file: &str, mode: u32) -> u64 {
    let (root, cred) = (vfs.root(), Cred::root());
    let dir = dir.map_or(root.clone(), |dir| vfs.lookup(&cred, &root, name(dir)).unwrap());
    vfs.make(&cred, &dir, name(file), Make::new(mode | 0o755, 0, 0)).unwrap().0.ino()
}

fn lookup(vfs: &Vfs, file: &str) -> Result<u64, Errno> {
    vfs.lookup(&Cred::root(), &vfs.root(), name(file)).map(|found| found.ino())
}

fn walk(vfs: &Vfs, path: &[u8]) -> Result<u64, Errno> {
    let at = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
    vfs.resolve_path(&Cred::root(), &at, path, WalkFlags::FOLLOW).map(|found| found.ino)
}

fn rename(vfs: &Vfs, from: &str, to: &str, mode: RenameMode) {
    let root = vfs.root();
    vfs.rename(&Cred::root(), (&root, name(from)), (&root, name(to)), mode).unwrap();
}

type Body = Box<dyn FnOnce(&Vfs) + Send>;

fn run(vfs: &Arc<Vfs>, threads: Vec<Body>) {
    let threads: Vec<_> = threads
        .into_iter()
        .map(|body| {
            let vfs = Arc::clone(vfs);
            thread::spawn(move || body(&vfs))
        })
        .collect();
    for thread in threads {
        thread.join().unwrap();
    }
}

fn swap_against_walk(swap: fn(&Vfs)) {
    let vfs = new();
    let files = ["x", "y"].map(|dir| {
        make(&vfs, None, dir, S_IFDIR);
        make(&vfs, Some(dir), "f", S_IFREG)
    });
    let walker = move |path: &'static [u8]| -> Body {
        Box::new(move |vfs| {
            let found = walk(vfs, path);
            assert!(found.is_ok_and(|ino| files.contains(&ino)), "a name was not found: {found:?}");
        })
    };
    run(&vfs, vec![walker(b"/x/f"), Box::new(swap), walker(b"/y/f")]);
    assert_eq!([walk(&vfs, b"/y/f"), walk(&vfs, b"/x/f")], files.map(Ok));
}

/// While two directories are exchanged, a walk through either name must find a file. Traps T12 and
/// T13 in `traps.md`.
#[test]
fn walk_during_an_exchange_finds_both_names() {
    check(|| swap_against_walk(|vfs| rename(vfs, "x", "y", RenameMode::Exchange)));
}

/// Control (a variant with the bug must fail): the exchange is made by three renames. A reader can
/// miss a name in between.
#[test]
#[should_panic(expected = "a name was not found")]
fn control_exchange_in_three_steps_is_caught() {
    check(|| {
        swap_against_walk(|vfs| {
            rename(vfs, "x", "z", RenameMode::Replace);
            rename(vfs, "y", "x", RenameMode::Replace);
            rename(vfs, "z", "y", RenameMode::Replace);
        });
    });
}

fn replace_against_lookup(replace: fn(&Vfs)) {
    let vfs = new();
    let files = ["a", "b"].map(|file| make(&vfs, None, file, S_IFREG));
    run(
        &vfs,
        vec![
            Box::new(move |vfs| {
                let found = lookup(vfs, "b");
                assert!(found.is_ok_and(|ino| files.contains(&ino)), "no target: {found:?}");
            }),
            Box::new(replace),
            Box::new(move |vfs| {
                if let Ok(inode) = vfs.lookup(&Cred::root(), &vfs.root(), name("a")) {
                    assert_eq!(inode.ino(), files[0]);
                    let path = inode.path().unwrap();
                    assert!(path == b"/a" || path == b"/b", "{}", path.escape_ascii());
                }
            }),
        ],
    );
    assert_eq!([lookup(&vfs, "a"), lookup(&vfs, "b")], [Err(Errno::NOENT), Ok(files[0])]);
}

/// While a file is renamed over another, a lookup must always find the target name. Traps T12 and
/// T13 in `traps.md`.
#[test]
fn lookup_during_a_replacing_rename_finds_the_target() {
    check(|| replace_against_lookup(|vfs| rename(vfs, "a", "b", RenameMode::Replace)));
}

/// Control (a variant with the bug must fail): the target is removed before the rename. A reader
/// can miss the name in between.
#[test]
#[should_panic(expected = "no target")]
fn control_removal_before_a_rename_is_caught() {
    check(|| {
        replace_against_lookup(|vfs| {
            let root = vfs.root();
            vfs.remove(&Cred::root(), &root, name("b"), Removal::Unlink).unwrap();
            rename(vfs, "a", "b", RenameMode::Replace);
        });
    });
}

/// Of two concurrent moves of directories into each other, only one may succeed, and no thread may
/// wait for ever. Traps T26, T27 and P9 in `traps.md`.
#[test]
fn directories_moved_into_each_other_stay_a_tree() {
    static FIRST_WINS: AtomicUsize = AtomicUsize::new(0);
    static SECOND_WINS: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let vfs = new();
        for dir in ["x", "y"] {
            make(&vfs, None, dir, S_IFDIR);
        }
        let mover = |from: &'static str, to: &'static str, wins: &'static AtomicUsize| {
            let body = move |vfs: &Vfs| {
                let (root, cred) = (vfs.root(), Cred::root());
                let Ok(to) = vfs.lookup(&cred, &root, name(to)) else { return };
                let (from, to) = ((&root, name(from)), (&to, name(from)));
                match vfs.rename(&cred, from, to, RenameMode::Replace) {
                    // ORDERING: Relaxed. A count.
                    Ok(()) => drop(wins.fetch_add(1, Ordering::Relaxed)),
                    Err(error) => assert!([Errno::INVAL, Errno::NOENT].contains(&error)),
                }
            };
            Box::new(body) as Body
        };
        run(&vfs, vec![mover("x", "y", &FIRST_WINS), mover("y", "x", &SECOND_WINS)]);
        let ways = [walk(&vfs, b"/x/y"), walk(&vfs, b"/y/x")];
        assert_eq!(ways.iter().filter(|way| way.is_ok()).count(), 1, "a loop: {ways:?}");
    });
    // ORDERING: Relaxed. All schedules have ended.
    let wins = [&FIRST_WINS, &SECOND_WINS].map(|wins| wins.load(Ordering::Relaxed));
    assert!(wins.iter().all(|&wins| wins > 0), "not reached: {wins:?}");
}

fn forget_against_lookup(forget: fn(&Vfs, u64)) {
    let vfs = new();
    let start = vfs.stats();
    let ino = make(&vfs, None, "f", S_IFREG);
    let client = move |vfs: &Vfs| {
        for _ in 0..2 {
            match vfs.lookup(&Cred::root(), &vfs.root(), name("f")) {
                Ok(found) => {
                    assert_eq!(found.into_lookups(), ino);
                    assert_eq!(vfs.inode(ino).map(|inode| inode.ino()), Ok(ino), "P5: lost");
                    forget(vfs, ino);
                }
                Err(error) => assert_eq!(error, Errno::NOENT),
            }
        }
    };
    let remover = |vfs: &Vfs| {
        vfs.remove(&Cred::root(), &vfs.root(), name("f"), Removal::Unlink).unwrap();
        vfs.prune();
    };
    run(&vfs, vec![Box::new(client), Box::new(remover), Box::new(client)]);
    assert_eq!(vfs.inode(ino).err(), Some(Errno::STALE), "P5: a reference is left");
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.inodes, end.entries, end.negatives), (start.inodes, start.entries, 0));
}

/// After the client has forgotten all its lookups of an inode, no reference is left. No reference
/// of another operation is dropped. Trap P5 in `traps.md`.
#[test]
fn forget_during_lookup_and_removal_leaves_no_reference() {
    check(|| forget_against_lookup(|vfs, ino| assert!(vfs.forget(ino, 1))));
}

/// Control (a variant with the bug must fail): a client that has looked a file up looks it up again
/// by name. It calls `forget` only if the second lookup finds the file. After a removal, the
/// client's reference on the inode is never dropped.
#[test]
#[should_panic(expected = "P5: a reference is left")]
fn control_forget_by_name_is_caught() {
    check(|| {
        forget_against_lookup(|vfs, ino| {
            if lookup(vfs, "f").is_ok() {
                assert!(vfs.forget(ino, 1));
            }
        });
    });
}

fn reclaim_against_lookup(path: fn(&Vfs) -> Result<Vec<u8>, Errno>) {
    let vfs = new();
    make(&vfs, None, "d", S_IFDIR);
    let ino = make(&vfs, Some("d"), "f", S_IFREG);
    let reader = move |vfs: &Vfs| {
        assert_eq!(walk(vfs, b"/d/f"), Ok(ino), "T15: an existing file was missed");
        assert_eq!(path(vfs).as_deref(), Ok(&b"/d/f"[..]), "no path");
    };
    let reclaimer = |vfs: &Vfs| {
        vfs.prune();
    };
    run(&vfs, vec![Box::new(reader), Box::new(reclaimer), Box::new(reader), Box::new(reclaimer)]);
    vfs.prune();
    assert_eq!(vfs.stats().entries, 1, "an entry besides the root is left");
}

fn path_of_held(vfs: &Vfs) -> Result<Vec<u8>, Errno> {
    let at = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
    vfs.walk(&Cred::root(), &at, b"/d/f", WalkFlags::FOLLOW)?.inode().path()
}

/// A lookup of an existing file must find it, and a file with a reference must keep its path. Traps
/// T15 and T18 in `traps.md`.
#[test]
fn lookup_during_reclaim_finds_existing_files() {
    check(|| reclaim_against_lookup(path_of_held));
}

/// Control (a variant with the bug must fail): a thread drops its reference on an inode, and then
/// looks the inode up by its number. By then the inode may be evicted, and the test must catch
/// that.
#[test]
#[should_panic(expected = "no path")]
fn control_path_without_a_reference_is_caught() {
    check(|| {
        reclaim_against_lookup(|vfs| {
            let ino = walk(vfs, b"/d/f")?;
            vfs.inode(ino)?.path()
        });
    });
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Before {
    Nothing,
    AnotherFile,
}

fn invalidate_against_fill(before: Before, tell: fn(&Vfs)) {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let root = Node::detached(fs.root().unwrap().ino, corewalk::FileKind::Directory);
    let what = Make::new(S_IFREG | 0o644, 0, 0);
    if before == Before::AnotherFile {
        fs.make(root, name("f"), &what).unwrap();
    }
    let next = fs.make(root, name("g"), &what).unwrap().ino;
    let vfs = over(Arc::clone(&fs) as Arc<dyn FileSystem>);
    let reader = |vfs: &Vfs| {
        let _ = lookup(vfs, "f");
    };
    let changer = move |vfs: &Vfs| {
        fs.rename((root, name("g")), (root, name("f")), RenameMode::Replace).unwrap();
        tell(vfs);
    };
    run(&vfs, vec![Box::new(reader), Box::new(changer), Box::new(reader)]);
    assert_eq!(lookup(&vfs, "f"), Ok(next), "T25: a stale answer stayed");
}

/// After an invalidation of a name, an older answer of the back end for this name must not be
/// cached. Traps T25 and P12 in `traps.md`.
#[test]
fn fill_during_an_invalidation_of_the_name_is_not_stale() {
    let tell = |vfs: &Vfs| vfs.invalidate(&vfs.root(), name("f")).unwrap();
    check(move || invalidate_against_fill(Before::Nothing, tell));
    check(move || invalidate_against_fill(Before::AnotherFile, tell));
}

/// After an invalidation of a directory, an older answer of the back end for a name in it must not
/// be cached. Traps T25 and P12 in `traps.md`.
#[test]
fn fill_during_an_invalidation_of_the_directory_is_not_stale() {
    let tell = |vfs: &Vfs| vfs.invalidate_dir(&vfs.root()).unwrap();
    check(move || invalidate_against_fill(Before::Nothing, tell));
    check(move || invalidate_against_fill(Before::AnotherFile, tell));
}

/// Control (a variant with the bug must fail): the cache is not told of the change in the back end,
/// and keeps the stale answer.
#[test]
#[should_panic(expected = "T25: a stale answer stayed")]
fn control_change_without_invalidation_is_caught() {
    check(|| invalidate_against_fill(Before::Nothing, |_| ()));
}

/// A chmod beside a write must not be lost. Set-user-ID may remain only if the chmod came after the
/// write.
fn chmod_against_write(chmod: fn(&Vfs, &Tmpfs, u64)) -> u32 {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let vfs = over(Arc::clone(&fs) as Arc<dyn FileSystem>);
    let what = Make::new(S_IFREG | 0o4755, 0, 0);
    let ino = vfs.make(&Cred::root(), &vfs.root(), name("f"), what).unwrap().0.ino();
    let writer = |vfs: &Vfs| {
        let f = vfs.lookup(&Cred::root(), &vfs.root(), name("f")).unwrap();
        assert_eq!(vfs.write(&Cred::user(1, 1, &[]), &f, 0, 0, b"x"), Ok(1));
    };
    run(&vfs, vec![Box::new(writer), Box::new(move |vfs| chmod(vfs, &fs, ino))]);
    let f = vfs.lookup(&Cred::root(), &vfs.root(), name("f")).unwrap();
    let mode = vfs.getattr(&f).unwrap().mode & 0o7777;
    assert!([0o4711, 0o711].contains(&mode), "the chmod was lost: {mode:o}");
    mode
}

#[test]
fn chmod_during_a_write_that_clears_set_user_id_is_not_lost() {
    static FIRST: AtomicUsize = AtomicUsize::new(0);
    static LAST: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let mode = chmod_against_write(|vfs, _, _| {
            let f = vfs.lookup(&Cred::root(), &vfs.root(), name("f")).unwrap();
            vfs.setattr(&Cred::root(), &f, &chmod()).unwrap();
        });
        // ORDERING: Relaxed. Statistic.
        (if mode == 0o711 { &FIRST } else { &LAST }).fetch_add(1, Ordering::Relaxed);
    });
    // ORDERING: Relaxed. As above.
    let reached = [&FIRST, &LAST].map(|count| count.load(Ordering::Relaxed));
    assert!(reached.iter().all(|&count| count > 0), "an order was not reached: {reached:?}");
}

/// Control (a variant with the bug must fail): a chmod changes the back end without the attribute
/// lock. A concurrent write, which clears set-user-ID, then stores the old mode. So the chmod is
/// lost, and the test must catch that.
#[test]
#[should_panic(expected = "the chmod was lost")]
fn control_chmod_without_the_attribute_lock_is_caught() {
    check(|| {
        chmod_against_write(|vfs, fs, ino| {
            fs.setattr(Node::detached(ino, corewalk::FileKind::Regular), &chmod()).unwrap();
            let f = vfs.lookup(&Cred::root(), &vfs.root(), name("f")).unwrap();
            vfs.invalidate_attributes(&f);
        });
    });
}

#[derive(Clone, Copy)]
enum Hold {
    Path,
    Nothing,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Met {
    /// The walk found the directory below the mount.
    Below,
    /// The walk entered the mount, and umount failed.
    Busy,
    /// The walk entered and left the mount before umount.
    Left,
}

fn umount_against_walk(holds: Hold) -> Met {
    let vfs = new();
    make(&vfs, None, "m", S_IFDIR);
    fn place<'v>(vfs: &'v Vfs, path: &[u8]) -> Result<corewalk::PathRef<'v>, Errno> {
        let at = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
        vfs.walk(&Cred::root(), &at, path, WalkFlags::FOLLOW)
    }
    let mounted = Tmpfs::new(TmpfsOptions::default());
    let root = Node::detached(mounted.root().unwrap().ino, corewalk::FileKind::Directory);
    mounted.make(root, name("f"), &Make::new(0o644, 0, 0)).unwrap();
    vfs.mount(Arc::new(mounted), &place(&vfs, b"/m").unwrap()).unwrap();
    let (met, unmounted) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    let (got_in, gone) = (Arc::clone(&met), Arc::clone(&unmounted));
    let walker = move |vfs: &Vfs| {
        let held = match holds {
            Hold::Path => place(vfs, b"/m/f").map(Some),
            Hold::Nothing => walk(vfs, b"/m/f").map(|_| None),
        };
        if held.is_ok() {
            // ORDERING: SeqCst. The test compares the order of whole calls.
            assert_eq!(gone.load(Ordering::SeqCst), 0, "unmounted under a walker");
            // ORDERING: SeqCst. As above.
            got_in.store(1, Ordering::SeqCst);
        }
    };
    let done = Arc::clone(&unmounted);
    let unmounter = move |vfs: &Vfs| {
        if vfs.umount(place(vfs, b"/m").unwrap()).is_ok() {
            // ORDERING: SeqCst. As above.
            done.store(1, Ordering::SeqCst);
        }
    };
    run(&vfs, vec![Box::new(walker), Box::new(unmounter)]);
    // ORDERING: SeqCst. As above.
    match (met.load(Ordering::SeqCst), unmounted.load(Ordering::SeqCst)) {
        (0, 0) => panic!("neither the walk nor umount succeeded"),
        (0, _) => Met::Below,
        (_, 0) => Met::Busy,
        _ => Met::Left,
    }
}

#[test]
fn path_into_a_mount_and_its_umount_exclude_each_other() {
    static MET: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
    check(|| {
        // ORDERING: Relaxed. Statistic.
        MET[umount_against_walk(Hold::Path) as usize].fetch_add(1, Ordering::Relaxed);
    });
    // ORDERING: Relaxed. As above.
    let reached = MET.each_ref().map(|count| count.load(Ordering::Relaxed));
    assert!(reached.iter().all(|&count| count > 0), "below, busy, left: {reached:?}");
}

/// Control (a variant with the bug must fail): the walking thread does not keep its path, so the
/// file system can be unmounted under it.
#[test]
#[should_panic(expected = "unmounted under a walker")]
fn control_walk_without_references_is_caught() {
    check(|| {
        umount_against_walk(Hold::Nothing);
    });
}

/// A client that forgets a file without having looked it up must drop nothing. This holds even
/// while another client looks the file up by number and the name changes. Trap P5 in `traps.md`.
#[test]
fn wrong_forget_during_lookup_by_number_drops_nothing() {
    check(|| {
        let vfs = new();
        let f = make(&vfs, None, "f", S_IFREG);
        let looker = {
            let vfs = Arc::clone(&vfs);
            thread::spawn(move || {
                let found = vfs.lookup_by_ino(&Cred::root(), vfs.root().ino(), b"f");
                found.map(|found| found.inode.into_lookups())
            })
        };
        let forgetter = {
            let vfs = Arc::clone(&vfs);
            thread::spawn(move || vfs.forget(f, 1))
        };
        let root = vfs.root();
        vfs.rename(&Cred::root(), (&root, name("f")), (&root, name("g")), RenameMode::Replace)
            .unwrap();
        let found = looker.join().unwrap();
        let forgot = forgetter.join().unwrap();
        let is_held = found == Ok(f);
        assert!(!forgot || is_held, "a lookup was forgotten that no client had");
        assert_eq!(vfs.forget(f, 1), is_held && !forgot);
    });
}

fn read(vfs: &Vfs) -> Vec<(Vec<u8>, Attr)> {
    let mut entries = vec![];
    let mut take = |entry: DirEntry<'_>| {
        entries.push((entry.name.as_bytes().to_vec(), entry.attr.unwrap()));
        ControlFlow::Continue(())
    };
    vfs.readdir(&vfs.root(), 0, &mut take).unwrap();
    entries
}

fn list_against_changes(list: fn(&Vfs)) {
    let vfs = over(Arc::new(HookedTmpfs::new(|_: &Tmpfs, _| Ok(()))));
    let start = vfs.stats();
    make(&vfs, None, "f", S_IFREG);
    vfs.prune();
    let change = |vfs: &Vfs| {
        rename(vfs, "f", "g", RenameMode::Replace);
        vfs.remove(&Cred::root(), &vfs.root(), name("g"), Removal::Unlink).unwrap();
    };
    let other = |vfs: &Vfs| drop(make(vfs, None, "h", S_IFREG));
    run(&vfs, vec![Box::new(list), Box::new(change), Box::new(other)]);
    for gone in ["f", "g"] {
        assert_eq!(lookup(&vfs, gone), Err(Errno::NOENT), "a name was brought back");
    }
    assert!(lookup(&vfs, "h").is_ok());
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.inodes, end.entries, end.negatives), (start.inodes, start.entries, 0));
}

/// A listed entry must not bring its name back if the name has changed since. Trap T25 in
/// `traps.md`.
#[test]
fn listing_during_changes_brings_no_name_back() {
    check(|| {
        list_against_changes(|vfs| {
            let root = vfs.root();
            let listing = vfs.listing(&root);
            for (file, attr) in read(vfs) {
                drop(listing.enter(Name::new(&file).unwrap(), &attr));
            }
        });
    });
}

/// Control (a variant with the bug must fail): the entries are read before the listing is
/// registered with the cache. So the listing misses a change between the read and the registration.
#[test]
#[should_panic(expected = "a name was brought back")]
fn control_listing_that_begins_late_is_caught() {
    check(|| {
        list_against_changes(|vfs| {
            let (entries, root) = (read(vfs), vfs.root());
            let listing = vfs.listing(&root);
            for (file, attr) in entries {
                drop(listing.enter(Name::new(&file).unwrap(), &attr));
            }
        });
    });
}

/// A lookup in a removed directory must not find the files of the directory that has got its dentry
/// slot. Trap T55 in `traps.md`.
#[test]
fn lookup_in_a_removed_directory_finds_no_other_files() {
    check(|| {
        // The test needs a directory whose dentry is not in the slot of its inode. The slot of such
        // a dentry can be reused while the inode is held. These steps make one:
        // 1. The test renames `other` over `d`. Just before that, the back end moves the old `d` to
        //    `moved`. The cache does not notice the move, so it removes the dentry of the old `d`.
        //    The reference `first` keeps the slot of this dentry in use.
        // 2. A lookup of `moved` finds the old directory. The old dentry's slot, which is that of
        //    the inode, is still in use. So the new dentry gets another slot.
        let vfs = over(Arc::new(HookedTmpfs::new(|fs: &Tmpfs, call| {
            if call != Call::Rename(b"other") {
                return Ok(());
            }
            let root = Node::detached(fs.root()?.ino, FileKind::Directory);
            fs.rename((root, name("d")), (root, name("moved")), RenameMode::NoReplace)
        })));
        let (cred, root) = (Cred::root(), vfs.root());
        let (d, _) = (make(&vfs, None, "d", S_IFDIR), make(&vfs, None, "other", S_IFDIR));
        let place = |path| {
            let at = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
            vfs.walk(&cred, &at, path, WalkFlags::empty()).unwrap()
        };
        let first = place(b"/d");
        rename(&vfs, "other", "d", RenameMode::Replace);
        let held = vfs.lookup(&cred, &root, name("moved")).unwrap();
        assert_eq!(held.ino(), d);
        assert_ne!(first.id().0, place(b"/moved").id().0, "the dentry has the slot of the inode");
        drop(first);
        let looker = {
            let vfs = Arc::clone(&vfs);
            thread::spawn(move || {
                let d = vfs.inode(d).unwrap();
                let found = vfs.lookup(&Cred::root(), &d, name("x"));
                assert!(found.is_err(), "the lookup found x of another directory: {found:?}");
            })
        };
        vfs.remove(&cred, &root, name("moved"), Removal::Rmdir).unwrap();
        let e = vfs.make(&cred, &root, name("e"), Make::new(S_IFDIR | 0o755, 0, 0)).unwrap().0;
        vfs.make(&cred, &e, name("x"), Make::new(S_IFREG | 0o755, 0, 0)).unwrap();
        looker.join().unwrap();
        drop(held);
    });
}

fn mkdir_against_lookup(looks: u32, mkdir: fn(&Vfs) -> u64, meanwhile: fn(&Vfs)) {
    let vfs = new();
    let start = vfs.stats();
    let root = vfs.root().into_lookups();
    assert_eq!(lookup(&vfs, "d"), Err(Errno::NOENT));
    let made = Arc::new(AtomicU64::new(0));
    let maker: Body = {
        let made = Arc::clone(&made);
        // ORDERING: SeqCst. The store of `made` only records that the directory was made. It is not
        // part of the code under test.
        Box::new(move |vfs| made.store(mkdir(vfs), Ordering::SeqCst))
    };
    let looker = |look: fn(&Vfs, u64) -> Result<u64, Errno>| -> Body {
        let made = Arc::clone(&made);
        Box::new(move |vfs| {
            let mut last = Err(Errno::NOENT);
            for _ in 0..looks {
                // ORDERING: SeqCst. As above.
                let known = made.load(Ordering::SeqCst);
                let found = look(vfs, root);
                assert!(known == 0 || found == Ok(known), "not found: {found:?}");
                assert!(last.is_err() || found == last, "found no more: {found:?}");
                last = found;
            }
        })
    };
    let by_number = |vfs: &Vfs, root| {
        let ino = vfs.lookup_by_ino(&Cred::root(), root, b"d")?.inode.into_lookups();
        let path = vfs.path_of_ino(ino);
        assert!(vfs.forget(ino, 1));
        path.map(|_| ino)
    };
    let threads = [maker, looker(by_number), looker(|vfs, _| walk(vfs, b"/d"))];
    run(&vfs, threads.into_iter().chain([Box::new(meanwhile) as Body]).collect());
    assert!(vfs.forget(root, 1));
    vfs.remove(&Cred::root(), &vfs.root(), name("d"), Removal::Rmdir).unwrap();
    vfs.prune();
    let end = vfs.stats();
    assert_eq!((end.inodes, end.entries, end.negatives), (start.inodes, start.entries, 0));
    assert_eq!(end.removed, 0);
}

/// A directory is made under a name whose negative dentry is evicted at the same time, so its
/// dentry gets another slot. Once a lookup has found the directory, later lookups must find it too.
/// Traps T16 and T25 in `traps.md`.
#[test]
fn directory_made_under_a_missing_name_stays_found() {
    check(|| {
        mkdir_against_lookup(
            2,
            |vfs| make(vfs, None, "d", S_IFDIR),
            |vfs| {
                vfs.prune();
                vfs.invalidate(&vfs.root(), name("d")).unwrap();
            },
        );
    });
}

/// A directory is made under a name with a negative dentry, whose slot a new file takes at the same
/// time. Once a lookup has found the directory, later lookups must find it too. Traps T16 and T55
/// in `traps.md`.
#[test]
fn directory_stays_found_when_a_file_takes_the_slot() {
    check(|| {
        mkdir_against_lookup(
            2,
            |vfs| make(vfs, None, "d", S_IFDIR),
            |vfs| {
                let f = make(vfs, None, "f", S_IFREG);
                assert_eq!(lookup(vfs, "f"), Ok(f));
                vfs.remove(&Cred::root(), &vfs.root(), name("f"), Removal::Unlink).unwrap();
            },
        );
    });
}

/// Control (a variant with the bug must fail): the new directory is renamed away and back, so for a
/// moment its name is missing.
#[test]
#[should_panic(expected = "found no more")]
fn control_directory_without_a_name_for_a_moment_is_caught() {
    // Try several seeds, because some seeds have no schedule that fails.
    for _ in 0..10 {
        check(|| {
            mkdir_against_lookup(
                20,
                |vfs| {
                    // Pause for as long as a lookup takes. Otherwise few schedules would run a
                    // lookup between two renames.
                    let pause = || (0..20).for_each(|_| thread::yield_now());
                    let d = make(vfs, None, "d", S_IFDIR);
                    for _ in 0..3 {
                        pause();
                        rename(vfs, "d", "e", RenameMode::Replace);
                        pause();
                        rename(vfs, "e", "d", RenameMode::Replace);
                    }
                    d
                },
                |_| {},
            );
        });
    }
}

/// Shows directory `y` as another name of directory `x`.
struct Twice {
    numbers: [u64; 2],
}

impl Hook for Twice {
    fn at(&self, _: &Tmpfs, _: Call<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn outside(&self, attr: Attr) -> Attr {
        let [x, y] = self.numbers;
        attr.with_ino(if attr.ino == y { x } else { attr.ino })
    }
}

#[test]
fn directory_under_two_names_has_one_dentry() {
    check(|| {
        let fs = Tmpfs::new(TmpfsOptions::default());
        let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
        let make = |dir| fs.make(root, name(dir), &Make::new(S_IFDIR | 0o755, 0, 0)).unwrap().ino;
        let numbers = ["x", "y"].map(make);
        let vfs = over(Arc::new(HookedTmpfs::over(fs, Twice { numbers })));
        let look = |file: &'static str| -> Body {
            Box::new(move |vfs| assert_eq!(lookup(vfs, file), Ok(numbers[0])))
        };
        run(&vfs, vec![look("x"), look("y")]);
        let at = FsStruct { root: vfs.root_path(), cwd: vfs.root_path() };
        let slot = |path: &[u8]| {
            let found = vfs.resolve_path(&Cred::root(), &at, path, WalkFlags::empty());
            found.unwrap().dentry.0
        };
        assert_eq!(slot(b"/x"), slot(b"/y"), "two dentries of one directory");
    });
}

/// A report about a directory drops the last reference to a file that is removed meanwhile. Then
/// `forget` of the back end must run without `topology`, and may move directories. Trap T50.
#[test]
fn forget_during_a_report_can_move_directories() {
    static BY_REPORT: AtomicUsize = AtomicUsize::new(0);
    check(|| {
        let (of_hook, reporter) =
            (Arc::new(OnceLock::<Weak<Vfs>>::new()), Arc::new(OnceLock::new()));
        let (late, this) = (Arc::clone(&of_hook), Arc::clone(&reporter));
        let vfs = over(Arc::new(HookedTmpfs::new(move |_: &Tmpfs, call| {
            let vfs = late.get().and_then(Weak::upgrade);
            if let (Call::Forget(_), Some(vfs)) = (call, vfs) {
                let is_report = reporter.get() == Some(&thread::current().id());
                // ORDERING: Relaxed. Statistic.
                BY_REPORT.fetch_add(usize::from(is_report), Ordering::Relaxed);
                rename(&vfs, "x", "y", RenameMode::Exchange);
            }
            Ok(())
        })));
        let [d, ..] = ["d", "x", "y"].map(|dir| make(&vfs, None, dir, S_IFDIR));
        make(&vfs, Some("d"), "f", S_IFREG);
        of_hook.set(Arc::downgrade(&vfs)).unwrap();
        let report = move |vfs: &Vfs| {
            this.set(thread::current().id()).unwrap();
            // One report has few steps at which the removal must come in.
            for _ in 0..5 {
                vfs.invalidate_tree(&vfs.root(), name("d"), &mut |_, _| ()).unwrap();
            }
        };
        let remove = move |vfs: &Vfs| {
            // A lookup of the reported name would wait for `topology`.
            let d = vfs.inode(d).unwrap();
            vfs.remove(&Cred::root(), &d, name("f"), Removal::Unlink).unwrap();
        };
        run(&vfs, vec![Box::new(report), Box::new(remove)]);
    });
    // ORDERING: Relaxed. Statistic.
    assert!(BY_REPORT.load(Ordering::Relaxed) > 0);
}
