//! The log: what makes a small transaction durable with one write and one sync.
//!
//! A commit of the database writes pages here and there, and the blocks of files lie elsewhere still. So
//! a small transaction is appended to the log as one *entry* instead: its records, and the bytes that it
//! wrote to files. What the log holds is in memory as well ([`crate::journal`]), until a later commit
//! writes all of it to the database. Every commit of the database also says the log's next *generation*, which makes
//! what the log holds void, and tells a database that has lost its last commit from one that has not. A log is only read when a store is mounted, or checked, after a crash.
//!
//! | bytes | what |
//! |---|---|
//! | 8 | hash of all that follows, of every byte (`hash_whole`), with the secret of the store |
//! | 8 | generation |
//! | 8 | number of the entry within it, from 0 |
//! | 8 | bytes of records and data |
//! | | records: 1, key, bytes of the value, value; or 2, key: it is gone |
//! | | data: 3, where on the data device, bytes, the bytes |
//! | | zeros up to the next 4096 |
//!
//! # Guarantees
//! - I.1: an entry counts if all before it count, and generation, number and hash are right. So what was
//!   synced counts, and what was cut off does not, nor what an earlier generation left. Where one does not
//!   count and a later one would, the log is damaged, and refused; so is the store if one is of a later generation
//!   than the database says ([`replay`]).
//! - I.2: no write touches a block of an entry that counts: each begins on a block of its own.
//! - I.3: to read a log twice is as to read it once: [`replay`] ends with one transaction of the
//!   database, which has the next generation.
//! - I.4: data of a file that is written again while the log has older data is in the log too, or in
//!   the database's next transaction; see `journal`, J.6. So a replay never puts old bytes over those
//!   that were confirmed.
//!
//! - I.5: an end mark of the database's generation is in a block only while no entry of that generation was ever
//!   confirmed.
//!
//! The hash has a secret, so bytes of a file that lie in the log do not pass for an entry.
//!
//! # End marks
//! After each commit of the database the log has nothing, and an *end mark* is written into its first two blocks: a
//! header without records, whose number no entry has. It says two things to the next mount. A database of an
//! earlier generation has gone back, also if nothing went to the log after its last commit. And a block that cannot be
//! read may have nothing that counts, so it is no reason to refuse the store. The first entry of a generation
//! writes both blocks with one write, and is confirmed after that (I.5).
//!
//! The mark comes after the commit that it speaks of is durable, so a crash leaves none of a later generation than
//! the database's. Nobody waits for it, but who closes the store ([`Log::end`]): a sync would take each commit of
//! the database a third longer. A process that is killed leaves it to the host, which has it written within some
//! seconds, by default; a host that crashes before that loses it.
//!
//! # Its length
//! Before the first entry is appended the superblock says how many bytes the log has ([`SuperRecord::log_bytes`]), and
//! when the store is closed, or the log is put into the database, that it has none. So a log that is shorter than
//! that, or missing, is refused ([`crate::OpenError::LogShort`]), and one that nothing is needed of is not. A mount and its end
//! cost a commit of the database each for that.
//!
//! # What it refuses
//! Its room is taken when the store is mounted, with zeros written to it the first time: a sync of blocks that a
//! file has already is one write for the host, and does not fail for want of room. Whatever does not fit is
//! for the database; all of it if there is no room, or the host fails to write or to sync the log then.
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

/// Where entries begin is a multiple of this, in bytes.
const BLOCK_BYTES: usize = 4096;
/// Bytes of the hash, and of all that comes before records.
const HASH_BYTES: usize = 8;
const HEADER_BYTES: usize = 32;
/// The most bytes of an entry, so that one can be read into memory. A transaction that goes to the log
/// has less than half of it.
const ENTRY_BYTES_MAX: usize = 1 << 20;
/// The number of an end mark, and the bytes at the beginning in each block of which there is one.
const END: u64 = u64::MAX;
const MARKED_BYTES: usize = 2 * BLOCK_BYTES;
/// Where the second one has its generation and its number.
const MARK_WORDS: Range<usize> = BLOCK_BYTES + HASH_BYTES..BLOCK_BYTES + 3 * HASH_BYTES;
/// What begins a record, one that is gone, and data.
const VALUE: u8 = 1;
const GONE: u8 = 2;
const DATA: u8 = 3;

/// The log of a mounted store. See the module's text.
pub(crate) struct Log {
    device: Arc<dyn Device>,
    secret: Secret,
    superblock: SuperRecord,
    /// Bytes that there are; 0 for a log that takes nothing.
    capacity: u64,
    /// Where the next entry goes, and its number.
    end: u64,
    number: u64,
    buffer: Vec<u8>,
}

