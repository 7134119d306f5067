//! Inodes of the asynchronous server: their cached attributes, and the changes under way.
//!
//! # Which answers may be cached
//! While the server waits for an answer of the back end, a change of the inode may end. The answer
//! may then be older than the change, and the server must not cache it (trap T25 in `traps.md`). So
//! a clock counts the ends of changes, and a request reads the clock before it calls the back end.
//! The answer is current if no change of the inode is under way, and none has ended since the
//! request read the clock.
//!
//! # Invariants
//! - H.1: each change of an inode through this server begins with [`AsyncNode::change`] and ends
//!   when the [`Change`] is dropped.
//! - H.2: the cached attributes are those that the back end had when the last change of the inode
//!   had ended.
//! - H.3: when an inode is dropped, `Shared::evicted` is raised to the time at which the inode's
//!   last change ended. A new inode of the same file starts with that value. So the new inode
//!   cannot cache attributes from before the change.
//! - H.4: an answer from before a report about a directory is not cached after the report, for any
//!   inode. A lookup may enter an inode below the directory after the report has collected those
//!   that the table has.
//!
//! # Locks
//! - The mutex `Inode::state` protects the attributes and times of an inode. For a directory, it is
//!   also held while a name enters the table.
//! - The holder of a `state` may lock a shard of `flights` or of `identities`, but no other
//!   `state`.
//! - The holder of a `state` calls no method of the back end except `forget`. The exception is
//!   needed because the table may evict an inode while a name enters it.

use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use corewalk::{Attr, Caller, Errno, FileKind, InodeTable, OwnedTableNode};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicBool, AtomicU64, Ordering, fence};

use super::AsyncFileSystem;
use super::identities::{Identities, Identity, Known};

pub(super) type Table = InodeTable<Inode>;

pub(super) struct Inode {
    shared: Arc<Shared>,
    identity: Identity,
    number: AtomicU64,
    is_indexed: AtomicBool,
    state: Mutex<State>,
}

/// The cached attributes of an inode, and the times of its changes. All fields are protected by
/// `Inode::state`.
#[derive(Default)]
struct State {
    /// The cached attributes. `None` if the server has no current ones (invariant H.2).
    attr: Option<Attr>,
    asked: u64,
    changing: u32,
    /// The value of the server's clock when the last change of the inode ended. The clock counts
    /// ended changes.
    changed: u64,
    names_changing: u32,
    names_changed: u64,
    names_invalidated: u64,
}

pub(super) struct Shared {
    fs: Arc<dyn Forget>,
    clock: AtomicU64,
    /// The largest value of `State::changed` that a dropped inode had. A new inode starts with it,
    /// because a dropped inode may have been of the same file (invariant H.3).
    evicted: AtomicU64,
    /// Value of the clock at the last report about a directory (invariant H.4).
    reported: AtomicU64,
    pub(super) identities: Identities,
}

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
    /// The data of the inode. This reference is dropped before `node`, so that the table has the
    /// last reference and drops the inode.
    inode: Arc<Inode>,
    node: OwnedTableNode<Inode>,
    handle: u64,
    caller: Caller,
}

pub(super) struct Change {
    node: AsyncNode,
    is_of_names: bool,
    began: u64,
    attr: Option<Attr>,
}

impl Shared {
    pub(super) fn new<F: AsyncFileSystem>(fs: Arc<F>) -> Arc<Shared> {
        let [clock, evicted, reported] = [0; 3].map(AtomicU64::new);
        Arc::new(Shared { fs, clock, evicted, reported, identities: Identities::new() })
    }

    /// Returns the value of the clock, which counts ended changes. A request reads the clock before
    /// it calls the back end.
    pub(super) fn now(&self) -> u64 {
        // ORDERING: SeqCst. `tick` adds one at the end of a change. A request that reads the new
        // value must call the back end after the change. Otherwise an old answer would be cached.
        // The clock and `evicted` are compared, so their accesses need one order.
        self.clock.load(Ordering::SeqCst)
    }

    /// Called before a report about a directory collects the inodes below it.
    pub(super) fn report(&self) {
        let now = self.tick();
        // ORDERING: Relaxed. The fence below orders the store before the look at the table.
        self.reported.fetch_max(now, Ordering::Relaxed);
        // ORDERING(report): SeqCst fence. The report stores its time and then looks at the table. A
        // lookup enters an inode, has a fence in `AsyncNode::store`, and then loads the time.
        // Without fences, the report could miss the inode and the lookup the report.
        fence(Ordering::SeqCst);
    }

    fn tick(&self) -> u64 {
        // ORDERING: SeqCst. `now` reads the clock before the back end is called. The addition must
        // come after the change, in one order with the accesses of `evicted`. Otherwise an old
        // answer would be cached.
        self.clock.fetch_add(1, Ordering::SeqCst) + 1
    }
}

