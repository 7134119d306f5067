//! A client that makes each file in a database by one transaction of six statements, BEGIN and
//! COMMIT included. It checks no permissions, and keeps no leases and no totals. So no usual client
//! needs fewer statements.
//!
//! The tables and indexes are like those of a cluster file system. The four statements in the
//! middle are prepared. The connection has the default settings of the server, and no kernel is in
//! between.
//!
//! Source: PostgreSQL, "Extended Query".

use anyhow::{Context as _, ensure};
use tokio::runtime::{Builder, Runtime};
use tokio_postgres::{Client, NoTls, Statement};

/// The tables, with the root directory.
const SCHEMA: &str = "
    CREATE TABLE node (
        ino bigint PRIMARY KEY, home bigint NOT NULL, mode int NOT NULL, uid bigint NOT NULL,
        gid bigint NOT NULL, nlink bigint NOT NULL, size bigint NOT NULL, rdev bigint NOT NULL,
        atime bigint NOT NULL, mtime bigint NOT NULL, ctime bigint NOT NULL, btime bigint NOT NULL,
        version bigint NOT NULL, target bytea, contents bytea);
    CREATE SEQUENCE cookie;
    CREATE TABLE edge (
        parent bigint NOT NULL, name bytea NOT NULL, ino bigint NOT NULL, kind int NOT NULL,
        seq bigint NOT NULL DEFAULT nextval('cookie'), PRIMARY KEY (parent, name));
    CREATE INDEX edge_seq ON edge (parent, seq);
    CREATE INDEX edge_ino ON edge (ino);
    INSERT INTO node VALUES (1, 1, 16877, 0, 0, 2, 0, 0, 0, 0, 0, 0, 1);";
/// The statements between the begin and the commit.
const STATEMENTS: [&str; 4] = [
    "SELECT mode FROM node WHERE ino = 1 FOR UPDATE",
    "INSERT INTO edge (parent, name, ino, kind) VALUES (1, $1, $2, 8) ON CONFLICT DO NOTHING",
    "INSERT INTO node VALUES ($1, 1, 33188, 0, 0, 1, 0, 0, 0, 0, 0, 0, 1)",
    "UPDATE node SET mtime = $1, ctime = $1, version = version + 1 WHERE ino = 1",
];

pub(super) struct SixStatements {
    runtime: Runtime,
    client: Client,
    prepared: Vec<Statement>,
    ino: i64,
}

impl SixStatements {
    /// Connects to the empty database at `url`, and makes the tables.
    ///
    /// # Errors
    /// An error of the database.
    pub(super) fn new(url: &str) -> anyhow::Result<SixStatements> {
        let runtime = Builder::new_current_thread().enable_all().build()?;
        let (client, prepared) = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(url, NoTls).await?;
            tokio::spawn(connection);
            client.batch_execute(SCHEMA).await?;
            let mut prepared = vec![];
            for statement in STATEMENTS {
                prepared.push(client.prepare(statement).await?);
            }
            Ok::<_, tokio_postgres::Error>((client, prepared))
        })?;
        Ok(SixStatements { runtime, client, prepared, ino: 1 })
    }

    /// Makes the next file in the root directory.
    ///
    /// # Errors
    /// An error of the database, or a name that exists.
    pub(super) fn create(&mut self) -> anyhow::Result<()> {
        self.ino += 1;
        let (client, ino) = (&self.client, self.ino);
        let name = format!("file-{ino:06}").into_bytes();
        let [lock, edge, node, parent] = &self.prepared[..] else { unreachable!("there are four") };
        let added = self.runtime.block_on(async {
            client.batch_execute("BEGIN").await?;
            client.query_one(lock, &[]).await?;
            let added = client.execute(edge, &[&name, &ino]).await?;
            client.execute(node, &[&ino]).await?;
            client.execute(parent, &[&ino]).await?;
            client.batch_execute("COMMIT").await.map(|()| added)
        });
        ensure!(added.context("the database")? == 1, "file {ino} exists");
        Ok(())
    }
}
