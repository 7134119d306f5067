//! Tests of the privileges that a change of a file clears: set-user-ID, set-group-ID and file
//! capabilities.
//!
//! The same calls run on a mount and on a tmpfs of the host. Error, mode, owner, size and
//! capabilities must be the same after each call. Each call is made twice, so that a test notices
//! an outdated mode in the kernel's cache.
//!
//! Source: write(2), chown(2), capabilities(7); Linux `file_remove_privs`, `chown_common`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, OpenOptionsExt as _, PermissionsExt as _, chown};
use std::path::Path;
use std::sync::Arc;

use corewalk::FileSystem;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_base::Region;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_fuse::{Options, Transport, WriteCache};
use corewalk_testkit::reexec::{self, Reexec};
use corewalk_testkit::require::{has_program, has_root};
use corewalk_testkit::user::{UserNamespace, run_as};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, StatxFlags, XattrFlags, copy_file_range,
    fallocate, mknodat, statx,
};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

use crate::hooked::Hooked;
use crate::site::{Folder, Site, transport};

/// The owner of the files.
const OWNER: u32 = 1000;
/// A user other than root and the owner.
const OTHER: u32 = 65534;
/// The group of the files.
const GROUP: u32 = 4242;
const CAPABILITY: &str = "security.capability";
/// The environment variables of a child with the directories to compare.
const MOUNT: &str = "COREWALK_PRIVILEGES_MOUNT";
const HOST: &str = "COREWALK_PRIVILEGES_HOST";
/// A value of `security.capability` (`VFS_CAP_REVISION_2`, with `CAP_CHOWN` permitted).
const VALUE: [u8; 20] = [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// A value of `system.posix_acl_access`: version 2, and the entries `u::rwx`, `u:7:r`, `g::rx`,
/// `m::rx`, `o::x`. Its mode is 751.
#[rustfmt::skip]
const ACL: [u8; 44] = [
    2, 0, 0, 0,
    1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
    2, 0, 4, 0, 7, 0, 0, 0,
    4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,
    16, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,
    32, 0, 1, 0, 0xff, 0xff, 0xff, 0xff,
];
/// The modes of the files.
const MODES: [u32; 7] = [0o6755, 0o2745, 0o4644, 0o644, 0o6777, 0o2767, 0o666];
/// The modes of the directories.
const DIR_MODES: [u32; 4] = [0o755, 0o6755, 0o2745, 0o7777];

/// A user who changes a file.
#[derive(Clone, Copy, Debug)]
struct Caller {
    uid: u32,
    gid: u32,
    groups: &'static [u32],
    /// The capabilities that root lacks.
    lacks: CapabilitySet,
}

const fn user(uid: u32, groups: &'static [u32]) -> Caller {
    Caller { uid, gid: uid, groups, lacks: CapabilitySet::empty() }
}

const CALLERS: [Caller; 7] = [
    user(OWNER, &[]),
    user(OWNER, &[7, GROUP]),
    user(OTHER, &[]),
    user(OTHER, &[GROUP]),
    user(0, &[]),
    Caller { lacks: CapabilitySet::FSETID, ..user(0, &[]) },
    Caller { lacks: CapabilitySet::FOWNER, ..user(0, &[]) },
];

/// A function that changes a file. It gets the path of the file, and the file itself, which root
/// has opened for reading and writing. So a caller without a right to open the file can write.
type Change = fn(&Path, &File) -> io::Result<()>;

const CHANGES: [(&str, Change); 19] = [
    ("write", |_, mut file| file.write_all(b"xy")),
    ("pwrite", |_, file| file.write_all_at(b"xy", 5)),
    ("pwrite of a page", |_, file| file.write_all_at(&[7; 8192], 0)),
    ("open and write", |path, _| OpenOptions::new().write(true).open(path)?.write_all(b"xy")),
    ("append", |path, _| OpenOptions::new().append(true).open(path)?.write_all(b"xy")),
    ("truncate", |path, _| Ok(nix::unistd::truncate(path, 3)?)),
    ("ftruncate", |_, file| file.set_len(3)),
    ("O_TRUNC", |path, _| OpenOptions::new().write(true).truncate(true).open(path).map(drop)),
    ("O_CREAT and O_TRUNC", |path, _| File::create(path).map(drop)),
    ("fallocate", |_, file| Ok(fallocate(file, FallocateFlags::empty(), 0, 20_000)?)),
    ("punch", |_, file| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(file, flags, 0, 4096)?)
    }),
    ("copy_file_range", |path, file| {
        let from = File::open(path.with_file_name("from"))?;
        assert_eq!(copy_file_range(from, Some(&mut 0), file, Some(&mut 0), 8)?, 8);
        Ok(())
    }),
    ("mmap", |_, file| {
        let region = Region::shared(file, 1)?;
        // ORDERING: Relaxed. One thread writes to the mapping.
        region.line(0)[0].store(7, Ordering::Relaxed);
        drop(region);
        file.sync_all()
    }),
    ("chown to another user", |path, _| chown(path, Some(7), None)),
    ("chown to another group", |path, _| chown(path, None, Some(OTHER))),
    ("chown to the same owner", |path, _| chown(path, Some(OWNER), Some(GROUP))),
    ("chown without an owner", |path, _| chown(path, None, None)),
    ("chmod", |path, _| fs::set_permissions(path, Permissions::from_mode(0o6711))),
    ("set an ACL", |path, _| {
        Ok(rustix::fs::setxattr(path, "system.posix_acl_access", &ACL, XattrFlags::empty())?)
    }),
];

