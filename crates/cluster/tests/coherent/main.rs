//! Tests of several mounts of one file system.

#![forbid(unsafe_code)]

mod delays;
#[allow(dead_code, reason = "the other program with tests uses the rest")]
#[path = "../cluster/fixtures.rs"]
mod fixtures;
#[allow(dead_code, reason = "tests of mounts in the kernel use the rest")]
mod model;
mod race;
mod sight;
