/* Products of matrices, for one kind of number: a vector of columns, or one column. Included once for each,
 * with `number` and NAME(). */

/* C = A B, or C + A B, for so many rows and one or two vectors of columns, `apart` from each other. */
INLINE void NAME(block)(const product *p, const float *a, const float *b, float *c, size_t rows, size_t vectors,
                        size_t apart) {
    number sums[ROWS][2];
    size_t k, r, v;
    for (r = 0; r < rows; r++)
        for (v = 0; v < vectors; v++) sums[r][v] = p->add ? NAME(load)(c + r * p->c_row + v * apart) : (number){0};
    for (k = 0; k < p->inner; k++) {
        number loaded[2];
        for (v = 0; v < vectors; v++) loaded[v] = NAME(load)(b + k * p->b_row + v * apart);
        for (r = 0; r < rows; r++)
            for (v = 0; v < vectors; v++) sums[r][v] += a[r * p->a_row + k * p->a_column] * loaded[v];
    }
    for (r = 0; r < rows; r++)
        for (v = 0; v < vectors; v++) NAME(store)(c + r * p->c_row + v * apart, sums[r][v]);
}

/* All rows of some columns. */
INLINE void NAME(rows)(const product *p, const float *a, const float *b, float *c, size_t vectors, size_t apart) {
    size_t r = 0;
    for (; r + ROWS <= p->rows; r += ROWS) NAME(block)(p, a + r * p->a_row, b, c + r * p->c_row, ROWS, vectors, apart);
    for (; r + 4 <= p->rows; r += 4) NAME(block)(p, a + r * p->a_row, b, c + r * p->c_row, 4, vectors, apart);
    for (; r < p->rows; r++) NAME(block)(p, a + r * p->a_row, b, c + r * p->c_row, 1, vectors, apart);
}
