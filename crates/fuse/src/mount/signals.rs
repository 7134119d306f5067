//! Signals that end a mount.
//!
//! A signal that ends the process would leave a mount without a server, where each use fails with
//! `ENOTCONN`. So a thread waits for the signals, and unmounts the mount before the process ends.
//!
//! Source: signal(7); nohup(1), which starts a program with SIGHUP ignored.

use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use corewalk::{FileSystem, errno_of};
use corewalk_base::primitives::thread;
use corewalk_base::signal_is_ignored;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use super::{Mount, MountError, MountOptions, Mountpoint, Unmounted};
use crate::options::Options;

const END_TIMEOUT: Duration = Duration::from_secs(5);

/// Mounts `fs` on the directory `path`, and serves it until it is unmounted or the process gets
/// `SIGINT`, `SIGTERM` or `SIGHUP`. After a signal it unmounts the mount, so no mount without a
/// server is left.
///
/// If the mount is in use when a signal comes, the mount is detached. Programs that use it lose the
/// server when the process ends. If `SIGHUP` was ignored at the start of the process, as under
/// nohup(1), it stays ignored.
///
/// # Errors
/// The errors of [`Mount::new`] and [`Mount::wait_or_unmount`].
///
/// # Examples
/// ```no_run
/// use std::{path::Path, sync::Arc};
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{MountOptions, Options, serve};
///
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// serve(fs, Path::new("/mnt"), Options::exclusive(), &MountOptions::default())?;
/// # Ok::<(), corewalk_fuse::MountError>(())
/// ```
pub fn serve(
    fs: Arc<dyn FileSystem>,
    path: &Path,
    options: Options,
    mount: &MountOptions,
) -> Result<(), MountError> {
    // Install the handlers first: a signal must not end the process right after `Mount::new` has
    // mounted.
    let signals = EndSignals::watch()?;
    Mount::new(fs, path, options, mount)?.wait_or_unmount(signals)
}

/// The signals that end a mount: `SIGINT`, `SIGTERM`, and `SIGHUP` unless it is ignored.
///
/// After [`EndSignals::watch`], `SIGINT`, `SIGTERM` and `SIGHUP` no longer end the process, even if
/// the `EndSignals` value is dropped.
///
/// # Examples
/// ```no_run
/// use std::{path::Path, sync::Arc};
/// use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
/// use corewalk_fuse::{EndSignals, Mount, MountOptions, Options};
///
/// let signals = EndSignals::watch()?;
/// let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
/// let mount = Mount::new(fs, Path::new("/mnt"), Options::exclusive(), &MountOptions::default())?;
/// // The program goes on beside the mount, and then waits for its end.
/// println!("mounted on {}", mount.point().path().display());
/// mount.wait_or_unmount(signals)?;
/// # Ok::<(), corewalk_fuse::MountError>(())
/// ```
#[derive(Debug)]
pub struct EndSignals {
    sender: Sender<Event>,
    events: Receiver<Event>,
}

#[derive(Debug)]
enum Event {
    Signal,
    Ended(Result<(), MountError>),
}

impl EndSignals {
    /// Installs handlers for the signals that end a mount. Call this function before the mount is
    /// made, so that no signal can end the process and leave the mount behind.
    ///
    /// # Errors
    /// [`MountError::System`] if the handlers cannot be installed.
    ///
    /// # Examples
    /// ```
    /// use corewalk_fuse::EndSignals;
    /// use rustix::process::{Signal, getpid, kill_process};
    ///
    /// let signals = EndSignals::watch()?;
    /// // The signal does not end the process any more.
    /// kill_process(getpid(), Signal::TERM)?;
    /// // Next, the program mounts, and passes `signals` to `Mount::wait_or_unmount`.
    /// # drop(signals);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn watch() -> Result<EndSignals, MountError> {
        let (sender, events) = channel();
        let hangup = if signal_is_ignored(SIGHUP) { None } else { Some(SIGHUP) };
        let mut signals = Signals::new([SIGINT, SIGTERM].into_iter().chain(hangup))
            .map_err(|error| MountError::System("handling signals", errno_of(&error)))?;
        let to_events = sender.clone();
        thread::spawn(move || {
            for _ in signals.forever() {
                if to_events.send(Event::Signal).is_err() {
                    return;
                }
            }
        });
        Ok(EndSignals { sender, events })
    }
}

impl<S: Send + Sync + 'static> Mount<S> {
    /// Waits until the mount has ended, or until one of `signals` comes. After a signal, this
    /// method unmounts the mount. A mount in use is detached, and the method does not wait for the
    /// programs that use it. [`EndSignals`] has an example.
    ///
    /// # Errors
    /// [`MountError::System`] if a thread that serves requests has failed, or if the mount cannot
    /// be unmounted.
    pub fn wait_or_unmount(self, signals: EndSignals) -> Result<(), MountError> {
        let EndSignals { sender, events } = signals;
        let point = self.point().clone();
        thread::spawn(move || {
            // Ignore an error. The receiver is gone only after a signal has ended the mount, and
            // then the process ends soon.
            let _ = sender.send(Event::Ended(self.wait()));
        });
        match events.recv().expect("the thread that waits for the mount has a sender") {
            Event::Ended(result) => result,
            Event::Signal => unmount(&point, &events),
        }
    }
}

fn unmount(point: &Mountpoint, events: &Receiver<Event>) -> Result<(), MountError> {
    match point.unmount() {
        // A copy of the mount in another mount namespace may keep the connection alive, so do not
        // wait for ever. Programs that use the copy get errors after this process has ended.
        Ok(Unmounted::Done) => match events.recv_timeout(END_TIMEOUT) {
            Ok(Event::Ended(result)) => result,
            Ok(Event::Signal) | Err(_) => Ok(()),
        },
        // Programs may keep files of a detached mount open for ever, so do not wait for its end.
        Ok(Unmounted::Detached | Unmounted::Already) => Ok(()),
        Err(error) => Err(MountError::System("unmounting", error)),
    }
}
