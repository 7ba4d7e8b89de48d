/* Threads of the caller: `parallel_function` is GOMP_parallel of the OpenMP that torch uses, or NULL where there is none. */
#ifndef QUERN_THREADS_H
#define QUERN_THREADS_H
#include <stddef.h>
#include <stdint.h>

typedef void (*parallel_function)(void (*)(void *), void *, unsigned, unsigned);

/* Let every thread call `part` with `job`. */
static inline void with_threads(void (*part)(void *), void *job, int64_t threads, parallel_function parallel) {
    if (parallel && threads > 1) parallel(part, job, (unsigned)threads, 0);
    else part(job);
}

/* The number of the next thing to do, each of which one thread gets. */
static inline size_t take(int64_t *next) { return (size_t)__atomic_fetch_add(next, 1, __ATOMIC_RELAXED); }

#endif
