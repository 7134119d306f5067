//! Typed ids of objects: a queue's id cannot be given to a call on semaphore sets.
//!
//! A front end for system calls gets plain numbers from a program. It turns each number into a
//! handle with `from_raw`.

use std::fmt;

/// Defines types of handles over the ids of objects.
macro_rules! handles {
    ($($(#[$doc:meta])* $name:ident;)*) => {$(
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i32);

        impl $name {
            /// Returns the handle of the id `raw`. If no object has this id, calls with the handle
            /// fail with `EINVAL`.
            #[must_use]
            pub const fn from_raw(raw: i32) -> Self {
                Self(raw)
            }

            /// Returns the id as a number, as the system call returns it.
            #[must_use]
            pub const fn raw(self) -> i32 {
                self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )*};
}

handles! {
    /// The id of a semaphore set. [`Task::semget`](crate::Task::semget) returns it.
    ///
    /// # Examples
    ///
    /// The compiler refuses the id of a queue in a call for semaphore sets:
    ///
    /// ```compile_fail,E0308
    /// use corewalk_ipc::{Errno, MsgId, Task};
    ///
    /// fn value(task: &Task, queue: MsgId) -> Result<i32, Errno> {
    ///     task.sem_getval(queue, 0)
    /// }
    /// ```
    SemId;
    /// The id of a message queue. [`Task::msgget`](crate::Task::msgget) returns it.
    MsgId;
    /// The id of a segment of shared memory. [`Task::shmget`](crate::Task::shmget) returns it.
    ShmId;
}
