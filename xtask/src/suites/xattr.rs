//! Comparison of extended attributes and ACLs with those of ext4, call by call.
//!
//! The program `crates/corewalk/examples/xattr_calls.rs` makes system calls and prints their
//! results, errnos and bytes. It runs on the mount under test, and on a new ext4 in a loop device,
//! and both outputs must be equal. The ext4 has the feature `ea_inode`, which allows values of 64
//! KiB.
//!
//! Two cases are left out, because the file systems must differ there:
//! - If names take more than a block, ext4 returns `ENOSPC` even with `ea_inode`. A unit test of
//!   tmpfs covers its limit of 64 KiB.
//! - The LTP test setxattr03 needs immutable files, which FUSE does not have.
//!
//! Source: LTP `testcases/kernel/syscalls`; ext4(5); mkfs.ext4(8).

use super::{
    minutes,
    mount::{Mount, OPTIONS, SERVER_PERMISSIONS, Site, Source},
};
use crate::{Outcome, checks, process};
use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

/// The size of the ext4 file system in bytes.
const EXT4_BYTES: u64 = 64 << 20;
/// Minimum number of lines of a complete output. On ext4 it has about 800 lines.
const LINES_MIN: usize = 600;
const SHOWN_MAX: usize = 40;

pub(super) fn xattr(site: &Site) -> Outcome {
    check(site, Source::Tmpfs, OPTIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn xattr_server(site: &Site) -> Outcome {
    check(site, Source::Tmpfs, SERVER_PERMISSIONS).unwrap_or_else(|outcome| outcome)
}

pub(super) fn xattr_store(site: &Site) -> Outcome {
    check(site, Source::Store, OPTIONS).unwrap_or_else(|outcome| outcome)
}

fn check(site: &Site, source: Source, options: &str) -> Result<Outcome, Outcome> {
    let script = built(site)?;
    let expected = {
        let ext4 = Ext4::mount(site)?;
        let folder = ext4.path.join("t");
        fs::create_dir(&folder)
            .map_err(|error| Outcome::Failed(format!("{}: {error}", folder.display())))?;
        site.run("xattr-ext4", Command::new(&script).arg(folder))?
    };
    let mut mount = Mount::start_with(site, source, options)?;
    mount.shell("xattr-folder", "mkdir -m 0755 t")?;
    let mut command = Command::new(&script);
    command.arg(mount.path.join("t"));
    let seen = mount.run("xattr", &mut command, minutes(2))?;
    compare(&expected, &seen)?;
    println!("xattr: {} lines are equal", seen.lines().count());
    Ok(mount.finish())
}

fn compare(expected: &str, seen: &str) -> Result<(), Outcome> {
    let (expected, seen): (Vec<&str>, Vec<&str>) =
        (expected.lines().collect(), seen.lines().collect());
    if expected.len() < LINES_MIN {
        let lines = expected.len();
        return Err(Outcome::Failed(format!("the transcript of ext4 has only {lines} lines")));
    }
    let mut section = "";
    let mut differences = 0;
    for (nth, line) in expected.iter().enumerate() {
        section = if line.starts_with("--") { line } else { section };
        let other = seen.get(nth).copied().unwrap_or("(nothing)");
        if *line != other {
            differences += 1;
            if differences <= SHOWN_MAX {
                println!("line {} {section}\n  ext4: {line}\n  here: {other}", nth + 1);
            }
        }
    }
    if differences > 0 || seen.len() != expected.len() {
        let lines = (expected.len(), seen.len());
        return Err(Outcome::Failed(format!("{differences} differences; lines: {lines:?}")));
    }
    Ok(())
}

/// Returns the path of the program `xattr_calls`. `cargo test --workspace` has already built it
/// with the same settings, so cargo need not build it again.
fn built(site: &Site) -> Result<PathBuf, Outcome> {
    let target = checks::target_folder(&site.root);
    let mut command = Command::new("cargo");
    command.args(["build", "-q", "--workspace", "--example", "xattr_calls"]);
    command.current_dir(&site.root).env("CARGO_TARGET_DIR", &target);
    site.run("xattr-build", &mut command)?;
    Ok(target.join("debug/examples/xattr_calls"))
}

/// An ext4 file system in a loop device. Dropping the value unmounts it.
struct Ext4 {
    path: PathBuf,
}

impl Ext4 {
    fn mount(site: &Site) -> Result<Ext4, Outcome> {
        let (image, path) = (site.folder.join("ext4.img"), site.folder.join("ext4"));
        File::create(&image)
            .and_then(|file| file.set_len(EXT4_BYTES))
            .and_then(|()| fs::create_dir_all(&path))
            .map_err(|error| Outcome::Failed(format!("{}: {error}", image.display())))?;
        let mut command = Command::new("mkfs.ext4");
        command.args(["-q", "-F", "-O", "ea_inode"]).arg(&image);
        site.run("mkfs", &mut command)?;
        let mut command = Command::new("mount");
        command.args(["-t", "ext4", "-o", "loop,acl,user_xattr"]).arg(&image).arg(&path);
        match process::run(&mut command, minutes(1)) {
            process::Ended::Well => Ok(Ext4 { path }),
            _ => Err(Outcome::Skipped("an ext4 in a loop device cannot be mounted".to_owned())),
        }
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        unmount(&self.path);
    }
}

fn unmount(path: &Path) {
    let _ = Command::new("umount").arg("-l").arg(path).stderr(Stdio::null()).status();
}

#[cfg(test)]
mod tests {
    use super::*;

    fn transcript(last: &str) -> String {
        "set: done\n".repeat(LINES_MIN) + last
    }

    #[test]
    fn transcripts_that_differ_or_are_short_fail() {
        let good = transcript("get: ENODATA\n");
        assert_eq!(compare(&good, &good), Ok(()));
        assert!(compare(&good, &transcript("get: EPERM\n")).is_err());
        assert!(compare(&good, &transcript("")).is_err());
        assert!(compare(&transcript(""), &good).is_err());
        assert!(compare("", "").is_err(), "empty transcripts");
    }
}
