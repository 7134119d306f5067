//! Dentries that a reader has passed, to be checked once more where it ends.
//!
//! If none of their sequences has moved, all that was read of them was there together at the instant
//! between the last look and this one (trap T8).

use crate::dentry::Dentries;

/// Steps that need no allocation; most paths are shorter.
pub(crate) const STEPS: usize = 16;

/// Dentries, each with the sequence it was seen under.
pub(crate) struct Passed<const N: usize = STEPS> {
    first: [(u32, u64); N],
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

impl<const N: usize> Passed<N> {
    pub(crate) fn new(growth: Growth) -> Passed<N> {
        Passed { first: [(0, 0); N], len: 0, more: Vec::new(), growth }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: u32, seq: u64) {
        match self.first.get_mut(self.len) {
            Some(step) => *step = (slot, seq),
            None if self.growth == Growth::Allowed => self.more.push((slot, seq)),
            None => {}
        }
        self.len += 1;
    }

    /// Returns true if steps were dropped: nothing can be said of the whole then.
    pub(crate) fn is_cut(&self) -> bool {
        self.growth == Growth::Refused && self.len > N
    }

    pub(crate) fn clear(&mut self) {
        self.len = 0;
        self.more.clear();
    }

    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Returns true if nothing that was passed has changed since.
    #[inline]
    pub(crate) fn is_unchanged(&self, dentries: &Dentries) -> bool {
        // One branch for all of them: they are nearly always unchanged.
        let check = |still, &(slot, seq): &(u32, u64)| still & dentries.is_unchanged(slot, seq);
        let first = &self.first[..self.len.min(N)];
        first.iter().fold(true, check) & self.more.iter().fold(true, check)
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
            let mut passed = Passed::<STEPS>::new(Growth::Allowed);
            (1..=steps).for_each(|slot| passed.push(slot, dentries.stable_seq(slot)));
            assert!(passed.is_unchanged(&dentries));
            drop(dentries.seq(slot).write());
            assert_eq!(passed.is_unchanged(&dentries), slot == 0, "step {slot}");
            passed.clear();
            assert!(passed.is_unchanged(&dentries) && passed.len() == 0);
        }
    }

    #[test]
    fn steps_that_are_dropped_are_noticed() {
        let mut passed = Passed::<STEPS>::new(Growth::Refused);
        (1..=STEPS as u32).for_each(|slot| passed.push(slot, 0));
        assert!(!passed.is_cut());
        passed.push(1, 0);
        assert!(passed.is_cut());
        passed.clear();
        assert!(!passed.is_cut());
    }
}
