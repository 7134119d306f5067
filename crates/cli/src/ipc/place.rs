//! The file of a namespace and the folder of its segments.
//!
//! | `--namespace` | file | lifetime |
//! |---|---|---|
//! | NAME | `/dev/shm/corewalk-ipc-UID-NAME`, owned by the user | until `rm --purge` or a reboot |
//! | PATH, with a slash | PATH | until `rm --purge` |
//! | none | a memfd | until no process has it open any more |
//!
//! The file of a namespace must belong to the user; see `open_file`. The command inherits a
//! descriptor of the file. So it still reaches the namespace after setuid(2), when it may no longer
//! open the file by its path.
//!
//! # Shared memory
//!
//! Each namespace with shared memory has an *outer folder*, which contains a folder `segments`. In
//! `segments` there is a file for each segment, with the memory of the segment. The path of the
//! outer folder is the path of the namespace's file with `.shm` at the end. The outer folder of a
//! namespace without a name is in `/dev/shm`, and `exec` removes it when the command has ended.
//!
//! The permissions of an outer folder follow those of the namespace's file: a user who may read the
//! file may enter the folder.
//!
//! All users may write in the folder `segments`. But to reach it by its path, a user must be able
//! to enter the outer folder. The command of `exec` also inherits a descriptor of `segments`. So it
//! can make and attach segments even after it has changed its user.
//!
//! For a namespace without a name, `exec` locks the outer folder (flock(2)) while it runs. If
//! `exec` is killed, the folder stays. The next `ls`, `rm`, `serve` or `exec --shm` (without
//! `--namespace`) of the user removes it, unless a process still has one of its segments attached.
//!
//! The lock on an outer folder shows that its `exec` still runs. The pid of `exec` cannot show it:
//! if several pid namespaces share `/dev/shm`, another process may have the same pid.
//!
//! Source: shm_overview(7), memfd_create(2), flock(2), pid_namespaces(7).

use std::fs::{self, DirBuilder};
use std::io::ErrorKind;
use std::os::fd::{AsRawFd as _, OwnedFd};
use std::os::unix::fs::{DirBuilderExt as _, MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};

use corewalk_ipc::{
    Backing, Cred, Namespace, NamespaceOptions, NoBacking, OpenError, SegmentFiles, Task,
};
use rustix::fs::{FlockOperation, MemfdFlags, Mode, OFlags, fchmod, flock, fstat, open, stat};
use rustix::io::{Errno, FdFlags, fcntl_dupfd_cloexec, fcntl_setfd};
use rustix::process::{Pid, Resource, geteuid, getrlimit, test_kill_process};

use crate::failure::Failure;

/// Environment variable that tells the preload library the path of the namespace's file.
pub(super) const NAMESPACE_ENV: &str = "COREWALK_IPC_NAMESPACE";

/// Environment variable that tells the preload library the path of the folder `segments`.
pub(super) const SHM_ENV: &str = "COREWALK_IPC_SHM";

/// Environment variable that tells the preload library the inherited descriptor of the namespace's
/// file.
pub(super) const FD_ENV: &str = "COREWALK_IPC_FD";

/// Environment variable that tells the preload library the inherited descriptor of the folder
/// `segments`.
pub(super) const SHM_FD_ENV: &str = "COREWALK_IPC_SHM_FD";

/// The usual limit on open files. `hand_on` chooses descriptor numbers below it.
const NUMBERS: u64 = 1024;

const SHM_FOLDER: &str = "/dev/shm";

const SEGMENTS: &str = "segments";

/// The mode of the folder `segments`. All users may write in it, because the permissions of the
/// outer folder decide which users can reach it.
const SEGMENTS_MODE: u32 = 0o777;

const NAMES_TRIED: u32 = 1000;

/// The longest name of a namespace, in bytes. The name of its file has a prefix, and may have 255
/// bytes.
const NAME_MAX: usize = 200;

