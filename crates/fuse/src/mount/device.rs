//! The FUSE device: how it is opened, mounted and unmounted.
//!
//! Root mounts with fsopen(2), fsmount(2) and move_mount(2). mount(2) does not return the new
//! mount, and a lookup of its path may find another mount. So root calls mount(2) only if the
//! kernel or a container refuses the other calls. For any other user, the program fusermount3(1)
//! mounts, and sends the open device over a socket. An environment variable tells fusermount3(1)
//! the descriptor of the socket.
//!
//! Source: Linux `fs/fuse/inode.c` (`fuse_fs_parameters`); libfuse `lib/mount.c` for the use of
//! fusermount3(1).

use std::ffi::{CString, OsString};
use std::fs::File;
use std::io::{IoSliceMut, Read as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd as _, BorrowedFd, OwnedFd};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use corewalk::{Errno, errno_of};
use corewalk_fuse_ring::device;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::CWD;
use rustix::io::FdFlags;
use rustix::mount::{
    FsMountFlags, FsOpenFlags, MountAttrFlags, MoveMountFlags, UnmountFlags, fsconfig_set_flag,
    fsconfig_set_string,
};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags};
use rustix::thread::{CapabilitySet, CapabilitySets, capabilities, set_capabilities};

use super::error::MountError;
use super::options::{AllowedUsers, MountFlags, MountOptions};
use super::table::Identity;
use crate::options::{Options, Permissions};
use crate::passthrough::BackingId;

const DEVICE: &str = "/dev/fuse";
const FUSERMOUNT: &str = "fusermount3";
const SUBTYPE: &str = "corewalk";

const NOTIFY_POLL: u32 = 1;
const NOTIFY_INVAL_INODE: u32 = 2;
const NOTIFY_INVAL_ENTRY: u32 = 3;
const NOTIFY_INC_EPOCH: u32 = 8;
const NOTIFY_PRUNE: u32 = 9;
/// Maximum number of nodes in one `FUSE_NOTIFY_PRUNE`. The kernel splits a longer notification into
/// portions of this size.
const PRUNE_MAX: usize = 512;

/// Maximum length of the text of an option in bytes (fsconfig(2)).
const OPTION_MAX: usize = 255;

/// The flags of a mount, each with its name for mount(8) and its flag for fsmount(2).
const FLAGS: [(MountFlags, &str, MountAttrFlags); 10] = [
    (MountFlags::RDONLY, "ro", MountAttrFlags::MOUNT_ATTR_RDONLY),
    (MountFlags::NOSUID, "nosuid", MountAttrFlags::MOUNT_ATTR_NOSUID),
    (MountFlags::NODEV, "nodev", MountAttrFlags::MOUNT_ATTR_NODEV),
    (MountFlags::NOEXEC, "noexec", MountAttrFlags::MOUNT_ATTR_NOEXEC),
    (MountFlags::NOATIME, "noatime", MountAttrFlags::MOUNT_ATTR_NOATIME),
    (MountFlags::SYNC, "sync", MountAttrFlags::empty()),
    (MountFlags::DIRSYNC, "dirsync", MountAttrFlags::empty()),
    (MountFlags::NODIRATIME, "nodiratime", MountAttrFlags::MOUNT_ATTR_NODIRATIME),
    (MountFlags::STRICTATIME, "strictatime", MountAttrFlags::MOUNT_ATTR_STRICTATIME),
    (MountFlags::NOSYMFOLLOW, "nosymfollow", MountAttrFlags::MOUNT_ATTR_NOSYMFOLLOW),
];
/// The flags that belong to the file system, and so to each mount of it.
const OF_FILE_SYSTEM: MountFlags =
    MountFlags::RDONLY.union(MountFlags::SYNC).union(MountFlags::DIRSYNC);

#[derive(Debug)]
pub(crate) struct Device(File);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Force {
    None,
    /// Detach the mount even if it is in use. Then it has no path any more, and ends when its last
    /// user closes it.
    Detach,
}

impl AsFd for Device {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pages {
    Keep,
    Drop,
}

impl Device {
    pub(crate) fn descriptor(&self) -> std::io::Result<OwnedFd> {
        Ok(self.0.try_clone()?.into())
    }

