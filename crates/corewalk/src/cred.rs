//! The credentials and capabilities of a caller.
//!
//! A [`Cred`] has what Linux calls the file system credentials of a task: `fsuid`, `fsgid`,
//! supplementary groups and the capabilities that concern files. On a FUSE mount with
//! `default_permissions` the kernel has already checked permissions. The server then uses
//! [`Cred::prechecked`], which sets the owner of new files and passes all checks.
//!
//! Source: credentials(7), capabilities(7).

use bitflags::bitflags;

bitflags! {
    /// The capabilities that concern a file system, as capabilities(7) describes them.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub struct Caps: u32 {
        /// Change the owner of any file.
        const CHOWN = 1;
        /// The right to read and write any file, and to execute any file with an execute bit,
        /// whatever its other permission bits.
        const DAC_OVERRIDE = 1 << 1;
        /// Read any file, search any directory.
        const DAC_READ_SEARCH = 1 << 2;
        /// Do what only the owner of a file may do.
        const FOWNER = 1 << 3;
        /// Keep the set-user-ID and set-group-ID bits of a file that is changed.
        const FSETID = 1 << 4;
        /// Set and clear the inode flags `IMMUTABLE` and `APPEND`.
        const LINUX_IMMUTABLE = 1 << 8;
        /// Make device nodes.
        const MKNOD = 1 << 5;
        /// Read and change `trusted.` attributes; change `security.` attributes.
        const SYS_ADMIN = 1 << 6;
        /// Change `security.capability`, the file capabilities.
        const SETFCAP = 1 << 7;
    }
}

bitflags! {
    /// The permissions of access(2) that an operation needs.
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
///
/// # Examples
/// ```
/// use corewalk::{Caps, Cred};
///
/// let user = Cred::user(1000, 1000, &[100]);
/// assert!(user.is_in_group(100) && !user.has(Caps::CHOWN));
/// assert!(user.with_caps(Caps::CHOWN).has(Caps::CHOWN));
/// ```
#[doc(alias = "struct cred")]
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Cred {
    /// The user that owns new files (`fsuid`). Permission checks compare it with the owner of a
    /// file.
    pub uid: u32,
    /// The group of new files (`fsgid`). Permission checks also compare it with the group of a
    /// file.
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

    /// Returns the credentials of a user: all capabilities for uid 0, otherwise none.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{Caps, Cred};
    /// let user = Cred::user(1000, 100, &[5, 6]);
    /// assert!(user.is_in_group(100) && user.is_in_group(6) && !user.is_in_group(7));
    /// assert!(!user.has(Caps::FSETID) && Cred::user(0, 0, &[]).has(Caps::FSETID));
    /// ```
    pub fn user(uid: u32, gid: u32, groups: &[u32]) -> Cred {
        let caps = if uid == 0 { Caps::all() } else { Caps::empty() };
        Cred { uid, gid, groups: groups.to_vec(), caps }
    }

    /// Returns credentials that pass every permission check. New files get the owner `uid` and the
    /// group `gid`. Meant for a FUSE server whose kernel has already checked the permissions.
    pub fn prechecked(uid: u32, gid: u32) -> Cred {
        Cred { uid, gid, groups: Vec::new(), caps: Caps::all() }
    }

    corewalk_base::setters! {
        with_groups: groups = Vec<u32>;
        with_caps: caps = Caps;
    }

    /// Returns true if `gid` is the group or a supplementary group of the caller.
    pub fn is_in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    /// Returns true if the caller has all of `caps`.
    pub fn has(&self, caps: Caps) -> bool {
        self.caps.contains(caps)
    }
}
