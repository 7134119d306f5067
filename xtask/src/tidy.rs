//! Checks the rules of the house style that a program can check.
//!
//! A finding is one line, `file:line: rule: what to do instead`, which editors understand. Other
//! rules are those of the compiler and of clippy, for example `clippy::too_many_lines` and
//! `clippy::undocumented_unsafe_blocks`.
//!
//! | module | rules |
//! |---|---|
//! | `text` | length of files, ASCII, marks of unfinished work, names of files |
//! | `atomics` | which files may name atomics and threads; ORDERING comments and their tags |
//! | `names` | banned type names, names of tests |
//! | `prose` | plain words, length of sentences, of lines of comments, and of essays |
//! | `layers` | dependencies between crates and between modules, crates that may have unsafe code |
//!
//! A rule is a function that takes a file, or all files, and returns findings. The tests of each
//! rule have a bad sample with a finding, and a good sample without one.
//!
//! Source: `docs/developing/style.md`; TigerBeetle's `tidy.zig`.

mod atomics;
mod layers;
mod names;
mod prose;
mod text;

#[cfg(test)]
use crate::source::RustFile;
use crate::{Outcome, source};
use std::{fmt, fs, io, path::Path};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Finding {
    path: String,
    line: usize,
    rule: &'static str,
    instead: String,
}

impl Finding {
    fn new(path: &str, line: usize, rule: &'static str, instead: impl Into<String>) -> Self {
        Self { path: path.to_owned(), line, rule, instead: instead.into() }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}: {}: {}", self.path, self.line, self.rule, self.instead)
    }
}

pub(crate) struct Manifest {
    path: String,
    text: String,
}

pub(crate) fn run(root: &Path) -> Outcome {
    match collect_findings(root) {
        Ok(findings) if findings.is_empty() => {
            println!("tidy: nothing found");
            Outcome::Passed
        }
        Ok(findings) => {
            findings.iter().for_each(|finding| println!("{finding}"));
            Outcome::Failed(format!("tidy: {} findings", findings.len()))
        }
        Err(error) => Outcome::Failed(format!("tidy: cannot read the repository: {error}")),
    }
}

fn collect_findings(root: &Path) -> io::Result<Vec<Finding>> {
    let mut findings = Vec::new();
    for path in source::collect_files(root, &["rs", "md", "toml", "sh", "yml"])? {
        findings.extend(text::ascii(&source::relative(root, &path), &fs::read(&path)?));
    }
    let files = source::collect_rust(root)?;
    for file in &files {
        findings.extend(text::length(file));
        findings.extend(text::words(file));
        findings.extend(text::file_name(file));
        findings.extend(atomics::place(file));
        findings.extend(atomics::comments(file));
        findings.extend(names::types(file));
        findings.extend(names::tests(file));
        findings.extend(layers::ipc_modules(file));
        findings.extend(layers::core_modules(file));
        findings.extend(prose::comments(file));
    }
    for path in source::collect_files(root, &["md"])? {
        let relative = source::relative(root, &path);
        findings.extend(prose::page(&relative, &fs::read_to_string(&path)?));
    }
    findings.extend(atomics::lonely_tags(&files));
    findings.extend(layers::unsafe_crates(&files));
    for path in source::collect_files(root, &["toml"])? {
        if path.file_name().is_some_and(|name| name == "Cargo.toml") {
            let text = fs::read_to_string(&path)?;
            findings.extend(layers::dependencies(&Manifest {
                path: source::relative(root, &path),
                text,
            }));
        }
    }
    findings.sort_by(|a, b| (&a.path, a.line).cmp(&(&b.path, b.line)));
    Ok(findings)
}

#[cfg(test)]
fn lines_found(rule: impl Fn(&RustFile) -> Vec<Finding>, path: &str, text: &str) -> Vec<usize> {
    rule(&RustFile::parse(path, text)).into_iter().map(|finding| finding.line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finding_is_printed_as_one_line() {
        let finding = Finding::new("a/b.rs", 7, "ascii", "write it in ASCII");
        assert_eq!(finding.to_string(), "a/b.rs:7: ascii: write it in ASCII");
    }
}
