//! Runs the steps of a script on the host's kernel and on corewalk, and compares the answers.
//!
//! One side is the host's kernel, with a process for each task. The other side is corewalk. After
//! each step, the test polls the waiting calls of both sides, until no call completes any more.

use std::collections::HashMap;
use std::time::{Duration, Instant};

use corewalk_testkit::require::{Need, skip};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use corewalk_testkit::sysv;

use crate::msg::MsgOp;
use crate::op::{self, Answer, Kind, Op, Scene, Step};
use crate::process::Worker;
use crate::shm::ShmOp;

const TASKS: usize = 4;
const SCRIPT_STEPS: u64 = 200;

/// A task on one side, the kernel or corewalk. Dropping the value ends the task, and returns once
/// all effects of that end have happened.
pub(crate) trait Side {
    /// Starts a call.
    fn send(&mut self, op: &Op);

    /// Returns the answer of the task's call, or none if the call waits. With `is_prompt`, the call
    /// never waits for another task, and `poll` waits for its answer.
    fn poll(&mut self, is_prompt: bool) -> Option<Answer>;

    /// Interrupts the waiting call.
    fn interrupt(&mut self);

    /// The task's pid, and its thread id if any.
    fn numbers(&self) -> Vec<u32>;
}

/// Starts a task with the given number.
pub(crate) type Start = Box<dyn FnMut(u32) -> Box<dyn Side>>;

/// The tasks of both sides, and the state of the script.
pub(crate) struct Pairing {
    start: Start,
    linux: Vec<Box<dyn Side>>,
    ours: Vec<Box<dyn Side>>,
    /// The call in which each task waits.
    waiting: Vec<Option<Op>>,
    /// Maps pids and thread ids to task numbers. Ended tasks stay in the map, since the kernel
    /// reuses no pid within one script.
    linux_numbers: HashMap<i64, i64>,
    our_numbers: HashMap<i64, i64>,
    next_number: u32,
    /// The ids of objects that the script has made, by kind.
    ids: [Vec<i32>; 3],
    trail: Vec<String>,
    /// True while the scripts are random.
    is_random: bool,
}

impl Pairing {
    /// Starts the tasks of both sides. The kernel's side needs a new IPC namespace. If the process
    /// cannot create one, reports a skip and returns none.
    pub(crate) fn new(start: Start) -> Option<Self> {
        if let Err(errno) = sysv::unshare_ipc() {
            skip(Need::Kernel, format_args!("unshare of an IPC namespace: errno {errno}"));
            return None;
        }
        let mut pairing = Self {
            start,
            linux: Vec::new(),
            ours: Vec::new(),
            waiting: vec![None; TASKS],
            linux_numbers: HashMap::from([(0, 0)]),
            our_numbers: HashMap::from([(0, 0)]),
            next_number: 1,
            ids: <_>::default(),
            trail: Vec::new(),
            is_random: false,
        };
        for _ in 0..TASKS {
            let (linux, ours) = pairing.start();
            pairing.linux.push(linux);
            pairing.ours.push(ours);
        }
        Some(pairing)
    }

    fn start(&mut self) -> (Box<dyn Side>, Box<dyn Side>) {
        let number = self.next_number;
        self.next_number += 1;
        let linux: Box<dyn Side> = Box::new(Worker::start(|_| {}));
        let ours = (self.start)(number);
        let known = |known: u32| (i64::from(known), i64::from(number));
        self.linux_numbers.extend(linux.numbers().into_iter().map(known));
        self.our_numbers.extend(ours.numbers().into_iter().map(known));
        (linux, ours)
    }

