//! A mount, until there is a store: it looks at everything first, and then changes something.
//!
//! A mount reads what is not stored as such: which blocks are free, how many inodes and blocks of attributes there are.
//! After a crash the log's records are part of that, and go to the database.
//!
//! A block that no extent has is free. So a record that a damaged page hides would make blocks of its file free, and a
//! new file would be written over it. The database verifies the checksums of all pages when it is opened (`database`),
//! and the mount refuses extents that overlap.
//!
//! # Invariants
//! - N.1: whatever a mount is refused for it finds before it has changed a byte: [`Mount::look`] asks no device for a
//!   change. What the host fails at later, while [`Mount::settle`] puts the log into the database, loses nothing: the
//!   log has it until the commit that makes it void, and the next mount begins anew.
//!
//! # How it works
//! The database is opened on a device that holds its changes back (`held`). The log is read to its end, and what it has
//! of records that a mount looks at is kept (`log::Contents`), so that they can be counted as if they were in
//! the database. Only then the database may write, the log is put into it, and files that are lost are made anew.
//!
//! Rejected: to put the log into the database in memory, as a check of a store does, and then once more. That is all
//! pages that it changes, some hundred MiB at worst.

use std::sync::Arc;

use corewalk::Errno;

use crate::alloc::Run;
use crate::content::BLOCK_BYTES;
use crate::database::{Database, Snapshot, is_ours};
use crate::device::Device;
use crate::held::Held;
use crate::journal::Devices;
use crate::log::{self, Changes, Contents};
use crate::place::OpenError;
use crate::record::{BLOCKS_MAX, Extent, FORMAT_VERSION, Key, Kind, SuperRecord, UsersRecord};

/// A database that is open, and the device that holds back what it writes.
pub(crate) struct HeldDatabase {
    database: Database,
    held: Arc<Held>,
}

impl HeldDatabase {
    /// As [`open_database`], with nothing changed.
    pub(crate) fn open(devices: &Devices, cache_bytes: usize) -> Result<HeldDatabase, OpenError> {
        let held = Arc::new(Held::new(devices.meta.clone())?);
        let meta: Arc<dyn Device> = held.clone();
        let above = Devices { meta, ..devices.clone() };
        devices.read_anew();
        Ok(HeldDatabase { database: open_database(&above, cache_bytes)?, held })
    }

    /// Returns true if there is a store in it.
    ///
    /// # Errors
    /// [`OpenError::Damaged`]; what the device says.
    pub(crate) fn has_store(&self) -> Result<bool, OpenError> {
        let snapshot = self.database.snapshot()?;
        let superblock = snapshot.get(&Key::SUPER).map_err(|errno| refusal(&snapshot, errno))?;
        Ok(superblock.is_some())
    }

    /// Lets the database write from now on.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn release(&self) -> Result<&Database, OpenError> {
        self.held.release()?;
        Ok(&self.database)
    }
}

/// A store that was looked at, and is not changed yet. See the module's text.
pub(crate) struct Mount {
    devices: Devices,
    database: HeldDatabase,
    superblock: SuperRecord,
    log: Contents,
    found: Found,
}

impl Mount {
    /// Looks at the store on `devices`, whose database is open.
    ///
    /// # Errors
    /// Each [`OpenError`] of a store that is there, with nothing changed (N.1).
    pub(crate) fn look(devices: Devices, database: HeldDatabase) -> Result<Mount, OpenError> {
        let snapshot = database.database.snapshot()?;
        let superblock = read_super(&snapshot)?;
        let log = look_at_log(&devices, superblock)?;
        let found = Found::scan(&snapshot, &log.changes);
        let found = found.map_err(|errno| refusal(&snapshot, errno))?;
        drop(snapshot);
        let len = devices.data.len()?;
        // Bytes that the log has are put where they are to be.
        for (end, is_logged) in [(found.based_end, false), (found.data_end, true)] {
            let expected = end.saturating_mul(BLOCK_BYTES);
            let there = if is_logged { len.max(log.data_end) } else { len };
            if there < expected {
                return Err(OpenError::DataShort { len, expected });
            }
        }
        if let Some(block) = found.find_used_twice() {
            return Err(OpenError::UsedTwice { block });
        }
        Ok(Mount { devices, database, superblock, log, found })
    }

    /// Puts the entries of the log into the database. `make` makes missing files of the store. Returns the
    /// database, the devices, the superblock, and the counts that the scan found.
    ///
    /// # Errors
    /// What the devices say.
    pub(crate) fn settle(
        self,
        make: impl FnOnce(Devices) -> std::io::Result<Devices>,
    ) -> Result<(Database, Devices, SuperRecord, Found), OpenError> {
        let devices = make(self.devices)?;
        let database = self.database.release()?;
        let superblock = log::replay(&devices, database, self.superblock, &self.log)?;
        Ok((self.database.database, devices, superblock, self.found))
    }
}

/// Opens the database of a store, or makes one on an empty device.
pub(crate) fn open_database(devices: &Devices, cache_bytes: usize) -> Result<Database, OpenError> {
    match is_ours(&*devices.meta)? {
        true => Ok(Database::open(&devices.meta, cache_bytes)?),
        false => Err(OpenError::Foreign),
    }
}

/// Returns why a store is not opened of which `snapshot` could not be read.
pub(crate) fn refusal(snapshot: &Snapshot, errno: Errno) -> OpenError {
    if snapshot.is_damaged() { OpenError::Damaged } else { errno.into() }
}

