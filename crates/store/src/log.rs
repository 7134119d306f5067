//! The write-ahead log: makes a small transaction durable with one write and one sync.
//!
//! A commit of the database writes several pages, and file data goes to another device. To avoid
//! that, a small transaction is appended to the log as one *entry*: its records, and the bytes that
//! it wrote to files. Its records also stay in memory ([`crate::journal`]) until a later commit
//! writes them to the database. Each commit of the database increments the *generation*, which
//! makes all entries in the log void. Only a mount and a check of a store read the log.
//!
//! # Guarantees
//! - I.1: an entry is valid if its generation, number and hash are right and all entries before it
//!   are valid. So torn entries and entries of older generations are invalid. A valid entry behind
//!   an invalid one means damage, and the store is refused. A store whose log has a later
//!   generation than its database is refused too ([`replay()`]).
//! - I.2: each entry starts on a new block, so no write touches a block of a valid entry.
//! - I.3: a replay may be repeated. [`replay()`] writes one transaction of the database, which gets
//!   the next generation.
//! - I.4: new data over logged data is logged too, or goes to the next database transaction (J.6 of
//!   `journal`). So a replay never puts old bytes over confirmed ones.
//! - I.5: an end mark of the database's generation exists only while no entry of that generation is
//!   confirmed.
//!
//! # End marks
//! After each commit of the database an *end mark* is written to each of the first two blocks: a
//! header without records. An end mark newer than the database tells a mount that the database is
//! too old. An end mark of the database's generation tells it that an unreadable block holds no
//! confirmed entry. The first entry of a generation overwrites both marks. Only a close syncs the
//! marks ([`Log::end`]), since a sync would make each commit a third longer.
//!
//! # Length
//! The superblock records the length of a log in use ([`SuperRecord::log_bytes`]), and 0 once the
//! store is closed. A store whose log is shorter is refused ([`crate::OpenError::LogShort`]). The
//! mount fills the whole log with zeros. So a sync of an entry is one write for the host, and
//! cannot fail for lack of space.
//!
//! Source: the ZFS intent log; Linux `fs/jbd2/recovery.c`, and its revoke records for I.4.

#[cfg(test)]
mod mutations;
mod replay;

use std::io;
use std::ops::Range;
use std::sync::Arc;

use crate::device::{Device, take_room};
use crate::hash::Secret;
use crate::layer::Record;
use crate::record::{Key, SuperRecord};

pub(crate) use replay::{Changes, Contents, look, replay};

/// Entries start at multiples of this, in bytes.
const BLOCK_BYTES: usize = 4096;
/// Length of the hash, and of the whole header, in bytes.
const HASH_BYTES: usize = 8;
const HEADER_BYTES: usize = 32;
/// Maximum number of bytes of an entry. A reader refuses longer ones, since it loads an entry into
/// memory as a whole. A commit writes entries of less than half that length.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// An entry with the number `END` is an end mark. The end marks are in the first two blocks of the
/// log, whose length is `MARKED_BYTES`.
const END: u64 = u64::MAX;
const MARKED_BYTES: usize = 2 * BLOCK_BYTES;
/// The range of bytes in the log that has the generation and the number of the second end mark.
const MARK_WORDS: Range<usize> = BLOCK_BYTES + HASH_BYTES..BLOCK_BYTES + 3 * HASH_BYTES;
/// The first byte of each item in an entry. It tells the kind of the item: a record, a removed
/// record, or file data.
const VALUE: u8 = 1;
const REMOVED: u8 = 2;
const DATA: u8 = 3;

/// The log of a mounted store, to which entries are appended.
pub(crate) struct Log {
    device: Arc<dyn Device>,
    secret: Secret,
    superblock: SuperRecord,
    /// Length in bytes, 0 for a log that takes no entries.
    capacity: u64,
    /// The offset and the number of the next entry.
    end: u64,
    number: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Returns the empty log of a store, with `capacity` bytes. If the host fails or has no space
    /// for it, the capacity is 0 and all transactions go to the database.
    pub(crate) fn new(device: Arc<dyn Device>, superblock: SuperRecord, capacity: u64) -> Log {
        let mut capacity = capacity - capacity % BLOCK_BYTES as u64;
        // Too short for the end marks.
        if capacity < MARKED_BYTES as u64 {
            capacity = 0;
        }
        if take_room(&*device, capacity).and_then(|()| device.sync()).is_err() {
            capacity = 0;
            // Remove the entries. They are void, so an error of the removal does no harm.
            let _ = device.set_len(0);
        }
        let secret = Secret::new(superblock.seed);
        Log { device, secret, superblock, capacity, end: 0, number: 0, buffer: Vec::new() }
    }

