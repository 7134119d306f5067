//! The store as its users meet it.

#![forbid(unsafe_code)]

mod commits;
mod cuts;
mod damage;
mod differential;
mod faults;
mod group;
mod memory;
mod places;
mod replays;
mod storm;
