/* 3x3 convolutions of quaternions by Winograd's minimal filtering, F(4x4, 3x3), and the Hadamard form: forward, and the
 * gradient of the weight. quern/functional/winograd.py has the formulas.
 *
 * Images are channels-last, `(images, height, width, channels)`, where channels are four components of so many units each.
 * No global state, no memory of its own. Each number of a result is made by one thread in one order, whatever the number
 * of threads. */
#include "products.h"

enum { PLACES = 36 };

/* A tile in an image: where its first position is. */
typedef struct {
    long height, width, y, x;
    size_t channels;
} place;

#define number vector
#define NAME(name) name##_wide
#include "winograd_tiles.h"
#undef number
#undef NAME

#define number float
#define NAME(name) name##_single
#include "winograd_tiles.h"
#undef number
#undef NAME

typedef struct {
    int64_t images, height, width;        /* of the input */
    int64_t padding;                      /* zeros around it */
    int64_t units_in, units_out;          /* channels of each component */
    int64_t block;                        /* tiles at a time */
    int64_t threads;                      /* how many there may be */
    int32_t target[4], flip[4];           /* of the Hadamard form: see quern/functional/hadamard.py */
} convolution;

typedef struct {
    const convolution *c;
    const float *x, *first, *second, *bias;
    float *y, *to_first, *to_second, *scratch;
    size_t tiles, rows, columns; /* of all images; of one */
    size_t from, count;          /* tiles of a slice */
    int64_t next, joined;        /* what no thread has taken yet; threads so far */
} job;

static const int32_t PLUS[4] = {1, 1, 1, 1};

/* H for `count` quaternions, whose components are `count` numbers each. */
static void walsh(const float *from, size_t count, const int32_t *before, const int32_t *after, float *to) {
#define BODY(kind) walsh_##kind(from + c, count, before, after, to + c)
    EACH(count, BODY);
#undef BODY
}

/* Tile `n` of all: its image, and where it begins among the results. */
static size_t find_tile(const job *j, size_t n, long *y, long *x) {
    size_t of_image = n % (j->rows * j->columns);
    *y = 4 * (long)(of_image / j->columns);
    *x = 4 * (long)(of_image % j->columns);
    return n / (j->rows * j->columns);
}

static long high(const convolution *c) { return (long)(c->height + 2 * c->padding - 2); }
static long wide(const convolution *c) { return (long)(c->width + 2 * c->padding - 2); }

/* Tiles from..from + count of the input to `v`: (place, component, tile, unit). */
static void spread_tiles(const job *j, size_t from, size_t count, size_t all, float *v) {
    const convolution *k = j->c;
    size_t units = (size_t)k->units_in, n, q;
    for (n = 0; n < count; n++) {
        place at = {(long)k->height, (long)k->width, 0, 0, PARTS * units};
        size_t image = find_tile(j, from + n, &at.y, &at.x);
        const float *x = j->x + image * (size_t)(k->height * k->width) * at.channels;
        at.y -= (long)k->padding;
        at.x -= (long)k->padding;
        for (q = 0; q < PARTS; q++) {
            float *to = v + (q * all + n) * units;
#define BODY(kind) spread_##kind(x + q * units + c, &at, to + c, PARTS * all * units)
            EACH(units, BODY);
#undef BODY
        }
    }
}

/* The same of gradients of the result. */
static void spread_gradients(const job *j, size_t from, size_t count, size_t all, float *m) {
    const convolution *k = j->c;
    size_t units = (size_t)k->units_out, n, q;
    for (n = 0; n < count; n++) {
        place at = {high(k), wide(k), 0, 0, PARTS * units};
        size_t image = find_tile(j, from + n, &at.y, &at.x);
        const float *y = j->y + image * (size_t)(at.height * at.width) * at.channels;
        for (q = 0; q < PARTS; q++) {
            float *to = m + (q * all + n) * units;
#define BODY(kind) spread_gradient_##kind(y + q * units + c, &at, to + c, PARTS * all * units)
            EACH(units, BODY);
#undef BODY
        }
    }
}

