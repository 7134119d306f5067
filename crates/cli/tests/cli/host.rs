//! A mounted directory of the host that the host changes as well.

use corewalk_testkit::require::{Need, skip};
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read as _};
use std::path::Path;
use std::process::Command;

use crate::fixtures::{Folder, PROGRAM, Server, can_mount, run};

/// The kernel is to keep nothing: what is left to be wrong is what the server keeps.
const KEEP_NOTHING: &str = "entry_timeout=0,attr_timeout=0";

fn mounted(folder: &Folder, options: &str) -> Server {
    fs::create_dir(folder.path("host")).expect("a folder");
    let source = folder.path("host").display().to_string();
    Server::of(&source, &["-o", options], &folder.path("m"))
}

fn kind_of<T>(result: std::io::Result<T>) -> Option<ErrorKind> {
    result.err().map(|error| error.kind())
}

#[test]
fn names_that_the_host_changes_are_as_the_host_has_them() {
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
        assert!(Command::new("umount").arg(&mount).status().expect("umount").success());
        assert!(server.wait().success());
        fs::remove_dir_all(host).expect("it is the test's");
    }
}

fn files_come_and_go(host: &Path, mount: &Path) {
    let read = |name: &str| fs::read(mount.join(name));
    let missing = Some(ErrorKind::NotFound);
    assert_eq!(kind_of(read("file")), missing);
    fs::write(host.join("file"), "one").expect("a file");
    assert_eq!(read("file").expect("it came"), b"one");
    fs::write(host.join("other"), "two").expect("a file");
    fs::rename(host.join("other"), host.join("file")).expect("they are there");
    assert_eq!(read("file").expect("it was replaced"), b"two");
    fs::remove_file(host.join("file")).expect("it is there");
    assert_eq!(kind_of(read("file")), missing);
    assert_eq!(kind_of(fs::remove_file(mount.join("file"))), missing);
    // The mount has known that there is none.
    fs::write(host.join("file"), "three").expect("a file");
    assert_eq!(kind_of(File::create_new(mount.join("file"))), Some(ErrorKind::AlreadyExists));
    let mut opened = OpenOptions::new();
    let mut opened = opened.read(true).append(true).create(true).open(mount.join("file"));
    let mut text = String::new();
    opened.as_mut().expect("it came").read_to_string(&mut text).expect("it can be read");
    assert_eq!(text, "three");
    assert_eq!(kind_of(fs::metadata(mount.join("link"))), missing);
    fs::write(host.join("link"), "four").expect("a file");
    let linked = fs::hard_link(mount.join("file"), mount.join("link"));
    assert_eq!(kind_of(linked), Some(ErrorKind::AlreadyExists));
    fs::remove_file(host.join("link")).expect("it is there");
    fs::rename(mount.join("file"), mount.join("link")).expect("the name is free");
    assert_eq!(fs::read(host.join("link")).expect("it was renamed"), b"three");
}

fn directories_come_and_go(host: &Path, mount: &Path) {
    fs::create_dir_all(host.join("a/b")).expect("folders");
    fs::write(host.join("a/b/file"), "deep").expect("a file");
    assert_eq!(fs::read(mount.join("a/b/file")).expect("it came"), b"deep");
    fs::rename(host.join("a"), host.join("c")).expect("it is there");
    assert_eq!(kind_of(fs::read(mount.join("a/b/file"))), Some(ErrorKind::NotFound));
    assert_eq!(fs::read(mount.join("c/b/file")).expect("it was renamed"), b"deep");
    fs::create_dir_all(host.join("a/b")).expect("others of these names");
    fs::write(host.join("a/b/file"), "other").expect("a file");
    assert_eq!(fs::read(mount.join("a/b/file")).expect("it came"), b"other");
    assert_eq!(fs::read(mount.join("c/b/file")).expect("it is where it was"), b"deep");
    fs::remove_dir_all(host.join("a")).expect("it is there");
    assert_eq!(kind_of(fs::remove_dir(mount.join("a"))), Some(ErrorKind::NotFound));
    let mut names: Vec<_> = fs::read_dir(mount).expect("the root").flatten().collect();
    names.sort_by_key(fs::DirEntry::file_name);
    assert_eq!(names.iter().map(|entry| entry.file_name()).collect::<Vec<_>>(), ["c", "link"]);
}

/// One that cannot be looked up does not end the listing.
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
            fs::create_dir(host.join(name)).expect("a folder");
        }
        let mut mount = Command::new("mount");
        mount.args(["-t", "tmpfs", "none"]).arg(host.join("m"));
        if !run(mount).status.success() {
            skip(Need::Root, "no tmpfs can be mounted");
            return;
        }
        let listed = fs::read_dir(folder.path("m")).expect("the root");
        let mut listed: Vec<_> = listed.map(|entry| entry.expect("an entry")).collect();
        listed.sort_by_key(fs::DirEntry::file_name);
        assert_eq!(listed.iter().map(fs::DirEntry::file_name).collect::<Vec<_>>(), ["a", "m", "z"]);
        assert!(listed.iter().all(|entry| entry.file_type().expect("a type").is_dir()));
        let is_found = |name: &str| fs::metadata(folder.path("m").join(name)).is_ok();
        assert_eq!(["a", "m", "z"].map(is_found), [true, false, true]);
        drop(listed);
        // The server is not in its way.
        for path in [host.join("m"), folder.path("m")] {
            let umount = Command::new("umount").arg(&path).output().expect("umount");
            assert!(umount.status.success(), "{}", String::from_utf8_lossy(&umount.stderr));
        }
        assert!(server.wait().success());
        fs::remove_dir_all(host).expect("it is the test's");
    }
}

