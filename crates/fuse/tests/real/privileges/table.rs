//! The callers and the changes in the tests of privileges. Each change is made twice. The second
//! call shows an error if the kernel still uses the mode from before the first one.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{FileExt as _, PermissionsExt as _, chown};
use std::path::Path;

use corewalk_base::Region;
use corewalk_base::primitives::atomic::Ordering;
use corewalk_testkit::user::run_as;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, StatxFlags, XattrFlags, copy_file_range, fallocate, statx,
};
use rustix::thread::{CapabilitySet, capabilities, set_capabilities};

pub(crate) const OWNER: u32 = 1000;
pub(crate) const OTHER: u32 = 65534;
pub(crate) const GROUP: u32 = 4242;
const CAPABILITY: &str = "security.capability";
/// A value of the attribute `CAPABILITY`: `VFS_CAP_REVISION_2`, with `CAP_CHOWN` permitted.
const VALUE: [u8; 20] = [0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
/// An ACL as the value of an extended attribute: version 2, and the entries `u::rwx`, `u:7:r`,
/// `g::rx`, `m::rx`, `o::x`. The mode of a file with this ACL is 751.
#[rustfmt::skip]
const ACL: [u8; 44] = [
    2, 0, 0, 0,
    1, 0, 7, 0, 0xff, 0xff, 0xff, 0xff,
    2, 0, 4, 0, 7, 0, 0, 0,
    4, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,
    16, 0, 5, 0, 0xff, 0xff, 0xff, 0xff,
    32, 0, 1, 0, 0xff, 0xff, 0xff, 0xff,
];
const MODES: [u32; 7] = [0o6755, 0o2745, 0o4644, 0o644, 0o6777, 0o2767, 0o666];
const DIR_MODES: [u32; 4] = [0o755, 0o6755, 0o2745, 0o7777];

#[derive(Clone, Copy, Debug)]
pub(crate) struct Caller {
    pub(crate) uid: u32,
    gid: u32,
    groups: &'static [u32],
    lacks: CapabilitySet,
}

impl Caller {
    pub(crate) fn keeps_bits(&self) -> bool {
        self.uid == 0 && !self.lacks.contains(CapabilitySet::FSETID)
    }
}

pub(crate) const fn user(uid: u32, groups: &'static [u32]) -> Caller {
    Caller { uid, gid: uid, groups, lacks: CapabilitySet::empty() }
}

pub(crate) const CALLERS: [Caller; 7] = [
    user(OWNER, &[]),
    user(OWNER, &[7, GROUP]),
    user(OTHER, &[]),
    user(OTHER, &[GROUP]),
    user(0, &[]),
    Caller { lacks: CapabilitySet::FSETID, ..user(0, &[]) },
    Caller { lacks: CapabilitySet::FOWNER, ..user(0, &[]) },
];

/// A change of the file at a path. The open file was opened by root, so a caller without the right
/// to open it can write.
type Change = fn(&Path, &File) -> io::Result<()>;

const CHANGES: [(&str, Change); 20] = [
    ("write", |_, mut file| file.write_all(b"xy")),
    ("pwrite", |_, file| file.write_all_at(b"xy", 5)),
    ("pwrite of a page", |_, file| file.write_all_at(&[7; 8192], 0)),
    ("open and write", |path, _| OpenOptions::new().write(true).open(path)?.write_all(b"xy")),
    ("append", |path, _| OpenOptions::new().append(true).open(path)?.write_all(b"xy")),
    ("truncate", |path, _| Ok(nix::unistd::truncate(path, 3)?)),
    ("ftruncate", |_, file| file.set_len(3)),
    ("O_TRUNC", |path, _| OpenOptions::new().write(true).truncate(true).open(path).map(drop)),
    ("O_CREAT and O_TRUNC", |path, _| File::create(path).map(drop)),
    ("fallocate", |_, file| Ok(fallocate(file, FallocateFlags::empty(), 0, 20_000)?)),
    ("punch", |_, file| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(file, flags, 0, 4096)?)
    }),
    ("copy_file_range", |path, file| {
        let from = File::open(path.with_file_name("from"))?;
        assert_eq!(copy_file_range(from, Some(&mut 0), file, Some(&mut 0), 8)?, 8);
        Ok(())
    }),
    ("mmap", |_, file| {
        let region = Region::shared(file, 1)?;
        // ORDERING: Relaxed. One thread writes to the mapping.
        region.line(0)[0].store(7, Ordering::Relaxed);
        drop(region);
        file.sync_all()
    }),
    ("chown to another user", |path, _| chown(path, Some(7), None)),
    ("chown to another group", |path, _| chown(path, None, Some(OTHER))),
    ("chown to the same owner", |path, _| chown(path, Some(OWNER), Some(GROUP))),
    ("chown without an owner", |path, _| chown(path, None, None)),
    ("32-bit chown without an owner", |_, file| fchown_32(file)),
    ("chmod", |path, _| fs::set_permissions(path, Permissions::from_mode(0o6711))),
    ("set an ACL", |path, _| {
        Ok(rustix::fs::setxattr(path, "system.posix_acl_access", &ACL, XattrFlags::empty())?)
    }),
];

