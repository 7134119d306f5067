//! The semaphore sets of Linux in user space, in two designs: before and after Bueso's patches of
//! March 2013 (document 002 in `documents.md`).
//!
//! The two designs differ in the lock of a set:
//! - `before-ipc-lock` (Linux 3.9-rc1): the lookup of a set takes its lock, under which the checks
//!   and the operations run.
//! - `before-ipc-rcu` (Bueso's patches): the lookup and the checks run in an RCU read section. Only
//!   the operations run under the lock of the set.
//!
//! Both designs look a set up by its index in an RCU read section, which lasts until the call ends,
//! as in the kernel. They check the index of the set, the numbers of the semaphores, and the
//! permission bits of the set against its owner, its creator and their groups.
//!
//! One lock covers a whole set: the kernel got a lock per semaphore only three months after Bueso's
//! patches of March 2013.
//!
//! # Undo
//! A user (a simulated process) has a list of the sets on which it has undo records
//! (`sem_undo_list`). A call with `SEM_UNDO` searches it under its own lock, before it takes the
//! lock of the set. The lock of the set protects the adjustments.
//!
//! # How fair they are
//! The two designs have no audit and no security module, which take time in Bueso's kernel
//! profiles, mostly where a lock is held. Their locks, those of `corewalk_base`, sleep when a wait
//! is long; the kernel's locks spin.
//!
//! Each call begins and ends an RCU read section. That costs about ten nanoseconds in this library,
//! and nearly nothing in a kernel.
//!
//! # Not implemented
//! A call that would have to wait fails, so no call has to wake another one. Sets cannot be
//! removed, and users (simulated processes) cannot end.
//!
//! # Locks and their order
//! 1. The list of a user's undo records.
//! 2. The lock of a set.
//!
//! Source: Bueso, March 2013, `PATCH v2 0/4` (document 002 in `documents.md`); Linux 3.9-rc1
//! `ipc/sem.c` and `ipc/util.c`.

use std::time::Instant;

use anyhow::Context as _;
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_base::{CachePadded, Mutex, MutexGuard};
use corewalk_ipc::{Perm, SEMAEM, SEMVMX, SemBuf, SemFlags};
use corewalk_sync::{RcuCell, rcu};
use rustix::time::{ClockId, clock_gettime};

use crate::sems::Sems;

/// Sets there can be.
const SETS_MAX: usize = 1024;
/// The bits of the mode that altering and reading ask for.
const WRITE: u16 = 0o222;
const READ: u16 = 0o444;
/// The user that everybody is.
const UID: u32 = 1000;

/// The two designs of semaphore sets, which do different work under the lock of a set.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Protocol {
    /// Linux 3.9-rc1, before Bueso's patches of March 2013: lookup, checks and operations under the
    /// lock of the set.
    IpcLock,
    /// Linux with Bueso's patches of March 2013: lookup and checks in an RCU read section, and only
    /// the operations under the lock of the set.
    IpcRcu,
}

/// All sets.
pub(crate) struct SemArrays {
    slots: Box<[RcuCell<Option<SemArray>>]>,
    made: usize,
    users: Vec<CachePadded<User>>,
    protocol: Protocol,
}

/// A set. Analogous to Linux's `struct sem_array`.
struct SemArray {
    perm: Perm,
    count: u16,
    locked: CachePadded<Mutex<Locked>>,
}

/// The state of a set, protected by its lock.
struct Locked {
    /// Value and last pid of each semaphore.
    sems: Vec<(i32, usize)>,
    /// Undo records: the adjustments of one user each.
    undos: Vec<Vec<i16>>,
    otime: i64,
}

/// A process.
#[derive(Default)]
struct User {
    /// The undo records of this user (a simulated process): the number of the set, and the index
    /// among all records of that set.
    undo_list: Mutex<Vec<(usize, usize)>>,
    /// Nanoseconds for which this simulated process waited for the locks of sets, and the number of
    /// these waits.
    waited_ns: AtomicU64,
    waits: AtomicU64,
}

