//! Checks that a server serves ten thousand requests at once with bounded memory.
//!
//! SIGSTOP stops the server, and then 10,000 client threads make one request each. The kernel
//! counts the requests that wait (`waiting` in a file system of the type fusectl). When all wait,
//! the server goes on.
//!
//! Source: Linux `Documentation/filesystems/fuse/fuse.rst` (the control file system).

use std::fs;
use std::io::ErrorKind;
use std::os::unix::fs::MetadataExt as _;
use std::process::Command;
use std::time::{Duration, Instant};

use corewalk_base::primitives::thread;
use corewalk_testkit::require::{Need, skip};
use rustix::process::Signal;

use crate::fixtures::{Folder, LIMIT, Server, can_mount, counter};

const ENABLE_URING: &str = "/sys/module/fuse/parameters/enable_uring";
const CLIENTS: u64 = 10_000;
const STACK_BYTES: usize = 64 << 10;
/// The growth of memory that the test permits: 1 KiB for each client. If the server read each
/// request into a buffer of its own, 4 KiB without the data, it would grow by four times as much.
const GROWTH_KIB: u64 = CLIENTS;

fn check(transport: &str) {
    let folder = Folder::new();
    let (mount, control) = (folder.path("m"), folder.path("control"));
    let options = format!("negative_timeout=0,transport={transport}");
    let server = Server::start(&["-o", &options], &mount);
    fs::create_dir(&control).expect("the directory is made");
    let made = Command::new("mount").args(["-t", "fusectl", "none"]).arg(&control).status();
    assert!(made.expect("mount(8) starts").success());
    let connection = fs::metadata(&mount).expect("the root has attributes").dev();
    let waiting = control.join(rustix::fs::minor(connection).to_string()).join("waiting");
    let waiting = || -> u64 {
        let text = fs::read_to_string(&waiting).expect("the count is read");
        text.trim().parse().expect("a number")
    };
    let (requests, before) = (counter(&mount, "requests"), server.peak_kib());
    server.signal(Signal::STOP);
    wait_until("all threads of the server have stopped", || is_stopped(server.pid()));
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let path = mount.join(format!("absent-{number}"));
            let client = thread::Builder::new().stack_size(STACK_BYTES);
            client.spawn(move || fs::symlink_metadata(path)).expect("a thread starts")
        })
        .collect();
    wait_until("all requests wait", || waiting() >= CLIENTS);
    server.signal(Signal::CONT);
    wait_until("all clients have their answers", || clients.iter().all(|it| it.is_finished()));
    for client in clients {
        let error = client.join().expect("the client ends").expect_err("there is no such file");
        assert_eq!(error.kind(), ErrorKind::NotFound, "{error}");
    }
    let (peak, served) = (server.peak_kib(), counter(&mount, "requests") - requests);
    println!("{transport}: {served} requests, memory {before}, at most {peak} KiB");
    assert!(served >= CLIENTS && peak <= before + GROWTH_KIB, "{before}, then {peak} KiB");
}

fn wait_until(what: &str, is_true: impl Fn() -> bool) {
    let start = Instant::now();
    while !is_true() {
        assert!(start.elapsed() < LIMIT, "{what}");
        thread::sleep(Duration::from_millis(10));
    }
}

/// Returns true if SIGSTOP has stopped every thread of a process. In proc_pid_stat(5), the state
/// follows the name of the program in parentheses.
fn is_stopped(pid: u32) -> bool {
    let threads = fs::read_dir(format!("/proc/{pid}/task")).expect("the folder is read");
    threads.flatten().all(|thread| {
        let stat = fs::read_to_string(thread.path().join("stat"));
        stat.is_ok_and(|stat| stat.contains(") T "))
    })
}

#[test]
fn ten_thousand_requests_at_once_are_served_with_bounded_memory() {
    if !can_mount() {
        return;
    }
    check("dev");
    // The kernel offers io_uring if this parameter exists and is set.
    match fs::write(ENABLE_URING, "Y") {
        Ok(()) => check("uring"),
        Err(error) => skip(Need::Machine, format!("{ENABLE_URING}: {error}")),
    }
}