/// Opens the file of a namespace, or creates it if `flags` contains `CREATE`. `word` is the name or
/// the path on the command line.
///
/// The owner of the file can read and change the whole namespace. So the file must belong to the
/// user. Root may also name another user's file by its path, but not by a name. In `/dev/shm`, any
/// user may create a file of that name.
fn open_file(path: &Path, word: &str, flags: OFlags) -> Result<OwnedFd, OpenError> {
    let flags = flags | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = loop {
        // If `fs.protected_regular` is set, open(2) with `O_CREAT` fails with `EACCES` for another
        // user's file. The first open(2) is without `O_CREAT`, so the check below can report the
        // owner.
        match open(path, flags - OFlags::CREATE, Mode::empty()) {
            Err(Errno::NOENT) if flags.contains(OFlags::CREATE) => {}
            opened => break opened?,
        }
        match open(path, flags | OFlags::EXCL, Mode::RUSR | Mode::WUSR) {
            Err(Errno::EXIST) => {}
            made => break made?,
        }
    };
    let user = geteuid();
    match fstat(&file)?.st_uid == user.as_raw() || is_path(word) && user.is_root() {
        true => Ok(file),
        false => Err(OpenError::OtherUser),
    }
}

fn is_path(word: &str) -> bool {
    word.contains('/')
}

pub(super) fn path(word: &str) -> Result<PathBuf, Failure> {
    if is_path(word) {
        return std::path::absolute(word).map_err(|error| Failure::of(word, error));
    }
    if word.is_empty() || word.len() > NAME_MAX || word.chars().any(char::is_control) {
        return Err(Failure::Usage(format!("'{word}' is not a name for a namespace")));
    }
    // A user who types `.` or `..` means a directory, and not a file in `/dev/shm`.
    if word == "." || word == ".." {
        return Err(Failure::Usage(format!(
            "'{word}' is a folder, not a name for a namespace; a path to a file has a slash in it"
        )));
    }
    let user = rustix::process::geteuid().as_raw();
    Ok(PathBuf::from(format!("/dev/shm/corewalk-ipc-{user}-{word}")))
}

/// Returns the path of the namespace's file, if `rm --purge` may remove this file.
///
/// A file that is named by its path must have the header of a namespace. A file of a name in
/// `/dev/shm` may be removed whatever it contains.
pub(super) fn to_purge(word: &str) -> Result<PathBuf, Failure> {
    let path = path(word)?;
    let failed = |error: OpenError| Failure::of(path.display(), error);
    let file = open_file(&path, word, OFlags::empty()).map_err(|error| absent_or(&path, &error))?;
    let opened = Namespace::open_fd(&file, without_shm());
    match opened {
        Err(error @ (OpenError::NotANamespace | OpenError::Os(_))) if is_path(word) => {
            Err(failed(error))
        }
        _ => Ok(path),
    }
}

fn absent_or(path: &Path, error: &OpenError) -> Failure {
    match error {
        OpenError::Os(Errno::NOENT) => Failure::of(path.display(), "there is no such namespace"),
        error => Failure::of(path.display(), error),
    }
}

pub(super) struct Place {
    pub(super) namespace: Namespace,
    pub(super) path: PathBuf,
    pub(super) shm: PathBuf,
    file: OwnedFd,
    folder: Option<Folder>,
}

/// A locked outer folder in `/dev/shm`, for the segments of a namespace without a name.
///
/// The drop of a `Folder` removes the folder, unless a process still has one of its segments
/// attached. In that case, a later [`Folder::make`] removes it.
pub(super) struct Folder {
    path: PathBuf,
    _lock: OwnedFd,
}

impl Folder {
    /// Makes and locks an outer folder. Before that, removes the folders of killed `exec`
    /// processes.
    pub(super) fn make() -> Result<Self, Failure> {
        Self::make_in(Path::new(SHM_FOLDER)).map_err(|error| Failure::of(SHM_FOLDER, error))
    }

