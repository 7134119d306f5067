//! Nodes: the files that a server passes to the methods of a back end.

use crate::Errno;
use crate::attr::FileKind;

/// The file that a call to the back end is about: its inode, and the open file through which the
/// call is made.
///
/// A back end that finds files by number uses [`Node::ino`]. A back end by path says so in
/// [`FileSystem::addressing`](super::FileSystem::addressing) and calls [`Node::path`], which builds
/// the path.
///
/// # Examples
/// ```
/// use corewalk::{Errno, FileKind, Node};
///
/// let node = Node::detached(7, FileKind::Regular);
/// assert_eq!((node.ino(), node.kind()), (7, FileKind::Regular));
/// assert_eq!(node.path(), Err(Errno::NOENT));
/// ```
#[derive(Clone, Copy)]
pub struct Node<'a> {
    ino: u64,
    generation: Option<u64>,
    kind: FileKind,
    handle: u64,
    source: Option<&'a dyn PathSource>,
}

/// The source of a [`Node`]'s path.
pub(crate) trait PathSource: Sync {
    /// Returns the path of the file from the root of its file system, such as `/a/b`. The path is
    /// valid until the back end's call returns.
    fn path(&self) -> Result<Vec<u8>, Errno>;

    fn other_paths(&self) -> Vec<Vec<u8>>;
}

impl<'a> Node<'a> {
    /// Returns a node without a path, with which a test can call a back end by number directly.
    pub fn detached(ino: u64, kind: FileKind) -> Node<'static> {
        Node { ino, generation: None, kind, handle: 0, source: None }
    }

    pub(crate) fn with_source(ino: u64, kind: FileKind, source: &'a dyn PathSource) -> Node<'a> {
        Node { ino, generation: None, kind, handle: 0, source: Some(source) }
    }

    pub(crate) fn with_generation(self, generation: u64) -> Node<'a> {
        Node { generation: Some(generation), ..self }
    }

    /// Returns the inode number that the back end assigned.
    pub fn ino(self) -> u64 {
        self.ino
    }

    /// Returns the generation of the inode number that the back end assigned. Returns `None` for a
    /// node from [`Node::detached`].
    ///
    /// # Examples
    /// A back end that gives the number of a removed file to a new file:
    /// ```
    /// # use std::collections::BTreeMap;
    /// # use corewalk::{Errno, FileKind, Node};
    /// /// The generation and the text of each file, by number.
    /// type Files = BTreeMap<u64, (u64, String)>;
    ///
    /// fn text<'f>(files: &'f Files, node: Node<'_>) -> Result<&'f str, Errno> {
    ///     let (generation, text) = files.get(&node.ino()).ok_or(Errno::STALE)?;
    ///     // The node of a test has no generation.
    ///     let is_same = node.generation().is_none_or(|it| it == *generation);
    ///     if is_same { Ok(text) } else { Err(Errno::STALE) }
    /// }
    /// # let files = BTreeMap::from([(7, (2, "text".to_owned()))]);
    /// # assert_eq!(text(&files, Node::detached(7, FileKind::Regular)), Ok("text"));
    /// # assert_eq!(text(&files, Node::detached(8, FileKind::Regular)), Err(Errno::STALE));
    /// ```
    pub fn generation(self) -> Option<u64> {
        self.generation
    }

    /// Returns the kind of file.
    pub fn kind(self) -> FileKind {
        self.kind
    }

    /// Returns a copy of this node with the handle `handle`, for a call through an open file.
    ///
    /// # Examples
    /// ```
    /// use corewalk::{FileKind, Node};
    ///
    /// let node = Node::detached(7, FileKind::Regular);
    /// // A test reads from an open file with this node. `open` has returned the handle 3.
    /// let open = node.with_handle(3);
    /// assert_eq!((open.ino(), open.handle(), node.handle()), (7, 3, 0));
    /// ```
    pub fn with_handle(self, handle: u64) -> Node<'a> {
        Node { handle, ..self }
    }

    /// Returns the handle of the open file or directory through which the call is made. It is 0 if
    /// the call is not made through an open file, or if the back end's `open` has returned 0.
    ///
    /// # Examples
    /// A back end that makes the content of a file when the file is opened (`has_open_state`
    /// returns true):
    /// ```
    /// # use std::{collections::BTreeMap, sync::Mutex};
    /// # use corewalk::{Errno, FileKind, Node, OpenFlags, Opened};
    /// /// The content that each open file shows, by handle.
    /// struct Open(Mutex<BTreeMap<u64, String>>);
    ///
    /// # impl Open {
    /// fn open(&self, node: Node<'_>, _flags: u32) -> Result<Opened, Errno> {
    ///     let mut files = self.0.lock().unwrap();
    ///     let handle = files.last_key_value().map_or(1, |(last, _)| last + 1);
    ///     files.insert(handle, format!("file {}", node.ino()));
    ///     Ok(Opened::new(handle).with_flags(OpenFlags::DIRECT_IO))
    /// }
    ///
    /// fn release(&self, node: Node<'_>) {
    ///     self.0.lock().unwrap().remove(&node.handle());
    /// }
    /// # }
    /// # let (open, node) = (Open(Mutex::default()), Node::detached(7, FileKind::Regular));
    /// # let opened = open.open(node, 0)?;
    /// # assert_eq!(open.0.lock().unwrap()[&opened.handle], "file 7");
    /// # open.release(node.with_handle(opened.handle));
    /// # assert!(open.0.lock().unwrap().is_empty());
    /// # Ok::<(), Errno>(())
    /// ```
    pub fn handle(self) -> u64 {
        self.handle
    }

    /// Returns a path of this inode from the root of its file system: `/` for the root, `/a/b`
    /// below it. The path stays valid until the back end's call returns (rule F.6 of
    /// [`FileSystem`](crate::FileSystem)). Until then, renames of this file and of the directories
    /// above it wait. If such a rename is already in progress, this method waits for it.
    ///
    /// # Errors
    /// `ENOENT` if the inode has no name any more, or if the node comes from [`Node::detached`].
    /// `EOPNOTSUPP` for a back end by number.
    pub fn path(self) -> Result<Vec<u8>, Errno> {
        self.source.ok_or(Errno::NOENT)?.path()
    }

    /// Returns up to 8 more paths of this inode, which use its other cached names. A back end tries
    /// them if another program has renamed files and [`Node::path`] leads to another file. Each
    /// path was valid at some instant, but may become invalid before it is used.
    ///
    /// # Examples
    /// A back end with [`Addressing::Path`](crate::Addressing::Path), whose files other programs
    /// rename:
    /// ```
    /// # use std::{ffi::OsStr, fs::File, os::unix::{ffi::OsStrExt as _, fs::MetadataExt as _}};
    /// # use corewalk::{Errno, FileKind, Node, errno_of};
    /// fn open(node: Node<'_>) -> Result<File, Errno> {
    ///     let mut paths = vec![node.path()?];
    ///     paths.extend(node.other_paths());
    ///     for path in paths {
    ///         let Ok(file) = File::open(OsStr::from_bytes(&path)) else { continue };
    ///         if file.metadata().map_err(errno_of)?.ino() == node.ino() {
    ///             return Ok(file);
    ///         }
    ///     }
    ///     Err(Errno::STALE)
    /// }
    /// # assert!(open(Node::detached(7, FileKind::Regular)).is_err());
    /// ```
    pub fn other_paths(self) -> Vec<Vec<u8>> {
        self.source.map_or_else(Vec::new, PathSource::other_paths)
    }
}

impl std::fmt::Debug for Node<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Node").field("ino", &self.ino).field("kind", &self.kind).finish()
    }
}
