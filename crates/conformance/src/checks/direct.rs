//! Checks that call a back end directly, without the cache above it. They are for back ends that
//! find files by inode number.
//!
//! Some calls are answered by the cache alone, such as the creation of a name that exists. The back
//! end must refuse these calls too. The cache may not know that the name exists, or may learn too
//! late that a directory was removed.

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::{Errno, FileKind, Node, RenameMode};

use crate::answer::{Answer, Checked, Stop, ensure_bytes, ensure_eq, is_without_mode};
use crate::bench::{Bench, name};

pub(super) fn refusals(bench: &Bench) -> Checked {
    if !bench.is_by_number() || !bench.has_numbers()? {
        return Stop::skipped("the back end works by path");
    }
    let fs = &*bench.fs;
    let root = Node::detached(fs.root().must("root")?.ino, FileKind::Directory);
    let file_mode = bench.new_file(S_IFREG | 0o644);
    let file = fs.make(root, name("file"), &file_mode).needs("make of a file")?;
    let node = Node::detached(file.ino, FileKind::Regular);
    ensure_eq("the bytes of a write", fs.write(node, 0, b"content").needs("write")?, 7)?;
    let again = fs.make(root, name("file"), &file_mode);
    again.must_fail("make of a taken name", &[Errno::EXIST])?;
    let other = fs.make(root, name("other"), &file_mode).must("make of a file")?;
    let both = ((root, name("other")), (root, name("file")));
    match fs.rename(both.0, both.1, RenameMode::NoReplace) {
        Err(error) if error != Errno::EXIST && is_without_mode(error) => {}
        answer => answer.must_fail("rename to a taken name (NoReplace)", &[Errno::EXIST])?,
    }
    let found = fs.lookup(root, name("other")).must("lookup after a rename that failed")?;
    ensure_eq("the inode after a rename that failed", found.ino, other.ino)?;
    let mut buf = [0; 16];
    let count = fs.read(node, 0, &mut buf).must("read")?;
    ensure_bytes("the file after the calls that failed", &buf[..count], b"content")?;
    removed_directory(bench, root)
}

fn removed_directory(bench: &Bench, root: Node<'_>) -> Checked {
    let fs = &*bench.fs;
    let made = fs.make(root, name("dir"), &bench.new_file(S_IFDIR | 0o755)).needs("make")?;
    let dir = Node::detached(made.ino, FileKind::Directory);
    let file_mode = bench.new_file(S_IFREG | 0o644);
    let child = fs.make(dir, name("child"), &file_mode).must("make in a directory")?;
    let full = fs.remove(root, name("dir"), dir);
    full.must_fail("remove of a directory with a file", &[Errno::NOTEMPTY])?;
    let child = Node::detached(child.ino, FileKind::Regular);
    fs.remove(dir, name("child"), child).must("remove of a file")?;
    fs.remove(root, name("dir"), dir).must("remove of an empty directory")?;
    let gone = [Errno::NOENT, Errno::STALE];
    let late = fs.make(dir, name("late"), &file_mode);
    late.must_fail("make in a removed directory", &gone)?;
    fs.lookup(dir, name("child")).must_fail("lookup in a removed directory", &gone)?;
    fs.lookup(root, name("dir")).must_fail("lookup of a removed directory", &[Errno::NOENT])
}
