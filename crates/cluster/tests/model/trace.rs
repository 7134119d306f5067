//! Traces that a reader can follow.

use super::rules::Scenario;
use super::state::{CACHED, HELD, State};
use super::steps::Step;

pub(crate) fn line(scenario: &Scenario, before: &State, step: &Step) -> String {
    let after = &step.state;
    let mut changes = Vec::new();
    if before.db.version != after.db.version {
        changes.push(format!("v{} is committed", after.db.version));
    }
    if before.db.home != after.db.home {
        changes.push(format!("the item is in directory {}", after.db.home));
    }
    for (dir, (old, new)) in before.db.leases.iter().zip(&after.db.leases).enumerate() {
        if old != new {
            changes.push(format!("leases on directory {dir}: {}", mounts(*new)));
        }
    }
    for m in 0..scenario.mounts {
        let name = name(m);
        let (old, new) = (&before.mounts[m], &after.mounts[m]);
        for (old, new) in old.cache.iter().zip(&new.cache).filter(|(old, new)| old != new) {
            changes.push(match (*new, *old) {
                (HELD, _) => format!("{name} holds the directory without the item"),
                (item, _) if item >= CACHED => format!("{name} caches v{}", item - CACHED),
                (_, old) if old >= CACHED => format!("{name} drops v{}", old - CACHED),
                _ => format!("{name} caches nothing"),
            });
        }
        if old.kernel != new.kernel {
            changes.push(match new.kernel {
                0 => format!("the kernel of {name} has nothing"),
                version => format!(
                    "the kernel of {name} has v{} for {} ticks",
                    version - 1,
                    new.kernel_left
                ),
            });
        }
        if scenario.has_time() {
            if old.own != new.own {
                changes.push(format!("{name} trusts its lease for {} ticks", new.own));
            }
            if before.db.until[m] != after.db.until[m] {
                changes.push(format!("the database ends {name} in {} ticks", after.db.until[m]));
            }
        }
    }
    if before.floor != after.floor {
        changes.push(format!("v{} has been seen", after.floor));
    }
    format!("  {}: {} [{}]", name(step.mount), step.event.text(), changes.join("; "))
}

fn name(m: usize) -> &'static str {
    ["A", "B", "C", "-"][m]
}

fn mounts(mask: u8) -> String {
    let names: Vec<_> = (0..3).filter(|m| mask & (1 << m) != 0).map(name).collect();
    if names.is_empty() { "none".to_owned() } else { names.join(" and ") }
}
