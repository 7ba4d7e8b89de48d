/* The gradients of a convolution with a kernel of one position: of the input, the weight and the bias, in one pass over the
 * gradient of the result.
 *
 * Numbers are `(rows, channels)`: images that are channels-last. The weight is real, `(out, in)`. No global state, no memory
 * of its own. Each number of a result is made by one thread in one order; for the weight it is a sum over pieces of the rows,
 * which do not depend on who made them. */
#include "products.h"

typedef struct {
    int64_t rows, in, out;   /* positions of all images; channels */
    int64_t pieces, threads; /* that the rows are cut into; how many there may be */
} pointwise;

typedef struct {
    const pointwise *p;
    const float *x, *weight, *grad;
    float *grad_x, *sums;
    int64_t next; /* pieces that no thread has taken yet */
} job;

enum { SLICE = 120 }; /* rows at a time, which stay in cache; a multiple of those in registers */

static size_t sums_of_piece(const pointwise *p) { return (size_t)(p->out * p->in + p->out); }

static void take_pieces(void *work) {
    job *j = work;
    const pointwise *p = j->p;
    size_t in = (size_t)p->in, out = (size_t)p->out, rows = (size_t)p->rows, pieces = (size_t)p->pieces, piece, r, c;
    while ((piece = take(&j->next)) < pieces) {
        size_t from = piece * rows / pieces, end = (piece + 1) * rows / pieces, count;
        float *of_weight = j->sums + piece * sums_of_piece(p), *of_bias = of_weight + out * in;
        memset(of_weight, 0, sums_of_piece(p) * sizeof *of_weight);
        for (; from < end; from += count) {
            const float *g = j->grad + from * out;
            product of_x, gram;
            count = smaller(SLICE, end - from);
            of_x = (product){count, in, out, out, 1, in, in, 0};
            gram = (product){out, in, count, 1, out, in, in, 1};
            if (j->grad_x) multiply(&of_x, g, j->weight, j->grad_x + from * in);
            multiply(&gram, g, j->x + from * in, of_weight);
            for (r = 0; r < count; r++)
                for (c = 0; c < out; c++) of_bias[c] += g[r * out + c];
        }
    }
}

/* Numbers of scratch memory for the sums. */
int64_t quern_pointwise_sums(const pointwise *p) { return p->pieces * (int64_t)sums_of_piece(p); }

/* The gradients of the input, or not if that is NULL, and of the weight followed by that of the bias, for the gradient `grad`
 * of the result. */
void quern_pointwise_backward(const pointwise *p, const float *x, const float *weight, const float *grad, float *grad_x,
                              float *grad_both, float *sums, parallel_function parallel) {
    job j = {p, x, weight, grad, grad_x, sums, 0};
    size_t count = sums_of_piece(p), piece, n;
    with_threads(take_pieces, &j, p->threads, parallel);
    memcpy(grad_both, sums, count * sizeof *sums);
    for (piece = 1; piece < (size_t)p->pieces; piece++)
        for (n = 0; n < count; n++) grad_both[n] += sums[piece * count + n];
}
