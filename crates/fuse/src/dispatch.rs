//! Serves one request: reads its arguments, calls the [`Server`], and writes the body of the
//! answer.
//!
//! A transport reads a request and passes it to [`Dispatcher::serve`] on the thread that has read
//! it. For the requests listed below, the result may be [`Outcome::Later`]. Then the transport
//! passes the request to [`Dispatcher::serve_later`], which serves it on an offload thread.
//! Meanwhile the transport's thread reads other requests.
//!
//! # Requests that may run later
//! - fsync(2), if the back end says that it waits.
//! - A request that waits for a lock of a file (`lock_waits`).
//! - A request that fails with `ENOSPC`. unlink(2) returns before the server has handled the forget
//!   that frees the removed file. So a program that removes one file to make space for another
//!   could get `ENOSPC`. To avoid that, the dispatcher repeats such a request a few times, with a
//!   pause before each time.
//!
//! A request that runs later does not change the order of the system calls of a thread, because the
//! thread waits for the answer.
//!
//! # Requests that are turned off
//! - If the server needs no open ([`Server::opens_are_free`]), the first open gets `ENOSYS`. After
//!   that answer the kernel sends neither open nor release.
//! - `flush` gets `ENOSYS` if the back end does nothing when a descriptor is closed. After that
//!   answer the kernel sends no `flush`.
//! - An interrupt gets `ENOSYS`, unless calls of the back end may wait. A back end that waits
//!   learns of killed clients from [`Request::is_cancelled`].
//!
//! # Guarantees
//! - D.1: every request gets exactly one answer. A forget, a `FUSE_NOTIFY_REPLY` and an interrupt
//!   that is served get none.
//! - D.2: the server counts one lookup for each inode that an answer gives to the kernel, and no
//!   other lookup. If a listing fails half way, the answer contains the entries before the failure.
//! - D.3: a request that panics gets `EIO`. A listing that panics after an entry succeeds with its
//!   entries (guarantee D.2). The cache and the back end keep their own state consistent (rule F.2
//!   of [`corewalk::FileSystem`]).
//!
//! Source: Linux `fs/fuse/dev.c`, `dir.c`, `file.c`.

mod attributes;
mod files;
mod ioctl;
mod lock_waits;
mod locks;
mod names;

pub(crate) use attributes::{GETATTR_HANDLE, attributes_to_set};
pub(crate) use files::{FSYNC_DATA, Range, UNKNOWN_INO, offset};

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::{Cancel, Errno, LockKind, Request};
use corewalk_base::primitives::thread;

use self::lock_waits::LockWaits;
use crate::interrupts::{CancelledBy, Interruptible, Interrupts};
use crate::offload::Offload;
use crate::options::Ownership;
use crate::passthrough::Passthrough;
use crate::server::{Server, SetId};
use crate::service::{Dispatch, Outcome, Reply};
use crate::timeouts::Timeouts;
use crate::wire::{Body, Features, Init, Message, Opcode, OwnedMessage};

const PAUSES: [Duration; 3] =
    [Duration::from_millis(1), Duration::from_millis(2), Duration::from_millis(4)];
const LATER_BODY_BYTES: usize = 256;
const ERRNO_END: i32 = 512;
/// A flag in the answer to an open of a directory: the kernel may cache the entries of the
/// directory.
const FOPEN_CACHE_DIR: u32 = 1 << 3;
/// A flag of a create request: the server must clear set-user-ID and set-group-ID of the file
/// (`FUSE_OPEN_KILL_SUIDGID`).
const OPEN_KILL_SET_ID: u32 = 1;

/// Dropping a `Dispatcher` waits until the offload threads have run all their requests.
#[derive(Debug)]
pub(crate) struct Dispatcher {
    /// The state that the offload threads share. They do not share the dispatcher itself. Its drop
    /// waits for these threads, so a thread with the last reference would wait for itself.
    requests: Arc<Requests>,
    payload_bytes: usize,
    features: Features,
    offload: Offload,
    /// The threads for requests that take a lock, if the kernel must drop its cached pages of the
    /// file after that. The kernel may have to read or write these pages first. So the threads that
    /// serve reads and writes must not serve such a request.
    lock_takers: Offload,
    lock_waits: Arc<LockWaits>,
}

