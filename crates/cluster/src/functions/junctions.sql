-- Junctions: directories on which mounts mount the file system of another database.
--
-- A junction is an empty directory with the extended attribute `trusted.corewalk.junction`, a URL.
-- Its bit in `node.flags` is 8. No name can be made in a junction (EREMOTE, 66), because the file
-- system that is mounted on it would hide the name. A junction can be neither removed nor renamed
-- (EBUSY, 16).

-- Makes a directory a junction, if that is allowed, or a plain directory again if `p_url` is NULL.
-- Counts the change, so that renewals tell all mounts of it. Returns an errno, or 0.
CREATE FUNCTION cw_set_junction(p_ino bigint, p_url bytea) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    IF p_url IS NOT NULL THEN
        IF p_ino = 1 THEN RETURN 16; END IF;
        PERFORM FROM node WHERE ino = p_ino AND mode & 61440 = 16384;
        IF NOT FOUND THEN RETURN 20; END IF;
        PERFORM FROM edge WHERE parent = p_ino LIMIT 1;
        IF FOUND THEN RETURN 39; END IF;
    END IF;
    UPDATE format SET junctions = junctions + 1;
    UPDATE node SET flags = (flags & ~8) | 8 * (p_url IS NOT NULL)::int WHERE ino = p_ino;
    RETURN 0;
END $$;

-- Returns 0 if a name can be made in a directory, or an errno.
CREATE FUNCTION cw_can_hold(p_dir bigint) RETURNS int LANGUAGE plpgsql AS $$
BEGIN
    RETURN coalesce((SELECT CASE WHEN nlink = 0 THEN 2 WHEN flags & 8 <> 0 THEN 66 ELSE 0 END
        FROM node WHERE ino = p_dir), 2);
END $$;

CREATE FUNCTION cw_is_junction(p_ino bigint) RETURNS bool LANGUAGE plpgsql AS $$
BEGIN
    RETURN EXISTS (SELECT FROM node WHERE ino = p_ino AND flags & 8 <> 0);
END $$;

-- Returns all junctions with their paths from the root.
CREATE FUNCTION cw_junctions() RETURNS TABLE (ino bigint, url bytea, path bytea) LANGUAGE sql AS $$
    WITH RECURSIVE above AS (
        SELECT x.ino AS junction, x.value AS url, x.ino AS at, ''::bytea AS path FROM xattr x
            WHERE x.name = 'trusted.corewalk.junction'
        UNION ALL
        SELECT a.junction, a.url, e.parent, '/'::bytea || e.name || a.path
            FROM above a JOIN edge e ON e.ino = a.at
    )
    SELECT junction, url, path FROM above WHERE at = 1
$$;
