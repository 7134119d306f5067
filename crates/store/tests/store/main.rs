//! Tests of the store through its public interface.

#![forbid(unsafe_code)]

mod attributes;
mod closed;
mod commits;
mod crash_points;
mod damage;
mod differential;
mod faults;
mod forgets;
mod fuzz;
mod group;
mod late;
mod log_fails;
mod memory;
mod older;
mod options;
mod pages;
mod places;
mod reads_fail;
mod refused;
mod replays;
mod storm;
