//! Checks whether a history is linearizable.
//!
//! A history is linearizable if its calls can be put into a sequence with two properties:
//! - A call that returned before another one was invoked comes before it in the sequence.
//! - A sequential model ([`Spec`]) that runs the sequence gives the recorded results.
//!
//! Concurrent calls may come in any order. A call that never returned may come anywhere after its
//! invocation, or not at all.
//!
//! # How it works
//!
//! The search is that of Wing and Gong. It takes a call that may come first among the remaining
//! calls, and runs it on the model. If the result fits, it continues with the remaining calls. If
//! no order of these calls fits, it puts the call back and tries another one.
//!
//! Lowe's addition makes this search practical: it visits each set of calls with the same state of
//! the model only once. To take a call or to put it back changes four links of a list
//! (`EventList`). The search has its own stack, so a long history does not overflow that of the
//! thread.
//!
//! # Bounds
//!
//! Whether a history is linearizable is an NP-complete question. So the search gives up after
//! [`Limit::states`] search states and returns [`Verdict::Undecided`]. The cost grows with the
//! number of calls that overlap, so limit the number of threads, not of calls.
//!
//! # The report
//!
//! Each prefix of a linearizable history is linearizable, so the report finds the shortest wrong
//! prefix by bisection. It shows the last call of the prefix, the calls that overlap it, and a
//! state of the model that explains the calls before it. Only the report leaves out the other
//! calls. The check may not: without a call such as a write, a correct history could seem wrong.
//!
//! Source: Wing and Gong, "Testing and verifying concurrent objects", 1993; Lowe, "Testing for
//! linearizability", 2016; Horn and Kroening, "Faster linearizability checking via
//! P-compositionality", 2015.

use crate::{
    history::{Call, History},
    rng::Seed,
};
use std::{
    collections::HashSet,
    fmt::{Debug, Write as _},
    hash::Hash,
    mem,
};

const SHOWN_BEFORE: usize = 12;

/// A sequential model of the code under test. It computes the correct results.
///
/// The search clones the model's state at each step, so the state should be small or share
/// structure.
///
/// ```
/// use corewalk_testkit::linearize::Spec;
///
/// #[derive(Clone, PartialEq, Eq, Hash, Debug)]
/// struct Register(u32);
///
/// #[derive(Debug)]
/// enum Op {
///     Read,
///     Write(u32),
/// }
///
/// impl Spec for Register {
///     type Op = Op;
///     type Ret = u32;
///
///     fn apply(&mut self, op: &Op) -> u32 {
///         match op {
///             Op::Read => self.0,
///             Op::Write(value) => std::mem::replace(&mut self.0, *value),
///         }
///     }
/// }
/// assert_eq!(Register(1).apply(&Op::Write(2)), 1);
/// ```
pub trait Spec: Clone + Eq + Hash {
    /// An operation.
    type Op: Debug;
    /// A result.
    type Ret: Debug + PartialEq;

    /// Runs `op` on the model and returns the correct result.
    fn apply(&mut self, op: &Self::Op) -> Self::Ret;

    /// Returns true if `seen` is a permitted result of `op`, where `right` is the model's result.
    ///
    /// By default `seen` must equal `right`. Override this if an operation may have other results,
    /// such as "try again". Whatever the override permits, the model keeps the state in which
    /// `apply` left it.
    fn accepts(&self, op: &Self::Op, right: &Self::Ret, seen: &Self::Ret) -> bool {
        let _ = op;
        right == seen
    }
}

/// The limit of a search.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    /// Maximum number of distinct search states. A search that reaches more of them gives up. A
    /// search state consists of the calls that are already in the sequence, and of the model's
    /// state after them.
    pub states: usize,
}

impl Default for Limit {
    /// Returns a limit of four million states. Such a search takes a few seconds and a few hundred
    /// MiB.
    fn default() -> Self {
        Self { states: 4_000_000 }
    }
}

/// The result of a search.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    /// The history is linearizable. The field is a sequence of the calls that proves it, as indices
    /// into [`History::calls`].
    Linearizable(Vec<usize>),
    /// No sequence explains the results.
    Violated,
    /// The search reached its limit.
    Undecided,
}

/// Checks whether `history` is linearizable, with the model's first state `initial`.
pub fn check<S: Spec>(initial: &S, history: &History<S::Op, S::Ret>, limit: Limit) -> Verdict {
    Search::new(initial, history.calls(), u64::MAX, limit).run()
}

