//! `corewalk mount`: serves a file system until it is unmounted.
//!
//! - The command prints one line when the mount is ready, and ends when the mount is unmounted, for
//!   example by umount(8).
//! - On SIGINT, SIGTERM and SIGHUP the command unmounts the mount itself. If SIGHUP was ignored
//!   when the command started, as under nohup(1), it stays ignored.
//! - With `--daemon`, a second process serves the mount in the background; see [`daemon`].
//!
//! # The end of a mount
//! At its end, the command normally removes the mount, and also the mount point if it has created
//! it. If programs use the mount when a signal comes, the command detaches the mount. The server
//! then ends, so the calls of these programs fail. So do the calls of programs that use a copy of
//! the mount in another mount namespace.
//!
//! In two cases the mount stays without a server until `umount -l`. Either the command was killed
//! by SIGKILL, or a signal came while another file system was mounted on top.

mod daemon;
mod descriptors;
mod junctions;
mod options;
mod progress;

use std::ffi::{OsStr, OsString};
use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use corewalk::Errno;
use corewalk_cluster::ClusterFs;
use corewalk_fuse::{EndSignals, Mount};
use rustix::fs::{AtFlags, Mode, OFlags, open, statat, unlinkat};

use crate::failure::Failure;
use crate::source::Source;
use junctions::{Inherited, Junctions};
pub(crate) use options::{Plan, scaled};

/// The text at the end of `corewalk mount --help`, on sources, options and fstab(5).
const OPTIONS: &str = "\
Sources:
  tmpfs        a file system in memory; unmounting deletes it
  store:DIR    a file system that is kept in the directory DIR. An empty store takes about 50 MB:
               32 MB are reserved for commits on a full disk, 16 MB are the log. Its database uses
               64 MiB of memory beside cache=.
  /DIR, ./DIR  a directory of this machine
  pg://USER@HOST:PORT/DATABASE
               a cluster file system: names and attributes are in a PostgreSQL database, contents of
               files over 16 KiB in objects. `corewalk mkfs` makes it. Several machines may mount
               it. The password is in the variable PGPASSWORD, settings of S3 are in AWS_*.

Options of mount(8), with the meaning that they have there:
  ro, rw, suid, nosuid, dev, nodev, exec, noexec, symfollow, nosymfollow, sync, async
  dirsync      not for a directory of this machine
  relatime (default), noatime, nodiratime, strictatime
               strictatime is not for a directory of this machine, and does not count reads that
               the kernel answers from its cache. For a directory of this machine, noatime and
               nodiratime hold where the server may use O_NOATIME (open(2)). Elsewhere the options
               of the mount that the directory lies on decide.
  user, users, owner, group, auto, noauto, nofail, _netdev, x-*, and other words for fstab(5)

Options of fuse(8):
  allow_other                 all users may use the mount; default if root mounts it
  default_permissions         the kernel checks permissions (default)
  no_default_permissions      the server checks permissions; all timeouts are 0 then
  entry_timeout=SECONDS       how long the kernel may cache a name
  attr_timeout=SECONDS        how long the kernel may cache attributes
  negative_timeout=SECONDS    how long the kernel may cache that a name does not exist
                              Defaults: one day; for a directory of this machine, which other
                              programs may change, 1, 1 and 0 seconds.
  writeback_cache             the kernel collects small writes. It is faster, but a full file system
                              may be reported by fsync(2) only, or not at all.
  no_writeback_cache          each write goes to the server at once (default)
  readdirplus=yes|no|auto     whether listings transfer attributes as well; default auto
  fsname=NAME                 the source that the mount table shows

Options of tmpfs(5), not for a directory of this machine:
  size=SIZE          the most bytes of data; 0 for no limit
                     Default: tmpfs half of the memory, a store no limit.
  nr_inodes=COUNT    the most inodes; 0 for no limit
                     Default: tmpfs one for each 4096 bytes of half of the memory, a store no limit.
  mode=MODE          permissions of the root directory, in octal; default 1777, of a store 0755
  uid=UID, gid=GID   owner and group of the root directory; default: the user that mounts it
               A store uses mode, uid and gid when it is created. It does not record size and
               nr_inodes: give them at each mount.

Options of ext4(5), not for a directory of this machine:
  mbcache (default)  store equal sets of extended attributes and ACLs once
  no_mbcache         store the set of each file by itself
  commit=SECONDS     for a store only: the longest time before a change is on disk without
                     fsync(2); default 5, which 0 stands for

Options of nfs(5), for a cluster file system:
  hard (default)     a call waits while the database cannot be reached
  soft               it fails after timeout=, with EIO
  timeout=SECONDS    for soft; default 60

Option of nfs(5), for a directory of this machine and for a cluster file system:
  local_lock=all|none  with none, fcntl(2) and flock(2) in the mount and on the directory itself, or
                     in other mounts of the cluster file system, exclude each other. With all, locks
                     hold in the mount only. Default: all for a directory, none for a cluster file
                     system. none is not possible with transport=uring and transport=fuser.

