//! A generator of requests, which plays the kernel.
//!
//! The generator knows which nodes the kernel would hold, and how many lookups of each node. So
//! most requests succeed, and forgets return the counted lookups. Some requests have a bad name, a
//! wrong node, or a size that is too small.
//!
//! The same request goes to three servers (the fronts), which have different numbers for a node. So
//! a request names a node by a symbol: the position at which the node first appeared in an answer.

use std::collections::BTreeMap;

use corewalk_testkit::rng::Rng;

use super::reply::{self, Entry};
use crate::wire::Opcode;

/// The symbol of the root directory equals its node number.
pub(super) const ROOT: u64 = 1;
const UNKNOWN_NODE: u64 = 0xdead_beef_0000_0000;
/// Does not fit `loff_t`.
const OFFSET_TOO_LARGE: u64 = 1 << 63;
const BATCH_MAX: u64 = 5;

#[derive(Clone, Debug)]
pub(super) struct Request {
    pub(super) opcode: Opcode,
    pub(super) node: u64,
    pub(super) uid: u32,
    /// The fixed arguments. Over io_uring, they arrive in a separate buffer.
    pub(super) fixed: Vec<u8>,
    pub(super) rest: Vec<u8>,
    pub(super) nodes: Vec<usize>,
}

impl Request {
    pub(super) fn new(opcode: Opcode, node: u64) -> Request {
        Request { opcode, node, uid: 0, fixed: Vec::new(), rest: Vec::new(), nodes: Vec::new() }
    }

    pub(super) fn u32(mut self, word: u32) -> Request {
        self.fixed.extend(word.to_ne_bytes());
        self
    }

    pub(super) fn u64(mut self, word: u64) -> Request {
        self.fixed.extend(word.to_ne_bytes());
        self
    }

    fn node(mut self, node: u64) -> Request {
        self.nodes.push(self.fixed.len());
        self.u64(node)
    }

    fn name(mut self, name: &[u8]) -> Request {
        self.rest.extend(name);
        self.rest.push(0);
        self
    }

    fn data(mut self, data: &[u8]) -> Request {
        self.rest.extend(data);
        self
    }

    pub(super) fn is_forget(&self) -> bool {
        matches!(self.opcode, Opcode::FORGET | Opcode::BATCH_FORGET)
    }
}

#[derive(Clone, Copy, Debug)]
struct Held {
    lookups: u64,
    is_dir: bool,
}

#[derive(Debug)]
pub(super) struct Kernel {
    rng: Rng,
    held: BTreeMap<u64, Held>,
    cookie: u64,
    handle: u64,
    pending: Option<Request>,
}

type Kind = (u64, fn(&mut Kernel) -> Request);

const KINDS: [Kind; 33] = [
    (12, Kernel::lookup),
    (6, Kernel::create),
    (6, Kernel::mknod),
    (5, Kernel::mkdir),
    (3, Kernel::symlink),
    (4, Kernel::link),
    (7, Kernel::write),
    (7, Kernel::read),
    (8, Kernel::setattr),
    (3, Kernel::getattr),
    (5, Kernel::rename),
    (4, Kernel::remove),
    (4, Kernel::readdir),
    (4, Kernel::setxattr),
    (4, Kernel::getxattr),
    (2, Kernel::listxattr),
    (2, Kernel::removexattr),
    (1, Kernel::statfs),
    (2, Kernel::access),
    (2, Kernel::fallocate),
    (2, Kernel::lseek),
    (3, Kernel::copy),
    (2, Kernel::open),
    (1, Kernel::opendir),
    (2, Kernel::release),
    (2, Kernel::fsync),
    (1, Kernel::flush),
    (4, Kernel::forget),
    (2, Kernel::batch_forget),
    (1, Kernel::readlink),
    (1, Kernel::ioctl),
    (1, Kernel::tmpfile),
    (1, Kernel::unknown),
];

impl Kernel {
    pub(super) fn new(rng: Rng, handle: u64) -> Kernel {
        Kernel { rng, held: BTreeMap::new(), cookie: 0, handle, pending: None }
    }

    pub(super) fn next(&mut self) -> Request {
        if let Some(pending) = self.pending.take() {
            return pending;
        }
        let all = KINDS.iter().map(|kind| kind.0).sum();
        let mut number = self.rng.below(all);
        let make = KINDS.iter().find(|(share, _)| {
            let is_it = number < *share;
            number = number.saturating_sub(*share);
            is_it
        });
        let mut request = make.expect("the number is below the sum of the shares").1(self);
        request.uid = *self.rng.pick(&[0, 0, 0, 1000]);
        request
    }

