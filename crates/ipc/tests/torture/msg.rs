//! Torture of message queues.
//!
//! Each message has a word in memory outside of the namespace. In this word the children note what
//! happens to the message:
//! - The sender notes before the send that it sends the message, and after the call that the send
//!   has returned.
//! - A receiver notes that it has the message.
//!
//! A child also notes the queue from which it receives.
//!
//! Once all children are dead, the test empties the queues. Then this must hold:
//! - No message was received twice, and each received message was sent.
//! - A sent message may be missing only because its receiver was killed. So from each queue, at
//!   most one message is missing for each receiver that was killed there.
//! - Each message has the bytes of its sender. Messages of one sender that are left in a queue are
//!   in the order of their sends.
//! - The counts of a queue are those of its messages.
//! - All memory for messages and waiting calls can be allocated again, in small pieces and in large
//!   pieces.
//!
//! In the control run, children move a message to another queue by a receive and a send, and note
//! neither call. A kill between the two calls loses the message, and the check must fail.

use corewalk_base::Region;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_ipc::{
    Arrived, Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, MsgFlags, MsgId, Namespace,
    NamespaceOptions, Task,
};
use corewalk_testkit::rng::Rng;
use rustix::io::Errno;
use std::collections::HashMap;
use std::os::fd::OwnedFd;

use super::{Arena, Chore, Mode, PLACES, memory, shared_lines};

const NOWAIT: MsgFlags = MsgFlags::NOWAIT;

/// The number of queues with messages that the test tracks by their numbers.
const QUEUES: usize = 3;
const CHURN: i32 = 10;

const QBYTES: u32 = 2000;
const SIZE_MAX: u64 = 2000;
/// Each message begins with two words: the number of the message, and its sender.
const SIZE_MIN: u64 = 64;

/// The test first divides the memory for messages into small and large free ranges. These are the
/// numbers of small and of large ranges.
const SMALL: u32 = 300;
const LARGE: u32 = 300;
const SMALL_LINES: u32 = 2;
const LARGE_LINES: u32 = 64;
const LINES: u32 = SMALL * SMALL_LINES + LARGE * LARGE_LINES;

/// The largest number of messages between two checks.
const NUMBERS: u64 = 1 << 16;
const HEAD: u32 = 8;

// Bits of the word of a message.
const IS_TRIED: u64 = 1;
const IS_SENT: u64 = 2;
const RECEIVED: u64 = 1 << 8;

pub(crate) struct Queues {
    file: OwnedFd,
    notes: Region,
    mode: Mode,
    /// For each queue, the number of receivers that were killed there since the last check of the
    /// namespace. Each may have received a message that is now missing.
    at_risk: [u64; QUEUES],
}

fn options() -> NamespaceOptions {
    let capacity = Capacity { queues: 16, msgs: LINES, waits: 128, tasks: 64, ..Capacity::LEAST };
    let limits = Limits { msgmnb: QBYTES, ..Limits::default() };
    NamespaceOptions { capacity, limits, ..NamespaceOptions::default() }
}

impl Arena for Queues {
    const CHORES: &'static [Chore] =
        &[Chore::Send, Chore::Receive, Chore::Make, Chore::Rmid, Chore::Recover, Chore::Exit];

    fn new(mode: Mode) -> Self {
        let notes = shared_lines(HEAD + (NUMBERS / 8) as u32);
        let arena = Self { file: memory("torture"), notes, mode, at_risk: [0; QUEUES] };
        let task = arena.task();
        // Fill all lines of the pool with messages of two sizes. After the removal of their queue,
        // the pool has free ranges of these two sizes.
        let id = big_queue(&task);
        for (size, count) in [(64, SMALL), (64 * (LARGE_LINES as usize / 2), LARGE)] {
            (0..count)
                .for_each(|_| task.msgsnd(id, 1, &vec![0; size], MsgFlags::empty()).expect("room"));
        }
        task.msg_rmid(id).expect("removal");
        for key in 1..=QUEUES as i32 {
            task.msgget(key, GetFlags::CREATE, 0o600).expect("a queue");
        }
        arena
    }

    fn steps(&self, place: usize) -> &AtomicU64 {
        &self.notes.line(place as u32)[0]
    }

    fn chore(&self, place: usize) -> &AtomicU64 {
        &self.notes.line(place as u32)[2]
    }

