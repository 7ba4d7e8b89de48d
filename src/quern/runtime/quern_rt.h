/* quern_rt: runs packed networks (.qrn) of quern.
 *
 * A packed network is one flat little-endian blob that is executed where it lies: in flash, in a mapped file, in a byte
 * array. The runtime is C99 without malloc, stdio or global state. From libm it takes sqrtf alone.
 *
 *     const char *wrong = qrn_check(blob, bytes);            // once: everything in a stranger's blob is looked at
 *     size_t ram = qrn_arena(blob, 1);                       // 0: the least that it runs with, 1: what makes it fastest
 *     const void *inputs[] = {image};
 *     void *outputs[] = {scores};
 *     int failed = qrn_run(blob, arena, ram, inputs, outputs);
 *
 * Blob and arena must be aligned to 4 bytes (an arena to 32 is faster). Threads may share a blob, each with an arena of
 * its own. The same blob, input and arena size give the same bits on one machine; in int8 on every machine.
 */
#ifndef QUERN_RT_H
#define QUERN_RT_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* quern.runtime.format reads the numbers below from this file: they stand nowhere else. */

enum { QRN_MAGIC = 0x314e5251, QRN_VERSION = 2 }; /* "QRN1" */

/* Types of numbers. Activations are F32, I8 (with a scale and a zero point that the operations know) or, at the borders
 * of a network, U8 and I32. Weights are F32, F16 or I8. */
enum { QRN_F32 = 0, QRN_I8 = 1, QRN_U8 = 2, QRN_I32 = 3, QRN_F16 = 4 };

enum { QRN_AXES = 5 };                /* a tensor has at most so many, without the batch */
enum { QRN_MAX_TAPS_I8 = 8192 };      /* terms of a sum in int8, so that it fits 32 bits */
enum { QRN_NONE = -1 };               /* an address of nothing */
enum { QRN_IN_BLOB = 0x40000000 };    /* added to addresses in the blob; the others are in the arena */

/* The header, in words of 32 bits. Behind it stand the inputs and the outputs, a qrn_tensor and its address each; then
 * the operations, each with its code, its number of words and its arguments, at the places named below. */
enum {
    QRN_HEADER_MAGIC = 0,
    QRN_HEADER_BYTES = 1,    /* of the whole blob */
    QRN_HEADER_CRC = 2,      /* CRC-32 of all that follows this word */
    QRN_HEADER_VERSION = 3,
    QRN_HEADER_TENSORS = 4,  /* bytes of the arena that hold tensors; what an operation needs besides comes after them */
    QRN_HEADER_INPUTS = 5,
    QRN_HEADER_OUTPUTS = 6,
    QRN_HEADER_OPS = 7,
    QRN_HEADER_WORDS = 8
};

enum {
    QRN_OP_CONV = 1,
    QRN_OP_LINEAR = 2,
    QRN_OP_RECURRENT = 3,
    QRN_OP_NEST = 4,      /* loops over up to five axes: copies, sums, products, reductions, matrix products */
    QRN_OP_UNARY = 5,     /* number by number */
    QRN_OP_POOL = 6,
    QRN_OP_EMBED = 7,
    QRN_OP_ARGMAX = 8,
    QRN_OP_TABLE = 9,     /* bytes to bytes by a table for each channel */
    QRN_OP_PIXELS = 10,   /* bytes to numbers, a scale and a shift for each channel */
    QRN_OP_QUANTIZE = 11,
    QRN_OP_DEQUANTIZE = 12,
    QRN_OP_RESIZE = 13,   /* bilinear */
    QRN_OP_ADD_I8 = 14,
    QRN_PRODUCTS_F32 = 30, /* no operations: bits that stand beside those of operations in QRN_BUILD_OPS (quern_rt.c) */
    QRN_PRODUCTS_I8 = 31
};

/* The weights of a product: `components` 4 (quaternions) or 1. An output has `taps` places for a unit of weight; a unit is
 * a quaternion or a real number, in int8 products of reals two of them, but for a convolution with one channel to a group.
 * Dense: `starts` is none, and all units of all outputs follow each other. Sparse: starts[o] is the first unit of output o,
 * gap_starts[o] its first gap; a gap is the number of zero units skipped, 255 for 255 of them and no unit. */
