//! Flushes: how dirty bytes get into the objects and the database.
//!
//! A flush first records the keys of new objects in the database (`pending_object`), and then
//! writes the objects. At last it makes one change, which adds the slices, the size and the time to
//! the file, and deletes the records. So a file never names an object that does not exist. An
//! object that no file names has a record, by which it is found and removed.
//!
//! # Failures
//! - An object cannot be written, or the change fails. The bytes stay dirty. The next flush writes
//!   them under new keys, because a late request may still write under an old key. The flush also
//!   deletes the records of the old keys, so that a late copy of the failed change is refused.
//! - The records are gone, because the session ended long ago. The objects may be gone too, so they
//!   are written again immediately.
//! - Another mount has changed the inline contents. The flush loads the new contents, puts the
//!   dirty bytes over them, and continues.
//! - The file is gone, or its session has ended and another mount has changed the file since
//!   (`ESTALE`). The bytes can never be written, so they are discarded. The next fsync(2) or
//!   close(2) reports the loss.

use std::collections::BTreeMap;
use std::future::Future;
use std::io;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corewalk::Errno;
use futures_util::{TryStreamExt as _, stream};

use super::{Content, DIRTY_AGE, File, Files, INLINE_MAX, REQUESTS_MAX, Source};
use crate::directory::Change;
use crate::node::{Inode, to_nanos};

/// How often objects are written anew because their records are gone.
const TRIES: u32 = 3;
/// The pause before a request to the store is repeated.
const PAUSE: Duration = Duration::from_secs(1);

const WRITE: &str = "SELECT * FROM cw_write($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12)";
const PENDING: &str = "SELECT * FROM cw_pending($1, $2, $3, $4, $5)";

/// A new slice: a range of the file, and the key of the object that has exactly its bytes. Without
/// a key, the range contains zeros.
pub(super) type Slice = (Range<u64>, Option<Arc<str>>);

impl Files {
    /// Writes the dirty bytes of a file to the database and the objects. `writer` is the handle of
    /// a writer for which the flush reports discarded bytes. A reader, which may be any user, must
    /// not take this report away from the program that wrote the bytes. So the flush of a reader
    /// has no `writer`.
    ///
    /// # Errors
    /// `ESTALE` or `EIO` if bytes were discarded; `ENOSPC`, `EDQUOT` or `EIO` of the store; the
    /// errors of a change.
    pub(crate) fn flush(&self, ino: u64, writer: Option<u64>) -> Result<(), Errno> {
        let Some(used) = self.known_file(ino) else { return Ok(()) };
        let mut content = used.file.content.lock();
        let done = self.flush_content(&used.file, &mut content);
        // Clear the stored error even if the flush failed. If it has discarded bytes, its own error
        // already reports them.
        let lost = content.lost.take_if(|(_, next)| writer.is_some_and(|writer| writer < *next));
        done.and(lost.map_or(Ok(()), |(errno, _)| Err(errno)))
    }

    /// Flushes all files that have been dirty for some seconds, except those that `skips` selects.
    /// If `all` is true, flushes them whatever their age is.
    pub(crate) fn flush_old(&self, skips: impl Fn(u64) -> bool, all: bool) -> Result<(), Errno> {
        let mut done = Ok(());
        for ino in self.dirty_files().into_iter().filter(|ino| !skips(*ino)) {
            let Some(used) = self.known_file(ino) else { continue };
            let mut content = used.file.content.lock();
            if all || content.since.is_some_and(|since| since.elapsed() > DIRTY_AGE) {
                done = done.and(self.flush_content(&used.file, &mut content));
            }
        }
        done
    }

    pub(super) fn dirty_files(&self) -> Vec<u64> {
        let files = self.files.lock();
        let dirty = files.iter().filter(|(_, open)| open.file.view.lock().is_some());
        dirty.map(|(ino, _)| *ino).collect()
    }

    /// Flushes a file, and then changes its attributes. A flush after the change would replace the
    /// new modification time by the time of the last write.
    pub(crate) fn with_flushed(
        &self,
        ino: u64,
        change: impl FnOnce() -> Result<Inode, Errno>,
    ) -> Result<Inode, Errno> {
        let Some(used) = self.known_file(ino) else { return change() };
        let mut content = used.file.content.lock();
        self.flush_content(&used.file, &mut content)?;
        let inode = change()?;
        if content.version + 1 == inode.version {
            content.version = inode.version;
        }
        Ok(inode)
    }

