//! Tests of the program `corewalk-lab` as its users run it: its exit status, and its JSON.
//!
//! A quick run shows that a benchmark works and that its result rows follow the schema. It does not
//! show how fast anything is.

#![forbid(unsafe_code)]

mod report;
mod schema;
mod tables;

use std::path::PathBuf;
use std::process::{Command, Output};

use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::s3::S3Server;
use serde_json::Value;

/// The schema that is published with the crate.
const SCHEMA: &str = include_str!("../../schema.json");

/// The program.
const PROGRAM: &str = env!("CARGO_BIN_EXE_corewalk-lab");

fn lab(args: &[&str]) -> Output {
    Command::new(PROGRAM).args(args).output().expect("the program starts")
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

/// Runs `tables` quickly. Returns the JSON of each, which must follow the schema.
fn quick_all(tables: &[&str]) -> Vec<Value> {
    // Several tests run the same table at the same time, so the name of the folder must be unique.
    let now = std::time::UNIX_EPOCH.elapsed().expect("it is past 1970").as_nanos();
    let name = format!("corewalk-lab-{}-{}-{now}", std::process::id(), tables[0]);
    let folder = std::env::temp_dir().join(name);
    let out = folder.to_str().expect("a path in ASCII");
    let output = lab(&[&["run", "--quick", "--out", out], tables].concat());
    assert!(output.status.success(), "{}", text(&output.stderr));
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    let read = |table: &&str| {
        let json = std::fs::read_to_string(folder.join(format!("{table}.json")));
        let json = serde_json::from_str(&json.expect("it was written")).expect("it is JSON");
        schema::check(&schema, &schema, &json, "").expect("the output follows the schema");
        json
    };
    let all = tables.iter().map(read).collect();
    std::fs::remove_dir_all(&folder).expect("the folder is there");
    all
}

/// Runs one table quickly, as [`quick_all`] does.
fn quick(table: &str) -> Value {
    quick_all(&[table]).remove(0)
}

fn rows<'a>(table: &'a Value, variant: &str, metric: &str) -> Vec<&'a Value> {
    let rows = table["rows"].as_array().expect("rows are a list");
    rows.iter().filter(|row| row["variant"] == variant && row["metric"] == metric).collect()
}

#[test]
fn quick_lookup_follows_the_schema_and_has_walks() {
    let table = quick("lookup");
    assert_eq!(table["table"], "lookup");
    for variant in ["corewalk", "rwlock-ahash", "libfuse-node"] {
        let speed = rows(&table, variant, "ops_per_s");
        assert!(speed.iter().any(|row| row["params"]["op"] == "walk" && row["ratio"].is_f64()));
    }
}

/// Makes a quick run of a table that mounts, and checks that it leaves nothing mounted. Returns
/// None if this machine cannot mount.
fn quick_on_mounts(name: &str) -> Option<Value> {
    let beside = PathBuf::from(env!("CARGO_BIN_EXE_corewalk-lab")).with_file_name("corewalk");
    let has_program = std::env::var_os("COREWALK_BIN").is_some() || beside.is_file();
    if !has_program || std::fs::File::open("/dev/fuse").is_err() {
        skip(Need::Fuse, "a mount needs /dev/fuse and the corewalk program (COREWALK_BIN)");
        return None;
    }
    let table = quick(name);
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc is mounted");
    // Ignore the mounts of other running tests. Their paths contain the pid of the test's process.
    let is_left = |line: &&str| {
        let name = line.find("corewalk-lab-").map(|at| &line[at..]);
        name.is_some_and(|name| !tables::is_running(name))
    };
    let left: Vec<_> = mounts.lines().filter(is_left).collect();
    assert!(left.is_empty(), "{left:?}");
    Some(table)
}

#[test]
fn quick_fuse_metadata_follows_the_schema_and_leaves_nothing_mounted() {
    let Some(table) = quick_on_mounts("fuse-metadata") else { return };
    for op in ["create", "stat", "readdir+stat", "setxattr", "rename", "unlink"] {
        for variant in ["corewalk", "linux"] {
            let speed = rows(&table, variant, "ops_per_s");
            let row = speed.iter().find(|row| row["params"]["op"] == op);
            assert!(row.is_some_and(|row| row["median"].as_f64() > Some(0.0)), "{variant} {op}");
        }
    }
}

#[test]
fn quick_real_work_has_every_step_and_leaves_nothing_mounted() {
    let Some(table) = quick_on_mounts("real-work") else { return };
    for variant in ["corewalk", "corewalk-store", "corewalk-hostfs", "linux"] {
        let steps = rows(&table, variant, "seconds");
        let is_good = |row: &&&Value| row["median"].as_f64() > Some(0.0) && row["rounds"] == 5;
        assert_eq!((steps.len(), steps.iter().filter(is_good).count()), (13, 13), "{variant}");
    }
    // The kernel counts requests for root only.
    let counted = rows(&table, "corewalk", "requests_per_file");
    assert!(counted.is_empty() || counted.len() == 13, "{counted:?}");
    let untar = counted.iter().find(|row| row["params"]["step"] == "untar");
    assert!(untar.is_none_or(|row| row["median"].as_f64() > Some(4.0)), "{untar:?}");
}