    fn work(&self, place: usize, mut rng: Rng) {
        let mut task = self.task();
        let sender = rng.next_u64();
        let ids = self.ids(&task);
        let word = self.chore(place);
        let chores = [0..65, 0..20, 20..40, 0..40, 40..50, 50..58, 58..60, 63..64, 64..65];
        let chores = rng.pick(&chores).clone();
        loop {
            // ORDERING: Relaxed. The counter only shows progress, and publishes no data.
            self.steps(place).fetch_add(1, Ordering::Relaxed);
            let queue = rng.index(QUEUES);
            let done = match rng.range(chores.clone()) {
                0..20 => self.send(&task, (ids[queue], place), sender, &mut rng),
                20..40 => self.receive(&task, (queue, ids[queue]), place, &mut rng),
                40..50 => self.pass_on(&task, queue, sender, place, &mut rng),
                50..58 => churn(&task, word, 0, &mut rng),
                58..60 => churn(&task, word, 400, &mut rng),
                60..62 => {
                    Chore::Make.begin(word);
                    task.msg_set(ids[queue], 0, 0, 0o600, 1000 + rng.below(1000))
                }
                62 | 63 => {
                    Chore::Recover.begin(word);
                    self.namespace().recover().map(drop)
                }
                _ => {
                    let next = self.task();
                    let done = self.send(&task, (ids[queue], place), sender, &mut rng);
                    Chore::Exit.begin(word);
                    task = next;
                    done
                }
            };
            let is_good = matches!(
                done,
                Ok(()) | Err(Errno::AGAIN | Errno::NOMSG | Errno::IDRM | Errno::INVAL)
            );
            assert!(is_good, "{done:?}");
        }
    }

    fn note_kill(&mut self, place: usize) {
        let receiving = self.receiving(place);
        // ORDERING: Relaxed. The process of the child has ended, so its last store is visible.
        let queue = receiving.swap(0, Ordering::Relaxed);
        if let Some(queue) = queue.checked_sub(1) {
            self.at_risk[queue as usize] += 1;
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let failed = |errno: Errno| format!("a check failed with {errno}");
        self.namespace().recover().map_err(failed)?;
        let task = self.task();
        let mut missing = [0; QUEUES];
        for id in self.ids(&task) {
            self.drain(&task, id)?;
        }
        // ORDERING: Relaxed. All children are dead.
        let numbers = self.last_number().swap(0, Ordering::Relaxed).min(NUMBERS);
        for number in 1..=numbers {
            let word = self.word(number);
            // ORDERING: Relaxed. As above.
            let noted = word.swap(0, Ordering::Relaxed);
            let received = noted / RECEIVED;
            if received > 1 {
                return Err(format!("message {number} was received {received} times"));
            }
            if received > 0 && noted & IS_TRIED == 0 {
                return Err(format!("message {number} was never sent"));
            }
            if received == 0 && noted & IS_SENT != 0 {
                missing[queue_of(noted)] += 1;
            }
        }
        let at_risk = std::mem::take(&mut self.at_risk);
        if missing.iter().zip(at_risk).any(|(missing, at_risk)| *missing > at_risk) {
            return Err(format!(
                "{missing:?} messages are missing, but {at_risk:?} receivers were killed"
            ));
        }
        check_room(&task)
    }
}

impl Queues {
    fn namespace(&self) -> Namespace {
        Namespace::open_fd(&self.file, options()).expect("the namespace")
    }

    fn task(&self) -> Task {
        self.namespace().register(Cred::root(), std::process::id()).expect("a task")
    }

    fn ids(&self, task: &Task) -> [MsgId; QUEUES] {
        std::array::from_fn(|at| {
            task.msgget(1 + at as i32, GetFlags::empty(), 0).expect("the queue")
        })
    }

    /// Returns the word with the queue from which a child receives: its number plus one, or 0 for
    /// none.
    fn receiving(&self, place: usize) -> &AtomicU64 {
        &self.notes.line(place as u32)[1]
    }

    fn last_number(&self) -> &AtomicU64 {
        &self.notes.line(PLACES as u32)[0]
    }

    fn word(&self, number: u64) -> &AtomicU64 {
        let at = (number - 1) % NUMBERS;
        &self.notes.line(HEAD + (at / 8) as u32)[at as usize % 8]
    }

