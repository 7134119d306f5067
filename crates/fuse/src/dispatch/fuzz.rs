//! A fuzz test of FUSE requests. A request may contain any bytes, as if the kernel had sent them.
//!
//! The dispatcher must never panic. Every request must get an answer that fits the buffer of the
//! transport, unless the kernel expects none.

use std::sync::mpsc::channel;

use corewalk::Caller;
use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk_testkit::fuzz::Fuzz;

use super::tests::dispatcher;
use super::*;
use crate::server::{NewFile, WriteOrigin};

const ROOT: u64 = crate::server::ROOT_NODE;
const CALLER: Caller = Caller { uid: 0, gid: 0, pid: 0 };
/// The node numbers of a directory, of a file in it, and of a symbolic link.
const NODES: [u64; 3] = [2, 3, 4];
const CONTENT: &[u8] = b"content";
const OP_IN_BYTES: usize = 128;
const RUNS: u64 = 5_000;

fn small() -> Arc<Dispatcher> {
    let fs = Tmpfs::new(TmpfsOptions::default().with_size_bytes(1 << 20).with_inodes_max(64));
    let dispatcher = dispatcher(Arc::new(fs));
    let server = &dispatcher.requests.server;
    let make = |parent, name: &[u8], new: NewFile<'_>| {
        server.make(CALLER, parent, name, &new).expect("make the file").node
    };
    let dir = make(ROOT, b"dir", NewFile::new(0o040_755));
    let file = make(dir, b"file", NewFile::new(0o100_644));
    let link = make(ROOT, b"link", NewFile::new(0o120_777).with_target(b"dir/file"));
    assert_eq!([dir, file, link], NODES, "the messages of the corpus name these nodes");
    make(ROOT, b"empty", NewFile::new(0o040_755));
    server.write(CALLER, file, 0, 0, CONTENT, WriteOrigin::Call).expect("write the content");
    server.setxattr(CALLER, file, b"user.a", b"value", 0).expect("set the attribute");
    dispatcher
}

fn serve(
    dispatcher: &Arc<Dispatcher>,
    message: Message<'_>,
    buffer: &mut [u8],
) -> Result<(), Errno> {
    match dispatcher.serve(&message, buffer) {
        Outcome::Answer(result) => {
            assert!(result.unwrap_or(0) <= buffer.len());
            result.map(drop)
        }
        Outcome::Silent => {
            let silent = [Opcode::FORGET, Opcode::BATCH_FORGET, Opcode::NOTIFY_REPLY];
            assert!(silent.contains(&message.header.opcode), "{message:?} gets no answer");
            Ok(())
        }
        Outcome::Later => {
            let (send, answer) = channel();
            let reply = move |body: Result<&[u8], Errno>| send.send(body.map(drop)).unwrap();
            dispatcher.serve_later(message.to_owned(), Box::new(reply));
            answer.recv().expect("every request gets an answer")
        }
    }
}

fn run(input: &[u8]) -> Result<(u32, Result<(), i32>), &'static str> {
    let dispatcher = small();
    let mut buffer = vec![0; dispatcher.payload_bytes()];
    let features = dispatcher.features();
    let whole = Message::parse(input, features);
    let (header, args) = input.split_at(input.len().min(40));
    if let Err(unique) = whole {
        let parts = Message::parse_parts(header, args, &[], features);
        assert!(unique.is_some() || parts.is_err(), "the header is too short");
        return Err(if unique.is_some() { "no arguments" } else { "no header" });
    }
    let message = whole.expect("the error was returned");
    let opcode = message.header.opcode;
    let result = serve(&dispatcher, message, &mut buffer);
    if opcode == Opcode::INIT
        && let Ok(init) = Init::parse(message.args())
    {
        let chosen = Features::choose(&dispatcher.requests.server, init.offered);
        let mut body = Body::new(&mut buffer);
        assert_eq!(init.reply(dispatcher.requests.server.options(), chosen, &mut body), Ok(()));
    }
    let (fixed, rest) = args.split_at(opcode.fixed_bytes(features));
    let mut op_in = [0xff; OP_IN_BYTES];
    op_in[..fixed.len()].copy_from_slice(fixed);
    let parts = Message::parse_parts(header, &op_in, rest, features);
    assert_eq!(parts, Ok(message));
    let _ = serve(&dispatcher, message, &mut buffer);
    // Split the message in the middle, which the kernel never does. The dispatcher must not panic.
    let (fixed, rest) = args.split_at(args.len() / 2);
    if let Ok(message) = Message::parse_parts(header, fixed, rest, features) {
        let _ = serve(&dispatcher, message, &mut buffer[..100]);
    }
    assert_eq!(dispatcher.requests.server.counters().panics, 0);
    Ok((opcode.0, result.map_err(Errno::raw_os_error)))
}

#[test]
fn fuzz_messages_are_answered() {
    let words: [&[u8]; 6] = [b"dir\0", b"file\0", b"link\0", b"user.a\0", &[2, 0, 0, 0], &[3, 0]];
    let answers = Fuzz::of("fuse-messages").words(&words).runs(RUNS).run(run);
    for opcode in [1, 2, 3, 4, 5, 6, 8, 9, 10, 11, 12, 13, 15, 16, 17, 18, 20, 21, 22, 23, 24] {
        assert!(answers.contains_key(&Ok((opcode, Ok(())))), "operation {opcode} never succeeds");
    }
    for opcode in [28, 29, 30, 34, 35, 38, 42, 43, 44, 45, 46, 47, 51, 53] {
        assert!(answers.contains_key(&Ok((opcode, Ok(())))), "operation {opcode} never succeeds");
    }
    for error in ["no header", "no arguments"] {
        assert!(answers.contains_key(&Err(error)), "no message has {error}");
    }
}
