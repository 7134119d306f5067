//! Tests on real mounts.
//!
//! Each test mounts a file system of its own in a folder of its own and talks to it through the
//! kernel. Where there is no `/dev/fuse` they skip.

#![forbid(unsafe_code)]

mod by_path;
mod calls;
mod files;
mod forgets;
mod hooked;
mod listing;
mod mounting;
mod names;
mod shrinker;
mod site;
mod slow;
