//! `corewalk mount`: serves a file system until it is unmounted.
//!
//! In the foreground the command prints one line when the mount works, and ends when it is
//! unmounted: from outside, or by itself on SIGINT, SIGTERM and SIGHUP (the terminal is closed), unless it was started to
//! ignore hangups, as nohup(1) does. In the background (`--daemon`) a second process does that; see [`daemon`].
//!
//! # What it leaves behind
//! Nothing: a mount that is in use when a signal comes, or that another mount namespace has a copy of,
//! loses its server, and a directory that had to be made is removed again. If it is killed, or a signal comes while
//! something else is mounted on it, the mount stays without a server; `umount -l` removes it.

mod daemon;
mod descriptors;
mod options;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Sender, channel};
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::primitives::thread;
use corewalk_fuse::{Mount, MountError, Mountpoint, Unmounted};
use rustix::fs::{AtFlags, Mode, OFlags, open, statat, unlinkat};
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use crate::failure::Failure;
use crate::signals::is_ignored;
use crate::source::Source;
use options::Plan;

/// What a line of fstab needs.
const FSTAB: &str =
    "In fstab(5): after `ln -s $(command -v corewalk) /sbin/mount.corewalk`, mount(8) takes
`mount -t corewalk store:/srv/s /mnt -o size=1g`, and a line of fstab

    store:/srv/s  /mnt  corewalk  size=1g,nofail,no_create  0 0

no_create is for a directory on a disk that may not be mounted: no empty store is made in its place.";

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = FSTAB)]
pub(crate) struct Arguments {
    /// What to mount: tmpfs, a file system in memory; store:DIR, a file system that is kept in the
    /// directory DIR, which is made if need be; or a directory (a path with a / in it).
    source: OsString,
    /// Where to mount it. It is made if it does not exist, and removed at the end.
    mountpoint: PathBuf,
    /// Options, separated by commas, as in mount(8): ro, rw, suid, nosuid, dev, nodev, exec,
    /// noexec, relatime, noatime, strictatime, nodiratime, nosymfollow, sync, async, dirsync, and
    /// what it takes in fstab(5), as user, nofail, _netdev, x-*; as in fuse(8): allow_other,
    /// default_permissions, no_default_permissions, entry_timeout=SECONDS, attr_timeout=SECONDS,
    /// negative_timeout=SECONDS, fsname=NAME, writeback_cache, no_writeback_cache,
    /// readdirplus=yes|no|auto; as in tmpfs(5), not for a directory: size=SIZE, nr_inodes=COUNT,
    /// mode=MODE, uid=UID, gid=GID; as in ext4(5): mbcache, no_mbcache (equal sets of extended
    /// attributes and ACLs are stored once, or each by itself), and for a store only commit=SECONDS
    /// (how long what is not synced may be volatile; 5 is the default, and 0 means it) and create,
    /// no_create (whether a store is made where there is none); and cache=SIZE (memory for
    /// metadata; by default 256m) and threads=COUNT (requests at a time, fsync apart, which has
    /// threads of its own; by default one per processor and two at least, more for a store with
    /// dirsync; what is on a slow disk or on another machine may want more). strictatime, not for a
    /// directory, counts each read that the server is asked for, but not reads and listings that the
    /// kernel answers from its cache; noatime and nodiratime hold for a directory where the host allows
    /// it (O_NOATIME of open(2)), and otherwise its own mount decides. A SIZE is bytes,
    /// with k, m, g or t behind them 1024 times as many each, or with % a share of the machine's
    /// memory; there are no fractions; a COUNT of inodes may have k, m, g or t. Of a store, mode, uid
    /// and gid are those of the root directory when it is made, size and nr_inodes hold for this
    /// mount and are not kept, and its database has 64 MiB of memory beside cache. An empty store
    /// takes about 50 MB of the directory that it is in: 32 are kept for commits on a full disk, 16
    /// are its log.
    #[arg(short = 'o', value_name = "OPTIONS", verbatim_doc_comment)]
    options: Vec<OsString>,
    /// Go to the background once the mount works.
    #[arg(long)]
    daemon: bool,
    /// Be the process in the background.
    #[arg(long, hide = true)]
    background: bool,
}

impl Arguments {
    pub(crate) fn new(source: OsString, mountpoint: PathBuf, options: Vec<OsString>) -> Arguments {
        Arguments { source, mountpoint, options, daemon: false, background: false }
    }

    /// Returns what is to be mounted, and how.
    fn plan(&self) -> Result<(Source, Plan), Failure> {
        let source = Source::parse(&self.source)?;
        Ok((source, Plan::parse(source, &self.options)?))
    }
}

/// How long the end of a mount may take once it is unmounted.
const END_MAX: Duration = Duration::from_secs(5);

/// What the serving process waits for.
enum Event {
    /// A signal to leave.
    Signal,
    /// The mount has ended.
    Ended(Result<(), MountError>),
}

/// Looks whether the command line can be meant.
pub(crate) fn check(arguments: &Arguments) -> Result<(), Failure> {
    arguments.plan().map(drop)
}