    /// Sends a message with a new number, and notes it. Sends nothing if all numbers are used.
    fn send(
        &self,
        task: &Task,
        (id, place): (MsgId, usize),
        sender: u64,
        rng: &mut Rng,
    ) -> Result<(), Errno> {
        Chore::Send.begin(self.chore(place));
        // ORDERING: Relaxed. Atomicity of the addition alone makes the number unique.
        let number = 1 + self.last_number().fetch_add(1, Ordering::Relaxed);
        if number > NUMBERS {
            return Err(Errno::AGAIN);
        }
        let size = if rng.chance(1, 2) { SIZE_MIN } else { rng.range(SIZE_MIN..SIZE_MAX) };
        let mut text = vec![number as u8; size as usize];
        text[..8].copy_from_slice(&number.to_ne_bytes());
        text[8..16].copy_from_slice(&sender.to_ne_bytes());
        let queue = self.ids(task).iter().position(|it| *it == id).expect("one of them");
        let word = self.word(number);
        // ORDERING: Relaxed. The test reads the word after it has waited for the death of the
        // child.
        word.fetch_or(IS_TRIED | (queue as u64) << 2, Ordering::Relaxed);
        let flags = if rng.chance(1, 4) { MsgFlags::empty() } else { NOWAIT };
        task.msgsnd(id, mtype_of(number), &text, flags)?;
        // ORDERING: Relaxed. As above.
        word.fetch_or(IS_SENT, Ordering::Relaxed);
        Ok(())
    }

    fn receive(
        &self,
        task: &Task,
        (queue, id): (usize, MsgId),
        place: usize,
        rng: &mut Rng,
    ) -> Result<(), Errno> {
        let (msgtyp, except) = match rng.below(6) {
            0 => (1 + rng.below(5) as i64, MsgFlags::empty()),
            1 => (1 + rng.below(5) as i64, MsgFlags::EXCEPT),
            2 => (-(1 + rng.below(5) as i64), MsgFlags::empty()),
            _ => (0, MsgFlags::empty()),
        };
        let flags = if rng.chance(1, 4) { MsgFlags::empty() } else { NOWAIT };
        Chore::Receive.begin(self.chore(place));
        // ORDERING: Relaxed. The test reads the word after it has waited for the death of the
        // child.
        self.receiving(place).store(queue as u64 + 1, Ordering::Relaxed);
        let received = task.msgrcv_owned(id, SIZE_MAX as usize, msgtyp, flags | except);
        if let Ok(arrived) = &received {
            let (number, _) = read(arrived).expect("a whole message");
            // ORDERING: Relaxed. As above.
            self.word(number).fetch_add(RECEIVED, Ordering::Relaxed);
        }
        // ORDERING: Release. The store that notes the received message comes first. A child that is
        // killed before this store counts as a receiver that may have lost a message.
        self.receiving(place).store(0, Ordering::Release);
        received.map(drop)
    }

    /// Moves a message to the next queue. There it has a new number, except in the control run,
    /// where it keeps its number.
    fn pass_on(
        &self,
        task: &Task,
        queue: usize,
        sender: u64,
        place: usize,
        rng: &mut Rng,
    ) -> Result<(), Errno> {
        let ids = self.ids(task);
        let next = ids[(queue + 1) % QUEUES];
        if self.mode == Mode::Real {
            self.receive(task, (queue, ids[queue]), place, rng)?;
            return self.send(task, (next, place), sender, rng);
        }
        let arrived = task.msgrcv_owned(ids[queue], SIZE_MAX as usize, 0, NOWAIT)?;
        let mut text = vec![0; arrived.size_bytes()];
        arrived.read(&mut text);
        let mtype = arrived.mtype();
        drop(arrived);
        task.msgsnd(next, mtype, &text, MsgFlags::empty())
    }

