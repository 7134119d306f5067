//! A file system for many machines: metadata in PostgreSQL, file data in an object store.

#![forbid(unsafe_code)]
