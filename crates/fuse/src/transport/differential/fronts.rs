//! The three fronts of the test. Each front is a thread that serves a socket, and at the other end
//! of the socket the test plays the kernel.
//!
//! A socket of the type `SOCK_SEQPACKET` keeps the bounds of messages, as the FUSE device does.

use std::collections::HashMap;
use std::fs::File;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use corewalk_base::primitives::thread::{self, JoinHandle};
use fuser::{Session, SessionACL};
use rustix::net::sockopt::{Timeout, set_socket_timeout};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};

use super::super::device;
use super::reply;
use super::stream::Request;
use crate::adapter::Adapter;
use crate::dispatch::Dispatcher;
use crate::server::{NO_NODE, Server};
use crate::service::{Dispatch as _, Outcome};
use crate::wire::{
    Body, Features, IN_HEADER_BYTES, INIT_REPLY_BYTES, Init, Message, OUT_HEADER_BYTES, Opcode,
    out_header,
};

const PATIENCE: Duration = Duration::from_secs(30);
const MESSAGE_BYTES: usize = 256 << 10;
const OP_IN_BYTES: usize = 128;
const SCRATCH_BYTES: usize = 64 << 10;
/// Node numbers that mean "no node" on all servers, so symbols do not replace them.
const NO_NODES: [u64; 3] = [0, 0xffff_ffff, NO_NODE];

#[derive(Debug)]
pub(super) struct Front {
    pub(super) name: &'static str,
    pub(super) server: Arc<Server>,
    kernel: OwnedFd,
    thread: JoinHandle<()>,
    numbers: Numbers,
    gets_parts: bool,
}

#[derive(Debug)]
struct Numbers {
    numbers: Vec<u64>,
    symbols: HashMap<u64, u64>,
}

impl Numbers {
    fn new() -> Numbers {
        Numbers { numbers: vec![0, 1], symbols: HashMap::from([(1, 1)]) }
    }

    fn number(&self, symbol: u64) -> u64 {
        self.numbers.get(symbol as usize).copied().unwrap_or(symbol)
    }

    fn symbol(&mut self, number: u64) -> u64 {
        if NO_NODES.contains(&number) {
            return number;
        }
        *self.symbols.entry(number).or_insert_with(|| {
            self.numbers.push(number);
            self.numbers.len() as u64 - 1
        })
    }
}

impl Front {
    pub(super) fn ring(server: Arc<Server>, init: &[u8]) -> (Front, Vec<u8>) {
        let (kernel, socket) = sockets();
        let (dispatcher, answer) = open(&server, init);
        let thread = thread::spawn(move || serve_parts(&dispatcher, &Arc::new(socket)));
        let numbers = Numbers::new();
        (Front { name: "ring", server, kernel, thread, numbers, gets_parts: true }, answer)
    }

    pub(super) fn device(server: Arc<Server>, init: &[u8]) -> (Front, Vec<u8>) {
        let (kernel, socket) = sockets();
        let (dispatcher, answer) = open(&server, init);
        let device = device::Thread::new(dispatcher, File::from(socket));
        let thread = thread::spawn(move || device.run().expect("the loop ends with the socket"));
        let numbers = Numbers::new();
        (Front { name: "device", server, kernel, thread, numbers, gets_parts: false }, answer)
    }

    pub(super) fn fuser(server: Arc<Server>, init: &[u8]) -> (Front, Vec<u8>) {
        let (kernel, socket) = sockets();
        rustix::io::write(&kernel, init).expect("send the first request");
        let mut config = fuser::Config::default();
        config.n_threads = Some(1);
        let adapter = Adapter::with_server(Arc::clone(&server));
        let session = Session::from_fd(adapter, socket, SessionACL::All, config)
            .expect("fuser answers the first request");
        let thread = thread::spawn(move || session.run().expect("the session ends"));
        let numbers = Numbers::new();
        let front = Front { name: "fuser", server, kernel, thread, numbers, gets_parts: false };
        let answer = front.receive_bytes();
        (front, answer)
    }

    /// Sends a request to the server of this front. The node numbers in `request` are symbols,
    /// which this method replaces by the numbers of the server.
    pub(super) fn send(&self, request: &Request, unique: u64) {
        let mut args = [&request.fixed[..], &request.rest].concat();
        for &at in &request.nodes {
            let number = self.numbers.number(reply::u64_at(&args, at));
            reply::put_u64(&mut args, at, number);
        }
        let node = self.numbers.number(request.node);
        let mut bytes = message(request.opcode, unique, node, request.uid, &args);
        if self.gets_parts {
            let fixed_bytes = request.fixed.len() as u32;
            bytes.splice(..0, fixed_bytes.to_ne_bytes());
        }
        let sent = rustix::io::write(&self.kernel, &bytes).expect("send a request");
        assert_eq!(sent, bytes.len());
    }

