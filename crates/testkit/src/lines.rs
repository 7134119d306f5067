//! Records which cache lines an operation reads and writes. So a test can prove that no operation
//! writes a line that another one touches.
//!
//! Two threads scale if neither writes a cache line that the other touches. Two processors cannot
//! show how well a program scales to eighty. But a test can record the lines of each operation by
//! itself, and compare two recordings. A line that one operation writes and the other reads or
//! writes is a *conflict*.
//!
//! # How it works
//!
//! While an operation runs, the memory of the [`Phase`] is inaccessible, so that each access
//! faults. The handler of SIGSEGV records the address, gives access to the page, and sets the trap
//! flag, which stops the processor after one instruction. Then the handler of SIGTRAP takes the
//! access away again.
//!
//! The code under test is not changed, so a test can even record a release build.
//!
//! # Rules
//!
//! - During a recording, no other thread accesses memory that was allocated in the [`Phase`].
//! - Operations on a counter with one cache line per thread are recorded on two threads. On one
//!   thread both would use the same line, which would show as a conflict.
//! - The operation makes no system call with a pointer to memory of the phase. Such a call would
//!   fail with `EFAULT`.
//!
//! # Limits
//!
//! A recording contains no accesses to statics, stacks and thread-local variables. If one
//! instruction touches two cache lines of a page, the second is missing.
//!
//! Source: Clements et al., "The scalable commutativity rule", 2013; sigaction(2).
#![expect(unsafe_code, reason = "handlers of signals, and mprotect")]

use crate::{
    real::atomic::{AtomicBool, AtomicPtr, AtomicUsize, Ordering},
    seal::{Phase, Ranges},
};
use rustix::mm::{MprotectFlags, mprotect};
use std::{collections::BTreeSet, ffi::c_void, mem::MaybeUninit, ptr};

const LINE: usize = 64;
const PAGE: usize = 4_096;
/// Size of the list of accesses. [`Watched::record`] panics if an operation fills it.
const ACCESSES_MAX: usize = 1 << 14;
/// Maximum number of faults of one instruction. An AVX-512 gather of 16 elements has the most: a
/// fault for each of 32 pages.
const OPEN_MAX: usize = 32;
/// The bit in the error code of a page fault that is set for a store.
const FAULT_STORE: i64 = 1 << 1;
/// The bit in the flags register that stops the processor after each instruction.
const TRAP_FLAG: i64 = 1 << 8;

/// The cache lines that an operation has touched. The number of a line is its address divided by
/// 64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Lines {
    /// The lines that the operation has read but not written.
    pub read: BTreeSet<usize>,
    /// Lines that the operation wrote.
    pub written: BTreeSet<usize>,
}

impl Lines {
    /// Returns the conflicts: the cache lines that one of the two operations has written and the
    /// other one has read or written.
    pub fn conflicts(&self, other: &Lines) -> BTreeSet<usize> {
        let touched = |line: &&usize| other.read.contains(line) || other.written.contains(line);
        let ours = self.written.iter().filter(touched);
        let theirs = other.written.iter().filter(|line| self.read.contains(line));
        ours.chain(theirs).copied().collect()
    }
}

/// The memory that was allocated in a phase, ready for recordings.
#[derive(Debug)]
pub struct Watched {
    ranges: Box<Ranges>,
}

/// The state of the recording that runs. [`Watched::record`] shares it with the signal handlers,
/// which may use only atomics.
struct Recorder {
    /// The memory that is recorded, or null outside of a recording.
    ranges: AtomicPtr<Ranges>,
    /// Addresses of the accesses. The lowest bit is 1 for a store and 0 for a load.
    accesses: [AtomicUsize; ACCESSES_MAX],
    len: AtomicUsize,
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
    /// Ends this [`Phase`]. From now on, [`Watched::record`] can record accesses to the memory that
    /// was allocated during it.
    pub fn watch(self) -> Watched {
        Watched { ranges: Box::new(self.into_ranges()) }
    }
}

impl Watched {
    /// Runs `operation`, and returns the cache lines that it has touched, of memory that was
    /// allocated in the [`Phase`].
    ///
    /// # Panics
    ///
    /// Panics if another recording runs, if the kernel refuses mprotect(2) or sigaction(2), or if
    /// `operation` makes more than 16,383 accesses.
    pub fn record(&self, operation: impl FnOnce()) -> Lines {
        // ORDERING: Relaxed, like all orderings in this file. Only one thread is recorded at a
        // time, and the signal handlers `on_fault` and `on_step` interrupt the same thread.
        assert!(!RECORDER.is_taken.swap(true, Ordering::Relaxed), "another recording runs");
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
        // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
        RECORDER.ranges.store(ptr::null_mut(), Ordering::Relaxed);
        let len = RECORDER.len.load(Ordering::Relaxed);
        assert!(len < ACCESSES_MAX, "the operation made too many accesses: {len}");
        // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
        let accesses = RECORDER.accesses[..len].iter().map(|access| access.load(Ordering::Relaxed));
        let mut lines = Lines::default();
        for access in accesses {
            let kind = if access & 1 == 0 { &mut lines.read } else { &mut lines.written };
            kind.insert(access / LINE);
        }
        lines.read.retain(|line| !lines.written.contains(line));
        // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
        RECORDER.is_taken.store(false, Ordering::Relaxed);
        lines
    }

