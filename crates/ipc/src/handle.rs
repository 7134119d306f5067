//! Typed ids of objects: a queue's id cannot be given to a call on semaphore sets.
//!
//! A front end for system calls gets plain numbers from its program. It turns each into a handle
//! with `from_raw`.

use std::fmt;

/// Defines one type of handles over the id of an object.
macro_rules! handle {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[repr(transparent)]
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i32);

        impl $name {
            /// Returns the handle of the id `raw`. An id without an object is `EINVAL` for each
            /// call.
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
    };
}

handle! {
    /// The id of a semaphore set. [`Task::semget`](crate::Task::semget) returns it.
    ///
    /// # Examples
    ///
    /// The compiler refuses the id of a queue:
    ///
    /// ```compile_fail,E0308
    /// use corewalk_ipc::{Errno, MsgId, Task};
    ///
    /// fn value(task: &Task, queue: MsgId) -> Result<i32, Errno> {
    ///     task.sem_getval(queue, 0)
    /// }
    /// ```
    SemId
}

handle! {
    /// The id of a message queue. [`Task::msgget`](crate::Task::msgget) returns it.
    MsgId
}

handle! {
    /// The id of a segment of shared memory. [`Task::shmget`](crate::Task::shmget) returns it.
    ShmId
}
