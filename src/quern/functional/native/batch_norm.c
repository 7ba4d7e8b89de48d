/* Batch normalisation of quaternions while training, with what may follow it in the same pass, an addition and a ReLU:
 * forward, and the gradients. quern/functional/norms.py has the formulas.
 *
 * Numbers are `(rows, channels)`, where channels are four components of so many units each: images that are channels-last.
 * Some rows are read as one line, so that the loops over a line are long; each place of a line has sums of its own, which
 * are added up at the end. No global state, no memory of its own. Sums are those of pieces, in one order, whoever made
 * them. */
#include "vectors.h"

#include <math.h>

enum { BLOCK = 8192, CHUNK = 4 * BLOCK }; /* numbers at a time: sums in float, which stay in cache; of a thread */

typedef struct {
    int64_t rows, units;     /* positions of all images; channels of each component */
    int64_t side;            /* rows of a line */
    int64_t pieces, threads; /* that the lines are cut into; how many there may be */
    int64_t relu;            /* whether negative results become 0 */
    double eps;
} norm;

/* Sums of a place of a line: two of doubles, and two of floats for a block. */
typedef struct {
    double *first, *second;
    float *of_first, *of_second;
} sums;

typedef struct {
    const norm *n;
    const float *x, *added, *y, *grad;             /* y only where its sign cannot be had from x */
    float *to, *masked;                            /* masked: the gradient, 0 where y is */
    char *pieces;                                  /* the sums of all of them */
    float *mean, *scale, *shift, *slope, *offset;  /* of the places of a line */
    int64_t next;                                  /* what no thread has taken yet */
} job;

static size_t channels_of(const norm *n) { return PARTS * (size_t)n->units; }
static size_t width_of(const norm *n) { return (size_t)n->side * channels_of(n); }
static size_t bytes_of_piece(const norm *n) { return width_of(n) * (2 * sizeof(double) + 2 * sizeof(float)); }

static sums sums_of(const job *j, size_t piece) {
    size_t width = width_of(j->n);
    sums s;
    s.first = (double *)(void *)(j->pieces + piece * bytes_of_piece(j->n));
    s.second = s.first + width;
    s.of_first = (float *)(void *)(s.second + width);
    s.of_second = s.of_first + width;
    return s;
}

/* Add `count` lines of numbers, and their squares, taken from the mean of these lines: so large means do no harm. */
static void add_moments(const float *x, size_t count, size_t width, const sums *s) {
    float *restrict centre = s->of_first, *restrict square = s->of_second;
    double *restrict first = s->first, *restrict second = s->second, lines = (double)count;
    float share = 1 / (float)count;
    size_t r, l;
    memset(centre, 0, width * sizeof *centre);
    memset(square, 0, width * sizeof *square);
    for (r = 0; r < count; r++)
        for (l = 0; l < width; l++) centre[l] += x[r * width + l];
    for (l = 0; l < width; l++) centre[l] *= share;
    for (r = 0; r < count; r++)
        for (l = 0; l < width; l++) square[l] += (x[r * width + l] - centre[l]) * (x[r * width + l] - centre[l]);
    for (l = 0; l < width; l++) {
        first[l] += lines * (double)centre[l];
        second[l] += (double)square[l] + lines * (double)centre[l] * (double)centre[l];
    }
}

/* What is normalised. The sign of the gradient's mask is that of the result, so both come from here. */
INLINE float normalised(float x, float mean, float scale, float shift) { return scale * (x - mean) + shift; }

/* Add a line of gradients g, and of g (x - mean), for what is `kept` of g. Functions of their own, because compilers forget
 * what is restricted when they put them into others, and then make no vectors. */
#define ADD_LINE(name, kept)                                                                                          \
    static __attribute__((noinline)) void name(size_t width, const float *restrict x, const float *restrict g,         \
                                               const float *restrict y, const float *restrict mean,                    \
                                               const float *restrict scale, const float *restrict shift,               \
                                               float *restrict masked, float *restrict total, float *restrict along) { \
        size_t l;                                                                                                     \
        (void)y, (void)scale, (void)shift, (void)masked;                                                              \
        for (l = 0; l < width; l++) {                                                                                 \
            float gradient = kept;                                                                                    \
            total[l] += gradient;                                                                                     \
            along[l] += gradient * (x[l] - mean[l]);                                                                  \
        }                                                                                                             \
    }

ADD_LINE(add_as_it_is, g[l])
ADD_LINE(add_by_x, where_positive_single(normalised(x[l], mean[l], scale[l], shift[l]), g[l]))
ADD_LINE(add_by_y, masked[l] = where_positive_single(y[l], g[l]))

/* Add `count` lines. */
static void add_gradients(const job *j, size_t at, size_t count, size_t width, const sums *s) {
    float *restrict total = s->of_first, *restrict along = s->of_second;
    double *restrict first = s->first, *restrict second = s->second;
    size_t end = at + count * width, l;
    memset(total, 0, width * sizeof *total);
    memset(along, 0, width * sizeof *along);
    for (; at < end; at += width) {
        const float *x = j->x + at, *g = j->grad + at;
        if (j->masked) add_by_y(width, x, g, j->y + at, j->mean, NULL, NULL, j->masked + at, total, along);
        else if (j->n->relu) add_by_x(width, x, g, NULL, j->mean, j->scale, j->shift, NULL, total, along);
        else add_as_it_is(width, x, g, NULL, j->mean, NULL, NULL, NULL, total, along);
    }
    for (l = 0; l < width; l++) first[l] += (double)total[l], second[l] += (double)along[l];
}

