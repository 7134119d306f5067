//! The embedded database: one table, written in one transaction per commit.
//!
//! This is all that knows of redb. Its commit is one sync ("1PC+C"): pages are written beside those that
//! the last commit has, with checksums, and the header says which commit is the last one; after a crash
//! the checksums say whether it is whole, else the one before is. The price is that it reads all pages
//! when it is opened after a crash.

use std::io;
use std::ops::RangeInclusive;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_sync::primitives::atomic::{AtomicBool, Ordering};
use redb::{ReadOnlyTable, ReadableDatabase as _, TableDefinition};

use crate::device::{Backend, Device, Loss};
use crate::layer::Record;
use crate::record::{KEY_BYTES, Key};

const TABLE: TableDefinition<'_, &[u8; KEY_BYTES], &[u8]> = TableDefinition::new("corewalk");

/// Puts a record into a transaction, or takes it away.
pub(crate) type Put<'a> = dyn FnMut(&Key, Option<&[u8]>) -> io::Result<()> + 'a;

/// The open database.
pub(crate) struct Database {
    inner: redb::Database,
    loss: Loss,
}

impl Database {
    /// Opens the database on `device`, or makes one on an empty device.
    ///
    /// # Errors
    /// What the device says; `InvalidData` if it holds no database.
    pub(crate) fn open(device: &Arc<dyn Device>, cache_bytes: usize) -> io::Result<Database> {
        Database::open_with(device, cache_bytes, &Loss::default())
    }

    /// As [`Database::open`]; `loss` is told what the device loses, from now until the database is closed.
    ///
    /// # Errors
    /// As [`Database::open`].
    pub(crate) fn open_with(
        device: &Arc<dyn Device>,
        cache_bytes: usize,
        loss: &Loss,
    ) -> io::Result<Database> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(cache_bytes);
        let opened = builder.create_with_backend(Backend::new(device.clone(), loss.clone()));
        let loss = loss.clone();
        opened.map(|inner| Database { inner, loss }).map_err(|error| io_error(error.into()))
    }

    /// Returns what says whether written bytes may have been lost.
    pub(crate) fn loss(&self) -> &Loss {
        &self.loss
    }

    /// Writes records as one transaction, and returns the database as it is then.
    ///
    /// # Errors
    /// What the device says. The database is of no use after that.
    pub(crate) fn write(&self, records: &[(Key, Record)]) -> io::Result<Snapshot> {
        self.write_with(|put| {
            records.iter().try_for_each(|(key, record)| put(key, record.as_deref()))
        })?;
        self.snapshot()
    }

    /// Writes what `fill` puts as one transaction; nothing if `fill` fails.
    ///
    /// # Errors
    /// Those of `fill`, and what the device says. The database is of no use after the latter.
    pub(crate) fn write_with(
        &self,
        fill: impl FnOnce(&mut Put<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let failed = |error: redb::Error| io_error(error);
        let transaction = self.inner.begin_write().map_err(|error| failed(error.into()))?;
        let mut table = transaction.open_table(TABLE).map_err(|error| failed(error.into()))?;
        fill(&mut |key, value| {
            let key = key.to_bytes();
            let done = match value {
                Some(value) => table.insert(&key, value).map(drop),
                None => table.remove(&key).map(drop),
            };
            done.map_err(|error| failed(error.into()))
        })?;
        drop(table);
        transaction.commit().map_err(|error| failed(error.into()))
    }

    /// Returns the database as the last commit left it.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn snapshot(&self) -> io::Result<Snapshot> {
        let open = || -> Result<_, redb::Error> {
            match self.inner.begin_read()?.open_table(TABLE) {
                Ok(table) => Ok(Snapshot::of(Base::Open(table))),
                Err(redb::TableError::TableDoesNotExist(_)) => Ok(Snapshot::of(Base::Empty)),
                Err(error) => Err(error.into()),
            }
        };
        open().map_err(io_error)
    }

    /// Checks the checksums of all pages; false if something had to be repaired.
    ///
    /// # Errors
    /// What the device says; `InvalidData` for what cannot be repaired.
    pub(crate) fn check(&mut self) -> io::Result<bool> {
        self.inner.check_integrity().map_err(|error| io_error(error.into()))
    }
}

/// The database at the end of a commit.
pub(crate) struct Snapshot {
    base: Base,
    /// A read has failed; after that all do, until the database is opened again.
    is_sick: AtomicBool,
}

enum Base {
    /// Nothing was ever committed.
    Empty,
    /// The database is not open.
    Closed,
    Open(ReadOnlyTable<&'static [u8; KEY_BYTES], &'static [u8]>),
}

impl Snapshot {
    /// Returns a snapshot from which nothing can be read.
    pub(crate) fn closed() -> Snapshot {
        Snapshot { is_sick: AtomicBool::new(true), ..Snapshot::of(Base::Closed) }
    }

    fn of(base: Base) -> Snapshot {
        Snapshot { base, is_sick: AtomicBool::new(false) }
    }

    /// Returns true if something could not be read.
    pub(crate) fn is_sick(&self) -> bool {
        // ORDERING: Relaxed. A hint to open the database again.
        self.is_sick.load(Ordering::Relaxed)
    }

    /// Notes that something could not be read.
    fn sicken(&self, _: impl std::error::Error) -> Errno {
        // ORDERING: Relaxed. As above.
        self.is_sick.store(true, Ordering::Relaxed);
        Errno::IO
    }

    /// Returns the value of a record. `EIO` if it cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Arc<[u8]>>, Errno> {
        match &self.base {
            Base::Empty => Ok(None),
            Base::Closed => Err(Errno::IO),
            Base::Open(table) => {
                let found = table.get(&key.to_bytes()).map_err(|error| self.sicken(error))?;
                Ok(found.map(|value| value.value().into()))
            }
        }
    }

    /// Appends up to `count_max` records of `keys`, by the second number of their keys; returns true if
    /// those were all. `EIO` if they cannot be read.
    pub(crate) fn collect(
        &self,
        keys: RangeInclusive<Key>,
        count_max: usize,
        out: &mut Vec<(u64, Arc<[u8]>)>,
    ) -> Result<bool, Errno> {
        let mut room = count_max;
        let all = self.each(keys, &mut |key, value| {
            if room == 0 {
                return false;
            }
            room -= 1;
            out.push((key.minor, value.into()));
            true
        })?;
        Ok(all)
    }

    /// Calls `visit` with each record of `keys` in order, until it returns false; returns true if it
    /// never did. `EIO` if they cannot be read.
    pub(crate) fn each(
        &self,
        keys: RangeInclusive<Key>,
        visit: &mut dyn FnMut(Key, &[u8]) -> bool,
    ) -> Result<bool, Errno> {
        let table = match &self.base {
            Base::Empty => return Ok(true),
            Base::Closed => return Err(Errno::IO),
            Base::Open(table) => table,
        };
        let (first, last) = (keys.start().to_bytes(), keys.end().to_bytes());
        let range =
            table.range::<&[u8; KEY_BYTES]>(&first..=&last).map_err(|error| self.sicken(error))?;
        for record in range {
            let (key, value) = record.map_err(|error| self.sicken(error))?;
            let key = Key::from_bytes(key.value()).ok_or(Errno::IO)?;
            if !visit(key, value.value()) {
                return Ok(false);
            }
        }
        Ok(true)
    }
}

/// Returns what went wrong as an error of the host.
fn io_error(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) => {
            io::ErrorKind::InvalidData.into()
        }
        error => io::Error::other(error),
    }
}
