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
    assert_eq!(["", "dirsync", "sync", "sync,async"].map(is_dirsync), [false, true, true, false]);
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
fn cluster_takes_its_own_options_only() {
    let cluster = |list: &str| Plan::parse(Source::Cluster("pg://h/d"), &[list.into()]);
    for word in ["size=1m", "sync", "strictatime", "writeback_cache", "attr_timeout=1", "commit=5"]
    {
        let name = word.split('=').next().unwrap_or_default();
        let line = format!("option '{name}' is not supported for a cluster file system");
        assert!(matches!(cluster(word).map(drop), Err(Failure::Usage(found)) if found == line));
    }
    let unreachable = |list| cluster(list).expect("valid options").cluster.unreachable;
    assert_eq!(unreachable("soft,hard,timeout=5"), Unreachable::Wait);
    let limit = |seconds| Unreachable::FailAfter(Duration::from_secs(seconds));
    assert_eq!([unreachable("soft"), unreachable("soft,timeout=5")], [limit(60), limit(5)]);
    let is_local = |list| cluster(list).expect("valid options").cluster.local_locks;
    assert_eq!(["", "local_lock=none", "local_lock=all"].map(is_local), [false, false, true]);
    let keeps = |list| cluster(list).expect("valid options").cluster.kernel_names;
    assert_eq!(
        ["", "no_kernel_names", "no_kernel_names,kernel_names"].map(keeps),
        [false, false, true]
    );
    assert_eq!(cluster("connections=7").expect("a valid option").cluster.connections, 7);
    let kept = cluster("cache_dir=/c,cache_dir_size=5m").expect("valid options").cluster;
    assert_eq!(kept.disk_cache.as_deref(), Some(std::path::Path::new("/c")));
    assert_eq!(kept.disk_cache_bytes, 5 << 20);
    assert_eq!(cluster("").expect("valid options").cluster.disk_cache, None);
    assert!(matches!(cluster("cache_dir=c").map(drop), Err(Failure::Usage(_))));
    assert_eq!(complaint("soft"), "option 'soft' is not supported for tmpfs");
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
    assert_eq!(plan.mount.flags & (MountFlags::RDONLY | MountFlags::NOSUID), MountFlags::empty());
    assert!(plan.mount.flags.contains(MountFlags::NOEXEC));
}

#[test]
fn timeouts_have_fractions() {
    let plan = plan("entry_timeout=0.25,attr_timeout=3,negative_timeout=0").expect("valid options");
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

/// Fuzz test: any list of options must be accepted, or refused with a usage error.
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
                    // An accepted list must not hide an unknown option after it.
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
            line.split(['\'', ':']).next().unwrap_or_default().to_owned()
        });
        answers.sort();
        answers.concat()
    });
    for answer in ["", "bad value in option ", "unknown option "] {
        assert!(answers.contains_key(&answer.repeat(3)), "{answer:?} of {answers:?}");
    }
}
