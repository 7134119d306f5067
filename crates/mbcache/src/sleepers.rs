//! Tasks that wait until an entry has no handles.
//!
//! A thread sleeps on the entry's word; a task leaves a waker here, under the number of the slot, and
//! then sets the entry's flag "awaited". Whoever puts the last handle clears the flag and takes the
//! wakers of that slot. A waker that is woken for another entry of the slot looks again: no harm.
//!
//! # Locks
//! The list's lock is taken with no other held, and no waker is called, cloned or dropped inside
//! it (traps T41, T42).

use corewalk_sync::Mutex;
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
        let mut list = self.lock();
        list.tickets += 1;
        let ticket = list.tickets;
        list.sleepers.push(Sleeper { ticket, slot, waker });
        ticket
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
    pub(crate) fn wake(&self, slot: u32) {
        let last = self.lock().tickets;
        loop {
            let next = {
                let mut list = self.lock();
                // Not those who came after this began: a task that looks and waits again would keep
                // this going.
                let is_due = |s: &Sleeper| s.slot == slot && s.ticket <= last;
                let at = list.sleepers.iter().position(is_due);
                at.map(|at| list.sleepers.swap_remove(at))
            };
            match next {
                Some(sleeper) => sleeper.waker.wake(),
                None => return,
            }
        }
    }
}
