//! Tests of back ends that sleep, call the namespace, reuse inode numbers, or are changed by other
//! programs.

use std::cell::Cell;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock, Weak};
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileKind, FileSystem, Make, Node, Removal, RenameMode, Vfs, VfsOptions,
};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::Seed;

use super::cpu_time;
use super::recycled::Recycled;
use crate::backends::{Call, HookedTmpfs};
use crate::fixtures::{name, over, remove, tree, walk};
use crate::storms::Leaving;

const SLEEP: Duration = Duration::from_millis(1500);
/// Maximum CPU time of a waiting thread: 1/100 of the time for which it waits.
const WAITING_MAX: Duration = Duration::from_millis(15);

#[derive(Default)]
struct Nap {
    begun: AtomicBool,
    ended: AtomicBool,
}

impl Nap {
    fn sleep(&self) {
        // ORDERING: Relaxed. Flags of a test; nothing is published through them.
        self.begun.store(true, Ordering::Relaxed);
        thread::sleep(SLEEP);
        // ORDERING: Relaxed. As above.
        self.ended.store(true, Ordering::Relaxed);
    }

    fn wait_for_begin(&self) {
        // ORDERING: Relaxed. As above.
        while !self.begun.load(Ordering::Relaxed) {
            thread::yield_now();
        }
    }

    fn has_ended(&self) -> bool {
        // ORDERING: Relaxed. As above.
        self.ended.load(Ordering::Relaxed)
    }
}

fn be_busy(vfs: &Vfs) {
    for i in 0..500 {
        let (a, b) = (format!("busy{i}"), format!("done{i}"));
        tree(vfs, &[&a]);
        crate::fixtures::rename(vfs, &a, &b, RenameMode::Replace).unwrap();
        assert!(walk(vfs, &b).is_ok());
        remove(vfs, &b, Removal::Unlink).unwrap();
    }
}

/// While a lookup sleeps in the back end, threads that wait for the same name must use no CPU time.
/// Threads with other names must not wait. Trap T47 in `traps.md`.
#[test]
fn sleeping_loader_costs_waiters_no_cpu_and_others_no_time() {
    let _watchdog = Watchdog::start("sleeping loader", Duration::from_secs(60));
    let nap = Arc::new(Nap::default());
    let loading = Arc::clone(&nap);
    let vfs = over(HookedTmpfs::new(move |_, call| {
        if call == Call::Lookup(b"slow") {
            loading.sleep();
        }
        Ok(())
    }));
    race::run(5, Seed::choose(), |racer| {
        if racer.thread > 0 {
            nap.wait_for_begin();
        }
        if racer.thread == 4 {
            be_busy(&vfs);
            assert!(!nap.has_ended(), "other threads had to wait");
            return;
        }
        let (time, found) = cpu_time(|| walk(&vfs, "slow").err());
        assert_eq!(found, Some(Errno::NOENT));
        assert!(nap.has_ended());
        assert!(time < WAITING_MAX, "a waiter used {time:?} of CPU time");
    });
    assert_eq!(vfs.stats().misses, 1, "a name has more than one loader");
}

/// A `forget` that sleeps must delay no other thread. Trap T47 in `traps.md`.
#[test]
fn sleeping_forget_delays_no_thread() {
    let _watchdog = Watchdog::start("sleeping finaliser", Duration::from_secs(60));
    let nap = Arc::new(Nap::default());
    let dying = Arc::new(AtomicU64::new(0));
    let (finalising, victim) = (Arc::clone(&nap), Arc::clone(&dying));
    let vfs = over(HookedTmpfs::new(move |_, call| {
        // ORDERING: Relaxed. The number was stored before the threads were started.
        if call == Call::Forget(victim.load(Ordering::Relaxed)) {
            finalising.sleep();
        }
        Ok(())
    }));
    tree(&vfs, &["f"]);
    // ORDERING: Relaxed. As above.
    dying.store(walk(&vfs, "f").unwrap().ino(), Ordering::Relaxed);
    race::run(2, Seed::choose(), |racer| {
        if racer.thread == 0 {
            remove(&vfs, "f", Removal::Unlink).unwrap();
            return;
        }
        nap.wait_for_begin();
        tree(&vfs, &["g"]);
        be_busy(&vfs);
        assert!(!nap.has_ended(), "other threads had to wait");
    });
    assert!(nap.has_ended());
}

thread_local! {
    static IS_FORGETTING: Cell<bool> = const { Cell::new(false) };
}

const CALLS: u64 = 10_000;

