//! Devices in memory, with faults that a test can inject.

use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_store::{Device, Devices, Store, StoreOptions};

const BLOCK: u64 = 4096;

#[derive(Clone, Debug)]
pub(crate) enum Step {
    Write { device: usize, offset: u64, bytes: Arc<[u8]> },
    SetLen { device: usize, len: u64 },
    Sync { device: usize },
}

#[derive(Debug, Default)]
pub(crate) struct Shared {
    pub(crate) log: Option<Vec<Step>>,
    /// Maximum number of bytes of all devices together; None for an unlimited host.
    pub(crate) room: Option<u64>,
    pub(crate) is_read_failing: bool,
    pub(crate) is_write_failing: bool,
    /// The devices whose writes fail, whose syncs fail, and whose length cannot be changed.
    pub(crate) writes_fail_on: Vec<usize>,
    pub(crate) syncs_fail_on: Vec<usize>,
    pub(crate) lengths_fail_on: Vec<usize>,
    pub(crate) bad_byte: Option<(usize, u64)>,
    pub(crate) bad_block: Option<(usize, u64)>,
    pub(crate) syncs: u64,
    pub(crate) sync_takes: Duration,
    /// Number of reads that still succeed before all reads fail; None for no limit.
    pub(crate) reads_left: Option<u64>,
    pub(crate) largest_reads: [usize; 4],
    lens: [u64; 4],
}

#[derive(Debug, Default)]
struct Host {
    bytes: Vec<u8>,
    disk: Vec<u8>,
    /// Ranges that are not on disk yet. A failed sync drops them but keeps the bytes in memory, as
    /// ext4 and XFS do.
    dirty: Vec<Range<usize>>,
}

impl Host {
    fn new(bytes: Vec<u8>) -> Host {
        Host { disk: bytes.clone(), bytes, dirty: Vec::new() }
    }

    /// Returns the content after a power failure of the host: only the content on disk remains.
    fn kept(&self) -> Vec<u8> {
        let mut kept = self.disk.clone();
        kept.resize(self.bytes.len(), 0);
        kept
    }
}

#[derive(Clone, Debug)]
pub(crate) struct Memory {
    number: usize,
    host: Arc<Mutex<Host>>,
    pub(crate) shared: Arc<Mutex<Shared>>,
}

