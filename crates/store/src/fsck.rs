//! Checks a store that is not mounted.
//!
//! `fsck` verifies that all records agree with each other:
//! 1. redb (the database) verifies its pages. If a crash left the last commit incomplete, redb
//!    falls back to the commit before it, which is no finding.
//! 2. `fsck` replays the log, as a mount does. If a mount would refuse the log, `fsck` reports
//!    that, and goes on without the log.
//! 3. `fsck` reads all records.
//!
//! `fsck` works on an overlay in memory, so it changes no byte of the store. There is no repair,
//! since a crash leaves nothing to repair.
//!
//! # Invariants
//! - F.1: each directory except the root has exactly one name, and every inode is reachable from
//!   the root.
//! - F.2: a directory entry has the file type of its inode, and is stored under the hash of its
//!   name.
//! - F.3: the counts of links and entries are right. Exactly the inodes without links have orphan
//!   records.
//! - F.4: extents lie within the device and do not overlap. Stored block counts match the extents.
//!   No written block is behind the end of its file.
//! - F.5: an attribute set parses, and the length, hash and user count of its block are right. A
//!   private block has no hash and one user. An access ACL agrees with the mode of its inodes, and
//!   expresses more than the mode can. A default ACL parses.
//! - F.6: the length of a symbolic link's target is its size. No other inode has a target.
//!
//! Source: fsck(8).

use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::path::Path;

use corewalk::{AclKind, Errno, FileKind, Name};

use crate::content::BLOCK_BYTES;
use crate::database::Snapshot;
use crate::directory::hash_of_name;
use crate::hash::Secret;
use crate::journal::Devices;
use crate::log;
use crate::mount::{each, look_at_log, open_database, read_super, refusal};
use crate::record::{Entries, Extent, InodeRecord, Key, Kind, UNHASHED, UsersRecord};
use crate::store::ROOT_INO;
use crate::store_dir::{OpenError, StoreDir};
use crate::xattr;

const CACHE_BYTES: usize = 64 << 20;

