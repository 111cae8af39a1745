/* Misuse of handles, pointers and callbacks: refused, each with its status. */
#define _GNU_SOURCE
#include "../../examples/check.h"

#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#define REFUSED(expected, call)                                                                     \
    do {                                                                                            \
        mf_status refused_status = (call);                                                          \
        if (refused_status != (expected) || *mf_error_message() == 0) {                             \
            fprintf(stderr, "%s:%d: %s instead of %s: %s\n", __FILE__, __LINE__,                    \
                    mf_status_name((int)refused_status), mf_status_name(expected), mf_error_message()); \
            exit(1);                                                                                \
        }                                                                                           \
    } while (0)

enum { SIZE = 1 << 16, PAGE = 4096 };
static unsigned char source[SIZE], target[SIZE];
static mf_machine machine;
static mf_mover mover;
static mf_cache cache;

static mf_operation copy_of(size_t size) {
    return (mf_operation){.opcode = MF_COPY, .source = source, .target = target, .size = size};
}

static void handles(void) {
    mf_mover other;
    REFUSED(MF_INVALID_HANDLE, mf_mover_create((mf_machine){0}, NULL, &other));
    REFUSED(MF_INVALID_HANDLE, mf_mover_create((mf_machine){mover.id}, NULL, &other)); /* another kind */
    REFUSED(MF_INVALID_HANDLE, mf_mover_free((mf_mover){0x123456789abcdef3u}));
    ENSURE(strstr(mf_error_message(), "is not a mover"));
    CHECK(mf_mover_create(machine, NULL, &other));
    CHECK(mf_mover_free(other));
    REFUSED(MF_INVALID_HANDLE, mf_mover_free(other)); /* double free */
    mf_mover again;
    CHECK(mf_mover_create(machine, NULL, &again));    /* takes the slot of the freed one */
    REFUSED(MF_INVALID_HANDLE, mf_mover_drain(other)); /* use after free */
    CHECK(mf_mover_free(again));
}

static void arguments(void) {
    mf_transfer transfer;
    REFUSED(MF_INVALID_ARGUMENT, mf_machine_discover(NULL));
    REFUSED(MF_NOT_FOUND, mf_machine_from_profile("no such machine", &(mf_machine){0}));
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, NULL, &transfer));
    mf_operation copy = copy_of(SIZE);
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, NULL));
    copy.source = NULL;
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, &transfer));
    copy = copy_of(SIZE);
    copy.target = source + 1;
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, &transfer));
    copy = copy_of((size_t)-1);
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, &transfer));
    copy = copy_of(SIZE);
    copy.opcode = 0xff;
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, &transfer));
    copy = copy_of(SIZE);
    copy.flags = 1u << 31;
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, &transfer));
    copy = copy_of(SIZE);
    copy.route = 99;
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit(mover, &copy, &transfer));
    mf_machine large;
    mf_accelerator first = {.node = 77};
    size_t count = 0;
    CHECK(mf_machine_from_profile("xeon-max-9468-2s-flat", &large));
    REFUSED(MF_INVALID_ARGUMENT, mf_machine_accelerators(large, NULL, 1, &count));
    REFUSED(MF_INVALID_ARGUMENT, mf_machine_accelerators(large, &first, 1, NULL));
    CHECK(mf_machine_accelerators(large, &first, 1, &count));
    ENSURE(count == 8 && *first.name != 0 && first.node != 77);
    CHECK(mf_machine_free(large));
    mf_operation misaligned = {
        .opcode = MF_DUALCAST, .source = source, .target = target, .target_2 = target + PAGE + 1, .size = 8};
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_run(mover, &misaligned, NULL));
    /* A batch with a bad member starts nothing. */
    mf_operation batch[2] = {copy_of(8), copy_of(8)};
    mf_transfer transfers[2];
    batch[1].source = NULL;
    target[0] = 99;
    REFUSED(MF_INVALID_ARGUMENT, mf_mover_submit_batch(mover, batch, 2, transfers));
    CHECK(mf_mover_drain(mover));
    ENSURE(target[0] == 99 && strstr(mf_error_message(), "operation 1"));
    copy = copy_of(0);
    copy.source = copy.target = NULL;
    CHECK(mf_mover_run(mover, &copy, NULL));
    /* Caches. */
    mf_region region, second;
    REFUSED(MF_INVALID_ARGUMENT, mf_cache_init(mover, NULL, &(mf_cache){0}));
    REFUSED(MF_INVALID_ARGUMENT, mf_cache_init(mover, &(mf_cache_options){.budgets = NULL}, &(mf_cache){0}));
    REFUSED(MF_NOT_FOUND, mf_cache_register(cache, source, SIZE, 0, 77, &region));
    CHECK(mf_cache_register(cache, source, SIZE, PAGE, MF_NO_NODE, &region));
    REFUSED(MF_INVALID_ARGUMENT, mf_cache_register(cache, source + 1, 8, 0, MF_NO_NODE, &second));
    mf_view view;
    REFUSED(MF_INVALID_ARGUMENT, mf_cache_view(cache, region, SIZE, 1, NULL, &view));
    REFUSED(MF_INVALID_ARGUMENT, mf_cache_view(cache, region, 1, (size_t)-1, NULL, &view));
    REFUSED(MF_INVALID_ARGUMENT, mf_cache_view(cache, region, 0, 1, NULL, NULL));
    CHECK(mf_region_free(region));
    REFUSED(MF_INVALID_HANDLE, mf_cache_view(cache, region, 0, 1, NULL, &view));
}

