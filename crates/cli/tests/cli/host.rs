//! Tests of a mounted directory of the host, while the host changes the directory as well.

use corewalk_testkit::require::{Need, skip};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::process::Command;

use crate::fixtures::{Folder, PROGRAM, Server, can_mount, run};

/// With these options the kernel caches nothing, so outdated results come from the cache of the
/// server.
const KEEP_NOTHING: &str = "entry_timeout=0,attr_timeout=0";

fn mounted(folder: &Folder, options: &str) -> Server {
    fs::create_dir(folder.path("host")).expect("the directory is created");
    let source = folder.path("host").display().to_string();
    Server::of(&source, &["-o", options], &folder.path("m"))
}

fn kind_of<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn mount_shows_changes_that_the_host_makes() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let server_checks = format!("{KEEP_NOTHING},no_default_permissions");
    for options in [KEEP_NOTHING, &server_checks] {
        let mut server = mounted(&folder, options);
        let (host, mount) = (folder.path("host"), folder.path("m"));
        files_come_and_go(&host, &mount);
        directories_come_and_go(&host, &mount);
        assert!(Command::new("umount").arg(&mount).status().expect("umount runs").success());
        assert!(server.wait().success());
        fs::remove_dir_all(host).expect("the test owns it");
    }
}

fn files_come_and_go(host: &Path, mount: &Path) {
    let read = |name: &str| fs::read(mount.join(name));
    let missing = Some(ErrorKind::NotFound);
    assert_eq!(kind_of(read("file")), missing);
    fs::write(host.join("file"), "one").expect("the file is created");
    assert_eq!(read("file").expect("the file appeared"), b"one");
    fs::write(host.join("other"), "two").expect("the file is created");
    fs::rename(host.join("other"), host.join("file")).expect("both exist");
    assert_eq!(read("file").expect("the file was replaced"), b"two");
    fs::remove_file(host.join("file")).expect("the file exists");
    assert_eq!(kind_of(read("file")), missing);
    assert_eq!(kind_of(fs::remove_file(mount.join("file"))), missing);
    fs::write(host.join("file"), "three").expect("the file is created");
    assert_eq!(kind_of(File::create_new(mount.join("file"))), Some(ErrorKind::AlreadyExists));
    let mut opened = OpenOptions::new();
    let mut opened = opened.read(true).append(true).create(true).open(mount.join("file"));
    let mut text = String::new();
    opened
        .as_mut()
        .expect("the file appeared")
        .read_to_string(&mut text)
        .expect("the file is readable");
    assert_eq!(text, "three");
    assert_eq!(kind_of(fs::metadata(mount.join("link"))), missing);
    fs::write(host.join("link"), "four").expect("the file is created");
    let linked = fs::hard_link(mount.join("file"), mount.join("link"));
    assert_eq!(kind_of(linked), Some(ErrorKind::AlreadyExists));
    fs::remove_file(host.join("link")).expect("the file exists");
    fs::rename(mount.join("file"), mount.join("link")).expect("the target does not exist");
    assert_eq!(fs::read(host.join("link")).expect("the name was renamed"), b"three");
}

fn directories_come_and_go(host: &Path, mount: &Path) {
    fs::create_dir_all(host.join("a/b")).expect("the directories are created");
    fs::write(host.join("a/b/file"), "deep").expect("the file is created");
    assert_eq!(fs::read(mount.join("a/b/file")).expect("the file appeared"), b"deep");
    fs::rename(host.join("a"), host.join("c")).expect("the file exists");
    assert_eq!(kind_of(fs::read(mount.join("a/b/file"))), Some(ErrorKind::NotFound));
    assert_eq!(fs::read(mount.join("c/b/file")).expect("the name was renamed"), b"deep");
    fs::create_dir_all(host.join("a/b")).expect("the names are free");
    fs::write(host.join("a/b/file"), "other").expect("the file is created");
    assert_eq!(fs::read(mount.join("a/b/file")).expect("the file appeared"), b"other");
    assert_eq!(fs::read(mount.join("c/b/file")).expect("the directory did not move"), b"deep");
    fs::remove_dir_all(host.join("a")).expect("the directory exists");
    assert_eq!(kind_of(fs::remove_dir(mount.join("a"))), Some(ErrorKind::NotFound));
    let mut names: Vec<_> =
        fs::read_dir(mount).expect("the root can be opened").flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    assert_eq!(names.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["c", "link"]);
}

