//! Tests of the namespace through its public interface.

mod backends;
mod fixtures;
mod histories;
mod model;
mod operations;
mod properties;
mod storms;
mod traps_lifetime;
mod traps_lookup;
