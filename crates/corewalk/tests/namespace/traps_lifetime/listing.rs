//! Tests of directory listings while the directory changes.

use std::collections::HashMap;
use std::ops::ControlFlow;
use std::time::Duration;

use corewalk::attr::mode::S_IFREG;
use corewalk::{Cred, InodeRef, Make, Removal, Vfs};
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_testkit::race::{self, Watchdog};
use corewalk_testkit::rng::Seed;

use crate::fixtures::{name, new, tree, walk};

const STABLE: usize = 300;
const REPLY: usize = 7;

fn read_reply(
    vfs: &Vfs,
    dir: &InodeRef<'_>,
    cookie: u64,
    mut each: impl FnMut(&[u8]),
) -> Option<u64> {
    let (mut taken, mut next, mut is_full) = (0, cookie, false);
    vfs.readdir(dir, cookie, &mut |entry| {
        is_full = taken == REPLY;
        if is_full {
            return ControlFlow::Break(());
        }
        taken += 1;
        next = entry.cookie;
        each(entry.name.as_bytes());
        ControlFlow::Continue(())
    })
    .unwrap();
    is_full.then_some(next)
}

/// Minimum number of times that a reader lists the directory. It continues until other threads have
/// also made `CHANGES` changes.
const PASSES: u32 = 60;
const CHANGES: u64 = 100;

/// Maximum number of listings of a reader: ends the test if the changing threads get no CPU.
const PASSES_MAX: u32 = 20_000;

/// A listing of a directory must report each entry that exists throughout exactly once. Meanwhile
/// other threads make and remove names before and after the listing's position, and seek in the
/// directory. Trap T48 in `traps.md`.
#[test]
fn stable_entries_are_listed_exactly_once() {
    let _watchdog = Watchdog::start("stable entries", Duration::from_secs(300));
    let vfs = new();
    tree(&vfs, &["d/"]);
    let dir = walk(&vfs, "d").unwrap();
    // The temporary entries lie between the permanent ones.
    for i in 0..STABLE {
        tree(&vfs, &[&format!("d/stable{i}"), &format!("d/gone{i}")]);
    }
    let (done, changes) = (AtomicU64::new(0), AtomicU64::new(0));
    let cred = Cred::root();
    race::run(4, Seed::choose(), |mut racer| match racer.thread {
        0 | 1 => {
            for pass in 0..PASSES_MAX {
                // ORDERING: Relaxed. Statistic.
                if pass >= PASSES && changes.load(Ordering::Relaxed) > CHANGES {
                    break;
                }
                let mut seen: HashMap<Vec<u8>, u32> = HashMap::new();
                let mut at = Some(0);
                while let Some(cookie) = at {
                    at = read_reply(&vfs, &dir, cookie, |entry| {
                        *seen.entry(entry.to_vec()).or_default() += 1;
                    });
                }
                for i in 0..STABLE {
                    let stable = format!("stable{i}").into_bytes();
                    assert_eq!(seen.get(&stable), Some(&1), "stable{i}");
                }
            }
            // ORDERING: Relaxed. A count that stops the other threads.
            done.fetch_add(1, Ordering::Relaxed);
        }
        2 => {
            // ORDERING: Relaxed. As above.
            while done.load(Ordering::Relaxed) < 2 {
                let gone = format!("gone{}", racer.rng.index(STABLE));
                let what = Make::new(S_IFREG | 0o644, 0, 0);
                let _ = vfs.remove(&cred, &dir, name(&gone), Removal::Unlink);
                let _ = vfs.make(&cred, &dir, name(&gone), what);
                // ORDERING: Relaxed. Statistic.
                changes.fetch_add(1, Ordering::Relaxed);
            }
        }
        _ => {
            let mut known = vec![0];
            // ORDERING: Relaxed. As above.
            while done.load(Ordering::Relaxed) < 2 {
                let from = *racer.rng.pick(&known);
                known.extend(read_reply(&vfs, &dir, from, |_| {}));
                known.truncate(1000);
            }
        }
    });
    // ORDERING: Relaxed. All threads have been joined.
    assert!(changes.load(Ordering::Relaxed) > CHANGES, "too few changes");
}
