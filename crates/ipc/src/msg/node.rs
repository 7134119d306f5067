//! A call that waits: for a message, or for room.
//!
//! A node has two lines of a pool. Its first word is what its task sleeps on and the
//! only one that it looks at when it wakes: the queue may be gone by then. Whoever tells the outcome
//! takes nothing out of the node afterwards (trap I13).
//!
//! | status | meaning |
//! |---|---|
//! | 0 | waits |
//! | `CALLED` | look again: permissions or room may have changed; it is still in its list |
//! | `INTERRUPTED` | somebody asks it to give up |
//! | `LEFT` | its task is gone from it, and could not take it out of its list: whoever meets it there frees it |
//! | `DONE`, errno, line | it is over; a receiver's message is at that line. It is in no list |
//!
//! `WHOSE` says what the node waits for and in which queue, and with its ticket, where in the list; so the
//! lists of a queue follow from the nodes alone. It is 0 in a node that is free.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Line, futex};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::filter::Filter;
use super::queue::Place;
use crate::field::{errno_of, get, high, low, pair, put};
use crate::lock::Owner;
use crate::namespace::Shared;
use crate::sem::{INTERRUPTED, STATUS};
use crate::task::Task;

// Words of a node's first line, beside the status and the links; 6 and 7 are the pool's.
const TICKET: usize = 2;
/// Pid and number of the task.
const TASK: usize = 3;
/// Bytes: of the message of a sender, or of the buffer of a receiver.
const SIZE: usize = 4;
const WHOSE: usize = 5;

// Words of its second line.
const FILTER: [usize; 2] = [0, 1];

const DONE: u64 = 1;
const CALLED: u64 = 1 << 1;
const LEFT: u64 = 1 << 7;
const ERRNO_SHIFT: u32 = 8;

/// Above the place in `WHOSE`: tells a node that is in use.
const IS_NODE: u64 = 1 << 62;
const ROLE_SHIFT: u32 = 40;

/// Nodes whose tasks are to be woken once the lock is free.
pub(super) type Wakes = SmallVec<[u32; 4]>;

/// What a node waits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Receiver,
    Sender,
}

/// What a waiting task finds in its node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Waits,
    Called,
    Interrupted,
    /// It is over; a receiver has the message at this line.
    Done(Result<u32, Errno>),
}

/// Returns true if the call of a node may still be asked to give up.
pub(crate) fn is_interruptible(status: &AtomicU64) -> bool {
    // ORDERING: Relaxed. A guess: the waiter takes the lock before it gives up.
    status.load(Ordering::Relaxed) & (DONE | INTERRUPTED) == 0
}

/// A waiting call.
#[derive(Clone, Copy)]
pub(super) struct Node<'s> {
    pub(super) shared: &'s Shared,
    pub(super) line: u32,
}

impl<'s> Node<'s> {
    /// Returns a node for a call of `task` that is about to wait at `place`.
    ///
    /// # Errors
    ///
    /// `ENOMEM` if there is no room.
    pub(super) fn alloc(
        task: &'s Task,
        (role, place, ticket): (Role, Place, u64),
        size: usize,
        filter: Filter,
    ) -> Result<Self, Errno> {
        let shared = &*task.shared;
        let owner = task.owner;
        let line = shared.layout.msg_waits.alloc(shared, 2, owner, owner.index)?;
        let node = Self { shared, line };
        let first = node.first();
        for (at, word) in FILTER.into_iter().zip(filter.to_words()) {
            put(&node.second()[at], word);
        }
        put(&first[TASK], pair(task.pid, owner.index));
        put(&first[SIZE], size as u64);
        put(&first[STATUS], 0);
        node.set_ticket(ticket);
        // ORDERING(ipc-truth): Release. From now on the node waits; the fields above are its own.
        first[WHOSE].store(whose(role, place), Ordering::Release);
        Ok(node)
    }

    pub(super) fn free(self, owner: Owner) {
        self.forget();
        self.shared.layout.msg_waits.free(self.shared, self.line, owner);
    }

    /// Takes note that the node waits no more. It is in no list.
    pub(super) fn forget(&self) {
        put(&self.first()[WHOSE], 0);
    }

    /// Returns what the node is and where, or none if it is no node of a message queue.
    pub(super) fn whose(&self) -> Option<(Role, Place)> {
        // ORDERING(ipc-truth): Acquire. See `alloc`.
        let word = self.first()[WHOSE].load(Ordering::Acquire);
        let place = Place::from_bits(word);
        let mut roles = [Role::Receiver, Role::Sender].into_iter();
        roles.find(|role| whose(*role, place) == word).map(|role| (role, place))
    }

    /// Returns what the node waits for and where, or none if it does not wait any more.
    pub(super) fn waits_as(&self) -> Option<(Role, Place)> {
        self.whose().filter(|_| !matches!(self.status(), Status::Done(_)))
    }

    pub(super) fn ticket(&self) -> u64 {
        get(&self.first()[TICKET])
    }

