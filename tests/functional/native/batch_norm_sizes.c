/* All passes over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "batch_norm.c"

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
    static const int64_t ROWS[] = {2, 3, 17, 1000}, UNITS[] = {1, 5, 16}, SIDES[] = {1, 2}, PIECES[] = {1, 2};
    size_t r, u, s, p, k, done = 0;
    for (r = 0; r < 4; r++)
        for (u = 0; u < 3; u++)
            for (s = 0; s < 2; s++)
                for (k = 0; k < 8; k++) {
                    int relu = k & 1, is_added = k & 2;
                    norm n = {0};
                    size_t units = (size_t)UNITS[u], all = (size_t)ROWS[r] * PARTS * units;
                    float *x = numbers(all), *y = numbers(all), *to = numbers(all), *weight = numbers(units);
                    float *added = numbers(all), *masked = numbers(all);
                    float *bias = numbers(PARTS * units), *mean = numbers(PARTS * units), *variance = numbers(units);
                    void *scratch;
                    p = k / 4;
                    n.rows = ROWS[r], n.units = UNITS[u], n.side = SIDES[s], n.pieces = PIECES[p], n.threads = 1;
                    n.relu = relu, n.eps = 1e-5;
                    scratch = malloc((size_t)quern_batch_norm_scratch(&n));
                    if (!scratch) exit(2);
                    quern_batch_norm_statistics(&n, x, mean, variance, scratch, NULL);
                    quern_batch_norm_apply(&n, x, p ? weight : NULL, s ? bias : NULL, is_added ? added : NULL, mean, variance,
                                           y, scratch, NULL);
                    quern_batch_norm_sums(&n, x, relu && is_added ? y : NULL, added, p ? weight : NULL, s ? bias : NULL, mean,
                                          variance, relu && is_added ? masked : NULL, weight, bias, scratch, NULL);
                    n.relu = relu && !is_added;
                    quern_batch_norm_gradient(&n, x, added, p ? weight : NULL, s ? bias : NULL, mean, variance, weight, bias,
                                              to, scratch, NULL);
                    free(x), free(y), free(to), free(weight), free(bias), free(mean), free(variance), free(scratch);
                    free(added), free(masked);
                    done++;
                }
    printf("%zu normalisations\n", done);
    return 0;
}
