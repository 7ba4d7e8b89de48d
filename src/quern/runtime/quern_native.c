/* What Python needs besides the runtime: a batch in one call, and which build runs on this processor. */
#include "quern_rt.h"

/* Run the network on `count` samples that follow each other. Returns what qrn_run did at the first that failed. */
int quern_batch(const void *blob, void *arena, size_t arena_bytes, size_t count, const uint8_t *const *inputs,
                uint8_t *const *outputs);
int quern_batch(const void *blob, void *arena, size_t arena_bytes, size_t count, const uint8_t *const *inputs,
                uint8_t *const *outputs) {
    const void *in[64];
    void *out[64];
    size_t sample, n;
    for (sample = 0; sample < count; sample++) {
        int failed;
        for (n = 0; n < qrn_inputs(blob); n++) in[n] = inputs[n] + sample * qrn_bytes(qrn_input(blob, n));
        for (n = 0; n < qrn_outputs(blob); n++) out[n] = outputs[n] + sample * qrn_bytes(qrn_output(blob, n));
        failed = qrn_run(blob, arena, arena_bytes, in, out);
        if (failed) return failed;
    }
    return 0;
}

/* 0: any processor of this kind, 1: AVX2, 2: AVX-512 with its registers for vectors of 256 bits. */
int quern_cpu_level(void);
int quern_cpu_level(void) {
#if defined(__x86_64__) || defined(__i386__)
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512vl")) return 2;
    return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma") ? 1 : 0;
#else
    return 0;
#endif
}
