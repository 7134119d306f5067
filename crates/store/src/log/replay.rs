//! The log read back: what a mount after a crash does, and a check of a store.
//!
//! Entries are read one after the other into one buffer, twice: first only to see that all is well, so
//! that a log that is refused changes nothing; then they are put into data device and database.
//!
//! # Where the log ends
//! An append writes its entry after the sync of the one before has returned, and after a write or a sync
//! that failed nothing more is appended in that generation. So of all entries of a generation only the
//! last can be torn, and nobody was told of that one. An entry that does not count is the end, therefore,
//! if no later one of the same generation counts: all blocks behind are looked through for one. If there
//! is one, what is missing had been confirmed, and the log is damaged: it is refused, rather than taken
//! for a shorter one. (Damage to the last entry is not told from a write that was torn.)
//!
//! That an entry has bytes of a file which look like an entry does not matter: who copied them from the
//! log has a number below that of the entry in which they are, and others do not know the secret.

use std::io;
use std::ops::RangeInclusive;

use super::{BLOCK_BYTES, DATA, ENTRY_BYTES_MAX, GONE, HASH_BYTES, HEADER_BYTES, VALUE};
use crate::database::Database;
use crate::device::Device;
use crate::hash::Secret;
use crate::journal::Devices;
use crate::place::OpenError;
use crate::record::{Fields, KEY_BYTES, Key, SuperRecord};

/// Puts what the log of `superblock` holds into data device and database, and returns the superblock
/// that the database has then.
///
/// # Errors
/// [`OpenError::LogDamaged`] and [`OpenError::LogUnreadable`], with nothing changed; what the devices say.
pub(crate) fn replay(
    devices: &Devices,
    database: &Database,
    superblock: SuperRecord,
) -> Result<SuperRecord, OpenError> {
    let mut reader = Reader::new(&*devices.log, superblock)?;
    loop {
        let at = reader.at;
        let Some(entry) = reader.next()? else { break };
        if each(entry, |_| Ok(())).is_err() {
            return Err(OpenError::LogUnreadable { at });
        }
    }
    if let Some(later) = reader.find_later()? {
        return Err(OpenError::LogDamaged { at: reader.at, later });
    }
    let count = reader.number;
    if count == 0 {
        return Ok(superblock);
    }
    // Whatever this needs of the host is not more than that; it is taken again later.
    devices.reserve.set_len(0)?;
    let next = SuperRecord { generation: superblock.generation + 1, ..superblock };
    let mut reader = Reader::new(&*devices.log, superblock)?;
    database.write_with(|put| {
        for _ in 0..count {
            let entry = reader.next()?.ok_or(io::ErrorKind::UnexpectedEof)?;
            each(entry, |item| match item {
                Item::Record(key, record) => put(&key, record),
                Item::Data(offset, bytes) => devices.data.write_at(offset, bytes),
            })?;
        }
        // The commit makes the log void, which has these bytes until then.
        devices.data.sync()?;
        put(&Key::SUPER, Some(&next.encode()))
    })?;
    Ok(next)
}

/// The entries of a log that count, one after the other.
struct Reader<'a> {
    device: &'a dyn Device,
    len: u64,
    secret: Secret,
    generation: u64,
    /// Where the next one begins, and its number.
    at: u64,
    number: u64,
    buffer: Vec<u8>,
}

impl<'a> Reader<'a> {
    fn new(device: &'a dyn Device, superblock: SuperRecord) -> io::Result<Reader<'a>> {
        let (len, secret) = (device.len()?, Secret::new(superblock.seed));
        let generation = superblock.generation;
        Ok(Reader { device, len, secret, generation, at: 0, number: 0, buffer: Vec::new() })
    }

    /// Returns records and data of the next entry; None if none counts.
    ///
    /// # Errors
    /// What the device says.
    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        if !self.read(self.at, self.number..=self.number)? {
            return Ok(None);
        }
        self.number += 1;
        self.at += self.buffer.len().next_multiple_of(BLOCK_BYTES) as u64;
        Ok(Some(&self.buffer[HEADER_BYTES..]))
    }

    /// Returns where an entry begins that is later than the next, which does not count, if there is one.
    ///
    /// # Errors
    /// What the device says.
    fn find_later(&mut self) -> io::Result<Option<u64>> {
        let mut at = self.at;
        // Each has a block at least.
        for behind in 1.. {
            at += BLOCK_BYTES as u64;
            if at >= self.len {
                break;
            }
            if self.read(at, self.number + 1..=self.number + behind)? {
                return Ok(Some(at));
            }
        }
        Ok(None)
    }

