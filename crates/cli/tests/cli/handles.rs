//! Tests that file handles stay valid after unused inodes were dropped from caches. Either only the
//! kernel drops them, or the server drops them as well. Each result must be that of the kernel's
//! own tmpfs (the oracle).
//!
//! Source: open_by_handle_at(2).

use std::fs::{self, File};
use std::io::Read as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use corewalk_base::file_handle::FileHandle;
use corewalk_testkit::require::{Need, skip};
use rustix::fs::{OFlags, XattrFlags};
use rustix::io::Errno;
use rustix::mount::{MountFlags, mount_remount};

use crate::fixtures::{Folder, Server, can_mount, run};

const FILES: [(&str, bool); 5] =
    [("a", true), ("a/b", true), ("a/b/c", true), ("a/b/c/file", false), ("top", false)];
/// Setting this attribute on the root makes the server evict all unused entries.
const PRUNE: &str = "user.corewalk.prune";

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    ByKernel,
    ByBoth,
}

/// Drops unused inodes from the caches. A remount makes the kernel drop its entries of this mount
/// only. `/proc/sys/vm/drop_caches` would drop those of all file systems.
fn forget(mount: &Path, what: Forgotten) {
    for _ in 0..2 {
        // Only a directory without cached entries can be evicted. So the first pass evicts the
        // entries, and the second pass evicts their directories.
        mount_remount(mount, MountFlags::empty(), c"").expect("root is permitted to");
        if what == Forgotten::ByBoth {
            rustix::fs::setxattr(mount, PRUNE, b"1", XattrFlags::empty())
                .expect("root is permitted to");
        }
    }
}

fn handle(path: &Path) -> FileHandle {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, rustix::fs::Mode::empty());
    FileHandle::of(file.expect("the file exists").as_fd(), b"")
        .expect("mounts support file handles")
}

fn make_files(root: &Path) {
    for (name, is_dir) in FILES {
        match is_dir {
            true => fs::create_dir(root.join(name)).expect("the directory is created"),
            false => fs::write(root.join(name), name).expect("the file is created"),
        }
    }
}

