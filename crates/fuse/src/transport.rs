//! The ways in which requests arrive, and the threads that serve them.
//!
//! - Over io_uring: the kernel puts a request into a queue of the processor on which the request
//!   was made, and a thread on that processor serves it. One system call sends an answer and
//!   fetches the next request.
//! - Over the FUSE device: each thread reads a request, and writes the answer. These are two system
//!   calls. Forgets always arrive this way.
//! - Through fuser, whose [`Session`](fuser::Session) calls the [`Adapter`](crate::Adapter).
//!
//! # The threads
//! [`start`] negotiates with the kernel and starts the threads. One thread waits for all others, so
//! its end is the end of the connection. Each thread ends when its next read fails with `ENODEV`,
//! because the mount is gone, or with `ECONNABORTED`, because the connection was aborted.

mod device;
mod fuser;

use std::io;
use std::sync::Arc;

use corewalk::{Errno, errno_of};
use corewalk_base::primitives::thread::{self, JoinHandle};

use crate::dispatch::Dispatcher;
use crate::mount::{Device, MountError, MountOptions};
use crate::server::Server;
use crate::wire::{
    Body, Features, INIT_REPLY_BYTES, Init, Message, OUT_HEADER_BYTES, Opcode, out_header,
};

/// The way in which requests arrive.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// The device `/dev/fuse` (`transport=dev`).
    #[default]
    Device,
    /// The crate fuser (`transport=fuser`).
    Fuser,
}

/// The length in bytes of the longest message without its data: the header, the fixed arguments and
/// the names.
const MESSAGE_BYTES: usize = 4096;
/// The length of a request that opens a connection, in bytes, with a reserve for later versions.
const INIT_BYTES: usize = 8192;

/// Negotiates with the kernel, and starts the threads that serve requests. The returned thread ends
/// when all others have ended.
///
/// # Errors
/// A [`MountError`], in which case no thread runs.
pub(crate) fn start(
    server: &Arc<Server>,
    device: &Device,
    mount: &MountOptions,
) -> Result<JoinHandle<io::Result<()>>, MountError> {
    if mount.transport == Transport::Fuser {
        return fuser::start(server, device, mount);
    }
    let offered = negotiate(server, device)
        .map_err(|error| MountError::System("negotiating with the kernel", error))?;
    let dispatcher = Arc::new(Dispatcher::new(Arc::clone(server), offered));
    let mut threads = Vec::new();
    for _ in 0..mount.threads.max(1) {
        let channel = device
            .channel()
            .map_err(|error| MountError::System("opening /dev/fuse", errno_of(error)))?;
        threads.push(device::Thread::new(Arc::clone(&dispatcher), channel));
    }
    spawn(move || run(threads)).map_err(|error| system("starting a thread", error))
}

/// Runs `threads`, and returns when all have ended.
fn run(threads: Vec<device::Thread>) -> io::Result<()> {
    let mut running = Vec::new();
    for thread in threads {
        running.push(spawn(move || thread.run())?);
    }
    let ends: Vec<_> = running
        .into_iter()
        .map(|thread| thread.join().unwrap_or_else(|_| Err(Errno::IO.into())))
        .collect();
    ends.into_iter().collect()
}

fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name("corewalk-fuse".into()).spawn(run)
}

fn system(what: &'static str, error: io::Error) -> MountError {
    MountError::System(what, errno_of(error))
}

/// Answers the request that opens the connection. Returns the features that the kernel offers.
fn negotiate(server: &Server, device: &Device) -> Result<Features, Errno> {
    let mut request = vec![0; INIT_BYTES];
    loop {
        let len = device.read(&mut request)?;
        let message = Message::parse(&request[..len]).map_err(|_| Errno::PROTO)?;
        let unique = message.header.unique;
        let refuse = |error| {
            let _ = device.write(&out_header(unique, Some(error), 0));
            Err(error)
        };
        if message.header.opcode != Opcode::INIT {
            return refuse(Errno::IO);
        }
        let init = match Init::parse(message.args()) {
            Ok(init) => init,
            Err(error) => return refuse(error),
        };
        let chosen = Features::choose(server, init.offered);
        let mut buffer = [0; OUT_HEADER_BYTES + INIT_REPLY_BYTES];
        let mut body = Body::new(&mut buffer[OUT_HEADER_BYTES..]);
        init.reply(server.options(), chosen, &mut body)?;
        buffer[..OUT_HEADER_BYTES].copy_from_slice(&out_header(unique, None, INIT_REPLY_BYTES));
        device.write(&buffer)?;
        // A kernel with a newer major version sends the request again, with our version.
        if !init.is_newer() {
            return Ok(init.offered);
        }
    }
}
