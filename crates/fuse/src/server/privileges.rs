//! The privileges that a change of a file clears: set-user-ID, set-group-ID and file capabilities.
//!
//! The feature `FUSE_HANDLE_KILLPRIV_V2` decides how the kernel and the server share this work:
//! - Without `FUSE_HANDLE_KILLPRIV_V2`, a kernel that checks permissions clears all bits except a
//!   *lone* set-group-ID bit. That is the bit of a file which its group may not execute. Whether
//!   that bit stays depends on the groups of the caller.
//! - With `FUSE_HANDLE_KILLPRIV_V2`, the server clears all bits. A write, a truncation and a create
//!   that truncates say whether the caller has `CAP_FSETID`, which keeps the bits ([`SetId`]).
//!   Other requests do not say it.
//! - To learn what a request does not say, the server reads `/proc`. It does so only if the file
//!   has one of the bits.
//! - With `FUSE_SETXATTR_EXT` a request that sets an ACL says whether the server must clear
//!   set-group-ID. The bit stays if the caller is in the group of the file or has `CAP_FSETID`.
//!   `/proc` would not show the capabilities of a caller in another user namespace.
//! - The back end clears the bits in the step that changes the file, under the attribute lock of
//!   the inode.
//! - The kernel holds its own lock of the inode until the answer. So no chmod and no setcap comes
//!   between the request and the change.
//! - A change of a file without privileges needs no further call. The cache has the mode of the
//!   file, and knows that the file has no capabilities
//!   ([`Vfs::remove_capability`](corewalk::Vfs::remove_capability)).
//!
//! # Setattr requests without attributes
//! With `FUSE_HANDLE_KILLPRIV_V2`, the kernel sends a setattr request without any attribute in two
//! cases, and does not say which:
//! - Before a write, fallocate(2) or copy_file_range(2), if the file has privileges. The server
//!   must change nothing, since the caller may not be the owner, and may have `CAP_FSETID`. The
//!   request that follows clears the bits.
//! - For chown(2) without an owner and without a group. Here the kernel does not check the caller.
//!   The server clears the bits if the caller is the owner, and refuses other callers.
//!
//! If the kernel writes the file itself ([`passthrough`](crate::passthrough)), no write request
//! follows. So the server clears the bits immediately, unless the caller has `CAP_FSETID`.
//!
//! To distinguish the two cases, the server reads the system call and the credentials of the
//! waiting thread from `/proc`, which needs `CAP_SYS_PTRACE`. If it cannot read them, it takes the
//! request for the first case. A chown(2) by any user then succeeds. It has no effect, or that of a
//! write if the kernel writes the file itself.
//!
//! Source: Linux `fuse_setattr`, `fuse_do_setattr`, `file_remove_privs`, `chown_common`.

use corewalk::attr::mode::{S_IFDIR, S_IFMT, S_ISGID, S_ISUID};
use corewalk::{Attr, Caller, Caps, Cred, Errno, InodeRef, SetAttr};
use corewalk_fuse_ring::waits_in_chown;

use super::{Change, Server};
use crate::credentials::{resolve, resolve_exactly, resolve_for_chown};
use crate::options::{Ownership, Permissions};
use crate::wire::Features;

const CAPABILITY: &[u8] = b"security.capability";

/// Tells whether the change that a request makes must clear the set-user-ID and set-group-ID bits
/// of the file. In a request that sets an ACL, the value concerns only set-group-ID.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub enum SetId {
    /// The request says nothing.
    #[default]
    Unsaid,
    /// The bits stay, because the caller has `CAP_FSETID`. In a request that sets an ACL, the
    /// reason may also be that the caller is in the group of the file.
    Keep,
    /// The bits go, because the caller does not have `CAP_FSETID`. Exception: if the group may not
    /// execute the file, set-group-ID stays for a caller in that group, unless the request sets an
    /// ACL.
    Clear,
}

impl Change {
    pub(crate) fn is_empty(&self) -> bool {
        self.set.with_ctime(None) == SetAttr::default()
    }
}

impl Server {
    pub(crate) fn set_features(&self, offered: Features, chosen: Features) {
        // Keep the features of the first connection. Only tests open a second one.
        let _ = self.features.set((offered, chosen));
    }

