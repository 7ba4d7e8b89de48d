/* The runtime of packed networks; quern_rt.h says what it is for and what is in a blob. From top to bottom: numbers and
 * vectors, activations, weights, convolutions, the other operations, checking, running. */
#include "quern_rt.h"

#include <math.h>
#include <string.h>

/* ---------------------------------------------------------------------------------------------- vectors and numbers */

/* Vectors of the compiler's own. A loop over pixels takes LANES of them at once; where there are no vector units it is a
 * plain loop, because a vector of four would be taken apart and spilled. Tests give LANES, to try that loop everywhere. */
#if defined(LANES)
#elif defined(__AVX__)
#define LANES 8
#elif defined(__SSE2__) || defined(__ARM_NEON) || defined(__wasm_simd128__)
#define LANES 4
#else
#define LANES 1
#endif

#if defined(__AVX2__) || defined(__SSE2__)
#include <immintrin.h>
#elif defined(__wasm_simd128__)
#include <wasm_simd128.h>
#elif defined(__ARM_FEATURE_DSP) && LANES == 1
#include <arm_acle.h>
#endif

/* The inner loops in which most of the time is spent take the registers of AVX-512 whole: two vectors at once. */
#if LANES == 8 && defined(__AVX512VL__) && defined(__AVX512BW__)
#define AT_ONCE 2
#else
#define AT_ONCE 1
#endif

/* How many outputs' weights are laid out at once. How many sums an inner loop can keep: of quaternions at so many vectors of
 * positions, of so many outputs. */
#if LANES == 8
#define BLOCK 8
#else
#define BLOCK 4
#endif
enum { BLOCK_I8 = 4, QUATERNION_VECTORS = 2, BLOCK_VECTORS = 3 * AT_ONCE, OUTPUTS_AT_ONCE = 4 * AT_ONCE };

/* Whether two rows of results are made at once: with AVX2. With fewer registers of half the size it does not pay, and with
 * AVX-512 what is to be multiplied is too little for them. */
#if LANES == 8 && AT_ONCE == 1
#define IN_TWOS 1
#else
#define IN_TWOS 0
#endif

/* Whether quaternions of int8 are multiplied as four bytes at once, the input as bytes without sign. Weights are from -127
 * to 127, so that they can be negated. */
#if defined(__AVX512VNNI__) && AT_ONCE == 2
#define IN_BYTES 1
#else
#define IN_BYTES 0
#endif

/* Whether the eight products of a quaternion are the lanes of a vector. */
#if LANES == 8
#define IN_EIGHTS 1
#else
#define IN_EIGHTS 0
#endif

/* A device needs no more than its networks have. A bit for each operation of this build, 1 << QRN_OP_CONV and so on, and
 * for each activation. */
#if !defined(QRN_BUILD_OPS)
#define QRN_BUILD_OPS 0xffffffffu
#endif
#if !defined(QRN_BUILD_ACTIVATIONS)
#define QRN_BUILD_ACTIVATIONS 0xffffffffu
#endif
#define HAS(op) (QRN_BUILD_OPS >> (op) & 1u)
#define HAS_ACTIVATION(kind) ((kind) < QRN_ACTIVATIONS && (QRN_BUILD_ACTIVATIONS >> (kind) & 1u))
/* Whether products are of int8; the compiler knows it where the other ones are left out. */
#define OF_I8(pairs) (HAS(QRN_PRODUCTS_I8) && (!HAS(QRN_PRODUCTS_F32) || (pairs)))

#define INLINE static inline __attribute__((always_inline))
/* Inner loops are functions of their own: inside of a larger one compilers run out of registers for the sums. */
#define KERNEL static __attribute__((noinline))
#define COLD __attribute__((cold)) /* small rather than fast */

#if LANES > 1
typedef float vf __attribute__((vector_size(4 * LANES)));
typedef int32_t vi __attribute__((vector_size(4 * LANES)));
#else
typedef float vf;
typedef int32_t vi;
#endif
typedef float v4 __attribute__((vector_size(16))); /* one quaternion */
#if LANES > 1
typedef int8_t bytes_of_lanes __attribute__((vector_size(LANES)));     /* a byte for each lane */
typedef int8_t bytes_of_pairs __attribute__((vector_size(2 * LANES))); /* two */
typedef int16_t pairs_of_lanes __attribute__((vector_size(4 * LANES)));
typedef float wide_f __attribute__((vector_size(4 * LANES * AT_ONCE)));
typedef int32_t wide_i __attribute__((vector_size(4 * LANES * AT_ONCE)));
#endif

