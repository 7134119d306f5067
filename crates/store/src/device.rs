//! Where bytes are kept: one small trait, so that tests can cut and fill it.
//!
//! The database and the data of files are each on a [`Device`]. [`FileDevice`] is a file of the host;
//! tests have others, which lose what was not synced, run full, or fail to read. Nothing above this
//! knows which it has.
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

/// A row of bytes that grows.
///
/// What was written may be lost, or be there in part, until [`Device::sync`] returned.
pub trait Device: Debug + Send + Sync + 'static {
    /// Returns the number of bytes.
    ///
    /// # Errors
    /// What the host says.
    fn len(&self) -> io::Result<u64>;

    /// Returns true if there are no bytes.
    ///
    /// # Errors
    /// Those of [`Device::len`].
    fn is_empty(&self) -> io::Result<bool> {
        self.len().map(|len| len == 0)
    }

    /// Reads at `offset` until `buf` is full.
    ///
    /// # Errors
    /// `UnexpectedEof` where the device ends before, and what the host says.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()>;

    /// Writes all of `bytes` at `offset`; a device that is shorter grows, with zeros between.
    ///
    /// # Errors
    /// `StorageFull` (ENOSPC), and what else the host says.
    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()>;

    /// Cuts the device, or lengthens it by zeros.
    ///
    /// # Errors
    /// What the host says.
    fn set_len(&self, len: u64) -> io::Result<()>;

    /// Takes the room of the first `len` bytes from the host, so that to write them needs no more.
    ///
    /// # Errors
    /// `StorageFull` (ENOSPC), and what else the host says.
    fn reserve(&self, len: u64) -> io::Result<()>;

    /// Returns how many bytes the host has given room for: all, unless there are holes.
    ///
    /// # Errors
    /// What the host says.
    fn given_bytes(&self) -> io::Result<u64> {
        self.len()
    }

    /// Has the host forget what it keeps in memory of the device and need not write, so that reads ask the disk.
    /// A device that keeps nothing has nothing to do.
    fn drop_cached(&self) {}

    /// Returns once all that was written is durable.
    ///
    /// # Errors
    /// What the host says; what was written since the last time may be lost then.
    fn sync(&self) -> io::Result<()>;
}

/// Bytes of zeros that are written ahead of a small write behind the end.
const AHEAD_BYTES: u64 = 1 << 20;
/// Writes from this many bytes on are not small.
const LARGE_BYTES: usize = 256 << 10;
/// Of what a device is lengthened by, the first so many bytes are written.
const FILLED_BYTES_MAX: u64 = 32 << 20;

/// A file of the host.
///
/// Where it grows by little it is written ahead with zeros. A sync of blocks that the file has already is
/// one write for the host; to give it new ones is a transaction of the host's own journal each time.
#[derive(Debug)]
pub struct FileDevice {
    file: File,
    /// What is behind was never written.
    end: Mutex<u64>,
}

impl FileDevice {
    /// Returns the device that `file`, open for reading and writing, is. [`Store::open_devices`] has an example.
    ///
    /// [`Store::open_devices`]: crate::Store::open_devices
    ///
    /// # Errors
    /// What the host says.
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
        // The bytes first: there may be room for no more.
        self.file.write_all_at(bytes, offset)?;
        if bytes.len() < LARGE_BYTES && self.fill(behind, offset + AHEAD_BYTES).is_ok() {
            *end = offset + AHEAD_BYTES;
        }
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut end = self.end.lock();
        // The length first, in one step: the database goes by the length of its file, and takes one that it has
        // not set for another's. Whoever is killed before the zeros leaves holes, which `reserve` gives room.
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
        // A host that does not take advice is as before.
        let _ = rustix::fs::fadvise(&self.file, 0, None, Advice::DontNeed);
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }
}

/// Whether a device may have lost bytes that were written to it: a write has failed for another reason than
/// want of room, or a sync for any. Then a read may show what is not on the disk, and the next sync say nothing.
#[derive(Clone, Debug, Default)]
pub(crate) struct Loss(Arc<AtomicBool>);

impl Loss {
    /// Says that it may.
    pub(crate) fn note(&self) {
        // ORDERING: Relaxed. Who asks has the lock of the database, and so had who got the error.
        self.0.store(true, Ordering::Relaxed);
    }

    /// Returns true if it may.
    pub(crate) fn is_noted(&self) -> bool {
        // ORDERING: Relaxed. See `note`.
        self.0.load(Ordering::Relaxed)
    }
}

/// A device as the database wants it.
#[derive(Debug)]
pub(crate) struct Backend {
    device: Arc<dyn Device>,
    loss: Loss,
}

impl Backend {
    /// Returns `device` for a database; `loss` is told what it loses.
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
            // A page that says that another one is behind the end.
            io::ErrorKind::UnexpectedEof => io::ErrorKind::InvalidData.into(),
            _ => error,
        })
    }

    fn set_len(&self, len: u64) -> Result<(), io::Error> {
        self.device.set_len(len)
    }

    fn sync_data(&self) -> Result<(), io::Error> {
        self.device.sync().map_err(|error| {
            // The host may have dropped what it could not write, and a read would still show it: whatever
            // the reason was, there is no second try.
            self.loss.note();
            io::Error::other(error)
        })
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<(), io::Error> {
        self.device.write_at(offset, data).inspect_err(|error| {
            if errno_of(error) != Errno::NOSPC {
                self.loss.note();
            }
        })
    }
}

/// Lengthens a device to `len` bytes, if it has not so many, and has the host give it room for all of them, so
/// that to write to it needs no more.
///
/// # Errors
/// `StorageFull` (ENOSPC), and what else the host says.
pub(crate) fn take_room(device: &dyn Device, len: u64) -> io::Result<()> {
    let mut end = device.len()?;
    while end < len {
        // As many as are written.
        end = len.min(end + FILLED_BYTES_MAX);
        device.set_len(end)?;
    }
    // A file that was copied may have holes where there are zeros.
    match device.reserve(len) {
        Err(error) if errno_of(&error) == Errno::NOSPC => Err(error),
        // A host that cannot say.
        _ => Ok(()),
    }
}

/// Has reads say what is on the disk, before anything is read.
///
/// A host that fails to write pages may keep them in memory as if it had written them, and tell of the failure
/// once, to somebody who is gone: then what is read is lost later, though a sync of it succeeds.
pub(crate) fn read_anew(device: &dyn Device) {
    // What can be written is, so that it can be forgotten; what is not written is still to be synced, or lost.
    let _ = device.sync();
    device.drop_cached();
}

/// Returns the errno that a file system says: a full host is `ENOSPC`, all else `EIO`.
pub(crate) fn errno_of(error: &io::Error) -> Errno {
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

    /// The database takes a file of a length that it has not set for another's, and whoever is killed amid the zeros
    /// would leave one. Here no zero can be written, and no length taken back: what is left is what there was before
    /// the first zero.
    #[test]
    fn device_has_its_whole_length_before_its_first_zero() {
        let file = File::from(memfd_create("device", MemfdFlags::ALLOW_SEALING).unwrap());
        fcntl_add_seals(&file, SealFlags::WRITE | SealFlags::SHRINK).unwrap();
        let device = FileDevice::new(file).unwrap();
        assert!(device.set_len(8 << 20).is_err());
        assert_eq!(device.len().unwrap(), 8 << 20);
    }

    /// A file whose writes fail, though it can be lengthened, is not lengthened: it would have holes.
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

    /// A device is never longer than what is written, also a long one, and holes get room.
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
