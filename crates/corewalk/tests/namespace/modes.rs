//! Tests of permissions to change a file, and of the resulting modes, in a namespace and on the
//! host.
//!
//! Each caller makes each call of a list, on files of each owner and mode, in a namespace and on
//! the host. The results must be equal. After each call, the file's mode, owner and attribute names
//! must be equal too.
//!
//! The callers are an ordinary user, a user in another group, and users with capabilities. On the
//! host, threads with exactly these privileges make the calls. If the tests do not run as root, the
//! user that runs them is the only caller and owns all files.
//!
//! The namespace is compared with the host's file system for temporary files and the tmpfs in
//! `/dev/shm`. fallocate(2) clears set-user-ID on ext4, but not on tmpfs; corewalk follows ext4.
//!
//! Two calls are left out. Linux lets any caller set an empty `security.capability` on any file;
//! corewalk refuses that. `setattr` cannot express a chown(2) with neither an owner nor a group.
//!
//! Source: chmod(2), chown(2), write(2), truncate(2), utimensat(2), mkdir(2), mknod(2), xattr(7),
//! capabilities(7); Linux since 6.2, `setattr_should_drop_suidgid`, `cap_inode_setxattr`.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};

use corewalk::attr::mode::{S_IFBLK, S_IFCHR, S_IFDIR, S_IFIFO, S_IFMT, S_IFREG};
use corewalk::{
    Caps, Cred, Errno, Fallocate, InodeRef, Make, May, Removal, SetAttr, SetTime, Timespec, Vfs,
    XattrMode,
};
use corewalk_base::primitives::thread;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Mode, OFlags, Timestamps, UTIME_NOW, UTIME_OMIT,
    XattrFlags,
};
use rustix::process::{Gid, Uid, getegid, geteuid, getgroups};
use rustix::thread::{CapabilitySet, CapabilitySets};

use crate::fixtures::{name, new, walk};

const USER: u32 = 65534;
const GROUP: u32 = 7;
const FOREIGN: u32 = 8;

const MODES: [u32; 6] = [0o644, 0o1777, 0o6777, 0o2666, 0o6666, 0o2676];
const PLAIN_MODES: usize = 2;
/// A value of `security.capability` (`VFS_CAP_REVISION_2`, with `CAP_CHOWN` permitted).
const CAPABILITY: &[u8] = &[0, 0, 0, 2, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0];
const ATTRIBUTES: [(&str, &[u8]); 4] = [
    ("user.old", b"1"),
    ("trusted.old", b"2"),
    ("security.old", b"3"),
    ("security.capability", CAPABILITY),
];

