//! The options of `-o`, after mount(8), fuse(8), tmpfs(5) and, for a store, ext4(5).
//!
//! A later option wins over an earlier one, as in mount(8). An option that is not known, or a value
//! that is none, is a usage error that names it: a misspelt `nosuid` must not be ignored.
//!
//! # Lines of fstab
//! What mount(8) keeps for itself in such a line (`noauto`, `nofail`, `_netdev`, `x-*`) is taken, and nothing is made
//! of it; `user` and its like imply what they imply there. Taken too is what holds here anyway (`acl`, `user_xattr`),
//! and `lazytime`, which allows what is not done. An option that no back end would keep is refused: `noacl`; of a
//! directory of the host `dirsync`, `strictatime`, and the options of our own file systems (`size=`, `mode=`);
//! `commit=` and `no_create` of a source that is no store.

use std::ffi::OsString;
use std::sync::Arc;
use std::time::Duration;

use corewalk::tmpfs::TmpfsOptions;
use corewalk::{Atime, AtimePolicy};
use corewalk_fuse::{Access, MountFlags, MountOptions, Options, ReaddirPlus, WriteCache};
use corewalk_hostfs::HostFsOptions;
use corewalk_store::{NoSharing, StoreOptions};

use super::descriptors::reserved;
use crate::failure::Failure;
use crate::source::Source;

/// The share of the memory that a file system in memory may take, as in tmpfs(5).
const SIZE_PERCENT: u64 = 50;
/// The size of a page, by which tmpfs(5) reckons the number of inodes.
const PAGE_BYTES: u64 = 4096;
const THREADS_MAX: u64 = 1024;
/// Threads per processor, and at least, where every change waits for a disk.
const WAITING_THREADS: (usize, usize) = (4, 8);

/// Everything that the options decide.
#[derive(Clone)]
pub(crate) struct Plan {
    pub(crate) mount: MountOptions,
    pub(crate) server: Options,
    pub(crate) tmpfs: TmpfsOptions,
    pub(crate) store: StoreOptions,
    pub(crate) host: HostFsOptions,
}

/// Options that depend on others, until all are known.
#[derive(Debug, Default)]
struct Pending {
    server_permissions: bool,
    timeouts: [Option<Duration>; 3],
    threads: Option<usize>,
    /// Those of [`OWN`] that were given.
    own: Vec<&'static str>,
}

/// Options that are for the file systems of our own: a directory of the host knows none of them. (What `no_mbcache` and
/// `create` ask for holds anyway.)
const OWN: [&str; 8] = ["size", "nr_inodes", "mode", "uid", "gid", "mbcache", COMMIT, NO_CREATE];
const COMMIT: &str = "commit";
const NO_CREATE: &str = "no_create";
/// Those of them that are for a store only.
const STORE_OWN: [&str; 2] = [COMMIT, NO_CREATE];

/// Options of mount(8) that ask for nothing here: it is so anyway, or they are for mount(8) itself.
const TAKEN: [&str; 19] = [
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
    // We unmount at our end; nobody does if the server is killed.
    "auto_unmount",
    "norelatime",
];

