//! The host kernel's side: one process per task, driven through a socket.
//!
//! Whether a process waits is read from `/proc/PID/task/TID/syscall`, which tells the number of the system
//! call only while the process is off its processor, and from `stat`, which tells whether it was
//! woken since. A wake-up happens before the waker's own call returns, so there is nothing to wait
//! for and nothing to guess. (On its way to another processor a process that was woken looks asleep to
//! `syscall` alone.)

use std::fs::File;
use std::io::{Read as _, Write as _};
use std::os::fd::OwnedFd;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::process::{Child, Command, Stdio};

use corewalk_testkit::sysv;

use crate::op::{Answer, Op, answer};
use crate::{msg, shm};

/// Set in a worker process.
const ROLE: &str = "COREWALK_IPC_WORKER";

/// A worker process, as its driver sees it.
pub(crate) struct Worker {
    child: Child,
    socket: UnixStream,
    syscall: File,
    stat: File,
    thread: i32,
}

impl Worker {
    pub(crate) fn start() -> Self {
        let (ours, theirs) = UnixStream::pair().expect("a socket");
        let child = Command::new(std::env::current_exe().expect("this binary"))
            .args(["worker_answers_until_its_driver_ends", "--exact", "--nocapture"])
            .env(ROLE, "1")
            .stdin(OwnedFd::from(theirs))
            .stdout(Stdio::null())
            .spawn()
            .expect("a worker");
        // libtest runs the worker on a thread of its own, which says its number first.
        let mut socket = ours;
        let mut length = [0; 4];
        socket.read_exact(&mut length).expect("the worker starts");
        let thread = read_words(&mut socket, u32::from_le_bytes(length))[0] as i32;
        let open = |name| File::open(format!("/proc/{}/task/{thread}/{name}", child.id()));
        let (syscall, stat) = (open("syscall").expect("proc"), open("stat").expect("proc"));
        Self { child, socket, syscall, stat, thread }
    }

    pub(crate) fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Returns the number of the thread that makes the calls.
    pub(crate) fn thread(&self) -> i32 {
        self.thread
    }

    pub(crate) fn send(&mut self, op: &Op) {
        self.socket.write_all(&frame(&op.encode())).expect("the worker reads");
    }

    /// Returns the answer, or none if the worker waits in its call.
    pub(crate) fn poll(&mut self, is_prompt: bool) -> Option<Answer> {
        loop {
            if let Some(answer) = self.try_read() {
                return Some(answer);
            }
            if !is_prompt && self.is_in_call() && self.is_asleep() && self.is_in_call() {
                return None;
            }
            std::hint::spin_loop();
            rustix_yield();
        }
    }

    /// Returns true if the worker is inside of a call that may wait, and off its processor: semtimedop(2),
    /// msgsnd(2) or msgrcv(2).
    fn is_in_call(&self) -> bool {
        let mut text = [0; 16];
        let length = self.syscall.read_at(&mut text, 0).expect("the worker lives");
        [&b"220 "[..], b"69 ", b"70 "].iter().any(|number| text[..length].starts_with(number))
    }

    /// Returns true if the worker sleeps, and was not woken.
    fn is_asleep(&self) -> bool {
        let mut text = [0; 64];
        let length = self.stat.read_at(&mut text, 0).expect("the worker lives");
        let after_name = text[..length].rsplit(|byte| *byte == b')').next();
        after_name.is_some_and(|text| text.starts_with(b" S"))
    }

    pub(crate) fn interrupt(&self) {
        sysv::send_usr1(self.pid(), self.thread).expect("the worker lives");
    }

    /// Kills the worker and waits until it is gone, and its adjustments are applied.
    pub(crate) fn end(mut self) {
        self.child.kill().expect("the worker is ours");
        self.child.wait().expect("the worker is ours");
    }

    fn try_read(&mut self) -> Option<Answer> {
        self.socket.set_nonblocking(true).expect("a socket");
        let mut length = [0; 4];
        let read = self.socket.read(&mut length);
        self.socket.set_nonblocking(false).expect("a socket");
        match read {
            Ok(4) => Some(read_words(&mut self.socket, u32::from_le_bytes(length))),
            Ok(other) => panic!("the worker has gone, {other}"),
            Err(error) if error.kind() == std::io::ErrorKind::WouldBlock => None,
            Err(error) => panic!("{error}"),
        }
    }
}

impl Drop for Worker {
    fn drop(&mut self) {
        // A test that fails leaves no process behind; one that ended has none.
        let _gone = self.child.kill();
        let _gone = self.child.wait();
    }
}

fn rustix_yield() {
    corewalk_sync::primitives::thread::yield_now();
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

/// The worker's own loop; returns at once in any other process.
pub(crate) fn serve() {
    if std::env::var_os(ROLE).is_none() {
        return;
    }
    sysv::catch_usr1().expect("a handler");
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
        Op::Msg(op) => msg::on_linux(op),
        Op::Shm(op) => shm::on_linux(op, state),
    }
}
