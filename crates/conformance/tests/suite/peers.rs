//! Scripts from issues of JuiceFS (github.com/juicedata/juicefs), on two mounts of a cluster file
//! system. In each script, a mount of JuiceFS used a cached name or size after another mount had
//! changed it. The calls go through the kernel, which has caches of its own.
//!
//! The second mount starts later, so that the kernel of the first one has cached answers. Each
//! script returns what went wrong. A control runs the scripts on a mount that does not give up its
//! cache.

use std::fs::{self, File};
use std::io::{self, ErrorKind, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_cluster::{ClusterFs, ClusterOptions, Flaws, Url, mkfs};
use corewalk_fuse::Options;
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::rng::{Rng, Seed};
use tempfile::TempDir;

use crate::site::Site;

const ROUNDS: u64 = 20;

/// The lease time. For this time, the kernel of the first mount may keep its answers. So the second
/// mount waits for a lease time before its first change.
const LEASE: Duration = Duration::from_secs(3);

type Script = fn(&Path, &Path, u64) -> Result<(), String>;

fn run(database: &str, flaws: Flaws, scripts: &[Script]) -> Option<Vec<Result<(), String>>> {
    let postgres = Postgres::shared()?;
    let objects = TempDir::new().unwrap();
    let address = postgres.new_database(database);
    let url = format!("pg://{address}?data=file:{}", objects.path().display());
    let url = Url::parse(&url).unwrap();
    mkfs(&url, (0, 0), false).unwrap();
    let mount = |flaws| {
        let options = ClusterOptions::default().with_lease(LEASE).with_flaws(flaws);
        let fs = Arc::new(ClusterFs::open(&url, &options).unwrap());
        Some((Site::new(fs.clone(), Options::shared())?, fs))
    };
    let (first, _) = mount(Flaws::default())?;
    // The lookups make the kernel of the first mount cache an absent name and the attributes of the
    // root.
    assert!(!first.path().join("file2").exists() && first.path().join(".").exists());
    let (second, _) = mount(flaws)?;
    let rounds = |script: &Script| {
        (0..ROUNDS).try_for_each(|round| {
            let done = script(first.path(), second.path(), round);
            done.map_err(|why| format!("round {round}: {why}"))
        })
    };
    Some(scripts.iter().map(rounds).collect())
}

fn passes(database: &str, script: Script) {
    let results = run(database, Flaws::default(), &[script]).unwrap_or_default();
    results.into_iter().for_each(|result| result.unwrap());
}

fn ensure(holds: bool, why: &str) -> Result<(), String> {
    if holds { Ok(()) } else { Err(why.to_owned()) }
}

fn done<T>(what: &str, result: io::Result<T>) -> Result<T, String> {
    result.map_err(|error| format!("{what}: {error}"))
}

fn create(path: &Path) -> io::Result<File> {
    File::options().write(true).create(true).truncate(false).open(path)
}

/// JuiceFS 6593: one client deleted a file, and another one could not create it again. The kernel
/// of the second client used the cached name, and asked the server to open the deleted file.
fn recreates_a_deleted_file(a: &Path, b: &Path, _: u64) -> Result<(), String> {
    let (here, there) = (a.join("file2"), b.join("file2"));
    done("open of A", create(&here))?;
    done("chmod of B", fs::set_permissions(&there, fs::Permissions::from_mode(0o600)))?;
    done("unlink of A", fs::remove_file(&here))?;
    done("open of B", create(&there))?;
    let mode = done("stat of A", fs::metadata(&here))?.permissions().mode();
    ensure(mode & 0o777 != 0o600, "the new file has the mode of the deleted one")?;
    done("unlink of B", fs::remove_file(&there))?;
    ensure(!here.exists(), "A finds the removed file")
}

/// JuiceFS 6597: a client renamed a directory. Another client created a file by the directory's old
/// path, and the file was lost.
fn creates_nothing_below_an_old_path(a: &Path, b: &Path, _: u64) -> Result<(), String> {
    let (active, backup) = (a.join("active"), b.join("backup"));
    done("mkdir of A", fs::create_dir(&active))?;
    ensure(active.exists() && b.join("active").exists(), "the directory is missing")?;
    done("mkdir of B", fs::create_dir(&backup))?;
    done("rename of B", fs::rename(b.join("active"), &backup))?;
    let opened = create(&active.join("file0")).map(drop).map_err(|error| error.kind());
    ensure(opened == Err(ErrorKind::NotFound), &format!("open of A: {opened:?}"))?;
    // The script repeats this with a rename and a creation at the same time. A file that is made
    // before the rename moves with the directory.
    done("rename of A", fs::rename(a.join("backup"), &active))?;
    done("mkdir of B", fs::create_dir(&backup))?;
    let opened = thread::scope(|scope| {
        let opened = scope.spawn(|| create(&active.join("file0")).is_ok());
        let renamed = fs::rename(b.join("active"), &backup);
        (opened.join().expect("the thread ends"), renamed)
    });
    done("rename of B", opened.1)?;
    for mount in [a, b] {
        let is_there = mount.join("backup/file0").exists();
        ensure(is_there == opened.0, "the file is lost, or was made in spite of an error")?;
    }
    done("removal by A", fs::remove_dir_all(a.join("backup")))
}

/// JuiceFS 6323: a client appended to a file, and another one read only as many bytes as its kernel
/// knew. The script of 6345 and 6309 also rewrites the file.
fn reads_appended_bytes(a: &Path, b: &Path, round: u64) -> Result<(), String> {
    let mut rng = Rng::new(Seed(round));
    let (here, there) = (a.join("shared"), b.join("shared"));
    let size = if round % 4 == 3 { 1 << 17 | rng.below(1 << 21) } else { rng.below(20_000) };
    let mut expected = vec![0; size as usize];
    rng.fill(&mut expected);
    done("write of A", fs::write(&here, &expected))?;
    for part in [1, 4096, 32 << 10] {
        let known = done("stat of B", fs::metadata(&there))?.len();
        ensure(known == expected.len() as u64, "B does not see the size")?;
        let mut more = vec![0; part];
        rng.fill(&mut more);
        let mut file = done("open of A", File::options().append(true).open(&here))?;
        done("append of A", file.write_all(&more))?;
        drop(file);
        expected.extend_from_slice(&more);
        let read = done("read of B", fs::read(&there))?;
        ensure(read == expected, &format!("B read {} of {} bytes", read.len(), expected.len()))?;
    }
    let mut end = [0; 1024];
    let from = expected.len() - end.len();
    let file = done("open of B", File::open(&there))?;
    done("read of B", file.read_exact_at(&mut end, from as u64))?;
    ensure(end == expected[from..], "B read a wrong end")
}

/// JuiceFS 2774: a client removed a directory. Another client still had the directory in its
/// caches, and could make a file in it.
fn makes_nothing_in_a_removed_directory(a: &Path, b: &Path, _: u64) -> Result<(), String> {
    let there = b.join("test");
    done("mkdir of A", fs::create_dir(a.join("test")))?;
    done("stat of B", fs::metadata(&there))?;
    let open = done("open of B", File::open(&there))?;
    done("rmdir of A", fs::remove_dir(a.join("test")))?;
    let touched = create(&there.join("a")).map(drop).map_err(|error| error.kind());
    ensure(touched == Err(ErrorKind::NotFound), &format!("touch of B: {touched:?}"))?;
    let made = rustix::fs::mkdirat(&open, "a", rustix::fs::Mode::from(0o755));
    ensure(made.is_err(), "B made a directory in the removed one, which it has open")?;
    ensure(!there.exists() && !a.join("test").exists(), "the removed directory is found")
}

#[test]
fn juicefs_6593_deleted_file_is_created_again() {
    passes("j6593", recreates_a_deleted_file);
}

#[test]
fn juicefs_6597_nothing_is_created_below_an_old_path() {
    passes("j6597", creates_nothing_below_an_old_path);
}

#[test]
fn juicefs_6323_appended_bytes_are_read() {
    passes("j6323", reads_appended_bytes);
}

#[test]
fn juicefs_2774_nothing_is_made_in_a_removed_directory() {
    passes("j2774", makes_nothing_in_a_removed_directory);
}

#[test]
fn control_each_script_fails_on_a_mount_that_keeps_its_cache() {
    let flaws = Flaws { keeps_after_intent: true, ..Flaws::default() };
    let scripts: [Script; 4] = [
        recreates_a_deleted_file,
        creates_nothing_below_an_old_path,
        reads_appended_bytes,
        makes_nothing_in_a_removed_directory,
    ];
    let results = run("control", flaws, &scripts).unwrap_or_default();
    assert!(results.iter().all(Result::is_err), "{results:?}");
}