impl Plan {
    /// Returns what `lists` (the arguments of all `-o`) say about a mount of `source`.
    pub(crate) fn parse(source: Source, lists: &[OsString]) -> Result<Plan, Failure> {
        let mut plan = Plan::new(source);
        let mut pending = Pending::default();
        for list in lists {
            let Some(list) = list.to_str() else {
                return Err(Failure::Usage(format!("options are not UTF-8: {}", list.display())));
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
        plan.check_kept(source, &pending.own)?;
        plan.tell_back_ends();
        plan.mount.threads = pending.threads.unwrap_or_else(|| plan.threads(source));
        plan.host.reserved = reserved(plan.mount.threads);
        Ok(plan)
    }

    /// Returns how many threads serve `source` best.
    fn threads(&self, source: Source) -> usize {
        let processors = corewalk_base::primitives::thread::available_parallelism();
        let processors = processors.map_or(1, usize::from);
        match source {
            Source::Store(_) if self.store.is_dirsync && !self.store.is_read_only => {
                let (each, least) = WAITING_THREADS;
                (processors * each).max(least)
            }
            // More only take turns: two clients of eight threads on two processors are served half as fast or
            // less. One alone saves a fifth of the server's time with one client, but two busy ones took up to
            // four times as long while others used the machine as well.
            Source::Store(_) | Source::Host(_) | Source::Tmpfs => processors.max(2),
        }
    }

    /// Tells back ends of what the kernel leaves to them.
    fn tell_back_ends(&mut self) {
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
        // As mount(8) says: `sync` is for directories as well.
        self.store.is_dirsync = flags.intersects(MountFlags::DIRSYNC | MountFlags::SYNC);
    }

    /// Refuses what `source` would not keep.
    fn check_kept(&self, source: Source, own: &[&str]) -> Result<(), Failure> {
        let has = |flag| self.mount.flags.contains(flag);
        let (name, whose) = match source {
            Source::Host(_) => {
                let name = match () {
                    () if has(MountFlags::DIRSYNC) => Some(&"dirsync"),
                    // The host notes what is read there, by the options of its own mount.
                    () if has(MountFlags::STRICTATIME) => Some(&"strictatime"),
                    () => own.first(),
                };
                (name, "a directory of the host")
            }
            Source::Tmpfs => (own.iter().find(|name| STORE_OWN.contains(name)), "tmpfs"),
            Source::Store(_) => (None, "a store"),
        };
        match name {
            Some(name) => Err(Failure::Usage(format!("'{name}' is not kept for {whose}"))),
            None => Ok(()),
        }
    }

    /// Returns the plan without options: root mounts a real file system, for everybody; anybody
    /// else one for themselves, as fusermount3(1) allows.
    fn new(source: Source) -> Plan {
        let is_root = rustix::process::geteuid().is_root();
        let mut mount = MountOptions { source: source.name(), ..MountOptions::default() };
        if is_root {
            mount.access = Access::Everyone;
            mount.flags = MountFlags::empty();
        }
        let tmpfs = TmpfsOptions {
            size_bytes: Some(memory_bytes() / 100 * SIZE_PERCENT),
            inodes_max: Some(memory_bytes() / 100 * SIZE_PERCENT / PAGE_BYTES),
            root_uid: rustix::process::geteuid().as_raw(),
            root_gid: rustix::process::getegid().as_raw(),
            ..TmpfsOptions::default()
        };
        let store = StoreOptions {
            root_uid: tmpfs.root_uid,
            root_gid: tmpfs.root_gid,
            ..StoreOptions::default()
        };
        let host = HostFsOptions::default();
        Plan { mount, server: source.promises(), tmpfs, store, host }
    }

    /// Takes one option in.
    fn take(&mut self, word: &str, pending: &mut Pending) -> Result<(), Failure> {
        let name = word.split_once('=').map_or(word, |(name, _)| name);
        pending.own.extend(OWN.into_iter().find(|own| *own == name));
        match word.split_once('=') {
            None => self.take_plain(word, pending),
            Some((name, value)) => self.take_valued(name, value, pending).unwrap_or_else(|| {
                let allowed = allowed(name).unwrap_or("another one");
                Err(Failure::Usage(match value {
                    "" => format!("option '{name}' needs a value: {allowed}"),
                    _ => format!("bad value in option '{word}'; it takes {allowed}"),
                }))
            }),
        }
    }

    fn take_plain(&mut self, word: &str, pending: &mut Pending) -> Result<(), Failure> {
        let flags = &mut self.mount.flags;
        match word {
            "remount" => {
                return Err(Failure::Usage(
                    "'remount' is not possible: unmount it, and mount it again".to_owned(),
                ));
            }
            // What mount(8) makes of these, before what follows them.
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
            "allow_other" => self.mount.access = Access::Everyone,
            "default_permissions" => pending.server_permissions = false,
            "no_default_permissions" => pending.server_permissions = true,
            "mbcache" => (self.tmpfs.share_xattrs, self.store.share) = (true, None),
            "no_mbcache" => {
                self.tmpfs.share_xattrs = false;
                self.store.share = Some(Arc::new(NoSharing));
            }
            "create" => self.store.is_made = true,
            NO_CREATE => self.store.is_made = false,
            "writeback_cache" => self.server.write_cache = WriteCache::Back,
            "no_writeback_cache" => self.server.write_cache = WriteCache::Through,
            word if TAKEN.contains(&word) || is_for_others(word) => {}
            _ => {
                return Err(Failure::Usage(match allowed(word) {
                    Some(allowed) => format!("option '{word}' needs a value: {allowed}"),
                    None => format!("unknown option '{word}'"),
                }));
            }
        }
        Ok(())
    }

    /// Takes an option with a value in; None if the value is none.
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
            "threads" => {
                let threads = number(value).filter(|count| (1..=THREADS_MAX).contains(count))?;
                pending.threads = Some(threads as usize);
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
            // 0 means the default, as in ext4(5).
            "commit" => {
                let every = Some(seconds(value)?).filter(|time| !time.is_zero());
                self.store.commit_every = every.or(StoreOptions::default().commit_every);
            }
            // In the mount table of old: who has mounted it.
            "user" => return Some(self.take_plain(name, pending)),
            "comment" => {}
            name if is_for_others(name) => {}
            _ => return self.take_limit(name, value),
        }
        Some(Ok(()))
    }

    /// Takes an option of tmpfs(5) in, which a store has as well; None if the value is none.
    fn take_limit(&mut self, name: &str, value: &str) -> Option<Result<(), Failure>> {
        let (tmpfs, store) = (&mut self.tmpfs, &mut self.store);
        match name {
            // 0 means no limit, as in tmpfs(5).
            "size" => {
                let bytes = Some(size(value)?).filter(|&bytes| bytes > 0);
                (tmpfs.size_bytes, store.size_bytes) = (bytes, bytes);
            }
            "nr_inodes" => {
                let count = Some(scaled(value)?).filter(|&count| count > 0);
                (tmpfs.inodes_max, store.inodes_max) = (count, count);
            }
            // Those of the root directory, when it is made.
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
                let is_plain = self.clone().take_plain(name, &mut Pending::default()).is_ok();
                return Some(Err(Failure::Usage(match is_plain {
                    true => format!("option '{name}' takes no value"),
                    false => format!("unknown option '{name}'"),
                })));
            }
        }
        Some(Ok(()))
    }
}

