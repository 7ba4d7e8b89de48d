/* Convolutions between batch normalisations: each reads the numbers that the one before it wrote, normalises them on the
 * way, writes its own, and adds up what the next normalisation has to know. So numbers go through memory once where the
 * steps one by one would take them through it three times; and once more each way for the gradients.
 *
 * A convolution is pointwise, or depthwise with three times three taps. Images are channels-last. Of a depthwise one, taps
 * are `(9, channels)`; each channel has its own real ones ("split"), or four components of so many units each multiply as
 * quaternions do. A pointwise weight is real, `(out, in)`. No global state, no memory of its own. Each number of a result is
 * made by one thread in one order; sums are those of pieces, which do not depend on who made them. */
#include "products.h"

#include <math.h>

enum { SIDE = 3, TAPS = SIDE * SIDE };
enum { POINTWISE, SPLIT, QUATERNION };
enum { SLICE = 96 };         /* rows of a pointwise convolution at a time, which stay in cache */
enum { STRIP_NUMBERS = 1 << 16 }; /* of images for a depthwise one, likewise */

#if defined(__AVX512VL__)
#define COLUMNS 4 /* that fit into the registers with their sums */
#else
#define COLUMNS 2
#endif

/* A normalisation and the ReLU behind it. There is none if `mean` is NULL. Of units: var, weight, along; the others are of
 * channels. `along` and `total` are the gradients of weight and bias. */
typedef struct {
    const float *mean, *var, *weight, *bias;
    float *along, *total;
    double eps;
    int64_t relu;
} norm;

typedef struct {
    int64_t images, in, out;      /* channels */
    int64_t source[2], target[2]; /* height and width */
    int64_t stride[2], padding[2];
    int64_t kind, pieces, threads; /* pieces that images or rows are cut into; threads there may be */
    norm before, after;
} normed;

/* Channels in vectors of so many lanes: slots. Where the last one would be too long it begins earlier, and overlaps the one
 * before. Of quaternions each component has its own. */
typedef struct {
    size_t channels, parts, length, lanes, of_part, count;
} slots;

/* What there is for a slot. */
typedef struct {
    const float *mean, *scale, *shift, *slope, *offset;
    float *total, *along;
    int relu;
} line;

/* Which of three taps in a row or column there are: from the first one on every so many. */
typedef struct {
    size_t first, step;
} taken;

#define LOOPS "normed_loops.h"
#include "each_width.h"

/* Call the function for vectors of as many lanes as slots have. */
#if defined(BROAD)
#define CALL_BROAD(lanes_of, name, ...) if ((lanes_of) == BROAD) name##_broad(__VA_ARGS__); else
#else
#define CALL_BROAD(lanes_of, name, ...)
#endif
#if defined(NARROW)
#define CALL_NARROW(lanes_of, name, ...) if ((lanes_of) == NARROW) name##_narrow(__VA_ARGS__); else
#else
#define CALL_NARROW(lanes_of, name, ...)
#endif
#define CALL(lanes_of, name, ...)                               \
    do {                                                        \
        CALL_BROAD(lanes_of, name, __VA_ARGS__)                 \
        CALL_NARROW(lanes_of, name, __VA_ARGS__)                \
        if ((lanes_of) == WIDE) name##_wide(__VA_ARGS__);       \
        else name##_single(__VA_ARGS__);                        \
    } while (0)

static size_t lanes_for(size_t length) {
#if defined(BROAD)
    if (length >= BROAD) return BROAD;
#endif
    if (length >= WIDE) return WIDE;
#if defined(NARROW)
    if (length >= NARROW) return NARROW;
#endif
    return 1;
}

static slots slots_of(size_t channels, int64_t kind) {
    slots s;
    s.channels = channels;
    s.parts = kind == QUATERNION ? PARTS : 1;
    s.length = channels / s.parts;
    s.lanes = lanes_for(s.length);
    s.of_part = (s.length + s.lanes - 1) / s.lanes;
    s.count = s.parts * s.of_part;
    return s;
}

