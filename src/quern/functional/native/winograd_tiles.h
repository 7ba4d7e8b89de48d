/* Transforms of tiles and products of matrices, for one kind of number: a vector of channels, or one channel. Included by
 * winograd.c once for each, with `number` and NAME(). A tile of an image is 6 x 6 positions; its results are 4 x 4. */

/* B^T d: what of six positions the six products take. */
INLINE void NAME(spread_six)(const number *d, size_t step, number *v, size_t v_step) {
    number a = d[0], b = d[step], c = d[2 * step], e = d[3 * step], f = d[4 * step], g = d[5 * step];
    number sum = f - 4 * c, difference = e - 4 * b, twice = 2 * (e - b), rest = f - c;
    v[0] = 4 * a - 5 * c + f;
    v[v_step] = sum + difference;
    v[2 * v_step] = sum - difference;
    v[3 * v_step] = rest + twice;
    v[4 * v_step] = rest - twice;
    v[5 * v_step] = 4 * b - 5 * e + g;
}

/* A^T m: the four positions that six products make. */
INLINE void NAME(gather_four)(const number *m, size_t step, number *y, size_t y_step) {
    number b = m[step], c = m[2 * step], d = m[3 * step], e = m[4 * step];
    number sum = b + c, difference = b - c, outer_sum = d + e, outer_difference = d - e;
    y[0] = m[0] + sum + outer_sum;
    y[y_step] = difference + 2 * outer_difference;
    y[2 * y_step] = sum + 4 * outer_sum;
    y[3 * y_step] = difference + 8 * outer_difference + m[5 * step];
}

/* A g: what the gradients of four positions are to the six products. */
INLINE void NAME(spread_four)(const number *g, size_t step, number *m, size_t m_step) {
    number a = g[0], b = g[step], c = g[2 * step], d = g[3 * step];
    number even = a + c, odd = b + d, outer_even = a + 4 * c, outer_odd = 2 * b + 8 * d;
    m[0] = a;
    m[m_step] = even + odd;
    m[2 * m_step] = even - odd;
    m[3 * m_step] = outer_even + outer_odd;
    m[4 * m_step] = outer_even - outer_odd;
    m[5 * m_step] = d;
}

/* G w: what of three taps the six products take. */
INLINE void NAME(spread_three)(const number *w, size_t step, number *u, size_t u_step) {
    number a = w[0], b = w[step], c = w[2 * step];
    number even = (a + c) * (-1.0f / 6), odd = b * (1.0f / 6), outer_even = a * (1.0f / 24) + c * (1.0f / 6);
    number outer_odd = b * (1.0f / 12);
    u[0] = a * 0.25f;
    u[u_step] = even - odd;
    u[2 * u_step] = even + odd;
    u[3 * u_step] = outer_even + outer_odd;
    u[4 * u_step] = outer_even - outer_odd;
    u[5 * u_step] = c;
}

/* G^T u: what the gradients of six products are to the three taps. */
INLINE void NAME(gather_three)(const number *u, size_t step, number *w, size_t w_step) {
    number b = u[step], c = u[2 * step], d = u[3 * step], e = u[4 * step];
    number inner = (b + c) * (-1.0f / 6), outer = d + e;
    w[0] = u[0] * 0.25f + inner + outer * (1.0f / 24);
    w[w_step] = (c - b) * (1.0f / 6) + (d - e) * (1.0f / 12);
    w[2 * w_step] = inner + outer * (1.0f / 6) + u[5 * step];
}

INLINE void NAME(spread_image)(const number *d, number *v) {
    number t[36];
    size_t n;
    for (n = 0; n < 6; n++) NAME(spread_six)(d + 6 * n, 1, t + 6 * n, 1);
    for (n = 0; n < 6; n++) NAME(spread_six)(t + n, 6, v + n, 6);
}

INLINE void NAME(gather_image)(const number *m, number *y) {
    number t[24];
    size_t n;
    for (n = 0; n < 6; n++) NAME(gather_four)(m + 6 * n, 1, t + 4 * n, 1);
    for (n = 0; n < 4; n++) NAME(gather_four)(t + n, 4, y + n, 4);
}

INLINE void NAME(spread_gradient_image)(const number *g, number *m) {
    number t[24];
    size_t n;
    for (n = 0; n < 4; n++) NAME(spread_four)(g + 4 * n, 1, t + 6 * n, 1);
    for (n = 0; n < 6; n++) NAME(spread_four)(t + n, 6, m + n, 6);
}

/* The `side` x `side` positions of a tile whose first one is (y, x): zero outside of the image. */
INLINE void NAME(load_tile)(const float *image, const place *at, long side, number *d) {
    const size_t step = at->channels, line = (size_t)at->width * step;
    long i, j;
    if (at->y >= 0 && at->x >= 0 && at->y + side <= at->height && at->x + side <= at->width) {
        const float *from = image + (size_t)at->y * line + (size_t)at->x * step;
        for (i = 0; i < side; i++, from += line)
            for (j = 0; j < side; j++) d[side * i + j] = NAME(load)(from + (size_t)j * step);
        return;
    }
    for (i = 0; i < side; i++) {
        for (j = 0; j < side; j++) {
            long y = at->y + i, x = at->x + j;
            int inside = y >= 0 && x >= 0 && y < at->height && x < at->width;
            d[side * i + j] = inside ? NAME(load)(image + (size_t)y * line + (size_t)x * step) : (number){0};
        }
    }
}

