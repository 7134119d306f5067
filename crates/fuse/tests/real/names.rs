//! Names, paths, renames.

use std::fs;
use std::io::Write as _;
use std::os::fd::AsFd as _;
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;

use corewalk::attr::mode::S_IFLNK;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, FileKind, FileSystem as _, Make, Name, Node};
use corewalk_fuse::Options;
use rustix::fs::{CWD, RenameFlags, renameat_with};

use crate::hooked::Hooked;
use crate::site::Site;

fn errno<T>(result: std::io::Result<T>) -> Option<Errno> {
    result.err().and_then(|error| Errno::from_io_error(&error))
}

#[test]
fn name_of_255_bytes_fits_and_256_do_not() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (longest, too_long) = ("n".repeat(255), "n".repeat(256));
    fs::write(site.path(&longest), "x").expect("it fits");
    assert_eq!(fs::read_to_string(site.path(&longest)).expect("it exists"), "x");
    assert_eq!(errno(fs::write(site.path(&too_long), "x")), Some(Errno::NAMETOOLONG));
    assert_eq!(errno(fs::metadata(site.path(&too_long))), Some(Errno::NAMETOOLONG));
    let renamed = fs::rename(site.path(&longest), site.path(&too_long));
    assert_eq!(errno(renamed), Some(Errno::NAMETOOLONG));
}

#[test]
fn path_of_4095_bytes_fits_and_4096_do_not() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let mut path = site.root().to_str().expect("a plain path").to_owned();
    while path.len() < 4095 - 130 {
        path = format!("{path}/{}", "d".repeat(100));
        fs::create_dir(&path).expect("a folder");
    }
    let fits = format!("{path}/{}", "f".repeat(4095 - path.len() - 1));
    assert_eq!(fits.len(), 4095);
    fs::write(&fits, "x").expect("it fits");
    assert_eq!(fs::read_to_string(&fits).expect("it exists"), "x");
    assert_eq!(errno(fs::metadata(format!("{fits}f"))), Some(Errno::NAMETOOLONG));
}

#[test]
fn forty_symbolic_links_are_followed_and_41_are_not() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::write(site.path("link0"), "end").expect("a file");
    for at in 1..=41 {
        symlink(format!("link{}", at - 1), site.path(&format!("link{at}"))).expect("a link");
    }
    assert_eq!(fs::read_to_string(site.path("link40")).expect("40 links"), "end");
    assert_eq!(errno(fs::read_to_string(site.path("link41"))), Some(Errno::LOOP));
    symlink("loop", site.path("loop")).expect("a link");
    assert_eq!(errno(fs::metadata(site.path("loop"))), Some(Errno::LOOP));
}

#[test]
fn rename_flags_are_obeyed() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b, c) = (site.path("a"), site.path("b"), site.path("c"));
    fs::write(&a, "a").expect("a file");
    fs::create_dir(&b).expect("a folder");
    let rename = |from, to, flags| renameat_with(CWD, from, CWD, to, flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename(&a, &c, RenameFlags::EXCHANGE), Err(Errno::NOENT));
    assert_eq!(rename(&a, &b, RenameFlags::EXCHANGE), Ok(()));
    assert!(a.is_dir());
    assert_eq!(fs::read_to_string(&b).expect("a file"), "a");
    assert_eq!(rename(&b, &c, RenameFlags::NOREPLACE), Ok(()));
    assert_eq!(rename(&c, &b, RenameFlags::WHITEOUT), Err(Errno::INVAL));
    assert_eq!(fs::read_to_string(&c).expect("a file"), "a");
}

/// Trap P3.
#[test]
fn directory_rename_keeps_what_is_below_in_reach() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::create_dir_all(site.path("a/b/c/d")).expect("folders");
    fs::write(site.path("a/b/c/d/file"), "x").expect("a file");
    let file = fs::File::open(site.path("a/b/c/d/file")).expect("it exists");
    for (from, to, now) in [
        ("a/b/c", "a/b/C", "a/b/C/d/file"),
        ("a/b", "b", "b/C/d/file"),
        ("a", "b/a", "b/C/d/file"),
        ("b", "B", "B/C/d/file"),
    ] {
        let old = site.path(from);
        fs::rename(&old, site.path(to)).expect("a rename");
        assert!(!old.exists());
        assert_eq!(fs::read_to_string(site.path(now)).expect("it moved along"), "x");
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
        assert_eq!(fs::read_link(link).expect("a path"), site.path(now));
        let ino = file.metadata().expect("it is open").ino();
        let inode = site.server().vfs().inode(ino).expect("it is held");
        assert_eq!(inode.path(), Ok(format!("/{now}").into_bytes()));
    }
}

