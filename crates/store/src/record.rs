//! The format of the database: keys and values.
//!
//! The database has one table, so a small commit writes few pages. A key has 17 bytes: the kind of
//! the record and two numbers, in a form that sorts in the same order. Numbers in values are
//! little-endian.
//!
//! | kind | numbers | value |
//! |---|---|---|
//! | super | 0, 0 | magic, format version, seed of the hash, generation and length of the log |
//! | orphan | inode, 0 | empty; an inode without links that may still be in use |
//! | inode | inode, 0 | [`InodeRecord`], then the target of a symbolic link |
//! | name | directory, hash of the name | its entries: slot, kind, inode, length, name |
//! | extent | inode, logical block | physical block, number of blocks, 1 if unwritten |
//! | xattr users | block, 0 | hash of the content or 0, users, length of the content |
//! | xattr | block, 0 | the content: see `xattr` |
//!
//! A value that does not parse is corrupt. It causes `EIO`, but never a panic.

use corewalk::{Errno, FileKind, Timespec};

const MAGIC: [u8; 8] = *b"corewlk\0";
pub(crate) const FORMAT_VERSION: u32 = 2;
pub(crate) const KEY_BYTES: usize = 17;
const INODE_BYTES: usize = 108;
const ENTRY_BYTES: usize = 11;
/// Maximum number of names in a directory that have the same hash: a cookie has 4 bits to tell them
/// apart.
pub(crate) const SLOTS: u8 = 16;
/// The flag of an inode that was made without a name (`O_TMPFILE`) and may still get one.
const LINKABLE: u32 = 1;
/// The inode has an access ACL.
const HAS_ACL: u32 = 2;

/// The largest valid inode number, block id or generation. No store counts that far. So a larger
/// number in a record is damage, and the number after it might wrap around to one in use.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// Maximum number of entries of a directory, so that its size in stat(2) cannot overflow.
const ENTRIES_MAX: u64 = 1 << 56;

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub(crate) enum Kind {
    Super,
    Orphan,
    Inode,
    Name,
    Extent,
    XattrUsers,
    Xattr,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) major: u64,
    pub(crate) minor: u64,
}

impl Key {
    pub(crate) const SUPER: Key = Key { kind: Kind::Super, major: 0, minor: 0 };

    #[inline]
    pub(crate) fn of(kind: Kind, major: u64) -> Key {
        Key { kind, major, minor: 0 }
    }

    #[inline]
    pub(crate) fn at(kind: Kind, major: u64, minor: u64) -> Key {
        Key { kind, major, minor }
    }

    pub(crate) fn check_number(self) -> Result<(), Errno> {
        let is_sound = (1..=NUMBER_MAX).contains(&self.major) && self.minor == 0;
        if is_sound { Ok(()) } else { Err(Errno::IO) }
    }

