//! The messages that a receiver takes.
//!
//! Source: msgrcv(2); Linux `ipc/msg.c` (`convert_mode`, `testmsg`, `find_msg`).

use rustix::io::Errno;

use crate::flags::MsgFlags;

/// The messages that a receiver requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Filter {
    /// Any message.
    Any,
    /// A message of this type.
    Equal(i64),
    /// A message of another type.
    NotEqual(i64),
    /// The lowest type, if it is at most this.
    LessEqual(i64),
    /// The message with this index. No call waits for one.
    Number(i64),
}

impl Filter {
    /// Returns the filter for the arguments of msgrcv(2).
    ///
    /// # Errors
    ///
    /// `EINVAL` for `MSG_COPY` with `MSG_EXCEPT` or without `IPC_NOWAIT`.
    #[inline]
    pub(super) fn new(msgtyp: i64, msgflg: MsgFlags) -> Result<Self, Errno> {
        if msgflg.contains(MsgFlags::COPY) {
            let is_nowait = msgflg.contains(MsgFlags::NOWAIT);
            let is_good = is_nowait && !msgflg.contains(MsgFlags::EXCEPT);
            return if is_good { Ok(Self::Number(msgtyp)) } else { Err(Errno::INVAL) };
        }
        Ok(match msgtyp {
            0 => Self::Any,
            // The least number cannot be negated. All types are at most the largest one.
            ..0 => Self::LessEqual(msgtyp.checked_neg().unwrap_or(i64::MAX)),
            _ if msgflg.contains(MsgFlags::EXCEPT) => Self::NotEqual(msgtyp),
            _ => Self::Equal(msgtyp),
        })
    }

    /// Returns true if the filter takes a message of this type.
    #[inline]
    pub(super) fn takes(self, mtype: i64) -> bool {
        match self {
            Self::Any | Self::Number(_) => true,
            Self::Equal(wanted) => mtype == wanted,
            Self::NotEqual(other) => mtype != other,
            Self::LessEqual(most) => mtype <= most,
        }
    }

    /// Returns the message to take among `messages`, which are given with their types.
    #[inline]
    pub(super) fn find<M>(self, messages: impl Iterator<Item = (i64, M)>) -> Option<M> {
        let mut messages = messages.filter(|(mtype, _)| self.takes(*mtype));
        match self {
            Self::LessEqual(_) => {
                let mut lowest: Option<(i64, M)> = None;
                for (mtype, message) in messages {
                    if lowest.as_ref().is_none_or(|(low, _)| mtype < *low) {
                        lowest = Some((mtype, message));
                    }
                    // 1 is the lowest type.
                    if mtype == 1 {
                        break;
                    }
                }
                lowest.map(|(_, message)| message)
            }
            Self::Number(index) => {
                let index = usize::try_from(index).ok()?;
                messages.nth(index).map(|(_, message)| message)
            }
            _ => messages.next().map(|(_, message)| message),
        }
    }

    /// Returns the filter as two words for the region.
    pub(super) fn to_words(self) -> [u64; 2] {
        let (mode, mtype) = match self {
            Self::Any => (0, 0),
            Self::Equal(mtype) => (1, mtype),
            Self::NotEqual(mtype) => (2, mtype),
            Self::LessEqual(mtype) => (3, mtype),
            Self::Number(mtype) => (4, mtype),
        };
        [mode, mtype.cast_unsigned()]
    }

    /// Returns the filter of two words.
    pub(super) fn from_words([mode, mtype]: [u64; 2]) -> Self {
        let mtype = mtype.cast_signed();
        match mode {
            1 => Self::Equal(mtype),
            2 => Self::NotEqual(mtype),
            3 => Self::LessEqual(mtype),
            4 => Self::Number(mtype),
            _ => Self::Any,
        }
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
        assert_eq!(Filter::LessEqual(3).find(messages.into_iter()), Some('b'));
        assert_eq!(Filter::LessEqual(1).find(messages.into_iter()), None);
    }

    #[test]
    fn filter_survives_its_words() {
        let filters = [
            Filter::Any,
            Filter::Equal(7),
            Filter::NotEqual(i64::MAX),
            Filter::LessEqual(1),
            Filter::Number(-3),
        ];
        assert!(filters.iter().all(|filter| Filter::from_words(filter.to_words()) == *filter));
    }
}
