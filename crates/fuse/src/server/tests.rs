//! Tests of those rules of the server that need no mount.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use corewalk::acl::XATTR_DEFAULT;
use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Errno, FileKind, FileSystem as _, Make, Name, Node, Removal, RenameMode, SetAttr};
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use rustix::fs::OFlags;

use super::*;

const ROUNDS: u32 = 1000;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };

fn server() -> Server {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    Server::new(fs, Options::exclusive()).expect("start a server of an empty tmpfs")
}

fn make(server: &Server, parent: u64, name: &[u8], mode: u32) -> EntryOut {
    let new = NewFile { mode, ..NewFile::default() };
    server.make(CALLER, parent, name, &new).expect("make the file")
}

fn numbers(seed: u64) -> impl FnMut(u64) -> u64 {
    let mut state = seed | 1;
    move |below| {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state % below
    }
}

/// A late forget of a removed inode must not drop a new file with the same name. Trap P1.
#[test]
fn late_forget_after_recreate_keeps_the_new_file() {
    let server = server();
    let old = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644);
    server.remove(CALLER, ROOT_NODE, b"a", Removal::Unlink).expect("remove the name");
    let new = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o600);
    assert_ne!((old.node, old.generation), (new.node, new.generation));
    server.forget(old.node, 1);
    assert_eq!(server.getattr(old.node), Err(Errno::STALE));
    assert_eq!(server.getattr(new.node).map(|attr| attr.mode & 0o777), Ok(0o600));
    server.rename(CALLER, (ROOT_NODE, b"a"), (ROOT_NODE, b"b"), 0).expect("rename the file");
    let found = server.lookup(CALLER, ROOT_NODE, b"b").expect("look the name up");
    assert_eq!(found.node, new.node);
    assert_eq!(server.lookup(CALLER, ROOT_NODE, b"a"), Err(Errno::NOENT));
}

/// A late forget of a replaced inode must not drop the file that has replaced it. Trap P2.
#[test]
fn forget_of_a_replaced_file_keeps_the_new_file() {
    let server = server();
    let victim = make(&server, ROOT_NODE, b"b", mode::S_IFREG | 0o644);
    let file = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o600);
    server.rename(CALLER, (ROOT_NODE, b"a"), (ROOT_NODE, b"b"), 0).expect("rename the file");
    server.forget(victim.node, 1);
    let found = server.lookup(CALLER, ROOT_NODE, b"b").expect("the new file has the name");
    assert_eq!(found.node, file.node);
    assert_eq!(server.getattr(victim.node), Err(Errno::STALE));
    assert_eq!(server.getattr(file.node).map(|attr| attr.mode & 0o777), Ok(0o600));
}

/// A forget of more lookups than the server has counted must be refused. Trap P5.
#[test]
fn forget_of_more_than_is_held_is_refused() {
    let server = server();
    let file = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644);
    for _ in 0..3 {
        let _ = server.lookup(CALLER, ROOT_NODE, b"a").expect("look the name up");
    }
    server.forget(file.node, 5);
    let counters = server.counters();
    assert_eq!((counters.lookups, counters.refused_forgets), (4, 1));
    assert!(server.getattr(file.node).is_ok());
    server.forget(file.node, 4);
    server.forget(file.node, 1);
    let counters = server.counters();
    assert_eq!((counters.lookups, counters.refused_forgets), (0, 2));
    server.forget(ROOT_NODE, 1 << 40);
    assert!(server.getattr(ROOT_NODE).is_ok(), "the root is never forgotten");
}

