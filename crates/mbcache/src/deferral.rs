//! Decides when a changed content is de-duplicated: immediately, or at the end of the epoch
//! together with other contents.
//!
//! De-duplicating a content takes a hash, a search for an equal content, a comparison, and updates
//! of two user counts. That work is wasted if the content is soon replaced.
//!
//! A store divides its time into *epochs*, such as transactions. The first change of an object
//! (such as a file) in an epoch is de-duplicated immediately. A second change in the same epoch is
//! de-duplicated at the end of the epoch.
//!
//! Until the epoch ends, the content of an object whose de-duplication waits is private: the store
//! changes it in place and does not share it. Private contents take memory, so the store sets a
//! maximum number of waiting objects. While that many wait, other changes are de-duplicated
//! immediately.
//!
//! # Guarantees
//! - D.1: at most the given number of objects wait for de-duplication, plus one per thread that
//!   calls [`Deferral::defers`] at the same time.
//! - D.2: exactly one call of [`Deferral::share`] de-duplicates each pushed object. After `share`
//!   returns, all objects that were pushed before the call are de-duplicated.
//!
//! # Locks
//! `share` takes the mutex `turn` before every lock that its argument `handle` takes. No other lock
//! is taken under the mutex of the queue.

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

/// The change of an object that [`Deferral::defers`] decides about. It says whether the object has
/// already changed in the current epoch (such as a transaction), and whether it already waits.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object has not changed in this epoch before.
    First,
    /// The object has changed in this epoch before.
    Again,
    /// The object waits already.
    Waiting,
}

/// The queue of objects (such as files) that are de-duplicated when the current epoch, such as a
/// transaction, ends.
///
/// # Examples
///
/// ```
/// use corewalk_mbcache::{Change, Deferral};
///
/// let deferral = Deferral::new(512);
/// assert!(!deferral.defers(Change::First), "de-duplicate it at once");
/// assert!(deferral.defers(Change::Again));
/// deferral.push("file 7");
/// assert_eq!(deferral.len(), 1);
/// // The epoch ends.
/// deferral.share(|files| assert_eq!(files, ["file 7"]));
/// assert!(deferral.is_empty());
/// ```
#[derive(Debug)]
pub struct Deferral<T> {
    /// Held while `share` runs, so that calls of `share` run one after the other. Protects no data.
    turn: Mutex<()>,
    /// The objects that wait for de-duplication. Protected by its own mutex.
    queue: Mutex<Vec<T>>,
    len: AtomicU64,
    max: u64,
}

impl<T> Deferral<T> {
    /// Returns an empty queue for at most `max` objects.
    #[must_use]
    pub fn new(max: u64) -> Self {
        let (turn, queue) = (Mutex::new(()), Mutex::new(Vec::new()));
        Deferral { turn, queue, len: AtomicU64::new(0), max }
    }

    /// Returns true if the de-duplication of a changed content must wait for the end of the current
    /// epoch (such as a transaction). The caller then keeps the content private until the epoch
    /// ends. It also adds the object to the queue by [`Deferral::push`], unless the object is
    /// already there.
    #[must_use]
    pub fn defers(&self, change: Change) -> bool {
        match change {
            Change::First => false,
            Change::Again => self.len() < self.max,
            Change::Waiting => true,
        }
    }

    /// Adds an object that does not wait yet.
    pub fn push(&self, object: T) {
        // ORDERING: Relaxed. The mutex protects the queue, and `len` is a hint. If a caller needs
        // the exact length, the lock of the pushed object orders its load after this addition.
        self.len.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().push(object);
    }

    /// Returns the number of objects that wait.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        // ORDERING: Relaxed. The value is a hint, as in `push`.
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if no object waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Passes all queued objects to `handle`, which de-duplicates them. The store calls `share` at
    /// the end of an epoch (such as a transaction). If another thread is running `share`, this call
    /// waits for it. The caller holds no lock that `handle` takes.
    ///
    /// [`Deferral::len`] counts the objects until `handle` has returned, because their
    /// de-duplication may free space. So a thread that lacks space can call `share` and retry if
    /// `len` is not 0.
    pub fn share(&self, handle: impl FnOnce(Vec<T>)) {
        if self.is_empty() {
            return;
        }
        let _turn = self.turn.lock();
        let objects = std::mem::take(&mut *self.queue.lock());
        let count = objects.len() as u64;
        handle(objects);
        // ORDERING: Relaxed. The value is a hint, as in `push`.
        self.len.fetch_sub(count, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use corewalk_base::primitives::thread;

    use super::*;

    #[test]
    fn second_change_in_an_epoch_waits_up_to_the_limit() {
        const MAX: u64 = 20;
        let deferral = Deferral::new(MAX);
        for object in 0..MAX {
            assert!(!deferral.defers(Change::First));
            assert!(deferral.defers(Change::Again), "{object}");
            deferral.push(object);
        }
        // Guarantee D.1: a full queue takes no further object.
        assert!(!deferral.defers(Change::Again));
        assert!(deferral.defers(Change::Waiting));
        deferral.share(|objects| assert_eq!(objects, Vec::from_iter(0..MAX)));
        assert!(deferral.defers(Change::Again));
    }

    /// `len` must count an object until `share` has handled it, because the de-duplication may free
    /// space. Otherwise a thread without space would give up too early.
    #[test]
    fn objects_wait_until_they_are_handled() {
        let deferral = Deferral::new(9);
        deferral.push(1);
        deferral.share(|_| {
            assert_eq!(deferral.len(), 1);
            deferral.push(2);
        });
        assert_eq!(deferral.len(), 1, "an object that came meanwhile");
        deferral.share(|objects| assert_eq!(objects, [2]));
        assert!(deferral.is_empty());
    }

    /// Guarantee D.2: a second call of `share` waits for the first. Otherwise a commit after the
    /// second call could lack the first call's changes.
    #[test]
    fn share_waits_for_the_handler_of_another_thread() {
        let (has_begun, is_done) = (Mutex::new(false), Mutex::new(false));
        let deferral = Deferral::new(9);
        deferral.push(1);
        thread::scope(|scope| {
            deferral.share(|_| {
                scope.spawn(|| {
                    *has_begun.lock() = true;
                    deferral.share(|objects| assert_eq!(objects, []));
                    assert!(*is_done.lock(), "the object is not handled");
                });
                while !*has_begun.lock() {
                    thread::yield_now();
                }
                (0..100).for_each(|_| thread::yield_now());
                *is_done.lock() = true;
            });
        });
        assert!(deferral.is_empty());
    }
}
