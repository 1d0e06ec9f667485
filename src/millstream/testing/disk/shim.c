/* A disk that fails on demand, for tests: preloaded, it stands between a program and the C library.

   It looks at files below MILLSTREAM_DISK_FOLDER alone.
   MILLSTREAM_DISK_JOURNAL    writes every change and every sync to this file, in order (recording.py reads it)
   MILLSTREAM_DISK_FAIL_SYNC  this sync and no other (1, 2, 3 …) fails with EIO
   MILLSTREAM_DISK_SLOW_MS    every sync takes this much longer */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static const char *folder;
static int journal = -1;
static long fail_sync, slow_ms, syncs;

__attribute__((constructor)) static void begin(void) {
    folder = getenv("MILLSTREAM_DISK_FOLDER");
    const char *path = getenv("MILLSTREAM_DISK_JOURNAL");
    const char *fail = getenv("MILLSTREAM_DISK_FAIL_SYNC");
    const char *slow = getenv("MILLSTREAM_DISK_SLOW_MS");
    fail_sync = fail ? atol(fail) : 0;
    slow_ms = slow ? atol(slow) : 0;
    if (folder && path) journal = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int below(const char *path) {
    return folder && strncmp(path, folder, strlen(folder)) == 0;
}

static int watched(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t size = folder ? readlink(link, path, PATH_MAX - 1) : -1;
    if (size < 0) return 0;
    path[size] = 0;
    return below(path);
}

static void put(const void *data, size_t size) {
    if (syscall(SYS_write, journal, data, size) != (ssize_t)size) abort();
}

static void note(char kind, const char *path, uint64_t offset, uint64_t size, const void *data) {
    if (journal < 0) return;
    uint32_t length = strlen(path);
    char head[21];
    head[0] = kind;
    memcpy(head + 1, &offset, 8);
    memcpy(head + 9, &size, 8);
    memcpy(head + 17, &length, 4);
    put(head, sizeof head);
    put(path, length);
    if (data) put(data, size);
}

static ssize_t put_at(int fd, const void *data, size_t size, off_t offset, int at) {
    char path[PATH_MAX];
    if (!watched(fd, path)) return at ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    pthread_mutex_lock(&lock);
    if (!at) {
        int append = fcntl(fd, F_GETFL) & O_APPEND;
        offset = lseek(fd, 0, append ? SEEK_END : SEEK_CUR);
    }
    ssize_t done = at ? syscall(SYS_pwrite64, fd, data, size, offset) : syscall(SYS_write, fd, data, size);
    int error = errno;
    if (done > 0) note('w', path, offset, done, data);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

ssize_t write(int fd, const void *data, size_t size) { return put_at(fd, data, size, 0, 0); }
ssize_t pwrite(int fd, const void *data, size_t size, off_t offset) { return put_at(fd, data, size, offset, 1); }
ssize_t pwrite64(int fd, const void *data, size_t size, off64_t offset) { return put_at(fd, data, size, offset, 1); }

static int cut(int fd, off_t size) {
    char path[PATH_MAX];
    if (!watched(fd, path)) return syscall(SYS_ftruncate, fd, size);
    pthread_mutex_lock(&lock);
    int done = syscall(SYS_ftruncate, fd, size), error = errno;
    if (!done) note('t', path, size, 0, NULL);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int ftruncate(int fd, off_t size) { return cut(fd, size); }
int ftruncate64(int fd, off64_t size) { return cut(fd, size); }

static int sync_file(int fd, long number) {
    char path[PATH_MAX];
    if (!watched(fd, path)) return syscall(number, fd);
    pthread_mutex_lock(&lock);
    long turn = ++syncs;
    note('s', path, turn, 0, NULL);
    pthread_mutex_unlock(&lock);
    if (slow_ms) {
        struct timespec pause = {slow_ms / 1000, slow_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    if (turn == fail_sync) {
        errno = EIO;
        return -1;
    }
    int done = syscall(number, fd), error = errno;
    pthread_mutex_lock(&lock);
    if (!done) note('e', path, turn, 0, NULL);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}

int fsync(int fd) { return sync_file(fd, SYS_fsync); }
int fdatasync(int fd) { return sync_file(fd, SYS_fdatasync); }

int unlink(const char *path) {
    char whole[PATH_MAX];
    int known = realpath(path, whole) && below(whole);
    pthread_mutex_lock(&lock);
    int done = syscall(SYS_unlink, path), error = errno;
    if (!done && known) note('u', whole, 0, 0, NULL);
    pthread_mutex_unlock(&lock);
    errno = error;
    return done;
}
