//! The dentry: a name in a directory, in one cache line that readers copy without a lock.
//!
//! A dentry lives in a slot of eight words that is never unmapped. Every word a reader can reach is
//! valid memory, and the sequence in word 0 says whether what was read belongs together; so a torn
//! name cannot be believed, and no reader needs a guard. The reference count and what reclaim wants
//! to know are in a second record on another line ([`Cold`]), which the walk does not touch.
//!
//! ```text
//! word 0  sequence: odd while the dentry changes; never repeats, also not when the slot is reused
//! word 1  key: parent slot << 32 | the parent's child generation when it was entered
//! word 2  body: inode slot << 32 | name length << 24 | flags
//! 3 .. 7  name bytes; for a directory word 7 is its child generation
//! ```
//! A name that does not fit ends in a reference to a longer, equally stable slot (`long`).
//!
//! # Invariants
//! - D.1: words 1 to 7 change only inside a write section of word 0, by whoever holds the lock of
//!   the cold record (or owns a slot that nobody can find yet).
//! - D.2: a dentry with [`Flags::HASHED`] has exactly one entry in the table under its name, except
//!   while it is renamed.
//! - D.3: a dentry holds one reference on its parent dentry from birth to death, and one on its
//!   inode while it is hashed (a root: always), so neither slot is reused under it.
//!
//! Source: Linux `struct dentry`, `d_seq`; documents 001 and 003; Boehm, MSPC 2012.

use bitflags::bitflags;
use corewalk_sync::primitives::atomic::{AtomicU64, Ordering, fence};
use corewalk_sync::{Lockref, SeqCount, SlotArena};

use crate::attr::FileKind;
use crate::name::{NAME_MAX, Name};

/// Words of a name that lie in the dentry itself; 40 bytes, or 32 for a directory. Models take
/// fewer, to have fewer steps.
pub(crate) const INLINE_WORDS: usize = if cfg!(corewalk_loom) { 2 } else { 5 };
/// Words of a dentry.
pub(crate) const WORDS: usize = 3 + INLINE_WORDS;
/// Words of a cold record.
const COLD_WORDS: usize = 2;
/// Words of the small and the large slot for what is left of a long name.
const LONG_SMALL_WORDS: usize = if cfg!(corewalk_loom) { 1 } else { 8 };
const LONG_LARGE_WORDS: usize = if cfg!(corewalk_loom) { 2 } else { 32 };
/// In the reference to a long name: it is in a large slot.
const LONG_IS_LARGE: u64 = 1 << 32;

bitflags! {
    /// What a walk must know of a dentry besides its name.
    #[derive(Clone, Copy, Debug, PartialEq, Eq)]
    pub(crate) struct Flags: u32 {
        /// It can be found by its name.
        const HASHED = 1;
        /// It is the root of a file system: it has no name and is its own parent.
        const ROOT = 1 << 1;
        /// Something is mounted on it.
        const MOUNTED = 1 << 2;
        /// Its name goes on in a long slot.
        const LONG = 1 << 3;
        /// Any caller may search it: mode bits give x to all, and it has no ACL.
        const SEARCHABLE = 1 << 4;
        /// A directory.
        const DIRECTORY = 1 << 5;
        /// A symbolic link.
        const SYMLINK = 1 << 6;
    }
}

/// Word 2 of a dentry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Body(pub(crate) u64);

impl Body {
    pub(crate) fn new(inode: u32, len: usize, flags: Flags) -> Body {
        debug_assert!(len <= NAME_MAX);
        Body((u64::from(inode) << 32) | ((len as u64) << 24) | u64::from(flags.bits()))
    }

    /// Returns the inode's slot; 0 for a negative dentry.
    #[inline]
    pub(crate) fn inode(self) -> u32 {
        (self.0 >> 32) as u32
    }

    #[inline]
    pub(crate) fn len(self) -> usize {
        (self.0 >> 24) as u8 as usize
    }

    #[inline]
    pub(crate) fn flags(self) -> Flags {
        Flags::from_bits_retain(self.0 as u32 & 0x00ff_ffff)
    }

    pub(crate) fn with_flags(self, flags: Flags) -> Body {
        Body((self.0 & !0x00ff_ffff) | u64::from(flags.bits()))
    }

    pub(crate) fn with_inode(self, inode: u32) -> Body {
        Body((self.0 & 0xffff_ffff) | (u64::from(inode) << 32))
    }

