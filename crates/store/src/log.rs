//! The write-ahead log: makes a small transaction durable with one write and one sync.
//!
//! A commit to the database writes several pages, and file data is synced on another device. So a
//! small transaction is appended to the log instead, as one *entry*: its records, and the bytes
//! that it wrote to files. Later they are also written to the database ([`crate::journal`]).
//!
//! Each commit to the database increments the *generation*, which makes all entries in the log
//! void. Only a mount and `fsck` read the log.
//!
//! # Guarantees
//! - I.1: an entry is valid if its generation, number and hash are right and all entries before it
//!   are valid. So torn and older entries are invalid. A valid-looking entry behind an invalid one
//!   shows damage, so a mount refuses the store. A log with a later generation than the database is
//!   refused too ([`replay()`]).
//! - I.2: each entry starts on a new block, so no append touches a block of a valid entry.
//! - I.3: a replay that a crash interrupts can be repeated. [`replay()`] writes one database
//!   transaction, which gets the next generation.
//! - I.4: if file data overwrites data in the log, the new data is logged too, or synced with the
//!   next commit to the database. See guarantee J.6 of `journal`. So a replay writes no older bytes
//!   over confirmed ones.
//! - I.5: if the log has an end mark of a generation, no entry of that generation is confirmed.
//!
//! # End marks
//! An *end mark* is a header without records, which says that its generation has no entries. A
//! commit to the database writes one to each of the first two blocks of the log. The first entry of
//! the generation overwrites both. A mount learns from a mark:
//! - If the mark is newer than the database, the database is too old.
//! - If a block of the log is unreadable, a mark of the database's generation proves that no
//!   confirmed entry is lost.
//!
//! A commit does not sync the end marks, since a sync would make it take a third longer. Only
//! closing the store syncs them ([`Log::end`]).
//!
//! # Length
//! While the log is in use, the superblock contains its length ([`SuperRecord::log_bytes`]). A
//! mount refuses a store whose log is shorter ([`crate::OpenError::LogShort`]). A mount also fills
//! the log with zeros, so that the host allocates all blocks. Then a sync of an entry costs the
//! host one write, and cannot fail for lack of space.
//!
//! Source: the ZFS intent log; Linux `fs/jbd2/recovery.c` (revoke records, for guarantee I.4).

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

const BLOCK_BYTES: usize = 4096;
const HASH_BYTES: usize = 8;
const HEADER_BYTES: usize = 32;
/// Maximum length of an entry in bytes. A reader loads a whole entry into memory, so it refuses a
/// longer one. Commits write less than half as much.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// The entry number of an end mark, which says that the log is empty.
const END: u64 = u64::MAX;
const MARKED_BYTES: usize = 2 * BLOCK_BYTES;
const MARK_WORDS: Range<usize> = BLOCK_BYTES + HASH_BYTES..BLOCK_BYTES + 3 * HASH_BYTES;
const VALUE: u8 = 1;
const REMOVED: u8 = 2;
const DATA: u8 = 3;

pub(crate) struct Log {
    device: Arc<dyn Device>,
    secret: Secret,
    superblock: SuperRecord,
    capacity: u64,
    end: u64,
    number: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Allocates `capacity` bytes for the log on its device. If the host fails or has no space, the
    /// log has a capacity of 0. Then all transactions go to the database.
    pub(crate) fn new(device: Arc<dyn Device>, superblock: SuperRecord, capacity: u64) -> Log {
        let mut capacity = capacity - capacity % BLOCK_BYTES as u64;
        // A log without space for both end marks is not used.
        if capacity < MARKED_BYTES as u64 {
            capacity = 0;
        }
        if take_room(&*device, capacity).and_then(|()| device.sync()).is_err() {
            capacity = 0;
            // If the log cannot be emptied, its entries do no harm, since no mount replays entries
            // of earlier generations. So the error is ignored.
            let _ = device.set_len(0);
        }
        let secret = Secret::new(superblock.seed);
        Log { device, secret, superblock, capacity, end: 0, number: 0, buffer: Vec::new() }
    }

    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Starts a new log entry. An earlier entry that was started but not appended is discarded.
    pub(crate) fn begin(&mut self) -> Entry<'_> {
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES, 0);
        Entry { log: self }
    }

    pub(crate) fn is_empty(&self) -> bool {
        (self.end, self.number) == (0, 0)
    }

    pub(crate) fn superblock(&self) -> SuperRecord {
        self.superblock
    }

    pub(crate) fn superblock_with(&self, log_bytes: u64) -> SuperRecord {
        SuperRecord { log_bytes, ..self.superblock }
    }

    pub(crate) fn set_superblock(&mut self, superblock: SuperRecord) {
        self.superblock = superblock;
    }

    pub(crate) fn next_superblock(&self) -> SuperRecord {
        SuperRecord { generation: self.superblock.generation + 1, ..self.superblock }
    }

    /// Starts the next generation after a commit to the database. A mount does not depend on the
    /// end marks, so errors are ignored and the marks are not synced.
    pub(crate) fn restart(&mut self) {
        self.superblock = self.next_superblock();
        (self.end, self.number) = (0, 0);
        let _ = self.mark();
    }

    /// Makes the end marks durable, unless the log has entries. A mount does not depend on them, so
    /// an error is ignored.
    pub(crate) fn end(&mut self) {
        if self.is_empty() {
            let _ = self.mark().and_then(|()| self.device.sync());
        }
    }

    /// Writes both end marks. A mount needs only one of them, so a torn write does no harm.
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

    fn seal(&mut self, number: u64, payload: usize) {
        let header = [self.superblock.generation, number, payload as u64];
        for (at, word) in header.iter().enumerate() {
            let at = HASH_BYTES * (at + 1);
            self.buffer[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let hash = self.secret.hash_whole(&self.buffer[HASH_BYTES..HEADER_BYTES + payload]);
        self.buffer[..HASH_BYTES].copy_from_slice(&hash.to_le_bytes());
    }

    pub(crate) fn generation(&self) -> u64 {
        self.superblock.generation
    }
}

/// A log entry that is being assembled. Its format is:
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
    pub(crate) fn put(&mut self, key: &Key, record: &Record) {
        let buffer = &mut self.log.buffer;
        buffer.push(if record.is_some() { VALUE } else { REMOVED });
        buffer.extend_from_slice(&key.to_bytes());
        if let Some(value) = record {
            buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
            buffer.extend_from_slice(value);
        }
    }

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

    /// Appends the entry to the log and syncs it. Returns the length of the entry in bytes, or None
    /// if the log has no space for it.
    ///
    /// # Errors
    /// The error of the device. After it the end of the log is unknown, so the log takes no more
    /// entries until [`Log::restart`].
    pub(crate) fn append(self) -> io::Result<Option<u64>> {
        let log = self.log;
        let payload = log.buffer.len() - HEADER_BYTES;
        log.buffer.resize(log.buffer.len().next_multiple_of(BLOCK_BYTES), 0);
        let bytes = log.buffer.len() as u64;
        if log.end + bytes > log.capacity || bytes > ENTRY_BYTES_MAX as u64 {
            return Ok(None);
        }
        log.seal(log.number, payload);
        // The file data in the first entry may by chance equal the second end mark. The next mount
        // would take the log for empty, and lose the entry.
        //
        // Return None, so that the transaction goes to the database instead.
        let words = [log.superblock.generation, END].map(u64::to_le_bytes);
        if log.end == 0
            && log.buffer.get(MARK_WORDS).is_some_and(|bytes| bytes == words.as_flattened())
        {
            return Ok(None);
        }
        if log.end == 0 {
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
