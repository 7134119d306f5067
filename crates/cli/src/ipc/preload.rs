//! Where the preload library is.
//!
//! cargo puts it beside the program or into the `deps` folder there; a package would put it into
//! `../lib/corewalk`. `--preload` says another place.
//!
//! Source: ld.so(8), `LD_PRELOAD`.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};

use crate::failure::Failure;

const FILE: &str = "libcorewalk_ipc_preload.so";

/// Where the file may lie, seen from the folder of the program. What cargo builds in `deps` is never older
/// than its copy beside the program.
const FOLDERS: [&str; 4] = ["deps", "", "../lib/corewalk", "../lib"];

/// Returns the absolute path of the library.
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
    // The loader splits what it is given at these, and has no way to quote them.
    if path.to_string_lossy().contains([':', ' ']) {
        return Err(Failure::of(path.display(), "the loader takes no path with a colon or blank"));
    }
    Ok(path)
}

fn beside_program() -> Result<PathBuf, Failure> {
    let program = std::env::current_exe().map_err(|error| Failure::of("corewalk", error))?;
    let folder = program.parent().unwrap_or(Path::new("/"));
    let candidates = FOLDERS.map(|name| folder.join(name).join(FILE));
    let found = candidates.into_iter().find(|path| path.is_file());
    found.ok_or_else(|| Failure::of(FILE, "not found beside the program; see --preload"))
}

/// Returns the value of `LD_PRELOAD`: ours in front of what was there.
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
