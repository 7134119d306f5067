//! Tests of `HostFs` through a `Vfs`, over a temporary directory of the host.

mod differential;
mod escapes;
mod fixtures;
mod limits;
mod locks;
mod operations;
mod renamed;
mod unlinked;
mod user;
