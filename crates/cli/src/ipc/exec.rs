//! `corewalk ipc exec`: runs a command in a namespace.
//!
//! The command loads the preload library, which finds the namespace by environment variables. The
//! command and the programs that it starts also inherit two descriptors: of the namespace's file,
//! and of the folder with the memory of segments. `exec` waits for the command.
//!
//! `exec` passes signals of other processes on to the command. It does not pass on signals of the
//! terminal, because the kernel sends them to the command as well.
//!
//! # Exit status
//!
//! `exec` has the exit status of the command, or dies of the same signal. The status is 126 if the
//! command cannot be run in a namespace, and 127 if the command does not exist. If `exec` itself
//! fails, it is 1 or 2, as in other subcommands.
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

use super::place::{FD_ENV, Folder, NAMESPACE_ENV, Place, SHM_ENV, SHM_FD_ENV};
use super::program::Refusal;
use super::watch::Watch;
use super::{preload, program};
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The namespace: a name, or the path of its file (with a / in it). It is created if it does
    /// not exist, and stays until `corewalk ipc rm --purge`. Without this option, the command gets
    /// a new namespace in memory, which is removed when the command ends.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Use the namespace for shared memory as well. Without this option, the command uses shared
    /// memory segments of the kernel.
    #[arg(long)]
    shm: bool,
    /// The preload library, libcorewalk_ipc_preload.so. By default it is searched for in the
    /// directory of this program, and in `deps`, `../lib` and `../lib/corewalk` from there.
    #[arg(long, value_name = "PATH")]
    preload: Option<PathBuf>,
    /// The command and its arguments. Static programs and programs that gain privileges (by
    /// set-user-ID, set-group-ID or file capabilities) are refused: they cannot load the library.
    #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
    command: Vec<OsString>,
}

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
    // If `exec` itself runs in a namespace, it has inherited these variables. The command must not
    // get the values of that other namespace.
    for name in [FD_ENV, SHM_ENV, SHM_FD_ENV] {
        command.env_remove(name);
    }
    // The descriptors must stay open until the command has inherited them.
    let handed = place.hand_on();
    let mut handed_shm = None;
    if arguments.shm {
        place.make_shm()?;
        command.env(SHM_ENV, &place.shm);
        handed_shm = place.hand_on_shm();
    }
    for (name, handed) in [(FD_ENV, &handed), (SHM_FD_ENV, &handed_shm)] {
        if let Some((_, word)) = handed {
            command.env(name, word);
        }
    }
    // The handlers must be installed before the command starts. Otherwise, a signal could end
    // `exec` and leave the command running.
    let signals =
        SignalsInfo::<WithOrigin>::new([SIGHUP, SIGINT, SIGQUIT, SIGTERM, SIGUSR1, SIGUSR2]);
    let signals = signals.map_err(|error| Failure::of("signals", error))?;
    let child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => refused(name, Refusal::NotFound),
        _ => Failure::Command(126, format!("{}: {error}", name.display())),
    })?;
    drop((handed, handed_shm));
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

fn supervise(
    mut child: Child,
    signals: SignalsInfo<WithOrigin>,
    place: &Place,
) -> Result<ExitStatus, Failure> {
    let failed = |error| Failure::of("waiting for the command", error);
    // When the command has ended, another process may get its pid. A pidfd still stands for the
    // command, so `exec` sends signals by a pidfd.
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

fn pass_on(mut signals: SignalsInfo<WithOrigin>, process: OwnedFd) {
    thread::spawn(move || {
        for origin in &mut signals {
            let Some(signal) = Signal::from_named_raw(origin.signal) else { continue };
            if origin.process.is_some() {
                // Ignore an error: sending fails only if the command has ended, and `supervise`
                // notices that.
                let _sent = pidfd_send_signal(&process, signal);
            }
        }
    });
}

/// Ends `exec` as the command has ended: with the same exit status, or by the same signal.
fn ended_as(status: ExitStatus) -> Result<(), Failure> {
    if let Some(signal) = status.signal() {
        // This call returns only if the default action of `signal` does not end a process.
        let _alive = signal_hook::low_level::emulate_default_handler(signal);
        return Err(Failure::Reported(128u8.wrapping_add(signal as u8)));
    }
    match status.code() {
        Some(0) => Ok(()),
        code => Err(Failure::Reported(code.unwrap_or(1) as u8)),
    }
}
