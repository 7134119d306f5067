//! Users who are not root: fusermount3(1) mounts for them.
//!
//! The tests run as root and become nobody, in a mount namespace of their own: there `/dev/fuse` is
//! for everybody, as udev makes it, and whatever is mounted goes away with the test.

use corewalk_testkit::require::has_program;
use std::fs;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::fixtures::{Folder, PROGRAM, can_mount, run};

/// The user and group nobody.
const NOBODY: u32 = 65534;

/// Prepares the namespace in which a test runs; `$1` is an empty folder.
const PREPARE: &str = r#"
set -eu
mount -t tmpfs -o dev,mode=755 none "$1"
mknod -m 666 "$1/fuse" c 10 229
mount --bind "$1/fuse" /dev/fuse
shift
exec setpriv --reuid=65534 --regid=65534 --clear-groups -- "$@"
"#;

/// Functions for the scripts of users. The folder of the user is the working directory.
const FUNCTIONS: &str = r#"
set -eu
fail() { echo "failed: $*" >&2; exit 1; }
is_mounted() { grep -q " $PWD/$1 " /proc/self/mountinfo; }
# Starts a server of SOURCE on MOUNTPOINT and waits for its line.
start() {
    : > line
    "$PROGRAM" mount "$@" > line 2> said &
    server=$!
    until grep -q '^mounted ' line; do
        kill -0 "$server" 2> /dev/null || fail "the server ended: $(cat said)"
        sleep 0.02
    done
}
# Waits for the server; its mount is to be gone.
ended() {
    wait "$server" || fail "the server failed: $(cat said)"
    ! is_mounted "$1" || fail "$1 is still mounted"
}
"#;

/// What a user's namespace needs, with a folder that belongs to the user and a program that the user
/// may start.
struct User {
    folder: Folder,
    program: PathBuf,
}

impl User {
    /// Returns a user; None, after saying so, where that is not possible.
    fn new() -> Option<User> {
        if !can_mount() || !["unshare", "setpriv"].into_iter().all(has_program) {
            return None;
        }
        let folder = Folder::new();
        fs::create_dir(folder.path("dev")).expect("a folder");
        fs::create_dir(folder.path("home")).expect("a folder");
        std::os::unix::fs::chown(folder.path("home"), Some(NOBODY), Some(NOBODY)).expect("root");
        // The program itself may be where nobody is let in.
        let program = folder.path("corewalk");
        fs::copy(PROGRAM, &program).expect("a copy");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("it is ours");
        Some(User { folder, program })
    }

    /// Returns a command that runs as the user, in the user's folder.
    fn command(&self, words: &[&str]) -> Command {
        let mut command = Command::new("unshare");
        command.args(["--mount", "--propagation", "private", "--", "sh", "-c", PREPARE, "sh"]);
        command.arg(self.folder.path("dev")).args(words);
        command.current_dir(self.folder.path("home")).env("PROGRAM", &self.program);
        command
    }

    /// Runs a shell script as the user.
    fn shell(&self, script: &str) {
        let output = run(self.command(&["sh", "-c", &format!("{FUNCTIONS}\n{script}")]));
        let said = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{said}");
        assert_eq!(said, "");
        assert!(self.folder.mounts().is_empty(), "the namespace kept it");
    }
}

/// What the README says works for users, too: on a folder that does not exist yet.
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
fn user_mounts_a_folder_and_goes_to_the_background() {
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
# Files are open: the mount is detached, and the server ends with the last of them.
exec 3< m/file
fusermount3 -uz m
read -r text <&3
test "$text" = text
exec 3<&-
"#,
    );
}

#[test]
fn user_is_told_what_is_not_allowed() {
    let Some(user) = User::new() else { return };
    let program = user.program.to_str().expect("a plain path");
    let refused = |path: &Path, words: &str| {
        let path = path.to_str().expect("a plain path");
        user.folder.assert_refused(user.command(&[program, "mount", "tmpfs", path]), 1, words);
    };
    // Not the user's to make, and not to look into.
    refused(&user.folder.path("new"), "Permission denied");
    let secret = user.folder.path("secret");
    fs::create_dir(&secret).expect("a folder");
    fs::set_permissions(&secret, fs::Permissions::from_mode(0o700)).expect("it is ours");
    refused(&secret.join("m"), "Permission denied");
    fs::create_dir(user.folder.path("roots")).expect("a folder");
    let roots = user.folder.path("roots");
    if has_program("fusermount3") {
        refused(&roots, "user has no write access to mountpoint");
    }
    // Where nobody may look it is not either.
    for path in [String::from("PATH=/nowhere"), format!("PATH={}", secret.display())] {
        let alone = user.command(&["env", &path, program, "mount", "tmpfs", "m"]);
        let output = run(alone);
        let said = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{said}");
        assert!(said.ends_with("install fuse3\n"), "{said}");
        assert!(!user.folder.path("home/m").exists(), "the folder that was made is left");
    }
    let forbidden = user.folder.path("forbidden");
    fs::create_dir(&forbidden).expect("a folder");
    fs::write(forbidden.join("fusermount3"), "").expect("a file");
    let path = format!("PATH={}", forbidden.display());
    let output = run(user.command(&["env", &path, program, "mount", "tmpfs", "m"]));
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("starting fusermount3: Permission denied"), "{said}");
}
