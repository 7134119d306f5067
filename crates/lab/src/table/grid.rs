//! The grid of a table: every variant in every cell, round by round.
//!
//! All tables measure in the same order. A round visits each cell, and measures its variants right
//! after each other, in an order that depends on the round. Over the rounds each variant goes
//! first, and comes directly after each other variant, as nearly equally often as the number of
//! rounds allows.
//!
//! # How it works
//! A table says beforehand what it is going to measure ([`Grid`]), so that a run's length is known
//! before it starts; [`Rounds::each`] then visits each cell with each variant in each round, and
//! refuses a grid that is larger than what was said. An interrupted
//! run ends between two visits, and removes everything that it made.
//!
//! # What it refuses
//! To measure anything itself: what a visit does is the table's.
//!
//! Source: the house rules for measurements in `docs/developing/style.md`, section 7.

use std::fmt::{self, Display};
use std::time::Duration;

use anyhow::ensure;
use indicatif::{ProgressBar, ProgressStyle};

use super::Settings;
use crate::machine::Disturbance;
use crate::peer::Interrupt;

/// The measurements of a table in one go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Grid {
    /// Sets of parameters.
    pub cells: usize,
    /// The most variants of a cell.
    pub variants: usize,
    /// For how long each is measured in a cell and a round.
    pub slice: Duration,
    /// Rounds.
    pub rounds: usize,
}

/// The rounds of a run of one table.
pub(super) struct Rounds<'a> {
    table: &'static str,
    rounds: usize,
    interrupt: Interrupt,
    settings: &'a Settings,
}

/// A cell of so many threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Threads(pub(super) usize);

/// One variant in one cell and one round.
pub(super) struct Visit<'a, Cell> {
    pub(super) round: usize,
    pub(super) cell: &'a Cell,
    /// The number of the variant.
    pub(super) at: usize,
    /// True for the first visit of a round.
    pub(super) is_first: bool,
}

impl Grid {
    /// Returns a grid in which each variant is measured for `share` of the time per row in each
    /// cell.
    pub(super) fn new(settings: &Settings, cells: usize, variants: usize, share: f64) -> Grid {
        let slice = (settings.time_per_row / settings.rounds as u32).mul_f64(share);
        Grid { cells, variants, slice, rounds: settings.rounds }
    }

    /// Returns the grid with so many times the rounds, where one is short beside what disturbs it.
    pub(super) fn repeated(self, times: usize) -> Grid {
        Grid { rounds: self.rounds * times, ..self }
    }

    /// Returns how long all of it takes, but for what stands between the slices.
    pub(crate) fn time(&self) -> Duration {
        self.slice * (self.cells * self.variants * self.rounds) as u32
    }
}

impl<'a> Rounds<'a> {
    /// Begins a run of the table; from here on an interrupt is noticed.
    ///
    /// # Errors
    /// If signals cannot be watched.
    pub(super) fn begin(table: &'static str, settings: &'a Settings) -> anyhow::Result<Rounds<'a>> {
        Ok(Rounds { table, rounds: settings.rounds, interrupt: Interrupt::watch()?, settings })
    }

    /// Visits each cell with each variant in each round, in another order each time.
    ///
    /// # Errors
    /// If a visit fails, the user interrupts the run, or there is more than `grid`.
    pub(super) fn each<Cell: Display>(
        &self,
        grid: &Grid,
        (cells, variants): (&[Cell], usize),
        mut visit: impl FnMut(Visit<'_, Cell>) -> anyhow::Result<()>,
    ) -> anyhow::Result<()> {
        ensure!(
            cells.len() == grid.cells
                && variants <= grid.variants
                && grid.rounds.is_multiple_of(self.rounds),
            "{}: {variants} variants in {} cells are not {grid:?}",
            self.table,
            cells.len()
        );
        eprintln!("{}: measures for about {:.0} s", self.table, grid.time().as_secs_f64());
        let bar = progress(cells.len() * grid.rounds);
        let disturbance = Disturbance::start();
        for round in 0..grid.rounds {
            for (nth, cell) in cells.iter().enumerate() {
                bar.set_message(cell.to_string());
                for (turn, at) in balanced(variants, round).enumerate() {
                    self.interrupt.check()?;
                    visit(Visit { round, cell, at, is_first: nth == 0 && turn == 0 })?;
                }
                bar.inc(1);
            }
        }
        bar.finish_and_clear();
        let share = 100.0 * disturbance.share();
        eprintln!("{}: other processes used {share:.0} % of the machine", self.table);
        Ok(())
    }

    /// Returns the name of the table.
    pub(super) fn table(&self) -> &'static str {
        self.table
    }

    /// Returns the settings of the run.
    pub(super) fn settings(&self) -> &'a Settings {
        self.settings
    }

    /// Returns an error once the user has interrupted the run.
    ///
    /// # Errors
    /// See above.
    pub(super) fn check(&self) -> anyhow::Result<()> {
        self.interrupt.check()
    }

    /// Returns the numbers of threads that each have a processor, of those that are asked for.
    pub(super) fn threads(&self) -> Vec<Threads> {
        let threads = self.settings.threads_with_processors();
        let rest: Vec<_> = self.settings.threads.iter().filter(|n| !threads.contains(n)).collect();
        if !rest.is_empty() {
            eprintln!(
                "{}: skipped {rest:?} threads, for which there are too few cores",
                self.table
            );
        }
        threads.into_iter().map(Threads).collect()
    }
}

