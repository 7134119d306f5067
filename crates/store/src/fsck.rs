//! Checks a store that is not mounted.
//!
//! What must hold between records is found out anew from all of them, and compared. The database checks
//! its own pages first; after a crash it goes back to the last commit while it is opened, which is no
//! finding, and then what the log has is put into it, as a mount does. Where pages of that commit are damaged it goes
//! back to the one before, if that is whole. A log that a mount refuses is a finding; then the
//! database is checked as it is without.
//!
//! All of this happens in memory (`overlay`): a check changes no byte of the store. The store
//! has no repair, since a crash leaves nothing to repair.
//!
//! # What is checked
//! - F.1: each directory but the root has one name, and everything is reached from the root.
//! - F.2: a name leads to an inode of its kind, and lies where its hash says.
//! - F.3: links and entries are as many as inodes say; those without links are orphans, and no others.
//! - F.4: extents are within the device, none overlaps another one, and blocks are as many as inodes
//!   say; no written block is behind the size.
//! - F.5: a block of attributes has the hash (or none, with one user), the length and the users that are stored, and is a set;
//!   an access ACL says more than the mode of its inodes, and agrees with it; a default ACL is one.
//! - F.6: a symbolic link has a target as long as its size; no other inode has one.
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
use crate::place::{OpenError, Place};
use crate::record::{Entries, Extent, InodeRecord, Key, Kind, UNHASHED, UsersRecord};
use crate::store::ROOT_INO;
use crate::xattr;

/// Bytes of memory for the pages of the database.
const CACHE_BYTES: usize = 64 << 20;

/// Something that does not hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Finding {
    /// Pages of the database are damaged.
    Database,
    /// The log has lost entries that were confirmed, from this byte on. The store is not mounted, and was
    /// checked as the last commit of the database left it.
    Log(u64),
    /// An entry of the log is whole and not understood, at this byte. As above.
    LogEntry(u64),
    /// The log of a store that was not closed is shorter than it was, or missing: its bytes, and those that it had. As
    /// above.
    LogShort(u64, u64),
    /// The log cannot be read at this byte. As above.
    LogRead(u64),
    /// The database is older than its log, so that commits which were confirmed are lost: its generation, and that of
    /// an entry of the log. As above.
    DatabaseBehind(u64, u64),
    /// There is no root directory.
    NoRoot,
    /// A record that does not parse, or of a number that nothing has; its kind, and the numbers of its key.
    Unreadable(u8, u64, u64),
    /// A name leads to an inode that is not there: directory, inode.
    NoInode(u64, u64),
    /// A name says another kind of file than its inode: directory, inode.
    OtherKind(u64, u64),
    /// A name is not where its hash says, or twice in its directory: directory, hash.
    Misplaced(u64, u64),
    /// Entries, names or extents are kept for what has none: inode.
    Stray(u64),
    /// A directory with several names, or the root with one: inode.
    SeveralNames(u64),
    /// An inode that is not reached from the root: inode.
    Unreachable(u64),
    /// Links: inode, stored, counted.
    Links(u64, u32, u32),
    /// Entries of a directory: inode, stored, counted.
    EntryCount(u64, u64, u64),
    /// An inode without links is no orphan, or one with links is: inode.
    Orphan(u64),
    /// Extents of a file overlap, by logical blocks: inode, block.
    LogicalOverlap(u64, u64),
    /// Two extents have the same block of the device: inode, block of the device.
    Overlap(u64, u64),
    /// A written extent ends behind the device: inode, block of the device.
    BehindDevice(u64, u64),
    /// A written block is behind the size of its file: inode, block.
    BehindSize(u64, u64),
    /// Blocks of a file: inode, stored, counted.
    BlockCount(u64, u64, u64),
    /// Users of a block of attributes: block, stored, counted.
    Users(u64, u32, u32),
    /// The target of a symbolic link is not as long as its size, or another inode has one: inode.
    Target(u64),
    /// A block of attributes is not what its hash and length say, or no set: block.
    Attributes(u64),
    /// The flag that says whether there is an access ACL is wrong: inode.
    AclFlag(u64),
    /// An access ACL does not agree with the mode, or says no more: inode.
    AclMode(u64),
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Finding::*;
        match *self {
            Database => f.write_str("the database has damaged pages"),
            Log(at) => write!(
                f,
                "the log is damaged at byte {at}, and what was confirmed after that is lost; without the \
                 log, the rest is as it was at the last commit of the database"
            ),
            LogEntry(at) => write!(f, "the log has an entry at byte {at} that is not understood"),
            LogShort(len, expected) => write!(
                f,
                "the log has {len} bytes, and had {expected}: what was confirmed since the last commit of the \
                 database may be lost"
            ),
            LogRead(at) => write!(f, "the log cannot be read at byte {at}"),
            DatabaseBehind(database, log) => write!(
                f,
                "the database is at generation {database}, and its log at {log}: commits that were confirmed are \
                 lost"
            ),
            NoRoot => f.write_str("there is no root directory"),
            Unreadable(kind, a, b) => {
                write!(f, "record {kind}/{a}/{b} is not readable, or of a number that nothing has")
            }
            NoInode(dir, ino) => write!(f, "a name in directory {dir} leads to no inode: {ino}"),
            OtherKind(dir, ino) => {
                write!(f, "a name in directory {dir} has another kind than inode {ino}")
            }
            Misplaced(dir, hash) => write!(f, "a name in directory {dir} is misplaced: {hash:#x}"),
            Stray(ino) => {
                write!(f, "inode {ino} is not there or has another kind, but has records")
            }
            SeveralNames(ino) => write!(f, "directory {ino} has a name too many"),
            Unreachable(ino) => write!(f, "inode {ino} is not reached from the root"),
            Links(ino, says, is) => write!(f, "inode {ino} has {is} links, not {says}"),
            EntryCount(ino, says, is) => write!(f, "directory {ino} has {is} entries, not {says}"),
            Orphan(ino) => {
                write!(f, "inode {ino} is wrongly said to be an orphan, or not to be one")
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
                    "the target of inode {ino} is not as long as its size, or there should be none"
                )
            }
            Attributes(id) => write!(f, "attribute block {id} is damaged"),
            AclFlag(ino) => write!(f, "inode {ino} is wrong about its access ACL"),
            AclMode(ino) => write!(f, "the access ACL of inode {ino} is not as its mode says"),
        }
    }
}

