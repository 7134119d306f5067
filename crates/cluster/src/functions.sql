-- The operations of a cluster file system: one function each, one round trip each.
--
-- The functions are volatile. So each of their statements has a snapshot of its own, and what a
-- function reads after it has taken a lock is not older than the lock (K.2, K.3). A call is a
-- transaction. Its locks last to its end.
--
-- A change begins with `cw_begin` and ends with `cw_done`. It checks everything before it changes
-- anything, because a result with an errno commits.
--
-- Result codes: 0, an errno, or one of these:
--   -1  contended: other sessions hold leases; `cookie` is the number of the intent
--   -2  the session is dead (K.8)
--   -3  the database has started again since the session renewed (K.10)
--   -4  another session has not been seen since the database started (K.10), or does not know yet
--       that it is not the only one (K.7); try again later
--   -5  the home of an inode changed before its lock was taken; repeat the call
--   -6  the answer is right, but must not be cached, since a change waits (K.2)
--   -7  the session is dead for so long that its row is gone

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
CREATE FUNCTION cw_code(p_code int, p_cookie bigint) RETURNS SETOF cw_row LANGUAGE sql AS $$
    SELECT p_code, p_cookie, 0::bigint, 0::bigint, 0, 0::bigint, 0::bigint, 0::bigint, 0::bigint,
        0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0::bigint, 0
$$;

CREATE FUNCTION cw_nodes(p_cookie bigint, p_inos bigint[]) RETURNS SETOF cw_row LANGUAGE sql AS $$
    SELECT 0, p_cookie, ino, home, mode, uid, gid, nlink, size, rdev, atime, mtime, ctime, btime,
        version, flags
    FROM node WHERE ino = ANY(p_inos)
$$;

-- Returns the id of this start of the database. Writes it if this is the first call.
CREATE FUNCTION cw_boot() RETURNS uuid LANGUAGE plpgsql AS $$
DECLARE v uuid;
BEGIN
    SELECT id INTO v FROM boot;
    IF NOT FOUND THEN
        INSERT INTO boot VALUES (true, gen_random_uuid(), clock_timestamp()) ON CONFLICT DO NOTHING;
        SELECT id INTO v FROM boot;
    END IF;
    RETURN v;
END $$;

