//! Which cache lines an operation reads and writes: the proof that two operations do not meet.
//!
//! Two threads scale beside each other if neither writes a line that the other one touches. A machine
//! with two processors cannot time that for eighty, but it can count it: each operation is recorded by
//! itself, and the lines of two recordings are compared. A line that one writes and the other reads or
//! writes is a *conflict*.
//!
//! # How it works
//!
//! What was built in a [`Phase`] is made inaccessible while an operation runs. Its every access faults;
//! the handler of SIGSEGV notes the address, lets the processor at that page, and has it stop after one
//! instruction (the trap flag), and the handler of SIGTRAP takes the page away again. So nothing of the
//! system under test has to know of it, and a release build is recorded as it is.
//!
//! # Rules
//!
//! - While something is recorded no other thread touches what was built.
//! - What is spread over threads is seen as spread only if the operations are recorded on two threads.
//! - The operation makes no system call with a pointer to what was built; it would fail with `EFAULT`.
//!
//! # What it cannot see
//!
//! Statics; what is on the stack or local to a thread; the second line where one instruction
//! touches two lines of a page; and paths that the recorded run did not take.
//!
//! Source: Clements et al., "The scalable commutativity rule", 2013; sigaction(2).
#![expect(unsafe_code, reason = "handlers of signals, and mprotect")]

use crate::{
    real::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    seal::{Phase, Ranges},
};
use rustix::mm::{MprotectFlags, mprotect};
use std::{collections::BTreeSet, ffi::c_void, mem::MaybeUninit, ptr};

/// Bytes of a cache line.
const LINE: usize = 64;
/// Bytes of a page.
const PAGE: usize = 4_096;
/// Accesses that one recording has room for.
const ACCESSES_MAX: usize = 1 << 14;
/// Pages that one instruction touches at most.
const OPEN_MAX: usize = 8;
/// The bit of the page fault's error code that says that it was a store.
const FAULT_STORE: i64 = 1 << 1;
/// The trap flag of the processor.
const TRAP_FLAG: i64 = 1 << 8;

/// The lines that an operation touched, by number.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// Lines that it read, and did not write.
    pub read: BTreeSet<usize>,
    /// Lines that it wrote.
    pub written: BTreeSet<usize>,
}

impl Lines {
    /// Returns the lines that one of the two wrote and the other one touched.
    pub fn conflicts(&self, other: &Lines) -> BTreeSet<usize> {
        let touched = |line: &&usize| other.read.contains(line) || other.written.contains(line);
        let ours = self.written.iter().filter(touched);
        let theirs = other.written.iter().filter(|line| self.read.contains(line));
        ours.chain(theirs).copied().collect()
    }
}

/// What was built in a phase, to be watched. There is one at a time in a process.
#[derive(Debug)]
pub struct Watched {
    /// Boxed, since the handlers have a pointer to it.
    ranges: Box<Ranges>,
}

/// What the handlers know. They may use atomics only.
struct Recorder {
    /// What is watched; null while nothing is recorded.
    ranges: AtomicPtr<Ranges>,
    /// Address of each access, its lowest bit set for a store.
    accesses: [AtomicUsize; ACCESSES_MAX],
    len: AtomicUsize,
    /// Pages that the running instruction was let at.
    open: [AtomicUsize; OPEN_MAX],
    open_len: AtomicUsize,
    is_taken: AtomicBool,
}

static RECORDER: Recorder = Recorder {
    ranges: AtomicPtr::new(ptr::null_mut()),
    accesses: [const { AtomicUsize::new(0) }; ACCESSES_MAX],
    len: AtomicUsize::new(0),
    open: [const { AtomicUsize::new(0) }; OPEN_MAX],
    open_len: AtomicUsize::new(0),
    is_taken: AtomicBool::new(false),
};

impl Phase {
    /// Ends the phase: what was built in it can be watched from now on.
    pub fn watch(self) -> Watched {
        Watched { ranges: Box::new(self.into_ranges()) }
    }
}