/// What is mounted in the directory is not served, but the server must not ask it to find that out: it
/// might be the only one who can answer.
#[test]
fn mount_point_below_its_own_source_does_not_wait_for_itself() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let host = folder.path("host");
    let mount = host.join("m");
    fs::create_dir_all(&mount).expect("folders");
    fs::write(host.join("file"), "x").expect("a file");
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
        let said = String::from_utf8(run(command).stderr).expect("text");
        assert!(said.contains("Invalid cross-device link"), "{script}: {said}");
    };
    refused("stat \"$1\"");
    refused("ls -l \"$1\"");
    refused("rmdir \"$1\"");
    refused("cat \"$1/file\"");
    assert_eq!(fs::read(mount.join("file")).expect("the others are served"), b"x");
    assert_eq!(fs::read_dir(&mount).expect("a folder").count(), 2);
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
    fs::create_dir_all(host.join("dir")).expect("folders");
    let source = host.display().to_string();
    let options = format!("{KEEP_NOTHING},threads=1");
    let mut server = Server::of(&source, &["-o", &options], &host);
    fs::write(host.join("dir/file"), "x").expect("a file");
    assert_eq!(fs::read(host.join("dir/file")).expect("it was made"), b"x");
    assert_eq!(fs::read_dir(&host).expect("a folder").count(), 1);
    server.signal(rustix::process::Signal::TERM);
    assert!(server.wait().success());
    assert_eq!(fs::read(host.join("dir/file")).expect("it is below as well"), b"x");
}

/// What is changed on another machine, or behind another server, the kernel hears when it asks.
#[test]
fn directory_on_another_mount_is_as_that_one_has_it() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    // To look up a name tells the attributes too.
    let _below = mounted(&folder, "entry_timeout=600,attr_timeout=0");
    let (host, below, above) = (folder.path("host"), folder.path("m"), folder.path("above"));
    fs::write(host.join("file"), "").expect("a file");
    let _above = Server::of(&below.display().to_string(), &["-o", KEEP_NOTHING], &above);
    for size in 0..10 {
        fs::write(host.join("file"), "x".repeat(size)).expect("it is there");
        let seen = fs::metadata(above.join("file")).expect("it is there");
        assert_eq!(seen.len(), size as u64);
    }
}

/// Trap X10: one client opens files until it may open no more, of a server with 64 descriptors.
/// That is `ENFILE`, and all other calls go on.
#[test]
fn files_that_one_client_has_open_stop_no_other_call() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (host, mount) = (folder.path("host"), folder.path("m"));
    for i in 0..100 {
        fs::create_dir_all(host.join(format!("d{i}"))).expect("a folder");
        fs::write(host.join(format!("d{i}/f")), "text").expect("a file");
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
        assert_eq!(fs::read_dir(mount.join(format!("d{i}"))).expect("a folder").count(), 1);
        fs::create_dir(path("made")).expect("a folder is made");
        std::os::unix::fs::symlink("f", path("link")).expect("a link is made");
        fs::rename(path("made"), path("renamed")).expect("it is renamed");
        fs::remove_dir(path("renamed")).expect("it is removed");
        assert_eq!(fs::metadata(path("link")).expect("its file").len(), 4);
    }
    opened.pop();
    assert_eq!(fs::read(mount.join("d70/f")).expect("one may be opened"), b"text");
    drop(opened);
    assert!(Command::new("umount").arg(&mount).status().expect("umount").success());
    assert!(server.wait().success());
}

/// A working directory, say, that another program renames on the host.
#[test]
fn held_directory_that_the_host_renames_can_be_used() {
    if !can_mount() || !rustix::process::geteuid().is_root() {
        return;
    }
    let folder = Folder::new();
    let (host, mount) = (folder.path("host"), folder.path("m"));
    let mut server = mounted(&folder, KEEP_NOTHING);
    fs::create_dir_all(host.join("a/held")).expect("folders");
    fs::write(host.join("a/held/file"), "text").expect("a file");
    // Further directories, so that the server keeps no descriptor of the first.
    for i in 0..200 {
        fs::create_dir(host.join(format!("d{i}"))).expect("a folder");
    }
    let script = "cd a/held && ls >/dev/null && (cd ../.. && ls d* >/dev/null) && \
                  mv \"$1/a/held\" \"$1/moved\" && ls && cat file && echo new >made && cat made";
    let mut command = Command::new("sh");
    command.args(["-c", script, "sh"]).arg(&host).current_dir(&mount);
    let output = run(command);
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && said.is_empty(), "{said}");
    assert_eq!(output.stdout, b"file\ntextnew\n");
    assert_eq!(fs::read(host.join("moved/made")).expect("it was made"), b"new\n");
    assert!(Command::new("umount").arg(&mount).status().expect("umount").success());
    assert!(server.wait().success());
}
