//! One component of a path.
//!
//! A [`Name`] is checked once, where it enters, and is then a plain byte slice that every layer may
//! trust: not empty, at most 255 bytes, without `/` and NUL, and neither `.` nor `..`.
//!
//! Source: path_resolution(7); `NAME_MAX` of limits.h.

use std::fmt;

use crate::Errno;

/// The longest component, in bytes (`NAME_MAX`).
pub const NAME_MAX: usize = 255;
/// The longest path, in bytes, with its terminating NUL (`PATH_MAX`).
pub const PATH_MAX: usize = 4096;

/// A checked path component.
///
/// # Invariants
/// 1 to [`NAME_MAX`] bytes, no `/`, no NUL, not `.` or `..`.
///
/// # Examples
/// ```
/// use corewalk::{Errno, Name};
/// assert_eq!(Name::new(b"etc").unwrap().as_bytes(), b"etc");
/// assert_eq!(Name::new(&[b'x'; 256]), Err(Errno::NAMETOOLONG));
/// assert_eq!(Name::new(b"a/b"), Err(Errno::INVAL));
/// ```
#[doc(alias = "qstr")]
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name<'a>(&'a [u8]);

impl<'a> Name<'a> {
    /// Returns `bytes` as a name.
    ///
    /// # Errors
    /// `ENOENT` for an empty name, `ENAMETOOLONG` for more than 255 bytes, `EINVAL` for `.`, `..`,
    /// a `/` or a NUL.
    pub fn new(bytes: &'a [u8]) -> Result<Name<'a>, Errno> {
        match bytes {
            [] => Err(Errno::NOENT),
            b"." | b".." => Err(Errno::INVAL),
            _ if bytes.len() > NAME_MAX => Err(Errno::NAMETOOLONG),
            // Every byte is looked at, without a branch: that is faster for names.
            _ if bytes.iter().fold(false, |bad, &b| bad | (b == b'/') | (b == 0)) => {
                Err(Errno::INVAL)
            }
            _ => Ok(Name(bytes)),
        }
    }

    /// Returns the bytes of the name.
    pub fn as_bytes(self) -> &'a [u8] {
        self.0
    }
}

impl fmt::Debug for Name<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{}\"", self.0.escape_ascii())
    }
}
