/* Both passes over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "winograd.c"

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
    static const int64_t UNITS[] = {1, 7, 8, 19}, SPACES[][2] = {{4, 4}, {5, 9}, {8, 3}}, PADDINGS[] = {0, 1, 2, 4};
    size_t u, s, p, o, done = 0;
    for (u = 0; u < 4; u++)
        for (s = 0; s < 3; s++)
            for (p = 0; p < 4; p++)
                for (o = 0; o < 2; o++) {
                    convolution c = {2, SPACES[s][0], SPACES[s][1], PADDINGS[p], UNITS[u], UNITS[3 - u], 1 + 6 * (int64_t)o, 1,
                                     {0, 3, 1, 2}, {-1, 1, 1, 1}};
                    size_t in = (size_t)c.units_in, out = (size_t)c.units_out, weights = PLACES * PARTS * in * out;
                    float *x = numbers(2 * PARTS * in * (size_t)(c.height * c.width));
                    float *y = numbers(2 * PARTS * out * (size_t)(high(&c) * wide(&c)));
                    float *first = numbers(weights), *second = numbers(weights), *bias = numbers(PARTS * out);
                    float *one = numbers((size_t)quern_winograd_scratch(&c, 0));
                    float *other = numbers((size_t)quern_winograd_scratch(&c, 1));
                    float *taps = numbers(9 * PARTS * in * out);
                    quern_winograd_spread_taps(&c, taps, first, second, NULL);
                    quern_winograd_forward(&c, x, first, second, bias, y, one, NULL);
                    quern_winograd_weight(&c, x, y, first, second, other, NULL);
                    quern_winograd_gather_taps(&c, first, second, taps, NULL);
                    free(taps), free(x), free(y), free(first), free(second), free(bias), free(one), free(other);
                    done++;
                }
    printf("%zu convolutions\n", done);
    return 0;
}
