//! The path buffer of a path translation, which fills it with names from the leaf up to the root.
//!
//! Analogous to Linux's `struct prepend_buffer`: each name is prepended, and the path ends where
//! the buffer ends.
//!
//! At first the path is in a buffer on the stack, which suffices for nearly all paths. A path that
//! does not fit there moves to a vector. If the caller wants no allocation, it lends a buffer, and
//! the path moves to that buffer instead.
//!
//! Source: `dpath`.

use corewalk_sync::Pass;

use super::PathKind;
use crate::Errno;
use crate::dcache::Dcache;
use crate::dentry::{Body, DIRECTORY_ROOM, Flags, INLINE_WORDS, Line, NameCopy};
use crate::mount::Mount;
use crate::read_set::{Growth, ReadSet, STEPS};
use crate::slot::DentrySlot;

const BYTES: usize = 256 + WINDOW;
/// The number of free bytes in front of the path that [`prepend_words`] needs: the longest inline
/// name, its `/`, and eight bytes more. It copies whole words, so it may overwrite all of them.
const WINDOW: usize = LENGTHS + 8;
const LENGTHS: usize = (8 * INLINE_WORDS + 1).next_power_of_two();

/// A path under construction: its names are prepended one by one, from the leaf to the root.
pub(crate) struct PathBuffer<'b, const N: usize = STEPS> {
    read_set: ReadSet<N>,
    first: [u8; BYTES],
    storage: Storage<'b>,
    /// True if the path did not fit into `first`.
    has_left_stack: bool,
    start: usize,
    is_too_long: bool,
    pub(crate) kind: PathKind,
    pub(crate) top: DentrySlot,
}

enum Storage<'b> {
    /// The path is in `first`. If it does not fit there, it moves to a vector.
    Own,
    /// The path is in `first`. If it does not fit there, it moves to the lent buffer.
    OwnAndLent(&'b mut [u8]),
    Lent(&'b mut [u8]),
    Grown(Vec<u8>),
}

impl PathBuffer<'static> {
    pub(crate) fn new() -> PathBuffer<'static> {
        PathBuffer::with(Storage::Own, Growth::Allowed)
    }
}

