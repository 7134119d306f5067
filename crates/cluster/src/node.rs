//! An inode as the database returns it.

use corewalk::{Attr, Timespec};
use tokio_postgres::Row;

/// Flag of an inode that has extended attributes other than ACLs.
pub(crate) const HAS_XATTRS: i32 = 1;
pub(crate) const HAS_ACCESS_ACL: i32 = 2;
pub(crate) const HAS_DEFAULT_ACL: i32 = 4;

const NANOS: i64 = 1_000_000_000;

#[derive(Clone, Copy, Debug)]
pub(crate) struct Inode {
    pub(crate) attr: Attr,
    /// The stored home: for a directory its parent, and for another inode a directory that has a
    /// name of it.
    pub(crate) home: u64,
    /// Grows with each change of the inode.
    pub(crate) version: i64,
    pub(crate) flags: i32,
}

impl Inode {
    pub(crate) fn of(row: &Row) -> Option<Inode> {
        let first = row.columns().iter().position(|column| column.name() == "ino")?;
        let number = |at: usize| row.get::<_, i64>(first + at);
        let ino = number(0);
        if ino == 0 {
            return None;
        }
        let (mode, flags): (i32, i32) = (row.get(first + 2), row.get(first + 13));
        let time = |at: usize| to_time(number(at));
        let size = number(6) as u64;
        let attr = Attr::new(ino as u64, mode as u32)
            .with_uid(number(3) as u32)
            .with_gid(number(4) as u32)
            .with_nlink(number(5) as u32)
            .with_size(size)
            .with_blocks(size.div_ceil(512))
            .with_rdev(number(7) as u64)
            .with_atime(time(8))
            .with_mtime(time(9))
            .with_ctime(time(10))
            .with_btime(time(11))
            .with_has_acl(flags & HAS_ACCESS_ACL != 0);
        Some(Inode { attr, home: number(1) as u64, version: number(12), flags })
    }

    pub(crate) fn cover(&self) -> u64 {
        if self.attr.is_dir() { self.attr.ino } else { self.home }
    }
}

pub(crate) fn to_time(nanos: i64) -> Timespec {
    Timespec { secs: nanos.div_euclid(NANOS), nanos: nanos.rem_euclid(NANOS) as u32 }
}

/// Converts a time to nanoseconds since 1970. A time that is out of range becomes the nearest
/// possible one.
pub(crate) fn to_nanos(time: Timespec) -> i64 {
    time.secs.saturating_mul(NANOS).saturating_add(i64::from(time.nanos))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_before_1970_survives() {
        for time in [
            Timespec { secs: -1, nanos: 999_999_999 },
            Timespec { secs: 0, nanos: 0 },
            Timespec { secs: 4_000_000_000, nanos: 1 },
        ] {
            assert_eq!(to_time(to_nanos(time)), time);
        }
        let far = Timespec { secs: i64::MAX, nanos: 0 };
        assert_eq!(to_nanos(far), i64::MAX);
    }
}
