//! An exhaustive breadth-first search of the states of a model. The first failure that it finds has
//! a shortest possible trace.

use std::fmt;

use super::pack::{Key, pack};
use super::rules::Scenario;
use super::steps::{Event, Step, successors};
use super::trace;

/// A search with more states than this fails, so that a model without good bounds does not fill the
/// memory.
const MOST_STATES: usize = 6_000_000;

/// The states that were found, as a hash table. Each element of `table` is an index into `keys`
/// plus one, or 0 if the element is empty.
struct Found {
    keys: Vec<Key>,
    parents: Vec<u32>,
    table: Vec<u32>,
}

impl Found {
    fn new() -> Self {
        Self { keys: Vec::new(), parents: Vec::new(), table: vec![0; 1 << 16] }
    }

    fn hash(key: &Key) -> u64 {
        let mut hash = 0_u64;
        for word in key {
            hash = (hash.rotate_left(23) ^ word).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        }
        hash ^ (hash >> 29)
    }

    fn insert(&mut self, key: Key, parent: u32) -> (u32, bool) {
        if self.keys.len() * 2 >= self.table.len() {
            self.grow();
        }
        let mask = self.table.len() - 1;
        let mut place = usize::try_from(Self::hash(&key)).expect("64 bits") & mask;
        while self.table[place] != 0 {
            let index = self.table[place] - 1;
            if self.keys[index as usize] == key {
                return (index, false);
            }
            place = (place + 1) & mask;
        }
        let index = u32::try_from(self.keys.len()).expect("fewer states than 2^32");
        self.table[place] = index + 1;
        self.keys.push(key);
        self.parents.push(parent);
        (index, true)
    }

    fn grow(&mut self) {
        let mask = self.table.len() * 2 - 1;
        self.table = vec![0; mask + 1];
        for (index, key) in (1..).zip(&self.keys) {
            let mut place = usize::try_from(Self::hash(key)).expect("64 bits") & mask;
            while self.table[place] != 0 {
                place = (place + 1) & mask;
            }
            self.table[place] = index;
        }
    }

    fn path(&self, mut index: u32) -> Vec<Key> {
        let mut path = vec![self.keys[index as usize]];
        while index != 0 {
            index = self.parents[index as usize];
            path.push(self.keys[index as usize]);
        }
        path.reverse();
        path
    }
}

pub(crate) struct Failure {
    pub(crate) reason: &'static str,
    pub(crate) trace: Vec<String>,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}\n{}", self.reason, self.trace.join("\n"))
    }
}

pub(crate) struct Outcome {
    pub(crate) states: usize,
    pub(crate) transitions: u64,
    pub(crate) events: [u64; Event::COUNT],
    pub(crate) failure: Option<Failure>,
}

impl Outcome {
    pub(crate) fn count(&self, event: Event) -> u64 {
        self.events[event as usize]
    }
}

pub(crate) fn explore(scenario: &Scenario) -> Outcome {
    let mut found = Found::new();
    let start = scenario.start();
    found.insert(pack(&start, scenario.mounts), 0);
    let mut level = vec![(0_u32, start)];
    let mut steps = Vec::new();
    let mut outcome =
        Outcome { states: 0, transitions: 0, events: [0; Event::COUNT], failure: None };
    let (mut edges, mut goals) = (Vec::new(), Vec::new());
    while !level.is_empty() && outcome.failure.is_none() {
        let mut next = Vec::new();
        for (index, state) in level {
            if scenario.is_goal(&state) {
                goals.push(index);
            }
            steps.clear();
            successors(scenario, &state, &mut steps);
            for step in &steps {
                outcome.transitions += 1;
                outcome.events[step.event as usize] += 1;
                if let Some(reason) = step.broken {
                    let trace = retrace(scenario, &found.path(index), Some(step));
                    outcome.failure.get_or_insert(Failure { reason, trace });
                    continue;
                }
                let (target, is_new) = found.insert(pack(&step.state, scenario.mounts), index);
                if is_new {
                    next.push((target, step.state));
                }
                if step.is_helpful && target != index {
                    edges.push((target, index));
                }
            }
            if outcome.failure.is_some() {
                break;
            }
        }
        assert!(found.keys.len() < MOST_STATES, "{}: too many states", scenario.name);
        level = next;
    }
    outcome.states = found.keys.len();
    if outcome.failure.is_none() {
        outcome.failure = stuck(found.keys.len(), edges, goals).map(|index| Failure {
            reason: "no helpful step leads from here to the end of all changes",
            trace: retrace(scenario, &found.path(index), None),
        });
    }
    outcome
}

/// Returns a state from which no helpful steps lead to the end of all work, if there is one.
fn stuck(states: usize, mut edges: Vec<(u32, u32)>, goals: Vec<u32>) -> Option<u32> {
    edges.sort_unstable();
    let mut reaches = vec![false; states];
    let mut queue = goals;
    queue.iter().for_each(|&goal| reaches[goal as usize] = true);
    while let Some(target) = queue.pop() {
        let first = edges.partition_point(|&(to, _)| to < target);
        for &(_, from) in edges[first..].iter().take_while(|&&(to, _)| to == target) {
            if !std::mem::replace(&mut reaches[from as usize], true) {
                queue.push(from);
            }
        }
    }
    reaches.iter().position(|&reaches| !reaches).and_then(|index| u32::try_from(index).ok())
}

fn retrace(scenario: &Scenario, path: &[Key], last: Option<&Step>) -> Vec<String> {
    let mut state = scenario.start();
    let mut lines = Vec::new();
    for key in &path[1..] {
        let mut steps = Vec::new();
        successors(scenario, &state, &mut steps);
        let step = steps.into_iter().find(|step| pack(&step.state, scenario.mounts) == *key);
        let step = step.expect("the step that the search took");
        lines.push(trace::line(scenario, &state, &step));
        state = step.state;
    }
    lines.extend(last.map(|step| trace::line(scenario, &state, step)));
    lines
}

pub(crate) fn holds(scenario: &Scenario, reached: &[Event]) -> Outcome {
    let outcome = explore(scenario);
    println!(
        "{:<28} {:>9} states {:>10} transitions",
        scenario.name, outcome.states, outcome.transitions
    );
    if let Some(failure) = &outcome.failure {
        panic!("{}: {failure}", scenario.name);
    }
    for &event in reached {
        assert!(outcome.count(event) > 0, "{}: no run reached {event:?}", scenario.name);
    }
    outcome
}
