//! Encrypted connections, with certificates that the test makes.

use std::fs;
use std::path::Path;
use std::process::Command;

use corewalk_cluster::{ClusterFs, Url, fsck, mkfs};
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::require::{Need, skip};
use tempfile::TempDir;

use crate::fixtures::{ROOT, options, write_new};

fn certificates(folder: &Path) -> bool {
    let openssl = |line: &str| {
        let words = line.split(' ');
        Command::new("openssl").args(words).current_dir(folder).output()
    };
    if openssl("version").is_err() {
        skip(Need::Package, "openssl is not installed");
        return false;
    }
    fs::write(folder.join("names"), "subjectAltName = DNS:localhost\n").unwrap();
    let key = "-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes";
    for line in [
        format!("req -x509 {key} -keyout root.key -out root.pem -subj /CN=root -days 2"),
        format!("req -x509 {key} -keyout x.key -out other.pem -subj /CN=other -days 2"),
        format!("req {key} -keyout server.key -out server.csr -subj /CN=server"),
        "x509 -req -in server.csr -CA root.pem -CAkey root.key -CAcreateserial -days 2 \
         -extfile names -out server.pem"
            .to_owned(),
    ] {
        let done = openssl(&line).unwrap();
        assert!(done.status.success(), "{line}: {}", String::from_utf8_lossy(&done.stderr));
    }
    true
}

#[test]
fn connection_is_encrypted_and_verified_as_the_url_says() {
    let folder = TempDir::new().unwrap();
    if !certificates(folder.path()) {
        return;
    }
    let at = |name: &str| folder.path().join(name);
    let Some(postgres) = Postgres::start_with_tls(&at("server.pem"), &at("server.key")) else {
        return;
    };
    postgres.new_database("t");
    postgres.sql("t", "ALTER ROLE corewalk PASSWORD 'secret'");
    let port = postgres.port();
    let objects = folder.path().join("objects");
    let url = |host: &str, rest: &str| {
        let data = objects.display();
        let url = format!("pg://corewalk@{host}:{port}/t?data=file:{data}&{rest}");
        Url::parse(&url).unwrap().with_password("secret")
    };
    let root = format!("sslrootcert={}", at("root.pem").display());
    let other = format!("sslrootcert={}", at("other.pem").display());
    let bound = url("localhost", &format!("sslmode=verify-full&{root}&channel_binding=require"));
    assert!(mkfs(&bound.clone().with_password("wrong"), (0, 0), false).is_err());
    mkfs(&bound, (0, 0), false).unwrap();
    let works = |url: &Url, file: String| {
        let Ok(fs) = ClusterFs::open(url, &options()) else { return None };
        let sql = "SELECT bool_and(ssl) AND count(*) > 1 FROM pg_stat_ssl JOIN pg_stat_activity a
            USING (pid) WHERE a.client_port > 0";
        let is_encrypted = postgres.sql("t", sql) == "t";
        write_new(&fs, ROOT, &file, b"text");
        drop(fs);
        assert!(fsck(url, &[]).is_ok());
        Some(is_encrypted)
    };
    // The server's certificate names `localhost`, but not 127.0.0.1, which leads to the same
    // server.
    let cases = [
        ("localhost", "sslmode=disable".to_owned(), Some(false)),
        ("localhost", String::new(), Some(true)),
        ("127.0.0.1", "sslmode=require".to_owned(), Some(true)),
        ("127.0.0.1", format!("sslmode=require&{other}"), None),
        ("127.0.0.1", format!("sslmode=verify-ca&{root}"), Some(true)),
        ("127.0.0.1", format!("sslmode=verify-ca&{other}"), None),
        ("localhost", format!("sslmode=verify-full&{root}"), Some(true)),
        ("127.0.0.1", format!("sslmode=verify-full&{root}"), None),
        ("localhost", "sslmode=verify-full".to_owned(), None),
    ];
    for (number, (host, rest, expected)) in cases.into_iter().enumerate() {
        assert_eq!(works(&url(host, &rest), number.to_string()), expected, "{host} {rest}");
    }
}

#[test]
fn server_without_encryption_is_refused_if_the_url_demands_it() {
    let Some(postgres) = Postgres::start() else { return };
    let address = postgres.new_database("t");
    let refused = |mode: &str| {
        let url = format!("pg://{address}?data=file:/nowhere&sslmode={mode}");
        mkfs(&Url::parse(&url).unwrap(), (0, 0), true).is_err()
    };
    assert!(refused("require"));
    assert!(!refused("prefer"));
}

/// Checks that only `verify-full` accepts the root certificates of the system. Any host can get a
/// certificate of a public authority, so the other modes would trust any host.
#[test]
fn roots_of_the_system_are_for_verify_full_only() {
    let parse = |rest: &str| Url::parse(&format!("pg://u@h/d?data=file:/x&{rest}")).is_ok();
    assert!(!parse("sslmode=require&sslrootcert=system"));
    assert!(!parse("sslmode=verify-ca&sslrootcert=system"));
    assert!(!parse("sslmode=verify-ca"));
}
