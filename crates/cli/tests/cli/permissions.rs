//! Tests of owners, modes and ACLs in a mounted directory of the host, while the host changes them
//! as well.
//!
//! In these tests the kernel checks permissions, but caches nothing. So a wrong result comes from
//! outdated attributes in the cache of the server.

use std::fs::{self, File, Permissions};
use std::io::ErrorKind;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown, fchown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use corewalk::acl::XATTR_ACCESS;
use rustix::fs::{Mode, XattrFlags};

use crate::fixtures::{Folder, Server, can_mount, run};

const OPTIONS: &str = "entry_timeout=0,attr_timeout=0";
const OTHER: u32 = 65534;
const GROUP: u32 = 4242;

struct Site {
    host: PathBuf,
    mount: PathBuf,
    _server: Server,
    _folder: Folder,
}

impl Site {
    fn new() -> Option<Site> {
        Site::with(OPTIONS)
    }

    fn with(options: &str) -> Option<Site> {
        if !can_mount() {
            return None;
        }
        // Set the umask, on which the modes that the tests compare depend.
        rustix::process::umask(Mode::from_raw_mode(0o022));
        let folder = Folder::new();
        let (host, mount) = (folder.path("host"), folder.path("m"));
        fs::create_dir(&host).expect("the directory is created");
        let source = host.display().to_string();
        let server = Server::of(&source, &["-o", options], &mount);
        Some(Site { host, mount, _server: server, _folder: folder })
    }

    fn warm(&self) {
        File::create(self.mount.join("warm")).expect("the file is created");
        fs::remove_file(self.mount.join("warm")).expect("the file exists");
    }
}

fn set_mode(path: &Path, mode: u32) {
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("the test owns it");
}

fn mode_and_group(path: &Path) -> (u32, u32) {
    let metadata = fs::symlink_metadata(path).expect("the file exists");
    (metadata.mode() & 0o7777, metadata.gid())
}

#[test]
fn new_files_inherit_from_the_current_attributes_of_their_directory() {
    let Some(site) = Site::new() else { return };
    site.warm();
    chown(&site.host, None, Some(GROUP)).expect("root is permitted to");
    set_mode(&site.host, 0o2775);
    let path = |name: &str| site.mount.join(name);
    File::create(path("file")).expect("the file is created");
    fs::create_dir(path("dir")).expect("the directory is created");
    std::os::unix::fs::symlink("file", path("link")).expect("the link is created");
    let mut mkfifo = Command::new("mkfifo");
    mkfifo.arg(path("fifo"));
    assert!(run(mkfifo).status.success());
    for name in ["file", "dir", "link", "fifo"] {
        assert_eq!(mode_and_group(&site.host.join(name)).1, GROUP, "{name}");
    }
    assert_eq!(mode_and_group(&site.host.join("dir")).0 & 0o7000, 0o2000);
    // Without the set-group-ID bit of the directory, new files must not inherit its group.
    set_mode(&site.host, 0o755);
    fs::create_dir(path("later")).expect("the directory is created");
    assert_eq!(mode_and_group(&site.host.join("later")), (0o755, 0));
}

#[test]
fn acl_keeps_the_sticky_bit_that_the_host_has_set_since() {
    let Some(site) = Site::new() else { return };
    site.warm();
    set_mode(&site.host, 0o1777);
    let entries =
        [(1, 7, u32::MAX), (2, 7, 1), (4, 7, u32::MAX), (16, 7, u32::MAX), (32, 7, u32::MAX)];
    let mut acl = vec![2, 0, 0, 0];
    for (tag, bits, id) in entries {
        acl.extend([tag, 0, bits, 0]);
        acl.extend(u32::to_le_bytes(id));
    }
    rustix::fs::setxattr(&site.mount, XATTR_ACCESS, &acl, XattrFlags::empty())
        .expect("the ACL is set");
    assert_eq!(mode_and_group(&site.host).0, 0o1777);
}

#[test]
fn change_of_owner_leaves_the_mode_that_the_host_has_set_since() {
    let Some(site) = Site::new() else { return };
    fs::write(site.host.join("file"), "x").expect("the file is created");
    set_mode(&site.host.join("file"), 0o4755);
    let file = File::open(site.mount.join("file")).expect("the file exists");
    set_mode(&site.host.join("file"), 0o600);
    fchown(&file, Some(OTHER), None).expect("root is permitted to");
    assert_eq!(mode_and_group(&site.host.join("file")).0, 0o600);
    // Control: chown(2) must clear the set-user-ID bit if the file still has it.
    set_mode(&site.host.join("file"), 0o4755);
    fchown(&file, Some(OTHER), None).expect("root is permitted to");
    assert_eq!(mode_and_group(&site.host.join("file")).0, 0o755);
}

/// A file that the host has made executable must run in the mount, even if the kernel has cached
/// its name and sends no lookup.
#[test]
fn file_that_the_host_has_made_executable_since_can_be_run() {
    let Some(site) = Site::with("entry_timeout=600,attr_timeout=0") else { return };
    fs::write(site.host.join("run"), "#!/bin/sh\nexit 7\n").expect("the file is created");
    let path = site.mount.join("run");
    let status = || Command::new(&path).status().map(|status| status.code());
    for _ in 0..2 {
        fs::read(&path).expect("the file is readable");
        assert_eq!(status().map_err(|error| error.kind()), Err(ErrorKind::PermissionDenied));
        set_mode(&site.host.join("run"), 0o755);
        assert_eq!(status().expect("the script is executable"), Some(7));
        set_mode(&site.host.join("run"), 0o644);
    }
}

#[test]
fn open_that_truncates_clears_set_user_id_as_on_the_host() {
    let Some(site) = Site::new() else { return };
    for (uid, mode) in
        [OTHER, 0].into_iter().flat_map(|uid| [0o4755, 0o2755, 0o6711, 0o644].map(|m| (uid, m)))
    {
        let kept = [&site.host, &site.mount].map(|folder| {
            let made = site.host.join("file");
            fs::write(&made, "text").expect("the file is created");
            chown(&made, Some(OTHER), Some(OTHER)).expect("root is permitted to");
            set_mode(&made, mode);
            let mut shell = Command::new("sh");
            shell.args(["-c", ": > file"]).current_dir(folder).uid(uid).gid(uid);
            assert!(run(shell).status.success());
            assert_eq!(fs::read(&made).expect("the file exists"), b"");
            mode_and_group(&made)
        });
        assert_eq!(kept[1], kept[0], "{uid} {mode:o}");
        assert_eq!(kept[0].0 & 0o6000 != 0, uid == 0 && mode != 0o644, "control: {mode:o}");
        fs::remove_file(site.host.join("file")).expect("the file exists");
    }
}
