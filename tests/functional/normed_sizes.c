/* Both passes over many sizes, in memory that is no larger than it has to be: for the sanitizers. */
#include "normed.c"

#include <stdio.h>
#include <stdlib.h>

static float *numbers(size_t count) {
    float *made = malloc(4 * count);
    size_t n;
    if (!made) exit(2);
    for (n = 0; n < count; n++) made[n] = (float)(n % 7);
    return made;
}

static norm a_norm(float **memory, size_t channels, int64_t relu) {
    norm n = {0};
    size_t k;
    for (k = 0; k < 6; k++) memory[k] = numbers(k == 1 || k == 2 || k == 4 ? channels / PARTS : channels);
    n.eps = 1e-5, n.relu = relu;
    n.mean = memory[0], n.var = memory[1], n.weight = memory[2], n.bias = memory[3], n.along = memory[4], n.total = memory[5];
    return n;
}

int main(void) {
    static const int64_t UNITS[] = {1, 2, 7, 9, 16}, SIDES[] = {1, 2, 7, 40}, STRIDES[] = {1, 2, 3}, PADDINGS[] = {0, 1, 2};
    size_t u, s, t, p, k, done = 0;
    int64_t kind;
    for (kind = POINTWISE; kind <= QUATERNION; kind++)
        for (u = 0; u < 5; u++)
            for (s = 0; s < 4; s++)
                for (t = 0; t < (kind == POINTWISE ? 1 : 3); t++)
                    for (p = 0; p < (kind == POINTWISE ? 1 : 3); p++) {
                        normed n = {0};
                        float *before[6], *after[6];
                        int64_t side = SIDES[s], target = kind == POINTWISE ? side : (side + 2 * PADDINGS[p] - 3) / STRIDES[t] + 1;
                        size_t numbers_in, numbers_out, weights, scratch;
                        float *x, *z, *grad, *grad_x, *weight, *of_weight, *bias, *both;
                        if (side + 2 * PADDINGS[p] < 3 && kind != POINTWISE) continue;
                        n.images = 2, n.in = 4 * UNITS[u], n.out = kind == POINTWISE ? 4 * UNITS[4 - u] : n.in;
                        n.source[0] = n.source[1] = side, n.target[0] = n.target[1] = target;
                        n.stride[0] = n.stride[1] = STRIDES[t], n.padding[0] = n.padding[1] = PADDINGS[p];
                        n.kind = kind, n.pieces = done % 3 + 1, n.threads = 1;
                        if (kind == POINTWISE) n.padding[0] = n.padding[1] = 0;
                        numbers_in = (size_t)(n.images * side * side * n.in);
                        numbers_out = (size_t)(n.images * target * target * n.out);
                        weights = (size_t)(kind == POINTWISE ? n.in * n.out : 9 * n.in);
                        n.after = a_norm(after, (size_t)n.out, done % 2);
                        n.before = a_norm(before, (size_t)n.in, done / 2 % 2);
                        if (done % 5 == 0) n.before.mean = NULL;
                        x = numbers(numbers_in), grad_x = numbers(numbers_in), z = numbers(numbers_out);
                        grad = numbers(numbers_out), weight = numbers(weights), of_weight = numbers(weights);
                        bias = numbers((size_t)n.out);
                        for (k = 0; k < 2; k++) {
                            scratch = (size_t)quern_normed_scratch(&n, (int32_t)k);
                            both = numbers(scratch);
                            if (k) quern_normed_backward(&n, x, z, grad, weight, grad_x, of_weight, both, NULL);
                            else quern_normed_forward(&n, x, weight, done % 3 ? bias : NULL, z, after[0], after[1], both, NULL);
                            free(both);
                        }
                        free(x), free(grad_x), free(z), free(grad), free(weight), free(of_weight), free(bias);
                        for (k = 0; k < 6; k++) free(before[k]), free(after[k]);
                        done++;
                    }
    printf("%zu convolutions\n", done);
    return 0;
}
