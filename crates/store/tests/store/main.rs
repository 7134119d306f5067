//! The store as its users meet it.

#![forbid(unsafe_code)]

mod cuts;
mod differential;
mod faults;
mod memory;
mod storm;
