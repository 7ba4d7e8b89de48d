/* Runs blobs of strangers, built with the sanitizers of a compiler: each from standard input, 4 bytes of length before it.
 *
 * Every piece of memory is of exactly the size that the runtime asks for, so whatever it touches beside it is seen; and a
 * blob that is accepted is run with as little memory for tensors as it is accepted with. A letter for each blob says what came of it: r refused, n refused while running, k run; the first that is missing did harm. Of
 * blobs that nobody changed ("whole" as an argument) the outputs must not depend on what the memory held before, w if so. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <sanitizer/asan_interface.h>

#include "quern_rt.h"

enum { MOST = 64, SMALL = 1 << 22 };

static uint32_t chance = 1;

static uint32_t random_bits(void) {
    chance ^= chance << 13;
    chance ^= chance >> 17;
    chance ^= chance << 5;
    return chance;
}

static void *taken(size_t bytes) {
    void *memory = malloc(bytes);
    if (!memory) {
        fputs("out of memory\n", stderr);
        exit(2);
    }
    return memory;
}

/* Plain numbers, or any bits at all. Of a large input the end stays as it is. */
static void *input(qrn_tensor t, int plain) {
    size_t bytes = qrn_bytes(t), n;
    uint8_t *made = taken(bytes);
    for (n = 0; n < bytes && n < SMALL; n += 4) {
        uint32_t bits = random_bits();
        float number = (float)(bits >> 8) / 8388608.0f - 1.0f;
        if (plain && t.dtype == QRN_I32) bits &= 3;
        if (plain && t.dtype == QRN_F32) memcpy(&bits, &number, 4);
        memcpy(made + n, &bits, bytes - n < 4 ? bytes - n : 4);
    }
    return made;
}

static uint32_t checksum(const uint8_t *bytes, size_t count) {
    uint32_t crc = 0xffffffffu;
    int bit;
    for (; count > 0; count--) {
        crc ^= *bytes++;
        for (bit = 0; bit < 8; bit++) crc = crc >> 1 ^ (crc & 1 ? 0xedb88320u : 0);
    }
    return ~crc;
}

static int accepted(uint32_t *words, size_t bytes, uint32_t tensors) {
    words[QRN_HEADER_TENSORS] = tensors;
    words[QRN_HEADER_CRC] = checksum((const uint8_t *)(words + QRN_HEADER_VERSION), bytes - 4 * QRN_HEADER_VERSION);
    return qrn_check(words, bytes) == NULL;
}

/* An accepted blob says that its tensors take as little as they do. */
static void tighten(uint32_t *words, size_t bytes) {
    uint32_t enough = words[QRN_HEADER_TENSORS] / 4, step;
    for (step = enough; step > 0; step /= 2) {
        while (step <= enough && accepted(words, bytes, 4 * (enough - step))) enough -= step;
    }
    if (!accepted(words, bytes, 4 * enough)) abort();
}

/* What qrn_run says with an arena of `bytes` that held `before`, `off` bytes from where malloc put it. */
static int run(const void *blob, size_t bytes, size_t off, int before, void **inputs, void **outputs) {
    uint8_t *memory = taken(bytes + off);
    int failed;
    memset(memory, before, bytes + off < SMALL ? bytes + off : SMALL);
#if defined(LANES) && LANES == 1
    { /* Between the tensors and what comes behind them is room for a vector to read past the last: here it is none. */
        uint8_t *end = memory + off + ((const uint32_t *)blob)[QRN_HEADER_TENSORS];
        ASAN_POISON_MEMORY_REGION(end, bytes < 32 ? 0 : 32);
    }
#endif
    failed = qrn_run(blob, memory + off, bytes, (const void *const *)inputs, outputs);
    free(memory);
    return failed;
}

static char tried(void *blob, size_t bytes, int whole) {
    size_t n, many, ins, outs, fast, least, size;
    void *inputs[MOST], *outputs[MOST], *others[MOST];
    char letter = 'k';
    int plain;
    if (qrn_check(blob, bytes)) return 'r';
    tighten(blob, bytes);
    fast = qrn_arena(blob, 1);
    least = qrn_arena(blob, 0);
    if (least > fast) abort();
    ins = qrn_inputs(blob);
    outs = qrn_outputs(blob);
    for (plain = 1; plain >= 0; plain--) {
        for (n = 0; n < ins; n++) inputs[n] = input(qrn_input(blob, n), plain);
        for (n = 0; n < outs; n++) outputs[n] = taken(qrn_bytes(qrn_output(blob, n)));
        for (n = 0; n < outs; n++) others[n] = taken(qrn_bytes(qrn_output(blob, n)));
        for (many = 0; many < 2; many++) {
            size = many ? fast : least;
            if (run(blob, size, 0, 0, inputs, outputs) != 0) letter = 'n';
            if (run(blob, size, 4, 0xff, inputs, others) != 0) letter = 'n';
            for (n = 0; n < outs && whole && plain; n++) {
                if (memcmp(outputs[n], others[n], qrn_bytes(qrn_output(blob, n))) != 0) letter = 'w';
            }
        }
        if (run(blob, least - 1, 0, 0, inputs, outputs) == 0) abort();
        for (n = 0; n < ins; n++) free(inputs[n]);
        for (n = 0; n < outs; n++) free(outputs[n]), free(others[n]);
    }
    return letter;
}

int main(int count, char **arguments) {
    int whole = count > 1 && strcmp(arguments[1], "whole") == 0;
    uint32_t bytes;
    while (fread(&bytes, 4, 1, stdin) == 1) {
        void *blob = taken(bytes);
        if (fread(blob, 1, bytes, stdin) != bytes) return 2;
        putchar(tried(blob, bytes, whole));
        fflush(stdout);
        free(blob);
    }
    return 0;
}
