//! A write-buffering overlay: a device that keeps its writes in memory until the mount releases
//! them.
//!
//! The open of a database writes to its device: an unclean database is repaired, and a clean one is
//! marked as in use. But a refused mount must not change the store. So the mount opens the database
//! on a [`BufferedDevice`], which keeps writes in memory, and then checks the rest of the store:
//! - If the mount succeeds, [`BufferedDevice::release`] applies the writes to the device in their
//!   original order. Later calls go directly to that device.
//! - If the mount is refused, the writes are dropped.
//!
//! # Invariants
//! - H.1: the device below does not change before [`BufferedDevice::release`] is called, nor after
//!   that call has failed.
//! - H.2: the device below gets the same writes and syncs as without a `BufferedDevice`, in the
//!   same order. So a crash during the release leaves a state that is possible without buffering
//!   too.
//!
//! # Limits
//! A pending write takes twice its size in memory. That is little: the open of an unclosed database
//! of 539 MB writes 1,600 bytes.

use std::io;
use std::sync::Arc;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

use crate::device::Device;
use crate::overlay::Overlay;

#[derive(Debug)]
enum Step {
    Write(u64, Box<[u8]>),
    SetLen(u64),
    Sync,
}

/// The device calls that wait for the release, in `steps`. Reads are served from `overlay`, which
/// shows the content after these calls. Protected by the mutex `BufferedDevice::waiting`.
#[derive(Debug)]
struct Waiting {
    overlay: Overlay,
    steps: Vec<Step>,
}

#[derive(Debug)]
pub(crate) struct BufferedDevice {
    device: Arc<dyn Device>,
    /// The pending calls, or None once they are released. Protected by its own mutex.
    waiting: Mutex<Option<Waiting>>,
    is_released: AtomicBool,
}

impl BufferedDevice {
    pub(crate) fn new(device: Arc<dyn Device>) -> io::Result<BufferedDevice> {
        let overlay = Overlay::new(Some(device.clone()))?;
        let waiting = Mutex::new(Some(Waiting { overlay, steps: Vec::new() }));
        Ok(BufferedDevice { device, waiting, is_released: AtomicBool::new(false) })
    }

    /// Applies the pending calls to the device below, in their original order. If the device fails,
    /// the failed call and all later ones are dropped.
    pub(crate) fn release(&self) -> io::Result<()> {
        let mut waiting = self.waiting.lock();
        for step in waiting.iter_mut().flat_map(|waiting| waiting.steps.drain(..)) {
            match step {
                Step::Write(offset, bytes) => self.device.write_at(offset, &bytes)?,
                Step::SetLen(len) => self.device.set_len(len)?,
                Step::Sync => self.device.sync()?,
            }
        }
        *waiting = None;
        // ORDERING(buffered): Release. `choose` loads true with Acquire, and then reads the device
        // below. Without Release it could miss writes that `release` has just applied.
        self.is_released.store(true, Ordering::Release);
        Ok(())
    }

    fn choose<R>(
        &self,
        held: impl FnOnce(&mut Waiting) -> io::Result<R>,
        released: impl FnOnce(&dyn Device) -> io::Result<R>,
    ) -> io::Result<R> {
        // ORDERING(buffered): Acquire. `release` applies all pending writes to the device below,
        // and then stores true with Release. Without Acquire, a read could miss these writes.
        if !self.is_released.load(Ordering::Acquire)
            && let Some(waiting) = &mut *self.waiting.lock()
        {
            return held(waiting);
        }
        released(&*self.device)
    }
}

impl Device for BufferedDevice {
    fn len(&self) -> io::Result<u64> {
        self.choose(|waiting| waiting.overlay.len(), |device| device.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let buf = std::cell::RefCell::new(buf);
        self.choose(
            |waiting| waiting.overlay.read_at(offset, &mut buf.borrow_mut()),
            |device| device.read_at(offset, &mut buf.borrow_mut()),
        )
    }

    fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
        let hold = |waiting: &mut Waiting| {
            waiting.overlay.write_at(offset, bytes)?;
            waiting.steps.push(Step::Write(offset, bytes.into()));
            Ok(())
        };
        self.choose(hold, |device| device.write_at(offset, bytes))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let hold = |waiting: &mut Waiting| {
            waiting.overlay.set_len(len)?;
            waiting.steps.push(Step::SetLen(len));
            Ok(())
        };
        self.choose(hold, |device| device.set_len(len))
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        self.choose(|_| Ok(()), |device| device.reserve(len))
    }

    fn sync(&self) -> io::Result<()> {
        let hold = |waiting: &mut Waiting| {
            waiting.steps.push(Step::Sync);
            Ok(())
        };
        self.choose(hold, |device| device.sync())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Debug)]
    struct Unsynced(Overlay);

    impl Device for Unsynced {
        fn len(&self) -> io::Result<u64> {
            self.0.len()
        }

        fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
            self.0.read_at(offset, buf)
        }

        fn write_at(&self, offset: u64, bytes: &[u8]) -> io::Result<()> {
            self.0.write_at(offset, bytes)
        }

        fn set_len(&self, len: u64) -> io::Result<()> {
            self.0.set_len(len)
        }

        fn reserve(&self, _: u64) -> io::Result<()> {
            Ok(())
        }

        fn sync(&self) -> io::Result<()> {
            Err(io::ErrorKind::Other.into())
        }
    }

    fn bytes(device: &dyn Device) -> Vec<u8> {
        let mut bytes = vec![0; device.len().unwrap() as usize];
        device.read_at(0, &mut bytes).unwrap();
        bytes
    }

    const CHANGED: &[u8] = b"one\0\0end";

    fn change(device: &dyn Device) {
        device.write_at(1, b"new").unwrap();
        device.set_len(3).unwrap();
        device.write_at(5, b"end").unwrap();
    }

    #[test]
    fn changes_wait_until_they_are_released() {
        let below = Arc::new(Overlay::new(None).unwrap());
        below.write_at(0, b"old bytes").unwrap();
        let held = BufferedDevice::new(below.clone()).unwrap();
        change(&held);
        held.sync().unwrap();
        assert_eq!(bytes(&held), CHANGED);
        assert_eq!(bytes(&*below), b"old bytes");
        held.release().unwrap();
        assert_eq!((bytes(&held), bytes(&*below)), (CHANGED.to_vec(), CHANGED.to_vec()));
        held.write_at(0, b"O").unwrap();
        assert_eq!(bytes(&*below)[0], b'O');
    }

    /// Invariant H.1: after a failed call of `release`, the device below gets no more writes.
    #[test]
    fn release_that_fails_stops_there() {
        let below = Arc::new(Unsynced(Overlay::new(None).unwrap()));
        below.write_at(0, b"old bytes").unwrap();
        let held = BufferedDevice::new(below.clone()).unwrap();
        change(&held);
        held.sync().unwrap();
        held.write_at(0, b"O").unwrap();
        assert!(held.release().is_err());
        assert_eq!(bytes(&*below), CHANGED);
        held.write_at(0, b"P").unwrap();
        assert_eq!(bytes(&*below)[0], b'o');
    }
}
