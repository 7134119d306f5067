//! The transports, which are the ways in which requests arrive, and the threads that serve
//! requests.
//!
//! There are three transports:
//! - io_uring: the kernel puts a request into a queue of the processor on which the request was
//!   made. A thread on that processor serves the request. One system call sends an answer and
//!   fetches the next request.
//! - The FUSE device: each thread reads a request with one system call, and writes the answer with
//!   another one. Forgets arrive this way even if other requests arrive over io_uring.
//! - The crate fuser: its `Session` calls the [`Adapter`](crate::Adapter).
//!
//! # The threads
//! [`start`] negotiates with the kernel and starts the threads. Each thread ends when its read
//! fails: with `ENODEV` after an unmount, or with `ECONNABORTED` after an abort. One thread waits
//! for all others, so its end is the end of the connection.

mod crew;
mod device;
#[cfg(test)]
mod differential;
mod fuser;
mod uring;

use std::fmt;
use std::io;
use std::num::NonZero;
use std::sync::Arc;

use corewalk::{Errno, errno_of};
use corewalk_base::primitives::thread::{self, JoinHandle};

use self::crew::Crew;
use crate::mount::{Device, MountError, MountOptions};
use crate::service::{Dispatch, Service};
use crate::wire::{
    Body, Features, INIT_REPLY_BYTES, Init, Message, OUT_HEADER_BYTES, Opcode, out_header,
};

/// The way in which requests arrive.
///
/// # Examples
/// ```
/// use corewalk_fuse::{MountOptions, Transport};
///
/// let options = MountOptions::default().with_transport(Transport::Device);
/// assert_eq!(options.transport.name(), "dev");
/// assert_eq!(Transport::from_name("uring"), Some(Transport::Uring));
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum Transport {
    /// io_uring if the kernel offers it, otherwise the device (`transport=auto`).
    ///
    /// Linux 6.14 and newer offer io_uring if the parameter `enable_uring` of the module `fuse` is
    /// set. These mounts use `/dev/fuse` all the same:
    /// - a mount whose requests may wait long ([`FileSystem::waits`](corewalk::FileSystem::waits)),
    ///   as those of every [`AsyncFileSystem`](crate::AsyncFileSystem);
    /// - a mount with more threads than processors (the default is 16 threads);
    /// - a mount whose back end manages locks of files.
    ///
    /// In the first two cases `/dev/fuse` is better: any idle thread can read the next request from
    /// it. A request in a ring waits for a thread that serves the queue of its processor.
    #[default]
    Auto,
    /// Over io_uring, with one queue for each processor (`transport=uring`). If the kernel does not
    /// offer that, the mount fails with [`MountError::NoUring`]. If the back end manages locks of
    /// files, it fails with [`MountError::System`] and `EOPNOTSUPP`.
    ///
    /// A waiting request of an [`AsyncFileSystem`](crate::AsyncFileSystem) keeps one entry of its
    /// queue. A queue has 8 entries. With more threads than processors, it has one entry for each
    /// of its threads.
    Uring,
    /// The device `/dev/fuse` (`transport=dev`).
    Device,
    /// The crate fuser (`transport=fuser`).
    Fuser,
}

impl Transport {
    /// Returns the name of this transport in the option `transport=`.
    pub fn name(self) -> &'static str {
        match self {
            Transport::Auto => "auto",
            Transport::Uring => "uring",
            Transport::Device => "dev",
            Transport::Fuser => "fuser",
        }
    }

    /// Returns the transport with the name `name`, or `None` if there is none.
    pub fn from_name(name: &str) -> Option<Transport> {
        let all = [Transport::Auto, Transport::Uring, Transport::Device, Transport::Fuser];
        all.into_iter().find(|transport| transport.name() == name)
    }
}

/// Length in bytes of the first part of the buffer for a request. It has space for the header, the
/// fixed arguments and the names. The second part is for data, but a long target of a new symbolic
/// link extends into it.
const MESSAGE_BYTES: usize = 4096;
/// Length in bytes of the buffer for `FUSE_INIT`. The buffer is longer than the request of protocol
/// 7.45, because later versions may need more.
const INIT_BYTES: usize = 8192;

#[derive(Debug)]
pub(crate) struct Session {
    pub(crate) transport: Transport,
    /// The thread that waits for all other threads of the session, and then ends.
    pub(crate) thread: JoinHandle<io::Result<()>>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NoRings {
    Unwanted,
    NotOffered,
    ManyThreads,
    Waits,
    /// The back end manages locks of files. Over io_uring, requests that wait for a lock could take
    /// all entries of a queue. Then the request that drops the lock would not arrive.
    Locks,
    /// The start of the rings has failed. The text names the step that failed.
    Failed(&'static str, Errno),
}

impl fmt::Display for NoRings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NoRings::Unwanted => f.write_str("as requested"),
            NoRings::NotOffered => MountError::NoUring.fmt(f),
            NoRings::ManyThreads => f.write_str("more threads than processors"),
            NoRings::Waits => f.write_str("the back end may wait"),
            NoRings::Locks => f.write_str("requests may wait for locks of files"),
            NoRings::Failed(what, error) => write!(f, "{what}: {error}"),
        }
    }
}

impl NoRings {
    fn into_error(self) -> MountError {
        match self {
            NoRings::Failed(what, error) => MountError::System(what, error),
            NoRings::Locks => {
                MountError::System("serving locks of files over io_uring", Errno::OPNOTSUPP)
            }
            _ => MountError::NoUring,
        }
    }
}