#[derive(Clone, Copy, Debug)]
enum Op {
    Write(&'static [u8]),
    Truncate(u64),
    Fallocate,
    Chmod(u32),
    Chown(Option<u32>, Option<u32>),
    Utimes(Option<SetTime>, Option<SetTime>),
    Get(&'static str),
    List,
    Set(&'static str, &'static [u8]),
    Remove(&'static str),
    Make(u32, u64),
}

impl Op {
    fn is_about_attributes(self) -> bool {
        matches!(self, Op::Get(_) | Op::List | Op::Set(..) | Op::Remove(_))
    }

    fn is_plain(self) -> bool {
        self.is_about_attributes() || matches!(self, Op::Utimes(..))
    }

    fn is_indifferent_to(self, caps: Caps) -> bool {
        if caps == Caps::MKNOD {
            return !matches!(self, Op::Make(..));
        }
        (caps == Caps::SYS_ADMIN || caps == Caps::SETFCAP) && !self.is_about_attributes()
    }
}

fn ops() -> Vec<Op> {
    let then = Some(SetTime::At(Timespec { secs: 1_000, nanos: 5 }));
    let now = Some(SetTime::Now);
    let mut ops = vec![Op::Write(b""), Op::Write(b"x"), Op::Fallocate, Op::List];
    ops.extend([0, 5].map(Op::Truncate));
    ops.extend([0o755, 0o2755, 0o2644, 0o7644].map(Op::Chmod));
    ops.extend([Some(USER), Some(0)].map(|uid| Op::Chown(uid, None)));
    ops.extend([USER, 0, GROUP, FOREIGN].map(|gid| Op::Chown(None, Some(gid))));
    ops.push(Op::Chown(Some(USER), Some(GROUP)));
    ops.extend(
        [(now, now), (then, then), (now, then), (None, now), (then, None)]
            .map(|t| Op::Utimes(t.0, t.1)),
    );
    for old in ["user.old", "trusted.old", "security.old", "security.capability"] {
        ops.extend([Op::Get(old), Op::Remove(old)]);
    }
    for none in ["user.none", "trusted.none", "security.none"] {
        ops.extend([Op::Get(none), Op::Remove(none), Op::Set(none, b"v"), Op::Set(none, b"")]);
    }
    ops.extend(["user.old", "trusted.old", "security.old"].map(|old| Op::Set(old, b"new")));
    ops.extend([CAPABILITY, b"bad", &CAPABILITY[1..]].map(|v| Op::Set("security.capability", v)));
    ops.extend([S_IFREG, S_IFDIR, S_IFIFO].map(|kind| Op::Make(kind | 0o7777, 0)));
    ops.extend(
        [S_IFREG | 0o2765, S_IFREG | 0o6706, S_IFDIR | 0o2700].map(|mode| Op::Make(mode, 0)),
    );
    ops.extend(
        [(S_IFCHR, 0), (S_IFCHR, 0x103), (S_IFBLK, 0x103)]
            .map(|(kind, dev)| Op::Make(kind | 0o600, dev)),
    );
    ops
}

fn callers() -> (Vec<Cred>, Vec<(u32, u32)>) {
    let (uid, gid) = (geteuid().as_raw(), getegid().as_raw());
    if uid != 0 {
        let groups: Vec<u32> = getgroups().unwrap().into_iter().map(Gid::as_raw).collect();
        return (vec![Cred::user(uid, gid, &groups)], vec![(uid, gid)]);
    }
    let user = Cred::user(USER, USER, &[]);
    let caps = [
        Caps::empty(),
        Caps::FSETID,
        Caps::CHOWN,
        Caps::FOWNER,
        Caps::CHOWN | Caps::FOWNER,
        Caps::SYS_ADMIN,
        Caps::SETFCAP,
        Caps::MKNOD,
        Caps::DAC_OVERRIDE,
    ];
    // A container may lack some capabilities.
    let ours = rustix::thread::capabilities(None).unwrap().effective;
    let caps = caps.into_iter().filter(|caps| ours.contains(capability_set(*caps)));
    let mut callers: Vec<Cred> = caps.map(|caps| user.clone().with_caps(caps)).collect();
    callers.push(Cred::user(USER, USER, &[GROUP]));
    (callers, vec![(USER, USER), (USER, 0), (USER, GROUP), (0, USER), (0, 0)])
}

fn capability_set(caps: Caps) -> CapabilitySet {
    let all = [
        (Caps::CHOWN, CapabilitySet::CHOWN),
        (Caps::DAC_OVERRIDE, CapabilitySet::DAC_OVERRIDE),
        (Caps::FOWNER, CapabilitySet::FOWNER),
        (Caps::FSETID, CapabilitySet::FSETID),
        (Caps::SYS_ADMIN, CapabilitySet::SYS_ADMIN),
        (Caps::SETFCAP, CapabilitySet::SETFCAP),
        (Caps::MKNOD, CapabilitySet::MKNOD),
    ];
    all.into_iter().filter(|(ours, _)| caps.contains(*ours)).map(|(_, kernels)| kernels).collect()
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Left {
    mode: String,
    uid: u32,
    gid: u32,
    names: BTreeSet<String>,
    made: Option<(String, u32)>,
}

type Answer = Result<Vec<u8>, Errno>;

#[derive(Clone, Copy, Debug)]
struct Start {
    mode: u32,
    owner: (u32, u32),
    has_attributes: bool,
}

fn ours(vfs: &Vfs, cred: &Cred, start: Start, op: Op, umask: u32) -> (Answer, Left) {
    let (root, (uid, gid)) = (Cred::root(), start.owner);
    let (f, _) = vfs.make(&root, &vfs.root(), name("f"), Make::new(start.mode, uid, gid)).unwrap();
    let set = SetAttr::default().with_mode(start.mode & 0o7777);
    vfs.setattr(&root, &f, &set).unwrap();
    for (name, value) in ATTRIBUTES.iter().filter(|_| start.has_attributes) {
        vfs.setxattr(&root, &f, name.as_bytes(), value, XattrMode::Set).unwrap();
    }
    let answer = through_namespace(vfs, cred, &f, op, umask);
    let attr = vfs.getattr(&f).unwrap();
    let made = walk(vfs, "f/n").ok().map(|n| vfs.getattr(&n).unwrap());
    let left = Left {
        mode: octal(attr.mode),
        uid: attr.uid,
        gid: attr.gid,
        names: split(&vfs.listxattr(&root, &f).unwrap()),
        made: made.map(|attr| (octal(attr.mode), attr.gid)),
    };
    let remove = |dir: &InodeRef<'_>, last, is_dir| {
        let removal = if is_dir { Removal::Rmdir } else { Removal::Unlink };
        vfs.remove(&root, dir, name(last), removal).unwrap();
    };
    if let Some(attr) = made {
        remove(&f, "n", attr.is_dir());
    }
    remove(&vfs.root(), "f", attr.is_dir());
    (answer, left)
}

fn through_namespace(vfs: &Vfs, cred: &Cred, f: &InodeRef<'_>, op: Op, umask: u32) -> Answer {
    let set = |set: SetAttr| vfs.setattr(cred, f, &set).map(|_| Vec::new());
    let open = || vfs.open(cred, f, 0, May::WRITE).map(|opened| opened.handle);
    match op {
        Op::Write(bytes) => {
            open().and_then(|h| vfs.write(cred, f, h, 0, bytes)).map(|_| Vec::new())
        }
        Op::Truncate(size) => set(SetAttr::default().with_size(size)),
        Op::Fallocate => open()
            .and_then(|h| vfs.fallocate(cred, f, h, 0, 10, Fallocate::empty()))
            .map(|()| Vec::new()),
        Op::Chmod(mode) => set(SetAttr::default().with_mode(mode)),
        Op::Chown(uid, gid) => set(SetAttr::default().with_uid(uid).with_gid(gid)),
        Op::Utimes(atime, mtime) => set(SetAttr::default().with_atime(atime).with_mtime(mtime)),
        Op::Get(name) => vfs.getxattr(cred, f, name.as_bytes()),
        Op::List => vfs.listxattr(cred, f).map(|names| sorted(&names)),
        Op::Set(name, value) => {
            vfs.setxattr(cred, f, name.as_bytes(), value, XattrMode::Set).map(|()| Vec::new())
        }
        Op::Remove(name) => vfs.removexattr(cred, f, name.as_bytes()).map(|()| Vec::new()),
        Op::Make(mode, rdev) => {
            let what = Make::new(mode, cred.uid, cred.gid).with_umask(umask).with_rdev(rdev);
            vfs.make(cred, f, name("n"), what).map(|_| Vec::new())
        }
    }
}

fn directly(f: &Path, op: Op) -> Answer {
    let open = || rustix::fs::open(f, OFlags::WRONLY, Mode::empty());
    let done = |result: Result<(), Errno>| result.map(|()| Vec::new());
    let mut buf = vec![0; 4096];
    match op {
        Op::Write(bytes) => done(open().and_then(|fd| rustix::io::write(&fd, bytes)).map(drop)),
        Op::Truncate(size) => done(open().and_then(|fd| rustix::fs::ftruncate(&fd, size))),
        Op::Fallocate => {
            done(open().and_then(|fd| rustix::fs::fallocate(&fd, FallocateFlags::empty(), 0, 10)))
        }
        Op::Chmod(mode) => done(rustix::fs::chmod(f, Mode::from_raw_mode(mode))),
        Op::Chown(uid, gid) => {
            done(rustix::fs::chown(f, uid.map(Uid::from_raw), gid.map(Gid::from_raw)))
        }
        Op::Utimes(atime, mtime) => {
            let time = |time| match time {
                None => rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_OMIT },
                Some(SetTime::Now) => rustix::fs::Timespec { tv_sec: 0, tv_nsec: UTIME_NOW },
                Some(SetTime::At(time)) => {
                    rustix::fs::Timespec { tv_sec: time.secs, tv_nsec: time.nanos.into() }
                }
            };
            let times = Timestamps { last_access: time(atime), last_modification: time(mtime) };
            done(rustix::fs::utimensat(CWD, f, &times, AtFlags::empty()))
        }
        Op::Get(name) => {
            let len = rustix::fs::getxattr(f, name, &mut buf[..])?;
            Ok(buf[..len].to_vec())
        }
        Op::List => {
            let len = rustix::fs::listxattr(f, &mut buf[..])?;
            Ok(sorted(&buf[..len]))
        }
        Op::Set(name, value) => done(rustix::fs::setxattr(f, name, value, XattrFlags::empty())),
        Op::Remove(name) => done(rustix::fs::removexattr(f, name)),
        Op::Make(mode, rdev) => {
            let (bits, n) = (Mode::from_raw_mode(mode & 0o7777), f.join("n"));
            done(match mode & S_IFMT {
                S_IFDIR => rustix::fs::mkdir(n, bits),
                _ => rustix::fs::mknodat(CWD, n, FileType::from_raw_mode(mode), bits, rdev),
            })
        }
    }
}

fn split(names: &[u8]) -> BTreeSet<String> {
    let names = std::str::from_utf8(names).unwrap().split('\0').map(str::to_owned);
    names
        .filter(|name| {
            name.ends_with(".old") || name.ends_with(".none") || name == "security.capability"
        })
        .collect()
}

fn sorted(names: &[u8]) -> Vec<u8> {
    split(names).into_iter().collect::<Vec<_>>().join(" ").into_bytes()
}

fn octal(mode: u32) -> String {
    format!("{mode:o}")
}

struct Judge {
    dir: PathBuf,
    is_tmpfs: bool,
    has_attributes: bool,
    /// Whether device nodes can be made in `dir`. In some containers even root cannot make any.
    has_devices: bool,
}

impl Judge {
    fn new(parent: &Path) -> Option<Judge> {
        let dir = parent.join(format!("corewalk-modes-{}", std::process::id()));
        fs::create_dir(&dir).ok()?;
        fs::set_permissions(&dir, fs::Permissions::from_mode(0o755)).unwrap();
        // TMPFS_MAGIC of statfs(2).
        let is_tmpfs = rustix::fs::statfs(&dir).unwrap().f_type == 0x0102_1994;
        let set = |(name, value): &(&str, &[u8])| {
            rustix::fs::setxattr(&dir, *name, value, XattrFlags::empty()).is_ok()
        };
        let has_attributes = ATTRIBUTES.iter().all(set);
        let mode = Mode::from_raw_mode(0o600);
        let has_devices =
            rustix::fs::mknodat(CWD, dir.join("dev"), FileType::CharacterDevice, mode, 0x103)
                .is_ok();
        Some(Judge { dir, is_tmpfs, has_attributes, has_devices })
    }

    fn answers(&self, op: Op) -> bool {
        match op {
            Op::Fallocate => !self.is_tmpfs,
            Op::Make(_, rdev) => rdev == 0 || self.has_devices,
            op => self.has_attributes || !op.is_about_attributes(),
        }
    }

    fn ask(&self, start: Start, ask: impl FnOnce(&Path) -> Answer) -> (Answer, Left) {
        let f = self.dir.join("f");
        match start.mode & S_IFMT {
            S_IFDIR => fs::create_dir(&f).unwrap(),
            _ => drop(fs::File::create_new(&f).unwrap()),
        }
        chown(&f, Some(start.owner.0), Some(start.owner.1)).unwrap();
        fs::set_permissions(&f, fs::Permissions::from_mode(start.mode & 0o7777)).unwrap();
        for (name, value) in ATTRIBUTES.iter().filter(|_| start.has_attributes) {
            rustix::fs::setxattr(&f, *name, value, XattrFlags::empty()).unwrap();
        }
        let answer = ask(&f);
        let mut names = vec![0; 4096];
        let len = rustix::fs::listxattr(&f, &mut names[..]).unwrap_or(0);
        let (attr, names) = (fs::metadata(&f).unwrap(), split(&names[..len]));
        let _ = fs::set_permissions(&f, fs::Permissions::from_mode(0o700));
        let made =
            fs::symlink_metadata(f.join("n")).ok().map(|attr| (octal(attr.mode()), attr.gid()));
        let left = Left { mode: octal(attr.mode()), uid: attr.uid(), gid: attr.gid(), names, made };
        match attr.is_dir() {
            true => fs::remove_dir_all(&f).unwrap(),
            false => fs::remove_file(&f).unwrap(),
        }
        (answer, left)
    }
}

impl Drop for Judge {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn serve(cred: &Cred, calls: &Receiver<(PathBuf, Op)>, answers: &Sender<Answer>) {
    if geteuid().is_root() {
        let (uid, gid) = (Uid::from_raw(cred.uid), Gid::from_raw(cred.gid));
        let groups: Vec<Gid> = cred.groups.iter().copied().map(Gid::from_raw).collect();
        rustix::thread::set_keep_capabilities(true).unwrap();
        rustix::thread::set_thread_groups(&groups).unwrap();
        rustix::thread::set_thread_res_gid(gid, gid, gid).unwrap();
        rustix::thread::set_thread_res_uid(uid, uid, uid).unwrap();
        let (caps, none) = (capability_set(cred.caps), CapabilitySet::empty());
        let sets = CapabilitySets { effective: caps, permitted: caps, inheritable: none };
        rustix::thread::set_capabilities(None, sets).unwrap();
    }
    for (file, op) in calls {
        answers.send(directly(&file, op)).unwrap();
    }
}

/// Returns the umask of the process. umask(2) would change it.
fn umask() -> u32 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let umask = status.lines().find_map(|line| line.strip_prefix("Umask:")).unwrap();
    u32::from_str_radix(umask.trim(), 8).unwrap()
}

#[test]
fn answers_and_modes_are_those_of_the_host() {
    let (callers, owners) = callers();
    let folders = [std::env::temp_dir(), PathBuf::from("/dev/shm")];
    let judges: Vec<Judge> = folders.iter().filter_map(|dir| Judge::new(dir)).collect();
    let (vfs, umask) = (new(), umask());
    let mut answers: BTreeMap<String, u32> = BTreeMap::new();
    let mut differ: BTreeMap<String, (u32, String)> = BTreeMap::new();
    for cred in &callers {
        thread::scope(|scope| {
            let (call, calls) = channel();
            let (answer, answered) = channel();
            scope.spawn(move || serve(cred, &calls, &answer));
            // Move `call` into this closure, so that it is dropped at the closure's end, even after
            // a panic. The drop ends the serving thread.
            let call = call;
            let each = |start: Start, op: Op| {
                let mine = ours(&vfs, cred, start, op, umask);
                *answers.entry(format!("{:?}", mine.0.as_ref().err())).or_default() += 1;
                for judge in judges.iter().filter(|judge| judge.answers(op)) {
                    let right = judge.ask(start, |f| {
                        call.send((f.to_path_buf(), op)).unwrap();
                        answered.recv().unwrap()
                    });
                    if mine != right {
                        let (mode, owner, caps) = (octal(start.mode), start.owner, cred.caps);
                        let text =
                            format!("{caps:?}, {mode} of {owner:?}: {mine:?}, host {right:?}");
                        differ.entry(format!("{op:x?}")).or_insert((0, text)).0 += 1;
                    }
                }
            };
            for_each_start(cred.caps, &owners, each);
        });
    }
    assert!(differ.is_empty(), "{differ:#?}");
    assert!(answers.len() >= 5, "too few kinds of answers occurred: {answers:?}");
    assert!(!judges.is_empty(), "no directory on the host is writable");
}

fn for_each_start(caps: Caps, owners: &[(u32, u32)], mut each: impl FnMut(Start, Op)) {
    for op in ops().into_iter().filter(|op| !op.is_indifferent_to(caps)) {
        let kinds = match op {
            Op::Make(..) => &[S_IFDIR][..],
            _ => &[S_IFREG, S_IFDIR],
        };
        for kind in kinds {
            let modes = if op.is_plain() { &MODES[..PLAIN_MODES] } else { &MODES[..] };
            for mode in modes {
                for &owner in owners {
                    let mode = kind | mode;
                    each(Start { mode, owner, has_attributes: op.is_about_attributes() }, op);
                }
            }
        }
    }
}
