//! Where a namespace lies: a file that its name leads to, or no file at all.
//!
//! A name means `/dev/shm/corewalk-ipc-UID-NAME`, a file of the calling user that stays until it is
//! removed or the machine is started again. A word with a slash in it is a path. Without a word the
//! namespace is a memfd, which goes with the last process that has it; it is sealed, so that nobody
//! can cut it short under the others.
//!
//! Source: shm_overview(7), memfd_create(2).

use std::fs::File;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::path::PathBuf;

use corewalk_ipc::{Cred, Namespace, NamespaceOptions, Task};
use rustix::fs::{MemfdFlags, Mode};

use crate::failure::Failure;

/// Where the preload library finds the namespace.
pub(super) const NAMESPACE_ENV: &str = "COREWALK_IPC_NAMESPACE";

/// Bytes of a name at most: a file's name is made of it.
const NAME_MAX: usize = 200;

/// Returns the path of the namespace `word`.
pub(super) fn path(word: &str) -> Result<PathBuf, Failure> {
    if word.contains('/') {
        return std::path::absolute(word).map_err(|error| Failure::of(word, error));
    }
    if word.is_empty() || word.len() > NAME_MAX || word.chars().any(char::is_control) {
        return Err(Failure::Usage(format!("'{word}' is not a name for a namespace")));
    }
    let user = rustix::process::geteuid().as_raw();
    Ok(PathBuf::from(format!("/dev/shm/corewalk-ipc-{user}-{word}")))
}

/// A namespace, and how a process that this one starts finds it.
pub(super) struct Place {
    pub(super) namespace: Namespace,
    pub(super) path: PathBuf,
    /// Kept open: the path leads through it.
    _anonymous: Option<OwnedFd>,
}

impl Place {
    /// Joins the namespace `word`, which is made if need be.
    pub(super) fn open(word: &str) -> Result<Self, Failure> {
        let path = path(word)?;
        let opened = Namespace::open(&path, NamespaceOptions::default());
        let namespace = opened.map_err(|error| Failure::of(path.display(), error))?;
        Ok(Self { namespace, path, _anonymous: None })
    }

    /// Joins the namespace `word`, or the one that this process runs in.
    pub(super) fn existing(word: Option<&str>) -> Result<Self, Failure> {
        let path = match (word, std::env::var_os(NAMESPACE_ENV)) {
            (Some(word), _) => path(word)?,
            (None, Some(path)) => path.into(),
            (None, None) => {
                return Err(Failure::Usage("which namespace? see --namespace".to_owned()));
            }
        };
        let failed = |error: &dyn std::fmt::Display| Failure::of(path.display(), error);
        let file = File::options().read(true).write(true).open(&path);
        let file = file.map_err(|error| failed(&error))?;
        let opened = Namespace::open_fd(&file, NamespaceOptions::default());
        let namespace = opened.map_err(|error| failed(&error))?;
        Ok(Self { namespace, path, _anonymous: None })
    }

    /// Returns this process as a task of the namespace.
    pub(super) fn register(&self) -> Result<Task, Failure> {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let cred = Cred {
            euid: rustix::process::geteuid().as_raw(),
            egid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
            caps: rustix::thread::capabilities(None).map_or(0, |sets| sets.effective.bits()),
        };
        let task = self.namespace.register(cred, std::process::id());
        task.map_err(|error| Failure::of(self.path.display(), error))
    }

    /// Makes a namespace without a name.
    pub(super) fn anonymous() -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::of("a namespace in memory", error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("corewalk-ipc", flags).map_err(failed)?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let opened = Namespace::open_fd(&file, NamespaceOptions::default());
        let namespace = opened.map_err(|error| Failure::of("a namespace in memory", error))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self { namespace, path: path.into(), _anonymous: Some(file) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_leads_to_shared_memory_and_path_is_taken_as_it_is() {
        let path_of = |word: &str| path(word).map(|path| path.to_string_lossy().into_owned());
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(path_of("db"), Ok(format!("/dev/shm/corewalk-ipc-{user}-db")));
        assert_eq!(path_of("/tmp/x"), Ok("/tmp/x".to_owned()));
        assert!(path_of("./x").is_ok_and(|path| path.starts_with('/') && path.ends_with("/x")));
        for bad in ["", "a\nb", &"n".repeat(201)] {
            assert!(matches!(path_of(bad), Err(Failure::Usage(_))), "{bad:?}");
        }
    }
}