    pub(super) fn receive(&mut self, opcode: Opcode, unique: u64) -> Vec<u8> {
        let mut answer = self.receive_bytes();
        assert!(answer.len() >= OUT_HEADER_BYTES, "{}: the answer is too short", self.name);
        assert_eq!(reply::u32_at(&answer, 0) as usize, answer.len(), "{}: length", self.name);
        assert_eq!(reply::u64_at(&answer, 8), unique, "{}: number of the request", self.name);
        let body = &mut answer[OUT_HEADER_BYTES..];
        for at in reply::nodes(opcode, body) {
            let symbol = self.numbers.symbol(reply::u64_at(body, at));
            reply::put_u64(body, at, symbol);
        }
        answer
    }

    fn receive_bytes(&self) -> Vec<u8> {
        let mut answer = vec![0; MESSAGE_BYTES];
        let len = rustix::io::retry_on_intr(|| rustix::io::read(&self.kernel, &mut *answer));
        let len = len.unwrap_or_else(|error| panic!("no answer of {}: {error}", self.name));
        answer.truncate(len);
        answer
    }

    pub(super) fn skip_symbols_of(&mut self, other: &Front) {
        self.numbers.numbers.resize(other.numbers.numbers.len(), NO_NODE);
    }

    /// The last request was `DESTROY`.
    pub(super) fn end(self) {
        drop(self.kernel);
        self.thread.join().expect("the thread of the front has not panicked");
    }
}

fn sockets() -> (OwnedFd, OwnedFd) {
    let (kernel, front) =
        socketpair(AddressFamily::UNIX, SocketType::SEQPACKET, SocketFlags::CLOEXEC, None)
            .expect("make a socket");
    set_socket_timeout(&kernel, Timeout::Recv, Some(PATIENCE)).expect("set a timeout");
    (kernel, front)
}

pub(super) fn message(opcode: Opcode, unique: u64, node: u64, uid: u32, args: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let len = (IN_HEADER_BYTES + args.len()) as u32;
    bytes.extend([len, opcode.0].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend([unique, node].iter().flat_map(|word| word.to_ne_bytes()));
    // Process 0 does not exist, so the caller has no groups and no capabilities.
    bytes.extend([uid, uid, 0, 0].iter().flat_map(|word| word.to_ne_bytes()));
    bytes.extend(args);
    bytes
}

fn open(server: &Arc<Server>, init: &[u8]) -> (Arc<Dispatcher>, Vec<u8>) {
    let message = Message::parse(init, Features(0)).expect("the message is whole");
    let init = Init::parse(message.args()).expect("the version is supported");
    let mut answer = vec![0; OUT_HEADER_BYTES + INIT_REPLY_BYTES];
    let mut body = Body::new(&mut answer[OUT_HEADER_BYTES..]);
    let chosen = Features::choose(server, init.offered);
    init.reply(server.options(), chosen, &mut body).expect("the answer fits");
    let header = out_header(message.header.unique, None, INIT_REPLY_BYTES);
    answer[..OUT_HEADER_BYTES].copy_from_slice(&header);
    (Arc::new(Dispatcher::new(Arc::clone(server), &init)), answer)
}

/// Serves messages in separate parts, as io_uring delivers them. The test sends the length of the
/// fixed arguments before each message, so that this loop can split the message.
fn serve_parts(dispatcher: &Arc<Dispatcher>, socket: &Arc<OwnedFd>) {
    let mut received = vec![0; MESSAGE_BYTES];
    let mut payload = vec![0; dispatcher.payload_bytes()];
    let mut scratch = vec![0; SCRATCH_BYTES];
    loop {
        let len = rustix::io::read(&**socket, &mut *received).expect("read a request");
        if len == 0 {
            return;
        }
        let (header, args) = received[4..len].split_at(IN_HEADER_BYTES);
        let (fixed, rest) = args.split_at(reply::u32_at(&received, 0) as usize);
        let mut op_in = [0xa5; OP_IN_BYTES];
        op_in[..fixed.len()].copy_from_slice(fixed);
        let buffer = if rest.is_empty() { &mut payload } else { &mut scratch };
        let message = Message::parse_parts(header, &op_in, rest, dispatcher.features())
            .expect("the message is whole");
        let unique = message.header.unique;
        let fixed_bytes = message.header.opcode.fixed_bytes(dispatcher.features());
        assert!([0, fixed.len()].contains(&fixed_bytes), "{message:?}: fixed arguments");
        match dispatcher.serve(&message, buffer) {
            Outcome::Answer(result) => {
                let body = result.map(|len| &buffer[..len]);
                send_answer(socket, unique, body);
            }
            Outcome::Silent => {}
            Outcome::Later => {
                let socket = Arc::clone(socket);
                let reply = move |body: Result<&[u8], _>| send_answer(&socket, unique, body);
                dispatcher.serve_later(message.to_owned(), Box::new(reply));
            }
        }
    }
}

fn send_answer(socket: &OwnedFd, unique: u64, body: Result<&[u8], corewalk::Errno>) {
    let (error, body) = (body.err(), body.unwrap_or(&[]));
    let answer = [&out_header(unique, error, body.len())[..], body].concat();
    rustix::io::write(socket, &answer).expect("send an answer");
}
