//! The embedded database: one table, written in one transaction per commit.
//!
//! Only this module calls redb, the embedded database. A commit of redb takes one sync ("1PC+C").
//! redb writes new pages with checksums beside the old ones, and then a header that refers to the
//! new commit.
//!
//! After a crash the checksums tell whether the last commit is complete. If it is not, redb opens
//! the database in the state of the previous commit.
//!
//! # Damaged pages
//! redb trusts each page that it reads. On a damaged page, redb misses records, panics, or recurses
//! until the stack overflows. So [`Database::open`] first makes redb verify the checksums of all
//! pages, even of a closed database. If a page is damaged, the open fails with `InvalidData`.
//!
//! The host may also damage a page while the database is open. redb panics on most of these pages,
//! so:
//! - B.1: every call of redb goes through `Calls::run`, which turns a panic into the error
//!   `InvalidData`.
//! - B.2: after a panic, redb is not called again, and `Fragile` leaks the objects of redb. The
//!   locks in these objects may be poisoned, so their destructors would panic too.
//!
//! Objects that redb creates during a call cannot be leaked, so a commit that reads a damaged page
//! may still abort the process.
//!
//! Rejected alternative: look up each record before it is written. If a damaged page refers to
//! itself, a write recurses without end, but a lookup fails, since redb bounds its depth. The
//! additional lookups make a commit take 1.15 times as long.

use std::io;
use std::ops::{Deref, DerefMut, RangeInclusive};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use corewalk_base::primitives::thread;
use redb::{ReadOnlyTable, ReadableDatabase as _, TableDefinition};

use crate::device::{Backend, Device, Loss};
use crate::layer::Record;
use crate::record::{KEY_BYTES, Key};

const TABLE: TableDefinition<'_, &[u8; KEY_BYTES], &[u8]> = TableDefinition::new("corewalk");

pub(crate) type Put<'a> = dyn FnMut(&Key, Option<&[u8]>) -> io::Result<()> + 'a;

/// The first bytes of a redb file.
const MAGIC: [u8; 9] = *b"redb\x1A\x0A\xA9\x0D\x0A";

/// Returns true if `device` can hold the database of a store: it is empty or starts like a redb
/// file.
///
/// # Errors
/// The error of the device.
pub(crate) fn is_ours(device: &dyn Device) -> io::Result<bool> {
    let mut magic = [0; MAGIC.len()];
    let len = device.len()?;
    if len >= MAGIC.len() as u64 {
        device.read_at(0, &mut magic)?;
    }
    Ok(len == 0 || magic == MAGIC)
}

pub(crate) struct Database {
    inner: Fragile<redb::Database>,
    calls: Calls,
    loss: Loss,
}

impl Database {
    /// Opens the database on `device`. If the device is empty, makes one. `InvalidData` if the
    /// content of the device is no database, or a damaged one.
    pub(crate) fn open(device: &Arc<dyn Device>, cache_bytes: usize) -> io::Result<Database> {
        Database::open_with(device, cache_bytes, &Loss::default())
    }

    pub(crate) fn open_with(
        device: &Arc<dyn Device>,
        cache_bytes: usize,
        loss: &Loss,
    ) -> io::Result<Database> {
        let mut builder = redb::Builder::new();
        builder.set_cache_size(cache_bytes).set_check_integrity_on_open(true);
        let backend = Backend::new(device.clone(), loss.clone());
        let calls = Calls::default();
        let inner = calls
            .run(|| builder.create_with_backend(backend).map_err(|error| io_error(error.into())))?;
        Ok(Database { inner: Fragile::new(inner, &calls), calls, loss: loss.clone() })
    }

    pub(crate) fn loss(&self) -> &Loss {
        &self.loss
    }

    pub(crate) fn write(&self, records: &[(Key, Record)]) -> io::Result<Snapshot> {
        self.write_with(|put| {
            records.iter().try_for_each(|(key, record)| put(key, record.as_deref()))
        })?;
        self.snapshot()
    }

