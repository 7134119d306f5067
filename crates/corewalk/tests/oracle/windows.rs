//! Concurrent renamers and translators, judged window by window.
//!
//! The test is divided into windows (periods of time). In a window, each translator makes a fixed
//! number of translations, and each renamer at least a fixed number of renames. This number is the
//! thread's share. A thread that has done its share continues until all threads have done theirs.
//! So renamers and translators always run at the same time.
//!
//! If a thread makes no progress, the watchdog ends the test. At the end of a window, the
//! translators compare their answers with the recorded renames. Then the records are dropped.

use std::sync::{Barrier, Mutex, PoisonError, RwLock};

use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_testkit::history::Clock;
use corewalk_testkit::race;
use corewalk_testkit::rng::{Rng, Seed};

use crate::doors::{Door, ROOM};
use crate::judge::{Answer, Judge, Life, VARIABLES};
use crate::tree::Tree;

const TRANSLATORS: usize = 2;
const RENAMERS: usize = 2;
const RENAMES: u64 = 100;

/// Minimum number of answers that must overlap a rename. With fewer, the test proves too little.
pub(crate) const DISTURBED: u64 = 1000;

#[derive(Clone, Copy)]
pub(crate) struct Extent {
    pub(crate) windows: u64,
    /// Maximum number of windows. A test makes more than `windows` of them if fewer than
    /// [`DISTURBED`] answers overlap a rename, as on one CPU.
    pub(crate) windows_max: u64,
    pub(crate) questions: u64,
}

impl Extent {
    pub(crate) fn answers(self) -> u64 {
        self.windows * self.questions * TRANSLATORS as u64
    }
}

#[derive(Debug, Default)]
pub(crate) struct Report {
    windows: u64,
    pub(crate) answers: u64,
    /// The number of answers during which a rename began or ended.
    pub(crate) disturbed: u64,
    pub(crate) renames: u64,
    pub(crate) wrong: Option<String>,
}

struct Race<'a> {
    tree: &'a Tree<'a>,
    doors: &'a [Door<'a>],
    extent: Extent,
    clock: Clock,
    /// The number of threads that have not done their share of the current window.
    behind: AtomicU64,
    ends: Barrier,
    lives: RwLock<Vec<Life>>,
    report: Mutex<Report>,
}

pub(crate) fn run(seed: Seed, tree: &Tree<'_>, doors: &[Door<'_>], extent: Extent) -> Report {
    let race = Race {
        tree,
        doors,
        extent,
        clock: Clock::new(),
        behind: AtomicU64::new((TRANSLATORS + RENAMERS) as u64),
        ends: Barrier::new(TRANSLATORS + RENAMERS),
        lives: RwLock::new(vec![Life::new(0); VARIABLES]),
        report: Mutex::default(),
    };
    race::run(TRANSLATORS + RENAMERS, seed, |mut racer| match racer.thread.checked_sub(RENAMERS) {
        None => race.rename(racer.thread, &mut racer.rng),
        Some(_) => race.translate(&mut racer.rng),
    });
    race.report.into_inner().unwrap_or_else(PoisonError::into_inner)
}

impl Race<'_> {
    fn rename(&self, this: usize, rng: &mut Rng) {
        let mut values = [0; VARIABLES];
        loop {
            let mut lives = values.map(Life::new);
            let mut renames = 0;
            while renames < RENAMES || !self.are_all_done() {
                let variable = this + RENAMERS * rng.index(VARIABLES / RENAMERS);
                let value = self.tree.draw(rng, variable, values[variable]);
                self.tree.prepare(rng, variable, value);
                let invoked = self.clock.tick();
                self.tree.change(variable, values[variable], value);
                lives[variable].change(invoked, self.clock.tick(), value);
                values[variable] = value;
                renames += 1;
                if renames == RENAMES {
                    self.is_done();
                }
            }
            let mut shared = self.lives.write().unwrap_or_else(PoisonError::into_inner);
            for variable in (this..VARIABLES).step_by(RENAMERS) {
                shared[variable] = lives[variable].clone();
            }
            drop(shared);
            self.report(|report| report.renames += renames);
            if self.end_window(this == 0, || ()) {
                return;
            }
        }
    }

    fn translate(&self, rng: &mut Rng) {
        let mut answers = Vec::with_capacity(self.extent.questions as usize);
        let mut buf = vec![0; ROOM];
        loop {
            answers.clear();
            let mut wrong = None;
            for _ in 0..self.extent.questions {
                match self.ask(rng, &mut buf) {
                    Ok(answer) => answers.push(answer),
                    Err(text) => wrong = wrong.or(Some(text)),
                }
            }
            self.is_done();
            while !self.are_all_done() {
                let _ = self.ask(rng, &mut buf);
            }
            if self.end_window(false, || self.judge(&answers, wrong)) {
                return;
            }
        }
    }

    fn judge(&self, answers: &[Answer], mut wrong: Option<String>) {
        let lives = self.lives.read().unwrap_or_else(PoisonError::into_inner);
        let (mut judge, mut disturbed) = (Judge::default(), 0);
        for answer in answers {
            if let Err(text) = judge.judge(&lives, answer) {
                let door = self.doors[usize::from(answer.door)].name;
                wrong = wrong.or(Some(format!("{door}: {text}")));
                break;
            }
            disturbed += u64::from(answer.after > answer.before);
        }
        self.report(|report| {
            report.answers += answers.len() as u64;
            report.disturbed += disturbed;
            report.wrong = report.wrong.take().or(wrong);
        });
    }

    fn ask(&self, rng: &mut Rng, buf: &mut [u8]) -> Result<Answer, String> {
        let number = rng.index(self.doors.len());
        let door = &self.doors[number];
        let before = self.clock.now();
        let said = (door.ask)(rng, buf);
        let after = self.clock.now();
        let seen = said.map_err(|text| format!("{}: {text}", door.name))?;
        Ok(Answer { before, after, seen, door: number as u8 })
    }

    /// Waits until all threads have recorded their renames and answers, runs `judge`, and waits for
    /// all threads again.
    fn end_window(&self, is_first: bool, judge: impl FnOnce()) -> bool {
        self.ends.wait();
        if is_first {
            // ORDERING: Relaxed. No thread counts between the two barriers.
            self.behind.store((TRANSLATORS + RENAMERS) as u64, Ordering::Relaxed);
            self.report(|report| report.windows += 1);
        }
        judge();
        self.ends.wait();
        // `windows`, `disturbed` and `wrong` change only after the next barrier, so all threads
        // read the same values.
        let report = self.report.lock().unwrap_or_else(PoisonError::into_inner);
        let Extent { windows, windows_max, .. } = self.extent;
        let is_enough = report.windows >= windows && report.disturbed >= DISTURBED;
        report.wrong.is_some() || is_enough || report.windows >= windows_max
    }

    fn is_done(&self) {
        // ORDERING: Relaxed. The count only ends loops. The barrier publishes the shared data.
        self.behind.fetch_sub(1, Ordering::Relaxed);
    }

    fn are_all_done(&self) -> bool {
        // ORDERING: Relaxed. As above.
        self.behind.load(Ordering::Relaxed) == 0
    }

    fn report(&self, add: impl FnOnce(&mut Report)) {
        add(&mut self.report.lock().unwrap_or_else(PoisonError::into_inner));
    }
}
