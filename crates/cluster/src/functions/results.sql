-- The operations of a cluster file system: one function each, one round trip each.
--
-- The functions are volatile, so each of their statements has a snapshot of its own. After a
-- function has taken a lock, its statements see all that was committed before (K.2, K.3). A call is
-- a transaction, and its locks last until it ends.
--
-- A change begins with `cw_begin`, or with `cw_slot` if it needs no locks of directories. It ends
-- with `cw_done` or `cw_fail`. It checks everything before it changes anything, because a result
-- with an errno commits.
--
-- PostgreSQL parses and plans a function in SQL again at each call, unless it is STABLE, returns a
-- set and stands in FROM. Then it becomes a part of the calling statement, which is planned once
-- for each connection. So all functions that are called often are such functions, or in PL/pgSQL.
--
-- Result codes: 0, an errno, or one of these:
--   -1  other sessions have leases on the directories; `cookie` is the number of the intent
--   -2  the session is dead (K.8)
--   -3  the database has crashed since the session registered (K.10)
--   -4  another session has not registered since the crash of the database (K.10), or its kernel
--       may still keep answers (K.7); try again later
--   -5  the home of an inode changed before its lock was taken; repeat the call
--   -6  the answer is right, but must not be cached, because an intent waits (K.2)
--   -7  the session died so long ago that its row is gone

CREATE TYPE cw_row AS (
    code int, cookie bigint,
    ino bigint, home bigint, mode int, uid bigint, gid bigint, nlink bigint, size bigint,
    rdev bigint, atime bigint, mtime bigint, ctime bigint, btime bigint, version bigint, flags int
);

CREATE TYPE cw_entry AS (
    name bytea, code int, cookie bigint,
    ino bigint, home bigint, mode int, uid bigint, gid bigint, nlink bigint, size bigint,
    rdev bigint, atime bigint, mtime bigint, ctime bigint, btime bigint, version bigint, flags int
);

-- Returns a result without inodes.
CREATE FUNCTION cw_code(p_code int, p_cookie bigint) RETURNS SETOF cw_row
LANGUAGE sql STABLE AS $$
    SELECT p_code, p_cookie, 0::bigint, 0::bigint, 0, 0::bigint, 0::bigint, 0::bigint, 0::bigint,
        0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0
$$;

CREATE FUNCTION cw_nodes(p_cookie bigint, p_inos bigint[]) RETURNS SETOF cw_row
LANGUAGE sql STABLE AS $$
    SELECT 0, p_cookie, ino, home, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime, btime,
        version, flags
    FROM node WHERE ino = ANY(p_inos)
$$;
