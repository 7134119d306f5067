//! Tasks that wait until an entry has no handles.
//!
//! A thread sleeps on the entry's word; a task leaves a waker here, under the number of the slot, and
//! then sets the entry's flag "awaited". Whoever puts the last handle clears the flag and takes the
//! wakers of that slot. A waker may be woken for another entry of the slot: who waits to delete looks again
//! anyway.
//!
//! A waker that panics does not keep the others asleep: the panic goes on when all were woken.
//!
//! # Locks
//! The list's lock is taken with no other held; no waker is called, cloned or dropped inside it, and nothing
//! is allocated or freed (traps T41, T42).

use corewalk_base::Mutex;
use std::mem;
use std::panic::{self, AssertUnwindSafe};
use std::task::Waker;

use crate::order::{Held, Rank, take};

#[derive(Default)]
pub(crate) struct Sleepers {
    list: Mutex<List>,
}

#[derive(Default)]
struct List {
    tickets: u64,
    sleepers: Vec<Sleeper>,
}

struct Sleeper {
    ticket: u64,
    slot: u32,
    waker: Waker,
}

impl Sleepers {
    fn lock(&self) -> Held<'_, List> {
        take(Rank::Sleepers, || self.list.lock())
    }

    /// Leaves a waker for `slot`; returns the ticket to take it back with.
    pub(crate) fn add(&self, slot: u32, waker: Waker) -> u64 {
        let mut larger = Vec::new();
        loop {
            let sleepers = {
                let mut list = self.lock();
                if larger.capacity() > list.sleepers.capacity() {
                    larger.append(&mut list.sleepers);
                    mem::swap(&mut larger, &mut list.sleepers);
                }
                if list.sleepers.len() < list.sleepers.capacity() {
                    list.tickets += 1;
                    let ticket = list.tickets;
                    list.sleepers.push(Sleeper { ticket, slot, waker });
                    return ticket;
                }
                list.sleepers.len()
            };
            // With the list unlocked, as it is when the vector that was too small is freed.
            larger = Vec::with_capacity((2 * sleepers).max(4));
        }
    }

    /// Has `waker` woken instead of the one that was left for `ticket`; false if that was woken already.
    pub(crate) fn renew(&self, ticket: u64, waker: &Waker) -> bool {
        let mut waker = waker.clone();
        let mut list = self.lock();
        let place = list.sleepers.iter_mut().find(|sleeper| sleeper.ticket == ticket);
        place.map(|sleeper| mem::swap(&mut sleeper.waker, &mut waker)).is_some()
    }

    /// Takes a waker back, if it is still there.
    pub(crate) fn remove(&self, ticket: u64) {
        let removed = {
            let mut list = self.lock();
            let at = list.sleepers.iter().position(|sleeper| sleeper.ticket == ticket);
            at.map(|at| list.sleepers.swap_remove(at))
        };
        drop(removed);
    }

    /// Wakes those who wait for `slot`, one after the other, with the list unlocked.
    ///
    /// # Panics
    /// If a waker does, after all were woken.
    pub(crate) fn wake(&self, slot: u32) {
        let last = self.lock().tickets;
        let mut panicked = None;
        // Not those who came after this began: a task that looks and waits again would keep this going.
        while let Some(sleeper) = self.take_due(slot, last) {
            // Nothing of this cache is lent to the waker, so nothing of it can be left half done.
            if let Err(panic) = panic::catch_unwind(AssertUnwindSafe(|| sleeper.waker.wake())) {
                panicked.get_or_insert(panic);
            }
        }
        if let Some(panic) = panicked {
            panic::resume_unwind(panic);
        }
    }

    /// Takes somebody who waits for `slot` since `last` or before off the list.
    fn take_due(&self, slot: u32, last: u64) -> Option<Sleeper> {
        let mut list = self.lock();
        let is_due = |sleeper: &Sleeper| sleeper.slot == slot && sleeper.ticket <= last;
        let at = list.sleepers.iter().position(is_due);
        at.map(|at| list.sleepers.swap_remove(at))
    }
}