    /// Returns true if the kernel has already cleared set-group-ID of new files as necessary. Linux
    /// does so since 6.0, but the feature that shows it exists only since 6.3. The kernel judges by
    /// cached attributes of the directory, which must not be out of date.
    pub(super) fn has_stripped_new_modes(&self) -> bool {
        self.options.ownership == Ownership::Exclusive
            && self
                .features
                .get()
                .is_some_and(|(offered, _)| offered.0 & Features::CREATE_SUPP_GROUP != 0)
    }

    pub(crate) fn has_kill_flags(&self) -> bool {
        self.has(Features::HANDLE_KILLPRIV_V2)
    }

    pub(crate) fn has_acl_flags(&self) -> bool {
        self.has(Features::SETXATTR_EXT)
    }

    fn clears_set_id(&self) -> bool {
        self.has(Features::HANDLE_KILLPRIV_V2 | Features::HANDLE_KILLPRIV)
    }

    fn has(&self, features: u64) -> bool {
        self.features.get().is_some_and(|(_, chosen)| chosen.0 & features != 0)
    }

    /// Removes the capabilities of a file before a request changes the file. Does nothing if the
    /// kernel removes capabilities itself.
    pub(super) fn remove_capability(&self, inode: &InodeRef<'_>) -> Result<(), Errno> {
        if self.has_kill_flags() { self.vfs.remove_capability(inode) } else { Ok(()) }
    }

    pub(super) fn change<T>(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        set_id: SetId,
        change: impl FnOnce(&Cred) -> Result<T, Errno>,
    ) -> Result<T, Errno> {
        let is_kernel = self.options.permissions == Permissions::Kernel;
        if !is_kernel || set_id == SetId::Keep {
            return change(&self.cred(caller));
        }
        let before = self.vfs.mode(inode)?;
        if !self.clears_bits_of(before) {
            return change(&self.cred(caller));
        }
        let mut cred = self.cred_in_groups(caller);
        if set_id == SetId::Clear {
            cred.caps.remove(Caps::FSETID);
        }
        let changed = change(&cred);
        self.drop_changed_mode(inode, before);
        changed
    }

    /// Makes the kernel drop its cached attributes if a write has changed the mode, which was
    /// `before`. The answer to the write cannot carry the new mode.
    pub(super) fn drop_changed_mode(&self, inode: &InodeRef<'_>, before: u32) {
        if let Some(notifier) = self.notifier.get()
            && self.vfs.mode(inode) != Ok(before)
        {
            notifier.drop_attributes(self.translate(inode.ino()));
        }
    }

    /// Drops the cached mode before a change of content, if other programs may have changed it.
    /// Then the back end is asked again.
    pub(super) fn refresh_set_id(&self, inode: &InodeRef<'_>) {
        if self.has_kill_flags() {
            self.refresh(inode);
        }
    }

    pub(super) fn clears_bits_of(&self, mode: u32) -> bool {
        let is_lone = mode & (S_ISGID | 0o010) == S_ISGID;
        let is_any = mode & (S_ISUID | S_ISGID) != 0;
        mode & S_IFMT != S_IFDIR && (is_lone || is_any && self.clears_set_id())
    }

    pub(super) fn set_nothing(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        change: Change,
    ) -> Result<Attr, Errno> {
        let may_matter =
            self.clears_bits_of(self.vfs.mode(inode)?) || self.may_keep_capability(inode)?;
        if may_matter && is_in_chown(caller) {
            let cred = resolve_for_chown(caller, self.namespace);
            let attr = self.vfs.chown_without_owner(&cred, inode)?;
            self.vfs.remove_capability(inode)?;
            return Ok(attr);
        }
        if change.set_id == SetId::Clear && self.clears_bits_of(self.vfs.mode(inode)?) {
            let cred = self.cred_in_groups(caller);
            if !cred.has(Caps::FSETID) {
                return self.vfs.chown_without_owner(&cred, inode);
            }
        }
        let handle = change.handle.unwrap_or(0);
        self.vfs.setattr_through(&self.cred(caller), inode, handle, &change.set)
    }

    /// Returns true if the kernel requests the removal of capabilities for a chown(2) that the
    /// server has not checked yet. The server must then do nothing. If the chown succeeds, the
    /// setattr request that follows removes the capabilities.
    pub(super) fn is_too_early(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
        name: &[u8],
    ) -> Result<bool, Errno> {
        Ok(name == CAPABILITY && self.checks_chown(inode)? && is_in_chown(caller))
    }