Options of corewalk:
  birth_times        statx(2) shows when a file was made. It costs a request for each file whose
                     birth time a program asks for, as every program in Rust does.
  no_birth_times     statx(2) does not show it (default)
  passthrough        for a directory of this machine: the kernel reads and writes the files of the
                     directory itself. Default, if root mounts, and the options are without noatime,
                     ro, writeback_cache and no_default_permissions
  no_passthrough     all reads and writes go through the server
  kernel_names       for a cluster file system: beside other mounts, the kernel keeps names and
                     attributes for as long as the lease of their directory lasts. At changes it
                     drops all names, also those of open files; see docs/using/cluster.md.
  no_kernel_names    it keeps them only while there is no other mount (default)
  create (default)   create the store if there is none
  no_create          for a store only: fail if there is none
  cache_dir=DIR      for a cluster file system: keep objects that were read whole in the directory
                     DIR, an absolute path, also after the mount has ended. One mount at a time can
                     use DIR for a file system; several file systems can share DIR.
  cache_dir_size=SIZE  the most bytes of a file system in DIR; default 1g
  connections=COUNT  for a cluster file system: connections to the database, from 1 to 64, and two
                     more for the session; default 4
  cache=SIZE         the most memory for cached names and attributes; default 256m. A cluster file
                     system uses up to as much again for its own cache.
  threads=COUNT      requests served at a time, from 1 to 1024. fsync has further threads. Default:
                     one per processor and at least 2; for a store with sync or dirsync, and for a
                     cluster file system, 4 per processor and at least 8. A directory on a slow disk or on a network file
                     system may need more.

  transport=auto|uring|dev|fuser
                     how requests arrive: over io_uring, over /dev/fuse, or over /dev/fuse through
                     the crate fuser. auto (default) is io_uring if the kernel offers it and threads
                     is at most the number of processors, otherwise dev. The kernel offers io_uring
                     since Linux 6.14, if root has written Y to
                     /sys/module/fuse/parameters/enable_uring.

  SIZE   bytes, with k, m, g or t for a power of 1024, or with % for a share of the memory:
         4096, 64k, 10m, 50%. No fractions.
  COUNT  a number; nr_inodes also takes k, m, g and t

If an option is given twice, the later one holds.

The command ends when the mount is unmounted: by umount(8), or by itself on SIGINT, SIGTERM and
SIGHUP. If the mount is in use when the signal comes, the programs that use it lose it.

To mount by mount(8) and fstab(5), link the program into /sbin:

    ln -s $(command -v corewalk) /sbin/mount.corewalk
    mount -t corewalk store:/srv/s /mnt -o size=1g

A line of fstab(5):

    store:/srv/s  /mnt  corewalk  size=1g,nofail,no_create  0 0

Say no_create if the store is on a disk that may not be mounted at the time. Otherwise corewalk
would create an empty store in the directory where that disk is missing.

Exit status: 0 if the mount was unmounted in order (with --daemon: if the mount is ready);
1 if the mount failed; 2 if the command line is invalid.";

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_long_help = OPTIONS)]
pub(crate) struct Arguments {
    /// The file system to mount: tmpfs, store:DIR, a pg:// URL, or a directory (a path with a / in
    /// it).
    source: OsString,
    /// The directory to mount the file system on. If it does not exist, it is created, and removed
    /// when the mount ends.
    mountpoint: PathBuf,
    /// Options, separated by commas. The end of the --help text lists them.
    #[arg(short = 'o', value_name = "OPTIONS")]
    options: Vec<OsString>,
    /// Serve the mount in the background. The command returns when the mount is ready.
    #[arg(long)]
    daemon: bool,
    /// Be the background process that `--daemon` starts.
    #[arg(long, hide = true)]
    background: bool,
    /// The identity of a file system from which junctions lead to this mount. A mount of one of
    /// these file systems would make an endless path, so it is refused.
    #[arg(long, hide = true)]
    above: Vec<String>,
}

impl Arguments {
    pub(crate) fn new(source: OsString, mountpoint: PathBuf, options: Vec<OsString>) -> Arguments {
        let (daemon, background, above) = (false, false, Vec::new());
        Arguments { source, mountpoint, options, daemon, background, above }
    }

    fn plan(&self) -> Result<(Source, Plan), Failure> {
        let source = Source::parse(&self.source)?;
        Ok((source, Plan::parse(source, &self.options)?))
    }
}

pub(crate) fn check(arguments: &Arguments) -> Result<(), Failure> {
    arguments.plan().map(drop)
}

