//! Appends to a file of a mounted directory of the host, which the host appends to as well.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use corewalk_fuse::{Caller, New, Options, WriteCache, WriteOrigin};
use corewalk_hostfs::{HostFs, HostFsOptions};

use crate::fixtures::{Folder, Server, can_mount};

/// The flag of open(2).
const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;
/// The node of the root.
const ROOT: u64 = 1;

fn append(path: &Path) -> File {
    File::options().append(true).open(path).expect("it exists")
}

#[test]
fn appends_of_the_mount_and_of_the_host_are_all_there() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (host, path) = (folder.path("h"), folder.path("m"));
    fs::create_dir(&host).expect("a folder");
    fs::write(host.join("log"), "").expect("a file");
    let source = host.to_str().expect("a plain path");
    let _server = Server::of(source, &[], &path);
    let (mut here, mut there) = (append(&path.join("log")), append(&host.join("log")));
    let mut expected = String::new();
    for round in 0..20 {
        for (file, who) in [(&mut here, "mount"), (&mut there, "host")] {
            let line = format!("{round} {who} {}\n", "x".repeat(round * 500));
            file.write_all(line.as_bytes()).expect("room");
            expected += &line;
        }
        assert!(fs::read_to_string(host.join("log")).expect("a file") == expected, "{round}");
        assert!(fs::read_to_string(path.join("log")).expect("a file") == expected, "{round}");
    }
    // What fcntl(2) makes of an open file holds from then on.
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::os::unix::fs::FileExt as _;
    fcntl_setfl(&here, OFlags::empty()).expect("it is open");
    here.write_all_at(b"!", 0).expect("room");
    fcntl_setfl(&here, OFlags::APPEND).expect("it is open");
    there.write_all(b"host").expect("room");
    here.write_all_at(b"mount", 1).expect("room");
    expected.replace_range(..1, "!");
    assert!(fs::read_to_string(host.join("log")).expect("a file") == expected + "hostmount");
}

/// Writes `ab` through a handle that appends to a file of which the kernel knows three bytes of six,
/// and returns what the file is then.
fn written_at_3_of_6(options: Options, origin: WriteOrigin) -> String {
    let folder = Folder::new();
    let fs = HostFs::new(&folder.0, HostFsOptions::default()).expect("a folder");
    let server = corewalk_fuse::Server::new(Arc::new(fs), options).expect("a server");
    let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
    let new = New { mode: 0o644, ..New::default() };
    let (file, handle) =
        server.create(caller, ROOT, b"f", &new, O_WRONLY | O_APPEND).expect("a file");
    append(&folder.path("f")).write_all(b"123456").expect("room");
    let written = server.write(caller, file.node, handle, 3, b"ab", origin);
    assert_eq!(written, Ok(2));
    fs::read_to_string(folder.path("f")).expect("a file")
}

#[test]
fn append_finds_the_end_unless_the_kernel_collects_writes() {
    assert_eq!(written_at_3_of_6(Options::shared(), WriteOrigin::Append), "123456ab");
    let asked = Options::shared().with_server_permissions();
    assert_eq!(written_at_3_of_6(asked, WriteOrigin::Append), "123456ab");
    let back = Options { write_cache: WriteCache::Back, ..Options::shared() };
    assert_eq!(written_at_3_of_6(back, WriteOrigin::Append), "123ab6");
}

/// Pages that the kernel writes back have a place, and so has what pwrite(2) writes.
#[test]
fn control_other_writes_keep_their_place() {
    for origin in [WriteOrigin::Cache, WriteOrigin::Call] {
        assert_eq!(written_at_3_of_6(Options::shared(), origin), "123ab6");
    }
}