/* The channel of the first lane of a slot. */
static size_t channel_of(const slots *s, size_t slot) {
    return slot / s->of_part * s->length + smaller(slot % s->of_part * s->lanes, s->length - s->lanes);
}

static size_t numbers_of(const slots *s) { return s->count * s->lanes; }

/* Numbers of channels, put where slots have them. */
static void spread(const slots *s, const float *channels, float *to) {
    size_t n;
    for (n = 0; n < s->count; n++) memcpy(to + n * s->lanes, channels + channel_of(s, n), s->lanes * sizeof *to);
}

typedef struct {
    const normed *n;
    slots in, out;
    const float *x, *z_read, *grad, *weight, *bias;
    float *z, *grad_x;
    float *before, *after; /* lines: mean, scale, shift, and behind the convolution slope and offset */
    float *taps, *shifts;  /* weight and bias as they are read */
    float *turned;         /* the weight of quaternions, conjugate and from its last tap to its first */
    char *pieces, *own;    /* of pieces: sums; of threads: what is being worked on */
    size_t strip, strips;  /* rows of an image at a time, and how often */
    int backward;
    int64_t next, next_thread; /* what no thread has taken yet */
} job;

static size_t aligned(size_t count) { return (count + 15) / 16 * 16; }

static size_t numbers_of_weight(const job *j) {
    return j->n->kind == POINTWISE ? (size_t)(j->n->in * j->n->out) : TAPS * numbers_of(&j->in);
}

/* Numbers of floats. */
static size_t of_piece(const job *j) {
    size_t sums = numbers_of(j->backward ? &j->in : &j->out);
    return aligned(2 * 2 * sums + (j->backward ? numbers_of_weight(j) : 0));
}

static size_t across(const job *j) {
    const normed *n = j->n;
    return (size_t)(n->source[1] + (j->backward ? SIDE - 1 : 2 * n->padding[1])) * j->in.channels;
}

static size_t rows_of_strip(const job *j, size_t rows) {
    return j->backward ? rows + SIDE - 1 : (rows - 1) * (size_t)j->n->stride[0] + SIDE;
}

static size_t of_tile(const job *j) {
    if (j->n->kind == POINTWISE) return SLICE * (j->in.channels + j->out.channels);
    return rows_of_strip(j, j->strip) * across(j) + (size_t)j->n->source[1] * j->in.channels;
}

static size_t of_thread(const job *j) {
    return aligned(of_tile(j)) + aligned(2 * numbers_of(&j->in) + 2 * numbers_of(&j->out));
}

static size_t of_lines(const slots *s) { return aligned(5 * numbers_of(s)); }

static job job_of(const normed *n, int backward) {
    job j;
    memset(&j, 0, sizeof j);
    j.n = n;
    j.backward = backward;
    j.in = slots_of((size_t)n->in, n->kind);
    j.out = slots_of((size_t)n->out, n->kind);
    if (n->kind != POINTWISE) {
        size_t rows = (size_t)(backward ? n->source[0] : n->target[0]);
        size_t at_once = STRIP_NUMBERS / (across(&j) * (size_t)(backward ? 1 : n->stride[0]));
        j.strip = smaller(rows, at_once > 4 ? at_once : 4);
        j.strips = (rows + j.strip - 1) / j.strip;
    }
    return j;
}

/* Numbers of scratch memory that a pass takes. */
int64_t quern_normed_scratch(const normed *n, int32_t backward) {
    job j = job_of(n, backward);
    return (int64_t)(of_lines(&j.in) + of_lines(&j.out) + 2 * aligned(numbers_of_weight(&j)) + aligned(numbers_of(&j.out)) +
                     (size_t)n->pieces * of_piece(&j) + (size_t)(n->threads > 1 ? n->threads : 1) * of_thread(&j));
}

