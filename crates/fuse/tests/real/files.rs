//! Tests of the content, the attributes and the permissions of files.

use std::fs;
use std::io::{Seek as _, SeekFrom, Write as _};
use std::os::fd::AsRawFd as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::process::{Command, Stdio};
use std::sync::Arc;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, FileKind, FileSystem as _, Node, SetAttr};
use corewalk_fuse::{Caller, NewFile, Options, Server, Transport, WriteCache};
use corewalk_testkit::require::has_root;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, Mode, OFlags, SeekFrom as Look, StatxFlags, Timespec, Timestamps,
    XattrFlags,
};

use crate::hooked::Hooked;
use crate::site::{Site, transport};

type Change<'a> = (&'a str, &'a dyn Fn() -> Result<(), Errno>);

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn full_store_fails_the_write_and_works_again_after_removal() {
    let tmpfs = TmpfsOptions::default().with_size_bytes(1 << 20);
    let Some(site) = Site::new(Arc::new(Tmpfs::new(tmpfs)), Options::exclusive()) else { return };
    let chunk = vec![7; 64 << 10];
    let mut file = fs::File::create(site.path("big")).expect("create the file");
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
    fs::remove_file(site.path("big")).expect("remove the file");
    site.wait_for("the file is forgotten", |counters| counters.lookups <= 1);
    fs::write(site.path("small"), "x").expect("the removal freed space");
    let stat = rustix::fs::statvfs(site.root()).expect("read the state of the file system");
    assert_eq!(stat.f_blocks * stat.f_frsize, 1 << 20);
}

#[test]
fn inodes_run_out_with_enospc() {
    let tmpfs = TmpfsOptions::default().with_inodes_max(5);
    let Some(site) = Site::new(Arc::new(Tmpfs::new(tmpfs)), Options::exclusive()) else { return };
    let made = (0..10).take_while(|at| fs::write(site.path(&format!("f{at}")), "").is_ok()).count();
    assert!((4..=5).contains(&made), "{made}");
    assert_eq!(errno(fs::create_dir(site.path("d"))), Some(Errno::NOSPC));
}

#[test]
fn file_without_a_name_can_get_one() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let open = || {
        let (flags, mode) = (OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR);
        rustix::fs::open(site.root(), flags, mode).map(fs::File::from)
    };
    if transport() == Transport::Fuser {
        assert_eq!(open().err(), Some(Errno::OPNOTSUPP));
        return;
    }
    let mut file = open().expect("create the file");
    file.write_all(b"text").expect("write the file");
    assert_eq!(file.metadata().expect("stat the file").nlink(), 0);
    assert_eq!(fs::read_dir(site.root()).expect("list the root").count(), 0);
    let path = format!("/proc/self/fd/{}", file.as_raw_fd());
    let flags = AtFlags::SYMLINK_FOLLOW;
    rustix::fs::linkat(CWD, path, CWD, site.path("named"), flags).expect("name the file");
    drop(file);
    assert_eq!(fs::read(site.path("named")).expect("read the file"), b"text");
    assert_eq!(fs::metadata(site.path("named")).expect("stat the file").nlink(), 1);
    let before = site.counters().inodes;
    drop(open().expect("create another file"));
    site.wait_for("the file is gone", |counters| counters.inodes <= before);
}

#[test]
fn statx_shows_the_birth_time() {
    let Some(site) = Site::tmpfs(Options::exclusive().with_birth_times(true)) else { return };
    let path = site.path("file");
    fs::write(&path, "x").expect("write the file");
    let statx = || {
        let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
        rustix::fs::statx(CWD, &path, AtFlags::empty(), mask).expect("read the attributes")
    };
    let first = statx();
    if transport() == Transport::Fuser {
        assert_eq!(first.stx_mask & StatxFlags::BTIME.bits(), 0);
        return;
    }
    assert_ne!(first.stx_mask & StatxFlags::BTIME.bits(), 0);
    let changed = first.stx_ctime;
    assert_eq!((first.stx_btime.tv_sec - changed.tv_sec).abs() / 60, 0, "the file is new");
    fs::set_permissions(&path, fs::Permissions::from_mode(0o640)).expect("chmod");
    let second = statx();
    let time = |stat: &rustix::fs::Statx| (stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec);
    assert_eq!(time(&second), time(&first));
    assert_eq!((second.stx_mode & 0o777, second.stx_size, second.stx_nlink), (0o640, 1, 1));
}

