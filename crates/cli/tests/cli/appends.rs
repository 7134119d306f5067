//! Tests of appends to a file through a mounted directory of the host, while the host appends to
//! the file as well.

use std::fs::{self, File};
use std::io::Write as _;
use std::path::Path;
use std::sync::Arc;

use corewalk_fuse::{Caller, NewFile, Options, WriteCache, WriteOrigin};
use corewalk_hostfs::{HostFs, HostFsOptions};

use crate::fixtures::{Folder, Server, can_mount};

const O_WRONLY: u32 = 1;
const O_APPEND: u32 = 0o2000;
const ROOT: u64 = 1;

fn append(path: &Path) -> File {
    File::options().append(true).open(path).expect("the file exists")
}

#[test]
fn appends_of_the_mount_and_of_the_host_are_all_kept() {
    if !can_mount() {
        return;
    }
    let folder = Folder::new();
    let (host, path) = (folder.path("h"), folder.path("m"));
    fs::create_dir(&host).expect("the directory is created");
    fs::write(host.join("log"), "").expect("the file is created");
    let source = host.to_str().expect("the path is UTF-8");
    let _server = Server::of(source, &[], &path);
    let (mut here, mut there) = (append(&path.join("log")), append(&host.join("log")));
    let mut expected = String::new();
    for round in 0..20 {
        for (file, side) in [(&mut here, "mount"), (&mut there, "host")] {
            let line = format!("{round} {side} {}\n", "x".repeat(round * 500));
            file.write_all(line.as_bytes()).expect("the write succeeds");
            expected += &line;
        }
        assert!(
            fs::read_to_string(host.join("log")).expect("the file can be read") == expected,
            "{round}"
        );
        assert!(
            fs::read_to_string(path.join("log")).expect("the file can be read") == expected,
            "{round}"
        );
    }
    // A write must append only if `O_APPEND` is set at the time of the write, since fcntl(2) may
    // change the flag.
    use rustix::fs::{OFlags, fcntl_setfl};
    use std::os::unix::fs::FileExt as _;
    fcntl_setfl(&here, OFlags::empty()).expect("the file is open");
    here.write_all_at(b"!", 0).expect("the write succeeds");
    fcntl_setfl(&here, OFlags::APPEND).expect("the file is open");
    there.write_all(b"host").expect("the write succeeds");
    here.write_all_at(b"mount", 1).expect("the write succeeds");
    expected.replace_range(..1, "!");
    assert!(
        fs::read_to_string(host.join("log")).expect("the file can be read")
            == expected + "hostmount"
    );
}

fn written_at_3_of_6(options: Options, origin: WriteOrigin) -> String {
    let folder = Folder::new();
    let fs = HostFs::new(&folder.0, HostFsOptions::default()).expect("the directory can be opened");
    let server = corewalk_fuse::Server::new(Arc::new(fs), options).expect("the server starts");
    let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
    let new = NewFile::new(0o644);
    let (file, opened) =
        server.create(caller, ROOT, b"f", &new, O_WRONLY | O_APPEND).expect("the file is created");
    append(&folder.path("f")).write_all(b"123456").expect("the write succeeds");
    let written = server.write(caller, file.node, opened.handle, 3, b"ab", origin);
    assert_eq!(written, Ok(2));
    fs::read_to_string(folder.path("f")).expect("the file can be read")
}

#[test]
fn append_finds_the_end_unless_the_kernel_collects_writes() {
    assert_eq!(written_at_3_of_6(Options::shared(), WriteOrigin::Append), "123456ab");
    let server_checks = Options::shared().with_server_permissions();
    assert_eq!(written_at_3_of_6(server_checks, WriteOrigin::Append), "123456ab");
    let back = Options::shared().with_write_cache(WriteCache::Back);
    assert_eq!(written_at_3_of_6(back, WriteOrigin::Append), "123ab6");
}

/// The opposite case: by the flags of its request, the write is no append. It must go to its
/// offset, even if the file is open with `O_APPEND`.
#[test]
fn control_other_writes_keep_their_offset() {
    for origin in [WriteOrigin::Cache, WriteOrigin::Call] {
        assert_eq!(written_at_3_of_6(Options::shared(), origin), "123ab6");
    }
}
