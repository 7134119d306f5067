//! The options of `-o`. Most of them come from mount(8), fuse(8), tmpfs(5) and ext4(5).
//!
//! A later option overrides an earlier one, as in mount(8). An unknown option or an invalid value
//! causes a usage error that names the option. So a misspelt `nosuid`, for example, is not ignored.
//!
//! # Options that are accepted without effect
//! - Options that mount(8) itself uses in a line of fstab(5): `noauto`, `nofail`, `_netdev`, `x-*`.
//!   (`user` and similar options imply `nosuid` and others, as in mount(8).)
//! - Options for behaviour that corewalk always has: `acl`, `user_xattr`.
//! - `lazytime`, which allows the server to delay updates of times. The server never delays them.
//!
//! # Options that are refused
//! An option is refused if the mount's source (a directory of the host, a store or a tmpfs) cannot
//! obey it. `noacl` is always refused. A directory of the host does not take `dirsync`,
//! `strictatime`, and the options for tmpfs and stores (`size=`, `mode=` and others). Only a store
//! takes `commit=` and `no_create`. A cluster file system takes none of these options. It refuses
//! timeouts too, because its leases decide how long the kernel may cache. Reads never update its
//! access times.

use std::ffi::OsString;
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

/// Default of `size=` for tmpfs, in percent of the memory, as in tmpfs(5).
const SIZE_PERCENT: u64 = 50;
/// Size of a page in bytes. The default of `nr_inodes=` is one inode per page of `size=`, as in
/// tmpfs(5).
const PAGE_BYTES: u64 = 4096;
const THREADS_MAX: u64 = 1024;
/// The default of `threads=` for a store that is mounted with `dirsync`, so that changes wait for
/// the disk, and for a cluster file system, whose calls wait for the database. The first number is the threads per processor. The second is the minimum number of
/// threads.
const WAITING_THREADS: (usize, usize) = (4, 8);

/// The parsed options of the mount, of the server and of each back end.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) mount: MountOptions,
    pub(crate) server: Options,
    pub(crate) tmpfs: TmpfsOptions,
    pub(crate) store: StoreOptions,
    pub(crate) host: HostFsOptions,
    pub(crate) cluster: ClusterOptions,
}

/// Options whose effect depends on other options. So they are applied only after all options are
/// parsed.
#[derive(Debug, Default)]
struct Pending {
    server_permissions: bool,
    /// `entry_timeout`, `attr_timeout`, `negative_timeout`.
    timeouts: [Option<Duration>; 3],
    threads: Option<usize>,
    /// Those of the given options that are in [`NOT_FOR_HOST`].
    not_for_host: Vec<&'static str>,
    /// The last given option that only a mount of a host directory takes.
    for_host: Option<&'static str>,
    /// Those of the given options that are in [`NOT_FOR_CLUSTER`].
    not_for_cluster: Vec<&'static str>,
    /// The last given option that only a cluster file system takes.
    for_cluster: Option<&'static str>,
    /// `soft` or `hard`, the later one.
    is_soft: bool,
    /// The value of `timeout`.
    soft_timeout: Option<Duration>,
}

/// Options that are refused for a mount of a host directory. The options `no_mbcache` and `create`
/// are accepted for such a mount, but have no effect.
const NOT_FOR_HOST: [&str; 8] =
    ["size", "nr_inodes", "mode", "uid", "gid", "mbcache", COMMIT, NO_CREATE];
/// Options that are refused for a cluster file system, beside those for other sources only. It
/// writes a file when it is closed, so it cannot obey `sync`.
const NOT_FOR_CLUSTER: [&str; 6] =
    ["entry_timeout", "attr_timeout", "negative_timeout", "writeback_cache", "strictatime", "sync"];
