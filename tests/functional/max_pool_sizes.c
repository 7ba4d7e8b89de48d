/* Both passes over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "max_pool.c"

#include <stdio.h>
#include <stdlib.h>

static void *memory(size_t bytes) {
    void *made = malloc(bytes);
    if (!made) exit(2);
    memset(made, 1, bytes);
    return made;
}

int main(void) {
    static const int64_t SIZES[] = {2, 3, 6, 7}, CHANNELS[] = {1, 8, 19};
    size_t h, w, c, done = 0;
    for (h = 0; h < 4; h++)
        for (w = 0; w < 4; w++)
            for (c = 0; c < 3; c++) {
                pool p = {2, SIZES[h], SIZES[w], CHANNELS[c], 1};
                size_t all = (size_t)(2 * p.height * p.width * p.channels);
                size_t results = (size_t)(2 * (p.height / 2) * (p.width / 2) * p.channels);
                float *x = memory(4 * all), *y = memory(4 * results);
                uint8_t *places = memory(results);
                quern_max_pool_forward(&p, x, y, places, NULL);
                quern_max_pool_backward(&p, y, places, x, NULL);
                free(x), free(y), free(places);
                done++;
            }
    printf("%zu poolings\n", done);
    return 0;
}
