//! Round trips between two sides that wait for each other, by semaphores or by message queues.
//!
//! The asking side posts a question and waits for the answer. Each thread of the answering side
//! waits for a question and answers it. The answering side is in this process, or a process of its
//! own (`worker`).
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
/// Indices of semaphores or queues for questions and for answers, and the type of all messages.
const ASKED: usize = 0;
const ANSWERED: usize = 1;
const KIND: u8 = 1;

/// The calls by which one side asks and the other side answers.
pub(crate) trait Pair: Sync {
    /// The state of one thread.
    type State;

    fn state(&self, is_asking: bool) -> Self::State;

    /// Asks or answers with a number.
    fn post(&self, state: &mut Self::State, at: usize, number: u64) -> bool;

    /// Waits for the next question or answer, at the semaphore or queue with index `at`. Returns
    /// its number, or None if the call fails.
    fn wait(&self, state: &mut Self::State, at: usize) -> Option<u64>;
}

/// Round trips by two semaphores of set 0: semaphore 0 for questions, semaphore 1 for answers. The
/// fields are the semaphore sets, and the user (simulated process) that answers.
pub(crate) struct SemPair<'a, S>(pub(crate) &'a S, pub(crate) usize);

/// Two queues.
pub(crate) struct QueuePair<'a, Q>(pub(crate) &'a Q);

impl<S: Sems> Pair for SemPair<'_, S> {
    /// The user (simulated process) of this thread, and the number that the thread last posted. A
    /// semaphore cannot carry a number, so `wait` returns the last posted one.
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

/// Measures round trips with the parameters in `cell`. With `workers=threads`, `waiters` is the
/// number of answering threads. With `workers=processes`, `start` starts the answering process on a
/// given processor. With `cpus=1` both sides share a processor.
///
/// # Errors
/// A call fails, or the answering process does not start.
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

/// Answers questions until `is_over` returns true after a question. Returns false if a call fails.
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

/// Measures round trips. One thread on the processor `on[0]` posts questions and waits for the
/// answers. `waiters` threads on the processor `on[1]` answer them.
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
                // ORDERING: Relaxed. The main thread stores `is_over`, and then posts one last
                // question for each answering thread. The calls that post and receive it order the
                // store before this load.
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
