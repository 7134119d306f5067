//! Rules about atomics: which files may name them, and that each ordering has a reason.
//!
//! A model checker sees only the atomics of `corewalk_base::primitives`, so code with other atomics
//! would silently be missing in all models. An ordering without a stated reason cannot be reviewed.
//! A release and its acquire have the same tag in their ORDERING comments, so a tag that occurs
//! only once is a mistake.
//!
//! Source: `docs/developing/style.md` section 4; seize; Linux `ipc/sem.c` with its named barriers.

use super::Finding;
use crate::source::{RustFile, has_word};
use std::collections::BTreeMap;

/// Files that may name the standard library's atomics and threads, each with the reason.
const PRIMITIVES: [(&str, &str); 5] = [
    ("crates/base/src/primitives.rs", "it switches between the real types and those of models"),
    ("crates/base/src/primitives/crash.rs", "its atomics stop their thread"),
    ("crates/fuse/examples/watch.rs", "a program of a user has no internal crate"),
    ("crates/testkit/src/real.rs", "allocators and watchdogs run below and beside a model"),
    ("xtask/src/process.rs", "xtask uses the standard library only and has no models"),
];

/// Paths that may occur only in the files of [`PRIMITIVES`].
const SWITCHED: [&str; 4] =
    ["std::sync::atomic", "core::sync::atomic", "std::thread", "alloc::sync::atomic"];

/// Orderings that need a reason. (`std::cmp::Ordering` has other names.)
const ORDERINGS: [&str; 5] = ["Relaxed", "Acquire", "Release", "AcqRel", "SeqCst"];

/// Maximum number of lines from the start of an ORDERING comment to the code that names the
/// ordering.
const REASON_LINES: usize = 6;

pub(super) fn place(file: &RustFile) -> Vec<Finding> {
    if PRIMITIVES.iter().any(|(path, _)| *path == file.path) {
        return Vec::new();
    }
    let mut findings = Vec::new();
    let mut found = |line: usize, path: &str| {
        let instead = format!("`{path}`: name it through corewalk_base::primitives");
        findings.push(Finding::new(&file.path, line, "primitives", instead));
    };
    let code = file.code();
    let mut is_use = vec![false; file.lines.len()];
    for (line, statement) in use_statements(&code) {
        let last = line + statement.matches('\n').count();
        is_use[line - 1..last].fill(true);
        for path in expand(&statement) {
            if SWITCHED.iter().any(|name| is_below(&path, name)) {
                found(line, &path);
            }
        }
    }
    for (at, line) in file.lines.iter().enumerate().filter(|(at, _)| !is_use[*at]) {
        if let Some(name) = SWITCHED.iter().find(|name| has_word(&line.code, name)) {
            found(at + 1, name);
        }
    }
    findings
}

/// Returns a finding for each ordering that has no ORDERING comment above it.
pub(super) fn comments(file: &RustFile) -> Vec<Finding> {
    let has_reason = |at: usize| {
        file.lines[at.saturating_sub(REASON_LINES)..=at]
            .iter()
            .any(|line| line.comment.trim_start().starts_with("ORDERING"))
    };
    file.lines
        .iter()
        .enumerate()
        .filter(|(at, line)| names_ordering(&line.code) && !has_reason(*at))
        .map(|(at, _)| {
            let instead = "write `// ORDERING: ...` or `// ORDERING(tag): ...` above it";
            Finding::new(&file.path, at + 1, "ordering", instead)
        })
        .collect()
}

fn names_ordering(code: &str) -> bool {
    code.match_indices("Ordering::").any(|(at, name)| {
        let rest = &code[at + name.len()..];
        ORDERINGS.iter().any(|ordering| rest.starts_with(ordering))
    })
}

/// Returns a finding for each ORDERING tag that occurs only once in all files.
pub(super) fn lonely_tags(files: &[RustFile]) -> Vec<Finding> {
    let mut places: BTreeMap<&str, Vec<(&str, usize)>> = BTreeMap::new();
    for file in files {
        for (at, line) in file.lines.iter().enumerate() {
            let comment = line.comment.trim_start();
            let tag = comment.strip_prefix("ORDERING(").and_then(|rest| rest.split_once(')'));
            if let Some((tag, _)) = tag {
                places.entry(tag).or_default().push((&file.path, at + 1));
            }
        }
    }
    places
        .into_iter()
        .filter(|(_, places)| places.len() == 1)
        .map(|(tag, places)| {
            let instead = format!("tag `{tag}` occurs once; write it at the other end as well");
            Finding::new(places[0].0, places[0].1, "ordering tag", instead)
        })
        .collect()
}