INLINE void NAME(store_tile)(float *image, const place *at, const number *d, number bias) {
    const size_t step = at->channels, line = (size_t)at->width * step;
    long high = at->height - at->y < 4 ? at->height - at->y : 4, wide = at->width - at->x < 4 ? at->width - at->x : 4, i, j;
    float *to = image + (size_t)at->y * line + (size_t)at->x * step;
    for (i = 0; i < high; i++, to += line)
        for (j = 0; j < wide; j++) NAME(store)(to + (size_t)j * step, d[4 * i + j] + bias);
}

/* Some channels of a tile of an image to its 36 places, `step` numbers apart. */
INLINE void NAME(spread)(const float *image, const place *at, float *to, size_t step) {
    number d[36], v[36];
    size_t p;
    NAME(load_tile)(image, at, 6, d);
    NAME(spread_image)(d, v);
    for (p = 0; p < 36; p++) NAME(store)(to + p * step, v[p]);
}

INLINE void NAME(spread_gradient)(const float *image, const place *at, float *to, size_t step) {
    number d[16], m[36];
    size_t p;
    NAME(load_tile)(image, at, 4, d);
    NAME(spread_gradient_image)(d, m);
    for (p = 0; p < 36; p++) NAME(store)(to + p * step, m[p]);
}

INLINE void NAME(gather)(const float *from, size_t step, const float *bias, float *image, const place *at) {
    number m[36], d[16];
    size_t p;
    for (p = 0; p < 36; p++) m[p] = NAME(load)(from + p * step);
    NAME(gather_image)(m, d);
    NAME(store_tile)(image, at, d, bias ? NAME(load)(bias) : (number){0});
}

/* H of a quaternion. */
INLINE void NAME(walsh_of)(const number *q, number *h) {
    h[0] = (q[0] + q[1]) + (q[2] + q[3]);
    h[1] = (q[0] - q[1]) + (q[2] - q[3]);
    h[2] = (q[0] + q[1]) - (q[2] + q[3]);
    h[3] = (q[0] - q[1]) - (q[2] - q[3]);
}

/* H applied to the components of quaternions, `step` numbers apart, with signs for them before and after it. */
INLINE void NAME(walsh)(const float *from, size_t step, const int32_t *before, const int32_t *after, float *to) {
    number q[PARTS], h[PARTS];
    size_t n;
    for (n = 0; n < PARTS; n++) q[n] = before[n] < 0 ? -NAME(load)(from + n * step) : NAME(load)(from + n * step);
    NAME(walsh_of)(q, h);
    for (n = 0; n < PARTS; n++) NAME(store)(to + n * step, after[n] < 0 ? -h[n] : h[n]);
}

/* The nine taps of weights, `step` numbers apart like their components, to the weights of both products. */
INLINE void NAME(spread_weight)(const float *from, size_t step, const int32_t *partner, const float *sign, float *first,
                                float *second) {
    number u[PARTS][36], w[9], t[18];
    size_t n, p, q;
    for (q = 0; q < PARTS; q++) {
        for (n = 0; n < 9; n++) w[n] = NAME(load)(from + (PARTS * n + q) * step);
        for (n = 0; n < 3; n++) NAME(spread_three)(w + 3 * n, 1, t + 6 * n, 1);
        for (n = 0; n < 6; n++) NAME(spread_three)(t + n, 6, u[q] + n, 6);
    }
    for (p = 0; p < 36; p++) {
        number parts[PARTS], h[PARTS];
        for (q = 0; q < PARTS; q++) parts[q] = u[q][p];
        NAME(walsh_of)(parts, h);
        for (q = 0; q < PARTS; q++) {
            NAME(store)(first + (PARTS * p + q) * step, h[q] * 0.25f);
            NAME(store)(second + (PARTS * p + q) * step, u[partner[q]][p] * sign[q]);
        }
    }
}

/* The transpose of it: gradients. */
INLINE void NAME(gather_weight)(const float *first, const float *second, size_t step, const int32_t *partner,
                                const float *sign, float *to) {
    number u[PARTS][36], w[9], t[18];
    size_t n, p, q;
    for (p = 0; p < 36; p++) {
        number parts[PARTS], h[PARTS];
        for (q = 0; q < PARTS; q++) parts[q] = NAME(load)(first + (PARTS * p + q) * step) * 0.25f;
        NAME(walsh_of)(parts, h);
        for (q = 0; q < PARTS; q++) u[q][p] = h[q];
        for (q = 0; q < PARTS; q++) u[partner[q]][p] += NAME(load)(second + (PARTS * p + q) * step) * sign[q];
    }
    for (q = 0; q < PARTS; q++) {
        for (n = 0; n < 6; n++) NAME(gather_three)(u[q] + 6 * n, 1, t + 3 * n, 1);
        for (n = 0; n < 3; n++) NAME(gather_three)(t + n, 3, w + n, 3);
        for (n = 0; n < 9; n++) NAME(store)(to + (PARTS * n + q) * step, w[n]);
    }
}