    /// Returns the length in bytes.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Starts an entry. Discards an entry that was started before but not appended.
    pub(crate) fn begin(&mut self) -> Entry<'_> {
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES, 0);
        Entry { log: self }
    }

    /// Returns true if the log has no valid entry.
    pub(crate) fn is_empty(&self) -> bool {
        (self.end, self.number) == (0, 0)
    }

    /// Returns the superblock of the database.
    pub(crate) fn superblock(&self) -> SuperRecord {
        self.superblock
    }

    /// Returns the same superblock with another `log_bytes`.
    pub(crate) fn superblock_with(&self, log_bytes: u64) -> SuperRecord {
        SuperRecord { log_bytes, ..self.superblock }
    }

    /// Notes that a commit has changed the superblock of the database to `superblock`, but not its
    /// generation.
    pub(crate) fn set_superblock(&mut self, superblock: SuperRecord) {
        self.superblock = superblock;
    }

    /// Returns the superblock for the next commit of the database. It has a new generation, which
    /// makes all entries in the log void.
    pub(crate) fn next_superblock(&self) -> SuperRecord {
        SuperRecord { generation: self.superblock.generation + 1, ..self.superblock }
    }

    /// Starts the next generation after a commit of the database. Writes the end marks (which say
    /// that the generation has no entries) without a sync. Ignores an error, since a mount can do
    /// without these marks.
    pub(crate) fn restart(&mut self) {
        self.superblock = self.next_superblock();
        (self.end, self.number) = (0, 0);
        let _ = self.mark();
    }

    /// Makes the end marks (which say that the log is empty) durable. Does nothing if an entry was
    /// appended since the last commit of the database. Ignores an error, since a mount can do
    /// without these marks.
    pub(crate) fn end(&mut self) {
        if self.is_empty() {
            let _ = self.mark().and_then(|()| self.device.sync());
        }
    }

    /// Writes the end mark of this generation to each of the first two blocks, over entries of an
    /// earlier generation. A mount needs only one of the two marks, so the write may be torn.
    fn mark(&mut self) -> io::Result<()> {
        if self.capacity == 0 {
            return Ok(());
        }
        self.buffer.clear();
        self.buffer.resize(BLOCK_BYTES, 0);
        self.seal(END, 0);
        self.buffer = self.buffer.repeat(MARKED_BYTES / BLOCK_BYTES);
        self.device.write_at(0, &self.buffer)
    }

    /// Fills in the header of the entry in the buffer. `payload` is the number of bytes of records
    /// and file data behind the header.
    fn seal(&mut self, number: u64, payload: usize) {
        let header = [self.superblock.generation, number, payload as u64];
        for (at, word) in header.iter().enumerate() {
            let at = HASH_BYTES * (at + 1);
            self.buffer[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let hash = self.secret.hash_whole(&self.buffer[HASH_BYTES..HEADER_BYTES + payload]);
        self.buffer[..HASH_BYTES].copy_from_slice(&hash.to_le_bytes());
    }

    /// Returns the generation in the superblock of the database.
    pub(crate) fn generation(&self) -> u64 {
        self.superblock.generation
    }
}

/// An entry that is being assembled. The format of an entry is:
///
/// | bytes | contents |
/// |---|---|
/// | 8 | hash of all bytes that follow (`hash_whole`), with the store's secret |
/// | 8 | generation |
/// | 8 | number of the entry within the generation, from 0 |
/// | 8 | length of records and data |
/// | | record: 1, key, length of the value, value; or 2, key: the record is removed |
/// | | data: 3, offset on the data device, length, bytes |
/// | | zeros up to a multiple of 4096 |
pub(crate) struct Entry<'a> {
    log: &'a mut Log,
}

impl Entry<'_> {
    /// Adds a record.
    pub(crate) fn put(&mut self, key: &Key, record: &Record) {
        let buffer = &mut self.log.buffer;
        buffer.push(if record.is_some() { VALUE } else { REMOVED });
        buffer.extend_from_slice(&key.to_bytes());
        if let Some(value) = record {
            // A record is far shorter than 4 GiB.
            buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
            buffer.extend_from_slice(value);
        }
    }

    /// Adds `len` bytes of file data, which belong at `offset` on the data device. `read` reads
    /// them into a buffer.
    ///
    /// # Errors
    /// The error of `read`.
    pub(crate) fn put_data<E>(
        &mut self,
        offset: u64,
        len: u32,
        read: impl FnOnce(&mut [u8]) -> Result<(), E>,
    ) -> Result<(), E> {
        let buffer = &mut self.log.buffer;
        buffer.push(DATA);
        buffer.extend_from_slice(&offset.to_le_bytes());
        buffer.extend_from_slice(&len.to_le_bytes());
        let at = buffer.len();
        buffer.resize(at + len as usize, 0);
        read(&mut buffer[at..])
    }

    /// Makes the entry durable. Returns its length in bytes, or None if the log has no space for
    /// it.
    ///
    /// # Errors
    /// The error of the device. Then the log takes no more entries until [`Log::restart`], since
    /// the bytes at its end are unknown.
    pub(crate) fn append(self) -> io::Result<Option<u64>> {
        let log = self.log;
        let payload = log.buffer.len() - HEADER_BYTES;
        log.buffer.resize(log.buffer.len().next_multiple_of(BLOCK_BYTES), 0);
        let bytes = log.buffer.len() as u64;
        if log.end + bytes > log.capacity || bytes > ENTRY_BYTES_MAX as u64 {
            return Ok(None);
        }
        log.seal(log.number, payload);
        // The file data of this entry looks like the second end mark, and a mount would mistake it
        // for the mark. So the transaction has to go to the database.
        let words = [log.superblock.generation, END].map(u64::to_le_bytes);
        if log.end == 0
            && log.buffer.get(MARK_WORDS).is_some_and(|bytes| bytes == words.as_flattened())
        {
            return Ok(None);
        }
        if log.end == 0 {
            // Overwrite both end marks (I.5).
            log.buffer.resize(log.buffer.len().max(MARKED_BYTES), 0);
        }
        let at = std::mem::replace(&mut log.end, log.capacity);
        log.device.write_at(at, &log.buffer)?;
        log.device.sync()?;
        log.end = at + bytes;
        log.number += 1;
        Ok(Some(bytes))
    }
}