    /// Makes a step on both sides, and compares the answers. Returns the answer, or none if the
    /// call waits.
    pub(crate) fn step(&mut self, task: usize, step: &Step) -> Option<Answer> {
        // Print the step before it is made, so that a script that hangs shows its last step.
        if std::env::var_os("COREWALK_IPC_TRACE").is_some() {
            eprintln!("{task}: {step:?}");
        }
        self.trail.push(format!("{task}: {step:?}"));
        let mut own = None;
        match step {
            Step::Call(op) => {
                self.linux[task].send(op);
                self.ours[task].send(op);
                own = self.compare(task, op);
                if own.is_none() {
                    self.waiting[task] = Some(op.clone());
                }
                self.note_id(op, own.as_deref());
            }
            Step::Interrupt => {
                let op = self.waiting[task].take().expect("it waits");
                self.linux[task].interrupt();
                self.ours[task].interrupt();
                // On the kernel's side, the signal reaches the worker process a moment after
                // `interrupt` returns. So wait for the answer of the interrupted call.
                own = self.compare_prompt(task, &op);
            }
            Step::Exit => {
                (self.linux[task], self.ours[task]) = self.start();
                self.waiting[task] = None;
            }
        }
        self.settle(task);
        own
    }

    fn note_id(&mut self, op: &Op, answer: Option<&[i64]>) {
        let kind = match op {
            Op::Get { .. } => Kind::Sem,
            Op::Msg(MsgOp::Get { .. }) => Kind::Msg,
            Op::Shm(ShmOp::Get { .. }) => Kind::Shm,
            _ => return,
        };
        if let Some([0, id]) = answer {
            let (id, ids) = (*id as i32, &mut self.ids[kind as usize]);
            ids.retain(|other| *other != id);
            ids.push(id);
        }
    }

    /// One completed call may complete another: for example, the message of a woken sender may go
    /// to a waiting receiver. So each side is polled until no further call completes.
    fn settle(&mut self, but: usize) {
        let waiting = (0..TASKS).filter(|task| *task != but && self.waiting[*task].is_some());
        let waiting: Vec<usize> = waiting.collect();
        let linux = until_quiet(&waiting, |task| self.linux[task].poll(false));
        let ours = until_quiet(&waiting, |task| self.ours[task].poll(false));
        for (task, (linux, ours)) in waiting.into_iter().zip(linux.into_iter().zip(ours)) {
            let op = self.waiting[task].take().expect("it waits");
            if self.judge(task, &op, linux, ours).is_none() {
                self.waiting[task] = Some(op);
            }
        }
    }

    fn compare(&mut self, task: usize, op: &Op) -> Option<Answer> {
        let is_prompt = op.is_prompt();
        let linux = self.linux[task].poll(is_prompt);
        let ours = self.ours[task].poll(is_prompt && linux.is_some());
        self.judge(task, op, linux, ours)
    }

    fn compare_prompt(&mut self, task: usize, op: &Op) -> Option<Answer> {
        let linux = self.linux[task].poll(true);
        let ours = self.ours[task].poll(op.is_prompt() && linux.is_some());
        self.judge(task, op, linux, ours)
    }

    fn judge(
        &mut self,
        task: usize,
        op: &Op,
        mut linux: Option<Answer>,
        mut ours: Option<Answer>,
    ) -> Option<Answer> {
        if let (Some(linux), Some(ours)) = (&mut linux, &mut ours) {
            map_numbers(op, linux, &self.linux_numbers);
            map_numbers(op, ours, &self.our_numbers);
        }
        if let Op::Stat { .. } = op {
            self.forget_time(&mut linux);
            self.forget_time(&mut ours);
        }
        self.trail.push(format!("   {task} -> {linux:?}"));
        assert!(
            linux == ours,
            "task {task}: {op:?}: linux {linux:?}, ours {ours:?} (None: it waits)\n{}",
            self.trail[self.trail.len().saturating_sub(120)..].join("\n")
        );
        ours
    }

    /// In random scripts, the comparison ignores whether `sem_otime` is set. On Linux, a failed
    /// call with `SEM_UNDO` leaves an empty undo record, which sets `sem_otime` when it is applied.
    fn forget_time(&self, answer: &mut Option<Answer>) {
        if let (true, Some([0, .., has_otime])) = (self.is_random, answer.as_deref_mut()) {
            *has_otime = 0;
        }
    }

