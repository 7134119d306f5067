//! Tests that all other mounts see a change as soon as its call has returned.

use corewalk::{Errno, FileSystem as _, RenameMode, SetAttr, XattrMode};
use corewalk_cluster::ClusterFs;

use crate::fixtures::{
    ROOT, Site, create, dir, file, list, mkdir, name, overwrite, read, write_new,
};

fn names(fs: &ClusterFs, ino: u64) -> Vec<String> {
    list(fs, ino).into_iter().map(|(text, _)| text).collect()
}

fn find(fs: &ClusterFs, parent: u64, text: &str) -> Result<u64, Errno> {
    fs.lookup(dir(parent), name(text)).map(|attr| attr.ino)
}

/// Opens two mounts, and lists the root on both, so that both cache it.
fn pair(site: &Site) -> [ClusterFs; 2] {
    let both = [site.open(), site.open()];
    both.iter().for_each(|fs| drop(list(fs, ROOT)));
    both
}

#[test]
fn each_change_is_seen_by_the_other_mount_at_once() {
    let Some(site) = Site::new() else { return };
    let [a, b] = &pair(&site);
    assert_eq!(find(b, ROOT, "f"), Err(Errno::NOENT));
    let made = create(a, ROOT, "f").ino;
    assert_eq!(find(b, ROOT, "f"), Ok(made));
    let chmod = SetAttr::default().with_mode(0o600);
    b.getattr(file(made)).unwrap();
    a.setattr(file(made), &chmod).unwrap();
    assert_eq!(b.getattr(file(made)).unwrap().mode & 0o777, 0o600);
    a.link(file(made), dir(ROOT), name("l")).unwrap();
    assert_eq!((find(b, ROOT, "l"), b.getattr(file(made)).unwrap().nlink), (Ok(made), 2));
    assert_eq!(b.getxattr(file(made), b"user.x"), Err(Errno::NODATA));
    a.setxattr(file(made), b"user.x", b"1", XattrMode::Set).unwrap();
    assert_eq!(b.getxattr(file(made), b"user.x"), Ok(b"1".to_vec()));
    b.setxattr(file(made), b"user.x", b"2", XattrMode::Set).unwrap();
    assert_eq!(a.getxattr(file(made), b"user.x"), Ok(b"2".to_vec()));
    overwrite(a, made, 0, b"text").unwrap();
    assert_eq!((b.getattr(file(made)).unwrap().size, read(b, made)), (4, b"text".to_vec()));
    let other = create(b, ROOT, "g").ino;
    a.rename((dir(ROOT), name("f")), (dir(ROOT), name("g")), RenameMode::Exchange).unwrap();
    assert_eq!((find(b, ROOT, "f"), find(b, ROOT, "g")), (Ok(other), Ok(made)));
    a.remove(dir(ROOT), name("f"), file(other)).unwrap();
    assert_eq!(find(b, ROOT, "f"), Err(Errno::NOENT));
    assert_eq!(names(b, ROOT), ["l", "g"]);
}

#[test]
fn renamed_directory_takes_its_children_along() {
    let Some(site) = Site::new() else { return };
    let [a, b] = &pair(&site);
    let (from, to) = (mkdir(a, ROOT, "from").ino, mkdir(a, ROOT, "to").ino);
    let child = mkdir(a, from, "child").ino;
    write_new(a, child, "f", b"1");
    assert_eq!(names(b, from), ["child"]);
    assert_eq!(b.parent(dir(child)), Ok(from));
    a.rename((dir(from), name("child")), (dir(to), name("new")), RenameMode::Replace).unwrap();
    assert_eq!(find(b, from, "child"), Err(Errno::NOENT));
    assert_eq!((find(b, to, "new"), names(b, child)), (Ok(child), vec!["f".to_owned()]));
    assert_eq!(b.parent(dir(child)), Ok(to));
    assert_eq!(b.getattr(dir(from)).unwrap().nlink, 2);
}

/// Three mounts take turns at changing a file, and all must see each change.
#[test]
fn three_mounts_take_turns() {
    let Some(site) = Site::new() else { return };
    let mounts = [site.open(), site.open(), site.open()];
    let made = create(&mounts[0], ROOT, "f").ino;
    for turn in 0..90_u32 {
        let writer = &mounts[turn as usize % 3];
        writer.setattr(file(made), &SetAttr::default().with_mode(turn)).unwrap();
        for reader in &mounts {
            assert_eq!(reader.getattr(file(made)).unwrap().mode & 0o777, turn, "turn {turn}");
        }
    }
}

/// The kernel uses the owner and the mode of a lookup for chmod(2) and in sticky directories, and
/// does not ask again. So a lookup must return those that another mount has set.
#[test]
fn lookup_brings_the_owner_that_another_mount_has_set() {
    let Some(site) = Site::new() else { return };
    let [a, b] = &pair(&site);
    let parent = mkdir(a, ROOT, "p").ino;
    let child = mkdir(a, parent, "d").ino;
    let linked = create(a, ROOT, "f").ino;
    a.link(file(linked), dir(parent), name("l")).unwrap();
    // `b` has only listed the directory `parent`. So it has no leases on the home directories of
    // the inodes in it.
    assert_eq!(names(b, parent), ["d", "l"]);
    for uid in [7, 8] {
        for (node, text) in [(dir(child), "d"), (file(linked), "l")] {
            let mut chown = SetAttr::default();
            chown.uid = Some(uid);
            a.setattr(node, &chown).unwrap();
            assert_eq!(b.lookup(dir(parent), name(text)).unwrap().uid, uid, "{text}");
        }
    }
}
