//! The reader of the log. It is used by a mount after a crash and by `fsck`.
//!
//! The log is read twice, one entry at a time. First [`look`] verifies it and collects the facts
//! that a mount needs before it changes the store (`mount`). Then [`replay`] writes the entries to
//! the data device and the database.
//!
//! # The end of the log
//! An entry is written only after the entry before it was synced, and no entry is written after a
//! failed write or sync. So only the last entry of a generation can be torn, and a torn entry was
//! never confirmed. Damage of the last entry looks the same.
//!
//! The first invalid entry is the end of the log, unless a valid entry of the same generation
//! follows. The reader searches all later blocks for such an entry. If there is one, confirmed
//! entries are lost, and the log is refused as damaged.
//!
//! # A database older than its log
//! Each commit to the database increments the generation. The log gets entries and end marks of a
//! generation only once that commit is durable. So if the log has a later generation than the
//! database, the database has lost a confirmed commit. The reason may be a damaged page, or an
//! older copy of the file `meta`.
//!
//! A store whose database is older than its log is refused, since log and file data do not fit the
//! database. The page `store.md` lists the losses that a mount cannot notice.
//!
//! # Unreadable blocks
//! An unreadable block may hold a confirmed entry, so a log with such a block is refused. The
//! exception is a log with an end mark of the database's generation, which says that there is no
//! confirmed entry. Even then, the reader searches the readable blocks for entries of a later
//! generation.
//!
//! If an end mark excuses an unreadable block, the mount truncates the log and writes it anew. So
//! the host may give it another disk block in place of the unreadable one.
//!
//! File data in an entry may itself look like an entry. The reader rejects it:
//! - A copy of an earlier entry has a smaller entry number than the entry that contains it.
//! - An entry that a program made up has a wrong hash, since the hash depends on a secret of the
//!   store.

use std::collections::BTreeMap;
use std::io;

use super::{
    BLOCK_BYTES, DATA, END, ENTRY_BYTES_MAX, HASH_BYTES, HEADER_BYTES, MARKED_BYTES, REMOVED, VALUE,
};
use crate::content::SIZE_MAX;
use crate::database::Database;
use crate::device::Device;
use crate::hash::Secret;
use crate::journal::Devices;
use crate::layer::Record;
use crate::mount::Scan;
use crate::record::{Fields, KEY_BYTES, Key, Kind, SuperRecord};
use crate::store_dir::OpenError;

pub(crate) type Changes = BTreeMap<Key, Record>;

#[derive(Default)]
pub(crate) struct Contents {
    pub(super) entries: u64,
    pub(super) is_unreadable: bool,
    pub(crate) changes: Changes,
    pub(crate) data_end: u64,
}

/// Verifies the log, and returns the facts that a mount needs before it changes the store. Fails
/// with:
/// - [`OpenError::DatabaseBehind`], [`OpenError::LogDamaged`], [`OpenError::LogUnreadable`].
/// - [`OpenError::LogRead`], unless an end mark says that the log is empty.
/// - The error of the device if the length of the log cannot be read.
pub(crate) fn look(log: &dyn Device, superblock: SuperRecord) -> Result<Contents, OpenError> {
    let mut contents = Contents::default();
    let read = survey(log, superblock, |item| match item {
        Item::Record(key, record) => {
            if Scan::KINDS.contains(&key.kind) {
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
            // If the log cannot be truncated, its end mark still says that it is empty. So the
            // error is ignored.
            let _ = devices.log.set_len(0);
        }
        return Ok(next);
    }
    // The replay needs the space of the reserve on a full host. The mount allocates it again later.
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
        // Sync the data before the commit to the database, because that commit makes the copy of
        // the data in the log void.
        devices.data.sync()?;
        put(&Key::SUPER, Some(&next.encode()))
    })?;
    Ok(next)
}

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

/// Returns true if the log has an end mark of `superblock`'s generation, and no readable entry of
/// that generation.
///
/// Older builds could leave an end mark beside entries.
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

struct Reader<'a> {
    device: &'a dyn Device,
    len: u64,
    secret: Secret,
    generation: u64,
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

    fn next(&mut self) -> io::Result<Option<&[u8]>> {
        let found = self.read(self.at)?;
        if found != Some((self.generation, self.number)) {
            return Ok(None);
        }
        self.number += 1;
        self.at += self.buffer.len().next_multiple_of(BLOCK_BYTES) as u64;
        Ok(Some(&self.buffer[HEADER_BYTES..]))
    }

    /// Searches the log behind its end for valid entries. Fails with:
    /// - [`OpenError::LogDamaged`] if an invalid entry is followed by a valid entry of the same
    ///   generation.
    /// - [`OpenError::DatabaseBehind`] if an entry has a later generation than the database.
    /// - [`OpenError::LogRead`] for an unreadable block.
    fn check_behind(&mut self) -> Result<(), OpenError> {
        let mut damaged = None;
        let blocks = (self.at..self.len).step_by(BLOCK_BYTES);
        // An entry takes at least one block. So the number of an entry that starts `behind` blocks
        // farther is at most `self.number + behind`.
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

enum Item<'a> {
    Record(Key, Option<&'a [u8]>),
    Data(u64, &'a [u8]),
}

/// Calls `visit` with each item of an entry.
///
/// # Errors
/// `InvalidData` if the entry does not parse; any error that `visit` returns.
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
        offset.checked_add(len.into()).filter(|&end| end <= SIZE_MAX)?;
        return Some((Item::Data(offset, bytes), rest));
    }
    let key = Key::from_bytes(&fields.take::<KEY_BYTES>().ok()?)?;
    match what {
        REMOVED => Some((Item::Record(key, None), fields.0)),
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

    /// An entry with the right hash but an invalid item must make a mount and `fsck` refuse the
    /// log.
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
        let unknown = [9, 9, 9].to_vec();
        let kind = [&[REMOVED], &[77; KEY_BYTES][..]].concat();
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
            let expected = "entry at byte 4096 that is whole but not understood";
            match opened {
                Err(OpenError::LogUnreadable { at: 4096 }) => {}
                other => panic!("{other:?}"),
            }
            assert!(OpenError::LogUnreadable { at: 4096 }.to_string().contains(expected));
            assert_eq!(fsck(&path).unwrap().findings, [Finding::LogEntry(4096)]);
        }
        // Control: without the invalid entry the log is replayed.
        let mut log = Log::new(device("log"), superblock, 64 << 10);
        for _ in 0..2 {
            assert!(log.begin().append().unwrap().is_some());
        }
        assert_eq!(fsck(&path).unwrap().findings, []);
        assert!(Store::open(&path, &options).is_ok());
        std::fs::remove_dir_all(&path).unwrap();
    }
}
