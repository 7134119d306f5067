//! The steps that a state permits.

use super::rules::Scenario;
use super::state::State;
use super::{change, clock, holder, reader};

macro_rules! events {
    ($($name:ident: $text:literal,)*) => {
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        pub(crate) enum Event { $($name,)* }

        impl Event {
            pub(crate) const COUNT: usize = [$($text),*].len();

            pub(crate) fn text(self) -> &'static str {
                match self { $(Self::$name => $text,)* }
            }
        }
    };
}

events! {
    KernelRead: "a program reads; the kernel answers from its cache",
    ClockChecked: "the server looks at its clock: the lease is good",
    CachedRead: "a program reads; the server answers from its cache",
    ReplyTaken: "the kernel takes the reply and starts its timeout",
    FillSnapped: "the database reads for a fill, and waits for the lock",
    FillRun: "a program reads; the database runs the fill",
    FillCached: "the answer of the fill arrives and is cached",
    FillLost: "the answer of the fill is lost",
    ChangeBegun: "a change begins; the server drops its cached answer",
    OwnExpired: "the kernel's entries are expired for the change",
    ChangeStarted: "the database begins with the change",
    ChangeRefused: "the database begins again: the item has moved",
    ChangeApplied: "the database applies the change",
    ChangeRepeated: "the database finds the change in its slot",
    ChangeContended: "the database finds a lease and keeps an intent",
    ChangeInGrace: "the database refuses the change: it waits after the crash",
    ChangeFenced: "the database refuses the change: the session is over",
    ChangeConfirmed: "the answer arrives: the change is confirmed",
    ChangeFailed: "the change fails: its file lock is lost",
    ChangeLost: "the connection ends; the change or its answer is lost",
    ChangeLate: "the connection ends; a copy of the change stays in its buffer",
    LateStarted: "a late copy of a change passes the look at its slot",
    LateRun: "a late copy of the change is run",
    HolderMarked: "the holder hears of the intent and drops its cached answer",
    HolderExpired: "the holder expires the kernel's entries",
    AckRun: "the database takes the acknowledgement",
    AckLost: "the connection ends; the acknowledgement is lost",
    AckLate: "the connection ends; a copy of the acknowledgement stays in its buffer",
    LateAckRun: "a late copy of the acknowledgement is taken",
    RenewalEvaluated: "the database tests the session for a renewal, not yet committed",
    RenewalCommitted: "the renewal is committed and its answer arrives",
    RenewalUnanswered: "the renewal is committed, but its answer is lost",
    RenewalRefused: "the database refuses a renewal: the session is over",
    RenewalLost: "the renewal is lost",
    BootSeen: "an answer has another boot id: everything is dropped",
    FileLockTaken: "a program gets the file lock, as the session that had it is over",
    SessionOpened: "the mount drops everything and opens a new session",
    Calmed: "the directory was quiet for a while",
    Tick: "time passes",
    Suspended: "time passes; this machine is suspended, and its kernel does not count",
    SlowTick: "time passes, but this machine's clock misses it",
    SessionExpired: "time passes; a session ends without a renewal",
    Crash: "the database crashes and starts again",
    CrashWithOldRows: "the database crashes and starts again, without the last renewals",
    Killed: "the mount is killed",
}

pub(crate) struct Step {
    pub(crate) event: Event,
    pub(crate) mount: usize,
    pub(crate) state: State,
    /// True if the step is progress. False for faults, and for the end of a running mount's
    /// session.
    pub(crate) is_helpful: bool,
    pub(crate) broken: Option<&'static str>,
}

pub(crate) struct Steps<'a> {
    pub(crate) scenario: &'a Scenario,
    pub(crate) from: &'a State,
    pub(crate) found: &'a mut Vec<Step>,
}

impl Steps<'_> {
    pub(crate) fn add(&mut self, event: Event, mount: usize, state: State) {
        self.add_checked(event, mount, state, None);
    }

    pub(crate) fn add_fault(&mut self, event: Event, mount: usize, state: State) {
        self.found.push(Step { event, mount, state, is_helpful: false, broken: None });
    }

    pub(crate) fn add_checked(
        &mut self,
        event: Event,
        mount: usize,
        state: State,
        broken: Option<&'static str>,
    ) {
        self.found.push(Step { event, mount, state, is_helpful: true, broken });
    }
}

pub(crate) fn successors(scenario: &Scenario, state: &State, found: &mut Vec<Step>) {
    let mut steps = Steps { scenario, from: state, found };
    for m in 0..scenario.mounts {
        reader::steps(&mut steps, m);
        change::steps(&mut steps, m);
        holder::steps(&mut steps, m);
        clock::steps_of(&mut steps, m);
    }
    clock::steps(&mut steps);
}
