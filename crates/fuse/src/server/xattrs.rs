//! Requests about extended attributes. The server itself answers requests about two of them.
//!
//! The root of a mount has two attributes that the back end never sees and that no listing shows.
//! Reading [`XATTR_STAT`] returns the counters as JSON. Setting [`XATTR_PRUNE`] evicts all unused
//! entries from the cache. The attributes work inside containers, and the permissions of the root
//! directory protect them.

use corewalk::acl::XATTR_ACCESS;
use corewalk::{Caller, Caps, Cred, Errno, XattrMode};

use super::{ROOT_NODE, Server, SetId};
use crate::credentials::resolve;
use crate::options::Permissions;

/// The extended attribute of the root directory whose value is the counters as JSON. The string
/// `transport` in the JSON names the mount's transport.
pub const XATTR_STAT: &str = "user.corewalk.stat";
/// The extended attribute of the root directory that evicts all unused entries from the cache when
/// a program sets it. Only root and the owner of the root directory may set it.
pub const XATTR_PRUNE: &str = "user.corewalk.prune";

/// The answer to a request for an extended attribute. The request gives the maximum size of the
/// answer, in bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum XattrAnswer {
    /// The length of the value in bytes. A request with the maximum size 0 gets this answer.
    Length(u32),
    /// The value.
    Value(Vec<u8>),
}

impl Server {
    /// Returns the value of an extended attribute, or its length if `size` is 0.
    ///
    /// # Errors
    /// `ENODATA` if the file has no such attribute; `ERANGE` if the value is longer than `size`;
    /// `EOPNOTSUPP` and `EACCES` as in getxattr(2).
    pub fn getxattr(
        &self,
        caller: Caller,
        node: u64,
        name: &[u8],
        size: u32,
    ) -> Result<XattrAnswer, Errno> {
        let inode = self.inode(node)?;
        if node == ROOT_NODE && name == XATTR_STAT.as_bytes() {
            let mut own = Vec::new();
            self.vfs.backend_counters(&inode, &mut |name, value| own.push((name, value)));
            let transport = self.transport.get().map(|text| &**text);
            return fit(self.counters().to_json_with(&own, transport).into_bytes(), size);
        }
        fit(self.vfs.getxattr(&self.cred(caller), &inode, name)?, size)
    }

    /// Sets an extended attribute. The `flags` are those of setxattr(2).
    ///
    /// # Errors
    /// `EINVAL` if `flags` contains a flag that setxattr(2) does not define; `EEXIST`, `ENODATA`,
    /// `EPERM`, `EACCES`, `ENOSPC` and `EOPNOTSUPP` as in setxattr(2).
    pub fn setxattr(
        &self,
        caller: Caller,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
    ) -> Result<(), Errno> {
        self.setxattr_as(caller, node, name, value, flags, SetId::Unsaid)
    }

    pub(crate) fn setxattr_as(
        &self,
        caller: Caller,
        node: u64,
        name: &[u8],
        value: &[u8],
        flags: u32,
        set_id: SetId,
    ) -> Result<(), Errno> {
        let inode = match name == XATTR_ACCESS {
            true => self.inode_refreshed(node)?,
            false => self.inode(node)?,
        };
        let mode = match flags {
            0 => XattrMode::Set,
            // The flag `XATTR_CREATE` is 1, and `XATTR_REPLACE` is 2.
            1 => XattrMode::Create,
            2 => XattrMode::Replace,
            // Flag 3 is `XATTR_CREATE` and `XATTR_REPLACE` together, so the request must fail.
            3 if self.getxattr(caller, node, name, 0).is_ok() => XattrMode::Create,
            3 => XattrMode::Replace,
            _ => return Err(Errno::INVAL),
        };
        if node == ROOT_NODE && name == XATTR_PRUNE.as_bytes() {
            if caller.uid != 0 && caller.uid != self.vfs.getattr(&inode)?.uid {
                return Err(Errno::PERM);
            }
            self.vfs.prune();
            return Ok(());
        }
        let cred = match name == XATTR_ACCESS {
            true => self.acl_cred(caller, set_id),
            false => self.xattr_cred(caller, name),
        };
        self.vfs.setxattr(&cred, &inode, name, value, mode)
    }

    /// Returns the names of all extended attributes, or their length if `size` is 0.
    ///
    /// # Errors
    /// `ERANGE` if the names are longer than `size`; the errors of the back end.
    pub fn listxattr(&self, caller: Caller, node: u64, size: u32) -> Result<XattrAnswer, Errno> {
        let inode = self.inode(node)?;
        let cred = self.cred(caller);
        let names = self.vfs.listxattr(&cred, &inode)?;
        // The kernel checks who may read a `trusted.*` attribute, but not who may see its name. So
        // the server hides these names from callers without `CAP_SYS_ADMIN`.
        let is_trusted = |name: &[u8]| name.starts_with(b"trusted.");
        let is_prechecked = self.options.permissions == Permissions::Kernel;
        if is_prechecked
            && names.split(|&b| b == 0).any(is_trusted)
            && !resolve(caller, self.namespace).has(Caps::SYS_ADMIN)
        {
            let caps = cred.caps - Caps::SYS_ADMIN;
            let cred = cred.with_caps(caps);
            return fit(self.vfs.listxattr(&cred, &inode)?, size);
        }
        fit(names, size)
    }

    /// Removes an extended attribute.
    ///
    /// # Errors
    /// `ENODATA`; `EPERM`, `EACCES`; `EOPNOTSUPP`.
    pub fn removexattr(&self, caller: Caller, node: u64, name: &[u8]) -> Result<(), Errno> {
        let inode = self.inode(node)?;
        if self.is_too_early(caller, &inode, name)? {
            return Ok(());
        }
        self.vfs.removexattr(&self.xattr_cred(caller, name), &inode, name)
    }

    /// Returns the credentials with which the caller sets an ACL. The request may say whether
    /// set-group-ID stays. If it does not, the server reads the caller's groups and capabilities.
    fn acl_cred(&self, caller: Caller, set_id: SetId) -> Cred {
        let cred = match set_id {
            SetId::Unsaid => return self.cred_in_groups(caller),
            SetId::Keep | SetId::Clear => self.cred(caller),
        };
        let caps = if set_id == SetId::Clear { cred.caps - Caps::FSETID } else { cred.caps };
        cred.with_caps(caps)
    }

    /// Returns the credentials with which the caller changes an extended attribute. They allow each
    /// change of a `security.*` attribute, because the kernel always checks it. After a write, the
    /// kernel removes `security.capability` in the name of the writing process, which may lack the
    /// right to do that.
    fn xattr_cred(&self, caller: Caller, name: &[u8]) -> Cred {
        let cred = self.cred(caller);
        let more = match name.starts_with(b"security.") {
            true => Caps::SYS_ADMIN | Caps::SETFCAP,
            false => Caps::empty(),
        };
        let caps = cred.caps | more;
        cred.with_caps(caps)
    }
}

fn fit(value: Vec<u8>, size: u32) -> Result<XattrAnswer, Errno> {
    match size {
        0 => Ok(XattrAnswer::Length(value.len() as u32)),
        _ if value.len() > size as usize => Err(Errno::RANGE),
        _ => Ok(XattrAnswer::Value(value)),
    }
}