/// The server does not enter a file system that is mounted in its directory. A listing must still
/// show the mount point and the names after it.
#[test]
fn directory_with_another_file_system_in_it_is_listed() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    for readdirplus in ["readdirplus=yes", "readdirplus=no"] {
        let mut server = mounted(&folder, readdirplus);
        let host = folder.path("host");
        for name in ["a", "m", "z"] {
            fs::create_dir(host.join(name)).expect("the directory is created");
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "none"]).arg(host.join("m"));
        if !run(mount).status.success() {
            skip(Need::Root, "no tmpfs can be mounted");
            return;
        }
        let listed = fs::read_dir(folder.path("m")).expect("the root can be opened");
        let mut listed: Vec<_> =
            listed.map(|entry| entry.expect("the entry can be read")).collect();
        listed.sort_by_key(fs::DirEntry::file_name);
        assert_eq!(listed.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["a", "m", "z"]);
        assert!(
            listed.iter().all(|entry| entry.file_type().expect("the entry has a type").is_dir())
        );
        let is_found = |name: &str| fs::metadata(folder.path("m").join(name)).is_ok();
        assert_eq!(["a", "m", "z"].map(is_found), [true, false, true]);
        drop(listed);
        // umount(8) fails if the server still has a descriptor open in the file system.
        for path in [host.join("m"), folder.path("m")] {
            let umount = Command::new("umount").arg(&path).output().expect("umount runs");
            assert!(umount.status.success(), "{}", String::from_utf8_lossy(&umount.stderr));
        }
        assert!(server.wait().success());
        fs::remove_dir_all(host).expect("the test owns it");
    }
}

/// If a server's own mount is inside the shared directory, a request to it would wait for the
/// server itself. So the server must not enter it.
#[test]
fn mount_point_below_its_own_source_does_not_wait_for_itself() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let host = folder.path("host");
    let mount = host.join("m");
    fs::create_dir_all(&mount).expect("the directories are created");
    fs::write(host.join("file"), "x").expect("the file is created");
    let source = host.display().to_string();
    let options = format!("{KEEP_NOTHING},threads=1");
    let mut server = Server::of(&source, &["-o", &options], &mount);
    let refused = |script: &str| {
        let mut command = Command::new("sh");
        command
            .env("LC_ALL", "C")
            .args(["-c", script, "sh"])
            .arg(mount.join("m"))
            .arg(mount.join("file"));
        let printed = String::from_utf8(run(command).stderr).expect("the output is UTF-8");
        assert!(printed.contains("Invalid cross-device link"), "{script}: {printed}");
    };
    refused("stat \"$1\"");
    refused("ls -l \"$1\"");
    refused("rmdir \"$1\"");
    refused("cat \"$1/file\"");
    assert_eq!(fs::read(mount.join("file")).expect("other files are served"), b"x");
    assert_eq!(fs::read_dir(&mount).expect("the directory can be read").count(), 2);
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
}

#[test]
fn directory_is_mounted_on_itself() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let host = folder.path("host");
    fs::create_dir_all(host.join("dir")).expect("the directories are created");
    let source = host.display().to_string();
    let options = format!("{KEEP_NOTHING},threads=1");
    let mut server = Server::of(&source, &["-o", &options], &host);
    fs::write(host.join("dir/file"), "x").expect("the file is created");
    assert_eq!(fs::read(host.join("dir/file")).expect("the file was created"), b"x");
    assert_eq!(fs::read_dir(&host).expect("the directory can be read").count(), 1);
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(fs::read(host.join("dir/file")).expect("the file is in the directory below"), b"x");
}