    fn make_in(parent: &Path) -> std::io::Result<Self> {
        remove_orphans_in(parent);
        for number in 0..NAMES_TRIED {
            let path = parent.join(unnamed(std::process::id(), number));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {}
                // In another pid namespace, a process with the same pid may have made a folder of
                // this name. Then try the next name.
                Err(error) if error.kind() == ErrorKind::AlreadyExists => continue,
                Err(error) => return Err(error),
            }
            // As long as the new folder is not locked, another `exec` may take it for the folder of
            // a killed process, and remove it. Then try the next name.
            let Some(lock) = locked(&path) else { continue };
            fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
            make_segments(&path)?;
            return Ok(Self { path, _lock: lock });
        }
        Err(Errno::EXIST.into())
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        if is_attached(&self.path) {
            eprintln!(
                "corewalk: {}: a process has memory here attached; a later exec --shm removes it",
                self.path.display()
            );
            return;
        }
        let _gone = remove_shm(&self.path);
    }
}

/// Opens and locks an outer folder. Returns None if another process has locked, removed or replaced
/// the folder first.
fn locked(path: &Path) -> Option<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(path, flags, Mode::empty()).ok()?;
    flock(&folder, FlockOperation::NonBlockingLockExclusive).ok()?;
    let (own, there) = (fstat(&folder).ok()?, stat(path).ok()?);
    ((own.st_dev, own.st_ino) == (there.st_dev, there.st_ino)).then_some(folder)
}

impl Place {
    pub(super) fn open(word: &str) -> Result<Self, Failure> {
        let path = path(word)?;
        let shm = beside(&path).join(SEGMENTS);
        let opened = open_file(&path, word, OFlags::CREATE)
            .and_then(|file| Ok((Namespace::open_fd(&file, options(&shm))?, file)));
        let (namespace, file) = opened.map_err(|error| Failure::of(path.display(), error))?;
        Ok(Self { namespace, path, shm, file, folder: None })
    }

    pub(super) fn existing(word: Option<&str>) -> Result<Self, Failure> {
        let shm = std::env::var_os(SHM_ENV).filter(|_| word.is_none());
        let path = match (word, std::env::var_os(NAMESPACE_ENV)) {
            (Some(word), _) => path(word)?,
            (None, Some(path)) => PathBuf::from(path),
            (None, None) => {
                return Err(Failure::Usage("which namespace? name it with --namespace".to_owned()));
            }
        };
        let failed = |error: &dyn std::fmt::Display| Failure::of(path.display(), error);
        let file = match word {
            Some(word) if !is_path(word) => open_file(&path, word, OFlags::empty()),
            // This is a path of the command line, or the path in the environment of a command of
            // `exec`. Such a command may have changed its user. So the owner of the file is not
            // checked.
            _ => open(&path, OFlags::RDWR | OFlags::CLOEXEC, Mode::empty()).map_err(Into::into),
        };
        let file = file.map_err(|error| absent_or(&path, &error))?;
        // The path of a memfd is in `/proc`, where there can be no outer folder beside it.
        let is_elsewhere = shm.is_none() && path.starts_with("/proc");
        let shm = shm.map_or_else(|| beside(&path).join(SEGMENTS), PathBuf::from);
        let options = if is_elsewhere { without_shm() } else { options(&shm) };
        let opened = Namespace::open_fd(&file, options);
        let namespace = opened.map_err(|error| failed(&error))?;
        Ok(Self { namespace, path, shm, file, folder: None })
    }

    pub(super) fn hand_on(&self) -> Option<(OwnedFd, String)> {
        hand_on(&self.file)
    }

