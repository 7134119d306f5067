//! A reference count and a lock in one word, so that counting needs no lock.
//!
//! An object is usually counted under its lock, because dropping the last reference must exclude
//! taking a new one.
//!
//! In a `Lockref`, count and lock share one 64-bit word. A thread that only counts does one
//! compare-exchange, which succeeds while the lock is free. A thread takes the lock only for the
//! steps that begin or end the object's life.
//!
//! Analogous to Linux's `struct lockref`.
//!
//! # Guarantees
//!
//! - A.1: while a `LockrefGuard` lives, no other thread changes the count or the dead bit.
//! - A.2: after `mark_dead`, `get_not_dead` fails until `revive` (trap T18 in `traps.md`). The
//!   check and the increment are one atomic step.
//! - A.3: the count has 61 bits. It never falls below 0 and never overflows into the flags (trap
//!   T51 in `traps.md`). Each method says whether it then fails or panics.
//! - A.4: a thread that finds the lock held waits until the lock is free, and then counts by
//!   compare-exchange. It takes the lock itself only after `CAS_TRIES` lost races. Otherwise later
//!   threads would find the lock held and take it too, without end (trap T52 in `traps.md`).
//! - A.5: a waiting thread spins a bounded number of rounds and then sleeps.
//! - A.6: two threads see an owner's writes before its `put_return` or its unlock. They are the
//!   thread that drops the last reference, and the next lock holder.
//!
//! # Rules
//!
//! - A slot of an arena may be reused, and its lockref then counts another object. So compare the
//!   slot's generation after the get.
//! - The word stays a lockref forever, because late readers must find a freed object dead. So no
//!   field of a freed object may reuse the word (trap T7 in `traps.md`).
//! - A thread that calls `get` or `put_return` while it has a guard waits forever. It must use the
//!   guard's `add` and `sub`.
//!
//! Source: Long, "dcache: make Oracle more scalable on large systems", February 2013; Linux
//! `lib/lockref.c` and `include/linux/lockref.h`; Guzik, June 2024, on lockrefs that stay locked
//! after one short lock holder (guarantee A.4).
#![expect(unsafe_code, reason = "a view over a word is a reference cast")]

use corewalk_base::{
    park::{self, Sleeper},
    primitives::{
        IS_MODEL,
        atomic::{AtomicU64, Ordering},
        hint,
    },
};
use std::{fmt, marker::PhantomData};

const LOCKED: u64 = 1 << 0;
const WAITERS: u64 = 1 << 1;
const DEAD: u64 = 1 << 2;
const COUNT_SHIFT: u32 = 3;
const ONE: u64 = 1 << COUNT_SHIFT;

/// Number of lost compare-exchange races after which a thread takes the lockref's lock. Linux has
/// the same limit.
const CAS_TRIES: u32 = if IS_MODEL { 2 } else { 100 };

const SPIN_ROUNDS: u32 = if IS_MODEL { 1 } else { 64 };

/// A lock, a dead bit and a 61-bit reference count in one word. The lock protects the count and the
/// dead bit. The owner of the lockref may use the lock to protect further fields of its object.
///
/// # Examples
///
/// ```
/// let lockref = corewalk_sync::Lockref::new(1);
/// assert!(lockref.get_not_dead());
/// assert_eq!(lockref.put_return(), 1);
/// let mut last = lockref.put_or_lock().expect("the last reference is dropped under the lock");
/// last.sub(1);
/// last.mark_dead();
/// drop(last);
/// assert!(!lockref.get_not_dead());
/// ```
#[doc(alias = "lockref")]
#[repr(transparent)]
pub struct Lockref {
    /// The word that contains the lock, the dead bit and the reference count. A zero word is
    /// unlocked and alive, with count 0.
    ///
    /// | bits | meaning | changed by |
    /// |---|---|---|
    /// | 0 | locked | the lock holder: `lock` sets it, the guard's drop clears it |
    /// | 1 | a thread may sleep until the lock is free | a waiter sets it, the unlock clears it |
    /// | 2 | dead | the guard |
    /// | 3..64 | count | any thread while unlocked, the guard while locked |
    ///
    /// If bit 0 (locked) is clear and bit 1 (a thread may sleep) is set, a woken thread is about to
    /// take the lock. Its unlock wakes the remaining sleepers.
    word: AtomicU64,
}