/// Returns the superblock of a store that this program knows.
pub(crate) fn read_super(snapshot: &Snapshot) -> Result<SuperRecord, OpenError> {
    let value = snapshot.get(&Key::SUPER).map_err(|errno| refusal(snapshot, errno))?;
    let record = SuperRecord::decode(&value.ok_or(OpenError::Damaged)?);
    let record = record.map_err(|_| OpenError::Damaged)?;
    match record.version {
        FORMAT_VERSION => Ok(record),
        version => Err(OpenError::Version(version)),
    }
}

/// Returns what the log has of a store with the superblock `found`, with nothing changed.
///
/// # Errors
/// As [`log::look`]; [`OpenError::LogShort`].
pub(crate) fn look_at_log(devices: &Devices, found: SuperRecord) -> Result<Contents, OpenError> {
    let contents = log::look(&*devices.log, found)?;
    let (len, expected) = (devices.log.len()?, found.log_bytes);
    match len < expected {
        true => Err(OpenError::LogShort { len, expected }),
        false => Ok(contents),
    }
}

/// What is done with a record.
pub(crate) type Visit<'a> = dyn FnMut(Key, &[u8]) -> Result<(), Errno> + 'a;

/// What is found out when a store is mounted.
#[derive(Default)]
pub(crate) struct Found {
    pub(crate) orphans: Vec<u64>,
    pub(crate) inodes: u64,
    pub(crate) last_ino: u64,
    pub(crate) runs: Vec<Run>,
    /// Behind the last block that has bytes; the same of what the database had without the log.
    data_end: u64,
    based_end: u64,
    pub(crate) blocks: u64,
    /// Blocks of attributes, their users, the last of them.
    pub(crate) xattrs: (u64, u64, u64),
}

impl Found {
    /// Kinds of the records that are looked at.
    pub(crate) const KINDS: [Kind; 4] = [Kind::Orphan, Kind::Inode, Kind::Extent, Kind::XattrUsers];

    /// Looks at what the database has once `changes` are in it.
    fn scan(snapshot: &Snapshot, changes: &Changes) -> Result<Found, Errno> {
        let mut found = Found::default();
        each_changed(snapshot, changes, Kind::Orphan, &mut |key, _| {
            key.check_number()?;
            found.orphans.push(key.major);
            Ok(())
        })?;
        each_changed(snapshot, changes, Kind::Inode, &mut |key, _| {
            key.check_number()?;
            found.inodes += 1;
            found.last_ino = key.major;
            Ok(())
        })?;
        each_changed(snapshot, changes, Kind::Extent, &mut |key, value| {
            let extent = Extent::decode(value)?;
            found.add_blocks(extent.len)?;
            found.data_end = found.data_end.max(extent.written_end());
            if !changes.contains_key(&key) {
                found.based_end = found.based_end.max(extent.written_end());
            }
            found.runs.push(Run { start: extent.physical, len: extent.len });
            Ok(())
        })?;
        each_changed(snapshot, changes, Kind::XattrUsers, &mut |key, value| {
            key.check_number()?;
            let record = UsersRecord::decode(value)?;
            found.add_blocks(u64::from(record.len).div_ceil(BLOCK_BYTES))?;
            found.xattrs.0 += 1;
            found.xattrs.1 += u64::from(record.users);
            found.xattrs.2 = key.major;
            Ok(())
        })?;
        for key in changes.keys().filter(|key| key.kind == Kind::Extent) {
            if let Some(value) = snapshot.get(key)? {
                let end = Extent::decode(&value)?.written_end();
                found.based_end = found.based_end.max(end);
            }
        }
        found.runs.sort_unstable_by_key(|run| run.start);
        Ok(found)
    }

    /// Returns a block that several extents have, of which one could be freed and given to another file.
    fn find_used_twice(&self) -> Option<u64> {
        let mut pairs = self.runs.iter().zip(self.runs.iter().skip(1));
        pairs.find(|(run, next)| run.start + run.len > next.start).map(|(_, next)| next.start)
    }

    /// Counts blocks. `EIO` for more than a device has: some are in several extents.
    fn add_blocks(&mut self, blocks: u64) -> Result<(), Errno> {
        let sum = self.blocks.checked_add(blocks).filter(|&sum| sum <= BLOCKS_MAX);
        self.blocks = sum.ok_or(Errno::IO)?;
        Ok(())
    }
}

/// Calls `visit` with all records of a kind, in order, until it fails.
pub(crate) fn each(snapshot: &Snapshot, kind: Kind, visit: &mut Visit<'_>) -> Result<(), Errno> {
    each_changed(snapshot, &Changes::new(), kind, visit)
}

/// As [`each`], of the records that there are once `changes` are in the database.
fn each_changed(
    snapshot: &Snapshot,
    changes: &Changes,
    kind: Kind,
    visit: &mut Visit<'_>,
) -> Result<(), Errno> {
    let keys = Key::at(kind, 0, 0)..=Key::at(kind, u64::MAX, u64::MAX);
    let mut above = changes.range(keys.clone()).peekable();
    let mut step = |key: Key, value: &[u8]| -> Result<(), Errno> {
        while let Some((at, record)) = above.next_if(|(at, _)| **at < key) {
            record.as_deref().map_or(Ok(()), |value| visit(*at, value))?;
        }
        match above.next_if(|(at, _)| **at == key) {
            Some((_, record)) => record.as_deref().map_or(Ok(()), |value| visit(key, value)),
            None => visit(key, value),
        }
    };
    let mut result = Ok(());
    snapshot.each(keys, &mut |key, value| {
        result = step(key, value);
        result.is_ok()
    })?;
    result?;
    above.try_for_each(|(at, record)| record.as_deref().map_or(Ok(()), |value| visit(*at, value)))
}
