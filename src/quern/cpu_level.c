/* Which build of a library runs on this processor: 0 the one for any, 1 with AVX2, 2 with AVX-512 and its registers for
 * vectors of 256 bits, 3 with its products of bytes too. */
int quern_cpu_level(void);
int quern_cpu_level(void) {
#if defined(__x86_64__) || defined(__i386__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl")) {
        return __builtin_cpu_supports("avx512vnni") ? 3 : 2;
    }
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
#else
    return 0;
#endif
}