    pub(super) fn may_keep_capability(&self, inode: &InodeRef<'_>) -> Result<bool, Errno> {
        Ok(self.vfs.may_have_capability(inode) && self.checks_chown(inode)?)
    }

    fn checks_chown(&self, inode: &InodeRef<'_>) -> Result<bool, Errno> {
        Ok(self.clears_set_id() || self.clears_bits_of(self.vfs.mode(inode)?))
    }

    /// Returns the capability that the caller of a chown(2) lacks: `CAP_FOWNER` or none. The kernel
    /// does not check it. Without this capability, a chown must not clear set-user-ID and
    /// set-group-ID of another user's file.
    pub(super) fn missing_for_chown(
        &self,
        caller: Caller,
        inode: &InodeRef<'_>,
    ) -> Result<Caps, Errno> {
        let is_needed = self.options.permissions == Permissions::Kernel
            && self.clears_bits_of(self.vfs.mode(inode)?);
        let cred = if is_needed { resolve_exactly(caller, self.namespace) } else { None };
        match cred.is_some_and(|cred| !cred.has(Caps::FOWNER)) {
            true => Ok(Caps::FOWNER),
            false => Ok(Caps::empty()),
        }
    }

    /// Returns credentials with the real groups and the real `CAP_FSETID` of the caller, which
    /// decide whether set-group-ID stays. A request carries neither, so they are read from `/proc`.
    /// If the kernel has checked the permissions, all other capabilities are set.
    pub(super) fn cred_in_groups(&self, caller: Caller) -> Cred {
        let cred = resolve(caller, self.namespace);
        match self.options.permissions {
            Permissions::Server => cred,
            Permissions::Kernel => {
                let caps = cred.caps | (Caps::all() - Caps::FSETID);
                cred.with_caps(caps)
            }
        }
    }
}

