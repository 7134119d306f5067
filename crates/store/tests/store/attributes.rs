//! Tests of limits that the store and tmpfs have in common: those of extended attributes, and of
//! blocks reserved behind the end of a file.

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, Fallocate, FileKind, FileSystem, Make, Name, Node, SetAttr, XattrMode};

use crate::memory::{Disks, quiet};

fn with_both(check: impl Fn(&dyn FileSystem, Node<'_>, &str)) {
    let disks = Disks::new();
    let (store, tmpfs) = (disks.open(&quiet()), Tmpfs::new(TmpfsOptions::default()));
    let all: [(&dyn FileSystem, &str); 2] = [(&store, "store"), (&tmpfs, "tmpfs")];
    for (fs, what) in all {
        let root = Node::detached(fs.root().unwrap().ino, FileKind::Directory);
        let made = fs.make(root, Name::new(b"file").unwrap(), &Make::new(0o644, 0, 0)).unwrap();
        check(fs, Node::detached(made.ino, FileKind::Regular), what);
    }
}

#[test]
fn names_are_bounded() {
    with_both(|fs, file, what| {
        let name = |number: usize| format!("user.{number:0250}").into_bytes();
        for number in 0..256 {
            assert_eq!(fs.setxattr(file, &name(number), b"", XattrMode::Set), Ok(()), "{what}");
        }
        assert_eq!(fs.listxattr(file).map(|list| list.len()), Ok(65536));
        assert_eq!(fs.setxattr(file, b"user.a", b"", XattrMode::Set), Err(Errno::NOSPC), "{what}");
        assert_eq!(fs.setxattr(file, &name(7), b"value", XattrMode::Replace), Ok(()), "{what}");
        fs.removexattr(file, &name(7)).unwrap();
        assert_eq!(fs.setxattr(file, b"user.a", b"", XattrMode::Set), Ok(()), "{what}");
    });
}

#[test]
fn values_are_bounded_in_all() {
    with_both(|fs, file, what| {
        let set = |number: usize, bytes: usize| {
            let name = format!("user.{number:02}").into_bytes();
            fs.setxattr(file, &name, &vec![number as u8; bytes], XattrMode::Set)
        };
        for number in 0..15 {
            assert_eq!(set(number, 65536), Ok(()), "{what}");
        }
        let room = (1 << 20) - 15 * (7 + 65536) - 7;
        assert_eq!(set(15, room + 1), Err(Errno::NOSPC), "{what}");
        assert_eq!(set(15, room), Ok(()), "{what}");
        assert_eq!(set(16, 0), Err(Errno::NOSPC), "{what}");
        assert_eq!(set(15, room + 1), Err(Errno::NOSPC), "{what}");
        assert_eq!(fs.getxattr(file, b"user.15").map(|value| value.len()), Ok(room), "{what}");
        // An attribute set at the limit may still become smaller, and grow again.
        assert_eq!(set(3, 100), Ok(()), "{what}");
        assert_eq!(set(15, room + 1), Ok(()), "{what}");
    });
}

/// Setting the present size must free the blocks that are reserved behind the end, as in ext4. A
/// larger size must keep them.
#[test]
fn size_set_again_frees_what_is_reserved_behind_it() {
    with_both(|fs, file, what| {
        let reserve = || fs.fallocate(file, 0, 1 << 16, Fallocate::KEEP_SIZE).unwrap();
        let cut = |size| {
            let set = SetAttr::default().with_size(size);
            fs.setattr(file, &set).map(|attr| (attr.size, attr.blocks))
        };
        let free = fs.statfs().unwrap().bfree;
        reserve();
        assert_eq!(cut(0), Ok((0, 0)), "{what}");
        assert_eq!(fs.statfs().unwrap().bfree, free, "{what}");
        assert_eq!(fs.write(file, 0, &[1; 100]), Ok(100));
        reserve();
        assert_eq!(cut(200), Ok((200, 128)), "{what}");
        assert_eq!(cut(200), Ok((200, 8)), "{what}");
        let mut bytes = [2; 200];
        assert_eq!(fs.read(file, 0, &mut bytes), Ok(200));
        assert!(bytes[..100] == [1; 100] && bytes[100..] == [0; 100], "{what}");
    });
}
