//! Tests of the cluster back end. The tests start a PostgreSQL server of their own.

#![forbid(unsafe_code)]

mod contents;
mod database;
mod disk_cache;
mod encryption;
mod fixtures;
mod front;
mod junctions;
mod lifetime;
mod limits;
mod locks;
mod outage;
mod outages;
mod races;
mod sessions;
mod sharing;
mod standby;
mod statements;
