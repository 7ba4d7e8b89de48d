/* The inner loops of depthwise.c for one kind of number: a vector of channels, or one channel. Included once for each, with
 * `number` and NAME(). */

#include "quaternion_products.h"

/* `columns` positions of a row of the result, `step` apart, that the same taps reach. */
INLINE void NAME(gather_positions)(const job *j, const reach *row, const reach *column, size_t step, const float *x,
                                   const float *weight, const float *bias, float *y, size_t columns) {
    const size_t units = (size_t)j->d->units;
    const int64_t channels = PARTS * j->d->units, line = channels * j->d->source[1], taps = j->d->kernel[1];
    const int64_t down = j->source_step[0] * line, right = j->source_step[1] * channels;
    number sums[COLUMNS][PARTS];
    size_t n, p;
    int64_t r, k;
    for (n = 0; n < columns; n++)
        for (p = 0; p < PARTS; p++) sums[n][p] = bias ? NAME(load)(bias + p * units) : (number){0};
    for (r = 0; r < row->count; r++) {
        const float *w = weight + ((row->tap + r * j->tap_step[0]) * taps + column->tap) * channels;
        const float *from = x + row->from * line + r * down;
        for (k = 0; k < column->count; k++) {
            number a[PARTS], b[PARTS];
            NAME(load_quaternion)(w + k * j->tap_step[1] * channels, units, a);
            for (n = 0; n < columns; n++) {
                NAME(load_quaternion)(from + column[n * step].from * channels + k * right, units, b);
                NAME(add_product)(sums[n], a, b);
            }
        }
    }
    for (n = 0; n < columns; n++)
        for (p = 0; p < PARTS; p++) NAME(store)(y + n * step * (size_t)channels + p * units, sums[n][p]);
}

/* sums + the products of `count` positions of the input, `step` numbers apart, and conjugate gradients of the result. */
INLINE void NAME(add_gradients)(const float *x, int64_t step, const float *grad, int64_t count, size_t units, float *to,
                                size_t to_step) {
    number sums[2][PARTS];
    int64_t n;
    size_t p, s;
    for (p = 0; p < PARTS; p++) sums[0][p] = NAME(load)(to + p * to_step), sums[1][p] = (number){0};
    for (n = 0; n < count; n += 2) {
        for (s = 0; s < 2; s++) { /* Two sums at a time: a processor does not wait for one of them then. */
            number a[PARTS], b[PARTS];
            if (n + (int64_t)s == count) break;
            NAME(load_quaternion)(grad + (n + (int64_t)s) * PARTS * (int64_t)units, units, a);
            NAME(load_quaternion)(x + (n + (int64_t)s) * step, units, b);
            for (p = 1; p < PARTS; p++) b[p] = -b[p];
            NAME(add_product)(sums[s], a, b);
        }
    }
    for (p = 0; p < PARTS; p++) NAME(store)(to + p * to_step, sums[0][p] + sums[1][p]);
}
