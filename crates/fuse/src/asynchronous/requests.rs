//! How a request gets its answer: immediately from the cache, or later from a future.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk::{Errno, Opened};

use super::AsyncFileSystem;
use super::answer::Answer;
use super::server::AsyncServer;
use super::under_way::Request;
use crate::options::Ownership;
use crate::service::{Dispatch, Outcome, Reply, Service as _};
use crate::wire::{Body, Features, Init, Message, Opcode, OwnedMessage};

const ERRNO_END: i32 = 512;
/// A flag in the answer to an open: the kernel keeps its cached pages of the file.
const FOPEN_KEEP_CACHE: u32 = 1 << 1;
/// A flag in the answer to an open of a directory: the kernel caches the entries of the directory.
const FOPEN_CACHE_DIR: u32 = 1 << 3;

pub(super) struct AsyncDispatcher<F: AsyncFileSystem> {
    server: Arc<AsyncServer<F>>,
    payload_bytes: usize,
    features: Features,
    opens_are_free: bool,
}

pub(super) type Cached = Result<(), Miss>;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Miss {
    Later,
    Error(Errno),
}

impl From<Errno> for Miss {
    fn from(error: Errno) -> Miss {
        Miss::Error(error)
    }
}

impl<F: AsyncFileSystem> AsyncDispatcher<F> {
    pub(super) fn new(server: Arc<AsyncServer<F>>, init: &Init) -> AsyncDispatcher<F> {
        let payload_bytes = init.payload_bytes(server.options());
        let opens_are_free = server.is_exclusive()
            && !server.has_open_state()
            && init.offered.0 & Features::NO_OPEN_SUPPORT != 0;
        let features = server.features(init.offered);
        AsyncDispatcher { server, payload_bytes, features, opens_are_free }
    }

    fn answer(&self, message: &Message<'_>, body: &mut Body<'_>) -> Cached {
        let server = &self.server;
        match message.header.opcode {
            Opcode::LOOKUP => server.cached_lookup(message, body),
            Opcode::GETATTR => server.cached_getattr(message, body),
            Opcode::OPEN if self.opens_are_free => Err(Errno::NOSYS.into()),
            Opcode::OPEN if !server.has_open_state() => {
                Ok(body.open_out(0, self.open_flags(Opened::default()))?)
            }
            Opcode::RELEASE if !server.has_open_state() => Ok(()),
            Opcode::OPENDIR => {
                let handle = server.listings.open();
                let cache = if server.is_exclusive() { FOPEN_CACHE_DIR } else { 0 };
                Ok(body.open_out(handle, self.open_flags(Opened::default()) | cache)?)
            }
            Opcode::RELEASEDIR => {
                server.listings.close(message.args().u64()?);
                Ok(())
            }
            Opcode::READDIR | Opcode::READDIRPLUS => server.cached_listing(message, body),
            Opcode::DESTROY => Ok(()),
            Opcode::IOCTL => Err(Errno::NOTTY.into()),
            Opcode::GETLK | Opcode::SETLK | Opcode::SETLKW if !server.fs.has_locks() => {
                Err(Errno::NOSYS.into())
            }
            opcode if is_known(opcode) => Err(Miss::Later),
            // After `ENOSYS` the kernel does not send this operation again.
            _ => Err(Errno::NOSYS.into()),
        }
    }

    fn open_flags(&self, opened: Opened) -> u32 {
        let keep = self.server.options().ownership == Ownership::Exclusive;
        opened.flags.bits() | if keep { FOPEN_KEEP_CACHE } else { 0 }
    }
}

impl<F: AsyncFileSystem> Dispatch for AsyncDispatcher<F> {
    fn payload_bytes(&self) -> usize {
        self.payload_bytes
    }

    fn features(&self) -> Features {
        self.features
    }

    fn serve(&self, message: &Message<'_>, buffer: &mut [u8]) -> Outcome {
        match message.header.opcode {
            Opcode::FORGET | Opcode::BATCH_FORGET => {
                let forget = AssertUnwindSafe(|| self.server.forget(message));
                // A forget has no answer, so ignore a panic of the back end's `forget`. The panic
                // hook has printed its message.
                let _ = catch_unwind(forget);
                return Outcome::Silent;
            }
            Opcode::NOTIFY_REPLY => return Outcome::Silent,
            Opcode::INTERRUPT => {
                if let Ok(unique) = message.args().u64() {
                    self.server.under_way.interrupt(unique);
                }
                return Outcome::Silent;
            }
            _ => {}
        }
        let mut body = Body::new(buffer);
        let answer = AssertUnwindSafe(|| self.answer(message, &mut body));
        match catch_unwind(answer) {
            Ok(Ok(())) => Outcome::Answer(Ok(body.len())),
            Ok(Err(Miss::Later)) => Outcome::Later,
            Ok(Err(Miss::Error(error))) => Outcome::Answer(Err(error)),
            Err(_) => Outcome::Answer(Err(Errno::IO)),
        }
    }

