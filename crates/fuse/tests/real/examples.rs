//! Tests of the examples. The tests of the example `mirror` are in `by_path`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::Write as _;
use std::os::unix::fs::{FileExt as _, MetadataExt as _, PermissionsExt as _, symlink};
use std::path::Path;
use std::sync::Arc;
use std::sync::mpsc::Sender;
use std::time::{Duration, Instant, SystemTime};

use corewalk::{ByPath, Errno, errno_of};
use corewalk_base::primitives::thread;
use corewalk_fuse::Options;
use corewalk_testkit::require::has_fuse;
use fuser::{BackgroundSession, MountOption};
use rustix::fs::{CWD, RenameFlags, renameat_with, statvfs};
use tar::{Builder, EntryType, Header};

use crate::site::{Folder, Host, Site, watch};

#[path = "../../examples/archive.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod archive;
#[path = "../../examples/hello.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod hello;
#[path = "../../examples/memory.rs"]
#[expect(dead_code, reason = "the example's own main")]
pub(crate) mod memory;
#[path = "../../examples/table.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod table;
#[path = "../../examples/watch.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod watching;

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).expect("list the folder");
    let name = |entry: fs::DirEntry| entry.file_name().into_string().expect("the name is text");
    let mut names: Vec<_> = entries.map(|entry| name(entry.expect("read an entry"))).collect();
    names.sort();
    names
}