/// Asserts that `history` is linearizable if the model starts in state `initial`.
///
/// # Panics
///
/// Panics with a report and `seed` if the history is not linearizable, or if [`check`] is
/// undecided.
pub fn assert_linearizable<S: Spec + Debug>(
    initial: &S,
    history: &History<S::Op, S::Ret>,
    seed: Seed,
) {
    match check(initial, history, Limit::default()) {
        Verdict::Linearizable(_) => {}
        Verdict::Violated => panic!("{}\n{seed}", report(initial, history, Limit::default())),
        Verdict::Undecided => panic!(
            "the history of {} calls was not decided within {} states: make it shorter\n{seed}",
            history.len(),
            Limit::default().states
        ),
    }
}

/// Returns a report on a history that is not linearizable.
pub fn report<S: Spec + Debug>(
    initial: &S,
    history: &History<S::Op, S::Ret>,
    limit: Limit,
) -> String {
    let calls = history.calls();
    let mut returns: Vec<(u64, usize)> = calls
        .iter()
        .enumerate()
        .filter(|(_, call)| call.ret.is_some())
        .map(|(index, call)| (call.returned, index))
        .collect();
    returns.sort_unstable();
    // The shortest wrong prefix is found by bisection, since a longer prefix than a wrong one is
    // wrong too.
    let first_failing = returns.partition_point(|&(until, _)| {
        Search::new(initial, calls, until, limit).run() != Verdict::Violated
    });
    let Some(&(until, failing)) = returns.get(first_failing) else {
        return "no prefix of the history fails: it is linearizable or was not decided".to_owned();
    };
    let longest = first_failing
        .checked_sub(1)
        .map(|last_good| Search::new(initial, calls, returns[last_good].0, limit).run());
    describe(initial, calls, failing, until, longest)
}

fn describe<S: Spec + Debug>(
    initial: &S,
    calls: &[Call<S::Op, S::Ret>],
    failing: usize,
    until: u64,
    before: Option<Verdict>,
) -> String {
    let mut text = String::new();
    let mut line = |part: String| {
        let _ = writeln!(text, "{part}");
    };
    let order = match before {
        Some(Verdict::Linearizable(order)) => order,
        _ => Vec::new(),
    };
    let mut state = initial.clone();
    for &index in &order {
        state.apply(&calls[index].op);
    }
    let known = calls.iter().filter(|call| call.invoked < until).count();
    line(format!("not linearizable: no order of the first {known} calls explains this result:"));
    line(format!("  {}", calls[failing]));
    line("calls that overlap it:".to_owned());
    let bad = &calls[failing];
    for (index, call) in calls.iter().enumerate() {
        let overlaps = call.invoked < until && call.returned > bad.invoked;
        if overlaps && index != failing {
            line(format!("  {call}"));
        }
    }
    line("an explanation of the calls that returned earlier ends with:".to_owned());
    for &index in &order[order.len().saturating_sub(SHOWN_BEFORE)..] {
        line(format!("  {}", calls[index]));
    }
    line(format!("the state after it: {state:?}"));
    text
}

struct Search<'h, S: Spec> {
    calls: &'h [Call<S::Op, S::Ret>],
    is_answered: Vec<bool>,
    limit: Limit,
    events: EventList,
    state: S,
    taken: BitSet,
    /// The sequence of calls that the search has built, each with the model's state before it.
    stack: Vec<(usize, S)>,
    seen: HashSet<(BitSet, S)>,
    /// Calls within the checked prefix that are not in the sequence yet.
    missing: usize,
}

impl<'h, S: Spec> Search<'h, S> {
    fn new(initial: &S, calls: &'h [Call<S::Op, S::Ret>], until: u64, limit: Limit) -> Self {
        let is_answered: Vec<bool> =
            calls.iter().map(|call| call.ret.is_some() && call.returned <= until).collect();
        let mut events = Vec::with_capacity(calls.len() * 2);
        for (index, call) in calls.iter().enumerate().filter(|(_, call)| call.invoked <= until) {
            // At equal times, an invocation comes before a return, so that the two calls overlap.
            events.push((call.invoked, 0, EventList::invocation(index)));
            if is_answered[index] {
                events.push((call.returned, 1, EventList::answer(index)));
            }
        }
        events.sort_unstable();
        Self {
            missing: is_answered.iter().filter(|&&answered| answered).count(),
            is_answered,
            calls,
            limit,
            events: EventList::new(calls.len(), events.into_iter().map(|(_, _, node)| node)),
            state: initial.clone(),
            taken: BitSet::new(calls.len()),
            stack: Vec::new(),
            seen: HashSet::new(),
        }
    }

