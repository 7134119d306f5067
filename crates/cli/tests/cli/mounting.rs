//! Tests of a mount from its start, when the command prints that it is ready, to its end.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant, SystemTime};

use corewalk_base::primitives::thread;
use corewalk_testkit::require::has_program;

use crate::fixtures::{
    Folder, LIMIT, PROGRAM, Server, can_mount, corewalk, is_mounted, mount_table, run,
};

#[test]
fn mount_prints_one_line_and_ends_on_a_signal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("made");
    use rustix::process::Signal;
    // Under nohup(1), this process ignores SIGHUP. The server does so, too, so skip this signal.
    let is_ignored = |signal: Signal| mask("self", "SigIgn:") & 1 << (signal.as_raw() - 1) != 0;
    let hangup = Some(Signal::HUP).filter(|signal| !is_ignored(*signal));
    for signal in [Signal::TERM, Signal::INT].into_iter().chain(hangup) {
        let mut server = Server::start(&["-o", "size=1m"], &path);
        assert_eq!(server.line, format!("mounted tmpfs on {}\n", path.display()));
        fs::write(path.join("file"), "x").expect("the file is created");
        server.signal(signal);
        assert_eq!(server.wait().code(), Some(0));
        assert!(!is_mounted(&path) && !path.exists(), "the mount or its directory is left");
    }
}

fn mask(pid: &str, name: &str) -> u64 {
    let status = fs::read_to_string(format!("/proc/{pid}/status")).expect("the process runs");
    let mask = status.lines().find_map(|line| line.strip_prefix(name)).expect("a line is read");
    u64::from_str_radix(mask.trim(), 16).expect("the mask is hexadecimal")
}

#[test]
fn mount_that_was_started_with_sighup_ignored_survives_it() {
    if !can_mount() {
        return;
    }
    use rustix::process::Signal;
    let folder = Folder::new();
    let path = folder.path("m");
    let mut command = Command::new("sh");
    command.args(["-c", "trap '' HUP; exec \"$@\"", "sh", PROGRAM, "mount", "tmpfs"]).arg(&path);
    let mut server = Server::run(command);
    let caught = mask(&server.pid().to_string(), "SigCgt:");
    let is_caught = |signal: Signal| caught & 1 << (signal.as_raw() - 1) != 0;
    assert!(is_caught(Signal::TERM) && !is_caught(Signal::HUP), "{caught:x}");
    server.signal(Signal::HUP);
    fs::write(path.join("file"), "x").expect("the file exists");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!is_mounted(&path));
}

#[test]
fn copy_in_another_namespace_does_not_delay_the_end() {
    if !can_mount() || !has_program("unshare") {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut server = Server::start(&[], &path);
    let mut other = Command::new("unshare");
    let script = "echo ready; exec sleep 600";
    other.args(["--mount", "--propagation", "private", "--", "sh", "-c", script]);
    let other = Server::run(other);
    assert_eq!(other.line, "ready\n");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!is_mounted(&path) && !path.exists());
}

/// A path that is not UTF-8 must work. The mount is in a mount namespace of its own, because other
/// tests read the mount table as UTF-8.
#[test]
fn directory_whose_name_is_not_utf_8_is_mounted() {
    use std::os::unix::ffi::OsStrExt as _;
    if !can_mount() || !has_program("unshare") {
        return;
    }
    let folder = Folder::new();
    let host = folder.0.join(std::ffi::OsStr::from_bytes(b"h\xff"));
    fs::create_dir(&host).expect("the directory is created");
    fs::create_dir(folder.path("m")).expect("the directory is created");
    fs::write(host.join("file"), "text").expect("the file is created");
    let script = "\"$1\" mount --daemon \"$2\" m && cat m/file && umount m";
    let mut command = Command::new("unshare");
    command.args(["--mount", "--propagation", "private", "--", "sh", "-c", script, "sh", PROGRAM]);
    command.arg(&host).current_dir(&folder.0);
    let output = run(command);
    let printed = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success() && printed.is_empty(), "{printed}");
    let line = [b"mounted ", host.as_os_str().as_bytes(), b" on m\ntext"].concat();
    assert_eq!(output.stdout, line);
}

