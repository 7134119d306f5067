//! Servers that die and servers that hang.
//!
//! A server that is killed must cost its users an error, not a hang, and must not stand in the way
//! of the next mount. A server that hangs is simulated by stopping it; this suite is also the
//! control of all others: it proves that the limit, the abort and the clean-up work.
//!
//! Source: `fuse(4)`: requests on a lost connection fail with ENOTCONN or ECONNABORTED.

use super::mount::{Mount, OPTIONS, Site};
use crate::{
    Outcome,
    process::{self, Ended},
};
use std::{
    process::{Command, Stdio},
    time::Duration,
};

const SHORT: Duration = Duration::from_secs(20);

/// Kills the server while files are open, and mounts again in the same place.
pub(super) fn kill9(site: &Site) -> Outcome {
    check_kill9(site).unwrap_or_else(|outcome| outcome)
}

fn check_kill9(site: &Site) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start(site, OPTIONS)?;
    mount.shell("prepare", "mkdir d\necho one > d/file\nsync -f d/file")?;
    // Holds a file and a folder open, writes when told, and says how that went.
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
        spawned.map_err(|error| Outcome::Failed(format!("no shell to hold files: {error}")))?;
    wait_ready(&mut user)?;
    if mount.kill_server() != Ended::Signal(9) {
        return Err(Outcome::Failed("the server did not die of SIGKILL".to_owned()));
    }
    drop(user.stdin.take());
    let ended = process::wait(&mut user, SHORT);
    if !matches!(ended, Ended::Well | Ended::Exit(_)) {
        return Err(Outcome::Failed("a user of the dead mount hangs".to_owned()));
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
    let said = user.stdout.as_mut().map(|out| out.read_exact(&mut line));
    match (said, &line) {
        (Some(Ok(())), b"ready\n") => Ok(()),
        _ => Err(Outcome::Failed("a user cannot open files on the mount".to_owned())),
    }
}

/// Stops the server, and checks that whoever waits for it is freed and everything goes away.
pub(super) fn hang(site: &Site) -> Outcome {
    check_hang(site).unwrap_or_else(|outcome| outcome)
}

fn check_hang(site: &Site) -> Result<Outcome, Outcome> {
    let mut mount = Mount::start(site, OPTIONS)?;
    mount.signal_server("STOP");
    let mut command = Command::new("mkdir");
    command.arg(mount.path.join("never"));
    let (ended, output) = mount.run_to_end("hang", &mut command, Duration::from_secs(2));
    match ended {
        // The abort answered it before the kill did.
        Ended::TimedOut => {}
        Ended::Stuck => return Err(Outcome::Failed("the abort freed nobody".to_owned())),
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