#[test]
fn append_truncate_and_holes_work() {
    for write_cache in [WriteCache::Through, WriteCache::Back] {
        let options = Options::exclusive().with_write_cache(write_cache);
        let Some(site) = Site::tmpfs(options) else { return };
        let path = site.path("file");
        fs::write(&path, "0123456789").expect("write the file");
        let mut end = fs::OpenOptions::new().append(true).open(&path).expect("open the file");
        end.seek(SeekFrom::Start(0)).expect("seek in the file");
        end.write_all(b"ab").expect("write the file");
        assert_eq!(fs::read(&path).expect("read the file"), b"0123456789ab");
        end.set_len(4).expect("change the length");
        assert_eq!(fs::metadata(&path).expect("read the attributes").len(), 4);
        end.write_all(b"c").expect("write the file");
        assert_eq!(fs::read(&path).expect("read the file"), b"0123c");
        fs::File::create(&path).expect("truncate the file");
        assert_eq!(fs::metadata(&path).expect("read the attributes").len(), 0);
        let file = fs::File::options().read(true).write(true).open(&path).expect("open the file");
        file.write_all_at(b"x", 1 << 20).expect("write the file");
        // If the kernel collects writes, it may have data that the back end does not have yet. So
        // lseek(2) must not report a hole before the end of the file.
        let is_through = write_cache == WriteCache::Through;
        let (data, hole) = if is_through { (1 << 20, 0) } else { (0, (1 << 20) + 1) };
        assert_eq!(rustix::fs::seek(&file, Look::Data(0)), Ok(data));
        assert_eq!(rustix::fs::seek(&file, Look::Hole(0)), Ok(hole));
        assert_eq!(rustix::fs::seek(&file, Look::Data(2 << 20)), Err(Errno::NXIO));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        rustix::fs::fallocate(&file, punch, 1 << 20, 4096).expect("change the allocation");
        assert_eq!(file.metadata().expect("read the attributes").len(), (1 << 20) + 1);
        rustix::fs::fallocate(&file, FallocateFlags::empty(), 0, 2 << 20)
            .expect("change the allocation");
        assert_eq!(file.metadata().expect("read the attributes").len(), 2 << 20);
        assert_eq!(fs::read(&path).expect("read the file"), vec![0; 2 << 20]);
    }
}

#[test]
fn handle_of_the_back_end_is_passed_back_unchanged() {
    let options = [Options::exclusive(), Options::shared()];
    let options = options.into_iter().flat_map(|o| [o.clone().with_server_permissions(), o]);
    for (options, handle) in
        options.flat_map(|o| [5, 1 << 63 | 5, u64::MAX].map(|h| (o.clone(), h)))
    {
        let Some(site) = Site::new(Arc::new(Hooked::with_handle(handle)), options) else { return };
        let path = site.path("file");
        fs::write(&path, "123").expect("write the file");
        let mut file =
            fs::File::options().read(true).append(true).open(&path).expect("open the file");
        file.write_all(b"45").expect("append to the file");
        let mut read = [0; 6];
        assert_eq!(file.read_at(&mut read, 0).expect("read the file"), 5, "{handle:x}");
        assert_eq!(&read[..5], b"12345");
    }
}

#[test]
fn file_is_closed_if_its_creation_fails_after_the_open() {
    let fs = Arc::new(Hooked::hiding_attributes());
    let server =
        Server::new(Arc::<Hooked>::clone(&fs), Options::shared()).expect("start the server");
    let caller = Caller { uid: 0, gid: 0, pid: std::process::id() };
    let create = || server.create(caller, 1, b"file", &NewFile::new(0o644), 0);
    let (file, opened) = create().expect("create the file");
    assert_eq!(fs.open_files(), 1);
    server.release(file.node, opened.handle, None).expect("close the file");
    assert_eq!(create(), Err(Errno::IO));
    assert_eq!((fs.open_files(), server.counters().lookups), (0, 1));
}

