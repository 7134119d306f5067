//! Tests of the back end against a PostgreSQL server of the test.

#![forbid(unsafe_code)]

mod contents;
mod database;
mod encryption;
mod fixtures;
mod outages;
mod races;
mod sessions;
mod statements;
