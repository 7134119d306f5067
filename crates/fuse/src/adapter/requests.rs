//! The methods of [`Filesystem`]. Each handles one kind of request.

use std::ffi::OsStr;
use std::io;
use std::ops::ControlFlow;
use std::os::unix::ffi::OsStrExt as _;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use corewalk::attr::mode;
use corewalk::{Attr, Caller, Fsync, Opened, Removal, SetAttr};
use fuser::{
    AccessFlags, BsdFileFlags, CopyFileRangeFlags, Errno, FileHandle, Filesystem, FopenFlags,
    Generation, INodeNo, IoctlFlags, KernelConfig, LockOwner, OpenFlags, RenameFlags, ReplyAttr,
    ReplyCreate, ReplyData, ReplyDirectory, ReplyDirectoryPlus, ReplyEmpty, ReplyEntry, ReplyIoctl,
    ReplyLseek, ReplyOpen, ReplyStatfs, ReplyWrite, ReplyXattr, Request, TimeOrNow, WriteFlags,
};
use rustix::fs::OFlags;

use super::retry::Retry;
use super::{Adapter, Opening, READ_BUFFER, convert, guarded};
use crate::server::{Change, EntryOut, NO_NODE, NewFile, Server, WriteOrigin, XattrAnswer};
use crate::timeouts::Timeouts;

/// The times of the entries and attributes in the answer to one request.
struct Times {
    server: Arc<Server>,
    reports: u64,
}

impl Times {
    fn begin(server: &Arc<Server>) -> Times {
        Times { server: Arc::clone(server), reports: server.reports() }
    }

    fn of(&self, attr: &Attr) -> Timeouts {
        self.unless_reported(Timeouts::of(self.server.options()).set_by(attr))
    }

    fn of_absent(&self) -> Duration {
        let default = self.server.options().negative_timeout;
        self.unless_reported(Timeouts::of(self.server.options()).of_absent(None, default)).entry
    }

    /// The kernel must keep nothing of the answer if a report came during the request.
    fn unless_reported(&self, timeouts: Timeouts) -> Timeouts {
        match self.server.reports() == self.reports {
            true => timeouts,
            false => timeouts.without_any(),
        }
    }
}

impl Adapter {
    fn make(
        &self,
        caller: Caller,
        parent: u64,
        name: &OsStr,
        new: &NewFile<'_>,
        reply: ReplyEntry,
    ) {
        let (name, times) = (name.as_bytes(), Times::begin(&self.server));
        let result = self.guarded(caller, |server| server.make(caller, parent, name, new));
        let retry = || -> Retry<EntryOut> {
            let (name, target, new) =
                (name.to_vec(), new.target.to_vec(), (new.mode, new.umask, new.rdev));
            Box::new(move |server| {
                let new = NewFile::new(new.0).with_umask(new.1).with_rdev(new.2);
                server.make(caller, parent, &name, &new.with_target(&target))
            })
        };
        self.answer_or_retry(caller, result, retry, move |result| entry(&times, result, reply));
    }

    /// Serves an fsync. If the back end may wait, the fsync runs on an offload thread, which also
    /// sends the reply.
    fn sync(&self, caller: Caller, node: u64, handle: u64, is_datasync: bool, reply: ReplyEmpty) {
        let what = if is_datasync { Fsync::Data } else { Fsync::All };
        let sync = move |server: &Server| server.fsync(node, handle, what);
        if !self.server.fsync_waits() {
            return empty(self.guarded(caller, sync), reply);
        }
        let server = self.server.clone();
        self.offload.run(Box::new(move || empty(guarded(&server, caller, sync), reply)));
    }

    fn xattr(result: Result<XattrAnswer, Errno>, reply: ReplyXattr) {
        match result {
            Ok(XattrAnswer::Length(length)) => reply.size(length),
            Ok(XattrAnswer::Value(value)) => reply.data(&value),
            Err(error) => reply.error(error),
        }
    }
}

fn entry(times: &Times, result: Result<EntryOut, Errno>, reply: ReplyEntry) {
    match result {
        Ok(entry) => {
            let timeouts = times.of(&entry.attr);
            reply.entry_with_ttls(
                &timeouts.attr,
                &timeouts.entry,
                &convert::attr(&entry.attr),
                Generation(entry.generation),
            );
        }
        Err(error) => reply.error(error),
    }
}

