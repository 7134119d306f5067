//! Real programs on a mount. The suites check their results.
//!
//! Each program uses the file system in a demanding way of its own. git renames over existing files
//! and maps its packs. cargo creates and looks up thousands of files. Databases sync and lock.
//! rsync and tar copy all attributes. Each check compares with data from outside of the mount.
//!
//! Source: the manuals of the programs.

use super::mount::{Mount, OPTIONS, Site};
use crate::Outcome;
use std::{
    fs,
    path::{Path, PathBuf},
};

/// The variables of the scripts in a usual run. `$OTHER` is the mount that checks the results.
const WHOLE: &str = r#"
OTHER=$MNT ROUNDS=10 ORIGIN=$ROOT PARTS="crates xtask"
TREE=/usr/share COPIED="/usr/share/doc/bash /usr/share/perl*"
"#;

/// Variables for a slow mount: the scripts then work on parts of the repository only.
pub(super) const SMALL: &str = r#"
ROUNDS=2 ORIGIN= PARTS=xtask
TREE=$ROOT/crates/cluster COPIED=$ROOT/xtask
"#;

pub(super) const GIT: &str = r#"
export GIT_CONFIG_NOSYSTEM=1 HOME="$WORK" GIT_CONFIG_COUNT=3
export GIT_CONFIG_KEY_0=safe.directory GIT_CONFIG_VALUE_0='*'
export GIT_CONFIG_KEY_1=user.name GIT_CONFIG_VALUE_1=suite
export GIT_CONFIG_KEY_2=user.email GIT_CONFIG_VALUE_2=suite@localhost
if [ -z "$ORIGIN" ] || ! git -C "$ORIGIN" rev-parse -q --verify HEAD > /dev/null; then
    ORIGIN="$WORK/origin"
    git init -q "$ORIGIN"
    (cd "$ROOT" && cp -r $PARTS "$ORIGIN")
    git -C "$ORIGIN" add -A
    git -C "$ORIGIN" commit -q -m first
fi
git clone -q --no-local "$ORIGIN" clone
cd clone
git checkout -q -b suite
for round in $(seq "$ROUNDS"); do
    for file in $(git ls-files | head -n 40); do
        echo "line $round" >> "$file"
    done
    git add -A
    git commit -q -m "round $round"
    git mv "$(git ls-files | tail -n 1)" "moved-$round"
    git commit -q -m "move $round"
done
test "$(git rev-list --count suite)" -ge $((2 * ROUNDS))
git gc -q --prune=now
git checkout -q "HEAD~$ROUNDS"
git checkout -q suite
cd "$OTHER/clone"
git fsck --full --strict
test -z "$(git status --porcelain)"
"#;

pub(super) fn git(site: &Site) -> Outcome {
    run_whole(site, "git", GIT)
}

