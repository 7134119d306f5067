//! A back end that reuses inode numbers as early as possible.

use std::collections::HashMap;

use corewalk::tmpfs::Tmpfs;
use corewalk::{Attr, Errno, FileKind, FileSystem, Node};
use corewalk_base::Mutex;

use crate::backends::{Call, Hook};

/// A tmpfs that reuses inode numbers, like most disk file systems. A new inode gets the number of a
/// removed and forgotten one, with the next generation.
#[derive(Default)]
pub(super) struct Recycled {
    numbers: Mutex<Numbers>,
}

#[derive(Default)]
struct Numbers {
    slots: Vec<(u64, u64)>,
    numbers: HashMap<u64, usize>,
    free: Vec<usize>,
}

impl Hook for Recycled {
    fn at(&self, fs: &Tmpfs, call: Call<'_>) -> Result<(), Errno> {
        if let Call::ForgetDone(ino) = call {
            let inner = self.inside(ino);
            if fs.getattr(Node::detached(inner, FileKind::Regular)).is_err() {
                let mut numbers = self.numbers.lock();
                numbers.numbers.remove(&inner);
                numbers.free.push(ino as usize - 1);
            }
        }
        Ok(())
    }

    fn inside(&self, ino: u64) -> u64 {
        self.numbers.lock().slots[ino as usize - 1].0
    }

    fn outside(&self, attr: Attr) -> Attr {
        let mut numbers = self.numbers.lock();
        let slot = match numbers.numbers.get(&attr.ino) {
            Some(slot) => *slot,
            None => {
                let slot = numbers.free.pop().unwrap_or(numbers.slots.len());
                if slot == numbers.slots.len() {
                    numbers.slots.push((0, 0));
                }
                numbers.slots[slot] = (attr.ino, numbers.slots[slot].1 + 1);
                numbers.numbers.insert(attr.ino, slot);
                slot
            }
        };
        attr.with_ino(slot as u64 + 1).with_generation(numbers.slots[slot].1)
    }
}
