/* The inner loops of normed.c for one kind of number: a vector of channels, or one channel. Included once for each, with
 * `number` and NAME(). All of them go along a row of positions, for the channels of one slot. */

#include "quaternion_products.h"

/* What a normalisation and a ReLU behind it make of numbers. */
INLINE number NAME(activated)(number centred, number scale, number shift, int relu) {
    number y = scale * centred + shift;
    return relu ? NAME(where_positive)(y, y) : y;
}

static void NAME(activate)(const float *x, size_t step, const line *l, size_t count, float *to) {
    const number mean = NAME(load)(l->mean), scale = NAME(load)(l->scale), shift = NAME(load)(l->shift);
    size_t n;
    if (l->relu)
        for (n = 0; n < count; n++)
            NAME(store)(to + n * step, NAME(activated)(NAME(load)(x + n * step) - mean, scale, shift, 1));
    else
        for (n = 0; n < count; n++)
            NAME(store)(to + n * step, NAME(activated)(NAME(load)(x + n * step) - mean, scale, shift, 0));
}

/* The gradient of what is normalised from that of the result, `to_step` numbers apart. */
INLINE void NAME(normalised_gradients)(const float *grad, const float *z, size_t step, const line *l, size_t count,
                                       float *to, size_t to_step, int relu) {
    const number mean = NAME(load)(l->mean), scale = NAME(load)(l->scale), shift = NAME(load)(l->shift);
    const number slope = NAME(load)(l->slope), offset = NAME(load)(l->offset);
    size_t n;
    for (n = 0; n < count; n++) {
        number g = NAME(load)(grad + n * step), centred = NAME(load)(z + n * step) - mean;
        if (relu) g = NAME(where_positive)(scale * centred + shift, g);
        NAME(store)(to + n * to_step, scale * g + (slope * centred + offset));
    }
}

static void NAME(make_gradients)(const float *grad, const float *z, size_t step, const line *l, size_t count, float *to,
                                 size_t to_step) {
    if (l->relu) NAME(normalised_gradients)(grad, z, step, l, count, to, to_step, 1);
    else NAME(normalised_gradients)(grad, z, step, l, count, to, to_step, 0);
}

/* The gradient of the input of a normalisation's ReLU, where that let numbers pass, with its sums for the normalisation. */
static void NAME(mask)(const float *x, size_t step, const line *l, size_t count, float *grad, float *total, float *along) {
    const number mean = NAME(load)(l->mean), scale = NAME(load)(l->scale), shift = NAME(load)(l->shift);
    number first = NAME(load)(total), second = NAME(load)(along);
    size_t n;
    for (n = 0; n < count; n++) {
        number g = NAME(load)(grad + n * step), centred = NAME(load)(x + n * step) - mean;
        if (l->relu) {
            g = NAME(where_positive)(scale * centred + shift, g);
            NAME(store)(grad + n * step, g);
        }
        first += g;
        second += g * centred;
    }
    NAME(store)(total, first), NAME(store)(along, second);
}

static void NAME(add_up)(const float *z, size_t step, size_t count, float *sums) {
    number sum = NAME(load)(sums);
    size_t n;
    for (n = 0; n < count; n++) sum += NAME(load)(z + n * step);
    NAME(store)(sums, sum);
}

/* Squares of distances from a centre. */
static void NAME(add_squares)(const float *z, size_t step, const float *centre, size_t count, float *squares) {
    const number middle = NAME(load)(centre);
    number even = NAME(load)(squares), odd = {0}; /* two sums: a processor does not wait for one of them then */
    size_t n;
    for (n = 0; n + 1 < count; n += 2) {
        number one = NAME(load)(z + n * step) - middle, other = NAME(load)(z + (n + 1) * step) - middle;
        even += one * one;
        odd += other * other;
    }
    if (n < count) {
        number one = NAME(load)(z + n * step) - middle;
        even += one * one;
    }
    NAME(store)(squares, even + odd);
}

