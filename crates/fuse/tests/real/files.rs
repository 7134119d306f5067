//! Content, attributes, permissions.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, FileKind, FileSystem as _, Node, SetAttr};
use corewalk_fuse::{Caller, New, Options, Server, WriteCache};
use corewalk_testkit::require::has_root;
use rustix::fs::{FallocateFlags, SeekFrom as Look, Timespec, Timestamps, XattrFlags};

use crate::hooked::Hooked;
use crate::site::Site;

/// A change and what it is called.
type Change<'a> = (&'a str, &'a dyn Fn() -> Result<(), Errno>);

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn full_store_fails_the_write_and_works_again_after_removal() {
    let tmpfs = TmpfsOptions { size_bytes: Some(1 << 20), ..TmpfsOptions::default() };
    let Some(site) = Site::new(Arc::new(Tmpfs::new(tmpfs)), Options::exclusive()) else { return };
    let chunk = vec![7; 64 << 10];
    let mut file = fs::File::create(site.path("big")).expect("a file");
    let mut written = 0;
    let error = loop {
        match file.write(&chunk) {
            Ok(count) => written += count,
            Err(error) => break error,
        }
    };
    assert_eq!(Errno::from_io_error(&error), Some(Errno::NOSPC));
    assert_eq!(written, 1 << 20);
    assert_eq!(errno(fs::write(site.path("small"), "x")), Some(Errno::NOSPC));
    drop(file);
    fs::remove_file(site.path("big")).expect("it exists");
    site.wait_for("the file is forgotten", |counters| counters.lookups <= 1);
    fs::write(site.path("small"), "x").expect("there is room again");
    let stat = rustix::fs::statvfs(site.root()).expect("a file system");
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 20);
}

#[test]
fn inodes_run_out_with_enospc() {
    let tmpfs = TmpfsOptions { inodes_max: Some(5), ..TmpfsOptions::default() };
    let Some(site) = Site::new(Arc::new(Tmpfs::new(tmpfs)), Options::exclusive()) else { return };
    let made = (0..10).take_while(|at| fs::write(site.path(&format!("f{at}")), "").is_ok()).count();
    assert!((4..=5).contains(&made), "{made}");
    assert_eq!(errno(fs::create_dir(site.path("d"))), Some(Errno::NOSPC));
}

#[test]
fn append_truncate_and_holes_work() {
    for write_cache in [WriteCache::Through, WriteCache::Back] {
        let options = Options { write_cache, ..Options::exclusive() };
        let Some(site) = Site::tmpfs(options) else { return };
        let path = site.path("file");
        fs::write(&path, "0123456789").expect("a file");
        let mut end = fs::OpenOptions::new().append(true).open(&path).expect("it exists");
        end.seek(SeekFrom::Start(0)).expect("a place");
        end.write_all(b"ab").expect("room");
        assert_eq!(fs::read(&path).expect("a file"), b"0123456789ab");
        end.set_len(4).expect("a length");
        assert_eq!(fs::metadata(&path).expect("it exists").len(), 4);
        end.write_all(b"c").expect("room");
        assert_eq!(fs::read(&path).expect("a file"), b"0123c");
        fs::File::create(&path).expect("it is truncated");
        assert_eq!(fs::metadata(&path).expect("it exists").len(), 0);
        let file = fs::File::options().read(true).write(true).open(&path).expect("it exists");
        file.write_all_at(b"x", 1 << 20).expect("room");
        // What the kernel has not written back yet must not look like a hole.
        let (data, hole) = match write_cache {
            WriteCache::Through => (1 << 20, 0),
            WriteCache::Back => (0, (1 << 20) + 1),
        };
        assert_eq!(rustix::fs::seek(&file, Look::Data(0)), Ok(data));
        assert_eq!(rustix::fs::seek(&file, Look::Hole(0)), Ok(hole));
        assert_eq!(rustix::fs::seek(&file, Look::Data(2 << 20)), Err(Errno::NXIO));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 1 << 20, 4096).expect("a hole");
        assert_eq!(file.metadata().expect("it is open").len(), (1 << 20) + 1);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 << 20).expect("room");
        assert_eq!(file.metadata().expect("it is open").len(), 2 << 20);
        assert_eq!(fs::read(&path).expect("a file"), vec![0; 2 << 20]);
    }
}

