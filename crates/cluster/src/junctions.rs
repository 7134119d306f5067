//! Junctions: directories on which a program mounts the file system of another database.
//!
//! A junction is an empty directory with the extended attribute [`JUNCTION`], whose value is the
//! URL of another file system. A program such as `corewalk mount` mounts the other file system on
//! this directory. So a rename across a junction fails with `EXDEV`, and each database serves only
//! its own files. Calls that would make a name in the directory fail with `EREMOTE`. Calls that
//! would remove or rename the directory fail with `EBUSY`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt as _;
use std::path::PathBuf;

use corewalk::Errno;

use crate::filesystem::ClusterFs;

/// The extended attribute of a junction.
pub const JUNCTION: &str = "trusted.corewalk.junction";

const JUNCTIONS: &str = "SELECT * FROM cw_junctions()";

/// A junction.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Junction {
    /// The inode number of the directory.
    pub ino: u64,
    /// The path of the directory, relative to the root.
    pub path: PathBuf,
    /// The URL of the other file system.
    pub url: String,
}

impl ClusterFs {
    /// Returns a number that changes when a junction of the file system changes. It may lag behind
    /// by a third of the lease time. The call costs no SQL statement.
    pub fn junctions_version(&self) -> i64 {
        self.meta.session.junctions()
    }

    /// Returns all junctions, except those whose URL is not UTF-8. The call costs one SQL
    /// statement.
    ///
    /// # Errors
    /// `EIO` if the database does not answer.
    pub fn junctions(&self) -> Result<Vec<Junction>, Errno> {
        let rows = self.meta.session.database.query(JUNCTIONS, &[])?.rows;
        let junctions = rows.into_iter().filter_map(|row| {
            let path: Vec<u8> = row.get("path");
            let path = path.strip_prefix(b"/")?.to_vec();
            let url = String::from_utf8(row.get("url")).ok()?;
            let ino = row.get::<_, i64>("ino") as u64;
            Some(Junction { ino, path: OsString::from_vec(path).into(), url })
        });
        let junctions: Vec<Junction> = junctions.collect();
        // The caller mounts on these junctions next. So from now on, the kernel may keep no names.
        self.meta.cache.set_has_junctions(!junctions.is_empty());
        Ok(junctions)
    }
}
