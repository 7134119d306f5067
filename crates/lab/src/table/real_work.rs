//! Benchmark table `real-work`: common programs on a tree of files, and reads and writes of a large
//! file. It runs in mounts as a user has them, and on file systems of the kernel.
//!
//! Each visit unpacks the same generated tree into a new directory, works on it step by step
//! ([`STEPS`]), and then on other files ([`data`]). It removes everything at the end. Units:
//! seconds of each step (`seconds`), and requests that the kernel sent to the server, per file of
//! the tree (`requests_per_file`).
//!
//! | variant | file system | its files are in |
//! |---|---|---|
//! | `corewalk` | `corewalk mount tmpfs` | its own memory |
//! | `corewalk-store` | `corewalk mount store:DIRECTORY` | a directory of the disk |
//! | `corewalk-hostfs` | `corewalk mount DIRECTORY` | the host's tmpfs |
//! | `bindfs` | bindfs | the host's tmpfs |
//! | `passthrough_ll` | the low-level example of libfuse | the host's tmpfs |
//! | `linux` | the host's tmpfs | memory |
//! | `linux-ext4` | that of the disk, if it is an ext4 | the disk |
//!
//! All mounts have their default options and timeouts, and nothing is pinned. Only `passthrough_ll`
//! has options: `xattr`, `default_permissions` and `clone_fd`. The lab allows FUSE over io_uring
//! (`peer/programs`).
//!
//! A tree of 1,000 files has about 30 MB, and the large file 256 MiB. Both grow with `--seconds`:
//! with `--seconds 4` the tree has 4,000 files and the large file 1 GiB. The bytes of the files in
//! the tree are text, which git compresses to about half.
//!
//! # Checks
//! Every program must succeed, `find` must list each file with its size, and the other programs
//! must print nothing.
//!
//! # Requests
//! The kernel counts the requests ([`Requests`]). This needs root and a mounted tracefs. Without
//! them the table has no rows of requests. The counter of `corewalk stat` is not used, so that the
//! requests of bindfs are counted in the same way.
//!
//! Source: tar(1), find(1), cp(1), diff(1), git-add(1), rm(1).

pub(super) mod data;
mod requests;

use super::prelude::*;
use crate::peer::{self, Mounted, check_interrupt};
use requests::Requests;
use std::fs::{self, File};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Instant;

/// The baseline, with which all other variants are compared.
const BASELINE: &str = "bindfs";
const SERVERS: [&str; 5] =
    ["corewalk", "corewalk-store", "corewalk-hostfs", "passthrough_ll", BASELINE];
/// Files of the tree for each second of the setting `time_per_row`.
const FILES_PER_S: f64 = 1_000.0;
/// Files in a quick run.
const FILES_QUICK: usize = 60;
/// Seconds of all visits of a variant with 1,000 files, on two cores.
const SHARE: f64 = 33.0;
/// The seed of the tree.
const SEED: u64 = 22;
/// Number of files in a directory. `DIRECTORIES` is the number of such directories in one
/// directory.
const IN_DIRECTORY: usize = 12;
const DIRECTORIES: usize = 30;
/// The sizes of files have 6 to 18 binary digits, each number of digits equally often.
const DIGITS: Range<u64> = 5..18;
/// The letters of the text in files.
const LETTERS: &[u8] = b"etaoinshrdlucmfw \n";

/// MiB of the large file for each 1,000 files of the tree.
const MIB_PER_1000: usize = 256;

/// The first steps in their order: the name in the rows, and the program with its arguments. The
/// standard input of each is the archive.
const STEPS: [(&str, &[&str]); 8] = [
    ("untar", &["tar", "xf", "-"]),
    ("find", &["find", "tree", "-type", "f", "-printf", "%s\n"]),
    ("find again", &["find", "tree", "-type", "f", "-printf", "%s\n"]),
    ("cp -a", &["cp", "-a", "tree", "copy"]),
    ("diff -r", &["diff", "-r", "tree", "copy"]),
    ("diff -r again", &["diff", "-r", "tree", "copy"]),
    ("git add", &["git", "-C", "tree", "--git-dir=../git/.git", "--work-tree=.", "add", "."]),
    ("rm -rf", &["rm", "-rf", "copy"]),
];

/// The table.
pub(super) const TABLE: Table = Table { name: "real-work", sweeps, run };

fn sweeps(settings: &Settings) -> Vec<Sweep> {
    let files = (FILES_PER_S * settings.time_per_row.as_secs_f64()).max(1.0) as usize;
    let cells = cells(&[("files", values(&[sized(settings.size, (FILES_QUICK, files))]))]);
    vec![Sweep::new(cells, SERVERS.len() + 2, BASELINE, SHARE)]
}

