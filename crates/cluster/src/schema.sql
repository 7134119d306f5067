-- The tables of a cluster file system, in a schema of their own. `corewalk mkfs` makes them.
--
-- All names, targets and values are bytes, because Linux allows any bytes but NUL in them. Times
-- are nanoseconds since 1970. Tables that may be lost in a crash are UNLOGGED: they are empty after
-- a crash of the database (K.10).

CREATE SCHEMA corewalk;
SET search_path = corewalk;

-- One row: the version of this schema, the identity of the file system, the place of its data, and
-- its limits.
CREATE TABLE format (
    version int NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    data text NOT NULL,
    made timestamptz NOT NULL DEFAULT now(),
    -- Counts the changes of junctions.
    junctions bigint NOT NULL DEFAULT 0,
    -- The most inodes, and the most bytes of all sizes. NULL means that there is no limit.
    max_inodes bigint,
    max_bytes bigint
);

-- An inode. Inode numbers are never used again, so there is no generation.
CREATE TABLE node (
    ino bigint PRIMARY KEY,
    -- Of a directory: its parent. Of any other inode: the directory whose lease covers it.
    home bigint NOT NULL,
    mode int NOT NULL,
    uid bigint NOT NULL,
    gid bigint NOT NULL,
    nlink bigint NOT NULL,
    size bigint NOT NULL,
    rdev bigint NOT NULL,
    atime bigint NOT NULL,
    mtime bigint NOT NULL,
    ctime bigint NOT NULL,
    btime bigint NOT NULL,
    -- Grows with each change of the inode, so that a client can order two answers.
    version bigint NOT NULL,
    -- 1: has extended attributes, 2: has an access ACL, 4: has a default ACL, 8: is a junction.
    flags int NOT NULL,
    target bytea,
    -- The first bytes of the contents, at most 16 KiB. Slices lie over them.
    inline bytea,
    -- The `version` that the last change of the contents gave the inode.
    contents bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 85);

-- A name. `seq` is the position in a listing. Later names of a directory have higher positions,
-- because a change takes `seq` from a sequence while it holds the lock of the directory.
CREATE TABLE edge (
    parent bigint NOT NULL,
    name bytea NOT NULL,
    ino bigint NOT NULL,
    kind int NOT NULL,
    seq bigint NOT NULL,
    PRIMARY KEY (parent, name)
);
CREATE INDEX edge_seq ON edge (parent, seq);
CREATE INDEX edge_ino ON edge (ino);

CREATE TABLE xattr (
    ino bigint NOT NULL,
    name bytea NOT NULL,
    value bytea NOT NULL,
    PRIMARY KEY (ino, name)
);
CREATE INDEX xattr_junction ON xattr (ino) WHERE name = 'trusted.corewalk.junction';

-- A slice: a range of a file whose bytes are the first bytes of an object. Where slices overlap,
-- the one with the highest `seq` counts. A slice without an object is zeros. No slice crosses a
-- chunk of 64 MiB.
CREATE TABLE slice (
    ino bigint NOT NULL,
    chunk bigint NOT NULL,
    seq bigint NOT NULL,
    pos bigint NOT NULL,
    len bigint NOT NULL,
    object text,
    PRIMARY KEY (ino, chunk, seq)
);
-- At most one slice names an object. The removal of an object looks into this index first.
CREATE UNIQUE INDEX slice_object ON slice (object) WHERE object IS NOT NULL;

-- A session of a mount. `id` is random, so that no number is used again, not even after the
-- database was restored from a dump. `boot` is the `boot.id` with which the session has registered.
-- A dead session stays dead. Its row and its slots stay for at least ten minutes.
CREATE TABLE session (
    id bigint PRIMARY KEY,
    host text NOT NULL,
    pid int NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL,
    boot uuid NOT NULL,
    dead bool NOT NULL,
    lease interval NOT NULL,
    -- Until then, the kernel of the mount may keep answers, because this was the only session
    -- (K.7).
    alone_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- A request slot with the result of its last change (K.9). `inodes` and `bytes` count how much all
-- changes of the slot added to the totals of the file system. A slot has one change at a time, so
-- these counters have no contention. The sizes of a few sparse files exceed a bigint.
CREATE TABLE slot (
    session bigint NOT NULL,
    slot int NOT NULL,
    seq bigint NOT NULL,
    -- 0, or the errno with which the change failed.
    code int NOT NULL,
    cookie bigint NOT NULL,
    inos bigint[] NOT NULL,
    inodes bigint NOT NULL,
    bytes numeric NOT NULL,
    PRIMARY KEY (session, slot)
) WITH (fillfactor = 50);

-- One row: the totals of the sessions that have ended.
CREATE TABLE usage (
    inodes bigint NOT NULL,
    bytes numeric NOT NULL
);

-- A lease of a session on a directory (K.2). The row stays if the session drops the directory from
-- its cache to free memory. The next change of another session there still waits for an
-- acknowledgement.
CREATE UNLOGGED TABLE lease (
    dir bigint NOT NULL,
    session bigint NOT NULL,
    PRIMARY KEY (dir, session)
);

-- A change that waits until other sessions have given up their leases. An intent belongs to a
-- request slot, so that a repeated request finds it. Its `id` comes from a logged sequence, so that
-- no `id` is used again after a crash (K.10).
CREATE UNLOGGED TABLE intent (
    session bigint NOT NULL,
    slot int NOT NULL,
    id bigint NOT NULL UNIQUE,
    dirs bigint[] NOT NULL,
    PRIMARY KEY (session, slot)
);
CREATE INDEX intent_dirs ON intent USING gin (dirs);

-- One row, with a new `id` after each crash of the database. A crash or a failover to a standby
-- empties the table, and the next session writes the row (K.10). A clean restart keeps it.
CREATE UNLOGGED TABLE boot (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    id uuid NOT NULL,
    since timestamptz NOT NULL
);

-- A lock of fcntl(2), or of flock(2) if `is_flock`, on the bytes from `first` to `last`. `owner` is
-- the number of the lock owner in its mount, and `pid` its process. The locks of an owner do not
-- overlap. The table is logged, so a crash of the database ends no lock.
CREATE TABLE flock (
    ino bigint NOT NULL,
    session bigint NOT NULL,
    owner bigint NOT NULL,
    is_flock bool NOT NULL,
    first bigint NOT NULL,
    last bigint NOT NULL,
    writes bool NOT NULL,
    pid bigint NOT NULL,
    PRIMARY KEY (ino, session, owner, is_flock, first)
);
CREATE INDEX flock_session ON flock (session);

-- An inode without a name that a session still uses.
CREATE TABLE orphan (
    ino bigint PRIMARY KEY,
    session bigint NOT NULL
);
CREATE INDEX orphan_session ON orphan (session);

-- An object that a session is about to write, and that no slice names yet. The row goes as soon as
-- a slice names the object, or when the object is given up.
CREATE TABLE pending_object (
    object text PRIMARY KEY,
    session bigint NOT NULL
);
CREATE INDEX pending_object_session ON pending_object (session);

-- An object that no slice names any more. A reader may still have the slice that named the object,
-- so the object stays for a while.
CREATE TABLE dead_object (
    object text PRIMARY KEY,
    since timestamptz NOT NULL
);

-- A client takes 4,096 inode numbers at a time. The root has number 1.
CREATE SEQUENCE ino_seq START 4096 INCREMENT 4096;
CREATE SEQUENCE edge_seq_seq;
CREATE SEQUENCE slice_seq;
CREATE SEQUENCE intent_seq;
