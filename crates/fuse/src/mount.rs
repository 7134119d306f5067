//! Mounting a file system on a directory, serving it, and unmounting it.
//!
//! - [`Mount::new`] mounts, starts the threads, and returns when the mount works.
//! - [`Mount::wait`] returns when the mount has ended.
//! - [`serve`] does both, and unmounts when a signal comes.
//! - A mount ends when the `Mount` is dropped, when a thread calls [`Mountpoint::unmount`], or when
//!   a user calls umount(8).
//!
//! [`Mountpoint`] unmounts only its own mount, even if another mount is on top of it, or the mount
//! was moved.
//!
//! # Mounting without root
//! Only root may mount. For any other user, the set-user-ID root program fusermount3(1) mounts the
//! file system. It sends the open `/dev/fuse` to this process over a socket.
//!
//! # Unmounting a mount in use
//! A mount in use cannot be unmounted, so it is detached. Its path is gone immediately, and the
//! mount ends when programs have closed all files in it. To end it earlier, end the process that
//! serves it. Programs that use the mount then get `ENOTCONN`.
//!
//! # Lifetimes
//! The threads that serve requests end with the FUSE connection. The shrinker thread ends after
//! them.
//!
//! Source: mount(2), fsopen(2), fusermount3(1), Linux `fs/fuse/inode.c` for the options.

mod below;
mod device;
mod error;
mod options;
mod signals;
mod table;

pub(crate) use below::MountsBelow;
pub(crate) use device::{Device, Pages};
pub use error::MountError;
pub use options::{AllowedUsers, MountFlags, MountOptions};
pub use signals::{EndSignals, serve};

use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::{Errno, FileSystem, errno_of};
use corewalk_base::primitives::thread::JoinHandle;

use crate::notify::{KernelCache, Notifier};
use crate::options::Options;
use crate::server::Server;
use crate::service::Service;
use crate::shrinker::Shrinker;
use crate::transport::{self, Transport};

/// A mounted file system. Dropping the value unmounts it; see [`Mountpoint::unmount`].
///
/// # Examples
/// ```no_run
/// use std::{path::Path, sync::Arc};
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{Mount, MountOptions, Options};
///
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// let mount = Mount::new(fs, Path::new("/mnt"), Options::exclusive(), &MountOptions::default())?;
/// std::fs::write("/mnt/file", "text").expect("the mount works");
/// mount.point().unmount()?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Debug)]
pub struct Mount<S = Server> {
    server: Arc<S>,
    point: Mountpoint,
    kernel: KernelCache,
    transport: Transport,
    session: Option<JoinHandle<std::io::Result<()>>>,
    shrinker: Option<Shrinker>,
}

/// Identifies one mount, and unmounts it even after it was moved.
///
/// # Examples
/// A thread unmounts, while another one waits for the end of the mount:
/// ```no_run
/// use corewalk_fuse::{Mount, MountError, Unmounted};
///
/// fn serve_until_enter(mount: Mount) -> Result<(), MountError> {
///     let point = mount.point().clone();
///     std::thread::spawn(move || {
///         let _ = std::io::stdin().read_line(&mut String::new());
///         match point.unmount() {
///             Ok(Unmounted::Done | Unmounted::Already) => {}
///             Ok(Unmounted::Detached) => println!("{} is in use", point.path().display()),
///             Err(error) => eprintln!("cannot unmount: {error}"),
///         }
///     });
///     mount.wait()
/// }
/// ```
#[derive(Clone, Debug)]
pub struct Mountpoint {
    path: PathBuf,
    /// The number of the mount and the number of its device. After the mount has ended, a later
    /// mount may get both numbers.
    identity: table::Identity,
    /// The `/dev/fuse` of the mount. It shows whether the FUSE connection of the mount still
    /// exists.
    device: Arc<Device>,
}

/// The result of unmounting. [`Mountpoint`] has an example.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unmounted {
    /// The mount is gone.
    Done,
    /// The mount was in use, so it was detached: no path leads to it any more. It ends when
    /// programs have closed all files in it.
    Detached,
    /// The mount had already ended.
    Already,
}

