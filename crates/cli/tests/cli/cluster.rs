//! Tests of cluster file systems through the program: mkfs, mount, check, refusal.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::time::{Duration, Instant};

use corewalk_testkit::postgres::Postgres;
use rustix::process::Signal;

use crate::fixtures::{Folder, Server, can_mount, corewalk, counter, run};

fn statements(path: &Path) -> u64 {
    let mut command = corewalk(&["stat", "--json"]);
    command.arg(path);
    let printed = run(command).stdout;
    let counters: serde_json::Value = serde_json::from_slice(&printed).expect("JSON is printed");
    counters["cluster_statements"].as_u64().expect("the counter is there")
}

pub(crate) fn made(postgres: &Postgres, folder: &Folder) -> String {
    made_with(&[], postgres, folder)
}

/// Makes a cluster file system as [`made`] does, but with more arguments of mkfs.
fn made_with(arguments: &[&str], postgres: &Postgres, folder: &Folder) -> String {
    let address = format!("pg://{}", postgres.new_database("files"));
    let url = format!("{address}?data=file:{}", folder.path("objects").display());
    let done = run(corewalk(&[&["mkfs", &url], arguments].concat()));
    assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
    address
}

#[test]
fn cluster_file_system_is_made_mounted_and_checked() {
    if !can_mount() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let folder = Folder::new();
    let address = format!("pg://{}", postgres.new_database("files"));
    let url = format!("{address}?data=file:{}", folder.path("objects").display());
    folder.assert_refused(corewalk(&["mount", &address, "/"]), 1, "there is no file system");
    folder.assert_refused(corewalk(&["fsck", &address]), 8, "there is no file system");
    folder.assert_refused(corewalk(&["mkfs", &address]), 2, "the place of contents");
    let made = run(corewalk(&["mkfs", &url]));
    assert_eq!(made.status.code(), Some(0), "{}", String::from_utf8_lossy(&made.stderr));
    folder.assert_refused(corewalk(&["mkfs", &url]), 1, "--force replaces it");

    let path = folder.path("m");
    let mut server = Server::of(&address, &[], &path);
    assert_eq!(server.line, format!("mounted {address} on {}\n", path.display()));
    let held = format!("pid {} since", server.pid());
    folder.assert_refused(corewalk(&["mkfs", "--force", &url]), 1, &held);

    let help = run(corewalk(&["stat", "--help"])).stdout;
    let help = String::from_utf8_lossy(&help);
    let stat = run(corewalk(&["stat", path.to_str().expect("the path is text")])).stdout;
    let stat = String::from_utf8_lossy(&stat);
    let names = stat.lines().filter_map(|line| line.split(' ').next());
    for name in names.filter(|name| name.starts_with("cluster_")) {
        assert!(help.contains(&format!("  {name}")), "{name}");
    }
    fs::create_dir(path.join("dir")).expect("the directory is made");
    let before = statements(&path);
    let small = vec![7_u8; 4096];
    for number in 0..10 {
        fs::write(path.join(format!("dir/{number}")), &small).expect("the file is written");
    }
    let used = statements(&path) - before;
    assert!(used <= 20 + 2, "{used} statements for 10 files");
    let before = statements(&path);
    for number in 0..10 {
        let attr = fs::metadata(path.join(format!("dir/{number}"))).expect("the file exists");
        assert_eq!(attr.len(), 4096);
        assert!(fs::metadata(path.join(format!("dir/absent{number}"))).is_err());
    }
    // The renewal of the session may take one statement.
    let used = statements(&path) - before;
    assert!(used <= 1, "{used} statements for warm lookups");
    let large: Vec<u8> = (0..9_000_000_u32).map(|at| (at / 1000) as u8).collect();
    fs::write(path.join("large"), &large).expect("the file is written");
    server.signal(Signal::KILL);
    server.wait();
    let _ = std::process::Command::new("umount").arg("-l").arg(&path).status();

    // The killed mount keeps its leases until its session expires. The new mount must be able to
    // read before that.
    let mut server = Server::of(&address, &[], &path);
    assert!(fs::read(path.join("large")).expect("the file exists") == large);
    assert_eq!(fs::read(path.join("dir/3")).expect("the file exists"), small);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));

    let objects = fs::read_dir(folder.path("objects")).expect("the directory exists").next();
    let objects = objects.expect("it has a file system").expect("it can be read").path();
    fs::write(objects.join("stray"), "late").expect("the object is written");
    let checked = run(corewalk(&["fsck", "--remove-strays", &address]));
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(0), "{printed}");
    assert!(printed.starts_with("0 errors, 13 inodes, 0 orphans"), "{printed}");
    assert!(printed.ends_with(", 1 strays\n"), "{printed}");
    let recorded = postgres.sql("files", "SELECT object FROM corewalk.dead_object");
    assert!(recorded.lines().any(|object| object == "stray"), "{recorded}");
    postgres.sql("files", "DELETE FROM corewalk.edge WHERE name = 'large'");
    let checked = run(corewalk(&["fsck", &address]));
    let printed = String::from_utf8_lossy(&checked.stdout).into_owned();
    assert_eq!(checked.status.code(), Some(4), "{printed}");
    assert!(printed.contains("1 links are stored, 0 were counted"), "{printed}");
}

