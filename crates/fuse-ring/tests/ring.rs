//! Tests of `corewalk_base::fuse_ring` with real FUSE mounts, whose requests arrive through rings.
#![cfg(not(any(miri, corewalk_loom, corewalk_shuttle)))]

use std::ffi::CString;
use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::fd::{AsFd as _, AsRawFd as _, OwnedFd};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use corewalk_base::primitives::Arc;
use corewalk_base::primitives::thread;
use corewalk_base::{Mutex, errno_of};
use corewalk_fuse_ring::device::{clone_fuse_device, possible_cpus};
use corewalk_fuse_ring::{EntryId, FuseRing, RingWaker};
use corewalk_testkit::require::{Need, has_fuse, has_root, skip};
use rustix::io::Errno;
use rustix::mount::{MountFlags, UnmountFlags};

const ENABLE: &str = "/sys/module/fuse/parameters/enable_uring";
const PAYLOAD_BYTES: usize = 128 * 1024;
/// The time in which a thread must end or answer.
const PATIENCE: Duration = Duration::from_secs(10);

const LOOKUP: u32 = 1;
const GETATTR: u32 = 3;
const INIT: u32 = 26;

const FLAG_MAX_PAGES: u32 = 1 << 22;
const FLAG_INIT_EXT: u32 = 1 << 30;
/// `FUSE_OVER_IO_URING`: a bit of the second flag word in the INIT request and reply.
const FLAG_RING: u32 = 1 << (41 - 32);

/// Bytes of `struct fuse_attr`.
const ATTR_BYTES: usize = 88;
/// Bytes of `struct fuse_entry_out` before its attributes.
const ENTRY_BYTES: usize = 40;

struct Mount {
    path: PathBuf,
    device: OwnedFd,
}

impl Mount {
    /// Mounts a FUSE file system. Returns `None` if this machine has no rings.
    fn new(name: &str) -> Option<Self> {
        if !has_root() || !has_fuse() {
            return None;
        }
        if let Err(error) = fs::write(ENABLE, "Y") {
            skip(Need::Machine, format_args!("{ENABLE}: {error}"));
            return None;
        }
        let path = std::env::temp_dir().join(format!("fuse-ring-{name}-{}", std::process::id()));
        fs::create_dir_all(&path).expect("a folder");
        let device = File::options().read(true).write(true).open("/dev/fuse").expect("a device");
        let number = device.as_raw_fd();
        let options = format!("fd={number},rootmode=40000,user_id=0,group_id=0");
        let options = CString::new(options).expect("no NUL");
        rustix::mount::mount("ring", &path, "fuse", MountFlags::NOSUID, &*options).expect("mount");
        let mount = Self { path, device: device.into() };
        mount.answer_init();
        Some(mount)
    }

    fn answer_init(&self) {
        let mut request = vec![0; 2 * PAYLOAD_BYTES];
        let len = rustix::io::read(&self.device, &mut request).expect("INIT");
        let request = &request[..len];
        assert_eq!(u32_at(request, 4), INIT);
        assert!(u32_at(request, 40 + 16) & FLAG_RING != 0, "the kernel offers no rings");
        let mut reply = [0; 16 + 64];
        put_u32(&mut reply, 0, 80);
        reply[8..16].copy_from_slice(&request[8..16]);
        let flags = FLAG_INIT_EXT | FLAG_MAX_PAGES;
        let [max_background, max_pages] = [16, PAYLOAD_BYTES as u32 / 4096];
        let words = [7, 42, 0, flags, max_background, PAYLOAD_BYTES as u32, 1, max_pages];
        for (at, word) in words.into_iter().chain([FLAG_RING]).enumerate() {
            put_u32(&mut reply, 16 + 4 * at, word);
        }
        rustix::io::write(&self.device, &reply).expect("a reply");
    }

    fn ring(&self, queue: u16, depth: usize) -> FuseRing {
        let device = clone_fuse_device(self.device.as_fd()).expect("a clone");
        FuseRing::new(device.as_fd(), &[queue], depth, PAYLOAD_BYTES).expect("a ring")
    }

    /// Starts a thread that reads and ignores the requests that do not come through rings, such as
    /// FORGET.
    fn read_device(&self, ended: &Sender<&'static str>) {
        let (device, ended) = (self.device.try_clone().expect("a descriptor"), ended.clone());
        let _reader = thread::spawn(move || {
            let mut request = vec![0; 2 * PAYLOAD_BYTES];
            while rustix::io::read(&device, &mut request) != Err(Errno::NODEV) {}
            let _told = ended.send("reader");
        });
    }

