//! File handles of a mount, after the kernel has forgotten the inodes; the host's tmpfs is the oracle.
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

/// The files that handles are taken of: names below the root, and whether each is a directory.
const FILES: [(&str, bool); 5] =
    [("a", true), ("a/b", true), ("a/b/c", true), ("a/b/c/file", false), ("top", false)];
/// The attribute of the root of a mount that evicts, when it is set, all that the server has cached and that is not in use.
const PRUNE: &str = "user.corewalk.prune";

/// How much is forgotten before a handle is opened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Forgotten {
    /// The cache of the kernel.
    ByKernel,
    /// The cache of the kernel and that of the server.
    ByBoth,
}

/// Has the kernel drop what it knows of `mount` and no process uses, and perhaps the server too. To remount drops the
/// names of that mount alone; the machine may have other work to do.
fn forget(mount: &Path, what: Forgotten) {
    for _ in 0..2 {
        // Two times: the server drops a directory after what is in it.
        mount_remount(mount, MountFlags::empty(), c"").expect("root may");
        if what == Forgotten::ByBoth {
            rustix::fs::setxattr(mount, PRUNE, b"1", XattrFlags::empty()).expect("root may");
        }
    }
}

fn handle(path: &Path) -> FileHandle {
    let file = rustix::fs::open(path, OFlags::PATH | OFlags::NOFOLLOW, rustix::fs::Mode::empty());
    FileHandle::of(file.expect("it is there").as_fd(), b"").expect("mounts have handles")
}

fn make_files(root: &Path) {
    for (name, is_dir) in FILES {
        match is_dir {
            true => fs::create_dir(root.join(name)).expect("a folder"),
            false => fs::write(root.join(name), name).expect("a file"),
        }
    }
}

/// Returns what a handle leads to: the content of a file, or the path and the names of a directory.
fn found(mount: &Path, handle: &FileHandle) -> Result<String, Errno> {
    let root = File::open(mount).expect("the root");
    let mut file = File::from(handle.open(root.as_fd(), OFlags::RDONLY)?);
    let is_dir = file.metadata().expect("an open file").is_dir();
    if !is_dir {
        let mut text = String::new();
        file.read_to_string(&mut text).expect("it can be read");
        return Ok(text);
    }
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    let place = fs::read_link(&path).expect("an open directory");
    let place = place.strip_prefix(mount).expect("it is below the root").to_owned();
    let mut names: Vec<_> = fs::read_dir(&path)
        .expect("it can be read")
        .map(|entry| entry.expect("a name").file_name().into_string().expect("text"))
        .collect();
    names.sort();
    if let Some(parent) = place.parent() {
        let above = fs::metadata(Path::new(&path).join("..")).expect("it has one").ino();
        let expected = fs::metadata(mount.join(parent)).expect("it is there").ino();
        assert_eq!(above, expected, "{place:?}/..");
    }
    Ok(format!("{} {names:?}", place.display()))
}

/// A file system to try, mounted at `at`.
struct Site {
    at: PathBuf,
    _server: Option<Server>,
    folder: Folder,
}

impl Site {
    fn new(source: &str, options: &str) -> Site {
        let folder = Folder::new();
        let (at, below) = (folder.path("m"), folder.path("source"));
        fs::create_dir(&below).expect("a folder");
        if source == "oracle" {
            fs::create_dir(&at).expect("a folder");
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
            None => mount_remount(&self.at, MountFlags::empty(), c"").expect("root may"),
        }
    }
}

/// Returns what handles lead to that were taken before changes and after the caches were dropped.
fn collect_found(source: &str, options: &str, what: Forgotten) -> Vec<Result<String, Errno>> {
    let site = Site::new(source, options);
    let (at, path) = (&site.at, |name: &str| site.at.join(name));
    make_files(at);
    let handles = FILES.map(|(name, _)| handle(&path(name)));
    let root = handle(at);
    let mut all = vec![];
    let mut look = || {
        for handle in handles.iter().chain([&root]) {
            // Each alone: one that is found has others found by their names.
            site.forget(what);
            all.push(found(at, handle));
        }
    };
    look();
    // Moved, below another directory and to another name.
    fs::create_dir(path("d")).expect("a folder");
    fs::rename(path("a/b"), path("d/moved")).expect("both are there");
    fs::rename(path("top"), path("d/moved/top")).expect("both are there");
    look();
    // Removed, and others are made in their places.
    fs::remove_file(path("d/moved/c/file")).expect("it is there");
    fs::remove_dir(path("d/moved/c")).expect("it is empty");
    fs::remove_file(path("d/moved/top")).expect("it is there");
    for i in 0..100 {
        fs::write(path(&format!("new{i}")), "another").expect("a file");
    }
    look();
    drop(site.folder);
    all
}

