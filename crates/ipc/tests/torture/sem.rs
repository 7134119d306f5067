//! Torture of semaphores.
//!
//! Children make calls on semaphore sets until they are killed. The test checks that this holds:
//! - Calls of several operations move units between semaphores, and no unit is lost or duplicated.
//! - If a child is killed while its call waits for units, the call has changed no semaphore.
//! - If a unit goes to a waiting call, and the task of this call dies, the unit is not lost.
//! - Undo restores the values of semaphores.
//! - Sets that children make and remove leak no memory.
//!
//! In the control, children move a unit by two calls. A kill between them loses the unit, and the
//! check must fail.

use corewalk_base::Region;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Namespace, NamespaceOptions, SemBuf, SemFlags, SemId,
    Task,
};
use corewalk_testkit::rng::Rng;
use rustix::io::Errno;
use std::os::fd::OwnedFd;
use std::time::Duration;

use super::{Arena, Chore, Mode, memory, shared_lines};

const UNITS: u16 = 50;
const SEMS: u16 = 4;

/// The keys of three semaphore sets. Calls move units between the semaphores of the first set.
/// Calls with `SEM_UNDO` change the second set. Calls wait for units of the third set.
const MOVES: i32 = 1;
const UNDO: i32 = 2;
const WAITS: i32 = 3;
/// Each unit of this semaphore is a permit. Children add permits, take them, and wait for them.
const PERMITS: i32 = 4;
const CHURN: i32 = 5;

pub(crate) struct Sets {
    file: OwnedFd,
    progress: Region,
    mode: Mode,
}

fn options() -> NamespaceOptions {
    let capacity =
        Capacity { sets: 64, sems: 512, undos: 2048, waits: 512, tasks: 64, ..Capacity::LEAST };
    NamespaceOptions { capacity, ..NamespaceOptions::default() }
}

