//! Lockref, the seqlock family, RCU and type-stable memory for user space.
//!
//! These are the primitives that make the kernel's name cache scale, for programs that want the
//! same from a cache, an inode table or a session table of their own. They need nothing else of
//! this workspace. What differs from the kernel is that a user-space thread can lose its
//! processor anywhere: whatever waits here spins a bounded number of rounds and then sleeps.
//!
//! | type | for | readers pay |
//! |---|---|---|
//! | [`SeqCount`] | a few words that belong together, writers already serialised | two loads |
//! | [`SeqLock`] | the same, with its own lock and a locking fallback | two loads |
//! | [`SeqRwLock`] | the same, where the fallback readers must run side by side | two loads |
//! | [`Lockref`] | a reference count that decides over life and death | one compare-exchange |
//! | [`RcuCell`], [`RcuOption`], [`rcu`] | whole values, replaced seldom | a section, once for many reads |
//! | [`SlotArena`] | objects that lock-free readers may reach after they are freed | nothing |
//! | [`Region`], [`futex`] | state that processes may share, reached by offsets | nothing |
//! | [`WordPair`] | comparing shared words two at a time | half the steps |
//! | [`ShardedCounter`] | statistics | a visit to every shard |
//! | [`Budget`] | what may still be taken, exact if there is a limit | as a word, or as above |
//! | [`Mutex`], [`RwLock`], [`Condvar`] | everything else | a lock |
//! | [`sysv`] | the host kernel's semaphores and messages, to measure beside | a system call |
//! | [`file_handle`] | names of the host's files that survive a rename | a system call |
//! | [`heap`] | freed memory that goes back to the system | nothing |
//!
//! # Unsafe code
//!
//! It is allowed in eleven files, each with its reason at the top: views over a word (`lockref`,
//! `seqcount`), the mappings (`arena/memory`, `region`), the pointer that is swapped (`rcu/cell`), the load of
//! two words (`pair`), the half of a word that is slept on (`futex`), the calls into the queue
//! of sleepers (`park`), the kernel's own semaphores and messages (`sysv`), its file handles
//! (`file_handle`), and the call that trims the heap (`heap`). No function of the public interface is unsafe.
//!
//! # Lock order
//!
//! 1. The writers' lock of a `SeqLock` or `SeqRwLock`, or a `Lockref`: the caller's to order.
//! 2. A shard of a `SlotArena`, then its depot.
//! 3. The registry of `rcu`, a leaf.
//!
//! Nothing of the caller runs under 2 and 3. Read sections of `rcu` may be open under any of them.
//!
//! # Model checking
//!
//! With `--cfg corewalk_loom` or `--cfg corewalk_shuttle` the whole crate, and whoever takes its
//! atomics from `primitives`, runs under loom or shuttle.
//!
//! # Examples
//!
//! An object in type-stable memory, found without a lock and counted only if it still lives:
//!
//! ```
//! use corewalk_sync::{Lockref, SlotArena, primitives::atomic::Ordering};
//!
//! const LOCKREF: usize = 0;
//! const GENERATION: usize = 1;
//!
//! let arena: SlotArena<8> = SlotArena::new("session", 1024)?;
//! let index = arena.alloc().expect("the arena is empty");
//! let words = arena.get(index);
//! words[GENERATION].store(1, Ordering::Relaxed);
//!
//! // Somebody holds (index, generation 1), in a table perhaps.
//! let lockref = Lockref::from_word(&arena.get(index)[LOCKREF]);
//! assert!(lockref.get_not_dead());
//! assert_eq!(arena.get(index)[GENERATION].load(Ordering::Relaxed), 1);
//!
//! // The last put ends the object; late readers find it dead, at the same address.
//! let mut last = lockref.put_or_lock().expect("this was the only reference");
//! last.sub(1);
//! last.mark_dead();
//! drop(last);
//! arena.free(index);
//! assert!(!lockref.get_not_dead());
//! # Ok::<(), std::io::Error>(())
//! ```
//!
//! Source: the documents that each module names.

mod arena;
mod budget;
mod counter;
pub mod file_handle;
pub mod futex;
pub mod heap;
mod lockref;
mod locks;
mod own_line;
mod pair;
pub mod park;
#[doc(hidden)]
pub mod primitives;
pub mod rcu;
mod region;
mod seqcount;
mod seqlock;
mod seqrwlock;
pub mod sysv;
#[cfg(corewalk_loom)]
#[doc(hidden)]
pub mod tally;

pub use arena::{Group, SlotArena};
pub use budget::Budget;
pub use counter::ShardedCounter;
pub use crossbeam_utils::CachePadded;
pub use lockref::{Lockref, LockrefGuard};
pub use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use own_line::OwnLine;
pub use pair::{Lane, Lanes, WordPair};
pub use rcu::{RcuCell, RcuOption};
pub use region::{LINE_WORDS, Line, Region};
pub use seqcount::{SeqCount, SeqWriteGuard};
pub use seqlock::{Pass, SeqLock, SeqLockExclGuard, SeqLockWriteGuard};
pub use seqrwlock::{SeqRwLock, SeqRwLockReadGuard, SeqRwLockWriteGuard};
