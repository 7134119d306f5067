//! Tests that run the program as a user would run it.
//!
//! Tests that need a mount are skipped if this machine has no `/dev/fuse`, or if the user may not
//! mount.

#![forbid(unsafe_code)]

mod appends;
mod burst;
mod cluster;
mod cluster_locks;
mod cluster_memory;
mod daemon;
mod fixtures;
mod fstab;
mod growth;
mod handles;
mod handoff;
mod host;
mod ipc;
mod junctions;
mod limits;
mod locks;
mod mistakes;
mod mounting;
mod passthrough;
mod permissions;
mod places;
mod program;
mod serve;
mod set_group_id;
mod store;
mod user;
