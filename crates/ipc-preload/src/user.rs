//! Checks and accesses the memory of the program that an IPC call reads or writes.
//!
//! The kernel returns `EFAULT` for a bad address. This library runs in the program, which an access
//! to a bad address would end with `SIGSEGV`. So before an access, [`check`] makes a system call
//! that touches the address and changes nothing.
//!
//! | access | checked by |
//! |---|---|
//! | read | rt_sigprocmask(2) with an invalid `how`: the kernel reads the set, then refuses `how` |
//! | write | `FUTEX_WAKE_OP` of futex(2), which adds 0 to a word |
//!
//! # Cost
//!
//! The system call that checks an address takes longer than an uncontended semop(2). So each thread
//! remembers some ranges of addresses that it has found accessible.
//!
//! - The stack: the range from the stack pointer, at the time of a check, to the highest address
//!   that the check has found accessible. If the stack pointer of a later call is in this range,
//!   the memory from there to the range's end needs no check.
//! - The program's image and its heap: the last few accessible ranges below the program break
//!   (brk(2)). When the break falls below a range, the thread forgets the range.
//!
//! In most programs, the operations of semop(2) and the messages are on the stack, on the heap or
//! in the program's image. For other memory (mmap(2), the heaps of further threads), each call
//! makes one system call per page.
//!
//! # Limits
//!
//! In two cases the program gets `SIGSEGV` where the kernel would return `EFAULT`:
//! - Another thread unmaps the memory during the call.
//! - The program unmaps or protects memory that an earlier call has found accessible, and then
//!   passes it to a call.
//!
//! Source: rt_sigprocmask(2), futex(2), brk(2). The use of rt_sigprocmask(2) to check that memory
//! can be read is from `AddressIsReadable` of Abseil.

pub(crate) use corewalk_ipc::Access;
use libc::{c_int, c_long};
use rustix::io::Errno;
use std::cell::Cell;
use std::ptr;

use crate::syscall;

/// The smallest page size of all machines.
const PAGE: usize = 4096;

/// Bytes above the stack pointer that count as part of the stack.
const STACK_MAX: usize = 128 << 10;

/// `FUTEX_WAKE_OP` of futex(2) with the private flag, and its argument `ADD_ZERO`: add 0 to a word,
/// and compare its old value with 0.
const WAKE_OP: usize = 5 | 128;
const ADD_ZERO: usize = 1 << 28;

/// Bytes of a set of signals.
const SIGSET_BYTES: usize = 8;

/// Addresses from `start` to before `end`.
#[derive(Clone, Copy)]
struct Range {
    start: usize,
    end: usize,
}

const RANGES: usize = 4;

/// The ranges of addresses that a thread has found accessible. They begin and end at page
/// boundaries.
struct Known {
    stack: Cell<Range>,
    /// Ranges of the program's image and heap: those that can be read, and those that can be
    /// written.
    heap: [Cell<[Range; RANGES]>; 2],
}

thread_local! {
    static KNOWN: Known = const {
        Known {
            stack: Cell::new(Range::EMPTY),
            heap: [const { Cell::new([Range::EMPTY; RANGES]) }; 2],
        }
    };
}

/// Reads a `T` at an address, which need not be aligned.
///
/// # Errors
///
/// `EFAULT` if it cannot be read.
///
/// # Safety
///
/// Any bits are a `T`.
#[inline]
pub(crate) unsafe fn read<T: Copy>(from: usize) -> Result<T, Errno> {
    check(from, size_of::<T>(), Access::Read)?;
    // SAFETY: the memory can be read, and any bits are a `T`.
    Ok(unsafe { ptr::with_exposed_provenance::<T>(from).read_unaligned() })
}

/// Writes `value` to an address, which need not be aligned.
///
/// The program has passed this address as the place where the call must store its result.
pub(crate) unsafe fn write<T>(to: usize, value: T) -> Result<(), Errno> {
    check(to, size_of::<T>(), Access::Write)?;
    // SAFETY: the memory can be written to, and the program expects the call to write there.
    unsafe { ptr::with_exposed_provenance_mut::<T>(to).write_unaligned(value) };
    Ok(())
}

/// Checks that `bytes` bytes at an address allow this access.
///
/// # Errors
///
/// `EFAULT` if they do not.
#[inline]
pub(crate) fn check(address: usize, bytes: usize, access: Access) -> Result<(), Errno> {
    if bytes == 0 {
        return Ok(());
    }
    let end = address.checked_add(bytes).ok_or(Errno::FAULT)?;
    let (here, range) = (here(), Range { start: address, end });
    let is_known = KNOWN.with(|known| {
        let stack = known.stack.get();
        (stack.start <= here && here <= address && end <= stack.end)
            || is_below_break(&known.heap[access as usize].get(), range)
    });
    if is_known { Ok(()) } else { ask(here, range, access) }
}

#[inline]
fn here() -> usize {
    let on_stack = 0_u8;
    ptr::from_ref(std::hint::black_box(&on_stack)).addr()
}

