//! The least server that answers the requests of the benchmark `fuse-metadata`. The difference
//! between it and corewalk is the cost of everything above the transport.
//!
//! The server has one map of inodes under one lock. It checks no permissions, counts no lookups,
//! and keeps no content and no extended attributes. A directory has no `.` and no `..`, and a file
//! has one name.
//!
//! # The same transport
//! The transports of `corewalk-fuse` serve no other servers than its own. So this server uses the
//! part below them, the rings of [`FuseRing`], as `corewalk mount tmpfs` does by default. It also
//! asks for the same features and turns off the same requests, so it gets the same requests.
//! Without FUSE over io_uring it does not mount.
//!
//! Source: Linux `include/uapi/linux/fuse.h`.

use std::collections::{BTreeMap, HashMap};
use std::ffi::CString;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd as _, AsRawFd as _};
use std::path::Path;

use anyhow::{Context as _, ensure};
use corewalk::Errno;
use corewalk_base::{Mutex, primitives::thread};
use corewalk_fuse_ring::device::possible_cpus;
use corewalk_fuse_ring::{FuseRing, RingRequest};
use rustix::io::read;
use rustix::mount::{MountFlags, mount};

use crate::cpus;

/// The mode of every directory.
const DIRECTORY: u64 = 0o40755;
const IN_HEADER_BYTES: usize = 40;
const OUT_HEADER_BYTES: u64 = 16;
/// Maximum number of data bytes in a request.
const PAYLOAD_BYTES: usize = 1 << 20;
/// Number of entries of each queue of a ring, the same as in corewalk.
const DEPTH: usize = 8;
/// The features that corewalk chooses for a tmpfs with timeouts 0. They are `ASYNC_READ`,
/// `EXPORT_SUPPORT`, `BIG_WRITES`, `DONT_MASK`, `HAS_IOCTL_DIR`, `ASYNC_DIO`, `NO_OPEN_SUPPORT`,
/// `PARALLEL_DIROPS`, `POSIX_ACL`, `MAX_PAGES`, `CACHE_SYMLINKS`, `NO_OPENDIR_SUPPORT`,
/// `HANDLE_KILLPRIV_V2`, `SETXATTR_EXT`, `INIT_EXT`, and `OVER_IO_URING`.
const FEATURES: u64 = 0x71d6_8871 | 1 << 41;
/// The lower half of a word.
const LOW: u64 = 0xffff_ffff;

/// All inodes, by number.
#[derive(Default)]
struct Inodes {
    by_number: HashMap<u64, Inode>,
    last: u64,
}

#[derive(Default)]
struct Inode {
    mode: u64,
    size: u64,
    children: BTreeMap<Box<[u8]>, u64>,
}

/// A request: its operation, its inode, its fixed arguments, and its names and data.
struct Request<'a> {
    opcode: u64,
    node: u64,
    args: &'a [u8],
    rest: &'a [u8],
}

/// Mounts on `point`, and serves with `threads` threads until the mount ends.
///
/// # Errors
/// The errors of mount(2), which only root may call, of the FUSE device and of io_uring; an error
/// if the kernel does not offer FUSE over io_uring.
pub(crate) fn serve(threads: usize, point: &Path) -> anyhow::Result<()> {
    let device = File::options().read(true).write(true).open("/dev/fuse").context("/dev/fuse")?;
    let who = "rootmode=40000,user_id=0,group_id=0,default_permissions,allow_other";
    let options = CString::new(format!("fd={},{who}", device.as_raw_fd()))?;
    mount("trivial", point, "fuse", MountFlags::NOSUID, &*options).context("mount(2)")?;
    let count = possible_cpus()?;
    let threads = threads.min(count.into());
    let ring = |first| -> io::Result<_> {
        let queues: Vec<u16> = (first..count).step_by(threads).collect();
        Ok((FuseRing::new(device.as_fd(), &queues, DEPTH, PAYLOAD_BYTES)?, queues))
    };
    let rings = (0..threads as u16).map(ring).collect::<io::Result<Vec<_>>>()?;
    open_connection(&device)?;
    let inodes = &Mutex::new(Inodes::default());
    inodes.lock().add(DIRECTORY);
    thread::scope(|scope| {
        for (ring, queues) in rings {
            scope.spawn(move || {
                // A thread with one queue stays on the processor of the queue.
                queues[1..].is_empty().then(|| cpus::pin(queues[0].into()));
                serve_ring(ring, inodes)
            });
        }
        // A forget has no answer, so it does not arrive in a ring. Read and ignore the forgets
        // here, with the pauses of corewalk.
        while read(&device, &mut [0; 8192]).is_ok() {
            thread::sleep(std::time::Duration::from_micros(250));
        }
    });
    Ok(())
}

