-- The steps that all changes share: the request slot, the locks, the leases of other sessions.

-- Adds a request slot, if its session exists. The row lock of the session orders this with
-- `cw_end_session`, so that no slot is left over.
CREATE FUNCTION cw_new_slot(p_session bigint, p_slot int) RETURNS void LANGUAGE sql AS $$
    INSERT INTO slot SELECT s.id, p_slot, 0, 0, 0, '{}', 0, 0 FROM session s
        WHERE s.id = p_session FOR KEY SHARE ON CONFLICT DO NOTHING
$$;

-- Makes sure that a late copy of an unanswered change has no effect, since it will find a higher
-- sequence number in the slot.
CREATE FUNCTION cw_close_slot(p_session bigint, p_slot int, p_seq bigint) RETURNS void
LANGUAGE sql AS $$
    SELECT cw_new_slot(p_session, p_slot);
    UPDATE slot SET seq = greatest(seq, p_seq + 1) WHERE session = p_session AND slot = p_slot;
    DELETE FROM intent WHERE session = p_session AND slot = p_slot;
$$;

-- Locks a request slot. Returns 0 to go on, 1 if the slot has made this change already, or a result
-- code.
CREATE FUNCTION cw_take_slot(p_session bigint, p_slot int, p_seq bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_seq bigint;
BEGIN
    SELECT seq INTO v_seq FROM slot WHERE session = p_session AND slot = p_slot FOR UPDATE;
    IF NOT FOUND THEN
        PERFORM cw_new_slot(p_session, p_slot);
        SELECT seq INTO v_seq FROM slot WHERE session = p_session AND slot = p_slot FOR UPDATE;
        IF NOT FOUND THEN RETURN -7; END IF;
    END IF;
    IF v_seq < p_seq THEN RETURN 0; END IF;
    IF v_seq = p_seq THEN RETURN 1; END IF;
    -- This is a late copy of an old request, from a connection that was given up. 5 is EIO.
    RETURN 5;
END $$;

-- Begins a change that locks no directories. Returns what `cw_begin` returns.
CREATE FUNCTION cw_slot(p_session bigint, p_slot int, p_seq bigint) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_code int := cw_take_slot(p_session, p_slot, p_seq);
BEGIN
    IF v_code <> 0 THEN RETURN v_code; END IF;
    RETURN cw_check_session(p_session);
END $$;

-- Locks the slot of a change and then its directories, in ascending order. Checks that the change
-- may be made. Returns 0 to go on, 1 if the slot has made the change already (K.9), or a result
-- code. The slot is read before the session is checked. So a dead session learns that its change
-- was made. The code -2 means that it was not made and never will be (K.8, K.9).
CREATE FUNCTION cw_begin(
    p_session bigint, p_slot int, p_seq bigint, p_dirs bigint[]
) RETURNS int LANGUAGE plpgsql AS $$
DECLARE d bigint; v_code int := cw_take_slot(p_session, p_slot, p_seq);
BEGIN
    IF v_code <> 0 THEN RETURN v_code; END IF;
    IF cardinality(p_dirs) > 1 THEN
        IF cardinality(p_dirs) > 2 OR p_dirs[1] > p_dirs[2] THEN
            p_dirs := (SELECT array_agg(x ORDER BY x) FROM unnest(p_dirs) x);
        END IF;
    END IF;
    FOREACH d IN ARRAY p_dirs LOOP
        PERFORM pg_advisory_xact_lock(d);
    END LOOP;
    -- For most changes, this one statement shows that nothing is in their way. Otherwise
    -- `cw_begin_slowly` tests the same step by step. The locks are held before the snapshot of the
    -- statement is taken (K.3).
    PERFORM FROM session s WHERE s.id = p_session AND NOT s.dead AND s.until > clock_timestamp()
        AND s.boot = (SELECT b.id FROM boot b)
        AND NOT EXISTS (SELECT FROM session o WHERE o.id <> s.id AND NOT o.dead
            AND (o.boot <> s.boot OR o.alone_until > clock_timestamp()))
        AND NOT EXISTS (SELECT FROM lease WHERE dir = ANY(p_dirs) AND session <> p_session)
        AND NOT EXISTS (SELECT FROM intent WHERE session = p_session AND slot = p_slot);
    IF FOUND THEN RETURN 0; END IF;
    RETURN cw_begin_slowly(p_session, p_slot, p_dirs);
END $$;

-- The end of `cw_begin` for a change that may have to wait. The locks are held.
CREATE FUNCTION cw_begin_slowly(p_session bigint, p_slot int, p_dirs bigint[]) RETURNS int
LANGUAGE plpgsql AS $$
DECLARE v_others bigint[]; v_code int := cw_check_session(p_session);
BEGIN
    IF v_code <> 0 THEN RETURN v_code; END IF;
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

-- Writes the intent of a slot, and notifies the sessions that have leases on its directories. If
-- the slot has an intent with other directories, the intent gets a new number. Notifications are
-- only hints (K.12). The payload is `i NUMBER SESSIONS DIRECTORIES`. PostgreSQL allows less than
-- 8,000 bytes, so more than 300 sessions become `*`.
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
    PERFORM pg_notify('corewalk', 'i ' || v_id || ' ' || CASE WHEN count(DISTINCT session) > 300
            THEN '*' ELSE string_agg(DISTINCT session::text, ',') END
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

-- Deletes the leases of a session on the directories of an intent, if that intent still exists
-- (K.4). The row lock keeps the intent until the function commits. So no fill inserts a lease
-- meanwhile. Acknowledgements of several sessions run one after the other, so each sees the
-- deletions of those before. The last one notifies the writer. The payload is `a WRITER NUMBER`,
-- with the session of the writer.
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
        -- The row of `cw_code` makes sure that a result without inodes has a row.
        RETURN QUERY SELECT n.* FROM slot s, cw_nodes(s.cookie, s.inos) n
            WHERE s.session = p_session AND s.slot = p_slot;
        RETURN QUERY SELECT n.* FROM slot s, cw_code(s.code, s.cookie) n
            WHERE s.session = p_session AND s.slot = p_slot;
    ELSIF p_code = -1 THEN
        RETURN QUERY SELECT * FROM cw_code(-1, cw_intend(p_session, p_slot, p_dirs));
    ELSE
        RETURN QUERY SELECT * FROM cw_code(p_code, 0);
    END IF;
END $$;

-- Ends a change: stores the result for repeated requests, and returns the changed inodes.
CREATE FUNCTION cw_done(
    p_session bigint, p_slot int, p_seq bigint, p_cookie bigint, p_inos bigint[],
    p_inodes bigint, p_bytes numeric
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
BEGIN
    UPDATE slot SET seq = p_seq, code = 0, cookie = p_cookie, inos = p_inos,
        inodes = inodes + p_inodes, bytes = bytes + p_bytes
        WHERE session = p_session AND slot = p_slot;
    RETURN QUERY SELECT * FROM cw_nodes(p_cookie, p_inos);
END $$;

-- Ends a change that fails with an errno. The errno is stored, so that a late copy of the request
-- does not make the change after all.
CREATE FUNCTION cw_fail(p_session bigint, p_slot int, p_seq bigint, p_errno int)
RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
BEGIN
    UPDATE slot SET seq = p_seq, code = p_errno, cookie = 0, inos = '{}'
        WHERE session = p_session AND slot = p_slot;
    RETURN QUERY SELECT * FROM cw_code(p_errno, 0);
END $$;
