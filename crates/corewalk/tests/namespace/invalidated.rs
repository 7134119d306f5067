//! Tests of reports about changes that another program has made in the back end.

use std::sync::Arc;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileKind, FileSystem as _, InodeRef, Node, RenameMode, Vfs, VfsOptions,
};

use crate::fixtures::{name, tree, walk};

/// Another program moves a directory, and then removes files below it. No lookup has found its new
/// name yet, so the reports about these files cannot reach the cached names.
#[test]
fn names_below_a_directory_moved_behind_the_namespace_are_asked_for_again() {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let vfs = Vfs::new(Arc::<Tmpfs>::clone(&fs), VfsOptions::default()).unwrap();
    tree(&vfs, &["a/", "a/d/", "a/d/e/", "a/d/x", "a/d/e/x", "b/"]);
    let [a, b, d, e] = ["a", "b", "a/d", "a/d/e"].map(|path| walk(&vfs, path).unwrap());
    let dir = |inode: &InodeRef<'_>| Node::detached(inode.ino(), FileKind::Directory);
    let lookup = |dir: &InodeRef<'_>, text| {
        vfs.lookup(&Cred::root(), dir, name(text)).map(|found| found.ino())
    };
    let (from, to) = ((dir(&a), name("d")), (dir(&b), name("d")));
    fs.rename(from, to, RenameMode::NoReplace).unwrap();
    for parent in [&a, &b] {
        vfs.invalidate_tree(parent, name("d"), &mut |_, _| ()).unwrap();
    }
    // A client works in the directory, which it holds.
    assert_eq!(lookup(&d, "e"), Ok(e.ino()));
    for parent in [&d, &e] {
        let x = Node::detached(lookup(parent, "x").unwrap(), FileKind::Regular);
        fs.remove(dir(parent), name("x"), x).unwrap();
        assert!(lookup(parent, "x").is_ok(), "control: no report has reached the name");
    }
    assert!(vfs.directories_at(&b, name("d")).unwrap().is_empty());
    assert_eq!(lookup(&b, "d"), Ok(d.ino()));
    assert_eq!(lookup(&d, "x"), Err(Errno::NOENT));
    assert_eq!(lookup(&d, "e"), Ok(e.ino()));
    assert_eq!(lookup(&e, "x"), Err(Errno::NOENT));
    assert_eq!(e.path().unwrap(), b"/b/d/e");
}
