-- Locks of fcntl(2) and flock(2).
--
-- The advisory lock of an inode orders the calls that change its file locks. A file lock is valid
-- while its session is not dead. So a lock of a killed mount delays others until its lease time is
-- over. A session that has lost its locks is dead, so all its changes are refused (K.8).

-- Returns the locks of other owners that conflict with a lock, those of dead sessions included.
CREATE FUNCTION cw_conflicts(
    p_session bigint, p_ino bigint, p_owner bigint, p_is_flock bool, p_kind int, p_first bigint,
    p_last bigint
) RETURNS SETOF flock LANGUAGE sql STABLE AS $$
    SELECT * FROM flock WHERE ino = p_ino AND is_flock = p_is_flock
        AND (session, owner) <> (p_session, p_owner) AND first <= p_last AND last >= p_first
        AND (writes OR p_kind = 2)
$$;

-- Returns a lock that conflicts, if there is one, for `F_GETLK`. `pid` is 0 for a lock of another
-- mount.
CREATE FUNCTION cw_find_lock(
    p_session bigint, p_ino bigint, p_owner bigint, p_is_flock bool, p_kind int, p_first bigint,
    p_last bigint
) RETURNS TABLE (first bigint, last bigint, writes bool, pid bigint) LANGUAGE plpgsql AS $$
#variable_conflict use_column
BEGIN
    RETURN QUERY SELECT c.first, c.last, c.writes, CASE session WHEN p_session THEN c.pid ELSE 0 END
        FROM cw_conflicts(p_session, p_ino, p_owner, p_is_flock, p_kind, p_first, p_last) c
        WHERE NOT cw_is_over(c.session) ORDER BY c.first LIMIT 1;
END $$;

-- Takes a read lock (`p_kind` 1) or a write lock (2), or drops a lock (0). Fails with EAGAIN (11)
-- if a lock of another owner conflicts, and with ESTALE (116) if there is no such inode. `cookie`
-- is the session.
--
-- The call has a request slot (K.9), although a call that is repeated at once changes nothing.
-- Without a slot, a late copy of the call could take the lock again after its owner has dropped it.
-- For the same reason the slot stores EAGAIN too.
--
-- An owner of flock(2) drops its old lock before it asks for a new one, as in Linux. Otherwise two
-- owners of read locks that both want to write would wait for each other.
CREATE FUNCTION cw_lock(
    p_session bigint, p_slot int, p_seq bigint,
    p_ino bigint, p_owner bigint, p_is_flock bool, p_kind int, p_first bigint, p_last bigint,
    p_pid bigint
) RETURNS SETOF cw_row LANGUAGE plpgsql AS $$
DECLARE
    v_code int := cw_slot(p_session, p_slot, p_seq);
    v_first bigint := p_first; v_last bigint := p_last; v_others bigint[]; v flock;
    v_dropped bool := false;
BEGIN
    IF v_code <> 0 THEN
        RETURN QUERY SELECT * FROM cw_stop(v_code, p_session, p_slot, '{}');
        RETURN;
    END IF;
    PERFORM pg_advisory_xact_lock(p_ino);
    -- This session may have died while it waited for the advisory lock.
    IF cw_is_over(p_session) THEN
        RETURN QUERY SELECT * FROM cw_code(-2, 0);
        RETURN;
    END IF;
    IF p_is_flock THEN
        DELETE FROM flock WHERE ino = p_ino AND session = p_session AND owner = p_owner
            AND is_flock AND writes <> (p_kind = 2);
        v_dropped := FOUND;
    END IF;
    IF p_kind <> 0 THEN
        PERFORM FROM node WHERE ino = p_ino;
        IF NOT FOUND THEN v_code := 116; END IF;
        v_others := (SELECT array_agg(DISTINCT session) FROM cw_conflicts(
            p_session, p_ino, p_owner, p_is_flock, p_kind, p_first, p_last));
        IF v_others IS NOT NULL THEN
            PERFORM cw_judge(v_others);
            PERFORM FROM session WHERE id = ANY(v_others) AND NOT dead;
            IF FOUND THEN v_code := 11; END IF;
        END IF;
    END IF;
    IF v_code = 0 THEN
        FOR v IN DELETE FROM flock WHERE ino = p_ino AND session = p_session AND owner = p_owner
                AND is_flock = p_is_flock AND first - 1 <= p_last AND last >= p_first - 1
                RETURNING * LOOP
            IF p_kind <> 0 AND v.writes = (p_kind = 2) THEN
                v_first := least(v_first, v.first);
                v_last := greatest(v_last, v.last);
                CONTINUE;
            END IF;
            IF v.first < p_first THEN
                INSERT INTO flock VALUES (p_ino, p_session, p_owner, p_is_flock, v.first,
                    least(v.last, p_first - 1), v.writes, v.pid);
            END IF;
            IF v.last > p_last THEN
                INSERT INTO flock VALUES (p_ino, p_session, p_owner, p_is_flock,
                    greatest(v.first, p_last + 1), v.last, v.writes, v.pid);
            END IF;
        END LOOP;
        IF p_kind <> 0 THEN
            INSERT INTO flock VALUES (p_ino, p_session, p_owner, p_is_flock, v_first, v_last,
                p_kind = 2, p_pid);
        END IF;
        PERFORM cw_done(p_session, p_slot, p_seq, p_session, '{}', 0, 0);
        RETURN QUERY SELECT * FROM cw_code(0, p_session);
        RETURN;
    END IF;
    IF NOT v_dropped THEN
        -- The call changed nothing, so its result may be lost in a crash of the database. The crash
        -- ends all connections, so no late copy of the call remains.
        PERFORM set_config('synchronous_commit', 'off', true);
    END IF;
    RETURN QUERY SELECT * FROM cw_fail(p_session, p_slot, p_seq, v_code);
END $$;
