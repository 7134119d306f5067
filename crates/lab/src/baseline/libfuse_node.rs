//! The shape of libfuse's high-level node table: one mutex over everything.
//!
//! Two hash tables find a node: one by parent and name, one by number. A node has its parent, its
//! name, the number of lookups that the kernel holds, and the number of requests that hold its
//! subtree in place. A lookup takes the mutex once. A path takes it twice: first to collect the
//! names and to hold each ancestor while the request runs, then to release these holds. A rename
//! would wait for the holds, but no table renames in this variant.
//!
//! The code follows a description of libfuse's tables, not libfuse's code. libfuse does more per
//! request: a FUSE LOOKUP takes the mutex three times and walks to the root twice. So the rows of
//! `libfuse-node` are a lower bound of the cost of libfuse's table.
//!
//! # Locks
//! One mutex.
//!
//! Source: libfuse, `lib/fuse.c`, for the tables and the places where libfuse takes the lock.

use std::sync::Arc;

use ahash::RandomState;
use corewalk_base::Mutex;
use hashbrown::HashMap;

use super::rwlock_ahash::{Key, Probe};
use super::{Namespace, components, join};
use crate::corpus::{Corpus, ROOT};

/// The table.
pub(crate) struct LibfuseNode(Mutex<Nodes>);

/// The nodes. The parent of a node is an index into `slab`.
struct Nodes {
    slab: Vec<Node>,
    by_name: HashMap<Key, u32, RandomState>,
    by_id: HashMap<u64, u32, RandomState>,
}

struct Node {
    id: u64,
    nlookup: u64,
    /// The root is its own parent.
    parent: u32,
    /// Requests that hold it or a node below it.
    holds: u32,
    name: Arc<[u8]>,
}

impl LibfuseNode {
    /// Returns the table with every entry of the corpus. Each entry has one lookup.
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

    /// Adds `change` to the number of holds of a node and of all its ancestors.
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
