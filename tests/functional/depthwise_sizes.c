/* All passes over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "depthwise.c"

#include <stdio.h>
#include <stdlib.h>

static float *numbers(size_t count) {
    float *made = malloc(4 * count);
    size_t n;
    if (!made) exit(2);
    for (n = 0; n < count; n++) made[n] = (float)(n % 7) - 3;
    return made;
}

static int64_t *table(const depthwise *d) {
    int64_t *made = malloc(8 * 3 * (size_t)(d->target[0] + d->target[1]));
    if (!made) exit(2);
    return made;
}

int main(void) {
    static const int64_t UNITS[] = {2, 8, 19, 5}, SPACES[][2] = {{4, 4}, {5, 9}, {8, 3}}, PADDINGS[] = {0, 1, 5};
    static const int64_t STRIDES[] = {1, 2, 3}, DILATIONS[] = {1, 2}, KERNELS[][2] = {{1, 3}, {2, 1}};
    size_t u, s, p, t, l, k, axis, done = 0;
    for (u = 0; u < 4; u++)
    for (s = 0; s < 3; s++)
    for (p = 0; p < 3; p++)
    for (t = 0; t < 3; t++)
    for (l = 0; l < 2; l++)
    for (k = 0; k < 2; k++) {
        depthwise d = {2, UNITS[u], {SPACES[s][0], SPACES[s][1]}, {0, 0}, {KERNELS[k][0], KERNELS[k][1]},
                       {STRIDES[t], STRIDES[2 - t]}, {PADDINGS[p], 1}, {DILATIONS[l], 1}, 0, 2, 1}, back;
        size_t pixels, results;
        float *x, *y, *weight, *bias, *sums;
        int64_t *forth, *other;
        for (axis = 0; axis < 2; axis++)
            d.target[axis] = (d.source[axis] + 2 * d.padding[axis] - d.dilation[axis] * (d.kernel[axis] - 1) - 1) / d.stride[axis] + 1;
        back = d;
        memcpy(back.source, d.target, sizeof d.target);
        memcpy(back.target, d.source, sizeof d.source);
        back.transposed = 1;
        pixels = (size_t)(2 * PARTS * d.units * d.source[0] * d.source[1]);
        results = (size_t)(2 * PARTS * d.units * d.target[0] * d.target[1]);
        x = numbers(pixels), y = numbers(results), bias = numbers((size_t)(PARTS * d.units));
        weight = numbers((size_t)(PARTS * d.units * d.kernel[0] * d.kernel[1]));
        sums = numbers((size_t)quern_depthwise_sums(&d));
        forth = table(&d), other = table(&back);
        quern_depthwise_forward(&d, x, weight, bias, y, forth, NULL);
        quern_depthwise_forward(&back, y, weight, NULL, x, other, NULL);
        quern_depthwise_weight(&d, x, y, weight, sums, forth, NULL);
        free(x), free(y), free(bias), free(weight), free(sums), free(forth), free(other);
        done++;
    }
    printf("%zu convolutions\n", done);
    return 0;
}
