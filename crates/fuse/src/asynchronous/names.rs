//! Requests about names: lookups, and requests that create, remove and rename files.
//!
//! Each request locks its names ([`Key::Name`]) before it calls the back end, and keeps them locked
//! until the table has the result. So no lookup of a name runs during a change of it, and the table
//! gets the changes of a name in their order.
//!
//! # Moves of directories
//! A rename that moves a directory to another parent also locks [`Key::Topology`]. With that lock,
//! it checks in the table that the new parent is not below the moved directory. The check of the
//! kernel is not enough. If the client of a rename is killed, the kernel allows the next rename
//! before the first one has ended. The two renames could then move two directories into each other.
//!
//! The check needs the parent of each directory that the kernel knows. So a rename first enters a
//! name that the table has lost. It also moves the directory in the table if its name was
//! invalidated meanwhile.

use std::time::Duration;

use corewalk::attr::mode;
use corewalk::{Attr, Errno, FileKind, Make, Name, Opened, Removal, RenameMode, TableNode};
use rustix::fs::{OFlags, RenameFlags};

use super::answer::Answer;
use super::attributes::checked;
use super::files::CREATION_FLAGS;
use super::flights::Flight;
use super::node::{Change, Inode};
use super::requests::{Cached, Miss};
use super::server::{AsyncServer, Entering, Fetched, Found, Key};
use super::under_way::Request;
use super::{AsyncFileSystem, AsyncNode};
use crate::mount::Pages;
use crate::server::ROOT_NODE;
use crate::wire::{Body, Message, Opcode};

/// A lookup repeats the call to the back end if a notification has invalidated the name meanwhile.
const TRIES: u32 = 4;

/// A change that is dropped before [`NameChange::end`] may or may not have reached the back end.
/// Then its destructor makes the table and the kernel drop the name.
struct NameChange<'s, F: AsyncFileSystem> {
    server: &'s AsyncServer<F>,
    request: &'s Request,
    dir: AsyncNode,
    name: Box<[u8]>,
    change: Option<Change>,
}

impl<'s, F: AsyncFileSystem> NameChange<'s, F> {
    fn begin(
        server: &'s AsyncServer<F>,
        request: &'s Request,
        dir: &AsyncNode,
        name: Name<'_>,
    ) -> Result<NameChange<'s, F>, Errno> {
        // The kernel may also have cached the entries of the directory.
        request.begin(dir, Pages::Drop)?;
        request.touch_name(dir, name);
        let change = Some(dir.change_of_names());
        let (dir, name) = (dir.clone(), name.as_bytes().into());
        Ok(NameChange { server, request, dir, name, change })
    }

    fn began(&self) -> u64 {
        self.change.as_ref().map_or(0, Change::began)
    }

    fn end(mut self) {
        self.change = None;
    }
}

impl<F: AsyncFileSystem> Drop for NameChange<'_, F> {
    fn drop(&mut self) {
        if self.change.is_some()
            && let Ok(name) = Name::new(&self.name)
        {
            self.request.set_stale();
            let _ = self.server.table.invalidated(&self.dir.table_node().get(), name);
        }
    }
}

/// The locks of a rename, and the files that it moves.
struct Renaming<'s> {
    _topology: Option<Flight<'s, Key, Fetched>>,
    first: Flight<'s, Key, Fetched>,
    second: Option<Flight<'s, Key, Fetched>>,
    children: [Option<AsyncNode>; 2],
}

type NameOf<'n> = (&'n AsyncNode, Name<'n>);

impl<F: AsyncFileSystem> AsyncServer<F> {
    pub(super) fn forget(&self, message: &Message<'_>) {
        let mut args = message.args();
        match message.header.opcode {
            Opcode::BATCH_FORGET => {
                let count = args.u32().unwrap_or(0);
                args.forgets(count).for_each(|(node, n)| self.forget_node(node, n));
            }
            _ => self.forget_node(message.header.node, args.u64().unwrap_or(0)),
        }
    }

    fn forget_node(&self, node: u64, n: u64) {
        if node != ROOT_NODE && !self.table.forget(node, n) {
            log::warn!("refused to forget node {node} {n} times: it is not held that often");
        }
    }

    pub(super) fn cached_lookup(&self, message: &Message<'_>, body: &mut Body<'_>) -> Cached {
        let name = message.args().name()?;
        let found = self.cached_child(message.header.node, name).ok_or(Miss::Later)?;
        self.entry_out(&found, body)?;
        found.node.table_node().get().into_lookups();
        Ok(())
    }