    pub(super) fn is_disconnected(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        let count = rustix::event::poll(&mut polled, Some(&Timespec::default()));
        count.is_ok() && polled[0].revents().contains(PollFlags::ERR)
    }

    pub(crate) fn read(&self, buffer: &mut [u8]) -> Result<usize, Errno> {
        rustix::io::retry_on_intr(|| rustix::io::read(&self.0, &mut *buffer))
    }

    pub(crate) fn write(&self, message: &[u8]) -> Result<(), Errno> {
        rustix::io::retry_on_intr(|| rustix::io::write(&self.0, message)).map(drop)
    }

    fn notify(&self, code: u32, body: &[u8]) -> Result<(), Errno> {
        let header = [16 + body.len() as u32, code, 0, 0];
        let mut message: Vec<u8> = header.iter().flat_map(|word| word.to_ne_bytes()).collect();
        message.extend(body);
        self.write(&message)
    }

    /// Tells the kernel that an open file may have new events for poll(2).
    ///
    /// # Errors
    /// It is no error if the file was closed.
    pub(crate) fn notify_poll(&self, kernel_handle: u64) -> Result<(), Errno> {
        self.notify(NOTIFY_POLL, &kernel_handle.to_ne_bytes())
    }

    /// Makes the kernel drop the cached attributes of a node. With `Pages::Drop`, the kernel drops
    /// the cached pages too.
    ///
    /// # Errors
    /// It is no error if the kernel does not know the node.
    pub(crate) fn notify_inval_inode(&self, node: u64, pages: Pages) -> Result<(), Errno> {
        // In `FUSE_NOTIFY_INVAL_INODE`, offset -1 tells the kernel to keep the pages, and length 0
        // stands for the rest of the file.
        let offset = if pages == Pages::Keep { u64::MAX } else { 0 };
        let body: Vec<u8> = [node, offset, 0].iter().flat_map(|word| word.to_ne_bytes()).collect();
        unless_unknown(self.notify(NOTIFY_INVAL_INODE, &body))
    }

    /// Makes the kernel drop a cached name in the directory `parent`. A thread that serves requests
    /// must not call this method. The kernel locks the directory, and the holder of that lock may
    /// wait for a request.
    ///
    /// # Errors
    /// It is no error if the kernel does not know the name.
    pub(crate) fn notify_inval_entry(&self, parent: u64, name: &[u8]) -> Result<(), Errno> {
        let mut body = parent.to_ne_bytes().to_vec();
        body.extend((name.len() as u32).to_ne_bytes());
        body.extend([0; 4]);
        body.extend(name);
        body.push(0);
        unless_unknown(self.notify(NOTIFY_INVAL_ENTRY, &body))
    }

    /// Makes the kernel look up each name again. Any thread may call this method, because the
    /// kernel takes no lock.
    ///
    /// # Errors
    /// `EINVAL` if the kernel is older than 6.16.
    pub(crate) fn notify_inc_epoch(&self) -> Result<(), Errno> {
        self.notify(NOTIFY_INC_EPOCH, &[])
    }

    /// Makes the kernel forget those of `nodes` that are not in use. A thread that serves requests
    /// must not call this method: the kernel may first have to write dirty pages, for which it
    /// sends requests.
    ///
    /// # Errors
    /// `EINVAL` if the kernel does not know the notification.
    pub(crate) fn notify_prune(&self, nodes: &[u64]) -> Result<(), Errno> {
        for nodes in nodes.chunks(PRUNE_MAX) {
            let prune = [nodes.len() as u32, 0, 0, 0];
            let mut body: Vec<u8> = prune.iter().flat_map(|word| word.to_ne_bytes()).collect();
            body.extend(nodes.iter().flat_map(|node| node.to_ne_bytes()));
            self.notify(NOTIFY_PRUNE, &body)?;
        }
        Ok(())
    }

    /// Registers a file of the host with the kernel. The kernel then reads and writes the file with
    /// the capabilities that this thread has now, but without `CAP_FSETID`. So the host clears
    /// set-user-ID and set-group-ID with each write.
    ///
    /// # Errors
    /// As [`device::open_backing_file`]; the errors of capset(2).
    pub(crate) fn open_backing_file(&self, file: &OwnedFd) -> Result<BackingId, Errno> {
        let _dropped = DroppedFsetid::new()?;
        let id = device::open_backing_file(self.0.as_fd(), file.as_fd())?;
        BackingId::new(id).ok_or(Errno::INVAL)
    }

