//! The open database of a mounted store, which may be reopened after errors.
//!
//! After an error, redb refuses all calls until the database is reopened. The reopened database may
//! be older. The host may have lost written pages, or redb may have silently fallen back by one
//! commit because a page is damaged.
//!
//! The type `Opened` keeps two more facts: whether the device may have lost data, and the
//! generation of the last commit.
//!
//! # Invariants
//! - O.1: once the device may have lost written data, the database is not reopened and takes no
//!   more writes. Opening and closing a database also write and sync, so their failures count too.
//! - O.2: the generation in the superblock grows with every commit. A reopened database with a
//!   smaller generation lacks a confirmed commit, so it is not used.
//!
//! Source: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.

use std::io;
use std::sync::Arc;

use crate::database::{Database, Snapshot};
use crate::device::{Device, Loss};
use crate::layer::Record;
use crate::record::{Key, SuperRecord};

pub(super) struct Opened {
    device: Arc<dyn Device>,
    cache_bytes: usize,
    database: Option<Database>,
    generation: u64,
    loss: Loss,
}

impl Opened {
    pub(super) fn new(
        database: Database,
        generation: u64,
        device: Arc<dyn Device>,
        cache_bytes: usize,
    ) -> Opened {
        let loss = database.loss().clone();
        Opened { device, cache_bytes, database: Some(database), generation, loss }
    }

    /// Returns true if confirmed data may be lost. Then the database must be neither read nor
    /// written (invariants O.1 and O.2).
    pub(super) fn is_lost(&self) -> bool {
        self.loss.is_noted()
    }

    /// Returns true if the database is open. An open database may still refuse calls after an
    /// error.
    pub(super) fn is_open(&self) -> bool {
        self.database.is_some()
    }

    /// Writes `records` to the database in one commit, and returns a snapshot that shows them.
    /// After an error the database refuses all calls.
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

    /// Reopens the database and returns a new snapshot. The caller has dropped all other snapshots
    /// of the database.
    ///
    /// # Errors
    /// The error of the device; `InvalidData` if confirmed commits are missing. After an error the
    /// database is closed.
    pub(super) fn open_again(&mut self) -> io::Result<Snapshot> {
        self.database = None;
        if self.is_lost() {
            return Err(io::ErrorKind::Other.into());
        }
        // Cached pages would hide the loss of the last commit.
        self.device.drop_cached();
        let again = Database::open_with(&self.device, self.cache_bytes, &self.loss)?;
        let snapshot = again.snapshot()?;
        let superblock = snapshot.get(&Key::SUPER)?.map(|value| SuperRecord::decode(&value));
        match superblock {
            // A larger generation is no error: a commit may have become durable and yet returned an
            // error. The caller writes its records once more.
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
