//! Tests of what a synchronous back end learns about a request, and of locks, ioctl(2) and poll(2),
//! on a real mount.

use std::fs::File;
use std::os::fd::AsFd as _;
use std::os::unix::process::CommandExt as _;
use std::process::Command;
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::{Duration, Instant};

use corewalk::{
    Attr, Caller, DirSink, Errno, FileLock, FileSystem, InodeFlags, IoctlReply, Name, Node,
    OpenFlags, Opened, PollEvents, PollWaker, Request, StatFs,
};
use corewalk_base::Mutex;
use corewalk_base::primitives::thread;
use corewalk_fuse::{Mount, Options, Transport};
use corewalk_testkit::require::{has_program, has_root};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{FlockOperation, IFlags, flock, ioctl_getflags, ioctl_setflags};

use crate::locks::{Locks, check_flock, check_posix_lock};
use crate::site::{Folder, Site, mount_options, transport};

const PATIENCE: Duration = Duration::from_secs(20);
const FILE_INO: u64 = 2;
const DOUBLE: u32 = 0xc008_4301;
const USER: u32 = 12_345;

/// A back end with one file, `f`, that records its calls. A read of `f` waits until its client is
/// killed.
struct Slow {
    reads: Sender<Caller>,
    cancelled: Sender<Duration>,
    flags: Mutex<InodeFlags>,
    locks: Locks,
    events: Mutex<(PollEvents, Option<PollWaker>)>,
    flushes: Mutex<Vec<bool>>,
}

impl FileSystem for Slow {
    fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(1))
    }

    fn lookup(&self, _: Node<'_>, name: Name<'_>) -> Result<Attr, Errno> {
        if name.as_bytes() == b"f" { Ok(Attr::file(FILE_INO, 1)) } else { Err(Errno::NOENT) }
    }

    fn getattr(&self, node: Node<'_>) -> Result<Attr, Errno> {
        Ok(if node.ino() == FILE_INO { Attr::file(FILE_INO, 1) } else { Attr::dir(1) })
    }

    fn readdir(&self, _: Node<'_>, _: u64, _: &mut DirSink<'_>) -> Result<(), Errno> {
        Ok(())
    }

    fn read(&self, _: Node<'_>, _: u64, _: &mut [u8]) -> Result<usize, Errno> {
        let request = Request::current().expect("a request reads");
        self.reads.send(request.caller()).expect("the test waits");
        let begin = Instant::now();
        while !request.is_cancelled() {
            if begin.elapsed() > PATIENCE {
                return Err(Errno::IO);
            }
            thread::sleep(Duration::from_millis(1));
        }
        self.cancelled.send(begin.elapsed()).expect("the test waits");
        Err(Errno::INTR)
    }

    fn statfs(&self) -> Result<StatFs, Errno> {
        Ok(StatFs::default())
    }

    fn open(&self, _: Node<'_>, _: u32) -> Result<Opened, Errno> {
        // Without `DIRECT_IO`, the client would wait for a page of the kernel's cache, and the
        // server would not learn of the client's signals.
        Ok(Opened::new(1).with_flags(OpenFlags::DIRECT_IO))
    }

    fn has_open_state(&self) -> bool {
        true
    }

    fn flush(&self, _: Node<'_>) -> Result<(), Errno> {
        let request = Request::current().expect("a request closes the file");
        // Record whether a kill of the client has cancelled its flush, which must not happen. The
        // sleep gives an interrupt time to arrive.
        thread::sleep(Duration::from_millis(100));
        self.flushes.lock().push(request.is_cancelled());
        Ok(())
    }

    /// fuser cannot serve locks.
    fn has_locks(&self) -> bool {
        transport() != Transport::Fuser
    }

    fn get_lock(&self, _: Node<'_>, lock: &FileLock) -> Result<Option<FileLock>, Errno> {
        Ok(self.locks.get(lock))
    }

    fn set_lock(&self, _: Node<'_>, lock: &FileLock) -> Result<(), Errno> {
        let request = Request::current().expect("a request takes the lock");
        assert_eq!(request.caller().uid, rustix::process::geteuid().as_raw());
        self.locks.set(lock)
    }

    fn unlock_owner(&self, _: Node<'_>, owner: u64, is_flock: bool) -> Result<(), Errno> {
        self.locks.unlock_owner(owner, is_flock);
        Ok(())
    }

    fn inode_flags(&self, _: Node<'_>) -> Result<InodeFlags, Errno> {
        Ok(*self.flags.lock())
    }

    fn set_inode_flags(&self, _: Node<'_>, flags: InodeFlags) -> Result<(), Errno> {
        if flags.contains(InodeFlags::COMPR) {
            return Err(Errno::OPNOTSUPP);
        }
        *self.flags.lock() = flags;
        Ok(())
    }

    fn ioctl(&self, _: Node<'_>, command: u32, input: &[u8]) -> Result<IoctlReply, Errno> {
        let argument = input.first_chunk().ok_or(Errno::INVAL)?;
        match command {
            DOUBLE => {
                let doubled = 2 * u64::from_ne_bytes(*argument);
                Ok(IoctlReply::new(doubled.to_ne_bytes().to_vec()).with_result(3))
            }
            _ => Err(Errno::NOTTY),
        }
    }

    fn poll(
        &self,
        _: Node<'_>,
        wanted: PollEvents,
        waker: Option<PollWaker>,
    ) -> Result<PollEvents, Errno> {
        let mut events = self.events.lock();
        if waker.is_some() {
            events.1 = waker;
        }
        Ok(events.0 & wanted)
    }
}

