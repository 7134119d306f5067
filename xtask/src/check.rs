//! A quick check of the changed crates: format, house style (`tidy`), tests against known bugs
//! (`traps`), clippy and unit tests.
//!
//! A changed file is one that differs from the merge base with the main branch. It belongs to the
//! crate whose directory contains it. `check` runs clippy for the changed crates and all crates
//! that depend on them. It runs the unit tests of the changed crates, and the changed test files in
//! `tests/`.
//!
//! The check is meant to run between two edits. It has no models (tests under a model checker), no
//! mounts, and no tests of dependent crates.
//!
//! Source: `CONTRIBUTING.md`.

use crate::{
    Outcome,
    ci::{self, Tally},
    tidy, traps,
};
use std::{
    collections::BTreeSet,
    fs, io,
    path::{Path, PathBuf},
    process::Command,
};

/// Names of the main branch. The first one that exists is used.
const MAIN: [&str; 2] = ["origin/main", "main"];

/// Files whose change affects all crates.
const FOR_ALL: [&str; 3] = ["Cargo.toml", "Cargo.lock", "clippy.toml"];

pub(crate) fn run(root: &Path) -> Outcome {
    let packages = match collect_packages(root) {
        Ok(packages) => packages,
        Err(error) => return Outcome::Failed(format!("cannot read the repository: {error}")),
    };
    let Some(files) = changed_files(root) else {
        return Outcome::Failed("git cannot list the changed files".to_owned());
    };
    let plan = Plan::new(&packages, &files);
    let mut tally = Tally::new();
    tally.step("format", || ci::format(root));
    tally.step("tidy", || tidy::run(root));
    tally.step("traps", || traps::run(root, traps::Strictness::Demand));
    if !plan.linted.is_empty() {
        tally.step("clippy", || clippy(root, &plan));
    }
    for (package, targets) in &plan.tested {
        tally.step(&format!("tests {package}"), || {
            let mut words = vec!["test", "-p", package];
            words.extend(targets.iter().map(String::as_str));
            ci::cargo(root, &words)
        });
    }
    tally.finish()
}

fn clippy(root: &Path, plan: &Plan) -> Outcome {
    let mut words = vec!["clippy", "--all-targets"];
    plan.linted.iter().for_each(|package| words.extend(["-p", package]));
    words.extend(["--", "-D", "warnings"]);
    ci::cargo(root, &words)
}