static void lay_out(job *j, float *scratch) {
    j->before = scratch;
    j->after = j->before + of_lines(&j->in);
    j->taps = j->after + of_lines(&j->out);
    j->shifts = j->taps + aligned(numbers_of_weight(j));
    j->turned = j->backward && j->n->kind == QUATERNION ? j->shifts + aligned(numbers_of(&j->out)) : NULL;
    j->pieces = (char *)(j->shifts + aligned(numbers_of(&j->out)) + (j->turned ? aligned(numbers_of_weight(j)) : 0));
    j->own = j->pieces + (size_t)j->n->pieces * of_piece(j) * sizeof(float);
}

/* The lines by which a normalisation changes numbers, and with `gradients` those of the way back, over so many rows. */
static void set_lines(const norm *n, const slots *s, float *lines, size_t rows, int gradients) {
    size_t units = s->channels / PARTS, all = numbers_of(s), slot, l;
    for (slot = 0; slot < s->count; slot++)
        for (l = 0; l < s->lanes; l++) {
            size_t c = channel_of(s, slot) + l, u = c % units, at = slot * s->lanes + l;
            double inverse = n->mean ? 1 / sqrt((double)n->var[u] + n->eps) : 1;
            double scale = inverse * (n->mean && n->weight ? (double)n->weight[u] : 1);
            lines[at] = n->mean ? n->mean[c] : 0;
            lines[all + at] = (float)scale;
            lines[2 * all + at] = n->mean && n->bias ? n->bias[c] : 0;
            if (gradients) {
                lines[3 * all + at] = (float)(-scale * inverse * (double)n->along[u] / (double)rows);
                lines[4 * all + at] = (float)(-scale * (double)n->total[c] / (double)rows);
            }
        }
}

static line line_of(const norm *n, const slots *s, const float *lines, float *sums, size_t slot) {
    size_t all = numbers_of(s), at = slot * s->lanes;
    line l = {lines + at, lines + all + at, lines + 2 * all + at, lines + 3 * all + at, lines + 4 * all + at,
              sums + at, sums + all + at, n->mean && n->relu};
    return l;
}

/* ------------------------------------------------------------------------------------------- sums of a piece */

static double *first_of(const job *j, size_t piece) {
    return (double *)(void *)(j->pieces + piece * of_piece(j) * sizeof(float));
}

/* Mean and variance of `count` rows that were just written, from the sums of their numbers. */
static void add_moments(const job *j, const float *z, size_t count, float *sums, size_t piece) {
    const slots *s = &j->out;
    size_t all = numbers_of(s), slot, l, n, at_once = 4096 / s->channels + 1;
    double *first = first_of(j, piece), *second = first + all, rows = (double)count;
    float *squares = sums + all;
    for (l = 0; l < all; l++) sums[l] /= (float)count, squares[l] = 0;
    for (n = 0; n < count; n += at_once)
        for (slot = 0; slot < s->count; slot++)
            CALL(s->lanes, add_squares, z + n * s->channels + channel_of(s, slot), s->channels, sums + slot * s->lanes,
                 smaller(at_once, count - n), squares + slot * s->lanes);
    for (l = 0; l < all; l++) {
        double middle = (double)sums[l];
        first[l] += rows * middle;
        second[l] += (double)squares[l] + rows * middle * middle;
    }
}

static void add_sums(const job *j, const float *sums, size_t piece) {
    size_t all = numbers_of(&j->in), l;
    double *first = first_of(j, piece), *second = first + all;
    for (l = 0; l < all; l++) first[l] += (double)sums[l], second[l] += (double)sums[all + l];
}

/* The sums of all pieces, in their order, in the place of the first. */
static double *all_sums(const job *j) {
    const slots *s = j->backward ? &j->in : &j->out;
    size_t all = 2 * numbers_of(s), l, piece;
    double *first = first_of(j, 0);
    for (piece = 1; piece < (size_t)j->n->pieces; piece++)
        for (l = 0; l < all; l++) first[l] += first_of(j, piece)[l];
    return first;
}

/* Where slots have a channel; of those that overlap the later one has it, too. */
static size_t place_of(const slots *s, size_t channel) {
    size_t part = channel / s->length, c = channel % s->length, slot = smaller(c / s->lanes, s->of_part - 1);
    return (part * s->of_part + slot) * s->lanes + c - smaller(slot * s->lanes, s->length - s->lanes);
}

