//! Tests of a cluster file system with several mounts in the kernel.
//!
//! Each mount is a process of its own, so that it can be stopped and killed. The calls are made by
//! threads of the test, through the kernel.

#![forbid(unsafe_code)]

mod below;
#[path = "../../../cluster/tests/cluster/fixtures.rs"]
#[expect(dead_code, reason = "the tests of the back end use the rest")]
mod fixtures;
#[path = "../../../cluster/tests/coherent/model.rs"]
#[expect(dead_code, reason = "the tests of the back end use the rest")]
mod model;
mod mounted;
mod network;
mod race;
mod run;
