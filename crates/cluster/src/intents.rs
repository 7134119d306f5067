//! Messages between mounts: intents of changes, and acknowledgements that leases were given up.
//!
//! An *intent* records a change that waits until other mounts have given up leases. The mount that
//! makes the change is the *writer*. The *listener* of each mount is a task with a connection of
//! its own. For an intent of another mount, it drops the cached directories
//! (`Caches::drop_directories`), and then sends an acknowledgement. This deletes the leases of
//! its session on these directories, if the intent still exists. The last acknowledgement notifies
//! the writer, which sends its change again.
//!
//! # Lost notifications
//! A notification is only a hint. The listener also asks the database for intents: after each
//! connect, and if a renewal reports some (guarantee K.12 in `lib.rs`). A writer repeats its change
//! after some time, even without a notification.
//!
//! # Why no answer from before the change is cached
//! An intent for a directory d is written under the exclusive lock of d. A fill (a read of d for
//! the cache) takes the lock shared, and looks for intents before it inserts a lease (guarantee
//! K.2).
//! - If the fill takes the lock before the intent is written, it may insert a lease, which the
//!   acknowledgement deletes. If the fill's reply comes after the cache has dropped d, its ticket
//!   is too old, so the reply is not cached (`directory.rs`).
//! - If the fill takes the lock later, it finds the intent, inserts no lease, and reports this.
//!
//! The acknowledgement holds the row lock of the intent until it commits. So it deletes no lease
//! that a fill has inserted after the change.
//!
//! # Why mounts do not deadlock
//! The listener waits for the mutex of the cache, which is never held during a statement, and for
//! its own statements. In the database, these wait only for the row of the intent. Apart from
//! acknowledgements, two statements lock that row:
//! - the change of the writer, which writes the row, or deletes it after the last lease is gone,
//! - a fill that deletes the intent of a dead session, and then waits for no further lock.
//!
//! Neither of them waits for a listener while it has the row. A call may wait for an
//! acknowledgement, but then it holds no lock that the listener of its mount takes. So if two
//! mounts change one directory at the same time, each acknowledges the other's intent.
//!
//! To make the kernel drop answers ([`crate::directory`]), the listener waits for no request.
//!
//! Source: PostgreSQL, "NOTIFY"; Gray and Cheriton, "Leases" (SOSP 1989).

use std::collections::VecDeque;
use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::time::Duration;

use corewalk::Errno;
use corewalk_base::{Mutex, ShardedCounter};
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::time::timeout;
use tokio_postgres::{AsyncMessage, Client, Statement};

use crate::address::set_up;
use crate::connection::{DatabaseError, PLANS};
use crate::options::Flaws;
use crate::session::Session;

const LISTEN: &str = "LISTEN corewalk";
const WAITING: &str = "SELECT * FROM cw_waiting($1)";
const ACKNOWLEDGE: &str = "SELECT cw_acknowledge($1, $2)";
/// The pause before the listener connects again.
const PAUSE: Duration = Duration::from_millis(200);
/// Maximum number of acknowledged intents that are remembered, for calls that ask for them later.
const KEPT: usize = 1024;

#[derive(Debug, Default)]
pub(crate) struct Post {
    /// Intents of this mount that all lease holders have acknowledged, until a call asks for them.
    acknowledged: Mutex<VecDeque<i64>>,
    arrived: Notify,
    /// Makes the listener read the intents from the database.
    look: Notify,
    pub(crate) waits: ShardedCounter,
    pub(crate) intents: ShardedCounter,
    pub(crate) acknowledgements: ShardedCounter,
}

impl Post {
    pub(crate) fn look(&self) {
        self.look.notify_one();
    }

    pub(crate) async fn wait(&self, intent: i64, limit: Duration) {
        let news = async {
            loop {
                let mut arrived = std::pin::pin!(self.arrived.notified());
                arrived.as_mut().enable();
                if self.take(intent) {
                    return;
                }
                arrived.await;
            }
        };
        // Ignore the end of the time limit. The caller sends its change again in any case.
        let _ = timeout(limit, news).await;
    }

    fn take(&self, intent: i64) -> bool {
        let mut acknowledged = self.acknowledged.lock();
        let place = acknowledged.iter().position(|it| *it == intent);
        place.and_then(|place| acknowledged.remove(place)).is_some()
    }

    fn deliver(&self, intent: i64) {
        let mut acknowledged = self.acknowledged.lock();
        if acknowledged.len() == KEPT {
            acknowledged.pop_front();
        }
        acknowledged.push_back(intent);
        drop(acknowledged);
        self.arrived.notify_waiters();
    }
}

#[derive(Debug, PartialEq, Eq)]
enum News {
    Intent(i64, Vec<u64>),
    Acknowledged(i64),
    /// Another mount has begun.
    Opened,
    /// A notification for other sessions.
    Other,
}

/// Parses the text of a notification. `functions/changes.sql` and `functions/sessions.sql` describe
/// its format.
fn parse(text: &str, session: i64) -> News {
    let mut words = text.split(' ');
    let mut word = || words.next().unwrap_or_default();
    let is_mine = |id: &str| id.parse() == Ok(session);
    match (word(), word(), word(), word()) {
        ("i", id, holders, dirs) if holders == "*" || holders.split(',').any(is_mine) => {
            let dirs = dirs.split(',').map(str::parse).collect::<Result<_, _>>();
            match (id.parse(), dirs) {
                (Ok(id), Ok(dirs)) => News::Intent(id, dirs),
                _ => News::Other,
            }
        }
        ("a", writer, id, _) if is_mine(writer) => {
            id.parse().map_or(News::Other, News::Acknowledged)
        }
        ("s", ..) => News::Opened,
        _ => News::Other,
    }
}

