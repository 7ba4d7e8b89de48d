/* Packed networks run on an emulated Cortex-M. By semihosting it reads "given" and writes "found" in the folder that the
 * emulator runs in. Given, again and again: bytes of a network, number of inputs to run, the network, the inputs of each run
 * one after the other. Found, for each: bytes of the arena, most bytes of the stack that a run and qrn_check took, ticks of the
 * timer for all runs, then their outputs. All numbers are words of 32 bits. */
#include "quern_rt.h"

#include <string.h>

enum { SYS_OPEN = 0x01, SYS_WRITE = 0x05, SYS_READ = 0x06, READ_BYTES = 1, WRITE_BYTES = 5 };
enum { BLOB = 1 << 20, ARENA = 1 << 20, DATA = 1 << 18, PAINTED = 1 << 14, TENSORS = 64 };
#define PAINT 0xa5c3960fu

static uint32_t blob[BLOB / 4], arena[ARENA / 4], given_numbers[DATA / 4], found_numbers[DATA / 4];

static int semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
    return r0;
}

static int open_file(const char *name, int mode) {
    uint32_t words[3] = {(uint32_t)name, (uint32_t)mode, (uint32_t)strlen(name)};
    return semihost(SYS_OPEN, words);
}

/* Bytes that were not read or written. */
static int transfer(int operation, int file, const void *where, size_t bytes) {
    uint32_t words[3] = {(uint32_t)file, (uint32_t)where, (uint32_t)bytes};
    return bytes == 0 ? 0 : semihost(operation, words);
}

/* The board's timer counts down from the largest number; the emulator counts 40 instructions for a tick. */
static volatile uint32_t *const timer = (volatile uint32_t *)0x40000000; /* control, value, reload */

static uint32_t *painted_end; /* the place on the stack from which on a call takes it */

static __attribute__((noinline)) uint32_t *stack_pointer(void) {
    uint32_t *here;
    __asm__ volatile("mov %0, sp" : "=r"(here));
    return here;
}

static void paint(void) {
    uint32_t *p;
    painted_end = stack_pointer() - 16; /* below what this function uses itself */
    for (p = painted_end - PAINTED / 4; p < painted_end; p++) *(volatile uint32_t *)p = PAINT;
}

/* Bytes below the caller's stack that a call has written to. */
static uint32_t used_stack(const uint32_t *caller) {
    const uint32_t *p = painted_end - PAINTED / 4;
    while (p < painted_end && *(const volatile uint32_t *)p == PAINT) p++;
    return (uint32_t)((const uint8_t *)caller - (const uint8_t *)p);
}

static uint32_t larger(uint32_t a, uint32_t b) { return a > b ? a : b; }

int main(void) {
    int given = open_file("given", READ_BYTES), found = open_file("found", WRITE_BYTES);
    uint32_t head[2];
    uint32_t *here = stack_pointer();
    if (given < 0 || found < 0) return 2;
    timer[2] = timer[1] = 0xffffffffu;
    timer[0] = 1;
    while (transfer(SYS_READ, given, head, sizeof head) == 0) {
        const void *inputs[TENSORS];
        void *outputs[TENSORS];
        uint32_t run, ticks = 0, results[4], in_bytes = 0, out_bytes = 0;
        size_t n;
        if (head[0] > BLOB || transfer(SYS_READ, given, blob, head[0])) return 3;
        paint();
        if (qrn_check(blob, head[0])) return 4;
        results[2] = used_stack(here);
        results[0] = (uint32_t)qrn_arena(blob, 0);
        if (results[0] > ARENA || qrn_inputs(blob) > TENSORS || qrn_outputs(blob) > TENSORS) return 5;
        for (n = 0; n < qrn_inputs(blob); n++) { /* each at a multiple of 4 bytes */
            inputs[n] = (const uint8_t *)given_numbers + in_bytes;
            in_bytes += ((uint32_t)qrn_bytes(qrn_input(blob, n)) + 3) & ~3u;
        }
        for (n = 0; n < qrn_outputs(blob); n++) {
            outputs[n] = (uint8_t *)found_numbers + out_bytes;
            out_bytes += ((uint32_t)qrn_bytes(qrn_output(blob, n)) + 3) & ~3u;
        }
        if (in_bytes > DATA || (uint64_t)out_bytes * head[1] > DATA) return 6;
        results[1] = 0;
        for (run = 0; run < head[1]; run++) {
            uint32_t before;
            if (transfer(SYS_READ, given, given_numbers, in_bytes)) return 7;
            memset(arena, 0xee, sizeof arena); /* nothing is left from the run before */
            paint();
            before = timer[1];
            if (qrn_run(blob, arena, results[0], inputs, outputs)) return 8;
            ticks += before - timer[1];
            results[1] = larger(results[1], used_stack(here));
            for (n = 0; n < qrn_outputs(blob); n++) outputs[n] = (uint8_t *)outputs[n] + out_bytes;
        }
        results[3] = ticks;
        if (transfer(SYS_WRITE, found, results, sizeof results)) return 9;
        if (transfer(SYS_WRITE, found, found_numbers, out_bytes * head[1])) return 10;
    }
    return 0;
}