    pub(super) fn flush_content(&self, file: &File, content: &mut Content) -> Result<(), Errno> {
        if !content.is_changed {
            return Ok(());
        }
        let mut done = Err(Errno::AGAIN);
        while done == Err(Errno::AGAIN) && content.slices.is_empty() && content.size <= INLINE_MAX {
            let mut inline = content.inline.to_vec();
            inline.resize(content.size as usize, 0);
            content.dirty.read(0, &mut inline);
            done = self.commit(file, content, Some(inline), Vec::new());
            if done == Err(Errno::AGAIN) {
                done = self.load(file, content).and(done);
            }
        }
        if done == Err(Errno::AGAIN) {
            done = self.flush_to_objects(file, content);
        }
        if done == Err(Errno::STALE) {
            self.give_up(file, content, Errno::STALE);
        }
        done
    }

    /// Discards the dirty bytes of a file that can never be written. The next flush of a writer
    /// reports `errno`.
    pub(super) fn give_up(&self, file: &File, content: &mut Content, errno: Errno) {
        let bytes = content.dirty.bytes();
        log::error!("inode {}: {bytes} bytes are lost: {errno}", file.ino);
        self.dirty_bytes.add(-(bytes as i64));
        self.meta.session.room.release(content.uncounted);
        *content = Content { lost: Some((errno, self.next_handle())), ..Content::default() };
        *file.view.lock() = None;
    }

    fn flush_to_objects(&self, file: &File, content: &mut Content) -> Result<(), Errno> {
        let extents = content.dirty.take();
        let mut done = Err(Errno::NOENT);
        for _ in 0..TRIES {
            done = self.put_all(&extents).and_then(|slices| {
                let keys: Vec<String> =
                    slices.iter().filter_map(|(_, key)| Some(key.as_deref()?.to_owned())).collect();
                let done = self.commit(file, content, None, slices);
                if done.is_err() {
                    self.failed.lock().extend(keys);
                }
                done
            });
            if done != Err(Errno::NOENT) {
                break;
            }
        }
        if done.is_err() {
            content.dirty.put_back(extents);
        } else {
            let bytes: usize = extents.values().map(Bytes::len).sum();
            self.dirty_bytes.add(-(bytes as i64));
        }
        done.map_err(|errno| if errno == Errno::NOENT { Errno::IO } else { errno })
    }

    /// Writes an object for each extent. Returns the slices that name the objects.
    fn put_all(&self, extents: &BTreeMap<u64, Bytes>) -> Result<Vec<Slice>, Errno> {
        if extents.is_empty() {
            return Ok(Vec::new());
        }
        let session = &self.meta.session;
        let first = {
            let mut next = self.next_object.lock();
            *next += extents.len() as u64;
            *next - extents.len() as u64
        };
        let id = session.id();
        let key = |number: u64| format!("{id:x}/{:x}/{number:x}", number >> 12);
        let keys: Vec<String> = (first..first + extents.len() as u64).map(key).collect();
        let failed = std::mem::take(&mut *self.failed.lock());
        if let Err(errno) = session.change(None, PENDING, &[&keys, &failed]) {
            // No object was written under the new keys. If the database has recorded the keys,
            // their records are removed at the end of the session.
            self.failed.lock().extend(failed);
            return Err(errno);
        }
        let puts = keys.iter().zip(extents.values()).map(Ok);
        let put = stream::iter(puts).try_for_each_concurrent(REQUESTS_MAX, |(key, bytes)| {
            self.patiently("writing an object", || self.objects.put(key, bytes.clone()))
        });
        if let Err(errno) = session.database.block_on(put) {
            self.failed.lock().extend(keys);
            // To the caller, `ENOENT` means that the record of an object is gone. Here the store
            // itself is missing: its bucket or its directory.
            return Err(if errno == Errno::NOENT { Errno::IO } else { errno });
        }
        let ranges = extents.iter().map(|(start, bytes)| *start..start + bytes.len() as u64);
        Ok(ranges.zip(keys).map(|(range, key)| (range, Some(key.into()))).collect())
    }

