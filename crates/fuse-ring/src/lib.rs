//! The FUSE device of Linux, and its io_uring queues. An internal part of `corewalk-fuse`.
//!
//! The interface of this crate may change in any version.
//!
//! | item | use |
//! |---|---|
//! | [`FuseRing`] | serve the requests of a FUSE mount through io_uring |
//! | [`device`] | check, open and clone the FUSE device |
//! | [`waits_in_chown`] | tell whether another thread waits in chown(2) |
//!
//! # Unsafe code
//!
//! Each file with unsafe code gives the reason for it at the top. These files are `ring` with its
//! `memory`, and `device`. No function of the interface is unsafe.

mod chown_call;
pub mod device;
mod ring;

pub use chown_call::waits_in_chown;
pub use ring::{EntryId, FuseRing, RingRequest, RingWaker};