impl SemArrays {
    /// Returns no sets, for so many users.
    pub(crate) fn new(protocol: Protocol, users: usize) -> SemArrays {
        SemArrays {
            slots: (0..SETS_MAX).map(|_| RcuCell::new(None)).collect(),
            made: 0,
            users: (0..users).map(|_| CachePadded::default()).collect(),
            protocol,
        }
    }

    /// Looks the set up, checks semaphore numbers and permission, and runs `act` under the lock of
    /// the set.
    #[inline]
    fn call<R>(
        &self,
        user: usize,
        set: usize,
        num_max: u16,
        bits: u16,
        act: impl FnOnce(&mut Locked) -> Option<R>,
    ) -> Option<R> {
        let section = rcu::read_lock();
        let array = self.slots.get(set)?.read(&section).as_ref()?;
        let is_rcu = self.protocol == Protocol::IpcRcu;
        if is_rcu && !array.check(num_max, bits) {
            return None;
        }
        let mut locked = self.lock(user, array);
        if !is_rcu && !array.check(num_max, bits) {
            return None;
        }
        act(&mut locked)
    }

    #[inline]
    fn lock<'s>(&self, user: usize, array: &'s SemArray) -> MutexGuard<'s, Locked> {
        array.locked.try_lock().unwrap_or_else(|| self.lock_slow(user, array))
    }

    #[cold]
    fn lock_slow<'s>(&self, user: usize, array: &'s SemArray) -> MutexGuard<'s, Locked> {
        let start = Instant::now();
        let locked = array.locked.lock();
        let user = &self.users[user];
        // ORDERING: Relaxed. Statistics.
        user.waited_ns.fetch_add(start.elapsed().as_nanos() as u64, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        user.waits.fetch_add(1, Ordering::Relaxed);
        locked
    }

    /// Returns the index of the undo record of `user` (a simulated process) among those of a set.
    /// Makes it if it is missing.
    #[doc(alias = "find_alloc_undo")]
    fn find_undo(&self, user: usize, set: usize) -> Option<usize> {
        let mut list = self.users[user].undo_list.lock();
        if let Some((_, record)) = list.iter().find(|(other, _)| *other == set) {
            return Some(*record);
        }
        let section = rcu::read_lock();
        let array = self.slots.get(set)?.read(&section).as_ref()?;
        let mut locked = self.lock(user, array);
        let cells = vec![0; usize::from(array.count)];
        locked.undos.push(cells);
        list.push((set, locked.undos.len() - 1));
        Some(locked.undos.len() - 1)
    }
}

impl SemArray {
    #[inline]
    fn check(&self, num_max: u16, bits: u16) -> bool {
        let perm = &self.perm;
        let granted = if UID == perm.cuid || UID == perm.uid {
            perm.mode >> 6
        } else if UID == perm.cgid || UID == perm.gid {
            perm.mode >> 3
        } else {
            perm.mode
        };
        let requested = (bits >> 6) | (bits >> 3) | bits;
        num_max < self.count && requested & !granted & 0o7 == 0
    }
}

impl Locked {
    /// Carries out all operations of a call, or none of them: if one is not possible, takes back
    /// the operations before it.
    #[doc(alias = "try_atomic_semop")]
    #[inline]
    fn act(&mut self, user: usize, sops: &[SemBuf], undo: Option<usize>) -> Option<()> {
        for (done, sop) in sops.iter().enumerate() {
            if self.step(*sop, undo).is_none() {
                for sop in sops[..done].iter().rev() {
                    self.add(*sop, -1, undo);
                }
                return None;
            }
        }
        for sop in sops {
            self.sems[usize::from(sop.sem_num)].1 = user;
        }
        self.otime = clock_gettime(ClockId::RealtimeCoarse).tv_sec;
        Some(())
    }

