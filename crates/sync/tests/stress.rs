//! Stress tests without a model checker: many threads sleep on locks and reuse slots. A seed
//! determines the random choices.
//!
//! Each test ends after a number of steps, and its assertions print the seed. `COREWALK_SEED` sets
//! another seed: `COREWALK_SEED=7 cargo test -p corewalk-sync --test stress`.
#![cfg(not(any(corewalk_loom, corewalk_shuttle)))]

use corewalk_base::primitives::{
    Arc,
    atomic::{AtomicBool, AtomicU64, Ordering},
    hint, thread,
};
use corewalk_sync::{Lockref, Pass, SeqCount, SeqLock, SeqRwLock, SlotArena};
use std::sync::Barrier;

const THREADS: u64 = 4;
const ROUNDS: u64 = if cfg!(miri) { 40 } else { 200_000 };

/// Minimum number of steps that readers must make while writers run, and writers while readers run.
const PROGRESS: u64 = if cfg!(miri) { 3 } else { 1_000 };

/// The seed of this run.
fn seed() -> u64 {
    let chosen = std::env::var("COREWALK_SEED").ok().and_then(|text| text.parse().ok());
    chosen.unwrap_or(0x5eed_c0de)
}

/// A stream of numbers after Marsaglia's xorshift64.
struct Random(u64);

impl Random {
    fn new(seed: u64, stream: u64) -> Self {
        Self((seed ^ stream.wrapping_mul(0x9e37_79b9_7f4a_7c15)) | 1)
    }

    fn below(&mut self, end: u64) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0 % end
    }
}

/// Runs `work` on `THREADS` threads, which start at the same time. Panics if one of them panics.
fn on_threads(work: impl Fn(u64, Random) + Send + Sync + 'static) {
    let work = Arc::new((work, Barrier::new(usize::try_from(THREADS).unwrap())));
    let threads: Vec<_> = (0..THREADS)
        .map(|me| {
            let work = Arc::clone(&work);
            thread::spawn(move || {
                work.1.wait();
                (work.0)(me, Random::new(seed(), me + 1));
            })
        })
        .collect();
    for thread in threads {
        if let Err(panic) = thread.join() {
            std::panic::resume_unwind(panic);
        }
    }
}

/// Objects with a lockref, in slots that are freed and reused.
///
/// The words of a slot are its lockref, a generation and a value that is a function of the
/// generation.
struct Objects {
    arena: SlotArena<8>,
    /// (generation << 32 | index) of a living object, or 0.
    table: Vec<AtomicU64>,
}

const LOCKREF: usize = 0;
const GENERATION: usize = 1;
const VALUE: usize = 2;

impl Objects {
    fn new() -> Self {
        let arena = SlotArena::new("stress", 64).unwrap();
        for index in 0..64 {
            Lockref::from_word(&arena.get(index)[LOCKREF]).lock().mark_dead();
        }
        Self { arena, table: (0..8).map(|_| AtomicU64::new(0)).collect() }
    }

    fn lockref(&self, index: u32) -> &Lockref {
        Lockref::from_word(&self.arena.get(index)[LOCKREF])
    }

    fn word(&self, index: u32, at: usize) -> u64 {
        // ORDERING: Relaxed. This thread has taken a reference to the object, which orders the
        // load.
        self.arena.get(index)[at].load(Ordering::Relaxed)
    }

    fn set(&self, index: u32, at: usize, value: u64) {
        // ORDERING: Relaxed. The revival of the lockref publishes this store.
        self.arena.get(index)[at].store(value, Ordering::Relaxed);
    }

    fn value_of(generation: u64) -> u64 {
        generation.wrapping_mul(0x9e37_79b9)
    }

    /// Makes an object and stores it in `self.table[place]`. If that entry has another object,
    /// marks the new object dead and frees its slot.
    fn create(&self, place: usize) {
        let Some(index) = self.arena.alloc() else { return };
        let generation = (self.word(index, GENERATION) + 1) & u64::from(u32::MAX);
        self.set(index, GENERATION, generation);
        self.set(index, VALUE, Self::value_of(generation));
        self.lockref(index).lock().revive();
        let entry = generation << 32 | u64::from(index);
        // ORDERING: Relaxed. A thread that finds the entry takes a reference, which orders its
        // reads of the object.
        let placed =
            self.table[place].compare_exchange(0, entry, Ordering::Relaxed, Ordering::Relaxed);
        if placed.is_err() {
            self.kill(index);
        }
    }

