//! The log read back: what a mount after a crash does, and a check of a store.
//!
//! Entries are read one after the other into one buffer, twice: [`look`] sees that all is well, and keeps of them what a
//! mount has to know before it changes anything (`mount`); then [`replay`] puts them into data device and database.
//!
//! # Where the log ends
//! An append writes its entry after the sync of the one before has returned, and after a write or a sync
//! that failed nothing more is appended in that generation. So of all entries of a generation only the
//! last can be torn, and nobody was told of that one. An entry that does not count is the end, therefore,
//! if no later one of the same generation counts: all blocks behind are looked through for one. If there
//! is one, what is missing had been confirmed, and the log is damaged: it is refused, rather than taken
//! for a shorter one. (Damage to the last entry is not told from a write that was torn.)
//!
//! # A database that has gone back
//! Each commit of the database has a generation that is larger by one, and entries and end marks of that
//! generation are written after it has become durable. So a later generation than the database's, anywhere in the log, means that
//! a commit is gone which was confirmed: a page of it was damaged, and the database took the commit before, or
//! an older file was put in its place. The store is refused. What the log has does not fit that database, and the
//! bytes of files may not either.
//!
//! | of the database there is an older commit, and since the last one | what a mount says |
//! |---|---|
//! | something went to the log | it is refused |
//! | nothing did, and the store was closed | it is refused |
//! | nothing did, and the process was killed | it is refused |
//! | nothing did, and the end mark is not there: the host crashed before it has written it, or failed to write it | nothing |
//! | nothing did but an entry that was being written over it when the host crashed, of which nobody was told | nothing |
//! | the last one was made by a mount that put the log into the database, and was killed | nothing: it is put into the older one too |
//! | the last mount made the log anew, since a block of it could not be read, and was killed | nothing |
//! | the store has no log, the log is lost, or is that of the older commit | nothing |
//!
//! # A block that cannot be read
//! It is refused, since it may have what was confirmed, unless an end mark of the database's
//! generation says that nothing was. All that can be read is looked at even so, for a later generation; then the
//! log is made anew, since the host may give a file that it has taken back other blocks.
//!
//! That an entry has bytes of a file which look like an entry does not matter: who copied them from the
//! log has a number below that of the entry in which they are, and others do not know the secret.

use std::collections::BTreeMap;
use std::io;

use super::{
    BLOCK_BYTES, DATA, END, ENTRY_BYTES_MAX, GONE, HASH_BYTES, HEADER_BYTES, MARKED_BYTES, VALUE,
};
use crate::content::SIZE_MAX;
use crate::database::Database;
use crate::device::Device;
use crate::hash::Secret;
use crate::journal::Devices;
use crate::layer::Record;
use crate::mount::Found;
use crate::place::OpenError;
use crate::record::{Fields, KEY_BYTES, Key, Kind, SuperRecord};

/// What a log makes of records: their new values, or that they are gone.
pub(crate) type Changes = BTreeMap<Key, Record>;

/// What a log has that counts.
#[derive(Default)]
pub(crate) struct Contents {
    pub(super) entries: u64,
    /// Nothing counts, and a block cannot be read.
    pub(super) is_unreadable: bool,
    /// Records of the kinds that a mount looks at; an inode has no bytes here.
    pub(crate) changes: Changes,
    /// Behind the last byte of the data device that it has.
    pub(crate) data_end: u64,
}

/// Returns what the log of `superblock` has.
///
/// # Errors
/// [`OpenError::DatabaseBehind`], [`OpenError::LogDamaged`], [`OpenError::LogUnreadable`] and, unless an end mark says
/// that there is nothing, [`OpenError::LogRead`]; what the device says of its length.
pub(crate) fn look(log: &dyn Device, superblock: SuperRecord) -> Result<Contents, OpenError> {
    let mut contents = Contents::default();
    let read = survey(log, superblock, |item| match item {
        Item::Record(key, record) => {
            if Found::KINDS.contains(&key.kind) {
                let bytes = if key.kind == Kind::Inode { &[] } else { record.unwrap_or(&[]) };
                contents.changes.insert(key, record.map(|_| bytes.into()));
            }
        }
        Item::Data(offset, bytes) => {
            contents.data_end = contents.data_end.max(offset.saturating_add(bytes.len() as u64));
        }
    });
    match read {
        Ok(entries) => Ok(Contents { entries, ..contents }),
        Err(error @ OpenError::LogRead { .. }) => match is_ended(log, superblock)? {
            true => Ok(Contents { is_unreadable: true, ..Contents::default() }),
            false => Err(error),
        },
        Err(error) => Err(error),
    }
}

