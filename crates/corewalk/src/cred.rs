//! The credentials and capabilities of a caller.
//!
//! A [`Cred`] is what the kernel calls the file system credentials of a task: `fsuid`, `fsgid`,
//! supplementary groups and those capabilities that concern files. A server that has had
//! permissions checked already (a FUSE mount with `default_permissions`) uses
//! [`Cred::prechecked`], which keeps the owner of new files right and checks nothing twice.
//!
//! Source: credentials(7), capabilities(7).

use bitflags::bitflags;

bitflags! {
    /// The capabilities that matter to a file system, as capabilities(7) describes them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// Change the owner of any file.
        const CHOWN = 1;
        /// Read, write and (if anybody may) execute any file.
        const DAC_OVERRIDE = 1 << 1;
        /// Read any file, search any directory.
        const DAC_READ_SEARCH = 1 << 2;
        /// What only the owner may do.
        const FOWNER = 1 << 3;
        /// Keep set-user-ID and set-group-ID bits.
        const FSETID = 1 << 4;
        /// Make device nodes.
        const MKNOD = 1 << 5;
        /// See and change `trusted.` attributes, and change those of `security.`.
        const SYS_ADMIN = 1 << 6;
        /// Change `security.capability`, the capabilities of a program.
        const SETFCAP = 1 << 7;
    }
}

bitflags! {
    /// What a caller wants to do with an inode, as in access(2).
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct May: u32 {
        /// Execute a file or search a directory.
        const EXEC = 1;
        /// Write a file, or change the names in a directory.
        const WRITE = 2;
        /// Read.
        const READ = 4;
    }
}

/// The credentials of a caller.
#[doc(alias = "struct cred")]
#[derive(Clone, Debug)]
pub struct Cred {
    /// The user that owns what is made and that is compared with owners (`fsuid`).
    pub uid: u32,
    /// The group likewise (`fsgid`).
    pub gid: u32,
    /// Supplementary groups.
    pub groups: Vec<u32>,
    /// Capabilities.
    pub caps: Caps,
}

impl Cred {
    /// Returns the credentials of root: uid and gid 0, all capabilities.
    pub fn root() -> Cred {
        Cred { uid: 0, gid: 0, groups: Vec::new(), caps: Caps::all() }
    }

    /// Returns the credentials of an ordinary user, without capabilities (with all, for uid 0).
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let caps = if uid == 0 { Caps::all() } else { Caps::empty() };
        Cred { uid, gid, groups: groups.to_vec(), caps }
    }

    /// Returns credentials that make files for `uid` and `gid` and pass every check, since somebody
    /// else has made the checks.
    pub fn prechecked(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups: Vec::new(), caps: Caps::all() }
    }

    /// Returns true if the caller is in `gid`.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns true if the caller has all of `caps`.
    pub fn has(&self, caps: Caps) -> bool {
        self.caps.contains(caps)
    }
}