/// A back end may use all 64 bits of a handle.
#[test]
fn handle_comes_back_as_the_back_end_gave_it() {
    let options = [Options::exclusive(), Options::shared()];
    let options = options.into_iter().flat_map(|o| [o.clone().with_server_permissions(), o]);
    for (options, handle) in
        options.flat_map(|o| [5, 1 << 63 | 5, u64::MAX].map(|h| (o.clone(), h)))
    {
        let Some(site) = Site::new(Arc::new(Hooked::with_handle(handle)), options) else { return };
        let path = site.path("file");
        fs::write(&path, "123").expect("a file");
        let mut file = fs::File::options().read(true).append(true).open(&path).expect("it exists");
        file.write_all(b"45").expect("it is appended");
        let mut read = [0; 6];
        assert_eq!(file.read_at(&mut read, 0).expect("it is open"), 5, "{handle:x}");
        assert_eq!(&read[..5], b"12345");
    }
}

/// It needs no mount.
#[test]
fn file_that_is_opened_in_vain_is_closed() {
    let fs = Arc::new(Hooked::closed_mouthed());
    let server = Server::new(Arc::<Hooked>::clone(&fs), Options::shared()).expect("a server");
    let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
    let create = || server.create(caller, 1, b"file", &New { mode: 0o644, ..New::default() }, 0);
    let (file, handle) = create().expect("a new file");
    assert_eq!(fs.open_files(), 1);
    server.release(file.node, handle).expect("it is open");
    assert_eq!(create(), Err(Errno::IO));
    assert_eq!((fs.open_files(), server.counters().lookups), (0, 1));
}

#[test]
fn copy_file_range_copies_everything() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| ((at * 31) >> 3) as u8).collect();
    fs::write(site.path("from"), &bytes).expect("a file");
    let from = fs::File::open(site.path("from")).expect("it exists");
    let to = fs::File::create(site.path("to")).expect("a file");
    let (mut here, mut there) = (5, 0);
    loop {
        let left = bytes.len() * 2;
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut here), &to, Some(&mut there), left);
        if copied.expect("a copy") == 0 {
            break;
        }
    }
    assert_eq!(fs::read(site.path("to")).expect("a file"), bytes[5..]);
}

/// As after the removal of a file whose forget is still on its way.
#[test]
fn full_store_gets_a_moment_also_where_a_file_is_copied() {
    let fs = Arc::new(Hooked::new(|_, _| {}));
    let Some(site) = Site::new(Arc::<Hooked>::clone(&fs), Options::exclusive()) else { return };
    fs::write(site.path("from"), "text").expect("a file");
    let from = fs::File::open(site.path("from")).expect("it exists");
    let to = fs::File::create(site.path("to")).expect("a file");
    let copy = || rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 4);
    fs.fill_for(2);
    assert_eq!(copy(), Ok(4));
    assert_eq!(fs::read(site.path("to")).expect("a file"), b"text");
    // Control: one that stays full is.
    fs.fill_for(u64::MAX);
    assert_eq!(copy(), Err(Errno::NOSPC));
}

/// The same for what changes no content.
#[test]
fn full_store_gets_a_moment_whatever_is_changed() {
    let fs = Arc::new(Hooked::new(|_, _| {}));
    let Some(site) = Site::new(Arc::<Hooked>::clone(&fs), Options::exclusive()) else { return };
    let path = |name| site.path(name);
    fs::write(path("a"), "text").expect("a file");
    let writable = fs::File::options().write(true).open(path("a")).expect("it is there");
    let none = XattrFlags::empty();
    let changes: [Change<'_>; 8] = [
        ("mkdir", &|| rustix::fs::mkdir(path("d"), rustix::fs::Mode::RWXU)),
        ("chmod", &|| rustix::fs::chmod(path("a"), rustix::fs::Mode::RWXU)),
        ("truncate", &|| rustix::fs::ftruncate(&writable, 2)),
        ("setxattr", &|| rustix::fs::setxattr(path("a"), "user.k", b"value", none)),
        ("removexattr", &|| rustix::fs::removexattr(path("a"), "user.k")),
        ("link", &|| rustix::fs::link(path("a"), path("b"))),
        ("rename", &|| rustix::fs::rename(path("b"), path("c"))),
        ("symlink", &|| rustix::fs::symlink("a", path("s"))),
    ];
    let mut refused = Vec::new();
    for (what, change) in changes {
        // Control: one that stays full is.
        fs.fill_for(u64::MAX);
        assert_eq!(change(), Err(Errno::NOSPC), "{what}");
        fs.fill_for(2);
        if change().is_err() {
            refused.push(what);
            fs.fill_for(0);
            change().expect("there is room");
        }
        assert_eq!(fs.is_full_for(), 0, "{what} was tried again");
    }
    assert_eq!(refused, [""; 0]);
    assert_eq!(fs::metadata(path("c")).expect("it was linked and renamed").nlink(), 2);
}

