//! One inode in memory.
//!
//! An inode is read from its record when it is first used. It stays in memory until the cache calls
//! `FileSystem::forget`. A change of the inode also puts the new record into the running
//! transaction, under the inode's lock. So the record and the inode always match, and an inode may
//! leave memory at any time.
//!
//! # Locks
//! - `content`: the data lock of a regular file, locked before the `state` of any inode.
//! - `state`: protects all other attributes. `names` describes the order in which the `state` of
//!   several inodes is locked.
//!
//! # Invariants
//! - N.1: the file type of an inode never changes.
//! - N.2: `nlink` is the number of directory entries of the inode. For a directory it is 2 plus the
//!   number of subdirectories, and 0 once the directory is removed.
//! - N.3: an access ACL is stored only if the mode cannot express it, and agrees with the mode.
//! - N.4: the size and the block count in the record of a file match its content, except while a
//!   thread holds the data lock.
//! - N.5: an inode without links has an orphan record.
//!
//! Source: inode(7); POSIX.1-2024 XBD 4.12, File Times Update; mount(8), `relatime`.

use std::sync::Arc;

use corewalk::acl::Acl;
use corewalk::attr::mode;
use corewalk::{AclKind, Atime, Attr, Errno, FileKind, SetAttr, Timespec};
use corewalk_base::RwLock;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use rustix::time::{ClockId, clock_gettime};

use crate::blocks::Block;
use crate::content::{BLOCK_BYTES, Content};
use crate::journal::View;
use crate::record::{InodeRecord, Key, Kind};

pub(crate) const PERMISSION_BITS: u32 = 0o7777;
const ENTRY_BYTES: u64 = 20;

/// Returns the time of the kernel's coarse clock, which kernel file systems use for time stamps.
#[inline]
pub(crate) fn now() -> Timespec {
    let now = clock_gettime(ClockId::RealtimeCoarse);
    Timespec { secs: now.tv_sec, nanos: now.tv_nsec as u32 }
}

/// An inode in memory. Analogous to Linux's `struct ext4_inode_info`.
pub(crate) struct Inode {
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    /// Protected by its own lock.
    pub(crate) state: RwLock<State>,
    /// The size and the extents of a regular file. Protected by its own lock, the data lock, which
    /// is locked before `state`.
    pub(crate) content: RwLock<Content>,
    dirty: AtomicU64,
    dirty_content: AtomicU64,
    dirty_data: AtomicU64,
}

/// All attributes of an inode. All fields are protected by `Inode::state`.
pub(crate) struct State {
    pub(crate) record: InodeRecord,
    pub(crate) target: Box<[u8]>,
    pub(crate) block: Option<Arc<Block>>,
    /// The last transaction in which this inode got a new attribute set. If the inode gets another
    /// set in the same transaction, it may be queued for de-duplication (see `late`).
    pub(crate) changed_at: u64,
    pub(crate) is_waiting: bool,
    pub(crate) born: u64,
    pub(crate) is_dead: bool,
}

impl Inode {
    pub(crate) fn new(ino: u64, record: InodeRecord, target: &[u8], tid: u64) -> Inode {
        let state = State::new(record, target, tid);
        Inode::of(ino, state, Content::new(), tid)
    }

    /// Makes the inode `ino` from its record `value`. `EIO` if the record is invalid.
    pub(crate) fn load(ino: u64, value: &[u8], view: &View) -> Result<Inode, Errno> {
        let (record, target) = InodeRecord::decode(value)?;
        let dirty = view.dirty_tid(&Key::of(Kind::Inode, ino));
        let state = State::new(record, target, 0);
        Ok(Inode::of(ino, state, Content::stored(record.size), dirty))
    }

    fn of(ino: u64, state: State, content: Content, dirty: u64) -> Inode {
        Inode {
            ino,
            kind: FileKind::from_mode(state.record.mode).unwrap_or(FileKind::Regular),
            state: RwLock::new(state),
            content: RwLock::new(content),
            dirty: AtomicU64::new(dirty),
            dirty_content: AtomicU64::new(dirty),
            dirty_data: AtomicU64::new(dirty),
        }
    }

    /// Returns the last transaction that an fsync(2) of this inode has to commit. If
    /// `is_content_only` is true, returns the one for an fdatasync(2).
    pub(crate) fn dirty_tid(&self, is_content_only: bool) -> u64 {
        let is_file = self.kind == FileKind::Regular;
        let word = if is_content_only && is_file { &self.dirty_content } else { &self.dirty };
        // ORDERING: Relaxed. The id must cover only changes that happened before the call. `save`
        // and `mark_content` have stored their ids, so the load sees them.
        word.load(Ordering::Relaxed)
    }