#[derive(Clone, Debug)]
struct Package {
    name: String,
    /// The directory of the crate, relative to the root of the repository, with a slash at the end.
    folder: String,
    dependencies: Vec<String>,
    has_library: bool,
    has_program: bool,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Plan {
    linted: BTreeSet<String>,
    tested: Vec<(String, Vec<String>)>,
}

impl Plan {
    fn new(packages: &[Package], files: &[String]) -> Self {
        let mut plan = Self::default();
        if files.iter().any(|file| FOR_ALL.contains(&file.as_str())) {
            plan.linted = packages.iter().map(|package| package.name.clone()).collect();
        }
        for package in packages {
            let inside = |file: &String| file.strip_prefix(&package.folder).map(str::to_owned);
            let inside: Vec<String> = files.iter().filter_map(inside).collect();
            if inside.is_empty() {
                continue;
            }
            plan.linted.extend(with_dependents(packages, &package.name));
            let targets = package.targets(&inside);
            if !targets.is_empty() {
                plan.tested.push((package.name.clone(), targets));
            }
        }
        plan
    }
}

impl Package {
    fn targets(&self, files: &[String]) -> Vec<String> {
        let mut targets = Vec::new();
        targets.extend(self.has_library.then(|| "--lib".to_owned()));
        targets.extend(self.has_program.then(|| "--bins".to_owned()));
        let test = |file: &String| {
            let name = file.strip_prefix("tests/")?.split('/').next()?;
            let is_target = name.ends_with(".rs") || file.matches('/').count() > 1;
            is_target.then(|| name.trim_end_matches(".rs").to_owned())
        };
        for test in files.iter().filter_map(test).collect::<BTreeSet<_>>() {
            targets.extend(["--test".to_owned(), test]);
        }
        targets
    }
}

fn with_dependents(packages: &[Package], name: &str) -> BTreeSet<String> {
    let mut found = BTreeSet::from([name.to_owned()]);
    loop {
        let names_one = |package: &&Package| {
            package.dependencies.iter().any(|dependency| found.contains(dependency))
        };
        let more: Vec<_> = packages.iter().filter(names_one).map(|it| it.name.clone()).collect();
        let before = found.len();
        found.extend(more);
        if found.len() == before {
            return found;
        }
    }
}

fn collect_packages(root: &Path) -> io::Result<Vec<Package>> {
    let mut folders: Vec<PathBuf> =
        fs::read_dir(root.join("crates"))?.flatten().map(|entry| entry.path()).collect();
    folders.push(root.join("xtask"));
    folders.sort();
    let mut packages = Vec::new();
    for folder in folders {
        let Ok(manifest) = fs::read_to_string(folder.join("Cargo.toml")) else { continue };
        let relative = folder.strip_prefix(root).unwrap_or(&folder).display();
        let Some(name) = package_name(&manifest) else { continue };
        packages.push(Package {
            name,
            folder: format!("{relative}/"),
            dependencies: manifest.lines().filter_map(first_word).collect(),
            has_library: folder.join("src/lib.rs").exists(),
            has_program: folder.join("src/main.rs").exists(),
        });
    }
    Ok(packages)
}

fn package_name(manifest: &str) -> Option<String> {
    let (_, package) = manifest.split_once("[package]")?;
    package.split('"').nth(1).map(str::to_owned)
}

/// Returns the first word of a line of a manifest. In a line such as `corewalk.workspace = true` it
/// is the name of a dependency.
fn first_word(line: &str) -> Option<String> {
    line.trim().split(['.', '=', ' ']).next().map(str::to_owned)
}

fn changed_files(root: &Path) -> Option<Vec<String>> {
    let base = MAIN.iter().find_map(|main| git(root, &["merge-base", "HEAD", main]));
    let base = base.map_or_else(|| "HEAD".to_owned(), |base| base.trim().to_owned());
    let tracked = git(root, &["diff", "--name-only", &base])?;
    let others = git(root, &["ls-files", "--others", "--exclude-standard"])?;
    Some(tracked.lines().chain(others.lines()).map(str::to_owned).collect())
}

fn git(root: &Path, words: &[&str]) -> Option<String> {
    let output = Command::new("git").current_dir(root).args(words).output().ok()?;
    output.status.success().then(|| String::from_utf8_lossy(&output.stdout).into_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn package(name: &str, folder: &str, dependencies: &[&str], has_library: bool) -> Package {
        Package {
            name: name.to_owned(),
            folder: folder.to_owned(),
            dependencies: dependencies.iter().map(ToString::to_string).collect(),
            has_library,
            has_program: !has_library,
        }
    }

    fn plan(files: &[&str]) -> Plan {
        let packages = [
            package("sync", "crates/sync/", &["name", "libc"], true),
            package("cache", "crates/cache/", &["sync"], true),
            package("program", "crates/program/", &["cache"], false),
            package("other", "crates/other/", &[], true),
        ];
        let files: Vec<_> = files.iter().map(ToString::to_string).collect();
        Plan::new(&packages, &files)
    }

    fn linted(files: &[&str]) -> Vec<String> {
        plan(files).linted.into_iter().collect()
    }

    #[test]
    fn clippy_checks_the_changed_crates_and_their_dependents() {
        assert_eq!(linted(&["crates/sync/src/lib.rs"]), ["cache", "program", "sync"]);
        assert_eq!(linted(&["crates/program/src/main.rs"]), ["program"]);
        assert_eq!(linted(&["Cargo.toml"]), ["cache", "other", "program", "sync"]);
        assert_eq!(linted(&["docs/developing/testing.md"]), [""; 0]);
    }

    #[test]
    fn unit_tests_of_changed_crates_run_with_their_changed_tests() {
        let words = |files: &[&str]| plan(files).tested;
        let of = |name: &str, targets: &[&str]| {
            (name.to_owned(), targets.iter().map(ToString::to_string).collect::<Vec<_>>())
        };
        assert_eq!(words(&["Cargo.lock", "README.md"]), []);
        assert_eq!(
            words(&["crates/cache/tests/a.rs", "crates/cache/tests/b/x.rs"]),
            [of("cache", &["--lib", "--test", "a", "--test", "b"])]
        );
        assert_eq!(
            words(&["crates/program/src/main.rs", "crates/sync/tests/tsan.supp"]),
            [of("sync", &["--lib"]), of("program", &["--bins"])]
        );
    }

    #[test]
    fn manifests_have_names_and_dependencies() {
        let root = crate::repository_root();
        let packages = collect_packages(&root).expect("the repository can be read");
        let above = with_dependents(&packages, "corewalk-sync");
        assert!(above.contains("corewalk-cli") && above.contains("corewalk"), "{above:?}");
        assert!(!above.contains("xtask"), "{above:?}");
    }
}