type Reports = (Receiver<Caller>, Receiver<Duration>);

fn mounted() -> Option<(Arc<Slow>, Site, Reports)> {
    let ((reads, callers), (cancelled, times)) = (channel(), channel());
    let (flags, locks, events) = (Mutex::default(), Locks::default(), Mutex::default());
    let fs = Slow { reads, cancelled, flags, locks, events, flushes: Mutex::default() };
    let fs = Arc::new(fs);
    let options = mount_options().with_threads(2);
    // Locks cannot be served over io_uring.
    let options = match options.transport {
        Transport::Uring => options.with_transport(Transport::Device),
        _ => options,
    };
    let site = Site::with_options(Arc::<Slow>::clone(&fs), Options::exclusive(), &options)?;
    Some((fs, site, (callers, times)))
}

/// A signal that does not kill must not cancel the request.
#[test]
fn back_end_learns_its_caller_and_that_the_caller_was_killed() {
    if transport() == Transport::Fuser {
        // fuser does not pass interrupts on.
        return;
    }
    let Some((_fs, site, (callers, times))) = mounted() else { return };
    let mut command = Command::new("cat");
    command.arg(site.path("f"));
    if rustix::process::geteuid().is_root() {
        command.uid(USER).gid(USER);
    }
    let mut reader = command.spawn().expect("run cat(1)");
    let caller = callers.recv_timeout(PATIENCE).expect("the read reaches the back end");
    assert_eq!(caller.pid, reader.id());
    if rustix::process::geteuid().is_root() {
        assert_eq!((caller.uid, caller.gid), (USER, USER));
    }
    let pid = rustix::process::Pid::from_child(&reader);
    rustix::process::kill_process(pid, rustix::process::Signal::WINCH).expect("send a signal");
    assert!(times.recv_timeout(Duration::from_millis(200)).is_err(), "the read goes on");
    let begin = Instant::now();
    reader.kill().expect("kill cat(1)");
    reader.wait().expect("cat(1) ends");
    times.recv_timeout(PATIENCE).expect("the read is cancelled");
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
}