impl Lockref {
    /// The largest count.
    pub const COUNT_MAX: u64 = u64::MAX >> COUNT_SHIFT;

    /// Returns an unlocked, living lockref that counts `count` references.
    ///
    /// # Panics
    ///
    /// Panics if `count` is above [`Lockref::COUNT_MAX`].
    #[must_use]
    pub fn new(count: u64) -> Self {
        assert!(count <= Self::COUNT_MAX, "lockref count too large");
        Self { word: AtomicU64::new(count << COUNT_SHIFT) }
    }

    /// Returns a view of `word` as a lockref.
    ///
    /// A zero word is an unlocked, living lockref with count 0. After this call, the word must only
    /// be changed through the lockref. Any other change breaks the guarantees of this type, though
    /// not memory safety.
    ///
    /// # Examples
    ///
    /// This example finds an object in type-stable memory without a lock, and takes a reference
    /// only if the object still lives:
    ///
    /// ```
    /// use corewalk_sync::{Lockref, SlotArena};
    /// use std::sync::atomic::Ordering;
    ///
    /// const LOCKREF: usize = 0;
    /// const GENERATION: usize = 1;
    ///
    /// let arena: SlotArena<8> = SlotArena::new("session", 1024)?;
    /// let index = arena.alloc().expect("the arena is empty");
    /// let words = arena.get(index);
    /// words[GENERATION].store(1, Ordering::Relaxed);
    ///
    /// // A table may hold (index, generation 1), which another thread finds.
    /// let lockref = Lockref::from_word(&arena.get(index)[LOCKREF]);
    /// assert!(lockref.get_not_dead());
    /// assert_eq!(arena.get(index)[GENERATION].load(Ordering::Relaxed), 1);
    ///
    /// // The last put ends the object. Late readers find it dead, at the same address.
    /// let mut last = lockref.put_or_lock().expect("this was the only reference");
    /// last.sub(1);
    /// last.mark_dead();
    /// drop(last);
    /// arena.free(index);
    /// assert!(!lockref.get_not_dead());
    /// # Ok::<(), std::io::Error>(())
    /// ```
    #[inline]
    #[must_use]
    pub fn from_word(word: &AtomicU64) -> &Self {
        // SAFETY: `Lockref` is a transparent newtype of `AtomicU64` and every bit pattern is valid.
        // The returned reference has the lifetime of the argument.
        unsafe { &*std::ptr::from_ref(word).cast::<Self>() }
    }

