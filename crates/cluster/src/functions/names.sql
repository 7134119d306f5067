-- Names: reading and listing directories, and the changes of names.

-- Grants a lease on the directory `p_dir`, or if that is 0, on the home of `p_ino` (K.2). Grants no
-- lease while an intent on the directory waits.
--
-- The first row is the directory itself, without a name. If `p_dir` is 0, the second row is the
-- inode `p_ino`, without a name. The next rows are at most `p_limit` names behind the position
-- `p_after`, with their attributes.
CREATE FUNCTION cw_fill(
    p_session bigint, p_dir bigint, p_ino bigint, p_after bigint, p_limit int
) RETURNS SETOF cw_entry LANGUAGE plpgsql AS $$
DECLARE v_dir bigint := p_dir; v_code int;
BEGIN
    IF v_dir = 0 THEN
        SELECT CASE WHEN mode & 61440 = 16384 THEN ino ELSE home END INTO v_dir
            FROM node WHERE ino = p_ino;
        IF NOT FOUND THEN RETURN; END IF;
    END IF;
    PERFORM pg_advisory_xact_lock_shared(v_dir);
    v_code := cw_check_session(p_session);
    IF v_code <> 0 THEN
        RETURN QUERY SELECT NULL::bytea, r.* FROM cw_code(v_code, 0) r;
        RETURN;
    END IF;
    PERFORM FROM intent WHERE dirs @> ARRAY[v_dir];
    IF FOUND THEN
        -- The intent of a dead session is deleted, so that a late acknowledgement finds no intent.
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

CREATE FUNCTION cw_getattr(p_ino bigint) RETURNS SETOF cw_row LANGUAGE sql STABLE AS $$
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
    -- An inode without a name (O_TMPFILE) has an orphan row instead of an edge.
    IF p_name IS NULL THEN
        v_code := cw_can_hold(p_dir);
        IF v_code <> 0 THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, v_code);
            RETURN;
        END IF;
        INSERT INTO orphan VALUES (p_ino, p_session);
    ELSE
        INSERT INTO edge VALUES (p_dir, p_name, p_ino, p_mode & 61440, nextval('edge_seq_seq'))
            ON CONFLICT DO NOTHING RETURNING seq INTO v_cookie;
        IF v_cookie IS NULL THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 17);
            RETURN;
        END IF;
        UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1,
            nlink = nlink + v_is_dir::int WHERE ino = p_dir AND nlink > 0 AND flags & 8 = 0;
        IF NOT FOUND THEN
            -- This is rare. A query before the first change would make each creation slower.
            DELETE FROM edge WHERE parent = p_dir AND name = p_name;
            RETURN QUERY SELECT * FROM
                cw_fail(p_session, p_slot, p_seq, cw_can_hold(p_dir));
            RETURN;
        END IF;
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
CREATE FUNCTION cw_home(p_ino bigint) RETURNS bigint LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT CASE WHEN mode & 61440 = 16384 THEN ino ELSE home END
        FROM node WHERE ino = p_ino), 0);
END $$;

-- Gives an inode another home if it has no name in its home any more but has names elsewhere.
CREATE FUNCTION cw_rehome(p_ino bigint) RETURNS void LANGUAGE plpgsql AS $$
BEGIN
    UPDATE node n SET home = coalesce((SELECT parent FROM edge WHERE ino = p_ino LIMIT 1), home)
        WHERE ino = p_ino AND mode & 61440 <> 16384 AND nlink > 0
            AND NOT EXISTS (SELECT FROM edge e WHERE e.ino = p_ino AND e.parent = n.home);
END $$;

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
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 116);
        RETURN;
    END IF;
    v_code := cw_can_hold(p_dir);
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, v_code);
        RETURN;
    END IF;
    IF v_links = 0 THEN
        -- A concurrent `cw_purge` of the inode has locked the row of the orphan. This waits for it.
        PERFORM FROM orphan WHERE ino = p_ino FOR UPDATE;
        IF NOT FOUND THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 116);
            RETURN;
        END IF;
    END IF;
    INSERT INTO edge VALUES (p_dir, p_name, p_ino, v_kind, nextval('edge_seq_seq'))
        ON CONFLICT DO NOTHING RETURNING seq INTO v_cookie;
    IF v_cookie IS NULL THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 17);
        RETURN;
    END IF;
    IF v_links = 0 THEN
        DELETE FROM orphan WHERE ino = p_ino;
        UPDATE node SET home = p_dir WHERE ino = p_ino;
    END IF;
    UPDATE node SET nlink = nlink + 1, ctime = p_now, version = version + 1 WHERE ino = p_ino;
    UPDATE node SET mtime = p_now, ctime = p_now, version = version + 1 WHERE ino = p_dir;
    RETURN QUERY SELECT * FROM
        cw_done(p_session, p_slot, p_seq, v_cookie, ARRAY[p_ino, p_dir], 0, 0);
END $$;

-- Decrements the link count of an inode after one of its edges was deleted. An inode without links
-- becomes an orphan.
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
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 2);
        RETURN;
    END IF;
    -- The name has another inode now. The kernel looks it up again and repeats the call.
    IF v_found <> p_ino THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 116);
        RETURN;
    END IF;
    IF v_kind = 16384 THEN
        PERFORM FROM edge WHERE parent = p_ino LIMIT 1;
        IF FOUND THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 39);
            RETURN;
        END IF;
        IF cw_is_junction(p_ino) THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 16);
            RETURN;
        END IF;
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
        -- The edges were read before the locks were taken, so they may have changed.
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
    v_code := CASE
        WHEN coalesce(v_one.ino, 0) <> p_ino1 OR coalesce(v_two.ino, 0) <> p_ino2 THEN 116
        WHEN v_one.ino IS NULL THEN 2
        WHEN cw_can_hold(p_dir2) <> 0 THEN cw_can_hold(p_dir2)
        WHEN v_dir1 AND cw_is_junction(v_one.ino) THEN 16
        WHEN v_dir2 AND cw_is_junction(v_two.ino) THEN 16
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
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, v_code);
        RETURN;
    END IF;
    IF v_one.ino = v_two.ino THEN
        RETURN QUERY SELECT * FROM
            cw_done(p_session, p_slot, p_seq, v_two.seq, ARRAY[v_one.ino, p_dir1, p_dir2], 0, 0);
        RETURN;
    END IF;
    -- How many subdirectories each of the two directories loses. A negative number is a gain.
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
