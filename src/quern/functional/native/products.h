/* Products of matrices, for the kernels beside this file. */
#ifndef QUERN_PRODUCTS_H
#define QUERN_PRODUCTS_H
#include "vectors.h"

/* C (rows, columns) = A (rows, inner) B (inner, columns), added to C if `add`. */
typedef struct {
    size_t rows, columns, inner, a_row, a_column, b_row, c_row;
    int add;
} product;

/* Rows of a product that fit into the registers with their two vectors of columns. Where there are registers of 16
 * numbers, there are 32 of them. */
#if defined(BROAD)
#define ROWS 12
#else
#define ROWS 6
#endif
#define LOOPS "product_blocks.h"
#include "each_width.h"

/* All columns in vectors, two at a time: of an odd number the first one by itself, of the last two the second overlapping
 * the first where they do not fill both. */
#define IN_PAIRS(kind, lanes)                                                                   \
    do {                                                                                        \
        size_t vectors = (p->columns + (lanes)-1) / (lanes), j = vectors % 2 * (lanes);         \
        if (j) rows_##kind(p, a, b, c, 1, 0);                                                   \
        for (; j < p->columns; j += 2 * (lanes))                                                \
            rows_##kind(p, a, b + j, c + j, 2, smaller((lanes), p->columns - j - (lanes)));     \
    } while (0)

static void multiply(const product *p, const float *a, const float *b, float *c) {
    size_t j = 0;
#if defined(BROAD)
    if (p->columns >= BROAD) {
        IN_PAIRS(broad, BROAD);
        return;
    }
#endif
    if (p->columns >= WIDE) {
        IN_PAIRS(wide, WIDE);
        return;
    }
#if defined(NARROW)
    for (; j + NARROW <= p->columns; j += NARROW) rows_narrow(p, a, b + j, c + j, 1, 0);
#endif
    for (; j < p->columns; j++) rows_single(p, a, b + j, c + j, 1, 0);
}
#endif
