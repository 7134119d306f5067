//! The judge: decides whether an answer about the tree was true at one instant.
//!
//! The state of the tree is a few *variables*, each with a few values. A variable is, for example,
//! the name of a directory, or the parent of a file.
//!
//! One thread changes a variable, by one rename each time. A rename is recorded with the clock's
//! ticks before and after it. An answer is recorded with the clock before and after the call, and
//! with its claim: the values that some variables must have had.
//!
//! # Instants
//! The clock counts ticks. Instant `k` is the time between tick `k - 1` and tick `k`. An answer
//! between the clock values `before` and `after` was given in one of the instants `before..=after`.
//!
//! A rename between the ticks `invoked` and `returned` took place in one of `invoked+1..=returned`.
//! The renamed variable *can have* its new value from instant `invoked+1` until its next rename has
//! returned.
//!
//! # Why variables are judged separately
//! An answer claims values of several variables. Suppose that in instant `k` each variable, judged
//! alone, can have its claimed value. Then all can have had these values at the same time.
//!
//! Proof: choose a moment inside `k`. Let the rename that gives a variable its value take place
//! before this moment, and the next rename of this variable after it. The recorded ticks allow
//! that, and renames of different variables do not depend on each other. So an answer can be true
//! if and only if there is such a `k`.
//!
//! # Answers of one thread
//! A thread gives its answers one after the other. So after an answer that shows a rename, the
//! thread must not show the variable's older value.
//!
//! [`Judge`] chooses an instant for each answer. It is the first one in which the answer can be
//! true, but not before the instant chosen for the last answer. So the choice is never later than
//! the true instant, and [`Judge`] never refuses a true answer.
//!
//! [`Judge`] checks the answers of one thread, not whether those of different threads are
//! consistent.
//!
//! Source: Herlihy and Wing, 1990; Gibbons and Korach, "Testing shared memories", 1997.

use std::fmt::Write as _;

pub(crate) const VARIABLES: usize = 6;
/// No claim about a variable.
pub(crate) const ANY: u8 = u8::MAX;

/// The claim of an answer: for each variable, the values that do not contradict the answer, one bit
/// per value.
pub(crate) type Seen = [u8; VARIABLES];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Answer {
    pub(crate) before: u64,
    pub(crate) after: u64,
    pub(crate) seen: Seen,
    pub(crate) door: u8,
}

/// A value of a variable, with the first and the last instant in which the variable may have it.
#[derive(Clone, Copy, Debug)]
struct State {
    value: u8,
    first: u64,
    last: u64,
}

#[derive(Clone, Debug)]
pub(crate) struct Life {
    states: Vec<State>,
}

impl Life {
    pub(crate) fn new(value: u8) -> Life {
        Life { states: vec![State { value, first: 0, last: u64::MAX }] }
    }

    pub(crate) fn change(&mut self, invoked: u64, returned: u64, value: u8) {
        let last = self.states.last_mut().expect("a variable has a first state");
        assert!(
            last.first <= invoked && invoked < returned,
            "changes of a variable must be in order"
        );
        last.last = returned;
        self.states.push(State { value, first: invoked + 1, last: u64::MAX });
    }

    fn first_from(&self, at: &mut usize, seen: u8, instant: u64) -> Option<u64> {
        loop {
            let state = self.states.get(*at)?;
            if state.last >= instant && seen & (1 << state.value) != 0 {
                return Some(state.first.max(instant));
            }
            *at += 1;
        }
    }

    fn instants(&self, answer: &Answer, seen: u8) -> impl Iterator<Item = (u64, u64)> {
        let (before, after) = (answer.before, answer.after);
        let within = move |state: &State| (state.first.max(before), state.last.min(after));
        let states = self.states.iter().filter(move |state| seen & (1 << state.value) != 0);
        states.map(within).filter(|(first, last)| first <= last)
    }
}

#[derive(Clone, Debug, Default)]
pub(crate) struct Judge {
    at: [usize; VARIABLES],
}

