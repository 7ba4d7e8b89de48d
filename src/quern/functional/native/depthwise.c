/* Depthwise convolutions of quaternions: forward, the gradient of the input, and the gradient of the weight.
 *
 * Images are channels-last, `(images, height, width, channels)`, where channels are four components of so many units each;
 * weights are `(taps, 4, units)`. Every channel has a filter of its own, so vectors of channels are multiplied where they
 * lie. No global state, no memory of its own. Each number of a result is made by one thread in one order; for the weight
 * it is a sum over pieces of the images, which do not depend on who made them. A `table` is three numbers for each row and
 * column of what `target` is the size of. */
#include "vectors.h"

#if defined(__AVX512VL__)
#define COLUMNS 4 /* that fit into the registers with their sums */
#else
#define COLUMNS 2
#endif

typedef struct {
    int64_t images, units;              /* channels of each component */
    int64_t source[2], target[2];       /* height and width of what is read, and of the result */
    int64_t kernel[2], stride[2], padding[2], dilation[2];
    int64_t transposed;                 /* whether the source is the gradient of the result, the target that of the input */
    int64_t pieces;                     /* that the images are cut into, for the gradient of the weight */
    int64_t threads;                    /* how many there may be */
} depthwise;

/* The taps that meet the source for one row or column of the result: the first, how many, and what the first one meets. */
typedef struct {
    int64_t tap, count, from;
} reach;

typedef struct {
    const depthwise *d;
    const float *x, *weight, *bias, *grad;
    float *y, *sums;
    reach *rows, *columns;
    int64_t tap_step[2], source_step[2]; /* from one of these taps to the next, and what that means in the source */
    size_t at_once;                      /* rows of the result */
    int64_t next;                        /* what no thread has taken yet */
} job;

#define LOOPS "depthwise_taps.h"
#include "each_width.h"
#if defined(BROAD)
#define EACH_BROAD(units, body) for (; c + BROAD <= (units); c += BROAD) body(broad, BROAD)
#else
#define EACH_BROAD(units, body)
#endif
#if !defined(NARROW) /* never taken */
#define NARROW WIDE
#define gather_positions_narrow gather_positions_wide
#define add_gradients_narrow add_gradients_wide
#endif

/* Do `body(kind, count)` at c for all `units` channels: in the longest vectors, the last one of which overlaps the one
 * before; or one by one. */
#define VECTORS(units, body, kind, count)                               \
    for (; c + (count) <= (units); c += (count)) body(kind, count);     \
    if (c < (units)) {                                                  \
        c = (units) - (count);                                          \
        body(kind, count);                                              \
    }
#define EACH_VECTOR(units, body)                       \
    do {                                               \
        size_t c = 0;                                  \
        if ((units) >= WIDE) {                         \
            EACH_BROAD(units, body);                   \
            VECTORS(units, body, wide, WIDE)           \
        } else if ((units) >= NARROW) {                \
            VECTORS(units, body, narrow, NARROW)       \
        } else {                                       \
            for (; c < (units); c++) body(single, 1);  \
        }                                              \
    } while (0)

static int64_t common_divisor(int64_t a, int64_t b) { return b ? common_divisor(b, a % b) : a; }

static void find_reach(const depthwise *d, size_t axis, reach *to) {
    int64_t t, k;
    for (t = 0; t < d->target[axis]; t++) {
        reach found = {0, 0, 0};
        for (k = 0; k < d->kernel[axis]; k++) {
            int64_t at = d->transposed ? t + d->padding[axis] - k * d->dilation[axis]
                                       : t * d->stride[axis] - d->padding[axis] + k * d->dilation[axis];
            if (d->transposed) {
                if (at < 0 || at % d->stride[axis]) continue;
                at /= d->stride[axis];
            }
            if (at < 0 || at >= d->source[axis]) continue;
            if (!found.count++) found.tap = k, found.from = at;
        }
        to[t] = found;
    }
}

static job job_of(const depthwise *d, int64_t *table) {
    job j = {0};
    size_t axis;
    j.d = d;
    j.rows = (reach *)table;
    j.columns = j.rows + d->target[0];
    find_reach(d, 0, j.rows);
    find_reach(d, 1, j.columns);
    for (axis = 0; axis < 2; axis++) {
        int64_t common = d->transposed ? common_divisor(d->stride[axis], d->dilation[axis]) : 1;
        j.tap_step[axis] = d->transposed ? d->stride[axis] / common : 1;
        j.source_step[axis] = d->transposed ? -d->dilation[axis] / common : d->dilation[axis];
    }
    return j;
}

/* Whether the same taps reach so many columns, `step` apart. */
static int same_taps(const reach *columns, size_t count, size_t step) {
    size_t n;
    for (n = 1; n < count; n++)
        if (columns[n * step].tap != columns->tap || columns[n * step].count != columns->count) return 0;
    return 1;
}

