//! Tests of the benchmark tables that repeat the measurements of the source documents, run as users
//! run them.
//!
//! A quick run shows that a benchmark works, that its answers are right and that its output follows
//! the schema. It does not show how fast anything is.

#![forbid(unsafe_code)]

#[path = "../program/schema.rs"]
mod schema;

use std::process::{Command, Output};

use serde_json::Value;

/// The schema that is published with the crate.
const SCHEMA: &str = include_str!("../../schema.json");

fn lab(args: &[&str]) -> Output {
    let program = env!("CARGO_BIN_EXE_corewalk-lab");
    Command::new(program).args(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Makes a quick run of the benchmark `table`. Returns its text and its JSON, which follows the
/// schema.
fn quick(table: &str) -> (String, Value) {
    let folder = std::env::temp_dir().join(format!("corewalk-lab-{}-{table}", std::process::id()));
    let output =
        lab(&["run", table, "--quick", "--out", folder.to_str().expect("a path in ASCII")]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let json = std::fs::read_to_string(folder.join(format!("{table}.json")));
    let json = json.expect("the file was written");
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    let json: Value = serde_json::from_str(&json).expect("it is JSON");
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    schema::check(&schema, &schema, &json, "").expect("the output follows the schema");
    (text(&output.stdout), json)
}

#[test]
fn quick_run_of_each_document_follows_the_schema_and_prints_its_figures() {
    let tables = [
        ("path-under-rename", "time in spin locks before the patch 8.46"),
        ("redo-size", "with the patch: 8: 903, 32: 892, 80: 714, 128: 907"),
        ("aim7-short", "with the patch: 100: 3872850, 1000: 7655958, 2000: 7422598"),
    ];
    for (table, figure) in tables {
        let (printed, json) = quick(table);
        assert_eq!(json["table"], table);
        assert!(printed.contains(figure) && printed.contains("\nclaim"), "{printed}");
        let rows = json["rows"].as_array().expect("rows are a list");
        for variant in ["corewalk", "before-global-lock", "before-seqrwlock", "before-seqlock"] {
            assert!(rows.iter().any(|row| row["variant"] == variant), "{table}: {variant}");
        }
        // A published figure is never a row.
        let ours = |row: &Value| {
            let variant = row["variant"].as_str().unwrap_or_default();
            ["corewalk", "linux"].contains(&variant) || variant.starts_with("before-")
        };
        assert!(rows.iter().all(ours), "{table}");
    }
}

#[test]
fn quick_xattr_has_every_design_in_every_store() {
    let (printed, json) = quick("xattr");
    assert!(printed.contains("\n10 10 32 13.807 1.047 1.029 1.100 0.986\n"), "{printed}");
    for store in ["in memory", "on a disk"] {
        let claim = "10 blocks over those of 1000 files with 10 values, at least x1: not measured";
        assert!(printed.contains(&format!("{store}, {claim}")), "{printed}");
    }
    let rows = json["rows"].as_array().expect("rows are a list");
    let has = |store: &str, variant: &str, metric: &str| {
        rows.iter().any(|row| {
            row["params"]["store"] == store && row["variant"] == variant && row["metric"] == metric
        })
    };
    for variant in ["before-mbcache", "plain-lru", "lru-per-shard", "corewalk", "off"] {
        assert!(has("disk", variant, "ops_per_s"), "{variant}");
        for metric in ["ops_per_s", "ns_per_op", "bytes_per_entry"] {
            assert!(has("memory", variant, metric), "{variant} {metric}");
        }
    }
}

#[test]
fn quick_lock_share_prints_the_published_shares() {
    let (printed, json) = quick("lock-share");
    assert!(printed.contains("34.8(58.7)"), "{printed}");
    assert!(json["rows"].as_array().is_some_and(|rows| !rows.is_empty()));
}