/* -------------------------------------------------------------------------------------------------- pointwise */

static void activate(const job *j, const float *x, size_t count, float *to) {
    size_t slot;
    for (slot = 0; slot < j->in.count; slot++) {
        line l = line_of(&j->n->before, &j->in, j->before, to, slot);
        size_t c = channel_of(&j->in, slot);
        CALL(j->in.lanes, activate, x + c, j->in.channels, &l, count, to + c);
    }
}

static void make_gradients(const job *j, size_t at, size_t count, size_t step, float *to) {
    size_t slot;
    for (slot = 0; slot < j->out.count; slot++) {
        line l = line_of(&j->n->after, &j->out, j->after, to, slot);
        size_t c = channel_of(&j->out, slot);
        CALL(j->out.lanes, make_gradients, j->grad + at + c, j->z_read + at + c, j->out.channels, &l, count, to + c,
             step * j->out.channels);
    }
}

static void mask(const job *j, const float *x, size_t count, float *grad, float *sums) {
    size_t slot;
    for (slot = 0; slot < j->in.count; slot++) {
        line l = line_of(&j->n->before, &j->in, j->before, sums, slot);
        size_t c = channel_of(&j->in, slot);
        CALL(j->in.lanes, mask, x + c, j->in.channels, &l, count, grad + c, l.total, l.along);
    }
}

static void multiply_rows(const job *j, size_t piece, size_t from, size_t end, float *own) {
    size_t in = j->in.channels, out = j->out.channels, count, r, slot;
    float *sums = own + aligned(of_tile(j));
    for (; from < end; from += count) {
        const float *x = j->x + from * in;
        float *z = j->z + from * out;
        product p;
        count = smaller(SLICE, end - from);
        p = (product){count, out, in, in, 1, out, out, j->bias != NULL};
        if (j->n->before.mean) {
            activate(j, x, count, own);
            x = own;
        }
        if (j->bias)
            for (r = 0; r < count; r++) memcpy(z + r * out, j->bias, out * sizeof *z);
        multiply(&p, x, j->taps, z);
        memset(sums, 0, numbers_of(&j->out) * sizeof *sums);
        for (slot = 0; slot < j->out.count; slot++)
            CALL(j->out.lanes, add_up, z + channel_of(&j->out, slot), out, count, sums + slot * j->out.lanes);
        add_moments(j, z, count, sums, piece);
    }
}

static void pointwise_gradients(const job *j, size_t piece, size_t from, size_t end, float *own) {
    size_t in = j->in.channels, out = j->out.channels, count;
    float *grad = own + SLICE * in, *sums = own + aligned(of_tile(j));
    float *of_weight = (float *)(void *)(first_of(j, piece) + 2 * numbers_of(&j->in));
    for (; from < end; from += count) {
        const float *x = j->x + from * in, *met = x;
        float *grad_x = j->grad_x + from * in;
        product of_x, gram;
        count = smaller(SLICE, end - from);
        of_x = (product){count, in, out, out, 1, in, in, 0};
        gram = (product){out, in, count, 1, out, in, in, 1};
        make_gradients(j, from * out, count, 1, grad);
        if (j->n->before.mean) {
            activate(j, x, count, own);
            met = own;
        }
        multiply(&of_x, grad, j->weight, grad_x);
        multiply(&gram, grad, met, of_weight);
        if (j->n->before.mean) {
            memset(sums, 0, 2 * numbers_of(&j->in) * sizeof *sums);
            mask(j, x, count, grad_x, sums);
            add_sums(j, sums, piece);
        }
    }
}

/* -------------------------------------------------------------------------------------------------- depthwise */

