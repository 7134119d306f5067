//! `corewalk ipc rm`: removes objects, as ipcrm(1) does, or a whole namespace.
//!
//! If an object cannot be removed, `rm` still removes the other objects. At the end it prints an
//! error that names each object that it could not remove.
//!
//! Source: ipcrm(1).

use std::io::ErrorKind;
use std::path::Path;

use corewalk_ipc::{GetFlags, MsgId, SemId, ShmId, Task};
use rustix::io::Errno;

use super::objects::{Kind, collect};
use super::place::{self, Place, remove_shm};
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Arguments {
    /// The namespace: a name, or the path of its file (with a / in it). Without this option: the
    /// namespace that this command runs in.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Remove the message queue with this id.
    #[arg(short = 'q', long = "queue-id", value_name = "ID", group = "what")]
    queue_id: Vec<i32>,
    /// Remove the message queue with this key.
    #[arg(short = 'Q', long = "queue-key", value_name = "KEY", group = "what", value_parser = key)]
    queue_key: Vec<i32>,
    /// Remove the shared memory segment with this id. An attached segment lives until the last
    /// detach.
    #[arg(short = 'm', long = "shmem-id", value_name = "ID", group = "what")]
    shmem_id: Vec<i32>,
    /// Remove the shared memory segment with this key.
    #[arg(short = 'M', long = "shmem-key", value_name = "KEY", group = "what", value_parser = key)]
    shmem_key: Vec<i32>,
    /// Remove the semaphore set with this id.
    #[arg(short = 's', long = "semaphore-id", value_name = "ID", group = "what")]
    semaphore_id: Vec<i32>,
    /// Remove the semaphore set with this key.
    #[arg(short = 'S', long = "semaphore-key", value_name = "KEY", group = "what", value_parser = key)]
    semaphore_key: Vec<i32>,
    /// Remove all objects, or all objects of one kind.
    #[arg(short = 'a', long, value_name = "KIND", group = "what", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "all", value_enum)]
    all: Vec<All>,
    /// Remove the file of the namespace and its segments. This also works if the file is damaged,
    /// or was made before the last boot. Processes that have the namespace open can still use it,
    /// but no process can join it any more.
    #[arg(long, group = "what")]
    purge: bool,
    /// Print each object that is removed.
    #[arg(short = 'v', long)]
    verbose: bool,
}

impl Arguments {
    fn is_purge_only(&self) -> bool {
        let ids = [&self.queue_id, &self.shmem_id, &self.semaphore_id];
        let keys = [&self.queue_key, &self.shmem_key, &self.semaphore_key];
        let is_none = ids.into_iter().chain(keys).all(Vec::is_empty) && self.all.is_empty();
        self.purge && is_none
    }
}

/// The kind of objects that `--all` removes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum All {
    #[value(name = "all")]
    Everything,
    Msg,
    Shm,
    Sem,
}

impl All {
    fn is_about(self, kind: Kind) -> bool {
        match self {
            Self::Everything => true,
            Self::Msg => kind == Kind::Msg,
            Self::Shm => kind == Kind::Shm,
            Self::Sem => kind == Kind::Sem,
        }
    }
}

pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    place::remove_orphans();
    if let Some(word) = arguments.namespace.as_deref().filter(|_| arguments.is_purge_only()) {
        return purge(&place::to_purge(word)?);
    }
    let place = Place::existing(arguments.namespace.as_deref())?;
    place.remove_marks();
    let task = place.register()?;
    let mut failures = Vec::new();
    for (kind, ids, keys) in [
        (Kind::Msg, &arguments.queue_id, &arguments.queue_key),
        (Kind::Shm, &arguments.shmem_id, &arguments.shmem_key),
        (Kind::Sem, &arguments.semaphore_id, &arguments.semaphore_key),
    ] {
        let remove = |id| {
            if arguments.verbose {
                println!("removing {} id '{id}'", kind.word());
            }
            remove(&task, kind, id)
        };
        let of_id = ids.iter().map(|id| {
            let done = remove(*id);
            done.map_err(|errno| format!("{} ({id})", complaint(errno, "id")))
        });
        let of_key = keys.iter().map(|key| {
            let done = find(&task, kind, *key).and_then(&remove);
            done.map_err(|errno| format!("{} ({key:#x})", complaint(errno, "key")))
        });
        failures.extend(of_id.chain(of_key).filter_map(Result::err));
    }
    for kind in Kind::ALL {
        if !arguments.all.iter().any(|all| all.is_about(kind)) {
            continue;
        }
        for object in collect(&task, kind) {
            if arguments.verbose {
                println!("removing {} id '{}'", kind.word(), object.id);
            }
            // Another process may have removed the object meanwhile.
            if let Err(errno) = remove(&task, kind, object.id)
                && !matches!(errno, Errno::INVAL | Errno::IDRM)
            {
                failures.push(format!("{} ({})", complaint(errno, "id"), object.id));
            }
        }
    }
    drop(task);
    if arguments.purge {
        purge(&place.path)?;
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(failures.join("; "))),
    }
}

