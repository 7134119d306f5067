//! Tests of mistakes on the command line. The program must print one line that names the mistake,
//! and mount nothing.

use corewalk_testkit::require::has_program;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::{Folder, PROGRAM, Server, can_mount, corewalk, run};

#[test]
fn help_is_there_on_every_level() {
    for arguments in [
        &["--help"][..],
        &["mount", "--help"],
        &["fsck", "--help"],
        &["stat", "--help"],
        &["ipc", "--help"],
        &["ipc", "exec", "--help"],
        &["ipc", "ls", "--help"],
        &["ipc", "rm", "--help"],
        &["ipc", "stat", "--help"],
        &["ipc", "serve", "--help"],
        &["help", "mount"],
    ] {
        let output = run(corewalk(arguments));
        assert!(output.status.success(), "{arguments:?}");
        assert!(String::from_utf8_lossy(&output.stdout).contains("Usage: corewalk"));
        assert!(output.stderr.is_empty());
    }
    assert!(run(corewalk(&["--version"])).status.success());
}

#[test]
fn incomplete_command_line_is_a_usage_error() {
    let folder = Folder::new();
    for (arguments, words) in [
        (&["mount"][..], "not provided: <SOURCE> <MOUNTPOINT>"),
        (&["mount", "tmpfs"], "not provided: <MOUNTPOINT>"),
        (&["mount", "tmpfs", ""], "a value is required for '<MOUNTPOINT>'"),
        (&["mount", "tmpfs", "/nowhere", "-o"], "a value is required for '-o <OPTIONS>'"),
        (&["mount", "tmpfs", "/nowhere", "more"], "unexpected argument 'more'"),
        (&["mount", "--frobnicate", "tmpfs", "/nowhere"], "unexpected argument '--frobnicate'"),
        (&["mount", "--daemon=yes", "tmpfs", "/nowhere"], "unexpected value 'yes'"),
        (&["stat"], "not provided: <MOUNTPOINT>"),
        (&["stat", "/", "/"], "unexpected argument '/'"),
        (&["stat", "/", "--yaml"], "unexpected argument '--yaml'"),
        (&["frobnicate"], "unrecognized subcommand 'frobnicate'"),
        (&["--frobnicate"], "unexpected argument '--frobnicate'"),
    ] {
        folder.assert_refused(corewalk(arguments), 2, words);
    }
    let alone = run(corewalk(&[]));
    assert_eq!(alone.status.code(), Some(2));
    assert!(String::from_utf8_lossy(&alone.stderr).contains("Usage: corewalk"));
    assert!(alone.stdout.is_empty());
}

#[test]
fn arguments_that_are_not_utf_8_are_usage_errors() {
    let folder = Folder::new();
    let not_utf_8 = OsStr::from_bytes(b"\xff");
    let mut source = corewalk(&["mount"]);
    source.arg(not_utf_8).arg(folder.path("m"));
    folder.assert_refused(source, 2, "unknown source");
    let mut options = corewalk(&["mount", "tmpfs"]);
    options.arg(folder.path("m")).arg("-o").arg(not_utf_8);
    folder.assert_refused(options, 2, "options are not UTF-8");
}

#[test]
fn invalid_source_is_refused() {
    let folder = Folder::new();
    fs::write(folder.path("file"), "").expect("the file is created");
    let mount = |source: &str| {
        let mut command = corewalk(&["mount", source]);
        command.arg(folder.path("m")).current_dir(&folder.0);
        command
    };
    folder.assert_refused(mount("ext4"), 2, "unknown source 'ext4'");
    folder.assert_refused(mount(""), 2, "unknown source ''");
    folder.assert_refused(mount("TMPFS"), 2, "unknown source 'TMPFS'");
    folder.assert_refused(mount("s3://bucket"), 2, "unknown scheme in source 's3://bucket'");
    folder.assert_refused(mount("./missing"), 1, "./missing: No such file or directory");
    folder.assert_refused(mount("./file"), 1, "Not a directory");
    folder.assert_refused(mount("./file/below"), 1, "Not a directory");
    assert!(!folder.path("m").exists(), "the mount point was created");
}

