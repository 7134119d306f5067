//! What the database holds: keys, and how values are spelled.
//!
//! There is one table, so that a small commit writes few pages. A key is a kind and two numbers, as 17
//! bytes that sort as the numbers do; numbers within values are little-endian.
//!
//! | kind | numbers | value |
//! |---|---|---|
//! | super | 0, 0 | magic, format version, seed of the hash, generation of the log |
//! | orphan | inode, 0 | nothing: an inode without links that may still be in use |
//! | inode | inode, 0 | [`InodeRecord`]; behind it the target of a symbolic link |
//! | name | directory, hash of the name | all entries with that hash: slot, kind, inode, length, name |
//! | extent | inode, logical block | physical block, blocks, 1 if not written |
//! | xattr users | block, 0 | hash of the content or 0, users, bytes of the content |
//! | xattr | block, 0 | the content: see `xattr` |
//!
//! Values that do not parse are corruption: `EIO`, never a panic.

use corewalk::{Errno, FileKind, Timespec};

/// What begins the superblock.
const MAGIC: [u8; 8] = *b"corewlk\0";
/// The format version that this program reads and writes.
pub(crate) const FORMAT_VERSION: u32 = 2;
/// Bytes of a key.
pub(crate) const KEY_BYTES: usize = 17;
/// Bytes of an inode before the target of a symbolic link.
const INODE_BYTES: usize = 108;
/// Bytes of an entry before its name.
const ENTRY_BYTES: usize = 11;
/// The most names of one hash in a directory: what a cookie can tell.
pub(crate) const SLOTS: u8 = 16;
/// Set in the flags of an inode without links that may be given a name.
const LINKABLE: u32 = 1;
/// Set in the flags of an inode with an access ACL.
const HAS_ACL: u32 = 2;

/// The largest number of an inode or of a block of attributes, and the largest generation. Numbers are counted from 1 on, so nobody gets there; a
/// larger one is damage, and the next one behind it might be one that there is.
pub(crate) const NUMBER_MAX: u64 = 1 << 62;

/// The most entries of a directory, which nobody makes: so that what stat(2) tells of them, in bytes, can be said.
const ENTRIES_MAX: u64 = 1 << 56;

/// What a record is about.
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

/// The key of a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Key {
    pub(crate) kind: Kind,
    pub(crate) major: u64,
    pub(crate) minor: u64,
}

impl Key {
    pub(crate) const SUPER: Key = Key { kind: Kind::Super, major: 0, minor: 0 };

    /// Returns the key of a record of which there is one per number.
    #[inline]
    pub(crate) fn of(kind: Kind, major: u64) -> Key {
        Key { kind, major, minor: 0 }
    }

    /// Returns the key of one of many records per number.
    #[inline]
    pub(crate) fn at(kind: Kind, major: u64, minor: u64) -> Key {
        Key { kind, major, minor }
    }

    /// Checks that the record is one of which there is one per number, and that there may be what it is about. `EIO`.
    pub(crate) fn check_number(self) -> Result<(), Errno> {
        let is_sound = (1..=NUMBER_MAX).contains(&self.major) && self.minor == 0;
        if is_sound { Ok(()) } else { Err(Errno::IO) }
    }

    /// Returns the bytes that stand for it in the database.
    pub(crate) fn to_bytes(self) -> [u8; KEY_BYTES] {
        let mut bytes = [0; KEY_BYTES];
        bytes[0] = self.kind as u8;
        bytes[1..9].copy_from_slice(&self.major.to_be_bytes());
        bytes[9..].copy_from_slice(&self.minor.to_be_bytes());
        bytes
    }

    /// Returns the key that `bytes` stand for; None for an unknown kind.
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

/// What belongs to the store as a whole.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct SuperRecord {
    pub(crate) version: u32,
    pub(crate) seed: u64,
    /// The log's entries of this generation are not in the database yet.
    pub(crate) generation: u64,
    /// Length of the log in bytes while it may hold entries that are not in the database. A shorter log has lost some of
    /// them. 0 if the store was closed or has no log: then no entry of the log is needed.
    pub(crate) log_bytes: u64,
}

impl SuperRecord {
    pub(crate) fn encode(self) -> Vec<u8> {
        let (version, seed) = (self.version.to_le_bytes(), self.seed.to_le_bytes());
        let (generation, log) = (self.generation.to_le_bytes(), self.log_bytes.to_le_bytes());
        [&MAGIC[..], &version, &seed, &generation, &log].concat()
    }

    /// Returns the superblock; only `version` is there for one that is not known. `EIO` if it is none.
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
        // Builds that did not keep it wrote a shorter record of the same version.
        let log_bytes = fields.u64().unwrap_or(0);
        Ok(SuperRecord { version, seed, generation, log_bytes })
    }
}

