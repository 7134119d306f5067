//! Mounts that are served by processes of their own, and system calls on them.

use std::fs::{self, File};
use std::io::{BufRead as _, BufReader, Read as _};
use std::os::unix::fs::{MetadataExt as _, PermissionsExt as _};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdout, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use corewalk::Errno;
use corewalk_cluster::{ClusterFs, Flaws, Url};
use corewalk_fuse::{Mount, MountOptions, Options};
use corewalk_testkit::reexec;
use rustix::fs::{AtFlags, CWD, FileType, Mode, OFlags, RenameFlags};
use rustix::process::Signal;
use tempfile::TempDir;

use crate::fixtures::options;
use crate::model::{NAMES, Op, Ret};

pub(crate) const KEPT: u32 = 4;
const PATHS: [&str; NAMES] = ["d/a", "e/a", "d/b", "e/b"];
/// How often a call is tried again after [`Errno::STALE`]. A link fails with this error if the
/// kernel may have refused it by mistake.
const TRIES: usize = 1000;

pub(crate) struct Mounted {
    server: Child,
    /// The output of the server process. It is kept open, so that the process can print.
    _output: BufReader<ChildStdout>,
    path: TempDir,
}

fn flaws(name: &str) -> Flaws {
    let mut flaws = Flaws { is_never_busy: true, ..Flaws::default() };
    match name {
        "none" => {}
        "busy" => flaws.is_never_busy = false,
        "hears_nothing" => flaws.hears_nothing = true,
        "keeps_names" => flaws.keeps_kernel_names = true,
        "keeps_attributes" => flaws.keeps_kernel_attributes = true,
        "keeps_before_change" => flaws.keeps_kernel_before_change = true,
        "keeps_after_restart" => flaws.keeps_after_restart = true,
        _ => panic!("unknown flaw {name}"),
    }
    flaws
}

fn variable(name: &str) -> String {
    std::env::var(name).expect("the test sets it")
}

#[test]
fn process_serves_a_mount() {
    if reexec::role().as_deref() != Some("serve") {
        return;
    }
    let url = Url::parse(&variable("MOUNT_URL")).expect("a valid URL");
    let lease = Duration::from_millis(variable("MOUNT_LEASE").parse().expect("a number"));
    let options = options()
        .with_kernel_names(true)
        .with_lease(lease)
        .with_flaws(flaws(&variable("MOUNT_FLAW")));
    let fs = Arc::new(ClusterFs::open(&url, &options).expect("the file system exists"));
    let path = PathBuf::from(variable("MOUNT_PATH"));
    let mount = Mount::new(fs.clone(), &path, Options::shared(), &MountOptions::default());
    let mount = mount.expect("root may mount");
    println!("mounted");
    let _ = std::io::stdin().read_to_end(&mut Vec::new());
    drop(mount);
    fs.close().expect("everything is written");
}

impl Mounted {
    pub(crate) fn new(url: &str, lease: Duration, flaw: &str) -> Mounted {
        let program = std::env::current_exe().expect("the test has a path");
        Mounted::run(Command::new(program), url, lease, flaw)
    }

    /// Mounts in a process that is in the network namespace `name` of ip-netns(8).
    pub(crate) fn in_network(name: &str, url: &str, lease: Duration) -> Mounted {
        let mut command = Command::new("nsenter");
        command.arg(format!("--net=/run/netns/{name}"));
        command.arg(std::env::current_exe().expect("the test has a path"));
        Mounted::run(command, url, lease, "none")
    }

    fn run(mut command: Command, url: &str, lease: Duration, flaw: &str) -> Mounted {
        let path = TempDir::with_prefix("cwkm").expect("a directory is made");
        let mut server = command
            .args(["mounted::process_serves_a_mount", "--exact", "--nocapture"])
            .env(reexec::ROLE_VARIABLE, "serve")
            .env("MOUNT_URL", url)
            .env("MOUNT_LEASE", lease.as_millis().to_string())
            .env("MOUNT_FLAW", flaw)
            .env("MOUNT_PATH", path.path())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("the test starts again");
        let mut output = BufReader::new(server.stdout.take().expect("the stream is piped"));
        let mut line = String::new();
        while !line.contains("mounted\n") {
            line.clear();
            let len = output.read_line(&mut line).expect("the process prints");
            assert!(len > 0, "the process has ended");
        }
        Mounted { server, _output: output, path }
    }

    pub(crate) fn path(&self) -> &Path {
        self.path.path()
    }

    pub(crate) fn signal(&self, signal: Signal) {
        let pid = rustix::process::Pid::from_child(&self.server);
        rustix::process::kill_process(pid, signal).expect("the process runs");
    }