/// A model of the kernel counts lookups during random operations, and the server must have the same
/// counts. Trap P5.
#[test]
fn counts_agree_with_a_model_and_end_at_zero() {
    for seed in 1..=8 {
        let server = server();
        let mut below = numbers(0x9e37_79b9_7f4a_7c15_u64.wrapping_mul(seed));
        let mut held: BTreeMap<u64, u64> = BTreeMap::new();
        let mut hold = |entry: EntryOut| *held.entry(entry.node).or_default() += 1;
        for _ in 0..4000 {
            let names = [[b'a' + below(8) as u8], [b'a' + below(8) as u8]];
            let name = &names[0][..];
            let file = NewFile { mode: mode::S_IFREG | 0o644, ..NewFile::default() };
            match below(6) {
                0 => server.make(CALLER, ROOT_NODE, name, &file).map(&mut hold).unwrap_or(()),
                1 => server.remove(CALLER, ROOT_NODE, name, Removal::Unlink).unwrap_or(()),
                2 => {
                    let to = (ROOT_NODE, &names[1][..]);
                    let flags = below(3) as u32;
                    server.rename(CALLER, (ROOT_NODE, name), to, flags).unwrap_or(());
                }
                3 => {
                    let plus = server.readdirplus(ROOT_NODE, 0, 0, &mut |entry, attr| {
                        if entry.name[0] == b'.' {
                            return ControlFlow::Continue(());
                        }
                        if below(4) == 0 {
                            return ControlFlow::Break(());
                        }
                        hold(EntryOut { node: entry.node, generation: 0, attr: *attr });
                        ControlFlow::Continue(())
                    });
                    assert_eq!(plus, Ok(()), "seed {seed}");
                }
                _ => server.lookup(CALLER, ROOT_NODE, name).map(&mut hold).unwrap_or(()),
            }
        }
        let sum: u64 = held.values().sum();
        assert_eq!(server.counters().lookups, sum, "seed {seed}");
        for (node, count) in held {
            assert!(server.getattr(node).is_ok(), "seed {seed}: node {node} is held");
            server.forget(node, count);
        }
        let counters = server.counters();
        assert_eq!((counters.lookups, counters.refused_forgets), (0, 0), "seed {seed}");
        server.vfs().prune();
        assert_eq!(server.counters().inodes, 1, "seed {seed}: only the root is left");
    }
}

/// A new inode with a reused number must have another generation. Trap P11.
#[test]
fn number_and_generation_never_repeat() {
    let server = server();
    let mut seen = BTreeSet::new();
    for _ in 0..3000 {
        let made = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644);
        assert!(seen.insert((made.node, made.generation)), "{made:?} came twice");
        server.remove(CALLER, ROOT_NODE, b"a", Removal::Unlink).expect("remove the name");
        server.forget(made.node, 1);
    }
}

/// After the rename of a directory, its descendants must not resolve by the old path. Trap P3.
#[test]
fn directory_rename_moves_every_descendant() {
    let server = server();
    let mut nodes = vec![ROOT_NODE];
    for depth in 0..6 {
        let parent = nodes[depth];
        nodes.push(make(&server, parent, b"d", mode::S_IFDIR | 0o755).node);
    }
    let file = make(&server, nodes[6], b"file", mode::S_IFREG | 0o644).node;
    for depth in 0..6 {
        let renamed = format!("renamed{depth}");
        let to = (nodes[depth], renamed.as_bytes());
        server.rename(CALLER, (nodes[depth], b"d"), to, 0).expect("rename the file");
        let mut parent = ROOT_NODE;
        let mut path = String::new();
        for (below, &node) in nodes[1..].iter().enumerate() {
            let name = if below <= depth { format!("renamed{below}") } else { "d".to_owned() };
            let found =
                server.lookup(CALLER, parent, name.as_bytes()).expect("the descendant moved too");
            assert_eq!(found.node, node);
            path = format!("{path}/{name}");
            let inode = server.vfs().inode(node).expect("the inode is in use");
            assert_eq!(inode.path().as_deref(), Ok(path.as_bytes()));
            parent = node;
        }
        let inode = server.vfs().inode(file).expect("the inode is in use");
        assert_eq!(inode.path(), Ok(format!("{path}/file").into_bytes()));
    }
}