enum {
    QRN_W_COMPONENTS = 0,
    QRN_W_DTYPE = 1,
    QRN_W_OUTPUTS = 2,
    QRN_W_TAPS = 3,
    QRN_W_VALUES = 4,     /* in int8 products from -127 to 127 */
    QRN_W_STARTS = 5,
    QRN_W_GAPS = 6,
    QRN_W_GAP_STARTS = 7,
    QRN_W_BIAS = 8,       /* (components, outputs), float; int32 in int8 products */
    QRN_W_SCALES = 9,     /* float (outputs), what one of an int8 weight or of the sum of int8 products is
                           worth; none of other weights, and where the result of the product is int8 */
    QRN_W_WORDS = 10
};

/* How an int8 result is made of a 32-bit sum: integers alone: y = clamp(zero + ((sum * multiplier[o] >> 31) >> shift[o])),
 * rounded at both shifts. */
enum {
    QRN_Q_X_ZERO = 0,
    QRN_Q_Y_ZERO = 1,
    QRN_Q_LOW = 2,
    QRN_Q_HIGH = 3,
    QRN_Q_MULTIPLIERS = 4, /* int32 (outputs) */
    QRN_Q_SHIFTS = 5,      /* bytes (outputs), at most 30 */
    QRN_Q_WORDS = 6
};

enum {
    QRN_CONV_X = 0, /* (parts * channels, height, width) */
    QRN_CONV_Y = 1,
    QRN_CONV_HEIGHT = 2,
    QRN_CONV_WIDTH = 3,
    QRN_CONV_CHANNELS = 4, /* of the input: quaternions, or real numbers */
    QRN_CONV_GROUPS = 5,
    QRN_CONV_KERNEL = 6,   /* two words each: height, width */
    QRN_CONV_STRIDE = 8,
    QRN_CONV_DILATION = 10,
    QRN_CONV_STUFFING = 12, /* a transposed convolution: so far apart are the numbers of the input, zeros between them */
    QRN_CONV_PADDING = 14,  /* top, left, bottom, right */
    QRN_CONV_PARTS = 18,    /* a bit for each component that the input has */
    QRN_CONV_CONSTANT = 19, /* (outputs, 4, kernel): the weight of a channel that carries 1; float, or int32 in int8 */
    QRN_CONV_ACTIVATION = 20,
    QRN_CONV_A = 21,        /* its two numbers */
    QRN_CONV_B = 22,
    QRN_CONV_POOL = 23,     /* 1: the maximum of 2x2 positions follows */
    QRN_CONV_X_DTYPE = 24,
    QRN_CONV_Y_DTYPE = 25,
    QRN_CONV_QUANT = 26,
    QRN_CONV_WEIGHTS = 32,
    QRN_CONV_WORDS = 42
};

enum {
    QRN_LINEAR_X = 0, /* (rows, parts * channels) */
    QRN_LINEAR_Y = 1,
    QRN_LINEAR_ROWS = 2,
    QRN_LINEAR_CHANNELS = 3,
    QRN_LINEAR_PARTS = 4,
    QRN_LINEAR_ACTIVATION = 5,
    QRN_LINEAR_A = 6,
    QRN_LINEAR_B = 7,
    QRN_LINEAR_X_DTYPE = 8,
    QRN_LINEAR_Y_DTYPE = 9,
    QRN_LINEAR_QUANT = 10,
    QRN_LINEAR_WEIGHTS = 16,
    QRN_LINEAR_WORDS = 26
};

enum { QRN_RNN_TANH = 0, QRN_RNN_RELU = 1, QRN_LSTM = 2, QRN_GRU = 3 };
enum {
    QRN_RECURRENT_KIND = 0,
    QRN_RECURRENT_X = 1, /* (steps, components * gates * units): what the input gives to each gate */
    QRN_RECURRENT_Y = 2, /* (steps, components * units) */
    QRN_RECURRENT_H = 3, /* the state, which the operation changes */
    QRN_RECURRENT_C = 4, /* of an LSTM */
    QRN_RECURRENT_STEPS = 5,
    QRN_RECURRENT_REVERSE = 6,
    QRN_RECURRENT_WEIGHTS = 7, /* from state to gates */
    QRN_RECURRENT_WORDS = 17
};

