//! Tests of the back end against a PostgreSQL server of the test.

#![forbid(unsafe_code)]

mod contents;
mod database;
mod fixtures;
mod front;
mod junctions;
mod lifetime;
mod locks;
mod outage;
mod sessions;
mod standby;
mod statements;