-- Removes a session for good. Adds up what its slots counted.
CREATE FUNCTION cw_end_session(p_session bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE usage SET
        inodes = inodes + (SELECT coalesce(sum(s.inodes), 0) FROM slot s WHERE session = p_session),
        bytes = bytes + (SELECT coalesce(sum(s.bytes), 0) FROM slot s WHERE session = p_session);
    DELETE FROM slot WHERE session = p_session;
    DELETE FROM lease WHERE session = p_session;
    DELETE FROM intent WHERE session = p_session;
    INSERT INTO dead_object SELECT object, clock_timestamp() FROM pending_object
        WHERE session = p_session ON CONFLICT DO NOTHING;
    DELETE FROM pending_object WHERE session = p_session;
    DELETE FROM session WHERE id = p_session;
END $$;

-- Marks sessions as dead whose time is over. Each is judged under its row lock, after a renewal
-- that is under way, and the verdict holds (K.8).
-- A session that has not registered since the database crashed may have renewed without that the
-- renewal survived. It has one more lease. Rows are locked in ascending order, so that two judges
-- do not wait for each other.
CREATE FUNCTION cw_judge(p_sessions bigint[]) RETURNS void LANGUAGE sql AS $$
    UPDATE session SET dead = true WHERE id IN (SELECT s.id FROM session s
        WHERE s.id = ANY(p_sessions) AND NOT s.dead AND s.until <= clock_timestamp()
            AND (s.boot = (SELECT b.id FROM boot b)
                OR clock_timestamp() > (SELECT b.since FROM boot b) + s.lease)
        ORDER BY s.id FOR UPDATE)
$$;

-- Returns true if a session is dead. A look at `until` alone is no verdict: a renewal may be under
-- way, and the session would live on (K.8).
CREATE FUNCTION cw_is_over(p_session bigint) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM session WHERE id = p_session AND NOT dead AND until > clock_timestamp();
    IF FOUND THEN RETURN false; END IF;
    PERFORM cw_judge(ARRAY[p_session]);
    PERFORM FROM session WHERE id = p_session AND NOT dead;
    RETURN NOT FOUND;
END $$;

-- Opens a session. Removes sessions that died ten minutes ago; their orphans stay, for `cw_reap`.
-- Refuses if `p_most` others live, and then returns the host, process and start of one of them.
CREATE FUNCTION cw_open_session(p_host text, p_pid int, p_lease float8, p_most int)
RETURNS TABLE (id bigint, ino bigint, data text, fs text, host text, pid int, since text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_boot uuid; v record; v_id bigint; v_now timestamptz; v_lease interval;
BEGIN
    PERFORM pg_advisory_xact_lock(-2);
    v_boot := cw_boot();
    PERFORM cw_judge(array_agg(s.id)) FROM session s;
    v_now := clock_timestamp();
    SELECT s.* INTO v FROM session s WHERE NOT s.dead ORDER BY s.id OFFSET p_most LIMIT 1;
    IF FOUND THEN
        RETURN QUERY SELECT 0::bigint, 0::bigint, ''::text, ''::text, v.host, v.pid,
            to_char(v.since, 'YYYY-MM-DD HH24:MI:SS TZ');
        RETURN;
    END IF;
    PERFORM cw_end_session(s.id) FROM session s
        WHERE s.dead AND s.until < v_now - interval '10 minutes';
    v_id := nextval('session_seq');
    v_lease := make_interval(secs => p_lease);
    INSERT INTO session VALUES
        (v_id, p_host, p_pid, v_now, v_now + v_lease, v_boot, false, v_lease, v_now);
    RETURN QUERY SELECT v_id, nextval('ino_seq'), f.data, f.id::text, ''::text, 0, ''::text
        FROM format f;
END $$;

-- Renews a session that registered with this start of the database, or that has dropped its caches
-- since it saw the start `p_boot`. Returns the start, whether intents of others wait for leases of
-- the session (K.12), and the number of live sessions. Returns -3 if the session must drop its
-- caches first (K.10).
--
-- A session that is the only one may let the kernel keep answers until `alone_until`, and the
-- changes of a session that comes later wait for that time (K.7). The lock orders this with the
-- opening of a session. A crash may have lost the last value of `alone_until`.
CREATE FUNCTION cw_renew(p_session bigint, p_boot text)
RETURNS TABLE (code int, boot text, waits bool, sessions bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_boot uuid; v_old uuid; v_count bigint;
BEGIN
    v_boot := cw_boot();
    PERFORM pg_advisory_xact_lock_shared(-2);
    PERFORM cw_judge(array_agg(s.id)) FROM session s;
    SELECT s.boot INTO v_old FROM session s WHERE s.id = p_session AND NOT s.dead FOR UPDATE;
    IF NOT FOUND THEN
        RETURN QUERY SELECT -2, ''::text, false, 0::bigint;
        RETURN;
    END IF;
    IF v_old <> v_boot AND p_boot <> v_boot::text THEN
        RETURN QUERY SELECT -3, v_boot::text, false, 0::bigint;
        RETURN;
    END IF;
    SELECT count(*) INTO v_count FROM session s WHERE NOT s.dead;
    UPDATE session SET until = clock_timestamp() + lease, boot = v_boot,
        alone_until = CASE WHEN v_count = 1 OR v_old <> v_boot THEN clock_timestamp() + lease
            ELSE alone_until END
        WHERE id = p_session;
    RETURN QUERY SELECT 0, v_boot::text, EXISTS (SELECT FROM cw_waiting(p_session)), v_count;
END $$;

CREATE FUNCTION cw_inos() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ino_seq') $$;

-- Takes the lock of a request slot. Returns 0 to go on, 1 if this slot has made the change already,
-- or a code. The slot comes before the check of the session. So a session that is dead learns
-- whether its change was made, and -2 means that it never will be (K.8, K.9).
CREATE FUNCTION cw_slot(p_session bigint, p_slot int, p_seq bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_seq bigint; v_boot uuid;
BEGIN
    SELECT seq INTO v_seq FROM slot WHERE session = p_session AND slot = p_slot FOR UPDATE;
    IF NOT FOUND THEN
        INSERT INTO slot VALUES (p_session, p_slot, 0, 0, '{}', 0, 0) ON CONFLICT DO NOTHING;
        SELECT seq INTO v_seq FROM slot WHERE session = p_session AND slot = p_slot FOR UPDATE;
    END IF;
    IF v_seq = p_seq THEN RETURN 1; END IF;
    -- A connection that was given up has delivered an old request after a newer one.
    IF v_seq > p_seq THEN RETURN 5; END IF;
    SELECT boot INTO v_boot FROM session WHERE id = p_session;
    IF NOT FOUND THEN RETURN -7; END IF;
    IF cw_is_over(p_session) THEN RETURN -2; END IF;
    PERFORM FROM boot WHERE id = v_boot;
    IF NOT FOUND THEN RETURN -3; END IF;
    RETURN 0;
END $$;

-- Takes the locks of a change, in ascending order, and checks that it may be made. Returns 0 to go
-- on, 1 for a change that this slot has made already (K.9), or a negative code.
CREATE FUNCTION cw_begin(
    p_session bigint, p_slot int, p_seq bigint, p_dirs bigint[]
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE d bigint; v_code int; v_others bigint[];
BEGIN
    v_code := cw_slot(p_session, p_slot, p_seq);
    IF v_code <> 0 THEN RETURN v_code; END IF;
    IF array_length(p_dirs, 1) > 1 THEN
        p_dirs := (SELECT array_agg(x ORDER BY x) FROM unnest(p_dirs) x);
    END IF;
    FOREACH d IN ARRAY p_dirs LOOP
        PERFORM pg_advisory_xact_lock(d);
    END LOOP;
    -- The wait for the locks may have been long.
    IF cw_is_over(p_session) THEN RETURN -2; END IF;
    PERFORM FROM session s, boot b WHERE s.id <> p_session AND NOT s.dead
        AND (s.boot <> b.id OR s.alone_until > clock_timestamp());
    IF FOUND THEN
        PERFORM cw_judge(array_agg(s.id)) FROM session s WHERE s.id <> p_session;
        PERFORM FROM session s, boot b WHERE s.id <> p_session AND NOT s.dead
            AND (s.boot <> b.id OR s.alone_until > clock_timestamp());
        IF FOUND THEN RETURN -4; END IF;
    END IF;
    SELECT array_agg(session) INTO v_others FROM lease
        WHERE dir = ANY(p_dirs) AND session <> p_session;
    IF v_others IS NOT NULL THEN
        PERFORM cw_judge(v_others);
        PERFORM FROM session WHERE id = ANY(v_others) AND NOT dead;
        IF FOUND THEN RETURN -1; END IF;
    END IF;
    DELETE FROM intent WHERE session = p_session AND slot = p_slot;
    RETURN 0;
END $$;

-- Writes the intent of a slot, and tells the holders of leases. An intent whose directories are
-- others than before gets a new number. Notifications are only hints (K.12). A text is
-- `i NUMBER HOLDERS DIRECTORIES`.
CREATE FUNCTION cw_intend(p_session bigint, p_slot int, p_dirs bigint[]) RETURNS bigint
LANGUAGE plpgsql AS $$
DECLARE v_id bigint;
BEGIN
    SELECT id INTO v_id FROM intent
        WHERE session = p_session AND slot = p_slot AND dirs = p_dirs;
    IF FOUND THEN RETURN v_id; END IF;
    v_id := nextval('intent_seq');
    INSERT INTO intent VALUES (p_session, p_slot, v_id, p_dirs)
        ON CONFLICT (session, slot) DO UPDATE SET id = v_id, dirs = p_dirs;
    PERFORM pg_notify('corewalk', 'i ' || v_id || ' ' || string_agg(DISTINCT session::text, ',')
            || ' ' || array_to_string(p_dirs, ','))
        FROM lease WHERE dir = ANY(p_dirs) AND session <> p_session;
    RETURN v_id;
END $$;

-- Returns the intents of others that wait for leases of a session (K.12).
CREATE FUNCTION cw_waiting(p_session bigint) RETURNS TABLE (id bigint, dirs bigint[])
LANGUAGE sql AS $$
    SELECT i.id, i.dirs FROM intent i WHERE i.session <> p_session
        AND EXISTS (SELECT FROM lease l WHERE l.session = p_session AND l.dir = ANY(i.dirs))
$$;

-- Gives up the leases of a session on the directories of an intent, if that very intent still
-- exists (K.4). The row lock keeps the intent until the end. So no fill of the session inserts a
-- lease meanwhile, and of two sessions the second one sees that the first one has let go. The last
-- one wakes the writer with the text `a SESSION NUMBER`.
CREATE FUNCTION cw_acknowledge(p_session bigint, p_id bigint) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE v_writer bigint; v_dirs bigint[];
BEGIN
    SELECT session, dirs INTO v_writer, v_dirs FROM intent WHERE id = p_id FOR UPDATE;
    IF NOT FOUND THEN RETURN false; END IF;
    DELETE FROM lease WHERE session = p_session AND dir = ANY(v_dirs);
    PERFORM FROM lease l JOIN session s ON s.id = l.session
        WHERE l.dir = ANY(v_dirs) AND l.session <> v_writer AND NOT s.dead;
    IF NOT FOUND THEN PERFORM pg_notify('corewalk', 'a ' || v_writer || ' ' || p_id); END IF;
    RETURN true;
END $$;

-- Returns the result of a change that `cw_begin` has stopped with `p_code`.
CREATE FUNCTION cw_stop(
    p_code int, p_session bigint, p_slot int, p_dirs bigint[]
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
BEGIN
    IF p_code = 1 THEN
        -- The second row keeps a result without inodes from having no row at all.
        RETURN QUERY SELECT n.* FROM slot s, cw_nodes(s.cookie, s.inos) n
            WHERE s.session = p_session AND s.slot = p_slot;
        RETURN QUERY SELECT n.* FROM slot s, cw_code(0, s.cookie) n
            WHERE s.session = p_session AND s.slot = p_slot;
    ELSIF p_code = -1 THEN
        RETURN QUERY SELECT * FROM cw_code(-1, cw_intend(p_session, p_slot, p_dirs));
    ELSE
        RETURN QUERY SELECT * FROM cw_code(p_code, 0);
    END IF;
END $$;

-- Ends a change: stores what a repetition of the request gets, and returns the changed inodes.
CREATE FUNCTION cw_done(
    p_session bigint, p_slot int, p_seq bigint, p_cookie bigint, p_inos bigint[],
    p_inodes bigint, p_bytes bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
BEGIN
    UPDATE slot SET seq = p_seq, cookie = p_cookie, inos = p_inos,
        inodes = inodes + p_inodes, bytes = bytes + p_bytes
        WHERE session = p_session AND slot = p_slot;
    RETURN QUERY SELECT * FROM cw_nodes(p_cookie, p_inos);
END $$;

-- Grants a lease on the home of `p_ino`, or on the directory `p_dir`, and returns the names after
-- `p_after` with their attributes (K.2). While another change waits, it grants nothing. The first row is the directory itself, without a name. If
-- `p_dir` is 0, the second row is the inode `p_ino`, without a name. At most `p_limit` names.
CREATE FUNCTION cw_fill(
    p_session bigint, p_dir bigint, p_ino bigint, p_after bigint, p_limit int
) RETURNS SETOF cw_entry LANGUAGE plpgsql AS $$
DECLARE v_dir bigint := p_dir; v_code int := 0;
BEGIN
    IF v_dir = 0 THEN
        SELECT CASE WHEN mode & 61440 = 16384 THEN ino ELSE home END INTO v_dir
            FROM node WHERE ino = p_ino;
        IF NOT FOUND THEN RETURN; END IF;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(v_dir);
    IF cw_is_over(p_session) THEN
        RETURN QUERY SELECT NULL::bytea, r.* FROM cw_code(-2, 0) r;
        RETURN;
    END IF;
    PERFORM FROM session s JOIN boot b ON b.id = s.boot WHERE s.id = p_session;
    IF NOT FOUND THEN
        RETURN QUERY SELECT NULL::bytea, r.* FROM cw_code(-3, 0) r;
        RETURN;
    END IF;
    PERFORM FROM intent WHERE dirs @> ARRAY[v_dir];
    IF FOUND THEN
        -- The intent of a dead session goes, so that a late acknowledgement finds nothing.
        DELETE FROM intent WHERE dirs @> ARRAY[v_dir] AND cw_is_over(session);
        PERFORM FROM intent WHERE dirs @> ARRAY[v_dir];
        IF FOUND THEN v_code := -6; END IF;
    END IF;
    IF v_code = 0 THEN
        INSERT INTO lease VALUES (v_dir, p_session) ON CONFLICT DO NOTHING;
    END IF;
    RETURN QUERY SELECT NULL::bytea, v_code, r.cookie, r.ino, r.home, r.mode, r.uid, r.gid, r.nlink,
            r.size, r.rdev, r.atime, r.mtime, r.ctime, r.btime, r.version, r.flags
        FROM cw_nodes(0, ARRAY[v_dir]) r;
    IF p_dir = 0 THEN
        RETURN QUERY SELECT NULL::bytea, r.* FROM cw_nodes(0, ARRAY[p_ino]) r;
    END IF;
    RETURN QUERY SELECT e.name, 0, e.seq, n.ino, n.home, n.mode, n.uid, n.gid, n.nlink, n.size,
            n.rdev, n.atime, n.mtime, n.ctime, n.btime, n.version, n.flags
        FROM (SELECT * FROM edge WHERE parent = v_dir AND seq > p_after
            ORDER BY seq LIMIT p_limit) e JOIN node n USING (ino)
        ORDER BY e.seq;
END $$;

-- Grants a lease on a directory and looks one name up. The first row is the directory itself; the
-- second one, if there is such a name, has its attributes.
CREATE FUNCTION cw_lookup(p_session bigint, p_dir bigint, p_name bytea)
RETURNS SETOF cw_entry LANGUAGE plpgsql AS $$
BEGIN
    RETURN QUERY SELECT * FROM cw_fill(p_session, p_dir, 0, 0, 0);
    RETURN QUERY SELECT e.name, 0, e.seq, n.ino, n.home, n.mode, n.uid, n.gid, n.nlink, n.size,
            n.rdev, n.atime, n.mtime, n.ctime, n.btime, n.version, n.flags
        FROM edge e JOIN node n USING (ino) WHERE e.parent = p_dir AND e.name = p_name;
END $$;

CREATE FUNCTION cw_getattr(p_ino bigint) RETURNS SETOF cw_row LANGUAGE sql AS $$
    SELECT * FROM cw_nodes(0, ARRAY[p_ino])
$$;

CREATE FUNCTION cw_make(
    p_session bigint, p_slot int, p_seq bigint,
    p_dir bigint, p_name bytea, p_ino bigint, p_mode int, p_uid bigint, p_gid bigint, p_rdev bigint,
    p_target bytea, p_access bytea, p_default bytea, p_now bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_cookie bigint := 0; v_is_dir bool := p_mode & 61440 = 16384; v_size bigint := 0;
BEGIN
    v_code := cw_begin(p_session, p_slot, p_seq, ARRAY[p_dir]);
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, ARRAY[p_dir]);
        RETURN;
    END IF;
    PERFORM FROM node WHERE ino = p_dir AND nlink > 0;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(2, 0); RETURN; END IF;
    -- An inode without a name (O_TMPFILE) has an orphan row instead of an edge.
    IF p_name IS NULL THEN
        INSERT INTO orphan VALUES (p_ino, p_session);
    ELSE
        INSERT INTO edge VALUES (p_dir, p_name, p_ino, p_mode & 61440, nextval('edge_seq_seq'))
            ON CONFLICT DO NOTHING RETURNING seq INTO v_cookie;
        IF v_cookie IS NULL THEN RETURN QUERY SELECT * FROM cw_code(17, 0); RETURN; END IF;
        UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1,
            nlink = nlink + v_is_dir::int WHERE ino = p_dir;
    END IF;
    IF p_target IS NOT NULL THEN v_size := octet_length(p_target); END IF;
    IF v_is_dir THEN
        v_size := 4096;
        -- No other session knows the directory before this call commits, so no lock is needed.
        INSERT INTO lease VALUES (p_ino, p_session) ON CONFLICT DO NOTHING;
    END IF;
    INSERT INTO node VALUES (p_ino, p_dir, p_mode, p_uid, p_gid,
        CASE WHEN p_name IS NULL THEN 0 WHEN v_is_dir THEN 2 ELSE 1 END,
        v_size, p_rdev, p_now, p_now, p_now, p_now, 1,
        2 * (p_access IS NOT NULL)::int + 4 * (p_default IS NOT NULL)::int, p_target, NULL);
    IF p_access IS NOT NULL THEN
        INSERT INTO xattr VALUES (p_ino, 'system.posix_acl_access', p_access);
    END IF;
    IF p_default IS NOT NULL THEN
        INSERT INTO xattr VALUES (p_ino, 'system.posix_acl_default', p_default);
    END IF;
    RETURN QUERY SELECT * FROM
        cw_done(p_session, p_slot, p_seq, v_cookie, ARRAY[p_ino, p_dir], 1, v_size);
END $$;

-- Returns the directory whose lease covers an inode, or 0 if the inode does not exist.
CREATE FUNCTION cw_home(p_ino bigint) RETURNS bigint LANGUAGE sql AS $$
    SELECT coalesce((SELECT CASE WHEN mode & 61440 = 16384 THEN ino ELSE home END
        FROM node WHERE ino = p_ino), 0)
$$;

-- Gives an inode another home if it has no name in its home any more but has names elsewhere.
CREATE FUNCTION cw_rehome(p_ino bigint) RETURNS void LANGUAGE sql AS $$
    UPDATE node n SET home = coalesce((SELECT parent FROM edge WHERE ino = p_ino LIMIT 1), home)
        WHERE ino = p_ino AND mode & 61440 <> 16384 AND nlink > 0
            AND NOT EXISTS (SELECT FROM edge e WHERE e.ino = p_ino AND e.parent = n.home)
$$;

CREATE FUNCTION cw_link(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_dir bigint, p_name bytea, p_now bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_cookie bigint; v_home bigint := cw_home(p_ino); v_links bigint; v_kind int;
    v_dirs bigint[] := ARRAY[p_dir, v_home];
BEGIN
    v_code := cw_begin(p_session, p_slot, p_seq, v_dirs);
    IF v_code = 0 AND cw_home(p_ino) <> v_home THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, v_dirs);
        RETURN;
    END IF;
    SELECT nlink, mode & 61440 INTO v_links, v_kind FROM node WHERE ino = p_ino;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(116, 0); RETURN; END IF;
    PERFORM FROM node WHERE ino = p_dir AND nlink > 0;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(2, 0); RETURN; END IF;
    INSERT INTO edge VALUES (p_dir, p_name, p_ino, v_kind, nextval('edge_seq_seq'))
        ON CONFLICT DO NOTHING RETURNING seq INTO v_cookie;
    IF v_cookie IS NULL THEN RETURN QUERY SELECT * FROM cw_code(17, 0); RETURN; END IF;
    IF v_links = 0 THEN
        DELETE FROM orphan WHERE ino = p_ino;
        UPDATE node SET home = p_dir WHERE ino = p_ino;
    END IF;
    UPDATE node SET nlink = nlink + 1, ctime = p_now, version = version + 1 WHERE ino = p_ino;
    UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1 WHERE ino = p_dir;
    RETURN QUERY SELECT * FROM
        cw_done(p_session, p_slot, p_seq, v_cookie, ARRAY[p_ino, p_dir], 0, 0);
END $$;

-- Takes one link of an inode away after its edge is gone. Without a link it becomes an orphan.
CREATE FUNCTION cw_unlinked(p_session bigint, p_ino bigint, p_now bigint) RETURNS void
LANGUAGE plpgsql AS $$
DECLARE v_links bigint;
BEGIN
    UPDATE node SET nlink = CASE WHEN mode & 61440 = 16384 THEN 0 ELSE nlink - 1 END,
        ctime = p_now, version = version + 1 WHERE ino = p_ino RETURNING nlink INTO v_links;
    IF v_links = 0 THEN
        INSERT INTO orphan VALUES (p_ino, p_session) ON CONFLICT DO NOTHING;
    ELSE
        PERFORM cw_rehome(p_ino);
    END IF;
END $$;

CREATE FUNCTION cw_remove(
    p_session bigint, p_slot int, p_seq bigint,
    p_dir bigint, p_name bytea, p_ino bigint, p_now bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_home bigint := cw_home(p_ino); v_found bigint; v_kind int;
    v_dirs bigint[] := ARRAY[p_dir, v_home];
BEGIN
    v_code := cw_begin(p_session, p_slot, p_seq, v_dirs);
    IF v_code = 0 AND cw_home(p_ino) <> v_home THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, v_dirs);
        RETURN;
    END IF;
    SELECT ino, kind INTO v_found, v_kind FROM edge WHERE parent = p_dir AND name = p_name;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(2, 0); RETURN; END IF;
    -- The name has another inode now. The kernel looks it up again and repeats the call.
    IF v_found <> p_ino THEN RETURN QUERY SELECT * FROM cw_code(116, 0); RETURN; END IF;
    IF v_kind = 16384 THEN
        PERFORM FROM edge WHERE parent = p_ino LIMIT 1;
        IF FOUND THEN RETURN QUERY SELECT * FROM cw_code(39, 0); RETURN; END IF;
    END IF;
    DELETE FROM edge WHERE parent = p_dir AND name = p_name;
    PERFORM cw_unlinked(p_session, p_ino, p_now);
    UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1,
        nlink = nlink - (v_kind = 16384)::int WHERE ino = p_dir;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino, p_dir], 0, 0);
END $$;

-- Returns true if `p_ino` is `p_top` or below it.
CREATE FUNCTION cw_is_below(p_ino bigint, p_top bigint) RETURNS bool LANGUAGE plpgsql AS $$
DECLARE v bigint := p_ino;
BEGIN
    LOOP
        IF v = p_top THEN RETURN true; END IF;
        IF v = 1 OR v IS NULL THEN RETURN false; END IF;
        SELECT home INTO v FROM node WHERE ino = v;
    END LOOP;
END $$;

-- Renames a name. p_mode: 0 replace, 1 no replace, 2 exchange. The cookie of the result is the new
-- position of the name; an exchange keeps the positions. Fails with ESTALE if the names have other
-- inodes than `p_ino1` and `p_ino2`, where 0 means that there is no name.
CREATE FUNCTION cw_rename(
    p_session bigint, p_slot int, p_seq bigint,
    p_dir1 bigint, p_name1 bytea, p_dir2 bigint, p_name2 bytea, p_mode int, p_now bigint,
    p_ino1 bigint, p_ino2 bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_cookie bigint := 0; v_one record; v_two record; v_dirs bigint[];
    v_dir1 bool; v_dir2 bool; v_down1 int; v_down2 int; v_ino1 bigint; v_ino2 bigint;
BEGIN
    SELECT e.ino, e.kind, e.seq, cw_home(e.ino) AS home INTO v_one
        FROM edge e WHERE e.parent = p_dir1 AND e.name = p_name1;
    SELECT e.ino, e.kind, e.seq, cw_home(e.ino) AS home INTO v_two
        FROM edge e WHERE e.parent = p_dir2 AND e.name = p_name2;
    v_dirs := array_remove(ARRAY[p_dir1, p_dir2, v_one.home, v_two.home], NULL);
    -- Moves of directories have a lock of their own, since two of them together can make a loop.
    IF p_dir1 <> p_dir2 AND (v_one.kind = 16384 OR v_two.kind = 16384) THEN
        PERFORM pg_advisory_xact_lock(-1);
    END IF;
    v_code := cw_begin(p_session, p_slot, p_seq, v_dirs);
    IF v_code = 0 THEN
        -- What was read before the locks may be old.
        v_ino1 := (SELECT ino FROM edge WHERE parent = p_dir1 AND name = p_name1);
        v_ino2 := (SELECT ino FROM edge WHERE parent = p_dir2 AND name = p_name2);
        IF v_ino1 IS DISTINCT FROM v_one.ino OR cw_home(v_ino1) <> v_one.home
                OR v_ino2 IS DISTINCT FROM v_two.ino OR cw_home(v_ino2) <> v_two.home THEN
            v_code := -5;
        END IF;
    END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, v_dirs);
        RETURN;
    END IF;
    v_dir1 := v_one.kind = 16384;
    v_dir2 := coalesce(v_two.kind = 16384, false);
    PERFORM FROM node WHERE ino = p_dir2 AND nlink > 0;
    v_code := CASE
        WHEN coalesce(v_one.ino, 0) <> p_ino1 OR coalesce(v_two.ino, 0) <> p_ino2 THEN 116
        WHEN v_one.ino IS NULL OR NOT FOUND THEN 2
        WHEN p_mode = 1 AND v_two.ino IS NOT NULL THEN 17
        WHEN p_mode = 2 AND v_two.ino IS NULL THEN 2
        WHEN p_mode = 0 AND v_two.ino IS NOT NULL AND v_dir1 AND NOT v_dir2 THEN 20
        WHEN p_mode = 0 AND v_two.ino IS NOT NULL AND v_dir2 AND NOT v_dir1 THEN 21
        ELSE 0 END;
    IF v_code = 0 AND p_mode <> 2 AND v_dir2 AND v_one.ino <> v_two.ino THEN
        PERFORM FROM edge WHERE parent = v_two.ino LIMIT 1;
        IF FOUND THEN v_code := 39; END IF;
    END IF;
    IF v_code = 0 AND p_dir1 <> p_dir2 AND (v_dir1 AND cw_is_below(p_dir2, v_one.ino)
            OR p_mode = 2 AND v_dir2 AND cw_is_below(p_dir1, v_two.ino)) THEN
        v_code := 22;
    END IF;
    IF v_code <> 0 THEN RETURN QUERY SELECT * FROM cw_code(v_code, 0); RETURN; END IF;
    IF v_one.ino = v_two.ino THEN
        RETURN QUERY SELECT * FROM
            cw_done(p_session, p_slot, p_seq, v_two.seq, ARRAY[v_one.ino, p_dir1, p_dir2], 0, 0);
        RETURN;
    END IF;
    -- By how many subdirectories the two directories lose, the second one as a gain below zero.
    v_down1 := v_dir1::int;
    v_down2 := v_dir2::int;
    IF p_mode = 2 THEN
        UPDATE edge SET ino = v_two.ino, kind = v_two.kind
            WHERE parent = p_dir1 AND name = p_name1;
        UPDATE edge SET ino = v_one.ino, kind = v_one.kind
            WHERE parent = p_dir2 AND name = p_name2;
        v_cookie := v_two.seq;
        UPDATE node SET ctime = p_now, version = version + 1,
            home = CASE WHEN v_dir2 THEN p_dir1 ELSE home END WHERE ino = v_two.ino;
        PERFORM cw_rehome(v_two.ino);
        v_down1 := v_down1 - v_down2;
        v_down2 := -v_down1;
    ELSE
        IF v_two.ino IS NOT NULL THEN
            DELETE FROM edge WHERE parent = p_dir2 AND name = p_name2;
            PERFORM cw_unlinked(p_session, v_two.ino, p_now);
        END IF;
        UPDATE edge SET parent = p_dir2, name = p_name2, seq = nextval('edge_seq_seq')
            WHERE parent = p_dir1 AND name = p_name1 RETURNING seq INTO v_cookie;
        v_down2 := v_down2 - v_down1;
    END IF;
    UPDATE node SET ctime = p_now, version = version + 1,
        home = CASE WHEN v_dir1 THEN p_dir2 ELSE home END WHERE ino = v_one.ino;
    PERFORM cw_rehome(v_one.ino);
    UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1,
        nlink = nlink - v_down1 WHERE ino = p_dir1;
    UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1,
        nlink = nlink - v_down2 WHERE ino = p_dir2;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, v_cookie,
        array_remove(ARRAY[v_one.ino, p_dir1, p_dir2, v_two.ino], NULL), 0, 0);
END $$;

-- Forgets the slices of a file behind `p_size`, and the objects that no slice of it names then.
CREATE FUNCTION cw_cut(p_ino bigint, p_size bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (DELETE FROM slice WHERE ino = p_ino AND chunk >= p_size >> 26 AND pos >= p_size
            RETURNING object)
        INSERT INTO dead_object SELECT object, clock_timestamp() FROM gone
            WHERE object IS NOT NULL ON CONFLICT DO NOTHING;
    UPDATE slice SET len = p_size - pos
        WHERE ino = p_ino AND chunk = p_size >> 26 AND pos + len > p_size;
END $$;

-- Changes attributes. NULL leaves one as it is. `p_access` is the access ACL that belongs to a new
-- mode; an empty one removes the ACL. `p_default` is the same for the default ACL.
CREATE FUNCTION cw_setattr(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_mode int, p_uid bigint, p_gid bigint, p_size bigint,
    p_atime bigint, p_mtime bigint, p_ctime bigint, p_access bytea, p_default bytea
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_home bigint := cw_home(p_ino); v_size bigint; v_set int := 0; v_clear int := 0;
BEGIN
    v_code := cw_begin(p_session, p_slot, p_seq, ARRAY[v_home]);
    IF v_code = 0 AND cw_home(p_ino) <> v_home THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, ARRAY[v_home]);
        RETURN;
    END IF;
    SELECT size INTO v_size FROM node WHERE ino = p_ino;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(116, 0); RETURN; END IF;
    IF p_size < v_size THEN
        PERFORM cw_cut(p_ino, p_size);
        UPDATE node SET inline = substring(inline FROM 1 FOR p_size::int)
            WHERE ino = p_ino AND octet_length(inline) > p_size;
    END IF;
    IF p_access IS NOT NULL THEN
        DELETE FROM xattr WHERE ino = p_ino AND name = 'system.posix_acl_access';
        IF p_access = '' THEN v_clear := 2; ELSE
            v_set := 2;
            INSERT INTO xattr VALUES (p_ino, 'system.posix_acl_access', p_access);
        END IF;
    END IF;
    IF p_default IS NOT NULL THEN
        DELETE FROM xattr WHERE ino = p_ino AND name = 'system.posix_acl_default';
        IF p_default = '' THEN v_clear := v_clear | 4; ELSE
            v_set := v_set | 4;
            INSERT INTO xattr VALUES (p_ino, 'system.posix_acl_default', p_default);
        END IF;
    END IF;
    UPDATE node SET
        mode = CASE WHEN p_mode IS NULL THEN mode ELSE (mode & 61440) | (p_mode & 4095) END,
        uid = coalesce(p_uid, uid), gid = coalesce(p_gid, gid), size = coalesce(p_size, size),
        atime = coalesce(p_atime, atime), mtime = coalesce(p_mtime, mtime), ctime = p_ctime,
        version = version + 1, flags = (flags & ~v_clear) | v_set
        WHERE ino = p_ino;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino], 0,
        coalesce(p_size - v_size, 0));
END $$;

-- Adds written ranges to a file, whose size is at least `p_end` then. `p_inline` replaces the
-- contents of a file without slices. A slice without an object is zeros.
CREATE FUNCTION cw_write(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_end bigint, p_mtime bigint, p_inline bytea,
    p_pos bigint[], p_len bigint[], p_object text[]
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE v_code int; v_home bigint := cw_home(p_ino); v_size bigint;
BEGIN
    v_code := cw_begin(p_session, p_slot, p_seq, ARRAY[v_home]);
    IF v_code = 0 AND cw_home(p_ino) <> v_home THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, ARRAY[v_home]);
        RETURN;
    END IF;
    SELECT size INTO v_size FROM node WHERE ino = p_ino;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(116, 0); RETURN; END IF;
    IF array_length(p_pos, 1) > 0 THEN
        WITH gone AS (DELETE FROM slice s USING unnest(p_pos, p_len) AS w(pos, len)
                WHERE s.ino = p_ino AND s.chunk = w.pos >> 26
                    AND s.pos >= w.pos AND s.pos + s.len <= w.pos + w.len
                RETURNING s.object)
            INSERT INTO dead_object SELECT DISTINCT object, clock_timestamp() FROM gone
                WHERE object IS NOT NULL ON CONFLICT DO NOTHING;
        INSERT INTO slice SELECT p_ino, w.pos >> 26, nextval('slice_seq'), w.pos, w.len, w.object
            FROM unnest(p_pos, p_len, p_object) AS w(pos, len, object);
        DELETE FROM pending_object WHERE object = ANY(p_object);
    END IF;
    UPDATE node SET size = greatest(size, p_end), mtime = p_mtime, ctime = greatest(ctime, p_mtime),
        version = version + 1, inline = coalesce(p_inline, inline)
        WHERE ino = p_ino;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino], 0,
        greatest(p_end - v_size, 0));
END $$;

-- Records objects before they are written.
CREATE FUNCTION cw_pending(p_session bigint, p_objects text[]) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF cw_is_over(p_session) THEN RETURN -2; END IF;
    INSERT INTO pending_object SELECT o, p_session FROM unnest(p_objects) o ON CONFLICT DO NOTHING;
    RETURN 0;
END $$;

-- Returns the contents of a file: a row without a position for the inline bytes, then its slices,
-- oldest first.
CREATE FUNCTION cw_content(p_ino bigint)
RETURNS TABLE (version bigint, size bigint, inline bytea, pos bigint, len bigint, object text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY
        SELECT n.version, n.size, n.inline, NULL::bigint, NULL::bigint, NULL::text
            FROM node n WHERE n.ino = p_ino
        UNION ALL
        (SELECT 0, 0, NULL::bytea, s.pos, s.len, s.object FROM slice s WHERE s.ino = p_ino
            ORDER BY s.seq);
END $$;

CREATE FUNCTION cw_readlink(p_ino bigint) RETURNS bytea LANGUAGE sql AS $$
    SELECT target FROM node WHERE ino = p_ino
$$;

CREATE FUNCTION cw_xattrs(p_ino bigint) RETURNS TABLE (name bytea, value bytea) LANGUAGE sql AS $$
    SELECT x.name, x.value FROM xattr x WHERE ino = p_ino ORDER BY x.name
$$;

-- Sets or (with a NULL value) removes an extended attribute. p_mode: 0 set, 1 create, 2 replace.
CREATE FUNCTION cw_setxattr(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_name bytea, p_value bytea, p_mode int, p_now bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE v_code int; v_home bigint := cw_home(p_ino); v_count bigint; v_names bigint; v_bytes bigint;
BEGIN
    v_code := cw_begin(p_session, p_slot, p_seq, ARRAY[v_home]);
    IF v_code = 0 AND cw_home(p_ino) <> v_home THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, ARRAY[v_home]);
        RETURN;
    END IF;
    PERFORM FROM node WHERE ino = p_ino;
    IF NOT FOUND THEN RETURN QUERY SELECT * FROM cw_code(116, 0); RETURN; END IF;
    PERFORM FROM xattr WHERE ino = p_ino AND name = p_name;
    IF FOUND AND p_mode = 1 THEN RETURN QUERY SELECT * FROM cw_code(17, 0); RETURN; END IF;
    IF NOT FOUND AND (p_mode = 2 OR p_value IS NULL) THEN
        RETURN QUERY SELECT * FROM cw_code(61, 0);
        RETURN;
    END IF;
    SELECT count(*), coalesce(sum(octet_length(name) + 1), 0),
            coalesce(sum(octet_length(name) + octet_length(value)), 0)
        INTO v_count, v_names, v_bytes FROM xattr
        WHERE ino = p_ino AND name <> p_name AND substring(name FROM 1 FOR 7) <> 'system.';
    IF p_value IS NULL THEN
        DELETE FROM xattr WHERE ino = p_ino AND name = p_name;
    ELSE
        IF v_names + octet_length(p_name) + 1 > 65536
                OR v_bytes + octet_length(p_name) + octet_length(p_value) > 1048576 THEN
            RETURN QUERY SELECT * FROM cw_code(28, 0);
            RETURN;
        END IF;
        INSERT INTO xattr AS x VALUES (p_ino, p_name, p_value)
            ON CONFLICT (ino, name) DO UPDATE SET value = p_value;
        v_count := v_count + 1;
    END IF;
    UPDATE node SET ctime = p_now, version = version + 1,
        flags = (flags & ~1) | (v_count > 0)::int WHERE ino = p_ino;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino], 0, 0);
