//! A mount: from a file system and a folder to threads that serve it, and back.
//!
//! [`Mount::new`] mounts, starts the threads and returns when the mount works. The mount ends when
//! it is dropped, by [`Mountpoint::unmount`] from any thread, or by umount(8) from outside.
//! [`Mount::wait`] returns when it has ended.
//!
//! Mounting is done here and not by fuser: it tells what went wrong, gives the mount its type, and
//! unmounts only what it has mounted, whatever else was mounted there since, and wherever it has been
//! moved to.
//!
//! # As an ordinary user
//! Only root may mount, so anybody else asks fusermount3(1), which is set-user-ID root. It hands the
//! open device back over a socket.
//!
//! # When the mount is busy
//! A mount that is in use cannot be unmounted; it is detached then: its name is gone at once, and it
//! ends when the last user leaves. Who does not want to wait ends the process, and the users get
//! `ENOTCONN`.
//!
//! # Lifetimes
//! The threads of fuser own the adapter and end when the connection does; the thread that keeps the
//! budget is joined after them.
//!
//! Source: mount(2), fusermount3(1), Linux `fs/fuse/inode.c` for the options.

mod device;
mod error;
mod options;
mod table;

pub(crate) use device::Device;
pub use error::MountError;
pub use options::{Access, MountFlags, MountOptions};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::{Errno, FileSystem};
use corewalk_base::primitives::thread::JoinHandle;
use fuser::{INodeNo, Session, SessionACL};

use crate::adapter::Adapter;
use crate::notify::KernelCache;
use crate::options::Options;
use crate::room::Room;
use crate::server::Server;

/// A mounted file system. Dropping it unmounts; see [`Mountpoint::unmount`].
#[derive(Debug)]
pub struct Mount {
    server: Arc<Server>,
    point: Mountpoint,
    kernel: KernelCache,
    session: Option<JoinHandle<std::io::Result<()>>>,
    room: Option<Room>,
}

/// Where something is mounted.
#[derive(Clone, Debug)]
pub struct Mountpoint {
    /// The place when it was mounted.
    path: PathBuf,
    /// Tells the mount from others for as long as it exists; then another may get the same.
    identity: table::Identity,
    /// Tells whether the connection still exists.
    device: Arc<Device>,
}

/// What became of a mount that was to be unmounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// It is gone.
    Done,
    /// It was in use: nobody finds it any more, and it ends when its last user leaves.
    Detached,
    /// It was gone before.
    Already,
}

impl Mount {
    /// Mounts `fs` on the directory `path`.
    ///
    /// # Errors
    /// What [`MountError`] lists. Nothing is mounted then.
    pub fn new(
        fs: Arc<dyn FileSystem>,
        path: &Path,
        options: Options,
        mount: &MountOptions,
    ) -> Result<Mount, MountError> {
        options.check().map_err(MountError::Options)?;
        let server = Server::new(fs, options).map_err(MountError::FileSystem)?;
        Mount::serve(Arc::new(server), path, mount)
    }

    /// Mounts what `server` serves on the directory `path`.
    ///
    /// # Errors
    /// As [`Mount::new`].
    pub fn serve(
        server: Arc<Server>,
        path: &Path,
        mount: &MountOptions,
    ) -> Result<Mount, MountError> {
        let path = table::checked_mountpoint(path)?;
        let claim = table::claim(&path)?;
        let device = Arc::new(device::mount(&path, server.options(), mount)?);
        let Some(found) = table::mounted_on(&path)?.filter(|found| found.is_fuse) else {
            return Err(MountError::System("reading the mount table", Errno::NOENT));
        };
        drop(claim);
        let point = Mountpoint { path, identity: found.identity, device };
        let adapter = Adapter::with_server(Arc::clone(&server));
        match start(adapter, &point.device, mount) {
            Ok((kernel, session)) => {
                let notifier = kernel.notifier().clone();
                let room = Room::start(Arc::clone(&server), notifier, Arc::clone(&point.device));
                Ok(Mount { server, point, kernel, session: Some(session), room: Some(room) })
            }
            Err(error) => {
                let _ = point.unmount();
                Err(error)
            }
        }
    }

    /// Returns the server.
    pub fn server(&self) -> &Arc<Server> {
        &self.server
    }

    /// Returns where it is mounted; the value can be sent to another thread to unmount.
    pub fn point(&self) -> &Mountpoint {
        &self.point
    }

    /// Returns the kernel's cache of the mount, to be told of changes made by others.
    pub fn kernel_cache(&self) -> &KernelCache {
        &self.kernel
    }