#[test]
fn listing_continues_after_every_cookie() {
    let server = server();
    for at in 0..300 {
        let _ = make(&server, ROOT_NODE, format!("n{at}").as_bytes(), mode::S_IFREG | 0o644);
    }
    let list = |cookie| {
        let mut names = Vec::new();
        let mut sink = |entry: Dirent<'_>| {
            names.push((entry.cookie, entry.name.to_vec(), entry.kind));
            ControlFlow::Continue(())
        };
        server.readdir(ROOT_NODE, 0, cookie, &mut sink).expect("list the directory");
        names
    };
    let all = list(0);
    assert_eq!(all.len(), 302);
    assert_eq!((&all[0].1[..], &all[1].1[..]), (&b"."[..], &b".."[..]));
    assert_eq!(all[0].2, FileKind::Directory);
    let cookies: BTreeSet<u64> = all.iter().map(|entry| entry.0).collect();
    assert_eq!(cookies.len(), all.len(), "no two entries have one cookie");
    assert!(!cookies.contains(&0));
    for (at, entry) in all.iter().enumerate() {
        assert_eq!(list(entry.0), all[at + 1..], "after entry {at}");
    }
}

#[test]
fn listing_with_attributes_has_the_same_entries() {
    let server = server();
    for at in 0..1000 {
        let _ = make(&server, ROOT_NODE, format!("n{at}").as_bytes(), mode::S_IFREG | 0o644);
    }
    let held = server.counters().lookups;
    let mut plain = Vec::new();
    server
        .readdir(ROOT_NODE, 0, 0, &mut |entry| {
            plain.push((entry.name.to_vec(), entry.cookie, entry.node));
            ControlFlow::Continue(())
        })
        .expect("list the directory");
    let (mut plus, mut pages, mut cookie) = (Vec::new(), 0, 0);
    loop {
        let (before, from) = (plus.len(), cookie);
        let mut take = |entry: Dirent<'_>, attr: &Attr| {
            assert_eq!(entry.node, attr.ino);
            plus.push((entry.name.to_vec(), entry.cookie, entry.node));
            cookie = entry.cookie;
            ControlFlow::Continue(())
        };
        server.readdirplus(ROOT_NODE, 0, from, &mut take).expect("list the directory");
        if plus.len() == before {
            break;
        }
        pages += 1;
    }
    assert_eq!(pages, 5, "an answer has at most 32 KiB");
    assert!(plain == plus, "{plain:?} against {plus:?}");
    assert_eq!(server.counters().lookups, held + 1000, "`.` and `..` are not counted");
}

#[test]
fn listing_counts_only_taken_entries() {
    let server = server();
    for at in 0..100 {
        let _ = make(&server, ROOT_NODE, format!("n{at}").as_bytes(), mode::S_IFREG | 0o644);
    }
    let held = server.counters().lookups;
    let mut space = 12;
    let mut sink = |_: Dirent<'_>, _: &Attr| {
        space -= 1;
        if space < 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    };
    server.readdirplus(ROOT_NODE, 0, 0, &mut sink).expect("list the directory");
    assert_eq!(server.counters().lookups, held + 10);
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        server.readdirplus(ROOT_NODE, 0, 2, &mut |_, _| panic!("the sink fails"))
    }));
    assert!(panicked.is_err());
    assert_eq!(server.counters().lookups, held + 10);
}

#[test]
fn removed_directory_lists_itself_as_its_parent() {
    let server = server();
    let dir = make(&server, ROOT_NODE, b"d", mode::S_IFDIR | 0o755).node;
    server.remove(CALLER, ROOT_NODE, b"d", Removal::Rmdir).expect("remove the name");
    let mut names = Vec::new();
    let listed = server.readdir(dir, 0, 0, &mut |entry| {
        names.push((entry.name.to_vec(), entry.node));
        ControlFlow::Continue(())
    });
    assert_eq!(listed, Ok(()));
    assert_eq!(names, [(b".".to_vec(), dir), (b"..".to_vec(), dir)]);
}