fn use_statements(code: &str) -> Vec<(usize, String)> {
    let mut statements = Vec::new();
    let mut rest = code;
    let mut line = 1;
    while let Some(at) = rest.find("use ") {
        let before = &rest[..at];
        line += before.matches('\n').count();
        let is_start = before.chars().rev().find(|letter| *letter != ' ');
        let is_start = is_start.is_none_or(|letter| "\n;{})".contains(letter))
            || before.trim_end().ends_with("pub");
        let statement = rest[at..].split(';').next().unwrap_or_default();
        if is_start {
            statements.push((line, statement["use ".len()..].to_owned()));
        }
        let taken = if is_start { at + statement.len() } else { at + "use ".len() };
        line += rest[at..taken].matches('\n').count();
        rest = &rest[taken..];
    }
    statements
}

/// Returns the paths of a use tree, such as `std::{fs, sync::{Arc, atomic}}`.
fn expand(tree: &str) -> Vec<String> {
    let tree: String = tree.split_whitespace().collect::<Vec<_>>().join(" ");
    let Some((prefix, group)) = tree.split_once('{') else {
        let path = tree.split(" as ").next().unwrap_or_default();
        return vec![path.trim().to_owned()];
    };
    let group = group.trim_end().strip_suffix('}').unwrap_or(group);
    split_group(group)
        .into_iter()
        .flat_map(expand)
        .map(|path| match path.as_str() {
            "self" => prefix.trim().trim_end_matches("::").to_owned(),
            _ => format!("{}{path}", prefix.trim()),
        })
        .collect()
}

fn split_group(group: &str) -> Vec<&str> {
    let mut depth = 0_usize;
    let is_border = |letter: char| {
        match letter {
            '{' => depth += 1,
            '}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        letter == ',' && depth == 0
    };
    group.split(is_border).map(str::trim).filter(|part| !part.is_empty()).collect()
}

fn is_below(path: &str, name: &str) -> bool {
    path.strip_prefix(name).is_some_and(|rest| rest.is_empty() || rest.starts_with("::"))
}

#[cfg(test)]
mod tests {
    use super::{super::lines_found, *};

    #[test]
    fn atomics_and_threads_outside_of_the_switch_are_found() {
        for bad in [
            "use std::sync::atomic::AtomicU64;",
            "use core::sync::atomic;",
            "use std::{\n    fs,\n    sync::{Arc, atomic::{self, Ordering}},\n};",
            "use std::thread;",
            "pub use std::{fmt, thread::{self}};",
            "let id = std::thread::current();",
        ] {
            assert_eq!(lines_found(place, "crates/ipc/src/sem.rs", bad).first(), Some(&1), "{bad}");
        }
    }

    #[test]
    fn other_names_and_the_permitted_files_are_not_found() {
        for good in [
            "use std::{sync::{Arc, Mutex}, thread_local};",
            "use corewalk_base::primitives::{atomic::AtomicU64, thread};",
            "std::thread_local! {}",
            "// std::thread in a comment",
            "let text = \"std::sync::atomic\";",
            "fn reuse (a: u8) {}",
        ] {
            assert_eq!(lines_found(place, "crates/ipc/src/sem.rs", good), [], "{good}");
        }
        let switch = "pub use std::{sync::atomic, thread};";
        assert_eq!(lines_found(place, PRIMITIVES[0].0, switch), []);
        assert_eq!(lines_found(place, "crates/sync/src/lockref.rs", switch), [1, 1]);
    }

    #[test]
    fn line_of_a_finding_is_that_of_the_statement() {
        let text = "use std::fs;\n\nuse std::{\n    io,\n};\nuse std::thread;\n";
        assert_eq!(lines_found(place, "a.rs", text), [6]);
    }

    #[test]
    fn ordering_without_a_reason_is_found() {
        let bare = "a.load(Ordering::Acquire);";
        assert_eq!(lines_found(comments, "a.rs", bare), [1]);
        let far = format!("// ORDERING: Relaxed. Far.\n{}{bare}", "\n".repeat(REASON_LINES));
        assert_eq!(lines_found(comments, "a.rs", &far), [REASON_LINES + 2]);
        let prose = format!("// The ORDERING is plain.\n{bare}");
        assert_eq!(lines_found(comments, "a.rs", &prose), [2]);
    }

    #[test]
    fn ordering_with_a_reason_is_not_found() {
        let near = "// ORDERING(x): Acquire. See `put`.\na\n    .load(Ordering::Acquire);";
        assert_eq!(lines_found(comments, "a.rs", near), []);
        assert_eq!(lines_found(comments, "a.rs", "a.cmp(b) == Ordering::Less"), []);
        assert_eq!(lines_found(comments, "a.rs", "use std::cmp::Ordering;"), []);
    }

    #[test]
    fn tag_that_occurs_once_in_all_files_is_found() {
        let file = |path: &str, text: &str| RustFile::parse(path, text);
        let a = file("a.rs", "// ORDERING(pub): Release. x\n// ORDERING(lone): Acquire. y");
        let b = file("b.rs", "\n// ORDERING(pub): Acquire. See a.");
        let found = lonely_tags(&[a, b]);
        assert_eq!(found.len(), 1);
        assert_eq!((found[0].path.as_str(), found[0].line), ("a.rs", 2));
    }
}