    fn remove(&self, place: usize) {
        // ORDERING: Relaxed. The lockref orders the accesses to the object.
        let entry = self.table[place].swap(0, Ordering::Relaxed);
        if entry != 0 {
            let index = u32::try_from(entry & u64::from(u32::MAX)).unwrap();
            self.kill(index);
        }
    }

    /// Waits until the object has no references, marks it dead, and frees its slot. The caller has
    /// removed the object from `self.table`.
    fn kill(&self, index: u32) {
        loop {
            let mut guard = self.lockref(index).lock();
            if guard.count() == 0 {
                guard.mark_dead();
                self.set(index, VALUE, u64::MAX);
                break;
            }
            drop(guard);
            thread::yield_now();
        }
        self.arena.free(index);
    }

    fn use_one(&self, place: usize) -> bool {
        // ORDERING: Relaxed. The lockref orders the accesses to the object.
        let entry = self.table[place].load(Ordering::Relaxed);
        let index = u32::try_from(entry & u64::from(u32::MAX)).unwrap();
        if entry == 0 || !self.lockref(index).get_not_dead() {
            return false;
        }
        let is_same = self.word(index, GENERATION) == entry >> 32;
        if is_same {
            let value = self.word(index, VALUE);
            assert_eq!(value, Self::value_of(entry >> 32), "seed {}", seed());
        }
        self.lockref(index).put_return();
        is_same
    }
}

/// A thread must get no reference to a dead object, although slots are freed and reused. Traps T7
/// and T18 in `traps.md`.
#[test]
fn lockref_in_reused_slots_never_counts_the_dead() {
    let objects = Arc::new(Objects::new());
    let used = Arc::new(AtomicU64::new(0));
    on_threads({
        let (objects, used) = (Arc::clone(&objects), Arc::clone(&used));
        move |_, mut random| {
            for _ in 0..ROUNDS {
                let place = usize::try_from(random.below(8)).unwrap();
                match random.below(4) {
                    0 => objects.create(place),
                    1 => objects.remove(place),
                    _ if objects.use_one(place) => {
                        // ORDERING: Relaxed. A count, read after the join.
                        used.fetch_add(1, Ordering::Relaxed);
                    }
                    _ => {}
                }
            }
        }
    });
    (0..8).for_each(|place| objects.remove(place));
    assert_eq!(objects.arena.in_use(), 0, "seed {}", seed());
    // ORDERING: Relaxed. Every thread has been joined.
    assert!(used.load(Ordering::Relaxed) > 0, "nothing was used; seed {}", seed());
}

#[test]
fn lockref_locked_and_counted_by_many_keeps_the_sum() {
    let lockref = Arc::new(Lockref::new(1));
    on_threads({
        let lockref = Arc::clone(&lockref);
        move |_, mut random| {
            for _ in 0..ROUNDS {
                match random.below(4) {
                    0 => {
                        let mut guard = lockref.lock();
                        let before = guard.count();
                        guard.add(3);
                        guard.sub(2);
                        assert_eq!(guard.count(), before + 1, "A.1; seed {}", seed());
                    }
                    1 => lockref.get(),
                    2 => lockref.get_many(1),
                    _ => assert!(lockref.get_not_dead(), "seed {}", seed()),
                }
                assert!(lockref.put_or_lock().is_none(), "one is left; seed {}", seed());
            }
        }
    });
    assert_eq!(lockref.count(), 1, "seed {}", seed());
    assert!(!lockref.is_locked());
}

