//! PostgreSQL servers for tests.
//!
//! A server has a temporary directory, with a Unix socket in it. It has a TCP port only if a test
//! asks for encryption, or for a network. PostgreSQL refuses to run as root, so root runs it as
//! another user. Dropping a [`Postgres`] stops the server, even after a panic, and removes the
//! directory. This module ends only processes that it has started.
//!
//! The server does not sync its files (`fsync=off`), and keeps them in memory if there is space. A
//! killed server loses nothing by that, since the kernel has the written bytes. Only a crash of the
//! machine would lose them. [`Postgres::start_durable`] is for measurements.
//!
//! Source: PostgreSQL, "Reliability and the Write-Ahead Log"; initdb(1), postgres(1); shm_open(3)
//! (`/dev/shm`).

use std::fs;
use std::io::{self, Write as _};
use std::net::TcpListener;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, Weak};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::real::thread;
use crate::require::{Need, skip};

/// The directory in which Debian installs the programs of each version.
const VERSIONS: &str = "/usr/lib/postgresql";
/// The user and group ID as which root runs PostgreSQL, since PostgreSQL refuses to run as root. On
/// Debian, this user has no rights.
const NOBODY: u32 = 65534;
const LIMIT: Duration = Duration::from_secs(120);
/// A directory in memory. The servers of a test binary need a few hundred MiB.
const MEMORY: &str = "/dev/shm";
const MEMORY_BYTES: u64 = 4 << 30;
const DISK: &str = "/tmp";
/// Lines of `postgresql.conf`.
const SETTINGS: &str = "fsync = off\nfull_page_writes = off\nshared_buffers = 64MB\n";
const DURABLE_SETTINGS: &str = "shared_buffers = 64MB\n";
const USER: &str = "corewalk";

/// A running server, or one that was killed.
#[derive(Debug)]
pub struct Postgres {
    folder: PathBuf,
    programs: PathBuf,
    tcp: Option<Tcp>,
    server: Option<Child>,
}

#[derive(Debug)]
struct Tcp {
    address: String,
    port: u16,
    has_tls: bool,
}

impl Tcp {
    fn new(address: &str, has_tls: bool) -> Tcp {
        let free = TcpListener::bind((address, 0)).and_then(|free| free.local_addr());
        let port = free.expect("a port is free").port();
        Tcp { address: address.to_owned(), port, has_tls }
    }
}

impl Postgres {
    /// Makes a server without data, with a new directory in `parent`.
    #[track_caller]
    fn in_new_folder(parent: &str) -> Option<Postgres> {
        let Some(programs) = programs() else {
            skip(Need::Package, "postgresql is not installed");
            return None;
        };
        // The path of a socket has at most 107 bytes, so the directory has a short name.
        let mut number = 0;
        let folder = loop {
            let folder = PathBuf::from(format!("{parent}/cwpg{}.{number}", std::process::id()));
            match fs::create_dir(&folder) {
                Err(error) if error.kind() == io::ErrorKind::AlreadyExists => number += 1,
                made => break made.map(|()| folder).expect("the directory can be written"),
            }
        };
        if is_root() {
            chown(&folder, Some(NOBODY), Some(NOBODY)).expect("root may change owners");
        }
        Some(Postgres { folder, programs, tcp: None, server: None })
    }

    /// Starts a server. Returns None, after a call of [`skip`], if PostgreSQL is not installed.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[track_caller]
    pub fn start() -> Option<Postgres> {
        let mut postgres = Postgres::with_data()?;
        postgres.run();
        Some(postgres)
    }

    /// Starts a server that has its files on disk and syncs them, as one in use does. Returns None,
    /// after a call of [`skip`], if PostgreSQL is not installed.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[track_caller]
    pub fn start_durable() -> Option<Postgres> {
        let mut postgres = Postgres::in_new_folder(DISK)?;
        postgres.make_data(DURABLE_SETTINGS);
        postgres.run();
        Some(postgres)
    }

    /// Starts a server with a TCP port on `localhost`, which accepts encrypted connections with a
    /// certificate and its key. Connections over TCP need a password.
    ///
    /// # Panics
    ///
    /// Panics if the files cannot be read, or the server does not start.
    #[track_caller]
    pub fn start_with_tls(certificate: &Path, key: &Path) -> Option<Postgres> {
        let mut postgres = Postgres::with_data()?;
        let data = postgres.folder.join("d");
        for (from, to) in [(certificate, "server.crt"), (key, "server.key")] {
            let to = data.join(to);
            fs::copy(from, &to).expect("the file of the test is there");
            fs::set_permissions(&to, fs::Permissions::from_mode(0o600)).expect("it is ours");
            if is_root() {
                chown(&to, Some(NOBODY), Some(NOBODY)).expect("root may change owners");
            }
        }
        let rules = "local all all trust\nhost all all all scram-sha-256\n";
        fs::write(data.join("pg_hba.conf"), rules).expect("the directory can be written");
        postgres.tcp = Some(Tcp::new("localhost", true));
        postgres.run();
        Some(postgres)
    }