static void gather_tiles(const job *j, size_t from, size_t count, const float *m) {
    const convolution *k = j->c;
    size_t units = (size_t)k->units_out, n, q;
    for (n = 0; n < count; n++) {
        place at = {high(k), wide(k), 0, 0, PARTS * units};
        size_t image = find_tile(j, from + n, &at.y, &at.x);
        float *y = j->y + image * (size_t)(at.height * at.width) * at.channels;
        for (q = 0; q < PARTS; q++) {
            const float *of_part = m + (q * count + n) * units, *bias = j->bias ? j->bias + q * units : NULL;
#define BODY(kind) gather_##kind(of_part + c, PARTS * count * units, bias ? bias + c : NULL, y + q * units + c, &at)
            EACH(units, BODY);
#undef BODY
        }
    }
}

/* The products of one place: `v` (component, tile, unit) with the weights to `m`. */
static void multiply_place(const job *j, size_t p, size_t count, const float *v, float *m, float *work) {
    const convolution *k = j->c;
    size_t in = (size_t)k->units_in, out = (size_t)k->units_out, q;
    product of = {count, out, in, in, 1, out, out, 0};
    walsh(v, count * in, PLUS, PLUS, work);
    for (q = 0; q < 4; q++)
        multiply(&of, work + q * count * in, j->first + (4 * p + q) * in * out, work + 4 * count * in + q * count * out);
    walsh(work + 4 * count * in, count * out, PLUS, k->flip, m);
    of.add = 1;
    for (q = 0; q < 4; q++)
        multiply(&of, v + q * count * in, j->second + (4 * p + q) * in * out, m + (size_t)k->target[q] * count * out);
}

/* Numbers of scratch memory of a thread of the forward pass. A line of the cache lies between the parts, so that matrices
 * of sizes that are powers of two do not fall on each other. */
static size_t forward_scratch(const convolution *k) {
    return (PLACES + 1) * PARTS * (size_t)k->block * (size_t)(k->units_in + k->units_out) + 64;
}

static void forward_blocks(void *work) {
    job *j = work;
    const convolution *k = j->c;
    size_t block = (size_t)k->block, in = (size_t)k->units_in, out = (size_t)k->units_out, p;
    float *v = j->scratch + take(&j->joined) * forward_scratch(k);
    for (;;) {
        size_t from = block * take(&j->next), count;
        float *m, *rest;
        if (from >= j->tiles) return;
        count = smaller(block, j->tiles - from);
        m = v + PLACES * PARTS * count * in + 16;
        rest = m + PLACES * PARTS * count * out + 16;
        spread_tiles(j, from, count, count, v);
        for (p = 0; p < PLACES; p++) multiply_place(j, p, count, v + p * PARTS * count * in, m + p * PARTS * count * out, rest);
        gather_tiles(j, from, count, m);
    }
}

/* The first half of a slice of the weight's gradient: tiles of both sides, a block at a time. */
static void spread_both(void *work) {
    job *j = work;
    size_t in = (size_t)j->c->units_in, from;
    float *m = j->scratch + PLACES * PARTS * j->count * in + 16;
    while ((from = 8 * take(&j->next)) < j->count) {
        size_t taken = smaller(8, j->count - from);
        spread_tiles(j, j->from + from, taken, j->count, j->scratch + from * in);
        spread_gradients(j, j->from + from, taken, j->count, m + from * (size_t)j->c->units_out);
    }
}

/* The second half: the products of a place at a time. */
static void multiply_both(void *work) {
    job *j = work;
    const convolution *k = j->c;
    size_t in = (size_t)k->units_in, out = (size_t)k->units_out, count = j->count, p, q;
    size_t thread = take(&j->joined);
    float *m = j->scratch + PLACES * PARTS * count * in + 16;
    float *rest = m + PLACES * PARTS * count * out + 16 + thread * (4 * count * (in + out) + 16);
    product of = {in, out, count, 1, in, out, out, j->from > 0};
    while ((p = take(&j->next)) < PLACES) {
        const float *x = j->scratch + p * PARTS * count * in, *g = m + p * PARTS * count * out;
        float *first = j->to_first + p * PARTS * in * out;
        walsh(x, count * in, PLUS, PLUS, rest);
        walsh(g, count * out, k->flip, PLUS, rest + 4 * count * in);
        for (q = 0; q < 4; q++) {
            multiply(&of, rest + q * count * in, rest + 4 * count * in + q * count * out, first + q * in * out);
            multiply(&of, x + q * count * in, g + (size_t)k->target[q] * count * out, j->to_second + (4 * p + q) * in * out);
        }
    }
}