#[test]
fn umask_applies_unless_there_is_a_default_acl() {
    let server = server();
    let new = NewFile { mode: mode::S_IFREG | 0o666, umask: 0o027, ..NewFile::default() };
    let plain = server.make(CALLER, ROOT_NODE, b"plain", &new).expect("make the file");
    assert_eq!(plain.attr.mode & 0o777, 0o640);
    let dir = make(&server, ROOT_NODE, b"d", mode::S_IFDIR | 0o755).node;
    // An ACL of version 2 with entries for owner, group and others, each with rwx.
    let entry = |tag: u8| [tag, 0, 7, 0, 0xff, 0xff, 0xff, 0xff];
    let acl = [&[2, 0, 0, 0][..], &entry(0x01), &entry(0x04), &entry(0x20)].concat();
    server.setxattr(CALLER, dir, XATTR_DEFAULT, &acl, 0).expect("set the default ACL");
    let inherited = server.make(CALLER, dir, b"inherited", &new).expect("make the file");
    assert_eq!(inherited.attr.mode & 0o777, 0o666);
    let target = NewFile { mode: mode::S_IFLNK, umask: 0o777, target: b"x", ..NewFile::default() };
    let link = server.make(CALLER, ROOT_NODE, b"link", &target).expect("make the file");
    assert_eq!(link.attr.mode & 0o777, 0o777);
}

#[test]
fn target_that_is_too_long_for_the_kernel_is_an_error() {
    let server = server();
    for (len, expected) in [(4095, Ok(4095)), (4096, Err(Errno::NAMETOOLONG))] {
        let target = vec![b'x'; len];
        let new = NewFile::new(mode::S_IFLNK | 0o777).with_target(&target);
        let name = len.to_string();
        let link = server.make(CALLER, ROOT_NODE, name.as_bytes(), &new).expect("make the link");
        assert_eq!(server.readlink(link.node).map(|target| target.len()), expected);
    }
}

#[test]
fn xattr_sizes_are_probed() {
    let server = server();
    let file = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644).node;
    server.setxattr(CALLER, file, b"user.k", b"value", 0).expect("set the attribute");
    assert_eq!(server.getxattr(CALLER, file, b"user.k", 0), Ok(XattrAnswer::Length(5)));
    assert_eq!(server.getxattr(CALLER, file, b"user.k", 4), Err(Errno::RANGE));
    let value = XattrAnswer::Value(b"value".to_vec());
    assert_eq!(server.getxattr(CALLER, file, b"user.k", 5), Ok(value));
    assert_eq!(server.listxattr(CALLER, file, 0), Ok(XattrAnswer::Length(7)));
    assert_eq!(server.listxattr(CALLER, file, 6), Err(Errno::RANGE));
    assert_eq!(server.setxattr(CALLER, file, b"user.k", b"", 1), Err(Errno::EXIST));
    assert_eq!(server.setxattr(CALLER, file, b"user.l", b"", 2), Err(Errno::NODATA));
    assert_eq!(server.setxattr(CALLER, file, b"user.l", b"", 3), Err(Errno::NODATA));
    assert_eq!(server.setxattr(CALLER, file, b"user.k", b"", 3), Err(Errno::EXIST));
    assert_eq!(server.setxattr(CALLER, file, b"user.k", b"", 4), Err(Errno::INVAL));
}

#[test]
fn counters_are_an_attribute_of_the_root_alone() {
    let server = server();
    let file = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644).node;
    let read = |node| server.getxattr(CALLER, node, XATTR_STAT.as_bytes(), 4096);
    let Ok(XattrAnswer::Value(json)) = read(ROOT_NODE) else { panic!("no counters") };
    let json = String::from_utf8(json).expect("the text is UTF-8");
    assert!(json.contains("\"lookups\":1,"), "{json}");
    assert_eq!(read(file), Err(Errno::NODATA));
    assert_eq!(server.listxattr(CALLER, ROOT_NODE, 0), Ok(XattrAnswer::Length(0)));
}