impl Arena for Sets {
    const CHORES: &'static [Chore] = &[
        Chore::Single,
        Chore::Several,
        Chore::Undo,
        Chore::Wait,
        Chore::Make,
        Chore::Rmid,
        Chore::Recover,
        Chore::Exit,
    ];

    fn new(mode: Mode) -> Self {
        let arena = Self { file: memory("torture"), progress: shared_lines(16), mode };
        let task = arena.task();
        for key in [MOVES, UNDO, WAITS] {
            let id = task.semget(key, i32::from(SEMS), GetFlags::CREATE, 0o600).expect("a set");
            task.sem_setall(id, &[UNITS; SEMS as usize]).expect("values");
        }
        task.semget(PERMITS, 1, GetFlags::CREATE, 0o600).expect("a set");
        arena
    }

    fn steps(&self, place: usize) -> &AtomicU64 {
        &self.progress.line(place as u32)[0]
    }

    fn chore(&self, place: usize) -> &AtomicU64 {
        &self.progress.line(place as u32)[1]
    }

    fn work(&self, place: usize, mut rng: Rng) {
        let mut task = self.task();
        // Most children have only one chore (kind of work). Otherwise the longest chore would get
        // almost all kills.
        let chores =
            [0..77, 0..24, 24..44, 0..44, 44..56, 56..60, 60..62, 63..64, 64..65, 65..77, 65..77];
        let chores = rng.pick(&chores).clone();
        let word = self.chore(place);
        let mut ids = [MOVES, UNDO, WAITS, PERMITS]
            .map(|key| task.semget(key, 0, GetFlags::empty(), 0).expect("the set"));
        loop {
            // ORDERING: Relaxed. The counter only shows progress, and publishes no data.
            self.steps(place).fetch_add(1, Ordering::Relaxed);
            let done = match rng.range(chores.clone()) {
                0..24 => {
                    Chore::Several.begin(word);
                    self.move_unit(&task, ids[0], &mut rng)
                }
                24..44 => {
                    Chore::Undo.begin(word);
                    with_undo(&task, ids[1], &mut rng)
                }
                44..56 => {
                    Chore::Wait.begin(word);
                    wait(&task, ids[2], &mut rng)
                }
                56..60 => churn(&task, word, 0, &mut rng),
                60..62 => churn(&task, word, 50, &mut rng),
                62 => task.semget(MOVES, 0, GetFlags::empty(), 0).map(|id| ids[0] = id),
                63 => {
                    Chore::Recover.begin(word);
                    self.namespace().recover().map(drop)
                }
                65.. => permit(&task, word, ids[3], &mut rng),
                _ => {
                    // The task ends properly, and the child continues as another task.
                    let next = self.task();
                    Chore::Undo.begin(word);
                    let done = with_undo(&task, ids[1], &mut rng);
                    Chore::Exit.begin(word);
                    task = next;
                    done
                }
            };
            let is_good = matches!(
                done,
                Ok(()) | Err(Errno::AGAIN | Errno::RANGE | Errno::IDRM | Errno::INVAL)
            );
            assert!(is_good, "{done:?}");
        }
    }

    fn check(&mut self) -> Result<(), String> {
        let task = self.task();
        let failed = |errno: Errno| format!("a check failed with {errno}");
        // Before recovery.
        let permits = task.semget(PERMITS, 0, GetFlags::empty(), 0).map_err(failed)?;
        while task.semop(permits, &[TRY]).is_ok() {}
        self.namespace().recover().map_err(failed)?;
        let left = task.sem_getval(permits, 0).map_err(failed)?;
        if left != 0 {
            return Err(format!("a call was refused a permit, and then there were {left}"));
        }
        let wanted = u64::from(UNITS) * u64::from(SEMS);
        for (name, key) in [("moved", MOVES), ("waited for", WAITS), ("undone", UNDO)] {
            let id = task.semget(key, 0, GetFlags::empty(), 0).map_err(failed)?;
            let values = task.sem_getall(id).map_err(failed)?;
            let sum: u64 = values.iter().map(|value| u64::from(*value)).sum();
            let is_back = key != UNDO || values.iter().all(|value| *value == UNITS);
            if sum != wanted || !is_back {
                return Err(format!("{name}: the sum of {values:?} is {sum}, not {wanted}"));
            }
            let waiting = (0..i32::from(SEMS)).map(|num| task.sem_getncnt(id, num));
            if waiting.collect::<Result<Vec<_>, _>>().map_err(failed)? != [0; SEMS as usize] {
                return Err("a dead task is counted as waiting".to_owned());
            }
        }
        self.check_room(&task).map_err(|errno| format!("sets cannot be made again: {errno}"))
    }
}

impl Sets {
    fn namespace(&self) -> Namespace {
        Namespace::open_fd(&self.file, options()).expect("the namespace")
    }

    fn task(&self) -> Task {
        self.namespace().register(Cred::root(), std::process::id()).expect("a task")
    }

    fn move_unit(&self, task: &Task, id: SemId, rng: &mut Rng) -> Result<(), Errno> {
        let [from, to, over] = two_and_one(rng);
        let take = SemBuf::new(from, -1, SemFlags::NOWAIT);
        let give = SemBuf::new(to, 1, SemFlags::empty());
        if self.mode == Mode::Control {
            return task.semop(id, &[take]).and_then(|()| task.semop(id, &[give]));
        }
        match rng.below(3) {
            0 => task.semop(id, &[take, give]),
            1 => task.semop(id, &[give, take]),
            // This call of four operations moves a unit from `from` to `to`. It also adds a unit to
            // a third semaphore, and takes it away again.
            _ => task.semop(
                id,
                &[
                    take,
                    SemBuf::new(over, 1, SemFlags::empty()),
                    give,
                    SemBuf::new(over, -1, SemFlags::empty()),
                ],
            ),
        }
    }