    /// Waits until the mount has ended.
    ///
    /// A signal does not end it: one that ends the process (`SIGINT`, `SIGTERM`, and `SIGHUP` of a terminal that is
    /// closed) leaves a mount without a server, of which every use fails with `ENOTCONN` until somebody unmounts it.
    /// A program has to catch these signals, and to call [`Mountpoint::unmount`] then, as `corewalk mount` does.
    ///
    /// # Errors
    /// If a thread that serves it has failed.
    pub fn wait(mut self) -> Result<(), MountError> {
        let session = self.session.take().expect("only this and drop take it");
        let mut ended = end(session);
        // The last unmount of a detached mount reads as ENODEV by one thread and, now and then, as
        // ECONNABORTED by another. Where it is still mounted somebody has aborted it.
        let is_aborted = ended == Err(MountError::System("serving", Errno::CONNABORTED));
        if is_aborted && self.point.find() == Ok(None) {
            ended = Ok(());
        }
        // A connection that was aborted leaves a mount without a server.
        if let Err(error) = self.point.unmount() {
            log::error!("{} stays mounted: {error}", self.point.path.display());
        }
        ended
    }
}

impl Mountpoint {
    /// Returns the path that it was mounted on, without links in it. It is elsewhere if somebody has
    /// renamed a directory above it since.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts what was mounted, wherever it is by now, and nothing else. If it is in use it is
    /// detached.
    ///
    /// # Errors
    /// `EPERM` if that is not allowed; `EBUSY` if something else is mounted on it; `EIO` if
    /// fusermount3(1) failed.
    pub fn unmount(&self) -> Result<Unmounted, Errno> {
        let Some(path) = self.find()? else { return Ok(Unmounted::Already) };
        if device::unmount(&path, device::Force::None).is_ok() {
            return Ok(Unmounted::Done);
        }
        // It may have been moved just then.
        let Some(path) = self.find()? else { return Ok(Unmounted::Already) };
        device::unmount(&path, device::Force::Detach)?;
        Ok(Unmounted::Detached)
    }

    /// Returns the path that leads to the mount, None if it is gone.
    ///
    /// # Errors
    /// `EBUSY` if its path leads to something else; `EIO` without a mount table.
    fn find(&self) -> Result<Option<PathBuf>, Errno> {
        let Some(path) = table::find_again(self.identity).map_err(|_| Errno::IO)? else {
            return Ok(None);
        };
        let met = table::mounted_on(&path).map_err(|_| Errno::IO)?;
        if met.is_none_or(|met| met.identity != self.identity) {
            return Err(Errno::BUSY);
        }
        // With the connection the numbers are ours. Without it the mount has been aborted, or it is
        // gone and another got its numbers; that one has a server.
        let is_ours = !self.device.is_disconnected() || table::is_dead(&path);
        Ok(is_ours.then_some(path))
    }
}

/// What runs a session: the kernel's cache of it, and the thread that ends with it.
type Running = (KernelCache, JoinHandle<std::io::Result<()>>);

/// Greets the kernel and starts the threads that serve requests.
fn start(adapter: Adapter, device: &Device, mount: &MountOptions) -> Result<Running, MountError> {
    let system = |what, error: &std::io::Error| {
        MountError::System(what, Errno::from_io_error(error).unwrap_or(Errno::IO))
    };
    let server = Arc::clone(adapter.server());
    let mut config = fuser::Config::default();
    config.n_threads = Some(mount.threads.max(1));
    config.clone_fd = device.can_be_cloned();
    let acl = match mount.access {
        Access::Owner => SessionACL::Owner,
        Access::Everyone => SessionACL::All,
    };
    let descriptor = device.descriptor().map_err(|error| system("copying a descriptor", &error))?;
    let session = Session::from_fd(adapter, descriptor, acl, config)
        .map_err(|error| system("greeting the kernel", &error))?;
    let notifier = session.notifier();
    server.set_drop_attributes(Box::new(move |node| {
        // An offset below 0 means the attributes alone, for which the kernel waits for no lock of the inode.
        if let Err(error) = notifier.inval_inode(INodeNo(node), -1, 0) {
            log::debug!("the kernel keeps the attributes of node {node}: {error}");
        }
    }));
    let kernel = KernelCache::new(server, session.notifier());
    let session = corewalk_base::primitives::thread::Builder::new()
        .name("corewalk-fuse".into())
        .spawn(move || session.run())
        .map_err(|error| system("starting a thread", &error))?;
    Ok((kernel, session))
}

fn end(session: JoinHandle<std::io::Result<()>>) -> Result<(), MountError> {
    match session.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => {
            let errno = Errno::from_io_error(&error).unwrap_or(Errno::IO);
            Err(MountError::System("serving", errno))
        }
        Err(_) => Err(MountError::System("serving", Errno::IO)),
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            // It has ended; the thread that keeps the budget ends with its field.
            return;
        };
        match self.point.unmount() {
            Ok(Unmounted::Done) => {
                if let Err(error) = end(session) {
                    log::error!("{error}");
                }
            }
            Ok(Unmounted::Already | Unmounted::Detached) => {
                // Somebody may still use it, for as long as they like.
            }
            Err(error) => log::error!("{} stays mounted: {error}", self.point.path.display()),
        }
        drop(self.room.take());
    }
}
