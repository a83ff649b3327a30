/* A clock that runs faster, for a whole program: preloaded, it multiplies the wall clock and the monotonic
 * clock, and divides every wait, by the speed in the file FAST_CLOCK. Processor time stays real. The file is
 * mapped, so its writer can change the speed, or let the clock jump, while the program runs.
 *
 * It covers the functions that tidegauge and mongod call. A wait may end early: the callers of each of these
 * functions are prepared for that. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/mman.h>
#include <sys/select.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

/* The file FAST_CLOCK, as clock.rs writes it. The version is odd while the other fields change. */
struct settings {
    _Atomic uint64_t version;
    _Atomic int64_t real;   /* nanoseconds of the monotonic clock when these settings began ... */
    _Atomic int64_t fast;   /* ... and of the fast monotonic clock */
    _Atomic int64_t wall;   /* what is added to the fast monotonic clock to get the fast wall clock */
    _Atomic int64_t speed;
    _Atomic int64_t longest; /* the longest real wait: short while the speed may still change */
};

enum { SECOND = 1000000000 };

static const struct settings *settings;
static int (*real_clock_gettime)(clockid_t, struct timespec *);
static int (*real_cond_clockwait)(pthread_cond_t *, pthread_mutex_t *, clockid_t, const struct timespec *);
static int (*real_sem_clockwait)(sem_t *, clockid_t, const struct timespec *);
static int (*real_timerfd_settime)(int, int, const struct itimerspec *, struct itimerspec *);
static long (*real_syscall)(long, ...);

__attribute__((constructor)) static void start(void) {
    if (settings)
        return;
    real_clock_gettime = dlsym(RTLD_NEXT, "clock_gettime");
    real_cond_clockwait = dlsym(RTLD_NEXT, "pthread_cond_clockwait");
    real_sem_clockwait = dlsym(RTLD_NEXT, "sem_clockwait");
    real_timerfd_settime = dlsym(RTLD_NEXT, "timerfd_settime");
    real_syscall = dlsym(RTLD_NEXT, "syscall");
    const char *path = getenv("FAST_CLOCK");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    void *map = file < 0 ? MAP_FAILED : mmap(NULL, sizeof(struct settings), PROT_READ, MAP_SHARED, file, 0);
    if (map == MAP_FAILED)
        abort();
    close(file);
    settings = map;
}

static int64_t nanoseconds(const struct timespec *at) {
    return at->tv_sec * (int64_t)SECOND + at->tv_nsec;
}

static struct timespec timespec_of(int64_t ns) {
    return (struct timespec){.tv_sec = ns / SECOND, .tv_nsec = ns % SECOND};
}

static int64_t real_now(clockid_t clock) {
    struct timespec now;
    real_clock_gettime(clock, &now);
    return nanoseconds(&now);
}

/* The fast monotonic clock, from this real one; adds the offset of the wall clock if it is asked for. */
static int64_t fast_now(clockid_t real, int of_wall) {
    if (!settings)
        start();
    for (;;) {
        uint64_t version = atomic_load(&settings->version);
        int64_t passed = real_now(real) - settings->real;
        int64_t fast = settings->fast + passed * settings->speed + (of_wall ? settings->wall : 0);
        if (version % 2 == 0 && version == atomic_load(&settings->version))
            return fast;
    }
}

/* Converts the nanoseconds of a wait from the fast clock to the real one, at most `longest`. */
static int64_t real_wait(int64_t fast) {
    if (!settings)
        start();
    int64_t real = fast <= 0 ? 0 : (fast - 1) / settings->speed + 1;
    return real < settings->longest ? real : settings->longest;
}

/* Converts the end of a wait to the real monotonic clock. The end is a time of the fast wall clock or of the
 * fast monotonic clock. Times of the latter count from the start of the machine, so they are before 2001. */
static struct timespec real_end(int64_t fast) {
    int of_wall = fast > INT64_C(1000000000) * SECOND;
    return timespec_of(real_now(CLOCK_MONOTONIC) + real_wait(fast - fast_now(CLOCK_MONOTONIC, of_wall)));
}

int clock_gettime(clockid_t clock, struct timespec *now) {
    if (!real_clock_gettime)
        start();
    switch (clock) {
    case CLOCK_REALTIME:
        *now = timespec_of(fast_now(CLOCK_MONOTONIC, 1));
        return 0;
    case CLOCK_REALTIME_COARSE:
        *now = timespec_of(fast_now(CLOCK_MONOTONIC_COARSE, 1));
        return 0;
    case CLOCK_MONOTONIC_COARSE:
        *now = timespec_of(fast_now(CLOCK_MONOTONIC_COARSE, 0));
        return 0;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_BOOTTIME:
        *now = timespec_of(fast_now(CLOCK_MONOTONIC, 0));
        return 0;
    default:
        return real_clock_gettime(clock, now);
    }
}

int gettimeofday(struct timeval *restrict now, void *restrict zone) {
    (void)zone;
    struct timespec precise = timespec_of(fast_now(CLOCK_MONOTONIC, 1));
    *now = (struct timeval){.tv_sec = precise.tv_sec, .tv_usec = precise.tv_nsec / 1000};
    return 0;
}