/* Columns that the same taps reach lie the stride apart, if the source is the gradient of the result. */
static void gather_row(const job *j, size_t image, size_t row) {
    const depthwise *d = j->d;
    size_t units = (size_t)d->units, wide = (size_t)d->target[1], step = d->transposed ? (size_t)d->stride[1] : 1, first, t, taken;
    const float *x = j->x + image * (size_t)(d->source[0] * d->source[1]) * PARTS * units;
    float *y = j->y + (image * (size_t)d->target[0] + row) * wide * PARTS * units;
    for (first = 0; first < step; first++)
        for (t = first; t < wide; t += taken * step) {
            float *to = y + t * PARTS * units;
            int several = t + (COLUMNS - 1) * step < wide && same_taps(j->columns + t, COLUMNS, step);
            taken = several ? COLUMNS : 1;
#define GATHER(kind, many)                                                                                     \
    gather_positions_##kind(j, j->rows + row, j->columns + t, step, x + c, j->weight + c, j->bias ? j->bias + c : NULL, \
                            to + c, many)
#define SEVERAL(kind, count) GATHER(kind, COLUMNS)
#define ONE(kind, count) GATHER(kind, 1)
            if (several) EACH_VECTOR(units, SEVERAL);
            else EACH_VECTOR(units, ONE);
#undef GATHER
#undef SEVERAL
#undef ONE
        }
}

static void gather_rows(void *work) {
    job *j = work;
    size_t rows = (size_t)j->d->target[0], all = (size_t)j->d->images * rows, from;
    while ((from = j->at_once * take(&j->next)) < all) {
        size_t to = smaller(all, from + j->at_once), n;
        for (n = from; n < to; n++) gather_row(j, n / rows, n % rows);
    }
}

/* Vectors of channels, each with sums of its own, also where the last one overlaps the one before. */
static size_t last_vector(size_t units) { return units >= WIDE ? WIDE : units >= NARROW ? NARROW : 1; }

static size_t padded(size_t units) { return (units + last_vector(units) - 1) / last_vector(units) * last_vector(units); }

static size_t sums_of_piece(const depthwise *d) {
    return (size_t)(d->kernel[0] * d->kernel[1]) * PARTS * padded((size_t)d->units);
}

/* A row of gradients of the result to the sums of a piece. */
static void add_row(const job *j, size_t image, size_t row, float *sums) {
    const depthwise *d = j->d;
    const reach *reached = j->rows + row;
    size_t units = (size_t)d->units, stored = padded(units), at;
    int64_t channels = PARTS * d->units, wide = d->target[1], r, k;
    const float *grad = j->grad + (image * (size_t)d->target[0] + row) * (size_t)(wide * channels);
    for (r = 0; r < reached->count; r++) {
        int64_t y = (int64_t)image * d->source[0] + reached->from + r * d->dilation[0];
        for (k = 0; k < d->kernel[1]; k++) {
            /* Columns for which this tap is inside of the image. */
            int64_t first = d->padding[1] - k * d->dilation[1], last = first + d->source[1] - 1;
            int64_t begin = first > 0 ? (first + d->stride[1] - 1) / d->stride[1] : 0;
            int64_t end = last < 0 ? 0 : last / d->stride[1] + 1;
            const float *x = j->x + (y * d->source[1] + begin * d->stride[1] - first) * channels;
            float *to = sums + (size_t)((reached->tap + r) * d->kernel[1] + k) * PARTS * stored;
            if (end > wide) end = wide;
            if (begin >= end) continue;
            at = 0;
#define BODY(kind, count)                                                                                                 \
    add_gradients_##kind(x + c, d->stride[1] * channels, grad + begin * channels + c, end - begin, units, to + at, stored), \
        at += count
            EACH_VECTOR(units, BODY);
#undef BODY
        }
    }
}

static void add_pieces(void *work) {
    job *j = work;
    const depthwise *d = j->d;
    size_t pieces = (size_t)d->pieces, images = (size_t)d->images, piece, image, row;
    while ((piece = take(&j->next)) < pieces) {
        float *sums = j->sums + piece * sums_of_piece(d);
        memset(sums, 0, sums_of_piece(d) * sizeof *sums);
        for (image = piece * images / pieces; image < (piece + 1) * images / pieces; image++)
            for (row = 0; row < (size_t)d->target[0]; row++) add_row(j, image, row, sums);
    }
}

/* Numbers of scratch memory for the sums of the gradient of the weight. */
int64_t quern_depthwise_sums(const depthwise *d) { return d->pieces * (int64_t)sums_of_piece(d); }

/* y = x by `weight` plus `bias` (channels of y) or NULL; with `transposed` the gradient of the input, if x is the gradient
 * of the result and `weight` conjugate. */
void quern_depthwise_forward(const depthwise *d, const float *x, const float *weight, const float *bias, float *y,
                             int64_t *table, parallel_function parallel) {
    job j = job_of(d, table);
    size_t rows = (size_t)(d->images * d->target[0]);
    j.x = x;
    j.weight = weight;
    j.bias = bias;
    j.y = y;
    j.at_once = rows / (8 * (size_t)(d->threads > 1 ? d->threads : 1)) + 1;
    with_threads(gather_rows, &j, d->threads, parallel);
}

/* The gradient of the weight, for the input `x` and the gradient `grad` of the result. */
void quern_depthwise_weight(const depthwise *d, const float *x, const float *grad, float *weight, float *sums,
                            int64_t *table, parallel_function parallel) {
    job j = job_of(d, table);
    size_t units = (size_t)d->units, stored = padded(units), last = last_vector(units), n, c;
    size_t rows = PARTS * (size_t)(d->kernel[0] * d->kernel[1]);
    int64_t piece;
    j.x = x;
    j.grad = grad;
    j.sums = sums;
    with_threads(add_pieces, &j, d->threads, parallel);
    for (n = 0; n < rows; n++) {
        for (c = 0; c < units; c++) {
            size_t at = c >= units / last * last ? c + stored - units : c;
            float sum = 0;
            for (piece = 0; piece < d->pieces; piece++) sum += sums[(size_t)piece * rows * stored + n * stored + at];
            weight[n * units + c] = sum;
        }
    }
}
