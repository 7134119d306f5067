//! The memory that a tmpfs keeps after files are removed.
//!
//! Run `COREWALK_MEMORY_FILES=2000000 cargo test -p corewalk --test tmpfs_memory -- --nocapture`
//! for figures of many files. The test is a program of its own, so that no other test uses memory.

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{FileKind, FileSystem, Make, Name, Node};

/// The number of files, unless `COREWALK_MEMORY_FILES` is set.
const FILES: u64 = 200_000;
/// One file in this many gets content. The others stay empty.
const WITH_BYTES: u64 = 50;

fn files() -> u64 {
    let given = std::env::var("COREWALK_MEMORY_FILES").ok();
    given.map_or(FILES, |files| files.parse().expect("COREWALK_MEMORY_FILES is a number"))
}

fn resident_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").expect("procfs");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line");
    let number = line.split_whitespace().next().expect("a number");
    number.parse::<u64>().expect("a number") << 10
}

fn table_bytes(fs: &Tmpfs) -> u64 {
    let mut bytes = None;
    fs.counters(&mut |name, count| {
        if name == "tmpfs_table_bytes" {
            bytes = Some(count);
        }
    });
    bytes.expect("the counter")
}

fn make_and_remove(fs: &Tmpfs, files: u64) {
    let root = Node::detached(1, FileKind::Directory);
    let made = fs.make(root, Name::new(b"dir").unwrap(), &Make::new(0o040_755, 0, 0)).unwrap();
    let dir = Node::detached(made.ino, FileKind::Directory);
    let name_of = |i| format!("file{i:08}");
    for i in 0..files {
        let name = name_of(i);
        let name = Name::new(name.as_bytes()).unwrap();
        let ino = fs.make(dir, name, &Make::new(0o644, 0, 0)).unwrap().ino;
        if i % WITH_BYTES == 0 {
            fs.write(Node::detached(ino, FileKind::Regular), 0, &[1; 8192]).unwrap();
        }
    }
    fs.maintain();
    println!("{} MiB with {files} files", resident_bytes() >> 20);
    for i in 0..files {
        let name = name_of(i);
        let name = Name::new(name.as_bytes()).unwrap();
        let ino = fs.lookup(dir, name).unwrap().ino;
        fs.remove(dir, name, Node::detached(ino, FileKind::Regular)).unwrap();
        fs.forget(ino, 0);
    }
}

#[test]
fn removed_files_free_their_memory() {
    let fs = Tmpfs::new(TmpfsOptions::default());
    let before = resident_bytes();
    make_and_remove(&fs, files());
    assert!(table_bytes(&fs) < 1 << 20, "{} bytes of slots are left", table_bytes(&fs));
    let removed = resident_bytes();
    fs.maintain();
    let after = resident_bytes();
    println!("{} MiB after the removals, {} MiB after maintain", removed >> 20, after >> 20);
    assert!(after - before < 8 << 20, "{} bytes are left", after - before);
}
