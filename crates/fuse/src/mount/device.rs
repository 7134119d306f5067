//! The FUSE device, and attaching it to a directory.
//!
//! Root mounts with mount(2). Anybody else runs fusermount3(1), which sends the device back over a
//! socket whose number it finds in an environment variable.
//!
//! Source: Linux `fs/fuse/inode.c` (`fuse_fs_parameters`); libfuse `lib/mount.c` for how
//! fusermount3(1) is called.

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use corewalk::Errno;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::io::FdFlags;
use rustix::mount::UnmountFlags;
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};

use super::error::MountError;
use super::options::{Access, MountFlags, MountOptions};
use crate::options::{Options, Permissions};

const DEVICE: &str = "/dev/fuse";
const FUSERMOUNT: &str = "fusermount3";
const SUBTYPE: &str = "corewalk";

/// The number of `FUSE_NOTIFY_PRUNE` (protocol 7.45), which fuser 0.18 does not have.
const NOTIFY_PRUNE: u32 = 9;
/// Nodes that one notification names, at most. The kernel takes them in such portions anyway.
const PRUNE_MAX: usize = 512;

/// The options of mount(8) with their flags for mount(2).
const FLAGS: [(MountFlags, &str, rustix::mount::MountFlags); 10] = [
    (MountFlags::RDONLY, "ro", rustix::mount::MountFlags::RDONLY),
    (MountFlags::NOSUID, "nosuid", rustix::mount::MountFlags::NOSUID),
    (MountFlags::NODEV, "nodev", rustix::mount::MountFlags::NODEV),
    (MountFlags::NOEXEC, "noexec", rustix::mount::MountFlags::NOEXEC),
    (MountFlags::NOATIME, "noatime", rustix::mount::MountFlags::NOATIME),
    (MountFlags::SYNC, "sync", rustix::mount::MountFlags::SYNCHRONOUS),
    (MountFlags::DIRSYNC, "dirsync", rustix::mount::MountFlags::DIRSYNC),
    (MountFlags::NODIRATIME, "nodiratime", rustix::mount::MountFlags::NODIRATIME),
    (MountFlags::STRICTATIME, "strictatime", rustix::mount::MountFlags::STRICTATIME),
    (MountFlags::NOSYMFOLLOW, "nosymfollow", rustix::mount::MountFlags::NOSYMFOLLOW),
];

/// The device of a mount.
#[derive(Debug)]
pub(crate) struct Device(File);

/// How hard to unmount.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    /// Only if nobody uses it.
    None,
    /// Take the name away now, the rest when the last user leaves.
    Detach,
}

impl Device {
    /// Returns a descriptor for a session to own.
    pub(super) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    /// Returns whether the connection has ended: its mount is gone, or was aborted.
    pub(super) fn is_disconnected(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let count = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        count.is_ok() && polled[0].revents().contains(PollFlags::ERR)
    }

    /// Asks the kernel to drop what it has cached of these nodes, as far as they are not in use. Must
    /// not be called on a thread that serves requests: the kernel may have pages to write first.
    ///
    /// # Errors
    /// `EINVAL` from a kernel that does not know how; `ENODEV`, `ENOTCONN` if the mount has ended.
    pub(crate) fn notify_prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        for nodes in nodes.chunks(PRUNE_MAX) {
            let count = nodes.len() as u32;
            // `fuse_out_header`: length, code, and no request that is answered.
            let header = [32 + 8 * count, NOTIFY_PRUNE, 0, 0];
            // `fuse_notify_prune_out`: the count, and room for more.
            let prune = [count, 0, 0, 0];
            let mut message = Vec::with_capacity(header[0] as usize);
            message.extend(header.iter().chain(&prune).flat_map(|word| word.to_ne_bytes()));
            message.extend(nodes.iter().flat_map(|node| node.to_ne_bytes()));
            rustix::io::write(&self.0, &message)?;
        }
        Ok(())
    }

    /// Returns whether each thread can have a device of its own: fusermount3(1) opens the device
    /// for users who may not.
    pub(super) fn can_be_cloned(&self) -> bool {
        File::options().read(true).write(true).open(DEVICE).is_ok()
    }
}

/// Mounts on the directory `path`.
pub(super) fn mount(
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<Device, MountError> {
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoDevice);
    }
    if rustix::process::geteuid().is_root() {
        mount_as_root(path, options, mount)
    } else {
        mount_as_user(path, options, mount)
    }
}

/// Unmounts `path`.
pub(super) fn unmount(path: &Path, force: Force) -> Result<(), Errno> {
    if rustix::process::geteuid().is_root() {
        let flags = match force {
            Force::None => UnmountFlags::NOFOLLOW,
            Force::Detach => UnmountFlags::NOFOLLOW | UnmountFlags::DETACH,
        };
        return rustix::mount::unmount(path, flags);
    }
    let how = if force == Force::Detach { "-uqz" } else { "-uq" };
    let status = Command::new(FUSERMOUNT)
        .args([how, "--"])
        .arg(path)
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    match status {
        Ok(status) if status.success() => Ok(()),
        Ok(_) => Err(Errno::IO),
        Err(error) => Err(Errno::from_io_error(&error).unwrap_or(Errno::IO)),
    }
}

