//! Checks of hard links, files without a name, and symbolic links.

use corewalk::attr::mode::S_IFREG;
use corewalk::{Errno, RenameMode};

use super::tree::pattern;
use crate::answer::{Answer, Checked, Stop, ensure, ensure_bytes, ensure_eq, is_unsupported};
use crate::bench::{Bench, name};

pub(super) fn hard(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    let file = bench.file(&root, "first", b"content")?;
    match bench.vfs.link(&bench.cred, &file, &dir, name("second")) {
        Err(error) if error == Errno::PERM || is_unsupported(error) => {
            return Stop::skipped("the back end has no hard links");
        }
        linked => ensure_eq("the links after link", linked.must("link")?.nlink, 2)?,
    }
    let number = file.ino();
    drop(file);
    bench.cool();
    let second = bench.find(&dir, "second")?;
    ensure_eq("the inode under the second name", second.ino(), number)?;
    ensure_eq("the links in getattr", bench.attr(&second)?.nlink, 2)?;
    bench.open(&second)?.write(0, b"CONTENT")?;
    drop(second);
    bench.has_content(&root, "first", b"CONTENT")?;
    let taken = || {
        let file = bench.lookup(&root, "first")?;
        bench.vfs.link(&bench.cred, &file, &dir, name("second"))
    };
    bench.fails("link to a taken name", &[Errno::EXIST], taken)?;
    bench.cool();
    let same = bench.rename((&root, "first"), (&dir, "second"), RenameMode::Replace);
    if !same.is_err_and(is_unsupported) {
        same.must("rename over another name of the file")?;
        bench.has_content(&root, "first", b"CONTENT")?;
        bench.has_content(&dir, "second", b"CONTENT")?;
    }
    bench.cool();
    bench.unlink(&root, "first").must("remove of the first name")?;
    bench.is_absent(&root, "first")?;
    let second = bench.find(&dir, "second")?;
    ensure_eq("the links after remove", bench.attr(&second)?.nlink, 1)?;
    drop(second);
    bench.has_content(&dir, "second", b"CONTENT")?;
    nameless(bench)
}

fn nameless(bench: &Bench) -> Checked {
    let root = bench.root();
    let made = bench.vfs.tmpfile(&bench.cred, &root, bench.new_file(S_IFREG | 0o600));
    if made.as_ref().is_err_and(|error| is_unsupported(*error)) {
        return Ok(());
    }
    let (file, attr) = made.must("tmpfile")?;
    ensure_eq("the links of a file without a name", attr.nlink, 0)?;
    let content = pattern(5, 4_000);
    bench.open(&file)?.write(0, &content)?;
    let linked = bench.vfs.link(&bench.cred, &file, &root, name("linked"));
    ensure_eq("the links of a file with its first name", linked.must("link")?.nlink, 1)?;
    drop(file);
    bench.has_content(&root, "linked", &content)
}

pub(super) fn symbolic(bench: &Bench) -> Checked {
    let root = bench.root();
    let long = vec![b'x'; 1_000];
    let targets: [&[u8]; 5] = [b"a", b"../up/and/down", b"/absolute", b"not \xff utf-8", &long];
    for (number, target) in targets.into_iter().enumerate() {
        let text = format!("link{number}");
        match bench.symlink(&root, &text, target) {
            Err(error) if error == Errno::PERM || is_unsupported(error) => {
                return Stop::skipped("the back end has no symbolic links");
            }
            made => drop(made.must("make of a symbolic link")?),
        }
        bench.cool();
        let link = bench.find(&root, &text)?;
        let found = bench.vfs.readlink(&link).must("readlink")?;
        ensure_bytes("the target of a symbolic link", &found, target)?;
        let size = bench.attr(&link)?.size;
        ensure(size == target.len() as u64, || {
            format!("the size of a symbolic link to {} bytes is {size}", target.len())
        })?;
    }
    bench.cool();
    bench.unlink(&root, "link0").must("remove of a symbolic link")?;
    bench.cool();
    bench.is_absent(&root, "link0")
}