    fn run(mut self) -> Verdict {
        let mut node = self.events.after(HEAD);
        loop {
            if self.missing == 0 {
                return Verdict::Linearizable(
                    self.stack.into_iter().map(|(index, _)| index).collect(),
                );
            }
            let step = match EventList::invoked_call(node) {
                Some(index) => self.take(index),
                None => Step::Blocked,
            };
            node = match step {
                Step::Taken => self.events.after(HEAD),
                Step::Refused => self.events.after(node),
                Step::Exhausted => return Verdict::Undecided,
                Step::Blocked => match self.put_back() {
                    Some(index) => self.events.after(EventList::invocation(index)),
                    None => return Verdict::Violated,
                },
            };
        }
    }

    /// Tries to append the call `index` to the sequence. Refuses the call if the model does not
    /// permit its result. Also refuses it if the search has already visited this set of calls with
    /// this state of the model.
    fn take(&mut self, index: usize) -> Step {
        let call = &self.calls[index];
        let mut next = self.state.clone();
        let right = next.apply(&call.op);
        if let Some(seen) = call.ret.as_ref().filter(|_| self.is_answered[index])
            && !self.state.accepts(&call.op, &right, seen)
        {
            return Step::Refused;
        }
        self.taken.insert(index);
        if !self.seen.insert((self.taken.clone(), next.clone())) {
            self.taken.remove(index);
            return Step::Refused;
        }
        if self.seen.len() > self.limit.states {
            return Step::Exhausted;
        }
        let before = mem::replace(&mut self.state, next);
        self.stack.push((index, before));
        self.events.unlink(index, self.is_answered[index]);
        self.missing -= usize::from(self.is_answered[index]);
        Step::Taken
    }

    fn put_back(&mut self) -> Option<usize> {
        let (index, before) = self.stack.pop()?;
        self.state = before;
        self.taken.remove(index);
        self.events.relink(index, self.is_answered[index]);
        self.missing += usize::from(self.is_answered[index]);
        Some(index)
    }
}

enum Step {
    Taken,
    Refused,
    /// No further call can be next, so an earlier choice was wrong. The next event is the return of
    /// a call that is not in the sequence, and the other calls were invoked later.
    Blocked,
    Exhausted,
}

/// A doubly linked ring of the events (invocations and returns) of the remaining calls, ordered by
/// time.
///
/// # Invariants
///
/// Node 0 is the head of the ring. Call `i` has the nodes `2 * i + 1` (invocation) and `2 * i + 2`
/// (return). An unlinked node keeps its own links. So nodes must be linked again in the reverse
/// order of their unlinking.
struct EventList {
    next: Vec<usize>,
    prev: Vec<usize>,
}

const HEAD: usize = 0;

impl EventList {
    fn new(calls: usize, nodes: impl Iterator<Item = usize>) -> Self {
        let mut list = Self { next: vec![HEAD; 2 * calls + 1], prev: vec![HEAD; 2 * calls + 1] };
        let mut last = HEAD;
        for node in nodes {
            list.next[last] = node;
            list.prev[node] = last;
            last = node;
        }
        list.next[last] = HEAD;
        list.prev[HEAD] = last;
        list
    }

    fn invocation(call: usize) -> usize {
        2 * call + 1
    }

    fn answer(call: usize) -> usize {
        2 * call + 2
    }

    /// Returns the call whose invocation is `node`. Returns None for a return or the head of the
    /// list.
    fn invoked_call(node: usize) -> Option<usize> {
        (node % 2 == 1).then_some(node / 2)
    }

    fn after(&self, node: usize) -> usize {
        self.next[node]
    }

    fn unlink(&mut self, call: usize, is_answered: bool) {
        self.unlink_node(Self::invocation(call));
        if is_answered {
            self.unlink_node(Self::answer(call));
        }
    }

    fn relink(&mut self, call: usize, is_answered: bool) {
        if is_answered {
            self.relink_node(Self::answer(call));
        }
        self.relink_node(Self::invocation(call));
    }

    fn unlink_node(&mut self, node: usize) {
        let (prev, next) = (self.prev[node], self.next[node]);
        self.next[prev] = next;
        self.prev[next] = prev;
    }

    fn relink_node(&mut self, node: usize) {
        let (prev, next) = (self.prev[node], self.next[node]);
        self.next[prev] = node;
        self.prev[next] = node;
    }
}

#[derive(Clone, PartialEq, Eq, Hash)]
struct BitSet {
    words: Box<[u64]>,
}