/* Views. */
static void *release(void *view) {
    REFUSED(MF_INVALID_HANDLE, mf_view_release(view)); /* of another thread */
    return NULL;
}

static void views(void) {
    mf_region region;
    mf_view view, copied;
    CHECK(mf_cache_register(cache, source, SIZE, PAGE, MF_NO_NODE, &region));
    CHECK(mf_cache_view(cache, region, 0, PAGE, NULL, &view));
    pthread_t thread;
    ENSURE(pthread_create(&thread, NULL, release, &view) == 0 && pthread_join(thread, NULL) == 0);
    REFUSED(MF_BUSY, mf_region_free(region));
    copied = view;
    CHECK(mf_view_release(&view));
    REFUSED(MF_BUSY, mf_cache_free(cache)); /* of the region */
    REFUSED(MF_INVALID_HANDLE, mf_cache_view((mf_cache){region.id}, region, 0, PAGE, NULL, &view));
    REFUSED(MF_INVALID_HANDLE, mf_view_release(&view));
    REFUSED(MF_INVALID_HANDLE, mf_view_release(&copied));
    REFUSED(MF_INVALID_HANDLE, mf_view_release(NULL));
    mf_view many[64];
    for (int i = 0; i < 64; i++) CHECK(mf_cache_view(cache, region, 0, PAGE, NULL, &many[i]));
    REFUSED(MF_NO_MEMORY, mf_cache_view(cache, region, 0, PAGE, NULL, &view));
    for (int i = 0; i < 64; i++) CHECK(mf_view_release(&many[i]));
    CHECK(mf_region_free(region));
}

/* Callbacks that call back. */
static atomic_int callbacks;
static mf_transfer awaited;

static void completed(void *context, const mf_result *result) {
    ENSURE(result->status == MF_OK && context == &callbacks);
    /* Starting an operation is allowed, waiting is not, and neither is a free of what the caller uses. */
    REFUSED(MF_NOT_HERE, mf_mover_drain(mover));
    mf_operation next = copy_of(PAGE);
    REFUSED(MF_NOT_HERE, mf_mover_run(mover, &next, NULL));
    if (atomic_fetch_add(&callbacks, 1) == 0) {
        next.callback = completed;
        next.context = context;
        CHECK(mf_mover_submit(mover, &next, NULL));
    }
}

static mf_node asks_the_library(void *context, const mf_policy_request *request) {
    (void)request;
    REFUSED(MF_NOT_HERE, mf_cache_flush(*(mf_cache *)context));
    REFUSED(MF_NOT_HERE, mf_mover_drain(mover));
    return 1;
}

