//! PostgreSQL with the shared memory of a namespace in user space.
//!
//! When PostgreSQL starts after a crash, it reads `shm_nattch` of the segment of the previous
//! server. If a process still has the segment attached, it refuses to start, since two servers
//! would destroy the data. So `shm_nattch` must be correct after fork, after any end of a process,
//! and for processes that never make a call.
//!
//! The suite runs a server under `corewalk ipc exec --shm`, and kills it while one of its processes
//! is stopped. A new server must refuse to start, with and without `postmaster.pid`. Once the
//! stopped process is killed, a server must start and have all data. After its end, no segment may
//! be left.
//!
//! PostgreSQL refuses to run as root, so its server runs as the user `nobody`. The suite makes all
//! checks twice. The first time `corewalk` runs as `nobody`. The second time it runs as root, and
//! su(1) changes to `nobody`.
//!
//! Source: PostgreSQL `src/backend/port/sysv_shmem.c`; postgres(1); pgbench(1); su(1).

use super::mount::Site;
use super::work::{postgres_folder, quoted};
use crate::Outcome;
use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

const LIBRARY: &str = "libcorewalk_ipc_preload.so";

pub(super) fn ipc_postgres(site: &Site) -> Outcome {
    let Some(postgres) = postgres_folder() else {
        return Outcome::Skipped("no complete postgres is installed".to_owned());
    };
    // The user that runs the server may have no access to the target directory, so the program is
    // copied.
    let work = site.work();
    let files = [Some(site.program.clone()), library(&site.program)];
    for file in files {
        let copied = file.as_deref().and_then(|file| Some((file, work.join(file.file_name()?))));
        let Some((from, to)) = copied else {
            let line = format!("{LIBRARY} is not beside the program; build the workspace first");
            return Outcome::Failed(line);
        };
        if let Err(error) = fs::copy(from, to) {
            return Outcome::Failed(format!("{}: {error}", from.display()));
        }
    }
    for starter in ["user", "root"] {
        let (bin, work) = (quoted(&postgres), quoted(&work));
        let script = format!("STARTER={starter}\nBIN={bin}\nWORK={work}\n{SCRIPT}");
        let ran = site
            .run(&format!("ipc-postgres-{starter}"), Command::new("sh").args(["-euc", &script]));
        match ran {
            Ok(output) => output
                .lines()
                .filter(|line| line.starts_with("- "))
                .for_each(|line| println!("{line}")),
            Err(outcome) => return outcome,
        }
    }
    Outcome::Passed
}

fn library(program: &Path) -> Option<PathBuf> {
    let folder = program.parent()?;
    [folder.join("deps"), folder.to_owned()]
        .into_iter()
        .map(|folder| folder.join(LIBRARY))
        .find(|path| path.is_file())
}

const SCRIPT: &str = r#"
HERE="$WORK/$STARTER"
mkdir "$HERE"
cd "$HERE"
mkdir pg
chown nobody pg
fail() { echo "FAILED: $*"; cat log refused 2> /dev/null || true; exit 1; }
user() { setpriv --reuid=nobody --regid=nogroup --clear-groups -- env HOME="$HERE/pg" LC_ALL=C "$@"; }
case $STARTER in
user)
    NS="$HERE/pg/namespace"
    corewalk() { user "$WORK/corewalk" "$@"; }
    run_in() { corewalk ipc exec --namespace "$NS" --shm -- "$@"; }
    ;;
root)
    NS="$HERE/namespace"
    corewalk() { "$WORK/corewalk" "$@"; }
    run_in() {
        corewalk ipc exec --namespace "$NS" --shm -- \
            su -s /bin/sh nobody -c 'LC_ALL=C exec "$0" "$@"' -- "$@"
    }
    ;;
esac
postgres() {
    run_in "$BIN/postgres" -D "$HERE/pg/data" -c listen_addresses= -c fsync=off \
        -c unix_socket_directories="$HERE/pg" -c shared_memory_type=sysv
}
psql_() { user "$BIN/psql" -h "$HERE/pg" -U bench -At "$@" postgres; }
segments() { corewalk ipc ls --namespace "$NS" -m --json; }
# Waits for a command to succeed, two minutes at most.
until_() {
    tries=0
    until "$@"; do
        tries=$((tries + 1))
        test "$tries" -lt 1200 || fail "timeout: $*"
        sleep 0.1
    done
}
start() {
    postgres > log 2>&1 &
    SERVER=$!
    is_ready() {
        kill -0 "$SERVER" || fail "the server has ended"
        psql_ -c 'SELECT 1' > /dev/null 2>&1
    }
    until_ is_ready
    POSTMASTER=$(head -n 1 pg/data/postmaster.pid)
}
refused() {
    if postgres > refused 2>&1; then fail "a second server has run"; fi
    grep -q 'pre-existing shared memory block (key [0-9]*, ID [0-9]*) is still in use' refused ||
        fail "refused for another reason"
}
attached() { segments | grep -c "\"nattch\":$1," > /dev/null; }

run_in "$BIN/initdb" -D pg/data -U bench -A trust --locale=C > /dev/null
test "$(segments)" = '{"shm":[]}' || fail "initdb has left segments: $(segments)"
start
user "$BIN/pgbench" -h "$HERE/pg" -U bench -i -q -s 1 postgres
user "$BIN/pgbench" -h "$HERE/pg" -U bench -c 4 -j 2 -t 250 postgres
echo "- $(segments)"

# A process of the server that is stopped, so that it does not notice the death of the server.
mkfifo gate
psql_ < gate > backend &
exec 3> gate
echo 'SELECT pg_backend_pid();' >&3
until_ test -s backend
BACKEND=$(cat backend)
kill -s STOP "$BACKEND"
kill -s KILL "$POSTMASTER"
wait "$SERVER" && fail "the killed server has exit status 0"
until_ attached 1
echo "- killed: $(segments)"
refused
rm pg/data/postmaster.pid
refused
echo "- $(grep -o 'pre-existing.*' refused)"
kill -s KILL "$BACKEND"
exec 3>&-
until_ attached 0

start
test "$(psql_ -c 'SELECT count(*) FROM pgbench_history')" = 1000 || fail "transactions are lost"
test "$(psql_ -c 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) =
    (SELECT sum(delta) FROM pgbench_history)')" = t || fail "the sums differ"
kill -s INT "$POSTMASTER"
wait "$SERVER" || fail "the server has failed"
test "$(segments)" = '{"shm":[]}' || fail "segments are left: $(segments)"
test -z "$(ls "$NS.shm/segments")" || fail "files are left: $(ls "$NS.shm/segments")"
"#;
