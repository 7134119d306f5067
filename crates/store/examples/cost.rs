//! What operations of a store cost in the process, beside those of tmpfs: ns each.
//!
//! `cargo run --release -p corewalk-store --example cost -- DIR [COUNT]`, with a DIR that does not exist.

#![forbid(unsafe_code)]

use std::path::Path;
use std::time::Instant;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{FileKind, FileSystem, Make, Name, Node, XattrMode};
use corewalk_store::{Store, StoreOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mut arguments = std::env::args().skip(1);
    let dir = arguments.next().ok_or("DIR is missing")?;
    let count = arguments.next().map_or(Ok(100_000), |count| count.parse())?;
    let store = Store::open(Path::new(&dir), &StoreOptions::default())?;
    let tmpfs = Tmpfs::new(TmpfsOptions::default());
    for round in 0..3 {
        measure("tmpfs", &tmpfs, round, count)?;
        measure("store", &store, round, count)?;
    }
    let begun = Instant::now();
    store.sync()?;
    println!("the last commit took {} ms; {:?}", begun.elapsed().as_millis(), store.stats());
    let root = Node::detached(store.root()?.ino, FileKind::Directory);
    let begun = Instant::now();
    let syncs = 200;
    for number in 0..syncs {
        let name = format!("synced{number}");
        let made = store.make(root, Name::new(name.as_bytes())?, &Make::new(0o644, 0, 0))?;
        let file = Node::detached(made.ino, FileKind::Regular);
        store.write(file, 0, 0, &[7; 4096])?;
        store.fsync(file, 0, false)?;
    }
    println!("make, write, fsync: {} us", begun.elapsed().as_micros() / syncs);
    Ok(())
}

fn measure(
    what: &str,
    fs: &dyn FileSystem,
    round: u32,
    count: u32,
) -> Result<(), Box<dyn std::error::Error>> {
    let root = Node::detached(fs.root()?.ino, FileKind::Directory);
    let name = format!("round{round}");
    let made = fs.make(root, Name::new(name.as_bytes())?, &Make::new(0o040_755, 0, 0))?;
    let dir = Node::detached(made.ino, FileKind::Directory);
    let mut files = Vec::new();
    let begun = Instant::now();
    for number in 0..count {
        let name = format!("file{number:08}");
        let made = fs.make(dir, Name::new(name.as_bytes())?, &Make::new(0o644, 0, 0))?;
        files.push(Node::detached(made.ino, FileKind::Regular));
    }
    let made = begun.elapsed().as_nanos() / u128::from(count);
    let begun = Instant::now();
    for (number, file) in files.iter().enumerate() {
        let value = [number as u8 % 10; 600];
        fs.setxattr(*file, b"user.label", &value, XattrMode::Set)?;
    }
    let labelled = begun.elapsed().as_nanos() / u128::from(count);
    println!("{what}: make {made} ns, setxattr {labelled} ns");
    Ok(())
}
