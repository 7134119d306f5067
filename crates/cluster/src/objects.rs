//! Objects: the immutable pieces of file data, in a store that several machines can reach.
//!
//! An object is written once, under a key that is never used again. So a copy of an object in a
//! cache never becomes stale. The database records a key before the object is written
//! (`pending_object`), so an object whose writer dies is found and removed.
//!
//! A key has components of letters and digits, separated by `/`. The methods are asynchronous,
//! because the back end writes several objects at a time and reads ahead.
//!
//! An error is an [`io::Error`]. Only its kind matters to callers: `NotFound` means that there is
//! no such object. `TimedOut` means that the store is away and may come back. `StorageFull` and
//! `QuotaExceeded` mean that it is full. Any other kind means that the store has refused the
//! request.
//!
//! # Guarantees
//! - O.1: after `put` has returned, the object survives a crash of every machine.
//! - O.2: `get` returns exactly the bytes of a `put` that has returned, or an error. It never
//!   returns a part of an object that is still being written.
//! - O.3: `put` may be repeated with the same key and the same bytes. `delete` of a key without an
//!   object succeeds.
//!
//! In a directory, the crate `object_store` keeps guarantee O.2 by writing a temporary file and
//! renaming it. It repeats requests to S3 that failed on the way.

use std::fs;
use std::io;
use std::ops::Range;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::TryStreamExt as _;
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::prefix::PrefixStore;
use object_store::{
    BackoffConfig, ClientOptions, Error, ObjectStore, ObjectStoreExt as _, RetryConfig,
};

use crate::options::Place;

/// How long one request to S3 may take.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(30);
/// How long a request to S3 is repeated if it fails on the way or the server is overloaded. After
/// that, the caller may begin the request again.
const RETRY_TIMEOUT: Duration = Duration::from_secs(3);
/// The text by which errors of `object_store` name a store in a directory.
const LOCAL: &str = "LocalFileSystem";
/// The start of an error text of `object_store` that reports an HTTP status other than 2xx. The
/// status follows. The type of this error is private, so its text must be read.
const STATUS: &str = "Server returned non-2xx status code: ";
/// The start of an error text of `object_store` that reports a redirection without a target. A
/// wrong region causes this error.
const REDIRECT: &str = "Received redirect without LOCATION";
/// Statuses below 500 that mean that the server may carry out the request later: request timeout,
/// too many requests.
const OVERLOADED: [&str; 2] = ["408", "429"];

/// A store of objects.
#[derive(Clone, Debug)]
pub struct Objects {
    store: Arc<dyn ObjectStore>,
    /// The directory, if the objects are in one.
    folder: Option<Arc<PathBuf>>,
}

impl Objects {
    /// Opens the objects at `place`. A directory that does not exist is made.
    ///
    /// `settings` are the settings of S3. Their names are the environment variables that other
    /// programs use, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`. An endpoint that begins
    /// with `http://` is used without encryption. Unknown names are ignored.
    ///
    /// # Errors
    /// The errors of mkdir(2); `InvalidInput` if a setting has an invalid value.
    pub fn open(place: &Place, settings: &[(String, String)]) -> io::Result<Objects> {
        let (store, folder): (Arc<dyn ObjectStore>, _) = match place {
            Place::Directory(folder) => {
                fs::create_dir_all(folder)?;
                let local = LocalFileSystem::new_with_prefix(folder).map_err(invalid)?;
                (Arc::new(local.with_fsync(true)), Some(Arc::new(folder.clone())))
            }
            Place::S3 { bucket, prefix } => {
                let store = s3(bucket, settings)?;
                (Arc::new(PrefixStore::new(store, prefix.as_str())), None)
            }
        };
        Ok(Objects { store, folder })
    }

    /// Writes an object and makes it durable.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn put(&self, key: &str, bytes: Bytes) -> io::Result<()> {
        self.store.put(&Path::from(key), bytes.into()).await.map_err(io_error)?;
        Ok(())
    }

    /// Reads a range of an object.
    ///
    /// # Errors
    /// `NotFound`; `UnexpectedEof` if the object ends inside the range; the errors of the store.
    pub async fn get(&self, key: &str, range: Range<u64>) -> io::Result<Bytes> {
        let bytes =
            self.store.get_range(&Path::from(key), range.clone()).await.map_err(io_error)?;
        if bytes.len() as u64 == range.end.saturating_sub(range.start) {
            Ok(bytes)
        } else {
            Err(io::ErrorKind::UnexpectedEof.into())
        }
    }

    /// Removes an object. It is no error if there is none.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn delete(&self, key: &str) -> io::Result<()> {
        match self.store.delete(&Path::from(key)).await {
            Err(Error::NotFound { .. }) => {}
            done => done.map_err(io_error)?,
        }
        let Some(folder) = self.folder.clone() else { return Ok(()) };
        // Remove the temporary file of a process that was killed in `put`, because `list` omits
        // such files. `Path` makes sure that no key leads out of the folder.
        let temporary = folder.join(format!("{}#1", Path::from(key)));
        match tokio::task::spawn_blocking(move || fs::remove_file(temporary)).await? {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Returns the keys below `folder`, in any order, each with the size of its object. An empty
    /// `folder` means all objects.
    ///
    /// # Errors
    /// The errors of the store.
    pub async fn list(&self, folder: &str) -> io::Result<Vec<(String, u64)>> {
        let folder = Path::from(folder);
        let found = self.store.list(Some(&folder));
        let keys = found.map_ok(|object| (object.location.to_string(), object.size));
        keys.try_collect().await.map_err(io_error)
    }
}

