//! One trait for the semaphore sets of the host kernel and of corewalk.
//!
//! The tables `semop-multi`, `ipc-users` and `wakeup` call all variants in the same way. The trait
//! is generic and the operations of a call are an array. So a call through the trait costs only a
//! copy of six bytes per operation.
//!
//! There are three variants:
//! - `linux`: semop(2) of the host kernel, through libc.
//! - `corewalk`: `corewalk-ipc`, in the memory of this process, or in a file that several processes
//!   map (`worker`).
//! - `preload`: processes that call semop(2) under the library of `corewalk ipc exec`, so corewalk
//!   answers.
//!
//! # Users
//! Each operation has a user number: the simulated process for which it is done. corewalk treats a
//! user as a process with its own undo records. The host kernel ignores the number, and treats this
//! process as one user.
//!
//! Source: semop(2).

mod load;

pub(crate) use load::Load;

use std::path::Path;

use anyhow::{Context as _, ensure};
use corewalk_base::primitives::thread;
use corewalk_base::sysv::{self, SemSet, Sop};
use corewalk_ipc::{
    Cred, GetFlags, IPC_PRIVATE, MsgId, Namespace, NamespaceOptions, SEMVMX, SemBuf, SemId, Task,
};

use crate::samples::Cell;

/// A variant with semaphore sets, numbered in the order in which they are made.
pub(crate) trait Sems: Sync {
    /// Returns the name of this variant in the result rows.
    fn variant(&self) -> &'static str;

    /// Returns the identifiers of the sets, with which another process can use them
    /// ([`Linux::join`], [`Ours::join`]).
    fn ids(&self) -> Vec<i32>;

    /// Makes a set of `count` semaphores, all zero.
    ///
    /// # Errors
    /// If there is no room for it.
    fn make(&mut self, count: u16) -> anyhow::Result<()>;

    /// Performs all operations of one call. Returns false if the call failed.
    fn op<const N: usize>(&self, user: usize, set: usize, sops: [SemBuf; N]) -> bool;

    /// Sets one semaphore, as `SETVAL` does; returns false if that failed.
    fn set_value(&self, user: usize, set: usize, num: u16, value: u16) -> bool;

    /// Returns the value of one semaphore, as `GETVAL` does.
    fn value(&self, user: usize, set: usize, num: u16) -> Option<u16>;

    /// Returns the values of a set.
    ///
    /// # Errors
    /// If the set is not there.
    fn values(&self, set: usize) -> anyhow::Result<Vec<u16>>;
}

/// The host kernel's.
#[derive(Default)]
pub(crate) struct Linux(Vec<(SemSet, u16)>);

/// corewalk's, in this process.
pub(crate) struct Ours {
    pub(crate) users: Vec<Task>,
    sets: Vec<SemId>,
    pub(crate) queues: Vec<MsgId>,
    /// The last field, so that it is dropped after the tasks.
    pub(crate) namespace: Namespace,
}

/// Runs `work` on a thread with its own IPC namespace, if the process may make one. The kernel
/// removes all sets in it when the process ends, even by a crash.
///
/// # Panics
/// If `work` does.
pub(crate) fn apart<R: Send>(work: impl FnOnce() -> R + Send) -> R {
    let inside = || {
        // Without the privilege for a new IPC namespace, the sets are made in that of this process.
        // There they would outlive the process, so each `SemSet` removes its set when it is
        // dropped.
        let _ = sysv::unshare_ipc();
        work()
    };
    let ended = thread::scope(|scope| scope.spawn(inside).join());
    ended.unwrap_or_else(|panic| std::panic::resume_unwind(panic))
}

/// Makes sets with these numbers of semaphores.
///
/// # Errors
/// If there is no room for them.
pub(crate) fn made<S: Sems>(mut sems: S, counts: &[u16]) -> anyhow::Result<S> {
    counts.iter().try_for_each(|count| sems.make(*count))?;
    Ok(sems)
}

