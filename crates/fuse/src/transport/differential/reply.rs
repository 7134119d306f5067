//! The layout of answers, by which the test finds their node numbers and times.

use corewalk::Errno;

use crate::wire::Opcode;

const ENTRY_BYTES: usize = 128;
const ENTRY_ATTR: usize = 40;
const ATTR_ATTR: usize = 16;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Entry<'a> {
    pub(super) start: usize,
    pub(super) dirent: usize,
    pub(super) cookie: u64,
    pub(super) kind: u32,
    pub(super) name: &'a [u8],
}

pub(super) fn u32_at(bytes: &[u8], at: usize) -> u32 {
    u32::from_ne_bytes(bytes[at..at + 4].try_into().expect("four bytes"))
}

pub(super) fn u64_at(bytes: &[u8], at: usize) -> u64 {
    u64::from_ne_bytes(bytes[at..at + 8].try_into().expect("eight bytes"))
}

pub(super) fn put_u64(bytes: &mut [u8], at: usize, word: u64) {
    bytes[at..at + 8].copy_from_slice(&word.to_ne_bytes());
}

pub(super) fn is_entry(opcode: Opcode) -> bool {
    matches!(
        opcode,
        Opcode::LOOKUP
            | Opcode::SYMLINK
            | Opcode::MKNOD
            | Opcode::MKDIR
            | Opcode::LINK
            | Opcode::CREATE
            | Opcode::TMPFILE
    )
}

pub(super) fn error(answer: &[u8]) -> Option<Errno> {
    let error = u32_at(answer, 4) as i32;
    (error != 0).then(|| Errno::from_raw_os_error(-error))
}

pub(super) fn entries(opcode: Opcode, body: &[u8]) -> Vec<Entry<'_>> {
    let before = match opcode {
        Opcode::READDIR => 0,
        Opcode::READDIRPLUS => ENTRY_BYTES,
        _ => return Vec::new(),
    };
    let (mut entries, mut start) = (Vec::new(), 0);
    while start < body.len() {
        let dirent = start + before;
        let name_bytes = u32_at(body, dirent + 16) as usize;
        let name = &body[dirent + 24..][..name_bytes];
        let (cookie, kind) = (u64_at(body, dirent + 8), u32_at(body, dirent + 20));
        entries.push(Entry { start, dirent, cookie, kind, name });
        start = dirent + (24 + name_bytes).next_multiple_of(8);
    }
    entries
}

pub(super) fn attributes(opcode: Opcode, body: &[u8]) -> Vec<usize> {
    match opcode {
        _ if body.is_empty() => Vec::new(),
        Opcode::GETATTR | Opcode::SETATTR => vec![ATTR_ATTR],
        Opcode::READDIRPLUS => {
            entries(opcode, body).iter().map(|entry| entry.start + ENTRY_ATTR).collect()
        }
        _ if is_entry(opcode) => vec![ENTRY_ATTR],
        _ => Vec::new(),
    }
}

pub(super) fn nodes(opcode: Opcode, body: &[u8]) -> Vec<usize> {
    let mut nodes = attributes(opcode, body);
    if is_entry(opcode) && !body.is_empty() {
        nodes.push(0);
    }
    for entry in entries(opcode, body) {
        nodes.push(entry.dirent);
        nodes.push(entry.start);
    }
    nodes.sort_unstable();
    nodes.dedup();
    nodes
}

/// Sets times close to `now_secs` to 0, because each server reads the clock at another instant.
pub(super) fn mask_times(opcode: Opcode, body: &mut [u8], now_secs: u64) {
    for attr in attributes(opcode, body) {
        for time in 0..3 {
            let (secs, nanos) = (attr + 24 + 8 * time, attr + 48 + 4 * time);
            if u64_at(body, secs).abs_diff(now_secs) < 3600 {
                body[secs..secs + 8].fill(0);
                body[nanos..nanos + 4].fill(0);
            }
        }
    }
}
