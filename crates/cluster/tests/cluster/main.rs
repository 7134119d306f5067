//! Tests of the back end against a PostgreSQL server of the test.

#![forbid(unsafe_code)]

mod contents;
mod database;
mod fixtures;
mod junctions;
mod locks;
mod sessions;
mod standby;
mod statements;
