//! An S3 server for tests: versitygw, which keeps the objects in a directory.
//!
//! Source: `go install github.com/versity/versitygw/cmd/versitygw@v1.8.0`, its `--help`.

use std::env;
use std::fs::{self, File};
use std::io::{self, Read as _, Seek as _, SeekFrom};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use crate::real::thread;
use crate::require::{Need, skip};

/// Maximum time until the server accepts connections. It needs 1.5 s on an idle machine.
const PATIENCE: Duration = Duration::from_secs(30);
/// The name of the access log, which no bucket can have. The log has one line per request.
const LOG: &str = "LOG";
const USER: &str = "corewalk";
const SECRET: &str = "corewalk-secret";

#[derive(Debug, Default)]
struct Seen {
    bytes: u64,
    lines: u64,
}

/// A running server with one bucket. Dropping it ends the server and removes the objects.
#[derive(Debug)]
pub struct S3Server {
    child: Child,
    folder: PathBuf,
    address: SocketAddr,
    bucket: PathBuf,
    seen: Mutex<Seen>,
}

impl S3Server {
    /// Starts a server with the empty bucket `bucket`. If versitygw is not installed, calls
    /// [`skip`] and returns `None`.
    ///
    /// # Panics
    ///
    /// Panics if the server does not start.
    #[track_caller]
    pub fn start(bucket: &str) -> Option<S3Server> {
        let Some(program) = program() else {
            skip(Need::Package, "versitygw is not installed");
            return None;
        };
        // Another program may take the free port first. Then the server ends, and another port is
        // tried.
        let server = (0..3).find_map(|_| S3Server::try_start(&program, bucket).ok());
        Some(server.expect("versitygw starts"))
    }

    fn try_start(program: &Path, bucket: &str) -> io::Result<S3Server> {
        let address = TcpListener::bind("127.0.0.1:0")?.local_addr()?;
        let folder = env::temp_dir().join(format!("corewalk-s3-{}", address.port()));
        let bucket = folder.join(bucket);
        fs::create_dir_all(&bucket)?;
        let child = Command::new(program)
            .args(["--port", &address.to_string(), "--access-log"])
            .arg(folder.join(LOG))
            .arg("posix")
            .arg(&folder)
            .env("ROOT_ACCESS_KEY", USER)
            .env("ROOT_SECRET_KEY", SECRET)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()?;
        let mut server = S3Server { child, folder, address, bucket, seen: Mutex::default() };
        let begin = Instant::now();
        while TcpStream::connect(address).is_err() {
            if server.child.try_wait()?.is_some() || begin.elapsed() > PATIENCE {
                return Err(io::ErrorKind::TimedOut.into());
            }
            thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    /// Returns the directory of the bucket. Each file in it is an object.
    pub fn bucket(&self) -> &Path {
        &self.bucket
    }

    /// Returns the number of requests that the server has answered.
    ///
    /// # Errors
    ///
    /// Fails if the log of the server cannot be read.
    pub fn requests(&self) -> io::Result<u64> {
        let mut log = File::open(self.folder.join(LOG))?;
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let mut more = Vec::new();
        log.seek(SeekFrom::Start(seen.bytes))?;
        seen.bytes += log.read_to_end(&mut more)? as u64;
        seen.lines += more.iter().filter(|byte| **byte == b'\n').count() as u64;
        Ok(seen.lines)
    }

    /// Returns the settings of a client, each with the name of its environment variable.
    pub fn settings(&self) -> Vec<(String, String)> {
        let endpoint = format!("http://{}", self.address);
        let pairs = [
            ("AWS_ACCESS_KEY_ID", USER),
            ("AWS_SECRET_ACCESS_KEY", SECRET),
            ("AWS_ENDPOINT_URL", &endpoint),
            ("AWS_REGION", "us-east-1"),
        ];
        pairs.map(|(name, value)| (name.to_owned(), value.to_owned())).to_vec()
    }
}

impl Drop for S3Server {
    fn drop(&mut self) {
        // Ignore an error. It means that the server has already ended.
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn program() -> Option<PathBuf> {
    let path = env::var_os("PATH").unwrap_or_default();
    let home = env::var_os("HOME").map(|home| Path::new(&home).join("go/bin"));
    let folders = env::split_paths(&path).chain(home);
    folders.map(|folder| folder.join("versitygw")).find(|program| program.is_file())
}
