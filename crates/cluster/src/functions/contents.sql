-- The contents of files: inline bytes, slices and objects.

-- Deletes the slices of a file behind `p_size`, and marks their objects as dead.
CREATE FUNCTION cw_cut(p_ino bigint, p_size bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    WITH gone AS (DELETE FROM slice WHERE ino = p_ino AND chunk >= p_size >> 26 AND pos >= p_size
            RETURNING object)
        INSERT INTO dead_object SELECT object, clock_timestamp() FROM gone
            WHERE object IS NOT NULL ON CONFLICT DO NOTHING;
    UPDATE slice SET len = p_size - pos
        WHERE ino = p_ino AND chunk = p_size >> 26 AND pos + len > p_size;
END $$;

-- Adds written ranges to a file, and makes it at least `p_end` bytes long. `p_inline` replaces the
-- inline bytes of a file without slices. A slice without an object is zeros.
--
-- `p_contents` is the value of `node.contents` that the session knows. If the file has another one,
-- other sessions have written to it. Then `p_inline` is refused with EAGAIN, because it lacks their
-- bytes. Slices are added. The modification time is then that of the database, so that the kernel
-- of the session sees a new one.
--
-- Fails with ENOENT if an object is not recorded any more, since its removal may have begun. Fails
-- with ESTALE if the file is gone, or if an earlier session loaded the contents and they were
-- changed since. A call that fails writes nothing.
CREATE FUNCTION cw_write(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_loaded_by bigint, p_contents bigint, p_end bigint, p_mtime bigint,
    p_inline bytea, p_pos bigint[], p_len bigint[], p_object text[]
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_home bigint := cw_home(p_ino); v_size bigint; v_contents bigint;
    v_objects text[] := array_remove(p_object, NULL);
BEGIN
    -- The lock of the inode orders this with `cw_lock` (K.13).
    v_code := cw_begin(p_session, p_slot, p_seq, ARRAY[v_home, p_ino]);
    IF v_code = 0 AND cw_home(p_ino) <> v_home THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, ARRAY[v_home]);
        RETURN;
    END IF;
    SELECT size, contents INTO v_size, v_contents FROM node WHERE ino = p_ino;
    IF NOT FOUND OR p_loaded_by <> p_session AND p_contents <> v_contents THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 116);
        RETURN;
    END IF;
    IF p_contents <> v_contents THEN
        IF p_inline IS NOT NULL THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 11);
            RETURN;
        END IF;
        p_mtime := (extract(epoch FROM clock_timestamp()) * 1e9)::bigint;
    END IF;
    IF cardinality(v_objects) > 0 THEN
        -- The row locks order this with `cw_end_session`, which marks the objects as dead.
        PERFORM FROM pending_object WHERE object = ANY(v_objects) FOR UPDATE;
        GET DIAGNOSTICS v_code = ROW_COUNT;
        IF v_code <> cardinality(v_objects) THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 2);
            RETURN;
        END IF;
        DELETE FROM pending_object WHERE object = ANY(v_objects);
    END IF;
    IF cardinality(p_pos) > 0 THEN
        WITH gone AS (DELETE FROM slice s USING unnest(p_pos, p_len) AS w(pos, len)
                WHERE s.ino = p_ino AND s.chunk = w.pos >> 26
                    AND s.pos >= w.pos AND s.pos + s.len <= w.pos + w.len
                RETURNING s.object)
            INSERT INTO dead_object SELECT DISTINCT object, clock_timestamp() FROM gone
                WHERE object IS NOT NULL ON CONFLICT DO NOTHING;
        INSERT INTO slice SELECT p_ino, w.pos >> 26, nextval('slice_seq'), w.pos, w.len, w.object
            FROM unnest(p_pos, p_len, p_object) AS w(pos, len, object);
    END IF;
    UPDATE node SET size = greatest(size, p_end), mtime = p_mtime, ctime = greatest(ctime, p_mtime),
        version = version + 1, contents = version + 1, inline = coalesce(p_inline, inline)
        WHERE ino = p_ino;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino], 0,
        greatest(p_end - v_size, 0));