/// Returns what df(1) shows of the mount at `path`: bytes, free bytes, inodes, free inodes.
fn df(path: &Path) -> Vec<u64> {
    let mut command = std::process::Command::new("df");
    command.args(["--block-size=1", "--output=size,avail,itotal,iavail"]).arg(path);
    let printed = String::from_utf8(run(command).stdout).expect("df prints text");
    let numbers = printed.lines().nth(1).expect("df prints a line").split_whitespace();
    numbers.map(|number| number.parse().expect("a number")).collect()
}

#[test]
fn limits_are_set_and_shown_by_df() {
    if !can_mount() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let folder = Folder::new();
    let invalid = corewalk(&["mkfs", "pg://h/d", "--capacity", "5x"]);
    folder.assert_refused(invalid, 2, "such as 1000, 64k");
    let address = made_with(&["--capacity", "1m", "--inodes", "10"], &postgres, &folder);
    let limits = |arguments: &[&str]| {
        let mut command = corewalk(&["cluster", "limits", &address]);
        command.args(arguments);
        let done = run(command);
        assert_eq!(done.status.code(), Some(0), "{}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).expect("text is printed")
    };
    let shown = "capacity: 4096 bytes used, limit 1048576\ninodes: 1 used, limit 10\n";
    assert_eq!(limits(&[]), shown);

    let path = folder.path("m");
    let mut server = Server::of(&address, &[], &path);
    fs::write(path.join("f"), vec![1; 1_000_000]).expect("the file is written");
    assert_eq!(df(&path), [1 << 20, 10 << 12, 10, 8]);
    let full = fs::write(path.join("g"), vec![2; 500_000]).expect_err("the file system is full");
    assert_eq!(full.kind(), std::io::ErrorKind::StorageFull);
    fs::remove_file(path.join("f")).expect("the file is removed");
    fs::write(path.join("g"), vec![2; 900_000]).expect("there is room again");
    fs::write(path.join("h"), vec![3; 500_000]).expect_err("the file system is full");

    let shown = limits(&["--capacity", "0"]);
    assert!(shown.ends_with(" bytes used, no limit\ninodes: 3 used, limit 10\n"), "{shown}");
    let begin = Instant::now();
    while fs::write(path.join("h"), vec![3; 500_000]).is_err() {
        assert!(begin.elapsed() < Duration::from_secs(20), "the mount does not follow");
    }
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    assert_eq!(run(corewalk(&["fsck", &address])).status.code(), Some(0));
}

#[test]
fn objects_on_the_disk_are_read_by_the_next_mount() {
    if !can_mount() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let folder = Folder::new();
    let address = made(&postgres, &folder);
    let path = folder.path("m");
    let option = format!("cache_dir={},cache_dir_size=64m", folder.path("cache").display());
    let bytes: Vec<u8> = (0..20_000_000_u32).map(|at| (at / 1000) as u8).collect();
    let mut server = Server::of(&address, &["-o", &option], &path);
    fs::write(path.join("f"), &bytes).expect("the file is written");
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
    for round in 0..2 {
        let mut server = Server::of(&address, &["-o", &option], &path);
        assert!(fs::read(path.join("f")).expect("the file exists") == bytes);
        assert_eq!(counter(&path, "cluster_disk_hits") > 0, round > 0);
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
}

#[test]
fn mount_tells_what_it_writes_before_it_ends() {
    if !can_mount() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let folder = Folder::new();
    let address = made(&postgres, &folder);
    let (path, log) = (folder.path("m"), folder.path("log"));
    let stderr = fs::File::create(&log).expect("the file is made");
    let mut server = Server::with_stderr(stderr, &address, &path);
    let mut file = fs::File::create(path.join("file")).expect("the file is made");
    let bytes = vec![7; 5_000_000];
    let begin = Instant::now();
    file.write_all(&bytes).expect("the bytes are written");
    server.signal(Signal::TERM);
    // On a busy machine, the mount may have flushed the file before the signal.
    let is_early = begin.elapsed() < Duration::from_secs(3);
    assert_eq!(server.wait().code(), Some(0));
    let printed = fs::read_to_string(log).expect("the log is read");
    let is_told = printed.contains(" bytes are written before the mount ends");
    assert!(is_told || !is_early, "{printed}");
    drop(file);
    let mut server = Server::of(&address, &[], &path);
    assert!(fs::read(path.join("file")).expect("the file exists") == bytes);
    server.signal(Signal::TERM);
    assert_eq!(server.wait().code(), Some(0));
}

/// A process on one mount must see a change of the other mount immediately, even if its kernel has
/// cached an older answer.
#[test]
fn two_mounts_of_a_cluster_file_system_are_coherent() {
    if !can_mount() {
        return;
    }
    let Some(postgres) = Postgres::start() else { return };
    let folder = Folder::new();
    let address = made(&postgres, &folder);
    let (one, two) = (folder.path("m1"), folder.path("m2"));
    let mut servers = vec![Server::of(&address, &[], &one)];
    // As long as there is only one mount, its kernel may cache that a name is absent.
    fs::write(one.join("first"), "1").expect("the file is written");
    for text in ["first", "f0", "f1"] {
        assert_eq!(one.join(text).exists(), text == "first");
    }
    servers.push(Server::of(&address, &[], &two));
    for round in 0..200 {
        let (writer, reader) = if round % 2 == 0 { (&two, &one) } else { (&one, &two) };
        let name = format!("f{}", round % 4);
        assert!(!reader.join(&name).exists(), "round {round}");
        fs::write(writer.join(&name), round.to_string()).expect("the file is written");
        let found = fs::read_to_string(reader.join(&name)).expect("the file exists");
        assert_eq!(found, round.to_string());
        let listed = fs::read_dir(reader).expect("the root is listed");
        assert!(listed.flatten().any(|entry| *entry.file_name() == *name), "round {round}");
        fs::write(writer.join(&name), format!("{round} again")).expect("the file is written");
        let size = fs::metadata(reader.join(&name)).expect("the file exists").len();
        assert_eq!(size, format!("{round} again").len() as u64);
        assert_eq!(fs::read_to_string(reader.join(&name)).unwrap(), format!("{round} again"));
        let moved = format!("moved{round}");
        fs::rename(writer.join(&name), writer.join(&moved)).expect("the file is renamed");
        assert!(!reader.join(&name).exists() && reader.join(&moved).exists(), "round {round}");
        fs::remove_file(reader.join(&moved)).expect("the file is removed");
        assert!(!writer.join(&moved).exists(), "round {round}");
    }
    for mut server in servers {
        server.signal(Signal::TERM);
        assert_eq!(server.wait().code(), Some(0));
    }
    assert_eq!(run(corewalk(&["fsck", &address])).status.code(), Some(0));
}
