//! Devices in memory, with the faults that a test asks for.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use corewalk_store::{Device, Devices, Store, StoreOptions};
use corewalk_sync::Mutex;
use corewalk_sync::primitives::thread;

/// What a device was asked to do, in order over all devices of a store.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write { device: usize, offset: u64, bytes: Arc<[u8]> },
    SetLen { device: usize, len: u64 },
    Sync { device: usize },
}

/// What the devices of one store share.
#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) log: Option<Vec<Step>>,
    /// Bytes that all devices may have in all; None for any number.
    pub(crate) room: Option<u64>,
    pub(crate) is_read_failing: bool,
    pub(crate) is_write_failing: bool,
    /// Devices whose writes, and whose syncs, fail.
    pub(crate) writes_fail_on: Vec<usize>,
    pub(crate) syncs_fail_on: Vec<usize>,
    pub(crate) syncs: u64,
    /// How long a sync takes.
    pub(crate) sync_takes: Duration,
    /// Reads that succeed before one fails; None for all.
    pub(crate) reads_left: Option<u64>,
    /// The most bytes that were read at once, of each device.
    pub(crate) largest_reads: [usize; 4],
    lens: [u64; 4],
}

/// A device in memory.
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    number: usize,
    bytes: Arc<Mutex<Vec<u8>>>,
    pub(crate) shared: Arc<Mutex<Shared>>,
}

impl Memory {
    fn resize(&self, bytes: &mut Vec<u8>, len: u64) -> io::Result<()> {
        let mut shared = self.shared.lock();
        let others: u64 = shared.lens.iter().sum::<u64>() - shared.lens[self.number];
        if len > shared.lens[self.number] && shared.room.is_some_and(|room| others + len > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        shared.lens[self.number] = len;
        bytes.resize(len as usize, 0);
        Ok(())
    }

    fn log(&self, step: impl FnOnce() -> Step) {
        if let Some(log) = &mut self.shared.lock().log {
            log.push(step());
        }
    }
}

impl Device for Memory {
    fn len(&self) -> io::Result<u64> {
        Ok(self.bytes.lock().len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut shared = self.shared.lock();
        if shared.is_read_failing || shared.reads_left == Some(0) {
            return Err(io::ErrorKind::Other.into());
        }
        shared.reads_left = shared.reads_left.map(|left| left - 1);
        let largest = &mut shared.largest_reads[self.number];
        *largest = buf.len().max(*largest);
        drop(shared);
        let bytes = self.bytes.lock();
        let from = bytes.get(offset as usize..offset as usize + buf.len());
        buf.copy_from_slice(from.ok_or(io::ErrorKind::UnexpectedEof)?);
        Ok(())
    }

    fn write_at(&self, offset: u64, new: &[u8]) -> io::Result<()> {
        let shared = self.shared.lock();
        let is_failing = shared.is_write_failing || shared.writes_fail_on.contains(&self.number);
        drop(shared);
        if is_failing {
            return Err(io::ErrorKind::Other.into());
        }
        let (start, end) = (offset as usize, offset as usize + new.len());
        let mut bytes = self.bytes.lock();
        if bytes.len() < end {
            self.resize(&mut bytes, end as u64)?;
        }
        bytes[start..end].copy_from_slice(new);
        self.log(|| Step::Write { device: self.number, offset, bytes: new.into() });
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.resize(&mut self.bytes.lock(), len)?;
        self.log(|| Step::SetLen { device: self.number, len });
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        if self.bytes.lock().len() as u64 >= len {
            return Ok(());
        }
        let mut shared = self.shared.lock();
        // A store in memory has a small reserve, of which only the size counts.
        let len = len / 16;
        let others: u64 = shared.lens.iter().sum::<u64>() - shared.lens[self.number];
        if shared.room.is_some_and(|room| others + len > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        shared.lens[self.number] = len;
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let mut shared = self.shared.lock();
        shared.syncs += 1;
        let takes = shared.sync_takes;
        let is_failing = shared.syncs_fail_on.contains(&self.number);
        drop(shared);
        if is_failing {
            return Err(io::ErrorKind::Other.into());
        }
        // What comes while it lasts need not be durable.
        self.log(|| Step::Sync { device: self.number });
        thread::sleep(takes);
        Ok(())
    }
}

/// The devices of a store: database, data, reserve, log.
pub(crate) struct Disks {
    all: [Memory; 4],
    pub(crate) shared: Arc<Mutex<Shared>>,
}

impl Disks {
    pub(crate) fn new() -> Disks {
        Disks::with(Default::default())
    }

    /// Returns devices with this content; the reserve has none.
    pub(crate) fn with(contents: [Vec<u8>; 4]) -> Disks {
        let shared = Arc::new(Mutex::new(Shared::default()));
        shared.lock().lens = contents.each_ref().map(|content| content.len() as u64);
        let mut contents = contents.into_iter();
        let all = std::array::from_fn(|number| Memory {
            number,
            bytes: Arc::new(Mutex::new(contents.next().unwrap())),
            shared: shared.clone(),
        });
        Disks { all, shared }
    }

    /// Returns what is left when the process is killed, on the same host; no store is changed by that.
    pub(crate) fn killed(&self) -> Disks {
        let disks = Disks::with(self.contents());
        let shared = self.shared.lock();
        let (lens, room) = (shared.lens, shared.room);
        drop(shared);
        *disks.shared.lock() = Shared { lens, room, ..Shared::default() };
        disks
    }

    /// Returns the bytes that all devices have in all.
    pub(crate) fn used(&self) -> u64 {
        self.shared.lock().lens.iter().sum()
    }

    /// Returns what is on the devices now.
    pub(crate) fn contents(&self) -> [Vec<u8>; 4] {
        self.all.each_ref().map(|disk| disk.bytes.lock().clone())
    }

    /// Puts something else in place of what a device has.
    pub(crate) fn replace(&self, device: usize, content: Vec<u8>) {
        self.shared.lock().lens[device] = content.len() as u64;
        *self.all[device].bytes.lock() = content;
    }

    pub(crate) fn devices(&self) -> Devices {
        let all = self.all.clone().map(|disk| Arc::new(disk) as Arc<dyn Device>);
        let [meta, data, reserve, log] = all;
        Devices { meta, data, reserve, log }
    }

    pub(crate) fn open(&self, options: &StoreOptions) -> Store {
        Store::open_devices(self.devices(), options).expect("a store")
    }
}

/// Returns options of a store that commits only when it is told.
pub(crate) fn quiet() -> StoreOptions {
    let log_bytes = 256 << 10;
    StoreOptions { commit_every: None, cache_bytes: 4 << 20, log_bytes, ..StoreOptions::default() }
}
