-- Sessions: how a mount opens, renews and ends its session.

-- Returns `boot.id`. Writes the row if this is the first call after a crash of the database.
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

-- Removes a session for good, and adds the counters of its slots to `usage`. The row of the session
-- is deleted first, so that no change adds a slot. The row lock of `usage` orders two calls.
CREATE FUNCTION cw_end_session(p_session bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM usage FOR UPDATE;
    DELETE FROM session WHERE id = p_session;
    WITH gone AS (DELETE FROM slot WHERE session = p_session RETURNING inodes, bytes)
        UPDATE usage SET
            inodes = inodes + (SELECT coalesce(sum(g.inodes), 0) FROM gone g),
            bytes = bytes + (SELECT coalesce(sum(g.bytes), 0) FROM gone g);
    DELETE FROM lease WHERE session = p_session;
    DELETE FROM flock WHERE session = p_session;
    DELETE FROM intent WHERE session = p_session;
    -- One statement, so that an object stays if a concurrent `cw_write` gives it to a file.
    WITH gone AS (DELETE FROM pending_object WHERE session = p_session RETURNING object)
        INSERT INTO dead_object SELECT object, clock_timestamp() FROM gone ON CONFLICT DO NOTHING;
END $$;

-- Marks those of some sessions as dead whose lease time is over. Each row is locked and then
-- checked again, so that a renewal that is under way counts (K.8). Rows are locked in ascending
-- order, so that two calls do not deadlock.
--
-- A crash may have lost the last renewal of a session. So a session that has not registered since
-- the crash has one more lease time.
CREATE FUNCTION cw_judge(p_sessions bigint[]) RETURNS void LANGUAGE sql AS $$
    UPDATE session SET dead = true WHERE id IN (SELECT s.id FROM session s
        WHERE s.id = ANY(p_sessions) AND NOT s.dead AND s.until <= clock_timestamp()
            AND (s.boot = (SELECT b.id FROM boot b)
                OR clock_timestamp() > (SELECT b.since FROM boot b) + s.lease)
        ORDER BY s.id FOR NO KEY UPDATE)
$$;

-- Returns true if a session is dead. If `until` is over, `cw_judge` decides, because a renewal may
-- be under way (K.8).
CREATE FUNCTION cw_is_over(p_session bigint) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM session WHERE id = p_session AND NOT dead AND until > clock_timestamp();
    IF FOUND THEN RETURN false; END IF;
    PERFORM cw_judge(ARRAY[p_session]);
    PERFORM FROM session WHERE id = p_session AND NOT dead;
    RETURN NOT FOUND;
END $$;

-- Returns 0 if a session lives and has registered since the last crash of the database, or a result
-- code.
CREATE FUNCTION cw_check_session(p_session bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    PERFORM FROM session WHERE id = p_session AND NOT dead AND until > clock_timestamp()
        AND boot = (SELECT b.id FROM boot b);
    IF FOUND THEN RETURN 0; END IF;
    IF cw_is_over(p_session) THEN RETURN -2; END IF;
    PERFORM FROM session WHERE id = p_session AND boot = (SELECT b.id FROM boot b);
    IF NOT FOUND THEN RETURN -3; END IF;
    RETURN 0;
END $$;

-- Opens the session `p_id`. The mount has chosen this number at random, and repeats the call with
-- it, so that no second session is opened. Returns the first inode number of the mount. Returns
-- nothing if the database has another file system than `p_fs`. If `p_most` other sessions or more
-- live, returns 0 with the host, process and start of one of them.
CREATE FUNCTION cw_open_session(
    p_id bigint, p_fs text, p_host text, p_pid int, p_lease float8, p_most int
) RETURNS TABLE (ino bigint, host text, pid int, since text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_boot uuid; v record; v_now timestamptz; v_lease interval;
BEGIN
    PERFORM pg_advisory_xact_lock(-2);
    PERFORM FROM format f WHERE f.id::text = p_fs;
    IF NOT FOUND THEN RETURN; END IF;
    v_boot := cw_boot();
    PERFORM cw_judge(array_agg(s.id)) FROM session s;
    v_now := clock_timestamp();
    SELECT s.* INTO v FROM session s WHERE NOT s.dead AND s.id <> p_id
        ORDER BY s.id OFFSET p_most - 1 LIMIT 1;
    IF FOUND THEN
        RETURN QUERY SELECT 0::bigint, v.host, v.pid, to_char(v.since, 'YYYY-MM-DD HH24:MI:SS TZ');
        RETURN;
    END IF;
    v_lease := make_interval(secs => p_lease);
    INSERT INTO session AS s VALUES
        (p_id, p_host, p_pid, v_now, v_now + v_lease, v_boot, false, v_lease, v_now)
        ON CONFLICT (id) DO UPDATE SET until = v_now + v_lease WHERE NOT s.dead;
    -- A session that was the only one renews when it receives this.
    PERFORM pg_notify('corewalk', 's');
    RETURN QUERY SELECT nextval('ino_seq'), ''::text, 0, ''::text;
END $$;

-- Renews a session. If the database has crashed since the session registered, returns -3 with the
-- new `boot.id`. The session must then drop its caches, and register by a renewal with this id as
-- `p_boot` (K.10). Returns `boot.id`, whether intents of others wait for leases of the session
-- (K.12), the number of live sessions, and how often junctions have changed.
--
-- While a session is the only one, its kernel may keep answers until `alone_until`. The changes of
-- a session that comes later wait for that time (K.7). The advisory lock orders this with the
-- opening of a session. A crash may have lost the last value of `alone_until`, so the first renewal
-- after a crash sets it in any case.
CREATE FUNCTION cw_renew(p_session bigint, p_boot text)
RETURNS TABLE (code int, boot text, waits bool, sessions bigint, junctions bigint)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
DECLARE v_boot uuid; v_old uuid; v_count bigint; v_locked bigint[];
BEGIN
    v_boot := cw_boot();
    PERFORM pg_advisory_xact_lock_shared(-2);
    -- One statement locks the rows of this session and of those that may be dead, in ascending
    -- order. So a renewal and another call of `cw_judge` do not deadlock.
    SELECT array_agg(r.id) INTO v_locked FROM (SELECT s.id FROM session s
        WHERE s.id = p_session OR NOT s.dead AND s.until <= clock_timestamp()
        ORDER BY s.id FOR NO KEY UPDATE) r;
    PERFORM cw_judge(v_locked);
    SELECT s.boot INTO v_old FROM session s WHERE s.id = p_session AND NOT s.dead;
    IF NOT FOUND THEN
        RETURN QUERY SELECT -2, ''::text, false, 0::bigint, 0::bigint;
        RETURN;
    END IF;
    IF v_old <> v_boot AND p_boot <> v_boot::text THEN
        RETURN QUERY SELECT -3, v_boot::text, false, 0::bigint, 0::bigint;
        RETURN;
    END IF;
    SELECT count(*) INTO v_count FROM session s WHERE NOT s.dead;
    UPDATE session SET until = clock_timestamp() + lease, boot = v_boot,
        alone_until = CASE WHEN v_count = 1 OR v_old <> v_boot THEN clock_timestamp() + lease
            ELSE alone_until END
        WHERE id = p_session;
    RETURN QUERY SELECT 0, v_boot::text, EXISTS (SELECT FROM cw_waiting(p_session)), v_count,
        f.junctions FROM format f;
END $$;

CREATE FUNCTION cw_inos() RETURNS bigint LANGUAGE sql AS $$ SELECT nextval('ino_seq') $$;
