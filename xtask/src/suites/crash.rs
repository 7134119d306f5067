//! Suites in which the server is killed, or hangs.
//!
//! After the server has died, its clients must get an error and not hang, and a new mount must be
//! possible. In the suite `hang`, SIGSTOP makes the server hang. This proves for all suites that
//! the time limit, the abort and the cleanup work.
//!
//! Source: fuse(4), which says that requests on a lost connection fail with ENOTCONN or
//! ECONNABORTED.

use super::mount::{DEVICE, Mount, OPTIONS, Site};
use crate::{
    Outcome,
    process::{self, Ended},
};
use std::{
    process::{Command, Stdio},
    time::Duration,
};

const SHORT: Duration = Duration::from_secs(20);

pub(super) fn kill9(site: &Site) -> Outcome {
    check_kill9(site).unwrap_or_else(|outcome| outcome)
}

fn check_kill9(site: &Site) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start(site, OPTIONS)?;
    mount.shell("prepare", "mkdir d\necho one > d/file\nsync -f d/file")?;
    // A shell that holds a file and a directory open. After the end of its standard input, it uses
    // both, and prints whether that worked.
    let script = "cd \"$MNT/d\"\nexec 3>>file 4<.\necho ready\nread -r go\n\
                  if echo two >&3 2>/dev/null; then echo written; else echo refused; fi\n\
                  if ls /proc/self/fd/4/ 2>/dev/null; then echo listed; else echo lost; fi";
    let spawned = Command::new("sh")
        .args(["-c", script])
        .env("MNT", &mount.path)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut user =
        spawned.map_err(|error| Outcome::Failed(format!("cannot start a client: {error}")))?;
    wait_ready(&mut user)?;
    if mount.kill_server() != Ended::Signal(9) {
        return Err(Outcome::Failed("the server did not die of SIGKILL".to_owned()));
    }
    drop(user.stdin.take());
    let ended = process::wait(&mut user, SHORT);
    if !matches!(ended, Ended::Well | Ended::Exit(_)) {
        return Err(Outcome::Failed("a client of the dead mount hangs".to_owned()));
    }
    mount.detach();
    if mount.is_mounted() {
        return Err(Outcome::Failed("the dead mount cannot be detached".to_owned()));
    }
    drop(mount);
    let mut mount = Mount::start(site, OPTIONS)?;
    mount
        .shell("again", "test -z \"$(ls -A)\"\necho three > file\ntest \"$(cat file)\" = three")?;
    Ok(mount.finish())
}

fn wait_ready(user: &mut std::process::Child) -> Result<(), Outcome> {
    use std::io::Read as _;
    let mut line = [0; 6];
    let read = user.stdout.as_mut().map(|out| out.read_exact(&mut line));
    match (read, &line) {
        (Some(Ok(())), b"ready\n") => Ok(()),
        _ => Err(Outcome::Failed("a client cannot open files on the mount".to_owned())),
    }
}

/// The server is stopped by SIGSTOP. An abort of the connection must end a client's waiting call,
/// and the mount can be detached.
///
/// Over io_uring, a thread of the stopped server may have the request, and the abort waits for the
/// thread. So there the kill of the server must end the call.
pub(super) fn hang(site: &Site) -> Outcome {
    let checked = check_hang(site).and_then(|_| check_killed(site));
    checked.unwrap_or_else(|outcome| outcome)
}

fn check_killed(site: &Site) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start(site, OPTIONS)?;
    mount.signal_server("STOP");
    let mut command = Command::new("mkdir");
    command.arg(mount.path.join("never")).stdin(Stdio::null()).stderr(Stdio::null());
    let spawned = command.spawn();
    let mut client =
        spawned.map_err(|error| Outcome::Failed(format!("cannot start a client: {error}")))?;
    if process::poll(&mut client, Duration::from_secs(1)).is_some() {
        return Err(Outcome::Failed("a stopped server answered".to_owned()));
    }
    if mount.kill_server() == Ended::Stuck {
        return Err(Outcome::Failed("a stopped server cannot be killed".to_owned()));
    }
    match process::wait(&mut client, SHORT) {
        Ended::Exit(_) => {}
        ended => return Err(Outcome::Failed(format!("a client of a killed server: {ended:?}"))),
    }
    mount.detach();
    match mount.is_mounted() {
        true => Err(Outcome::Failed("the hung mount cannot be detached".to_owned())),
        false => Ok(Outcome::Passed),
    }
}

fn check_hang(site: &Site) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start(site, DEVICE)?;
    mount.signal_server("STOP");
    let mut command = Command::new("mkdir");
    command.arg(mount.path.join("never"));
    let (ended, output) = mount.run_to_end("hang", &mut command, Duration::from_secs(2));
    match ended {
        // The client's mkdir(2) has waited for the stopped server. The abort of the FUSE connection
        // must have ended it.
        Ended::TimedOut => {}
        Ended::Stuck => {
            return Err(Outcome::Failed("the abort did not free the client".to_owned()));
        }
        _ => return Err(Outcome::Failed(format!("a stopped server answered: {output}"))),
    }
    if mount.kill_server() == Ended::Stuck {
        return Err(Outcome::Failed("a stopped server cannot be killed".to_owned()));
    }
    mount.detach();
    if mount.is_mounted() {
        return Err(Outcome::Failed("the hung mount cannot be detached".to_owned()));
    }
    Ok(Outcome::Passed)
}