/// A broken invariant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Pages of the database are damaged.
    Database,
    /// The log is damaged at this byte. Behind it are confirmed entries (an fsync has made them
    /// durable), so a mount refuses the store. `fsck` has checked the last commit of the database
    /// without the log.
    Log(u64),
    /// The log entry at this byte offset has the right hash but does not parse. `fsck` has checked
    /// the database without the log.
    LogEntry(u64),
    /// The store was not closed, and its log is missing or too short. The fields are the length of
    /// the log and the length that it must have. `fsck` has ignored the log.
    LogShort(u64, u64),
    /// The log cannot be read at this byte offset. `fsck` has checked the database without the log.
    LogRead(u64),
    /// The database is older than its log, so confirmed commits are lost. The fields are the
    /// generations of the database and of the log. `fsck` has checked the database without the log.
    DatabaseBehind(u64, u64),
    /// There is no root directory.
    NoRoot,
    /// A record does not parse, or its key is invalid. The fields are the kind of the record and
    /// the two numbers of its key.
    Unreadable(u8, u64, u64),
    /// A directory entry refers to an inode that does not exist. The fields are the inode numbers
    /// of the directory and of the missing inode.
    NoInode(u64, u64),
    /// A directory entry has another file type than its inode. The fields are the directory and the
    /// inode.
    OtherKind(u64, u64),
    /// A directory entry is not stored under the hash of its name, or its directory has the name
    /// twice. The fields are the directory and the hash.
    Misplaced(u64, u64),
    /// An inode has directory entries, an orphan record or extents, but is missing or of a file
    /// type that cannot have them.
    Stray(u64),
    /// A directory has several names, or the root directory has a name. The field is the inode.
    SeveralNames(u64),
    /// An inode that is not reachable from the root.
    Unreachable(u64),
    /// A wrong count of links. The fields are the inode, the stored count and the right count.
    Links(u64, u32, u32),
    /// A wrong count of entries of a directory. The fields are the inode, the stored count and the
    /// right count.
    EntryCount(u64, u64, u64),
    /// An inode without links has no orphan record, or an inode with links has one.
    Orphan(u64),
    /// Two extents of a file contain the same logical block (block of the file). The fields are the
    /// inode and the logical block.
    LogicalOverlap(u64, u64),
    /// Two extents use one block of the device. The fields are the inode and the block.
    Overlap(u64, u64),
    /// A written extent ends behind the end of the device. The fields are the inode and the block
    /// of the device.
    BehindDevice(u64, u64),
    /// A file has a written block beyond its end. The fields are the inode number and the logical
    /// block.
    BehindSize(u64, u64),
    /// A wrong count of blocks of a file. The fields are the inode, the stored count and the right
    /// count.
    BlockCount(u64, u64, u64),
    /// A wrong count of users of an attribute block. The fields are the block, the stored count and
    /// the right count.
    Users(u64, u32, u32),
    /// The size of a symbolic link is not the length of its target, or an inode of another kind has
    /// a target.
    Target(u64),
    /// The hash or the length of an attribute block is wrong, or its attribute set does not parse.
    Attributes(u64),
    /// The record of an inode says wrongly whether the inode has an access ACL.
    AclFlag(u64),
    /// An access ACL contradicts the mode of its inode, or expresses no more than that mode.
    AclMode(u64),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Finding::*;
        match *self {
            Database => f.write_str("the database has damaged pages"),
            Log(at) => write!(
                f,
                "the log is damaged at byte {at}, and confirmed changes from there on are lost; the \
                 database was checked without the log"
            ),
            LogEntry(at) => write!(f, "the log has an entry at byte {at} that is not understood"),
            LogShort(len, expected) => write!(
                f,
                "the log has {len} bytes, and had {expected}: confirmed changes since the last commit \
                 of the database may be lost"
            ),
            LogRead(at) => write!(f, "the log cannot be read at byte {at}"),
            DatabaseBehind(database, log) => write!(
                f,
                "the database is at generation {database}, its log at {log}: confirmed changes are \
                 lost"
            ),
            NoRoot => f.write_str("there is no root directory"),
            Unreadable(kind, a, b) => {
                write!(f, "record {kind}/{a}/{b} does not parse, or its number is invalid")
            }
            NoInode(dir, ino) => {
                write!(f, "a name in directory {dir} leads to inode {ino}, which is missing")
            }
            OtherKind(dir, ino) => {
                write!(f, "a name in directory {dir} has another kind than inode {ino}")
            }
            Misplaced(dir, hash) => {
                write!(f, "a name in directory {dir} is stored under the wrong hash: {hash:#x}")
            }
            Stray(ino) => {
                write!(f, "inode {ino} has records, but is missing or of another kind")
            }
            SeveralNames(ino) => write!(f, "directory {ino} has one name too many"),
            Unreachable(ino) => write!(f, "inode {ino} cannot be reached from the root"),
            Links(ino, says, is) => write!(f, "inode {ino} has {is} links, not {says}"),
            EntryCount(ino, says, is) => write!(f, "directory {ino} has {is} entries, not {says}"),
            Orphan(ino) => {
                write!(f, "inode {ino} has links and is an orphan, or has none and is not")
            }
            LogicalOverlap(ino, at) => {
                write!(f, "extents of inode {ino} overlap at its block {at}")
            }
            Overlap(ino, at) => write!(f, "block {at} of inode {ino} is used twice"),
            BehindDevice(ino, at) => write!(f, "block {at} of inode {ino} is behind the device"),
            BehindSize(ino, at) => write!(f, "block {at} of inode {ino} is behind its size"),
            BlockCount(ino, says, is) => write!(f, "inode {ino} has {is} blocks, not {says}"),
            Users(id, says, is) => write!(f, "attribute block {id} has {is} users, not {says}"),
            Target(ino) => {
                write!(
                    f,
                    "inode {ino} has a target whose length is not its size, or should have none"
                )
            }
            Attributes(id) => write!(f, "attribute block {id} is damaged"),
            AclFlag(ino) => write!(f, "inode {ino} has a wrong flag for its access ACL"),
            AclMode(ino) => {
                write!(f, "the access ACL of inode {ino} contradicts its mode or says no more")
            }
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// The broken invariants.
    pub findings: Vec<Finding>,
    /// Number of inodes.
    pub inodes: u64,
    /// Number of inodes without links. The next mount frees them.
    pub orphans: u64,
    /// Number of blocks of files.
    pub blocks: u64,
    /// Number of attribute blocks.
    pub xattr_blocks: u64,
    /// Number of inodes that use an attribute block.
    pub xattr_users: u64,
}

