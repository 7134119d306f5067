//! The wait node of a call at a queue: of a receiver that waits for a message, or of a sender that
//! waits for space.
//!
//! A wait node consists of two cache lines of a memory pool. The waiting task sleeps on the node's
//! first word, the status. Two kinds of access are forbidden:
//! - After a wake-up the task reads only the status, since the queue may have been removed.
//! - A task that has stored an outcome in the status must not access the node any more. The waiting
//!   task may have freed the node (trap I13 in `traps.md`).
//!
//! | status | meaning |
//! |---|---|
//! | 0 | waits |
//! | `CALLED` | check again: permissions or space may have changed. The node is still in its list |
//! | `INTERRUPTED` | the call must give up, and gets no message |
//! | `DONE`, errno, line | the outcome: an errno, or a receiver's message. The node is in no list |
//!
//! The word `WHOSE` of a wait node contains the queue and the role (sender or receiver) of the
//! waiting call. It is 0 in a free node. The word `TICKET` is the call's number in the order of
//! arrival. So the lists of a queue can be rebuilt from the wait nodes.

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::{Line, futex};
use rustix::io::Errno;
use smallvec::SmallVec;

use super::filter::Filter;
use super::queue::{QueueGuard, QueueName};
use crate::field::{get, high, low, pair, put};
use crate::lock::Owner;
use crate::shared::Shared;
use crate::status::{self, DONE, INTERRUPTED, STATUS};

// Words 6 and 7 belong to the memory pool.
const TICKET: usize = 2;
/// The pid and the number of the task.
const TASK: usize = 3;
const SIZE: usize = 4;
const WHOSE: usize = 5;

// Words of its second line.
const FILTER: [usize; 2] = [0, 1];

const CALLED: u64 = 1 << 1;

/// A bit of the word `WHOSE` that is set in every node in use. So `WHOSE` is 0 only in a free node.
const IS_NODE: u64 = 1 << 62;
const ROLE_SHIFT: u32 = 40;

/// The wait nodes of tasks that the caller must wake after it has released the queue's lock.
pub(super) type Wakes = SmallVec<[u32; 4]>;

/// The role of a waiting call.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Role {
    Receiver = 1,
    Sender = 2,
}

/// The status of a node, as its task sees it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Status {
    Waits,
    Called,
    Interrupted,
    /// The call has its outcome. For a receiver, `Ok` contains the first line of its message.
    Done(Result<u32, Errno>),
}

/// A waiting call.
#[derive(Clone, Copy)]
pub(super) struct Node<'s> {
    pub(super) shared: &'s Shared,
    pub(super) line: u32,
}

impl<'s> Node<'s> {
    /// Allocates a wait node for a call of the caller's task, but does not add it to a list. The
    /// caller holds the queue's lock.
    pub(super) fn alloc(
        guard: &QueueGuard<'s>,
        role: Role,
        pid: u32,
        size: usize,
        filter: Filter,
    ) -> Result<Self, Errno> {
        let (shared, owner, name) = (guard.queue.shared, guard.owner, guard.queue.name);
        let line = shared.layout.msg_waits.alloc(shared, 2, owner, owner.index)?;
        let node = Self { shared, line };
        let first = node.first();
        for (at, word) in FILTER.into_iter().zip(filter.to_words()) {
            put(&node.second()[at], word);
        }
        put(&first[TASK], pair(pid, owner.index));
        put(&first[SIZE], size as u64);
        put(&first[STATUS], 0);
        node.set_ticket(guard.next_ticket());
        // ORDERING(ipc-truth): Release. A rebuild of the queue's lists reads `WHOSE` with Acquire.
        // Without this order, it could read old fields of a node that is marked as waiting.
        first[WHOSE].store(whose(role, name), Ordering::Release);
        Ok(node)
    }

    pub(super) fn free(self, owner: Owner) {
        self.forget();
        self.shared.layout.msg_waits.free(self.shared, self.line, owner);
    }

    /// Marks the node as not waiting. The caller has removed the node from its list.
    pub(super) fn forget(&self) {
        put(&self.first()[WHOSE], 0);
    }

    /// Returns the role and the queue of the node's call, or `None` if the node is not in use.
    pub(super) fn whose(&self) -> Option<(Role, QueueName)> {
        // ORDERING(ipc-truth): Acquire. See `alloc`.
        let word = self.first()[WHOSE].load(Ordering::Acquire);
        let name = QueueName::from_bits(word);
        let mut roles = [Role::Receiver, Role::Sender].into_iter();
        roles.find(|role| whose(*role, name) == word).map(|role| (role, name))
    }