    #[inline]
    pub(crate) fn is_hashed(self) -> bool {
        self.0 & u64::from(Flags::HASHED.bits()) != 0
    }

    #[inline]
    pub(crate) fn is_negative(self) -> bool {
        self.inode() == 0
    }

    #[inline]
    pub(crate) fn is_directory(self) -> bool {
        self.flags().contains(Flags::DIRECTORY)
    }
}

/// What a dentry's children are entered under: its slot and its child generation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Key(pub(crate) u64);

impl Key {
    #[inline]
    pub(crate) fn new(parent: u32, child_generation: u64) -> Key {
        Key((u64::from(parent) << 32) | (child_generation & 0xffff_ffff))
    }

    /// Returns the key of a name that is not to be found: directories never have generation 0 (they
    /// start at 1 and skip it when the half of it that keys hold comes round).
    pub(crate) fn stale(parent: u32) -> Key {
        Key::new(parent, 0)
    }

    pub(crate) fn is_stale(self) -> bool {
        self.0 & 0xffff_ffff == 0
    }

    #[inline]
    pub(crate) fn parent(self) -> u32 {
        (self.0 >> 32) as u32
    }
}

/// A name ready to be compared with the words of a dentry.
#[derive(Clone, Copy)]
pub(crate) struct Needle<'a> {
    pub(crate) name: Name<'a>,
    /// The keyed hash of the name alone.
    pub(crate) hash: u64,
    words: [u64; INLINE_WORDS],
}

impl<'a> Needle<'a> {
    #[inline]
    pub(crate) fn new(name: Name<'a>, hash: u64) -> Needle<'a> {
        Needle { name, hash, words: inline_words(name.as_bytes()) }
    }
}

/// The slots of all dentries of one namespace, with their cold records and long names.
pub(crate) struct Dentries {
    hot: SlotArena<WORDS>,
    cold: SlotArena<COLD_WORDS>,
    small: SlotArena<LONG_SMALL_WORDS>,
    large: SlotArena<LONG_LARGE_WORDS>,
}

/// What a dentry is to become, made before the write section that stores it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) key: Key,
    pub(crate) body: Body,
    words: [u64; INLINE_WORDS],
}

impl Image {
    /// Returns the reference to a long name, 0 if the name is short.
    fn long(&self) -> u64 {
        if self.body.flags().contains(Flags::LONG) { self.words[long_at(self.body)] } else { 0 }
    }

    /// Returns the image with another key; both hold the same long name.
    pub(crate) fn with_key(self, key: Key) -> Image {
        Image { key, ..self }
    }

    /// Returns the child generation of a directory.
    pub(crate) fn child_generation(&self) -> u64 {
        debug_assert!(self.body.is_directory());
        self.words[INLINE_WORDS - 1]
    }
}

/// A copy of the first three words of a dentry and the sequence they were read under.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Glimpse {
    pub(crate) seq: u64,
    pub(crate) key: Key,
    pub(crate) body: Body,
}

impl Dentries {
    pub(crate) fn new(slots_max: u32) -> std::io::Result<Dentries> {
        Ok(Dentries {
            hot: SlotArena::new("corewalk-dentries", slots_max)?,
            cold: SlotArena::new("corewalk-dentry-refs", slots_max)?,
            small: SlotArena::new("corewalk-names", slots_max)?,
            large: SlotArena::new("corewalk-long-names", slots_max)?,
        })
    }

    // Reading.

    #[inline]
    pub(crate) fn seq(&self, slot: u32) -> &SeqCount {
        SeqCount::from_word(&self.hot.get(slot)[0])
    }

    /// Returns the key and body, read under an even sequence; the caller validates with
    /// [`Dentries::is_unchanged`] before it believes them.
    #[inline]
    pub(crate) fn glimpse(&self, slot: u32) -> Glimpse {
        let words = self.hot.get(slot);
        let seq = self.stable_seq(slot);
        // ORDERING: Relaxed. Data of a sequence section; the sequence tells whether it is whole.
        let key = Key(words[1].load(Ordering::Relaxed));
        // ORDERING: Relaxed. As above.
        let body = Body(words[2].load(Ordering::Relaxed));
        Glimpse { seq, key, body }
    }

    /// Returns an even sequence. A writer that takes long is waited for on its lock (trap T30).
    #[inline]
    pub(crate) fn stable_seq(&self, slot: u32) -> u64 {
        let seq = self.seq(slot).raw_begin();
        if seq & 1 == 0 { seq } else { self.wait_for_writer(slot) }
    }

