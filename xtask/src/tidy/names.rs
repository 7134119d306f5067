//! Rules about names of types and of tests: no words that say nothing.
//!
//! Words such as manager and wrapper do not say what a type is. The name of a test is
//! `subject_condition_result`, to which a prefix `test_` adds nothing.

use super::Finding;
use crate::source::RustFile;

const BANNED: [&str; 8] =
    ["Manager", "Helper", "Util", "Wrapper", "Impl", "Context", "Data", "Info"];

const TYPE_KEYWORDS: [&str; 5] = ["struct ", "enum ", "trait ", "type ", "union "];

pub(super) fn types(file: &RustFile) -> Vec<Finding> {
    let mut findings = Vec::new();
    for (at, line) in file.lines.iter().enumerate() {
        for keyword in TYPE_KEYWORDS {
            let Some(name) = name_after(&line.code, keyword) else { continue };
            let words = camel_words(name);
            if let Some(banned) = words.iter().find(|word| is_banned(word)) {
                let instead = format!("`{name}`: say what it is instead of `{banned}`");
                findings.push(Finding::new(&file.path, at + 1, "banned name", instead));
            }
        }
    }
    findings
}

pub(super) fn tests(file: &RustFile) -> Vec<Finding> {
    file.lines
        .iter()
        .enumerate()
        .filter(|(_, line)| {
            name_after(&line.code, "fn ").is_some_and(|name| name.starts_with("test_"))
        })
        .map(|(at, _)| {
            let instead = "name a test subject_condition_result, without `test_`";
            Finding::new(&file.path, at + 1, "test name", instead)
        })
        .collect()
}

fn name_after<'c>(code: &'c str, keyword: &str) -> Option<&'c str> {
    let (before, after) = code.split_once(keyword)?;
    let is_whole = before.is_empty() || before.ends_with([' ', '(', '{', ';', ')']);
    let end = after.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    let name = &after[..end.unwrap_or(after.len())];
    (is_whole && !name.is_empty()).then_some(name)
}

fn camel_words(name: &str) -> Vec<&str> {
    let mut starts: Vec<usize> =
        name.char_indices().filter(|(_, letter)| letter.is_uppercase()).map(|(at, _)| at).collect();
    starts.push(name.len());
    starts.windows(2).map(|pair| &name[pair[0]..pair[1]]).collect()
}

fn is_banned(word: &str) -> bool {
    BANNED.iter().any(|banned| word == *banned || word.strip_suffix('s') == Some(banned))
}

#[cfg(test)]
mod tests {
    use super::{super::lines_found, *};

    #[test]
    fn type_with_a_banned_word_is_found() {
        for bad in [
            "struct CacheManager;",
            "pub enum InfoKind {}",
            "pub(crate) trait Helpers {}",
            "    type WalkContext<'a> = ();",
            "struct Data<T>(T);",
        ] {
            assert_eq!(lines_found(types, "a.rs", bad), [1], "{bad}");
        }
    }

    #[test]
    fn type_without_a_banned_word_is_not_found() {
        for good in [
            "struct Database;",
            "struct Dentry; // not a Manager",
            "impl Implicit for Informed {}",
            "let type_ = Data;",
            "struct Metadata;",
        ] {
            assert_eq!(lines_found(types, "a.rs", good), [], "{good}");
        }
    }

    #[test]
    fn prefix_of_a_test_is_found_and_a_proper_name_is_not() {
        assert_eq!(lines_found(tests, "a.rs", "    fn test_rename() {}"), [1]);
        assert_eq!(lines_found(tests, "a.rs", "fn rename_over_itself_is_a_no_op() {}"), []);
        assert_eq!(lines_found(tests, "a.rs", "fn latest_test_wins() {}"), []);
    }
}
