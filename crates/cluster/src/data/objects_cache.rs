//! Objects that were read, in memory.
//!
//! A sequential reader gets whole objects, and the next one is read ahead. A random reader gets
//! only the bytes that it asks for, unless the object is here already. Objects are immutable, so a
//! copy never becomes stale.
//!
//! # Locks
//! One mutex, which is not held while an object is read. Threads that want the same object wait for
//! one read of it.

use std::collections::HashMap;
use std::io;
use std::ops::Range;
use std::sync::Arc;

use bytes::Bytes;
use corewalk_base::Mutex;
use tokio::runtime::Handle;
use tokio::sync::OnceCell;

use crate::objects::Objects;

type Cell = Arc<OnceCell<Bytes>>;

/// The objects in memory.
#[derive(Clone)]
pub(crate) struct ObjectsCache {
    objects: Objects,
    state: Arc<Mutex<State>>,
    limit: usize,
}

#[derive(Default)]
struct State {
    /// The objects, each with its length and the time of its last use.
    cells: HashMap<Arc<str>, (Cell, usize, u64)>,
    bytes: usize,
    clock: u64,
}

impl ObjectsCache {
    /// Returns an empty cache for `limit` bytes.
    pub(crate) fn new(objects: Objects, limit: usize) -> ObjectsCache {
        ObjectsCache { objects, state: Arc::default(), limit }
    }

    /// Returns a range of an object with `len` bytes. Keeps the whole object.
    pub(crate) async fn get(
        &self,
        key: &Arc<str>,
        len: u64,
        range: Range<u64>,
    ) -> io::Result<Bytes> {
        let cell = self.cell(key, len as usize);
        let read = cell.get_or_try_init(|| self.objects.get(key, 0..len)).await;
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
            state.cells.get(key).and_then(|(cell, ..)| cell.get().cloned())
        };
        match known {
            Some(object) if range.end as usize <= object.len() => {
                Ok(object.slice(range.start as usize..range.end as usize))
            }
            _ => self.objects.get(key, range).await,
        }
    }

    /// Begins to read an object, if it is not here.
    pub(crate) fn read_ahead(&self, handle: &Handle, key: Arc<str>, len: u64) {
        if self.state.lock().cells.contains_key(&key) {
            return;
        }
        let cache = self.clone();
        handle.spawn(async move {
            // A reader that needs the object reads it again and reports the error.
            let _ = cache.get(&key, len, 0..0).await;
        });
    }

    fn cell(&self, key: &Arc<str>, len: usize) -> Cell {
        let mut state = self.state.lock();
        state.clock += 1;
        let clock = state.clock;
        if let Some((cell, _, used)) = state.cells.get_mut(key) {
            *used = clock;
            return cell.clone();
        }
        while state.bytes + len > self.limit {
            let oldest = state.cells.iter().min_by_key(|(_, (.., used))| *used);
            let Some(oldest) = oldest.map(|(key, _)| key.clone()) else { break };
            state.remove(&oldest);
        }
        let cell = Cell::default();
        state.bytes += len;
        state.cells.insert(key.clone(), (cell.clone(), len, clock));
        cell
    }
}

impl State {
    fn remove(&mut self, key: &str) {
        if let Some((_, len, _)) = self.cells.remove(key) {
            self.bytes -= len;
        }
    }
}
