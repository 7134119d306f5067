//! Tests of several mounts of one file system.

#![forbid(unsafe_code)]

#[path = "../cluster/fixtures.rs"]
mod fixtures;
mod sight;
