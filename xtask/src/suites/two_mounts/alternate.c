/*
 * A library for LD_PRELOAD that sends a program's calls to two mounts of one file system in turn.
 *
 * The program gets paths below the mount point ALTERNATE_FIRST. The library changes them to
 * ALTERNATE_SECOND, a path of the same length. It acts only in the program ALTERNATE_PROGRAM, and
 * not in its children of other names. There are two modes, which ALTERNATE_MODE selects:
 *
 * - "paths": each second call with a path goes to the second mount. A descriptor stays on the mount
 *   where it was opened. stat(2) shows the device of the first mount for both.
 * - "locked" and "unlocked": each open file is open on both mounts, and each second call on its
 *   descriptor goes to the second mount. In the mode "locked" each call holds a lock of the file,
 *   of flock(2) and fcntl(2) in turn. The lock ends when the next call begins, because reads and
 *   writes of a mapping are no calls.
 *
 * When the program exits, the library appends the number of calls on each mount to ALTERNATE_LOG.
 *
 * Source: ld.so(8), dlsym(3).
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

/* Tests use paths longer than PATH_MAX. A path that is even longer is not changed. */
#define PATH_BYTES (3 * 4096)
#define FILES 1024

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

static enum { OFF, PATHS, FILES_LOCKED, FILES_UNLOCKED } mode;
static const char *mounts[2];
static dev_t devices[2];
static unsigned long calls[2];
static unsigned long steps, seed;

__attribute__((constructor)) static void begin(void) {
    const char *name = getenv("ALTERNATE_PROGRAM"), *text = getenv("ALTERNATE_MODE");
    mounts[0] = getenv("ALTERNATE_FIRST");
    mounts[1] = getenv("ALTERNATE_SECOND");
    if (!name || !text || !mounts[0] || !mounts[1]) return;
    if (strcmp(name, program_invocation_short_name)) return;
    if (strlen(mounts[0]) != strlen(mounts[1])) abort();
    for (int which = 0; which < 2; which++) {
        struct stat found;
        if (REAL(stat)(mounts[which], &found)) abort();
        devices[which] = found.st_dev;
    }
    seed = getenv("ALTERNATE_SEED") ? strtoul(getenv("ALTERNATE_SEED"), NULL, 10) : 0;
    mode = !strcmp(text, "paths") ? PATHS : !strcmp(text, "locked") ? FILES_LOCKED : FILES_UNLOCKED;
}

__attribute__((destructor)) static void end(void) {
    if (mode == OFF) return;
    FILE *log = REAL(fopen)(getenv("ALTERNATE_LOG"), "a");
    if (!log) abort();
    fprintf(log, "%lu %lu\n", calls[0], calls[1]);
    fclose(log);
}

/* The finalizer of splitmix64. */
static unsigned long mixed(unsigned long word) {
    word = (word ^ word >> 30) * 0xbf58476d1ce4e5b9;
    word = (word ^ word >> 27) * 0x94d049bb133111eb;
    return word ^ word >> 31;
}

/* Returns the mount of the next call: each second one, or with a seed a random one. */
static int next_mount(void) {
    unsigned long step = __atomic_add_fetch(&steps, 1, __ATOMIC_RELAXED);
    int which = (seed ? mixed(seed << 32 ^ step) : step) & 1;
    __atomic_fetch_add(&calls[which], 1, __ATOMIC_RELAXED);
    return which;
}

/* Returns true if the path is below the first mount point. Tests of EFAULT pass invalid pointers,
 * which are 0 or negative. */
static int is_inside(const char *path) {
    if (mode == OFF || (intptr_t)path <= 0) return 0;
    size_t length = strlen(mounts[0]);
    return !strncmp(path, mounts[0], length) && (path[length] == '/' || !path[length]);
}

/* Returns the path on the mount `which`. */
static const char *path_on(int which, const char *path, char *buffer) {
    if (which == 0 || !is_inside(path) || strlen(path) >= PATH_BYTES) return path;
    strcpy(buffer, path);
    return memcpy(buffer, mounts[1], strlen(mounts[1]));
}

/* Returns the mount for a call with one or two paths in the mode "paths". */
static int mount_for(const char *path, const char *other) {
    return mode == PATHS && (is_inside(path) || is_inside(other)) ? next_mount() : 0;
}

/* Functions of one path, the parameter `path`, and of two paths, `path` and `other`. */
#define ONE(type, name, parameters, ...)                                                           \
    type name parameters {                                                                         \
        char buffer[PATH_BYTES];                                                                   \
        path = path_on(mount_for(path, NULL), path, buffer);                                       \
        return REAL(name)(__VA_ARGS__);                                                            \
    }
#define TWO(name, parameters, ...)                                                                 \
    int name parameters {                                                                          \
        char buffer[PATH_BYTES], second[PATH_BYTES];                                               \
        int which = mount_for(path, other);                                                        \
        path = path_on(which, path, buffer);                                                       \
        other = path_on(which, other, second);                                                     \
        return REAL(name)(__VA_ARGS__);                                                            \
    }

