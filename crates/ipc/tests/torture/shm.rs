//! Torture of segments.
//!
//! Children attach, detach, make and remove segments until they are killed. Then this must hold:
//! - `shm_nattch` of each segment counts the attaches of living tasks. Once all children are dead,
//!   only the parent has attaches.
//! - A segment that was removed while attached is gone after its last detach. Its key is free
//!   immediately.
//! - The backing, which provides the memory of segments, has memory for each existing segment and
//!   for no other.
//! - The memory for the records of attaches is free again.
//!
//! In the control run, the backing (which provides the memory of segments) keeps the memory of
//! removed segments. The check must then fail.

use corewalk_base::Region;
use corewalk_base::primitives::Arc;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_ipc::{
    Access, Backing, Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, Namespace, NamespaceOptions,
    SHM_DEST, SegmentName, ShmFlags, ShmId, Task,
};
use corewalk_testkit::rng::Rng;
use rustix::io::Errno;
use std::os::fd::OwnedFd;

use super::{Arena, Chore, Mode, PLACES, memory, shared_lines};

/// A task has one attach record per attached segment.
const SEGMENTS: u32 = 32;
const ATTACHES: u32 = 96;

/// How often the parent has attached each of the permanent segments, whose keys are 1 to 3.
/// Segments that children make and remove have keys from [`CHURN`].
const KEPT: [u64; 3] = [0, 1, 2];
const CHURN: i32 = 10;

/// Records which segments have memory: one word for each slot, with one bit for each serial number.
struct Memory {
    there: Arc<Region>,
    file: Arc<OwnedFd>,
    mode: Mode,
}

impl Memory {
    fn word(&self, name: SegmentName) -> (&AtomicU64, u64) {
        (&self.there.line(PLACES as u32 + name.index)[0], 1 << (name.serial % 64))
    }
}

impl Backing for Memory {
    fn create(&self, name: SegmentName, _size_bytes: u64) -> Result<(), Errno> {
        let (word, bit) = self.word(name);
        // ORDERING: Relaxed. The test reads the word after it has waited for the death of the
        // child.
        word.fetch_or(bit, Ordering::Relaxed);
        Ok(())
    }

    fn open(&self, _name: SegmentName, _access: Access) -> Result<Arc<OwnedFd>, Errno> {
        Ok(Arc::clone(&self.file))
    }

    fn remove(&self, name: SegmentName) -> bool {
        if self.mode == Mode::Control {
            return true;
        }
        let (word, bit) = self.word(name);
        // ORDERING: Relaxed. As above.
        word.fetch_and(!bit, Ordering::Relaxed);
        true
    }
}

pub(crate) struct Segments {
    file: OwnedFd,
    memory: Arc<OwnedFd>,
    notes: Arc<Region>,
    mode: Mode,
    /// The parent's task, which keeps the permanent segments attached.
    keeper: Option<Task>,
}

impl Arena for Segments {
    const CHORES: &'static [Chore] = &[
        Chore::Attach,
        Chore::Detach,
        Chore::Fork,
        Chore::Make,
        Chore::Rmid,
        Chore::Recover,
        Chore::Exit,
    ];

    fn new(mode: Mode) -> Self {
        let notes = Arc::new(shared_lines(PLACES as u32 + SEGMENTS));
        let (file, memory) = (memory("torture"), Arc::new(memory("segments")));
        let mut arena = Self { file, memory, notes, mode, keeper: None };
        let keeper = arena.task();
        for (key, count) in (1..).zip(KEPT) {
            let id = keeper.shmget(key, 4096, GetFlags::CREATE, 0o600).expect("a segment");
            for at in 0..count {
                attach(&keeper, id, 1 + key as usize * 10 + at as usize).expect("an attach");
            }
        }
        arena.keeper = Some(keeper);
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
        let chores = [0..65, 0..24, 24..48, 0..48, 48..60, 60..62, 63..64, 64..65];
        let chores = rng.pick(&chores).clone();
        let word = self.chore(place);
        loop {
            // ORDERING: Relaxed. The counter only shows progress, and publishes no data.
            self.steps(place).fetch_add(1, Ordering::Relaxed);
            let (key, at) = (1 + rng.index(KEPT.len()) as i32, 100 + rng.index(6));
            let kept = || task.shmget(key, 0, GetFlags::empty(), 0);
            let which = rng.range(chores.clone());
            match which {
                0..24 => Chore::Attach,
                24..48 => Chore::Detach,
                48..60 => Chore::Make,
                60..62 => Chore::Fork,
                62 | 63 => Chore::Recover,
                _ => Chore::Attach,
            }
            .begin(word);
            let done = match which {
                0..20 => kept().and_then(|id| attach(&task, id, at)),
                20..24 => kept().and_then(|id| task.shmat(id, 0, ShmFlags::empty()).map(drop)),
                24..48 => task.shmdt(at << 12).map(drop),
                48..60 => churn(&task, (at, word), &mut rng),
                // Fork the task, and continue with the child's task, which must have the same
                // attaches.
                60..62 => task.fork(std::process::id()).map(|copy| task = copy),
                62 | 63 => self.namespace().recover().map(drop),
                _ => {
                    let next = self.task();
                    let done = kept()
                        .and_then(|id| (0..16).try_for_each(|at| attach(&task, id, 100 + at)));
                    Chore::Exit.begin(word);
                    task = next;
                    done
                }
            };
            // Recently killed children may still occupy memory of the namespace, so the call may
            // fail with `NOMEM` or `NOSPC`.
            let is_good = matches!(
                done,
                Ok(()) | Err(Errno::IDRM | Errno::INVAL | Errno::NOSPC | Errno::NOMEM)
            );
            assert!(is_good, "{done:?}");
        }
    }

    fn check(&mut self) -> Result<(), String> {
        self.check_all().map_err(|errno| format!("a check failed with {errno}"))?
    }
}

