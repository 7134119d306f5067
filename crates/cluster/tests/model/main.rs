//! An exhaustive model of the protocol that keeps the caches of several mounts coherent.
//!
//! The model has two or three mounts and one database. A mount consists of a server and a kernel,
//! each with a cache, and of local programs that read and change. It also has a clock and a
//! *holder*, which gives up the mount's leases when other mounts make changes. The search visits
//! every order of their steps. Messages are late, lost or repeated, mounts are killed, clocks are
//! slow, sessions end, and the database crashes. A stopped process needs no step of its own: its
//! next step just comes later.
//!
//! The programs read and change one item: a name, or an attribute. The item's value, the version,
//! is the number of its changes. The search checks three properties:
//!
//! 1. No read returns an old version. When an operation ends, it has returned or made a version. A
//!    read that begins later must return this version or a higher one (`State::floor`).
//! 2. A confirmed change was applied, and stays so. No change is applied twice, or after it failed.
//! 3. From every state, steps without faults lead to a state in which all changes have ended and
//!    every reader has cached its answer again. Sessions of running mounts do not end on the way.
//!
//! Each protection of the protocol is a flag of `Rules`. A control turns one flag off, and its
//! search must then find a broken property.
//!
//! | file | contents |
//! |---|---|
//! | `state`, `pack` | the state; states as keys |
//! | `rules`, `scenarios`, `controls` | protections, bounds, the tests |
//! | `reader`, `change`, `holder`, `clock`, `database` | the steps |
//! | `steps`, `search`, `trace` | kinds of steps, the search, traces in words |
//!
//! `docs/developing/cluster-model.md` says what is not modelled, and what each control finds.
//! `cargo test -p corewalk-cluster --test model -- --nocapture` prints sizes and traces.

#![forbid(unsafe_code)]

mod change;
mod clock;
mod controls;
mod database;
mod holder;
mod pack;
mod reader;
mod rules;
mod scenarios;
mod search;
mod state;
mod steps;
mod trace;
