//! A TCP proxy in front of an S3 server. If a test asks for it, the proxy answers that the server
//! is overloaded.

use std::io::{Read as _, Write as _};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use corewalk_base::primitives::thread;
use corewalk_base::primitives::unmodelled::{AtomicBool, AtomicU64, Ordering};
use corewalk_testkit::s3::S3Server;

const ENDPOINT: &str = "AWS_ENDPOINT_URL";
const REFUSAL: &[u8] = b"HTTP/1.1 503 Slow Down\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";

pub(crate) struct Front {
    settings: Vec<(String, String)>,
    address: SocketAddr,
    state: Arc<State>,
}

#[derive(Default)]
struct State {
    is_failing: AtomicBool,
    has_ended: AtomicBool,
    connections: AtomicU64,
    open: AtomicU64,
    most_open: AtomicU64,
}

impl Front {
    pub(crate) fn of(server: &S3Server) -> Front {
        let mut settings = server.settings();
        let endpoint = settings.iter_mut().find(|(name, _)| name == ENDPOINT).unwrap();
        let behind = endpoint.1.trim_start_matches("http://").to_owned();
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        endpoint.1 = format!("http://{address}");
        let state = Arc::new(State::default());
        let shared = state.clone();
        thread::spawn(move || {
            while let Ok((client, _)) = listener.accept() {
                // ORDERING: Relaxed. The flag only ends the loop, and the counts are statistics.
                if shared.has_ended.load(Ordering::Relaxed) {
                    return;
                }
                shared.connections.fetch_add(1, Ordering::Relaxed);
                let open = shared.open.fetch_add(1, Ordering::Relaxed) + 1;
                shared.most_open.fetch_max(open, Ordering::Relaxed);
                let Ok(server) = TcpStream::connect(&behind) else { continue };
                let answers = (server.try_clone().unwrap(), client.try_clone().unwrap());
                let state = shared.clone();
                thread::spawn(move || {
                    forward(client, server, Some(&state));
                    // ORDERING: Relaxed. Statistic; nothing is published through it.
                    state.open.fetch_sub(1, Ordering::Relaxed);
                });
                thread::spawn(move || forward(answers.0, answers.1, None));
            }
        });
        Front { settings, address, state }
    }

    pub(crate) fn settings(&self) -> Vec<(String, String)> {
        self.settings.clone()
    }

    pub(crate) fn connections(&self) -> u64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.state.connections.load(Ordering::Relaxed)
    }

    pub(crate) fn most_open(&self) -> u64 {
        // ORDERING: Relaxed. Statistic; nothing is published through it.
        self.state.most_open.load(Ordering::Relaxed)
    }

    pub(crate) fn fail(&self, is_failing: bool) {
        // ORDERING: Relaxed. If `forward` sees the flag late, only the first refusal is late.
        self.state.is_failing.store(is_failing, Ordering::Relaxed);
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        // ORDERING: Relaxed. The thread reads the flag after it has accepted the connection below.
        self.state.has_ended.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(self.address);
    }
}

fn forward(mut from: TcpStream, mut to: TcpStream, state: Option<&State>) {
    let mut buf = vec![0; 64 << 10];
    while let Ok(count @ 1..) = from.read(&mut buf) {
        // ORDERING: Relaxed. This thread may see a change by `fail` late, which only delays the
        // first refusal.
        if state.is_some_and(|state| state.is_failing.load(Ordering::Relaxed)) {
            let _ = from.write_all(REFUSAL);
            break;
        }
        if to.write_all(&buf[..count]).is_err() {
            break;
        }
    }
    let _ = to.shutdown(Shutdown::Both);
    let _ = from.shutdown(Shutdown::Both);
}