/// The changes of a directory.
const DIR_CHANGES: [&str; 6] = [
    "chown to another user",
    "chown to another group",
    "chown to the same owner",
    "chown without an owner",
    "chmod",
    "set an ACL",
];

/// A tmpfs of the host, mounted on a new directory.
struct HostTmpfs(Folder);

impl HostTmpfs {
    fn new() -> HostTmpfs {
        let folder = Folder::new();
        let flags = MountFlags::NOSUID | MountFlags::NODEV;
        mount("tmpfs", folder.path(), "tmpfs", flags, None).expect("mount a tmpfs");
        HostTmpfs(folder)
    }
}

impl Drop for HostTmpfs {
    fn drop(&mut self) {
        let _ = unmount(self.0.path(), UnmountFlags::DETACH);
    }
}

/// Calls `change` with the credentials of `caller`.
fn change_as<T: Send>(caller: Caller, change: impl FnOnce() -> T + Send) -> T {
    run_as(caller.uid, caller.gid, caller.groups, || {
        let mut sets = capabilities(None).expect("read the capabilities");
        sets.effective -= caller.lacks;
        set_capabilities(None, sets).expect("drop capabilities");
        change()
    })
}

/// Returns mode and owner of a file, and whether it has capabilities. Do not ask statx(2) for
/// times: the kernel would then fetch all attributes again, which would hide an outdated mode in
/// its cache.
fn state(path: &Path) -> String {
    let wanted = StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID;
    let now = statx(CWD, path, AtFlags::empty(), wanted).expect("the file exists");
    let has_caps = rustix::fs::getxattr(path, CAPABILITY, &mut [0; 32][..]).is_ok();
    let caps = if has_caps { " caps" } else { "" };
    format!("{:o} {} {}{caps}", now.stx_mode & 0o7777, now.stx_uid, now.stx_gid)
}

fn prepare(path: &Path, mode: u32, has_caps: bool) {
    chown(path, Some(OWNER), Some(GROUP)).expect("root is permitted to");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("root is permitted to");
    if has_caps {
        rustix::fs::setxattr(path, CAPABILITY, &VALUE, XattrFlags::empty())
            .expect("root is permitted to");
    }
}

/// Makes `change` twice as `caller`. Returns the results, and the state before and after each call.
fn change_twice(caller: Caller, path: &Path, file: &File, change: Change) -> String {
    let mut text = state(path);
    for _ in 0..2 {
        let done = change_as(caller, || change(path, file)).map_err(|error| error.raw_os_error());
        text = format!("{text} | {done:?} {}", state(path));
    }
    text
}

/// Returns true if a change on a mount may have another result than on the host. The arguments are
/// the name of the change, the mode of the file, and whether the file has capabilities.
type Skips = fn(&str, u32, bool) -> bool;

/// Makes each of `CHANGES` to files in the directory `at`, and some of them to directories.
fn collect(at: &Path, caller: Caller, skips: Skips) -> Vec<String> {
    let dir = at.join("dir");
    fs::create_dir(&dir).expect("make the directory");
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("chmod");
    fs::write(dir.join("from"), "12345678").expect("make the file");
    fs::set_permissions(dir.join("from"), Permissions::from_mode(0o644)).expect("chmod");
    let (path, mut lines) = (dir.join("f"), vec![]);
    for (what, change) in CHANGES {
        let cases = MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
        for (mode, has_caps) in cases.filter(|case| !skips(what, case.0, case.1)) {
            fs::write(&path, vec![1; 10_000]).expect("make the file");
            let file = File::options().read(true).write(true).open(&path).expect("open the file");
            prepare(&path, mode, has_caps);
            let changed = change_twice(caller, &path, &file, change);
            lines.push(format!("{what}: {changed}"));
            fs::remove_file(&path).expect("remove the file");
        }
        for mode in DIR_MODES.into_iter().filter(|_| DIR_CHANGES.contains(&what)) {
            fs::create_dir(&path).expect("make the directory");
            prepare(&path, mode, false);
            let file = File::open(&path).expect("open the directory");
            lines.push(format!("{what}: {}", change_twice(caller, &path, &file, change)));
            fs::remove_dir(&path).expect("remove the directory");
        }
    }
    fs::remove_dir_all(&dir).expect("remove the directory");
    lines
}