    /// Reads the entry at `at`; returns false if none counts there that has one of these numbers.
    fn read(&mut self, at: u64, numbers: RangeInclusive<u64>) -> io::Result<bool> {
        let mut header = [0; HEADER_BYTES];
        if at + HEADER_BYTES as u64 > self.len {
            return Ok(false);
        }
        self.device.read_at(at, &mut header)?;
        let word = |nth: usize| {
            header[8 * nth..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let [hash, generation, number, payload] = [0, 1, 2, 3].map(word);
        let is_asked_for = generation == self.generation && numbers.contains(&number);
        let bytes = payload.saturating_add(HEADER_BYTES as u64);
        if !is_asked_for || bytes > ENTRY_BYTES_MAX as u64 || at + bytes > self.len {
            return Ok(false);
        }
        self.buffer.resize(bytes as usize, 0);
        self.device.read_at(at, &mut self.buffer)?;
        Ok(hash == self.secret.hash_whole(&self.buffer[HASH_BYTES..]))
    }
}

/// What an entry is made of.
enum Item<'a> {
    Record(Key, Option<&'a [u8]>),
    Data(u64, &'a [u8]),
}

/// Calls `visit` with what is in an entry.
///
/// # Errors
/// `InvalidData` for what makes no sense; those of `visit`.
fn each(mut entry: &[u8], mut visit: impl FnMut(Item<'_>) -> io::Result<()>) -> io::Result<()> {
    while !entry.is_empty() {
        let (item, rest) = parse(entry).ok_or(io::ErrorKind::InvalidData)?;
        visit(item)?;
        entry = rest;
    }
    Ok(())
}

fn parse(bytes: &[u8]) -> Option<(Item<'_>, &[u8])> {
    let mut fields = Fields(bytes);
    let [what] = fields.take().ok()?;
    if what == DATA {
        let (offset, len) = (fields.u64().ok()?, fields.u32().ok()?);
        let (bytes, rest) = fields.0.split_at_checked(len as usize)?;
        return Some((Item::Data(offset, bytes), rest));
    }
    let key = Key::from_bytes(&fields.take::<KEY_BYTES>().ok()?)?;
    match what {
        GONE => Some((Item::Record(key, None), fields.0)),
        VALUE => {
            let len = fields.u32().ok()?;
            let (value, rest) = fields.0.split_at_checked(len as usize)?;
            Some((Item::Record(key, Some(value)), rest))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::super::Log;
    use super::*;
    use crate::device::FileDevice;
    use crate::fsck::{Finding, fsck};
    use crate::store::{Store, StoreOptions, read_super};

    /// What has its hash and makes no sense is refused by mount and check, in words, and changes nothing.
    #[test]
    fn entry_that_is_whole_and_makes_no_sense_is_an_error_of_its_own() {
        let path = std::env::temp_dir().join(format!("store-replay-{}", std::process::id()));
        let options = StoreOptions { log_bytes: 64 << 10, ..StoreOptions::default() };
        drop(Store::open(&path, &options).unwrap());
        let device = |name: &str| -> Arc<dyn Device> {
            let mut open = std::fs::File::options();
            let file = open.read(true).write(true).open(path.join(name)).unwrap();
            Arc::new(FileDevice::new(file).unwrap())
        };
        let database = Database::open(&device("meta"), 1 << 20).unwrap();
        let superblock = read_super(&database.snapshot().unwrap()).unwrap();
        drop(database);
        // An unknown item; a kind of records that is not known; a value that is cut off.
        let unknown = [9, 9, 9].to_vec();
        let kind = [&[GONE], &[77; KEY_BYTES][..]].concat();
        let cut =
            [&[VALUE], &Key::SUPER.to_bytes()[..], &9_u32.to_le_bytes(), b"12345678"].concat();
        for bytes in [unknown, kind, cut] {
            let mut log = Log::new(device("log"), superblock, 64 << 10).unwrap();
            assert!(log.begin().append().unwrap().is_some(), "an empty one is none of them");
            let entry = log.begin();
            entry.log.buffer.extend_from_slice(&bytes);
            assert!(entry.append().unwrap().is_some());
            let opened = Store::open(&path, &options).map(drop);
            let expected = "entry at byte 4096 that is whole and not understood";
            match opened {
                Err(OpenError::LogUnreadable { at: 4096 }) => {}
                other => panic!("{other:?}"),
            }
            assert!(OpenError::LogUnreadable { at: 4096 }.to_string().contains(expected));
            assert_eq!(fsck(&path).unwrap().findings, [Finding::LogEntry(4096)]);
        }
        // The control: the same log without such an entry is put into the database.
        let mut log = Log::new(device("log"), superblock, 64 << 10).unwrap();
        for _ in 0..2 {
            assert!(log.begin().append().unwrap().is_some());
        }
        assert_eq!(fsck(&path).unwrap().findings, []);
        assert!(Store::open(&path, &options).is_ok());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