    /// Receives all messages of a queue, and checks them.
    fn drain(&self, task: &Task, id: MsgId) -> Result<(), String> {
        let stat = task.msg_stat(id).map_err(|errno| errno.to_string())?;
        let (mut qnum, mut cbytes) = (0, 0);
        let mut last: HashMap<u64, u64> = HashMap::new();
        while let Ok(arrived) = task.msgrcv_owned(id, SIZE_MAX as usize, 0, NOWAIT) {
            let (number, sender) = read(&arrived)?;
            // ORDERING: Relaxed. All children are dead.
            self.word(number).fetch_add(RECEIVED, Ordering::Relaxed);
            let before = last.insert(sender, number).unwrap_or(0);
            if before > number && self.mode == Mode::Real {
                return Err(format!("message {number} comes after {before} of the same sender"));
            }
            qnum += 1;
            cbytes += arrived.size_bytes() as u64;
        }
        let counted = (stat.qnum, stat.cbytes);
        let is_good = counted == (qnum, cbytes);
        is_good
            .then_some(())
            .ok_or(format!("{counted:?} are counted, but {qnum} messages of {cbytes} bytes came"))
    }
}

fn queue_of(noted: u64) -> usize {
    (noted >> 2 & 0x3f) as usize % QUEUES
}

fn mtype_of(number: u64) -> i64 {
    1 + (number % 5) as i64
}

/// Returns the number and the sender of a message.
fn read(arrived: &Arrived<'_>) -> Result<(u64, u64), String> {
    let mut text = vec![0; arrived.size_bytes()];
    let size = arrived.read(&mut text);
    let word = |at: usize| text.get(at..at + 8).and_then(|bytes| bytes.try_into().ok());
    let words =
        word(0).zip(word(8)).map(|(one, two)| (u64::from_ne_bytes(one), u64::from_ne_bytes(two)));
    let (number, sender) = words.ok_or(format!("a message of {size} bytes"))?;
    let is_whole = size == text.len() && text[16..].iter().all(|byte| *byte == number as u8);
    let is_of_type = arrived.mtype() == mtype_of(number) && (1..=NUMBERS).contains(&number);
    if !is_whole || !is_of_type {
        return Err(format!("message {number} of type {} is torn", arrived.mtype()));
    }
    Ok((number, sender))
}

/// Makes a queue or finds it, and then makes a random call on it. The higher `waits` is, the more
/// kills hit a waiting call.
fn churn(task: &Task, word: &AtomicU64, waits: u64, rng: &mut Rng) -> Result<(), Errno> {
    Chore::Make.begin(word);
    let id = task.msgget(CHURN + rng.below(3) as i32, GetFlags::CREATE, 0o600)?;
    let which = rng.below(2000 + waits);
    match which {
        0..800 => Chore::Rmid,
        800..1200 | 2000..2200 => Chore::Receive,
        _ => Chore::Send,
    }
    .begin(word);
    match which {
        0..800 => task.msg_rmid(id),
        800..1200 => task.msgrcv(id, &mut [0; 64], 0, NOWAIT).map(drop),
        1200..2000 => task.msgsnd(id, 1, &[1; 64], NOWAIT),
        2000..2200 => task.msgrcv(id, &mut [0; 64], 0, MsgFlags::empty()).map(drop),
        _ => task.msgsnd(id, 1, &[1; 64], MsgFlags::empty()),
    }
}

/// Returns a queue without a practical limit of bytes.
fn big_queue(task: &Task) -> MsgId {
    let id = task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600).expect("a queue");
    task.msg_set(id, 0, 0, 0o600, 1 << 30).expect("it is ours");
    id
}

/// Checks that all lines and all queues can be allocated again.
fn check_room(task: &Task) -> Result<(), String> {
    let error = |errno: Errno| errno.to_string();
    for index in 0..16 {
        if let Ok(stat) = task.msg_stat_any(index)
            && !(1..=QUEUES as i32).contains(&stat.perm.key)
        {
            task.msg_rmid(stat.id).map_err(error)?;
        }
    }
    let totals = task.msg_totals().map_err(error)?;
    if (totals.queues as usize, totals.messages, totals.bytes) != (QUEUES, 0, 0) {
        return Err(format!("{totals:?}"));
    }
    for lines in [SMALL_LINES, LARGE_LINES / 2] {
        let id = big_queue(task);
        let text = vec![0; 64 * (lines as usize - 1)];
        let room = (0..=LINES).take_while(|_| task.msgsnd(id, 1, &text, NOWAIT).is_ok()).count();
        task.msg_rmid(id).map_err(error)?;
        if room as u32 != LINES / lines {
            return Err(format!("there is room for only {room} messages of {lines} lines"));
        }
    }
    let made: Vec<_> =
        (0..16).map(|_| task.msgget(IPC_PRIVATE, GetFlags::empty(), 0o600)).collect();
    let (made, full): (Vec<_>, Vec<_>) = made.into_iter().partition(Result::is_ok);
    made.iter().flatten().try_for_each(|id| task.msg_rmid(*id)).map_err(error)?;
    let is_all = full.len() == QUEUES;
    is_all.then_some(()).ok_or(format!("{} queues cannot be made", full.len()))
}