impl BitSet {
    fn new(len: usize) -> Self {
        Self { words: vec![0; len.div_ceil(64)].into_boxed_slice() }
    }

    fn insert(&mut self, index: usize) {
        self.words[index / 64] |= 1 << (index % 64);
    }

    fn remove(&mut self, index: usize) {
        self.words[index / 64] &= !(1 << (index % 64));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
    struct Register(u8);

    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    enum Op {
        Read,
        Write(u8),
        Swap(u8),
    }

    impl Spec for Register {
        type Op = Op;
        type Ret = u8;

        fn apply(&mut self, op: &Op) -> u8 {
            match *op {
                Op::Read => self.0,
                Op::Write(value) => {
                    self.0 = value;
                    0
                }
                Op::Swap(value) => mem::replace(&mut self.0, value),
            }
        }
    }

    fn verdict(calls: Vec<Call<Op, u8>>) -> Verdict {
        check(&Register::default(), &History::from_calls(calls), Limit::default())
    }

    fn is_linearizable(calls: Vec<Call<Op, u8>>) -> bool {
        matches!(verdict(calls), Verdict::Linearizable(_))
    }

    #[test]
    fn empty_history_is_linearizable() {
        assert_eq!(verdict(vec![]), Verdict::Linearizable(vec![]));
    }

    #[test]
    fn read_during_a_write_may_see_either_value() {
        for seen in [0, 7] {
            assert!(is_linearizable(vec![
                Call::finished(0, 0, 3, Op::Write(7), 0),
                Call::finished(1, 1, 2, Op::Read, seen),
            ]));
        }
    }

    #[test]
    fn control_stale_read_after_a_write_is_rejected() {
        let calls =
            vec![Call::finished(0, 0, 1, Op::Write(7), 0), Call::finished(1, 2, 3, Op::Read, 0)];
        assert_eq!(verdict(calls), Verdict::Violated);
    }

    #[test]
    fn control_new_then_old_read_is_rejected() {
        // During a write, the second of two reads must not return the old value if the first has
        // returned the new one.
        let calls = vec![
            Call::finished(0, 0, 9, Op::Write(7), 0),
            Call::finished(1, 1, 2, Op::Read, 7),
            Call::finished(2, 3, 4, Op::Read, 0),
        ];
        assert_eq!(verdict(calls), Verdict::Violated);
    }

    #[test]
    fn control_value_out_of_thin_air_is_rejected() {
        assert_eq!(verdict(vec![Call::finished(0, 0, 1, Op::Read, 9)]), Verdict::Violated);
    }

    #[test]
    fn call_that_never_returned_may_have_happened_or_not() {
        for seen in [0, 7] {
            assert!(is_linearizable(vec![
                Call::pending(0, 0, Op::Write(7)),
                Call::finished(1, 1, 2, Op::Read, seen),
            ]));
        }
        assert!(!is_linearizable(vec![
            Call::pending(0, 2, Op::Write(7)),
            Call::finished(1, 0, 1, Op::Read, 7),
        ]));
    }

    #[test]
    fn calls_that_meet_at_one_time_overlap() {
        assert!(is_linearizable(vec![
            Call::finished(0, 0, 1, Op::Write(7), 0),
            Call::finished(1, 1, 2, Op::Read, 0),
        ]));
    }

    #[test]
    fn search_beyond_its_limit_is_undecided() {
        let calls = (0..12).map(|t| Call::finished(t, t as u64, 90 + t as u64, Op::Swap(1), 5));
        let history = History::from_calls(calls.collect());
        let found = check(&Register::default(), &history, Limit { states: 0 });
        assert_eq!(found, Verdict::Violated, "no call can be taken, so no pair is stored");
        let calls = (0..12).map(|t| Call::finished(t, t as u64, 90 + t as u64, Op::Write(1), 0));
        let history = History::from_calls(calls.collect());
        let found = check(&Register::default(), &history, Limit { states: 4 });
        assert_eq!(found, Verdict::Undecided);
    }

    #[test]
    fn long_history_of_two_threads_is_decided_without_recursion() {
        const ROUNDS: u64 = if cfg!(miri) { 50 } else { 50_000 };
        let mut calls = Vec::new();
        for round in 0..ROUNDS {
            let at = round * 4;
            let value = (round % 250) as u8 + 1;
            calls.push(Call::finished(0, at, at + 2, Op::Write(value), 0));
            calls.push(Call::finished(1, at + 1, at + 3, Op::Read, value));
        }
        // In each step, the search copies a set with one bit per call. To keep that set small, the
        // calls are checked in several histories.
        for part in calls.chunks(2_000) {
            assert!(is_linearizable(part.to_vec()));
        }
    }

    #[test]
    fn report_ends_with_the_first_wrong_result() {
        let mut calls = Vec::new();
        for round in 0..100_u64 {
            let value = round as u8;
            calls.push(Call::finished(0, round * 10, round * 10 + 1, Op::Write(value), 0));
            let seen = if round == 40 { 39 } else { value };
            calls.push(Call::finished(1, round * 10 + 2, round * 10 + 3, Op::Read, seen));
        }
        let text = report(&Register::default(), &History::from_calls(calls), Limit::default());
        assert!(text.contains("[   402 ..    403] thread 1   Read -> 39"), "{text}");
        assert!(text.contains("the state after it: Register(40)"), "{text}");
        assert!(!text.contains("Write(41)"), "{text}");
    }

    #[test]
    #[should_panic(expected = "COREWALK_SEED=0x000000000000002a")]
    fn assertion_on_a_wrong_history_names_the_seed() {
        let history = History::from_calls(vec![Call::finished(0, 0, 1, Op::Read, 1)]);
        assert_linearizable(&Register::default(), &history, Seed(42));
    }

    fn is_linearizable_by_force(calls: &[Call<Op, u8>]) -> bool {
        fn extend(calls: &[Call<Op, u8>], taken: u32, state: &Register) -> bool {
            let left = |index: &usize| taken & (1 << index) == 0;
            let mut open = (0..calls.len()).filter(left);
            if open.all(|index| calls[index].ret.is_none()) {
                return true;
            }
            (0..calls.len()).filter(left).any(|index| {
                let call = &calls[index];
                let must_wait =
                    (0..calls.len()).filter(left).any(|other| calls[other].returned < call.invoked);
                let mut next = state.clone();
                let right = next.apply(&call.op);
                !must_wait
                    && call.ret.is_none_or(|seen| seen == right)
                    && extend(calls, taken | 1 << index, &next)
            })
        }
        extend(calls, 0, &Register::default())
    }

    fn small_history() -> impl Strategy<Value = Vec<Call<Op, u8>>> {
        let op = prop_oneof![
            Just(Op::Read),
            (0..3_u8).prop_map(Op::Write),
            (0..3_u8).prop_map(Op::Swap)
        ];
        let call = (0..3_usize, op, 0..3_u8, 1..6_u64, 0..4_u64, 0..8_u8);
        prop::collection::vec(call, 0..8).prop_map(|draws| {
            let mut free_at = [Some(0_u64); 3];
            let mut calls = Vec::new();
            for (thread, op, ret, lasts, pause, fate) in draws {
                let Some(free) = free_at[thread] else { continue };
                let invoked = free + pause;
                let ret = if matches!(op, Op::Write(_)) { 0 } else { ret };
                free_at[thread] = (fate > 0).then_some(invoked + lasts);
                calls.push(match free_at[thread] {
                    Some(returned) => Call::finished(thread, invoked, returned, op, ret),
                    None => Call::pending(thread, invoked, op),
                });
            }
            calls
        })
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(if cfg!(miri) { 10 } else { 4_000 }))]

