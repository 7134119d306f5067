//! Checks that matter for a release: the oldest compiler, the licences, the packages.
//!
//! They install what they need, so they run in `cargo xtask nightly` and not in `.ci/run`.
//!
//! Source: the cargo book, "Publishing on crates.io"; the documentation of cargo-deny.

use crate::{
    Outcome,
    ci::{self, STEP_LIMIT},
    process,
};
use std::{fs, path::Path, process::Command};

/// The packages that are not published.
const UNPUBLISHED: [&str; 3] = ["corewalk-lab", "corewalk-testkit", "xtask"];

/// Compiles everything with the oldest compiler that the manifest promises.
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

/// Checks licences and sources of all dependencies by `deny.toml`.
pub(crate) fn licences(root: &Path) -> Outcome {
    let tools = root.join("target/tools");
    let mut install = Command::new("cargo");
    install.args(["install", "cargo-deny", "--locked", "--root"]).arg(&tools);
    let installed = process::run(&mut install, STEP_LIMIT).outcome("cargo install");
    if installed != Outcome::Passed {
        return installed;
    }
    let mut deny = Command::new(tools.join("bin/cargo-deny"));
    deny.current_dir(root).args(["check", "licenses", "bans", "sources"]);
    process::run(&mut deny, STEP_LIMIT).outcome("cargo deny")
}

/// Builds the packages of all published crates, each from its package alone.
pub(crate) fn packages(root: &Path) -> Outcome {
    let mut words = vec!["publish", "--dry-run", "--workspace"];
    UNPUBLISHED.iter().for_each(|name| words.extend(["--exclude", name]));
    ci::cargo(root, &words)
}

/// Returns the value of `rust-version` in a manifest.
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
}
