//! The checks that a mount makes before it changes the store.
//!
//! A mount computes which blocks are free, and how many inodes and attribute blocks exist. These
//! facts are not stored. After a crash, the records in the log count too.
//!
//! A block is free if no extent contains it. If the record of an extent were lost on a damaged
//! page, a new file would overwrite its blocks. So redb verifies the checksums of all pages
//! (`database`), and a mount refuses overlapping extents.
//!
//! # Invariants
//! - N.1: a mount that refuses a store has not changed a byte of it. [`Mount::look`] finds every
//!   reason for a refusal, and only reads. [`Mount::settle`] makes the changes.
//!
//! If the host fails in `settle`, the next mount replays the log again. The log's entries stay
//! valid until a commit to the database makes them void.
//!
//! # How it works
//! 1. The database is opened on a device that buffers its writes (`buffered`).
//! 2. The mount reads the whole log and keeps the records that it needs (`log::Contents`).
//! 3. It checks the database as if these records were already in it.
//! 4. It makes missing files, releases the buffered writes, and replays the log.
//!
//! Rejected alternative: replay the log in memory first, as `fsck` does, and a second time on disk.
//! The first replay would keep all changed pages in memory, in the worst case some hundred MiB.

use std::sync::Arc;

use corewalk::Errno;

use crate::alloc::Run;
use crate::blocks::BlockTotals;
use crate::buffered::BufferedDevice;
use crate::content::BLOCK_BYTES;
use crate::database::{Database, Snapshot, is_ours};
use crate::device::Device;
use crate::journal::Devices;
use crate::log::{self, Changes, Contents};
use crate::record::{BLOCKS_MAX, Extent, FORMAT_VERSION, Key, Kind, SuperRecord, UsersRecord};
use crate::store_dir::OpenError;

pub(crate) struct BufferedDatabase {
    database: Database,
    buffered: Arc<BufferedDevice>,
}

impl BufferedDatabase {
    pub(crate) fn open(
        devices: &Devices,
        cache_bytes: usize,
    ) -> Result<BufferedDatabase, OpenError> {
        let buffered = Arc::new(BufferedDevice::new(devices.meta.clone())?);
        let meta: Arc<dyn Device> = buffered.clone();
        let above = Devices { meta, ..devices.clone() };
        devices.read_anew();
        Ok(BufferedDatabase { database: open_database(&above, cache_bytes)?, buffered })
    }

    pub(crate) fn has_store(&self) -> Result<bool, OpenError> {
        let snapshot = self.database.snapshot()?;
        let superblock = snapshot.get(&Key::SUPER).map_err(|errno| refusal(&snapshot, errno))?;
        Ok(superblock.is_some())
    }

    /// Applies the buffered writes to the device of the database. After this call, the database
    /// writes directly to that device.
    ///
    /// # Errors
    /// The error of the device.
    pub(crate) fn release(&self) -> Result<&Database, OpenError> {
        self.buffered.release()?;
        Ok(&self.database)
    }
}

pub(crate) struct Mount {
    devices: Devices,
    database: BufferedDatabase,
    superblock: SuperRecord,
    log: Contents,
    found: Scan,
}

