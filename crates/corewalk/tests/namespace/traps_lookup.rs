//! Tests of bugs of other name caches in lookup, fill, rename and path translation (traps T4 to T32
//! in `traps.md`).
//!
//! Each group of tests has a control: with deliberately wrong steps, the same check must fail.
//! Other traps are tested in the modules `storms` and `histories`, or cannot occur
//! (docs/developing/races.md).

mod confined;
mod fills;
mod paths;
mod races;

use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use corewalk_testkit::race::{self, Racer};
use corewalk_testkit::rng::Seed;

fn beside(changes: u64, change: impl Fn(u64) + Sync, read: impl Fn(&mut Racer) + Sync) {
    let done = AtomicBool::new(false);
    race::run(3, Seed::choose(), |mut racer| {
        if racer.thread == 0 {
            let _done = Done(&done);
            for i in 0..changes {
                change(i);
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

struct Done<'a>(&'a AtomicBool);

impl Drop for Done<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. As above.
        self.0.store(true, Ordering::Relaxed);
    }
}
