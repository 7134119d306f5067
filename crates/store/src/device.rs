//! The devices on which a store is kept.
//!
//! The database, the file data, the reserve (space for commits on a full host) and the log are each
//! on a [`Device`]. [`FileDevice`] is a file of the host. Tests use devices that lose unsynced
//! writes, become full, or fail to read.
//!
//! Source: pread(2), pwrite(2), fdatasync(2), ftruncate(2), posix_fadvise(2).

use std::fmt::Debug;
use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};
use rustix::fs::Advice;

/// A growable array of bytes.
///
/// A write is durable once a later [`Device::sync`] has returned. A crash before that may undo the
/// write, or leave only a part of it.
pub trait Device: Debug + Send + Sync + 'static {
    /// Returns the length in bytes.
    ///
    /// # Errors
    /// The error of the host.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if the length is 0.
    ///
    /// # Errors
    /// Those of [`Device::len`].
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Reads at `offset` until `buf` is full.
    ///
    /// # Errors
    /// `UnexpectedEof` if the device ends before `buf` is full; other errors of the host.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`. If the device is too short, it grows, with zeros in the
    /// gap.
    ///
    /// # Errors
    /// `StorageFull` (ENOSPC) and other errors of the host.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Truncates the device, or extends it with zeros.
    ///
    /// # Errors
    /// The error of the host.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Allocates space on the host for the first `len` bytes, so that later writes to them need no
    /// more space.
    ///
    /// # Errors
    /// `StorageFull` (ENOSPC) and other errors of the host.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Returns how many bytes the host has allocated to the device. Without holes, that is its
    /// length.
    ///
    /// # Errors
    /// The error of the host.
    fn given_bytes(&self) -> io::Result<u64> {
        self.len()
    }

    /// Drops the clean pages of the device from the host's page cache, so that reads come from the
    /// disk. A device without a cache does nothing.
    fn drop_cached(&self) {}

    /// Returns once all earlier writes are durable.
    ///
    /// # Errors
    /// The error of the host. Writes since the last sync may be lost in that case.
    fn sync(&self) -> io::Result<()>;
}

/// Length in bytes of a small write at the end of a file, including the zeros that are written
/// behind its data. The zeros make later syncs cheaper (see [`FileDevice`]).
const AHEAD_BYTES: u64 = 1 << 20;
const LARGE_BYTES: usize = 256 << 10;
const FILLED_BYTES_MAX: u64 = 32 << 20;

/// A file of the host.
///
/// A small write at the end of the file also writes zeros behind it, up to `AHEAD_BYTES` in all.
/// Later small writes then overwrite existing blocks. A sync of them costs the host one write,
/// without a write to its own journal.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// The offset behind the last byte that was ever written. Protected by its own mutex, which is
    /// held while the file grows.
    end: Mutex<u64>,
}

impl FileDevice {
    /// Returns a device on `file`, which must be open for reading and writing.
    /// [`Store::open_devices`] has an example.
    ///
    /// [`Store::open_devices`]: crate::Store::open_devices
    ///
    /// # Errors
    /// The error of the host.
    pub fn new(file: File) -> io::Result<FileDevice> {
        let end = Mutex::new(file.metadata()?.len());
        Ok(FileDevice { file, end })
    }

    fn fill(&self, from: u64, to: u64) -> io::Result<()> {
        let zeros = vec![0; AHEAD_BYTES.min(to.saturating_sub(from)) as usize];
        let mut at = from;
        while at < to {
            let part = (to - at).min(AHEAD_BYTES) as usize;
            self.file.write_all_at(&zeros[..part], at)?;
            at += part as u64;
        }
        Ok(())
    }
}

