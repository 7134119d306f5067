//! The dentry: a name in a directory, in one cache line that readers copy without a lock.
//!
//! Analogous to Linux's `struct dentry`. A dentry lives in a slot of eight words, whose memory is
//! never unmapped, so a reader can always load them. Word 0 is the dentry's sequence (a seqlock):
//! it tells a reader whether the words that it has read belong together. So a reader detects a torn
//! name, and needs no lock.
//!
//! The reference count and the reclaim state of a dentry are on another cache line ([`Cold`]),
//! which a path walk does not touch.
//!
//! ```text
//! word 0  sequence: odd while the dentry changes; never repeats, also not when the slot is reused
//! word 1  key: parent slot << 32 | the parent's child generation when it was entered
//! word 2  body: inode slot << 32 | name length << 24 | superblock << 8 | flags
//! 3 .. 7  name words; for a directory word 6 is its inode number, word 7 its child generation
//! ```
//! A long name does not fit in its dentry. The dentry's last name word then refers to another slot,
//! which has the rest of the name. The memory of these slots is never unmapped either. The module
//! `lookup_key` defines how the bytes of a name are divided into words.
//!
//! A slot has two halves: one for a dentry, and one for an inode (module `inode`). If possible, a
//! name's dentry and inode are in one slot. So a lookup that has the slot number from the hash
//! table can prefetch the inode's reference count in parallel with the dentry.
//!
//! The two halves are allocated and freed separately. An inode in use may outlive its name or have
//! several names, and a negative dentry has no inode. The slot is freed when both halves are free.
//!
//! # Invariants
//! - D.1: words 1 to 7 of a slot change only inside a seqlock write section of word 0. The writer
//!   holds the dentry's lock, or owns a slot that no other thread can find yet.
//! - D.2: a dentry with [`Flags::HASHED`] has exactly one entry in the hash table under its name,
//!   except during a rename.
//! - D.3: the inode number and the superblock of a directory's dentry do not change while it lives.
//! - D.4: a dentry holds a reference on its parent dentry from birth to death. A hashed dentry also
//!   holds a reference on its inode; a root's dentry does so from birth to death. While a dentry
//!   holds a reference, the slot to which the reference leads is not reused.
//!
//! Source: Linux `struct dentry`, `d_seq`; documents 001 and 003 in `documents.md`; Boehm, MSPC
//! 2012.

mod body;
mod cold;
mod lookup_key;
mod parent_key;

use corewalk_base::primitives::atomic::{AtomicU64, Ordering, fence};
use corewalk_base::{ShardedCounter, WordPair};
use corewalk_sync::{Group, Lockref, SeqCount, SlotArena};

use crate::attr::FileKind;
use crate::name::{name_word, name_words};
use crate::slot::{DentrySlot, InodeSlot, Seq};
pub(crate) use body::{Body, Flags};
use cold::{Cold, Half};
pub(crate) use lookup_key::{Component, LookupKey, SHORT_MAX, ShortLookupKey};
use lookup_key::{LONG_NAMED, NAMED_MASK, name_word_at, words_of};
pub(crate) use parent_key::ParentKey;

/// Number of name words in the dentry itself: 40 bytes, or 24 bytes for a directory. Loom models
/// use fewer, for fewer steps.
pub(crate) const INLINE_WORDS: usize = if cfg!(corewalk_loom) { 3 } else { 5 };
pub(crate) const INLINE_MAX: usize = 8 * INLINE_WORDS;
const DIRECTORY_WORDS: usize = 2;
pub(crate) const DIRECTORY_ROOM: usize = INLINE_WORDS - DIRECTORY_WORDS;
pub(crate) const WORDS: usize = 3 + INLINE_WORDS;
const PAIRS: usize = (WORDS - 2) / 2;
const COLD_WORDS: usize = 2;
/// Words in a slot for the rest of a long name, for three size classes. Of 100,000 names below
/// /usr, 14 % are long. The smallest class, half a cache line, holds 91 % of those; the second
/// holds nearly all others.
const LONG_WORDS: [usize; 3] = if cfg!(corewalk_loom) { [1, 1, 2] } else { [4, 8, 32] };
/// A dentry refers to the slot of its long name with one word. The word has the size class, shifted
/// left by this number of bits, and the slot number in the bits below.
const LONG_SIZE_SHIFT: u32 = 32;