    /// Carries out one operation, if that is possible.
    #[inline]
    fn step(&mut self, sop: SemBuf, undo: Option<usize>) -> Option<()> {
        let value = self.sems[usize::from(sop.sem_num)].0;
        let result = value + i32::from(sop.sem_op);
        if !(0..=SEMVMX).contains(&result) || (sop.sem_op == 0 && value != 0) {
            return None;
        }
        if let (true, Some(undo)) = (sop.sem_flg.contains(SemFlags::UNDO), undo) {
            let adj = i32::from(self.undos[undo][usize::from(sop.sem_num)]) - i32::from(sop.sem_op);
            if !(-SEMAEM - 1..=SEMAEM).contains(&adj) {
                return None;
            }
        }
        self.add(sop, 1, undo);
        Some(())
    }

    /// Adds an operation to value and adjustment, or takes it back.
    #[inline]
    fn add(&mut self, sop: SemBuf, sign: i16, undo: Option<usize>) {
        let num = usize::from(sop.sem_num);
        self.sems[num].0 += i32::from(sign * sop.sem_op);
        if let (true, Some(undo)) = (sop.sem_flg.contains(SemFlags::UNDO), undo) {
            self.undos[undo][num] -= sign * sop.sem_op;
        }
    }
}

impl Sems for SemArrays {
    fn variant(&self) -> &'static str {
        match self.protocol {
            Protocol::IpcLock => "before-ipc-lock",
            Protocol::IpcRcu => "before-ipc-rcu",
        }
    }

    fn waited(&self) -> Option<(u64, u64)> {
        // ORDERING: Relaxed. Statistics, read when no worker runs.
        let get = |count: &AtomicU64| count.load(Ordering::Relaxed);
        let add = |(ns, waits), user: &User| (ns + get(&user.waited_ns), waits + get(&user.waits));
        Some(self.users.iter().fold((0, 0), |sum, user| add(sum, user)))
    }

    fn make(&mut self, count: u16) -> anyhow::Result<()> {
        let perm =
            Perm { uid: UID, gid: UID, cuid: UID, cgid: UID, mode: 0o600, ..Perm::default() };
        let sems = vec![(0, 0); usize::from(count)];
        let locked = Locked { sems, undos: vec![], otime: 0 };
        let array = SemArray { perm, count, locked: CachePadded::new(Mutex::new(locked)) };
        self.slots.get(self.made).context("no slot is free")?.replace(Some(array));
        self.made += 1;
        Ok(())
    }

    #[inline]
    fn op<const N: usize>(&self, user: usize, set: usize, sops: [SemBuf; N]) -> bool {
        let num_max = sops.iter().map(|sop| sop.sem_num).max().unwrap_or(0);
        let is_alter = sops.iter().any(|sop| sop.sem_op != 0);
        let has_undo = sops.iter().any(|sop| sop.sem_flg.contains(SemFlags::UNDO));
        let undo = if has_undo { self.find_undo(user, set) } else { None };
        let bits = if is_alter { WRITE } else { READ };
        self.call(user, set, num_max, bits, |locked| locked.act(user, &sops, undo)).is_some()
    }

    fn set_value(&self, user: usize, set: usize, num: u16, value: u16) -> bool {
        let done = self.call(user, set, num, WRITE, |locked| {
            locked.undos.iter_mut().for_each(|undo| undo[usize::from(num)] = 0);
            locked.sems[usize::from(num)] = (i32::from(value), user);
            Some(())
        });
        done.is_some()
    }

    fn value(&self, user: usize, set: usize, num: u16) -> Option<u16> {
        let value = self.call(user, set, num, READ, |locked| Some(locked.sems[usize::from(num)].0));
        value.and_then(|value| u16::try_from(value).ok())
    }

    fn values(&self, set: usize) -> anyhow::Result<Vec<u16>> {
        let all = |locked: &mut Locked| {
            locked.sems.iter().map(|(value, _)| u16::try_from(*value).ok()).collect()
        };
        self.call(0, set, 0, READ, all).context("GETALL")
    }
}