    pub(super) fn set_ticket(&self, ticket: u64) {
        put(&self.first()[TICKET], ticket);
    }

    pub(super) fn pid(&self) -> u32 {
        low(get(&self.first()[TASK]))
    }

    /// Returns the number of the task that waits.
    pub(super) fn task(&self) -> u32 {
        high(get(&self.first()[TASK]))
    }

    /// Returns the bytes of a sender's message, or of a receiver's buffer.
    pub(super) fn size(&self) -> usize {
        get(&self.first()[SIZE]) as usize
    }

    pub(super) fn filter(&self) -> Filter {
        Filter::from_words(FILTER.map(|at| get(&self.second()[at])))
    }

    /// Returns the word that the task sleeps on.
    pub(super) fn word(&self) -> &'s AtomicU64 {
        &self.first()[STATUS]
    }

    pub(super) fn status(&self) -> Status {
        // ORDERING(ipc-status): Acquire. What the waker did happens before the task goes on.
        let status = self.word().load(Ordering::Acquire);
        let errno = (status >> ERRNO_SHIFT & 0xffff) as i32;
        match status {
            _ if status & DONE != 0 && errno != 0 => Status::Done(Err(errno_of(errno))),
            _ if status & DONE != 0 => Status::Done(Ok(high(status))),
            _ if status & INTERRUPTED != 0 => Status::Interrupted,
            _ if status & CALLED != 0 => Status::Called,
            _ => Status::Waits,
        }
    }

    /// Returns what the low half of the status is as long as the task sleeps: what is there, whoever wrote it,
    /// without what ends the sleep.
    pub(super) fn asleep(&self) -> u32 {
        low(get(self.word()) & !(DONE | INTERRUPTED | CALLED))
    }

    /// Tells the task what its call came to: a receiver the line of its message. The node is in no list
    /// any more, and is not looked at after this; but if the task has left it, this returns false, and the
    /// node is to be freed.
    #[must_use]
    pub(super) fn tell(&self, outcome: Result<u32, Errno>) -> bool {
        let status = match outcome {
            Ok(line) => pair(DONE as u32, line),
            Err(errno) => {
                DONE | u64::from(errno.raw_os_error().cast_unsigned() & 0xffff) << ERRNO_SHIFT
            }
        };
        // ORDERING(ipc-status): Release. What was done for the call happens before its task goes on.
        let told = self.word().fetch_update(Ordering::Release, Ordering::Relaxed, |seen| {
            (seen & LEFT == 0).then_some(status)
        });
        told.is_ok()
    }

    /// Ends a wait with `outcome`. If the node is in its list still, because the queue's lock could not be
    /// had, it is left to whoever meets it there; it was told meanwhile, or it is the caller's no more.
    ///
    /// Returns what the call came to, and whether the node is to be freed.
    pub(super) fn leave(&self, outcome: Result<u32, Errno>) -> (Result<u32, Errno>, bool) {
        // ORDERING(ipc-status): AcqRel. As in `tell`, the other way round.
        let leave = || {
            let next = |seen: u64| (seen & DONE == 0).then_some(seen | LEFT);
            self.word().fetch_update(Ordering::AcqRel, Ordering::Acquire, next).is_ok()
        };
        match self.status() {
            Status::Done(told) => return (told, true),
            _ if self.whose().is_some() && leave() => return (outcome, false),
            _ => {}
        }
        match self.status() {
            Status::Done(told) => (told, true),
            _ => (outcome, true),
        }
    }

    /// Returns true if the task has left the node in its list.
    pub(super) fn is_left(&self) -> bool {
        // ORDERING(ipc-status): Acquire. The task does not touch the node after it.
        self.word().load(Ordering::Acquire) & LEFT != 0
    }

    /// Asks the task to look again; returns whether it has to be woken. The queue's lock is held.
    pub(super) fn call(&self) -> bool {
        // ORDERING(ipc-status): AcqRel. As in `tell`; the bit of an interrupt stays.
        self.word().fetch_or(CALLED, Ordering::AcqRel) & CALLED == 0
    }

    /// Takes note that the task has looked again. The queue's lock is held.
    pub(super) fn answer_call(&self) {
        // ORDERING(ipc-status): AcqRel. As above.
        self.word().fetch_and(!CALLED, Ordering::AcqRel);
    }

    fn first(&self) -> &'s Line {
        self.shared.region.line(self.line)
    }

    fn second(&self) -> &'s Line {
        self.shared.region.line(self.line.wrapping_add(1))
    }
}

/// Wakes tasks. No lock is held.
#[inline]
pub(super) fn wake(shared: &Shared, wakes: &[u32]) {
    for node in wakes {
        futex::wake(&shared.region.line(*node)[STATUS], 1, shared.scope);
    }
}

fn whose(role: Role, place: Place) -> u64 {
    let role = match role {
        Role::Receiver => 1,
        Role::Sender => 2,
    };
    IS_NODE | role << ROLE_SHIFT | place.to_bits()
}