#[test]
fn lsattr_and_chattr_reach_the_back_end() {
    let Some((fs, site, _)) = mounted() else { return };
    for path in [site.path("f"), site.root().to_owned()] {
        *fs.flags.lock() = InodeFlags::NODUMP;
        let file = File::open(path).expect("open the file");
        assert_eq!(ioctl_getflags(&file), Ok(IFlags::NODUMP));
        ioctl_setflags(&file, IFlags::NODUMP | IFlags::NOATIME).expect("set the flags");
        assert_eq!(*fs.flags.lock(), InodeFlags::NODUMP | InodeFlags::NOATIME);
        let refused = ioctl_setflags(&file, IFlags::COMPRESSED);
        assert_eq!(refused, Err(Errno::OPNOTSUPP));
    }
}

/// The back end must get the argument of an ioctl(2), and the caller its changed value. perl makes
/// the call, because the tests of this crate have no unsafe code.
#[test]
fn other_ioctls_reach_the_back_end_with_their_argument() {
    let Some((_fs, site, _)) = mounted().filter(|_| has_program("perl")) else { return };
    let script = "open(F, '<', $ARGV[0]) or die; my $arg = pack('Q', 21);
        my $result = ioctl(F, hex($ARGV[1]), $arg);
        print defined $result ? $result . ' ' . unpack('Q', $arg) : 'error ' . ($! + 0);";
    let call = |command: u32| {
        let mut perl = Command::new("perl");
        perl.arg("-e").arg(script).arg(site.path("f")).arg(format!("{command:x}"));
        String::from_utf8(perl.output().expect("run perl").stdout).expect("perl prints UTF-8")
    };
    assert_eq!(call(DOUBLE), "3 42");
    let unknown = format!("error {}", Errno::NOTTY.raw_os_error());
    assert_eq!(call(DOUBLE + 1), unknown);
}

#[test]
fn waker_of_the_back_end_wakes_a_client_that_polls() {
    if transport() == Transport::Fuser {
        // The adapter for fuser has no poll.
        return;
    }
    let Some((fs, site, _)) = mounted() else { return };
    let file = File::open(site.path("f")).expect("open the file");
    let wait = |millis: i64| {
        let mut polled = [PollFd::from_borrowed_fd(file.as_fd(), PollFlags::IN)];
        let limit = Timespec { tv_sec: millis / 1000, tv_nsec: millis % 1000 * 1_000_000 };
        poll(&mut polled, Some(&limit)).expect("poll the file");
        polled[0].revents()
    };
    assert_eq!(wait(50), PollFlags::empty());
    let waker = fs.events.lock().1.clone().expect("the client waits");
    let begin = Instant::now();
    thread::scope(|scope| {
        let waiting = scope.spawn(|| wait(PATIENCE.as_millis() as i64));
        thread::sleep(Duration::from_millis(100));
        fs.events.lock().0 = PollEvents::IN;
        waker.wake();
        assert_eq!(waiting.join().expect("the thread ends"), PollFlags::IN);
    });
    assert!(begin.elapsed() < PATIENCE / 2, "{:?}", begin.elapsed());
    drop(file);
    // The file is closed, so there is no client to wake. The call must do no harm.
    waker.wake();
}

#[test]
fn flock_reaches_the_back_end_and_can_be_interrupted() {
    let Some((fs, site, _)) = mounted().filter(|(fs, ..)| fs.has_locks()) else { return };
    check_flock(&site.path("f"), &fs.locks);
}

#[test]
fn posix_lock_ends_when_the_process_closes_the_file() {
    let Some((fs, site, _)) = mounted().filter(|(fs, ..)| fs.has_locks()) else { return };
    check_posix_lock(&site.path("f"), &fs.locks);
}

#[test]
fn waits_for_locks_need_no_threads_and_end_with_their_process() {
    let Some((_fs, site, _)) = mounted().filter(|(fs, ..)| fs.has_locks()) else { return };
    let path = site.path("f");
    let holder = File::open(&path).expect("open the file");
    flock(&holder, FlockOperation::LockExclusive).expect("lock the file");
    let mut command = Command::new("flock");
    command.arg(&path).arg("true");
    let mut waiting: Vec<_> = (0..6).map(|_| command.spawn().expect("run flock(1)")).collect();
    thread::sleep(Duration::from_millis(200));
    assert!(std::fs::metadata(&path).is_ok());
    let begin = Instant::now();
    for process in &mut waiting[..3] {
        process.kill().expect("kill flock(1)");
        process.wait().expect("the process ends");
    }
    assert!(begin.elapsed() < PATIENCE, "{:?}", begin.elapsed());
    drop(holder);
    for process in &mut waiting[3..] {
        assert!(process.wait().expect("the process ends").success());
    }
}

