//! Checks of `setattr` and of times.

use corewalk::attr::mode::{S_IFDIR, S_IFREG};
use corewalk::{Attr, Errno, InodeRef, RenameMode, SetAttr, SetTime, Timespec};

use super::tree::pattern;
use crate::answer::{Answer, Checked, ensure, ensure_bytes, ensure_eq, is_unsupported};
use crate::bench::Bench;

/// A time long ago, so that each later change of a file has a newer time. It has whole seconds,
/// because some back ends store no fractions.
const PAST: Timespec = Timespec { secs: 1_000_000_000, nanos: 0 };

fn change(bench: &Bench, inode: &InodeRef<'_>, set: &SetAttr, what: &str) -> Checked<Attr> {
    let attr = bench.vfs.setattr(&bench.cred, inode, set).needs(&format!("setattr of {what}"))?;
    let known = bench.attr(inode)?;
    let part = |attr: &Attr| (attr.mode, attr.uid, attr.gid, attr.size, attr.mtime, attr.atime);
    let text = format!("(mode, user, group, size, mtime, atime) after setattr of {what}");
    ensure_eq(&text, part(&known), part(&attr))?;
    Ok(attr)
}

pub(super) fn set(bench: &Bench) -> Checked {
    let root = bench.root();
    let content = pattern(1, 5_000);
    let file = bench.file(&root, "f", &content)?;
    let before = bench.attr(&file)?;
    let attr = change(bench, &file, &SetAttr::default().with_mode(0o4_640), "the mode")?;
    ensure_eq("the mode", attr.mode, S_IFREG | 0o4_640)?;
    let rest = |attr: &Attr| (attr.ino, attr.uid, attr.gid, attr.size, attr.nlink, attr.mtime);
    let what = "(inode, user, group, size, links, mtime) after a change of the mode";
    ensure_eq(what, rest(&attr), rest(&before))?;
    let all = SetAttr::default().with_mode(0o600).with_size(100).with_mtime(SetTime::At(PAST));
    let attr = change(bench, &file, &all, "mode, size and mtime")?;
    let found = (attr.mode, attr.size, attr.mtime.secs);
    ensure_eq("(mode, size, mtime)", found, (S_IFREG | 0o600, 100, PAST.secs))?;
    ensure_bytes("the content", &bench.open(&file)?.read_all()?, &content[..100])?;
    let owner = SetAttr::default().with_uid(1234).with_gid(5678);
    match bench.vfs.setattr(&bench.cred, &file, &owner) {
        // A back end that stores files as an ordinary user cannot change their owner.
        Err(error) if error == Errno::PERM || is_unsupported(error) => {}
        answer => {
            let attr = answer.must("setattr of the owner")?;
            ensure_eq("the owner", (attr.uid, attr.gid), (1234, 5678))?;
            let now = bench.attr(&file)?;
            ensure_eq("the owner in getattr", (now.uid, now.gid), (1234, 5678))?;
        }
    }
    let dir = bench.dir(&root, "dir")?;
    let attr = change(bench, &dir, &SetAttr::default().with_mode(0o1_777), "the mode")?;
    ensure_eq("the mode of a directory", attr.mode, S_IFDIR | 0o1_777)?;
    drop((file, dir));
    bench.cool();
    ensure_eq("the size, found again,", bench.attr(&bench.find(&root, "f")?)?.size, 100)
}

/// A file size beyond the largest file offset of Linux, so that a back end may refuse it.
const TOO_LARGE: u64 = 1 << 63;

pub(super) fn all_or_none(bench: &Bench) -> Checked {
    let root = bench.root();
    let content = pattern(1, 5_000);
    let file = bench.file(&root, "f", &content)?;
    bench.truncate(&file, 5_000)?;
    let before = bench.attr(&file)?;
    let set =
        SetAttr::default().with_mode(0o600).with_mtime(SetTime::At(PAST)).with_size(TOO_LARGE);
    match bench.vfs.setattr(&bench.cred, &file, &set) {
        Ok(attr) => ensure_eq("the size that setattr has set", attr.size, TOO_LARGE),
        Err(error) => {
            let allowed = [Errno::FBIG, Errno::INVAL, Errno::NOSPC];
            Err::<(), _>(error).must_fail("setattr of a size of 2^63", &allowed)?;
            let after = bench.attr(&file)?;
            let part = |attr: &Attr| (attr.mode, attr.size, attr.mtime, attr.uid, attr.gid);
            let what = "(mode, size, mtime, user, group) after a setattr that failed";
            ensure_eq(what, part(&after), part(&before))?;
            drop(file);
            bench.has_content(&root, "f", &content)
        }
    }
}

fn make_old(bench: &Bench, inode: &InodeRef<'_>) -> Checked {
    let past = SetTime::At(PAST);
    let set = SetAttr::default().with_mtime(past).with_atime(past);
    let attr = change(bench, inode, &set, "the times")?;
    let found = (attr.mtime.secs, attr.atime.secs);
    ensure_eq("(mtime, atime) that were set", found, (PAST.secs, PAST.secs))
}

fn is_new(what: &str, time: Timespec) -> Checked {
    ensure(time.secs > PAST.secs, || format!("{what} is {time:?}, as before the change"))
}

pub(super) fn times(bench: &Bench) -> Checked {
    let root = bench.root();
    let dir = bench.dir(&root, "dir")?;
    let file = bench.file(&dir, "f", b"content")?;
    make_old(bench, &file)?;
    bench.open(&file)?.write(0, b"changed")?;
    is_new("the mtime after a write", bench.attr(&file)?.mtime)?;
    make_old(bench, &file)?;
    bench.truncate(&file, 3)?;
    is_new("the mtime after a truncation", bench.attr(&file)?.mtime)?;
    make_old(bench, &file)?;
    is_new("the ctime after a setattr", bench.attr(&file)?.ctime)?;
    let now = SetAttr::default().with_mtime(SetTime::Now);
    is_new("the mtime set to the current time", change(bench, &file, &now, "mtime")?.mtime)?;
    make_old(bench, &file)?;
    drop(file);
    bench.cool();
    let found = bench.attr(&bench.find(&dir, "f")?)?;
    ensure_eq("the mtime, found again,", found.mtime.secs, PAST.secs)?;

    make_old(bench, &dir)?;
    bench.file(&dir, "new", b"")?;
    is_new("the mtime of a directory after a make", bench.attr(&dir)?.mtime)?;
    make_old(bench, &dir)?;
    bench.unlink(&dir, "new").must("remove")?;
    is_new("the mtime of a directory after a remove", bench.attr(&dir)?.mtime)?;
    make_old(bench, &dir)?;
    let renamed = bench.rename((&dir, "f"), (&dir, "g"), RenameMode::Replace);
    if renamed.is_err_and(is_unsupported) {
        return Ok(());
    }
    renamed.must("rename")?;
    is_new("the mtime of a directory after a rename", bench.attr(&dir)?.mtime)
}
