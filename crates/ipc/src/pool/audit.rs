//! A check of a pool that no task uses.

use corewalk_base::Region;

use super::{CLASSES, LOCK, NEXT_FREE, NEXT_FRESH, Pool};
use crate::field::get;

impl Pool {
    /// Checks the pool. The error describes the first fault.
    pub(crate) fn audit(&self, region: &Region) -> Result<(), String> {
        let head = region.line(self.head);
        if get(&head[LOCK]) != 0 {
            return Err("a pool's lock is held".to_owned());
        }
        let mut listed = Vec::new();
        for class in 0..CLASSES {
            let mut line = get(self.list(region, class)) as u32;
            while line != 0 {
                let header = self.header(region, line).ok_or("a list leads nowhere")?;
                if header.is_used() || header.class() != class || listed.contains(&line) {
                    return Err(format!("line {line} is in a list that is not its own"));
                }
                listed.push(line);
                line = get(&region.line(line)[NEXT_FREE]) as u32;
            }
        }
        let mut free: Vec<u32> = self
            .ranges(region)
            .filter(|(_, header)| !header.is_used())
            .map(|(line, _)| line)
            .collect();
        listed.sort_unstable();
        free.sort_unstable();
        if listed != free {
            return Err(format!("free are {free:?}, in lists {listed:?}"));
        }
        let end = self
            .ranges(region)
            .last()
            .map_or(0, |(line, header)| u64::from(line - self.first) + (1 << header.class()));
        let fresh = get(&head[NEXT_FRESH]);
        if end == fresh { Ok(()) } else { Err(format!("fresh from {fresh}, ranges end at {end}")) }
    }
}
