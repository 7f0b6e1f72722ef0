/* Holds memory that compresses to about half, ticks, and rewrites or verifies its pages when asked to.
 *
 * Usage: hog MEBIBYTES TICKS PERCENT scattered|contiguous
 * Every page is filled from its number and version: its first half is random, its second half repeats. No two
 * pages are equal and none is zero. Appends to `ticks.log`, each line written at once:
 *     filled PAGES           all pages are written
 *     tick N NANOSECONDS     every 10 ms, the time by CLOCK_REALTIME: CRIU gives a restored process a monotonic clock of its own
 *     rewrote PAGES          after SIGUSR1: PERCENT of all pages got a new version
 *     verified PAGES         after SIGUSR2 and at the end: every byte is what it must be
 *     damaged PAGE           otherwise; the program ends with status 1
 * Ends with status 0 after TICKS ticks (0: never), or on SIGTERM.
 */
#define _GNU_SOURCE
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

enum { PAGE = 4096, WORDS = PAGE / 8, TICK_NANOSECONDS = 10 * 1000 * 1000 };

typedef struct {
    uint64_t (*pages)[WORDS];
    uint32_t *versions;
    uint64_t count;
    uint64_t per_rewrite;
    uint32_t rewrites;
    int scattered;
    int log;
} Hog;

static uint64_t mix(uint64_t x) /* splitmix64 */
{
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

static uint64_t word_of(uint64_t page, uint32_t version, unsigned index)
{
    uint64_t seed = (page + 1) << 32 | (version + 1);
    return index < WORDS / 2 ? mix(seed * WORDS + index) : seed;
}

static void fill(Hog *hog, uint64_t page)
{
    for (unsigned i = 0; i < WORDS; i++)
        hog->pages[page][i] = word_of(page, hog->versions[page], i);
}

static void say(const Hog *hog, const char *what, uint64_t number)
{
    dprintf(hog->log, "%s %" PRIu64 "\n", what, number);
}

static void rewrite(Hog *hog)
{
    uint64_t first = (uint64_t)hog->rewrites * hog->per_rewrite;
    for (uint64_t i = 0; i < hog->per_rewrite; i++) {
        uint64_t place = hog->scattered ? i * hog->count / hog->per_rewrite + hog->rewrites : first + i;
        uint64_t page = place % hog->count;
        hog->versions[page]++;
        fill(hog, page);
    }
    hog->rewrites++;
    say(hog, "rewrote", hog->per_rewrite);
}

static int verify(const Hog *hog)
{
    for (uint64_t page = 0; page < hog->count; page++)
        for (unsigned i = 0; i < WORDS; i++)
            if (hog->pages[page][i] != word_of(page, hog->versions[page], i)) {
                say(hog, "damaged", page);
                return 0;
            }
    say(hog, "verified", hog->count);
    return 1;
}

static void tick(const Hog *hog, uint64_t number)
{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    dprintf(hog->log, "tick %" PRIu64 " %" PRIu64 "\n", number, (uint64_t)now.tv_sec * 1000000000u + now.tv_nsec);
}

/* Returns the exit status. A wait that a restore cuts short counts as a tick: it is the first instruction after it. */
static int run(Hog *hog, uint64_t ticks, const sigset_t *wanted)
{
    const struct timespec pause = {.tv_nsec = TICK_NANOSECONDS};
    for (uint64_t number = 0; !ticks || number < ticks;) {
        int signal = sigtimedwait(wanted, NULL, &pause);
        if (signal == SIGTERM)
            return 0;
        if (signal == SIGUSR1)
            rewrite(hog);
        else if (signal == SIGUSR2 && !verify(hog))
            return 1;
        else if (signal < 0)
            tick(hog, ++number);
    }
    return !verify(hog);
}

static sigset_t block_signals(void)
{
    sigset_t wanted;
    sigemptyset(&wanted);
    sigaddset(&wanted, SIGTERM);
    sigaddset(&wanted, SIGUSR1);
    sigaddset(&wanted, SIGUSR2);
    sigprocmask(SIG_BLOCK, &wanted, NULL);
    return wanted;
}

int main(int argc, char **argv)
{
    if (argc != 5) {
        fprintf(stderr, "usage: hog MEBIBYTES TICKS PERCENT scattered|contiguous\n");
        return 2;
    }
    sigset_t wanted = block_signals();
    Hog hog = {.count = strtoull(argv[1], NULL, 10) * (1024 * 1024 / PAGE), .scattered = !strcmp(argv[4], "scattered")};
    hog.per_rewrite = hog.count * strtoull(argv[3], NULL, 10) / 100;
    hog.pages = mmap(NULL, hog.count * PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    hog.versions = calloc(hog.count, sizeof *hog.versions);
    hog.log = open("ticks.log", O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644);
    if (hog.pages == MAP_FAILED || !hog.versions || hog.log < 0) {
        perror("hog");
        return 2;
    }
    for (uint64_t page = 0; page < hog.count; page++)
        fill(&hog, page);
    say(&hog, "filled", hog.count);
    return run(&hog, strtoull(argv[2], NULL, 10), &wanted);
}
