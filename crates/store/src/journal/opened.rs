//! The database of a mounted store, however often it is opened again.
//!
//! The database refuses everything after an error, and only to open it again helps. What it has then is read
//! from the device anew, and need not be what it was: a host may have lost what it was to write, and a
//! page that is damaged makes the database go back by one commit without a word. So two things are kept
//! beside it.
//!
//! # Invariants
//! - O.1: whether the device may have lost what was written is never forgotten: then the database is not opened
//!   again, and takes nothing more. To close and to open it are writes and syncs too, which can fail.
//! - O.2: the generation of its superblock, which grows with every commit, is never smaller than that of the last
//!   commit. A database with a smaller one has lost what was confirmed, and is not used.
//!
//! Source: Rebello et al., "Can Applications Recover from fsync Failures?", USENIX ATC 2020.

use std::io;
use std::sync::Arc;

use crate::database::{Database, Snapshot};
use crate::device::{Device, Loss};
use crate::layer::Record;
use crate::record::{Key, SuperRecord};

/// The database of a mounted store. See the module's text.
pub(super) struct Opened {
    device: Arc<dyn Device>,
    cache_bytes: usize,
    /// None after it could not be opened again.
    database: Option<Database>,
    /// That of its superblock, as the last commit left it.
    generation: u64,
    loss: Loss,
}

impl Opened {
    /// Returns `database`, which is on `device` and has a superblock of `generation`.
    pub(super) fn new(
        database: Database,
        generation: u64,
        device: Arc<dyn Device>,
        cache_bytes: usize,
    ) -> Opened {
        let loss = database.loss().clone();
        Opened { device, cache_bytes, database: Some(database), generation, loss }
    }

    /// Returns true if to open it again, or to write to it, may give what nobody confirmed (O.1, O.2).
    pub(super) fn is_lost(&self) -> bool {
        self.loss.is_noted()
    }

    /// Returns true if it is open; then it may still refuse everything.
    pub(super) fn is_open(&self) -> bool {
        self.database.is_some()
    }

    /// Writes records, with a superblock of `generation`, as one transaction; returns the database as it is
    /// then.
    ///
    /// # Errors
    /// What the device says. The database is of no use after that.
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

    /// Opens it as the last commit left it. Nobody may have a snapshot of it.
    ///
    /// # Errors
    /// What the device says; `InvalidData` if confirmed commits are not there. It is closed then.
    pub(super) fn open_again(&mut self) -> io::Result<Snapshot> {
        self.database = None;
        if self.is_lost() {
            return Err(io::ErrorKind::Other.into());
        }
        // What the last commit wrote is on the disk, or the database has gone back.
        self.device.drop_cached();
        let again = Database::open_with(&self.device, self.cache_bytes, &self.loss)?;
        let snapshot = again.snapshot()?;
        let superblock = snapshot.get(&Key::SUPER)?.map(|value| SuperRecord::decode(&value));
        match superblock {
            // A commit may have become durable and have said otherwise: then it is written once more.
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
