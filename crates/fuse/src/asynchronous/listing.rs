//! Reading directories.
//!
//! `.` and `..` come first, with the cookies 1 and 2. The server adds 2 to each cookie of the back
//! end, so that no two entries have the same cookie.
//!
//! An open directory keeps the last page that the back end has returned. A request for entries of
//! that page is answered immediately. A request for other entries, or for the start of the
//! directory, makes a future that fetches a page.
//!
//! # Entries with attributes
//! A listing with attributes (`readdirplus`) enters the names of a page into the cache. A page may
//! be old when its last entries are read:
//! - A name from a page enters the cache only if no name of the directory has changed since the
//!   page was requested ([`AsyncNode::enter_listed`]).
//! - An entry is reported with the attributes in the page only if they are still current.
//!
//! An entry without current attributes is listed without attributes. The kernel looks its name up
//! when a program uses it.

use std::collections::HashMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use bytes::Bytes;
use corewalk::{Attr, Errno, FileKind, Name};
use corewalk_base::Mutex;
use corewalk_base::primitives::atomic::{AtomicU64, Ordering};
use foldhash::fast::RandomState;

use super::answer::Answer;
use super::requests::{Cached, Miss};
use super::server::{AsyncServer, Entering};
use super::{AsyncFileSystem, AsyncNode, OwnedDirEntry};
use crate::dispatch::{Range, UNKNOWN_INO};
use crate::timeouts::Timeouts;
use crate::wire::{Body, Message, Opcode};

/// The number that the server adds to each cookie of the back end, because the cookies 1 and 2 are
/// those of `.` and `..`.
const COOKIE_SHIFT: u64 = 2;
/// The largest cookie of a back end. With [`COOKIE_SHIFT`] added, a cookie must fit `loff_t`.
const COOKIE_MAX: u64 = i64::MAX as u64 - COOKIE_SHIFT;

#[derive(Default)]
pub(super) struct Listings {
    open: Mutex<HashMap<u64, Arc<Listing>, RandomState>>,
    last: AtomicU64,
}

#[derive(Default)]
struct Listing {
    /// The last page of the back end. Protected by its own mutex, under which no other lock is
    /// taken.
    page: Mutex<Option<Arc<Page>>>,
}

struct Page {
    start: u64,
    asked: u64,
    /// The instant right before the back end was asked for the page. If other programs change the
    /// files, the timeouts of the entries begin at this instant.
    since: Instant,
    entries: Vec<OwnedDirEntry>,
}

impl Listings {
    pub(super) fn open(&self) -> u64 {
        // ORDERING: Relaxed. The atomic addition alone gives each handle once.
        let handle = self.last.fetch_add(1, Ordering::Relaxed) + 1;
        self.open.lock().insert(handle, Arc::default());
        handle
    }

    pub(super) fn close(&self, handle: u64) {
        let listing = self.open.lock().remove(&handle);
        drop(listing);
    }

    fn get(&self, handle: u64) -> Result<Arc<Listing>, Errno> {
        self.open.lock().get(&handle).cloned().ok_or(Errno::BADF)
    }
}

impl Page {
    fn check(&self) -> Result<(), Errno> {
        let mut before = self.start;
        for entry in &self.entries {
            let is_cookie = entry.cookie != 0
                && entry.cookie != before
                && entry.cookie != self.start
                && entry.cookie <= COOKIE_MAX;
            if !is_cookie || Name::new(&entry.name).is_err() {
                log::error!("the back end has listed a wrong entry: {entry:?}");
                return Err(Errno::IO);
            }
            before = entry.cookie;
        }
        Ok(())
    }

    fn after(&self, cookie: u64) -> Option<usize> {
        let index = match cookie == self.start {
            true => 0,
            false => self.entries.iter().position(|entry| entry.cookie == cookie)? + 1,
        };
        (index < self.entries.len()).then_some(index)
    }
}

struct Request {
    node: u64,
    handle: u64,
    offset: u64,
    size: usize,
    has_attributes: bool,
}

impl Request {
    fn of(message: &Message<'_>) -> Result<Request, Errno> {
        let Range { handle, offset, size } = Range::of(&mut message.args())?;
        let (node, size) = (message.header.node, size as usize);
        let has_attributes = message.header.opcode == Opcode::READDIRPLUS;
        Ok(Request { node, handle, offset, size, has_attributes })
    }

    fn cookie(&self) -> u64 {
        self.offset.saturating_sub(COOKIE_SHIFT)
    }
}

impl<F: AsyncFileSystem> AsyncServer<F> {
    pub(super) fn cached_listing(&self, message: &Message<'_>, body: &mut Body<'_>) -> Cached {
        let request = Request::of(message)?;
        let listing = self.listings.get(request.handle)?;
        // Do not use an old page for a listing from the start, which must see the changes up to
        // now.
        let page = if request.offset == 0 { None } else { listing.page.lock().clone() };
        let page = page.ok_or(Miss::Later)?;
        if page.after(request.cookie()).is_none() {
            return Err(Miss::Later);
        }
        let dir = self.node(request.node)?;
        let mut entered = Vec::new();
        self.fill(&dir, &request, &page, body, &mut entered)?;
        entered.into_iter().for_each(|node| {
            node.table_node().get().into_lookups();
        });
        Ok(())
    }

