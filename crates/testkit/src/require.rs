//! What a test needs of the machine, and how it skips without it.
//!
//! A test that returns early counts as passed, so a machine without `/dev/fuse` would be green and
//! prove little. Each test that cannot run calls [`skip`], which prints the reason. Where the
//! environment variable `COREWALK_REQUIRE` demands the need, [`skip`] panics instead, so the test
//! fails.
//!
//! `COREWALK_REQUIRE` is a list of needs separated by commas, for instance `root,fuse`. The word
//! `all` stands for every need that a person can provide: all but [`Need::Machine`]. `.ci/run`
//! sets `all`.
//!
//! Source: `docs/testing.md`.

use std::{env, fmt::Display, fs::OpenOptions};

/// The environment variable that lists the needs of which none may be missing.
const REQUIRE: &str = "COREWALK_REQUIRE";

/// A kind of thing that a machine may lack.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The user is root, with all capabilities.
    Root,
    /// `/dev/fuse` can be opened, and a user other than root has `fusermount3`.
    Fuse,
    /// A program or library of a package is installed.
    Package,
    /// The kernel permits what root may do elsewhere: new namespaces, ptrace(2).
    Kernel,
    /// Properties that no installation changes: processors, huge pages, the file system of the
    /// disk, the version of the kernel.
    Machine,
}

impl Need {
    /// Returns the word for it in `COREWALK_REQUIRE`.
    const fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Fuse => "fuse",
            Self::Package => "package",
            Self::Kernel => "kernel",
            Self::Machine => "machine",
        }
    }

    /// Returns true if `list` demands it.
    fn is_demanded_by(self, list: &str) -> bool {
        list.split(',').map(str::trim).any(|word| match word {
            "all" => self != Self::Machine,
            word => word == self.word(),
        })
    }
}

/// Says that the calling test skips because `need` is missing; `reason` tells what exactly.
///
/// # Panics
///
/// If `COREWALK_REQUIRE` demands `need`.
#[track_caller]
pub fn skip(need: Need, reason: impl Display) {
    let list = env::var(REQUIRE).unwrap_or_default();
    assert!(
        !need.is_demanded_by(&list),
        "{reason}: {REQUIRE}={list} does not allow to skip for want of {}",
        need.word()
    );
    println!("skipped: {reason}");
}

/// Returns true if this process is root; skips if not.
#[track_caller]
pub fn has_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(Need::Root, "not root");
    }
    is_root
}

/// Returns true if this process can mount with FUSE; skips if not.
#[track_caller]
pub fn has_fuse() -> bool {
    // Opening the device starts nothing: a connection begins with the mount.
    if OpenOptions::new().read(true).write(true).open("/dev/fuse").is_err() {
        skip(Need::Fuse, "/dev/fuse cannot be opened");
        return false;
    }
    let has_helper = rustix::process::geteuid().is_root() || is_installed("fusermount3");
    if !has_helper {
        skip(Need::Fuse, "no fusermount3");
    }
    has_helper
}

/// Returns true if `program` is found in the path; skips if not.
#[track_caller]
pub fn has_program(program: &str) -> bool {
    let is_there = is_installed(program);
    if !is_there {
        skip(Need::Package, format_args!("{program} is not installed"));
    }
    is_there
}

fn is_installed(program: &str) -> bool {
    let path = env::var_os("PATH").unwrap_or_default();
    env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

#[cfg(test)]
mod tests {
    use super::*;
    #[cfg(not(miri))]
    use crate::reexec::{self, Reexec};

    const ALL: [Need; 5] = [Need::Root, Need::Fuse, Need::Package, Need::Kernel, Need::Machine];

    #[test]
    fn list_demands_the_needs_that_it_names() {
        let demanded = |list: &str| ALL.map(|need| need.is_demanded_by(list));
        assert_eq!(demanded(""), [false; 5]);
        assert_eq!(demanded("all"), [true, true, true, true, false]);
        assert_eq!(demanded("root, machine"), [true, false, false, false, true]);
        assert_eq!(demanded("all,machine"), [true; 5]);
        assert_eq!(demanded("fused"), [false; 5]);
    }

    // Miri starts no processes.
    #[cfg(not(miri))]
    #[test]
    fn skip_panics_only_where_the_need_is_demanded() {
        const NAME: &str = "require::tests::skip_panics_only_where_the_need_is_demanded";
        if reexec::role().is_some() {
            skip(Need::Root, "a reason");
            return;
        }
        for (list, passes) in [("", true), ("kernel", true), ("all", false), ("root", false)] {
            let ended = Reexec::test(NAME).env(REQUIRE, list).run();
            assert_eq!(ended.status.success(), passes, "{list}: {ended}");
            assert_eq!(ended.stdout.contains("skipped: a reason"), passes, "{list}: {ended}");
        }
    }
}