    pub(crate) fn to_bytes(self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.major.to_be_bytes());
        bytes[9..].copy_from_slice(&self.minor.to_be_bytes());
        bytes
    }

    pub(crate) fn from_bytes(bytes: &[u8; KEY_BYTES]) -> Option<Key> {
        use Kind::*;
        let kinds = [Super, Orphan, Inode, Name, Extent, XattrUsers, Xattr];
        let kind = *kinds.get(usize::from(bytes[0]))?;
        let number = |at: usize| {
            bytes[at..].first_chunk().map(|bytes| u64::from_be_bytes(*bytes)).unwrap_or_default()
        };
        Some(Key { kind, major: number(1), minor: number(9) })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuperRecord {
    pub(crate) version: u32,
    pub(crate) seed: u64,
    /// The generation of the log, which each commit to the database increments. Log entries of
    /// earlier generations are void.
    pub(crate) generation: u64,
    /// Length in bytes of the log in use, or 0. If the log is shorter than that, it may have lost
    /// entries.
    pub(crate) log_bytes: u64,
}

impl SuperRecord {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (version, seed) = (self.version.to_le_bytes(), self.seed.to_le_bytes());
        let (generation, log) = (self.generation.to_le_bytes(), self.log_bytes.to_le_bytes());
        [&MAGIC[..], &version, &seed, &generation, &log].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<SuperRecord, Errno> {
        let mut fields = Fields(bytes);
        if fields.take::<8>()? != MAGIC {
            return Err(Errno::IO);
        }
        let version = fields.u32()?;
        if version != FORMAT_VERSION {
            return Ok(SuperRecord { version, seed: 0, generation: 0, log_bytes: 0 });
        }
        let (seed, generation) = (fields.u64()?, fields.u64()?);
        if generation > NUMBER_MAX {
            return Err(Errno::IO);
        }
        // Older builds with the same format version wrote no `log_bytes`.
        let log_bytes = fields.u64().unwrap_or(0);
        Ok(SuperRecord { version, seed, generation, log_bytes })
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u64,
    /// Length of a file or of a symbolic link's target, or number of entries of a directory.
    pub(crate) size: u64,
    pub(crate) blocks: u64,
    /// Id of the attribute block; 0 for none.
    pub(crate) xattr: u64,
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
    pub(crate) ctime: Timespec,
    pub(crate) btime: Timespec,
    /// Inode number of a directory's parent. It is 0 for the root, for other files, and in records
    /// of older builds.
    pub(crate) parent: u64,
    /// True for a file of `O_TMPFILE` without a name, which link(2) may give one.
    pub(crate) is_linkable: bool,
    pub(crate) has_acl: bool,
}

impl InodeRecord {
    pub(crate) fn encode(&self, target: &[u8], out: &mut Vec<u8>) {
        out.reserve(INODE_BYTES + target.len());
        for word in [self.mode, self.nlink, self.uid, self.gid] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for word in [self.rdev, self.size, self.blocks, self.xattr] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        for time in [self.atime, self.mtime, self.ctime, self.btime] {
            out.extend_from_slice(&time.secs.to_le_bytes());
            out.extend_from_slice(&time.nanos.to_le_bytes());
        }
        let linkable = if self.is_linkable { LINKABLE } else { 0 };
        let acl = if self.has_acl { HAS_ACL } else { 0 };
        out.extend_from_slice(&(linkable | acl).to_le_bytes());
        // Older builds write 0 here, and ignore it when they read the record.
        out.extend_from_slice(&self.parent.to_le_bytes());
        out.extend_from_slice(target);
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<(InodeRecord, &[u8]), Errno> {
        let mut fields = Fields(bytes);
        let [mode, nlink, uid, gid] = [(); 4].map(|()| fields.u32());
        let [rdev, size, blocks, xattr] = [(); 4].map(|()| fields.u64());
        let [atime, mtime, ctime, btime] = [(); 4].map(|()| fields.time());
        let flags = fields.u32()?;
        let parent = fields.u64()?;
        let record = InodeRecord {
            parent,
            mode: mode?,
            nlink: nlink?,
            uid: uid?,
            gid: gid?,
            rdev: rdev?,
            size: size?,
            blocks: blocks?,
            xattr: xattr?,
            atime: atime?,
            mtime: mtime?,
            ctime: ctime?,
            btime: btime?,
            is_linkable: flags & LINKABLE != 0,
            has_acl: flags & HAS_ACL != 0,
        };
        let size_max = match FileKind::from_mode(record.mode).ok_or(Errno::IO)? {
            FileKind::Directory => ENTRIES_MAX,
            _ => i64::MAX as u64,
        };
        if record.size > size_max || record.blocks > BLOCKS_MAX {
            return Err(Errno::IO);
        }
        Ok((record, fields.0))
    }

    /// Updates the counts of a directory that gains and loses entries. `got` and `lost` are the
    /// entries gained and lost, each with the number of directories among them.
    ///
    /// # Errors
    /// `EIO` if the directory would lose more entries or subdirectories than it has. `EMLINK` if
    /// the number of entries or the link count becomes too large. After an error nothing has
    /// changed.
    pub(crate) fn count(&mut self, got: (u64, u32), lost: (u64, u32)) -> Result<(), Errno> {
        let size = self.size.checked_add(got.0).filter(|&size| size <= ENTRIES_MAX);
        let nlink = self.nlink.checked_add(got.1).ok_or(Errno::MLINK)?;
        let size = size.ok_or(Errno::MLINK)?.checked_sub(lost.0).ok_or(Errno::IO)?;
        // The name of a directory and its entry `.` are two links, so the count must not fall below
        // 2.
        let least = if lost.1 > 0 { 2 } else { 0 };
        let nlink = nlink.checked_sub(lost.1).filter(|&nlink| nlink >= least).ok_or(Errno::IO)?;
        (self.size, self.nlink) = (size, nlink);
        Ok(())
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    pub(crate) slot: u8,
    pub(crate) kind: FileKind,
    pub(crate) ino: u64,
    pub(crate) name: &'a [u8],
}

impl Entry<'_> {
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(ENTRY_BYTES + self.name.len());
        // The casts lose no bits: a name has at most 255 bytes, and a file type four bits.
        out.extend_from_slice(&[self.slot, (self.kind.to_mode() >> 12) as u8]);
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.push(self.name.len() as u8);
        out.extend_from_slice(self.name);
    }
}

/// Iterates over the directory entries in a record. At an invalid entry, the iterator yields `EIO`
/// and ends.
pub(crate) struct Entries<'a>(pub(crate) &'a [u8]);

impl<'a> Iterator for Entries<'a> {
    type Item = Result<Entry<'a>, Errno>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.0.is_empty() {
            return None;
        }
        let entry = self.parse();
        if entry.is_err() {
            self.0 = &[];
        }
        Some(entry)
    }
}