    /// Checks that as many sets as before can be made.
    fn check_room(&self, task: &Task) -> Result<(), Errno> {
        for index in 0..64 {
            if let Ok(stat) = task.sem_stat_any(index)
                && ![MOVES, UNDO, WAITS, PERMITS].contains(&stat.perm.key)
            {
                task.sem_rmid(stat.id)?;
            }
        }
        let totals = task.sem_totals()?;
        assert_eq!((totals.sets, totals.sems), (4, 3 * u64::from(SEMS) + 1), "counts are wrong");
        let ids: Vec<SemId> = (0..60)
            .map(|_| task.semget(IPC_PRIVATE, 4, GetFlags::empty(), 0o600))
            .collect::<Result<_, _>>()?;
        ids.into_iter().try_for_each(|id| task.sem_rmid(id))
    }
}

fn two_and_one(rng: &mut Rng) -> [u16; 3] {
    let mut nums = [0, 1, 2, 3];
    rng.shuffle(&mut nums);
    [nums[0], nums[1], nums[2]]
}

fn with_undo(task: &Task, id: SemId, rng: &mut Rng) -> Result<(), Errno> {
    let [one, other, _] = two_and_one(rng);
    let op = rng.below(5) as i16 - 2;
    let first = SemBuf::new(one, op, SemFlags::UNDO | SemFlags::NOWAIT);
    match rng.below(3) {
        0 => {
            task.semop(id, &[first, SemBuf::new(other, 1 - op, SemFlags::UNDO | SemFlags::NOWAIT)])
        }
        _ => task.semop(id, &[first]),
    }
}

fn wait(task: &Task, id: SemId, rng: &mut Rng) -> Result<(), Errno> {
    let [from, to, _] = two_and_one(rng);
    let count = 1 + rng.below(u64::from(UNITS) * 2) as i16;
    let sops =
        [SemBuf::new(from, -count, SemFlags::empty()), SemBuf::new(to, count, SemFlags::empty())];
    task.semtimedop(id, &sops, Some(Duration::from_micros(rng.below(400))))
}

const TRY: SemBuf = SemBuf::new(0, -1, SemFlags::NOWAIT);

fn permit(task: &Task, word: &AtomicU64, id: SemId, rng: &mut Rng) -> Result<(), Errno> {
    Chore::Single.begin(word);
    match rng.below(4) {
        0 => task.semop(id, &[SemBuf::new(0, 1, SemFlags::empty())]),
        1 => task.semop(id, &[TRY]),
        _ => {
            Chore::Wait.begin(word);
            let timeout = Some(Duration::from_micros(rng.below(400)));
            task.semtimedop(id, &[SemBuf::new(0, -1, SemFlags::empty())], timeout)
        }
    }
}

/// Makes a set or finds it, and then makes a random call on it. The higher `waits` is, the more
/// kills hit a waiting call.
fn churn(task: &Task, word: &AtomicU64, waits: u64, rng: &mut Rng) -> Result<(), Errno> {
    let key = CHURN + rng.below(3) as i32;
    Chore::Make.begin(word);
    let id = task.semget(key, 3, GetFlags::CREATE, 0o600)?;
    let flags = if rng.chance(1, 2) { SemFlags::UNDO } else { SemFlags::empty() };
    let down = [SemBuf::new(rng.below(3) as u16, -1, flags)];
    let which = rng.below(450 + waits);
    match which {
        0..160 => Chore::Rmid,
        160..300 => Chore::Make,
        300..450 => Chore::Single,
        _ => Chore::Wait,
    }
    .begin(word);
    match which {
        0..160 => task.sem_rmid(id),
        160..230 => task.sem_setall(id, &[1, 2, 3]),
        230..300 => task.sem_set(id, 0, 0, 0o600),
        300..450 => {
            let up = [SemBuf::new(rng.below(3) as u16, 1, flags)];
            (0..16).try_for_each(|_| task.semop(id, &up))
        }
        _ => task.semtimedop(id, &down, Some(Duration::from_micros(rng.below(200)))),
    }
}