    pub(super) fn hand_on_shm(&self) -> Option<(OwnedFd, String)> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        hand_on(&open(&self.shm, flags, Mode::empty()).ok()?)
    }

    pub(super) fn register(&self) -> Result<Task, Failure> {
        let groups = rustix::process::getgroups().unwrap_or_default();
        let cred = Cred {
            euid: rustix::process::geteuid().as_raw(),
            egid: rustix::process::getegid().as_raw(),
            groups: groups.into_iter().map(rustix::process::Gid::as_raw).collect(),
            caps: rustix::thread::capabilities(None).map_or(0, |sets| sets.effective.bits()),
        };
        let task = self.namespace.register(cred, std::process::id());
        task.map_err(|error| Failure::of(self.path.display(), error))
    }

    /// Makes a namespace without a name, in a memfd. If `folder` is None, the namespace has no
    /// segments, and programs use the shared memory of the kernel.
    pub(super) fn anonymous(folder: Option<Folder>) -> Result<Self, Failure> {
        let failed = |error: rustix::io::Errno| Failure::of("a namespace in memory", error);
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = rustix::fs::memfd_create("corewalk-ipc", flags).map_err(failed)?;
        rustix::fs::fchmod(&file, Mode::RUSR | Mode::WUSR).map_err(failed)?;
        let shm = folder.as_ref().map_or_else(PathBuf::new, |folder| folder.path.join(SEGMENTS));
        let options = if folder.is_some() { options(&shm) } else { without_shm() };
        let opened = Namespace::open_fd(&file, options);
        let namespace = opened.map_err(|error| Failure::of("a namespace in memory", error))?;
        let path = format!("/proc/{}/fd/{}", std::process::id(), file.as_raw_fd());
        Ok(Self { namespace, path: path.into(), shm, file, folder })
    }

    pub(super) fn make_shm(&self) -> Result<(), Failure> {
        if self.folder.is_some() {
            return Ok(());
        }
        let outer = beside(&self.path);
        let failed = |error: &dyn std::fmt::Display| Failure::of(outer.display(), error);
        let status = fs::metadata(&self.path).map_err(|error| failed(&error))?;
        let bits = status.mode() & 0o666;
        // To enter a folder, a user needs execute permission. Give it to all who may read the file.
        let mode = bits | (bits & 0o444) >> 2;
        match DirBuilder::new().mode(0o700).create(&outer) {
            Ok(()) => {
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(&outer, mode).map_err(|error| failed(&error))?;
                if geteuid().is_root() {
                    let (user, group) = (Some(status.uid()), Some(status.gid()));
                    let given = std::os::unix::fs::chown(&outer, user, group);
                    given.map_err(|error| failed(&error))?;
                }
            }
            Err(error) if error.kind() == ErrorKind::AlreadyExists => {
                check_outer(&outer, status.uid(), mode)?;
            }
            Err(error) => return Err(failed(&error)),
        }
        make_segments(&outer).map_err(|error| failed(&error))
    }

    /// Removes the marks (`exec-PID`) of processes that have ended. A process with segments
    /// attached has such a file in the folder `segments`.
    pub(super) fn remove_marks(&self) {
        for entry in fs::read_dir(&self.shm).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let pid = name.to_str().and_then(|name| name.strip_prefix("exec-")?.parse().ok());
            if pid.and_then(Pid::from_raw).is_some_and(has_ended) {
                let _gone = fs::remove_file(entry.path());
            }
        }
    }
}

/// Duplicates a descriptor for the command of `exec`. Also returns its description for the preload
/// library: the number of the duplicate, and the device and inode of its file. Returns None if the
/// process can open no more descriptors.
///
/// The number is high, because programs expect low numbers for the files that they open.
fn hand_on(file: &OwnedFd) -> Option<(OwnedFd, String)> {
    let limit = getrlimit(Resource::Nofile).current.unwrap_or(NUMBERS).min(NUMBERS);
    let least = i32::try_from(limit / 8 * 7).ok()?;
    let handed = fcntl_dupfd_cloexec(file, least).ok()?;
    fcntl_setfd(&handed, FdFlags::empty()).ok()?;
    let status = fstat(&handed).ok()?;
    let word = format!("{}:{}:{}", handed.as_raw_fd(), status.st_dev, status.st_ino);
    Some((handed, word))
}

/// Checks the owner and the permissions of an existing outer folder.
///
/// Every user who may enter the outer folder can reach all segments. So only users who may read the
/// namespace's file may enter it. The folder must belong to the owner of the namespace.
fn check_outer(outer: &Path, owner: u32, mode: u32) -> Result<(), Failure> {
    let failed = |error: &dyn std::fmt::Display| Failure::of(outer.display(), error);
    let status = fs::symlink_metadata(outer).map_err(|error| failed(&error))?;
    if !status.is_dir() {
        return Err(failed(&"the memory of segments needs a folder of this name"));
    }
    if status.uid() != owner {
        return Err(failed(&"the folder for the memory of segments is another user's"));
    }
    if status.mode() & 0o777 & !(mode | 0o700) != 0 {
        return Err(failed(
            &"the folder for the memory of segments is open to users who may not read the namespace",
        ));
    }
    Ok(())
}

