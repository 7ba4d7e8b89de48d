/* One image, classified: all that a program needs of the runtime. */
#include "board.h"
#include "network.h"
#include "quern_rt.h"

static uint32_t arena[NETWORK_ARENA / 4];

int main(void) {
    float scores[NETWORK_CLASSES];
    const void *inputs[] = {image};
    void *outputs[] = {scores};
    const char *wrong = qrn_check(network, NETWORK_BYTES);
    int failed = wrong ? -1 : qrn_run(network, arena, sizeof arena, inputs, outputs), best = 0, n;
    for (n = 1; !failed && n < NETWORK_CLASSES; n++) best = scores[n] > scores[best] ? n : best;
    board_print(failed ? "failed" : "class", failed ? failed : best);
    return failed || best != IMAGE_CLASS;
}
