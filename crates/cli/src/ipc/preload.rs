//! Finds the preload library.
//!
//! cargo builds the preload library into the directory of the program, or into `deps` in it. A
//! package installs it into `../lib/corewalk`. `--preload` names another build.
//!
//! Source: ld.so(8), `LD_PRELOAD`.

use std::ffi::{OsStr, OsString};
use std::fmt::Display;
use std::path::{Path, PathBuf};

use super::place::NAMESPACE_ENV;
use super::program;
use crate::failure::Failure;

const FILE: &str = "libcorewalk_ipc_preload.so";

/// Folders in which `exec` searches for the library, relative to the directory of this program.
/// `deps` is first: in a build directory of cargo, a copy beside the program may be older.
const FOLDERS: [&str; 4] = ["deps", "", "../lib/corewalk", "../lib"];

pub(super) fn find(given: Option<&Path>) -> Result<PathBuf, Failure> {
    let path = match given {
        Some(path) => {
            std::path::absolute(path).map_err(|error| Failure::of(path.display(), error))?
        }
        None => beside_program()?,
    };
    if !path.is_file() {
        return Err(Failure::of(path.display(), "there is no such file"));
    }
    let failed = |why: &dyn Display| Failure::of(path.display(), why);
    // If the file is no library, the dynamic loader only prints a warning. The program would then
    // use the kernel's IPC objects.
    if !program::is_shared_object(&path).map_err(|error| failed(&error))? {
        return Err(failed(&"not a shared object for this machine"));
    }
    if given.is_some() && !is_ours(&path).map_err(|error| failed(&error))? {
        return Err(failed(&"not the preload library of corewalk"));
    }
    // The dynamic loader splits `LD_PRELOAD` at colons and blanks, and knows no way to quote them.
    if path.to_string_lossy().contains([':', ' ']) {
        return Err(Failure::of(path.display(), "the loader takes no path with a colon or blank"));
    }
    Ok(path)
}

/// Returns true if the file is the preload library: it contains the name of the library's
/// environment variable.
fn is_ours(path: &Path) -> std::io::Result<bool> {
    let (bytes, word) = (std::fs::read(path)?, NAMESPACE_ENV.as_bytes());
    Ok(bytes.windows(word.len()).any(|bytes| bytes == word))
}

fn beside_program() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::of("corewalk", error))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = FOLDERS.map(|name| folder.join(name).join(FILE));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| Failure::of(FILE, "not found beside the program; see --preload"))
}

pub(super) fn value(path: &Path, before: Option<&OsStr>) -> OsString {
    let mut value = path.as_os_str().to_owned();
    if let Some(before) = before.filter(|before| !before.is_empty()) {
        value.push(":");
        value.push(before);
    }
    value
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn library_stands_in_front_of_others() {
        let value = |before: &str| value(Path::new("/a.so"), Some(OsStr::new(before)));
        assert_eq!(value(""), "/a.so");
        assert_eq!(value("b.so c.so"), "/a.so:b.so c.so");
    }
}
