//! `corewalk stat`: the counters of a mount.

use std::io::Write as _;
use std::path::PathBuf;

use corewalk::Errno;
use corewalk_fuse::XATTR_STAT;
use serde_json::{Map, Value};

use crate::failure::Failure;

const STAT_BYTES_MAX: usize = 64 << 10;

/// The help on the counters.
const COUNTERS: &str = "\
Counters of each mount, current values:
  entries              names in the cache, with those known not to exist
  negatives            names known not to exist
  inodes               inodes in the cache
  removed              entries of removed names that are still in use
  bytes, budget_bytes  memory of the cache, and its limit (mount -o cache=SIZE)
  lookups              references that the kernel has to inodes (the sum of nlookup)

Counters of each mount, since it was mounted:
  hits, misses     names resolved without the back end, and names asked of it
  retries          path walks repeated because a name changed meanwhile
  fallbacks        path walks that took references after too many retries
  refused_fills    answers of the back end not cached because of an invalidation meanwhile
  invalidations    invalidations of names
  reclaimed        entries evicted
  renames          renames and exchanges
  requests         requests served
  refused_forgets  FORGET requests for more references than the kernel had; 0 unless there is a bug
  panics           requests that panicked; 0 unless there is a bug

How requests arrive:
  transport        uring, dev or fuser (mount -o transport=), and why it is not uring

Counters of a tmpfs:
  tmpfs_inodes       inodes; a further name of a file counts as one
  tmpfs_used_bytes   bytes that count towards size=
  tmpfs_table_bytes  memory of the inode table
  tmpfs_shared_sets  sets of extended attributes and ACLs that inodes share
  tmpfs_waiting      inodes whose sets are still to be compared for sharing
  tmpfs_xattr_hits, tmpfs_xattr_misses
                     searches for an equal set that found one, and that found none
  tmpfs_xattr_entries, tmpfs_xattr_reclaimed
                     entries of the index of shared sets; entries dropped to make room

Counters of a store:
  store_inodes, store_used_bytes, store_free_bytes
                        inodes; bytes of files and attributes; bytes that are free
  store_commits         commits, to the log and to the database
  store_logged_commits  commits to the log alone
  store_shared_commits  calls whose changes were committed by another call's commit
  store_logged_bytes    bytes written to the log
  store_log_bytes       size of the log; 0 if there is none
  store_log_held_bytes  bytes in the log that are not in the database yet
  store_log_failures    commits that went to the database because the log failed
  store_records         records that commits wrote to the database
  store_syncs           syncs of the host's files
  store_running_bytes   bytes of records that are not committed
  store_waits           operations that waited for a commit
  store_xattr_blocks, store_xattr_users
                        blocks of extended attributes; inodes that use them
  store_xattr_waiting   inodes whose sets are compared for sharing at the next commit
  store_xattr_saved_bytes
                        bytes saved by sharing
  store_xattr_hits, store_xattr_misses
                        searches for an equal set that found one, and that found none
  store_xattr_entries, store_xattr_reclaimed
                        entries of the index of shared sets; entries dropped to make room
  store_has_reserve     1 if the space for commits on a full disk is reserved
  store_is_read_only    1 if nothing can be changed: mounted with ro, or a commit failed

Counters of a cluster file system:
  cluster_statements    statements sent to the database
  cluster_connections_opened
                        connections to the database, broken ones too
  cluster_sessions      mounts of the file system that are alive, as the last renewal has told
  cluster_leases        directories that this mount may answer from its cache
  cluster_intents_seen  changes of other mounts that waited for this one
  cluster_acknowledgements
                        times that this mount dropped directories for them
  cluster_waits         times that a change of this mount waited for other mounts
  cluster_name_expiries
                        times that the kernel had to drop all names
  cluster_attribute_expiries
                        times that the kernel had to drop the attributes of an inode
  cluster_cached_entries
                        names and inodes in its cache
  cluster_dirty_bytes   bytes that were written and are in memory only: the pending upload
  cluster_disk_hits     reads of objects that cache_dir= answered
  cluster_disk_misses   reads of objects that neither the memory nor cache_dir= answered
  cluster_disk_bytes    space on disk that its files take, now";

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = COUNTERS)]
pub(crate) struct Arguments {
    /// The root directory of a corewalk mount.
    mountpoint: PathBuf,
    /// Print the counters as one JSON object.
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = &arguments.mountpoint;
    let mut value = vec![0; STAT_BYTES_MAX];
    let length = rustix::fs::getxattr(path, XATTR_STAT, &mut value[..]).map_err(|error| {
        let reason = match error {
            Errno::NODATA | Errno::OPNOTSUPP => {
                "not the root directory of a corewalk mount".to_owned()
            }
            Errno::NOTCONN => "the mount has no server; remove it with umount -l".to_owned(),
            error => error.to_string(),
        };
        Failure::of(path.display(), reason)
    })?;
    let json = &value[..length];
    let counters: Map<String, Value> = serde_json::from_slice(json).map_err(|error| {
        Failure::of(path.display(), format!("cannot parse the counters: {error}"))
    })?;
    let text = match arguments.json {
        true => format!("{}\n", String::from_utf8_lossy(json)),
        false => table(&counters),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::of("standard output", error))
}

fn table(counters: &Map<String, Value>) -> String {
    let width = counters.keys().map(String::len).max().unwrap_or(0);
    let numbers = counters.values().filter(|value| value.is_number());
    let digits = numbers.map(|number| number.to_string().len()).max().unwrap_or(0);
    let line = |(name, value): (&String, &Value)| match value.as_str() {
        Some(text) => format!("{name:width$}  {text}\n"),
        None => format!("{name:width$}  {value:>digits$}\n", value = value.to_string()),
    };
    counters.iter().map(line).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_all_counters_of_mounts_and_stores() {
        let words: Vec<&str> =
            COUNTERS.split(|c: char| c != '_' && !c.is_ascii_lowercase()).collect();
        let cache = || corewalk_fuse::Counters::default().fields().map(|(name, _)| name);
        let store = || corewalk_store::StoreStats::default().fields().map(|(name, _)| name);
        for name in cache().chain(store()) {
            assert!(words.contains(&name), "{name}");
        }
        let page = include_str!("../../../docs/using/store.md");
        assert!(store().all(|name| page.contains(&format!("`{name}`"))));
    }

    #[test]
    fn table_keeps_order_and_aligns() {
        let counters = serde_json::from_str(r#"{"misses":7,"a":1234,"b":"dev: text"}"#)
            .expect("the text is JSON");
        assert_eq!(table(&counters), "misses     7\na       1234\nb       dev: text\n");
    }
}
