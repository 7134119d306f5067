//! Tests of the privileges that a change of a file clears: set-user-ID, set-group-ID and file
//! capabilities.
//!
//! The same calls run on a mount and on a tmpfs of the host. Error, mode, owner, size and
//! capabilities must be the same after each call.
//!
//! Source: write(2), chown(2), capabilities(7); Linux `file_remove_privs`, `chown_common`.

mod table;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::Path;
use std::sync::Arc;

use corewalk::FileSystem;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_fuse::{Options, Transport, WriteCache};
use corewalk_testkit::reexec::{self, Reexec};
use corewalk_testkit::require::{has_program, has_root};
use corewalk_testkit::user::UserNamespace;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount, unmount};

use self::table::{CALLERS, GROUP, OWNER, Skips, change_as, compare, prepare, state};
use crate::hooked::Hooked;
use crate::site::{Folder, Site, transport};

const MOUNT: &str = "COREWALK_PRIVILEGES_MOUNT";
const HOST: &str = "COREWALK_PRIVILEGES_HOST";

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

/// Asserts that each change has the same result on a mount and on a tmpfs of the host. A child
/// process, which runs the test `name` again, makes the changes. This process must not map a file
/// of its own mount, because a page fault would wait for the same process.
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

/// A change must clear set-user-ID and set-group-ID as on the host. This depends on the caller's
/// capabilities, also where the permissions are already checked (trap X9).
#[test]
fn privileges_are_cleared_as_on_the_host() {
    let name = "privileges_are_cleared_as_on_the_host";
    assert_as_host(name, tmpfs(), Options::exclusive(), |_, _, _, _| false);
}

/// When the kernel writes cached pages, it does not say which user wrote them. So without
/// `FUSE_HANDLE_KILLPRIV_V2`, as with fuser, the set-group-ID bit stays if the group may not
/// execute the file.
#[test]
fn privileges_are_cleared_as_on_the_host_if_the_kernel_collects_writes() {
    let name = "privileges_are_cleared_as_on_the_host_if_the_kernel_collects_writes";
    let options = Options::exclusive().with_write_cache(WriteCache::Back);
    assert_as_host(name, tmpfs(), options, |_, _, mode, _| {
        transport() == Transport::Fuser && mode & 0o2010 == 0o2000
    });
}

#[test]
fn privileges_are_cleared_as_on_the_host_if_an_open_truncates() {
    let name = "privileges_are_cleared_as_on_the_host_if_an_open_truncates";
    let fs = Arc::new(Hooked::with_handle(5));
    assert_as_host(name, fs, Options::exclusive(), |_, _, _, _| false);
}

/// In one case the result differs from the host: before the server refuses a truncate(2), the
/// kernel has already removed the capabilities of the file.
#[test]
fn privileges_are_cleared_as_on_the_host_if_the_server_checks_permissions() {
    let name = "privileges_are_cleared_as_on_the_host_if_the_server_checks_permissions";
    let options = Options::exclusive().with_server_permissions();
    assert_as_host(name, tmpfs(), options, |_, what, _, has_caps| what == "truncate" && has_caps);
}

/// If other programs change the files, the server does not choose `FUSE_HANDLE_KILLPRIV_V2`. The
/// privileges must be cleared as on the host all the same.
#[test]
fn privileges_are_cleared_as_on_the_host_if_other_programs_change_files() {
    let name = "privileges_are_cleared_as_on_the_host_if_other_programs_change_files";
    assert_as_host(name, tmpfs(), Options::shared(), |_, _, _, _| false);
}

/// Returns two user namespaces. In both, user 0 is the owner of the files. Only the first namespace
/// contains the group of the files.
fn namespaces() -> Option<[UserNamespace; 2]> {
    Some([UserNamespace::new(0, OWNER, GROUP)?, UserNamespace::new(0, OWNER, 1)?])
}

/// A caller in another user namespace may have `CAP_FSETID` over a file. `/proc` does not show
/// that, so only the kernel's flag tells whether set-group-ID stays.
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
        // fuser does not pass the kernel's flag about set-group-ID on, so the server clears the
        // bit.
        match transport() {
            Transport::Fuser => assert_eq!(found.1, format!("755 {OWNER} {GROUP}")),
            _ => assert_eq!(found, expected),
        }
    }
}

type Make = fn(&Path) -> io::Result<()>;

const MAKES: [(&str, Make); 4] = [
    ("open", |path| make_with(0o2755, path)),
    ("open without execution by the group", |path| make_with(0o2745, path)),
    ("mkfifo", |path| Ok(mknodat(CWD, path, FileType::Fifo, Mode::from_raw_mode(0o6711), 0)?)),
    ("mkdir", |path| fs::create_dir(path)),
];

fn make_with(mode: u32, path: &Path) -> io::Result<()> {
    OpenOptions::new().write(true).create_new(true).mode(mode).open(path).map(drop)
}

const MAKE: &str = "use Fcntl; sysopen(F, $ARGV[0], O_CREAT | O_WRONLY, 02755) or die $!";

/// A new file must get or lose the set-group-ID bit as on the host. In a set-group-ID directory
/// this depends on the caller: its groups, and whether it has `CAP_FSETID`. The last two callers
/// are in other user namespaces.
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

/// Without `FUSE_HANDLE_KILLPRIV_V2`, the kernel asks for the capabilities of the file before each
/// write.
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
