//! Lockref, the seqlock family, RCU and type-stable memory for user space.
//!
//! These primitives make the kernel's name cache scale. This crate offers them to programs with a
//! cache, an inode table or a session table of their own. A user-space thread can be preempted
//! while it holds a lock. So every wait here spins a bounded number of rounds and then sleeps.
//!
//! | type | use | cost for a reader |
//! |---|---|---|
//! | [`SeqCount`] | a few words read together, writers already serialised | two loads |
//! | [`SeqLock`] | like `SeqCount`, with its own lock and a locking fallback | two loads |
//! | [`SeqRwLock`] | like `SeqLock`, with fallback readers that share the lock | two loads |
//! | [`Lockref`] | a reference count that ends an object's life | one compare-exchange |
//! | [`RcuCell`], [`RcuOption`], [`rcu`] | values seldom replaced | one section for many reads |
//! | [`SlotArena`] | objects that lock-free readers may still read after the free | none |
//!
//! # Lock order
//!
//! A thread takes the locks of this crate in this order:
//! 1. The lock of the writers of a `SeqLock` or `SeqRwLock`, or the lock of a `Lockref`. The caller
//!    defines the order among these.
//! 2. The mutex of a shard of a `SlotArena`, and then the mutex of its depot. No code of the caller
//!    runs under these two mutexes.
//!
//! A read section of `rcu` may be open while any lock of this crate is held.
//!
//! # Model checking
//!
//! With `--cfg corewalk_loom` or `--cfg corewalk_shuttle` the crate runs under loom or shuttle.
//!
//! # Unsafe code
//!
//! Each file with unsafe code gives its reason at the top. No function of the public interface is
//! unsafe.
//!
//! Source: the documents that each module names.

mod arena;
mod lockref;
pub mod rcu;
mod seqcount;
mod seqlock;
mod seqrwlock;

/// Runs the examples of the README as tests.
#[cfg(doctest)]
#[doc = include_str!("../README.md")]
struct Readme;

pub use arena::{Group, SlotArena};
pub use lockref::{Lockref, LockrefGuard};
pub use rcu::{RcuCell, RcuOption};
pub use seqcount::{SeqCount, SeqWriteGuard};
pub use seqlock::{Pass, SeqLock, SeqLockExclGuard, SeqLockWriteGuard};
pub use seqrwlock::{SeqRwLock, SeqRwLockReadGuard, SeqRwLockWriteGuard};