#[test]
fn invalid_options_are_usage_errors() {
    let folder = Folder::new();
    let mount = |options: &str| {
        let mut command = corewalk(&["mount", "tmpfs"]);
        command.arg(folder.path("m")).args(["-o", options]);
        command
    };
    folder.assert_refused(mount("frobnicate"), 2, "unknown option 'frobnicate'");
    folder.assert_refused(mount("ro,size=much"), 2, "bad value in option 'size=much'");
    folder.assert_refused(mount("no_default_permissions,attr_timeout=1"), 2, "timeouts must be 0");
    let words = "'size=10MB'; it takes a number of bytes, such as 4096, 64k";
    folder.assert_refused(mount("size=10MB"), 2, words);
    folder.assert_refused(mount("size"), 2, "option 'size' needs a value");
    folder.assert_refused(mount("fsname="), 2, "option 'fsname' needs a value");
    folder.assert_refused(mount("allow_other=1"), 2, "option 'allow_other' takes no value");
    assert!(!folder.path("m").exists());
}

#[test]
fn options_that_the_source_does_not_support_are_usage_errors() {
    let folder = Folder::new();
    fs::create_dir(folder.path("h")).expect("the directory is created");
    let mount = |source: &str, option: &str| {
        let mut command = corewalk(&["mount", source, "m", "-o", option]);
        command.current_dir(&folder.0);
        command
    };
    for option in ["size=1m", "nr_inodes=3", "mode=0700", "uid=1000", "gid=1000", "commit=5"] {
        let name = option.split('=').next().unwrap_or_default();
        let words = format!("option '{name}' is not supported for a directory of the host");
        folder.assert_refused(mount("./h", &format!("ro,{option}")), 2, &words);
    }
    folder.assert_refused(mount("./h", "mbcache"), 2, "option 'mbcache' is not supported");
    let words = "option 'commit' is not supported for tmpfs";
    folder.assert_refused(mount("tmpfs", "commit=5"), 2, words);
    assert!(!folder.path("m").exists());
}

#[test]
fn invalid_mountpoint_is_refused() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    fs::write(folder.path("file"), "").expect("the file is created");
    fs::create_dir(folder.path("dir")).expect("the directory is created");
    let mount = |path: PathBuf| {
        let mut command = corewalk(&["mount", "tmpfs"]);
        command.arg(path);
        command
    };
    folder.assert_refused(mount(folder.path("file")), 1, "not a directory");
    folder.assert_refused(mount(folder.path("file/below")), 1, "Not a directory");
    let words = "cannot create the mount point: No such file or directory";
    folder.assert_refused(mount(folder.path("not/there")), 1, words);
    folder.assert_refused(mount(folder.path("line\nbreak/x")), 1, "line\\nbreak/x");
    let _first = Server::start(&[], &folder.path("dir"));
    folder.assert_refused(mount(folder.path("dir")), 1, "something is mounted there already");
    let mut daemon = mount(folder.path("dir"));
    daemon.arg("--daemon");
    folder.assert_refused(daemon, 1, "something is mounted there already");
}

#[test]
fn stat_of_a_path_that_is_no_mount_fails() {
    let folder = Folder::new();
    let stat = |path: PathBuf| {
        let mut command = corewalk(&["stat"]);
        command.arg(path);
        command
    };
    folder.assert_refused(stat(folder.path("missing")), 1, "No such file or directory");
    let words = "not the root directory of a corewalk mount";
    folder.assert_refused(stat(folder.0.clone()), 1, words);
}

#[test]
fn missing_device_is_reported() {
    if !can_mount() || !has_program("unshare") {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let with_dev = |prepare: &str| {
        let mut command = Command::new("unshare");
        let script = format!("mount -t tmpfs none /dev && {prepare} && exec \"$@\"");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &script, "sh"]);
        command.args([PROGRAM, "mount", "tmpfs"]).arg(&path);
        command
    };
    folder.assert_refused(with_dev("true"), 1, "no /dev/fuse");
    assert!(!path.exists(), "the mount point was not removed");
    // `/dev/fuse` is a directory.
    folder.assert_refused(with_dev("mkdir /dev/fuse"), 1, "opening /dev/fuse");
    assert!(Path::new("/dev/fuse").exists(), "the test hid the machine's own /dev");
}