    fn set(&self, access: MprotectFlags) {
        for range in self.ranges.iter() {
            let start = ptr::with_exposed_provenance_mut::<c_void>(range.start);
            // SAFETY: the kernel has reported this range as private and writable. If an access
            // faults, the handler of SIGSEGV gives access to the page.
            let done = unsafe { mprotect(start, range.end - range.start, access) };
            assert!(done.is_ok(), "mprotect: {done:?}");
        }
    }
}

/// Returns the previous disposition.
fn handle(signal: i32, handler: *const ()) -> libc::sigaction {
    let mut old = MaybeUninit::<libc::sigaction>::uninit();
    // SAFETY: a `sigaction` of zeroes is valid: it has no flags and an empty mask.
    let mut new: libc::sigaction = unsafe { MaybeUninit::zeroed().assume_init() };
    new.sa_sigaction = handler as usize;
    // Without `SA_NODEFER`, a fault in the handler ends the process.
    new.sa_flags = libc::SA_SIGINFO;
    // SAFETY: both pointers are to a `sigaction`. The handler takes the three arguments of
    // `SA_SIGINFO`.
    let done = unsafe { libc::sigaction(signal, &raw const new, old.as_mut_ptr()) };
    assert_eq!(done, 0, "sigaction");
    // SAFETY: sigaction(2) has succeeded, so it has filled in `old`.
    unsafe { old.assume_init() }
}

fn restore(signal: i32, old: &libc::sigaction) {
    // SAFETY: `old` is the disposition that sigaction(2) has returned.
    let done = unsafe { libc::sigaction(signal, old, ptr::null_mut()) };
    assert_eq!(done, 0, "sigaction");
}

/// The handler of SIGSEGV records the access, and makes the page accessible for one instruction.
extern "C" fn on_fault(_: i32, info: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the kernel passes a `siginfo_t` that lives during this call.
    let info = unsafe { &*info };
    // SAFETY: the signal is SIGSEGV, which has an address.
    let address = unsafe { info.si_addr() }.addr();
    // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
    let ranges = RECORDER.ranges.load(Ordering::Relaxed);
    // SAFETY: the pointer is null, or leads to the `Watched` that is being recorded.
    let is_watched = unsafe { ranges.as_ref() }.is_some_and(|ranges| ranges.contains(address));
    if !is_watched {
        // The fault is an error of the program. Restore the default disposition, so that it occurs
        // again and ends the process.
        // SAFETY: `SIG_DFL` is a valid handler.
        unsafe { libc::signal(libc::SIGSEGV, libc::SIG_DFL) };
        return;
    }
    // SAFETY: the handler is installed with `SA_SIGINFO`, so its third argument is a `ucontext_t`
    // of this thread.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    let is_store = registers[libc::REG_ERR as usize] & FAULT_STORE != 0;
    note(&RECORDER.accesses, &RECORDER.len, (address & !1) | usize::from(is_store));
    // The instruction that faulted runs again when the handler returns. After the fault of a load,
    // the page becomes only readable, so that a store by the same instruction faults too.
    let access =
        if is_store { MprotectFlags::READ | MprotectFlags::WRITE } else { MprotectFlags::READ };
    note(&RECORDER.open, &RECORDER.open_len, address & !(PAGE - 1));
    allow(address & !(PAGE - 1), access);
    registers[libc::REG_EFL as usize] |= TRAP_FLAG;
}

/// The handler of SIGTRAP runs after one instruction, and makes its pages inaccessible again.
extern "C" fn on_step(_: i32, _: *mut libc::siginfo_t, context: *mut c_void) {
    // SAFETY: the handler is installed with `SA_SIGINFO`, so its third argument is a `ucontext_t`
    // of this thread.
    let registers = unsafe { &mut (*context.cast::<libc::ucontext_t>()).uc_mcontext.gregs };
    registers[libc::REG_EFL as usize] &= !TRAP_FLAG;
    // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
    let open = RECORDER.open_len.swap(0, Ordering::Relaxed).min(OPEN_MAX);
    for page in &RECORDER.open[..open] {
        // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
        allow(page.load(Ordering::Relaxed), MprotectFlags::empty());
    }
}

/// Appends `word` to `list`. If the list is full, only increases `len`, which shows that words are
/// missing.
fn note(list: &[AtomicUsize], len: &AtomicUsize, word: usize) {
    // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
    let at = len.fetch_add(1, Ordering::Relaxed);
    if let Some(entry) = list.get(at) {
        // ORDERING: Relaxed. Only the recorded thread and its signal handlers use the recorder.
        entry.store(word, Ordering::Relaxed);
    }
}

fn allow(page: usize, access: MprotectFlags) {
    let start = ptr::with_exposed_provenance_mut::<c_void>(page);
    // SAFETY: the page is in a range of the recorded memory, which is private. A later access
    // faults, and the handler gives access again.
    if unsafe { mprotect(start, PAGE, access) }.is_err() {
        // A panic must not unwind out of a signal handler.
        std::process::abort();
    }
}