time_t time(time_t *now) {
    time_t seconds = fast_now(CLOCK_MONOTONIC_COARSE, 1) / SECOND;
    if (now)
        *now = seconds;
    return seconds;
}

/* Waits until the fast monotonic clock shows this. A signal does not end it. */
static void sleep_until(int64_t end) {
    for (int64_t left; (left = end - fast_now(CLOCK_MONOTONIC, 0)) > 0;) {
        struct timespec wait = timespec_of(real_wait(left));
        real_syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &wait, NULL);
    }
}

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *time, struct timespec *left) {
    (void)left;
    int64_t now = fast_now(CLOCK_MONOTONIC, 0);
    int64_t since = flags != TIMER_ABSTIME ? now : clock == CLOCK_REALTIME ? -settings->wall : 0;
    sleep_until(since + nanoseconds(time));
    return 0;
}

int nanosleep(const struct timespec *time, struct timespec *left) {
    return clock_nanosleep(CLOCK_MONOTONIC, 0, time, left);
}

unsigned sleep(unsigned seconds) {
    sleep_until(fast_now(CLOCK_MONOTONIC, 0) + seconds * (int64_t)SECOND);
    return 0;
}

int usleep(useconds_t microseconds) {
    sleep_until(fast_now(CLOCK_MONOTONIC, 0) + microseconds * INT64_C(1000));
    return 0;
}

/* Converts a wait in milliseconds to real time. NULL: the wait is negative, so it has no end. */
static struct timespec *of_ms(int ms, struct timespec *wait) {
    if (ms < 0)
        return NULL;
    *wait = timespec_of(real_wait(ms * INT64_C(1000000)));
    return wait;
}

int epoll_wait(int epoll, struct epoll_event *events, int max, int ms) {
    struct timespec wait;
    return real_syscall(SYS_epoll_pwait2, epoll, events, max, of_ms(ms, &wait), NULL, 0);
}

int poll(struct pollfd *files, nfds_t count, int ms) {
    struct timespec wait;
    return ppoll(files, count, of_ms(ms, &wait), NULL);
}

int __poll_chk(struct pollfd *files, nfds_t count, int ms, size_t size) {
    (void)size;
    return poll(files, count, ms);
}

int select(int count, fd_set *restrict read, fd_set *restrict write, fd_set *restrict other,
           struct timeval *restrict time) {
    struct timespec wait;
    if (time)
        wait = timespec_of(real_wait(time->tv_sec * (int64_t)SECOND + time->tv_usec * INT64_C(1000)));
    return pselect(count, read, write, other, time ? &wait : NULL, NULL);
}

int timerfd_settime(int timer, int flags, const struct itimerspec *new, struct itimerspec *old) {
    int64_t first = nanoseconds(&new->it_value), every = nanoseconds(&new->it_interval);
    struct itimerspec real = {0};
    if (first > 0 && flags & TFD_TIMER_ABSTIME)
        first -= fast_now(CLOCK_MONOTONIC, first > INT64_C(1000000000) * SECOND), first = first > 0 ? first : 1;
    real.it_value = timespec_of(real_wait(first));
    real.it_interval = timespec_of(real_wait(every));
    return real_timerfd_settime(timer, flags & ~TFD_TIMER_ABSTIME, &real, old);
}

/* If `longest` has ended the wait before the fast clock shows `end`, the wait has not timed out: the function
 * returns 0, as it may at any time without a reason. */
int pthread_cond_timedwait(pthread_cond_t *condition, pthread_mutex_t *mutex, const struct timespec *end) {
    struct timespec real = real_end(nanoseconds(end));
    int result = real_cond_clockwait(condition, mutex, CLOCK_MONOTONIC, &real);
    int of_wall = nanoseconds(end) > INT64_C(1000000000) * SECOND;
    return result == ETIMEDOUT && fast_now(CLOCK_MONOTONIC, of_wall) < nanoseconds(end) ? 0 : result;
}

int sem_timedwait(sem_t *semaphore, const struct timespec *end) {
    for (;;) {
        struct timespec real = real_end(nanoseconds(end));
        int result = real_sem_clockwait(semaphore, CLOCK_MONOTONIC, &real);
        if (result == 0 || errno != ETIMEDOUT || fast_now(CLOCK_MONOTONIC, 1) >= nanoseconds(end))
            return result;
    }
}

/* Rust's standard library waits by this system call. */
long syscall(long number, ...) {
    va_list list;
    va_start(list, number);
    long a = va_arg(list, long), b = va_arg(list, long), c = va_arg(list, long);
    long d = va_arg(list, long), e = va_arg(list, long), f = va_arg(list, long);
    va_end(list);
    if (!real_syscall)
        start();
    struct timespec real;
    if (number == SYS_futex && d) {
        const struct timespec *time = (const struct timespec *)d;
        int operation = b & FUTEX_CMD_MASK;
        if (operation == FUTEX_WAIT) {
            real = timespec_of(real_wait(nanoseconds(time)));
            d = (long)&real;
        } else if (operation == FUTEX_WAIT_BITSET) {
            real = real_end(nanoseconds(time));
            b &= ~FUTEX_CLOCK_REALTIME;
            d = (long)&real;
        }
    }
    return real_syscall(number, a, b, c, d, e, f);
}