/// Checks the value of each semaphore of a set. `right` returns the right value for a semaphore
/// number.
///
/// # Errors
/// The set does not exist, or a value differs from the one that `right` returns.
pub(crate) fn check<S: Sems>(
    sems: &S,
    set: usize,
    right: impl Fn(u16) -> u16,
) -> anyhow::Result<()> {
    let variant = sems.variant();
    for (num, value) in (0..).zip(sems.values(set)?) {
        let right = right(num);
        let what = format!("{variant}: semaphore {num} of set {set}");
        ensure!(value == right, "{what} is {value} and not {right}");
    }
    Ok(())
}

impl Linux {
    /// Returns semaphore sets that another process made. `sets` has the identifier and the number
    /// of semaphores of each.
    pub(crate) fn join(sets: &[(i32, u16)]) -> Linux {
        Linux(sets.iter().map(|(id, count)| (SemSet::attach(*id), *count)).collect())
    }
}

impl Sems for Linux {
    fn variant(&self) -> &'static str {
        "linux"
    }

    fn ids(&self) -> Vec<i32> {
        self.0.iter().map(|(set, _)| set.id()).collect()
    }

    fn make(&mut self, count: u16) -> anyhow::Result<()> {
        let set = SemSet::private(count).context("semget(2)")?;
        self.0.push((set, count));
        Ok(())
    }

    #[inline]
    fn op<const N: usize>(&self, _user: usize, set: usize, sops: [SemBuf; N]) -> bool {
        let raw = |sop: SemBuf| Sop { num: sop.sem_num, op: sop.sem_op, flags: sop.sem_flg.bits() };
        let sops = sops.map(raw);
        self.0[set].0.op(&sops).is_ok()
    }

    fn set_value(&self, _user: usize, set: usize, num: u16, value: u16) -> bool {
        self.0[set].0.set_value(num, value).is_ok()
    }

    fn value(&self, _user: usize, set: usize, num: u16) -> Option<u16> {
        self.0[set].0.value(num).ok()
    }

    fn values(&self, set: usize) -> anyhow::Result<Vec<u16>> {
        let (set, count) = &self.0[set];
        set.values(*count).context("semctl(2)")
    }
}

impl Ours {
    /// Returns an empty namespace with `users` users.
    ///
    /// # Errors
    /// If there is no memory for it.
    pub(crate) fn new(users: usize) -> anyhow::Result<Ours> {
        Ours::with(users, NamespaceOptions::default())
    }

    /// Returns an empty namespace with `users` users and these options.
    ///
    /// # Errors
    /// Those of [`Ours::new`].
    pub(crate) fn with(users: usize, options: NamespaceOptions) -> anyhow::Result<Ours> {
        let namespace = Namespace::new(options).context("a namespace")?;
        let register = |pid| namespace.register(Cred::user(1000, 1000), pid);
        let users = (1..=users as u32).map(register).collect::<Result<_, _>>()?;
        Ok(Ours { users, sets: vec![], queues: vec![], namespace })
    }

    /// Opens the namespace in `file`, or makes it, with this process as its only user.
    ///
    /// # Errors
    /// If it cannot be opened.
    pub(crate) fn open(file: &Path) -> anyhow::Result<Ours> {
        let (user, group) = (rustix::process::geteuid(), rustix::process::getegid());
        let namespace = Namespace::open(file, NamespaceOptions::default())
            .with_context(|| format!("a namespace in {}", file.display()))?;
        let cred = Cred::user(user.as_raw(), group.as_raw());
        let user = namespace.register(cred, std::process::id())?;
        Ok(Ours { users: vec![user], sets: vec![], queues: vec![], namespace })
    }

    /// Returns a new namespace for one time slice of round trips. It has two users and is in the
    /// memory of this process, or in `file` if the answering side is a process.
    ///
    /// # Errors
    /// Those of [`Ours::new`] and [`Ours::open`].
    pub(crate) fn for_slice(cell: &Cell, file: &Path) -> anyhow::Result<Ours> {
        if cell.word("workers") == "threads" {
            return Ours::new(2);
        }
        let _ = std::fs::remove_file(file);
        Ours::open(file)
    }

