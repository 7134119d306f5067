//! Converts an error of the standard library into an errno.
//!
//! `Errno` and `std::io::Error` both belong to other crates, so this crate cannot implement `From`
//! between them. It has the function [`errno_of`] instead. `rustix` has
//! `From<Errno> for std::io::Error`.

use std::borrow::Borrow;
use std::io::{Error, ErrorKind};

use rustix::io::Errno;

const KINDS: [(ErrorKind, Errno); 20] = [
    (ErrorKind::AlreadyExists, Errno::EXIST),
    (ErrorKind::CrossesDevices, Errno::XDEV),
    (ErrorKind::DirectoryNotEmpty, Errno::NOTEMPTY),
    (ErrorKind::ExecutableFileBusy, Errno::TXTBSY),
    (ErrorKind::FileTooLarge, Errno::FBIG),
    (ErrorKind::Interrupted, Errno::INTR),
    (ErrorKind::InvalidFilename, Errno::NAMETOOLONG),
    (ErrorKind::InvalidInput, Errno::INVAL),
    (ErrorKind::IsADirectory, Errno::ISDIR),
    (ErrorKind::NotADirectory, Errno::NOTDIR),
    (ErrorKind::NotFound, Errno::NOENT),
    (ErrorKind::OutOfMemory, Errno::NOMEM),
    (ErrorKind::PermissionDenied, Errno::ACCESS),
    (ErrorKind::QuotaExceeded, Errno::DQUOT),
    (ErrorKind::ReadOnlyFilesystem, Errno::ROFS),
    (ErrorKind::ResourceBusy, Errno::BUSY),
    (ErrorKind::StaleNetworkFileHandle, Errno::STALE),
    (ErrorKind::StorageFull, Errno::NOSPC),
    (ErrorKind::TooManyLinks, Errno::MLINK),
    (ErrorKind::WouldBlock, Errno::AGAIN),
];

/// Returns the OS error number of `error`, or the errno of its kind, or `EIO` for a kind without an
/// errno.
///
/// # Examples
/// ```
/// use corewalk_base::errno_of;
/// use rustix::io::Errno;
///
/// assert_eq!(std::fs::read("/nowhere").map_err(errno_of), Err(Errno::NOENT));
/// assert_eq!(errno_of(std::io::Error::from(std::io::ErrorKind::StorageFull)), Errno::NOSPC);
/// assert_eq!(errno_of(std::io::Error::other("a checksum is wrong")), Errno::IO);
/// ```
pub fn errno_of(error: impl Borrow<Error>) -> Errno {
    let error = error.borrow();
    let of_kind = || KINDS.iter().find(|(kind, _)| *kind == error.kind()).map(|(_, errno)| *errno);
    Errno::from_io_error(error).or_else(of_kind).unwrap_or(Errno::IO)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_without_a_number_keeps_its_kind() {
        for (kind, errno) in KINDS {
            assert_eq!(errno_of(Error::from(kind)), errno);
            assert_eq!(Error::from(errno).kind(), kind, "{errno}");
        }
    }

    #[test]
    fn number_of_an_error_comes_before_its_kind() {
        // Use the OS error number first: `EPERM` and `EACCES` have the same `io::ErrorKind`.
        assert_eq!(errno_of(Error::from(Errno::PERM)), Errno::PERM);
        assert_eq!(errno_of(Error::from(ErrorKind::PermissionDenied)), Errno::ACCESS);
    }
}