/// Mounts and serves in the background, and returns the line that says that the mount works.
pub(crate) fn start(arguments: &Arguments) -> Result<Vec<u8>, Failure> {
    check(arguments)?;
    daemon::start(&arguments.source, &arguments.mountpoint, &arguments.options)
}

/// Mounts, serves and unmounts.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    if arguments.daemon {
        let line = start(arguments)?;
        let written = std::io::stdout().write_all(&line);
        return written.map_err(|error| Failure::of("standard output", error));
    }
    if arguments.background {
        daemon::close_inherited();
        daemon::leave_terminal();
    }
    let (source, plan) = arguments.plan()?;
    descriptors::allow(plan.mount.threads)?;
    let opened = source.open(plan.tmpfs, &plan.store, plan.host)?;
    // Before the mount: a signal that comes while it is made must not leave it behind.
    let (events, happened) = channel();
    watch_signals(events.clone())?;
    let path = &arguments.mountpoint;
    let made = Made::at(path)?;
    let mount = Mount::new(opened.fs, path, plan.server, &plan.mount)
        .map_err(|error| Failure::of(path.display(), error));
    let mount = match mount {
        Ok(mount) => mount,
        Err(failure) => {
            drop(made);
            return Err(failure);
        }
    };
    if made.is_some() {
        // Not before: a command that fails says one line.
        let path = path.display();
        eprintln!("corewalk: made the directory {path} for as long as it is mounted");
    }
    let point = mount.point().clone();
    thread::spawn(move || {
        // Nobody listens any more if the process is about to end.
        let _ = events.send(Event::Ended(mount.wait()));
    });
    if let Err(failure) = announce(&arguments.source, path) {
        let _ = point.unmount();
        drop(made);
        return Err(failure);
    }
    if arguments.background {
        daemon::let_go();
    }
    let served = serve(&happened, &point);
    // Also if others use the mount for a while, without the server that ends here.
    let synced = opened.store.map_or(Ok(()), |store| store.sync());
    drop(made);
    synced.map_err(|error| {
        Failure::of(arguments.source.display(), format!("not all is durable: {error}"))
    })?;
    served.map_err(|error| Failure::of(path.display(), error))
}

/// Returns once the mount is gone or detached.
fn serve(happened: &std::sync::mpsc::Receiver<Event>, point: &Mountpoint) -> Result<(), String> {
    match happened.recv().expect("the thread that watches signals keeps a sender") {
        Event::Ended(result) => result.map_err(|error| error.to_string()),
        Event::Signal => match point.unmount() {
            // The end follows, unless another mount namespace has a copy: that is as if it were in use.
            Ok(Unmounted::Done) => match happened.recv_timeout(END_MAX) {
                Ok(Event::Ended(result)) => result.map_err(|error| error.to_string()),
                Ok(Event::Signal) | Err(_) => Ok(()),
            },
            // Others may use it for as long as they like; they lose it now.
            Ok(Unmounted::Detached | Unmounted::Already) => Ok(()),
            Err(error) => Err(format!("cannot be unmounted: {error}")),
        },
    }
}

fn watch_signals(events: Sender<Event>) -> Result<(), Failure> {
    let hangup = if is_ignored(SIGHUP) { None } else { Some(SIGHUP) };
    let signals = [SIGINT, SIGTERM].into_iter().chain(hangup);
    let mut signals = Signals::new(signals).map_err(|error| Failure::of("signals", error))?;
    thread::spawn(move || {
        for _ in signals.forever() {
            if events.send(Event::Signal).is_err() {
                return;
            }
        }
    });
    Ok(())
}

/// Says that the mount works. The paths are as they were given, also if they are no text.
fn announce(source: &OsStr, path: &Path) -> Result<(), Failure> {
    let (source, path) = (source.as_bytes(), path.as_os_str().as_bytes());
    let line = [b"mounted ", source, b" on ", path, b"\n"].concat();
    let mut out = std::io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::of("standard output", error))
}

/// A mount point that had to be made, and goes when this is dropped: wherever a directory above it has been
/// moved to, and nothing that has taken its place.
struct Made {
    parent: OwnedFd,
    path: PathBuf,
    identity: (u64, u64),
}

impl Made {
    /// Makes the mount point if it does not exist.
    fn at(path: &Path) -> Result<Option<Made>, Failure> {
        let failed = |error: std::io::Error| Failure::of(path.display(), error);
        match std::fs::create_dir(path) {
            Ok(()) => {}
            // Whether it can be used is found out by mounting.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => return Err(failed(error)),
        }
        let path = path.canonicalize().map_err(failed)?;
        let above = path.parent().unwrap_or(&path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = open(above, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let identity = std::fs::symlink_metadata(&path).map(|made| (made.dev(), made.ino()));
        Ok(Some(Made { parent, identity: identity.map_err(failed)?, path }))
    }

    fn remove(&self) -> Result<(), Errno> {
        let name = self.path.file_name().unwrap_or_default();
        let there = statat(&self.parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match (there.st_dev, there.st_ino) == self.identity {
            true => unlinkat(&self.parent, name, AtFlags::REMOVEDIR),
            false => Err(Errno::NOENT),
        }
    }
}

impl Drop for Made {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            log::warn!("{}: {error}", self.path.display());
        }
    }
}
