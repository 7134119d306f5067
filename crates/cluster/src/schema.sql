-- The tables of a cluster file system, in a schema of their own. `corewalk mkfs` makes them.
--
-- All names, targets and values are bytes, because Linux allows any bytes but NUL in them. Times
-- are nanoseconds since 1970. Tables that only matter while the database runs are UNLOGGED: they
-- are empty after a crash of the database (K.10).

CREATE SCHEMA corewalk;
SET search_path = corewalk;

-- One row: the version of this schema, the parameters of the file system, where its data is.
CREATE TABLE format (
    version int NOT NULL,
    id uuid NOT NULL DEFAULT gen_random_uuid(),
    data text NOT NULL,
    made timestamptz NOT NULL DEFAULT now(),
    -- Counts the changes of junctions.
    junctions bigint NOT NULL DEFAULT 0
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
    -- The version of the last change of the contents.
    contents bigint NOT NULL DEFAULT 1
) WITH (fillfactor = 85);

-- A name. `seq` is the position in a listing. It only grows within a directory, because a change
-- takes it while it holds the lock of the directory.
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

-- A range of a file whose bytes are a range of an object. Where slices overlap, the one with the
-- highest `seq` counts. A slice without an object is zeros. No slice crosses a chunk of 64 MiB.
CREATE TABLE slice (
    ino bigint NOT NULL,
    chunk bigint NOT NULL,
    seq bigint NOT NULL,
    pos bigint NOT NULL,
    len bigint NOT NULL,
    object text,
    PRIMARY KEY (ino, chunk, seq)
);
-- An object belongs to one slice. Its removal looks here first.
CREATE UNIQUE INDEX slice_object ON slice (object) WHERE object IS NOT NULL;

-- A mount. Its number is random, so that no number is used again, not even after the database was
-- restored from a dump. `boot` is the start of the database that the session has registered with. A session that
-- was found dead stays dead, and its row stays for some minutes, with its slots.
CREATE TABLE session (
    id bigint PRIMARY KEY,
    host text NOT NULL,
    pid int NOT NULL,
    since timestamptz NOT NULL,
    until timestamptz NOT NULL,
    boot uuid NOT NULL,
    dead bool NOT NULL,
    lease interval NOT NULL,
    -- Until then, the kernel of the mount may keep answers, because the mount was the only one.
    alone_until timestamptz NOT NULL
) WITH (fillfactor = 50);

-- The last change of a request slot, and what the changes of the slot added to the totals of the
-- file system (K.9). One slot has one change at a time, so these counters have no contention. The
-- sizes of a few sparse files exceed a bigint.
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

-- A session has a lease on a directory (K.2). The lease stays if the session drops the directory
-- from its cache for want of memory. The next change there costs an acknowledgement, as usual.
CREATE UNLOGGED TABLE lease (
    dir bigint NOT NULL,
    session bigint NOT NULL,
    PRIMARY KEY (dir, session)
);

-- A change that waits until other sessions have let go of their leases. It belongs to a request
-- slot, so that a repeated request finds it. Its number comes from a logged sequence, so it never
-- repeats (K.10).
CREATE UNLOGGED TABLE intent (
    session bigint NOT NULL,
    slot int NOT NULL,
    id bigint NOT NULL UNIQUE,
    dirs bigint[] NOT NULL,
    PRIMARY KEY (session, slot)
);
CREATE INDEX intent_dirs ON intent USING gin (dirs);

-- One row: this start of the database. After a crash the table is empty, and the next session
-- writes a new row (K.10).
CREATE UNLOGGED TABLE boot (
    one bool PRIMARY KEY DEFAULT true CHECK (one),
    id uuid NOT NULL,
    since timestamptz NOT NULL
);

-- A lock of fcntl(2), or of flock(2) if `is_flock`, on the bytes from `first` to `last`. `owner` is
-- a number of the mount, and `pid` the process. The locks of an owner do not overlap. The table is
-- logged, so a crash of the database ends no lock.
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

-- An object that no slice names any more. A reader may still have its name, so it stays a while.
CREATE TABLE dead_object (
    object text PRIMARY KEY,
    since timestamptz NOT NULL
);

-- A client takes 4,096 inode numbers at a time. The root has number 1.
CREATE SEQUENCE ino_seq START 4096 INCREMENT 4096;
CREATE SEQUENCE edge_seq_seq;
CREATE SEQUENCE slice_seq;
CREATE SEQUENCE intent_seq;