fn purge(path: &Path) -> Result<(), Failure> {
    let removed = std::fs::remove_file(path);
    removed.map_err(|error| Failure::of(path.display(), error))?;
    let shm = place::beside(path);
    match remove_shm(&shm) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Failure::of(shm.display(), error)),
        _ => Ok(()),
    }
}

/// Returns the message that ipcrm(1) prints for this error. `by` is "id" or "key".
fn complaint(errno: Errno, by: &str) -> String {
    match errno {
        Errno::ACCESS | Errno::PERM => format!("permission denied for {by}"),
        Errno::INVAL | Errno::NOENT => format!("invalid {by}"),
        Errno::IDRM => format!("already removed {by}"),
        Errno::DOM => format!("illegal {by}"),
        errno => format!("{by} failed: {errno}"),
    }
}

fn remove(task: &Task, kind: Kind, id: i32) -> Result<(), Errno> {
    match kind {
        Kind::Msg => task.msg_rmid(MsgId::from_raw(id)),
        Kind::Shm => task.shm_rmid(ShmId::from_raw(id)),
        Kind::Sem => task.sem_rmid(SemId::from_raw(id)),
    }
}

fn find(task: &Task, kind: Kind, key: i32) -> Result<i32, Errno> {
    // `IPC_PRIVATE` is the key of no object. msgget(2), for example, would create a queue.
    if key == corewalk_ipc::IPC_PRIVATE {
        return Err(Errno::DOM);
    }
    match kind {
        Kind::Msg => task.msgget(key, GetFlags::empty(), 0).map(MsgId::raw),
        Kind::Shm => task.shmget(key, 0, GetFlags::empty(), 0).map(ShmId::raw),
        Kind::Sem => task.semget(key, 0, GetFlags::empty(), 0).map(SemId::raw),
    }
}

/// Parses a key like strtoul(3): decimal, octal (`0...`) or hexadecimal (`0x...`).
fn key(word: &str) -> Result<i32, String> {
    let parsed = match word.strip_prefix("0x").or_else(|| word.strip_prefix("0X")) {
        Some(digits) => u32::from_str_radix(digits, 16),
        None if word.len() > 1 && word.starts_with('0') => u32::from_str_radix(&word[1..], 8),
        None => match word.parse::<i32>() {
            Ok(number) => return Ok(number),
            Err(_) => word.parse::<u32>(),
        },
    };
    parsed.map(u32::cast_signed).map_err(|_| "it is no number of 32 bits".to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn complaints_are_those_of_ipcrm() {
        for (errno, said) in [
            (Errno::PERM, "permission denied for key"),
            (Errno::NOENT, "invalid key"),
            (Errno::IDRM, "already removed key"),
            (Errno::DOM, "illegal key"),
        ] {
            assert_eq!(complaint(errno, "key"), said);
        }
    }

    #[test]
    fn key_is_read_as_c_does() {
        let numbers =
            [("17", 17), ("0x11", 17), ("021", 17), ("0", 0), ("0xffffffff", -1), ("-1", -1)];
        for (word, number) in numbers {
            assert_eq!(key(word), Ok(number), "{word}");
        }
        for bad in ["", "x", "0x", "09", "4294967296"] {
            assert!(key(bad).is_err(), "{bad}");
        }
    }
}
