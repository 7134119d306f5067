//! The shape of libfuse's high-level node table: one mutex over everything.
//!
//! A node stands for an inode. Two hash tables find it: one by parent and name, one by number. A
//! node has its parent, its name, the kernel's lookup count, and a hold count: the number of
//! requests that forbid renames of the node.
//!
//! A lookup takes the mutex once. A path translation takes it twice: first it collects the names,
//! and adds 1 to the hold count of each ancestor; after the request it subtracts 1 again.
//!
//! A rename would have to wait until the hold count is 0. No benchmark of this variant renames, so
//! renames are not implemented.
//!
//! The code follows a description of libfuse's tables, not its code. libfuse does more work per
//! request: a FUSE LOOKUP takes the mutex three times and walks to the root twice. So libfuse takes
//! at least as much time as `libfuse-node`.
//!
//! # Locks
//! One mutex.
//!
//! Source: libfuse, `lib/fuse.c`: its two node tables, and where it takes its mutex.

use std::sync::Arc;

use ahash::RandomState;
use corewalk_base::Mutex;
use hashbrown::HashMap;

use super::rwlock_ahash::{Key, Probe};
use super::{Namespace, components, join};
use crate::corpus::{Corpus, ROOT};

/// The table.
pub(crate) struct LibfuseNode(Mutex<Nodes>);

/// All nodes in `slab`, and two hash tables over them. A node refers to its parent by its index in
/// `slab`.
struct Nodes {
    slab: Vec<Node>,
    by_name: HashMap<Key, u32, RandomState>,
    by_id: HashMap<u64, u32, RandomState>,
}

struct Node {
    id: u64,
    nlookup: u64,
    /// The index of the parent node in `slab`. The root is its own parent.
    parent: u32,
    /// The number of requests that forbid renames of this node, because they use it or a node below
    /// it.
    holds: u32,
    name: Arc<[u8]>,
}

impl LibfuseNode {
    /// Returns the node table with every entry of the corpus, each with a lookup count of 1.
    pub(crate) fn load(corpus: &Corpus) -> LibfuseNode {
        let (entries, mut slab) = (corpus.len(), Vec::with_capacity(corpus.len()));
        let mut by_name = HashMap::with_capacity_and_hasher(entries, RandomState::new());
        let mut by_id = HashMap::with_capacity_and_hasher(entries, RandomState::new());
        for (at, id) in (0_u32..).zip(corpus.inodes()) {
            let (parent, name): (u64, Arc<[u8]>) = (corpus.parent(id), corpus.name(id).into());
            let parent_at = if id == ROOT { at } else { (parent - 1) as u32 };
            by_id.insert(id, at);
            if id != ROOT {
                by_name.insert(Key { parent, name: Arc::clone(&name) }, at);
            }
            slab.push(Node { id, nlookup: 1, parent: parent_at, holds: 0, name });
        }
        LibfuseNode(Mutex::new(Nodes { slab, by_name, by_id }))
    }
}

impl Nodes {
    #[inline]
    fn by_name(&self, parent: u64, name: &[u8]) -> Option<u32> {
        self.by_name.get(&Probe { parent, name }).copied()
    }

    /// Adds `change`, 1 or -1, to the hold counts (requests that forbid renames) of a node and of
    /// its ancestors.
    fn hold(&mut self, leaf: u32, change: i32) {
        let mut at = leaf;
        loop {
            let node = &mut self.slab[at as usize];
            node.holds = node.holds.wrapping_add_signed(change);
            if node.parent == at {
                return;
            }
            at = node.parent;
        }
    }
}

impl Namespace for LibfuseNode {
    fn variant(&self) -> &'static str {
        "libfuse-node"
    }

    #[inline]
    fn lookup(&self, parent: u64, name: &[u8]) -> Option<u64> {
        let mut nodes = self.0.lock();
        let at = nodes.by_name(parent, name)?;
        let node = &mut nodes.slab[at as usize];
        node.nlookup += 1;
        Some(node.id)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let mut nodes = self.0.lock();
        let leaf = *nodes.by_id.get(&ino)?;
        let mut names: Vec<&[u8]> = Vec::with_capacity(16);
        let mut node = &nodes.slab[leaf as usize];
        while node.id != ROOT {
            names.push(&node.name);
            node = &nodes.slab[node.parent as usize];
        }
        let path = join(&names);
        nodes.hold(leaf, 1);
        drop(nodes);
        // Here the request would run.
        self.0.lock().hold(leaf, -1);
        Some(path)
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let nodes = self.0.lock();
        components(path).try_fold(ROOT, |parent, name| {
            Some(nodes.slab[nodes.by_name(parent, name)? as usize].id)
        })
    }
}
