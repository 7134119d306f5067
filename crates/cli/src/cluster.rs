//! `corewalk cluster`: limits and junctions of a cluster file system.
//!
//! # Reaching a junction
//! A junction is a directory of a cluster file system on which mounts show a second file system.
//! `corewalk cluster junction` changes an extended attribute of this directory. But the mounted
//! second file system hides the directory.
//!
//! So the command opens the directory in a clone of the first mount (`open_tree` with
//! `OPEN_TREE_CLONE`). The clone does not contain the mount of the second file system.

use std::io::Write as _;
use std::os::fd::OwnedFd;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use corewalk::Errno;
use corewalk_base::primitives::thread;
use corewalk_cluster::{JUNCTION, OpenError, Url, Usage};
use corewalk_fuse::XATTR_STAT;
use rustix::fs::{CWD, Mode, OFlags, XattrFlags};
use rustix::mount::{OpenTreeFlags, open_tree};

use crate::failure::Failure;
use crate::mount::scaled;
use crate::source::parse_url;

const LIMIT: Duration = Duration::from_secs(15);
const PAUSE: Duration = Duration::from_millis(50);
const URL_BYTES_MAX: usize = 4096;

/// The command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(clap::Subcommand, Debug)]
enum Command {
    /// Makes an empty directory show another cluster file system.
    Junction(Junction),
    /// Prints and changes the limits of a cluster file system, and prints how much of them is used.
    Limits(LimitsArguments),
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
Mounts follow within some seconds. A limit may be lower than the use. Then nothing can be added until
enough is removed. Each junction leads to a file system with limits of its own.

Example:
    corewalk cluster limits pg://me@db.example.org/files --capacity 500g --inodes 10m

Exit status: 0 if it was done, 1 if not, 2 if the command line is invalid.")]
struct LimitsArguments {
    /// The file system, pg://USER@HOST:PORT/DATABASE.
    url: String,
    #[command(flatten)]
    limits: Limits,
}

/// Limits on the command line.
#[derive(clap::Args, Clone, Copy, Debug)]
pub(crate) struct Limits {
    /// The most bytes of all files, as the sum of their sizes. The number may end in k, m, g or t
    /// for a power of 1024. 0 means no limit.
    #[arg(long, value_name = "SIZE", value_parser = parse_count)]
    capacity: Option<u64>,
    /// The most inodes: a number, as for --capacity. 0 means no limit.
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    inodes: Option<u64>,
}

impl Limits {
    /// Sets the limits of the command line. Returns all limits, and how much of them is used.
    pub(crate) fn apply(self, url: &Url) -> Result<Usage, OpenError> {
        corewalk_cluster::limits(url, self.capacity, self.inodes)
    }
}

fn parse_count(text: &str) -> Result<u64, &'static str> {
    scaled(text).ok_or("it takes a number, such as 1000, 64k, 10m, 1g or 1t")
}

#[derive(clap::Args, Debug)]
#[command(after_help = "\
A junction is an empty directory of a mounted cluster file system at which all mounts put the file
system of another database, as mount(8) would: those that run now within some seconds, later ones
when they start. It spreads one namespace over several databases. A rename across it is EXDEV.
umount(8) needs -R. Only root may make a junction.

Without URL and --remove, the command prints the URL of the junction.

Example:
    corewalk cluster junction /mnt/projects pg://me@db2.example.org/projects

Exit status: 0 if it was done, 1 if not, 2 if the command line is invalid.")]
struct Junction {
    /// The directory, by its path in a mount.
    path: PathBuf,
    /// The other file system, pg://USER@HOST:PORT/DATABASE. `corewalk mkfs` must have made it.
    #[arg(conflicts_with = "remove")]
    url: Option<String>,
    /// Make the junction a plain directory again. The file system that it shows stays as it is.
    #[arg(long)]
    remove: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    match &arguments.command {
        Command::Junction(junction) => change_junction(junction),
        Command::Limits(arguments) => show_limits(arguments),
    }
}

