//! Programs of other projects: how a check installs one and runs it.
//!
//! A program gets its own folder, whose name has the version, below the folder for programs. So a
//! new version of this crate never runs an old program. The output of a program goes to a file,
//! because a full pipe could block the program.
//!
//! A program that exceeds its time limit gets SIGKILL, and so do its children. If a process does
//! not die, because it waits for a hung server, the check fails and leaves the process behind.
//!
//! Source: `cargo-install(1)`; `setpgid(2)`.

use std::fs::{self, File};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use corewalk::errno_of;
use corewalk_base::primitives::thread;
use rustix::process::{Pid, Signal, kill_process_group};

use crate::answer::{Answer, Checked, Stop};

const INSTALL_LIMIT: Duration = Duration::from_secs(900);
/// How often the installation of a program is tried, because the package registry sometimes does
/// not answer.
const INSTALL_TRIES: u32 = 3;
const LAST_LINES: usize = 4;
pub(super) const KILL_LIMIT: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) version: &'static str,
}

pub(super) struct Ended {
    pub(super) status: ExitStatus,
    pub(super) output: String,
}

impl Ended {
    pub(super) fn last_lines(&self) -> String {
        let lines: Vec<&str> = self.output.lines().map(str::trim).collect();
        lines[lines.len().saturating_sub(LAST_LINES)..].join(" ")
    }
}

impl Program {
    /// Installs the program with cargo if it is missing. If that fails, the check ends as skipped.
    pub(super) fn installed(&self, folder: &Path) -> Checked<PathBuf> {
        let Program { name, version } = self;
        let root = folder.join(format!("{name}-{version}"));
        let path = root.join("bin").join(name);
        if path.exists() {
            return Ok(path);
        }
        fs::create_dir_all(&root).map_err(errno_of).must("making the folder for programs")?;
        let mut command = Command::new("cargo");
        command.args(["install", name, "--locked", "--version", version, "--root"]).arg(&root);
        let words = format!("{command:?}").replace('"', "");
        // The programs mostly wait for the file system. So they are not optimized, which would take
        // longer than it saves. A temporary target directory keeps the folder small.
        command.args(["--profile", "dev"]).env_remove("CARGO_TARGET_DIR");
        command.env("CARGO_PROFILE_DEV_OPT_LEVEL", "0").env("CARGO_PROFILE_DEV_DEBUG", "0");
        let (log, mut why) = (root.join("install.log"), String::new());
        for _ in 0..INSTALL_TRIES {
            match run(&mut command, &log, INSTALL_LIMIT) {
                Ok(ended) if ended.status.success() => return Ok(path),
                Ok(ended) => why = ended.last_lines(),
                // Without cargo, a second attempt would fail too.
                Err(Stop::Failed(text) | Stop::Skipped(text)) => {
                    why = text;
                    break;
                }
            }
        }
        Stop::skipped(format!("{name} cannot be installed by `{words}`: {why}"))
    }
}

/// Kills a command that exceeds `limit`, and fails the check.
pub(super) fn run(command: &mut Command, log: &Path, limit: Duration) -> Checked<Ended> {
    let name = command.get_program().to_string_lossy().into_owned();
    let spawned = File::create(log).and_then(|out| {
        command.stdin(Stdio::null()).stderr(out.try_clone()?).stdout(out);
        command.process_group(0).spawn()
    });
    let mut child = spawned.map_err(errno_of).must(&format!("start of {name}"))?;
    let Some(status) = wait(&mut child, limit) else {
        let group = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        // An error means that the processes have ended.
        let _ = group.map(|group| kill_process_group(group, Signal::KILL));
        return Stop::failed(match wait(&mut child, KILL_LIMIT) {
            Some(_) => format!("{name} did not end within {limit:?}"),
            None => format!("{name} hangs and cannot be killed; it waits for the file system"),
        });
    };
    let output = fs::read(log).map_err(errno_of).must("read of the output")?;
    Ok(Ended { status, output: String::from_utf8_lossy(&output).into_owned() })
}

fn wait(child: &mut Child, limit: Duration) -> Option<ExitStatus> {
    let deadline = Instant::now() + limit;
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Some(status),
            Ok(None) if Instant::now() < deadline => thread::sleep(PAUSE),
            Ok(None) | Err(_) => return None,
        }
    }
}