/// Returns true if `caller` waits in chown(2), and false if the server cannot find out.
fn is_in_chown(caller: Caller) -> bool {
    waits_in_chown(caller.pid) == Some(true)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use corewalk::attr::mode::S_IFREG;
    use corewalk_base::Mutex;
    use rustix::fs::OFlags;

    use super::super::{NewFile, ROOT_NODE, WriteOrigin};
    use super::*;
    use crate::hooked::Hooked;
    use crate::options::Options;

    const OWNER: Caller = Caller { uid: 1000, gid: 1000, pid: 0 };
    /// A value of `security.capability`: `VFS_CAP_REVISION_2`, without any capability.
    const VALUE: [u8; 20] = [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];

    fn server() -> (Server, Arc<Mutex<Vec<Vec<u8>>>>) {
        let asked = Arc::new(Mutex::new(Vec::new()));
        let noted = Arc::clone(&asked);
        let fs = Hooked::new(move |call, name| {
            if call == "getxattr" {
                noted.lock().push(name.to_vec());
            }
        });
        let server = Server::new(Arc::new(fs), Options::exclusive()).expect("start the server");
        let features = Features(Features::HANDLE_KILLPRIV_V2);
        server.set_features(features, features);
        (server, asked)
    }

    fn make(server: &Server, mode: u32) -> u64 {
        let new = NewFile::new(S_IFREG | mode);
        server.make(OWNER, ROOT_NODE, b"f", &new).expect("make the file").node
    }

    fn mode(server: &Server, node: u64) -> u32 {
        server.getattr(node).expect("read the attributes").mode & 0o7777
    }

    #[test]
    fn flag_of_a_write_decides_about_the_bits() {
        for (set_id, left) in [(SetId::Keep, 0o6755), (SetId::Clear, 0o755)] {
            let (server, _) = server();
            let node = make(&server, 0o6755);
            let write = |origin, set_id| server.write_as(OWNER, (node, 0), 0, b"x", origin, set_id);
            assert_eq!(write(WriteOrigin::Cache, SetId::Keep), Ok(1));
            assert_eq!(mode(&server, node), 0o6755);
            assert_eq!(write(WriteOrigin::Call, set_id), Ok(1));
            assert_eq!(mode(&server, node), left, "{set_id:?}");
        }
    }

    #[test]
    fn flag_of_a_truncation_decides_about_the_bits() {
        for (set_id, left) in [(SetId::Keep, 0o6755), (SetId::Clear, 0o755)] {
            let (server, _) = server();
            let node = make(&server, 0o6755);
            let change = Change::new(SetAttr::default().with_size(3)).with_set_id(set_id);
            server.setattr(OWNER, node, change).expect("truncate the file");
            assert_eq!(mode(&server, node), left, "{set_id:?}");
        }
    }

    #[test]
    fn flag_of_a_create_decides_about_the_bits() {
        let flags = (OFlags::WRONLY | OFlags::TRUNC).bits();
        for (set_id, left) in [(SetId::Keep, 0o6755), (SetId::Clear, 0o755)] {
            let (server, _) = server();
            let node = make(&server, 0o6755);
            let new = NewFile::new(0o600).with_set_id(set_id);
            let (found, _) =
                server.create(OWNER, ROOT_NODE, b"f", &new, flags).expect("open the file");
            assert_eq!((found.node, mode(&server, node)), (node, left), "{set_id:?}");
        }
    }

    /// A setattr request without attributes may come from a thread that only writes. Unless the
    /// server can prove that the thread is in chown(2), it must change nothing.
    #[test]
    fn request_without_attributes_changes_no_mode() {
        let (server, _) = server();
        let node = make(&server, 0o6755);
        for pid in [0, std::process::id()] {
            let caller = Caller { pid, ..OWNER };
            let attr = server.setattr(caller, node, Change::default()).expect("no change");
            assert_eq!(attr.mode & 0o7777, 0o6755);
        }
    }

    /// The server must ask the back end only once whether a file has capabilities. After a program
    /// has set some, the server must ask again.
    #[test]
    fn capabilities_are_removed_and_their_absence_is_remembered() {
        let (server, asked) = server();
        let node = make(&server, 0o644);
        let write = || server.write_as(OWNER, (node, 0), 0, b"x", WriteOrigin::Call, SetId::Keep);
        let get = || server.getxattr(OWNER, node, CAPABILITY, 0);
        let count = || std::mem::take(&mut *asked.lock()).len();
        for _ in 0..2 {
            assert_eq!(server.setxattr(OWNER, node, CAPABILITY, &VALUE, 0), Ok(()));
            assert!(get().is_ok());
            assert_eq!((write(), count()), (Ok(1), 2));
            assert_eq!((write(), write(), count()), (Ok(1), Ok(1), 0));
            assert_eq!((get(), count()), (Err(Errno::NODATA), 1));
        }
        let chmod = Change::new(SetAttr::default().with_mode(0o600));
        server.setattr(OWNER, node, chmod).expect("chmod");
        assert_eq!((get(), write(), count()), (Err(Errno::NODATA), Ok(1), 1));
    }

    #[test]
    fn every_change_of_content_or_owner_removes_capabilities() {
        let (server, _) = server();
        let node = make(&server, 0o644);
        let root = Caller { uid: 0, gid: 0, pid: 0 };
        let flags = (OFlags::WRONLY | OFlags::TRUNC).bits();
        let set = |set| server.setattr(root, node, Change::new(set)).map(drop);
        let size = SetAttr::default().with_size(5);
        let changes: [&dyn Fn() -> Result<(), Errno>; 7] = [
            &|| server.write(OWNER, node, 0, 0, b"x", WriteOrigin::Call).map(drop),
            &|| server.write(OWNER, node, 0, 0, b"x", WriteOrigin::Append).map(drop),
            &|| server.fallocate(OWNER, node, 0, (0, 10), 0),
            &|| server.copy_file_range(OWNER, (node, 0, 0), (node, 0, 8), 2).map(drop),
            &|| server.open(OWNER, node, flags).map(drop),
            &|| set(size),
            &|| set(SetAttr::default().with_uid(7)),
        ];
        for (at, change) in changes.into_iter().enumerate() {
            server.setxattr(root, node, CAPABILITY, &VALUE, 0).expect("set the capabilities");
            assert_eq!(change(), Ok(()), "{at}");
            let left = server.getxattr(root, node, CAPABILITY, 0);
            assert_eq!(left, Err(Errno::NODATA), "{at}");
        }
        // A change of times must keep the capabilities, because it does not change the content.
        server.setxattr(root, node, CAPABILITY, &VALUE, 0).expect("set the capabilities");
        assert_eq!(set(SetAttr::default().with_mtime(corewalk::attr::SetTime::Now)), Ok(()));
        assert!(server.getxattr(root, node, CAPABILITY, 0).is_ok());
    }
}