/// Checks the store in the directory `path`, and changes no byte of it.
///
/// # Errors
/// [`OpenError::Busy`] if the store is mounted. [`OpenError::Missing`] if there is none. Otherwise
/// the errors of [`crate::Store::open`], except for damage, which is a finding.
///
/// # Examples
/// ```
/// use corewalk_store::{OpenError, Store, StoreOptions, fsck};
///
/// # let dir = std::env::temp_dir().join(format!("store-doc4-{}", std::process::id()));
/// let store = Store::open(&dir, &StoreOptions::default())?;
/// assert!(matches!(fsck(&dir), Err(OpenError::Busy)));
/// drop(store);
/// let report = fsck(&dir)?;
/// assert!(report.findings.is_empty() && report.inodes == 1);
/// # std::fs::remove_dir_all(&dir)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn fsck(path: &Path) -> Result<Report, OpenError> {
    let store_dir = StoreDir::open_to_read(path)?;
    fsck_devices(&store_dir.devices_to_read()?)
}

/// Checks the store on `devices`. Does not change them.
///
/// # Errors
/// As [`fsck`].
pub fn fsck_devices(devices: &Devices) -> Result<Report, OpenError> {
    devices.read_anew();
    match check_devices(&devices.overlaid()?) {
        // Report only the damaged database, because it causes all other findings.
        Err(OpenError::Damaged) => {
            Ok(Report { findings: vec![Finding::Database], ..Report::default() })
        }
        checked => checked,
    }
}

fn check_devices(devices: &Devices) -> Result<Report, OpenError> {
    let database = open_database(devices, CACHE_BYTES)?;
    let snapshot = database.snapshot()?;
    let superblock = read_super(&snapshot)?;
    // The replay may extend the data device, which would hide that blocks at the end of the device
    // are lost. So compare the device with the last extent before the replay.
    let blocks = devices.data.len()? / BLOCK_BYTES;
    let is_short = find_end(&snapshot).map_err(|errno| refusal(&snapshot, errno))? > blocks;
    drop(snapshot);
    let looked = look_at_log(devices, superblock);
    let settled = match looked.and_then(|found| log::replay(devices, &database, superblock, &found))
    {
        Ok(superblock) => Ok(superblock),
        Err(OpenError::LogDamaged { at, .. }) => Err(Finding::Log(at)),
        Err(OpenError::LogUnreadable { at }) => Err(Finding::LogEntry(at)),
        Err(OpenError::LogShort { len, expected }) => Err(Finding::LogShort(len, expected)),
        Err(OpenError::LogRead { at, .. }) => Err(Finding::LogRead(at)),
        Err(OpenError::DatabaseBehind { database, log, .. }) => {
            Err(Finding::DatabaseBehind(database, log))
        }
        Err(error) => return Err(error),
    };
    let snapshot = database.snapshot()?;
    let secret = Secret::new(read_super(&snapshot)?.seed);
    let device_blocks = if is_short { blocks } else { devices.data.len()? / BLOCK_BYTES };
    let mut check = Check { device_blocks, ..Check::default() };
    check.report.findings.extend(settled.err());
    check.read(&snapshot, &secret).map_err(|errno| refusal(&snapshot, errno))?;
    check.compare();
    Ok(check.report)
}

fn find_end(snapshot: &Snapshot) -> Result<u64, Errno> {
    let mut end = 0;
    each(snapshot, Kind::Extent, &mut |_, value| {
        end = Extent::decode(value).map_or(end, |extent| end.max(extent.written_end()));
        Ok(())
    })?;
    Ok(end)
}

#[derive(Default)]
struct Check {
    report: Report,
    device_blocks: u64,
    inodes: BTreeMap<u64, InodeRecord>,
    orphans: HashSet<u64>,
    entries: HashMap<u64, Vec<(u64, FileKind)>>,
    extents: HashMap<u64, (u64, u64)>,
    used: Vec<(u64, u64, u64)>,
    users: BTreeMap<u64, UsersRecord>,
    contents: HashSet<u64>,
    with_acl: HashMap<u64, Option<u32>>,
}

