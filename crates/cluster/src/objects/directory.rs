//! Objects in a directory of the host, for example of a disk that all machines share.
//!
//! The key of an object is its path. A new object is written under a name that ends with `.part`,
//! synced, and then renamed. So a reader never sees a part of an object (O.2). Its directory is
//! synced after the rename (O.1).
//!
//! Source: rename(2), fsync(2).

use std::fs::{self, File};
use std::io::{self, Write as _};
use std::ops::Range;
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use futures_util::FutureExt as _;
use futures_util::future::BoxFuture;

use super::Objects;

/// The end of the name of an object that is still being written.
const PART: &str = ".part";

/// A directory with objects.
#[derive(Debug)]
pub struct DirectoryObjects {
    root: PathBuf,
}

impl DirectoryObjects {
    /// Returns the objects in the directory `root`, which need not exist yet.
    pub fn new(root: impl Into<PathBuf>) -> DirectoryObjects {
        DirectoryObjects { root: root.into() }
    }

    /// Runs `work` with the path of an object on a thread that may block.
    fn run<T: Send + 'static>(
        &self,
        key: &str,
        work: impl FnOnce(&Path) -> io::Result<T> + Send + 'static,
    ) -> BoxFuture<'static, io::Result<T>> {
        let path = self.root.join(key);
        let done = tokio::task::spawn_blocking(move || work(&path));
        done.map(|done| done.map_err(io::Error::other)?).boxed()
    }
}

impl Objects for DirectoryObjects {
    fn put<'a>(&'a self, key: &'a str, bytes: Bytes) -> BoxFuture<'a, io::Result<()>> {
        self.run(key, move |path| write(path, &bytes))
    }

    fn get<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, io::Result<Bytes>> {
        self.run(key, move |path| {
            let len = usize::try_from(range.end.saturating_sub(range.start));
            let mut bytes = vec![0; len.map_err(io::Error::other)?];
            File::open(path)?.read_exact_at(&mut bytes, range.start)?;
            Ok(Bytes::from(bytes))
        })
    }

    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<()>> {
        self.run(key, |path| match fs::remove_file(path) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            done => done,
        })
    }

    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, io::Result<Vec<(String, u64)>>> {
        let (root, prefix) = (self.root.clone(), prefix.to_owned());
        self.run("", move |_| {
            let mut keys = Vec::new();
            collect(&root, &root, &mut keys)?;
            keys.retain(|(key, _)| key.starts_with(&prefix));
            Ok(keys)
        })
    }
}

/// Writes the object at `path`, and syncs it and its directory.
fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let folder = path.parent().unwrap_or(path);
    make_folder(folder)?;
    let part = path.with_extension(&PART[1..]);
    let mut file = File::create(&part)?;
    file.write_all(bytes)?;
    file.sync_all()?;
    fs::rename(&part, path)?;
    File::open(folder)?.sync_all()
}

/// Makes a directory with all directories above it, and syncs each directory that gets an entry.
fn make_folder(folder: &Path) -> io::Result<()> {
    match fs::create_dir(folder) {
        Ok(()) => {}
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => return Ok(()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            make_folder(folder.parent().ok_or(error)?)?;
            match fs::create_dir(folder) {
                Err(error) if error.kind() != io::ErrorKind::AlreadyExists => return Err(error),
                _ => {}
            }
        }
        Err(error) => return Err(error),
    }
    folder.parent().map_or(Ok(()), |above| File::open(above)?.sync_all())
}

/// Adds the keys of all objects below `folder` with their sizes to `keys`.
fn collect(root: &Path, folder: &Path, keys: &mut Vec<(String, u64)>) -> io::Result<()> {
    let entries = match fs::read_dir(folder) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let path = entry?.path();
        if path.is_dir() {
            collect(root, &path, keys)?;
        } else if let Some(key) = path.strip_prefix(root).ok().and_then(Path::to_str)
            && !key.ends_with(PART)
        {
            keys.push((key.to_owned(), fs::metadata(&path)?.len()));
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn object_is_found_until_it_is_deleted() {
        let root = std::env::temp_dir().join(format!("corewalk-objects-{}", std::process::id()));
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let objects = DirectoryObjects::new(&root);
            assert_eq!(objects.list("").await.unwrap(), []);
            objects.put("1/0/a", Bytes::from_static(b"0123456789")).await.unwrap();
            objects.put("2/0/b", Bytes::from_static(b"x")).await.unwrap();
            assert_eq!(objects.get("1/0/a", 2..5).await.unwrap(), b"234"[..]);
            let beyond = objects.get("1/0/a", 8..12).await.unwrap_err();
            assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
            assert_eq!(objects.list("1/").await.unwrap(), [("1/0/a".to_owned(), 10)]);
            objects.delete("1/0/a").await.unwrap();
            objects.delete("1/0/a").await.unwrap();
            let gone = objects.get("1/0/a", 0..1).await.unwrap_err();
            assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        });
        fs::remove_dir_all(&root).unwrap();
    }
}
