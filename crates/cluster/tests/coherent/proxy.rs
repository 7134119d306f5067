//! A proxy in front of PostgreSQL that can stop forwarding, as a machine that is stopped or cut off
//! looks to the others.

use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, Ordering};
use corewalk_cluster::Url;
use tempfile::TempDir;

/// The name of a socket of PostgreSQL in its directory.
const SOCKET: &str = ".s.PGSQL.5432";

/// A running proxy.
pub(crate) struct Proxy {
    folder: TempDir,
    url: String,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_paused: AtomicBool,
    has_ended: AtomicBool,
}

impl Proxy {
    /// Starts a proxy in front of the server at `url`.
    pub(crate) fn new(url: &str) -> Proxy {
        let start = url.find('@').unwrap() + 1;
        let end = start + url[start..].find('/').unwrap();
        let server = PathBuf::from(url[start..end].replace("%2F", "/")).join(SOCKET);
        let folder = TempDir::with_prefix_in("cwpx", "/tmp").unwrap();
        let listener = UnixListener::bind(folder.path().join(SOCKET)).unwrap();
        let host = folder.path().display().to_string().replace('/', "%2F");
        let url = format!("{}{host}{}", &url[..start], &url[end..]);
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                // ORDERING: Relaxed. The flag only ends the loop.
                if shared.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(server) = UnixStream::connect(&server) else { continue };
                for (from, to) in [(&client, &server), (&server, &client)] {
                    let (from, to) = (from.try_clone().unwrap(), to.try_clone().unwrap());
                    let state = shared.clone();
                    thread::spawn(move || forward(from, to, &state));
                }
            }
        });
        Proxy { folder, url, state }
    }

    /// Returns the URL of the file system behind the proxy.
    pub(crate) fn text(&self) -> &str {
        &self.url
    }

    pub(crate) fn url(&self) -> Url {
        Url::parse(self.text()).unwrap()
    }

    /// Stops or continues to forward.
    pub(crate) fn pause(&self, is_paused: bool) {
        // ORDERING: Relaxed. The instant at which a thread sees the flag does not matter.
        self.state.is_paused.store(is_paused, Ordering::Relaxed);
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.pause(false);
        // ORDERING: Relaxed. The connection below comes after the store.
        self.state.has_ended.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(self.folder.path().join(SOCKET));
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream, state: &State) {
    let mut buf = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buf) {
        // ORDERING: Relaxed. See `pause`.
        while state.is_paused.load(Ordering::Relaxed) {
            thread::sleep(Duration::from_millis(2));
        }
        if to.write_all(&buf[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
