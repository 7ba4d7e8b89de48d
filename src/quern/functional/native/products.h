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
#define number broad_vector
#define NAME(name) name##_broad
#include "product_blocks.h"
#undef number
#undef NAME
#else
#define ROWS 6
#endif


#define number vector
#define NAME(name) name##_wide
#include "product_blocks.h"
#undef number
#undef NAME

#if defined(NARROW)
#define number narrow_vector
#define NAME(name) name##_narrow
#include "product_blocks.h"
#undef number
#undef NAME
#endif

#define number float
#define NAME(name) name##_single
#include "product_blocks.h"
#undef number
#undef NAME

static void multiply(const product *p, const float *a, const float *b, float *c) {
    size_t j = 0;
#if defined(BROAD)
    for (; j + 2 * BROAD <= p->columns; j += 2 * BROAD) rows_broad(p, a, b + j, c + j, 2);
    for (; j + BROAD <= p->columns; j += BROAD) rows_broad(p, a, b + j, c + j, 1);
#endif
    for (; j + 2 * WIDE <= p->columns; j += 2 * WIDE) rows_wide(p, a, b + j, c + j, 2);
    for (; j + WIDE <= p->columns; j += WIDE) rows_wide(p, a, b + j, c + j, 1);
#if defined(NARROW)
    for (; j + NARROW <= p->columns; j += NARROW) rows_narrow(p, a, b + j, c + j, 1);
#endif
    for (; j < p->columns; j++) rows_single(p, a, b + j, c + j, 1);
}
#endif