impl Judge {
    /// Returns the first instant in which the answer can be true. If there is none, returns a text
    /// for the failure message. After that, the caller must not use this `Judge` again.
    pub(crate) fn judge(&mut self, lives: &[Life], answer: &Answer) -> Result<u64, String> {
        let mut instant = answer.before;
        loop {
            let start = instant;
            for ((life, at), &seen) in lives.iter().zip(&mut self.at).zip(&answer.seen) {
                if seen != ANY {
                    let first = life.first_from(at, seen, instant);
                    instant = first.unwrap_or(u64::MAX);
                }
                if instant > answer.after {
                    return Err(refusal(lives, answer));
                }
            }
            if instant == start {
                return Ok(instant);
            }
        }
    }
}

#[cold]
fn refusal(lives: &[Life], answer: &Answer) -> String {
    let mut text = format!("no one instant in {}..={}:", answer.before, answer.after);
    for (variable, (life, &seen)) in lives.iter().zip(&answer.seen).enumerate() {
        if seen != ANY {
            let instants: Vec<_> = life.instants(answer, seen).take(8).collect();
            let _ = write!(text, " variable {variable} in {seen:#b} during {instants:?};");
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_testkit::rng::{ReportSeed, Rng, Seed};

    /// Returns the values of two variables over time. The first variable becomes 1 in instant 11 or
    /// 12, and 0 again in 14 or 15. The second becomes 1 in one of the instants 15 to 17.
    fn lives() -> [Life; 2] {
        let (mut a, mut b) = (Life::new(0), Life::new(0));
        a.change(10, 12, 1);
        a.change(13, 15, 0);
        b.change(14, 17, 1);
        [a, b]
    }

    fn answer(before: u64, after: u64, values: [u8; 2]) -> Answer {
        let mut seen = [ANY; VARIABLES];
        seen[..2].copy_from_slice(&values.map(|value| 1 << value));
        Answer { before, after, seen, door: 0 }
    }

    fn first(before: u64, after: u64, values: [u8; 2]) -> Option<u64> {
        Judge::default().judge(&lives(), &answer(before, after, values)).ok()
    }

    #[test]
    fn answer_is_accepted_exactly_in_its_instants() {
        assert_eq!(first(0, 5, [0, 0]), Some(0));
        assert_eq!(first(12, 12, [0, 0]), Some(12));
        assert_eq!(first(13, 13, [0, 0]), None, "one instant late");
        assert_eq!(first(13, 14, [0, 0]), Some(14), "the value that returned in instant 14");
        assert_eq!(first(10, 10, [1, 0]), None, "one instant early");
        assert_eq!(first(10, 11, [1, 0]), Some(11));
        assert_eq!(first(15, 15, [1, 0]), Some(15));
        assert_eq!(first(16, 20, [1, 0]), None, "one instant late");
    }

    #[test]
    fn values_that_never_coincided_are_refused() {
        // Both can be 1 only in instant 15.
        assert_eq!(first(0, 14, [1, 1]), None);
        assert_eq!(first(0, 15, [1, 1]), Some(15));
        assert_eq!(first(16, 99, [1, 1]), None);
        let mut apart = [Life::new(0), Life::new(0)];
        apart[0].change(1, 2, 1);
        apart[1].change(3, 4, 1);
        let torn = Judge::default().judge(&apart, &answer(0, 9, [0, 1]));
        assert!(torn.unwrap_err().starts_with("no one instant in 0..=9"));
    }

    #[test]
    fn answers_of_one_thread_do_not_go_back() {
        let mut judge = Judge::default();
        // While the two answers are given, a rename changes the second variable of `lives` from 0
        // to 1. If the first answer shows 1, the second must not show 0.
        assert_eq!(judge.judge(&lives(), &answer(15, 16, [0, 1])), Ok(15));
        assert!(
            judge.judge(&lives(), &answer(16, 17, [0, 0])).is_err(),
            "the new value and then the old one"
        );
        let mut judge = Judge::default();
        assert_eq!(judge.judge(&lives(), &answer(15, 16, [0, 0])), Ok(15));
        assert_eq!(judge.judge(&lives(), &answer(16, 17, [0, 1])), Ok(16));
    }

    #[test]
    fn answer_without_a_claim_is_accepted() {
        let mut seen = answer(13, 13, [0, 0]);
        seen.seen[0] = ANY;
        assert_eq!(Judge::default().judge(&lives(), &seen), Ok(13));
    }

    type Truth = Vec<(u64, u8)>;

    fn random_history(rng: &mut Rng) -> (Vec<Life>, Vec<Truth>, u64) {
        let (mut lives, mut truths) = (vec![], vec![]);
        let mut tick = 0;
        let mut open: Vec<Option<u64>> = vec![None; 3];
        for _ in 0..3 {
            lives.push(Life::new(0));
            truths.push(vec![(0, 0)]);
        }
        for _ in 0..12 {
            let variable = rng.index(3);
            match open[variable].take() {
                None => open[variable] = Some(tick),
                Some(invoked) => {
                    let value = rng.below(2) as u8;
                    let took_place = invoked + 1 + rng.below(tick - invoked);
                    lives[variable].change(invoked, tick, value);
                    truths[variable].push((took_place, value));
                }
            }
            tick += 1;
        }
        (lives, truths, tick)
    }

    /// [`Judge`] must never refuse a true answer.
    #[test]
    fn true_answers_are_never_refused() {
        let report = ReportSeed::new(Seed::choose());
        let mut rng = Rng::new(report.seed());
        for _ in 0..20_000 {
            let (lives, truths, end) = random_history(&mut rng);
            let (mut judge, mut instant, mut clock) = (Judge::default(), 0, 0);
            let mut states = [0; 3];
            while instant <= end {
                let before = clock + rng.below(instant - clock + 1);
                let after = instant + rng.below(end + 1 - instant);
                let mut seen = [ANY; VARIABLES];
                for (variable, truth) in truths.iter().enumerate() {
                    // Make a true answer. At the instant of a rename, it may show the old or the
                    // new value, but none older than an earlier answer did.
                    let of = |state: usize| truth.get(state + 1).map_or(u64::MAX, |next| next.0);
                    while of(states[variable]) < instant
                        || (of(states[variable]) == instant && rng.chance(1, 2))
                    {
                        states[variable] += 1;
                    }
                    seen[variable] = 1 << truth[states[variable]].1;
                }
                let answer = Answer { before, after, seen, door: 0 };
                assert!(judge.judge(&lives, &answer).is_ok(), "{lives:?} {truths:?} {answer:?}");
                clock = after;
                instant = after + rng.below(3);
            }
        }
    }

    /// [`Judge`] must find the same instant as a search that tries all instants of the call.
    #[test]
    fn first_instant_is_that_of_an_exhaustive_search() {
        let report = ReportSeed::new(Seed::choose());
        let mut rng = Rng::new(report.seed());
        let mut counts = [0, 0];
        for _ in 0..100_000 {
            let (lives, _, end) = random_history(&mut rng);
            let before = rng.below(end + 1);
            let after = before + rng.below(end + 1 - before);
            let mut seen = [ANY; VARIABLES];
            seen[..3].fill_with(|| *rng.pick(&[1, 2, ANY]));
            let answer = Answer { before, after, seen, door: 0 };
            let can_be = |instant: &u64| {
                lives.iter().zip(&seen).all(|(life, &seen)| {
                    life.instants(&answer, seen & 3).any(|(a, b)| (a..=b).contains(instant))
                })
            };
            let expected = (before..=after).find(can_be);
            counts[usize::from(expected.is_some())] += 1;
            assert_eq!(Judge::default().judge(&lives, &answer).ok(), expected, "{answer:?}");
        }
        assert!(counts.iter().all(|&count| count > 10_000), "{counts:?}");
    }
}
