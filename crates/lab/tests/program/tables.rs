//! Quick runs of all tables, as their users start them.
//!
//! The program must run every benchmark table that it lists, and the JSON must follow the schema.
//! Each table must have a plot and its claims on the page of a report. No file may be left on the
//! host's tmpfs.
//!
//! Source: `schema.json`.

use std::fs;

use serde_json::Value;

use crate::{lab, quick_all, rows, text};

/// The tables that need /dev/fuse. Other tests run them.
const ELSEWHERE: [&str; 3] = ["fuse-metadata", "real-work", "cluster-metadata"];
/// The benchmark tables that measure file systems. Each comes with parameters that the test looks
/// for: at least one result row of the table must have them.
const FILES: [(&str, &[(&str, &str)]); 6] = [
    ("rename", &[("directories", "own-pair")]),
    ("create-one-dir", &[("directories", "one")]),
    ("hot-leaf", &[("of", "walk"), ("phase", "after")]),
    ("small-loads", &[("load", "git-diff")]),
    ("multiuser", &[]),
    ("one-cpu", &[]),
];

fn left_on_the_host() -> usize {
    let entries = std::fs::read_dir("/dev/shm").expect("the host has a tmpfs").flatten();
    // Ignore folders of other tests that are running: the name of a folder contains a pid.
    let of_ours = |name: &str| name.starts_with("corewalk-lab-") && !is_running(name);
    entries.filter(|entry| entry.file_name().to_str().is_some_and(of_ours)).count()
}

/// Returns true if the process whose pid is in the folder name `name` is running.
pub(crate) fn is_running(name: &str) -> bool {
    let number = name.split('-').nth(2).unwrap_or_default();
    std::path::Path::new("/proc").join(number).exists()
}

/// Returns the tables that the program lists, without those in `ELSEWHERE`.
fn listed() -> Vec<String> {
    let listed = text(&lab(&["list"]).stdout);
    let names: Vec<String> =
        listed.lines().filter_map(|line| line.split(' ').next()).map(str::to_owned).collect();
    for name in ELSEWHERE {
        assert!(names.iter().any(|listed| listed == name), "{listed}");
    }
    names.into_iter().filter(|name| !ELSEWHERE.contains(&&name[..])).collect()
}

/// Checks that a table of file systems has result rows of `corewalk` and `linux`.
fn check_files(table: &Value, params: &[(&str, &str)]) {
    for variant in ["corewalk", "linux"] {
        for metric in ["ops_per_s", "ns_per_op"] {
            let is_wanted = |row: &&Value| {
                params.iter().all(|(key, value)| row["params"][key] == *value)
                    && row["ratio"].is_f64()
                    && row["rounds"].as_u64() >= Some(1)
            };
            let found = rows(table, variant, metric).into_iter().find(is_wanted);
            assert!(found.is_some(), "{}: {variant} {metric}", table["table"]);
        }
    }
}

/// Checks the page that a report makes of `tables`.
fn check_page(tables: &[Value]) {
    let folder = std::env::temp_dir().join(format!("corewalk-lab-{}-page", std::process::id()));
    fs::create_dir(&folder).expect("the folder is new");
    let out = folder.to_str().expect("a path in ASCII");
    let mut args = ["report", "--out", out, "--json"].map(String::from).to_vec();
    for (number, table) in tables.iter().enumerate() {
        args.push(format!("{out}/{number}.json"));
        fs::write(&args[4 + number], table.to_string()).expect("the folder can be written to");
    }
    let output = lab(&args.iter().map(String::as_str).collect::<Vec<_>>());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let page = fs::read_to_string(folder.join("index.html")).expect("it was written");
    fs::remove_dir_all(&folder).expect("the folder is there");
    let options = roxmltree::ParsingOptions { allow_dtd: true, ..Default::default() };
    roxmltree::Document::parse_with_options(&page, options).expect("it is well-formed");
    let commit = tables[0]["machine"]["commit"].as_str().expect("there is a commit");
    let sections: Vec<&str> = page.split("<h2 id=\"t").skip(1).collect();
    assert_eq!(sections.len(), tables.len());
    for (section, table) in sections.iter().zip(tables) {
        let name = table["table"].as_str().expect("a name");
        assert!(section.contains(&format!(">{name}</h2>")), "{name}");
        for part in ["<svg", "class=\"claim\"", commit] {
            assert!(section.contains(part), "{name}: no {part}");
        }
        assert!(section.contains("<p class=\"tested "), "{name}");
    }
}

#[test]
fn quick_runs_of_all_tables_follow_the_schema_and_leave_nothing() {
    let names = listed();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    let tables = quick_all(&names);
    assert_eq!(tables.iter().map(|table| &table["table"]).collect::<Vec<_>>(), names);
    for (name, params) in FILES {
        let table = tables.iter().find(|table| table["table"] == name);
        check_files(table.expect("it is listed"), params);
    }
    check_page(&tables);
    assert_eq!(left_on_the_host(), 0);
}
