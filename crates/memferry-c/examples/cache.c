/* The cache of the thesis: policies and memory of the caller; access, wait, location, invalidate, flush, clear. */
#include "check.h"

#include <string.h>

enum { DRAM = 0, HBM = 1, SIZE = 1 << 16 };

/* The counters of the callbacks of one cache. */
typedef struct {
    int allocated, freed;
} Memory;

static mf_node placement(void *context, const mf_policy_request *request) {
    (void)context;
    return request->size >= 4096 ? HBM : MF_NO_NODE;
}

static mf_route_value engines(void *context, const mf_policy_request *request) {
    (void)context;
    return request->size >= 1 << 20 ? MF_ROUTE_ALL : MF_ROUTE_SINGLE;
}

static void *allocate(void *context, mf_node node, size_t size) {
    ENSURE(node == HBM);
    ((Memory *)context)->allocated++;
    return malloc(size); /* numa_alloc_onnode(size, node) on a real machine */
}

static void deallocate(void *context, void *memory, size_t size) {
    (void)size;
    ((Memory *)context)->freed++;
    free(memory);
}

int main(void) {
    mf_machine machine;
    mf_mover mover;
    CHECK(mf_machine_from_profile("two-tiers", &machine)); /* mf_machine_discover on a real machine */
    CHECK(mf_mover_create(machine, &(mf_mover_options){.devices = MF_DEVICES_NONE}, &mover));

    Memory memory = {0};
    mf_budget budget = {.node = HBM, .bytes = 4 * SIZE};
    mf_cache_options options = {.budgets = &budget,
                                .budgets_count = 1,
                                .placement = placement,
                                .copy_policy = engines,
                                .allocate = allocate,
                                .deallocate = deallocate,
                                .context = &memory};
    mf_cache cache;
    CHECK(mf_cache_init(mover, &options, &cache)); /* Cache::Init */

    unsigned char *column = malloc(SIZE);
    ENSURE(column);
    memset(column, 7, SIZE);
    mf_entry entry;
    mf_location location;
    CHECK(mf_cache_access(cache, column, SIZE, NULL, &entry)); /* Cache::Access */
    CHECK(mf_entry_get_data_location(entry, &location));       /* readable at once */
    ENSURE(*(const unsigned char *)location.data == 7);
    CHECK(mf_entry_wait_on_completion(entry));           /* CacheData::WaitOnCompletion */
    CHECK(mf_entry_get_data_location(entry, &location)); /* CacheData::GetDataLocation */
    ENSURE(location.place == MF_NEAR && location.node == HBM && location.data != column);
    CHECK(mf_entry_free(entry));

    /* Weak: what is there, and never a copy. */
    mf_access weak = {.flags = MF_ACCESS_WEAK};
    CHECK(mf_cache_access(cache, column, SIZE, &weak, &entry));
    ENSURE(entry.id != 0);
    CHECK(mf_entry_free(entry));
    CHECK(mf_cache_access(cache, column, SIZE / 2 + 1, &weak, &entry));
    ENSURE(entry.id == 0);

    CHECK(mf_cache_invalidate(cache, column, SIZE)); /* before a change */
    column[0] = 8;
    CHECK(mf_cache_access(cache, column, SIZE, NULL, &entry));
    CHECK(mf_entry_wait_on_completion(entry));
    CHECK(mf_entry_get_data_location(entry, &location));
    ENSURE(*(const unsigned char *)location.data == 8);
    CHECK(mf_entry_free(entry));
    CHECK(mf_cache_flush(cache)); /* Cache::Flush */

    /* Loops over chunks: a view of a near chunk takes no lock. */
    mf_region region;
    mf_view view;
    CHECK(mf_cache_register(cache, column, SIZE, 4096, DRAM, &region));
    unsigned long sum = 0;
    for (size_t start = 0; start < SIZE; start += 4096) {
        CHECK(mf_cache_view(cache, region, start, 4096, NULL, &view));
        sum += *(const unsigned char *)view.data;
        CHECK(mf_view_release(&view));
    }
    ENSURE(sum == 7 * (SIZE / 4096) + 1);
    CHECK(mf_region_free(region));
    CHECK(mf_cache_clear(cache)); /* Cache::Clear */

    mf_cache_stats stats;
    CHECK(mf_cache_get_stats(cache, &stats));
    printf("%llu accesses, %llu misses\n", (unsigned long long)stats.accesses,
           (unsigned long long)stats.misses);
    CHECK(mf_cache_free(cache));
    ENSURE(memory.allocated == 1 && memory.freed == 1);
    free(column);
    CHECK(mf_mover_free(mover));
    CHECK(mf_machine_free(machine));
    return 0;
}