    /// Starts a server with a TCP port on the address `address` of this machine. Connections to it
    /// need no password and are not encrypted.
    ///
    /// # Panics
    ///
    /// Panics if the machine does not have the address, or the server does not start.
    #[track_caller]
    pub fn start_on(address: &str) -> Option<Postgres> {
        let mut postgres = Postgres::with_data()?;
        let rules = "local all all trust\nhost all all all trust\n";
        let rules = fs::write(postgres.folder.join("d/pg_hba.conf"), rules);
        rules.expect("the directory can be written");
        postgres.tcp = Some(Tcp::new(address, false));
        postgres.run();
        Some(postgres)
    }

    #[track_caller]
    fn with_data() -> Option<Postgres> {
        let postgres = Postgres::in_new_folder(fast_folder())?;
        postgres.make_data(SETTINGS);
        Some(postgres)
    }

    fn make_data(&self, settings: &str) {
        let data = self.folder.join("d");
        let made = self
            .command("initdb")
            .args(["--auth=trust", "--no-sync", "--no-locale", "--encoding=UTF8", "-U", USER])
            .arg("-D")
            .arg(&data)
            .output()
            .expect("initdb is installed");
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        let file = fs::File::options().append(true).open(data.join("postgresql.conf"));
        let written = file.and_then(|mut file| file.write_all(settings.as_bytes()));
        written.expect("the directory of the server can be written");
    }

    /// Returns the TCP port.
    ///
    /// # Panics
    ///
    /// Panics if the server has none.
    pub fn port(&self) -> u16 {
        self.tcp.as_ref().expect("the server has a TCP port").port
    }

    /// Returns a server that the tests of this process share. It stops when the last test drops it.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[track_caller]
    pub fn shared() -> Option<Arc<Postgres>> {
        static SHARED: Mutex<Weak<Postgres>> = Mutex::new(Weak::new());
        let mut shared = SHARED.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(running) = shared.upgrade() {
            return Some(running);
        }
        let started = Arc::new(Postgres::start()?);
        *shared = Arc::downgrade(&started);
        Some(started)
    }

    /// Starts a synchronous standby of this server. From then on, a commit of this server waits
    /// until the standby has it too.
    ///
    /// # Panics
    ///
    /// Panics if the standby does not start.
    pub fn standby(&self) -> Postgres {
        let mut standby = Postgres::in_new_folder(fast_folder()).expect("PostgreSQL is installed");
        standby.follow(self);
        standby
    }

    /// Makes this server, which was killed, the synchronous standby of `primary`. Its own data is
    /// lost.
    ///
    /// # Panics
    ///
    /// Panics if the standby does not start.
    pub fn follow(&mut self, primary: &Postgres) {
        self.kill();
        let data = self.folder.join("d");
        if let Err(error) = fs::remove_dir_all(&data) {
            assert_eq!(error.kind(), io::ErrorKind::NotFound, "the old data is removed");
        }
        primary.sql("postgres", "ALTER SYSTEM SET synchronous_standby_names = '*'");
        primary.sql("postgres", "SELECT pg_reload_conf()");
        let mut command = self.command("pg_basebackup");
        command.arg("-h").arg(&primary.folder).args(["-U", USER, "--no-sync", "-c", "fast", "-R"]);
        let copied = command.arg("-D").arg(&data).output().expect("pg_basebackup is installed");
        assert!(copied.status.success(), "copy: {}", String::from_utf8_lossy(&copied.stderr));
        self.run();
    }

    /// Promotes this standby. Its commits wait until it has a standby itself.
    ///
    /// # Panics
    ///
    /// Panics if PostgreSQL refuses.
    pub fn promote(&self) {
        assert_eq!(self.sql("postgres", "SELECT pg_promote()"), "t");
    }

    /// Returns the host for a URL: the directory of the socket, with `%2F` for each slash. For a
    /// server of [`Postgres::start_on`], returns its address and port.
    pub fn host(&self) -> String {
        if let Some(tcp) = self.tcp.as_ref().filter(|tcp| !tcp.has_tls) {
            return format!("{}:{}", tcp.address, tcp.port);
        }
        self.folder.display().to_string().replace('/', "%2F")
    }

    /// Makes a database, and returns its address without a scheme: `USER@HOST/NAME`.
    ///
    /// # Panics
    ///
    /// Panics if the database cannot be made.
    pub fn new_database(&self, name: &str) -> String {
        let mut command = self.command("createdb");
        let made = command.args(["-h"]).arg(&self.folder).args(["-U", USER, name]).output();
        let made = made.expect("createdb is installed");
        assert!(made.status.success(), "createdb: {}", String::from_utf8_lossy(&made.stderr));
        format!("{USER}@{}/{name}", self.host())
    }