fn assert_as_oracle(source: &str, options: &str) {
    if !can_mount() {
        return;
    }
    let expected = collect_found("oracle", "", Forgotten::ByKernel);
    assert_eq!(expected.iter().filter(|found| **found == Err(Errno::STALE)).count(), 3, "control");
    for what in [Forgotten::ByKernel, Forgotten::ByBoth] {
        assert_eq!(collect_found(source, options, what), expected, "{source} {options} {what:?}");
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

/// Trap P11. The host uses the number of a removed file again at once, and clocks of files tick seldom.
#[test]
fn handle_of_a_removed_file_never_leads_to_one_with_its_number() {
    if !can_mount() {
        return;
    }
    // The kernel is to ask for the name each time, since the file changes behind it.
    let site = Site::new("host", "entry_timeout=0,attr_timeout=0");
    let (mount, host) = (site.at.join("f"), site.folder.path("source").join("f"));
    let root = File::open(&site.at).expect("the root");
    let (mut numbers, mut handles) = (std::collections::BTreeSet::new(), vec![]);
    for round in 0..300 {
        // In turns by the mount and behind it.
        let path = if round % 2 == 0 { &mount } else { &host };
        fs::write(path, "text").expect("a file");
        numbers.insert(fs::metadata(&host).expect("it is there").ino());
        let now = handle(&mount);
        let seen = handles.iter().any(|old: &FileHandle| old.bytes() == now.bytes());
        assert!(!seen, "round {round}: an earlier file has this handle");
        handles.push(now);
        fs::remove_file(if round % 3 == 0 { &host } else { &mount }).expect("it is there");
        if round % 50 == 49 {
            fs::write(&host, "last").expect("a file");
            for what in [Forgotten::ByKernel, Forgotten::ByBoth] {
                site.forget(what);
                let open = |old: &&FileHandle| old.open(root.as_fd(), OFlags::RDONLY).is_ok();
                assert_eq!(handles.iter().filter(open).count(), 0, "round {round} {what:?}");
            }
            fs::remove_file(&host).expect("it is there");
        }
    }
    assert!(numbers.len() < handles.len(), "control: numbers come again");
}

/// The number of a file of the same file system that is not beneath the root is no way out.
#[test]
fn handle_with_a_number_from_outside_of_the_root_is_stale() {
    if !can_mount() {
        return;
    }
    let site = Site::new("host", "default_permissions");
    fs::write(site.at.join("inside"), "text").expect("a file");
    let (secret, dir) = (site.folder.path("secret"), site.folder.path("dir"));
    fs::write(&secret, "secret").expect("a file");
    fs::create_dir(&dir).expect("a folder");
    let root = File::open(&site.at).expect("the root");
    let own = handle(&site.at.join("inside"));
    let host = handle(&site.folder.path("source").join("inside"));
    for path in [&secret, &dir, &site.folder.0] {
        let outside = handle(path);
        if (host.kind(), host.bytes().len()) != (1, 8) {
            skip(Need::Machine, "the host is no ext4");
            return;
        }
        // As `struct fuse_inode_handle` is encoded: number in two words, high one first, then the generation.
        let ino = fs::metadata(path).expect("it is there").ino();
        let words = [(ino >> 32) as u32, ino as u32].map(u32::to_ne_bytes).concat();
        let forged = [&words, &outside.bytes()[4..8]].concat();
        assert_eq!(own.bytes().len(), forged.len(), "control");
        let opened = own.with_bytes(&forged).open(root.as_fd(), OFlags::PATH);
        assert_eq!(opened.err(), Some(Errno::STALE), "{path:?}");
    }
    // Control: made in the same way, that of a file inside is as the kernel makes it.
    let ino = fs::metadata(site.at.join("inside")).expect("it is there").ino();
    let words = [(ino >> 32) as u32, ino as u32].map(u32::to_ne_bytes).concat();
    assert_eq!([&words, &host.bytes()[4..8]].concat(), own.bytes());
    site.forget(Forgotten::ByBoth);
    assert_eq!(found(&site.at, &own), Ok("text".into()));
}