fn compare(found: &Path, expected: &Path, skips: Skips) {
    for caller in CALLERS {
        let collect = |at| collect(at, caller, skips);
        let (found, expected) = (collect(found), collect(expected));
        let differs = |pair: &(&String, &String)| pair.0 != pair.1;
        let pairs: Vec<_> = found.iter().zip(&expected).filter(differs).collect();
        let first = &pairs[..pairs.len().min(20)];
        assert_eq!(pairs.len(), 0, "{caller:?}: found, expected: {first:#?}");
        let cleared = "write: 6755 1000 4242 caps | Ok(()) 755 1000 4242 |";
        let keeps = caller.uid == 0 && !caller.lacks.contains(CapabilitySet::FSETID);
        let is_cleared = expected.iter().any(|line| line.starts_with(cleared));
        assert_ne!(is_cleared, keeps, "control: on the host, only CAP_FSETID keeps the bits");
    }
}

/// Checks that changes on a mount of `fs` have the same results as on the host. A child process,
/// which runs the test `name` again, makes the changes: a process must not map a file of its own
/// mount.
fn assert_as_host(name: &str, fs: Arc<dyn FileSystem>, options: Options, skips: Skips) {
    if !has_root() {
        return;
    }
    let variable = |name| std::env::var_os(name).expect("the parent sets it");
    if reexec::role().is_some() {
        return compare(variable(MOUNT).as_ref(), variable(HOST).as_ref(), skips);
    }
    let Some(site) = Site::new(fs, options) else { return };
    let host = HostTmpfs::new();
    let text = |path: &Path| path.display().to_string();
    Reexec::test(&format!("privileges::{name}"))
        .env(MOUNT, &text(site.root()))
        .env(HOST, &text(host.0.path()))
        .run()
        .assert_success();
}

fn tmpfs() -> Arc<dyn FileSystem> {
    Arc::new(Tmpfs::new(TmpfsOptions::default()))
}

/// Trap X9: which bits are cleared depends on the caller's capabilities and groups.
#[test]
fn privileges_are_cleared_as_on_the_host() {
    let name = "privileges_are_cleared_as_on_the_host";
    assert_as_host(name, tmpfs(), Options::exclusive(), |_, _, _| false);
}

/// Checks the privileges on a mount with a write-back cache. The kernel's writes of cached pages do
/// not name the user. So without `FUSE_HANDLE_KILLPRIV_V2`, as with fuser, a lone set-group-ID bit
/// stays.
#[test]
fn privileges_are_cleared_as_on_the_host_if_the_kernel_collects_writes() {
    let name = "privileges_are_cleared_as_on_the_host_if_the_kernel_collects_writes";
    let options = Options::exclusive().with_write_cache(WriteCache::Back);
    assert_as_host(name, tmpfs(), options, |_, mode, _| {
        transport() == Transport::Fuser && mode & 0o2010 == 0o2000
    });
}

#[test]
fn privileges_are_cleared_as_on_the_host_if_an_open_truncates() {
    let name = "privileges_are_cleared_as_on_the_host_if_an_open_truncates";
    let fs = Arc::new(Hooked::with_handle(5));
    assert_as_host(name, fs, Options::exclusive(), |_, _, _| false);
}

/// Exception: before the server refuses a truncate(2), the kernel has removed the capabilities of
/// the file.
#[test]
fn privileges_are_cleared_as_on_the_host_if_the_server_checks_permissions() {
    let name = "privileges_are_cleared_as_on_the_host_if_the_server_checks_permissions";
    let options = Options::exclusive().with_server_permissions();
    assert_as_host(name, tmpfs(), options, |what, _, has_caps| what == "truncate" && has_caps);
}

/// Checks the privileges on a mount without `FUSE_HANDLE_KILLPRIV_V2`.
#[test]
fn privileges_are_cleared_as_on_the_host_if_other_programs_change_files() {
    let name = "privileges_are_cleared_as_on_the_host_if_other_programs_change_files";
    assert_as_host(name, tmpfs(), Options::shared(), |_, _, _| false);
}

/// Returns two user namespaces whose user 0 is the owner of the files. Only the first one has the
/// group of the files. If this machine has no user namespaces, prints that and returns `None`.
fn namespaces() -> Option<[UserNamespace; 2]> {
    Some([UserNamespace::new(0, OWNER, GROUP)?, UserNamespace::new(0, OWNER, 1)?])
}

