//! Tests on real mounts.
//!
//! Each test mounts its own file system in its own directory, and calls it through the kernel.
//! Without `/dev/fuse`, the tests are skipped.

#![forbid(unsafe_code)]

mod by_path;
mod calls;
mod examples;
mod files;
mod forgets;
mod hooked;
mod listing;
mod mounting;
mod names;
mod open_files;
mod shrinker;
mod site;
mod slow;