impl Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "threads={}", self.0)
    }
}

/// Returns a bar on a terminal for `steps` steps; nothing is shown elsewhere.
fn progress(steps: usize) -> ProgressBar {
    let bar = ProgressBar::new(steps as u64);
    if let Ok(style) = ProgressStyle::with_template("{wide_bar} {pos}/{len} {eta} {msg}") {
        bar.set_style(style);
    }
    bar
}

/// Returns the numbers below `count` in an order that depends on the round.
///
/// Over `count` rounds, or twice as many if it is odd, each number goes first equally often. Each
/// stands directly behind each other one equally often, since a variant finds caches and memory as
/// the one before left them.
///
/// Source: Williams, "Experimental designs balanced for the estimation of residual effects of
/// treatments", 1949.
fn balanced(count: usize, round: usize) -> impl Iterator<Item = usize> {
    // There and back: 0, 1, -1, 2, -2 ...
    let zigzag = move |at: usize| if at % 2 == 1 { at.div_ceil(2) } else { count - at / 2 };
    let is_mirrored = count % 2 == 1 && round % 2 == 1;
    (0..count).map(move |at| {
        let at = if is_mirrored { count - 1 - at } else { at };
        (zigzag(at) + round) % count
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::table::quick;

    /// The control is at the end: an order that is only turned has the same one before each.
    #[test]
    fn everybody_goes_first_and_behind_each_other_equally_often() {
        let most_and_least = |count: usize, order: &dyn Fn(usize) -> Vec<usize>| {
            let (mut first, mut behind) = (vec![0; count], vec![vec![0; count]; count]);
            for order in (0..2 * count).map(order) {
                first[order[0]] += 1;
                order.windows(2).for_each(|pair| behind[pair[1]][pair[0]] += 1);
            }
            let pairs = behind.iter().enumerate().flat_map(|(at, before)| {
                before.iter().enumerate().filter(move |(other, _)| *other != at).map(|(_, n)| *n)
            });
            assert_eq!(first, vec![2; count]);
            (pairs.clone().max(), pairs.min())
        };
        for count in 2..8 {
            let balanced = |round| balanced(count, round).collect();
            assert_eq!(most_and_least(count, &balanced), (Some(2), Some(2)), "{count}");
        }
        assert_eq!(balanced(1, 3).collect::<Vec<_>>(), [0]);
        let turned = |round| (0..5).map(|at| (at + round) % 5).collect();
        assert_eq!(most_and_least(5, &turned), (Some(8), Some(0)));
    }

    #[test]
    fn every_variant_is_in_every_cell_once_per_round() {
        let settings = quick::settings();
        let rounds = Rounds::begin("grid", &settings).unwrap();
        let grid = Grid::new(&settings, 2, 3, 1.0);
        let mut seen = vec![];
        rounds
            .each(&grid, (&["a", "b"], 3), |visit| {
                seen.push((visit.round, *visit.cell, visit.at, visit.is_first));
                Ok(())
            })
            .unwrap();
        assert_eq!(
            seen[..4],
            [(0, "a", 0, true), (0, "a", 1, false), (0, "a", 2, false), (0, "b", 0, false)]
        );
        assert_eq!(seen[6], (1, "a", 0, true));
        assert_eq!(seen.len(), 2 * 3 * settings.rounds);
        seen.sort_unstable();
        seen.dedup_by_key(|(round, cell, at, _)| (*round, *cell, *at));
        assert_eq!(seen.len(), 2 * 3 * settings.rounds, "nobody twice");
    }

    #[test]
    fn grid_that_is_larger_than_it_said_is_refused() {
        let settings = quick::settings();
        let rounds = Rounds::begin("grid", &settings).unwrap();
        let grid = Grid::new(&settings, 1, 1, 1.0);
        for (cells, variants) in [(&["a", "b"][..], 1), (&["a"], 2), (&[], 1)] {
            let outcome = rounds.each(&grid, (cells, variants), |_| Ok(()));
            assert!(outcome.is_err_and(|error| error.to_string().contains("are not Grid")));
        }
        assert!(rounds.each(&grid, (&["a"], 1), |_| anyhow::bail!("a wrong answer")).is_err());
    }

    #[test]
    fn time_is_that_of_all_slices() {
        let settings = quick::settings();
        let time = Grid::new(&settings, 4, 3, 0.5).time();
        assert_eq!(time, settings.time_per_row * 6);
    }
}