/// A back end may use other names of the namespace in `forget`, whichever operation dropped the
/// last reference. That operation may be remove, rename over a file, the drop of an `InodeRef`, or
/// reclaim. Trap T50 in `traps.md`.
#[test]
fn forget_may_call_back_into_the_namespace() {
    let _watchdog = Watchdog::start("forget that calls back", Duration::from_secs(120));
    let namespace: Arc<OnceLock<Weak<Vfs>>> = Arc::default();
    let (calls, upwards) = (Arc::new(AtomicU64::new(0)), Arc::clone(&namespace));
    let counted = Arc::clone(&calls);
    let vfs = over(HookedTmpfs::new(move |_, call| {
        let Call::Forget(ino) = call else { return Ok(()) };
        let Some(vfs) = upwards.get().and_then(Weak::upgrade) else { return Ok(()) };
        // At each `forget`, this hook makes a file and removes it again. The removal may cause
        // another `forget`, so bound the recursion.
        // ORDERING: Relaxed. The counter is a statistic, and publishes no other memory.
        if counted.load(Ordering::Relaxed) >= CALLS || IS_FORGETTING.replace(true) {
            return Ok(());
        }
        let own = format!("forgotten{ino}");
        tree(&vfs, &[&own]);
        assert!(walk(&vfs, &own).is_ok());
        vfs.invalidate_dir(&vfs.root()).unwrap();
        remove(&vfs, &own, Removal::Unlink).unwrap();
        IS_FORGETTING.set(false);
        // ORDERING: Relaxed. Statistic.
        counted.fetch_add(1, Ordering::Relaxed);
        Ok(())
    }));
    namespace.set(Arc::downgrade(&vfs)).unwrap();
    race::run(3, Seed::choose(), |racer| {
        for i in 0..3000 {
            let (a, b) = (format!("a{}", racer.thread), format!("b{}", racer.thread));
            tree(&vfs, &[&a, &b]);
            let held = walk(&vfs, &b).unwrap();
            crate::fixtures::rename(&vfs, &a, &b, RenameMode::Replace).unwrap();
            drop(held);
            if i % 8 == 0 {
                vfs.prune();
            }
            remove(&vfs, &b, Removal::Unlink).unwrap();
        }
    });
    // ORDERING: Relaxed. All threads have been joined.
    assert!(calls.load(Ordering::Relaxed) >= CALLS);
}

/// A name is removed and made again, and the back end reuses the inode number. A held inode must
/// stay the same file, and a number must lead to an existing file. Trap T55 in `traps.md`.
#[test]
fn handle_stays_valid_when_its_number_is_reused() {
    let _watchdog = Watchdog::start("reused numbers", Duration::from_secs(120));
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(1 << 16);
    let fs = HookedTmpfs::over(Tmpfs::new(TmpfsOptions::default()), Recycled::default());
    let vfs = Vfs::new(Arc::new(fs), options).unwrap();
    let cred = Cred::root();
    let make = |tag| {
        let what = Make::new(S_IFREG | 0o644, tag, 0);
        vfs.make(&cred, &vfs.root(), name("f"), what).map(|(_, attr)| attr)
    };
    make(1).unwrap();
    let meanings: Mutex<HashMap<(u64, u64), u32>> = Mutex::default();
    let means = |ino, generation, tag| {
        assert_eq!(*meanings.lock().entry((ino, generation)).or_insert(tag), tag);
    };
    let makers = AtomicU64::new(2);
    race::run(4, Seed::choose(), |racer| {
        if racer.thread < 2 {
            let _leaving = Leaving(&makers);
            let mut tag = 2 + racer.thread as u32;
            for _ in 0..5_000 {
                let _ = vfs.remove(&cred, &vfs.root(), name("f"), Removal::Unlink);
                if let Ok(attr) = make(tag) {
                    means(attr.ino, attr.generation, tag);
                }
                tag += 2;
            }
            return;
        }
        // ORDERING: Relaxed. A count; nothing is published through it.
        while makers.load(Ordering::Relaxed) > 0 {
            let Ok(held) = vfs.lookup(&cred, &vfs.root(), name("f")) else { continue };
            let (ino, generation) = (held.ino(), held.generation());
            let tag = vfs.getattr(&held).unwrap().uid;
            let again = vfs.inode(ino).unwrap();
            for _ in 0..3 {
                let attr = vfs.getattr(&held).unwrap();
                assert_eq!((attr.ino, attr.generation, attr.uid), (ino, generation, tag));
            }
            assert_eq!(again.generation(), generation, "a held number was reused");
            means(ino, generation, tag);
        }
    });
    let mut numbers: HashMap<u64, u32> = HashMap::new();
    for (ino, _) in meanings.lock().keys() {
        *numbers.entry(*ino).or_default() += 1;
    }
    assert!(numbers.values().any(|&times| times > 1), "no number was reused: {numbers:?}");
}

