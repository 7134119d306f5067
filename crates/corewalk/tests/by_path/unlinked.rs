//! Tests of files that are unlinked or replaced while they are open, over a back end by path.

use std::sync::Arc;
use std::time::Duration;

use corewalk::{Cred, Errno, InodeRef, Make, May, Name, Removal, RenameMode, Vfs, VfsOptions};

use crate::tree::{Links, PathTree};

const BOTH: [Links; 2] = [Links::Yes, Links::No];

fn new(links: Links) -> (Arc<PathTree>, Arc<Vfs>) {
    let fs = PathTree::slow(links, Duration::ZERO, Duration::ZERO);
    let vfs = Vfs::new(fs.clone(), VfsOptions::default()).unwrap();
    (fs, vfs)
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn make<'v>(vfs: &'v Vfs, text: &str) -> InodeRef<'v> {
    let cred = Cred::root();
    let (file, _) = vfs.make(&cred, &vfs.root(), name(text), Make::new(0o644, 0, 0)).unwrap();
    assert_eq!(vfs.write(&cred, &file, 0, 0, text.as_bytes()), Ok(text.len()));
    file
}

fn content(vfs: &Vfs, file: &InodeRef<'_>) -> Result<String, Errno> {
    let mut buf = [0; 16];
    let count = vfs.read(file, 0, 0, &mut buf)?;
    Ok(String::from_utf8_lossy(&buf[..count]).into_owned())
}

fn names(vfs: &Vfs) -> Vec<String> {
    let mut names = vec![];
    let mut sink = |entry: corewalk::DirEntry<'_>| {
        names.push(String::from_utf8_lossy(entry.name.as_bytes()).into_owned());
        std::ops::ControlFlow::Continue(())
    };
    vfs.readdir(&vfs.root(), 0, &mut sink).unwrap();
    names
}

fn remove(vfs: &Vfs, text: &str) {
    vfs.remove(&Cred::root(), &vfs.root(), name(text), Removal::Unlink).unwrap();
}

fn rename(vfs: &Vfs, from: &str, to: &str) {
    let root = vfs.root();
    let (from, to) = ((&root, name(from)), (&root, name(to)));
    vfs.rename(&Cred::root(), from, to, RenameMode::Replace).unwrap();
}

#[test]
fn open_removed_file_is_usable_until_forget() {
    for links in BOTH {
        let (fs, vfs) = new(links);
        let file = make(&vfs, "f");
        let handle = vfs.open(&Cred::root(), &file, 2, May::READ | May::WRITE).unwrap().handle;
        remove(&vfs, "f");
        assert_eq!(names(&vfs), [""; 0], "the hidden name is listed");
        assert_eq!(vfs.lookup(&Cred::root(), &vfs.root(), name("f")).err(), Some(Errno::NOENT));
        assert_eq!(vfs.getattr(&file).unwrap().nlink, 0);
        assert_eq!(vfs.write(&Cred::root(), &file, handle, 1, b"g"), Ok(1));
        assert_eq!(content(&vfs, &file).unwrap(), "fg");
        make(&vfs, "f");
        assert_eq!(
            content(&vfs, &file).unwrap(),
            "fg",
            "the open file is lost when another takes its name"
        );
        vfs.release(&file, handle);
        drop(file);
        assert_eq!(fs.names("/"), ["f"]);
    }
}

#[test]
fn unopened_file_is_removed_at_once() {
    let (fs, vfs) = new(Links::Yes);
    let file = make(&vfs, "f");
    let handle = vfs.open(&Cred::root(), &file, 0, May::READ).unwrap().handle;
    vfs.release(&file, handle);
    remove(&vfs, "f");
    assert_eq!(fs.names("/"), [""; 0]);
    assert_eq!(content(&vfs, &file), Err(Errno::STALE));
}

#[test]
fn replaced_file_is_usable_until_forget() {
    for links in BOTH {
        let (fs, vfs) = new(links);
        let (old, new) = (make(&vfs, "f"), make(&vfs, "n"));
        rename(&vfs, "n", "f");
        assert_eq!(names(&vfs), ["f"]);
        assert_eq!(
            content(&vfs, &old).unwrap(),
            "f",
            "a file looked up before its replacement cannot be opened"
        );
        assert_eq!(content(&vfs, &new).unwrap(), "n");
        assert_eq!([&old, &new].map(|file| vfs.getattr(file).unwrap().nlink), [0, 1]);
        assert_eq!(fs.content("/f"), Some(b"n".to_vec()));
        drop(old);
        assert_eq!(fs.names("/"), ["f"]);
    }
}

#[test]
fn failed_rename_leaves_the_target_and_no_hidden_name() {
    for links in BOTH {
        let (fs, vfs) = new(links);
        let (_old, _new) = (make(&vfs, "f"), make(&vfs, "n"));
        fs.remove_outside("/", "n");
        let root = vfs.root();
        let (from, to) = ((&root, name("n")), (&root, name("f")));
        let done = vfs.rename(&Cred::root(), from, to, RenameMode::Replace);
        assert_eq!(done, Err(Errno::NOENT));
        assert_eq!(fs.names("/"), ["f"]);
        assert_eq!(fs.content("/f"), Some(b"f".to_vec()));
    }
}

#[test]
fn last_close_removes_the_hidden_name_of_a_named_file() {
    let (fs, vfs) = new(Links::Yes);
    let file = make(&vfs, "f");
    vfs.link(&Cred::root(), &file, &vfs.root(), name("g")).unwrap();
    let handle = vfs.open(&Cred::root(), &file, 0, May::READ).unwrap().handle;
    remove(&vfs, "f");
    assert_eq!((names(&vfs), vfs.getattr(&file).unwrap().nlink), (vec!["g".to_owned()], 1));
    vfs.release(&file, handle);
    assert_eq!(fs.names("/"), ["g"]);
    assert_eq!(vfs.getattr(&file).unwrap().nlink, 1);
}

#[test]
fn drop_of_the_namespace_removes_hidden_names() {
    let (fs, vfs) = new(Links::Yes);
    let file = make(&vfs, "f");
    vfs.open(&Cred::root(), &file, 0, May::READ).unwrap();
    // Turn the reference into a client lookup, which no `forget` drops.
    let ino = file.into_lookups();
    remove(&vfs, "f");
    assert_eq!(vfs.inode(ino).unwrap().ino(), ino);
    assert_eq!(fs.names("/").len(), 1);
    drop(vfs);
    assert_eq!(fs.names("/"), [""; 0]);
}