        #[test]
        fn search_agrees_with_brute_force(calls in small_history()) {
            let is_right = is_linearizable_by_force(&calls);
            match verdict(calls.clone()) {
                Verdict::Linearizable(order) => {
                    prop_assert!(is_right);
                    let history = History::from_calls(calls);
                    let mut state = Register::default();
                    for index in order {
                        let call = &history.calls()[index];
                        let answer = state.apply(&call.op);
                        prop_assert!(call.ret.is_none_or(|seen| seen == answer));
                    }
                }
                Verdict::Violated => prop_assert!(!is_right),
                Verdict::Undecided => prop_assert!(false, "seven calls are within the limit"),
            }
        }
    }

    #[test]
    fn drawn_histories_are_of_both_kinds() {
        // Tests with random histories prove something only if some of the histories are
        // linearizable and others are not.
        use proptest::{strategy::ValueTree, test_runner::TestRunner};
        let mut runner = TestRunner::deterministic();
        const DRAWS: usize = if cfg!(miri) { 25 } else { 500 };
        let mut counts = [0; 2];
        for _ in 0..DRAWS {
            let calls = small_history().new_tree(&mut runner).expect("drawn").current();
            counts[usize::from(is_linearizable_by_force(&calls))] += 1;
        }
        assert!(counts.iter().all(|&count| count > DRAWS / 10), "{counts:?}");
    }
}
