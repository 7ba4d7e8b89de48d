/* What Python needs besides the runtime: a batch in one call. */
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