    fn abort(&self) {
        let flags = UnmountFlags::FORCE | UnmountFlags::DETACH;
        // Ignore an error: the test may have unmounted the file system already.
        let _unmounted = rustix::mount::unmount(&self.path, flags);
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        self.abort();
        let _removed = fs::remove_dir(&self.path);
    }
}

/// Answers a request as the test's file system: a file called `yes-N` has N bytes, and other files
/// do not exist.
fn answer(opcode: u32, payload: &mut [u8], len: usize) -> Result<usize, Errno> {
    match opcode {
        GETATTR => {
            payload[..16 + ATTR_BYTES].fill(0);
            put_attr(&mut payload[16..], 1, 0o040_755, 0);
            Ok(16 + ATTR_BYTES)
        }
        LOOKUP => {
            let name = payload[..len].strip_suffix(&[0]).expect("a NUL at the end");
            let name = std::str::from_utf8(name).expect("a name of this test");
            let size: u64 = name.strip_prefix("yes-").ok_or(Errno::NOENT)?.parse().expect("N");
            payload[..ENTRY_BYTES + ATTR_BYTES].fill(0);
            payload[..8].copy_from_slice(&(size + 2).to_ne_bytes());
            payload[24..32].copy_from_slice(&100_u64.to_ne_bytes());
            put_attr(&mut payload[ENTRY_BYTES..], size + 2, 0o100_644, size);
            Ok(ENTRY_BYTES + ATTR_BYTES)
        }
        _ => Err(Errno::NOSYS),
    }
}

fn put_attr(attr: &mut [u8], ino: u64, mode: u32, size: u64) {
    attr[..8].copy_from_slice(&ino.to_ne_bytes());
    attr[8..16].copy_from_slice(&size.to_ne_bytes());
    put_u32(attr, 60, mode);
    put_u32(attr, 64, 1);
}

fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(*bytes[at..].first_chunk().expect("a word"))
}

fn put_u32(bytes: &mut [u8], at: usize, word: u32) {
    bytes[at..at + 4].copy_from_slice(&word.to_ne_bytes());
}

fn serve(ring: &mut FuseRing) -> usize {
    let mut answered = 0;
    while ring.live() > 0 {
        let _waited = ring.wait().expect("a ring");
        while let Some(entry) = ring.next_request() {
            let request = ring.request(&entry);
            let opcode = u32_at(request.header, 4);
            let outcome = answer(opcode, request.payload, request.payload_len);
            ring.reply(entry, outcome);
            answered += 1;
        }
    }
    answered
}

fn start_clients(path: &Path, count: u64, ended: &Sender<&'static str>) {
    for client in 0..2 {
        let (path, ended) = (path.to_owned(), ended.clone());
        let _client = thread::spawn(move || {
            for n in 0..count {
                let size = 2 * n + client;
                if n % 4 == 3 {
                    let none = fs::metadata(path.join(format!("no-{size}")));
                    assert_eq!(none.expect_err("no file").kind(), ErrorKind::NotFound);
                } else {
                    let file = fs::metadata(path.join(format!("yes-{size}"))).expect("a file");
                    assert_eq!((file.size(), file.ino()), (size, size + 2));
                }
            }
            let _told = ended.send("client");
        });
    }
}

/// Waits until `count` threads have ended.
fn await_ends(ends: &Receiver<&'static str>, count: usize) {
    for at in 0..count {
        if let Err(error) = ends.recv_timeout(PATIENCE) {
            panic!("thread {at} of {count} has not ended: {error}");
        }
    }
}

#[test]
fn mount_is_served_through_one_ring_per_queue() {
    const STATS: u64 = 3000;
    let Some(mount) = Mount::new("served") else { return };
    let (ended, ends) = channel();
    let queues = possible_cpus().expect("a count");
    let answered = Arc::new(Mutex::new(0));
    mount.read_device(&ended);
    for queue in 0..queues {
        let mut ring = mount.ring(queue, 4);
        let (ended, answered) = (ended.clone(), Arc::clone(&answered));
        let _server = thread::spawn(move || {
            let count = serve(&mut ring);
            *answered.lock() += count;
            drop(ring);
            let _told = ended.send("server");
        });
    }
    start_clients(&mount.path, STATS, &ended);
    await_ends(&ends, 2);
    mount.abort();
    await_ends(&ends, usize::from(queues) + 1);
    let answered = *answered.lock();
    assert!(answered as u64 >= 2 * STATS, "{answered} requests came through the rings");
}

