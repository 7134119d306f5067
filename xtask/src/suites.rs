//! Test suites of other projects, and real programs, on a mount or on the System V IPC of corewalk.
//!
//! Each suite runs in new mount and pid namespaces, so that its mounts and processes end with it.
//! Otherwise a hung FUSE server would block `df`, `sync` and all programs that walk the mount
//! table. After the time limit of a command, the suite aborts the FUSE connection, kills the
//! server, and fails.
//!
//! | module | contents |
//! |---|---|
//! | `mount` | a server with its mount, and its end |
//! | `posix` | pjdfstest, fsx, stress-ng |
//! | `xattr` | extended attributes and ACLs, compared with ext4 call by call |
//! | `work` | git, tar, cargo, sqlite, postgres, fakeroot, rsync |
//! | `programs` | programs that use System V IPC; no mount |
//! | `cluster` | a cluster file system with its database |
//! | `two_mounts` | pjdfstest, fsx and programs on two mounts of a cluster file system |
//! | `crash` | a server that is killed, a server that hangs |
//! | `ipc_postgres` | postgres with shared memory in user space; no mount |
//!
//! # The program
//!
//! `COREWALK_PROGRAM` has the path of the program under test. By default it is
//! `target/release/corewalk`, and for `cargo xtask ci` `target/debug/corewalk`. The suites expect
//! three things of it.
//!
//! - `corewalk mount tmpfs MNT -o OPTIONS` stays in the foreground, and prints the line `mounted
//!   tmpfs on MNT` when the mount is ready.
//! - On SIGTERM it unmounts and exits with status 0.
//! - `corewalk stat MNT --json` prints counters.
//!
//! The suites of pjdfstest and fsx also need `corewalk-conformance`, in the folder of the program.
//!
//! A suite whose packages cannot be installed is skipped.
//!
//! Source: the upstream documentation of each suite; `unshare(1)`; the kernel's
//! `Documentation/filesystems/fuse.rst`, "Aborting a filesystem connection".

mod cluster;
mod crash;
mod ipc_postgres;
mod mount;
mod posix;
mod programs;
mod two_mounts;
mod work;
mod xattr;

use crate::{
    Outcome, checks,
    ci::Tally,
    process::{self, Ended},
};
use mount::Site;
use std::{
    env,
    path::{Path, PathBuf},
    process::{Command, ExitCode},
    time::Duration,
};

const PROGRAM: &str = "COREWALK_PROGRAM";

/// With this option, this program starts itself again inside the namespaces of a suite.
pub(crate) const INSIDE: &str = "--inside";

/// Short suites come first.
pub(crate) const CI: [&str; 33] = [
    "kill9",
    "hang",
    "fakeroot",
    "ipc-programs",
    "xattr",
    "xattr-server",
    "xattr-store",
    "pjdfstest",
    "pjdfstest-server",
    "pjdfstest-writeback",
    "pjdfstest-host",
    "pjdfstest-store",
    "pjdfstest-cluster",
    "pjdfstest-two-mounts",
    "pjdfstest-by-path",
    "pjdfstest-async",
    "fsx",
    "fsx-server",
    "fsx-writeback",
    "fsx-host",
    "fsx-store",
    "fsx-cluster",
    "fsx-two-mounts",
    "fsx-async",
    "sqlite",
    "git",
    "rsync",
    "tar",
    "programs-two-mounts",
    "stress-ng",
    "cargo",
    "postgres",
    "ipc-postgres",
];

/// With this exit status, a process inside the namespaces reports that its suite was skipped, as
/// with automake.
const SKIPPED_STATUS: i32 = 77;

const INSTALL_TRIES: u32 = 3;

const PJDFSTEST_NEEDS: &[(&str, &str)] =
    &[("setfacl", "acl"), ("cc", "gcc"), ("libacl.so", "libacl1-dev")];

const CLUSTER_NEEDS: &[(&str, &str)] = &[("pgbench", "postgresql")];

const PJDFSTEST_CLUSTER_NEEDS: &[(&str, &str)] =
    &[("setfacl", "acl"), ("cc", "gcc"), ("libacl.so", "libacl1-dev"), ("pgbench", "postgresql")];

const FSX_TWO_MOUNTS_NEEDS: &[(&str, &str)] = &[("cc", "gcc"), ("pgbench", "postgresql")];

const PROGRAMS_NEEDS: &[(&str, &str)] = &[
    ("diff", "diffutils"),
    ("git", "git"),
    ("rsync", "rsync"),
    ("setfacl", "acl"),
    ("setfattr", "attr"),
    ("pgbench", "postgresql"),
];

