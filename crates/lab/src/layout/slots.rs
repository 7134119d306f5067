//! Names in type-stable slots: one cache line per dentry, with a sequence that says whether what was
//! read belongs together.
//!
//! ```text
//! word 0  sequence
//! word 1  parent << 32 | name length
//! word 2  free (a real dentry has its inode and flags there)
//! 3 .. 7  name bytes, or in word 3 the slot of a longer name
//! ```
//! Readers need no guard: every index leads to valid memory for as long as the table lives.
//!
//! # Locks
//! Renames take one lock, then the table's.
//!
//! Source: `corewalk::dentry`, of which this is the smallest part that can be compared.

use std::io;

use ahash::RandomState;
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use corewalk_sync::{SeqCount, SlotArena};

use super::buckets::Buckets;
use super::{Climb, Level};
use crate::baseline::{Namespace, components};
use crate::corpus::{Corpus, ROOT};

/// Words of a dentry.
const WORDS: usize = 8;
/// Bytes of a name that lie in the dentry.
const INLINE_BYTES: usize = 40;
/// The same in words.
const NAME_WORDS: usize = INLINE_BYTES / 8;
/// Words of a slot for a longer name.
const LONG_WORDS: usize = 32;

/// The dentries.
pub(crate) struct Slots {
    dentries: SlotArena<WORDS>,
    long: SlotArena<LONG_WORDS>,
    table: Buckets,
    hasher: RandomState,
    entries: u64,
    renames: Mutex<()>,
}

/// A name as words.
struct Needle<'a> {
    name: &'a [u8],
    words: [u64; NAME_WORDS],
}

impl<'a> Needle<'a> {
    #[inline]
    fn new(name: &'a [u8]) -> Needle<'a> {
        Needle { name, words: inline_words(name) }
    }
}

impl Slots {
    /// Returns the dentries of `corpus`: the slot of each is its inode number.
    ///
    /// # Errors
    /// `ENOMEM` if the arenas cannot be mapped.
    pub(crate) fn load(corpus: &Corpus) -> io::Result<Slots> {
        let slots_max = corpus.len() as u32 + 64;
        let slots = Slots {
            dentries: SlotArena::new("lab-dentries", slots_max)?,
            long: SlotArena::new("lab-long-names", slots_max)?,
            table: Buckets::new(corpus.len())?,
            hasher: RandomState::new(),
            entries: corpus.len() as u64,
            renames: Mutex::new(()),
        };
        for ino in corpus.inodes() {
            let slot = slots.dentries.alloc().expect("there is a slot for each entry");
            assert_eq!(u64::from(slot), ino, "a new arena counts from 1");
            let (parent, name) = (corpus.parent(ino) as u32, corpus.name(ino));
            slots.store(slot, parent, name);
            if ino != ROOT {
                slots.table.insert(slots.hash(parent, name), slot);
            }
        }
        Ok(slots)
    }

    #[inline]
    fn hash(&self, parent: u32, name: &[u8]) -> u64 {
        self.hasher.hash_one((parent, name))
    }

    #[inline]
    fn seq(&self, slot: u32) -> &SeqCount {
        SeqCount::from_word(&self.dentries.get(slot)[0])
    }

    /// Stores a name; the caller is inside a write section, or nobody can find the slot yet.
    fn store(&self, slot: u32, parent: u32, name: &[u8]) {
        let words = self.dentries.get(slot);
        let mut inline = Needle::new(name).words;
        if name.len() > INLINE_BYTES {
            let long = self.long.alloc().expect("there is a slot for each name");
            let mut bytes = [0; 8 * LONG_WORDS];
            bytes[..name.len()].copy_from_slice(name);
            for (word, new) in self.long.get(long).iter().zip(to_words::<LONG_WORDS>(&bytes)) {
                // ORDERING: Relaxed. Data of a sequence section.
                word.store(new, Ordering::Relaxed);
            }
            inline[0] = u64::from(long);
        }
        // ORDERING: Relaxed. Data of a sequence section.
        words[1].store((u64::from(parent) << 32) | name.len() as u64, Ordering::Relaxed);
        for (word, new) in words[3..].iter().zip(inline) {
            // ORDERING: Relaxed. As above.
            word.store(new, Ordering::Relaxed);
        }
    }

    #[inline]
    fn find(&self, parent: u32, name: &[u8]) -> Option<u32> {
        let needle = Needle::new(name);
        let head = (u64::from(parent) << 32) | name.len() as u64;
        self.table.find(self.hash(parent, name), |slot| {
            let words = self.dentries.get(slot);
            loop {
                let seq = self.seq(slot).read_begin();
                // ORDERING: Relaxed. Data of a sequence section.
                let is_same =
                    words[1].load(Ordering::Relaxed) == head && self.is_name(words, &needle);
                if !self.seq(slot).read_retry(seq) {
                    return is_same.then_some(slot);
                }
            }
        })
    }

    #[inline]
    fn is_name(&self, words: &[AtomicU64; WORDS], needle: &Needle<'_>) -> bool {
        if needle.name.len() > INLINE_BYTES {
            let mut bytes = [0; 8 * LONG_WORDS];
            let copy = &mut bytes[..needle.name.len()];
            self.copy_name(words, copy);
            return copy == needle.name;
        }
        let difference = words[3..].iter().zip(needle.words).fold(0, |all, (word, wanted)| {
            // ORDERING: Relaxed. Data of a sequence section.
            all | (word.load(Ordering::Relaxed) ^ wanted)
        });
        difference == 0
    }

