//! The kernel's side: a process for each task, which makes the calls through libc. The test
//! controls the process through a socket.
//!
//! Two files of proc(5) show whether a process waits. `/proc/PID/task/TID/syscall` has the number
//! of the system call, but only while the process is off its processor. The file also has it for a
//! process that was woken and moves to another processor. So `stat` must also show that the process
//! sleeps.
//!
//! If a call wakes another process, it does so before it returns. So once a call has returned, the
//! test can check immediately which processes still wait.

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use corewalk_testkit::sysv;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::op::{Answer, Op, answer};
use crate::pairing::Side;
use crate::{msg, shm};

/// The time limit for a call that neither waits nor returns.
const PATIENCE: Duration = Duration::from_secs(120);

/// The interval between two checks whether a worker waits, in nanoseconds.
const LOOK_NS: i64 = 30_000;

/// The numbers of semop(2), msgsnd(2), msgrcv(2) and semtimedop(2) on x86-64.
const CALLS: [&[u8]; 4] = [b"65 ", b"69 ", b"70 ", b"220 "];

/// The environment variable that makes a process a worker.
const ROLE: &str = "COREWALK_IPC_WORKER";

/// A worker process, as seen by the test.
pub(crate) struct Worker {
    pub(crate) child: Child,
    pub(crate) socket: UnixStream,
    syscall: File,
    stat: File,
    thread: i32,
}

impl Worker {
    /// Starts a worker. `prepare` may change the command that starts it.
    pub(crate) fn start(prepare: impl FnOnce(&mut Command)) -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let mut command = Command::new(std::env::current_exe().expect("this binary"));
        command.args(["worker_answers_until_its_driver_ends", "--exact", "--nocapture"]);
        command.env(ROLE, "1").stdin(OwnedFd::from(theirs)).stdout(Stdio::null());
        prepare(&mut command);
        let child = command.spawn().expect("a worker");
        // Close the worker's end of the socket, so that the test notices the end of the worker.
        drop(command);
        // The first message of the worker is the id of the thread that makes its calls. It is not
        // the process's first thread, since libtest runs a test function on a new thread.
        let mut socket = ours;
        let mut length = [0; 4];
        socket.read_exact(&mut length).expect("the worker starts");
        let thread = read_words(&mut socket, u32::from_le_bytes(length))[0] as i32;
        socket.set_nonblocking(true).expect("a socket");
        let open = |name| File::open(format!("/proc/{}/task/{thread}/{name}", child.id()));
        let (syscall, stat) = (open("syscall").expect("proc"), open("stat").expect("proc"));
        Self { child, socket, syscall, stat, thread }
    }

    pub(crate) fn is_asleep_in(&self, calls: &[&[u8]]) -> bool {
        self.is_in(calls) && self.is_asleep() && self.is_in(calls)
    }

    fn is_in(&self, calls: &[&[u8]]) -> bool {
        let mut text = [0; 16];
        let length = self.syscall.read_at(&mut text, 0).expect("the worker lives");
        calls.iter().any(|number| text[..length].starts_with(number))
    }

    pub(crate) fn is_asleep(&self) -> bool {
        let mut text = [0; 64];
        let length = self.stat.read_at(&mut text, 0).expect("the worker lives");
        let after_name = text[..length].rsplit(|byte| *byte == b')').next();
        after_name.is_some_and(|text| text.starts_with(b" S"))
    }

    /// Returns the answer, if the worker has sent it.
    pub(crate) fn try_read(&mut self) -> Option<Answer> {
        let mut length = [0; 4];
        match self.socket.read(&mut length) {
            Ok(4) => {}
            Ok(other) => panic!("the worker has gone, {other}"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => return None,
            Err(error) => panic!("{error}"),
        }
        // The worker writes the whole answer by one call.
        Some(read_words(&mut self.socket, u32::from_le_bytes(length)))
    }
}

impl Side for Worker {
    fn send(&mut self, op: &Op) {
        self.socket.write_all(&frame(&op.encode())).expect("the worker reads");
    }

    fn poll(&mut self, is_prompt: bool) -> Option<Answer> {
        let mut patience = Patience::new();
        loop {
            if let Some(answer) = self.try_read() {
                return Some(answer);
            }
            if !is_prompt && self.is_asleep_in(&CALLS) {
                return None;
            }
            patience.wait(&self.socket);
        }
    }

    fn interrupt(&mut self) {
        sysv::send_usr1(self.child.id(), self.thread).expect("the worker lives");
    }