const XATTR_NEEDS: &[(&str, &str)] = &[("mkfs.ext4", "e2fsprogs")];

struct Suite {
    name: &'static str,
    needs: &'static [(&'static str, &'static str)],
    limit: Duration,
    run: fn(&Site) -> Outcome,
}

const SUITES: [Suite; 33] = [
    Suite { name: "pjdfstest", needs: PJDFSTEST_NEEDS, limit: minutes(15), run: posix::pjdfstest },
    Suite {
        name: "pjdfstest-server",
        needs: PJDFSTEST_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_server,
    },
    Suite {
        name: "pjdfstest-writeback",
        needs: PJDFSTEST_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_writeback,
    },
    Suite {
        name: "pjdfstest-host",
        needs: PJDFSTEST_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_host,
    },
    Suite {
        name: "pjdfstest-store",
        needs: PJDFSTEST_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_store,
    },
    Suite {
        name: "pjdfstest-cluster",
        needs: PJDFSTEST_CLUSTER_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_cluster,
    },
    Suite {
        name: "fsx-cluster",
        needs: CLUSTER_NEEDS,
        limit: minutes(15),
        run: posix::fsx_cluster,
    },
    Suite {
        name: "pjdfstest-two-mounts",
        needs: PJDFSTEST_CLUSTER_NEEDS,
        limit: minutes(15),
        run: two_mounts::pjdfstest,
    },
    Suite {
        name: "fsx-two-mounts",
        needs: FSX_TWO_MOUNTS_NEEDS,
        limit: minutes(15),
        run: two_mounts::fsx,
    },
    Suite {
        name: "programs-two-mounts",
        needs: PROGRAMS_NEEDS,
        limit: minutes(5),
        run: two_mounts::programs,
    },
    Suite {
        name: "pjdfstest-by-path",
        needs: PJDFSTEST_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_by_path,
    },
    Suite {
        name: "pjdfstest-async",
        needs: PJDFSTEST_NEEDS,
        limit: minutes(15),
        run: posix::pjdfstest_async,
    },
    Suite { name: "fsx-async", needs: &[], limit: minutes(15), run: posix::fsx_async },
    Suite { name: "xattr-store", needs: XATTR_NEEDS, limit: minutes(10), run: xattr::xattr_store },
    Suite { name: "fsx-store", needs: &[], limit: minutes(15), run: posix::fsx_store },
    Suite { name: "xattr", needs: XATTR_NEEDS, limit: minutes(10), run: xattr::xattr },
    Suite {
        name: "xattr-server",
        needs: XATTR_NEEDS,
        limit: minutes(10),
        run: xattr::xattr_server,
    },
    Suite { name: "fsx", needs: &[], limit: minutes(15), run: posix::fsx },
    Suite { name: "fsx-server", needs: &[], limit: minutes(15), run: posix::fsx_server },
    Suite { name: "fsx-writeback", needs: &[], limit: minutes(15), run: posix::fsx_writeback },
    Suite { name: "fsx-host", needs: &[], limit: minutes(15), run: posix::fsx_host },
    Suite {
        name: "stress-ng",
        needs: &[("stress-ng", "stress-ng")],
        limit: minutes(5),
        run: posix::stress_ng,
    },
    Suite { name: "git", needs: &[("git", "git")], limit: minutes(5), run: work::git },
    Suite { name: "tar", needs: &[("diff", "diffutils")], limit: minutes(8), run: work::tar },
    Suite { name: "cargo", needs: &[], limit: minutes(8), run: work::cargo },
    Suite {
        name: "sqlite",
        needs: &[("sqlite3", "sqlite3")],
        limit: minutes(5),
        run: work::sqlite,
    },
    Suite {
        name: "postgres",
        needs: &[("pgbench", "postgresql")],
        limit: minutes(5),
        run: work::postgres,
    },
    Suite {
        name: "fakeroot",
        needs: &[("fakeroot", "fakeroot")],
        limit: minutes(2),
        run: work::fakeroot,
    },
    Suite {
        name: "rsync",
        needs: &[("rsync", "rsync"), ("setfacl", "acl"), ("setfattr", "attr")],
        limit: minutes(5),
        run: work::rsync,
    },
    Suite { name: "ipc-programs", needs: &[], limit: minutes(20), run: programs::programs },
    Suite { name: "kill9", needs: &[], limit: minutes(2), run: crash::kill9 },
    Suite { name: "hang", needs: &[], limit: minutes(2), run: crash::hang },
    Suite {
        name: "ipc-postgres",
        needs: &[("pgbench", "postgresql")],
        limit: minutes(8),
        run: ipc_postgres::ipc_postgres,
    },
];