/// One thread takes the lock of a lockref for short times, and the other threads, the users, only
/// take and drop references. After the lock holder has ended, no user may find the lock held. Trap
/// T52 in `traps.md`.
#[test]
fn transient_locker_leaves_users_lock_free() {
    /// How often the main thread takes the lock. Few times suffice: it yields while it holds the
    /// lock, and each yield may cost a time slice.
    const LOCKS: u64 = if cfg!(miri) { 5 } else { 100 };
    let lockref = Arc::new(Lockref::new(1));
    let has_gone = Arc::new(AtomicBool::new(false));
    let users: Vec<_> = (0..2)
        .map(|_| {
            let (lockref, has_gone) = (Arc::clone(&lockref), Arc::clone(&has_gone));
            thread::spawn(move || {
                let (mut rounds, mut met) = (0, 0);
                while rounds < ROUNDS {
                    lockref.get();
                    // ORDERING: Relaxed. The flag orders no other access, so this thread may still
                    // see the lock held for some rounds. The test ignores the first tenth of the
                    // rounds.
                    if has_gone.load(Ordering::Relaxed) {
                        rounds += 1;
                        met += u64::from(rounds > ROUNDS / 10 && lockref.is_locked());
                    }
                    lockref.put_return();
                }
                met
            })
        })
        .collect();
    for _ in 0..LOCKS {
        let guard = lockref.lock();
        thread::yield_now();
        drop(guard);
    }
    // ORDERING: Relaxed. The flag only tells the other threads when to begin to count.
    has_gone.store(true, Ordering::Relaxed);
    let met: u64 = users.into_iter().map(|user| user.join().unwrap()).sum();
    assert!(met <= ROUNDS / 100, "A.4: the lock was held {met} times; seed {}", seed());
}

/// Words that a writer keeps equal.
struct Words {
    words: [AtomicU64; 6],
}

impl Words {
    fn new() -> Self {
        Self { words: std::array::from_fn(|_| AtomicU64::new(0)) }
    }

    fn store(&self, value: u64) {
        for word in &self.words {
            // ORDERING: Relaxed. Words of a section.
            word.store(value, Ordering::Relaxed);
        }
    }

    fn load(&self) -> [u64; 6] {
        // ORDERING: Relaxed. Words of a section.
        std::array::from_fn(|at| self.words[at].load(Ordering::Relaxed))
    }
}

fn assert_whole(words: [u64; 6]) {
    assert!(words.iter().all(|word| *word == words[0]), "torn {words:?}; seed {}", seed());
}

/// The words that a sequence count protects are atomics, so Miri and ThreadSanitizer find no race.
/// Trap T31 in `traps.md`.
///
/// Each reader repeats its read section until it has seen the words that the writer stores change
/// `PROGRESS` times.
#[test]
fn seqcount_readers_beside_a_writer_see_whole_sections() {
    let shared = Arc::new((SeqCount::new(), Words::new(), AtomicU64::new(THREADS - 1)));
    on_threads(move |me, mut random| {
        let (seq, words, readers) = &*shared;
        if me == 0 {
            // ORDERING: Relaxed. The count only tells the writer when to stop.
            while readers.load(Ordering::Relaxed) > 0 {
                let section = seq.write();
                words.store(words.load()[0] + 1);
                drop(section);
                // Pause, so that the writer does not disturb every read section.
                (0..random.below(100)).for_each(|_| hint::spin_loop());
            }
            return;
        }
        let (mut value, mut changes) = (0, 0);
        while changes < PROGRESS {
            let start = seq.read_begin();
            let seen = words.load();
            if !seq.read_retry(start) {
                assert_whole(seen);
                changes += u64::from(seen[0] != value);
                value = seen[0];
            }
        }
        // ORDERING: Relaxed. The count only tells the writer when to stop.
        readers.fetch_sub(1, Ordering::Relaxed);
    });
}

/// A reader must neither retry for ever nor race with the writer's stores. Traps T29 and T31 in
/// `traps.md`.
#[test]
fn seqlock_under_writers_gives_whole_sections_in_bounded_passes() {
    let shared = Arc::new((SeqLock::new(), Words::new()));
    on_threads(move |_, mut random| {
        for round in 0..ROUNDS {
            match random.below(3) {
                0 => {
                    let _section = shared.0.write();
                    shared.1.store(round);
                }
                1 => {
                    let _locked = shared.0.read_excl();
                    assert_whole(shared.1.load());
                }
                _ => {
                    let mut passes = 0;
                    assert_whole(shared.0.read_or_lock(|_| {
                        passes += 1;
                        shared.1.load()
                    }));
                    assert!(passes <= 4, "{passes} passes; seed {}", seed());
                }
            }
        }
    });
}