INLINE vf load(const float *p) {
    vf v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store(float *p, vf v) { memcpy(p, &v, sizeof v); }
INLINE vi load_i(const int32_t *p) {
    vi v;
    memcpy(&v, p, sizeof v);
    return v;
}
INLINE void store_i(int32_t *p, vi v) { memcpy(p, &v, sizeof v); }
INLINE v4 load4(const float *p) {
    v4 v;
    memcpy(&v, p, sizeof v);
    return v;
}
/* Of two vectors one after the other: numbers of both in another order. */
#if defined(__clang__)
#define SHUFFLE(type, a, b, ...) __builtin_shufflevector(a, b, __VA_ARGS__)
#else
typedef int32_t vi4 __attribute__((vector_size(16)));
#define SHUFFLE(type, a, b, ...) __builtin_shuffle(a, b, (type){__VA_ARGS__})
#endif
#if LANES == 8
#define EVEN(a, b) SHUFFLE(vi, a, b, 0, 2, 4, 6, 8, 10, 12, 14)
#define ODD(a, b) SHUFFLE(vi, a, b, 1, 3, 5, 7, 9, 11, 13, 15)
#define SPREAD(q, n) SHUFFLE(vi, q, q, n, n, n, n, 4 + n, 4 + n, 4 + n, 4 + n) /* number n of each quaternion, four times */
#elif LANES == 4
#define EVEN(a, b) SHUFFLE(vi, a, b, 0, 2, 4, 6)
#define ODD(a, b) SHUFFLE(vi, a, b, 1, 3, 5, 7)
#define SPREAD(q, n) SHUFFLE(vi, q, q, n, n, n, n)
#endif

#if LANES > 1
/* The larger numbers; b where one is no number. */
INLINE vf maximum(vf a, vf b) {
#if LANES == 8
    return (vf)_mm256_max_ps((__m256)a, (__m256)b);
#elif defined(__SSE2__) && LANES == 4
    return (vf)_mm_max_ps((__m128)a, (__m128)b);
#else
    vi first = a > b;
    return (vf)((first & (vi)a) | (~first & (vi)b));
#endif
}

/* The larger ones of each two numbers side by side. */
INLINE vf larger_of_pairs(vf a, vf b) {
#if LANES == 8 && AT_ONCE == 1 /* one after the other within halves first: three instructions, not four */
    vf larger = maximum(SHUFFLE(vi, a, b, 0, 2, 8, 10, 4, 6, 12, 14), SHUFFLE(vi, a, b, 1, 3, 9, 11, 5, 7, 13, 15));
    return SHUFFLE(vi, larger, larger, 0, 1, 4, 5, 2, 3, 6, 7);
#else
    return maximum(EVEN(a, b), ODD(a, b));
#endif
}
INLINE vi larger_i(vi a, vi b) {
#if defined(__AVX2__) && LANES == 8
    return (vi)_mm256_max_epi32((__m256i)a, (__m256i)b);
#else
    vi first = a > b;
    return (first & a) | (~first & b);
#endif
}
#endif

INLINE vf splat(float x) { return x - (vf){0}; }
INLINE vi splat_i(int32_t x) { return x - (vi){0}; }

#if !IN_BYTES
/* In every lane: the sum of the products of the two int16 of `a` and `b`. It is what processors have an instruction for. */
INLINE vi dot_pairs(vi a, vi b) {
#if defined(__AVX2__) && LANES == 8
    return (vi)_mm256_madd_epi16((__m256i)a, (__m256i)b);
#elif defined(__SSE2__) && LANES == 4
    return (vi)_mm_madd_epi16((__m128i)a, (__m128i)b);
#elif defined(__wasm_simd128__) && LANES == 4
    return (vi)wasm_i32x4_dot_i16x8((v128_t)a, (v128_t)b);
#elif defined(__ARM_FEATURE_DSP) && LANES == 1
    return __smuad(a, b);
#elif LANES == 1
    return (int16_t)(a & 0xffff) * (int16_t)(b & 0xffff) + (a >> 16) * (b >> 16);
#else
    typedef uint32_t vu __attribute__((vector_size(4 * LANES)));
    return ((vi)((vu)a << 16) >> 16) * ((vi)((vu)b << 16) >> 16) + (a >> 16) * (b >> 16);
#endif
}
#endif

/* `sum` and, in every lane, the sum of the products of the two int16 of `a` and `b`. */
INLINE vi add_pairs(vi sum, vi a, vi b) {
#if IN_BYTES
    return (vi)_mm256_dpwssd_epi32((__m256i)sum, (__m256i)a, (__m256i)b);
#elif defined(__ARM_FEATURE_DSP) && LANES == 1
    return __smlad(a, b, sum);
#else
    return sum + dot_pairs(a, b);
#endif
}

#if LANES > 1
/* As many vectors as an inner loop takes at once. */
INLINE wide_f load_wide(const float *p, const size_t *start) {
#if AT_ONCE == 2
    __m512d first = _mm512_castpd256_pd512((__m256d)load(p + start[0]));
    return (wide_f)_mm512_insertf64x4(first, (__m256d)load(p + start[1]), 1);
#else
    return load(p + start[0]);
#endif
}
#if LANES == 8
INLINE wide_f load_row(const float *p) {
    wide_f v;
    memcpy(&v, p, sizeof v);
    return v;
}
#endif
INLINE wide_f maximum_wide(wide_f a, wide_f b) { /* b where one is no number */
#if AT_ONCE == 2
    return (wide_f)_mm512_max_ps((__m512)a, (__m512)b);
#else
    return maximum(a, b);
#endif
}
INLINE void store_wide(float *p, wide_f v) { memcpy(p, &v, sizeof v); }
INLINE wide_i load_wide_i(const int32_t *p, const size_t *start) { return (wide_i)load_wide((const float *)(const void *)p, start); }
INLINE void store_wide_i(int32_t *p, wide_i v) { memcpy(p, &v, sizeof v); }
INLINE wide_f splat_wide(float x) { return x - (wide_f){0}; }
INLINE wide_i splat_wide_i(int32_t x) { return x - (wide_i){0}; }
INLINE wide_i add_wide_pairs(wide_i sum, wide_i a, wide_i b) {
#if IN_BYTES
    return (wide_i)_mm512_dpwssd_epi32((__m512i)sum, (__m512i)a, (__m512i)b);
#elif AT_ONCE == 2
    return sum + (wide_i)_mm512_madd_epi16((__m512i)a, (__m512i)b);
#else
    return add_pairs(sum, a, b);
#endif
}

INLINE vi widened(const int8_t *p) { /* bytes to lanes; compilers take eight bytes apart if they are not told */
#if LANES == 8
    return (vi)_mm256_cvtepi8_epi32(_mm_loadl_epi64((const __m128i *)(const void *)p));
#elif defined(__SSE2__)
    int32_t four;
    __m128i bytes;
    memcpy(&four, p, sizeof four);
    bytes = _mm_cvtsi32_si128(four);
    bytes = _mm_unpacklo_epi8(bytes, bytes);
    return (vi)_mm_srai_epi32(_mm_unpacklo_epi16(bytes, bytes), 24);
#else
    bytes_of_lanes bytes;
    memcpy(&bytes, p, sizeof bytes);
    return __builtin_convertvector(bytes, vi);
#endif
}
#if LANES == 8
INLINE void put_bytes(vi x, int8_t *to) { /* numbers from -128 to 127 */
    __m128i half = _mm_packs_epi32(_mm256_castsi256_si128((__m256i)x), _mm256_extracti128_si256((__m256i)x, 1));
    _mm_storel_epi64((__m128i *)(void *)to, _mm_packs_epi16(half, half));
}
#endif
INLINE vi widened_pairs(const int8_t *p) { /* bytes to int16 */
    bytes_of_pairs bytes;
    memcpy(&bytes, p, sizeof bytes);
    return (vi)__builtin_convertvector(bytes, pairs_of_lanes);
}
#endif

#if LANES == 8
typedef int16_t shorts __attribute__((vector_size(16)));

INLINE shorts widened_shorts(const int8_t *p, int16_t zero) {
    return (shorts)_mm_cvtepi8_epi16(_mm_loadl_epi64((const __m128i *)(const void *)p)) - zero;
}

/* Number n of each of eight vectors to vector n. */
INLINE void turn_shorts(shorts *a, shorts *b) {
#define TURN(from, to, one, other)                                                      \
    do {                                                                                \
        to[0] = one(from[0], from[4]), to[1] = other(from[0], from[4]);                 \
        to[2] = one(from[1], from[5]), to[3] = other(from[1], from[5]);                 \
        to[4] = one(from[2], from[6]), to[5] = other(from[2], from[6]);                 \
        to[6] = one(from[3], from[7]), to[7] = other(from[3], from[7]);                 \
    } while (0)
#define FRONT(x, y) SHUFFLE(shorts, x, y, 0, 8, 1, 9, 2, 10, 3, 11)
#define BACK(x, y) SHUFFLE(shorts, x, y, 4, 12, 5, 13, 6, 14, 7, 15)
    TURN(a, b, FRONT, BACK);
    TURN(b, a, FRONT, BACK);
    TURN(a, b, FRONT, BACK);
#undef BACK
#undef FRONT
#undef TURN
}

#endif

INLINE int32_t pair(int32_t low, int32_t high) {
    return (int32_t)(((uint32_t)low & 0xffffu) | ((uint32_t)high << 16));
}

INLINE float as_float(uint32_t bits) {
    float x;
    memcpy(&x, &bits, sizeof x);
    return x;
}

static float half_to_float(uint16_t half) {
    uint32_t sign = (uint32_t)(half & 0x8000u) << 16, rest = (uint32_t)(half & 0x7fffu) << 13;
    if (rest >= 0x0f800000u) { /* infinite, or no number */
        return as_float(sign | 0x7f800000u | (rest & 0x007fffffu));
    }
    /* The exponent is off by 112, which a product mends, subnormal numbers included. */
    return as_float(sign | 0x3f800000u) * (as_float(rest) * as_float(0x77800000u));
}

INLINE size_t smaller(size_t a, size_t b) { return a < b ? a : b; }
INLINE size_t larger(size_t a, size_t b) { return a > b ? a : b; }

/* -------------------------------------------------------------------------------------------------------- activations */

static float exp_(float x) {
    float n, r, p;
    if (x != x) return x;
    if (x > 88.72f) return as_float(0x7f800000u);
    if (x < -103.9f) return 0.0f;
    n = (float)(int32_t)(x * 1.44269504f + (x < 0 ? -0.5f : 0.5f));
    r = (x - n * 0.693359375f) + n * 2.12194440e-4f; /* the logarithm of 2 in two parts */
    p = 1.9875691500e-4f;
    p = p * r + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    p = p * r * r + r + 1.0f;
    if (n > 127.0f) return p * as_float(0x7f000000u) * 2.0f;
    if (n < -126.0f) return p * as_float((uint32_t)(n + 253.0f) << 23) * as_float(0x00800000u);
    return p * as_float((uint32_t)(n + 127.0f) << 23);
}

/* log(1 + x) for x from 0 to 1, by the series of the inverse hyperbolic tangent. */
static float log1p_(float x) {
    float s = x / (2.0f + x), q = s * s;
    return 2.0f * s *
           (1.0f + q * (1.0f / 3 + q * (1.0f / 5 + q * (1.0f / 7 + q * (1.0f / 9 + q * (1.0f / 11 + q / 13))))));
}

static float log_(float x) {
    uint32_t bits;
    int32_t exponent = 0;
    float fraction;
    if (!(x > 0)) return x == 0 ? -as_float(0x7f800000u) : as_float(0x7fc00000u);
    if (x > 3.4e38f) return x;
    if (x < 1.17549435e-38f) {
        x *= 16777216.0f;
        exponent = -24;
    }
    memcpy(&bits, &x, sizeof bits);
    exponent += (int32_t)(bits >> 23) - 127;
    fraction = as_float((bits & 0x007fffffu) | 0x3f800000u); /* 1 to 2 */
    return log1p_(fraction - 1.0f) + (float)exponent * 0.693147181f;
}

static float softplus(float x) { return (x > 0 ? x : 0.0f) + log1p_(exp_(x > 0 ? -x : x)); }

static float sigmoid(float x) {
    float e = exp_(x > 0 ? -x : x);
    return x > 0 ? 1.0f / (1.0f + e) : e / (1.0f + e);
}

static float tanh_(float x) {
    float q = x * x, e;
    if (q < 0.04f) return x * (1.0f + q * (-1.0f / 3 + q * (2.0f / 15 + q * (-17.0f / 315 + q * (62.0f / 2835)))));
    e = exp_(x > 0 ? -2.0f * x : 2.0f * x);
    return x > 0 ? (1.0f - e) / (1.0f + e) : (e - 1.0f) / (1.0f + e);
}

/* The error function, off by 1.5e-7 at most (Abramowitz and Stegun, 7.1.26). */
static float erf_(float x) {
    float z = x < 0 ? -x : x, t = 1.0f / (1.0f + 0.3275911f * z);
    float p = t * (0.254829592f + t * (-0.284496736f + t * (1.421413741f + t * (-1.453152027f + t * 1.061405429f))));
    float y = 1.0f - p * exp_(-z * z);
    return x < 0 ? -y : y;
}

static float clamp(float x, float low, float high) { return x < low ? low : x > high ? high : x; }

static float activate(uint32_t kind, float x, float a, float b) {
#define CASE(name, expression)                             \
    case QRN_##name:                                       \
        if (HAS_ACTIVATION(QRN_##name)) return expression; \
        break
    switch (kind) {
        CASE(LEAKY_RELU, x < 0 ? a * x : x);
        CASE(CLAMP, clamp(x, a, b));
        CASE(TANH, tanh_(x));
        CASE(SIGMOID, sigmoid(x));
        CASE(SILU, x * sigmoid(x));
        CASE(ELU, x > 0 ? x : a * (exp_(x) - 1.0f));
        CASE(CELU, x > 0 ? x : a * (exp_(x / a) - 1.0f));
        CASE(SELU, 1.05070099f * (x > 0 ? x : 1.67326324f * (exp_(x) - 1.0f)));
        CASE(GELU, 0.5f * x * (1.0f + erf_(x * 0.707106781f)));
        CASE(GELU_TANH, 0.5f * x * (1.0f + tanh_(0.797884561f * (x + 0.044715f * x * x * x))));
        CASE(SOFTPLUS, a * x > b ? x : softplus(a * x) / a);
        CASE(MISH, x * tanh_(softplus(x)));
        CASE(HARDSWISH, x * clamp(x + 3.0f, 0.0f, 6.0f) / 6.0f);
        CASE(HARDSIGMOID, clamp(x + 3.0f, 0.0f, 6.0f) / 6.0f);
        CASE(SOFTSIGN, x / (1.0f + (x < 0 ? -x : x)));
        CASE(TANHSHRINK, x - tanh_(x));
        CASE(LOGSIGMOID, -softplus(-x));
        CASE(EXP, exp_(x));
        CASE(SQRT, sqrtf(x));
        CASE(RSQRT, 1.0f / sqrtf(x));
        CASE(INVERSE, x == 0 ? 0.0f : 1.0f / x);
        CASE(AFFINE, a * x + b);
        CASE(LOG, log_(x));
    }
#undef CASE
    return x;
}

static void unary(uint32_t kind, const float *x, float *y, size_t count, float a, float b) {
    size_t n;
    if (kind == QRN_RELU) { /* a loop of its own, which compilers turn into vectors */
        for (n = 0; n < count; n++) y[n] = x[n] < 0 ? 0.0f : x[n];
    } else if (kind != QRN_IDENTITY || x != y) {
        for (n = 0; n < count; n++) y[n] = activate(kind, x[n], a, b);
    }
}

/* ------------------------------------------------------------------------------------------------------------- blobs */

typedef struct {
    const uint8_t *blob;
    uint8_t *arena;
    uint8_t *scratch; /* what is left of the arena behind the tensors */
    size_t scratch_bytes;
} machine;

INLINE const void *at(const machine *m, uint32_t address) {
    return address & QRN_IN_BLOB ? m->blob + (address - QRN_IN_BLOB) : m->arena + address;
}
INLINE void *out_at(const machine *m, uint32_t address) { return m->arena + address; }

INLINE int is_none(uint32_t address) { return address == (uint32_t)QRN_NONE; }

/* A part of the scratch memory: rounded up, so that the next part is aligned to what an inner loop loads. */
INLINE size_t rounded(size_t bytes, size_t lanes) {
    size_t unit = 4 * (lanes == LANES ? LANES * AT_ONCE : lanes);
    return (bytes + unit - 1) & ~(unit - 1);
}
KERNEL size_t reserve(size_t *used, size_t lanes, size_t bytes) {
    size_t here = *used;
    *used += rounded(bytes, lanes);
    return here;
}

/* ----------------------------------------------------------------------------------------------------------- weights */

typedef struct {
    size_t components, outputs, taps;
    uint32_t dtype;
    int pairs;    /* an int8 product: units are made of int16 */
    size_t width; /* numbers in a unit as it is stored */
    const void *values;
    const uint32_t *starts, *gap_starts; /* NULL if dense */
    const uint8_t *gaps;
    const void *bias;
    const float *scales;
} weights;

/* Numbers in a unit as it is stored; `alone` says that no pair of real numbers has a second one. */
INLINE size_t width_of(size_t components, int pairs, int alone) { return components == 4 ? 4 : pairs && !alone ? 2 : 1; }

static weights weights_of(const uint8_t *blob, const uint32_t *words, int pairs, int alone) {
    weights w;
#define ADDRESS(word) (is_none(words[word]) ? NULL : (const void *)(blob + (words[word] - QRN_IN_BLOB)))
    w.components = words[QRN_W_COMPONENTS];
    w.outputs = words[QRN_W_OUTPUTS];
    w.taps = words[QRN_W_TAPS];
    w.dtype = words[QRN_W_DTYPE];
    w.pairs = pairs;
    w.width = width_of(w.components, pairs, alone);
    w.values = ADDRESS(QRN_W_VALUES);
    w.starts = (const uint32_t *)ADDRESS(QRN_W_STARTS);
    w.gaps = (const uint8_t *)ADDRESS(QRN_W_GAPS);
    w.gap_starts = (const uint32_t *)ADDRESS(QRN_W_GAP_STARTS);
    w.bias = ADDRESS(QRN_W_BIAS);
    w.scales = (const float *)ADDRESS(QRN_W_SCALES);
#undef ADDRESS
    return w;
}

/* Numbers in a unit as a product takes it. */
INLINE size_t working_width(const weights *w, size_t lanes) {
    return !w->pairs ? w->components : w->components == 1 ? 1 : lanes == 1 || IN_BYTES ? 4 : 8;
}

INLINE size_t first_unit(const weights *w, size_t o) { return w->starts ? w->starts[o] : o * w->taps; }
INLINE size_t unit_count(const weights *w, size_t o) { return first_unit(w, o + 1) - first_unit(w, o); }

/* Bytes of scratch for the units of one output. */
INLINE size_t working_bytes(const weights *w, size_t lanes) {
    return w->dtype == QRN_F32 ? 0 : 4 * w->taps * working_width(w, lanes);
}

/* The units of output `o` as the product takes them: where they lie, if they are floats, else written to `scratch`. */
static const float *floats_of(const weights *w, size_t o, float *scratch) {
    size_t first = first_unit(w, o) * w->width, count = unit_count(w, o) * w->width, n;
    if (w->dtype == QRN_F32) return (const float *)w->values + first;
    if (w->dtype == QRN_F16) {
        const uint16_t *halves = (const uint16_t *)w->values + first;
        for (n = 0; n < count; n++) scratch[n] = half_to_float(halves[n]);
    } else {
        const int8_t *bytes = (const int8_t *)w->values + first;
        for (n = 0; n < count; n++) scratch[n] = (float)bytes[n] * w->scales[o];
    }
    return scratch;
}

/* The pairs of an int8 product. For each component of a quaternion result there is one for (r, i) of the input and one for
 * (j, k): w (x) x is the left product. Without vectors it is four words, as quaternion_sums_i8 takes them; in bytes one for
 * each component. */
static void quaternion_pairs(const int8_t *q, int32_t *p) {
#if IN_BYTES
    __m128i order = _mm_setr_epi8(0, 1, 2, 3, 1, 0, 3, 2, 2, 3, 0, 1, 3, 2, 1, 0);
    __m128i signs = _mm_setr_epi8(1, -1, -1, -1, 1, 1, -1, 1, 1, 1, 1, -1, 1, -1, 1, 1);
    int32_t four;
    memcpy(&four, q, sizeof four);
    _mm_storeu_si128((__m128i *)(void *)p, _mm_sign_epi8(_mm_shuffle_epi8(_mm_cvtsi32_si128(four), order), signs));
#elif LANES == 8
    static const pairs_of_lanes SIGNS = {1, -1, -1, -1, 1, 1, -1, 1, 1, 1, 1, -1, 1, -1, 1, 1};
    int32_t four;
    pairs_of_lanes all;
    memcpy(&four, q, sizeof four);
    all = (pairs_of_lanes)_mm256_broadcastq_epi64(_mm_cvtepi8_epi16(_mm_cvtsi32_si128(four)));
    all = SHUFFLE(pairs_of_lanes, all, all, 0, 1, 2, 3, 1, 0, 3, 2, 10, 11, 8, 9, 11, 10, 9, 8) * SIGNS;
    memcpy(p, &all, sizeof all);
#elif LANES == 1 && defined(__ARM_FEATURE_DSP)
    p[0] = pair(q[0], q[1]);
    p[1] = pair(q[2], q[3]);
    p[2] = pair(-q[2], -q[3]);
#elif LANES == 1
    p[0] = q[0], p[1] = q[1], p[2] = q[2], p[3] = q[3];
#else
    p[0] = pair(q[0], -q[1]);
    p[1] = pair(-q[2], -q[3]);
    p[2] = pair(q[1], q[0]);
    p[3] = pair(-q[3], q[2]);
    p[4] = pair(q[2], q[3]);
    p[5] = pair(q[0], -q[1]);
    p[6] = pair(q[3], -q[2]);
    p[7] = pair(q[1], q[0]);
#endif
}

/* Pair n of a real output whose units are `q`. */
INLINE int32_t real_pair(const weights *w, const int8_t *q, size_t n) {
    return w->width == 1 ? pair(q[n], 0) : pair(q[2 * n], q[2 * n + 1]);
}

static const int32_t *pairs_of(const weights *w, size_t o, int32_t *scratch) {
    size_t count = unit_count(w, o), n;
    const int8_t *q = (const int8_t *)w->values + first_unit(w, o) * w->width;
    for (n = 0; n < count; n++) {
        if (w->components == 4) quaternion_pairs(q + 4 * n, scratch + working_width(w, LANES) * n);
        else scratch[n] = real_pair(w, q, n);
    }
    return scratch;
}

/* The taps of the units of output `o` that are stored; with `place`, what stands there for each. */
static void stored_taps(const weights *w, size_t o, const int32_t *place, int32_t *out) {
    const uint8_t *gap = w->gaps + w->gap_starts[o], *end = w->gaps + w->gap_starts[o + 1];
    size_t t = 0;
    for (; gap < end; gap++, t++) {
        for (; *gap == 255; gap++) t += 255;
        t += *gap;
        *out++ = place ? place[t] : (int32_t)t;
    }
}

/* ------------------------------------------------------------------------------------------------------- convolutions */

/* The input is copied to planes with zero borders, so that a tap of the kernel is a shift: result p is the sum of
 * weight * plane[p + shift]. With a stride the rows and columns that a tap meets lie side by side (phases). The inner loop
 * runs over positions. They are taken row by row, or through the borders as one long row, whichever is fewer vectors;
 * what is computed for positions in the border is not looked at. Where that is much of an image, and many outputs are to
 * be made of it, each column of the kernel gets a plane of its own without any (gathered). */
typedef struct {
    weights w;
    size_t channels, groups, area, kernel[2], stride[2], dilation[2], stuffing[2], padding[2], size[2];
    size_t used[2]; /* rows and columns of the input that are looked at */
    size_t parts; /* components of the input, a bit each */
    size_t sets, units, pitch, plane; /* of the planes that are multiplied, which are those of one group */
    size_t set; /* numbers from one set of them to the next */
    size_t padded, padded_pitch, rows;      /* of a plane with its borders; rows of one phase of it */
    size_t out[2], vectors, row; /* positions; vectors of them; numbers from row to row of the results */
    size_t span;                 /* sums of a component of an output, with what is stored behind the last vector */
    size_t strip;                /* so many rows of all outputs are made before the next ones */
    int by_rows, gathered, nine;
    int pool;
    int two; /* two rows of results at once: `vectors` are those of half of the rows */
    int few; /* components of the input: four real outputs at once */
    int paired; /* int8 with one component: a column and the next one to a pair */
    int as_it_lies, in_place; /* planes are those of the input without a change; they are multiplied there */
    int eights, whole; /* eight products in the lanes of a vector; or for a block of outputs at once, or a block of real ones */
    size_t planes_at, padded_at, places_at, stored_at, kernel_at, ones_at, units_at, sums_at, block_at, scratch;
} convolution;

/* Sums of eight products in int8 fit 32 bits up to so many taps. */
enum { MAX_WHOLE_I8 = 4096 };
enum { GATHER = 8 };           /* products that a vector of a gathered plane costs */
enum { MAX_PLANES = 1 << 28 }; /* numbers in the planes of a convolution */
enum { SHARE = 32 };           /* of a row of the input, where it is taken in parts */

/* Vectors of so many numbers, for LANES lanes or one. */
INLINE size_t vectors_of(size_t count, size_t lanes) { return lanes == LANES ? (count + LANES - 1) / LANES : count; }

/* Numbers in so many vectors, as they are stored. */
INLINE size_t span_of(size_t vectors, size_t lanes) {
    return lanes == LANES ? (vectors + AT_ONCE - 1) / AT_ONCE * AT_ONCE * LANES : vectors;
}

static int plain(const convolution *c) { return c->stride[0] * c->stride[1] * c->stuffing[0] * c->stuffing[1] == 1; }

/* How `height` rows of results are taken. */
static void take_rows(convolution *c, size_t height, size_t lanes) {
    size_t flat = vectors_of((height - 1) * c->pitch + c->out[1], lanes), rows = height * vectors_of(c->out[1], lanes);
    c->by_rows = rows <= flat;
    c->vectors = c->by_rows ? rows : flat;
    c->row = c->by_rows ? vectors_of(c->out[1], lanes) * lanes : c->pitch;
}

static convolution conv_of(const uint8_t *blob, const uint32_t *op, int fast, size_t lanes) {
    convolution c;
    size_t phase[2], axis, taps, used = 0, stored, dense, products, columns;
    int pairs = op[QRN_CONV_X_DTYPE] == QRN_I8, constant = !is_none(op[QRN_CONV_CONSTANT]);
    c.w = weights_of(blob, op + QRN_CONV_WEIGHTS, pairs, op[QRN_CONV_CHANNELS] == op[QRN_CONV_GROUPS]);
    c.channels = op[QRN_CONV_CHANNELS];
    c.groups = op[QRN_CONV_GROUPS];
    c.parts = op[QRN_CONV_PARTS];
    c.pool = (int)op[QRN_CONV_POOL];
    for (axis = 0; axis < 2; axis++) {
        size_t near = op[QRN_CONV_PADDING + axis], far = op[QRN_CONV_PADDING + 2 + axis];
        c.size[axis] = op[QRN_CONV_HEIGHT + axis];
        c.kernel[axis] = op[QRN_CONV_KERNEL + axis];
        c.stride[axis] = op[QRN_CONV_STRIDE + axis];
        c.dilation[axis] = op[QRN_CONV_DILATION + axis];
        c.stuffing[axis] = op[QRN_CONV_STUFFING + axis];
        c.padding[axis] = near;
        c.out[axis] = ((c.size[axis] - 1) * c.stuffing[axis] + 1 + near + far - (c.kernel[axis] - 1) * c.dilation[axis] - 1) /
                          c.stride[axis] + 1;
        if (op[QRN_CONV_POOL]) c.out[axis] &= ~(size_t)1; /* what would not be pooled is not computed */
        phase[axis] = c.out[axis] + (c.kernel[axis] - 1) * c.dilation[axis] / c.stride[axis];
        c.used[axis] = 0;
        if (phase[axis] * c.stride[axis] > near) {
            c.used[axis] = smaller(c.size[axis], (phase[axis] * c.stride[axis] - near - 1) / c.stuffing[axis] + 1);
        }
    }
    c.area = c.kernel[0] * c.kernel[1];
    c.pitch = phase[1];
    c.plane = c.stride[0] * c.stride[1] * phase[0] * phase[1];
    taps = c.w.taps;
    c.paired = 0;
    if (pairs) {
        c.paired = lanes > 1 && c.w.components == 4 && c.parts == 1 && c.dilation[1] == 1 && c.stuffing[1] == 1;
        c.sets = c.w.components == 4 && !c.paired && (lanes == 1 ? c.parts > 3 : !IN_BYTES) ? 2 : 1;
        c.units = c.channels / c.groups;
        if (c.w.components == 1) c.units = (c.units + 1) / 2;
    } else {
        c.sets = c.w.components == 1 || c.parts == 1 ? 1 : c.parts == 14 ? 3 : 4;
        c.units = c.channels / c.groups;
    }
    take_rows(&c, c.out[0], lanes);
    /* Without vectors memory is short as well: some 64 positions are enough to make up for reading the weights again. */
    c.strip = lanes > 1 ? c.out[0] : smaller(c.out[0], ((64 + c.out[1] - 1) / c.out[1] + 1) & ~(size_t)1);
    stored = first_unit(&c.w, c.w.outputs);
    /* Half of the products for all of the places, and units that are not all there have to be put in their places first:
     * worth it from about two thirds of them on, in int8 if none is missing. */
    c.eights = IN_EIGHTS && fast && lanes > 1 && c.w.components == 4 && c.parts == 15 && c.out[0] * c.out[1] >= 8 && c.w.outputs / c.groups > 1 && (pairs ? !IN_BYTES && taps <= MAX_WHOLE_I8 : c.w.starts && 4 * stored <= 3 * c.w.outputs * taps);
    c.whole = !c.eights && fast && lanes > 1 && c.vectors > 1 && c.w.outputs / c.groups > 1 && (!c.w.starts || (!pairs && 3 * stored > 2 * c.w.outputs * taps)) &&
              (c.w.components == 1 || (c.parts == 15 && (!pairs || (!IN_EIGHTS && taps <= MAX_WHOLE_I8))));
    if (c.whole && pairs && c.w.components == 4) { /* two channels to a pair, not two components */
        c.units = (c.channels / c.groups + 1) / 2;
        taps = c.units * c.area;
    }
    if (c.whole && c.w.components == 4) c.sets = 8;
    c.few = !pairs && IN_EIGHTS && c.w.components == 4 && (c.sets == 1 || (c.sets == 3 && fast));
    dense = vectors_of(c.out[0] * c.out[1], lanes);
    c.two = IN_TWOS && c.sets == 8 && !pairs && !constant && c.kernel[0] == 3 && c.dilation[0] == 1 && plain(&c) && c.out[0] % 2 == 0;
    if (c.two) {
        take_rows(&c, c.out[0] / 2, lanes);
        c.two = c.vectors >= 2 * AT_ONCE && c.used[1] >= lanes && (uint64_t)c.units * c.out[0] * c.pitch <= MAX_PLANES / 16 && 8 * c.vectors <= 5 * dense;
        if (!c.two) take_rows(&c, c.out[0], lanes);
    }
    products = c.whole ? (c.w.components == 4 ? 8u : 1u) * c.w.outputs * taps : stored * c.w.components * c.sets;
    columns = c.kernel[1] * c.stride[0] * phase[0] * c.out[1];
    c.gathered = !c.eights && !c.two && fast && lanes > 1 && products * (c.vectors - smaller(dense, c.vectors)) > GATHER * c.groups * c.sets * c.units * vectors_of(columns, lanes) &&
                 ((uint64_t)c.sets * c.units + 1) * columns <= MAX_PLANES;
    c.padded = c.plane;
    c.padded_pitch = c.pitch;
    c.rows = phase[0];
    if (c.gathered) {
        c.by_rows = 0;
        c.vectors = dense;
        c.row = c.pitch = c.out[1];
        c.plane = columns;
    }
    c.as_it_lies = !c.gathered;
    for (axis = 0; axis < 2; axis++) { /* nothing before the input, in it or behind it */
        c.as_it_lies = c.as_it_lies && c.stride[axis] == 1 && c.stuffing[axis] == 1 && c.padding[axis] == 0 && phase[axis] == c.size[axis];
    }
    c.in_place = c.as_it_lies && !c.eights && !c.two && !pairs && !constant && (c.sets != 4 || c.parts == 15);
    c.nine = lanes > 1 && !c.w.starts && c.w.components == 1 && taps == 9 && c.channels == c.groups && c.w.outputs == c.groups &&
             c.kernel[0] == 3 && c.dilation[0] * c.dilation[1] * c.stuffing[0] * c.stuffing[1] == 1 && c.stride[0] == c.stride[1] &&
             c.stride[0] <= 2;
    if (c.nine) { /* a plane as it is, and rows of at least a vector of results */
        c.padded_pitch = c.stride[1] * phase[1];
        c.row = larger(c.out[1], lanes);
        c.span = c.out[0] * c.row;
        c.kernel_at = c.places_at = c.stored_at = c.ones_at = 0; /* not needed */
        c.planes_at = reserve(&used, lanes, 4 * (c.plane + 2 * lanes));
        c.units_at = reserve(&used, lanes, working_bytes(&c.w, lanes));
        c.sums_at = reserve(&used, lanes, 4 * (c.span + 3 * lanes));
    } else if (c.eights) {
        size_t row = 16 * ((c.out[1] + 1) / 2), size = op[QRN_CONV_POOL] ? c.out[0] * c.out[1] / 4 : c.out[0] * c.out[1];
        size_t around = 0;
        c.units = c.channels / c.groups;
        if (plain(&c)) { /* rows and planes share their borders */
            c.padded_pitch = c.used[1] + larger(c.padding[1], phase[1] - c.padding[1] - c.used[1]);
            c.plane = c.padded = (c.used[0] + larger(c.padding[0], phase[0] - c.padding[0] - c.used[0])) * c.padded_pitch;
            around = c.padding[0] * c.padded_pitch + c.padding[1];
        }
        c.planes_at = reserve(&used, lanes, (pairs ? 16 : 32) * (c.channels * c.plane + around + 2));
        c.kernel_at = reserve(&used, lanes, 4 * c.area);
        c.places_at = reserve(&used, lanes, 4 * (taps + 1));
        c.stored_at = reserve(&used, lanes, c.w.starts ? 4 * (taps + 1) : 0);
        c.units_at = reserve(&used, lanes, pairs ? 0 : working_bytes(&c.w, lanes));
        c.block_at = reserve(&used, lanes, (pairs ? 16 : 32) * (taps + 3));
        c.ones_at = reserve(&used, lanes, constant ? 8 * row + 16 * c.kernel[1] + c.out[0] * c.kernel[0] + c.out[1] * c.kernel[1] : 0);
        c.padded_at = reserve(&used, lanes, pairs ? 16 * size : 0);
        c.sums_at = reserve(&used, lanes, 10 * row + 64);
    } else {
        if (c.two) { /* of a kernel's column four numbers, of four rows of the input as many: no rows are left of the kernel */
            c.kernel[0] = 1;
            c.area = c.kernel[1];
            c.plane = 2 * c.out[0] * c.pitch;
            taps = c.units * c.area;
        }
        c.set = (c.in_place && c.sets < 8 ? c.channels : c.units) * c.plane;
        /* Where the input can be multiplied as it lies, sums and differences of its components are made alone. */
        c.planes_at = c.in_place && c.sets < 8 ? 0 : reserve(&used, lanes, 4 * ((c.in_place ? 4 : c.sets) * c.set + lanes));
        c.padded_at = c.gathered ? reserve(&used, lanes, 4 * (c.padded + lanes)) : c.two ? reserve(&used, lanes, 4 * c.used[1]) : 0;
        c.ones_at = constant ? reserve(&used, lanes, 4 * (c.plane + lanes)) : 0;
        c.kernel_at = reserve(&used, lanes, 4 * c.area);
        c.places_at = reserve(&used, lanes, 4 * taps);
        c.stored_at = reserve(&used, lanes, (c.w.starts || c.paired) && !c.whole ? 4 * c.w.taps : 0);
        c.units_at = reserve(&used, lanes, !c.whole ? working_bytes(&c.w, lanes) : pairs || (!c.w.starts && c.w.dtype == QRN_F32) ? 0 : 4 * BLOCK * c.w.taps * c.w.components);
        if (lanes == 1) c.vectors = c.strip * c.out[1];
        c.span = span_of(c.vectors, lanes) << (c.two && !c.pool);
        c.sums_at = reserve(&used, lanes, 4 * (c.w.components * c.span * (c.whole ? BLOCK : 1) + 3 * lanes));
        c.block_at = c.few && c.sets == 3 ? reserve(&used, lanes, 60 * taps) : c.whole ? reserve(&used, lanes, 4 * BLOCK * taps * (c.two ? 32 : c.w.components == 4 ? 8 : 1)) : 0;
    }
    c.scratch = used;
    return c;
}

/* Copy `count` numbers. No number beyond them is written; vectors may overlap. */
INLINE void copy_row(const float *x, size_t count, float *y) {
    size_t k = 0;
    if (count >= LANES) {
#if AT_ONCE == 2
        for (; k + 2 * LANES <= count; k += 2 * LANES) store_wide(y + k, load_row(x + k));
#endif
        for (; k + LANES <= count; k += LANES) store(y + k, load(x + k));
        if (k < count) store(y + count - LANES, load(x + count - LANES));
        return;
    }
    if (count >= 4) { /* up to seven */
        v4 first = load4(x), last = load4(x + count - 4);
        memcpy(y, &first, sizeof first);
        memcpy(y + count - 4, &last, sizeof last);
        return;
    }
    for (; k < count; k++) y[k] = x[k];
}

/* Where in a plane the first tap of the kernel meets row y, column x of the padded input. */
static size_t place_of(const convolution *c, size_t y, size_t x) {
    uint32_t down = (uint32_t)c->stride[0], along = (uint32_t)c->stride[1], row = (uint32_t)y, column = (uint32_t)x;
    if (down == 1 && along == 1) return y * c->padded_pitch + x; /* no divisions */
    return ((row % down * along + column % along) * c->rows + row / down) * c->padded_pitch + column / along;
}

/* Every `step`-th of `count` numbers, the first one included. */
INLINE void copy_every(const float *x, size_t count, size_t step, float *y) {
    size_t k = 0;
#if LANES > 1
    for (; step == 2 && k + 2 * LANES <= count; k += 2 * LANES, y += LANES) store(y, EVEN(load(x + k), load(x + k + LANES)));
#endif
    for (; k < count; k += step) *y++ = x[k];
}

/* `count` numbers of row `row` of the padded input, of input column `first` on, to their places in a plane. */
static void put_row(const convolution *c, size_t row, size_t first, const float *x, size_t count, float *plane) {
    size_t column = c->padding[1] + first * c->stuffing[1], k;
    if (c->stuffing[1] == 1) {
        size_t step = c->stride[1], place = place_of(c, row, column), last = step - column % step; /* phase of this row */
        for (k = 0; k < step && k < count; k++) {
            if (k == last) place -= step * c->rows * c->padded_pitch - 1;
            copy_every(x + k, count - k, step, plane + place);
            place += c->rows * c->padded_pitch;
        }
    } else {
        for (k = 0; k < count; k++) plane[place_of(c, row, column + k * c->stuffing[1])] = x[k];
    }
}

static void pad_floats(const convolution *c, const float *x, float *plane) {
    size_t y, width = c->used[1], pitch = c->padded_pitch;
    float *to = plane + c->padding[0] * pitch + c->padding[1];
    memset(plane, 0, 4 * c->padded);
    for (y = 0; plain(c) && y < c->used[0]; y++, x += c->size[1], to += pitch) copy_row(x, width, to);
    for (; y < c->used[0]; y++, x += c->size[1]) put_row(c, c->padding[0] + y * c->stuffing[0], 0, x, width, plane);
}

/* Bytes of two planes, either of which may be missing, as int16 pairs; vectors may overlap. */
static void pairs_of_bytes(const int8_t *low, const int8_t *high, int32_t zero, size_t count, int32_t *to) {
    size_t k = 0;
#if LANES > 1
    for (; k < count && count >= LANES; k += LANES) {
        size_t n = smaller(k, count - LANES);
        vi first = low ? widened(low + n) - zero : (vi){0}, second = high ? widened(high + n) - zero : (vi){0};
        store_i(to + n, (first & 0xffff) | (second << 16));
    }
#endif
    for (; k < count; k++) to[k] = pair(low ? low[k] - zero : 0, high ? high[k] - zero : 0);
}

#if LANES > 1
/* Pairs of a column and the next one, as far as there is one. */
INLINE void pairs_of_columns(const int8_t *x, size_t left, int32_t zero, size_t count, int32_t *to) {
    pairs_of_bytes(x, x + 1, zero, count - 1, to);
    to[count - 1] = pair(x[count - 1] - zero, left > count ? x[count] - zero : 0);
}

/* A plane of bytes as one of such pairs, the borders' last column with the first of the image. */
static void pad_columns(const convolution *c, const int8_t *x, int32_t zero, int32_t *plane) {
    size_t y, k, count;
    memset(plane, 0, 4 * c->padded);
    for (y = 0; y < c->used[0]; y++, x += c->size[1]) {
        size_t row = c->padding[0] + y * c->stuffing[0];
        if (plain(c)) pairs_of_columns(x, c->size[1], zero, c->used[1], plane + row * c->padded_pitch + c->padding[1]);
        for (k = 0; !plain(c) && k < c->used[1]; k += count) {
            int32_t pairs[SHARE];
            count = smaller(SHARE, c->used[1] - k);
            pairs_of_columns(x + k, c->size[1] - k, zero, count, pairs);
            put_row(c, row, k, (const float *)(const void *)pairs, count, (float *)(void *)plane);
        }
        if (c->padding[1] > 0) plane[place_of(c, row, c->padding[1] - 1)] = pair(0, x[0] - zero);
    }
}
#endif

/* Two planes of bytes as one of pairs. */
static void pad_pairs(const convolution *c, const int8_t *low, const int8_t *high, int32_t zero, int32_t *plane) {
    size_t y, k;
    if (c->as_it_lies) {
        pairs_of_bytes(low, high, zero, c->padded, plane);
        return;
    }
    memset(plane, 0, 4 * c->padded);
    for (y = 0; y < c->used[0]; y++) {
        size_t row = c->padding[0] + y * c->stuffing[0], n = y * c->size[1], count;
        if (plain(c)) {
            pairs_of_bytes(low ? low + n : NULL, high ? high + n : NULL, zero, c->used[1], plane + row * c->padded_pitch + c->padding[1]);
            continue;
        }
        for (k = 0; k < c->used[1]; k += count) {
            int32_t pairs[SHARE];
            count = smaller(SHARE, c->used[1] - k);
            pairs_of_bytes(low ? low + n + k : NULL, high ? high + n + k : NULL, zero, count, pairs);
            put_row(c, row, k, (const float *)(const void *)pairs, count, (float *)(void *)plane);
        }
    }
}

#if LANES > 1
/* A plane within its borders, which are there already; bytes as floats, whose sums of nine products are whole numbers without
 * rounding. */
static void put_plane(const convolution *c, const void *x, int32_t zero, float *plane) {
    float *to = plane + c->padding[0] * c->padded_pitch + c->padding[1];
    const int8_t *bytes = (const int8_t *)x;
    size_t y, k;
    for (y = 0; y < c->used[0]; y++, bytes += c->size[1], to += c->padded_pitch) {
        if (!c->w.pairs) {
            copy_row((const float *)x + y * c->size[1], c->used[1], to);
            continue;
        }
        for (k = 0; k + LANES <= c->used[1]; k += LANES) store(to + k, __builtin_convertvector(widened(bytes + k) - zero, vf));
        for (; k < c->used[1]; k++) to[k] = (float)(bytes[k] - zero);
    }
}
#endif

/* For each column of the kernel (and each phase of rows) the numbers that it meets, of a plane with its borders: rows of the
 * results' width, one after the other, so that a row of the kernel is a shift. */
static void gather_columns(const convolution *c, const void *from, void *to) {
    const float *padded = (const float *)from;
    float *plane = (float *)to;
    size_t k, phase, y;
    for (k = 0; k < c->kernel[1]; k++) {
        for (phase = 0; phase < c->stride[0]; phase++) {
            const float *p = padded + place_of(c, phase, k * c->dilation[1]);
            for (y = 0; y < c->rows; y++, p += c->padded_pitch, plane += c->out[1]) copy_row(p, c->out[1], plane);
        }
    }
}

#if IN_TWOS
/* Two rows of results from one column of a kernel (a, b, c) take four products, not six (Winograd's F(2, 3)): of four rows
 * (x, y, z, u) of the input
 *     p = (x - z) a,  q = (y + z) (a + b + c) / 2,  r = (z - y) (a - b + c) / 2,  s = (y - u) c,
 * and the results are p + q + r and q - r - s. These are the rows x - z of the whole plane, then y + z and so on. */
static void combine_rows(const convolution *c, const float *x, const float *zeros, float *plane) {
    size_t y, k, n, width = c->used[1], step = c->plane / 4;
    plane += c->padding[1];
    for (y = 0; y < c->out[0]; y += 2, plane += c->pitch) {
        const float *row[4];
        for (n = 0; n < 4; n++) row[n] = y + n - c->padding[0] < c->used[0] ? x + (y + n - c->padding[0]) * c->size[1] : zeros;
        for (k = 0;; k = smaller(k + LANES, width - LANES)) { /* the last vector of a row may overlap the one before */
            vf first = load(row[0] + k), second = load(row[1] + k), third = load(row[2] + k), fourth = load(row[3] + k);
            store(plane + k, first - third), store(plane + step + k, second + third);
            store(plane + 2 * step + k, third - second), store(plane + 3 * step + k, second - fourth);
            if (k + LANES == width) break;
        }
    }
}
#endif

/* The planes of group g. */
static void prepare_floats(const convolution *c, const float *x, size_t g, float *planes, float *padded) {
    size_t part, set = 0, n, size = c->size[0] * c->size[1], step = c->channels * size;
    float *first = c->sets == 8 ? planes + 4 * c->set : planes; /* sums and differences of components come before them */
    x += g * c->units * size;
    if (IN_TWOS && c->two && g == 0) {
        memset(padded, 0, 4 * c->used[1]);
        memset(first, 0, 16 * c->set); /* what is beside the rows */
    }
    for (part = 0; part < c->w.components && !c->in_place; part++) {
        if (c->parts >> part & 1) {
            for (n = 0; n < c->units; n++) {
                float *plane = first + set * c->set + n * c->plane;
#if IN_TWOS
                if (c->two) {
                    combine_rows(c, x + n * size, padded, plane);
                    continue;
                }
#endif
                pad_floats(c, x + n * size, c->gathered ? padded : plane);
                if (c->gathered) gather_columns(c, padded, plane);
            }
            x += step;
            set++;
        } else if (c->sets >= 4) {
            memset(first + set * c->set, 0, 4 * c->set);
            set++;
        }
    }
    if (c->sets == 8) {
        const float *from = c->in_place ? x : first;
        size_t each = c->in_place ? step : c->set;
        for (n = 0; n < c->set; n += LANES) { /* the last vector may overlap the one before */
            size_t k = smaller(n, c->set - LANES);
            vf r = load(from + k), i = load(from + each + k), j = load(from + 2 * each + k), q = load(from + 3 * each + k);
            vf s = r + i, d = r - i, t = j + q, e = j - q;
            store(planes + k, s + t);
            store(planes + c->set + k, d + e);
            store(planes + 2 * c->set + k, s - t);
            store(planes + 3 * c->set + k, d - e);
        }
    }
    memset(planes + (c->in_place ? 4 : c->sets) * c->set, 0, 4 * LANES);
}

static void prepare_pair(const convolution *c, const int8_t *low, const int8_t *high, int32_t zero, int32_t *plane,
                         int32_t *padded) {
    pad_pairs(c, low, high, zero, c->gathered ? padded : plane);
    if (c->gathered) gather_columns(c, padded, plane);
}

#if IN_BYTES
/* Four bytes of each of so many positions, 4 or 8, to words: quaternions side by side, without sign. */
INLINE void put_words(const int8_t *const *part, size_t n, size_t count, int32_t *to) {
    __m128i sign = _mm_set1_epi8(-128), a[4], ri, jk;
    size_t m;
    for (m = 0; m < 4; m++) {
        int64_t bytes = 0;
        memcpy(&bytes, part[m] + n, count);
        a[m] = _mm_cvtsi64_si128(bytes);
    }
    ri = _mm_xor_si128(_mm_unpacklo_epi8(a[0], a[1]), sign);
    jk = _mm_xor_si128(_mm_unpacklo_epi8(a[2], a[3]), sign);
    _mm_storeu_si128((__m128i *)(void *)to, _mm_unpacklo_epi16(ri, jk));
    if (count == 8) _mm_storeu_si128((__m128i *)(void *)(to + 4), _mm_unpackhi_epi16(ri, jk));
}
INLINE void put_32_words(const int8_t *const *part, size_t n, int32_t *to) {
    __m256i sign = _mm256_set1_epi8(-128), a[4], low, low2, high, high2, words[4];
    size_t m;
    for (m = 0; m < 4; m++) a[m] = _mm256_xor_si256((__m256i)load_i((const int32_t *)(const void *)(part[m] + n)), sign);
    low = _mm256_unpacklo_epi8(a[0], a[1]), low2 = _mm256_unpacklo_epi8(a[2], a[3]);
    high = _mm256_unpackhi_epi8(a[0], a[1]), high2 = _mm256_unpackhi_epi8(a[2], a[3]);
    words[0] = _mm256_unpacklo_epi16(low, low2), words[1] = _mm256_unpackhi_epi16(low, low2);
    words[2] = _mm256_unpacklo_epi16(high, high2), words[3] = _mm256_unpackhi_epi16(high, high2);
    for (m = 0; m < 4; m += 2) { /* within each half of a vector so far */
        store_i(to + 4 * m, (vi)_mm256_permute2x128_si256(words[m], words[m + 1], 0x20));
        store_i(to + 4 * m + 16, (vi)_mm256_permute2x128_si256(words[m], words[m + 1], 0x31));
    }
}

/* So many positions; vectors may overlap. */
static void words_of(const int8_t *const *part, size_t count, int32_t *to) {
    size_t k = 0, m;
    if (count >= 8) {
        for (; k + 32 <= count; k += 32) put_32_words(part, k, to + k);
        for (; k + 8 <= count; k += 8) put_words(part, k, 8, to + k);
        if (k < count) put_words(part, count - 8, 8, to + count - 8);
    } else if (count >= 4) {
        put_words(part, 0, 4, to);
        put_words(part, count - 4, 4, to + count - 4);
    } else {
        for (; k < count; k++) {
            uint8_t bytes[4];
            for (m = 0; m < 4; m++) bytes[m] = (uint8_t)(part[m][k] + 128);
            memcpy(to + k, bytes, 4);
        }
    }
}

/* `count` quaternions as words. The components of x that there are, a bit each, are `step` bytes apart; the others are what
 * means 0. */
static void quaternion_words(const int8_t *x, size_t step, size_t parts, int32_t zero, size_t count, int32_t *to) {
    int8_t none[32];
    size_t n, m, width;
    memset(none, zero, sizeof none);
    for (n = 0; n < count; n += width) {
        const int8_t *part[4], *from = x + n;
        width = parts == 15 ? count : smaller(sizeof none, count - n);
        for (m = 0; m < 4; m++) {
            part[m] = parts >> m & 1 ? from : none;
            if (parts >> m & 1) from += step;
        }
        words_of(part, width, to + n);
    }
}

static void prepare_bytes(const convolution *c, const int8_t *x, size_t g, int32_t zero, int32_t *planes, int32_t *padded) {
    size_t size = c->size[0] * c->size[1], n, k, y, left;
    int32_t nothing = (int32_t)((uint32_t)(zero + 128) * 0x01010101u);
    x += g * c->units * size;
    for (n = 0; n < c->units; n++, planes += c->plane) {
        int32_t *plane = c->gathered ? padded : planes;
        if (c->as_it_lies) {
            quaternion_words(x, c->channels * size, c->parts, zero, size, plane);
            x += size;
            continue;
        }
        for (k = 0; k < c->padded; k += LANES) store_i(plane + k, splat_i(nothing)); /* the last one too long */
        for (y = 0; y < c->used[0]; y++, x += c->size[1]) {
            size_t row = c->padding[0] + y * c->stuffing[0];
            if (plain(c)) {
                quaternion_words(x, c->channels * size, c->parts, zero, c->used[1], plane + row * c->padded_pitch + c->padding[1]);
                continue;
            }
            for (left = 0; left < c->used[1]; left += SHARE) {
                int32_t words[SHARE];
                size_t width = smaller(SHARE, c->used[1] - left);
                quaternion_words(x + left, c->channels * size, c->parts, zero, width, words);
                put_row(c, row, left, (const float *)(const void *)words, width, (float *)(void *)plane);
            }
        }
        x += size - c->used[0] * c->size[1];
        if (c->gathered) gather_columns(c, padded, planes);
    }
    memset(planes, 0, 4 * LANES);
}
#elif LANES > 1 && !IN_EIGHTS
/* Sums and differences of the four components, of which the planes follow them, `count` words each. */
static void transform_pairs(int32_t *planes, size_t count) {
    const int32_t *x = planes + 4 * count;
    size_t n;
    for (n = 0; n < count; n += LANES) {
        size_t at = smaller(n, count - LANES);
        pairs_of_lanes r = (pairs_of_lanes)load_i(x + at), i = (pairs_of_lanes)load_i(x + count + at);
        pairs_of_lanes j = (pairs_of_lanes)load_i(x + 2 * count + at), k = (pairs_of_lanes)load_i(x + 3 * count + at);
        pairs_of_lanes s = r + i, d = r - i, t = j + k, e = j - k;
        store_i(planes + at, (vi)(s + t));
        store_i(planes + count + at, (vi)(d + e));
        store_i(planes + 2 * count + at, (vi)(s - t));
        store_i(planes + 3 * count + at, (vi)(d - e));
    }
}
#endif

/* The planes of group g. */
static void prepare_pairs(const convolution *c, const int8_t *x, size_t g, int32_t zero, int32_t *planes, int32_t *padded) {
    size_t size = c->size[0] * c->size[1], channels = c->channels / c->groups, n, set;
#if LANES > 1
    if (c->paired) {
        for (n = 0; n < channels; n++) {
            int32_t *plane = planes + n * c->plane;
            pad_columns(c, x + (g * channels + n) * size, zero, c->gathered ? padded : plane);
            if (c->gathered) gather_columns(c, padded, plane);
        }
        memset(planes + c->set, 0, 4 * LANES);
        return;
    }
#endif
#if IN_BYTES
    if (c->w.components == 4) {
        prepare_bytes(c, x, g, zero, planes, padded);
        return;
    }
#endif
    x += g * channels * size;
    if (c->w.components == 1 || c->sets == 8) { /* two channels to a pair */
        int32_t *to = c->sets == 8 ? planes + 4 * c->set : planes;
        for (set = 0; set < c->w.components; set++) {
            const int8_t *low = x + set * c->channels * size;
            for (n = 0; n < channels; n += 2, low += 2 * size, to += c->plane) {
                prepare_pair(c, low, n + 1 < channels ? low + size : NULL, zero, to, padded);
            }
        }
#if LANES > 1 && !IN_EIGHTS
        if (c->sets == 8) transform_pairs(planes, c->set);
#endif
    } else { /* two components */
        const int8_t *part[4];
        for (n = 0; n < 4; n++) {
            part[n] = c->parts >> n & 1 ? x : NULL;
            if (part[n]) x += c->channels * size;
        }
        for (set = 0; set < c->sets; set++) {
            for (n = 0; n < channels; n++) {
                const int8_t *low = part[2 * set], *high = part[2 * set + 1];
                prepare_pair(c, low ? low + n * size : NULL, high ? high + n * size : NULL, zero, planes + set * c->set + n * c->plane, padded);
            }
        }
    }
    memset(planes + c->sets * c->set, 0, 4 * LANES);
}

/* The first position of each vector, one after the other. */
typedef struct {
    size_t at, end, row;
} walk;
INLINE walk walk_of(const convolution *c) {
    walk w = {0, c->by_rows ? c->row : (size_t)-1 / 2, 0};
    return w;
}
INLINE size_t next_vector(const convolution *c, walk *w) {
    size_t here = w->at;
    w->at += LANES;
    if (w->at >= w->end) {
        w->row += c->pitch;
        w->at = w->row;
        w->end = w->row + c->row;
    }
    return here;
}

/* Of `left` vectors, of which `most` can be taken at once: how many are taken now, so that no few are left for the end. */
INLINE size_t next_share(size_t left, size_t most) { return left <= most ? left : left < 2 * most ? (left + 1) / 2 : most; }

#if LANES > 1
/* The same for an inner loop of whole registers; the vectors' first positions to `start`, the last one's twice where it is
 * alone in a register. */
static size_t next_starts(const convolution *c, walk *w, size_t left, size_t most, size_t *start) {
    size_t vectors = smaller(left, AT_ONCE * next_share((left + AT_ONCE - 1) / AT_ONCE, most / AT_ONCE)), n;
    for (n = 0; n < vectors; n++) start[n] = next_vector(c, w);
    if (vectors % AT_ONCE) start[vectors] = start[vectors - 1];
    return vectors;
}
#endif

/* One quaternion output at one or two vectors of positions: 16 products for each unit, 12 or 4 if the input has no more
 * components. Sums have names, because compilers keep arrays of them in memory. If there are few vectors, each component
 * has two sums, so that products need not wait for each other. */
INLINE void quaternion_tile(const float *x, size_t set, size_t sets, const int32_t *place, const float *w, size_t count,
                            const float *bias, const size_t *start, int vectors, float *y, size_t stride) {
    vf r = splat(bias[0]), i = splat(bias[1]), j = splat(bias[2]), k = splat(bias[3]), zero = {0};
    vf r2 = r, i2 = i, j2 = j, k2 = k, r3 = zero, i3 = zero, j3 = zero, k3 = zero;
    int twice = sets >= 3 && vectors == 1;
    size_t s;
#define MULTIPLY(first, r, i, j, k, second_r, second_i, second_j, second_k)                                         \
    do {                                                                                                            \
        const float *p = x + place[s] + (first);                                                                    \
        if (sets != 3) {                                                                                            \
            vf xr = load(p);                                                                                        \
            r += wr * xr, i += wi * xr, j += wj * xr, k += wk * xr;                                                 \
        }                                                                                                           \
        if (sets >= 3) {                                                                                            \
            const float *rest = sets == 3 ? p : p + set;                                                            \
            vf xi = load(rest), xj = load(rest + set), xk = load(rest + 2 * set);                                   \
            r -= wi * xi, i += wr * xi, j += wk * xi, k -= wj * xi;                                                 \
            second_r -= wj * xj, second_i -= wk * xj, second_j += wr * xj, second_k += wi * xj;                     \
            second_r -= wk * xk, second_i += wj * xk, second_j -= wi * xk, second_k += wr * xk;                     \
        }                                                                                                           \
    } while (0)
    for (s = 0; s < count; s++, w += 4) {
        vf wr = splat(w[0]), wi = splat(w[1]), wj = splat(w[2]), wk = splat(w[3]);
        if (twice) {
            MULTIPLY(start[0], r, i, j, k, r3, i3, j3, k3);
        } else {
            MULTIPLY(start[0], r, i, j, k, r, i, j, k);
            if (vectors > 1) MULTIPLY(start[1], r2, i2, j2, k2, r2, i2, j2, k2);
        }
    }
#undef MULTIPLY
    if (twice) r += r3, i += i3, j += j3, k += k3;
#define STORE(n, r, i, j, k)                          \
    if (vectors > (n)) {                              \
        store(y + (n) * LANES, r);                    \
        store(y + (n) * LANES + stride, i);           \
        store(y + (n) * LANES + 2 * stride, j);       \
        store(y + (n) * LANES + 3 * stride, k);       \
    }
    STORE(0, r, i, j, k)
    STORE(1, r2, i2, j2, k2)
#undef STORE
}

#define QUATERNION_KERNEL(sets, vectors)                                                                                   \
    KERNEL void quaternion_##sets##_##vectors(const float *x, size_t set, const int32_t *place, const float *w, size_t count, \
                                              const float *bias, const size_t *start, float *y, size_t stride) {             \
        quaternion_tile(x, set, sets, place, w, count, bias, start, vectors, y, stride);                                     \
    }
#define QUATERNION_KERNELS(vectors) QUATERNION_KERNEL(1, vectors) QUATERNION_KERNEL(3, vectors) QUATERNION_KERNEL(4, vectors)
QUATERNION_KERNELS(1)
QUATERNION_KERNELS(2)
#undef QUATERNION_KERNELS
#undef QUATERNION_KERNEL

static void quaternion_output(const convolution *c, const float *x, const int32_t *place, const float *w, size_t count,
                              const float *bias, float *y) {
    static void (*const kernels[][QUATERNION_VECTORS])(const float *, size_t, const int32_t *, const float *, size_t,
                                                       const float *, const size_t *, float *, size_t) = {
        {quaternion_1_1, quaternion_1_2}, {quaternion_3_1, quaternion_3_2}, {quaternion_4_1, quaternion_4_2}
    };
    size_t set = c->set, stride = c->span, v, n, vectors, start[QUATERNION_VECTORS];
    walk at = walk_of(c);
    for (v = 0; v < c->vectors; v += vectors) {
        vectors = next_share(c->vectors - v, QUATERNION_VECTORS);
        for (n = 0; n < vectors; n++) start[n] = next_vector(c, &at);
        kernels[c->sets == 4 ? 2 : c->sets == 3 ? 1 : 0][vectors - 1](x, set, place, w, count, bias, start, y + v * LANES, stride);
    }
}

/* One real output at one or four vectors of positions. */
INLINE void real_tile(const float *x, const int32_t *place, const float *w, size_t count, float bias, const size_t *start,
                      int vectors, float *y) {
    vf a = splat(bias), b = a, c = a, d = a;
    size_t s;
    for (s = 0; s < count; s++) {
        const float *p = x + place[s];
        vf ws = splat(w[s]);
        a += ws * load(p + start[0]);
        if (vectors == 4) b += ws * load(p + start[1]), c += ws * load(p + start[2]), d += ws * load(p + start[3]);
    }
    store(y, a);
    if (vectors == 4) store(y + LANES, b), store(y + 2 * LANES, c), store(y + 3 * LANES, d);
}

KERNEL void real_output(const convolution *c, const float *x, const int32_t *place, const float *w, size_t count, float bias,
                        float *y) {
    walk at = walk_of(c);
    size_t v, start[4];
    for (v = 0; v + 4 <= c->vectors; v += 4) {
        int b;
        for (b = 0; b < 4; b++) start[b] = next_vector(c, &at);
        real_tile(x, place, w, count, bias, start, 4, y + v * LANES);
    }
    for (; v < c->vectors; v++) {
        start[0] = next_vector(c, &at);
        real_tile(x, place, w, count, bias, start, 1, y + v * LANES);
    }
}

#if LANES > 1
/* The same for all nine taps of a 3x3 kernel, at every position or every other one: what is loaded of a row is used for all rows
 * of the output that it meets. Sums smaller than `least` become that. `as_whole` may make whole numbers of them, and adds their
 * bias. */
#define NINE_KERNEL(name, vector, fetch, all, most, step, three, as_whole)                                                    \
    KERNEL void name(const convolution *c, const float *x, const float *w, float bias, int32_t whole_bias, float least, float *y) { \
        vector w0 = all(w[0]), w1 = all(w[1]), w2 = all(w[2]), w3 = all(w[3]), w4 = all(w[4]), w5 = all(w[5]);                \
        vector w6 = all(w[6]), w7 = all(w[7]), w8 = all(w[8]);                                                                \
        enum { EACH = sizeof(vector) / 4 };                                                                                   \
        size_t column, last = c->row - EACH, row, pitch = c->padded_pitch, rows = (step) * (c->out[0] - 1) + 3;               \
        (void)whole_bias;                                                                                                     \
        for (column = 0;; column = smaller(column + EACH, last)) { /* the last vector of a row may overlap the one before */  \
            const float *p = x + (step) * column;                                                                             \
            float *to = y + column;                                                                                           \
            vector two = {0}, one = two; /* sums of two rows for the output two rows above, of one for that one row above */  \
            for (row = 0; row < rows; row++, p += pitch) {                                                                    \
                vector left, middle, right;                                                                                   \
                three(fetch);                                                                                                 \
                if (row >= 2 && ((step) == 1 || row % 2 == 0)) {                                                              \
                    as_whole(most(all(least), two + w6 * left + w7 * middle + w8 * right));                                   \
                    to += c->row;                                                                                             \
                }                                                                                                             \
                if ((step) == 1 || row % 2 == 1) two = one + w3 * left + w4 * middle + w5 * right;                            \
                if ((step) == 1 || row % 2 == 0) one = all(bias) + w0 * left + w1 * middle + w2 * right;                      \
            }                                                                                                                 \
            if (column == last) break;                                                                                        \
        }                                                                                                                     \
    }
#define SIDE_BY_SIDE(fetch) left = fetch(p), middle = fetch(p + 1), right = fetch(p + 2)
#define EVERY_OTHER(fetch)                                           \
    left = EVEN(fetch(p), fetch(p + LANES)), middle = ODD(fetch(p), fetch(p + LANES)), \
    right = EVEN(fetch(p + 2), fetch(p + 2 + LANES))
#define AS_IT_IS(sums) store(to, sums)
#define AS_WHOLE(sums) store_i((int32_t *)(void *)to, __builtin_convertvector(sums, vi) + splat_i(whole_bias))
NINE_KERNEL(nine_taps, vf, load, splat, maximum, 1u, SIDE_BY_SIDE, AS_IT_IS)
NINE_KERNEL(nine_taps_i8, vf, load, splat, maximum, 1u, SIDE_BY_SIDE, AS_WHOLE)
NINE_KERNEL(nine_taps_apart, vf, load, splat, maximum, 2u, EVERY_OTHER, AS_IT_IS)
NINE_KERNEL(nine_taps_apart_i8, vf, load, splat, maximum, 2u, EVERY_OTHER, AS_WHOLE)
#if AT_ONCE == 2
#define WIDE_AS_IT_IS(sums) store_wide(to, sums)
#define WIDE_AS_WHOLE(sums) store_wide_i((int32_t *)(void *)to, __builtin_convertvector(sums, wide_i) + splat_wide_i(whole_bias))
NINE_KERNEL(nine_taps_wide, wide_f, load_row, splat_wide, maximum_wide, 1u, SIDE_BY_SIDE, WIDE_AS_IT_IS)
NINE_KERNEL(nine_taps_wide_i8, wide_f, load_row, splat_wide, maximum_wide, 1u, SIDE_BY_SIDE, WIDE_AS_WHOLE)
#undef WIDE_AS_WHOLE
#undef WIDE_AS_IT_IS
#endif
#undef AS_WHOLE
#undef AS_IT_IS
#undef EVERY_OTHER
#undef SIDE_BY_SIDE
#undef NINE_KERNEL

static void nine_sums(const convolution *c, const float *x, const float *w, float bias, int32_t whole_bias, float least, float *y) {
    static void (*const kernels[2][2])(const convolution *, const float *, const float *, float, int32_t, float, float *) = {
        {nine_taps, nine_taps_i8}, {nine_taps_apart, nine_taps_apart_i8}};
#if AT_ONCE == 2
    if (c->stride[0] == 1 && c->row >= 2 * LANES) {
        (c->w.pairs ? nine_taps_wide_i8 : nine_taps_wide)(c, x, w, bias, whole_bias, least, y);
        return;
    }
#endif
    kernels[c->stride[0] - 1][c->w.pairs](c, x, w, bias, whole_bias, least, y);
}
#endif

/* The same two in int8: sums of products of int16 pairs. */
#if LANES == 1
/* One position, because registers are few; its four sums begin as the bias. Processors with instructions for it multiply
 * both numbers of a pair at once, crosswise too, and add the products or subtract the second. */
INLINE void quaternion_sums_i8(const int32_t *x, size_t set, size_t sets, const int32_t *place, const int32_t *end,
                               const int32_t *w, int32_t *sums) {
    int32_t r = sums[0], i = sums[1], j = sums[2], k = sums[3];
    for (; place < end; place++, w += 4) {
        const int32_t *p = x + *place;
        int32_t ri = p[0];
#if defined(__ARM_FEATURE_DSP)
        int32_t wri = w[0], wjk = w[1], minus_wjk = w[2];
        r = __smlsd(wri, ri, r), i = __smladx(wri, ri, i), j = __smlad(wjk, ri, j), k = __smlsdx(minus_wjk, ri, k);
        if (sets == 2) {
            int32_t jk = p[set];
            r = __smlad(minus_wjk, jk, r), i = __smlsdx(wjk, jk, i), j = __smlsd(wri, jk, j), k = __smladx(wri, jk, k);
        }
#else
        int32_t wr = w[0], wi = w[1], wj = w[2], wk = w[3], low = (int16_t)(ri & 0xffff), high = ri >> 16;
        r += wr * low - wi * high, i += wi * low + wr * high, j += wj * low + wk * high, k += wk * low - wj * high;
        if (sets == 2) {
            int32_t jk = p[set];
            low = (int16_t)(jk & 0xffff), high = jk >> 16;
            r -= wj * low + wk * high, i += wj * high - wk * low, j += wr * low - wi * high, k += wi * low + wr * high;
        }
#endif
    }
    sums[0] = r, sums[1] = i, sums[2] = j, sums[3] = k;
}

#define SUMS_KERNEL(sets)                                                                                                 \
    KERNEL void quaternion_sums_i8_##sets(const int32_t *x, size_t set, const int32_t *place, const int32_t *end,          \
                                          const int32_t *w, int32_t *sums) {                                              \
        quaternion_sums_i8(x, set, sets, place, end, w, sums);                                                            \
    }
SUMS_KERNEL(1)
SUMS_KERNEL(2)
#undef SUMS_KERNEL
#elif IN_BYTES
/* One quaternion output at up to eight vectors of positions, two at once. */
INLINE void quaternion_tile_bytes(const int32_t *x, const int32_t *place, const int32_t *w, size_t count, const int32_t *bias,
                                  const size_t *start, int vectors, int32_t *y, size_t stride) {
    __m512i r = (__m512i)splat_wide_i(bias[0]), i = (__m512i)splat_wide_i(bias[1]), j = (__m512i)splat_wide_i(bias[2]);
    __m512i k = (__m512i)splat_wide_i(bias[3]), r2 = r, i2 = i, j2 = j, k2 = k, r3 = r, i3 = i, j3 = j, k3 = k, r4 = r, i4 = i, j4 = j, k4 = k;
    size_t s;
    for (s = 0; s < count; s++, w += 4) {
        const int32_t *p = x + place[s];
        __m512i wr = (__m512i)splat_wide_i(w[0]), wi = (__m512i)splat_wide_i(w[1]), wj = (__m512i)splat_wide_i(w[2]), wk = (__m512i)splat_wide_i(w[3]);
#define MULTIPLY(n, r, i, j, k)                                                                  \
    if (vectors > (n)) {                                                                         \
        __m512i q = (__m512i)load_wide_i(p, start + 2 * (n));                                    \
        r = _mm512_dpbusd_epi32(r, q, wr), i = _mm512_dpbusd_epi32(i, q, wi);                    \
        j = _mm512_dpbusd_epi32(j, q, wj), k = _mm512_dpbusd_epi32(k, q, wk);                    \
    }
        MULTIPLY(0, r, i, j, k)
        MULTIPLY(1, r2, i2, j2, k2)
        MULTIPLY(2, r3, i3, j3, k3)
        MULTIPLY(3, r4, i4, j4, k4)
#undef MULTIPLY
    }
#define STORE(n, r, i, j, k)                                                         \
    if (vectors > (n)) {                                                             \
        int32_t *to = y + 2 * (n) * LANES;                                           \
        store_wide_i(to, (wide_i)r), store_wide_i(to + stride, (wide_i)i);           \
        store_wide_i(to + 2 * stride, (wide_i)j), store_wide_i(to + 3 * stride, (wide_i)k); \
    }
    STORE(0, r, i, j, k)
    STORE(1, r2, i2, j2, k2)
    STORE(2, r3, i3, j3, k3)
    STORE(3, r4, i4, j4, k4)
#undef STORE
}

#define BYTES_KERNEL(vectors)                                                                                             \
    KERNEL void quaternion_bytes_##vectors(const int32_t *x, const int32_t *place, const int32_t *w, size_t count,         \
                                           const int32_t *bias, const size_t *start, int32_t *y, size_t stride) {         \
        quaternion_tile_bytes(x, place, w, count, bias, start, vectors, y, stride);                                       \
    }