    pub(super) fn last(&mut self) -> Vec<Request> {
        let held = std::mem::take(&mut self.held);
        let pending = self.pending.take();
        let forget =
            |(node, held): (u64, Held)| Request::new(Opcode::FORGET, node).u64(held.lookups);
        held.into_iter().map(forget).chain(pending).collect()
    }

    pub(super) fn lookups(&self) -> u64 {
        let held: u64 = self.held.values().map(|held| held.lookups).sum();
        held + u64::from(self.pending.is_some())
    }

    /// `body` names nodes by symbols.
    pub(super) fn learn(&mut self, opcode: Opcode, body: &[u8]) {
        for Entry { start, name, cookie, .. } in reply::entries(opcode, body) {
            self.cookie = cookie;
            if opcode == Opcode::READDIRPLUS && !matches!(name, b"." | b"..") {
                self.hold(&body[start..]);
            }
        }
        if body.is_empty() || !reply::is_entry(opcode) {
            return;
        }
        if opcode == Opcode::TMPFILE {
            // fuser does not know `TMPFILE`, so only the other two servers have made the file. The
            // next request forgets it, so that no other request uses its node number.
            self.pending = Some(Request::new(Opcode::FORGET, reply::u64_at(body, 0)).u64(1));
        } else {
            self.hold(body);
        }
    }

    fn hold(&mut self, entry: &[u8]) {
        let (node, mode) = (reply::u64_at(entry, 0), reply::u32_at(entry, 100));
        if node == 0 || node == ROOT {
            return;
        }
        let is_dir = mode & 0o170_000 == 0o040_000;
        self.held.entry(node).or_insert(Held { lookups: 0, is_dir }).lookups += 1;
    }

    fn any(&mut self, is_fit: impl Fn(&Held) -> bool) -> Option<u64> {
        let nodes: Vec<u64> =
            self.held.iter().filter(|(_, held)| is_fit(held)).map(|(node, _)| *node).collect();
        (!nodes.is_empty()).then(|| *self.rng.pick(&nodes))
    }

    fn dir(&mut self) -> u64 {
        match self.rng.below(20) {
            0 => self.wrong_node(),
            1 => self.any(|_| true).unwrap_or(ROOT),
            2..10 => self.any(|held| held.is_dir).unwrap_or(ROOT),
            _ => ROOT,
        }
    }

    fn file(&mut self) -> u64 {
        match self.rng.below(20) {
            0 => self.wrong_node(),
            1 => ROOT,
            _ => self.any(|held| !held.is_dir).unwrap_or(ROOT),
        }
    }

    fn node(&mut self) -> u64 {
        if self.rng.chance(1, 2) { self.dir() } else { self.file() }
    }

    /// Returns a node number that the kernel does not hold. A server may keep a forgotten node in
    /// its cache for a while, so the number must be one that was never used.
    fn wrong_node(&mut self) -> u64 {
        *self.rng.pick(&[UNKNOWN_NODE, 0, u64::MAX])
    }

    fn file_name(&mut self) -> Vec<u8> {
        match self.rng.below(40) {
            0 => Vec::new(),
            1 => b".".to_vec(),
            2 => b"..".to_vec(),
            3 => b"a/b".to_vec(),
            4 => b"/".to_vec(),
            5 => vec![b'n'; 256],
            6 => vec![b'n'; 1000],
            7 => vec![b'n'; 255],
            8 => vec![0xff, 0xfe],
            _ => format!("name{}", self.rng.below(12)).into_bytes(),
        }
    }

    fn file_handle(&mut self) -> u64 {
        if self.rng.chance(1, 20) { self.handle + 1 } else { self.handle }
    }

    fn offset(&mut self) -> u64 {
        match self.rng.below(30) {
            0 => OFFSET_TOO_LARGE,
            1 => u64::MAX,
            2 => OFFSET_TOO_LARGE - 1,
            3 => 1 << 40,
            4..10 => 0,
            _ => self.rng.below(20_000),
        }
    }

    fn bytes(&mut self, max: u64) -> Vec<u8> {
        let mut bytes = vec![0; self.rng.below(max + 1) as usize];
        self.rng.fill(&mut bytes);
        bytes
    }

    fn mode(&mut self) -> u32 {
        self.rng.below(0o10000) as u32
    }

    fn umask(&mut self) -> u32 {
        *self.rng.pick(&[0, 0o022, 0o077, 0o777])
    }

