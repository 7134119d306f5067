//! The shape of libfuse's high-level node table: one mutex over everything.
//!
//! Two hash tables lead to nodes, by (parent, name) and by id. Each node has its parent, its name,
//! how many lookups the kernel holds, and how many requests hold its subtree in place. A lookup
//! takes the mutex once. A path takes it twice: once to collect the names and to hold each ancestor
//! while the request runs, once to release them. A rename would wait for the holds; no table
//! renames here.
//!
//! This code was written from a description of the shape, without libfuse's code. The real library
//! does more per request: a FUSE LOOKUP takes the mutex three times and walks to the root twice. So
//! these rows are the least that its table costs.
//!
//! # Locks
//! One mutex.
//!
//! Source: libfuse, `lib/fuse.c`, for its tables and the places where it takes its lock.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use ahash::RandomState;
use hashbrown::HashMap;

use super::rwlock_ahash::{Key, Probe};
use super::{Namespace, components, join};
use crate::corpus::{Corpus, ROOT};

/// The table.
pub(crate) struct LibfuseNode {
    nodes: Mutex<Nodes>,
}

/// The nodes; a node refers to another by its place in `slab`.
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
    /// Returns the table with every entry of the corpus, each looked up once.
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
        LibfuseNode { nodes: Mutex::new(Nodes { slab, by_name, by_id }) }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nodes {
    #[inline]
    fn by_name(&self, parent: u64, name: &[u8]) -> Option<u32> {
        self.by_name.get(&Probe { parent, name }).copied()
    }

    /// Changes the number of holds of a node and of every node above it.
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
        let mut nodes = self.lock();
        let at = nodes.by_name(parent, name)?;
        let node = &mut nodes.slab[at as usize];
        node.nlookup += 1;
        Some(node.id)
    }

    #[inline]
    fn path(&self, ino: u64) -> Option<Vec<u8>> {
        let mut nodes = self.lock();
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
        self.lock().hold(leaf, -1);
        Some(path)
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let nodes = self.lock();
        components(path).try_fold(ROOT, |parent, name| {
            Some(nodes.slab[nodes.by_name(parent, name)? as usize].id)
        })
    }
}
