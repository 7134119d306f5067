//! Checks for a release: the oldest compiler, the licences, the interfaces and the packages.
//!
//! The checks install the tools that they need. So they run in `cargo xtask nightly` and not in
//! `.ci/run`.
//!
//! Source: the cargo book, "Publishing on crates.io"; the documentation of cargo-deny and of
//! cargo-semver-checks. `docs/developing/release.md` has the steps of a release.

use crate::{
    Outcome,
    ci::{self, STEP_LIMIT},
    process,
};
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const UNPUBLISHED: [&str; 3] = ["corewalk-lab", "corewalk-testkit", "xtask"];

/// Checks the workspace with the oldest compiler that the manifest promises to support.
pub(crate) fn oldest_compiler(root: &Path) -> Outcome {
    let manifest = match fs::read_to_string(root.join("Cargo.toml")) {
        Ok(manifest) => manifest,
        Err(error) => return Outcome::Failed(format!("Cargo.toml: {error}")),
    };
    let Some(version) = rust_version(&manifest) else {
        return Outcome::Failed("Cargo.toml has no rust-version".to_owned());
    };
    let mut install = Command::new("rustup");
    install.args(["toolchain", "install", version, "--profile", "minimal"]);
    let installed = process::run(&mut install, STEP_LIMIT).outcome("rustup");
    if installed != Outcome::Passed {
        return installed;
    }
    let mut check = Command::new("cargo");
    check.current_dir(root).arg(format!("+{version}"));
    check.args(["check", "--workspace", "--all-targets", "--target-dir", "target/oldest"]);
    process::run(&mut check, STEP_LIMIT).outcome("cargo check")
}

pub(crate) fn licences(root: &Path) -> Outcome {
    let mut deny = match installed(root, "cargo-deny") {
        Ok(program) => Command::new(program),
        Err(outcome) => return outcome,
    };
    deny.current_dir(root).args(["check", "licenses", "bans", "sources"]);
    process::run(&mut deny, STEP_LIMIT).outcome("cargo deny")
}

/// Compares the public interfaces with those of the last release. Fails after an incompatible
/// change, unless the manifest has a new major version.
pub(crate) fn interfaces(root: &Path) -> Outcome {
    let Some(tag) = last_release(root) else {
        return Outcome::Skipped("there is no release to compare with".to_owned());
    };
    let mut compare = match installed(root, "cargo-semver-checks") {
        Ok(program) => Command::new(program),
        Err(outcome) => return outcome,
    };
    compare.current_dir(root).args(["semver-checks", "--workspace", "--baseline-rev", &tag]);
    compare.args(UNPUBLISHED.iter().flat_map(|name| ["--exclude", name]));
    process::run(&mut compare, STEP_LIMIT).outcome("cargo semver-checks")
}

/// Makes the packages without publishing them. Fails if a file is missing in a package.
pub(crate) fn packages(root: &Path) -> Outcome {
    let mut words = vec!["publish", "--dry-run", "--workspace"];
    UNPUBLISHED.iter().for_each(|name| words.extend(["--exclude", name]));
    ci::cargo(root, &words)
}

fn installed(root: &Path, name: &str) -> Result<PathBuf, Outcome> {
    let tools = root.join("target/tools");
    let mut install = Command::new("cargo");
    install.args(["install", name, "--locked", "--root"]).arg(&tools);
    match process::run(&mut install, STEP_LIMIT).outcome("cargo install") {
        Outcome::Passed => Ok(tools.join("bin").join(name)),
        outcome => Err(outcome),
    }
}

fn last_release(root: &Path) -> Option<String> {
    let mut describe = Command::new("git");
    describe.current_dir(root).args(["describe", "--tags", "--abbrev=0", "--match", "v[0-9]*"]);
    let output = describe.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8(output.stdout).ok()?.trim().to_owned())
}

fn rust_version(manifest: &str) -> Option<&str> {
    let line = manifest.lines().find_map(|line| line.strip_prefix("rust-version"))?;
    Some(line.trim_start_matches([' ', '=']).trim().trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn oldest_compiler_is_found_in_a_manifest() {
        let manifest = "[workspace.package]\nedition = \"2024\"\nrust-version = \"1.90\"\n";
        assert_eq!(rust_version(manifest), Some("1.90"));
        assert_eq!(rust_version("edition = \"2024\"\n"), None);
    }

    #[test]
    fn last_release_is_the_newest_tag_with_a_version() {
        let root = std::env::temp_dir().join(format!("xtask-release-{}", std::process::id()));
        fs::create_dir(&root).expect("the folder is made");
        let git = |words: &[&str]| {
            let user = ["-c", "user.name=x", "-c", "user.email=x@example.org"];
            let mut command = Command::new("git");
            let output = command.current_dir(&root).args(user).args(words).output();
            assert!(output.expect("git runs").status.success(), "git {words:?}");
        };
        let commit = || git(&["commit", "--quiet", "--allow-empty", "--message", "x"]);
        git(&["init", "--quiet"]);
        commit();
        git(&["tag", "start"]);
        assert_eq!(last_release(&root), None);
        git(&["tag", "v0.1.0"]);
        commit();
        git(&["tag", "v0.2.0"]);
        commit();
        git(&["tag", "valid"]);
        assert_eq!(last_release(&root).as_deref(), Some("v0.2.0"));
        fs::remove_dir_all(&root).expect("the folder is removed");
    }
}
