//! Tests of a host directory behind a namespace: `Vfs` over `HostFs` over a temporary directory.

mod differential;
mod escapes;
mod fixtures;
mod limits;
mod operations;
mod renamed;
mod unlinked;
mod user;
