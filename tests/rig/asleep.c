/* The clocks of a machine that has slept, for processes that were stopped meanwhile.

   Loaded before libc (LD_PRELOAD).  A file of eight bytes says how many nanoseconds the machine
   has slept; who stops and continues the processes writes it before they go on.

   CLOCK_MONOTONIC and its kin stand still while a machine sleeps, so that time is taken off
   them, and put back where the kernel is given a time of theirs.  (Who waited when the machine
   fell asleep wakes up with it, which is too early.)  CLOCK_BOOTTIME and its timers
   go on.  With APART_BOOTTIME=stands they stand still, too: the clock that a host must not
   take for its lease.  A timer on it is a thread here, which is stopped with its process. */

#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <pthread.h>
#include <semaphore.h>
#include <signal.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define NS 1000000000LL
#define OLDEST_DATE 1000000000LL /* seconds: an earlier time is one since the start */

static volatile int64_t *slept;
static int boottime_stands;
static int64_t deadline; /* of the one timer that stands still; 0: none */

__attribute__((constructor)) static void begin(void) {
  const char *path = getenv("APART_SLEPT"), *boottime = getenv("APART_BOOTTIME");
  int fd = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
  if (fd < 0)
    return;
  void *seen = mmap(NULL, sizeof *slept, PROT_READ, MAP_SHARED, fd, 0);
  close(fd);
  slept = seen == MAP_FAILED ? NULL : seen;
  boottime_stands = boottime && !strcmp(boottime, "stands");
}

static struct timespec later(const struct timespec *at, int64_t ns) {
  int64_t sum = at->tv_sec * NS + at->tv_nsec + ns;
  return (struct timespec){sum / NS, sum % NS};
}

static int64_t slept_on(clockid_t clock) {
  switch (clock) {
  case CLOCK_MONOTONIC:
  case CLOCK_MONOTONIC_RAW:
  case CLOCK_MONOTONIC_COARSE:
    return slept ? *slept : 0;
  case CLOCK_BOOTTIME:
    return slept && boottime_stands ? *slept : 0;
  default:
    return 0;
  }
}

int clock_gettime(clockid_t clock, struct timespec *now) {
  int failed = syscall(SYS_clock_gettime, clock, now);
  if (!failed)
    *now = later(now, -slept_on(clock));
  return failed;
}

/* -- what waits until a time ------------------------------------------------------------- */

#define REAL(name) ((__typeof__(&name))dlsym(RTLD_NEXT, #name))

int clock_nanosleep(clockid_t clock, int flags, const struct timespec *at, struct timespec *left) {
  struct timespec there = later(at, flags & TIMER_ABSTIME ? slept_on(clock) : 0);
  return REAL(clock_nanosleep)(clock, flags, &there, left);
}

int sem_clockwait(sem_t *sem, clockid_t clock, const struct timespec *at) {
  struct timespec there = later(at, slept_on(clock));
  return REAL(sem_clockwait)(sem, clock, &there);
}

int pthread_cond_clockwait(pthread_cond_t *cond, pthread_mutex_t *mutex, clockid_t clock,
                           const struct timespec *at) {
  struct timespec there = later(at, slept_on(clock));
  return REAL(pthread_cond_clockwait)(cond, mutex, clock, &there);
}

int pthread_cond_timedwait(pthread_cond_t *cond, pthread_mutex_t *mutex,
                           const struct timespec *at) {
  int64_t ns = at->tv_sec < OLDEST_DATE ? slept_on(CLOCK_MONOTONIC) : 0;
  struct timespec there = later(at, ns);
  return REAL(pthread_cond_timedwait)(cond, mutex, &there);
}

/* -- the timer of a guard ---------------------------------------------------------------- */

static void *keep_time(void *unused) {
  struct timespec pause = {0, NS / 50}, now;
  for (;;) {
    syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &pause, NULL);
    int64_t at = __atomic_load_n(&deadline, __ATOMIC_SEQ_CST);
    clock_gettime(CLOCK_BOOTTIME, &now);
    if (at && now.tv_sec * NS + now.tv_nsec >= at)
      kill(getpid(), SIGKILL);
  }
  return unused;
}

int timer_create(clockid_t clock, struct sigevent *event, timer_t *timer) {
  pthread_t thread;
  if (clock != CLOCK_BOOTTIME || !boottime_stands)
    return REAL(timer_create)(clock, event, timer);
  *timer = (timer_t)&deadline;
  return pthread_create(&thread, NULL, keep_time, NULL);
}

int timer_settime(timer_t timer, int flags, const struct itimerspec *at, struct itimerspec *old) {
  if (timer != (timer_t)&deadline)
    return REAL(timer_settime)(timer, flags, at, old);
  __atomic_store_n(&deadline, at->it_value.tv_sec * NS + at->it_value.tv_nsec, __ATOMIC_SEQ_CST);
  return 0;
}
