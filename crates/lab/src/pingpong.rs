//! Round trips between two sides that wait for each other, by semaphores or message queues.
//!
//! One side asks and waits for the answer. Each thread of the other side waits for a question and
//! answers it. The sides are threads of one process, or the answering side is its own process
//! (`worker`).
//!
//! Source: lmbench's `lat_sem` for the shape; semop(2), msgop(2).

use std::time::Duration;

use anyhow::ensure;
use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_ipc::{SemBuf, SemFlags};

use crate::cpus;
use crate::crew::{self, Slice};
use crate::queues::Queues;
use crate::samples::Cell;
use crate::sems::Sems;
use crate::worker::Workers;

/// Bytes of a message.
pub(crate) const BYTES: usize = 64;
/// The index of the semaphore or queue for questions, the index of the one for answers, and the
/// type of all messages.
const ASKED: usize = 0;
const ANSWERED: usize = 1;
const KIND: u8 = 1;

/// A way to ask and to answer.
pub(crate) trait Pair: Sync {
    /// The state of one thread.
    type State;

    fn state(&self, is_asking: bool) -> Self::State;

    /// Asks or answers with a number.
    fn post(&self, state: &mut Self::State, at: usize, number: u64) -> bool;

    /// Waits for a question or an answer. Returns its number; None if that fails.
    fn wait(&self, state: &mut Self::State, at: usize) -> Option<u64>;
}

/// The first two semaphores of the first set, and the number of the user that answers.
pub(crate) struct SemPair<'a, S>(pub(crate) &'a S, pub(crate) usize);

/// Two queues.
pub(crate) struct QueuePair<'a, Q>(pub(crate) &'a Q);

impl<S: Sems> Pair for SemPair<'_, S> {
    /// The number of the user, and the number of the last question or answer that it posted.
    type State = (usize, u64);

    fn state(&self, is_asking: bool) -> (usize, u64) {
        (if is_asking { 0 } else { self.1 }, 0)
    }

    fn post(&self, state: &mut (usize, u64), at: usize, number: u64) -> bool {
        state.1 = number;
        self.0.op(state.0, 0, [SemBuf::new(at as u16, 1, SemFlags::empty())])
    }

    fn wait(&self, state: &mut (usize, u64), at: usize) -> Option<u64> {
        let is_over = self.0.op(state.0, 0, [SemBuf::new(at as u16, -1, SemFlags::empty())]);
        is_over.then_some(state.1)
    }
}

impl<Q: Queues> Pair for QueuePair<'_, Q> {
    type State = Q::Message;

    fn state(&self, _is_asking: bool) -> Q::Message {
        self.0.message(BYTES)
    }

    fn post(&self, message: &mut Q::Message, at: usize, number: u64) -> bool {
        self.0.send(at, KIND, number, message)
    }

    fn wait(&self, message: &mut Q::Message, at: usize) -> Option<u64> {
        self.0.receive(at, KIND, message)
    }
}

/// Measures the round trips of a cell (a set of parameters). With `workers=threads` the parameter
/// `waiters` is the number of answering threads. With `workers=processes` the closure `start`
/// starts the answering process on a processor. With `cpus=1` both sides share a processor.
///
/// # Errors
/// If a call fails, or the process does not start.
pub(crate) fn run<P: Pair>(
    pair: &P,
    cell: &Cell,
    time: Duration,
    start: impl FnOnce(usize) -> anyhow::Result<Workers>,
) -> anyhow::Result<Slice> {
    let all = cpus::each();
    let on = [all[0], all[cell.number("cpus") - 1]];
    if cell.word("workers") == "threads" {
        return in_threads(pair, on, cell.number("waiters").max(1), time);
    }
    let _answers = start(on[1])?;
    Ok(ask(pair, on[0], time))
}

/// Answers questions until `is_over` returns true for one. Returns false if a call fails.
pub(crate) fn answer<P: Pair>(pair: &P, is_over: impl Fn() -> bool) -> bool {
    let mut state = pair.state(false);
    loop {
        let Some(number) = pair.wait(&mut state, ASKED) else { return false };
        if is_over() {
            return true;
        }
        if !pair.post(&mut state, ANSWERED, number) {
            return false;
        }
    }
}

/// Asks for `time` on a processor.
fn ask<P: Pair>(pair: &P, cpu: usize, time: Duration) -> Slice {
    crew::run(1, time, |_, turn| {
        cpus::pin(cpu);
        let mut state = pair.state(true);
        turn.run(|number| {
            pair.post(&mut state, ASKED, number) && pair.wait(&mut state, ANSWERED) == Some(number)
        })
    })
}

/// Asks questions on the processor `on[0]`, until `time` has passed. Meanwhile `waiters` threads
/// answer on the processor `on[1]`.
///
/// # Errors
/// If a call fails.
fn in_threads<P: Pair>(
    pair: &P,
    on: [usize; 2],
    waiters: usize,
    time: Duration,
) -> anyhow::Result<Slice> {
    let is_over = AtomicBool::new(false);
    let (slice, is_well) = thread::scope(|scope| {
        let answers = || {
            cpus::pin(on[1]);
            answer(pair, || {
                // ORDERING: Relaxed. The asking side stores `is_over` before it posts the last
                // question, and the calls of the pair order the two.
                is_over.load(Ordering::Relaxed)
            })
        };
        let answers: Vec<_> = (0..waiters).map(|_| scope.spawn(answers)).collect();
        let slice = ask(pair, on[0], time);
        // ORDERING: Relaxed. See above.
        is_over.store(true, Ordering::Relaxed);
        let mut state = pair.state(true);
        let are_released = answers.iter().all(|_| pair.post(&mut state, ASKED, 0));
        let are_well = answers.into_iter().all(|thread| thread.join().expect("no answer panics"));
        (slice, are_released && are_well)
    });
    ensure!(is_well, "an answer failed");
    Ok(slice)
}