    /// Makes the change that gives a file its new contents in the database: inline bytes or slices.
    ///
    /// # Errors
    /// `EAGAIN` if `inline` is given, and another mount has changed the contents; `ENOENT` if the
    /// record of an object is gone; `ESTALE` if the bytes can never be written; the errors of a
    /// change.
    pub(super) fn commit(
        &self,
        file: &File,
        content: &mut Content,
        inline: Option<Vec<u8>>,
        slices: Vec<Slice>,
    ) -> Result<(), Errno> {
        let (ino, end) = (file.ino as i64, content.end as i64);
        let mtime = to_nanos(content.mtime);
        let starts: Vec<i64> = slices.iter().map(|(range, _)| range.start as i64).collect();
        let lens: Vec<i64> =
            slices.iter().map(|(range, _)| (range.end - range.start) as i64).collect();
        let keys: Vec<Option<&str>> = slices.iter().map(|(_, key)| key.as_deref()).collect();
        let change =
            Change { dirs: self.meta.cover(file.ino), names: Vec::new(), inos: vec![file.ino] };
        let Content { loaded_by, number, .. } = *content;
        let changed = self.meta.change(
            &change,
            WRITE,
            &[&ino, &loaded_by, &number, &end, &mtime, &inline, &starts, &lens, &keys],
            |_| Vec::new(),
        );
        // The change may have been made although its answer was lost. So load the contents again,
        // unless there are unflushed changes.
        let changed = changed.inspect_err(|_| content.is_old |= !content.is_changed)?;
        let version = changed.inode(file.ino)?.version;
        // If the version has grown by more than 1, another mount may have changed the contents.
        // Then the contents must be loaded again.
        content.is_old = content.version + 1 != version;
        (content.number, content.version) = (version, version);
        if let Some(inline) = inline {
            let bytes = content.dirty.take().values().map(Bytes::len).sum::<usize>();
            self.dirty_bytes.add(-(bytes as i64));
            content.inline = inline.into();
        }
        for (range, key) in slices {
            let len = range.end - range.start;
            let source = key.map_or(Source::Zeros, |key| Source::Object(key, 0, len));
            content.slices.add(range, source);
        }
        self.meta.session.room.count(std::mem::take(&mut content.uncounted));
        (content.is_changed, content.end, content.since) = (false, 0, None);
        *file.view.lock() = None;
        Ok(())
    }

    /// Repeats a request to the object store while the store is away. A request may wait as long as
    /// a call may wait for the database.
    ///
    /// # Errors
    /// `ENOENT` if there is no such object; `ENOSPC`, `EDQUOT`; `EIO` for other errors.
    pub(super) async fn patiently<T, F: Future<Output = io::Result<T>>>(
        &self,
        what: &str,
        mut request: impl FnMut() -> F,
    ) -> Result<T, Errno> {
        let (start, mut was_away) = (Instant::now(), false);
        loop {
            let left = self.meta.session.database.time_left(start, None);
            let answer = match left {
                Some(left) => tokio::time::timeout(left, request()).await,
                None => Ok(request().await),
            };
            let error = match answer {
                Ok(Ok(answer)) => return Ok(answer),
                Ok(Err(error)) => error,
                Err(elapsed) => elapsed.into(),
            };
            let left = self.meta.session.database.time_left(start, None);
            let may_wait = left.is_none_or(|left| !left.is_zero());
            if error.kind() != io::ErrorKind::TimedOut || !may_wait {
                log::error!("{what}: {error}");
                return Err(match error.kind() {
                    io::ErrorKind::NotFound => Errno::NOENT,
                    io::ErrorKind::StorageFull => Errno::NOSPC,
                    io::ErrorKind::QuotaExceeded => Errno::DQUOT,
                    _ => Errno::IO,
                });
            }
            if !std::mem::replace(&mut was_away, true) {
                log::warn!("{what}: {error}; it is tried again");
            }
            tokio::time::sleep(PAUSE).await;
        }
    }
}