/// Returns the client of a bucket.
fn s3(bucket: &str, settings: &[(String, String)]) -> io::Result<impl ObjectStore> {
    // The S3 client needs a cryptography provider even if it does not encrypt. Ignore the error if
    // the program has already installed a provider, because any provider will do.
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut client = ClientOptions::new().with_timeout(REQUEST_TIMEOUT);
    let mut builder = AmazonS3Builder::new().with_bucket_name(bucket);
    for (name, value) in settings {
        let Ok(key) = name.to_ascii_lowercase().parse::<AmazonS3ConfigKey>() else { continue };
        if key == AmazonS3ConfigKey::Endpoint {
            let is_plain = value.starts_with("http://");
            if !is_plain && !value.starts_with("https://") {
                return Err(invalid(format!("{name}={value} is no address of a server")));
            }
            client = client.with_allow_http(is_plain);
        }
        builder = builder.with_config(key, value);
    }
    let (max_retries, retry_timeout) = (usize::MAX, RETRY_TIMEOUT);
    let backoff = BackoffConfig::default();
    builder
        .with_client_options(client)
        .with_retry(RetryConfig { backoff, max_retries, retry_timeout })
        .build()
        .map_err(invalid)
}

/// Converts an error of the store to one of the kinds that callers know.
fn io_error(error: Error) -> io::Error {
    let mut kinds =
        causes(&error).filter_map(|cause| Some(cause.downcast_ref::<io::Error>()?.kind()));
    let full = kinds
        .find(|kind| matches!(kind, io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded));
    drop(kinds);
    if let Some(kind) = full {
        return io::Error::new(kind, error);
    }
    let is_away = match error {
        Error::Generic { store, .. } => store != LOCAL && !causes(&error).any(is_refusal),
        // Status 409 means that another request to the bucket conflicts with this one for the
        // moment.
        Error::AlreadyExists { .. } => true,
        _ => false,
    };
    if is_away {
        return io::Error::new(io::ErrorKind::TimedOut, error);
    }
    error.into()
}

/// Returns an error and the errors that have caused it.
fn causes<'a>(
    error: &'a (dyn std::error::Error + 'static),
) -> impl Iterator<Item = &'a (dyn std::error::Error + 'static)> {
    std::iter::successors(Some(error), |error| error.source())
}

/// Returns true if the server has answered that it will not do the request. Then a repetition of
/// the request does not help.
fn is_refusal(error: &(dyn std::error::Error + 'static)) -> bool {
    let text = error.to_string();
    let status = text.strip_prefix(STATUS).and_then(|text| text.get(..3));
    let is_refused = status.is_some_and(|status| status < "500" && !OVERLOADED.contains(&status));
    is_refused || text.starts_with(REDIRECT)
}

fn invalid(error: impl Into<Box<dyn std::error::Error + Send + Sync>>) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, error)
}