fn attributes(timeouts: Timeouts, result: Result<Attr, Errno>, reply: ReplyAttr) {
    match result {
        Ok(attr) => reply.attr(&timeouts.set_by(&attr).attr, &convert::attr(&attr)),
        Err(error) => reply.error(error),
    }
}

fn created(
    times: &Times,
    kept: FopenFlags,
    result: Result<(EntryOut, Opened), Errno>,
    reply: ReplyCreate,
) {
    match result {
        Ok((entry, opened)) => reply.created(
            &times.of(&entry.attr).shorter(),
            &convert::attr(&entry.attr),
            Generation(entry.generation),
            FileHandle(opened.handle),
            kept | flags_of(opened),
        ),
        Err(error) => reply.error(error),
    }
}

fn flags_of(opened: Opened) -> FopenFlags {
    FopenFlags::from_bits_retain(opened.flags.bits())
}

fn caller(request: &Request) -> Caller {
    Caller { uid: request.uid(), gid: request.gid(), pid: request.pid() }
}

fn empty(result: Result<(), Errno>, reply: ReplyEmpty) {
    match result {
        Ok(()) => reply.ok(),
        Err(error) => reply.error(error),
    }
}

fn written(result: Result<u64, Errno>, reply: ReplyWrite) {
    match result {
        Ok(count) => reply.written(u32::try_from(count).unwrap_or(u32::MAX)),
        Err(error) => reply.error(error),
    }
}

impl Filesystem for Adapter {
    fn init(&mut self, _: &Request, config: &mut KernelConfig) -> io::Result<()> {
        self.negotiate(config);
        Ok(())
    }

    fn lookup(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEntry) {
        let (caller, times) = (caller(request), Times::begin(&self.server));
        let found = self.guarded(caller, |server| server.lookup(caller, parent.0, name.as_bytes()));
        let negative_timeout = times.of_absent();
        match found {
            Err(Errno::ENOENT) if !negative_timeout.is_zero() => {
                reply.entry_with_ttls(
                    &negative_timeout,
                    &negative_timeout,
                    &convert::no_attr(),
                    Generation(0),
                );
            }
            found => entry(&times, found, reply),
        }
    }

    fn forget(&self, request: &Request, ino: INodeNo, nlookup: u64) {
        let _ = self.guarded(caller(request), |server| {
            server.forget(ino.0, nlookup);
            Ok(())
        });
    }

    fn getattr(&self, request: &Request, ino: INodeNo, fh: Option<FileHandle>, reply: ReplyAttr) {
        let (timeouts, handle) = (Timeouts::of(self.server.options()), fh.map_or(0, |fh| fh.0));
        let attr = self.guarded(caller(request), |server| server.getattr_through(ino.0, handle));
        attributes(timeouts, attr, reply);
    }

    fn setattr(
        &self,
        request: &Request,
        ino: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<TimeOrNow>,
        mtime: Option<TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<BsdFileFlags>,
        reply: ReplyAttr,
    ) {
        let set = SetAttr::default()
            .with_mode(mode.map(|mode| mode & 0o7777))
            .with_uid(uid)
            .with_gid(gid)
            .with_size(size)
            .with_atime(atime.map(convert::set_time))
            .with_mtime(mtime.map(convert::set_time))
            .with_ctime(ctime.map(convert::timespec));
        let change = Change::new(set).with_handle(fh.map(|fh| fh.0));
        let caller = caller(request);
        let result = self.guarded(caller, |server| server.setattr(caller, ino.0, change));
        let retry =
            || -> Retry<Attr> { Box::new(move |server| server.setattr(caller, ino.0, change)) };
        let timeouts = Timeouts::of(self.server.options());
        self.answer_or_retry(caller, result, retry, move |result| {
            attributes(timeouts, result, reply)
        });
    }

    fn readlink(&self, request: &Request, ino: INodeNo, reply: ReplyData) {
        match self.guarded(caller(request), |server| server.readlink(ino.0)) {
            Ok(target) => reply.data(&target),
            Err(error) => reply.error(error),
        }
    }