static void run(job *j, void (*part)(void *), parallel_function parallel) {
    j->next = j->joined = 0;
    with_threads(part, j, j->c->threads, parallel);
}

static job job_of(const convolution *c) {
    job j = {0};
    j.c = c;
    j.rows = ((size_t)high(c) + 3) / 4;
    j.columns = ((size_t)wide(c) + 3) / 4;
    j.tiles = (size_t)c->images * j.rows * j.columns;
    return j;
}

/* Numbers of scratch memory that a pass takes: 0 forward, 1 the gradient of the weight. */
int64_t quern_winograd_scratch(const convolution *c, int32_t pass) {
    size_t threads = (size_t)(c->threads > 1 ? c->threads : 1);
    size_t both = (size_t)c->block * (size_t)(c->units_in + c->units_out);
    return (int64_t)(pass == 0 ? threads * forward_scratch(c) : PLACES * PARTS * both + 64 + threads * (4 * both + 16));
}

/* y = x by the transformed weights `first` and, for quaternions, `second`, plus `bias` (channels of y) or NULL. */
void quern_winograd_forward(const convolution *c, const float *x, const float *first, const float *second, const float *bias,
                            float *y, float *scratch, parallel_function parallel) {
    job j = job_of(c);
    j.x = x;
    j.first = first;
    j.second = second;
    j.bias = bias;
    j.y = y;
    j.scratch = scratch;
    run(&j, forward_blocks, parallel);
}

/* The gradients of the transformed weights `first` and `second`, for the gradient `y` of the result. */
void quern_winograd_weight(const convolution *c, const float *x, float *y, float *first, float *second, float *scratch,
                           parallel_function parallel) {
    job j = job_of(c);
    j.x = x;
    j.y = y;
    j.to_first = first;
    j.to_second = second;
    j.scratch = scratch;
    for (j.from = 0; j.from < j.tiles; j.from += j.count) {
        j.count = smaller((size_t)c->block, j.tiles - j.from);
        run(&j, spread_both, parallel);
        run(&j, multiply_both, parallel);
    }
}

enum { WEIGHTS = 1024 }; /* that a thread takes at a time */

/* Which component each product to subtract has of the weight, and its sign and factor. */
static void find_partners(const convolution *c, int32_t *partner, float *sign) {
    int32_t q;
    for (q = 0; q < PARTS; q++) partner[q] = c->target[q] ^ q, sign[q] = -2.0f * (float)c->flip[c->target[q]];
}

static void spread_weights(void *work) {
    job *j = work;
    size_t all = (size_t)(j->c->units_in * j->c->units_out), from;
    int32_t partner[PARTS];
    float sign[PARTS];
    find_partners(j->c, partner, sign);
    while ((from = WEIGHTS * take(&j->next)) < all) {
        size_t count = smaller(WEIGHTS, all - from);
#define BODY(kind) spread_weight_##kind(j->x + from + c, all, partner, sign, j->to_first + from + c, j->to_second + from + c)
        EACH(count, BODY);
#undef BODY
    }
}

static void gather_weights(void *work) {
    job *j = work;
    size_t all = (size_t)(j->c->units_in * j->c->units_out), from;
    int32_t partner[PARTS];
    float sign[PARTS];
    find_partners(j->c, partner, sign);
    while ((from = WEIGHTS * take(&j->next)) < all) {
        size_t count = smaller(WEIGHTS, all - from);
#define BODY(kind) gather_weight_##kind(j->first + from + c, j->second + from + c, all, partner, sign, j->y + from + c)
        EACH(count, BODY);
#undef BODY
    }
}

/* Taps (9, 4, in, out) of the weight to the transformed weights (36, 4, in, out) of both products. */
void quern_winograd_spread_taps(const convolution *c, const float *taps, float *first, float *second,
                                parallel_function parallel) {
    job j = {0};
    j.c = c;
    j.x = taps;
    j.to_first = first;
    j.to_second = second;
    run(&j, spread_weights, parallel);
}

/* The transpose: the gradient of the taps from those of the transformed weights. */
void quern_winograd_gather_taps(const convolution *c, const float *first, const float *second, float *taps,
                                parallel_function parallel) {
    job j = {0};
    j.c = c;
    j.first = first;
    j.second = second;
    j.y = taps;
    run(&j, gather_weights, parallel);
}