    pub(crate) fn close_backing_file(&self, id: BackingId) -> Result<(), Errno> {
        device::close_backing_file(self.0.as_fd(), id.get())
    }

    /// Returns the device from which one thread reads requests. It is a clone of the mounted
    /// device. If this user may not open `/dev/fuse`, it is a duplicate of the descriptor.
    ///
    /// # Errors
    /// `EMFILE`, `ENFILE`.
    pub(crate) fn channel(&self) -> std::io::Result<File> {
        match self.can_be_cloned() {
            true => device::clone_fuse_device(self.0.as_fd()).map(File::from),
            false => self.0.try_clone(),
        }
    }

    /// Returns true if this user may open `/dev/fuse`, so that each thread can get a clone of the
    /// device. Otherwise all threads share the device that fusermount3(1) has opened.
    pub(crate) fn can_be_cloned(&self) -> bool {
        File::options().read(true).write(true).open(DEVICE).is_ok()
    }
}

/// Takes `CAP_FSETID` away from the current thread until the value is dropped.
struct DroppedFsetid(CapabilitySets);

impl DroppedFsetid {
    fn new() -> Result<DroppedFsetid, Errno> {
        let before = capabilities(None)?;
        let mut without = before;
        without.effective.remove(CapabilitySet::FSETID);
        set_capabilities(None, without)?;
        Ok(DroppedFsetid(before))
    }
}

impl Drop for DroppedFsetid {
    fn drop(&mut self) {
        if let Err(error) = set_capabilities(None, self.0) {
            log::error!("a thread has lost CAP_FSETID: {error}");
        }
    }
}

/// Turns the error `ENOENT` into success. It says that the kernel has nothing cached for the node
/// or the name.
fn unless_unknown(result: Result<(), Errno>) -> Result<(), Errno> {
    if result == Err(Errno::NOENT) { Ok(()) } else { result }
}

/// Mounts on the directory `given`. `path` is the path of that directory without symbolic links,
/// which fusermount3(1) gets. Root mounts on `given` itself. So if `given` is `/proc/self/fd/N`,
/// the mount is on that open directory, even if `path` leads to another one meanwhile.
///
/// Also returns the identity of the mount, unless only the mount table has it.
pub(super) fn mount(
    given: &Path,
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<(Device, Option<Identity>), MountError> {
    if !Path::new(DEVICE).exists() {
        return Err(MountError::NoDevice);
    }
    if !rustix::process::geteuid().is_root() {
        return Ok((mount_as_user(path, options, mount)?, None));
    }
    match mount_as_root(given, options, mount) {
        // Linux before 5.2 does not have the calls of `mount_as_root`, and before 5.14 does not
        // know one of their flags. A container may refuse these calls, but allow mount(2).
        Err(MountError::System(_, Errno::NOSYS | Errno::PERM | Errno::ACCESS | Errno::INVAL)) => {
            Ok((mount_by_path(given, options, mount)?, None))
        }
        mounted => mounted.map(|(device, identity)| (device, Some(identity))),
    }
}

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
        Err(error) => Err(errno_of(error)),
    }
}

