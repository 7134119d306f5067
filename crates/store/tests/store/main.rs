//! The store as its users meet it.

#![forbid(unsafe_code)]

mod commits;
mod cuts;
mod differential;
mod faults;
mod group;
mod memory;
mod places;
mod storm;
