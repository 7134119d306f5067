//! The check `fsx`: random operations on one file, whose content fsx knows.
//!
//! fsx runs twice with the same seed. The part `mapped` makes all kinds of operations. The part
//! `unmapped` leaves out memory mappings, so that more reads reach the file system.
//!
//! Source: the crate `fsx`.

use std::fs;
use std::os::fd::AsFd as _;
use std::process::Command;

use corewalk::errno_of;
use rustix::fs::{FallocateFlags, fallocate};

use super::Task;
use super::programs::{Program, run};
use crate::answer::{Answer, Checked, Stop, ensure, is_unsupported};

pub(super) const PROGRAM: Program = Program { name: "fsx", version: "0.3.2" };

pub(super) const PARTS: [&str; 2] = ["mapped", "unmapped"];

/// The configuration of fsx. Each operation has at least one byte, since posix_fallocate(3) refuses
/// a length of 0.
const CONFIG: &str = "
flen = 1048576
[opsize]
min = 1
max = 65536
[weights]
close_open = 1.0
invalidate = 1.0
read = 10.0
write = 10.0
truncate = 5.0
fsync = 1.0
fdatasync = 1.0
posix_fallocate = 3.0
sendfile = 1.0
posix_fadvise = 1.0
copy_file_range = 3.0
";
const MAPPINGS: &str = "mapread = 10.0\nmapwrite = 10.0\n";
const HOLES: &str = "punch_hole = 3.0\n";

pub(super) fn check(task: &Task) -> Checked<String> {
    let has_holes = has_holes(task)?;
    let (mut done, mut notes) = (Vec::new(), Vec::new());
    for name in PARTS {
        if !task.only.is_empty() && !task.only.iter().any(|only| only == name) {
            continue;
        }
        if let Some((_, why)) = task.except.iter().find(|(excepted, _)| excepted == name) {
            notes.push(format!("; {name} is left out: {why}"));
            continue;
        }
        let mappings = if name == "mapped" { MAPPINGS } else { "" };
        run_one(task, name, &[CONFIG, mappings, if has_holes { HOLES } else { "" }].concat())?;
        done.push(name);
    }
    if done.is_empty() {
        return Stop::skipped(format!("no part of it was selected{}", notes.concat()));
    }
    if !has_holes {
        notes.push("; no holes, since fallocate(2) refuses to punch them".to_owned());
    }
    let operations = task.settings.operations;
    Ok(format!("{} with {operations} operations{}", done.join(" and "), notes.concat()))
}

fn run_one(task: &Task, name: &str, config: &str) -> Checked {
    let path = task.work.join(format!("fsx-{name}.toml"));
    fs::write(&path, config).map_err(errno_of).must("write of the configuration")?;
    let settings = task.settings;
    let mut command = Command::new(&task.program);
    command.args(["-q", "-N", &settings.operations.to_string()]);
    command.args(["-S", &settings.seed.to_string(), "-P"]).arg(&task.work);
    command.arg("-f").arg(path).arg(task.folder.join(name));
    let log = task.work.join(format!("fsx-{name}.log"));
    let ended = run(&mut command, &log, task.limit)?;
    let is_complete = ended.output.contains("All operations completed");
    ensure(ended.status.success() && is_complete, || {
        // fsx prints some lines that name the error, and then a list of all operations.
        let first: Vec<&str> = ended.output.lines().take(6).collect();
        format!("{name}: {}\n    {}", ended.status, first.join("\n    "))
    })
}

/// Returns true if the file system can punch holes into files. If it cannot, fsx must not try,
/// because fsx would report a failure.
fn has_holes(task: &Task) -> Checked<bool> {
    let path = task.folder.join("hole");
    let made =
        fs::write(&path, [1; 8192]).and_then(|()| fs::File::options().write(true).open(&path));
    let file = made.map_err(errno_of).needs("making a file")?;
    let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    match fallocate(file.as_fd(), flags, 0, 4096) {
        Err(error) if is_unsupported(error) => Ok(false),
        Err(error) => Stop::failed(format!("punching a hole: {error}")),
        Ok(()) => Ok(true),
    }
}
