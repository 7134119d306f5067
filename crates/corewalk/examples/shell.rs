//! A shell on a namespace in memory: it walks paths, shows the path of a directory, and mounts.
//!
//! The example shows how a library operating system or a 9P server uses a [`Vfs`]. `walk` resolves
//! the path of a file. `walk_parent` resolves the path of the directory in which a new name is
//! made. `getcwd` returns the path of a [`PathRef`] (a mount and a dentry).
//!
//! ```sh
//! printf 'mkdir /a\nwrite /a/f hello\nmv /a /b\ncd /b\npwd\ncat f\n' |
//!     cargo run -p corewalk --example shell
//! ```

use std::io::{self, BufRead as _, Write};
use std::ops::ControlFlow;
use std::sync::Arc;

use corewalk::attr::mode;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Cred, Errno, FileKind, FsStruct, Make, May, PathRef, Removal, RenameMode, Vfs, VfsOptions,
    WalkFlags,
};

const HELP: &str = "\
cd DIR            changes the working directory
pwd               prints the working directory
ls [DIR]          lists a directory
mkdir DIR         makes a directory
write FILE TEXT   replaces the contents of a file
cat FILE          prints a file
ln TARGET NAME    makes a symbolic link
mv OLD NEW        renames
rm FILE           removes a file
rmdir DIR         removes an empty directory
mount DIR         mounts a new file system on a directory
umount DIR        unmounts it
path INO          prints a path of the inode with this number
";

/// The state of the shell: its credentials and its working directory. The reference in `at` keeps
/// the working directory usable even if the directory is renamed.
struct Shell<'v> {
    vfs: &'v Vfs,
    cred: Cred,
    at: FsStruct<'v>,
}

impl<'v> Shell<'v> {
    fn new(vfs: &'v Vfs) -> Shell<'v> {
        let root = vfs.root_path();
        Shell { vfs, cred: Cred::root(), at: FsStruct { cwd: root.clone(), root } }
    }

    fn run(&mut self, line: &str, out: &mut dyn Write) -> io::Result<()> {
        let mut words = line.splitn(3, ' ').map(str::as_bytes);
        let command = words.next().unwrap_or_default();
        let (one, two) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
        let done = match command {
            b"" => Ok(Vec::new()),
            b"help" => Ok(HELP.as_bytes().to_vec()),
            b"cd" => self.cd(one),
            b"pwd" => self.at.cwd.getcwd(&self.at.root).map(|path| [&path, &b"\n"[..]].concat()),
            b"ls" => self.ls(if one.is_empty() { b"." } else { one }),
            b"mkdir" => self.make(one, Make::new(mode::S_IFDIR | 0o755, 0, 0)),
            b"write" => self.write(one, two),
            b"cat" => self.cat(one),
            b"ln" => self.make(two, Make::new(mode::S_IFLNK | 0o777, 0, 0).with_target(one)),
            b"mv" => self.mv(one, two),
            b"rm" => self.rm(one, Removal::Unlink),
            b"rmdir" => self.rm(one, Removal::Rmdir),
            b"mount" => self.mount(one),
            b"umount" => self.walk(one).and_then(|at| self.vfs.umount(at)).map(|()| Vec::new()),
            b"path" => self.path(one),
            _ => Err(Errno::NOSYS),
        };
        match done {
            Ok(text) => out.write_all(&text),
            Err(error) => writeln!(out, "{line}: {error}"),
        }
    }

    fn walk(&self, path: &[u8]) -> Result<PathRef<'v>, Errno> {
        self.vfs.walk(&self.cred, &self.at, path, WalkFlags::FOLLOW)
    }

    fn cd(&mut self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let flags = WalkFlags::FOLLOW | WalkFlags::DIRECTORY;
        self.at.cwd = self.vfs.walk(&self.cred, &self.at, path, flags)?;
        Ok(Vec::new())
    }

    fn ls(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let (dir, mut text) = (self.walk(path)?.inode(), Vec::new());
        let mut cookie = 0;
        loop {
            let page = cookie;
            self.vfs.readdir(&dir, page, &mut |entry| {
                cookie = entry.cookie;
                let suffix = match entry.kind {
                    FileKind::Directory => "/",
                    FileKind::Symlink => "@",
                    _ => "",
                };
                let name = String::from_utf8_lossy(entry.name.as_bytes());
                text.extend_from_slice(format!("{} {name}{suffix}\n", entry.ino).as_bytes());
                ControlFlow::Continue(())
            })?;
            if cookie == page {
                return Ok(text);
            }
        }
    }

    fn make(&self, path: &[u8], what: Make<'_>) -> Result<Vec<u8>, Errno> {
        let (dir, name) = self.parent(path)?;
        self.vfs.make(&self.cred, &dir.inode(), name, what)?;
        Ok(Vec::new())
    }

