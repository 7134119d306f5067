//! Reads the Rust files that tidy checks, and splits each line into code and comment.
//!
//! A rule about code must ignore comments and strings, and a rule about comments must ignore code.
//! So tidy has a scanner that knows Rust's comments, strings, raw strings and character literals,
//! and no parser. It drops the content of strings, so that bad code in a test of tidy is not a
//! finding.
//!
//! # Limits
//!
//! The scanner does not expand macros and does not follow `include!`.
//!
//! Source: The Rust Reference, "Lexical structure".

use std::{
    fs, io,
    path::{Path, PathBuf},
};

const SKIPPED_FOLDERS: [&str; 4] = ["target", ".git", "shared", "node_modules"];

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Line {
    /// The code, without the content of strings.
    pub(crate) code: String,
    /// The text of the comments, without `//` or `/*`. In a doc comment it starts with `/` or `!`.
    pub(crate) comment: String,
}

impl Line {
    /// Returns the text of the line if it is a line of a doc comment, else None.
    pub(crate) fn doc(&self) -> Option<&str> {
        let text = self.comment.strip_prefix(['/', '!'])?;
        self.code.trim().is_empty().then_some(text)
    }
}

#[derive(Debug)]
pub(crate) struct RustFile {
    pub(crate) path: String,
    pub(crate) lines: Vec<Line>,
}

impl RustFile {
    pub(crate) fn parse(path: &str, text: &str) -> Self {
        Self { path: path.to_owned(), lines: Scanner::new(text).scan() }
    }

    /// Returns the code of the whole file. Each line ends with a line break.
    pub(crate) fn code(&self) -> String {
        self.lines.iter().flat_map(|line| [line.code.as_str(), "\n"]).collect()
    }
}

pub(crate) fn collect_files(root: &Path, extensions: &[&str]) -> io::Result<Vec<PathBuf>> {
    let mut found = Vec::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in fs::read_dir(&folder)? {
            let entry = entry?;
            let (path, kind) = (entry.path(), entry.file_type()?);
            let name = entry.file_name();
            if kind.is_dir() {
                if !SKIPPED_FOLDERS.iter().any(|skipped| name == *skipped) {
                    folders.push(path);
                }
            } else if kind.is_file() {
                let extension = path.extension().unwrap_or_default();
                if extensions.iter().any(|wanted| extension == *wanted) {
                    found.push(path);
                }
            }
        }
    }
    found.sort();
    Ok(found)
}

pub(crate) fn relative(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).to_string_lossy().replace('\\', "/")
}

pub(crate) fn collect_rust(root: &Path) -> io::Result<Vec<RustFile>> {
    collect_files(root, &["rs"])?
        .iter()
        .map(|path| Ok(RustFile::parse(&relative(root, path), &fs::read_to_string(path)?)))
        .collect()
}

pub(crate) fn has_word(text: &str, word: &str) -> bool {
    let is_inner = |letter: char| letter.is_alphanumeric() || letter == '_';
    text.match_indices(word).any(|(at, _)| {
        let before = text[..at].chars().next_back();
        let after = text[at + word.len()..].chars().next();
        !before.is_some_and(is_inner) && !after.is_some_and(is_inner)
    })
}

struct Scanner {
    letters: Vec<char>,
    at: usize,
    lines: Vec<Line>,
}

impl Scanner {
    fn new(text: &str) -> Self {
        Self { letters: text.chars().collect(), at: 0, lines: vec![Line::default()] }
    }

    fn scan(mut self) -> Vec<Line> {
        while let Some(letter) = self.peek(0) {
            match (letter, self.peek(1)) {
                ('/', Some('/')) => self.line_comment(),
                ('/', Some('*')) => self.block_comment(),
                ('"', _) => self.string(),
                ('r' | 'b' | 'c', _) if !self.is_inside_word() && self.raw_hashes().is_some() => {
                    self.raw_string();
                }
                ('\'', _) => self.quote(),
                _ => self.take_code(),
            }
        }
        self.lines
    }

    fn peek(&self, ahead: usize) -> Option<char> {
        self.letters.get(self.at + ahead).copied()
    }

    fn line(&mut self) -> &mut Line {
        self.lines.last_mut().expect("there is a first line")
    }

    fn take_code(&mut self) {
        let Some(letter) = self.peek(0) else { return };
        self.at += 1;
        if letter == '\n' {
            self.lines.push(Line::default());
        } else {
            self.line().code.push(letter);
        }
    }

    fn skip(&mut self) {
        if self.peek(0) == Some('\n') {
            self.lines.push(Line::default());
        }
        self.at += 1;
    }

    fn line_comment(&mut self) {
        self.at += 2;
        while let Some(letter) = self.peek(0).filter(|letter| *letter != '\n') {
            self.line().comment.push(letter);
            self.at += 1;
        }
    }