    fn numbers(&self) -> Vec<u32> {
        // A receiver that waited may appear in `msg_lrpid` by its thread id. Linux records the
        // thread id instead of the pid if a message goes straight to the receiver.
        vec![self.child.id(), self.thread.cast_unsigned()]
    }
}

pub(crate) struct Patience(Instant);

impl Patience {
    pub(crate) fn new() -> Self {
        Self(Instant::now())
    }

    /// Waits a moment for the worker's answer. It sleeps in poll(2): with sched_yield(2) instead,
    /// each wait took a hundred times as long on a loaded machine.
    pub(crate) fn wait(&mut self, socket: &UnixStream) {
        assert!(self.0.elapsed() < PATIENCE, "the worker neither returns nor waits");
        let timeout = Timespec { tv_sec: 0, tv_nsec: LOOK_NS };
        // The result is not needed: the caller checks again whether there is an answer.
        let _ready = poll(&mut [PollFd::new(socket, PollFlags::IN)], Some(&timeout));
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // The kernel applies the worker's undo before `wait` returns. The error of `kill` is
        // ignored, because the worker may have ended already.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn frame(words: &[i64]) -> Vec<u8> {
    let mut bytes = (words.len() as u32).to_le_bytes().to_vec();
    bytes.extend(words.iter().flat_map(|word| word.to_le_bytes()));
    bytes
}

fn read_words(socket: &mut impl std::io::Read, count: u32) -> Vec<i64> {
    let mut bytes = vec![0; count as usize * 8];
    socket.read_exact(&mut bytes).expect("a frame is whole");
    bytes.chunks(8).map(|word| i64::from_le_bytes(word.try_into().expect("eight bytes"))).collect()
}

/// Runs the worker: makes the calls that the test sends, and returns their answers. Returns
/// immediately in a process that is not a worker.
pub(crate) fn serve() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    sysv::catch_usr1().expect("a handler");
    // With the preload library, the first IPC call opens the namespace's file. Make a call now,
    // since the worker may later change to a user that may not open the file.
    assert_eq!(sysv::semctl(-1, 0, libc::GETVAL, 0), Err(libc::EINVAL));
    let mut socket = UnixStream::from(dup_stdin());
    socket.write_all(&frame(&[i64::from(sysv::thread_id())])).expect("the driver reads");
    let mut state = shm::State::default();
    loop {
        let mut length = [0; 4];
        if socket.read_exact(&mut length).is_err() {
            std::process::exit(0);
        }
        let op = Op::decode(&read_words(&mut socket, u32::from_le_bytes(length)));
        socket.write_all(&frame(&carry_out(&op, &mut state))).expect("the driver reads");
    }
}

fn dup_stdin() -> OwnedFd {
    use std::os::fd::AsFd as _;
    std::io::stdin().as_fd().try_clone_to_owned().expect("a descriptor")
}

fn carry_out(op: &Op, state: &mut shm::State) -> Answer {
    let number = |value: i32| vec![i64::from(value)];
    match op {
        Op::Get { key, nsems, flags } => answer(sysv::semget(*key, *nsems, *flags), number),
        Op::Semop { id, sops, timeout } => answer(sysv::semtimedop(*id, sops, *timeout), number),
        Op::Ctl { id, num, cmd, value } => answer(sysv::semctl(*id, *num, *cmd, *value), number),
        Op::GetAll { id } => {
            let nsems = sysv::stat(*id & 0x7fff, 20).map_or(0, |(_, stat)| stat.nsems);
            answer(sysv::getall(*id, nsems as usize), |values| {
                values.into_iter().map(i64::from).collect()
            })
        }
        Op::SetAll { id, values } => answer(sysv::setall(*id, values), number),
        Op::Stat { id, cmd } => answer(sysv::stat(*id, *cmd), |(result, stat)| {
            let mut numbers = vec![i64::from(result)];
            numbers.extend(stat.ids);
            numbers.extend([
                i64::from(stat.mode),
                stat.nsems.cast_signed(),
                i64::from(stat.has_otime),
            ]);
            numbers
        }),
        Op::Set { id, uid, gid, mode } => answer(sysv::set(*id, *uid, *gid, *mode), number),
        Op::Totals { cmd } => answer(sysv::totals(*cmd), |(result, numbers)| {
            [result].into_iter().chain(numbers).map(i64::from).collect()
        }),
        Op::ActAs { uid, gid } => answer(sysv::act_as(*uid, *gid), number),
        Op::Msg(op) => msg::by_libc(op),
        Op::Shm(op) => shm::by_libc(op, state),
    }
}
