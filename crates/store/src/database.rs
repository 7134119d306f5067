//! The embedded database: one table, written in one transaction per commit.
//!
//! This is all that knows of redb. Its commit is one sync ("1PC+C"): pages are written beside those that
//! the last commit has, with checksums, and the header says which commit is the last one; after a crash
//! the checksums say whether it is whole, else the one before is. The price is that it reads all pages
//! when it is opened after a crash.
//!
//! # Damaged pages
//! After a clean end it looks at no checksum, and takes a page of a kind that there is not for a bug of its
//! own: it panics. So every call of it is made by `guarded`, and what it says then is `InvalidData`, as of
//! damage that it notices itself.

use std::io;
use std::ops::RangeInclusive;
use std::panic::{AssertUnwindSafe, catch_unwind};
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

/// What a database of redb begins with.
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";

/// Returns true if `device` begins like a database, or is empty.
///
/// # Errors
/// What the device says.
pub(crate) fn is_ours(device: &dyn Device) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    let len = device.len()?;
    if len >= MAGIC.len() as u64 {
        device.read_at(0, &mut magic)?;
    }
    Ok(len == 0 || magic == MAGIC)
}

/// The open database.
pub(crate) struct Database {
    /// None while it is dropped.
    inner: Option<redb::Database>,
    loss: Loss,
}

impl Database {
    /// Opens the database on `device`, or makes one on an empty device.
    ///
    /// # Errors
    /// What the device says; `InvalidData` if it holds no database, or a damaged one.
    pub(crate) fn open(device: &Arc<dyn Device>, cache_bytes: usize) -> io::Result<Database> {
        Database::open_with(device, cache_bytes, &Loss::default())
    }

    fn inner(&self) -> &redb::Database {
        self.inner.as_ref().expect("only drop takes it")
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
        let backend = Backend::new(device.clone(), loss.clone());
        let inner = guarded(|| {
            builder.create_with_backend(backend).map_err(|error| io_error(error.into()))
        })?;
        Ok(Database { inner: Some(inner), loss: loss.clone() })
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
        guarded(|| {
            let transaction = self.inner().begin_write().map_err(|error| failed(error.into()))?;
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
        })
    }

    /// Returns the database as the last commit left it.
    ///
    /// # Errors
    /// What the device says.
    pub(crate) fn snapshot(&self) -> io::Result<Snapshot> {
        let open = || -> Result<_, redb::Error> {
            match self.inner().begin_read()?.open_table(TABLE) {
                Ok(table) => Ok(Snapshot::of(Base::Open(table))),
                Err(redb::TableError::TableDoesNotExist(_)) => Ok(Snapshot::of(Base::Empty)),
                Err(error) => Err(error.into()),
            }
        };
        guarded(|| open().map_err(io_error))
    }

    /// Checks the checksums of all pages; false if something had to be repaired.
    ///
    /// # Errors
    /// What the device says; `InvalidData` for what cannot be repaired.
    pub(crate) fn check(&mut self) -> io::Result<bool> {
        let inner = self.inner.as_mut().expect("only drop takes it");
        guarded(|| inner.check_integrity().map_err(|error| io_error(error.into())))
    }
}

impl Drop for Database {
    fn drop(&mut self) {
        let inner = self.inner.take();
        // To close it is a commit, which may meet a damaged page; what was confirmed is in it before.
        let _ = guarded(|| {
            drop(inner);
            Ok(())
        });
    }
}

/// The database at the end of a commit.
pub(crate) struct Snapshot {
    base: Base,
    /// A read has failed; after that all do, until the database is opened again.
    is_sick: AtomicBool,
    /// One has failed since what is there is no database.
    is_damaged: AtomicBool,
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
        Snapshot { base, is_sick: AtomicBool::new(false), is_damaged: AtomicBool::new(false) }
    }

    /// Returns true if something could not be read.
    pub(crate) fn is_sick(&self) -> bool {
        // ORDERING: Relaxed. A hint to open the database again.
        self.is_sick.load(Ordering::Relaxed)
    }

    /// Returns true if the host has read what there is, so that an error was one of what it says.
    pub(crate) fn is_damaged(&self) -> bool {
        // ORDERING: Relaxed, both. Set by calls of this thread.
        self.is_damaged.load(Ordering::Relaxed) || !self.is_sick.load(Ordering::Relaxed)
    }

    /// Notes that something could not be read.
    fn sicken(&self, error: &io::Error) -> Errno {
        if error.kind() == io::ErrorKind::InvalidData {
            // ORDERING: Relaxed. As above.
            self.is_damaged.store(true, Ordering::Relaxed);
        }
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
                let found = guarded(|| {
                    let found = table.get(&key.to_bytes());
                    let found = found.map_err(|error| io_error(error.into()))?;
                    Ok(found.map(|value| value.value().into()))
                });
                found.map_err(|error| self.sicken(&error))
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
        let all = guarded(|| {
            let failed = |error: redb::StorageError| io_error(error.into());
            let range = table.range::<&[u8; KEY_BYTES]>(&first..=&last).map_err(failed)?;
            for record in range {
                let (key, value) = record.map_err(failed)?;
                let key = Key::from_bytes(key.value()).ok_or(io::ErrorKind::InvalidData)?;
                if !visit(key, value.value()) {
                    return Ok(false);
                }
            }
            Ok(true)
        });
        all.map_err(|error| self.sicken(&error))
    }
}

/// Calls redb. See the module's text.
fn guarded<R>(call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
    // What has panicked is used for nothing but to be closed.
    let done = catch_unwind(AssertUnwindSafe(call));
    done.unwrap_or_else(|_| Err(io::ErrorKind::InvalidData.into()))
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