/* Rows of an image, normalised, with zeros around, from row `first`, which may lie outside of it. */
static void set_tile(const job *j, size_t image, int64_t first, size_t rows, float *tile) {
    const normed *n = j->n;
    size_t channels = j->in.channels, wide = across(j), border = (size_t)n->padding[1] * channels, r;
    size_t line = (size_t)n->source[1] * channels;
    for (r = 0; r < rows; r++, tile += wide) {
        int64_t row = first + (int64_t)r;
        const float *x = j->x + ((int64_t)image * n->source[0] + row) * (int64_t)line;
        if (row < 0 || row >= n->source[0]) {
            memset(tile, 0, wide * sizeof *tile);
            continue;
        }
        memset(tile, 0, border * sizeof *tile);
        memset(tile + border + line, 0, border * sizeof *tile);
        if (n->before.mean) activate(j, x, (size_t)n->source[1], tile + border);
        else memcpy(tile + border, x, line * sizeof *tile);
    }
}

static void convolve_strip(const job *j, size_t piece, size_t image, size_t from, size_t end, float *own) {
    const normed *n = j->n;
    const slots *s = &j->out;
    size_t channels = s->channels, wide = across(j), all = numbers_of(s), line = (size_t)n->target[1] * channels, row, slot;
    float *sums = own + aligned(of_tile(j)), *z = j->z + (image * (size_t)n->target[0] + from) * line;
    size_t stride = (size_t)n->stride[1], count = (size_t)n->target[1];
    const taken each = {0, 1};
    memset(sums, 0, all * sizeof *sums);
    set_tile(j, image, (int64_t)from * n->stride[0] - n->padding[0], rows_of_strip(j, end - from), own);
    for (row = from; row < end; row++) {
        const float *tile = own + (row - from) * (size_t)n->stride[0] * wide;
        float *to = z + (row - from) * line;
        for (slot = 0; slot < (n->kind == SPLIT ? s->count : s->of_part); slot++) {
            size_t c = channel_of(s, slot), at = slot * s->lanes;
            const float *shift = j->bias ? j->shifts + at : NULL;
            if (n->kind == SPLIT)
                CALL(s->lanes, split_row, tile + c, wide, channels, stride, j->taps + at, all, shift, count, to + c);
            else
                CALL(s->lanes, quaternion_row, tile + c, wide, channels, stride, j->taps + at, all, all / PARTS, shift,
                     count, to + c, 1, &each, &each);
        }
        for (slot = 0; slot < s->count; slot++)
            CALL(s->lanes, add_up, to + channel_of(s, slot), channels, count, sums + slot * s->lanes);
    }
    add_moments(j, z, (end - from) * count, sums, piece);
}

/* The gradient of the result as it is met by the rows of the input from `first` on: zeros around it, and between its
 * positions where those lie a stride apart. */
static void set_gradient_tile(const job *j, size_t image, int64_t first, size_t rows, float *tile) {
    const normed *n = j->n;
    size_t channels = j->out.channels, wide = across(j), line = (size_t)n->target[1] * channels, r;
    size_t border = (size_t)(SIDE - 1 - n->padding[1]) * channels, stride = (size_t)n->stride[1];
    size_t reached = border + (line - channels) * stride + channels;
    for (r = 0; r < rows; r++, tile += wide) {
        int64_t at = first + (int64_t)r, row = at / n->stride[0];
        if (at < 0 || at % n->stride[0] || row >= n->target[0] || stride > 1) memset(tile, 0, wide * sizeof *tile);
        if (at < 0 || at % n->stride[0] || row >= n->target[0]) continue;
        memset(tile, 0, border * sizeof *tile);
        memset(tile + reached, 0, (wide - reached) * sizeof *tile);
        make_gradients(j, (image * (size_t)n->target[0] + (size_t)row) * line, (size_t)n->target[1], stride, tile + border);
    }
}

/* The first of three places from which on every so many hold gradients, where there may be zeros between them; `at` is
 * that of the first place in the image. */
static taken places(int64_t at, int64_t stride) {
    int64_t past = ((at % stride) + stride) % stride;
    taken t = {(size_t)(past ? stride - past : 0), (size_t)stride};
    return t;
}

/* The gradient of a row of the input, and what it adds to that of the weight: without the products by the zeros between the
 * gradients of the result. */