/// Calls fchown(2) without an owner and a group. Makes the call of a 32-bit program if the kernel
/// runs such programs, otherwise that of a 64-bit program.
fn fchown_32(file: &File) -> io::Result<()> {
    match corewalk_testkit::call32::fchown(file, u32::MAX, u32::MAX) {
        Err(error) if error.raw_os_error() == Some(rustix::io::Errno::NOSYS.raw_os_error()) => {
            std::os::unix::fs::fchown(file, None, None)
        }
        done => done,
    }
}

const DIR_CHANGES: [&str; 7] = [
    "chown to another user",
    "chown to another group",
    "chown to the same owner",
    "chown without an owner",
    "32-bit chown without an owner",
    "chmod",
    "set an ACL",
];

pub(crate) fn change_as<T: Send>(caller: Caller, change: impl FnOnce() -> T + Send) -> T {
    run_as(caller.uid, caller.gid, caller.groups, || {
        let mut sets = capabilities(None).expect("read the capabilities");
        sets.effective -= caller.lacks;
        set_capabilities(None, sets).expect("drop capabilities");
        change()
    })
}

/// Returns the mode, the owner, the group and whether there are capabilities, as text. Does not ask
/// for the times, because the kernel would then fetch all attributes again. The test would not
/// notice an outdated mode in the kernel's cache.
pub(crate) fn state(path: &Path) -> String {
    let wanted = StatxFlags::MODE | StatxFlags::UID | StatxFlags::GID;
    let now = statx(CWD, path, AtFlags::empty(), wanted).expect("the file exists");
    let has_caps = rustix::fs::getxattr(path, CAPABILITY, &mut [0; 32][..]).is_ok();
    let caps = if has_caps { " caps" } else { "" };
    format!("{:o} {} {}{caps}", now.stx_mode & 0o7777, now.stx_uid, now.stx_gid)
}

pub(crate) fn prepare(path: &Path, mode: u32, has_caps: bool) {
    chown(path, Some(OWNER), Some(GROUP)).expect("root is permitted to");
    fs::set_permissions(path, Permissions::from_mode(mode)).expect("root is permitted to");
    if has_caps {
        rustix::fs::setxattr(path, CAPABILITY, &VALUE, XattrFlags::empty())
            .expect("root is permitted to");
    }
}

fn change_twice(caller: Caller, path: &Path, file: &File, change: Change) -> String {
    let mut text = state(path);
    for _ in 0..2 {
        let done = change_as(caller, || change(path, file)).map_err(|error| error.raw_os_error());
        text = format!("{text} | {done:?} {}", state(path));
    }
    text
}

pub(crate) type Skips = fn(Caller, &str, u32, bool) -> bool;

fn collect(at: &Path, caller: Caller, skips: Skips) -> Vec<String> {
    let dir = at.join("dir");
    fs::create_dir(&dir).expect("make the directory");
    fs::set_permissions(&dir, Permissions::from_mode(0o777)).expect("chmod");
    fs::write(dir.join("from"), "12345678").expect("make the file");
    fs::set_permissions(dir.join("from"), Permissions::from_mode(0o644)).expect("chmod");
    let (path, mut lines) = (dir.join("f"), vec![]);
    for (what, change) in CHANGES {
        let cases = MODES.into_iter().flat_map(|mode| [(mode, false), (mode, true)]);
        for (mode, has_caps) in cases.filter(|case| !skips(caller, what, case.0, case.1)) {
            fs::write(&path, vec![1; 10_000]).expect("make the file");
            let file = File::options().read(true).write(true).open(&path).expect("open the file");
            prepare(&path, mode, has_caps);
            let changed = change_twice(caller, &path, &file, change);
            lines.push(format!("{what}: {changed}"));
            fs::remove_file(&path).expect("remove the file");
        }
        for mode in DIR_MODES.into_iter().filter(|_| DIR_CHANGES.contains(&what)) {
            fs::create_dir(&path).expect("make the directory");
            prepare(&path, mode, false);
            let file = File::open(&path).expect("open the directory");
            lines.push(format!("{what}: {}", change_twice(caller, &path, &file, change)));
            fs::remove_dir(&path).expect("remove the directory");
        }
    }
    fs::remove_dir_all(&dir).expect("remove the directory");
    lines
}

pub(crate) fn compare(found: &Path, expected: &Path, skips: Skips) {
    for caller in CALLERS {
        let collect = |at| collect(at, caller, skips);
        let (found, expected) = (collect(found), collect(expected));
        let differs = |pair: &(&String, &String)| pair.0 != pair.1;
        let pairs: Vec<_> = found.iter().zip(&expected).filter(differs).collect();
        let first = &pairs[..pairs.len().min(20)];
        assert_eq!(pairs.len(), 0, "{caller:?}: found, expected: {first:#?}");
        let cleared = "write: 6755 1000 4242 caps | Ok(()) 755 1000 4242 |";
        let is_cleared = expected.iter().any(|line| line.starts_with(cleared));
        assert_ne!(
            is_cleared,
            caller.keeps_bits(),
            "control: on the host, only CAP_FSETID keeps the bits"
        );
    }
}
