/* Products of quaternions, for one kind of number. Included once for each, with `number` and NAME(). */

/* sums + a b, of quaternions. */
INLINE void NAME(add_product)(number *sums, const number *a, const number *b) {
    sums[0] += a[0] * b[0], sums[1] += a[0] * b[1], sums[2] += a[0] * b[2], sums[3] += a[0] * b[3];
    sums[0] -= a[1] * b[1], sums[1] += a[1] * b[0], sums[2] -= a[1] * b[3], sums[3] += a[1] * b[2];
    sums[0] -= a[2] * b[2], sums[1] += a[2] * b[3], sums[2] += a[2] * b[0], sums[3] -= a[2] * b[1];
    sums[0] -= a[3] * b[3], sums[1] -= a[3] * b[2], sums[2] += a[3] * b[1], sums[3] += a[3] * b[0];
}

INLINE void NAME(load_quaternion)(const float *from, size_t units, number *q) {
    size_t p;
    for (p = 0; p < PARTS; p++) q[p] = NAME(load)(from + p * units);
}
