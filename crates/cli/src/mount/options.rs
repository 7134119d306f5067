//! The options of `-o`. Most of them come from mount(8), fuse(8), tmpfs(5) and ext4(5).
//!
//! A later option overrides an earlier one, as in mount(8). An unknown option or an invalid value
//! is a usage error, so that a misspelt `nosuid`, for example, is noticed.
//!
//! # Options that are accepted without effect
//! - Options that mount(8) itself uses in a line of fstab(5): `noauto`, `nofail`, `_netdev`, `x-*`.
//!   (`user` and similar options have one effect: as in mount(8), they imply `nosuid` and others.)
//! - Options for behaviour that corewalk always has: `acl`, `user_xattr`.
//! - `lazytime`, which permits the server to delay updates of times but does not require it.
//!
//! # Options that are refused
//! An option is refused if the source of the mount cannot obey it:
//! - `noacl` is always refused.
//! - For a directory of the host, `dirsync`, `strictatime`, and the options for tmpfs and stores
//!   (`size=`, `mode=` and others) are refused.
//! - `commit=` and `no_create` are accepted only for a store.
//! - For a cluster file system, `sync`, `strictatime` and the options for tmpfs and stores are
//!   refused. Timeouts are refused, too, because leases decide how long the kernel may cache. Reads
//!   never update access times there.

use std::ffi::OsString;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corewalk::tmpfs::TmpfsOptions;
use corewalk::{Atime, AtimePolicy};
use corewalk_cluster::{ClusterOptions, Unreachable};
use corewalk_fuse::{
    AllowedUsers, MountFlags, MountOptions, Options, ReaddirPlus, Transport, WriteCache,
};
use corewalk_hostfs::HostFsOptions;
use corewalk_store::{NoSharing, StoreOptions};

use super::descriptors::reserved;
use crate::failure::Failure;
use crate::source::Source;

/// The default of `size=` for tmpfs, in percent of the memory, as in tmpfs(5).
const SIZE_PERCENT: u64 = 50;
/// The default of `nr_inodes=` for tmpfs is one inode per this number of bytes of the default
/// `size=`.
const PAGE_BYTES: u64 = 4096;
const THREADS_MAX: u64 = 1024;
/// Threads per processor, and the least number of threads, of stores with `dirsync` and of cluster
/// file systems. Their threads mostly wait for the disk or the network, so more threads are useful.
const WAITING_THREADS: (usize, usize) = (4, 8);

#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) mount: MountOptions,
    pub(crate) server: Options,
    pub(crate) tmpfs: TmpfsOptions,
    pub(crate) store: StoreOptions,
    pub(crate) host: HostFsOptions,
    pub(crate) cluster: ClusterOptions,
}

#[derive(Debug, Default)]
struct Pending {
    server_permissions: bool,
    timeouts: [Option<Duration>; 3],
    threads: Option<usize>,
    not_for_host: Vec<&'static str>,
    for_host: Option<&'static str>,
    has_local_lock: bool,
    not_for_cluster: Vec<&'static str>,
    for_cluster: Option<&'static str>,
    is_soft: bool,
    soft_timeout: Option<Duration>,
}

const NOT_FOR_HOST: [&str; 8] =
    ["size", "nr_inodes", "mode", "uid", "gid", "mbcache", COMMIT, NO_CREATE];
/// Options that a cluster file system refuses. It writes a file when the file is closed, so it
/// cannot obey `sync`.
const NOT_FOR_CLUSTER: [&str; 6] =
    ["entry_timeout", "attr_timeout", "negative_timeout", "writeback_cache", "strictatime", "sync"];
/// Options that are accepted only for a cluster file system. `hard` and `soft` are from nfs(5).
const CLUSTER_ONLY: [&str; 8] = [
    "hard",
    "soft",
    TIMEOUT,
    CONNECTIONS,
    "kernel_names",
    "no_kernel_names",
    CACHE_DIR,
    CACHE_DIR_SIZE,
];
/// With `soft`, this option sets how long a call waits for the database before it fails.
const TIMEOUT: &str = "timeout";
const SOFT_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECTIONS: &str = "connections";
const CONNECTIONS_MAX: u64 = 64;
const CACHE_DIR: &str = "cache_dir";
const CACHE_DIR_SIZE: &str = "cache_dir_size";
/// This option of nfs(5) chooses whether locks also exclude programs outside of the mount. It is
/// accepted for sources that have such programs: a directory of the host, and a cluster file
/// system.
const LOCAL_LOCK: &str = "local_lock";
const COMMIT: &str = "commit";
const NO_CREATE: &str = "no_create";
const STORE_ONLY: [&str; 2] = [COMMIT, NO_CREATE];