/// The server in the background must close a pipe that it has inherited. Otherwise a reader of the
/// pipe would wait until the mount ends.
#[test]
fn daemon_closes_inherited_pipes() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut command = Command::new("sh");
    command.args(["-c", "exec \"$@\" 9>&1", "sh", PROGRAM, "mount", "--daemon", "tmpfs"]);
    command.arg(&path);
    let output = run(command);
    let line = format!("mounted tmpfs on {}\n", path.display());
    assert_eq!(String::from_utf8_lossy(&output.stdout), line);
    assert!(output.status.success() && is_mounted(&path));
    assert!(Command::new("umount").arg(&path).status().expect("umount runs").success());
}

/// Returns a command that mounts under a resource limit. `ulimit` contains the arguments of the
/// shell command `ulimit`.
fn limited(ulimit: &str, threads: usize, path: &Path) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit {ulimit} && exec \"$@\"");
    command.args(["-c", &script, "sh", PROGRAM, "mount", "tmpfs"]).arg(path);
    command.args(["-o", &format!("threads={threads}")]);
    command
}

#[test]
fn too_many_threads_for_the_descriptor_limit_are_refused_before_the_mount() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let words = "threads=41 needs 65 open files, but the limit is 64 (ulimit -Hn)";
    folder.assert_refused(limited("-n 64", 41, &path), 2, words);
    let mut daemon = limited("-n 64", 41, &path);
    daemon.arg("--daemon");
    folder.assert_refused(daemon, 2, words);
    assert!(!path.exists(), "the mount point was created");
    // A mount needs one descriptor per thread and 24 others, so 40 threads fit into 64. If 64 is
    // only the soft limit, the program raises it.
    for (ulimit, threads) in [("-n 64", 40), ("-S -n 64", 150)] {
        let mut server = Server::run(limited(ulimit, threads, &path));
        let tasks = format!("/proc/{}/task", server.pid());
        let start = Instant::now();
        while fs::read_dir(&tasks).expect("the process runs").count() < threads {
            assert!(start.elapsed() < LIMIT, "the server does not start {threads} threads");
            thread::yield_now();
        }
        fs::write(path.join("file"), "x").expect("the mount serves");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait().code(), Some(0), "{ulimit}");
    }
}

#[test]
fn umount_ends_the_program() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("the directory is created");
    let mut server = Server::start(&[], &path);
    let umount = Command::new("umount").arg(&path).status().expect("umount runs");
    assert!(umount.success());
    assert_eq!(server.wait().code(), Some(0));
    assert!(path.exists(), "the program removed a directory that it had not created");
}

#[test]
fn busy_mount_is_detached_on_a_signal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut server = Server::start(&[], &path);
    let file = fs::File::create(path.join("file")).expect("the file is created");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert!(!is_mounted(&path) && !path.exists());
    assert!(file.sync_all().is_err(), "the mount still has a server");
}

