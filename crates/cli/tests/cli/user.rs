//! Tests of mounts by users other than root, through fusermount3(1).
//!
//! Each test starts as root, enters a new mount namespace, and becomes the user `nobody`. In the
//! namespace `/dev/fuse` is open to all users, as udev sets it up. The mounts of the namespace end
//! with the test.

use corewalk_testkit::require::has_program;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::{Folder, PROGRAM, can_mount, run};

const NOBODY: u32 = 65534;

/// A script that prepares `/dev/fuse` and runs a command as the user `nobody`. `$1` is an empty
/// directory, and the other arguments are the command.
const PREPARE: &str = r#"
set -eu
mount -t tmpfs -o dev,mode=755 none "$1"
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"
"#;

/// Functions for the scripts of the tests. A script runs in a directory that belongs to the user.
const FUNCTIONS: &str = r#"
set -eu
fail() { echo "failed: $*" >&2; exit 1; }
is_mounted() { grep -q " $PWD/$1 " /proc/self/mountinfo; }
# Mounts SOURCE on MOUNTPOINT and waits for the line of the server.
start() {
    : > line
    "$PROGRAM" mount "$@" > line 2> stderr &
    server=$!
    until grep -q '^mounted ' line; do
        kill -0 "$server" 2> /dev/null || fail "the server ended: $(cat stderr)"
        sleep 0.02
    done
}
# Waits for the server, and checks that the mount has ended.
ended() {
    wait "$server" || fail "the server failed: $(cat stderr)"
    ! is_mounted "$1" || fail "$1 is still mounted"
}
"#;

struct User {
    folder: Folder,
    program: PathBuf,
}

impl User {
    fn new() -> Option<User> {
        if !can_mount() || !["unshare", "setpriv"].into_iter().all(has_program) {
            return None;
        }
        let folder = Folder::new();
        fs::create_dir(folder.path("dev")).expect("the directory is created");
        fs::create_dir(folder.path("home")).expect("the directory is created");
        std::os::unix::fs::chown(folder.path("home"), Some(NOBODY), Some(NOBODY))
            .expect("root is permitted to");
        let program = folder.path("corewalk");
        fs::copy(PROGRAM, &program).expect("the file is copied");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755))
            .expect("the test owns the file");
        Some(User { folder, program })
    }

    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", PREPARE, "sh"]);
        command.arg(self.folder.path("dev")).args(words);
        command.current_dir(self.folder.path("home")).env("PROGRAM", &self.program);
        command
    }

    fn shell(&self, script: &str) {
        let output = run(self.command(&["sh", "-c", &format!("{FUNCTIONS}\n{script}")]));
        let printed = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{printed}");
        assert_eq!(printed, "");
        let has_leaked = !self.folder.mounts().is_empty();
        assert!(!has_leaked, "a mount is visible outside of the namespace");
    }
}

#[test]
fn user_mounts_uses_and_unmounts_a_tmpfs() {
    if !has_program("fusermount3") {
        return;
    }
    let Some(user) = User::new() else { return };
    user.shell(
        r#"
for end in 'fusermount3 -u m' 'kill -TERM $server' 'kill -INT $server'; do
    start tmpfs m -o size=1m
    test "$(cat line)" = 'mounted tmpfs on m'
    grep -q " $PWD/m .*nosuid,nodev.* - fuse.corewalk tmpfs " /proc/self/mountinfo
    test "$(stat -c %U:%a m)" = nobody:1777
    mkdir m/d
    echo text > m/d/file
    ln -s d/file m/link
    mv m/d m/e
    test "$(cat m/e/file)" = text
    test "$(readlink m/link)" = d/file
    chmod 600 m/e/file
    ! chown 0 m/e/file 2> /dev/null || fail "a user gave a file away"
    test "$("$PROGRAM" stat m --json | grep -c '"entries":')" = 1
    eval "$end"
    ended m
    test ! -e m || fail "the folder that was made is left"
done
"#,
    );
}

#[test]
fn user_mounts_a_directory_and_a_tmpfs_in_the_background() {
    if !has_program("fusermount3") {
        return;
    }
    let Some(user) = User::new() else { return };
    user.shell(
        r#"
mkdir 'from, here' m
echo text > 'from, here/file'
start "$PWD/from, here" m
grep -qF " - fuse.corewalk $PWD/from,\\040here " /proc/self/mountinfo || fail "$(tail -n 1 /proc/self/mountinfo)"
test "$(cat m/file)" = text
echo more >> m/file
fusermount3 -u m
ended m
test "$(tail -n 1 'from, here/file')" = more
"$PROGRAM" mount tmpfs m --daemon > line
is_mounted m || fail "there is no daemon"
echo text > m/file
# A file is open: the mount is detached, and the server ends after the last close.
exec 3< m/file
fusermount3 -uz m
read -r text <&3
test "$text" = text
exec 3<&-
"#,
    );
}

#[test]
fn errors_of_a_user_name_the_missing_permission() {
    let Some(user) = User::new() else { return };
    let program = user.program.to_str().expect("the path is UTF-8");
    let refused = |path: &Path, words: &str| {
        let path = path.to_str().expect("the path is UTF-8");
        user.folder.assert_refused(user.command(&[program, "mount", "tmpfs", path]), 1, words);
    };
    refused(&user.folder.path("new"), "Permission denied");
    let secret = user.folder.path("secret");
    fs::create_dir(&secret).expect("the directory is created");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700))
        .expect("the test owns the file");
    refused(&secret.join("m"), "Permission denied");
    fs::create_dir(user.folder.path("roots")).expect("the directory is created");
    let roots = user.folder.path("roots");
    if has_program("fusermount3") {
        refused(&roots, "user has no write access to mountpoint");
    }
    // The program must report that fusermount3 is missing, even if the user may not search the
    // directories in `PATH`.
    for path in [String::from("PATH=/nowhere"), format!("PATH={}", secret.display())] {
        let alone = user.command(&["env", &path, program, "mount", "tmpfs", "m"]);
        let output = run(alone);
        let printed = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{printed}");
        assert!(printed.ends_with("install fuse3\n"), "{printed}");
        assert!(!user.folder.path("home/m").exists(), "the mount point was not removed");
    }
    let forbidden = user.folder.path("forbidden");
    fs::create_dir(&forbidden).expect("the directory is created");
    fs::write(forbidden.join("fusermount3"), "").expect("the file is created");
    let path = format!("PATH={}", forbidden.display());
    let output = run(user.command(&["env", &path, program, "mount", "tmpfs", "m"]));
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(printed.contains("starting fusermount3: Permission denied"), "{printed}");
}
