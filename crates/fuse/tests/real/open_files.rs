//! Tests of calls that reach the back end through an open file or an open directory.

use std::fs;
use std::io::Read as _;
use std::process::Command;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use corewalk::tmpfs::{Tmpfs, TmpfsOptions};
use corewalk::{
    Attr, DirSink, Errno, FileSystem, Make, Name, Node, OpenFlags, Opened, SetAttr, StatFs,
};
use corewalk_fuse::Options;
use rustix::fs::SeekFrom;

use crate::site::{Host, Site};

const FILE: u64 = 7;
const DIRECTORY: u64 = 8;

struct Recorder {
    inner: Tmpfs,
    calls: Mutex<Vec<(&'static str, u64)>>,
    flags: OpenFlags,
    flush: Result<(), Errno>,
}

impl Recorder {
    fn new(flags: OpenFlags, flush: Result<(), Errno>) -> Arc<Recorder> {
        let inner = Tmpfs::new(TmpfsOptions::default());
        Arc::new(Recorder { inner, calls: Mutex::default(), flags, flush })
    }

    fn note(&self, call: &'static str, node: Node<'_>) {
        self.calls.lock().expect("no holder panics").push((call, node.handle()));
    }

    fn handles(&self, call: &str) -> Vec<u64> {
        let calls = self.calls.lock().expect("no holder panics");
        calls.iter().filter(|(name, _)| *name == call).map(|(_, handle)| *handle).collect()
    }
}

impl FileSystem for Recorder {
    fn root(&self) -> Result<Attr, Errno> {
        self.inner.root()
    }

    fn lookup(&self, dir: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        self.inner.lookup(dir, name)
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        self.note("getattr", node);
        self.inner.getattr(node)
    }

    fn setattr(&self, node: Node<'_>, set: &SetAttr) -> Result<Attr, Errno> {
        self.note("setattr", node);
        self.inner.setattr(node, set)
    }

    fn make(&self, dir: Node<'_>, name: Name<'_>, what: &Make<'_>) -> Result<Attr, Errno> {
        self.inner.make(dir, name, what)
    }

    fn remove(&self, dir: Node<'_>, name: Name<'_>, node: Node<'_>) -> Result<(), Errno> {
        self.inner.remove(dir, name, node)
    }

    fn open(&self, node: Node<'_>, _: u32) -> Result<Opened, Errno> {
        self.note("open", node);
        Ok(Opened::new(FILE).with_flags(self.flags))
    }

    fn has_open_state(&self) -> bool {
        true
    }

    fn release(&self, node: Node<'_>) {
        self.note("release", node);
    }

    fn flush(&self, node: Node<'_>) -> Result<(), Errno> {
        self.note("flush", node);
        self.flush
    }

    fn opendir(&self, dir: Node<'_>) -> Result<Opened, Errno> {
        self.note("opendir", dir);
        Ok(Opened::new(DIRECTORY))
    }

    fn releasedir(&self, dir: Node<'_>) {
        self.note("releasedir", dir);
    }

    fn readdir(&self, dir: Node<'_>, cookie: u64, sink: &mut DirSink<'_>) -> Result<(), Errno> {
        self.note("readdir", dir);
        self.inner.readdir(dir, cookie, sink)
    }

    fn read(&self, node: Node<'_>, offset: u64, buf: &mut [u8]) -> Result<usize, Errno> {
        self.note("read", node);
        if !self.flags.contains(OpenFlags::DIRECT_IO) {
            return self.inner.read(node, offset, buf);
        }
        // A file with `DIRECT_IO` stands for one of unknown size. It has content, although its
        // attributes have size 0.
        let text = b"status\n".get(offset as usize..).unwrap_or_default();
        let count = text.len().min(buf.len());
        buf[..count].copy_from_slice(&text[..count]);
        Ok(count)
    }

    fn write(&self, node: Node<'_>, offset: u64, bytes: &[u8]) -> Result<usize, Errno> {
        self.note("write", node);
        self.inner.write(node, offset, bytes)
    }