    /// Copies a name, or something that the sequence will not confirm.
    #[inline]
    fn copy_name(&self, words: &[AtomicU64; WORDS], out: &mut [u8]) {
        // ORDERING: Relaxed. Data of a sequence section; a stale index leads to valid memory.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        let from: &[AtomicU64] = if out.len() > INLINE_BYTES {
            let slot = load(&words[3]).min(u64::from(self.long.max_slots()) - 1) as u32;
            self.long.get(slot)
        } else {
            &words[3..]
        };
        for (chunk, word) in out.chunks_mut(8).zip(from) {
            chunk.copy_from_slice(&load(word).to_le_bytes()[..chunk.len()]);
        }
    }

    /// Returns the path of `slot`; None if it changed meanwhile.
    #[inline]
    fn translate(&self, slot: u32) -> Option<Vec<u8>> {
        let mut climb = Climb::new();
        let mut at = slot;
        while u64::from(at) != ROOT {
            let seq = self.seq(at).read_begin();
            // ORDERING: Relaxed. Data of a sequence section.
            let head = self.dentries.get(at)[1].load(Ordering::Relaxed);
            if head == 0 {
                return None;
            }
            climb.add(at, seq, usize::from(head as u8));
            at = (head >> 32) as u32;
        }
        let path = climb.path(|slot, len, out| {
            let words = self.dentries.get(slot);
            if len > INLINE_BYTES {
                return self.copy_name(words, &mut out[..len]);
            }
            let (chunks, _) = out[..INLINE_BYTES].as_chunks_mut::<8>();
            for (chunk, word) in chunks.iter_mut().zip(&words[3..]) {
                // ORDERING: Relaxed. Data of a sequence section.
                *chunk = word.load(Ordering::Relaxed).to_le_bytes();
            }
        });
        let is_same = |level: &Level| !self.seq(level.slot).read_retry(level.version);
        climb.levels.iter().all(is_same).then_some(path)
    }
}

impl Namespace for Slots {
    fn variant(&self) -> &'static str {
        "slots"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        self.find(parent as u32, name).map(u64::from)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        if ino == 0 || ino > self.entries {
            return None;
        }
        loop {
            if let Some(path) = self.translate(ino as u32) {
                return Some(path);
            }
        }
    }

    fn arena_bytes(&self) -> u64 {
        let names = self.dentries.bytes_committed() + self.long.bytes_committed();
        names + self.table.bytes_committed()
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        components(path)
            .try_fold(ROOT as u32, |parent, name| self.find(parent, name))
            .map(u64::from)
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let _renames = self.renames.lock();
        let Some(slot) = self.find(from.0 as u32, from.1) else { return false };
        assert!(from.1.len().max(to.1.len()) <= INLINE_BYTES, "the renamer has short names");
        self.table.insert(self.hash(to.0 as u32, to.1), slot);
        let section = self.seq(slot).write();
        self.store(slot, to.0 as u32, to.1);
        drop(section);
        self.table.remove(self.hash(from.0 as u32, from.1), slot);
        true
    }
}

/// Returns the first words of a name, zeroes behind it.
#[inline]
fn inline_words(name: &[u8]) -> [u64; NAME_WORDS] {
    let mut words = [0; NAME_WORDS];
    let (chunks, rest) = name.as_chunks::<8>();
    for (word, chunk) in words.iter_mut().zip(chunks) {
        *word = u64::from_le_bytes(*chunk);
    }
    if let Some(word) = words.get_mut(chunks.len())
        && !rest.is_empty()
    {
        *word = match name.last_chunk::<8>() {
            Some(last) => u64::from_le_bytes(*last) >> (64 - 8 * rest.len()),
            None => short_word(rest),
        };
    }
    words
}

/// Returns up to seven bytes as a word.
#[inline]
fn short_word(bytes: &[u8]) -> u64 {
    let half = |chunk: &[u8; 4]| u64::from(u32::from_le_bytes(*chunk));
    match (bytes.first_chunk::<4>(), bytes.last_chunk::<4>()) {
        (Some(first), Some(last)) => half(first) | half(last) << (8 * (bytes.len() - 4)),
        _ => bytes.iter().rev().fold(0, |word, &byte| word << 8 | u64::from(byte)),
    }
}

#[inline]
fn to_words<const N: usize>(bytes: &[u8]) -> [u64; N] {
    let (chunks, _) = bytes.as_chunks::<8>();
    std::array::from_fn(|i| u64::from_le_bytes(chunks[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_of_a_name_of_any_length_are_its_bytes_and_zeroes() {
        let name: Vec<u8> = (1..=64).collect();
        for len in 0..=name.len() {
            let mut padded = [0; INLINE_BYTES];
            let inline = len.min(INLINE_BYTES);
            padded[..inline].copy_from_slice(&name[..inline]);
            assert_eq!(inline_words(&name[..len]), to_words::<NAME_WORDS>(&padded), "{len}");
        }
    }
}