    #[cold]
    fn wait_for_writer(&self, slot: u32) -> u64 {
        for _ in 0..64 {
            let seq = self.seq(slot).raw_begin();
            if seq & 1 == 0 {
                return seq;
            }
            corewalk_sync::primitives::hint::spin_loop();
        }
        loop {
            // A write section runs under the lock, so whoever gets it finds an even sequence.
            drop(self.lockref(slot).lock());
            let seq = self.seq(slot).raw_begin();
            if seq & 1 == 0 {
                return seq;
            }
        }
    }

    #[inline]
    pub(crate) fn is_unchanged(&self, slot: u32, seq: u64) -> bool {
        !self.seq(slot).read_retry(seq)
    }

    /// Returns the sequence if the dentry's name under `key` is `needle`, and its body. A dentry
    /// that changes meanwhile is read again.
    #[inline]
    pub(crate) fn compare(&self, slot: u32, key: Key, needle: &Needle<'_>) -> Option<Glimpse> {
        loop {
            let seen = self.glimpse(slot);
            let same = seen.key == key
                && seen.body.is_hashed()
                && seen.body.len() == needle.name.as_bytes().len()
                && self.same_name(slot, seen.body, needle);
            if self.is_unchanged(slot, seen.seq) {
                return same.then_some(seen);
            }
        }
    }

    #[inline]
    fn same_name(&self, slot: u32, body: Body, needle: &Needle<'_>) -> bool {
        let words = self.hot.get(slot);
        if body.flags().intersects(Flags::LONG) {
            return self.same_long_name(slot, body, needle);
        }
        let mut difference = 0;
        for i in 0..INLINE_WORDS - 1 {
            // ORDERING: Relaxed. Data of a sequence section.
            difference |= words[3 + i].load(Ordering::Relaxed) ^ needle.words[i];
        }
        if !body.is_directory() {
            // ORDERING: Relaxed. As above.
            difference |= words[WORDS - 1].load(Ordering::Relaxed) ^ needle.words[INLINE_WORDS - 1];
        }
        difference == 0
    }

    #[cold]
    fn same_long_name(&self, slot: u32, body: Body, needle: &Needle<'_>) -> bool {
        let mut copy = NameCopy::new();
        self.copy_name(slot, body, &mut copy);
        copy.as_bytes() == needle.name.as_bytes()
    }

    /// Copies the name into `out`. The copy is only as good as the sequence says afterwards.
    pub(crate) fn copy_name(&self, slot: u32, body: Body, out: &mut NameCopy) {
        let words = self.hot.get(slot);
        out.len = body.len();
        let inline = if body.flags().contains(Flags::LONG) {
            long_at(body)
        } else {
            INLINE_WORDS - usize::from(body.is_directory())
        };
        let load = |word: &AtomicU64| {
            // ORDERING: Relaxed. Data of a sequence section.
            word.load(Ordering::Relaxed).to_le_bytes()
        };
        for i in 0..inline {
            out.bytes[8 * i..8 * i + 8].copy_from_slice(&load(&words[3 + i]));
        }
        if body.flags().contains(Flags::LONG) {
            // ORDERING: Relaxed. Data of a sequence section, and so perhaps no reference at all.
            let reference = words[3 + inline].load(Ordering::Relaxed);
            let slot = reference as u32;
            // The word may be bytes of another name by now: validation will fail, but first it must
            // not lead out of the arena.
            let rest: &[AtomicU64] = if slot >= self.large.max_slots() {
                &[]
            } else if reference & LONG_IS_LARGE != 0 {
                self.large.get(slot)
            } else {
                self.small.get(slot)
            };
            let wanted = out.len.saturating_sub(8 * inline).div_ceil(8).min(rest.len());
            for (i, word) in rest.iter().take(wanted).enumerate() {
                let at = 8 * (inline + i);
                out.bytes[at..at + 8].copy_from_slice(&load(word));
            }
        }
    }

    /// Returns the child generation of a directory, part of the section that `seq` began.
    #[inline]
    pub(crate) fn child_generation(&self, slot: u32) -> u64 {
        // ORDERING: Relaxed. Data of a sequence section.
        self.hot.get(slot)[WORDS - 1].load(Ordering::Relaxed)
    }