fn make_segments(outer: &Path) -> std::io::Result<()> {
    let segments = outer.join(SEGMENTS);
    match DirBuilder::new().mode(0o700).create(&segments) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    // Do not follow a symbolic link: each user who may write in `outer` can put one there.
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let folder = open(&segments, flags, Mode::empty())?;
    let owner = fs::metadata(outer)?;
    if geteuid().is_root() {
        std::os::unix::fs::fchown(&folder, Some(owner.uid()), Some(owner.gid()))?;
    }
    Ok(fchmod(&folder, Mode::from_raw_mode(SEGMENTS_MODE))?)
}

fn options(shm: &Path) -> NamespaceOptions {
    let backing: Box<dyn Backing> = Box::new(SegmentFiles::new(shm));
    NamespaceOptions { backing: Some(backing), ..NamespaceOptions::default() }
}

fn without_shm() -> NamespaceOptions {
    NamespaceOptions { backing: Some(Box::new(NoBacking)), ..NamespaceOptions::default() }
}

pub(super) fn beside(path: &Path) -> PathBuf {
    let mut folder = path.as_os_str().to_owned();
    folder.push(".shm");
    folder.into()
}

fn unnamed(pid: u32, number: u32) -> String {
    let prefix = unnamed_prefix();
    if number == 0 { format!("{prefix}{pid}") } else { format!("{prefix}{pid}-{number}") }
}

fn unnamed_prefix() -> String {
    format!("corewalk-shm-{}-", geteuid().as_raw())
}

fn has_ended(pid: Pid) -> bool {
    if test_kill_process(pid) == Err(Errno::SRCH) {
        return true;
    }
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    stat.rsplit_once(')').is_some_and(|(_, fields)| fields.trim_start().starts_with(['Z', 'X']))
}

/// Removes the folders of killed `exec` processes: those without a lock and without an attached
/// segment.
pub(super) fn remove_orphans() {
    remove_orphans_in(Path::new(SHM_FOLDER));
}

fn remove_orphans_in(folder: &Path) {
    let prefix = unnamed_prefix();
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        if !entry.file_name().to_str().is_some_and(|name| name.starts_with(&prefix)) {
            continue;
        }
        let path = entry.path();
        let is_own = fs::symlink_metadata(&path)
            .is_ok_and(|status| status.is_dir() && status.uid() == geteuid().as_raw());
        // Hold the lock until the folder is removed. Otherwise a new `exec` could make a folder of
        // the same name, and this process would remove it.
        let lock = if is_own { locked(&path) } else { None };
        if lock.is_some() && !is_attached(&path) {
            let _gone = remove_shm(&path);
        }
    }
}

fn is_attached(outer: &Path) -> bool {
    let folder = outer.join(SEGMENTS);
    let files = SegmentFiles::new(&folder);
    let names = fs::read_dir(&folder).into_iter().flatten().flatten();
    let tasks = names.filter_map(|entry| {
        entry.file_name().to_str().and_then(|name| name.strip_prefix("task-")?.parse().ok())
    });
    tasks.into_iter().any(|task| files.is_held(task))
}

