//! The checks, sorted by subject.
//!
//! A check is a function that makes files, calls the back end, and judges the answers. The checks
//! at the start of the list `ALL` also run over a read-only back end, on the files that it has.

mod attributes;
mod content;
mod direct;
mod identity;
mod links;
mod listing;
mod names;
mod rename;
mod space;
mod storm;
pub(crate) mod tree;
mod xattrs;

use crate::answer::Checked;
use crate::bench::Bench;

pub(crate) struct Check {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) run: fn(&Bench) -> Checked,
}

const fn check(name: &'static str, about: &'static str, run: fn(&Bench) -> Checked) -> Check {
    Check { name, about, run }
}

pub(crate) const ALL: [Check; 38] = [
    check("root", "the root is a directory, and stays the same inode", tree::root),
    check("statfs", "free blocks and inodes are at most all of them", tree::statfs),
    check("tree", "lookup, getattr and readdir agree about each file", tree::agreement),
    check("read_ranges", "a read is short only at the end of the file", tree::read_ranges),
    check("readdir_cookies", "cookies are unique and not 0; each is a position", listing::cookies),
    check("readdir_pages", "a listing may be read in pages that end anywhere", listing::pages),
    check("readdir_changes", "an entry that stays is listed exactly once", listing::changes),
    check("make_kinds", "a new file has the kind, mode and owner that it was given", names::kinds),
    check("make_existing", "a taken name is EEXIST, and its file stays", names::existing),
    check("names", "any bytes are a name, up to the length in statfs", names::bytes),
    check("remove", "a removed name is free; a full directory is ENOTEMPTY", names::remove),
    check("rename", "a file keeps its inode and content under its new name", rename::moves),
    check("rename_replace", "a rename replaces a file or an empty directory", rename::replaces),
    check("rename_full_directory", "a full directory is not replaced", rename::full_directory),
    check("rename_no_replace", "NoReplace is EEXIST if the name is taken", rename::no_replace),
    check("rename_exchange", "Exchange swaps two files of any kind", rename::exchange),
    check("numbers", "an inode number with its generation is never reused", identity::numbers),
    check("unlinked", "an unlinked inode is usable until it is forgotten", identity::unlinked),
    check("replaced", "a replaced inode is usable until it is forgotten, too", identity::replaced),
    check("forget", "a forgotten file can be found again, with its content", identity::forget),
    check("by_number", "an inode is found by its number and generation", identity::by_number),
    check("content", "reads return the bytes that were written last", content::random),
    check("holes", "bytes that were never written are zeros", content::holes),
    check("truncate", "a file cut and extended again has zeros behind the cut", content::truncate),
    check("append", "an append writes at the end", content::append),
    check("open_files", "an open file stays the same file while it is renamed", content::opened),
    check("fsync", "fsync of files and directories succeeds", content::fsync),
    check("blocks", "the used space fits the size", space::blocks),
    check("fallocate", "allocated and zeroed ranges read as zeros", space::fallocate),
    check("seek", "ranges without data are zeros, and data is found", space::seek),
    check("setattr", "all attributes of a call are set, and no other", attributes::set),
    check("setattr_fails", "a setattr that fails sets none of them", attributes::all_or_none),
    check("times", "changes move the times, and set times are kept", attributes::times),
    check("hard_links", "all names of a file lead to it, and are counted", links::hard),
    check("symlinks", "a symbolic link keeps its target", links::symbolic),
    check("xattrs", "attributes can be set, listed, replaced and removed", xattrs::all),
    check(
        "direct",
        "called without the cache, a back end by number refuses wrong calls",
        direct::refusals,
    ),
    check("storm", "threads that rename, remove, read and write lose nothing", storm::run),
];
