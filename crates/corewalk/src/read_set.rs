//! Dentries that a reader has passed, to be checked once more where it ends.
//!
//! If none of their sequences has moved, all that was read of them was there together at the instant
//! between the last look and this one (trap T8).

use corewalk_sync::SeqCount;

use crate::dentry::Dentries;

/// Steps that need no allocation; most paths are shorter.
pub(crate) const STEPS: usize = 16;

/// Dentries, each with the sequence it was seen under.
pub(crate) struct ReadSet<const N: usize = STEPS> {
    slots: [u32; N],
    seqs: [u64; N],
    len: usize,
    more: Vec<(u32, u64)>,
    growth: Growth,
}

/// Whether there may be more steps than there is room for without an allocation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    /// There may.
    Allowed,
    /// There may not: what comes then is dropped.
    Refused,
}

impl<const N: usize> ReadSet<N> {
    pub(crate) fn new(growth: Growth) -> ReadSet<N> {
        ReadSet { slots: [0; N], seqs: [0; N], len: 0, more: Vec::new(), growth }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: u32, seq: u64) {
        match (self.slots.get_mut(self.len), self.seqs.get_mut(self.len)) {
            (Some(to), Some(at)) => (*to, *at) = (slot, seq),
            _ => self.push_more(slot, seq),
        }
        self.len += 1;
    }

    #[cold]
    fn push_more(&mut self, slot: u32, seq: u64) {
        if self.growth == Growth::Allowed {
            self.more.push((slot, seq));
        }
    }

    /// Returns true if there is room for a step without an allocation.
    #[inline]
    pub(crate) fn has_inline_room(&self) -> bool {
        self.len < N
    }

    /// Returns the room for steps that need no allocation.
    #[inline(always)]
    pub(crate) fn inline_steps(&mut self) -> InlineSteps<'_, N> {
        InlineSteps { len: self.len, read_set: self }
    }

    /// Returns true if steps were dropped: nothing can be said of the whole then.
    pub(crate) fn is_truncated(&self) -> bool {
        self.growth == Growth::Refused && self.len > N
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    /// Returns the dentries in the order in which they were passed.
    pub(crate) fn slots(&self) -> impl Iterator<Item = u32> + '_ {
        let few = self.slots[..self.len.min(N)].iter().copied();
        few.chain(self.more.iter().map(|&(slot, _)| slot))
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing that was passed has changed since.
    #[inline]
    pub(crate) fn is_unchanged(&self, dentries: &Dentries) -> bool {
        // One branch for all of them: they are nearly always unchanged. An odd sequence, of a writer who
        // was inside, never validates.
        SeqCount::end_of_reads();
        let len = self.len.min(N);
        let (mut differ, mut odd) = (0, 0);
        for (&slot, &seq) in self.slots[..len].iter().zip(&self.seqs[..len]) {
            odd |= seq;
            differ |= dentries.difference(slot, seq);
        }
        for &(slot, seq) in &self.more {
            odd |= seq;
            differ |= dentries.difference(slot, seq);
        }
        differ | (odd & 1) == 0
    }
}

/// Room for steps that need no allocation. What was put there counts when it is dropped.
pub(crate) struct InlineSteps<'a, const N: usize = STEPS> {
    read_set: &'a mut ReadSet<N>,
    /// Kept here, so that it can stay in a register.
    len: usize,
}

impl<const N: usize> InlineSteps<'_, N> {
    /// Adds a step; false if there is no room.
    #[inline(always)]
    pub(crate) fn put(&mut self, slot: u32, seq: u64) -> bool {
        let ReadSet { slots, seqs, .. } = &mut *self.read_set;
        let (Some(to), Some(at)) = (slots.get_mut(self.len), seqs.get_mut(self.len)) else {
            return false;
        };
        (*to, *at) = (slot, seq);
        self.len += 1;
        true
    }

    /// Returns how many steps there are.
    #[inline(always)]
    pub(crate) fn at(&self) -> usize {
        self.len
    }

    /// Returns the sequence of the last step, of which there is one.
    pub(crate) fn last_seq(&self) -> u64 {
        self.read_set.seqs[self.len - 1]
    }
}

impl<const N: usize> Drop for InlineSteps<'_, N> {
    fn drop(&mut self) {
        self.read_set.len = self.len;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trap T8: each step counts, also those that needed an allocation, and none of before a clear.
    #[test]
    fn change_of_any_step_is_seen() {
        let dentries = Dentries::new(64).unwrap();
        let steps = 2 * STEPS as u32;
        for slot in 0..=steps {
            let mut read_set = ReadSet::<STEPS>::new(Growth::Allowed);
            let mut room = read_set.inline_steps();
            let put = (1..=steps).take_while(|&slot| room.put(slot, dentries.stable_seq(slot)));
            let put = put.count() as u32;
            assert_eq!((put, room.at()), (STEPS as u32, STEPS));
            drop(room);
            assert!(!read_set.has_inline_room());
            (put + 1..=steps).for_each(|slot| read_set.push(slot, dentries.stable_seq(slot)));
            assert!(read_set.is_unchanged(&dentries));
            drop(dentries.seq(slot).write());
            assert_eq!(read_set.is_unchanged(&dentries), slot == 0, "step {slot}");
            read_set.clear();
            assert!(read_set.is_unchanged(&dentries) && read_set.len() == 0);
        }
    }

    /// An odd sequence was read while a writer was inside, so what goes with it may be torn.
    #[test]
    fn step_under_an_odd_sequence_never_validates() {
        let dentries = Dentries::new(64).unwrap();
        let mut read_set = ReadSet::<STEPS>::new(Growth::Allowed);
        dentries.seq(1).write_begin();
        read_set.push(1, dentries.seq(1).raw_begin());
        assert!(!read_set.is_unchanged(&dentries));
        dentries.seq(1).write_end();
        assert!(!read_set.is_unchanged(&dentries));
    }

    #[test]
    fn steps_that_are_dropped_are_noticed() {
        let mut read_set = ReadSet::<STEPS>::new(Growth::Refused);
        (1..=STEPS as u32).for_each(|slot| read_set.push(slot, 0));
        assert!(!read_set.is_truncated());
        read_set.push(1, 0);
        assert!(read_set.is_truncated());
        read_set.clear();
        assert!(!read_set.is_truncated());
    }
}
