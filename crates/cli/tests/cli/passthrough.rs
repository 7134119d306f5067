//! Tests of passthrough: the kernel reads and writes the files of a mounted directory itself.

use std::fs::{self, File};
use std::io::{Read as _, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::Path;
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_testkit::require::has_root;

use crate::fixtures::{Folder, Server, can_mount, counter};

/// Mounts a directory, and calls `test` with the path of the mount and that of the directory.
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
        // An append of the client shows at once in the attributes.
        let mut appending = File::options().append(true).open(&inside).expect("the file is opened");
        there.write_all_at(b"!", 2).expect("the file is written");
        appending.write_all(b"end").expect("the file is appended to");
        assert_eq!(fs::read(&inside).expect("the file is read"), b"mo!end");
        assert_eq!(appending.metadata().expect("attributes").len(), 6);
        let before = here.metadata().expect("attributes").mtime_nsec();
        thread::sleep(Duration::from_millis(20));
        here.write_all_at(b"x", 0).expect("the file is written");
        assert_ne!(here.metadata().expect("attributes").mtime_nsec(), before);
        // An open file without a name stays usable. A new file with the same name is another file.
        fs::remove_file(&inside).expect("the file is removed");
        fs::write(&inside, "new").expect("the file is written");
        let mut text = String::new();
        (&here).read_to_string(&mut text).expect("the file is read");
        assert_eq!(text, "xo!end");
        assert_eq!(fs::read(&inside).expect("the file is read"), b"new");
    });
}

/// The server must not keep a file open for writing that clients only read. The host could not run
/// it (`ETXTBSY`).
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
        // The kernel sends the release of the writer later.
        let begin = Instant::now();
        let mut run = std::process::Command::new(host.join("program"));
        while let Err(error) = run.status() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{error}");
            thread::sleep(Duration::from_millis(1));
        }
    });
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
