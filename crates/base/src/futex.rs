//! Functions with which a thread sleeps until another thread changes an atomic word. Other
//! processes may map the memory of the word.
//!
//! [`crate::park`] keeps its queue of sleepers in this process. For a word in memory that several
//! processes map, the queue must be in the kernel. So this module uses futex(2), on the low 32 bits
//! of the word.
//!
//! A wait always has a deadline, because semop(2) must return `EINTR` after a signal handler. The
//! kernel would resume a wait without a deadline if the handler has `SA_RESTART`.
//!
//! Under a model checker a wait does not sleep: it yields once and returns `Woken`.
//!
//! # Rules
//!
//! - A wait may end without a wake-up. So the caller of a wait must read its word again.
//! - A thread that wakes sleepers must change their word first.
//!
//! Source: futex(2), signal(7) "Interruption of system calls".
#![cfg_attr(
    not(any(corewalk_loom, corewalk_shuttle)),
    expect(unsafe_code, reason = "a view of half a word is a reference cast")
)]

/// Whether one process or several processes map the word of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Scope {
    /// Only this process maps the word.
    Private,
    /// Several processes map the word.
    Shared,
}

/// The reason for the end of a wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Ended {
    /// Another thread woke the waiting thread, the word had another value at the start, or the
    /// wake-up was spurious.
    Woken,
    /// The deadline has passed.
    TimedOut,
    /// A signal handler ran.
    Interrupted,
}

/// An instant of `CLOCK_MONOTONIC`, in nanoseconds since the start of that clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Deadline {
    /// Nanoseconds of `CLOCK_MONOTONIC`.
    pub monotonic_ns: u64,
}

impl Deadline {
    /// A deadline that never comes: 146 years after boot.
    pub const NEVER: Self = Self { monotonic_ns: 1 << 62 };
}

pub use imp::{now, wait, wake};

#[cfg(not(any(corewalk_loom, corewalk_shuttle)))]
mod imp {
    use super::{Deadline, Ended, Scope};
    use crate::primitives::atomic::{AtomicU32, AtomicU64};
    use rustix::{
        io::Errno,
        thread::futex,
        time::{ClockId, Timespec, clock_gettime},
    };
    use std::num::NonZeroU32;

    const NS_PER_S: u64 = 1_000_000_000;

    /// Returns the current instant.
    #[must_use]
    pub fn now() -> Deadline {
        let now = clock_gettime(ClockId::Monotonic);
        let ns = now.tv_sec.unsigned_abs() * NS_PER_S + now.tv_nsec.unsigned_abs();
        Deadline { monotonic_ns: ns }
    }

    /// Sleeps until another thread wakes this thread, or until `deadline`. Returns immediately if
    /// the low half of `word` is not `value`.
    pub fn wait(word: &AtomicU64, value: u32, deadline: Deadline, scope: Scope) -> Ended {
        // The deadline `NEVER` is passed as a timeout, too. Without a timeout the kernel would
        // resume the wait after a signal handler with `SA_RESTART`.
        let until = Timespec {
            tv_sec: (deadline.monotonic_ns / NS_PER_S).cast_signed(),
            tv_nsec: (deadline.monotonic_ns % NS_PER_S).cast_signed(),
        };
        let ended =
            futex::wait_bitset(low_half(word), flags(scope), value, Some(&until), NonZeroU32::MAX);
        match ended {
            Err(Errno::TIMEDOUT) => Ended::TimedOut,
            Err(Errno::INTR) => Ended::Interrupted,
            _ => Ended::Woken,
        }
    }

    /// Wakes at most `count` threads that sleep on `word`. Returns the number of woken threads.
    pub fn wake(word: &AtomicU64, count: u32, scope: Scope) -> usize {
        // `FUTEX_WAKE` cannot fail, because `word` is aligned and mapped, and any `count` is valid.
        futex::wake(low_half(word), flags(scope), count.min(i32::MAX as u32)).unwrap_or(0)
    }

    fn flags(scope: Scope) -> futex::Flags {
        match scope {
            Scope::Private => futex::Flags::PRIVATE,
            Scope::Shared => futex::Flags::empty(),
        }
    }

    fn low_half(word: &AtomicU64) -> &AtomicU32 {
        let half = usize::from(cfg!(target_endian = "big"));
        let start = std::ptr::from_ref(word).cast::<AtomicU32>().wrapping_add(half);
        // SAFETY: the low half is a part of `word`. The half is aligned to four bytes, any bits are
        // valid, and the half lives as long as `word`. Rust code uses only the address of the half;
        // the kernel alone reads it.
        unsafe { &*start }
    }
}

#[cfg(any(corewalk_loom, corewalk_shuttle))]
mod imp {
    use super::{Deadline, Ended, Scope};
    use crate::primitives::{
        atomic::{AtomicU64, Ordering},
        thread,
    };

    /// Returns the same instant at each call, because time stands still under a model checker.
    #[must_use]
    pub fn now() -> Deadline {
        Deadline { monotonic_ns: 0 }
    }

    /// Yields once instead of sleeping, if the low half of `word` is `value`.
    pub fn wait(word: &AtomicU64, value: u32, _deadline: Deadline, _scope: Scope) -> Ended {
        // ORDERING: Relaxed. The load only decides whether to sleep. The caller reads `word` again.
        if word.load(Ordering::Relaxed) & u64::from(u32::MAX) == u64::from(value) {
            thread::yield_now();
        }
        Ended::Woken
    }

    /// Does nothing, because waiters poll. Returns `count`.
    pub fn wake(_word: &AtomicU64, count: u32, _scope: Scope) -> usize {
        count as usize
    }
}

#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use crate::primitives::{
        Arc,
        atomic::{AtomicU64, Ordering},
        thread,
    };

    const HIGH: u64 = 7 << 32;

    #[test]
    fn wait_on_another_value_returns_at_once() {
        let word = AtomicU64::new(HIGH | 1);
        assert_eq!(wait(&word, 0, Deadline::NEVER, Scope::Private), Ended::Woken);
    }

    #[test]
    fn wait_until_the_past_times_out() {
        let word = AtomicU64::new(HIGH);
        for scope in [Scope::Private, Scope::Shared] {
            assert_eq!(wait(&word, 0, now(), scope), Ended::TimedOut);
        }
    }

    #[test]
    fn wake_after_a_change_ends_the_wait() {
        let word = Arc::new(AtomicU64::new(HIGH));
        let waiter = thread::spawn({
            let word = Arc::clone(&word);
            move || {
                // ORDERING: Relaxed. Nothing is published with the word.
                while word.load(Ordering::Relaxed) == HIGH {
                    wait(&word, 0, Deadline::NEVER, Scope::Private);
                }
            }
        });
        // ORDERING: Relaxed. As above.
        word.store(HIGH | 1, Ordering::Relaxed);
        wake(&word, 1, Scope::Private);
        waiter.join().unwrap();
    }
}
