/* Max-pooling of 2x2 windows side by side, each channel by itself: forward, and the gradient of the input.
 *
 * Images are channels-last, `(images, height, width, channels)`. What is kept for the gradient is one byte for each result:
 * which of the four numbers of its window it is, the first of equal ones, or the last that is not a number, as in torch. No
 * global state, no memory of its own. */
#include "vectors.h"

typedef struct {
    int64_t images, height, width, channels; /* of the input; a row or column that fills no window is left out */
    int64_t threads;                         /* how many there may be */
} pool;

typedef struct {
    const pool *p;
    const float *from;
    float *to;
    uint8_t *places;
    int64_t next; /* rows of windows that no thread has taken yet */
} job;

enum { ROWS = 16 }; /* of windows, that a thread takes at a time */

typedef int32_t marks __attribute__((vector_size(4 * WIDE))); /* -1 or 0, or places */
typedef uint8_t bytes __attribute__((vector_size(WIDE)));

INLINE marks bits_of(vector n) {
    marks bits;
    memcpy(&bits, &n, sizeof bits);
    return bits;
}

INLINE vector of_bits(marks bits) {
    vector n;
    memcpy(&n, &bits, sizeof n);
    return n;
}

INLINE void better_wide(const float *from, int32_t place, vector *best, marks *places) {
    vector n = load_wide(from);
    marks is = (marks)(n > *best) | (marks)(n != n);
    *best = of_bits((is & bits_of(n)) | (~is & bits_of(*best)));
    *places = (is & place) | (~is & *places);
}

INLINE void better_single(const float *from, int32_t place, float *best, int32_t *places) {
    if (*from > *best || *from != *from) *best = *from, *places = place;
}

INLINE void store_places_wide(uint8_t *to, marks places) {
    bytes small = __builtin_convertvector(places, bytes);
    memcpy(to, &small, sizeof small);
}

INLINE void store_places_single(uint8_t *to, int32_t place) { *to = (uint8_t)place; }

/* Windows whose second numbers are `right` further, and whose second rows are `down` further. */
#define POOL(kind, number, whole)                                                                          \
    INLINE void pool_##kind(const float *x, size_t right, size_t down, float *y, uint8_t *places) {       \
        number best = load_##kind(x);                                                                      \
        whole place = {0};                                                                                 \
        better_##kind(x + right, 1, &best, &place);                                                        \
        better_##kind(x + down, 2, &best, &place);                                                         \
        better_##kind(x + down + right, 3, &best, &place);                                                 \
        store_##kind(y, best);                                                                             \
        store_places_##kind(places, place);                                                                \
    }

POOL(wide, vector, marks)
POOL(single, float, int32_t)

INLINE void spread_wide(const float *grad, const uint8_t *places, float *x, size_t right, size_t down) {
    marks g = bits_of(load_wide(grad)), place;
    bytes small;
    memcpy(&small, places, sizeof small);
    place = __builtin_convertvector(small, marks);
    store_wide(x, of_bits((marks)(place == 0) & g));
    store_wide(x + right, of_bits((marks)(place == 1) & g));
    store_wide(x + down, of_bits((marks)(place == 2) & g));
    store_wide(x + down + right, of_bits((marks)(place == 3) & g));
}

INLINE void spread_single(const float *grad, const uint8_t *places, float *x, size_t right, size_t down) {
    x[0] = *places == 0 ? *grad : 0;
    x[right] = *places == 1 ? *grad : 0;
    x[down] = *places == 2 ? *grad : 0;
    x[down + right] = *places == 3 ? *grad : 0;
}

static void pool_row(const pool *p, size_t n, const float *from, float *y, uint8_t *places) {
    size_t channels = (size_t)p->channels, line = (size_t)p->width * channels, high = (size_t)p->height / 2, w;
    const float *x = from + (n / high * (size_t)p->height + 2 * (n % high)) * line;
    for (w = 0; w < (size_t)p->width / 2; w++) {
#define BODY(kind) pool_##kind(x + c, channels, line, y + c, places + c)
        EACH(channels, BODY);
#undef BODY
        x += 2 * channels, y += channels, places += channels;
    }
}

static void spread_row(const pool *p, size_t n, const float *grad, const uint8_t *places, float *to) {
    size_t channels = (size_t)p->channels, line = (size_t)p->width * channels, high = (size_t)p->height / 2, w;
    float *x = to + (n / high * (size_t)p->height + 2 * (n % high)) * line;
    for (w = 0; w < (size_t)p->width / 2; w++) {
#define BODY(kind) spread_##kind(grad + c, places + c, x + c, channels, line)
        EACH(channels, BODY);
#undef BODY
        x += 2 * channels, grad += channels, places += channels;
    }
    if (p->width % 2) {
        memset(x, 0, channels * sizeof *x);
        memset(x + line, 0, channels * sizeof *x);
        x += channels;
    }
    if (p->height % 2 && n % high == high - 1) memset(x + line, 0, line * sizeof *x);
}

#define ALL_ROWS(name, body)                                                                                \
    static void name##_rows(void *work) {                                                                   \
        job *j = work;                                                                                      \
        const pool *p = j->p;                                                                               \
        const float *from = j->from;                                                                        \
        float *to = j->to;                                                                                  \
        uint8_t *places = j->places;                                                                        \
        size_t row = (size_t)(p->width / 2 * p->channels), all = (size_t)(p->images * (p->height / 2)), n;  \
        while ((n = ROWS * take(&j->next)) < all) {                                                         \
            size_t end = smaller(all, n + ROWS);                                                            \
            for (; n < end; n++) body;                                                                      \
        }                                                                                                   \
    }

ALL_ROWS(pool, pool_row(p, n, from, to + n * row, places + n * row))
ALL_ROWS(spread, spread_row(p, n, from + n * row, places + n * row, to))

/* y (images, height/2, width/2, channels) of x, and the places of its numbers. */
void quern_max_pool_forward(const pool *p, const float *x, float *y, uint8_t *places, parallel_function parallel) {
    job j = {p, x, y, places, 0};
    with_threads(pool_rows, &j, p->threads, parallel);
}

/* The gradient of x for that of y. */
void quern_max_pool_backward(const pool *p, const float *grad, uint8_t *places, float *grad_x, parallel_function parallel) {
    job j = {p, grad, grad_x, places, 0};
    with_threads(spread_rows, &j, p->threads, parallel);
}