fn mount_as_root(
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<(Device, Identity), MountError> {
    let device = open_device()?;
    let attached = detached_mount(&device, options, mount).and_then(|root| {
        // Read the identity from the mount itself. Later, its path may lead to another mount.
        let identity = Identity::of(root.as_fd())?;
        let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_SYMLINKS;
        rustix::mount::move_mount(&root, "", CWD, path, flags)?;
        Ok(identity)
    });
    Ok((Device(device), attached.map_err(mount_error)?))
}

/// Makes a mount that has no path yet. Returns its root directory.
fn detached_mount(
    device: &File,
    options: &Options,
    mount: &MountOptions,
) -> Result<OwnedFd, Errno> {
    let new = rustix::mount::fsopen("fuse", FsOpenFlags::FSOPEN_CLOEXEC)?;
    fsconfig_set_string(&new, "source", source(mount))?;
    fsconfig_set_string(&new, "subtype", SUBTYPE)?;
    fsconfig_set_string(&new, "rootmode", "40000")?;
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let device = device.as_raw_fd() as u32;
    for (key, number) in [("fd", device), ("user_id", uid.as_raw()), ("group_id", gid.as_raw())] {
        fsconfig_set_string(&new, key, number.to_string())?;
    }
    for option in protocol_options(options, mount) {
        fsconfig_set_flag(&new, option)?;
    }
    let mut attributes = MountAttrFlags::empty();
    for (flag, name, bits) in FLAGS.into_iter().filter(|(flag, ..)| mount.flags.contains(*flag)) {
        if OF_FILE_SYSTEM.contains(flag) {
            fsconfig_set_flag(&new, name)?;
        }
        // Only one of the flags for access times may be set. The last one counts.
        if bits.intersects(MountAttrFlags::MOUNT_ATTR__ATIME) {
            attributes.remove(MountAttrFlags::MOUNT_ATTR__ATIME);
        }
        attributes |= bits;
    }
    rustix::mount::fsconfig_create(&new)?;
    rustix::mount::fsmount(&new, FsMountFlags::FSMOUNT_CLOEXEC, attributes)
}

/// Mounts with mount(2). Opens the device again: the mount that `mount_as_root` has made has ended,
/// and its end has disconnected its device.
fn mount_by_path(
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<Device, MountError> {
    let device = open_device()?;
    let (uid, gid) = (rustix::process::getuid().as_raw(), rustix::process::getgid().as_raw());
    let fd = device.as_raw_fd();
    let mut text = format!("fd={fd},rootmode=40000,user_id={uid},group_id={gid}");
    for option in protocol_options(options, mount) {
        text.push(',');
        text.push_str(option);
    }
    let text = CString::new(text).expect("numbers and names of options contain no NUL");
    let flags = rustix::mount::MountFlags::from_bits_retain(mount.flags.bits());
    let kind = format!("fuse.{SUBTYPE}");
    rustix::mount::mount(source(mount), path, kind, flags, text.as_c_str()).map_err(mount_error)?;
    Ok(Device(device))
}

fn open_device() -> Result<File, MountError> {
    let device = File::options().read(true).write(true).open(DEVICE);
    device.map_err(|error| MountError::System("opening /dev/fuse", errno_of(error)))
}

fn mount_error(error: Errno) -> MountError {
    match error {
        Errno::BUSY => MountError::Busy,
        Errno::NODEV => MountError::NoDevice,
        error => MountError::System("mount", error),
    }
}

fn source(mount: &MountOptions) -> &[u8] {
    let source = mount.source.as_bytes();
    &source[..source.len().min(OPTION_MAX)]
}

fn mount_as_user(
    path: &Path,
    options: &Options,
    mount: &MountOptions,
) -> Result<Device, MountError> {
    let system = |what| move |error: std::io::Error| MountError::System(what, errno_of(error));
    let (theirs, ours) = UnixStream::pair().map_err(system("making a socket"))?;
    // Every program that this process starts inherits the socket now. That is harmless, since other
    // programs do not know the descriptor.
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

/// Returns true if fusermount3(1) is in a directory of `PATH`. The error of starting it does not
/// tell this. The error is `EACCES` instead of `ENOENT` if this user may not search one of the
/// directories.
fn is_fusermount_found() -> bool {
    let folders = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&folders).any(|folder| folder.join(FUSERMOUNT).exists())
}

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

/// Waits for fusermount3(1) to end. Returns the first line of its error messages.
fn words_of(mut child: Child) -> Box<str> {
    let mut text = String::new();
    if let Some(stderr) = &mut child.stderr {
        let _ = stderr.read_to_string(&mut text);
    }
    let _ = child.wait();
    text.lines().next().unwrap_or("fusermount3 failed without a message").into()
}

fn protocol_options(options: &Options, mount: &MountOptions) -> Vec<&'static str> {
    let mut list = Vec::new();
    if options.permissions == Permissions::Kernel {
        list.push("default_permissions");
    }
    if mount.users == AllowedUsers::Everyone {
        list.push("allow_other");
    }
    list
}

/// Returns the options for fusermount3(1), which separates options by commas. So a comma inside an
/// option's value is escaped.
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
