//! A read set: the dentries that a reader has used, each with the sequence that the dentry had when
//! the reader read it.
//!
//! The reader validates the read set at the end. If no sequence has changed, all dentries of the
//! set existed together between the last read and the validation (trap T8 in `traps.md`).

use corewalk_sync::SeqCount;

use crate::dentry::Dentries;
use crate::slot::{DentrySlot, Seq};

/// The number of dentries that a read set holds without an allocation. Most paths have fewer.
pub(crate) const STEPS: usize = 16;

pub(crate) struct ReadSet<const N: usize = STEPS> {
    slots: [DentrySlot; N],
    seqs: [Seq; N],
    len: usize,
    more: Vec<(DentrySlot, Seq)>,
    growth: Growth,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Growth {
    Allowed,
    Refused,
}

impl<const N: usize> ReadSet<N> {
    pub(crate) fn new(growth: Growth) -> ReadSet<N> {
        ReadSet {
            slots: [DentrySlot::NONE; N],
            seqs: [Seq(0); N],
            len: 0,
            more: Vec::new(),
            growth,
        }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: DentrySlot, seq: Seq) {
        match (self.slots.get_mut(self.len), self.seqs.get_mut(self.len)) {
            (Some(to), Some(at)) => (*to, *at) = (slot, seq),
            _ => self.push_more(slot, seq),
        }
        self.len += 1;
    }

    #[cold]
    fn push_more(&mut self, slot: DentrySlot, seq: Seq) {
        if self.growth == Growth::Allowed {
            self.more.push((slot, seq));
        }
    }

    #[inline]
    pub(crate) fn has_inline_room(&self) -> bool {
        self.len < N
    }

    #[inline(always)]
    pub(crate) fn inline_steps(&mut self) -> InlineSteps<'_, N> {
        InlineSteps { len: self.len, read_set: self }
    }

    /// Returns true if the read set had no room for all dentries that the reader has used. Its
    /// validation is then incomplete.
    pub(crate) fn is_truncated(&self) -> bool {
        self.growth == Growth::Refused && self.len > N
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = DentrySlot> + '_ {
        let few = self.slots[..self.len.min(N)].iter().copied();
        few.chain(self.more.iter().map(|&(slot, _)| slot))
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(crate) fn is_unchanged(&self, dentries: &Dentries) -> bool {
        // Nearly always no sequence has changed, so combine the differences of all dentries and
        // branch once. An odd sequence makes the result false: the dentry was read during a write
        // section.
        SeqCount::end_of_reads();
        let len = self.len.min(N);
        let (mut differ, mut odd) = (0, 0);
        for (&slot, &seq) in self.slots[..len].iter().zip(&self.seqs[..len]) {
            odd |= seq.0;
            differ |= dentries.difference(slot, seq);
        }
        for &(slot, seq) in &self.more {
            odd |= seq.0;
            differ |= dentries.difference(slot, seq);
        }
        differ | (odd & 1) == 0
    }
}

/// A view of the inline array of a read set. The fast path of a walk appends dentries and their
/// sequences to the array. When the view is dropped, it stores the array's new length in the read
/// set.
pub(crate) struct InlineSteps<'a, const N: usize = STEPS> {
    read_set: &'a mut ReadSet<N>,
    len: usize,
}

impl<const N: usize> InlineSteps<'_, N> {
    #[inline(always)]
    pub(crate) fn put(&mut self, slot: DentrySlot, seq: Seq) -> bool {
        let ReadSet { slots, seqs, .. } = &mut *self.read_set;
        let (Some(to), Some(at)) = (slots.get_mut(self.len), seqs.get_mut(self.len)) else {
            return false;
        };
        (*to, *at) = (slot, seq);
        self.len += 1;
        true
    }

    #[inline(always)]
    pub(crate) fn at(&self) -> usize {
        self.len
    }

    pub(crate) fn last_seq(&self) -> Seq {
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

    /// A read set must notice a change of any dentry in it, and ignore all others. Some dentries
    /// are in the set's inline array, others in its vector. Trap T8 in `traps.md`.
    #[test]
    fn change_of_any_step_is_seen() {
        let dentries = Dentries::new(64).unwrap();
        let steps = 2 * STEPS as u32;
        for slot in 0..=steps {
            let mut read_set = ReadSet::<STEPS>::new(Growth::Allowed);
            let mut room = read_set.inline_steps();
            let all = (1..=steps).map(DentrySlot::new);
            let put = all.take_while(|&slot| room.put(slot, dentries.stable_seq(slot)));
            let put = put.count() as u32;
            assert_eq!((put, room.at()), (STEPS as u32, STEPS));
            drop(room);
            assert!(!read_set.has_inline_room());
            let rest = (put + 1..=steps).map(DentrySlot::new);
            rest.for_each(|slot| read_set.push(slot, dentries.stable_seq(slot)));
            assert!(read_set.is_unchanged(&dentries));
            drop(dentries.seq(DentrySlot::new(slot)).write());
            assert_eq!(read_set.is_unchanged(&dentries), slot == 0, "step {slot}");
            read_set.clear();
            assert!(read_set.is_unchanged(&dentries) && read_set.len() == 0);
        }
    }

    /// A read set with an odd sequence must never validate: the words were read while a writer
    /// changed the dentry, and may be torn.
    #[test]
    fn step_under_an_odd_sequence_never_validates() {
        let dentries = Dentries::new(64).unwrap();
        let mut read_set = ReadSet::<STEPS>::new(Growth::Allowed);
        let slot = DentrySlot::new(1);
        dentries.seq(slot).write_begin();
        read_set.push(slot, Seq(dentries.seq(slot).raw_begin()));
        assert!(!read_set.is_unchanged(&dentries));
        dentries.seq(slot).write_end();
        assert!(!read_set.is_unchanged(&dentries));
    }

    #[test]
    fn steps_that_are_dropped_are_noticed() {
        let mut read_set = ReadSet::<STEPS>::new(Growth::Refused);
        (1..=STEPS as u32).for_each(|slot| read_set.push(DentrySlot::new(slot), Seq(0)));
        assert!(!read_set.is_truncated());
        read_set.push(DentrySlot::new(1), Seq(0));
        assert!(read_set.is_truncated());
        read_set.clear();
        assert!(!read_set.is_truncated());
    }
}