impl Inode {
    pub(super) fn new(shared: &Arc<Shared>, attr: &Attr, known: &Known) -> Inode {
        let changed = match known {
            // ORDERING: SeqCst. The destructor of an inode raises `evicted` and then removes the
            // inode from the index. `Known::None` means that the index had no inode of the file, so
            // `evicted` was raised before. A smaller value would let old attributes be cached.
            Known::None => shared.evicted.load(Ordering::SeqCst),
            // An earlier inode of the file may not have raised `evicted` yet. So start with the
            // current time, which is not before its last change.
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

    /// Adds this inode to the index, if no thread has done so before. If the index has another
    /// inode of the same file, returns that inode. The table may be dropping it.
    pub(super) fn index(self: &Arc<Self>) -> Option<Arc<Inode>> {
        // ORDERING: Relaxed. `is_indexed` guards no data: the swap only selects the one thread that
        // adds the inode.
        if self.is_indexed.swap(true, Ordering::Relaxed) {
            return None;
        }
        let other = self.shared.identities.add(self);
        // Before `add`, another inode of the same file may have changed the file and left the index
        // (invariant H.3).
        let mut state = self.state.lock();
        // ORDERING: SeqCst. The destructor of another inode raises `evicted` and then removes the
        // inode from the index. The load comes after `add`, so it sees the value; otherwise old
        // attributes would be cached.
        state.changed = state.changed.max(self.shared.evicted.load(Ordering::SeqCst));
        drop(state);
        other
    }

    pub(super) fn replace(self: &Arc<Self>, earlier: &Arc<Inode>) -> Option<Arc<Inode>> {
        self.shared.identities.replace(self, earlier)
    }

    pub(super) fn is(&self, attr: &Attr) -> bool {
        self.identity == (attr.ino, attr.generation)
    }

    pub(super) fn number(&self) -> u64 {
        // ORDERING: Relaxed. `AsyncNode::new` stores the number before another thread can find the
        // inode.
        self.number.load(Ordering::Relaxed)
    }

    /// Drops the cached attributes, because the attributes have changed without this server.
    pub(super) fn invalidate_attributes(&self) {
        let mut state = self.state.lock();
        (state.attr, state.changed) = (None, self.shared.tick());
    }
}

impl Drop for Inode {
    fn drop(&mut self) {
        let changed = self.state.get_mut().changed;
        // ORDERING: SeqCst. `new` and `index` load `evicted` after the inode has left the index, so
        // this thread must raise `evicted` before. Otherwise a new inode of the file would cache
        // old attributes.
        self.shared.evicted.fetch_max(changed, Ordering::SeqCst);
        let (ino, generation) = self.identity;
        let forget = || {
            let forget = AssertUnwindSafe(|| self.shared.fs.forget(ino, generation));
            // A panic must not end the thread, which may be evicting many inodes. The panic hook
            // has printed its message.
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
    pub(super) fn new(node: OwnedTableNode<Inode>) -> AsyncNode {
        let table_node = node.get();
        let (inode, number) = (table_node.data(), table_node.ino());
        drop(table_node);
        // ORDERING: Relaxed. All threads store the same number, which `number` loads.
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
    ///
    /// # Examples
    /// ```
    /// use corewalk::Caller;
    /// use corewalk_fuse::AsyncNode;
    ///
    /// /// A line for the log of a back end.
    /// fn line(call: &str, node: &AsyncNode) -> String {
    ///     let ino = node.ino();
    ///     match node.caller() {
    ///         Caller { pid: 0, .. } => format!("{call} of inode {ino}"),
    ///         Caller { uid, pid, .. } => format!("{call} of inode {ino} by {pid} of user {uid}"),
    ///     }
    /// }
    /// ```
    pub fn caller(&self) -> Caller {
        self.caller
    }

    /// Returns the inode number that the back end assigned, or the server's number if the back end
    /// has none.
    ///
    /// # Examples
    /// A back end that keeps each file in an object:
    /// ```
    /// use corewalk_fuse::AsyncNode;
    ///
    /// fn object(node: &AsyncNode) -> String {
    ///     format!("inodes/{}.{}", node.ino(), node.generation())
    /// }
    /// ```
    pub fn ino(&self) -> u64 {
        if self.inode.identity.0 == 0 { self.number() } else { self.inode.identity.0 }
    }

    /// Returns the generation that the back end assigned. [`AsyncNode::ino`] has an example.
    pub fn generation(&self) -> u64 {
        self.inode.identity.1
    }

    /// Returns the kind of file. [`AsyncNode::path`] has an example.
    pub fn kind(&self) -> FileKind {
        self.node.get().kind()
    }

    /// Returns the handle that `open` has returned for the open file of the call, or 0 if the call
    /// is made through no open file.
    ///
    /// # Examples
    /// A back end with state per open file (`has_open_state` returns true):
    /// ```
    /// # use std::{collections::BTreeMap, sync::Mutex};
    /// # use bytes::Bytes;
    /// # use corewalk::{Errno, Opened};
    /// # use corewalk_fuse::AsyncNode;
    /// /// The content that each open file shows, by handle.
    /// struct Open(Mutex<BTreeMap<u64, Bytes>>);
    ///
    /// # impl Open {
    /// async fn open(&self, node: &AsyncNode, _flags: u32) -> Result<Opened, Errno> {
    ///     let content = format!("the content of inode {} now", node.ino());
    ///     let mut files = self.0.lock().unwrap();
    ///     let handle = files.last_key_value().map_or(1, |(last, _)| last + 1);
    ///     files.insert(handle, content.into());
    ///     Ok(Opened::new(handle))
    /// }
    ///
    /// async fn read(&self, node: &AsyncNode, offset: u64, size: u32) -> Result<Bytes, Errno> {
    ///     let content = self.0.lock().unwrap().get(&node.handle()).cloned().ok_or(Errno::BADF)?;
    ///     let start = content.len().min(offset as usize);
    ///     Ok(content.slice(start..content.len().min(start + size as usize)))
    /// }
    ///
    /// async fn release(&self, node: &AsyncNode) {
    ///     self.0.lock().unwrap().remove(&node.handle());
    /// }
    /// # }
    /// ```
    pub fn handle(&self) -> u64 {
        self.handle
    }

    /// Returns a path of this inode from the root: `/` for the root, `/a/b` below it. All names on
    /// the path existed at one instant during this call. A rename may change the path later. So a
    /// back end that allows renames should find files by [`AsyncNode::ino`].
    ///
    /// # Errors
    /// `ENOENT` if the inode has no name any more.
    ///
    /// # Examples
    /// A back end over an object store, which finds files by their keys:
    /// ```
    /// use corewalk::{Errno, FileKind};
    /// use corewalk_fuse::AsyncNode;
    ///
    /// fn key(node: &AsyncNode) -> Result<String, Errno> {
    ///     let path = String::from_utf8(node.path()?).map_err(|_| Errno::ILSEQ)?;
    ///     let key = path.trim_start_matches('/').to_owned();
    ///     // The key of a directory ends with a slash. The key of the root is empty.
    ///     let is_prefix = node.kind() == FileKind::Directory && !key.is_empty();
    ///     Ok(if is_prefix { key + "/" } else { key })
    /// }
    /// ```
    pub fn path(&self) -> Result<Vec<u8>, Errno> {
        self.node.get().path()
    }

    pub(super) fn number(&self) -> u64 {
        self.inode.number()
    }

    pub(super) fn table_node(&self) -> &OwnedTableNode<Inode> {
        &self.node
    }

    pub(super) fn inode(&self) -> &Arc<Inode> {
        &self.inode
    }

    pub(super) fn cached(&self) -> Option<Attr> {
        self.inode.state.lock().attr
    }

    pub(super) fn store(&self, attr: &Attr, asked: u64) -> bool {
        let mut state = self.inode.state.lock();
        // ORDERING(report): SeqCst fence. The inode entered the table before. `Shared::report`
        // stores the time of the report, has a fence, and then looks at the table. Without fences,
        // an old answer could be cached.
        fence(Ordering::SeqCst);
        // ORDERING: Relaxed. The fence above orders the load after the entry of the inode.
        let reported = self.inode.shared.reported.load(Ordering::Relaxed);
        let changed = state.changed.max(reported);
        let is_current = state.changing == 0 && changed <= asked && state.asked <= asked;
        if is_current {
            (state.attr, state.asked) = (Some(*attr), asked);
        }
        is_current
    }

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

    /// Calls `enter` to enter a listed name into the table. Returns `None` without this call if a
    /// name of the directory may have changed since the page was requested.
    pub(super) fn enter_listed<T>(&self, asked: u64, enter: impl FnOnce() -> T) -> Option<T> {
        let state = self.inode.state.lock();
        let is_current = state.names_changing == 0
            && state.names_changed <= asked
            && state.names_invalidated <= asked;
        is_current.then(enter)
    }

    /// Calls `enter` to enter a name that a lookup has found. Until `enter` returns, no
    /// notification can invalidate a name of this directory.
    pub(super) fn enter_found<T>(&self, enter: impl FnOnce() -> T) -> T {
        let _state = self.inode.state.lock();
        enter()
    }

    pub(super) fn invalidate_name<T>(&self, invalidate: impl FnOnce() -> T) -> T {
        let mut state = self.inode.state.lock();
        state.names_invalidated = self.inode.shared.tick();
        invalidate()
    }
}

impl Change {
    pub(super) fn began(&self) -> u64 {
        self.began
    }

    pub(super) fn end_with(mut self, attr: Attr) {
        self.attr = Some(attr);
    }
}

impl Drop for Change {
    fn drop(&mut self) {
        let shared = &self.node.inode.shared;
        let mut state = self.node.inode.state.lock();
        state.changing -= 1;
        // If two changes of an inode overlap, it is unknown which of them has the newer attributes.
        // So cache the attributes of neither.
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
