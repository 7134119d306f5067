-- Attributes, extended attributes, targets of symbolic links, totals.

-- Returns the directories whose leases cover a change of attributes: the home, and with `p_is_access`
-- all directories that have a name of the inode. For chmod(2) and in sticky directories, the kernel
-- uses the owner and the mode that the last lookup of a name has brought. Of an inode with more
-- than 64 names the home alone is returned, because each directory costs a lock of the server.
CREATE FUNCTION cw_covers(p_ino bigint, p_is_access boolean) RETURNS bigint[]
LANGUAGE plpgsql AS $$
BEGIN
    IF NOT p_is_access OR (SELECT count(*) FROM
            (SELECT FROM edge WHERE ino = p_ino LIMIT 65) e) > 64 THEN
        RETURN ARRAY[cw_home(p_ino)];
    END IF;
    RETURN (SELECT array_agg(DISTINCT dir ORDER BY dir) FROM (
        SELECT cw_home(p_ino) AS dir UNION ALL SELECT parent FROM edge WHERE ino = p_ino
    ) d);
END $$;

-- Changes attributes. A NULL parameter leaves its attribute as it is. `p_access` is the new access
-- ACL, and `p_default` the new default ACL. An empty value removes the ACL.
CREATE FUNCTION cw_setattr(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_mode int, p_uid bigint, p_gid bigint, p_size bigint,
    p_atime bigint, p_mtime bigint, p_ctime bigint, p_access bytea, p_default bytea
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int; v_size bigint; v_set int := 0; v_clear int := 0;
    v_is_access boolean := coalesce(p_mode, p_uid, p_gid) IS NOT NULL OR p_access IS NOT NULL;
    v_dirs bigint[] := cw_covers(p_ino, v_is_access);
BEGIN
    -- The lock of the inode orders this with `cw_lock` (K.13).
    v_code := cw_begin(p_session, p_slot, p_seq, v_dirs || p_ino);
    IF v_code = 0 AND cw_covers(p_ino, v_is_access) <> v_dirs THEN v_code := -5; END IF;
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, v_dirs);
        RETURN;
    END IF;
    SELECT size INTO v_size FROM node WHERE ino = p_ino;
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 116);
        RETURN;
    END IF;
    IF p_size < v_size THEN
        PERFORM cw_cut(p_ino, p_size);
        UPDATE node SET inline = substring(inline FROM 1 FOR least(p_size, 16384)::int)
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
        version = version + 1, flags = (flags & ~v_clear) | v_set,
        contents = CASE WHEN p_size IS NULL THEN contents ELSE version + 1 END
        WHERE ino = p_ino;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino], 0,
        coalesce(p_size - v_size, 0));
END $$;

CREATE FUNCTION cw_readlink(p_ino bigint) RETURNS bytea LANGUAGE plpgsql AS $$
BEGIN
    RETURN (SELECT target FROM node WHERE ino = p_ino);
END $$;

CREATE FUNCTION cw_xattrs(p_ino bigint) RETURNS TABLE (name bytea, value bytea)
LANGUAGE sql STABLE AS $$
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
    IF NOT FOUND THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 116);
        RETURN;
    END IF;
    PERFORM FROM xattr WHERE ino = p_ino AND name = p_name;
    IF FOUND AND p_mode = 1 THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 17);
        RETURN;
    END IF;
    IF NOT FOUND AND (p_mode = 2 OR p_value IS NULL) THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 61);
        RETURN;
    END IF;
    SELECT count(*), coalesce(sum(octet_length(name) + 1), 0),
            coalesce(sum(octet_length(name) + octet_length(value)), 0)
        INTO v_count, v_names, v_bytes FROM xattr
        WHERE ino = p_ino AND name <> p_name AND substring(name FROM 1 FOR 7) <> 'system.';
    IF p_value IS NOT NULL AND (v_names + octet_length(p_name) + 1 > 65536
            OR v_bytes + octet_length(p_name) + octet_length(p_value) > 1048576) THEN
        RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, 28);
        RETURN;
    END IF;
    IF p_name = 'trusted.corewalk.junction' THEN
        v_code := cw_set_junction(p_ino, p_value);
        IF v_code <> 0 THEN
            RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, v_code);
            RETURN;
        END IF;
    END IF;
    IF p_value IS NULL THEN
        DELETE FROM xattr WHERE ino = p_ino AND name = p_name;
    ELSE
        INSERT INTO xattr AS x VALUES (p_ino, p_name, p_value)
            ON CONFLICT (ino, name) DO UPDATE SET value = p_value;
        v_count := v_count + 1;
    END IF;
    UPDATE node SET ctime = p_now, version = version + 1,
        flags = (flags & ~1) | (v_count > 0)::int WHERE ino = p_ino;
    RETURN QUERY SELECT * FROM cw_done(p_session, p_slot, p_seq, 0, ARRAY[p_ino], 0, 0);
END $$;

-- Returns the totals of the file system, and its limits. `bytes` is at most the maximum of a bigint.
-- Renewals call this, and need the totals only if there is a limit (`p_always` is false). Without
-- one, they must not read all slots.
CREATE FUNCTION cw_statfs(p_always bool)
RETURNS TABLE (inodes bigint, bytes bigint, max_inodes bigint, max_bytes bigint)
LANGUAGE sql STABLE AS $$
    SELECT (u.inodes + s.inodes)::bigint, least(u.bytes + s.bytes, 9223372036854775807)::bigint,
            f.max_inodes, f.max_bytes
        FROM format f, usage u, LATERAL (SELECT coalesce(sum(inodes), 0) AS inodes,
                coalesce(sum(bytes), 0) AS bytes FROM slot
            WHERE p_always OR f.max_inodes IS NOT NULL OR f.max_bytes IS NOT NULL) s
$$;
