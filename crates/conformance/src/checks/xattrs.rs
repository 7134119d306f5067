//! Checks of extended attributes and access control lists.

use std::collections::BTreeSet;

use corewalk::acl::{Acl, Entry, Tag};
use corewalk::{Errno, InodeRef, XattrMode};

use super::tree::pattern;
use crate::answer::{Answer, Checked, Stop, ensure_bytes, ensure_eq, is_unsupported};
use crate::bench::Bench;

const ACCESS: &[u8] = b"system.posix_acl_access";

struct Subject<'b> {
    bench: &'b Bench,
    inode: InodeRef<'b>,
}

impl Subject<'_> {
    fn get(&self, name: &str) -> Result<Vec<u8>, Errno> {
        self.bench.vfs.getxattr(&self.bench.cred, &self.inode, name.as_bytes())
    }

    fn set(&self, name: &str, value: &[u8], mode: XattrMode) -> Result<(), Errno> {
        self.bench.vfs.setxattr(&self.bench.cred, &self.inode, name.as_bytes(), value, mode)
    }

    fn remove(&self, name: &str) -> Result<(), Errno> {
        self.bench.vfs.removexattr(&self.bench.cred, &self.inode, name.as_bytes())
    }

    fn has(&self, name: &str, value: &[u8]) -> Checked {
        let found = self.get(name).must(&format!("getxattr of {name}"))?;
        ensure_bytes(&format!("the value of {name}"), &found, value)
    }

    fn lists(&self, wanted: &[&str]) -> Checked {
        let list = self.bench.vfs.listxattr(&self.bench.cred, &self.inode).must("listxattr")?;
        if !list.is_empty() && !list.ends_with(b"\0") {
            return Stop::failed("the last name of listxattr does not end with a NUL");
        }
        let names = list.split(|byte| *byte == 0).map(String::from_utf8_lossy);
        let found: BTreeSet<String> =
            names.filter(|name| name.starts_with("user.")).map(Into::into).collect();
        let wanted: BTreeSet<String> = wanted.iter().map(|name| (*name).to_owned()).collect();
        ensure_eq("the names of listxattr", found, wanted)
    }
}

pub(super) fn all(bench: &Bench) -> Checked {
    let root = bench.root();
    let file = bench.file(&root, "f", b"content")?;
    let first = Subject { bench, inode: file };
    first.set("user.a", b"1", XattrMode::Set).needs("setxattr")?;
    of(&first)?;
    let dir = Subject { bench, inode: bench.dir(&root, "dir")? };
    of(&dir)?;
    // The cache forgets the inode here. Its attributes must stay.
    first.set("user.kept", b"kept", XattrMode::Set).must("setxattr")?;
    drop((first, dir));
    bench.cool();
    let again = Subject { bench, inode: bench.find(&root, "f")? };
    again.has("user.kept", b"kept")?;
    drop(again);
    bench.has_content(&root, "f", b"content")?;
    access_lists(bench)
}

fn of(subject: &Subject<'_>) -> Checked {
    let (no_data, exists) = (&[Errno::NODATA], &[Errno::EXIST]);
    subject.set("user.a", b"1", XattrMode::Set).must("setxattr")?;
    subject.has("user.a", b"1")?;
    let call = "setxattr of an attribute that exists (Create)";
    subject.set("user.a", b"2", XattrMode::Create).must_fail(call, exists)?;
    let call = "setxattr of an absent attribute (Replace)";
    subject.set("user.b", b"2", XattrMode::Replace).must_fail(call, no_data)?;
    subject.get("user.b").must_fail("getxattr of an absent attribute", no_data)?;
    subject.remove("user.b").must_fail("removexattr of an absent attribute", no_data)?;
    subject.has("user.a", b"1")?;
    subject.lists(&["user.a"])?;
    subject.set("user.b", b"", XattrMode::Create).must("setxattr of an empty value (Create)")?;
    subject.has("user.b", b"")?;
    subject.set("user.a", b"zero \0 and \xff", XattrMode::Replace).must("setxattr (Replace)")?;
    subject.has("user.a", b"zero \0 and \xff")?;
    let large = pattern(1, 2_000);
    subject.set("user.large", &large, XattrMode::Set).must("setxattr of 2,000 bytes")?;
    subject.has("user.large", &large)?;
    subject.lists(&["user.a", "user.b", "user.large"])?;
    for name in ["user.a", "user.b", "user.large"] {
        subject.remove(name).must("removexattr")?;
        subject.get(name).must_fail("getxattr of a removed attribute", no_data)?;
    }
    subject.lists(&[])
}

fn access_lists(bench: &Bench) -> Checked {
    let root = bench.root();
    let inode = bench.file(&root, "acl", b"")?;
    let entries = [
        Entry::new(Tag::UserObj, 6, Entry::NO_ID),
        Entry::new(Tag::User, 4, 1234),
        Entry::new(Tag::GroupObj, 0, Entry::NO_ID),
        Entry::new(Tag::Mask, 4, Entry::NO_ID),
        Entry::new(Tag::Other, 0, Entry::NO_ID),
    ];
    let value = Acl::new(entries).must("the list")?.to_xattr();
    match bench.vfs.setxattr(&bench.cred, &inode, ACCESS, &value, XattrMode::Set) {
        Err(error) if is_unsupported(error) => return Ok(()),
        answer => answer.must("setxattr of an access control list")?,
    }
    let mode = bench.attr(&inode)?.mode & 0o777;
    ensure_eq("the mode of a file with an access control list", mode, 0o640)?;
    drop(inode);
    bench.cool();
    let inode = bench.find(&root, "acl")?;
    let found = bench.vfs.getxattr(&bench.cred, &inode, ACCESS);
    ensure_bytes("the access control list", &found.must("getxattr of the list")?, &value)?;
    bench.vfs.removexattr(&bench.cred, &inode, ACCESS).must("removexattr of the list")?;
    let found = bench.vfs.getxattr(&bench.cred, &inode, ACCESS);
    found.must_fail("getxattr of a removed list", &[Errno::NODATA])
}
