//! Checks of `make`, `lookup` and `remove`.

use corewalk::attr::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG, S_IFSOCK};
use corewalk::{Errno, Name};

use super::tree::pattern;
use crate::answer::{Answer, Checked, ensure, ensure_eq, is_unsupported};
use crate::bench::Bench;

pub(super) fn kinds(bench: &Bench) -> Checked {
    let root = bench.root();
    let device = 0x0103;
    let all = [
        ("file", S_IFREG | 0o640, 0),
        ("directory", S_IFDIR | 0o750, 0),
        ("fifo", S_IFIFO | 0o600, 0),
        ("socket", S_IFSOCK | 0o755, 0),
        ("char", S_IFCHR | 0o666, device),
        ("block", S_IFBLK | 0o660, device),
    ];
    for (text, mode, rdev) in all {
        let what = bench.new_file(mode).with_rdev(rdev);
        let made =
            match bench.vfs.make(&bench.cred, &root, Name::new(text.as_bytes()).must("")?, what) {
                Err(error) if !matches!(text, "file" | "directory") && is_refused(error) => {
                    continue;
                }
                made => made.needs(&format!("make of a {text}"))?,
            };
        let (inode, attr) = made;
        ensure_eq(&format!("the mode of a new {text}"), attr.mode, mode)?;
        ensure_eq(&format!("the device of a new {text}"), attr.rdev, rdev)?;
        ensure_eq(&format!("the owner of a new {text}"), (attr.uid, attr.gid), bench.owner)?;
        ensure_eq(&format!("the links of a new {text}"), attr.nlink > 0, true)?;
        let number = inode.ino();
        drop(inode);
        bench.cool();
        let found = bench.find(&root, text)?;
        let known = bench.attr(&found)?;
        ensure_eq(&format!("the mode of a {text}, looked up,"), known.mode, mode)?;
        ensure_eq(&format!("the device of a {text}, looked up,"), known.rdev, rdev)?;
        if bench.has_numbers()? {
            ensure_eq(&format!("the inode of a {text}, looked up,"), found.ino(), number)?;
        }
        ensure_eq("the kind of the inode", found.kind().to_mode(), mode & S_IFMT)?;
    }
    Ok(())
}

fn is_refused(error: Errno) -> bool {
    is_unsupported(error) || [Errno::PERM, Errno::INVAL].contains(&error)
}

pub(super) fn existing(bench: &Bench) -> Checked {
    let root = bench.root();
    let content = pattern(1, 5_000);
    bench.file(&root, "file", &content)?;
    let dir = bench.dir(&root, "dir")?;
    bench.file(&dir, "child", b"child")?;
    drop(dir);
    for text in ["file", "dir"] {
        for mode in [S_IFREG | 0o600, S_IFDIR | 0o700] {
            let make = || bench.make(&root, text, bench.new_file(mode));
            bench.fails(&format!("make of the taken name {text:?}"), &[Errno::EXIST], make)?;
        }
    }
    bench.has_content(&root, "file", &content)
}

pub(super) fn bytes(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    let longest = bench.vfs.statfs(&root).must("statfs")?.namelen.min(255) as usize;
    let long = vec![b'x'; longest];
    let texts: [&[u8]; 9] = [
        b"plain",
        b"with space",
        b"-dash",
        b"..dots",
        b".hidden",
        b"new\nline",
        b"caf\xc3\xa9",
        b"not \xff utf-8",
        &long,
    ];
    let mut made = Vec::new();
    for text in texts {
        let name = Name::new(text).must("a valid name")?;
        let what = bench.new_file(S_IFREG | 0o644);
        match bench.vfs.make(&bench.cred, &dir, name, what) {
            // A back end may refuse a name that it cannot store. A name that it accepts must be
            // found and listed.
            Err(Errno::INVAL | Errno::ILSEQ) => continue,
            answer => drop(answer.needs(&format!("make of {:?}", String::from_utf8_lossy(text)))?),
        }
        made.push(text);
    }
    bench.cool();
    let mut listed: Vec<Vec<u8>> = bench.list(&dir)?.into_iter().map(|it| it.name).collect();
    listed.sort_unstable();
    made.sort_unstable();
    ensure(listed == made, || {
        let show = |name: &Vec<u8>| String::from_utf8_lossy(name).into_owned();
        format!("the listed names are {:?}", listed.iter().map(show).collect::<Vec<_>>())
    })?;
    for text in made {
        let name = Name::new(text).must("a valid name")?;
        let found = bench.vfs.lookup(&bench.cred, &dir, name);
        found.must(&format!("lookup of {:?}", String::from_utf8_lossy(text)))?;
    }
    Ok(())
}

pub(super) fn remove(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    bench.file(&dir, "child", b"child")?;
    bench.file(&root, "file", b"file")?;
    let full = || bench.rmdir(&root, "dir");
    bench.fails("removal of a directory with a file", &[Errno::NOTEMPTY], full)?;
    bench.fails("unlink of a directory", &[Errno::ISDIR], || bench.unlink(&root, "dir"))?;
    bench.fails("rmdir of a file", &[Errno::NOTDIR], || bench.rmdir(&root, "file"))?;
    bench.fails("removal of an absent name", &[Errno::NOENT], || bench.unlink(&root, "x"))?;
    bench.cool();
    bench.unlink(&dir, "child").needs("remove of a file")?;
    bench.cool();
    bench.is_absent(&dir, "child")?;
    ensure_eq("the entries of an empty directory", bench.list(&dir)?.len(), 0)?;
    drop(dir);
    bench.cool();
    bench.rmdir(&root, "dir").must("remove of an empty directory")?;
    bench.cool();
    bench.is_absent(&root, "dir")?;
    bench.file(&root, "dir", b"now a file")?;
    bench.has_content(&root, "dir", b"now a file")?;
    bench.has_content(&root, "file", b"file")
}