pub(crate) fn list() -> Outcome {
    SUITES.iter().for_each(|suite| println!("{}", suite.name));
    Outcome::Passed
}

pub(crate) fn run(root: &Path, names: &[&str]) -> Outcome {
    if let Some(unknown) = names.iter().find(|name| find(name).is_none()) {
        let line = format!("unknown suite {unknown}; cargo xtask suites --list prints the names");
        return Outcome::Failed(line);
    }
    let names = if names.is_empty() { CI.as_slice() } else { names };
    let mut tally = Tally::new();
    for name in names {
        tally.step(name, || run_one(root, "release", name));
    }
    tally.finish()
}

/// Runs one suite in new namespaces. The programs under test are in the folder `profile` of the
/// target folder.
pub(crate) fn run_one(root: &Path, profile: &str, name: &str) -> Outcome {
    let Some(suite) = find(name) else {
        return Outcome::Failed(format!("unknown suite {name}"));
    };
    let program = program(root, profile);
    if !program.exists() {
        let path = program.display();
        let line = format!("{path} does not exist; run cargo build --release -p corewalk-cli");
        return Outcome::Failed(line);
    }
    if has_mount(name) {
        if !Path::new("/dev/fuse").exists() {
            return Outcome::Skipped("there is no /dev/fuse".to_owned());
        }
        checks::enable_uring();
    }
    for (file, package) in suite.needs {
        if !is_available(file) && !install(package) {
            return Outcome::Skipped(format!(
                "{file} is missing and {package} cannot be installed"
            ));
        }
    }
    let Ok(this) = env::current_exe() else {
        return Outcome::Failed("this program has no path".to_owned());
    };
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--pid", "--fork", "--kill-child", "--mount-proc"])
        .args(["--propagation", "private", "--"])
        .arg(this)
        .args(["suites", INSIDE, name])
        .env(PROGRAM, program)
        .current_dir(root);
    match process::run(&mut command, suite.limit) {
        Ended::Exit(SKIPPED_STATUS) => Outcome::Skipped("its output has the reason".to_owned()),
        ended => ended.outcome(name),
    }
}

fn has_mount(name: &str) -> bool {
    !name.starts_with("ipc-")
}

/// Runs one suite, in the process that [`run_one`] has started in new namespaces.
pub(crate) fn run_inside(root: &Path, name: &str) -> Outcome {
    let Some(suite) = find(name) else {
        return Outcome::Failed(format!("unknown suite {name}"));
    };
    let site = match Site::new(root, &program(root, "release"), name) {
        Ok(site) => site,
        Err(error) => {
            return Outcome::Failed(format!("{name}: cannot set up its directory: {error}"));
        }
    };
    (suite.run)(&site)
}

pub(crate) fn inside_status(outcome: &Outcome) -> ExitCode {
    match outcome {
        Outcome::Passed => ExitCode::SUCCESS,
        Outcome::Failed(why) => {
            eprintln!("{why}");
            ExitCode::FAILURE
        }
        Outcome::Skipped(why) => {
            println!("skipped: {why}");
            ExitCode::from(SKIPPED_STATUS as u8)
        }
    }
}

fn find(name: &str) -> Option<&'static Suite> {
    SUITES.iter().find(|suite| suite.name == name)
}

fn program(root: &Path, profile: &str) -> PathBuf {
    match env::var_os(PROGRAM) {
        Some(path) => PathBuf::from(path),
        None => checks::target_folder(root).join(profile).join("corewalk"),
    }
}

fn is_available(file: &str) -> bool {
    if file.ends_with(".so") {
        return ["/usr/lib/x86_64-linux-gnu", "/usr/lib", "/usr/lib64"]
            .iter()
            .any(|folder| Path::new(folder).join(file).exists());
    }
    process::is_installed(file)
}

fn install(package: &str) -> bool {
    let mut command = Command::new("apt-get");
    command
        .args(["install", "-y", "--no-install-recommends", package])
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdout(std::process::Stdio::null());
    process::run(&mut command, minutes(5)) == Ended::Well
}

const fn minutes(count: u64) -> Duration {
    Duration::from_secs(count * 60)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuous_integration_runs_all_suites() {
        for suite in &SUITES {
            assert!(CI.contains(&suite.name), "{}", suite.name);
        }
        assert!(CI.iter().all(|name| find(name).is_some()));
    }
}