pub(crate) fn start(arguments: &Arguments) -> Result<Vec<u8>, Failure> {
    check(arguments)?;
    daemon::start(&arguments.source, &arguments.mountpoint, &arguments.options)
}

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
    if !arguments.above.is_empty() {
        junctions::end_with_parent()?;
    }
    let (source, plan) = arguments.plan()?;
    descriptors::raise_limit(&plan.mount)?;
    let opened = source.open(&plan)?;
    let path = &arguments.mountpoint;
    if let Some(cluster) = &opened.cluster {
        junctions::check_circle(cluster.id(), &arguments.above, path)?;
    }
    // Install the signal handlers before mount(2). Otherwise a signal could end this process after
    // mount(2), and the mount would stay.
    let signals = EndSignals::watch().map_err(|error| Failure::of(path.display(), error))?;
    let created = CreatedMountpoint::create(path)?;
    let mount = Mount::new(opened.fs, path, plan.server, &plan.mount)
        .map_err(|error| Failure::of(path.display(), error));
    let mount = match mount {
        Ok(mount) => mount,
        Err(failure) => {
            drop(created);
            return Err(failure);
        }
    };
    let left = if arguments.above.is_empty() { Ok(()) } else { junctions::leave_place() };
    let crossed =
        left.and_then(|()| cross(arguments, opened.cluster.as_ref(), mount.point().path()));
    let junctions = match crossed {
        Ok(junctions) => junctions,
        Err(failure) => {
            drop((mount, created));
            return Err(failure);
        }
    };
    if created.is_some() {
        let path = path.display();
        eprintln!("corewalk: {path}: created the directory; it is removed when the mount ends");
    }
    if let Err(failure) = announce(&arguments.source, path) {
        drop((junctions, mount, created));
        return Err(failure);
    }
    if arguments.background {
        daemon::detach();
    }
    let served = mount.wait_or_unmount(signals);
    // Write cached changes even after a lazy unmount. Programs may still have files open then, but
    // their later writes fail.
    let synced = opened.store.map_or(Ok(()), |store| store.sync());
    let synced = synced.and(opened.cluster.map_or(Ok(()), |cluster| progress::close(&cluster)));
    // End the mounts of junctions last, because they may take long to end. They do not need the
    // mount that contains the junctions.
    drop(junctions);
    drop(created);
    synced.map_err(|error| {
        let why = format!("the last changes may not be on disk: {error}");
        Failure::of(arguments.source.display(), why)
    })?;
    served.map_err(|error| Failure::of(path.display(), error))
}

fn cross(
    arguments: &Arguments,
    cluster: Option<&Arc<ClusterFs>>,
    path: &Path,
) -> Result<Option<Junctions>, Failure> {
    let Some(cluster) = cluster else { return Ok(None) };
    let (options, above) = (arguments.options.clone(), arguments.above.clone());
    Junctions::start(cluster.clone(), path, Inherited { options, above }).map(Some)
}

/// Prints that the mount is ready. The source and the path need not be UTF-8, so they are written
/// as bytes.
fn announce(source: &OsStr, path: &Path) -> Result<(), Failure> {
    let (source, path) = (source.as_bytes(), path.as_os_str().as_bytes());
    let line = [b"mounted ", source, b" on ", path, b"\n"].concat();
    let mut out = std::io::stdout().lock();
    out.write_all(&line)
        .and_then(|()| out.flush())
        .map_err(|error| Failure::of("standard output", error))
}

/// A mount point that this command has created. The drop removes it by a descriptor of its parent,
/// so it works even if directories above were renamed. If another directory has its name by then,
/// nothing is removed.
struct CreatedMountpoint {
    parent: OwnedFd,
    path: PathBuf,
    identity: (u64, u64),
}

impl CreatedMountpoint {
    /// Creates the directory `path`. Returns None if `path` already exists.
    fn create(path: &Path) -> Result<Option<CreatedMountpoint>, Failure> {
        let failed = |error: std::io::Error| Failure::of(path.display(), error);
        match std::fs::create_dir(path) {
            Ok(()) => {}
            // If `path` is not a directory, the mount fails later.
            Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => return Ok(None),
            Err(error) => {
                let why = format!("cannot create the mount point: {error}");
                return Err(Failure::of(path.display(), why));
            }
        }
        let path = path.canonicalize().map_err(failed)?;
        let above = path.parent().unwrap_or(&path);
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let parent = open(above, flags, Mode::empty()).map_err(|error| failed(error.into()))?;
        let identity = std::fs::symlink_metadata(&path).map(|stat| (stat.dev(), stat.ino()));
        Ok(Some(CreatedMountpoint { parent, identity: identity.map_err(failed)?, path }))
    }

    fn remove(&self) -> Result<(), Errno> {
        let name = self.path.file_name().unwrap_or_default();
        let current = statat(&self.parent, name, AtFlags::SYMLINK_NOFOLLOW)?;
        match (current.st_dev, current.st_ino) == self.identity {
            true => unlinkat(&self.parent, name, AtFlags::REMOVEDIR),
            false => Err(Errno::NOENT),
        }
    }
}

impl Drop for CreatedMountpoint {
    fn drop(&mut self) {
        if let Err(error) = self.remove() {
            log::warn!("{}: cannot remove the mount point: {error}", self.path.display());
        }
    }
}
