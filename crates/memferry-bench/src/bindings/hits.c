/* Hits of the C library, as a program makes them. The benchmark compiles and loads this. */
#include <memferry.h>
#include <stdlib.h>
#include <string.h>

static mf_machine machine;
static mf_mover mover;
static mf_cache cache;
static mf_region region;
static unsigned char *column;

/* Copies all blocks near. 0, or the status of the call that failed. */
int bench_set_up(size_t keys_count, size_t block_bytes) {
    size_t bytes = keys_count * block_bytes;
    mf_mover_options options = {.devices = MF_DEVICES_NONE};
    mf_budget budget = {.node = 1, .bytes = bytes};
    mf_cache_options cached = {.budgets = &budget, .budgets_count = 1};
    mf_status status;
    column = malloc(bytes);
    if (!column) return MF_NO_MEMORY;
    memset(column, 1, bytes);
    if ((status = mf_machine_from_profile("two-tiers", &machine))) return status;
    if ((status = mf_mover_create(machine, &options, &mover))) return status;
    if ((status = mf_cache_init(mover, &cached, &cache))) return status;
    if ((status = mf_cache_register(cache, column, bytes, block_bytes, 0, &region))) return status;
    for (size_t key = 0; key < keys_count; key++) {
        mf_view view;
        mf_location location;
        for (int round = 0; round < 2; round++) {
            if ((status = mf_cache_view(cache, region, key * block_bytes, block_bytes, 0, &view))) return status;
            if ((status = mf_view_wait(&view, &location))) return status;
            if ((status = mf_view_release(&view))) return status;
        }
        if (location.place != MF_NEAR) return MF_FAILED;
    }
    return 0;
}

int bench_hits(const uint32_t *keys, size_t count, size_t block_bytes) {
    for (size_t i = 0; i < count; i++) {
        mf_view view;
        mf_status status = mf_cache_view(cache, region, keys[i] * block_bytes, block_bytes, 0, &view);
        if (status) return status;
        __asm__ volatile("" : : "r"(view.data) : "memory");
        mf_view_release(&view);
    }
    return 0;
}

int bench_tear_down(void) {
    mf_status status;
    if ((status = mf_region_free(region))) return status;
    if ((status = mf_cache_free(cache))) return status;
    if ((status = mf_mover_free(mover))) return status;
    if ((status = mf_machine_free(machine))) return status;
    free(column);
    return 0;
}