/// Negotiates with the kernel, and starts the threads that serve requests. Calls `on_ready` before
/// the first request is served.
///
/// # Errors
/// A [`MountError`], in which case all threads end.
pub(crate) fn start(
    server: &Arc<dyn Service>,
    device: &Device,
    mount: &MountOptions,
    on_ready: impl FnOnce(),
) -> Result<Session, MountError> {
    if mount.transport == Transport::Fuser {
        let thread = fuser::start(server, device, mount, on_ready)?;
        server.set_transport(Transport::Fuser, None);
        return Ok(Session { transport: Transport::Fuser, thread });
    }
    let (init, unique) = receive_init(device).map_err(negotiating)?;
    let (rings, mut why) = match rings(&init, &**server, device, mount) {
        Ok(rings) => (rings, None),
        Err(why) if mount.transport == Transport::Uring => {
            let _ = device.write(&out_header(unique, Some(Errno::OPNOTSUPP), 0));
            return Err(why.into_error());
        }
        Err(why) => (Vec::new(), Some(why)),
    };
    let mut chosen = server.features(init.offered);
    if why.is_none() {
        chosen = Features(chosen.0 | Features::OVER_IO_URING);
    }
    // Start all threads before the answer to `FUSE_INIT`. After the answer, the kernel puts
    // requests into the rings. A ring without a thread would hold up all requests.
    let dispatcher = Arc::clone(server).dispatcher(&init);
    let mut crew = Crew::default();
    // If there are rings, one thread is enough for the requests that arrive over `/dev/fuse`: they
    // are mostly forgets.
    let readers = if why.is_none() { 1 } else { mount.threads.max(1) };
    for queues in rings {
        crew.add_ring(queues, reader(&dispatcher, device)?)?;
    }
    for _ in 0..readers {
        crew.add_reader(reader(&dispatcher, device)?)?;
    }
    send_init(device, &**server, &init, chosen, unique).map_err(negotiating)?;
    on_ready();
    let registering = "registering with io_uring";
    match crew.register().map_err(|error| MountError::System(registering, error))? {
        None => {}
        Some(error) if mount.transport == Transport::Uring => {
            return Err(MountError::System(registering, error));
        }
        Some(error) => why = Some(NoRings::Failed(registering, error)),
    }
    let transport = if why.is_none() { Transport::Uring } else { Transport::Device };
    let thread = crew.serve(transport)?;
    log::debug!("requests arrive over {}", transport.name());
    server.set_transport(transport, why.as_ref());
    Ok(Session { transport, thread })
}

fn reader(dispatcher: &Arc<dyn Dispatch>, device: &Device) -> Result<device::Thread, MountError> {
    let channel = device.channel().map_err(|error| system("opening /dev/fuse", error))?;
    Ok(device::Thread::new(Arc::clone(dispatcher), channel))
}

fn rings(
    init: &Init,
    server: &dyn Service,
    device: &Device,
    mount: &MountOptions,
) -> Result<Vec<uring::Queues>, NoRings> {
    let threads = mount.threads.max(1);
    let cpus = thread::available_parallelism().map_or(1, NonZero::get);
    let is_auto = mount.transport == Transport::Auto;
    match () {
        () if mount.transport == Transport::Device => return Err(NoRings::Unwanted),
        () if init.offered.0 & Features::OVER_IO_URING == 0 => return Err(NoRings::NotOffered),
        () if server.has_locks() => return Err(NoRings::Locks),
        () if is_auto && server.waits() => return Err(NoRings::Waits),
        () if is_auto && threads > cpus => return Err(NoRings::ManyThreads),
        () => {}
    }
    uring::rings(device, threads, init.payload_bytes(server.options()))
        .map_err(|error| NoRings::Failed("setting up io_uring", errno_of(error)))
}

fn spawn<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> io::Result<JoinHandle<T>> {
    thread::Builder::new().name("corewalk-fuse".into()).spawn(run)
}

fn system(what: &'static str, error: io::Error) -> MountError {
    MountError::System(what, errno_of(error))
}

fn negotiating(error: Errno) -> MountError {
    MountError::System("negotiating with the kernel", error)
}

/// Reads `FUSE_INIT`, and returns it with its number.
///
/// # Errors
/// `EPROTO` if the kernel is too old; `EIO` if the first request is not `FUSE_INIT`; the errors of
/// read(2).
fn receive_init(device: &Device) -> Result<(Init, u64), Errno> {
    let mut request = vec![0; INIT_BYTES];
    loop {
        let len = device.read(&mut request)?;
        let message = Message::parse(&request[..len], Features(0)).map_err(|_| Errno::PROTO)?;
        let unique = message.header.unique;
        let init = match message.header.opcode {
            Opcode::INIT => Init::parse(message.args()),
            _ => Err(Errno::IO),
        };
        match init {
            // If the kernel has a newer major version, it sends `FUSE_INIT` again after this
            // answer, with the version of this crate.
            Ok(init) if init.is_newer() => {
                let answer = [&out_header(unique, None, 8)[..], &Init::VERSION].concat();
                device.write(&answer)?;
            }
            Ok(init) => return Ok((init, unique)),
            Err(error) => {
                let _ = device.write(&out_header(unique, Some(error), 0));
                return Err(error);
            }
        }
    }
}

fn send_init(
    device: &Device,
    server: &dyn Service,
    init: &Init,
    chosen: Features,
    unique: u64,
) -> Result<(), Errno> {
    let mut buffer = [0; OUT_HEADER_BYTES + INIT_REPLY_BYTES];
    let mut body = Body::new(&mut buffer[OUT_HEADER_BYTES..]);
    init.reply(server.options(), chosen, &mut body)?;
    buffer[..OUT_HEADER_BYTES].copy_from_slice(&out_header(unique, None, INIT_REPLY_BYTES));
    device.write(&buffer)
}
