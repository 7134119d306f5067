//! The same scripts on the host kernel and on ours: every answer is the same.
//!
//! A script is a sequence of steps of one to four tasks, one at a time; a call that blocks stays
//! blocked until a later step lets it go on. After each step it is known on both sides which calls
//! still wait, and what the others returned is compared: values, errno, ids, counts, pids,
//! permissions. Times are not, except whether there is one.
//!
//! `COREWALK_IPC_STEPS` sets the number of steps; a million takes some minutes. The kernel's side
//! runs in an IPC namespace of its own; where that is not permitted the tests say so and skip.
//!
//! Source: research on the semantics of Linux 6.18; `docs/testing.md`.

mod corners;
mod linux;
mod msg;
mod msg_corners;
mod op;
mod ours;
mod shm;
mod shm_corners;

use std::collections::HashMap;
use std::panic::{AssertUnwindSafe, catch_unwind};

use corewalk_ipc::{Namespace, NamespaceOptions};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use corewalk_testkit::sysv;

use msg::MsgOp;
use op::{Answer, Kind, Op, Scene, Step};
use ours::Mutation;
use shm::ShmOp;

const TASKS: usize = 4;
const STEPS: u64 = 4_000;
const SCRIPT_STEPS: u64 = 200;

/// Both sides, and what is known of them.
struct Pairing {
    namespace: Namespace,
    mutation: Mutation,
    linux: Vec<linux::Worker>,
    ours: Vec<ours::Worker>,
    /// The call that each task waits in.
    waiting: Vec<Option<Op>>,
    /// Our pid of each process that there was; pids of the kernel do not repeat that soon.
    pids: HashMap<i64, i64>,
    next_pid: u32,
    /// Ids that were made, by kind.
    ids: [Vec<i32>; 3],
    trail: Vec<String>,
    /// Whether the scripts are random.
    is_random: bool,
}