fn resolve(mount: &Path, handle: &FileHandle) -> Result<String, Errno> {
    let root = File::open(mount).expect("the root can be opened");
    let mut file = File::from(handle.open(root.as_fd(), OFlags::RDONLY)?);
    let is_dir = file.metadata().expect("the file is open").is_dir();
    if !is_dir {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("the file is readable");
        return Ok(text);
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let place = fs::read_link(&path).expect("the directory is open");
    let place = place.strip_prefix(mount).expect("the path is below the root").to_owned();
    let mut names: Vec<_> = fs::read_dir(&path)
        .expect("the directory is readable")
        .map(|entry| {
            entry
                .expect("the name is valid")
                .file_name()
                .into_string()
                .expect("the output is UTF-8")
        })
        .collect();
    names.sort();
    if let Some(parent) = place.parent() {
        let above =
            fs::metadata(Path::new(&path).join("..")).expect("the directory has a parent").ino();
        let expected = fs::metadata(mount.join(parent)).expect("the file exists").ino();
        assert_eq!(above, expected, "{place:?}/..");
    }
    Ok(format!("{} {names:?}", place.display()))
}

struct Site {
    at: PathBuf,
    _server: Option<Server>,
    folder: Folder,
}

impl Site {
    fn new(source: &str, options: &str) -> Site {
        let folder = Folder::new();
        let (at, below) = (folder.path("m"), folder.path("source"));
        fs::create_dir(&below).expect("the directory is created");
        if source == "oracle" {
            fs::create_dir(&at).expect("the directory is created");
            let mut mount = Command::new("mount");
            mount.args(["-t", "tmpfs", "oracle"]).arg(&at);
            assert!(run(mount).status.success());
            return Site { at, _server: None, folder };
        }
        let source = match source {
            "host" => below.display().to_string(),
            "store" => format!("store:{}", folder.path("kept").display()),
            other => other.to_owned(),
        };
        let server = Server::of(&source, &["-o", options], &at);
        Site { at, _server: Some(server), folder }
    }

    fn forget(&self, what: Forgotten) {
        match self._server {
            Some(_) => forget(&self.at, what),
            None => {
                mount_remount(&self.at, MountFlags::empty(), c"").expect("root is permitted to")
            }
        }
    }
}

fn collect_resolved(source: &str, options: &str, what: Forgotten) -> Vec<Result<String, Errno>> {
    let site = Site::new(source, options);
    let (at, path) = (&site.at, |name: &str| site.at.join(name));
    make_files(at);
    let handles = FILES.map(|(name, _)| handle(&path(name)));
    let root = handle(at);
    let mut all = vec![];
    let mut look = || {
        for handle in handles.iter().chain([&root]) {
            // An entry from an earlier open could lead the server to the file, so the caches are
            // dropped first.
            site.forget(what);
            all.push(resolve(at, handle));
        }
    };
    look();
    fs::create_dir(path("d")).expect("the directory is created");
    fs::rename(path("a/b"), path("d/moved")).expect("both exist");
    fs::rename(path("top"), path("d/moved/top")).expect("both exist");
    look();
    fs::remove_file(path("d/moved/c/file")).expect("the file exists");
    fs::remove_dir(path("d/moved/c")).expect("the directory is empty");
    fs::remove_file(path("d/moved/top")).expect("the file exists");
    for i in 0..100 {
        fs::write(path(&format!("new{i}")), "another").expect("the file is created");
    }
    look();
    drop(site.folder);
    all
}

fn assert_as_oracle(source: &str, options: &str) {
    if !can_mount() {
        return;
    }
    let expected = collect_resolved("oracle", "", Forgotten::ByKernel);
    assert_eq!(expected.iter().filter(|found| **found == Err(Errno::STALE)).count(), 3, "control");
    for what in [Forgotten::ByKernel, Forgotten::ByBoth] {
        assert_eq!(
            collect_resolved(source, options, what),
            expected,
            "{source} {options} {what:?}"
        );
    }
}

#[test]
fn handles_of_tmpfs_lead_to_their_files_when_all_is_forgotten() {
    assert_as_oracle("tmpfs", "default_permissions");
    assert_as_oracle("tmpfs", "no_default_permissions");
}

#[test]
fn handles_of_a_store_lead_to_their_files_when_all_is_forgotten() {
    assert_as_oracle("store", "default_permissions");
}

#[test]
fn handles_of_a_host_directory_lead_to_their_files_when_all_is_forgotten() {
    assert_as_oracle("host", "default_permissions");
    assert_as_oracle("host", "no_default_permissions");
}

/// The host may reuse the inode number of a removed file for a new file with equal times. The stale
/// handle must not reach the new file. Trap P11 in `traps.md`.
#[test]
fn handle_of_a_removed_file_never_leads_to_one_with_its_number() {
    if !can_mount() {
        return;
    }
    // The host replaces the file without a notification, so the kernel must cache nothing.
    let site = Site::new("host", "entry_timeout=0,attr_timeout=0");
    let (mount, host) = (site.at.join("f"), site.folder.path("source").join("f"));
    let root = File::open(&site.at).expect("the root can be opened");
    let (mut numbers, mut handles) = (std::collections::BTreeSet::new(), vec![]);
    for round in 0..300 {
        let path = if round % 2 == 0 { &mount } else { &host };
        fs::write(path, "text").expect("the file is created");
        numbers.insert(fs::metadata(&host).expect("the file exists").ino());
        let now = handle(&mount);
        let seen = handles.iter().any(|old: &FileHandle| old.bytes() == now.bytes());
        assert!(!seen, "round {round}: an earlier file has this handle");
        handles.push(now);
        fs::remove_file(if round % 3 == 0 { &host } else { &mount }).expect("the file exists");
        if round % 50 == 49 {
            fs::write(&host, "last").expect("the file is created");
            for what in [Forgotten::ByKernel, Forgotten::ByBoth] {
                site.forget(what);
                let open = |old: &&FileHandle| old.open(root.as_fd(), OFlags::RDONLY).is_ok();
                assert_eq!(handles.iter().filter(open).count(), 0, "round {round} {what:?}");
            }
            fs::remove_file(&host).expect("the file exists");
        }
    }
    assert!(numbers.len() < handles.len(), "control: the host reuses inode numbers");
}

/// A forged handle with the inode number of a file outside of the shared directory must be refused.
#[test]
fn handle_with_a_number_from_outside_of_the_root_is_stale() {
    if !can_mount() {
        return;
    }
    let site = Site::new("host", "default_permissions");
    fs::write(site.at.join("inside"), "text").expect("the file is created");
    let (secret, dir) = (site.folder.path("secret"), site.folder.path("dir"));
    fs::write(&secret, "secret").expect("the file is created");
    fs::create_dir(&dir).expect("the directory is created");
    let root = File::open(&site.at).expect("the root can be opened");
    let own = handle(&site.at.join("inside"));
    let host = handle(&site.folder.path("source").join("inside"));
    for path in [&secret, &dir, &site.folder.0] {
        let outside = handle(path);
        if (host.kind(), host.bytes().len()) != (1, 8) {
            skip(Need::Machine, "the host is no ext4");
            return;
        }
        // A file handle of FUSE is the high and the low half of the inode number, and the
        // generation, as words of 32 bits.
        let ino = fs::metadata(path).expect("the file exists").ino();
        let words = [(ino >> 32) as u32, ino as u32].map(u32::to_ne_bytes).concat();
        let forged = [&words, &outside.bytes()[4..8]].concat();
        assert_eq!(own.bytes().len(), forged.len(), "control");
        let opened = own.with_bytes(&forged).open(root.as_fd(), OFlags::PATH);
        assert_eq!(opened.err(), Some(Errno::STALE), "{path:?}");
    }
    // Control: for a file inside of the shared directory, a handle that is built in the same way
    // must be valid.
    let ino = fs::metadata(site.at.join("inside")).expect("the file exists").ino();
    let words = [(ino >> 32) as u32, ino as u32].map(u32::to_ne_bytes).concat();
    assert_eq!([&words, &host.bytes()[4..8]].concat(), own.bytes());
    site.forget(Forgotten::ByBoth);
    assert_eq!(resolve(&site.at, &own), Ok("text".into()));
}
