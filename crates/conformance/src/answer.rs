//! How a check judges the answers of a back end.
//!
//! - [`Answer::needs`] is for a call that a back end may leave unsupported. Then the check ends as
//!   skipped.
//! - [`Answer::must`] is for a call that must succeed.
//! - [`Answer::must_fail`] is for a call that a correct back end refuses.
//!
//! An early end of a check is a [`Stop`].

use std::fmt::Debug;

use corewalk::Errno;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Stop {
    Failed(String),
    Skipped(String),
}

pub(crate) type Checked<T = ()> = Result<T, Stop>;

impl Stop {
    pub(crate) fn failed<T>(text: impl Into<String>) -> Checked<T> {
        Err(Stop::Failed(text.into()))
    }

    pub(crate) fn skipped<T>(text: impl Into<String>) -> Checked<T> {
        Err(Stop::Skipped(text.into()))
    }

    pub(crate) fn at(self, place: &str) -> Stop {
        match self {
            Stop::Failed(text) => Stop::Failed(format!("{place}: {text}")),
            Stop::Skipped(text) => Stop::Skipped(text),
        }
    }

    pub(crate) fn and(self, more: &str) -> Stop {
        match self {
            Stop::Failed(text) => Stop::Failed(format!("{text}; {more}")),
            Stop::Skipped(text) => Stop::Skipped(text),
        }
    }
}

pub(crate) trait Answer<T> {
    /// If the back end does not support `call`, the check ends as skipped. Any other error fails
    /// the check.
    fn needs(self, call: &str) -> Checked<T>;

    fn must(self, call: &str) -> Checked<T>;

    fn must_fail(self, call: &str, wanted: &[Errno]) -> Checked;
}

impl<T> Answer<T> for Result<T, Errno> {
    fn needs(self, call: &str) -> Checked<T> {
        match self {
            Err(error) if is_unsupported(error) => {
                Stop::skipped(format!("{call}: the back end answers {}", errno_name(error)))
            }
            answer => answer.must(call),
        }
    }

    fn must(self, call: &str) -> Checked<T> {
        self.map_err(|error| Stop::Failed(format!("{call}: {}", errno_name(error))))
    }

    fn must_fail(self, call: &str, wanted: &[Errno]) -> Checked {
        let names: Vec<String> = wanted.iter().map(|errno| errno_name(*errno)).collect();
        let names = names.join(" or ");
        match self {
            Err(error) if wanted.contains(&error) => Ok(()),
            Err(error) => Stop::failed(format!("{call}: {} instead of {names}", errno_name(error))),
            Ok(_) => Stop::failed(format!("{call}: success instead of {names}")),
        }
    }
}

pub(crate) fn is_unsupported(error: Errno) -> bool {
    [Errno::ROFS, Errno::OPNOTSUPP, Errno::NOSYS].contains(&error)
}

pub(crate) fn is_without_mode(error: Errno) -> bool {
    error == Errno::INVAL || is_unsupported(error)
}

pub(crate) fn ensure(is_right: bool, text: impl FnOnce() -> String) -> Checked {
    if is_right { Ok(()) } else { Stop::failed(text()) }
}

pub(crate) fn ensure_eq<T: PartialEq + Debug>(what: &str, found: T, wanted: T) -> Checked {
    ensure(found == wanted, || format!("{what} is {found:?} instead of {wanted:?}"))
}

pub(crate) fn ensure_bytes(what: &str, found: &[u8], wanted: &[u8]) -> Checked {
    if found == wanted {
        return Ok(());
    }
    let (found_len, wanted_len) = (found.len(), wanted.len());
    match found.iter().zip(wanted).position(|(a, b)| a != b) {
        Some(at) => Stop::failed(format!(
            "{what}: byte {at} of {found_len} is {:#04x} instead of {:#04x}",
            found[at], wanted[at]
        )),
        None => Stop::failed(format!("{what}: {found_len} bytes instead of {wanted_len}")),
    }
}

pub(crate) fn ensure_names(what: &str, found: &[String], wanted: &[String]) -> Checked {
    if found == wanted {
        return Ok(());
    }
    let at = found.iter().zip(wanted).take_while(|(a, b)| a == b).count();
    let show =
        |names: &[String]| names.get(at).map_or("the end".to_owned(), |it| format!("{it:?}"));
    Stop::failed(format!("{what}: at {at} is {} instead of {}", show(found), show(wanted)))
}

pub(crate) fn errno_name(error: Errno) -> String {
    let name = match error {
        Errno::TOOBIG => "E2BIG",
        Errno::ACCESS => "EACCES",
        Errno::BADF => "EBADF",
        Errno::BUSY => "EBUSY",
        Errno::EXIST => "EEXIST",
        Errno::FBIG => "EFBIG",
        Errno::INVAL => "EINVAL",
        Errno::IO => "EIO",
        Errno::ISDIR => "EISDIR",
        Errno::MLINK => "EMLINK",
        Errno::NAMETOOLONG => "ENAMETOOLONG",
        Errno::NODATA => "ENODATA",
        Errno::NODEV => "ENODEV",
        Errno::NOENT => "ENOENT",
        Errno::NOMEM => "ENOMEM",
        Errno::NOSPC => "ENOSPC",
        Errno::NOSYS => "ENOSYS",
        Errno::NOTDIR => "ENOTDIR",
        Errno::NOTEMPTY => "ENOTEMPTY",
        Errno::NXIO => "ENXIO",
        Errno::OPNOTSUPP => "EOPNOTSUPP",
        Errno::PERM => "EPERM",
        Errno::RANGE => "ERANGE",
        Errno::ROFS => "EROFS",
        Errno::STALE => "ESTALE",
        Errno::XDEV => "EXDEV",
        other => return format!("errno {}", other.raw_os_error()),
    };
    name.to_owned()
}