static void add_lines(const job *j, size_t at, size_t count, size_t width, const sums *s) {
    if (j->grad) add_gradients(j, at, count, width, s);
    else add_moments(j->x + at, count, width, s);
}

/* The sums of pieces. One more piece has the rows that do not fill a line. */
static void add_pieces(void *work) {
    job *j = work;
    const norm *n = j->n;
    size_t width = width_of(n), lines = (size_t)(n->rows / n->side), pieces = (size_t)n->pieces, piece;
    size_t at_once = BLOCK / width > 16 ? BLOCK / width : 16;
    while ((piece = take(&j->next)) <= pieces) {
        sums s = sums_of(j, piece);
        memset(s.first, 0, bytes_of_piece(n));
        if (piece == pieces) {
            add_lines(j, lines * width, 1, (size_t)(n->rows % n->side) * channels_of(n), &s);
        } else {
            size_t from = piece * lines / pieces, to = (piece + 1) * lines / pieces;
            for (; from < to; from += at_once)
                add_lines(j, from * width, to - from < at_once ? to - from : at_once, width, &s);
        }
    }
}

/* Add up the sums of all pieces for each channel: in those of the first piece. */
static sums all_sums(job *j, parallel_function parallel) {
    const norm *n = j->n;
    size_t channels = channels_of(n), piece, l;
    sums all;
    j->next = 0;
    with_threads(add_pieces, j, n->threads, parallel);
    all = sums_of(j, 0);
    for (piece = 0; piece <= (size_t)n->pieces; piece++) {
        sums s = sums_of(j, piece);
        for (l = piece ? 0 : channels; l < width_of(n); l++) {
            all.first[l % channels] += s.first[l];
            all.second[l % channels] += s.second[l];
        }
    }
    return all;
}

#define NORMALISE(name, result)                                                                                        \
    static __attribute__((noinline)) void name(size_t count, const float *restrict x, const float *restrict added,     \
                                               const float *restrict mean, const float *restrict scale,                \
                                               const float *restrict shift, float *restrict y) {                       \
        size_t l;                                                                                                     \
        (void)added;                                                                                                  \
        for (l = 0; l < count; l++) {                                                                                 \
            float one = normalised(x[l], mean[l], scale[l], shift[l]);                                                \
            y[l] = result;                                                                                            \
        }                                                                                                             \
    }

INLINE float relu(float y) { return y < 0 ? 0 : y; } /* a NaN stays one */

NORMALISE(normalise, one)
NORMALISE(normalise_relu, relu(one))
NORMALISE(normalise_add, one + added[l])
NORMALISE(normalise_add_relu, relu(one + added[l]))

#define MAKE_GRADIENT(name, kept)                                                                                      \
    static __attribute__((noinline)) void name(size_t count, const float *restrict x, const float *restrict g,         \
                                               const float *restrict mean, const float *restrict scale,                \
                                               const float *restrict shift, const float *restrict slope,               \
                                               const float *restrict offset, float *restrict to) {                     \
        size_t l;                                                                                                     \
        (void)shift;                                                                                                  \
        for (l = 0; l < count; l++) to[l] = scale[l] * (kept) + slope[l] * (x[l] - mean[l]) + offset[l];              \
    }

MAKE_GRADIENT(make_gradient, g[l])
MAKE_GRADIENT(make_masked_gradient, where_positive_single(normalised(x[l], mean[l], scale[l], shift[l]), g[l]))

static void make_line(const job *j, size_t at, size_t count) {
    const float *x = j->x + at, *added = j->added ? j->added + at : NULL, *g = j->grad;
    float *to = j->to + at;
    if (g) {
        (j->n->relu ? make_masked_gradient : make_gradient)(count, x, g + at, j->mean, j->scale, j->shift, j->slope, j->offset, to);
    } else if (j->n->relu) {
        (added ? normalise_add_relu : normalise_relu)(count, x, added, j->mean, j->scale, j->shift, to);
    } else {
        (added ? normalise_add : normalise)(count, x, added, j->mean, j->scale, j->shift, to);
    }
}

/* Line after line: normalised numbers, or the gradient of the input. */
static void make_lines(void *work) {
    job *j = work;
    const norm *n = j->n;
    size_t width = width_of(n), all = (size_t)n->rows * channels_of(n), step = (CHUNK + width - 1) / width * width, from;
    while ((from = step * take(&j->next)) < all) {
        size_t to = from + step < all ? from + step : all;
        for (; from < to; from += width) make_line(j, from, to - from < width ? to - from : width);
    }
}

static void repeat(const norm *n, float *line) {
    size_t channels = channels_of(n), k;
    for (k = 1; k < (size_t)n->side; k++) memcpy(line + k * channels, line, channels * sizeof *line);
}

