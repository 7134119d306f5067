//! The contents of files: inline bytes, slices of objects, and bytes that are not written yet.
//!
//! A file of at most 16 KiB lies in its row of the database. A larger one consists of slices, which
//! are ranges of objects. The inline bytes are the lowest layer: slices lie over them, and the
//! dirty bytes of this mount over both.
//!
//! A write goes into a buffer in memory. It is flushed by fsync(2), by close(2), when the buffer is
//! full, and after some seconds. A flush records the keys of new objects, writes up to four objects
//! at a time, and then adds slices, size and time in one change. So a file never names an object
//! that is not there, and an object that no file names is found.
//!
//! # State of a file
//! A file has a [`File`] while it is open or has dirty bytes. Its contents are loaded at the first
//! read or write. `view` has the size and the time that other calls must see, and is separate from
//! `content`, which a flush locks for as long as it takes.
//!
//! # Locks
//! `files`, then `content` of a file, then `view`. No two contents are locked together. While
//! `content` is locked, the database and the objects are asked.

mod dirty;
mod objects_cache;
mod pieces;

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corewalk::{Attr, Errno, Timespec, errno_of};
use corewalk_base::ShardedCounter;
use corewalk_base::{Mutex, MutexGuard};
use futures_util::future::try_join_all;

use crate::directory::Change;
use crate::meta::Meta;
use crate::node::{Inode, to_nanos};
use crate::objects::Objects;
use dirty::{Dirty, OBJECT_BYTES};
use objects_cache::ObjectsCache;
use pieces::{Pieces, Source};

/// The longest contents that lie in the database.
const INLINE_MAX: u64 = 16 << 10;
/// A file with more dirty bytes is flushed by the write that adds them: four objects.
const FILE_DIRTY_MAX: usize = 16 << 20;
/// The same for the dirty bytes of all files.
const ALL_DIRTY_MAX: i64 = 128 << 20;
/// How long bytes may stay dirty without a call that asks for more.
const DIRTY_AGE: Duration = Duration::from_secs(5);
/// No slice crosses a chunk.
const CHUNK_BYTES: u64 = 64 << 20;
/// The largest size of a file.
const SIZE_MAX: u64 = i64::MAX as u64;
/// Memory for objects that were read.
const CACHE_BYTES: usize = 64 << 20;

const CONTENT: &str = "SELECT * FROM cw_content($1)";
const WRITE: &str = "SELECT * FROM cw_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
const PENDING: &str = "SELECT cw_pending($1, $2)";

/// The contents of the files of a mount.
pub(crate) struct Files {
    meta: Arc<Meta>,
    objects: Objects,
    cache: ObjectsCache,
    files: Mutex<HashMap<u64, OpenFile>>,
    next_object: Mutex<u64>,
    pub(crate) dirty_bytes: ShardedCounter,
}

/// A file with the number of handles and calls that use it.
struct OpenFile {
    file: Arc<File>,
    users: usize,
}

/// A file that is open or has dirty bytes.
#[derive(Debug, Default)]
pub(crate) struct File {
    ino: u64,
    content: Mutex<Content>,
    /// The size and the modification time, if they differ from those of the database.
    view: Mutex<Option<(u64, Timespec)>>,
    /// The newest version of the inode whose attributes the kernel has got. Protected by its own
    /// mutex, a leaf.
    ///
    /// The kernel drops its pages of a file when it sees a new time. Pages that it reads afterwards
    /// count as those of that time. So they must not come from older contents.
    newest: Mutex<i64>,
}

/// The contents of a file, as far as they are known.
#[derive(Debug, Default)]
pub(crate) struct Content {
    /// The session that has loaded the contents, or 0. Contents of an earlier session may be old.
    loaded_by: i64,
    /// The version of the inode that has these contents.
    number: i64,
    size: u64,
    inline: Bytes,
    slices: Pieces,
    dirty: Dirty,
    /// True if the size or the time changed and was not flushed.
    is_changed: bool,
    /// When the oldest dirty bytes were written.
    since: Option<Instant>,
    /// Where a sequential reader reads next.
    next_read: u64,
    mtime: Timespec,
    /// The reason why dirty bytes were given up, until fsync(2) or close(2) reports it.
    lost: Option<Errno>,
}

/// A new slice: a range of the file, and the key of the object that has exactly its bytes. Without
/// a key the range is zeros.
type Slice = (Range<u64>, Option<Arc<str>>);

