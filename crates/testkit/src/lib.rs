//! Tools for the tests of the workspace.
//!
//! Each module is a tool for one task of a concurrent test. The tasks are: start threads together,
//! repeat a run from a seed, notice a hang, count outcomes, and check results.
//!
//! | module | use it if |
//! |---|---|
//! | [`rng`] | a test makes random choices; the seed is printed when it fails |
//! | [`race`] | threads must start together; it also counts outcomes and detects hangs |
//! | [`fuzz`] | a test runs random changes of the inputs in a corpus |
//! | [`history`] | the calls of several threads are recorded, to be checked as a whole |
//! | [`linearize`] | a sequential model decides whether a history is correct |
//! | [`alloc`] | an operation must not allocate, or must free all that it allocates |
//! | `call32` | a 64-bit program makes the system call of a 32-bit program |
//! | [`seal`] | an operation must not store to memory that another thread can reach |
//! | `lines` | an operation must not write cache lines that another one touches (x86-64) |
//! | [`sysv`] | the System V IPC of the host kernel is the oracle |
//! | `trace` | the system calls of an operation are counted |
//! | [`fork`] | child processes must start fast, because the test kills many |
//! | `postgres` | a test needs a PostgreSQL server |
//! | `proxy` | a connection to PostgreSQL must be slow or stop, or its bytes are counted |
//! | [`require`] | a test needs root, `/dev/fuse`, a package or a feature of the kernel |
//! | [`reexec`] | a test needs one processor, a low limit, or a process that dies |
//! | [`s3`] | a test needs a server of the S3 protocol |
//! | [`user`] | calls are made as another user |
//!
//! # Rules
//!
//! - This crate is only a dev-dependency of other crates. The exception is the lab, the crate with
//!   the measurements, which starts the same servers as the tests.
//! - This crate depends on no other crate of the workspace. So each of them, even `corewalk-base`,
//!   can use it.
//! - Its atomics and threads are those of the standard library, never those of a model checker (see
//!   `real.rs`).
//! - It may have unsafe code, since no program for users contains it.
//!
//! Source: crossbeam (`ci/`), mountpoint-s3 (`tests/reftests`), and `TigerBeetle`, whose tests have
//! controls: wrong code that a test must reject.

pub mod alloc;
#[cfg(all(target_os = "linux", not(miri)))]
pub mod call32;
pub mod fork;
pub mod fuzz;
pub mod history;
pub mod linearize;
#[cfg(all(target_arch = "x86_64", target_os = "linux", not(miri)))]
pub mod lines;
#[cfg(all(target_os = "linux", not(miri)))]
pub mod postgres;
#[cfg(not(miri))]
pub mod proxy;
pub mod race;
mod real;
pub mod reexec;
pub mod require;
pub mod rng;
pub mod s3;
pub mod seal;
pub mod sysv;
#[cfg(all(target_os = "linux", not(miri)))]
pub mod trace;
pub mod user;