static void callbacks_that_call_back(void) {
    mf_operation copy = copy_of(PAGE);
    copy.callback = completed;
    copy.context = &callbacks;
    CHECK(mf_mover_submit(mover, &copy, &awaited));
    while (atomic_load(&callbacks) < 2) usleep(100);
    CHECK(mf_transfer_wait(awaited, NULL));
    CHECK(mf_mover_drain(mover));
    while (mf_transfer_free(awaited) == MF_BUSY) usleep(100);
    REFUSED(MF_INVALID_HANDLE, mf_transfer_free(awaited));

    mf_cache strange;
    mf_budget budget = {.node = 1, .bytes = 4 * PAGE};
    mf_cache_options options = {
        .budgets = &budget, .budgets_count = 1, .placement = asks_the_library, .context = &strange};
    CHECK(mf_cache_init(mover, &options, &strange));
    mf_entry entry;
    CHECK(mf_cache_access(strange, source, PAGE, NULL, &entry));
    CHECK(mf_entry_wait_on_completion(entry));
    CHECK(mf_entry_free(entry));
    CHECK(mf_cache_free(strange));
}

/* Callbacks that free the transfer and the memory that it is in. Once the library wrote the handle after the callback. */
enum { JOBS = 8 };
struct jobs {
    int count;
    atomic_int begun, ended;
    mf_operation copies[JOBS];
    mf_transfer transfers[JOBS];
};
static atomic_int freed;

static void frees(void *context, const mf_result *result) {
    struct jobs *jobs = context;
    ENSURE(result->status == MF_OK);
    CHECK(mf_transfer_free(jobs->transfers[atomic_fetch_add(&jobs->begun, 1)]));
    if (atomic_fetch_add(&jobs->ended, 1) + 1 == jobs->count) {
        free(jobs);
        atomic_fetch_add(&freed, 1);
    }
}

static struct jobs *jobs_of(int count) {
    struct jobs *jobs = calloc(1, sizeof *jobs);
    ENSURE(jobs);
    jobs->count = count;
    for (int i = 0; i < count; i++) {
        jobs->copies[i] = copy_of(8);
        jobs->copies[i].source = source + 8 * i;
        jobs->copies[i].target = target + 8 * i;
        jobs->copies[i].callback = frees;
        jobs->copies[i].context = jobs;
    }
    return jobs;
}

static void callbacks_that_free(void) {
    enum { ROUNDS = 20 };
    for (int round = 0; round < ROUNDS; round++) {
        struct jobs *one = jobs_of(1), *many = jobs_of(JOBS);
        CHECK(mf_mover_submit(mover, one->copies, one->transfers));
        CHECK(mf_mover_submit_batch(mover, many->copies, JOBS, many->transfers));
    }
    while (atomic_load(&freed) < 2 * ROUNDS) usleep(100);
}

/* A signal handler that interrupts a call. */
static atomic_int interrupted;

static mf_node raises(void *context, const mf_policy_request *request) {
    (void)context, (void)request;
    raise(SIGUSR1);
    return 1;
}

static void handler(int signal) {
    (void)signal;
    atomic_store(&interrupted, mf_mover_drain(mover) == MF_NOT_HERE);
}

static void signals(void) {
    signal(SIGUSR1, handler);
    mf_cache strange;
    mf_budget budget = {.node = 1, .bytes = 4 * PAGE};
    CHECK(mf_cache_init(
        mover, &(mf_cache_options){.budgets = &budget, .budgets_count = 1, .placement = raises}, &strange));
    mf_entry entry;
    CHECK(mf_cache_access(strange, source, PAGE, NULL, &entry));
    ENSURE(atomic_load(&interrupted));
    CHECK(mf_entry_free(entry));
    CHECK(mf_cache_free(strange));
}

static atomic_bool is_over;
static mf_region shared_region;

/* Calls without a pause. None may fail: the handles are valid, although frees of them are tried. */
static void *calls(void *unused) {
    (void)unused;
    mf_view view;
    while (!atomic_load(&is_over)) {
        CHECK(mf_cache_view(cache, shared_region, 0, PAGE, NULL, &view));
        CHECK(mf_view_release(&view));
    }
    return NULL;
}

static void refused_frees(void) {
    mf_view view;
    pthread_t thread;
    CHECK(mf_cache_register(cache, source, SIZE, PAGE, MF_NO_NODE, &shared_region));
    CHECK(mf_cache_view(cache, shared_region, 0, PAGE, NULL, &view));
    ENSURE(pthread_create(&thread, NULL, calls, NULL) == 0);
    for (int i = 0; i < 3000; i++) {
        REFUSED(MF_BUSY, mf_region_free(shared_region));
        REFUSED(MF_BUSY, mf_cache_free(cache));
    }
    atomic_store(&is_over, true);
    ENSURE(pthread_join(thread, NULL) == 0);
    atomic_store(&is_over, false);
    CHECK(mf_view_release(&view));
    CHECK(mf_region_free(shared_region));
}

