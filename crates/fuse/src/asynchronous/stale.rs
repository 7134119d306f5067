//! Notifications that make the kernel drop cached answers after a change that its request could not
//! report.
//!
//! A killed client gets `EINTR`, but its change goes on. A future that panics may have made its
//! change. In both cases, the kernel may still have the old names, attributes and pages in its
//! cache. So a thread tells the kernel to drop them.
//!
//! A thread that sends a notification may have to wait for a lock of the kernel. The client of
//! another request may hold this lock until that request is answered. So threads of the runtime and
//! threads that read requests must not send notifications.

use std::sync::{Arc, OnceLock};

use corewalk_base::Mutex;
use corewalk_base::primitives::thread;

use crate::mount::Pages;
use crate::notify::Notifier;

#[derive(Debug, Default)]
pub(super) struct Touched {
    /// The nodes that a request changes. `Pages` says whether the content of the file changes too.
    pub(super) nodes: Vec<(u64, Pages)>,
    pub(super) names: Vec<(u64, Box<[u8]>)>,
}

/// The queues of notifications. At most two threads send them. One sends those of nodes. The other
/// sends those of names, which may have to wait for a lock of the kernel.
#[derive(Debug, Default)]
pub(super) struct Stale {
    notifier: OnceLock<Notifier>,
    nodes: Queue<(u64, Pages)>,
    names: Queue<(u64, Box<[u8]>)>,
}

#[derive(Debug)]
struct Queue<T> {
    /// The notifications that wait to be sent. The `bool` is true while a thread sends
    /// notifications. Protected by its own mutex, under which no other lock is taken.
    waiting: Mutex<(Vec<T>, bool)>,
}

impl<T> Default for Queue<T> {
    fn default() -> Queue<T> {
        Queue { waiting: Mutex::new((Vec::new(), false)) }
    }
}

impl<T> Queue<T> {
    fn add(&self, more: Vec<T>) -> bool {
        let mut waiting = self.waiting.lock();
        waiting.0.extend(more);
        !waiting.0.is_empty() && !std::mem::replace(&mut waiting.1, true)
    }

    fn send_all(&self, send: impl Fn(T)) {
        loop {
            let mut waiting = self.waiting.lock();
            let all = std::mem::take(&mut waiting.0);
            if all.is_empty() {
                waiting.1 = false;
                return;
            }
            drop(waiting);
            all.into_iter().for_each(&send);
        }
    }

    fn has_no_thread(&self) {
        self.waiting.lock().1 = false;
    }
}

impl Stale {
    pub(super) fn set_notifier(&self, notifier: Notifier) {
        let is_first = self.notifier.set(notifier).is_ok();
        debug_assert!(is_first, "a server is mounted once");
    }

    /// Makes the kernel drop what it has cached about `touched`, without waiting for the kernel.
    pub(super) fn drop_later(self: &Arc<Self>, touched: Touched) {
        if self.nodes.add(touched.nodes) {
            let this = Arc::clone(self);
            let started = start(move || {
                this.nodes.send_all(|(node, pages)| {
                    this.notifier.get().inspect(|notifier| notifier.drop_inode(node, pages));
                });
            });
            started.unwrap_or_else(|()| self.nodes.has_no_thread());
        }
        if self.names.add(touched.names) {
            let this = Arc::clone(self);
            let started = start(move || {
                this.names.send_all(|(parent, name)| {
                    this.notifier.get().inspect(|notifier| notifier.drop_entry(parent, &name));
                });
            });
            started.unwrap_or_else(|()| self.names.has_no_thread());
        }
    }
}

fn start(run: impl FnOnce() + Send + 'static) -> Result<(), ()> {
    let builder = thread::Builder::new().name("corewalk-stale".into());
    builder.spawn(run).map(drop).map_err(|error| {
        log::error!("the kernel keeps old answers, since a thread cannot be started: {error}");
    })
}