/// The slots of one namespace, with their dentries and long names. A slot has two halves, one for a
/// dentry and one for an inode.
pub(crate) struct Dentries {
    /// Words 1 to 7 of a dentry are protected by its lock (invariant D.1), which is in `cold`.
    /// Readers take no lock: they validate with the sequence in word 0.
    hot: SlotArena<WORDS>,
    cold: SlotArena<COLD_WORDS>,
    small: SlotArena<{ LONG_WORDS[0] }>,
    middle: SlotArena<{ LONG_WORDS[1] }>,
    large: SlotArena<{ LONG_WORDS[2] }>,
    /// Number of dentries in use. Slots with only an inode do not count.
    count: ShardedCounter,
}

/// A copy of the words of a dentry that change together. A writer builds the copy first, and stores
/// it in a short write section.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) struct Image {
    pub(crate) key: ParentKey,
    pub(crate) body: Body,
    words: [u64; INLINE_WORDS],
}

impl Image {
    fn long(&self) -> u64 {
        if self.body.flags().contains(Flags::LONG) { self.words[long_at(self.body)] } else { 0 }
    }

    pub(crate) fn directory_words(&self) -> DirectoryWords {
        if !self.body.is_directory() {
            return DirectoryWords::default();
        }
        let (ino, child_generation) = (self.words[INLINE_WORDS - 2], self.words[INLINE_WORDS - 1]);
        DirectoryWords { ino, child_generation }
    }

    pub(crate) fn child_generation(&self) -> u64 {
        debug_assert!(self.body.is_directory());
        self.directory_words().child_generation
    }
}

/// The last two words of a directory's dentry, where other dentries have a part of the name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct DirectoryWords {
    pub(crate) ino: u64,
    pub(crate) child_generation: u64,
}

/// A snapshot of a dentry: its parent key (its directory) and its body word (inode, name length,
/// flags). The words are valid if the dentry's sequence is still the one in the snapshot.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Snapshot {
    pub(crate) seq: Seq,
    pub(crate) key: ParentKey,
    pub(crate) body: Body,
}

impl Dentries {
    pub(crate) fn new(slots_max: u32) -> std::io::Result<Dentries> {
        Ok(Dentries {
            hot: SlotArena::new("corewalk-dentries", slots_max)?,
            cold: SlotArena::new("corewalk-dentry-refs", slots_max)?,
            small: SlotArena::new("corewalk-names", slots_max)?,
            middle: SlotArena::new("corewalk-longer-names", slots_max)?,
            large: SlotArena::new("corewalk-longest-names", slots_max)?,
            count: ShardedCounter::new(),
        })
    }

    #[inline]
    fn words(&self, slot: DentrySlot) -> &[AtomicU64; WORDS] {
        self.hot.get(slot.get())
    }