/// Answers the request that opens the connection.
fn open_connection(device: &File) -> anyhow::Result<()> {
    let mut request = [0; 8192];
    read(device, &mut request)?;
    let word = |at| word(&request[IN_HEADER_BYTES..], at);
    let offered = word(8) >> 32 | word(16) << 32;
    ensure!(offered & FEATURES == FEATURES, "the kernel does not offer FUSE over io_uring");
    let pages = (PAYLOAD_BYTES / rustix::param::page_size()) as u64;
    let answer = [
        OUT_HEADER_BYTES + 64,
        self::word(&request, 8),
        word(0),
        word(8) & LOW | FEATURES << 32,
        64 | 48 << 16 | (PAYLOAD_BYTES as u64) << 32,
        1 | pages << 32,
        FEATURES >> 32,
        0,
        0,
        0,
    ];
    let mut bytes = [0; 80];
    put(&mut bytes, &answer);
    rustix::io::write(device, &bytes)?;
    Ok(())
}

/// Serves the requests that arrive in a ring.
fn serve_ring(mut ring: FuseRing, inodes: &Mutex<Inodes>) -> io::Result<()> {
    let mut rest = vec![0; PAYLOAD_BYTES];
    while ring.live() > 0 {
        ring.wait()?;
        let Some(entry) = ring.next_request() else { continue };
        let RingRequest { header, op_in, payload, payload_len } = ring.request(&entry);
        // The answer will overwrite the payload, so copy the names and the data first.
        rest[..payload_len].copy_from_slice(&payload[..payload_len]);
        let (opcode, node) = (word(header, 0) >> 32, word(header, 16));
        let request = Request { opcode, node, args: op_in, rest: &rest[..payload_len] };
        let result = inodes.lock().answer(&request, payload);
        ring.reply(entry, result);
    }
    Ok(())
}

impl<'a> Request<'a> {
    /// Returns the name number `n`.
    fn name(&self, n: usize) -> Result<&'a [u8], Errno> {
        self.rest.split(|byte| *byte == 0).nth(n).ok_or(Errno::IO)
    }
}

impl Inodes {
    /// Serves a request: writes the body of the answer into `out`, and returns its length.
    fn answer(&mut self, request: &Request<'_>, out: &mut [u8]) -> Result<usize, Errno> {
        let (node, arg) = (request.node, |at| word(request.args, at));
        match request.opcode {
            // LOOKUP.
            1 => {
                let child = self.get(node)?.children.get(request.name(0)?).copied();
                self.entry(child.ok_or(Errno::NOENT)?, out)
            }
            // GETATTR.
            3 => {
                let attr = self.attr(node)?;
                Ok(put(out, &[0, 0]) + put(&mut out[16..], &attr))
            }
            // MKDIR and CREATE. The answer to CREATE also has an open file.
            9 | 35 => {
                let is_dir = request.opcode == 9;
                let new = self.add(if is_dir { DIRECTORY } else { arg(0) >> 32 });
                self.get(node)?.children.insert(request.name(0)?.into(), new);
                let bytes = self.entry(new, out)?;
                Ok(if is_dir { bytes } else { bytes + put(&mut out[bytes..], &[0, 0]) })
            }
            // UNLINK and RMDIR.
            10 | 11 => {
                let child = self.get(node)?.children.remove(request.name(0)?);
                self.by_number.remove(&child.ok_or(Errno::NOENT)?);
                Ok(0)
            }
            // RENAME to a new name.
            12 => {
                let child = self.get(node)?.children.remove(request.name(0)?);
                let child = child.ok_or(Errno::NOENT)?;
                self.get(arg(0))?.children.insert(request.name(1)?.into(), child);
                Ok(0)
            }
            // WRITE.
            16 => {
                let (len, file) = (arg(16) & LOW, self.get(node)?);
                file.size = file.size.max(arg(8) + len);
                Ok(put(out, &[len]))
            }
            // RELEASE, FSYNC and SETXATTR.
            18 | 20 | 21 => Ok(0),
            // GETXATTR.
            22 => Err(Errno::NODATA),
            // READDIR.
            28 => self.list(node, arg(8), (arg(16) & LOW) as usize, out),
            // After this error the kernel does not send the operation again. Examples are OPEN and
            // FLUSH.
            _ => Err(Errno::NOSYS),
        }
    }