/// Returns what the value of an option is; None for an option that has none.
fn allowed(name: &str) -> Option<&'static str> {
    Some(match name {
        "size" | "cache" => "bytes, as 4096, 64k, 10m, 1g or 1t, or a share of the memory, as 50%",
        "nr_inodes" => "a count, as 1000, 64k or 1m",
        "entry_timeout" | "attr_timeout" | "negative_timeout" | COMMIT => "seconds, as 5 or 0.5",
        "mode" => "octal digits, as 0755",
        "uid" | "gid" => "a number",
        "threads" => "a count from 1 to 1024",
        "readdirplus" => "yes, no or auto",
        "fsname" => "a name",
        _ => return None,
    })
}

/// Returns true if an option is one that mount(8) leaves to other programs.
fn is_for_others(word: &str) -> bool {
    word.starts_with("x-") || word.starts_with("X-")
}

/// Returns the bytes of memory that the machine has.
fn memory_bytes() -> u64 {
    let info = rustix::system::sysinfo();
    (info.totalram as u64).saturating_mul(u64::from(info.mem_unit))
}

/// Returns a decimal number without a sign.
fn number(text: &str) -> Option<u64> {
    text.bytes().all(|b| b.is_ascii_digit()).then(|| text.parse().ok())?
}

/// Returns a number with a suffix k, m, g or t, each 1024 times the one before.
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

/// Returns a number of bytes, which may also be a share of the memory (`50%`).
fn size(text: &str) -> Option<u64> {
    match text.strip_suffix('%') {
        Some(percent) => Some(memory_bytes() / 100 * number(percent).filter(|p| *p <= 100)?),
        None => scaled(text),
    }
}

