/* Threads that share a task. They are started for each one, which takes some tens of microseconds: threads that wait
   for the next task would not be there after a fork, and would have to be stopped. */
#include <pthread.h>
#include <stdatomic.h>

#include "blocks.h"

enum { MOST_THREADS = 64 };

typedef struct {
    int64_t parts;
    int (*function)(const void *task, int64_t part);
    const void *task;
    atomic_int_fast64_t next;
    atomic_int failed;
} Shared;

static void *take_parts(void *argument) {
    Shared *s = argument;
    for (int64_t part; (part = atomic_fetch_add(&s->next, 1)) < s->parts;) {
        int failed = s->function(s->task, part), before = atomic_load(&s->failed);
        while (failed > before && !atomic_compare_exchange_weak(&s->failed, &before, failed));
    }
    return NULL;
}

int for_parts(int64_t parts, int64_t threads, int (*function)(const void *task, int64_t part), const void *task) {
    Shared shared = {parts, function, task, 0, 0};
    pthread_t others[MOST_THREADS];
    int64_t started = 0, most = threads < parts ? threads : parts;
    if (most > MOST_THREADS) most = MOST_THREADS;
    while (started < most - 1 && !pthread_create(&others[started], NULL, take_parts, &shared)) started++;
    take_parts(&shared); /* all of them, if no thread could be started */
    while (started > 0) pthread_join(others[--started], NULL);
    return atomic_load(&shared.failed);
}