/// The kill of a client must not cancel its flush, which is the back end's last chance to store the
/// file.
#[test]
fn flush_of_a_killed_client_is_not_cancelled() {
    let Some((fs, site, _)) = mounted() else { return };
    let mut command = Command::new("sleep");
    let file = File::open(site.path("f")).expect("open the file");
    let mut client = command.arg("100").stdin(file).spawn().expect("run sleep(1)");
    fs.flushes.lock().clear();
    client.kill().expect("kill sleep(1)");
    client.wait().expect("sleep(1) ends");
    let begin = Instant::now();
    while fs.flushes.lock().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "no flush");
        thread::sleep(Duration::from_millis(1));
    }
    assert!(fs.flushes.lock().iter().all(|is_cancelled| !is_cancelled));
}

/// Only the owner of a file may change its inode flags. For the command number of 32-bit programs
/// Linux does not check this, so the server must.
#[test]
fn inode_flags_are_those_of_the_owner() {
    let Some((fs, site, _)) = mounted().filter(|_| has_root() && has_program("perl")) else {
        return;
    };
    let script = "open(F, '<', $ARGV[0]) or die; my $arg = pack('Lx4', 0x80);
        for my $command (0x40086602, 0x40046602) { print ioctl(F, $command, $arg) ? 'set' : 'no'; }";
    let mut perl = Command::new("perl");
    perl.arg("-e").arg(script).arg(site.path("f")).uid(USER).gid(USER);
    let output = perl.output().expect("run perl").stdout;
    assert_eq!(String::from_utf8(output).expect("perl prints UTF-8"), "nono");
    assert_eq!(*fs.flags.lock(), InodeFlags::default());
}

/// The kernel does not report the end of a lock of an open file description, so the release of the
/// file must end it.
#[test]
fn lock_of_an_open_file_description_ends_with_its_file() {
    let with_locks = mounted().filter(|(fs, ..)| fs.has_locks() && has_program("perl"));
    let Some((fs, site, _)) = with_locks else { return };
    // The script calls fcntl(2) with `F_OFD_SETLK` to lock the whole file with `F_RDLCK`.
    let script = "open(F, '<', $ARGV[0]) or die; my $lock = pack('s s x4 q q i x4', 0, 0, 0, 0, 0);
        fcntl(F, 37, $lock) or die $!; print 'locked';";
    let mut perl = Command::new("perl");
    let output = perl.arg("-e").arg(script).arg(site.path("f")).output().expect("run perl");
    assert_eq!(output.stdout, b"locked", "{output:?}");
    let begin = Instant::now();
    while !fs.locks.all().is_empty() {
        assert!(begin.elapsed() < PATIENCE, "{:?}", fs.locks.all());
        thread::sleep(Duration::from_millis(1));
    }
}

/// Requests that wait for locks could take all entries of a ring, so a mount with locks refuses
/// io_uring.
#[test]
fn mount_with_locks_refuses_io_uring() {
    let Some((fs, site, _)) = mounted().filter(|(fs, ..)| fs.has_locks()) else { return };
    assert_ne!(site.mount().transport(), Transport::Uring);
    let folder = Folder::new();
    let options = mount_options().with_transport(Transport::Uring);
    let mount = Mount::new(Arc::<Slow>::clone(&fs), folder.path(), Options::exclusive(), &options);
    let error = mount.expect_err("the mount fails").to_string();
    let offered = std::fs::read_to_string("/sys/module/fuse/parameters/enable_uring");
    if offered.is_ok_and(|text| text.trim() == "Y") {
        assert!(error.contains("locks"), "{error}");
    }
}
