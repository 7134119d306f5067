//! shmget(2).
//!
//! Source: shmget(2); Linux `ipc/shm.c` (`newseg`).

use rustix::io::Errno;

use super::segment::{self, Segment, pages};
use crate::ctl::ipcget;
use crate::flags::GetFlags;
use crate::handle::ShmId;
use crate::ids::IdsGuard;
use crate::perm::Perm;
use crate::task::Task;

impl Task {
    /// Returns the id of the segment with this key, or creates one of `size_bytes` zeroes and
    /// returns its id.
    ///
    /// `IPC_PRIVATE` always creates a new segment. The nine bits of `mode` are the mode of a new
    /// segment. For an existing segment they are the permissions that the call requests.
    /// `NORESERVE` has no effect, since memory is never reserved.
    ///
    /// # Errors
    ///
    /// - `EACCES`: the segment exists, and its mode does not grant the permissions in `mode`.
    /// - `EEXIST`: the segment exists, and both `CREATE` and `EXCLUSIVE` are given.
    /// - `EINVAL`: for a new segment, `size_bytes` is 0, above `SHMMAX` or above the largest file,
    ///   or `HUGETLB` is given. For an existing segment, `size_bytes` is above its size.
    /// - `ENOENT`: no segment has this key, and `CREATE` is not given.
    /// - `ENOMEM`: there is no memory for the segment.
    /// - `ENOSPC`: more than `SHMMNI` segments or `SHMALL` pages would exist.
    ///
    /// # Examples
    ///
    /// ```
    /// use corewalk_ipc::{Cred, GetFlags, Namespace, NamespaceOptions};
    /// use rustix::io::Errno;
    ///
    /// let namespace = Namespace::new(NamespaceOptions::default())?;
    /// let task = namespace.register(Cred::root(), 1)?;
    /// let id = task.shmget(5, 56, GetFlags::CREATE, 0o600)?;
    /// assert_eq!(task.shmget(5, 57, GetFlags::empty(), 0), Err(Errno::INVAL));
    /// assert_eq!(task.shm_stat(id)?.size_bytes, 56);
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn shmget(
        &self,
        key: i32,
        size_bytes: u64,
        flags: GetFlags,
        mode: u16,
    ) -> Result<ShmId, Errno> {
        let shared = &*self.shared;
        let ids = self.shm_ids().lock()?;
        let id = ipcget(
            self,
            &ids,
            (key, flags, mode),
            |object| {
                let segment = Segment::again(shared, &ids, object)?;
                if segment.size_bytes() < size_bytes { Err(Errno::INVAL) } else { Ok(()) }
            },
            |perm| self.new_segment(&ids, perm, size_bytes, flags),
        )?;
        Ok(ShmId::from_raw(id))
    }

    #[doc(alias = "newseg")]
    fn new_segment(
        &self,
        ids: &IdsGuard<'_>,
        perm: Perm,
        size_bytes: u64,
        flags: GetFlags,
    ) -> Result<i32, Errno> {
        let shared = &*self.shared;
        let limits = &shared.limits;
        if !(1..=limits.shmmax).contains(&size_bytes) {
            return Err(Errno::INVAL);
        }
        let used = pages(size_bytes).and_then(|pages| ids.used().checked_add(pages));
        let used = used.filter(|used| *used <= limits.shmall).ok_or(Errno::NOSPC)?;
        let is_file_size = i64::try_from(size_bytes).is_ok();
        if flags.contains(GetFlags::HUGETLB) || !is_file_size {
            return Err(Errno::INVAL);
        }
        self.may_alloc(&perm)?;
        let mut made = 0;
        let id = ids.add(perm, limits.shmmni, |index| {
            let whose = (self.owner.index, self.pid);
            let (payload, name) = segment::make(shared, index, size_bytes, whose);
            let mut created = shared.backing.create(name, size_bytes);
            if created == Err(Errno::NOSPC) {
                // Removed segments may still have memory, if the task that removed them could not
                // remove it.
                segment::give_back_all(shared, ids, Some(index));
                created = shared.backing.create(name, size_bytes);
            }
            created.inspect_err(|_| segment::give_back(shared, name))?;
            made = index;
            Ok(payload)
        })?;
        ids.set_used(used);
        self.shm.lock().made.push(made);
        Ok(id)
    }
}
