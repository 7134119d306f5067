//! `corewalk ipc stat`: prints the limits and the use of a namespace, and its number of tasks.
//!
//! Source: ipcs(1) `--limits` and `--summary`.

use std::io::Write as _;
use std::os::unix::fs::MetadataExt as _;

use serde_json::{Map, Value, json};

use super::place::Place;
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(after_help = "\
Limits, as in /proc/sys/kernel:
  semmsl, semmns, semopm, semmni  semaphores per set; semaphores; operations per call; sets
  msgmax, msgmnb, msgmni          bytes of a message; bytes of a queue; queues
  shmmax, shmall, shmmni          bytes of a segment; pages; segments

Use:
  queues, messages, msg_bytes     message queues, messages in them, their bytes
  segments, shm_pages             shared memory segments, their pages
  sets, semaphores                semaphore sets, semaphores in them
  tasks                           processes in the namespace, this command excepted
  recovered                       dead processes that this command has cleaned up after
  used_bytes                      memory of the file of the namespace")]
pub(crate) struct Arguments {
    /// The namespace: a name, or the path of its file (with a / in it). Without this option: the
    /// namespace that this command runs in.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Print one JSON object.
    #[arg(long)]
    json: bool,
}

/// Cleans up after dead processes first, and also prints their number.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let place = Place::existing(arguments.namespace.as_deref())?;
    let failed = |error: &dyn std::fmt::Display| Failure::of(place.path.display(), error);
    let recovered = place.namespace.recover().map_err(|error| failed(&error))?;
    let tasks = place.namespace.pids().len();
    let task = place.register()?;
    let sems = task.sem_totals().map_err(|error| failed(&error))?;
    let msgs = task.msg_totals().map_err(|error| failed(&error))?;
    let shms = task.shm_totals().map_err(|error| failed(&error))?;
    let limits = place.namespace.limits();
    let bytes = std::fs::metadata(&place.path).map_or(0, |status| status.blocks() * 512);
    let numbers: [(&str, u64); 20] = [
        ("semmsl", limits.semmsl.into()),
        ("semmns", limits.semmns.into()),
        ("semopm", limits.semopm.into()),
        ("semmni", limits.semmni.into()),
        ("msgmax", limits.msgmax.into()),
        ("msgmnb", limits.msgmnb.into()),
        ("msgmni", limits.msgmni.into()),
        ("shmmax", limits.shmmax),
        ("shmall", limits.shmall),
        ("shmmni", limits.shmmni.into()),
        ("queues", msgs.queues.into()),
        ("messages", msgs.messages),
        ("msg_bytes", msgs.bytes),
        ("segments", shms.segments.into()),
        ("shm_pages", shms.pages),
        ("sets", sems.sets.into()),
        ("semaphores", sems.sems),
        ("tasks", tasks as u64),
        ("recovered", recovered as u64),
        ("used_bytes", bytes),
    ];
    let text = if arguments.json {
        let object: Map<String, Value> =
            numbers.iter().map(|(name, number)| ((*name).to_owned(), json!(number))).collect();
        format!("{}\n", Value::Object(object))
    } else {
        numbers.iter().map(|(name, number)| format!("{name:<12}{number:>20}\n")).collect()
    };
    let written = std::io::stdout().write_all(text.as_bytes());
    written.map_err(|error| Failure::of("standard output", error))
}
