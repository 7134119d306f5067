//! A server for asynchronous back ends.
//!
//! The methods of an [`AsyncFileSystem`] are futures, which run on the runtime of the program. A
//! thread that reads requests never waits for the back end. It answers a request from the cache, or
//! starts a future that serves the request and sends the answer. So a thousand requests that wait
//! need no thread.
//!
//! # How it works
//! - The cache is an [`InodeTable`](corewalk::InodeTable), which never calls a back end. With each
//!   inode, the table stores the attributes that the server caches (`node`).
//! - Each request with a future has an entry in an index (`under_way`). At most
//!   `Options::requests_max` futures run, and further requests wait in a queue. A future that waits
//!   for another request does not count.
//! - Concurrent requests for one name, or for the attributes of one inode, share one answer of the
//!   back end (`flights`).
//! - A killed client gets `EINTR` immediately ([`crate::interrupts`]), unless its request changes
//!   content. A future that only reads is dropped. A future that changes names goes on, and keeps
//!   the locks of the names. If `/proc` does not show whether the client was killed, a request that
//!   has begun a change answers with its result.
//!
//! # Guarantees
//! - I.1: each request gets exactly one answer, even if its future panics or is dropped (`EIO`).
//! - I.2: if a change ends after the back end was asked, the answer is not cached. The answer may
//!   be older than the change (trap T25 in `traps.md`).
//! - I.3: the kernel gets a lookup count for each inode in an answer, and for no other inode.
//!
//! # Limits
//! [`AsyncFileSystem`] has a table of its differences from a
//! [`FileSystem`](corewalk::FileSystem).

mod answer;
mod attributes;
mod file_system;
mod files;
mod flights;
mod identities;
mod listing;
mod locks;
mod names;
mod node;
mod requests;
mod server;
mod stale;
mod under_way;

pub use file_system::{AsyncFileSystem, BoxedFuture, OwnedDirEntry, Spawn};
pub use node::AsyncNode;
pub use server::{AsyncServer, serve_async};

#[cfg(test)]
mod tests;