#[test]
fn mount_of_a_killed_server_can_be_replaced() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    fs::create_dir(&path).expect("the directory is created");
    let mut server = Server::start(&[], &path);
    let _file = fs::File::create(path.join("file")).expect("the file is created");
    server.signal(rustix::process::Signal::KILL);
    server.wait();
    assert!(fs::metadata(path.join("file")).is_err());
    let mut again = corewalk(&["mount", "tmpfs"]);
    again.arg(&path);
    folder.assert_refused(again, 1, "umount -l");
    let mut stat = corewalk(&["stat"]);
    stat.arg(&path);
    folder.assert_refused(stat, 1, "the mount has no server; remove it with umount -l");
    assert!(Command::new("umount").arg("-l").arg(&path).status().expect("umount runs").success());
    let mut server = Server::start(&[], &path);
    fs::write(path.join("file"), "x").expect("the next mount serves");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn daemon_returns_when_the_mount_is_ready() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut command = corewalk(&["mount", "tmpfs", "--daemon", "-o", "ro,fsname=mine"]);
    // The background process changes its working directory, so it must make the path absolute
    // first.
    command.arg("m").current_dir(&folder.0);
    let output = run(command);
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
    assert_eq!(String::from_utf8_lossy(&output.stdout), "mounted tmpfs on m\n");
    assert!(is_mounted(&path));
    assert!(mount_table().lines().any(|line| line.ends_with("default_permissions,allow_other")
        && line.contains("fuse.corewalk mine ro")));
    assert!(fs::write(path.join("file"), "x").is_err(), "a write to a read-only mount succeeded");
    assert!(Command::new("umount").arg(&path).status().expect("umount runs").success());
    let begin = Instant::now();
    while path.exists() {
        assert!(begin.elapsed() < LIMIT, "the daemon does not remove the mount point");
        thread::yield_now();
    }
}

#[test]
fn stat_shows_the_counters_of_a_store() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (path, source) = (folder.path("m"), format!("store:{}", folder.path("store").display()));
    let _server = Server::of(&source, &["-o", "size=1g,commit=0"], &path);
    let file = fs::File::create(path.join("file")).expect("the file is created");
    file.sync_all().expect("fsync succeeds");
    let directory = fs::File::open(&path).expect("the directory exists");
    fs::write(path.join("other"), "x").expect("the file is created");
    directory.sync_all().expect("fsync succeeds");
    let output = run({
        let mut command = corewalk(&["stat", "--json"]);
        command.arg(&path);
        command
    });
    let json: serde_json::Value =
        serde_json::from_slice(&output.stdout).expect("the output is JSON");
    let count = |name: &str| json[name].as_u64().unwrap_or_else(|| panic!("{name} in {json}"));
    assert_eq!((count("store_inodes"), count("store_used_bytes")), (3, 4096));
    let commits_and_syncs = (count("store_commits"), count("store_syncs"));
    assert_eq!(commits_and_syncs, (2, 2), "one for each fsync");
    assert_eq!((count("store_has_reserve"), count("store_is_read_only")), (1, 0));
    assert_eq!(count("store_free_bytes"), (1 << 30) - 4096);
}

#[test]
fn stat_shows_the_counters() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let _server = Server::start(&["-o", "cache=64m"], &path);
    fs::write(path.join("file"), "x").expect("the file is created");
    let stat = |arguments: &[&str]| {
        let mut command = corewalk(&["stat"]);
        command.arg(&path).args(arguments);
        let output = run(command);
        assert!(output.status.success());
        String::from_utf8(output.stdout).expect("the output is UTF-8")
    };
    let json: serde_json::Value =
        serde_json::from_str(&stat(&["--json"])).expect("the output is JSON");
    for name in
        ["entries", "negatives", "bytes", "hits", "misses", "retries", "fallbacks", "reclaimed"]
    {
        assert!(json[name].is_u64(), "{name} in {json}");
    }
    assert_eq!((&json["entries"], &json["budget_bytes"]), (&2.into(), &(64_u64 << 20).into()));
    let table = stat(&[]);
    assert!(table.lines().any(|line| line.starts_with("entries ") && line.ends_with(" 2")));
    for name in json.as_object().expect("the output is an object").keys() {
        let is_shown = |line: &str| line.split(' ').next() == Some(name.as_str());
        assert!(table.lines().any(is_shown), "{name} in {table}");
    }
    fs::create_dir(path.join("dir")).expect("the directory is created");
    let mut below = corewalk(&["stat"]);
    below.arg(path.join("dir"));
    folder.assert_refused(below, 1, "not the root directory of a corewalk mount");
}