/// Options that only a cluster file system takes. Two are from nfs(5).
const CLUSTER_ONLY: [&str; 4] = ["hard", "soft", TIMEOUT, CONNECTIONS];
/// How long a call waits for the database with `soft`.
const TIMEOUT: &str = "timeout";
/// The default of `timeout=`.
const SOFT_TIMEOUT: Duration = Duration::from_secs(60);
const CONNECTIONS: &str = "connections";
const CONNECTIONS_MAX: u64 = 64;
/// The option of nfs(5) that only a mount of a host directory takes. No other program can lock the
/// files of a tmpfs or a store.
const LOCAL_LOCK: &str = "local_lock";
const COMMIT: &str = "commit";
const NO_CREATE: &str = "no_create";
/// Options that only a store takes.
const STORE_ONLY: [&str; 2] = [COMMIT, NO_CREATE];

/// Options of mount(8) that are accepted without effect, for the reasons at the start of this file.
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
    // The server unmounts when it ends anyway, unless it is killed.
    "auto_unmount",
    "norelatime",
];

impl Plan {
    /// Parses `lists`, the arguments of all `-o` options, for a mount of `source`.
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

    /// Returns the default of `threads=` for `source`.
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
            // Use one thread per processor, but at least two. More threads compete for the
            // processors: eight threads on two processors serve two clients at half the speed or
            // less.
            //
            // A single thread would save a fifth of the processor time for one client. But on a
            // machine with other load, two busy clients would wait up to four times as long.
            Source::Host(_) | Source::Tmpfs => processors.max(2),
        }
    }

    /// Passes the mount flags that the kernel does not implement for FUSE to the back ends: access
    /// times, `ro`, `sync` and `dirsync`.
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

    /// Checks that every mount option has an effect on the file system `source`.
    fn check_supported(&self, source: Source, pending: &Pending) -> Result<(), Failure> {
        let not_for_host = &pending.not_for_host;
        let only_for_host = pending.for_host.as_ref();
        let has = |flag| self.mount.flags.contains(flag);
        let (name, whose) = match source {
            Source::Host(_) => {
                let name = match () {
                    () if has(MountFlags::DIRSYNC) => Some(&"dirsync"),
                    // The host's own mount decides which reads update access times.
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
        let name = name.or(only_for_cluster);
        match name {
            Some(name) => {
                Err(Failure::Usage(format!("option '{name}' is not supported for {whose}")))
            }
            None => Ok(()),
        }
    }

    /// Returns the default options. If root mounts, all users may access the mount, and devices and
    /// set-user-ID programs work in it. If another user mounts, only that user may access the
    /// mount, as fusermount3(1) allows.
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

    /// Parses one option.
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

    /// Parses an option without a value.
    fn take_flag(&mut self, word: &str, pending: &mut Pending) -> Result<(), Failure> {
        let flags = &mut self.mount.flags;
        match word {
            "remount" => {
                return Err(Failure::Usage(
                    "option 'remount' is not supported; unmount and mount again".to_owned(),
                ));
            }
            // `user` and similar options imply other flags. As in mount(8), a later option may undo
            // the implied flags.
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

    /// Parses the option `name` with the value `value`. Returns None if the value is invalid.
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
                pending.for_host = Some(LOCAL_LOCK);
                self.host.host_locks = match value {
                    "all" => false,
                    "none" => true,
                    _ => return None,
                }
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
            // Accept `user=NAME`: mount(8) records in this way which user has mounted a file
            // system.
            "user" => return Some(self.take_flag(name, pending)),
            "comment" => {}
            name if is_for_other_programs(name) => {}
            _ => return self.take_limit(name, value),
        }
        Some(Ok(()))
    }

    /// Parses an option of tmpfs(5), such as `size`, which stores have too. Returns None if the
    /// value is invalid.
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
            // `mode`, `uid` and `gid` apply to the root directory of a new file system. They do not
            // change a root directory that already exists.
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

/// Returns the message about an option that does not exist.
fn unknown(option: &str) -> String {
    format!("unknown option '{option}'; see corewalk mount --help")
}

/// Returns a description of the values of an option, for error messages. Returns None for an option
/// without a value.
fn allowed(name: &str) -> Option<&'static str> {
    Some(match name {
        "size" | "cache" => {
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
        _ => return None,
    })
}

/// Returns true for an option that mount(8) reserves for other programs.
fn is_for_other_programs(word: &str) -> bool {
    word.starts_with("x-") || word.starts_with("X-")
}

/// Returns the size of the machine's memory in bytes.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Parses a decimal number without a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Parses a number with an optional suffix. The suffixes k, m, g and t multiply the number by a
/// power of 1024.
fn scaled(text: &str) -> Option<u64> {
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

/// Parses a number of bytes, or a share of the machine's memory (`50%`).
fn size(text: &str) -> Option<u64> {
    match text.strip_suffix('%') {
        Some(percent) => Some(memory_bytes() / 100 * number(percent).filter(|p| *p <= 100)?),
        None => scaled(text),
    }
}

/// Parses a time in seconds, with an optional fraction.
fn seconds(text: &str) -> Option<Duration> {
    if !text.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    Duration::try_from_secs_f64(text.parse().ok()?).ok()
}

#[cfg(test)]
mod tests {
    use std::ffi::OsStr;
    use std::os::unix::ffi::OsStrExt as _;
    use std::path::Path;

    use corewalk_testkit::fuzz::Fuzz;

    use super::*;

    fn plan(list: &str) -> Result<Plan, Failure> {
        Plan::parse(Source::Tmpfs, &[list.into()])
    }

    fn store(list: &str) -> Result<Plan, Failure> {
        Plan::parse(Source::Store(Path::new("/srv")), &[list.into()])
    }

    fn complaint(list: &str) -> String {
        match plan(list) {
            Err(Failure::Usage(line)) => line,
            Err(other) => panic!("{list}: {other:?}"),
            Ok(_) => panic!("{list} is accepted"),
        }
    }

    #[test]
    fn unknown_option_is_named() {
        let named = "unknown option 'frobnicate'; see corewalk mount --help";
        assert_eq!(complaint("ro,frobnicate"), named);
        assert_eq!(complaint("frobnicate=1"), named);
        assert_eq!(complaint("RO"), unknown("RO"));
    }

    #[test]
    fn bad_value_is_named() {
        for word in [
            "size=",
            "size=x",
            "size=-1",
            "size=1q",
            "size=101%",
            "size=99999999999999999999",
            "size=9999999999t",
            "nr_inodes=5%",
            "mode=8",
            "mode=17777",
            "uid=-1",
            "uid=4294967296",
            "gid=a",
            "threads=0",
            "threads=1025",
            "transport=tcp",
            "entry_timeout=-1",
            "entry_timeout=inf",
            "attr_timeout=nan",
            "negative_timeout=1e3",
            "negative_timeout=",
            "entry_timeout=.",
            "readdirplus=maybe",
            "cache=lots",
        ] {
            let (name, value) = word.split_once('=').expect("each word has a value");
            let expected = match value {
                "" => format!("option '{name}' needs a value: "),
                _ => format!("bad value in option '{word}'; it takes "),
            };
            let line = complaint(word);
            let values = line.strip_prefix(&expected);
            assert!(values.is_some_and(|values| !values.is_empty()), "{line}");
            assert!(complaint(name).starts_with(&format!("option '{name}' needs a value")));
        }
    }

    #[test]
    fn value_of_a_flag_is_refused() {
        for word in ["allow_other=1", "ro=", "noauto=x", "mbcache=yes"] {
            let name = word.split('=').next().unwrap_or_default();
            assert_eq!(complaint(word), format!("option '{name}' takes no value"));
        }
        assert!(plan("user=somebody,x-a=b,comment=").is_ok());
    }

    #[test]
    fn sizes_are_scaled() {
        let bytes = |list: &str| {
            plan(list).unwrap_or_else(|failure| panic!("{list}: {failure:?}")).tmpfs.size_bytes
        };
        assert_eq!(bytes("size=4096"), Some(4096));
        assert_eq!(bytes("size=3k,size=2M"), Some(2 << 20));
        assert_eq!(bytes("size=1g"), Some(1 << 30));
        assert_eq!(bytes("size=0"), None);
        assert_eq!(bytes("size=100%"), Some(memory_bytes() / 100 * 100));
        assert_eq!(plan("cache=64m").expect("a valid option").server.vfs.cache_bytes, 64 << 20);
    }

    #[test]
    fn mbcache_options_switch_sharing_of_attributes() {
        let is_on = |list: &str| {
            let plan = plan(list).expect("valid options");
            assert_eq!(plan.tmpfs.share_xattrs, plan.store.share.is_none());
            plan.tmpfs.share_xattrs
        };
        assert!(is_on(""));
        assert!(!is_on("mbcache,no_mbcache"));
        assert!(is_on("no_mbcache,mbcache"));
    }

    #[test]
    fn mount_table_shows_the_source_unless_fsname_is_given() {
        let source = |source, list: &str| {
            Plan::parse(source, &[list.into()]).expect("a valid option").mount.source
        };
        let host = Source::Host(Path::new("/srv/a b"));
        assert_eq!(source(Source::Tmpfs, ""), "tmpfs");
        assert_eq!(source(host, ""), "/srv/a b");
        assert_eq!(source(host, "fsname=mine"), "mine");
    }

    #[test]
    fn options_of_fstab_are_accepted() {
        let line = "noauto,user,nofail,_netdev,x-systemd.automount,X-mount.mkdir=0755,x-a=b,acl,user_xattr,\
                    lazytime,relatime,auto_unmount,comment=mine,exec";
        let flags = plan(line).expect("valid options").mount.flags;
        let expected = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(flags & (expected | MountFlags::NOEXEC), expected, "exec is after user");
        assert_eq!(
            complaint("remount,ro"),
            "option 'remount' is not supported; unmount and mount again"
        );
        for word in ["noacl", "nouser_xattr", "xfoo", "x"] {
            assert_eq!(complaint(word), unknown(word));
        }
    }

    #[test]
    fn default_threads_is_one_per_processor_unless_every_change_waits() {
        let few = plan("").expect("no options").mount.threads;
        let threads = |list| store(list).expect("valid options").mount.threads;
        assert_eq!((threads(""), threads("sync,async")), (few, few));
        assert!(threads("dirsync") >= few.max(8) && threads("sync") == threads("dirsync"));
        assert_eq!((threads("ro,dirsync"), threads("dirsync,ro")), (few, few));
        assert_eq!((threads("dirsync,threads=3"), threads("threads=9,ro")), (3, 9));
    }

    #[test]
    fn back_ends_get_access_time_and_sync_flags() {
        let policy = |directories, others| AtimePolicy { directories, others };
        let (relative, never, strict) = (Atime::Relative, Atime::Never, Atime::Strict);
        for (list, atime) in [
            ("", policy(relative, relative)),
            ("noatime", AtimePolicy::NEVER),
            ("ro,strictatime", AtimePolicy::NEVER),
            ("nodiratime", policy(never, relative)),
            ("noatime,strictatime,nodiratime", policy(never, strict)),
            ("strictatime,noatime", AtimePolicy::NEVER),
            ("strictatime,relatime", policy(relative, relative)),
            ("noatime,atime,nodiratime,diratime", policy(relative, relative)),
        ] {
            let plan = plan(list).expect("valid options");
            assert_eq!((plan.tmpfs.atime, plan.store.atime), (atime, atime), "{list}");
            assert_eq!(plan.host.atime, atime, "{list}");
            assert_eq!(plan.store.is_read_only, list.starts_with("ro"));
        }
        let is_dirsync = |list| store(list).expect("a valid option").store.is_dirsync;
        assert_eq!(
            ["", "dirsync", "sync", "sync,async"].map(is_dirsync),
            [false, true, true, false]
        );
        let host = Source::Host(Path::new("/srv"));
        for word in [
            "dirsync",
            "strictatime",
            "size=1m",
            "nr_inodes=3",
            "mode=700",
            "uid=1",
            "gid=1",
            "commit=5",
            "mbcache",
            "no_create",
        ] {
            let name = word.split('=').next().unwrap_or_default();
            match Plan::parse(host, &[format!("ro,{word}").into()]).map(|_| ()) {
                Err(Failure::Usage(line)) => {
                    let whose = "a directory of the host";
                    assert_eq!(line, format!("option '{name}' is not supported for {whose}"));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(Plan::parse(host, &["sync,no_mbcache,create,cache=1m".into()]).is_ok());
        let has_locks =
            |list: &str| Plan::parse(host, &[list.into()]).expect("a valid option").host.host_locks;
        assert_eq!(["", "local_lock=none", "local_lock=all"].map(has_locks), [false, true, false]);
        let lock = "option 'local_lock' is not supported for";
        assert_eq!(complaint("local_lock=none"), format!("{lock} tmpfs"));
        assert!(Plan::parse(host, &["local_lock=some".into()]).is_err());
        assert_eq!(complaint("no_create"), "option 'no_create' is not supported for tmpfs");
        let is_made = |list| store(list).expect("a valid option").store.is_made;
        assert_eq!(["", "no_create", "no_create,create"].map(is_made), [true, false, true]);
    }

    #[test]
    fn commit_of_0_is_the_default() {
        let every = |list| store(list).expect("a valid option").store.commit_every;
        assert_eq!(every("commit=0"), Some(Duration::from_secs(5)));
        assert_eq!(every("commit=9,commit=0"), every(""));
        assert_eq!(every("commit=0.5"), Some(Duration::from_millis(500)));
    }

    #[test]
    fn later_option_wins() {
        let plan = plan("ro,nosuid,,rw,noexec,suid").expect("valid options");
        assert_eq!(
            plan.mount.flags & (MountFlags::RDONLY | MountFlags::NOSUID),
            MountFlags::empty()
        );
        assert!(plan.mount.flags.contains(MountFlags::NOEXEC));
    }

    #[test]
    fn timeouts_have_fractions() {
        let plan =
            plan("entry_timeout=0.25,attr_timeout=3,negative_timeout=0").expect("valid options");
        assert_eq!(plan.server.entry_timeout, Duration::from_millis(250));
        assert_eq!(plan.server.attr_timeout, Duration::from_secs(3));
        assert_eq!(plan.server.negative_timeout, Duration::ZERO);
    }

    #[test]
    fn timeouts_conflict_with_server_permissions_in_any_order() {
        let expected = "timeouts must be 0 where the server checks permissions";
        assert_eq!(complaint("no_default_permissions,entry_timeout=1"), expected);
        assert_eq!(complaint("entry_timeout=1,no_default_permissions"), expected);
        assert!(plan("no_default_permissions,entry_timeout=0").is_ok());
    }

    /// Fuzz test: any list of options must either be accepted, or be refused with a usage error.
    #[test]
    fn fuzz_options_are_accepted_or_refused() {
        const WORDS: [&[u8]; 16] = [
            b",",
            b"=",
            b"ro",
            b"no_",
            b"size=",
            b"50%",
            b"64k",
            b"threads=",
            b"mode=0755",
            b"x-",
            b"commit=",
            b"0.5",
            b"cache=",
            b"entry_timeout=",
            b"fsname=",
            b"readdirplus=auto",
        ];
        let sources =
            [Source::Tmpfs, Source::Host(Path::new("/srv")), Source::Store(Path::new("/srv"))];
        let answers = Fuzz::of("options").words(&WORDS).runs(10_000).run(|input| {
            let list = OsStr::from_bytes(input).to_owned();
            let mut answers = sources.map(|source| {
                let refused = match Plan::parse(source, std::slice::from_ref(&list)) {
                    Ok(plan) => {
                        assert!((1..=THREADS_MAX as usize).contains(&plan.mount.threads));
                        // An unknown option after an accepted list must still be refused.
                        let more = [list.clone(), "frobnicate".into()];
                        let refused = Plan::parse(source, &more).map(|_| ());
                        let expected = unknown("frobnicate");
                        assert!(matches!(&refused, Err(Failure::Usage(line)) if *line == expected));
                        return String::new();
                    }
                    Err(refused) => refused,
                };
                let Failure::Usage(line) = refused else { panic!("{refused:?}") };
                assert!(!line.is_empty());
                // Classify the usage error by the start of its message, up to the name of the
                // option.
                line.split(['\'', ':']).next().unwrap_or_default().to_owned()
            });
            answers.sort();
            answers.concat()
        });
        for answer in ["", "bad value in option ", "unknown option "] {
            assert!(answers.contains_key(&answer.repeat(3)), "{answer:?} of {answers:?}");
        }
    }
}
