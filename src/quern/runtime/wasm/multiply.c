/* A product of 128 bits: clang makes one of a check for overflow, and leaves it to a library that is not there. */
#include <stdint.h>

typedef unsigned __int128 wide;

wide __multi3(wide a, wide b);
wide __multi3(wide a, wide b) {
    uint64_t x = (uint64_t)a, y = (uint64_t)b, x0 = (uint32_t)x, x1 = x >> 32, y0 = (uint32_t)y, y1 = y >> 32;
    uint64_t low = x0 * y0, middle = x1 * y0 + (low >> 32), other = x0 * y1 + (uint32_t)middle;
    uint64_t high = x1 * y1 + (middle >> 32) + (other >> 32) + x * (uint64_t)(b >> 64) + y * (uint64_t)(a >> 64);
    return (wide)high << 64 | other << 32 | (uint32_t)low;
}