#[test]
fn copy_file_range_copies_everything() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let bytes: Vec<u8> = (0..3 << 20).map(|at: u32| ((at * 31) >> 3) as u8).collect();
    fs::write(site.path("from"), &bytes).expect("write the file");
    let from = fs::File::open(site.path("from")).expect("open the file");
    let to = fs::File::create(site.path("to")).expect("create the file");
    let (mut here, mut there) = (5, 0);
    loop {
        let left = bytes.len() * 2;
        let copied =
            rustix::fs::copy_file_range(&from, Some(&mut here), &to, Some(&mut there), left);
        if copied.expect("copy the bytes") == 0 {
            break;
        }
    }
    assert_eq!(fs::read(site.path("to")).expect("read the file"), bytes[5..]);
}

/// The store gets the space of a removed file only when the forget of the file arrives. So a copy
/// that finds the store full is repeated.
#[test]
fn copy_is_retried_when_the_store_is_full() {
    let fs = Arc::new(Hooked::new(|_, _| {}));
    let Some(site) = Site::new(Arc::<Hooked>::clone(&fs), Options::exclusive()) else { return };
    fs::write(site.path("from"), "text").expect("write the file");
    let from = fs::File::open(site.path("from")).expect("open the file");
    let to = fs::File::create(site.path("to")).expect("create the file");
    let copy = || rustix::fs::copy_file_range(&from, Some(&mut 0), &to, Some(&mut 0), 4);
    fs.fill_for(2);
    assert_eq!(copy(), Ok(4));
    assert_eq!(fs::read(site.path("to")).expect("read the file"), b"text");
    fs.fill_for(u64::MAX);
    assert_eq!(copy(), Err(Errno::NOSPC));
}

#[test]
fn changes_are_retried_when_the_store_is_full() {
    let fs = Arc::new(Hooked::new(|_, _| {}));
    let Some(site) = Site::new(Arc::<Hooked>::clone(&fs), Options::exclusive()) else { return };
    let path = |name| site.path(name);
    fs::write(path("a"), "text").expect("write the file");
    let writable = fs::File::options().write(true).open(path("a")).expect("open the file");
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
        fs.fill_for(u64::MAX);
        assert_eq!(change(), Err(Errno::NOSPC), "{what}");
        fs.fill_for(2);
        if change().is_err() {
            refused.push(what);
            fs.fill_for(0);
            change().expect("a retry finds space");
        }
        assert_eq!(fs.is_full_for(), 0, "{what} was retried");
    }
    assert_eq!(refused, [""; 0]);
    assert_eq!(
        fs::metadata(path("c")).expect("read the attributes of the renamed link").nlink(),
        2
    );
}

#[test]
fn times_before_1970_survive() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::write(site.path("file"), "").expect("write the file");
    let file = fs::File::open(site.path("file")).expect("open the file");
    for (tv_sec, tv_nsec) in [(-2, 500_000_000), (-1, 0), (0, 1), (-1 << 33, 999_999_999)] {
        let time = Timespec { tv_sec, tv_nsec };
        let times = Timestamps { last_access: time, last_modification: time };
        rustix::fs::futimens(&file, &times).expect("set the times");
        site.mount().kernel_cache().invalidate_inode(2).expect("notify the kernel");
        let metadata = file.metadata().expect("read the attributes");
        assert_eq!((metadata.mtime(), metadata.mtime_nsec()), (tv_sec, tv_nsec));
        assert_eq!((metadata.atime(), metadata.atime_nsec()), (tv_sec, tv_nsec));
    }
}

