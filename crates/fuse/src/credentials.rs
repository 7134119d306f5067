//! Who asks: from the user, group and process that a request names to credentials.
//!
//! A request carries `fsuid`, `fsgid` and a process number; supplementary groups and capabilities it
//! does not. Where the kernel has checked permissions they are not needed, and nothing is read. Where
//! the server checks, they are read from `/proc/PID/status`, on the thread that serves the request
//! and while the caller waits for it, so that the process is still there.
//!
//! # What is believed
//! - Capabilities of a process in another user namespace mean nothing here: anybody can make a
//!   namespace and have all capabilities in it. They count only if `/proc/PID/ns/user` is the
//!   namespace of the server.
//! - access(2) and setfsuid(2) make `fsuid` differ from what the process is otherwise. Then root gets
//!   its permitted capabilities and anybody else none, as access(2) has it.
//! - A process that cannot be read has no groups and no capabilities.
//!
//! Source: proc_pid_status(5), access(2), capabilities(7), user_namespaces(7).

use corewalk::{Caps, Cred, Errno};
use rustix::fs::{Mode, OFlags};

/// Bytes of `/proc/PID/status` that are read: group lists are the only long line, and 4096 groups
/// of ten digits fit.
const STATUS_BYTES_MAX: usize = 64 << 10;

/// The capabilities that matter here, with their numbers in the kernel.
const CAPS: [(u32, Caps); 8] = [
    (0, Caps::CHOWN),
    (1, Caps::DAC_OVERRIDE),
    (2, Caps::DAC_READ_SEARCH),
    (3, Caps::FOWNER),
    (4, Caps::FSETID),
    (21, Caps::SYS_ADMIN),
    (27, Caps::MKNOD),
    (31, Caps::SETFCAP),
];

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Caller {
    /// The file system user.
    pub uid: u32,
    /// The file system group.
    pub gid: u32,
    /// The process (in truth the thread) that waits; 0 if there is none or it cannot be named.
    pub pid: u32,
}

/// A user namespace, by the identity of its file in `/proc`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserNamespace(u64, u64);

/// What `/proc/PID/status` says.
#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    fsuid: Option<u32>,
    groups: Vec<u32>,
    effective: u64,
    permitted: u64,
}

impl Caller {
    /// Returns credentials for a request whose permissions the kernel has checked.
    pub(crate) fn prechecked(self) -> Cred {
        Cred::prechecked(self.uid, self.gid)
    }

    /// Returns the credentials of the caller as they are now; `ours` is the namespace that
    /// capabilities must be of.
    pub(crate) fn resolve(self, ours: Option<UserNamespace>) -> Cred {
        let nobody = Cred { uid: self.uid, gid: self.gid, groups: Vec::new(), caps: Caps::empty() };
        let status = match self.pid {
            0 => return nobody,
            pid => Status::of(&format!("/proc/{pid}/status")),
        };
        let Ok(status) = status else { return nobody };
        let caps = match status.fsuid == Some(self.uid) {
            true => status.effective,
            false if self.uid == 0 => status.permitted,
            false => 0,
        };
        let caps = caps_of(caps);
        let counts = || ours.is_some() && UserNamespace::of(self.pid) == ours;
        let caps = if caps.is_empty() || !counts() { Caps::empty() } else { caps };
        Cred { groups: status.groups, caps, ..nobody }
    }
}

impl UserNamespace {
    /// Returns the namespace of this process, if it can be told.
    pub(crate) fn ours() -> Option<UserNamespace> {
        UserNamespace::of(std::process::id())
    }

    fn of(pid: u32) -> Option<UserNamespace> {
        let stat = rustix::fs::stat(format!("/proc/{pid}/ns/user")).ok()?;
        Some(UserNamespace(stat.st_dev, stat.st_ino))
    }
}

