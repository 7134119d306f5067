//! Names, paths and renames.

use std::fs;
use std::io::Write as _;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink};
use std::sync::Arc;

use corewalk::attr::mode::S_IFLNK;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, FileKind, FileSystem as _, Make, Name, Node, RenameMode};
use corewalk_fuse::Options;
use corewalk_testkit::require::{Need, skip};
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
    fs::write(site.path(&longest), "x").expect("write the file");
    assert_eq!(fs::read_to_string(site.path(&longest)).expect("read the file"), "x");
    assert_eq!(errno(fs::write(site.path(&too_long), "x")), Some(Errno::NAMETOOLONG));
    assert_eq!(errno(fs::metadata(site.path(&too_long))), Some(Errno::NAMETOOLONG));
    let renamed = fs::rename(site.path(&longest), site.path(&too_long));
    assert_eq!(errno(renamed), Some(Errno::NAMETOOLONG));
}

#[test]
fn path_of_4095_bytes_fits_and_4096_do_not() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let mut path = site.root().to_str().expect("the path is UTF-8").to_owned();
    while path.len() < 4095 - 130 {
        path = format!("{path}/{}", "d".repeat(100));
        fs::create_dir(&path).expect("make the folder");
    }
    let fits = format!("{path}/{}", "f".repeat(4095 - path.len() - 1));
    assert_eq!(fits.len(), 4095);
    fs::write(&fits, "x").expect("write the file");
    assert_eq!(fs::read_to_string(&fits).expect("read the file"), "x");
    assert_eq!(errno(fs::metadata(format!("{fits}f"))), Some(Errno::NAMETOOLONG));
}

#[test]
fn forty_symbolic_links_are_followed_and_41_are_not() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::write(site.path("link0"), "end").expect("write the file");
    for at in 1..=41 {
        symlink(format!("link{}", at - 1), site.path(&format!("link{at}"))).expect("make the link");
    }
    assert_eq!(fs::read_to_string(site.path("link40")).expect("follow 40 links"), "end");
    assert_eq!(errno(fs::read_to_string(site.path("link41"))), Some(Errno::LOOP));
    symlink("loop", site.path("loop")).expect("make the link");
    assert_eq!(errno(fs::metadata(site.path("loop"))), Some(Errno::LOOP));
}

#[test]
fn rename_flags_are_obeyed() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b, c) = (site.path("a"), site.path("b"), site.path("c"));
    fs::write(&a, "a").expect("write the file");
    fs::create_dir(&b).expect("make the folder");
    let rename = |from, to, flags| renameat_with(CWD, from, CWD, to, flags);
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    assert_eq!(rename(&a, &c, RenameFlags::EXCHANGE), Err(Errno::NOENT));
    assert_eq!(rename(&a, &b, RenameFlags::EXCHANGE), Ok(()));
    assert!(a.is_dir());
    assert_eq!(fs::read_to_string(&b).expect("read the file"), "a");
    assert_eq!(rename(&b, &c, RenameFlags::NOREPLACE), Ok(()));
    assert_eq!(rename(&c, &b, RenameFlags::WHITEOUT), Err(Errno::INVAL));
    assert_eq!(fs::read_to_string(&c).expect("read the file"), "a");
}

/// After a rename of a directory, the old path must no longer lead to the files below the
/// directory. Trap P3.
#[test]
fn directory_rename_keeps_descendants_reachable() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    fs::create_dir_all(site.path("a/b/c/d")).expect("make the folders");
    fs::write(site.path("a/b/c/d/file"), "x").expect("write the file");
    let file = fs::File::open(site.path("a/b/c/d/file")).expect("open the file");
    for (from, to, now) in [
        ("a/b/c", "a/b/C", "a/b/C/d/file"),
        ("a/b", "b", "b/C/d/file"),
        ("a", "b/a", "b/C/d/file"),
        ("b", "B", "B/C/d/file"),
    ] {
        let old = site.path(from);
        fs::rename(&old, site.path(to)).expect("rename the file");
        assert!(!old.exists());
        assert_eq!(
            fs::read_to_string(site.path(now)).expect("the file moved with its folder"),
            "x"
        );
        let link = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file.as_fd()));
        assert_eq!(fs::read_link(link).expect("read the link"), site.path(now));
        let ino = file.metadata().expect("read the attributes").ino();
        let inode = site.server().vfs().inode(ino).expect("the inode is in use");
        assert_eq!(inode.path(), Ok(format!("/{now}").into_bytes()));
    }
}

