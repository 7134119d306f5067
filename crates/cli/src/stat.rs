//! `corewalk stat`: the counters of a mount.

use std::io::Write as _;
use std::path::PathBuf;

use corewalk::Errno;
use corewalk_fuse::XATTR_STAT;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Bytes that the counters take at most.
const STAT_BYTES_MAX: usize = 64 << 10;

/// What the counters are.
const COUNTERS: &str = "Now:
    entries, negatives, inodes   names in the cache, those known to be missing, inodes
    removed                      entries of removed names that are still held
    bytes, budget_bytes          memory that the cache takes, and may take
    lookups                      lookups that the kernel holds
Since the mount began:
    hits, misses                 names resolved without the back end, and by asking it
    retries, fallbacks           passes that a change made begin again; walks that then took references
    refused_fills, invalidations answers not cached, since an invalidation came between; invalidations
    reclaimed, renames, requests entries evicted; renames and exchanges; requests served
    refused_forgets, panics      forgets of more than the kernel held; requests that panicked: 0, if all is well
Of a tmpfs, now:
    tmpfs_inodes (with further names of files), tmpfs_used_bytes, tmpfs_table_bytes (memory of inodes)
    tmpfs_shared_sets, tmpfs_waiting  sets of attributes that are shared; files whose sets are shared soon
Of a store, store_*: inodes, used_bytes, free_bytes, commits, logged_commits, shared_commits (which
    found theirs done by another), logged_bytes, log_bytes, log_held_bytes, log_failures, records, syncs,
    running_bytes (not committed), waits, xattr_blocks, xattr_users, xattr_waiting, xattr_saved_bytes,
    has_reserve, is_read_only";

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = COUNTERS)]
pub(crate) struct Arguments {
    /// The root of a mount of corewalk.
    mountpoint: PathBuf,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Prints the counters.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let path = &arguments.mountpoint;
    let mut value = vec![0; STAT_BYTES_MAX];
    let length = rustix::fs::getxattr(path, XATTR_STAT, &mut value[..]).map_err(|error| {
        let reason = match error {
            Errno::NODATA | Errno::OPNOTSUPP => "not the root of a mount of corewalk".to_owned(),
            Errno::NOTCONN => "the mount has lost its server".to_owned(),
            error => error.to_string(),
        };
        Failure::of(path.display(), reason)
    })?;
    let json = &value[..length];
    let counters: Map<String, Value> = serde_json::from_slice(json)
        .map_err(|_| Failure::of(path.display(), "the counters of the mount are not readable"))?;
    let text = match arguments.json {
        true => format!("{}\n", String::from_utf8_lossy(json)),
        false => table(&counters),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(|error| Failure::of("standard output", error))
}

/// Returns one counter per line, in columns.
fn table(counters: &Map<String, Value>) -> String {
    let width = counters.keys().map(String::len).max().unwrap_or(0);
    let values: Vec<String> = counters.values().map(Value::to_string).collect();
    let digits = values.iter().map(String::len).max().unwrap_or(0);
    let lines = counters.keys().zip(&values);
    lines.map(|(name, value)| format!("{name:width$}  {value:>digits$}\n")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_names_all_counters_of_mounts_and_stores() {
        let words: Vec<&str> =
            COUNTERS.split(|c: char| c != '_' && !c.is_ascii_lowercase()).collect();
        let cache = corewalk_fuse::Counters::default().fields().map(|(name, _)| name);
        let store = corewalk_store::StoreStats::default().fields();
        let store = store.map(|(name, _)| name.strip_prefix("store_").expect("it is a store's"));
        for name in cache.iter().chain(&store) {
            assert!(words.contains(name), "{name}");
        }
        let page = include_str!("../../../docs/store.md");
        assert!(store.iter().all(|name| page.contains(&format!("`store_{name}`"))));
    }

    #[test]
    fn table_keeps_order_and_aligns() {
        let counters = serde_json::from_str(r#"{"misses":7,"a":1234}"#).expect("it is JSON");
        assert_eq!(table(&counters), "misses     7\na       1234\n");
    }
}
