//! Rules about the text of a file: its length, ASCII, marks of unfinished work, and its name.
//!
//! The rules look for macros such as `dbg!` only in code, and for other marks of unfinished work
//! only in comments.

use super::Finding;
use crate::source::{RustFile, has_word};

const LINES_MAX: usize = 800;

const CODE_WORDS: [(&str, &str); 5] = [
    ("dbg!", "remove it"),
    ("todo!", "write the code"),
    ("unimplemented!", "write the code or return an error that the caller can handle"),
    ("#[ignore", "make the test run everywhere or print `skipped: why`"),
    ("#![ignore", "make the test run everywhere or print `skipped: why`"),
];

const COMMENT_WORDS: [(&str, &str); 3] = [
    ("FIXME", "fix it before the change is merged"),
    ("TODO", "do it, or open an issue and describe the limit in the text of the module"),
    ("XXX", "describe the problem in a sentence"),
];

const BANNED_FILES: [&str; 6] =
    ["util.rs", "utils.rs", "helper.rs", "helpers.rs", "common.rs", "misc.rs"];

pub(super) fn length(file: &RustFile) -> Vec<Finding> {
    let count = file.lines.len().saturating_sub(1);
    if count <= LINES_MAX {
        return Vec::new();
    }
    let instead = format!("{count} lines; split it by idea, at most {LINES_MAX}");
    vec![Finding::new(&file.path, LINES_MAX + 1, "length", instead)]
}

pub(super) fn ascii(path: &str, bytes: &[u8]) -> Vec<Finding> {
    let is_bad = |line: &[u8]| !line.is_ascii() || line.contains(&b'\r');
    bytes
        .split(|byte| *byte == b'\n')
        .enumerate()
        .filter(|(_, line)| is_bad(line))
        .map(|(at, _)| Finding::new(path, at + 1, "ascii", "write it in ASCII, lines end in LF"))
        .collect()
}

pub(super) fn words(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in file.lines.iter().enumerate() {
        let in_code = CODE_WORDS.iter().filter(|(word, _)| holds_macro(&line.code, word));
        let in_comment = COMMENT_WORDS.iter().filter(|(word, _)| has_word(&line.comment, word));
        for (word, instead) in in_code.chain(in_comment) {
            let instead = format!("`{word}` marks unfinished work; {instead}");
            findings.push(Finding::new(&file.path, at + 1, "unfinished", instead));
        }
    }
    findings
}

fn holds_macro(code: &str, word: &str) -> bool {
    code.match_indices(word).any(|(at, _)| {
        let before = code[..at].chars().next_back();
        !before.is_some_and(|letter| letter.is_alphanumeric() || letter == '_')
    })
}

pub(super) fn file_name(file: &RustFile) -> Vec<Finding> {
    let name = file.path.rsplit('/').next().unwrap_or_default();
    let instead = match name {
        "mod.rs" => "write walk.rs beside walk/, not walk/mod.rs",
        _ if BANNED_FILES.contains(&name) => "name the file after its contents",
        _ => return Vec::new(),
    };
    vec![Finding::new(&file.path, 1, "file name", instead)]
}

#[cfg(test)]
mod tests {
    use super::{super::lines_found, *};

    #[test]
    fn file_of_more_lines_than_the_cap_is_found() {
        assert_eq!(lines_found(length, "a.rs", &"\n".repeat(LINES_MAX)), []);
        assert_eq!(lines_found(length, "a.rs", &"\n".repeat(LINES_MAX + 1)), [LINES_MAX + 1]);
    }

    #[test]
    fn letter_outside_ascii_is_found() {
        assert_eq!(ascii("a.md", b"plain\ntext"), []);
        let found = ascii("a.md", "plain\nna\u{ef}ve".as_bytes());
        assert_eq!(found.iter().map(|finding| finding.line).collect::<Vec<_>>(), [2]);
        assert_eq!(ascii("a.md", b"dos\r\n").len(), 1);
    }

    #[test]
    fn marks_of_unfinished_work_are_found_in_code_and_comments() {
        let bad =
            "fn f() { todo!() }\ndbg!(1);\nunimplemented!();\n#[ignore]\n// FIXME: x\n/// TODO";
        assert_eq!(lines_found(words, "a.rs", bad), [1, 2, 3, 4, 5, 6]);
        let good = "let a = \"todo! FIXME\"; // a todo! in prose\nmy_dbg!(1);\n// TODOS\nxtodo!()";
        assert_eq!(lines_found(words, "a.rs", good), []);
    }

    #[test]
    fn files_with_banned_names_are_found() {
        for bad in ["walk/mod.rs", "src/utils.rs", "tests/common.rs"] {
            assert_eq!(lines_found(file_name, bad, ""), [1], "{bad}");
        }
        for good in ["walk.rs", "model.rs", "src/my_mod.rs"] {
            assert_eq!(lines_found(file_name, good, ""), [], "{good}");
        }
    }
}