pub(super) const TAR: &str = r#"
tar -C "$TREE" -cf - . | tar -C "$(mktemp -d -p "$MNT")" -xf -
cd "$OTHER"/*
diff -r --no-dereference "$TREE" .
find . -printf '%P %y %m %U %G %l\n' | sort > "$WORK/there"
cd "$TREE"
find . -printf '%P %y %m %U %G %l\n' | sort > "$WORK/here"
cmp "$WORK/here" "$WORK/there"
test "$(wc -l < "$WORK/here")" -gt 50
rm -rf "$MNT"/*
test -z "$(ls -A "$OTHER")"
"#;

pub(super) fn tar(site: &Site) -> Outcome {
    run_whole(site, "tar", TAR)
}

pub(super) fn cargo(site: &Site) -> Outcome {
    const SCRIPT: &str = r#"
mkdir tree
cd tree
cp -r "$ROOT/crates" "$ROOT/xtask" "$ROOT/Cargo.toml" "$ROOT/Cargo.lock" .
export CARGO_TARGET_DIR="$MNT/tree/target" CARGO_PROFILE_DEV_OPT_LEVEL=0
cargo build -q --offline -p corewalk
cargo test -q --offline -p xtask
touch crates/corewalk/src/lib.rs
cargo build -q --offline -p corewalk
"#;
    run_whole(site, "cargo", SCRIPT)
}

pub(super) fn sqlite(site: &Site) -> Outcome {
    const SCRIPT: &str = r#"
for mode in delete truncate persist wal; do
    {
        echo "PRAGMA journal_mode=$mode;"
        echo 'CREATE TABLE t (k INTEGER PRIMARY KEY, v TEXT, n INTEGER);'
        echo 'CREATE INDEX byn ON t (n);'
        for part in 1 2 3 4 5 6 7 8 9 10; do
            echo 'BEGIN;'
            echo "WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM c WHERE x<2000)
                  INSERT INTO t(v, n) SELECT hex(randomblob(50)), x % 97 FROM c;"
            echo 'COMMIT;'
            echo "UPDATE t SET v = v || 'x' WHERE n = $part;"
        done
        echo 'DELETE FROM t WHERE n < 20;'
        echo 'VACUUM;'
    } | sqlite3 "$mode.db" > /dev/null
    test "$(sqlite3 "$mode.db" 'PRAGMA integrity_check;')" = ok
    test "$(sqlite3 "$mode.db" 'SELECT count(*) FROM t WHERE n = 50;')" = 210
done
"#;
    in_mount(site, |mount| mount.shell("sqlite", SCRIPT).map(drop))
}

pub(super) fn postgres(site: &Site) -> Outcome {
    const SCRIPT: &str = r#"
mkdir pg "$WORK/socket"
chown nobody pg "$WORK/socket"
user() { setpriv --reuid=nobody --regid=nogroup --clear-groups -- env HOME="$MNT/pg" "$@"; }
cd pg
user "$BIN/initdb" -D data -U bench -A trust --data-checksums
start() {
    user "$BIN/pg_ctl" -D data -l log -w -o "-h '' -k $WORK/socket" start
}
start
run() { user pgbench -h "$WORK/socket" -U bench "$@" postgres; }
run -i -q -s 3
run -c 4 -j 2 -t 500
user "$BIN/pg_ctl" -D data -w -m fast stop
user "$BIN/pg_checksums" --check -D data
start
test "$(user psql -h "$WORK/socket" -U bench -Atc \
    'SELECT count(*) = 2000 FROM pgbench_history' postgres)" = t
test "$(user psql -h "$WORK/socket" -U bench -Atc \
    'SELECT (SELECT sum(abalance) FROM pgbench_accounts) =
            (SELECT sum(delta) FROM pgbench_history)' postgres)" = t
user "$BIN/pg_ctl" -D data -w -m fast stop
"#;
    let Some(folder) = postgres_folder() else {
        return Outcome::Skipped("no complete postgres is installed".to_owned());
    };
    in_mount(site, |mount| {
        let script = format!("BIN={}\n{SCRIPT}", quoted(&folder));
        mount.shell("postgres", &script).map(drop)
    })
}

pub(super) fn fakeroot(site: &Site) -> Outcome {
    const SCRIPT: &str = r#"
mkdir home
chown nobody home
cd home
setpriv --reuid=nobody --regid=nogroup --clear-groups -- fakeroot sh -euc '
    mkdir tree
    echo text > tree/file
    chown 12:34 tree/file
    chmod 4755 tree/file
    mknod tree/null c 1 3
    ln -s file tree/link
    ln tree/file tree/hard
    tar -cf tree.tar tree
    stat -c "%u:%g %a" tree/file > seen
'
test "$(cat seen)" = "12:34 4755"
tar --numeric-owner -tvf tree.tar | grep -q '^crw.* 1,3 .* tree/null$'
tar --numeric-owner -tvf tree.tar | grep -q '12/34 .*tree/'
test "$(stat -c %U tree/file)" = nobody
"#;
    in_mount(site, |mount| mount.shell("fakeroot", SCRIPT).map(drop))
}

pub(super) const RSYNC: &str = r#"
cd "$WORK"
mkdir -p from/deep/er
cp -r $COPIED from/ 2> /dev/null || cp -r /etc/ssl from/
echo text > from/file
ln from/file from/deep/hard
ln -s ../file from/deep/link
mkfifo from/pipe
mknod from/null c 1 3
chmod 4711 from/file
chown 12:34 from/deep
truncate -s 1M from/sparse
printf x | dd of=from/sparse bs=1 seek=500000 conv=notrunc status=none
setfattr -n user.note -v value from/file
setfacl -m u:nobody:rw,d:g:nogroup:rx from/deep
touch -d '2001-02-03 04:05:06.789' from/deep/er
rsync -aHAX --numeric-ids from/ "$MNT/to/"
# The second run finds nothing to transfer.
test -z "$(rsync -aHAXi --numeric-ids from/ "$OTHER/to/")"
rsync -aHAX --numeric-ids "$OTHER/to/" back/
for other in "$OTHER/to/" back/; do
    test -z "$(rsync -aHAXnic --numeric-ids --delete from/ "$other")"
done
test "$(stat -c %h "$OTHER/to/file")" = 2
test "$(getfattr --only-values -n user.note "$OTHER/to/file")" = value
getfacl -cp "$OTHER/to/deep" | grep -q 'default:group:nogroup:r-x'
# Control: the comparison shows a difference.
echo more >> "$MNT/to/deep/hard"
test -n "$(rsync -aHAXnic --numeric-ids --delete from/ "$OTHER/to/")"
"#;

pub(super) fn rsync(site: &Site) -> Outcome {
    run_whole(site, "rsync", RSYNC)
}

fn run_whole(site: &Site, what: &str, script: &str) -> Outcome {
    let script = format!("ROOT={}\n{WHOLE}{script}", quoted(&site.root));
    in_mount(site, |mount| mount.shell(what, &script).map(drop))
}

fn in_mount(site: &Site, work: impl FnOnce(&mut Mount) -> Result<(), Outcome>) -> Outcome {
    let mut mount = match Mount::start(site, OPTIONS) {
        Ok(mount) => mount,
        Err(outcome) => return outcome,
    };
    match work(&mut mount) {
        Ok(()) => mount.finish(),
        Err(outcome) => outcome,
    }
}

pub(super) fn postgres_folder() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let mut folders: Vec<PathBuf> = versions.map(|entry| entry.path().join("bin")).collect();
    folders.push(PathBuf::from("/usr/bin"));
    let wanted = ["initdb", "pg_ctl", "postgres", "pg_checksums"];
    folders.into_iter().find(|folder| wanted.iter().all(|name| folder.join(name).is_file()))
}

pub(super) fn quoted(path: &Path) -> String {
    format!("'{}'", path.to_string_lossy().replace('\'', r"'\''"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn path_with_a_quote_is_one_word() {
        assert_eq!(quoted(Path::new("/a b/it's")), r"'/a b/it'\''s'");
    }
}
