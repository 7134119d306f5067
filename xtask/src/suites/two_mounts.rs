//! Suites on two mounts of one cluster file system.
//!
//! pjdfstest and fsx use a single mount. `two_mounts/alternate.c` is a library for `LD_PRELOAD`
//! that sends every second call of these programs to another mount. pjdfstest gets the same answers
//! as on one mount, because names and attributes are linearizable. fsx reads the right bytes,
//! because each of its calls holds a lock of the file.
//!
//! git, rsync, tar and cargo run on one mount, and the other mount checks their results.
//!
//! Source: `ld.so(8)`; `docs/using/cluster.md`.

use super::{
    mount::{Mount, OPTIONS, Site, Source, TRANSPORT},
    posix::{enough_passed, fsx_operations, kit, run_kit},
    work::{GIT, RSYNC, SMALL, TAR, quoted},
};
use crate::{Outcome, process::Ended};
use std::{env, fs, path::PathBuf, process::Command, time::Duration};

const LIBRARY: &str = include_str!("two_mounts/alternate.c");

/// Tests that fail on two mounts: a kernel knows neither the programs that run on another mount
/// (`ETXTBSY`), nor the mount points there (`EBUSY`).
const LOCAL: [&str; 2] = ["etxtbsy", "rmdir::ebusy"];

/// The number of runs of pjdfstest. In the first, each call goes to the next mount, and in further
/// runs to a random one.
const ALTERNATIONS: &str = "COREWALK_ALTERNATIONS";

/// Minimum number of calls on each mount in a run of pjdfstest. Usually there are about 3,400.
const CALLS_MIN: u64 = 2_000;

/// How many operations fsx makes, unless `COREWALK_FSX_OPERATIONS` is set. Each takes and drops
/// locks, which costs SQL statements.
const OPERATIONS: &str = "500";

struct Pair {
    first: Mount,
    second: Mount,
}

impl Pair {
    fn start(site: &Site) -> Result<Self, Outcome> {
        let first = Mount::start_with(site, Source::Cluster, OPTIONS)?;
        let second = first.second(site, OPTIONS)?;
        Ok(Self { first, second })
    }

    fn finish(self) -> Outcome {
        match self.second.finish() {
            Outcome::Passed => self.first.finish(),
            outcome => outcome,
        }
    }
}

struct Library {
    path: PathBuf,
    log: PathBuf,
}

impl Library {
    fn build(site: &Site) -> Result<Self, Outcome> {
        let (source, path) = (site.work().join("alternate.c"), site.work().join("alternate.so"));
        fs::write(&source, LIBRARY)
            .map_err(|error| Outcome::Failed(format!("{}: {error}", source.display())))?;
        let mut cc = Command::new("cc");
        // The headers of the C library declare that paths are not null. But tests of `EFAULT` pass
        // null paths, so the compiler must not rely on that.
        cc.args(["-shared", "-fPIC", "-Wall", "-Werror", "-fno-delete-null-pointer-checks"]);
        site.run("cc", cc.arg("-o").arg(&path).arg(&source))?;
        Ok(Self { path, log: site.work().join("calls") })
    }

    fn preload(&self, command: &mut Command, pair: &Pair, program: &str, mode: &str) {
        // The log must have the calls of this run only.
        let _ = fs::remove_file(&self.log);
        command.env("LD_PRELOAD", &self.path).env("ALTERNATE_LOG", &self.log);
        command.env("ALTERNATE_FIRST", &pair.first.path);
        command.env("ALTERNATE_SECOND", &pair.second.path);
        command.env("ALTERNATE_PROGRAM", program).env("ALTERNATE_MODE", mode);
    }

    fn check_calls(&self, least: u64) -> Result<(), Outcome> {
        let text = fs::read_to_string(&self.log).unwrap_or_default();
        let [first, second] = calls(&text);
        println!("{first} calls on the first mount, {second} on the second");
        if first.min(second) < least {
            return Err(Outcome::Failed(format!("less than {least} calls on a mount")));
        }
        Ok(())
    }
}

/// Returns the numbers of calls on both mounts. At its end, each process with the library writes a
/// line with its numbers into the log.
fn calls(log: &str) -> [u64; 2] {
    let mut sums = [0; 2];
    for line in log.lines() {
        for (sum, word) in sums.iter_mut().zip(line.split(' ')) {
            *sum += word.parse::<u64>().unwrap_or_default();
        }
    }
    sums
}