#[inline]
fn is_below_break(known: &[Range; RANGES], range: Range) -> bool {
    let is_known = known.iter().any(|known| known.start <= range.start && range.end <= known.end);
    is_known && range.end <= program_break()
}

/// Returns the program break. The C library knows it, so this makes no system call.
fn program_break() -> usize {
    // SAFETY: the call takes a number, and an increment of 0 changes nothing.
    unsafe { libc::sbrk(0) }.addr()
}

impl Range {
    const EMPTY: Range = Range { start: 0, end: 0 };

    /// Returns true if the ranges overlap or are adjacent.
    fn meets(self, other: Range) -> bool {
        self.start <= other.end && other.start <= self.end
    }

    /// Returns the range from the smaller start to the larger end.
    fn joined_with(self, other: Range) -> Range {
        Range { start: self.start.min(other.start), end: self.end.max(other.end) }
    }
}

impl Known {
    /// Merges `range` into an overlapping one, or replaces the oldest.
    fn note_heap(&self, access: Access, range: Range) {
        let mut known = self.heap[access as usize].get();
        match known.iter_mut().find(|known| known.meets(range)) {
            Some(known) => *known = known.joined_with(range),
            None => {
                known.rotate_right(1);
                known[0] = range;
            }
        }
        self.heap[access as usize].set(known);
    }

    /// Remembers `range` as a part of the stack, if all memory from `here` (the stack pointer) to
    /// the end of `range` is accessible. Returns true if so.
    fn note_stack(&self, here: usize, range: Range) -> bool {
        // SAFETY: the function takes no argument. The result is the address of the thread's `struct
        // pthread`. Except for the first thread, it lies at the upper end of the thread's stack.
        let thread = unsafe { libc::pthread_self() } as usize;
        let is_beyond = here < thread && thread < range.end;
        if range.start < here || range.end - here > STACK_MAX || is_beyond {
            return false;
        }
        let stack = pages(Range { start: here, end: range.end });
        if !is_good(stack, Access::Write) {
            return false;
        }
        let known = self.stack.get();
        self.stack.set(if known.meets(stack) { known.joined_with(stack) } else { stack });
        true
    }
}

#[cold]
fn ask(here: usize, range: Range, access: Access) -> Result<(), Errno> {
    if KNOWN.with(|known| known.note_stack(here, range)) {
        return Ok(());
    }
    if !is_good(range, access) {
        return Err(Errno::FAULT);
    }
    // SAFETY: the call takes a number.
    let program = unsafe { libc::getauxval(libc::AT_PHDR) } as usize;
    if program <= range.start && range.end <= program_break() {
        KNOWN.with(|known| known.note_heap(access, pages(range)));
    }
    Ok(())
}

/// Returns the pages of a range.
fn pages(range: Range) -> Range {
    let end = range.end.checked_next_multiple_of(PAGE).unwrap_or(range.end);
    Range { start: range.start & !(PAGE - 1), end }
}

fn is_good(range: Range, access: Access) -> bool {
    let next = |at: &usize| (at & !(PAGE - 1)).checked_add(PAGE).filter(|next| *next < range.end);
    std::iter::successors(Some(range.start), next).all(|at| match access {
        Access::Read => is_readable(at),
        Access::Write => is_writable(at),
    })
}

/// Returns true if the byte at an address can be read.
fn is_readable(address: usize) -> bool {
    // rt_sigprocmask(2) reads a signal set, but takes address 0 for "no set". So for an address in
    // the first word of page 0, read the second word of that page.
    let (unknown, set) = (usize::MAX, (address & !(SIGSET_BYTES - 1)).max(SIGSET_BYTES));
    // SAFETY: the kernel reads the signal set, and then fails with `EINVAL`, because `unknown` is
    // no valid operation. So the signal mask does not change.
    let asked = unsafe { kernel(libc::SYS_rt_sigprocmask, [unknown, set, 0, SIGSET_BYTES, 0, 0]) };
    asked != Some(libc::EFAULT)
}

fn is_writable(address: usize) -> bool {
    let own = 0_u32;
    let (own, word) = (ptr::from_ref(&own).expose_provenance(), address & !(size_of::<u32>() - 1));
    // SAFETY: the call wakes no thread, because none waits at `own`, and adds 0 to the word at
    // `word`.
    let asked = unsafe { kernel(libc::SYS_futex, [own, WAKE_OP, 0, 0, word, ADD_ZERO]) };
    asked != Some(libc::EFAULT)
}

/// Makes a system call. Returns its error, or None. Does not change the program's errno.
///
/// # Safety
///
/// The caller meets the requirements of the system call.
unsafe fn kernel(number: c_long, arguments: [usize; 6]) -> Option<c_int> {
    // SAFETY: the function takes nothing and returns the calling thread's errno.
    let errno = unsafe { libc::__errno_location() };
    // SAFETY: the address of errno is valid as long as the thread lives.
    let before = unsafe { errno.read() };
    // SAFETY: the caller's promise.
    let result = unsafe { syscall::pass_on(number, arguments) };
    // SAFETY: as above.
    let failed = (result == -1).then(|| unsafe { errno.read() });
    // SAFETY: as above.
    unsafe { errno.write(before) };
    failed
}