fn read(path: &Path) -> String {
    fs::read_to_string(path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

#[test]
fn hello_shows_one_file_that_cannot_be_changed() {
    let Some(site) = Site::new(Arc::new(hello::Hello), Options::exclusive()) else { return };
    assert_eq!(names(site.root()), ["hello.txt"]);
    assert_eq!(read(&site.path("hello.txt")), "Hello World!\n");
    let file = File::open(site.path("hello.txt")).expect("open the file");
    let mut buf = [0; 16];
    assert_eq!(file.read_at(&mut buf, 6).expect("read at an offset"), 7);
    assert_eq!(&buf[..7], b"World!\n");
    assert_eq!(fs::read(site.path("other")).map_err(errno_of), Err(Errno::NOENT));
    assert_eq!(fs::write(site.path("new"), "").map_err(errno_of), Err(Errno::ROFS));
    assert_eq!(fs::remove_file(site.path("hello.txt")).map_err(errno_of), Err(Errno::ROFS));
}

#[test]
fn memory_keeps_contents_and_attributes() {
    let Some(site) = Site::new(memory::memory(), Options::exclusive()) else { return };
    let (file, link) = (site.path("d/f"), site.path("link"));
    fs::create_dir(site.path("d")).expect("make the folder");
    fs::write(&file, "some text").expect("write the file");
    symlink("d/f", &link).expect("make the link");
    assert_eq!(read(&link), "some text");
    assert_eq!(fs::read_link(&link).expect("read the link"), Path::new("d/f"));
    assert_eq!(fs::symlink_metadata(&link).expect("read the attributes").len(), 3);

    let open = OpenOptions::new().append(true).open(&file).expect("open the file");
    (&open).write_all(b" and more").expect("append");
    open.set_len(4).expect("cut the file");
    open.set_len(6).expect("extend the file");
    assert_eq!(read(&file), "some\0\0");
    let time = SystemTime::UNIX_EPOCH + Duration::new(1_000_000_000, 5);
    open.set_times(fs::FileTimes::new().set_accessed(time).set_modified(time)).expect("set times");
    fs::set_permissions(&file, Permissions::from_mode(0o640)).expect("set the mode");
    let found = fs::metadata(&file).expect("read the attributes");
    assert_eq!((found.mode(), found.len(), found.modified().ok()), (0o100_640, 6, Some(time)));
    if rustix::process::geteuid().is_root() {
        std::os::unix::fs::chown(&file, Some(12), Some(34)).expect("set the owner");
        let found = fs::metadata(&file).expect("read the attributes");
        assert_eq!((found.uid(), found.gid()), (12, 34));
    }
}

#[test]
fn memory_renames_directories_with_all_that_is_below() {
    let Some(site) = Site::new(memory::memory(), Options::exclusive()) else { return };
    for dir in ["a/b", "a.b", "c"] {
        fs::create_dir_all(site.path(dir)).expect("make the folder");
        fs::write(site.path(dir).join("f"), dir).expect("write the file");
    }
    let rename = |from: &str, to: &str, flags| {
        renameat_with(CWD, site.path(from), CWD, site.path(to), flags)
    };
    assert_eq!(rename("a", "c", RenameFlags::empty()), Err(Errno::NOTEMPTY));
    assert_eq!(rename("a", "c", RenameFlags::NOREPLACE), Err(Errno::EXIST));
    let changed = || {
        let dir = fs::metadata(site.path("new")).or_else(|_| fs::metadata(site.path("a")));
        dir.map(|found| (found.ctime(), found.ctime_nsec())).expect("read the attributes")
    };
    let before = changed();
    rename("a", "new", RenameFlags::NOREPLACE).expect("rename to a free name");
    assert!(changed() > before, "a rename sets the change time");
    assert_eq!(names(site.root()), ["a.b", "c", "new"]);
    assert_eq!(read(&site.path("new/b/f")), "a/b");
    rename("new", "c", RenameFlags::EXCHANGE).expect("exchange the folders");
    assert_eq!((read(&site.path("c/b/f")), read(&site.path("new/f"))), ("a/b".into(), "c".into()));
    rename("c/b/f", "a.b/f", RenameFlags::empty()).expect("replace a file");
    assert_eq!(read(&site.path("a.b/f")), "a/b");
    assert_eq!(fs::remove_dir(site.path("new")).map_err(errno_of), Err(Errno::NOTEMPTY));
    for dir in ["a.b", "c", "new"] {
        fs::remove_dir_all(site.path(dir)).expect("remove the folder");
    }
    assert_eq!(names(site.root()), [""; 0]);
}

#[test]
fn memory_counts_its_space() {
    let Some(site) = Site::new(memory::memory(), Options::exclusive()) else { return };
    let free = || statvfs(site.root()).expect("read the free space").f_bavail;
    let before = free();
    let file = File::create(site.path("f")).expect("make the file");
    file.set_len(1 << 20).expect("extend the file");
    assert_eq!(free(), before - 256);
    assert_eq!(file.set_len(1 << 40).map_err(errno_of), Err(Errno::NOSPC));
    assert_eq!(file.metadata().expect("read the attributes").len(), 1 << 20);
    // The removed file stays until it is closed.
    fs::remove_file(site.path("f")).expect("remove the file");
    assert_eq!(free(), before - 256);
    drop(file);
    site.wait_for("the last use of the file", |_| free() == before);
}

fn header(kind: EntryType, size: u64) -> Header {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_mode(if kind == EntryType::Directory { 0o750 } else { 0o640 });
    header.set_uid(12);
    header.set_gid(34);
    header.set_mtime(1_000_000_000);
    header.set_size(size);
    header
}

fn add(tar: &mut Builder<File>, kind: EntryType, path: &str, target: &str, content: &[u8]) {
    let mut header = header(kind, content.len() as u64);
    let added = match target {
        "" => tar.append_data(&mut header, path, content),
        target => tar.append_link(&mut header, path, target),
    };
    added.unwrap_or_else(|error| panic!("{path}: {error}"));
}

#[test]
fn archive_shows_its_members() {
    let folder = Folder::new();
    let path = folder.path().join("test.tar");
    let mut tar = Builder::new(File::create(&path).expect("make the archive"));
    let (long, numbers) = (format!("d/{}", "n".repeat(200)), [1, 2, 3].repeat(100_000));
    add(&mut tar, EntryType::Directory, "d", "", b"");
    add(&mut tar, EntryType::Regular, "d/f", "", b"an older version");
    add(&mut tar, EntryType::Regular, "d/f", "", b"some text");
    add(&mut tar, EntryType::Regular, &long, "", &numbers);
    add(&mut tar, EntryType::Symlink, "link", "d/f", b"");
    add(&mut tar, EntryType::Link, "hard", "d/f", b"");
    add(&mut tar, EntryType::Regular, "no/entry/for/these", "", b"below");
    add(&mut tar, EntryType::Char, "device", "", b"");
    drop(tar.into_inner().expect("end the archive"));

    let shown = archive::Tar::open(&path);
    fs::remove_file(&path).expect("remove the archive");
    let shown = Arc::new(ByPath::new(shown.expect("read the archive")));
    let Some(site) = Site::new(shown, Options::exclusive()) else { return };
    assert_eq!(names(site.root()), ["d", "hard", "link", "no"]);
    assert_eq!(names(&site.path("d")), ["f", &long[2..]]);
    for name in ["d/f", "hard", "link"] {
        assert_eq!(read(&site.path(name)), "some text", "{name}");
    }
    assert_eq!(read(&site.path("no/entry/for/these")), "below");
    assert_eq!(fs::read(site.path(&long)).expect("read the file"), numbers);
    let file = File::open(site.path(&long)).expect("open the file");
    let mut buf = [0; 4];
    assert_eq!(file.read_at(&mut buf, 299_998).expect("read at an offset"), 2);
    assert_eq!(buf, [2, 3, 0, 0]);
    assert_eq!(fs::read_link(site.path("link")).expect("read the link"), Path::new("d/f"));
    let found = fs::metadata(site.path("d/f")).expect("read the attributes");
    assert_eq!((found.mode(), found.uid(), found.gid()), (0o100_640, 12, 34));
    assert_eq!(found.mtime(), 1_000_000_000);
    assert_eq!(fs::metadata(site.path("d")).expect("read the attributes").mode(), 0o040_750);
}

#[test]
fn archive_leaves_out_paths_above_its_root() {
    let folder = Folder::new();
    let path = folder.path().join("test.tar");
    let mut tar = Builder::new(File::create(&path).expect("make the archive"));
    for name in ["../above", "/top", "./d/./f"] {
        let mut header = header(EntryType::Regular, 0);
        // `Builder` refuses such paths.
        header.as_old_mut().name[..name.len()].copy_from_slice(name.as_bytes());
        header.set_cksum();
        tar.append(&header, &b""[..]).expect("add the member");
    }
    drop(tar.into_inner().expect("end the archive"));
    let shown = archive::Tar::open(&path);
    fs::remove_file(&path).expect("remove the archive");
    let shown = Arc::new(ByPath::new(shown.expect("read the archive")));
    let Some(site) = Site::new(shown, Options::exclusive()) else { return };
    assert_eq!(names(site.root()), ["d", "top"]);
    assert_eq!(names(&site.path("d")), ["f"]);
}

struct Table {
    session: Option<BackgroundSession>,
    folder: Folder,
    _watched: Sender<()>,
}

impl Table {
    fn new(from: &Path) -> Table {
        let folder = Folder::new();
        let shown = table::Shown::new(from.to_owned()).expect("make the table");
        let mut config = fuser::Config::default();
        config.mount_options = vec![MountOption::RO];
        let session = fuser::spawn_mount(shown, folder.path(), &config).expect("mount the table");
        let watched = watch(folder.path());
        Table { session: Some(session), folder, _watched: watched }
    }
}

impl Drop for Table {
    fn drop(&mut self) {
        // Unmount first, because the drop of `folder` removes the directory of the mount.
        if let Some(Err(error)) = self.session.take().map(BackgroundSession::umount_and_join) {
            eprintln!("{}: {error}", self.folder.path().display());
        }
    }
}

#[test]
fn table_follows_changes_of_the_host() {
    if !has_fuse() {
        return;
    }
    let host = Host::new();
    let from = host.path();
    fs::create_dir(from.join("d")).expect("make the folder");
    fs::write(from.join("d/f"), "some text").expect("write the file");
    symlink("d/f", from.join("link")).expect("make the link");

    let table = Table::new(from);
    let point = table.folder.path();
    assert_eq!(names(point), ["d", "link"]);
    assert_eq!(read(&point.join("link")), "some text");
    assert_eq!(fs::read_link(point.join("link")).expect("read the link"), Path::new("d/f"));
    let old = fs::metadata(point.join("d/f")).expect("read the attributes");
    assert_eq!(old.len(), 9);
    assert_eq!(fs::write(point.join("new"), "").map_err(errno_of), Err(Errno::ROFS));

    fs::write(from.join("next"), "a new version").expect("write the file");
    fs::rename(from.join("next"), from.join("d/f")).expect("replace the file");
    fs::remove_file(from.join("link")).expect("remove the link");
    // Wait, because the kernel may use the old names for a second.
    let begin = Instant::now();
    let is_new = |found: fs::Metadata| found.ino() != old.ino();
    while point.join("link").exists() || !fs::metadata(point.join("d/f")).is_ok_and(is_new) {
        assert!(begin.elapsed() < Duration::from_secs(20), "the old file is still shown");
        thread::yield_now();
    }
    assert_eq!(read(&point.join("d/f")), "a new version");
}

/// The kernel may cache for a day, and also caches that a name is missing. So the example must tell
/// the kernel of each change.
#[test]
fn watch_shows_changes_on_the_host_at_once() {
    let host = Host::new();
    let (dir, below) = (host.path().join("dir"), host.path().join("dir/file"));
    fs::create_dir(&dir).expect("make the folder");
    fs::write(&below, "old").expect("write the file");
    let watching = watching::Watch::new(host.path().to_owned()).expect("watch the folder");
    let shown = ByPath::new(watching::Shown(host.path().to_owned()));
    let Some(site) = Site::new(Arc::new(shown), Options::exclusive()) else { return };
    let kernel = site.mount().kernel_cache().clone();
    thread::spawn(move || {
        let ended = watching.report_to(&kernel);
        eprintln!("changes are not noticed any more: {ended:?}");
    });
    let eventually = |what: &str, holds: &dyn Fn() -> bool| {
        let begin = Instant::now();
        while !holds() {
            assert!(begin.elapsed() < Duration::from_secs(20), "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    };
    assert_eq!(read(&site.path("dir/file")), "old");
    assert!(!site.path("new").exists());
    fs::write(&below, "longer").expect("write the file");
    eventually("new content", &|| read(&site.path("dir/file")) == "longer");
    fs::create_dir(host.path().join("new")).expect("make the folder");
    eventually("a new folder", &|| site.path("new").is_dir());
    assert!(!site.path("new/file").exists());
    fs::write(host.path().join("new/file"), "").expect("write the file");
    eventually("a file in a new folder", &|| site.path("new/file").exists());
    fs::rename(&below, host.path().join("moved")).expect("rename the file");
    eventually("a file that has moved", &|| site.path("moved").exists());
    eventually("a name that is gone", &|| !site.path("dir/file").exists());
}

/// After events of inotify(7) were lost, the kernel must ask for all names again. This includes
/// names of files that did not exist.
#[test]
fn watch_shows_changes_whose_events_were_lost() {
    let host = Host::new();
    let at = |name: &str| host.path().join(name);
    fs::create_dir(at("dir")).expect("make the folder");
    for name in ["dir/file", "dir/gone", "gone", "kept"] {
        fs::write(at(name), "old").expect("write the file");
    }
    let watching = watching::Watch::new(host.path().to_owned()).expect("watch the folder");
    let shown = ByPath::new(watching::Shown(host.path().to_owned()));
    let Some(site) = Site::new(Arc::new(shown), Options::exclusive()) else { return };
    let exists = |name: &str| site.path(name).exists();
    let all = ["dir/file", "dir/gone", "gone", "kept", "new", "dir/new"];
    let before = [true, true, true, true, false, false];
    assert_eq!(all.map(exists), before);
    assert_eq!(names(site.root()), ["dir", "gone", "kept"]);
    let max = read(Path::new("/proc/sys/fs/inotify/max_queued_events"));
    for _ in 0..=max.trim().parse::<u32>().expect("a number") / 2 {
        fs::write(at("dir/filler"), "").expect("write the file");
        fs::remove_file(at("dir/filler")).expect("remove the file");
    }
    fs::rename(at("dir/file"), at("new")).expect("rename the file");
    fs::rename(at("gone"), at("dir/new")).expect("rename the file");
    fs::remove_file(at("dir/gone")).expect("remove the file");
    assert_eq!(all.map(exists), before, "control: the kernel answers from its cache");
    let kernel = site.mount().kernel_cache().clone();
    thread::spawn(move || watching.report_to(&kernel));
    let begin = Instant::now();
    while all.map(exists) != [false, false, false, true, true, true] {
        assert!(begin.elapsed() < Duration::from_secs(20), "{:?}", all.map(exists));
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(names(site.root()), ["dir", "kept", "new"]);
    assert_eq!(names(&site.path("dir")), ["new"]);
}
