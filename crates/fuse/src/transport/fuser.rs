//! Serving requests that the crate fuser reads.

use std::io;
use std::sync::Arc;

use corewalk::Errno;
use corewalk_base::primitives::thread::JoinHandle;
use fuser::{Session, SessionACL};

use super::{spawn, system};
use crate::mount::{AllowedUsers, Device, MountError, MountOptions};
use crate::service::Service;

/// Starts a session of fuser. Calls `on_ready` before the first request is served.
pub(super) fn start(
    server: &Arc<dyn Service>,
    device: &Device,
    mount: &MountOptions,
    on_ready: impl FnOnce(),
) -> Result<JoinHandle<io::Result<()>>, MountError> {
    let adapter = Arc::clone(server).adapter();
    let adapter = adapter.ok_or(MountError::System("serving through fuser", Errno::OPNOTSUPP))?;
    let mut config = fuser::Config::default();
    config.n_threads = Some(mount.threads.max(1));
    config.clone_fd = device.can_be_cloned();
    let acl = match mount.users {
        AllowedUsers::Owner => SessionACL::Owner,
        AllowedUsers::Everyone => SessionACL::All,
    };
    let descriptor = device.descriptor().map_err(|error| system("copying a descriptor", error))?;
    let session = Session::from_fd(adapter, descriptor, acl, config)
        .map_err(|error| system("negotiating with the kernel", error))?;
    on_ready();
    spawn(move || session.run()).map_err(|error| system("starting a thread", error))
}