#[test]
fn shared_back_end_is_asked_each_time() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let options = Options::shared().with_server_permissions();
    let server = Server::new(fs.clone(), options).expect("start a server of an empty tmpfs");
    let root = fs.root().expect("read the root's attributes").ino;
    let (root, name) =
        (Node::detached(root, FileKind::Directory), Name::new(b"a").expect("the name is valid"));
    assert_eq!(server.lookup(CALLER, ROOT_NODE, b"a"), Err(Errno::NOENT));
    let attr = fs.make(root, name, &Make::new(0o644, 0, 0)).expect("make the file");
    let found = server.lookup(CALLER, ROOT_NODE, b"a").expect("look the name up");
    let (user, read) = (Caller { uid: 1000, gid: 1000, pid: 0 }, 0);
    assert!(server.open(user, found.node, read).is_ok());
    let node = Node::detached(attr.ino, FileKind::Regular);
    let protect = SetAttr::default().with_mode(0o600);
    fs.setattr(node, &protect).expect("change the attributes");
    assert_eq!(server.open(user, found.node, read).err(), Some(Errno::ACCESS));
    let closed = SetAttr::default().with_mode(0o700);
    fs.setattr(root, &closed).expect("change the attributes");
    assert_eq!(server.lookup(user, ROOT_NODE, b"a"), Err(Errno::ACCESS));
    fs.remove(root, name, node).expect("remove the name");
    assert_eq!(server.lookup(CALLER, ROOT_NODE, b"a"), Err(Errno::NOENT));
}

/// Control: if no other program changes the back end, the server answers a repeated request from
/// its cache.
#[test]
fn control_exclusive_back_end_is_not_asked_again() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let server =
        Server::new(fs.clone(), Options::exclusive()).expect("start a server of an empty tmpfs");
    let root =
        Node::detached(fs.root().expect("read the root's attributes").ino, FileKind::Directory);
    assert_eq!(server.lookup(CALLER, ROOT_NODE, b"a"), Err(Errno::NOENT));
    let name = Name::new(b"a").expect("the name is valid");
    fs.make(root, name, &Make::new(0o644, 0, 0)).expect("make the file");
    assert_eq!(server.lookup(CALLER, ROOT_NODE, b"a"), Err(Errno::NOENT));
}

#[test]
fn prune_is_for_root_and_the_owner() {
    let server = server();
    let file = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644).node;
    server.forget(file, 1);
    let prune = |uid| {
        let caller = Caller { uid, ..CALLER };
        server.setxattr(caller, ROOT_NODE, XATTR_PRUNE.as_bytes(), b"1", 0)
    };
    assert_eq!(prune(1000), Err(Errno::PERM));
    assert_eq!(server.counters().inodes, 2);
    assert_eq!(prune(0), Ok(()));
    assert_eq!(server.counters().inodes, 1);
}

#[test]
fn whiteout_and_unknown_rename_flags_are_invalid() {
    let server = server();
    let _ = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644);
    let rename = |flags| server.rename(CALLER, (ROOT_NODE, b"a"), (ROOT_NODE, b"b"), flags);
    for flags in [3, 4, 5, 8, u32::MAX] {
        assert_eq!(rename(flags), Err(Errno::INVAL), "{flags}");
    }
    assert_eq!(rename(2), Err(Errno::NOENT), "nothing to exchange with");
    assert_eq!(rename(1), Ok(()));
}

#[test]
fn server_permissions_are_checked_against_the_caller() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let options = Options::exclusive().with_server_permissions();
    let server = Server::new(fs, options).expect("start the server");
    // Pid 0 stands for no process, so the callers have no capabilities and no supplementary groups.
    let owner = Caller { uid: 1000, gid: 1000, pid: 0 };
    let other = Caller { uid: 1001, gid: 1001, pid: 0 };
    let new = NewFile { mode: mode::S_IFREG | 0o640, ..NewFile::default() };
    let file = server.make(owner, ROOT_NODE, b"a", &new).expect("make the file").node;
    assert!(server.open(owner, file, 2).is_ok());
    assert_eq!(server.open(other, file, 0), Err(Errno::ACCESS));
    assert_eq!(server.access(other, file, 4), Err(Errno::ACCESS));
    assert_eq!(server.access(owner, file, 6), Ok(()));
    let removed = server.remove(other, ROOT_NODE, b"a", Removal::Unlink);
    assert_eq!(removed, Err(Errno::PERM));
    let shrink = |handle| {
        let set = SetAttr::default().with_size(0).with_mtime(SetTime::Now);
        server.setattr(other, file, Change::new(set).with_handle(handle)).map(|attr| attr.size)
    };
    assert_eq!(shrink(None), Err(Errno::ACCESS));
    assert_eq!(shrink(Some(0)), Ok(0), "the permission was checked at open");
}