enum {
    QRN_NEST_COPY = 0,
    QRN_NEST_ADD = 1,
    QRN_NEST_SUB = 2,
    QRN_NEST_MUL = 3,
    QRN_NEST_DIV = 4,
    QRN_NEST_SUM = 5,     /* y += a */
    QRN_NEST_PRODUCT = 6, /* y += a * b */
    QRN_NEST_MAX = 7,     /* y = max(y, a) */
    QRN_NEST_MIN = 8,
    QRN_NEST_KINDS = 9
};
enum {
    QRN_NEST_KIND = 0,
    QRN_NEST_DTYPE = 1, /* others than F32 are copied, and no more */
    QRN_NEST_A = 2,
    QRN_NEST_B = 3,
    QRN_NEST_Y = 4,
    QRN_NEST_SIZES = 5,
    QRN_NEST_STRIDES_A = 10, /* in numbers, not in bytes; not negative */
    QRN_NEST_STRIDES_B = 15,
    QRN_NEST_STRIDES_Y = 20,
    QRN_NEST_WORDS = 25
};

enum {
    QRN_IDENTITY = 0,
    QRN_RELU = 1,
    QRN_LEAKY_RELU = 2,
    QRN_CLAMP = 3,
    QRN_TANH = 4,
    QRN_SIGMOID = 5,
    QRN_SILU = 6,
    QRN_ELU = 7,
    QRN_CELU = 8,
    QRN_SELU = 9,
    QRN_GELU = 10,
    QRN_GELU_TANH = 11,
    QRN_SOFTPLUS = 12,
    QRN_MISH = 13,
    QRN_HARDSWISH = 14,
    QRN_HARDSIGMOID = 15,
    QRN_SOFTSIGN = 16,
    QRN_TANHSHRINK = 17,
    QRN_LOGSIGMOID = 18,
    QRN_EXP = 19,
    QRN_SQRT = 20,
    QRN_RSQRT = 21,
    QRN_INVERSE = 22, /* 0 of 0 */
    QRN_AFFINE = 23,  /* a x + b */
    QRN_LOG = 24,
    QRN_ACTIVATIONS = 25
};
enum {
    QRN_UNARY_KIND = 0,
    QRN_UNARY_X = 1,
    QRN_UNARY_Y = 2,
    QRN_UNARY_COUNT = 3,
    QRN_UNARY_A = 4,
    QRN_UNARY_B = 5,
    QRN_UNARY_WORDS = 6
};

enum { QRN_POOL_MAX = 0, QRN_POOL_MEAN = 1, QRN_POOL_MODULUS = 2 };
enum {
    QRN_POOL_KIND = 0,
    QRN_POOL_X = 1, /* (channels, height, width); by the modulus: 4 * channels */
    QRN_POOL_Y = 2,
    QRN_POOL_CHANNELS = 3,
    QRN_POOL_HEIGHT = 4,
    QRN_POOL_WIDTH = 5,
    QRN_POOL_OUT = 6, /* two words each: height, width */
    QRN_POOL_KERNEL = 8, /* 0: adaptive */
    QRN_POOL_STRIDE = 10,
    QRN_POOL_PADDING = 12,
    QRN_POOL_DILATION = 14,
    QRN_POOL_DIVISOR = 16, /* of a mean: 0 the positions inside, -1 those inside or padded, else itself */
    QRN_POOL_DTYPE = 17,
    QRN_POOL_ZERO = 18,    /* int8: the zero point, in and out */
    QRN_POOL_SCALE = 19,   /* a mean of int8 is a float: what one is worth */
    QRN_POOL_WORDS = 20
};

enum {
    QRN_EMBED_X = 0, /* int32 (rows) */
    QRN_EMBED_Y = 1, /* (rows, width) */
    QRN_EMBED_ROWS = 2,
    QRN_EMBED_WIDTH = 3,
    QRN_EMBED_ENTRIES = 4,
    QRN_EMBED_DTYPE = 5,
    QRN_EMBED_TABLE = 6,
    QRN_EMBED_SCALES = 7, /* int8: one for each entry */
    QRN_EMBED_WORDS = 8
};

