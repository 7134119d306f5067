//! Credentials for a request.
//!
//! A request carries `fsuid`, `fsgid` and a process number, but no supplementary groups and no
//! capabilities. If the server checks permissions, it reads the groups and capabilities from
//! `/proc/PID/status`. It reads them on the thread that serves the request. The process still
//! exists, because it waits for the answer.
//!
//! # Which capabilities count
//! - Any user can create a user namespace and has all capabilities in it. So the capabilities of a
//!   process count only if the process is in the user namespace of the server
//!   (`/proc/PID/ns/user`).
//! - The `fsuid` of a request can differ from that in `/proc`, for example during access(2). In
//!   this case, root has the permitted capabilities of the process, and any other user has none.
//! - A process whose files in `/proc` cannot be read has no groups and no capabilities.
//!
//! Source: proc_pid_status(5), access(2), capabilities(7), user_namespaces(7).

use corewalk::{Caller, Caps, Cred, Errno};
use rustix::fs::{Mode, OFlags};

/// Maximum length of `/proc/PID/status` that is read, in bytes. It is enough for 4096 groups of ten
/// digits.
const STATUS_BYTES_MAX: usize = 64 << 10;

const CAPS: [(u32, Caps); 9] = [
    (0, Caps::CHOWN),
    (1, Caps::DAC_OVERRIDE),
    (2, Caps::DAC_READ_SEARCH),
    (3, Caps::FOWNER),
    (4, Caps::FSETID),
    (9, Caps::LINUX_IMMUTABLE),
    (21, Caps::SYS_ADMIN),
    (27, Caps::MKNOD),
    (31, Caps::SETFCAP),
];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UserNamespace(u64, u64);

#[derive(Debug, Default, PartialEq, Eq)]
struct Status {
    fsuid: Option<u32>,
    groups: Vec<u32>,
    effective: u64,
    permitted: u64,
}

/// Returns credentials for a request whose permissions the kernel has checked.
pub(crate) fn prechecked(caller: Caller) -> Cred {
    Cred::prechecked(caller.uid, caller.gid)
}

/// Returns the credentials of `caller`, with the groups and capabilities that `/proc` shows. They
/// contain capabilities only if the caller is in `ours`, the user namespace of the server.
pub(crate) fn resolve(caller: Caller, ours: Option<UserNamespace>) -> Cred {
    let nobody = Cred::user(caller.uid, caller.gid, &[]).with_caps(Caps::empty());
    let status = match caller.pid {
        0 => return nobody,
        pid => Status::of(&format!("/proc/{pid}/status")),
    };
    let Ok(status) = status else { return nobody };
    let caps = match status.fsuid == Some(caller.uid) {
        true => status.effective,
        false if caller.uid == 0 => status.permitted,
        false => 0,
    };
    let caps = caps_of(caps);
    let caps = if caps.is_empty() || !is_in(caller, ours) { Caps::empty() } else { caps };
    nobody.with_groups(status.groups).with_caps(caps)
}

/// Returns the credentials of `caller`, or `None` if `/proc` does not show those of the request.
/// Overlayfs, for example, sends requests with the credentials of its mount.
pub(crate) fn resolve_exactly(caller: Caller, ours: Option<UserNamespace>) -> Option<Cred> {
    let status = Status::of(&format!("/proc/{}/status", caller.pid)).ok()?;
    let is_exact = status.fsuid == Some(caller.uid) && is_in(caller, ours);
    is_exact.then(|| resolve(caller, ours))
}

/// Returns the credentials for a chown(2) that the kernel has not checked. If `/proc` shows another
/// file system user ID, a file system over this one has sent the request, for example overlayfs.
/// That file system has checked the caller, so the result passes all checks.
pub(crate) fn resolve_for_chown(caller: Caller, ours: Option<UserNamespace>) -> Cred {
    match Status::of(&format!("/proc/{}/status", caller.pid)) {
        Ok(status) if status.fsuid != Some(caller.uid) => prechecked(caller),
        _ => resolve(caller, ours),
    }
}

fn is_in(caller: Caller, ours: Option<UserNamespace>) -> bool {
    ours.is_some() && UserNamespace::of(caller.pid) == ours
}

impl UserNamespace {
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
        let cred = resolve(Caller { uid: 0, gid: 0, pid: u32::MAX }, UserNamespace::ours());
        assert_eq!((cred.uid, cred.groups.len(), cred.caps), (0, 0, Caps::empty()));
    }

    #[test]
    fn caller_of_another_namespace_has_no_capabilities() {
        let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
        assert_eq!(resolve(caller, Some(UserNamespace(0, 0))).caps, Caps::empty());
        assert_eq!(resolve(caller, None).caps, Caps::empty());
    }

    #[test]
    fn own_credentials_are_found() {
        let uid = rustix::process::geteuid().as_raw();
        let caller = Caller { uid, gid: 0, pid: std::process::id() };
        let cred = resolve(caller, UserNamespace::ours());
        let mut groups: Vec<u32> = rustix::process::getgroups()
            .expect("groups of this process")
            .into_iter()
            .map(rustix::process::Gid::as_raw)
            .collect();
        groups.sort_unstable();
        let mut found = cred.groups.clone();
        found.sort_unstable();
        assert_eq!(found, groups);
        // A caller whose user ID differs from the fsuid in `/proc` must get no capabilities.
        let other = Caller { uid: uid + 1, ..caller };
        assert_eq!(resolve(other, UserNamespace::ours()).caps, Caps::empty());
        let exactly = |caller, ours| resolve_exactly(caller, ours).map(|cred| cred.uid);
        assert_eq!(exactly(caller, UserNamespace::ours()), Some(uid));
        assert_eq!(exactly(other, UserNamespace::ours()), None);
        assert_eq!(exactly(caller, Some(UserNamespace(0, 0))), None);
    }
}