/// A caller in another user namespace may have `CAP_FSETID` over a file. `/proc` does not show that
/// to the server, so only the kernel's flag tells whether set-group-ID stays.
#[test]
fn acl_of_a_caller_in_a_user_namespace_keeps_set_group_id_as_on_the_host() {
    if !has_root() || !has_program("setfacl") {
        return;
    }
    let Some([wide, narrow]) = namespaces() else { return };
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let host = HostTmpfs::new();
    let set = |at: &Path, namespace: &UserNamespace| {
        let path = at.join("f");
        File::create(&path).expect("make the file");
        prepare(&path, 0o2755, false);
        let mut setfacl = namespace.command(0, "setfacl");
        let done = setfacl.args(["-m", "u:0:rx"]).arg(&path).status().expect("run setfacl");
        let state = state(&path);
        fs::remove_file(&path).expect("remove the file");
        (done.success(), state)
    };
    for (namespace, mode) in [(&wide, "2755"), (&narrow, "755")] {
        let expected = set(host.0.path(), namespace);
        assert_eq!(expected, (true, format!("{mode} {OWNER} {GROUP}")), "control: on the host");
        let found = set(site.root(), namespace);
        // fuser does not pass on the kernel's flag, and the server clears the bit.
        match transport() {
            Transport::Fuser => assert_eq!(found.1, format!("755 {OWNER} {GROUP}")),
            _ => assert_eq!(found, expected),
        }
    }
}

/// A function that makes a file at a path.
type Make = fn(&Path) -> io::Result<()>;

/// The ways to make a file with set-group-ID, or a directory.
const MAKES: [(&str, Make); 4] = [
    ("open", |path| make_with(0o2755, path)),
    ("open without execution by the group", |path| make_with(0o2745, path)),
    ("mkfifo", |path| Ok(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o6711), 0)?)),
    ("mkdir", |path| fs::create_dir(path)),
];

fn make_with(mode: u32, path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map(drop)
}

/// A perl program that makes the file `ARGV[0]` with set-group-ID.
const MAKE: &str = "use Fcntl; sysopen(F, $ARGV[0], O_CREAT | O_WRONLY, 02755) or die $!";

/// A new file in a directory with set-group-ID gets the bit only from a caller in the group of the
/// directory, or with `CAP_FSETID`. The last two callers are in other user namespaces. The first of
/// them has `CAP_FSETID` over the directory, and the other one does not.
#[test]
fn new_files_get_set_group_id_as_on_the_host() {
    if !has_root() || !has_program("perl") {
        return;
    }
    let Some([wide, narrow]) = namespaces() else { return };
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let host = HostTmpfs::new();
    let collect = |at: &Path| {
        let (dir, mut lines) = (at.join("dir"), vec![]);
        fs::create_dir(&dir).expect("make the directory");
        for dir_mode in [0o2777, 0o777] {
            prepare(&dir, dir_mode, false);
            let path = dir.join("f");
            for (caller, (what, make)) in
                CALLERS.into_iter().flat_map(|caller| MAKES.map(|make| (caller, make)))
            {
                let made = change_as(caller, || make(&path)).map_err(|error| error.raw_os_error());
                lines.push(format!("{dir_mode:o} {caller:?} {what}: {made:?} {}", state(&path)));
                fs::remove_file(&path).or_else(|_| fs::remove_dir(&path)).expect("remove it");
            }
            for namespace in [&wide, &narrow] {
                let mut perl = namespace.command(0, "perl");
                let made = perl.args(["-e", MAKE]).arg(&path).status().expect("run perl");
                lines.push(format!("{dir_mode:o} namespace: {made} {}", state(&path)));
                fs::remove_file(&path).expect("remove it");
            }
        }
        lines
    };
    let expected = collect(host.0.path());
    let is_kept = |text: &str| expected.iter().any(|line| line.ends_with(text));
    assert!(is_kept("0 2755 1000 4242") && is_kept("0 755 1000 4242"), "control: {expected:#?}");
    assert_eq!(collect(site.root()), expected);
}

/// A write to a file without privileges must be one request. Without `FUSE_HANDLE_KILLPRIV_V2`, the
/// kernel asks for the capabilities of the file before each write.
#[test]
fn small_writes_to_a_file_cost_one_request_each() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let mut file = File::create(site.path("file")).expect("create the file");
    file.write_all(b"first").expect("write to the file");
    let before = site.counters().requests;
    for _ in 0..200 {
        file.write_all(b"x").expect("write to the file");
    }
    let requests = site.counters().requests - before;
    match transport() {
        Transport::Fuser => assert_eq!(requests, 400),
        _ => assert!((200..=210).contains(&requests), "{requests} requests"),
    }
}
