//! What the tests of corewalk share: ways to race, to record, to judge and to prove.
//!
//! A concurrent test needs more than threads in a loop: it has to start them together, repeat the
//! same run from a seed, notice that it hangs, know whether the interesting outcome was reached at
//! all, and judge the answers it got. Each module does one of these.
//!
//! | module | use it when |
//! |---|---|
//! | [`rng`] | a test draws anything at random: the seed is printed when it fails |
//! | [`race`] | threads start together, outcomes are counted, a hang becomes a failure |
//! | [`fuzz`] | inputs are to be changed at random, from a corpus that is kept |
//! | [`history`] | the answers of several threads are to be judged as a whole |
//! | [`linearize`] | there is a sequential model that says which answers are right |
//! | [`alloc`] | a path must not allocate, or must give back what it took |
//! | [`seal`] | a path must not store to memory that another thread can reach |
//! | `lines` | two operations must not write what the other touches (x86-64) |
//! | [`sysv`] | the host kernel's semaphores are the oracle |
//! | `trace` | the system calls of a path are to be counted |
//! | [`require`] | a test needs root, `/dev/fuse`, a package or a feature of the kernel |
//! | [`reexec`] | a test needs one CPU, a low limit, or a process that dies |
//!
//! # Rules
//!
//! - This crate is a dev-dependency only. It depends on no other crate of the workspace, so every
//!   one of them, `corewalk-base` included, can use it.
//! - It looks at the code under test from outside. Its own atomics are always the real ones, never
//!   those of a model checker (see `real.rs`).
//! - `unsafe` is allowed here because the allocators and the sealed region need it; nothing of this
//!   crate is ever shipped.
//!
//! Source: crossbeam (`ci/`), mountpoint-s3 (`tests/reftests`) and `TigerBeetle`
//! (controls that must fail).

pub mod alloc;
pub mod fork;
pub mod fuzz;
pub mod history;
pub mod linearize;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
pub mod lines;
pub mod race;
mod real;
pub mod reexec;
pub mod require;
pub mod rng;
pub mod seal;
pub mod sysv;
#[cfg(all(target_os = "linux", not(miri)))]
pub mod trace;