#[cfg(test)]
mod tests {
    use super::*;
    use corewalk_testkit::s3::S3Server;
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};

    /// Checks, as far as one client can, that objects are complete (guarantee O.2) and that calls
    /// may be repeated (guarantee O.3).
    async fn check(objects: &Objects) {
        assert_eq!(objects.list("").await.unwrap(), []);
        objects.put("1/0/a", Bytes::from_static(b"0123456789")).await.unwrap();
        objects.put("1/0/a", Bytes::from_static(b"0123456789")).await.unwrap();
        objects.put("2/0/b", Bytes::from_static(b"x")).await.unwrap();
        assert_eq!(objects.get("1/0/a", 2..5).await.unwrap(), b"234"[..]);
        let beyond = objects.get("1/0/a", 8..12).await.unwrap_err();
        assert_eq!(beyond.kind(), io::ErrorKind::UnexpectedEof);
        assert_eq!(objects.list("1").await.unwrap(), [("1/0/a".to_owned(), 10)]);
        assert_eq!(objects.list("").await.unwrap().len(), 2);
        objects.delete("1/0/a").await.unwrap();
        objects.delete("1/0/a").await.unwrap();
        let gone = objects.get("1/0/a", 0..1).await.unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
        assert_eq!(objects.list("").await.unwrap(), [("2/0/b".to_owned(), 1)]);
    }

    fn run(test: impl Future<Output = ()>) {
        tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(test);
    }

    #[test]
    fn object_in_a_directory_is_found_until_it_is_deleted() {
        let folder = tempfile::tempdir().unwrap();
        let place = Place::Directory(folder.path().join("made/by/open"));
        run(async { check(&Objects::open(&place, &[]).unwrap()).await });
    }

    #[test]
    fn temporary_file_of_a_killed_process_goes_with_its_object() {
        let folder = tempfile::tempdir().unwrap();
        let objects = Objects::open(&Place::Directory(folder.path().into()), &[]).unwrap();
        fs::write(folder.path().join("a#1"), "half").unwrap();
        run(async { objects.delete("a").await.unwrap() });
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn object_in_s3_is_found_until_it_is_deleted() {
        let Some(server) = S3Server::start("bucket") else { return };
        let open = |prefix: &str| {
            let place = Place::S3 { bucket: "bucket".to_owned(), prefix: prefix.to_owned() };
            Objects::open(&place, &server.settings()).unwrap()
        };
        run(async {
            check(&open("a/prefix")).await;
            check(&open("b")).await;
            assert_eq!(open("").list("").await.unwrap().len(), 2);
        });
    }

    #[test]
    fn key_cannot_leave_the_folder() {
        let above = tempfile::tempdir().unwrap();
        let objects = Objects::open(&Place::Directory(above.path().join("o")), &[]).unwrap();
        let outside = above.path().join("a#1");
        fs::write(&outside, "of others").unwrap();
        for key in ["../a", &above.path().join("a").display().to_string()] {
            run(async { objects.delete(key).await.unwrap() });
            assert!(outside.exists(), "{key}");
        }
    }

    /// Starts a server that answers each request with `status`, until the runtime ends. Returns the
    /// address of the server.
    async fn serve(status: u16) -> std::net::SocketAddr {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(async move {
            while let Ok((mut client, _)) = listener.accept().await {
                let body = "<Error><Message>its words</Message></Error>";
                let length = body.len();
                let answer = format!(
                    "HTTP/1.1 {status} Status\r\nContent-Length: {length}\r\n\
                     Connection: close\r\n\r\n{body}"
                );
                tokio::spawn(async move {
                    let mut request = [0; 4096];
                    let mut has_answered = false;
                    // Read until the client closes the connection. If the server closed it first,
                    // the client could lose the answer.
                    while client.read(&mut request).await.is_ok_and(|count| count > 0) {
                        if !std::mem::replace(&mut has_answered, true) {
                            client.write_all(answer.as_bytes()).await.unwrap();
                        }
                    }
                });
            }
        });
        address
    }

    #[test]
    fn answer_of_s3_is_an_error_and_only_an_overloaded_server_is_away() {
        use io::ErrorKind::{NotFound, TimedOut};
        let refused = [301, 400, 401, 403, 405, 411, 412, 413, 416, 418];
        let refused = refused.map(|status| (status, None));
        let others = [(404, Some(NotFound))];
        let away = [408, 409, 429, 500, 503].map(|status| (status, Some(TimedOut)));
        run(async {
            let checks =
                refused.into_iter().chain(others).chain(away).map(async |(status, kind)| {
                    let place = Place::S3 { bucket: "bucket".to_owned(), prefix: String::new() };
                    let settings = [
                        ("AWS_ENDPOINT_URL", format!("http://{}", serve(status).await)),
                        ("AWS_ACCESS_KEY_ID", "user".to_owned()),
                        ("AWS_SECRET_ACCESS_KEY", "secret".to_owned()),
                    ];
                    let settings = settings.map(|(name, value)| (name.to_owned(), value));
                    let objects = Objects::open(&place, &settings).unwrap();
                    for error in [
                        objects.put("1/0/a", Bytes::from_static(b"x")).await.unwrap_err(),
                        objects.get("1/0/a", 0..1).await.unwrap_err(),
                    ] {
                        assert_eq!(error.kind(), kind.unwrap_or(io::ErrorKind::Other), "{error}");
                        assert!(status < 400 || error.to_string().contains("its words"), "{error}");
                    }
                });
            futures_util::future::join_all(checks).await;
        });
    }

    #[test]
    fn s3_with_an_endpoint_that_is_no_address_is_refused() {
        let place = Place::S3 { bucket: "bucket".to_owned(), prefix: String::new() };
        let invalid = [("AWS_ENDPOINT_URL".to_owned(), "no URL".to_owned())];
        let refused = Objects::open(&place, &invalid).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::InvalidInput);
    }
}
