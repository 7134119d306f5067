//! A test of the example `http`, with a web server in the test.

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::FileExt as _;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::{Errno, errno_of};
use corewalk_base::primitives::thread;
use corewalk_fuse::Options;

use crate::site::{AsyncSite, async_mount_options};

#[path = "../../examples/http.rs"]
#[expect(dead_code, reason = "the example's own main")]
mod example;

const LARGE_BYTES: usize = 300_000;
const SLOW: Duration = Duration::from_millis(1500);

fn large(at: usize) -> u8 {
    (at % 251) as u8
}

fn content(path: &str) -> Option<Vec<u8>> {
    let json = |entries: &str| Some(format!("[{entries}]").into_bytes());
    match path {
        "/" => json(
            r#"{"name":"dir","type":"directory","mtime":"Wed, 11 Nov 2026 00:00:00 GMT"},
            {"name":"small","type":"file","mtime":"Wed, 11 Nov 2026 00:00:00 GMT","size":5},
            {"name":"slow","type":"file","size":4}"#,
        ),
        "/dir/" => json(&format!(r#"{{"name":"a b.bin","type":"file","size":{LARGE_BYTES}}}"#)),
        "/small" => Some(b"hello".to_vec()),
        "/slow" => {
            thread::sleep(SLOW);
            Some(b"slow".to_vec())
        }
        "/dir/a%20b.bin" => Some((0..LARGE_BYTES).map(large).collect()),
        _ => None,
    }
}

fn answer(stream: TcpStream) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream.try_clone()?);
    let mut stream = stream;
    loop {
        let (mut first, mut range) = (String::new(), None);
        if reader.read_line(&mut first)? == 0 {
            return Ok(());
        }
        loop {
            let mut line = String::new();
            reader.read_line(&mut line)?;
            if line.trim().is_empty() {
                break;
            }
            let line = line.to_ascii_lowercase();
            if let Some(bytes) = line.strip_prefix("range: bytes=") {
                let (first, last) = bytes.trim().split_once('-').expect("a range");
                range = Some((first.parse::<usize>().unwrap(), last.parse::<usize>().unwrap()));
            }
        }
        let path = first.split(' ').nth(1).expect("a path");
        let (status, body) = match (content(path), range) {
            (None, _) => ("404 Not Found", Vec::new()),
            (Some(body), None) => ("200 OK", body),
            (Some(body), Some((first, _))) if first >= body.len() => {
                ("416 Range Not Satisfiable", Vec::new())
            }
            (Some(body), Some((first, last))) => {
                ("206 Partial Content", body[first..body.len().min(last + 1)].to_vec())
            }
        };
        write!(stream, "HTTP/1.1 {status}\r\nContent-Length: {}\r\n\r\n", body.len())?;
        stream.write_all(&body)?;
    }
}

fn web_server() -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("listen");
    let address = listener.local_addr().expect("an address");
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            thread::spawn(move || drop(answer(stream)));
        }
    });
    format!("http://{address}/")
}

#[test]
fn async_http_shows_the_files_of_a_web_server() {
    let options = Options::shared().with_entry_timeout(SLOW).with_attr_timeout(SLOW);
    let fs = Arc::new(example::Http::new(&web_server()));
    let Some(site) = AsyncSite::new(fs, options, &async_mount_options()) else { return };
    let path = |name: &str| site.path(name);
    let mut names: Vec<_> =
        fs::read_dir(path("")).unwrap().map(|entry| entry.unwrap().file_name()).collect();
    names.sort();
    assert_eq!(names, ["dir", "slow", "small"]);
    assert_eq!(fs::read_to_string(path("small")).unwrap(), "hello");
    assert_eq!(fs::metadata(path("missing")).map_err(errno_of).err(), Some(Errno::NOENT));
    assert_eq!(fs::write(path("small"), "x").map_err(errno_of).err(), Some(Errno::ROFS));
    let read = fs::read(path("dir/a b.bin")).unwrap();
    assert!(read.into_iter().eq((0..LARGE_BYTES).map(large)));
    let mut tail = [0; 100];
    let file = fs::File::open(path("dir/a b.bin")).unwrap();
    assert_eq!(file.read_at(&mut tail, LARGE_BYTES as u64 - 7).unwrap(), 7);
    assert_eq!(tail[0], large(LARGE_BYTES - 7));

    // A slow read delays no other request.
    let slow = path("slow");
    let reading = thread::spawn(move || fs::read_to_string(slow));
    site.wait_for("the read waits", |waiting| waiting > 0);
    let begin = Instant::now();
    assert_eq!(fs::metadata(path("small")).unwrap().len(), 5);
    assert!(begin.elapsed() < SLOW / 2, "{:?}", begin.elapsed());
    assert_eq!(reading.join().unwrap().unwrap(), "slow");
    drop(file);
}
