/* Every operation of DML's job interface, on an emulated DSA. docs/guides/c.md maps the names. */
#include "check.h"

#include <string.h>

enum { SIZE = 4096, PATTERN_SIZE = 512 };

static mf_mover mover;
static unsigned char source[SIZE], other[SIZE];
/* The targets of dualcast are equal modulo 4096. */
static _Alignas(4096) unsigned char target[2 * SIZE];
static _Alignas(4096) unsigned char second[SIZE];

static mf_result run(mf_operation operation) {
    mf_result result;
    CHECK(mf_mover_run(mover, &operation, &result));
    return result;
}

/* DML_OP_MEM_MOVE, DML_OP_FILL, DML_OP_DUALCAST, DML_OP_CACHE_FLUSH, DML_OP_NOP */
static void moves(void) {
    run((mf_operation){.opcode = MF_COPY, .source = source, .target = target, .size = SIZE});
    ENSURE(memcmp(source, target, SIZE) == 0);
    run((mf_operation){.opcode = MF_FILL, .target = target, .size = SIZE, .pattern = 0x0101010101010101u});
    ENSURE(target[0] == 1 && target[SIZE - 1] == 1);
    run((mf_operation){
        .opcode = MF_DUALCAST, .source = source, .target = target, .target_2 = second, .size = SIZE});
    ENSURE(memcmp(source, target, SIZE) == 0 && memcmp(source, second, SIZE) == 0);
    run((mf_operation){.opcode = MF_CACHE_FLUSH, .source = target, .size = SIZE});
    run((mf_operation){.opcode = MF_NOOP});
}

/* DML_OP_COMPARE, DML_OP_COMPARE_PATTERN */
static void compares(void) {
    memcpy(other, source, SIZE);
    mf_operation compare = {.opcode = MF_COMPARE, .source = source, .source_2 = other, .size = SIZE};
    ENSURE(run(compare).outcome == MF_EQUAL);
    other[100] ^= 1;
    mf_result result = run(compare);
    ENSURE(result.outcome == MF_DIFFERENT && result.value == 100);
    memset(target, 9, SIZE);
    result = run((mf_operation){.opcode = MF_COMPARE_PATTERN,
                                .source = target,
                                .size = SIZE,
                                .pattern = 0x0909090909090909u});
    ENSURE(result.outcome == MF_EQUAL);
}

/* DML_OP_DELTA_CREATE, DML_OP_DELTA_APPLY */
static void deltas(void) {
    static _Alignas(64) unsigned char old[SIZE], new[SIZE], record[SIZE];
    new[8] = 1;
    mf_result result = run((mf_operation){.opcode = MF_CREATE_DELTA,
                                          .source = old,
                                          .source_2 = new,
                                          .size = SIZE,
                                          .target = record,
                                          .target_size = SIZE});
    ENSURE(result.outcome == MF_DELTA_COMPLETE && result.value == 10);
    run((mf_operation){.opcode = MF_APPLY_DELTA,
                       .source = record,
                       .size = (size_t)result.value,
                       .target = old,
                       .target_size = SIZE});
    ENSURE(memcmp(old, new, SIZE) == 0);
}

/* DML_OP_CRC, DML_OP_COPY_CRC */
static void crcs(void) {
    mf_result whole = run((mf_operation){.opcode = MF_CRC, .source = source, .size = SIZE});
    mf_result half = run((mf_operation){.opcode = MF_CRC, .source = source, .size = SIZE / 2});
    mf_result rest = run((mf_operation){.opcode = MF_COPY_CRC,
                                        .source = source + SIZE / 2,
                                        .target = target,
                                        .size = SIZE / 2,
                                        .seed = (uint32_t)half.value});
    ENSURE(rest.value == whole.value);
    ENSURE(memcmp(source + SIZE / 2, target, SIZE / 2) == 0);
}

/* DML_OP_DIF_INSERT, DML_OP_DIF_CHECK, DML_OP_DIF_UPDATE, DML_OP_DIF_STRIP */
static void difs(void) {
    enum { BLOCK = 512, BLOCKS = 4, WITH_FIELDS = BLOCKS * (BLOCK + 8) };
    static unsigned char fields[WITH_FIELDS], updated[WITH_FIELDS];
    mf_dif dif = {.format = 0, .source_tags = {.reference = 5}, .target_tags = {.reference = 5}};
    run((mf_operation){.opcode = MF_DIF_INSERT,
                       .source = source,
                       .size = BLOCKS * BLOCK,
                       .target = fields,
                       .target_size = WITH_FIELDS,
                       .dif = dif});
    mf_operation check = {.opcode = MF_DIF_CHECK, .source = fields, .size = WITH_FIELDS, .dif = dif};
    ENSURE(run(check).outcome == MF_DONE);
    run((mf_operation){
        .opcode = MF_DIF_UPDATE, .source = fields, .target = updated, .size = WITH_FIELDS, .dif = dif});
    run((mf_operation){.opcode = MF_DIF_STRIP,
                       .source = updated,
                       .size = WITH_FIELDS,
                       .target = target,
                       .target_size = BLOCKS * BLOCK,
                       .dif = dif});
    ENSURE(memcmp(source, target, BLOCKS * BLOCK) == 0);
    fields[BLOCK + 8] ^= 1; /* in the second block */
    mf_result result = run(check);
    ENSURE(result.outcome == MF_DIF_MISMATCH && (result.dif_errors & 1));
}

/* DML_OP_BATCH: operations, submitted together. dml_check_job: poll. dml_wait_job: wait. */
static void batch(void) {
    enum { COUNT = 8, PART = SIZE / COUNT };
    mf_operation copies[COUNT];
    mf_transfer transfers[COUNT];
    memset(target, 0, SIZE);
    for (size_t i = 0; i < COUNT; i++)
        copies[i] = (mf_operation){
            .opcode = MF_COPY, .source = source + i * PART, .target = target + i * PART, .size = PART};
    CHECK(mf_mover_submit_batch(mover, copies, COUNT, transfers));
    while (mf_transfer_poll(transfers[0], NULL) == MF_PENDING) {
    }
    CHECK(mf_transfers_finish(transfers, COUNT, NULL));
    ENSURE(memcmp(source, target, SIZE) == 0);
}

int main(void) {
    mf_emulator emulator;
    mf_machine machine;
    CHECK(mf_emulator_start(&(mf_emulator_options){.seed = 1}, &emulator));
    CHECK(mf_machine_from_profile("two-tiers", &machine));
    mf_mover_options options = {.devices = MF_DEVICES_NONE, .emulator = emulator};
    CHECK(mf_mover_create(machine, &options, &mover));
    for (size_t i = 0; i < SIZE; i++) source[i] = (unsigned char)(i * 31 + 1);
    moves();
    compares();
    deltas();
    crcs();
    difs();
    batch();
    CHECK(mf_mover_drain(mover));
    mf_mover_stats stats;
    CHECK(mf_mover_get_stats(mover, &stats));
    printf("%llu operations, %llu errors\n", (unsigned long long)stats.operations,
           (unsigned long long)stats.errors);
    CHECK(mf_mover_free(mover));
    CHECK(mf_emulator_free(emulator));
    CHECK(mf_machine_free(machine));
    return 0;
}