    pub(super) async fn lookup(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let dir = self.file(message)?;
        let name = Name::new(message.args().name()?)?;
        let negative_timeout = self.options.negative_timeout;
        match self.find(&dir, name).await? {
            Some(found) => self.entry(found),
            None if negative_timeout.is_zero() => Err(Errno::NOENT),
            None => Answer::with_body(|body| body.negative_entry(negative_timeout)),
        }
    }

    /// Returns `None` for a missing name.
    ///
    /// # Errors
    /// `ENOENT` for a missing name that the kernel must not keep; the errors of the back end.
    async fn find(&self, dir: &AsyncNode, name: Name<'_>) -> Result<Option<Found>, Errno> {
        let mut flight = self.lock(name_key(dir, name)).await;
        if let Some(found) = self.cached_child(dir.number(), name.as_bytes()) {
            return Ok(Some(found));
        }
        let enter = |fetched: &Fetched| self.entered(dir, name, *fetched);
        if let Some(entered) = dir.enter_found(|| flight.shared().map(enter)) {
            return Ok(entered?.map(found));
        }
        self.ask_and_enter(dir, name, &mut flight).await
    }

    /// Returns `None` for a missing name.
    ///
    /// # Errors
    /// The errors of [`AsyncServer::find`].
    async fn ask_and_enter(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        flight: &mut Flight<'_, Key, Fetched>,
    ) -> Result<Option<Found>, Errno> {
        for _ in 1..TRIES {
            let fetched = self.ask(dir, name, flight).await;
            let enter = || self.entered(dir, name, fetched);
            if let Some(entered) = dir.enter_found(|| flight.is_valid().then(enter)) {
                return Ok(entered?.map(found));
            }
        }
        // A notification has invalidated the name during each call. Answer the request, but let
        // neither the table nor the kernel keep the name.
        let (attr, asked) = self.ask(dir, name, flight).await?;
        let node = self.enter(dir, name, &attr, Entering::Found)?;
        let _ = self.table.invalidated(&dir.table_node().get(), name);
        Ok(Some(Found { is_entry_current: false, ..found((node, attr, asked)) }))
    }