    fn serve_later(&self, message: OwnedMessage, reply: Reply) {
        let header = message.get().header;
        let server = Arc::clone(&self.server);
        let flags = self.open_flags(Opened::default());
        self.server.under_way.start(header, reply, |request| async move {
            let result = server.run(&message, &request, flags).await;
            match request.take_reply() {
                Some(reply) => match result {
                    Ok(mut answer) => {
                        answer.count_lookups();
                        reply(Ok(&answer.body));
                    }
                    Err(error) => reply(Err(accepted(error))),
                },
                None => {
                    request.set_stale();
                    if let Some(opened) = result.ok().and_then(|answer| answer.opened) {
                        server.fs.release(&opened).await;
                    }
                }
            }
        });
    }
}

impl<F: AsyncFileSystem> AsyncServer<F> {
    async fn run(
        &self,
        owned: &OwnedMessage,
        request: &Request,
        flags: u32,
    ) -> Result<Answer, Errno> {
        let message = &owned.get();
        match message.header.opcode {
            Opcode::LOOKUP => self.lookup(message).await,
            Opcode::GETATTR => self.getattr(message).await,
            Opcode::SETATTR => self.setattr(message, request).await,
            Opcode::READLINK => self.readlink(message).await,
            Opcode::SYMLINK => self.symlink(message, request).await,
            Opcode::MKNOD => self.mknod(message, request).await,
            Opcode::MKDIR => self.mkdir(message, request).await,
            Opcode::UNLINK | Opcode::RMDIR => self.remove(message, request).await,
            Opcode::RENAME | Opcode::RENAME2 => self.rename(message, request).await,
            Opcode::LINK => self.link(message, request).await,
            Opcode::CREATE => self.create(message, request, flags).await,
            Opcode::OPEN => self.open(message, request, flags).await,
            Opcode::RELEASE => self.release(message, request).await,
            Opcode::FLUSH => self.flush(message, request).await,
            Opcode::FSYNC | Opcode::FSYNCDIR => self.fsync(message).await,
            Opcode::READ => self.read(message).await,
            Opcode::WRITE => self.write(owned, request).await,
            Opcode::FALLOCATE => self.fallocate(message, request).await,
            Opcode::COPY_FILE_RANGE | Opcode::COPY_FILE_RANGE_64 => {
                self.copy_file_range(message, request).await
            }
            Opcode::GETLK => self.get_lock(message).await,
            Opcode::SETLK | Opcode::SETLKW => self.set_lock(message).await,
            Opcode::STATFS => self.statfs().await,
            Opcode::GETXATTR | Opcode::LISTXATTR => self.read_xattr(message).await,
            Opcode::SETXATTR => self.setxattr(message, request).await,
            Opcode::REMOVEXATTR => self.removexattr(message, request).await,
            Opcode::READDIR | Opcode::READDIRPLUS => self.listing(message).await,
            _ => Err(Errno::NOSYS),
        }
    }
}

impl<F: AsyncFileSystem> Drop for AsyncDispatcher<F> {
    fn drop(&mut self) {
        self.server.under_way.end();
    }
}

impl<F: AsyncFileSystem> fmt::Debug for AsyncDispatcher<F> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncDispatcher").field("server", &self.server).finish_non_exhaustive()
    }
}

fn accepted(error: Errno) -> Errno {
    if error.raw_os_error() < ERRNO_END { error } else { Errno::IO }
}

fn is_known(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::LOOKUP
            | Opcode::GETATTR
            | Opcode::SETATTR
            | Opcode::READLINK
            | Opcode::SYMLINK
            | Opcode::MKNOD
            | Opcode::MKDIR
            | Opcode::UNLINK
            | Opcode::RMDIR
            | Opcode::RENAME
            | Opcode::RENAME2
            | Opcode::LINK
            | Opcode::CREATE
            | Opcode::OPEN
            | Opcode::RELEASE
            | Opcode::FLUSH
            | Opcode::FSYNC
            | Opcode::FSYNCDIR
            | Opcode::READ
            | Opcode::WRITE
            | Opcode::FALLOCATE
            | Opcode::COPY_FILE_RANGE
            | Opcode::COPY_FILE_RANGE_64
            | Opcode::GETLK
            | Opcode::SETLK
            | Opcode::SETLKW
            | Opcode::STATFS
            | Opcode::GETXATTR
            | Opcode::LISTXATTR
            | Opcode::SETXATTR
            | Opcode::REMOVEXATTR
            | Opcode::READDIR
            | Opcode::READDIRPLUS
    )
}
