//! The URL of a cluster file system, and the options of a mount.
//!
//! A URL is `pg://USER@HOST:PORT/DATABASE?data=WHERE`. `data` says where the contents of large
//! files are. `mkfs` stores `data` in the database, so a mount need not give it. `address.rs` reads
//! `sslmode` and `sslrootcert`. The PostgreSQL client reads all other parameters. It allows several
//! hosts, the path of a socket as host, and parameters of libpq, such as `connect_timeout`.
//!
//! A URL contains no password, because command lines and mount tables show it.
//!
//! Source: libpq, "Connection URIs"; nfs(5) for `hard`, `soft` and `timeo`.

use std::path::PathBuf;
use std::time::Duration;

use crate::address::Address;

/// The scheme of a URL.
pub const SCHEME: &str = "pg://";
/// The start of the value of `data=` for a directory.
const FILE: &str = "file:";
/// The start of the value of `data=` for a bucket of S3.
const S3: &str = "s3://";

/// The address of a cluster file system.
///
/// # Examples
/// ```
/// use corewalk_cluster::Url;
///
/// let url = Url::parse("pg://me@db.example.org:5433/files?data=file:/srv/objects").unwrap();
/// assert_eq!(url.data().unwrap().to_string(), "file:/srv/objects");
/// assert!(Url::parse("pg://me:secret@db.example.org/files").is_err());
/// ```
#[derive(Clone, Debug)]
pub struct Url {
    pub(crate) address: Address,
    data: Option<Place>,
}

/// The location of the contents of large files: a value of `data=`.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Place {
    /// A directory of the host, `file:DIR`, with an absolute path.
    Directory(PathBuf),
    /// The objects of an S3 bucket whose keys begin with a prefix, `s3://BUCKET/PREFIX`.
    S3 {
        /// The name of the bucket.
        bucket: String,
        /// The start of all keys in the bucket, without a final slash; may be empty.
        prefix: String,
    },
}

/// The reason why a URL is refused.
#[derive(Debug)]
#[non_exhaustive]
pub enum UrlError {
    /// The URL does not begin with `pg://`.
    Scheme,
    /// The URL contains a password.
    Password,
    /// The URL names no database.
    Database,
    /// `data=` is neither `file:DIR` with an absolute path nor `s3://BUCKET/PREFIX`.
    Data,
    /// `sslmode=` is unknown, or the root certificates cannot be read.
    Tls(String),
    /// The PostgreSQL client refuses the rest of the URL.
    Client(tokio_postgres::Error),
}

impl Url {
    /// Parses a URL.
    ///
    /// # Errors
    /// The reason why the URL is invalid.
    pub fn parse(text: &str) -> Result<Url, UrlError> {
        let rest = text.strip_prefix(SCHEME).ok_or(UrlError::Scheme)?;
        let (address, query) = rest.split_once('?').unwrap_or((rest, ""));
        let is_data = |pair: &&str| pair.starts_with("data=");
        let pairs = query.split('&').filter(|pair| !pair.is_empty());
        let (data, others): (Vec<&str>, Vec<&str>) = pairs.partition(is_data);
        let data = data.last().map(|pair| Place::parse(&pair["data=".len()..])).transpose()?;
        let address = Address::parse(address, &others)?;
        if address.config.get_password().is_some() {
            return Err(UrlError::Password);
        }
        if address.config.get_dbname().is_none() {
            return Err(UrlError::Database);
        }
        Ok(Url { address, data })
    }

    /// Returns the `data=` of the URL, or None if the URL has none.
    pub fn data(&self) -> Option<&Place> {
        self.data.as_ref()
    }

    /// Sets the password of the PostgreSQL user.
    #[must_use]
    pub fn with_password(mut self, password: impl AsRef<[u8]>) -> Url {
        self.address.config.password(password);
        self
    }
}

impl Place {
    /// Parses the value of `data=`.
    pub(crate) fn parse(text: &str) -> Result<Place, UrlError> {
        if let Some(path) = text.strip_prefix(FILE) {
            let is_absolute = path.starts_with('/');
            return if is_absolute {
                Ok(Place::Directory(path.into()))
            } else {
                Err(UrlError::Data)
            };
        }
        let place = text.strip_prefix(S3).ok_or(UrlError::Data)?;
        let (bucket, prefix) = place.split_once('/').unwrap_or((place, ""));
        let [bucket, prefix] = [bucket, prefix.trim_matches('/')].map(str::to_owned);
        if bucket.is_empty() { Err(UrlError::Data) } else { Ok(Place::S3 { bucket, prefix }) }
    }
}

