/* Vectors of channels, for the kernels beside this file. */
#ifndef QUERN_VECTORS_H
#define QUERN_VECTORS_H
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "threads.h"

#define INLINE static inline __attribute__((always_inline))

#if defined(__AVX__)
#define WIDE 8
#else
#define WIDE 4
#endif
typedef float vector __attribute__((vector_size(4 * WIDE)));

enum { PARTS = 4 };

INLINE vector load_wide(const float *from) {
    vector n;
    memcpy(&n, from, sizeof n);
    return n;
}

INLINE void store_wide(float *to, vector n) { memcpy(to, &n, sizeof n); }

#if WIDE > 4
#define NARROW 4 /* for what does not fill a vector */
typedef float narrow_vector __attribute__((vector_size(4 * NARROW)));
INLINE narrow_vector load_narrow(const float *from) {
    narrow_vector n;
    memcpy(&n, from, sizeof n);
    return n;
}
INLINE void store_narrow(float *to, narrow_vector n) { memcpy(to, &n, sizeof n); }
#endif

#if defined(__AVX512F__)
#define BROAD 16
typedef float broad_vector __attribute__((vector_size(4 * BROAD)));
INLINE broad_vector load_broad(const float *from) {
    broad_vector n;
    memcpy(&n, from, sizeof n);
    return n;
}
INLINE void store_broad(float *to, broad_vector n) { memcpy(to, &n, sizeof n); }
#endif

/* g where y is positive or not a number, else 0. By bits, as compilers see a branch in anything else. */
#define WHERE_POSITIVE(kind, type, bits)                        \
    INLINE type where_positive_##kind(type y, type g) {         \
        return (type)((bits)g & ~(bits)(y <= (type){0}));       \
    }
typedef int32_t vector_bits __attribute__((vector_size(4 * WIDE)));
WHERE_POSITIVE(wide, vector, vector_bits)
#if defined(NARROW)
typedef int32_t narrow_bits __attribute__((vector_size(4 * NARROW)));
WHERE_POSITIVE(narrow, narrow_vector, narrow_bits)
#endif
#if defined(BROAD)
typedef int32_t broad_bits __attribute__((vector_size(4 * BROAD)));
WHERE_POSITIVE(broad, broad_vector, broad_bits)
#endif

INLINE float where_positive_single(float y, float g) {
    uint32_t bits;
    memcpy(&bits, &g, sizeof bits);
    bits &= y <= 0 ? 0 : UINT32_MAX;
    memcpy(&g, &bits, sizeof bits);
    return g;
}

INLINE float load_single(const float *from) { return *from; }

INLINE void store_single(float *to, float n) { *to = n; }

/* Do `body(kind)` at c for all `units` channels: vectors, the last one overlapping the one before; or one by one. */
#define EACH(units, body)                                      \
    do {                                                       \
        size_t c = 0;                                          \
        if ((units) < WIDE) {                                  \
            for (; c < (units); c++) body(single);             \
        } else {                                               \
            for (; c + WIDE <= (units); c += WIDE) body(wide); \
            if (c < (units)) {                                 \
                c = (units)-WIDE;                              \
                body(wide);                                    \
            }                                                  \
        }                                                      \
    } while (0)

INLINE size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
#endif