    /// Runs SQL in the database `name`, and returns the rows, one per line.
    ///
    /// # Panics
    ///
    /// Panics if the SQL fails.
    pub fn sql(&self, name: &str, sql: &str) -> String {
        let mut command = self.command("psql");
        command.args(["-h"]).arg(&self.folder).args(["-U", USER, "-d", name]);
        let done = command.args(["-AtqX", "-v", "ON_ERROR_STOP=1", "-c", sql]).output();
        let done = done.expect("psql is installed");
        assert!(done.status.success(), "{sql}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8_lossy(&done.stdout).trim_end().to_owned()
    }

    /// Kills the server and its processes (SIGKILL).
    pub fn kill(&mut self) {
        let Some(mut server) = self.server.take() else { return };
        // Stop the parent first, so that it starts no further process.
        let parent = Pid::from_child(&server);
        let _ = kill_process(parent, Signal::STOP);
        for child in children_of(server.id()) {
            let _ = kill_process(child, Signal::KILL);
        }
        let _ = server.kill();
        let _ = server.wait();
    }

    /// Starts the server again after [`Postgres::kill`].
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    pub fn restart(&mut self) {
        self.run();
    }

    fn command(&self, program: &str) -> Command {
        let mut command = Command::new(self.programs.join(program));
        // The user of the server may lack access to the current directory.
        command.current_dir("/").stdin(Stdio::null());
        if let Some(tcp) = &self.tcp {
            command.env("PGPORT", tcp.port.to_string());
        }
        if is_root() {
            command.uid(NOBODY).gid(NOBODY);
        }
        command
    }

    fn run(&mut self) {
        let log = self.folder.join("log");
        let started = Instant::now();
        loop {
            let out = fs::File::options().create(true).append(true).open(&log);
            let out = out.expect("the directory of the server can be written");
            let mut command = self.command("postgres");
            command.arg("-D").arg(self.folder.join("d")).arg("-k").arg(&self.folder);
            let address = self.tcp.as_ref().map_or("", |tcp| &tcp.address);
            command.arg("-c").arg(format!("listen_addresses={address}"));
            if self.tcp.as_ref().is_some_and(|tcp| tcp.has_tls) {
                command.args(["-c", "ssl=on"]);
            }
            command.stdout(out.try_clone().expect("a file can be cloned")).stderr(out);
            let mut server = command.spawn().expect("postgres is installed");
            while server.try_wait().expect("the server is a child").is_none() {
                if self.is_ready() {
                    self.server = Some(server);
                    return;
                }
                if started.elapsed() > LIMIT {
                    let _ = server.kill();
                    let _ = server.wait();
                    break;
                }
                thread::sleep(Duration::from_millis(50));
            }
            // Try again. The server may have ended because the shared memory of a killed server was
            // still in use.
            let text = fs::read_to_string(&log).unwrap_or_default();
            assert!(started.elapsed() < LIMIT, "the server does not start: {text}");
            thread::sleep(Duration::from_millis(200));
        }
    }

    fn is_ready(&self) -> bool {
        let mut command = self.command("pg_isready");
        command.args(["-q", "-h"]).arg(&self.folder);
        command.status().is_ok_and(|status| status.success())
    }
}

impl Drop for Postgres {
    fn drop(&mut self) {
        if let Some(server) = &mut self.server {
            // SIGINT is a fast shutdown.
            let _ = kill_process(Pid::from_child(server), Signal::INT);
            let start = Instant::now();
            while matches!(server.try_wait(), Ok(None)) && start.elapsed() < LIMIT {
                thread::sleep(Duration::from_millis(20));
            }
        }
        self.kill();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn programs() -> Option<PathBuf> {
    let version = |path: &Path| path.file_name()?.to_str()?.parse::<u32>().ok();
    let found = fs::read_dir(VERSIONS).ok()?.filter_map(|entry| Some(entry.ok()?.path()));
    let newest =
        found.filter(|path| path.join("bin/initdb").exists()).max_by_key(|path| version(path));
    newest.map(|path| path.join("bin"))
}

/// Returns a directory in memory, or one on disk if there is little memory for files.
fn fast_folder() -> &'static str {
    let has_space = |stat: rustix::fs::StatVfs| stat.f_bavail * stat.f_frsize >= MEMORY_BYTES;
    if rustix::fs::statvfs(MEMORY).is_ok_and(has_space) { MEMORY } else { DISK }
}

fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

fn children_of(parent: u32) -> Vec<Pid> {
    let Ok(entries) = fs::read_dir("/proc") else { return Vec::new() };
    let pids = entries.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse::<i32>().ok());
    pids.filter(|pid| {
        let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        // In `/proc/PID/stat`, the name in parentheses may contain spaces. After it come the state
        // and the parent's pid.
        let after = stat.rsplit_once(')').map_or("", |(_, after)| after);
        after.split_whitespace().nth(1) == Some(parent.to_string().as_str())
    })
    .filter_map(Pid::from_raw)
    .collect()
}