impl<'a> Entries<'a> {
    fn parse(&mut self) -> Result<Entry<'a>, Errno> {
        let mut fields = Fields(self.0);
        let [slot, kind] = fields.take()?;
        let ino = fields.u64()?;
        let [len] = fields.take()?;
        let kind = FileKind::from_mode(u32::from(kind) << 12).ok_or(Errno::IO)?;
        let (name, rest) = fields.0.split_at_checked(usize::from(len)).ok_or(Errno::IO)?;
        self.0 = rest;
        if slot >= SLOTS || name.is_empty() {
            return Err(Errno::IO);
        }
        Ok(Entry { slot, kind, ino, name })
    }
}

/// Maximum number of blocks of the data device. On a larger device, sums of block numbers could
/// overflow.
pub(crate) const BLOCKS_MAX: u64 = 1 << 51;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    pub(crate) physical: u64,
    pub(crate) len: u64,
    /// True for blocks with data, and false for reserved blocks, which read as zeros.
    pub(crate) is_written: bool,
}

impl Extent {
    pub(crate) fn encode(self) -> Vec<u8> {
        let flags = u8::from(!self.is_written);
        [&self.physical.to_le_bytes()[..], &self.len.to_le_bytes(), &[flags]].concat()
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<Extent, Errno> {
        let mut fields = Fields(bytes);
        let (physical, len, [flags]) = (fields.u64()?, fields.u64()?, fields.take()?);
        let is_sound =
            len > 0 && physical < BLOCKS_MAX && len <= BLOCKS_MAX - physical && flags <= 1;
        if !is_sound || !fields.0.is_empty() {
            return Err(Errno::IO);
        }
        Ok(Extent { physical, len, is_written: flags == 0 })
    }

    /// Returns the logical block behind the extent. `EIO` if the number is too large. The limit is
    /// above the largest file size: reserved blocks may lie behind the end of the file, and an
    /// insertion moves them even farther.
    pub(crate) fn logical_end(self, logical: u64) -> Result<u64, Errno> {
        let end = logical.checked_add(self.len).filter(|&end| end <= 4 * BLOCKS_MAX);
        end.ok_or(Errno::IO)
    }

    pub(crate) fn written_end(self) -> u64 {
        if self.is_written { self.physical + self.len } else { 0 }
    }
}

/// The `hash` of a private attribute block.
pub(crate) const UNHASHED: u64 = 0;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsersRecord {
    pub(crate) hash: u64,
    pub(crate) users: u32,
    pub(crate) len: u32,
}

impl UsersRecord {
    pub(crate) fn encode(self) -> [u8; 16] {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&self.hash.to_le_bytes());
        bytes[8..12].copy_from_slice(&self.users.to_le_bytes());
        bytes[12..].copy_from_slice(&self.len.to_le_bytes());
        bytes
    }

    pub(crate) fn decode(bytes: &[u8]) -> Result<UsersRecord, Errno> {
        let mut fields = Fields(bytes);
        let record = UsersRecord { hash: fields.u64()?, users: fields.u32()?, len: fields.u32()? };
        if fields.0.is_empty() { Ok(record) } else { Err(Errno::IO) }
    }
}

/// Parses the fields of a value one after the other. `EIO` if the value ends too early.
pub(crate) struct Fields<'a>(pub(crate) &'a [u8]);

