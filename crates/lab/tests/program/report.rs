//! Checks that `corewalk-lab report` makes a page from result files, and prints one clear line if a
//! file or an argument is wrong.
//!
//! Source: the contract of the program in DESIGN.md, section 5.

use std::fs;
use std::path::{Path, PathBuf};

use crate::{lab, quick, text};

/// A temporary folder, removed on drop.
struct Folder(PathBuf);

impl Folder {
    fn new(label: &str) -> Folder {
        let name = format!("corewalk-lab-{}-report-{label}", std::process::id());
        let path = std::env::temp_dir().join(name);
        fs::create_dir(&path).expect("the folder is new");
        Folder(path)
    }

    fn file(&self, name: &str, content: &str) -> String {
        let path = self.0.join(name);
        fs::write(&path, content).expect("the folder can be written to");
        path.to_str().expect("a path in ASCII").to_owned()
    }

    fn path(&self, name: &str) -> String {
        self.0.join(name).to_str().expect("a path in ASCII").to_owned()
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

#[test]
fn report_of_two_files_is_one_page_with_both_tables_and_their_numbers() {
    let folder = Folder::new("two");
    let mut run = quick("create-one-dir");
    run["rows"][0]["variant"] = "corewalk".into();
    run["rows"][0]["ratio"] = 0.125.into();
    run["rows"][0]["baseline"] = "linux".into();
    let one = folder.file("one.json", &run.to_string());
    let mut elsewhere = run.clone();
    elsewhere["table"] = "lookup".into();
    elsewhere["machine"]["cpu"] = "another <machine>".into();
    let two = folder.file("two.json", &elsewhere.to_string());
    let out = folder.path("made/for/it");
    let output = lab(&["report", "--out", &out, "--json", &one, &two]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = Path::new(&out).join("index.html");
    assert_eq!(text(&output.stdout), format!("{}\n", page.display()));
    assert_eq!(fs::read_dir(&out).expect("it was made").count(), 1, "the page and nothing else");
    let page = fs::read_to_string(page).expect("it was written");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    let xml = roxmltree::Document::parse_with_options(&page, options).expect("it is well-formed");
    let count =
        |name: &str| xml.descendants().filter(|node| node.tag_name().name() == name).count();
    assert_eq!(count("h2"), 2);
    assert_eq!(count("svg"), 1, "the rows are those of one table");
    let rows = run["rows"].as_array().expect("rows are a list").len();
    assert_eq!(page.matches(&format!("all {rows} rows")).count(), 2);
    let commit = run["machine"]["commit"].as_str().expect("there is a commit");
    assert!(page.contains(commit) && page.contains("another &lt;machine&gt;"));
    assert!(page.contains("x0.125 of linux"), "a loss is a row like any other");
}

#[test]
fn report_on_a_page_that_is_there_replaces_it() {
    let folder = Folder::new("again");
    let run = folder.file("run.json", &quick("create-one-dir").to_string());
    let page = folder.file("index.html", "an older page");
    let output = lab(&["report", "--out", &folder.path(""), "--json", &run]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert!(fs::read_to_string(page).expect("it is there").contains("create-one-dir"));
    assert_eq!(fs::read_dir(&folder.0).expect("it is there").count(), 2);
}

#[test]
fn report_that_cannot_be_is_one_line_and_leaves_nothing() {
    let folder = Folder::new("wrong");
    let good = folder.file("good.json", &quick("create-one-dir").to_string());
    let nonsense = folder.file("nonsense.json", "{\"table\":");
    let other = folder.file("other.json", "{\"name\": \"a package\"}");
    let missing = folder.path("missing.json");
    let out = folder.path("out");
    let before = fs::read_dir(&folder.0).expect("it is there").count();
    let cases: [(&[&str], &str); 5] = [
        (&["--out", &out, "--json", &missing], "cannot read"),
        (&["--out", &out, "--json", &nonsense], "is not the output of a run"),
        (&["--out", &out, "--json", &good, &other], "is not the output of a run"),
        (&["--out", &good, "--json", &good], "is not a folder"),
        (&["--out", "/proc/no-such-folder", "--json", &good], "cannot make"),
    ];
    for (args, expected) in cases {
        let output = lab(&[&["report"], args].concat());
        let error = text(&output.stderr);
        assert_eq!(output.status.code(), Some(1), "{args:?}");
        assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
        assert!(output.stdout.is_empty(), "{args:?}");
    }
    assert_eq!(fs::read_dir(&folder.0).expect("it is there").count(), before);
    let kept = fs::read_to_string(&good).expect("it is there");
    assert!(kept.starts_with('{'), "what stood in the way was written over");
}

#[test]
fn report_without_a_folder_is_a_mistake_of_usage() {
    assert_eq!(lab(&["report"]).status.code(), Some(2));
}
