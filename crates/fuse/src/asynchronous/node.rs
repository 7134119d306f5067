//! Inodes of the asynchronous server: their cached attributes, and the changes under way.
//!
//! # Which answers may be cached
//! A change may end after the back end was asked. The answer may then be older than the change, and
//! the server must not cache it (trap T25 in `traps.md`). So a clock counts the ends of changes,
//! and a request reads the clock before it calls the back end. The answer is current if no change
//! of the inode is under way, and none has ended since the clock was read.
//!
//! # Invariants
//! - H.1: each change of an inode through this server lies between [`AsyncNode::change`] and the
//!   drop of the [`Change`].
//! - H.2: the cached attributes are those that the back end had when the last change of the inode
//!   had ended.
//! - H.3: when an inode leaves the index of identities, `Shared::evicted` is at least the end of
//!   its last change. A new inode of the same file takes `evicted` as its own last change. So it
//!   cannot get attributes from before that change.
//!
//! # Locks
//! - The mutex `Inode::state` protects the attributes and times of an inode. For a directory, it is
//!   also held while a name enters the table.
//! - Its holder may lock a shard of `flights` or of `identities`, but no other `state`.
//! - Its holder calls no method of the back end but `forget`: the table may evict an inode while a
//!   name enters it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk::{Attr, Caller, Errno, FileKind, InodeTable, OwnedTableNode};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering};

use super::AsyncFileSystem;
use super::identities::{Identities, Identity, Known};

/// A table of the inodes of an asynchronous server.
pub(super) type Table = InodeTable<Inode>;

/// The user data of an inode in the table.
pub(super) struct Inode {
    shared: Arc<Shared>,
    identity: Identity,
    /// The number of the inode in the table. 0 until the inode has entered the table.
    number: AtomicU64,
    /// True if the inode is in the index of identities.
    is_indexed: AtomicBool,
    state: Mutex<State>,
}

/// The attributes of an inode, and the times of its changes. All fields are protected by
/// `Inode::state`.
#[derive(Default)]
struct State {
    /// The attributes, if they are current (H.2).
    attr: Option<Attr>,
    /// The time at which the back end was asked for `attr`.
    asked: u64,
    /// The number of changes of the inode under way.
    changing: u32,
    /// The time of the clock at which the last change of the inode ended.
    changed: u64,
    /// For a directory: the number of changes of its names under way.
    names_changing: u32,
    /// For a directory: the time at which the last change of its names ended.
    names_changed: u64,
    /// For a directory: the time at which the last notification invalidated one of its names.
    names_invalidated: u64,
}

/// The state that all inodes of a server share.
pub(super) struct Shared {
    fs: Arc<dyn Forget>,
    /// Counts the ends of changes.
    clock: AtomicU64,
    /// The time at which the last change of a dropped inode ended. New inodes of the same file
    /// start with this time (invariant H.3).
    evicted: AtomicU64,
    pub(super) identities: Identities,
}

/// The method of a back end that the destructor of an inode calls.
trait Forget: Send + Sync {
    fn forget(&self, ino: u64, generation: u64);
}

impl<F: AsyncFileSystem> Forget for F {
    fn forget(&self, ino: u64, generation: u64) {
        AsyncFileSystem::forget(self, ino, generation);
    }
}

/// The file of an asynchronous call: its inode, and the open file through which the call is made.
/// As long as a clone of the node exists, the back end gets no `forget` for the inode.
///
/// # Examples
/// ```
/// use corewalk_fuse::AsyncNode;
///
/// /// Finishes a write after its reply.
/// fn upload_later(runtime: &tokio::runtime::Handle, node: &AsyncNode) {
///     let node = node.clone();
///     runtime.spawn(async move { println!("upload inode {}", node.ino()) });
/// }
/// ```
#[derive(Clone)]
pub struct AsyncNode {
    /// Is dropped before `node`. So the table drops the inode last.
    inode: Arc<Inode>,
    node: OwnedTableNode<Inode>,
    handle: u64,
    caller: Caller,
}

/// A change of an inode under way (H.1).
pub(super) struct Change {
    node: AsyncNode,
    /// True for a change of names of the directory.
    is_of_names: bool,
    /// The time at which the change began.
    began: u64,
    /// The attributes after the change, if they are known.
    attr: Option<Attr>,
}

impl Shared {
    pub(super) fn new<F: AsyncFileSystem>(fs: Arc<F>) -> Arc<Shared> {
        let (clock, evicted) = (AtomicU64::new(0), AtomicU64::new(0));
        Arc::new(Shared { fs, clock, evicted, identities: Identities::new() })
    }