#[derive(Debug)]
struct Requests {
    server: Arc<Server>,
    timeouts: Timeouts,
    opens_are_free: bool,
    keeps_cache: bool,
    /// The requests that an interrupt can cancel. Empty if no request may wait (`Server::waits`).
    interrupts: Arc<Interrupts>,
    passthrough: Option<Passthrough>,
}

struct Running<'a> {
    interrupts: &'a Interrupts,
    unique: u64,
}

#[derive(Debug)]
struct Killable {
    pid: u32,
    cancel: Cancel,
}

impl Dispatcher {
    pub(crate) fn new(server: Arc<Server>, init: &Init) -> Dispatcher {
        let payload_bytes = init.payload_bytes(server.options());
        let features = Features::choose_own(&server, init.offered);
        server.set_features(init.offered, features);
        let requests = Requests {
            timeouts: Timeouts::of(server.options()),
            opens_are_free: Features::opens_are_free(&server, init.offered),
            keeps_cache: server.options().ownership == Ownership::Exclusive,
            interrupts: Arc::default(),
            passthrough: (server.passes_through() && init.offered.0 & Features::PASSTHROUGH != 0)
                .then(Passthrough::default),
            server,
        };
        Dispatcher {
            lock_waits: Arc::new(LockWaits::new(Arc::clone(&requests.interrupts))),
            requests: Arc::new(requests),
            payload_bytes,
            features,
            offload: Offload::default(),
            lock_takers: Offload::default(),
        }
    }
}

impl Dispatch for Dispatcher {
    fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    fn features(&self) -> Features {
        self.features
    }

    fn serve(&self, message: &Message<'_>, buffer: &mut [u8]) -> Outcome {
        match message.header.opcode {
            Opcode::FORGET | Opcode::BATCH_FORGET => {
                // A forget has no answer.
                let _ = self.requests.run(message, &mut Body::new(&mut []));
                Outcome::Silent
            }
            Opcode::NOTIFY_REPLY => Outcome::Silent,
            Opcode::INTERRUPT if self.requests.server.waits() => {
                if let Ok(unique) = message.args().u64() {
                    self.requests.interrupts.interrupt(unique);
                }
                Outcome::Silent
            }
            Opcode::FSYNC | Opcode::FSYNCDIR if self.requests.server.fsync_waits() => {
                Outcome::Later
            }
            Opcode::SETLK | Opcode::SETLKW
                if self.requests.server.locks_drop_pages() && takes_lock(message) =>
            {
                Outcome::Later
            }
            _ => {
                let mut body = Body::new(buffer);
                let opcode = message.header.opcode;
                let result = self.requests.run(message, &mut body);
                if self.requests.server.has_locks() && result.is_ok() && may_unlock(message) {
                    self.lock_waits.unlocked(message.header.node);
                }
                match result {
                    Err(Errno::NOSPC) if needs_space(opcode) => Outcome::Later,
                    Err(Errno::AGAIN) if opcode == Opcode::SETLKW => Outcome::Later,
                    result => Outcome::Answer(result.map(|()| body.len())),
                }
            }
        }
    }

    fn checks_delivery(&self) -> bool {
        self.requests.server.has_leases()
    }

    fn delivered(&self, message: &Message<'_>, body: &[u8], begun: Instant) {
        self.requests.server.expire_late(message, body, begun);
    }

