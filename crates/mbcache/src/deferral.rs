//! When a changed content is de-duplicated: at once, or together with others later.
//!
//! To de-duplicate a content takes a hash, a lookup, a comparison and two counts. That is wasted on
//! a content that is soon replaced. A store divides its time into *epochs*, such as transactions.
//! The first change of an object in an epoch is de-duplicated at once. A second change in the same
//! epoch waits until the epoch ends.
//!
//! An object that waits has a private content, which the store changes in place. Private contents
//! take memory, so the store gives a maximum of waiting objects. While that many objects wait,
//! changes of other objects are de-duplicated at once.
//!
//! # Guarantees
//! - D.1: at most the given number of objects wait, plus one per thread that calls
//!   [`Deferral::defers`] at the same time.
//! - D.2: each pushed object is handed to one call of [`Deferral::share`]. After `share` returns,
//!   every object that was pushed before the call has been handled.
//!
//! # Locks
//! The mutex `turn` comes before every lock that the handler of `share` takes. No other lock is
//! taken under the mutex of the queue.

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

/// Tells whether an object has changed before in the running epoch, or waits for the end of the
/// epoch.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// The object has not changed in this epoch before.
    First,
    /// The object has changed in this epoch before.
    Again,
    /// The object waits already.
    Waiting,
}

/// The queue of objects whose contents are de-duplicated when the epoch ends.
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
    /// Held while waiting objects are handled. Protects no data: it only makes the calls of `share`
    /// run one after the other.
    turn: Mutex<()>,
    /// The waiting objects. Protected by its mutex.
    queue: Mutex<Vec<T>>,
    /// Number of waiting objects, including those that a running `share` handles.
    len: AtomicU64,
    /// Maximum number of waiting objects. While that many wait, no further object begins to wait.
    max: u64,
}

impl<T> Deferral<T> {
    /// Returns an empty queue for at most `max` objects.
    #[must_use]
    pub fn new(max: u64) -> Self {
        let (turn, queue) = (Mutex::new(()), Mutex::new(Vec::new()));
        Deferral { turn, queue, len: AtomicU64::new(0), max }
    }

    /// Returns true if the changed content is to stay private until the epoch ends. The caller then
    /// pushes the object, unless the object waits already.
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
        // ORDERING: Relaxed. `len` orders no data, because the queue has a lock. Readers of `len`
        // use it as a hint. Or they are ordered after this call by other means, such as the lock of
        // the object.
        self.len.fetch_add(1, Ordering::Relaxed);
        self.queue.lock().push(object);
    }

    /// Returns the number of objects that wait.
    #[inline]
    #[must_use]
    pub fn len(&self) -> u64 {
        // ORDERING: Relaxed. See `push`.
        self.len.load(Ordering::Relaxed)
    }

    /// Returns true if no object waits.
    #[inline]
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Hands all objects that wait for the end of the epoch to `handle`, which de-duplicates them.
    /// Waits for other calls of `share`. The caller holds no lock that `handle` takes.
    ///
    /// Objects count as waiting until `handle` returns. So a thread that lacks space while objects
    /// wait can call `share` and retry.
    pub fn share(&self, handle: impl FnOnce(Vec<T>)) {
        if self.is_empty() {
            return;
        }
        let _turn = self.turn.lock();
        let objects = std::mem::take(&mut *self.queue.lock());
        let count = objects.len() as u64;
        handle(objects);
        // ORDERING: Relaxed. See `push`.
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
        // Guarantee D.1: the maximum is reached. So a further object must not wait, but an object
        // that waits already goes on waiting.
        assert!(!deferral.defers(Change::Again));
        assert!(deferral.defers(Change::Waiting));
        deferral.share(|objects| assert_eq!(objects, Vec::from_iter(0..MAX)));
        assert!(deferral.defers(Change::Again));
    }

    /// While `share` handles objects, they still count as waiting. Otherwise a thread that finds no
    /// space would give up, although the handler of `share` is about to free space.
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

    /// Guarantee D.2: a call of `share` must not return while another call, in another thread,
    /// handles an object that was pushed before. Otherwise a commit that follows the first call
    /// would not contain the result. In this test the handler yields often. So a call that does not
    /// wait for the other call would return too early.
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