    /// Returns what the dentry is now. The caller holds its lock, or nobody else can find it.
    pub(crate) fn image(&self, slot: u32) -> Image {
        let words = self.hot.get(slot);
        // ORDERING: Relaxed. Stable under the lock the caller holds.
        let load = |i: usize| words[i].load(Ordering::Relaxed);
        Image {
            key: Key(load(1)),
            body: Body(load(2)),
            words: std::array::from_fn(|i| load(3 + i)),
        }
    }

    // The cold record.

    #[inline]
    pub(crate) fn lockref(&self, slot: u32) -> &Lockref {
        Lockref::from_word(&self.cold.get(slot)[0])
    }

    #[inline]
    pub(crate) fn cold(&self, slot: u32) -> Cold<'_> {
        Cold(&self.cold.get(slot)[1])
    }

    // Writing.

    /// Returns a fresh slot with no references, or None when `slots_max` are in use.
    pub(crate) fn alloc(&self) -> Option<u32> {
        self.hot.alloc()
    }

    /// Gives a slot back. Its sequence goes on from where it is.
    pub(crate) fn free(&self, slot: u32) {
        self.hot.free(slot);
    }

    /// Returns the image of a dentry called `name`, with the rest of a long name stored. The image
    /// must be stored or given to [`Dentries::drop_image`]. None if there is no room.
    pub(crate) fn new_image(
        &self,
        key: Key,
        inode: u32,
        name: &[u8],
        flags: Flags,
        child_generation: u64,
    ) -> Option<Image> {
        let mut words = inline_words(name);
        let room = INLINE_WORDS - usize::from(flags.contains(Flags::DIRECTORY));
        let mut flags = flags - Flags::LONG;
        if flags.contains(Flags::DIRECTORY) {
            words[INLINE_WORDS - 1] = child_generation;
        }
        if name.len() > 8 * room {
            words[room - 1] = self.store_long(&name[8 * (room - 1)..])?;
            flags |= Flags::LONG;
        }
        Some(Image { key, body: Body::new(inode, name.len(), flags), words })
    }

    /// Stores `image` and returns the one before; the caller is inside a write section (D.1).
    pub(crate) fn store(&self, slot: u32, image: &Image) -> Image {
        let before = self.image(slot);
        let words = self.hot.get(slot);
        // ORDERING: Relaxed. Data of a sequence section.
        words[1].store(image.key.0, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        words[2].store(image.body.0, Ordering::Relaxed);
        for (word, new) in words[3..].iter().zip(image.words) {
            // ORDERING: Relaxed. As above.
            word.store(new, Ordering::Relaxed);
        }
        before
    }

    /// Stores a new body alone; the caller is inside a write section.
    pub(crate) fn store_body(&self, slot: u32, body: Body) {
        // ORDERING: Relaxed. Data of a sequence section.
        self.hot.get(slot)[2].store(body.0, Ordering::Relaxed);
    }

    /// Stores a new child generation; the caller is inside a write section.
    pub(crate) fn store_child_generation(&self, slot: u32, child_generation: u64) {
        // ORDERING: Relaxed. Data of a sequence section.
        self.hot.get(slot)[WORDS - 1].store(child_generation, Ordering::Relaxed);
    }

    /// Gives back what an image that is no longer stored holds.
    pub(crate) fn drop_image(&self, image: &Image) {
        match image.long() {
            0 => {}
            reference if reference & LONG_IS_LARGE != 0 => self.large.free(reference as u32),
            reference => self.small.free(reference as u32),
        }
    }

    fn store_long(&self, rest: &[u8]) -> Option<u64> {
        let (reference, words): (u64, &[AtomicU64]) = if rest.len() <= 8 * LONG_SMALL_WORDS {
            let slot = self.small.alloc()?;
            (u64::from(slot), self.small.get(slot))
        } else {
            let slot = self.large.alloc()?;
            (u64::from(slot) | LONG_IS_LARGE, self.large.get(slot))
        };
        // ORDERING: Release fence. The slot may have served another name: a reader who
        // sees a word stored below also sees that that dentry's sequence has moved on, since its
        // owner ended that section before it freed the slot. Pairs with the Acquire fence in
        // `SeqCount::read_retry`.
        fence(Ordering::Release);
        for (word, bytes) in words.iter().zip(rest.chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            // ORDERING: Relaxed. Published with the dentry that refers to it.
            word.store(u64::from_le_bytes(padded), Ordering::Relaxed);
        }
        Some(reference)
    }

    /// Returns the bytes of slots in use: dentries, cold records and long names.
    pub(crate) fn bytes(&self) -> u64 {
        8 * (self.hot.in_use() * (WORDS + COLD_WORDS) as u64
            + self.small.in_use() * LONG_SMALL_WORDS as u64
            + self.large.in_use() * LONG_LARGE_WORDS as u64)
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.hot.in_use()
    }

    /// Returns one more than the highest slot ever handed out.
    pub(crate) fn slots_touched(&self) -> u32 {
        self.hot.len_touched()
    }
}

