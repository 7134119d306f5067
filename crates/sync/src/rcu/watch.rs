//! Who is inside a read section, and since when.
//!
//! A watchdog must be able to say "a section has been open for ten seconds" without making every
//! section read a clock, which costs more than the section. Each thread has a record with one
//! word that it bumps when its outermost section begins and ends, so the word is odd inside. The
//! watchdog scans the records: an odd word that it has met before is the same section, and as old
//! as that first meeting. Readers store to a line of their own and load nothing.
//!
//! # Guarantees
//!
//! - W.1: an age is never too large. It is too small by at most the time between two scans.
//! - W.2: a thread that ends takes its record with it.
//!
//! # Locks
//!
//! `REGISTRY`, a leaf: taken by a scan, by a thread's first section and by its end. It is a plain
//! `parking_lot` mutex, for it is a static and no part of any protocol.
//!
//! # What it refuses
//!
//! Names or stack traces of readers; a thread whose thread-local storage is gone is not watched.
//!
//! Source: the idea of the stall detector in Linux `kernel/rcu/tree_stall.h`.

use crate::{
    CachePadded,
    primitives::{
        Arc,
        unmodelled::{AtomicU64, Ordering},
    },
};
use parking_lot::Mutex;
use std::{
    cell::Cell,
    time::{Duration, Instant},
};

/// Number of outermost sections begun and ended by a thread; odd inside.
type Record = CachePadded<AtomicU64>;

/// A thread as the watchdog knows it.
struct Watch {
    record: Arc<Record>,
    /// The word met in the last scan.
    met: u64,
    /// When it was met first.
    met_at: Instant,
}

/// How long a thread waits for the registry, which is for diagnosis only: in the child of a fork it may have been
/// copied locked, and then nobody lets go of it.
const PATIENCE: Duration = Duration::from_millis(500);

static REGISTRY: Mutex<Vec<Watch>> = Mutex::new(Vec::new());

/// A thread's own side.
struct Reader {
    record: Arc<Record>,
    depth: Cell<u32>,
    defers: Cell<u32>,
}

thread_local! {
    static READER: Reader = Reader::register();
}

/// An open section that is counted in the thread's record.
pub(super) struct Watched(());

#[inline]
pub(super) fn enter() -> Watched {
    with_reader(|reader| {
        let depth = reader.depth.get();
        reader.depth.set(depth + 1);
        if depth == 0 {
            reader.bump();
        }
    });
    Watched(())
}

/// Returns true if this thread is inside a section.
pub(super) fn is_inside() -> bool {
    with_reader(|reader| reader.depth.get() != 0).unwrap_or(false)
}

/// Counts a deferral of this thread; returns true for every `n`th.
pub(super) fn is_nth_defer(n: u32) -> bool {
    with_reader(|reader| {
        let defers = reader.defers.get().wrapping_add(1);
        reader.defers.set(defers);
        defers.is_multiple_of(n)
    })
    .unwrap_or(true)
}

/// Returns how many threads are inside a section, and the age of the oldest one that is known.
pub(super) fn scan() -> (u64, Duration) {
    let now = Instant::now();
    let mut readers = 0;
    let mut oldest = Duration::ZERO;
    for watch in REGISTRY.lock().iter_mut() {
        // ORDERING: Relaxed. A sample for people; nothing is read on the strength of it.
        let word = watch.record.load(Ordering::Relaxed);
        if word != watch.met {
            watch.met = word;
            watch.met_at = now;
        }
        if !word.is_multiple_of(2) {
            readers += 1;
            oldest = oldest.max(now - watch.met_at);
        }
    }
    (readers, oldest)
}

/// Runs `look` on the thread's record, unless the thread is past its end.
#[inline]
fn with_reader<R>(look: impl FnOnce(&Reader) -> R) -> Option<R> {
    READER.try_with(look).ok()
}

impl Reader {
    fn register() -> Self {
        let record = Arc::new(Record::new(AtomicU64::new(0)));
        let watch = Watch { record: Arc::clone(&record), met: 0, met_at: Instant::now() };
        if let Some(mut registry) = REGISTRY.try_lock_for(PATIENCE) {
            registry.push(watch);
        }
        Self { record, depth: Cell::new(0), defers: Cell::new(0) }
    }

    #[inline]
    fn bump(&self) {
        // ORDERING: Relaxed. Only this thread stores; the word orders nothing.
        let word = self.record.load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.record.store(word.wrapping_add(1), Ordering::Relaxed);
    }
}

impl Drop for Reader {
    fn drop(&mut self) {
        if let Some(mut registry) = REGISTRY.try_lock_for(PATIENCE) {
            registry.retain(|watch| !Arc::ptr_eq(&watch.record, &self.record));
        }
    }
}

impl Drop for Watched {
    #[inline]
    fn drop(&mut self) {
        with_reader(|reader| {
            let depth = reader.depth.get().saturating_sub(1);
            reader.depth.set(depth);
            if depth == 0 {
                reader.bump();
            }
        });
    }
}

#[cfg(all(test, not(miri)))]
mod tests {
    use super::*;
    use crate::primitives::thread;
    use std::process::Command;

    /// Says that this process is the one in which nobody lets go of the registry.
    const LOCKED_ENV: &str = "COREWALK_SYNC_LOCKED_REGISTRY";

    /// As in the child of a fork that another thread of the parent had it for. In a process of its own, since other
    /// tests look at the registry too.
    #[test]
    fn thread_reads_though_the_registry_is_locked_for_ever() {
        if std::env::var_os(LOCKED_ENV).is_none() {
            let name = "rcu::watch::tests::thread_reads_though_the_registry_is_locked_for_ever";
            let mut again = Command::new(std::env::current_exe().unwrap());
            let output = again.args([name, "--exact"]).env(LOCKED_ENV, "1").output().unwrap();
            let said = String::from_utf8_lossy(&output.stdout);
            assert!(output.status.success() && said.contains("1 passed"), "{said}");
            return;
        }
        std::mem::forget(REGISTRY.lock());
        let reader = thread::spawn(|| {
            let _section = enter();
            is_inside()
        });
        // With the end of the thread, which takes its record out of the registry.
        let ended = thread::spawn(move || reader.join().unwrap());
        let end = Instant::now() + Duration::from_secs(120);
        while !ended.is_finished() {
            assert!(Instant::now() < end, "a thread waits for the registry");
            thread::yield_now();
        }
        assert!(ended.join().unwrap());
    }
}
