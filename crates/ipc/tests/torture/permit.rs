//! Torture of one permit: a semaphore with value 1. Children take it with `SEM_UNDO`, and wait for
//! it without a timeout.
//!
//! - The death of a child must return its permit to the semaphore. One child waits for the permit
//!   again and again, and the test kills it last. Even if no other process is left to wake this
//!   child, it must get the permit.
//! - Two children must never have the permit at the same time.
//! - No wait may be longer than [`WAIT_MAX`]. The test prints the longest wait. A watcher (the
//!   waiting call that looks for dead processes) notices a death within 0.1 s if the processor is
//!   free.
//!
//! In the control run, children take the permit (the single unit of the semaphore) without
//! `SEM_UNDO`. A killed child then never returns the permit, and the check must fail.

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

/// The time limit for a wait at the semaphore. It is long, since other children may be ahead in the
/// semaphore's wait queue, and the machine may be loaded.
const WAIT_MAX: Duration = STUCK;

pub(crate) struct Permits {
    file: OwnedFd,
    notes: Region,
    mode: Mode,
    longest: Duration,
}

impl Arena for Permits {
    // Recovery is so short that few kills hit it.
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
            // ORDERING: Relaxed. The counter only shows progress, and publishes no data.
            self.steps(place).fetch_add(1, Ordering::Relaxed);
            // The last child to be killed does not call `recover`: its waiting call must notice the
            // deaths of the others.
            if !is_last && rng.chance(1, 16) {
                Chore::Recover.begin(self.chore(place));
                self.namespace().recover().expect("recovery");
                task = self.task();
            }
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let longest = self.longest_word();
        // ORDERING: Relaxed. All children are dead.
        let waited = Duration::from_nanos(longest.load(Ordering::Relaxed));
        if waited > self.longest {
            self.longest = waited;
        }
        if waited > WAIT_MAX {
            return Err(format!("a wait took {waited:?}"));
        }
        let failed = |errno: Errno| format!("a check failed with {errno}");
        let task = self.task();
        let id = task.semget(KEY, 0, GetFlags::empty(), 0).map_err(failed)?;
        match task.sem_getval(id, 0).map_err(failed)? {
            1 => Ok(()),
            value => Err(format!("the semaphore of the permit has the value {value}")),
        }
    }
}

impl Permits {
    fn namespace(&self) -> Namespace {
        // Each child that is killed before the next check may leave one undo record and one wait
        // node. So the namespace has room for these.
        let capacity = Capacity { undos: 2048, waits: 512, tasks: 64, ..Capacity::LEAST };
        let options = NamespaceOptions { capacity, ..NamespaceOptions::default() };
        Namespace::open_fd(&self.file, options).expect("the namespace")
    }

    fn task(&self) -> Task {
        self.namespace().register(Cred::root(), std::process::id()).expect("a task")
    }

    fn longest_word(&self) -> &AtomicU64 {
        &self.notes.line(PLACES as u32 + 1)[0]
    }

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
        // ORDERING: Relaxed. `check` reads the longest wait once all children are dead.
        self.longest_word().fetch_max(waited, Ordering::Relaxed);
        for _ in 0..looks {
            assert_eq!(
                task.sem_getval(id, 0),
                Ok(0),
                "the value rose while a child had the permit"
            );
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
