/* The pass over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "pointwise.c"

#include <stdio.h>
#include <stdlib.h>

static float *numbers(size_t count) {
    float *made = malloc(4 * count);
    size_t n;
    if (!made) exit(2);
    for (n = 0; n < count; n++) made[n] = (float)(n % 7) - 3;
    return made;
}

int main(void) {
    static const int64_t ROWS_OF[] = {1, 13, 121, 250}, CHANNELS[] = {1, 5, 24, 37};
    size_t r, i, o, done = 0;
    for (r = 0; r < 4; r++)
        for (i = 0; i < 4; i++)
            for (o = 0; o < 4; o++) {
                pointwise p = {ROWS_OF[r], CHANNELS[i], CHANNELS[o], ROWS_OF[r] < 3 ? ROWS_OF[r] : 3, 1};
                size_t rows = (size_t)p.rows, in = (size_t)p.in, out = (size_t)p.out;
                float *x = numbers(rows * in), *grad = numbers(rows * out), *weight = numbers(out * in);
                float *grad_x = numbers(rows * in), *both = numbers(out * in + out);
                float *sums = numbers((size_t)quern_pointwise_sums(&p));
                quern_pointwise_backward(&p, x, weight, grad, done % 2 ? grad_x : NULL, both, sums, NULL);
                free(x), free(grad), free(weight), free(grad_x), free(both), free(sums);
                done++;
            }
    printf("%zu convolutions\n", done);
    return 0;
}
