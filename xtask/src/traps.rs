//! Lists the tests that cover each trap of `docs/developing/traps.md`.
//!
//! `docs/developing/traps.md` numbers bugs that other systems have had, the traps. A test that
//! would catch such a bug names it in its doc comment: `Trap T13.`, or `Traps T13, T14.`. This
//! module prints a table of these tests. For a trap that the design makes impossible, a line in
//! `docs/developing/races.md` gives the argument: `- T12: why it cannot happen.`. All tests that
//! `races.md` names must exist.
//!
//! A test is a function with `#[test]`, or an item with a `compile_fail` example in its
//! documentation. Other items that mention a trap do not cover it.
//!
//! Source: `docs/developing/traps.md`.

use crate::{
    Outcome,
    source::{self, Line, RustFile},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    ops::RangeInclusive,
    path::Path,
};

/// Traps that the project must cover. All other traps are about parts that do not exist yet.
const DEMANDED: [(char, RangeInclusive<u32>); 5] =
    [('T', 1..=51), ('T', 54..=57), ('P', 1..=13), ('I', 1..=18), ('X', 1..=10)];

const RACES: &str = "docs/developing/races.md";

/// Tests of xtask contain samples of doc comments that cite traps, so this directory is left out.
const OWN_FOLDER: &str = "xtask/";

/// Whether the command `traps` fails if a trap has neither a test nor a written reason why it
/// cannot happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Strictness {
    Report,
    Demand,
}

type Trap = (char, u32);

/// Prints the traps with their tests. [`Strictness::Demand`] prints only open traps, since a long
/// table would push earlier output off the screen.
pub(crate) fn run(root: &Path, strictness: Strictness) -> Outcome {
    let files = match source::collect_rust(root) {
        Ok(files) => files,
        Err(error) => return Outcome::Failed(format!("cannot read the repository: {error}")),
    };
    let mut covered: BTreeMap<Trap, Vec<String>> = BTreeMap::new();
    for file in files.iter().filter(|file| !file.path.starts_with(OWN_FOLDER)) {
        for (trap, place) in citations(file) {
            covered.entry(trap).or_default().push(place);
        }
    }
    let races = fs::read_to_string(root.join(RACES)).unwrap_or_default();
    let argued = argued(&races);
    let mut open = Vec::new();
    let mut count = 0;
    for trap @ (letter, number) in demanded() {
        count += 1;
        let name = format!("{letter}{number}");
        match (covered.get(&trap), argued.get(&trap)) {
            (Some(_), _) | (_, Some(_)) if strictness == Strictness::Demand => {}
            (Some(places), _) => println!("{name:<4} {}", places.join("\n     ")),
            (None, Some(why)) => println!("{name:<4} by design: {why}"),
            (None, None) => {
                println!("{name:<4} OPEN");
                open.push(name);
            }
        }
    }
    println!("{} of {count} traps are covered", count - open.len());
    let missing = missing_tests(&races, &files);
    if !missing.is_empty() {
        let missing = missing.join(" ");
        return Outcome::Failed(format!("{RACES} names tests that do not exist: {missing}"));
    }
    if open.is_empty() || strictness == Strictness::Report {
        return Outcome::Passed;
    }
    Outcome::Failed(format!("no test and no argument for {}", open.join(" ")))
}

fn demanded() -> impl Iterator<Item = Trap> {
    DEMANDED.into_iter().flat_map(|(letter, numbers)| numbers.map(move |number| (letter, number)))
}

fn citations(file: &RustFile) -> Vec<(Trap, String)> {
    let mut found = Vec::new();
    let mut docs = String::new();
    let mut is_test = false;
    for (at, line) in file.lines.iter().enumerate() {
        let code = line.code.trim();
        if let Some(doc) = line.doc() {
            docs.push_str(doc);
            docs.push('\n');
        } else if code.starts_with("#[") || code.starts_with("#![") {
            is_test |= code.starts_with("#[test]") || code.contains("::test]");
        } else if !is_between(line) {
            let is_proof = is_test || docs.contains("compile_fail");
            if is_proof {
                let place = format!("{}:{} {}", file.path, at + 1, item_name(code));
                found.extend(cited(&docs).into_iter().map(|trap| (trap, place.clone())));
            }
            docs.clear();
            is_test = false;
        }
    }
    found
}

/// Returns true if the line is only a comment. Such a line may stand between a doc comment and its
/// item.
fn is_between(line: &Line) -> bool {
    line.code.trim().is_empty() && !line.comment.is_empty()
}

fn item_name(code: &str) -> &str {
    let after = ["fn ", "struct ", "enum ", "trait ", "mod "]
        .iter()
        .find_map(|keyword| code.split_once(keyword).map(|(_, after)| after));
    let name = after.unwrap_or_default();
    let end = name.find(|letter: char| !letter.is_alphanumeric() && letter != '_');
    &name[..end.unwrap_or(name.len())]
}

