//! Objects: the immutable pieces of file data, in a store that several machines can reach.
//!
//! An object is written once, under a key that is never used again. So a copy of an object in a
//! cache never becomes stale. The database records a key before the object is written
//! (`pending_object`), so an object whose writer dies is found and removed.
//!
//! A key has components of lower-case hexadecimal digits, separated by `/`. The methods are
//! asynchronous, because the back end writes several objects at a time and reads ahead.
//!
//! An error is an [`io::Error`]. Only its kind matters to callers: `NotFound` means that there is
//! no such object. Other kinds become the errno of the call of the file system.
//!
//! # Guarantees
//! - O.1: after `put` has returned, the object survives a crash of every machine.
//! - O.2: `get` returns exactly the bytes of a `put` that has returned, or an error. It never
//!   returns a part of an object that is still being written.
//! - O.3: `put` may be repeated with the same key and the same bytes. `delete` of a key without an
//!   object succeeds.

mod directory;

use std::io;
use std::ops::Range;

use bytes::Bytes;
use futures_util::future::BoxFuture;

pub use directory::DirectoryObjects;

/// A store of objects.
pub trait Objects: Send + Sync + 'static {
    /// Writes an object and makes it durable.
    fn put<'a>(&'a self, key: &'a str, bytes: Bytes) -> BoxFuture<'a, io::Result<()>>;

    /// Reads a range of an object. `UnexpectedEof` if the object is shorter than the range.
    fn get<'a>(&'a self, key: &'a str, range: Range<u64>) -> BoxFuture<'a, io::Result<Bytes>>;

    /// Removes an object. It is no error if there is none.
    fn delete<'a>(&'a self, key: &'a str) -> BoxFuture<'a, io::Result<()>>;

    /// Returns the keys that begin with `prefix`, in any order, each with the size of its object.
    fn list<'a>(&'a self, prefix: &'a str) -> BoxFuture<'a, io::Result<Vec<(String, u64)>>>;
}
