//! Requirements of tests, such as root or `/dev/fuse`, that some machines do not meet.
//!
//! A test that cannot run calls [`skip`], which prints the reason, and returns. libtest counts such
//! a test as passed. Requirements listed in the environment variable `COREWALK_REQUIRE` must be
//! met: if one is missing, [`skip`] panics, so that the test fails.
//!
//! `COREWALK_REQUIRE` is a list of words that are separated by commas, for example `root,fuse`. The
//! word `all` stands for all requirements except [`Need::Machine`], which no user can provide.
//!
//! Source: `docs/developing/testing.md`.

use std::{env, fmt::Display, fs::OpenOptions};

/// The environment variable with the requirements that must be met. A test without one of them
/// fails instead of being skipped.
const REQUIRE: &str = "COREWALK_REQUIRE";

/// A requirement on the machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Need {
    /// The user is root, with all capabilities.
    Root,
    /// Needs permission to mount with FUSE: `/dev/fuse` can be opened. Another user than root also
    /// needs the program `fusermount3`.
    Fuse,
    /// A program or library of a package is installed.
    Package,
    /// Needs a kernel that allows calls such as ptrace(2) or the creation of namespaces, which some
    /// containers forbid even to root.
    Kernel,
    /// Needs a property of the machine that no installation can provide. Examples are its
    /// processors, huge pages, the file system of its disk, and its kernel version.
    Machine,
}

impl Need {
    const fn word(self) -> &'static str {
        match self {
            Self::Root => "root",
            Self::Fuse => "fuse",
            Self::Package => "package",
            Self::Kernel => "kernel",
            Self::Machine => "machine",
        }
    }

    fn is_demanded_by(self, list: &str) -> bool {
        list.split(',').map(str::trim).any(|word| match word {
            "all" => self != Self::Machine,
            word => word == self.word(),
        })
    }
}

/// Prints that the calling test is skipped because of `need`. `reason` has the details.
///
/// # Panics
///
/// Panics if `COREWALK_REQUIRE` contains `need`.
#[track_caller]
pub fn skip(need: Need, reason: impl Display) {
    let list = env::var(REQUIRE).unwrap_or_default();
    assert!(
        !need.is_demanded_by(&list),
        "{reason}: the test must not be skipped, because {REQUIRE}={list} requires {}",
        need.word()
    );
    println!("skipped: {reason}");
}

/// Returns true if this process is root. Otherwise calls [`skip`].
#[track_caller]
pub fn has_root() -> bool {
    let is_root = rustix::process::geteuid().is_root();
    if !is_root {
        skip(Need::Root, "not root");
    }
    is_root
}

/// Returns true if this process can mount with FUSE. If it cannot, calls [`skip`] and returns
/// false.
#[track_caller]
pub fn has_fuse() -> bool {
    // Opening `/dev/fuse` has no side effect, since a FUSE connection begins only with a mount.
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

/// Returns true if `program` is found in `PATH`. Otherwise calls [`skip`].
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
    fn list_requires_the_needs_that_it_names() {
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
    fn skip_panics_only_if_the_need_is_required() {
        const NAME: &str = "require::tests::skip_panics_only_if_the_need_is_required";
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
