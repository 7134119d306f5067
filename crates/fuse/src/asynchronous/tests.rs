//! Tests of the asynchronous server. Each test sends messages to the server, as the kernel would.

mod reports;

use std::sync::Arc;
use std::sync::mpsc::{Receiver, channel};
use std::time::Duration;

use bytes::Bytes;
use corewalk::{Attr, Errno, FileKind, FileLock, Make, Name, Opened, Removal, RenameMode};
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};
use corewalk_base::primitives::thread;
use corewalk_base::{Condvar, Mutex};

use super::requests::AsyncDispatcher;
use super::*;
use crate::options::{Options, ReaddirPlus, WriteCache};
use crate::service::{Dispatch as _, Outcome, Service as _};
use crate::wire::{Features, Init, Message, Opcode};

const PATIENCE: Duration = Duration::from_secs(20);
const ROOT: u64 = crate::server::ROOT_NODE;
/// The pid of a client that `/proc` does not show: all pids are below 2^22.
const UNSEEN: u32 = u32::MAX;
/// The start of a lock that the back end grants, but whose answer is lost.
const LOST_LOCK: u64 = 99;
/// A flush of this handle fails.
const FULL: u64 = 98;
const LISTING_BYTES: u32 = 4096;

/// A back end with one file, which has the names `f` and `g`. Some of its answers are invalid.
#[derive(Default)]
struct Fake {
    calls: Mutex<Vec<String>>,
    /// While it is closed, lookups and creations of `slow`, renames of `a`, and lock requests wait.
    gate: Arc<Gate>,
    /// True after another machine has renamed the directory `dir`.
    is_renamed: AtomicBool,
    /// The size of a new file with the name `v`.
    version: AtomicU64,
    /// The number of running lookups of `v` that have loaded the size.
    asked: AtomicU64,
}

#[derive(Default)]
struct Gate {
    is_closed: Mutex<bool>,
    opened: Condvar,
}

impl Gate {
    fn set_closed(&self, is_closed: bool) {
        *self.is_closed.lock() = is_closed;
        self.opened.notify_all();
    }

    fn pass(&self) {
        let mut is_closed = self.is_closed.lock();
        while *is_closed {
            self.opened.wait(&mut is_closed);
        }
    }
}

impl Fake {
    fn call(&self, text: String) {
        self.calls.lock().push(text);
    }
}

fn file() -> Attr {
    Attr::file(5, 10).with_generation(7).with_nlink(2)
}