#[test]
fn hard_links_share_their_attributes_under_long_timeouts() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    fs::write(&a, "x").expect("a file");
    fs::hard_link(&a, &b).expect("a link");
    for path in [&a, &b] {
        let metadata = fs::metadata(path).expect("it exists");
        assert_eq!((metadata.nlink(), metadata.ino()), (2, fs::metadata(&a).expect("it").ino()));
    }
    fs::set_permissions(&b, fs::Permissions::from_mode(0o600)).expect("a mode");
    assert_eq!(fs::metadata(&a).expect("it exists").mode() & 0o777, 0o600);
    fs::remove_file(&a).expect("it exists");
    assert_eq!(fs::metadata(&b).expect("it exists").nlink(), 1);
}

#[test]
fn root_may_have_any_number() {
    let Some(site) = Site::new(Arc::new(Hooked::with_root(5)), Options::exclusive()) else {
        return;
    };
    // One of these would have the number 5, and has 1: it must not be taken for the root.
    for at in 0..10 {
        fs::create_dir(site.path(&format!("d{at}"))).expect("a folder");
        fs::write(site.path(&format!("d{at}/file")), format!("{at}")).expect("a file");
    }
    let mut numbers = vec![fs::metadata(site.root()).expect("a root").ino()];
    for at in 0..10 {
        let text = fs::read_to_string(site.path(&format!("d{at}/file"))).expect("a file");
        assert_eq!(text, format!("{at}"));
        for name in [format!("d{at}"), format!("d{at}/file")] {
            numbers.push(fs::metadata(site.path(&name)).expect("it exists").ino());
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 21, "each has a number of its own");
    assert_eq!(fs::read_dir(site.root()).expect("a folder").count(), 10);
}

#[test]
fn invalidation_shows_what_others_have_changed() {
    let tmpfs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    // A promise that is broken below; so somebody has to tell.
    let Some(site) = Site::new(Arc::clone(&tmpfs) as _, Options::exclusive()) else { return };
    let root = tmpfs.root().expect("a root");
    let dir = Node::detached(root.ino, FileKind::Directory);
    let name = Name::new(b"theirs").expect("a name");
    assert!(!site.path("theirs").exists());
    let made = tmpfs.make(dir, name, &Make::new(0o644, 0, 0)).expect("a file");
    assert!(!site.path("theirs").exists(), "the kernel was told that it does not exist");
    site.mount().kernel_cache().invalidate_entry(root.ino, name).expect("the kernel listens");
    assert_eq!(fs::metadata(site.path("theirs")).expect("it is seen now").len(), 0);
    let node = Node::detached(made.ino, FileKind::Regular);
    tmpfs.write(node, 0, 0, b"text").expect("room");
    assert_eq!(fs::metadata(site.path("theirs")).expect("it exists").len(), 0);
    site.mount().kernel_cache().invalidate_inode(made.ino).expect("the kernel listens");
    assert_eq!(fs::read_to_string(site.path("theirs")).expect("it exists"), "text");
}

/// The kernel, which takes the name for free, asks to make it, and looks again.
#[test]
fn file_to_be_made_that_is_a_link_by_now_is_opened_behind_it() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let negative_timeout = std::time::Duration::from_secs(600);
    let options = Options { negative_timeout, ..Options::shared() };
    let Some(site) = Site::new(Arc::<Tmpfs>::clone(&fs), options) else { return };
    assert_eq!(errno(fs::metadata(site.path("link"))), Some(Errno::NOENT));
    let root = Node::detached(fs.root().expect("a root").ino, FileKind::Directory);
    let link = Make { target: b"file", ..Make::new(S_IFLNK | 0o777, 0, 0) };
    fs.make(root, Name::new(b"link").expect("a name"), &link).expect("the name is free");
    for text in ["one", "two"] {
        let opened = fs::File::options().append(true).create(true).open(site.path("link"));
        opened.and_then(|mut file| file.write_all(text.as_bytes())).expect("it can be made");
    }
    assert_eq!(fs::read_to_string(site.path("file")).expect("it was made"), "onetwo");
    fs::remove_file(site.path("link")).expect("it is there");
    fs::remove_file(site.path("file")).expect("it is there");
    site.wait_for("all is forgotten", |counters| counters.lookups == 0);
}
