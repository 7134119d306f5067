//! A cache in memory of the objects that were read.
//!
//! A sequential reader gets whole objects, and the next ones are read ahead. A random reader gets
//! only the bytes that it asks for, unless the object is cached already. Objects are immutable, so
//! a copy never becomes stale.
//!
//! Objects that were read ahead and not used yet take half of the memory at most. So many
//! sequential readers do not evict the objects that the others are reading.
//!
//! A cache on disk may be configured too (`disk_cache.rs`). It is asked for objects that are not in
//! memory, and gets each object of at least 64 KiB that was read whole.
//!
//! # Locks
//! One mutex protects the table of objects, and is not held while an object is read. Threads that
//! want the same object wait for a single read of the object.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use corewalk_base::Mutex;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use super::disk_cache::DiskCache;
use crate::objects::Objects;

type Cell = Arc<OnceCell<Bytes>>;

#[derive(Clone)]
pub(crate) struct ObjectsCache {
    objects: Objects,
    disk: Option<Arc<DiskCache>>,
    state: Arc<Mutex<State>>,
    limit: usize,
}

#[derive(Default)]
struct State {
    objects: HashMap<Arc<str>, Object>,
    /// The length of all objects.
    bytes: usize,
    /// The total length of the objects that were read ahead and not used yet.
    unused: usize,
    clock: u64,
}

/// An object in memory, or one that is being read.
struct Object {
    cell: Cell,
    len: usize,
    used_at: u64,
    is_used: bool,
}

impl ObjectsCache {
    /// Returns an empty cache for `limit` bytes, in front of `disk`.
    pub(crate) fn new(
        objects: Objects,
        disk: Option<Arc<DiskCache>>,
        limit: usize,
    ) -> ObjectsCache {
        ObjectsCache { objects, disk, state: Arc::default(), limit }
    }

    /// Returns a range of an object with `len` bytes. Keeps the whole object.
    pub(crate) async fn get(
        &self,
        key: &Arc<str>,
        len: u64,
        range: Range<u64>,
    ) -> io::Result<Bytes> {
        let cell = self.state.lock().cell(key, len as usize, self.limit);
        let read = cell.get_or_try_init(|| self.read_whole(key, len)).await;
        if read.is_err() {
            self.state.lock().remove(key);
        }
        let object = read?;
        let range = range.start as usize..range.end as usize;
        if range.end > object.len() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        Ok(object.slice(range))
    }

    /// Returns a range of an object. Does not keep the object.
    pub(crate) async fn get_range(&self, key: &Arc<str>, range: Range<u64>) -> io::Result<Bytes> {
        let known = {
            let state = self.state.lock();
            state.objects.get(key).and_then(|object| object.cell.get().cloned())
        };
        match known {
            Some(object) if range.end as usize <= object.len() => {
                Ok(object.slice(range.start as usize..range.end as usize))
            }
            _ => match self.read_disk(key, range.clone()).await {
                Some(bytes) => Ok(bytes),
                None => self.objects.get(key, range).await,
            },
        }
    }

    /// Reads a whole object from the disk or the store. An object from the store is then written to
    /// the disk.
    async fn read_whole(&self, key: &Arc<str>, len: u64) -> io::Result<Bytes> {
        if let Some(object) = self.read_disk(key, 0..len).await {
            return Ok(object);
        }
        let object = self.objects.get(key, 0..len).await?;
        if let Some(disk) = self.disk.clone().filter(|disk| disk.begin_store(len)) {
            let (key, object) = (key.clone(), object.clone());
            // Write to the disk in a task of its own, so that the reader does not wait.
            tokio::task::spawn_blocking(move || disk.store(&key, &object));
        }
        Ok(object)
    }

    /// Reads a range of an object from the cache on disk. None if the object is not there.
    async fn read_disk(&self, key: &Arc<str>, range: Range<u64>) -> Option<Bytes> {
        let disk = self.disk.clone().filter(|disk| disk.has(key))?;
        let key = key.clone();
        // If the end of the mount cancels this task, the object counts as absent.
        tokio::task::spawn_blocking(move || disk.read(&key, range)).await.ok().flatten()
    }

    /// Begins to read an object, unless it is cached or too many objects were read ahead already.
    pub(crate) fn read_ahead(&self, handle: &Handle, key: Arc<str>, len: u64) {
        let cell = {
            let (mut state, bytes) = (self.state.lock(), len as usize);
            if state.objects.contains_key(&key) || state.unused + bytes > self.limit / 2 {
                return;
            }
            state.unused += bytes;
            state.insert(&key, bytes, self.limit, false)
        };
        let cache = self.clone();
        handle.spawn(async move {
            // Ignore an error. A reader that needs the object reads it again and reports the error.
            let read = cell.get_or_try_init(|| cache.read_whole(&key, len)).await;
            if read.is_err() {
                cache.state.lock().remove(&key);
            }
        });
    }
}

impl State {
    /// Returns the cell for the bytes of an object, and marks the object as used. Adds the object
    /// if it is missing.
    fn cell(&mut self, key: &Arc<str>, len: usize, limit: usize) -> Cell {
        self.clock += 1;
        let Some(object) = self.objects.get_mut(key) else {
            return self.insert(key, len, limit, true);
        };
        object.used_at = self.clock;
        if !std::mem::replace(&mut object.is_used, true) {
            self.unused -= object.len;
        }
        object.cell.clone()
    }

    /// Adds an object that is still to be read. Evicts the least recently used objects if
    /// necessary.
    fn insert(&mut self, key: &Arc<str>, len: usize, limit: usize, is_used: bool) -> Cell {
        while self.bytes + len > limit {
            let oldest = self.objects.iter().min_by_key(|(_, object)| object.used_at);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            self.remove(&oldest);
        }
        self.clock += 1;
        let (cell, used_at) = (Cell::default(), self.clock);
        self.bytes += len;
        self.objects.insert(key.clone(), Object { cell: cell.clone(), len, used_at, is_used });
        cell
    }

    fn remove(&mut self, key: &str) {
        if let Some(object) = self.objects.remove(key) {
            self.bytes -= object.len;
            self.unused -= if object.is_used { 0 } else { object.len };
        }
    }
}