    fn block_comment(&mut self) {
        let mut depth = 0;
        while let Some(letter) = self.peek(0) {
            match (letter, self.peek(1)) {
                ('/', Some('*')) => {
                    depth += 1;
                    self.at += 2;
                }
                ('*', Some('/')) => {
                    depth -= 1;
                    self.at += 2;
                    if depth == 0 {
                        return;
                    }
                }
                ('\n', _) => self.skip(),
                _ => {
                    self.line().comment.push(letter);
                    self.at += 1;
                }
            }
        }
    }

    fn string(&mut self) {
        self.take_code();
        while let Some(letter) = self.peek(0) {
            match letter {
                '"' => return self.take_code(),
                '\\' => {
                    self.skip();
                    self.skip();
                }
                _ => self.skip(),
            }
        }
    }

    fn is_inside_word(&self) -> bool {
        let before = self.at.checked_sub(1).and_then(|at| self.letters.get(at));
        before.is_some_and(|letter| letter.is_alphanumeric() || *letter == '_')
    }

    /// If a raw string starts here, returns the number of `#` before its opening quote.
    fn raw_hashes(&self) -> Option<usize> {
        let prefix = match (self.peek(0)?, self.peek(1)?) {
            ('r', _) => 1,
            ('b' | 'c', 'r') => 2,
            _ => return None,
        };
        let hashes = (prefix..).take_while(|ahead| self.peek(*ahead) == Some('#')).count();
        (self.peek(prefix + hashes) == Some('"')).then_some(hashes)
    }

    fn raw_string(&mut self) {
        let hashes = self.raw_hashes().unwrap_or_default();
        while self.peek(0).is_some_and(|letter| letter != '"') {
            self.take_code();
        }
        self.take_code();
        while self.peek(0).is_some() {
            let is_end = self.peek(0) == Some('"')
                && (1..=hashes).all(|ahead| self.peek(ahead) == Some('#'));
            if is_end {
                (0..=hashes).for_each(|_| self.take_code());
                return;
            }
            self.skip();
        }
    }

    fn quote(&mut self) {
        let is_escaped = self.peek(1) == Some('\\');
        let is_literal = is_escaped || self.peek(2) == Some('\'');
        self.take_code();
        if !is_literal {
            return;
        }
        if is_escaped {
            self.skip();
        }
        self.skip();
        while self.peek(0).is_some_and(|letter| letter != '\'') {
            self.skip();
        }
        self.take_code();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn split(text: &str) -> Vec<(String, String)> {
        let file = RustFile::parse("a.rs", text);
        file.lines.into_iter().map(|line| (line.code, line.comment)).collect()
    }

    #[test]
    fn comment_after_code_is_split_off() {
        assert_eq!(split("let a = 1; // one"), [("let a = 1; ".into(), " one".into())]);
    }

    #[test]
    fn content_of_strings_is_dropped() {
        assert_eq!(split(r#"f("a // b \" c"); // d"#)[0].0, r#"f(""); "#);
        assert_eq!(split("f(r#\"x \" // y\"#); g")[0].0, "f(r#\"\"#); g");
        assert_eq!(split(r#"f(b"todo!", c"x")"#)[0].0, r#"f(b"", c"")"#);
    }

    #[test]
    fn characters_and_lifetimes_are_distinguished() {
        assert_eq!(split("f('\"', 'a', '\\'', '\\n'); &'a str // c")[0].1, " c");
        assert_eq!(split("fn f<'a>(a: &'a str) {} // c")[0].1, " c");
    }

    #[test]
    fn block_comments_nest_and_keep_line_numbers() {
        let lines = split("a /* b /* c */\n d */ e\nf");
        assert_eq!(lines[0], ("a ".into(), " b  c ".into()));
        assert_eq!(lines[1], (" e".into(), " d ".into()));
        assert_eq!(lines[2].0, "f");
    }

    #[test]
    fn string_over_two_lines_keeps_line_numbers() {
        assert_eq!(split("a(\"x\ny\");\nb")[2].0, "b");
    }

    #[test]
    fn doc_comment_is_distinguished_from_a_plain_one() {
        let file = RustFile::parse("a.rs", "/// doc\n// plain\n//! inner\nlet a; /// odd");
        let docs: Vec<Option<&str>> = file.lines.iter().map(Line::doc).collect();
        assert_eq!(docs, [Some(" doc"), None, Some(" inner"), None]);
    }

    #[test]
    fn word_is_found_whole_only() {
        assert!(has_word("a unsafe b", "unsafe"));
        assert!(!has_word("unsafe_code", "unsafe"));
        assert!(has_word("unsafe_code unsafe", "unsafe"));
    }
}
