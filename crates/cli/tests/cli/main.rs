//! The program as a user meets it.
//!
//! Each test starts the program. Tests that mount skip where that is not possible.

#![forbid(unsafe_code)]

mod appends;
mod daemon;
mod fixtures;
mod fstab;
mod handles;
mod host;
mod ipc;
mod limits;
mod mistakes;
mod mounting;
mod permissions;
mod places;
mod program;
mod serve;
mod set_group_id;
mod store;
mod user;