    /// Removes all objects, so that no call waits.
    pub(crate) fn clean(&mut self) {
        let free = (0..TASKS).find(|task| self.waiting[*task].is_none());
        let task = free.unwrap_or_else(|| {
            self.step(0, &Step::Exit);
            0
        });
        self.step(task, &Step::Call(Op::ActAs { uid: 0, gid: 0 }));
        let cmd = libc::IPC_RMID;
        let [sets, queues, segments] = std::mem::take(&mut self.ids);
        let sets = sets.into_iter().map(|id| Op::Ctl { id, num: 0, cmd, value: 0 });
        let queues = queues.into_iter().map(|id| Op::Msg(MsgOp::Ctl { id, cmd }));
        let segments = segments.into_iter().map(|id| Op::Shm(ShmOp::Ctl { id, cmd }));
        for op in sets.chain(queues).chain(segments) {
            self.step(task, &Step::Call(op));
        }
        assert!(self.waiting.iter().all(Option::is_none), "a call still waits");
        for task in 0..TASKS {
            self.step(task, &Step::Call(Op::ActAs { uid: 0, gid: 0 }));
        }
        self.trail.clear();
    }
}

/// The pid of a forked child has no task number, and becomes -1.
fn map_numbers(op: &Op, answer: &mut Answer, numbers: &HashMap<i64, i64>) {
    let known = |pid: i64| *numbers.get(&pid).unwrap_or(&-1);
    match op {
        Op::Ctl { cmd: libc::GETPID, .. } => {
            if let [0, pid] = &mut answer[..] {
                *pid = known(*pid);
            }
        }
        Op::Msg(op) => op.map_pids(answer, known),
        Op::Shm(op) => op.map_pids(answer, known),
        _ => {}
    }
}

/// Polls each task until a round brings no new answer.
fn until_quiet(
    tasks: &[usize],
    mut poll: impl FnMut(usize) -> Option<Answer>,
) -> Vec<Option<Answer>> {
    let mut answers = vec![None; tasks.len()];
    loop {
        let mut is_quiet = true;
        for (task, answer) in tasks.iter().zip(&mut answers) {
            if answer.is_none() {
                *answer = poll(*task);
                is_quiet &= answer.is_none();
            }
        }
        if is_quiet {
            return answers;
        }
    }
}

impl Pairing {
    /// At least one step in a hundred must be a call that waits, or the end of a task.
    pub(crate) fn fuzz(
        &mut self,
        seed: Seed,
        extent: Extent,
        kinds: fn(&mut Rng) -> &'static [Kind],
    ) {
        let start = Instant::now();
        self.is_random = true;
        let _report = ReportSeed::new(seed);
        let mut rng = Rng::new(seed);
        let (mut done, mut waits) = (0, 0);
        let is_time = |done| done < extent.least || start.elapsed() < extent.limit;
        while done < extent.steps && is_time(done) {
            let tasks = 1 + rng.below(TASKS as u64) as usize;
            let kinds = kinds(&mut rng);
            for _ in 0..SCRIPT_STEPS {
                let task = rng.below(tasks as u64) as usize;
                let is_waiting = self.waiting[task].is_some();
                let scene = Scene { kinds, ids: &self.ids, waiting: &self.waiting };
                if let Some(step) = op::step(&mut rng, is_waiting, &scene) {
                    let answer = self.step(task, &step);
                    waits += u64::from(answer.is_none());
                    done += 1;
                }
            }
            self.clean();
        }
        self.is_random = false;
        let (seconds, seed) = (start.elapsed().as_secs_f64(), seed.0);
        println!(
            "{done} steps, {waits} of them waits and ends, in {seconds:.1} s, seed {seed:#018x}"
        );
        assert!(waits > done / 100, "too few calls waited");
    }
}

/// The number of steps of a run, and its time limit.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Extent {
    /// The number of steps. A run may make a few more, because it always completes its last script.
    pub(crate) steps: u64,
    /// The minimum number of steps, which are made even after the time limit.
    pub(crate) least: u64,
    pub(crate) limit: Duration,
}

impl Extent {
    pub(crate) fn or_asked(self) -> Self {
        let Ok(asked) = std::env::var("COREWALK_DIFFERENTIAL_OPS") else { return self };
        let steps = asked.parse().expect("COREWALK_DIFFERENTIAL_OPS must be a number");
        Self { steps, least: steps, limit: Duration::MAX }
    }
}
