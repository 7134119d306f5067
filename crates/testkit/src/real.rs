//! The atomics and threads of the standard library, even in a build for a model checker.
//!
//! Other crates use `corewalk_base::primitives`, which switches to the types of a model checker.
//! This crate must not switch:
//! - A model checker itself allocates memory with the allocators of this crate.
//! - The watchdog of this crate must also end a model checker that hangs.
//! - Each tick of the clock in `history` would be one more step of every schedule of the model
//!   checker.
//!
//! `cargo xtask tidy` allows only this file of the crate to name the standard library's atomics and
//! threads.

pub(crate) use std::sync::atomic;
pub(crate) use std::thread;