/* A row of three times three real taps: `line` numbers from one row of the source to the next, taps `next` numbers apart. */
INLINE void NAME(split_positions)(const float *from, size_t across, size_t channels, size_t stride, const float *weight,
                                  size_t next, const float *bias, size_t count, float *z) {
    number taps[TAPS], window[TAPS], start = bias ? NAME(load)(bias) : (number){0};
    size_t n, r;
    for (n = 0; n < TAPS; n++) taps[n] = NAME(load)(weight + n * next);
    for (n = 0; n < TAPS; n++) window[n] = NAME(load)(from + n / SIDE * across + n % SIDE * channels);
    for (n = 0; n < count; n++) {
        number sums[SIDE];
        const float *ahead = from + ((n + 1) * stride + SIDE - 1) * channels;
        for (r = 0; r < SIDE; r++) {
            sums[r] = window[SIDE * r] * taps[SIDE * r] + (r ? (number){0} : start);
            sums[r] += window[SIDE * r + 1] * taps[SIDE * r + 1];
            sums[r] += window[SIDE * r + 2] * taps[SIDE * r + 2];
        }
        NAME(store)(z + n * channels, sums[0] + sums[1] + sums[2]);
        if (n + 1 == count) break;
        for (r = 0; r < SIDE; r++) {
            if (stride == 1) {
                window[SIDE * r] = window[SIDE * r + 1];
                window[SIDE * r + 1] = window[SIDE * r + 2];
            } else {
                window[SIDE * r] = NAME(load)(ahead + r * across - 2 * channels);
                window[SIDE * r + 1] = NAME(load)(ahead + r * across - channels);
            }
            window[SIDE * r + 2] = NAME(load)(ahead + r * across);
        }
    }
}

static void NAME(split_row)(const float *from, size_t across, size_t channels, size_t stride, const float *weight,
                            size_t next, const float *bias, size_t count, float *z) {
    if (stride == 1) NAME(split_positions)(from, across, channels, 1, weight, next, bias, count, z);
    else NAME(split_positions)(from, across, channels, stride, weight, next, bias, count, z);
}

/* A row of the gradient of the input, and what it adds to that of the weight. The window is one of the gradient of the
 * result, so the last tap meets its first number. */
INLINE void NAME(split_gradients)(const float *from, size_t across, size_t channels, const float *weight, size_t next,
                                  const float *x, const line *l, size_t count, float *grad_x, float *of_weight, int relu) {
    number taps[TAPS], window[TAPS], sums[TAPS];
    const number mean = NAME(load)(l->mean), scale = NAME(load)(l->scale), shift = NAME(load)(l->shift);
    number first = NAME(load)(l->total), second = NAME(load)(l->along);
    size_t n, r, k;
    for (n = 0; n < TAPS; n++) {
        taps[n] = NAME(load)(weight + (TAPS - 1 - n) * next);
        sums[n] = NAME(load)(of_weight + (TAPS - 1 - n) * next);
        window[n] = NAME(load)(from + n / SIDE * across + n % SIDE * channels);
    }
    for (n = 0; n < count; n++) {
        const float *ahead = from + (n + SIDE) * channels;
        number centred = NAME(load)(x + n * channels) - mean, a = NAME(activated)(centred, scale, shift, relu), g[SIDE];
        for (r = 0; r < SIDE; r++) {
            g[r] = window[SIDE * r] * taps[SIDE * r];
            g[r] += window[SIDE * r + 1] * taps[SIDE * r + 1];
            g[r] += window[SIDE * r + 2] * taps[SIDE * r + 2];
        }
        for (k = 0; k < TAPS; k++) sums[k] += window[k] * a;
        g[0] += g[1] + g[2];
        if (relu) g[0] = NAME(where_positive)(a, g[0]);
        first += g[0];
        second += g[0] * centred;
        NAME(store)(grad_x + n * channels, g[0]);
        if (n + 1 == count) break;
        for (r = 0; r < SIDE; r++) {
            window[SIDE * r] = window[SIDE * r + 1];
            window[SIDE * r + 1] = window[SIDE * r + 2];
            window[SIDE * r + 2] = NAME(load)(ahead + r * across);
        }
    }
    for (n = 0; n < TAPS; n++) NAME(store)(of_weight + (TAPS - 1 - n) * next, sums[n]);
    NAME(store)(l->total, first), NAME(store)(l->along, second);
}