    fn mknod(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: ReplyEntry,
    ) {
        let new = NewFile::new(mode).with_umask(umask).with_rdev(u64::from(rdev));
        self.make(caller(request), parent.0, name, &new, reply);
    }

    fn mkdir(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: ReplyEntry,
    ) {
        let new = NewFile { mode: mode::S_IFDIR | mode & 0o7777, umask, ..NewFile::default() };
        self.make(caller(request), parent.0, name, &new, reply);
    }

    fn unlink(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes());
        let how = Removal::Unlink;
        empty(self.guarded(caller, |server| server.remove(caller, parent.0, name, how)), reply);
    }

    fn rmdir(&self, request: &Request, parent: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes());
        let how = Removal::Rmdir;
        empty(self.guarded(caller, |server| server.remove(caller, parent.0, name, how)), reply);
    }

    fn symlink(
        &self,
        request: &Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let new = NewFile { mode: mode::S_IFLNK | 0o777, target, ..NewFile::default() };
        self.make(caller(request), parent.0, link_name, &new, reply);
    }

    fn rename(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: RenameFlags,
        reply: ReplyEmpty,
    ) {
        let (from, to) = ((parent.0, name.as_bytes()), (newparent.0, newname.as_bytes()));
        let (caller, flags) = (caller(request), flags.bits());
        let result = self.guarded(caller, |server| server.rename(caller, from, to, flags));
        let retry = || -> Retry<()> {
            let (old, new) = (name.as_bytes().to_vec(), newname.as_bytes().to_vec());
            Box::new(move |server| {
                server.rename(caller, (parent.0, &old), (newparent.0, &new), flags)
            })
        };
        self.answer_or_retry(caller, result, retry, move |result| empty(result, reply));
    }

    fn link(
        &self,
        request: &Request,
        ino: INodeNo,
        newparent: INodeNo,
        newname: &OsStr,
        reply: ReplyEntry,
    ) {
        let (caller, name) = (caller(request), newname.as_bytes());
        let times = Times::begin(&self.server);
        let linked = self.guarded(caller, |server| server.link(caller, ino.0, newparent.0, name));
        let retry = || -> Retry<EntryOut> {
            let name = name.to_vec();
            Box::new(move |server| server.link(caller, ino.0, newparent.0, &name))
        };
        self.answer_or_retry(caller, linked, retry, move |linked| entry(&times, linked, reply));
    }

    fn open(&self, request: &Request, ino: INodeNo, flags: OpenFlags, reply: ReplyOpen) {
        let Opening::Asked(cached) = self.opening else { return reply.error(Errno::ENOSYS) };
        let caller = caller(request);
        match self.guarded(caller, |server| server.open(caller, ino.0, flags.0 as u32)) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), cached | flags_of(opened)),
            Err(error) => reply.error(error),
        }
    }

    fn read(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyData,
    ) {
        let mut buffer = READ_BUFFER.take();
        let size = size as usize;
        if buffer.len() < size {
            buffer.resize(size, 0);
        }
        match self.guarded(caller(request), |server| {
            server.read(ino.0, fh.0, offset, &mut buffer[..size])
        }) {
            Ok(count) => reply.data(&buffer[..count.min(size)]),
            Err(error) => reply.error(error),
        }
        READ_BUFFER.set(buffer);
    }

    fn write(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        write_flags: WriteFlags,
        flags: OpenFlags,
        _: Option<LockOwner>,
        reply: ReplyWrite,
    ) {
        // fcntl(2) may have changed `O_APPEND` since open(2), so use the flags of the write
        // request.
        let appends = OFlags::from_bits_retain(flags.0 as u32).contains(OFlags::APPEND);
        let origin = match write_flags.contains(WriteFlags::FUSE_WRITE_CACHE) {
            true => WriteOrigin::Cache,
            false if appends => WriteOrigin::Append,
            false => WriteOrigin::Call,
        };
        let caller = caller(request);
        let count =
            self.guarded(caller, |server| server.write(caller, ino.0, fh.0, offset, data, origin));
        let retry = || -> Retry<usize> {
            let data = data.to_vec();
            Box::new(move |server| server.write(caller, ino.0, fh.0, offset, &data, origin))
        };
        self.answer_or_retry(caller, count, retry, |count| written(count.map(|n| n as u64), reply));
    }

    fn flush(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: LockOwner,
        reply: ReplyEmpty,
    ) {
        empty(self.guarded(caller(request), |server| server.flush(ino.0, fh.0, 0)), reply);
    }

    fn release(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        _: Option<LockOwner>,
        _: bool,
        reply: ReplyEmpty,
    ) {
        empty(self.guarded(caller(request), |server| server.release(ino.0, fh.0, None)), reply);
    }

    fn fsync(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(caller(request), ino.0, fh.0, datasync, reply);
    }

    fn opendir(&self, request: &Request, ino: INodeNo, _: OpenFlags, reply: ReplyOpen) {
        let Opening::Asked(cached) = self.opening else { return reply.error(Errno::ENOSYS) };
        let caller = caller(request);
        let flags = match cached.is_empty() {
            true => cached,
            false => cached | FopenFlags::FOPEN_CACHE_DIR,
        };
        match self.guarded(caller, |server| server.opendir(caller, ino.0)) {
            Ok(opened) => reply.opened(FileHandle(opened.handle), flags | flags_of(opened)),
            Err(error) => reply.error(error),
        }
    }

    fn releasedir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: OpenFlags,
        reply: ReplyEmpty,
    ) {
        empty(self.guarded(caller(request), |server| server.releasedir(ino.0, fh.0)), reply);
    }

    fn readdir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectory,
    ) {
        let mut taken = 0_usize;
        let listed = self.guarded(caller(request), |server| {
            server.readdir(ino.0, fh.0, offset, &mut |entry| {
                let kind = convert::kind(entry.kind);
                let name = OsStr::from_bytes(entry.name);
                if reply.add(INodeNo(entry.node), entry.cookie, kind, name) {
                    return ControlFlow::Break(());
                }
                taken += 1;
                ControlFlow::Continue(())
            })
        });
        match listed {
            Err(error) if taken == 0 => reply.error(error),
            _ => reply.ok(),
        }
    }

    fn readdirplus(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        mut reply: ReplyDirectoryPlus,
    ) {
        let mut taken = 0_usize;
        let times = Times::begin(&self.server);
        let listed = self.guarded(caller(request), |server| {
            server.readdirplus(ino.0, fh.0, offset, &mut |entry, attr| {
                // If the lookup of the entry has failed, the node number is 0. Report such an entry
                // with a timeout of 0, so that the kernel looks its name up when a program uses it.
                let (attr, timeout) = match entry.node {
                    0 => (attr.with_ino(NO_NODE), Duration::ZERO),
                    _ => (*attr, times.of(attr).shorter()),
                };
                let is_full = reply.add(
                    INodeNo(attr.ino),
                    entry.cookie,
                    OsStr::from_bytes(entry.name),
                    &timeout,
                    &convert::attr(&attr),
                    Generation(attr.generation),
                );
                if is_full {
                    return ControlFlow::Break(());
                }
                taken += 1;
                ControlFlow::Continue(())
            })
        });
        match listed {
            Err(error) if taken == 0 => reply.error(error),
            _ => reply.ok(),
        }
    }

    fn fsyncdir(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        datasync: bool,
        reply: ReplyEmpty,
    ) {
        self.sync(caller(request), ino.0, fh.0, datasync, reply);
    }

    fn statfs(&self, request: &Request, ino: INodeNo, reply: ReplyStatfs) {
        match self.guarded(caller(request), |server| server.statfs(ino.0)) {
            Ok(fs) => reply.statfs(
                fs.blocks, fs.bfree, fs.bavail, fs.files, fs.ffree, fs.bsize, fs.namelen, fs.bsize,
            ),
            Err(error) => reply.error(error),
        }
    }

    fn setxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _: u32,
        reply: ReplyEmpty,
    ) {
        let (caller, name, flags) = (caller(request), name.as_bytes(), flags as u32);
        let result =
            self.guarded(caller, |server| server.setxattr(caller, ino.0, name, value, flags));
        let retry = || -> Retry<()> {
            let (name, value) = (name.to_vec(), value.to_vec());
            Box::new(move |server| server.setxattr(caller, ino.0, &name, &value, flags))
        };
        self.answer_or_retry(caller, result, retry, move |result| empty(result, reply));
    }

    fn getxattr(
        &self,
        request: &Request,
        ino: INodeNo,
        name: &OsStr,
        size: u32,
        reply: ReplyXattr,
    ) {
        let (caller, name) = (caller(request), name.as_bytes());
        Self::xattr(
            self.guarded(caller, |server| server.getxattr(caller, ino.0, name, size)),
            reply,
        );
    }

    fn listxattr(&self, request: &Request, ino: INodeNo, size: u32, reply: ReplyXattr) {
        let caller = caller(request);
        Self::xattr(self.guarded(caller, |server| server.listxattr(caller, ino.0, size)), reply);
    }

    fn removexattr(&self, request: &Request, ino: INodeNo, name: &OsStr, reply: ReplyEmpty) {
        let (caller, name) = (caller(request), name.as_bytes());
        let result = self.guarded(caller, |server| server.removexattr(caller, ino.0, name));
        let retry = || -> Retry<()> {
            let name = name.to_vec();
            Box::new(move |server| server.removexattr(caller, ino.0, &name))
        };
        self.answer_or_retry(caller, result, retry, move |result| empty(result, reply));
    }

    fn access(&self, request: &Request, ino: INodeNo, mask: AccessFlags, reply: ReplyEmpty) {
        let (caller, mask) = (caller(request), mask.bits() as u32);
        empty(self.guarded(caller, |server| server.access(caller, ino.0, mask)), reply);
    }

    fn create(
        &self,
        request: &Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: ReplyCreate,
    ) {
        let new = NewFile { mode, umask, ..NewFile::default() };
        let (caller, name, flags) = (caller(request), name.as_bytes(), flags as u32);
        let kept = match self.opening {
            Opening::Asked(kept) => kept,
            Opening::Free => FopenFlags::FOPEN_KEEP_CACHE,
        };
        let times = Times::begin(&self.server);
        let result =
            self.guarded(caller, |server| server.create(caller, parent.0, name, &new, flags));
        let retry = || -> Retry<(EntryOut, Opened)> {
            let name = name.to_vec();
            let new = NewFile { mode, umask, ..NewFile::default() };
            Box::new(move |server| server.create(caller, parent.0, &name, &new, flags))
        };
        self.answer_or_retry(caller, result, retry, move |result| {
            created(&times, kept, result, reply)
        });
    }

    fn ioctl(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        _: IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: ReplyIoctl,
    ) {
        let (caller, size) = (caller(request), out_size as usize);
        let answer =
            self.guarded(caller, |server| server.ioctl(caller, (ino.0, fh.0), cmd, in_data, size));
        match answer {
            Ok(answer) => reply.ioctl(answer.result, &answer.output),
            Err(error) => reply.error(error),
        }
    }

    fn fallocate(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: ReplyEmpty,
    ) {
        let (caller, range, flags) = (caller(request), (offset, length), mode as u32);
        let result =
            self.guarded(caller, |server| server.fallocate(caller, ino.0, fh.0, range, flags));
        let retry = || -> Retry<()> {
            Box::new(move |server| server.fallocate(caller, ino.0, fh.0, range, flags))
        };
        self.answer_or_retry(caller, result, retry, move |result| empty(result, reply));
    }

    fn lseek(
        &self,
        request: &Request,
        ino: INodeNo,
        fh: FileHandle,
        offset: i64,
        whence: i32,
        reply: ReplyLseek,
    ) {
        match self.guarded(caller(request), |server| server.seek(ino.0, fh.0, offset, whence)) {
            Ok(offset) => reply.offset(i64::try_from(offset).unwrap_or(i64::MAX)),
            Err(error) => reply.error(error),
        }
    }

    fn copy_file_range(
        &self,
        request: &Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        _: CopyFileRangeFlags,
        reply: ReplyWrite,
    ) {
        let from = (ino_in.0, fh_in.0, offset_in);
        let to = (ino_out.0, fh_out.0, offset_out);
        let caller = caller(request);
        let copied = self.guarded(caller, |server| server.copy_file_range(caller, from, to, len));
        // `copy_file_range` fails only if it has copied no byte, so the call can be repeated.
        let retry = || -> Retry<u64> {
            Box::new(move |server| server.copy_file_range(caller, from, to, len))
        };
        self.answer_or_retry(caller, copied, retry, move |copied| written(copied, reply));
    }
}