/// A reader must neither retry for ever nor race with the writer's stores. Traps T29 and T31 in
/// `traps.md`.
#[test]
fn seqrwlock_under_writers_gives_whole_sections_in_bounded_passes() {
    let shared = Arc::new((SeqRwLock::new(), Words::new()));
    on_threads(move |_, mut random| {
        for round in 0..ROUNDS {
            match random.below(3) {
                0 => {
                    let _section = shared.0.write();
                    shared.1.store(round);
                }
                1 => {
                    let _shared = shared.0.read_shared();
                    assert_whole(shared.1.load());
                }
                _ => {
                    let mut last = Pass::Optimistic;
                    assert_whole(shared.0.read_or_lock(|pass| {
                        assert!(!last.is_locked(), "a pass after the last; seed {}", seed());
                        last = pass;
                        shared.1.load()
                    }));
                }
            }
        }
    });
}

/// Runs `mine` on this thread and `theirs` on three other threads, until each thread has made
/// `PROGRESS` rounds. If a thread starves, the test hangs.
fn both_progress(
    lock: &Arc<(SeqRwLock, Words)>,
    mine: fn(&SeqRwLock, &Words),
    theirs: fn(&SeqRwLock, &Words),
) {
    let runs = Arc::new([const { AtomicU64::new(0) }; 3]);
    let is_done = Arc::new(AtomicBool::new(false));
    let threads: Vec<_> = (0..3)
        .map(|me: usize| {
            let (lock, runs, is_done) = (Arc::clone(lock), Arc::clone(&runs), Arc::clone(&is_done));
            thread::spawn(move || {
                // ORDERING: Relaxed. The flag only tells the threads when to stop.
                while !is_done.load(Ordering::Relaxed) {
                    theirs(&lock.0, &lock.1);
                    // ORDERING: Relaxed. A count.
                    runs[me].fetch_add(1, Ordering::Relaxed);
                }
            })
        })
        .collect();
    // ORDERING: Relaxed. A count.
    let fewest = || runs.iter().map(|count| count.load(Ordering::Relaxed)).min().unwrap();
    while fewest() == 0 {
        thread::yield_now();
    }
    let (start, mut done) = (fewest(), 0);
    while done < PROGRESS || fewest() - start < PROGRESS {
        mine(&lock.0, &lock.1);
        done += 1;
    }
    // ORDERING: Relaxed. The flag only tells the threads when to stop.
    is_done.store(true, Ordering::Relaxed);
    threads.into_iter().for_each(|thread| thread.join().unwrap());
}

#[test]
fn seqrwlock_writer_and_a_stream_of_shared_readers_both_progress() {
    let lock = Arc::new((SeqRwLock::new(), Words::new()));
    let write = |lock: &SeqRwLock, words: &Words| {
        let _section = lock.write();
        words.store(words.load()[0] + 1);
    };
    both_progress(&lock, write, |lock, words| {
        let _shared = lock.read_shared();
        assert_whole(words.load());
    });
}

#[test]
fn seqrwlock_reader_and_a_stream_of_writers_both_progress() {
    let lock = Arc::new((SeqRwLock::new(), Words::new()));
    let read = |lock: &SeqRwLock, words: &Words| {
        drop(lock.read_shared());
        assert_whole(lock.read_or_lock(|_| words.load()));
    };
    both_progress(&lock, read, |lock, words| {
        let _section = lock.write();
        words.store(words.load()[0] + 1);
    });
}

#[test]
fn arena_slots_under_churn_have_one_owner() {
    let arena: Arc<SlotArena<2>> = Arc::new(SlotArena::new("churn", 200).unwrap());
    on_threads({
        let arena = Arc::clone(&arena);
        move |me, mut random| {
            let mut owned = Vec::new();
            for _ in 0..ROUNDS {
                if random.below(2) == 0 {
                    let Some(slot) = arena.alloc() else { continue };
                    // ORDERING: Relaxed. Only this thread owns the slot.
                    arena.get(slot)[0].store(me, Ordering::Relaxed);
                    owned.push(slot);
                } else if !owned.is_empty() {
                    let at = random.below(owned.len() as u64);
                    let slot = owned.swap_remove(usize::try_from(at).unwrap());
                    // ORDERING: Relaxed. As above.
                    let owner = arena.get(slot)[0].load(Ordering::Relaxed);
                    assert_eq!(owner, me, "two owners; seed {}", seed());
                    arena.free(slot);
                }
            }
            owned.into_iter().for_each(|slot| arena.free(slot));
        }
    });
    assert_eq!(arena.in_use(), 0, "seed {}", seed());
}