BYTES_KERNEL(1)
BYTES_KERNEL(2)
BYTES_KERNEL(3)
BYTES_KERNEL(4)
#undef BYTES_KERNEL

/* The bytes of the input are larger than they mean by `excess`: what that makes of each component is taken off its bias. */
static void without_excess(const int32_t *w, size_t count, int32_t excess, int32_t *bias) {
    __m128i sums = _mm_setzero_si128(), one = _mm_set1_epi8(1);
    for (; count > 0; count--, w += 4) sums = _mm_dpbusd_epi32(sums, one, _mm_loadu_si128((const __m128i *)(const void *)w));
    sums = _mm_sub_epi32(_mm_loadu_si128((const __m128i *)(const void *)bias), _mm_mullo_epi32(sums, _mm_set1_epi32(excess)));
    _mm_storeu_si128((__m128i *)(void *)bias, sums);
}
#else
INLINE void quaternion_tile_i8(const int32_t *x, size_t set, const int32_t *place, const int32_t *w, size_t count,
                               const int32_t *bias, const size_t *start, int vectors, int32_t *y, size_t stride) {
    vi r = splat_i(bias[0]), i = splat_i(bias[1]), j = splat_i(bias[2]), k = splat_i(bias[3]), r2 = r, i2 = i, j2 = j, k2 = k;
    size_t s;
    for (s = 0; s < count; s++, w += 8) {
        const int32_t *p = x + place[s] + start[0], *q = x + place[s] + start[1];
        vi ri = load_i(p), jk = load_i(p + set), ri2 = ri, jk2 = jk, a, b;
        if (vectors == 2) ri2 = load_i(q), jk2 = load_i(q + set);
#define MULTIPLY(n, sum, sum2)                                          \
    a = splat_i(w[2 * (n)]), b = splat_i(w[2 * (n) + 1]);               \
    sum += dot_pairs(ri, a) + dot_pairs(jk, b);                         \
    if (vectors == 2) sum2 += dot_pairs(ri2, a) + dot_pairs(jk2, b)
        MULTIPLY(0, r, r2);
        MULTIPLY(1, i, i2);
        MULTIPLY(2, j, j2);
        MULTIPLY(3, k, k2);
#undef MULTIPLY
    }
    store_i(y, r), store_i(y + stride, i), store_i(y + 2 * stride, j), store_i(y + 3 * stride, k);
    if (vectors == 2) {
        y += LANES;
        store_i(y, r2), store_i(y + stride, i2), store_i(y + 2 * stride, j2), store_i(y + 3 * stride, k2);
    }
}

#endif

INLINE void real_tile_i8(const int32_t *x, const int32_t *place, const int32_t *w, size_t count, int32_t bias,
                         const size_t *start, int vectors, int32_t *y) {
    vi a = splat_i(bias), b = a;
    size_t s;
    for (s = 0; s < count; s++) {
        vi ws = splat_i(w[s]);
        a = add_pairs(a, load_i(x + place[s] + start[0]), ws);
        if (vectors == 2) b = add_pairs(b, load_i(x + place[s] + start[1]), ws);
    }
    store_i(y, a);
    if (vectors == 2) store_i(y + LANES, b);
}

#define I8_KERNEL(name, call)                                                                                              \
    KERNEL void name(const int32_t *x, size_t set, const int32_t *place, const int32_t *w, size_t count,                   \
                     const int32_t *bias, const size_t *start, int32_t *y, size_t stride) {                                \
        (void)set, (void)stride;                                                                                           \
        call;                                                                                                              \
    }
#if LANES > 1 && !IN_BYTES
I8_KERNEL(quaternion_i8_1, quaternion_tile_i8(x, set, place, w, count, bias, start, 1, y, stride))
I8_KERNEL(quaternion_i8_2, quaternion_tile_i8(x, set, place, w, count, bias, start, 2, y, stride))
#endif
I8_KERNEL(real_i8_1, real_tile_i8(x, place, w, count, bias[0], start, 1, y))
I8_KERNEL(real_i8_2, real_tile_i8(x, place, w, count, bias[0], start, 2, y))
#undef I8_KERNEL

static void output_i8(const convolution *c, const int32_t *x, const int32_t *place, const int32_t *w, size_t count,
                      const int32_t *bias, int32_t *y) {
    static void (*const kernels[2][2])(const int32_t *, size_t, const int32_t *, const int32_t *, size_t, const int32_t *,
                                       const size_t *, int32_t *, size_t) = {
        {real_i8_1, real_i8_2},
#if LANES > 1 && !IN_BYTES
        {quaternion_i8_1, quaternion_i8_2}
#endif
    };
    size_t set = c->set, stride = c->span, v, n, vectors, start[2];
    walk at = walk_of(c);
#if LANES == 1
    if (c->w.components == 4) {
        for (v = 0; v < stride; v++) {
            int32_t sums[4];
            memcpy(sums, bias, sizeof sums);
            (c->sets == 2 ? quaternion_sums_i8_2 : quaternion_sums_i8_1)(x + next_vector(c, &at), set, place, place + count, w, sums);
            for (n = 0; n < 4; n++) y[n * stride + v] = sums[n];
        }
        return;
    }
#endif
#if IN_BYTES
    if (c->w.components == 4) {
        enum { MOST = 8 };
        static void (*const kernels_of_bytes[MOST / 2])(const int32_t *, const int32_t *, const int32_t *, size_t, const int32_t *,
                                                       const size_t *, int32_t *, size_t) = {
            quaternion_bytes_1, quaternion_bytes_2, quaternion_bytes_3, quaternion_bytes_4};
        size_t starts[MOST];
        for (v = 0; v < c->vectors; v += vectors) {
            vectors = next_starts(c, &at, c->vectors - v, MOST, starts);
            kernels_of_bytes[(vectors - 1) / 2](x, place, w, count, bias, starts, y + v * LANES, stride);
        }
        return;
    }
#endif
    start[1] = 0;
    for (v = 0; v < c->vectors; v += vectors) {
        vectors = smaller(2, c->vectors - v);
        for (n = 0; n < vectors; n++) start[n] = next_vector(c, &at);
        kernels[c->w.components == 4][vectors - 1](x, set, place, w, count, bias, start, y + v * LANES, stride);
    }
}

/* What the channel that carries 1 adds to an output; `numbers` has its weight, (4, kernel). */
static void add_constant(const convolution *c, const float *ones, const int32_t *place, const float *numbers, float *y) {
    size_t m, v, k;
    for (m = 0; m < 4; m++, numbers += c->area, y += c->span) {
        walk at = walk_of(c);
        for (v = 0; v < c->vectors; v++) {
            size_t start = next_vector(c, &at);
            vf sum = load(y + v * LANES);
            for (k = 0; k < c->area; k++) sum += splat(numbers[k]) * load(ones + place[k] + start);
            store(y + v * LANES, sum);
        }
    }
}

/* All bits of a lane where there is a 1, none where there is 0. */
INLINE vi set_where_one(const float *p) {
#if LANES > 1
    return (vi)(load(p) != (vf){0});
#else
    return *p != 0.0f ? -1 : 0;
#endif
}

static void add_constant_i8(const convolution *c, const float *ones, const int32_t *place, const int32_t *numbers, int32_t *y) {
    size_t m, v, k;
    for (m = 0; m < 4; m++, numbers += c->area, y += c->span) {
        walk at = walk_of(c);
        for (v = 0; v < c->vectors; v++) {
            size_t start = next_vector(c, &at);
            vi sum = load_i(y + v * LANES);
            for (k = 0; k < c->area; k++) sum += splat_i(numbers[k]) & set_where_one(ones + place[k] + start);
            store_i(y + v * LANES, sum);
        }
    }
}

#if LANES > 1

/* The units of output `o` at their taps, zeros between them: where they lie, if that is how they are stored. */
static const float *dense_floats(const weights *w, size_t o, float *row) {
    size_t width = w->components, n = first_unit(w, o), end = n + unit_count(w, o), k;
    const uint8_t *gap = w->starts ? w->gaps + w->gap_starts[o] : NULL;
    float *to = row;
    if (!gap) return floats_of(w, o, row);
    memset(row, 0, 4 * width * w->taps);
    for (; n < end; n++, to += width) {
        for (; *gap == 255; gap++) to += 255 * width;
        to += *gap++ * width;
        if (w->dtype == QRN_F32 && width == 4) memcpy(to, (const float *)w->values + 4 * n, 16);
        else if (w->dtype == QRN_F32) *to = ((const float *)w->values)[n];
        else if (w->dtype == QRN_F16) for (k = 0; k < width; k++) to[k] = half_to_float(((const uint16_t *)w->values)[n * width + k]);
        else for (k = 0; k < width; k++) to[k] = (float)((const int8_t *)w->values)[n * width + k] * w->scales[o];
    }
    return row;
}

/* `outputs` real sums at `wide` registers of positions: each number that is loaded is used several times. Weights are `pitch`
 * numbers apart. The same for floats and, with products of pairs, for int8. */
#define BLOCK_TILE(name, number, vector, fetch, put, all, plus)                                                               \
    INLINE void name(const number *x, const int32_t *place, size_t count, const number *w, size_t pitch, int outputs,         \
                     const size_t *start, int wide, number *y, size_t stride) {                                               \
        vector a0 = {0}, a1 = a0, a2 = a0, a3 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0, c0 = a0, c1 = a0, c2 = a0, c3 = a0;   \
        vector d0 = a0, d1 = a0, d2 = a0, d3 = a0, e0 = a0, e1 = a0, e2 = a0, e3 = a0, f0 = a0, f1 = a0, f2 = a0, f3 = a0;    \
        vector g0 = a0, g1 = a0, g2 = a0, g3 = a0, h0 = a0, h1 = a0, h2 = a0, h3 = a0;                                        \
        size_t s;                                                                                                             \
        for (s = 0; s < count; s++, w += pitch) {                                                                             \
            const number *p = x + place[s];                                                                                   \
            vector x0 = fetch(p, start), x1 = x0, x2 = x0, x3 = x0, ws;                                                       \
            if (wide > 1) x1 = fetch(p, start + AT_ONCE);                                                                     \
            if (wide > 2) x2 = fetch(p, start + 2 * AT_ONCE);                                                                 \
            if (wide > 3) x3 = fetch(p, start + 3 * AT_ONCE);                                                                 \
            EACH_OUTPUT(MULTIPLY, all, plus)                                                                                  \
        }                                                                                                                     \
        EACH_OUTPUT(STORE, put, )                                                                                             \
    }
#define EACH_OUTPUT(do, one, other)                                                                            \
    do(0, a, one, other) do(1, b, one, other) do(2, c, one, other) do(3, d, one, other)                        \
    do(4, e, one, other) do(5, f, one, other) do(6, g, one, other) do(7, h, one, other)