    fn parent<'p>(&self, path: &'p [u8]) -> Result<(PathRef<'v>, corewalk::Name<'p>), Errno> {
        self.vfs.walk_parent(&self.cred, &self.at, path, WalkFlags::empty())
    }

    fn write(&self, path: &[u8], text: &[u8]) -> Result<Vec<u8>, Errno> {
        let file = match self.walk(path) {
            Err(Errno::NOENT) => {
                self.make(path, Make::new(mode::S_IFREG | 0o644, 0, 0))?;
                self.walk(path)?
            }
            found => found?,
        };
        let file = file.inode();
        let handle = self.vfs.open(&self.cred, &file, 0, May::WRITE)?.handle;
        let set = corewalk::SetAttr::default().with_size(0);
        let written = self
            .vfs
            .setattr(&self.cred, &file, &set)
            .and_then(|_| self.vfs.write(&self.cred, &file, handle, 0, text));
        self.vfs.release(&file, handle);
        written.map(|_| Vec::new())
    }

    fn cat(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        let file = self.walk(path)?.inode();
        let handle = self.vfs.open(&self.cred, &file, 0, May::READ)?.handle;
        let mut text = vec![0; self.vfs.getattr(&file)?.size as usize];
        let read = self.vfs.read(&file, handle, 0, &mut text);
        self.vfs.release(&file, handle);
        text.truncate(read?);
        text.push(b'\n');
        Ok(text)
    }

    fn mv(&self, old: &[u8], new: &[u8]) -> Result<Vec<u8>, Errno> {
        let ((from, old), (to, new)) = (self.parent(old)?, self.parent(new)?);
        let (from, to) = (from.inode(), to.inode());
        self.vfs.rename(&self.cred, (&from, old), (&to, new), RenameMode::Replace)?;
        Ok(Vec::new())
    }

    fn rm(&self, path: &[u8], what: Removal) -> Result<Vec<u8>, Errno> {
        let (dir, name) = self.parent(path)?;
        self.vfs.remove(&self.cred, &dir.inode(), name, what)?;
        Ok(Vec::new())
    }

    fn mount(&self, path: &[u8]) -> Result<Vec<u8>, Errno> {
        self.vfs.mount(Arc::new(Tmpfs::new(TmpfsOptions::default())), &self.walk(path)?)?;
        Ok(Vec::new())
    }

    fn path(&self, ino: &[u8]) -> Result<Vec<u8>, Errno> {
        let ino = String::from_utf8_lossy(ino).parse().map_err(|_| Errno::INVAL)?;
        Ok([&self.vfs.path_of_ino(ino)?, &b"\n"[..]].concat())
    }
}

fn main() -> io::Result<()> {
    let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
    let vfs = Vfs::new(fs, VfsOptions::default())?;
    let (mut shell, mut out) = (Shell::new(&vfs), io::stdout().lock());
    for line in io::stdin().lock().lines() {
        shell.run(&line?, &mut out)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn output_of(script: &str) -> String {
        let fs = Arc::new(Tmpfs::new(TmpfsOptions::default()));
        let vfs = Vfs::new(fs, VfsOptions::default()).expect("a namespace");
        let (mut shell, mut out) = (Shell::new(&vfs), Vec::new());
        script.lines().for_each(|line| shell.run(line, &mut out).expect("memory takes all"));
        String::from_utf8(out).expect("text")
    }

    #[test]
    fn working_directory_keeps_its_path_under_renames() {
        let script = "mkdir /a\nmkdir /a/b\nwrite /a/b/f hello\ncd /a/b\nmv /a /z\npwd\ncat f\n\
                      cat ../../z/b/f\ncd /\nrm z/b/f\nrmdir z/b\ncd z/b";
        assert_eq!(
            output_of(script),
            "/z/b\nhello\nhello\ncd z/b: No such file or directory (os error 2)\n"
        );
    }

    #[test]
    fn links_and_mounts_are_crossed() {
        let script = "mkdir /m\nmount /m\nwrite /m/f inside\nln /m/f l\ncat l\ncd m\npwd\n\
                      umount /m\ncd /\numount /m\nls m\nnonsense";
        assert_eq!(
            output_of(script),
            "inside\n/m\numount /m: Device or resource busy (os error 16)\n\
             nonsense: Function not implemented (os error 38)\n"
        );
    }

    #[test]
    fn inode_number_leads_to_its_path() {
        let listed = output_of("mkdir /d\nwrite /d/f x\nls d");
        let (ino, name) = listed.trim().split_once(' ').expect("a number and a name");
        assert_eq!(name, "f");
        assert_eq!(output_of(&format!("mkdir /d\nwrite /d/f x\npath {ino}")), "/d/f\n");
    }
}