/// An inode as it is stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct InodeRecord {
    pub(crate) mode: u32,
    pub(crate) nlink: u32,
    pub(crate) uid: u32,
    pub(crate) gid: u32,
    pub(crate) rdev: u64,
    /// Bytes of a file or of a target; entries of a directory.
    pub(crate) size: u64,
    /// Blocks that are allocated, of 4096 bytes.
    pub(crate) blocks: u64,
    /// The block of extended attributes; 0 for none.
    pub(crate) xattr: u64,
    pub(crate) atime: Timespec,
    pub(crate) mtime: Timespec,
    pub(crate) ctime: Timespec,
    pub(crate) btime: Timespec,
    /// The number of the directory that a directory is in; 0 for the root, for what is no directory, and for what an
    /// earlier program has written.
    pub(crate) parent: u64,
    /// True for a file made without a name that may still be given one.
    pub(crate) is_linkable: bool,
    /// True if the attributes have an access ACL.
    pub(crate) has_acl: bool,
}

impl InodeRecord {
    /// Appends the inode, and behind it `target`.
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
        // Earlier programs of the same format write 0 here, and do not look at it.
        out.extend_from_slice(&self.parent.to_le_bytes());
        out.extend_from_slice(target);
    }

    /// Returns the inode and what is behind it. `EIO` if it is none.
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

    /// Says that a directory has got entries and lost others; of each, how many, and how many of them are directories.
    ///
    /// # Errors
    /// `EIO` for one that says that it has not so many; `EMLINK` for more than can be counted. Nothing is changed then.
    pub(crate) fn count(&mut self, got: (u64, u32), lost: (u64, u32)) -> Result<(), Errno> {
        let size = self.size.checked_add(got.0).filter(|&size| size <= ENTRIES_MAX);
        let nlink = self.nlink.checked_add(got.1).ok_or(Errno::MLINK)?;
        let size = size.ok_or(Errno::MLINK)?.checked_sub(lost.0).ok_or(Errno::IO)?;
        // Its name, and its entry for itself.
        let least = if lost.1 > 0 { 2 } else { 0 };
        let nlink = nlink.checked_sub(lost.1).filter(|&nlink| nlink >= least).ok_or(Errno::IO)?;
        (self.size, self.nlink) = (size, nlink);
        Ok(())
    }
}

/// One entry of a directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Entry<'a> {
    /// Which of the entries with its hash.
    pub(crate) slot: u8,
    pub(crate) kind: FileKind,
    pub(crate) ino: u64,
    pub(crate) name: &'a [u8],
}

impl Entry<'_> {
    /// Appends the entry to the value of its hash.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        out.reserve(ENTRY_BYTES + self.name.len());
        // A name has at most 255 bytes, a kind four bits.
        out.extend_from_slice(&[self.slot, (self.kind.to_mode() >> 12) as u8]);
        out.extend_from_slice(&self.ino.to_le_bytes());
        out.push(self.name.len() as u8);
        out.extend_from_slice(self.name);
    }
}

/// The entries of one hash, in the order of their slots. Ends with `EIO` at what is no entry.
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

/// Blocks of a device, at most: what is larger overflows when it is added up.
pub(crate) const BLOCKS_MAX: u64 = 1 << 51;

/// Blocks of a file that are beside each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Extent {
    /// The first block on the device.
    pub(crate) physical: u64,
    /// Blocks.
    pub(crate) len: u64,
    /// False for blocks that read as zeros, whatever is on the device.
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

    /// Returns the block of its file behind its last one, where it begins at `logical`.
    ///
    /// # Errors
    /// `EIO` for one that no file has. (Ranges that are inserted may move reserved blocks behind the largest size, but no
    /// farther than once more as far.)
    pub(crate) fn logical_end(self, logical: u64) -> Result<u64, Errno> {
        let end = logical.checked_add(self.len).filter(|&end| end <= 4 * BLOCKS_MAX);
        end.ok_or(Errno::IO)
    }

    /// Returns the block behind its last one that has bytes; 0 if none has.
    pub(crate) fn written_end(self) -> u64 {
        if self.is_written { self.physical + self.len } else { 0 }
    }
}

/// The hash in the record of a block of attributes that nobody else may use, which is not hashed.
pub(crate) const UNHASHED: u64 = 0;

/// How many inodes use a block of attributes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct UsersRecord {
    pub(crate) hash: u64,
    pub(crate) users: u32,
    /// Bytes of the content.
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

/// Bytes that are taken field by field; `EIO` where they end too soon.
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
            // Others are refused.
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
