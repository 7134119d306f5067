//! A file system in a new database, and the calls that a FUSE server makes.

use std::ops::ControlFlow;
use std::sync::Arc;
use std::time::{Duration, Instant};

use corewalk::attr::mode::S_IFDIR;
use corewalk::{Attr, Errno, FileKind, FileSystem as _, Make, Name, Node};
use corewalk_base::primitives::unmodelled::{AtomicU64, Ordering};
use corewalk_cluster::{ClusterFs, ClusterOptions, Unreachable, Url, mkfs};
use corewalk_testkit::postgres::Postgres;
use tempfile::TempDir;

pub(crate) const ROOT: u64 = 1;

pub(crate) struct Site {
    pub(crate) url: String,
    pub(crate) database: String,
    /// The server that several tests share. None if the test has a server of its own.
    pub(crate) postgres: Option<Arc<Postgres>>,
    pub(crate) objects: TempDir,
}

impl Site {
    /// Makes a file system in a new database of the shared server. Returns None if PostgreSQL is
    /// not installed.
    pub(crate) fn new() -> Option<Site> {
        let postgres = Postgres::shared()?;
        let mut site = Site::on(&postgres);
        site.postgres = Some(postgres);
        Some(site)
    }

    pub(crate) fn on(postgres: &Postgres) -> Site {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        // ORDERING: Relaxed. The addition alone makes the names differ.
        let database = format!("t{}", NEXT.fetch_add(1, Ordering::Relaxed));
        let address = postgres.new_database(&database);
        let objects = TempDir::new().unwrap();
        let url = format!("pg://{address}?data=file:{}", objects.path().display());
        mkfs(&Url::parse(&url).unwrap(), (0, 0), false).unwrap();
        Site { url, database, postgres: None, objects }
    }

    pub(crate) fn parsed(&self) -> Url {
        Url::parse(&self.url).unwrap()
    }

    pub(crate) fn open(&self) -> ClusterFs {
        ClusterFs::open(&self.parsed(), &options()).unwrap()
    }

    pub(crate) fn assert_clean(&self) {
        assert_eq!(corewalk_cluster::fsck(&self.parsed(), &[]).unwrap().findings, []);
    }

    pub(crate) fn sql(&self, sql: &str) -> String {
        let sql = format!("SET search_path = corewalk; {sql}");
        self.postgres.as_ref().expect("the shared server").sql(&self.database, &sql)
    }

    pub(crate) fn wait_for(&self, sql: &str) {
        let begin = Instant::now();
        while self.sql(sql) != "t" {
            assert!(begin.elapsed() < Duration::from_secs(60), "never true: {sql}");
        }
    }

    pub(crate) fn session(&self) -> i64 {
        self.sql("SELECT id FROM session WHERE NOT dead").parse().unwrap()
    }
}

/// A primary server and its standby. [`Pair::take_over`] does by hand what Patroni and other
/// managers do when the primary has died.
pub(crate) struct Pair {
    primary: Postgres,
    standby: Postgres,
}

impl Pair {
    pub(crate) fn new() -> Option<(Pair, Site)> {
        let primary = Postgres::start()?;
        let mut site = Site::on(&primary);
        let standby = primary.standby();
        let hosts = format!("{},{}", primary.host(), standby.host());
        let url = site.url.replacen(&primary.host(), &hosts, 1);
        site.url = format!("{url}&target_session_attrs=read-write");
        Some((Pair { primary, standby }, site))
    }

    pub(crate) fn take_over(&mut self) {
        self.primary.kill();
        self.standby.promote();
        self.primary.follow(&self.standby);
        std::mem::swap(&mut self.primary, &mut self.standby);
    }
}

pub(crate) fn takeovers() -> u64 {
    let text = std::env::var("COREWALK_TAKEOVERS");
    text.map_or(2, |text| text.parse().expect("COREWALK_TAKEOVERS is a number"))
}

/// Returns options with which a test fails instead of waiting for ever.
pub(crate) fn options() -> ClusterOptions {
    ClusterOptions::default().with_unreachable(Unreachable::FailAfter(Duration::from_secs(60)))
}

pub(crate) fn dir(ino: u64) -> Node<'static> {
    Node::detached(ino, FileKind::Directory)
}

pub(crate) fn file(ino: u64) -> Node<'static> {
    Node::detached(ino, FileKind::Regular)
}

pub(crate) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub(crate) fn mkdir(fs: &ClusterFs, parent: u64, text: &str) -> Attr {
    fs.make(dir(parent), name(text), &Make::new(S_IFDIR | 0o755, 0, 0)).unwrap()
}

pub(crate) fn create(fs: &ClusterFs, parent: u64, text: &str) -> Attr {
    fs.make(dir(parent), name(text), &Make::new(0o644, 0, 0)).unwrap()
}

pub(crate) fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 251) as u8 ^ (at as u8).wrapping_mul(31) ^ seed).collect()
}

pub(crate) fn write_new(fs: &ClusterFs, parent: u64, text: &str, bytes: &[u8]) -> Attr {
    let made = create(fs, parent, text);
    overwrite(fs, made.ino, 0, bytes).unwrap();
    made
}

pub(crate) fn overwrite(fs: &ClusterFs, ino: u64, at: u64, bytes: &[u8]) -> Result<(), Errno> {
    let opened = fs.open(file(ino), 1)?;
    let node = file(ino).with_handle(opened.handle);
    let mut done = 0;
    while done < bytes.len() {
        let end = bytes.len().min(done + (128 << 10));
        done += fs.write(node, at + done as u64, &bytes[done..end])?;
    }
    let flushed = fs.flush(node);
    fs.release(node);
    flushed
}

pub(crate) fn read(fs: &ClusterFs, ino: u64) -> Vec<u8> {
    let opened = fs.open(file(ino), 0).unwrap();
    let node = file(ino).with_handle(opened.handle);
    let mut bytes = Vec::new();
    let mut buf = vec![0; 128 << 10];
    loop {
        let count = fs.read(node, bytes.len() as u64, &mut buf).unwrap();
        if count == 0 {
            break;
        }
        bytes.extend_from_slice(&buf[..count]);
    }
    fs.flush(node).unwrap();
    fs.release(node);
    bytes
}

pub(crate) fn counter(fs: &ClusterFs, wanted: &str) -> u64 {
    let mut found = None;
    fs.counters(&mut |name, value| {
        if name == wanted {
            found = Some(value);
        }
    });
    found.expect("the counter exists")
}

pub(crate) fn dirty_bytes(fs: &ClusterFs) -> u64 {
    counter(fs, "cluster_dirty_bytes")
}

/// Makes a mount remove unused objects now, and not only after one minute.
pub(crate) fn collect(site: &Site, fs: &ClusterFs) {
    site.sql("UPDATE corewalk.dead_object SET since = since - interval '1 hour'");
    for _ in 0..30 {
        fs.maintain();
    }
}

pub(crate) fn list(fs: &ClusterFs, ino: u64) -> Vec<(String, Attr)> {
    let (mut found, mut last) = (Vec::new(), 0);
    loop {
        let before = found.len();
        fs.readdir(dir(ino), last, &mut |entry| {
            let text = String::from_utf8(entry.name.as_bytes().to_vec()).unwrap();
            found.push((text, entry.attr.unwrap()));
            last = entry.cookie;
            ControlFlow::Continue(())
        })
        .unwrap();
        if found.len() == before {
            return found;
        }
    }
}