pub(super) fn pjdfstest(site: &Site) -> Outcome {
    check_pjdfstest(site).unwrap_or_else(|outcome| outcome)
}

fn check_pjdfstest(site: &Site) -> Result<Outcome, Outcome> {
    let library = Library::build(site)?;
    let mut pair = Pair::start(site)?;
    let runs: u64 = env::var(ALTERNATIONS).ok().and_then(|text| text.parse().ok()).unwrap_or(1);
    for seed in 0..runs {
        let mut command = kit(site, "pjdfstest")?;
        for test in LOCAL {
            command.args(["--except", &format!("pjdfstest:{test}")]);
        }
        command.env("ALTERNATE_SEED", seed.to_string());
        library.preload(&mut command, &pair, "pjdfstest", "paths");
        enough_passed(&run_kit(&mut pair.first, command)?)?;
        library.check_calls(CALLS_MIN)?;
    }
    Ok(pair.finish())
}

pub(super) fn fsx(site: &Site) -> Outcome {
    check_fsx(site).unwrap_or_else(|outcome| outcome)
}

fn check_fsx(site: &Site) -> Result<Outcome, Outcome> {
    if env::var(TRANSPORT).is_ok_and(|transport| transport != "dev") {
        return Err(Outcome::Skipped("only /dev/fuse has locks of the back end".to_owned()));
    }
    let library = Library::build(site)?;
    let mut pair = Pair::start(site)?;
    let operations = fsx_operations(OPERATIONS);
    let kit = || -> Result<Command, Outcome> {
        let mut command = kit(site, "fsx")?;
        command.args(["--operations", &operations]);
        Ok(command)
    };
    // Control: without locks fsx finds wrong bytes.
    let mut command = kit()?;
    library.preload(&mut command, &pair, "fsx", "unlocked");
    command.arg(&pair.first.path);
    match pair.first.run_to_end("control", &mut command, Duration::from_secs(60)) {
        (Ended::Exit(1), report) if report.contains("FAILED   fsx") => {}
        (ended, report) => {
            return Err(Outcome::Failed(format!("fsx without locks: {ended:?}: {report}")));
        }
    }
    let mut command = kit()?;
    library.preload(&mut command, &pair, "fsx", "locked");
    run_kit(&mut pair.first, command)?;
    library.check_calls(operations.parse().unwrap_or(1))?;
    Ok(pair.finish())
}

/// Builds a crate on the first mount, and runs it on the second. Then changes it on the second
/// mount, and builds it again.
const CARGO: &str = r#"
export CARGO_TARGET_DIR="$MNT/crate/target"
cargo init -q --offline --vcs none --name small crate
cd crate
for part in one two three; do
    echo "pub fn text() -> String { String::from(\"$part\") }" > "src/$part.rs"
done
cat > src/main.rs << 'END'
mod one;
mod three;
mod two;
fn main() {
    println!("{} {} {}", one::text(), two::text(), three::text());
}
#[test]
fn parts_have_texts() {
    assert_eq!(two::text(), "two");
}
END
cargo build -q --offline
test "$("$OTHER/crate/target/debug/small")" = "one two three"
cargo test -q --offline > /dev/null
sed -i s/three/3/ "$OTHER/crate/src/three.rs"
cargo build -q --offline
test "$("$OTHER/crate/target/debug/small")" = "one two 3"
rm -rf "$OTHER/crate"
test ! -e "$MNT/crate"
"#;

pub(super) fn programs(site: &Site) -> Outcome {
    check_programs(site).unwrap_or_else(|outcome| outcome)
}

fn check_programs(site: &Site) -> Result<Outcome, Outcome> {
    let mut pair = Pair::start(site)?;
    let (root, other) = (quoted(&site.root), quoted(&pair.second.path));
    for (name, script) in [("tar", TAR), ("git", GIT), ("rsync", RSYNC), ("cargo", CARGO)] {
        let start = std::time::Instant::now();
        pair.first.shell(name, &format!("ROOT={root}\nOTHER={other}\n{SMALL}{script}"))?;
        println!("{name}: {:.1} s", start.elapsed().as_secs_f64());
    }
    Ok(pair.finish())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_all_processes_are_added() {
        assert_eq!(calls("3479 3480\n14 13\n"), [3493, 3493]);
        assert_eq!(calls(""), [0, 0]);
    }
}
