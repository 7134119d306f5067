//! `corewalk ipc rm`: removes objects, after ipcrm(1), or a whole namespace.
//!
//! Each object that cannot be removed is named; the others are removed.
//!
//! Source: ipcrm(1).

use corewalk_ipc::Task;
use rustix::io::Errno;

use super::objects::{Kind, collect};
use super::place::Place;
use crate::failure::Failure;

/// The command line.
#[derive(clap::Args, Debug)]
#[command(group = clap::ArgGroup::new("what").required(true).multiple(true))]
pub(crate) struct Arguments {
    /// The namespace: its name, or with a slash in it the path of its file. Without this option it is the one
    /// that this process runs in.
    #[arg(long, value_name = "NAME|PATH")]
    namespace: Option<String>,
    /// Remove the semaphore set with this id.
    #[arg(short = 's', long = "semaphore-id", value_name = "ID", group = "what")]
    semaphore_id: Vec<i32>,
    /// Remove the semaphore set with this key.
    #[arg(short = 'S', long = "semaphore-key", value_name = "KEY", group = "what", value_parser = key)]
    semaphore_key: Vec<i32>,
    /// Remove all objects.
    #[arg(short = 'a', long, group = "what")]
    all: bool,
    /// Remove the file of the namespace. Who has it open keeps it; nobody can join it any more.
    #[arg(long, group = "what")]
    purge: bool,
}

/// Removes them.
pub(crate) fn run(arguments: &Arguments) -> Result<(), Failure> {
    let place = Place::existing(arguments.namespace.as_deref())?;
    let task = place.register()?;
    let mut failures = Vec::new();
    for (kind, ids, keys) in [(Kind::Sem, &arguments.semaphore_id, &arguments.semaphore_key)] {
        let of_id = ids.iter().map(|id| ("id", id.to_string(), remove(&task, kind, *id)));
        let of_key = keys.iter().map(|key| {
            let done = find(&task, kind, *key).and_then(|id| remove(&task, kind, id));
            ("key", format!("{key:#010x}"), done)
        });
        for (by, number, done) in of_id.chain(of_key) {
            if let Err(errno) = done {
                failures.push(format!("{} {by} {number}: {errno}", kind.name()));
            }
        }
    }
    if arguments.all {
        for kind in Kind::ALL {
            for object in collect(&task, kind) {
                // Another may have removed it meanwhile.
                if let Err(errno) = remove(&task, kind, object.id)
                    && errno != Errno::INVAL
                {
                    failures.push(format!("{} id {}: {errno}", kind.name(), object.id));
                }
            }
        }
    }
    drop(task);
    if arguments.purge {
        let removed = std::fs::remove_file(&place.path);
        removed.map_err(|error| Failure::of(place.path.display(), error))?;
    }
    match failures.is_empty() {
        true => Ok(()),
        false => Err(Failure::Failed(failures.join("; "))),
    }
}

fn remove(task: &Task, kind: Kind, id: i32) -> Result<(), Errno> {
    match kind {
        Kind::Sem => task.sem_rmid(id),
    }
}

fn find(task: &Task, kind: Kind, key: i32) -> Result<i32, Errno> {
    // There is no key of a private object.
    if key == corewalk_ipc::IPC_PRIVATE {
        return Err(Errno::INVAL);
    }
    match kind {
        Kind::Sem => task.semget(key, 0, 0),
    }
}

/// Reads a key as strtoul(3) does: decimal, octal, hexadecimal.
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