impl Fields<'_> {
    pub(crate) fn take<const N: usize>(&mut self) -> Result<[u8; N], Errno> {
        let (first, rest) = self.0.split_first_chunk::<N>().ok_or(Errno::IO)?;
        self.0 = rest;
        Ok(*first)
    }

    pub(crate) fn u32(&mut self) -> Result<u32, Errno> {
        self.take().map(u32::from_le_bytes)
    }

    pub(crate) fn u64(&mut self) -> Result<u64, Errno> {
        self.take().map(u64::from_le_bytes)
    }

    fn time(&mut self) -> Result<Timespec, Errno> {
        let (secs, nanos) = (self.u64()? as i64, self.u32()?);
        if nanos >= 1_000_000_000 {
            return Err(Errno::IO);
        }
        Ok(Timespec { secs, nanos })
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time() -> impl Strategy<Value = Timespec> {
        (any::<i64>(), 0..1_000_000_000u32).prop_map(|(secs, nanos)| Timespec { secs, nanos })
    }

    prop_compose! {
        fn inode()(
            words in any::<[u32; 3]>(), numbers in any::<[u64; 5]>(),
            times in [time(), time(), time(), time()], flags in any::<[bool; 2]>(),
        ) -> InodeRecord {
            let ([nlink, uid, gid], [rdev, size, blocks, xattr, parent]) = (words, numbers);
            let (size, blocks) = (size >> 1, blocks % BLOCKS_MAX);
            let [atime, mtime, ctime, btime] = times;
            let [is_linkable, has_acl] = flags;
            InodeRecord {
                mode: 0o100_644, nlink, uid, gid, rdev, size, blocks, xattr,
                atime, mtime, ctime, btime, parent, is_linkable, has_acl,
            }
        }
    }

    proptest! {
        #[test]
        fn inode_round_trips(record in inode(), target in any::<Vec<u8>>()) {
            let mut bytes = Vec::new();
            record.encode(&target, &mut bytes);
            prop_assert_eq!(bytes.len(), INODE_BYTES + target.len());
            prop_assert_eq!(InodeRecord::decode(&bytes), Ok((record, &target[..])));
        }

        #[test]
        fn sizes_that_no_file_has_are_eio(record in inode(), is_size: bool) {
            let mut record = record;
            match is_size {
                true => record.size |= 1 << 63,
                false => record.blocks = BLOCKS_MAX + 1,
            }
            let mut bytes = Vec::new();
            record.encode(b"", &mut bytes);
            prop_assert_eq!(InodeRecord::decode(&bytes), Err(Errno::IO));
            for (size, is_sound) in [(ENTRIES_MAX, true), (ENTRIES_MAX + 1, false)] {
                let directory = InodeRecord { mode: 0o040_755, size, blocks: 0, ..record };
                bytes.clear();
                directory.encode(b"", &mut bytes);
                prop_assert_eq!(InodeRecord::decode(&bytes).is_ok(), is_sound);
            }
        }

        #[test]
        fn any_bytes_parse_or_are_eio(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let _ = (InodeRecord::decode(&bytes), Extent::decode(&bytes));
            let _ = (UsersRecord::decode(&bytes), SuperRecord::decode(&bytes));
            for entry in Entries(&bytes) {
                prop_assert!(entry.is_ok_and(|e| !e.name.is_empty()) || entry == Err(Errno::IO));
            }
        }

        #[test]
        fn keys_sort_as_their_bytes_do(
            a in (0..7u8, any::<[u64; 2]>()), b in (0..7u8, any::<[u64; 2]>()),
        ) {
            let key = |(kind, [major, minor]): (u8, [u64; 2])| {
                let mut bytes = [kind; KEY_BYTES];
                bytes[1..9].copy_from_slice(&major.to_be_bytes());
                bytes[9..].copy_from_slice(&minor.to_be_bytes());
                let key = Key::from_bytes(&bytes).unwrap();
                assert_eq!(key.to_bytes(), bytes);
                key
            };
            prop_assert_eq!(key(a).cmp(&key(b)), key(a).to_bytes().cmp(&key(b).to_bytes()));
        }
    }

    #[test]
    fn entries_of_one_hash_follow_each_other() {
        let mut bytes = Vec::new();
        let first = Entry { slot: 0, kind: FileKind::Regular, ino: 7, name: b"a" };
        let second = Entry { slot: 3, kind: FileKind::Directory, ino: 8, name: &[b'x'; 255] };
        first.encode(&mut bytes);
        second.encode(&mut bytes);
        let got: Vec<_> = Entries(&bytes).collect();
        assert_eq!(got, [Ok(first), Ok(second)]);
        bytes.pop();
        assert_eq!(Entries(&bytes).collect::<Vec<_>>(), [Ok(first), Err(Errno::IO)]);
    }

    #[test]
    fn superblock_of_another_version_is_told_apart() {
        let ours = SuperRecord { version: FORMAT_VERSION, seed: 5, generation: 7, log_bytes: 0 };
        let mut bytes = ours.encode();
        assert_eq!(SuperRecord::decode(&bytes), Ok(ours));
        assert_eq!(SuperRecord::decode(&bytes[..20]), Err(Errno::IO));
        for (generation, is_sound) in [(NUMBER_MAX, true), (NUMBER_MAX + 1, false)] {
            let bytes = SuperRecord { generation, ..ours }.encode();
            assert_eq!(SuperRecord::decode(&bytes).is_ok(), is_sound);
        }
        for version in [1, 9] {
            bytes[8] = version as u8;
            let other = SuperRecord { version, seed: 0, generation: 0, log_bytes: 0 };
            assert_eq!(SuperRecord::decode(&bytes[..12]), Ok(other));
        }
        bytes[0] = 0;
        assert_eq!(SuperRecord::decode(&bytes), Err(Errno::IO));
    }
}
