//! The shape of libfuse's high-level node table: one mutex over everything.
//!
//! Nodes hang in two chained hashes, by (parent id, name) and by id; each node knows its parent, its
//! name, how many lookups the kernel holds, and how many requests hold its subtree in place. A
//! lookup takes the mutex once. A path takes it twice: once to collect the names, with a hold on
//! each ancestor for as long as the request runs, once to let go of them. A rename waits until
//! nobody holds the subtree.
//!
//! Written fresh from a description of the shape; nothing of libfuse's code is here. The real
//! library does more per request (a FUSE LOOKUP takes the mutex three times and walks to the root
//! twice), so this is what its table costs at best.
//!
//! # Locks
//! One mutex. A rename sleeps on a condition while a hold is in its way.
//!
//! Source: libfuse, `lib/fuse.c`, for which tables there are and when its lock is taken.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};

use super::{Namespace, components};
use crate::corpus::{Corpus, ROOT};

/// No node.
const NONE: u32 = u32::MAX;
/// Bytes of a name that lie in the node.
const INLINE: usize = 32;

/// The table.
pub(crate) struct LibfuseNode {
    nodes: Mutex<Nodes>,
    released: Condvar,
}

/// All nodes and the two hashes, which are chained through them.
struct Nodes {
    slab: Vec<Node>,
    name_heads: Vec<u32>,
    id_heads: Vec<u32>,
}

struct Node {
    id: u64,
    nlookup: u64,
    parent: u32,
    name_next: u32,
    id_next: u32,
    /// Requests that hold the subtree in place.
    holds: u32,
    name: NodeName,
}

/// A name, in the node if it is short.
enum NodeName {
    Short(u8, [u8; INLINE]),
    Long(Box<[u8]>),
}

impl NodeName {
    fn new(name: &[u8]) -> NodeName {
        if name.len() > INLINE {
            return NodeName::Long(name.into());
        }
        let mut bytes = [0; INLINE];
        bytes[..name.len()].copy_from_slice(name);
        NodeName::Short(name.len() as u8, bytes)
    }

    #[inline]
    fn as_bytes(&self) -> &[u8] {
        match self {
            NodeName::Short(len, bytes) => &bytes[..usize::from(*len)],
            NodeName::Long(bytes) => bytes,
        }
    }
}

impl LibfuseNode {
    /// Returns the table of `corpus`.
    pub(crate) fn load(corpus: &Corpus) -> LibfuseNode {
        let heads = corpus.len().next_power_of_two();
        let mut nodes = Nodes {
            slab: Vec::with_capacity(corpus.len()),
            name_heads: vec![NONE; heads],
            id_heads: vec![NONE; heads],
        };
        for ino in corpus.inodes() {
            let at = nodes.slab.len() as u32;
            // A corpus numbers its entries in the order in which they are pushed here.
            let parent = if ino == ROOT { NONE } else { (corpus.parent(ino) - 1) as u32 };
            let bucket = nodes.id_bucket(ino);
            nodes.slab.push(Node {
                id: ino,
                nlookup: 1,
                parent,
                name_next: NONE,
                id_next: nodes.id_heads[bucket],
                holds: 0,
                name: NodeName::new(corpus.name(ino)),
            });
            nodes.id_heads[bucket] = at;
            if parent != NONE {
                nodes.hash_name(at);
            }
        }
        LibfuseNode { nodes: Mutex::new(nodes), released: Condvar::new() }
    }

    #[inline]
    fn lock(&self) -> MutexGuard<'_, Nodes> {
        self.nodes.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Nodes {
    #[inline]
    fn id_bucket(&self, id: u64) -> usize {
        (id.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as usize & (self.id_heads.len() - 1)
    }

    #[inline]
    fn name_bucket(&self, parent: u64, name: &[u8]) -> usize {
        let hash = name.iter().fold(parent ^ 0xcbf2_9ce4_8422_2325, |hash, &byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
        });
        (hash ^ (hash >> 32)) as usize & (self.name_heads.len() - 1)
    }

    #[inline]
    fn by_id(&self, id: u64) -> Option<u32> {
        let mut at = self.id_heads[self.id_bucket(id)];
        while at != NONE {
            let node = &self.slab[at as usize];
            if node.id == id {
                return Some(at);
            }
            at = node.id_next;
        }
        None
    }

    #[inline]
    fn by_name(&self, parent: u64, name: &[u8]) -> Option<u32> {
        let mut at = self.name_heads[self.name_bucket(parent, name)];
        while at != NONE {
            let node = &self.slab[at as usize];
            if self.slab[node.parent as usize].id == parent && node.name.as_bytes() == name {
                return Some(at);
            }
            at = node.name_next;
        }
        None
    }

    /// Enters a node under its parent and name.
    fn hash_name(&mut self, at: u32) {
        let node = &self.slab[at as usize];
        let parent = self.slab[node.parent as usize].id;
        let bucket = self.name_bucket(parent, node.name.as_bytes());
        self.slab[at as usize].name_next = self.name_heads[bucket];
        self.name_heads[bucket] = at;
    }

    /// Takes a node out of the hash by name.
    fn unhash_name(&mut self, gone: u32) {
        let node = &self.slab[gone as usize];
        let parent = self.slab[node.parent as usize].id;
        let bucket = self.name_bucket(parent, node.name.as_bytes());
        let next = node.name_next;
        let mut at = self.name_heads[bucket];
        if at == gone {
            self.name_heads[bucket] = next;
            return;
        }
        while at != NONE {
            let after = self.slab[at as usize].name_next;
            if after == gone {
                self.slab[at as usize].name_next = next;
                return;
            }
            at = after;
        }
    }

    /// Adds `change` to the holds of a node and its ancestors.
    fn hold(&mut self, leaf: u32, change: i32) {
        let mut at = leaf;
        while at != NONE {
            let node = &mut self.slab[at as usize];
            node.holds = node.holds.wrapping_add_signed(change);
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
        let leaf = nodes.by_id(ino)?;
        let mut reversed: Vec<u8> = Vec::with_capacity(128);
        let mut at = leaf;
        while nodes.slab[at as usize].parent != NONE {
            let node = &nodes.slab[at as usize];
            reversed.extend(node.name.as_bytes().iter().rev());
            reversed.push(b'/');
            at = node.parent;
        }
        nodes.hold(leaf, 1);
        drop(nodes);
        // Here the request runs.
        let mut nodes = self.lock();
        nodes.hold(leaf, -1);
        drop(nodes);
        self.released.notify_all();
        if reversed.is_empty() {
            reversed.push(b'/');
        }
        reversed.reverse();
        Some(reversed)
    }

    #[inline]
    fn walk(&self, path: &[u8]) -> Option<u64> {
        let nodes = self.lock();
        components(path).try_fold(ROOT, |parent, name| {
            Some(nodes.slab[nodes.by_name(parent, name)? as usize].id)
        })
    }

    fn rename(&self, from: (u64, &[u8]), to: (u64, &[u8])) -> bool {
        let mut nodes = self.lock();
        loop {
            let Some(at) = nodes.by_name(from.0, from.1) else { return false };
            if nodes.slab[at as usize].holds > 0 {
                nodes = self.released.wait(nodes).unwrap_or_else(PoisonError::into_inner);
                continue;
            }
            let Some(parent) = nodes.by_id(to.0) else { return false };
            nodes.unhash_name(at);
            let node = &mut nodes.slab[at as usize];
            node.parent = parent;
            node.name = NodeName::new(to.1);
            nodes.hash_name(at);
            return true;
        }
    }
}