/// What a check found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Report {
    /// What does not hold.
    pub findings: Vec<Finding>,
    /// Inodes.
    pub inodes: u64,
    /// Inodes without links, which are freed when the store is mounted.
    pub orphans: u64,
    /// Blocks of files.
    pub blocks: u64,
    /// Blocks of extended attributes.
    pub xattr_blocks: u64,
    /// Inodes that use one.
    pub xattr_users: u64,
}

/// Checks the store in the directory `path`, of which no byte is changed.
///
/// # Errors
/// [`OpenError::Busy`] if it is mounted; [`OpenError::Missing`] if there is none; those of [`crate::Store::open`], but for damage,
/// which is a finding.
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
    let place = Place::open_to_read(path)?;
    fsck_devices(&place.devices_to_read()?)
}

/// Checks the store on `devices`, which are not changed.
///
/// # Errors
/// As [`fsck`].
pub fn fsck_devices(devices: &Devices) -> Result<Report, OpenError> {
    devices.read_anew();
    match check_devices(&devices.overlaid()?) {
        // What else does not hold follows from that.
        Err(OpenError::Damaged) => {
            Ok(Report { findings: vec![Finding::Database], ..Report::default() })
        }
        checked => checked,
    }
}

/// Checks what is on `devices`, as a mount leaves it that puts the log into the database.
fn check_devices(devices: &Devices) -> Result<Report, OpenError> {
    let database = open_database(devices, CACHE_BYTES)?;
    let snapshot = database.snapshot()?;
    let superblock = read_super(&snapshot)?;
    // Blocks that were lost are not there again because the log has later ones.
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

/// Returns the block of the device behind the last one that has bytes.
fn find_end(snapshot: &Snapshot) -> Result<u64, Errno> {
    let mut end = 0;
    each(snapshot, Kind::Extent, &mut |_, value| {
        // One that is not readable is found later.
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
    /// What names lead to, by directory.
    entries: HashMap<u64, Vec<(u64, FileKind)>>,
    /// Logical end and count of blocks of files, so far.
    extents: HashMap<u64, (u64, u64)>,
    /// All blocks of the device that are used: first, behind the last, inode.
    used: Vec<(u64, u64, u64)>,
    users: BTreeMap<u64, UsersRecord>,
    contents: HashSet<u64>,
    /// Blocks with an access ACL: the mode that it implies, None if it says no more than that.
    with_acl: HashMap<u64, Option<u32>>,
}

impl Check {
    fn find(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    /// Reads all records, and checks what can be checked of each alone.
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
        // Extents that overlap may have more than can be counted.
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
        // What is made in its directory needs it.
        xattr::acl(value, AclKind::Default).map(drop)
    }

    /// Compares what records say of each other.
    fn compare(&mut self) {
        let links = self.compare_names();
        self.compare_inodes(&links);
        self.compare_blocks();
        let unreachable = self.collect_unreachable();
        self.report.findings.extend(unreachable.into_iter().map(Finding::Unreachable));
        self.report.inodes = self.inodes.len() as u64;
        self.report.orphans = self.orphans.len() as u64;
    }

    /// Checks names against inodes, and returns how many names and subdirectories inodes have.
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

    /// Returns the inodes with links that are not reached from the root.
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
