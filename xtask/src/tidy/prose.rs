//! Rules about the sentences of comments and pages: plain words, short sentences, short lines.
//!
//! A sentence without a named subject has to be read twice ("who asks first is served", "What is
//! left goes back"). The rules recognize such sentences by a few words. Other rules limit the
//! lengths of sentences, lines and essays.
//!
//! | rule | finds |
//! |---|---|
//! | `who` | `who` and `whoever` as a subject: at the start of a clause, or after a preposition |
//! | `what` | a sentence that starts with `What` and is no question |
//! | `nobody` | `nobody`, `somebody` |
//! | `sentence` | a sentence of more than 25 words |
//! | `comment line` | a line of a comment, or of a page, with more than 100 letters |
//! | `essay` | more than 40 lines of `//!` in one file, examples apart |
//!
//! Text between backticks counts as one word, and its content is not checked. Tables, headings and
//! code are not checked either.
//!
//! Source: `docs/developing/style.md`. In redb, seize, papaya and crossbeam-epoch, 0.2 to 3 of 100
//! sentences have more than 35 words.

use super::Finding;
use crate::source::RustFile;

const SENTENCE_WORDS_MAX: usize = 25;
const LINE_LETTERS_MAX: usize = 100;
const ESSAY_LINES_MAX: usize = 40;

const BEFORE_A_BARE_WHO: [&str; 15] = [
    "and", "or", "but", "of", "by", "for", "to", "as", "that", "from", "with", "if", "than", "so",
    "which",
];

#[derive(Debug, Default)]
struct Paragraph<'t> {
    words: Vec<(&'t str, usize)>,
}

pub(super) fn comments(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut paragraphs = Paragraphs::default();
    let mut essay_lines = 0;
    for (at, line) in file.lines.iter().enumerate() {
        if !line.code.trim().is_empty() || line.comment.is_empty() {
            paragraphs.end_block();
        }
        let letters = line.code.chars().count() + line.comment.chars().count() + "//".len();
        if !line.comment.is_empty() && letters > LINE_LETTERS_MAX {
            findings.push(too_long(&file.path, at + 1, letters));
        }
        let text = line.doc().unwrap_or(&line.comment);
        paragraphs.take(text, at + 1);
        let is_essay = line.code.trim().is_empty() && line.comment.starts_with('!');
        essay_lines += usize::from(is_essay && !paragraphs.is_code);
        if is_essay && essay_lines == ESSAY_LINES_MAX + 1 {
            let instead = format!("at most {ESSAY_LINES_MAX} lines; the rest belongs in docs/");
            findings.push(Finding::new(&file.path, at + 1, "essay", instead));
        }
    }
    findings.extend(paragraphs.findings(&file.path));
    findings
}

pub(super) fn page(path: &str, text: &str) -> Vec<Finding> {
    let mut findings = Vec::new();
    let mut paragraphs = Paragraphs::default();
    for (at, line) in text.lines().enumerate() {
        paragraphs.take(line, at + 1);
        let letters = line.chars().count();
        let may_be_long = paragraphs.is_code || line.starts_with('|') || line.contains("](");
        if letters > LINE_LETTERS_MAX && !may_be_long {
            findings.push(too_long(path, at + 1, letters));
        }
    }
    findings.extend(paragraphs.findings(path));
    findings
}

fn too_long(path: &str, line: usize, letters: usize) -> Finding {
    let instead = format!("{letters} letters; break it at {LINE_LETTERS_MAX}");
    Finding::new(path, line, "comment line", instead)
}

#[derive(Debug, Default)]
struct Paragraphs<'t> {
    ended: Vec<Paragraph<'t>>,
    current: Paragraph<'t>,
    is_code: bool,
}

impl<'t> Paragraphs<'t> {
    fn end(&mut self) {
        if !self.current.words.is_empty() {
            self.ended.push(std::mem::take(&mut self.current));
        }
    }

    /// A code example without a closing fence ends with its block of comment lines.
    fn end_block(&mut self) {
        self.end();
        self.is_code = false;
    }

    fn take(&mut self, text: &'t str, line: usize) {
        let trimmed = text.trim();
        if trimmed.starts_with("```") {
            self.end();
            self.is_code = !self.is_code;
            return;
        }
        if self.is_code {
            return;
        }
        let is_indented_code = text.starts_with("     ") && self.current.words.is_empty();
        if trimmed.is_empty() || trimmed.starts_with(['#', '|']) || is_indented_code {
            return self.end();
        }
        if starts_an_item(trimmed) {
            self.end();
        }
        self.current.words.extend(split_words(trimmed).into_iter().map(|word| (word, line)));
    }

    fn findings(mut self, path: &str) -> Vec<Finding> {
        self.end();
        let mut findings = Vec::new();
        for paragraph in &self.ended {
            for sentence in paragraph.sentences() {
                judge(path, sentence, &mut findings);
            }
        }
        findings
    }
}

fn starts_an_item(text: &str) -> bool {
    let digits = text.bytes().take_while(u8::is_ascii_digit).count();
    text.starts_with("- ")
        || text.starts_with("* ")
        || digits > 0 && text[digits..].starts_with(". ")
}

fn split_words(text: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let (mut start, mut is_code) = (None, false);
    for (at, letter) in text.char_indices() {
        is_code ^= letter == '`';
        match (letter.is_whitespace() && !is_code, start) {
            (true, Some(from)) => {
                words.push(&text[from..at]);
                start = None;
            }
            (false, None) => start = Some(at),
            _ => {}
        }
    }
    words.extend(start.map(|from| &text[from..]));
    words
}

