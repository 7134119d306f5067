//! Tests of passthrough: the kernel reads and writes the files of a mounted directory itself.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_testkit::require::{has_program, has_root};
use corewalk_testkit::user::UserNamespace;
use rustix::fs::{Mode, OFlags};
use rustix::io::Errno;

use self::privileges::{Caller, GROUP, OTHER, OWNER, change_as, compare, prepare, state, user};
use crate::fixtures::{Folder, Server, can_mount, counter};

#[path = "../../../fuse/tests/real/privileges/table.rs"]
mod privileges;

fn with_mount(options: &str, test: impl FnOnce(&Path, &Path)) {
    let folder = Folder::new();
    let (host, path) = (folder.path("h"), folder.path("m"));
    fs::create_dir(&host).expect("the directory is created");
    let source = host.to_str().expect("the path is UTF-8");
    let _server = Server::of(source, &["-o", options], &path);
    test(&path, &host);
}

fn requests_of_reads(mount: &Path) -> u64 {
    fs::write(mount.join("f"), vec![7; 8 << 20]).expect("the file is written");
    rustix::fs::sync();
    let file = File::open(mount.join("f")).expect("the file is opened");
    let before = counter(mount, "requests");
    for block in 0..1000 {
        let mut buffer = [0; 100];
        file.read_exact_at(&mut buffer, block * 8192).expect("the file is read");
        assert_eq!(buffer, [7; 100]);
    }
    counter(mount, "requests") - before
}

#[test]
fn reads_of_a_directory_do_not_reach_the_server() {
    if !can_mount() || !has_root() {
        return;
    }
    with_mount("passthrough", |mount, _| assert!(requests_of_reads(mount) < 10));
    with_mount("no_passthrough", |mount, _| assert!(requests_of_reads(mount) >= 10));
}

#[test]
fn mount_and_directory_show_each_other_s_changes_at_once() {
    if !can_mount() {
        return;
    }
    with_mount("passthrough", |mount, host| {
        let (inside, outside) = (mount.join("f"), host.join("f"));
        let open = |path: &Path| {
            let mut options = File::options();
            options.read(true).write(true).create(true).truncate(false);
            options.open(path).expect("the file is opened")
        };
        let (here, there) = (open(&inside), open(&outside));
        here.write_all_at(b"mount", 0).expect("the file is written");
        assert_eq!(fs::read(&outside).expect("the file is read"), b"mount");
        there.write_all_at(b"host", 5).expect("the file is written");
        assert_eq!(fs::read(&inside).expect("the file is read"), b"mounthost");
        assert_eq!(here.metadata().expect("attributes").len(), 9);
        here.set_len(2).expect("the file is truncated");
        assert_eq!(fs::read(&outside).expect("the file is read"), b"mo");
        // The attributes must show an append of the client at once.
        let mut appending = File::options().append(true).open(&inside).expect("the file is opened");
        there.write_all_at(b"!", 2).expect("the file is written");
        appending.write_all(b"end").expect("the file is appended to");
        assert_eq!(fs::read(&inside).expect("the file is read"), b"mo!end");
        assert_eq!(appending.metadata().expect("attributes").len(), 6);
        let before = here.metadata().expect("attributes").mtime_nsec();
        thread::sleep(Duration::from_millis(20));
        here.write_all_at(b"x", 0).expect("the file is written");
        assert_ne!(here.metadata().expect("attributes").mtime_nsec(), before);
        // A removed file stays usable while it is open, even if a new file gets its name.
        fs::remove_file(&inside).expect("the file is removed");
        fs::write(&inside, "new").expect("the file is written");
        let mut text = String::new();
        (&here).read_to_string(&mut text).expect("the file is read");
        assert_eq!(text, "xo!end");
        assert_eq!(fs::read(&inside).expect("the file is read"), b"new");
    });
}

