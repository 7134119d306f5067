//! A test that compares the answers to requests that arrive in different ways.
//!
//! The test plays the kernel. It sends the same requests to three fronts (ways to a server), and
//! compares their answers byte for byte. Each front has its own server and its own back end:
//! - the dispatcher, with the parts of a message that io_uring would deliver;
//! - the loop that reads the FUSE device, with a socket in place of the device;
//! - a session of fuser with the adapter, also with a socket.
//!
//! The dispatcher and the loop that reads the device must give equal answers. The answers of fuser
//! may differ where [`DIFFERENCES`] says so. The test fails if one of the [`DIFFERENCES`] never
//! occurs.
//!
//! Before the comparison, the test replaces two kinds of numbers, which differ because each server
//! has its own tmpfs. A time that was read from the clock becomes 0. A node number becomes a
//! symbol: its index in the order of appearance.
//!
//! # Requests that the test does not send
//! - The reply to a retrieval (`FUSE_NOTIFY_REPLY`). This crate sends no answer to it, but fuser
//!   sends an error. The kernel sends the reply only after a notification that this crate never
//!   sends.
//! - A message that is too short. fuser answers with `ENOSYS`, and the dispatcher with `EIO`.
//! - A second `FUSE_INIT`.
//! - A time that is no valid `struct timespec`, and a time that does not fit `SystemTime`.

mod fronts;
mod reply;
mod stream;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{Attr, DirEntry, DirSink, Errno, FileKind, FileSystem, Name, Node, StatFs};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

use self::fronts::{Front, message};
use self::stream::{Kernel, ROOT, Request};
use crate::hooked::Hooked;
use crate::options::{Options, WriteCache};
use crate::server::Server;
use crate::wire::{Features, OUT_HEADER_BYTES, Opcode};

const STREAMS: u64 = 3;
const REQUESTS: u64 = 2000;
const HANDLE: u64 = 7;
/// The features that the test offers as the kernel. They are all but `FUSE_INIT_RESERVED`,
/// io_uring, and those that the adapter for fuser never chooses.
const OFFERED: u64 =
    !(1 << 31 | Features::OVER_IO_URING | Features::HANDLE_KILLPRIV_V2 | Features::SETXATTR_EXT);
const FREE_OPENS: u64 = Features::NO_OPEN_SUPPORT | Features::NO_OPENDIR_SUPPORT;
const OPERATIONS: [Opcode; 34] = [
    Opcode::LOOKUP,
    Opcode::GETATTR,
    Opcode::SETATTR,
    Opcode::READLINK,
    Opcode::SYMLINK,
    Opcode::MKNOD,
    Opcode::MKDIR,
    Opcode::UNLINK,
    Opcode::RMDIR,
    Opcode::RENAME,
    Opcode::RENAME2,
    Opcode::LINK,
    Opcode::OPEN,
    Opcode::OPENDIR,
    Opcode::READ,
    Opcode::WRITE,
    Opcode::STATFS,
    Opcode::RELEASE,
    Opcode::RELEASEDIR,
    Opcode::FSYNC,
    Opcode::FSYNCDIR,
    Opcode::SETXATTR,
    Opcode::GETXATTR,
    Opcode::LISTXATTR,
    Opcode::REMOVEXATTR,
    Opcode::READDIR,
    Opcode::READDIRPLUS,
    Opcode::ACCESS,
    Opcode::CREATE,
    Opcode::TMPFILE,
    Opcode::FALLOCATE,
    Opcode::LSEEK,
    Opcode::COPY_FILE_RANGE,
    Opcode::COPY_FILE_RANGE_64,
];
const IOCTL_UNRESTRICTED: u32 = 2;

struct Case {
    name: &'static str,
    options: Options,
    offered: u64,
    handle: u64,
    back_end: fn() -> Arc<dyn FileSystem>,
    requests: u64,
}

/// A difference between the answers of the dispatcher and of fuser that is no bug.
struct Difference {
    reason: &'static str,
    explains: fn(&Request, &[u8], &[u8]) -> bool,
}

