//! Tests of the program as an external helper of mount(8).

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt as _;
use std::process::Command;
use std::time::Instant;

use corewalk_base::primitives::thread;
use corewalk_testkit::fuzz::Fuzz;
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::require::has_program;

use crate::fixtures::{Folder, LIMIT, PROGRAM, can_mount, corewalk, is_mounted, run};

fn scene() -> Folder {
    let folder = Folder::new();
    std::os::unix::fs::symlink(PROGRAM, folder.path("mount.corewalk"))
        .expect("the link is created");
    folder
}

fn helper<S: AsRef<OsStr>>(folder: &Folder, arguments: &[S]) -> Command {
    let mut command = Command::new(folder.path("mount.corewalk"));
    command.args(arguments).current_dir(&folder.0);
    command
}

#[test]
fn helper_mounts_in_the_background() {
    if !can_mount() {
        return;
    }
    let folder = scene();
    let path = folder.path("m");
    for (flags, printed) in [(&["-n"][..], ""), (&["-v", "-s"], "mounted tmpfs on m\n")] {
        let options = ["tmpfs", "m", "-o", "rw,size=1m,nofail", "-t", "corewalk"];
        let output = run(helper(&folder, &[&options[..], flags].concat()));
        assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
        assert_eq!(String::from_utf8_lossy(&output.stdout), printed);
        assert!(is_mounted(&path));
        folder.assert_refused(helper(&folder, &["tmpfs", "m"]), 32, "mounted there already");
        assert!(Command::new("umount").arg(&path).status().expect("umount runs").success());
        let begin = Instant::now();
        while path.exists() {
            assert!(begin.elapsed() < LIMIT, "the daemon does not remove the mount point");
            thread::yield_now();
        }
    }
}

#[test]
fn helper_exits_with_the_statuses_of_mount() {
    let folder = scene();
    let refused = |arguments: &[&str], status, words: &str| {
        folder.assert_refused(helper(&folder, arguments), status, words);
    };
    refused(&["tmpfs"], 1, "not provided: <MOUNTPOINT>");
    refused(&["tmpfs", "m", "-o", "frobnicate"], 1, "unknown option 'frobnicate'");
    refused(&["tmpfs", "m", "-f", "-o", "frobnicate"], 1, "unknown option 'frobnicate'");
    refused(&["./none", "m"], 32, "./none: No such file");
    refused(&["tmpfs", "not/there"], 32, "No such file");
    let fake = run(helper(&folder, &["tmpfs", "m", "-f", "-o", "ro"]));
    assert!(fake.status.success() && fake.stdout.is_empty());
    assert!(!folder.path("m").exists() && folder.mounts().is_empty());
}

/// Random command lines of mount(8) must be accepted, or refused with one line. With `-f` the
/// program mounts nothing.
#[test]
fn fuzz_lines_of_fstab_are_accepted_or_refused_with_one_line() {
    let folder = scene();
    let words: [&[u8]; 8] =
        [b" ", b"\t", b"tmpfs", b"store:", b"size=64m", b",nofail", b"-o", b"\\040"];
    let answers = Fuzz::of("fstab").words(&words).runs(150).run(|input| {
        let plain: Vec<u8> = input.iter().copied().filter(|byte| *byte != 0).take(4_096).collect();
        let mut fields = plain.split(u8::is_ascii_whitespace).filter(|field| !field.is_empty());
        let mut field = || OsStr::from_bytes(fields.next().unwrap_or(b"none"));
        let (spec, file, _type, options) = (field(), field(), field(), field());
        let line = [OsStr::new("-f"), spec, file, OsStr::new("-o"), options];
        let output = run(helper(&folder, &line));
        let printed = String::from_utf8_lossy(&output.stderr).into_owned();
        let status = output.status.code();
        let is_accepted = status == Some(0);
        assert!(is_accepted || status == Some(1) || status == Some(32), "{status:?}: {printed}");
        assert!(is_accepted || printed.lines().count() == 1, "{printed}");
        status
    });
    assert!(answers.contains_key(&Some(0)) && answers.contains_key(&Some(1)), "{answers:?}");
}

#[test]
fn line_of_fstab_is_mounted() {
    if !can_mount() || !["unshare", "mount"].into_iter().all(has_program) {
        return;
    }
    let folder = scene();
    let script = r#"
echo "store:$PWD/s $PWD/m corewalk size=64m,nofail,x-mine 0 0" > fstab
mount -a -T "$PWD/fstab"
# It is mounted already.
mount -a -T "$PWD/fstab"
test "$(grep -c " $PWD/m .* - fuse.corewalk store:$PWD/s " /proc/self/mountinfo)" = 1
echo text > m/file
umount m
# The server writes its last commit after umount has returned; the next mount waits for that.
mount -t corewalk "store:$PWD/s" m -o ro
test "$(cat m/file)" = text
umount m
"#;
    assert_eq!(run_in_mount_namespace(script, &folder), "");
}

/// The URL of a cluster file system contains `=`. mount(8) must not take it for a tag such as
/// `LABEL=`.
#[test]
fn line_of_fstab_with_the_url_of_a_cluster_file_system_is_mounted() {
    if !can_mount() || !["unshare", "mount"].into_iter().all(has_program) {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let folder = scene();
    let address = format!("pg://{}", postgres.new_database("files"));
    let url = format!("{address}?data=file:{}", folder.path("objects").display());
    assert_eq!(run(corewalk(&["mkfs", &url])).status.code(), Some(0));
    let script = format!(
        r#"
echo "{address}?connect_timeout=5 $PWD/m corewalk _netdev,nofail,x-systemd.automount 0 0" > fstab
mount -a -T "$PWD/fstab"
echo text > m/file
umount m
mount -a -T "$PWD/fstab"
test "$(cat m/file)" = text
umount m
"#
    );
    assert_eq!(run_in_mount_namespace(&script, &folder), "");
}

/// After umount(8), the old server may still write its last commit. A new mount or a check must
/// wait for it.
///
/// The test runs in a mount namespace of its own, where no other process keeps a copy of the mount.
#[test]
fn store_is_mounted_again_as_soon_as_it_is_unmounted() {
    if !can_mount() || !["unshare", "mount"].into_iter().all(has_program) {
        return;
    }
    let folder = scene();
    let script = r#"
for round in $(seq 20); do
    mount -t corewalk "store:$PWD/s" m -o commit=600
    for file in $(seq 20); do head -c 100000 /dev/zero > "m/$round-$file"; done
    umount m
done
"$1" fsck "store:$PWD/s" > checked
mount -t corewalk "store:$PWD/s" m
test "$(ls m | wc -l)" = 400
umount m
"#;
    assert_eq!(run_in_mount_namespace(script, &folder), "");
}

const SET_UP: &str = r#"
set -eu
mount -t tmpfs none /sbin
ln -s "$1" /sbin/mount.corewalk
mkdir m
"#;

fn run_in_mount_namespace(script: &str, folder: &Folder) -> String {
    let script = [SET_UP, script].concat();
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-c", &script, "sh", PROGRAM]);
    command.current_dir(&folder.0);
    let output = run(command);
    let printed = String::from_utf8_lossy(&output.stderr).into_owned();
    assert!(output.status.success(), "{printed}");
    printed
}