static void succeeds(pid_t child) {
    int status;
    ENSURE(waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* A child that only executes a program, while another thread makes calls. */
static void executes(void) {
    pthread_t thread;
    CHECK(mf_cache_register(cache, source, SIZE, PAGE, MF_NO_NODE, &shared_region));
    ENSURE(pthread_create(&thread, NULL, calls, NULL) == 0);
    for (int i = 0; i < 20; i++) {
        pid_t child = fork();
        if (child == 0) {
            execlp("true", "true", (char *)NULL);
            _exit(1);
        }
        succeeds(child);
    }
    atomic_store(&is_over, true);
    ENSURE(pthread_join(thread, NULL) == 0);
    atomic_store(&is_over, false);
    CHECK(mf_region_free(shared_region));
}

/* An operation in flight during a fork fails in the child; the message is on the thread that waits. */
static atomic_bool may_return;

static pthread_t main_thread;
static enum { RUNS, BLOCKS, RAN_IN_SUBMIT } callback_state;

static void blocks(void *context, const mf_result *result) {
    (void)context, (void)result;
    if (pthread_equal(pthread_self(), main_thread)) { /* complete before mf_mover_submit returned */
        callback_state = RAN_IN_SUBMIT;
        return;
    }
    __atomic_store_n(&callback_state, BLOCKS, __ATOMIC_RELEASE);
    while (!atomic_load(&may_return)) usleep(100);
}

/* Keeps the only worker of a mover in a callback, until `may_return`. */
static void block_worker(mf_mover single, unsigned char *buffer, size_t size) {
    mf_operation copy = {.opcode = MF_COPY, .source = buffer, .target = buffer + size, .size = size, .callback = blocks};
    atomic_store(&may_return, false);
    main_thread = pthread_self();
    do {
        callback_state = RUNS;
        CHECK(mf_mover_submit(single, &copy, NULL));
        while (__atomic_load_n(&callback_state, __ATOMIC_ACQUIRE) == RUNS) usleep(100);
    } while (callback_state == RAN_IN_SUBMIT);
}

static void *waits(void *transfer) {
    REFUSED(MF_FORKED, mf_transfer_wait(*(mf_transfer *)transfer, NULL));
    ENSURE(strstr(mf_error_message(), "forked process"));
    return NULL;
}

static void forked_in_flight(void) {
    enum { LARGE = 1 << 20 };
    mf_mover single;
    CHECK(mf_mover_create(machine, &(mf_mover_options){.devices = MF_DEVICES_NONE, .route = MF_ROUTE_SINGLE, .cpu_workers = 1},
                          &single));
    unsigned char *from = calloc(2, LARGE);
    mf_operation copy = {.opcode = MF_COPY, .source = from, .target = from + LARGE, .size = LARGE};
    mf_transfer transfer;
    block_worker(single, from, LARGE);
    CHECK(mf_mover_submit(single, &copy, &transfer));
    ENSURE(mf_transfer_poll(transfer, NULL) == MF_PENDING);
    pid_t child = fork();
    if (child == 0) {
        pthread_t thread;
        waits(&transfer);
        ENSURE(pthread_create(&thread, NULL, waits, &transfer) == 0 && pthread_join(thread, NULL) == 0);
        CHECK(mf_transfer_free(transfer));
        _exit(0);
    }
    succeeds(child);
    atomic_store(&may_return, true);
    CHECK(mf_transfer_wait(transfer, NULL));
    CHECK(mf_transfer_free(transfer));
    CHECK(mf_mover_free(single));
    free(from);
}

/* Two threads invalidate a range with a copy in flight, while a third one flushes: both wait for the copy. */
static atomic_int returned;
static mf_cache slow;

static void *invalidates(void *column) {
    CHECK(mf_cache_invalidate(slow, column, 1 << 20));
    atomic_fetch_add(&returned, 1);
    return NULL;
}

static void invalidations_wait(void) {
    enum { LARGE = 1 << 20 };
    mf_mover single;
    mf_budget budget = {.node = 1, .bytes = 2 * LARGE};
    mf_cache_options options = {.budgets = &budget, .budgets_count = 1};
    CHECK(mf_mover_create(machine, &(mf_mover_options){.devices = MF_DEVICES_NONE, .route = MF_ROUTE_SINGLE, .cpu_workers = 1},
                          &single));
    CHECK(mf_cache_init(single, &options, &slow));
    unsigned char *column = calloc(3, LARGE);
    ENSURE(column);
    block_worker(single, column + LARGE, LARGE);
    mf_entry entry;
    CHECK(mf_cache_access(slow, column, LARGE, NULL, &entry));
    CHECK(mf_entry_free(entry));
    pthread_t threads[2];
    for (int i = 0; i < 2; i++) {
        ENSURE(pthread_create(&threads[i], NULL, invalidates, column) == 0);
        usleep(20000);
        CHECK(mf_cache_flush(slow));
    }
    usleep(20000);
    ENSURE(atomic_load(&returned) == 0);
    atomic_store(&may_return, true);
    for (int i = 0; i < 2; i++) ENSURE(pthread_join(threads[i], NULL) == 0);
    CHECK(mf_cache_free(slow));
    CHECK(mf_mover_free(single));
    free(column);
}

/* A forked child uses inherited handles. */
static void forks(void) {
    mf_entry entry;
    CHECK(mf_cache_access(cache, source, SIZE, NULL, &entry));
    CHECK(mf_entry_wait_on_completion(entry));
    pid_t child = fork();
    if (child == 0) {
        mf_location location;
        CHECK(mf_entry_get_data_location(entry, &location));
        ENSURE(memcmp(location.data, source, SIZE) == 0);
        mf_operation copy = copy_of(SIZE);
        CHECK(mf_mover_run(mover, &copy, NULL));
        mf_entry own;
        CHECK(mf_cache_access(cache, source, PAGE, NULL, &own));
        CHECK(mf_entry_wait_on_completion(own));
        CHECK(mf_entry_free(own));
        _exit(0);
    }
    succeeds(child);
    CHECK(mf_entry_free(entry));
}

/* Threads that free what others use. */
static void *reads(void *unused) {
    (void)unused;
    mf_view view;
    while (!atomic_load(&is_over)) {
        if (mf_cache_view(cache, (mf_region){__atomic_load_n(&shared_region.id, __ATOMIC_RELAXED)}, 0, PAGE, NULL,
                          &view) != MF_OK) continue;
        ENSURE(*(const unsigned char *)view.data == source[0]);
        CHECK(mf_view_release(&view));
    }
    return NULL;
}

static void races(void) {
    pthread_t thread;
    CHECK(mf_cache_register(cache, source, SIZE, PAGE, MF_NO_NODE, &shared_region));
    ENSURE(pthread_create(&thread, NULL, reads, NULL) == 0);
    for (int i = 0; i < 1000; i++) {
        mf_status status = mf_region_free(shared_region);
        if (status == MF_OK) {
            mf_region next;
            CHECK(mf_cache_register(cache, source, SIZE, PAGE, MF_NO_NODE, &next));
            __atomic_store_n(&shared_region.id, next.id, __ATOMIC_RELAXED);
        } else {
            ENSURE(status == MF_BUSY);
        }
    }
    atomic_store(&is_over, true);
    ENSURE(pthread_join(thread, NULL) == 0);
    CHECK(mf_region_free(shared_region));
}

/* With an argument it does not fork: a child keeps memory of the parent's threads, which leak checkers report. */
int main(int argc, char **argv) {
    (void)argv;
    memset(source, 7, SIZE);
    CHECK(mf_machine_from_profile("two-tiers", &machine));
    CHECK(mf_mover_create(machine, &(mf_mover_options){.devices = MF_DEVICES_NONE}, &mover));
    mf_budget budget = {.node = 1, .bytes = 4 * SIZE};
    CHECK(mf_cache_init(mover, &(mf_cache_options){.budgets = &budget, .budgets_count = 1}, &cache));
    handles();
    arguments();
    views();
    callbacks_that_call_back();
    callbacks_that_free();
    signals();
    refused_frees();
    invalidations_wait();
    if (argc == 1) {
        executes();
        forks();
        forked_in_flight();
    }
    races();
    CHECK(mf_cache_free(cache));
    REFUSED(MF_INVALID_HANDLE, mf_cache_flush(cache));
    CHECK(mf_mover_free(mover));
    CHECK(mf_machine_free(machine));
    puts("refused");
    return 0;
}