END $$;

-- Records objects before they are written. Marks the objects `p_failed` as dead, if they are still
-- recorded, so that no slice names them.
--
-- The call has a request slot. Without a slot, a late copy of the request could record an object
-- that a slice names already. The end of the session would then remove the object.
CREATE FUNCTION cw_pending(
    p_session bigint, p_slot int, p_seq bigint, p_objects text[], p_failed text[]
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE v_code int := cw_slot(p_session, p_slot, p_seq);
BEGIN
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, '{}');
        RETURN;
    END IF;
    WITH gone AS (DELETE FROM pending_object WHERE object = ANY(p_failed) RETURNING object)
        INSERT INTO dead_object SELECT object, clock_timestamp() FROM gone ON CONFLICT DO NOTHING;
    INSERT INTO pending_object SELECT o, p_session FROM unnest(p_objects) o;
    PERFORM cw_done(p_session, p_slot, p_seq, 0, '{}', 0, 0);
    RETURN QUERY SELECT * FROM cw_code(0, 0);
END $$;

-- Returns the contents of a file: a row without a position for the inline bytes, then its slices,
-- oldest first.
CREATE FUNCTION cw_content(p_ino bigint)
RETURNS TABLE (version bigint, contents bigint, size bigint, inline bytea, pos bigint, len bigint,
    object text)
LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    -- One statement, so that the inode and its slices are of one snapshot.
    RETURN QUERY SELECT c.version, c.contents, c.size, c.inline, c.pos, c.len, c.object FROM
        (SELECT n.version, n.contents, n.size, n.inline, NULL::bigint AS pos,
                NULL::bigint AS len, NULL::text AS object, NULL::bigint AS seq FROM node n WHERE n.ino = p_ino
            UNION ALL
            SELECT 0, 0, 0, NULL, s.pos, s.len, s.object, s.seq FROM slice s WHERE s.ino = p_ino) c
        ORDER BY c.seq NULLS FIRST;
END $$;

-- Removes orphans for good. The row lock of an orphan orders this with `cw_link`.
CREATE FUNCTION cw_purge(p_session bigint, p_slot int, p_seq bigint, p_inos bigint[])
RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE v_inodes bigint; v_bytes numeric; v_code int := cw_slot(p_session, p_slot, p_seq);
BEGIN
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, '{}');
        RETURN;
    END IF;
    p_inos := (SELECT coalesce(array_agg(ino), '{}') FROM
        (SELECT ino FROM orphan WHERE ino = ANY(p_inos) ORDER BY ino FOR UPDATE) o);
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
    RETURN QUERY SELECT * FROM cw_code(0, 0);
END $$;

-- Ends the sessions that died ten minutes ago, and returns orphans whose session has ended.
CREATE FUNCTION cw_reap(p_limit int) RETURNS bigint[] LANGUAGE plpgsql AS $$
BEGIN
    PERFORM cw_judge(array_agg(s.id)) FROM session s;
    PERFORM cw_end_session(s.id) FROM session s
        WHERE s.dead AND s.until < clock_timestamp() - interval '10 minutes';
    RETURN (SELECT coalesce(array_agg(ino), '{}') FROM (SELECT o.ino FROM orphan o
        WHERE NOT EXISTS (SELECT FROM session s WHERE s.id = o.session) LIMIT p_limit) x);
END $$;

-- Returns objects that have been dead for at least `p_age` seconds. An object that a slice names is
-- never removed, whatever the other tables say.
CREATE FUNCTION cw_dead_objects(p_age float8, p_limit int) RETURNS text[] LANGUAGE sql AS $$
    SELECT coalesce(array_agg(object), '{}') FROM (SELECT object FROM dead_object d
        WHERE since < clock_timestamp() - make_interval(secs => p_age)
            AND NOT EXISTS (SELECT FROM slice s WHERE s.object = d.object) LIMIT p_limit) x
$$;

CREATE FUNCTION cw_forget_objects(p_objects text[]) RETURNS void LANGUAGE sql AS $$
    DELETE FROM dead_object WHERE object = ANY(p_objects)
$$;
