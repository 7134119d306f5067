//! Tests of the set-group-ID bit of a file. A change by a user outside of the file's group must
//! clear the bit.
//!
//! For a FUSE mount, the kernel clears the set-group-ID bit only if the group may execute the file.
//! For other files the server must find out whether the caller is in the group or has `CAP_FSETID`.
//! The results must be those of the host file system.
//!
//! Source: write(2), chown(2); Linux `setattr_should_drop_sgid`.

use std::fs::{self, File, OpenOptions, Permissions};
use std::io::{self, Write as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _, chown};
use std::path::Path;

use corewalk_testkit::user::run_as;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, StatxFlags, copy_file_range, fallocate, mknodat,
    statx,
};

use crate::fixtures::{Folder, Server, can_mount};

const OTHER: u32 = 65534;
const GROUP: u32 = 4242;
/// The modes that the tests change: combinations of set-user-ID, set-group-ID and execution by the
/// group.
const MODES: [u32; 6] = [0o2666, 0o6666, 0o2676, 0o6676, 0o4666, 0o666];

#[derive(Clone, Copy, Debug)]
struct Caller {
    uid: u32,
    gid: u32,
    groups: &'static [u32],
}

const CALLERS: [Caller; 4] = [
    Caller { uid: OTHER, gid: OTHER, groups: &[] },
    Caller { uid: OTHER, gid: GROUP, groups: &[] },
    Caller { uid: OTHER, gid: OTHER, groups: &[7, GROUP] },
    Caller { uid: 0, gid: 0, groups: &[] },
];

type Change = fn(&Path) -> io::Result<()>;

const CHANGES: [(&str, Change); 10] = [
    ("write", |at| open(at)?.write_all(b"xy")),
    ("append", |at| OpenOptions::new().append(true).open(at.join("f"))?.write_all(b"xy")),
    ("ftruncate", |at| open(at)?.set_len(3)),
    ("O_TRUNC", |at| OpenOptions::new().write(true).truncate(true).open(at.join("f")).map(drop)),
    ("fallocate", |at| Ok(fallocate(open(at)?, FallocateFlags::empty(), 0, 20_000)?)),
    ("punch", |at| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(open(at)?, flags, 0, 4096)?)
    }),
    ("copy", |at| {
        let count = copy_file_range(File::open(at.join("from"))?, None, open(at)?, None, 8)?;
        assert_eq!(count, 8);
        Ok(())
    }),
    // Only the owner of a file may call chgrp and chmod, and others get `EPERM`.
    ("chgrp", |at| chown(at.join("f"), None, Some(OTHER))),
    ("chown to nothing", |at| chown(at.join("f"), None, None)),
    ("chmod", |at| fs::set_permissions(at.join("f"), Permissions::from_mode(0o2644))),
];

fn open(at: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).open(at.join("f"))
}

fn change_as<T: Send>(caller: Caller, change: impl FnOnce() -> T + Send) -> T {
    run_as(caller.uid, caller.gid, caller.groups, change)
}

/// Makes all changes as `caller` to files with all modes. Returns the error, the new mode and the
/// new group of each file.
fn collect_left(at: &Path, caller: Caller, owner: u32) -> Vec<String> {
    let mut left = vec![];
    fs::write(at.join("from"), "12345678").expect("the file is created");
    for (what, change) in CHANGES {
        for mode in MODES {
            let file = at.join("f");
            fs::write(&file, vec![1; 10_000]).expect("the file is created");
            chown(&file, Some(owner), Some(GROUP)).expect("root is permitted to");
            fs::set_permissions(&file, Permissions::from_mode(mode)).expect("root is permitted to");
            let done = change_as(caller, || change(at)).map_err(|error| error.kind());
            // Ask only for the mode and the group. A statx(2) for times or the size would make the
            // kernel fetch all attributes again, and so hide an outdated mode in its cache.
            let wanted = StatxFlags::MODE | StatxFlags::GID;
            let now = statx(CWD, &file, AtFlags::empty(), wanted).expect("the file exists");
            let (now, gid) = (now.stx_mode & 0o7777, now.stx_gid);
            left.push(format!("{what} {mode:o}: {done:?} {now:o} {gid}"));
            fs::remove_file(&file).expect("the file exists");
        }
    }
    left
}

fn collect_created(at: &Path, caller: Caller) -> Vec<String> {
    let dir = at.join("dir");
    fs::create_dir(&dir).expect("the directory is created");
    chown(&dir, None, Some(GROUP)).expect("root is permitted to");
    fs::set_permissions(&dir, Permissions::from_mode(0o2777)).expect("root is permitted to");
    let mut made = vec![];
    for mode in [0o2777, 0o2767, 0o6777, 0o755] {
        for kind in [FileType::RegularFile, FileType::Fifo] {
            let path = dir.join("made");
            let bits = Mode::from_raw_mode(mode);
            let done = change_as(caller, || mknodat(CWD, &path, kind, bits, 0));
            let now = fs::metadata(&path).map(|now| (now.mode(), now.gid()));
            made.push(format!("{mode:o} {kind:?}: {done:?} {now:?}", now = now.ok()));
            let _ = fs::remove_file(&path);
        }
    }
    fs::remove_dir(&dir).expect("the directory is empty");
    made
}

fn assert_as_host(source: &str, options: &str) {
    if !can_mount() {
        return;
    }
    rustix::process::umask(Mode::from_raw_mode(0o022));
    let folder = Folder::new();
    let (host, mount) = (folder.path("host"), folder.path("m"));
    let below = folder.path("source");
    for path in [&host, &below] {
        fs::create_dir(path).expect("the directory is created");
    }
    let source = match source {
        "host" => below.display().to_string(),
        "store" => format!("store:{}", folder.path("kept").display()),
        other => other.to_owned(),
    };
    let _server = Server::of(&source, &["-o", options], &mount);
    for caller in CALLERS {
        for owner in [0, OTHER] {
            let expected = collect_left(&host, caller, owner);
            let found = collect_left(&mount, caller, owner);
            assert_eq!(found, expected, "{source} {options} {caller:?} {owner}");
            let is_kept = expected.iter().any(|line| line == "write 2666: Ok(()) 2666 4242");
            let may_keep = caller.uid == 0
                || [caller.gid].iter().chain(caller.groups).any(|&gid| gid == GROUP);
            assert_eq!(is_kept, may_keep, "control: the host decides by group and capability");
        }
        assert_eq!(collect_created(&mount, caller), collect_created(&host, caller), "{caller:?}");
    }
}

/// Writes and changes of owners must clear the set-group-ID bit as on the host, depending on the
/// caller's capabilities. Trap X9 in `traps.md`.
#[test]
fn set_group_id_is_cleared_as_on_the_host_if_the_kernel_checks_permissions() {
    for source in ["tmpfs", "host", "store"] {
        assert_as_host(source, "default_permissions");
    }
}

/// A server that checks permissions itself must clear the set-group-ID bit as the host does. Trap
/// X9 in `traps.md`.
#[test]
fn set_group_id_is_cleared_as_on_the_host_if_the_server_checks_permissions() {
    for source in ["tmpfs", "host"] {
        assert_as_host(source, "no_default_permissions");
    }
}