const DIFFERENCES: [Difference; 6] = [
    Difference {
        reason: "fuser or its adapter does not have the operation",
        explains: |request, _, fuser| {
            let opcodes = [Opcode::TMPFILE, Opcode::COPY_FILE_RANGE_64, Opcode::POLL];
            opcodes.contains(&request.opcode) && reply::error(fuser) == Some(Errno::NOSYS)
        },
    },
    Difference {
        reason: "in an entry without a node, fuser sets attributes that the kernel ignores",
        explains: |request, ours, fuser| {
            // Compare the node, the generation, and the timeout of the entry.
            let read = |answer: &[u8]| {
                let body = answer[OUT_HEADER_BYTES..].to_vec();
                (body[..24].to_vec(), body[32..36].to_vec())
            };
            request.opcode == Opcode::LOOKUP
                && [ours, fuser].iter().all(|answer| reply::error(answer).is_none())
                && reply::u64_at(ours, OUT_HEADER_BYTES) == 0
                && read(ours) == read(fuser)
        },
    },
    Difference {
        reason: "fuser has one timeout for the entry and the attributes of a created file",
        explains: |request, ours, fuser| {
            request.opcode == Opcode::CREATE && only_timeouts_differ(request.opcode, ours, fuser)
        },
    },
    Difference {
        reason: "fuser has one timeout for the entry and the attributes of a listed file",
        explains: |request, ours, fuser| {
            request.opcode == Opcode::READDIRPLUS
                && only_timeouts_differ(request.opcode, ours, fuser)
        },
    },
    Difference {
        reason: "fuser has no listed entry without a node",
        explains: |request, ours, fuser| {
            request.opcode == Opcode::READDIRPLUS && only_failed_entries_differ(ours, fuser)
        },
    },
    Difference {
        reason: "fuser itself refuses an unrestricted ioctl",
        explains: |request, ours, fuser| {
            request.opcode == Opcode::IOCTL
                && reply::u32_at(&request.fixed, 8) & IOCTL_UNRESTRICTED != 0
                && reply::error(ours).is_some()
                && reply::error(fuser) == Some(Errno::NOSYS)
        },
    },
];

fn only_timeouts_differ(opcode: Opcode, ours: &[u8], fuser: &[u8]) -> bool {
    if [ours, fuser].iter().any(|answer| reply::error(answer).is_some()) {
        return false;
    }
    let without_timeouts = |answer: &[u8]| {
        let mut answer = answer.to_vec();
        let attributes = reply::attributes(opcode, &answer[OUT_HEADER_BYTES..]);
        for end in attributes.iter().map(|at| OUT_HEADER_BYTES + at) {
            answer[end - 24..end].fill(0);
        }
        answer
    };
    let timeouts = |answer: &[u8]| {
        let entry = &answer[OUT_HEADER_BYTES..];
        let read = |secs, nanos| (reply::u64_at(entry, secs), reply::u32_at(entry, nanos));
        [read(16, 32), read(24, 36)]
    };
    let [entry, attr] = timeouts(ours);
    without_timeouts(ours) == without_timeouts(fuser) && timeouts(fuser) == [entry.min(attr); 2]
}

fn only_failed_entries_differ(ours: &[u8], fuser: &[u8]) -> bool {
    let opcode = Opcode::READDIRPLUS;
    if [ours, fuser].iter().any(|answer| reply::error(answer).is_some()) {
        return false;
    }
    let (ours, fuser) = (&ours[OUT_HEADER_BYTES..], &fuser[OUT_HEADER_BYTES..]);
    let (entries, theirs) = (reply::entries(opcode, ours), reply::entries(opcode, fuser));
    let is_failed = |entry: &reply::Entry<'_>| {
        // The C library skips an entry without an inode number, so the server reports one even if
        // the lookup failed.
        reply::u64_at(ours, entry.start) == 0 && reply::u64_at(ours, entry.dirent) != 0
    };
    let node = |body: &[u8], entry: &reply::Entry<'_>| reply::u64_at(body, entry.start);
    entries == theirs
        && entries.iter().any(is_failed)
        && entries.iter().all(|entry| is_failed(entry) || node(ours, entry) == node(fuser, entry))
}

struct Fronts {
    all: [Front; 3],
    unique: u64,
    now_secs: u64,
    seen: Seen,
}

#[derive(Clone, Debug, Default)]
struct Seen {
    differences: [u64; DIFFERENCES.len()],
    operations: BTreeSet<u32>,
    errors: BTreeSet<i32>,
}

impl Seen {
    fn add(&mut self, other: Seen) {
        let counts = self.differences.iter_mut().zip(other.differences);
        counts.for_each(|(count, more)| *count += more);
        self.operations.extend(other.operations);
        self.errors.extend(other.errors);
    }
}