#[test]
fn times_before_1970_survive() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::write(site.path("file"), "").expect("a file");
    let file = fs::File::open(site.path("file")).expect("it exists");
    for (tv_sec, tv_nsec) in [(-2, 500_000_000), (-1, 0), (0, 1), (-1 << 33, 999_999_999)] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).expect("times");
        site.mount().kernel_cache().invalidate_inode(2).expect("the kernel listens");
        let metadata = file.metadata().expect("it is open");
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (tv_sec, tv_nsec));
    }
}

/// What others have changed the kernel and the server have to be told.
#[test]
fn invalidated_inode_is_looked_at_again_also_by_the_server() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let Some(site) = Site::new(Arc::<Tmpfs>::clone(&fs), Options::exclusive()) else { return };
    fs::write(site.path("before"), "").expect("a file");
    let root = fs.root().expect("a root").ino;
    let set = SetAttr { mode: Some(0o2777), gid: Some(4242), ..SetAttr::default() };
    fs.setattr(Node::detached(root, FileKind::Directory), &set).expect("it is there");
    let cache = site.mount().kernel_cache();
    cache.invalidate_inode(root).expect("the kernel listens");
    cache.invalidate_inode(root + 1000).expect("there is nothing to drop");
    fs::write(site.path("after"), "").expect("a file");
    let group = |path| fs::metadata(path).expect("it is there").gid();
    assert_eq!((group(site.root().to_owned()), group(site.path("after"))), (4242, 4242));
    assert_ne!(group(site.path("before")), 4242);
}

#[test]
fn xattrs_are_probed_replaced_and_removed() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let path = site.path("file");
    fs::write(&path, "").expect("a file");
    let get = |buf: &mut [u8]| rustix::fs::getxattr(&path, "user.k", buf);
    assert_eq!(get(&mut [0; 8]), Err(Errno::NODATA));
    rustix::fs::setxattr(&path, "user.k", b"value", XattrFlags::empty()).expect("room");
    let again = rustix::fs::setxattr(&path, "user.k", b"", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.k"), Ok(5));
    assert_eq!(get(&mut [0; 4]), Err(Errno::RANGE));
    assert_eq!(get(&mut [0; 5]), Ok(5));
    assert_eq!(rustix::fs::listxattr_query(&path), Ok(7));
    let big = vec![1; 65537];
    let set = rustix::fs::setxattr(&path, "user.big", &big, XattrFlags::empty());
    assert_eq!(set, Err(Errno::TOOBIG));
    rustix::fs::removexattr(&path, "user.k").expect("it is there");
    assert_eq!(rustix::fs::removexattr(&path, "user.k"), Err(Errno::NODATA));
}

/// Runs `sh -c script` in the mount as another user with the group `gid` and returns whether it did
/// well.
fn does_well(site: &Site, gid: u32, script: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(site.root()).uid(65534).gid(gid);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("a shell").success()
}

#[test]
fn other_users_are_checked_in_both_modes() {
    if !has_root() {
        return;
    }
    for options in [Options::exclusive(), Options::exclusive().with_server_permissions()] {
        let Some(site) = Site::tmpfs(options) else { return };
        let mode = |name: &str, mode| {
            let permissions = fs::Permissions::from_mode(mode);
            fs::set_permissions(site.path(name), permissions).expect("a mode");
        };
        fs::write(site.path("secret"), "x").expect("a file");
        fs::create_dir(site.path("closed")).expect("a folder");
        fs::write(site.path("closed/file"), "x").expect("a file");
        mode("secret", 0o640);
        mode("closed", 0o700);
        std::os::unix::fs::chown(site.path("secret"), Some(0), Some(4242)).expect("a group");
        assert!(!does_well(&site, 65534, "cat secret"));
        assert!(does_well(&site, 4242, "cat secret"));
        assert!(!does_well(&site, 4242, "echo >> secret"));
        // Root has it in every cache by now.
        assert_eq!(fs::read_to_string(site.path("closed/file")).expect("root may"), "x");
        assert!(!does_well(&site, 65534, "cat closed/file"));
        assert!(!does_well(&site, 65534, "cd closed"));
        assert!(!does_well(&site, 65534, "rm -f secret"), "the root is sticky");
        assert!(does_well(
            &site,
            65534,
            "umask 027 && echo x > own && test $(stat -c %a own) = 640"
        ));
        assert!(does_well(&site, 65534, "rm own"));
        assert!(!does_well(&site, 65534, "mknod device c 1 3"));
        assert!(does_well(&site, 65534, "mkfifo fifo && test -p fifo"));
    }
}