    fn serve_later(&self, message: OwnedMessage, reply: Reply) {
        let requests = Arc::clone(&self.requests);
        let opcode = message.get().header.opcode;
        if matches!(opcode, Opcode::SETLK | Opcode::SETLKW) && requests.server.locks_drop_pages() {
            let lock_waits = Arc::clone(&self.lock_waits);
            return self.lock_takers.run(Box::new(move || {
                let result = requests.run(&message.get(), &mut Body::new(&mut []));
                if result.is_ok() && may_unlock(&message.get()) {
                    lock_waits.unlocked(message.get().header.node);
                }
                if result == Err(Errno::AGAIN) && opcode == Opcode::SETLKW {
                    return lock_waits.wait(message, reply, &requests);
                }
                reply(result.map(|()| &[][..]));
            }));
        }
        if opcode == Opcode::SETLKW {
            return self.lock_waits.wait(message, reply, &requests);
        }
        self.offload.run(Box::new(move || {
            let mut buffer = [0; LATER_BODY_BYTES];
            let mut body = Body::new(&mut buffer);
            let result = requests.run_with_retries(&message.get(), &mut body);
            let len = body.len();
            reply(result.map(|()| &buffer[..len]));
        }));
    }
}

/// Returns true if a successful request may end the wait of another owner for a lock. Such a
/// request drops locks, or turns a write lock of fcntl(2) into a read lock.
fn may_unlock(message: &Message<'_>) -> bool {
    match message.header.opcode {
        Opcode::SETLK | Opcode::SETLKW => {
            message.lock().is_ok_and(|(_, lock)| lock.kind != LockKind::Write)
        }
        opcode => matches!(opcode, Opcode::FLUSH | Opcode::RELEASE),
    }
}

fn takes_lock(message: &Message<'_>) -> bool {
    message.lock().is_ok_and(|(_, lock)| lock.kind != LockKind::Unlock)
}

fn needs_space(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::SETATTR
            | Opcode::SYMLINK
            | Opcode::MKNOD
            | Opcode::MKDIR
            | Opcode::RENAME
            | Opcode::RENAME2
            | Opcode::LINK
            | Opcode::WRITE
            | Opcode::SETXATTR
            | Opcode::REMOVEXATTR
            | Opcode::CREATE
            | Opcode::TMPFILE
            | Opcode::FALLOCATE
            | Opcode::COPY_FILE_RANGE
            | Opcode::COPY_FILE_RANGE_64
    )
}

impl Requests {
    fn set_id(&self, flags: u32, flag: u32) -> SetId {
        match self.server.has_kill_flags() {
            false => SetId::Unsaid,
            true if flags & flag != 0 => SetId::Clear,
            true => SetId::Keep,
        }
    }

    fn arrival(&self) -> Option<Instant> {
        self.server.has_leases().then(Instant::now)
    }

    fn run_with_retries(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        if matches!(message.header.opcode, Opcode::FSYNC | Opcode::FSYNCDIR) {
            return self.run(message, body);
        }
        let mut last = Err(Errno::NOSPC);
        for pause in PAUSES {
            thread::sleep(pause);
            body.clear();
            last = self.run(message, body);
            if last != Err(Errno::NOSPC) {
                break;
            }
        }
        last
    }

    fn run(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let reports = self.server.reports();
        let result = self.run_caught(message, body);
        if self.server.reports() != reports {
            body.clear_entry_times(message.header.opcode);
        }
        result
    }

    fn run_caught(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        let (request, _running) = self.begin(message);
        let run = AssertUnwindSafe(|| request.run(|| self.dispatch(message, &mut *body)));
        catch_unwind(run)
            .unwrap_or_else(|_| {
                // The panic hook has already printed the message of the panic, so only count the
                // panic.
                self.server.count_panic();
                let lists = matches!(message.header.opcode, Opcode::READDIR | Opcode::READDIRPLUS);
                // The server has already counted a lookup for each entry before the panic
                // (guarantee D.2), so the kernel must get these entries.
                if lists && body.len() > 0 { Ok(()) } else { Err(Errno::IO) }
            })
            .map_err(|error| if error.raw_os_error() < ERRNO_END { error } else { Errno::IO })
    }

