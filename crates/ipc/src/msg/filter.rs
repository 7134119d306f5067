//! The messages that a receiver takes.
//!
//! Source: msgrcv(2); Linux `ipc/msg.c` (`convert_mode`, `testmsg`, `find_msg`).

use rustix::io::Errno;

use crate::field::refuse_if;
use crate::flags::MsgFlags;

/// The messages that a receiver requests: the arguments of msgrcv(2).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Filter {
    pub(super) msgtyp: i64,
    pub(super) msgflg: MsgFlags,
}

impl Filter {
    /// The filter that takes any message.
    pub(super) const ANY: Self = Self { msgtyp: 0, msgflg: MsgFlags::empty() };

    /// Returns the filter for the arguments of msgrcv(2).
    ///
    /// # Errors
    ///
    /// `EINVAL` for `MSG_COPY` with `MSG_EXCEPT` or without `IPC_NOWAIT`.
    #[inline]
    pub(super) fn new(msgtyp: i64, msgflg: MsgFlags) -> Result<Self, Errno> {
        let others = msgflg & (MsgFlags::NOWAIT | MsgFlags::EXCEPT);
        refuse_if(msgflg.contains(MsgFlags::COPY) && others != MsgFlags::NOWAIT, Errno::INVAL)?;
        Ok(Self { msgtyp, msgflg })
    }

    /// Returns true if the filter takes a message of this type.
    #[inline]
    pub(super) fn takes(self, mtype: i64) -> bool {
        match self.msgtyp {
            0 => true,
            _ if self.msgflg.contains(MsgFlags::COPY) => true,
            // A negative `msgtyp` requests the types up to its absolute value. The absolute value
            // of `i64::MIN` is larger than any type.
            ..0 => mtype <= self.msgtyp.checked_neg().unwrap_or(i64::MAX),
            _ => (mtype == self.msgtyp) != self.msgflg.contains(MsgFlags::EXCEPT),
        }
    }

    #[inline]
    pub(super) fn find<M>(self, messages: impl Iterator<Item = (i64, M)>) -> Option<M> {
        let mut messages = messages.filter(|(mtype, _)| self.takes(*mtype));
        if self.msgflg.contains(MsgFlags::COPY) {
            let index = usize::try_from(self.msgtyp).ok()?;
            return messages.nth(index).map(|(_, message)| message);
        }
        let (mut lowest, mut found) = messages.next()?;
        if self.msgtyp < 0 {
            // 1 is the lowest type.
            while lowest > 1
                && let Some((mtype, message)) = messages.next()
            {
                if mtype < lowest {
                    (lowest, found) = (mtype, message);
                }
            }
        }
        Some(found)
    }

    /// Returns the filter as two words for the region.
    pub(super) fn to_words(self) -> [u64; 2] {
        [u64::from(self.msgflg.bits().cast_unsigned()), self.msgtyp.cast_unsigned()]
    }

    /// Returns the filter that [`Filter::to_words`] has stored in two words.
    pub(super) fn from_words([msgflg, msgtyp]: [u64; 2]) -> Self {
        let msgflg = MsgFlags::from_bits_retain((msgflg as u32).cast_signed());
        Self { msgtyp: msgtyp.cast_signed(), msgflg }
    }
}

#[cfg(all(test, not(any(corewalk_loom, corewalk_shuttle))))]
mod tests {
    use super::*;

    const TYPES: [i64; 6] = [5, 3, 3, 1, 9, 1];

    fn find(msgtyp: i64, msgflg: MsgFlags) -> Option<usize> {
        let messages = TYPES.iter().enumerate().map(|(at, mtype)| (*mtype, at));
        Filter::new(msgtyp, msgflg).unwrap().find(messages)
    }

    #[test]
    fn each_kind_of_type_finds_its_message() {
        let copy = MsgFlags::COPY | MsgFlags::NOWAIT;
        assert_eq!(find(0, MsgFlags::empty()), Some(0));
        assert_eq!((find(3, MsgFlags::empty()), find(4, MsgFlags::empty())), (Some(1), None));
        assert_eq!((find(5, MsgFlags::EXCEPT), find(-4, MsgFlags::EXCEPT)), (Some(1), Some(3)));
        assert_eq!(
            (
                find(-4, MsgFlags::empty()),
                find(-1, MsgFlags::empty()),
                find(i64::MIN, MsgFlags::empty())
            ),
            (Some(3), Some(3), Some(3))
        );
        assert_eq!((find(0, copy), find(5, copy), find(6, copy)), (Some(0), Some(5), None));
        assert_eq!(find(-1, copy), None);
    }

    #[test]
    fn lowest_type_is_the_first_of_its_kind() {
        let messages = [(4, 'a'), (2, 'b'), (2, 'c'), (3, 'd')];
        let lowest = |most: i64| Filter::new(-most, MsgFlags::empty()).unwrap();
        assert_eq!(lowest(3).find(messages.into_iter()), Some('b'));
        assert_eq!(lowest(1).find(messages.into_iter()), None);
    }

    #[test]
    fn filter_survives_its_words() {
        let copy = MsgFlags::COPY | MsgFlags::NOWAIT;
        let filters = [(0, MsgFlags::empty()), (7, MsgFlags::EXCEPT), (i64::MIN, copy)]
            .map(|(msgtyp, msgflg)| Filter::new(msgtyp, msgflg).unwrap());
        assert!(filters.iter().all(|filter| Filter::from_words(filter.to_words()) == *filter));
    }
}