impl Memory {
    fn resize(&self, bytes: &mut Vec<u8>, len: u64) -> io::Result<()> {
        let mut shared = self.shared.lock();
        if shared.lengths_fail_on.contains(&self.number) {
            return Err(io::ErrorKind::Other.into());
        }
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
        Ok(self.host.lock().bytes.len() as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<()> {
        let mut shared = self.shared.lock();
        if shared.is_read_failing || shared.reads_left == Some(0) {
            return Err(io::ErrorKind::Other.into());
        }
        let range = offset..offset + buf.len() as u64;
        if shared.bad_byte.is_some_and(|(at, byte)| at == self.number && range.contains(&byte)) {
            return Err(io::ErrorKind::Other.into());
        }
        let blocks = range.start / BLOCK..range.end.div_ceil(BLOCK);
        if shared.bad_block.is_some_and(|(at, block)| at == self.number && blocks.contains(&block))
        {
            return Err(io::ErrorKind::Other.into());
        }
        shared.reads_left = shared.reads_left.map(|left| left - 1);
        let largest = &mut shared.largest_reads[self.number];
        *largest = buf.len().max(*largest);
        drop(shared);
        let host = self.host.lock();
        let from = host.bytes.get(offset as usize..offset as usize + buf.len());
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
        let mut host = self.host.lock();
        if host.bytes.len() < end {
            self.resize(&mut host.bytes, end as u64)?;
        }
        host.bytes[start..end].copy_from_slice(new);
        host.dirty.push(start..end);
        self.log(|| Step::Write { device: self.number, offset, bytes: new.into() });
        Ok(())
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut host = self.host.lock();
        self.resize(&mut host.bytes, len)?;
        // The simulated disk must lose the truncated bytes too, or a later extension would show
        // them instead of zeros.
        host.disk.truncate(len as usize);
        host.dirty.iter_mut().for_each(|range| range.end = range.end.min(len as usize));
        self.log(|| Step::SetLen { device: self.number, len });
        Ok(())
    }

    fn reserve(&self, len: u64) -> io::Result<()> {
        if self.host.lock().bytes.len() as u64 >= len {
            return Ok(());
        }
        let mut shared = self.shared.lock();
        // No test reads the content of the reserve, so allocate less to save memory.
        let len = len / 16;
        let others: u64 = shared.lens.iter().sum::<u64>() - shared.lens[self.number];
        if shared.room.is_some_and(|room| others + len > room) {
            return Err(io::ErrorKind::StorageFull.into());
        }
        shared.lens[self.number] = len;
        Ok(())
    }

    fn drop_cached(&self) {
        let mut host = self.host.lock();
        let mut bytes = host.kept();
        for range in host.dirty.iter().filter(|range| !range.is_empty()) {
            bytes[range.clone()].copy_from_slice(&host.bytes[range.clone()]);
        }
        host.bytes = bytes;
    }

    fn sync(&self) -> io::Result<()> {
        let mut shared = self.shared.lock();
        shared.syncs += 1;
        let takes = shared.sync_takes;
        let is_failing = shared.syncs_fail_on.contains(&self.number);
        drop(shared);
        let mut host = self.host.lock();
        let dirty = std::mem::take(&mut host.dirty);
        if is_failing {
            return Err(io::ErrorKind::Other.into());
        }
        let Host { bytes, disk, .. } = &mut *host;
        disk.resize(bytes.len(), 0);
        for range in dirty.into_iter().filter(|range| !range.is_empty()) {
            disk[range.clone()].copy_from_slice(&bytes[range]);
        }
        drop(host);
        // Log the sync before its simulated duration. A write during the sleep then follows it in
        // the log, and a crash may lose that write.
        self.log(|| Step::Sync { device: self.number });
        thread::sleep(takes);
        Ok(())
    }
}

pub(crate) struct Disks {
    all: [Memory; 4],
    pub(crate) shared: Arc<Mutex<Shared>>,
}

impl Disks {
    pub(crate) fn new() -> Disks {
        Disks::with(Default::default())
    }

    /// The reserve should be empty.
    pub(crate) fn with(contents: [Vec<u8>; 4]) -> Disks {
        let shared = Arc::new(Mutex::new(Shared::default()));
        shared.lock().lens = contents.each_ref().map(|content| content.len() as u64);
        let mut contents = contents.into_iter();
        let all = std::array::from_fn(|number| Memory {
            number,
            host: Arc::new(Mutex::new(Host::new(contents.next().unwrap()))),
            shared: shared.clone(),
        });
        Disks { all, shared }
    }

    /// Simulates a kill: returns a copy of the devices, while the original store goes on.
    pub(crate) fn killed(&self) -> Disks {
        let disks = Disks::with(self.contents());
        let shared = self.shared.lock();
        let (lens, room) = (shared.lens, shared.room);
        drop(shared);
        *disks.shared.lock() = Shared { lens, room, ..Shared::default() };
        disks
    }

    pub(crate) fn without_power(&self) -> Disks {
        Disks::with(self.all.each_ref().map(|disk| disk.host.lock().kept()))
    }

    pub(crate) fn used(&self) -> u64 {
        self.shared.lock().lens.iter().sum()
    }

    pub(crate) fn contents(&self) -> [Vec<u8>; 4] {
        self.all.each_ref().map(|disk| disk.host.lock().bytes.clone())
    }

    pub(crate) fn replace(&self, device: usize, content: Vec<u8>) {
        self.shared.lock().lens[device] = content.len() as u64;
        *self.all[device].host.lock() = Host::new(content);
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

/// The store commits only when a test calls `sync` or fsync.
pub(crate) fn quiet() -> StoreOptions {
    let log_bytes = 256 << 10;
    StoreOptions::default()
        .with_commit_every(None)
        .with_cache_bytes(4 << 20)
        .with_log_bytes(log_bytes)
}