static void NAME(split_gradient_row)(const float *from, size_t across, size_t channels, const float *weight, size_t next,
                                     const float *x, const line *l, size_t count, float *grad_x, float *of_weight) {
    if (l->relu) NAME(split_gradients)(from, across, channels, weight, next, x, l, count, grad_x, of_weight, 1);
    else NAME(split_gradients)(from, across, channels, weight, next, x, l, count, grad_x, of_weight, 0);
}

/* Some positions of three times three taps of quaternions, whose parts are `part` numbers apart: `stride` apart in the source
 * and `apart` in the result. Of rows and columns of taps there are those from the first one on, every so many. */
INLINE void NAME(quaternion_positions)(const float *from, size_t across, size_t channels, size_t stride,
                                       const float *weight, size_t next, size_t part, const float *bias, size_t count,
                                       float *z, size_t apart, const taken *rows, const taken *columns) {
    const size_t units = channels / PARTS;
    number sums[COLUMNS][PARTS];
    size_t n, p, r, k;
    for (n = 0; n < count; n++)
        for (p = 0; p < PARTS; p++) sums[n][p] = bias ? NAME(load)(bias + p * part) : (number){0};
    for (r = rows->first; r < SIDE; r += rows->step)
        for (k = columns->first; k < SIDE; k += columns->step) {
            number a[PARTS], b[PARTS];
            NAME(load_quaternion)(weight + (SIDE * r + k) * next, part, a);
            for (n = 0; n < count; n++) {
                NAME(load_quaternion)(from + r * across + (n * stride + k) * channels, units, b);
                NAME(add_product)(sums[n], a, b);
            }
        }
    for (n = 0; n < count; n++)
        for (p = 0; p < PARTS; p++) NAME(store)(z + n * apart * channels + p * units, sums[n][p]);
}

static void NAME(quaternion_row)(const float *from, size_t across, size_t channels, size_t stride, const float *weight,
                                 size_t next, size_t part, const float *bias, size_t count, float *z, size_t apart,
                                 const taken *rows, const taken *columns) {
    size_t n = 0;
    for (; n + COLUMNS <= count; n += COLUMNS)
        NAME(quaternion_positions)(from + n * stride * channels, across, channels, stride, weight, next, part, bias,
                                   COLUMNS, z + n * apart * channels, apart, rows, columns);
    for (; n < count; n++)
        NAME(quaternion_positions)(from + n * stride * channels, across, channels, stride, weight, next, part, bias, 1,
                                   z + n * apart * channels, apart, rows, columns);
}

/* Add to the gradient of a tap the products of `count` gradients of the result and conjugate numbers that it met, `step`
 * numbers apart. */
static void NAME(quaternion_products)(const float *grad, const float *x, size_t step, size_t units, size_t count, float *to,
                                      size_t part) {
    number sums[2][PARTS];
    size_t n, p, s;
    for (p = 0; p < PARTS; p++) sums[0][p] = NAME(load)(to + p * part), sums[1][p] = (number){0};
    for (n = 0; n < count; n += 2)
        for (s = 0; s < 2; s++) { /* two sums, as above */
            number a[PARTS], b[PARTS];
            if (n + s == count) break;
            NAME(load_quaternion)(grad + (n + s) * step, units, a);
            NAME(load_quaternion)(x + (n + s) * step, units, b);
            for (p = 1; p < PARTS; p++) b[p] = -b[p];
            NAME(add_product)(sums[s], a, b);
        }
    for (p = 0; p < PARTS; p++) NAME(store)(to + p * part, sums[0][p] + sums[1][p]);
}