    pub(crate) fn make_round(&self, round: usize) {
        let parent = self.path().join(round.to_string());
        fs::create_dir(&parent).expect("the directory is made");
        for name in ["d", "e"] {
            fs::create_dir(parent.join(name)).expect("the directory is made");
        }
        for owner in 1..=KEPT {
            make_node(&parent.join(kept(owner)), owner).expect("the node is made");
        }
    }

    pub(crate) fn begin_round(&self, round: usize) -> Place {
        let parent = self.path().join(round.to_string());
        let open = |owner| {
            let path = parent.join(kept(owner));
            let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            File::from(rustix::fs::open(path, flags, Mode::empty()).expect("the node is there"))
        };
        let kept = (1..=KEPT).map(open).collect();
        Place { parent, kept }
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        drop(self.server.stdin.take());
        if corewalk_base::primitives::is_panicking() {
            let _ = self.server.kill();
        }
        let _ = self.server.wait();
        // A killed process has left its mount behind. In all other cases umount(8) fails without
        // harm.
        let quiet = || Stdio::null();
        let _ = Command::new("umount").arg("-l").arg(self.path()).stderr(quiet()).status();
    }
}

fn kept(owner: u32) -> String {
    let dir = if owner.is_multiple_of(2) { "d" } else { "e" };
    format!("{dir}/kept{owner}")
}

/// Makes a character device whose minor number is `owner`. The number never changes, so it tells
/// the owner.
fn make_node(path: &Path, owner: u32) -> Result<(), Errno> {
    let device = rustix::fs::makedev(1, owner);
    rustix::fs::mknodat(CWD, path, FileType::CharacterDevice, Mode::RUSR | Mode::WUSR, device)
}

#[derive(Debug)]
pub(crate) struct Place {
    parent: PathBuf,
    /// A descriptor of each kept file, so that calls reach its inode without a path.
    kept: Vec<File>,
}

impl Place {
    fn file(&self, owner: u32) -> &File {
        &self.kept[owner as usize - 1]
    }

    fn link_of(&self, owner: u32) -> String {
        use std::os::fd::AsRawFd as _;
        format!("/proc/self/fd/{}", self.file(owner).as_raw_fd())
    }

    /// Makes the call `op` on the mount. Returns None if the server of the mount is gone. Then the
    /// call may or may not have taken effect.
    pub(crate) fn call(&self, op: Op) -> Option<Ret> {
        let mut last = Errno::STALE;
        for _ in 0..TRIES {
            match self.try_call(op) {
                Ok(ret) => return Some(ret),
                Err(Errno::NOTCONN | Errno::CONNABORTED | Errno::NODEV) => return None,
                Err(errno) => last = errno,
            }
            if last != Errno::STALE {
                break;
            }
        }
        match (op, last) {
            (Op::Lookup(_), Errno::NOENT) => Some(Ret::Found(None)),
            (Op::Move(..), Errno::EXIST) => Some(Ret::Failed(Errno::NOENT)),
            (_, errno) => Some(Ret::Failed(errno)),
        }
    }

    fn try_call(&self, op: Op) -> Result<Ret, Errno> {
        let at = |number: usize| self.parent.join(PATHS[number]);
        match op {
            Op::Create(number, owner) => make_node(&at(number), owner)?,
            Op::Lookup(number) => {
                let found = rustix::fs::lstat(at(number))?;
                return Ok(Ret::Found(Some(rustix::fs::minor(found.st_rdev))));
            }
            Op::Unlink(number) => rustix::fs::unlink(at(number))?,
            Op::Move(from, to) => {
                let flags = RenameFlags::NOREPLACE;
                rustix::fs::renameat_with(CWD, at(from), CWD, at(to), flags)?;
            }
            Op::Link(owner, number) => {
                let flags = AtFlags::SYMLINK_FOLLOW;
                let linked = rustix::fs::linkat(CWD, self.link_of(owner), CWD, at(number), flags);
                if linked == Err(Errno::NOENT) {
                    // A kernel does not count links that other mounts add. If its count is zero, it
                    // refuses link(2), until fstat(2) corrects the count.
                    self.file(owner).metadata().map_err(corewalk::errno_of)?;
                    return Err(Errno::STALE);
                }
                linked?;
            }
            Op::SetMode(owner, mode) => {
                let mode = fs::Permissions::from_mode(mode);
                fs::set_permissions(self.link_of(owner), mode).map_err(corewalk::errno_of)?;
            }
            Op::Get(owner) => {
                let found = self.file(owner).metadata().map_err(corewalk::errno_of)?;
                return Ok(Ret::Attr(found.mode() & 0o777, found.nlink() as u32));
            }
            Op::Remove(..) | Op::Rename(..) | Op::Exchange(..) => {
                unreachable!("the kernel does not do this in one step")
            }
        }
        Ok(Ret::Done)
    }
}