/// Puts what the log of `superblock` has, which are `contents`, into data device and database, and returns the
/// superblock that the database has then.
///
/// # Errors
/// What the devices say.
pub(crate) fn replay(
    devices: &Devices,
    database: &Database,
    superblock: SuperRecord,
    contents: &Contents,
) -> Result<SuperRecord, OpenError> {
    if contents.entries == 0 {
        let next = SuperRecord { log_bytes: 0, ..superblock };
        if next != superblock {
            devices.reserve.set_len(0)?;
            database.write(&[(Key::SUPER, Some(next.encode().into()))])?;
        }
        if contents.is_unreadable {
            // If that fails the log is as it was.
            let _ = devices.log.set_len(0);
        }
        return Ok(next);
    }
    // Whatever this needs of the host is not more than that; it is taken again later.
    devices.reserve.set_len(0)?;
    let generation = superblock.generation + 1;
    let next = SuperRecord { generation, log_bytes: 0, ..superblock };
    let mut reader = Reader::new(&*devices.log, superblock)?;
    database.write_with(|put| {
        for _ in 0..contents.entries {
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

/// Returns how many entries of a log count. Calls `visit` with each record and each piece of data in them.
///
/// # Errors
/// As [`look`], also if there is an end mark.
fn survey(
    log: &dyn Device,
    superblock: SuperRecord,
    mut visit: impl FnMut(Item<'_>),
) -> Result<u64, OpenError> {
    let failed_at = |at: u64| move |error| OpenError::LogRead { at, error };
    let mut reader = Reader::new(log, superblock).map_err(failed_at(0))?;
    loop {
        let at = reader.at;
        let Some(entry) = reader.next().map_err(failed_at(at))? else { break };
        let seen = each(entry, |item| {
            visit(item);
            Ok(())
        });
        if seen.is_err() {
            return Err(OpenError::LogUnreadable { at });
        }
    }
    reader.check_behind()?;
    Ok(reader.number)
}

/// Returns true if nothing was confirmed in the generation of `superblock`, whatever cannot be read. An entry of it
/// says otherwise, though there is an end mark: builds without those do not write over both.
///
/// # Errors
/// [`OpenError::DatabaseBehind`]; what the device says of its length.
fn is_ended(log: &dyn Device, superblock: SuperRecord) -> Result<bool, OpenError> {
    let mut reader = Reader::new(log, superblock)?;
    let (mut is_ended, mut is_begun) = (false, false);
    for at in (0..reader.len).step_by(BLOCK_BYTES) {
        let Ok(Some((generation, number))) = reader.read(at) else { continue };
        if generation > superblock.generation {
            let (database, log) = (superblock.generation, generation);
            return Err(OpenError::DatabaseBehind { database, log, at });
        }
        is_ended |= number == END && at < MARKED_BYTES as u64;
        is_begun |= number != END;
    }
    Ok(is_ended && !is_begun)
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
        let found = self.read(self.at)?;
        if found != Some((self.generation, self.number)) {
            return Ok(None);
        }
        self.number += 1;
        self.at += self.buffer.len().next_multiple_of(BLOCK_BYTES) as u64;
        Ok(Some(&self.buffer[HEADER_BYTES..]))
    }

    /// Looks through all blocks from the next entry on, which does not count.
    ///
    /// # Errors
    /// As `look`: an entry that is later than the next, or of a later generation; a block that cannot be
    /// read, since it may have one.
    fn check_behind(&mut self) -> Result<(), OpenError> {
        let mut damaged = None;
        let blocks = (self.at..self.len).step_by(BLOCK_BYTES);
        // Each has a block at least, so `behind` is how many there may be before this one.
        for (behind, at) in (0..).zip(blocks) {
            let found = self.read(at).map_err(|error| OpenError::LogRead { at, error })?;
            let Some((log, number)) = found else { continue };
            let later = self.number + 1..=self.number + behind;
            if log > self.generation {
                return Err(OpenError::DatabaseBehind { database: self.generation, log, at });
            }
            if damaged.is_none() && later.contains(&number) {
                let len = self.len;
                damaged = Some(OpenError::LogDamaged { at: self.at, later: at, len });
            }
        }
        damaged.map_or(Ok(()), Err)
    }

    /// Reads the entry at `at`; returns its generation and number, or None if there is none that is whole and
    /// of this generation or a later one.
    fn read(&mut self, at: u64) -> io::Result<Option<(u64, u64)>> {
        let mut header = [0; HEADER_BYTES];
        if at + HEADER_BYTES as u64 > self.len {
            return Ok(None);
        }
        self.device.read_at(at, &mut header)?;
        let word = |nth: usize| {
            header[8 * nth..].first_chunk().map_or(0, |bytes| u64::from_le_bytes(*bytes))
        };
        let [hash, generation, number, payload] = [0, 1, 2, 3].map(word);
        let bytes = payload.saturating_add(HEADER_BYTES as u64);
        let is_long = bytes > ENTRY_BYTES_MAX as u64 || at + bytes > self.len;
        if generation < self.generation || is_long {
            return Ok(None);
        }
        self.buffer.resize(bytes as usize, 0);
        self.device.read_at(at, &mut self.buffer)?;
        let is_whole = hash == self.secret.hash_whole(&self.buffer[HASH_BYTES..]);
        Ok(is_whole.then_some((generation, number)))
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
        // No device is longer.
        offset.checked_add(len.into()).filter(|&end| end <= SIZE_MAX)?;
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
    use crate::mount::read_super;
    use crate::store::{Store, StoreOptions};

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
        let far = |offset: u64| {
            [&[DATA][..], &offset.to_le_bytes(), &2_u32.to_le_bytes(), b"12"].concat()
        };
        for bytes in [unknown, kind, cut, far(u64::MAX), far(u64::MAX - 2), far(SIZE_MAX - 1)] {
            let mut log = Log::new(device("log"), superblock, 64 << 10);
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
        let mut log = Log::new(device("log"), superblock, 64 << 10);
        for _ in 0..2 {
            assert!(log.begin().append().unwrap().is_some());
        }
        assert_eq!(fsck(&path).unwrap().findings, []);
        assert!(Store::open(&path, &options).is_ok());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