enum {
    QRN_ARGMAX_X = 0, /* (outer, count, inner) */
    QRN_ARGMAX_Y = 1, /* int32 (outer, inner) */
    QRN_ARGMAX_OUTER = 2,
    QRN_ARGMAX_COUNT = 3,
    QRN_ARGMAX_INNER = 4,
    QRN_ARGMAX_WORDS = 5
};

enum {
    QRN_TABLE_X = 0, /* bytes (channels, count) */
    QRN_TABLE_Y = 1,
    QRN_TABLE_CHANNELS = 2,
    QRN_TABLE_COUNT = 3,
    QRN_TABLE_TABLE = 4, /* bytes (channels, 256) */
    QRN_TABLE_WORDS = 5
};

enum {
    QRN_PIXELS_X = 0, /* bytes (channels, count) */
    QRN_PIXELS_Y = 1,
    QRN_PIXELS_CHANNELS = 2,
    QRN_PIXELS_COUNT = 3,
    QRN_PIXELS_SCALES = 4,
    QRN_PIXELS_SHIFTS = 5,
    QRN_PIXELS_WORDS = 6
};

enum {
    QRN_QUANTIZE_X = 0,
    QRN_QUANTIZE_Y = 1,
    QRN_QUANTIZE_COUNT = 2,
    QRN_QUANTIZE_SCALE = 3, /* float: x = scale * (y - zero) */
    QRN_QUANTIZE_ZERO = 4,
    QRN_QUANTIZE_WORDS = 5
};

enum {
    QRN_RESIZE_X = 0,
    QRN_RESIZE_Y = 1,
    QRN_RESIZE_CHANNELS = 2,
    QRN_RESIZE_HEIGHT = 3,
    QRN_RESIZE_WIDTH = 4,
    QRN_RESIZE_OUT = 5,
    QRN_RESIZE_CORNERS = 7, /* 1: the corners of input and output are the same places */
    QRN_RESIZE_SCALE = 8,   /* two floats: steps in the input for one in the output */
    QRN_RESIZE_WORDS = 10
};

enum {
    QRN_ADD_A = 0, /* int8 (count): y = clamp(zero + ((a - a_zero) * a_multiplier + (b - b_zero) * b_multiplier >> shift)) */
    QRN_ADD_B = 1,
    QRN_ADD_Y = 2,
    QRN_ADD_COUNT = 3,
    QRN_ADD_A_ZERO = 4,
    QRN_ADD_B_ZERO = 5,
    QRN_ADD_Y_ZERO = 6,
    QRN_ADD_A_MULTIPLIER = 7,
    QRN_ADD_B_MULTIPLIER = 8,
    QRN_ADD_SHIFT = 9,
    QRN_ADD_LOW = 10,
    QRN_ADD_HIGH = 11,
    QRN_ADD_WORDS = 12
};

/* An input or output of a network, without the batch: it runs one at a time. */
typedef struct {
    uint32_t dtype, axes, size[QRN_AXES];
} qrn_tensor;

/* NULL if `blob` is a packed network that can be run; else one sentence that says what is wrong. Everything is checked:
 * no other function looks at what this one did not accept. */
const char *qrn_check(const void *blob, size_t bytes);

/* Bytes of working memory: the least that qrn_run takes, as much as it can make use of, or the least on a processor without
 * vectors (LANES 1), as microcontrollers are. */
enum { QRN_LEAST = 0, QRN_FASTEST = 1, QRN_LEAST_ON_DEVICE = 2 };
size_t qrn_arena(const void *blob, int which);

size_t qrn_inputs(const void *blob);
size_t qrn_outputs(const void *blob);
qrn_tensor qrn_input(const void *blob, size_t n);
qrn_tensor qrn_output(const void *blob, size_t n);
size_t qrn_bytes(qrn_tensor tensor);

/* Bytes of stack that any of these functions takes at most, whatever the network, on a 32-bit processor without vectors:
 * nothing here is recursive or of variable size. Interrupts come on top. */
enum { QRN_STACK = 1536 };

/* Run the network once. 0, or what went wrong: */
enum { QRN_ARENA_TOO_SMALL = 1, QRN_NO_SUCH_ENTRY = 2 };
int qrn_run(const void *blob, void *arena, size_t arena_bytes, const void *const *inputs, void *const *outputs);

#ifdef __cplusplus
}
#endif

#endif
