#define _GNU_SOURCE
#include "pages.h"

#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

/* Of a thread that touches pages: which, and where it goes on if one of them is not there. */
typedef struct {
    uintptr_t begin, end;
    sigjmp_buf out;
} touching;

/* A handler must not wait for memory, so this is laid out when the library is loaded. */
static _Thread_local touching *volatile now __attribute__((tls_model("initial-exec")));
static struct sigaction before;
static pthread_once_t prepared = PTHREAD_ONCE_INIT;

/* Faults of others are left to whoever was here before us. */
static void on_fault(int number, siginfo_t *about, void *context) {
    touching *mine = now;
    uintptr_t at = (uintptr_t)about->si_addr;
    int is_fault = about->si_code > 0; /* else somebody has sent it */
    if (is_fault && mine && at >= mine->begin && at < mine->end) siglongjmp(mine->out, 1);
    if (before.sa_flags & SA_SIGINFO) {
        before.sa_sigaction(number, about, context);
    } else if (before.sa_handler == SIG_DFL || before.sa_handler == SIG_IGN) {
        (void)signal(number, SIG_DFL);
        if (!is_fault) (void)raise(number); /* a fault comes again by itself, and ends the process as it would have */
    } else {
        before.sa_handler(number);
    }
}

static void prepare(void) {
    struct sigaction ours;
    memset(&ours, 0, sizeof ours);
    ours.sa_sigaction = on_fault;
    ours.sa_flags = SA_SIGINFO | SA_ONSTACK;
    sigemptyset(&ours.sa_mask);
    /* What was there is known before ours can be called. */
    if (!sigaction(SIGBUS, NULL, &before)) (void)sigaction(SIGBUS, &ours, NULL);
}

/* Whoever has replaced ours may have kept it to come back to: putting it in again would have both call each other. */
static int is_ours(void) {
    struct sigaction there;
    return !sigaction(SIGBUS, NULL, &there) && there.sa_flags & SA_SIGINFO && there.sa_sigaction == on_fault;
}

/* Not a part of whoever jumps: nothing of it is left to be wrong. */
__attribute__((noinline)) static void look(uintptr_t at, uintptr_t end, uintptr_t page) {
    for (; at < end; at = at - at % page + page) (void)*(const volatile uint8_t *)at;
}

int tr_pages_touch(const void *bytes, size_t count) {
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), at = (uintptr_t)bytes;
    touching mine = {.begin = at, .end = at + count};
    sigset_t faults, mask;
    sigemptyset(&faults);
    sigaddset(&faults, SIGBUS);
    if (pthread_once(&prepared, prepare) || !is_ours()) return ENOTSUP;
    /* A thread that has it blocked is ended by its faults all the same; and it is blocked while it is handled. */
    if (pthread_sigmask(SIG_UNBLOCK, &faults, &mask)) return ENOTSUP;
    volatile int failed = 1;
    if (!sigsetjmp(mine.out, 0)) {
        now = &mine;
        look(mine.begin, mine.end, page);
        failed = 0;
    }
    now = NULL;
    (void)pthread_sigmask(SIG_SETMASK, &mask, NULL);
    return failed ? EIO : 0;
}
