/* Lets CRIU read the limits of other users' processes where root lacks CAP_SYS_RESOURCE.
 *
 * CRIU reads them by syscall(SYS_prlimit64, pid, ...), which the kernel refuses (EPERM) for a process of another
 * uid without that capability, although CAP_SYS_PTRACE permits reading the same numbers in /proc/PID/limits.
 * This preload serves refused *reads* from there; refused changes stay refused.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/syscall.h>

static const char *const NAMES[] = {
	"Max cpu time", "Max file size", "Max data size", "Max stack size", "Max core file size", "Max resident set",
	"Max processes", "Max open files", "Max locked memory", "Max address space", "Max file locks",
	"Max pending signals", "Max msgqueue size", "Max nice priority", "Max realtime priority", "Max realtime timeout",
};

static rlim_t limit(const char *text)
{
	return strcmp(text, "unlimited") ? strtoull(text, NULL, 10) : RLIM_INFINITY;
}

static int from_proc(int pid, unsigned resource, struct rlimit *out)
{
	char path[32], line[256], soft[32], hard[32];
	int found = -1;

	if (resource >= sizeof(NAMES) / sizeof(*NAMES))
		return -1;
	snprintf(path, sizeof(path), "/proc/%d/limits", pid);
	FILE *file = fopen(path, "re");
	while (file && found && fgets(line, sizeof(line), file)) {
		size_t n = strlen(NAMES[resource]);
		if (!strncmp(line, NAMES[resource], n) && sscanf(line + n, "%31s %31s", soft, hard) == 2) {
			out->rlim_cur = limit(soft);
			out->rlim_max = limit(hard);
			found = 0;
		}
	}
	if (file)
		fclose(file);
	return found;
}

long syscall(long number, ...)
{
	static long (*next)(long, ...);
	long a[6], result;
	va_list list;

	va_start(list, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(list, long);
	va_end(list);
	if (!next)
		next = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	result = next(number, a[0], a[1], a[2], a[3], a[4], a[5]);
	if (number != SYS_prlimit64 || result != -1 || errno != EPERM || a[2] || !a[3])
		return result;
	if (!from_proc((int)a[0], (unsigned)a[1], (struct rlimit *)a[3]))
		return 0;
	errno = EPERM;
	return -1;
}