    /// Returns the role and the queue of the node's call, or `None` if the call does not wait any
    /// more.
    pub(super) fn waits_as(&self) -> Option<(Role, QueueName)> {
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

    /// Returns the number of the waiting task.
    pub(super) fn task(&self) -> u32 {
        high(get(&self.first()[TASK]))
    }

    pub(super) fn size(&self) -> usize {
        get(&self.first()[SIZE]) as usize
    }

    pub(super) fn filter(&self) -> Filter {
        Filter::from_words(FILTER.map(|at| get(&self.second()[at])))
    }

    /// Returns the word on which the task sleeps.
    pub(super) fn word(&self) -> &'s AtomicU64 {
        &self.first()[STATUS]
    }

    pub(super) fn status(&self) -> Status {
        let status = status::load(self.word());
        match status::outcome(status) {
            Some(outcome) => Status::Done(outcome.map(|()| high(status))),
            None if status & INTERRUPTED != 0 => Status::Interrupted,
            None if status & CALLED != 0 => Status::Called,
            None => Status::Waits,
        }
    }

    /// Returns the value that futex(2) compares with the low half of the status. The task sleeps
    /// only if the two are equal. In this value, the bits that end a sleep (`DONE`, `INTERRUPTED`,
    /// `CALLED`) are cleared.
    ///
    /// Other bits of the status, which only damage of shared memory can set, do not prevent the
    /// sleep.
    pub(super) fn asleep(&self) -> u32 {
        low(get(self.word()) & !(DONE | INTERRUPTED | CALLED))
    }

    /// Stores the outcome of the waiting call in the node. The caller has removed the wait node
    /// from its list, and must not access the node afterwards.
    pub(super) fn tell(&self, outcome: Result<u32, Errno>) {
        let status = match outcome {
            Ok(line) => status::done(0) | pair(0, line),
            Err(errno) => status::done(errno.raw_os_error()),
        };
        // ORDERING(ipc-status): Release. The waiting task reads the status with Acquire. Without
        // this order, it could see the outcome but miss the stores made for its call.
        self.word().store(status, Ordering::Release);
    }

    /// Ends the wait with `outcome`, unless another task has already stored an outcome.
    ///
    /// Returns the outcome of the call, and whether its wait node has left the queue's list of
    /// waiting calls:
    /// - If another task has stored an outcome: that outcome. The node has left the list.
    /// - Otherwise: `outcome`. The node may still be in the list, marked as interrupted, so that no
    ///   sender passes it a message.
    pub(super) fn leave(&self, outcome: Result<u32, Errno>) -> (Result<u32, Errno>, bool) {
        if self.whose().is_none() {
            return (outcome, true);
        }
        // ORDERING(ipc-status): AcqRel. Acquire: `tell` stores an outcome with Release, and this
        // task must see the stores made for its call. Release: a sender that sees `INTERRUPTED` by
        // `status::load` passes no message.
        let seen = self.word().fetch_or(INTERRUPTED, Ordering::AcqRel);
        match status::outcome(seen) {
            Some(told) => (told.map(|()| high(seen)), true),
            None => (outcome, false),
        }
    }

    /// Tells the waiting call to check its queue again. Returns true if the caller must wake the
    /// task. The caller holds the queue's lock.
    pub(super) fn call(&self) -> bool {
        // ORDERING(ipc-status): AcqRel, as in `leave`. The change is one atomic step: a load and a
        // later store could erase a bit `INTERRUPTED` that a signal handler sets in between.
        self.word().fetch_or(CALLED, Ordering::AcqRel) & CALLED == 0
    }

    /// Clears the bit `CALLED`, since the waiting task checks its queue now.
    pub(super) fn answer_call(&self) {
        // ORDERING(ipc-status): AcqRel. As in `call`.
        self.word().fetch_and(!CALLED, Ordering::AcqRel);
    }

    fn first(&self) -> &'s Line {
        self.shared.region.line(self.line)
    }

    fn second(&self) -> &'s Line {
        self.shared.region.line(self.line.wrapping_add(1))
    }
}

/// Wakes the tasks of nodes.
#[inline]
pub(super) fn wake(shared: &Shared, wakes: &[u32]) {
    for node in wakes {
        futex::wake(&shared.region.line(*node)[STATUS], 1, shared.scope);
    }
}

fn whose(role: Role, name: QueueName) -> u64 {
    IS_NODE | (role as u64) << ROLE_SHIFT | name.to_bits()
}