    /// Returns the current reference count. If the caller does not hold the lockref's lock, the
    /// count may have changed before the call returns.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u64 {
        // ORDERING: Relaxed. A hint; no decision may rest on it.
        self.word.load(Ordering::Relaxed) >> COUNT_SHIFT
    }

    /// Returns true if the object is dead at this moment.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> bool {
        // ORDERING(lockref-unlock): Acquire. `mark_dead` sets the bit with Release. Without this
        // order, a thread that sees the dead bit could miss earlier writes.
        self.word.load(Ordering::Acquire) & DEAD != 0
    }

    /// Returns true if the lockref's lock is held at this moment. Another thread may take or
    /// release the lock at any time, so use the answer only for assertions and `Debug`.
    #[inline]
    #[must_use]
    pub fn is_locked(&self) -> bool {
        // ORDERING: Relaxed. A hint; no decision may rest on it.
        self.word.load(Ordering::Relaxed) & LOCKED != 0
    }

    /// Takes one more reference. The caller already owns one.
    ///
    /// # Panics
    ///
    /// Panics at [`Lockref::COUNT_MAX`].
    #[doc(alias = "lockref_get")]
    #[inline]
    pub fn get(&self) {
        self.get_many(1);
    }

    /// Takes `n` more references. The caller already owns one.
    ///
    /// # Panics
    ///
    /// Panics if the count would pass [`Lockref::COUNT_MAX`].
    #[inline]
    pub fn get_many(&self, n: u64) {
        let taken = self.change(|word| add(word, n));
        assert!(taken.is_ok(), "lockref count overflow");
    }

    /// Takes a reference and returns true if the object is alive, even at count 0.
    ///
    /// At [`Lockref::COUNT_MAX`] it returns false.
    ///
    /// # Examples
    /// ```
    /// let lockref = corewalk_sync::Lockref::new(0);
    /// assert!(lockref.get_not_dead());
    /// assert_eq!((lockref.count(), lockref.put_return()), (1, 0));
    /// lockref.lock().mark_dead();
    /// assert!(!lockref.get_not_dead());
    /// ```
    #[doc(alias = "lockref_get_not_dead")]
    #[inline]
    #[must_use]
    pub fn get_not_dead(&self) -> bool {
        self.get_if(1, |_| true)
    }

    /// Takes `n` references and returns true if the object is alive and `may` accepts its count.
    ///
    /// The check of the reference count and the increment are one atomic step. If the count would
    /// pass [`Lockref::COUNT_MAX`], the call returns false.
    ///
    /// # Examples
    /// ```
    /// let lockref = corewalk_sync::Lockref::new(1);
    /// let get_below_three = || lockref.get_if(1, |count| count < 3);
    /// assert!(get_below_three() && get_below_three() && !get_below_three());
    /// assert_eq!(lockref.count(), 3);
    /// ```
    #[inline]
    #[must_use]
    pub fn get_if(&self, n: u64, may: impl Fn(u64) -> bool) -> bool {
        let is_allowed = |word: u64| word & DEAD == 0 && may(word >> COUNT_SHIFT);
        self.change(|word| if is_allowed(word) { add(word, n) } else { None }).is_ok()
    }

    /// Drops one reference and returns the number of references left.
    ///
    /// # Panics
    ///
    /// Panics if the count is 0.
    #[doc(alias = "lockref_put_return")]
    #[inline]
    pub fn put_return(&self) -> u64 {
        self.put_many(1)
    }

    /// Drops `n` references and returns the number of references left.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer than `n` references.
    #[inline]
    pub fn put_many(&self, n: u64) -> u64 {
        match self.change(|word| sub(word, n)) {
            Ok(word) => word >> COUNT_SHIFT,
            Err(_) => panic!("lockref put without a reference"),
        }
    }

    /// Drops a reference unless it is the last one. For the last one, returns a guard of the locked
    /// object.
    ///
    /// If the result is `None`, the reference is dropped and the reference count is still above
    /// zero. If it is `Some`, nothing is dropped, the count is at most 1, and the caller holds the
    /// lock.
    ///
    /// # Examples
    /// ```
    /// let lockref = corewalk_sync::Lockref::new(2);
    /// assert!(lockref.put_or_lock().is_none());
    /// // The last reference. Under the lock the owner may keep the object, as a cache does.
    /// let mut last = lockref.put_or_lock().expect("one reference is left");
    /// last.sub(1);
    /// drop(last);
    /// assert_eq!((lockref.count(), lockref.is_dead()), (0, false));
    /// ```
    #[doc(alias = "lockref_put_or_lock")]
    #[inline]
    #[must_use = "if the lock was taken, the reference is still the caller's"]
    pub fn put_or_lock(&self) -> Option<LockrefGuard<'_>> {
        let more_than_one = |word| if word < 2 * ONE { None } else { sub(word, 1) };
        if self.change(more_than_one).is_ok() {
            return None;
        }
        let mut guard = self.lock();
        if guard.count() > 1 {
            guard.sub(1);
            return None;
        }
        Some(guard)
    }

    /// Takes the lockref's lock and returns the guard. Waits for another holder: spins briefly,
    /// then sleeps.
    #[inline]
    pub fn lock(&self) -> LockrefGuard<'_> {
        self.try_lock().unwrap_or_else(|| self.lock_slow())
    }

    /// Returns a guard if the lock is free.
    #[inline]
    #[must_use]
    pub fn try_lock(&self) -> Option<LockrefGuard<'_>> {
        // ORDERING: Relaxed. Only the compare-exchange takes effect.
        let mut word = self.word.load(Ordering::Relaxed);
        while word & LOCKED == 0 {
            // ORDERING(lockref-unlock): Acquire. Unlocks and dropped references are Release.
            // Without Acquire, the new holder could miss the writes before them.
            match self.word.compare_exchange_weak(
                word,
                word | LOCKED,
                Ordering::Acquire,
                Ordering::Relaxed,
            ) {
                Ok(_) => return Some(LockrefGuard { lockref: self, not_send: PhantomData }),
                Err(seen) => word = seen,
            }
        }
        None
    }

    /// Changes the count in the word by the closure `next`. Waits first while the lock is held.
    ///
    /// Returns the new word. If `next` returns None, returns the unchanged word as the error.
    #[inline]
    fn change(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        // ORDERING: Relaxed. This load only finds the value to replace. The compare-exchange orders
        // the change.
        let word = self.word.load(Ordering::Relaxed);
        if word & LOCKED == 0 {
            match next(word) {
                Some(new) if self.exchange(word, new).is_ok() => return Ok(new),
                Some(_) => {}
                None => return Err(word),
            }
        }
        self.change_slow(next)
    }

    #[cold]
    #[inline(never)]
    fn change_slow(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let mut tries = 0;
        while tries < CAS_TRIES {
            let word = self.wait_unlocked(Sleeper::Passer);
            let new = next(word).ok_or(word)?;
            if self.exchange(word, new).is_ok() {
                return Ok(new);
            }
            tries += 1;
        }
        let guard = self.lock();
        guard.change_count(next)
    }

    #[inline]
    fn exchange(&self, old: u64, new: u64) -> Result<u64, u64> {
        // ORDERING(lockref-unlock): AcqRel. Acquire: a thread that takes a reference sees the
        // writes of the last lock holder. Release: the thread that finds no reference left sees
        // this thread's work.
        self.word.compare_exchange_weak(old, new, Ordering::AcqRel, Ordering::Relaxed)
    }

    #[cold]
    fn lock_slow(&self) -> LockrefGuard<'_> {
        loop {
            self.wait_unlocked(Sleeper::Locker);
            if let Some(guard) = self.try_lock() {
                return guard;
            }
        }
    }

    /// Waits until the lock is free, and returns the unlocked word. Spins first, and then sleeps.
    fn wait_unlocked(&self, sleeper: Sleeper) -> u64 {
        let mut rounds = 0;
        loop {
            // ORDERING: Relaxed. The caller's compare-exchange orders the following accesses.
            let word = self.word.load(Ordering::Relaxed);
            if word & LOCKED == 0 {
                return word;
            }
            if rounds < SPIN_ROUNDS {
                rounds += 1;
                hint::spin_loop();
            } else {
                self.sleep(word, sleeper);
            }
        }
    }

    /// Sleeps until the lock holder unlocks. `word` is the state word that the caller has read,
    /// with the lock bit set. If the state word has changed since, the call returns immediately.
    fn sleep(&self, word: u64, sleeper: Sleeper) {
        // ORDERING: Relaxed. The bit for waiting threads only asks the lock holder for a wake-up,
        // and publishes no other memory.
        let asked =
            self.word.compare_exchange(word, word | WAITERS, Ordering::Relaxed, Ordering::Relaxed);
        if asked.is_ok() {
            park::wait_as(&self.word, LOCKED | WAITERS, LOCKED | WAITERS, sleeper);
        }
    }
}