impl Watched {
    /// Runs `operation`, and returns the lines of what was built that it touched.
    ///
    /// # Panics
    ///
    /// Panics if something is being recorded already, if the kernel refuses, or if there were more
    /// accesses than are noted.
    pub fn record(&self, operation: impl FnOnce()) -> Lines {
        // ORDERING: Relaxed, all of this file. A handler runs on the thread that it interrupts, and one
        // thread is recorded at a time.
        assert!(!RECORDER.is_taken.swap(true, Ordering::Relaxed), "something is recorded already");
        RECORDER.len.store(0, Ordering::Relaxed);
        RECORDER.ranges.store(ptr::from_ref(&*self.ranges).cast_mut(), Ordering::Relaxed);
        let old = [(libc::SIGSEGV, on_fault as *const ()), (libc::SIGTRAP, on_step as *const ())]
            .map(|(signal, handler)| (signal, handle(signal, handler)));
        self.set(MprotectFlags::empty());
        operation();
        self.set(MprotectFlags::READ | MprotectFlags::WRITE);
        for (signal, old) in old {
            restore(signal, &old);
        }
        // ORDERING: Relaxed. As above.
        RECORDER.ranges.store(ptr::null_mut(), Ordering::Relaxed);
        let len = RECORDER.len.load(Ordering::Relaxed);
        assert!(len < ACCESSES_MAX, "too many accesses");
        // ORDERING: Relaxed. As above.
        let noted = RECORDER.accesses[..len].iter().map(|access| access.load(Ordering::Relaxed));
        let mut lines = Lines::default();
        for access in noted {
            let kind = if access & 1 == 0 { &mut lines.read } else { &mut lines.written };
            kind.insert(access / LINE);
        }
        lines.read.retain(|line| !lines.written.contains(line));
        // ORDERING: Relaxed. As above.
        RECORDER.is_taken.store(false, Ordering::Relaxed);
        lines
    }

    fn set(&self, access: MprotectFlags) {
        for range in self.ranges.iter() {
            let start = ptr::with_exposed_provenance_mut::<c_void>(range.start);
            // SAFETY: the range is mapped private and was writable when it was read from the kernel. What
            // faults while it is not goes on after the handler has given access to the page.
            let done = unsafe { mprotect(start, range.end - range.start, access) };
            assert!(done.is_ok(), "mprotect: {done:?}");
        }
    }
}

/// Has `handler` called for `signal`, and returns what was done before.
fn handle(signal: i32, handler: *const ()) -> libc::sigaction {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: all zeroes is a valid `sigaction`: no flags, an empty mask.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler as usize;
    // A fault within the handler is a fault of this file: it is not to be handled for ever.
    new.sa_flags = libc::SA_SIGINFO;
    // SAFETY: both point to a `sigaction`, and the handler takes what `SA_SIGINFO` says.
    let done = unsafe { libc::sigaction(signal, &raw const new, old.as_mut_ptr()) };
    assert_eq!(done, 0, "sigaction");
    // SAFETY: the call has filled it in.
    unsafe { old.assume_init() }
}

fn restore(signal: i32, old: &libc::sigaction) {
    // SAFETY: it is what was there before.
    let done = unsafe { libc::sigaction(signal, old, ptr::null_mut()) };
    assert_eq!(done, 0, "sigaction");
}

/// Notes an access to what is watched, and lets the one instruction pass.
extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel hands over a `siginfo_t` that lives as long as this call.
    let info = unsafe { &*info };
    // SAFETY: the signal is SIGSEGV, which has an address.
    let address = unsafe { info.si_addr() }.addr();
    // ORDERING: Relaxed. See `record`.
    let ranges = RECORDER.ranges.load(Ordering::Relaxed);
    // SAFETY: it is null or points into the `Watched` that is being recorded.
    let is_watched = unsafe { ranges.as_ref() }.is_some_and(|ranges| ranges.contains(address));
    if !is_watched {
        // Somebody else's fault: it comes again, and ends the process.
        // SAFETY: `SIG_DFL` is a valid handler.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    // SAFETY: with `SA_SIGINFO` the third argument is a `ucontext_t` of this thread.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let is_store = registers[libc::REG_ERR as usize] & FAULT_STORE != 0;
    note(&RECORDER.accesses, &RECORDER.len, (address & !1) | usize::from(is_store));
    // Just to read, if that is what it does first: a store of the same instruction faults again.
    let access =
        if is_store { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    note(&RECORDER.open, &RECORDER.open_len, address & !(PAGE - 1));
    allow(address & !(PAGE - 1), access);
    registers[libc::REG_EFL as usize] |= TRAP_FLAG;
}

/// Takes the pages away again that an instruction was let at.
extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: as in `on_fault`.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    // ORDERING: Relaxed. See `record`.
    let open = RECORDER.open_len.swap(0, Ordering::Relaxed).min(OPEN_MAX);
    for page in &RECORDER.open[..open] {
        // ORDERING: Relaxed. See `record`.
        allow(page.load(Ordering::Relaxed), MprotectFlags::empty());
    }
}

/// Appends to a list of fixed size; what does not fit is only counted.
fn note(list: &[AtomicUsize], len: &AtomicUsize, word: usize) {
    // ORDERING: Relaxed. See `record`.
    let at = len.fetch_add(1, Ordering::Relaxed);
    if let Some(place) = list.get(at) {
        // ORDERING: Relaxed. See `record`.
        place.store(word, Ordering::Relaxed);
    }
}

fn allow(page: usize, access: MprotectFlags) {
    let start = ptr::with_exposed_provenance_mut::<c_void>(page);
    // SAFETY: the page lies in a range that is watched, see `Watched::set`.
    if unsafe { mprotect(start, PAGE, access) }.is_err() {
        // A panic cannot leave a handler.
        std::process::abort();
    }
}
