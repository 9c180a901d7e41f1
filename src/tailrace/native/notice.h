/* Something that is said by whoever has just made it true, at once and without the interpreter. */
#ifndef TAILRACE_NOTICE_H
#define TAILRACE_NOTICE_H

typedef struct {
    void (*give)(void *whose); /* from any thread, once */
    void *whose;
} tr_notice;

/* The name of a capsule that has one. */
#define TR_NOTICE_CAPSULE "tailrace.notice"

#endif