impl Device for FileDevice {
    fn len(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        self.file.read_exact_at(buf, offset)
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let behind = offset.checked_add(bytes.len() as u64);
        let behind = behind.ok_or(io::ErrorKind::InvalidInput)?;
        let mut end = self.end.lock();
        if behind <= *end {
            drop(end);
            return self.file.write_all_at(bytes, offset);
        }
        *end = behind;
        // Write the caller's bytes before the zeros. On a host with little space, then only the
        // zeros may fail.
        self.file.write_all_at(bytes, offset)?;
        if bytes.len() < LARGE_BYTES && self.fill(behind, offset + AHEAD_BYTES).is_ok() {
            *end = offset + AHEAD_BYTES;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut end = self.end.lock();
        // Set the new length first: redb refuses a file whose length is not the one in its header.
        // A kill before the zeros are written leaves holes, for which `reserve` allocates space
        // later.
        self.file.set_len(len)?;
        if let Err(error) = self.fill(*end, len.min(*end + FILLED_BYTES_MAX)) {
            self.file.set_len(*end)?;
            return Err(error);
        }
        *end = len;
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::empty();
        rustix::fs::fallocate(&self.file, flags, 0, len).map_err(io::Error::from)
    }

    fn given_bytes(&self) -> io::Result<u64> {
        Ok(self.file.metadata()?.blocks() * 512)
    }

    fn drop_cached(&self) {
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// The flag that a device may have lost written bytes. It is set after a failed sync, and after a
/// write that failed for another reason than lack of space. From then on a read may return bytes
/// that are not on disk, even if a later sync succeeds.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loss(Arc<AtomicBool>);

impl Loss {
    pub(crate) fn note(&self) {
        // ORDERING: Relaxed. The lock of the database orders the store before each load.
        self.0.store(true, Ordering::Relaxed);
    }

    pub(crate) fn is_noted(&self) -> bool {
        // ORDERING: Relaxed. The lock of the database orders the load after the store in `note`.
        self.0.load(Ordering::Relaxed)
    }
}

#[derive(Debug)]
pub(crate) struct Backend {
    device: Arc<dyn Device>,
    loss: Loss,
}

impl Backend {
    pub(crate) fn new(device: Arc<dyn Device>, loss: Loss) -> Backend {
        Backend { device, loss }
    }
}

impl redb::StorageBackend for Backend {
    fn len(&self) -> Result<u64, io::Error> {
        self.device.len()
    }

    fn read(&self, offset: u64, out: &mut [u8]) -> Result<(), io::Error> {
        self.device.read_at(offset, out).map_err(|error| match error.kind() {
            // A page refers behind the end of the device, so the database is damaged.
            io::ErrorKind::UnexpectedEof => io::ErrorKind::InvalidData.into(),
            _ => error,
        })
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.device.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.device.sync().map_err(|error| {
            // Never repeat a failed sync. The host may have marked pages as clean that never
            // reached the disk, so a second sync would wrongly succeed.
            self.loss.note();
            io::Error::other(error)
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.device.write_at(offset, data).inspect_err(|error| {
            if full_or_io(error) != Errno::NOSPC {
                self.loss.note();
            }
        })
    }
}

/// Extends a device to `len` bytes and allocates the space on the host, so that later writes need
/// no more.
///
/// # Errors
/// `StorageFull` (ENOSPC) and other errors of the host.
pub(crate) fn take_room(device: &dyn Device, len: u64) -> io::Result<()> {
    let mut end = device.len()?;
    while end < len {
        end = len.min(end + FILLED_BYTES_MAX);
        device.set_len(end)?;
    }
    // The device may be a copy in which zeros became holes. Allocate space for them.
    match device.reserve(len) {
        Err(error) if full_or_io(&error) == Errno::NOSPC => Err(error),
        _ => Ok(()),
    }
}

/// Empties the host's page cache of `device`, so that later reads come from the disk. After a
/// failed write the host may keep pages in memory as if they were written, and it reports the
/// failure only once. Then a read returns bytes that will be lost, and a sync succeeds.
pub(crate) fn read_anew(device: &dyn Device) {
    // The host drops only clean pages, so write dirty ones first. An error is ignored: if bytes are
    // lost, later reads show it.
    let _ = device.sync();
    device.drop_cached();
}

pub(crate) fn full_or_io(error: &io::Error) -> Errno {
    let is_full = matches!(
        error.kind(),
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded | io::ErrorKind::FileTooLarge
    );
    if is_full { Errno::NOSPC } else { Errno::IO }
}

#[cfg(test)]
mod tests {
    use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, memfd_create};

    use super::*;

    /// A kill during `set_len` must leave a length that redb accepts. So `set_len` must set the
    /// length before it writes zeros. In this test, all writes of zeros fail.
    #[test]
    fn device_has_its_whole_length_before_its_first_zero() {
        let file = File::from(memfd_create("device", MemfdFlags::ALLOW_SEALING).unwrap());
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
        let device = FileDevice::new(file).unwrap();
        assert!(device.set_len(8 << 20).is_err());
        assert_eq!(device.len().unwrap(), 8 << 20);
    }

    /// If the zeros cannot be written, `set_len` must restore the old length. Otherwise the new
    /// part of the file would be a hole.
    #[test]
    fn device_whose_zeros_fail_is_as_long_as_before() {
        let sealed = |seals| {
            let file = File::from(memfd_create("device", MemfdFlags::ALLOW_SEALING).unwrap());
            fcntl_add_seals(&file, seals).unwrap();
            let device = FileDevice::new(file).unwrap();
            let done = device.set_len(8 << 20);
            (done.is_ok(), device.len().unwrap())
        };
        assert_eq!(sealed(SealFlags::WRITE), (false, 0));
        assert_eq!(sealed(SealFlags::SEAL), (true, 8 << 20), "the control");
    }

    #[test]
    fn write_behind_what_can_be_counted_is_an_error() {
        let file = File::from(memfd_create("device", MemfdFlags::empty()).unwrap());
        let device = FileDevice::new(file).unwrap();
        for offset in [u64::MAX, u64::MAX - 1, i64::MAX as u64] {
            assert!(device.write_at(offset, b"12").is_err());
        }
        device.write_at(0, b"12").unwrap();
    }

    #[test]
    fn room_is_taken_for_every_byte() {
        let path = std::env::temp_dir().join(format!("device-room-{}", std::process::id()));
        let bytes = FILLED_BYTES_MAX + (5 << 20);
        for holes in [0, 3 << 20, bytes] {
            let mut open = File::options();
            let file = open.read(true).write(true).create(true).truncate(true).open(&path).unwrap();
            file.set_len(holes).unwrap();
            let device = FileDevice::new(file).unwrap();
            take_room(&device, bytes).unwrap();
            device.sync().unwrap();
            let found = std::fs::metadata(&path).unwrap();
            assert_eq!(found.len(), bytes);
            assert!(found.blocks() * 512 >= bytes, "{} blocks, {holes} of holes", found.blocks());
        }
        std::fs::remove_file(&path).unwrap();
    }
}
