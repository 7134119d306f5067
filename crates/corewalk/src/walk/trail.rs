//! What a walk has passed, to be checked once more where it ends.

use crate::dentry::Dentries;

/// Steps that need no allocation; most paths are shorter.
const STEPS: usize = 16;

/// The dentries passed since the last reference was taken, each with the sequence it was seen under.
pub(super) struct Trail {
    first: [(u32, u64); STEPS],
    len: usize,
    more: Vec<(u32, u64)>,
}

impl Trail {
    pub(super) fn new() -> Trail {
        Trail { first: [(0, 0); STEPS], len: 0, more: Vec::new() }
    }

    #[inline]
    pub(super) fn push(&mut self, slot: u32, seq: u64) {
        match self.first.get_mut(self.len) {
            Some(step) => {
                *step = (slot, seq);
                self.len += 1;
            }
            None => self.more.push((slot, seq)),
        }
    }

    /// Returns true if nothing that was passed has changed since.
    #[inline]
    pub(super) fn is_unchanged(&self, dentries: &Dentries) -> bool {
        let is_unchanged = |&(slot, seq): &(u32, u64)| dentries.is_unchanged(slot, seq);
        self.first[..self.len].iter().all(is_unchanged) && self.more.iter().all(is_unchanged)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Trap T8: each step counts, also those that needed an allocation.
    #[test]
    fn change_of_any_step_is_seen() {
        let dentries = Dentries::new(64).unwrap();
        let steps = 2 * STEPS as u32;
        let mut trail = Trail::new();
        (1..=steps).for_each(|slot| trail.push(slot, dentries.stable_seq(slot)));
        assert!(trail.is_unchanged(&dentries));
        for slot in 1..=steps {
            let mut trail = Trail::new();
            (1..=steps).for_each(|slot| trail.push(slot, dentries.stable_seq(slot)));
            drop(dentries.seq(slot).write());
            assert!(!trail.is_unchanged(&dentries), "step {slot}");
        }
    }
}