    fn begin(&self, message: &Message<'_>) -> (Request, Option<Running<'_>>) {
        let header = message.header;
        let request = Request::new(header.caller);
        let is_killable = match header.opcode {
            // `lock_waits` has already entered this request into `interrupts`.
            Opcode::SETLKW => false,
            // The kernel sends these requests only once, so they must run even if their client was
            // killed.
            Opcode::FLUSH | Opcode::RELEASE | Opcode::RELEASEDIR => false,
            _ => self.server.waits(),
        };
        if !is_killable {
            return (request, None);
        }
        let cancel = Cancel::default();
        let killable: Arc<dyn Interruptible> =
            Arc::new(Killable { pid: header.caller.pid, cancel: cancel.clone() });
        if self.interrupts.enter(header.unique, Arc::clone(&killable)) {
            self.interrupts.signalled(&killable);
        }
        let running = Running { interrupts: &self.interrupts, unique: header.unique };
        (request.with_cancel(cancel), Some(running))
    }

    fn dispatch(&self, message: &Message<'_>, body: &mut Body<'_>) -> Result<(), Errno> {
        match message.header.opcode {
            Opcode::LOOKUP => self.lookup(message, body),
            Opcode::FORGET => self.forget(message),
            Opcode::BATCH_FORGET => self.batch_forget(message),
            Opcode::GETATTR => self.getattr(message, body),
            Opcode::STATX if self.server.options().birth_times => self.statx(message, body),
            Opcode::SETATTR => self.setattr(message, body),
            Opcode::READLINK => self.readlink(message, body),
            Opcode::SYMLINK => self.symlink(message, body),
            Opcode::MKNOD => self.mknod(message, body),
            Opcode::MKDIR => self.mkdir(message, body),
            Opcode::UNLINK | Opcode::RMDIR => self.remove(message),
            Opcode::RENAME | Opcode::RENAME2 => self.rename(message),
            Opcode::LINK => self.link(message, body),
            Opcode::OPEN => self.open(message, body),
            Opcode::READ => self.read(message, body),
            Opcode::WRITE => self.write(message, body),
            Opcode::STATFS => self.statfs(message, body),
            Opcode::RELEASE => self.release(message),
            Opcode::FSYNC | Opcode::FSYNCDIR => self.fsync(message),
            Opcode::SETXATTR => self.setxattr(message),
            Opcode::GETXATTR | Opcode::LISTXATTR => self.read_xattr(message, body),
            Opcode::REMOVEXATTR => self.removexattr(message),
            Opcode::OPENDIR => self.opendir(message, body),
            Opcode::READDIR => self.readdir(message, body),
            Opcode::READDIRPLUS => self.readdirplus(message, body),
            Opcode::ACCESS => self.access(message),
            Opcode::CREATE => self.create(message, body),
            Opcode::TMPFILE => self.tmpfile(message, body),
            Opcode::FALLOCATE => self.fallocate(message),
            Opcode::LSEEK => self.lseek(message, body),
            Opcode::COPY_FILE_RANGE | Opcode::COPY_FILE_RANGE_64 => {
                self.copy_file_range(message, body)
            }
            Opcode::RELEASEDIR => self.releasedir(message),
            Opcode::FLUSH => self.flush(message),
            Opcode::DESTROY => Ok(()),
            Opcode::IOCTL => self.ioctl(message, body),
            Opcode::POLL => self.poll(message, body),
            Opcode::GETLK if self.server.has_locks() => self.get_lock(message, body),
            Opcode::SETLK | Opcode::SETLKW if self.server.has_locks() => self.set_lock(message),
            // After `ENOSYS` the kernel does not send this operation again.
            _ => Err(Errno::NOSYS),
        }
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        self.interrupts.remove(self.unique);
    }
}

impl Interruptible for Killable {
    fn pid(&self) -> u32 {
        self.pid
    }

    fn cancelled_by(&self) -> CancelledBy {
        CancelledBy::Kill
    }

    fn cancel(&self) {
        self.cancel.cancel();
    }
}

#[cfg(test)]
mod fuzz;
#[cfg(test)]
mod tests;
