/* Batch normalisation of quaternions while training: forward, and the gradients. quern/functional/norms.py has the
 * formulas.
 *
 * Numbers are `(rows, channels)`, where channels are four components of so many units each: images that are channels-last.
 * Some rows are read as one line, so that the loops over a line are long; each place of a line has sums of its own, which
 * are added up at the end. No global state, no memory of its own. Sums are those of pieces, in one order, whoever made
 * them. */
#include "threads.h"

#include <math.h>
#include <string.h>

enum { PARTS = 4, BLOCK = 8192, CHUNK = 4 * BLOCK }; /* numbers at a time: sums in float, which stay in cache; of a thread */

typedef struct {
    int64_t rows, units;     /* positions of all images; channels of each component */
    int64_t side;            /* rows of a line */
    int64_t pieces, threads; /* that the lines are cut into; how many there may be */
    double eps;
} norm;

/* Sums of a place of a line: two of doubles, and two of floats for a block. */
typedef struct {
    double *first, *second;
    float *of_first, *of_second;
} sums;

typedef struct {
    const norm *n;
    const float *x, *grad;
    float *to;
    char *pieces;                          /* the sums of all of them */
    float *mean, *scale, *slope, *offset;  /* of the places of a line */
    int64_t next;                          /* what no thread has taken yet */
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

/* Add `count` lines of gradients g, and of g (x - mean). */
static void add_gradients(const float *x, const float *g, const float *restrict mean, size_t count, size_t width,
                          const sums *s) {
    float *restrict total = s->of_first, *restrict along = s->of_second;
    double *restrict first = s->first, *restrict second = s->second;
    size_t r, l;
    memset(total, 0, width * sizeof *total);
    memset(along, 0, width * sizeof *along);
    for (r = 0; r < count; r++)
        for (l = 0; l < width; l++) {
            total[l] += g[r * width + l];
            along[l] += g[r * width + l] * (x[r * width + l] - mean[l]);
        }
    for (l = 0; l < width; l++) first[l] += (double)total[l], second[l] += (double)along[l];
}

static void add_lines(const job *j, size_t at, size_t count, size_t width, const sums *s) {
    if (j->grad) add_gradients(j->x + at, j->grad + at, j->mean, count, width, s);
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

/* Line after line: normalised numbers, or the gradient of the input. */
static void make_lines(void *work) {
    job *j = work;
    const norm *n = j->n;
    const float *restrict mean = j->mean, *restrict scale = j->scale, *restrict slope = j->slope, *restrict offset = j->offset;
    size_t width = width_of(n), all = (size_t)n->rows * channels_of(n), step = (CHUNK + width - 1) / width * width, from, l;
    while ((from = step * take(&j->next)) < all) {
        size_t to = from + step < all ? from + step : all;
        for (; from < to; from += width) {
            size_t count = to - from < width ? to - from : width;
            const float *restrict x = j->x + from;
            float *restrict y = j->to + from;
            if (j->grad) {
                const float *restrict g = j->grad + from;
                for (l = 0; l < count; l++) y[l] = scale[l] * g[l] + slope[l] * (x[l] - mean[l]) + offset[l];
            } else {
                for (l = 0; l < count; l++) y[l] = scale[l] * (x[l] - mean[l]) + offset[l];
            }
        }
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
    return (n->pieces + 1) * (int64_t)bytes_of_piece(n) + 4 * (int64_t)(width_of(n) * sizeof(float));
}

static job job_of(const norm *n, const float *x, void *scratch) {
    job j = {0};
    size_t width = width_of(n);
    j.n = n;
    j.x = x;
    j.pieces = scratch;
    j.mean = (float *)(void *)(j.pieces + (size_t)(n->pieces + 1) * bytes_of_piece(n));
    j.scale = j.mean + width;
    j.slope = j.scale + width;
    j.offset = j.slope + width;
    return j;
}

/* y, and the mean (channels) and variance (units) of x; `weight` (units) and `bias` (channels) may be NULL. */
void quern_batch_norm_forward(const norm *n, const float *x, const float *weight, const float *bias, float *y, float *mean,
                              float *variance, void *scratch, parallel_function parallel) {
    job j = job_of(n, x, scratch);
    size_t units = (size_t)n->units, u, p;
    sums s = all_sums(&j, parallel);
    double share = 1 / (double)n->rows;
    for (u = 0; u < units; u++) {
        double spread = 0, scale;
        for (p = 0; p < PARTS; p++) {
            double middle = s.first[p * units + u] * share, square = s.second[p * units + u] * share - middle * middle;
            spread += square < 0 ? 0 : square; /* a NaN stays one */
            j.mean[p * units + u] = mean[p * units + u] = (float)middle;
        }
        variance[u] = (float)spread;
        scale = (weight ? (double)weight[u] : 1) / sqrt((double)variance[u] + n->eps);
        for (p = 0; p < PARTS; p++) {
            j.scale[p * units + u] = (float)scale;
            j.offset[p * units + u] = bias ? bias[p * units + u] : 0;
        }
    }
    repeat(n, j.mean), repeat(n, j.scale), repeat(n, j.offset);
    j.to = y;
    make(&j, parallel);
}

/* The gradients of x, of the weight (units) and of the bias (channels), for that of y. */
void quern_batch_norm_backward(const norm *n, const float *x, const float *grad, const float *weight, const float *mean,
                               const float *variance, float *grad_x, float *grad_weight, float *grad_bias, void *scratch,
                               parallel_function parallel) {
    job j = job_of(n, x, scratch);
    size_t units = (size_t)n->units, u, p;
    double share = 1 / (double)n->rows;
    sums s;
    j.grad = grad;
    memcpy(j.mean, mean, channels_of(n) * sizeof *mean);
    repeat(n, j.mean);
    s = all_sums(&j, parallel);
    for (u = 0; u < units; u++) {
        double inverse = 1 / sqrt((double)variance[u] + n->eps), along = 0, scale;
        for (p = 0; p < PARTS; p++) along += s.second[p * units + u];
        along *= inverse;
        grad_weight[u] = (float)along;
        scale = (weight ? (double)weight[u] : 1) * inverse;
        for (p = 0; p < PARTS; p++) {
            j.scale[p * units + u] = (float)scale;
            j.slope[p * units + u] = (float)(-scale * inverse * along * share);
            j.offset[p * units + u] = (float)(-scale * s.first[p * units + u] * share);
            grad_bias[p * units + u] = (float)s.first[p * units + u];
        }
    }
    repeat(n, j.scale), repeat(n, j.slope), repeat(n, j.offset);
    j.to = grad_x;
    make(&j, parallel);
}