/// The word of a cold record that is not its lockref: `generation << 32 | referenced << 31 | next
/// alias`.
///
/// The generation counts how often the slot was reused and so tells a handle from an earlier life;
/// it changes only while the slot belongs to nobody. `next alias` chains the dentries of an inode
/// and is protected by that inode's lock. The referenced bit is set by anybody and cleared by
/// reclaim.
pub(crate) struct Cold<'a>(&'a AtomicU64);

const REFERENCED: u64 = 1 << 31;
const NEXT_MASK: u64 = REFERENCED - 1;

impl Cold<'_> {
    pub(crate) fn generation(&self) -> u32 {
        // ORDERING: Relaxed. Compared by whoever holds a reference or validates a sequence.
        (self.0.load(Ordering::Relaxed) >> 32) as u32
    }

    /// Starts the next life of the slot. Returns false if all generations are used up: the slot
    /// must then not be used again.
    pub(crate) fn next_generation(&self) -> bool {
        // ORDERING: Relaxed. The slot belongs to the caller alone.
        let word = self.0.load(Ordering::Relaxed);
        let generation = (word >> 32).wrapping_add(1) & 0xffff_ffff;
        // ORDERING: Relaxed. As above.
        self.0.store(generation << 32, Ordering::Relaxed);
        generation != u64::from(u32::MAX)
    }

    pub(crate) fn next_alias(&self) -> u32 {
        // ORDERING: Relaxed. Protected by the inode's lock.
        (self.0.load(Ordering::Relaxed) & NEXT_MASK) as u32
    }

    pub(crate) fn set_next_alias(&self, next: u32) {
        // ORDERING: Relaxed. Protected by the inode's lock; the update keeps a referenced bit that
        // is set meanwhile.
        let _ = self.0.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |word| {
            Some((word & !NEXT_MASK) | u64::from(next))
        });
    }

    /// Marks the dentry as used, unless it is marked.
    #[inline]
    pub(crate) fn touch(&self) {
        // ORDERING: Relaxed. A hint for reclaim.
        if self.0.load(Ordering::Relaxed) & REFERENCED == 0 {
            // ORDERING: Relaxed. As above.
            self.0.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Clears the mark and returns whether it was set.
    pub(crate) fn clear_referenced(&self) -> bool {
        // ORDERING: Relaxed. A hint for reclaim.
        self.0.load(Ordering::Relaxed) & REFERENCED != 0
            // ORDERING: Relaxed. As above.
            && self.0.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}

/// Room for one copied name.
pub(crate) struct NameCopy {
    bytes: [u8; 8 * (INLINE_WORDS + LONG_LARGE_WORDS)],
    len: usize,
}

impl NameCopy {
    pub(crate) fn new() -> NameCopy {
        NameCopy { bytes: [0; 8 * (INLINE_WORDS + LONG_LARGE_WORDS)], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the flags that say what kind of file an inode is.
pub(crate) fn kind_flags(kind: FileKind) -> Flags {
    match kind {
        FileKind::Directory => Flags::DIRECTORY,
        FileKind::Symlink => Flags::SYMLINK,
        _ => Flags::empty(),
    }
}

/// Returns which name word holds the reference of a long name.
fn long_at(body: Body) -> usize {
    INLINE_WORDS - 1 - usize::from(body.is_directory())
}

#[inline]
fn inline_words(bytes: &[u8]) -> [u64; INLINE_WORDS] {
    let mut words = [0; INLINE_WORDS];
    let mut rest = bytes;
    for word in &mut words {
        if let Some((first, tail)) = rest.split_first_chunk::<8>() {
            *word = u64::from_le_bytes(*first);
            rest = tail;
        } else {
            let mut padded = [0; 8];
            padded[..rest.len()].copy_from_slice(rest);
            *word = u64::from_le_bytes(padded);
            break;
        }
    }
    words
}
