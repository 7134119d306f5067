//! `corewalk ipc exec`: a command in a namespace.
//!
//! The command gets the preload library and the name of the namespace in its environment, and with
//! it everything that it starts. This process waits for it, passes on signals that somebody sent to it,
//! and ends as the command does. (A signal of the terminal has reached the command already.)
//!
//! While it waits it looks after the namespace (`watch`).
//!
//! # Exit status
//!
//! That of the command; 126 if it cannot be run here, 127 if there is none; death by the signal that the
//! command died of; 1 and 2 as everywhere if it was not even tried.
//!
//! Source: env(1), timeout(1).

use std::ffi::{OsStr, OsString};
use std::io::ErrorKind;
use std::os::fd::OwnedFd;
use std::os::unix::process::ExitStatusExt as _;
use std::path::PathBuf;
use std::process::{Child, Command, ExitStatus};

use corewalk_base::primitives::thread;
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use signal_hook::consts::{SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2};
use signal_hook::iterator::SignalsInfo;
use signal_hook::iterator::exfiltrator::WithOrigin;

use super::place::{Folder, NAMESPACE_ENV, Place, SHM_ENV};
use super::program::Refusal;
use super::watch::Watch;
use super::{preload, program};
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// Join the namespace of this name, or make it; it stays. With a slash in it: the path of its file.
    /// Without this option the command gets a namespace of its own, which goes with it.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Shared memory too is the namespace's. Without this option it is the kernel's.
    #[arg(long)]
    shm: bool,
    /// The preload library, if it is not beside this program.
    #[arg(long, value_name = "PATH")]
    preload: Option<PathBuf>,
    /// The command and its arguments.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

/// Runs the command.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let preload = preload::find(arguments.preload.as_deref())?;
    let name = &arguments.command[0];
    let folders = std::env::var_os("PATH").unwrap_or_else(|| "/bin:/usr/bin".into());
    let path = program::find(name, &folders).map_err(|refusal| refused(name, refusal))?;
    program::check(&path).map_err(|refusal| refused(name, refusal))?;
    let place = match &arguments.namespace {
        Some(word) => Place::open(word)?,
        None => {
            let folder = if arguments.shm { Some(Folder::make()?) } else { None };
            Place::anonymous(folder)?
        }
    };
    let before = std::env::var_os("LD_PRELOAD");
    let mut command = Command::new(&path);
    std::os::unix::process::CommandExt::arg0(&mut command, name);
    command
        .args(&arguments.command[1..])
        .env("LD_PRELOAD", preload::value(&preload, before.as_deref()))
        .env(NAMESPACE_ENV, &place.path);
    if arguments.shm {
        place.make_shm()?;
        command.env(SHM_ENV, &place.shm);
    } else {
        // Inside of another namespace there may be one.
        command.env_remove(SHM_ENV);
    }
    // Before the command: a signal that comes while it is started must not part us from it.
    let signals =
        SignalsInfo::<WithOrigin>::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let signals = signals.map_err(|error| Failure::of("signals", error))?;
    let child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused(name, Refusal::NotFound),
        _ => Failure::Command(126, format!("{}: {error}", name.display())),
    })?;
    let status = supervise(child, signals, &place)?;
    place.remove_marks();
    drop(place);
    ended_as(status)
}

fn refused(name: &OsStr, refusal: Refusal) -> Failure {
    let (status, why) = match refusal {
        Refusal::NotFound => (127, "No such file or directory"),
        Refusal::NotRunnable(why) => (126, why),
    };
    Failure::Command(status, format!("{}: {why}", name.display()))
}

/// Waits for the command; passes on signals, and looks after the namespace.
fn supervise(
    mut child: Child,
    signals: SignalsInfo<WithOrigin>,
    place: &Place,
) -> Result<ExitStatus, Failure> {
    let failed = |error| Failure::of("waiting for the command", error);
    // A descriptor of the process: a number could be another process's by the time of the signal.
    let pid = Pid::from_raw(child.id().cast_signed()).expect("a process has a number");
    let open = || pidfd_open(pid, PidfdFlags::empty()).map_err(|error| failed(error.into()));
    pass_on(signals, open()?);
    let process = open()?;
    let mut watch = Watch::default();
    loop {
        watch.turn(&place.namespace, Some(&process));
        if let Some(status) = child.try_wait().map_err(failed)? {
            watch.recover(&place.namespace);
            return Ok(status);
        }
    }
}

/// Passes on the signals that a process has sent to this one.
fn pass_on(mut signals: SignalsInfo<WithOrigin>, process: OwnedFd) {
    thread::spawn(move || {
        for origin in &mut signals {
            let Some(signal) = Signal::from_named_raw(origin.signal) else { continue };
            if origin.process.is_some() {
                // The command may have ended; its status says so.
                let _sent = pidfd_send_signal(&process, signal);
            }
        }
    });
}

/// Ends as the command has ended.
fn ended_as(status: ExitStatus) -> Result<(), Failure> {
    if let Some(signal) = status.signal() {
        // Returns only for a signal that cannot end a process.
        let _alive = signal_hook::low_level::emulate_default_handler(signal);
        return Err(Failure::Reported(128u8.wrapping_add(signal as u8)));
    }
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::Reported(code.unwrap_or(1) as u8)),
    }
}