impl Place {
    /// Returns the location of the objects of the file system `id`. Several file systems may have
    /// the same `data=`, so each has a folder or prefix of its own in it.
    ///
    /// Returns None if `id` has characters that no UUID has. The owner of the database can store
    /// any text as `id`, and `..` would lead to files outside of the folder.
    pub(crate) fn of_file_system(&self, id: &str) -> Option<Place> {
        let is_uuid = id.bytes().all(|byte| byte.is_ascii_hexdigit() || byte == b'-');
        if id.is_empty() || !is_uuid {
            return None;
        }
        Some(match self {
            Place::Directory(path) => Place::Directory(path.join(id)),
            Place::S3 { bucket, prefix } => {
                let prefix = format!("{prefix}/{id}").trim_start_matches('/').to_owned();
                Place::S3 { bucket: bucket.clone(), prefix }
            }
        })
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Place::Directory(path) => write!(f, "{FILE}{}", path.display()),
            Place::S3 { bucket, prefix } => write!(f, "{S3}{bucket}/{prefix}"),
        }
    }
}

impl std::fmt::Display for UrlError {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            UrlError::Scheme => f.write_str("the URL does not begin with pg://"),
            UrlError::Password => {
                f.write_str("the URL contains a password; give it in the variable PGPASSWORD")
            }
            UrlError::Database => f.write_str("the URL names no database"),
            UrlError::Data => f.write_str(
                "data= is the place of file contents: file:DIR with an absolute path, or \
                 s3://BUCKET/PREFIX",
            ),
            UrlError::Tls(text) => f.write_str(text),
            UrlError::Client(error) => error.fmt(f),
        }
    }
}

impl std::error::Error for UrlError {}

/// Tells whether a call waits or fails while the database cannot be reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unreachable {
    /// The call waits until the database is back (`hard` of nfs(5)).
    Wait,
    /// The call fails with `EIO` after this time (`soft` of nfs(5)).
    FailAfter(Duration),
}

/// The options of a mount.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct ClusterOptions {
    /// Tells whether a call waits or fails while the database cannot be reached.
    pub unreachable: Unreachable,
    /// How long a session lives after its last renewal. The mount renews it every third of this
    /// time.
    pub lease: Duration,
    /// The number of connections for calls of the file system. There is one more connection for the
    /// session, and one for notifications.
    pub connections: usize,
    /// The most memory for cached names and attributes, in bytes.
    pub cache_bytes: usize,
    /// The directory of a cache of objects on disk. Each file system has a folder of its own in it,
    /// which one mount at a time can use.
    pub disk_cache: Option<PathBuf>,
    /// The most bytes of files in `disk_cache`.
    pub disk_cache_bytes: u64,
    /// True if locks of fcntl(2) and flock(2) hold in this mount only (`local_lock=all` of nfs(5)).
    pub local_locks: bool,
    /// True if the kernel may keep names and attributes even while there are other mounts. It may
    /// keep them as long as the lease of their directory lasts.
    pub kernel_names: bool,
    /// The settings of the object store. Their names are the environment variables that other
    /// programs use, such as `AWS_ACCESS_KEY_ID`.
    pub settings: Vec<(String, String)>,
    /// Protections that a test turns off.
    #[doc(hidden)]
    pub flaws: Flaws,
}

/// Protections that a test turns off, to check that it detects the wrong answers.
#[derive(Clone, Copy, Debug, Default)]
#[doc(hidden)]
pub struct Flaws {
    /// All notifications are lost. This is no flaw, because renewals tell of intents too (guarantee
    /// K.12 in `lib.rs`).
    pub hears_nothing: bool,
    /// An intent is acknowledged without dropping what is cached, against guarantee K.4 in
    /// `lib.rs`.
    pub keeps_after_intent: bool,
    /// Answers of the database that were requested before the cache was dropped are cached, against
    /// guarantee K.4 in `lib.rs`.
    pub caches_late_answers: bool,
    /// Caches are used after the end of the lease, against guarantee K.1 in `lib.rs`.
    pub ignores_the_clock: bool,
    /// Caches are kept after a crash of the database, against guarantee K.10 in `lib.rs`.
    pub keeps_after_restart: bool,
    /// An intent is acknowledged while the kernel keeps its names, against guarantee K.7 in
    /// `lib.rs`.
    pub keeps_kernel_names: bool,
    /// An intent is acknowledged while the kernel keeps its attributes, against guarantee K.7 in
    /// `lib.rs`.
    pub keeps_kernel_attributes: bool,
    /// No directory counts as busy after a change (`directory/kernel.rs`). This is no flaw: the
    /// kernel keeps more answers, and must drop them more often.
    pub is_never_busy: bool,
    /// A change of this mount is sent while the kernel still keeps what the change alters, against
    /// guarantee K.7 in `lib.rs`.
    pub keeps_kernel_before_change: bool,
}