    fn lookup(&mut self) -> Request {
        Request::new(Opcode::LOOKUP, self.dir()).name(&self.file_name())
    }

    fn create(&mut self) -> Request {
        let flags = *self.rng.pick(&[0o102, 0o100, 0o301, 0o1102]);
        let request = Request::new(Opcode::CREATE, self.dir());
        request
            .u32(flags)
            .u32(0o100_000 | self.mode())
            .u32(self.umask())
            .u32(0)
            .name(&self.file_name())
    }

    fn tmpfile(&mut self) -> Request {
        let request = Request::new(Opcode::TMPFILE, self.dir());
        request.u32(2).u32(0o100_000 | self.mode()).u32(self.umask()).u32(0).name(&self.file_name())
    }

    fn mknod(&mut self) -> Request {
        let kinds = [0o100_000, 0o100_000, 0o100_000, 0o010_000, 0o020_000, 0o060_000, 0o140_000];
        let mode = *self.rng.pick(&kinds) | self.mode();
        let rdev = self.rng.next_u64() as u32;
        let request = Request::new(Opcode::MKNOD, self.dir());
        request.u32(mode).u32(rdev).u32(self.umask()).u32(0).name(&self.file_name())
    }

    fn mkdir(&mut self) -> Request {
        let request = Request::new(Opcode::MKDIR, self.dir());
        request.u32(self.mode()).u32(self.umask()).name(&self.file_name())
    }

    fn symlink(&mut self) -> Request {
        let target = vec![b't'; self.rng.below(300) as usize];
        Request::new(Opcode::SYMLINK, self.dir()).name(&self.file_name()).name(&target)
    }

    fn link(&mut self) -> Request {
        let request = Request::new(Opcode::LINK, self.dir());
        request.node(self.file()).name(&self.file_name())
    }

    fn rename(&mut self) -> Request {
        let (old, new) = (self.dir(), self.dir());
        let request = match self.rng.chance(1, 2) {
            true => Request::new(Opcode::RENAME, old).node(new),
            false => {
                let flags = *self.rng.pick(&[0, 1, 1, 2, 2, 4, 3, 8, u32::MAX]);
                Request::new(Opcode::RENAME2, old).node(new).u32(flags).u32(0)
            }
        };
        request.name(&self.file_name()).name(&self.file_name())
    }

    fn remove(&mut self) -> Request {
        let opcode = *self.rng.pick(&[Opcode::UNLINK, Opcode::RMDIR]);
        Request::new(opcode, self.dir()).name(&self.file_name())
    }

    fn write(&mut self) -> Request {
        let max = *self.rng.pick(&[0, 10, 5000, 5000, 5000, 100_000]);
        let data = self.bytes(max);
        let write_flags = *self.rng.pick(&[0, 0, 1, 2, 4]);
        // Two values of the open(2) flags without `O_APPEND`, and one with it.
        let flags = *self.rng.pick(&[1, 2, 0o2001]);
        let request = Request::new(Opcode::WRITE, self.file()).u64(self.file_handle());
        let request = request.u64(self.offset()).u32(data.len() as u32).u32(write_flags);
        request.u64(0).u32(flags).u32(0).data(&data)
    }

    fn read(&mut self) -> Request {
        let size = *self.rng.pick(&[0, 1, 100, 4096, 4096, 131_072]);
        let request = Request::new(Opcode::READ, self.file()).u64(self.file_handle());
        request.u64(self.offset()).u32(size).u32(2).u64(3).u32(0).u32(0)
    }

    fn setattr(&mut self) -> Request {
        let valid = match self.rng.below(3) {
            0 => 1 << self.rng.below(11),
            1 => self.rng.next_u64() as u32 & self.rng.next_u64() as u32 & 0x7ff,
            _ => self.rng.next_u64() as u32 & 0x7ff,
        };
        let sizes = [0, 1, 5000, 10_000, 20_000, 1 << 40, OFFSET_TOO_LARGE - 1, u64::MAX];
        // With another owner or mode of the root, most later requests could fail.
        let node = self.any(|_| true).filter(|_| !self.rng.chance(1, 20));
        let node = node.unwrap_or_else(|| self.wrong_node());
        let request = Request::new(Opcode::SETATTR, node).u32(valid).u32(0);
        let mut request = request.u64(self.file_handle()).u64(*self.rng.pick(&sizes)).u64(0);
        for _ in 0..3 {
            let secs: i64 =
                *self.rng.pick(&[0, 1, -1, -2, 1 << 33, -(1 << 33), 1 << 40, -(1 << 40)]);
            request = request.u64(secs as u64);
        }
        for _ in 0..3 {
            request = request.u32(*self.rng.pick(&[0, 1, 500_000_000, 999_999_999]));
        }
        let (uid, gid) = (*self.rng.pick(&[0, 1000, 1001]), *self.rng.pick(&[0, 1000, 1001]));
        request.u32(self.mode()).u32(0).u32(uid).u32(gid).u32(0)
    }