impl Status {
    fn of(path: &str) -> Result<Status, Errno> {
        let file = rustix::fs::open(path, OFlags::RDONLY | OFlags::CLOEXEC, Mode::empty())?;
        let mut text = Vec::with_capacity(4096);
        while text.len() < STATUS_BYTES_MAX {
            text.reserve(4096);
            if rustix::io::read(&file, rustix::buffer::spare_capacity(&mut text))? == 0 {
                break;
            }
        }
        Ok(Status::parse(&text))
    }

    fn parse(text: &[u8]) -> Status {
        let mut status = Status::default();
        for line in text.split(|&b| b == b'\n') {
            let Some(colon) = line.iter().position(|&b| b == b':') else { continue };
            let value = std::str::from_utf8(&line[colon + 1..]).unwrap_or_default();
            let mut words = value.split_ascii_whitespace();
            let hex = |word: Option<&str>| {
                word.and_then(|word| u64::from_str_radix(word, 16).ok()).unwrap_or(0)
            };
            match &line[..colon] {
                // Real, effective, saved, file system.
                b"Uid" => status.fsuid = words.nth(3).and_then(|word| word.parse().ok()),
                b"Groups" => status.groups = words.filter_map(|word| word.parse().ok()).collect(),
                b"CapPrm" => status.permitted = hex(words.next()),
                b"CapEff" => status.effective = hex(words.next()),
                _ => {}
            }
        }
        status
    }
}

fn caps_of(bits: u64) -> Caps {
    let has = |number: u32| bits >> number & 1 == 1;
    CAPS.iter().filter(|(number, _)| has(*number)).map(|(_, cap)| *cap).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const STATUS: &[u8] = b"Name:\tbash\nPid:\t7\nUid:\t1000\t1000\t1000\t1001\n\
        Gid:\t100\t100\t100\t100\nGroups:\t4 24 1000 \nCapInh:\t0000000000000000\n\
        CapPrm:\t000001ffffffffff\nCapEff:\t0000000008000003\n";

    #[test]
    fn status_is_parsed() {
        let status = Status::parse(STATUS);
        let expected = Status {
            fsuid: Some(1001),
            groups: vec![4, 24, 1000],
            effective: 0x800_0003,
            permitted: 0x1ff_ffff_ffff,
        };
        assert_eq!(status, expected);
        assert_eq!(caps_of(status.effective), Caps::CHOWN | Caps::DAC_OVERRIDE | Caps::MKNOD);
        assert_eq!(caps_of(status.permitted), Caps::all());
    }

    #[test]
    fn malformed_status_has_no_rights() {
        for text in [&b""[..], b"Uid", b"Uid:\t1", b"CapEff:\txyz\nGroups:\ta b", &[0xff; 40]] {
            assert_eq!(Status::parse(text), Status::default());
        }
    }

    #[test]
    fn caller_that_is_gone_has_no_rights() {
        // Numbers of processes are below 2^22.
        let cred = Caller { uid: 0, gid: 0, pid: u32::MAX }.resolve(UserNamespace::ours());
        assert_eq!((cred.uid, cred.groups.len(), cred.caps), (0, 0, Caps::empty()));
    }

    #[test]
    fn caller_of_another_namespace_has_no_capabilities() {
        let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
        assert_eq!(caller.resolve(Some(UserNamespace(0, 0))).caps, Caps::empty());
        assert_eq!(caller.resolve(None).caps, Caps::empty());
    }

    #[test]
    fn own_credentials_are_found() {
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { uid, gid: 0, pid: std::process::id() };
        let cred = caller.resolve(UserNamespace::ours());
        let mut groups: Vec<u32> = rustix::process::getgroups()
            .expect("groups of this process")
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        groups.sort_unstable();
        let mut found = cred.groups.clone();
        found.sort_unstable();
        assert_eq!(found, groups);
        // Another file system user than the process has: no capability is left.
        let other = Caller { uid: uid + 1, ..caller };
        assert_eq!(other.resolve(UserNamespace::ours()).caps, Caps::empty());
    }
}