    fn copy_file_range(
        &self,
        from: (Node<'_>, u64),
        to: (Node<'_>, u64),
        len: u64,
    ) -> Result<u64, Errno> {
        self.note("copied from", from.0);
        self.note("copied to", to.0);
        let mut bytes = vec![0; len as usize];
        let count = self.inner.read(from.0, from.1, &mut bytes)?;
        Ok(self.inner.write(to.0, to.1, &bytes[..count])? as u64)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        self.inner.statfs()
    }
}

fn site(fs: &Arc<Recorder>) -> Option<Site> {
    let options = Options::exclusive().with_attr_timeout(Duration::ZERO);
    Site::new(Arc::<Recorder>::clone(fs), options)
}

#[test]
fn calls_through_an_open_file_have_its_handle() {
    let fs = Recorder::new(OpenFlags::empty(), Err(Errno::NOSYS));
    let Some(site) = site(&fs) else { return };
    let file = fs::File::create(site.path("f")).expect("create the file");
    file.set_len(10).expect("truncate the file");
    assert_eq!(fs.handles("setattr"), [FILE]);
    // For fstat(2) the kernel sends a getattr without the handle, so use lseek(2).
    assert_eq!(rustix::fs::seek(&file, SeekFrom::End(0)), Ok(10));
    assert_eq!(fs.handles("getattr").last(), Some(&FILE));
    fs::metadata(site.path("f")).expect("stat the file");
    assert_eq!(fs.handles("getattr").last(), Some(&0));
}

#[test]
fn open_directory_has_a_handle_until_it_is_closed() {
    let fs = Recorder::new(OpenFlags::empty(), Err(Errno::NOSYS));
    let Some(site) = site(&fs) else { return };
    fs::write(site.path("f"), "").expect("create the file");
    assert_eq!(fs::read_dir(site.root()).expect("list the root").count(), 1);
    assert_eq!(fs.handles("opendir"), [0]);
    assert!(fs.handles("readdir").iter().all(|handle| *handle == DIRECTORY));
    assert!(!fs.handles("readdir").is_empty());
    // Wait, because the kernel closes the directory in the background.
    site.wait_for("the directory is closed", |_| fs.handles("releasedir") == [DIRECTORY]);
}

#[test]
fn close_reports_the_error_of_the_back_end() {
    let fs = Recorder::new(OpenFlags::empty(), Err(Errno::NOSPC));
    let Some(site) = site(&fs) else { return };
    let host = Host::new();
    let source = host.path().join("source");
    fs::write(&source, "text").expect("write the source");
    // Copy with cp(1), because it reports an error of close(2).
    let copied = Command::new("cp").arg(&source).arg(site.path("f")).output().expect("run cp");
    let message = String::from_utf8_lossy(&copied.stderr).into_owned();
    assert!(!copied.status.success() && message.contains("No space left"), "{message}");
    assert!(fs.handles("flush").iter().all(|handle| *handle == FILE));
}

#[test]
fn each_close_of_a_descriptor_is_a_flush() {
    let fs = Recorder::new(OpenFlags::empty(), Ok(()));
    let Some(site) = site(&fs) else { return };
    let file = fs::File::create(site.path("f")).expect("create the file");
    let second = file.try_clone().expect("copy the descriptor");
    drop(second);
    assert_eq!((fs.handles("flush").len(), fs.handles("release").len()), (1, 0));
    drop(file);
    assert_eq!(fs.handles("flush"), [FILE, FILE]);
    site.wait_for("the file is closed", |_| fs.handles("release") == [FILE]);
}

#[test]
fn back_end_without_flush_is_asked_once() {
    let fs = Recorder::new(OpenFlags::empty(), Err(Errno::NOSYS));
    let Some(site) = site(&fs) else { return };
    for at in 0..3 {
        fs::write(site.path(&format!("f{at}")), "text").expect("write the file");
    }
    assert_eq!(fs.handles("flush").len(), 1);
}

#[test]
fn range_is_copied_by_the_back_end() {
    let fs = Recorder::new(OpenFlags::empty(), Err(Errno::NOSYS));
    let Some(site) = site(&fs) else { return };
    fs::write(site.path("from"), "0123456789").expect("write the file");
    let from = fs::File::open(site.path("from")).expect("open the file");
    let to = fs::File::create(site.path("to")).expect("create the file");
    let writes = fs.handles("write").len();
    let (mut at, mut to_at) = (3, 0);
    let copied = rustix::fs::copy_file_range(&from, Some(&mut at), &to, Some(&mut to_at), 4);
    assert_eq!(copied, Ok(4));
    assert_eq!(fs::read_to_string(site.path("to")).expect("read the copy"), "3456");
    assert_eq!((fs.handles("copied from"), fs.handles("copied to")), (vec![FILE], vec![FILE]));
    assert_eq!(fs.handles("write").len(), writes);
}

/// A file may report size 0 and still have content, for example in `/proc`. The kernel reads such a
/// file only with direct I/O.
#[test]
fn file_of_unknown_size_is_read_with_direct_io() {
    let fs = Recorder::new(OpenFlags::DIRECT_IO | OpenFlags::NONSEEKABLE, Err(Errno::NOSYS));
    let Some(site) = site(&fs) else { return };
    drop(fs::File::create(site.path("status")).expect("create the file"));
    let mut text = String::new();
    let mut file = fs::File::open(site.path("status")).expect("open the file");
    file.read_to_string(&mut text).expect("read the file");
    assert_eq!((text.as_str(), file.metadata().expect("stat the file").len()), ("status\n", 0));
    assert_eq!(rustix::fs::seek(&file, SeekFrom::Start(0)), Err(Errno::SPIPE));
}
