//! Traps T4 to T32: the bugs that name caches have had in lookup, fill, rename and path translation.
//!
//! Each family has a control: the same check, run on steps that are wrong on purpose, must fail.
//! Traps that a storm or a history covers are cited there; those that cannot exist here are argued
//! in docs/races.md.

mod confined;
mod fills;
mod paths;
mod races;

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Racer};
use corewalk_testkit::rng::Seed;

/// Runs `change` so many times on one thread, and `read` on two others until it is done, at least a
/// thousand times each.
fn beside(changes: u64, change: impl Fn(u64) + Sync, read: impl Fn(&mut Racer) + Sync) {
    let done = AtomicBool::new(false);
    race::run(3, Seed::choose(), |mut racer| {
        if racer.thread == 0 {
            let _done = Done(&done);
            for i in 0..changes {
                change(i);
                // After each kind of change in turn the readers get a chance, also on a machine so busy
                // that all changes would be made within a few of this thread's turns.
                if i % 61 == 0 {
                    thread::yield_now();
                }
            }
            return;
        }
        let mut reads = 0;
        // ORDERING: Relaxed. A flag; nothing is published through it.
        while reads < 1000 || !done.load(Ordering::Relaxed) {
            read(&mut racer);
            reads += 1;
        }
    });
}

/// Ends the readers, also when the changes fail.
struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. As above.
        self.0.store(true, Ordering::Relaxed);
    }
}