    /// Returns the namespace with semaphore sets that another process has made in it. `sets` has
    /// the identifier and the number of semaphores of each.
    pub(crate) fn join(self, sets: &[(i32, u16)]) -> Ours {
        Ours { sets: sets.iter().map(|(id, _)| SemId::from_raw(*id)).collect(), ..self }
    }
}

impl Sems for Ours {
    fn variant(&self) -> &'static str {
        "corewalk"
    }

    fn ids(&self) -> Vec<i32> {
        self.sets.iter().map(|id| id.raw()).collect()
    }

    fn make(&mut self, count: u16) -> anyhow::Result<()> {
        let id = self.users[0].semget(IPC_PRIVATE, i32::from(count), GetFlags::empty(), 0o600);
        self.sets.push(id.context("semget")?);
        Ok(())
    }

    #[inline]
    fn op<const N: usize>(&self, user: usize, set: usize, sops: [SemBuf; N]) -> bool {
        self.users[user].semop(self.sets[set], &sops).is_ok()
    }

    fn set_value(&self, user: usize, set: usize, num: u16, value: u16) -> bool {
        self.users[user].sem_setval(self.sets[set], num.into(), value.into()).is_ok()
    }

    fn value(&self, user: usize, set: usize, num: u16) -> Option<u16> {
        let value = self.users[user].sem_getval(self.sets[set], num.into()).ok()?;
        u16::try_from(value).ok().filter(|value| i32::from(*value) <= SEMVMX)
    }

    fn values(&self, set: usize) -> anyhow::Result<Vec<u16>> {
        self.users[0].sem_getall(self.sets[set]).context("GETALL")
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_ipc::SemFlags;

    const PLAIN: SemFlags = SemFlags::empty();

    /// Checks the answers of one variant.
    fn agree(mut sems: impl Sems) {
        let variant = sems.variant();
        for count in [2, 3] {
            sems.make(count).unwrap();
        }
        let sop = |num, op, flags| SemBuf::new(num, op, flags | SemFlags::NOWAIT);
        assert!(sems.op(0, 1, [sop(2, 4, PLAIN), sop(0, 1, SemFlags::UNDO)]), "{variant}");
        assert!(!sems.op(0, 1, [sop(2, 1, PLAIN), sop(1, -1, PLAIN)]), "{variant}: all or nothing");
        assert!(
            !sems.op(0, 1, [sop(0, -1, SemFlags::UNDO), sop(1, -1, SemFlags::UNDO)]),
            "{variant}"
        );
        assert!(
            sems.op(0, 1, [sop(2, -3, PLAIN)]) && !sems.op(0, 1, [sop(2, 0, PLAIN)]),
            "{variant}"
        );
        assert!(!sems.op(0, 1, [sop(3, 1, PLAIN)]), "{variant}: there are three");
        assert!(
            sems.op(0, 1, [sop(1, 0, PLAIN), sop(1, 2, PLAIN), sop(1, -1, PLAIN)]),
            "{variant}"
        );
        assert_eq!(sems.values(1).unwrap(), [1, 1, 1], "{variant}");
        assert!(sems.set_value(0, 0, 1, 7) && !sems.set_value(0, 0, 2, 7), "{variant}");
        assert_eq!((sems.value(0, 0, 1), sems.value(0, 0, 0)), (Some(7), Some(0)), "{variant}");
        assert!(!sems.op(0, 0, [sop(1, SEMVMX as i16, PLAIN)]), "{variant}: too much");
        assert!(check(&sems, 0, |num| 7 * num).is_ok(), "{variant}");
        let error = check(&sems, 0, |_| 7).unwrap_err().to_string();
        assert!(error.contains("semaphore 0 of set 0 is 0 and not 7"), "{error}");
    }

    #[test]
    fn all_variants_agree() {
        apart(|| agree(Linux::default()));
        agree(Ours::new(1).unwrap());
    }
}