/// Sets the limits of the command line. Prints all limits, and how much of them is used.
fn show_limits(arguments: &LimitsArguments) -> Result<(), Failure> {
    let url = &arguments.url;
    let usage =
        arguments.limits.apply(&parse_url(url)?).map_err(|error| Failure::of(url, error))?;
    let limit =
        |limit: Option<u64>| limit.map_or("no limit".to_owned(), |limit| format!("limit {limit}"));
    let written = writeln!(
        std::io::stdout().lock(),
        "capacity: {} bytes used, {}\ninodes: {} used, {}",
        usage.bytes,
        limit(usage.max_bytes),
        usage.inodes,
        limit(usage.max_inodes)
    );
    written.map_err(|error| Failure::of("standard output", error))
}

fn change_junction(junction: &Junction) -> Result<(), Failure> {
    let path = &junction.path;
    let failed = |error: Errno| Failure::of(path.display(), text_of(error));
    if let Some(url) = &junction.url {
        parse_url(url)?;
    }
    check_cluster(path)?;
    let directory = open_below_mounts(path).map_err(failed)?;
    let before = device(path);
    match (&junction.url, junction.remove) {
        (Some(url), _) => {
            let set =
                rustix::fs::fsetxattr(&directory, JUNCTION, url.as_bytes(), XattrFlags::empty());
            set.map_err(failed)?;
        }
        (None, true) => rustix::fs::fremovexattr(&directory, JUNCTION).map_err(failed)?,
        (None, false) => return print(&directory, path),
    }
    drop(directory);
    let begin = Instant::now();
    while device(path) == before {
        if begin.elapsed() > LIMIT {
            let why = "the junction was changed, but the mount has not followed; see its log";
            return Err(Failure::of(path.display(), why));
        }
        thread::sleep(PAUSE);
    }
    Ok(())
}

fn text_of(error: Errno) -> String {
    match error {
        Errno::NODATA => "it is no junction".to_owned(),
        Errno::NOTEMPTY => "the directory is not empty".to_owned(),
        Errno::BUSY => "the root directory cannot be a junction".to_owned(),
        error => error.to_string(),
    }
}

fn print(directory: &OwnedFd, path: &Path) -> Result<(), Failure> {
    let mut url = [0; URL_BYTES_MAX];
    let len = rustix::fs::fgetxattr(directory, JUNCTION, &mut url[..]);
    let len = len.map_err(|error| Failure::of(path.display(), text_of(error)))?;
    let mut out = std::io::stdout().lock();
    out.write_all(&url[..len])
        .and_then(|()| out.write_all(b"\n"))
        .map_err(|error| Failure::of("standard output", error))
}

fn device(path: &Path) -> Option<u64> {
    std::fs::metadata(path).ok().map(|stat| stat.dev())
}

fn check_cluster(path: &Path) -> Result<(), Failure> {
    let mut text = vec![0; 64 << 10];
    let len = rustix::fs::getxattr(root_of(above(path)), XATTR_STAT, &mut text[..]).unwrap_or(0);
    let counters = serde_json::from_slice::<serde_json::Value>(&text[..len]).unwrap_or_default();
    match counters.get("cluster_sessions") {
        Some(_) => Ok(()),
        None => Err(Failure::of(path.display(), "it is not in a mounted cluster file system")),
    }
}

fn above(path: &Path) -> PathBuf {
    match path.parent() {
        Some(parent) if parent.as_os_str().is_empty() => ".".into(),
        Some(parent) => parent.to_owned(),
        None => path.to_owned(),
    }
}

fn root_of(path: PathBuf) -> PathBuf {
    let Ok(mut path) = path.canonicalize() else { return path };
    let inside = device(&path);
    while let Some(parent) = path.parent().filter(|parent| device(parent) == inside) {
        path = parent.to_owned();
    }
    path
}

/// Opens the directory of a junction, even if a mount hides it (see the start of this file).
fn open_below_mounts(path: &Path) -> Result<OwnedFd, Errno> {
    let name = path.file_name().ok_or(Errno::BUSY)?;
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let copy = open_tree(CWD, above(path), flags)?;
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    rustix::fs::openat(copy, name, flags, Mode::empty())
}