type Reply = (EntryId, Result<usize, Errno>, Vec<u8>);

fn serve_from_afar(
    ring: &mut FuseRing,
    replies: &Mutex<Vec<Reply>>,
    requests: &Sender<(EntryId, u32, Vec<u8>)>,
) -> usize {
    let mut wakes = 0;
    while ring.live() > 0 {
        wakes += usize::from(ring.wait().expect("a ring").is_woken);
        while let Some(entry) = ring.next_request() {
            let request = ring.request(&entry);
            let (opcode, len) = (u32_at(request.header, 4), request.payload_len);
            let copy = request.payload[..len].to_vec();
            requests.send((entry, opcode, copy)).expect("the other thread lives");
        }
        for (entry, outcome, body) in std::mem::take(&mut *replies.lock()) {
            ring.request(&entry).payload[..body.len()].copy_from_slice(&body);
            ring.reply(entry, outcome);
        }
    }
    wakes
}

/// Answers the requests of a ring until the ring ends.
fn answer_from_afar(
    requests: &Receiver<(EntryId, u32, Vec<u8>)>,
    replies: &Mutex<Vec<Reply>>,
    waker: &RingWaker,
) {
    for (entry, opcode, mut payload) in requests {
        let len = payload.len();
        payload.resize(len.max(1024), 0);
        let outcome = answer(opcode, &mut payload, len);
        payload.truncate(outcome.unwrap_or(0));
        replies.lock().push((entry, outcome, payload));
        waker.wake();
    }
}

#[test]
fn request_is_answered_from_another_thread() {
    let Some(mount) = Mount::new("afar") else { return };
    let (ended, ends) = channel();
    let queues = possible_cpus().expect("a count");
    let woken = Arc::new(Mutex::new(0));
    mount.read_device(&ended);
    for queue in 0..queues {
        let mut ring = mount.ring(queue, 2);
        let woken = Arc::clone(&woken);
        let (ended, waker) = (ended.clone(), ring.waker());
        let (to_other, requests) = channel();
        let replies = Arc::new(Mutex::new(Vec::new()));
        let of_other = Arc::clone(&replies);
        let _server = thread::spawn(move || {
            let other = thread::spawn(move || answer_from_afar(&requests, &of_other, &waker));
            *woken.lock() += serve_from_afar(&mut ring, &replies, &to_other);
            drop(to_other);
            other.join().expect("no panic");
            let _told = ended.send("server");
        });
    }
    start_clients(&mount.path, 500, &ended);
    await_ends(&ends, 2);
    mount.abort();
    await_ends(&ends, usize::from(queues) + 1);
    assert_ne!(*woken.lock(), 0);
}

#[test]
fn wake_before_the_wait_is_not_lost() {
    let Some(mount) = Mount::new("woken") else { return };
    let mut ring = mount.ring(0, 1);
    for _ in 0..100 {
        ring.waker().wake();
        while !ring.wait().expect("a ring").is_woken {}
    }
    assert_eq!((ring.live(), ring.failure()), (1, None));
    // The ring belongs to this thread, which has called `wait`. So `wait` on another thread must
    // fail.
    let moved = thread::spawn(move || ring.wait().map_err(errno_of));
    assert_eq!(moved.join().expect("no panic"), Err(Errno::EXIST));
}

#[test]
fn ring_is_dropped_while_the_mount_lives() {
    let Some(mount) = Mount::new("dropped") else { return };
    let (ended, ends) = channel();
    mount.read_device(&ended);
    let mut rings: Vec<_> =
        (0..possible_cpus().expect("a count")).map(|queue| mount.ring(queue, 8)).collect();
    for ring in &mut rings {
        ring.waker().wake();
        while !ring.wait().expect("a ring").is_woken {}
        assert_eq!(ring.failure(), None);
    }
    let path = mount.path.join("yes-1");
    let _client = thread::spawn(move || {
        assert!(fs::metadata(path).is_err(), "no thread answers");
        let _told = ended.send("client");
    });
    // Wait until the request of the client is in an entry of a ring. No thread answers it.
    rings.reverse();
    while !rings.iter_mut().any(|ring| {
        ring.waker().wake();
        let _waited = ring.wait().expect("a ring");
        ring.next_request().is_some()
    }) {}
    drop(rings);
    mount.abort();
    await_ends(&ends, 2);
}