    pub(super) async fn listing(&self, message: &Message<'_>) -> Result<Answer, Errno> {
        let request = Request::of(message)?;
        let listing = self.listings.get(request.handle)?;
        let dir = self.node(request.node)?;
        if dir.kind() != FileKind::Directory {
            return Err(Errno::NOTDIR);
        }
        let (start, asked, since) = (request.cookie(), self.shared.now(), Instant::now());
        let entries = self.fs.readdir(&dir, start).await?;
        let page = Arc::new(Page { start, asked, since, entries });
        page.check()?;
        *listing.page.lock() = Some(Arc::clone(&page));
        let mut buffer = vec![0; request.size];
        let mut body = Body::new(&mut buffer);
        let mut entries = Vec::new();
        self.fill(&dir, &request, &page, &mut body, &mut entries)?;
        let len = body.len();
        buffer.truncate(len);
        Ok(Answer { entries, ..Answer::from(Bytes::from(buffer)) })
    }

    fn fill(
        &self,
        dir: &AsyncNode,
        request: &Request,
        page: &Page,
        body: &mut Body<'_>,
        entered: &mut Vec<AsyncNode>,
    ) -> Result<(), Errno> {
        if !self.add_dots(dir, request, body)? {
            return Ok(());
        }
        let first = page.after(request.cookie()).unwrap_or(page.entries.len());
        for entry in &page.entries[first..] {
            if !self.add_entry(dir, request, (entry, page), body, entered)? {
                break;
            }
        }
        Ok(())
    }

    /// Adds those of the entries `.` and `..` that the request asks for. Returns false if the
    /// answer is full.
    fn add_dots(
        &self,
        dir: &AsyncNode,
        request: &Request,
        body: &mut Body<'_>,
    ) -> Result<bool, Errno> {
        for (cookie, name) in [(1, &b"."[..]), (2, b"..")] {
            if request.offset >= cookie {
                continue;
            }
            let ino = match cookie {
                1 => dir.ino(),
                _ => self.parent(dir).map_or(UNKNOWN_INO, |parent| parent.ino()),
            };
            let entry = (ino, cookie, FileKind::Directory, name);
            if !add(request, body, None, entry) {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// A removed directory has none.
    fn parent(&self, dir: &AsyncNode) -> Option<AsyncNode> {
        self.node(dir.table_node().get().parent_ino().ok()?).ok()
    }

    fn add_entry(
        &self,
        dir: &AsyncNode,
        request: &Request,
        (entry, page): (&OwnedDirEntry, &Page),
        body: &mut Body<'_>,
        entered: &mut Vec<AsyncNode>,
    ) -> Result<bool, Errno> {
        let age = if self.is_exclusive() { Duration::ZERO } else { page.since.elapsed() };
        let timeouts = |attr: &Attr| self.timeouts(attr, true).after(age);
        let usable = entry.attr.filter(|attr| {
            request.has_attributes && attr.kind() == entry.kind && !timeouts(attr).entry.is_zero()
        });
        let node = usable.and_then(|attr| {
            let name = Name::new(&entry.name).ok()?;
            let enter = || self.enter(dir, name, &attr, Entering::Found);
            Some((dir.enter_listed(page.asked, enter)?.ok()?, attr))
        });
        let current = node.and_then(|(node, attr)| {
            let cached = if self.is_exclusive() { node.cached() } else { None };
            let is_current = || node.store(&attr, page.asked);
            let attr = cached.or_else(|| is_current().then_some(attr))?;
            Some((node, attr))
        });
        let ino = match (&current, entry.ino) {
            (Some((node, _)), _) => node.ino(),
            (None, 0) => UNKNOWN_INO,
            (None, ino) => ino,
        };
        let named = (ino, entry.cookie + COOKIE_SHIFT, entry.kind, &*entry.name);
        let shown = current
            .as_ref()
            .map(|(node, attr)| (node.number(), timeouts(attr), Self::shown(node, attr)));
        let is_added = add(request, body, shown.as_ref(), named);
        if is_added && let Some((node, _)) = current {
            entered.push(node);
        }
        Ok(is_added)
    }
}

fn add(
    request: &Request,
    body: &mut Body<'_>,
    entry: Option<&(u64, Timeouts, Attr)>,
    named: (u64, u64, FileKind, &[u8]),
) -> bool {
    let (ino, cookie, kind, name) = named;
    match request.has_attributes {
        true => {
            let entry = entry.map(|(node, timeouts, attr)| (*node, *timeouts, attr));
            body.direntplus(request.size, entry, named).is_ok()
        }
        false => body.dirent(request.size, ino, cookie, kind, name).is_ok(),
    }
}
