//! The servers of the table `cluster-metadata`, its mounts, and their counters.

use std::path::PathBuf;
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, ensure};
use corewalk_testkit::postgres::Postgres;
use corewalk_testkit::proxy::Proxy;
use corewalk_testkit::s3::S3Server;
use rustix::fs::getxattr;
use serde_json::Value;

use super::ops::{Counters, Sizes};
use super::{BESIDE, OURS, PEERS, TABLE, TMPFS};
use crate::peer::{self, Mounted, Scratch};
use crate::samples::Metric;

const BUCKET: &str = "lab";
/// The extended attribute with the counters of a mount of corewalk.
const COUNTERS: &str = "user.corewalk.stat";
/// Maximum length of the attribute with the counters, in bytes.
const COUNTERS_BYTES: usize = 64 << 10;

/// The running servers. Fields are dropped in order, so the database is stopped after the proxies.
pub(super) struct Site {
    /// The proxies before the databases of the cluster file system and of the client
    /// `six_statements`.
    ours: Proxy,
    pub(super) six: Proxy,
    s3: S3Server,
    scratch: Scratch,
    _postgres: Postgres,
}

impl Site {
    /// Starts the servers, and makes a cluster file system.
    ///
    /// # Errors
    /// An error if a server is not installed, or without the program `corewalk`.
    pub(super) fn start() -> anyhow::Result<Site> {
        let postgres = Postgres::start_durable();
        let postgres = postgres.context("needs PostgreSQL: apt-get install postgresql")?;
        let s3 = S3Server::start(BUCKET).context(
            "needs versitygw: go install github.com/versity/versitygw/cmd/versitygw@v1.8.0",
        )?;
        let url = |scheme, name| format!("{scheme}://{}", postgres.new_database(name));
        let ours = Proxy::new(&url("pg", "ours"));
        let six = Proxy::new(&url("postgresql", "six"));
        let mut mkfs = peer::corewalk()?;
        mkfs.arg("mkfs").arg(format!("{}?data=s3://{BUCKET}/{OURS}", ours.url()));
        let made = mkfs.envs(s3.settings()).stdout(Stdio::null()).status()?;
        ensure!(made.success(), "corewalk mkfs: {made}");
        let scratch = Scratch::new(&std::env::temp_dir(), "cluster")?;
        Ok(Site { ours, six, s3, scratch, _postgres: postgres })
    }

    /// Mounts `variant` with its files. If a peer is not installed, prints its name and returns
    /// None.
    ///
    /// The files of a peer are made in the directory of the S3 server, because that is faster than
    /// through a mount.
    ///
    /// # Errors
    /// An error of a call, or if corewalk cannot mount.
    pub(super) fn first_mount(
        &self,
        variant: &'static str,
        sizes: &Sizes,
    ) -> anyhow::Result<Option<Mounted>> {
        if PEERS.contains(&variant) {
            sizes.make_files(&self.s3.bucket().join(variant))?;
        }
        let (point, program) = self.point_and_program(variant);
        let point = point?;
        let mounted = Mounted::start_or_skip(TABLE.name, variant, program, point)?;
        if let Some(mounted) = mounted.as_ref().filter(|_| !PEERS.contains(&variant)) {
            sizes.make_files(&mounted.directory)?;
        }
        Ok(mounted)
    }

    /// Mounts `variant` again.
    ///
    /// # Errors
    /// An error if that is not possible.
    pub(super) fn mount(&self, variant: &'static str) -> anyhow::Result<Mounted> {
        let (point, program) = self.point_and_program(variant);
        Mounted::start(variant, program?, point?)
    }

    fn point_and_program(
        &self,
        variant: &str,
    ) -> (std::io::Result<PathBuf>, anyhow::Result<Command>) {
        let point = self.scratch.folder(variant);
        let path = self.scratch.path().join(variant);
        let settings = self.s3.settings();
        let endpoint = settings.iter().find(|(name, _)| name == "AWS_ENDPOINT_URL");
        let endpoint = endpoint.map(|(_, url)| url.clone()).unwrap_or_default();
        let program = match variant {
            OURS => peer::ours(None, self.ours.url().as_ref(), &path).map(|mut program| {
                program.args(["-o", "kernel_names"]);
                program
            }),
            _ if BESIDE.contains(&variant) => peer::ours(None, self.ours.url().as_ref(), &path),
            TMPFS => peer::ours(None, "tmpfs".as_ref(), &path),
            "s3fs" => peer::s3fs(&format!("{BUCKET}:/{variant}"), &endpoint, &path),
            _ => peer::rclone(&format!("{BUCKET}/{variant}"), &endpoint, &path),
        };
        let with_settings = |mut program: Command| {
            program.envs(settings);
            program
        };
        (point, program.map(with_settings))
    }

    /// Delays each further message between clients and the database, in each direction.
    pub(super) fn delay(&self, delay: Duration) {
        self.ours.delay(delay);
        self.six.delay(delay);
    }

    /// Returns the counters of a mount. Without a mount, returns those of the client of six
    /// statements.
    ///
    /// # Errors
    /// An error if they cannot be read.
    pub(super) fn counters(&self, mount: Option<&Mounted>) -> anyhow::Result<Counters> {
        let Some(mount) = mount else {
            return Ok(vec![(Metric::DATABASE_BYTES_PER_OP, self.six.bytes())]);
        };
        let mut counters = vec![];
        if mount.variant != TMPFS {
            counters.push((Metric::S3_REQUESTS_PER_OP, self.s3.requests()?));
        }
        if mount.variant == OURS {
            let mut json = vec![0; COUNTERS_BYTES];
            let length = getxattr(&mount.directory, COUNTERS, &mut json[..])?;
            let all: Value = serde_json::from_slice(&json[..length])?;
            let statements = all["cluster_statements"].as_u64().context("no such counter")?;
            counters.push((Metric::STATEMENTS_PER_OP, statements));
            counters.push((Metric::DATABASE_BYTES_PER_OP, self.ours.bytes()));
        }
        Ok(counters)
    }
}