ONE(int, mkdir, (const char *path, mode_t mode), path, mode)
ONE(int, rmdir, (const char *path), path)
ONE(int, mkfifo, (const char *path, mode_t mode), path, mode)
ONE(int, mknod, (const char *path, mode_t mode, dev_t device), path, mode, device)
ONE(int, unlink, (const char *path), path)
ONE(int, unlinkat, (int dir, const char *path, int flags), dir, path, flags)
ONE(int, symlink, (const char *target, const char *path), target, path)
ONE(int, symlinkat, (const char *target, int dir, const char *path), target, dir, path)
ONE(ssize_t, readlink, (const char *path, char *text, size_t size), path, text, size)
ONE(int, chmod, (const char *path, mode_t mode), path, mode)
ONE(int, fchmodat, (int dir, const char *path, mode_t mode, int flags), dir, path, mode, flags)
ONE(int, chown, (const char *path, uid_t user, gid_t group), path, user, group)
ONE(int, lchown, (const char *path, uid_t user, gid_t group), path, user, group)
ONE(int, fchownat, (int dir, const char *path, uid_t user, gid_t group, int flags), dir, path, user,
    group, flags)
ONE(int, truncate, (const char *path, off_t size), path, size)
ONE(int, utimensat, (int dir, const char *path, const struct timespec times[2], int flags), dir,
    path, times, flags)
ONE(long, pathconf, (const char *path, int name), path, name)
ONE(int, statfs64, (const char *path, struct statfs64 *found), path, found)
ONE(DIR *, opendir, (const char *path), path)
TWO(rename, (const char *path, const char *other), path, other)
TWO(renameat, (int dir, const char *path, int at, const char *other), dir, path, at, other)
TWO(link, (const char *path, const char *other), path, other)
TWO(linkat, (int dir, const char *path, int at, const char *other, int flags), dir, path, at, other,
    flags)

int bind(int fd, const struct sockaddr *address, socklen_t size) {
    struct sockaddr_un moved;
    char buffer[PATH_BYTES];
    if (mode == PATHS && address->sa_family == AF_UNIX && size <= sizeof moved) {
        memset(&moved, 0, sizeof moved);
        memcpy(&moved, address, size);
        const char *path = path_on(mount_for(moved.sun_path, NULL), moved.sun_path, buffer);
        memmove(moved.sun_path, path, strlen(path));
        address = (const struct sockaddr *)&moved;
    }
    return REAL(bind)(fd, address, size);
}

/* The descriptor of each file on the second mount, or 0 if there is none. */
static int twins[FILES];
/* The descriptor with the lock, or -1, and whether the lock is one of flock(2). */
static int locked = -1, is_flock;

static void must(int result, const char *what) {
    if (result < 0) {
        perror(what);
        abort();
    }
}

static void lock_file(int fd, int is_taken) {
    if (is_flock) {
        must(flock(fd, is_taken ? LOCK_EX : LOCK_UN), "flock");
    } else {
        struct flock whole = {.l_type = is_taken ? F_WRLCK : F_UNLCK, .l_whence = SEEK_SET};
        must(fcntl(fd, F_OFD_SETLKW, &whole), "fcntl");
    }
}

static void unlock(void) {
    if (locked >= 0) lock_file(locked, 0);
    locked = -1;
}

static int has_twin(int fd) { return fd >= 0 && fd < FILES && twins[fd]; }

/* Returns the descriptor for the next call on a file. In the mode "locked" the file is locked then.
 * The kernel learns from fstat(2) that the other mount has made the file longer. Programs ask for
 * the size, but fsx keeps count of it. */
static int turn(int fd) {
    struct stat found;
    if (!has_twin(fd)) return fd;
    int use = next_mount() ? twins[fd] : fd;
    if (mode == FILES_LOCKED) {
        unlock();
        is_flock = steps >> 1 & 1;
        lock_file(use, 1);
        must(REAL(fstat)(use, &found), "fstat");
        locked = use;
    }
    return use;
}

static int open_twin(int fd, const char *path, int flags) {
    if (mode < FILES_LOCKED || fd < 0 || fd >= FILES || !is_inside(path)) return fd;
    char buffer[PATH_BYTES];
    int twin = REAL(open64)(path_on(1, path, buffer), flags & ~(O_CREAT | O_EXCL | O_TRUNC));
    must(twin, "open on the second mount");
    twins[fd] = twin;
    return fd;
}

#define OPEN(name, parameters, ...)                                                                \
    int name parameters {                                                                          \
        char buffer[PATH_BYTES];                                                                   \
        va_list list;                                                                              \
        va_start(list, flags);                                                                     \
        unsigned bits = flags & (O_CREAT | __O_TMPFILE) ? va_arg(list, mode_t) : 0;                  \
        va_end(list);                                                                              \
        const char *given = path;                                                                  \
        path = path_on(mount_for(path, NULL), path, buffer);                                       \
        return open_twin(REAL(name)(__VA_ARGS__, bits), given, flags);                             \
    }