/// Options that are accepted without effect. The start of the file gives the reasons.
const WITHOUT_EFFECT: [&str; 19] = [
    "defaults",
    "auto",
    "noauto",
    "nofail",
    "_netdev",
    "nouser",
    "nousers",
    "nogroup",
    "noowner",
    "lazytime",
    "nolazytime",
    "iversion",
    "noiversion",
    "silent",
    "loud",
    "acl",
    "user_xattr",
    // The server always unmounts when it ends, unless it is killed.
    "auto_unmount",
    "norelatime",
];

impl Plan {
    pub(crate) fn parse(source: Source, lists: &[OsString]) -> Result<Plan, Failure> {
        let mut plan = Plan::new(source);
        let mut pending = Pending::default();
        for list in lists {
            let Some(list) = list.to_str() else {
                let list = list.display();
                return Err(Failure::Usage(format!("options are not UTF-8: '{list}'")));
            };
            for word in list.split(',').filter(|word| !word.is_empty()) {
                plan.take(word, &mut pending)?;
            }
        }
        if pending.server_permissions {
            plan.server = plan.server.with_server_permissions();
        }
        let [entry, attr, negative] = pending.timeouts;
        let server = &mut plan.server;
        server.entry_timeout = entry.unwrap_or(server.entry_timeout);
        server.attr_timeout = attr.unwrap_or(server.attr_timeout);
        server.negative_timeout = negative.unwrap_or(server.negative_timeout);
        server.check().map_err(|conflict| Failure::Usage(conflict.to_string()))?;
        plan.check_supported(source, &pending)?;
        if pending.is_soft {
            let limit = pending.soft_timeout.unwrap_or(SOFT_TIMEOUT);
            plan.cluster.unreachable = Unreachable::FailAfter(limit);
        }
        plan.pass_flags_to_back_ends();
        plan.mount.threads = pending.threads.unwrap_or_else(|| plan.default_threads(source));
        plan.host.reserved = reserved(&plan.mount);
        Ok(plan)
    }

    fn default_threads(&self, source: Source) -> usize {
        let processors = corewalk_base::primitives::thread::available_parallelism();
        let processors = processors.map_or(1, usize::from);
        match source {
            Source::Store(_) if !self.store.is_dirsync || self.store.is_read_only => {
                processors.max(2)
            }
            Source::Store(_) | Source::Cluster(_) => {
                let (each, least) = WAITING_THREADS;
                (processors * each).max(least)
            }
            // Start one thread per processor, and at least two.
            //
            // Rejected: more threads than processors. On two processors, eight threads served two
            // clients at half the speed or less.
            //
            // Rejected: one thread. For a single client it saves a fifth of the processor time. But
            // on a machine with other load, two busy clients waited up to four times as long.
            Source::Host(_) | Source::Tmpfs => processors.max(2),
        }
    }

    fn pass_flags_to_back_ends(&mut self) {
        let flags = self.mount.flags;
        let others = match () {
            () if flags.intersects(MountFlags::RDONLY | MountFlags::NOATIME) => Atime::Never,
            () if flags.contains(MountFlags::STRICTATIME) => Atime::Strict,
            () => Atime::Relative,
        };
        let directories =
            if flags.contains(MountFlags::NODIRATIME) { Atime::Never } else { others };
        let atime = AtimePolicy { directories, others };
        (self.tmpfs.atime, self.store.atime, self.host.atime) = (atime, atime, atime);
        self.store.is_read_only = flags.contains(MountFlags::RDONLY);
        // In mount(8), `sync` includes `dirsync`.
        self.store.is_dirsync = flags.intersects(MountFlags::DIRSYNC | MountFlags::SYNC);
    }

