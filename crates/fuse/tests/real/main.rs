//! Tests on real mounts.
//!
//! Each test mounts its own file system in its own directory, and makes system calls on the mount.
//! Without `/dev/fuse`, the tests are skipped.

#![forbid(unsafe_code)]

mod asynchronous;
mod by_path;
mod calls;
mod examples;
mod files;
mod forgets;
mod hooked;
mod http;
mod listing;
mod locks;
mod mounting;
mod names;
mod open_files;
mod privileges;
mod requests;
mod shrinker;
mod site;
mod slow;