    #[inline]
    pub(crate) fn line(&self, slot: DentrySlot) -> Line<'_> {
        Line(self.words(slot))
    }

    #[inline]
    pub(crate) fn prefetch(&self, slot: DentrySlot) {
        self.hot.prefetch(slot.get());
    }

    #[inline]
    pub(crate) fn seq(&self, slot: DentrySlot) -> &SeqCount {
        SeqCount::from_word(&self.words(slot)[0])
    }

    /// Returns a snapshot of a dentry. Waits while a writer changes the dentry. The caller
    /// validates the snapshot with [`Dentries::is_unchanged`].
    #[inline]
    pub(crate) fn snapshot(&self, slot: DentrySlot) -> Snapshot {
        let words = self.words(slot);
        let seq = self.stable_seq(slot);
        // ORDERING: Relaxed. The sequence protects this word: validation detects a torn read.
        let key = ParentKey(words[1].load(Ordering::Relaxed));
        // ORDERING: Relaxed. As above.
        let body = Body(words[2].load(Ordering::Relaxed));
        Snapshot { seq, key, body }
    }

    /// Returns the dentry's sequence when no write section is in progress. While a slow writer
    /// keeps the sequence odd, the reader sleeps on the dentry's lock.
    #[inline]
    pub(crate) fn stable_seq(&self, slot: DentrySlot) -> Seq {
        let seq = self.line(slot).seq();
        if seq.is_odd() { self.wait_for_writer(slot) } else { seq }
    }

    #[cold]
    fn wait_for_writer(&self, slot: DentrySlot) -> Seq {
        for _ in 0..64 {
            let seq = self.line(slot).seq();
            if !seq.is_odd() {
                return seq;
            }
            corewalk_base::primitives::hint::spin_loop();
        }
        loop {
            // The sequence is odd, so a write section has begun. Its writer holds the dentry's lock
            // until the section ends. So take the lock to wait for that.
            drop(self.lockref(slot).lock());
            let seq = self.line(slot).seq();
            if !seq.is_odd() {
                return seq;
            }
        }
    }

    #[inline]
    pub(crate) fn is_unchanged(&self, slot: DentrySlot, seq: Seq) -> bool {
        !self.seq(slot).read_retry(seq.0)
    }

    /// Returns zero if no write section of the dentry has begun since `seq`. To validate several
    /// dentries with one branch, a reader calls [`SeqCount::end_of_reads`] once and combines the
    /// results.
    #[inline(always)]
    pub(crate) fn difference(&self, slot: DentrySlot, seq: Seq) -> u64 {
        self.seq(slot).difference(seq.0)
    }

    #[inline]
    pub(crate) fn compare(
        &self,
        slot: DentrySlot,
        key: ParentKey,
        lookup_key: &LookupKey<'_>,
    ) -> Option<Snapshot> {
        loop {
            let seen = self.snapshot(slot);
            let same = seen.key == key && self.line(slot).is_named(seen, lookup_key, self);
            if self.is_unchanged(slot, seen.seq) {
                return same.then_some(seen);
            }
        }
    }

    #[inline(never)]
    fn is_named_at_length(&self, line: &Line<'_>, body: Body, name: &[u8]) -> bool {
        let (words, inline) = (line.0, long_at(body));
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        let load = |word: &AtomicU64| word.load(Ordering::Relaxed);
        if name.len() <= 8 * inline {
            return false;
        }
        let mut difference = 0;
        for i in 0..INLINE_WORDS - 1 {
            let word = load(&words[3 + i]) ^ name_word(name, 8 * i);
            difference |= if i < inline { word } else { 0 };
        }
        let reference = load(&words[3 + inline]);
        let wanted = words_of(name.len() - 8 * inline);
        // `store_long` fills all words of a slot of the smallest size class, even if the rest of
        // the name is shorter. So compare all these words: a comparison of a fixed length is
        // faster.
        let wanted = wanted.max(LONG_WORDS[0]);
        let Some(stored) = self.rest_of(reference).get(..wanted) else { return false };
        let mut compare = |stored: &[AtomicU64]| {
            for (i, word) in stored.iter().enumerate() {
                difference |= load(word) ^ name_word(name, 8 * (inline + i));
            }
        };
        match stored.first_chunk::<{ LONG_WORDS[0] }>() {
            Some(small) if wanted == LONG_WORDS[0] => compare(small),
            _ => compare(stored),
        }
        difference == 0
    }

    /// Returns the words of the long-name slot of `reference`. After a torn read, `reference` may
    /// be arbitrary bytes. The caller's validation then fails, but the bytes must not lead out of
    /// the arena's memory.
    fn rest_of(&self, reference: u64) -> &[AtomicU64] {
        let slot = reference as u32;
        if slot >= self.large.max_slots() {
            return &[];
        }
        match reference >> LONG_SIZE_SHIFT {
            0 => self.small.get(slot),
            1 => self.middle.get(slot),
            _ => self.large.get(slot),
        }
    }

    /// The caller validates the copy.
    pub(crate) fn copy_name(&self, slot: DentrySlot, body: Body, out: &mut NameCopy) {
        let words = self.words(slot);
        out.len = body.len();
        let inline = if body.flags().contains(Flags::LONG) {
            long_at(body)
        } else {
            if body.is_directory() { DIRECTORY_ROOM } else { INLINE_WORDS }
        };
        let load = |word: &AtomicU64| {
            // ORDERING: Relaxed. The dentry's sequence protects this word.
            word.load(Ordering::Relaxed).to_le_bytes()
        };
        let mut put = |i: usize, word: &AtomicU64| {
            let at = name_word_at(8 * i, out.len);
            out.bytes[at..at + 8].copy_from_slice(&load(word));
        };
        let wanted = words_of(out.len);
        (0..inline.min(wanted)).for_each(|i| put(i, &words[3 + i]));
        if body.flags().contains(Flags::LONG) {
            // ORDERING: Relaxed. The caller validates this word with the dentry's sequence. Before
            // that it may have any bits, so `rest_of` checks that it refers to a slot.
            let rest = self.rest_of(words[3 + inline].load(Ordering::Relaxed));
            let wanted = wanted.saturating_sub(inline).min(rest.len());
            rest[..wanted].iter().enumerate().for_each(|(i, word)| put(inline + i, word));
        }
    }

    /// Returns the child generation of a directory. The caller validates the result with the
    /// dentry's sequence, unlike that of [`Dentries::child_generation_now`].
    #[inline]
    pub(crate) fn child_generation(&self, slot: DentrySlot) -> u64 {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        self.words(slot)[WORDS - 1].load(Ordering::Relaxed)
    }

    /// Returns the child generation of a directory. A single word cannot be torn, so the caller
    /// need not validate it. Later loads of the caller happen after this load.
    #[inline]
    pub(crate) fn child_generation_now(&self, slot: DentrySlot) -> u64 {
        // ORDERING: Acquire. `Dcache::invalidate_directory` stores a new generation after a release
        // fence. A thread that sees it must also see the change of the back end before it. With
        // Relaxed, the thread could cache an old answer.
        self.words(slot)[WORDS - 1].load(Ordering::Acquire)
    }

    /// The caller validates the words.
    #[inline]
    pub(crate) fn directory_words(&self, slot: DentrySlot) -> DirectoryWords {
        self.line(slot).directory_words()
    }

    /// Returns the number that stands for a directory in the hashes of its children's names. It
    /// does not change while the directory's dentry lives (invariant D.3).
    #[inline]
    pub(crate) fn directory_id(&self, slot: DentrySlot) -> u64 {
        let words = self.words(slot);
        // ORDERING: Relaxed. The words are fixed, or the caller validates them.
        let body = Body(words[2].load(Ordering::Relaxed));
        // ORDERING: Relaxed. As above.
        directory_id(body.superblock(), words[WORDS - 2].load(Ordering::Relaxed))
    }

    /// Returns the words of a dentry that change together. The caller has locked the dentry, or no
    /// other thread can find it.
    pub(crate) fn image(&self, slot: DentrySlot) -> Image {
        let words = self.words(slot);
        // ORDERING: Relaxed. The caller's lock excludes changes of these words.
        let load = |i: usize| words[i].load(Ordering::Relaxed);
        Image {
            key: ParentKey(load(1)),
            body: Body(load(2)),
            words: std::array::from_fn(|i| load(3 + i)),
        }
    }

    #[inline]
    pub(crate) fn lockref(&self, slot: DentrySlot) -> &Lockref {
        Lockref::from_word(&self.cold.get(slot.get())[0])
    }

    #[inline]
    pub(crate) fn cold(&self, slot: DentrySlot) -> Cold<'_> {
        self.cold_of(slot.get())
    }

    #[inline]
    fn cold_of(&self, slot: u32) -> Cold<'_> {
        Cold::of(&self.cold.get(slot)[1])
    }

    /// Allocates a slot for a dentry, if possible the slot of the inode `beside`, on which the
    /// caller holds a reference.
    pub(crate) fn alloc(&self, beside: InodeSlot, group: Group) -> Option<DentrySlot> {
        self.count.add(1);
        let slot = self.alloc_half(Half::Dentry, beside.get(), group);
        if slot.is_none() {
            self.count.add(-1);
        }
        slot.map(DentrySlot::new)
    }

    /// Frees the slot's dentry half; the slot may still hold an inode. The next dentry in the slot
    /// continues with the sequence of the freed dentry, so readers notice the reuse.
    pub(crate) fn free(&self, slot: DentrySlot) {
        self.count.add(-1);
        self.free_half(Half::Dentry, slot.get());
    }

    /// Allocates a slot for an inode, if possible the slot of the dentry `beside`, on which the
    /// caller holds a reference. A directory gets a new slot if possible, so that directories are
    /// close together.
    pub(crate) fn alloc_inode(&self, beside: DentrySlot, group: Group) -> Option<InodeSlot> {
        let alloc = |beside: DentrySlot| self.alloc_half(Half::Inode, beside.get(), group);
        let slot = match group {
            Group::Many => alloc(beside),
            Group::Few => alloc(DentrySlot::NONE).or_else(|| alloc(beside)),
        };
        slot.map(InodeSlot::new)
    }

    pub(crate) fn free_inode(&self, slot: InodeSlot) {
        self.free_half(Half::Inode, slot.get());
    }

    /// Allocates a half of a slot: that of the slot `beside`, if it is unused, or else that of a
    /// free slot. `beside` is 0 if no slot is preferred.
    fn alloc_half(&self, half: Half, beside: u32, group: Group) -> Option<u32> {
        // The caller holds a reference on the dentry or inode in the slot `beside`, so this slot is
        // not freed during the call.
        if beside != 0 && self.cold_of(beside).take(half) {
            return Some(beside);
        }
        let slot = self.hot.alloc_in(group)?;
        self.cold.extend_to(slot);
        let is_taken = self.cold_of(slot).take(half);
        debug_assert!(is_taken, "a free slot has no half in use");
        Some(slot)
    }

    fn free_half(&self, half: Half, slot: u32) {
        if self.cold_of(slot).release(half) {
            self.hot.free(slot);
        }
    }

    /// Builds the content of a dentry, and allocates a slot for the rest of a long name. The caller
    /// stores the content or passes it to [`Dentries::drop_image`].
    pub(crate) fn new_image(
        &self,
        key: ParentKey,
        superblock: u32,
        inode: InodeSlot,
        name: &[u8],
        flags: Flags,
        directory: DirectoryWords,
    ) -> Option<Image> {
        let mut words = name_words(name);
        let is_directory = flags.contains(Flags::DIRECTORY);
        let room = if is_directory { DIRECTORY_ROOM } else { INLINE_WORDS };
        let mut flags = flags - Flags::LONG;
        if is_directory {
            words[INLINE_WORDS - 2] = directory.ino;
            words[INLINE_WORDS - 1] = directory.child_generation;
        }
        if name.len() > 8 * room {
            words[room - 1] = self.store_long(name, 8 * (room - 1))?;
            flags |= Flags::LONG;
        }
        Some(Image { key, body: Body::new(superblock, inode, name.len(), flags), words })
    }

    /// Stores the content of a dentry and returns its earlier content. The caller is inside the
    /// dentry's write section (invariant D.1).
    pub(crate) fn store(&self, slot: DentrySlot, image: &Image) -> Image {
        let before = self.image(slot);
        let words = self.words(slot);
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        words[1].store(image.key.0, Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        words[2].store(image.body.0, Ordering::Relaxed);
        for (word, new) in words[3..].iter().zip(image.words) {
            // ORDERING: Relaxed. As above.
            word.store(new, Ordering::Relaxed);
        }
        before
    }

    pub(crate) fn store_key(&self, slot: DentrySlot, key: ParentKey) {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        self.words(slot)[1].store(key.0, Ordering::Relaxed);
    }

    pub(crate) fn store_body(&self, slot: DentrySlot, body: Body) {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        self.words(slot)[2].store(body.0, Ordering::Relaxed);
    }

    pub(crate) fn store_child_generation(&self, slot: DentrySlot, child_generation: u64) {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        self.words(slot)[WORDS - 1].store(child_generation, Ordering::Relaxed);
    }

    /// Frees the slot for the long name of `image`, if it has one. No dentry may refer to this slot
    /// any more.
    pub(crate) fn drop_image(&self, image: &Image) {
        match image.long() {
            0 => {}
            reference => match (reference >> LONG_SIZE_SHIFT, reference as u32) {
                (0, slot) => self.small.free(slot),
                (1, slot) => self.middle.free(slot),
                (_, slot) => self.large.free(slot),
            },
        }
    }

    fn store_long(&self, name: &[u8], start: usize) -> Option<u64> {
        let wanted = words_of(name.len() - start);
        let size = LONG_WORDS.iter().position(|&words| wanted <= words)?;
        let slot = match size {
            0 => self.small.alloc(),
            1 => self.middle.alloc(),
            _ => self.large.alloc(),
        }?;
        let reference = ((size as u64) << LONG_SIZE_SHIFT) | u64::from(slot);
        let words = self.rest_of(reference);
        // ORDERING: Release fence. The slot may have held the name of another dentry, whose
        // sequence changed before the slot was freed. A reader of that name that sees a word stored
        // below also sees the changed sequence in `SeqCount::read_retry`. Without the fence, the
        // reader could accept a mixed name.
        fence(Ordering::Release);
        for (i, word) in words[..wanted.max(LONG_WORDS[0])].iter().enumerate() {
            // ORDERING: Relaxed. The words become visible to readers through the dentry that will
            // refer to the slot.
            word.store(name_word(name, start + 8 * i), Ordering::Relaxed);
        }
        Some(reference)
    }

    pub(crate) fn bytes(&self, inode_words: usize) -> u64 {
        8 * (self.hot.in_use() * (WORDS + COLD_WORDS + inode_words) as u64
            + self.small.in_use() * LONG_WORDS[0] as u64
            + self.middle.in_use() * LONG_WORDS[1] as u64
            + self.large.in_use() * LONG_WORDS[2] as u64)
    }

    pub(crate) fn in_use(&self) -> u64 {
        self.count.sum().max(0) as u64
    }

    pub(crate) fn slots_touched(&self) -> u32 {
        self.hot.len_touched()
    }
}