/// The shared directory is in another FUSE mount, which changes attributes without a notice to the
/// kernel. The server must show the current attributes.
#[test]
fn directory_on_another_mount_shows_its_current_attributes() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    // The lower mount has a long entry timeout, so the kernel does not look names up in it again.
    // Such a lookup would renew the attributes, and so hide an outdated answer of the upper mount.
    let _below = mounted(&folder, "entry_timeout=600,attr_timeout=0");
    let (host, below, above) = (folder.path("host"), folder.path("m"), folder.path("above"));
    fs::write(host.join("file"), "").expect("the file is created");
    let _above = Server::of(&below.display().to_string(), &["-o", KEEP_NOTHING], &above);
    for size in 0..10 {
        fs::write(host.join("file"), "x".repeat(size)).expect("the file exists");
        let seen = fs::metadata(above.join("file")).expect("the file exists");
        assert_eq!(seen.len(), size as u64);
    }
}

/// A client with many open files must not make other calls fail. Trap X10 in `traps.md`.
#[test]
fn client_with_many_open_files_does_not_stop_other_calls() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (host, mount) = (folder.path("host"), folder.path("m"));
    for i in 0..100 {
        fs::create_dir_all(host.join(format!("d{i}"))).expect("the directory is created");
        fs::write(host.join(format!("d{i}/f")), "text").expect("the file is created");
    }
    let mut command = Command::new("sh");
    command.args(["-c", "ulimit -n 64 && exec \"$@\"", "sh", PROGRAM, "mount"]);
    command.args([&host, &mount]).args(["-o", KEEP_NOTHING]);
    let mut server = Server::run(command);
    let mut opened = Vec::new();
    let refused = loop {
        match File::open(mount.join(format!("d{}/f", opened.len()))) {
            Ok(file) => opened.push(file),
            Err(error) => break error,
        }
        assert!(opened.len() < 64, "there is no limit");
    };
    assert_eq!(refused.raw_os_error(), Some(rustix::io::Errno::NFILE.raw_os_error()));
    assert!(opened.len() >= 8, "{} files are open", opened.len());
    for i in 50..100 {
        let path = |name: &str| mount.join(format!("d{i}/{name}"));
        assert_eq!(
            fs::read_dir(mount.join(format!("d{i}"))).expect("the directory can be read").count(),
            1
        );
        fs::create_dir(path("made")).expect("the directory is created");
        std::os::unix::fs::symlink("f", path("link")).expect("the link is created");
        fs::rename(path("made"), path("renamed")).expect("the directory can be renamed");
        fs::remove_dir(path("renamed")).expect("the directory can be removed");
        assert_eq!(fs::metadata(path("link")).expect("the link leads to a file").len(), 4);
    }
    opened.pop();
    assert_eq!(fs::read(mount.join("d70/f")).expect("there is a free descriptor"), b"text");
    drop(opened);
    assert!(Command::new("umount").arg(&mount).status().expect("umount runs").success());
    assert!(server.wait().success());
}

#[test]
fn working_directory_that_the_host_renames_can_be_used() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    let (host, mount) = (folder.path("host"), folder.path("m"));
    let mut server = mounted(&folder, KEEP_NOTHING);
    fs::create_dir_all(host.join("a/held")).expect("the directories are created");
    fs::write(host.join("a/held/file"), "text").expect("the file is created");
    for i in 0..200 {
        fs::create_dir(host.join(format!("d{i}"))).expect("the directory is created");
    }
    let script = "cd a/held && ls >/dev/null && (cd ../.. && ls d* >/dev/null) && \
                  mv \"$1/a/held\" \"$1/moved\" && ls && cat file && echo new >made && cat made";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&host).current_dir(&mount);
    let output = run(command);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.is_empty(), "{printed}");
    assert_eq!(output.stdout, b"file\ntextnew\n");
    assert_eq!(fs::read(host.join("moved/made")).expect("the file was created"), b"new\n");
    assert!(Command::new("umount").arg(&mount).status().expect("umount runs").success());
    assert!(server.wait().success());
}