    /// Commits one transaction, to which the closure `fill` adds the records. If `fill` fails,
    /// nothing is written.
    ///
    /// # Errors
    /// The error of `fill` or of the device. After an error of the device the database refuses all
    /// calls.
    pub(crate) fn write_with(
        &self,
        fill: impl FnOnce(&mut Put<'_>) -> io::Result<()>,
    ) -> io::Result<()> {
        let failed = |error: redb::Error| io_error(error);
        self.calls.run(|| {
            let transaction = self.inner.begin_write().map_err(|error| failed(error.into()))?;
            let transaction = Fragile::new(transaction, &self.calls);
            let table = transaction.open_table(TABLE).map_err(|error| failed(error.into()))?;
            let mut table = Fragile::new(table, &self.calls);
            fill(&mut |key, value| {
                let key = key.to_bytes();
                let done = match value {
                    Some(value) => table.insert(&key, value).map(drop),
                    None => table.remove(&key).map(drop),
                };
                done.map_err(|error| failed(error.into()))
            })?;
            // redb puts the changes to a table into the transaction only when the table is dropped.
            // So drop the table before the commit.
            drop(table.into_inner());
            transaction.into_inner().commit().map_err(|error| failed(error.into()))
        })
    }

    pub(crate) fn snapshot(&self) -> io::Result<Snapshot> {
        let open = || -> Result<_, redb::Error> {
            match self.inner.begin_read()?.open_table(TABLE) {
                Ok(table) => {
                    let table = Fragile::new(table, &self.calls);
                    Ok(Snapshot::of(Base::Open(table, self.calls.clone())))
                }
                Err(redb::TableError::TableDoesNotExist(_)) => Ok(Snapshot::of(Base::Empty)),
                Err(error) => Err(error.into()),
            }
        };
        self.calls.run(|| open().map_err(io_error))
    }
}

pub(crate) struct Snapshot {
    base: Base,
    /// True after a failed read. Then all further reads fail until the database is reopened.
    has_failed_read: AtomicBool,
    is_damaged: AtomicBool,
}

enum Base {
    Empty,
    Closed,
    Open(Fragile<ReadOnlyTable<&'static [u8; KEY_BYTES], &'static [u8]>>, Calls),
}

impl Snapshot {
    /// Every read from it fails.
    pub(crate) fn closed() -> Snapshot {
        Snapshot { has_failed_read: AtomicBool::new(true), ..Snapshot::of(Base::Closed) }
    }

    fn of(base: Base) -> Snapshot {
        Snapshot {
            base,
            has_failed_read: AtomicBool::new(false),
            is_damaged: AtomicBool::new(false),
        }
    }

    pub(crate) fn has_failed_read(&self) -> bool {
        // ORDERING: Relaxed. The flag only tells a later commit or sync to reopen the database; no
        // data is read because of it.
        self.has_failed_read.load(Ordering::Relaxed)
    }

    pub(crate) fn is_damaged(&self) -> bool {
        // ORDERING: Relaxed, for both flags. `note_failed_read` has set them on the same thread.
        self.is_damaged.load(Ordering::Relaxed) || !self.has_failed_read.load(Ordering::Relaxed)
    }

    fn note_failed_read(&self, error: &io::Error) -> Errno {
        if error.kind() == io::ErrorKind::InvalidData {
            // ORDERING: Relaxed. `is_damaged` loads the flag on the same thread.
            self.is_damaged.store(true, Ordering::Relaxed);
        }
        // ORDERING: Relaxed. A thread that reads true only reopens the database; no data is read
        // because of it.
        self.has_failed_read.store(true, Ordering::Relaxed);
        Errno::IO
    }

    /// Returns the value of the record `key`, or None if there is no such record. `EIO` if the
    /// record cannot be read.
    pub(crate) fn get(&self, key: &Key) -> Result<Option<Arc<[u8]>>, Errno> {
        match &self.base {
            Base::Empty => Ok(None),
            Base::Closed => Err(Errno::IO),
            Base::Open(table, calls) => {
                let found = calls.run(|| {
                    let found = table.get(&key.to_bytes());
                    let found = found.map_err(|error| io_error(error.into()))?;
                    Ok(found.map(|value| value.value().into()))
                });
                found.map_err(|error| self.note_failed_read(&error))
            }
        }
    }

    /// Appends up to `count_max` records of the range `keys` to `out`: the values, each with
    /// `minor`, the second number of its key. Returns true if the range has no more records.
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

    pub(crate) fn each(
        &self,
        keys: RangeInclusive<Key>,
        visit: &mut dyn FnMut(Key, &[u8]) -> bool,
    ) -> Result<bool, Errno> {
        let (table, calls) = match &self.base {
            Base::Empty => return Ok(true),
            Base::Closed => return Err(Errno::IO),
            Base::Open(table, calls) => (table, calls),
        };
        let (first, last) = (keys.start().to_bytes(), keys.end().to_bytes());
        let all = calls.run(|| {
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
        all.map_err(|error| self.note_failed_read(&error))
    }
}

/// Runs the calls of redb. After redb has panicked once, all further calls are refused.
#[derive(Clone, Default)]
struct Calls {
    has_panicked: Arc<AtomicBool>,
}

impl Calls {
    /// Runs `call`, which calls redb, and catches its panic (rule B.1).
    ///
    /// # Errors
    /// The error of `call`. `InvalidData` if `call` panics, or if an earlier call has panicked.
    fn run<R>(&self, call: impl FnOnce() -> io::Result<R>) -> io::Result<R> {
        if self.has_panicked() {
            return Err(io::ErrorKind::InvalidData.into());
        }
        catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|_| {
            // ORDERING: Relaxed. A thread whose load in `has_panicked` misses the value calls redb
            // once more. Its call fails, or panics and is caught.
            self.has_panicked.store(true, Ordering::Relaxed);
            Err(io::ErrorKind::InvalidData.into())
        })
    }

    fn has_panicked(&self) -> bool {
        // ORDERING: Relaxed. A thread that misses the store of `true` in `run` calls redb once
        // more. Its call fails, or panics and is caught.
        self.has_panicked.load(Ordering::Relaxed)
    }
}

/// Contains an object of redb. If redb has panicked, or the thread is panicking, a drop of
/// `Fragile` leaks the object, whose destructor could panic too (rule B.2).
struct Fragile<T> {
    inner: Option<T>,
    calls: Calls,
}

impl<T> Fragile<T> {
    fn new(inner: T, calls: &Calls) -> Fragile<T> {
        Fragile { inner: Some(inner), calls: calls.clone() }
    }