/// If the server kept a file open for writing, the host could not run it (`ETXTBSY`).
#[test]
fn reader_in_the_mount_does_not_keep_a_program_from_running() {
    if !can_mount() {
        return;
    }
    with_mount("passthrough", |mount, host| {
        fs::copy("/bin/true", host.join("program")).expect("the program is copied");
        let writer = File::options().write(true).open(mount.join("program"));
        let writer = writer.expect("the program is opened");
        let _reader = File::open(mount.join("program")).expect("the program is opened");
        drop(writer);
        // The kernel sends the release of `writer` a little after the close, so try several times.
        let begin = Instant::now();
        let mut run = std::process::Command::new(host.join("program"));
        while let Err(error) = run.status() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{error}");
            thread::sleep(Duration::from_millis(1));
        }
    });
}

/// An open of a running program with `O_TRUNC` must fail, before the server truncates the file.
#[test]
fn running_program_is_not_truncated() {
    if !can_mount() {
        return;
    }
    for options in ["passthrough", "no_passthrough"] {
        with_mount(options, |mount, _| {
            let program = mount.join("program");
            fs::copy("/bin/sleep", &program).expect("the program is copied");
            let length = || fs::metadata(&program).expect("attributes").len();
            let before = length();
            let mut run = std::process::Command::new(&program).arg("100").spawn().expect("it runs");
            let flags = OFlags::RDONLY | OFlags::TRUNC;
            let opened = rustix::fs::open(&program, flags, Mode::empty()).map(drop);
            let after = length();
            run.kill().expect("the program is killed");
            run.wait().expect("the program has ended");
            assert_eq!((opened, after), (Err(Errno::TXTBSY), before), "{options}");
        });
    }
}

#[test]
fn passed_through_program_runs_and_keeps_its_mode() {
    if !can_mount() {
        return;
    }
    with_mount("passthrough", |mount, _| {
        let program = mount.join("program");
        fs::copy("/bin/true", &program).expect("the program is copied");
        let reader = File::open(&program).expect("the program is opened");
        fs::set_permissions(&program, fs::Permissions::from_mode(0o755)).expect("the mode is set");
        assert_eq!(reader.metadata().expect("attributes").mode() & 0o7777, 0o755);
        let status = std::process::Command::new(&program).status().expect("the program starts");
        assert!(status.success());
    });
}

/// Before each write, the kernel asks the server for the capabilities of the file, unless it knows
/// that there are none. This request must not be sent for each small write.
#[test]
fn small_writes_to_a_directory_do_not_reach_the_server() {
    if !can_mount() || !has_root() {
        return;
    }
    with_mount("passthrough", |mount, _| {
        let mut file = File::create(mount.join("f")).expect("the file is created");
        file.write_all(b"first").expect("the file is written");
        let before = counter(mount, "requests");
        for _ in 0..200 {
            file.write_all(b"x").expect("the file is written");
        }
        let count = counter(mount, "requests") - before;
        assert!(count < 10, "{count} requests");
    });
}

/// A write to a passed-through file must clear the privileges of the file as on the host. There is
/// one difference: a writer with `CAP_FSETID` clears the set-user-ID and set-group-ID bits, too.
#[test]
fn privileges_of_passed_through_files_are_cleared_as_on_the_host() {
    if !can_mount() || !has_root() {
        return;
    }
    let other = Folder::new();
    with_mount("passthrough", |mount, _| {
        compare(mount, &other.0, |caller, what, mode, _| is_cleared_for_all(caller, what, mode));
    });
}

const CHOWN: &str = "chown(-1, -1, $ARGV[0]) or exit($!)";

