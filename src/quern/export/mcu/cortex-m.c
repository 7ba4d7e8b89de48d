/* A Cortex-M from reset to main, and lines of text by semihosting, which qemu and debuggers understand. For a board of
 * your own take its vendor's start-up code and write board_print for it. */
#include "board.h"

#include <stdint.h>

int main(void);
void start(void);

extern uint32_t stack_top[], data_in_flash[], data_start[], data_end[], bss_start[], bss_end[]; /* cortex-m.ld */

enum { SYS_WRITE0 = 0x04, SYS_EXIT_EXTENDED = 0x20, APPLICATION_EXIT = 0x20026 };

static void semihost(int operation, const void *argument) {
    register int r0 __asm__("r0") = operation;
    register const void *r1 __asm__("r1") = argument;
    __asm__ volatile("bkpt 0xab" : "+r"(r0) : "r"(r1) : "memory");
}

void board_print(const char *text, int number) {
    char digits[16], *p = digits + sizeof digits;
    unsigned rest = number < 0 ? 0u - (unsigned)number : (unsigned)number;
    *--p = '\0';
    *--p = '\n';
    do *--p = (char)('0' + rest % 10);
    while (rest /= 10);
    if (number < 0) *--p = '-';
    *--p = ' ';
    semihost(SYS_WRITE0, text);
    semihost(SYS_WRITE0, p);
}

static void end(int status) {
    uint32_t reason[2] = {APPLICATION_EXIT, (uint32_t)status};
    semihost(SYS_EXIT_EXTENDED, reason);
    for (;;) {
    }
}

static void fault(void) { end(99); }

void start(void) {
    uint32_t *from = data_in_flash, *to;
#ifdef __ARM_FP /* the floating-point unit is off after reset */
    *(volatile uint32_t *)0xe000ed88 |= 0xfu << 20;
    __asm__ volatile("dsb\n isb" ::: "memory");
#endif
    for (to = data_start; to < data_end;) *to++ = *from++;
    for (to = bss_start; to < bss_end;) *to++ = 0;
    end(main());
}

typedef void (*handler)(void);
__attribute__((section(".vectors"), used)) static const struct {
    uint32_t *stack;
    handler handlers[15];
} vectors = {stack_top, {start, fault, fault, fault, fault, fault, 0, 0, 0, 0, fault, fault, 0, fault, fault}};
