//! Changes of names: make, link, remove, rename.

use corewalk::acl::Acl;
use corewalk::attr::mode::{S_IFDIR, S_IFLNK, S_IFMT, S_IFREG};
use corewalk::{Attr, Errno, Make, Name, RenameMode, Timespec};

use super::ClusterFs;
use crate::directory::{Change, Entry};
use crate::node::to_nanos;

const MAKE: &str = "SELECT * FROM cw_make($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, \
                    $14)";
const LINK: &str = "SELECT * FROM cw_link($1, $2, $3, $4, $5, $6, $7)";
const REMOVE: &str = "SELECT * FROM cw_remove($1, $2, $3, $4, $5, $6, $7)";
const RENAME: &str = "SELECT * FROM cw_rename($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)";
/// How often a rename is repeated if another mount changes the inode of one of the names meanwhile.
const RENAME_TRIES: u32 = 100;
/// The size of a directory in bytes, which counts for the limits. `cw_make` sets the same size.
const DIRECTORY_BYTES: u64 = 4096;

impl ClusterFs {
    pub(crate) fn make_inode(
        &self,
        dir: u64,
        name: Option<Name<'_>>,
        what: &Make<'_>,
    ) -> Result<Attr, Errno> {
        let mode = if what.mode & S_IFMT == 0 { what.mode | S_IFREG } else { what.mode };
        let size = match mode & S_IFMT {
            S_IFLNK => what.target.len() as u64,
            S_IFDIR => DIRECTORY_BYTES,
            _ => 0,
        };
        let room = &self.meta.session.room;
        room.with(1, size, || self.make_of_mode(dir, name, what, mode))
    }

    fn make_of_mode(
        &self,
        dir: u64,
        name: Option<Name<'_>>,
        what: &Make<'_>,
        mode: u32,
    ) -> Result<Attr, Errno> {
        let ino = self.meta.session.new_ino()?;
        let target = (mode & S_IFMT == S_IFLNK).then_some(what.target);
        let [access, default] =
            [&what.access_acl, &what.default_acl].map(|acl| acl.as_ref().map(Acl::to_xattr));
        let (uid, gid, rdev) = (i64::from(what.uid), i64::from(what.gid), what.rdev as i64);
        let (mode, bytes, now) = (mode as i32, name.map(|name| name.as_bytes()), now());
        let change = Change {
            dirs: vec![dir],
            names: bytes.iter().map(|name| (dir, *name)).collect(),
            inos: if name.is_some() { vec![dir] } else { Vec::new() },
        };
        let changed = self.meta.change(
            &change,
            MAKE,
            &[
                &(dir as i64),
                &bytes,
                &ino,
                &mode,
                &uid,
                &gid,
                &rdev,
                &target,
                &access,
                &default,
                &now,
            ],
            |cookie| {
                let entry = Entry { ino: ino as u64, cookie };
                bytes.iter().map(|name| (dir, *name, Some(entry))).collect()
            },
        )?;
        let made = changed.inode(ino as u64)?;
        if made.attr.is_dir() {
            self.meta.cache.add_new_directory(changed.begun, made);
        }
        if made.attr.nlink == 0 {
            self.nameless.lock().used.insert(made.attr.ino);
        }
        Ok(self.attr_after(made, self.meta.cache.is_leased(dir)))
    }

    pub(crate) fn add_name(&self, ino: u64, dir: u64, name: Name<'_>) -> Result<Attr, Errno> {
        let bytes = name.as_bytes();
        let change = Change {
            dirs: [vec![dir], self.meta.cover(ino)].concat(),
            names: vec![(dir, bytes)],
            inos: vec![dir, ino],
        };
        // A file without a name is not flushed at its close, so it is flushed before it gets a
        // name.
        if self.is_nameless(ino) {
            self.data.flush(ino, None)?;
        }
        let changed = self.meta.change(
            &change,
            LINK,
            &[&(ino as i64), &(dir as i64), &bytes, &now()],
            |cookie| vec![(dir, bytes, Some(Entry { ino, cookie }))],
        )?;
        self.nameless.lock().used.remove(&ino);
        Ok(self.attr_after(changed.inode(ino)?, self.meta.cache.is_leased(dir)))
    }

    pub(crate) fn remove_name(&self, dir: u64, name: Name<'_>, ino: u64) -> Result<(), Errno> {
        let bytes = name.as_bytes();
        let change = Change {
            dirs: [vec![dir], self.meta.cover(ino)].concat(),
            names: vec![(dir, bytes)],
            inos: vec![dir, ino],
        };
        let changed = self.meta.change(
            &change,
            REMOVE,
            &[&(dir as i64), &bytes, &(ino as i64), &now()],
            |_| vec![(dir, bytes, None)],
        )?;
        if changed.find(ino).is_none_or(|inode| inode.attr.nlink == 0) {
            self.nameless.lock().used.insert(ino);
        }
        Ok(())
    }

    pub(crate) fn rename_name(
        &self,
        from: (u64, Name<'_>),
        to: (u64, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        for _ in 0..RENAME_TRIES {
            match self.try_rename(from, to, mode) {
                Err(Errno::STALE) => {}
                done => return done,
            }
        }
        Err(Errno::STALE)
    }

    /// Renames a name once. Fails with `ESTALE` if another mount has meanwhile changed the inode of
    /// one of the names.
    fn try_rename(
        &self,
        from: (u64, Name<'_>),
        to: (u64, Name<'_>),
        mode: RenameMode,
    ) -> Result<(), Errno> {
        let (name1, name2) = (from.1.as_bytes(), to.1.as_bytes());
        let one = self.meta.lookup(from.0, name1)?.0.inode;
        let two = match self.meta.lookup(to.0, name2) {
            Ok((known, _)) => Some(known.inode),
            Err(Errno::NOENT) => None,
            Err(errno) => return Err(errno),
        };
        let number = match mode {
            RenameMode::Replace => 0,
            RenameMode::NoReplace => 1,
            RenameMode::Exchange => 2,
        };
        let [ino1, ino2] = [Some(one), two].map(|it| it.map_or(0, |inode| inode.attr.ino as i64));
        let inodes = [Some(one), two];
        let inodes = || inodes.iter().flatten();
        let change = Change {
            dirs: [from.0, to.0].into_iter().chain(inodes().map(|inode| inode.cover())).collect(),
            names: vec![(from.0, name1), (to.0, name2)],
            inos: [from.0, to.0].into_iter().chain(inodes().map(|inode| inode.attr.ino)).collect(),
        };
        let is_same = two.is_some_and(|two| two.attr.ino == one.attr.ino);
        let changed = self.meta.change(
            &change,
            RENAME,
            &[&(from.0 as i64), &name1, &(to.0 as i64), &name2, &number, &now(), &ino1, &ino2],
            |cookie| match (mode, two) {
                // Return no new states, so that the cache forgets the names. The next lookup of a
                // name then asks the database.
                _ if is_same => Vec::new(),
                (RenameMode::Exchange, _) => Vec::new(),
                _ => vec![
                    (from.0, name1, None),
                    (to.0, name2, Some(Entry { ino: one.attr.ino, cookie })),
                ],
            },
        )?;
        if let Some(two) = two.filter(|_| mode == RenameMode::Replace && !is_same)
            && changed.find(two.attr.ino).is_none_or(|inode| inode.attr.nlink == 0)
        {
            self.nameless.lock().used.insert(two.attr.ino);
        }
        Ok(())
    }
}

pub(super) fn now() -> i64 {
    to_nanos(Timespec::now())
}