/// A caller that does not own the file must clear no bits by chown(2). The server cannot see the
/// capabilities of a caller in another user namespace.
#[test]
fn stranger_in_a_user_namespace_clears_no_bit_of_a_passed_through_file() {
    if !can_mount() || !has_root() || !has_program("perl") {
        return;
    }
    let Some(namespace) = UserNamespace::new(0, OWNER, 2) else { return };
    with_mount("passthrough", |mount, _| {
        let path = mount.join("f");
        let _open = File::create(&path).expect("the file is created");
        prepare(&path, 0o6755, false);
        let chown = |user| {
            let mut perl = namespace.command(user, "perl");
            let done = perl.args(["-e", CHOWN]).arg(&path).status().expect("perl is run");
            (done.code(), state(&path))
        };
        assert_eq!(
            chown(1),
            (Some(rustix::io::Errno::PERM.raw_os_error()), format!("6755 {OWNER} {GROUP}"))
        );
        assert_eq!(chown(0), (Some(0), format!("755 {OWNER} {GROUP}")));
    });
}

/// Returns true if the mount and the host may differ. A write by a caller with `CAP_FSETID` clears
/// the bits of a passed-through file, but keeps those of a file on the host.
fn is_cleared_for_all(caller: Caller, what: &str, mode: u32) -> bool {
    let writes = ["write", "pwrite", "pwrite of a page", "open and write", "append"];
    caller.keeps_bits() && mode & 0o6000 != 0 && writes.contains(&what)
}

/// The upper mount serves a directory of another mount. There the kernel passes no file through, so
/// the server gets all writes. The server must clear the set-user-ID and set-group-ID bits.
#[test]
fn privileges_are_cleared_as_on_the_host_if_the_kernel_refuses_to_pass_through() {
    if !can_mount() || !has_root() {
        return;
    }
    let (other, upper) = (Folder::new(), Folder::new());
    with_mount("passthrough", |mount, _| {
        let source = mount.to_str().expect("the path is UTF-8");
        let upper = upper.path("m");
        let _server = Server::of(source, &["-o", "passthrough"], &upper);
        assert!(requests_of_reads(&upper) >= 10, "control: the server reads");
        // The results of writes through mmap(2) may differ: the upper server makes these writes as
        // root.
        compare(&upper, &other.0, |caller, what, mode, _| {
            what == "mmap" || is_cleared_for_all(caller, what, mode)
        });
    });
}

/// The bits must be cleared even if the kernel of the mount does not know that another program has
/// just set them on the host.
#[test]
fn bits_that_another_program_has_just_set_are_cleared() {
    if !can_mount() || !has_root() {
        return;
    }
    with_mount("passthrough", |mount, host| {
        let (inside, outside) = (mount.join("f"), host.join("f"));
        for (caller, mode, left) in [
            (user(OTHER, &[]), 0o6755, 0o755),
            (user(OTHER, &[GROUP]), 0o4777, 0o777),
            (user(OTHER, &[]), 0o2745, 0o745),
        ] {
            fs::write(&outside, "old").expect("the file is written");
            let file = File::options().write(true).open(&inside).expect("the file is opened");
            let write = |text: &'static [u8]| change_as(caller, || file.write_all_at(text, 0));
            write(b"one").expect("the file is written");
            prepare(&outside, mode, true);
            assert!(state(&outside).ends_with("caps"), "control: {}", state(&outside));
            write(b"two").expect("the file is written");
            let expected = format!("{left:o} {OWNER} {GROUP}");
            assert_eq!(state(&outside), expected, "{caller:?} {mode:o}");
            fs::remove_file(&inside).expect("the file is removed");
        }
    });
}

/// After a write of a client, no program may see the set-user-ID bit together with the new content,
/// even while the kernel caches attributes.
#[test]
fn written_file_never_shows_the_bit_that_the_write_has_cleared() {
    if !can_mount() || !has_root() {
        return;
    }
    with_mount("passthrough", |mount, _| {
        let path = mount.join("f");
        for round in 0..100 {
            fs::write(&path, "old").expect("the file is written");
            let file = File::options().write(true).open(&path).expect("the file is opened");
            prepare(&path, 0o4777, false);
            change_as(user(OTHER, &[]), || file.write_all_at(b"new", 0))
                .expect("the file is written");
            assert_eq!(state(&path), format!("777 {OWNER} {GROUP}"), "round {round}");
            fs::remove_file(&path).expect("the file is removed");
        }
    });
}