impl Check {
    fn find(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    fn read(&mut self, snapshot: &Snapshot, secret: &Secret) -> Result<(), Errno> {
        type Step = fn(&mut Check, &Secret, Key, &[u8]) -> Result<(), Errno>;
        let steps: [(Kind, Step); 6] = [
            (Kind::Orphan, |check, _, key, _| {
                check.orphans.insert(key.major);
                Ok(())
            }),
            (Kind::Inode, Check::read_inode),
            (Kind::Name, Check::read_names),
            (Kind::Extent, Check::read_extent),
            (Kind::XattrUsers, |check, _, key, value| {
                check.users.insert(key.major, UsersRecord::decode(value)?);
                Ok(())
            }),
            (Kind::Xattr, Check::read_set),
        ];
        for (kind, step) in steps {
            let is_numbered = !matches!(kind, Kind::Name | Kind::Extent);
            each(snapshot, kind, &mut |key, value| {
                let checked = if is_numbered { key.check_number() } else { Ok(()) };
                if checked.and_then(|()| step(self, secret, key, value)).is_err() {
                    self.find(Finding::Unreadable(kind as u8, key.major, key.minor));
                }
                Ok(())
            })?;
        }
        Ok(())
    }

    fn read_inode(&mut self, _: &Secret, key: Key, value: &[u8]) -> Result<(), Errno> {
        let (inode, target) = InodeRecord::decode(value)?;
        let is_symlink = FileKind::from_mode(inode.mode) == Some(FileKind::Symlink);
        if target.len() as u64 != if is_symlink { inode.size } else { 0 } {
            self.find(Finding::Target(key.major));
        }
        self.inodes.insert(key.major, inode);
        Ok(())
    }

    fn read_names(&mut self, secret: &Secret, key: Key, value: &[u8]) -> Result<(), Errno> {
        let mut last: Option<(u8, Vec<u8>)> = None;
        for entry in Entries(value) {
            let entry = entry?;
            let name = Name::new(entry.name).map_err(|_| Errno::IO)?;
            let is_after =
                last.as_ref().is_none_or(|(slot, at)| *slot < entry.slot && at != entry.name);
            if hash_of_name(name, secret) != key.minor || !is_after {
                self.find(Finding::Misplaced(key.major, key.minor));
            }
            last = Some((entry.slot, entry.name.to_vec()));
            self.entries.entry(key.major).or_default().push((entry.ino, entry.kind));
        }
        if last.is_none() { Err(Errno::IO) } else { Ok(()) }
    }

    fn read_extent(&mut self, _: &Secret, key: Key, value: &[u8]) -> Result<(), Errno> {
        let extent = Extent::decode(value)?;
        let Extent { physical, len, is_written } = extent;
        let (ino, logical) = (key.major, key.minor);
        let end = extent.logical_end(logical)?;
        let so_far = self.extents.get(&ino).copied().unwrap_or_default();
        if logical < so_far.0 {
            self.find(Finding::LogicalOverlap(ino, logical));
        }
        // The sum of the lengths of damaged extents may exceed a `u64`.
        self.extents.insert(ino, (end, so_far.1.saturating_add(len)));
        self.used.push((physical, physical + len, ino));
        let size = self.inodes.get(&ino).map_or(0, |inode| inode.size);
        if is_written && physical + len > self.device_blocks {
            self.find(Finding::BehindDevice(ino, physical));
        }
        if is_written && end > size.div_ceil(BLOCK_BYTES) {
            self.find(Finding::BehindSize(ino, logical));
        }
        Ok(())
    }

    fn read_set(&mut self, secret: &Secret, key: Key, value: &[u8]) -> Result<(), Errno> {
        let id = key.major;
        self.contents.insert(id);
        let has_hash = |users: &UsersRecord| match users.hash {
            UNHASHED => users.users == 1,
            hash => hash == secret.hash(value),
        };
        let is_right = |users: &UsersRecord| users.len as usize == value.len() && has_hash(users);
        if !self.users.get(&id).is_some_and(is_right) || !xattr::is_set(value) {
            self.find(Finding::Attributes(id));
        }
        if let Some(acl) = xattr::acl(value, AclKind::Access)? {
            let says_more = acl.equivalent_mode().is_none();
            self.with_acl.insert(id, says_more.then(|| acl.mode()));
        }
        // A default ACL must parse, because each new inode in the directory inherits it.
        xattr::acl(value, AclKind::Default).map(drop)
    }

    fn compare(&mut self) {
        let links = self.compare_names();
        self.compare_inodes(&links);
        self.compare_blocks();
        let unreachable = self.collect_unreachable();
        self.report.findings.extend(unreachable.into_iter().map(Finding::Unreachable));
        self.report.inodes = self.inodes.len() as u64;
        self.report.orphans = self.orphans.len() as u64;
    }

    fn compare_names(&mut self) -> HashMap<u64, (u32, u32)> {
        let mut links: HashMap<u64, (u32, u32)> = HashMap::new();
        let mut found = Vec::new();
        for (&dir, entries) in &self.entries {
            let is_directory = self.inodes.get(&dir).is_some_and(is_directory);
            if !is_directory {
                found.push(Finding::Stray(dir));
            }
            for &(ino, kind) in entries {
                links.entry(ino).or_default().0 += 1;
                links.entry(dir).or_default().1 += u32::from(kind == FileKind::Directory);
                match self.inodes.get(&ino).map(|inode| FileKind::from_mode(inode.mode)) {
                    None => found.push(Finding::NoInode(dir, ino)),
                    Some(of_inode) if of_inode != Some(kind) => {
                        found.push(Finding::OtherKind(dir, ino));
                    }
                    Some(_) => {}
                }
            }
        }
        self.report.findings.extend(found);
        links
    }

    fn compare_inodes(&mut self, links: &HashMap<u64, (u32, u32)>) {
        let mut found = Vec::new();
        let mut users: HashMap<u64, u32> = HashMap::new();
        if !self.inodes.get(&ROOT_INO).is_some_and(is_directory) {
            found.push(Finding::NoRoot);
        }
        for (&ino, inode) in &self.inodes {
            let (names, subdirectories) = links.get(&ino).copied().unwrap_or_default();
            let is_orphan = self.orphans.contains(&ino);
            if is_orphan != (inode.nlink == 0) {
                found.push(Finding::Orphan(ino));
            }
            if is_directory(inode) {
                let entries = self.entries.get(&ino).map_or(0, Vec::len) as u64;
                if entries != inode.size {
                    found.push(Finding::EntryCount(ino, inode.size, entries));
                }
                if names > u32::from(ino != ROOT_INO) {
                    found.push(Finding::SeveralNames(ino));
                }
                let counted = if is_orphan && names == 0 { 0 } else { 2 + subdirectories };
                if counted != inode.nlink {
                    found.push(Finding::Links(ino, inode.nlink, counted));
                }
            } else if names != inode.nlink {
                found.push(Finding::Links(ino, inode.nlink, names));
            }
            let blocks = self.extents.get(&ino).map_or(0, |extents| extents.1);
            if blocks != inode.blocks {
                found.push(Finding::BlockCount(ino, inode.blocks, blocks));
            }
            if inode.xattr != 0 {
                *users.entry(inode.xattr).or_default() += 1;
            }
            let implied = self.with_acl.get(&inode.xattr);
            if inode.has_acl != implied.is_some() {
                found.push(Finding::AclFlag(ino));
            }
            if implied.is_some_and(|&implied| implied != Some(inode.mode & 0o777)) {
                found.push(Finding::AclMode(ino));
            }
        }
        let known = self.users.keys().chain(users.keys()).chain(&self.contents);
        for &id in known.collect::<std::collections::BTreeSet<_>>() {
            let stored = self.users.get(&id).map_or(0, |record| record.users);
            let counted = users.get(&id).copied().unwrap_or(0);
            if stored != counted || counted == 0 {
                found.push(Finding::Users(id, stored, counted));
            }
            if !self.contents.contains(&id) {
                found.push(Finding::Attributes(id));
            }
        }
        let has_extents = |ino: &u64| {
            let kind = self.inodes.get(ino).and_then(|inode| FileKind::from_mode(inode.mode));
            kind == Some(FileKind::Regular)
        };
        let orphans = self.orphans.iter().filter(|ino| !self.inodes.contains_key(ino));
        let strays = orphans.chain(self.extents.keys().filter(|ino| !has_extents(ino)));
        found.extend(strays.map(|&ino| Finding::Stray(ino)));
        self.report.xattr_blocks = self.users.len() as u64;
        self.report.xattr_users = users.values().map(|&users| u64::from(users)).sum();
        self.report.findings.extend(found);
    }

    fn compare_blocks(&mut self) {
        self.used.sort_unstable();
        let mut end = 0;
        for &(first, behind, ino) in &self.used {
            if first < end {
                self.report.findings.push(Finding::Overlap(ino, first));
            }
            end = end.max(behind);
            self.report.blocks = self.report.blocks.saturating_add(behind - first);
        }
    }

    fn collect_unreachable(&self) -> Vec<u64> {
        let (mut reached, mut open) = (HashSet::from([ROOT_INO]), vec![ROOT_INO]);
        while let Some(dir) = open.pop() {
            for &(ino, _) in self.entries.get(&dir).into_iter().flatten() {
                if reached.insert(ino) {
                    open.push(ino);
                }
            }
        }
        let linked = self.inodes.iter().filter(|(_, inode)| inode.nlink > 0);
        linked.map(|(&ino, _)| ino).filter(|ino| !reached.contains(ino)).collect()
    }
}

fn is_directory(inode: &InodeRecord) -> bool {
    FileKind::from_mode(inode.mode) == Some(FileKind::Directory)
}

#[cfg(test)]
mod fixture;
#[cfg(test)]
mod mounted;
#[cfg(test)]
mod tests;