static void quaternion_gradients(const job *j, size_t row, const float *tile, const float *met, float *grad_x,
                                 float *of_weight) {
    const normed *n = j->n;
    const slots *s = &j->in;
    size_t channels = s->channels, wide = across(j), all = numbers_of(s), stride = (size_t)n->stride[1], slot, first, r, k;
    const taken rows = places((int64_t)row + n->padding[0] - (SIDE - 1), n->stride[0]);
    for (first = 0; first < smaller(stride, (size_t)n->source[1]); first++) {
        const taken columns = places((int64_t)first + n->padding[1] - (SIDE - 1), n->stride[1]);
        size_t count = ((size_t)n->source[1] - first - 1) / stride + 1, at = first * channels;
        for (slot = 0; slot < s->of_part; slot++) {
            size_t c = at + channel_of(s, slot), from = slot * s->lanes;
            CALL(s->lanes, quaternion_row, tile + c, wide, channels, stride, j->turned + from, all, all / PARTS, NULL, count,
                 grad_x + c, stride, &rows, &columns);
            for (r = rows.first; r < SIDE; r += rows.step)
                for (k = columns.first; k < SIDE; k += columns.step)
                    CALL(s->lanes, quaternion_products, tile + r * wide + k * channels + c, met + c, stride * channels,
                         channels / PARTS, count, of_weight + (TAPS - 1 - SIDE * r - k) * all + from, all / PARTS);
        }
    }
}

static void gradient_strip(const job *j, size_t piece, size_t image, size_t from, size_t end, float *own) {
    const normed *n = j->n;
    const slots *s = &j->in;
    size_t channels = s->channels, wide = across(j), all = numbers_of(s), count = (size_t)n->source[1], row, slot;
    size_t rows = rows_of_strip(j, j->strip);
    float *sums = own + aligned(of_tile(j)), *activated = own + rows * wide;
    float *of_weight = (float *)(void *)(first_of(j, piece) + 2 * all);
    memset(sums, 0, 2 * all * sizeof *sums);
    set_gradient_tile(j, image, (int64_t)from + n->padding[0] - (SIDE - 1), rows_of_strip(j, end - from), own);
    for (row = from; row < end; row++) {
        size_t at = (image * (size_t)n->source[0] + row) * count * channels;
        const float *tile = own + (row - from) * wide, *x = j->x + at;
        float *grad_x = j->grad_x + at;
        if (n->kind == SPLIT) {
            for (slot = 0; slot < s->count; slot++) {
                line l = line_of(&n->before, s, j->before, sums, slot);
                size_t c = channel_of(s, slot);
                CALL(s->lanes, split_gradient_row, tile + c, wide, channels, j->taps + slot * s->lanes, all, x + c, &l, count,
                     grad_x + c, of_weight + slot * s->lanes);
            }
            continue;
        }
        if (n->before.mean) activate(j, x, count, activated);
        quaternion_gradients(j, row, tile, n->before.mean ? activated : x, grad_x, of_weight);
        if (n->before.mean) mask(j, x, count, grad_x, sums);
    }
    add_sums(j, sums, piece);
}

static void take_pieces(void *work) {
    job *j = work;
    const normed *n = j->n;
    float *own = (float *)(void *)j->own + take(&j->next_thread) * of_thread(j);
    size_t tasks = n->kind == POINTWISE ? (size_t)(n->images * n->source[0] * n->source[1]) : (size_t)n->images * j->strips;
    size_t pieces = (size_t)n->pieces, rows = (size_t)(j->backward ? n->source[0] : n->target[0]), piece, task;
    while ((piece = take(&j->next)) < pieces) {
        size_t from = piece * tasks / pieces, end = (piece + 1) * tasks / pieces;
        memset(first_of(j, piece), 0, of_piece(j) * sizeof(float));
        if (n->kind == POINTWISE) {
            (j->backward ? pointwise_gradients : multiply_rows)(j, piece, from, end, own);
            continue;
        }
        for (task = from; task < end; task++) {
            size_t row = task % j->strips * j->strip;
            (j->backward ? gradient_strip : convolve_strip)(j, piece, task / j->strips, row, smaller(rows, row + j->strip), own);
        }
    }
}