OPEN(open, (const char *path, int flags, ...), path, flags)
OPEN(open64, (const char *path, int flags, ...), path, flags)
OPEN(openat64, (int dir, const char *path, int flags, ...), dir, path, flags)

int close(int fd) {
    if (has_twin(fd)) {
        unlock();
        must(REAL(close)(twins[fd]), "close on the second mount");
        twins[fd] = 0;
    }
    return REAL(close)(fd);
}

#define ON_FILE(type, name, parameters, ...)                                                       \
    type name parameters {                                                                         \
        fd = turn(fd);                                                                             \
        return REAL(name)(__VA_ARGS__);                                                            \
    }

/* In the mode "paths" the program looks at the file on the other mount while the file is open. */
static void sync_file(int fd) {
    struct stat found;
    if (mode != PATHS || REAL(fstat)(fd, &found)) return;
    if (found.st_dev == devices[0] || found.st_dev == devices[1]) must(REAL(fsync)(fd), "fsync");
}
#define WRITE(type, name, parameters, ...)                                                         \
    type name parameters {                                                                         \
        fd = turn(fd);                                                                             \
        type result = REAL(name)(__VA_ARGS__);                                                     \
        sync_file(fd);                                                                             \
        return result;                                                                             \
    }

ON_FILE(ssize_t, pread64, (int fd, void *to, size_t size, off64_t at), fd, to, size, at)
ON_FILE(int, ftruncate64, (int fd, off64_t size), fd, size)
ON_FILE(off64_t, lseek64, (int fd, off64_t at, int whence), fd, at, whence)
ON_FILE(int, fsync, (int fd), fd)
ON_FILE(int, fdatasync, (int fd), fd)
ON_FILE(int, fallocate, (int fd, int how, off_t at, off_t size), fd, how, at, size)
WRITE(ssize_t, write, (int fd, const void *from, size_t size), fd, from, size)
WRITE(ssize_t, pwrite, (int fd, const void *from, size_t size, off_t at), fd, from, size, at)
WRITE(ssize_t, pwrite64, (int fd, const void *from, size_t size, off64_t at), fd, from, size, at)
WRITE(int, posix_fallocate, (int fd, off_t at, off_t size), fd, at, size)
ON_FILE(int, posix_fadvise, (int fd, off_t at, off_t size, int advice), fd, at, size, advice)
ON_FILE(ssize_t, sendfile64, (int to, int fd, off64_t *at, size_t size), to, fd, at, size)
ON_FILE(void *, mmap, (void *at, size_t size, int access, int flags, int fd, off_t from), at, size,
        access, flags, fd, from)
ON_FILE(void *, mmap64, (void *at, size_t size, int access, int flags, int fd, off64_t from), at,
        size, access, flags, fd, from)

/* fsx calls copy_file_range(2) in this way. */
long syscall(long number, ...) {
    long words[6];
    va_list list;
    va_start(list, number);
    for (int at = 0; at < 6; at++) words[at] = va_arg(list, long);
    va_end(list);
    if (number == SYS_copy_file_range) words[0] = words[2] = turn((int)words[0]);
    return REAL(syscall)(number, words[0], words[1], words[2], words[3], words[4], words[5]);
}

/* Attributes: by a path in the mode "paths", and by a descriptor in the other modes. */

#define STAT(name, type)                                                                           \
    static int fixed_##name(int result, struct type *found) {                                      \
        if (!result && mode == PATHS && found->st_dev == devices[1]) found->st_dev = devices[0];   \
        return result;                                                                             \
    }                                                                                              \
    int name(const char *path, struct type *found) {                                               \
        char buffer[PATH_BYTES];                                                                   \
        path = path_on(mount_for(path, NULL), path, buffer);                                       \
        return fixed_##name(REAL(name)(path, found), found);                                       \
    }

STAT(stat, stat)
STAT(lstat, stat)
STAT(stat64, stat64)
STAT(lstat64, stat64)

int fstat(int fd, struct stat *found) { return fixed_stat(REAL(fstat)(turn(fd), found), found); }

int fstat64(int fd, struct stat64 *found) {
    return fixed_stat64(REAL(fstat64)(turn(fd), found), found);
}

int fstatat64(int dir, const char *path, struct stat64 *found, int flags) {
    char buffer[PATH_BYTES];
    path = path_on(mount_for(path, NULL), path, buffer);
    return fixed_stat64(REAL(fstatat64)(dir, path, found, flags), found);
}

int statx(int dir, const char *path, int flags, unsigned mask, struct statx *found) {
    char buffer[PATH_BYTES];
    path = path_on(mount_for(path, NULL), path, buffer);
    return REAL(statx)(turn(dir), path, flags, mask, found);
}