impl Fronts {
    fn open(case: &Case) -> Fronts {
        let server = || {
            let server = Server::new((case.back_end)(), case.options.clone());
            Arc::new(server.expect("start a server"))
        };
        let mut args = Vec::new();
        for word in [7, 40, 131_072, case.offered as u32, (case.offered >> 32) as u32] {
            args.extend(u32::to_ne_bytes(word));
        }
        args.resize(64, 0);
        let init = message(Opcode::INIT, 2, 0, 0, &args);
        let (ring, first) = Front::ring(server(), &init);
        let (device, second) = Front::device(server(), &init);
        let (fuser, mut third) = Front::fuser(server(), &init);
        assert_eq!(first, second, "{}: the first answer", case.name);
        // fuser answers with its own newest version.
        third[OUT_HEADER_BYTES + 4..][..4].copy_from_slice(&40_u32.to_ne_bytes());
        assert_eq!(first, third, "{}: the first answer of fuser", case.name);
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("the clock is set");
        let seen = Seen::default();
        Fronts { all: [ring, device, fuser], unique: 2, now_secs: now.as_secs(), seen }
    }

    fn call(&mut self, request: &Request, place: &str) -> Vec<u8> {
        let opcode = request.opcode;
        let [ours, device, mut fuser] = self.call_all(request, [opcode; 3]);
        assert_eq!(ours, device, "{place}: ring and device differ: {request:?}");
        if opcode == Opcode::COPY_FILE_RANGE_64 && reply::error(&fuser) == Some(Errno::NOSYS) {
            // fuser does not know `COPY_FILE_RANGE_64`. It gets `COPY_FILE_RANGE`, so that its file
            // stays equal to those of the other servers.
            self.seen.differences[0] += 1;
            let older = Request { opcode: Opcode::COPY_FILE_RANGE, ..request.clone() };
            fuser = self.call_one(&older);
            fuser[8..16].copy_from_slice(&ours[8..16]);
        }
        if opcode == Opcode::TMPFILE {
            let [ring, _, fuser] = &mut self.all;
            fuser.skip_symbols_of(ring);
        }
        if ours != fuser {
            let is_it = |difference: &Difference| (difference.explains)(request, &ours, &fuser);
            let found = DIFFERENCES.iter().position(is_it).unwrap_or_else(|| {
                panic!("{place}: {request:?}\nours:  {ours:?}\nfuser: {fuser:?}")
            });
            self.seen.differences[found] += 1;
        }
        if !request.is_forget() {
            match reply::error(&ours) {
                Some(error) => self.seen.errors.insert(error.raw_os_error()),
                None => self.seen.operations.insert(opcode.0),
            };
        }
        ours
    }

    fn call_all(&mut self, request: &Request, opcodes: [Opcode; 3]) -> [Vec<u8>; 3] {
        self.unique += 2;
        for (front, opcode) in self.all.iter().zip(opcodes) {
            front.send(&Request { opcode, ..request.clone() }, self.unique);
        }
        self.all.each_mut().map(|front| match request.is_forget() {
            true => Vec::new(),
            false => masked(front.receive(request.opcode, self.unique), request, self.now_secs),
        })
    }

    fn call_one(&mut self, request: &Request) -> Vec<u8> {
        self.unique += 2;
        let fuser = &mut self.all[2];
        fuser.send(request, self.unique);
        fuser.receive(request.opcode, self.unique)
    }

    fn end(mut self, place: &str) -> Seen {
        self.call(&Request::new(Opcode::DESTROY, 0), place);
        self.all.into_iter().for_each(Front::end);
        self.seen
    }
}

fn masked(mut answer: Vec<u8>, request: &Request, now_secs: u64) -> Vec<u8> {
    reply::mask_times(request.opcode, &mut answer[OUT_HEADER_BYTES..], now_secs);
    answer
}

fn run(case: &Case, rng: Rng, stream: u64) -> Seen {
    let mut fronts = Fronts::open(case);
    let mut kernel = Kernel::new(rng, case.handle);
    for number in 0..case.requests {
        let request = kernel.next();
        let place = format!("case {:?}, stream {stream}, request {number}", case.name);
        let answer = fronts.call(&request, &place);
        if request.is_forget() {
            continue;
        }
        kernel.learn(request.opcode, &answer[OUT_HEADER_BYTES..]);
    }
    let place = format!("case {:?}, stream {stream}, at the end", case.name);
    // When the fronts have answered this request, they have also served all forgets before it.
    fronts.call(&Request::new(Opcode::GETATTR, ROOT).u64(0).u64(0), &place);
    let lookups = fronts.all.each_ref().map(|front| front.server.counters().lookups);
    assert_eq!(lookups[..2], [kernel.lookups(); 2], "{place}: lookups");
    for request in kernel.last() {
        fronts.call(&request, &place);
    }
    fronts.call(&Request::new(Opcode::GETATTR, ROOT).u64(0).u64(0), &place);
    for front in &fronts.all {
        let counters = front.server.counters();
        assert_eq!((counters.lookups, counters.panics), (0, 0), "{place}: {}", front.name);
    }
    fronts.end(&place)
}