impl<'b, const N: usize> PathBuffer<'b, N> {
    pub(crate) fn lent(buf: &'b mut [u8]) -> PathBuffer<'b, N> {
        PathBuffer::with(Storage::OwnAndLent(buf), Growth::Refused)
    }

    fn with(storage: Storage<'b>, growth: Growth) -> PathBuffer<'b, N> {
        PathBuffer {
            read_set: ReadSet::new(growth),
            first: [0; BYTES],
            storage,
            has_left_stack: false,
            start: BYTES,
            is_too_long: false,
            kind: PathKind::Linked,
            top: DentrySlot::NONE,
        }
    }

    /// Resets the path buffer before a new attempt to collect the path. Otherwise the attempt would
    /// use state of the last one, such as the [`PathKind`].
    pub(crate) fn clear(&mut self) {
        self.read_set.clear();
        self.start = self.bytes().len();
        self.is_too_long = false;
        self.kind = PathKind::Linked;
        self.top = DentrySlot::NONE;
    }

    pub(crate) fn prepend(
        &mut self,
        dcache: &Dcache,
        slot: DentrySlot,
        root: DentrySlot,
        pass: Pass,
    ) {
        match pass {
            Pass::Optimistic => self.prepend_names(dcache, slot, root, Pass::Optimistic),
            Pass::Locked => self.prepend_names(dcache, slot, root, Pass::Locked),
        }
    }

    /// Prepends the names from the dentry `slot` up to `root`, across mount points. `root` is a
    /// mount number and a dentry. If `root` is None or not above the dentry, the function continues
    /// up to the root of the namespace.
    ///
    /// Adds all dentries on the way to one read set, so one validation covers the whole path.
    pub(crate) fn prepend_mounts(
        &mut self,
        dcache: &Dcache,
        mount: &Mount,
        slot: DentrySlot,
        root: Option<(u64, DentrySlot)>,
        pass: Pass,
    ) {
        let (mut mount, mut slot) = (mount, slot);
        let is_outside = loop {
            let stop = root.filter(|root| root.0 == mount.id).map_or(mount.root, |root| root.1);
            self.prepend(dcache, slot, stop, pass);
            if root == Some((mount.id, self.top)) {
                break None;
            }
            match &mount.point {
                _ if self.top != mount.root => break Some(PathKind::Unreachable),
                Some((parent, point)) => (mount, slot) = (parent, *point),
                None => break root.map(|_| PathKind::OutsideRoot),
            }
        };
        if let (Some(kind), PathKind::Linked) = (is_outside, self.kind) {
            self.kind = kind;
        }
    }

    #[inline(always)]
    fn prepend_names(&mut self, dcache: &Dcache, slot: DentrySlot, root: DentrySlot, pass: Pass) {
        let mut at = slot;
        let mut common = Flags::HASHED;
        loop {
            let line = dcache.dentries.line(at);
            let mut seen = line.snapshot_now();
            if seen.seq.is_odd() {
                seen = dcache.dentries.snapshot(at);
            }
            let flags = seen.body.flags();
            if pass == Pass::Optimistic {
                self.read_set.push(at, seen.seq);
            }
            if at == root || flags.contains(Flags::ROOT) {
                break;
            }
            let before = if pass == Pass::Locked { self.path().len() } else { 0 };
            if flags.contains(Flags::LONG) || !self.prepend_name(&line, seen.body) {
                self.prepend_copy(dcache, at, seen.body);
            }
            if pass == Pass::Locked && !line.is_unchanged(seen.seq) {
                // Under the locks of `Pass::Locked`, no dentry gets another name or parent, but its
                // flags may change: for example, it becomes a mount point. If the dentry has
                // changed, remove its name from the buffer and read it again.
                self.start = self.bytes().len() - before;
                self.is_too_long = false;
                continue;
            }
            common &= flags;
            // The loop may have read the parents of the dentries at different instants, so they may
            // form a cycle. The loop then ends when a sequence has changed, or the buffer is full.
            let len = self.read_set.len();
            let must_stop = len > N && self.must_stop(dcache, len);
            if seen.key.parent().is_none() || must_stop || self.is_too_long {
                break;
            }
            at = seen.key.parent();
        }
        self.top = at;
        if !common.contains(Flags::HASHED) {
            self.kind = PathKind::Unlinked;
        }
    }

    #[cold]
    fn must_stop(&self, dcache: &Dcache, len: usize) -> bool {
        let must_look = len >= 256 && len.is_power_of_two();
        self.is_truncated() || (must_look && !self.is_unchanged(dcache))
    }

    #[inline(always)]
    fn prepend_name(&mut self, line: &Line<'_>, body: Body) -> bool {
        if self.start < WINDOW && !self.grow(WINDOW) {
            return false;
        }
        let start = self.start;
        self.start = start - body.len() % LENGTHS - 1;
        if self.has_left_stack {
            prepend_words_off_stack(&mut self.bytes()[..start], line, body);
        } else {
            prepend_words(&mut self.first[..start], line, body);
        }
        true
    }

    /// Prepends a name that is long, or for which `prepend_words` has no space. Overwrites no bytes
    /// in front of the `/`, unlike `prepend_words`.
    #[cold]
    fn prepend_copy(&mut self, dcache: &Dcache, slot: DentrySlot, body: Body) {
        let mut copy = NameCopy::new();
        dcache.dentries.copy_name(slot, body, &mut copy);
        let name = copy.as_bytes();
        let len = name.len() + 1;
        if self.start < len && !self.grow(len) {
            self.is_too_long = true;
            return;
        }
        let end = self.start;
        self.start -= len;
        let start = self.start;
        let bytes = self.bytes();
        bytes[start] = b'/';
        bytes[start + 1..end].copy_from_slice(name);
    }

    /// Makes space for `wanted` bytes in front of the path. Returns false if a lent buffer is too
    /// small.
    #[cold]
    fn grow(&mut self, wanted: usize) -> bool {
        let len = self.path().len();
        let grown = |path: &[u8]| {
            let room = (2 * path.len()).max(path.len() + wanted);
            let mut bytes = vec![0; room - path.len()];
            bytes.extend_from_slice(path);
            Storage::Grown(bytes)
        };
        self.storage = match std::mem::replace(&mut self.storage, Storage::Own) {
            Storage::Own => grown(&self.first[self.start..]),
            Storage::Grown(bytes) => grown(&bytes[self.start..]),
            Storage::OwnAndLent(buf) if len <= buf.len() => {
                let at = buf.len() - len;
                buf[at..].copy_from_slice(&self.first[self.start..]);
                Storage::Lent(buf)
            }
            fixed => fixed,
        };
        self.has_left_stack = matches!(self.storage, Storage::Lent(_) | Storage::Grown(_));
        self.start = self.bytes().len() - len;
        self.start >= wanted
    }

    #[inline]
    fn bytes(&mut self) -> &mut [u8] {
        match &mut self.storage {
            Storage::Own | Storage::OwnAndLent(_) => &mut self.first,
            Storage::Lent(buf) => buf,
            Storage::Grown(bytes) => bytes,
        }
    }

    pub(crate) fn path(&self) -> &[u8] {
        match &self.storage {
            Storage::Own | Storage::OwnAndLent(_) => &self.first[self.start..],
            Storage::Lent(buf) => &buf[self.start..],
            Storage::Grown(bytes) => &bytes[self.start..],
        }
    }

    pub(crate) fn whole(&self) -> &[u8] {
        match self.path() {
            [] => b"/",
            path => path,
        }
    }

    /// Returns the index in the lent buffer at which the path begins.
    ///
    /// # Errors
    /// `ENAMETOOLONG` if the path does not fit.
    pub(crate) fn into_buffer(self) -> Result<usize, Errno> {
        let len = self.whole().len();
        match self.storage {
            _ if self.is_too_long => Err(Errno::NAMETOOLONG),
            // The caller's buffer is used only for a path that was too long for `first`. Such a
            // path is not empty, so it need not become `/`.
            Storage::Lent(_) => Ok(self.start),
            Storage::OwnAndLent(buf) => {
                let start = buf.len().checked_sub(len).ok_or(Errno::NAMETOOLONG)?;
                match &self.first[self.start..] {
                    [] => buf[start] = b'/',
                    path => buf[start..].copy_from_slice(path),
                }
                Ok(start)
            }
            Storage::Own | Storage::Grown(_) => unreachable!("nothing was lent"),
        }
    }

    pub(crate) fn is_unchanged(&self, dcache: &Dcache) -> bool {
        self.read_set.is_unchanged(&dcache.dentries)
    }

    pub(super) fn slots(&self) -> impl Iterator<Item = DentrySlot> + '_ {
        self.read_set.slots()
    }

    /// Returns true if the read set was too small for the path, which then cannot be validated.
    pub(crate) fn is_truncated(&self) -> bool {
        self.read_set.is_truncated()
    }

    #[cfg(test)]
    pub(super) fn steps(&self) -> usize {
        self.read_set.len()
    }
}

/// Writes a `/` and an inline name to the end of `bytes`. Copies whole words, the last one first. A
/// name that is shorter than a word is shifted, so that it ends where `bytes` ends.
///
/// The copied words may overwrite unused bytes in front of the `/`.
#[inline(always)]
fn prepend_words(bytes: &mut [u8], line: &Line<'_>, body: Body) {
    let (len, words) = (body.len() % LENGTHS, line.name_words());
    let window = bytes.last_chunk_mut::<WINDOW>().expect("room has been made");
    let from = WINDOW - len.max(8);
    let mut put = |i: usize, word: u64| {
        let at = (from + 8 * i).min(WINDOW - 8);
        window[at..at + 8].copy_from_slice(&word.to_le_bytes());
    };
    if !body.is_directory() {
        (DIRECTORY_ROOM..INLINE_WORDS).rev().for_each(|i| put(i, words[i]));
    }
    (1..DIRECTORY_ROOM).rev().for_each(|i| put(i, words[i]));
    put(0, words[0] << (8 * 8_usize.saturating_sub(len) as u32 % 64));
    window[WINDOW - 1 - len] = b'/';
}

/// A copy of [`prepend_words`] that is not inlined, for the few paths that do not fit on the stack.
#[inline(never)]
fn prepend_words_off_stack(bytes: &mut [u8], line: &Line<'_>, body: Body) {
    prepend_words(bytes, line, body);
}