fn replace_underneath(fs: &Tmpfs, tag: u32) {
    let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
    let old = fs.lookup(root, name("f")).unwrap();
    fs.remove(root, name("f"), Node::detached(old.ino, FileKind::Regular)).unwrap();
    fs.make(root, name("f"), &Make::new(S_IFREG | 0o644, tag, 0)).unwrap();
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Notice {
    None,
    Name,
    Directory,
}

fn owner_after_overtaken_fill(notice: Notice) -> u32 {
    let namespace: Arc<OnceLock<Weak<Vfs>>> = Arc::default();
    let (upwards, is_armed) = (Arc::clone(&namespace), AtomicBool::new(true));
    let fs = HookedTmpfs::new(move |fs, call| {
        // ORDERING: Relaxed. One thread.
        if call == Call::LookupDone(b"f") && is_armed.swap(false, Ordering::Relaxed) {
            let vfs = upwards.get().and_then(Weak::upgrade).unwrap();
            replace_underneath(fs, 2);
            match notice {
                Notice::None => {}
                Notice::Name => vfs.invalidate(&vfs.root(), name("f"))?,
                Notice::Directory => vfs.invalidate_dir(&vfs.root())?,
            }
        }
        Ok(())
    });
    let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
    fs.inner.make(root, name("f"), &Make::new(S_IFREG | 0o644, 1, 0)).unwrap();
    let vfs = over(fs);
    namespace.set(Arc::downgrade(&vfs)).unwrap();
    let overtaken = walk(&vfs, "f").unwrap();
    let second = walk(&vfs, "f").unwrap();
    let owner = vfs.getattr(&second).unwrap().uid;
    drop(overtaken);
    let refused = u64::from(notice != Notice::None);
    assert_eq!(vfs.stats().refused_fills, refused);
    owner
}

/// An answer of the back end must not be cached if its name was invalidated during the lookup.
/// Traps P12 and T25 in `traps.md`.
#[test]
fn fill_overtaken_by_an_invalidation_is_not_cached() {
    assert_eq!(owner_after_overtaken_fill(Notice::Name), 2);
    assert_eq!(owner_after_overtaken_fill(Notice::Directory), 2);
}

/// Control (a variant with the bug must fail): the name is not invalidated, so the cache keeps the
/// old answer.
#[test]
fn control_fill_without_an_invalidation_stays_wrong() {
    assert_eq!(owner_after_overtaken_fill(Notice::None), 1);
}

/// After a change in the back end and an invalidation, the next lookup must see the change. Earlier
/// lookups, however many, must not put their old answer into the cache. Trap P12 in `traps.md`.
#[test]
fn announced_change_is_seen_by_the_next_lookup() {
    let _watchdog = Watchdog::start("announced changes", Duration::from_secs(120));
    let fs = Arc::new(HookedTmpfs::new(|_, call| {
        if call == Call::LookupDone(b"f") {
            thread::yield_now();
        }
        Ok(())
    }));
    let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
    fs.inner.make(root, name("f"), &Make::new(S_IFREG | 0o644, 0, 0)).unwrap();
    let options = VfsOptions::default().with_hash_seed(1).with_entries_max(1 << 16);
    let vfs = Vfs::new(Arc::clone(&fs) as Arc<dyn FileSystem>, options).unwrap();
    let done = AtomicBool::new(false);
    race::run(3, Seed::choose(), |mut racer| {
        if racer.thread > 0 {
            // ORDERING: Relaxed. A flag; nothing is published through it.
            while !done.load(Ordering::Relaxed) {
                // `ENOENT` is right between the removal and the new creation.
                if let Err(error) = walk(&vfs, "f") {
                    assert_eq!(error, Errno::NOENT);
                }
            }
            return;
        }
        for tag in 1..=10_000 {
            replace_underneath(&fs.inner, tag);
            if racer.rng.chance(1, 2) {
                vfs.invalidate(&vfs.root(), name("f")).unwrap();
            } else {
                vfs.invalidate_dir(&vfs.root()).unwrap();
            }
            let now = fs.inner.lookup(root, name("f")).unwrap().ino;
            assert_eq!(walk(&vfs, "f").map(|f| f.ino()), Ok(now), "change {tag}");
        }
        // ORDERING: Relaxed. As above.
        done.store(true, Ordering::Relaxed);
    });
}