#define MULTIPLY(o, s, all, plus)                   \
    if (outputs > (o)) {                            \
        ws = all(w[o]);                             \
        s##0 = plus(s##0, ws, x0);                  \
        if (wide > 1) s##1 = plus(s##1, ws, x1);    \
        if (wide > 2) s##2 = plus(s##2, ws, x2);    \
        if (wide > 3) s##3 = plus(s##3, ws, x3);    \
    }
#define STORE(o, s, put, unused)                                            \
    if (outputs > (o)) {                                                    \
        put(y + (o) * stride, s##0);                                        \
        if (wide > 1) put(y + (o) * stride + LANES * AT_ONCE, s##1);        \
        if (wide > 2) put(y + (o) * stride + 2 * LANES * AT_ONCE, s##2);    \
        if (wide > 3) put(y + (o) * stride + 3 * LANES * AT_ONCE, s##3);    \
    }
#define ADD_PRODUCT(sum, a, b) ((sum) + (a) * (b))
BLOCK_TILE(block_tile, float, wide_f, load_wide, store_wide, splat_wide, ADD_PRODUCT)
BLOCK_TILE(block_tile_i8, int32_t, wide_i, load_wide_i, store_wide_i, splat_wide_i, add_wide_pairs)
#undef ADD_PRODUCT
#undef STORE
#undef MULTIPLY
#undef EACH_OUTPUT
#undef BLOCK_TILE

#define BLOCK_KERNEL(tile, number, outputs, wide)                                                                           \
    KERNEL void tile##_##outputs##_##wide(const number *x, const int32_t *place, size_t count, const number *w, size_t pitch, \
                                          const size_t *start, number *y, size_t stride) {                                  \
        tile(x, place, count, w, pitch, outputs, start, wide, y, stride);                                                   \
    }
#define BLOCK_KERNELS(tile, number, outputs)                                                        \
    BLOCK_KERNEL(tile, number, outputs, 1) BLOCK_KERNEL(tile, number, outputs, 2) BLOCK_KERNEL(tile, number, outputs, 3)
#define OF(tile, outputs) {tile##_##outputs##_1, tile##_##outputs##_2, tile##_##outputs##_3}
#define FOUR_KERNELS(tile, number) \
    BLOCK_KERNELS(tile, number, 1) BLOCK_KERNELS(tile, number, 2) BLOCK_KERNELS(tile, number, 3) BLOCK_KERNELS(tile, number, 4)
#define FOUR_OF(tile) OF(tile, 1), OF(tile, 2), OF(tile, 3), OF(tile, 4)
FOUR_KERNELS(block_tile, float)
FOUR_KERNELS(block_tile_i8, int32_t)
#if AT_ONCE == 2
BLOCK_KERNELS(block_tile, float, 5) BLOCK_KERNELS(block_tile, float, 6)
BLOCK_KERNELS(block_tile, float, 7) BLOCK_KERNELS(block_tile, float, 8)
#define ALL_OF(tile) FOUR_OF(tile), OF(tile, 5), OF(tile, 6), OF(tile, 7), OF(tile, 8)
#elif IN_TWOS
BLOCK_KERNEL(block_tile, float, 2, 4) BLOCK_KERNEL(block_tile, float, 3, 4)
#define WITH_FOURTH(tile, outputs) {tile##_##outputs##_1, tile##_##outputs##_2, tile##_##outputs##_3, tile##_##outputs##_4}
#define ALL_OF(tile) OF(tile, 1), WITH_FOURTH(tile, 2), WITH_FOURTH(tile, 3), OF(tile, 4)
#else
#define ALL_OF(tile) FOUR_OF(tile)
#endif
#define BLOCK_SUMS(name, number, most, ...)                                                                                    \
    static void name(const number *x, const int32_t *place, size_t count, const number *w, size_t pitch, size_t outputs,       \
                     const size_t *start, size_t vectors, number *y, size_t stride) {                                          \
        static void (*const kernels[most][IN_TWOS ? 4 : 3])(const number *, const int32_t *, size_t, const number *,         \
                                                                    size_t, const size_t *, number *, size_t) = {__VA_ARGS__}; \
        kernels[outputs - 1][(vectors - 1) / AT_ONCE](x, place, count, w, pitch, start, y, stride);                            \
    }
BLOCK_SUMS(block_sums, float, OUTPUTS_AT_ONCE, ALL_OF(block_tile))
BLOCK_SUMS(block_sums_i8, int32_t, BLOCK_I8, FOUR_OF(block_tile_i8))
#undef BLOCK_SUMS
#undef ALL_OF
#undef WITH_FOURTH
#undef FOUR_OF
#undef FOUR_KERNELS
#undef OF
#undef BLOCK_KERNELS
#undef BLOCK_KERNEL

/* A number of each output of a block; quaternions of outputs 0 and 4, 1 and 5 and so on side by side, if it has eight. */
typedef float vb __attribute__((vector_size(4 * BLOCK)));
#if BLOCK == 8
typedef int32_t vb_places __attribute__((vector_size(32)));
#define OF_EIGHT(n) ((n) < 4 ? (n) : (n) + 4)
#define SHUFFLE_FOURS(x, y, a, b, c, d)                                                                          \
    SHUFFLE(vb_places, x, y, OF_EIGHT(a), OF_EIGHT(b), OF_EIGHT(c), OF_EIGHT(d), OF_EIGHT(a) + 4, OF_EIGHT(b) + 4, \
            OF_EIGHT(c) + 4, OF_EIGHT(d) + 4)
INLINE vb load_fours(const float *const *units, size_t n, size_t at) {
    return (vb)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(units[n] + at)), _mm_loadu_ps(units[n + 4] + at), 1);
}
#else
#define SHUFFLE_FOURS(x, y, a, b, c, d) SHUFFLE(vi4, x, y, a, b, c, d)
INLINE vb load_fours(const float *const *units, size_t n, size_t at) { return load4(units[n] + at); }
#endif

/* Numbers of the four components of a block of quaternions. */
INLINE void turn_block(const float *const *units, size_t at, vb *to) {
    vb a = load_fours(units, 0, at), b = load_fours(units, 1, at), c = load_fours(units, 2, at), d = load_fours(units, 3, at);
    vb ab = SHUFFLE_FOURS(a, b, 0, 4, 1, 5), cd = SHUFFLE_FOURS(c, d, 0, 4, 1, 5);
    vb ab2 = SHUFFLE_FOURS(a, b, 2, 6, 3, 7), cd2 = SHUFFLE_FOURS(c, d, 2, 6, 3, 7);
    to[0] = SHUFFLE_FOURS(ab, cd, 0, 1, 4, 5), to[1] = SHUFFLE_FOURS(ab, cd, 2, 3, 6, 7);
    to[2] = SHUFFLE_FOURS(ab2, cd2, 0, 1, 4, 5), to[3] = SHUFFLE_FOURS(ab2, cd2, 2, 3, 6, 7);
}

/* The weights of the eight products, `step` numbers apart. What they lack of factors is made up for at the end. */
INLINE void put_products(vb r, vb i, vb j, vb k, size_t step, float *w) {
    vb value;
#define PUT(product, expression) (value = (expression), memcpy(w + (product) * step, &value, sizeof value))
    PUT(0, (r + i) + (j + k));
    PUT(1, (r - i) + (j - k));
    PUT(2, (r + i) - (j + k));
    PUT(3, (r - i) - (j - k));
    PUT(4, r);
    PUT(5, j);
    PUT(6, k);
    PUT(7, i);
#undef PUT
}

/* Quaternions of a block of outputs, (tap, component), to the weights `w` (product, tap, output) of the eight products. For two
 * rows of results at once the three numbers of a kernel's column become four, and all first ones come first. */
static void spread_block(const convolution *c, const float *const *units, float *w) {
    size_t all = c->units * c->area * BLOCK, area = c->w.taps / c->units, n, k;
    for (n = 0; n < c->units; n++) {
        for (k = 0; k < c->area; k++, w += BLOCK) {
            size_t at = 4 * (n * area + k);
            vb a[4];
            turn_block(units, at, a);
            put_products(a[0], a[1], a[2], a[3], IN_TWOS && c->two ? 4 * all : all, w);
            if (IN_TWOS && c->two) {
                vb b[4], d[4];
                turn_block(units, at + 4 * c->area, b);
                turn_block(units, at + 8 * c->area, d);
                put_products(d[0], d[1], d[2], d[3], 4 * all, w + 3 * all);
#define HALF_SUM(o) (0.5f * (a[o] + d[o]) + 0.5f * b[o])
#define HALF_DIFFERENCE(o) (0.5f * (a[o] + d[o]) - 0.5f * b[o])
                put_products(HALF_SUM(0), HALF_SUM(1), HALF_SUM(2), HALF_SUM(3), 4 * all, w + all);
                put_products(HALF_DIFFERENCE(0), HALF_DIFFERENCE(1), HALF_DIFFERENCE(2), HALF_DIFFERENCE(3), 4 * all, w + 2 * all);
#undef HALF_DIFFERENCE
#undef HALF_SUM
            }
        }
    }
}

static void spread(const convolution *c, size_t first, size_t outputs, float *rows, float *w) {
    const float *units[BLOCK];
    size_t o;
    for (o = 0; o < BLOCK; o++) { /* a block that is not full has its last output several times */
        units[o] = o < outputs ? dense_floats(&c->w, first + o, rows + 4 * o * c->w.taps) : units[o - 1];
    }
    spread_block(c, units, w);
}

/* Where the sums of an output go, and those of its components: `size` of them each, none smaller than `least`. */
typedef struct {
    float *y, least;
    size_t output, component, size;
} destination;

KERNEL void put_last(float *y, const wide_f *sums, size_t count) { memcpy(y, sums, 4 * count); }
INLINE void put_sums(const destination *to, size_t output, size_t component, size_t at, wide_f sums) {
    float *y = to->y + output * to->output + component * to->component + at;
    sums = maximum_wide(splat_wide(to->least), sums);
    if (at + LANES * AT_ONCE <= to->size) store_wide(y, sums);
    else if (at < to->size) put_last(y, &sums, to->size - at);
}

/* The same for the four components of an output, whose biases are added first. */
INLINE void put_quaternions(const destination *to, size_t output, size_t at, wide_f *sums, const float *bias) {
    float *y = to->y + output * to->output + at;
    wide_f least = splat_wide(to->least);
    size_t m;
    sums[0] = maximum_wide(least, sums[0] + bias[0]), sums[1] = maximum_wide(least, sums[1] + bias[1]);
    sums[2] = maximum_wide(least, sums[2] + bias[2]), sums[3] = maximum_wide(least, sums[3] + bias[3]);
    if (at + LANES * AT_ONCE <= to->size) {
        store_wide(y, sums[0]), store_wide(y + to->component, sums[1]);
        store_wide(y + 2 * to->component, sums[2]), store_wide(y + 3 * to->component, sums[3]);
    } else {
        for (m = 0; m < 4 && at < to->size; m++) put_last(y + m * to->component, sums + m, to->size - at);
    }
}

/* The sums of eight products to results. */
INLINE void results_of(wide_f p0, wide_f p1, wide_f p2, wide_f p3, wide_f p4, wide_f p5, wide_f p6, wide_f p7, wide_f *to) {
    wide_f s = p0 + p1, d = p0 - p1, t = p2 + p3, e = p2 - p3;
    to[0] = 2.0f * p4 - 0.25f * (s + t), to[1] = 0.25f * (d + e) - 2.0f * p6;
    to[2] = 0.25f * (s - t) - 2.0f * p7, to[3] = 0.25f * (d - e) - 2.0f * p5;
}

/* A block of outputs of a layer of which most quaternions are stored, with 8 real products for each: c = w (x) x is, with H
 * the Walsh-Hadamard matrix,
 *     (-c_r, c_i, c_j, c_k) = H[(H w) o (H x)] / 4 - 2 (w_r x_r, w_k x_j, w_i x_k, w_j x_i).
 * `x` is H x. */
static void hadamard_outputs(const convolution *c, const float *x, const float *components, const int32_t *place, size_t first,
                             size_t outputs, float *rows, float *w, const destination *to) {
    enum { NEXT = 12 * AT_ONCE, WIDE = AT_ONCE * LANES }; /* registers of sums of one kind */
    size_t taps = c->units * c->area, times = IN_TWOS && c->two ? 4 : 1, set = c->in_place ? c->channels * c->plane : c->set, o, v, k, n, part, many, vectors;
    const destination all = *to;
    spread(c, first, outputs, rows, w);
    for (part = 0; part < outputs; part += many) {
        walk at = walk_of(c);
        size_t most;
        many = next_share(outputs - part, OUTPUTS_AT_ONCE);
        most = IN_TWOS && (many == 2 || many == 3) ? 4 : 3; /* registers */
        for (v = 0; v < c->vectors; v += vectors) {
            wide_f sums[IN_TWOS ? 32 : 8][NEXT]; /* aligned */
            size_t start[4 * AT_ONCE], here;
            vectors = next_starts(c, &at, c->vectors - v, most * AT_ONCE, start);
            for (n = 0; n < 8; n++) {
                const float *from = n < 4 ? x + n * c->set : components + (n - 4) * set;
                for (k = 0; k < times; k++, from += c->plane / 4) {
                    block_sums(from, place, taps, w + (n * times + k) * taps * BLOCK + part, BLOCK, many, start, vectors,
                               (float *)(void *)sums[n * times + k], most * WIDE);
                }
            }
            for (o = 0; o < many; o++) {
                const float *b = (const float *)c->w.bias + first + part + o;
                const float bias[4] = {b[0], b[c->w.outputs], b[2 * c->w.outputs], b[3 * c->w.outputs]};
                const wide_f *p = sums[0] + most * o;
                for (here = v * LANES; here < (v + vectors) * LANES; here += WIDE, p++) {
                    wide_f result[4];
#define EACH_PRODUCT(of) of(0), of(1), of(2), of(3), of(4), of(5), of(6), of(7)
#if IN_TWOS
                    if (c->two) {
                        wide_f other[4];
#define EVEN_ROW(n) p[4 * (n) * NEXT] + (p[(4 * (n) + 1) * NEXT] + p[(4 * (n) + 2) * NEXT])
#define ODD_ROW(n) (p[(4 * (n) + 1) * NEXT] - p[(4 * (n) + 2) * NEXT]) - p[(4 * (n) + 3) * NEXT]
                        results_of(EACH_PRODUCT(EVEN_ROW), result);
                        results_of(EACH_PRODUCT(ODD_ROW), other);
#undef ODD_ROW
#undef EVEN_ROW
                        if (c->pool) {
                            result[0] = maximum(result[0], other[0]), result[1] = maximum(result[1], other[1]);
                            result[2] = maximum(result[2], other[2]), result[3] = maximum(result[3], other[3]);
                        } else {
                            put_quaternions(&all, part + o, here + c->span / 2, other, bias);
                        }
                        put_quaternions(&all, part + o, here, result, bias);
                        continue;
                    }
#endif
#define ONE(n) p[(n) * NEXT]
                    results_of(EACH_PRODUCT(ONE), result);
                    put_quaternions(&all, part + o, here, result, bias);
#undef ONE
#undef EACH_PRODUCT
                }
            }
        }
    }
}

/* A block of outputs of a real layer. */
static void real_outputs(const convolution *c, const float *x, const int32_t *place, size_t first, size_t outputs,
                         float *rows, float *w, const destination *to) {
    size_t taps = c->w.taps, o, t, v, k, part, many, vectors;
    const float *bias = (const float *)c->w.bias + first;
    walk at = walk_of(c);
    for (o = 0; o < outputs; o++) {
        const float *q = dense_floats(&c->w, first + o, rows);
        for (t = 0; t < taps; t++) w[t * BLOCK + o] = q[t];
    }
    for (v = 0; v < c->vectors; v += vectors) {
        wide_f sums[BLOCK][BLOCK_VECTORS / AT_ONCE];
        size_t start[BLOCK_VECTORS];
        vectors = next_starts(c, &at, c->vectors - v, BLOCK_VECTORS, start);
        for (part = 0; part < outputs; part += many) {
            many = next_share(outputs - part, OUTPUTS_AT_ONCE);
            block_sums(x, place, taps, w + part, BLOCK, many, start, vectors, (float *)(void *)sums[part], BLOCK_VECTORS * LANES);
        }
        for (o = 0; o < outputs; o++) {
            for (k = 0; k * AT_ONCE < vectors; k++) put_sums(to, o, 0, (v + k * AT_ONCE) * LANES, sums[o][k] + bias[o]);
        }
    }
}

/* The weights of the eight products of one quaternion, four times as large as above, so that they are whole. */
typedef int16_t products __attribute__((vector_size(16)));
INLINE products products_of(const int8_t *q) {
    short r = q[0], i = q[1], j = q[2], k = q[3];
    products all = {(short)(r + i + j + k), (short)(r - i + j - k), (short)(r + i - j - k), (short)(r - i - j + k),
                    (short)(8 * r),         (short)(-8 * j),        (short)(-8 * k),        (short)(-8 * i)};
    return all;
}

/* Pairs of them, of a channel and the next one, for the units `q` of output `o`: `w` (product, tap of pairs, output). */
static void spread_pairs(const convolution *c, const int8_t *q, size_t o, int32_t *w) {
    size_t area = c->area, channels = c->channels / c->groups, step = c->units * area * BLOCK_I8, t, n, g;
    for (n = 0; n < channels; n += 2) {
        for (t = 0; t < area; t++) {
            products low = products_of(q + 4 * (n * area + t)), high = {0};
            int32_t *to = w + (n / 2 * area + t) * BLOCK_I8 + o;
            if (n + 1 < channels) high = products_of(q + 4 * ((n + 1) * area + t));
            for (g = 0; g < 8; g++) to[g * step] = pair(low[g], high[g]);
        }
    }
}

/* A block of outputs in int8, of quaternions or real numbers. */
static void outputs_i8(const convolution *c, const int32_t *x, const int32_t *place, size_t first, size_t outputs,
                       int32_t *w, int32_t *y) {
    size_t sets = !IN_EIGHTS && c->w.components == 4 ? 8 : 1, set = c->set, stride = c->span, o, v, g, k, n, vectors;
    size_t taps = c->units * c->area, step = taps * BLOCK_I8;
    const int32_t *bias = (const int32_t *)c->w.bias + first;
    const int8_t *units = (const int8_t *)c->w.values + first * c->w.taps * c->w.width; /* stored dense */
    walk at = walk_of(c);
    for (o = 0; o < outputs; o++) {
        const int8_t *q = units + o * c->w.taps * c->w.width;
        if (sets == 8) spread_pairs(c, q, o, w);
        else for (n = 0; n < taps; n++) w[n * BLOCK_I8 + o] = real_pair(&c->w, q, n);
    }
    for (v = 0; v < c->vectors; v += vectors) {
        int32_t sums[8][BLOCK_I8][BLOCK_VECTORS * LANES];
        size_t start[BLOCK_VECTORS];
        vectors = next_starts(c, &at, c->vectors - v, BLOCK_VECTORS, start);
        for (g = 0; g < sets; g++) {
            block_sums_i8(x + g * set, place, taps, w + g * step, BLOCK_I8, outputs, start, vectors, sums[g][0], BLOCK_VECTORS * LANES);
        }
        for (o = 0; o < outputs; o++) {
            int32_t *to = y + c->w.components * o * stride + v * LANES;
            for (k = 0; k < vectors * LANES; k += LANES, to += LANES) {
                vi p0 = load_i(sums[0][o] + k);
                if (sets == 8) {
                    vi p1 = load_i(sums[1][o] + k), p2 = load_i(sums[2][o] + k), p3 = load_i(sums[3][o] + k);
                    vi s = p0 + p1, d = p0 - p1, t = p2 + p3, e = p2 - p3;
                    store_i(to, ((load_i(sums[4][o] + k) - (s + t)) >> 2) + bias[o]);
                    store_i(to + stride, ((load_i(sums[6][o] + k) + (d + e)) >> 2) + bias[c->w.outputs + o]);
                    store_i(to + 2 * stride, ((load_i(sums[7][o] + k) + (s - t)) >> 2) + bias[2 * c->w.outputs + o]);
                    store_i(to + 3 * stride, ((load_i(sums[5][o] + k) + (d - e)) >> 2) + bias[3 * c->w.outputs + o]);
                } else {
                    store_i(to, p0 + bias[o]);
                }
            }
        }
    }
}
/* A quaternion output in int8, without its bias, if the input has one component: like a block of four outputs of pairs, each of
 * a tap and, where it is stored too, the next one of its row. The pairs' weights go to `w`, their places to `places`. */
static void gray_output_i8(const convolution *c, const int32_t *x, const int32_t *place, size_t o, int32_t *places, int32_t *w, int32_t *y) {
    size_t stored = unit_count(&c->w, o), count = 0, n, m, v, vectors, start[BLOCK_VECTORS];
    const int8_t *q = (const int8_t *)c->w.values + 4 * first_unit(&c->w, o);
    walk at = walk_of(c);
    if (c->w.starts) stored_taps(&c->w, o, NULL, places);
    for (n = 0; n < stored; n++, count++) {
        size_t tap = c->w.starts ? (size_t)places[n] : n, next = n + 1 < stored ? c->w.starts ? (size_t)places[n + 1] : n + 1 : 0;
        const int8_t *first = q + 4 * n;
        int two = next == tap + 1 && next % c->kernel[1] != 0;
        for (m = 0; m < 4; m++) w[4 * count + m] = pair(first[m], two ? first[4 + m] : 0);
        places[count] = place[tap];
        n += (size_t)two;
    }
    for (v = 0; v < c->vectors; v += vectors) {
        vectors = next_starts(c, &at, c->vectors - v, BLOCK_VECTORS, start);
        block_sums_i8(x, places, count, w, 4, 4, start, vectors, y + v * LANES, c->span);
    }
}
#endif

#if IN_EIGHTS
/* A quaternion output if the input is real or has no real part: like a block of four real outputs, in the second case of three
 * times as many taps, whose weights and places are put in `block`. To sums without the bias, or `straight`. */
static void few_parts_output(const convolution *c, const float *x, const int32_t *place, const float *w, size_t count, const float *bias,
                             float *block, int straight, const destination *to) {
    size_t v, n, m, vectors, start[BLOCK_VECTORS], set = c->set;
    walk at;
    if (c->sets == 3) {
        int32_t *places = (int32_t *)(void *)(block + 12 * count);
        for (n = 0; n < count; n++, w += 4) {
            v4 i = {-w[1], w[0], w[3], -w[2]}, j = {-w[2], -w[3], w[0], w[1]}, k = {-w[3], w[2], -w[1], w[0]};
            memcpy(block + 12 * n, &i, sizeof i), memcpy(block + 12 * n + 4, &j, sizeof j), memcpy(block + 12 * n + 8, &k, sizeof k);
            places[3 * n] = place[n], places[3 * n + 1] = place[n] + (int32_t)set, places[3 * n + 2] = place[n] + (int32_t)(2 * set);
        }
        w = block, place = places, count *= 3;
    }
    at = walk_of(c);
    for (v = 0; v < c->vectors; v += vectors) {
        wide_f sums[4][BLOCK_VECTORS / AT_ONCE];
        float *y = straight ? (float *)(void *)sums : to->y + v * LANES;
        vectors = next_starts(c, &at, c->vectors - v, BLOCK_VECTORS, start);
        block_sums(x, place, count, w, 4, 4, start, vectors, y, straight ? BLOCK_VECTORS * LANES : to->component);
        for (m = 0; straight && m < 4; m++) {
            for (n = 0; n * AT_ONCE < vectors; n++) put_sums(to, 0, m, (v + n * AT_ONCE) * LANES, sums[m][n] + bias[m]);
        }
    }
}

/* ------------------------------------------------------------------------ eight products in the lanes of a vector */

/* Where there are vectors of eight, a quaternion of the input is the eight numbers x' that the eight products multiply, side
 * by side: H x and then r, j, k, i. A position is one aligned vector then, of whatever width the image is, and a stored
 * quaternion one vector of weights: as many products as there are quaternions left, at half of their number. The weights make
 * up for signs and factors, so that with p = sum of w' o x' the result is
 *     (-1, 1, 1, 1) o H p[0..3] + p[4..7].
 * In int8 a quaternion is eight int16, and two of the stored quaternions are multiplied at once: of two neighbouring
 * positions (p, q) there are sums (p[0..3], q[0..3]) and (p[4..7], q[4..7]). */
enum { MOST_FLOATS = AT_ONCE == 2 ? 16 : 12, MOST_PAIRS = 5 }; /* registers, and pairs of positions, that an inner loop keeps sums of */

#define IN_HALVES(type, a, b, n, m, o, p) SHUFFLE(type, a, b, n, m, o, p, (n) + 4, (m) + 4, (o) + 4, (p) + 4)
#define LOW_HALVES(a, b) SHUFFLE(vi, a, b, 0, 1, 2, 3, 8, 9, 10, 11)
#define HIGH_HALVES(a, b) SHUFFLE(vi, a, b, 4, 5, 6, 7, 12, 13, 14, 15)

/* Four vectors of eight numbers to quaternions: numbers 0 and 4, 1 and 5 and so on of each, side by side. */
INLINE void turn_halves(vf a, vf b, vf c, vf d, vf *to) {
    vf ab = IN_HALVES(vi, a, b, 0, 8, 1, 9), cd = IN_HALVES(vi, c, d, 0, 8, 1, 9);
    vf ab2 = IN_HALVES(vi, a, b, 2, 10, 3, 11), cd2 = IN_HALVES(vi, c, d, 2, 10, 3, 11);
    to[0] = IN_HALVES(vi, ab, cd, 0, 1, 8, 9), to[1] = IN_HALVES(vi, ab, cd, 2, 3, 10, 11);
    to[2] = IN_HALVES(vi, ab2, cd2, 0, 1, 8, 9), to[3] = IN_HALVES(vi, ab2, cd2, 2, 3, 10, 11);
}

/* x' of eight positions. */
INLINE void eight_floats(const float *const *part, size_t at, float *to) {
    vf r = load(part[0] + at), i = load(part[1] + at), j = load(part[2] + at), k = load(part[3] + at), first[4], last[4];
    vf s = r + i, d = r - i, t = j + k, e = j - k;
    turn_halves(s + t, d + e, s - t, d - e, first);
    turn_halves(r, j, k, i, last);
    store(to, LOW_HALVES(first[0], last[0])), store(to + 8, LOW_HALVES(first[1], last[1]));
    store(to + 16, LOW_HALVES(first[2], last[2])), store(to + 24, LOW_HALVES(first[3], last[3]));
    store(to + 32, HIGH_HALVES(first[0], last[0])), store(to + 40, HIGH_HALVES(first[1], last[1]));
    store(to + 48, HIGH_HALVES(first[2], last[2])), store(to + 56, HIGH_HALVES(first[3], last[3]));
}

/* The same as int16. */
INLINE void eight_shorts(const int8_t *const *part, size_t at, int16_t zero, int16_t *to) {
    shorts r = widened_shorts(part[0] + at, zero), i = widened_shorts(part[1] + at, zero);
    shorts j = widened_shorts(part[2] + at, zero), k = widened_shorts(part[3] + at, zero);
    shorts s = r + i, d = r - i, t = j + k, e = j - k, a[8] = {s + t, d + e, s - t, d - e, r, j, k, i}, b[8];
    turn_shorts(a, b);
    memcpy(to, b, sizeof b);
}

/* The input as planes of x', with borders. */
KERNEL void prepare_eights(const convolution *c, const void *x, int32_t zero, void *planes) {
    int pairs = !IN_BYTES && c->w.pairs;
    size_t bytes = pairs ? 16 : 32, number = pairs ? 1 : 4, size = c->size[0] * c->size[1], n, m, y, k, i;
    const uint8_t *part[4], *from = (const uint8_t *)x;
    uint8_t *plane = (uint8_t *)planes, *written = plane, *end = plane + (c->kernel_at - c->planes_at);
    if (!plain(c)) {
        memset(plane, 0, (size_t)(end - plane));
        written = end;
    }
    for (m = 0; m < 4; m++) part[m] = from + m * c->channels * size * number;
    for (n = 0; n < c->channels; n++, plane += c->plane * bytes) {
        for (y = 0; y < c->used[0]; y++) {
            size_t row = c->padding[0] + y * c->stuffing[0], at = n * size + y * c->size[1], width = c->used[1];
            uint8_t *first = plane + (row * c->padded_pitch + c->padding[1]) * bytes;
            for (; written < first; written += 16) memset(written, 0, 16); /* the border before this row */
            if (plain(c)) written = first + width * bytes;
            for (k = 0; k < width; k += 8) {
                int aside = !plain(c) || width < 8; /* a row of eight is written to where it belongs, also over another one */
                size_t left = aside ? k : smaller(k, width - 8);
                float eight[64];
                uint8_t *to = plane + (row * c->padded_pitch + c->padding[1] + left) * bytes;
                void *here = aside ? (void *)eight : (void *)to;
                if (pairs) eight_shorts((const int8_t *const *)(const void *)part, at + left, (int16_t)zero, (int16_t *)here);
                else eight_floats((const float *const *)(const void *)part, at + left, (float *)here);
                for (i = 0; aside && i < 8 && k + i < width; i++) {
                    to = plane + place_of(c, row, c->padding[1] + (k + i) * c->stuffing[1]) * bytes;
                    memcpy(to, (const uint8_t *)eight + i * bytes, bytes);
                }
            }
        }
    }
    memset(written, 0, (size_t)(end - written));
}

/* w' of `count` quaternions, and of one without weight behind them if that is odd. */
KERNEL void eight_weights(const float *q, size_t count, float *w) {
    static const vf FIRST = {1, -1, 1, -1, 1, -1, 1, -1}, SECOND = {1, 1, -1, -1, 1, 1, -1, -1};
    static const vf OTHERS = {2, -2, -2, -2, 2, -2, -2, -2};
    size_t n;
    for (n = 0; n < count; n += 2, q += 8, w += 16) {
        vf x = {0}, a, b;
        if (n + 1 < count) memcpy(&x, q, sizeof x);
        else memcpy(&x, q, sizeof x / 2);
        b = IN_HALVES(vi, x, x, 0, 3, 1, 2) * OTHERS;
        x = 0.25f * x;
        a = x * FIRST + IN_HALVES(vi, x, x, 1, 0, 3, 2);
        a = a * SECOND + IN_HALVES(vi, a, a, 2, 3, 0, 1);
        store(w, LOW_HALVES(a, b));
        store(w + 8, HIGH_HALVES(a, b));
    }
}

/* The same in int8, four times as large: 16 numbers for each two quaternions. */
KERNEL void eight_weights_i8(const int8_t *q, size_t count, int16_t *w) {
    static const pairs_of_lanes FIRST = {1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1, 1, -1};
    static const pairs_of_lanes SECOND = {1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1, 1, 1, -1, -1};
    static const pairs_of_lanes OTHERS = {8, -8, -8, -8, 8, -8, -8, -8, 8, -8, -8, -8, 8, -8, -8, -8};
    size_t n;
    for (n = 0; n < count; n += 4, q += 16, w += 32) {
        bytes_of_pairs bytes = {0};
        pairs_of_lanes x, a, b;
        if (count - n >= 4) memcpy(&bytes, q, sizeof bytes);
        else memcpy(&bytes, q, 4 * (count - n));
        x = __builtin_convertvector(bytes, pairs_of_lanes);
#define IN_FOURS(v, a, b, c, d) \
    SHUFFLE(pairs_of_lanes, v, v, a, b, c, d, 4 + a, 4 + b, 4 + c, 4 + d, 8 + a, 8 + b, 8 + c, 8 + d, 12 + a, 12 + b, 12 + c, 12 + d)
#define MIXED(v) SHUFFLE(pairs_of_lanes, v, v, 0, 4, 1, 5, 2, 6, 3, 7, 8, 12, 9, 13, 10, 14, 11, 15)
        b = IN_FOURS(x, 0, 3, 1, 2) * OTHERS;
        a = x * FIRST + IN_FOURS(x, 1, 0, 3, 2);
        a = a * SECOND + IN_FOURS(a, 2, 3, 0, 1);
        a = MIXED(a), b = MIXED(b);
#undef MIXED
#undef IN_FOURS
        store_i((int32_t *)(void *)w, LOW_HALVES((vi)a, (vi)b));
        store_i((int32_t *)(void *)(w + 16), HIGH_HALVES((vi)a, (vi)b));
    }
}

/* Sums of `many` registers of positions in a row, or half of them in each of two rows. Few of them have a second sum each for
 * every other tap, so that no product waits for the one before. */
#define EACH_SUM(do)                                                                                               \
    do(0, s0) do(1, s1) do(2, s2) do(3, s3) do(4, s4) do(5, s5) do(6, s6) do(7, s7) do(8, s8) do(9, s9) do(10, s10) \
    do(11, s11) do(12, s12) do(13, s13) do(14, s14) do(15, s15)
INLINE wide_f load_twice(const float *w) { /* in each half of a register */
#if AT_ONCE == 2
    return (wide_f)_mm512_broadcast_f64x4((__m256d)load(w));
#else
    return load(w);
#endif
}
INLINE void eights_tile(const float *x, size_t row, const int32_t *place, const float *w, size_t count, size_t many, size_t rows,
                        float *y) {
    wide_f s0 = {0}, s1 = s0, s2 = s0, s3 = s0, s4 = s0, s5 = s0, s6 = s0, s7 = s0, s8 = s0, s9 = s0, s10 = s0, s11 = s0;
    wide_f s12 = s0, s13 = s0, s14 = s0, s15 = s0, v;
    size_t each = many / rows, s = 0;
    const float *p, *q;
#define LOAD(n) load_row((n) < each ? p + 8 * AT_ONCE * (n) : q + 8 * AT_ONCE * ((n) - each))
#define MULTIPLY(n, sum) \
    if (many > (n)) sum += v * LOAD(n);
#define MULTIPLY_SECOND(n, sum) \
    if ((n) >= many && 2 * many > (n)) sum += v * LOAD((n) - many);
    for (; 2 * many <= 8 && s + 2 <= count; s += 2, w += 16) {
        p = x + place[s], q = p + row, v = load_twice(w);
        EACH_SUM(MULTIPLY)
        p = x + place[s + 1], q = p + row, v = load_twice(w + 8);
        EACH_SUM(MULTIPLY_SECOND)
    }
    for (; s < count; s++, w += 8) {
        p = x + place[s], q = p + row, v = load_twice(w);
        EACH_SUM(MULTIPLY)
    }
#undef MULTIPLY_SECOND
#undef MULTIPLY
#undef LOAD
    if (many == 1) s0 += s1;
    if (many == 2) s0 += s2, s1 += s3;
    if (many == 3) s0 += s3, s1 += s4, s2 += s5;
    if (many == 4) s0 += s4, s1 += s5, s2 += s6, s3 += s7;
#define STORE(n, sum) \
    if (many > (n)) store_wide(y + 8 * AT_ONCE * (n), sum);
    EACH_SUM(STORE)
#undef STORE
}
#undef EACH_SUM

#define EIGHTS_KERNEL(many, rows)                                                                                           \
    KERNEL void eights_##many(const float *x, size_t row, const int32_t *place, const float *w, size_t count, float *y) { \
        eights_tile(x, row, place, w, count, many, rows, y);                                                                \
    }
