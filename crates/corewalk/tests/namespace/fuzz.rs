//! Fuzz tests of paths, ACLs and extended attributes.
//!
//! The tests check these properties:
//! - A path leads to the same entry in the namespace and on the host, where openat2(2) with
//!   `RESOLVE_IN_ROOT` resolves it in an equal tree.
//! - An ACL value is either refused, or read back as it was stored.
//!
//! A further test makes a sequence of changes of a file's extended attributes, and the same changes
//! in a map. Afterwards the attributes must equal the map.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::{MetadataExt as _, symlink};
use std::path::{Path, PathBuf};

use corewalk::acl::Acl;
use corewalk::attr::mode::S_IFREG;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    AclKind, Cred, Errno, FileKind, FileSystem as _, Make, Name, Node, PATH_MAX, Vfs, WalkFlags,
    XattrMode,
};
use corewalk_testkit::fuzz::Fuzz;
use rustix::fs::{Mode, OFlags, ResolveFlags, openat2};

use crate::fixtures::{at, new, tree};

const TREE: [&str; 10] = [
    "a/",
    "a/b/",
    "a/b/c",
    "file",
    "link -> a/b",
    "loop -> loop",
    "up -> ../../a",
    "absolute -> /a/b/c",
    "dangling -> nowhere",
    "a/dots -> ./b/../b/.",
];

struct HostTree(PathBuf);

impl HostTree {
    fn new() -> HostTree {
        let root = std::env::temp_dir().join(format!("corewalk-fuzz-{}", std::process::id()));
        fs::create_dir_all(&root).unwrap();
        for path in TREE {
            match path.split_once(" -> ") {
                Some((path, target)) => symlink(target, root.join(path)).unwrap(),
                None if path.ends_with('/') => fs::create_dir(root.join(path)).unwrap(),
                None => fs::write(root.join(path), "").unwrap(),
            }
        }
        HostTree(root)
    }
}

impl Drop for HostTree {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

fn on_host(root: &fs::File, numbers: &BTreeMap<u64, usize>, path: &[u8]) -> Result<usize, Errno> {
    loop {
        match openat2(root, path, OFlags::PATH, Mode::empty(), ResolveFlags::IN_ROOT) {
            // openat2(2) of a path with `..` fails with `EAGAIN` during any rename of another
            // program. Then try again.
            Err(Errno::AGAIN) => {}
            file => return Ok(numbers[&rustix::fs::fstat(&file?)?.st_ino]),
        }
    }
}

fn in_namespace(vfs: &Vfs, numbers: &BTreeMap<u64, usize>, path: &[u8]) -> Result<usize, Errno> {
    let place = vfs.walk(&Cred::root(), &at(vfs), path, WalkFlags::FOLLOW)?;
    Ok(numbers[&place.inode().ino()])
}

fn name_is_valid(name: &[u8]) -> bool {
    (1..=255).contains(&name.len())
        && !name.iter().any(|byte| [b'/', 0].contains(byte))
        && name != b"."
        && name != b".."
}

#[test]
fn fuzz_names_and_paths_resolve_as_on_the_host() {
    let host = HostTree::new();
    let root = fs::File::open(&host.0).unwrap();
    let vfs = new();
    tree(&vfs, &TREE);
    let (mut ours, mut theirs) = (BTreeMap::new(), BTreeMap::new());
    ours.insert(vfs.root().ino(), 0);
    theirs.insert(root.metadata().unwrap().ino(), 0);
    for (number, path) in TREE.iter().enumerate() {
        if path.contains(" -> ") {
            continue;
        }
        let path = path.trim_end_matches('/');
        let place = vfs.walk(&Cred::root(), &at(&vfs), path.as_bytes(), WalkFlags::empty());
        ours.insert(place.unwrap().inode().ino(), number + 1);
        theirs.insert(fs::metadata(Path::join(&host.0, path)).unwrap().ino(), number + 1);
    }
    let words: Vec<&[u8]> =
        TREE.iter().map(|path| path.split(' ').next().unwrap().as_bytes()).collect();
    let words = [&words[..], &[b"/", b"..", b".", b"//", b"/./"]].concat();
    let answers = Fuzz::of("names").words(&words).runs(20_000).run(|input| {
        assert_eq!(Name::new(input).is_ok(), name_is_valid(input));
        let path: Vec<u8> = input.iter().copied().filter(|byte| *byte != 0).collect();
        let path = &path[..path.len().min(PATH_MAX + 10)];
        let (found, right) = (in_namespace(&vfs, &ours, path), on_host(&root, &theirs, path));
        assert_eq!(found, right, "{:?}", String::from_utf8_lossy(path));
        found.map_err(Errno::raw_os_error)
    });
    for answer in [Ok(0), Ok(3), Err(Errno::NOENT), Err(Errno::NOTDIR), Err(Errno::NAMETOOLONG)] {
        let answer = answer.map_err(Errno::raw_os_error);
        assert!(answers.contains_key(&answer), "{answer:?} of {answers:?}");
    }
}

fn store_acl(fs: &Tmpfs, file: Node<'_>, input: &[u8]) -> Result<usize, Errno> {
    let Some(mut acl) = Acl::from_xattr(input)? else { return Ok(0) };
    assert_eq!(Acl::from_xattr(&acl.to_xattr()), Ok(Some(acl.clone())));
    assert_eq!(acl.to_xattr().len(), input.len());
    fs.set_acl(file, AclKind::Access, Some(&acl), Some(acl.mode())).unwrap();
    let kept = fs.get_acl(file, AclKind::Access).unwrap();
    assert_eq!(kept.unwrap_or_else(|| Acl::from_mode(acl.mode())), acl);
    let (mode, inherited) = acl.inherit(0o640);
    assert_eq!(mode, 0o640 & acl.mode());
    assert!(inherited.is_none_or(|inherited| inherited.mode() == mode));
    acl.chmod(0o751);
    assert_eq!(acl.mode(), 0o751);
    Ok(acl.entries().len())
}

#[test]
fn fuzz_acls_are_refused_or_stored() {
    let tmpfs = Tmpfs::new(TmpfsOptions::default());
    let root = Node::detached(1, FileKind::Directory);
    let made = tmpfs.make(root, Name::new(b"file").unwrap(), &Make::new(S_IFREG | 0o600, 1, 1));
    let file = Node::detached(made.unwrap().ino, FileKind::Regular);
    let answers = Fuzz::of("acl")
        .runs(20_000)
        .run(|input| store_acl(&tmpfs, file, input).map_err(Errno::raw_os_error));
    for answer in [Ok(0), Ok(3), Ok(5), Err(Errno::INVAL), Err(Errno::OPNOTSUPP)] {
        let answer = answer.map_err(Errno::raw_os_error);
        assert!(answers.contains_key(&answer), "{answer:?} of {answers:?}");
    }
}

fn take<'a>(input: &mut &'a [u8], len: usize) -> &'a [u8] {
    let (front, rest) = input.split_at(len.min(input.len()));
    *input = rest;
    front
}

