//! The programs that serve a mount, as they are found on the machine.
//!
//! All timeouts are 0, so that the kernel asks the server each time: with timeouts a table of
//! metadata measures the kernel's cache. Each peer passes a directory on a tmpfs through; corewalk
//! is its own file system in memory.
//!
//! Source: bindfs(1); passthrough_ll.c of libfuse's examples; `corewalk mount --help`.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use anyhow::{Context as _, ensure};

/// Where Debian puts the examples of libfuse.
const EXAMPLES: &str = "/usr/share/doc/libfuse3-dev/examples";

/// A program with its arguments.
pub(crate) struct Program {
    file: PathBuf,
    args: Vec<OsString>,
}

impl Program {
    /// Returns the program in `file`, without arguments.
    pub(crate) fn new(file: impl Into<PathBuf>) -> Program {
        Program { file: file.into(), args: vec![] }
    }

    fn with(mut self, args: &[&dyn AsRef<std::ffi::OsStr>]) -> Program {
        self.args.extend(args.iter().map(|&arg| arg.as_ref().to_owned()));
        self
    }

    /// Returns the command that starts it.
    pub(crate) fn into_command(self) -> Command {
        let mut command = Command::new(self.file);
        command.args(self.args);
        command
    }
}

/// Returns corewalk's own mount of a tmpfs.
///
/// The program is the one that `COREWALK_BIN` names, the one that runs if it is called `corewalk`,
/// or the one beside it.
///
/// # Errors
/// If there is none.
pub(crate) fn ours(_source: &Path, mount_point: &Path) -> anyhow::Result<Program> {
    let me = std::env::current_exe().context("the program does not know its file")?;
    let file = match std::env::var_os("COREWALK_BIN") {
        Some(file) => PathBuf::from(file),
        None => me.with_file_name("corewalk"),
    };
    ensure!(file.is_file(), "there is no {}: set COREWALK_BIN", file.display());
    let options = &"entry_timeout=0,attr_timeout=0,negative_timeout=0";
    Ok(Program::new(file).with(&[&"mount", &"tmpfs", &mount_point, &"-o", options]))
}

/// Returns bindfs, which passes through by libfuse's high-level interface.
///
/// # Errors
/// If it is not installed.
pub(crate) fn bindfs(source: &Path, mount_point: &Path) -> anyhow::Result<Program> {
    let options = &"entry_timeout=0,attr_timeout=0,negative_timeout=0";
    Ok(find("bindfs")?.with(&[&"-f", &"-o", options, &source, &mount_point]))
}

/// Returns libfuse's high-performance example, as `passthrough_hp` in the path.
///
/// # Errors
/// If it is not there: it is an example that somebody has to build.
pub(crate) fn passthrough_hp(source: &Path, mount_point: &Path) -> anyhow::Result<Program> {
    Ok(find("passthrough_hp")?.with(&[&"--nocache", &source, &mount_point]))
}

/// Returns libfuse's low-level example, as `passthrough_ll` in the path or built in `build` from
/// what the package of its documentation has.
///
/// # Errors
/// If it is neither there nor can it be built.
pub(crate) fn passthrough_ll(
    source: &Path,
    mount_point: &Path,
    build: &Path,
) -> anyhow::Result<Program> {
    let program = match find("passthrough_ll") {
        Ok(program) => program,
        Err(_) => Program::new(build_passthrough_ll(build)?),
    };
    let source = format!("source={},cache=never,timeout=0", source.display());
    Ok(program.with(&[&"-f", &"-o", &source, &mount_point]))
}

fn build_passthrough_ll(build: &Path) -> anyhow::Result<PathBuf> {
    let example = Path::new(EXAMPLES).join("passthrough_ll.c");
    ensure!(example.is_file(), "passthrough_ll is not in the path, and {EXAMPLES} has no source");
    let file = build.join("passthrough_ll");
    let status = Command::new("cc")
        .args(["-O2", "-D_FILE_OFFSET_BITS=64", "-I/usr/include/fuse3", "-o"])
        .args([file.as_os_str(), example.as_os_str()])
        .args(["-lfuse3", "-lpthread"])
        .stderr(Stdio::null())
        .status();
    ensure!(status.context("there is no cc")?.success(), "passthrough_ll.c cannot be built here");
    Ok(file)
}

/// Returns a program in the path.
fn find(name: &str) -> anyhow::Result<Program> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let file = std::env::split_paths(&path).map(|folder| folder.join(name)).find(|p| p.is_file());
    file.map(Program::new).with_context(|| format!("{name} is not installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn program_that_is_not_installed_is_named() {
        let error = find("no-such-program").err().expect("it is not there");
        assert!(error.to_string().contains("no-such-program"));
        assert!(find("sh").is_ok());
    }
}