EIGHTS_KERNEL(1, 1) EIGHTS_KERNEL(2, 2) EIGHTS_KERNEL(3, 1) EIGHTS_KERNEL(4, 2) EIGHTS_KERNEL(5, 1) EIGHTS_KERNEL(6, 2)
EIGHTS_KERNEL(7, 1) EIGHTS_KERNEL(8, 2) EIGHTS_KERNEL(9, 1) EIGHTS_KERNEL(10, 2) EIGHTS_KERNEL(11, 1) EIGHTS_KERNEL(12, 2)
#if AT_ONCE == 2
EIGHTS_KERNEL(13, 1) EIGHTS_KERNEL(14, 2) EIGHTS_KERNEL(15, 1) EIGHTS_KERNEL(16, 2)
#endif
#undef EIGHTS_KERNEL

/* The same in int8, `many` pairs of positions; `count` is of pairs of quaternions. */
#define EACH_SUM(do) do(0, a0, b0) do(1, a1, b1) do(2, a2, b2) do(3, a3, b3) do(4, a4, b4)
INLINE void pairs_tile(const int16_t *x, size_t row, const int32_t *place, const int16_t *w, size_t count, size_t many, size_t rows,
                       int32_t *y) {
    vi a0 = {0}, a1 = a0, a2 = a0, a3 = a0, a4 = a0, b0 = a0, b1 = a0, b2 = a0, b3 = a0, b4 = a0;
    size_t each = many / rows, s;
    for (s = 0; s < count; s++, w += 16) {
        const int16_t *p = x + place[2 * s], *q = x + place[2 * s + 1];
        vi v = (vi)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)w));
        vi u = (vi)_mm256_broadcastsi128_si256(_mm_loadu_si128((const __m128i *)(const void *)(w + 8)));
#define MULTIPLY(n, a, b)                                                                                         \
    if (many > (n)) {                                                                                             \
        size_t at = (n) < each ? 16 * (n) : row + 16 * ((n) - each);                                              \
        pairs_of_lanes c = (pairs_of_lanes)load_i((const int32_t *)(const void *)(p + at));                       \
        pairs_of_lanes d = (pairs_of_lanes)load_i((const int32_t *)(const void *)(q + at));                       \
        __asm__("" : "+x"(c), "+x"(d)); /* they are loaded once */                                                 \
        a = add_pairs(a, (vi)SHUFFLE(pairs_of_lanes, c, d, 0, 16, 1, 17, 2, 18, 3, 19, 8, 24, 9, 25, 10, 26, 11, 27), v);    \
        b = add_pairs(b, (vi)SHUFFLE(pairs_of_lanes, c, d, 4, 20, 5, 21, 6, 22, 7, 23, 12, 28, 13, 29, 14, 30, 15, 31), u);  \
    }
        EACH_SUM(MULTIPLY)
#undef MULTIPLY
    }
#define STORE(n, a, b) \
    if (many > (n)) store_i(y + 16 * (n), a), store_i(y + 16 * (n) + 8, b);
    EACH_SUM(STORE)
#undef STORE
}
#undef EACH_SUM

#define PAIRS_KERNEL(many, rows)                                                                                           \
    KERNEL void pairs_##many(const int16_t *x, size_t row, const int32_t *place, const int16_t *w, size_t count, int32_t *y) { \
        pairs_tile(x, row, place, w, count, many, rows, y);                                                                \
    }
PAIRS_KERNEL(1, 1) PAIRS_KERNEL(2, 2) PAIRS_KERNEL(3, 1) PAIRS_KERNEL(4, 2) PAIRS_KERNEL(5, 1)
#undef PAIRS_KERNEL

/* A row of positions fills whole registers. */
INLINE size_t registers_of(size_t width) { return (width + AT_ONCE - 1) / AT_ONCE; }

/* Sums of one row of `width` registers, or of two; the second is none if `second` is not set. An even number of them in one row
 * is the same as two rows of half as many. */
#define SUM_ROWS(name, number, weight, sum, most, of_register, of_sums, ...)                                                  \
    static void name(const number *x, size_t row, int second, const int32_t *place, const weight *w, size_t count, size_t width, \
                     sum *y) {                                                                                                \
        static void (*const kernels[most])(const number *, size_t, const int32_t *, const weight *, size_t, sum *) = {__VA_ARGS__}; \
        size_t k, many;                                                                                                       \
        if (second && 2 * width <= (most)) {                                                                                  \
            kernels[2 * width - 1](x, row, place, w, count, y);                                                               \
            return;                                                                                                           \
        }                                                                                                                     \
        for (; second >= 0; second--, x += row) {                                                                             \
            for (k = 0; k < width; k += many, y += (of_sums) * many) {                                                        \
                many = next_share(width - k, most);                                                                           \
                kernels[many - 1](x + (of_register) * k, (of_register) * (many / 2), place, w, count, y);                     \
            }                                                                                                                 \
        }                                                                                                                     \
    }
#define TWELVE eights_1, eights_2, eights_3, eights_4, eights_5, eights_6, eights_7, eights_8, eights_9, eights_10, eights_11, eights_12
#if AT_ONCE == 2
SUM_ROWS(sum_floats, float, float, float, MOST_FLOATS, 16, 16, TWELVE, eights_13, eights_14, eights_15, eights_16)
#else
SUM_ROWS(sum_floats, float, float, float, MOST_FLOATS, 8, 8, TWELVE)
#endif
#undef TWELVE
SUM_ROWS(sum_pairs, int16_t, int16_t, int32_t, MOST_PAIRS, 16, 16, pairs_1, pairs_2, pairs_3, pairs_4, pairs_5)
#undef SUM_ROWS

INLINE vf two_fours(const float *low, const float *high) {
    return (vf)_mm256_insertf128_ps(_mm256_castps128_ps256(_mm_loadu_ps(low)), _mm_loadu_ps(high), 1);
}
/* Two quaternions of their sums. */
INLINE vf two_floats(const float *s, vf bias) {
    static const vf FIRST = {1, -1, 1, -1, 1, -1, 1, -1}, SECOND = {1, 1, -1, -1, 1, 1, -1, -1}, SIGNS = {-1, 1, 1, 1, -1, 1, 1, 1};
    vf a = two_fours(s, s + 8), b = two_fours(s + 4, s + 12);
    a = a * FIRST + IN_HALVES(vi, a, a, 1, 0, 3, 2);
    a = a * SECOND + IN_HALVES(vi, a, a, 2, 3, 0, 1);
    return a * SIGNS + (b + bias);
}
INLINE vi two_whole(const int32_t *s, vi bias) {
    vi a = load_i(s), b = load_i(s + 8), swapped = IN_HALVES(vi, a, a, 1, 0, 3, 2);
    a = SHUFFLE(vi, swapped + a, swapped - a, 0, 9, 2, 11, 4, 13, 6, 15);
    swapped = IN_HALVES(vi, a, a, 2, 3, 0, 1);
    a = SHUFFLE(vi, swapped + a, swapped - a, 0, 1, 10, 11, 4, 5, 14, 15);
    return (SHUFFLE(vi, b - a, b + a, 0, 9, 10, 11, 4, 13, 14, 15) >> 2) + bias;
}

/* Quaternions, four numbers each, to planes of them. */
KERNEL void quaternions_to_planes(const float *q, size_t count, float *y, size_t plane) {
    size_t n, k;
    for (n = 0; count >= 4 && n < count; n += 4) {
        size_t at = smaller(n, count - 4);
        v4 a = load4(q + 4 * at), b = load4(q + 4 * at + 4), c = load4(q + 4 * at + 8), d = load4(q + 4 * at + 12), to;
        v4 ab = SHUFFLE(vi4, a, b, 0, 4, 1, 5), cd = SHUFFLE(vi4, c, d, 0, 4, 1, 5);
        v4 ab2 = SHUFFLE(vi4, a, b, 2, 6, 3, 7), cd2 = SHUFFLE(vi4, c, d, 2, 6, 3, 7);
#define PUT(n, expression) (to = (expression), memcpy(y + (n) * plane + at, &to, sizeof to))
        PUT(0, SHUFFLE(vi4, ab, cd, 0, 1, 4, 5));
        PUT(1, SHUFFLE(vi4, ab, cd, 2, 3, 6, 7));
        PUT(2, SHUFFLE(vi4, ab2, cd2, 0, 1, 4, 5));
        PUT(3, SHUFFLE(vi4, ab2, cd2, 2, 3, 6, 7));
#undef PUT
    }
    for (; n < count; n++) {
        for (k = 0; k < 4; k++) y[k * plane + n] = q[4 * n + k];
    }
}

/* Of a row of sums, or two rows if `pool` is set, the quaternions with their biases, which are `step` numbers apart. */
#define FINISH_ROW(name, number, vector, fetch, put, two, most)                                                          \
    KERNEL void name(const number *s, size_t width, const number *bias, const number *bias2, size_t step, int pool, int relu, number *q) { \
        size_t k, pitch = (width + 1) / 2 * 16;                                                                          \
        for (k = 0; k < width; k += 2, s += 16) {                                                                        \
            vector v = two(s, fetch(bias + step * k)), zero = {0};                                                       \
            if (pool) {                                                                                                  \
                v = most(v, two(s + pitch, fetch(bias2 + step * k)));                                                    \
                v = most(v, HIGH_HALVES(v, v));                                                                          \
            }                                                                                                            \
            if (relu) v = most(zero, v);                                                                                 \
            if (pool) memcpy(q + 2 * k, &v, 16);                                                                         \
            else put(q + 4 * k, v);                                                                                      \
        }                                                                                                                \
    }
FINISH_ROW(finish_floats, float, vf, load, store, two_floats, maximum)
FINISH_ROW(finish_whole, int32_t, vi, load_i, store_i, two_whole, larger_i)
#undef FINISH_ROW

/* Which taps of the kernel meet the input, for each row or column of the results. */
static void where_inside(const convolution *c, size_t axis, uint8_t *inside) {
    size_t n, k;
    for (n = 0; n < c->out[axis]; n++) {
        for (k = 0; k < c->kernel[axis]; k++, inside++) {
            size_t at = n * c->stride[axis] + k * c->dilation[axis] - c->padding[axis];
            *inside = n * c->stride[axis] + k * c->dilation[axis] >= c->padding[axis] && at % c->stuffing[axis] == 0 &&
                      at / c->stuffing[axis] < c->size[axis];
        }
    }
}

static int same(const uint8_t *a, const uint8_t *b, size_t count) {
    while (count > 0 && *a == *b) count--, a++, b++;
    return count == 0;
}

/* The bias of each position of a row, with what the channel that carries 1 adds: `numbers` (4, kernel), `columns` sums of it. */
#define CONSTANT_ROW(name, number)                                                                                              \
    static void name(const convolution *c, const number *numbers, const uint8_t *rows, const uint8_t *inside, const number *bias, \
                     number *columns, number *to) {                                                                             \
        size_t k, n, m;                                                                                                         \
        for (k = 0; k < c->kernel[1]; k++) {                                                                                    \
            for (m = 0; m < 4; m++) {                                                                                           \
                const number *from = numbers + m * c->area + k;                                                                 \
                number sum = 0;                                                                                                 \
                for (n = 0; n < c->kernel[0]; n++) sum += rows[n] ? from[n * c->kernel[1]] : 0;                                 \
                columns[4 * k + m] = sum;                                                                                       \
            }                                                                                                                   \
        }                                                                                                                       \
        for (n = 0; n < c->out[1]; n++, to += 4, inside += c->kernel[1]) {                                                      \
            if (n > 0 && same(inside, inside - c->kernel[1], c->kernel[1])) {                                            \
                memcpy(to, to - 4, 16);                                                                                         \
                continue;                                                                                                       \
            }                                                                                                                   \
            memcpy(to, bias, 16);                                                                                               \
            for (k = 0; k < c->kernel[1]; k++) {                                                                                \
                for (m = 0; inside[k] && m < 4; m++) to[m] += columns[4 * k + m];                                               \
            }                                                                                                                   \
        }                                                                                                                       \
    }
CONSTANT_ROW(constant_row, float)
CONSTANT_ROW(constant_row_i8, int32_t)
#undef CONSTANT_ROW
#endif

/* --------------------------------------------------------------------------------------- from sums to the next tensor */

/* What is done with the sums of an output: `factor` makes floats of the sums of an int8 product. */
typedef struct {
    uint32_t activation, y_dtype;
    float a, b;
    int32_t zero, low, high;
    const int32_t *multipliers;
    const uint8_t *shifts;
    const float *scales;
} finishing;

static finishing finishing_of(const machine *m, const uint32_t *activation, uint32_t y_dtype, const uint32_t *quant,
                              const weights *w) {
    finishing f;
    f.activation = activation[0];
    f.a = as_float(activation[1]);
    f.b = as_float(activation[2]);
    f.y_dtype = y_dtype;
    f.zero = (int32_t)quant[QRN_Q_Y_ZERO];
    f.low = (int32_t)quant[QRN_Q_LOW];
    f.high = (int32_t)quant[QRN_Q_HIGH];
    f.multipliers = y_dtype == QRN_I8 ? (const int32_t *)at(m, quant[QRN_Q_MULTIPLIERS]) : NULL;
    f.shifts = y_dtype == QRN_I8 ? (const uint8_t *)at(m, quant[QRN_Q_SHIFTS]) : NULL;
    f.scales = w->scales;
    return f;
}

/* value * multiplier / 2^(31 + shift), rounded at both steps, as instructions for it do. */
INLINE int32_t rescaled(int32_t value, int32_t multiplier, int32_t shift) {
    int32_t high = (int32_t)(((int64_t)value * multiplier + (1 << 30)) >> 31);
    return (int32_t)((uint32_t)high + ((1u << shift) >> 1)) >> shift;
}

INLINE int8_t to_i8(int32_t value, int32_t zero, int32_t low, int32_t high) {
    value = value < -65535 ? -65535 : value; /* one after the other: compilers make no branch of it, which would often be mistaken */
    value = value > 65535 ? 65535 : value;
    value += zero;
    value = value < low ? low : value;
    value = value > high ? high : value;
    return (int8_t)value;
}

/* Rows of sums and `bias` without what is between them, from two rows to the next two `step` numbers, and `odd` from the first of
 * them to the second; with `pool` the maximum of 2x2 of them, with `relu` that and 0. With `spill` what lies behind them may be
 * overwritten, as it is written later. Returns how many there are. */
static size_t gather(const float *sums, size_t step, size_t odd, const size_t *out, int pool, int relu, int spill, float bias, float *y) {
    size_t height = pool ? out[0] / 2 : out[0], width = pool ? out[1] / 2 : out[1], n, k;
    float least = relu ? 0.0f : -as_float(0x7f800000u);
#if LANES > 1
    vf biases = splat(bias), leasts = splat(least);
#else
    (void)spill;
#endif
    if (!pool && odd == width && step == 2 * odd) { /* nothing between the rows */
        width *= height;
        height = 1;
    }
    n = 0;
#if LANES > 1
    for (; pool && width == LANES / 2 && n + 2 <= height; n += 2, y += LANES) { /* two at once */
        const float *p = sums + n * step, *q = p + step;
        vf a = maximum(load(p), load(p + odd)), b = maximum(load(q), load(q + odd));
        store(y, maximum(leasts, larger_of_pairs(a, b) + biases));
    }
#endif
    for (; n < height; n++, y += width) {
        const float *p = sums + (pool ? n * step : n / 2 * step + n % 2 * odd), *q = p + odd;
        k = 0;
#if LANES > 1
        size_t end = spill || (height - n) * width >= width + LANES ? width + LANES - 1 : width;
        for (; pool && k + LANES <= end; k += LANES) {
            vf a = maximum(load(p + 2 * k), load(q + 2 * k)), b = maximum(load(p + 2 * k + LANES), load(q + 2 * k + LANES));
            store(y + k, maximum(leasts, larger_of_pairs(a, b) + biases));
        }
        for (; !pool && k + LANES <= end; k += LANES) store(y + k, maximum(leasts, load(p + k) + biases));
#endif
        for (; k < width; k++) {
            float value = p[k];
            if (pool) {
                float a = p[2 * k] > p[2 * k + 1] ? p[2 * k] : p[2 * k + 1], b = q[2 * k] > q[2 * k + 1] ? q[2 * k] : q[2 * k + 1];
                value = a > b ? a : b;
            }
            value += bias;
            y[k] = value < least ? least : value;
        }
    }
    return height * width;
}

/* The same with whole numbers, in place. */
static size_t gather_i8(int32_t *sums, size_t row, const size_t *out, int pool) {
    size_t height = pool ? out[0] / 2 : out[0], width = pool ? out[1] / 2 : out[1], n, k;
    int32_t *y = sums;
    if (!pool && row == width) return height * width;
    for (n = 0; n < height; n++, y += width) {
        const int32_t *p = sums + (pool ? 2 * n * row : n * row), *q = p + row;
        k = 0;
#if LANES > 1
        for (; pool && k < width; k += LANES) { /* what a vector has too many is overwritten by the next row */
            vi a = larger_i(load_i(p + 2 * k), load_i(q + 2 * k));
            vi b = larger_i(load_i(p + 2 * k + LANES), load_i(q + 2 * k + LANES));
            store_i(y + k, larger_i(EVEN(a, b), ODD(a, b)));
        }
#endif
        for (; k < width; k++) {
            int32_t value = p[k];
            if (pool) {
                int32_t a = p[2 * k] > p[2 * k + 1] ? p[2 * k] : p[2 * k + 1], b = q[2 * k] > q[2 * k + 1] ? q[2 * k] : q[2 * k + 1];
                value = a > b ? a : b;
            }
            y[k] = value;
        }
    }
    return height * width;
}

#if AT_ONCE == 2
/* The same for sixteen numbers. */
INLINE __m512i rescaled_lanes(__m512i sums, int32_t multiplier, int32_t shift) {
    __m512i by = _mm512_set1_epi32(multiplier), half = _mm512_set1_epi64(1 << 30);
    __m512i even = _mm512_srli_epi64(_mm512_add_epi64(_mm512_mul_epi32(sums, by), half), 31);
    __m512i odd = _mm512_slli_epi64(_mm512_add_epi64(_mm512_mul_epi32(_mm512_srli_epi64(sums, 32), by), half), 1);
    return (__m512i)(((wide_i)_mm512_mask_blend_epi32(0xaaaa, even, odd) + (int32_t)((1u << shift) >> 1)) >> shift);
}
#elif LANES == 8
/* The same for eight numbers. */
INLINE __m256i rescaled_lanes(vi values, int32_t multiplier, int32_t shift) {
    __m256i sums = (__m256i)values, by = _mm256_set1_epi32(multiplier), half = _mm256_set1_epi64x(1 << 30);
    __m256i even = _mm256_srli_epi64(_mm256_add_epi64(_mm256_mul_epi32(sums, by), half), 31);
    __m256i odd = _mm256_slli_epi64(_mm256_add_epi64(_mm256_mul_epi32(_mm256_srli_epi64(sums, 32), by), half), 1);
    return (__m256i)(((vi)_mm256_blend_epi32(even, odd, 0xaa) + (int32_t)((1u << shift) >> 1)) >> shift);
}
#endif

/* Whole sums and `bias`, as output o takes them, to y. */
static void finish_i8(const finishing *f, const int32_t *sums, int32_t bias, size_t count, size_t o, size_t first, void *y) {
    size_t n;
    if (f->y_dtype == QRN_I8) {
        int8_t *to = (int8_t *)y + first; /* bytes may be anything: what is read of f is read before they are written */
        int32_t multiplier = f->multipliers[o], shift = f->shifts[o], zero = f->zero, low = f->low, high = f->high;
        n = 0;
#if AT_ONCE == 2
        for (; n < count; n += 16) { /* sixteen, or the last ones */
            __mmask16 there = (__mmask16)(count - n >= 16 ? 0xffffu : (1u << (count - n)) - 1);
            __m512i value = _mm512_add_epi32(_mm512_maskz_loadu_epi32(there, sums + n), _mm512_set1_epi32(bias));
            value = rescaled_lanes(value, multiplier, shift);
            value = _mm512_min_epi32(_mm512_max_epi32(value, _mm512_set1_epi32(low - zero)), _mm512_set1_epi32(high - zero));
            _mm512_mask_cvtepi32_storeu_epi8(to + n, there, _mm512_add_epi32(value, _mm512_set1_epi32(zero)));
        }
#elif LANES == 8
        for (; n + 8 <= count; n += 16) { /* sixteen, or the last eight */
            int all = n + 16 <= count;
            __m256i first = rescaled_lanes(load_i(sums + n) + bias, multiplier, shift);
            __m256i second = all ? rescaled_lanes(load_i(sums + n + 8) + bias, multiplier, shift) : first;
            __m256i value = _mm256_adds_epi16(_mm256_packs_epi32(first, second), _mm256_set1_epi16((int16_t)zero));
            value = _mm256_min_epi16(_mm256_max_epi16(value, _mm256_set1_epi16((int16_t)low)), _mm256_set1_epi16((int16_t)high));
            value = _mm256_permutevar8x32_epi32(_mm256_packs_epi16(value, value), _mm256_setr_epi32(0, 4, 1, 5, 0, 4, 1, 5));
            if (all) _mm_storeu_si128((__m128i *)(void *)(to + n), _mm256_castsi256_si128(value));
            else _mm_storel_epi64((__m128i *)(void *)(to + n), _mm256_castsi256_si128(value));
        }
        if (n > count) n -= 8;
#endif
        for (; n < count; n++) to[n] = to_i8(rescaled(sums[n] + bias, multiplier, shift), zero, low, high);
    } else {
        float *to = (float *)y + first;
        for (n = 0; n < count; n++) to[n] = (float)(sums[n] + bias) * f->scales[o];
        unary(f->activation, to, to, count, f->a, f->b);
    }
}

/* The sums of output `o`, `components` planes of them, to their places in `y`, from row `top` of `height` on. Sums are
 * overwritten. */
static void finish_output(const convolution *c, const finishing *f, int pool, void *sums, size_t o, size_t top, size_t height,
                          void *y) {
    size_t m, stride = c->span, count, by = pool ? 2 : 1, size = height / by * (c->out[1] / by);
    for (m = 0; m < c->w.components; m++) {
        size_t first = (m * c->w.outputs + o) * size + top / by * (c->out[1] / by);
        if (OF_I8(c->w.pairs)) {
            int32_t *plane = (int32_t *)sums + m * stride;
            count = gather_i8(plane, c->row, c->out, pool);
            finish_i8(f, plane, c->paired ? ((const int32_t *)c->w.bias)[m * c->w.outputs + o] : 0, count, o, first, y);
        } else {
            float *to = (float *)y + first;
            int relu = f->activation == QRN_RELU, spill = c->w.outputs - o > 1 && (c->w.outputs - o - 1) * size >= LANES;
            float bias = c->few ? ((const float *)c->w.bias)[m * c->w.outputs + o] : 0.0f;
            count = gather((const float *)sums + m * stride, c->row << !c->two, !c->two ? c->row : pool ? 0 : stride / 2, c->out, pool, relu, spill, bias, to);
            if (!relu) unary(f->activation, to, to, count, f->a, f->b);
        }
    }
}

/* The fastest plan that the arena has room for. */
static convolution fitting(const machine *m, const uint32_t *op) {
    convolution c = conv_of(m->blob, op, 1, LANES);
    if (c.scratch > m->scratch_bytes) c = conv_of(m->blob, op, 0, LANES);
    return c;
}

