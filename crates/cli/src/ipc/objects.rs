//! The objects of a namespace, as ipcs(1) shows them.

use corewalk_ipc::{Perm, Task};
use serde_json::{Map, Value, json};

/// What kind of object.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Sem,
}

impl Kind {
    /// All of them, in the order of ipcs(1).
    pub(super) const ALL: [Self; 1] = [Self::Sem];

    /// Returns the word for it.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Sem => "sem",
        }
    }

    /// Returns the headline of its table.
    pub(super) fn title(self) -> &'static str {
        match self {
            Self::Sem => "------ Semaphore Arrays --------",
        }
    }

    /// Returns the names of its columns.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Sem => &["key", "semid", "owner", "perms", "nsems"],
        }
    }
}

/// An object.
#[derive(Debug)]
pub(super) struct Object {
    pub(super) id: i32,
    pub(super) perm: Perm,
    /// What is shown of its kind only.
    pub(super) numbers: Vec<(&'static str, u64)>,
}

impl Object {
    /// Returns its row of the table.
    pub(super) fn row(&self, kind: Kind) -> Vec<String> {
        let perm = &self.perm;
        let mut row = vec![
            format!("{:#010x}", perm.key),
            self.id.to_string(),
            user_name(perm.uid),
            format!("{:o}", perm.mode & 0o777),
        ];
        row.extend(self.numbers[..kind.columns().len() - 4].iter().map(|(_, n)| n.to_string()));
        row
    }

    /// Returns all that is known of it.
    pub(super) fn json(&self) -> Value {
        let perm = &self.perm;
        let mut object = Map::new();
        let mut put = |name: &str, value: Value| drop(object.insert(name.to_owned(), value));
        put("id", json!(self.id));
        put("key", json!(format!("{:#010x}", perm.key)));
        put("mode", json!(format!("{:o}", perm.mode)));
        for (name, id) in
            [("uid", perm.uid), ("gid", perm.gid), ("cuid", perm.cuid), ("cgid", perm.cgid)]
        {
            put(name, json!(id));
        }
        self.numbers.iter().for_each(|(name, number)| put(name, json!(number)));
        Value::Object(object)
    }
}

/// Returns the objects of a kind, by index; what is made or removed meanwhile may be there or not.
pub(super) fn collect(task: &Task, kind: Kind) -> Vec<Object> {
    match kind {
        Kind::Sem => {
            let max = task.sem_totals().map_or(0, |totals| totals.index_max);
            let sets = (0..=max).filter_map(|at| task.sem_stat_any(at.cast_signed()).ok());
            let object = |set: corewalk_ipc::SemStat| Object {
                id: set.id,
                perm: set.perm,
                numbers: vec![
                    ("nsems", u64::from(set.nsems)),
                    ("otime", set.otime_s),
                    ("ctime", set.ctime_s),
                ],
            };
            sets.map(object).collect()
        }
    }
}

/// Returns the name of a user of this system, else the number.
pub(super) fn user_name(uid: u32) -> String {
    let users = std::fs::read_to_string("/etc/passwd").unwrap_or_default();
    let found = users.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(uid)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| uid.to_string())
}