static void set_taps(job *j) {
    size_t all = numbers_of(&j->in), tap, n;
    for (tap = 0; tap < TAPS; tap++) spread(&j->in, j->weight + tap * j->in.channels, j->taps + tap * all);
    if (!j->turned) return;
    for (tap = 0; tap < TAPS; tap++)
        for (n = 0; n < all; n++) {
            float number = j->taps[(TAPS - 1 - tap) * all + n];
            j->turned[tap * all + n] = n < all / PARTS ? number : -number;
        }
}

/* z, and its mean (channels) and variance (units), for the next normalisation. `bias` (channels) may be NULL. */
void quern_normed_forward(const normed *n, const float *x, const float *weight, const float *bias, float *z, float *mean,
                          float *variance, float *scratch, parallel_function parallel) {
    job j = job_of(n, 0);
    size_t in = (size_t)n->in, out = (size_t)n->out, all = numbers_of(&j.out), units = out / PARTS, i, o, u, p;
    double *first, share = 1 / ((double)n->images * (double)n->target[0] * (double)n->target[1]);
    lay_out(&j, scratch);
    j.x = x, j.weight = weight, j.bias = bias, j.z = z;
    set_lines(&n->before, &j.in, j.before, 1, 0);
    if (bias) spread(&j.out, bias, j.shifts);
    if (n->kind != POINTWISE) set_taps(&j);
    else
        for (i = 0; i < in; i++)
            for (o = 0; o < out; o++) j.taps[i * out + o] = weight[o * in + i];
    with_threads(take_pieces, &j, n->threads, parallel);
    first = all_sums(&j);
    for (u = 0; u < units; u++) {
        double spread_of_all = 0;
        for (p = 0; p < PARTS; p++) {
            size_t at = place_of(&j.out, p * units + u);
            double middle = first[at] * share, square = first[all + at] * share - middle * middle;
            spread_of_all += square < 0 ? 0 : square; /* a NaN stays one */
            mean[p * units + u] = (float)middle;
        }
        variance[u] = (float)spread_of_all;
    }
}

/* The gradient of x, masked where there is a normalisation before, whose sums are set too; and of the weight: for that of
 * the normalised result. */
void quern_normed_backward(const normed *n, const float *x, const float *z, const float *grad, const float *weight,
                           float *grad_x, float *grad_weight, float *scratch, parallel_function parallel) {
    job j = job_of(n, 1);
    size_t in = (size_t)n->in, units = in / PARTS, all = numbers_of(&j.in), count = numbers_of_weight(&j), l, p, u, piece;
    float *of_weight;
    double *first;
    lay_out(&j, scratch);
    j.x = x, j.z_read = z, j.grad = grad, j.weight = weight, j.grad_x = grad_x;
    set_lines(&n->before, &j.in, j.before, 1, 0);
    set_lines(&n->after, &j.out, j.after, (size_t)(n->images * n->target[0] * n->target[1]), 1);
    if (n->kind != POINTWISE) set_taps(&j);
    with_threads(take_pieces, &j, n->threads, parallel);
    first = all_sums(&j);
    of_weight = (float *)(void *)(first + 2 * all);
    for (piece = 1; piece < (size_t)n->pieces; piece++) {
        const float *more = (float *)(void *)(first_of(&j, piece) + 2 * all);
        for (l = 0; l < count; l++) of_weight[l] += more[l];
    }
    if (n->kind == POINTWISE) memcpy(grad_weight, of_weight, count * sizeof *of_weight);
    else
        for (l = 0; l < TAPS * in; l++) grad_weight[l] = of_weight[l / in * all + place_of(&j.in, l % in)];
    if (!n->before.mean) return;
    for (u = 0; u < units; u++) {
        double along = 0;
        for (p = 0; p < PARTS; p++) {
            size_t at = place_of(&j.in, p * units + u);
            n->before.total[p * units + u] = (float)first[at];
            along += first[all + at];
        }
        n->before.along[u] = (float)(along / sqrt((double)n->before.var[u] + n->before.eps));
    }
}