#[test]
fn write_by_another_user_clears_set_user_id() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let server =
        Server::new(fs, Options::exclusive().with_server_permissions()).expect("start the server");
    let owner = Caller { uid: 1000, gid: 1000, pid: 0 };
    let new = NewFile { mode: mode::S_IFREG | 0o6777, ..NewFile::default() };
    let file = server.make(owner, ROOT_NODE, b"a", &new).expect("make the file").node;
    assert_eq!(server.getattr(file).map(|attr| attr.mode & 0o7777), Ok(0o6777));
    let other = Caller { uid: 1001, gid: 1001, pid: 0 };
    assert_eq!(server.write(other, file, 0, 0, b"x", WriteOrigin::Call), Ok(1));
    assert_eq!(server.getattr(file).map(|attr| attr.mode & 0o7777), Ok(0o777));
}

/// A create request that finds a file which is not regular must count no lookup, because the kernel
/// would never return it.
#[test]
fn create_on_a_file_that_is_not_regular_counts_nothing() {
    for options in [Options::shared(), Options::shared().with_server_permissions()] {
        let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        let server = Server::new(fs.clone(), options).expect("start the server");
        assert_eq!(server.lookup(CALLER, ROOT_NODE, b"f"), Err(Errno::NOENT));
        let root = Node::detached(server.vfs().root().ino(), FileKind::Directory);
        let create =
            |name, flags| server.create(CALLER, ROOT_NODE, name, &NewFile::default(), flags);
        let kinds = [mode::S_IFIFO, mode::S_IFLNK, mode::S_IFDIR, mode::S_IFREG];
        for (kind, name) in kinds.into_iter().zip([b"a", b"b", b"c", b"d"]) {
            let make = Make::new(kind | 0o666, 0, 0).with_target(b"f");
            fs.make(root, Name::new(name).expect("the name is valid"), &make)
                .expect("make the file");
            let exclusive = OFlags::EXCL.bits() | 1;
            assert_eq!(create(name, exclusive), Err(Errno::EXIST));
            if kind == mode::S_IFREG {
                assert!(create(name, 1).is_ok());
            } else {
                assert_eq!(create(name, 1), Err(Errno::STALE), "{kind:o}");
                assert_eq!(server.counters().lookups, 0, "{kind:o}");
            }
        }
        assert_eq!(server.counters().lookups, 1);
    }
}

/// A create request that finds a file must check its current mode and not the cached one. Another
/// program has taken the permissions of `g` and renamed it to `f`.
#[test]
fn create_on_an_existing_file_checks_its_current_mode() {
    for options in [Options::shared(), Options::shared().with_server_permissions()] {
        let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        let server = Server::new(fs.clone(), options).expect("start the server");
        let file = make(&server, ROOT_NODE, b"g", mode::S_IFREG | 0o666).node;
        assert_eq!(server.write(CALLER, file, 0, 0, b"text", WriteOrigin::Call), Ok(4));
        let other = Caller { uid: 1001, gid: 1001, pid: 0 };
        let opened = server.open(other, file, 1).expect("open the file");
        server.release(file, opened.handle, None).expect("close the file");
        assert_eq!(server.lookup(other, ROOT_NODE, b"f"), Err(Errno::NOENT));
        let set = SetAttr::default().with_mode(0o600);
        fs.setattr(Node::detached(file, FileKind::Regular), &set).expect("change the attributes");
        let root = Node::detached(server.vfs().root().ino(), FileKind::Directory);
        let [from, to] =
            [&b"g"[..], b"f"].map(|name| (root, Name::new(name).expect("the name is valid")));
        fs.rename(from, to, RenameMode::Replace).expect("rename the file");
        let flags = (OFlags::WRONLY | OFlags::TRUNC).bits();
        let created = server.create(other, ROOT_NODE, b"f", &NewFile::default(), flags);
        assert_eq!(created, Err(Errno::ACCESS));
        assert_eq!(server.getattr(file).map(|attr| attr.size), Ok(4));
    }
}

