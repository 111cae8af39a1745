/* The loops in C beside which memferry measures its own: the same bytes, vectors of the compiler's choice. */
#include <stddef.h>
#include <stdint.h>

uint64_t peer_read(const uint64_t *words, size_t words_count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < words_count; i++) sum += words[i];
    return sum;
}

void peer_write(uint64_t *words, size_t words_count, uint64_t value) {
    for (size_t i = 0; i < words_count; i++) words[i] = value;
}

/* "Copy" of STREAM (J. McCalpin). Its arrays are global, so the compiler knows that they do not overlap, too. */
void peer_copy(double *restrict target, const double *restrict source, size_t words_count) {
    for (size_t i = 0; i < words_count; i++) target[i] = source[i];
}

/* Of each pair of lines, reads the first and increments the words of the second. */
uint64_t peer_mix(uint64_t *words, size_t pairs_count) {
    enum { LINE = 8 };
    uint64_t sums[LINE] = {0}, sum = 0;
    for (size_t pair = 0; pair < pairs_count; pair++, words += 2 * LINE) {
        for (size_t i = 0; i < LINE; i++) sums[i] += words[i];
        for (size_t i = 0; i < LINE; i++) words[LINE + i] += 1;
    }
    for (size_t i = 0; i < LINE; i++) sum += sums[i];
    return sum;
}

/* The first word of each line is the address of the next line. 16 steps in an iteration, as in chain.rs. */
const void *peer_follow(const void *line, size_t steps) {
#define STEP line = *(const void *const *)line;
#define STEPS_4 STEP STEP STEP STEP
    for (size_t i = 0; i < steps / 16; i++) {
        STEPS_4 STEPS_4 STEPS_4 STEPS_4
    }
    for (size_t i = 0; i < steps % 16; i++) {
        STEP
    }
    return line;
}