/// Returns a time in seconds, which may have a fraction.
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
            Ok(_) => panic!("{list}: it is taken"),
        }
    }

    #[test]
    fn unknown_option_is_named() {
        assert_eq!(complaint("ro,frobnicate"), "unknown option 'frobnicate'");
        assert_eq!(complaint("frobnicate=1"), "unknown option 'frobnicate'");
        assert_eq!(complaint("RO"), "unknown option 'RO'");
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
            "entry_timeout=-1",
            "entry_timeout=inf",
            "attr_timeout=nan",
            "negative_timeout=1e3",
            "negative_timeout=",
            "entry_timeout=.",
            "readdirplus=maybe",
            "cache=lots",
        ] {
            let (name, value) = word.split_once('=').expect("it has a value");
            let expected = match value {
                "" => format!("option '{name}' needs a value: "),
                _ => format!("bad value in option '{word}'; it takes "),
            };
            let said = complaint(word);
            assert!(said.strip_prefix(&expected).is_some_and(|what| !what.is_empty()), "{said}");
            assert!(complaint(name).starts_with(&format!("option '{name}' needs a value")));
        }
    }

    #[test]
    fn value_of_a_plain_option_is_refused() {
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
        assert_eq!(plan("cache=64m").expect("it is an option").server.vfs.cache_bytes, 64 << 20);
    }

    #[test]
    fn sharing_of_attributes_is_switched() {
        let is_on = |list: &str| {
            let plan = plan(list).expect("it is an option");
            assert_eq!(plan.tmpfs.share_xattrs, plan.store.share.is_none());
            plan.tmpfs.share_xattrs
        };
        assert!(is_on(""));
        assert!(!is_on("mbcache,no_mbcache"));
        assert!(is_on("no_mbcache,mbcache"));
    }

    #[test]
    fn mount_is_called_after_its_source() {
        let source = |source, list: &str| {
            Plan::parse(source, &[list.into()]).expect("it is an option").mount.source
        };
        let host = Source::Host(Path::new("/srv/a b"));
        assert_eq!(source(Source::Tmpfs, ""), "tmpfs");
        assert_eq!(source(host, ""), "/srv/a b");
        assert_eq!(source(host, "fsname=mine"), "mine");
    }

    #[test]
    fn lines_of_fstab_are_taken() {
        let line = "noauto,user,nofail,_netdev,x-systemd.automount,X-mount.mkdir=0755,x-a=b,acl,user_xattr,\
                    lazytime,relatime,auto_unmount,comment=mine,exec";
        let flags = plan(line).expect("all are options").mount.flags;
        let expected = MountFlags::NOSUID | MountFlags::NODEV;
        assert_eq!(flags & (expected | MountFlags::NOEXEC), expected, "exec is after user");
        assert_eq!(
            complaint("remount,ro"),
            "'remount' is not possible: unmount it, and mount it again"
        );
        for word in ["noacl", "nouser_xattr", "xfoo", "x"] {
            assert_eq!(complaint(word), format!("unknown option '{word}'"));
        }
    }

    /// Threads that have nothing to do take turns with those that have.
    #[test]
    fn threads_are_as_many_as_processors_unless_every_change_waits() {
        let few = plan("").expect("no options").mount.threads;
        let threads = |list| store(list).expect("options").mount.threads;
        assert_eq!((threads(""), threads("sync,async")), (few, few));
        assert!(threads("dirsync") >= few.max(8) && threads("sync") == threads("dirsync"));
        assert_eq!((threads("ro,dirsync"), threads("dirsync,ro")), (few, few));
        assert_eq!((threads("dirsync,threads=3"), threads("threads=9,ro")), (3, 9));
    }

    #[test]
    fn back_ends_are_told_of_times_and_of_what_is_durable() {
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
            let plan = plan(list).expect("all are options");
            assert_eq!((plan.tmpfs.atime, plan.store.atime), (atime, atime), "{list}");
            assert_eq!(plan.host.atime, atime, "{list}");
            assert_eq!(plan.store.is_read_only, list.starts_with("ro"));
        }
        let is_dirsync = |list| store(list).expect("an option").store.is_dirsync;
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
                    assert_eq!(line, format!("'{name}' is not kept for a directory of the host"));
                }
                other => panic!("{other:?}"),
            }
        }
        assert!(Plan::parse(host, &["sync,no_mbcache,create,cache=1m".into()]).is_ok());
        assert_eq!(complaint("no_create"), "'no_create' is not kept for tmpfs");
        let is_made = |list| store(list).expect("an option").store.is_made;
        assert_eq!(["", "no_create", "no_create,create"].map(is_made), [true, false, true]);
    }

    #[test]
    fn commit_of_0_is_the_default() {
        let every = |list| store(list).expect("an option").store.commit_every;
        assert_eq!(every("commit=0"), Some(Duration::from_secs(5)));
        assert_eq!(every("commit=9,commit=0"), every(""));
        assert_eq!(every("commit=0.5"), Some(Duration::from_millis(500)));
    }

    #[test]
    fn later_option_wins() {
        let plan = plan("ro,nosuid,,rw,noexec,suid").expect("all are options");
        assert_eq!(
            plan.mount.flags & (MountFlags::RDONLY | MountFlags::NOSUID),
            MountFlags::empty()
        );
        assert!(plan.mount.flags.contains(MountFlags::NOEXEC));
    }

    #[test]
    fn timeouts_have_fractions() {
        let plan = plan("entry_timeout=0.25,attr_timeout=3,negative_timeout=0").expect("options");
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

    /// Whatever is asked for is understood, or refused by a mistake of usage that names what is wrong.
    #[test]
    fn fuzz_options_are_understood_or_refused() {
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
                        // A later mistake is found in any list that is taken.
                        let more = [list.clone(), "frobnicate".into()];
                        let refused = Plan::parse(source, &more).map(|_| ());
                        let expected = "unknown option 'frobnicate'";
                        assert!(matches!(&refused, Err(Failure::Usage(line)) if line == expected));
                        return String::new();
                    }
                    Err(refused) => refused,
                };
                let Failure::Usage(line) = refused else { panic!("{refused:?}") };
                assert!(!line.is_empty());
                // What comes before the word that is refused.
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