/// A use of a file. The record of the file goes with its last use.
pub(crate) struct InUse<'a> {
    data: &'a Files,
    pub(crate) file: Arc<File>,
}

impl Files {
    /// Returns the contents of the files of `meta`, whose objects are in `objects`.
    pub(crate) fn new(meta: Arc<Meta>, objects: Objects) -> Files {
        Files {
            meta,
            cache: ObjectsCache::new(objects.clone(), CACHE_BYTES),
            objects,
            files: Mutex::default(),
            next_object: Mutex::new(0),
            dirty_bytes: ShardedCounter::new(),
        }
    }

    /// Begins a use of a file.
    pub(crate) fn file(&self, ino: u64) -> InUse<'_> {
        let mut files = self.files.lock();
        let open = files.entry(ino).or_insert_with(|| OpenFile {
            file: Arc::new(File { ino, ..File::default() }),
            users: 0,
        });
        open.users += 1;
        InUse { data: self, file: open.file.clone() }
    }

    /// Begins a use of a file that has a record already.
    pub(crate) fn known_file(&self, ino: u64) -> Option<InUse<'_>> {
        let mut files = self.files.lock();
        let open = files.get_mut(&ino)?;
        open.users += 1;
        Some(InUse { data: self, file: open.file.clone() })
    }

    /// Counts an open file until [`Files::close`]. The contents are loaded again, since another
    /// mount may have changed them.
    pub(crate) fn open(&self, ino: u64) {
        let used = self.file(ino);
        let mut content = used.file.content.lock();
        if !content.is_changed {
            content.loaded_by = 0;
        }
        drop(content);
        std::mem::forget(used);
    }

    /// Ends a use of a file that [`Files::open`] has counted.
    pub(crate) fn close(&self, ino: u64) {
        let mut files = self.files.lock();
        if let Entry::Occupied(mut open) = files.entry(ino) {
            open.get_mut().users = open.get().users.saturating_sub(1);
            // Dirty bytes of a file that is not open any more are flushed by `flush_old`.
            if open.get().users == 0 && open.get().file.view.lock().is_none() {
                open.remove();
            }
        }
    }

    /// Flushes a file, whose contents are then loaded again at the next use. For a lock that was
    /// just taken: others may have written under it.
    pub(crate) fn refresh(&self, ino: u64) -> Result<(), Errno> {
        let Some(used) = self.known_file(ino) else { return Ok(()) };
        let mut content = used.file.content.lock();
        self.flush_content(&used.file, &mut content)?;
        content.loaded_by = 0;
        Ok(())
    }

    /// Drops what was not flushed of a file, because it must not be written any more. The next
    /// [`Files::flush`] fails.
    pub(crate) fn revert(&self, ino: u64) {
        let Some(used) = self.known_file(ino) else { return };
        let mut content = used.file.content.lock();
        if content.is_changed {
            self.dirty_bytes.add(-(content.dirty.bytes() as i64));
            *content = Content { lost: Some(Errno::IO), ..Content::default() };
            *used.file.view.lock() = None;
        }
    }

    /// Drops what was not flushed of a file that is gone.
    pub(crate) fn discard(&self, ino: u64) {
        let open = self.files.lock().remove(&ino);
        if let Some(open) = open {
            let content = open.file.content.lock();
            self.dirty_bytes.add(-(content.dirty.bytes() as i64));
        }
    }

    /// Returns attributes of a version of the inode for the kernel, with the size and the time of
    /// what was not flushed.
    pub(crate) fn seen(&self, attr: Attr, version: i64) -> Attr {
        let files = self.files.lock();
        let Some(file) = files.get(&attr.ino).map(|open| &open.file) else { return attr };
        let mut newest = file.newest.lock();
        *newest = version.max(*newest);
        let view = *file.view.lock();
        match view {
            Some((size, mtime)) => attr
                .with_mtime(mtime)
                .with_ctime(mtime.max(attr.ctime))
                .with_size(size)
                .with_blocks(size.div_ceil(512)),
            None => attr,
        }
    }

    /// Reads at `offset`. Returns the number of bytes, which is less than asked for at the end of
    /// the file only.
    pub(crate) fn read(&self, ino: u64, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        let used = self.file(ino);
        let mut is_retry = false;
        loop {
            let mut content = self.loaded(&used.file)?;
            let len = content.size.saturating_sub(offset).min(buf.len() as u64) as usize;
            let buf = &mut buf[..len];
            let range = offset..offset + len as u64;
            buf.fill(0);
            let inline = content.inline.get(offset as usize..).unwrap_or_default();
            let inline = &inline[..inline.len().min(len)];
            buf[..inline.len()].copy_from_slice(inline);
            let is_sequential = content.next_read == offset;
            content.next_read = range.end;
            let pieces = content.slices.in_range(range.clone());
            let ahead = match is_sequential {
                true => content.slices.next(range.end.next_multiple_of(OBJECT_BYTES)).cloned(),
                false => None,
            };
            let fetched = self.fetch(&pieces, offset, buf, is_sequential);
            match fetched {
                // Another mount may have replaced the object. Its slices are read again, once.
                Err(Errno::NOENT) if !is_retry && content.dirty.is_empty() => {
                    (content.loaded_by, is_retry) = (0, true);
                    continue;
                }
                Err(Errno::NOENT) => return Err(Errno::IO),
                done => done?,
            }
            content.dirty.read(offset, buf);
            if let Some(Source::Object(key, _, object_len)) = ahead {
                self.cache.read_ahead(self.meta.session.database.handle(), key, object_len);
            }
            return Ok(len);
        }
    }

    /// Reads pieces into `buf`, which begins at `offset`.
    fn fetch(
        &self,
        pieces: &[(Range<u64>, Source)],
        offset: u64,
        buf: &mut [u8],
        is_sequential: bool,
    ) -> Result<(), Errno> {
        let read = pieces.iter().map(|(range, source)| async move {
            match source {
                Source::Zeros => Ok((range.clone(), None)),
                Source::Object(key, at, object_len) => {
                    let wanted = *at..at + (range.end - range.start);
                    let bytes = match is_sequential {
                        true => self.cache.get(key, *object_len, wanted).await,
                        false => self.cache.get_range(key, wanted).await,
                    };
                    bytes.map(|bytes| (range.clone(), Some(bytes)))
                }
            }
        });
        let parts = match pieces.is_empty() {
            true => Vec::new(),
            false => self.meta.session.database.block_on(try_join_all(read)).map_err(|error| {
                log::error!("reading an object: {error}");
                errno_of(error)
            })?,
        };
        for (range, bytes) in parts {
            let part = &mut buf[(range.start - offset) as usize..(range.end - offset) as usize];
            match bytes {
                Some(bytes) => part.copy_from_slice(&bytes),
                None => part.fill(0),
            }
        }
        Ok(())
    }

    /// Writes at `offset`, or at the end of the file if that is None.
    pub(crate) fn write(
        &self,
        ino: u64,
        offset: Option<u64>,
        bytes: &[u8],
    ) -> Result<usize, Errno> {
        let used = self.file(ino);
        let mut content = self.loaded(&used.file)?;
        let offset = offset.unwrap_or(content.size);
        let room = SIZE_MAX.saturating_sub(offset).min(bytes.len() as u64) as usize;
        if room == 0 && !bytes.is_empty() {
            return Err(Errno::FBIG);
        }
        let bytes = &bytes[..room];
        let before = content.dirty.bytes();
        content.dirty.write(offset, bytes);
        content.size = content.size.max(offset + bytes.len() as u64);
        self.note_dirty(&used.file, &mut content, before);
        if content.dirty.bytes() >= FILE_DIRTY_MAX || self.dirty_bytes.sum() > ALL_DIRTY_MAX {
            self.flush_content(&used.file, &mut content)?;
        }
        Ok(bytes.len())
    }

    fn note_dirty(&self, file: &File, content: &mut Content, before: usize) {
        content.mtime = Timespec::now();
        content.is_changed = true;
        content.since.get_or_insert_with(Instant::now);
        *file.view.lock() = Some((content.size, content.mtime));
        self.dirty_bytes.add(content.dirty.bytes() as i64 - before as i64);
    }

    /// Writes the dirty bytes of a file to the database and the objects.
    pub(crate) fn flush(&self, ino: u64) -> Result<(), Errno> {
        let Some(used) = self.known_file(ino) else { return Ok(()) };
        let mut content = used.file.content.lock();
        let done = self.flush_content(&used.file, &mut content);
        done.and(content.lost.take().map_or(Ok(()), Err))
    }

    /// Flushes the files that have been dirty for some seconds, or all files.
    pub(crate) fn flush_old(&self, skips: impl Fn(u64) -> bool, all: bool) -> Result<(), Errno> {
        let dirty: Vec<u64> = {
            let files = self.files.lock();
            let dirty = files.iter().filter(|(_, open)| open.file.view.lock().is_some());
            dirty.map(|(ino, _)| *ino).filter(|ino| !skips(*ino)).collect()
        };
        let mut done = Ok(());
        for ino in dirty {
            let Some(used) = self.known_file(ino) else { continue };
            let mut content = used.file.content.lock();
            if all || content.since.is_some_and(|since| since.elapsed() > DIRTY_AGE) {
                done = done.and(self.flush_content(&used.file, &mut content));
            }
        }
        done
    }

    /// Makes a change of the attributes of a file with nothing of it dirty. `size` is the new size,
    /// if the change has one.
    pub(crate) fn with_flushed(
        &self,
        ino: u64,
        size: Option<u64>,
        change: impl FnOnce() -> Result<Inode, Errno>,
    ) -> Result<Inode, Errno> {
        let Some(used) = self.known_file(ino) else { return change() };
        let mut content = used.file.content.lock();
        self.flush_content(&used.file, &mut content)?;
        let done = change()?;
        if content.number + 1 == done.version {
            content.number = done.version;
        }
        if let Some(size) = size {
            content.slices.cut(size);
            let keep = content.inline.len().min(size as usize);
            content.inline.truncate(keep);
            content.size = size;
        }
        Ok(done)
    }

    /// Makes a range of a file zeros. The range ends at the end of the file at the latest.
    pub(crate) fn zero(&self, ino: u64, offset: u64, len: u64) -> Result<(), Errno> {
        let used = self.file(ino);
        let mut content = self.loaded(&used.file)?;
        let end = offset.saturating_add(len).min(content.size);
        if offset >= end {
            return Ok(());
        }
        if content.size <= INLINE_MAX || end - offset <= INLINE_MAX {
            let before = content.dirty.bytes();
            content.dirty.write(offset, &vec![0; (end - offset) as usize]);
            self.note_dirty(&used.file, &mut content, before);
            return Ok(());
        }
        self.flush_content(&used.file, &mut content)?;
        content.mtime = Timespec::now();
        let mut slices = Vec::new();
        let mut at = offset;
        while at < end {
            let stop = (at / CHUNK_BYTES + 1).saturating_mul(CHUNK_BYTES).min(end);
            slices.push((at..stop, None));
            at = stop;
        }
        self.commit(&used.file, &mut content, None, slices)
    }

    /// Makes a file at least `size` bytes long.
    pub(crate) fn grow(&self, ino: u64, size: u64) -> Result<(), Errno> {
        let used = self.file(ino);
        let mut content = self.loaded(&used.file)?;
        if content.size < size {
            content.size = size;
            let before = content.dirty.bytes();
            self.note_dirty(&used.file, &mut content, before);
        }
        Ok(())
    }

    /// Locks the contents of a file, and loads them if they are not known.
    fn loaded<'f>(&self, file: &'f File) -> Result<MutexGuard<'f, Content>, Errno> {
        let mut content = file.content.lock();
        let session = self.meta.session.id();
        let is_newest = content.number >= *file.newest.lock();
        if content.loaded_by == session && is_newest || content.loaded_by != 0 && content.is_changed
        {
            return Ok(content);
        }
        // A new file is known to be empty without asking.
        let known = self.meta.cache.inode(file.ino);
        let is_live = !self.meta.session.left().is_zero();
        if is_live && known.is_some_and(|inode| inode.attr.size == 0 && inode.version == 1) {
            (content.loaded_by, content.number) = (session, 1);
            return Ok(content);
        }
        self.load(file, &mut content)?;
        Ok(content)
    }

    /// Loads the contents of a file from the database.
    fn load(&self, file: &File, content: &mut Content) -> Result<(), Errno> {
        let session = self.meta.session.id();
        let rows = self.meta.session.database.query(CONTENT, &[&(file.ino as i64)])?.rows;
        let head = rows.first().ok_or(Errno::STALE)?;
        content.number = head.get("version");
        content.size = head.get::<_, i64>("size") as u64;
        let inline: Option<&[u8]> = head.get("inline");
        content.inline = Bytes::copy_from_slice(inline.unwrap_or_default());
        content.slices = Pieces::default();
        for row in &rows[1..] {
            let (pos, len) = (row.get::<_, i64>("pos") as u64, row.get::<_, i64>("len") as u64);
            let object: Option<&str> = row.get("object");
            let source = object.map_or(Source::Zeros, |key| Source::Object(key.into(), 0, len));
            content.slices.add(pos..pos + len, source);
        }
        content.loaded_by = session;
        Ok(())
    }

    fn flush_content(&self, file: &File, content: &mut Content) -> Result<(), Errno> {
        if !content.is_changed {
            return Ok(());
        }
        while content.slices.is_empty() && content.size <= INLINE_MAX {
            let mut inline = content.inline.to_vec();
            inline.resize(content.size as usize, 0);
            content.dirty.read(0, &mut inline);
            match self.commit(file, content, Some(inline), Vec::new()) {
                Err(Errno::AGAIN) => {}
                done => return done,
            }
            // Another mount has changed the file. The dirty bytes go over what it has written. The
            // time is a new one, so that the kernel drops its pages.
            let size = content.size;
            self.load(file, content)?;
            content.size = content.size.max(size);
            content.mtime = Timespec::now();
        }
        let extents = content.dirty.take();
        let put = self.put_all(&extents);
        let done = put.and_then(|slices| self.commit(file, content, None, slices));
        if done.is_err() {
            content.dirty.put_back(extents);
        } else {
            let bytes: usize = extents.values().map(Vec::len).sum();
            self.dirty_bytes.add(-(bytes as i64));
        }
        done
    }

    /// Writes an object for each extent. Returns their keys.
    fn put_all(
        &self,
        extents: &std::collections::BTreeMap<u64, Vec<u8>>,
    ) -> Result<Vec<Slice>, Errno> {
        let database = &self.meta.session.database;
        let session = self.meta.session.id();
        let first = {
            let mut next = self.next_object.lock();
            *next += extents.len() as u64;
            *next - extents.len() as u64
        };
        let key = |number: u64| format!("{session:x}/{:x}/{number:x}", number >> 12);
        let keys: Vec<String> = (first..first + extents.len() as u64).map(key).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let reply = database.query(PENDING, &[&session, &keys])?;
        if reply.rows.first().is_none_or(|row| row.get::<_, i32>(0) != 0) {
            self.meta.session.reopen(session)?;
            return Err(Errno::IO);
        }
        let put = keys
            .iter()
            .zip(extents)
            .map(|(key, (_, bytes))| self.objects.put(key, Bytes::copy_from_slice(bytes)));
        database.block_on(try_join_all(put)).map_err(|error| {
            log::error!("writing an object: {error}");
            errno_of(error)
        })?;
        let ranges = extents.iter().map(|(start, bytes)| *start..start + bytes.len() as u64);
        Ok(ranges.zip(keys).map(|(range, key)| (range, Some(key.into()))).collect())
    }

    /// Records new contents in the database.
    ///
    /// # Errors
    /// `EAGAIN` if `inline` is given, and the file has changed since its contents were loaded; the
    /// errors of a change.
    fn commit(
        &self,
        file: &File,
        content: &mut Content,
        inline: Option<Vec<u8>>,
        slices: Vec<Slice>,
    ) -> Result<(), Errno> {
        let (ino, size) = (file.ino as i64, content.size as i64);
        let mtime = to_nanos(content.mtime);
        let starts: Vec<i64> = slices.iter().map(|(range, _)| range.start as i64).collect();
        let lens: Vec<i64> =
            slices.iter().map(|(range, _)| (range.end - range.start) as i64).collect();
        let keys: Vec<Option<&str>> = slices.iter().map(|(_, key)| key.as_deref()).collect();
        let change =
            Change { dirs: self.meta.cover(file.ino), names: Vec::new(), inos: vec![file.ino] };
        let number = content.number;
        let changed = self.meta.change(
            &change,
            WRITE,
            &[&ino, &size, &mtime, &inline, &starts, &lens, &keys, &number],
            |_| Vec::new(),
        )?;
        content.number = changed.inode(file.ino)?.version;
        if content.number != number + 1 {
            // The slices of the other changes are not known.
            content.loaded_by = 0;
        }
        if let Some(inline) = inline {
            let bytes = content.dirty.take().values().map(Vec::len).sum::<usize>();
            self.dirty_bytes.add(-(bytes as i64));
            content.inline = inline.into();
        }
        for (range, key) in slices {
            let len = range.end - range.start;
            let source = key.map_or(Source::Zeros, |key| Source::Object(key, 0, len));
            content.slices.add(range, source);
        }
        (content.is_changed, content.since) = (false, None);
        *file.view.lock() = None;
        Ok(())
    }
}

impl Drop for InUse<'_> {
    fn drop(&mut self) {
        self.data.close(self.file.ino);
    }
}

impl std::fmt::Debug for Files {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Files")
            .field("dirty_bytes", &self.dirty_bytes.sum())
            .finish_non_exhaustive()
    }
}