impl Mount {
    /// Checks the store, and finds every reason for which the mount must be refused. Changes
    /// nothing (invariant N.1).
    ///
    /// # Errors
    /// Any [`OpenError`] of an existing store.
    pub(crate) fn look(devices: Devices, database: BufferedDatabase) -> Result<Mount, OpenError> {
        let snapshot = database.database.snapshot()?;
        let superblock = read_super(&snapshot)?;
        let log = look_at_log(&devices, superblock)?;
        let found = Scan::of(&snapshot, &log.changes);
        let found = found.map_err(|errno| refusal(&snapshot, errno))?;
        drop(snapshot);
        let len = devices.data.len()?;
        // The replay may extend the data device, so extents in the log are compared with its length
        // after the replay.
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

    pub(crate) fn settle(
        self,
        make: impl FnOnce(Devices) -> std::io::Result<Devices>,
    ) -> Result<(Database, Devices, SuperRecord, Scan), OpenError> {
        let devices = make(self.devices)?;
        let database = self.database.release()?;
        let superblock = log::replay(&devices, database, self.superblock, &self.log)?;
        Ok((self.database.database, devices, superblock, self.found))
    }
}

/// Makes a new database on an empty device.
pub(crate) fn open_database(devices: &Devices, cache_bytes: usize) -> Result<Database, OpenError> {
    match is_ours(&*devices.meta)? {
        true => Ok(Database::open(&devices.meta, cache_bytes)?),
        false => Err(OpenError::Foreign),
    }
}

pub(crate) fn refusal(snapshot: &Snapshot, errno: Errno) -> OpenError {
    if snapshot.is_damaged() { OpenError::Damaged } else { errno.into() }
}

pub(crate) fn read_super(snapshot: &Snapshot) -> Result<SuperRecord, OpenError> {
    let value = snapshot.get(&Key::SUPER).map_err(|errno| refusal(snapshot, errno))?;
    let record = SuperRecord::decode(&value.ok_or(OpenError::Damaged)?);
    let record = record.map_err(|_| OpenError::Damaged)?;
    match record.version {
        FORMAT_VERSION => Ok(record),
        version => Err(OpenError::Version(version)),
    }
}

/// Reads the log, and checks that it is as long as the superblock says. Changes nothing.
///
/// # Errors
/// The errors of [`log::look`]; [`OpenError::LogShort`].
pub(crate) fn look_at_log(devices: &Devices, found: SuperRecord) -> Result<Contents, OpenError> {
    let contents = log::look(&*devices.log, found)?;
    let (len, expected) = (devices.log.len()?, found.log_bytes);
    match len < expected {
        true => Err(OpenError::LogShort { len, expected }),
        false => Ok(contents),
    }
}

pub(crate) type Visit<'a> = dyn FnMut(Key, &[u8]) -> Result<(), Errno> + 'a;

#[derive(Default)]
pub(crate) struct Scan {
    pub(crate) orphans: Vec<u64>,
    pub(crate) inodes: u64,
    pub(crate) last_ino: u64,
    pub(crate) runs: Vec<Run>,
    /// The end of all written extents, as a block number. `based_end` is the end of those extents
    /// that are in the database already. Before the replay, which may extend the device, only
    /// `based_end` must lie within the device.
    data_end: u64,
    based_end: u64,
    pub(crate) blocks: u64,
    pub(crate) xattrs: BlockTotals,
}

impl Scan {
    pub(crate) const KINDS: [Kind; 4] = [Kind::Orphan, Kind::Inode, Kind::Extent, Kind::XattrUsers];

    fn of(snapshot: &Snapshot, changes: &Changes) -> Result<Scan, Errno> {
        let mut found = Scan::default();
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
            found.xattrs.blocks += 1;
            found.xattrs.users += u64::from(record.users);
            found.xattrs.last_id = key.major;
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

    /// Returns a block that two extents contain, if there is one. If one of the extents were freed,
    /// another file could get a block that is still in use.
    fn find_used_twice(&self) -> Option<u64> {
        let mut pairs = self.runs.iter().zip(self.runs.iter().skip(1));
        pairs.find(|(run, next)| run.start + run.len > next.start).map(|(_, next)| next.start)
    }

    /// Adds to the count of allocated blocks. `EIO` if the count exceeds the largest device, since
    /// some extents must then overlap.
    fn add_blocks(&mut self, blocks: u64) -> Result<(), Errno> {
        let sum = self.blocks.checked_add(blocks).filter(|&sum| sum <= BLOCKS_MAX);
        self.blocks = sum.ok_or(Errno::IO)?;
        Ok(())
    }
}

pub(crate) fn each(snapshot: &Snapshot, kind: Kind, visit: &mut Visit<'_>) -> Result<(), Errno> {
    each_changed(snapshot, &Changes::new(), kind, visit)
}

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