fn mount_as_root(
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<Device, MountError> {
    let device = File::options().read(true).write(true).open(DEVICE).map_err(|error| {
        MountError::System("opening /dev/fuse", Errno::from_io_error(&error).unwrap_or(Errno::IO))
    })?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let mut text = format!(
        "fd={},rootmode=40000,user_id={},group_id={}",
        device.as_raw_fd(),
        uid.as_raw(),
        gid.as_raw()
    );
    for option in protocol_options(options, mount) {
        text.push(',');
        text.push_str(option);
    }
    let data = CString::new(text).expect("no NUL is written above");
    let mut flags = rustix::mount::MountFlags::empty();
    for (flag, _, bits) in FLAGS {
        if mount.flags.contains(flag) {
            flags |= bits;
        }
    }
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(mount.source.as_os_str(), path, kind, flags, data.as_c_str()).map_err(
        |error| match error {
            Errno::BUSY => MountError::Busy,
            Errno::NODEV => MountError::NoDevice,
            error => MountError::System("mount", error),
        },
    )?;
    Ok(Device(device))
}

fn mount_as_user(
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<Device, MountError> {
    let system = |what| {
        move |error: std::io::Error| {
            MountError::System(what, Errno::from_io_error(&error).unwrap_or(Errno::IO))
        }
    };
    let (theirs, ours) = UnixStream::pair().map_err(system("making a socket"))?;
    // Other programs that are started right now inherit it too; they do not know its number.
    rustix::io::fcntl_setfd(&theirs, FdFlags::empty())
        .map_err(|error| MountError::System("making a socket", error))?;
    let child = Command::new(FUSERMOUNT)
        .arg("-o")
        .arg(fusermount_options(options, mount))
        .arg("--")
        .arg(path)
        .env("_FUSE_COMMFD", theirs.as_raw_fd().to_string())
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn();
    let child = child.map_err(|error| match is_fusermount_found() {
        true => system("starting fusermount3")(error),
        false => MountError::NoFusermount,
    })?;
    drop(theirs);
    let device = receive(&ours);
    let words = words_of(child);
    match device {
        Ok(Some(device)) => Ok(Device(device)),
        Ok(None) => Err(MountError::Fusermount(words)),
        Err(error) => Err(MountError::System("receiving the device", error)),
    }
}

/// Returns whether a folder of `PATH` shows fusermount3(1). An error of starting it does not tell: it is `EACCES` also
/// where it is in none of them, and one may not be looked into.
fn is_fusermount_found() -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(FUSERMOUNT).exists())
}

/// Returns the descriptor that is sent over `socket`, None if it is closed instead.
fn receive(socket: &UnixStream) -> Result<Option<File>, Errno> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let mut byte = [0];
    let mut buffers = [IoSliceMut::new(&mut byte)];
    rustix::io::retry_on_intr(|| {
        rustix::net::recvmsg(socket, &mut buffers, &mut control, RecvFlags::CMSG_CLOEXEC)
    })?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(mut descriptors) = message {
            return Ok(descriptors.next().map(File::from));
        }
    }
    Ok(None)
}

/// Waits for fusermount3 and returns the first line that it complained with.
fn words_of(mut child: Child) -> Box<str> {
    let mut text = String::new();
    if let Some(stderr) = &mut child.stderr {
        // What cannot be read is not said.
        let _ = stderr.read_to_string(&mut text);
    }
    let _ = child.wait();
    text.lines().next().unwrap_or("fusermount3 failed and does not say why").into()
}

/// Returns the options that both ways of mounting share.
fn protocol_options(options: &Options, mount: &MountOptions) -> Vec<&'static str> {
    let mut list = Vec::new();
    if options.permissions == Permissions::Kernel {
        list.push("default_permissions");
    }
    if mount.access == Access::Everyone {
        list.push("allow_other");
    }
    list
}

/// Returns the options for fusermount3(1), where a comma ends one unless it is escaped.
fn fusermount_options(options: &Options, mount: &MountOptions) -> OsString {
    use std::os::unix::ffi::OsStringExt as _;
    let mut list = format!("subtype={SUBTYPE},fsname=").into_bytes();
    for &byte in mount.source.as_bytes() {
        if byte == b',' || byte == b'\\' {
            list.push(b'\\');
        }
        list.push(byte);
    }
    let flags = FLAGS.iter().filter(|(flag, ..)| mount.flags.contains(*flag)).map(|flag| flag.1);
    for option in protocol_options(options, mount).into_iter().chain(flags) {
        list.push(b',');
        list.extend_from_slice(option.as_bytes());
    }
    OsString::from_vec(list)
}