struct Line {
    client: Client,
    news: UnboundedReceiver<String>,
    waiting: Statement,
    acknowledge: Statement,
}

pub(crate) async fn listen(session: Weak<Session>, flaws: Flaws) {
    loop {
        let Some(strong) = session.upgrade() else { return };
        let limit = strong.lease() / 3;
        let connected = timeout(limit, connect(&strong)).await;
        drop(strong);
        match connected {
            Ok(Ok(line)) => serve(&session, line, flaws, limit).await,
            Ok(Err(error)) => log::debug!("the listener cannot connect: {}", error),
            Err(_) => log::debug!("the listener cannot connect: no answer"),
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn connect(session: &Session) -> Result<Line, DatabaseError> {
    let (client, mut connection) = session.database.address().connect().await?;
    let (sender, news) = unbounded_channel();
    session.database.handle().spawn(async move {
        while let Some(message) = poll_fn(|context| connection.poll_message(context)).await {
            match message {
                Ok(AsyncMessage::Notification(notification)) => {
                    if sender.send(notification.payload().to_owned()).is_err() {
                        return;
                    }
                }
                Ok(_) => {}
                // The listener sees that the channel is closed, and connects again.
                Err(_) => return,
            }
        }
    });
    set_up(&client).await?;
    let prepared = async {
        client.batch_execute(PLANS).await?;
        client.batch_execute(LISTEN).await?;
        Ok((client.prepare(WAITING).await?, client.prepare(ACKNOWLEDGE).await?))
    };
    let (waiting, acknowledge) = prepared.await.map_err(DatabaseError::Client)?;
    Ok(Line { client, news, waiting, acknowledge })
}

async fn serve(session: &Weak<Session>, mut line: Line, flaws: Flaws, limit: Duration) {
    let mut asks = true;
    loop {
        let Some(strong) = session.upgrade() else { return };
        if asks && answer_waiting(&strong, &line, flaws, limit).await.is_err() {
            return;
        }
        // Wait for notifications for a limited time only. Then check whether the mount has dropped
        // the session.
        let idle = async {
            tokio::select! {
                text = line.news.recv() => Some(text),
                () = strong.post.look.notified() => None,
                () = tokio::time::sleep(PAUSE * 5) => Some(Some(String::new())),
            }
        };
        let text = match idle.await {
            None => {
                asks = true;
                continue;
            }
            Some(None) => return,
            Some(Some(text)) => text,
        };
        asks = false;
        if flaws.hears_nothing {
            continue;
        }
        let id = strong.id();
        match parse(&text, id) {
            News::Other => {}
            News::Acknowledged(intent) => strong.post.deliver(intent),
            News::Opened => {
                // A renewal tells this session that it is not alone. Only then the mount makes the
                // kernel drop what its own changes alter. If this renewal fails, the next periodic
                // renewal tells it.
                if !strong.kernel_time().is_zero() {
                    let _ = strong.renew().await;
                }
            }
            News::Intent(intent, dirs) => {
                let acknowledged = line.acknowledge(&strong, (id, intent), &dirs, (flaws, limit));
                if acknowledged.await.is_err() {
                    return;
                }
            }
        }
    }
}

async fn answer_waiting(
    session: &Arc<Session>,
    line: &Line,
    flaws: Flaws,
    limit: Duration,
) -> Result<(), Errno> {
    let id = session.id();
    let rows = timeout(limit, line.client.query(&line.waiting, &[&id])).await;
    for row in rows.map_err(|_| Errno::IO)?.map_err(|_| Errno::IO)? {
        let dirs: Vec<i64> = row.get("dirs");
        let dirs: Vec<u64> = dirs.into_iter().map(|dir| dir as u64).collect();
        line.acknowledge(session, (id, row.get("id")), &dirs, (flaws, limit)).await?;
    }
    Ok(())
}

impl Line {
    /// Drops the cached directories of an intent, and then acknowledges the intent. If the kernel
    /// cannot drop its names, first waits until their timeouts are over.
    async fn acknowledge(
        &self,
        session: &Session,
        (id, intent): (i64, i64),
        dirs: &[u64],
        (flaws, limit): (Flaws, Duration),
    ) -> Result<(), Errno> {
        session.post.intents.add(1);
        if !flaws.keeps_after_intent {
            session.drop_directories(dirs).await;
        }
        session.database.counters.statements.add(1);
        let sent = timeout(limit, self.client.query(&self.acknowledge, &[&id, &intent])).await;
        sent.map_err(|_| Errno::IO)?.map_err(|_| Errno::IO)?;
        session.post.acknowledgements.add(1);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notification_is_for_the_sessions_that_it_names() {
        assert_eq!(parse("i 7 3,14 1,22", 14), News::Intent(7, vec![1, 22]));
        assert_eq!(parse("i 7 3,14 1,22", 4), News::Other);
        assert_eq!(parse("i 7 * 1,22", 4), News::Intent(7, vec![1, 22]));
        assert_eq!(parse("a 3 7", 3), News::Acknowledged(7));
        assert_eq!(parse("a 3 7", 7), News::Other);
        assert_eq!(parse("s", 7), News::Opened);
        assert_eq!(parse("", 0), News::Other);
    }
}