#[test]
fn quick_cluster_metadata_has_every_operation_and_leaves_nothing_mounted() {
    let (Some(_), Some(_)) = (Postgres::start(), S3Server::start("probe")) else { return };
    let Some(table) = quick_on_mounts("cluster-metadata") else { return };
    let rated = ["create", "unlink", "mkdir", "lookup", "absent lookup", "small file"];
    let timed = ["find", "rename", "write", "read"];
    for (metric, ops) in [("ops_per_s", &rated[..]), ("seconds", &timed)] {
        for (op, variant) in
            ops.iter().flat_map(|op| ["corewalk", "corewalk-tmpfs"].map(|v| (op, v)))
        {
            let rows = rows(&table, variant, metric);
            let row = rows.iter().find(|row| row["params"]["op"] == *op);
            assert!(row.is_some_and(|row| row["median"].as_f64() > Some(0.0)), "{variant} {op}");
        }
    }
    let counted = rows(&table, "corewalk", "statements_per_op");
    let counted = |op: &str| counted.iter().find(|row| row["params"]["op"] == op).unwrap();
    // A renewal of the lease may be among the few statements of a round.
    for (op, statements) in [("create", 1.0), ("rename", 1.0), ("small file", 2.0)] {
        assert_eq!(counted(op)["median"], statements, "{op}");
    }
}

#[test]
fn run_writes_json_and_text_of_each_table() {
    let folder = std::env::temp_dir().join(format!("corewalk-lab-{}-run", std::process::id()));
    let out = folder.to_str().expect("a path in ASCII");
    let output = lab(&["run", "create-one-dir", "--quick", "--threads", "1", "--out", out]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).expect("it was written");
    let json: Value = serde_json::from_str(&read("create-one-dir.json")).expect("it is JSON");
    let schema: Value = serde_json::from_str(SCHEMA).expect("the schema is JSON");
    schema::check(&schema, &schema, &json, "").expect("the file follows the schema");
    let written = read("create-one-dir.txt");
    let commit = json["machine"]["commit"].as_str().expect("there is a commit");
    for part in [
        "create-one-dir: ",
        "corewalk",
        commit,
        "\ncorewalk-lab run create-one-dir --quick --threads 1 ",
    ] {
        assert!(written.contains(part), "{part} is missing in {written}");
    }
    assert!(written.starts_with(&text(&output.stdout)));
    std::fs::remove_dir_all(&folder).expect("the folder is there");
}

#[test]
fn mistakes_are_one_line_and_the_status_says_whose() {
    let cases: [(&[&str], i32); 11] = [
        (&["run", "no-such-table"], 2),
        (&["run", "no-such-table", "--out", "/no/such/folder"], 2),
        (&["run", "create-one-dir", "--seconds", "0"], 2),
        (&["run", "create-one-dir", "--threads", "0"], 2),
        (&["run", "create-one-dir", "--threads", "two"], 2),
        (&["run", "create-one-dir", "--threads", "1,1025"], 2),
        (&["run", "create-one-dir", "--seconds=-1"], 2),
        (&["run", "create-one-dir", "--seconds", "3601"], 2),
        (&["run", "create-one-dir", "--seconds", "nan"], 2),
        (&[], 2),
        (&["no-such-command"], 2),
    ];
    for (args, status) in cases {
        let output = lab(args);
        assert_eq!(output.status.code(), Some(status), "{args:?}");
        assert!(!output.stderr.is_empty() && output.stdout.is_empty(), "{args:?}");
        assert!(status == 2 || text(&output.stderr).lines().count() == 1, "{args:?}");
    }
}

#[test]
fn help_is_there_on_every_level() {
    for args in [&["--help"][..], &["run", "--help"], &["report", "--help"], &["help", "list"]] {
        let output = lab(args);
        assert!(output.status.success() && output.stderr.is_empty(), "{args:?}");
        assert!(text(&output.stdout).contains("Usage: corewalk-lab"), "{args:?}");
    }
}

#[test]
fn output_that_cannot_be_written_is_one_line() {
    let full = std::fs::File::create("/dev/full").expect("a device that is full");
    let output = Command::new(PROGRAM).arg("list").stdout(full).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let line = "corewalk-lab: standard output: No space left on device (os error 28)\n";
    assert_eq!(text(&output.stderr), line);
    let (reader, writer) = std::io::pipe().expect("a pipe");
    drop(reader);
    let output = Command::new(PROGRAM).arg("list").stdout(writer).output().expect("it starts");
    assert_eq!(output.status.code(), Some(1));
    let line = "corewalk-lab: standard output: Broken pipe (os error 32)\n";
    assert_eq!(text(&output.stderr), line);
}

#[test]
fn output_with_a_field_of_another_kind_is_refused() {
    let schema: Value = serde_json::from_str(SCHEMA).unwrap();
    let good = quick("create-one-dir");
    for (pointer, bad) in [
        ("/rows/0/ratio", Value::from("1.0")),
        ("/rows/0/metric", Value::from("furlongs")),
        ("/rows/0/median", Value::from(-1)),
        ("/machine/cores", Value::from(1.5)),
        ("/rows", Value::from(Vec::<Value>::new())),
    ] {
        let mut wrong = good.clone();
        *wrong.pointer_mut(pointer).expect("the field is there") = bad;
        assert!(schema::check(&schema, &schema, &wrong, "").is_err(), "{pointer}");
    }
    let mut more = good.clone();
    more["extra"] = Value::from(1);
    assert!(schema::check(&schema, &schema, &more, "").is_err());
    let mut fewer = good;
    fewer["rows"][0].as_object_mut().unwrap().remove("unit");
    assert!(schema::check(&schema, &schema, &fewer, "").is_err());
}
