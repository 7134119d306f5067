//! The lines (64 bytes each) of a removed set or undo record must be usable for sets and records of
//! any other size.

use corewalk_ipc::{
    Capacity, Cred, GetFlags, IPC_PRIVATE, Limits, Namespace, NamespaceOptions, SemBuf, SemFlags,
    SemId, Task,
};
use corewalk_testkit::rng::{ReportSeed, Rng, Seed};
use rustix::io::Errno;

fn namespace(capacity: Capacity) -> Namespace {
    Namespace::new(NamespaceOptions { capacity, ..NamespaceOptions::default() })
        .expect("valid options")
}

fn make(task: &Task, nsems: i32) -> Result<SemId, Errno> {
    task.semget(IPC_PRIVATE, nsems, GetFlags::empty(), 0o600)
}

fn fill_and_drain(task: &Task, nsems: i32) -> usize {
    let ids: Vec<SemId> = (0..).map_while(|_| make(task, nsems).ok()).collect();
    for id in &ids {
        assert_eq!(task.sem_getall(*id), Ok(vec![0; nsems as usize]));
        assert_eq!(task.sem_rmid(*id), Ok(()));
    }
    ids.len()
}

#[test]
fn set_of_any_size_finds_room_after_sets_of_another_have_gone() {
    let namespace = namespace(Capacity { undos: 1, ..Capacity::default() });
    let task = namespace.register(Cred::root(), 1).expect("a free task");
    let ids: Vec<SemId> = (0..16_384).map(|_| make(&task, 33).expect("there is room")).collect();
    assert_eq!(make(&task, 65), Err(Errno::NOMEM));
    ids.into_iter().for_each(|id| task.sem_rmid(id).expect("an existing set"));
    assert!(make(&task, 65).is_ok());
    // A set of 32,000 semaphores takes 32,768 lines. Besides the set of 65 semaphores, there are
    // lines for 31 such sets.
    let large: Vec<SemId> = (0..).map_while(|_| make(&task, 32_000).ok()).collect();
    assert_eq!(large.len(), 31);
}

#[test]
fn sets_of_different_sizes_use_the_same_lines_in_turns() {
    let namespace = namespace(Capacity { sets: 512, sems: 256, tasks: 2, ..Capacity::LEAST });
    let task = namespace.register(Cred::root(), 1).expect("a free task");
    for _ in 0..3 {
        let counts = [1, 3, 100, 2, 33].map(|nsems| fill_and_drain(&task, nsems));
        assert_eq!(counts, [256, 64, 2, 128, 4]);
    }
}

/// A call with the id of a removed set must change no semaphore of a new set in the same memory.
#[test]
fn line_of_a_removed_set_serves_others_with_a_new_tag() {
    let seed = Seed::choose();
    let _report = ReportSeed::new(seed);
    let mut rng = Rng::new(seed);
    let namespace =
        namespace(Capacity { sets: 64, sems: 64, tasks: 2, undos: 256, ..Capacity::LEAST });
    let task = namespace.register(Cred::root(), 1).expect("a free task");
    let (mut sets, mut gone, mut refused) = (Vec::<(SemId, i32)>::new(), Vec::new(), 0);
    for _ in 0..20_000 {
        if rng.chance(1, 2) {
            let nsems = 1 + rng.below(20) as i32;
            let Ok(id) = make(&task, nsems) else {
                refused += 1;
                continue;
            };
            assert_eq!(task.sem_getall(id), Ok(vec![0; nsems as usize]));
            let last = SemBuf::new(nsems as u16 - 1, 1, SemFlags::UNDO);
            assert_eq!(task.semop(id, &[SemBuf::new(0, 1, SemFlags::empty()), last]), Ok(()));
            sets.push((id, nsems));
        } else if !sets.is_empty() {
            let (id, _) = sets.swap_remove(rng.index(sets.len()));
            assert_eq!(task.sem_rmid(id), Ok(()));
            gone.push(id);
        }
        for (id, nsems) in &sets {
            let mut values = vec![0; *nsems as usize];
            values[0] += 1;
            values[*nsems as usize - 1] += 1;
            assert_eq!(task.sem_getall(*id), Ok(values));
        }
    }
    assert!(refused > 100, "{refused}");
    let again = gone.iter().filter(|id| sets.iter().all(|(other, _)| other != *id));
    for id in again.take(1000) {
        assert_eq!(task.semop(*id, &[SemBuf::new(0, 1, SemFlags::empty())]), Err(Errno::INVAL));
    }
}

#[test]
fn many_tasks_undo_operations_on_a_large_set() {
    const TASKS: u32 = 200;
    let namespace = namespace(Capacity::default());
    let mut tasks: Vec<Task> = (1..=TASKS)
        .map(|pid| namespace.register(Cred::root(), pid).expect("there is room"))
        .collect();
    let id = make(&tasks[0], 32_000).expect("there is room");
    for task in &tasks {
        let both = [SemBuf::new(0, 1, SemFlags::UNDO), SemBuf::new(31_999, 1, SemFlags::UNDO)];
        assert_eq!(task.semop(id, &both), Ok(()));
    }
    let ends = |task: &Task| [0, 31_999].map(|num| task.sem_getval(id, num));
    assert_eq!(ends(&tasks[0]), [Ok(TASKS as i32); 2]);
    tasks.drain(1..).for_each(Task::exit);
    assert_eq!(ends(&tasks[0]), [Ok(1); 2]);
}

#[test]
fn undo_records_of_different_sizes_use_the_same_lines_in_turns() {
    let capacity = Capacity { sets: 64, sems: 4096, undos: 256, tasks: 300, ..Capacity::LEAST };
    let limits = Limits::default();
    let options = NamespaceOptions { capacity, limits, ..NamespaceOptions::default() };
    let namespace = Namespace::new(options).expect("valid options");
    let keeper = namespace.register(Cred::root(), 1).expect("a free task");
    let ids = [1, 100, 3, 30].map(|nsems| make(&keeper, nsems).expect("there is room"));
    for _ in 0..3 {
        let counts = ids.map(|id| {
            let tasks: Vec<Task> = (2..)
                .map_while(|pid| {
                    let task = namespace.register(Cred::root(), pid).expect("there is room");
                    let done = task.semop(id, &[SemBuf::new(0, 1, SemFlags::UNDO)]);
                    assert!(matches!(done, Ok(()) | Err(Errno::NOMEM)), "{done:?}");
                    done.is_ok().then_some(task)
                })
                .collect();
            assert_eq!(keeper.sem_getval(id, 0), Ok(tasks.len() as i32));
            tasks.len()
        });
        assert_eq!(counts, [128, 2, 64, 8]);
        assert!(ids.iter().all(|id| keeper.sem_getval(*id, 0) == Ok(0)));
    }
}
