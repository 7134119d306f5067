//! A proxy in front of PostgreSQL. It can stop forwarding, which looks like a machine that is
//! stopped or cut off. It can delay each message, as a network does, and it counts the bytes.
//!
//! The proxy listens on a socket in a directory of its own, and has two threads per connection.
//! Messages of one connection are delayed one after the other. So the delay is exact for a client
//! that waits for each answer. A client that sends without waiting is slowed down more.

use std::fs;
use std::io::{Read as _, Write as _};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crate::real::atomic::{AtomicBool, AtomicU64, Ordering};
use crate::real::thread;

/// The file name of PostgreSQL's socket.
const SOCKET: &str = ".s.PGSQL.5432";

/// A running proxy.
#[derive(Debug)]
pub struct Proxy {
    folder: PathBuf,
    url: String,
    state: Arc<State>,
}

#[derive(Debug, Default)]
struct State {
    is_paused: AtomicBool,
    has_ended: AtomicBool,
    delay_us: AtomicU64,
    bytes: AtomicU64,
    /// How often `cut` has dropped messages.
    cuts: AtomicU64,
}

impl Proxy {
    /// Starts a proxy in front of the server of `url`. The URL is `USER@HOST/DATABASE`, with the
    /// path of a socket as host. A scheme and parameters are allowed.
    ///
    /// # Panics
    ///
    /// Panics if `url` has another form, or if the socket cannot be made.
    pub fn new(url: &str) -> Proxy {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        let start = url.find('@').expect("a user") + 1;
        let end = start + url[start..].find('/').expect("a database");
        let server = PathBuf::from(url[start..end].replace("%2F", "/")).join(SOCKET);
        // ORDERING: Relaxed. The addition alone makes the names differ.
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        // The path of a socket has at most 107 bytes, so the directory has a short name.
        let folder = Path::new("/tmp").join(format!("cwpx{}.{number}", std::process::id()));
        fs::create_dir(&folder).expect("/tmp can be written");
        let listener = UnixListener::bind(folder.join(SOCKET)).expect("the directory is new");
        let host = folder.display().to_string().replace('/', "%2F");
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
                    let (Ok(from), Ok(to)) = (from.try_clone(), to.try_clone()) else { continue };
                    let state = shared.clone();
                    thread::spawn(move || forward(from, to, &state));
                }
            }
        });
        Proxy { folder, url, state }
    }

    /// Returns the URL with the socket of the proxy as host.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// Stops or continues to forward.
    pub fn pause(&self, is_paused: bool) {
        // ORDERING: Relaxed. It does not matter how soon a thread sees the flag.
        self.state.is_paused.store(is_paused, Ordering::Relaxed);
    }

    /// Ends a pause by a *cut*: drops the messages that the pause held back, and closes their
    /// connections.
    pub fn cut(&self) {
        // ORDERING: Relaxed. The Release store of `is_paused` below publishes the count to
        // `forward`.
        self.state.cuts.fetch_add(1, Ordering::Relaxed);
        // ORDERING(cut): Release, for the Acquire load of `is_paused` in `forward`. A thread that
        // sees the end of the pause must also see the cut, or it would forward the messages.
        self.state.is_paused.store(false, Ordering::Release);
    }

    /// Delays each further message by `delay`, in both directions.
    pub fn delay(&self, delay: Duration) {
        // ORDERING: Relaxed. It does not matter how soon a thread sees the new delay.
        self.state.delay_us.store(delay.as_micros() as u64, Ordering::Relaxed);
    }

    /// Returns the number of bytes that were forwarded in both directions.
    pub fn bytes(&self) -> u64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.state.bytes.load(Ordering::Relaxed)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.pause(false);
        // ORDERING: Relaxed. The accepting thread loads the flag after the connection below, which
        // comes after this store.
        self.state.has_ended.store(true, Ordering::Relaxed);
        let _ = UnixStream::connect(self.folder.join(SOCKET));
        let _ = fs::remove_dir_all(&self.folder);
    }
}

fn forward(mut from: UnixStream, mut to: UnixStream, state: &State) {
    let mut buf = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buf) {
        // ORDERING: Relaxed. Only a cut after this load drops the message.
        let cuts = state.cuts.load(Ordering::Relaxed);
        // ORDERING(cut): Acquire, for the Release store in `cut`. Without it, the thread could see
        // the end of the pause but not the cut, and forward the message.
        while state.is_paused.load(Ordering::Acquire) {
            thread::sleep(Duration::from_millis(2));
        }
        // ORDERING: Relaxed. The Acquire load of `is_paused` above makes the new count visible,
        // because `cut` increases the count before it ends the pause.
        if state.cuts.load(Ordering::Relaxed) != cuts {
            break;
        }
        // ORDERING: Relaxed. It does not matter how soon the thread sees a new delay.
        let delay_us = state.delay_us.load(Ordering::Relaxed);
        if delay_us > 0 {
            thread::sleep(Duration::from_micros(delay_us));
        }
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        state.bytes.fetch_add(count as u64, Ordering::Relaxed);
        if to.write_all(&buf[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(std::net::Shutdown::Both);
    let _ = from.shutdown(std::net::Shutdown::Both);
}