impl Mount {
    /// Mounts `fs` on the directory `path`.
    ///
    /// # Errors
    /// If the call fails, nothing is mounted. In the order of the steps:
    /// - [`MountError::Options`] for options that [conflict](Options::check);
    /// - [`MountError::FileSystem`] with the errors of [`Server::new`];
    /// - [`MountError::Missing`], [`MountError::NotDirectory`], [`MountError::Dead`],
    ///   [`MountError::Denied`] or [`MountError::Busy`] for the directory;
    /// - [`MountError::NoDevice`];
    /// - without root, [`MountError::NoFusermount`] or [`MountError::Fusermount`];
    /// - [`MountError::NoUring`], with [`Transport::Uring`] only;
    /// - [`MountError::System`] for any other error. It names the step that has failed.
    ///
    /// # Examples
    /// [`Mount`] has an example of a mount. This call fails:
    /// ```
    /// use std::{path::Path, sync::Arc};
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk_fuse::{Mount, MountError, MountOptions, Options};
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let path = Path::new("/no/such/directory");
    /// let mounted = Mount::new(fs, path, Options::exclusive(), &MountOptions::default());
    /// assert_eq!(mounted.err(), Some(MountError::Missing));
    /// ```
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

    /// Mounts the file system of `server` on the directory `path`.
    ///
    /// # Errors
    /// The errors of [`Mount::new`], without those of the options and of the server.
    ///
    /// # Examples
    /// ```no_run
    /// use std::{path::Path, sync::Arc};
    /// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
    /// use corewalk_fuse::{Mount, MountOptions, Options, Server};
    ///
    /// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    /// let server = Arc::new(Server::new(fs, Options::exclusive())?);
    /// let mount = Mount::serve(Arc::clone(&server), Path::new("/mnt"), &MountOptions::default())?;
    /// mount.wait()?;
    /// // The server outlives the mount.
    /// println!("{} lookups reached the back end", server.vfs().stats().misses);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn serve(
        server: Arc<Server>,
        path: &Path,
        mount: &MountOptions,
    ) -> Result<Mount, MountError> {
        mount_server(server, path, mount)
    }
}

impl<S> Mount<S> {
    /// Returns the server. [`Mount::serve_async`] has an example.
    pub fn server(&self) -> &Arc<S> {
        &self.server
    }

    /// Returns the value with which any thread can unmount the mount.
    /// [`Mountpoint`] has an example.
    pub fn point(&self) -> &Mountpoint {
        &self.point
    }

    /// Returns the transport by which requests arrive. It is never [`Transport::Auto`].
    ///
    /// # Examples
    /// ```
    /// use corewalk_fuse::{Mount, Transport};
    ///
    /// fn report(mount: &Mount) {
    ///     if mount.transport() != Transport::Uring {
    ///         eprintln!("requests arrive by {}, not by io_uring", mount.transport().name());
    ///     }
    /// }
    /// ```
    pub fn transport(&self) -> Transport {
        self.transport
    }

    /// Returns the [`KernelCache`] of the mount. Use it to tell the kernel of changes that were not
    /// made through the mount. [`KernelCache`] has an example.
    pub fn kernel_cache(&self) -> &KernelCache {
        &self.kernel
    }

    /// Waits until the mount has ended. [`Mountpoint`] has an example.
    ///
    /// A signal that ends the process leaves a mount without a server. Until that mount is
    /// unmounted, every use of it fails with `ENOTCONN`. [`Mount::wait_or_unmount`] avoids that: it
    /// unmounts the mount before the process ends.
    ///
    /// # Errors
    /// [`MountError::System`] if a thread that serves requests has failed.
    pub fn wait(mut self) -> Result<(), MountError> {
        let session = self.session.take().expect("only `wait` and `drop` take the session");
        let mut ended = end(session);
        // `ECONNABORTED` has two causes:
        // - A detached mount has ended. Only a few threads read this error, and the mount is gone.
        // - The connection was aborted. All threads read this error, and the mount still exists.
        let is_aborted = ended == Err(MountError::System("serving requests", Errno::CONNABORTED));
        if is_aborted && self.point.find() == Ok(None) {
            ended = Ok(());
        }
        if let Err(error) = self.point.unmount() {
            log::error!("cannot unmount {}, it stays mounted: {error}", self.point.path.display());
        }
        ended
    }
}