#if IN_EIGHTS
/* A convolution by eight products in the lanes of a vector. */
static void run_eights(const machine *m, const uint32_t *op, const convolution *c, const finishing *f, const void *x, void *y) {
    int32_t *place = (int32_t *)(void *)(m->scratch + c->places_at), *stored = (int32_t *)(void *)(m->scratch + c->stored_at);
    int32_t *taps = c->w.starts ? stored : place;
    int pairs = !IN_BYTES && c->w.pairs;
    size_t per_group = c->w.outputs / c->groups, width = c->out[1], line = 16 * ((width + 1) / 2);
    size_t by = op[QRN_CONV_POOL] ? 2 : 1, size = c->out[0] / by * (width / by), row = 8 * c->padded_pitch, n, k, o, b, top;
    uint8_t *planes = m->scratch + c->planes_at, *rows = NULL, *columns = NULL, *block = m->scratch + c->block_at;
    float *sums = (float *)(void *)(m->scratch + c->sums_at), *quaternions = sums + 2 * line;
    float *places = (float *)(void *)(m->scratch + c->ones_at), *of_columns = places + 2 * line; /* bias of each place */
    const uint32_t *numbers = is_none(op[QRN_CONV_CONSTANT]) ? NULL : (const uint32_t *)at(m, op[QRN_CONV_CONSTANT]);
    prepare_eights(c, x, (int32_t)op[QRN_CONV_QUANT + QRN_Q_X_ZERO], planes);
    for (n = 0; n < c->kernel[0]; n++) {
        for (k = 0; k < c->kernel[1]; k++) {
            place[n * c->kernel[1] + k] = (int32_t)(8 * place_of(c, n * c->dilation[0], k * c->dilation[1]));
        }
    }
    for (n = c->area; n < c->w.taps; n++) place[n] = place[n - c->area] + (int32_t)(8 * c->plane);
    place[c->w.taps] = 0;
    if (numbers) {
        rows = (uint8_t *)(of_columns + 4 * c->kernel[1]), columns = rows + c->out[0] * c->kernel[0];
        where_inside(c, 0, rows);
        where_inside(c, 1, columns);
    }
    for (o = 0; o < c->w.outputs; o++) {
        size_t count = unit_count(&c->w, o), first = o / per_group * c->units * c->plane * 8, step = numbers ? 4 : 0;
        float bias[8], *to = pairs ? (float *)(void *)(m->scratch + c->padded_at) : (float *)y + o * size;
        size_t plane = pairs ? size : c->w.outputs * size;
        for (b = 0; b < 8; b++) bias[b] = ((const float *)c->w.bias)[b % 4 * c->w.outputs + o];
        if (c->w.starts) {
            stored_taps(&c->w, o, place, stored);
            stored[count] = 0; /* may have no weight beside it */
        }
        if (pairs) eight_weights_i8((const int8_t *)c->w.values + 4 * first_unit(&c->w, o), count, (int16_t *)(void *)block);
        else eight_weights(floats_of(&c->w, o, (float *)(void *)(m->scratch + c->units_at)), count, (float *)(void *)block);
        for (top = 0; top < c->out[0]; top += 2) {
            int second = top + 1 < c->out[0], relu = f->activation == QRN_RELU;
            const float *biases[2] = {bias, bias};
            for (n = 0; numbers && n <= (size_t)second; n++) {
                const uint8_t *mine = rows + (top + n) * c->kernel[0];
                biases[n] = places + n * line;
                if (top + n >= 2 && same(mine, mine - 2 * c->kernel[0], c->kernel[0])) continue; /* there from two rows before */
                if (pairs) {
                    constant_row_i8(c, (const int32_t *)(const void *)numbers + o * 4 * c->area, mine, columns,
                                    (const int32_t *)(const void *)bias, (int32_t *)(void *)of_columns, (int32_t *)(void *)(places + n * line));
                } else {
                    constant_row(c, (const float *)(const void *)numbers + o * 4 * c->area, mine, columns, bias, of_columns, places + n * line);
                }
            }
            if (pairs) {
                const int32_t *s = (const int32_t *)(const void *)sums, *first_bias = (const int32_t *)(const void *)biases[0];
                const int32_t *second_bias = (const int32_t *)(const void *)biases[1];
                sum_pairs((const int16_t *)(const void *)planes + first + top * row, row, second, taps, (const int16_t *)(const void *)block,
                          (count + 1) / 2, (width + 1) / 2, (int32_t *)(void *)sums);
                for (n = 0; n < (by == 2 || !second ? 1 : 2); n++, to += width / by) {
                    finish_whole(s + n * line, width, n ? second_bias : first_bias, second_bias, step, by == 2, 0, (int32_t *)(void *)quaternions);
                    quaternions_to_planes(quaternions, width / by, to, plane);
                }
                continue;
            }
            sum_floats((const float *)(const void *)planes + first + top * row, row, second, taps, (const float *)(const void *)block, count,
                       registers_of(width), sums);
            for (n = 0; n < (by == 2 || !second ? 1 : 2); n++, to += width / by) {
                finish_floats(sums + 8 * n * AT_ONCE * registers_of(width), width, biases[n], biases[1], step, by == 2, relu, quaternions);
                quaternions_to_planes(quaternions, width / by, to, plane);
                for (b = 0; !relu && f->activation != QRN_IDENTITY && b < 4; b++) {
                    unary(f->activation, to + b * plane, to + b * plane, width / by, f->a, f->b);
                }
            }
        }
        for (b = 0; pairs && b < 4; b++) {
            finish_i8(f, (const int32_t *)(const void *)(m->scratch + c->padded_at) + b * size, 0, size, o, (b * c->w.outputs + o) * size, y);
        }
    }
}
#endif

#if LANES > 1
/* A depthwise 3x3 convolution: each channel from its plane straight to that of the results, where these need no more than ReLU. */
static void run_nine(const machine *m, const convolution *c, const finishing *f, int pool, int32_t zero, const void *x, void *y) {
    float *plane = (float *)(void *)(m->scratch + c->planes_at), *sums = (float *)(void *)(m->scratch + c->sums_at);
    size_t size = c->out[0] * c->out[1], o, n;
    memset(plane, 0, c->units_at - c->planes_at);
    for (o = 0; o < c->w.outputs; o++) {
        if (OF_I8(c->w.pairs)) {
            const int8_t *units = (const int8_t *)c->w.values + 9 * o;
            float numbers[9];
            for (n = 0; n < 9; n++) numbers[n] = (float)units[n];
            put_plane(c, (const int8_t *)x + o * c->size[0] * c->size[1], zero, plane);
            nine_sums(c, plane, numbers, 0, ((const int32_t *)c->w.bias)[o], -as_float(0x7f800000u), sums);
            finish_output(c, f, pool, sums, o, 0, c->out[0], y);
        } else {
            const float *w = floats_of(&c->w, o, (float *)(void *)(m->scratch + c->units_at));
            int straight = !pool && c->row == c->out[1];
            float least = straight && f->activation == QRN_RELU ? 0.0f : -as_float(0x7f800000u), *to = straight ? (float *)y + o * size : sums;
            put_plane(c, (const float *)x + o * c->size[0] * c->size[1], 0, plane);
            nine_sums(c, plane, w, ((const float *)c->w.bias)[o], 0, least, to);
            if (!straight) finish_output(c, f, pool, sums, o, 0, c->out[0], y);
            else if (f->activation != QRN_RELU) unary(f->activation, to, to, size, f->a, f->b);
        }
    }
}
#endif

#if LANES > 1
/* The results of outputs from `first` on, where the rows of sums are theirs. */
static destination straight_to(const convolution *c, const finishing *f, size_t first, float *y) {
    size_t size = c->out[0] * c->out[1];
    destination to = {y + first * size, f->activation == QRN_RELU ? 0.0f : -as_float(0x7f800000u), size, c->w.outputs * size, size};
    return to;
}
#endif

static int run_conv(const machine *m, const uint32_t *op) {
    convolution c = LANES == 1 ? conv_of(m->blob, op, 0, 1) : fitting(m, op); /* without vectors there is one: no copy of it */
    finishing f = finishing_of(m, op + QRN_CONV_ACTIVATION, op[QRN_CONV_Y_DTYPE], op + QRN_CONV_QUANT, &c.w);
    const void *x = at(m, op[QRN_CONV_X]);
    void *y = out_at(m, op[QRN_CONV_Y]);
    int pool = (int)op[QRN_CONV_POOL];
#if LANES > 1
    int straight = (c.whole || c.few) && !c.w.pairs && !c.two && !pool && is_none(op[QRN_CONV_CONSTANT]) && c.row == c.out[1];
    const destination to_sums = {(float *)(void *)(m->scratch + c.sums_at), -as_float(0x7f800000u), c.w.components * c.span, c.span, c.span};
#endif
    int32_t *kernel = (int32_t *)(void *)(m->scratch + c.kernel_at), *place = (int32_t *)(void *)(m->scratch + c.places_at);
    int32_t *stored = (int32_t *)(void *)(m->scratch + c.stored_at);
    const int32_t *taps = c.w.starts ? stored : place;
    float *ones = is_none(op[QRN_CONV_CONSTANT]) ? NULL : (float *)(void *)(m->scratch + c.ones_at);
    float *sums = (float *)(void *)(m->scratch + c.sums_at), *units = (float *)(void *)(m->scratch + c.units_at);
    float *planes = (float *)(void *)(m->scratch + c.planes_at);
    size_t per_group = c.w.outputs / c.groups, height = c.out[0], top, n, k, g, o;
    if (c.scratch > m->scratch_bytes) return QRN_ARENA_TOO_SMALL;
#if LANES > 1
    if (c.nine) {
        run_nine(m, &c, &f, pool, (int32_t)op[QRN_CONV_QUANT + QRN_Q_X_ZERO], x, y);
        return 0;
    }
#endif
#if IN_EIGHTS
    if (c.eights) {
        run_eights(m, op, &c, &f, x, y);
        return 0;
    }
#endif
    for (n = 0; n < c.kernel[0]; n++) {
        for (k = 0; k < c.kernel[1]; k++) {
            size_t tap = n * c.kernel[1] + k;
            size_t row = n * c.dilation[0];
            if (c.gathered) row = ((k * c.stride[0] + row % c.stride[0]) * c.rows + row / c.stride[0]) * c.out[1];
            else row = place_of(&c, row, k * c.dilation[1]);
            kernel[tap] = (int32_t)row;
        }
    }
    for (n = 0; n < c.units; n++) {
        for (k = 0; k < c.area; k++) place[n * c.area + k] = kernel[k] + (int32_t)(n * c.plane);
    }
    if (ones) {
        float *padded = c.gathered ? (float *)(void *)(m->scratch + c.padded_at) : ones;
        memset(padded, 0, 4 * c.padded);
        for (n = 0; n < c.used[0]; n++) {
            for (k = 0; k < c.used[1]; k++) {
                padded[place_of(&c, c.padding[0] + n * c.stuffing[0], c.padding[1] + k * c.stuffing[1])] = 1.0f;
            }
        }
        if (c.gathered) gather_columns(&c, padded, ones);
        memset(ones + c.plane, 0, 4 * LANES);
    }
    for (g = 0; g < c.groups; g++) {
        const float *lies = (const float *)x + g * c.units * c.plane, *from = c.in_place && c.sets < 8 ? lies : planes;
        if (OF_I8(c.w.pairs)) {
            prepare_pairs(&c, (const int8_t *)x, g, (int32_t)op[QRN_CONV_QUANT + QRN_Q_X_ZERO], (int32_t *)(void *)planes,
                          (int32_t *)(void *)(m->scratch + c.padded_at));
        } else if (from == planes) {
            prepare_floats(&c, (const float *)x, g, planes, (float *)(void *)(m->scratch + c.padded_at));
        }
        for (top = 0; top < height; top += c.strip) {
            const float *source = from + top * c.pitch;
            size_t last = (g + 1) * per_group, many;
            c.out[0] = smaller(c.strip, height - top);
            if (LANES == 1) c.vectors = c.span = c.out[0] * c.out[1];
            for (o = g * per_group; o < last; o += many) {
                size_t b, count = unit_count(&c.w, o);
                many = c.whole ? next_share(last - o, c.w.pairs ? BLOCK_I8 : BLOCK) : 1;
#if LANES > 1
                if (c.whole) {
                    float *block = (float *)(void *)(m->scratch + c.block_at);
                    if (c.w.pairs) {
                        outputs_i8(&c, (const int32_t *)(const void *)source, place, o, many,
                                   (int32_t *)(void *)block, (int32_t *)(void *)sums);
                    } else {
                        destination to = to_sums;
                        if (straight) to = straight_to(&c, &f, o, (float *)y);
                        if (c.w.components == 4) hadamard_outputs(&c, source, c.in_place ? lies : source + 4 * c.set, place, o, many, units, block, &to);
                        else real_outputs(&c, source, place, o, many, units, block, &to);
                    }
                } else
#endif
                {
                    float bias[4];
                    int32_t bias_i8[4];
                    for (b = 0; b < c.w.components; b++) {
                        if (OF_I8(c.w.pairs)) bias_i8[b] = ((const int32_t *)c.w.bias)[b * c.w.outputs + o];
                        else bias[b] = ((const float *)c.w.bias)[b * c.w.outputs + o];
                    }
                    if (c.w.starts) stored_taps(&c.w, o, place, stored);
#if LANES > 1
                    if (c.paired) {
                        gray_output_i8(&c, (const int32_t *)(const void *)source, place, o, stored, (int32_t *)(void *)units, (int32_t *)(void *)sums);
                    } else
#endif
                    if (OF_I8(c.w.pairs)) {
                        const int32_t *w = pairs_of(&c.w, o, (int32_t *)(void *)units);
#if IN_BYTES
                        if (c.w.components == 4) without_excess(w, count, (int32_t)op[QRN_CONV_QUANT + QRN_Q_X_ZERO] + 128, bias_i8);
#endif
                        output_i8(&c, (const int32_t *)(const void *)source, taps, w, count, bias_i8, (int32_t *)(void *)sums);
                    } else {
                        const float *w = floats_of(&c.w, o, units);
                        if (c.w.components == 1) real_output(&c, source, taps, w, count, bias[0], sums);
#if IN_EIGHTS
                        else if (c.few) {
                            destination to = to_sums;
                            if (straight) to = straight_to(&c, &f, o, (float *)y);
                            few_parts_output(&c, source, taps, w, count, bias, (float *)(void *)(m->scratch + c.block_at), straight, &to);
                        }
#endif
                        else quaternion_output(&c, source, taps, w, count, bias, sums);
                    }
                }
#if LANES > 1
                if (straight) {
                    destination to = straight_to(&c, &f, o, (float *)y);
                    for (b = 0; f.activation != QRN_RELU && b < c.w.components; b++) {
                        unary(f.activation, to.y + b * to.component, to.y + b * to.component, many * to.size, f.a, f.b);
                    }
                    continue;
                }
#endif
                for (b = 0; b < many; b++) {
                    float *mine = sums + b * c.w.components * c.span;
                    if (ones) {
                        const uint32_t *numbers = (const uint32_t *)at(m, op[QRN_CONV_CONSTANT]) + (o + b) * 4 * c.area;
                        if (OF_I8(c.w.pairs)) add_constant_i8(&c, ones + top * c.pitch, kernel, (const int32_t *)numbers, (int32_t *)(void *)mine);
                        else add_constant(&c, ones + top * c.pitch, kernel, (const float *)(const void *)numbers, mine);
                    }
                    finish_output(&c, &f, pool, mine, o + b, top, height, y);
                }
            }
        }
    }
    return 0;
}

/* ----------------------------------------------------------------------------------------------------- linear layers */

/* Scratch of a product with one vector: x with the components of a quaternion side by side; places and units of an output. */
typedef struct {
    size_t x_at, places_at, units_at, sums_at, scratch;
} linear_plan;

static linear_plan linear_of(const weights *w, size_t channels, size_t lanes) {
    linear_plan p;
    size_t used = 0, quaternion = w->components == 4, number = w->pairs ? 2 : 0; /* of a real x: its pairs, or where it lies */
    p.x_at = reserve(&used, lanes, quaternion ? (w->pairs ? 32u : 16u) * (channels + 4) : number * (channels + 1));
    p.places_at = reserve(&used, lanes, w->starts ? 4 * w->taps : 0);
    p.units_at = reserve(&used, lanes, w->pairs ? 0 : working_bytes(w, lanes));
    p.sums_at = reserve(&used, lanes, 4 * w->components * w->outputs);
    p.scratch = used;
    return p;
}

/* w (x) x summed up. Every number of w is multiplied with the whole of x, and the products belong to components only at the
 * end: w (x) x = w_r x + w_i (i x) + w_j (j x) + w_k (k x). */
KERNEL void quaternion_dot(const float *x, const int32_t *place, const float *w, size_t count, float *y) {
    v4 r = {0}, i = {0}, j = {0}, k = {0};
    size_t n = 0;
#if LANES > 1
    if (!place) { /* as many quaternions as there are in a vector, and two sums of each kind, so that none waits for itself */
        enum { EACH = LANES / 4 };
        vf a = {0}, b = {0}, c = {0}, d = {0}, a2 = {0}, b2 = {0}, c2 = {0}, d2 = {0};
        for (; n + 2 * EACH <= count; n += 2 * EACH) {
            vf p = load(x + 4 * n), q = load(w + 4 * n), p2 = load(x + 4 * n + LANES), q2 = load(w + 4 * n + LANES);
            a += SPREAD(q, 0) * p, b += SPREAD(q, 1) * p, c += SPREAD(q, 2) * p, d += SPREAD(q, 3) * p;
            a2 += SPREAD(q2, 0) * p2, b2 += SPREAD(q2, 1) * p2, c2 += SPREAD(q2, 2) * p2, d2 += SPREAD(q2, 3) * p2;
        }
        a += a2, b += b2, c += c2, d += d2;
#if LANES == 8
#define HALVES(v) (HALF(v, 0) + HALF(v, 1))
#define HALF(v, half) ((v4)_mm256_extractf128_ps((__m256)(v), half))
        r = HALVES(a), i = HALVES(b), j = HALVES(c), k = HALVES(d);
#undef HALF
#undef HALVES
#else
        r = (v4)a, i = (v4)b, j = (v4)c, k = (v4)d;
#endif
    }
#endif
#if LANES > 1
    if (place) { /* two sums of each kind here too */
        v4 r2 = {0}, i2 = {0}, j2 = {0}, k2 = {0};
        for (; n + 2 <= count; n += 2) {
            const float *u = w + 4 * n;
            v4 p = load4(x + 4 * (size_t)place[n]), q = load4(x + 4 * (size_t)place[n + 1]);
            r += u[0] * p, i += u[1] * p, j += u[2] * p, k += u[3] * p;
            r2 += u[4] * q, i2 += u[5] * q, j2 += u[6] * q, k2 += u[7] * q;
        }
        r += r2, i += i2, j += j2, k += k2;
    }
#endif
    for (; n < count; n++) {
        v4 q = load4(x + 4 * (place ? (size_t)place[n] : n));
        r += w[4 * n] * q;
        i += w[4 * n + 1] * q;
        j += w[4 * n + 2] * q;
        k += w[4 * n + 3] * q;
    }
    y[0] = r[0] - i[1] - j[2] - k[3];
    y[1] = r[1] + i[0] + j[3] - k[2];
    y[2] = r[2] - i[3] + j[0] + k[1];
    y[3] = r[3] + i[2] - j[1] + k[0];
}