impl Pairing {
    /// Returns none, and says why, if the kernel's side cannot have a namespace of its own.
    fn new(mutation: Mutation) -> Option<Self> {
        if let Err(errno) = sysv::unshare_ipc() {
            println!("skipped: no IPC namespace of our own here (errno {errno})");
            return None;
        }
        let namespace = Namespace::new(NamespaceOptions::default()).expect("memory");
        let mut pairing = Self {
            namespace,
            mutation,
            linux: Vec::new(),
            ours: Vec::new(),
            waiting: vec![None; TASKS],
            pids: HashMap::from([(0, 0)]),
            next_pid: 1,
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

    fn start(&mut self) -> (linux::Worker, ours::Worker) {
        let pid = self.next_pid;
        self.next_pid += 1;
        let linux = linux::Worker::start();
        // A message that is handed over leaves the number of the thread with Linux, not of the process.
        for number in [linux.pid().cast_signed(), linux.thread()] {
            self.pids.insert(i64::from(number), i64::from(pid));
        }
        (linux, ours::Worker::start(&self.namespace, pid, self.mutation))
    }

    /// Carries out a step of `task` on both sides, and compares; returns what its call returned.
    fn step(&mut self, task: usize, step: &Step) -> Option<Answer> {
        // For a script that hangs.
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
                // The kernel's process needs a moment to take its signal.
                own = self.compare_prompt(task, &op);
            }
            Step::Exit => {
                let (linux, ours) = self.start();
                std::mem::replace(&mut self.linux[task], linux).end();
                std::mem::replace(&mut self.ours[task], ours).end();
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

    /// Compares the calls that waited and may have gone on.
    ///
    /// One that goes on may let another go on (a sender a receiver), after the call that began it has
    /// returned: each side is looked at until nothing more happens there.
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
        self.map_pids(op, &mut linux, &mut ours);
        if let Op::Stat { .. } = op {
            self.forget_time(&mut linux);
            self.forget_time(&mut ours);
        }
        self.trail.push(format!("   {task} -> {linux:?}"));
        assert!(
            linux == ours,
            "task {task}: {op:?}: linux {linux:?}, ours {ours:?} (none: it waits)\n{}",
            self.trail[self.trail.len().saturating_sub(120)..].join("\n")
        );
        ours
    }

    /// Replaces the pids of the kernel's side by ours; a child that only one side knows is -1.
    fn map_pids(&self, op: &Op, linux: &mut Option<Answer>, ours: &mut Option<Answer>) {
        let (Some(linux), Some(ours)) = (linux, ours) else { return };
        let known = |pid: i64| *self.pids.get(&pid).unwrap_or(&-1);
        match op {
            Op::Ctl { cmd: libc::GETPID, .. } => {
                if let [0, pid] = &mut linux[..] {
                    *pid = known(*pid);
                }
            }
            Op::Msg(op) => op.map_pids(linux, known),
            Op::Shm(op) => {
                op.map_pids(linux, known);
                let is_child = |pid| pid >= i64::from(shm::CHILD_PIDS);
                op.map_pids(ours, |pid| if is_child(pid) { -1 } else { pid });
            }
            _ => {}
        }
    }

    /// Leaves out whether there was an operation yet. A call with `SEM_UNDO` that fails leaves an empty
    /// undo record with Linux, whose end counts as an operation; with us it leaves none.
    fn forget_time(&self, answer: &mut Option<Answer>) {
        if let (true, Some([0, .., has_otime])) = (self.is_random, answer.as_deref_mut()) {
            *has_otime = 0;
        }
    }

    /// Removes everything, so that nobody waits.
    fn clean(&mut self) {
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
        assert!(self.waiting.iter().all(Option::is_none), "somebody still waits");
        for task in 0..TASKS {
            self.step(task, &Step::Call(Op::ActAs { uid: 0, gid: 0 }));
        }
        self.trail.clear();
    }
}

/// Asks about each task until a round brings nothing new.
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

/// Runs random scripts of `steps` steps in all, about `kinds` or any.
fn fuzz(seed: Seed, steps: u64, mutation: Mutation, kinds: Option<&[Kind]>) {
    let Some(mut pairing) = Pairing::new(mutation) else { return };
    pairing.is_random = true;
    let _report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let mut done = 0;
    let mut waits = 0u64;
    while done < steps {
        let tasks = 1 + rng.below(TASKS as u64) as usize;
        let kinds = kinds.unwrap_or_else(|| Kind::some(&mut rng));
        for _ in 0..SCRIPT_STEPS {
            let task = rng.below(tasks as u64) as usize;
            let is_waiting = pairing.waiting[task].is_some();
            let scene = Scene { kinds, ids: &pairing.ids, waiting: &pairing.waiting };
            if let Some(step) = op::step(&mut rng, is_waiting, &scene) {
                let answer = pairing.step(task, &step);
                waits += u64::from(answer.is_none());
                done += 1;
            }
        }
        pairing.clean();
    }
    println!("{done} steps, {waits} of them waits and ends, seed {seed:?}");
    assert!(kinds.is_some() || waits > steps / 100, "hardly anybody waited");
}

#[test]
fn random_scripts_have_the_same_answers() {
    let steps = std::env::var("COREWALK_IPC_STEPS").ok();
    let steps = steps.map_or(STEPS, |steps| steps.parse().expect("COREWALK_IPC_STEPS: a number"));
    fuzz(Seed::choose(), steps, Mutation::None, None);
}

#[test]
fn corner_cases_have_the_same_answers() {
    let Some(mut pairing) = Pairing::new(Mutation::None) else { return };
    let scripts = corners::SCRIPTS.into_iter().chain(msg_corners::SCRIPTS);
    for (name, script) in scripts.chain(shm_corners::SCRIPTS) {
        println!("{name}");
        script(&mut pairing);
        pairing.clean();
    }
}

#[test]
fn control_mutated_semantics_are_found_out() {
    if sysv::unshare_ipc().is_err() {
        println!("skipped: no IPC namespace of our own here");
        return;
    }
    let mutations = [
        (Mutation::NoUndo, Kind::Sem),
        (Mutation::NotAtomic, Kind::Sem),
        (Mutation::NoCounts, Kind::Sem),
        (Mutation::NoLowest, Kind::Msg),
        (Mutation::NoDest, Kind::Shm),
    ];
    for (mutation, kind) in mutations {
        let run = || fuzz(Seed(1), STEPS, mutation, Some(&[kind]));
        let fuzzed = catch_unwind(AssertUnwindSafe(run));
        let panic = fuzzed.expect_err("a mutation was not found out");
        let text = panic.downcast_ref::<String>().expect("a message");
        assert!(text.contains("linux"), "{mutation:?}: {text}");
    }
}

/// Not a test of its own: the processes that the kernel's side runs.
#[test]
fn worker_answers_until_its_driver_ends() {
    linux::serve();
}
