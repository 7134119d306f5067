//! Safe functions for the system calls that make and open file handles of the host.
//!
//! A handle names a file of a mounted file system for the file's whole life. It survives renames,
//! and works even while no process has the file open.
//!
//! No maintained crate wraps name_to_handle_at(2) and open_by_handle_at(2), and only this crate may
//! have unsafe code for them.
//!
//! # Limits
//!
//! Two kinds of handles are not supported: connectable handles, which also name the parent
//! directory (`AT_HANDLE_CONNECTABLE`), and handles that cannot be opened (`AT_HANDLE_FID`).
//!
//! Source: open_by_handle_at(2).
#![expect(unsafe_code, reason = "libc has no declaration of these system calls")]

use std::ffi::CString;
use std::os::fd::{AsRawFd as _, BorrowedFd, FromRawFd as _, OwnedFd};

use rustix::fs::OFlags;
use rustix::io::Errno;

/// The longest handle, in bytes (`MAX_HANDLE_SZ`).
const BYTES_MAX: usize = 128;

/// A file handle: an opaque identifier of a file within its file system. It has the layout of
/// `struct file_handle`.
///
/// # Examples
/// ```
/// use corewalk_base::file_handle::FileHandle;
/// use std::os::fd::AsFd;
///
/// let folder = std::fs::File::open("/tmp")?;
/// match FileHandle::of(folder.as_fd(), b"") {
///     Ok(handle) => assert!(!handle.bytes().is_empty()),
///     Err(error) => println!("/tmp has no handles: {error}"),
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[doc(alias = "file_handle")]
#[repr(C)]
#[derive(Clone, Copy, Debug)]
pub struct FileHandle {
    len: u32,
    kind: i32,
    bytes: [u8; BYTES_MAX],
}

impl FileHandle {
    /// Returns the handle of `name` in the directory `dir`. A symbolic link is not followed.
    ///
    /// If `name` is empty, returns the handle of the file to which the descriptor `dir` refers.
    ///
    /// # Errors
    ///
    /// `EOPNOTSUPP` if the file system has no handles. `ENOENT` and other errors as in openat(2).
    pub fn of(dir: BorrowedFd<'_>, name: &[u8]) -> Result<FileHandle, Errno> {
        let flags = if name.is_empty() { libc::AT_EMPTY_PATH } else { 0 };
        let name = CString::new(name).map_err(|_| Errno::INVAL)?;
        let mut handle = FileHandle { len: BYTES_MAX as u32, kind: 0, bytes: [0; BYTES_MAX] };
        let mut mount_id: libc::c_int = 0;
        // SAFETY: (1) `dir` is open and `name` ends with a NUL. (2) `handle` is laid out like
        // `struct file_handle`, and `len` is the space in its field `bytes`. (3) `handle` and
        // `mount_id` live until the call returns.
        let done = unsafe {
            libc::syscall(
                libc::SYS_name_to_handle_at,
                dir.as_raw_fd(),
                name.as_ptr(),
                &raw mut handle,
                &raw mut mount_id,
                flags,
            )
        };
        if done == 0 { Ok(handle) } else { Err(last_error()) }
    }

    /// Returns a handle with the type of this handle and the content `bytes`.
    ///
    /// # Panics
    ///
    /// Panics if there are more than 128 bytes.
    #[must_use]
    pub fn with_bytes(&self, bytes: &[u8]) -> FileHandle {
        let mut handle = FileHandle { len: bytes.len() as u32, ..*self };
        handle.bytes[..bytes.len()].copy_from_slice(bytes);
        handle
    }

    /// Returns the type of the handle. It defines the layout of the bytes.
    pub fn kind(&self) -> i32 {
        self.kind
    }

    /// Returns the bytes that name the file.
    pub fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len as usize]
    }

    /// Opens the file of this handle with `flags` of open(2). `mount` is any open file on the same
    /// file system.
    ///
    /// # Errors
    ///
    /// `ESTALE` if the file of this handle no longer exists. `EPERM` if the caller lacks
    /// `CAP_DAC_READ_SEARCH`. Other errors as in open(2).
    pub fn open(&self, mount: BorrowedFd<'_>, flags: OFlags) -> Result<OwnedFd, Errno> {
        let flags = (flags | OFlags::CLOEXEC).bits() as libc::c_int;
        // SAFETY: (1) `mount` is open. (2) `self` is laid out like `struct file_handle`, and `len`
        // bytes of its field `bytes` are valid. (3) `self` lives until the call returns.
        let fd = unsafe {
            libc::syscall(
                libc::SYS_open_by_handle_at,
                mount.as_raw_fd(),
                std::ptr::from_ref(self),
                flags,
            )
        };
        if fd < 0 {
            return Err(last_error());
        }
        // SAFETY: the kernel has just opened the descriptor, and no other code knows its number.
        Ok(unsafe { OwnedFd::from_raw_fd(fd as libc::c_int) })
    }
}

fn last_error() -> Errno {
    crate::errno_of(std::io::Error::last_os_error())
}

// Miri supports none of the system calls.
#[cfg(all(test, not(any(miri, corewalk_loom, corewalk_shuttle))))]
mod tests {
    use std::fs::File;
    use std::os::fd::AsFd as _;
    use std::os::unix::fs::MetadataExt as _;

    use corewalk_testkit::require::{Need, skip};

    use super::*;

    #[test]
    fn handle_names_the_file_over_a_rename_and_not_its_successor() {
        let folder = std::env::temp_dir().join(format!("sync-handle-{}", std::process::id()));
        std::fs::create_dir_all(&folder).expect("a folder");
        let dir = File::open(&folder).expect("it is there");
        File::create(folder.join("a")).expect("a file");
        if let Ok(handle) = FileHandle::of(dir.as_fd(), b"a") {
            std::fs::rename(folder.join("a"), folder.join("b")).expect("both are there");
            assert_eq!(FileHandle::of(dir.as_fd(), b"b").expect("a name").bytes(), handle.bytes());
            assert_eq!(FileHandle::of(dir.as_fd(), b"a").err(), Some(Errno::NOENT));
            let ino = std::fs::metadata(folder.join("b")).expect("it is there").ino();
            match handle.open(dir.as_fd(), OFlags::RDONLY) {
                Err(Errno::PERM) => skip(Need::Root, "no CAP_DAC_READ_SEARCH"),
                opened => {
                    let file = File::from(opened.expect("it is there"));
                    assert_eq!(file.metadata().expect("a file").ino(), ino);
                    drop(file);
                    std::fs::remove_file(folder.join("b")).expect("it is there");
                    File::create(folder.join("b")).expect("a file");
                    let opened = handle.open(dir.as_fd(), OFlags::RDONLY);
                    assert_eq!(opened.err(), Some(Errno::STALE));
                }
            }
        }
        std::fs::remove_dir_all(&folder).expect("it is the test's");
    }
}
