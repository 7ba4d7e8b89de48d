/* What quern_rt.c takes from the C library, where there is none: WebAssembly has instructions for all of it. */
#include <stddef.h>
void *memcpy(void *to, const void *from, size_t bytes);
void *memset(void *to, int byte, size_t bytes);
