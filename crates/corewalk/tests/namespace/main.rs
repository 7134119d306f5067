//! Tests of the namespace through its public interface.

mod attributes;
mod backends;
mod differential;
mod errors;
mod fixtures;
mod fuzz;
mod histories;
mod ino_reuse;
mod invalidated;
mod listed;
mod model;
mod modes;
mod mounts;
mod operations;
mod pauses;
mod pending_removal;
mod properties;
mod ref_walk;
mod storms;
mod traps_lifetime;
mod traps_lookup;
mod unknown_target;
