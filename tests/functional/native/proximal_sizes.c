/* Both passes over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "proximal.c"

#include <stdio.h>
#include <stdlib.h>

static float *numbers(size_t count) {
    float *made = malloc(4 * count);
    size_t n;
    if (!made) exit(2);
    for (n = 0; n < count; n++) made[n] = (float)(n % 7) + 1;
    return made;
}

int main(void) {
    static const int64_t COUNTS[] = {1, 7, BLOCK - 1, BLOCK + 1, CHUNK, CHUNK + 3}, ROWS[] = {1, 4};
    size_t c, r, with, done = 0;
    for (c = 0; c < 6; c++)
        for (r = 0; r < 2; r++)
            for (with = 0; with < 2; with++) {
                size_t count = (size_t)COUNTS[c], all = count * (size_t)ROWS[r];
                float *w = numbers(all), *m = numbers(all), *g = numbers(all), *v = numbers(count), *metric = numbers(count);
                float *beside = with ? numbers(4 * count) : NULL;
                moved one = {w, m, v, metric, g, beside, COUNTS[c], ROWS[r], with ? 4 : 0, 1, 0.9f, 0.1f, 0.9f, 0.1f, 1, 1, 1};
                shrunk two[2] = {{w, beside, with ? metric : NULL, COUNTS[c], ROWS[r], with ? 4 : 0, 1, 1, 1},
                                 {m, NULL, NULL, COUNTS[c], ROWS[r], 0, 0, 1, 0}};
                quern_move(&one, 1, 1, NULL);
                quern_shrink(two, 2, 1, NULL);
                free(w), free(m), free(g), free(v), free(metric), free(beside);
                done++;
            }
    printf("%zu parameters\n", done);
    return 0;
}