static void make(job *j, parallel_function parallel) {
    j->next = 0;
    with_threads(make_lines, j, j->n->threads, parallel);
}

/* Bytes of scratch memory that a pass takes. */
int64_t quern_batch_norm_scratch(const norm *n) {
    return (n->pieces + 1) * (int64_t)bytes_of_piece(n) + 5 * (int64_t)(width_of(n) * sizeof(float));
}

static job job_of(const norm *n, const float *x, void *scratch) {
    job j = {0};
    size_t width = width_of(n);
    j.n = n;
    j.x = x;
    j.pieces = scratch;
    j.mean = (float *)(void *)(j.pieces + (size_t)(n->pieces + 1) * bytes_of_piece(n));
    j.scale = j.mean + width;
    j.shift = j.scale + width;
    j.slope = j.shift + width;
    j.offset = j.slope + width;
    return j;
}

/* The lines by which numbers are normalised, from the statistics of the channels. */
static void set_lines(job *j, const float *weight, const float *bias, const float *mean, const float *variance) {
    const norm *n = j->n;
    size_t units = (size_t)n->units, u, p;
    for (u = 0; u < units; u++) {
        float scale = (float)((weight ? (double)weight[u] : 1) / sqrt((double)variance[u] + n->eps));
        for (p = 0; p < PARTS; p++) {
            j->mean[p * units + u] = mean[p * units + u];
            j->scale[p * units + u] = scale;
            j->shift[p * units + u] = bias ? bias[p * units + u] : 0;
        }
    }
    repeat(n, j->mean), repeat(n, j->scale), repeat(n, j->shift);
}

/* The mean (channels) and variance (units) of x. */
void quern_batch_norm_statistics(const norm *n, const float *x, float *mean, float *variance, void *scratch,
                                 parallel_function parallel) {
    job j = job_of(n, x, scratch);
    size_t units = (size_t)n->units, u, p;
    sums s = all_sums(&j, parallel);
    double share = 1 / (double)n->rows;
    for (u = 0; u < units; u++) {
        double spread = 0;
        for (p = 0; p < PARTS; p++) {
            double middle = s.first[p * units + u] * share, square = s.second[p * units + u] * share - middle * middle;
            spread += square < 0 ? 0 : square; /* a NaN stays one */
            mean[p * units + u] = (float)middle;
        }
        variance[u] = (float)spread;
    }
}

/* y from x and its statistics; `weight` (units), `bias` (channels) and what is `added` to the result (like x) may be
 * NULL. */
void quern_batch_norm_apply(const norm *n, const float *x, const float *weight, const float *bias, const float *added,
                            const float *mean, const float *variance, float *y, void *scratch,
                            parallel_function parallel) {
    job j = job_of(n, x, scratch);
    set_lines(&j, weight, bias, mean, variance);
    j.added = added;
    j.to = y;
    make(&j, parallel);
}

/* The gradients of the weight (units) and of the bias (channels), for that of y. If something was added before a ReLU, the
 * sign of the sum is read off y, and the gradient of what was added goes to `masked`; both are NULL otherwise. */
void quern_batch_norm_sums(const norm *n, const float *x, const float *y, const float *grad, const float *weight,
                           const float *bias, const float *mean, const float *variance, float *masked,
                           float *grad_weight, float *grad_bias, void *scratch, parallel_function parallel) {
    job j = job_of(n, x, scratch);
    size_t units = (size_t)n->units, u, p;
    sums s;
    j.y = y;
    j.grad = grad;
    j.masked = masked;
    set_lines(&j, weight, bias, mean, variance);
    s = all_sums(&j, parallel);
    for (u = 0; u < units; u++) {
        double along = 0;
        for (p = 0; p < PARTS; p++) {
            along += s.second[p * units + u];
            grad_bias[p * units + u] = (float)s.first[p * units + u];
        }
        grad_weight[u] = (float)(along / sqrt((double)variance[u] + n->eps));
    }
}

/* The gradient of x, from those of y, of the weight and of the bias. Where that of y is 0 already where the ReLU made
 * numbers 0, there is no `relu`. */
void quern_batch_norm_gradient(const norm *n, const float *x, const float *grad, const float *weight, const float *bias,
                               const float *mean, const float *variance, const float *grad_weight,
                               const float *grad_bias, float *grad_x, void *scratch, parallel_function parallel) {
    job j = job_of(n, x, scratch);
    size_t units = (size_t)n->units, u, p;
    double share = 1 / (double)n->rows;
    j.grad = grad;
    set_lines(&j, weight, bias, mean, variance);
    for (u = 0; u < units; u++) {
        double inverse = 1 / sqrt((double)variance[u] + n->eps), scale = (weight ? (double)weight[u] : 1) * inverse;
        for (p = 0; p < PARTS; p++) {
            j.slope[p * units + u] = (float)(-scale * inverse * (double)grad_weight[u] * share);
            j.offset[p * units + u] = (float)(-scale * (double)grad_bias[p * units + u] * share);
        }
    }
    repeat(n, j.slope), repeat(n, j.offset);
    j.to = grad_x;
    make(&j, parallel);
}
