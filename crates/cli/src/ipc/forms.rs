//! The output formats of ipcs(1): tables of objects, the details of one object, limits and usage.
//!
//! The output has the words and columns of ipcs(1) in util-linux. Only the times look different:
//! they are in UTC and in the ISO 8601 format.
//!
//! Source: ipcs(1) of util-linux 2.39.

use corewalk_ipc::{Limits, SEMVMX, SemId, Task};
use rustix::io::Errno;

use super::objects::{Kind, Object, group_name, user_name};

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Plain,
    Times,
    Pids,
    Creators,
}

pub(super) fn table(kind: Kind, form: Form, objects: &[Object]) -> String {
    let (title, names) = head(kind, form);
    let rows: Vec<Vec<String>> = objects.iter().map(|object| row(object, kind, form)).collect();
    // `ipcs -p` lists no semaphore sets.
    let rows = if names.is_empty() { &[][..] } else { &rows };
    format!("\n------ {title} --------\n{}", columns(names, rows))
}

fn head(kind: Kind, form: Form) -> (&'static str, &'static [&'static str]) {
    match (form, kind) {
        (Form::Plain, Kind::Msg) => {
            ("Message Queues", &["key", "msqid", "owner", "perms", "used-bytes", "messages"])
        }
        (Form::Plain, Kind::Shm) => (
            "Shared Memory Segments",
            &["key", "shmid", "owner", "perms", "bytes", "nattch", "status"],
        ),
        (Form::Plain, Kind::Sem) => {
            ("Semaphore Arrays", &["key", "semid", "owner", "perms", "nsems"])
        }
        (Form::Times, Kind::Msg) => {
            ("Message Queues Send/Recv/Change Times", &["msqid", "owner", "send", "recv", "change"])
        }
        (Form::Times, Kind::Shm) => (
            "Shared Memory Attach/Detach/Change Times",
            &["shmid", "owner", "attached", "detached", "changed"],
        ),
        (Form::Times, Kind::Sem) => {
            ("Semaphore Operation/Change Times", &["semid", "owner", "last-op", "last-changed"])
        }
        (Form::Pids, Kind::Msg) => ("Message Queues PIDs", &["msqid", "owner", "lspid", "lrpid"]),
        (Form::Pids, Kind::Shm) => {
            ("Shared Memory Creator/Last-op PIDs", &["shmid", "owner", "cpid", "lpid"])
        }
        (Form::Pids, Kind::Sem) => ("Semaphore PIDs, see -i", &[]),
        (Form::Creators, Kind::Msg) => {
            ("Message Queues Creators/Owners", &["msqid", "perms", "cuid", "cgid", "uid", "gid"])
        }
        (Form::Creators, Kind::Shm) => (
            "Shared Memory Segment Creators/Owners",
            &["shmid", "perms", "cuid", "cgid", "uid", "gid"],
        ),
        (Form::Creators, Kind::Sem) => {
            ("Semaphore Arrays Creators/Owners", &["semid", "perms", "cuid", "cgid", "uid", "gid"])
        }
    }
}

fn row(object: &Object, kind: Kind, form: Form) -> Vec<String> {
    let perm = &object.perm;
    let mut row = vec![object.id.to_string(), user_name(perm.uid)];
    match (form, kind) {
        (Form::Plain, _) => return object.row(kind),
        (Form::Creators, _) => {
            let mode = format!("{:o}", perm.mode & 0o777);
            let [cuid, uid] = [perm.cuid, perm.uid].map(user_name);
            let [cgid, gid] = [perm.cgid, perm.gid].map(group_name);
            return vec![object.id.to_string(), mode, cuid, cgid, uid, gid];
        }
        (Form::Times, _) => {
            let names: &[&str] = match kind {
                Kind::Msg => &["stime", "rtime", "ctime"],
                Kind::Shm => &["atime", "dtime", "ctime"],
                Kind::Sem => &["otime", "ctime"],
            };
            row.extend(names.iter().map(|name| time(object.number(name))));
        }
        (Form::Pids, _) => {
            let names: &[&str] = match kind {
                Kind::Msg => &["lspid", "lrpid"],
                Kind::Shm => &["cpid", "lpid"],
                Kind::Sem => &[],
            };
            row.extend(names.iter().map(|name| object.number(name).to_string()));
        }
    }
    row
}

/// Formats a table with a line of column names. A column is at least ten letters wide, as in
/// ipcs(1).
pub(super) fn columns(names: &[&str], rows: &[Vec<String>]) -> String {
    let width = |at: usize| {
        let cells = rows.iter().filter_map(|row| row.get(at)).map(String::len);
        cells.chain([10]).max().unwrap_or(10)
    };
    let widths: Vec<usize> = (0..names.len()).map(width).collect();
    let line = |cells: Vec<&str>| {
        let cells = cells.iter().zip(&widths).map(|(cell, width)| format!("{cell:<width$} "));
        format!("{}\n", cells.collect::<String>().trim_end())
    };
    let head = line(names.to_vec());
    let body = rows.iter().map(|row| line(row.iter().map(String::as_str).collect()));
    head + &body.collect::<String>()
}

pub(super) fn details(task: &Task, kind: Kind, object: &Object) -> Result<String, Errno> {
    let (perm, id) = (&object.perm, object.id);
    let owners =
        format!("uid={}\tgid={}\tcuid={}\tcgid={}", perm.uid, perm.gid, perm.cuid, perm.cgid);
    let (mode, access) = (perm.mode, perm.mode & 0o777);
    let number = |name: &str| object.number(name);
    let at = |name: &str| time(object.number(name));
    Ok(match kind {
        Kind::Msg => format!(
            "\nMessage Queue msqid={id}\n{owners}\tmode=0{mode:o}\taccess_perms=0{access:o}\n\
             cbytes={}\tqbytes={}\tqnum={}\tlspid={}\tlrpid={}\n\
             send_time={}\nrcv_time={}\nchange_time={}\n\n",
            number("cbytes"),
            number("qbytes"),
            number("qnum"),
            number("lspid"),
            number("lrpid"),
            at("stime"),
            at("rtime"),
            at("ctime"),
        ),
        Kind::Shm => format!(
            "\nShared memory Segment shmid={id}\n{owners}\nmode=0{mode:o}\taccess_perms=0{access:o}\n\
             bytes={}\tlpid={}\tcpid={}\tnattch={}\natt_time={}\ndet_time={}\nchange_time={}\n\n",
            number("bytes"),
            number("lpid"),
            number("cpid"),
            number("nattch"),
            at("atime"),
            at("dtime"),
            at("ctime"),
        ),
        Kind::Sem => format!(
            "\nSemaphore Array semid={id}\n{owners}\nmode=0{mode:o}, access_perms=0{access:o}\n\
             nsems = {}\notime = {}\nctime = {}\n{}\n",
            number("nsems"),
            at("otime"),
            at("ctime"),
            semaphores(task, id, number("nsems"))?,
        ),
    })
}

fn semaphores(task: &Task, id: i32, nsems: u64) -> Result<String, Errno> {
    let id = SemId::from_raw(id);
    let row = |num: i32| {
        let numbers = [
            i64::from(num),
            task.sem_getval(id, num)?.into(),
            task.sem_getncnt(id, num)?.into(),
            task.sem_getzcnt(id, num)?.into(),
            task.sem_getpid(id, num)?.into(),
        ];
        Ok(numbers.iter().map(ToString::to_string).collect())
    };
    let nsems = i32::try_from(nsems).unwrap_or(0);
    let rows: Vec<Vec<String>> = (0..nsems).map(row).collect::<Result<_, Errno>>()?;
    Ok(columns(&["semnum", "value", "ncount", "zcount", "pid"], &rows))
}

pub(super) fn limits(kind: Kind, limits: &Limits) -> String {
    match kind {
        Kind::Msg => format!(
            "\n------ Messages Limits --------\nmax queues system wide = {}\n\
             max size of message (bytes) = {}\ndefault max size of queue (bytes) = {}\n",
            limits.msgmni, limits.msgmax, limits.msgmnb
        ),
        Kind::Shm => format!(
            "\n------ Shared Memory Limits --------\nmax number of segments = {}\n\
             max seg size (kbytes) = {}\nmax total shared memory (kbytes) = {}\n\
             min seg size (bytes) = 1\n",
            limits.shmmni,
            limits.shmmax / 1024,
            limits.shmall.saturating_mul(rustix::param::page_size() as u64) / 1024,
        ),
        Kind::Sem => format!(
            "\n------ Semaphore Limits --------\nmax number of arrays = {}\n\
             max semaphores per array = {}\nmax semaphores system wide = {}\n\
             max ops per semop call = {}\nsemaphore max value = {SEMVMX}\n",
            limits.semmni, limits.semmsl, limits.semmns, limits.semopm
        ),
    }
}

/// Formats how much of the limits is used, as `ipcs --summary` does. The lines on swap are missing,
/// because the namespace does not know which pages are swapped out.
pub(super) fn summary(kind: Kind, task: &Task) -> Result<String, Errno> {
    Ok(match kind {
        Kind::Msg => {
            let totals = task.msg_totals()?;
            format!(
                "\n------ Messages Status --------\nallocated queues = {}\nused headers = {}\n\
                 used space = {} bytes\n",
                totals.queues, totals.messages, totals.bytes
            )
        }
        Kind::Shm => {
            let totals = task.shm_totals()?;
            format!(
                "\n------ Shared Memory Status --------\nsegments allocated {}\npages allocated {}\n",
                totals.segments, totals.pages
            )
        }
        Kind::Sem => {
            let totals = task.sem_totals()?;
            format!(
                "\n------ Semaphore Status --------\nused arrays = {}\nallocated semaphores = {}\n",
                totals.sets, totals.sems
            )
        }
    })
}

fn time(seconds: u64) -> String {
    if seconds == 0 {
        return "Not set".to_owned();
    }
    let (days, second) = (seconds / 86_400, seconds % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Converts a number of days since 1970-01-01 to a year, a month and a day.
///
/// The calculation lets each year begin in March. A leap day is then the last day of its year.
fn date(days: u64) -> (u64, u64, u64) {
    const DAYS_OF_400_YEARS: u64 = 146_097;
    // The count begins at 0000-03-01.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / DAYS_OF_400_YEARS, days % DAYS_OF_400_YEARS);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let month = if month < 10 { month + 3 } else { month - 9 };
    (era * 400 + year + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_are_as_wide_as_those_of_ipcs_or_wider() {
        let rows = [vec!["0x00000001".to_owned(), "7".to_owned()]];
        assert_eq!(columns(&["key", "semid"], &rows), "key        semid\n0x00000001 7\n");
        let rows = [vec!["a".repeat(12), "7".to_owned()]];
        assert_eq!(columns(&["key", "semid"], &rows), "key          semid\naaaaaaaaaaaa 7\n");
    }

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, said) in [
            (0, "Not set"),
            (1, "1970-01-01T00:00:01Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_709_210_096, "2024-02-29T12:34:56Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (4_102_444_799, "2099-12-31T23:59:59Z"),
        ] {
            assert_eq!(time(seconds), said);
        }
    }

    #[test]
    fn every_table_has_a_column_for_each_cell() {
        let perm = corewalk_ipc::Perm::default();
        let object = Object { id: 3, perm, numbers: vec![("cbytes", 1), ("qnum", 2)] };
        for kind in Kind::ALL {
            for form in [Form::Times, Form::Pids, Form::Creators] {
                let (_, names) = head(kind, form);
                let cells = row(&object, kind, form).len();
                assert!(names.is_empty() || cells == names.len(), "{kind:?} {form:?}");
            }
        }
    }
}