fn tmpfs() -> Arc<dyn FileSystem> {
    // tmpfs finds equal extended attributes at a time that depends on the clock. So with sharing,
    // the used space could differ between the servers.
    Arc::new(Tmpfs::new(TmpfsOptions::default().with_share_xattrs(false)))
}

fn small_tmpfs() -> Arc<dyn FileSystem> {
    let options = TmpfsOptions::default().with_share_xattrs(false).with_size_bytes(64 << 10);
    Arc::new(Tmpfs::new(options.with_inodes_max(30)))
}

fn tmpfs_with_handles() -> Arc<dyn FileSystem> {
    Arc::new(Hooked::with_handle(HANDLE))
}

fn case(name: &'static str, options: Options, back_end: fn() -> Arc<dyn FileSystem>) -> Case {
    Case { name, options, offered: OFFERED, handle: 0, back_end, requests: REQUESTS }
}

fn cases() -> [Case; 6] {
    let unequal = Options::exclusive()
        .with_entry_timeout(Duration::from_millis(3500))
        .with_attr_timeout(Duration::from_millis(2250))
        .with_negative_timeout(Duration::from_millis(1125));
    let written_back = Options::exclusive().with_write_cache(WriteCache::Back);
    let checking = Options::shared().with_server_permissions();
    let opens = case("opens", Options::exclusive(), tmpfs);
    let handles = case("handles", written_back, tmpfs_with_handles);
    let full = case("full", Options::exclusive(), small_tmpfs);
    [
        case("exclusive", unequal, tmpfs),
        case("shared", Options::shared(), tmpfs),
        case("permissions", checking, tmpfs),
        Case { offered: OFFERED & !FREE_OPENS, ..opens },
        Case { handle: HANDLE, ..handles },
        // Send fewer requests: each one that finds no space waits for some milliseconds.
        Case { requests: REQUESTS / 4, ..full },
    ]
}

/// A back end whose root directory has two names. The lookup of `broken` fails.
struct Broken;

impl Broken {
    fn kind(ino: u64) -> FileKind {
        if ino == ROOT { FileKind::Directory } else { FileKind::Regular }
    }
}

impl FileSystem for Broken {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::new(ROOT, FileKind::Directory.to_mode() | 0o755))
    }

    fn lookup(&self, _: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        match name.as_bytes() {
            b"whole" => Ok(Attr::new(2, FileKind::Regular.to_mode())),
            b"broken" => Err(Errno::IO),
            _ => Err(Errno::NOENT),
        }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(Attr::new(node.ino(), Broken::kind(node.ino()).to_mode()))
    }

    fn readdir(&self, _: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        for (number, name) in [(1, "broken"), (2, "whole")] {
            let name = Name::new(name.as_bytes())?;
            let entry = DirEntry::new(name, number + 1, FileKind::Regular, number);
            if number > cookie && sink(entry).is_break() {
                break;
            }
        }
        Ok(())
    }

    fn read(&self, _: Node<'_>, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        Ok(0)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }
}

fn list_broken() -> Seen {
    let case = case("broken", Options::shared(), || Arc::new(Broken));
    let mut fronts = Fronts::open(&case);
    for cookie in [0, 2, 3, 4] {
        let request = Request::new(Opcode::READDIRPLUS, ROOT).u64(0).u64(cookie).u32(4096);
        let request = request.u32(0).u64(0).u32(0).u32(0);
        let answer = fronts.call(&request, "case \"broken\"");
        assert_eq!(reply::error(&answer), None);
        let is_listed = cookie < 4;
        assert_eq!(answer.len() > OUT_HEADER_BYTES, is_listed, "cookie {cookie}");
    }
    fronts.end("case \"broken\"")
}

#[test]
fn answers_of_all_fronts_are_equal() {
    let report = ReportSeed::new(Seed::choose());
    let rng = Rng::new(report.seed());
    let mut seen = list_broken();
    for (number, case) in (0..).zip(cases()) {
        for stream in 0..STREAMS {
            seen.add(run(&case, rng.fork(number * STREAMS + stream), stream));
        }
    }
    println!("operations that have succeeded: {:?}", seen.operations);
    println!("errors: {:?}", seen.errors);
    for (difference, count) in DIFFERENCES.iter().zip(seen.differences) {
        println!("{count} times: {}", difference.reason);
        assert!(count > 0, "no request shows that {}", difference.reason);
    }
    for operation in OPERATIONS {
        assert!(seen.operations.contains(&operation.0), "{operation:?} never succeeds");
    }
    for error in [Errno::NOSPC, Errno::STALE, Errno::NAMETOOLONG, Errno::RANGE, Errno::NODATA] {
        assert!(seen.errors.contains(&error.raw_os_error()), "no answer has the error {error}");
    }
}
