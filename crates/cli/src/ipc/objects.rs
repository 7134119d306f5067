//! The objects of a namespace, with the attributes that ipcs(1) shows.

use corewalk_ipc::{Perm, SHM_DEST, SHM_LOCKED, Task};
use serde_json::{Map, Value, json};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Msg,
    Shm,
    Sem,
}

impl Kind {
    pub(super) const ALL: [Self; 3] = [Self::Msg, Self::Shm, Self::Sem];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Msg => "msg",
            Self::Shm => "shm",
            Self::Sem => "sem",
        }
    }

    pub(super) fn word(self) -> &'static str {
        match self {
            Self::Msg => "message queue",
            Self::Shm => "shared memory segment",
            Self::Sem => "semaphore",
        }
    }

    fn numbers(self) -> usize {
        match self {
            Self::Msg | Self::Shm => 2,
            Self::Sem => 1,
        }
    }
}

#[derive(Debug)]
pub(super) struct Object {
    pub(super) id: i32,
    pub(super) perm: Perm,
    /// Attributes that only objects of this kind have.
    pub(super) numbers: Vec<(&'static str, u64)>,
}

impl Object {
    pub(super) fn row(&self, kind: Kind) -> Vec<String> {
        let perm = &self.perm;
        let mut row = vec![
            format!("{:#010x}", perm.key),
            self.id.to_string(),
            user_name(perm.uid),
            format!("{:o}", perm.mode & 0o777),
        ];
        row.extend(self.numbers[..kind.numbers()].iter().map(|(_, n)| n.to_string()));
        if kind == Kind::Shm {
            let flags = [(SHM_DEST, "dest"), (SHM_LOCKED, "locked")];
            let flags = flags.into_iter().filter(|(flag, _)| perm.mode & flag != 0);
            row.push(flags.map(|(_, word)| word).collect::<Vec<_>>().join(","));
        }
        row
    }

    pub(super) fn number(&self, name: &str) -> u64 {
        self.numbers.iter().find(|(known, _)| *known == name).map_or(0, |(_, number)| *number)
    }

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

pub(super) fn collect(task: &Task, kind: Kind) -> Vec<Object> {
    let max = match kind {
        Kind::Msg => task.msg_totals().map_or(0, |totals| totals.index_max),
        Kind::Shm => task.shm_totals().map_or(0, |totals| totals.index_max),
        Kind::Sem => task.sem_totals().map_or(0, |totals| totals.index_max),
    };
    (0..=max).filter_map(|index| object(task, kind, index.cast_signed())).collect()
}

fn object(task: &Task, kind: Kind, index: i32) -> Option<Object> {
    match kind {
        Kind::Msg => {
            let queue = task.msg_stat_any(index).ok()?;
            let numbers = vec![
                ("cbytes", queue.cbytes),
                ("qnum", queue.qnum),
                ("qbytes", queue.qbytes),
                ("lspid", queue.lspid.into()),
                ("lrpid", queue.lrpid.into()),
                ("stime", queue.stime_s),
                ("rtime", queue.rtime_s),
                ("ctime", queue.ctime_s),
            ];
            Some(Object { id: queue.id.raw(), perm: queue.perm, numbers })
        }
        Kind::Shm => {
            let segment = task.shm_stat_any(index).ok()?;
            let numbers = vec![
                ("bytes", segment.size_bytes),
                ("nattch", segment.nattch),
                ("cpid", segment.cpid.into()),
                ("lpid", segment.lpid.into()),
                ("atime", segment.atime_s),
                ("dtime", segment.dtime_s),
                ("ctime", segment.ctime_s),
            ];
            Some(Object { id: segment.id.raw(), perm: segment.perm, numbers })
        }
        Kind::Sem => {
            let set = task.sem_stat_any(index).ok()?;
            let numbers =
                vec![("nsems", set.nsems.into()), ("otime", set.otime_s), ("ctime", set.ctime_s)];
            Some(Object { id: set.id.raw(), perm: set.perm, numbers })
        }
    }
}

pub(super) fn user_name(uid: u32) -> String {
    name_in("/etc/passwd", uid)
}

pub(super) fn group_name(gid: u32) -> String {
    name_in("/etc/group", gid)
}

fn name_in(path: &str, id: u32) -> String {
    let lines = std::fs::read_to_string(path).unwrap_or_default();
    let found = lines.lines().find_map(|line| {
        let mut fields = line.split(':');
        let name = fields.next()?;
        (fields.nth(1)?.parse() == Ok(id)).then(|| name.to_owned())
    });
    found.unwrap_or_else(|| id.to_string())
}
