//! A device whose changes wait until somebody has decided.
//!
//! To open a database writes: one that was not closed is repaired, and one that was says that it is not closed any
//! more. But a mount that is refused is to leave a store as it was. So it opens the database on a [`Held`] device, which
//! keeps what it is asked to change in memory, and looks at all else that there is. Then either [`Held::release`] does
//! what was asked for, in the order in which it was, and the device is the one below from then on; or what waits
//! goes away with it.
//!
//! # Invariants
//! - H.1: what is below is not changed before [`Held::release`], and after it has failed not either.
//! - H.2: it is asked for the same changes and syncs as without this, in the same order. So a cut in between leaves what
//!   it leaves without.
//!
//! # What it refuses
//! Much: what waits is in memory, twice. To open a database writes its header some times, 1,600 bytes in all for one of
//! 539 MB that was not closed.

use std::io;
use std::sync::Arc;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, Ordering};

use crate::device::Device;
use crate::overlay::Overlay;

/// What a device is asked for.
#[derive(Debug)]
enum Step {
    Write(u64, Box<[u8]>),
    SetLen(u64),
    Sync,
}

/// What waits, and how the device looks with it.
#[derive(Debug)]
struct Waiting {
    overlay: Overlay,
    steps: Vec<Step>,
}

/// A device whose changes wait. See the module's text.
#[derive(Debug)]
pub(crate) struct Held {
    device: Arc<dyn Device>,
    /// None once it is released.
    waiting: Mutex<Option<Waiting>>,
    is_released: AtomicBool,
}

impl Held {
    /// Returns `device`, whose changes wait from now on.
    ///
    /// # Errors
    /// What the device says of its length.
    pub(crate) fn new(device: Arc<dyn Device>) -> io::Result<Held> {
        let overlay = Overlay::new(Some(device.clone()))?;
        let waiting = Mutex::new(Some(Waiting { overlay, steps: Vec::new() }));
        Ok(Held { device, waiting, is_released: AtomicBool::new(false) })
    }

    /// Does what waits, and waits no more.
    ///
    /// # Errors
    /// What the device says. What was not done then is never done, nor what comes after it.
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
        // ORDERING(held): Release. Whoever sees this sees the device after all that has waited.
        self.is_released.store(true, Ordering::Release);
        Ok(())
    }

    /// Calls `held` with what waits, or `released` with the device.
    fn choose<R>(
        &self,
        held: impl FnOnce(&mut Waiting) -> io::Result<R>,
        released: impl FnOnce(&dyn Device) -> io::Result<R>,
    ) -> io::Result<R> {
        // ORDERING(held): Acquire. See `release`. Who sees false asks once more under the lock.
        if !self.is_released.load(Ordering::Acquire)
            && let Some(waiting) = &mut *self.waiting.lock()
        {
            return held(waiting);
        }
        released(&*self.device)
    }
}

impl Device for Held {
    fn len(&self) -> io::Result<u64> {
        self.choose(|waiting| waiting.overlay.len(), |device| device.len())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        // One of the two is called.
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

    /// A device that fails to sync.
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

    /// What `change` makes of "old bytes".
    const CHANGED: &[u8] = b"one\0\0end";

    fn change(device: &dyn Device) {
        device.write_at(1, b"new").unwrap();
        device.set_len(3).unwrap();
        device.write_at(5, b"end").unwrap();
    }

    /// H.1: what was asked for is to be seen in it at once, and below when it is released.
    #[test]
    fn changes_wait_until_they_are_released() {
        let below = Arc::new(Overlay::new(None).unwrap());
        below.write_at(0, b"old bytes").unwrap();
        let held = Held::new(below.clone()).unwrap();
        change(&held);
        held.sync().unwrap();
        assert_eq!(bytes(&held), CHANGED);
        assert_eq!(bytes(&*below), b"old bytes");
        held.release().unwrap();
        assert_eq!((bytes(&held), bytes(&*below)), (CHANGED.to_vec(), CHANGED.to_vec()));
        held.write_at(0, b"O").unwrap();
        assert_eq!(bytes(&*below)[0], b'O');
    }

    /// H.1: after a failure nothing comes any more.
    #[test]
    fn release_that_fails_stops_there() {
        let below = Arc::new(Unsynced(Overlay::new(None).unwrap()));
        below.write_at(0, b"old bytes").unwrap();
        let held = Held::new(below.clone()).unwrap();
        change(&held);
        held.sync().unwrap();
        held.write_at(0, b"O").unwrap();
        assert!(held.release().is_err());
        assert_eq!(bytes(&*below), CHANGED);
        held.write_at(0, b"P").unwrap();
        assert_eq!(bytes(&*below)[0], b'o');
    }
}