impl Log {
    /// Returns the empty log of a store, of `capacity` bytes; of none, so that all is for the database, where
    /// the host has no room or fails.
    pub(crate) fn new(device: Arc<dyn Device>, superblock: SuperRecord, capacity: u64) -> Log {
        let mut capacity = capacity - capacity % BLOCK_BYTES as u64;
        // Too short for its end marks.
        if capacity < MARKED_BYTES as u64 {
            capacity = 0;
        }
        if take_room(&*device, capacity).and_then(|()| device.sync()).is_err() {
            capacity = 0;
            // Nothing of it is needed. Where it cannot be cut, what it has is void even so.
            let _ = device.set_len(0);
        }
        let secret = Secret::new(superblock.seed);
        Log { device, secret, superblock, capacity, end: 0, number: 0, buffer: Vec::new() }
    }

    /// Returns the bytes that it may have.
    pub(crate) fn capacity(&self) -> u64 {
        self.capacity
    }

    /// Begins an entry, in place of one that was begun and not appended.
    pub(crate) fn begin(&mut self) -> Entry<'_> {
        self.buffer.clear();
        self.buffer.resize(HEADER_BYTES, 0);
        Entry { log: self }
    }

    /// Returns true if nothing that counts is in the log.
    pub(crate) fn is_empty(&self) -> bool {
        (self.end, self.number) == (0, 0)
    }

    /// Returns the superblock that the database has.
    pub(crate) fn superblock(&self) -> SuperRecord {
        self.superblock
    }

    /// Returns the same, of a log that needs `log_bytes`.
    pub(crate) fn superblock_with(&self, log_bytes: u64) -> SuperRecord {
        SuperRecord { log_bytes, ..self.superblock }
    }

    /// Says that the database has `superblock`, of the same generation.
    pub(crate) fn set_superblock(&mut self, superblock: SuperRecord) {
        self.superblock = superblock;
    }

    /// Returns the superblock of the next commit of the database, with which the log becomes void.
    pub(crate) fn next_superblock(&self) -> SuperRecord {
        SuperRecord { generation: self.superblock.generation + 1, ..self.superblock }
    }

    /// Says that the database has the superblock `next_superblock`, also in the log: with an end mark, which
    /// nobody waits for. What the host says of that does not matter.
    pub(crate) fn restart(&mut self) {
        self.superblock = self.next_superblock();
        (self.end, self.number) = (0, 0);
        let _ = self.mark();
    }

    /// Makes the end mark durable, if nothing was appended since the last commit of the database. That is good to
    /// have, and no more: what the host says of it does not matter.
    pub(crate) fn end(&mut self) {
        if self.is_empty() {
            let _ = self.mark().and_then(|()| self.device.sync());
        }
    }

    /// Writes the end mark, over what an earlier generation left. Whatever part of it is there says the same.
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

    /// Writes the header of what is in the buffer, with `payload` bytes of records and data.
    fn seal(&mut self, number: u64, payload: usize) {
        let header = [self.superblock.generation, number, payload as u64];
        for (at, word) in header.iter().enumerate() {
            let at = HASH_BYTES * (at + 1);
            self.buffer[at..at + 8].copy_from_slice(&word.to_le_bytes());
        }
        let hash = self.secret.hash_whole(&self.buffer[HASH_BYTES..HEADER_BYTES + payload]);
        self.buffer[..HASH_BYTES].copy_from_slice(&hash.to_le_bytes());
    }

    /// Returns the generation of the superblock that the database has.
    pub(crate) fn generation(&self) -> u64 {
        self.superblock.generation
    }
}

/// An entry of a log that is put together.
pub(crate) struct Entry<'a> {
    log: &'a mut Log,
}

impl Entry<'_> {
    /// Adds a record.
    pub(crate) fn put(&mut self, key: &Key, record: &Record) {
        let buffer = &mut self.log.buffer;
        buffer.push(if record.is_some() { VALUE } else { GONE });
        buffer.extend_from_slice(&key.to_bytes());
        if let Some(value) = record {
            // No record has 4 GiB.
            buffer.extend_from_slice(&(value.len() as u32).to_le_bytes());
            buffer.extend_from_slice(value);
        }
    }

    /// Adds bytes of the data device, which `read` gets.
    ///
    /// # Errors
    /// That of `read`.
    pub(crate) fn put_data<E>(
        &mut self,
        (offset, len): (u64, u32),
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

    /// Makes the entry durable; returns its bytes, or None if the log has no room for it.
    ///
    /// # Errors
    /// What the device says. The log takes nothing then until it is begun anew, since what is at its
    /// end is not known.
    pub(crate) fn append(self) -> io::Result<Option<u64>> {
        let log = self.log;
        let payload = log.buffer.len() - HEADER_BYTES;
        log.buffer.resize(log.buffer.len().next_multiple_of(BLOCK_BYTES), 0);
        let bytes = log.buffer.len() as u64;
        if log.end + bytes > log.capacity || bytes > ENTRY_BYTES_MAX as u64 {
            return Ok(None);
        }
        log.seal(log.number, payload);
        // Bytes of a file, where the second end mark was: they are for the database.
        let words = [log.superblock.generation, END].map(u64::to_le_bytes);
        if log.end == 0
            && log.buffer.get(MARK_WORDS).is_some_and(|bytes| bytes == words.as_flattened())
        {
            return Ok(None);
        }
        if log.end == 0 {
            // Over both end marks (I.5).
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
