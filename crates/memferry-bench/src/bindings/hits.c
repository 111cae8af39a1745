/* Hits of the C library, as a program makes them: a round for each byte of standard input. Prints the time of a hit. */
#include <memferry.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define CHECK(call)                                             \
    do {                                                        \
        if (call) {                                             \
            fprintf(stderr, "%s: %s\n", #call, mf_error_message()); \
            exit(1);                                            \
        }                                                       \
    } while (0)

static mf_cache cache;
static mf_region region;

/* The first access copies the block, the second one publishes it. */
static void copy_near(size_t offset, size_t size) {
    mf_location location;
    for (int access = 0; access < 2; access++) {
        mf_view view;
        CHECK(mf_cache_view(cache, region, offset, size, NULL, &view));
        CHECK(mf_view_wait(&view, &location));
        CHECK(mf_view_release(&view));
    }
    if (location.place != MF_NEAR) {
        fputs("a block is not near\n", stderr);
        exit(1);
    }
}

static double round_ns(const uint32_t *keys, size_t count, size_t block_bytes) {
    struct timespec start, end;
    clock_gettime(CLOCK_MONOTONIC, &start);
    for (size_t i = 0; i < count; i++) {
        mf_view view;
        CHECK(mf_cache_view(cache, region, keys[i] * block_bytes, block_bytes, NULL, &view));
        __asm__ volatile("" : : "r"(view.data) : "memory");
        mf_view_release(&view);
    }
    clock_gettime(CLOCK_MONOTONIC, &end);
    return ((double)(end.tv_sec - start.tv_sec) * 1e9 + (double)(end.tv_nsec - start.tv_nsec)) / (double)count;
}

int main(int argc, char **argv) {
    if (argc != 5) return 2;
    size_t keys_count = strtoul(argv[1], NULL, 10), block_bytes = strtoul(argv[2], NULL, 10);
    size_t hits_count = strtoul(argv[3], NULL, 10), bytes = keys_count * block_bytes;
    uint64_t random = strtoul(argv[4], NULL, 10);
    unsigned char *column = malloc(bytes);
    uint32_t *keys = malloc(hits_count * sizeof *keys);
    if (!column || !keys) return 2;
    memset(column, 1, bytes);
    for (size_t i = 0; i < hits_count; i++) {
        random = random * 6364136223846793005u + 1442695040888963407u; /* Knuth's generator */
        keys[i] = (uint32_t)((random >> 33) % keys_count);
    }
    mf_machine machine;
    mf_mover mover;
    mf_mover_options options = {.devices = MF_DEVICES_NONE};
    mf_budget budget = {.node = 1, .bytes = bytes};
    mf_cache_options cached = {.budgets = &budget, .budgets_count = 1};
    CHECK(mf_machine_from_profile("two-tiers", &machine));
    CHECK(mf_mover_create(machine, &options, &mover));
    CHECK(mf_cache_init(mover, &cached, &cache));
    CHECK(mf_cache_register(cache, column, bytes, block_bytes, 0, &region));
    for (size_t key = 0; key < keys_count; key++) copy_near(key * block_bytes, block_bytes);
    while (getchar() != EOF) {
        printf("%f\n", round_ns(keys, hits_count, block_bytes));
        fflush(stdout);
    }
    CHECK(mf_region_free(region));
    CHECK(mf_cache_free(cache));
    CHECK(mf_mover_free(mover));
    CHECK(mf_machine_free(machine));
    free(keys);
    free(column);
    return 0;
}