    fn get(&mut self, number: u64) -> Result<&mut Inode, Errno> {
        self.by_number.get_mut(&number).ok_or(Errno::STALE)
    }

    /// Adds an inode, and returns its number.
    fn add(&mut self, mode: u64) -> u64 {
        self.last += 1;
        self.by_number.insert(self.last, Inode { mode, ..Inode::default() });
        self.last
    }

    /// Returns a `struct fuse_attr` in words of 64 bits.
    fn attr(&mut self, number: u64) -> Result<[u64; 11], Errno> {
        let Inode { mode, size, .. } = *self.get(number)?;
        Ok([number, size, size.div_ceil(512), 0, 0, 0, 0, mode << 32, 1, 0, 4096])
    }

    /// Writes a `struct fuse_entry_out` with timeouts of 0.
    fn entry(&mut self, number: u64, out: &mut [u8]) -> Result<usize, Errno> {
        let attr = self.attr(number)?;
        Ok(put(out, &[number, 0, 0, 0, 0]) + put(&mut out[40..], &attr))
    }

    /// Writes as many entries of a directory as fit into `most` bytes, without the first `skipped`.
    fn list(
        &mut self,
        dir: u64,
        skipped: u64,
        most: usize,
        out: &mut [u8],
    ) -> Result<usize, Errno> {
        let mut len = 0;
        let children = &self.by_number.get(&dir).ok_or(Errno::STALE)?.children;
        for (place, (name, child)) in (1..).zip(children).skip(skipped as usize) {
            let bytes = (24 + name.len()).next_multiple_of(8);
            let Some(entry) = out[..most].get_mut(len..len + bytes) else { break };
            let kind = self.by_number.get(child).map_or(0, |child| child.mode >> 12);
            put(entry, &[*child, place, name.len() as u64 | kind << 32]);
            entry[24..][..name.len()].copy_from_slice(name);
            len += bytes;
        }
        Ok(len)
    }
}

/// Returns the word of 64 bits at byte `at`. The machine is little-endian, so its lower half is the
/// word of 32 bits there.
fn word(bytes: &[u8], at: usize) -> u64 {
    bytes[at..].first_chunk().map_or(0, |word| u64::from_le_bytes(*word))
}

/// Writes words, and returns their length in bytes.
fn put(out: &mut [u8], words: &[u64]) -> usize {
    let (places, _) = out.as_chunks_mut();
    places.iter_mut().zip(words).for_each(|(place, word)| *place = word.to_le_bytes());
    8 * words.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the body of the answer to a request about the inode `node`.
    fn ask(inodes: &mut Inodes, opcode: u64, node: u64, args: &[u64], rest: &[u8]) -> Vec<u8> {
        let mut fixed = [0; 48];
        put(&mut fixed, args);
        let request = Request { opcode, node, args: &fixed, rest };
        let mut out = vec![0; 4096];
        let len = inodes.answer(&request, &mut out).unwrap_or_else(|error| panic!("{error}"));
        out.truncate(len);
        out
    }

    #[test]
    fn file_is_found_listed_renamed_written_and_gone() {
        let inodes = &mut Inodes::default();
        let root = inodes.add(DIRECTORY);
        let made = ask(inodes, 35, root, &[0o100_644 << 32], b"a\0");
        let file = word(&made, 0);
        assert_eq!((made.len(), ask(inodes, 1, root, &[], b"a\0").len()), (144, 128));
        ask(inodes, 12, root, &[root], b"a\0b\0");
        assert_eq!(word(&ask(inodes, 16, file, &[0, 4000, 96], b""), 0), 96);
        let attr = ask(inodes, 3, file, &[], b"");
        assert_eq!((attr.len(), word(&attr, 24), word(&attr, 72) >> 32), (104, 4096, 0o100_644));
        let listed = ask(inodes, 28, root, &[0, 0, 4096], b"");
        assert_eq!((listed.len(), word(&listed, 0), &listed[24..26]), (32, file, &b"b\0"[..]));
        assert!(ask(inodes, 28, root, &[0, 1, 4096], b"").is_empty());
        ask(inodes, 10, root, &[], b"b\0");
        assert_eq!((inodes.by_number.len(), inodes.get(root).unwrap().children.len()), (1, 0));
    }
}