impl fmt::Debug for Lockref {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Lockref")
            .field("count", &self.count())
            .field("dead", &self.is_dead())
            .field("locked", &self.is_locked())
            .finish()
    }
}

/// A locked `Lockref`. Until the guard is dropped, only its owner can change the reference count.
///
/// The guard stays on its thread:
///
/// ```compile_fail,E0277
/// fn assert_send<T: Send>(_: T) {}
/// let lockref = corewalk_sync::Lockref::new(1);
/// assert_send(lockref.lock());
/// ```
#[must_use = "the lock is released when the guard is dropped"]
pub struct LockrefGuard<'a> {
    lockref: &'a Lockref,
    not_send: PhantomData<*const ()>,
}

impl LockrefGuard<'_> {
    /// Returns the count, which no other thread changes.
    #[inline]
    #[must_use]
    pub fn count(&self) -> u64 {
        self.lockref.count()
    }

    /// Adds `n` references.
    ///
    /// # Panics
    ///
    /// Panics if the count would pass [`Lockref::COUNT_MAX`].
    #[inline]
    pub fn add(&mut self, n: u64) {
        assert!(self.change_count(|word| add(word, n)).is_ok(), "lockref count overflow");
    }

    /// Drops `n` references.
    ///
    /// # Panics
    ///
    /// Panics if there are fewer.
    #[inline]
    pub fn sub(&mut self, n: u64) {
        assert!(self.change_count(|word| sub(word, n)).is_ok(), "lockref put without a reference");
    }

    /// Marks the object dead: from here on `get_not_dead` fails.
    #[doc(alias = "lockref_mark_dead")]
    #[inline]
    pub fn mark_dead(&mut self) {
        // ORDERING(lockref-unlock): Release. `is_dead` loads the word with Acquire. Without this
        // order, a reader could see the dead bit but miss this thread's earlier writes.
        self.lockref.word.fetch_or(DEAD, Ordering::Release);
    }

    /// Returns true if the object is dead.
    #[inline]
    #[must_use]
    pub fn is_dead(&self) -> bool {
        self.lockref.is_dead()
    }

    /// Marks the lockref as alive again, when the slot of a dead object gets a new object.
    ///
    /// A late reader with the slot number of the dead object can take a reference to the new object
    /// by mistake. It notices that by the slot's generation, which the caller must change before it
    /// calls `revive`.
    #[inline]
    pub fn revive(&mut self) {
        // ORDERING(lockref-unlock): Release. A reader takes a reference by `exchange`, with
        // Acquire. Without this order, it could find the object alive but miss its new generation.
        self.lockref.word.fetch_and(!DEAD, Ordering::Release);
    }

    fn change_count(&self, next: impl Fn(u64) -> Option<u64>) -> Result<u64, u64> {
        let word = &self.lockref.word;
        // ORDERING: Relaxed. This thread holds the lock, so only the bit for waiting threads can
        // change. The unlock publishes the count.
        let mut seen = word.load(Ordering::Relaxed);
        loop {
            let new = next(seen).ok_or(seen)?;
            // ORDERING(lockref-unlock): AcqRel. As in `exchange`, the thread that takes a reference
            // sees the last lock holder's writes. The thread that finds no reference left sees this
            // thread's work.
            match word.compare_exchange_weak(seen, new, Ordering::AcqRel, Ordering::Relaxed) {
                Ok(_) => return Ok(new),
                Err(now) => seen = now,
            }
        }
    }

    #[cold]
    fn unlock_slow(&self) {
        park::unlock(&self.lockref.word, LOCKED, WAITERS);
    }
}

