//! The open database of a mounted store, across reopenings.
//!
//! redb refuses all calls after an error, until it is reopened. A reopened database is read from
//! the device anew and may be older than before. The host may have lost written pages, and redb
//! silently goes back one commit if a page of the last one is damaged. So two facts are kept beside
//! it.
//!
//! # Invariants
//! - O.1: once the device may have lost written data, the database is not reopened and takes no
//!   more writes. Opening and closing also write and sync, so their failures count too.
//! - O.2: the generation in the superblock grows with every commit. A database with a smaller one
//!   has lost a confirmed commit and is not used.
//!
//! Source: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.

use std::io;
use std::sync::Arc;

use crate::database::{Database, Snapshot};
use crate::device::{Device, Loss};
use crate::layer::Record;
use crate::record::{Key, SuperRecord};

/// The database of a mounted store. The module's documentation describes it.
pub(super) struct Opened {
    device: Arc<dyn Device>,
    cache_bytes: usize,
    /// None if the database could not be reopened.
    database: Option<Database>,
    /// The generation in the superblock of the last commit.
    generation: u64,
    loss: Loss,
}

impl Opened {
    /// Returns the state for `database` on `device`, whose superblock has `generation`.
    pub(super) fn new(
        database: Database,
        generation: u64,
        device: Arc<dyn Device>,
        cache_bytes: usize,
    ) -> Opened {
        let loss = database.loss().clone();
        Opened { device, cache_bytes, database: Some(database), generation, loss }
    }

    /// Returns true if confirmed data may be lost, so that the database may not be used (O.1, O.2).
    pub(super) fn is_lost(&self) -> bool {
        self.loss.is_noted()
    }

    /// Returns true if the database is open. It may still refuse all calls.
    pub(super) fn is_open(&self) -> bool {
        self.database.is_some()
    }

    /// Writes records and a superblock of `generation` as one transaction. Returns a snapshot after
    /// it.
    ///
    /// # Errors
    /// The error of the device. The database refuses all calls after that.
    pub(super) fn write(
        &mut self,
        records: &[(Key, Record)],
        generation: u64,
    ) -> io::Result<Snapshot> {
        let database = self.database.as_ref().ok_or(io::ErrorKind::NotConnected)?;
        let snapshot = database.write(records)?;
        self.generation = generation;
        Ok(snapshot)
    }

    /// Reopens the database at its last commit. The caller has dropped all its snapshots.
    ///
    /// # Errors
    /// The error of the device; `InvalidData` if confirmed commits are missing. The database is
    /// closed then.
    pub(super) fn open_again(&mut self) -> io::Result<Snapshot> {
        self.database = None;
        if self.is_lost() {
            return Err(io::ErrorKind::Other.into());
        }
        // Read the pages of the last commit from the disk and not from the host's cache. Only then
        // a lost commit is noticed.
        self.device.drop_cached();
        let again = Database::open_with(&self.device, self.cache_bytes, &self.loss)?;
        let snapshot = again.snapshot()?;
        let superblock = snapshot.get(&Key::SUPER)?.map(|value| SuperRecord::decode(&value));
        match superblock {
            // A larger generation means that the last commit is durable although it returned an
            // error. The caller writes it once more.
            Some(Ok(found)) if found.generation >= self.generation => {}
            _ => {
                self.loss.note();
                return Err(io::ErrorKind::InvalidData.into());
            }
        }
        self.database = Some(again);
        Ok(snapshot)
    }
}