    fn check_supported(&self, source: Source, pending: &Pending) -> Result<(), Failure> {
        let not_for_host = &pending.not_for_host;
        let only_for_host = pending.for_host.as_ref();
        let has = |flag| self.mount.flags.contains(flag);
        let (name, whose) = match source {
            Source::Host(_) => {
                let name = match () {
                    () if has(MountFlags::DIRSYNC) => Some(&"dirsync"),
                    // The options of the host's own mount decide when a read updates the access
                    // time.
                    () if has(MountFlags::STRICTATIME) => Some(&"strictatime"),
                    () => not_for_host.first(),
                };
                (name, "a directory of the host")
            }
            Source::Tmpfs => {
                let name = not_for_host.iter().find(|name| STORE_ONLY.contains(name));
                (name.or(only_for_host), "tmpfs")
            }
            Source::Store(_) => (only_for_host, "a store"),
            Source::Cluster(_) => {
                let name = not_for_host.first().or(only_for_host);
                (name.or(pending.not_for_cluster.first()), "a cluster file system")
            }
        };
        let only_for_cluster =
            pending.for_cluster.as_ref().filter(|_| !matches!(source, Source::Cluster(_)));
        let is_private = matches!(source, Source::Tmpfs | Source::Store(_));
        let local_lock = (is_private && pending.has_local_lock).then_some(&LOCAL_LOCK);
        let name = name.or(only_for_cluster).or(local_lock);
        match name {
            Some(name) => {
                Err(Failure::Usage(format!("option '{name}' is not supported for {whose}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the default options of a mount.
    ///
    /// If root mounts, all users may access the mount, and devices and set-user-ID programs work in
    /// it. Otherwise only the mounting user may access it, as with fusermount3(1).
    fn new(source: Source) -> Plan {
        let is_root = rustix::process::geteuid().is_root();
        let mut mount = MountOptions::default().with_source(source.name());
        if is_root {
            mount.users = AllowedUsers::Everyone;
            mount.flags = MountFlags::empty();
        }
        let size_bytes = memory_bytes() / 100 * SIZE_PERCENT;
        let tmpfs = TmpfsOptions::default()
            .with_size_bytes(size_bytes)
            .with_inodes_max(size_bytes / PAGE_BYTES)
            .with_root_uid(rustix::process::geteuid().as_raw())
            .with_root_gid(rustix::process::getegid().as_raw());
        let store =
            StoreOptions::default().with_root_uid(tmpfs.root_uid).with_root_gid(tmpfs.root_gid);
        let host = HostFsOptions::default();
        let cluster = ClusterOptions::default();
        Plan { mount, server: source.server_options(), tmpfs, store, host, cluster }
    }

    fn take(&mut self, word: &str, pending: &mut Pending) -> Result<(), Failure> {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        pending.not_for_host.extend(NOT_FOR_HOST.into_iter().find(|option| *option == name));
        pending.not_for_cluster.extend(NOT_FOR_CLUSTER.into_iter().find(|option| *option == name));
        let for_cluster = CLUSTER_ONLY.into_iter().find(|option| *option == name);
        pending.for_cluster = for_cluster.or(pending.for_cluster);
        match word.split_once('=') {
            None => self.take_flag(word, pending),
            Some((name, value)) => self.take_valued(name, value, pending).unwrap_or_else(|| {
                let allowed = allowed(name).unwrap_or("another one");
                Err(Failure::Usage(match value {
                    "" => format!("option '{name}' needs a value: {allowed}"),
                    _ => format!("bad value in option '{word}'; it takes {allowed}"),
                }))
            }),
        }
    }

    fn take_flag(&mut self, word: &str, pending: &mut Pending) -> Result<(), Failure> {
        let flags = &mut self.mount.flags;
        match word {
            "remount" => {
                return Err(Failure::Usage(
                    "option 'remount' is not supported; unmount and mount again".to_owned(),
                ));
            }
            // `user` and similar options imply other flags. As in mount(8), a later option may undo
            // them.
            "user" | "users" => {
                *flags |= MountFlags::NOEXEC | MountFlags::NOSUID | MountFlags::NODEV;
            }
            "owner" | "group" => *flags |= MountFlags::NOSUID | MountFlags::NODEV,
            "ro" => flags.insert(MountFlags::RDONLY),
            "rw" => flags.remove(MountFlags::RDONLY),
            "nosuid" => flags.insert(MountFlags::NOSUID),
            "suid" => flags.remove(MountFlags::NOSUID),
            "nodev" => flags.insert(MountFlags::NODEV),
            "dev" => flags.remove(MountFlags::NODEV),
            "noexec" => flags.insert(MountFlags::NOEXEC),
            "exec" => flags.remove(MountFlags::NOEXEC),
            "noatime" => {
                flags.remove(MountFlags::STRICTATIME);
                flags.insert(MountFlags::NOATIME);
            }
            "atime" => flags.remove(MountFlags::NOATIME),
            "relatime" => flags.remove(MountFlags::NOATIME | MountFlags::STRICTATIME),
            "strictatime" => {
                flags.remove(MountFlags::NOATIME);
                flags.insert(MountFlags::STRICTATIME);
            }
            "nostrictatime" => flags.remove(MountFlags::STRICTATIME),
            "nodiratime" => flags.insert(MountFlags::NODIRATIME),
            "diratime" => flags.remove(MountFlags::NODIRATIME),
            "nosymfollow" => flags.insert(MountFlags::NOSYMFOLLOW),
            "symfollow" => flags.remove(MountFlags::NOSYMFOLLOW),
            "sync" => flags.insert(MountFlags::SYNC),
            "async" => flags.remove(MountFlags::SYNC),
            "dirsync" => flags.insert(MountFlags::DIRSYNC),
            "allow_other" => self.mount.users = AllowedUsers::Everyone,
            "default_permissions" => pending.server_permissions = false,
            "no_default_permissions" => pending.server_permissions = true,
            "mbcache" => (self.tmpfs.share_xattrs, self.store.share) = (true, None),
            "no_mbcache" => {
                self.tmpfs.share_xattrs = false;
                self.store.share = Some(Arc::new(NoSharing));
            }
            "create" => self.store.is_made = true,
            NO_CREATE => self.store.is_made = false,
            "birth_times" => self.server.birth_times = true,
            "no_birth_times" => self.server.birth_times = false,
            "passthrough" => {
                pending.for_host = Some("passthrough");
                self.server.passthrough = true;
            }
            "hard" => pending.is_soft = false,
            "soft" => pending.is_soft = true,
            "no_passthrough" => self.server.passthrough = false,
            "kernel_names" => self.cluster.kernel_names = true,
            "no_kernel_names" => self.cluster.kernel_names = false,
            "writeback_cache" => self.server.write_cache = WriteCache::Back,
            "no_writeback_cache" => self.server.write_cache = WriteCache::Through,
            word if WITHOUT_EFFECT.contains(&word) || is_for_other_programs(word) => {}
            _ => {
                return Err(Failure::Usage(match allowed(word) {
                    Some(allowed) => format!("option '{word}' needs a value: {allowed}"),
                    None => unknown(word),
                }));
            }
        }
        Ok(())
    }

    fn take_valued(
        &mut self,
        name: &str,
        value: &str,
        pending: &mut Pending,
    ) -> Option<Result<(), Failure>> {
        match name {
            "entry_timeout" => pending.timeouts[0] = Some(seconds(value)?),
            "attr_timeout" => pending.timeouts[1] = Some(seconds(value)?),
            "negative_timeout" => pending.timeouts[2] = Some(seconds(value)?),
            "fsname" => self.mount.source = Some(value).filter(|name| !name.is_empty())?.into(),
            LOCAL_LOCK => {
                pending.has_local_lock = true;
                let is_local = match value {
                    "all" => true,
                    "none" => false,
                    _ => return None,
                };
                (self.host.host_locks, self.cluster.local_locks) = (!is_local, is_local);
            }
            "transport" => self.mount.transport = Transport::from_name(value)?,
            "threads" => {
                let threads = number(value).filter(|count| (1..=THREADS_MAX).contains(count))?;
                pending.threads = Some(threads as usize);
            }
            TIMEOUT => pending.soft_timeout = Some(seconds(value)?),
            CONNECTIONS => {
                let count = number(value).filter(|count| (1..=CONNECTIONS_MAX).contains(count))?;
                self.cluster.connections = count as usize;
            }
            "cache" => self.server.vfs.cache_bytes = size(value)?,
            // The path must be absolute, because the background process changes its working
            // directory.
            CACHE_DIR => {
                let path = Some(Path::new(value)).filter(|path| path.is_absolute())?;
                self.cluster.disk_cache = Some(path.to_owned());
            }
            CACHE_DIR_SIZE => self.cluster.disk_cache_bytes = size(value)?,
            "readdirplus" => {
                self.server.readdirplus = match value {
                    "yes" => ReaddirPlus::Always,
                    "no" => ReaddirPlus::Never,
                    "auto" => ReaddirPlus::Auto,
                    _ => return None,
                }
            }
            // 0 stands for the default, as in ext4(5).
            "commit" => {
                let every = Some(seconds(value)?).filter(|time| !time.is_zero());
                self.store.commit_every = every.or(StoreOptions::default().commit_every);
            }
            // mount(8) writes `user=NAME` into its mount table: the user who has mounted the file
            // system.
            "user" => return Some(self.take_flag(name, pending)),
            "comment" => {}
            name if is_for_other_programs(name) => {}
            _ => return self.take_limit(name, value),
        }
        Some(Ok(()))
    }

    fn take_limit(&mut self, name: &str, value: &str) -> Option<Result<(), Failure>> {
        let (tmpfs, store) = (&mut self.tmpfs, &mut self.store);
        match name {
            // 0 stands for no limit, as in tmpfs(5).
            "size" => {
                let bytes = Some(size(value)?).filter(|&bytes| bytes > 0);
                (tmpfs.size_bytes, store.size_bytes) = (bytes, bytes);
            }
            "nr_inodes" => {
                let count = Some(scaled(value)?).filter(|&count| count > 0);
                (tmpfs.inodes_max, store.inodes_max) = (count, count);
            }
            // `mode`, `uid` and `gid` apply only to the root directory, when the file system is
            // created.
            "mode" => {
                let mode = u32::from_str_radix(value, 8).ok().filter(|mode| *mode <= 0o7777)?;
                (tmpfs.root_mode, store.root_mode) = (mode, mode);
            }
            "uid" => {
                let uid = u32::try_from(number(value)?).ok()?;
                (tmpfs.root_uid, store.root_uid) = (uid, uid);
            }
            "gid" => {
                let gid = u32::try_from(number(value)?).ok()?;
                (tmpfs.root_gid, store.root_gid) = (gid, gid);
            }
            _ => {
                let is_flag = self.clone().take_flag(name, &mut Pending::default()).is_ok();
                return Some(Err(Failure::Usage(match is_flag {
                    true => format!("option '{name}' takes no value"),
                    false => unknown(name),
                })));
            }
        }
        Some(Ok(()))
    }
}

fn unknown(option: &str) -> String {
    format!("unknown option '{option}'; see corewalk mount --help")
}

fn allowed(name: &str) -> Option<&'static str> {
    Some(match name {
        "size" | "cache" | CACHE_DIR_SIZE => {
            "a number of bytes, such as 4096, 64k, 10m, 1g or 1t, or a share of the memory, \
             such as 50%"
        }
        "nr_inodes" => "a count, such as 1000, 64k or 1m",
        "entry_timeout" | "attr_timeout" | "negative_timeout" | COMMIT | TIMEOUT => {
            "a number of seconds, such as 5 or 0.5"
        }
        "mode" => "octal digits, such as 0755",
        "uid" | "gid" => "a number",
        "threads" => "a count from 1 to 1024",
        CONNECTIONS => "a count from 1 to 64",
        "transport" => "auto, uring, dev or fuser",
        "readdirplus" => "yes, no or auto",
        LOCAL_LOCK => "all or none",
        "fsname" => "a name",
        CACHE_DIR => "an absolute path without a comma",
        _ => return None,
    })
}

fn is_for_other_programs(word: &str) -> bool {
    word.starts_with("x-") || word.starts_with("X-")
}

fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Parses a number with an optional suffix. The suffixes k, m, g and t multiply the number by a
/// power of 1024.
pub(crate) fn scaled(text: &str) -> Option<u64> {
    let scale = |suffix: char| match suffix.to_ascii_lowercase() {
        'k' => Some(10),
        'm' => Some(20),
        'g' => Some(30),
        't' => Some(40),
        _ => None,
    };
    match text.chars().next_back().and_then(scale) {
        Some(shift) => number(&text[..text.len() - 1])?.checked_mul(1 << shift),
        None => number(text),
    }
}

fn size(text: &str) -> Option<u64> {
    match text.strip_suffix('%') {
        Some(percent) => Some(memory_bytes() / 100 * number(percent).filter(|p| *p <= 100)?),
        None => scaled(text),
    }
}

fn seconds(text: &str) -> Option<Duration> {
    if !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests;