fn shown(path: &std::path::Path) -> (String, String) {
    let table = mount_table();
    let path = path.to_str().expect("the path is UTF-8");
    let line = table
        .lines()
        .find(|line| line.split(' ').nth(4) == Some(path))
        .expect("the path is in the mount table");
    let mut words = line.split(" - ").nth(1).expect("the line has a separator").split(' ');
    let mut next = || words.next().expect("the line has a word").to_owned();
    (next(), next())
}

#[test]
fn mount_table_names_the_source() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (path, host) = (folder.path("m"), folder.path("a,b"));
    fs::create_dir(&path).expect("the directory is created");
    fs::create_dir(&host).expect("the directory is created");
    let kind = String::from("fuse.corewalk");
    let host = host.to_str().expect("the path is UTF-8");
    for (source, expected) in [("tmpfs", "tmpfs"), (host, host)] {
        let mut server = Server::of(source, &[], &path);
        assert_eq!(server.line, format!("mounted {source} on {}\n", path.display()));
        assert_eq!(shown(&path), (kind.clone(), expected.to_owned()));
        let df = Command::new("df").args(["--output=source,fstype"]).arg(&path).output();
        let df = String::from_utf8(df.expect("df runs").stdout).expect("the output is UTF-8");
        let row: Vec<&str> =
            df.lines().nth(1).expect("df prints a row").split_whitespace().collect();
        assert_eq!(row, [expected, kind.as_str()]);
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn full_tmpfs_reports_enospc_and_has_space_again_after_removal() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let path = folder.path("m");
    let mut server = Server::start(&["-o", "size=1m,nr_inodes=10"], &path);
    let error = fs::write(path.join("large"), vec![1; 2 << 20]).expect_err("the file does not fit");
    assert_eq!(error.kind(), std::io::ErrorKind::StorageFull);
    fs::remove_file(path.join("large")).expect("the part that fits was written");
    fs::write(path.join("small"), vec![1; 1 << 19]).expect("there is free space");
    let errors: Vec<_> =
        (0..12).filter_map(|at| fs::write(path.join(format!("f{at}")), "").err()).collect();
    assert!(errors.iter().all(|error| error.kind() == std::io::ErrorKind::StorageFull));
    assert_eq!(errors.len(), 4, "the root directory and `small` are two of the ten inodes");
    fs::remove_file(path.join("f0")).expect("the file exists");
    fs::write(path.join("f0"), "").expect("there is free space");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

#[test]
fn limits_of_names_paths_and_links_hold_for_each_source() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (path, host) = (folder.path("m"), folder.path("host"));
    fs::create_dir(&path).expect("the directory is created");
    fs::create_dir(&host).expect("the directory is created");
    let errno = |result: std::io::Result<()>| result.err().and_then(|error| error.raw_os_error());
    let (name_too_long, too_many_links) = (
        Some(rustix::io::Errno::NAMETOOLONG.raw_os_error()),
        Some(rustix::io::Errno::LOOP.raw_os_error()),
    );
    for source in ["tmpfs", host.to_str().expect("the path is UTF-8")] {
        let mut server = Server::of(source, &[], &path);
        fs::write(path.join("n".repeat(255)), "x").expect("255 bytes fit");
        assert_eq!(errno(fs::write(path.join("n".repeat(256)), "x")), name_too_long, "{source}");
        std::os::unix::fs::symlink("n".repeat(255), path.join("l1")).expect("the link is created");
        for at in 2..=41 {
            let target = format!("l{}", at - 1);
            std::os::unix::fs::symlink(target, path.join(format!("l{at}")))
                .expect("the link is created");
        }
        assert_eq!(fs::read(path.join("l40")).expect("40 links"), b"x", "{source}");
        assert_eq!(errno(fs::read(path.join("l41")).map(drop)), too_many_links, "{source}");
        let mut deep = path.to_str().expect("the path is UTF-8").to_owned();
        while deep.len() < 4095 - 202 {
            deep = format!("{deep}/{}", "d".repeat(200));
            fs::create_dir(&deep).expect("the directory is created");
        }
        let fits = format!("{deep}/{}", "f".repeat(4095 - deep.len() - 1));
        fs::write(&fits, "x").expect("4095 bytes fit");
        assert_eq!(errno(fs::write(format!("{fits}f"), "x")), name_too_long, "{source}");
        server.signal(rustix::process::Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
}

/// Reads of a file that is open with `O_DIRECT` reach the server. The page cache does not answer
/// them.
#[test]
fn reads_that_reach_the_server_change_access_times_by_the_options() {
    use std::io::Read as _;
    use std::os::unix::fs::OpenOptionsExt as _;
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (path, store) = (folder.path("m"), format!("store:{}", folder.path("s").display()));
    // The access time is newer than the last change, so `relatime` must not update it.
    let later = SystemTime::now() + Duration::from_secs(3600);
    for source in ["tmpfs", &store] {
        for (option, is_set) in [("relatime", false), ("noatime", false), ("strictatime", true)] {
            let mut server = Server::of(source, &["-o", option], &path);
            let file = path.join(option);
            fs::write(&file, [1; 4096]).expect("the file is created");
            fs::create_dir(path.join("d")).expect("the directory is created");
            for path in [&file, &path.join("d")] {
                let opened = File::open(path).expect("the file exists");
                opened.set_times(FileTimes::new().set_accessed(later)).expect("the times are set");
            }
            assert_eq!(fs::read_dir(path.join("d")).expect("the directory can be read").count(), 0);
            let direct = rustix::fs::OFlags::DIRECT.bits() as i32;
            let opened = OpenOptions::new().read(true).custom_flags(direct).open(&file);
            assert_eq!(
                opened
                    .expect("the file is created")
                    .read(&mut [0; 4096])
                    .expect("the read succeeds"),
                4096
            );
            let is_set_now = [&file, &path.join("d")].map(|path| {
                fs::metadata(path)
                    .expect("the file exists")
                    .accessed()
                    .expect("the file system has access times")
                    != later
            });
            assert_eq!(is_set_now, [is_set; 2], "{source} with {option}");
            fs::remove_dir(path.join("d")).expect("the directory is empty");
            assert!(Command::new("umount").arg(&path).status().expect("umount runs").success());
            assert!(server.wait().success());
        }
    }
}

/// A mounted directory must keep the access times of the host with `noatime`, and must refuse
/// `strictatime`.
#[test]
fn noatime_keeps_access_times_of_the_host_and_strictatime_is_refused() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (host, path) = (folder.path("host"), folder.path("m"));
    fs::create_dir(&host).expect("the directory is created");
    let mut refused = corewalk(&["mount"]);
    refused.args([&host, &path]).args(["-o", "strictatime"]);
    let words = "option 'strictatime' is not supported for a directory of the host";
    folder.assert_refused(refused, 2, words);
    fs::write(host.join("file"), "text").expect("the file is created");
    let source = host.display().to_string();
    let mut server = Server::of(&source, &["-o", "noatime"], &path);
    let long_ago = SystemTime::UNIX_EPOCH + Duration::from_secs(1_000_000);
    for path in [host.join("file"), host.clone()] {
        let opened = File::open(path).expect("the file exists");
        opened.set_times(FileTimes::new().set_accessed(long_ago)).expect("the times are set");
    }
    assert_eq!(fs::read(path.join("file")).expect("the file can be read"), b"text");
    assert_eq!(fs::read_dir(&path).expect("the directory can be read").count(), 1);
    for path in [host.join("file"), host.clone()] {
        let accessed = fs::metadata(path).expect("the file exists").accessed();
        assert_eq!(accessed.expect("the file system has access times"), long_ago);
    }
    assert!(Command::new("umount").arg(&path).status().expect("umount runs").success());
    assert!(server.wait().success());
}
