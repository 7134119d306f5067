//! A file system for many machines: metadata in PostgreSQL, file data in objects.
#![forbid(unsafe_code)]

pub mod objects;
mod options;
pub use options::*;
