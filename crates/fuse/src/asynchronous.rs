//! A server of asynchronous back ends.
//!
//! The methods of an [`AsyncFileSystem`] are futures, which run on the runtime of the program. A
//! thread that reads requests never waits for the back end. It answers a request from the cache, or
//! makes a future of the request and reads the next one. The answer comes from the thread on which
//! the future ends. So a thousand requests that wait need no thread.
//!
//! # How it works
//! - The cache is an [`InodeTable`](corewalk::InodeTable), which never calls a back end. The user
//!   data of an inode are its attributes (`node`).
//! - Each request with a future has an entry in an index (`under_way`). A fixed number of futures
//!   run, and further requests wait in a queue.
//! - Requests for one name, and requests for the attributes of one inode, share the answer of the
//!   back end (`flights`).
//! - If a client is killed, its request gets `EINTR` at once ([`crate::interrupts`]). A future that
//!   only reads is dropped. A future that changes names goes on, and keeps its locks. A client that
//!   changes content waits for the end of its future.
//!
//! # Guarantees
//! - I.1: each request gets exactly one answer, even if its future panics or is dropped (`EIO`).
//! - I.2: an answer that was requested before a change has ended is not cached after that change
//!   (trap T25).
//! - I.3: the kernel gets a lookup count for each inode in an answer, and for no other inode.
//!
//! # Limits
//! The kernel checks permissions by the mode. There are no ACLs, no `O_TMPFILE`, no write-back
//! cache, and no file handles for NFS. A file that was opened with `O_APPEND` writes at the end
//! that the kernel knows, so two machines must not append to one file.

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