END $$;

-- Removes orphans for good. Returns a code.
CREATE FUNCTION cw_purge(p_session bigint, p_slot int, p_seq bigint, p_inos bigint[])
RETURNS int LANGUAGE plpgsql AS $$
DECLARE v_inodes bigint; v_bytes bigint; v_code int := cw_slot(p_session, p_slot, p_seq);
BEGIN
    IF v_code <> 0 THEN RETURN v_code; END IF;
    p_inos := (SELECT coalesce(array_agg(ino), '{}') FROM
        (SELECT ino FROM orphan WHERE ino = ANY(p_inos) FOR UPDATE) o);
    SELECT count(*), coalesce(sum(size), 0) INTO v_inodes, v_bytes FROM node
        WHERE ino = ANY(p_inos) AND nlink = 0;
    WITH gone AS (DELETE FROM slice WHERE ino = ANY(p_inos) RETURNING object)
        INSERT INTO dead_object SELECT DISTINCT object, clock_timestamp() FROM gone
            WHERE object IS NOT NULL ON CONFLICT DO NOTHING;
    DELETE FROM xattr WHERE ino = ANY(p_inos);
    DELETE FROM lease WHERE dir = ANY(p_inos);
    DELETE FROM node WHERE ino = ANY(p_inos) AND nlink = 0;
    DELETE FROM orphan WHERE ino = ANY(p_inos);
    PERFORM FROM cw_done(p_session, p_slot, p_seq, 0, '{}', -v_inodes, -v_bytes);
    RETURN 0;
END $$;

-- Returns orphans whose session has ended.
CREATE FUNCTION cw_reap(p_limit int) RETURNS bigint[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(ino), '{}') FROM (SELECT o.ino FROM orphan o
        WHERE NOT EXISTS (SELECT FROM session s WHERE s.id = o.session) LIMIT p_limit) x
$$;

-- Returns objects that have been dead for at least `p_age` seconds.
CREATE FUNCTION cw_dead_objects(p_age float8, p_limit int) RETURNS text[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(object), '{}') FROM (SELECT object FROM dead_object
        WHERE since < clock_timestamp() - make_interval(secs => p_age) LIMIT p_limit) x
$$;

CREATE FUNCTION cw_forget_objects(p_objects text[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM dead_object WHERE object = ANY(p_objects)
$$;

CREATE FUNCTION cw_statfs() RETURNS TABLE (inodes bigint, bytes bigint) LANGUAGE sql AS $$
    SELECT (u.inodes + s.inodes)::bigint, (u.bytes + s.bytes)::bigint FROM usage u,
        (SELECT coalesce(sum(inodes), 0) AS inodes, coalesce(sum(bytes), 0) AS bytes FROM slot) s
$$;
