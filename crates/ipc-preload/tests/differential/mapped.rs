//! Runs the operations of the test with the preload library, in one process per task. All these
//! processes have one namespace mapped.
//!
//! A process that waits in an IPC call sleeps in futex(2). But a process may also sleep in futex(2)
//! until another process releases a lock. The holder of this lock is awake. So a process counts as
//! waiting only if all processes of the namespace sleep.
//!
//! The test kills every second process by SIGKILL, and also each process that must end while it is
//! in a call. The other processes end by themselves, and apply their own undo. After a SIGKILL the
//! test process recovers the namespace, as `corewalk ipc exec` does.

use std::cell::RefCell;
use std::env;
use std::fs;
use std::net::Shutdown;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::PermissionsExt as _;
use std::path::PathBuf;
use std::process::Command;
use std::rc::Rc;

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_ipc::{Backing, Namespace, NamespaceOptions, SegmentFiles};
use rustix::fs::MemfdFlags;

use crate::msg::MsgOp;
use crate::op::{Answer, Op};
use crate::pairing::{Side, Start};
use crate::process::{Patience, Worker};
use crate::shm::ShmOp;

/// futex(2), by number.
const FUTEX: [&[u8]; 1] = [b"202 "];

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Change {
    /// `EAGAIN` becomes `ENOMSG`.
    Errno,
    /// `SEM_UNDO` is left out.
    NoUndo,
    /// An injected bug: adds one to the answer of `GETNCNT` if the answer is not zero.
    Count,
    /// An injected bug: a permission bit is missing in the mode that `IPC_STAT` returns for a
    /// queue.
    Mode,
    /// An injected bug: `IPC_STAT` reports an nattch that is too low by 1.
    Attaches,
    /// An injected bug: msgrcv(2) with a negative type takes a message of any type.
    Type,
}

/// The state that all processes with the library share.
struct Common {
    namespace: Namespace,
    file: OwnedFd,
    segments: Folder,
    change: Option<Change>,
    /// The processes that have not ended.
    workers: RefCell<Vec<Rc<RefCell<Worker>>>>,
    ended: RefCell<u32>,
}

/// A temporary folder for segments. The drop removes it.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. Numbers that differ.
        let number = COUNT.fetch_add(1, Ordering::Relaxed);
        let name = format!("corewalk-differential-{}-{number}", std::process::id());
        let path = env::temp_dir().join(name);
        fs::create_dir(&path).expect("a folder");
        // All users may write in the folder, because the scripts also act as other users.
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("it is ours");
        Self(path)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // A failure changes no result.
        let _removed = fs::remove_dir_all(&self.0);
    }
}

/// A process with the library.
pub(crate) struct Preloaded {
    worker: Option<Rc<RefCell<Worker>>>,
    common: Rc<Common>,
    /// The call that has not returned.
    call: Option<Op>,
    is_interrupted: bool,
}

/// Returns a function that starts processes in a new namespace.
pub(crate) fn starter(change: Option<Change>) -> Start {
    let file = rustix::fs::memfd_create("differential", MemfdFlags::CLOEXEC).expect("a memfd");
    let segments = Folder::new();
    let backing: Box<dyn Backing> = Box::new(SegmentFiles::new(&segments.0));
    let options = NamespaceOptions { backing: Some(backing), ..NamespaceOptions::default() };
    let namespace = Namespace::open_fd(&file, options).expect("a namespace");
    let (workers, ended) = <_>::default();
    let common = Rc::new(Common { namespace, file, segments, change, workers, ended });
    Box::new(move |_| Box::new(Preloaded::start(&common)))
}

fn library() -> PathBuf {
    let test = env::current_exe().expect("this program");
    let library = test.with_file_name("libcorewalk_ipc_preload.so");
    assert!(library.exists(), "{}: cargo builds it with this test", library.display());
    library
}

impl Preloaded {
    fn start(common: &Rc<Common>) -> Self {
        let file = format!("/proc/{}/fd/{}", std::process::id(), common.file.as_raw_fd());
        let worker = Worker::start(|command: &mut Command| {
            command.env("LD_PRELOAD", library()).env("COREWALK_IPC_NAMESPACE", file);
            command.env("COREWALK_IPC_SHM", &common.segments.0);
        });
        let worker = Rc::new(RefCell::new(worker));
        common.workers.borrow_mut().push(Rc::clone(&worker));
        Self { worker: Some(worker), common: Rc::clone(common), call: None, is_interrupted: false }
    }

