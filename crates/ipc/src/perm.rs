//! Permissions: credentials, permission bits, capabilities, and the hook of a security module.
//!
//! The rules are those of Linux's `ipcperms`. For the owner or the creator, the owner's bits of the
//! mode apply. Otherwise, if one of the caller's groups is that of the owner or the creator, the
//! group's bits apply. Otherwise the other bits apply. `CAP_IPC_OWNER` overrides all bits.
//! `IPC_SET` and `IPC_RMID` require the owner, the creator or `CAP_SYS_ADMIN` instead.
//!
//! A permission check takes no lock, and works on a consistent copy of the object's permissions.
//!
//! Linux keeps credentials for each thread. In this crate they belong to a task, which may have
//! several threads. A thread can replace them by its own. A flag of the task says whether any
//! thread has done so; other threads read only this flag.
//!
//! Source: svipc(7); capabilities(7); Linux `ipc/util.c`.

use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_base::primitives::unmodelled;
use corewalk_sync::{RcuCell, rcu};
use rustix::io::Errno;
use std::cell::RefCell;

use crate::field::{high, low, pair};
use crate::flags::{GetFlags, MsgFlags, ShmFlags};

/// Permits `SHM_LOCK` and `SHM_UNLOCK` of other users' segments.
pub const CAP_IPC_LOCK: u64 = 1 << 14;

/// Overrides the permission bits of IPC objects.
pub const CAP_IPC_OWNER: u64 = 1 << 15;

/// Permits `IPC_SET` and `IPC_RMID` of other users' objects.
pub const CAP_SYS_ADMIN: u64 = 1 << 21;

/// Permits raising `msg_qbytes` above the limit.
pub const CAP_SYS_RESOURCE: u64 = 1 << 24;

/// The mode bits that a change needs.
pub(crate) const WRITE: u32 = 0o222;
/// The mode bits that a query needs.
pub(crate) const READ: u32 = 0o444;

/// The ids, groups and capabilities of a task.
///
/// # Examples
///
/// ```
/// use corewalk_ipc::{CAP_IPC_OWNER, Cred};
///
/// let root = Cred::root();
/// let nobody = Cred::user(65534, 65534);
/// assert_ne!(root.caps & CAP_IPC_OWNER, 0);
/// assert_eq!(nobody.caps, 0);
/// ```
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cred {
    /// The effective user.
    pub euid: u32,
    /// The effective group.
    pub egid: u32,
    /// The supplementary groups.
    pub groups: Vec<u32>,
    /// The effective capabilities, as in capabilities(7): bit `n` for capability `n`.
    pub caps: u64,
}

impl Cred {
    /// Returns user and group 0 with all capabilities.
    #[must_use]
    pub fn root() -> Self {
        Self { caps: u64::MAX, ..Self::default() }
    }

    /// Returns a user without supplementary groups and capabilities.
    #[must_use]
    pub fn user(euid: u32, egid: u32) -> Self {
        Self { euid, egid, ..Self::default() }
    }
}

/// Permissions of an object. Analogous to Linux's `struct kern_ipc_perm`.
#[doc(alias = "ipc_perm")]
#[doc(alias = "kern_ipc_perm")]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Perm {
    /// The key, or 0 (`IPC_PRIVATE`).
    pub key: i32,
    /// The owner.
    pub uid: u32,
    /// The owner's group.
    pub gid: u32,
    /// The creator.
    pub cuid: u32,
    /// The creator's group.
    pub cgid: u32,
    /// The nine permission bits, and flags above them that depend on the kind of the object.
    pub mode: u16,
    /// The generation of the slot. An id consists of this generation and the index of the slot.
    pub seq: u16,
}