    /// Returns `None` for a missing name.
    fn entered(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        fetched: Fetched,
    ) -> Result<Option<(AsyncNode, Attr, u64)>, Errno> {
        match fetched {
            Ok((attr, asked)) => {
                let node = self.enter(dir, name, &attr, Entering::Found)?;
                Ok(Some((node, attr, asked)))
            }
            Err(Errno::NOENT) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn ask(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        flight: &mut Flight<'_, Key, Fetched>,
    ) -> Result<(Attr, u64), Errno> {
        flight.ask();
        let asked = self.shared.now();
        let result = self.fs.lookup(dir, name).await;
        if result == Err(Errno::NOENT) {
            // Another machine has removed or renamed the file. A renamed directory must stay in the
            // table, since clients may still use files in it.
            let _ = self.table.invalidated(&dir.table_node().get(), name);
        }
        let fetched = result.and_then(|attr| Ok((checked(attr, attr.kind())?, asked)));
        flight.complete(fetched);
        fetched
    }

    pub(super) async fn symlink(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (name, target) = (args.name()?, args.name()?);
        let caller = message.header.caller;
        let what = Make::new(mode::S_IFLNK | 0o777, caller.uid, caller.gid).with_target(target);
        self.entry(self.make(message, request, Name::new(name)?, what).await?)
    }

    pub(super) async fn mknod(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (mode, rdev, _umask) = (args.u32()?, args.u32()?, args.u32()?);
        let caller = message.header.caller;
        let what = Make::new(mode, caller.uid, caller.gid).with_rdev(u64::from(rdev));
        self.entry(self.make(message, request, Name::new(args.name()?)?, what).await?)
    }

    pub(super) async fn mkdir(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (mode, _umask) = (args.u32()?, args.u32()?);
        let caller = message.header.caller;
        let what = Make::new(mode::S_IFDIR | mode & 0o7777, caller.uid, caller.gid);
        self.entry(self.make(message, request, Name::new(args.name()?)?, what).await?)
    }

    /// The kernel has applied the umask.
    async fn make(
        &self,
        message: &Message<'_>,
        request: &Request,
        name: Name<'_>,
        mut what: Make<'_>,
    ) -> Result<Found, Errno> {
        let dir = self.file(message)?;
        let kind = FileKind::from_mode(what.mode).unwrap_or(FileKind::Regular);
        let mut flight = self.lock(name_key(&dir, name)).await;
        (what.gid, what.mode) = self.inherited(&dir, what.gid, what.mode).await?;
        let change = NameChange::begin(self, request, &dir, name)?;
        flight.clear();
        flight.ask();
        let attr = match self.fs.make(&dir, name, &what).await {
            Ok(attr) => checked(attr, kind)?,
            // The kernel did not know that the file exists. Without a call of `end`, the destructor
            // of `change` makes the table and the kernel drop the cached name.
            Err(Errno::EXIST) => return Err(Errno::EXIST),
            Err(error) => {
                change.end();
                return Err(error);
            }
        };
        let node = self.enter(&dir, name, &attr, Entering::Made)?;
        let is_current = node.store(&attr, change.began());
        let is_entry_current = flight.is_valid();
        if is_entry_current {
            change.end();
        }
        Ok(Found { node, attr, is_current, is_entry_current })
    }

    pub(super) async fn create(
        &self,
        message: &Message<'_>,
        request: &Request,
        flags: u32,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (open, mode, _umask) = (args.u32()?, args.u32()?, args.u32()?);
        let name = Name::new(args.name()?)?;
        let caller = message.header.caller;
        let has_open_state = self.fs.has_open_state();
        let what = Make::new(mode::S_IFREG | mode & 0o7777, caller.uid, caller.gid)
            .with_open(has_open_state.then_some(open));
        let open = OFlags::from_bits_retain(open);
        let found = match self.make(message, request, name, what).await {
            // Another machine has made the file. After `ESTALE` the kernel looks the name up,
            // checks the permission to open the file, and truncates it if necessary.
            Err(Errno::EXIST) if !open.contains(OFlags::EXCL) => return Err(Errno::STALE),
            made => made?,
        };
        let opened = match has_open_state {
            true => self.fs.open(&found.node, (open & !CREATION_FLAGS).bits()).await,
            false => Ok(Opened::default()),
        };
        if opened.is_err() {
            request.set_stale();
        }
        let opened = opened?;
        let mut answer = Answer::with_body(|body| {
            self.entry_out(&found, body)?;
            body.open_out(opened.handle, opened.flags.bits() | flags)
        })?;
        answer.opened = has_open_state.then(|| found.node.clone().with_handle(opened.handle));
        Ok(answer.with_entry(found.node))
    }

    pub(super) async fn link(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let mut args = message.args();
        let (node, dir) = (self.other(message, args.u64()?)?, self.file(message)?);
        let name = Name::new(args.name()?)?;
        let mut flight = self.lock(name_key(&dir, name)).await;
        let change = NameChange::begin(self, request, &dir, name)?;
        request.begin(&node, Pages::Keep)?;
        flight.clear();
        flight.ask();
        let change_of_node = node.change();
        let attr = match self.fs.link(&node, &dir, name).await {
            Ok(attr) => checked(attr, node.kind())?,
            Err(Errno::EXIST) => return Err(Errno::EXIST),
            Err(error) => {
                change.end();
                return Err(error);
            }
        };
        let linked = self.table.linked(&node.table_node().get(), &dir.table_node().get(), name);
        // Without a call of `end`, the destructor of `change` drops the name. That is necessary if
        // the table could not enter it, or if another machine has changed it during the call.
        let is_entry_current = linked.is_ok() && flight.is_valid();
        if is_entry_current {
            change.end();
        }
        change_of_node.end_with(attr);
        let is_current = node.cached() == Some(attr);
        self.entry(Found { node, attr, is_current, is_entry_current })
    }

    pub(super) async fn remove(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let dir = self.file(message)?;
        let name = Name::new(message.args().name()?)?;
        let removal = match message.header.opcode {
            Opcode::RMDIR => Removal::Rmdir,
            _ => Removal::Unlink,
        };
        let mut flight = self.lock(name_key(&dir, name)).await;
        let child = self.victim(&dir, name, &mut flight).await?;
        let change = NameChange::begin(self, request, &dir, name)?;
        let _change_of_child = child.as_ref().map(|child| begin(request, child)).transpose()?;
        flight.clear();
        let removed = self.fs.remove(&dir, name, removal).await;
        if removed.is_ok() {
            self.enter_hidden(child.as_ref(), &dir.table_node().get(), name);
        }
        let is_told = match removed {
            Ok(()) | Err(Errno::NOENT) => self.table.removed(&dir.table_node().get(), name).is_ok(),
            Err(_) => true,
        };
        if is_told {
            change.end();
        }
        removed.map(|()| Answer::default())
    }

    pub(super) async fn rename(
        &self,
        message: &Message<'_>,
        request: &Request,
    ) -> Result<Answer, Errno> {
        let header = message.header;
        let mut args = message.args();
        let (from, to) = (self.file(message)?, self.other(message, args.u64()?)?);
        let flags = if header.opcode == Opcode::RENAME2 { args.u32()? } else { 0 };
        let mode = match RenameFlags::from_bits_retain(flags) {
            flags if flags.is_empty() => RenameMode::Replace,
            RenameFlags::NOREPLACE => RenameMode::NoReplace,
            RenameFlags::EXCHANGE => RenameMode::Exchange,
            _ => return Err(Errno::INVAL),
        };
        let (old, new) = (Name::new(args.name()?)?, Name::new(args.name()?)?);
        let Renaming { _topology, mut first, mut second, children } =
            self.lock_rename((&from, old), (&to, new), mode).await?;
        let changes = [
            NameChange::begin(self, request, &from, old)?,
            NameChange::begin(self, request, &to, new)?,
        ];
        let changes_of_children: Result<Vec<Change>, Errno> =
            children.iter().flatten().map(|child| begin(request, child)).collect();
        let _changes_of_children = changes_of_children?;
        let flights = [Some(&mut first), second.as_mut()].into_iter().flatten();
        flights.for_each(|flight| {
            flight.clear();
            flight.ask();
        });
        let renamed = self.fs.rename((&from, old), (&to, new), mode).await;
        let is_told = match renamed {
            Ok(()) => self.tell_renamed((&from, old), (&to, new), mode, children),
            Err(error) => error != Errno::NOENT && error != Errno::EXIST,
        };
        if is_told && first.is_valid() && second.is_none_or(|second| second.is_valid()) {
            changes.into_iter().for_each(NameChange::end);
        }
        renamed.map(|()| Answer::default())
    }

    /// Returns true if the table has the result. Otherwise the caller makes it drop both names.
    fn tell_renamed(
        &self,
        (from, old): NameOf<'_>,
        (to, new): NameOf<'_>,
        mode: RenameMode,
        [old_child, new_child]: [Option<AsyncNode>; 2],
    ) -> bool {
        let (from, to) = (from.table_node().get(), to.table_node().get());
        if mode == RenameMode::Replace {
            self.enter_hidden(new_child.as_ref(), &to, new);
        }
        let told = match mode {
            RenameMode::Exchange => self.table.exchanged((&from, old), (&to, new)),
            _ => self.table.renamed((&from, old), (&to, new)),
        };
        // If a name was invalidated meanwhile, the table has not moved its directory. It must have
        // the new place, or it would miss a loop that a later rename makes.
        if let Some(child) = old_child.filter(is_directory) {
            self.moved(&child, &to, new);
        }
        if let Some(child) = new_child.filter(is_directory)
            && mode == RenameMode::Exchange
        {
            self.moved(&child, &from, old);
        }
        told.is_ok()
    }

    /// Enters the name of a directory that was removed, in case the name was invalidated during the
    /// call. Then the table removes the directory's node. Otherwise a later lookup would find that
    /// node at the name, although the kernel knows it as removed.
    fn enter_hidden(
        &self,
        removed: Option<&AsyncNode>,
        dir: &TableNode<'_, Inode>,
        name: Name<'_>,
    ) {
        if let Some(removed) = removed.filter(|node| is_directory(node)) {
            self.moved(removed, dir, name);
        }
    }

    /// Locks the names of a rename, and [`Key::Topology`] if a directory moves to another parent.
    ///
    /// # Errors
    /// `EINVAL` if a directory would move into itself; the errors of [`AsyncServer::child`].
    async fn lock_rename(
        &self,
        from: NameOf<'_>,
        to: NameOf<'_>,
        mode: RenameMode,
    ) -> Result<Renaming<'_>, Errno> {
        let mut topology = None;
        loop {
            let keys = (name_key(from.0, from.1), name_key(to.0, to.1));
            let is_old_first = keys.0 <= keys.1;
            let names = self.flights.lock_both(keys.0, keys.1);
            let (mut first, mut second) = self.under_way.wait_for(names).await;
            if let Some(second) = &mut second
                && !is_old_first
            {
                std::mem::swap(&mut first, second);
            }
            let old = self.child(from.0, from.1, &mut first).await?;
            let flight = second.as_mut().unwrap_or(&mut first);
            let is_exchange = mode == RenameMode::Exchange;
            let new = match is_exchange {
                true => self.child(to.0, to.1, flight).await?,
                false => self.victim(to.0, to.1, flight).await?,
            };
            let (moved, other) = (old.as_ref(), new.as_ref().filter(|_| is_exchange));
            let moves_directory = from.0.number() != to.0.number()
                && (moved.is_some_and(is_directory) || other.is_some_and(is_directory));
            if moves_directory && topology.is_none() {
                // Only a holder of the names knows whether they are directories, but the key of the
                // moves precedes those of the names.
                drop((first, second));
                topology = Some(self.lock(Key::Topology).await);
                continue;
            }
            let makes_loop = || {
                moved.is_some_and(|moved| self.is_above(moved, to.0))
                    || other.is_some_and(|other| self.is_above(other, from.0))
            };
            if moves_directory && makes_loop() {
                return Err(Errno::INVAL);
            }
            return Ok(Renaming { _topology: topology, first, second, children: [old, new] });
        }
    }

    /// Returns true if `dir` is `child`, or is below it. The caller has locked [`Key::Topology`].
    fn is_above(&self, child: &AsyncNode, dir: &AsyncNode) -> bool {
        let top = child.number();
        let mut at = dir.number();
        while at != top {
            // If a directory above `dir` was removed, the back end answers the rename.
            let parent = self.table.get(at).and_then(|node| node.parent_ino());
            match parent {
                Ok(parent) if parent != at => at = parent,
                _ => return false,
            }
        }
        true
    }

    /// Returns the file of a name, which the caller has locked. Asks the back end if the table may
    /// have lost the name.
    async fn child(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        flight: &mut Flight<'_, Key, Fetched>,
    ) -> Result<Option<AsyncNode>, Errno> {
        let stats = self.table.stats();
        let has_lost_names = stats.reclaimed > 0 || stats.invalidations > 0;
        match self.known_child(dir, name) {
            None if has_lost_names => match self.ask_and_enter(dir, name, flight).await {
                Ok(found) => Ok(found.map(|found| found.node)),
                Err(Errno::NOENT) => Ok(None),
                Err(error) => Err(error),
            },
            child => Ok(child),
        }
    }

    /// Returns the file whose attributes change because it loses a name. If other programs may
    /// change files, none are cached, and the back end is not asked.
    async fn victim(
        &self,
        dir: &AsyncNode,
        name: Name<'_>,
        flight: &mut Flight<'_, Key, Fetched>,
    ) -> Result<Option<AsyncNode>, Errno> {
        match self.is_exclusive() {
            true => self.child(dir, name, flight).await,
            false => Ok(self.known_child(dir, name)),
        }
    }

    fn known_child(&self, dir: &AsyncNode, name: Name<'_>) -> Option<AsyncNode> {
        let node = self.table.child(dir.number(), name.as_bytes()).ok()?;
        Some(AsyncNode::new(self.table.owned(node)))
    }

    fn entry(&self, found: Found) -> Result<Answer, Errno> {
        Ok(Answer::with_body(|body| self.entry_out(&found, body))?.with_entry(found.node))
    }

    fn entry_out(&self, found: &Found, body: &mut Body<'_>) -> Result<(), Errno> {
        let mut timeouts = self.timeouts(&found.attr, found.is_current);
        if !found.is_entry_current {
            timeouts.entry = Duration::ZERO;
        }
        let attr = Self::shown(&found.node, &found.attr);
        body.entry_out((found.node.number(), 0), timeouts, &attr)
    }
}

fn found((node, attr, asked): (AsyncNode, Attr, u64)) -> Found {
    let is_current = node.store(&attr, asked);
    Found { node, attr, is_current, is_entry_current: true }
}

fn is_directory(node: &AsyncNode) -> bool {
    node.kind() == FileKind::Directory
}

fn begin(request: &Request, node: &AsyncNode) -> Result<Change, Errno> {
    request.begin(node, Pages::Keep)?;
    Ok(node.change())
}

fn name_key(dir: &AsyncNode, name: Name<'_>) -> Key {
    Key::Name(dir.number(), name.as_bytes().into())
}
