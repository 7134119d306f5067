//! `corewalk ipc ls`: the objects of a namespace, after ipcs(1); without one, the namespaces.
//!
//! Source: ipcs(1).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use serde_json::{Map, Value, json};

use super::objects::{Kind, collect};
use super::place::{self, NAMESPACE_ENV, Place};
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The namespace: its name, or with a slash in it the path of its file. Without this option it is the one
    /// that this process runs in, or the namespaces of the user are shown.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// Show message queues.
    #[arg(short = 'q', long)]
    queues: bool,
    /// Show segments of shared memory.
    #[arg(short = 'm', long)]
    shmems: bool,
    /// Show semaphore sets.
    #[arg(short = 's', long)]
    semaphores: bool,
    /// Show all of them, as without any of these.
    #[arg(short = 'a', long)]
    all: bool,
}

/// Shows them.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let is_inside = std::env::var_os(NAMESPACE_ENV).is_some();
    let text = if arguments.namespace.is_none() && !is_inside {
        let namespaces = namespaces()?;
        if arguments.json { namespaces_json(&namespaces) } else { namespaces_table(&namespaces) }
    } else {
        objects(arguments)?
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| Failure::of("standard output", error))
}

fn objects(arguments: &Arguments) -> Result<String, Failure> {
    let place = Place::existing(arguments.namespace.as_deref())?;
    let task = place.register()?;
    let chosen = |kind: Kind| match kind {
        Kind::Msg => arguments.queues,
        Kind::Shm => arguments.shmems,
        Kind::Sem => arguments.semaphores,
    };
    let is_all = arguments.all || !Kind::ALL.into_iter().any(chosen);
    let kinds = Kind::ALL.into_iter().filter(|kind| is_all || chosen(*kind));
    let kinds = kinds.map(|kind| (kind, collect(&task, kind)));
    if arguments.json {
        let list = |objects: Vec<super::objects::Object>| {
            Value::Array(objects.iter().map(super::objects::Object::json).collect())
        };
        let all: Map<String, Value> =
            kinds.map(|(kind, objects)| (kind.name().to_owned(), list(objects))).collect();
        return Ok(format!("{}\n", Value::Object(all)));
    }
    let tables = kinds.map(|(kind, objects)| {
        let rows: Vec<Vec<String>> = objects.iter().map(|object| object.row(kind)).collect();
        format!("\n{}\n{}", kind.title(), columns(kind.columns(), &rows))
    });
    Ok(tables.collect::<String>() + "\n")
}

/// Returns rows in columns of ten letters and one between, as ipcs(1) has them.
fn columns(names: &[&str], rows: &[Vec<String>]) -> String {
    let line = |cells: Vec<&str>| {
        let cells: String = cells.iter().map(|cell| format!("{cell:<10} ")).collect();
        format!("{}\n", cells.trim_end())
    };
    let head = line(names.to_vec());
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    head + &body.collect::<String>()
}

/// A namespace that has a name.
struct Named {
    name: String,
    path: PathBuf,
    /// Bytes of memory that it takes.
    used_bytes: u64,
}

/// Returns the namespaces of the user.
fn namespaces() -> Result<Vec<Named>, Failure> {
    let prefix = place::path("x")?;
    let folder = prefix.parent().unwrap_or(std::path::Path::new("/")).to_owned();
    let prefix = prefix.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let prefix = &prefix[..prefix.len() - 1];
    let entries = fs::read_dir(&folder).map_err(|error| Failure::of(folder.display(), error))?;
    let named = entries.filter_map(|entry| {
        let entry = entry.ok()?;
        let name = entry.file_name().into_string().ok()?.strip_prefix(prefix)?.to_owned();
        let status = entry.metadata().ok().filter(fs::Metadata::is_file)?;
        Some(Named { name, path: entry.path(), used_bytes: status.blocks() * 512 })
    });
    let mut named: Vec<Named> = named.collect();
    named.sort_by(|a, b| a.name.cmp(&b.name));
    Ok(named)
}

fn namespaces_json(namespaces: &[Named]) -> String {
    let list: Vec<Value> = namespaces
        .iter()
        .map(|named| {
            let Named { name, path, used_bytes } = named;
            json!({ "name": name, "path": path.to_string_lossy(), "used_bytes": used_bytes })
        })
        .collect();
    format!("{}\n", json!({ "namespaces": list }))
}

fn namespaces_table(namespaces: &[Named]) -> String {
    let rows = namespaces.iter().map(|named| {
        vec![named.name.clone(), named.used_bytes.to_string(), named.path.display().to_string()]
    });
    columns(&["namespace", "bytes", "path"], &rows.collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_those_of_ipcs() {
        let rows = [vec!["0x00000001".to_owned(), "7".to_owned()]];
        assert_eq!(columns(&["key", "semid"], &rows), "key        semid\n0x00000001 7\n");
    }
}
