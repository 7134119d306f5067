//! An adapter with which fuser serves a [`Server`].
//!
//! fuser reads and parses requests, and calls one method of [`fuser::Filesystem`] for each of them.
//! The adapter translates the arguments and the answers. It also decides which features it requests
//! from the kernel, and which kinds of requests it turns off.
//!
//! # Requests that are turned off
//! - If the server needs no open ([`Server::opens_are_free`]), the adapter answers the first open
//!   with `ENOSYS`. After that answer the kernel sends neither open nor release.
//! - If the back end does nothing when a file descriptor is closed, the adapter answers the first
//!   `flush` with `ENOSYS`. After that answer the kernel sends no `flush`.
//! - The adapter does not request file locks. So the kernel manages them itself, as for a local
//!   file system.
//!
//! # The set-user-ID and set-group-ID bits of a changed file
//! - A kernel that checks permissions clears set-user-ID of a changed file. It clears set-group-ID
//!   only if the group may execute the file. In an open that truncates, it clears neither bit.
//! - If the server checks permissions, the adapter leaves both bits to the server
//!   (`FUSE_HANDLE_KILLPRIV`).
//! - Whether the kernel or the server checks permissions, the server decides about set-group-ID of
//!   a file that the group may not execute (`Server::change`).
//!
//! # Panics of a back end
//! Each request runs under `catch_unwind`. If it panics, the answer is `EIO`. The cache and the
//! back end keep their own state consistent (rule F.2 of [`corewalk::FileSystem`]).
//!
//! # Guarantees
//! - D.1: every request gets exactly one answer, except a forget, which gets none.
//! - D.2: the server counts one lookup for each entry that an answer contains, and no other lookup.
//!   If a listing fails half way, the answer contains the entries before the failure.
//!
//! Source: fuser 0.18; Linux `fs/fuse/inode.c` (`process_init_reply`).

mod convert;
mod requests;
mod retry;

use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk::{Caller, Errno, FileSystem, Request};
use fuser::{FopenFlags, InitFlags, KernelConfig};

use crate::offload::Offload;
use crate::options::{Options, Ownership};
use crate::server::Server;
use crate::wire::Features;

/// Serves a corewalk file system through fuser.
///
/// # Examples
/// ```no_run
/// use std::sync::Arc;
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{Adapter, Options};
///
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// let adapter = Adapter::new(fs, Options::exclusive())?;
/// let mut config = fuser::Config::default();
/// config.mount_options.push(fuser::MountOption::DefaultPermissions);
/// config.n_threads = Some(4);
/// config.clone_fd = true;
/// fuser::mount(adapter, "/mnt", &config)?;
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct Adapter {
    server: Arc<Server>,
    opening: Opening,
    offload: Offload,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Opening {
    /// The kernel sends a request for each open. The answer contains these flags, which say whether
    /// the kernel keeps its cached pages of the file.
    Asked(FopenFlags),
    Free,
}

impl Adapter {
    /// Returns an adapter for `fs`.
    ///
    /// # Errors
    /// The errors of [`Server::new`].
    pub fn new(fs: Arc<dyn FileSystem>, options: Options) -> Result<Adapter, Errno> {
        Ok(Adapter::with_server(Arc::new(Server::new(fs, options)?)))
    }

    /// Returns an adapter for a server.
    pub fn with_server(server: Arc<Server>) -> Adapter {
        let flags = match server.options().ownership {
            Ownership::Exclusive => FopenFlags::FOPEN_KEEP_CACHE,
            Ownership::Shared => FopenFlags::empty(),
        };
        Adapter { server, opening: Opening::Asked(flags), offload: Offload::default() }
    }

    /// Returns the server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// If it panics, returns `EIO`.
    fn guarded<T>(
        &self,
        caller: Caller,
        request: impl FnOnce(&Server) -> Result<T, Errno>,
    ) -> Result<T, fuser::Errno> {
        guarded(&self.server, caller, request)
    }

    fn negotiate(&mut self, config: &mut KernelConfig) {
        let options = self.server.options();
        let offered = Features(config.capabilities().bits());
        if Features::opens_are_free(&self.server, offered) {
            self.opening = Opening::Free;
        }
        // Do not choose `FUSE_HANDLE_KILLPRIV_V2`: fuser hides the flags that this feature adds to
        // requests.
        let offered = Features(offered.0 & !Features::HANDLE_KILLPRIV_V2);
        let chosen = Features::choose(&self.server, offered);
        self.server.set_features(offered, chosen);
        let added = config.add_capabilities(InitFlags::from_bits_retain(chosen.0));
        debug_assert!(added.is_ok(), "only offered features are chosen");
        for result in [
            config.set_max_write(options.write_bytes_max).map(drop).map_err(drop),
            config.set_max_background(options.background_max.max(1)).map(drop).map_err(drop),
        ] {
            debug_assert!(result.is_ok(), "the options have been checked");
        }
    }
}

/// If it panics, returns `EIO`.
fn guarded<T>(
    server: &Server,
    caller: Caller,
    request: impl FnOnce(&Server) -> Result<T, Errno>,
) -> Result<T, fuser::Errno> {
    let serve = || Request::new(caller).run(|| request(server));
    match catch_unwind(AssertUnwindSafe(serve)) {
        Ok(result) => result.map_err(convert::errno),
        Err(_) => {
            // The panic hook has already printed the message of the panic, so only count the panic.
            server.count_panic();
            Err(fuser::Errno::EIO)
        }
    }
}

thread_local! {
    /// The buffer for the data of a read request. Each thread reuses its own buffer.
    static READ_BUFFER: RefCell<Vec<u8>> = const { RefCell::new(Vec::new()) };
}
