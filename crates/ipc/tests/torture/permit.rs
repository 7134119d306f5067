//! A permit that is taken with `SEM_UNDO`, and waits for it that have no end of their own.
//!
//! - Whoever was killed with the permit has given it back: one child waits for it again and again and is killed last,
//!   when nobody else is there who could wake it. It must have got the permit by then.
//! - Two never have it at once.
//! - No wait was longer than [`WAIT_MAX`]. The longest is told: what is promised is a tenth of a second while there is a watcher, on a machine
//!   that has time for whoever waits.
//!
//! In the control the permit is taken without `SEM_UNDO`, so that it stays with the dead.

use corewalk_base::Region;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_ipc::{
    Capacity, Cred, GetFlags, Namespace, NamespaceOptions, SemBuf, SemFlags, SemId, Task,
};
use corewalk_testkit::rng::Rng;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::{Duration, Instant};

use super::{Arena, Chore, Mode, PLACES, STUCK, memory, shared_lines};

const KEY: i32 = 1;

/// A wait at most, before something is wrong: another may stand before, and the machine may have no time.
const WAIT_MAX: Duration = STUCK;

pub(crate) struct Permits {
    file: OwnedFd,
    notes: Region,
    mode: Mode,
    longest: Duration,
}

impl Arena for Permits {
    // Recovery is over too soon to be met in so few kills; the other arenas see to that.
    const CHORES: &'static [Chore] = &[Chore::Wait, Chore::Hold];
    const IS_LAST_PATIENT: bool = true;

    fn new(mode: Mode) -> Self {
        let (file, notes) = (memory("torture"), shared_lines(PLACES as u32 + 2));
        let arena = Self { file, notes, mode, longest: Duration::ZERO };
        let task = arena.task();
        let id = task.semget(KEY, 1, GetFlags::CREATE, 0o600).expect("a set");
        task.sem_setval(id, 0, 1).expect("a value");
        arena
    }

    fn steps(&self, place: usize) -> &AtomicU64 {
        &self.notes.line(place as u32)[0]
    }

    fn chore(&self, place: usize) -> &AtomicU64 {
        &self.notes.line(place as u32)[1]
    }

    fn work(&self, place: usize, mut rng: Rng) {
        let mut task = self.task();
        let id = task.semget(KEY, 0, GetFlags::empty(), 0).expect("the set");
        let is_last = place == PLACES;
        loop {
            let flags =
                if !is_last && rng.chance(1, 4) { SemFlags::NOWAIT } else { SemFlags::empty() };
            match self.hold(&task, id, flags, place, 1 + rng.below(200)) {
                Ok(()) | Err(Errno::AGAIN) => {}
                Err(errno) => panic!("{errno}"),
            }
            // ORDERING: Relaxed. A sign of life.
            self.steps(place).fetch_add(1, Ordering::Relaxed);
            // Whoever is last finds out by itself.
            if !is_last && rng.chance(1, 16) {
                Chore::Recover.begin(self.chore(place));
                self.namespace().recover().expect("recovery");
                task = self.task();
            }
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let longest = self.longest_word();
        // ORDERING: Relaxed. Nobody else is there.
        let waited = Duration::from_nanos(longest.load(Ordering::Relaxed));
        if waited > self.longest {
            self.longest = waited;
        }
        if waited > WAIT_MAX {
            return Err(format!("somebody waited for {waited:?}"));
        }
        let failed = |errno: Errno| format!("a check failed with {errno}");
        let task = self.task();
        let id = task.semget(KEY, 0, GetFlags::empty(), 0).map_err(failed)?;
        match task.sem_getval(id, 0).map_err(failed)? {
            1 => Ok(()),
            value => Err(format!("the permit is {value}")),
        }
    }
}

impl Permits {
    fn namespace(&self) -> Namespace {
        // Of undo records and waits the dead of 40 kills may have one each.
        let capacity = Capacity { undos: 2048, waits: 512, tasks: 64, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        Namespace::open_fd(&self.file, options).expect("the namespace")
    }

    fn task(&self) -> Task {
        self.namespace().register(Cred::root(), std::process::id()).expect("a task")
    }

    /// The longest wait for the permit, in nanoseconds.
    fn longest_word(&self) -> &AtomicU64 {
        &self.notes.line(PLACES as u32 + 1)[0]
    }

    /// Takes the permit, looks so often that nobody else has it, and gives it back.
    fn hold(
        &self,
        task: &Task,
        id: SemId,
        flags: SemFlags,
        place: usize,
        looks: u64,
    ) -> Result<(), Errno> {
        let undo = if self.mode == Mode::Real { SemFlags::UNDO } else { SemFlags::empty() };
        Chore::Wait.begin(self.chore(place));
        let start = Instant::now();
        task.semop(id, &[SemBuf::new(0, -1, undo | flags)])?;
        Chore::Hold.begin(self.chore(place));
        let waited = u64::try_from(start.elapsed().as_nanos()).unwrap_or(u64::MAX);
        // ORDERING: Relaxed. It is looked at when nobody is there any more.
        self.longest_word().fetch_max(waited, Ordering::Relaxed);
        for _ in 0..looks {
            assert_eq!(task.sem_getval(id, 0), Ok(0), "another has it too");
        }
        task.semop(id, &[SemBuf::new(0, 1, undo)])
    }
}

impl Drop for Permits {
    fn drop(&mut self) {
        if self.mode == Mode::Real {
            println!("permits: the longest wait for one was {:?}", self.longest);
        }
    }
}