#[test]
fn write_and_copy_clear_a_set_user_id_set_on_the_back_end() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let options = Options::shared().with_server_permissions();
    let server = Server::new(fs.clone(), options).expect("start the server");
    let (from, to) = (
        make(&server, ROOT_NODE, b"from", mode::S_IFREG | 0o644).node,
        make(&server, ROOT_NODE, b"to", mode::S_IFREG | 0o666).node,
    );
    assert_eq!(server.write(CALLER, from, 0, 0, b"text", WriteOrigin::Call), Ok(4));
    let other = Caller { uid: 1001, gid: 1001, pid: 0 };
    let write = || server.write(other, to, 0, 0, b"text", WriteOrigin::Call).map(|n| n as u64);
    let copy = || server.copy_file_range(other, (from, 0, 0), (to, 0, 0), 4);
    for change in [&write as &dyn Fn() -> Result<u64, Errno>, &copy] {
        assert_eq!(server.access(other, to, 2), Ok(()));
        let set = SetAttr::default().with_mode(0o4777);
        fs.setattr(Node::detached(to, FileKind::Regular), &set).expect("change the attributes");
        assert_eq!(change(), Ok(4));
        assert_eq!(server.getattr(to).map(|attr| attr.mode & 0o7777), Ok(0o777));
    }
    server.forget(to, 1);
    server.remove(CALLER, ROOT_NODE, b"to", Removal::Unlink).expect("remove the name");
    assert_eq!(copy(), Err(Errno::STALE));
}

/// The kernel checks the permission for `security.*` attributes. If the server refused to remove a
/// file's capabilities, a write to the file would fail.
#[test]
fn security_attributes_are_left_to_the_kernel() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let server =
        Server::new(fs, Options::exclusive().with_server_permissions()).expect("start the server");
    let owner = Caller { uid: 1000, gid: 1000, pid: 0 };
    let other = Caller { uid: 1001, gid: 1001, pid: 0 };
    let new = NewFile { mode: mode::S_IFREG | 0o666, ..NewFile::default() };
    let file = server.make(owner, ROOT_NODE, b"a", &new).expect("make the file").node;
    let mut value = [0; 20];
    value[3] = 2;
    for name in [&b"security.capability"[..], b"security.label"] {
        assert_eq!(server.setxattr(other, file, name, &value, 0), Ok(()));
        assert_eq!(server.removexattr(other, file, name), Ok(()));
    }
    assert_eq!(server.setxattr(owner, file, b"trusted.t", b"v", 0), Err(Errno::PERM));
}

/// A write by another user must not undo a chmod that runs at the same time. It may clear only
/// set-user-ID of the new mode. The writer has the pid of a real process, so that reading its
/// credentials takes some time.
#[test]
fn chmod_during_writes_by_another_user_is_not_lost() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let server =
        Server::new(fs, Options::exclusive().with_server_permissions()).expect("start the server");
    let owner = Caller { uid: 1000, gid: 1000, pid: 0 };
    let other = Caller { uid: 1001, gid: 1001, pid: std::process::id() };
    let new = NewFile { mode: mode::S_IFREG | 0o777, ..NewFile::default() };
    let file = server.make(owner, ROOT_NODE, b"a", &new).expect("make the file").node;
    let chmod = |mode| {
        let set = SetAttr::default().with_mode(mode);
        server.setattr(owner, file, Change::new(set)).expect("change the attributes");
    };
    let (written, is_over) = (AtomicU64::new(0), AtomicBool::new(false));
    // ORDERING: SeqCst. The writer adds to `written` after each write. A load that sees the
    // addition must also see the effects of the write. With Relaxed, the test could check the mode
    // too early.
    let count = || written.load(Ordering::SeqCst);
    thread::scope(|scope| {
        let _over = Over(&is_over);
        let writer = scope.spawn(|| {
            // ORDERING: Relaxed. The stop flag publishes no data.
            while !is_over.load(Ordering::Relaxed) {
                assert_eq!(server.write(other, file, 0, 0, b"x", WriteOrigin::Call), Ok(1));
                // ORDERING: SeqCst. If the load in `count` sees this addition, it must also see the
                // effects of the write before it. With Relaxed, the test could check the mode too
                // early.
                written.fetch_add(1, Ordering::SeqCst);
            }
        });
        for round in 0..ROUNDS {
            chmod(0o4777);
            for _ in 0..round % 8 {
                thread::yield_now();
            }
            chmod(0o4711);
            // The first of two more writes may have begun before the chmod. The second must clear
            // set-user-ID.
            let before = count();
            while count() < before + 2 {
                assert!(!writer.is_finished(), "a write failed");
                thread::yield_now();
            }
            let mode = server.getattr(file).expect("read the attributes").mode & 0o7777;
            assert_eq!(mode, 0o711, "round {round}: {mode:o}");
        }
    });
}

struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        // ORDERING: Relaxed. The stop flag publishes no data.
        self.0.store(true, Ordering::Relaxed);
    }
}

/// A write by a caller with `CAP_FSETID` must keep both bits. This process has the capability if
/// root runs the tests.
#[test]
fn write_by_root_keeps_set_user_id() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let server =
        Server::new(fs, Options::exclusive().with_server_permissions()).expect("start the server");
    let uid = rustix::process::geteuid().as_raw();
    let us = Caller { uid, gid: 0, pid: std::process::id() };
    let keeps = resolve(us, UserNamespace::ours()).has(Caps::FSETID);
    let new = NewFile { mode: mode::S_IFREG | 0o4777, ..NewFile::default() };
    let file = server.make(us, ROOT_NODE, b"a", &new).expect("make the file").node;
    assert_eq!(server.write(us, file, 0, 0, b"x", WriteOrigin::Call), Ok(1));
    let kept = if keeps { 0o4777 } else { 0o777 };
    assert_eq!(server.getattr(file).map(|attr| attr.mode & 0o7777), Ok(kept));
}

#[test]
fn hits_are_names_resolved_without_the_back_end() {
    let server = server();
    let hits = |server: &Server| (server.counters().hits, server.counters().misses);
    let _ = make(&server, ROOT_NODE, b"a", mode::S_IFREG | 0o644);
    assert_eq!(hits(&server), (0, 0), "a new name is neither a hit nor a miss");
    let _ = server.lookup(CALLER, ROOT_NODE, b"a").expect("look the name up");
    assert_eq!(hits(&server), (1, 0));
    for expected in [(1, 1), (2, 1)] {
        assert_eq!(server.lookup(CALLER, ROOT_NODE, b"none"), Err(Errno::NOENT));
        assert_eq!(hits(&server), expected, "the second lookup finds a negative entry");
    }
    server.remove(CALLER, ROOT_NODE, b"a", Removal::Unlink).expect("remove the name");
    assert_eq!(server.lookup(CALLER, ROOT_NODE, &[b'x'; 256]), Err(Errno::NAMETOOLONG));
    assert_eq!(hits(&server), (3, 1), "an invalid name is not counted");
}

/// A file that its group may execute must lose set-group-ID if the caller is not in that group. The
/// rule depends on the caller's capabilities, and kernels before 6.0 leave it to the server. Trap
/// X9.
#[test]
fn file_made_outside_of_the_group_of_its_directory_has_no_set_group_id() {
    let server = server();
    let dir = make(&server, ROOT_NODE, b"dir", mode::S_IFDIR | 0o777);
    let set = SetAttr::default().with_gid(42).with_mode(0o2777);
    let change = Change::new(set);
    server.setattr(CALLER, dir.node, change).expect("change the attributes");
    let other = Caller { uid: 7, gid: 7, pid: 0 };
    let new = |mode| NewFile { mode: mode::S_IFREG | mode, ..NewFile::default() };
    for (caller, mode, left) in [(other, 0o2771, 0o771), (other, 0o2761, 0o2761)] {
        let (made, _) =
            server.create(caller, dir.node, b"f", &new(mode), 0).expect("create the file");
        assert_eq!((made.attr.mode & 0o7777, made.attr.gid), (left, 42), "{mode:o}");
        server.remove(CALLER, dir.node, b"f", Removal::Unlink).expect("remove the name");
    }
    let member = Caller { gid: 42, ..other };
    let made = server.make(member, dir.node, b"f", &new(0o2771)).expect("make the file");
    assert_eq!(made.attr.mode & 0o7777, 0o2771);
}