    fn into_inner(mut self) -> T {
        self.inner.take().expect("taken once")
    }
}

impl<T> Deref for Fragile<T> {
    type Target = T;

    fn deref(&self) -> &T {
        self.inner.as_ref().expect("taken only on drop")
    }
}

impl<T> DerefMut for Fragile<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.inner.as_mut().expect("taken only on drop")
    }
}

impl<T> Drop for Fragile<T> {
    fn drop(&mut self) {
        let Some(inner) = self.inner.take() else { return };
        if thread::panicking() || self.calls.has_panicked() {
            return std::mem::forget(inner);
        }
        // redb makes a commit when it is closed. An error of that commit loses nothing, because the
        // last commit of the store is already durable.
        let _ = self.calls.run(|| {
            drop(inner);
            Ok(())
        });
    }
}

fn io_error(error: redb::Error) -> io::Error {
    match error {
        redb::Error::Io(error) => error,
        redb::Error::Corrupted(_) | redb::Error::UpgradeRequired(_) => {
            io::ErrorKind::InvalidData.into()
        }
        error => io::Error::other(error),
    }
}

#[cfg(test)]
mod tests {
    use corewalk_testkit::rng::{Rng, Seed};

    use super::*;
    use crate::overlay::Overlay;
    use crate::record::Kind;

    const PAGE: usize = 4096;
    const RECORDS: u64 = 3_000;

    fn key(number: u64) -> Key {
        Key::of(Kind::Inode, number)
    }

    fn device(bytes: &[u8]) -> Arc<dyn Device> {
        let device = Overlay::new(None).unwrap();
        device.write_at(0, bytes).unwrap();
        Arc::new(device)
    }

    fn bytes(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; device.len().unwrap() as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    fn closed() -> Vec<u8> {
        let device = device(&[]);
        let database = Database::open(&device, 1 << 20).unwrap();
        let record = |number| (key(number), Some(vec![number as u8; 100].into()));
        drop(database.write(&(1..RECORDS).map(record).collect::<Vec<_>>()).unwrap());
        drop(database);
        bytes(&*device)
    }

    fn damage(device: &dyn Device, rng: &mut Rng) -> String {
        let bytes = bytes(device);
        let used = |page: &usize| bytes[page * PAGE..][..PAGE].iter().any(|&byte| byte != 0);
        let pages: Vec<usize> = (1..bytes.len() / PAGE).filter(used).collect();
        let (page, how) = (*rng.pick(&pages), rng.below(3));
        let new: &[u8] = match how {
            0 => &[0; PAGE],
            1 => &[9],
            _ => &[bytes[page * PAGE], 0, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff],
        };
        device.write_at((page * PAGE) as u64, new).unwrap();
        format!("page {page}, damage {how}")
    }

    /// A destructor that writes to the database while its thread panics must not lose the write.
    #[test]
    fn write_during_a_panic_of_the_caller_is_whole() {
        struct WriteOnDrop<'a>(&'a Database);

        impl Drop for WriteOnDrop<'_> {
            fn drop(&mut self) {
                let written = self.0.write(&[(key(1), Some(vec![7].into()))]);
                assert!(written.is_ok() && thread::panicking());
            }
        }

        let database = Database::open(&device(&[]), 1 << 20).unwrap();
        let panicked = catch_unwind(AssertUnwindSafe(|| {
            let _write = WriteOnDrop(&database);
            panic!("a panic that the test expects");
        }));
        assert!(panicked.is_err());
        let found = database.snapshot().unwrap().get(&key(1));
        assert_eq!(found.unwrap().as_deref(), Some(&[7][..]));
    }

    /// A panic in a destructor during another panic would abort the process. Trap X3.
    #[test]
    fn pages_that_are_damaged_while_the_database_is_open_abort_nothing() {
        let closed = closed();
        let mut refused = 0;
        for seed in 0..150 {
            let mut rng = Rng::new(Seed(seed));
            let device = device(&closed);
            let database = Database::open(&device, 0).unwrap();
            let snapshot = database.snapshot().unwrap();
            println!("seed {seed}: {}", damage(&*device, &mut rng));
            let record = |number: u64| {
                let value = vec![7; 90 + (number % 50) as usize].into();
                (key(number * 7 % RECORDS), Some(value).filter(|_| !number.is_multiple_of(3)))
            };
            let records: Vec<_> = (1..200).map(record).collect();
            for _ in 0..2 {
                refused += u32::from(database.write(&records).is_err());
                for number in 1..RECORDS {
                    let _ = snapshot.get(&key(number));
                }
                let _ = snapshot.each(key(0)..=key(u64::MAX), &mut |_, _| true);
            }
            drop(snapshot);
            drop(database);
            let _ = Database::open(&device, 0);
        }
        println!("{refused} writes were refused");
        assert!(refused > 50);
    }
}