/// Returns the traps in a doc comment. The forms are `Trap T1.` and `Traps T1, T2 and P3.`.
fn cited(docs: &str) -> Vec<Trap> {
    let mut traps = Vec::new();
    for (at, keyword) in docs.match_indices("Trap") {
        let list = docs[at + keyword.len()..].trim_start_matches('s');
        let words = list.split([' ', ',', '\n']).filter(|word| !word.is_empty() && *word != "and");
        for word in words {
            let Some(trap) = parse(word.trim_end_matches(['.', ':', ';', ')'])) else { break };
            traps.push(trap);
            if word.ends_with(['.', ':', ';', ')']) {
                break;
            }
        }
    }
    traps
}

/// Returns the traps that cannot happen, each with the reason in `docs/developing/races.md`.
fn argued(races: &str) -> BTreeMap<Trap, String> {
    let line = |line: &str| {
        let (names, why) = line.strip_prefix("- ")?.split_once(": ")?;
        let traps: Option<Vec<Trap>> = names.split(", ").map(parse).collect();
        Some((traps?, why.to_owned()))
    };
    races
        .lines()
        .filter_map(line)
        .flat_map(|(traps, why)| traps.into_iter().map(move |trap| (trap, why.clone())))
        .collect()
}

/// Returns the names of tests that `races` has in backticks and no file defines. A name with at
/// least three underscores is that of a test.
fn missing_tests(races: &str, files: &[RustFile]) -> Vec<String> {
    let defined: BTreeSet<&str> = files
        .iter()
        .flat_map(|file| &file.lines)
        .filter(|line| line.code.contains("fn "))
        .map(|line| item_name(line.code.trim()))
        .collect();
    let is_letter =
        |letter: char| letter.is_ascii_lowercase() || letter == '_' || letter.is_ascii_digit();
    races
        .split('`')
        .skip(1)
        .step_by(2)
        .filter(|name| name.chars().all(is_letter) && name.matches('_').count() >= 3)
        .filter(|name| !defined.contains(name))
        .map(str::to_owned)
        .collect()
}

fn parse(name: &str) -> Option<Trap> {
    let letter = name.chars().next().filter(|letter| "TPIX".contains(*letter))?;
    let number = name[1..].parse().ok()?;
    Some((letter, number))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn traps_of(text: &str) -> Vec<Trap> {
        citations(&RustFile::parse("a.rs", text)).into_iter().map(|(trap, _)| trap).collect()
    }

    #[test]
    fn demanded_traps_are_those_of_existing_crates() {
        assert_eq!(demanded().count(), 51 + 4 + 13 + 18 + 10);
        assert!(!demanded().any(|trap| trap == ('T', 52)));
    }

    #[test]
    fn doc_comment_of_a_test_covers_its_traps() {
        let text = "/// Moves. Trap T13.\n#[test]\nfn name_moves_or_stays() {}";
        assert_eq!(traps_of(text), [('T', 13)]);
        let text = "/// Traps T13, T14 and P3.\n/// More.\n#[should_panic]\n#[test]\nfn f() {}";
        assert_eq!(traps_of(text), [('T', 13), ('T', 14), ('P', 3)]);
        let text = "/// ```compile_fail,E0277\n/// ```\n/// Trap T57.\npub struct Guard;";
        assert_eq!(traps_of(text), [('T', 57)]);
    }

    #[test]
    fn place_of_a_citation_names_the_test() {
        let file = RustFile::parse("a.rs", "\n/// Trap T1.\n#[test]\nfn long_name_is_whole() {}");
        assert_eq!(citations(&file)[0].1, "a.rs:4 long_name_is_whole");
    }

    #[test]
    fn citation_without_a_test_covers_nothing() {
        assert_eq!(traps_of("/// See Trap T13.\nfn rename() {}"), []);
        assert_eq!(traps_of("// Trap T13.\n#[test]\nfn f() {}"), []);
        assert_eq!(traps_of("/// Trap T13.\nfn f() {}\n#[test]\nfn g() {}"), []);
        assert_eq!(traps_of("/// A Trapdoor T13.\n#[test]\nfn f() {}"), []);
    }

    #[test]
    fn argument_in_races_covers_its_trap() {
        let argued =
            argued("# Races\n\n- T12: one probe.\n- T5, T6: stable.\n- see T7: no\nT8: no");
        let traps: Vec<Trap> = argued.keys().copied().collect();
        assert_eq!(traps, [('T', 5), ('T', 6), ('T', 12)]);
        assert_eq!(argued[&('T', 12)], "one probe.");
    }

    #[test]
    fn name_in_races_without_a_function_is_found() {
        let file = RustFile::parse("a.rs", "#[test]\nfn name_moves_or_stays() {}");
        let races = "| A race in `rename`. | `name_moves_or_stays`, `name_moves_at_last` |";
        assert_eq!(missing_tests(races, &[file]), ["name_moves_at_last"]);
    }
}
