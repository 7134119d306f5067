//! Tests of requests that run later, and of requests that panic.

use std::sync::mpsc::channel;
use std::sync::{OnceLock, Weak};

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Caller, FileSystem, Name};
use corewalk_base::Mutex;

use super::*;
use crate::hooked::Hooked;
use crate::options::Options;
use crate::server::{NewFile, WriteOrigin};
use crate::service::Service as _;

const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
const ROOT: u64 = crate::server::ROOT_NODE;
const PATIENCE: Duration = Duration::from_secs(30);
const RETRIES: u64 = PAUSES.len() as u64;

pub(super) fn message(opcode: Opcode, node: u64, args: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    bytes.extend([40 + args.len() as u32, opcode.0].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend([2, node].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend([0; 16]);
    bytes.extend(args);
    bytes
}

pub(super) fn dispatcher(fs: Arc<dyn FileSystem>) -> Arc<Dispatcher> {
    let options = Options::exclusive().with_write_bytes_max(64 << 10);
    let server = Arc::new(Server::new(fs, options).expect("start a server"));
    let mut args = Vec::new();
    for word in [7, 45, 4096, u32::MAX, 0] {
        args.extend(u32::to_ne_bytes(word));
    }
    let bytes = message(Opcode::INIT, 0, &args);
    let message = Message::parse(&bytes, Features(0)).expect("the message is whole");
    let init = Init::parse(message.args()).expect("the version is supported");
    Arc::new(Dispatcher::new(server, &init))
}

fn serve(dispatcher: &Dispatcher, bytes: &[u8]) -> Result<Vec<u8>, Errno> {
    let mut buffer = vec![0; dispatcher.payload_bytes()];
    let message = Message::parse(bytes, dispatcher.features()).expect("the message is whole");
    match dispatcher.serve(&message, &mut buffer) {
        Outcome::Answer(result) => result.map(|len| buffer[..len].to_vec()),
        outcome => panic!("{outcome:?} instead of an answer"),
    }
}

fn serve_later(
    dispatcher: &Arc<Dispatcher>,
    bytes: &[u8],
) -> impl FnOnce() -> Result<Vec<u8>, Errno> + use<> {
    let (send, answer) = channel();
    let message = Message::parse(bytes, dispatcher.features()).expect("the message is whole");
    let reply = move |result: Result<&[u8], Errno>| {
        send.send(result.map(<[u8]>::to_vec)).expect("the test waits for the answer");
    };
    dispatcher.serve_later(message.to_owned(), Box::new(reply));
    move || answer.recv_timeout(PATIENCE).expect("the offload thread answers")
}

fn is_later(dispatcher: &Dispatcher, bytes: &[u8]) -> bool {
    let message = Message::parse(bytes, dispatcher.features()).expect("the message is whole");
    dispatcher.serve(&message, &mut [0; 256]) == Outcome::Later
}

fn write(node: u64, data: &[u8]) -> Vec<u8> {
    let mut args = vec![0; 40];
    args[16..20].copy_from_slice(&(data.len() as u32).to_ne_bytes());
    args.extend(data);
    message(Opcode::WRITE, node, &args)
}

fn make(dispatcher: &Dispatcher, name: &[u8]) -> u64 {
    let new = NewFile::new(0o100_644);
    dispatcher.requests.server.make(CALLER, ROOT, name, &new).expect("make the file").node
}

#[test]
fn write_succeeds_after_a_forget_has_freed_space() {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(8192));
    let dispatcher = dispatcher(Arc::new(fs));
    let (old, new) = (make(&dispatcher, b"old"), make(&dispatcher, b"new"));
    let full = dispatcher.requests.server.write(CALLER, old, 0, 0, &[1; 8192], WriteOrigin::Call);
    assert_eq!(full, Ok(8192));
    let request = write(new, &[2; 4096]);
    assert_eq!(serve(&dispatcher, &message(Opcode::UNLINK, ROOT, b"old\0")), Ok(Vec::new()));
    assert!(is_later(&dispatcher, &request), "the kernel still holds the removed file");
    let forget = message(Opcode::FORGET, old, &1_u64.to_ne_bytes());
    let forget = Message::parse(&forget, dispatcher.features()).expect("the message is whole");
    assert_eq!(dispatcher.serve(&forget, &mut []), Outcome::Silent);
    let answer = serve_later(&dispatcher, &request)().expect("there is space");
    assert_eq!(answer, 4096_u64.to_le_bytes());
    let mut content = [0; 4096];
    assert_eq!(dispatcher.requests.server.read(new, 0, 0, &mut content), Ok(4096));
    assert_eq!(content, [2; 4096]);
}

#[test]
fn request_without_space_is_repeated_a_few_times() {
    let fs = Arc::new(Hooked::new(|_, _| {}));
    let dispatcher = dispatcher(fs.clone());
    let mkdir = |name: &[u8]| message(Opcode::MKDIR, ROOT, &[&[0; 8], name].concat());
    fs.fill_for(RETRIES);
    assert!(is_later(&dispatcher, &mkdir(b"a\0")));
    let made = serve_later(&dispatcher, &mkdir(b"a\0"))().expect("the last try succeeds");
    assert_eq!((made.len(), fs.is_full_for()), (128, 0));
    fs.fill_for(RETRIES + 2);
    assert!(is_later(&dispatcher, &mkdir(b"b\0")));
    assert_eq!(serve_later(&dispatcher, &mkdir(b"b\0"))(), Err(Errno::NOSPC));
    assert_eq!(fs.is_full_for(), 1);
}

/// A retry that fails with another error than `ENOSPC` is the last retry.
#[test]
fn retry_that_fails_otherwise_is_the_answer() {
    let fs = Arc::new(Hooked::new(|_, _| {}));
    let dispatcher = dispatcher(fs.clone());
    let request = message(Opcode::MKDIR, ROOT, b"\0\0\0\0\0\0\0\0a\0");
    fs.fill_for(1);
    assert!(is_later(&dispatcher, &request));
    make(&dispatcher, b"a");
    assert_eq!(serve_later(&dispatcher, &request)(), Err(Errno::EXIST));
}

#[test]
fn fsync_that_waits_delays_no_other_request() {
    let (wake, woken) = channel::<()>();
    let (started, starts) = channel();
    let (woken, started) = (Mutex::new(woken), Mutex::new(started));
    let fs = Hooked::new(move |what, _| {
        if what == "fsync" {
            started.lock().send(thread::current().id()).expect("the test waits");
            woken.lock().recv().expect("the test wakes the fsync");
        }
    });
    let dispatcher = dispatcher(Arc::new(fs));
    let node = make(&dispatcher, b"file");
    let (fsync, getattr) =
        (message(Opcode::FSYNC, node, &[0; 16]), message(Opcode::GETATTR, node, &[0; 16]));
    assert!(is_later(&dispatcher, &fsync));
    let answer = serve_later(&dispatcher, &fsync);
    let ran_on = starts.recv_timeout(PATIENCE).expect("the fsync starts");
    assert_ne!(ran_on, thread::current().id());
    assert_eq!(serve(&dispatcher, &getattr).map(|body| body.len()), Ok(104));
    wake.send(()).expect("the fsync waits");
    assert_eq!(answer(), Ok(Vec::new()));
}

/// The last transport thread may drop the dispatcher while an offload thread runs an fsync. The
/// drop must wait until the fsync has ended.
#[test]
fn drop_waits_for_requests_that_run_later() {
    let (wake, woken) = channel::<()>();
    let woken = Mutex::new(woken);
    let fs = Hooked::new(move |what, _| {
        if what == "fsync" {
            woken.lock().recv().expect("the test wakes the fsync");
        }
    });
    let dispatcher = dispatcher(Arc::new(fs));
    let server = Arc::clone(&dispatcher.requests.server);
    let node = make(&dispatcher, b"file");
    let answer = serve_later(&dispatcher, &message(Opcode::FSYNC, node, &[0; 16]));
    let dropping = thread::spawn(move || drop(dispatcher));
    wake.send(()).expect("the fsync waits");
    dropping.join().expect("the dispatcher is dropped");
    assert_eq!(Arc::strong_count(&server), 1, "no request is left");
    assert_eq!(answer(), Ok(Vec::new()));
}

#[test]
fn request_that_panics_gets_an_error_and_the_next_one_works() {
    let fs = Hooked::new(|what, name| assert!((what, name) != ("lookup", b"panic"), "on purpose"));
    let dispatcher = dispatcher(Arc::new(fs));
    make(&dispatcher, b"file");
    dispatcher.requests.server.vfs().prune();
    let lookup = |name: &[u8]| serve(&dispatcher, &message(Opcode::LOOKUP, ROOT, name));
    for panics in 1..=2 {
        assert_eq!(lookup(b"panic\0"), Err(Errno::IO));
        assert_eq!(dispatcher.requests.server.counters().panics, panics);
        assert_eq!(lookup(b"file\0").map(|body| body.len()), Ok(128));
    }
}

#[test]
fn fsync_that_panics_gets_an_error() {
    let fs = Hooked::new(|what, _| assert!(what != "fsync", "on purpose"));
    let dispatcher = dispatcher(Arc::new(fs));
    let node = make(&dispatcher, b"file");
    let fsync = message(Opcode::FSYNC, node, &[0; 16]);
    assert!(is_later(&dispatcher, &fsync));
    assert_eq!(serve_later(&dispatcher, &fsync)(), Err(Errno::IO));
    assert_eq!(dispatcher.requests.server.counters().panics, 1);
}

/// During a call of the back end, another program reports the directory above the name. The answer
/// may reach the kernel after the report, so the kernel must not keep the name. Trap T25.
#[test]
fn trap_t25_answer_from_before_a_report_about_the_directory_has_no_time() {
    let armed = Arc::new(Mutex::new(None::<&str>));
    let server = Arc::new(OnceLock::<Weak<Server>>::new());
    let (trigger, reporter) = (Arc::clone(&armed), Arc::clone(&server));
    let fs = Hooked::new(move |what, _| {
        if trigger.lock().take_if(|wanted| *wanted == what).is_some() {
            let server = reporter.get().and_then(Weak::upgrade).expect("the server lives");
            let dir = Name::new(b"d").expect("the name is valid");
            server.invalidate_name(ROOT, dir, &mut |_, _| ()).expect("report the folder");
        }
    });
    let dispatcher = dispatcher(Arc::new(fs));
    let requests = &dispatcher.requests;
    server.set(Arc::downgrade(&requests.server)).expect("set it once");
    let dir = requests.server.make(CALLER, ROOT, b"d", &NewFile::new(0o040_755));
    let dir = dir.expect("make the folder").node;
    for name in [b"x", b"y"] {
        let made = requests.server.make(CALLER, dir, name, &NewFile::new(0o100_644));
        requests.server.forget(made.expect("make the file").node, 1);
    }
    requests.server.vfs().prune();
    let times = |call, opcode, args: &[u8]| {
        *armed.lock() = call;
        let body = serve(&dispatcher, &message(opcode, dir, args)).expect("an answer");
        assert_eq!(*armed.lock(), None, "the report was made");
        let (mut times, mut at) = (Vec::new(), 0);
        while at < body.len() {
            // `.` and `..` are no entries.
            let word = |at: usize| u32::from_ne_bytes(body[at..at + 4].try_into().expect("a word"));
            if opcode != Opcode::READDIRPLUS || body[at + 152] != b'.' {
                times.push([16, 20, 32].iter().any(|field| word(at + field) != 0));
            }
            at = match opcode {
                Opcode::READDIRPLUS => at + (152 + word(at + 144) as usize).next_multiple_of(8),
                _ => body.len(),
            };
        }
        times
    };
    let page = [&[0; 16][..], &4096_u32.to_ne_bytes(), &[0; 20]].concat();
    let mode = 0o100_644_u32.to_ne_bytes();
    // The second lookup finds the name in the cache, and asks for the attributes.
    for (call, opcode, args, entries) in [
        ("lookup", Opcode::LOOKUP, &b"x\0"[..], 1),
        ("getattr", Opcode::LOOKUP, b"x\0", 1),
        ("lookup", Opcode::LOOKUP, b"none\0", 1),
        ("make", Opcode::MKDIR, b"\0\0\0\0\0\0\0\0made\0", 1),
        ("make", Opcode::SYMLINK, b"link\0target\0", 1),
        ("make", Opcode::MKNOD, &[&mode[..], &[0; 12], b"node\0"].concat(), 1),
        ("make", Opcode::CREATE, &[&[0; 4], &mode[..], &[0; 8], b"file\0"].concat(), 1),
        ("lookup", Opcode::READDIRPLUS, &page, 6),
    ] {
        assert_eq!(times(Some(call), opcode, args), vec![false; entries], "{call}");
        if call != "make" {
            assert_eq!(times(None, opcode, args), vec![true; entries], "control: {call}");
        }
    }
}