fn run(run: &Run<'_>, samples: &mut Samples) -> anyhow::Result<()> {
    let sweep = &run.sweeps[0];
    let memory = Scratch::new(Path::new(peer::TMPFS), "work")?;
    let scratch = Scratch::new(&std::env::temp_dir(), "work-mounts")?;
    let disk = Scratch::new(&std::env::temp_dir(), "work-disk")?;
    let tree = Tree::new(&memory, sweep.cells[0].number("files"))?;
    let requests = Requests::new();
    if let Err(error) = &requests {
        eprintln!("{}: requests are not counted: {error:#}", run.table);
    }
    let mut mounts = vec![];
    for variant in SERVERS {
        let point = scratch.folder(variant)?;
        let source = match variant {
            "corewalk" => "tmpfs".into(),
            "corewalk-store" => format!("store:{}", disk.folder(variant)?.display()).into(),
            _ => memory.folder(variant)?.into_os_string(),
        };
        let program = peer::server(variant, None, &source, &point, disk.path());
        mounts.extend(Mounted::start_or_skip(run.table, variant, program, point)?);
    }
    mounts.extend(Mounted::without_server(run.table, &memory, &disk)?);
    run.each(sweep, mounts.len(), |visit| {
        let mount = &mounts[visit.at];
        let folder = mount.directory.join("work");
        fs::create_dir(&folder)?;
        program(&folder, &["git", "init", "-q", "git"], Stdio::null())?;
        let requests = requests.as_ref().ok().filter(|_| mount.server.is_some());
        let programs = STEPS.map(|(step, words)| (step, Some(words)));
        for (step, words) in programs.into_iter().chain(data::STEPS.map(|step| (step, None))) {
            check_interrupt()?;
            requests.map_or(Ok(()), |requests| requests.start(&folder))?;
            let seconds = match words {
                Some(words) => tree.step(&folder, step, words),
                None => {
                    data::step(&folder, step, (tree.files * MIB_PER_1000).div_ceil(1000) as u64)
                }
            };
            let seconds = seconds.with_context(|| format!("{}: {step}", mount.variant))?;
            let params = visit.cell.with("step", step).0;
            let mut add = |value| samples.add(visit.round, mount.variant, &params, value, BASELINE);
            add((Metric::SECONDS, seconds));
            if let Some(requests) = requests {
                let sent = requests.count()? as f64;
                add((Metric::REQUESTS_PER_FILE, sent / tree.files as f64));
            }
        }
        Ok(fs::remove_dir_all(&folder)?)
    })
}

/// The generated tree, as an archive of tar.
struct Tree {
    archive: PathBuf,
    files: usize,
    bytes: u64,
}

impl Tree {
    /// Makes a tree of `files` files, which is always the same, and packs it into an archive in
    /// `scratch`.
    ///
    /// # Errors
    /// If a file cannot be written, or without tar.
    fn new(scratch: &Scratch, files: usize) -> anyhow::Result<Tree> {
        let (folder, archive) = (scratch.folder("tree")?, scratch.path().join("tree.tar"));
        let (mut rng, mut bytes) = (Rng::with_seed(SEED), 0);
        let text: Vec<u8> =
            (0..1 << DIGITS.end).map(|_| LETTERS[rng.usize(..LETTERS.len())]).collect();
        for number in 0..files {
            let directory = number / IN_DIRECTORY;
            let above = format!("part-{:02}/dir-{directory:04}", directory / DIRECTORIES);
            let least = 1 << (DIGITS.start + rng.u64(..DIGITS.end - DIGITS.start));
            let size = least + rng.u64(..least);
            let start = rng.u64(..text.len() as u64 - size) as usize;
            fs::create_dir_all(folder.join(&above))?;
            let file = folder.join(above).join(format!("file-{number:05}.txt"));
            fs::write(file, &text[start..][..size as usize])?;
            bytes += size;
        }
        program(scratch.path(), &["tar", "cf", "tree.tar", "tree"], Stdio::null())?;
        fs::remove_dir_all(folder)?;
        Ok(Tree { archive, files, bytes })
    }

    /// Runs the program of a step in `folder`, and checks its output. Returns how many seconds it
    /// took.
    fn step(&self, folder: &Path, step: &str, words: &[&str]) -> anyhow::Result<f64> {
        let input = File::open(&self.archive)?;
        let start = Instant::now();
        let printed = program(folder, words, input.into())?;
        let seconds = start.elapsed().as_secs_f64();
        let mut sum = (0, 0);
        for size in printed.lines() {
            sum = (sum.0 + 1, sum.1 + size.parse::<u64>().context("unexpected output")?);
        }
        let is_listing = step.starts_with("find");
        let expected = if is_listing { (self.files, self.bytes) } else { (0, 0) };
        ensure!(sum == expected, "{sum:?} files and bytes instead of {expected:?}");
        Ok(seconds)
    }
}

/// Runs a program in `folder`, without the user's configuration of git. Returns its output.
pub(super) fn program(folder: &Path, words: &[&str], input: Stdio) -> anyhow::Result<String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).current_dir(folder).stdin(input);
    command.env("GIT_CONFIG_GLOBAL", "/dev/null").env("GIT_CONFIG_NOSYSTEM", "1");
    let output = command.output().with_context(|| format!("{} does not start", words[0]))?;
    let errors = String::from_utf8_lossy(&output.stderr);
    ensure!(output.status.success() && errors.is_empty(), "{}: {}", words[0], errors.trim());
    Ok(String::from_utf8(output.stdout)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tree_is_always_the_same_and_every_step_checks_it() {
        let scratch = Scratch::in_memory("real-work").unwrap();
        let tree = Tree::new(&scratch, 40).unwrap();
        assert_eq!((tree.files, tree.bytes), (40, 932_973));
        program(scratch.path(), &["git", "init", "-q", "git"], Stdio::null()).unwrap();
        for (step, words) in STEPS {
            assert!(tree.step(scratch.path(), step, words).unwrap() > 0.0, "{step}");
        }
        tree.step(scratch.path(), STEPS[3].0, STEPS[3].1).unwrap();
        fs::write(scratch.path().join("tree/part-00/dir-0000/file-00000.txt"), "changed").unwrap();
        for (step, words) in [STEPS[1], STEPS[4]] {
            assert!(tree.step(scratch.path(), step, words).is_err(), "{step}");
        }
    }
}