    /// Returns the time of the clock. A request reads the clock before it calls the back end.
    pub(super) fn now(&self) -> u64 {
        // ORDERING: SeqCst. If the time that a request reads is at or after the end of a change,
        // the request calls the back end after the end of the change.
        self.clock.load(Ordering::SeqCst)
    }

    fn tick(&self) -> u64 {
        // ORDERING: SeqCst. See `now`.
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Inode {
    /// Returns an inode for a file that the back end has returned. `known` tells why no earlier
    /// inode of the same file can be used.
    pub(super) fn new(shared: &Arc<Shared>, attr: &Attr, known: &Known) -> Inode {
        let changed = match known {
            // ORDERING: SeqCst. As for the clock.
            Known::None => shared.evicted.load(Ordering::SeqCst),
            // The earlier inode has not yet raised `evicted`.
            Known::Dying | Known::Inode(_) => shared.now(),
        };
        Inode {
            shared: Arc::clone(shared),
            identity: (attr.ino, attr.generation),
            number: AtomicU64::new(0),
            is_indexed: AtomicBool::new(false),
            state: Mutex::new(State { changed, ..State::default() }),
        }
    }

    pub(super) fn identity(&self) -> Identity {
        self.identity
    }

    /// Adds the inode to the index of identities, when it has entered the table. If another inode
    /// of the same file is in the index, returns that one, which the table may be dropping.
    pub(super) fn index(self: &Arc<Self>) -> Option<Arc<Inode>> {
        // ORDERING: Relaxed. The flag guards no other data: it only selects the one thread that
        // adds the inode.
        if self.is_indexed.swap(true, Ordering::Relaxed) {
            return None;
        }
        let other = self.shared.identities.add(self);
        // An inode of the same file may have changed the file and left the index before `add`.
        // `evicted` is at least the end of that change (invariant H.3).
        let mut state = self.state.lock();
        // ORDERING: SeqCst. As for the clock.
        state.changed = state.changed.max(self.shared.evicted.load(Ordering::SeqCst));
        drop(state);
        other
    }

    /// Makes new names of the file get this inode instead of `earlier`, which the table has
    /// dropped. If they already get a third inode, returns the third inode.
    pub(super) fn replace(self: &Arc<Self>, earlier: &Arc<Inode>) -> Option<Arc<Inode>> {
        self.shared.identities.replace(self, earlier)
    }

    /// Returns true if the inode has the identity in `attr`, or if the back end has no identities.
    pub(super) fn is(&self, attr: &Attr) -> bool {
        self.identity == (attr.ino, attr.generation)
    }

    /// Returns the number of the inode in the table.
    pub(super) fn number(&self) -> u64 {
        // ORDERING: Relaxed. The number is set before any other thread can find the inode.
        self.number.load(Ordering::Relaxed)
    }

    /// Drops the cached attributes, because they have changed without this server.
    pub(super) fn invalidate_attributes(&self) {
        let mut state = self.state.lock();
        (state.attr, state.changed) = (None, self.shared.tick());
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let changed = self.state.get_mut().changed;
        // ORDERING: SeqCst. As for the clock.
        self.shared.evicted.fetch_max(changed, Ordering::SeqCst);
        let (ino, generation) = self.identity;
        let forget = || {
            let forget = AssertUnwindSafe(|| self.shared.fs.forget(ino, generation));
            // Ignore a panic, whose message the panic hook has printed. The panic must not end the
            // thread, which may be evicting many inodes.
            let _ = catch_unwind(forget);
        };
        if *self.is_indexed.get_mut() {
            match ino {
                0 => forget(),
                _ => self.shared.identities.remove(self.identity, forget),
            }
        }
    }
}

impl AsyncNode {
    /// Returns the node that the table has just found or entered.
    pub(super) fn new(node: OwnedTableNode<Inode>) -> AsyncNode {
        let table_node = node.get();
        let (inode, number) = (table_node.data(), table_node.ino());
        drop(table_node);
        // ORDERING: Relaxed. See `Inode::number`. All threads store the same number.
        inode.number.store(number, Ordering::Relaxed);
        let caller = Caller { uid: 0, gid: 0, pid: 0 };
        AsyncNode { inode, node, handle: 0, caller }
    }

    pub(super) fn with_handle(self, handle: u64) -> AsyncNode {
        AsyncNode { handle, ..self }
    }

    pub(super) fn with_caller(self, caller: Caller) -> AsyncNode {
        AsyncNode { caller, ..self }
    }

    /// Returns the process that has made the request. The pid is 0 for a release and for requests
    /// that the kernel makes itself, such as a read ahead.
    pub fn caller(&self) -> Caller {
        self.caller
    }

    /// Returns the inode number that the back end assigned, or the server's number if the back end
    /// has none.
    pub fn ino(&self) -> u64 {
        if self.inode.identity.0 == 0 { self.number() } else { self.inode.identity.0 }
    }

    /// Returns the generation that the back end assigned.
    pub fn generation(&self) -> u64 {
        self.inode.identity.1
    }

    /// Returns the kind of file.
    pub fn kind(&self) -> FileKind {
        self.node.get().kind()
    }

    /// Returns the handle that `open` has returned for the open file of the call, or 0 if the call
    /// is made through no open file.
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns a path of this inode from the root: `/` for the root, `/a/b` below it. All names on
    /// the path existed at one instant during this call. A rename may change the path later, so a
    /// back end whose files are renamed finds them by [`AsyncNode::ino`].
    ///
    /// # Errors
    /// `ENOENT` if the inode has no name any more.
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        self.node.get().path()
    }

    /// Returns the number of the inode in the table, which is its node number in the protocol.
    pub(super) fn number(&self) -> u64 {
        self.inode.number()
    }

    pub(super) fn table_node(&self) -> &OwnedTableNode<Inode> {
        &self.node
    }

    pub(super) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    /// Returns the cached attributes.
    pub(super) fn cached(&self) -> Option<Attr> {
        self.inode.state.lock().attr
    }

    /// Caches `attr`, which the server requested at the time `asked`. If the attributes are no
    /// longer current, caches nothing and returns false.
    pub(super) fn store(&self, attr: &Attr, asked: u64) -> bool {
        let mut state = self.inode.state.lock();
        let is_current = state.changing == 0 && state.changed <= asked && state.asked <= asked;
        if is_current {
            (state.attr, state.asked) = (Some(*attr), asked);
        }
        is_current
    }

    /// Begins a change of the inode.
    pub(super) fn change(&self) -> Change {
        self.begin(false)
    }

    pub(super) fn change_of_names(&self) -> Change {
        self.begin(true)
    }

    fn begin(&self, is_of_names: bool) -> Change {
        let mut state = self.inode.state.lock();
        state.changing += 1;
        state.attr = None;
        state.names_changing += u32::from(is_of_names);
        drop(state);
        let began = self.inode.shared.now();
        Change { node: self.clone(), is_of_names, began, attr: None }
    }

    /// Calls `enter`, which enters a listed name of this directory into the table. Does nothing if
    /// a name of the directory has changed since the time `asked`, or is being changed. No change
    /// of names can begin during the call.
    pub(super) fn enter_listed<T>(&self, asked: u64, enter: impl FnOnce() -> T) -> Option<T> {
        let state = self.inode.state.lock();
        let is_current = state.names_changing == 0
            && state.names_changed <= asked
            && state.names_invalidated <= asked;
        is_current.then(enter)
    }

    /// Calls `enter`, which enters the answer for a name into the table. During this call, no
    /// notification invalidates a name of this directory.
    pub(super) fn enter_found<T>(&self, enter: impl FnOnce() -> T) -> T {
        let _state = self.inode.state.lock();
        enter()
    }

    /// Calls `invalidate`, which drops a name of this directory from the table. Afterwards, no
    /// names are entered from pages of a listing that were requested earlier.
    pub(super) fn invalidate_name<T>(&self, invalidate: impl FnOnce() -> T) -> T {
        let mut state = self.inode.state.lock();
        state.names_invalidated = self.inode.shared.tick();
        invalidate()
    }
}

impl Change {
    /// Returns the time at which the change began.
    pub(super) fn began(&self) -> u64 {
        self.began
    }

    /// Ends the change. `attr` are the attributes after it.
    pub(super) fn end_with(mut self, attr: Attr) {
        self.attr = Some(attr);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let shared = &self.node.inode.shared;
        let mut state = self.node.inode.state.lock();
        state.changing -= 1;
        // If two changes of the inode overlap, it is unknown which of them has the newer
        // attributes, so cache neither.
        let is_alone = state.changing == 0 && state.changed <= self.began;
        state.attr = self.attr.filter(|_| is_alone);
        state.changed = shared.tick();
        state.asked = state.changed;
        if self.is_of_names {
            state.names_changing -= 1;
            state.names_changed = state.changed;
        }
    }
}

impl fmt::Debug for AsyncNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AsyncNode")
            .field("ino", &self.ino())
            .field("kind", &self.kind())
            .field("handle", &self.handle)
            .finish()
    }
}
