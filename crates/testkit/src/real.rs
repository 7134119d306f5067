//! The real atomics and threads, also in a build for a model checker.
//!
//! Everywhere else in the workspace `corewalk_base::primitives` decides whether an atomic is the
//! processor's or a model checker's. This crate must not take part in that switch: a global
//! allocator runs below the model checker, a watchdog runs beside it, and the clock of a recorded
//! history must not become one more thing to explore. So this is the second file of the workspace
//! that names the standard library's atomics and threads, and `cargo xtask tidy` knows it.

pub(crate) use std::sync::atomic;
pub(crate) use std::thread;