/// Removes an outer folder, and the files of the preload library in it. If there are other files,
/// they and the folders stay, and the function returns an error.
pub(super) fn remove_shm(outer: &Path) -> std::io::Result<()> {
    let folder = outer.join(SEGMENTS);
    for entry in fs::read_dir(&folder).into_iter().flatten().flatten() {
        let name = entry.file_name().into_string().unwrap_or_default();
        let is_number = |word: &str| !word.is_empty() && word.bytes().all(|b| b.is_ascii_digit());
        let is_ours = name.split_once('-').is_some_and(|(first, second)| {
            (["exec", "task"].contains(&first) || is_number(first)) && is_number(second)
        });
        if is_ours {
            let _gone = fs::remove_file(entry.path());
        }
    }
    // Ignore an error: if `folder` cannot be removed, the removal of `outer` fails, too.
    let _gone = fs::remove_dir(&folder);
    fs::remove_dir(outer)
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Parent(PathBuf);

    impl Parent {
        fn new(name: &str) -> Self {
            let path = std::env::temp_dir().join(format!("corewalk-{name}-{}", std::process::id()));
            fs::create_dir_all(&path).expect("a folder of ours");
            Self(path)
        }

        fn folder(&self, pid: u32) -> PathBuf {
            let path = self.0.join(unnamed(pid, 0));
            let segments = path.join(SEGMENTS);
            fs::create_dir_all(&segments).expect("a folder of ours");
            for name in ["3-14", "exec-159", "task-26"] {
                fs::write(segments.join(name), "").expect("a folder of ours");
            }
            path
        }
    }

    impl Drop for Parent {
        fn drop(&mut self) {
            let _gone = fs::remove_dir_all(&self.0);
        }
    }

    #[test]
    fn folders_that_nobody_has_are_removed_and_others_are_not() {
        let parent = Parent::new("orphans");
        // Four of the pids are too high for any process. Pid 1 exists, but holds no lock on its
        // folder, so that folder must be removed too.
        let high = i32::MAX as u32;
        let paths = [high, high - 1, high - 2, high - 3, 1].map(|pid| parent.folder(pid));
        // The file `letter` is not from the preload library, so it and its folder must stay.
        fs::write(paths[1].join(SEGMENTS).join("letter"), "").expect("a folder of ours");
        let lock = locked(&paths[2]).expect("nobody has it");
        let hold = SegmentFiles::new(paths[3].join(SEGMENTS)).hold(26).expect("nobody has it");
        remove_orphans_in(&parent.0);
        let there = || paths.each_ref().map(|path| path.exists());
        assert_eq!(there(), [false, true, true, true, false]);
        let count =
            |at: usize| fs::read_dir(paths[at].join(SEGMENTS)).expect("it is there").count();
        assert_eq!([count(1), count(2)], [1, 3]);
        drop((lock, hold));
        remove_orphans_in(&parent.0);
        assert_eq!(there(), [false, true, false, false, false]);
    }

    #[test]
    fn folder_that_somebody_is_attached_to_goes_with_one_that_is_made_later() {
        let parent = Parent::new("attached");
        let make = || Folder::make_in(&parent.0).expect("there are names");
        let ours = make();
        let path = ours.path.join(SEGMENTS);
        fs::write(path.join("3-14"), "").expect("a folder of ours");
        let hold = SegmentFiles::new(&path).hold(26).expect("nobody has it");
        drop(ours);
        drop(make());
        assert!(path.join("3-14").exists());
        drop(hold);
        drop(make());
        assert!(!path.exists() && fs::read_dir(&parent.0).expect("it is there").count() == 0);
    }

    #[test]
    fn folder_of_another_with_the_same_pid_is_left_alone() {
        let parent = Parent::new("same-pid");
        let theirs = parent.folder(std::process::id());
        let lock = locked(&theirs).expect("nobody has it");
        let ours = Folder::make_in(&parent.0).expect("there are more names");
        assert!(ours.path != theirs && ours.path.is_dir() && theirs.join("segments/3-14").exists());
        assert!(locked(&ours.path).is_none(), "it is locked");
        let gone = ours.path.clone();
        drop((ours, lock));
        assert!(!gone.exists());
    }

    #[test]
    fn name_leads_to_shared_memory_and_path_is_taken_as_it_is() {
        let path_of = |word: &str| path(word).map(|path| path.to_string_lossy().into_owned());
        let user = rustix::process::geteuid().as_raw();
        assert_eq!(path_of("db"), Ok(format!("/dev/shm/corewalk-ipc-{user}-db")));
        assert_eq!(path_of("/tmp/x"), Ok("/tmp/x".to_owned()));
        assert!(path_of("./x").is_ok_and(|path| path.starts_with('/') && path.ends_with("/x")));
        for bad in ["", ".", "..", "a\nb", &"n".repeat(201)] {
            assert!(matches!(path_of(bad), Err(Failure::Usage(_))), "{bad:?}");
        }
    }
}
