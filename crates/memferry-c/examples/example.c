/* Copies memory while the program computes: cc example.c $(pkg-config --cflags --libs memferry) */
#include "check.h"

#include <string.h>

int main(void) {
    mf_machine machine;
    mf_mover mover;
    CHECK(mf_machine_discover(&machine));
    CHECK(mf_mover_create(machine, NULL, &mover)); /* DSA devices, if there are any, and CPU engines */

    enum { SIZE = 1 << 20 };
    unsigned char *source = malloc(SIZE), *target = malloc(SIZE);
    ENSURE(source && target);
    memset(source, 7, SIZE);

    mf_operation copy = {.opcode = MF_COPY, .source = source, .target = target, .size = SIZE};
    mf_transfer transfer;
    CHECK(mf_mover_submit(mover, &copy, &transfer));
    /* ... compute ... */
    mf_result result;
    CHECK(mf_transfer_wait(transfer, &result));
    CHECK(mf_transfer_free(transfer));
    ENSURE(memcmp(source, target, SIZE) == 0);
    printf("memferry %s: %llu bytes by DSA, %llu by the CPU\n", mf_version(),
           (unsigned long long)result.dsa_bytes, (unsigned long long)result.cpu_bytes);

    free(source);
    free(target);
    CHECK(mf_mover_free(mover));
    CHECK(mf_machine_free(machine));
    return 0;
}