impl ClusterOptions {
    corewalk_base::setters! {
        with_unreachable: unreachable = Unreachable;
        with_lease: lease = Duration;
        with_connections: connections = usize;
        with_cache_bytes: cache_bytes = usize;
        with_disk_cache: disk_cache = Option<PathBuf>;
        with_disk_cache_bytes: disk_cache_bytes = u64;
        with_local_locks: local_locks = bool;
        with_kernel_names: kernel_names = bool;
        with_settings: settings = Vec<(String, String)>;
        with_flaws: flaws = Flaws;
    }
}

impl Default for ClusterOptions {
    fn default() -> ClusterOptions {
        ClusterOptions {
            unreachable: Unreachable::Wait,
            lease: Duration::from_secs(10),
            connections: 4,
            cache_bytes: 256 << 20,
            disk_cache: None,
            disk_cache_bytes: 1 << 30,
            local_locks: false,
            kernel_names: false,
            settings: Vec::new(),
            flaws: Flaws::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn url_gives_address_and_place() {
        let url = Url::parse("pg://u@h:1/d?connect_timeout=3&data=file:/x/y").unwrap();
        assert_eq!(url.data(), Some(&Place::Directory("/x/y".into())));
        let config = &url.address.config;
        assert_eq!(config.get_connect_timeout(), Some(&Duration::from_secs(3)));
        assert_eq!((config.get_user(), config.get_dbname()), (Some("u"), Some("d")));
        let short = Url::parse("pg://u@%2Frun%2Fpg/d").unwrap();
        assert_eq!(short.data(), None);
        assert_eq!(short.address.config.get_connect_timeout(), Some(&Duration::from_secs(5)));
    }

    #[test]
    fn place_in_s3_has_bucket_and_prefix() {
        let s3 =
            |bucket: &str, prefix: &str| Place::S3 { bucket: bucket.into(), prefix: prefix.into() };
        assert_eq!(Place::parse("s3://b").unwrap(), s3("b", ""));
        assert_eq!(Place::parse("s3://b/c/d/").unwrap(), s3("b", "c/d"));
        assert_eq!(s3("b", "c").to_string(), "s3://b/c");
        assert_eq!(s3("b", "").of_file_system("1-f"), Some(s3("b", "1-f")));
        assert_eq!(s3("b", "c").of_file_system("1-f"), Some(s3("b", "c/1-f")));
        for id in ["", "..", "/usr/bin", "a/b", "a."] {
            assert_eq!(Place::Directory("/srv".into()).of_file_system(id), None);
        }
    }

    #[test]
    fn bad_url_is_refused() {
        assert!(matches!(Url::parse("postgres://u@h/d"), Err(UrlError::Scheme)));
        assert!(matches!(Url::parse("pg://u:p@h/d"), Err(UrlError::Password)));
        assert!(matches!(Url::parse("pg://u@h"), Err(UrlError::Database)));
        assert!(matches!(Url::parse("pg://u@h/d?data=s3:///b"), Err(UrlError::Data)));
        assert!(matches!(Url::parse("pg://u@h/d?data=gs://b"), Err(UrlError::Data)));
        assert!(matches!(Url::parse("pg://u@h/d?data=file:x"), Err(UrlError::Data)));
        assert!(matches!(Url::parse("pg://u@h/d?what=1"), Err(UrlError::Client(_))));
        assert!(matches!(Url::parse("pg://u@h/d?sslmode=allow"), Err(UrlError::Tls(_))));
        let absent = "pg://u@h/d?sslmode=verify-full&sslrootcert=/nowhere";
        assert!(matches!(Url::parse(absent), Err(UrlError::Tls(_))));
    }
}