impl Segments {
    fn namespace(&self) -> Namespace {
        let capacity =
            Capacity { segments: SEGMENTS, attaches: ATTACHES, tasks: 64, ..Capacity::LEAST };
        let (there, file) = (Arc::clone(&self.notes), Arc::clone(&self.memory));
        let memory = Memory { there, file, mode: self.mode };
        let backing: Option<Box<dyn Backing>> = Some(Box::new(memory));
        let limits = Limits::default();
        let options = NamespaceOptions { capacity, limits, backing, hook: None, ..<_>::default() };
        Namespace::open_fd(&self.file, options).expect("the namespace")
    }

    fn task(&self) -> Task {
        self.namespace().register(Cred::root(), std::process::id()).expect("a task")
    }

    fn check_all(&self) -> Result<Result<(), String>, Errno> {
        self.namespace().recover()?;
        let task = self.task();
        for index in 0..SEGMENTS as i32 {
            let Ok(stat) = task.shm_stat_any(index) else { continue };
            let kept = usize::try_from(stat.perm.key - 1).ok().and_then(|at| KEPT.get(at));
            if stat.nattch != *kept.unwrap_or(&0) || stat.perm.mode & SHM_DEST != 0 {
                return Ok(Err(format!("wrong attaches or a wrong mode: {stat:?}")));
            }
            if kept.is_none() {
                task.shm_rmid(stat.id)?;
            }
        }
        let totals = task.shm_totals()?;
        let (segments, pages) = (totals.segments as usize, totals.pages);
        let memory = self.memory_count();
        if (segments, pages, memory) != (KEPT.len(), KEPT.len() as u64, KEPT.len() as u32) {
            return Ok(Err(format!(
                "{segments} segments of {pages} pages, but memory of {memory} segments"
            )));
        }
        self.check_room()
    }

    fn memory_count(&self) -> u32 {
        let words = (0..SEGMENTS).map(|index| &self.notes.line(PLACES as u32 + index)[0]);
        // ORDERING: Relaxed. All children are dead.
        words.map(|word| word.load(Ordering::Relaxed).count_ones()).sum()
    }

    /// Checks that all lines for attaches can be allocated again.
    fn check_room(&self) -> Result<Result<(), String>, Errno> {
        let tasks: Vec<Task> = (0..4).map(|_| self.task()).collect();
        let made = SEGMENTS as usize - KEPT.len();
        let ids: Vec<ShmId> = (0..made)
            .map(|_| tasks[0].shmget(IPC_PRIVATE, 1, GetFlags::empty(), 0o600))
            .collect::<Result<_, _>>()?;
        let pairs = tasks.iter().flat_map(|task| ids.iter().map(move |id| (task, *id)));
        let room =
            pairs.enumerate().take_while(|(at, (task, id))| attach(task, *id, 1 + at).is_ok());
        let kept = KEPT.iter().filter(|count| **count != 0).count();
        let room = kept + room.count();
        drop(tasks);
        let task = self.task();
        ids.into_iter().try_for_each(|id| task.shm_rmid(id))?;
        let is_all = room == ATTACHES as usize;
        Ok(is_all.then_some(()).ok_or(format!("there is room for only {room} attaches")))
    }
}

/// Attaches a segment at a page. If another segment is attached there, replaces it.
fn attach(task: &Task, id: ShmId, at: usize) -> Result<(), Errno> {
    task.shmat(id, at << 12, ShmFlags::empty()).map(|mapping| mapping.attached_at(at << 12))
}

/// Makes, uses and removes segments.
fn churn(task: &Task, (at, word): (usize, &AtomicU64), rng: &mut Rng) -> Result<(), Errno> {
    let id = task.shmget(CHURN + rng.below(3) as i32, 1, GetFlags::CREATE, 0o600)?;
    let which = rng.below(4);
    match which {
        0 | 1 => Chore::Rmid,
        2 => Chore::Make,
        _ => Chore::Attach,
    }
    .begin(word);
    match which {
        0 | 1 => task.shm_rmid(id),
        2 => task.shm_set(id, 0, 0, 0o600),
        _ => attach(task, id, at),
    }
}
