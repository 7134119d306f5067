//! Listings of a directory, page by page.

use std::collections::HashSet;
use std::ops::ControlFlow;

use corewalk::{Attr, DirEntry, FileKind, InodeRef};

use super::Bench;
use crate::answer::{Answer, Checked, Stop, ensure};

const ENTRIES_MAX: usize = 100_000;
const PAGE: usize = 128;

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Entry {
    pub(crate) name: Vec<u8>,
    /// The inode number of the entry, or 0 if neither the back end nor the cache knows it.
    pub(crate) ino: u64,
    pub(crate) kind: FileKind,
    pub(crate) cookie: u64,
    pub(crate) attr: Option<Attr>,
}

impl Entry {
    fn of(entry: &DirEntry<'_>) -> Entry {
        let DirEntry { name, ino, kind, cookie, attr, .. } = *entry;
        Entry { name: name.as_bytes().to_vec(), ino, kind, cookie, attr }
    }

    pub(crate) fn text(&self) -> String {
        String::from_utf8_lossy(&self.name).into_owned()
    }
}

impl Bench {
    pub(crate) fn list(&self, dir: &InodeRef<'_>) -> Checked<Vec<Entry>> {
        self.list_from(dir, 0, PAGE, &mut |_| Ok(()))
    }

    /// Lists `dir` after the cookie `cookie`, in pages of at most `page` entries. Calls `between`
    /// after each page, with all entries so far. Checks that the cookies are unique and not 0.
    pub(crate) fn list_from(
        &self,
        dir: &InodeRef<'_>,
        cookie: u64,
        page: usize,
        between: &mut dyn FnMut(&[Entry]) -> Checked,
    ) -> Checked<Vec<Entry>> {
        let (mut entries, mut cookie) = (Vec::new(), cookie);
        let mut cookies = HashSet::from([cookie]);
        loop {
            let found = self.page(dir, cookie, page)?;
            let Some(last) = found.last() else { return Ok(entries) };
            cookie = last.cookie;
            for entry in found {
                let text = entry.text();
                ensure(entry.cookie != 0, || format!("the entry {text:?} has the cookie 0"))?;
                ensure(cookies.insert(entry.cookie), || {
                    format!("the cookie {} of {text:?} was reported before", entry.cookie)
                })?;
                ensure(!matches!(&*text, "." | ".."), || format!("{text:?} is an entry"))?;
                entries.push(entry);
            }
            if entries.len() > ENTRIES_MAX {
                return Stop::skipped(format!("a directory has over {ENTRIES_MAX} entries"));
            }
            between(&entries)?;
        }
    }

    /// Returns a page of `dir`: at most `page` entries after the cookie `cookie`. The callback
    /// refuses further entries, like a server with a full reply buffer.
    fn page(&self, dir: &InodeRef<'_>, cookie: u64, page: usize) -> Checked<Vec<Entry>> {
        let (mut found, mut calls) = (Vec::new(), 0_usize);
        let listed = self.vfs.readdir(dir, cookie, &mut |entry| {
            calls += 1;
            if found.len() == page {
                return ControlFlow::Break(());
            }
            found.push(Entry::of(&entry));
            ControlFlow::Continue(())
        });
        listed.must(&format!("readdir behind the cookie {cookie}"))?;
        ensure(calls <= page + 1, || {
            format!("readdir reported {} entries after the buffer was full", calls - page - 1)
        })?;
        Ok(found)
    }
}
