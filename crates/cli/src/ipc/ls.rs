//! `corewalk ipc ls`: lists the objects of a namespace as ipcs(1) does (`forms`), or lists the
//! namespaces of the user.
//!
//! Source: ipcs(1).

use std::fs;
use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::PathBuf;

use corewalk_ipc::Task;
use rustix::io::Errno;
use rustix::process::geteuid;
use serde_json::{Map, Value, json};

use super::forms::{self, Form};
use super::objects::{Kind, collect};
use super::place::{self, NAMESPACE_ENV, Place};
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
pub(crate) struct Arguments {
    /// The namespace: a name, or the path of its file (with a / in it). Without this option: the
    /// namespace that this command runs in. If it runs in none, `ls` lists the namespaces of the
    /// user.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
    /// List message queues.
    #[arg(short = 'q', long)]
    queues: bool,
    /// List shared memory segments.
    #[arg(short = 'm', long)]
    shmems: bool,
    /// List semaphore sets.
    #[arg(short = 's', long)]
    semaphores: bool,
    /// List objects of all three kinds. This is the default.
    #[arg(short = 'a', long)]
    all: bool,
    /// Show the times of the last operations and of the last change, in UTC.
    #[arg(short = 't', long, group = "form")]
    time: bool,
    /// Show pids. Of a queue: the last sender and the last receiver. Of a segment: the creator, and
    /// the last process that attached or detached it. For semaphores use -i.
    #[arg(short = 'p', long, group = "form")]
    pid: bool,
    /// Show the creator and the owner.
    #[arg(short = 'c', long, group = "form")]
    creator: bool,
    /// Show the limits of the namespace.
    #[arg(short = 'l', long, group = "form", conflicts_with = "json")]
    limits: bool,
    /// Show how much of the limits is used.
    #[arg(short = 'u', long, group = "form", conflicts_with = "json")]
    summary: bool,
    /// Show the details of the object with this id. Give its kind as well: -q, -m or -s.
    #[arg(short = 'i', long, group = "form", value_name = "ID")]
    id: Option<i32>,
}

impl Arguments {
    fn form(&self) -> Form {
        match (self.time, self.pid, self.creator) {
            (true, ..) => Form::Times,
            (_, true, _) => Form::Pids,
            (_, _, true) => Form::Creators,
            _ => Form::Plain,
        }
    }

    fn is_about_objects(&self) -> bool {
        let kinds = self.queues || self.shmems || self.semaphores || self.all;
        kinds || self.form() != Form::Plain || self.limits || self.summary || self.id.is_some()
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    place::remove_orphans();
    let is_inside = std::env::var_os(NAMESPACE_ENV).is_some();
    let text = if arguments.namespace.is_none() && !is_inside && !arguments.is_about_objects() {
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
    place.remove_marks();
    let task = place.register()?;
    let chosen = |kind: Kind| match kind {
        Kind::Msg => arguments.queues,
        Kind::Shm => arguments.shmems,
        Kind::Sem => arguments.semaphores,
    };
    let is_all = arguments.all || !Kind::ALL.into_iter().any(chosen);
    let kinds = Kind::ALL.into_iter().filter(|kind| is_all || chosen(*kind));
    if let Some(id) = arguments.id {
        let kinds: Vec<Kind> = kinds.collect();
        let &[kind] = &kinds[..] else {
            return Err(Failure::Usage("of which kind is it? -i takes one of -q, -m, -s".into()));
        };
        return one(&task, kind, id, arguments.json);
    }
    if arguments.limits || arguments.summary {
        let limits = place.namespace.limits();
        let text = kinds.map(|kind| match arguments.limits {
            true => Ok(forms::limits(kind, &limits)),
            false => forms::summary(kind, &task),
        });
        let text: Result<String, Errno> = text.collect();
        return text.map(|text| text + "\n").map_err(|errno| Failure::of("what is used", errno));
    }
    let kinds = kinds.map(|kind| (kind, collect(&task, kind)));
    if arguments.json {
        let list = |objects: Vec<super::objects::Object>| {
            Value::Array(objects.iter().map(super::objects::Object::json).collect())
        };
        let all: Map<String, Value> =
            kinds.map(|(kind, objects)| (kind.name().to_owned(), list(objects))).collect();
        return Ok(format!("{}\n", Value::Object(all)));
    }
    let tables = kinds.map(|(kind, objects)| forms::table(kind, arguments.form(), &objects));
    Ok(tables.collect::<String>() + "\n")
}

fn one(task: &Task, kind: Kind, id: i32, is_json: bool) -> Result<String, Failure> {
    let found = collect(task, kind).into_iter().find(|object| object.id == id);
    let object = found.ok_or_else(|| Failure::Failed(format!("id {id} not found")))?;
    if is_json {
        return Ok(format!("{}\n", object.json()));
    }
    forms::details(task, kind, &object).map_err(|errno| Failure::of(format!("id {id}"), errno))
}

struct Named {
    name: String,
    path: PathBuf,
    /// The memory of the file, in bytes. Holes in the file use no memory.
    used_bytes: u64,
}

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
        // Any user may create a file with the name of a namespace in `/dev/shm`. So files of other
        // users are skipped.
        let status = Some(status).filter(|status| status.uid() == geteuid().as_raw())?;
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
        let path = named.path.to_string_lossy();
        vec![escaped(&named.name), named.used_bytes.to_string(), escaped(&path)]
    });
    forms::columns(&["namespace", "bytes", "path"], &rows.collect::<Vec<_>>())
}

/// Escapes control characters, as `ls -b` does. Otherwise, a name could span several rows or
/// control the terminal.
fn escaped(name: &str) -> String {
    let mut shown = String::with_capacity(name.len());
    for char in name.chars() {
        match char {
            '\\' => shown.push_str("\\\\"),
            '\n' => shown.push_str("\\n"),
            '\t' => shown.push_str("\\t"),
            char if char.is_control() => {
                let mut bytes = [0; 4];
                for byte in char.encode_utf8(&mut bytes).bytes() {
                    shown.push_str(&format!("\\{byte:03o}"));
                }
            }
            char => shown.push(char),
        }
    }
    shown
}
