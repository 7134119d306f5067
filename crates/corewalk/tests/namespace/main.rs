//! Tests of the namespace through its public interface.

mod attributes;
mod backends;
mod differential;
mod errors;
mod fixtures;
mod fuzz;
mod histories;
mod model;
mod modes;
mod mounts;
mod number_used_again;
mod operations;
mod pauses;
mod properties;
mod ref_walk;
mod settled;
mod storms;
mod traps_lifetime;
mod traps_lookup;
mod unknown_target;
