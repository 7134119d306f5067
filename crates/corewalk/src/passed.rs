//! Dentries that a reader has passed, to be checked once more where it ends.
//!
//! If none of their sequences has moved, all that was read of them was there together at the instant
//! between the last look and this one (trap T8).

use crate::dentry::Dentries;

/// Steps that need no allocation; most paths are shorter.
const STEPS: usize = 16;

/// Dentries, each with the sequence it was seen under.
pub(crate) struct Passed {
    first: [(u32, u64); STEPS],
    len: usize,
    more: Vec<(u32, u64)>,
}

impl Passed {
    pub(crate) fn new() -> Passed {
        Passed { first: [(0, 0); STEPS], len: 0, more: Vec::new() }
    }

    #[inline]
    pub(crate) fn push(&mut self, slot: u32, seq: u64) {
        match self.first.get_mut(self.len) {
            Some(step) => *step = (slot, seq),
            None => self.more.push((slot, seq)),
        }
        self.len += 1;
    }

    /// Forgets the last one.
    pub(crate) fn pop(&mut self) {
        self.len -= 1;
        self.more.truncate(self.len.saturating_sub(STEPS));
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
        let first = &self.first[..self.len.min(STEPS)];
        first.iter().fold(true, check) & self.more.iter().fold(true, check)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trap T8: each step counts, also those that needed an allocation, and none that was taken back.
    #[test]
    fn change_of_any_step_is_seen() {
        let dentries = Dentries::new(64).unwrap();
        let steps = 2 * STEPS as u32;
        for slot in 0..=steps {
            let mut passed = Passed::new();
            (1..=steps).for_each(|slot| passed.push(slot, dentries.stable_seq(slot)));
            assert!(passed.is_unchanged(&dentries));
            drop(dentries.seq(slot).write());
            assert_eq!(passed.is_unchanged(&dentries), slot == 0, "step {slot}");
            for left in (0..steps).rev() {
                passed.pop();
                assert_eq!(passed.len(), left as usize);
                assert_eq!(passed.is_unchanged(&dentries), left < slot || slot == 0, "{left}");
            }
        }
    }
}