impl Mountpoint {
    /// Returns the path at which the file system was mounted, without symbolic links. If a
    /// directory in this path is renamed later, this method still returns the old path.
    /// [`Mountpoint`] has an example.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Unmounts the mount, even if it was moved, and never another mount. A mount in use is
    /// detached. [`Mountpoint`] has an example.
    ///
    /// # Errors
    /// - `EBUSY` if another mount is on top of it.
    /// - `EPERM` if root lacks the right to unmount (`CAP_SYS_ADMIN`).
    /// - `EIO` if fusermount3(1) fails, or if the mount table cannot be read.
    /// - The errors of starting fusermount3(1), such as `ENOENT`.
    pub fn unmount(&self) -> Result<Unmounted, Errno> {
        let Some(path) = self.find()? else { return Ok(Unmounted::Already) };
        if device::unmount(&path, device::Force::None).is_ok() {
            return Ok(Unmounted::Done);
        }
        // The mount is in use, or its path has changed since `find` read the mount table. So read
        // the path again.
        let Some(path) = self.find()? else { return Ok(Unmounted::Already) };
        device::unmount(&path, device::Force::Detach)?;
        Ok(Unmounted::Detached)
    }

    /// Returns the current path of the mount, or `None` if the mount is gone.
    ///
    /// # Errors
    /// `EBUSY` if another mount is on top of the mount. `EIO` if the mount table cannot be read.
    fn find(&self) -> Result<Option<PathBuf>, Errno> {
        let Some(path) = table::find_again(self.identity).map_err(|_| Errno::IO)? else {
            return Ok(None);
        };
        let met = table::mounted_on(&path).map_err(|_| Errno::IO)?;
        if met.is_none_or(|met| met.identity != self.identity) {
            return Err(Errno::BUSY);
        }
        // As long as our FUSE connection exists, the mount at `path` is ours. After the end of the
        // connection, a later mount may have got the same numbers. That mount has a server, and
        // ours has none.
        let is_ours = !self.device.is_disconnected() || table::is_dead(&path);
        Ok(is_ours.then_some(path))
    }
}

pub(crate) fn mount_server<S: Service>(
    server: Arc<S>,
    given: &Path,
    mount: &MountOptions,
) -> Result<Mount<S>, MountError> {
    let service: Arc<dyn Service> = Arc::clone(&server) as _;
    let path = table::checked_mountpoint(given)?;
    let lock = table::lock_mountpoint(&path)?;
    let (device, identity) = device::mount(given, &path, server.options(), mount)?;
    let listed = || Ok(table::mounted_on(&path)?.filter(|entry| entry.is_fuse));
    let identity = match identity {
        Some(identity) => Some(identity),
        None => listed()?.map(|entry| entry.identity),
    };
    let Some(identity) = identity else {
        return Err(MountError::System("reading the mount table", Errno::NOENT));
    };
    drop(lock);
    let point = Mountpoint { path, identity, device: Arc::new(device) };
    match start(&service, &point, mount) {
        Ok(session) => {
            let device = &point.device;
            let kernel = KernelCache::new(Arc::clone(&service), Arc::clone(device));
            let shrinker = Shrinker::start(service, Arc::clone(device));
            Ok(Mount {
                server,
                point,
                kernel,
                transport: session.transport,
                session: Some(session.thread),
                shrinker: Some(shrinker),
            })
        }
        Err(error) => {
            let _ = point.unmount();
            Err(error)
        }
    }
}

fn start(
    server: &Arc<dyn Service>,
    point: &Mountpoint,
    mount: &MountOptions,
) -> Result<transport::Session, MountError> {
    let notifier = Notifier::new(&point.device, MountsBelow::watch(point.identity.device));
    transport::start(server, &point.device, mount, || server.set_notifier(notifier))
}

fn end(session: JoinHandle<std::io::Result<()>>) -> Result<(), MountError> {
    match session.join() {
        Ok(Ok(())) => Ok(()),
        Ok(Err(error)) => Err(MountError::System("serving requests", errno_of(error))),
        Err(_) => Err(MountError::System("serving requests", Errno::IO)),
    }
}

impl<S> Drop for Mount<S> {
    fn drop(&mut self) {
        let Some(session) = self.session.take() else {
            // `wait` has taken the session and has unmounted already, so there is nothing left to
            // do.
            return;
        };
        match self.point.unmount() {
            Ok(Unmounted::Done) => {
                if let Err(error) = end(session) {
                    log::error!("{error}");
                }
            }
            Ok(Unmounted::Already | Unmounted::Detached) => {
                // Programs may use a detached mount for an unlimited time, so do not wait for its
                // end.
            }
            Err(error) => {
                log::error!(
                    "cannot unmount {}, it stays mounted: {error}",
                    self.point.path.display()
                );
            }
        }
        drop(self.shrinker.take());
    }
}