/// The hooks of a security module. Each hook may refuse a call with an error of its choice.
///
/// Each hook is called where Linux calls the same hook:
/// - Most hooks run without a lock, after the permission bits have granted the operation.
/// - The hooks of `semget`, `msgget` and `shmget` run under the lock of the object kind. So do the
///   hooks of semctl, msgctl and shmctl for `IPC_SET` and `IPC_RMID`.
///
/// Analogous to `security_ipc_permission`, `security_sem_semop`, `security_sem_semctl`,
/// `security_sem_associate` and `security_sem_alloc`.
///
/// # Examples
/// ```
/// use corewalk_ipc::{Cred, Errno, Perm, SecurityHook};
///
/// /// Only its creator may use an object.
/// struct Private;
///
/// impl SecurityHook for Private {
///     fn permission(&self, cred: &Cred, perm: &Perm, _: u32) -> Result<(), Errno> {
///         if cred.euid == perm.cuid { Ok(()) } else { Err(Errno::ACCESS) }
///     }
/// }
///
/// let perm = Perm { cuid: 7, ..Perm::default() };
/// assert_eq!(Private.permission(&Cred::user(7, 7), &perm, 0), Ok(()));
/// assert_eq!(Private.permission(&Cred::root(), &perm, 0), Err(Errno::ACCESS));
/// ```
#[expect(unused_variables, reason = "a default allows all")]
pub trait SecurityHook: Send + Sync {
    /// Permits or refuses an access, at every permission check. `flag` contains the requested bits.
    ///
    /// # Errors
    ///
    /// The error that the call then returns. Linux returns `EACCES`.
    fn permission(&self, cred: &Cred, perm: &Perm, flag: u32) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses a semop(2). `is_alter` is false if all operations wait for zero, and true
    /// otherwise.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn sem_semop(&self, cred: &Cred, perm: &Perm, is_alter: bool) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses the semctl(2) command with the number `cmd`. `perm` is none for commands
    /// without an object, such as `IPC_INFO`.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn sem_semctl(&self, cred: &Cred, perm: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses a msgsnd(2). Called again each time a waiting sender checks its
    /// permission again. Analogous to `security_msg_queue_msgsnd`.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn msg_msgsnd(&self, cred: &Cred, perm: &Perm, msgflg: MsgFlags) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses a msgrcv(2). Called again each time a waiting receiver checks its
    /// permission again. Linux calls `security_msg_queue_msgrcv` for each message that a receiver
    /// considers.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn msg_msgrcv(&self, cred: &Cred, perm: &Perm, msgtyp: i64) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses the msgctl(2) command with the number `cmd`. `perm` is none for commands
    /// without an object, such as `IPC_INFO`.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn msg_msgctl(&self, cred: &Cred, perm: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses a shmat(2).
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn shm_shmat(&self, cred: &Cred, perm: &Perm, shmflg: ShmFlags) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses the shmctl(2) command with the number `cmd`. `perm` is none for commands
    /// without an object, such as `IPC_INFO`.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn shm_shmctl(&self, cred: &Cred, perm: Option<&Perm>, cmd: i32) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses a `*get` call that is about to return an existing object. `mode` contains
    /// the permissions that the call requests.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn associate(&self, cred: &Cred, perm: &Perm, flags: GetFlags, mode: u16) -> Result<(), Errno> {
        Ok(())
    }

    /// Permits or refuses the creation of an object.
    ///
    /// # Errors
    ///
    /// The error that the call then returns.
    fn alloc(&self, cred: &Cred, perm: &Perm) -> Result<(), Errno> {
        Ok(())
    }
}

thread_local! {
    /// This thread's own credentials, and the number of the `CredCell` whose credentials they
    /// replace.
    static OWN: RefCell<Option<(u64, Cred)>> = const { RefCell::new(None) };
}

/// The credentials of a task, readable without a lock.
#[derive(Debug)]
pub(crate) struct CredCell {
    /// Identifies the cell. An address would not do, since the cell can be moved.
    number: u64,
    /// Whether any thread has set credentials for itself. Relaxed accesses are enough: a thread
    /// with its own credentials has stored `true` itself. Another thread may read either value,
    /// since it finds no credentials of its own.
    has_own: unmodelled::AtomicBool,
    /// The effective user and group.
    ids: AtomicU64,
    caps: AtomicU64,
    /// The complete credentials, for hooks and group checks. A hook must not run in an RCU
    /// read-side critical section, so each call copies the credentials for the hook.
    whole: RcuCell<Cred>,
    /// Serializes changes: each stores all three fields.
    changes: Mutex<()>,
}

impl CredCell {
    pub(crate) fn new(cred: Cred) -> Self {
        static LAST: unmodelled::AtomicU64 = unmodelled::AtomicU64::new(0);
        Self {
            // ORDERING: Relaxed. The atomic addition makes the cell's number unique. It publishes
            // no data.
            number: LAST.fetch_add(1, unmodelled::Ordering::Relaxed),
            has_own: unmodelled::AtomicBool::new(false),
            ids: AtomicU64::new(pair(cred.euid, cred.egid)),
            caps: AtomicU64::new(cred.caps),
            whole: RcuCell::new(cred),
            changes: Mutex::new(()),
        }
    }

