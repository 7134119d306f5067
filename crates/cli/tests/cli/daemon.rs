//! `corewalk ipc exec --shm` whose command leaves a process behind that has a segment attached.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read, Write as _};
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::time::Instant;

use corewalk_base::primitives::thread;
use corewalk_ipc::{IPC_PRIVATE, IPC_STAT};
use corewalk_testkit::sysv::shm;

use crate::fixtures::{Folder, LIMIT, corewalk, run, wait};

/// Says what the process is: the command, or what that leaves behind.
const ROLE: &str = "COREWALK_TEST_ROLE";

/// Where the process that stays says what it has found.
const FOUND: &str = "COREWALK_TEST_FOUND";

const ATTACHED: &str = "attached below ";

/// Not a test of its own: the command, and the process that stays.
#[test]
fn process() {
    match std::env::var(ROLE).as_deref() {
        Ok("command") => start(),
        Ok("stays") => stay(),
        _ => return,
    }
    // Nobody reads what a test would say.
    std::process::exit(0);
}

/// Starts the process that stays, waits until it has said where its memory is, and ends.
#[expect(clippy::zombie_processes, reason = "it outlives this process")]
fn start() {
    let mut command = Command::new(std::env::current_exe().expect("this program"));
    command.args(["daemon::process", "--exact", "--nocapture"]).env(ROLE, "stays");
    let stays = command.stdout(Stdio::piped()).spawn().expect("this program");
    println!("\n{ATTACHED}{}", folder_said(stays.stdout.expect("it is piped")));
}

/// Attaches a segment, and once more when it is told to; ends with its input.
fn stay() {
    let id = shm::shmget(IPC_PRIVATE, 4096, 0o600).expect("a segment");
    shm::shmat(id, 0, 0).expect("an address");
    println!("\n{ATTACHED}{}", std::env::var("COREWALK_IPC_SHM").expect("exec has a folder"));
    let mut input = std::io::stdin();
    input.read_exact(&mut [0]).expect("the test is there");
    let again = shm::shmat(id, 0, 0).map(drop);
    let nattch = shm::stat(id, IPC_STAT).map(|(_, stat)| stat.numbers[1]);
    let found = PathBuf::from(std::env::var_os(FOUND).expect("the test names it"));
    let whole = found.with_extension("whole");
    fs::write(&whole, format!("{again:?}, {nattch:?}")).expect("a folder of the test");
    fs::rename(whole, found).expect("a folder of the test");
    // Until the test lets go of it, or is gone.
    let _bytes = input.read(&mut [0]);
}

/// Returns the folder that a process names which has a segment attached.
fn folder_said(output: impl Read) -> String {
    let mut lines = BufReader::new(output).lines().map_while(Result::ok);
    let folder = lines.find_map(|line| line.strip_prefix(ATTACHED).map(str::to_owned));
    folder.expect("it says where its memory is")
}

fn until(what: &str, mut is: impl FnMut() -> bool) {
    let start = Instant::now();
    while !is() {
        assert!(start.elapsed() < LIMIT, "never: {what}");
        thread::yield_now();
    }
}

/// Runs a command with nothing to do in a namespace of its own.
fn exec() {
    assert!(run(corewalk(&["ipc", "exec", "--shm", "--", "true"])).status.success());
}

#[test]
fn memory_of_a_process_that_outlives_the_command_stays_until_it_has_ended() {
    let folder = Folder::new();
    let (found, said) = (folder.path("found"), folder.path("said"));
    let mut command = corewalk(&["ipc", "exec", "--shm", "--"]);
    command.arg(std::env::current_exe().expect("this program"));
    command.args(["daemon::process", "--exact", "--nocapture"]);
    command.env(ROLE, "command").env(FOUND, &found);
    let said_to = File::create(&said).expect("a folder of ours");
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(said_to);
    let mut exec_child: Child = command.spawn().expect("the program");
    // Both ends of the process that stays: it ends when this goes, as it does if the test fails.
    let mut input = exec_child.stdin.take().expect("it is piped");
    let memory = PathBuf::from(folder_said(exec_child.stdout.take().expect("it is piped")));
    let status = wait(&mut exec_child);
    let said = fs::read_to_string(said).expect("a folder of ours");
    assert!(status.success(), "{said}");
    assert!(memory.is_dir(), "a process has something attached");
    let line = format!("corewalk: {}: ", memory.display());
    assert!(said.contains(&line) && said.contains("attached"), "{said}");
    // Others leave it alone, too.
    exec();
    input.write_all(b"\n").expect("it is there");
    until("it has attached again", || found.exists());
    assert_eq!(fs::read_to_string(&found).expect("a folder of ours"), "Ok(()), Ok(2)");
    drop(input);
    until("its memory is gone with the next one", || {
        exec();
        !memory.exists()
    });
}

#[test]
fn control_memory_of_a_command_goes_with_it() {
    let script = "echo \"attached below $COREWALK_IPC_SHM\"; test -d \"$COREWALK_IPC_SHM\"";
    let output = run(corewalk(&["ipc", "exec", "--shm", "--", "sh", "-c", script]));
    assert!(output.status.success() && output.stderr.is_empty());
    assert!(!PathBuf::from(folder_said(&*output.stdout)).exists());
}