pub(crate) struct Line<'a>(&'a [AtomicU64; WORDS]);

impl Line<'_> {
    /// Returns a snapshot without waiting for a writer. During a write section the snapshot's
    /// sequence is odd, so its validation fails.
    #[inline]
    pub(crate) fn snapshot_now(&self) -> Snapshot {
        let seq = self.seq();
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        let key = ParentKey(self.0[1].load(Ordering::Relaxed));
        // ORDERING: Relaxed. As above.
        let body = Body(self.0[2].load(Ordering::Relaxed));
        Snapshot { seq, key, body }
    }

    #[inline]
    fn seq(&self) -> Seq {
        Seq(SeqCount::from_word(&self.0[0]).raw_begin())
    }

    #[inline]
    pub(crate) fn key(&self) -> ParentKey {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        ParentKey(self.0[1].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn is_unchanged(&self, seq: Seq) -> bool {
        !SeqCount::from_word(&self.0[0]).read_retry(seq.0)
    }

    /// Returns true if the dentry is hashed and has the name of `lookup_key`. The dentry may change
    /// meanwhile, so the caller validates it.
    #[inline(always)]
    pub(crate) fn is_named(
        &self,
        seen: Snapshot,
        lookup_key: &LookupKey<'_>,
        dentries: &Dentries,
    ) -> bool {
        // Branch on the length of the lookup key, not on the length in the dentry. The processor
        // knows the lookup key already, while the dentry's cache line may still be on its way.
        if !lookup_key.is_long() && self.is_named_inline(lookup_key) {
            return true;
        }
        // The comparison above finds only a name that is stored in the dentry itself. Otherwise the
        // rest of the name is in another slot, so compare it there.
        let len = lookup_key.name.as_bytes().len();
        let is_long = seen.body.flags().contains(LONG_NAMED) && seen.body.len() == len;
        is_long && dentries.is_named_at_length(self, seen.body, lookup_key.name.as_bytes())
    }

    #[inline(always)]
    pub(crate) fn is_named_inline(&self, lookup_key: &LookupKey<'_>) -> bool {
        let (pairs, _) = self.0.as_chunks::<2>();
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        let differ = |i: usize| WordPair::load(&pairs[1 + i]).xor(lookup_key.pairs[i]);
        let first = WordPair::new(NAMED_MASK, u64::MAX);
        let mut difference = differ(0).and(first).or(differ(PAIRS - 1).and(lookup_key.last));
        for i in 1..PAIRS - 1 {
            difference = difference.or(differ(i));
        }
        difference.is_zero()
    }

    #[inline(always)]
    pub(crate) fn plain(&self, key: ParentKey, lookup_key: &ShortLookupKey) -> Option<Snapshot> {
        let seq = self.seq();
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        let word = |i: usize| self.0[i].load(Ordering::Relaxed);
        // Load each word of the dentry just before its comparison, so that it occupies a register
        // only for a short time.
        if word(1) != key.0 {
            return None;
        }
        let body = Body(word(2));
        let is_it = lookup_key.is_of(body)
            && (0..DIRECTORY_ROOM).all(|i| word(3 + i) == lookup_key.words[i]);
        is_it.then_some(Snapshot { seq, key, body })
    }

    /// Returns the words of the dentry's name. In a directory's dentry, the last two words are its
    /// inode number and its child generation instead.
    #[inline]
    pub(crate) fn name_words(&self) -> [u64; INLINE_WORDS] {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        std::array::from_fn(|i| self.0[3 + i].load(Ordering::Relaxed))
    }

    #[inline]
    pub(crate) fn directory_words(&self) -> DirectoryWords {
        // ORDERING: Relaxed. The dentry's sequence protects this word.
        let ino = self.0[WORDS - 2].load(Ordering::Relaxed);
        // ORDERING: Relaxed. As above.
        let child_generation = self.0[WORDS - 1].load(Ordering::Relaxed);
        DirectoryWords { ino, child_generation }
    }
}

pub(crate) struct NameCopy {
    bytes: [u8; 8 * (INLINE_WORDS + LONG_WORDS[2])],
    len: usize,
}

impl NameCopy {
    pub(crate) fn new() -> NameCopy {
        NameCopy { bytes: [0; 8 * (INLINE_WORDS + LONG_WORDS[2])], len: 0 }
    }

    pub(crate) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

/// Returns the group of slots for a dentry or an inode of `kind`. Directories are few, and every
/// path walk reads some. So their slots share memory pages, apart from other slots.
pub(crate) fn group_of(kind: FileKind) -> Group {
    match kind {
        FileKind::Directory => Group::Few,
        _ => Group::Many,
    }
}

pub(crate) fn kind_flags(kind: FileKind) -> Flags {
    match kind {
        FileKind::Directory => Flags::DIRECTORY,
        FileKind::Symlink => Flags::SYMLINK,
        _ => Flags::empty(),
    }
}

fn long_at(body: Body) -> usize {
    INLINE_WORDS - 1 - if body.is_directory() { DIRECTORY_WORDS } else { 0 }
}

#[inline]
pub(crate) fn directory_id(superblock: u32, ino: u64) -> u64 {
    ino.wrapping_add(u64::from(superblock) << 48)
}

#[cfg(all(test, corewalk_loom))]
mod loom_models;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hash::HashKeys;
    use crate::name::Name;

    #[test]
    fn dentry_has_its_name_and_no_other() {
        let dentries = Dentries::new(4).unwrap();
        let keys = HashKeys::new(Some(1));
        let bytes: Vec<u8> = (1..=255).collect();
        for (len, flags) in (1..=255).flat_map(|len| [(len, Flags::HASHED), (len, DIRECTORY)]) {
            let name = &bytes[..len];
            let (key, inode) = (ParentKey::new(DentrySlot::new(1), 1), InodeSlot::new(1));
            let slot = dentries.alloc(InodeSlot::NONE, Group::Many).unwrap();
            let words = DirectoryWords::default();
            let image = dentries.new_image(key, 0, inode, name, flags, words);
            dentries.store(slot, &image.unwrap());
            let seen = dentries.snapshot(slot);
            let mut copy = NameCopy::new();
            dentries.copy_name(slot, seen.body, &mut copy);
            assert_eq!(copy.as_bytes(), name);
            let is_named = |name: &[u8]| {
                let lookup_key = LookupKey::new(Name::unchecked(name), &keys);
                dentries.line(slot).is_named(seen, &lookup_key, &dentries)
            };
            assert!(is_named(name), "{len} {flags:?}");
            let mut other = name.to_vec();
            for i in 0..len {
                other[i] = 0;
                assert!(!is_named(&other), "{len} {flags:?}: byte {i}");
                other[i] = name[i];
            }
            assert!(!is_named(&name[1..]) && !is_named(&[name, &b"x"[..]].concat()));
            dentries.drop_image(&dentries.image(slot));
            dentries.free(slot);
        }
    }

    const DIRECTORY: Flags = Flags::HASHED.union(Flags::DIRECTORY);
}
