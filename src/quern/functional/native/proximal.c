/* Steps of proximal optimizers, each in one pass over the numbers: Adam's, and the proximal maps of quern's penalties.
 * quern/optim and quern/penalties have the formulas, and the same as operations of torch.
 *
 * A parameter is so many rows of `count` numbers, one after the other: four components, or one row. Numbers at the same place
 * of all rows are a group. No global state, no memory of its own; every number is made by one thread. */
#include "threads.h"

#include <float.h>
#include <math.h>

enum { BLOCK = 1024, CHUNK = 16 * BLOCK }; /* numbers of a row at a time, which stay in the cache; for one thread */

typedef struct {
    float *w, *m, *v, *metric;       /* parameter and first moment, all rows; second moment and metric, one row */
    const float *g, *partner;        /* its gradient; that of a parameter whose groups are the same ones, or NULL */
    int64_t count, rows, partner_rows;
    float decay, beta1, one_minus_beta1, beta2, one_minus_beta2, step, scale, eps;
} moved;

typedef struct {
    float *w, *partner;              /* a parameter, and one more whose groups are the same ones, or NULL */
    const float *metric;             /* one row, or NULL where it is 1 */
    int64_t count, rows, partner_rows;
    float components, groups, squares; /* factors of the maps */
} shrunk;

typedef struct {
    const void *pieces;
    int64_t pieces_count, next;
} job;

static void add_squares(const float *rows, size_t distance, size_t rows_count, size_t count, float *sums) {
    size_t r, n;
    for (r = 0; r < rows_count; r++) {
        const float *row = rows + r * distance;
        for (n = 0; n < count; n++) sums[n] += row[n] * row[n];
    }
}

static void move(const moved *p, size_t from, size_t count) {
    float *restrict v = p->v + from, *restrict metric = p->metric + from, sums[BLOCK];
    size_t distance = (size_t)p->count, r, n;
    for (n = 0; n < count; n++) sums[n] = 0;
    add_squares(p->g + from, distance, (size_t)p->rows, count, sums);
    if (p->partner) add_squares(p->partner + from, distance, (size_t)p->partner_rows, count, sums);
    for (n = 0; n < count; n++) {
        v[n] = p->beta2 * v[n] + p->one_minus_beta2 * sums[n];
        metric[n] = sqrtf(v[n]) * p->scale + p->eps;
    }
    for (r = 0; r < (size_t)p->rows; r++) {
        float *restrict w = p->w + r * distance + from, *restrict m = p->m + r * distance + from;
        const float *restrict g = p->g + r * distance + from;
        for (n = 0; n < count; n++) {
            m[n] = p->beta1 * m[n] + p->one_minus_beta1 * g[n];
            w[n] = p->decay * w[n] - p->step * m[n] / metric[n];
        }
    }
}

/* Conditions are such that a NaN stays one. */
static void shrink(const shrunk *p, size_t from, size_t count) {
    const float *metric = p->metric ? p->metric + from : NULL;
    size_t distance = (size_t)p->count, r, n;
    float bound[BLOCK];
    if (p->components > 0) {
        for (n = 0; n < count; n++) bound[n] = metric ? p->components / metric[n] : p->components;
        for (r = 0; r < (size_t)p->rows; r++) {
            float *restrict w = p->w + r * distance + from;
            for (n = 0; n < count; n++) {
                float within = w[n] < -bound[n] ? -bound[n] : w[n];
                w[n] -= within > bound[n] ? bound[n] : within;
            }
        }
    }
    if (p->groups > FLT_MIN) { /* what is less may be rounded to 0, and 0 by 0 is nothing */
        for (n = 0; n < count; n++) bound[n] = 0;
        add_squares(p->w + from, distance, (size_t)p->rows, count, bound);
        if (p->partner) add_squares(p->partner + from, distance, (size_t)p->partner_rows, count, bound);
        for (n = 0; n < count; n++) {
            float left = 1 - p->groups / (sqrtf(bound[n]) * (metric ? metric[n] : 1));
            bound[n] = left < 0 ? 0 : left;
        }
        for (r = 0; r < (size_t)(p->rows + p->partner_rows); r++) {
            int own = r < (size_t)p->rows;
            float *restrict w = (own ? p->w + r * distance : p->partner + (r - (size_t)p->rows) * distance) + from;
            for (n = 0; n < count; n++) w[n] *= bound[n];
        }
    }
    if (p->squares > 0)
        for (r = 0; r < (size_t)p->rows; r++) {
            float *restrict w = p->w + r * distance + from;
            for (n = 0; n < count; n++) w[n] /= 1 + 2 * (metric ? p->squares / metric[n] : p->squares);
        }
}

/* All pieces a chunk at a time, chunk by chunk a block at a time, until other threads have taken the rest. */
#define EACH_BLOCK(kind, function)                                                                    \
    static void function##_pieces(void *work) {                                                       \
        job *j = work;                                                                                \
        const kind *pieces = j->pieces;                                                               \
        size_t wanted = take(&j->next), before = 0, k;                                                \
        for (k = 0; k < (size_t)j->pieces_count; k++) {                                               \
            size_t count = (size_t)pieces[k].count, chunks = (count + CHUNK - 1) / CHUNK;             \
            for (; wanted < before + chunks; wanted = take(&j->next)) {                               \
                size_t from = (wanted - before) * CHUNK, end = from + CHUNK < count ? from + CHUNK : count; \
                for (; from < end; from += BLOCK) function(pieces + k, from, end - from < BLOCK ? end - from : BLOCK); \
            }                                                                                         \
            before += chunks;                                                                         \
        }                                                                                             \
    }

EACH_BLOCK(moved, move)
EACH_BLOCK(shrunk, shrink)

void quern_move(const moved *pieces, int64_t count, int64_t threads, parallel_function parallel) {
    job j = {pieces, count, 0};
    with_threads(move_pieces, &j, threads, parallel);
}

void quern_shrink(const shrunk *pieces, int64_t count, int64_t threads, parallel_function parallel) {
    job j = {pieces, count, 0};
    with_threads(shrink_pieces, &j, threads, parallel);
}