    fn getattr(&mut self) -> Request {
        let flags = self.rng.below(2) as u32;
        Request::new(Opcode::GETATTR, self.node()).u32(flags).u32(0).u64(self.file_handle())
    }

    fn readlink(&mut self) -> Request {
        Request::new(Opcode::READLINK, self.file())
    }

    fn readdir(&mut self) -> Request {
        let opcode = *self.rng.pick(&[Opcode::READDIR, Opcode::READDIRPLUS]);
        let size = *self.rng.pick(&[0, 24, 32, 160, 200, 512, 1000, 4096, 4096, 32_768, 131_072]);
        let cookie = match self.rng.below(8) {
            0..4 => 0,
            4 => self.rng.below(6),
            5 => *self.rng.pick(&[u64::MAX, i64::MAX as u64, i64::MAX as u64 - 1]),
            _ => self.cookie,
        };
        let request = Request::new(opcode, self.dir()).u64(self.file_handle()).u64(cookie);
        let request = request.u32(size);
        request.u32(0).u64(0).u32(0).u32(0)
    }

    fn xattr_name(&mut self) -> &'static [u8] {
        self.rng.pick::<&[u8]>(&[
            b"user.a",
            b"user.a",
            b"user.b",
            b"user.b",
            b"trusted.t",
            b"security.s",
            b"system.posix_acl_access",
            b"system.posix_acl_default",
            b"system.other",
            b"user.",
            b"none",
            b"",
            b"user.corewalk.prune",
        ])
    }

    fn setxattr(&mut self) -> Request {
        let name = self.xattr_name();
        let value = match (name.starts_with(b"system.posix_acl"), self.rng.below(4)) {
            (true, 1..) => {
                // An ACL of version 2 for owner, group and others.
                let entry = |tag: u8, bits| [tag, 0, bits, 0, 0xff, 0xff, 0xff, 0xff];
                let bits = self.rng.below(8) as u8;
                [&[2, 0, 0, 0][..], &entry(1, 6), &entry(4, bits), &entry(0x20, 0)].concat()
            }
            (_, 0) => {
                let max = *self.rng.pick(&[3, 300, 5000, 65_536, 65_537]);
                self.bytes(max)
            }
            _ => self.bytes(20),
        };
        let flags = *self.rng.pick(&[0, 0, 0, 1, 2, 3, 4]);
        let request = Request::new(Opcode::SETXATTR, self.node());
        request.u32(value.len() as u32).u32(flags).name(name).data(&value)
    }

    fn xattr_size(&mut self) -> u32 {
        *self.rng.pick(&[0, 0, 1, 20, 28, 300, 65_536])
    }

    fn getxattr(&mut self) -> Request {
        let request = Request::new(Opcode::GETXATTR, self.node());
        request.u32(self.xattr_size()).u32(0).name(self.xattr_name())
    }

    fn listxattr(&mut self) -> Request {
        Request::new(Opcode::LISTXATTR, self.node()).u32(self.xattr_size()).u32(0)
    }

    fn removexattr(&mut self) -> Request {
        Request::new(Opcode::REMOVEXATTR, self.node()).name(self.xattr_name())
    }

    fn statfs(&mut self) -> Request {
        Request::new(Opcode::STATFS, self.node())
    }

    fn access(&mut self) -> Request {
        let mask = *self.rng.pick(&[0, 1, 2, 4, 7, 8, u32::MAX]);
        Request::new(Opcode::ACCESS, self.node()).u32(mask).u32(0)
    }

    fn fallocate(&mut self) -> Request {
        let len = *self.rng.pick(&[0, 1, 4096, 10_000, OFFSET_TOO_LARGE, u64::MAX]);
        let flags = *self.rng.pick(&[0, 1, 3, 3, 0x10, 0x11, 8, 0x20, 0x40, 0x1000]);
        let request = Request::new(Opcode::FALLOCATE, self.file()).u64(self.file_handle());
        let offset = if flags & 8 == 0 { self.offset() } else { 4096 * self.rng.below(4) };
        request.u64(offset).u64(len).u32(flags).u32(0)
    }

    fn lseek(&mut self) -> Request {
        let whence = *self.rng.pick(&[3, 4, 3, 4, 0, u32::MAX]);
        let request = Request::new(Opcode::LSEEK, self.file()).u64(self.file_handle());
        request.u64(self.offset()).u32(whence).u32(0)
    }

    fn copy(&mut self) -> Request {
        let opcode = *self.rng.pick(&[Opcode::COPY_FILE_RANGE, Opcode::COPY_FILE_RANGE_64]);
        let len = *self.rng.pick(&[0, 1, 4096, 10_000, 200_000]);
        let request = Request::new(opcode, self.file()).u64(self.file_handle()).u64(self.offset());
        let request = request.node(self.file()).u64(self.file_handle()).u64(self.offset());
        request.u64(len).u64(0)
    }

    fn open(&mut self) -> Request {
        // The open(2) flags for reading, for writing, for both, with `O_TRUNC`, and for execve(2).
        let flags = *self.rng.pick(&[0, 1, 2, 0o1001, 0o1002, 0x20]);
        Request::new(Opcode::OPEN, self.file()).u32(flags).u32(0)
    }

    fn opendir(&mut self) -> Request {
        Request::new(Opcode::OPENDIR, self.dir()).u32(0o200_000).u32(0)
    }

    fn release(&mut self) -> Request {
        let opcode = *self.rng.pick(&[Opcode::RELEASE, Opcode::RELEASEDIR]);
        Request::new(opcode, self.node()).u64(self.file_handle()).u32(0).u32(0).u64(0)
    }

    fn fsync(&mut self) -> Request {
        let opcode = *self.rng.pick(&[Opcode::FSYNC, Opcode::FSYNCDIR]);
        let flags = self.rng.below(2) as u32;
        Request::new(opcode, self.node()).u64(self.file_handle()).u32(flags).u32(0)
    }

    fn flush(&mut self) -> Request {
        Request::new(Opcode::FLUSH, self.file()).u64(self.file_handle()).u64(0).u64(0)
    }

    fn returned(&mut self) -> (u64, u64) {
        let Some(node) = self.any(|_| true).filter(|_| !self.rng.chance(1, 20)) else {
            let node = self.wrong_node();
            let is_held = self.held.contains_key(&node);
            return (if is_held { UNKNOWN_NODE } else { node }, 1 + self.rng.below(3));
        };
        let lookups = self.held[&node].lookups;
        if self.rng.chance(1, 20) {
            return (node, lookups + 1);
        }
        let count = 1 + self.rng.below(lookups);
        if count == lookups {
            self.held.remove(&node);
        } else if let Some(held) = self.held.get_mut(&node) {
            held.lookups -= count;
        }
        (node, count)
    }

    fn forget(&mut self) -> Request {
        let (node, count) = self.returned();
        Request::new(Opcode::FORGET, node).u64(count)
    }

    fn batch_forget(&mut self) -> Request {
        let count = self.rng.below(BATCH_MAX + 1);
        let mut request = Request::new(Opcode::BATCH_FORGET, 0).u32(count as u32).u32(0);
        for _ in 0..count {
            let (node, lookups) = self.returned();
            request.nodes.push(request.fixed.len() + request.rest.len());
            request.rest.extend([node, lookups].iter().flat_map(|word| word.to_ne_bytes()));
        }
        request
    }

    fn ioctl(&mut self) -> Request {
        let flags = *self.rng.pick(&[0, 0, 1, 2]);
        let data = self.bytes(16);
        let request = Request::new(Opcode::IOCTL, self.node()).u64(self.file_handle());
        // The commands are one for a terminal, and three that read or set inode flags. tmpfs
        // supports none of them.
        let command = *self.rng.pick(&[0x5401, 0x8008_6601, 0x4008_6602, 0x801c_581f]);
        let request = request.u32(flags).u32(command).u64(0).u32(data.len() as u32).u32(64);
        request.data(&data)
    }

    /// Returns a request with an opcode that the servers refuse. `INTERRUPT` is not among these
    /// opcodes: fuser answers it, but the other servers may answer nothing.
    fn unknown(&mut self) -> Request {
        // The opcodes are file locks (31 to 33), bmap (37), poll (40), syncfs (50), and four that
        // no FUSE operation has.
        let opcodes = [31, 32, 33, 37, 40, 50, 7, 19, 1000, u32::MAX];
        let opcode = Opcode(*self.rng.pick(&opcodes));
        let request = Request::new(opcode, self.node());
        let words = if opcode == Opcode::POLL { 3 } else { 6 };
        (0..words).fold(request, |request, _| request.u64(0))
    }
}
