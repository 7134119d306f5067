//! `corewalk stat`: the counters of a mount.

use std::io::Write as _;
use std::path::PathBuf;

use corewalk::Errno;
use corewalk_fuse::XATTR_STAT;
use serde_json::{Map, Value};

use crate::failure::Failure;

/// Bytes that the counters take at most.
const STAT_BYTES_MAX: usize = 64 << 10;

/// The command line.
#[derive(clap::Args, Debug)]
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
    fn table_keeps_order_and_aligns() {
        let counters = serde_json::from_str(r#"{"misses":7,"a":1234}"#).expect("it is JSON");
        assert_eq!(table(&counters), "misses     7\na       1234\n");
    }
}