    fn worker(&self) -> &Rc<RefCell<Worker>> {
        self.worker.as_ref().expect("until it ends")
    }

    fn is_waiting(&self) -> bool {
        let is_asleep = || self.worker().borrow().is_asleep_in(&FUTEX);
        let workers = self.common.workers.borrow();
        is_asleep() && workers.iter().all(|worker| worker.borrow().is_asleep()) && is_asleep()
    }

    /// Returns `op`, or, if a bug is injected, an operation with this bug.
    fn changed(&self, op: &Op) -> Op {
        let mut op = op.clone();
        match (self.common.change, &mut op) {
            (Some(Change::NoUndo), Op::Semop { sops, .. }) => {
                sops.iter_mut().for_each(|(_, _, flags)| *flags &= !(libc::SEM_UNDO as i16));
            }
            (Some(Change::Type), Op::Msg(MsgOp::Receive { msgtyp, .. })) => {
                *msgtyp = (*msgtyp).max(0);
            }
            _ => {}
        }
        op
    }

    /// Changes an answer of the process if a bug is injected.
    fn change_answer(&self, answer: &mut Answer) {
        match (self.common.change, &self.call, &mut answer[..]) {
            (Some(Change::Errno), _, [-1, errno]) if *errno == i64::from(libc::EAGAIN) => {
                *errno = i64::from(libc::ENOMSG);
            }
            (Some(Change::Count), Some(Op::Ctl { cmd: libc::GETNCNT, .. }), [0, count])
                if *count > 0 =>
            {
                *count += 1;
            }
            (Some(Change::Mode), Some(Op::Msg(MsgOp::Stat { .. })), numbers @ [0, ..]) => {
                numbers[7] &= !0o200;
            }
            (Some(Change::Attaches), Some(Op::Shm(ShmOp::Stat { .. })), numbers @ [0, ..]) => {
                numbers[9] = (numbers[9] - 1).max(0);
            }
            _ => {}
        }
    }
}

impl Side for Preloaded {
    fn send(&mut self, op: &Op) {
        let asked = self.changed(op);
        self.worker().borrow_mut().send(&asked);
        self.call = Some(op.clone());
    }

    fn poll(&mut self, is_prompt: bool) -> Option<Answer> {
        let mut patience = Patience::new();
        loop {
            let read = self.worker().borrow_mut().try_read();
            if let Some(mut answer) = read {
                self.change_answer(&mut answer);
                (self.call, self.is_interrupted) = (None, false);
                return Some(answer);
            }
            if (self.is_interrupted || !is_prompt) && self.is_waiting() {
                if !self.is_interrupted {
                    return None;
                }
                // When the signal came, the call did not sleep yet: it was looking for dead
                // processes. Then it went to sleep. It sleeps now, so send the signal again.
                self.worker().borrow_mut().interrupt();
            }
            patience.wait(&self.worker().borrow().socket);
        }
    }

    fn interrupt(&mut self) {
        self.is_interrupted = true;
        self.worker().borrow_mut().interrupt();
    }

    fn numbers(&self) -> Vec<u32> {
        self.worker().borrow().numbers()
    }
}

impl Drop for Preloaded {
    fn drop(&mut self) {
        let Some(worker) = self.worker.take() else { return };
        self.common.workers.borrow_mut().retain(|other| !Rc::ptr_eq(other, &worker));
        let Some(mut worker) = Rc::into_inner(worker).map(RefCell::into_inner) else { return };
        let ended = {
            let mut ended = self.common.ended.borrow_mut();
            *ended += 1;
            *ended
        };
        if self.call.is_none() && ended % 2 == 0 && !thread::panicking() {
            worker.socket.shutdown(Shutdown::Both).expect("a socket");
            assert!(worker.child.wait().expect("it is ours").success(), "it ends well");
            return;
        }
        drop(worker);
        self.common.namespace.recover().expect("the locks are to be had");
    }
}
