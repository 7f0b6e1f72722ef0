/* Counts the events of every kind of periodic timer until each has reached COUNT: `timers COUNT`.
 *
 * All are waited for with epoll: a timerfd as it is, an interval timer (setitimer) and a POSIX timer (timer_create)
 * as signals through a signalfd. Appends `timerfd N`, `itimer N`, `posix N` to `events.log`. A timer that a
 * restore leaves disarmed is one that this program waits for in vain.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/epoll.h>
#include <sys/signalfd.h>
#include <sys/time.h>
#include <sys/timerfd.h>
#include <time.h>
#include <unistd.h>

enum { PERIOD_NANOSECONDS = 10 * 1000 * 1000, TIMERFD = 0, ITIMER = 1, POSIX = 2, KINDS = 3 };

static const char *const NAMES[KINDS] = {"timerfd", "itimer", "posix"};
static const struct itimerspec PERIOD = {.it_interval = {.tv_nsec = PERIOD_NANOSECONDS},
                                         .it_value = {.tv_nsec = PERIOD_NANOSECONDS}};

static void die(const char *what)
{
    perror(what);
    exit(2);
}

static int watched(int epoll, int descriptor)
{
    struct epoll_event event = {.events = EPOLLIN, .data.fd = descriptor};
    if (descriptor < 0 || epoll_ctl(epoll, EPOLL_CTL_ADD, descriptor, &event))
        die("epoll");
    return descriptor;
}

static int start_signals(int epoll)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGALRM);
    sigaddset(&wanted, SIGRTMIN);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    int descriptor = watched(epoll, signalfd(-1, &wanted, SFD_CLOEXEC));
    struct itimerval interval = {.it_interval = {.tv_usec = PERIOD_NANOSECONDS / 1000},
                                 .it_value = {.tv_usec = PERIOD_NANOSECONDS / 1000}};
    struct sigevent by_signal = {.sigev_notify = SIGEV_SIGNAL, .sigev_signo = SIGRTMIN};
    timer_t timer;
    if (setitimer(ITIMER_REAL, &interval, NULL) || timer_create(CLOCK_MONOTONIC, &by_signal, &timer) ||
        timer_settime(timer, 0, &PERIOD, NULL))
        die("timer");
    return descriptor;
}

static int start_timerfd(int epoll)
{
    int descriptor = watched(epoll, timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC));
    if (timerfd_settime(descriptor, 0, &PERIOD, NULL))
        die("timerfd");
    return descriptor;
}

static int kind_of_event(int descriptor, int timerfd)
{
    uint64_t expired;
    struct signalfd_siginfo signal;
    if (descriptor == timerfd) {
        if (read(descriptor, &expired, sizeof expired) != sizeof expired)
            die("timerfd");
        return TIMERFD;
    }
    if (read(descriptor, &signal, sizeof signal) != sizeof signal)
        die("signalfd");
    return signal.ssi_signo == SIGALRM ? ITIMER : POSIX;
}

int main(int argc, char **argv)
{
    long wanted = argc > 1 ? atol(argv[1]) : 0, counts[KINDS] = {0};
    int log = open("events.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    int epoll = epoll_create1(EPOLL_CLOEXEC);
    if (log < 0 || epoll < 0)
        die("events.log");
    start_signals(epoll);
    int timerfd = start_timerfd(epoll);
    while (counts[TIMERFD] < wanted || counts[ITIMER] < wanted || counts[POSIX] < wanted) {
        struct epoll_event event;
        if (epoll_wait(epoll, &event, 1, -1) != 1)
            continue;
        int kind = kind_of_event(event.data.fd, timerfd);
        if (counts[kind] < wanted)
            dprintf(log, "%s %ld\n", NAMES[kind], ++counts[kind]);
    }
    return 0;
}