    pub(crate) fn set(&self, cred: Cred) {
        let _change = self.changes.lock();
        // ORDERING: Relaxed. A concurrent call may see the old or the new value of each word.
        self.ids.store(pair(cred.euid, cred.egid), Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        self.caps.store(cred.caps, Ordering::Relaxed);
        self.whole.replace(cred);
    }

    /// Gives the calling thread its own credentials.
    pub(crate) fn set_own(&self, cred: Cred) {
        // ORDERING: Relaxed. See `has_own`.
        self.has_own.store(true, unmodelled::Ordering::Relaxed);
        // The old credentials are dropped outside of the closure, because their drop runs code that
        // may borrow `OWN`. `set_own` changes nothing if it is called in a signal handler that has
        // interrupted a borrow, or at the end of the thread.
        let _before = OWN.try_with(|own| {
            let mut own = own.try_borrow_mut().ok()?;
            own.replace((self.number, cred))
        });
    }

    #[inline]
    fn of_own<T>(&self, of: impl FnOnce(&Cred) -> T) -> Option<T> {
        // ORDERING: Relaxed. See `has_own`.
        if !self.has_own.load(unmodelled::Ordering::Relaxed) {
            return None;
        }
        self.of_own_slow(of)
    }

    #[cold]
    fn of_own_slow<T>(&self, of: impl FnOnce(&Cred) -> T) -> Option<T> {
        let found = OWN.try_with(|own| {
            let own = own.try_borrow().ok()?;
            own.as_ref().filter(|own| own.0 == self.number).map(|own| of(&own.1))
        });
        found.ok().flatten()
    }

    /// Returns a copy of the credentials that apply to the calling thread. Takes no lock, and
    /// writes no shared memory.
    pub(crate) fn whole(&self) -> Cred {
        self.of_own(Cred::clone).unwrap_or_else(|| self.whole.read(&rcu::read_lock()).clone())
    }

    /// Returns the effective user and group.
    #[inline]
    pub(crate) fn ids(&self) -> (u32, u32) {
        // ORDERING: Relaxed. See `set`.
        let ids = || self.ids.load(Ordering::Relaxed);
        let ids = self.of_own(|own| pair(own.euid, own.egid)).unwrap_or_else(ids);
        (low(ids), high(ids))
    }

    #[inline]
    pub(crate) fn is_capable(&self, cap: u64) -> bool {
        // ORDERING: Relaxed. See `set`.
        let caps = || self.caps.load(Ordering::Relaxed);
        self.of_own(|own| own.caps).unwrap_or_else(caps) & cap != 0
    }

    /// Returns true if the permission bits or `CAP_IPC_OWNER` grant the access. Does not call the
    /// security hook.
    #[inline]
    pub(crate) fn may(&self, [owner, creator]: [u64; 2], mode: u16, flag: u32) -> bool {
        let requested = (flag >> 6) | (flag >> 3) | flag;
        let (euid, egid) = self.ids();
        let (gid, cgid) = (high(owner), high(creator));
        let granted = if euid == low(creator) || euid == low(owner) {
            mode >> 6
        } else if egid == cgid || egid == gid || self.is_in_group([gid, cgid]) {
            mode >> 3
        } else {
            mode
        };
        requested & !u32::from(granted) & 0o7 == 0 || self.is_capable(CAP_IPC_OWNER)
    }

    #[cold]
    fn is_in_group(&self, groups: [u32; 2]) -> bool {
        let is_in = |cred: &Cred| cred.groups.iter().any(|group| groups.contains(group));
        self.of_own(is_in).unwrap_or_else(|| is_in(self.whole.read(&rcu::read_lock())))
    }

    pub(crate) fn may_control(&self, perm: &Perm, cap: u64) -> bool {
        let (euid, _) = self.ids();
        euid == perm.cuid || euid == perm.uid || self.is_capable(cap)
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;
    use corewalk_base::primitives::thread;

    const PERM: Perm = Perm { key: 0, uid: 1, gid: 10, cuid: 2, cgid: 20, mode: 0o642, seq: 0 };

    fn may_with(cell: &CredCell, perm: &Perm, flag: u32) -> bool {
        let owners = [pair(perm.uid, perm.gid), pair(perm.cuid, perm.cgid)];
        cell.may(owners, perm.mode, flag)
    }

    fn may(cred: Cred, flag: u32) -> bool {
        may_with(&CredCell::new(cred), &PERM, flag)
    }

    #[test]
    fn owner_creator_and_groups_select_the_bits_of_the_mode() {
        for owner in [1, 2] {
            assert!(may(Cred::user(owner, 99), 0o666) && !may(Cred::user(owner, 99), 0o111));
        }
        for group in [10, 20] {
            assert!(may(Cred::user(9, group), 0o444) && !may(Cred::user(9, group), 0o222));
            let further = Cred { groups: vec![7, group], ..Cred::user(9, 9) };
            assert!(may(further.clone(), 0o444) && !may(further, 0o222));
        }
        assert!(may(Cred::user(9, 9), 0o222) && !may(Cred::user(9, 9), 0o444));
    }

    #[test]
    fn bits_of_other_users_do_not_count_for_the_owner() {
        // In this test the owner lacks write permission, although the mode grants it to all other
        // users.
        let perm = Perm { mode: 0o466, ..PERM };
        assert!(!may_with(&CredCell::new(Cred::user(1, 10)), &perm, 0o222));
    }

    /// A permission check does not wait while another thread changes the task's credentials. It
    /// uses the credentials before the change.
    #[test]
    fn check_during_a_change_does_not_wait() {
        let cell = CredCell::new(Cred { groups: vec![10], ..Cred::user(9, 9) });
        let _change = cell.changes.lock();
        assert!(may_with(&cell, &PERM, 0o444));
        assert_eq!(cell.whole().groups, [10]);
    }

    #[test]
    fn copy_of_credentials_is_consistent_during_changes() {
        const ROUNDS: u32 = if cfg!(miri) { 20 } else { 5000 };
        let of = |at: u32| Cred { groups: vec![at; 3], ..Cred::user(at, at) };
        let cell = CredCell::new(of(0));
        thread::scope(|scope| {
            scope.spawn(|| (1..=ROUNDS).for_each(|at| cell.set(of(at))));
            loop {
                let seen = cell.whole();
                assert_eq!(seen, of(seen.euid));
                if seen.euid == ROUNDS {
                    break;
                }
                thread::yield_now();
            }
        });
        assert_eq!(cell.ids(), (ROUNDS, ROUNDS));
    }

    #[test]
    fn credentials_of_a_thread_replace_those_of_one_cell() {
        let [cell, other] = [(); 2].map(|()| CredCell::new(Cred::user(9, 9)));
        let own = Cred { groups: vec![10], caps: CAP_SYS_ADMIN, ..Cred::user(8, 8) };
        thread::scope(|scope| {
            scope.spawn(|| {
                cell.set_own(own.clone());
                let cell = Box::new(&cell);
                assert_eq!((cell.ids(), cell.whole()), ((8, 8), own.clone()));
                assert!(may_with(&cell, &PERM, 0o444) && cell.may_control(&PERM, CAP_SYS_ADMIN));
                assert_eq!((other.ids(), other.whole()), ((9, 9), Cred::user(9, 9)));
                assert!(
                    !may_with(&other, &PERM, 0o444) && !other.may_control(&PERM, CAP_SYS_ADMIN)
                );
                // The task's credentials change, but the thread keeps its own.
                cell.set(Cred::user(7, 7));
                assert_eq!(cell.ids(), (8, 8));
            });
        });
        assert_eq!((cell.ids(), cell.whole()), ((7, 7), Cred::user(7, 7)));
        assert!(!may_with(&cell, &PERM, 0o444) && !cell.may_control(&PERM, CAP_SYS_ADMIN));
    }

    #[test]
    fn empty_request_is_granted() {
        assert!(may(Cred::user(9, 9), 0));
    }

    #[test]
    fn capabilities_override_their_own_check_only() {
        let with = |caps| CredCell::new(Cred { caps, ..Cred::user(9, 9) });
        assert!(may_with(&with(CAP_IPC_OWNER), &PERM, 0o666));
        assert!(!may_with(&with(CAP_SYS_ADMIN), &PERM, 0o666));
        assert!(with(CAP_SYS_ADMIN).may_control(&PERM, CAP_SYS_ADMIN));
        assert!(!with(CAP_IPC_OWNER).may_control(&PERM, CAP_SYS_ADMIN));
        assert!(CredCell::new(Cred::user(2, 9)).may_control(&PERM, CAP_SYS_ADMIN));
    }
}