#[test]
fn hard_links_share_their_attributes_under_long_timeouts() {
    let Some(site) = Site::tmpfs(Options::exclusive()) else { return };
    let (a, b) = (site.path("a"), site.path("b"));
    fs::write(&a, "x").expect("write the file");
    fs::hard_link(&a, &b).expect("make the link");
    for path in [&a, &b] {
        let metadata = fs::metadata(path).expect("read the attributes");
        assert_eq!(
            (metadata.nlink(), metadata.ino()),
            (2, fs::metadata(&a).expect("read the attributes").ino())
        );
    }
    fs::set_permissions(&b, fs::Permissions::from_mode(0o600)).expect("change the mode");
    assert_eq!(fs::metadata(&a).expect("read the attributes").mode() & 0o777, 0o600);
    fs::remove_file(&a).expect("remove the file");
    assert_eq!(fs::metadata(&b).expect("read the attributes").nlink(), 1);
}

#[test]
fn root_may_have_any_number() {
    let Some(site) = Site::new(Arc::new(Hooked::with_root(5)), Options::exclusive()) else {
        return;
    };
    // `Hooked` gives the root the number 5, and number 1 to another file. The server must not
    // confuse that file with the root, whose node number is 1.
    for at in 0..10 {
        fs::create_dir(site.path(&format!("d{at}"))).expect("make the folder");
        fs::write(site.path(&format!("d{at}/file")), format!("{at}")).expect("write the file");
    }
    let mut numbers = vec![fs::metadata(site.root()).expect("read the attributes").ino()];
    for at in 0..10 {
        let text = fs::read_to_string(site.path(&format!("d{at}/file"))).expect("read the file");
        assert_eq!(text, format!("{at}"));
        for name in [format!("d{at}"), format!("d{at}/file")] {
            numbers.push(fs::metadata(site.path(&name)).expect("read the attributes").ino());
        }
    }
    numbers.sort_unstable();
    numbers.dedup();
    assert_eq!(numbers.len(), 21, "each has a number of its own");
    assert_eq!(fs::read_dir(site.root()).expect("list the folder").count(), 10);
}

#[test]
fn invalidation_shows_changes_by_other_programs() {
    let tmpfs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    // The test changes files on the back end in spite of `Options::exclusive`, and notifies the
    // server of each change.
    let Some(site) = Site::new(Arc::clone(&tmpfs) as _, Options::exclusive()) else { return };
    let root = tmpfs.root().expect("read the root's attributes");
    let dir = Node::detached(root.ino, FileKind::Directory);
    let name = Name::new(b"theirs").expect("the name is valid");
    assert!(!site.path("theirs").exists());
    let made = tmpfs.make(dir, name, &Make::new(0o644, 0, 0)).expect("make the file");
    assert!(!site.path("theirs").exists(), "the kernel was told that it does not exist");
    site.mount().kernel_cache().invalidate_entry(root.ino, name).expect("notify the kernel");
    assert_eq!(
        fs::metadata(site.path("theirs"))
            .expect("the name is visible after the invalidation")
            .len(),
        0
    );
    let node = Node::detached(made.ino, FileKind::Regular);
    tmpfs.write(node, 0, b"text").expect("write the file");
    assert_eq!(fs::metadata(site.path("theirs")).expect("read the attributes").len(), 0);
    site.mount().kernel_cache().invalidate_inode(made.ino).expect("notify the kernel");
    assert_eq!(fs::read_to_string(site.path("theirs")).expect("read the file"), "text");
}