#[test]
fn invalidated_inode_is_read_again_by_kernel_and_server() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let Some(site) = Site::new(Arc::<Tmpfs>::clone(&fs), Options::exclusive()) else { return };
    fs::write(site.path("before"), "").expect("write the file");
    let root = fs.root().expect("read the root's attributes").ino;
    let set = SetAttr::default().with_mode(0o2777).with_gid(4242);
    fs.setattr(Node::detached(root, FileKind::Directory), &set).expect("change the attributes");
    let cache = site.mount().kernel_cache();
    cache.invalidate_inode(root).expect("notify the kernel");
    cache.invalidate_inode(root + 1000).expect("an unknown inode is no error");
    fs::write(site.path("after"), "").expect("write the file");
    let group = |path| fs::metadata(path).expect("read the attributes").gid();
    assert_eq!((group(site.root().to_owned()), group(site.path("after"))), (4242, 4242));
    assert_ne!(group(site.path("before")), 4242);
}

#[test]
fn xattrs_are_probed_replaced_and_removed() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let path = site.path("file");
    fs::write(&path, "").expect("write the file");
    let get = |buf: &mut [u8]| rustix::fs::getxattr(&path, "user.k", buf);
    assert_eq!(get(&mut [0; 8]), Err(Errno::NODATA));
    rustix::fs::setxattr(&path, "user.k", b"value", XattrFlags::empty())
        .expect("set the attribute");
    let again = rustix::fs::setxattr(&path, "user.k", b"", XattrFlags::CREATE);
    assert_eq!(again, Err(Errno::EXIST));
    assert_eq!(rustix::fs::getxattr_query(&path, "user.k"), Ok(5));
    assert_eq!(get(&mut [0; 4]), Err(Errno::RANGE));
    assert_eq!(get(&mut [0; 5]), Ok(5));
    assert_eq!(rustix::fs::listxattr_query(&path), Ok(7));
    let big = vec![1; 65537];
    let set = rustix::fs::setxattr(&path, "user.big", &big, XattrFlags::empty());
    assert_eq!(set, Err(Errno::TOOBIG));
    rustix::fs::removexattr(&path, "user.k").expect("remove the attribute");
    assert_eq!(rustix::fs::removexattr(&path, "user.k"), Err(Errno::NODATA));
}

fn succeeds_as_other_user(site: &Site, gid: u32, script: &str) -> bool {
    let mut command = Command::new("sh");
    command.args(["-c", script]).current_dir(site.root()).uid(65534).gid(gid);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().expect("run the shell").success()
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
            fs::set_permissions(site.path(name), permissions).expect("change the mode");
        };
        fs::write(site.path("secret"), "x").expect("write the file");
        fs::create_dir(site.path("closed")).expect("make the folder");
        fs::write(site.path("closed/file"), "x").expect("write the file");
        mode("secret", 0o640);
        mode("closed", 0o700);
        std::os::unix::fs::chown(site.path("secret"), Some(0), Some(4242))
            .expect("change the owner");
        assert!(!succeeds_as_other_user(&site, 65534, "cat secret"));
        assert!(succeeds_as_other_user(&site, 4242, "cat secret"));
        assert!(!succeeds_as_other_user(&site, 4242, "echo >> secret"));
        // Root reads the file, so the kernel and the server have it in their caches. The other user
        // must still be refused.
        assert_eq!(fs::read_to_string(site.path("closed/file")).expect("read the file"), "x");
        assert!(!succeeds_as_other_user(&site, 65534, "cat closed/file"));
        assert!(!succeeds_as_other_user(&site, 65534, "cd closed"));
        assert!(!succeeds_as_other_user(&site, 65534, "rm -f secret"), "the root is sticky");
        assert!(succeeds_as_other_user(
            &site,
            65534,
            "umask 027 && echo x > own && test $(stat -c %a own) = 640"
        ));
        assert!(succeeds_as_other_user(&site, 65534, "rm own"));
        assert!(!succeeds_as_other_user(&site, 65534, "mknod device c 1 3"));
        assert!(succeeds_as_other_user(&site, 65534, "mkfifo fifo && test -p fifo"));
    }
}
