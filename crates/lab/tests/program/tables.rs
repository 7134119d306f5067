//! Quick runs of the tables that work on files, as their users start them.
//!
//! Each checks its own answers; here it is seen that the program runs them, that their JSON follows
//! the schema, and that nothing is left on the host's tmpfs.
//!
//! Source: `schema.json`.

use serde_json::Value;

use crate::{lab, quick, rows, text};

/// The tables, each with the parameters of a row that must be there.
const TABLES: [(&str, &[(&str, &str)]); 6] = [
    ("rename", &[("directories", "own-pair")]),
    ("create-one-dir", &[("directories", "one")]),
    ("hot-leaf", &[("of", "walk"), ("phase", "after")]),
    ("small-loads", &[("load", "git-diff")]),
    ("multiuser", &[]),
    ("one-cpu", &[]),
];

fn left_on_the_host() -> usize {
    let entries = std::fs::read_dir("/dev/shm").expect("the host has a tmpfs").flatten();
    // A file system that a test of another process uses has another number in its name.
    let of_ours = |name: &str| name.starts_with("corewalk-lab-") && !is_running(name);
    entries.filter(|entry| entry.file_name().to_str().is_some_and(of_ours)).count()
}

/// Returns true if the process in the name of a folder is there.
fn is_running(name: &str) -> bool {
    let number = name.split('-').nth(2).unwrap_or_default();
    std::path::Path::new("/proc").join(number).exists()
}

#[test]
fn quick_runs_of_all_tables_of_files_follow_the_schema_and_leave_nothing() {
    let names: Vec<&str> = TABLES.iter().map(|(name, _)| *name).collect();
    let tables = quick(&names);
    let tables = tables.as_array().expect("several tables are a list");
    assert_eq!(tables.len(), TABLES.len());
    for (table, (name, params)) in tables.iter().zip(TABLES) {
        assert_eq!(table["table"], name);
        for variant in ["corewalk", "rwlock-ahash", "linux"] {
            for metric in ["ops_per_s", "ns_per_op"] {
                let is_wanted = |row: &&Value| {
                    params.iter().all(|(key, value)| row["params"][key] == *value)
                        && row["ratio"].is_f64()
                        && row["rounds"].as_u64() >= Some(1)
                };
                let found = rows(table, variant, metric).into_iter().find(is_wanted);
                assert!(found.is_some(), "{name}: {variant} {metric}");
            }
        }
    }
    assert_eq!(left_on_the_host(), 0);
}

#[test]
fn list_names_every_table_of_files() {
    let listed = text(&lab(&["list"]).stdout);
    for (name, _) in TABLES {
        assert!(listed.lines().any(|line| line.split(' ').next() == Some(name)), "{listed}");
    }
}