/// After [`KernelCache::expire_all_names`], the kernel must ask for each name again. This includes
/// names that do not exist, names in listings, and names in a directory that is in use.
///
/// [`KernelCache::expire_all_names`]: corewalk_fuse::KernelCache::expire_all_names
#[test]
fn expiry_of_all_names_shows_changes_by_other_programs() {
    let tmpfs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let Some(site) = Site::new(Arc::clone(&tmpfs) as _, Options::exclusive()) else { return };
    fs::create_dir_all(site.path("a/b")).expect("make the folders");
    fs::write(site.path("a/b/old"), "old").expect("write the file");
    let held = fs::File::open(site.path("a/b")).expect("open the folder");
    let names = |dir: &std::path::Path| {
        let entries = fs::read_dir(dir).expect("list the folder");
        let mut names: Vec<_> =
            entries.map(|entry| entry.expect("read an entry").file_name()).collect();
        names.sort();
        names
    };
    let inside = format!("/proc/self/fd/{}", held.as_fd().as_raw_fd());
    let inside = std::path::Path::new(&inside);
    let seen = || {
        let len = |name: &str| fs::metadata(site.path(name)).ok().map(|found| found.len());
        let here = ["old", "new"].map(|name| fs::metadata(inside.join(name)).is_ok());
        let lens = [len("a/b/old"), len("a/b/new"), len("top")];
        (lens, here, names(site.root()), names(&site.path("a/b")), names(inside))
    };
    // Look several times. The first listing may tell the kernel that the directory has changed. In
    // that case only the second listing fills the kernel's cache.
    let before = [seen(), seen(), seen()][2].clone();
    assert_eq!((before.0, before.1), ([Some(3), None, None], [true, false]));

    let dir = |ino| Node::detached(ino, FileKind::Directory);
    let name = |name: &'static str| Name::new(name.as_bytes()).expect("the name is valid");
    let root = tmpfs.root().expect("read the root's attributes").ino;
    let a = tmpfs.lookup(dir(root), name("a")).expect("look the folder up").ino;
    let b = tmpfs.lookup(dir(a), name("b")).expect("look the folder up").ino;
    let rename = |from: &'static str, at, to: &'static str| {
        tmpfs.rename((dir(b), name(from)), (dir(at), name(to)), RenameMode::Replace)
    };
    rename("old", root, "top").expect("rename behind the cache");
    tmpfs.make(dir(b), name("new"), &Make::new(0o100_644, 0, 0)).expect("make the file");
    assert_eq!(seen(), before, "control: the kernel answers from its cache");

    match site.mount().kernel_cache().expire_all_names() {
        Err(Errno::INVAL) => return skip(Need::Machine, "Linux before 6.16"),
        expired => expired.expect("notify the kernel"),
    }
    let after = seen();
    assert_eq!((after.0, after.1), ([None, Some(0), Some(3)], [false, true]));
    assert_eq!((after.2, after.3), (vec!["a".into(), "top".into()], vec!["new".into()]));
    assert_eq!(after.4, ["new"]);
    let path = fs::read_link(inside).expect("the folder has a path");
    assert_eq!(path, site.path("a/b"), "a directory in use stays where it is");
    let requests = site.counters().requests;
    assert_eq!(seen().0, after.0);
    let asked = site.counters().requests - requests;
    assert!(asked <= 20, "{asked} requests");
}

/// Another program has made a symbolic link under a name that the kernel believes to be free. So
/// the kernel's create request fails. The kernel must then look the name up and open the link's
/// target.
#[test]
fn create_of_a_name_that_became_a_link_opens_its_target() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let negative_timeout = std::time::Duration::from_secs(600);
    let options = Options::shared().with_negative_timeout(negative_timeout);
    let Some(site) = Site::new(Arc::<Tmpfs>::clone(&fs), options) else { return };
    assert_eq!(errno(fs::metadata(site.path("link"))), Some(Errno::NOENT));
    let root =
        Node::detached(fs.root().expect("read the root's attributes").ino, FileKind::Directory);
    let link = Make::new(S_IFLNK | 0o777, 0, 0).with_target(b"file");
    fs.make(root, Name::new(b"link").expect("the name is valid"), &link).expect("make the file");
    for text in ["one", "two"] {
        let opened = fs::File::options().append(true).create(true).open(site.path("link"));
        opened
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .expect("create or open the file");
    }
    assert_eq!(fs::read_to_string(site.path("file")).expect("read the file"), "onetwo");
    fs::remove_file(site.path("link")).expect("remove the file");
    fs::remove_file(site.path("file")).expect("remove the file");
    site.wait_for("all is forgotten", |counters| counters.lookups == 0);
}
