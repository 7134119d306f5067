//! Tests of `corewalk ipc exec --shm` with a command that starts a process and ends before it. The
//! process has attached a segment, so the segment must stay.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use corewalk_base::primitives::thread;
use corewalk_ipc::{IPC_PRIVATE, IPC_STAT};
use corewalk_testkit::sysv::shm;

use crate::fixtures::{Folder, LIMIT, corewalk, run, wait};

/// The environment variable with the role of a child process. `command` is the command of `corewalk
/// ipc exec`, and `stays` is the daemon that this command starts.
const ROLE: &str = "COREWALK_TEST_ROLE";

/// The daemon writes its results to the file at this path.
const FOUND: &str = "COREWALK_TEST_FOUND";

/// A child process prints this text and then the path of the folder with the memory of the
/// segments.
const ATTACHED: &str = "attached below ";

/// Not a test of its own: a child process of another test runs this function to play the role in
/// `ROLE`. Without this variable it does nothing.
#[test]
fn process() {
    match std::env::var(ROLE).as_deref() {
        Ok("command") => start(),
        Ok("stays") => stay(),
        _ => return,
    }
    // Exit here, so that the test harness does not print a result.
    std::process::exit(0);
}

#[expect(clippy::zombie_processes, reason = "the child outlives this process")]
fn start() {
    let mut command =
        Command::new(std::env::current_exe().expect("the path of this program is known"));
    command.args(["daemon::process", "--exact", "--nocapture"]).env(ROLE, "stays");
    let stays = command.stdout(Stdio::piped()).spawn().expect("the test program starts");
    println!("\n{ATTACHED}{}", read_attached_directory(stays.stdout.expect("the stream is piped")));
}

fn stay() {
    let id = shm::shmget(IPC_PRIVATE, 4096, 0o600).expect("the segment is created");
    shm::shmat(id, 0, 0).expect("the segment is attached");
    println!("\n{ATTACHED}{}", std::env::var("COREWALK_IPC_SHM").expect("exec sets the variable"));
    let mut input = std::io::stdin();
    input.read_exact(&mut [0]).expect("the test writes a byte");
    let again = shm::shmat(id, 0, 0).map(drop);
    let nattch = shm::stat(id, IPC_STAT).map(|(_, stat)| stat.numbers[1]);
    let found = PathBuf::from(std::env::var_os(FOUND).expect("the test sets the variable"));
    let whole = found.with_extension("whole");
    fs::write(&whole, format!("{again:?}, {nattch:?}")).expect("the test's directory is writable");
    fs::rename(whole, found).expect("the test's directory is writable");
    let _bytes = input.read(&mut [0]);
}

fn read_attached_directory(output: impl Read) -> String {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let folder = lines.find_map(|line| line.strip_prefix(ATTACHED).map(str::to_owned));
    folder.expect("the process prints the path of its memory")
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LIMIT, "timeout: {what}");
        thread::yield_now();
    }
}

/// A new `exec` removes the folders of segments that ended processes have left.
fn exec() {
    assert!(run(corewalk(&["ipc", "exec", "--shm", "--", "true"])).status.success());
}

#[test]
fn memory_of_a_process_that_outlives_the_command_stays_until_it_has_ended() {
    let folder = Folder::new();
    let (found, stderr) = (folder.path("found"), folder.path("stderr"));
    let mut command = corewalk(&["ipc", "exec", "--shm", "--"]);
    command.arg(std::env::current_exe().expect("the path of this program is known"));
    command.args(["daemon::process", "--exact", "--nocapture"]);
    command.env(ROLE, "command").env(FOUND, &found);
    let file = File::create(&stderr).expect("the test's directory is writable");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(file);
    let mut exec_child: Child = command.spawn().expect("the program starts");
    // The daemon ends when its standard input is closed, so the test keeps the write end of the
    // pipe.
    let mut input = exec_child.stdin.take().expect("the stream is piped");
    let memory = PathBuf::from(read_attached_directory(
        exec_child.stdout.take().expect("the stream is piped"),
    ));
    let status = wait(&mut exec_child);
    let printed = fs::read_to_string(stderr).expect("the test's directory is writable");
    assert!(status.success(), "{printed}");
    assert!(memory.is_dir(), "the directory was removed while a segment was attached");
    let outer = memory.parent().expect("the segments are in an outer directory");
    let line = format!("corewalk: {}: ", outer.display());
    assert!(printed.contains(&line) && printed.contains("attached"), "{printed}");
    // The next `exec` must not remove the directory while a segment is attached.
    exec();
    input.write_all(b"\n").expect("the file exists");
    until("the process attaches a second time", || found.exists());
    assert_eq!(
        fs::read_to_string(&found).expect("the test's directory is writable"),
        "Ok(()), Ok(2)"
    );
    drop(input);
    until("the next exec removes the directory", || {
        exec();
        !outer.exists()
    });
}

#[test]
fn control_memory_of_a_command_is_removed_at_its_end() {
    let script = "echo \"attached below $COREWALK_IPC_SHM\"; test -d \"$COREWALK_IPC_SHM\"";
    let output = run(corewalk(&["ipc", "exec", "--shm", "--", "sh", "-c", script]));
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(!PathBuf::from(read_attached_directory(&*output.stdout)).exists());
}
