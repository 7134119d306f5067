//! A read-only file system over HTTP: shows the files of a web server that lists its directories as
//! JSON, as nginx does with `autoindex on; autoindex_format json;`.
//!
//! ```console
//! mkdir /tmp/http
//! cargo run -p corewalk-fuse --example http -- http://localhost:8080 /tmp/http
//! ```
//!
//! Any number of reads may wait for the web server, and none of them needs a thread. If a client is
//! killed, this program drops its request to the web server.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use corewalk::{Attr, Errno, Name, attr::mode::S_IFMT};
use corewalk_fuse::{
    AsyncFileSystem, AsyncNode, MountOptions, Options, OwnedDirEntry, serve_async,
};
use http_body_util::{BodyExt as _, Empty};
use hyper::{Request, StatusCode, header::RANGE};
use hyper_util::client::legacy::{Client, connect::HttpConnector};
use hyper_util::rt::TokioExecutor;
use serde::Deserialize;

/// How long the kernel may use names and attributes.
const TTL: Duration = Duration::from_secs(10);

pub(crate) struct Http {
    base: String,
    client: Client<HttpConnector, Empty<Bytes>>,
}

#[derive(Deserialize)]
struct Entry {
    name: String,
    #[serde(rename = "type")]
    kind: String,
    #[serde(default)]
    size: u64,
}

impl Entry {
    /// Returns the attributes of this entry. The inode number in them is 0, so `corewalk-fuse`
    /// assigns one.
    fn attr(&self) -> Attr {
        let attr = match &*self.kind {
            "directory" => Attr::dir(0),
            _ => Attr::file(0, self.size),
        };
        attr.with_mode(attr.mode & S_IFMT | if attr.is_dir() { 0o555 } else { 0o444 })
    }
}

impl Http {
    pub(crate) fn new(base: &str) -> Http {
        let client = Client::builder(TokioExecutor::new()).build_http();
        Http { base: base.trim_end_matches('/').to_owned(), client }
    }

    async fn get(&self, path: &[u8], range: Option<(u64, u64)>) -> Result<Bytes, Errno> {
        let mut url = self.base.clone();
        for &byte in path {
            match byte {
                b'/' | b'.' | b'-' | b'_' | b'0'..=b'9' | b'a'..=b'z' | b'A'..=b'Z' => {
                    url.push(byte.into());
                }
                _ => url.push_str(&format!("%{byte:02X}")),
            }
        }
        let mut request = Request::get(url);
        if let Some((first, last)) = range {
            request = request.header(RANGE, format!("bytes={first}-{last}"));
        }
        let request = request.body(Empty::new()).map_err(|_| Errno::INVAL)?;
        let answer = self.client.request(request).await.map_err(|_| Errno::IO)?;
        match (answer.status(), range) {
            (StatusCode::OK, None) | (StatusCode::PARTIAL_CONTENT, Some(_)) => {
                let body = answer.into_body().collect().await;
                Ok(body.map_err(|_| Errno::IO)?.to_bytes())
            }
            // The range begins after the end of the file, so there is nothing to read.
            (StatusCode::RANGE_NOT_SATISFIABLE, _) => Ok(Bytes::new()),
            (StatusCode::NOT_FOUND, _) => Err(Errno::NOENT),
            (StatusCode::FORBIDDEN | StatusCode::UNAUTHORIZED, _) => Err(Errno::ACCESS),
            _ => Err(Errno::IO),
        }
    }

    async fn list(&self, path: &[u8]) -> Result<Vec<Entry>, Errno> {
        let path = if path == b"/" { b"/".to_vec() } else { [path, b"/"].concat() };
        serde_json::from_slice(&self.get(&path, None).await?).map_err(|_| Errno::IO)
    }

    async fn find(&self, path: &[u8], name: &[u8]) -> Result<Attr, Errno> {
        let entries = self.list(path).await?;
        let entry = entries.iter().find(|entry| entry.name.as_bytes() == name);
        entry.map(Entry::attr).ok_or(Errno::NOENT)
    }
}

impl AsyncFileSystem for Http {
    async fn root(&self) -> Result<Attr, Errno> {
        Ok(Attr::dir(0))
    }

    async fn lookup(&self, dir: &AsyncNode, name: Name<'_>) -> Result<Attr, Errno> {
        self.find(&dir.path()?, name.as_bytes()).await
    }

    async fn getattr(&self, node: &AsyncNode) -> Result<Attr, Errno> {
        let path = node.path()?;
        match path.iter().rposition(|&byte| byte == b'/') {
            Some(0) if path.len() == 1 => self.root().await,
            Some(0) => self.find(b"/", &path[1..]).await,
            Some(slash) => self.find(&path[..slash], &path[slash + 1..]).await,
            None => Err(Errno::STALE),
        }
    }

    async fn readdir(&self, dir: &AsyncNode, cookie: u64) -> Result<Vec<OwnedDirEntry>, Errno> {
        let entries = self.list(&dir.path()?).await?;
        let numbered = entries.iter().zip(1..).skip(cookie as usize);
        let entry = |(entry, at): (&Entry, u64)| {
            OwnedDirEntry::from_attr(entry.name.as_bytes(), entry.attr(), at)
        };
        Ok(numbered.map(entry).collect())
    }

    async fn read(&self, node: &AsyncNode, offset: u64, size: u32) -> Result<Bytes, Errno> {
        self.get(&node.path()?, Some((offset, offset + u64::from(size) - 1))).await
    }
}

fn main() -> anyhow::Result<()> {
    let words: Vec<String> = std::env::args().skip(1).collect();
    let [base, point] = &words[..] else { anyhow::bail!("usage: http URL MOUNTPOINT") };
    println!("serving on {point}; end it with umount or Ctrl-C");
    let runtime = tokio::runtime::Runtime::new()?;
    let handle = runtime.handle().clone();
    let spawn = move |future| drop(handle.spawn(future));
    let options = Options::shared().with_entry_timeout(TTL).with_attr_timeout(TTL);
    let (fs, mount) = (Arc::new(Http::new(base)), MountOptions::default());
    Ok(serve_async(fs, Path::new(point), options, &mount, spawn)?)
}
