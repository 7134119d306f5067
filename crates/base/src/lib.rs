//! The internal base of the corewalk crates.
//!
//! The interface of this crate may change in any version. Programs use `corewalk-sync` and the
//! crates that build on it instead.
//!
//! | item | use |
//! |---|---|
//! | [`primitives`] | the atomics and threads of `std` or of a model checker; shards |
//! | [`Mutex`], [`RwLock`], [`Condvar`] | the locks of `parking_lot` or of a model checker |
//! | [`park`] | sleep on a word within one process |
//! | [`futex`], [`Region`] | sleep on a word, and use memory, that several processes share |
//! | [`ShardedCounter`], [`Budget`] | counters for statistics, and for a limited resource |
//! | [`OwnLine`], [`CachePadded`] | values on cache lines of their own |
//! | [`WordPair`] | compare shared words two at a time |
//! | [`errno_of`] | convert an error of the standard library into an errno |
//! | [`signal_is_ignored`] | tell whether this process ignores a signal |
//! | [`heap`] | return freed memory to the system |
//! | [`file_handle`], [`sysv`] | make system calls of the host that no well-kept crate has |
//! | [`setters!`] | setters of structs that may get more fields |
//! | `tally` | counts the outcomes of a loom model |
//!
//! # Locks
//!
//! The crate holds no lock while it runs code of the caller. `park` uses the queue locks of
//! `parking_lot_core`, under which no other lock is taken.
//!
//! # Unsafe code
//!
//! Each file with unsafe code gives the reason for it at the top. These files are `region`, `pair`,
//! `futex`, `park`, `sysv`, `file_handle` and `heap`. No function of the interface is unsafe.

mod budget;
mod counter;
mod errno;
pub mod file_handle;
pub mod futex;
pub mod heap;
mod locks;
mod own_line;
mod pair;
pub mod park;
pub mod primitives;
mod region;
mod setters;
mod signals;
pub mod sysv;
#[cfg(corewalk_loom)]
pub mod tally;

pub use budget::Budget;
pub use counter::ShardedCounter;
pub use crossbeam_utils::CachePadded;
pub use errno::errno_of;
pub use locks::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};
pub use own_line::OwnLine;
pub use pair::{Lane, Lanes, WordPair};
pub use region::{LINE_WORDS, Line, Region};
pub use signals::signal_is_ignored;