static float real_dot(const float *x, const int32_t *place, const float *w, size_t count) {
    float total = 0;
    size_t n = 0;
    if (!place) {
        vf sum = {0}, more = {0};
        float lanes[LANES];
        for (; n + 2 * LANES <= count; n += 2 * LANES) {
            sum += load(x + n) * load(w + n);
            more += load(x + n + LANES) * load(w + n + LANES);
        }
        store(lanes, sum + more);
        for (size_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    }
    for (; n < count; n++) total += x[place ? (size_t)place[n] : n] * w[n];
    return total;
}

/* y (components, outputs) = W x + b for one x. */
static void linear_row(const weights *w, const linear_plan *p, uint8_t *scratch, const float *x, size_t channels, size_t parts,
                       float *y) {
    int32_t *place = (int32_t *)(void *)(scratch + p->places_at);
    float *side_by_side = (float *)(void *)(scratch + p->x_at), *units = (float *)(void *)(scratch + p->units_at);
    const float *bias = (const float *)w->bias;
    size_t o, m, n;
    if (w->components == 4) {
        size_t done = 0;
#if LANES > 1
        for (; parts == 15 && done + 4 <= channels; done += 4) {
            const float *from = x + done;
            v4 r = load4(from), i = load4(from + channels), j = load4(from + 2 * channels), k = load4(from + 3 * channels), q[4];
            v4 ri = SHUFFLE(vi4, r, i, 0, 4, 1, 5), ri2 = SHUFFLE(vi4, r, i, 2, 6, 3, 7);
            v4 jk = SHUFFLE(vi4, j, k, 0, 4, 1, 5), jk2 = SHUFFLE(vi4, j, k, 2, 6, 3, 7);
            q[0] = SHUFFLE(vi4, ri, jk, 0, 1, 4, 5), q[1] = SHUFFLE(vi4, ri, jk, 2, 3, 6, 7);
            q[2] = SHUFFLE(vi4, ri2, jk2, 0, 1, 4, 5), q[3] = SHUFFLE(vi4, ri2, jk2, 2, 3, 6, 7);
            memcpy(side_by_side + 4 * done, q, sizeof q);
        }
#endif
        for (m = 0; m < 4; m++) {
            int there = (int)(parts >> m & 1);
            for (n = done; n < channels; n++) side_by_side[4 * n + m] = there ? x[n] : 0.0f;
            if (there) x += channels;
        }
    }
    for (o = 0; o < w->outputs; o++) {
        const float *q = floats_of(w, o, units);
        size_t count = unit_count(w, o);
        if (w->starts) stored_taps(w, o, NULL, place);
        if (w->components == 4) {
            float sum[4];
            quaternion_dot(side_by_side, w->starts ? place : NULL, q, count, sum);
            for (m = 0; m < 4; m++) y[m * w->outputs + o] = sum[m] + bias[m * w->outputs + o];
        } else {
            y[o] = real_dot(x, w->starts ? place : NULL, q, count) + bias[o];
        }
    }
}

#if IN_BYTES
/* Of eight quaternions of weights what a component of w (x) x takes: numbers of each in another order, with signs. */
INLINE __m256i bytes_for(__m256i w, int32_t order, int32_t signs) {
    __m256i each = _mm256_add_epi8(_mm256_broadcastsi128_si256(_mm_setr_epi32(0, 0x04040404, 0x08080808, 0x0c0c0c0c)), _mm256_set1_epi32(order));
    return _mm256_sign_epi8(_mm256_shuffle_epi8(w, each), _mm256_set1_epi32(signs));
}

/* The same in int8, eight quaternions at once; x is made of words, its bytes larger than they mean by zero + 128. */
KERNEL void quaternion_dot_i8(const int32_t *x, const int32_t *place, const int8_t *w, size_t count, int32_t zero, int32_t *y) {
    __m256i r = _mm256_setzero_si256(), i = r, j = r, k = r, one = _mm256_set1_epi8(1), excess = _mm256_set1_epi32(zero + 128), p, q, v;
    __m256i r1 = r, i1 = r, j1 = r, k1 = r;
    size_t n;
    for (n = 0; n < count; n += 8) {
        __mmask8 there = (__mmask8)(count - n >= 8 ? 255u : (1u << (count - n)) - 1);
        q = _mm256_maskz_loadu_epi32(there, w + 4 * n);
        if (place) p = _mm256_i32gather_epi32(x, _mm256_maskz_loadu_epi32(there, place + n), 4);
        else p = _mm256_maskz_loadu_epi32(there, x + n);
#define MULTIPLY(sum, ones, order, signs)                                                       \
    v = bytes_for(q, order, signs);                                                             \
    sum = _mm256_dpbusd_epi32(sum, p, v), ones = _mm256_dpbusd_epi32(ones, one, v)
        MULTIPLY(r, r1, 0x03020100, (int32_t)0xffffff01u);
        MULTIPLY(i, i1, 0x02030001, (int32_t)0x01ff0101u);
        MULTIPLY(j, j1, 0x01000302, (int32_t)0xff010101u);
        MULTIPLY(k, k1, 0x00010203, (int32_t)0x0101ff01u);
#undef MULTIPLY
    }
#define MEANT(sum, ones) _mm256_sub_epi32(sum, _mm256_mullo_epi32(ones, excess))
    p = _mm256_hadd_epi32(_mm256_hadd_epi32(MEANT(r, r1), MEANT(i, i1)), _mm256_hadd_epi32(MEANT(j, j1), MEANT(k, k1)));
#undef MEANT
    _mm_storeu_si128((__m128i *)(void *)y, _mm_add_epi32(_mm256_castsi256_si128(p), _mm256_extracti128_si256(p, 1)));
}
#else
/* The same in int8. Of a quaternion x the four arrangements are made with which a component of w (x) x is a plain sum of
 * products: 16 numbers of 16 bits. */
static void arrange(int32_t r, int32_t i, int32_t j, int32_t k, int32_t *to) {
    to[0] = pair(r, -i), to[1] = pair(-j, -k);
    to[2] = pair(i, r), to[3] = pair(k, -j);
    to[4] = pair(j, -k), to[5] = pair(r, i);
    to[6] = pair(k, j), to[7] = pair(-i, r);
}

#if LANES == 8
/* Of eight quaternions that lie in planes. */
INLINE void arrange_eight(const int8_t *const *part, size_t at, int16_t zero, int32_t *to) {
    shorts r = widened_shorts(part[0] + at, zero), i = widened_shorts(part[1] + at, zero);
    shorts j = widened_shorts(part[2] + at, zero), k = widened_shorts(part[3] + at, zero);
    shorts first[8] = {r, -i, -j, -k, i, r, k, -j}, second[8] = {j, -k, r, i, k, j, -i, r}, turned[8], turned2[8];
    size_t n;
    turn_shorts(first, turned);
    turn_shorts(second, turned2);
    for (n = 0; n < 8; n++) {
        memcpy(to + 8 * n, turned + n, 16);
        memcpy(to + 8 * n + 4, turned2 + n, 16);
    }
}
#endif

KERNEL void quaternion_dot_i8(const int32_t *x, const int32_t *place, const int8_t *w, size_t count, int32_t zero, int32_t *y) {
    size_t n = 0;
    int m;
    (void)zero;
#if LANES == 8
    vi four_sums[4] = {{0}, {0}, {0}, {0}};
    for (; n + 4 <= count; n += 4, w += 16) {
        const int32_t *p = x + 8 * (place ? (size_t)place[n] : n), *q = x + 8 * (place ? (size_t)place[n + 1] : n + 1);
        const int32_t *r = x + 8 * (place ? (size_t)place[n + 2] : n + 2), *s = x + 8 * (place ? (size_t)place[n + 3] : n + 3);
        __m256i all = _mm256_cvtepi8_epi16(_mm_loadu_si128((const __m128i *)(const void *)w));
        four_sums[0] = add_pairs(four_sums[0], load_i(p), (vi)_mm256_permute4x64_epi64(all, 0x00));
        four_sums[1] = add_pairs(four_sums[1], load_i(q), (vi)_mm256_permute4x64_epi64(all, 0x55));
        four_sums[2] = add_pairs(four_sums[2], load_i(r), (vi)_mm256_permute4x64_epi64(all, 0xaa));
        four_sums[3] = add_pairs(four_sums[3], load_i(s), (vi)_mm256_permute4x64_epi64(all, 0xff));
    }
#endif
#if LANES > 1
    enum { PARTS = 8 / LANES };
    typedef int64_t wide __attribute__((vector_size(4 * LANES)));
    typedef int8_t b4 __attribute__((vector_size(4)));
    typedef int16_t s4 __attribute__((vector_size(8)));
    vi sum[PARTS] = {{0}};
    int32_t lanes[8];
#if LANES == 8
    sum[0] = (four_sums[0] + four_sums[1]) + (four_sums[2] + four_sums[3]);
#endif
    for (; n < count; n++, w += 4) {
        const int32_t *p = x + 8 * (place ? (size_t)place[n] : n);
        int64_t four;
        b4 bytes;
        s4 shorts;
        vi ws;
        memcpy(&bytes, w, sizeof bytes);
        shorts = __builtin_convertvector(bytes, s4);
        memcpy(&four, &shorts, sizeof four);
        ws = (vi)(four - (wide){0});
        for (m = 0; m < PARTS; m++) sum[m] += dot_pairs(load_i(p + m * LANES), ws);
    }
    for (m = 0; m < PARTS; m++) store_i(lanes + m * LANES, sum[m]);
    for (m = 0; m < 4; m++) y[m] = lanes[2 * m] + lanes[2 * m + 1];
#else
    y[0] = y[1] = y[2] = y[3] = 0;
    for (; n < count; n++, w += 4) {
        const int32_t *p = x + 8 * (place ? (size_t)place[n] : n);
        int32_t first = pair(w[0], w[1]), second = pair(w[2], w[3]);
        for (m = 0; m < 4; m++) y[m] = add_pairs(add_pairs(y[m], p[2 * m], first), p[2 * m + 1], second);
    }
#endif
}
#endif

KERNEL int32_t real_dot_i8(const int32_t *x, const int32_t *place, const int8_t *w, size_t count) {
    int32_t total = 0;
    size_t n = 0;
#if LANES > 1
    if (!place) {
        vi sum = {0};
        int32_t lanes[LANES];
        for (; n + LANES <= count; n += LANES) sum = add_pairs(sum, load_i(x + n), widened_pairs(w + 2 * n));
        store_i(lanes, sum);
        for (size_t lane = 0; lane < LANES; lane++) total += lanes[lane];
    }
#endif
    for (; n < count; n++) {
        int32_t p = x[place ? (size_t)place[n] : n];
        total += (int16_t)(p & 0xffff) * w[2 * n] + (p >> 16) * w[2 * n + 1];
    }
    return total;
}

static void linear_row_i8(const weights *w, const linear_plan *p, uint8_t *scratch, const int8_t *x, int32_t zero,
                          size_t channels, size_t parts, const finishing *f, size_t row, void *y) {
    int32_t *place = (int32_t *)(void *)(scratch + p->places_at), *pairs = (int32_t *)(void *)(scratch + p->x_at);
    const int32_t *bias = (const int32_t *)w->bias;
    size_t o, m, n;
    if (w->components == 4) {
#if IN_BYTES
        quaternion_words(x, channels, parts, zero, channels, pairs);
#else
        const int8_t *part[4];
        for (m = 0; m < 4; m++) {
            part[m] = parts >> m & 1 ? x : NULL;
            if (part[m]) x += channels;
        }
        n = 0;
#if LANES == 8
        for (; parts == 15 && n + 8 <= channels; n += 8) arrange_eight(part, n, (int16_t)zero, pairs + 8 * n);
#endif
        for (; n < channels; n++) {
            int32_t q[4];
            for (m = 0; m < 4; m++) q[m] = part[m] ? part[m][n] - zero : 0;
            arrange(q[0], q[1], q[2], q[3], pairs + 8 * n);
        }
#endif
    } else {
        for (n = 0; n < channels; n += 2) pairs[n / 2] = pair(x[n] - zero, n + 1 < channels ? x[n + 1] - zero : 0);
    }
    for (o = 0; o < w->outputs; o++) {
        const int8_t *q = (const int8_t *)w->values + first_unit(w, o) * w->width;
        int32_t sum[4];
        if (w->starts) stored_taps(w, o, NULL, place);
        if (w->components == 4) quaternion_dot_i8(pairs, w->starts ? place : NULL, q, unit_count(w, o), zero, sum);
        else sum[0] = real_dot_i8(pairs, w->starts ? place : NULL, q, unit_count(w, o));
        for (m = 0; m < w->components; m++) {
            finish_i8(f, sum + m, bias[m * w->outputs + o], 1, o, (row * w->components + m) * w->outputs + o, y);
        }
    }
}

static int run_linear(const machine *m, const uint32_t *op) {
    int pairs = OF_I8(op[QRN_LINEAR_X_DTYPE] == QRN_I8);
    weights w = weights_of(m->blob, op + QRN_LINEAR_WEIGHTS, pairs, 0);
    finishing f = finishing_of(m, op + QRN_LINEAR_ACTIVATION, op[QRN_LINEAR_Y_DTYPE], op + QRN_LINEAR_QUANT, &w);
    size_t rows = op[QRN_LINEAR_ROWS], channels = op[QRN_LINEAR_CHANNELS], parts = op[QRN_LINEAR_PARTS], row, width, p;
    linear_plan plan = linear_of(&w, channels, LANES);
    const void *x = at(m, op[QRN_LINEAR_X]);
    void *y = out_at(m, op[QRN_LINEAR_Y]);
    if (plan.scratch > m->scratch_bytes) return QRN_ARENA_TOO_SMALL;
    for (width = 0, p = parts; p; p >>= 1) width += (p & 1) * channels;
    for (row = 0; row < rows; row++) {
        if (pairs) {
            const int8_t *mine = (const int8_t *)x + row * width;
            linear_row_i8(&w, &plan, m->scratch, mine, (int32_t)op[QRN_LINEAR_QUANT + QRN_Q_X_ZERO], channels, parts, &f, row, y);
        } else {
            float *to = (float *)y + row * w.components * w.outputs;
            linear_row(&w, &plan, m->scratch, (const float *)x + row * width, channels, parts, to);
            unary(f.activation, to, to, w.components * w.outputs, f.a, f.b);
        }
    }
    return 0;
}

/* -------------------------------------------------------------------------------------------------- recurrent layers */

static size_t gates_of(uint32_t kind) { return kind == QRN_LSTM ? 4 : kind == QRN_GRU ? 3 : 1; }

static int run_recurrent(const machine *m, const uint32_t *op) {
    weights w = weights_of(m->blob, op + QRN_RECURRENT_WEIGHTS, 0, 0);
    uint32_t kind = op[QRN_RECURRENT_KIND];
    size_t gates = gates_of(kind), units = w.outputs / gates, steps = op[QRN_RECURRENT_STEPS], parts = w.components == 4 ? 15 : 1;
    linear_plan plan = linear_of(&w, units, LANES);
    float *gate = (float *)(void *)(m->scratch + plan.sums_at), *h = (float *)out_at(m, op[QRN_RECURRENT_H]);
    float *c = kind == QRN_LSTM ? (float *)out_at(m, op[QRN_RECURRENT_C]) : NULL;
    size_t step, q, u;
    if (plan.scratch > m->scratch_bytes) return QRN_ARENA_TOO_SMALL;
    for (step = 0; step < steps; step++) {
        size_t now = op[QRN_RECURRENT_REVERSE] ? steps - 1 - step : step;
        const float *x = (const float *)at(m, op[QRN_RECURRENT_X]) + now * w.components * w.outputs;
        float *y = (float *)out_at(m, op[QRN_RECURRENT_Y]) + now * w.components * units;
        linear_row(&w, &plan, m->scratch, h, units, parts, gate);
        for (q = 0; q < w.components; q++) {
            for (u = 0; u < units; u++) {
                const float *a = x + q * w.outputs + u, *b = gate + q * w.outputs + u; /* of gate g: at g * units */
                size_t n = q * units + u;
                if (kind == QRN_LSTM) {
                    float in = sigmoid(a[0] + b[0]), forget = sigmoid(a[units] + b[units]);
                    float fresh = tanh_(a[2 * units] + b[2 * units]), out = sigmoid(a[3 * units] + b[3 * units]);
                    c[n] = forget * c[n] + in * fresh;
                    h[n] = out * tanh_(c[n]);
                } else if (kind == QRN_GRU) {
                    float reset = sigmoid(a[0] + b[0]), keep = sigmoid(a[units] + b[units]);
                    float fresh = tanh_(a[2 * units] + reset * b[2 * units]);
                    h[n] = fresh + keep * (h[n] - fresh);
                } else {
                    float sum = a[0] + b[0];
                    h[n] = kind == QRN_RNN_TANH ? tanh_(sum) : sum < 0 ? 0.0f : sum;
                }
                y[n] = h[n];
            }
        }
    }
    return 0;
}

/* ------------------------------------------------------------------------------------------------------------- nests */

INLINE void nest_row(uint32_t kind, const float *a, size_t sa, const float *b, size_t sb, float *y, size_t sy, size_t count) {
    size_t n;
#define ROW(expression)                                               \
    for (n = 0; n < count; n++) {                                     \
        float p = a[n * sa], *to = y + n * sy;                        \
        *to = (expression);                                           \
    }                                                                 \
    break
    switch (kind) {
    case QRN_NEST_COPY: ROW(p);
    case QRN_NEST_ADD: ROW(p + b[n * sb]);
    case QRN_NEST_SUB: ROW(p - b[n * sb]);
    case QRN_NEST_MUL: ROW(p * b[n * sb]);
    case QRN_NEST_DIV: ROW(p / b[n * sb]);
    case QRN_NEST_SUM: ROW(*to + p);
    case QRN_NEST_PRODUCT: ROW(*to + p * b[n * sb]);
    case QRN_NEST_MAX: ROW(p > *to || p != p ? p : *to);
    default: ROW(p < *to || p != p ? p : *to);
    }
#undef ROW
}

static int takes_two(uint32_t kind) {
    return kind == QRN_NEST_ADD || kind == QRN_NEST_SUB || kind == QRN_NEST_MUL || kind == QRN_NEST_DIV ||
           kind == QRN_NEST_PRODUCT;
}

static void run_nest(const machine *m, const uint32_t *op) {
    const uint32_t *size = op + QRN_NEST_SIZES, *sa = op + QRN_NEST_STRIDES_A, *sb = op + QRN_NEST_STRIDES_B;
    const uint32_t *sy = op + QRN_NEST_STRIDES_Y;
    uint32_t kind = op[QRN_NEST_KIND], dtype = op[QRN_NEST_DTYPE], i, j, k, l, n;
    const uint8_t *a = (const uint8_t *)at(m, op[QRN_NEST_A]);
    const uint8_t *b = takes_two(kind) ? (const uint8_t *)at(m, op[QRN_NEST_B]) : a;
    uint8_t *y = (uint8_t *)out_at(m, op[QRN_NEST_Y]);
    for (i = 0; i < size[0]; i++)
        for (j = 0; j < size[1]; j++)
            for (k = 0; k < size[2]; k++)
                for (l = 0; l < size[3]; l++) {
                    size_t pa = (size_t)i * sa[0] + (size_t)j * sa[1] + (size_t)k * sa[2] + (size_t)l * sa[3];
                    size_t pb = (size_t)i * sb[0] + (size_t)j * sb[1] + (size_t)k * sb[2] + (size_t)l * sb[3];
                    size_t py = (size_t)i * sy[0] + (size_t)j * sy[1] + (size_t)k * sy[2] + (size_t)l * sy[3];
                    if (dtype == QRN_I8 || dtype == QRN_U8) {
                        for (n = 0; n < size[4]; n++) y[py + (size_t)n * sy[4]] = a[pa + (size_t)n * sa[4]];
                    } else if (dtype == QRN_I32) {
                        for (n = 0; n < size[4]; n++) {
                            ((int32_t *)(void *)y)[py + (size_t)n * sy[4]] =
                                ((const int32_t *)(const void *)a)[pa + (size_t)n * sa[4]];
                        }
                    } else {
                        nest_row(kind, (const float *)(const void *)a + pa, sa[4], (const float *)(const void *)b + pb, sb[4],
                                 (float *)(void *)y + py, sy[4], size[4]);
                    }
                }
}

/* ------------------------------------------------------------------------------------------------- other operations */

static void run_unary(const machine *m, const uint32_t *op) {
    unary(op[QRN_UNARY_KIND], (const float *)at(m, op[QRN_UNARY_X]), (float *)out_at(m, op[QRN_UNARY_Y]), op[QRN_UNARY_COUNT],
          as_float(op[QRN_UNARY_A]), as_float(op[QRN_UNARY_B]));
}

static void window(const uint32_t *op, size_t axis, size_t n, size_t size, size_t *first, size_t *last, size_t *step,
                   size_t *padded) {
    size_t kernel = op[QRN_POOL_KERNEL + axis], out = op[QRN_POOL_OUT + axis];
    if (kernel == 0) {
        *first = n * size / out;
        *last = ((n + 1) * size + out - 1) / out;
        *step = 1;
        *padded = *last - *first;
    } else {
        size_t padding = op[QRN_POOL_PADDING + axis], dilation = op[QRN_POOL_DILATION + axis];
        size_t start = n * op[QRN_POOL_STRIDE + axis], end = start + (kernel - 1) * dilation + 1; /* in the padded input */
        while (start < padding) start += dilation;
        *padded = smaller(end, size + 2 * padding) - n * op[QRN_POOL_STRIDE + axis];
        *first = start - padding;
        *last = smaller(larger(end, padding) - padding, size);
        *step = dilation;
    }
}

static float sum_of(const float *x, size_t count) {
    float lanes[LANES], total = 0;
    size_t n = 0, lane;
    vf sum = {0};
    for (; n + LANES <= count; n += LANES) sum += load(x + n);
    store(lanes, sum);
    for (lane = 0; lane < LANES; lane++) total += lanes[lane];
    for (; n < count; n++) total += x[n];
    return total;
}

static int32_t sum_of_bytes(const int8_t *x, size_t count) {
    int32_t sum = 0;
    size_t n = 0;
#if LANES > 1
    int32_t lanes[LANES];
    vi sums = {0};
    for (; n + LANES <= count; n += LANES) sums += widened(x + n);
    store_i(lanes, sums);
    for (size_t lane = 0; lane < LANES; lane++) sum += lanes[lane];
#endif
    for (; n < count; n++) sum += x[n];
    return sum;
}

static void run_pool(const machine *m, const uint32_t *op) {
    uint32_t kind = op[QRN_POOL_KIND];
    size_t channels = op[QRN_POOL_CHANNELS], height = op[QRN_POOL_HEIGHT], width = op[QRN_POOL_WIDTH], c, y, x, n, k, q;
    const float *in = (const float *)at(m, op[QRN_POOL_X]);
    const int8_t *bytes = (const int8_t *)at(m, op[QRN_POOL_X]);
    float *out = (float *)out_at(m, op[QRN_POOL_Y]);
    int8_t *out_bytes = (int8_t *)out_at(m, op[QRN_POOL_Y]);
    int i8 = op[QRN_POOL_DTYPE] == QRN_I8;
    int32_t zero = (int32_t)op[QRN_POOL_ZERO];
    size_t plane = height * width, places = (size_t)op[QRN_POOL_OUT] * op[QRN_POOL_OUT + 1], to = 0;
    for (c = 0; c < channels; c++) {
        for (y = 0; y < op[QRN_POOL_OUT]; y++) {
            size_t top, bottom, down, tall;
            window(op, 0, y, height, &top, &bottom, &down, &tall);
            for (x = 0; x < op[QRN_POOL_OUT + 1]; x++, to++) {
                size_t left, right, along, wide, count = 0, best = c * plane + top * width;
                float value = 0, sum = 0;
                int32_t whole = 0, most = -128;
                window(op, 1, x, width, &left, &right, &along, &wide);
                best += left;
                if (kind == QRN_POOL_MEAN && down == 1 && right - left == width) { /* the numbers follow each other */
                    count = (bottom - top) * width;
                    if (i8) whole = sum_of_bytes(bytes + best, count) - (int32_t)count * zero;
                    else sum = sum_of(in + best, count);
                    bottom = top;
                }
                for (n = top; n < bottom; n += down) {
                    for (k = left; k < right; k += along, count++) {
                        size_t p = c * plane + n * width + k;
                        if (i8) {
                            whole += bytes[p] - zero;
                            most = bytes[p] > most ? bytes[p] : most;
                        } else {
                            float now = in[p];
                            if (kind == QRN_POOL_MODULUS) {
                                size_t part = channels * plane;
                                now = now * now + in[p + part] * in[p + part] + in[p + 2 * part] * in[p + 2 * part] +
                                      in[p + 3 * part] * in[p + 3 * part];
                            }
                            if (count == 0 || now > value || now != now) {
                                value = now;
                                best = p;
                            }
                            sum += now;
                        }
                    }
                }
                if (kind == QRN_POOL_MEAN) {
                    int32_t divisor = (int32_t)op[QRN_POOL_DIVISOR];
                    int32_t by = divisor > 0 ? divisor : divisor == 0 ? (int32_t)count : (int32_t)(tall * wide);
                    if (by == 0) by = 1;
                    if (i8) {
                        out[to] = as_float(op[QRN_POOL_SCALE]) * (float)whole / (float)by;
                    } else {
                        out[to] = sum / (float)by;
                    }
                } else if (kind == QRN_POOL_MODULUS) {
                    for (q = 0; q < 4; q++) out[to + q * channels * places] = in[best + q * channels * plane];
                } else if (i8) {
                    out_bytes[to] = (int8_t)most;
                } else {
                    out[to] = value;
                }
            }
        }
    }
}

static int run_embed(const machine *m, const uint32_t *op) {
    const int32_t *x = (const int32_t *)at(m, op[QRN_EMBED_X]);
    float *y = (float *)out_at(m, op[QRN_EMBED_Y]);
    size_t rows = op[QRN_EMBED_ROWS], width = op[QRN_EMBED_WIDTH], row, n;
    const void *table = at(m, op[QRN_EMBED_TABLE]);
    for (row = 0; row < rows; row++, y += width) {
        uint32_t entry;
        memcpy(&entry, x + row, sizeof entry); /* once: the table's entries may be written over their numbers */
        if (entry >= op[QRN_EMBED_ENTRIES]) return QRN_NO_SUCH_ENTRY;
        for (n = 0; n < width; n++) {
            size_t p = (size_t)entry * width + n;
            if (op[QRN_EMBED_DTYPE] == QRN_F32) y[n] = ((const float *)table)[p];
            else if (op[QRN_EMBED_DTYPE] == QRN_F16) y[n] = half_to_float(((const uint16_t *)table)[p]);
            else y[n] = (float)((const int8_t *)table)[p] * ((const float *)at(m, op[QRN_EMBED_SCALES]))[entry];
        }
    }
    return 0;
}

COLD static void run_argmax(const machine *m, const uint32_t *op) {
    const float *x = (const float *)at(m, op[QRN_ARGMAX_X]);
    int32_t *y = (int32_t *)out_at(m, op[QRN_ARGMAX_Y]);
    size_t outer, inner, n, count = op[QRN_ARGMAX_COUNT], step = op[QRN_ARGMAX_INNER];
    for (outer = 0; outer < op[QRN_ARGMAX_OUTER]; outer++, x += count * step) {
        for (inner = 0; inner < step; inner++) {
            size_t best = 0;
            for (n = 1; n < count; n++) {
                if (x[n * step + inner] > x[best * step + inner]) best = n;
            }
            *y++ = (int32_t)best;
        }
    }
}

static void run_table(const machine *m, const uint32_t *op) {
    const uint8_t *x = (const uint8_t *)at(m, op[QRN_TABLE_X]), *table = (const uint8_t *)at(m, op[QRN_TABLE_TABLE]);
    uint8_t *y = (uint8_t *)out_at(m, op[QRN_TABLE_Y]);
    size_t c, n;
    for (c = 0; c < op[QRN_TABLE_CHANNELS]; c++, table += 256) {
        for (n = 0; n < op[QRN_TABLE_COUNT]; n++) *y++ = table[*x++];
    }
}

static void run_pixels(const machine *m, const uint32_t *op) {
    const uint8_t *x = (const uint8_t *)at(m, op[QRN_PIXELS_X]);
    const float *scale = (const float *)at(m, op[QRN_PIXELS_SCALES]), *shift = (const float *)at(m, op[QRN_PIXELS_SHIFTS]);
    float *y = (float *)out_at(m, op[QRN_PIXELS_Y]);
    size_t c, n;
    for (c = 0; c < op[QRN_PIXELS_CHANNELS]; c++) {
        for (n = 0; n < op[QRN_PIXELS_COUNT]; n++) *y++ = (float)*x++ * scale[c] - shift[c];
    }
}

static void run_quantize(const machine *m, const uint32_t *op) {
    const float *x = (const float *)at(m, op[QRN_QUANTIZE_X]);
    int8_t *y = (int8_t *)out_at(m, op[QRN_QUANTIZE_Y]);
    float inverse = 1.0f / as_float(op[QRN_QUANTIZE_SCALE]), zero = (float)(int32_t)op[QRN_QUANTIZE_ZERO];
    size_t n = 0;
#if LANES == 8
    for (; n + 8 <= op[QRN_QUANTIZE_COUNT]; n += 8) {
        vf value = load(x + n) * inverse + zero;
        vf half = (vf)(((vi)value & INT32_MIN) | (vi)splat(0.5f)); /* with its sign */
        value = maximum(value + half, splat(-128.0f)); /* what is no number, too */
        put_bytes((vi)_mm256_cvttps_epi32(_mm256_min_ps((__m256)value, (__m256)splat(127.0f))), y + n);
    }
#endif
    for (; n < op[QRN_QUANTIZE_COUNT]; n++) {
        float value = x[n] * inverse + zero;
        y[n] = (int8_t)(!(value > -128.0f) ? -128 : value > 127.0f ? 127 : (int32_t)(value + (value < 0 ? -0.5f : 0.5f)));
    }
}

static void run_dequantize(const machine *m, const uint32_t *op) {
    const int8_t *x = (const int8_t *)at(m, op[QRN_QUANTIZE_X]);
    float *y = (float *)out_at(m, op[QRN_QUANTIZE_Y]), scale = as_float(op[QRN_QUANTIZE_SCALE]);
    size_t n;
    for (n = 0; n < op[QRN_QUANTIZE_COUNT]; n++) y[n] = scale * (float)(x[n] - (int32_t)op[QRN_QUANTIZE_ZERO]);
}

static float source_place(const uint32_t *op, size_t axis, size_t n, size_t size) {
    float scale = as_float(op[QRN_RESIZE_SCALE + axis]);
    float place = op[QRN_RESIZE_CORNERS] ? scale * (float)n : scale * ((float)n + 0.5f) - 0.5f;
    return !(place > 0) ? 0.0f : place > (float)(size - 1) ? (float)(size - 1) : place;
}

static void run_resize(const machine *m, const uint32_t *op) {
    const float *x = (const float *)at(m, op[QRN_RESIZE_X]);
    float *y = (float *)out_at(m, op[QRN_RESIZE_Y]);
    size_t height = op[QRN_RESIZE_HEIGHT], width = op[QRN_RESIZE_WIDTH], c, n, k;
    for (c = 0; c < op[QRN_RESIZE_CHANNELS]; c++, x += height * width) {
        for (n = 0; n < op[QRN_RESIZE_OUT]; n++) {
            float down = source_place(op, 0, n, height);
            size_t top = (size_t)down, bottom = smaller(top + 1, height - 1);
            for (k = 0; k < op[QRN_RESIZE_OUT + 1]; k++) {
                float along = source_place(op, 1, k, width);
                size_t left = (size_t)along, right = smaller(left + 1, width - 1);
                float v = down - (float)top, u = along - (float)left;
                float above = (1.0f - u) * x[top * width + left] + u * x[top * width + right];
                float below = (1.0f - u) * x[bottom * width + left] + u * x[bottom * width + right];
                *y++ = (1.0f - v) * above + v * below;
            }
        }
    }
}

static void run_add_i8(const machine *m, const uint32_t *op) {
    const int8_t *a = (const int8_t *)at(m, op[QRN_ADD_A]), *b = (const int8_t *)at(m, op[QRN_ADD_B]);
    int8_t *y = (int8_t *)out_at(m, op[QRN_ADD_Y]);
    int32_t a_zero = (int32_t)op[QRN_ADD_A_ZERO], b_zero = (int32_t)op[QRN_ADD_B_ZERO];
    size_t n;
    for (n = 0; n < op[QRN_ADD_COUNT]; n++) {
        int64_t sum = (int64_t)(a[n] - a_zero) * (int32_t)op[QRN_ADD_A_MULTIPLIER] +
                      (int64_t)(b[n] - b_zero) * (int32_t)op[QRN_ADD_B_MULTIPLIER];
        y[n] = to_i8((int32_t)((sum + ((int64_t)1 << op[QRN_ADD_SHIFT] >> 1)) >> op[QRN_ADD_SHIFT]), (int32_t)op[QRN_ADD_Y_ZERO], (int32_t)op[QRN_ADD_LOW],
                     (int32_t)op[QRN_ADD_HIGH]);
    }
}

/* ---------------------------------------------------------------------------------------------------------- checking */

/* A stranger's blob may say anything. What is computed from its numbers here cannot overflow: sizes are up to LIMIT, and
 * products of them stop at the largest number. */
enum { LIMIT = 1 << 24 };
#ifndef QRN_MAX_WORK
#define QRN_MAX_WORK ((uint64_t)1 << 36) /* products of one run, about: more would look as if it never ended */
#endif

typedef struct {
    const uint8_t *blob;
    uint64_t bytes, tensors, work;
} bounds;

static uint64_t times(uint64_t a, uint64_t b) { return b && a > UINT64_MAX / b ? UINT64_MAX : a * b; }

static int sized(uint32_t n) { return n >= 1 && n <= LIMIT; }

static int in_blob(const bounds *k, uint32_t address, uint64_t count, uint64_t size) {
    uint64_t first = (uint64_t)address - QRN_IN_BLOB;
    if (is_none(address) || !(address & QRN_IN_BLOB) || (address & 0x80000000u)) return 0;
    return first % size == 0 && first <= k->bytes && times(count, size) <= k->bytes - first;
}

static int in_arena(const bounds *k, uint32_t address, uint64_t count, uint64_t size) {
    if (address & (QRN_IN_BLOB | 0x80000000u)) return 0;
    return address % size == 0 && address <= k->tensors && times(count, size) <= k->tensors - address;
}

static int anywhere(const bounds *k, uint32_t address, uint64_t count, uint64_t size) {
    return in_arena(k, address, count, size) || in_blob(k, address, count, size);
}

static int worked(bounds *k, uint64_t amount) {
    k->work = k->work > UINT64_MAX - amount ? UINT64_MAX : k->work + amount;
    return k->work <= QRN_MAX_WORK;
}

static uint64_t dtype_bytes(uint32_t dtype) {
    return dtype == QRN_F32 || dtype == QRN_I32 ? 4 : dtype == QRN_F16 ? 2 : 1;
}

static int is_i8(uint32_t value) { return (int32_t)value >= -128 && (int32_t)value <= 127; }

/* Numbers of `bits` bits and a sign. */
static int bounded(const bounds *k, uint32_t address, uint64_t count, int bits) {
    const int32_t *numbers;
    uint64_t n;
    if (!in_blob(k, address, count, 4)) return 0;
    numbers = (const int32_t *)(const void *)(k->blob + (address - QRN_IN_BLOB));
    for (n = 0; n < count; n++) {
        if (numbers[n] >= 1 << bits || numbers[n] <= -(1 << bits)) return 0;
    }
    return 1;
}

COLD static int weights_fit(const bounds *k, const uint32_t *words, int pairs, int alone, uint64_t outputs, uint64_t taps) {
    uint64_t components = words[QRN_W_COMPONENTS], units, size, numbers, o;
    weights w;
    if (components != 1 && components != 4) return 0;
    if (words[QRN_W_OUTPUTS] != outputs || words[QRN_W_TAPS] != taps || outputs > LIMIT || taps > LIMIT) return 0;
    if (words[QRN_W_DTYPE] != QRN_F32 && words[QRN_W_DTYPE] != QRN_F16 && words[QRN_W_DTYPE] != QRN_I8) return 0;
    if (pairs && (words[QRN_W_DTYPE] != QRN_I8 || taps > QRN_MAX_TAPS_I8)) return 0;
    if (pairs ? !bounded(k, words[QRN_W_BIAS], components * outputs, 29) : !in_blob(k, words[QRN_W_BIAS], components * outputs, 4))
        return 0;
    if (is_none(words[QRN_W_SCALES]) ? words[QRN_W_DTYPE] == QRN_I8 && !pairs : !in_blob(k, words[QRN_W_SCALES], outputs, 4)) return 0;
    size = dtype_bytes(words[QRN_W_DTYPE]);
    if (is_none(words[QRN_W_STARTS])) {
        units = outputs * taps;
    } else {
        if (!in_blob(k, words[QRN_W_STARTS], outputs + 1, 4) || !in_blob(k, words[QRN_W_GAP_STARTS], outputs + 1, 4)) return 0;
        w = weights_of(k->blob, words, pairs, alone);
        if (w.starts[0] != 0 || w.gap_starts[0] != 0 || !in_blob(k, words[QRN_W_GAPS], w.gap_starts[outputs], 1)) return 0;
        for (o = 0; o < outputs; o++) {
            uint64_t place = 0, count = 0, gap;
            if (w.starts[o + 1] < w.starts[o] || w.gap_starts[o + 1] < w.gap_starts[o]) return 0;
            if (w.gap_starts[o + 1] > w.gap_starts[outputs]) return 0;
            for (gap = w.gap_starts[o]; gap < w.gap_starts[o + 1]; gap++) {
                place += w.gaps[gap];
                if (w.gaps[gap] < 255) {
                    place++;
                    count++;
                } else if (gap + 1 == w.gap_starts[o + 1]) {
                    return 0; /* a step to no unit */
                }
            }
            if (place > taps || count != w.starts[o + 1] - w.starts[o]) return 0;
        }
        units = w.starts[outputs];
    }
    numbers = times(units, width_of((size_t)components, pairs, alone));
    if (!in_blob(k, words[QRN_W_VALUES], numbers, size)) return 0;
    for (o = 0; pairs && o < numbers; o++) {
        if (k->blob[words[QRN_W_VALUES] - QRN_IN_BLOB + o] == 128) return 0; /* -128, which could not be negated */
    }
    return 1;
}

COLD static int finishing_fits(const bounds *k, uint32_t activation, uint32_t x_dtype, uint32_t y_dtype, const uint32_t *quant,
                          const uint32_t *words) {
    uint64_t outputs = words[QRN_W_OUTPUTS];
    if (!HAS_ACTIVATION(activation) || (x_dtype != QRN_F32 && x_dtype != QRN_I8)) return 0;
    if (!HAS(x_dtype == QRN_I8 ? QRN_PRODUCTS_I8 : QRN_PRODUCTS_F32)) return 0;
    if (y_dtype != QRN_F32 && !(y_dtype == QRN_I8 && x_dtype == QRN_I8)) return 0;
    if (x_dtype == QRN_I8 && !is_i8(quant[QRN_Q_X_ZERO])) return 0;
    if (x_dtype == QRN_I8 && y_dtype == QRN_F32 && is_none(words[QRN_W_SCALES])) return 0;
    if (y_dtype == QRN_I8) {
        const uint8_t *shifts;
        uint64_t n;
        if (!is_i8(quant[QRN_Q_Y_ZERO]) || !is_i8(quant[QRN_Q_LOW]) || !is_i8(quant[QRN_Q_HIGH])) return 0;
        if (!in_blob(k, quant[QRN_Q_MULTIPLIERS], outputs, 4) || !in_blob(k, quant[QRN_Q_SHIFTS], outputs, 1)) return 0;
        shifts = k->blob + (quant[QRN_Q_SHIFTS] - QRN_IN_BLOB);
        for (n = 0; n < outputs; n++) {
            if (shifts[n] > 30) return 0;
        }
    }
    return 1;
}

COLD static const char *check_conv(bounds *k, const uint32_t *op) {
    static const char wrong[] = "a convolution does not fit its tensors";
    uint64_t outputs = op[QRN_CONV_WEIGHTS + QRN_W_OUTPUTS], components = op[QRN_CONV_WEIGHTS + QRN_W_COMPONENTS];
    uint64_t parts = 0, out[2], plane = 1, axis, n, per_group, taps, positions, size;
    int pairs = op[QRN_CONV_X_DTYPE] == QRN_I8, pool = op[QRN_CONV_POOL] == 1;
    if (components != 1 && components != 4) return wrong;
    if (op[QRN_CONV_PARTS] < 1 || op[QRN_CONV_PARTS] > (components == 4 ? 15u : 1u) || op[QRN_CONV_POOL] > 1) return wrong;
    for (n = 0; n < 4; n++) parts += op[QRN_CONV_PARTS] >> n & 1;
    for (n = QRN_CONV_HEIGHT; n < QRN_CONV_PADDING; n++) {
        if (!sized(op[n])) return wrong;
    }
    for (axis = 0; axis < 2; axis++) {
        uint64_t padded = ((uint64_t)op[QRN_CONV_HEIGHT + axis] - 1) * op[QRN_CONV_STUFFING + axis] + 1;
        uint64_t reach = ((uint64_t)op[QRN_CONV_KERNEL + axis] - 1) * op[QRN_CONV_DILATION + axis] + 1;
        if (op[QRN_CONV_PADDING + axis] > LIMIT || op[QRN_CONV_PADDING + 2 + axis] > LIMIT) return wrong;
        padded += (uint64_t)op[QRN_CONV_PADDING + axis] + op[QRN_CONV_PADDING + 2 + axis];
        if (padded > LIMIT || reach > padded) return wrong;
        out[axis] = (padded - reach) / op[QRN_CONV_STRIDE + axis] + 1;
        /* with what is unused behind the last phase */
        plane = times(plane, padded + op[QRN_CONV_STRIDE + axis]);
    }
    if (outputs < 1 || outputs > LIMIT || op[QRN_CONV_CHANNELS] % op[QRN_CONV_GROUPS] || outputs % op[QRN_CONV_GROUPS]) return wrong;
    if (pool && (out[0] < 2 || out[1] < 2)) return wrong;
    per_group = op[QRN_CONV_CHANNELS] / op[QRN_CONV_GROUPS];
    taps = times(pairs && components == 1 ? (per_group + 1) / 2 : per_group,
                 times(op[QRN_CONV_KERNEL], op[QRN_CONV_KERNEL + 1]));
    size = times(op[QRN_CONV_HEIGHT], op[QRN_CONV_WIDTH]);
    positions = pool ? (out[0] / 2) * (out[1] / 2) : times(out[0], out[1]);
    /* The planes are reached by numbers of 32 bits, and what they, their sums and the places take must be a size on any machine. */
    if (times(times(plane, op[QRN_CONV_CHANNELS]), 8) > MAX_PLANES || times(plane, outputs) > UINT64_MAX / 64) return wrong;
    if (plane > LIMIT || taps > LIMIT / 8) return wrong;
    if (!in_arena(k, op[QRN_CONV_X], times(times(parts, op[QRN_CONV_CHANNELS]), size), dtype_bytes(op[QRN_CONV_X_DTYPE]))) return wrong;
    if (!in_arena(k, op[QRN_CONV_Y], times(times(components, outputs), positions), dtype_bytes(op[QRN_CONV_Y_DTYPE]))) return wrong;
    if (!is_none(op[QRN_CONV_CONSTANT])) {
        uint64_t area = times(op[QRN_CONV_KERNEL], op[QRN_CONV_KERNEL + 1]), count = times(4 * outputs, area);
        if (components != 4 || !in_blob(k, op[QRN_CONV_CONSTANT], count, 4)) return wrong;
        if (pairs && (area > 1 << 10 || !bounded(k, op[QRN_CONV_CONSTANT], count, 19))) return wrong;
    }
    if (!finishing_fits(k, op[QRN_CONV_ACTIVATION], op[QRN_CONV_X_DTYPE], op[QRN_CONV_Y_DTYPE], op + QRN_CONV_QUANT, op + QRN_CONV_WEIGHTS))
        return wrong;
    if (!weights_fit(k, op + QRN_CONV_WEIGHTS, pairs, per_group == 1, outputs, taps)) return "the weights of a convolution do not fit it";
    if (!worked(k, times(times(times(out[0], out[1]), outputs), times(taps, components * components)))) return "it would never end";
    if (!worked(k, times(times(plane, op[QRN_CONV_CHANNELS]), 8))) return "it would never end";
    return NULL;
}

COLD static const char *check_linear(bounds *k, const uint32_t *op) {
    static const char wrong[] = "a linear layer does not fit its tensors";
    uint64_t outputs = op[QRN_LINEAR_WEIGHTS + QRN_W_OUTPUTS], components = op[QRN_LINEAR_WEIGHTS + QRN_W_COMPONENTS];
    uint64_t parts = 0, n, rows = op[QRN_LINEAR_ROWS], channels = op[QRN_LINEAR_CHANNELS], taps;
    int pairs = op[QRN_LINEAR_X_DTYPE] == QRN_I8;
    if ((components != 1 && components != 4) || !sized(op[QRN_LINEAR_ROWS]) || !sized(op[QRN_LINEAR_CHANNELS])) return wrong;
    if (op[QRN_LINEAR_PARTS] < 1 || op[QRN_LINEAR_PARTS] > (components == 4 ? 15u : 1u)) return wrong;
    for (n = 0; n < 4; n++) parts += op[QRN_LINEAR_PARTS] >> n & 1;
    if (outputs < 1 || outputs > LIMIT) return wrong;
    taps = pairs && components == 1 ? (channels + 1) / 2 : channels;
    if (!in_arena(k, op[QRN_LINEAR_X], times(times(rows, channels), parts), dtype_bytes(op[QRN_LINEAR_X_DTYPE]))) return wrong;
    if (!in_arena(k, op[QRN_LINEAR_Y], times(times(rows, outputs), components), dtype_bytes(op[QRN_LINEAR_Y_DTYPE]))) return wrong;
    if (!finishing_fits(k, op[QRN_LINEAR_ACTIVATION], op[QRN_LINEAR_X_DTYPE], op[QRN_LINEAR_Y_DTYPE], op + QRN_LINEAR_QUANT, op + QRN_LINEAR_WEIGHTS))
        return wrong;
    if (!weights_fit(k, op + QRN_LINEAR_WEIGHTS, pairs, 0, outputs, taps)) return "the weights of a linear layer do not fit it";
    return worked(k, times(times(rows, outputs), taps * components * components)) ? NULL : "it would never end";
}

COLD static const char *check_recurrent(bounds *k, const uint32_t *op) {
    static const char wrong[] = "a recurrent layer does not fit its tensors";
    const uint32_t *w = op + QRN_RECURRENT_WEIGHTS;
    uint64_t gates = gates_of(op[QRN_RECURRENT_KIND]), outputs = w[QRN_W_OUTPUTS], components = w[QRN_W_COMPONENTS];
    uint64_t units = outputs / gates, steps = op[QRN_RECURRENT_STEPS];
    if (op[QRN_RECURRENT_KIND] > QRN_GRU || !sized(op[QRN_RECURRENT_STEPS]) || op[QRN_RECURRENT_REVERSE] > 1) return wrong;
    if ((components != 1 && components != 4) || outputs < 1 || outputs > LIMIT || outputs % gates) return wrong;
    if (!in_arena(k, op[QRN_RECURRENT_X], times(steps, components * outputs), 4)) return wrong;
    if (!in_arena(k, op[QRN_RECURRENT_Y], times(steps, components * units), 4)) return wrong;
    if (!in_arena(k, op[QRN_RECURRENT_H], components * units, 4)) return wrong;
    if (op[QRN_RECURRENT_KIND] == QRN_LSTM && !in_arena(k, op[QRN_RECURRENT_C], components * units, 4)) return wrong;
    if (!weights_fit(k, w, 0, 0, outputs, units)) return "the weights of a recurrent layer do not fit it";
    return worked(k, times(times(steps, outputs), (units + 16) * components * components)) ? NULL : "it would never end";
}

COLD static const char *check_nest(bounds *k, const uint32_t *op) {
    static const char wrong[] = "a loop over tensors leaves them";
    uint64_t reach[3] = {0, 0, 0}, count = 1, n, which, size = dtype_bytes(op[QRN_NEST_DTYPE]);
    if (op[QRN_NEST_KIND] >= QRN_NEST_KINDS || op[QRN_NEST_DTYPE] > QRN_I32) return wrong;
    if (op[QRN_NEST_DTYPE] != QRN_F32 && op[QRN_NEST_KIND] != QRN_NEST_COPY) return wrong;
    for (n = 0; n < QRN_AXES; n++) {
        if (!sized(op[QRN_NEST_SIZES + n])) return wrong;
        count = times(count, op[QRN_NEST_SIZES + n]);
        for (which = 0; which < 3; which++) {
            uint64_t far = times(op[QRN_NEST_STRIDES_A + which * QRN_AXES + n], op[QRN_NEST_SIZES + n] - 1);
            reach[which] = far > (uint64_t)1 << 32 || reach[which] > (uint64_t)1 << 32 ? UINT64_MAX : reach[which] + far;
        }
    }
    for (which = 0; which < 3; which++) {
        if (reach[which] >= (uint64_t)1 << 32) return wrong;
    }
    if (!anywhere(k, op[QRN_NEST_A], reach[0] + 1, size) || !in_arena(k, op[QRN_NEST_Y], reach[2] + 1, size)) return wrong;
    if (takes_two(op[QRN_NEST_KIND]) && !anywhere(k, op[QRN_NEST_B], reach[1] + 1, size)) return wrong;
    return worked(k, count) ? NULL : "it would never end";
}

COLD static const char *check_pool(bounds *k, const uint32_t *op) {
    static const char wrong[] = "a pooling does not fit its tensors";
    uint64_t axis, n, planes, size, reach = 1, places = times(op[QRN_POOL_OUT], op[QRN_POOL_OUT + 1]);
    int adaptive = op[QRN_POOL_KERNEL] == 0 && op[QRN_POOL_KERNEL + 1] == 0;
    if (op[QRN_POOL_KIND] > QRN_POOL_MODULUS || (op[QRN_POOL_DTYPE] != QRN_F32 && op[QRN_POOL_DTYPE] != QRN_I8)) return wrong;
    if (op[QRN_POOL_DTYPE] == QRN_I8 && (op[QRN_POOL_KIND] == QRN_POOL_MODULUS || !is_i8(op[QRN_POOL_ZERO]))) return wrong;
    for (n = QRN_POOL_CHANNELS; n < QRN_POOL_KERNEL; n++) {
        if (!sized(op[n])) return wrong;
    }
    if ((int32_t)op[QRN_POOL_DIVISOR] < -1 || (int32_t)op[QRN_POOL_DIVISOR] > LIMIT) return wrong;
    for (axis = 0; axis < 2; axis++) {
        uint64_t in = op[QRN_POOL_HEIGHT + axis], kernel = op[QRN_POOL_KERNEL + axis], padding = op[QRN_POOL_PADDING + axis];
        if (adaptive) {
            reach = times(reach, in / op[QRN_POOL_OUT + axis] + 2);
            continue;
        }
        if (!sized(op[QRN_POOL_KERNEL + axis]) || !sized(op[QRN_POOL_STRIDE + axis]) || !sized(op[QRN_POOL_DILATION + axis])) return wrong;
        /* Every window has a place inside: padding up to half of it, and the last one begins before the far end. */
        if (padding > kernel / 2 || (padding > 0 && op[QRN_POOL_DILATION + axis] > in)) return wrong;
        if (((uint64_t)op[QRN_POOL_OUT + axis] - 1) * op[QRN_POOL_STRIDE + axis] >= in + padding) return wrong;
        if (in + 2 * padding < (kernel - 1) * op[QRN_POOL_DILATION + axis] + 1) return wrong;
        reach = times(reach, kernel);
    }
    planes = times(op[QRN_POOL_CHANNELS], op[QRN_POOL_KIND] == QRN_POOL_MODULUS ? 4 : 1);
    size = dtype_bytes(op[QRN_POOL_DTYPE]);
    if (reach > LIMIT / 4) return wrong; /* sums of bytes fit 32 bits */
    if (!in_arena(k, op[QRN_POOL_X], times(planes, times(op[QRN_POOL_HEIGHT], op[QRN_POOL_WIDTH])), size)) return wrong;
    if (!in_arena(k, op[QRN_POOL_Y], times(planes, places), op[QRN_POOL_KIND] == QRN_POOL_MEAN ? 4 : size)) return wrong;
    return worked(k, times(times(planes, places), reach)) ? NULL : "it would never end";
}

COLD static const char *check_other(bounds *k, uint32_t code, const uint32_t *op) {
    static const char wrong[] = "an operation does not fit its tensors";
    uint64_t count, places;
    switch (code) {
    case QRN_OP_UNARY:
        count = op[QRN_UNARY_COUNT];
        if (!HAS_ACTIVATION(op[QRN_UNARY_KIND]) || !in_arena(k, op[QRN_UNARY_X], count, 4) || !in_arena(k, op[QRN_UNARY_Y], count, 4))
            return wrong;
        return worked(k, count) ? NULL : wrong;
    case QRN_OP_EMBED:
        count = times(op[QRN_EMBED_ROWS], op[QRN_EMBED_WIDTH]);
        places = times(op[QRN_EMBED_ENTRIES], op[QRN_EMBED_WIDTH]);
        if (op[QRN_EMBED_DTYPE] != QRN_F32 && op[QRN_EMBED_DTYPE] != QRN_F16 && op[QRN_EMBED_DTYPE] != QRN_I8) return wrong;
        if (op[QRN_EMBED_DTYPE] == QRN_I8 && !in_blob(k, op[QRN_EMBED_SCALES], op[QRN_EMBED_ENTRIES], 4)) return wrong;
        if (!in_arena(k, op[QRN_EMBED_X], op[QRN_EMBED_ROWS], 4) || !in_arena(k, op[QRN_EMBED_Y], count, 4)) return wrong;
        if (!in_blob(k, op[QRN_EMBED_TABLE], places, dtype_bytes(op[QRN_EMBED_DTYPE]))) return wrong;
        return worked(k, count + op[QRN_EMBED_ROWS]) ? NULL : wrong;
    case QRN_OP_ARGMAX:
        places = times(op[QRN_ARGMAX_OUTER], op[QRN_ARGMAX_INNER]);
        if (!sized(op[QRN_ARGMAX_OUTER]) || !sized(op[QRN_ARGMAX_INNER]) || !sized(op[QRN_ARGMAX_COUNT])) return wrong;
        if (!in_arena(k, op[QRN_ARGMAX_X], times(places, op[QRN_ARGMAX_COUNT]), 4)) return wrong;
        if (!in_arena(k, op[QRN_ARGMAX_Y], places, 4)) return wrong;
        return worked(k, times(places, op[QRN_ARGMAX_COUNT])) ? NULL : wrong;
    case QRN_OP_TABLE:
        count = times(op[QRN_TABLE_CHANNELS], op[QRN_TABLE_COUNT]);
        if (!in_arena(k, op[QRN_TABLE_X], count, 1) || !in_arena(k, op[QRN_TABLE_Y], count, 1)) return wrong;
        if (!in_blob(k, op[QRN_TABLE_TABLE], times(op[QRN_TABLE_CHANNELS], 256), 1)) return wrong;
        return worked(k, times(op[QRN_TABLE_CHANNELS], (uint64_t)op[QRN_TABLE_COUNT] + 1)) ? NULL : wrong;
    case QRN_OP_PIXELS:
        count = times(op[QRN_PIXELS_CHANNELS], op[QRN_PIXELS_COUNT]);
        if (!in_arena(k, op[QRN_PIXELS_X], count, 1) || !in_arena(k, op[QRN_PIXELS_Y], count, 4)) return wrong;
        if (!in_blob(k, op[QRN_PIXELS_SCALES], op[QRN_PIXELS_CHANNELS], 4)) return wrong;
        if (!in_blob(k, op[QRN_PIXELS_SHIFTS], op[QRN_PIXELS_CHANNELS], 4)) return wrong;
        return worked(k, times(op[QRN_PIXELS_CHANNELS], (uint64_t)op[QRN_PIXELS_COUNT] + 1)) ? NULL : wrong;
    case QRN_OP_QUANTIZE:
    case QRN_OP_DEQUANTIZE:
        count = op[QRN_QUANTIZE_COUNT];
        if (!is_i8(op[QRN_QUANTIZE_ZERO])) return wrong;
        if (!in_arena(k, op[QRN_QUANTIZE_X], count, code == QRN_OP_QUANTIZE ? 4 : 1)) return wrong;
        if (!in_arena(k, op[QRN_QUANTIZE_Y], count, code == QRN_OP_QUANTIZE ? 1 : 4)) return wrong;
        return worked(k, count) ? NULL : wrong;
    case QRN_OP_RESIZE:
        for (count = QRN_RESIZE_CHANNELS; count < QRN_RESIZE_CORNERS; count++) {
            if (!sized(op[count])) return wrong;
        }
        places = times(op[QRN_RESIZE_HEIGHT], op[QRN_RESIZE_WIDTH]);
        count = times(op[QRN_RESIZE_CHANNELS], times(op[QRN_RESIZE_OUT], op[QRN_RESIZE_OUT + 1]));
        if (!in_arena(k, op[QRN_RESIZE_X], times(op[QRN_RESIZE_CHANNELS], places), 4) || !in_arena(k, op[QRN_RESIZE_Y], count, 4))
            return wrong;
        return worked(k, count) ? NULL : wrong;
    case QRN_OP_ADD_I8:
        count = op[QRN_ADD_COUNT];
        if (!is_i8(op[QRN_ADD_A_ZERO]) || !is_i8(op[QRN_ADD_B_ZERO]) || !is_i8(op[QRN_ADD_Y_ZERO])) return wrong;
        if (!is_i8(op[QRN_ADD_LOW]) || !is_i8(op[QRN_ADD_HIGH]) || op[QRN_ADD_SHIFT] > 62) return wrong;
        if (!in_arena(k, op[QRN_ADD_A], count, 1) || !in_arena(k, op[QRN_ADD_B], count, 1)) return wrong;
        return in_arena(k, op[QRN_ADD_Y], count, 1) && worked(k, count) ? NULL : wrong;
    default:
        return "it has an operation that this runtime does not know";
    }
}

static uint32_t op_words(uint32_t code) {
    static const uint8_t words[] = {0,
                                    QRN_CONV_WORDS,
                                    QRN_LINEAR_WORDS,
                                    QRN_RECURRENT_WORDS,
                                    QRN_NEST_WORDS,
                                    QRN_UNARY_WORDS,
                                    QRN_POOL_WORDS,
                                    QRN_EMBED_WORDS,
                                    QRN_ARGMAX_WORDS,
                                    QRN_TABLE_WORDS,
                                    QRN_PIXELS_WORDS,
                                    QRN_QUANTIZE_WORDS,
                                    QRN_QUANTIZE_WORDS,
                                    QRN_RESIZE_WORDS,
                                    QRN_ADD_WORDS};
    return code < sizeof words && HAS(code) ? words[code] : 0;
}

static uint32_t crc_of(const uint8_t *bytes, size_t count) {
    static const uint32_t table[16] = {0x00000000, 0x1db71064, 0x3b6e20c8, 0x26d930ac, 0x76dc4190, 0x6b6b51f4,
                                       0x4db26158, 0x5005713c, 0xedb88320, 0xf00f9344, 0xd6d6a3e8, 0xcb61b38c,
                                       0x9b64c2b0, 0x86d3d2d4, 0xa00ae278, 0xbdbdf21c};
    uint32_t crc = 0xffffffffu;
    for (; count > 0; count--) {
        crc ^= *bytes++;
        crc = crc >> 4 ^ table[crc & 15];
        crc = crc >> 4 ^ table[crc & 15];
    }
    return ~crc;
}

enum { TENSOR_WORDS = 2 + QRN_AXES + 1 }; /* a qrn_tensor and its address */

static const uint32_t *tensor_words(const void *blob, size_t n) {
    return (const uint32_t *)blob + QRN_HEADER_WORDS + n * TENSOR_WORDS;
}

static qrn_tensor tensor_of(const void *blob, size_t n) {
    qrn_tensor t;
    memcpy(&t, tensor_words(blob, n), sizeof t);
    return t;
}

size_t qrn_bytes(qrn_tensor tensor) {
    size_t count = (size_t)dtype_bytes(tensor.dtype), n;
    for (n = 0; n < tensor.axes; n++) count *= tensor.size[n];
    return count;
}

COLD const char *qrn_check(const void *blob, size_t bytes) {
    const uint32_t *words = (const uint32_t *)blob;
    uint64_t place, end, n, tensors;
    bounds k;
    if (!blob || ((uintptr_t)blob & 3) != 0) return "it does not lie at a multiple of 4 bytes";
    if (bytes < 4 * QRN_HEADER_WORDS || words[QRN_HEADER_MAGIC] != QRN_MAGIC) return "it is no packed network";
    if (words[QRN_HEADER_VERSION] != QRN_VERSION) return "it is of a version that this runtime does not know";
    if (words[QRN_HEADER_BYTES] != bytes || bytes > QRN_IN_BLOB || bytes % 4) return "it is cut short, or has something behind it";
    if (crc_of((const uint8_t *)blob + 12, bytes - 12) != words[QRN_HEADER_CRC]) return "its checksum is wrong: it is damaged";
    k.blob = (const uint8_t *)blob;
    k.bytes = bytes;
    k.tensors = words[QRN_HEADER_TENSORS];
    k.work = 0;
    if (k.tensors >= QRN_IN_BLOB || k.tensors % 4) return "its tensors do not fit in memory";
    tensors = (uint64_t)words[QRN_HEADER_INPUTS] + words[QRN_HEADER_OUTPUTS];
    if (words[QRN_HEADER_INPUTS] < 1 || words[QRN_HEADER_OUTPUTS] < 1 || tensors > 64) return "it has no inputs or outputs, or too many";
    place = QRN_HEADER_WORDS + tensors * TENSOR_WORDS;
    end = bytes / 4;
    if (place > end) return "it is cut short";
    for (n = 0; n < tensors; n++) {
        const uint32_t *t = tensor_words(blob, (size_t)n);
        uint64_t count = 1, axis;
        if (t[0] > QRN_I32 || t[1] > QRN_AXES) return "an input or output is of no known kind";
        for (axis = 0; axis < t[1]; axis++) {
            if (!sized(t[2 + axis])) return "an input or output has no size";
            count = times(count, t[2 + axis]);
        }
        if (!in_arena(&k, t[2 + QRN_AXES], count, dtype_bytes(t[0]))) return "an input or output lies outside of the memory";
    }
    for (n = 0; n < words[QRN_HEADER_OPS]; n++) {
        uint32_t code;
        const char *wrong;
        if (end - place < 2) return "its list of operations is cut short";
        code = words[place];
        if (op_words(code) == 0) return "it has an operation that this runtime does not know";
        if (words[place + 1] != op_words(code) || end - place - 2 < op_words(code)) return "an operation is cut short";
        place += 2;
        wrong = HAS(QRN_OP_CONV) && code == QRN_OP_CONV             ? check_conv(&k, words + place)
                : HAS(QRN_OP_LINEAR) && code == QRN_OP_LINEAR       ? check_linear(&k, words + place)
                : HAS(QRN_OP_RECURRENT) && code == QRN_OP_RECURRENT ? check_recurrent(&k, words + place)
                : HAS(QRN_OP_NEST) && code == QRN_OP_NEST           ? check_nest(&k, words + place)
                : HAS(QRN_OP_POOL) && code == QRN_OP_POOL           ? check_pool(&k, words + place)
                                                                    : check_other(&k, code, words + place);
        if (wrong) return wrong;
        place += op_words(code);
    }
    if (qrn_arena(blob, 1) > (size_t)1 << 31) return "it needs more memory than a network of this kind may";
    return NULL;
}

/* ----------------------------------------------------------------------------------------------------------- running */

COLD static size_t scratch_of(const uint8_t *blob, uint32_t code, const uint32_t *op, int fast, size_t lanes) {
    if (code == QRN_OP_CONV) { /* what is faster does not always take more */
        size_t most = conv_of(blob, op, 1, lanes).scratch;
        return fast ? most : smaller(most, conv_of(blob, op, 0, lanes).scratch);
    }
    if (code == QRN_OP_LINEAR) {
        weights w = weights_of(blob, op + QRN_LINEAR_WEIGHTS, op[QRN_LINEAR_X_DTYPE] == QRN_I8, 0);
        return linear_of(&w, op[QRN_LINEAR_CHANNELS], lanes).scratch;
    }
    if (code == QRN_OP_RECURRENT) {
        weights w = weights_of(blob, op + QRN_RECURRENT_WEIGHTS, 0, 0);
        return linear_of(&w, w.taps, lanes).scratch;
    }
    return 0;
}

/* Tensors, then scratch memory. A vector may read past the end of a tensor, so there is always something behind the last. */
static size_t scratch_start(const void *blob, size_t lanes) {
    return rounded(((const uint32_t *)blob)[QRN_HEADER_TENSORS] + 32, lanes);
}

static const uint32_t *first_op(const void *blob) { return tensor_words(blob, qrn_inputs(blob) + qrn_outputs(blob)); }

COLD size_t qrn_arena(const void *blob, int which) {
    const uint32_t *op = first_op(blob);
    size_t most = 0, n, lanes = which == QRN_LEAST_ON_DEVICE ? 1 : LANES;
    for (n = 0; n < ((const uint32_t *)blob)[QRN_HEADER_OPS]; n++, op += 2 + op[1]) {
        most = larger(most, scratch_of((const uint8_t *)blob, op[0], op + 2, which == QRN_FASTEST, lanes));
    }
    return scratch_start(blob, lanes) + most;
}

size_t qrn_inputs(const void *blob) { return ((const uint32_t *)blob)[QRN_HEADER_INPUTS]; }
size_t qrn_outputs(const void *blob) { return ((const uint32_t *)blob)[QRN_HEADER_OUTPUTS]; }
qrn_tensor qrn_input(const void *blob, size_t n) { return tensor_of(blob, n); }
qrn_tensor qrn_output(const void *blob, size_t n) { return tensor_of(blob, qrn_inputs(blob) + n); }

int qrn_run(const void *blob, void *arena, size_t arena_bytes, const void *const *inputs, void *const *outputs) {
    const uint32_t *op = first_op(blob);
    machine m;
    size_t n, ops = ((const uint32_t *)blob)[QRN_HEADER_OPS];
    m.blob = (const uint8_t *)blob;
    if (arena_bytes < scratch_start(blob, LANES)) return QRN_ARENA_TOO_SMALL;
    m.arena = (uint8_t *)arena;
    m.scratch = m.arena + scratch_start(blob, LANES);
    m.scratch_bytes = arena_bytes - scratch_start(blob, LANES);
    for (n = 0; n < qrn_inputs(blob); n++) {
        memcpy(m.arena + tensor_words(blob, n)[2 + QRN_AXES], inputs[n], qrn_bytes(qrn_input(blob, n)));
    }
    for (n = 0; n < ops; n++, op += 2 + op[1]) {
        const uint32_t *arguments = op + 2;
        int failed = 0;
#define CASE(name, call) \
    case QRN_OP_##name:  \
        if (HAS(QRN_OP_##name)) call; \
        break
        switch (op[0]) {
            CASE(CONV, failed = run_conv(&m, arguments));
            CASE(LINEAR, failed = run_linear(&m, arguments));
            CASE(RECURRENT, failed = run_recurrent(&m, arguments));
            CASE(NEST, run_nest(&m, arguments));
            CASE(UNARY, run_unary(&m, arguments));
            CASE(POOL, run_pool(&m, arguments));
            CASE(EMBED, failed = run_embed(&m, arguments));
            CASE(ARGMAX, run_argmax(&m, arguments));
            CASE(TABLE, run_table(&m, arguments));
            CASE(PIXELS, run_pixels(&m, arguments));
            CASE(QUANTIZE, run_quantize(&m, arguments));
            CASE(DEQUANTIZE, run_dequantize(&m, arguments));
            CASE(RESIZE, run_resize(&m, arguments));
            CASE(ADD_I8, run_add_i8(&m, arguments));
        }
#undef CASE
        if (failed) return failed;
    }
    for (n = 0; n < qrn_outputs(blob); n++) {
        const uint32_t *t = tensor_words(blob, qrn_inputs(blob) + n);
        memcpy(outputs[n], m.arena + t[2 + QRN_AXES], qrn_bytes(qrn_output(blob, n)));
    }
    return 0;
}