    pub(crate) fn data_tid(&self) -> u64 {
        // ORDERING: Relaxed. The id must cover only writes that happened before the call.
        // `mark_data` has stored their ids, so the load sees them.
        self.dirty_data.load(Ordering::Relaxed)
    }

    pub(crate) fn mark_data(&self, view: &View) {
        // ORDERING: Relaxed. `data_tid` must see the store only if the write happened before its
        // call, and then it does.
        self.dirty_data.store(view.tid, Ordering::Relaxed);
    }

    pub(crate) fn mark_content(&self, view: &View) {
        // ORDERING: Relaxed. `dirty_tid` must see the store only if the change happened before its
        // call, and then it does.
        self.dirty_content.store(view.tid, Ordering::Relaxed);
    }

    /// Puts the record of this inode into the running transaction. `state` is the locked state of
    /// this inode.
    #[inline]
    pub(crate) fn save(&self, state: &State, view: &View) {
        let mut bytes = Vec::with_capacity(128);
        state.record.encode(&state.target, &mut bytes);
        let key = Key::of(Kind::Inode, self.ino);
        match state.born == view.tid {
            true => view.put_new(key, &bytes),
            false => view.put(key, &bytes),
        }
        // ORDERING: Relaxed. `dirty_tid` must see the store only if the change happened before its
        // call, and then it does.
        self.dirty.store(view.tid, Ordering::Relaxed);
    }

    pub(crate) fn save_links(&self, state: &State, had_links: bool, view: &View) {
        let key = Key::of(Kind::Orphan, self.ino);
        match (had_links, state.record.nlink > 0) {
            (true, false) => view.put_new(key, &[]),
            (false, true) => view.remove(key),
            _ => {}
        }
        self.save(state, view);
    }
}

impl State {
    fn new(record: InodeRecord, target: &[u8], born: u64) -> State {
        let target = target.into();
        State {
            record,
            target,
            block: None,
            changed_at: 0,
            is_waiting: false,
            born,
            is_dead: false,
        }
    }

    pub(crate) fn attr(&self, ino: u64) -> Attr {
        let record = &self.record;
        let kind = FileKind::from_mode(record.mode);
        let size = match kind {
            Some(FileKind::Directory) => (record.size + 2) * ENTRY_BYTES,
            _ => record.size,
        };
        // A store never reuses an inode number, so the generation is always 0.
        Attr::new(ino, record.mode)
            .with_nlink(record.nlink)
            .with_uid(record.uid)
            .with_gid(record.gid)
            .with_rdev(record.rdev)
            .with_size(size)
            .with_blocks(record.blocks * (BLOCK_BYTES / 512))
            .with_blksize(BLOCK_BYTES as u32)
            .with_atime(record.atime)
            .with_mtime(record.mtime)
            .with_ctime(record.ctime)
            .with_btime(record.btime)
            .with_has_acl(record.has_acl)
    }

    pub(crate) fn check(&self) -> Result<(), Errno> {
        if self.is_dead { Err(Errno::STALE) } else { Ok(()) }
    }

    pub(crate) fn check_alive(&self) -> Result<(), Errno> {
        self.check()?;
        if self.record.nlink == 0 { Err(Errno::NOENT) } else { Ok(()) }
    }

    pub(crate) fn touch_content(&mut self, now: Timespec) {
        self.record.mtime = now;
        self.record.ctime = now;
    }

    pub(crate) fn is_read_noted(&self, policy: Atime, now: Timespec) -> bool {
        let InodeRecord { atime, mtime, ctime, .. } = self.record;
        policy.needs_update([atime, mtime, ctime], now)
    }

    /// Applies `set`, except the size and the ACL.
    pub(crate) fn change(&mut self, set: &SetAttr, now: Timespec) {
        let record = &mut self.record;
        if let Some(mode) = set.mode {
            record.mode = record.mode & mode::S_IFMT | mode & PERMISSION_BITS;
        }
        record.uid = set.uid.unwrap_or(record.uid);
        record.gid = set.gid.unwrap_or(record.gid);
        let before = [record.atime, record.mtime];
        [record.atime, record.mtime, record.ctime] = set.times(before, now);
    }

    /// Returns `acl` if it must be stored. An access ACL that expresses no more than the mode is
    /// not stored (invariant N.3).
    pub(crate) fn kept_acl<'a>(&self, kind: AclKind, acl: Option<&'a Acl>) -> Option<&'a Acl> {
        let permissions = self.record.mode & 0o777;
        let says_more = |acl: &&Acl| acl.equivalent_mode() != Some(permissions);
        acl.filter(|acl| kind == AclKind::Default || says_more(acl))
    }
}