impl<'t> Paragraph<'t> {
    fn sentences(&self) -> impl Iterator<Item = &[(&'t str, usize)]> {
        self.words.split_inclusive(|(word, _)| ends_a_sentence(word)).filter(|it| !it.is_empty())
    }
}

fn ends_a_sentence(word: &str) -> bool {
    let word = word.trim_end_matches([')', '"', '*', ']']);
    let is_short = ["e.g.", "i.e.", "etc.", "cf.", "vs.", ".."].iter().any(|it| word.ends_with(it));
    word.ends_with(['.', '?', '!', ';']) && !is_short
}

fn judge(path: &str, sentence: &[(&str, usize)], findings: &mut Vec<Finding>) {
    let (first, line) = sentence[0];
    let (last, _) = sentence[sentence.len() - 1];
    let mut find =
        |line, rule, instead: &str| findings.push(Finding::new(path, line, rule, instead));
    if first == "What" && !last.contains('?') {
        find(line, "what", "begin with the noun that the sentence is about");
    }
    if sentence.len() > SENTENCE_WORDS_MAX {
        let instead = format!("{} words; make two sentences of it", sentence.len());
        find(line, "sentence", &instead);
    }
    for (at, (word, line)) in sentence.iter().enumerate() {
        let plain = word.trim_matches(|letter: char| !letter.is_alphanumeric() && letter != '`');
        if ["nobody", "somebody", "Nobody", "Somebody"].contains(&plain) {
            find(*line, "nobody", "name the thread, process, call or user");
        }
        let before = at.checked_sub(1).map(|at| sentence[at].0);
        if is_bare_who(plain, before) && !last.contains('?') {
            find(*line, "who", "name the subject: the reader, the caller, `rename`");
        }
    }
}

fn is_bare_who(word: &str, before: Option<&str>) -> bool {
    match word {
        "whoever" | "Whoever" | "Who" => true,
        "who" => before.is_none_or(|before| {
            before.ends_with([',', ':', '('])
                || before == "-"
                || BEFORE_A_BARE_WHO.contains(&before)
        }),
        _ => false,
    }
}

#[cfg(test)]
mod tests {
    use super::{super::lines_found, *};

    fn rules_of(sentence: &str) -> Vec<&'static str> {
        let page = page("a.md", sentence);
        page.into_iter().map(|finding| finding.rule).collect()
    }

    #[test]
    fn sentences_without_a_subject_are_found() {
        for bad in [
            "Whoever enters a name puts back what is left of it.",
            "A slot has two halves: who has found the slot knows where the count will be.",
            "A foreign name is seen by who lists.",
            "Who takes it says so.",
            "The order is that of who asked first.",
        ] {
            assert_eq!(rules_of(bad), ["who"], "{bad}");
        }
        assert_eq!(rules_of("What a claim came to is seen later."), ["what"]);
        assert_eq!(rules_of("It is freed when nobody holds it."), ["nobody"]);
        assert_eq!(rules_of("Somebody may have died."), ["nobody"]);
    }

    #[test]
    fn sentences_with_a_subject_are_not_found() {
        for good in [
            "The reader who found the slot checks its sequence.",
            "What does the walk store? Nothing.",
            "Who frees the slot? The last reference does.",
            "It runs as `su nobody -c COMMAND`.",
            "The record says who owns the file.",
            "It returns what the back end returned.",
        ] {
            assert_eq!(rules_of(good), [""; 0], "{good}");
        }
    }

    #[test]
    fn sentence_over_the_limit_is_found_once() {
        let words = |count| format!("{}.", vec!["word"; count].join(" "));
        let wrapped = |count| words(count).replace("word word word ", "word word word\n");
        assert_eq!(rules_of(&wrapped(SENTENCE_WORDS_MAX)), [""; 0]);
        assert_eq!(rules_of(&wrapped(SENTENCE_WORDS_MAX + 1)), ["sentence"]);
        let two = format!("{} {}", wrapped(20), wrapped(20));
        assert_eq!(rules_of(&two), [""; 0]);
        let code = format!("It runs `{}`.", vec!["word"; 50].join(" "));
        assert_eq!(rules_of(&format!("```\n{}\n```\n{}", words(60), &code[..60])), [""; 0]);
    }

    #[test]
    fn items_and_blocks_end_a_sentence() {
        let item = vec!["word"; 18].join(" ");
        assert_eq!(rules_of(&format!("- {item}\n- {item}\n\n{item}")), [""; 0]);
        let split = format!("// {item}\nlet a = 1;\n// {item}");
        assert_eq!(lines_found(comments, "a.rs", &split), [1; 0]);
    }

    #[test]
    fn long_lines_of_comments_and_pages_are_found() {
        let line = "letters ".repeat(13);
        assert_eq!(lines_found(comments, "a.rs", &format!("// short\n// {line}")), [2]);
        assert_eq!(lines_found(comments, "a.rs", &format!("let a = \"{line}\";")), [1; 0]);
        assert_eq!(page("a.md", &line).len(), 1);
        assert_eq!(page("a.md", &format!("| {line} |")).len(), 0);
    }

    #[test]
    fn essay_over_the_limit_is_found_and_its_example_does_not_count() {
        let essay = |count| "//! Text.\n".repeat(count);
        assert_eq!(lines_found(comments, "a.rs", &essay(ESSAY_LINES_MAX)), [1; 0]);
        let found = lines_found(comments, "a.rs", &essay(ESSAY_LINES_MAX + 5));
        assert_eq!(found, [ESSAY_LINES_MAX + 1]);
        let example = format!("//! ```\n{}//! ```\n", essay(30));
        let whole = format!("{}{example}", essay(ESSAY_LINES_MAX - 2));
        assert_eq!(lines_found(comments, "a.rs", &whole), [1; 0]);
    }
}