impl AsyncFileSystem for Fake {
    async fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(3).with_generation(7))
    }

    async fn lookup(&self, _: &AsyncNode, name: Name<'_>) -> Result<Attr, Errno> {
        self.call(format!("lookup {}", String::from_utf8_lossy(name.as_bytes())));
        match name.as_bytes() {
            b"f" | b"g" => Ok(file()),
            b"turns" => Ok(Attr::file(8, 1)),
            b"a" => Ok(Attr::dir(21)),
            b"b" => Ok(Attr::dir(22)),
            b"unnumbered" => Ok(Attr::dir(0)),
            // ORDERING: Relaxed. The test sets `is_renamed` before it sends the request, so
            // `lookup` sees the value.
            b"dir" if !self.is_renamed.load(Ordering::Relaxed) => Ok(Attr::dir(20)),
            b"slow" => {
                self.gate.pass();
                Err(Errno::NOENT)
            }
            b"v" => {
                // ORDERING: SeqCst. The test changes the size after it has seen `asked`, so this
                // load comes before the change, in one order.
                let version = self.version.load(Ordering::SeqCst);
                self.asked.fetch_add(1, Ordering::SeqCst);
                Ok(Attr::file(100, version))
            }
            _ => Err(Errno::NOENT),
        }
    }

    async fn getattr(&self, node: &AsyncNode) -> Result<Attr, Errno> {
        self.call(format!("getattr {}", node.ino()));
        Ok(match node.ino() {
            ino @ (3 | 20..=22) => Attr::dir(ino),
            // This file was a regular file in the answer to its lookup, and is a directory now.
            8 => Attr::dir(8),
            _ => file(),
        })
    }

    async fn readdir(&self, _: &AsyncNode, cookie: u64) -> Result<Vec<OwnedDirEntry>, Errno> {
        self.call(format!("readdir {cookie}"));
        Ok(match cookie {
            0 => vec![
                OwnedDirEntry::from_attr(b"f", file(), 10),
                OwnedDirEntry::from_attr(b"g", file(), 20),
            ],
            20 => vec![OwnedDirEntry::new(b"a/b", 9, FileKind::Regular, 30)],
            30 => vec![OwnedDirEntry::new(b"loop", 9, FileKind::Regular, 30)],
            _ => Vec::new(),
        })
    }

    async fn read(&self, _: &AsyncNode, _: u64, size: u32) -> Result<Bytes, Errno> {
        Ok(Bytes::from(vec![1; size as usize + 1]))
    }

    async fn make(&self, _: &AsyncNode, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.call(format!("make {}", String::from_utf8_lossy(name.as_bytes())));
        match name.as_bytes() {
            b"other" => Err(Errno::EXIST),
            b"wrong" => Ok(Attr::dir(11)),
            b"slow" => {
                self.gate.pass();
                Ok(Attr::new(13, what.mode))
            }
            _ => Ok(Attr::new(12, what.mode)),
        }
    }

    async fn remove(&self, _: &AsyncNode, name: Name<'_>, _: Removal) -> Result<(), Errno> {
        self.call(format!("remove {}", String::from_utf8_lossy(name.as_bytes())));
        if name.as_bytes() == b"unnumbered" {
            self.gate.pass();
        }
        Ok(())
    }

    async fn rename(
        &self,
        from: (&AsyncNode, Name<'_>),
        to: (&AsyncNode, Name<'_>),
        _: RenameMode,
    ) -> Result<(), Errno> {
        self.call(format!("rename {}", String::from_utf8_lossy(from.1.as_bytes())));
        if [from.1.as_bytes(), to.1.as_bytes()]
            .iter()
            .any(|name| matches!(*name, b"a" | b"unnumbered"))
        {
            self.gate.pass();
        }
        Ok(())
    }

    fn has_open_state(&self) -> bool {
        true
    }

    async fn open(&self, _: &AsyncNode, flags: u32) -> Result<Opened, Errno> {
        self.call(format!("open {flags}"));
        Ok(Opened::new(77))
    }

    async fn flush(&self, node: &AsyncNode) -> Result<(), Errno> {
        self.call("flush".to_owned());
        if node.handle() == FULL { Err(Errno::NOSPC) } else { Err(Errno::NOSYS) }
    }

    async fn fsync(&self, node: &AsyncNode, _: bool) -> Result<(), Errno> {
        self.call(format!("fsync {} {}", node.ino(), node.handle()));
        Ok(())
    }

    fn has_locks(&self) -> bool {
        true
    }

    async fn set_lock(&self, _: &AsyncNode, lock: &FileLock, _: bool) -> Result<(), Errno> {
        self.call(format!("{:?} {} to {}", lock.kind, lock.start, lock.end));
        self.gate.pass();
        if lock.start == LOST_LOCK { Err(Errno::IO) } else { Ok(()) }
    }

    async fn unlock_owner(&self, _: &AsyncNode, owner: u64, _: bool) -> Result<(), Errno> {
        self.call(format!("unlock {owner}"));
        Ok(())
    }

    async fn readlink(&self, _: &AsyncNode) -> Result<Bytes, Errno> {
        Ok(Bytes::from(vec![b'x'; 5000]))
    }
}

/// Opens the gate when it is dropped. Otherwise the runtime of a failed test would wait for a call
/// that waits at the gate.
struct OpensGate(Arc<Gate>);

impl Drop for OpensGate {
    fn drop(&mut self) {
        self.0.set_closed(false);
    }
}

struct Rig {
    _opens_gate: OpensGate,
    fs: Arc<Fake>,
    server: Arc<AsyncServer<Fake>>,
    dispatcher: AsyncDispatcher<Fake>,
    _runtime: tokio::runtime::Runtime,
}

impl Rig {
    fn new(options: Options) -> Rig {
        let runtime =
            tokio::runtime::Builder::new_multi_thread().worker_threads(3).build().unwrap();
        let handle = runtime.handle().clone();
        let fs = Arc::new(Fake::default());
        let spawn = move |future: BoxedFuture| drop(handle.spawn(future));
        let server = AsyncServer::new(Arc::clone(&fs), options, spawn).expect("start the server");
        let server = Arc::new(server);
        let words = [7, 45, 4096, u32::MAX, 0];
        let args: Vec<u8> = words.iter().flat_map(|word| word.to_ne_bytes()).collect();
        let bytes = message(Opcode::INIT, 0, 2, 0, &args);
        let init = Init::parse(Message::parse(&bytes, Features(0)).unwrap().args())
            .expect("a known version");
        let dispatcher = AsyncDispatcher::new(Arc::clone(&server), &init);
        let _opens_gate = OpensGate(Arc::clone(&fs.gate));
        Rig { _opens_gate, fs, server, dispatcher, _runtime: runtime }
    }

    fn send(&self, bytes: &[u8]) -> Receiver<Result<Vec<u8>, Errno>> {
        let (sender, answer) = channel();
        let mut buffer = vec![0; 64 << 10];
        let message = Message::parse(bytes, Features(0)).expect("the message is whole");
        match self.dispatcher.serve(&message, &mut buffer) {
            Outcome::Answer(result) => {
                sender.send(result.map(|len| buffer[..len].to_vec())).expect("the test waits");
            }
            Outcome::Silent => {}
            Outcome::Later => {
                let reply = move |body: Result<&[u8], Errno>| {
                    let _ = sender.send(body.map(<[u8]>::to_vec));
                };
                self.dispatcher.serve_later(message.to_owned(), Box::new(reply));
            }
        }
        answer
    }

    fn serve(&self, opcode: Opcode, node: u64, args: &[u8]) -> Result<Vec<u8>, Errno> {
        let answer = self.send(&message(opcode, node, 2, 1, args));
        answer.recv_timeout(PATIENCE).expect("an answer")
    }

    fn lookup(&self, name: &[u8]) -> Result<u64, Errno> {
        self.serve(Opcode::LOOKUP, ROOT, name).map(|body| word(&body, 0))
    }

    fn has_called(&self, call: &str) -> bool {
        self.fs.calls.lock().iter().any(|made| made == call)
    }

    fn wait_for(&self, what: &str, condition: impl Fn(&Rig) -> bool) {
        for _ in 0..PATIENCE.as_millis() {
            if condition(self) {
                return;
            }
            thread::sleep(Duration::from_millis(1));
        }
        panic!("{what}");
    }

    fn taken_calls(&self) -> Vec<String> {
        std::mem::take(&mut *self.fs.calls.lock())
    }
}

#[test]
fn options_that_the_server_lacks_are_refused_before_the_back_end_is_called() {
    for options in [
        Options::exclusive().with_server_permissions(),
        Options::exclusive().with_write_cache(WriteCache::Back),
        Options::exclusive().with_requests_max(0),
    ] {
        let spawn = |_: BoxedFuture| unreachable!("the options are checked first");
        let server = AsyncServer::new(Arc::new(Fake::default()), options, spawn);
        assert_eq!(server.map(drop), Err(Errno::INVAL));
    }
}

fn message(opcode: Opcode, node: u64, unique: u64, pid: u32, args: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend([40 + args.len() as u32, opcode.0].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend([unique, node].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend([0, 0, pid, 0].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(args);
    bytes
}

fn word(body: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(body[at..at + 8].try_into().unwrap())
}

fn args(words: &[u64]) -> Vec<u8> {
    words.iter().flat_map(|word| word.to_ne_bytes()).collect()
}

fn rename(to: u64, flags: u32, names: &[u8]) -> Vec<u8> {
    [&args(&[to, u64::from(flags)])[..], names].concat()
}

fn create(name: &[u8], flags: u32) -> Vec<u8> {
    let words = [flags, 0o644, 0, 0];
    [&words.map(u32::to_ne_bytes).concat()[..], name].concat()
}

fn list(rig: &Rig, handle: u64, offset: u64) -> Result<Vec<(u64, u64)>, Errno> {
    let mut words = args(&[handle, offset]);
    words.extend(LISTING_BYTES.to_ne_bytes());
    words.extend([0; 20]);
    let body = rig.serve(Opcode::READDIRPLUS, ROOT, &words)?;
    let (mut entries, mut at) = (Vec::new(), 0);
    while at < body.len() {
        entries.push((word(&body, at), word(&body, at + 8)));
        let name = u32::from_ne_bytes(body[at + 144..at + 148].try_into().unwrap()) as usize;
        at += (152 + name).next_multiple_of(8);
    }
    Ok(entries)
}

#[test]
fn two_names_of_a_file_are_one_node_with_one_generation() {
    let rig = Rig::new(Options::exclusive().with_readdirplus(ReaddirPlus::Always));
    let body = rig.serve(Opcode::LOOKUP, ROOT, b"f\0").unwrap();
    let (node, generation) = (word(&body, 0), word(&body, 8));
    assert_eq!((generation, word(&body, 40)), (0, 5));
    assert_eq!(rig.lookup(b"g\0"), Ok(node));
    let opened = rig.serve(Opcode::OPENDIR, ROOT, &[0; 8]).unwrap();
    let entries = list(&rig, word(&opened, 0), 0).unwrap();
    assert_eq!(entries[2..], [(node, 0), (node, 0)]);
    let table = &rig.server.table;
    assert!(!table.forget(node, 5) && table.forget(node, 4));
}

#[test]
fn wrong_entries_of_a_listing_are_errors() {
    let rig = Rig::new(Options::exclusive());
    let opened = rig.serve(Opcode::OPENDIR, ROOT, &[0; 8]).unwrap();
    let handle = word(&opened, 0);
    assert_eq!(list(&rig, handle, 0).unwrap().len(), 4);
    assert_eq!(list(&rig, handle, 22), Err(Errno::IO), "a name with a slash");
    assert_eq!(list(&rig, handle, 32), Err(Errno::IO), "a cookie that does not move on");
    assert_eq!(list(&rig, handle, 42), Ok(Vec::new()));
    assert_eq!(list(&rig, handle + 1, 0), Err(Errno::BADF));
}

/// Attributes of a wrong kind, a link target that is too long, and too many bytes of a read must
/// not reach the kernel.
#[test]
fn wrong_answers_of_the_back_end_are_errors() {
    let rig = Rig::new(Options::shared());
    let node = rig.lookup(b"turns\0").unwrap();
    assert_eq!(rig.serve(Opcode::GETATTR, node, &[0; 16]), Err(Errno::IO));
    assert_eq!(rig.serve(Opcode::READLINK, node, &[]), Err(Errno::NAMETOOLONG));
    let mut read = args(&[0, 0]);
    read.extend(100_u32.to_ne_bytes());
    read.extend([0; 20]);
    assert_eq!(rig.serve(Opcode::READ, node, &read).unwrap().len(), 100);
    assert_eq!(rig.serve(Opcode::CREATE, ROOT, &create(b"wrong\0", 0)), Err(Errno::IO));
}

/// If another machine has made the file, the server must leave the open to the kernel, which checks
/// the permission.
#[test]
fn file_of_another_machine_is_not_opened_without_a_permission_check() {
    let rig = Rig::new(Options::shared());
    let excl = rustix::fs::OFlags::EXCL.bits();
    assert_eq!(rig.serve(Opcode::CREATE, ROOT, &create(b"other\0", 0)), Err(Errno::STALE));
    assert_eq!(rig.serve(Opcode::CREATE, ROOT, &create(b"other\0", excl)), Err(Errno::EXIST));
    assert!(!rig.taken_calls().iter().any(|call| call.starts_with("open")));
}

/// After another machine has renamed a directory, a lookup of the old name fails. A client that
/// uses the directory must still find and make files in it.
#[test]
fn directory_that_another_machine_has_renamed_can_be_used() {
    let rig = Rig::new(Options::shared());
    let dir = rig.lookup(b"dir\0").unwrap();
    // ORDERING: Relaxed. `Fake::lookup` loads `is_renamed` for a request that the test sends later,
    // so it sees the value.
    rig.fs.is_renamed.store(true, Ordering::Relaxed);
    assert_eq!(rig.lookup(b"dir\0"), Err(Errno::NOENT));
    rig.serve(Opcode::LOOKUP, dir, b"f\0").expect("a file in the directory");
    rig.serve(Opcode::CREATE, dir, &create(b"new\0", 0)).expect("a new file in the directory");
}

/// Another machine changes a name while a request creates a file there. The new file must not be
/// cached under the name. Trap T25.
#[test]
fn trap_t25_name_that_was_invalidated_during_its_creation_is_not_cached() {
    let rig = Rig::new(Options::exclusive());
    rig.fs.gate.set_closed(true);
    let answer = rig.send(&message(Opcode::CREATE, ROOT, 2, 1, &create(b"slow\0", 0)));
    rig.wait_for("the creation runs", |rig| rig.has_called("make slow"));
    let name = Name::new(b"slow").unwrap();
    rig.server.invalidate_name(ROOT, name, &mut |_, _| ()).unwrap();
    rig.fs.gate.set_closed(false);
    let body = answer.recv_timeout(PATIENCE).expect("an answer").expect("the file is made");
    assert_eq!(word(&body, 16), 0, "the kernel must not cache the name");
    rig.taken_calls();
    assert_eq!(rig.lookup(b"slow\0"), Ok(0));
    assert_eq!(rig.taken_calls(), ["lookup slow"]);
}

/// Another machine reports the directory while the back end is asked for a name below it. The
/// kernel must not keep from before the report that the name is missing. Trap T25.
#[test]
fn trap_t25_missing_name_is_asked_for_again_after_a_report_about_its_directory() {
    let rig = Rig::new(Options::exclusive());
    let dir = rig.lookup(b"dir\0").unwrap();
    rig.taken_calls();
    rig.fs.gate.set_closed(true);
    let answer = rig.send(&message(Opcode::LOOKUP, dir, 2, 1, b"slow\0"));
    rig.wait_for("the lookup runs", |rig| rig.has_called("lookup slow"));
    rig.server.invalidate_name(ROOT, Name::new(b"dir").unwrap(), &mut |_, _| ()).unwrap();
    rig.fs.gate.set_closed(false);
    let body = answer.recv_timeout(PATIENCE).expect("an answer").expect("a missing name");
    assert_eq!(word(&body, 0), 0);
    assert_eq!(rig.taken_calls(), ["lookup slow", "lookup slow"]);
}

/// The kernel has already handled `O_CREAT`, `O_EXCL` and `O_TRUNC`, so the back end must not get
/// them.
#[test]
fn created_file_is_opened_without_the_flags_of_its_creation() {
    let rig = Rig::new(Options::exclusive());
    use rustix::fs::OFlags;
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::TRUNC | OFlags::RDWR;
    rig.serve(Opcode::CREATE, ROOT, &create(b"new\0", flags.bits())).unwrap();
    let opened = format!("open {}", OFlags::RDWR.bits());
    assert_eq!(rig.taken_calls().last(), Some(&opened));
}

/// The server has assigned the handle of an open directory, so the back end must not get it.
#[test]
fn fsync_of_a_directory_reaches_the_back_end() {
    let rig = Rig::new(Options::exclusive());
    rig.serve(Opcode::FSYNCDIR, ROOT, &args(&[9, 0])).unwrap();
    assert_eq!(rig.taken_calls(), ["fsync 3 0"]);
}

#[test]
fn acls_are_refused() {
    let rig = Rig::new(Options::exclusive());
    let name = b"system.posix_acl_access\0";
    let get = rig.serve(Opcode::GETXATTR, ROOT, &[&args(&[100])[..], name].concat());
    assert_eq!(get, Err(Errno::OPNOTSUPP));
    let set = rig.serve(Opcode::SETXATTR, ROOT, &[&args(&[0])[..], name].concat());
    assert_eq!(set, Err(Errno::OPNOTSUPP));
    let other = rig.serve(Opcode::GETXATTR, ROOT, &[&args(&[100])[..], b"user.a\0"].concat());
    assert_eq!(other, Err(Errno::NOSYS));
}

#[test]
fn interrupt_before_its_request_is_remembered() {
    let rig = Rig::new(Options::exclusive());
    rig.fs.gate.set_closed(true);
    let interrupt = message(Opcode::INTERRUPT, 0, 43, 0, &args(&[42]));
    assert!(rig.send(&interrupt).try_recv().is_err(), "an interrupt has no answer");
    let answer = rig.send(&message(Opcode::LOOKUP, ROOT, 42, UNSEEN, b"slow\0"));
    assert_eq!(answer.recv_timeout(PATIENCE).expect("an answer"), Err(Errno::INTR));
    rig.fs.gate.set_closed(false);
    rig.wait_for("the request ends", |rig| rig.server.under_way() == 0);
}

#[test]
fn cancelled_change_that_has_not_begun_is_not_made() {
    let rig = Rig::new(Options::exclusive());
    rig.fs.gate.set_closed(true);
    let lookup = rig.send(&message(Opcode::LOOKUP, ROOT, 40, 1, b"slow\0"));
    rig.wait_for("the lookup runs", |rig| !rig.fs.calls.lock().is_empty());
    let remove = rig.send(&message(Opcode::UNLINK, ROOT, 42, UNSEEN, b"slow\0"));
    rig.send(&message(Opcode::INTERRUPT, 0, 43, 0, &args(&[42])));
    assert_eq!(remove.recv_timeout(PATIENCE).expect("an answer"), Err(Errno::INTR));
    rig.fs.gate.set_closed(false);
    assert_eq!(lookup.recv_timeout(PATIENCE).expect("an answer").map(|body| word(&body, 0)), Ok(0));
    rig.wait_for("the requests end", |rig| rig.server.under_way() == 0);
    assert_eq!(rig.taken_calls(), ["lookup slow"]);
}

/// `/proc` does not show the client, so the client may be alive and handle the signal. An answer
/// `EINTR` would then be wrong, because the change takes effect.
#[test]
fn change_that_has_begun_tells_an_unseen_client_its_result() {
    for pid in [0, UNSEEN] {
        let rig = Rig::new(Options::exclusive());
        rig.fs.gate.set_closed(true);
        let create = message(Opcode::CREATE, ROOT, 42, pid, &create(b"slow\0", 0));
        let answer = rig.send(&create);
        rig.wait_for("the creation runs", |rig| rig.has_called("make slow"));
        rig.send(&message(Opcode::INTERRUPT, 0, 43, 0, &args(&[42])));
        rig.fs.gate.set_closed(false);
        let body = answer.recv_timeout(PATIENCE).expect("an answer").expect("the file is made");
        assert_eq!(word(&body, 40), 13, "the number of the new file");
        rig.wait_for("the request ends", |rig| rig.server.under_way() == 0);
    }
}

/// The requests of 20 clients wait for one answer of the back end. They must not count as running,
/// so that requests about other files can run.
#[test]
fn requests_that_wait_for_one_answer_leave_their_slots_to_others() {
    let rig = Rig::new(Options::exclusive().with_requests_max(2));
    rig.fs.gate.set_closed(true);
    let lookup = |unique, pid| rig.send(&message(Opcode::LOOKUP, ROOT, unique, pid, b"slow\0"));
    let mut waiting = vec![lookup(40, 1)];
    rig.wait_for("the lookup runs", |rig| rig.has_called("lookup slow"));
    for unique in (100..140).step_by(2) {
        waiting.push(lookup(unique, 1));
        // A future that is dropped while it waits must not change the number of running futures.
        let killed = lookup(unique + 100, UNSEEN);
        rig.lookup(b"f\0").expect("an answer beside the requests that wait");
        rig.send(&message(Opcode::INTERRUPT, 0, 43, 0, &args(&[unique + 100])));
        assert_eq!(killed.recv_timeout(PATIENCE).expect("an answer"), Err(Errno::INTR));
    }
    rig.fs.gate.set_closed(false);
    for answer in waiting {
        let body = answer.recv_timeout(PATIENCE).expect("an answer").expect("a missing name");
        assert_eq!(word(&body, 0), 0);
    }
    rig.wait_for("the requests end", |rig| rig.server.under_way() == 0);
    rig.lookup(b"g\0").expect("slots are free");
}

#[test]
fn lock_that_is_granted_beside_a_signal_is_a_success() {
    let rig = Rig::new(Options::exclusive());
    let node = rig.lookup(b"f\0").unwrap();
    rig.taken_calls();
    rig.fs.gate.set_closed(true);
    let lock = args(&[0, 77, 3, 9, 1, 0]);
    let answer = rig.send(&message(Opcode::SETLKW, node, 42, 1, &lock));
    rig.wait_for("the request waits", |rig| !rig.fs.calls.lock().is_empty());
    rig.send(&message(Opcode::INTERRUPT, 0, 43, 0, &args(&[42])));
    rig.fs.gate.set_closed(false);
    assert_eq!(answer.recv_timeout(PATIENCE).expect("an answer"), Ok(Vec::new()));
    assert_eq!(rig.taken_calls(), ["Write 3 to 9"]);
}

/// The back end grants a lock, but its answer is lost. The lock must end with its open file: for a
/// lock of an open file description, the kernel sends no flush.
#[test]
fn lock_whose_answer_was_lost_ends_with_its_file() {
    let rig = Rig::new(Options::exclusive());
    let node = rig.lookup(b"f\0").unwrap();
    rig.taken_calls();
    let lock = args(&[5, 77, LOST_LOCK, LOST_LOCK, 1, 0]);
    assert_eq!(rig.serve(Opcode::SETLK, node, &lock), Err(Errno::IO));
    rig.serve(Opcode::RELEASE, node, &args(&[5, 0, 0])).unwrap();
    assert!(rig.taken_calls().contains(&"unlock 77".to_owned()));
}

#[test]
fn flush_of_a_killed_client_is_not_dropped() {
    let rig = Rig::new(Options::exclusive().with_requests_max(1));
    let node = rig.lookup(b"f\0").unwrap();
    rig.fs.gate.set_closed(true);
    let running = rig.send(&message(Opcode::LOOKUP, ROOT, 40, 1, b"slow\0"));
    let flush = rig.send(&message(Opcode::FLUSH, node, 42, UNSEEN, &args(&[0, 0, 77])));
    rig.send(&message(Opcode::INTERRUPT, 0, 43, 0, &args(&[42])));
    // A request that waits for a lock does not count for the limit, and must start although another
    // request runs.
    rig.taken_calls();
    let lock = rig.send(&message(Opcode::SETLKW, node, 44, 1, &args(&[0, 77, 3, 9, 1, 0])));
    rig.wait_for("the lock is requested", |rig| {
        rig.fs.calls.lock().iter().any(|call| call.starts_with("Write"))
    });
    rig.fs.gate.set_closed(false);
    for answer in [running, flush, lock] {
        assert!(answer.recv_timeout(PATIENCE).expect("an answer").is_ok());
    }
    assert!(rig.taken_calls().contains(&"unlock 77".to_owned()));
}

/// The back end may write data only in its `flush`. If the locks ended before the flush, another
/// machine could read the old data under its own lock.
#[test]
fn closed_file_is_flushed_before_its_locks_end() {
    let rig = Rig::new(Options::exclusive());
    let node = rig.lookup(b"f\0").unwrap();
    rig.taken_calls();
    let closed = rig.serve(Opcode::FLUSH, node, &args(&[5, 0, 77]));
    assert_eq!(closed, Ok(Vec::new()), "the kernel goes on to send flushes");
    assert_eq!(rig.taken_calls(), ["flush", "unlock 77"]);
    assert_eq!(rig.serve(Opcode::FLUSH, node, &args(&[FULL, 0, 77])), Err(Errno::NOSPC));
    assert_eq!(rig.taken_calls(), ["flush", "unlock 77"], "the locks end in spite of the error");
}

/// If the client of a rename is killed, the kernel sends the next rename before the first one has
/// ended. Here the second rename would make a loop with the first one.
#[test]
fn second_rename_that_would_make_a_loop_with_the_first_is_refused() {
    let rig = Rig::new(Options::exclusive());
    let (a, b) = (rig.lookup(b"a\0").unwrap(), rig.lookup(b"b\0").unwrap());
    rig.lookup(b"dir\0").unwrap();
    rig.serve(Opcode::LOOKUP, a, b"f\0").unwrap();
    rig.fs.gate.set_closed(true);
    let first = rig.send(&message(Opcode::RENAME2, ROOT, 42, 1, &rename(b, 0, b"a\0a\0")));
    rig.wait_for("the first rename runs", |rig| rig.has_called("rename a"));
    let second = rig.send(&message(Opcode::RENAME2, ROOT, 44, 1, &rename(a, 0, b"b\0b\0")));
    // Only renames that move a directory to another parent wait for each other.
    let file = message(Opcode::RENAME2, ROOT, 46, 1, &rename(b, 0, b"g\0g\0"));
    let within = message(Opcode::RENAME2, ROOT, 48, 1, &rename(ROOT, 0, b"dir\0new\0"));
    for free in [file, within] {
        let answer = rig.send(&free).recv_timeout(PATIENCE).expect("an answer");
        assert_eq!(answer, Ok(Vec::new()));
    }
    rig.fs.gate.set_closed(false);
    assert_eq!(first.recv_timeout(PATIENCE).expect("an answer"), Ok(Vec::new()));
    assert_eq!(second.recv_timeout(PATIENCE).expect("an answer"), Err(Errno::INVAL));
    // `b/a/f` and `b` would be exchanged.
    let exchange = rustix::fs::RenameFlags::EXCHANGE.bits();
    for (dir, to, names) in [(ROOT, a, b"b\0f\0"), (a, ROOT, b"f\0b\0")] {
        let exchanged = rig.serve(Opcode::RENAME2, dir, &rename(to, exchange, names));
        assert_eq!(exchanged, Err(Errno::INVAL));
    }
    assert!(!rig.has_called("rename b"));
    rig.serve(Opcode::RENAME2, b, &rename(ROOT, 0, b"a\0a\0")).expect("the way back is free");
}

/// A report makes the table lose the name of a directory, before or during its move. A second
/// rename that would make a loop with the first one must still be refused.
#[test]
fn rename_that_would_make_a_loop_with_that_of_a_lost_name_is_refused() {
    for options in [Options::exclusive(), Options::shared()] {
        for (name, is_lost_before) in [("a", true), ("a", false), ("unnumbered", true)] {
            let rig = Rig::new(options.clone());
            let a = rig.lookup(format!("{name}\0").as_bytes()).unwrap();
            let b = rig.lookup(b"b\0").unwrap();
            let lose = || {
                let name = Name::new(name.as_bytes()).unwrap();
                rig.server.invalidate_name(ROOT, name, &mut |_, _| ()).unwrap();
            };
            if is_lost_before {
                lose();
            }
            rig.fs.gate.set_closed(true);
            let names = format!("{name}\0moved\0");
            let first = rename(b, 0, names.as_bytes());
            let first = rig.send(&message(Opcode::RENAME2, ROOT, 42, 1, &first));
            rig.wait_for("it runs", |rig| rig.has_called(&format!("rename {name}")));
            if !is_lost_before {
                lose();
            }
            let second = rename(a, 0, b"b\0moved\0");
            let second = rig.send(&message(Opcode::RENAME2, ROOT, 44, 1, &second));
            rig.fs.gate.set_closed(false);
            assert_eq!(first.recv_timeout(PATIENCE).expect("an answer"), Ok(Vec::new()));
            let second = second.recv_timeout(PATIENCE).expect("an answer");
            let what = format!("{name} {is_lost_before} {:?}", options.ownership);
            assert_eq!(second, Err(Errno::INVAL), "{what}");
            assert!(!rig.has_called("rename b"));
        }
    }
}

#[test]
fn end_of_the_connection_ends_queued_requests() {
    let rig = Rig::new(Options::exclusive().with_requests_max(1));
    rig.fs.gate.set_closed(true);
    let running = rig.send(&message(Opcode::LOOKUP, ROOT, 40, 1, b"slow\0"));
    rig.wait_for("the lookup runs", |rig| !rig.fs.calls.lock().is_empty());
    let queued = rig.send(&message(Opcode::GETATTR, ROOT, 42, 1, &[0; 16]));
    let release = rig.send(&message(Opcode::RELEASE, ROOT, 44, 0, &[0; 24]));
    let Rig { _opens_gate, fs, server, dispatcher, _runtime } = rig;
    drop(dispatcher);
    for answer in [running, queued] {
        assert_eq!(answer.recv_timeout(PATIENCE).expect("an answer"), Err(Errno::INTR));
    }
    fs.gate.set_closed(false);
    assert_eq!(release.recv_timeout(PATIENCE).expect("an answer"), Ok(Vec::new()));
    while server.under_way() > 0 {
        thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(Arc::strong_count(&server), 1, "nothing keeps the server");
}

/// After one name of a file is removed, the attributes that were cached through its other name are
/// old. The server must not use them, even if the table has evicted the removed name. Trap T25.
#[test]
fn trap_t25_removal_of_an_evicted_name_changes_the_other_name() {
    let rig = Rig::new(Options::exclusive());
    let node = rig.lookup(b"f\0").unwrap();
    assert_eq!(rig.lookup(b"g\0"), Ok(node));
    rig.taken_calls();
    rig.serve(Opcode::GETATTR, node, &[0; 16]).unwrap();
    assert_eq!(rig.taken_calls(), [""; 0], "the attributes are cached");
    let root = rig.server.node(ROOT).unwrap();
    let name = Name::new(b"g").unwrap();
    rig.server.table.invalidated(&root.table_node().get(), name).unwrap();
    rig.serve(Opcode::UNLINK, ROOT, b"g\0").unwrap();
    rig.serve(Opcode::GETATTR, node, &[0; 16]).unwrap();
    assert_eq!(rig.taken_calls().last().map(String::as_str), Some("getattr 5"));
}

#[test]
fn report_invalidates_a_name_once() {
    let rig = Rig::new(Options::exclusive());
    let nodes = [&b"a\0"[..], b"b\0", b"dir\0", b"f\0"].map(|name| rig.lookup(name).unwrap());
    assert_eq!(nodes[3], file().ino, "the node has the number of the back end");
    assert_eq!(rig.server.nodes_of(file().ino), [nodes[3]]);
    let invalidations = || rig.server.table.stats().invalidations;
    let before = invalidations();
    rig.server.invalidate_name(ROOT, Name::new(b"f").unwrap(), &mut |_, _| ()).unwrap();
    assert_eq!(invalidations(), before + 1);
}

#[test]
fn inode_that_the_table_drops_leaves_the_index() {
    let rig = Rig::new(Options::exclusive());
    let node = rig.lookup(b"f\0").unwrap();
    assert_eq!(rig.server.shared.identities.numbers(5), [node]);
    assert!(rig.server.table.forget(node, 1));
    rig.server.table.cache().prune();
    assert!(rig.server.shared.identities.numbers(5).is_empty());
    let again = rig.lookup(b"f\0").unwrap();
    assert_ne!(again, node);
    assert_eq!(rig.server.shared.identities.numbers(5), [again]);
}

/// The cache must refuse attributes that were requested before a change has ended.
#[test]
fn trap_t25_only_current_attributes_are_stored() {
    let rig = Rig::new(Options::exclusive());
    let node = rig.server.node(rig.lookup(b"f\0").unwrap()).unwrap();
    let shared = &rig.server.shared;
    let before = shared.now();
    let change = node.change();
    assert!(!node.store(&file(), shared.now()), "a change is under way");
    drop(change);
    assert!(!node.store(&file(), before), "a change has ended since");
    assert_eq!(node.cached(), None);
    assert!(node.store(&file().with_size(1), shared.now()));
    let (first, second) = (node.change(), node.change());
    first.end_with(file().with_size(2));
    second.end_with(file().with_size(3));
    assert_eq!(node.cached(), None, "two changes at the same time");
    node.change().end_with(file().with_size(4));
    assert_eq!(node.cached().map(|attr| attr.size), Some(4));
    assert_eq!(node.generation(), 7);
}