impl fmt::Debug for LockrefGuard<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("LockrefGuard").field(&self.lockref).finish()
    }
}

impl Drop for LockrefGuard<'_> {
    #[inline]
    fn drop(&mut self) {
        let word = &self.lockref.word;
        // ORDERING: Relaxed. This thread holds the lock, so other threads change only the bit for
        // waiting threads.
        let seen = word.load(Ordering::Relaxed);
        // ORDERING(lockref-unlock): Release. The next thread that takes the lock or changes the
        // count does so with Acquire. Without this order, it could miss the writes of this holder.
        let freed = seen & WAITERS == 0
            && word
                .compare_exchange(seen, seen & !LOCKED, Ordering::Release, Ordering::Relaxed)
                .is_ok();
        if !freed {
            self.unlock_slow();
        }
    }
}

/// Returns `word` with `n` more references, or `None` at overflow.
#[inline]
fn add(word: u64, n: u64) -> Option<u64> {
    if n > Lockref::COUNT_MAX - (word >> COUNT_SHIFT) {
        return None;
    }
    Some(word + (n << COUNT_SHIFT))
}

#[inline]
fn sub(word: u64, n: u64) -> Option<u64> {
    if n > word >> COUNT_SHIFT {
        return None;
    }
    Some(word - (n << COUNT_SHIFT))
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests;
