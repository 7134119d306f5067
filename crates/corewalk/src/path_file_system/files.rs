//! The open files of a back end by path, by handle.

use std::collections::HashMap;
use std::sync::Arc;

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};

const SHARDS: usize = 16;

/// The open files, by handle. Handles start at 1 and are never reused, so an old handle does not
/// find another file.
pub(super) struct Files<T> {
    next: AtomicU64,
    /// Each map has a mutex. A handle is in the map whose index is the handle modulo the number of
    /// maps.
    shards: [Mutex<HashMap<u64, Arc<T>>>; SHARDS],
}

impl<T> Files<T> {
    pub(super) fn new() -> Files<T> {
        Files { next: AtomicU64::new(1), shards: std::array::from_fn(|_| Mutex::default()) }
    }

    fn shard(&self, handle: u64) -> &Mutex<HashMap<u64, Arc<T>>> {
        &self.shards[handle as usize % SHARDS]
    }

    pub(super) fn add(&self, file: T) -> u64 {
        // ORDERING: Relaxed. The addition alone makes each handle unique.
        let handle = self.next.fetch_add(1, Ordering::Relaxed);
        self.shard(handle).lock().insert(handle, Arc::new(file));
        handle
    }

    pub(super) fn get(&self, handle: u64) -> Option<Arc<T>> {
        self.shard(handle).lock().get(&handle).cloned()
    }

    /// The open file is dropped, without a lock, when the last call that uses it ends.
    pub(super) fn remove(&self, handle: u64) {
        let removed = self.shard(handle).lock().remove(&handle);
        drop(removed);
    }
}