fn take_number(input: &mut &[u8]) -> usize {
    take(input, 1).first().copied().map_or(0, usize::from)
}

fn collect_xattrs(fs: &Tmpfs, node: Node<'_>) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let list = fs.listxattr(node).unwrap();
    let names = list.split(|byte| *byte == 0).filter(|name| !name.is_empty());
    names.map(|name| (name.to_vec(), fs.getxattr(node, name).unwrap())).collect()
}

/// The input encodes the changes of attributes. Each has an operation, a name behind its length in
/// bytes, and a value behind its length in units of 16 bytes.
#[test]
fn fuzz_xattrs_match_a_map() {
    let answers = Fuzz::of("xattrs").words(&[b"user.", b"trusted."]).runs(5_000).run(|input| {
        let tmpfs = Tmpfs::new(TmpfsOptions::default());
        let root = Node::detached(1, FileKind::Directory);
        let made = tmpfs.make(root, Name::new(b"file").unwrap(), &Make::new(S_IFREG | 0o600, 1, 1));
        let file = Node::detached(made.unwrap().ino, FileKind::Regular);
        let (mut model, mut rest) = (BTreeMap::new(), input);
        let mut most = 0;
        while !rest.is_empty() {
            let what = take_number(&mut rest);
            let len = take_number(&mut rest);
            // The namespace refuses empty names and names with a NUL.
            let name = take(&mut rest, len);
            let len = 16 * take_number(&mut rest);
            let value = take(&mut rest, len);
            if name.is_empty() || name.contains(&0) {
                continue;
            }
            let exists = model.contains_key(name);
            let set = match what % 4 {
                0 => tmpfs.setxattr(file, name, value, XattrMode::Set).map(|()| true),
                1 => tmpfs.setxattr(file, name, value, XattrMode::Create).map(|()| !exists),
                2 => tmpfs.setxattr(file, name, value, XattrMode::Replace).map(|()| exists),
                _ => {
                    let removed = tmpfs.removexattr(file, name);
                    assert_eq!(removed.is_ok(), model.remove(name).is_some(), "{name:?}");
                    continue;
                }
            };
            if let Ok(was_right) = set {
                assert!(was_right, "create or replace of {name:?}");
                model.insert(name.to_vec(), value.to_vec());
            }
            most = most.max(model.len());
            assert_eq!(collect_xattrs(&tmpfs, file), model);
        }
        assert_eq!(collect_xattrs(&tmpfs, file), model);
        most
    });
    assert!(answers.keys().any(|most| *most >= 3), "{answers:?}");
}
